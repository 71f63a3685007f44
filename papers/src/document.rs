//! Items for a terminal, and the page of the documentation that lists them.

use std::fmt::Write;

use serde_json::Value;

use crate::{
    result::ItemRow,
    run::{ItemOutcome, OutcomeState},
};

pub fn for_terminal(outcome: &ItemOutcome) -> String {
    let item = outcome.item;
    let mut text = String::new();
    let _ = writeln!(text, "{}: {} ({})", item.name(), item.title, item.evidence.label());
    let _ = writeln!(text, "  paper: {}", item.says);
    match &outcome.state {
        OutcomeState::Failed(why) => {
            let _ = writeln!(text, "  could not be run: {why}");
        }
        OutcomeState::Needs(what) => {
            let _ = writeln!(text, "  needs {what}");
        }
        OutcomeState::Ran(result) => {
            let cells: Vec<[String; 4]> = result
                .rows
                .iter()
                .map(|row| {
                    let verdict = if row.is_missed { "MISSED, " } else { "" };
                    let bound = if row.bound.is_empty() { String::new() } else { format!("{verdict}{}", row.bound) };
                    let paper = if row.paper.is_empty() { String::new() } else { format!("paper {}", row.paper) };
                    [row.what.clone(), format!("{} ({})", row.shown(), outcome.certainty(row)), paper, bound]
                })
                .collect();
            let width = |column: usize| cells.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
            let (first, second, third) = (width(0), width(1), width(2));
            for [what, ours, paper, bound] in &cells {
                let line = format!("  {what:<first$}  {ours:<second$}  {paper:<third$}  {bound}");
                let _ = writeln!(text, "{}", line.trim_end());
            }
        }
    }
    for name in &outcome.left_out {
        let _ = writeln!(text, "  not run because it takes minutes: farbus bench {name}");
    }
    let _ = writeln!(text, "  why: {}\n", item.why);
    text
}

/// How many items ran, in a line.
pub fn summary(outcomes: &[ItemOutcome]) -> String {
    let count = |wanted: fn(&ItemOutcome) -> bool| outcomes.iter().filter(|outcome| wanted(outcome)).count();
    format!(
        "{} items: {} ran ({} of them beyond a bound), {} could not be run, {} need the rig",
        outcomes.len(),
        count(|outcome| matches!(outcome.state, OutcomeState::Ran(_))),
        count(ItemOutcome::is_missed),
        count(|outcome| outcome.failure().is_some()),
        count(|outcome| matches!(outcome.state, OutcomeState::Needs(_))),
    )
}

/// Of each item one row that the paper has digits for, one that is beyond its bound before any other, and how
/// many rows there are: a page to keep.
pub fn markdown(outcomes: &[ItemOutcome], machine: &Value, is_quick: bool) -> String {
    let mut text = format!(
        "{} processors ({}), Linux {}. {}.\n\n| item | rows | one of them | farbus | the paper |\n|---|---|---|---|---|\n",
        machine["cpus"],
        machine["cpu"].as_str().unwrap_or_default(),
        machine["kernel"].as_str().unwrap_or_default(),
        summary(outcomes),
    );
    if is_quick {
        text.insert_str(0, "The quick form: few repeats. ");
    }
    for outcome in outcomes {
        let rows = outcome.rows();
        let rank = |row: &&ItemRow| (row.is_missed, !row.paper.is_empty());
        let Some(row) = rows.iter().rev().max_by_key(rank) else {
            let _ = writeln!(text, "| {} | {} | | | |", outcome.item.name(), outcome.status());
            continue;
        };
        let missed = if row.is_missed { format!(" (missed: {})", row.bound) } else { String::new() };
        let cell = |text: &str| text.replace('|', "/");
        let (name, what, paper) = (outcome.item.name(), cell(&row.what), cell(&row.paper));
        let _ = writeln!(text, "| {name} | {} | {what} | {}{missed} | {paper} |", rows.len(), row.shown());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::items::{self, PAPERS};

    /// `docs/papers.md`, which a test compares with this.
    fn page() -> String {
        let mut text = String::from(
            "# The papers\n\n<!-- Made by `FARBUS_BLESS=1 cargo test -p farbus-papers`; do not edit. -->\n\n\
             `farbus papers --report papers.html` runs these with farbus and draws them beside the papers' digits; \
             `farbus papers 2005 figure-9` runs one.\n\n\
             | item | shows | how |\n|---|---|---|\n",
        );
        for item in items::all() {
            let _ = writeln!(text, "| {} | {} | {}: {} |", item.name(), item.title, item.evidence.label(), item.by());
        }
        text.push('\n');
        for (year, title) in PAPERS {
            let _ = writeln!(text, "- {year}: {title}");
        }
        text
    }

    /// Where the page stands.
    const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/papers.md");

    #[test]
    fn page_of_the_documentation_is_current() {
        if std::env::var_os("FARBUS_BLESS").is_some() {
            std::fs::write(PAGE, page()).expect("written");
        }
        let stands = std::fs::read_to_string(PAGE).unwrap_or_default();
        assert!(stands == page(), "docs/papers.md is old: FARBUS_BLESS=1 cargo test -p farbus-papers");
    }
}
