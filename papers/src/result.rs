//! What came of an item: rows with their spread, and charts.

use farbus_bench::{BenchmarkFinding, SpeedTarget, figure};
use serde_json::{Value, json};

/// Samples from which on an interval for the median is given; fewer have a range.
const SAMPLES_MIN: usize = 6;

/// Rows of a benchmark that belong to an item.
pub struct BenchmarkRows {
    /// What the rows begin with; at least one row does.
    pub begin: &'static str,
    pub column: RowColumn,
    /// The paper's value for these rows; empty if it has none.
    pub paper: &'static str,
}

/// Which value of a benchmark's row the paper has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowColumn {
    Value,
    /// The value as a share of what it is compared with.
    Share,
    /// What is held against the bound where that is not the median of the repeats: a deviation of all of them together.
    Whole,
}

/// Rows and charts of an item.
#[derive(Clone, Debug, Default)]
pub struct ItemResult {
    pub rows: Vec<ItemRow>,
    /// SVG, ready to be shown.
    pub charts: Vec<String>,
}

impl From<Vec<ItemRow>> for ItemResult {
    fn from(rows: Vec<ItemRow>) -> Self {
        Self { rows, charts: Vec::new() }
    }
}

/// One value of ours beside the paper's.
#[derive(Clone, Debug, Default)]
pub struct ItemRow {
    pub what: String,
    /// One sample a repeat; a value that is computed has one.
    pub samples: Vec<f64>,
    pub unit: &'static str,
    /// The paper's own digits, empty if it has none for this row.
    pub paper: String,
    /// Further values of the same row.
    pub detail: String,
    /// The bound that the row is held against, in words; empty if there is none.
    pub bound: String,
    pub is_missed: bool,
}

impl ItemRow {
    /// One value beside the paper's.
    pub fn of(what: impl Into<String>, ours: f64, unit: &'static str, paper: impl ToString) -> Self {
        Self { what: what.into(), samples: vec![ours], unit, paper: paper.to_string(), ..Self::default() }
    }

    /// One sample a repeat, beside the paper's value.
    pub fn spread(what: impl Into<String>, samples: Vec<f64>, unit: &'static str, paper: impl ToString) -> Self {
        Self { what: what.into(), samples, unit, paper: paper.to_string(), ..Self::default() }
    }

    /// Adds further values.
    pub fn with_detail(mut self, detail: impl Into<String>) -> Self {
        self.detail = detail.into();
        self
    }

    /// Holds the median against the most that it may be.
    pub fn at_most(mut self, most: f64) -> Self {
        self.bound = format!("at most {}", figure(most));
        self.is_missed = self.median() > most;
        self
    }

    /// A row of a benchmark.
    pub fn of_finding(finding: &BenchmarkFinding, rows: &BenchmarkRows) -> Self {
        let (samples, unit) = match rows.column {
            RowColumn::Value => (&finding.ours.spread.samples, finding.ours.unit),
            RowColumn::Share => (&finding.judged.samples, "of local"),
            RowColumn::Whole => (&finding.judged.samples, finding.ours.unit),
        };
        let beside = finding.other.as_ref();
        let paper = match beside {
            Some((name, quantity)) if rows.paper.is_empty() && name.contains("paper") => {
                format!("{} {}", figure(quantity.spread.median()), quantity.unit)
            }
            _ => rows.paper.to_owned(),
        };
        let mut detail = finding.detail.clone();
        if let (RowColumn::Share, Some((name, quantity))) = (rows.column, beside) {
            let ours = (figure(finding.ours.spread.median()), finding.ours.unit);
            let theirs = (figure(quantity.spread.median()), quantity.unit);
            detail = format!("{} {} of {name} {} {}", ours.0, ours.1, theirs.0, theirs.1);
        }
        if rows.column == RowColumn::Whole {
            let parts = &finding.ours.spread;
            detail = format!("parts of the run {} to {}; {detail}", figure(parts.min()), figure(parts.max()));
        }
        // A row with something to compare with is held by its share of that.
        let of = |limit: f64| match beside {
            None => figure(limit),
            Some((name, quantity)) => {
                format!("{} of {name}, {} {}", figure(limit), figure(quantity.spread.median()), quantity.unit)
            }
        };
        let bound = match finding.target {
            SpeedTarget::AtLeast(least) => format!("at least {}", of(least)),
            SpeedTarget::AtMost(most) => format!("at most {}", of(most)),
            SpeedTarget::Context => String::new(),
        };
        let is_missed = finding.missed();
        Self { what: finding.what.clone(), samples: samples.clone(), unit, paper, detail, bound, is_missed }
    }

