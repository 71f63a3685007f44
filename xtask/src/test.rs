//! `cargo xtask test`: everything that must pass, in order. This is the gate.
//!
//! What is slow and rarely changes is left out when nothing that it tests changed (`gate.toml`); what was left out is
//! listed at the end.

use crate::axe;
use crate::cargo::{self, cargo};
use crate::changes;
use crate::parts::{self, GatePlan};
use crate::steps::{self, GateStep, StepSuccess};
use crate::{
    book, demo, deny, dist, fuzz, instructions, library, package, portable, prerequisites, release, rerun, rig, tidy,
    upgrade, workspace,
};
use clap::Args;
use std::cell::OnceCell;
use std::process::Command;
use std::rc::Rc;

/// The steps in the order they run, cheapest first.
pub const STEPS: [&str; 15] = [
    "format",
    "clippy",
    "tidy",
    "deny",
    "portable",
    "instructions",
    "test",
    "book",
    "examples",
    "fuzz",
    "machine",
    "upgrade",
    "rig",
    "demo",
    "package",
];

/// How long each fuzz target runs when it is one step among others.
const FUZZ_SECONDS: u32 = 3;

/// The steps that use the release program.
const RELEASE_STEPS: [&str; 3] = ["rig", "demo", "package"];

#[derive(Args)]
#[command(after_help = "Steps, in order:
  format        every file is formatted
  clippy        no warnings
  tidy          the rules of the architecture
  deny          licences, duplicates and sources of dependencies; known advisories where a database is (deny.toml)
  portable      the pure crates compile for Windows and for 32-bit ARM
  instructions  what a request costs in instructions, against xtask/instructions.toml
  test          every test of every crate; one that fails fails the run, and is diagnosed alone
  book          mdBook makes the pages of the documents
  examples      every example does what it shows
  fuzz          a short run of every fuzz target
  machine       FUSE, loop devices and file systems of this machine (root); a part of `test` if both run
  upgrade       this version and the previous release with each other (xtask/releases.toml)
  rig           real kernels in virtual machines
  demo          what the README promises
  package       the Debian package, installed, used and purged in a fresh Debian (root); the programs, installed from their crates

The parts that xtask/gate.toml names run when a file that they test changed: since this branch left the main one, or since the commit that
FARBUS_GATE_BASE names. Where that is not known, everything runs. What was left out is listed at the end with the line that runs it.

Examples:
  cargo xtask test                     the gate
  cargo xtask test --all               and what it would leave out
  cargo xtask test --only upgrade      one step, whatever changed
  cargo xtask test --skip-rig          without virtual machines")]
pub struct TestArgs {
    /// Run this step only; may be given several times
    #[arg(long, value_name = "STEP", value_parser = STEPS)]
    only: Vec<String>,
    /// Leave out this step; may be given several times
    #[arg(long, value_name = "STEP", value_parser = STEPS)]
    skip: Vec<String>,
    /// Leave out the virtual machines: the same as --skip rig
    #[arg(long)]
    skip_rig: bool,
    /// Leave out nothing, whatever changed
    #[arg(long)]
    all: bool,
    /// Install missing Debian packages (as root)
    #[arg(long)]
    install: bool,
}

pub fn run(arguments: &TestArgs) -> Result<(), String> {
    let chosen = chosen(arguments);
    let gate = parts::read()?;
    let plan = if arguments.all || !arguments.only.is_empty() {
        GatePlan { messages: vec!["everything runs, as asked".to_owned()], ..GatePlan::default() }
    } else {
        gate.plan(&changes::since_passed(&workspace::root()), &chosen)
    };
    plan.messages.iter().for_each(|message| println!("gate: {message}"));
    let running: Vec<&str> = chosen.iter().copied().filter(|step| !plan.steps.contains_key(*step)).collect();
    prerequisites::check(&running, arguments.install)?;
    let not_asked = if arguments.only.is_empty() { STEPS.as_slice() } else { &[] };
    let not_asked = not_asked.iter().filter(|step| !chosen.contains(*step));
    let left_out =
        not_asked.map(|step| format!("{step}: as asked; to run it: cargo xtask test --only {step}")).collect();
    let is_wanted = running.contains(&"test") && running.iter().any(|step| RELEASE_STEPS.contains(step));
    let ahead = BuildAhead { is_wanted, build: Rc::default() };
    if !running.contains(&"instructions") {
        ahead.start()?;
    }
    let steps = steps_of(&chosen, &plan, &ahead);
    steps::run_all(steps, steps::RunLog { bytes_max: gate.log, limits: Some(gate.minutes), left_out })
}

