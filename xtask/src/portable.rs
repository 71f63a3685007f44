//! The pure crates are checked for systems that this is not: a crate that needs nothing of its system promises that it
//! compiles for each. One of them has another operating system, the other 32-bit words.

use std::process::Command;

use crate::cargo::{self, cargo};
use crate::steps::StepSuccess;
use crate::{tidy, workspace};

/// The targets of `cargo xtask portable`: systems that are not the development machine's.
const TARGETS: [&str; 2] = ["x86_64-pc-windows-gnu", "armv7-unknown-linux-gnueabihf"];

/// How long a standard library may take to be fetched, seconds.
const FETCH_SECONDS_MAX: &str = "120";

/// Checks every pure crate for each of the systems. Fetches their standard libraries if they are not there.
///
/// # Errors
/// A crate does not compile for one of them.
pub fn run() -> Result<StepSuccess, String> {
    let missing: Vec<&str> = TARGETS.into_iter().filter(|target| !is_there(target)).collect();
    if !missing.is_empty() {
        return Ok(StepSuccess::Skipped(format!(
            "the pure crates were not checked for {}: rustup could not fetch their standard libraries; type:\n  rustup target \
             add {}",
            missing.join(" and "),
            missing.join(" ")
        )));
    }
    let packages = tidy::layers()?.pure;
    for target in TARGETS {
        let mut check = cargo(&["check", "--lib", "--target", target]);
        check.args(packages.iter().flat_map(|package| ["--package", package.as_str()]));
        // A crate with C in it (zstd) has that compiled, and nothing is linked: any compiler will do.
        check.env("TARGET_CC", "cc").env("TARGET_AR", "ar").env("CRATE_CC_NO_DEFAULTS", "1");
        check.env("CARGO_TARGET_DIR", workspace::root().join("target/portable"));
        cargo::run(check)?;
    }
    Ok(StepSuccess::All)
}

/// Whether the standard library for this system is here, or could be fetched.
fn is_there(target: &str) -> bool {
    let mut add = Command::new("timeout");
    add.args([FETCH_SECONDS_MAX, "rustup", "target", "add", target]).current_dir(workspace::root());
    add.output().is_ok_and(|output| output.status.success())
}
