//! `farbus conform` starts a program of its own, `farbus-conform`: the conformance kit for other implementations.

use std::ffi::OsString;
use std::path::Path;

use super::CommandFailure;
use super::other_program::{self, AnyWordParser};

/// The program's name.
const PROGRAM: &str = "farbus-conform";
/// Its commands; a test compares them with this list.
const COMMANDS: [&str; 3] = ["exporter", "importer", "session"];
/// The exit code of a run that could not take place, as the program has it.
const COULD_NOT_RUN: u8 = 2;

/// Hold any exporter or importer against its protocol.
#[derive(Debug, clap::Args)]
#[command(
    // They are the program's.
    disable_help_flag = true,
    disable_version_flag = true,
    after_help = "It starts farbus-conform, from the folder of this program or from PATH.\n\n\
    Examples:\n  \
    farbus conform exporter lab3          the first device that lab3 offers\n  \
    farbus conform importer               attach it to 1-1 to 1-10\n  \
    farbus conform session 127.0.0.1      an exporter of farbus's own protocol\n  \
    farbus conform exporter --list        what is checked\n  \
    farbus conform exporter --help        all options\n\n\
    Exit codes: 0 no claim that binds is false, 1 some are, 2 it could not run."
)]
pub struct Args {
    /// A command of farbus-conform, and its options
    #[arg(
        value_name = "ARGUMENT", trailing_var_arg = true, allow_hyphen_values = true,
        value_parser = AnyWordParser(|| COMMANDS.to_vec())
    )]
    words: Vec<OsString>,
}

impl Args {
    /// Whether a failure is to be reported as JSON, too.
    pub fn is_for_programs(&self) -> bool {
        self.words.iter().any(|word| word == "--json")
    }
}

/// Replaces this process by the program.
pub fn run(args: &Args) -> Result<(), CommandFailure> {
    let ours = other_program::ours()?;
    let why = other_program::become_program(PROGRAM, &ours, &args.words, &how_to_get(&ours));
    Err(CommandFailure::local(format!("could not run: {why}")).with_exit_code(COULD_NOT_RUN))
}

/// Where the program comes from: beside a farbus that cargo built, cargo puts it, too.
fn how_to_get(ours: &Path) -> String {
    let folder = ours.parent().and_then(Path::file_name);
    let build = match folder.and_then(|name| name.to_str()) {
        Some("debug") => "cargo build --package farbus-conform-cli",
        Some("release") => "cargo build --release --package farbus-conform-cli",
        _ => "cargo install --path crates/conform-cli",
    };
    format!("it is in the Debian package farbus; or build it from farbus's sources: {build}")
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn commands_that_a_shell_completes_are_those_of_the_program() {
        let program = farbus_conform_cli::ConformCli::command();
        let visible = program.get_subcommands().filter(|command| !command.is_hide_set());
        assert_eq!(visible.map(|command| command.get_name().to_owned()).collect::<Vec<_>>(), COMMANDS);
    }

    #[test]
    fn missing_program_is_built_beside_a_farbus_that_cargo_built_and_installed_elsewhere() {
        let hint = |ours: &str| how_to_get(Path::new(ours));
        assert!(hint("target/debug/farbus").ends_with(": cargo build --package farbus-conform-cli"));
        assert!(hint("target/release/farbus").ends_with(": cargo build --release --package farbus-conform-cli"));
        assert!(hint("/usr/bin/farbus").ends_with(": cargo install --path crates/conform-cli"));
    }
}
