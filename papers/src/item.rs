//! A table, figure or algorithm of a paper: what the paper says of it, and where ours comes from.

use std::fmt;

use anyhow::Result;
use serde_json::{Value, json};

use crate::result::{BenchmarkRows, ItemResult, RowColumn};

/// A table, figure or algorithm of a paper.
pub struct PaperItem {
    /// The year in which the paper appeared, which names it.
    pub paper: u16,
    /// As the paper names it: `Figure 9`.
    pub number: &'static str,
    pub title: &'static str,
    pub evidence: ItemEvidence,
    /// The paper's own digits; what it only draws is not guessed.
    pub says: &'static str,
    /// Why ours differs from it.
    pub why: &'static str,
    pub source: ItemSource,
}

/// How an item's rows come about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ItemEvidence {
    Measured,
    /// Measured, with a relay or network namespaces that add delay, loss or a limit.
    MeasuredFar,
    Simulated,
    /// Simulated, and measured on this machine where that takes minutes.
    SimulatedAndMeasured,
    Computed,
    /// It takes a kernel of its own in a virtual machine.
    Rig,
}

impl ItemEvidence {
    pub const fn label(self) -> &'static str {
        match self {
            Self::Measured => "measured",
            Self::MeasuredFar => "measured, distance added",
            Self::Simulated => "simulated",
            Self::SimulatedAndMeasured => "simulated, and measured",
            Self::Computed => "computed",
            Self::Rig => "needs the rig",
        }
    }
}

/// Makes rows of the JSON that the runs of a command printed, in their order.
pub type CommandReader = fn(&[Value]) -> Result<ItemResult>;

/// Where an item's rows come from.
pub enum ItemSource {
    Benchmarks(&'static [BenchmarkPart]),
    /// One run of `farbus` for each line of words, with `--json` added.
    Command {
        runs: &'static [&'static str],
        read: CommandReader,
    },
    /// A function of this program; its argument says whether to be quick.
    Function(fn(bool) -> Result<ItemResult>),
    /// Nothing runs it here; the text says what it takes.
    Needs(&'static str),
}

/// What of a benchmark belongs to an item.
pub struct BenchmarkPart {
    pub name: &'static str,
    pub rows: &'static [BenchmarkRows],
    /// Names of its charts.
    pub charts: &'static [&'static str],
    /// It is left out when all has to end within three minutes.
    pub is_long: bool,
}

/// Rows and charts of a benchmark that runs in either form.
pub const fn part(
    name: &'static str,
    rows: &'static [BenchmarkRows],
    charts: &'static [&'static str],
) -> BenchmarkPart {
    BenchmarkPart { name, rows, charts, is_long: false }
}

/// Rows whose value stands beside the paper's.
pub const fn value(begin: &'static str, paper: &'static str) -> BenchmarkRows {
    BenchmarkRows { begin, column: RowColumn::Value, paper }
}

/// Rows whose deviation of a whole run stands beside the paper's.
pub const fn whole(begin: &'static str, paper: &'static str) -> BenchmarkRows {
    BenchmarkRows { begin, column: RowColumn::Whole, paper }
}

/// Rows whose share of another value stands beside the paper's.
pub const fn share(begin: &'static str, paper: &'static str) -> BenchmarkRows {
    BenchmarkRows { begin, column: RowColumn::Share, paper }
}

impl PaperItem {
    /// `2005 Figure 9`.
    pub fn name(&self) -> String {
        format!("{} {}", self.paper, self.number)
    }

    /// Whether these words name it: `figure-9`, `fig9`, `Figure 9`.
    pub fn is_called(&self, words: &str) -> bool {
        plain(words) == plain(self.number)
    }

    /// The item without results.
    pub fn json(&self) -> Value {
        json!({
            "paper": self.paper,
            "item": self.number,
            "title": self.title,
            "evidence": self.evidence.label(),
            "paper_says": self.says,
            "why_it_differs": self.why,
            "by": self.by(),
        })
    }

    /// What runs it, in a word or two.
    pub fn by(&self) -> String {
        match &self.source {
            ItemSource::Benchmarks(parts) => {
                let names: Vec<_> = parts.iter().map(|part| part.name).collect();
                format!("bench {}", names.join(", "))
            }
            ItemSource::Command { runs, .. } => runs[0].split(' ').take(2).collect::<Vec<_>>().join(" "),
            ItemSource::Function(_) => "itself".into(),
            ItemSource::Needs(_) => "–".into(),
        }
    }

    /// The words that name it on a command line.
    pub fn word(&self) -> String {
        self.number.to_lowercase().replace(' ', "-")
    }
}

/// A number without spaces, in whole words.
fn plain(words: &str) -> String {
    let plain: String = words.to_lowercase().chars().filter(char::is_ascii_alphanumeric).collect();
    let digits_at = plain.find(|letter: char| letter.is_ascii_digit()).unwrap_or(plain.len());
    let (kind, number) = plain.split_at(digits_at);
    let kind = match kind {
        "fig" | "f" => "figure",
        "tab" | "t" => "table",
        "alg" | "a" => "algorithm",
        other => other,
    };
    format!("{kind}{number}")
}

impl fmt::Debug for PaperItem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name())
    }
}
