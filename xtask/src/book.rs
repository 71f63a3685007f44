//! `cargo xtask book`: the book's reference is the commands' help, the control protocol's documents are its types, and
//! mdBook can make pages of the book.
//!
//! In the tree the reference names each command and its usage; the pages of the book have the tables of all options,
//! too. `cargo xtask tidy` holds the book's links, its summary and its quoted messages against the sources. A test of
//! the command holds the reference against its help, and one of farbus-control the page against the types, because
//! nobody else knows them. Where mdBook is not installed, a version of it that is known to make these pages is built
//! below `target`, once, without optimization: it runs for a second, and beside the release build it took 8 minutes.

use crate::cargo::{self, cargo};
use crate::workspace;
use clap::Args;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::process::{Command, Stdio};

#[derive(Args)]
pub struct BookArgs {
    /// Write the reference from the commands' help, and the control protocol from its types
    #[arg(long)]
    bless: bool,
}

/// The version that is built.
const VERSION: &str = "0.4.52";
/// The tests that compare documents with sources, by package.
const TESTS: [(&str, &str); 2] = [
    ("farbus-control", "reference::tests::documents_are_what_the_types_make_of_them"),
    ("farbus-cli", "help_tests::the_reference_lists_every_command"),
];
/// What the tests take as the order to write; it has the same name there.
const BLESS: &str = "FARBUS_BLESS";
/// What names the file that the test of the commands writes the whole reference to; it has the same name there.
const WITH_OPTIONS: &str = "FARBUS_REFERENCE_WITH_OPTIONS";
/// What the book is made of, below the workspace: the documents, with the whole reference.
const SOURCES: &str = "target/book-sources";
/// The pages that are made, below the workspace.
const PAGES: &str = "target/book";

/// # Errors
/// A document differs from its source, or mdBook failed.
pub fn run(arguments: &BookArgs) -> Result<(), String> {
    for (package, test) in TESTS {
        compare(package, test, |test| {
            if arguments.bless {
                test.env(BLESS, "1");
            } else {
                test.env_remove(BLESS);
            }
        })?;
    }
    if arguments.bless { Ok(()) } else { build() }
}

fn compare(package: &str, test: &str, set: impl FnOnce(&mut Command)) -> Result<(), String> {
    let mut compare = cargo(&["test", "--package", package, "--lib", "--", "--exact", test]);
    set(&mut compare);
    cargo::run(compare)
}

/// Makes the pages of the book, in `target/book`.
///
/// # Errors
/// mdBook cannot be had or failed, or it made no page of a document that its summary lists.
pub fn build() -> Result<(), String> {
    let root = workspace::root();
    let (sources, pages) = (root.join(SOURCES), root.join(PAGES));
    // A page of an earlier run would be taken for one of this run.
    for folder in [&sources, &pages] {
        match std::fs::remove_dir_all(folder) {
            Err(trouble) if trouble.kind() != ErrorKind::NotFound => {
                return Err(format!("cannot remove {}: {trouble}", folder.display()));
            }
            _ => {}
        }
    }
    let mut copy = Command::new("cp");
    copy.args(["--recursive", "docs", SOURCES]).current_dir(&root).stdin(Stdio::null());
    cargo::run(copy)?;
    let (package, test) = TESTS[1];
    compare(package, test, |test| {
        test.env(WITH_OPTIONS, sources.join("book/src/reference.md"));
    })?;
    let mut build = Command::new(mdbook()?);
    // mdBook reads a relative folder from the book's own: the absolute one is the same wherever the sources are.
    build.args(["build", SOURCES, "--dest-dir"]).arg(&pages).current_dir(&root).stdin(Stdio::null());
    cargo::run(build)?;
    let summary = std::fs::read_to_string(root.join("docs/SUMMARY.md"))
        .map_err(|error| format!("cannot read the summary: {error}"))?;
    let missing: Vec<_> = pages_of(&summary).filter(|page| !pages.join(page).is_file()).collect();
    if missing.is_empty() { Ok(()) } else { Err(format!("mdbook made no {}", missing.join(", "))) }
}

/// The pages that a summary asks for.
fn pages_of(summary: &str) -> impl Iterator<Item = String> + '_ {
    let targets = summary.lines().filter_map(|line| line.rsplit_once("](")?.1.strip_suffix(".md)"));
    targets.map(|page| match page.strip_suffix("README") {
        Some(folder) => format!("{folder}index.html"),
        None => format!("{page}.html"),
    })
}

/// mdBook: the one of this machine, else one that is built below `target`.
fn mdbook() -> Result<PathBuf, String> {
    let found = Command::new("mdbook").arg("--version").stdin(Stdio::null()).stdout(Stdio::null()).status();
    match found {
        Ok(_) => return Ok(PathBuf::from("mdbook")),
        Err(trouble) if trouble.kind() == ErrorKind::NotFound => {}
        Err(trouble) => return Err(format!("cannot start mdbook: {trouble}")),
    }
    let tools = workspace::root().join("target/tools");
    let program = tools.join("bin/mdbook");
    if !program.is_file() {
        let mut install =
            cargo(&["install", "--quiet", "--debug", "--locked", "--no-default-features", "--version", VERSION]);
        install.arg("mdbook").arg("--root").arg(&tools).arg("--target-dir").arg(tools.join("build"));
        cargo::run(install)?;
        // What it was built from is large, and needed no more.
        let _ = std::fs::remove_dir_all(tools.join("build"));
    }
    Ok(program)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_line_of_the_summary_is_a_page() {
        let summary =
            "# Summary\n\n[Documents](README.md)\n\n- [Disks](book/src/disks.md)\n- [All](book/src/README.md)\n";
        let pages: Vec<_> = pages_of(summary).collect();
        assert_eq!(pages, ["index.html", "book/src/disks.html", "book/src/index.html"]);
    }
}
