//! `cargo xtask instructions`: what a request costs, in instructions, held against the figures that are committed.
//!
//! Each scenario of `crates/sim/examples/instructions` runs in a process of its own under callgrind, which counts in
//! one function of it. A count does not depend on how busy the machine is, nor on its processor: the C library takes
//! the plain variant of `memcpy` and the like (`C_LIBRARY`), and the environment is empty.
//!
//! A count that is lower than its figure fails as well: the gain would be lost again unseen.

mod figures;
mod profile;

use crate::cargo::{self, cargo};
use crate::{dist, workspace};
use clap::Args;
use figures::{FILE, InstructionFigures};
use profile::FunctionCost;
use serde::Serialize;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The program with the scenarios: an example of this package.
const PACKAGE: &str = "farbus-sim";
const PROGRAM: &str = "instructions";
/// The function in which callgrind counts, and the functions that the compiler may make of it.
const COUNTED: &str = "instructions::counted*";
/// Every x86-64 processor has what is left. With `rep movsb` (ERMS) each byte copied would count as an instruction;
/// where a copy goes past the caches depends on their size.
const C_LIBRARY: &str = "glibc.cpu.hwcaps=-AVX,-AVX2,-AVX512F,-AVX512VL,-AVX_Fast_Unaligned_Load,-ERMS,-FSRM:\
                         glibc.cpu.x86_non_temporal_threshold=0x10000000:\
                         glibc.cpu.x86_rep_movsb_threshold=0x10000000:glibc.cpu.x86_rep_stosb_threshold=0x10000000";
/// How many functions are shown of a scenario whose count is another.
const FUNCTIONS_SHOWN: usize = 10;
/// Of how many scenarios they are shown.
const TABLES_SHOWN: usize = 3;
/// Signs of a function's name that are shown, the last ones: types of the standard library fill lines.
const NAME_SIGNS_SHOWN: usize = 110;

#[derive(Args)]
#[command(after_help = "Examples:
  cargo xtask instructions                            every scenario against xtask/instructions.toml
  cargo xtask instructions --only session-64-x1 -f    one, and the functions in which its instructions are
  cargo xtask instructions --bless                    write the counts of this tree into xtask/instructions.toml")]
