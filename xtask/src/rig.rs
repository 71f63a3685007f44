//! `cargo xtask rig`: tests against real Linux kernels in virtual machines.

use crate::cargo::{self, cargo};
use crate::workspace;
use clap::Args;

#[derive(Args)]
pub struct Arguments {
    /// What to tell the rig: `list`, `run`, `run NAME…`
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGUMENT", default_value = "run")]
    rig: Vec<String>,
}

pub fn run(arguments: &Arguments) -> Result<(), String> {
    run_rig(&arguments.rig.iter().map(String::as_str).collect::<Vec<_>>())
}

/// Every case; those that repeat, so often.
pub fn run_cases(times: u32) -> Result<(), String> {
    run_rig(&["run", "--times", &times.to_string()])
}

/// `cargo xtask interop`: the tables of `docs/interop.md`, from the records that the rig's runs left.
pub fn write_interop() -> Result<(), String> {
    let document = workspace::root().join("docs").join("interop.md");
    let mut command = cargo(&["run", "--release", "--package", "farbus-rig", "--", "interop"]);
    command.arg(document);
    cargo::run(command)
}

/// The rig tests the `farbus` that lies beside it, so that one is built first.
fn run_rig(arguments: &[&str]) -> Result<(), String> {
    cargo::run(cargo(&["build", "--release", "--package", "farbus"]))?;
    let mut command = cargo(&["run", "--release", "--package", "farbus-rig", "--"]);
    command.args(arguments);
    cargo::run(command)
}
