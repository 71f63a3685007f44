//! Compares what runs with the configuration, starts and stops the difference, and leaves the rest alone.

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use farbus::broker::{BrokerClient, ReplacementProcess, SystemAccess};
use farbus::common::socket_place::SocketLocation;
use farbus::devices::identities::naming::DeviceNaming;
use farbus::exporter::owner_answers::{self, ServedAt};
use farbus::exporter::share::Share;
use farbus::exporter::sources::making::{expect, offer};
use farbus::exporter::sources::usb::{self, HotplugFollower, PortKeeper};
use farbus::exporter::sources::what::DeviceSpec;
use farbus::exporter::state::shared::NeighbourResponder;
use farbus::frontend::{AttachRequest, AttachmentRefusal, steer};
use farbus::hosts::mdns::MdnsProcess;
use farbus::hosts::trust::TrustStore;
use farbus::importer::client::{DeviceTarget, FailureKind, FailureReport, HOLD, name_of};
use farbus_control::attachment::AttachmentStatus;
use farbus_control::daemon::{DaemonStatus, FailedDevice, ReloadReport, RestartReport, SleepReport, WakeReport};
use farbus_control::failure::CommandFailure;
use farbus_control::process::{ProcessDevice, ProcessStatus};
use farbus_io_linux::service::ServiceNotifier;
use farbus_io_linux::usb::HotplugMonitor;
use farbus_io_net::link::{PLAIN_SILENCE, TcpLinkListener};
use farbus_io_net::local::control_socket::{Answer, Question, SentAnswer, TopologyAct};
use farbus_io_net::local::passed_files::PassedFiles;
use farbus_io_net::trust::AuditRecorder;
use serde_json::{Value, json};
use tracing::{debug, info, warn};

use super::attachment::{AttachmentContext, AttachmentHandover, ManagedAttachment};
use super::config::DaemonConfig;
use super::directory::DirectoryService;
use super::handover::{
    self, HandoverAcceptance, IncomingHandover, OutgoingAttachment, OutgoingHandover, PassedListener,
    ReplacementPassage,
};
use super::modules::ReadyModules;
use super::page::DaemonPage;
use super::requested::RequestedShares;
use super::spec::DaemonShare;
use super::topology_links::{HostView, LinkAttachment, TopologyLinks};
use super::topology_plan::plan_path;

/// What commands may pass to this release of the daemon, besides images (docs/control.md).
const TAKES: [&str; 2] = ["frames", "usb"];

