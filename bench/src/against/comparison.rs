//! What the samples of two programs, taken in pairs, say of their ratio.

use std::fmt::Write;

use comfy_table::{Cell, Color, ContentArrangement, Table, presets};
use serde_json::{Value, json};

use crate::{report::figure, stats::SampleSpread};

/// A ratio this far on the wrong side of 1 is a loss, if noise does not explain it.
const LOSS_MIN: f64 = 0.02;
/// The chance that an interval does not hold the true median.
const DOUBT: f64 = 0.05;
/// With fewer pairs no interval has as little [`DOUBT`].
pub const ROUNDS_MIN: usize = 6;

/// Which of two values is the better one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BetterValue {
    Higher,
    Lower,
}

/// What a comparison found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ComparisonVerdict {
    /// The whole interval is more than 2 % on the wrong side of 1.
    Loss,
    /// The whole interval is more than 2 % on the right side of 1.
    Gain,
    /// Neither a loss nor a gain: a part of the interval is at most 2 % from 1.
    Same,
}

impl ComparisonVerdict {
    fn name(self) -> &'static str {
        match self {
            Self::Loss => "LOSS",
            Self::Gain => "gain",
            Self::Same => "same",
        }
    }
}

/// Holds the true median of what was sampled, with a chance of at least 95 %, whatever its distribution is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MedianInterval {
    pub low: f64,
    pub high: f64,
}

impl MedianInterval {
    /// The interval between two of the ordered samples, by the sign test: as many samples lie below the true median as
    /// heads fall among so many coins. Fewer than [`ROUNDS_MIN`] samples have all of them as their interval, with more
    /// doubt.
    ///
    /// # Panics
    /// When there is no sample.
    pub fn of(samples: &[f64]) -> Self {
        let mut sorted = samples.to_vec();
        sorted.sort_by(f64::total_cmp);
        let count = sorted.len();
        // The chance of exactly `at` heads, and of at most so many, as long as both ends together are within the doubt.
        let (mut chance, mut within) = (0.5_f64.powi(count as i32), 0.0);
        let mut left_out = 0;
        for at in 0..count / 2 {
            within += chance;
            if 2.0 * within > DOUBT {
                break;
            }
            left_out = at;
            chance *= (count - at) as f64 / (at + 1) as f64;
        }
        Self { low: sorted[left_out], high: sorted[count - 1 - left_out] }
    }
}

/// One figure of both programs, in pairs that were taken one after the other.
pub struct FigureComparison {
    pub row: &'static str,
    pub unit: &'static str,
    pub better: BetterValue,
    pub before: Vec<f64>,
    pub now: Vec<f64>,
}

impl FigureComparison {
    fn ratio(&self) -> SampleSpread {
        SampleSpread::ratio(&SampleSpread::new(self.now.clone()), &SampleSpread::new(self.before.clone()))
    }

    pub fn verdict(&self) -> ComparisonVerdict {
        let interval = MedianInterval::of(&self.ratio().samples);
        let (is_lower, is_higher) = (interval.high < 1.0 - LOSS_MIN, interval.low > 1.0 + LOSS_MIN);
        match self.better {
            BetterValue::Higher if is_lower => ComparisonVerdict::Loss,
            BetterValue::Lower if is_higher => ComparisonVerdict::Loss,
            _ if is_lower || is_higher => ComparisonVerdict::Gain,
            _ => ComparisonVerdict::Same,
        }
    }

    fn cells(&self) -> [String; 6] {
        let median =
            |samples: &[f64]| format!("{} {}", figure(SampleSpread::new(samples.to_vec()).median()), self.unit);
        let (ratio, interval) = (self.ratio(), MedianInterval::of(&self.ratio().samples));
        [
            self.row.to_owned(),
            median(&self.before),
            median(&self.now),
            format!("{:.2}", ratio.median()),
            format!("{:.2} to {:.2}", interval.low, interval.high),
            self.verdict().name().to_owned(),
        ]
    }

    fn json(&self) -> Value {
        let (ratio, interval) = (self.ratio(), MedianInterval::of(&self.ratio().samples));
        json!({
            "row": self.row,
            "unit": self.unit,
            "better": match self.better { BetterValue::Higher => "higher", BetterValue::Lower => "lower" },
            "before": self.before,
            "now": self.now,
            "ratio": {"median": ratio.median(), "low": interval.low, "high": interval.high},
            "verdict": self.verdict().name().to_lowercase(),
        })
    }
}

