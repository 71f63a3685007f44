//! Has this machine's file systems write out what they hold, as far as the kernel knows of it.

use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use tracing::{info, warn};

/// How long file systems may take.
const TIME_MAX: Duration = Duration::from_secs(30);
/// How long before the end of a lease they write out once more: a link may be slow.
const ONCE_MORE: Duration = Duration::from_secs(10);
/// How often the thread looks whether the device is still here.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// Has file systems write out what they hold. Returns whether they did within `time_max`.
pub fn write_out_file_systems(time_max: Duration) -> bool {
    let (written, wait) = mpsc::channel();
    let begun = thread::Builder::new().name("sync".into()).spawn(move || {
        rustix::fs::sync();
        // Nobody may wait any more.
        let _ = written.send(());
    });
    begun.is_ok() && wait.recv_timeout(time_max).is_ok()
}

/// Has file systems write out what they hold, now and [`ONCE_MORE`] before the end of a lease, which is `left` away, on
/// a thread of its own. `is_over`: whether the device is not here any more.
pub fn write_out_before_the_end(left: Duration, is_over: impl Fn() -> bool + Send + 'static) {
    let end = Instant::now() + left;
    let run = move || {
        let write_out = || match write_out_file_systems(TIME_MAX) {
            true => info!("the file systems of this machine have written out what they held, for the end of a lease"),
            false => warn!("file systems have not written everything out in time, and a lease ends soon"),
        };
        write_out();
        while Instant::now() + ONCE_MORE < end {
            if is_over() {
                return;
            }
            thread::sleep(LOOK_AGAIN);
        }
        if left > ONCE_MORE && !is_over() {
            write_out();
        }
    };
    if let Err(error) = thread::Builder::new().name("lease-ends".into()).spawn(run) {
        warn!(%error, "nothing is written out for the end of a lease: unmount the device, or extend the lease");
    }
}
