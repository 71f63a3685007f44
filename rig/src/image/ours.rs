//! The rig's own small programs for guests, compiled at test time.
//!
//! In C, because they must share no code with farbus: they use the kernel's own headers.

use crate::{Result, RigError, tool};
use std::path::{Path, PathBuf};
use std::process::Command;

/// A user of isochronous endpoints, one of a pair of bulk endpoints, one that measures remote devices, one that says
/// what usbfs answers, one that knows what was flushed, and one that makes another process do system calls.
const PROGRAMS: [(&str, &str); 6] = [
    ("isostream", include_str!("../../guest/isostream.c")),
    ("bulkpair", include_str!("../../guest/bulkpair.c")),
    ("measure", include_str!("../../guest/measure.c")),
    ("usbfs", include_str!("../../guest/usbfs.c")),
    ("flushed", include_str!("../../guest/flushed.c")),
    ("inject", include_str!("../../../crates/cli/tests/programs/inject.c")),
];

/// Compiles all of them into the folder.
pub fn build(folder: &Path) -> Result<Vec<PathBuf>> {
    PROGRAMS.iter().map(|(name, text)| compile(folder, name, text)).collect()
}

fn compile(folder: &Path, name: &str, text: &str) -> Result<PathBuf> {
    let (source, program) = (folder.join(format!("{name}.c")), folder.join(name));
    std::fs::write(&source, text).map_err(RigError::io(format!("write {}", source.display())))?;
    tool::output(Command::new("gcc").args(["-O2", "-o"]).args([&program, &source]))?;
    Ok(program)
}
