//! Lanes between two ends of a device that different threads serve: a bounded queue each way, and a bell at each end.
//!
//! | who | does | and then |
//! |---|---|---|
//! | a writer | puts something on the lane | rings if the reader said that it waits |
//! | a reader that finds nothing | says that it waits | its request waits, until its bell |
//! | a reader | takes something off | rings if the writer said that it waits for space |
//! | a writer that finds no space | says that it waits | its request waits, until its bell |
//! | a reader that is saved for another process | blocks the lane until it takes a transfer again | the same |
//!
//! A lane is locked only while a transfer is put on it or taken off: neither thread waits for the other.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use farbus_model::ReadinessSource;

/// Wakes the thread that serves an end.
pub struct GadgetWaker {
    /// What that thread waits on.
    pub readiness: ReadinessSource,
    /// Rings the bell, from any thread.
    pub ring: Box<dyn Fn() + Send + Sync>,
    /// Resets the bell, after the thread woke up.
    pub hush: Box<dyn Fn() + Send + Sync>,
}

impl fmt::Debug for GadgetWaker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Bell")
    }
}

/// The state that both ends of a lane share.
#[derive(Debug, Default)]
struct TransferQueueInner {
    transfers: VecDeque<Vec<u8>>,
    bytes: usize,
    reader_waits: bool,
    writer_waits: bool,
    is_held: bool,
}

/// A lane's near end.
#[derive(Debug)]
pub struct TransferQueueWriter {
    inside: Arc<Mutex<TransferQueueInner>>,
    bytes_max: usize,
}

/// A lane's far end.
#[derive(Debug)]
pub struct TransferQueueReader(Arc<Mutex<TransferQueueInner>>);

/// What a transfer counts besides its bytes, so that empty ones fill a lane too.
const OVERHEAD_BYTES: usize = 256;

/// Makes a lane that is full with `bytes_max` bytes; a transfer that was begun before is taken as a whole.
pub fn lane(bytes_max: usize) -> (TransferQueueWriter, TransferQueueReader) {
    let inside = Arc::new(Mutex::new(TransferQueueInner::default()));
    (TransferQueueWriter { inside: Arc::clone(&inside), bytes_max }, TransferQueueReader(inside))
}

/// A panic leaves no state half changed, so a poisoned lock may be used.
fn look(inside: &Mutex<TransferQueueInner>) -> MutexGuard<'_, TransferQueueInner> {
    inside.lock().unwrap_or_else(PoisonError::into_inner)
}

impl TransferQueueWriter {
    /// Whether the lane is full; if so, the writer's bell rings when that changes.
    pub fn is_full(&self) -> bool {
        let mut inside = look(&self.inside);
        let is_full = inside.bytes >= self.bytes_max || inside.is_held;
        inside.writer_waits |= is_full;
        is_full
    }

    /// Puts a transfer on the lane; `far` is the reader's bell.
    ///
    /// # Errors
    /// The transfer, if the reader holds the lane; the writer's bell rings when it no longer does.
    pub fn put(&self, transfer: Vec<u8>, far: &GadgetWaker) -> Result<(), Vec<u8>> {
        let mut inside = look(&self.inside);
        if inside.is_held {
            inside.writer_waits = true;
            return Err(transfer);
        }
        inside.bytes += transfer.len() + OVERHEAD_BYTES;
        inside.transfers.push_back(transfer);
        let reader_waits = std::mem::take(&mut inside.reader_waits);
        drop(inside);
        if reader_waits {
            (far.ring)();
        }
        Ok(())
    }
}

impl TransferQueueReader {
    /// Takes the next transfer off the lane; `far` is the writer's bell. If there is none, the reader's bell rings when
    /// one comes.
    pub fn take(&self, far: &GadgetWaker) -> Option<Vec<u8>> {
        let mut inside = look(&self.0);
        let was_held = std::mem::take(&mut inside.is_held);
        let transfer = inside.transfers.pop_front();
        match &transfer {
            Some(transfer) => inside.bytes -= transfer.len() + OVERHEAD_BYTES,
            None => inside.reader_waits = true,
        }
        let writer_waits = (was_held || transfer.is_some()) && std::mem::take(&mut inside.writer_waits);
        drop(inside);
        if writer_waits {
            (far.ring)();
        }
        transfer
    }

    /// Drops what is on the lane.
    pub fn clear(&self, far: &GadgetWaker) {
        while self.take(far).is_some() {}
    }

    /// The transfers on the lane, which stay there; the lane accepts no more until one is taken.
    pub fn hold(&self) -> Vec<Vec<u8>> {
        let mut inside = look(&self.0);
        inside.is_held = true;
        inside.transfers.iter().cloned().collect()
    }

    /// Puts the transfers that another process held on the lane, before all others.
    pub fn restore(&self, held: Vec<Vec<u8>>) {
        let mut inside = look(&self.0);
        inside.bytes += held.iter().map(|transfer| transfer.len() + OVERHEAD_BYTES).sum::<usize>();
        held.into_iter().rev().for_each(|transfer| inside.transfers.push_front(transfer));
    }
}
