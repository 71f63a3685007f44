//! `farbus completions` and `farbus man`: shell completions and man pages.

use std::fs;
use std::io::Write;
use std::path::PathBuf;

use clap::Command;
use clap_complete::Shell;

use super::CommandFailure;

/// Print a completion script for a shell.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    farbus completions bash > ~/.local/share/bash-completion/completions/farbus\n  \
    farbus completions zsh > ~/.zfunc/_farbus\n  \
    farbus completions fish > ~/.config/fish/completions/farbus.fish")]
pub struct CompletionsArgs {
    /// The shell that the script is for.
    shell: Shell,
}

/// Write manual pages, one for each command.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  farbus man ~/.local/share/man/man1\n  farbus man . && man ./farbus-share.1")]
pub struct ManArgs {
    /// The folder; farbus makes it if it is missing.
    folder: PathBuf,
}

pub fn completions(args: &CompletionsArgs, mut farbus: Command) -> Result<(), CommandFailure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut farbus, "farbus", &mut script);
    // A reader that has closed the pipe needs no more.
    let _ = std::io::stdout().lock().write_all(&script);
    Ok(())
}

pub fn man(args: &ManArgs, farbus: Command) -> Result<(), CommandFailure> {
    let cannot =
        |error| CommandFailure::local(format!("cannot write man pages into {}: {error}", args.folder.display()));
    fs::create_dir_all(&args.folder).map_err(cannot)?;
    clap_mangen::generate_to(farbus, &args.folder).map_err(cannot)
}
