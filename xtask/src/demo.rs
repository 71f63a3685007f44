//! `cargo xtask demo`: what the README starts with.

use crate::cargo::{self, cargo};
use std::process::Stdio;

/// As the README has it: with the program that the tests have run.
pub fn run() -> Result<(), String> {
    let mut command = cargo(&["run", "--quiet", "--", "demo"]);
    command.stdin(Stdio::null());
    cargo::run(command)
}
