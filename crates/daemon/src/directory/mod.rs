//! The directory of all sites: keeps in an etcd what this host offers, and follows there what others do.
//!
//! What is said when is pure code ([`farbus_directory`]). Here are its two threads: one publishes, one follows. Neither
//! decides who has a device, and nothing waits for them: while the directory is away, sharing goes on, and what was
//! known of other hosts stays.

mod connection;
mod contents;
mod limits;
mod records;
pub mod settings;
pub mod sites;
mod stop;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, SystemTime};

use farbus::broker::SystemAccess;
use farbus::devices::query::DeviceQuery;
use farbus::exporter::share::Share;
use farbus::exporter::state::lease_limits::{LeaseLimit, SiteLimit, SiteLimitSource};
use farbus::hosts::trust::TrustStore;
use farbus_control::daemon::{DirectoryLimitReport, DirectoryStatus, TroubleStatus};
use farbus_control::device::DeviceStatus;
use farbus_control::failure::{FailureKind, FailureReport};
use farbus_directory::gateway::{EtcdCall, EtcdRefusal};
use farbus_directory::key::{HostId, KeyRange};
use farbus_directory::publisher::PublisherStep;
use farbus_directory::record::{DeviceRecord, HostRecord, LimitRecord};
use farbus_directory::view::DirectoryViewStep as ViewStep;
use farbus_directory::{DirectoryFailure, DirectoryFailureKind, DirectoryView, HostPublisher};
use farbus_io_net::link::BoottimeClock;
use farbus_io_net::trust::{Fingerprint, fill_random, timestamp};
use farbus_model::Instant;
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Value, json};
use tracing::{info, warn};

use connection::{EtcdClient, EtcdWatch};
use contents::{DirectoryContents, KnownRecords, LazySequence};
use records::PublishedRecords;
use settings::EtcdSettings;
use stop::StopFlag;

/// How often the devices are looked at for changes.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// With many devices, looking takes one part in so many of the time.
const LOOK_PART: u32 = 200;
/// The longest pause between two looks: on a busy machine one look may have taken long because others were first.
const LOOK_EVERY_MAX: Duration = Duration::from_secs(2);
/// How long what the directory shows of this host may differ from what this host said last.
const LAG_MAX: Duration = Duration::from_secs(5);
/// The longest pause between corrections, if another process goes on changing this host's keys.
const CORRECT_EVERY_MAX: Duration = Duration::from_secs(320);
/// How long a call to write a limit may take; the command waits longer than for the two that it needs.
const LIMIT_TIME_MAX: Duration = Duration::from_secs(2);
/// A member that says nothing for so long is asked whether it is there.
const SILENCE_MAX: Duration = Duration::from_secs(10);

/// The directory that the configuration names, if it names one.
pub struct DirectoryService {
    share: Arc<Share>,
    trust: Option<TrustStore>,
    system: SystemAccess,
    running: Mutex<Option<DirectoryThreads>>,
    limits: Arc<DirectoryLimits>,
}

struct DirectoryThreads {
    settings: EtcdSettings,
    state: Arc<DirectoryState>,
    stop: Arc<StopFlag>,
    threads: Vec<JoinHandle<()>>,
}

/// What both threads say of themselves.
struct DirectoryState {
    clock: BoottimeClock,
    view: Mutex<DirectoryView>,
    published: Mutex<PublicationStatus>,
    /// The failure that was logged last; `None` while the directory serves this host.
    logged_kind: Mutex<Option<DirectoryFailureKind>>,
    /// Whether this host's keys outlive this process.
    keys_stay: AtomicBool,
}

/// What is known of this host's own keys.
#[derive(Default)]
struct PublicationStatus {
    is_told: bool,
    trouble: Option<DirectoryFailure>,
    member: String,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The limits of the present directory.
#[derive(Default)]
struct DirectoryLimits {
    state: Mutex<Option<Arc<DirectoryState>>>,
    own: Option<HostId>,
}

impl DirectoryLimits {
    /// The limits as the host with this key sees them: what it shares itself is not counted as elsewhere.
    fn new(own: Option<HostId>) -> Self {
        Self { state: Mutex::default(), own }
    }