/// The daemon, as its threads share it.
pub struct Supervisor {
    path: PathBuf,
    /// The absolute path of the configuration, for the owner's commands.
    pub(super) config_path: PathBuf,
    pub(super) share: Arc<Share>,
    /// Devices that the owner asked this process to share.
    pub(super) requested: Arc<RequestedShares>,
    manager: ServiceNotifier,
    /// Does what this process has no rights for.
    pub(super) broker: Arc<BrokerClient>,
    pub(super) system: SystemAccess,
    ready_modules: ReadyModules,
    /// This host's key and paired hosts; `None` if no paired host is served or attached.
    pub(super) trust: Option<TrustStore>,
    pub(super) nearby: Option<MdnsProcess>,
    /// The links between this host and others.
    joining: Arc<TopologyLinks>,
    /// The directory of all sites.
    directory: DirectoryService,
    page: DaemonPage,
    has: Mutex<SupervisorState>,
    is_handed_over: AtomicBool,
    end: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

/// A listening socket.
pub(super) struct DaemonListener {
    /// As the configuration names it; port 0 takes a free port.
    pub(super) configured: SocketLocation,
    pub(super) location: SocketLocation,
    pub(super) is_secure: bool,
    /// Whether the socket was passed by a former process, and is served only because the configuration names no
    /// address.
    pub(super) is_passed: bool,
}

/// What the daemon runs.
pub(super) struct SupervisorState {
    config: DaemonConfig,
    /// Passed listeners that are not in use.
    pub(super) passed: Vec<TcpLinkListener>,
    /// Listeners of the former process, until the configuration says what they are for.
    pub(super) inherited: Vec<PassedListener>,
    /// Targets that the owner had detached before this process began.
    detached: BTreeSet<String>,
    pub(super) listeners: Vec<DaemonListener>,
    /// Why the last announcement failed.
    pub(super) unannounced: Option<String>,
    pub(super) shares: BTreeMap<String, OfferedShare>,
    /// Names of the configuration's shares that the owner has unshared, until the next reload.
    pub(super) unshared: BTreeSet<String>,
    /// Follows real devices; `None` once the daemon ends.
    real: Option<HotplugFollower>,
    attachments: BTreeMap<String, ManagedAttachment>,
}

/// What a daemon opens before it drops its rights.
pub struct DaemonResources {
    /// The absolute path of the configuration.
    pub config_path: PathBuf,
    /// The connection to the service manager.
    pub manager: ServiceNotifier,
    /// The connection to the broker, which opens devices, sockets and files for this process.
    pub broker: Arc<BrokerClient>,
    pub ready_modules: ReadyModules,
    /// This host's key and paired hosts.
    pub trust: Option<TrustStore>,
    /// Announces this host to hosts nearby.
    pub nearby: Option<MdnsProcess>,
    /// Reports devices that are plugged in or unplugged.
    pub hotplug: Option<HotplugMonitor>,
    /// Listeners that were passed by the service manager.
    pub passed: Vec<TcpLinkListener>,
    /// USB devices that the process before this one had open, by bus and number.
    pub devices: Vec<(u32, u32)>,
}

/// A share of the configuration.
pub(super) struct OfferedShare {
    shared: DaemonShare,
    /// The listed names of its devices, or why it is not shared.
    pub(super) result: Result<Vec<String>, FailureReport>,
}

/// What a change started and stopped.
#[derive(Debug, Default)]
pub struct SupervisorChanges {
    pub(super) added: Vec<String>,
    pub(super) removed: Vec<String>,
}

impl Supervisor {
    /// A supervisor that runs nothing yet; [`Supervisor::apply`] starts what the configuration names.
    ///
    /// # Errors
    /// The system has no more threads or descriptors.
    pub fn new(path: PathBuf, tools: DaemonResources) -> std::io::Result<Self> {
        let DaemonResources { config_path, manager, broker, ready_modules, trust, nearby, hotplug, passed, devices } =
            tools;
        let share = Arc::new(Share::default());
        let recorder: Arc<dyn AuditRecorder> = Arc::new(broker.line()?);
        let trust = trust.map(|trust| trust.recorded_by(Arc::clone(&recorder)));
        share.record_by(recorder);
        if let Some(modules) = ready_modules.allowed() {
            share.allow_modules(modules);
        }
        // All attachments share its lines: a thousand of them have no thousand threads in the broker.
        let system = SystemAccess::Through(Arc::clone(&broker)).apart()?;
        let keeper = PortKeeper { config: config_path.clone(), system: system.clone() };
        let real = usb::SharedUsbDevices::new(Arc::new(broker.line()?)).inheriting(&devices).remembering(keeper);
        let real = HotplugFollower::start(Arc::clone(&share), real, hotplug)?;
        // An own line to the broker, so that a connecting program does not wait for slow questions.
        share.ask_through(SystemAccess::Through(Arc::new(broker.line()?)));
        share.write_leases_through(&broker)?;
        // The broker identifies all devices.
        broker.note_shared(Vec::new())?;
        share.keep_retirements(SystemAccess::Through(Arc::new(broker.line()?)));
        let requested =
            RequestedShares::new(Arc::clone(&share), real.handle(), Arc::new(broker.line()?), system.clone())?;
        let joining = Arc::new(TopologyLinks::new(trust.clone(), system.clone()));
        let neighbourhood: Arc<dyn NeighbourResponder> = Arc::<TopologyLinks>::clone(&joining);
        share.answer_neighbours(neighbourhood);
        let directory = DirectoryService::new(Arc::clone(&share), trust.clone(), system.clone());
        let page = DaemonPage::new(Arc::new(broker.line()?));
        let has = SupervisorState {
            config: DaemonConfig::default(),
            passed,
            inherited: vec![],
            detached: BTreeSet::new(),
            listeners: vec![],
            unannounced: None,
            shares: BTreeMap::new(),
            unshared: BTreeSet::new(),
            real: Some(real),
            attachments: BTreeMap::new(),
        };
        Ok(Self {
            path,
            config_path,
            share,
            requested,
            manager,
            broker,
            system,
            ready_modules,
            trust,
            nearby,
            joining,
            directory,
            page,
            has: Mutex::new(has),
            is_handed_over: AtomicBool::new(false),
            end: Mutex::new(None),
        })
    }

    pub(super) fn has(&self) -> MutexGuard<'_, SupervisorState> {
        self.has.lock().expect("no change panics")
    }

    /// The connection to the service manager.
    pub fn manager(&self) -> &ServiceNotifier {
        &self.manager
    }

