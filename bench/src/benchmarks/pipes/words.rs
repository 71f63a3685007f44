//! The names of both experiments, and the format of their figures.

use crate::{report::Quantity, stats::Spread};

pub const NAME: &str = "pipes";

pub fn once(value: f64, unit: &'static str) -> Quantity {
    Quantity::new(Spread::once(value), unit)
}