/// The build of the release program beside the tests, until the gate's end. Only one build at a time uses the folder of
/// release builds: it begins when that of `instructions` has ended.
#[derive(Clone, Default)]
struct BuildAhead {
    is_wanted: bool,
    build: Rc<OnceCell<dist::BackgroundBuild>>,
}

impl BuildAhead {
    fn start(&self) -> Result<(), String> {
        if self.is_wanted && self.build.get().is_none() {
            let _ = self.build.set(dist::BackgroundBuild::start()?);
        }
        Ok(())
    }
}

/// Every test is run once: with `machine`, those that need this machine's abilities may not pass without them in
/// `test`.
fn steps_of(chosen: &[&'static str], plan: &GatePlan, ahead: &BuildAhead) -> Vec<GateStep> {
    let is_within = |name: &&str| *name == "machine" && chosen.contains(&"test");
    let with_machine = chosen.contains(&"machine");
    let made = |name: &'static str| match (name, plan.steps.get(name).cloned()) {
        (name, Some(line)) => GateStep::new(name, "left out", || Ok(StepSuccess::LeftOut(line))),
        ("test", _) if with_machine => {
            GateStep::new("test", "every test of every crate, those of `machine` among them", || {
                let axe = axe::find();
                let at = axe.as_ref().map(|path| path.display().to_string());
                let mut variables = vec![(REQUIRE_VARIABLE, "1")];
                variables.extend(at.as_deref().map(|at| (axe::VARIABLE, at)));
                rerun::run(&variables, rerun::SkipPolicy::ThoseOfOtherSteps)?;
                Ok(if axe.is_some() { StepSuccess::All } else { StepSuccess::Without(vec![axe::LEFT_OUT.to_owned()]) })
            })
        }
        ("upgrade", _) if with_machine => {
            GateStep::new("upgrade", UPGRADE, || upgrade::run(&[(REQUIRE_VARIABLE, "1")]))
        }
        ("instructions", _) => {
            let ahead = ahead.clone();
            GateStep::new(name, INSTRUCTIONS, move || run_instructions(&ahead))
        }
        ("rig", _) => {
            let left_out = plan.cases.clone();
            GateStep::new("rig", "real kernels in virtual machines", move || run_rig(&left_out))
        }
        (name, None) => step(name),
    };
    chosen.iter().filter(|name| !is_within(name)).map(|name| made(name)).collect()
}

/// The rig without the cases that are left out.
fn run_rig(left_out: &[(Vec<String>, String)]) -> Result<StepSuccess, String> {
    let patterns: Vec<&str> = left_out.iter().flat_map(|(cases, _)| cases).map(String::as_str).collect();
    rig::run_cases(1, &patterns)?;
    Ok(if left_out.is_empty() {
        StepSuccess::All
    } else {
        StepSuccess::Without(left_out.iter().map(|(_, line)| line.clone()).collect())
    })
}

/// What the step `instructions` is.
const INSTRUCTIONS: &str = "what a request costs in instructions, against xtask/instructions.toml";

fn run_instructions(ahead: &BuildAhead) -> Result<StepSuccess, String> {
    if let Some(obstacle) = instructions::obstacle() {
        ahead.start()?;
        return Ok(StepSuccess::Skipped(obstacle));
    }
    let program = instructions::build()?;
    ahead.start()?;
    instructions::gate(&program).map(Into::into)
}

/// What the step `upgrade` is.
const UPGRADE: &str = "this version and the previous release with each other";

/// Every step, as CI wants it.
pub fn run_everything() -> Result<(), String> {
    run(&TestArgs { only: Vec::new(), skip: Vec::new(), skip_rig: false, all: false, install: true })
}

fn chosen(arguments: &TestArgs) -> Vec<&'static str> {
    let wanted = |step: &&str| arguments.only.is_empty() || arguments.only.iter().any(|only| only == step);
    let skipped = |step: &str| (arguments.skip_rig && step == "rig") || arguments.skip.iter().any(|skip| skip == step);
    STEPS.into_iter().filter(wanted).filter(|step| !skipped(step)).collect()
}

