//! The state that a mount's owner and its serving thread share.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use farbus_io_net::link::ThreadWaker;
use farbus_io_net::saving::{SaveRequester, SavedAttachment};
use farbus_model::StoreError;
use rustix::event::EventfdFlags;

use super::health::MountHealth;

/// The result of a flush: whether written data is durable.
pub(super) type FlushResult = Result<(), StoreError>;

/// One disk, as its owner sees it: its health, and orders to flush or to end. The serving thread alone has the device.
pub(super) struct FuseDiskState {
    /// Set as soon as the device is known to be gone; requests are then refused without asking it.
    lost: AtomicBool,
    /// How many programs have the file open.
    open: AtomicUsize,
    orders: Mutex<FlushQueue>,
    /// Wakes the thread: there is an order, the disk is lost, or a replacement process asks for a snapshot.
    wake: Arc<ThreadWaker>,
    save_requester: SaveRequester<SavedAttachment>,
    /// Whether a replacement process serves it now.
    is_handed_over: AtomicBool,
    health: Mutex<MountHealth>,
    changed: Condvar,
    /// Becomes readable when the health first changes.
    event: OwnedFd,
}

#[derive(Default)]
struct FlushQueue {
    /// Threads that wait for a flush.
    flushes: Vec<SyncSender<FlushResult>>,
    /// The result of the last flush, once the serving thread has ended.
    ended: Option<FlushResult>,
}

impl FuseDiskState {
    pub(super) fn new() -> io::Result<Arc<Self>> {
        let wake = Arc::new(ThreadWaker::new()?);
        Ok(Arc::new(Self {
            lost: AtomicBool::new(false),
            open: AtomicUsize::new(0),
            orders: Mutex::default(),
            save_requester: SaveRequester::new(Arc::clone(&wake)),
            is_handed_over: AtomicBool::new(false),
            wake,
            health: Mutex::new(MountHealth::Serving),
            changed: Condvar::new(),
            event: rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
        }))
    }

    pub(super) fn event(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }

    pub(super) fn health(&self) -> MountHealth {
        *self.health.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the disk's health is `least` or worse, or `patience` has passed; returns its health.
    pub(super) fn wait_for(&self, least: MountHealth, patience: Option<Duration>) -> MountHealth {
        let deadline = patience.map(|p| Instant::now() + p);
        let mut health = self.health.lock().unwrap_or_else(PoisonError::into_inner);
        while *health < least {
            health = match deadline.map(|d| d.saturating_duration_since(Instant::now())) {
                Some(Duration::ZERO) => break,
                Some(left) => self.changed.wait_timeout(health, left).unwrap_or_else(PoisonError::into_inner).0,
                None => self.changed.wait(health).unwrap_or_else(PoisonError::into_inner),
            };
        }
        *health
    }

    /// Makes written data durable. Waits for the device, for `time_max` at most: `None` if it has not answered by then.
    pub(super) fn flush_within(&self, time_max: Option<Duration>) -> Option<FlushResult> {
        let (answer, answered) = sync_channel(1);
        {
            let mut orders = self.orders();
            if let Some(ended) = orders.ended {
                return Some(ended);
            }
            orders.flushes.push(answer);
        }
        self.wake.wake();
        // The serving thread answers every order, at its end at the latest.
        match time_max.map(|time_max| answered.recv_timeout(time_max)) {
            Some(Err(RecvTimeoutError::Timeout)) => None,
            Some(Ok(flushed)) => Some(flushed),
            Some(Err(RecvTimeoutError::Disconnected)) => Some(Err(StoreError::Gone)),
            None => Some(answered.recv().unwrap_or(Err(StoreError::Gone))),
        }
    }

    /// The device is gone, or is to be treated as gone: requests are refused from now on.
    pub(super) fn lose(&self) {
        if !self.lost.swap(true, Ordering::AcqRel) {
            self.worsen(MountHealth::Lost);
        }
        self.wake.wake();
    }

    /// Asks the serving thread for a snapshot.
    pub(super) fn save_requester(&self) -> &SaveRequester<SavedAttachment> {
        &self.save_requester
    }

    pub(super) fn is_handed_over(&self) -> bool {
        self.is_handed_over.load(Ordering::Acquire)
    }

    pub(super) fn open_count(&self) -> usize {
        self.open.load(Ordering::Acquire)
    }

    // ---- for the thread that serves ----

    /// Sets how many programs have the file open.
    pub(super) fn show_open(&self, count: usize) {
        self.open.store(count, Ordering::Release);
    }

    /// Records that a replacement process serves it.
    pub(super) fn hand_over(&self) {
        self.is_handed_over.store(true, Ordering::Release);
        self.end(Ok(()));
    }

    pub(super) fn wake(&self) -> &ThreadWaker {
        &self.wake
    }

    pub(super) fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Acquire)
    }

    pub(super) fn take_flushes(&self) -> Vec<SyncSender<FlushResult>> {
        std::mem::take(&mut self.orders().flushes)
    }

    /// Records that the serving thread ends.
    pub(super) fn end(&self, flushed: FlushResult) {
        let waiting = {
            let mut orders = self.orders();
            orders.ended = Some(flushed);
            std::mem::take(&mut orders.flushes)
        };
        for asker in waiting {
            // The channel has room for its only answer.
            let _ = asker.try_send(flushed);
        }
        self.worsen(MountHealth::Ended);
    }

    fn orders(&self) -> MutexGuard<'_, FlushQueue> {
        self.orders.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn worsen(&self, health: MountHealth) {
        let mut now = self.health.lock().unwrap_or_else(PoisonError::into_inner);
        if *now < health {
            *now = health;
            self.changed.notify_all();
            // Fails only after 2^64 unread events.
            let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
        }
    }
}
