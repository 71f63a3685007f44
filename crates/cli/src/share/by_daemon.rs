//! `farbus share` beside a daemon of the same user, which shares the devices then; `farbus unshare`.

use std::collections::BTreeSet;
use std::fs::OpenOptions;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::thread;

use farbus::broker::SystemAccess;
use farbus::common::stop_signal::StopSignal;
use farbus::devices::follow::FollowPolicy;
use farbus::exporter::sources::usb::{self, UsbError};
use farbus::exporter::sources::what::{DeviceSpec, UsbSpec};
use farbus::hosts::questions::NOT_A_QUESTION;
use farbus::hosts::trust::TrustStore;
use farbus::importer::discovery::local_shares::place_of_daemon;
use farbus_control::failure::FailureKind;
use farbus_control::share::{ListeningPlace, ShareReport, SharedNow, UnshareReport};
use farbus_daemon::check_config;
use farbus_io_linux::store::FileStore;
use farbus_io_linux::usb::{PluggedDevice, UsbDeviceSelector};
use farbus_io_net::link::{self, PollInterest};
use farbus_io_net::local::asking::{hear_owner, heard};
use farbus_io_net::local::control_socket::{Answer, HAS_ENDED, IS_UNPLUGGED, Question, ask_one, own_daemon};
use farbus_io_net::trust::host_name;
use serde_json::Value;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::super::CommandFailure;
use super::super::output::{print_json, say};
use super::replugged::ReplugFollower;
use super::words::{ShareReach, ShareSpec, quoted_all, say_device, say_place, say_what_to_type};

/// Stop sharing a device that a daemon shares.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "A device that 'farbus share' asked the daemon to share is shared no longer, and that command ends. A device of the configuration is shared again after the next 'farbus daemon reload'.\n\n\
    A device in use is refused: 'farbus detach' on its user's host first, or --force, which ends the session. What the user's programs have not written out is lost then.\n\n\
    Examples:\n  farbus unshare backup\n  farbus unshare 1-3 --force"
)]
pub struct UnshareArgs {
    /// Name or bus id of the shared device.
    device: String,
    /// End the sessions of its users, too.
    #[arg(long)]
    force: bool,
    /// Print the result as JSON, for programs.
    #[arg(long)]
    pub json: bool,
}

pub fn unshare(args: &UnshareArgs) -> Result<(), CommandFailure> {
    let UnshareArgs { device, force, json } = args;
    let question = Question::Unshare { device: device.clone(), force: *force };
    let of_daemon = match own_daemon().map_err(CommandFailure::local)? {
        Some((pid, _)) => ask_one(pid, &question, &[]).map_err(CommandFailure::local)?,
        None => Answer::Unknown,
    };
    let value = match of_daemon {
        Answer::Unknown => hear_owner(device, question)?,
        answer => heard(device, [answer])?,
    };
    if *json {
        return print_json(&value);
    }
    let UnshareReport { unshared, until_reload } = serde_json::from_value(value).map_err(CommandFailure::local)?;
    let until = if until_reload { ", until the next 'farbus daemon reload'" } else { "" };
    say(format!("not shared any more: {}{until}", unshared.join(", ")));
    Ok(())
}

/// The daemon of this user.
pub struct RunningDaemon {
    pid: u32,
    config: PathBuf,
    status: Value,
}

/// How long the daemon is to share a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShareLifetime {
    /// Until this command ends.
    Interrupted,
    /// Until somebody says `farbus unshare`, or the daemon ends.
    Unshared,
    /// As [`ShareLifetime::Unshared`], and from the daemon's next start on it is in the configuration.
    Saved,
}

/// A device that the daemon shares for this command.
struct LeasedShare {
    name: String,
    /// What was typed.
    text: String,
    lease: UnixStream,
}

/// What is passed to a daemon: the words of the device, and its open files.
struct ShareRequest {
    words: String,
    files: Vec<OwnedFd>,
    /// Whether a device in the same port was passed before.
    is_again: bool,
}

/// Why the daemon does not share.
enum ShareRefusal {
    /// It is of a release that cannot.
    TooOld,
    Failure(CommandFailure),
}