    /// Reads the configuration again and applies it. Entries that stay the same are not touched, so their sessions
    /// continue.
    ///
    /// # Errors
    /// [`CommandFailure`]: if the file is wrong, nothing has changed; otherwise, what could be applied was applied.
    pub fn reload(&self) -> Result<SupervisorChanges, CommandFailure> {
        self.manager.reloading();
        let result = self.read().and_then(|config| {
            self.has().unshared.clear();
            self.apply(config)
        });
        if result.is_ok() {
            // Attachments that their owner had detached begin again.
            self.has().attachments.values().for_each(ManagedAttachment::resume);
        }
        match &result {
            Ok(changes) => info!(added = ?changes.added, removed = ?changes.removed, "reloaded"),
            Err(failure) => warn!("not reloaded: {failure}"),
        }
        self.manager.ready(&self.summary());
        result
    }

    /// Reads and parses the current configuration.
    ///
    /// # Errors
    /// What is wrong with it, and where.
    pub fn read(&self) -> Result<DaemonConfig, CommandFailure> {
        let text = self.broker.config().map_err(CommandFailure::local)?;
        DaemonConfig::parse_file(&self.path, &text).map_err(CommandFailure::local)
    }

    /// Starts and stops what is needed so that the daemon runs what `config` says. What its owner detached stays
    /// detached.
    ///
    /// # Errors
    /// The daemon cannot listen at an address. Devices that are not available are retried later, and shown in the
    /// status.
    pub fn apply(&self, config: DaemonConfig) -> Result<SupervisorChanges, CommandFailure> {
        self.ready_modules.check(&config)?;
        let mut has = self.has();
        let mut changes = SupervisorChanges::default();
        let opened = self.listen(&mut has, &config, &mut changes)?;
        self.share.show(config.observable);
        self.share.limit_plain_silence(config.plain_silence.unwrap_or(PLAIN_SILENCE));
        self.share.configure_notes(config.notes.clone());
        self.share.set_budget(config.budget);
        self.share.limit_leases(config.lease_limit);
        self.share.wait_for_successors(config.hold.unwrap_or(HOLD));
        self.joining.follow(config.joined.as_ref(), &SupervisorView::by(self, &has));
        has.config = config;
        self.offer_all(&mut has, &mut changes);
        if let Some(real) = &has.real {
            self.requested.adopt_usb(&has.config.wanted());
            real.want(has.config.wanted());
        }
        let config = has.config.clone();
        self.serve(opened, &mut has, &config, &mut changes)?;
        self.announce(&mut has, &config);
        self.attach_all(&mut has, &mut changes);
        if let Some([former, now]) = self.directory.follow(has.config.directory.as_ref()) {
            let named = |at: Option<String>| at.map(|at| format!("directory {at}"));
            changes.removed.extend(named(former));
            changes.added.extend(named(now));
        }
        self.page.follow(has.config.page.clone());
        Ok(changes)
    }

    /// The links between this host and others.
    pub fn joining(&self) -> &TopologyLinks {
        &self.joining
    }

    /// Advances the links between hosts as far as possible now.
    pub fn join(&self) {
        let mut has = self.has();
        if self.is_handed_over() || has.config.joined.is_none() {
            return;
        }
        // Hosts that were paired meanwhile get their ends.
        self.share.lend(self.joining.lent());
        while self.joining.step(&SupervisorView::by(self, &has)) {
            let mut changes = SupervisorChanges::default();
            self.offer_all(&mut has, &mut changes);
            self.attach_all(&mut has, &mut changes);
        }
    }

    fn topology(&self, act: TopologyAct) -> Answer {
        match act {
            TopologyAct::Status => {}
            TopologyAct::Up => {
                if let Err(failure) = self.reload() {
                    return Answer::Failed(failure.report());
                }
            }
            TopologyAct::Down => {
                let mut has = self.has();
                self.joining.take_down();
                let mut changes = SupervisorChanges::default();
                self.attach_all(&mut has, &mut changes);
                self.offer_all(&mut has, &mut changes);
            }
        }
        let has = self.has();
        let Some(joined) = &has.config.joined else {
            let what = "the daemon here brings no links up";
            let next = format!("add to {}:\n    [topology]\n    plan = \"topology.toml\"", self.path.display());
            return Answer::Refused(format!("{what}\n  {next}\n  and then: farbus topology up FILE"));
        };
        let mut status = self.joining.status(&SupervisorView::by(self, &has));
        status.host.clone_from(&joined.host);
        status.plan = plan_path(&self.path, &joined.plan);
        Answer::Ok(json!(status))
    }