    /// Reads this directory from now on, or none.
    fn follow(&self, state: Option<Arc<DirectoryState>>) {
        *lock(&self.state) = state;
    }
}

impl SiteLimitSource for DirectoryLimits {
    fn limit_of(&self, host: &Fingerprint) -> SiteLimit {
        let Some(host) = HostId::new(&host.to_string()) else { return SiteLimit::default() };
        let Some(state) = lock(&self.state).clone() else { return SiteLimit::default() };
        let view = lock(&state.view);
        let Some(LimitRecord { devices, for_s, by, .. }) = view.limit_of(&host) else { return SiteLimit::default() };
        let elsewhere = devices.map_or(0, |_| view.devices_held_by(&host, self.own.as_ref()));
        SiteLimit { limit: LeaseLimit { devices, span: for_s.map(Duration::from_secs), notice: None }, elsewhere, by }
    }
}

impl DirectoryService {
    /// No directory yet.
    pub fn new(share: Arc<Share>, trust: Option<TrustStore>, system: SystemAccess) -> Self {
        let own = trust.as_ref().and_then(|trust| HostId::new(&trust.fingerprint().to_string()));
        let limits = Arc::new(DirectoryLimits::new(own));
        let site: Arc<dyn SiteLimitSource> = Arc::<DirectoryLimits>::clone(&limits);
        share.limit_leases_by(site);
        Self { share, trust, system, running: Mutex::new(None), limits }
    }

    /// Uses this directory, or none, from now on. Returns the former and this one, as they are shown, if they differ.
    pub fn follow(&self, settings: Option<&EtcdSettings>) -> Option<[Option<String>; 2]> {
        let mut running = lock(&self.running);
        if running.as_ref().map(|running| &running.settings) == settings {
            return None;
        }
        let former = running.take().map(|former| {
            let shown = former.settings.shown();
            former.end();
            shown
        });
        *running = settings.map(|settings| self.start(settings));
        self.limits.follow(running.as_ref().map(|running| Arc::clone(&running.state)));
        Some([former, settings.map(EtcdSettings::shown)])
    }

    /// Ends: this host's keys go from the directory, unless another process goes on in this one's place.
    pub fn end(&self, is_handed_over: bool) {
        let Some(running) = lock(&self.running).take() else { return };
        match is_handed_over {
            // The keys stay: the replacement writes them under its own lease. The threads end with the process.
            true => {
                running.state.keys_stay.store(true, Ordering::Relaxed);
                running.stop.set();
            }
            false => running.end(),
        }
    }

    /// The state of the directory, for the owner; `None` if there is none.
    pub fn status(&self) -> Option<DirectoryStatus> {
        lock(&self.running).as_ref().map(|running| running.state.status(&running.settings))
    }

    /// What is known of the directory's hosts and devices: all of it, or the devices of other hosts that a query means,
    /// with their hosts and those that are paired with this one; without them if the asker has them already, by the
    /// version of an earlier answer. `None` if there is no directory.
    ///
    /// # Errors
    /// A word is none of a query.
    pub fn contents(&self, query: Option<&[String]>, known: Option<&str>) -> Option<Result<Box<RawValue>, String>> {
        let running = lock(&self.running);
        let running = running.as_ref()?;
        let meant = query.map(|words| DeviceQuery::parse(words.iter().map(String::as_str))).transpose();
        Some(meant.and_then(|meant| self.contents_of(running, meant.as_ref().zip(query), known)))
    }

