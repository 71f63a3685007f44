//! Watches the flush at the end of a server: says that it is waited for, and cuts off a device that does not answer.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

use tracing::info;

use crate::importer::port::DeviceCutter;

/// After this long the wait is logged.
const SLOW_AFTER: Duration = Duration::from_secs(2);

/// A flush that is under way; dropping this ends the watch.
pub struct FlushWatch {
    _until: Sender<()>,
    has_cut: Arc<AtomicBool>,
}

impl FlushWatch {
    /// Begins. After `time_max`, `cutter` makes the device fail its requests.
    pub fn begin(time_max: Duration, cutter: Option<DeviceCutter>) -> Self {
        let (until, ends) = channel::<()>();
        let has_cut = Arc::<AtomicBool>::default();
        let watch = Self { _until: until, has_cut: Arc::clone(&has_cut) };
        let is_late = move |after: Duration| ends.recv_timeout(after) == Err(RecvTimeoutError::Timeout);
        // Without the thread, a device that blocks its server is waited for as long as it says.
        let _ = thread::Builder::new().name("flush".into()).stack_size(256 << 10).spawn(move || {
            let slow_after = SLOW_AFTER.min(time_max);
            if !is_late(slow_after) {
                return;
            }
            info!("waiting up to {} s for the last writes to become durable", time_max.as_secs());
            if is_late(time_max - slow_after)
                && let Some(cutter) = cutter
            {
                has_cut.store(true, Ordering::Release);
                cutter.cut();
            }
        });
        watch
    }

    /// Whether the device was cut off.
    pub fn has_cut(&self) -> bool {
        self.has_cut.load(Ordering::Acquire)
    }
}
