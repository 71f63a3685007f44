//! Medians with their spread, and the comparison with a target.

/// A set of repeated measurements of one quantity, reduced to what is printed.
#[derive(Clone, Debug, PartialEq)]
pub struct SampleSpread {
    /// The measurements, in the order they were taken.
    pub samples: Vec<f64>,
}

impl SampleSpread {
    /// These measurements.
    ///
    /// # Panics
    /// When there is no sample: a benchmark that measured nothing is a bug in the benchmark.
    pub fn new(samples: Vec<f64>) -> Self {
        assert!(!samples.is_empty(), "a spread needs at least one sample");
        Self { samples }
    }

    /// The only measurement.
    pub fn once(value: f64) -> Self {
        Self::new(vec![value])
    }

    /// The ratio pair by pair, so that a drift of the machine that affected both sides cancels out.
    pub fn ratio(above: &Self, below: &Self) -> Self {
        assert_eq!(above.samples.len(), below.samples.len(), "only paired samples have a ratio");
        let pairs = above.samples.iter().zip(&below.samples);
        Self::new(pairs.map(|(above, below)| above / below).collect())
    }

    /// The middle one, or the mean of the two in the middle.
    pub fn median(&self) -> f64 {
        let mut sorted = self.samples.clone();
        sorted.sort_by(f64::total_cmp);
        let middle = sorted.len() / 2;
        if sorted.len() % 2 == 1 { sorted[middle] } else { (sorted[middle - 1] + sorted[middle]) / 2.0 }
    }

    /// The smallest sample; `max` has the other end of the range.
    pub fn min(&self) -> f64 {
        self.samples.iter().copied().fold(f64::INFINITY, f64::min)
    }

    /// The largest sample of the range.
    pub fn max(&self) -> f64 {
        self.samples.iter().copied().fold(f64::NEG_INFINITY, f64::max)
    }
}

/// The condition that a measured value has to meet.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum SpeedTarget {
    /// No less than this.
    AtLeast(f64),
    /// No more than this.
    AtMost(f64),
    /// Printed for context; there is no target.
    Context,
}

impl SpeedTarget {
    /// How far the value is on the good side of the target, as a share of the target; negative is a miss. `None`
    /// without a target.
    pub fn margin(self, value: f64) -> Option<f64> {
        match self {
            Self::AtLeast(least) => Some(value / least - 1.0),
            // A limit of zero has no share: a hit is "exactly on it", a miss is the excess itself.
            Self::AtMost(0.0) => Some(0.0 - value),
            Self::AtMost(most) => Some(1.0 - value / most),
            Self::Context => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_middle_one_or_the_mean_of_the_two_middle_ones() {
        assert_eq!(SampleSpread::new(vec![9.0, 1.0, 5.0]).median(), 5.0);
        assert_eq!(SampleSpread::new(vec![9.0, 1.0, 5.0, 7.0]).median(), 6.0);
        assert_eq!(SampleSpread::once(3.0).median(), 3.0);
    }

    #[test]
    fn the_ends_of_a_spread_are_its_extremes_not_its_first_and_last() {
        let spread = SampleSpread::new(vec![4.0, 9.0, 1.0, 5.0]);
        assert_eq!((spread.min(), spread.max()), (1.0, 9.0));
    }

    #[test]
    fn a_drift_that_both_sides_saw_falls_out_of_the_ratio() {
        let ours = SampleSpread::new(vec![90.0, 45.0, 9.0]);
        let theirs = SampleSpread::new(vec![100.0, 50.0, 10.0]);
        let ratio = SampleSpread::ratio(&ours, &theirs);
        assert!((ratio.min() - 0.9).abs() < 1e-12 && (ratio.max() - 0.9).abs() < 1e-12);
    }

    #[test]
    fn a_margin_is_positive_on_the_good_side_of_either_kind_of_target() {
        assert_eq!(SpeedTarget::AtLeast(2.0).margin(3.0), Some(0.5));
        assert_eq!(SpeedTarget::AtLeast(2.0).margin(1.0), Some(-0.5));
        assert_eq!(SpeedTarget::AtMost(2.0).margin(1.0), Some(0.5));
        assert_eq!(SpeedTarget::AtMost(2.0).margin(3.0), Some(-0.5));
        assert_eq!(SpeedTarget::AtMost(0.0).margin(0.0), Some(0.0));
        assert_eq!(SpeedTarget::Context.margin(3.0), None);
    }
}