pub struct InstructionsArgs {
    /// This scenario only; may be given several times
    #[arg(long, value_name = "SCENARIO")]
    only: Vec<String>,
    /// Write the counts into xtask/instructions.toml, to be committed with what changed them
    #[arg(long)]
    bless: bool,
    /// Show the functions with most instructions of every scenario
    #[arg(long, short)]
    functions: bool,
    /// Write all counts to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// What one scenario took.
#[derive(Debug, Serialize)]
struct ScenarioCount {
    scenario: String,
    requests: u64,
    /// Instructions a request.
    instructions: u64,
    /// The committed figure, if there is one.
    figure: Option<u64>,
    /// Those with most first.
    functions: Vec<FunctionCost>,
}

pub fn run(arguments: &InstructionsArgs) -> Result<(), String> {
    measure(&build()?, arguments)
}

/// The step of the gate: every scenario, with a program that is built.
pub fn gate(program: &Path) -> Result<(), String> {
    measure(program, &InstructionsArgs { only: Vec::new(), bless: false, functions: false, json: None })
}

/// Why no count of this machine can be held against the figures; `None`: it can.
pub fn obstacle() -> Option<String> {
    let is_theirs = cfg!(all(target_arch = "x86_64", target_os = "linux", target_env = "gnu"));
    (!is_theirs).then(|| format!("the figures of {FILE} are of x86-64 and glibc, and so is this step"))
}

/// Builds the program as the product is built. The product's package is named, too: so the crates of both have the same
/// features, and are built once.
pub fn build() -> Result<PathBuf, String> {
    let product = dist::package_in(&workspace::root());
    let build = cargo(&["build", "--release", "--package", PACKAGE, "--package", product, "--example", PROGRAM]);
    let built = cargo::executables(build)?.into_iter().find(|built| built.kind == "example" && built.name == PROGRAM);
    built.map(|built| built.path).ok_or_else(|| format!("cargo built no example {PROGRAM}"))
}

fn measure(program: &Path, arguments: &InstructionsArgs) -> Result<(), String> {
    if let Some(obstacle) = obstacle() {
        return Err(obstacle);
    }
    let mut figures = InstructionFigures::read(&workspace::root())?;
    let mut list = Command::new(program);
    list.arg("list");
    let list = String::from_utf8_lossy(&cargo::output(list)?).into_owned();
    let all: Vec<&str> = list.lines().collect();
    if let Some(unknown) = arguments.only.iter().find(|only| !all.contains(&only.as_str())) {
        return Err(format!("there is no scenario {unknown}; there are {}", all.join(", ")));
    }
    figures.keep(&all, arguments.bless)?;
    let mut counts = Vec::new();
    for name in all.iter().filter(|name| arguments.only.is_empty() || arguments.only.iter().any(|only| only == *name)) {
        let count = count(program, name, figures.figure(name))?;
        println!("{}", line(&count));
        if arguments.functions {
            print!("{}", table(&count));
        }
        counts.push(count);
    }
    if let Some(file) = &arguments.json {
        let text = serde_json::to_string_pretty(&counts).map_err(|error| error.to_string())?;
        std::fs::write(file, text).map_err(|error| format!("cannot write {}: {error}", file.display()))?;
    }
    if arguments.bless {
        counts.iter().for_each(|count| figures.set(&count.scenario, count.instructions));
        return figures.write(&workspace::root());
    }
    let is_another = |count: &&ScenarioCount| !figures.allows(&count.scenario, count.instructions);
    let others: Vec<&ScenarioCount> = counts.iter().filter(is_another).collect();
    if others.is_empty() { Ok(()) } else { Err(complaint(others, &figures)) }
}

/// Runs a scenario under callgrind.
fn count(program: &Path, scenario: &str, figure: Option<u64>) -> Result<ScenarioCount, String> {
    let folder = program.parent().ok_or("cargo built a program outside of a folder")?;
    let profile = folder.join(format!("{scenario}.callgrind"));
    let mut command = Command::new("valgrind");
    command.args(["--quiet", "--tool=callgrind", "--collect-atstart=no"]).arg(format!("--toggle-collect={COUNTED}"));
    command.arg(format!("--callgrind-out-file={}", profile.display())).arg(program).arg(scenario);
    // The stack begins at the same address with every environment that is as long.
    command.env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default()).env("GLIBC_TUNABLES", C_LIBRARY);
    command.current_dir(folder).stdin(Stdio::null()).stderr(Stdio::inherit());
    let output = command.output().map_err(|error| {
        format!(
            "cannot start valgrind ({error}); as root, type:\n  apt-get install -y --no-install-recommends valgrind"
        )
    })?;
    let printed = String::from_utf8_lossy(&output.stdout);
    if !output.status.success() {
        return Err(format!("{} failed ({}): {printed}", cargo::display(&command), output.status));
    }
    let requests: u64 = printed.trim().parse().map_err(|_| format!("{scenario} printed no number: {printed}"))?;
    let text = std::fs::read_to_string(&profile).map_err(|error| format!("{}: {error}", profile.display()))?;
    let read = profile::read(&text, &workspace::root());
    if read.instructions == 0 || requests == 0 {
        return Err(format!("{scenario}: nothing was counted; has {COUNTED} of {PROGRAM} another name now?"));
    }
    let instructions = rounded(read.instructions, requests);
    let a_request = |cost: FunctionCost| FunctionCost { instructions: rounded(cost.instructions, requests), ..cost };
    let functions = read.functions.into_iter().take(FUNCTIONS_SHOWN).map(a_request).collect();
    Ok(ScenarioCount { scenario: scenario.to_owned(), requests, instructions, figure, functions })
}

fn rounded(instructions: u64, requests: u64) -> u64 {
    (instructions + requests / 2) / requests
}

/// How many percent more than the figure; negative: less.
fn percent_more(count: u64, figure: u64) -> f64 {
    (count as f64 / figure as f64 - 1.0) * 100.0
}

