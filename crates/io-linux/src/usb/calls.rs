//! Calls that wait for a device, each on a thread of its own for as long as it lasts.
//!
//! usbfs holds the device's lock during such a call (`usbdev_do_ioctl`): up to five seconds for a request that the
//! device does not answer, more for a reset. All other operations on the descriptor wait as long, even reaping a
//! completed transfer. So while a call is under way only its thread uses the descriptor, and the engine waits on a
//! [`ThreadWaker`] instead: it continues to serve its link, to withdraw what has not begun, and to end.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError, sync_channel};
use std::thread;
use std::time::Duration;

use farbus_io_net::link::ThreadWaker;
use farbus_model::{EpAddr, UrbStatus};
use tracing::warn;

use super::error::UsbOpenError;
use super::kernel::UsbfsBlockingCalls;

/// A call needs only a few stack frames.
const STACK_BYTES: usize = 64 << 10;

/// A call to usbfs that blocks, so it runs on a thread of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UsbfsCall {
    /// SET_INTERFACE: the interface gets another alternate setting.
    Interface { interface: u8, alternate: u8 },
    /// CLEAR_FEATURE(ENDPOINT_HALT) at this endpoint.
    ClearHalt(EpAddr),
    /// What SET_CONFIGURATION does to a device that has the configuration already: default settings of these
    /// interfaces, no halts.
    Afresh { interfaces: Vec<u8>, halted: Vec<EpAddr> },
    /// SET_CONFIGURATION: releases the interfaces `claimed`, then claims those of the new configuration, or of the old
    /// one if that stays.
    Configuration { value: u8, claimed: Vec<u8>, old: Vec<u8>, new: Vec<u8> },
    /// A port reset. In a reset the kernel takes claimed interfaces away from usbfs and lets its own drivers in: so
    /// `claimed` are released before, and `interfaces` claimed afterwards.
    Reset { claimed: Vec<u8>, interfaces: Vec<u8> },
}

/// The result of a call.
#[derive(Debug)]
pub struct UsbfsCallResult {
    /// The result of the call itself.
    pub result: Result<(), UrbStatus>,
    /// For calls that release interfaces: those that are claimed now, and why not all of them.
    pub claimed: Option<(Vec<u8>, Result<(), UsbOpenError>)>,
}

/// A call that is under way.
pub struct RunningUsbfsCall {
    pub call: UsbfsCall,
    outcome: Receiver<UsbfsCallResult>,
}

impl UsbfsCall {
    fn make(&self, calls: &impl UsbfsBlockingCalls) -> UsbfsCallResult {
        match self {
            UsbfsCall::Interface { interface, alternate } => {
                UsbfsCallResult::of(calls.set_interface(*interface, *alternate))
            }
            UsbfsCall::ClearHalt(endpoint) => UsbfsCallResult::of(calls.clear_halt(endpoint.as_byte())),
            UsbfsCall::Afresh { interfaces, halted } => {
                let mut settings = interfaces.iter().map(|&interface| calls.set_interface(interface, 0));
                let mut halts = halted.iter().map(|endpoint| calls.clear_halt(endpoint.as_byte()));
                UsbfsCallResult::of(settings.try_for_each(|end| end).and_then(|()| halts.try_for_each(|end| end)))
            }
            UsbfsCall::Configuration { value, claimed, old, new } => {
                release(calls, claimed);
                let result = calls.set_configuration(*value);
                let claimed = claim(calls, if result.is_ok() { new } else { old });
                UsbfsCallResult { result, claimed: Some(claimed) }
            }
            UsbfsCall::Reset { claimed, interfaces } => {
                release(calls, claimed);
                let result = calls.reset();
                let claimed = (result != Err(UrbStatus::Gone)).then(|| claim(calls, interfaces));
                UsbfsCallResult { result, claimed: Some(claimed.unwrap_or((Vec::new(), Ok(())))) }
            }
        }
    }

    /// Starts the call; `wake` is woken at its end.
    pub fn start<C: UsbfsBlockingCalls + Clone>(self, calls: C, wake: &Arc<ThreadWaker>) -> RunningUsbfsCall {
        let (sender, outcome) = sync_channel(1);
        let (for_thread, calls_there, wake_there, sender_there) =
            (self.clone(), calls.clone(), Arc::clone(wake), sender.clone());
        let act = move || {
            // The asking thread may no longer wait.
            let _ = sender_there.try_send(for_thread.make(&calls_there));
            wake_there.wake();
        };
        let spawned = thread::Builder::new().name("usb-call".into()).stack_size(STACK_BYTES).spawn(act);
        if let Err(error) = spawned {
            warn!(%error, "no thread for a call: its session waits for it");
            let _ = sender.try_send(self.make(&calls));
            wake.wake();
        }
        RunningUsbfsCall { call: self, outcome }
    }
}

impl RunningUsbfsCall {
    /// Its outcome, if it has ended.
    pub fn poll(&self) -> Option<UsbfsCallResult> {
        match self.outcome.try_recv() {
            Ok(outcome) => Some(outcome),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => Some(UsbfsCallResult::of(Err(UrbStatus::Other))),
        }
    }

    /// Waits for its outcome; `None` if it takes longer than `time_max`.
    pub fn wait(&self, time_max: Duration) -> Option<UsbfsCallResult> {
        match self.outcome.recv_timeout(time_max) {
            Ok(outcome) => Some(outcome),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => Some(UsbfsCallResult::of(Err(UrbStatus::Other))),
        }
    }
}

impl UsbfsCallResult {
    fn of(result: Result<(), UrbStatus>) -> Self {
        Self { result, claimed: None }
    }
}

/// Claims interfaces one after the other; returns those it has claimed, and why not all.
pub fn claim(calls: &impl UsbfsBlockingCalls, interfaces: &[u8]) -> (Vec<u8>, Result<(), UsbOpenError>) {
    let mut claimed = Vec::new();
    for &interface in interfaces {
        if let Err(error) = calls.claim(interface) {
            let error = match error.kind() {
                io::ErrorKind::ResourceBusy => UsbOpenError::Busy { interface },
                _ => UsbOpenError::of("taking it from its driver", error),
            };
            return (claimed, Err(error));
        }
        claimed.push(interface);
    }
    (claimed, Ok(()))
}

/// Releases the interfaces `claimed`. One that is not claimed any more is no error.
pub fn release(calls: &impl UsbfsBlockingCalls, claimed: &[u8]) {
    for &interface in claimed {
        // An interface that is not claimed any more was released already: the device was unplugged, or another program
        // configured it.
        let _ = calls.release(interface);
    }
}
