//! Whether the static programs need nothing but the kernel.

use crate::cargo;
use crate::package::tree;
use std::path::Path;
use std::process::Command;

const ALONE: &str = include_str!("alone.sh");

/// Refuses a program that asks for a loader or a library.
///
/// # Errors
/// It does, or it cannot be read.
pub fn is_static(program: &Path) -> Result<(), String> {
    let mut ask = Command::new("readelf");
    ask.args(["--wide", "--program-headers", "--dynamic"]).arg(program);
    let message = String::from_utf8_lossy(&cargo::output(ask)?).into_owned();
    match message.lines().find(|line| line.contains("INTERP") || line.contains("(NEEDED)")) {
        Some(line) => Err(format!("{} is not static: {}", program.display(), line.trim())),
        None => Ok(()),
    }
}

/// Uses `program`, a path within `root`, where that folder is all that there is: `farbus demo`, the conformance kit
/// beside it, a disk by NBD and by FUSE. Only root may.
///
/// # Errors
/// It does not work there.
pub fn check(root: &Path, program: &str, environment: &[String]) -> Result<(), String> {
    let script = root.with_extension("sh");
    tree::put_text(ALONE.as_bytes(), &script, 0o644)?;
    let mut unshare = Command::new("unshare");
    unshare.args(["--mount", "--net", "--pid", "--fork", "--kill-child", "sh"]).arg(script).arg(root).arg(program);
    unshare.args(environment);
    cargo::run(unshare)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn program_that_loads_libraries_is_not_taken_for_a_static_one() {
        let refused = is_static(&std::env::current_exe().unwrap()).unwrap_err();
        assert!(refused.contains("is not static"), "{refused}");
    }
}