fn line(ScenarioCount { scenario, instructions, figure, .. }: &ScenarioCount) -> String {
    let difference = figure.map_or("no figure yet".to_owned(), |figure| {
        format!("{figure:>7} committed, {:+.2} %", percent_more(*instructions, figure))
    });
    format!("{scenario:24} {instructions:>7} instructions a request, {difference}")
}

fn table(count: &ScenarioCount) -> String {
    let mut text = String::new();
    for FunctionCost { function, place, instructions, .. } in &count.functions {
        let percent = *instructions as f64 / count.instructions as f64 * 100.0;
        let more = function.chars().count().saturating_sub(NAME_SIGNS_SHOWN);
        let name: String = if more > 0 { "…" } else { "" }.chars().chain(function.chars().skip(more)).collect();
        let _ = writeln!(text, "  {instructions:>7} {percent:>4.1} %  {name} ({place})");
    }
    text
}

/// What a person needs who sees the step fail: the scenarios that are another now, the largest difference first, with
/// functions of the first ones, and what to type.
fn complaint(mut others: Vec<&ScenarioCount>, figures: &InstructionFigures) -> String {
    let off = |count: &ScenarioCount| count.figure.map_or(f64::MAX, |at| percent_more(count.instructions, at).abs());
    others.sort_by(|one, other| off(other).total_cmp(&off(one)));
    let mut text = String::new();
    for (at, count) in others.iter().enumerate() {
        let ScenarioCount { scenario, instructions, figure, .. } = count;
        let _ = write!(text, "scenario {scenario}: a request takes {instructions} instructions, and {FILE} has ");
        let _ = match *figure {
            None => writeln!(text, "no figure"),
            Some(figure) => writeln!(
                text,
                "{figure}: {} {} ({:+.1} %), where {} % is allowed",
                instructions.abs_diff(figure),
                if *instructions > figure { "more" } else { "fewer" },
                percent_more(*instructions, figure),
                figures.allowed_percent(scenario)
            ),
        };
        if at < TABLES_SHOWN {
            let _ = write!(text, "most are in these functions, with their copies and allocations:\n{}", table(count));
        }
    }
    let names: Vec<String> = others.iter().map(|count| format!("--only {}", count.scenario)).collect();
    let _ = write!(
        text,
        "if it is meant, or a gain that is to be kept, type this and commit {FILE}:\n  cargo xtask instructions {} --bless",
        names.join(" ")
    );
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(scenario: &str, instructions: u64, figure: Option<u64>) -> ScenarioCount {
        let (function, place) = (format!("wire::{scenario}"), "crates/wire/src/lane.rs:7".to_owned());
        let functions = vec![FunctionCost { function, place, instructions: 500 }];
        ScenarioCount { scenario: scenario.to_owned(), requests: 2, instructions, figure, functions }
    }

    #[test]
    fn complaint_names_both_figures_the_functions_and_what_to_type() {
        let (slow, fast) = (counted("slow", 1250, Some(1000)), counted("fast", 900, Some(1000)));
        let text = complaint(vec![&fast, &slow], &InstructionFigures::default());
        assert_eq!(
            text,
            "scenario slow: a request takes 1250 instructions, and xtask/instructions.toml has 1000: 250 more (+25.0 %), \
             where 3 % is allowed\nmost are in these functions, with their copies and allocations:\n\
             \x20     500 40.0 %  wire::slow (crates/wire/src/lane.rs:7)\n\
             scenario fast: a request takes 900 instructions, and xtask/instructions.toml has 1000: 100 fewer (-10.0 %), \
             where 3 % is allowed\nmost are in these functions, with their copies and allocations:\n\
             \x20     500 55.6 %  wire::fast (crates/wire/src/lane.rs:7)\n\
             if it is meant, or a gain that is to be kept, type this and commit xtask/instructions.toml:\n  \
             cargo xtask instructions --only slow --only fast --bless"
        );
    }

    #[test]
    fn scenario_without_a_figure_comes_first() {
        let (slow, new) = (counted("slow", 1250, Some(1000)), counted("new", 5, None));
        let text = complaint(vec![&slow, &new], &InstructionFigures::default());
        assert!(text.starts_with("scenario new: a request takes 5 instructions, and xtask/instructions.toml has no"));
    }
}
