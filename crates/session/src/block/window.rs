//! How many bytes a layer has under way to a far device: as many as the path carries in a round trip.

use std::sync::Arc;
use std::time::Duration;

use farbus_model::Instant;
use farbus_model::budget::{MemoryAccount, MemoryCharge};

/// A window of so many bytes needs no more memory than a layer may always use: beyond, it is taken from the account of
/// all windows of the process.
pub const WINDOW_BYTES_OWN: u64 = 16 << 20;
/// The largest window, bytes: what passes in 50 ms at 1.3 GB/s, and as much as one device may have under way.
pub const WINDOW_BYTES_MAX: u64 = farbus_model::limits::CREDIT_BYTES_MAX as u64;
/// How much longer than twice the quickest a request may take before the link counts as full. Allows for scheduling
/// delays on a busy machine. Where the path has no delay of its own, this bounds the window: to what the link carries
/// in the time of two such requests. A larger window brings nothing there, and its data leaves the processor's caches.
const SLACK: Duration = Duration::from_millis(3);

/// How long requests of a similar size take on a path.
#[derive(Clone, Copy, Debug)]
pub(super) struct PathPace {
    quickest: Duration,
    latest: Duration,
}

impl PathPace {
    pub const UNKNOWN: Self = Self { quickest: Duration::MAX, latest: Duration::ZERO };

    /// A request that was submitted at `asked_at` is complete.
    pub fn note(&mut self, asked_at: Instant, now: Instant) {
        self.latest = now - asked_at;
        self.quickest = self.quickest.min(self.latest);
    }

    /// Whether the latest request waited behind others.
    fn is_slow(&self) -> bool {
        self.latest > self.quickest.saturating_mul(2).saturating_add(SLACK)
    }
}

/// Whether the path carries as many bytes as the window has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WindowTrial {
    /// Nobody has used all of it yet.
    Untried,
    /// It does not if this request, the last that the window let in, waits behind others.
    Trying(u64),
    Passed,
}

/// The bytes that may be under way. When its user has to wait, the window is tried: if the last request that it let in
/// waited behind others, the link is full, and the window gets its earlier size back, because a larger one only delays
/// other traffic and holds memory at both ends. If not, it grows to four times its size, and to twice once the link was
/// full.
#[derive(Debug)]
pub(super) struct FlightWindow {
    bytes: u64,
    /// Bytes that may be under way now.before the last growth.
    earlier_bytes: u64,
    trial: WindowTrial,
    /// Whether a trial has failed.
    was_full: bool,
    /// What the growths beyond [`WINDOW_BYTES_OWN`] took from the account.
    taken: Vec<MemoryCharge>,
}

impl FlightWindow {
    /// A window of so many bytes, at most [`WINDOW_BYTES_OWN`].
    pub fn new(bytes: u64) -> Self {
        Self { bytes, earlier_bytes: bytes, trial: WindowTrial::Untried, was_full: false, taken: Vec::new() }
    }

    /// Bytes that may be under way now.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether it took memory from the account.
    pub fn has_taken(&self) -> bool {
        !self.taken.is_empty()
    }

    /// Begins with so many bytes, at most [`WINDOW_BYTES_OWN`], if nobody has used it yet.
    pub fn begin_with(&mut self, bytes: u64) {
        if self.trial == WindowTrial::Untried && self.earlier_bytes == self.bytes && !self.was_full {
            (self.bytes, self.earlier_bytes) = (bytes, bytes);
        }
    }

    /// Grows if the path carries all of it and `account` has the memory. Returns whether it grew.
    pub fn grow(&mut self, account: Option<&Arc<MemoryAccount>>) -> bool {
        let factors: &[u64] = if self.was_full { &[2] } else { &[4, 2] };
        self.trial == WindowTrial::Passed && factors.iter().any(|factor| self.grow_to(factor * self.bytes, account))
    }

