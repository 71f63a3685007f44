//! `cargo xtask bench`: every speed target and where it stands; and what another version of farbus did better.

use std::path::{Path, PathBuf};

use clap::Args;

use crate::cargo::{self, cargo};
use crate::{dist, git, releases, workspace};

#[derive(Args)]
#[command(after_help = "Examples:
  cargo xtask bench                                    every speed target
  cargo xtask bench round-trip --quick                 one of them, shortened
  cargo xtask bench --against 0.1.0                    what users notice, against the release 0.1.0
  cargo xtask bench --against 3116107 --only nbd       some rows of that
  cargo xtask bench --against HEAD~1 --rounds 20 --json all.json")]
pub struct BenchArgs {
    /// Compare with this commit or release, and fail if it did anything better
    ///
    /// Both are built as they are shipped ('cargo xtask dist'); the other commit's program is kept in target/against.
    #[arg(long, value_name = "REV")]
    against: Option<String>,
    /// Measure this row or benchmark only; may be given several times
    #[arg(long, value_name = "ROW")]
    only: Vec<String>,
    /// How often both programs are started and measured; 6 at least [default: 9]
    #[arg(long, value_name = "N", requires = "against")]
    rounds: Option<usize>,
    /// Write all samples to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// What else to tell the benchmarks; `--help` lists it
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGUMENT")]
    bench: Vec<String>,
}

impl BenchArgs {
    /// The words for the benchmarks' program that both kinds of measurement know.
    fn words(&self) -> Vec<String> {
        let only = self.only.iter().map(|row| format!("--only={row}"));
        let rounds = self.rounds.map(|rounds| format!("--rounds={rounds}"));
        // The program runs in the workspace's folder, and the file is meant from here.
        let json = self.json.as_ref().map(|file| std::path::absolute(file).unwrap_or_else(|_| file.clone()));
        let json = json.map(|file| format!("--json={}", file.display()));
        only.chain(rounds).chain(json).chain(self.bench.iter().cloned()).collect()
    }
}

/// The benchmarks time the `farbus` that lies beside them, so that one is built first.
pub fn run(arguments: &BenchArgs) -> Result<(), String> {
    if let Some(revision) = &arguments.against {
        return compare_with(revision, &arguments.words());
    }
    cargo::run(cargo(&["build", "--release", "--package", "farbus-cli"]))?;
    let mut command = benchmarks();
    command.args(arguments.words());
    cargo::run(command)
}

/// Measures this tree's program and that of another commit in turns. Losses are an error.
pub fn compare_with(revision: &str, words: &[String]) -> Result<(), String> {
    let root = workspace::root();
    let release = releases::all(&root)?.into_iter().find(|release| release.version == revision);
    let commit = release.map_or_else(|| revision.to_owned(), |release| release.commit);
    let commit = git::commit(&root, &commit).ok_or_else(|| {
        format!("this history has no commit {revision}: a shallow clone? 'git fetch --unshallow' brings it")
    })?;
    let before = program_of(&root, &commit)?;
    let mut command = benchmarks();
    command.arg("--farbus").arg(dist::program()?).arg("against").arg("--before").arg(before).args(words);
    cargo::run(command)
}

fn benchmarks() -> std::process::Command {
    cargo(&["run", "--release", "--package", "farbus-bench", "--"])
}

/// The program of a commit as its own `cargo xtask dist` makes it, built if it is not there.
fn program_of(root: &Path, commit: &str) -> Result<PathBuf, String> {
    let folder = root.join("target/against");
    let program = folder.join(commit).join("farbus");
    if program.is_file() {
        return Ok(program);
    }
    println!("building {commit}, which takes some minutes and is kept");
    // A target folder of its own: cargo tells two checkouts of one workspace apart by modification times only.
    let (sources, build) = (folder.join("sources"), folder.join("build"));
    git::unpack(root, commit, &sources)?;
    let made = dist::program_in(&sources, &build, commit)?;
    let trouble = |error: std::io::Error| format!("cannot keep the program of {commit}: {error}");
    let fresh = folder.join("farbus.new");
    std::fs::copy(made, &fresh).map_err(trouble)?;
    std::fs::create_dir_all(folder.join(commit)).map_err(trouble)?;
    std::fs::rename(&fresh, &program).map_err(trouble)?;
    git::remove(&sources)?;
    git::remove(&build)?;
    Ok(program)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        arguments: BenchArgs,
    }

    fn parsed(words: &str) -> Result<BenchArgs, clap::Error> {
        let words = ["bench"].into_iter().chain(words.split_whitespace());
        Line::try_parse_from(words).map(|line| line.arguments)
    }

    #[test]
    fn options_of_a_comparison_are_understood_in_any_order() {
        let arguments = parsed("--only nbd --only memory --rounds 12 --against 0.1.0 --json /tmp/all.json").unwrap();
        assert_eq!(arguments.against.as_deref(), Some("0.1.0"));
        assert_eq!(arguments.words(), ["--only=nbd", "--only=memory", "--rounds=12", "--json=/tmp/all.json"]);
        let arguments = parsed("--against HEAD~1 --markdown").unwrap();
        assert_eq!((arguments.against.as_deref(), arguments.words()), (Some("HEAD~1"), vec!["--markdown".to_owned()]));
    }

    #[test]
    fn benchmarks_get_the_words_that_are_theirs() {
        let arguments = parsed("--only deep round-trip --quick").unwrap();
        assert_eq!(arguments.words(), ["--only=deep", "round-trip", "--quick"]);
        assert!(arguments.against.is_none() && parsed("--rounds 12").is_err());
    }

    #[test]
    fn a_commit_that_the_history_does_not_have_is_named() {
        let refusal = compare_with("no-such-commit", &[]).unwrap_err();
        assert!(refusal.starts_with("this history has no commit no-such-commit"), "{refusal}");
    }
}
