//! `farbus-conform completions` and `farbus-conform man`: shell completions and man pages.

use std::fs;
use std::io::{self, Write};
use std::path::PathBuf;

use clap::Command;
use clap_complete::Shell;
use farbus_control::failure::CommandFailure;

/// The name by which a shell and `man` know this program.
const PROGRAM: &str = "farbus-conform";

/// Print a completion script for a shell.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    farbus-conform completions bash > ~/.local/share/bash-completion/completions/farbus-conform")]
pub struct CompletionsArgs {
    /// The shell that the script is for.
    shell: Shell,
}

/// Write manual pages, one for each command.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  farbus-conform man ~/.local/share/man/man1")]
pub struct ManArgs {
    /// The folder; farbus-conform makes it if it is missing.
    folder: PathBuf,
}

pub fn completions(args: &CompletionsArgs, mut program: Command) -> Result<(), CommandFailure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut program, PROGRAM, &mut script);
    // A reader that has closed the pipe needs no more.
    let _ = io::stdout().lock().write_all(&script);
    Ok(())
}

pub fn man(args: &ManArgs, program: Command) -> Result<(), CommandFailure> {
    let cannot =
        |error| CommandFailure::local(format!("cannot write man pages into {}: {error}", args.folder.display()));
    fs::create_dir_all(&args.folder).map_err(cannot)?;
    clap_mangen::generate_to(program, &args.folder).map_err(cannot)
}