/// A row that has no figures, and why.
pub struct UnmeasuredRow {
    pub row: &'static str,
    pub why: String,
    /// Only the program of now could not be measured: it cannot do any more what the one before can.
    pub is_lost: bool,
}

impl UnmeasuredRow {
    /// This machine lacks something for the row.
    pub fn of_machine(row: &'static str, why: &str) -> Self {
        Self { row, why: why.to_owned(), is_lost: false }
    }

    /// Why the programs, before and now, could not be measured. At least one of them has a reason.
    pub fn of_programs(row: &'static str, failures: &[Option<String>; 2]) -> Self {
        let [before, now] = failures;
        let of = |name: &str, why: &Option<String>| why.as_ref().map(|why| format!("the program {name} fails: {why}"));
        let all: Vec<String> = [of("before", before), of("now", now)].into_iter().flatten().collect();
        Self { row, why: all.join("; "), is_lost: now.is_some() && before.is_none() }
    }
}

/// Everything that was found.
pub struct ComparisonReport {
    pub all: Vec<FigureComparison>,
    pub missing: Vec<UnmeasuredRow>,
    /// What other processes used meanwhile, as a share of one processor: the median of all rounds.
    pub foreign: f64,
}

const HEADINGS: [&str; 6] = ["row", "before", "now", "ratio", "interval (95 %)", "verdict"];

impl ComparisonReport {
    pub fn losses(&self) -> usize {
        self.all.iter().filter(|comparison| comparison.verdict() == ComparisonVerdict::Loss).count()
    }

    /// Rows that only the program before can do.
    pub fn lost_abilities(&self) -> usize {
        self.missing.iter().filter(|missing| missing.is_lost).count()
    }

    pub fn for_terminal(&self) -> String {
        let mut table = Table::new();
        table.load_style(presets::UTF8_HORIZONTAL_ONLY).set_content_arrangement(ContentArrangement::Dynamic);
        table.set_header(HEADINGS);
        for comparison in &self.all {
            let [rest @ .., verdict] = comparison.cells();
            let verdict = match comparison.verdict() {
                ComparisonVerdict::Loss => Cell::new(verdict).fg(Color::Red),
                ComparisonVerdict::Gain => Cell::new(verdict).fg(Color::Green),
                ComparisonVerdict::Same => Cell::new(verdict),
            };
            table.add_row(rest.map(Cell::new).into_iter().chain([verdict]));
        }
        format!("{table}\n{}", self.summary(""))
    }

    pub fn for_markdown(&self) -> String {
        let mut text = format!("| {} |\n|{}\n", HEADINGS.join(" | "), "---|".repeat(HEADINGS.len()));
        for comparison in &self.all {
            let _ = writeln!(text, "| {} |", comparison.cells().join(" | "));
        }
        text + "\n" + &self.summary("- ")
    }

    pub fn for_programs(&self, machine: &Value) -> Value {
        json!({
            "machine": machine,
            "rows": self.all.iter().map(FigureComparison::json).collect::<Vec<_>>(),
            "missing": self.missing.iter().map(|missing| json!({"row": missing.row, "why": missing.why, "lost": missing.is_lost})).collect::<Vec<_>>(),
            "foreign_load": self.foreign,
        })
    }

