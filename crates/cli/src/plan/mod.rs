//! `farbus plan`: what a bus, a processor and a network of hosts can carry, before anything is plugged in.

mod bandwidth;
mod examples;
mod file;
mod layout;
mod pipe;
mod schedule;
pub mod topology;

use super::output::CommandFailure;

/// Compute what a bus, a processor and a network can carry.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  farbus plan bandwidth --speed full\n  farbus plan schedule car.toml --svg car.svg\n  \
    farbus plan topology cube.toml\n  farbus plan pipe --rate 512000 --buffer 128 --execution-us 1000\n  \
    farbus plan examples   tables and figures of a paper"
)]
pub struct Args {
    #[command(subcommand)]
    what: PlanVerb,
}

#[derive(Debug, clap::Subcommand)]
enum PlanVerb {
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
            PlanVerb::Bandwidth(args) => args.json,
            PlanVerb::Schedule(args) => args.json,
            PlanVerb::Topology(args) => args.json,
            PlanVerb::Pipe(args) => args.json,
            PlanVerb::Examples(args) => args.json,
        }
    }
}

pub fn run(args: &Args) -> Result<(), CommandFailure> {
    match &args.what {
        PlanVerb::Bandwidth(args) => bandwidth::run(args),
        PlanVerb::Schedule(args) => schedule::run(args),
        PlanVerb::Topology(args) => topology::run(args),
        PlanVerb::Pipe(args) => pipe::run(args),
        PlanVerb::Examples(args) => examples::run(args),
    }
}
