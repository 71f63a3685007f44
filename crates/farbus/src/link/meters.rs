//! What an engine counts, where others may read it while it runs.

use std::sync::atomic::{AtomicU64, Ordering};

use farbus_session::Counters;
use serde::{Deserialize, Serialize};

/// Counters of one running session. The engine writes them once a turn; anybody reads them.
#[derive(Debug, Default)]
pub struct Meters {
    values: [AtomicU64; Meters::COUNT],
}

/// What they said at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Readings {
    /// Requests answered.
    pub urbs: u64,
    /// Bytes from the device.
    pub bytes_in: u64,
    /// Bytes to the device.
    pub bytes_out: u64,
    /// Requests withdrawn by the client.
    pub unlinked: u64,
    /// Requests refused for lack of credit.
    pub no_credit: u64,
    /// Port resets seen.
    pub resets: u64,
    /// Requests a device dropped.
    pub lost: u64,
    /// System calls that received.
    pub receive_calls: u64,
    /// System calls that sent.
    pub send_calls: u64,
    /// System calls that waited.
    pub wait_calls: u64,
}

/// The engine's own counts of what it asked of the system.
#[derive(Clone, Copy, Debug, Default)]
pub struct Calls {
    /// Receives.
    pub receive: u64,
    /// Sends.
    pub send: u64,
    /// Waits.
    pub wait: u64,
}

impl Meters {
    const COUNT: usize = 10;

    /// Publishes.
    pub fn publish(&self, counters: Counters, calls: Calls) {
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

    /// Reads.
    pub fn read(&self) -> Readings {
        let [urbs, bytes_in, bytes_out, unlinked, no_credit, resets, lost, receive_calls, send_calls, wait_calls] =
            std::array::from_fn(|at| self.values[at].load(Ordering::Relaxed));
        Readings { urbs, bytes_in, bytes_out, unlinked, no_credit, resets, lost, receive_calls, send_calls, wait_calls }
    }
}
