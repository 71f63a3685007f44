//! Findings, and their three formats: for a terminal, for a document, for a program.

use std::fmt::Write;

use comfy_table::{Cell, Color, ContentArrangement, Table, presets};
use serde_json::{Value, json};

use crate::{
    contest::ContestResult,
    stats::{SampleSpread, SpeedTarget},
};

/// One line of the report.
#[derive(Clone)]
pub struct BenchmarkFinding {
    /// The benchmark's name.
    pub benchmark: &'static str,
    /// What was measured, and how; no two rows of a benchmark say the same.
    pub what: String,
    /// The subject's figure.
    pub ours: MeasuredQuantity,
    /// The figure for comparison, and its name.
    pub other: Option<(&'static str, MeasuredQuantity)>,
    /// The value that is compared with the target: the ratio of the two figures where there are two.
    pub judged: SampleSpread,
    /// The condition for `judged`.
    pub target: SpeedTarget,
    /// Further observations: latencies, calls by name, foreign load.
    pub detail: String,
    /// Other load used the machine throughout.
    pub disturbed: bool,
}

/// A spread with its unit.
#[derive(Clone)]
pub struct MeasuredQuantity {
    /// One sample a repeat, in `unit`.
    pub spread: SampleSpread,
    /// The unit of each of them.
    pub unit: &'static str,
}

impl MeasuredQuantity {
    /// These repeats in this unit.
    pub fn new(spread: SampleSpread, unit: &'static str) -> Self {
        Self { spread, unit }
    }

