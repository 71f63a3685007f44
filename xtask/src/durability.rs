//! `cargo xtask durability`: everything fails that can, under writers of several disks; what was lost, and its limits.

use std::path::PathBuf;

use crate::cargo::{self, cargo};
use crate::upgrade;
use clap::Args;

#[derive(Args)]
#[command(
    after_help = "docs/durability.md says what each kind of fault is, and what cannot be done here. Run it as root: file systems are mounted.

Examples:
  cargo xtask durability                          one fault of each kind, under a minute
  cargo xtask durability --faults 300 --stop-seconds 60 --seed 7
  cargo xtask durability --only 'power cut' --faults 40"
)]
pub struct DurabilityArgs {
    /// How many faults; without it, one of each kind
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    faults: Option<u32>,
    /// Which faults: the same seed makes the same ones
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// How long a process is stopped at most
    #[arg(long, value_name = "SECONDS", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=60))]
    stop_seconds: u32,
    /// Only kinds of faults whose names contain this
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// Build the previous release: the exporter begins with it, and is upgraded while it is used
    #[arg(long)]
    previous: bool,
    /// Write the result there, too
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

pub fn run(arguments: &DurabilityArgs) -> Result<(), String> {
    let mut play =
        cargo(&["test", "--package", "farbus-cli", "--test", "command", "durability::", "--", "--nocapture"]);
    play.env("FARBUS_REQUIRE_RIG", "1").env("FARBUS_DURABILITY_SEED", arguments.seed.to_string());
    play.env("FARBUS_DURABILITY_STOP_S", arguments.stop_seconds.to_string());
    if arguments.previous {
        let program = upgrade::previous_program()?.ok_or("the history lacks the previous release: a shallow clone?")?;
        play.env(upgrade::PROGRAM_VARIABLE, program);
    }
    if let Some(faults) = arguments.faults {
        play.env("FARBUS_DURABILITY_FAULTS", faults.to_string());
    }
    if let Some(only) = &arguments.only {
        play.env("FARBUS_DURABILITY_ONLY", only);
    }
    if let Some(json) = &arguments.json {
        let json = std::path::absolute(json).map_err(|error| format!("{}: {error}", json.display()))?;
        play.env("FARBUS_DURABILITY_JSON", json);
    }
    cargo::run(play)
}

/// So many faults of this seed, with stops of up to a minute.
///
/// # Errors
/// Something was lost, was old, hung or was not told.
pub fn run_for(faults: u32, seed: u64) -> Result<(), String> {
    run(&DurabilityArgs { faults: Some(faults), seed, stop_seconds: 60, only: None, previous: false, json: None })
}
