//! `farbus lease DEVICE -- PROGRAM`: leases that last as long as a program.

use std::ffi::OsString;
use std::process::{Child, Command};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use farbus::common::child_program::{exit_code_of, exit_code_of_error, not_run, passed_on};
use farbus::importer::client::{DeviceTarget, FailureKind};
use farbus_control::lease::{LeaseAct, LeaseAnswer};
use farbus_io_linux::sys::inherited;
use farbus_session::claims::lease::{LeaseRefusal, SPAN_MIN};
use rustix::process::{Pid, PidfdFlags, pidfd_open, pidfd_send_signal};
use signal_hook::iterator::Signals;

use super::answers::{ask, until};
use crate::CommandFailure;
use crate::ending::end;
use crate::output::format_span;

/// Names the leased devices to the program, separated by spaces.
const LEASED: &str = "FARBUS_LEASED";
/// How often a lease is looked after, at most.
const LOOK_EVERY: Duration = Duration::from_secs(30);
/// How long a device that the program has left attached may take to be detached, before it is taken away. The exporter
/// of a program that was killed hears of it in this time.
const DETACH_TIME_MAX: Duration = Duration::from_secs(5);
/// How often a host that is not reached is asked to release a lease.
const RELEASE_TRIES: u32 = 3;
const ASK_AGAIN: Duration = Duration::from_millis(200);

/// A device that was leased to this host.
pub struct GrantedLease {
    pub target: DeviceTarget,
    pub answer: LeaseAnswer,
    /// Whether by this command; or this host had the lease before.
    pub is_new: bool,
}

/// Runs a program while the leases last: extends them, gives them back when it has ended, and ends with its exit code.
/// A lease that this host had before stays.
///
/// # Errors
/// The program has not begun; or its exit code is 0, and a lease had ended before it.
pub fn run(
    program: &[OsString],
    granted: Vec<GrantedLease>,
    span: Duration,
    mut signals: Signals,
) -> Result<(), CommandFailure> {
    let named: Vec<String> = granted.iter().map(|one| one.target.to_string()).collect();
    for GrantedLease { target, answer, is_new } in &granted {
        let whose = if *is_new { "" } else { "; it was before, and stays so" };
        eprintln!("farbus: {} is leased{}{whose}", target.shown(), until(answer));
    }
    let leases: Vec<ProgramLease> = granted.into_iter().map(ProgramLease::of).collect();
    if let Some(signal) = signals.pending().next() {
        give_back(leases);
        return Err(CommandFailure::interrupted(signal, format!("{} was not started", program[0].display())));
    }
    let mut child = match Command::new(&program[0]).args(&program[1..]).env(LEASED, named.join(" ")).spawn() {
        Ok(child) => child,
        Err(error) => {
            give_back(leases);
            eprintln!("farbus: {}", not_run(program, &error));
            end(exit_code_of_error(&error))
        }
    };
    // What the user gave to the program is the program's alone.
    inherited::close();
    let (tell_end, ended) = channel();
    let keeper = thread::spawn(move || keep(leases, span, &ended));
    pass_signals(signals, &child);
    let status = child.wait().map_err(CommandFailure::local);
    drop(tell_end);
    let leases = keeper.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    let lost = give_back(leases);
    match exit_code_of(status?) {
        0 if !lost.is_empty() => Err(CommandFailure::new(
            FailureKind::Refused,
            format!("{} has ended with 0, and the lease of {} was over before", program[0].display(), lost.join(", ")),
        )),
        0 => Ok(()),
        code => end(code),
    }
}

/// Passes on to the program what is meant for it, as long as it runs.
fn pass_signals(mut signals: Signals, child: &Child) {
    let Ok(program) = pidfd_open(Pid::from_child(child), PidfdFlags::empty()) else { return };
    thread::spawn(move || {
        for signal in signals.forever().filter_map(passed_on) {
            // It may have ended.
            let _ = pidfd_send_signal(&program, signal);
        }
    });
}

