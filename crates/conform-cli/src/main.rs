//! The `farbus-conform` command.

use std::process::ExitCode;

use clap::Parser;
use farbus_conform_cli::{self as command, ConformCli};

fn main() -> ExitCode {
    let cli = ConformCli::parse();
    match command::run(&cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => command::report(&failure, cli.is_for_programs()),
    }
}
