//! This room is where all of farbus's automation lives: `cargo xtask` holds the house's rules against the code.
//!
//! It may touch the whole workspace from outside: its files, cargo, the package manager.
//!
//! It never touches the product's code: no room depends on it, and it depends on none.
//!
//! Enter at [`Command`], one file a subcommand.
//!
//! Why a program and not scripts: the rules it holds need a parser, the steps need types, and a newcomer needs one language.

mod tidy;
mod workspace;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

/// All of farbus's automation.
#[derive(Parser)]
#[command(
    name = "cargo xtask",
    bin_name = "cargo xtask",
    after_help = "Examples:
  cargo xtask tidy                     hold the house's rules against the code
  cargo xtask test                     everything that must pass, in order
  cargo xtask test --skip-rig          the same without virtual machines
  cargo xtask test --only clippy       one step
  cargo xtask fuzz --seconds 600       every fuzz target for ten minutes
  cargo xtask rig -- run 'testusb*'    some of the virtual-machine tests"
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Hold the house's rules (ARCHITECTURE.toml) against the code
    Tidy,
}

fn main() -> ExitCode {
    let outcome = match Cli::parse().command {
        Command::Tidy => tidy::run(),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(trouble) => {
            eprintln!("xtask: {trouble}");
            ExitCode::FAILURE
        }
    }
}
