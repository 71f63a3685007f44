//! `farbus swap`.

use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use farbus::broker::BrokerPolicy;
use farbus::broker::confined::start_broker_for_another;
use farbus::devices::identities::exchanging::IdentityExchange;
use farbus::devices::identities::shared_now::{SharedNow, shared_now};
use farbus::devices::identities::{OnMedium, moving_with, settle};
use farbus::devices::media_journal::{MovedDevice, SwapJournalFolder, SwapMedium};
use farbus::exporter::sources::block::bytes_from;
use farbus::frontend::usb_swap::is_at;
use farbus::hosts::known_host::KnownHost;
use farbus::importer::client::{ClientError, DeviceTarget, FailureKind};
use farbus::importer::discovery::local_shares::is_same;
use farbus_control::device::{IdentityStatus, MediumStatus};
use farbus_control::failure::FailureReport;
use farbus_control::swap::SwapStatus;
use farbus_control::units::format_bytes;
use farbus_io_linux::store::{FileStore, FileStoreProblem};
use farbus_io_linux::usb::{UsbDeviceSelector, UsbInventory};
use farbus_io_net::local::asking::{ask_sharer, several, split_process};
use farbus_io_net::local::control_socket::{Answer, Question, ask_all, ask_one};
use farbus_io_net::trust::{DeviceId, HostFolder, KnownDeviceList, KnownLease, Peer};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::Value;

use super::CommandFailure;
use super::interruption::InterruptFlag;
use super::output::{print_done, print_json, say};

/// How often to ask for the progress.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// Move a disk, or swap a USB device for its twin, while in use.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  \
        farbus swap disk --to block:/srv/new.img\n  \
        farbus swap disk --to block:/dev/nvme0n1 --rate 100M --verify\n  \
        farbus swap disk                     watch one that is under way\n  \
        farbus swap disk --cancel\n  \
        farbus swap b.img --to block:c.img   what 'farbus nbd block:b.img' serves\n  \
        farbus swap lab3/disk --to block:d.img   an attached disk comes here\n  \
        farbus swap lab3/disk --to lab4/disk   or goes to another host's disk\n  \
        farbus swap serial --to usb:1-3      another adapter takes its place\n  \
        farbus swap lab3/serial --to usb:1-3   or that of an attached one\n  \
        farbus swap lab3/serial --to lab3/serial   and it comes back\n  \
        farbus swap --forget a.img           share what was left behind all the same",
    after_long_help = "Users of the disk notice nothing. farbus copies all of it, then what was changed meanwhile; for the last moment it writes to both places. What PATH held is overwritten; a file that does not exist is made. A power cut at any moment leaves one complete disk: PATH if the swap is done, otherwise the old one, and the same command continues. Ctrl-C cancels.\n\n\
        From then on share PATH. farbus refuses to share the old medium, because it is out of date, until 'farbus swap --forget OLD'.\n\n\
        HOST/DEVICE is a disk of another host that is attached here, by NBD, as a file or as a uas disk, in a session. Its users go on; the other host's disk is given back when PATH has all of it. It has old data then, and its host gives it to nobody until 'farbus swap --forget DEVICE' there; if that host cannot tell others, this says so. It can also go to a disk of another host, --to HOST/DISK, whose content is overwritten, and on from there.\n\n\
        A real USB device is swapped for another one of the same make that is plugged in here and is not shared. farbus tells it what the first one was told, and requests that wait for data wait for the second one. You may unplug the first one then. One of another host that is attached here, with --via kernel, with --via redir or for a program (farbus run), is swapped likewise, for one of this machine, another one of that host or one of a third host; --to HOST/DEVICE, as it was attached, brings it back.\n\n\
        Examples:\n  \
        farbus swap disk --to block:/srv/new.img\n  \
        farbus swap disk --to block:/dev/nvme0n1 --rate 100M --verify\n  \
        farbus swap disk                     watch one that is under way\n  \
        farbus swap disk --cancel\n  \
        farbus swap b.img --to block:c.img   what 'farbus nbd block:b.img' serves\n  \
        farbus swap lab3/disk --to block:d.img   an attached disk comes here\n  \
        farbus swap lab3/disk --to lab4/disk   or goes to another host's disk\n  \
        farbus swap serial --to usb:1-3      another adapter takes its place\n  \
        farbus swap lab3/serial --to usb:1-3   or that of an attached one\n  \
        farbus swap lab3/serial --to lab3/serial   and it comes back\n  \
        farbus swap disk --to block:b.img --json | jq '{state, bytes_per_s, quiet_ms}'\n  \
        farbus swap --forget a.img           share what was left behind all the same"
)]
pub struct Args {
    /// Name or bus id of the shared device (NAME@PID if several share one of that name), name of what 'farbus nbd'
    /// serves, or HOST/DEVICE that is attached here.
    #[arg(required_unless_present = "forget")]
    device: Option<String>,
    /// block:PATH, HOST/DEVICE or usb:BUSID.
    ///
    /// A file or block device that is at least as large, or such a disk of a host; or another device of the same make,
    /// for one that is attached here also one of its host or of another one.
    #[arg(long, value_name = "PLACE", value_parser = place_from)]
    to: Option<SwapTarget>,
    /// Copy at most so many bytes a second (100M).
    #[arg(long, value_name = "BYTES", value_parser = rate_from, requires = "to")]
    rate: Option<u64>,
    /// Read and compare both before the switch.
    #[arg(long, requires = "to")]
    verify: bool,
    /// Cancel it; the disk stays where it was.
    #[arg(long, conflicts_with = "to")]
    cancel: bool,
    /// Let this old or unfinished disk be used: a path, HOST/DEVICE, or the name of one that a host has moved away.
    #[arg(long, value_name = "PATH", conflicts_with_all = ["device", "to", "cancel"])]
    forget: Option<PathBuf>,
    /// Print JSON when it has ended, for programs.
    #[arg(long)]
    pub json: bool,
}