    fn offer_all(&self, has: &mut SupervisorState, changes: &mut SupervisorChanges) {
        let mut shares = has.config.shares.clone();
        shares.extend(self.joining.shares());
        // The restriction must be set before the device is offered.
        self.share.lend(self.joining.lent());
        let stays = |offered: &OfferedShare| shares.iter().any(|shared| shared.is(&offered.shared));
        for (name, offered) in has.shares.extract_if(.., |_, offered| !stays(offered)) {
            for listed in offered.result.iter().flatten() {
                if let Err(error) = self.share.remove(listed) {
                    warn!(name, %error, "was not there to be removed");
                }
            }
            changes.removed.push(name);
        }
        self.requested.offer_inherited();
        let is_here =
            |shared: &&DaemonShare| !matches!(shared.what, DeviceSpec::Usb(_)) && !has.unshared.contains(&shared.name);
        let shares: Vec<&DaemonShare> = shares.iter().filter(is_here).collect();
        let new = shares.iter().filter(|shared| !has.shares.contains_key(&shared.name));
        expect(&self.system, new.map(|shared| (DeviceNaming::of(&shared.name, shared.is_named), &shared.what)));
        for shared in shares {
            if let Some(offered) = has.shares.get_mut(&shared.name) {
                // The file may have given it a name meanwhile.
                offered.shared.is_named = shared.is_named;
                offered.result.iter().flatten().for_each(|listed| self.share.set_named(listed, shared.is_named));
            } else {
                // What the owner asked for, and saved then, is offered already.
                let adopted = self.requested.adopt(shared);
                if let Some(names) = &adopted {
                    names.iter().for_each(|listed| self.share.set_named(listed, shared.is_named));
                }
                let result = adopted.map_or_else(|| self.offer(shared), Ok);
                if let Err(failure) = &result {
                    warn!(name = shared.name, "not shared: {}; tried again later", failure.message);
                }
                changes.added.push(shared.name.clone());
                has.shares.insert(shared.name.clone(), OfferedShare { shared: shared.clone(), result });
            }
        }
    }

    fn offer(&self, shared: &DaemonShare) -> Result<Vec<String>, FailureReport> {
        let offered =
            offer(&self.share, &mut None, &self.system, DeviceNaming::of(&shared.name, shared.is_named), &shared.what)
                .map_err(|failure| failure.report())?;
        let names: Vec<_> = offered.iter().map(|record| name_of(record).to_owned()).collect();
        let reserved = match &shared.reservation {
            Some(reservation) => names.iter().try_for_each(|name| self.share.reserve(name, reservation.clone())),
            None => Ok(()),
        };
        if let Err(error) = reserved {
            // Without its reservation the device must not be offered.
            for name in &names {
                let _ = self.share.remove(name);
            }
            return Err(FailureReport::new(FailureKind::Refused, error.to_string()));
        }
        Ok(names)
    }

    /// Retries shares that failed, and the announcement.
    pub fn try_again(&self) {
        self.requested.release_moved();
        self.requested.forget_unplugged();
        let mut has = self.has();
        for (name, offered) in has.shares.iter_mut().filter(|(_, offered)| offered.result.is_err()) {
            offered.result = self.offer(&offered.shared);
            if offered.result.is_ok() {
                info!(name, "shared at last");
            }
        }
        // A network may have come up.
        let config = has.config.clone();
        self.announce(&mut has, &config);
    }

    fn restart(&self, interrupt: bool) -> Answer {
        match self.hand_over(interrupt) {
            Ok(value) => {
                if let Some(end) = self.end.lock().expect("nobody panics with it").take() {
                    end();
                }
                Answer::Ok(value)
            }
            Err(failure) => Answer::Failed(failure.report()),
        }
    }

    /// Sets what ends this process once a replacement has taken over.
    pub fn on_handed_over(&self, end: impl FnOnce() + Send + 'static) {
        *self.end.lock().expect("nobody panics with it") = Some(Box::new(end));
    }

    /// Answers a question of the owner.
    pub fn answer(&self, question: Question, files: &PassedFiles) -> SentAnswer {
        if self.is_handed_over() {
            // The replacement is asked as well.
            return Answer::Unknown.into();
        }
        let Question::Directory { query, known } = question else { return self.answer_plain(question, files).into() };
        match self.directory.contents(query.as_deref(), known.as_deref()) {
            None => Answer::Unknown.into(),
            Some(Ok(contents)) => SentAnswer::Written { ok: contents },
            Some(Err(why)) => Answer::Refused(why).into(),
        }
    }

