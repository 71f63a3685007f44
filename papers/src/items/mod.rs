//! The tables and figures of the papers, a file for each paper.

mod driver_modules;
mod embedded_host;
mod netbus;
mod realtime_usb;
mod usbip;

use std::fmt;

use anyhow::Result;
use serde_json::Value;

use crate::result::ItemResult;

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
}

/// Rows and charts of a benchmark that runs in either form.
const fn part(name: &'static str, rows: &'static [BenchmarkRows], charts: &'static [&'static str]) -> BenchmarkPart {
    BenchmarkPart { name, rows, charts, is_long: false }
}

/// Rows whose value stands beside the paper's.
const fn value(begin: &'static str, paper: &'static str) -> BenchmarkRows {
    BenchmarkRows { begin, column: RowColumn::Value, paper }
}

/// Rows whose share of another value stands beside the paper's.
const fn share(begin: &'static str, paper: &'static str) -> BenchmarkRows {
    BenchmarkRows { begin, column: RowColumn::Share, paper }
}

/// A paper: its year, and its title.
pub const PAPERS: [(u16, &str); 5] = [
    (
        2005,
        "Hirofuchi, Kawai, Fujikawa and Sunahara, USB/IP: a peripheral bus extension for device sharing over IP network",
    ),
    (2007, "Kumar and Schwan, Netbus: a transparent mechanism for remote device access in virtualized systems"),
    (2008, "Hu, Real embedded USB host performance"),
    (2013, "Taylor and Pasquale, Performance aspects of data transfer in a new networked I/O architecture"),
    (2023, "West, Golchin and Njavro, Real-time USB networking and device I/O"),
];

/// All items, paper by paper.
pub fn all() -> Vec<&'static PaperItem> {
    [usbip::ITEMS, netbus::ITEMS, embedded_host::ITEMS, driver_modules::ITEMS, realtime_usb::ITEMS]
        .into_iter()
        .flatten()
        .collect()
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_table_and_figure_with_a_result_is_there_once() {
        let names: BTreeSet<String> = all().iter().map(|item| item.name()).collect();
        assert_eq!(names.len(), all().len());
        let of = |paper: u16, kind: &str| {
            let numbers = all().into_iter().filter(|item| item.paper == paper);
            numbers.filter_map(|item| item.number.strip_prefix(kind)?.trim().parse().ok()).collect::<Vec<u32>>()
        };
        assert_eq!(of(2005, "Figure"), [9, 10, 11, 12, 13, 14, 15, 18, 19, 20, 21, 22, 23, 24]);
        assert_eq!((of(2007, "Figure"), of(2007, "Table")), (vec![3, 4, 5, 6, 7, 8, 10, 11], vec![1, 2]));
        assert_eq!((of(2008, "Table"), of(2013, "Figure")), (vec![1, 2], vec![2]));
        assert_eq!(of(2023, "Table"), [2, 3, 4, 5, 6, 7, 8, 9]);
        assert_eq!(of(2023, "Figure"), [4, 5, 6, 10, 12, 13, 14, 15, 16]);
        assert_eq!(of(2023, "Algorithm"), [1, 2, 3, 4]);
    }

    #[test]
    fn item_is_found_by_the_names_that_people_type() {
        let item = |words: &str| {
            let found = all().into_iter().find(|item| item.paper == 2023 && item.is_called(words));
            found.map(|item| item.number)
        };
        for words in ["figure-10", "fig10", "Figure 10", "fig. 10"] {
            assert_eq!(item(words), Some("Figure 10"), "{words}");
        }
        assert_eq!((item("tab4"), item("algorithm-4"), item("10")), (Some("Table 4"), Some("Algorithm 4"), None));
    }

    #[test]
    fn every_item_says_what_the_paper_has_and_why_ours_differs() {
        for item in all() {
            assert!(PAPERS.iter().any(|(year, _)| *year == item.paper), "{item:?}");
            assert!(!item.title.is_empty() && !item.says.is_empty() && !item.why.is_empty(), "{item:?}");
            let has_rows = match &item.source {
                ItemSource::Benchmarks(parts) => parts.iter().all(|part| !part.rows.is_empty()),
                ItemSource::Command { runs, .. } => !runs.is_empty(),
                ItemSource::Function(_) => true,
                ItemSource::Needs(what) => !what.is_empty() && item.evidence == ItemEvidence::Rig,
            };
            assert!(has_rows, "{item:?}");
        }
    }
}
