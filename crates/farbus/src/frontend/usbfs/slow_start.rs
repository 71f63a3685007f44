//! Says what is waited for before the program begins, if that takes long.

use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

use tracing::warn;

/// A wait of this length is logged.
const SLOW_AFTER: Duration = Duration::from_secs(2);

/// A wait that is under way; it ends when this is dropped.
pub struct SlowStart {
    _until: Sender<()>,
}

impl SlowStart {
    /// Begins a wait for `what`: a device, and what it is to do.
    pub fn of(what: String) -> Self {
        let (until, ends) = channel::<()>();
        thread::spawn(move || {
            if let Err(RecvTimeoutError::Timeout) = ends.recv_timeout(SLOW_AFTER) {
                warn!("no answer for {} s, still waiting for {what}", SLOW_AFTER.as_secs());
            }
        });
        Self { _until: until }
    }
}
