//! `cargo xtask soak`: what time can break, again and again: fuzzing, this machine's mounts, and the kernels' own stress
//! test ten times a round.

use crate::{fuzz, prerequisites, rig, test};
use clap::Args;
use std::time::{Duration, Instant};

#[derive(Args)]
pub struct Arguments {
    /// Begin no new round after so many minutes
    #[arg(long, default_value_t = 60)]
    minutes: u32,
    /// How long each fuzz target runs in a round
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..))]
    fuzz_seconds: u32,
    /// Leave out the virtual machines
    #[arg(long)]
    skip_rig: bool,
}

/// Passes of the repeating rig cases in one round.
const RIG_TIMES: u32 = 10;

pub fn run(arguments: &Arguments) -> Result<(), String> {
    let steps: &[&str] = if arguments.skip_rig { &["fuzz", "machine"] } else { &["fuzz", "machine", "rig"] };
    prerequisites::check(steps, false)?;
    let start = Instant::now();
    let end = start + Duration::from_secs(60 * u64::from(arguments.minutes));
    let mut round = 0u32;
    while round == 0 || Instant::now() < end {
        round += 1;
        println!("\n=== round {round}, after {} minutes", start.elapsed().as_secs() / 60);
        one_round(arguments).map_err(|trouble| format!("round {round}: {trouble}"))?;
    }
    println!("\n{round} rounds passed in {} minutes", start.elapsed().as_secs() / 60);
    Ok(())
}

fn one_round(arguments: &Arguments) -> Result<(), String> {
    fuzz::explore(arguments.fuzz_seconds)?;
    test::run_machine_tests()?;
    if arguments.skip_rig { Ok(()) } else { rig::run_cases(RIG_TIMES) }
}
