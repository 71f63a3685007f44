//! Keeps the server on its caller's processor while that is quicker: a program that moves one small transfer at a time
//! waits for each answer, and waking a thread of another processor takes longer than the answer itself.

use std::io;
use std::time::{Duration, Instant};

use farbus_io_linux::sys::processor::{AllowedProcessors, last_of};
use tracing::debug;

/// So many commands in a row decide.
const WINDOW: u32 = 64;

/// They came one after the other, without a pause.
const WINDOW_TIME_MAX: Duration = Duration::from_millis(64);

/// Of all transfers of a device under way, bytes with what a URB costs: more are worth a processor of their own.
const SMALL_BYTES_MAX: u64 = 4096;

/// Where the server's thread runs.
pub struct CallerAffinity {
    processors: AllowedProcessors,
    /// The thread that sent all commands since then, and how many.
    caller: u32,
    since: Instant,
    count: u32,
    kept_to: Option<usize>,
}

impl CallerAffinity {
    /// For a server's thread that may run where the calling thread may.
    ///
    /// # Errors
    /// The system's error.
    pub fn new() -> io::Result<Self> {
        Ok(Self {
            processors: AllowedProcessors::of_this_thread()?,
            caller: 0,
            since: Instant::now(),
            count: 0,
            kept_to: None,
        })
    }

    /// A thread sent a command to a device whose transfers hold these bytes.
    pub fn note(&mut self, caller: u32, bytes: u64) {
        if caller != self.caller || bytes > SMALL_BYTES_MAX {
            (self.caller, self.count) = (caller, 0);
            self.release();
        }
        if self.count == 0 {
            self.since = Instant::now();
        }
        self.count += 1;
        if self.count < WINDOW {
            return;
        }
        self.count = 0;
        if self.since.elapsed() > WINDOW_TIME_MAX {
            return self.release();
        }
        let Some(processor) = last_of(caller).filter(|processor| self.kept_to != Some(*processor)) else { return };
        match self.processors.keep_to(processor) {
            Ok(()) => self.kept_to = Some(processor),
            Err(error) => debug!(%error, processor, "the server does not follow its caller"),
        }
    }

    /// The thread, and those that it starts, may run on any processor.
    pub fn release(&mut self) {
        if self.kept_to.take().is_some()
            && let Err(error) = self.processors.use_all()
        {
            debug!(%error, "the server keeps to one processor");
        }
    }
}
