//! `farbus conform`: holds any USB/IP exporter or importer against what both owe each other, and any exporter of
//! sessions against farbus's own protocol.

mod common;
mod exporter;
mod importer;
mod network;
mod server;
mod session;

use clap::Subcommand;

use super::Failure;

/// Hold any exporter or importer against its protocol.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    of: Of,
}

#[derive(Debug, Subcommand)]
enum Of {
    Exporter(exporter::Args),
    Importer(importer::Args),
    Session(session::Args),
}

impl Args {
    /// Whether a failure is to be reported as JSON, too.
    pub fn is_for_programs(&self) -> bool {
        match &self.of {
            Of::Exporter(args) => args.common.json,
            Of::Importer(args) => args.common.json,
            Of::Session(args) => args.common.json,
        }
    }
}

pub fn run(args: &Args) -> Result<(), Failure> {
    match &args.of {
        Of::Exporter(args) => exporter::run(args),
        Of::Importer(args) => importer::run(args),
        Of::Session(args) => session::run(args),
    }
}