    fn summary(&self, bullet: &str) -> String {
        let mut text = String::new();
        for missing in &self.missing {
            let lost = if missing.is_lost { "LOSS: " } else { "" };
            let _ = writeln!(text, "{bullet}{lost}{} was not measured: {}", missing.row, missing.why);
        }
        let rounds = self.all.first().map_or(0, |comparison| comparison.now.len());
        let _ = writeln!(
            text,
            "{bullet}{} rows in {rounds} rounds, {} lost; other processes used {:.0} % of a processor.",
            self.all.len(),
            self.losses(),
            100.0 * self.foreign
        );
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn comparison(better: BetterValue, now: &[f64]) -> FigureComparison {
        FigureComparison {
            row: "nbd-read-128k",
            unit: "MB/s",
            better,
            before: vec![100.0; now.len()],
            now: now.to_vec(),
        }
    }

    #[test]
    fn an_interval_leaves_out_as_many_samples_as_the_sign_test_allows() {
        let samples = |count: usize| (1..=count).map(|at| at as f64).collect::<Vec<_>>();
        // Tables of the sign test: 6 to 8 leave out none, 9 to 11 one, 12 to 14 two, 20 five.
        for (count, left_out) in [(1, 0), (5, 0), (6, 0), (8, 0), (9, 1), (11, 1), (12, 2), (14, 2), (15, 3), (20, 5)] {
            let interval = MedianInterval::of(&samples(count));
            let expected = MedianInterval { low: 1.0 + left_out as f64, high: (count - left_out) as f64 };
            assert_eq!(interval, expected, "{count} samples");
        }
    }

    #[test]
    fn a_loss_is_more_than_two_percent_in_the_whole_interval() {
        let lost = [70.0, 75.0, 80.0, 85.0, 90.0, 97.9];
        assert_eq!(comparison(BetterValue::Higher, &lost).verdict(), ComparisonVerdict::Loss);
        let one_is_within = [70.0, 75.0, 80.0, 85.0, 90.0, 98.1];
        assert_eq!(comparison(BetterValue::Higher, &one_is_within).verdict(), ComparisonVerdict::Same);
        // Nine samples: one at each end is left out.
        let one_of_nine = [70.0, 70.0, 70.0, 70.0, 75.0, 80.0, 85.0, 90.0, 120.0];
        assert_eq!(comparison(BetterValue::Higher, &one_of_nine).verdict(), ComparisonVerdict::Loss);
        assert_eq!(comparison(BetterValue::Lower, &one_of_nine).verdict(), ComparisonVerdict::Gain);
    }

    #[test]
    fn of_memory_and_time_more_is_a_loss() {
        let more = [103.0, 104.0, 105.0, 106.0, 107.0, 108.0];
        assert_eq!(comparison(BetterValue::Lower, &more).verdict(), ComparisonVerdict::Loss);
        assert_eq!(comparison(BetterValue::Higher, &more).verdict(), ComparisonVerdict::Gain);
        assert_eq!(comparison(BetterValue::Lower, &[101.0; 9]).verdict(), ComparisonVerdict::Same);
    }

    #[test]
    fn a_report_counts_losses_and_names_what_is_missing() {
        let missing = vec![UnmeasuredRow::of_machine("uas-read-128k", "no module")];
        let all = vec![comparison(BetterValue::Higher, &[50.0; 6]), comparison(BetterValue::Higher, &[100.0; 6])];
        let found = ComparisonReport { all, missing, foreign: 0.1 };
        assert_eq!(found.losses(), 1);
        let text = found.for_markdown();
        assert!(text.contains("| nbd-read-128k | 100 MB/s | 50.0 MB/s | 0.50 | 0.50 to 0.50 | LOSS |"), "{text}");
        assert!(text.contains("uas-read-128k was not measured: no module"), "{text}");
        assert!(text.contains("2 rows in 6 rounds, 1 lost; other processes used 10 % of a processor."), "{text}");
        let json = found.for_programs(&Value::Null);
        assert_eq!((&json["rows"][0]["verdict"], &json["missing"][0]["why"]), (&"loss".into(), &"no module".into()));
    }
    #[test]
    fn only_what_the_program_of_now_alone_cannot_do_is_lost() {
        let missing = |before: Option<&str>, now: Option<&str>| {
            UnmeasuredRow::of_programs("fuse-read-4k", &[before, now].map(|why| why.map(str::to_owned)))
        };
        let (old, new, both) = (missing(Some("a"), None), missing(None, Some("b")), missing(Some("a"), Some("b")));
        assert_eq!([&old, &new, &both].map(|missing| missing.is_lost), [false, true, false]);
        assert_eq!(both.why, "the program before fails: a; the program now fails: b");
        let found = ComparisonReport { all: Vec::new(), missing: vec![old, new], foreign: 0.0 };
        assert_eq!((found.losses(), found.lost_abilities()), (0, 1));
        let text = found.for_markdown();
        assert!(text.contains("- LOSS: fuse-read-4k was not measured: the program now fails: b\n"), "{text}");
    }
}
