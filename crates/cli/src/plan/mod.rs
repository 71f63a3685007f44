//! `farbus plan`: what a bus, a processor and a network of hosts can carry, before anything is plugged in.

mod bandwidth;
mod examples;
mod file;
mod layout;
mod pipe;
mod schedule;
pub mod topology;

use super::output::Failure;

/// Compute what a bus, a processor and a network can carry.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  farbus plan bandwidth --speed full\n  farbus plan schedule car.toml --svg car.svg\n  \
    farbus plan topology cube.toml\n  farbus plan pipe --rate 512000 --buffer 128 --execution-us 1000\n  \
    farbus plan examples   tables and figures of a paper"
)]
pub struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, clap::Subcommand)]
enum What {
    Bandwidth(bandwidth::Args),
    Schedule(schedule::Args),
    Topology(topology::Args),
    Pipe(pipe::Args),
    Examples(examples::Args),
}

impl Args {
    /// Whether a failure is to be reported as JSON, too.
    pub fn is_for_programs(&self) -> bool {
        match &self.what {
            What::Bandwidth(args) => args.json,
            What::Schedule(args) => args.json,
            What::Topology(args) => args.json,
            What::Pipe(args) => args.json,
            What::Examples(args) => args.json,
        }
    }
}

pub fn run(args: &Args) -> Result<(), Failure> {
    match &args.what {
        What::Bandwidth(args) => bandwidth::run(args),
        What::Schedule(args) => schedule::run(args),
        What::Topology(args) => topology::run(args),
        What::Pipe(args) => pipe::run(args),
        What::Examples(args) => examples::run(args),
    }
}