/// What a device is swapped for.
#[derive(Clone, Debug)]
enum SwapTarget {
    /// Another medium of a disk: a file or block device.
    Disk(PathBuf),
    /// A disk of another host, or another device of the host that has the attached one.
    Host(DeviceTarget),
    /// Another real device.
    Usb(UsbDeviceSelector),
}

fn place_from(text: &str) -> Result<SwapTarget, String> {
    match text.split_once(':') {
        Some(("block", path)) if !path.is_empty() => Ok(SwapTarget::Disk(path.into())),
        Some(("usb", which)) => which.parse().map(SwapTarget::Usb).map_err(|error| format!("'{text}': {error}")),
        _ => text
            .parse()
            .map(SwapTarget::Host)
            .map_err(|_| format!("'{text}' is no place for a device: try block:PATH, HOST/DEVICE, or usb:BUSID")),
    }
}

fn rate_from(text: &str) -> Result<u64, String> {
    match bytes_from(text)? {
        0 => Err("at no bytes a second it would never end; to stop it, type --cancel".into()),
        rate => Ok(rate),
    }
}

pub fn run(args: &Args) -> Result<(), CommandFailure> {
    if let Some(path) = &args.forget {
        return forget(path, args.json);
    }
    let device = args.device.as_deref().unwrap_or_default();
    if args.cancel {
        ask_sharer(device, |device| Question::SwapCancel { device })?;
        return print_done(args.json, "cancel", device);
    }
    let owner = OwningProcess::of(device)?;
    // From here on, Ctrl-C cancels the swap.
    let mut interruption = None;
    let mut exchange = None;
    if let Some(destination) = &args.to {
        interruption = Some(InterruptFlag::new()?);
        match destination {
            SwapTarget::Disk(path) => owner.begin(path, args)?,
            SwapTarget::Host(target) if owner.medium.is_some() => owner.begin_at_host(target, args)?,
            SwapTarget::Host(target) => owner.begin_twin_of_host(target)?,
            SwapTarget::Usb(selector) => exchange = owner.begin_twin(selector)?,
        }
    }
    let ended = owner.watch(args.json, interruption.as_ref())?;
    if let Some(exchange) = exchange {
        let noted = if ended.failure.is_none() { exchange.done() } else { exchange.undone() };
        noted.unwrap_or_else(|error| {
            eprintln!("farbus: warning: {} has a new identity when it is shared next: {error}", ended.device)
        });
    }
    if let Ok(folder) = HostFolder::of_user() {
        // If it cannot be recorded now, it is when one of the two media is shared next.
        let _ = settle(&folder);
    }
    if args.json {
        // The failure is reported beside it, as JSON, too.
        print_json(&ended)?;
    }
    if let (Some(_), Some(warning)) = (&ended.failure, &ended.warning) {
        eprintln!("farbus: warning: {warning}");
    }
    match ended.failure {
        Some(FailureReport { attribute, message, limit }) => {
            let failure = CommandFailure::new(attribute, message).at_limit(limit);
            // The signal cancelled it, or came when it had failed already.
            Err(match &interruption {
                Some(interruption) => interruption.explains(failure),
                None => failure,
            })
        }
        None if args.json => Ok(()),
        None if owner.medium.is_none() => {
            say(format!(
                "{} is {} now: {} requests told it what {} knew, {} were asked of it again; none waited longer than {:.2} ms",
                ended.device, ended.to, ended.replayed, ended.from, ended.asked_again, ended.quiet_ms
            ));
            match owner.is_attached {
                false => say(format!("{} is this machine's again; from now on share {}", ended.from, ended.to)),
                true if ended.from.starts_with("usb:") => say(format!("{} is this machine's again", ended.from)),
                true if ended.from == ended.device => {
                    say(format!("its host has {} back; to attach it again: farbus swap {0} --to {0}", ended.device));
                }
                true => say(format!("its host has {} back", ended.from)),
            }
            Ok(())
        }
        None => {
            let rounds = if ended.round == 1 { "one round".to_owned() } else { format!("{} rounds", ended.round) };
            say(format!(
                "{} lies on {} now: {} copied in {rounds} and {:.1} s; no request was delayed longer than {:.2} ms",
                ended.device,
                ended.to,
                format_bytes(ended.copied_bytes),
                ended.elapsed_s,
                ended.quiet_ms
            ));
            if owner.is_attached {
                say(format!("{} has old data from now on, and is free; what was attached goes on", ended.from));
                match &ended.warning {
                    Some(warning) => eprintln!("farbus: warning: {warning}"),
                    None if !ended.from.starts_with("block:") => say("its host gives it to nobody any more"),
                    None => {}
                }
                let how = if ended.to.starts_with("block:") { "nbd" } else { "attach" };
                say(format!("to use it when this has ended: farbus {how} {}", ended.to));
            } else {
                say(format!("from now on share {}; {} is old", ended.to, ended.from));
            }
            Ok(())
        }
    }
}