impl RunningDaemon {
    /// The running daemon; `None` if there is none.
    ///
    /// # Errors
    /// The runtime folder cannot be read.
    pub fn find() -> Result<Option<Self>, CommandFailure> {
        let found = own_daemon().map_err(CommandFailure::local)?;
        Ok(found.map(|(pid, status)| {
            let config = status["config"].as_str().map(PathBuf::from).unwrap_or_default();
            Self { pid, config, status }
        }))
    }

    /// Whether the daemon knows how to share such a device with what is passed to it. An earlier release knows images
    /// only.
    pub fn takes(&self, what: &DeviceSpec) -> bool {
        let kind = match what {
            DeviceSpec::Stream(_) if what.frames().is_some() => "frames",
            DeviceSpec::Usb(_) => "usb",
            _ => return true,
        };
        self.status["takes"].as_array().into_iter().flatten().any(|taken| taken == kind)
    }

    /// Lets the daemon share these devices. Returns whether it did: a daemon of an earlier release cannot.
    ///
    /// # Errors
    /// [`CommandFailure`]: nothing is shared then.
    pub fn share(&self, what: &[ShareSpec], until: ShareLifetime, as_json: bool) -> Result<bool, CommandFailure> {
        // Before anything is shared: this is what may fail.
        if until == ShareLifetime::Saved {
            what.iter().try_for_each(check_lasting)?;
        }
        let file = if until == ShareLifetime::Saved { Some(open_config(&self.config)?) } else { None };
        // Caught before any program can know that the devices are shared.
        let signals = Signals::new([SIGINT, SIGTERM]).map_err(CommandFailure::local)?;
        let (mut devices, mut listening, mut leases) = (Vec::new(), Vec::new(), Vec::new());
        let mut locations = BTreeSet::new();
        for called in what {
            devices.push(Vec::new());
            let shared = self.open(called, until, &mut locations).map_err(ShareRefusal::Failure).and_then(|all| {
                all.into_iter().try_for_each(|opened| {
                    let (shared, lease) = self.share_one(called, opened, until)?;
                    leases.extend(lease);
                    if let Some(of_it) = devices.last_mut() {
                        Vec::extend(of_it, shared.devices);
                    }
                    listening = shared.listening;
                    Ok(())
                })
            });
            if let Err(refusal) = shared {
                self.withdraw(&devices);
                return match refusal {
                    ShareRefusal::TooOld => Ok(false),
                    ShareRefusal::Failure(failure) => Err(failure),
                };
            }
        }
        if let Some(file) = file
            && let Err(failure) = self.save(file, what, &devices)
        {
            self.withdraw(&devices);
            return Err(failure);
        }
        let all: Vec<&SharedNow> = devices.iter().flatten().collect();
        if as_json {
            print_json(&ShareReport {
                pid: self.pid,
                daemon: Some(self.pid),
                devices: all.into_iter().cloned().collect(),
                listening,
                saved: (until == ShareLifetime::Saved).then(|| self.config.clone()),
            })?;
        } else {
            self.tell(what, &all, &listening, until)?;
        }
        if until == ShareLifetime::Interrupted {
            wait(leases, ReplugFollower::new(what, locations), signals, as_json)?;
        }
        Ok(true)
    }

    /// Opens what was typed with the rights of this process; several devices may match a selector of real ones. Adds
    /// the places of those.
    fn open(
        &self,
        called: &ShareSpec,
        until: ShareLifetime,
        locations: &mut BTreeSet<(String, u32)>,
    ) -> Result<Vec<ShareRequest>, CommandFailure> {
        if let DeviceSpec::Usb(UsbSpec { selector, follow }) = &called.what {
            let failed = |error: UsbError| CommandFailure::new(error.attribute(), error);
            let found = usb::find(selector, called.name.as_deref()).map_err(failed)?;
            if until == ShareLifetime::Saved && found.len() > 1 {
                let next = "save each by its bus id: see 'farbus share --list'";
                let message = format!("{} USB devices are {selector}, and an entry names one\n  {next}", found.len());
                return Err(CommandFailure::new(FailureKind::Refused, message));
            }
            locations.extend(found.iter().map(ReplugFollower::place_of));
            return found.iter().map(|found| open_usb(found, follow).map_err(failed)).collect();
        }
        let words = called.what.absolute(&called.words).map_err(CommandFailure::local)?;
        let what = words.parse().unwrap_or_else(|_| called.what.clone());
        let mut files: Vec<OwnedFd> = Vec::new();
        for (path, read_only) in what.images() {
            let opened =
                SystemAccess::Own.open_image(path, read_only, what.is_forced()).map(FileStore::into_descriptor);
            files.push(opened.map_err(|error| self.not_opened(path, &error.to_string()))?);
        }
        if let Some(path) = what.frames() {
            let opened = SystemAccess::Own.open_frames(path);
            files.push(opened.map_err(|error| CommandFailure::local(format!("{}: {error}", path.display())))?);
        }
        Ok(vec![ShareRequest { words, files, is_again: false }])
    }