/// Looks after the leases until the program has ended.
fn keep(mut leases: Vec<ProgramLease>, span: Duration, ended: &Receiver<()>) -> Vec<ProgramLease> {
    let every = (span / 4).clamp(SPAN_MIN, LOOK_EVERY);
    while let Err(RecvTimeoutError::Timeout) = ended.recv_timeout(every) {
        leases.iter_mut().for_each(|lease| lease.look(span));
    }
    leases
}

/// Releases what was leased for the program. Returns the devices whose lease had ended before.
fn give_back(leases: Vec<ProgramLease>) -> Vec<String> {
    leases.into_iter().filter_map(ProgramLease::give_back).collect()
}

/// A lease, while the program runs.
struct ProgramLease {
    target: DeviceTarget,
    is_new: bool,
    /// When it ends, as far as is known.
    until: Instant,
    /// Why it is not extended, as was said last.
    message: Option<String>,
    is_over: bool,
}

impl ProgramLease {
    fn of(GrantedLease { target, answer, is_new }: GrantedLease) -> Self {
        let left = answer.lease.map(|lease| lease.left()).unwrap_or_default();
        Self { target, is_new, until: Instant::now() + left, message: None, is_over: false }
    }

    fn left(&self) -> Duration {
        self.until.saturating_duration_since(Instant::now())
    }

    /// Extends the lease when half of its time is over, and sees whether it goes on.
    fn look(&mut self, span: Duration) {
        if self.is_over {
            return;
        }
        // The shortest span changes nothing: it asks whether the lease is there.
        let wanted = if self.left() <= span / 2 { span } else { SPAN_MIN };
        match ask(&self.target, LeaseAct::Extend { for_s: wanted.as_secs().max(1) }) {
            Ok(answer) => {
                self.until = Instant::now() + answer.lease.map(|lease| lease.left()).unwrap_or_default();
                self.message = None;
            }
            Err(failure) if is_not_held(&failure) => {
                self.is_over = true;
                eprintln!("farbus: warning: the lease of {} is over; the program goes on", self.target.shown());
            }
            Err(failure) => {
                let why = failure.to_string();
                if self.message.as_ref() != Some(&why) {
                    let left = format_span(self.left());
                    eprintln!("farbus: warning: a lease ends in {left} and is not extended: {why}");
                    self.message = Some(why);
                }
            }
        }
    }

    /// Releases the lease, if it is this command's. Returns the device if the lease had ended before.
    fn give_back(self) -> Option<String> {
        let shown = self.target.shown();
        if self.is_over {
            return Some(shown);
        }
        if !self.is_new {
            return ask(&self.target, LeaseAct::Extend { for_s: 1 })
                .is_err_and(|why| is_not_held(&why))
                .then_some(shown);
        }
        let patient_until = Instant::now() + DETACH_TIME_MAX;
        let (mut force, mut tries) = (false, 0);
        loop {
            match ask(&self.target, LeaseAct::Release { force }) {
                Ok(_) if force => {
                    eprintln!("farbus: warning: {shown} was attached here still, and is taken away");
                    return None;
                }
                Ok(_) => return None,
                Err(failure) if is_not_held(&failure) => return Some(shown),
                Err(failure) if failure.attribute() == FailureKind::Refused && !force => {
                    force = Instant::now() >= patient_until;
                }
                Err(failure) => {
                    tries += 1;
                    if tries == RELEASE_TRIES || failure.attribute() != FailureKind::Network {
                        eprintln!(
                            "farbus: warning: {shown} may be leased to this host for {}: {failure}",
                            format_span(self.left())
                        );
                        eprintln!("  end that: farbus lease release {shown}");
                        return None;
                    }
                }
            }
            thread::sleep(ASK_AGAIN);
        }
    }
}

/// Whether an exporter says that this host has no lease.
fn is_not_held(failure: &CommandFailure) -> bool {
    failure.attribute() == FailureKind::Refused && failure.to_string().contains(&LeaseRefusal::NotHeld.to_string())
}