fn forget(path: &Path, json: bool) -> Result<(), CommandFailure> {
    // Record the devices' identities before the swap is forgotten here.
    HostFolder::of_user()
        .map_err(io::Error::other)
        .and_then(|folder| settle(&folder))
        .map_err(CommandFailure::local)?;
    let forgotten = SwapJournalFolder::of_user()
        .and_then(|journals| journals.forget(&medium_named(path)))
        .map_err(CommandFailure::local)?;
    let forgotten = forgotten || forget_retirement(path)?;
    match forgotten {
        true if json => print_json(&serde_json::json!({ "path": path, "done": "forget" })),
        true => {
            say(format!("{} may be shared again as it is", path.display()));
            Ok(())
        }
        false => Err(CommandFailure::new(FailureKind::Gone, format!("nothing is against sharing {}", path.display()))),
    }
}

/// Lets others have the disk of this name or id again, which a host has moved to its own machine. Returns whether there
/// is one.
fn forget_retirement(named: &Path) -> Result<bool, CommandFailure> {
    let Some(named) = named.to_str() else { return Ok(false) };
    let folder = HostFolder::of_user()?;
    let (all, now) = (KnownDeviceList::load(&folder)?, shared_now());
    let is_called = |shared: &SharedNow, id| shared.id() == Some(id) && shared.name == named;
    let mut found = Vec::new();
    for known in all.iter() {
        let is_named = known.id.begins_with(named)
            || match now.iter().any(|shared| shared.id() == Some(known.id)) {
                true => now.iter().any(|shared| is_called(shared, known.id)),
                false => known.name == named,
            };
        if is_named && KnownLease::load(&folder, known.id)?.retirement.is_some() {
            found.push(known);
        }
    }
    let known = match found[..] {
        [] => return Ok(false),
        [known] => known,
        _ => {
            let ids: Vec<String> = found.iter().map(|known| known.id.short()).collect();
            let message = format!("several devices are called '{named}'\n  name one by its id: {}", ids.join(", "));
            return Err(CommandFailure::new(FailureKind::Refused, message));
        }
    };
    let running: Vec<&SharedNow> = now.iter().filter(|shared| shared.id() == Some(known.id)).collect();
    if let Some(SharedNow { name, user: Some(user), .. }) = running.iter().find(|shared| shared.user.is_some()) {
        let message = format!("'{name}' is used by {user}\n  first: farbus release {name}");
        return Err(CommandFailure::new(FailureKind::Refused, message));
    }
    // It is another medium than the one that went on elsewhere: no session of before continues with it.
    let (id, generation) = (known.id, known.identity().adopted().generation);
    KnownDeviceList::change(&folder, |all| {
        all.of_id_mut(id).into_iter().for_each(|known| known.generation = generation);
    })?;
    for SharedNow { pid, name, .. } in running {
        let question = Question::Adopt { device: name.clone(), id, generation };
        if !matches!(ask_one(*pid, &question, &[]), Ok(Answer::Ok(_))) {
            let message = format!("process {pid} shares '{name}' as what it was\n  end it, and type the same again");
            return Err(CommandFailure::new(FailureKind::Refused, message));
        }
    }
    Ok(KnownLease::forget_retirement(&folder, id)?)
}