    /// Lets the daemon share what was opened. Returns the lease, too, unless the daemon is to keep it.
    fn share_one(
        &self,
        called: &ShareSpec,
        opened: ShareRequest,
        until: ShareLifetime,
    ) -> Result<(ShareReport, Option<LeasedShare>), ShareRefusal> {
        let failed = |failure| ShareRefusal::Failure(failure);
        let ShareRequest { words, files, is_again } = opened;
        let keep = until != ShareLifetime::Interrupted;
        let lease =
            if keep { None } else { Some(UnixStream::pair().map_err(|error| failed(CommandFailure::local(error)))?) };
        let (ours, theirs) = lease.unzip();
        let fds: Vec<_> = files.iter().map(AsFd::as_fd).chain(theirs.as_ref().map(AsFd::as_fd)).collect();
        let question = Question::Share { what: words, name: called.name.clone(), keep, is_again };
        let answer = ask_one(self.pid, &question, &fds);
        match answer.map_err(|error| failed(CommandFailure::local(format!("the daemon does not answer: {error}"))))? {
            Answer::Ok(value) => {
                let shared: ShareReport =
                    serde_json::from_value(value).map_err(|error| failed(CommandFailure::local(error)))?;
                let name = shared.devices.first().map(|device| device.name.clone()).unwrap_or_default();
                let leased = ours.map(|lease| LeasedShare { name, text: called.text.clone(), lease });
                Ok((shared, leased))
            }
            Answer::Refused(why) if why.starts_with(NOT_A_QUESTION) => Err(ShareRefusal::TooOld),
            Answer::Refused(why) => Err(failed(CommandFailure::new(FailureKind::Refused, why))),
            Answer::Failed(report) => Err(failed(CommandFailure::new(report.attribute, report.message))),
            Answer::Unknown => {
                let why = "another process takes the daemon's place at this moment\n  try again";
                Err(failed(CommandFailure::new(FailureKind::Refused, why)))
            }
        }
    }

    /// The failure of a file that cannot be opened. The daemon itself may have it.
    fn not_opened(&self, path: &Path, why: &str) -> CommandFailure {
        let at = format!("block:{}", path.display());
        let devices = self.status["devices"].as_array().into_iter().flatten();
        match devices.into_iter().find(|device| device["medium"]["at"] == at.as_str()) {
            Some(device) => {
                let name = device["name"].as_str().unwrap_or_default();
                CommandFailure::new(
                    FailureKind::Refused,
                    format!("{} is shared by the daemon already, as '{name}'", path.display()),
                )
            }
            None => CommandFailure::local(why),
        }
    }

    /// Ends shares that are not to stay.
    fn withdraw(&self, devices: &[Vec<SharedNow>]) {
        for device in devices.iter().flatten() {
            // If it does not answer, it has ended, and with it its shares; of a bridge, both ends end with the first.
            let _ = ask_one(self.pid, &Question::Unshare { device: device.name.clone(), force: true }, &[]);
        }
    }