fn step(name: &'static str) -> GateStep {
    match name {
        "format" => {
            GateStep::new(name, "every file is formatted", || cargo::run(cargo(&["fmt", "--all", "--", "--check"])))
        }
        "clippy" => GateStep::new(name, "no warnings", || {
            cargo::run(cargo(&["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"]))?;
            library::check()
        }),
        "tidy" => GateStep::new(name, "the rules of the architecture", tidy::run),
        "deny" => GateStep::new(name, "licences, duplicates, sources and advisories of dependencies", || {
            deny::run(&deny::DenyArgs::default())
        }),
        "portable" => GateStep::new(name, "the pure crates compile for Windows and for 32-bit ARM", portable::run),
        "instructions" => GateStep::new(name, INSTRUCTIONS, || run_instructions(&BuildAhead::default())),
        "test" => GateStep::new(name, "every test of every crate", || rerun::run(&[], rerun::SkipPolicy::Any)),
        "book" => GateStep::new(name, "mdBook makes the pages of the documents", book::build),
        "examples" => GateStep::new(name, "every example does what it shows", run_examples),
        "fuzz" => GateStep::new(name, "a short run of every fuzz target", || fuzz::gate(FUZZ_SECONDS)),
        "machine" => GateStep::new(name, "FUSE, loop devices and file systems of this machine", run_machine_tests),
        "upgrade" => GateStep::new(name, UPGRADE, || upgrade::run(&[])),
        "rig" => GateStep::new(name, "real kernels in virtual machines", || rig::run_cases(1, &[])),
        "demo" => GateStep::new(name, "what the README promises", demo::run),
        "package" => GateStep::new(
            name,
            "the Debian package is installed, used and purged in a fresh Debian; a release is rehearsed",
            || {
                release::check()?;
                package::gate()
            },
        ),
        _ => unreachable!("a name of STEPS"),
    }
}

/// Runs each example to its end. They are built together: alone, each would have its dependencies built again with
/// fewer features.
fn run_examples() -> Result<(), String> {
    let built = cargo::executables(cargo(&["build", "--workspace", "--examples"]))?;
    let examples: Vec<_> = built.iter().filter(|built| built.kind == "example").collect();
    if !examples.iter().any(|example| example.folder.ends_with("crates/farbus")) {
        return Err("package farbus has no examples: this step proves nothing".into());
    }
    for example in examples {
        let mut command = Command::new(&example.path);
        command.current_dir(workspace::root()).stdin(std::process::Stdio::null());
        cargo::run(command)?;
    }
    Ok(())
}

/// Tests that need root, FUSE or loop devices say so and pass where there are none; with this variable at 1 they fail
/// there. A test target that reads it is one of this step's.
const REQUIRE_VARIABLE: &str = "FARBUS_REQUIRE_RIG";

pub fn run_machine_tests() -> Result<(), String> {
    cargo::build_for_command_tests()?;
    let mut command = cargo(&["test", "--workspace"]);
    let mut found = false;
    for test in cargo::targets()?.into_iter().filter(|target| target.is_test) {
        let text = std::fs::read_to_string(&test.source)
            .map_err(|trouble| format!("cannot read {}: {trouble}", test.source.display()))?;
        if text.contains(REQUIRE_VARIABLE) {
            command.args(["--test", &test.name]);
            found = true;
        }
    }
    command.env(REQUIRE_VARIABLE, "1");
    if found { cargo::run(command) } else { Err(format!("no test reads {REQUIRE_VARIABLE}: this step proves nothing")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arguments(only: &[&str], skip: &[&str], skip_rig: bool) -> TestArgs {
        let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        TestArgs { only: owned(only), skip: owned(skip), skip_rig, all: false, install: false }
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
        let names = |chosen: &[&'static str]| {
            steps_of(chosen, &GatePlan::default(), &BuildAhead::default())
                .iter()
                .map(|step| step.name)
                .collect::<Vec<_>>()
        };
        assert_eq!(names(&["test", "machine", "rig"]), ["test", "rig"]);
        assert_eq!(names(&["machine"]), ["machine"]);
    }

    #[test]
    fn a_step_that_is_left_out_says_so_and_stays_in_its_place() {
        let plan = GatePlan { steps: [("rig".to_owned(), "type this".to_owned())].into(), ..GatePlan::default() };
        let mut steps = steps_of(&["upgrade", "rig", "demo"], &plan, &BuildAhead::default());
        assert_eq!(steps.iter().map(|step| step.name).collect::<Vec<_>>(), ["upgrade", "rig", "demo"]);
        assert_eq!((steps.remove(1).run)(), Ok(StepSuccess::LeftOut("type this".to_owned())));
    }

    #[test]
    fn every_name_is_a_step() {
        for name in STEPS {
            assert_eq!(step(name).name, name);
        }
    }
}