/// What a person means by a path that is no file: a disk of another host.
fn medium_named(path: &Path) -> SwapMedium {
    match path.to_str().and_then(|text| text.parse::<DeviceTarget>().ok()).filter(|_| !path.exists()) {
        Some(target) => SwapMedium::called(&target.to_string()),
        None => SwapMedium::at(path),
    }
}

/// The process that has the device: shares or serves it, or has attached it.
struct OwningProcess {
    pid: u32,
    device: String,
    /// The medium, if the device is a disk.
    medium: Option<MediumStatus>,
    /// The device's identity, if it is recognised after a restart.
    id: Option<DeviceId>,
    /// Whether it is a disk of another host that is attached here.
    is_attached: bool,
}

impl OwningProcess {
    fn of(device: &str) -> Result<Self, CommandFailure> {
        let (device, wanted) = split_process(device);
        let mut owners: Vec<Self> = Vec::new();
        // HOST/DEVICE is one that is attached here; a name without a host is one that is shared or served here.
        let attached = device.parse::<DeviceTarget>().ok();
        for (pid, answer) in ask_all(&Question::Status).map_err(CommandFailure::local)? {
            let Answer::Ok(status) = answer else { continue };
            if wanted.is_some_and(|wanted| wanted != pid) {
                continue;
            }
            let mut devices = status["devices"].as_array().into_iter().flatten();
            let title_of = |it: &Value| it["title"].as_str().and_then(|title| title.parse::<DeviceTarget>().ok());
            // It may be called by where its disk is now.
            let is_now = |it: &Value, target: &DeviceTarget| {
                let at = it["medium"]["at"].as_str().and_then(|at| at.parse::<DeviceTarget>().ok());
                at.is_some_and(|at| is_same(target, &at))
            };
            let is_attachment = |it: &Value| it["bus_id"].is_null() && status["role"] != "nbd";
            let is_it = |it: &&Value| match (&attached, title_of(it).filter(|_| is_attachment(it))) {
                (Some(target), Some(title)) => is_same(target, &title) || is_now(it, target),
                (None, None) => it["name"] == *device || it["bus_id"] == *device,
                _ => false,
            };
            let Some(found) = devices.find(is_it) else { continue };
            let medium = serde_json::from_value(found["medium"].clone()).ok();
            let named = if attached.is_some() { &found["title"] } else { &found["name"] };
            let name = named.as_str().unwrap_or(device).to_owned();
            let identity: Option<IdentityStatus> = serde_json::from_value(found["identity"].clone()).ok();
            let id = identity.filter(|identity| identity.is_lasting).map(|identity| identity.id);
            owners.push(Self { pid, device: name, medium, id, is_attached: attached.is_some() });
        }
        if let [first, second, ..] = &owners[..] {
            if attached.is_none() {
                return Err(several(device, &owners.iter().map(|owner| owner.pid).collect::<Vec<_>>()));
            }
            let (first, second) = (first.pid, second.pid);
            let what = format!("'{device}' is what processes {first} and {second} have attached: which is meant?");
            return Err(CommandFailure::new(FailureKind::Refused, format!("{what}\n  detach one of them")));
        }
        if let Some(owner) = owners.pop() {
            return Ok(owner);
        }
        if let Some(port) = attached.as_ref().and_then(|target| port_of_usbip(target, Path::new(USBIP_STATE))) {
            let message = format!(
                "{device} is attached by Linux's usbip: its kernel has the connection itself, and farbus exchanges only \
                 what it carries\n  attach it by farbus: usbip detach -p {port}; farbus attach {device} --via kernel"
            );
            return Err(CommandFailure::new(FailureKind::Refused, message));
        }
        let message = match attached {
            Some(_) => format!("{device} is not attached here\n  see: farbus status"),
            None => format!(
                "no device called '{device}' is shared or served here; one that is attached here is HOST/DEVICE\n  \
                 see: farbus status"
            ),
        };
        Err(CommandFailure::new(FailureKind::Gone, message))
    }