    fn contents_of(
        &self,
        running: &DirectoryThreads,
        selection: Option<(&DeviceQuery, &[String])>,
        known: Option<&str>,
    ) -> Result<Box<RawValue>, String> {
        let own_key = self.trust.as_ref().map(|trust| trust.fingerprint().to_string());
        let status = running.state.status(&running.settings);
        let view = lock(&running.state.view);
        let version = format!("{:016x}", view.version());
        let (version, own_key) = (version.as_str(), own_key.as_deref());
        let limits = LazySequence(|| view.limits().map(contents::limit));
        let Some((query, words)) = selection else {
            // What is paired is part of what a query means, and is told by no version.
            let known = (known != Some(version)).then_some(KnownRecords {
                query: None,
                known_hosts: LazySequence(|| view.hosts().map(contents::host)),
                known_devices: LazySequence(|| view.devices().map(contents::device)),
                limits,
            });
            return to_raw_value(&DirectoryContents { status, version, own_key, known })
                .map_err(|error| error.to_string());
        };
        let paired = self.trust.as_ref().map(TrustStore::names_by_key).unwrap_or_default();
        let names: BTreeMap<&HostId, String> = view
            .hosts()
            .map(|(key, record)| {
                let name = paired.get(key.as_str()).cloned();
                (key, name.unwrap_or_else(|| sites::name_of(&record.name, key.as_str())))
            })
            .collect();
        let now = SystemTime::now();
        let is_meant = |(key, name, record): &(&HostId, &str, DeviceRecord)| {
            let is_other = own_key != Some(key.as_str());
            let host = names.get(key).map_or("", String::as_str);
            is_other && query.matches(host, &sites::listed((*name).to_owned(), record.clone(), now))
        };
        let theirs: BTreeSet<&HostId> = view.devices().filter(is_meant).map(|(key, ..)| key).collect();
        let is_shown = |(key, _): &(&HostId, HostRecord)| theirs.contains(key) || paired.contains_key(key.as_str());
        let known = KnownRecords {
            query: Some(words),
            known_hosts: LazySequence(|| view.hosts().filter(is_shown).map(contents::host)),
            known_devices: LazySequence(|| view.devices().filter(is_meant).map(contents::device)),
            limits,
        };
        let contents = DirectoryContents { status, version, own_key, known: Some(known) };
        to_raw_value(&contents).map_err(|error| error.to_string())
    }

    /// Writes in the directory what a host may have of all devices; nothing: its limit goes. It waits for etcd, and
    /// does not begin while that is known to be away.
    ///
    /// # Errors
    /// Why it is not written, for a person; `None` if there is no directory.
    pub fn limit(&self, host: &str, devices: Option<u32>, for_s: Option<u64>) -> Option<Result<Value, FailureReport>> {
        let (settings, state, stop) = {
            let running = lock(&self.running);
            let DirectoryThreads { settings, state, stop, .. } = running.as_ref()?;
            (settings.clone(), Arc::clone(state), Arc::clone(stop))
        };
        let refused = |attribute, message: String| Some(Err(FailureReport::new(attribute, message)));
        let Some(host) = HostId::new(host) else {
            return refused(FailureKind::Refused, "a limit is for a host, by its key: 52 letters".to_owned());
        };
        let failure_text =
            |trouble: &DirectoryFailure| format!("the directory does not take it: {trouble}\n  {}", trouble.next());
        let is_away = |trouble: &&DirectoryFailure| trouble.kind != DirectoryFailureKind::TooMuch;
        if let Some(trouble) = lock(&state.view).trouble().filter(is_away) {
            return refused(FailureKind::Network, failure_text(trouble));
        }
        let by = self.trust.as_ref().map(|trust| trust.name().to_owned()).unwrap_or_default();
        let record = LimitRecord { devices, for_s, by, at: timestamp(SystemTime::now()) };
        let is_any = devices.is_some() || for_s.is_some();
        let system = match self.system.apart() {
            Ok(system) => system,
            Err(error) => return refused(FailureKind::Local, error.to_string()),
        };
        let members = EtcdClient::new(&settings, system, stop, 0);
        let written = members.and_then(|members| {
            limits::write(&mut members.with_time_max(LIMIT_TIME_MAX), &host, is_any.then_some(&record))
        });
        match written {
            Ok(()) => Some(Ok(json!(DirectoryLimitReport { key: host.as_str().to_owned(), devices, for_s }))),
            Err(trouble) => refused(FailureKind::Network, failure_text(&trouble)),
        }
    }

