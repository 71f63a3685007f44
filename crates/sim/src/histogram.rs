//! A histogram in microseconds: an hour of round trips does not fit a list.

/// Counts of times, in bins of a microsecond, with exact extremes and moments.
#[derive(Clone, Debug, PartialEq)]
pub struct Histogram {
    counts: Vec<u64>,
    count: u64,
    min_ns: u64,
    max_ns: u64,
    sum_us: f64,
    squares_us: f64,
}

impl Histogram {
    /// An empty one. Values above `us_max` are counted in the last bin; extremes and moments stay exact.
    pub fn new(us_max: usize) -> Self {
        Self { counts: vec![0; us_max + 1], count: 0, min_ns: u64::MAX, max_ns: 0, sum_us: 0.0, squares_us: 0.0 }
    }

    /// Adds the value `ns`, `times` times.
    pub fn add(&mut self, ns: u64, times: u64) {
        let last = self.counts.len() - 1;
        self.counts[last.min((ns / 1000) as usize)] += times;
        self.count += times;
        self.min_ns = self.min_ns.min(ns);
        self.max_ns = self.max_ns.max(ns);
        let us = ns as f64 / 1000.0;
        self.sum_us += us * times as f64;
        self.squares_us += us * us * times as f64;
    }

    /// The number of values.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The smallest value; 0 if there is none.
    pub fn min_ns(&self) -> u64 {
        if self.count == 0 { 0 } else { self.min_ns }
    }

    /// The largest value; 0 if there is none.
    pub fn max_ns(&self) -> u64 {
        self.max_ns
    }

    /// The mean in microseconds.
    pub fn mean_us(&self) -> f64 {
        self.sum_us / self.count.max(1) as f64
    }

    /// The standard deviation in microseconds.
    pub fn deviation_us(&self) -> f64 {
        let mean = self.mean_us();
        (self.squares_us / self.count.max(1) as f64 - mean * mean).max(0.0).sqrt()
    }

    /// The distribution: microseconds, and the share of values that are not larger. Only where it grows.
    pub fn distribution(&self) -> Vec<(f64, f64)> {
        let mut seen = 0;
        let grows = self.counts.iter().enumerate().filter(|(_, count)| **count > 0);
        grows
            .map(|(us, count)| {
                seen += count;
                ((us + 1) as f64, seen as f64 / self.count as f64)
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_and_extremes_are_exact() {
        let mut seen = Histogram::new(5);
        seen.add(1500, 1);
        seen.add(2500, 2);
        seen.add(9500, 1);
        assert_eq!((seen.count(), seen.min_ns(), seen.max_ns()), (4, 1500, 9500));
        assert_eq!((seen.mean_us(), seen.deviation_us()), (4.0, 10.25f64.sqrt()));
        assert_eq!(seen.distribution(), [(2.0, 0.25), (3.0, 0.75), (6.0, 1.0)]);
    }
}
