//! The intervals of a cycle and the free time of each.

use super::request::EndpointPlacement;

/// Interval `f` of a cycle has `free[f]` picoseconds left.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct IntervalBins {
    free: Vec<u64>,
}

/// Time in every `every`-th interval from `start` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct IntervalSlot {
    pub(super) start: u32,
    pub(super) every: u32,
    pub(super) packets: u32,
    pub(super) time_ps: u64,
}

impl IntervalSlot {
    pub(super) fn placement(self, id: u32) -> EndpointPlacement {
        EndpointPlacement { id, start: self.start, every: self.every, packets: self.packets, time_ps: self.time_ps }
    }
}

impl IntervalBins {
    pub(super) fn new(count: u32, capacity_ps: u64) -> Self {
        Self { free: vec![capacity_ps; count as usize] }
    }

    pub(super) fn count(&self) -> u32 {
        self.free.len() as u32
    }

    pub(super) fn free_ps(&self, interval: u32) -> u64 {
        self.free[interval as usize]
    }

    /// The free time in the fullest interval of a class.
    pub(super) fn least_free_ps(&self, start: u32, every: u32) -> u64 {
        let class = self.free.iter().skip(start as usize).step_by(every as usize);
        class.copied().min().unwrap_or(0)
    }

    /// Takes the slot, or changes nothing and returns false.
    pub(super) fn take(&mut self, slot: &IntervalSlot) -> bool {
        if slot.every > self.count() || self.least_free_ps(slot.start, slot.every) < slot.time_ps {
            return false;
        }
        for free in self.class(slot) {
            *free -= slot.time_ps;
        }
        true
    }

    pub(super) fn give_back(&mut self, slot: &IntervalSlot) {
        for free in self.class(slot) {
            *free += slot.time_ps;
        }
    }

    fn class(&mut self, slot: &IntervalSlot) -> impl Iterator<Item = &mut u64> {
        self.free.iter_mut().skip(slot.start as usize).step_by(slot.every as usize)
    }
}
