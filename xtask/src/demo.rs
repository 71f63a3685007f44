//! `cargo xtask demo`: what the README starts with.

use crate::{cargo, dist, workspace};
use std::process::{Command, Stdio};

/// With the program that the rig tests: the same build serves both.
pub fn run() -> Result<(), String> {
    let mut command = Command::new(dist::program()?);
    command.arg("demo").current_dir(workspace::root()).stdin(Stdio::null());
    cargo::run(command)
}