    fn answer_plain(&self, question: Question, files: &PassedFiles) -> Answer {
        match question {
            Question::Status => self.status(),
            Question::Reload { adopt } => {
                let reloaded = self.reload().and_then(|changes| {
                    let adopted = adopt.map(|device| self.adopt(&device)).transpose()?;
                    Ok(json!(ReloadReport { added: changes.added, removed: changes.removed, adopted }))
                });
                reloaded.map_or_else(|failure| Answer::Failed(failure.report()), Answer::Ok)
            }
            Question::Restart { interrupt } => self.restart(interrupt),
            Question::Topology { act } => self.topology(act),
            Question::DirectoryLimit { host, devices, for_s } => match self.directory.limit(&host, devices, for_s) {
                None => Answer::Unknown,
                Some(Ok(written)) => Answer::Ok(written),
                Some(Err(failure)) => Answer::Failed(failure),
            },
            Question::Sleep { held } => Answer::Ok(json!(SleepReport { asleep: self.sleep(&held) })),
            Question::Wake => Answer::Ok(json!(WakeReport { awake: self.wake() })),
            Question::Detach { device: Some(device), force } => self.detach(&device, force),
            Question::Detach { device: None, .. } => Answer::Unknown,
            Question::Share { what, name, keep, is_again } => {
                self.share_for_owner((&what, is_again), name, keep, files)
            }
            Question::Unshare { device, force } => self.unshare(&device, force),
            // No lock is held here: a virtual machine's device may take long.
            question => steer(question, files, |device| self.ask_kept(device, ManagedAttachment::handle))
                .unwrap_or_else(|other| owner_answers::answer(&self.share, &ServedAt::default(), other, files)),
        }
    }

