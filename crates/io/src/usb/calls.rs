//! Calls that wait for a device, each on a thread of its own for as long as it lasts.
//!
//! usbfs holds the device's lock while it makes one of these (`usbdev_do_ioctl`): up to five seconds for a request that
//! the device does not answer, more for a reset. Whatever else is asked of the descriptor then waits as long, taking
//! back a finished transfer among it. So while a call is on its way its thread alone asks anything of the device, and
//! the engine waits on a [`Wake`] in the descriptor's place: it goes on to serve its link, to withdraw what has not
//! begun, and to end.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError, sync_channel};
use std::thread;
use std::time::Duration;

use farbus_model::{EpAddr, Status};
use tracing::warn;

use super::error::OpenError;
use super::kernel::Calls;
use crate::link::Wake;

/// A call is a few frames deep.
const STACK_BYTES: usize = 64 << 10;

/// What is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Call {
    /// SET_INTERFACE.
    Interface { interface: u8, alternate: u8 },
    /// CLEAR_FEATURE(ENDPOINT_HALT).
    ClearHalt(EpAddr),
    /// What SET_CONFIGURATION does to a device that has it already: default settings of these interfaces, no halts.
    Afresh { interfaces: Vec<u8>, halted: Vec<EpAddr> },
    /// SET_CONFIGURATION: `claimed` are let go of, and those of the new configuration claimed, or of the old one if it
    /// stays.
    Configuration { value: u8, claimed: Vec<u8>, old: Vec<u8>, new: Vec<u8> },
    /// A port reset. The kernel sends usbfs away from claimed interfaces when it resets, and lets its own drivers in:
    /// `claimed` are let go of, and `interfaces` claimed after.
    Reset { claimed: Vec<u8>, interfaces: Vec<u8> },
}

/// How it went.
#[derive(Debug)]
pub struct Outcome {
    /// The call's own end.
    pub result: Result<(), Status>,
    /// Where interfaces were let go of: those that are claimed now, and why not all.
    pub claimed: Option<(Vec<u8>, Result<(), OpenError>)>,
}

/// A call on its way.
pub struct Running {
    pub call: Call,
    outcome: Receiver<Outcome>,
}

impl Call {
    fn make(&self, calls: &impl Calls) -> Outcome {
        match self {
            Call::Interface { interface, alternate } => Outcome::of(calls.set_interface(*interface, *alternate)),
            Call::ClearHalt(endpoint) => Outcome::of(calls.clear_halt(endpoint.as_byte())),
            Call::Afresh { interfaces, halted } => {
                let mut settings = interfaces.iter().map(|&interface| calls.set_interface(interface, 0));
                let mut halts = halted.iter().map(|endpoint| calls.clear_halt(endpoint.as_byte()));
                Outcome::of(settings.try_for_each(|end| end).and_then(|()| halts.try_for_each(|end| end)))
            }
            Call::Configuration { value, claimed, old, new } => {
                release(calls, claimed);
                let result = calls.set_configuration(*value);
                let claimed = claim(calls, if result.is_ok() { new } else { old });
                Outcome { result, claimed: Some(claimed) }
            }
            Call::Reset { claimed, interfaces } => {
                release(calls, claimed);
                let result = calls.reset();
                let claimed = (result != Err(Status::Gone)).then(|| claim(calls, interfaces));
                Outcome { result, claimed: Some(claimed.unwrap_or((Vec::new(), Ok(())))) }
            }
        }
    }

    /// Begins it; `wake` wakes whoever waits for its end.
    pub fn start<C: Calls + Clone>(self, calls: C, wake: &Arc<Wake>) -> Running {
        let (sender, outcome) = sync_channel(1);
        let (for_thread, calls_there, wake_there, sender_there) =
            (self.clone(), calls.clone(), Arc::clone(wake), sender.clone());
        let act = move || {
            // Whoever asked may not want to know any more.
            let _ = sender_there.try_send(for_thread.make(&calls_there));
            wake_there.wake();
        };
        let spawned = thread::Builder::new().name("usb-call".into()).stack_size(STACK_BYTES).spawn(act);
        if let Err(error) = spawned {
            warn!(%error, "no thread for a call: its session waits for it");
            let _ = sender.try_send(self.make(&calls));
            wake.wake();
        }
        Running { call: self, outcome }
    }
}

impl Running {
    /// Its outcome, once it has one.
    pub fn poll(&self) -> Option<Outcome> {
        match self.outcome.try_recv() {
            Ok(outcome) => Some(outcome),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => Some(Outcome::of(Err(Status::Other))),
        }
    }

    /// Its outcome, waited for; `None` if it takes longer than that.
    pub fn wait(&self, time_max: Duration) -> Option<Outcome> {
        match self.outcome.recv_timeout(time_max) {
            Ok(outcome) => Some(outcome),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => Some(Outcome::of(Err(Status::Other))),
        }
    }
}

impl Outcome {
    fn of(result: Result<(), Status>) -> Self {
        Self { result, claimed: None }
    }
}

/// Takes interfaces, one after the other; those it has, and why it has not all.
pub fn claim(calls: &impl Calls, interfaces: &[u8]) -> (Vec<u8>, Result<(), OpenError>) {
    let mut claimed = Vec::new();
    for &interface in interfaces {
        if let Err(error) = calls.claim(interface) {
            let error = match error.kind() {
                io::ErrorKind::ResourceBusy => OpenError::Busy { interface },
                _ => OpenError::of("taking it from its driver", error),
            };
            return (claimed, Err(error));
        }
        claimed.push(interface);
    }
    (claimed, Ok(()))
}

/// Lets go of interfaces.
pub fn release(calls: &impl Calls, claimed: &[u8]) {
    for &interface in claimed {
        // What is not held any more was released already: a device that was unplugged, or configured by somebody else.
        let _ = calls.release(interface);
    }
}
