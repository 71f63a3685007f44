//! `cargo xtask test`: everything that must pass, in order.

use crate::cargo::{self, cargo};
use crate::steps::{self, Step};
use crate::{demo, fuzz, hearing, prerequisites, rig, tidy};
use clap::Args;

/// The steps in the order they run, cheapest first.
pub const STEPS: [&str; 9] = ["format", "clippy", "tidy", "test", "examples", "fuzz", "machine", "rig", "demo"];

/// How long each fuzz target runs when it is one step among others.
const FUZZ_SECONDS: u32 = 5;

#[derive(Args)]
#[command(after_help = "Steps, in order:
  format    every file is formatted
  clippy    no warnings
  tidy      the house's rules
  test      every test of every crate; the few that fail are tried once more, alone, and named
  examples  every example does what it shows
  fuzz      a short run of every fuzz target
  machine   FUSE, loop devices and file systems of this machine (root); a part of `test` if both run
  rig       real kernels in virtual machines
  demo      what the README promises")]
pub struct Arguments {
    /// Run this step only; may be given several times
    #[arg(long, value_name = "STEP", value_parser = STEPS)]
    only: Vec<String>,
    /// Leave out this step; may be given several times
    #[arg(long, value_name = "STEP", value_parser = STEPS)]
    skip: Vec<String>,
    /// Leave out the virtual machines: the same as --skip rig
    #[arg(long)]
    skip_rig: bool,
    /// Install missing Debian packages (as root)
    #[arg(long)]
    install: bool,
}

pub fn run(arguments: &Arguments) -> Result<(), String> {
    let chosen = chosen(arguments);
    prerequisites::check(&chosen, arguments.install)?;
    steps::run_all(steps_of(&chosen))
}

/// Every test is run once: with `machine`, those that need this machine's abilities may not pass without them in `test`.
fn steps_of(chosen: &[&'static str]) -> Vec<Step> {
    let is_within = |name: &&str| *name == "machine" && chosen.contains(&"test");
    let with_machine = chosen.contains(&"machine");
    let made = |name: &'static str| match name {
        "test" if with_machine => Step::new("test", "every test of every crate, those of `machine` among them", || {
            hearing::run(&[(REQUIRE_VARIABLE, "1")])
        }),
        name => step(name),
    };
    chosen.iter().filter(|name| !is_within(name)).map(|name| made(name)).collect()
}

/// Every step, as CI wants it.
pub fn run_everything() -> Result<(), String> {
    run(&Arguments { only: Vec::new(), skip: Vec::new(), skip_rig: false, install: true })
}

fn chosen(arguments: &Arguments) -> Vec<&'static str> {
    let wanted = |step: &&str| arguments.only.is_empty() || arguments.only.iter().any(|only| only == step);
    let skipped = |step: &str| (arguments.skip_rig && step == "rig") || arguments.skip.iter().any(|skip| skip == step);
    STEPS.into_iter().filter(wanted).filter(|step| !skipped(step)).collect()
}

fn step(name: &'static str) -> Step {
    match name {
        "format" => {
            Step::new(name, "every file is formatted", || cargo::run(cargo(&["fmt", "--all", "--", "--check"])))
        }
        "clippy" => Step::new(name, "no warnings", || {
            cargo::run(cargo(&["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"]))
        }),
        "tidy" => Step::new(name, "the house's rules", tidy::run),
        "test" => Step::new(name, "every test of every crate", || hearing::run(&[])),
        "examples" => Step::new(name, "every example does what it shows", run_examples),
        "fuzz" => Step::new(name, "a short run of every fuzz target", || fuzz::gate(FUZZ_SECONDS)),
        "machine" => Step::new(name, "FUSE, loop devices and file systems of this machine", run_machine_tests),
        "rig" => Step::new(name, "real kernels in virtual machines", || rig::run_cases(1)),
        "demo" => Step::new(name, "what the README promises", demo::run),
        _ => unreachable!("a name of STEPS"),
    }
}

/// Runs each example to its end.
fn run_examples() -> Result<(), String> {
    let targets = cargo::targets()?;
    let examples: Vec<_> = targets.iter().filter(|target| target.is_example).collect();
    if !examples.iter().any(|example| example.package == "farbus") {
        return Err("package farbus has no examples: this step proves nothing".into());
    }
    for example in examples {
        cargo::run(cargo(&["run", "--quiet", "--package", &example.package, "--example", &example.name]))?;
    }
    Ok(())
}

/// Tests that need root, FUSE or loop devices say so and pass where there are none; with this variable at 1 they fail there.
/// A test target that reads it is one of this step's.
const REQUIRE_VARIABLE: &str = "FARBUS_REQUIRE_RIG";

pub fn run_machine_tests() -> Result<(), String> {
    let mut ran = 0;
    for test in cargo::targets()?.into_iter().filter(|target| target.is_test) {
        let text = std::fs::read_to_string(&test.source)
            .map_err(|trouble| format!("cannot read {}: {trouble}", test.source.display()))?;
        if text.contains(REQUIRE_VARIABLE) {
            let mut command = cargo(&["test", "--package", &test.package, "--test", &test.name]);
            command.env(REQUIRE_VARIABLE, "1");
            cargo::run(command)?;
            ran += 1;
        }
    }
    if ran == 0 { Err(format!("no test reads {REQUIRE_VARIABLE}: this step proves nothing")) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arguments(only: &[&str], skip: &[&str], skip_rig: bool) -> Arguments {
        let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        Arguments { only: owned(only), skip: owned(skip), skip_rig, install: false }
    }

    #[test]
    fn all_steps_run_unless_told_otherwise() {
        assert_eq!(chosen(&arguments(&[], &[], false)), STEPS);
        assert!(!chosen(&arguments(&[], &[], true)).contains(&"rig"));
        assert!(
            !chosen(&arguments(&[], &["machine", "rig"], false)).iter().any(|step| ["machine", "rig"].contains(step))
        );
        assert_eq!(chosen(&arguments(&["tidy", "format"], &[], false)), ["format", "tidy"]);
    }

    #[test]
    fn no_test_runs_twice() {
        let names = |chosen: &[&'static str]| steps_of(chosen).iter().map(|step| step.name).collect::<Vec<_>>();
        assert_eq!(names(&["test", "machine", "rig"]), ["test", "rig"]);
        assert_eq!(names(&["machine"]), ["machine"]);
    }

    #[test]
    fn every_name_is_a_step() {
        for name in STEPS {
            assert_eq!(step(name).name, name);
        }
    }
}
