//! `farbus bench` runs a separate program with the measurements, found as `git` finds its external commands.

use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::builder::{OsStringValueParser, PossibleValue, TypedValueParser};

use super::Failure;

/// The program's name.
pub const PROGRAM: &str = "farbus-bench";
/// The names of its measurements; one of the program's tests compares them with this list.
pub const NAMES: [&str; 34] = [
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
    "line",
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
    #[arg(value_name = "NAME", trailing_var_arg = true, allow_hyphen_values = true, value_parser = Named)]
    words: Vec<OsString>,
}

/// Accepts and passes on any word; a shell completes the names.
#[derive(Clone)]
struct Named;

impl TypedValueParser for Named {
    type Value = OsString;

    fn parse_ref(
        &self,
        command: &clap::Command,
        argument: Option<&clap::Arg>,
        value: &OsStr,
    ) -> Result<OsString, clap::Error> {
        OsStringValueParser::new().parse_ref(command, argument, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new(["list"].into_iter().chain(GROUPS).chain(NAMES).map(PossibleValue::new)))
    }
}

/// Replaces this process by the benchmark program.
pub fn run(args: Args) -> Result<(), Failure> {
    let ours = std::env::current_exe().map_err(Failure::local)?;
    let program = beside(&ours).unwrap_or_else(|| PROGRAM.into());
    let mut command = Command::new(&program);
    if !says_which(&args.words) {
        // Measure the farbus that was called.
        command.arg("--farbus").arg(&ours);
    }
    // `exec` returns only if it failed.
    let error = command.args(args.words).exec();
    Err(Failure::local(match error.kind() {
        std::io::ErrorKind::NotFound => format!(
            "{PROGRAM} is neither beside {} nor in PATH\n  build it from farbus's sources: cargo install --path bench",
            ours.display()
        ),
        _ => format!("{}: {error}", program.display()),
    }))
}

fn beside(ours: &Path) -> Option<PathBuf> {
    Some(ours.with_file_name(PROGRAM)).filter(|path| path.is_file())
}

fn says_which(words: &[OsString]) -> bool {
    words.iter().filter_map(|word| word.to_str()).any(|word| word == "--farbus" || word.starts_with("--farbus="))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn farbus_bench_measures_this_farbus_unless_another_is_named() {
        let words = |text: &str| text.split(' ').map(OsString::from).collect::<Vec<_>>();
        assert!(!says_which(&words("modules --plots .")));
        assert!(says_which(&words("modules --farbus /usr/bin/farbus")) && says_which(&words("--farbus=./farbus deep")));
        assert_eq!(beside(Path::new("/nowhere/at/all/farbus")), None);
    }
}