    fn ask(&self, question: &Question, fds: &[std::os::fd::BorrowedFd<'_>]) -> Result<Value, CommandFailure> {
        match ask_one(self.pid, question, fds) {
            Ok(Answer::Ok(value)) => Ok(value),
            Ok(Answer::Unknown) => {
                let what = if self.is_attached { "attached" } else { "shared" };
                Err(CommandFailure::new(FailureKind::Gone, format!("{} is not {what} any more", self.device)))
            }
            Ok(Answer::Refused(why)) => Err(CommandFailure::new(FailureKind::Refused, why)),
            Ok(Answer::Failed(failure)) => Err(CommandFailure::new(failure.attribute, failure.message)),
            Err(error) => {
                let has = if self.is_attached { "has attached" } else { "shares" };
                let what = format!("process {}, which {has} {}, does not answer: {error}", self.pid, self.device);
                let hint = "the disk is complete: share it again, and swap again if it was not done";
                Err(CommandFailure::new(FailureKind::Gone, format!("{what}\n  {hint}")))
            }
        }
    }

    /// Begins swapping identities; the returned exchange is to be completed or undone.
    fn begin_twin(&self, selector: &UsbDeviceSelector) -> Result<Option<IdentityExchange>, CommandFailure> {
        if self.medium.is_some() {
            let message = format!("{} is a disk: it moves to block:PATH", self.device);
            return Err(CommandFailure::new(FailureKind::Refused, message));
        }
        let all = UsbInventory::default().devices().map_err(CommandFailure::local)?;
        let found: Vec<_> = all.iter().filter(|found| selector.matches(found)).collect();
        let [found] = found[..] else {
            let (attribute, what) = match found.len() {
                0 => (FailureKind::Gone, format!("no USB device is {selector}")),
                count => (FailureKind::Refused, format!("{count} USB devices are {selector}: name one by its bus id")),
            };
            return Err(CommandFailure::new(attribute, format!("{what}\n  see: farbus share --list")));
        };
        let node = OpenOptions::new().read(true).write(true).open(&found.node);
        let node =
            node.map_err(|error| CommandFailure::local(format!("cannot open {}: {error}", found.node.display())))?;
        let question = Question::Swap {
            device: self.device.clone(),
            to: format!("usb:{}", found.bus_id),
            rate: None,
            verify: false,
            resume: false,
            peer: None,
        };
        let exchange = match (self.id, HostFolder::of_user()) {
            (Some(id), Ok(folder)) => IdentityExchange::begin(folder, id, found)?,
            _ => None,
        };
        match self.ask(&question, &[node.as_fd()]) {
            Ok(_) => Ok(exchange),
            Err(failure) => {
                // If undoing fails, the device gets a new identity, never that of another.
                let _ = exchange.map(IdentityExchange::undone);
                Err(failure)
            }
        }
    }

    /// Begins to swap an attached USB device for a device of its host or of another one, which the process that has it
    /// opens.
    fn begin_twin_of_host(&self, target: &DeviceTarget) -> Result<(), CommandFailure> {
        if !self.is_attached {
            let why = format!("{0} is shared here: farbus swap {0} --to usb:BUSID swaps it", self.device);
            return Err(CommandFailure::new(FailureKind::Refused, why));
        }
        // Its process may connect to its own host.
        let is_near = self.device.parse::<DeviceTarget>().is_ok_and(|own| is_at(target, &own));
        let passage = if is_near { None } else { Some(passage_to(target)?) };
        let (broker, peer) = passage.unzip();
        let question = Question::Swap {
            device: self.device.clone(),
            to: target.to_string(),
            rate: None,
            verify: false,
            resume: false,
            peer: peer.flatten(),
        };
        let passed: Vec<BorrowedFd<'_>> = broker.iter().map(AsFd::as_fd).collect();
        self.ask(&question, &passed).map(drop)
    }

    /// Moves it to a disk of another host, which the process that has it opens.
    fn begin_at_host(&self, target: &DeviceTarget, args: &Args) -> Result<(), CommandFailure> {
        if !self.is_attached {
            let message = format!(
                "{0} is shared or served here: only a disk that is attached moves to another host's disk\n  here it moves \
                 to a file or block device: farbus swap {0} --to block:PATH",
                self.device
            );
            return Err(CommandFailure::new(FailureKind::Refused, message));
        }
        let from = self.medium_or_refusal()?;
        let (broker, peer) = passage_to(target)?;
        let to = target.to_string();
        self.ask_to_move((from, &SwapMedium::called(&to)), &to, (broker.as_fd(), peer), args)
    }

    /// Where its disk is now, if it is one that can be moved.
    fn medium_or_refusal(&self) -> Result<&MediumStatus, CommandFailure> {
        self.medium.as_ref().ok_or_else(|| {
            let message = match self.is_attached {
                true => format!(
                    "{} cannot be moved: only a disk that is attached as a block device, in a session, can\n  \
                     attach it so: farbus attach {} --via nbd, or --via fuse, --via uas",
                    self.device, self.device
                ),
                false => format!("{} is no disk: only a disk can be moved to a file or block device", self.device),
            };
            CommandFailure::new(FailureKind::Refused, message)
        })
    }

    fn begin(&self, path: &Path, args: &Args) -> Result<(), CommandFailure> {
        let medium = self.medium_or_refusal()?;
        let is_made = make(path, medium.size_bytes)
            .map_err(|error| CommandFailure::local(format!("cannot make {}: {error}", path.display())))?;
        let begun = self.begin_on(path, medium, args);
        if is_made && begun.is_err() {
            let _ = std::fs::remove_file(path);
        }
        begun
    }

    fn begin_on(&self, path: &Path, medium: &MediumStatus, args: &Args) -> Result<(), CommandFailure> {
        let path = std::path::absolute(path).map_err(CommandFailure::local)?;
        let store = FileStore::open(&path, false).map_err(|error| match error.trouble {
            FileStoreProblem::InUse(user) => {
                let by = user.map(|user| format!(", by {user}")).unwrap_or_default();
                let what = format!("{} is mounted or shared already{by}", path.display());
                CommandFailure::new(
                    FailureKind::Refused,
                    format!("{what}, by {} itself perhaps\n  choose another", self.device),
                )
            }
            _ => CommandFailure::local(error),
        })?;
        let (store, to) = (store.into_descriptor(), format!("block:{}", path.display()));
        self.ask_to_move((medium, &SwapMedium::at(&path)), &to, (store.as_fd(), None), args)
    }

    /// Begins a journal and asks the process that has the disk to move it, with what it needs for the new one.
    fn ask_to_move(
        &self,
        (medium, new): (&MediumStatus, &SwapMedium),
        to: &str,
        (needed, peer): (BorrowedFd<'_>, Option<Box<Peer>>),
        args: &Args,
    ) -> Result<(), CommandFailure> {
        let from = match medium.at.strip_prefix("block:") {
            Some(path) => SwapMedium::at(Path::new(path)),
            None => SwapMedium::remote(&medium.at, medium.identity),
        };
        let journals = SwapJournalFolder::of_user().map_err(CommandFailure::local)?;
        let begun = journals.begin_of(&from, new, &self.moving(&from)?);
        let begun = begun.map_err(|error| CommandFailure::local(format!("cannot write a journal: {error}")))?;
        let question = Question::Swap {
            device: self.device.clone(),
            to: to.to_owned(),
            rate: args.rate,
            verify: args.verify,
            resume: begun.resumes,
            peer,
        };
        if begun.resumes && !args.json {
            let new = new.at.display();
            say(format!("{new} has a part of it already: what it has is compared, not copied"));
        }
        match self.ask(&question, &[needed, begun.file.as_fd()]) {
            Ok(_) => Ok(()),
            Err(failure) => {
                begun.withdraw();
                Err(failure)
            }
        }
    }

    /// The devices on its medium: they keep their identities after the swap.
    fn moving(&self, from: &SwapMedium) -> Result<Vec<MovedDevice>, CommandFailure> {
        if self.is_attached {
            return Ok(Vec::new());
        }
        let Ok(folder) = HostFolder::of_user() else { return Ok(Vec::new()) };
        let of = self.id.map_or(OnMedium::Path(&from.at), OnMedium::Device);
        match moving_with(&folder, &of) {
            Ok(devices) => Ok(devices),
            // Its medium is in no list then: its identity ends with its process.
            Err(_) if self.id.is_none() => Ok(Vec::new()),
            Err(error) => Err(error.into()),
        }
    }

    /// Watches the swap until it has ended.
    fn watch(&self, is_quiet: bool, interruption: Option<&InterruptFlag>) -> Result<SwapStatus, CommandFailure> {
        let bar = if is_quiet {
            ProgressBar::hidden()
        } else {
            ProgressBar::new(self.medium.as_ref().map_or(0, |medium| medium.size_bytes))
        };
        let template = "{prefix:>10} [{bar:30}] {bytes} of {total_bytes}, {msg}";
        bar.set_style(ProgressStyle::with_template(template).map_err(CommandFailure::local)?.progress_chars("=> "));
        let mut is_told = false;
        loop {
            if interruption.and_then(InterruptFlag::signal).is_some() && !is_told {
                is_told = true;
                // It may have ended meanwhile.
                let _ = self.ask(&Question::SwapCancel { device: self.device.clone() }, &[]);
            }
            let status = self.ask(&Question::SwapStatus { device: self.device.clone() }, &[])?;
            let status: SwapStatus = serde_json::from_value(status).map_err(CommandFailure::local)?;
            bar.set_prefix(status.phase.clone());
            bar.set_position(status.total_bytes.saturating_sub(status.left_bytes));
            bar.set_message(format!("{}/s, round {}", format_bytes(status.bytes_per_s), status.round));
            if status.state != "running" {
                bar.finish_and_clear();
                return Ok(status);
            }
            thread::sleep(LOOK_EVERY);
        }
    }
}

/// Where Linux's `usbip` notes what it has attached: a file `portN` for each port, with host, TCP port and bus id.
const USBIP_STATE: &str = "/var/run/vhci_hcd";

/// The port at which Linux's `usbip` has attached this device, if it has.
fn port_of_usbip(target: &DeviceTarget, state: &Path) -> Option<u32> {
    let ports = std::fs::read_dir(state).ok()?.flatten().filter_map(|entry| {
        let port = entry.file_name().to_str()?.strip_prefix("port")?.parse().ok()?;
        Some((port, std::fs::read_to_string(entry.path()).ok()?))
    });
    let is_it = |noted: &str| match noted.split_whitespace().collect::<Vec<_>>()[..] {
        [host, port, bus_id] => {
            format!("{host}:{port}/{bus_id}").parse::<DeviceTarget>().is_ok_and(|noted| is_same(target, &noted))
        }
        _ => false,
    };
    ports.filter(|(_, noted)| is_it(noted)).map(|(port, _)| port).min()
}

/// What a process needs that has given away the right to connect to other hosts than its own: the passage to a broker
/// that may connect to this one, and the host's entry in the list of paired hosts, if it has one.
fn passage_to(target: &DeviceTarget) -> Result<(OwnedFd, Option<Box<Peer>>), CommandFailure> {
    let known = KnownHost::find(&target.address).map_err(|error| CommandFailure::from(ClientError::from(error)))?;
    let peer = known.map(|known| Box::new(known.peer().clone()));
    let policy = BrokerPolicy { hosts: vec![target.address.clone()], ..BrokerPolicy::default() };
    Ok((start_broker_for_another(&policy)?, peer))
}

/// Creates a sparse file unless the file exists; returns whether it did.
fn make(path: &Path, size_bytes: u64) -> io::Result<bool> {
    match OpenOptions::new().write(true).create_new(true).mode(0o600).open(path) {
        Ok(file) => {
            file.set_len(size_bytes).inspect_err(|_| {
                let _ = std::fs::remove_file(path);
            })?;
            Ok(true)
        }
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_that_the_usbip_command_has_attached_is_found_at_its_port() {
        let state = std::env::temp_dir().join(format!("farbus-usbip-state-{}", std::process::id()));
        std::fs::create_dir_all(&state).unwrap();
        std::fs::write(state.join("port3"), "lab3 3240 1-1.4\n").unwrap();
        std::fs::write(state.join("port7"), "192.0.2.7 3241 2-1\n").unwrap();
        std::fs::write(state.join("port9"), "half\n").unwrap();
        let port = |target: &str| port_of_usbip(&target.parse().unwrap(), &state);
        assert_eq!([port("lab3/1-1.4"), port("192.0.2.7:3241/2-1")], [Some(3), Some(7)]);
        assert_eq!([port("lab3/1-1"), port("lab4/1-1.4"), port("192.0.2.7/2-1")], [None; 3]);
        std::fs::remove_dir_all(&state).unwrap();
        assert_eq!(port("lab3/1-1.4"), None, "usbip was never used");
    }
}
