//! The rig's command line.

use clap::{Parser, Subcommand};
use farbus_rig::lab::Workshop;
use farbus_rig::{cases, run};
use std::path::PathBuf;
use std::process::ExitCode;

/// Tests of farbus against real Linux kernels in virtual machines.
#[derive(Parser)]
#[command(version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Shows every case and what it proves.
    List,
    /// Runs cases: all, or those named (a trailing * chooses all that begin so).
    Run {
        /// Cases to run.
        names: Vec<String>,
        /// The farbus to test [default: the one beside this program].
        #[arg(long)]
        farbus: Option<PathBuf>,
        /// Passes of the cases that repeat (testusb); a soak takes 10.
        #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
        times: u32,
        /// Of cases that have steps (pair-*), try only this one; may be given more than once.
        #[arg(long)]
        step: Vec<String>,
        /// Where consoles and outputs go [default: rig/logs in the cargo target folder].
        #[arg(long)]
        log_dir: Option<PathBuf>,
        /// Do not count a skipped case against the run.
        #[arg(long)]
        allow_skip: bool,
    },
}

fn main() -> ExitCode {
    let outcome = match Cli::parse().command {
        Command::List => {
            for case in cases::all() {
                println!("{:<24} {}", case.name, case.purpose);
            }
            Ok(true)
        }
        Command::Run { names, farbus, times, step, log_dir, allow_skip } => run::select(&names).and_then(|chosen| {
            let workshop = Workshop::open(farbus, log_dir, times, step)?;
            let score = run::run(&workshop, &chosen);
            println!("logs: {}", workshop.logs().display());
            println!("{score}");
            Ok(score.is_good(allow_skip))
        }),
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("farbus-rig: {error}");
            ExitCode::from(2)
        }
    }
}
