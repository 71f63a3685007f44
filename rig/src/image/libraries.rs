//! The shared libraries that a host program needs to run in the guest.

use crate::{Result, tool};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Everything the dynamic loader would open for `program`, the loader included; empty for a static program.
pub fn of(program: &Path) -> Result<Vec<PathBuf>> {
    // ldd reports a static program as an error, in words; that is an answer here.
    let listed = match tool::text(Command::new("ldd").arg(program).env("LC_ALL", "C")) {
        Err(crate::RigError::Tool { message, .. }) if message.contains("not a dynamic executable") => {
            return Ok(Vec::new());
        }
        listed => listed?,
    };
    Ok(paths(&listed))
}

/// Lines are `name => /path (address)`, or `/path (address)` for the loader; the kernel's own page has no path.
fn paths(listed: &str) -> Vec<PathBuf> {
    listed
        .lines()
        .filter_map(|line| line.split_whitespace().find(|word| word.starts_with('/')))
        .map(PathBuf::from)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_ldd_prints() {
        let listed = "\tlinux-vdso.so.1 (0x0007)\n\tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x0007)\n\t/lib64/ld-linux-x86-64.so.2 (0x07)\n\tstatically linked\n";
        assert_eq!(
            paths(listed),
            [Path::new("/lib/x86_64-linux-gnu/libc.so.6"), Path::new("/lib64/ld-linux-x86-64.so.2")]
        );
    }
}
