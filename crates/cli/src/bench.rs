//! `farbus bench` starts a program of its own with the measurements.

use std::ffi::OsString;

use super::CommandFailure;
use super::other_program::{self, AnyWordParser};

/// The program's name.
pub const PROGRAM: &str = "farbus-bench";
/// The names of its measurements; one of the program's tests compares them with this list.
pub const NAMES: [&str; 37] = [
    "round-trip",
    "syscalls",
    "program",
    "deep",
    "throughput",
    "encrypted",
    "cpu",
    "memory",
    "distance",
    "storage",
    "nbd",
    "block",
    "block-proxy",
    "block-parallel",
    "native",
    "overhead",
    "files",
    "camera",
    "stages",
    "congestion",
    "mixed",
    "timeline",
    "journey",
    "modules",
    "realtime",
    "pipes",
    "far-pipes",
    "line",
    "isochrony",
    "sealed",
    "device",
    "links",
    "survey",
    "directory",
    "directory-growth",
    "thousand",
    "page",
];

/// The names that stand for several of them.
pub const GROUPS: [&str; 1] = ["netbus"];

/// Measure farbus here, against its peers and the papers' figures.
#[derive(Debug, clap::Args)]
#[command(after_help = "It starts farbus-bench, from the folder of this program or from PATH.\n\n\
    Examples:\n  \
    farbus bench list                     what there is, and the target of each\n  \
    farbus bench device                   raw device, 4 KiB requests; 5 minutes\n  \
    farbus bench modules --plots .        what a pair of modules costs; 10 minutes\n  \
    farbus bench realtime --plots .       the real-time paper, in simulation\n  \
    farbus bench netbus --plots .         the figures and tables of Netbus\n  \
    farbus bench round-trip deep --quick  two of them, shortened\n  \
    farbus bench -- --help                all its options\n\n\
    Exit codes: 0 all targets are met, 1 one is missed, 2 something could not be measured.")]
pub struct Args {
    /// Names, and options of farbus-bench; without any, all that have a target
    #[arg(
        value_name = "NAME", trailing_var_arg = true, allow_hyphen_values = true,
        value_parser = AnyWordParser(|| ["list", "against", "compare", "flame"].into_iter().chain(GROUPS).chain(NAMES).collect())
    )]
    words: Vec<OsString>,
}

/// Replaces this process by the benchmark program.
pub fn run(args: Args) -> Result<(), CommandFailure> {
    let ours = other_program::ours()?;
    let mut words = Vec::new();
    if !other_program::names_farbus(&args.words) {
        // Measure the farbus that was called.
        words.extend(["--farbus".into(), ours.clone().into_os_string()]);
    }
    words.extend(args.words);
    let how_to_get = "build it from farbus's sources: cargo install --path bench";
    Err(CommandFailure::local(other_program::become_program(PROGRAM, &ours, &words, how_to_get)))
}