    /// What all attachments are kept with.
    pub fn keeping(&self) -> AttachmentContext<'_> {
        AttachmentContext { config: &self.config_path, ready_modules: &self.ready_modules, system: &self.system }
    }

    /// Has an attachment, or a share by port, take whichever device is there now. Returns its target or name.
    fn adopt(&self, device: &str) -> Result<String, CommandFailure> {
        let in_port = self.has().real.as_ref().and_then(|real| real.shared().adopt(&self.share, device));
        if let Some(adopted) = in_port {
            return adopted.map_err(|why| CommandFailure::new(FailureKind::Refused, why));
        }
        let adopted = self.ask_kept(device, |kept| kept.adopt().map(|()| kept.request().target.to_string()));
        let unknown = || {
            let all: Vec<String> = self.has().attachments.values().map(|kept| kept.request().target.shown()).collect();
            let all = if all.is_empty() { "nothing".to_owned() } else { all.join(", ") };
            CommandFailure::new(FailureKind::Gone, format!("the daemon keeps no '{device}' attached; it keeps: {all}"))
        };
        adopted.ok_or_else(unknown)?.map_err(|why| CommandFailure::new(FailureKind::Refused, why))
    }

    /// Restores a session of the process before this one.
    ///
    /// # Errors
    /// Why this process cannot continue it.
    pub fn take_session(&self, saved: &[u8]) -> std::io::Result<()> {
        self.share.inherit(saved, self.trust.as_ref())
    }

    /// Takes what the process before this one passed on. Attachments continue at once.
    pub fn inherit(&self, inherited: IncomingHandover) {
        let mut has = self.has();
        for mut kept in inherited.kept {
            let name = kept.request().target.to_string();
            match kept.begin() {
                Ok(()) => drop(has.attachments.insert(name, kept)),
                Err(error) => warn!(target = name, %error, "not attached"),
            }
        }
        for passed in inherited.listeners {
            match passed.address {
                Some(_) => has.inherited.push(passed),
                None => has.passed.push(passed.listener),
            }
        }
        has.detached = inherited.detached;
        has.unshared = inherited.unshared;
        self.requested.inherit(inherited.requested);
        if inherited.is_down {
            self.joining.stay_down();
        }
    }

    /// Continues the restored sessions, and drops what the configuration no longer names.
    pub fn settle(&self) {
        self.share.take_up();
        let mut has = self.has();
        has.inherited.clear();
        has.detached.clear();
    }

    /// Hands over to a replacement. If that succeeds, this process has to end.
    ///
    /// # Errors
    /// [`CommandFailure`]: nothing has changed.
    pub fn hand_over(&self, interrupt: bool) -> Result<Value, CommandFailure> {
        let has = self.has();
        if self.is_handed_over() {
            return Err(CommandFailure::new(FailureKind::Refused, "another process goes on already"));
        }
        let going: Vec<(&String, AttachmentHandover)> =
            has.attachments.iter().map(|(name, kept)| (name, kept.going())).collect();
        let moving: Vec<&str> = going
            .iter()
            .filter(|(_, going)| matches!(going, AttachmentHandover::Moving))
            .map(|(name, _)| name.as_str())
            .collect();
        if !moving.is_empty() && !interrupt {
            let what = format!("{}: held still, or on its way to another host", moving.join(", "));
            let next = "try again when that is over, at most 20 s; or 'farbus resume DEVICE' first";
            return Err(CommandFailure::new(FailureKind::Refused, format!("{what}\n  {next}")));
        }
        let swapping = going.iter().find(|(_, going)| matches!(going, AttachmentHandover::Swapping));
        if let Some((name, _)) = swapping.filter(|_| !interrupt) {
            let next = format!("wait for it: farbus swap {name}\n  or stop it: farbus swap {name} --cancel");
            return Err(CommandFailure::new(FailureKind::Refused, format!("{name} is being moved\n  {next}")));
        }
        let torn = going.iter().filter_map(|(name, going)| match going {
            AttachmentHandover::Torn(how) => Some(format!("{name} is attached {how}")),
            AttachmentHandover::Moving => Some(format!("{name} is on its way to another host")),
            AttachmentHandover::Swapping => Some(format!("{name} is being moved")),
            AttachmentHandover::Along(_) | AttachmentHandover::Anew => None,
        });
        let torn: Vec<String> = torn.chain(self.requested.unmovable()).chain(self.share.unmovable()).collect();
        if !torn.is_empty() && !interrupt {
            let what = "the new process cannot continue with that: its users would get errors";
            let next = "detach it first, or 'farbus daemon restart --interrupt'";
            return Err(CommandFailure::new(FailureKind::Refused, format!("{}; {what}\n  {next}", torn.join(", "))));
        }
        let failed = |error: std::io::Error| CommandFailure::local(format!("this process goes on: {error}"));
        let ReplacementProcess { pid, passage } = self.broker.replacement().map_err(failed)?;
        let replacement = ReplacementPassage::new(passage);
        let (taken, still) = replacement
            .wait()
            .and_then(|()| self.pass_on(&has, &going, &replacement, (pid, interrupt)))
            .map_err(|error| {
                replacement.stay();
                failed(error)
            })?;
        self.is_handed_over.store(true, Ordering::Release);
        self.requested.hand_over();
        let still_ms = u64::try_from(still.as_millis()).unwrap_or(u64::MAX);
        let (kept, sessions) = (taken.targets, taken.sessions.len());
        info!(pid, attachments = kept.len(), sessions, still_ms, "another process goes on in this one's place");
        Ok(json!(RestartReport { pid, kept: kept.into_iter().collect(), sessions, interrupted: torn, still_ms }))
    }

    /// Stops the attachments, passes them on, and drops those that the replacement continues. Returns these, and how
    /// long they were stopped.
    fn pass_on(
        &self,
        has: &SupervisorState,
        going: &[(&String, AttachmentHandover)],
        replacement: &ReplacementPassage,
        (pid, interrupt): (u32, bool),
    ) -> std::io::Result<(HandoverAcceptance, Duration)> {
        let began = Instant::now();
        // All come to rest at the same time, so none waits for the others.
        let pending_saves: Vec<_> = going
            .iter()
            .filter_map(|(name, going)| match going {
                AttachmentHandover::Along(handle) => handle.save().ok().map(|reply| (*name, handle, reply)),
                AttachmentHandover::Anew
                | AttachmentHandover::Torn(_)
                | AttachmentHandover::Moving
                | AttachmentHandover::Swapping => None,
            })
            .collect();
        let sessions = self.share.ask_sessions();
        let until = began + handover::answer_time(pending_saves.len() + sessions.len());
        let left = || until.saturating_duration_since(Instant::now());
        let mut leaving = Vec::new();
        for (target, handle, reply) in pending_saves {
            let late = || std::io::Error::other(format!("{target} did not come to rest in time; try again"));
            let mut save_reply = reply.wait(left()).ok_or_else(late)?;
            // While it is at rest, its medium does not change.
            save_reply.saved.medium = handle.medium()?;
            let manner = has.attachments[target].request().manner(&self.system);
            leaving.push(OutgoingAttachment { target: target.clone(), manner, save_reply });
        }
        let sessions = match interrupt {
            true => sessions.into_iter().filter_map(|reply| reply.wait(left())).collect(),
            false => {
                let late = || std::io::Error::other("a device that is shared did not come to rest in time; try again");
                let all = sessions.into_iter().map(|reply| reply.wait(left()).ok_or_else(late));
                all.collect::<std::io::Result<Vec<_>>>()?
            }
        };
        let mut listeners = Vec::new();
        for DaemonListener { configured, location, is_secure, .. } in &has.listeners {
            // A Unix socket ends with this process, and its importers reconnect at the replacement's.
            if let (SocketLocation::Address(address), Some(listener)) =
                (configured, self.share.addresses().listener(location)?)
            {
                listeners.push(PassedListener { address: Some(*address), is_secure: *is_secure, listener });
            }
        }
        for listener in &has.passed {
            listeners.push(PassedListener { address: None, is_secure: false, listener: listener.try_clone()? });
        }
        let detached = has.attachments.iter().filter(|(_, kept)| kept.is_detached());
        let detached = detached.map(|(name, _)| name.clone()).collect();
        let is_down = self.joining.is_down();
        let (unshared, requested) = (has.unshared.iter().cloned().collect(), self.requested.leaving());
        let passed_on = OutgoingHandover { listeners, leaving, sessions, detached, unshared, requested, is_down };
        let taken = replacement.pass(&passed_on)?;
        let left =
            passed_on.leaving.iter().map(|leaving| &leaving.target).find(|target| !taken.targets.contains(*target));
        if let Some(left) = left.filter(|_| !interrupt) {
            let what = format!("the program that is installed now cannot go on with {left}");
            return Err(std::io::Error::other(format!("{what}; its log says why\n  --interrupt begins it anew")));
        }
        replacement.go()?;
        // From here on the service manager listens to the replacement.
        self.manager.hand_over(pid);
        self.share.addresses().hand_over();
        for OutgoingAttachment { target, save_reply, .. } in passed_on.leaving {
            if taken.targets.contains(&target) {
                save_reply.go();
            }
        }
        for (number, session) in passed_on.sessions.into_iter().enumerate() {
            if taken.sessions.contains(&number) {
                session.go();
            }
        }
        Ok((taken, began.elapsed()))
    }

    /// Whether a replacement has taken over.
    pub fn is_handed_over(&self) -> bool {
        self.is_handed_over.load(Ordering::Acquire)
    }

    /// Asks an attachment, by its device's name or `HOST[:PORT]/DEVICE`; `None` if there is none.
    fn ask_kept<T>(&self, device: &str, ask: impl FnOnce(&ManagedAttachment) -> T) -> Option<T> {
        let device_target = device.parse::<DeviceTarget>().ok();
        let is_it = |target: &DeviceTarget| device == target.device || device_target.as_ref() == Some(target);
        self.has().attachments.values().find(|kept| is_it(&kept.request().target)).map(ask)
    }

    /// Detaches the devices with which the kernel would not sleep, except those at the ports `held`. Returns their
    /// targets.
    fn sleep(&self, held: &BTreeSet<u32>) -> Vec<String> {
        let has = self.has();
        let is_free = |kept: &&ManagedAttachment| kept.port().is_some_and(|port| !held.contains(&port.0));
        let going: Vec<&ManagedAttachment> = has.attachments.values().filter(is_free).collect();
        going.iter().for_each(|kept| kept.sleep());
        has.attachments.values().filter(|kept| kept.is_asleep()).map(|kept| kept.request().target.to_string()).collect()
    }

    /// Attaches the devices again that were detached for sleep. Returns their targets.
    fn wake(&self) -> Vec<String> {
        let has = self.has();
        let asleep = has.attachments.values().filter(|kept| kept.is_asleep());
        let woken = asleep.inspect(|kept| kept.resume());
        woken.map(|kept| kept.request().target.to_string()).collect()
    }

    fn detach(&self, device: &str, force: bool) -> Answer {
        let detached = self.ask_kept(device, |kept| {
            if !force {
                kept.may_detach()?;
            }
            kept.detach();
            Ok::<_, AttachmentRefusal>(())
        });
        match detached {
            None => Answer::Unknown,
            Some(Ok(())) => Answer::Ok(Value::Null),
            Some(Err(why)) => Answer::Refused(why.to_string()),
        }
    }

    fn status(&self) -> Answer {
        let has = self.has();
        let mut devices: Vec<ProcessDevice> = self.share.status().into_iter().map(ProcessDevice::from).collect();
        for (name, offered) in &has.shares {
            if let Err(failure) = &offered.result {
                devices.push(FailedDevice::new(name, failure.clone()).into());
            }
        }
        let troubles = has.real.iter().flat_map(|real| real.shared().troubles());
        devices.extend(troubles.map(|usb::UsbShareFailure { name, attribute, message }| {
            FailedDevice::new(&name, FailureReport::new(attribute, message)).into()
        }));
        for kept in has.attachments.values() {
            let (status, failure) = kept.status();
            devices.push(AttachmentStatus { failure, ..status }.into());
        }
        // Clients on this machine ask the plain listener for a list, so it is named if there is one.
        let first = has.listeners.iter().min_by_key(|listens| listens.is_secure);
        let address = first.map(|listens| listens.location.as_host()).unwrap_or_default();
        let is_for_paired_hosts = first.is_some_and(|listens| listens.is_secure);
        let of_daemon = Some(DaemonStatus {
            config: self.config_path.clone(),
            takes: TAKES.iter().map(|&word| word.into()).collect(),
            page: self.page.status(),
            host: self.trust.as_ref().map(|trust| trust.name().to_string()),
            directory: self.directory.status(),
        });
        let status = ProcessStatus::new(std::process::id(), "daemon", address, devices);
        Answer::of(&ProcessStatus { is_for_paired_hosts, buses: self.share.buses(), of_daemon, ..status })
    }

    /// The status line for the service manager.
    pub fn summary(&self) -> String {
        let has = self.has();
        let real = has.real.as_ref().map_or(0, |real| real.shared().count());
        let shared = has.shares.values().filter(|offered| offered.result.is_ok()).count() + real;
        let shared = shared + self.requested.count();
        format!("{shared} shared, {} attachments", has.attachments.len())
    }

    /// Ends everything in order. Returns whether all devices became durable in time.
    pub fn stop(&self) -> bool {
        self.joining.end();
        self.page.end();
        self.directory.end(self.is_handed_over());
        if let Some(nearby) = self.nearby.as_ref().filter(|_| !self.is_handed_over())
            && let Err(error) = nearby.announce(&[])
        {
            debug!(%error, "no farewell was said");
        }
        let mut real = self.has().real.take();
        real.iter_mut().for_each(HotplugFollower::stop);
        let attachments = std::mem::take(&mut self.has().attachments);
        // All begin to end before the first one is waited for.
        attachments.values().for_each(ManagedAttachment::end);
        drop(attachments);
        let is_durable = match self.is_handed_over() {
            true => self.share.stop_for_another(),
            false => self.share.stop(),
        };
        // Each device returned to its drivers as it was dropped.
        real.into_iter().for_each(HotplugFollower::dismiss);
        is_durable
    }

    fn attach_all(&self, has: &mut SupervisorState, changes: &mut SupervisorChanges) {
        let mut requests: Vec<AttachRequest> = has.config.attachments.clone();
        requests.extend(self.joining.attachments());
        let stays = |kept: &ManagedAttachment| {
            let is_wanted = requests.contains(kept.request());
            let why = kept.may_detach().err().filter(|_| !is_wanted);
            if let Some(why) = &why {
                let target = &kept.request().target;
                warn!(%target, "stays attached until the next reload: {why}");
            }
            is_wanted || why.is_some()
        };
        let gone: Vec<_> = has.attachments.extract_if(.., |_, kept| !stays(kept)).collect();
        gone.iter().for_each(|(_, kept)| kept.end());
        changes.removed.extend(gone.into_iter().map(|(name, _)| name));
        for request in &requests {
            let name = request.target.to_string();
            if has.attachments.contains_key(&name) {
                continue;
            }
            let kept = match has.detached.remove(&name) {
                true => ManagedAttachment::detached(request.clone(), &self.keeping()),
                false => ManagedAttachment::start(request.clone(), &self.keeping()),
            };
            match kept {
                Ok(kept) => {
                    has.attachments.insert(name.clone(), kept);
                    changes.added.push(name);
                }
                Err(error) => warn!(target = name, %error, "not attached"),
            }
        }
    }
}

