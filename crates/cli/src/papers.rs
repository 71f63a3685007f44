//! `farbus papers` starts a program of its own; in a tree of farbus's sources cargo builds it first.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::CommandFailure;
use super::other_program::{self, AnyWordParser};

/// The program's name, which is its package's, too.
pub const PROGRAM: &str = "farbus-papers";

/// Repeat tables and figures of the papers beside their own digits.
#[derive(Debug, clap::Args)]
#[command(after_help = "It starts farbus-papers, from the folder of this program or from PATH.\n\n\
    Examples:\n  \
    farbus papers --list                         every item, and how it is made\n  \
    farbus papers 2005 figure-9                  one figure\n  \
    farbus papers --quick --report papers.html   all of them, in three minutes\n  \
    farbus papers -- --help                      all its options\n\n\
    Exit codes: 0 done, 1 a bound is missed, 2 something could not be run.")]
pub struct Args {
    /// A paper's year, items, and options of farbus-papers; without any, everything
    #[arg(
        value_name = "ITEM", trailing_var_arg = true, allow_hyphen_values = true,
        value_parser = AnyWordParser(|| vec!["2005", "2007", "2008", "2013", "2023"])
    )]
    words: Vec<OsString>,
}

/// Replaces this process by the program.
pub fn run(args: Args) -> Result<(), CommandFailure> {
    let ours = other_program::ours()?;
    let mut words = Vec::new();
    if !other_program::names_farbus(&args.words) {
        words.extend(["--farbus".into(), ours.clone().into_os_string()]);
    }
    words.extend(args.words);
    let source = std::env::current_dir().ok().and_then(|here| source_tree(&here));
    if let (false, Some(tree)) = (other_program::is_there(PROGRAM, &ours), source) {
        let error = cargo(&tree, &words).exec();
        return Err(CommandFailure::local(format!("cannot run cargo: {error}")));
    }
    let how_to_get = "build it from farbus's sources: cargo install --path papers";
    Err(CommandFailure::local(other_program::become_program(PROGRAM, &ours, &words, how_to_get)))
}

/// The tree of farbus's sources that this folder is in.
fn source_tree(here: &Path) -> Option<PathBuf> {
    let has_program = |folder: &&Path| {
        let manifest = std::fs::read_to_string(folder.join("papers/Cargo.toml")).unwrap_or_default();
        manifest.contains(&format!("name = \"{PROGRAM}\""))
    };
    here.ancestors().find(has_program).map(Path::to_path_buf)
}

/// Builds the program and runs it.
fn cargo(tree: &Path, words: &[OsString]) -> Command {
    let mut command = Command::new("cargo");
    command.args(["run", "--release", "--quiet", "--manifest-path"]).arg(tree.join("papers/Cargo.toml"));
    command.arg("--").args(words);
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn source_tree_is_found_from_any_folder_in_it_and_cargo_gets_the_words() {
        let tree = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap();
        assert_eq!(source_tree(&tree.join("crates/cli/src")), Some(tree.clone()));
        assert_eq!(source_tree(Path::new("/")), None);
        let command = cargo(&tree, &["2005".into(), "--quick".into()]);
        let words: Vec<_> = command.get_args().map(|word| word.to_string_lossy().into_owned()).collect();
        assert_eq!(words[words.len() - 3..], ["--", "2005", "--quick"]);
    }
}
