//! Has this machine's file systems write out what they hold, as far as the kernel knows of it.

use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use farbus_io_linux::sys::own_descriptors;
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
        // A file system may lie on a disk that this process shows. If the process is killed while the kernel waits here
        // for that disk, the kernel gives the wait up once nobody has the disk's descriptor any more: not this thread.
        let _ = own_descriptors::enter();
        rustix::fs::sync();
        // Nobody may wait any more.
        let _ = written.send(());
    });
    begun.is_ok() && wait.recv_timeout(time_max).is_ok()
}

/// Has file systems write out before the lease of one device ends.
#[derive(Debug, Default)]
pub struct WriteOut(Option<JoinHandle<()>>);

impl WriteOut {
    /// Has file systems write out what they hold, now and [`ONCE_MORE`] before the end of the lease, which is `left`
    /// away, on a thread of its own. `is_over`: whether the device is not here any more. Returns `false`, and does
    /// nothing, while an earlier call's thread still waits for the end that it was told.
    pub fn before_the_end(&mut self, left: Duration, is_over: impl Fn() -> bool + Send + 'static) -> bool {
        if self.0.as_ref().is_some_and(|thread| !thread.is_finished()) {
            return false;
        }
        let end = Instant::now() + left;
        let run = move || {
            let write_out = || match write_out_file_systems(TIME_MAX) {
                true => info!("the file systems of this machine have written out what they held: a lease ends soon"),
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
        let begun = thread::Builder::new().name("lease-ends".into()).spawn(run);
        self.0 = begun
            .inspect_err(|error| {
                warn!(%error, "nothing is written out for the end of a lease: unmount the device, or extend the lease");
            })
            .ok();
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_exporter_that_warns_again_and_again_has_one_thread() {
        let (over, is_over) = mpsc::channel::<()>();
        let is_over = std::sync::Mutex::new(is_over);
        let mut write_out = WriteOut::default();
        let day = Duration::from_secs(86_400);
        let has_ended = move || is_over.lock().unwrap().try_recv() == Err(mpsc::TryRecvError::Disconnected);
        assert!(write_out.before_the_end(day, has_ended));
        for _ in 0..1000 {
            assert!(!write_out.before_the_end(day, || false));
        }
        drop(over);
        write_out.0.take().unwrap().join().unwrap();
        assert!(write_out.before_the_end(day, || true), "the next warning is heard");
    }
}
