//! `cargo xtask book`: the book's reference is the commands' help, and mdBook can make pages of the book.
//!
//! `cargo xtask tidy` holds the book's links, its summary and its quoted messages against the sources. A test of the
//! command holds the reference against its help, because only the command knows that. mdBook is expensive to build, so
//! it is used where it is installed, and its absence is reported.

use crate::cargo::{self, cargo};
use crate::steps::Done;
use crate::workspace;
use clap::Args;
use std::io::ErrorKind;
use std::process::{Command, Stdio};

#[derive(Args)]
pub struct Arguments {
    /// Write the reference from the commands' help
    #[arg(long)]
    bless: bool,
}

const TEST: &str = "cli::help_tests::the_reference_lists_every_command_and_option";
/// What the test takes as the order to write; it has the same name there.
const BLESS: &str = "FARBUS_BLESS";

/// # Errors
/// The reference differs from the help, or mdBook failed.
pub fn run(arguments: &Arguments) -> Result<(), String> {
    let mut compare = cargo(&["test", "--package", "farbus", "--lib", "--", "--exact", TEST]);
    if arguments.bless {
        compare.env(BLESS, "1");
    } else {
        compare.env_remove(BLESS);
    }
    cargo::run(compare)?;
    if let Done::Skipped(why) = build()? {
        println!("SKIPPED: {why}");
    }
    Ok(())
}

/// Makes the pages of the book, in `target/book`, where mdBook is installed.
///
/// # Errors
/// mdBook failed.
pub fn build() -> Result<Done, String> {
    let found = Command::new("mdbook").arg("--version").stdin(Stdio::null()).stdout(Stdio::null()).status();
    match found {
        Err(trouble) if trouble.kind() == ErrorKind::NotFound => Ok(Done::Skipped(
            "mdBook is not installed, so no pages were made of the book: cargo install mdbook".to_owned(),
        )),
        Err(trouble) => Err(format!("cannot start mdbook: {trouble}")),
        Ok(_) => {
            let mut build = Command::new("mdbook");
            build.args(["build", "docs"]).current_dir(workspace::root()).stdin(Stdio::null());
            cargo::run(build)?;
            Ok(Done::All)
        }
    }
}
