//! A file or block device of this machine, as a block device that does not stop its engine while it becomes durable.
//!
//! Reads and writes go to the page cache and are answered at once. Making data durable takes milliseconds to seconds: a
//! thread does it.

use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::{self, JoinHandle};

use farbus_io_linux::store::FileStore;
use farbus_io_net::link::{EpollSet, ThreadWaker};
use farbus_model::{
    BlockCompletion, BlockDevice, BlockInFlight, BlockInfo, BlockOp, BlockRequest, BlockStore, BufferPool,
    CompletionQueue, Instant, Payload, ReadinessSource, StoreDevice, StoreError,
};
use farbus_session::ProtocolViolation;

/// Why a disk cannot be restored.
pub struct DiskRestoreError(pub(crate) io::Error);

impl From<io::Error> for DiskRestoreError {
    fn from(error: io::Error) -> Self {
        Self(error)
    }
}

impl From<ProtocolViolation> for DiskRestoreError {
    fn from(reject: ProtocolViolation) -> Self {
        Self(io::Error::new(io::ErrorKind::InvalidData, reject.to_string()))
    }
}

/// A request that waits until everything written is durable.
type CompletedFlush = (BlockInFlight, Result<(), StoreError>);

/// A file or block device of this machine.
pub struct LocalDisk {
    device: StoreDevice<FileStore>,
    /// Another open descriptor of the disk's medium, for its path and its losses; `device` owns the one for requests.
    store: FileStore,
    to_flush: Option<Sender<BlockInFlight>>,
    flushed: Receiver<CompletedFlush>,
    flusher: Option<JoinHandle<()>>,
    wake: Arc<ThreadWaker>,
    /// What wakes the engine: flushes that ended, and `also`.
    all: EpollSet,
    readiness: ReadinessSource,
}

impl LocalDisk {
    /// A device over `store` with blocks of `block_bytes`. Its readiness covers `also`, too.
    ///
    /// # Errors
    /// The system has no more threads or descriptors.
    pub fn new(store: FileStore, block_bytes: u32, also: &ThreadWaker) -> io::Result<Self> {
        let (mut second, third) = (store.try_clone()?, store.try_clone()?);
        let (wake, all) = (Arc::new(ThreadWaker::new()?), EpollSet::new()?);
        all.watch(wake.as_fd(), false)?;
        all.watch(also.as_fd(), false)?;
        let (to_flush, waiting) = mpsc::channel::<BlockInFlight>();
        let (answer, flushed) = mpsc::channel::<CompletedFlush>();
        let rung = Arc::clone(&wake);
        let flusher = thread::Builder::new().name("disk-flush".into()).spawn(move || {
            for request in waiting {
                let result = second.flush();
                // The device keeps its end until this thread has ended.
                drop(answer.send((request, result)));
                rung.wake();
            }
        })?;
        let readiness = all.readiness();
        let device = StoreDevice::new(store).with_blocks(block_bytes);
        let (to_flush, flusher) = (Some(to_flush), Some(flusher));
        Ok(Self { device, store: third, to_flush, flushed, flusher, wake, all, readiness })
    }

    fn flush(&self, request: BlockInFlight, done: &mut CompletionQueue<BlockCompletion>) {
        let sent = match &self.to_flush {
            Some(to_flush) => to_flush.send(request).map_err(|mpsc::SendError(request)| request),
            None => Err(request),
        };
        if let Err(request) = sent {
            done.push(request.fail(StoreError::Medium));
        }
    }
}

impl BlockDevice for LocalDisk {
    fn info(&self) -> &BlockInfo {
        self.device.info()
    }

    fn submit(&mut self, now: Instant, mut request: BlockInFlight, done: &mut CompletionQueue<BlockCompletion>) {
        if request.op == BlockOp::Flush {
            return self.flush(request, done);
        }
        if !request.is_durable {
            return self.device.submit(now, request, done);
        }
        // Written first, then made durable.
        let change = BlockRequest { is_durable: false, payload: request.take_payload(), ..(*request).clone() };
        let mut changed = CompletionQueue::new(BufferPool::new(0));
        self.device.submit(now, change.launch(), &mut changed);
        match changed.pop().map(|answer| answer.result) {
            Some(Ok(())) => self.flush(request, done),
            Some(Err(error)) => done.push(request.fail(error)),
            None => done.push(request.fail(StoreError::Medium)),
        }
    }

    fn readiness(&self) -> Option<&ReadinessSource> {
        Some(&self.readiness)
    }

    fn handle_ready(&mut self, _: Instant, done: &mut CompletionQueue<BlockCompletion>) {
        self.wake.clear();
        while let Ok((request, result)) = self.flushed.try_recv() {
            done.push(match result {
                Ok(()) => request.answer(Payload::Empty),
                Err(error) => request.fail(error),
            });
        }
    }

    fn is_gone(&self) -> bool {
        self.device.is_gone()
    }

    /// Nobody else writes to it: it is locked.
    fn epoch(&self) -> Option<u64> {
        Some(0)
    }

    /// Its path. Another process continues with its descriptor, unless that could promise again what was lost.
    fn save(&mut self, _: Instant) -> Option<Vec<u8>> {
        self.store.loss().is_none().then(|| self.store.path().as_os_str().as_bytes().to_vec())
    }
}

impl Drop for LocalDisk {
    fn drop(&mut self) {
        self.to_flush = None;
        if let Some(flusher) = self.flusher.take() {
            // A panic was reported by the thread.
            let _ = flusher.join();
        }
        // Who asked for these is gone.
        self.flushed.try_iter().for_each(|(request, _)| drop(request.recall()));
        self.all.forget(self.wake.as_fd());
    }
}