    fn grow_to(&mut self, bytes: u64, account: Option<&Arc<MemoryAccount>>) -> bool {
        let bytes = bytes.min(if account.is_some() { WINDOW_BYTES_MAX } else { WINDOW_BYTES_OWN });
        if bytes <= self.bytes {
            return false;
        }
        if let Some(account) = account.filter(|_| bytes > WINDOW_BYTES_OWN) {
            let Ok(taken) = account.take((bytes - self.bytes.max(WINDOW_BYTES_OWN)) as usize) else { return false };
            self.taken.push(taken);
        }
        (self.bytes, self.earlier_bytes, self.trial) = (bytes, self.bytes, WindowTrial::Untried);
        true
    }

    /// All of the window is under way; `last` is the number of the last request that it let in. Numbers rise.
    pub fn note_full(&mut self, last: u64) {
        if self.trial == WindowTrial::Untried {
            self.trial = WindowTrial::Trying(last);
        }
    }

    /// The request with this number is complete; its time was noted in `pace`.
    pub fn complete(&mut self, number: u64, pace: PathPace) {
        match self.trial {
            WindowTrial::Trying(last) if last <= number && pace.is_slow() => {
                if self.bytes > WINDOW_BYTES_OWN {
                    self.taken.pop();
                }
                (self.bytes, self.trial, self.was_full) = (self.earlier_bytes, WindowTrial::Untried, true);
            }
            WindowTrial::Trying(last) if last <= number => self.trial = WindowTrial::Passed,
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farbus_model::budget::MemoryBudget;

    const MIB: u64 = 1 << 20;
    const TRIP: Duration = Duration::from_millis(50);

    /// The sizes of a window whose user always waits, on a path of 50 ms with this rate, bytes a second.
    fn sizes(rate: u64, memory_bytes: usize) -> Vec<u64> {
        let account = MemoryAccount::of_process(MemoryBudget { process_bytes: memory_bytes, ..MemoryBudget::DEFAULT });
        let (mut window, mut pace, mut sizes) = (FlightWindow::new(MIB / 2), PathPace::UNKNOWN, Vec::new());
        pace.note(Instant::ZERO, Instant::ZERO + TRIP);
        for number in 0..12 {
            window.grow(Some(&account));
            window.note_full(number);
            sizes.push(window.bytes());
            let queued_bytes = window.bytes().saturating_sub((rate as f64 * TRIP.as_secs_f64()) as u64);
            let queued = Duration::from_secs_f64(queued_bytes as f64 / rate as f64);
            pace.note(Instant::ZERO, Instant::ZERO + TRIP + queued);
            window.complete(number, pace);
        }
        let beyond = window.bytes().saturating_sub(WINDOW_BYTES_OWN);
        assert_eq!(account.used() as u64, beyond, "it has what it is larger than its own");
        drop(window);
        assert_eq!(account.used(), 0);
        sizes
    }

    #[test]
    fn window_has_four_times_its_size_each_round_trip_until_the_path_is_full() {
        let fast = sizes(10_000 * MIB, 256 << 20);
        assert_eq!(fast[1..6], [2, 8, 32, 64, 64].map(|mib| mib * MIB));
        for mib_per_second in [10, 50, 100, 400] {
            let all = sizes(mib_per_second * MIB, 256 << 20);
            let round_trip_bytes = (mib_per_second * MIB) / 20;
            let last = all[all.len() - 2..].iter().max().unwrap() / 2;
            assert!(last <= (2 * round_trip_bytes).max(MIB / 2), "{mib_per_second}: {all:?}");
            assert!(4 * last >= round_trip_bytes, "{mib_per_second}: {all:?}");
        }
    }

    #[test]
    fn window_is_no_larger_than_its_own_where_all_windows_together_have_no_memory() {
        assert_eq!(sizes(10_000 * MIB, 0).iter().max(), Some(&WINDOW_BYTES_OWN));
        assert_eq!(sizes(10_000 * MIB, 20 << 20).iter().max(), Some(&(32 * MIB)));
    }
}
