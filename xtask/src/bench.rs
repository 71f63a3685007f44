//! `cargo xtask bench`: every speed target and where it stands.

use crate::cargo::{self, cargo};
use clap::Args;

#[derive(Args)]
pub struct Arguments {
    /// What to tell the benchmarks; `--help` lists it
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGUMENT")]
    bench: Vec<String>,
}

/// The benchmarks time the `farbus` that lies beside them, so that one is built first.
pub fn run(arguments: &Arguments) -> Result<(), String> {
    cargo::run(cargo(&["build", "--release", "--package", "farbus"]))?;
    let mut command = cargo(&["run", "--release", "--package", "farbus-bench", "--"]);
    command.args(&arguments.bench);
    cargo::run(command)
}
