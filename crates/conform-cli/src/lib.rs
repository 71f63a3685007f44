//! # The `farbus-conform` command
//!
//! **This crate is** the program that `farbus conform` starts: its options, the connections of the conformance kit
//! (`farbus-conform`, a library), and how its results are shown.
//!
//! **It may touch** the terminal, sockets, the clock, and the process that attaches an importer (`--with`).
//!
//! **It never touches** farbus's own exporter and importer: the kit holds any implementation against the protocol, and
//! is built without ours.
//!
//! **Start reading at** [`ConformCli`], which lists the commands; then at `exporter.rs`.
//!
//! **Why** a program of its own: who tests another implementation needs nothing else of farbus, and who uses farbus
//! does not carry the kit in every process. Why a crate beside the kit's: the kit never touches a socket or a clock,
//! and a crate that does cannot be held to that.

mod clock;
mod common;
mod docs;
mod exporter;
mod importer;
mod network;
mod output;
mod server;
mod session;

use clap::{CommandFactory, Parser, Subcommand};
use farbus_control::failure::CommandFailure;

pub use output::report;

/// Hold any exporter or importer against its protocol.
#[derive(Debug, Parser)]
#[command(
    name = "farbus-conform",
    // What farbus is installed with: both ways to start it can be typed.
    bin_name = "farbus conform",
    version,
    max_term_width = 100,
    propagate_version = true
)]
pub struct ConformCli {
    #[command(subcommand)]
    verb: ConformCommand,
}

#[derive(Debug, Subcommand)]
enum ConformCommand {
    Exporter(exporter::Args),
    Importer(importer::Args),
    Session(session::Args),
    // A package installs what it prints.
    #[command(hide = true)]
    Completions(docs::CompletionsArgs),
    #[command(hide = true)]
    Man(docs::ManArgs),
}

impl ConformCli {
    /// Whether a failure is to be reported as JSON, too.
    pub fn is_for_programs(&self) -> bool {
        match &self.verb {
            ConformCommand::Exporter(args) => args.common.json,
            ConformCommand::Importer(args) => args.common.json,
            ConformCommand::Session(args) => args.common.json,
            ConformCommand::Completions(_) | ConformCommand::Man(_) => false,
        }
    }
}

/// Carries out the command line.
///
/// # Errors
/// A failure, which has its exit code.
pub fn run(cli: &ConformCli) -> Result<(), CommandFailure> {
    match &cli.verb {
        ConformCommand::Exporter(args) => exporter::run(args),
        ConformCommand::Importer(args) => importer::run(args),
        ConformCommand::Session(args) => session::run(args),
        ConformCommand::Completions(args) => docs::completions(args, ConformCli::command()),
        ConformCommand::Man(args) => docs::man(args, ConformCli::command()),
    }
}
