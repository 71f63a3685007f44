//! The names of both experiments, and the format of their figures.

use crate::{report::MeasuredQuantity, stats::SampleSpread};

pub const NAME: &str = "pipes";
pub const FAR_NAME: &str = "far-pipes";

pub fn once(value: f64, unit: &'static str) -> MeasuredQuantity {
    MeasuredQuantity::new(SampleSpread::once(value), unit)
}
