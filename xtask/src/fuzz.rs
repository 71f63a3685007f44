//! `cargo xtask fuzz`: every decoder and state machine under random bytes and operations.
//!
//! A fuzz target is a test named `fuzz_…` in any crate. It reads from `FARBUS_FUZZ_SECONDS` how long to go on; without
//! it, in a plain `cargo test`, it stops after a moment. As many targets run at a time as there are processors, so that
//! each has its time.

use crate::cargo::{self, cargo};
use crate::coverage;
use clap::Args;
use std::process::Command;

/// How long a target goes on, in seconds.
const SECONDS_VARIABLE: &str = "FARBUS_FUZZ_SECONDS";
/// What a run begins from; the same inputs for the same seed.
const SEED_VARIABLE: &str = "FARBUS_FUZZ_SEED";
/// The seed of the gate: it says whether a change broke something, not whether today's dice found something old.
const GATE_SEED: &str = "273";
/// What the names of targets begin with.
const PREFIX: &str = "fuzz_";

#[derive(Args)]
pub struct FuzzArgs {
    /// How long each target runs
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..))]
    seconds: u32,
    /// Only targets whose names contain this
    #[arg(long, value_name = "NAME", default_value = PREFIX)]
    only: String,
    /// Build optimized, with all checks kept: about ten times the inputs, after a build of its own
    #[arg(long)]
    optimized: bool,
    /// Count the lines that ran, in a build of its own; prints a table of source files
    #[arg(long, conflicts_with = "optimized")]
    coverage: bool,
}

pub fn run(arguments: &FuzzArgs) -> Result<(), String> {
    if arguments.coverage {
        return count_lines(arguments.seconds, &arguments.only);
    }
    let fuzzing = FuzzRun { optimized: arguments.optimized, only: &arguments.only, seed: None };
    fuzzing.run(arguments.seconds)
}

/// All targets, for so long each, with inputs that nobody tried before; says which lines they ran.
pub fn explore(seconds: u32) -> Result<(), String> {
    count_lines(seconds, PREFIX)
}

fn count_lines(seconds: u32, only: &str) -> Result<(), String> {
    coverage::run(|listed| targets(listed, only), &[(SECONDS_VARIABLE, seconds.to_string())])
}

/// All targets, for so long each, always with the same inputs (or those of the seed that the environment names).
pub fn gate(seconds: u32) -> Result<(), String> {
    let seed = std::env::var(SEED_VARIABLE).unwrap_or_else(|_| GATE_SEED.to_owned());
    FuzzRun { optimized: false, only: PREFIX, seed: Some(seed) }.run(seconds)
}

struct FuzzRun<'a> {
    optimized: bool,
    only: &'a str,
    seed: Option<String>,
}

impl FuzzRun<'_> {
    fn run(&self, seconds: u32) -> Result<(), String> {
        let listed = cargo::output(self.command(&["--list", "--format", "terse"]))?;
        let targets = targets(&String::from_utf8_lossy(&listed), self.only);
        if targets.is_empty() {
            return Err(format!("no test {PREFIX}… has {} in its name: this proves nothing", self.only));
        }
        println!("{} targets, {seconds} s each: {}", targets.len(), targets.join(", "));
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let mut command = self.command(&["--exact", &format!("--test-threads={threads}"), "--nocapture"]);
        command.args(&targets).env(SECONDS_VARIABLE, seconds.to_string());
        command.envs(self.seed.iter().map(|seed| (SEED_VARIABLE, seed)));
        cargo::run(command)
    }

    fn command(&self, harness_arguments: &[&str]) -> Command {
        let mut command = cargo(&["test", "--workspace", "--lib", "--bins", "--tests"]);
        if self.optimized {
            command = optimized(command);
        }
        command.arg("--").args(harness_arguments);
        command
    }
}

/// A test command whose build is optimized and keeps all checks: its own build, and a quick one.
pub fn optimized(mut command: Command) -> Command {
    command.args(["--release", "--target-dir", "target/fuzz"]);
    command.env("CARGO_PROFILE_RELEASE_DEBUG_ASSERTIONS", "true");
    command.env("CARGO_PROFILE_RELEASE_OVERFLOW_CHECKS", "true");
    command.env("CARGO_PROFILE_RELEASE_LTO", "off").env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16");
    command
}

/// The targets among the tests that were listed, `path::name: test` a line.
fn targets(listed: &str, only: &str) -> Vec<String> {
    let tests = listed.lines().filter_map(|line| line.strip_suffix(": test"));
    let mut targets: Vec<String> = tests
        .filter(|test| test.rsplit("::").next().is_some_and(|name| name.starts_with(PREFIX)))
        .filter(|test| test.contains(only))
        .map(str::to_owned)
        .collect();
    targets.sort();
    targets.dedup();
    targets
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_told_by_their_names() {
        let listed =
            "codec::tests::fuzz_header: test\nfuzz_ops: test\nprefuzz_x: test\ntests::plain: test\nfuzz_b: benchmark\n";
        assert_eq!(targets(listed, PREFIX), ["codec::tests::fuzz_header", "fuzz_ops"]);
        assert_eq!(targets(listed, "header"), ["codec::tests::fuzz_header"]);
        assert_eq!(targets(listed, "nothing"), [""; 0]);
    }
}