    fn tell(
        &self,
        what: &[ShareSpec],
        all: &[&SharedNow],
        listening: &[ListeningPlace],
        until: ShareLifetime,
    ) -> Result<(), CommandFailure> {
        all.iter().for_each(|device| say_device(&device.name, &device.bus_id, &device.ids, &device.speed));
        let by = if until == ShareLifetime::Interrupted { "the daemon; Ctrl-C ends the share" } else { "the daemon" };
        listening.iter().for_each(|location| say_place(location, by));
        let Some(first) = all.first() else { return Ok(()) };
        let is_secure = listening.iter().any(|it| it.is_secure);
        let trust = is_secure.then(TrustStore::open).transpose()?;
        let reach = ShareReach::of(trust.as_ref(), &first.name, first.id, Some(&self.config));
        let socket = place_of_daemon().as_host();
        let plain = listening.iter().filter(|it| !it.is_secure);
        let here = match plain.clone().find(|it| it.at == socket).or(plain.clone().next()) {
            Some(it) if it.at != socket => format!("{}/{}", it.at, first.name),
            _ => first.name.clone(),
        };
        say_what_to_type(&here, &first.name, &quoted_all(what), &host_name(), &reach);
        let has_usb = what.iter().any(|called| called.what.usb().is_some());
        match until {
            ShareLifetime::Interrupted => {}
            ShareLifetime::Unshared => say(format!("the daemon keeps it until: farbus unshare {}", first.name)),
            ShareLifetime::Saved => say(format!("saved in {}", self.config.display())),
        }
        // With --save the configuration shares it again, but the daemon has to read it first.
        match until {
            ShareLifetime::Unshared if has_usb => {
                say("  or until it is unplugged; --save shares it each time it is plugged in")
            }
            ShareLifetime::Saved if has_usb => say("  shared each time it is plugged in, after: farbus daemon reload"),
            _ => {}
        }
        Ok(())
    }

    /// Appends the devices to the configuration, under the names that they have.
    fn save(
        &self,
        (mut file, text): (std::fs::File, String),
        what: &[ShareSpec],
        devices: &[Vec<SharedNow>],
    ) -> Result<(), CommandFailure> {
        let mut entries = String::new();
        for (called, devices) in what.iter().zip(devices) {
            let words = called.what.absolute(&called.words).map_err(CommandFailure::local)?;
            let listed = devices.first().map(|device| device.name.as_str()).unwrap_or_default();
            let name = called.name.as_ref().map_or(base_of(listed, devices.len()), String::as_str);
            let [words, name] = [words.as_str(), name].map(|text| toml::Value::String(text.to_owned()));
            entries.push_str(&format!("\n[[share]]\nwhat = {words}\nname = {name}\n"));
        }
        if !text.is_empty() && !text.ends_with('\n') {
            entries.insert(0, '\n');
        }
        if let Err(error) = check_config(&self.config, &format!("{text}{entries}")) {
            let message =
                format!("cannot add to {}: {error}\n  add it by hand:{}", self.config.display(), indented(&entries));
            return Err(CommandFailure::local(message));
        }
        let written = file.write_all(entries.as_bytes()).and_then(|()| file.sync_all());
        written.map_err(|error| not_written(&self.config, &error))
    }
}

fn open_usb(found: &PluggedDevice, follow: &FollowPolicy) -> Result<ShareRequest, UsbError> {
    let spec = UsbSpec { selector: UsbDeviceSelector::BusId(found.bus_id.clone()), follow: follow.clone() };
    Ok(ShareRequest { words: spec.to_string(), files: vec![usb::open_node(found)?], is_again: false })
}

/// Waits until a signal comes, or nothing is shared any more. Devices that are plugged in meanwhile are shared, too.
fn wait(
    mut leases: Vec<LeasedShare>,
    mut replugged: ReplugFollower,
    mut signals: Signals,
    as_json: bool,
) -> Result<(), CommandFailure> {
    // What it prints for a program is one value.
    let tell = |text: String| if as_json { eprintln!("farbus: {text}") } else { say(text) };
    let stop = StopSignal::new().map_err(CommandFailure::local)?;
    let for_thread = stop.clone();
    let hear = move || {
        signals.forever().next();
        for_thread.end();
    };
    thread::Builder::new().name("signals".into()).spawn(hear).map_err(CommandFailure::local)?;
    loop {
        replugged.look(|called, found| share_replugged(called, found, &mut leases)).map_err(CommandFailure::local)?;
        if leases.is_empty() && replugged.is_empty() {
            return Ok(());
        }
        let mut interests = vec![PollInterest::new(stop.wake().as_fd(), false)];
        interests.extend(leases.iter().map(|leased| PollInterest::end(leased.lease.as_fd())));
        interests.extend(replugged.events().map(|events| PollInterest::new(events, false)));
        link::wait(&mut interests, replugged.pause()).map_err(CommandFailure::local)?;
        if stop.hears() {
            return end_all(&leases);
        }
        let ended: Vec<bool> = interests[1..].iter().map(|interest| interest.readable).collect();
        drop(interests);
        let mut ended = ended.into_iter();
        for LeasedShare { name, text, mut lease } in leases.extract_if(.., |_| ended.next() == Some(true)) {
            let mut last = Vec::new();
            let heard = lease.set_nonblocking(true).and_then(|()| lease.read_to_end(&mut last));
            match heard.map(|_| last.as_slice()) {
                Ok(IS_UNPLUGGED) => tell(format!("{name}: unplugged; it is shared again when it is plugged in again")),
                Ok(HAS_ENDED) => {
                    replugged.leave(&text);
                    tell(format!("{name}: somebody else ended this share"));
                }
                _ => {
                    let message = format!("the daemon has ended, and '{name}' is not shared any more");
                    return Err(CommandFailure::new(FailureKind::Gone, message));
                }
            }
        }
    }
}

