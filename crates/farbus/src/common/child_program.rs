//! A program that farbus runs for its user: which signals are meant for it, and how its end is said.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::ExitStatus;

use rustix::process::Signal;
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};

/// A shell's exit code for a program that is not there.
pub const NOT_FOUND: u8 = 127;
/// A shell's exit code for one that cannot be run.
pub const NOT_RUN: u8 = 126;
/// The signals that are meant for the program.
pub const MEANT_SIGNALS: [i32; 6] = [SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2];

/// The exit code for a program that could not be started.
pub fn exit_code_of_error(error: &io::Error) -> u8 {
    if error.kind() == io::ErrorKind::NotFound { NOT_FOUND } else { NOT_RUN }
}

/// What is said of a program that could not be started; `program` is its name and its arguments.
pub fn not_run(program: &[OsString], error: &io::Error) -> String {
    format!("cannot run {}: {error}", Path::new(&program[0]).display())
}

/// The exit code of a program, or 128 and the signal that ended it, as a shell says it.
pub fn exit_code_of(status: ExitStatus) -> u8 {
    match (status.code(), status.signal()) {
        (Some(code), _) => code as u8,
        (None, Some(signal)) => (128 + signal) as u8,
        (None, None) => 1,
    }
}

/// The signal that this process got, if the program has not got it yet. A terminal sends its own to all processes in
/// the foreground.
pub fn passed_on(signal: i32) -> Option<Signal> {
    let signal = Signal::from_named_raw(signal)?;
    if !matches!(signal, Signal::INT | Signal::QUIT) {
        return Some(signal);
    }
    let terminal = std::fs::File::open("/dev/tty");
    let foreground = terminal.ok().and_then(|terminal| rustix::termios::tcgetpgrp(terminal).ok());
    (foreground != Some(rustix::process::getpgrp())).then_some(signal)
}
