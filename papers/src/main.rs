//! `farbus papers`: the tables and figures of the five papers that farbus is built on, run again with farbus, each
//! beside the paper's own digits.
//!
//! It may touch what the benchmarks may: processes, sockets, clocks; and the files that its options name. It never
//! touches a device of this machine. Start reading at [`items`], a file for each paper; [`run`] runs what they need,
//! [`result`] has their rows, [`html`] and [`document`] show them. Why apart from `bench`: a benchmark has targets of
//! farbus's own and may change with it, an item has digits that were printed once.

mod document;
mod html;
mod item;
mod items;
mod misconfigured;
mod plans;
mod result;
mod rows;
mod run;
mod simulated;

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::{Context, Result, bail};
use clap::Parser;
use farbus_bench::MeasurementPlan;
use serde_json::json;

use crate::{
    item::PaperItem,
    items::PAPERS,
    run::{ItemOutcome, ItemRunner},
};

/// Repeats tables and figures of the papers with farbus, beside the papers' own digits.
///
/// Ends with 1 when a bound is missed or a row is missing, and with 2 when something could not be run.
#[derive(Parser)]
#[command(
    name = "farbus-papers",
    after_help = "Examples:
  farbus papers --list                             every item, and how it is made
  farbus papers 2005 figure-9                      one figure
  farbus papers 2023 table-4 figure-6              two of one paper
  farbus papers --quick --report papers.html       all of them, in three minutes
  farbus papers --report papers.html               all of them, as root; up to an hour"
)]
struct PapersCommandLine {
    /// A paper's year, and items of it: 2005 figure-9; all of them if left out
    #[arg(value_name = "ITEM")]
    words: Vec<String>,
    /// Name the items and how each is made; run nothing
    #[arg(long)]
    list: bool,
    /// Fewer sizes, seeds and repeats, and nothing that takes minutes: three minutes in all
    #[arg(long)]
    quick: bool,
    /// Write each item's charts into this folder
    #[arg(long, value_name = "FOLDER")]
    plots: Option<PathBuf>,
    /// Write everything as one page that needs no other file
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Write one row of each item as a Markdown table
    #[arg(long, value_name = "FILE")]
    markdown: Option<PathBuf>,
    /// Print JSON, for programs
    #[arg(long)]
    json: bool,
    /// Compare the rows of '--quick' with the list that this program has, and fail if one is missing
    #[arg(long, requires = "quick")]
    check: bool,
    /// The farbus command [default: the one beside this binary]
    #[arg(long, value_name = "PATH")]
    farbus: Option<PathBuf>,
}

fn main() -> ExitCode {
    if let Some(code) = farbus_bench::serve_if_called_as_peer() {
        return code;
    }
    match PapersCommandLine::parse().run() {
        Ok(code) => code,
        Err(error) => {
            eprintln!("farbus-papers: {error:#}");
            ExitCode::from(2)
        }
    }
}

