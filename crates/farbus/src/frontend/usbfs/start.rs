//! Starts the program, and serves its devices until it ends.

use std::ffi::OsString;
use std::fmt;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd, AsRawFd as _};
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, Command, ExitStatus};
use std::sync::Arc;

use farbus_io::sys::{inherited, passing};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::backend::SignalDelivery;
use signal_hook::iterator::exfiltrator::SignalOnly;

use tracing::debug;

use super::bus::Source;
use super::engine::Engine;
use super::events::Events;
use super::program;
use crate::importer::client::ClientError;

/// The hidden verb of the process that becomes the program.
pub const INSIDE_VERB: &str = "run-inside";

/// How the program ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Finished {
    /// Its exit code, or 128 and the signal that ended it, as a shell says it.
    pub code: u8,
}

/// Why the program did not run.
#[derive(Debug)]
pub enum RunError {
    /// A device could not be taken.
    Device(Box<ClientError>),
    /// This machine cannot show it to a program.
    Local(String),
    /// The program cannot be run.
    Program {
        /// As a shell says it: 127 if there is none, 126 if it is none.
        code: u8,
        /// Why.
        why: String,
    },
}

impl fmt::Display for RunError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RunError::Device(error) => error.fmt(f),
            RunError::Local(why) | RunError::Program { why, .. } => f.write_str(why),
        }
    }
}

impl std::error::Error for RunError {}

fn local(error: impl fmt::Display) -> RunError {
    RunError::Local(error.to_string())
}

/// Takes the devices, runs a program that sees them, and gives them back when it has ended. `program` is its name, as
/// for a shell, and its arguments.
///
/// # Errors
/// [`RunError`]: the program has not begun.
pub fn run(devices: Vec<Source>, program: &[OsString]) -> Result<Finished, RunError> {
    program::check(&program[0]).map_err(|why| RunError::Program { code: program::NOT_RUN, why })?;
    let opened: Result<Vec<_>, ClientError> =
        devices.into_iter().map(|source| Ok((source.open()?, Arc::new(source)))).collect();
    let opened = opened.map_err(|error| RunError::Device(Box::new(error)))?;
    let (mut parent, theirs) = UnixStream::pair().map_err(local)?;
    // The child has it until it is the program.
    rustix::io::fcntl_setfd(&theirs, rustix::io::FdFlags::empty()).map_err(local)?;
    let ourselves = std::env::current_exe().map_err(local)?;
    let events = Events::start().inspect_err(|error| debug!(%error, "programs hear of no device that comes or goes"));
    let events = events.ok();
    let child = Command::new(ourselves)
        .arg(INSIDE_VERB)
        .args(events.as_ref().map(|_| "--events"))
        .arg(theirs.as_raw_fd().to_string())
        .arg("--")
        .args(program)
        .spawn()
        .map_err(local)?;
    let mut child = Running(child);
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
    let events = match (events, came.next()) {
        (Some(events), Some(listener)) => {
            events.answer(listener.as_fd()).map_err(local)?;
            Some(events)
        }
        _ => None,
    };
    let mut engine = Engine::new(server, events, opened).map_err(local)?;
    parent.write_all(b"s").map_err(local)?;
    let status = serve(&mut engine, &mut parent, &mut child)?;
    engine.close();
    Ok(Finished { code: code_of(status) })
}

/// What the child said before it ended, of which `first` was read.
fn not_started(parent: &mut UnixStream, first: &[u8], child: &mut Running) -> RunError {
    let mut said = first.to_vec();
    // What it says is short.
    let read = parent.take(4096).read_to_end(&mut said);
    let ended = read.and_then(|_| child.0.wait());
    let why = String::from_utf8_lossy(&said).into_owned();
    match ended.map(code_of) {
        Ok(code @ (program::NOT_FOUND | program::NOT_RUN)) => RunError::Program { code, why },
        Ok(_) if why.is_empty() => local("the program's process has ended before it began"),
        Ok(_) => local(why),
        Err(error) => local(error),
    }
}

fn serve(engine: &mut Engine, parent: &mut UnixStream, child: &mut Running) -> Result<ExitStatus, RunError> {
    let program = pidfd_open(Pid::from_child(&child.0), PidfdFlags::empty()).map_err(local)?;
    let mut signals = signals().map_err(local)?;
    engine.watch(program.as_fd()).map_err(local)?;
    engine.watch(parent.as_fd()).map_err(local)?;
    engine.watch(signals.get_read().as_fd()).map_err(local)?;
    parent.set_nonblocking(true).map_err(local)?;
    let mut has_begun = false;
    loop {
        match engine.turn() {
            // The last process that saw the tree has ended.
            Err(error) if error.kind() == io::ErrorKind::NotConnected => return child.0.wait().map_err(local),
            other => other.map_err(local)?,
        }
        for signal in signals.pending() {
            if let Some(signal) = Signal::from_named_raw(signal).filter(|&signal| is_passed_on(signal)) {
                // It may have ended.
                let _ = pidfd_send_signal(&program, signal);
            }
        }
        if !has_begun {
            let mut said = [0; 1024];
            match parent.read(&mut said) {
                Ok(0) => {
                    has_begun = true;
                    engine.forget(parent.as_fd());
                }
                Ok(count) => {
                    parent.set_nonblocking(false).map_err(local)?;
                    return Err(not_started(parent, &said[..count], child));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(local(error)),
            }
        }
        if let Some(status) = child.0.try_wait().map_err(local)? {
            return Ok(status);
        }
    }
}

/// The signals that are meant for the program. None of them ends this process from now on.
fn signals() -> io::Result<SignalDelivery<UnixStream, SignalOnly>> {
    let (read, write) = UnixStream::pair()?;
    read.set_nonblocking(true)?;
    let meant = [SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2];
    SignalDelivery::with_pipe(read, write, SignalOnly, meant)
}

/// Whether the program has not got the signal yet. A terminal sends its own to all processes in the foreground.
fn is_passed_on(signal: Signal) -> bool {
    if !matches!(signal, Signal::INT | Signal::QUIT) {
        return true;
    }
    let terminal = std::fs::File::open("/dev/tty");
    let foreground = terminal.ok().and_then(|terminal| rustix::termios::tcgetpgrp(terminal).ok());
    foreground != Some(rustix::process::getpgrp())
}

fn code_of(status: ExitStatus) -> u8 {
    match (status.code(), status.signal()) {
        (Some(code), _) => code as u8,
        (None, Some(signal)) => (128 + signal) as u8,
        (None, None) => 1,
    }
}

/// The program's process, which does not outlive a failure here.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        if let Ok(None) = self.0.try_wait() {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }
}