/// Lets the daemon share a device that was plugged in later. It may be another process by now.
fn share_replugged(
    called: &ShareSpec,
    found: &PluggedDevice,
    leases: &mut Vec<LeasedShare>,
) -> Result<(), CommandFailure> {
    let is_by_port = matches!(called.what.usb(), Some(UsbDeviceSelector::BusId(_)));
    let opened = open_usb(found, &called.what.follow()).map_err(CommandFailure::local)?;
    let opened = ShareRequest { is_again: is_by_port, ..opened };
    let daemon =
        RunningDaemon::find()?.ok_or_else(|| CommandFailure::new(FailureKind::Gone, "the daemon does not run"))?;
    let (shared, leased) = match daemon.share_one(called, opened, ShareLifetime::Interrupted) {
        Ok(shared) => shared,
        Err(ShareRefusal::Failure(failure)) => return Err(failure),
        Err(ShareRefusal::TooOld) => {
            return Err(CommandFailure::new(FailureKind::Refused, "the daemon is of an earlier release"));
        }
    };
    leases.extend(leased);
    shared.devices.iter().for_each(|device| say_device(&device.name, &device.bus_id, &device.ids, &device.speed));
    Ok(())
}

/// Ends the shares, and waits until their devices are durable. Another process may have taken the daemon's place.
fn end_all(leases: &[LeasedShare]) -> Result<(), CommandFailure> {
    for LeasedShare { name, .. } in leases {
        let Some((pid, _)) = own_daemon().map_err(CommandFailure::local)? else { return Ok(()) };
        let question = Question::Unshare { device: name.clone(), force: true };
        match ask_one(pid, &question, &[]).map_err(CommandFailure::local)? {
            Answer::Refused(why) => return Err(CommandFailure::new(FailureKind::Refused, why)),
            Answer::Failed(report) => return Err(CommandFailure::new(report.attribute, report.message)),
            // It ended meanwhile, or ends with its lease.
            Answer::Ok(_) | Answer::Unknown => {}
        }
    }
    Ok(())
}

/// The name of a device in the configuration: a bridge's two ends have one name together.
fn base_of(listed: &str, count: usize) -> &str {
    if count > 1 { listed.strip_suffix("-a").unwrap_or(listed) } else { listed }
}

/// Fails if the words mean something to this process alone, so that they must not be in a configuration.
fn check_lasting(called: &ShareSpec) -> Result<(), CommandFailure> {
    const OWN: [&str; 3] = ["/dev/fd", "/dev/stdin", "/proc"];
    let mut paths = called.what.images().map(|(path, _)| path).chain(called.what.frames());
    match paths.find(|path| OWN.iter().any(|own| path.starts_with(own))) {
        None => Ok(()),
        Some(path) => Err(CommandFailure::new(
            FailureKind::Refused,
            format!(
                "{} is open in this command alone: it means nothing in the daemon's configuration
  share it with --keep",
                path.display()
            ),
        )),
    }
}

fn indented(entries: &str) -> String {
    entries.replace('\n', "\n    ").trim_end().to_owned()
}

/// Opens the configuration, to append to it. Returns its text, too.
fn open_config(path: &Path) -> Result<(std::fs::File, String), CommandFailure> {
    let mut file = OpenOptions::new().read(true).append(true).open(path).map_err(|error| not_written(path, &error))?;
    let mut text = String::new();
    file.read_to_string(&mut text).map_err(|error| not_written(path, &error))?;
    Ok((file, text))
}

fn not_written(path: &Path, error: &std::io::Error) -> CommandFailure {
    let next = "share it with --keep, and let somebody who may write the file add it";
    CommandFailure::local(format!("cannot write {}: {error}\n  {next}", path.display()))
}
