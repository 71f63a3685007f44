//! The names of figures in a report.

use crate::contest::ContestResult;

/// `64 B`, `4 KiB`, `1 MiB`.
pub fn size(bytes: usize) -> String {
    match bytes {
        0..1024 => format!("{bytes} B"),
        1024..0x10_0000 => format!("{} KiB", bytes / 1024),
        _ => format!("{} MiB", bytes >> 20),
    }
}

/// The p50 and p99 of a side over all rounds.
pub fn latencies(contest: &ContestResult, side: usize) -> String {
    let sum = contest.sum(side);
    format!("p50 {:.1} µs, p99 {:.1} µs", sum.latency_us(50.0), sum.latency_us(99.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    pub fn sizes_are_named_in_the_unit_that_fits() {
        assert_eq!([64, 4096, 65536, 1 << 20].map(size), ["64 B", "4 KiB", "64 KiB", "1 MiB"]);
    }
}
