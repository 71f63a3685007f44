//! `cargo xtask sanitize`: tests under AddressSanitizer, which stops at the first wrong access to memory, and at memory
//! that nobody frees; then those that Miri can run.
//!
//! Most of farbus's `unsafe` is calls of the kernel with pointers to structures. Miri cannot run such calls, and
//! AddressSanitizer does not see what the kernel writes; it sees what the program does with it, in farbus and in every
//! crate it is built from, except in what they have in C and assembly.

use std::fs;
use std::path::Path;
use std::process::Command;

use clap::Args;

use crate::cargo::{self, cargo};
use crate::workspace;

/// Tests run natively there alone: the sanitizer's library comes with the compiler.
const TARGET: &str = "x86_64-unknown-linux-gnu";
const FLAG: &str = "-Zsanitizer=address";
/// The crates with `unsafe` code, and those that handle what strangers send. The test that is left out locks all memory
/// of its process, and the sanitizer's own is terabytes.
const TESTED: [&[&str]; 5] = [
    &["--package", "farbus-io-net", "--package", "farbus-io-linux", "--lib", "--tests"],
    &["--package", "farbus-session", "--package", "farbus-wire", "--package", "farbus-model", "--lib"],
    &["--package", "farbus", "--test", "leases"],
    &[
        "--package",
        "farbus",
        "--package",
        "farbus-daemon",
        "--package",
        "farbus-page",
        "--package",
        "farbus-pipe",
        "--lib",
    ],
    &["--package", "farbus-cli", "--lib", "--", "--skip", "a_bus_is_counted_for_a_second"],
];
/// The tests of `unsafe` code that makes no call which Miri does not know.
const FOR_MIRI: [&str; 2] = [
    "sys::lease::tests::memory_is_lent_again_after_its_last_reader_is_gone",
    "sys::file_handle::tests::structures_are_as_large_as_the_kernels",
];
/// Reads what it has freed.
const WRONG: &str = "fn main() {
    let freed = { let word = Box::new(std::env::args().count()); &raw const *word };
    println!(\"{}\", unsafe { *freed });
}
";

#[derive(Args)]
#[command(after_help = "Builds in a folder of its own, a few minutes. Miri needs a nightly compiler:
  rustup toolchain install nightly --component miri --component rust-src

Examples:
  cargo xtask sanitize
  cargo xtask sanitize --without-miri")]
pub struct SanitizeArgs {
    /// Run AddressSanitizer only
    #[arg(long)]
    without_miri: bool,
}

pub fn run(arguments: &SanitizeArgs) -> Result<(), String> {
    let folder = workspace::root().join("target/sanitize");
    find_what_is_wrong(&folder)?;
    for tests in TESTED {
        let mut command = cargo(&["test", "--target", TARGET]);
        command.arg("--target-dir").arg(&folder).args(tests);
        cargo::run(sanitized(command))?;
    }
    if arguments.without_miri {
        return Ok(());
    }
    interpret(&folder)
}

/// As `cargo xtask sanitize`.
///
/// # Errors
/// A test failed, or a tool is not there.
pub fn run_all() -> Result<(), String> {
    run(&SanitizeArgs { without_miri: false })
}

/// The command, whose programs are built for the sanitizer by the stable compiler.
fn sanitized(mut command: Command) -> Command {
    // A test asks for more memory than there is.
    command.env("RUSTC_BOOTSTRAP", "1").env("RUSTFLAGS", FLAG).env("ASAN_OPTIONS", "allocator_may_return_null=1");
    command
}

/// Fails unless a program that is wrong is stopped: a sanitizer that is not there finds nothing.
fn find_what_is_wrong(folder: &Path) -> Result<(), String> {
    let (source, program) = (folder.join("wrong.rs"), folder.join("wrong"));
    let failed = |error: std::io::Error| format!("{}: {error}", folder.display());
    fs::create_dir_all(folder).and_then(|()| fs::write(&source, WRONG)).map_err(failed)?;
    let mut compile = Command::new("rustc");
    compile.args(["--edition", "2024", FLAG, "-o"]).arg(&program).arg(&source).env("RUSTC_BOOTSTRAP", "1");
    cargo::run(compile)?;
    let ran = Command::new(&program).output().map_err(failed)?;
    let printed = String::from_utf8_lossy(&ran.stderr);
    if ran.status.success() || !printed.contains("heap-use-after-free") {
        return Err(format!("the sanitizer does not find the error of {}: {} {printed}", source.display(), ran.status));
    }
    Ok(())
}

/// Runs what Miri can run. It is started elsewhere, so that it does not run the workspace's own runner of tests.
fn interpret(folder: &Path) -> Result<(), String> {
    let mut miri = Command::new("cargo");
    miri.args(["+nightly", "miri", "test", "--package", "farbus-io-linux", "--lib", "--manifest-path"]);
    miri.arg(workspace::root().join("Cargo.toml")).arg("--target-dir").arg(folder.join("miri"));
    miri.args(["--", "--exact"]).args(FOR_MIRI).current_dir("/");
    miri.env_remove("RUSTUP_TOOLCHAIN").env_remove("RUSTC_BOOTSTRAP").env("MIRIFLAGS", "-Zmiri-disable-isolation");
    let bytes = cargo::output(miri).map_err(|error| {
        format!("{error}\n  is Miri there? rustup toolchain install nightly --component miri --component rust-src")
    })?;
    let reported = String::from_utf8_lossy(&bytes);
    let passed = format!("{} passed; 0 failed; 0 ignored", FOR_MIRI.len());
    if !reported.contains(&passed) {
        return Err(format!("Miri did not run {} tests:\n{reported}", FOR_MIRI.len()));
    }
    println!("Miri: {passed}");
    Ok(())
}
