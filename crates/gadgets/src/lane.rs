//! What joins two ends of a device that different threads serve: a bounded lane each way, and a bell at each end.
//!
//! | who | does | and then |
//! |---|---|---|
//! | a writer | puts something on the lane | rings if the reader said that it waits |
//! | a reader that finds nothing | says that it waits, and looks once more | its request waits, until its bell |
//! | a reader | takes something off | rings if the writer said that it waits for room |
//! | a writer that finds no room | says that it waits, and looks once more | its request waits, until its bell |
//!
//! Who looks once more after saying so cannot be missed: the other looks for the word after it did its part.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use farbus_model::Readiness;

/// Wakes the thread that serves an end.
pub struct Bell {
    /// What that thread waits on.
    pub readiness: Readiness,
    /// Rings it, from any thread.
    pub ring: Box<dyn Fn() + Send + Sync>,
    /// It was heard.
    pub hush: Box<dyn Fn() + Send + Sync>,
}

impl fmt::Debug for Bell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Bell")
    }
}

/// What both ends of a lane know.
#[derive(Debug)]
struct Gauge {
    bytes: AtomicUsize,
    reader_waits: AtomicBool,
    writer_waits: AtomicBool,
}

/// A lane's near end.
#[derive(Debug)]
pub struct Writer {
    lane: SyncSender<Vec<u8>>,
    gauge: Arc<Gauge>,
    bytes_max: usize,
}

/// Its far end.
#[derive(Debug)]
pub struct Reader {
    lane: Receiver<Vec<u8>>,
    gauge: Arc<Gauge>,
}

/// What a transfer counts besides its bytes, so that empty ones fill a lane too.
const OVERHEAD_BYTES: usize = 256;

/// A lane that is full with `bytes_max` bytes, and takes up to `burst` transfers that were begun before.
pub fn lane(bytes_max: usize, burst: usize) -> (Writer, Reader) {
    let (sender, receiver) = sync_channel(bytes_max / OVERHEAD_BYTES + burst);
    let gauge = Gauge {
        bytes: AtomicUsize::new(0),
        reader_waits: AtomicBool::new(false),
        writer_waits: AtomicBool::new(false),
    };
    let gauge = Arc::new(gauge);
    (Writer { lane: sender, gauge: Arc::clone(&gauge), bytes_max }, Reader { lane: receiver, gauge })
}

impl Writer {
    /// Whether nothing more may be put on the lane; if so, the writer's bell rings when that changes.
    pub fn is_full(&self) -> bool {
        let is_full = || self.gauge.bytes.load(Ordering::SeqCst) >= self.bytes_max;
        if !is_full() {
            return false;
        }
        self.gauge.writer_waits.store(true, Ordering::SeqCst);
        is_full()
    }

    /// Puts a transfer on the lane that leads to `far`. Says whether there was a place.
    pub fn put(&self, transfer: Vec<u8>, far: &Bell) -> bool {
        let bytes = transfer.len() + OVERHEAD_BYTES;
        self.gauge.bytes.fetch_add(bytes, Ordering::SeqCst);
        let is_put = self.lane.try_send(transfer).is_ok();
        if !is_put {
            self.gauge.bytes.fetch_sub(bytes, Ordering::SeqCst);
        } else if self.gauge.reader_waits.swap(false, Ordering::SeqCst) {
            (far.ring)();
        }
        is_put
    }
}

impl Reader {
    /// Takes the next transfer off the lane that comes from `far`; without one, the reader's bell rings when there is.
    pub fn take(&self, far: &Bell) -> Option<Vec<u8>> {
        let transfer = self.lane.try_recv().ok().or_else(|| {
            self.gauge.reader_waits.store(true, Ordering::SeqCst);
            self.lane.try_recv().ok()
        })?;
        self.gauge.bytes.fetch_sub(transfer.len() + OVERHEAD_BYTES, Ordering::SeqCst);
        if self.gauge.writer_waits.swap(false, Ordering::SeqCst) {
            (far.ring)();
        }
        Some(transfer)
    }

    /// Throws away what is on the lane.
    pub fn clear(&self, far: &Bell) {
        while self.take(far).is_some() {}
    }
}