impl PapersCommandLine {
    fn run(self) -> Result<ExitCode> {
        let chosen = chosen(&self.words)?;
        if self.list {
            self.print_list(&chosen)?;
            return Ok(ExitCode::SUCCESS);
        }
        if cfg!(debug_assertions) && !self.check {
            eprintln!("farbus-papers: this build is not optimized, its figures say nothing: cargo build --release");
        }
        let farbus = match self.farbus {
            Some(ref path) => path.clone(),
            None => std::env::current_exe()?.with_file_name("farbus"),
        };
        if !farbus.exists() {
            bail!(
                "{} does not exist: build it (cargo build --release -p farbus-cli) or name it with --farbus",
                farbus.display()
            );
        }
        let mut runner = ItemRunner::new(MeasurementPlan { farbus, quick: self.quick });
        let outcomes: Vec<ItemOutcome> = chosen.iter().map(|item| runner.run(item)).collect();
        for outcome in &outcomes {
            if let Some(folder) = &self.plots {
                write_charts(folder, outcome)?;
            }
            if !self.json {
                print!("{}", document::for_terminal(outcome));
            }
        }
        let machine = farbus_bench::machine();
        if self.json {
            let items: Vec<_> = outcomes.iter().map(ItemOutcome::json).collect();
            println!(
                "{}",
                serde_json::to_string_pretty(&json!({"machine": machine, "quick": self.quick, "items": items}))?
            );
        } else {
            println!("{}", document::summary(&outcomes));
        }
        let pages = [
            self.report.as_ref().map(|path| (path, html::page(&outcomes, &machine, self.quick))),
            self.markdown.as_ref().map(|path| (path, document::markdown(&outcomes, &machine, self.quick))),
        ];
        for (path, page) in pages.into_iter().flatten() {
            std::fs::write(path, page).with_context(|| format!("cannot write {}", path.display()))?;
        }
        let missing = if self.check { rows::missing(&outcomes) } else { Vec::new() };
        missing.iter().for_each(|row| eprintln!("farbus-papers: this row is missing: {row}"));
        Ok(if outcomes.iter().any(|outcome| outcome.failure().is_some()) {
            ExitCode::from(2)
        } else {
            // A check is of the rows: a busy machine may miss a bound.
            let is_missed = !self.check && outcomes.iter().any(ItemOutcome::is_missed);
            ExitCode::from(u8::from(is_missed || !missing.is_empty()))
        })
    }

    fn print_list(&self, chosen: &[&'static PaperItem]) -> Result<()> {
        if self.json {
            let items: Vec<_> = chosen.iter().map(|item| item.json()).collect();
            println!("{}", serde_json::to_string_pretty(&items)?);
            return Ok(());
        }
        for item in chosen {
            println!("{} {:<12} {:<24} {}", item.paper, item.word(), item.evidence.label(), item.title);
        }
        Ok(())
    }
}

/// The items that these words name.
fn chosen(words: &[String]) -> Result<Vec<&'static PaperItem>> {
    let mut years: Vec<u16> = Vec::new();
    let mut numbers: Vec<&String> = Vec::new();
    for word in words {
        match word.parse() {
            Ok(year) if PAPERS.iter().any(|(paper, _)| *paper == year) => years.push(year),
            Ok(year) => bail!("there is no paper of {year}: there are 2005, 2007, 2008, 2013, 2023"),
            Err(_) => numbers.push(word),
        }
    }
    let of_years = |item: &&&PaperItem| years.is_empty() || years.contains(&item.paper);
    let all = items::all();
    if let Some(unknown) = numbers.iter().find(|word| !all.iter().filter(of_years).any(|item| item.is_called(word))) {
        bail!("there is no item '{unknown}' here; 'farbus papers --list' names them");
    }
    let is_named = |item: &&PaperItem| numbers.is_empty() || numbers.iter().any(|word| item.is_called(word));
    Ok(all.iter().filter(of_years).copied().filter(is_named).collect())
}

fn write_charts(folder: &Path, outcome: &ItemOutcome) -> Result<()> {
    std::fs::create_dir_all(folder).with_context(|| format!("cannot make the folder {}", folder.display()))?;
    for (at, svg) in outcome.charts().iter().enumerate() {
        let more = if at == 0 { String::new() } else { format!("-{}", at + 1) };
        let path = folder.join(format!("{}-{}{more}.svg", outcome.item.paper, outcome.item.word()));
        std::fs::write(&path, svg).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_choose_papers_and_items_and_unknown_ones_are_refused() {
        let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        let names = |text: &str| {
            let found = chosen(&words(text)).expect("known");
            found.iter().map(|item| item.name()).collect::<Vec<_>>()
        };
        assert_eq!(names("").len(), items::all().len());
        assert_eq!(names("2008"), ["2008 Table 1", "2008 Table 2"]);
        assert_eq!(names("2005 fig9 figure-13"), ["2005 Figure 9", "2005 Figure 13"]);
        assert_eq!(names("table-9"), ["2023 Table 9"]);
        for wrong in ["2006", "2008 figure-9", "table-99"] {
            assert!(chosen(&words(wrong)).is_err(), "{wrong}");
        }
    }
}