    pub fn median(&self) -> f64 {
        let sorted = self.sorted();
        let middle = sorted.len() / 2;
        match sorted.len() {
            0 => f64::NAN,
            count if count % 2 == 1 => sorted[middle],
            _ => (sorted[middle - 1] + sorted[middle]) / 2.0,
        }
    }

    fn sorted(&self) -> Vec<f64> {
        let mut sorted = self.samples.clone();
        sorted.sort_by(f64::total_cmp);
        sorted
    }

    /// The interval that has the median with 95 % certainty, whatever the distribution; of few samples their range.
    pub fn interval(&self) -> Option<(f64, f64)> {
        let sorted = self.sorted();
        let left_out = left_out(sorted.len());
        (sorted.len() > 1).then(|| (sorted[left_out], sorted[sorted.len() - 1 - left_out]))
    }

    /// The value with its unit.
    pub fn shown(&self) -> String {
        if self.median().is_nan() {
            return "none".into();
        }
        format!("{} {}", digits(self.median()), self.unit).trim_end().to_owned()
    }

    /// How sure the value is.
    pub fn certainty(&self) -> String {
        let count = self.samples.len();
        match self.interval() {
            None => "one run".to_owned(),
            Some((low, high)) if count < SAMPLES_MIN => {
                format!("{} to {}, range of {count}", digits(low), digits(high))
            }
            Some((low, high)) => format!("{} to {}, 95 % of {count}", digits(low), digits(high)),
        }
    }

    pub fn json(&self) -> Value {
        json!({
            "what": self.what,
            "value": self.median(),
            "unit": self.unit,
            "samples": self.samples,
            "interval": self.interval().map(|(low, high)| json!([low, high])),
            "paper": self.paper,
            "bound": self.bound,
            "missed": self.is_missed,
            "detail": self.detail,
        })
    }
}

/// How many samples at each end of a sorted list are outside the interval: as many as leave at most 2.5 % at each side
/// of the median, by the binomial distribution (the sign test turned round).
fn left_out(count: usize) -> usize {
    if count < SAMPLES_MIN {
        return 0;
    }
    let mut term = 0.5_f64.powi(count as i32);
    let mut below = term;
    let mut left_out = 0;
    for at in 0..count / 2 {
        term *= (count - at) as f64 / (at + 1) as f64;
        below += term;
        if below > 0.025 {
            break;
        }
        left_out = at + 1;
    }
    left_out
}

/// Three significant digits; small values keep theirs.
fn digits(value: f64) -> String {
    match value.abs() {
        small if small > 0.0 && small < 0.01 => format!("{value:.2e}"),
        share if share > 0.0 && share < 1.0 => format!("{value:.*}", if share < 0.1 { 4 } else { 3 }),
        large if large >= 1000.0 || value.fract() == 0.0 => format!("{value:.0}"),
        _ => figure(value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interval_of_the_median_is_that_of_the_sign_test() {
        // The tables of order statistics: 6 and 8 samples have their ends, 9 and 15 leave 1 and 3 out.
        assert_eq!([6, 8, 9, 15, 30].map(left_out), [0, 0, 1, 3, 9]);
        let row = ItemRow::spread("x", (1..=15).rev().map(f64::from).collect(), "ms", "");
        assert_eq!((row.median(), row.interval()), (8.0, Some((4.0, 12.0))));
        assert_eq!(row.certainty(), "4 to 12, 95 % of 15");
        let few = ItemRow::spread("x", vec![2.0, 1.0], "ms", "");
        assert_eq!((few.certainty().as_str(), few.shown().as_str()), ("1 to 2, range of 2", "1.50 ms"));
        let shown = |value| ItemRow::of("x", value, "", "").shown();
        assert_eq!([3.1e-4, 0.08349, 0.7512, 12.0, f64::NAN].map(shown), ["3.10e-4", "0.0835", "0.751", "12", "none"]);
    }

    #[test]
    fn bound_can_be_missed() {
        assert!(ItemRow::of("x", 11.0, "us", 10).at_most(10.0).is_missed);
        assert!(!ItemRow::of("x", 10.0, "us", 10).at_most(10.0).is_missed);
    }
}
