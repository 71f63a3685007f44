//! Starts the program, and serves its devices until it ends.

use std::ffi::OsString;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd, AsRawFd as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, ExitStatus};
use std::sync::Arc;
use std::thread;

use farbus_control::failure::FailureReport;
use farbus_io_linux::sys::inherited;
use farbus_io_net::sys::passing;
use farbus_model::Device;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open, pidfd_send_signal};
use signal_hook::iterator::backend::SignalDelivery;
use signal_hook::iterator::exfiltrator::SignalOnly;
use tracing::{debug, error, warn};

use super::bus::FarDeviceSource;
use super::control;
use super::engine::UsbfsEngine;
use super::error::RunError;
use super::events::EventSource;
use super::named::NamedRunListener;
use super::program;
use super::remaining::{AdoptedProcesses, RemainingProcess};
use super::servers;
use super::slow_start::SlowStart;
use super::tree::SysfsTree;
use crate::common::child_program::{MEANT_SIGNALS, NOT_FOUND, NOT_RUN, exit_code_of, passed_on};
use crate::common::stop_signal::StopSignal;
use crate::frontend::usb_swap::SwapUsb;
use crate::importer::client::{ClientError, DeviceTarget};

/// The hidden verb of the process that becomes the program.
pub const INSIDE_VERB: &str = "run-inside";

/// How often processes are reaped whose parents have ended: until then they take a number each.
const REAPED_EVERY: Timespec = Timespec { tv_sec: 10, tv_nsec: 0 };

fn local(error: impl std::fmt::Display) -> RunError {
    RunError::local(error)
}

/// How the program ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunOutcome {
    /// Its exit code, or 128 and the signal that ended it, as a shell says it.
    pub code: u8,
    /// The devices that were taken away from it while it ran, and why.
    pub taken_away: Vec<(DeviceTarget, FailureReport)>,
    /// What it left running and was ended.
    pub ended: Vec<RemainingProcess>,
    /// What it left running and still runs.
    pub remaining: Vec<RemainingProcess>,
}

/// How a program is run.
#[derive(Debug, Default)]
pub struct RunOptions {
    /// By which others can join it ([`join`](super::named::join)).
    pub name: Option<String>,
    /// It sees the machine's own USB devices, too.
    pub with_local: bool,
    /// What it leaves running goes on.
    pub keeps_servers: bool,
}

/// A name in `/sys/devices` that no tree has yet: a run inside another one has another.
fn tree_name() -> String {
    let is_free = |name: &String| !Path::new("/sys/devices").join(name).exists();
    (1u32..)
        .map(|number| if number == 1 { "farbus".to_owned() } else { format!("farbus{number}") })
        .find(is_free)
        .expect("numbers do not end")
}

/// Takes the devices, runs a program that sees them, and gives them back when it has ended. `program` is its name, as
/// for a shell, and its arguments. `tries_again` is asked when a device is not to be had: it may wait.
///
/// # Errors
/// [`RunError`]: the program has not begun.
pub fn run(
    devices: Vec<FarDeviceSource>,
    options: &RunOptions,
    program: &[OsString],
    tries_again: &mut dyn FnMut(&ClientError) -> bool,
) -> Result<RunOutcome, RunError> {
    program::check(&program[0]).map_err(|why| RunError::Program { code: NOT_RUN, why })?;
    let named = options.name.as_deref().map(NamedRunListener::listen).transpose()?;
    let stop = StopSignal::new().map_err(local)?;
    let wake = stop.shared_wake();
    let sources: Vec<Arc<FarDeviceSource>> = devices.into_iter().map(Arc::new).collect();
    let open = |source: &Arc<FarDeviceSource>| {
        let _slow = SlowStart::of(format!("{source}: its host, or the device's descriptors"));
        Ok((source.open(&wake)?, Arc::clone(source)))
    };
    let opened = loop {
        // Those that were opened are given back while another one is waited for.
        match sources.iter().map(open).collect::<Result<Vec<_>, ClientError>>() {
            Err(error) if tries_again(&error) => {}
            opened => break opened.map_err(|error| RunError::Device(Box::new(error)))?,
        }
    };
    opened.iter().for_each(|(device, source)| name_servers(device, source));
    let _control_socket = control::answer_for(sources.clone(), &program[0])
        .inspect_err(|error| debug!(%error, "commands do not find what the program has"));
    let (mut parent, theirs) = UnixStream::pair().map_err(local)?;
    // The child has it until it is the program.
    rustix::io::fcntl_setfd(&theirs, rustix::io::FdFlags::empty()).map_err(local)?;
    let ourselves = std::env::current_exe().map_err(local)?;
    let (source, events) = EventSource::start()
        .inspect_err(|error| debug!(%error, "programs hear of no device that comes or goes"))
        .ok()
        .unzip();
    let mut adopted = AdoptedProcesses::begin().map_err(local)?;
    source.iter().for_each(|source| adopted.except(source.id()));
    let tree = tree_name();
    let child = Command::new(ourselves)
        .arg(INSIDE_VERB)
        .args(events.as_ref().map(|_| "--events"))
        .args(options.with_local.then_some("--with-local"))
        .args(["--tree", &tree])
        .arg(theirs.as_raw_fd().to_string())
        .arg("--")
        .args(program)
        .spawn()
        .map_err(local)?;
    let mut child = ProgramChild(child);
    drop(theirs);
    // What the user gave to the program is the program's alone.
    inherited::close();
    let mut came = Vec::new();
    let mut first = [0; 1024];
    let count = passing::receive_on_stream(parent.as_fd(), &mut first, &mut came).map_err(local)?;
    let mut came = came.into_iter();
    let Some(server) = came.next() else {
        return Err(not_started(&mut parent, &first[..count], &mut child));
    };
    if let (Some(source), Some(listener)) = (&source, came.next()) {
        source.answer(listener.as_fd()).map_err(local)?;
    }
    let tree = SysfsTree::new(tree, options.with_local);
    let engine = UsbfsEngine::new(server, stop.shared_wake(), events, tree, opened)?;
    let signal = stop.clone();
    let serving = thread::spawn(move || engine.serve(&signal));
    let kept = parent
        .write_all(b"s")
        .map_err(local)
        .and_then(|()| keep(&mut parent, &mut child, &adopted, named, source.as_ref()));
    let left = adopted.remaining();
    let remaining = if options.keeps_servers { left.clone() } else { adopted.end(&left) };
    let ended = left.into_iter().filter(|process| !remaining.contains(process)).collect();
    stop.end();
    match serving.join() {
        Ok(Ok(())) => {}
        Ok(Err(error)) => error!(%error, "the devices were not served to the end"),
        Err(panic) => std::panic::resume_unwind(panic),
    }
    // A twin that is being opened is given back before this process ends.
    sources.iter().filter_map(|source| source.last_swap()).for_each(|swap| swap.finish());
    let taken_away = sources.iter().filter_map(|source| Some((source.target().clone(), source.taken_away()?.clone())));
    let taken_away = taken_away.collect();
    Ok(RunOutcome { code: exit_code_of(kept?), taken_away, ended, remaining })
}

