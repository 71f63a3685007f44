//! One open of a node.

use std::collections::VecDeque;

use super::command::{CallId, ReapWaiter, UsbfsAnswer};
use super::transfer::UnreapedUrb;

/// What `poll` says of an open (`usbdev_poll`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UsbfsPollEvents {
    /// A URB can be reaped: POLLOUT and POLLWRNORM.
    pub can_reap: bool,
    /// The device is gone: POLLHUP and POLLERR.
    pub is_gone: bool,
}

/// One open of a node.
#[derive(Debug)]
pub(super) struct OpenNode {
    /// Whether it may do more than read.
    pub is_writable: bool,
    /// Interfaces that it may claim, a bit each; `None` before USBDEVFS_DROP_PRIVILEGES.
    pub allowed: Option<u64>,
    /// Bulk endpoints on which a transfer failed: those that continue it are refused. A bit for each
    /// [`farbus_model::EpAddr::index`].
    pub failed_bulk: u32,
    /// In the order in which they finished.
    finished: VecDeque<UnreapedUrb>,
    reapers: VecDeque<ReapWaiter>,
    /// What `poll` said last, so that a change is told once.
    told_events: UsbfsPollEvents,
}

impl OpenNode {
    pub fn new(is_writable: bool) -> Self {
        Self {
            is_writable,
            allowed: None,
            failed_bulk: 0,
            finished: VecDeque::new(),
            reapers: VecDeque::new(),
            told_events: UsbfsPollEvents::default(),
        }
    }

    /// A URB of this open is finished: the first that waits gets it. Returns the answer, and the bytes that are free.
    pub fn finish(&mut self, finished: UnreapedUrb) -> Option<(UsbfsAnswer, u64)> {
        match self.reapers.pop_front() {
            Some(reaper) => Some(finished.reaped_by(reaper)),
            None => {
                self.finished.push_back(finished);
                None
            }
        }
    }

    /// The oldest finished URB, for this reaper. Returns the answer, and the bytes that are free.
    pub fn reap(&mut self, reaper: ReapWaiter) -> Option<(UsbfsAnswer, u64)> {
        self.finished.pop_front().map(|finished| finished.reaped_by(reaper))
    }

    pub fn wait(&mut self, reaper: ReapWaiter) {
        self.reapers.push_back(reaper);
    }

    /// Ends the waiting of a reaper; `false` if it does not wait.
    pub fn stop_waiting(&mut self, id: CallId) -> bool {
        let before = self.reapers.len();
        self.reapers.retain(|reaper| reaper.id != id);
        self.reapers.len() < before
    }

    /// All that wait, when nothing can come any more.
    pub fn take_reapers(&mut self) -> impl Iterator<Item = CallId> {
        std::mem::take(&mut self.reapers).into_iter().map(|reaper| reaper.id)
    }

    /// Bytes of finished URBs that nobody reaped.
    pub fn finished_bytes(&self) -> u64 {
        self.finished.iter().map(UnreapedUrb::bytes).sum()
    }

    pub fn events(&self, is_gone: bool) -> UsbfsPollEvents {
        UsbfsPollEvents { can_reap: self.is_writable && !self.finished.is_empty(), is_gone }
    }

    /// Whether `poll` would say something new since the last call.
    pub fn take_change(&mut self, is_gone: bool) -> bool {
        let events = self.events(is_gone);
        std::mem::replace(&mut self.told_events, events) != events
    }
}