    fn start(&self, settings: &EtcdSettings) -> DirectoryThreads {
        let mut seed = [0; 8];
        fill_random(&mut seed);
        let seed = u64::from_le_bytes(seed);
        let state = Arc::new(DirectoryState {
            clock: BoottimeClock::start(),
            view: Mutex::new(DirectoryView::new(seed.rotate_left(32))),
            published: Mutex::default(),
            logged_kind: Mutex::default(),
            keys_stay: AtomicBool::new(false),
        });
        let stop = Arc::<StopFlag>::default();
        let first = usize::try_from(seed >> 8).unwrap_or_default();
        let mut threads = Vec::new();
        match self.spawn(settings, &state, &stop, (seed, first)) {
            Ok(started) => threads = started,
            Err(trouble) => {
                lock(&state.published).trouble = Some(trouble);
                state.tell();
            }
        }
        DirectoryThreads { settings: settings.clone(), state, stop, threads }
    }

    fn spawn(
        &self,
        settings: &EtcdSettings,
        state: &Arc<DirectoryState>,
        stop: &Arc<StopFlag>,
        (seed, first): (u64, usize),
    ) -> Result<Vec<JoinHandle<()>>, DirectoryFailure> {
        let failed =
            |error: std::io::Error| DirectoryFailure::new(DirectoryFailureKind::Unreachable, error.to_string());
        // Each has an own line to the broker: a member that does not answer keeps nobody else waiting.
        let members = || EtcdClient::new(settings, self.system.apart().map_err(failed)?, Arc::clone(stop), first);
        let mut threads = Vec::new();
        let (following, probing) = (members()?, members()?);
        let (for_view, for_stop) = (Arc::clone(state), Arc::clone(stop));
        let follow = move || DirectoryFollower { members: following, probing, state: for_view, stop: for_stop }.run();
        threads.push(thread::Builder::new().name("directory-view".into()).spawn(follow).map_err(failed)?);
        let host = self.trust.as_ref().and_then(|trust| Some((trust, HostId::new(&trust.fingerprint().to_string())?)));
        let Some((trust, host)) = host else {
            info!("this host has no key, and is not in the directory: farbus id makes one");
            return Ok(threads);
        };
        let name = trust.name().to_owned();
        let since = timestamp(SystemTime::now());
        let host_record = HostRecord { name, farbus: env!("CARGO_PKG_VERSION").to_owned(), since };
        let publishing = DirectoryPublisher {
            publisher: HostPublisher::new(host, seed),
            host_record,
            members: members()?,
            share: Arc::clone(&self.share),
            trust: trust.clone(),
            state: Arc::clone(state),
            stop: Arc::clone(stop),
        };
        threads.push(thread::Builder::new().name("directory".into()).spawn(move || publishing.run()).map_err(failed)?);
        Ok(threads)
    }
}

impl DirectoryThreads {
    fn end(self) {
        self.stop.set();
        for thread in self.threads {
            // What it would say is in the log.
            let _ = thread.join();
        }
    }
}

impl DirectoryState {
    /// What is wrong, if anything: writing first.
    fn trouble(&self) -> Option<DirectoryFailure> {
        let writing = lock(&self.published).trouble.clone();
        writing.or_else(|| lock(&self.view).trouble().cloned())
    }

    /// Logs what has become wrong or right, once.
    fn tell(&self) {
        let trouble = self.trouble();
        let mut logged = lock(&self.logged_kind);
        let kind = trouble.as_ref().map(|trouble| trouble.kind);
        if *logged == kind {
            return;
        }
        *logged = kind;
        match trouble {
            Some(trouble) => warn!(
                why = trouble.kind.as_str(),
                "the directory does not serve this host: {}; sharing goes on\n  {}",
                trouble.message,
                trouble.next()
            ),
            None => info!("the directory serves this host again"),
        }
    }