/// The state of the daemon, as the links between hosts see it.
struct SupervisorView<'a> {
    has: &'a SupervisorState,
    share: &'a Share,
    used: OnceCell<BTreeSet<String>>,
}

impl<'a> SupervisorView<'a> {
    fn by(supervisor: &'a Supervisor, has: &'a SupervisorState) -> Self {
        Self { has, share: &supervisor.share, used: OnceCell::new() }
    }
}

impl HostView for SupervisorView<'_> {
    fn is_offered(&self, name: &str) -> bool {
        // In the process before this one, an importer may have used one of the ends.
        let is_inherited = || ["a", "b"].iter().any(|end| self.share.is_inherited(&format!("{name}-{end}")));
        self.has.shares.get(name).map_or_else(is_inherited, |offered| offered.result.is_ok())
    }

    fn attachment(&self, target: &DeviceTarget) -> Option<LinkAttachment> {
        let (status, failure) = self.has.attachments.get(&target.to_string())?.status();
        Some(LinkAttachment { state: status.state.into_owned(), at: Some(status.at), failure })
    }

    fn is_attached(&self, target: &DeviceTarget) -> bool {
        self.has.attachments.get(&target.to_string()).is_some_and(ManagedAttachment::is_attached)
    }

    fn is_used(&self, device: &str) -> bool {
        let find = || {
            let all = self.share.status().into_iter();
            all.filter(|status| status.user.is_some()).map(|status| status.name).collect()
        };
        self.used.get_or_init(find).contains(device)
    }
}
