//! Counters of an engine, which other threads may read while it runs.

use std::sync::atomic::{AtomicU64, Ordering};

use farbus_control::session::Readings;
use farbus_session::ExporterCounters;

/// Counters of one running session. The engine writes them once a turn; any thread may read them.
#[derive(Debug, Default)]
pub struct EngineMeters {
    values: [AtomicU64; EngineMeters::COUNT],
}

/// The engine's counts of its system calls.
#[derive(Clone, Copy, Debug, Default)]
pub struct SyscallCounts {
    /// Calls that received.
    pub receive: u64,
    /// Calls that sent.
    pub send: u64,
    /// Calls that waited.
    pub wait: u64,
}

impl EngineMeters {
    const COUNT: usize = 10;

    /// Publishes the counters of the engine.
    pub fn publish(&self, counters: ExporterCounters, calls: SyscallCounts) {
        let now = [
            counters.urbs,
            counters.bytes_in,
            counters.bytes_out,
            counters.unlinked,
            counters.no_credit,
            counters.resets,
            counters.lost,
            calls.receive,
            calls.send,
            calls.wait,
        ];
        for (value, now) in self.values.iter().zip(now) {
            value.store(now, Ordering::Relaxed);
        }
    }

    /// Adds one answered request that moved so many bytes from the device and to it. For a session, whose engine
    /// publishes no counters of single devices. The thread of that engine alone writes these counters, so none of them
    /// needs a locked addition.
    pub fn add_request(&self, bytes_in: u64, bytes_out: u64) {
        for (value, more) in self.values.iter().zip([1, bytes_in, bytes_out]) {
            value.store(value.load(Ordering::Relaxed).wrapping_add(more), Ordering::Relaxed);
        }
    }

    /// Reads all counters.
    pub fn read(&self) -> Readings {
        let [urbs, bytes_in, bytes_out, unlinked, no_credit, resets, lost, receive_calls, send_calls, wait_calls] =
            std::array::from_fn(|at| self.values[at].load(Ordering::Relaxed));
        Readings { urbs, bytes_in, bytes_out, unlinked, no_credit, resets, lost, receive_calls, send_calls, wait_calls }
    }
}
