//! This crate is where all of farbus's automation lives: `cargo xtask` checks, tests, measures, fuzzes and generates.
//!
//! It may touch the whole workspace from outside: its files, cargo, the package manager.
//!
//! It never touches the product's code: no crate depends on it, and it depends on none.
//!
//! Start reading at [`XtaskCommand`], one file a subcommand; `test` is the README's second command and all that CI
//! runs.
//!
//! Why a program and not scripts: the rules it holds need a parser, the steps need types, and a newcomer needs one
//! language.

mod attack;
mod axe;
mod bench;
mod book;
mod cargo;
mod changes;
mod check;
mod ci;
mod coverage;
mod demo;
mod deny;
mod dist;
mod durability;
mod fuzz;
mod git;
mod instructions;
mod left;
mod library;
mod man;
mod meter;
mod package;
mod packages;
mod parts;
mod picture;
mod portable;
mod prerequisites;
mod release;
mod releases;
mod rerun;
mod rig;
mod sanitize;
mod sbom;
mod size;
mod soak;
mod steps;
mod test;
mod tidy;
mod upgrade;
mod watchdog;
mod workspace;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

/// All of farbus's automation.
#[derive(Parser)]
#[command(
    name = "cargo xtask",
    bin_name = "cargo xtask",
    after_help = "Examples:
  cargo xtask book --bless             write the book's reference and the control protocol's page
  cargo xtask check                    format, clippy, tidy and the fast tests of what changed
  cargo xtask test                     everything that must pass, in order
  cargo xtask test --skip-rig          the same without virtual machines
  cargo xtask test --only clippy       one step
  cargo xtask fuzz --seconds 600       every fuzz target for ten minutes
  cargo xtask rig -- run 'testusb*'    some of the virtual-machine tests
  cargo xtask size                     what the release program consists of
  cargo xtask interop                  who was seen to work with farbus, from the rig's records
  cargo xtask conform share            what our own exporter passes of the conformance kit"
)]
struct XtaskCommandLine {
    #[command(subcommand)]
    command: XtaskCommand,
}

#[derive(Subcommand)]
enum XtaskCommand {
    /// Check format, clippy, tidy and the fast tests of what changed: the inner loop
    Check(check::CheckArgs),
    /// Hold the rules of the architecture (ARCHITECTURE.toml) against the code
    Tidy,
    /// Compare the book's reference with the commands' help, or write it; make the book's pages
    Book(book::BookArgs),
    /// Hold the rules for dependencies (deny.toml) against Cargo.lock
    Deny(deny::DenyArgs),
    /// Run everything that must pass, in order, and stop at the first failure
    Test(test::TestArgs),
    /// Run what CI runs: all of `test`, installing what is missing
    Ci,
    /// Measure every speed target
    Bench(bench::BenchArgs),
    /// Count the instructions of a request, and compare with xtask/instructions.toml
    Instructions(instructions::InstructionsArgs),
    /// Fuzz every decoder and state machine
    Fuzz(fuzz::FuzzArgs),
    /// Run the attackers of docs/security.md as programs, and print what each costs
    Attack(attack::AttackArgs),
    /// Make faults of every kind under writers of several disks, and print what was lost
    Durability(durability::DurabilityArgs),
    /// Run tests under AddressSanitizer, and some under Miri
    Sanitize(sanitize::SanitizeArgs),
    /// Repeat the tests that time can break, for as long as told
    Soak(soak::SoakArgs),
    /// Test against real Linux kernels in virtual machines
    Rig(rig::RigArgs),
    /// Make the tables of docs/interop.md from the records of the rig's runs
    Interop,
    /// Run farbus conform against what needs no virtual machine, and make its tables in docs/interop.md
    Conform {
        /// Only these implementations, by the names of their files in docs/results/conform
        names: Vec<String>,
    },
    /// Build the release program as it is shipped, its debug information apart
    Dist(dist::DistArgs),
    /// Make the Debian package, the static program and the container image; test the package
    Package(package::PackageArgs),
    /// Make a release: version, changelog, packages, digests, bill of materials (docs/releasing.md)
    Release(release::MakeReleaseArgs),
    /// List what the release program consists of, by section and by crate
    Size(size::SizeArgs),
    /// Print where axe-core is, for tests of the page (FARBUS_AXE); fetched by pip if it is not there yet
    Axe,
    /// Generate shell completions and man pages
    Man(man::ManPageArgs),
    /// Run the demo that the README starts with
    Demo,
    /// Draw docs/picture.svg, the terminal in the README, by running what it shows
    Picture,
}

fn main() -> ExitCode {
    let outcome = match XtaskCommandLine::parse().command {
        XtaskCommand::Check(arguments) => check::run(&arguments),
        XtaskCommand::Tidy => tidy::run(),
        XtaskCommand::Book(arguments) => book::run(&arguments),
        XtaskCommand::Axe => axe::run(),
        XtaskCommand::Deny(arguments) => deny::run(&arguments).map(drop),
        XtaskCommand::Test(arguments) => test::run(&arguments),
        XtaskCommand::Ci => ci::run(),
        XtaskCommand::Bench(arguments) => bench::run(&arguments),
        XtaskCommand::Instructions(arguments) => instructions::run(&arguments),
        XtaskCommand::Fuzz(arguments) => fuzz::run(&arguments),
        XtaskCommand::Attack(arguments) => attack::run(&arguments),
        XtaskCommand::Durability(arguments) => durability::run(&arguments),
        XtaskCommand::Sanitize(arguments) => sanitize::run(&arguments),
        XtaskCommand::Soak(arguments) => soak::run(&arguments),
        XtaskCommand::Rig(arguments) => rig::run(&arguments),
        XtaskCommand::Interop => rig::write_interop(),
        XtaskCommand::Conform { names } => rig::conform(&names),
        XtaskCommand::Dist(arguments) => dist::run(&arguments),
        XtaskCommand::Package(arguments) => package::run(&arguments),
        XtaskCommand::Release(arguments) => release::run(&arguments),
        XtaskCommand::Size(arguments) => size::run(&arguments),
        XtaskCommand::Man(arguments) => man::run(&arguments),
        XtaskCommand::Demo => demo::run(),
        XtaskCommand::Picture => picture::run(),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(trouble) => {
            eprintln!("xtask: {trouble}");
            ExitCode::FAILURE
        }
    }
}
