//! Our own small user of isochronous endpoints, compiled at test time.
//!
//! In C, because it must not be farbus: what judges the streams speaks to the kernel's usbfs by the kernel's own header.

use crate::{Error, Result, tool};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Compiles `guest/isostream.c` into the folder.
pub fn build(folder: &Path) -> Result<PathBuf> {
    let (source, program) = (folder.join("isostream.c"), folder.join("isostream"));
    std::fs::write(&source, include_str!("../../guest/isostream.c"))
        .map_err(Error::io(format!("write {}", source.display())))?;
    tool::output(Command::new("gcc").args(["-O2", "-o"]).args([&program, &source]))?;
    Ok(program)
}