    fn shown(&self) -> String {
        format!("{} {}", figure(self.spread.median()), self.unit)
    }
}

impl BenchmarkFinding {
    /// A comparison, judged by its ratio.
    pub fn ratio(
        benchmark: &'static str,
        what: String,
        ours: MeasuredQuantity,
        other: (&'static str, MeasuredQuantity),
        target: SpeedTarget,
    ) -> Self {
        let judged = SampleSpread::ratio(&ours.spread, &other.1.spread);
        Self { benchmark, what, ours, other: Some(other), judged, target, detail: String::new(), disturbed: false }
    }

    /// A figure that is judged by itself.
    pub fn absolute(benchmark: &'static str, what: String, ours: MeasuredQuantity, target: SpeedTarget) -> Self {
        let judged = ours.spread.clone();
        Self { benchmark, what, ours, other: None, judged, target, detail: String::new(), disturbed: false }
    }

    /// Adds further observations.
    pub fn with_detail(mut self, detail: String) -> Self {
        self.detail = detail;
        self
    }

    /// Adds how quiet the machine was.
    pub fn seen_in(mut self, contest: &ContestResult) -> Self {
        self.disturbed = contest.disturbed;
        let separator = if self.detail.is_empty() { "" } else { "; " };
        let _ = write!(self.detail, "{separator}other load {:.0} % of a CPU", contest.foreign.median() * 100.0);
        if contest.redone > 0 {
            let _ = write!(self.detail, ", {} rounds done again", contest.redone);
        }
        self
    }

    /// Whether the target was missed; what has no target never is.
    pub fn missed(&self) -> bool {
        self.margin().is_some_and(|margin| margin < 0.0)
    }

    fn margin(&self) -> Option<f64> {
        self.target.margin(self.judged.median())
    }

    fn target_shown(&self) -> String {
        match self.target {
            SpeedTarget::AtLeast(least) => format!("≥ {}", figure(least)),
            SpeedTarget::AtMost(most) => format!("≤ {}", figure(most)),
            SpeedTarget::Context => "–".to_owned(),
        }
    }

    fn verdict(&self) -> String {
        let verdict = match self.margin() {
            None => return "–".to_owned(),
            Some(margin) if margin < 0.0 => format!("MISS by {:.0} %", (-margin * 100.0).max(1.0)),
            Some(margin) => format!("PASS by {:.0} %", margin * 100.0),
        };
        if self.disturbed { verdict + ", disturbed" } else { verdict }
    }

    fn cells(&self) -> [String; 7] {
        let other =
            self.other.as_ref().map_or("–".to_owned(), |(name, quantity)| format!("{name}: {}", quantity.shown()));
        let spread = &self.judged;
        let judged = if spread.samples.len() == 1 {
            figure(spread.median())
        } else {
            format!("{} ({}..{})", figure(spread.median()), figure(spread.min()), figure(spread.max()))
        };
        [
            self.benchmark.to_owned(),
            self.what.clone(),
            self.ours.shown(),
            other,
            judged,
            self.target_shown(),
            self.verdict(),
        ]
    }

    fn json(&self) -> Value {
        json!({
            "benchmark": self.benchmark,
            "what": self.what,
            "unit": self.ours.unit,
            "ours": self.ours.spread.samples,
            "other": self.other.as_ref().map(|(name, quantity)| json!({"name": name, "samples": quantity.spread.samples})),
            "judged": {"median": self.judged.median(), "min": self.judged.min(), "max": self.judged.max()},
            "target": match self.target {
                SpeedTarget::AtLeast(least) => json!({"at_least": least}),
                SpeedTarget::AtMost(most) => json!({"at_most": most}),
                SpeedTarget::Context => Value::Null,
            },
            "margin": self.margin(),
            "missed": self.missed(),
            "disturbed": self.disturbed,
            "detail": self.detail,
        })
    }
}

fn headings(subject: &str) -> [String; 7] {
    ["benchmark", "what", subject, "compared with", "ratio or value (min..max)", "target", "verdict"].map(str::to_owned)
}

pub fn for_terminal(subject: &str, findings: &[BenchmarkFinding]) -> String {
    let mut table = Table::new();
    table.load_style(presets::UTF8_HORIZONTAL_ONLY).set_content_arrangement(ContentArrangement::Dynamic);
    table.set_header(headings(subject));
    for finding in findings {
        let [benchmark, what, ours, other, judged, target, verdict] = finding.cells();
        let verdict = match finding.margin() {
            Some(margin) if margin < 0.0 => Cell::new(verdict).fg(Color::Red),
            Some(_) => Cell::new(verdict).fg(Color::Green),
            None => Cell::new(verdict),
        };
        table.add_row([benchmark, what, ours, other, judged, target].map(Cell::new).into_iter().chain([verdict]));
    }
    let mut text = table.to_string();
    text.push('\n');
    push_details(&mut text, findings, "");
    let _ = writeln!(text, "{}", summary(findings));
    text
}

pub fn for_markdown(subject: &str, machine: &Value, findings: &[BenchmarkFinding]) -> String {
    let mut text = String::new();
    let _ = writeln!(text, "{}\n", machine_line(machine));
    let _ = writeln!(text, "| {} |", headings(subject).join(" | "));
    let _ = writeln!(text, "|{}", "---|".repeat(7));
    for finding in findings {
        let _ = writeln!(text, "| {} |", finding.cells().join(" | "));
    }
    let _ = writeln!(text, "\n{}\n", summary(findings));
    push_details(&mut text, findings, "- ");
    text
}

pub fn for_programs(subject: &str, machine: &Value, findings: &[BenchmarkFinding]) -> Value {
    json!({
        "subject": subject,
        "machine": machine,
        "findings": findings.iter().map(BenchmarkFinding::json).collect::<Vec<_>>(),
    })
}

fn push_details(text: &mut String, findings: &[BenchmarkFinding], bullet: &str) {
    for finding in findings.iter().filter(|finding| !finding.detail.is_empty()) {
        let _ = writeln!(text, "{bullet}{} {}: {}", finding.benchmark, finding.what, finding.detail);
    }
}

fn summary(findings: &[BenchmarkFinding]) -> String {
    let judged = findings.iter().filter(|finding| finding.target != SpeedTarget::Context).count();
    let missed = findings.iter().filter(|finding| finding.missed()).count();
    format!("{} of {judged} targets met, {missed} missed.", judged - missed)
}

/// The machine's properties that a reader of the figures needs.
pub fn machine() -> Value {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let cpuinfo = read("/proc/cpuinfo");
    let model = cpuinfo.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or_default();
    json!({
        "cpu": model.trim_start_matches(['\t', ' ', ':']),
        // Not the CPUs that this process may use: it may be pinned.
        "cpus": cpuinfo.lines().filter(|line| line.starts_with("processor")).count(),
        "kernel": read("/proc/sys/kernel/osrelease").trim(),
    })
}

fn machine_line(machine: &Value) -> String {
    let text = |key: &str| machine[key].as_str().unwrap_or("unknown").to_owned();
    format!(
        "{} CPUs ({}), Linux {}, loopback, placement {}; 1 MB = 10^6 bytes. Ratios are medians of interleaved rounds, pair by pair.",
        machine["cpus"],
        text("cpu"),
        text("kernel"),
        text("placement"),
    )
}

/// Three significant digits, which is more than the spread allows.
pub fn figure(value: f64) -> String {
    let magnitude = value.abs();
    if magnitude >= 100.0 || magnitude == 0.0 {
        format!("{value:.0}")
    } else if magnitude >= 10.0 {
        format!("{value:.1}")
    } else {
        format!("{value:.2}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finding(ours: f64, target: SpeedTarget) -> BenchmarkFinding {
        BenchmarkFinding::ratio(
            "deep",
            "IN".to_owned(),
            MeasuredQuantity::new(SampleSpread::new(vec![ours; 5]), "MB/s"),
            ("ref", MeasuredQuantity::new(SampleSpread::new(vec![100.0; 5]), "MB/s")),
            target,
        )
    }

    #[test]
    fn a_verdict_says_by_how_much() {
        assert_eq!(finding(120.0, SpeedTarget::AtLeast(0.8)).verdict(), "PASS by 50 %");
        assert_eq!(finding(60.0, SpeedTarget::AtLeast(0.8)).verdict(), "MISS by 25 %");
        assert_eq!(finding(79.99, SpeedTarget::AtLeast(0.8)).verdict(), "MISS by 1 %");
        assert_eq!(finding(60.0, SpeedTarget::Context).verdict(), "–");
    }

    #[test]
    fn the_summary_counts_promises_only() {
        let findings = [
            finding(60.0, SpeedTarget::AtLeast(0.8)),
            finding(90.0, SpeedTarget::AtLeast(0.8)),
            finding(1.0, SpeedTarget::Context),
        ];
        assert_eq!(summary(&findings), "1 of 2 targets met, 1 missed.");
        assert!(for_markdown("farbus", &machine(), &findings).contains("| MISS by 25 % |"));
        assert_eq!(for_programs("farbus", &machine(), &findings)["findings"][0]["missed"], true);
    }
}
