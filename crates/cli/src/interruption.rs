//! SIGINT and SIGTERM that come while a command waits for something: it has not got it then, and its end says so.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use farbus_control::failure::FailureKind;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;
use signal_hook::low_level::emulate_default_handler;

use super::CommandFailure;

/// Notes SIGINT and SIGTERM. From now on neither ends the process by itself.
#[derive(Debug)]
pub struct InterruptFlag {
    /// The last that came; 0: none.
    signal: Arc<AtomicUsize>,
    has_come: Arc<AtomicBool>,
}

impl InterruptFlag {
    /// # Errors
    /// The system's error.
    pub fn new() -> Result<Self, CommandFailure> {
        let (signal, has_come) = (Arc::<AtomicUsize>::default(), Arc::<AtomicBool>::default());
        for number in [SIGINT, SIGTERM] {
            // In this order: who sees the flag finds the number.
            flag::register_usize(number, Arc::clone(&signal), number as usize)
                .and_then(|_| flag::register(number, Arc::clone(&has_come)))
                .map_err(CommandFailure::local)?;
        }
        Ok(Self { signal, has_come })
    }

    /// The signal that came, if one did.
    pub fn signal(&self) -> Option<i32> {
        i32::try_from(self.signal.load(Ordering::SeqCst)).ok().filter(|signal| *signal != 0)
    }

    /// Set when a signal has come.
    pub fn flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.has_come)
    }

    /// The failure of what the signal cancelled; a failure with another reason stays what it is.
    pub fn explains(&self, failure: CommandFailure) -> CommandFailure {
        match self.signal() {
            Some(signal) if failure.attribute() == FailureKind::Refused => failure.by_signal(signal),
            _ => failure,
        }
    }
}

/// Ends this process as the signal would have done. Returns if that cannot be: the kernel spares the first process of
/// a container.
pub fn end_by(signal: i32) {
    if !rustix::process::getpid().is_init() {
        let _ = emulate_default_handler(signal);
    }
}