/// Warns of servers outside that a program would ask for this device.
fn name_servers(device: &SwapUsb, source: &FarDeviceSource) {
    for server in servers::running_for(Device::descriptors(device)) {
        let (name, ended_by) = (server.name, server.ended_by);
        warn!("{name} runs already, does not see {source}, and answers in its place; to end it: {ended_by}");
    }
}

/// What the child said before it ended, of which `first` was read.
fn not_started(parent: &mut UnixStream, first: &[u8], child: &mut ProgramChild) -> RunError {
    let mut bytes = first.to_vec();
    // What it says is short.
    let read = parent.take(4096).read_to_end(&mut bytes);
    let ended = read.and_then(|_| child.0.wait());
    let why = String::from_utf8_lossy(&bytes).into_owned();
    match ended.map(exit_code_of) {
        Ok(code @ (NOT_FOUND | NOT_RUN)) => RunError::Program { code, why },
        Ok(_) if why.is_empty() => local("the program's process has ended before it began"),
        Ok(_) => local(why),
        Err(error) => local(error),
    }
}

/// Waits until the program has ended; passes on to it what is meant for it, and lets others join it.
fn keep(
    parent: &mut UnixStream,
    child: &mut ProgramChild,
    adopted: &AdoptedProcesses,
    mut named: Option<NamedRunListener>,
    source: Option<&EventSource>,
) -> Result<ExitStatus, RunError> {
    let program = pidfd_open(Pid::from_child(&child.0), PidfdFlags::empty()).map_err(local)?;
    let mut signals = signals().map_err(local)?;
    parent.set_nonblocking(true).map_err(local)?;
    let mut has_begun = false;
    loop {
        let own = [Some(program.as_fd()), Some(signals.get_read().as_fd()), (!has_begun).then(|| parent.as_fd())];
        let fds = own.into_iter().flatten().chain(named.iter().flat_map(NamedRunListener::descriptors));
        let mut ready: Vec<PollFd<'_>> = fds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
        match poll(&mut ready, Some(&REAPED_EVERY)) {
            Ok(0) => adopted.reap(Some(child.0.id())),
            Ok(_) => {}
            Err(errno) if io::Error::from(errno).kind() == io::ErrorKind::Interrupted => {}
            Err(errno) => return Err(local(errno)),
        }
        for signal in signals.pending() {
            if let Some(signal) = passed_on(signal) {
                // It may have ended.
                let _ = pidfd_send_signal(&program, signal);
            }
        }
        if !has_begun {
            let mut bytes = [0; 1024];
            match parent.read(&mut bytes) {
                Ok(0) => has_begun = true,
                Ok(count) => {
                    parent.set_nonblocking(false).map_err(local)?;
                    return Err(not_started(parent, &bytes[..count], child));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(local(error)),
            }
        }
        if let Some(status) = child.0.try_wait().map_err(local)? {
            return Ok(status);
        }
        if let Some(named) = &mut named {
            named.turn(child.0.id(), source);
        }
    }
}

/// The signals that are meant for the program. None of them ends this process from now on.
fn signals() -> io::Result<SignalDelivery<UnixStream, SignalOnly>> {
    let (read, write) = UnixStream::pair()?;
    read.set_nonblocking(true)?;
    SignalDelivery::with_pipe(read, write, SignalOnly, MEANT_SIGNALS)
}

/// The program's process, which does not outlive a failure here.
struct ProgramChild(Child);

impl Drop for ProgramChild {
    fn drop(&mut self) {
        if let Ok(None) = self.0.try_wait() {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }
}