    fn status(&self, settings: &EtcdSettings) -> DirectoryStatus {
        let trouble = self.trouble();
        let published = lock(&self.published);
        let view = lock(&self.view);
        let state = match (&trouble, published.is_told && view.is_complete()) {
            (Some(_), _) => "trouble",
            (None, true) => "ok",
            (None, false) => "starting",
        };
        let (hosts, devices) = view.counts();
        let heard = view.heard().map(|heard| (self.clock.now() - heard).as_secs());
        DirectoryStatus {
            at: settings.shown(),
            state: state.into(),
            member: published.member.clone(),
            is_published: published.is_told,
            is_known: view.is_complete(),
            hosts,
            devices,
            unfit: view.unfit(),
            heard_s: heard,
            trouble: trouble.map(|trouble| TroubleStatus {
                kind: trouble.kind.as_str().into(),
                next: trouble.next().into(),
                message: trouble.message,
            }),
        }
    }
}

/// Publishes this host.
struct DirectoryPublisher {
    publisher: HostPublisher,
    host_record: HostRecord,
    members: EtcdClient,
    share: Arc<Share>,
    trust: TrustStore,
    state: Arc<DirectoryState>,
    stop: Arc<StopFlag>,
}

impl DirectoryPublisher {
    fn run(mut self) {
        let clock = self.state.clock;
        let mut records = PublishedRecords::default();
        let mut look_at = clock.now();
        let mut correction = RepairBackoff::new(clock.now());
        while !self.stop.is_set() {
            let now = clock.now();
            if now >= look_at {
                if correction.is_due(self.publisher.is_shown_by(&lock(&self.state.view)), now) {
                    info!("what the directory said of this host was changed by another: it is put right");
                    self.publisher.doubt();
                }
                let own = HostId::new(&self.trust.fingerprint().to_string());
                let paired = self.trust.names_by_key();
                let preferred = paired.keys().filter_map(|key| HostId::new(key)).chain(own).collect();
                lock(&self.state.view).prefer(preferred, now);
                let devices = self.share.status();
                let is_had = |device: &DeviceStatus| device.lease.is_some() || device.user.is_some();
                let keys = match devices.iter().any(is_had) {
                    true => paired.into_iter().map(|(key, name)| (name, key)).collect(),
                    false => BTreeMap::new(),
                };
                records.update(devices, &keys, SystemTime::now());
                self.publisher.want(&self.host_record, records.iter());
                look_at = clock.now() + pause_after(clock.now() - now);
            }
            let now = clock.now();
            match self.publisher.poll(now) {
                PublisherStep::Call(call) => {
                    let answer = self.members.call(&call);
                    if !self.stop.is_set() {
                        self.publisher.handle(answer, clock.now());
                        self.note();
                    }
                }
                PublisherStep::Wait(until) => {
                    self.note();
                    let until = until.map_or(look_at, |until| until.min(look_at));
                    self.stop.pause(until - now);
                }
            }
        }
        let lease = self.publisher.lease().filter(|_| !self.state.keys_stay.load(Ordering::Relaxed));
        if let Some(lease) = lease {
            self.members.say_farewell(&EtcdCall::Revoke { lease });
        }
    }

    fn note(&self) {
        {
            let mut published = lock(&self.state.published);
            published.is_told = self.publisher.is_told();
            published.trouble = self.publisher.trouble().cloned();
            if published.member != self.members.member() {
                self.members.member().clone_into(&mut published.member);
            }
        }
        self.state.tell();
    }
}

/// How long after a look that took so long the next one is.
fn pause_after(took: Duration) -> Duration {
    took.saturating_mul(LOOK_PART).clamp(LOOK_EVERY, LOOK_EVERY_MAX)
}

/// When what another process changed of this host's keys is put right: later each time.
struct RepairBackoff {
    after: Duration,
    /// Since when the directory shows something else than this host said.
    differs: Option<Instant>,
    last: Instant,
}

impl RepairBackoff {
    fn new(now: Instant) -> Self {
        Self { after: LAG_MAX, differs: None, last: now }
    }

