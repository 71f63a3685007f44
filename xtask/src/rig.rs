//! `cargo xtask rig`: tests against real Linux kernels in virtual machines.

use crate::cargo::{self, cargo};
use crate::{dist, workspace};
use clap::Args;
use std::process::{Command, Stdio};

/// The rig's program.
const RIG: &str = "farbus-rig";

#[derive(Args)]
pub struct RigArgs {
    /// What to tell the rig: `list`, `run`, `run NAME…`
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGUMENT", default_value = "run")]
    rig: Vec<String>,
}

pub fn run(arguments: &RigArgs) -> Result<(), String> {
    run_rig(&arguments.rig.iter().map(String::as_str).collect::<Vec<_>>())
}

/// Every case but those that fit one of the patterns; those that repeat, so often.
pub fn run_cases(times: u32, except: &[&str]) -> Result<(), String> {
    let times = times.to_string();
    let mut arguments = vec!["run", "--times", &times];
    except.iter().for_each(|pattern| arguments.extend(["--except", pattern]));
    run_rig(&arguments)
}

/// One case that repeats, so often.
pub fn run_case(name: &str, times: u32) -> Result<(), String> {
    run_rig(&["run", "--times", &times.to_string(), name])
}

/// `cargo xtask interop`: the tables of `docs/interop.md`, from the records that the rig's runs left.
pub fn write_interop() -> Result<(), String> {
    let document = workspace::root().join("docs").join("interop.md");
    let mut command = rig()?;
    command.arg("interop").arg(document);
    cargo::run(command)
}

/// `cargo xtask conform`: the conformance kit against what needs no virtual machine, and the tables of
/// `docs/interop.md`, also of what the rig's last run left.
pub fn conform(names: &[String]) -> Result<(), String> {
    let docs = workspace::root().join("docs");
    // The one starts the other, which is beside it.
    let built = cargo::executables(cargo(&["build", "--workspace", "--bin", "farbus", "--bin", "farbus-conform"]))?;
    let mut command = rig()?;
    command.arg("conform").arg("--farbus").arg(cargo::program(&built, "farbus")?);
    for case in ["conform-kernel", "conform-usbip-host", "conform-vhci"] {
        let left = workspace::root().join("target/rig/logs").join(format!("{case}.results"));
        if left.is_dir() {
            command.arg("--take").arg(left);
        }
    }
    command.arg(docs.join("interop.md")).arg(docs.join("results/conform")).args(names);
    cargo::run(command)
}

/// The rig tests the program as it is shipped: optimized, with its debug information apart.
fn run_rig(arguments: &[&str]) -> Result<(), String> {
    let mut command = rig()?;
    command.args(arguments);
    if arguments.first() == Some(&"run") && !arguments.contains(&"--farbus") {
        // It is beside the other, and cases look for it there.
        dist::conform()?;
        command.arg("--farbus").arg(dist::program()?);
    }
    cargo::run(command)
}

/// The rig itself waits for its machines: it needs no optimized build, and shares that of the tests, whose features are
/// those of all packages.
fn rig() -> Result<Command, String> {
    let built = cargo::executables(cargo(&["build", "--workspace", "--bin", RIG]))?;
    let mut command = Command::new(cargo::program(&built, RIG)?);
    command.current_dir(workspace::root()).stdin(Stdio::null());
    Ok(command)
}