    fn is_due(&mut self, is_shown: bool, now: Instant) -> bool {
        if is_shown {
            self.differs = None;
            if now - self.last > CORRECT_EVERY_MAX {
                self.after = LAG_MAX;
            }
            return false;
        }
        let is_due = now - *self.differs.get_or_insert(now) > self.after;
        if is_due {
            (self.after, self.differs, self.last) = ((self.after * 2).min(CORRECT_EVERY_MAX), None, now);
        }
        is_due
    }
}

/// Follows all hosts.
struct DirectoryFollower {
    members: EtcdClient,
    /// Asks whether a member that says nothing is there.
    probing: EtcdClient,
    state: Arc<DirectoryState>,
    stop: Arc<StopFlag>,
}

impl DirectoryFollower {
    fn run(mut self) {
        let clock = self.state.clock;
        while !self.stop.is_set() {
            let now = clock.now();
            let step = lock(&self.state.view).poll(now);
            match step {
                ViewStep::Call(call) => {
                    let answer = self.members.call(&call);
                    lock(&self.state.view).handle(answer, clock.now());
                }
                ViewStep::Watch(call) => match self.members.watch(&call) {
                    Ok(watch) => self.watch(watch),
                    Err(refusal) => lock(&self.state.view).handle(Err(refusal), clock.now()),
                },
                ViewStep::Wait(until) => {
                    let span = until.map_or(LOOK_EVERY, |until| until - now);
                    self.stop.pause(span);
                }
            }
            if !self.stop.is_set() {
                self.state.tell();
            }
        }
    }

    /// Passes on what a watch says, until it ends.
    fn watch(&mut self, mut watch: EtcdWatch) {
        let clock = self.state.clock;
        let mut heard = clock.now();
        while !self.stop.is_set() {
            let end = match watch.next() {
                Ok(Some(Ok(news))) => {
                    heard = clock.now();
                    let mut view = lock(&self.state.view);
                    view.handle_news(news, heard);
                    if !view.is_watching() {
                        return;
                    }
                    continue;
                }
                Ok(None) if clock.now() - heard < SILENCE_MAX => {
                    {
                        let mut view = lock(&self.state.view);
                        view.handle_timeout(clock.now());
                        if !view.is_watching() {
                            return;
                        }
                    }
                    self.state.tell();
                    continue;
                }
                Ok(None) => {
                    self.probing.follow(&self.members);
                    let range = EtcdCall::Range { range: KeyRange::format(), limit: 1, revision: 0 };
                    match self.probing.call(&range) {
                        Ok(_) if self.probing.member() == self.members.member() => {
                            heard = clock.now();
                            continue;
                        }
                        Ok(_) => EtcdRefusal::Trouble(DirectoryFailure::new(
                            DirectoryFailureKind::Unreachable,
                            "the member does not answer",
                        )),
                        Err(refusal) => refusal,
                    }
                }
                Ok(Some(Err(refusal))) => refusal,
                Err(error) => self.members.lost(&error),
            };
            self.members.pass_on();
            let why = match end {
                EtcdRefusal::Trouble(trouble) => trouble,
                other => {
                    DirectoryFailure::new(DirectoryFailureKind::Unreachable, format!("the watch ended: {other:?}"))
                }
            };
            lock(&self.state.view).handle_end(why, clock.now());
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_whose_keys_another_process_goes_on_changing_puts_them_right_less_and_less_often() {
        let at = |s: u64| Instant::ZERO + Duration::from_secs(s);
        let mut correction = RepairBackoff::new(at(0));
        let due: Vec<u64> = (1..=300).filter(|s| correction.is_due(false, at(*s))).collect();
        assert_eq!(due, [7, 19, 41, 83, 165]);
        assert!(!correction.is_due(true, at(301)) && !correction.is_due(true, at(1000)));
        assert!(!correction.is_due(false, at(1001)) && correction.is_due(false, at(1007)), "after a long peace, soon");
    }

    #[test]
    fn next_look_at_the_devices_is_soon_although_the_last_one_took_long() {
        let ms = Duration::from_millis;
        assert_eq!((pause_after(ms(1)), pause_after(ms(5))), (LOOK_EVERY, ms(1000)));
        assert_eq!((pause_after(ms(400)), pause_after(Duration::MAX)), (LOOK_EVERY_MAX, LOOK_EVERY_MAX));
    }
}
