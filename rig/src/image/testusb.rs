//! The kernel's own USB test program, built from Debian's kernel source at test time.

use crate::image::kernel::SOURCE_ARCHIVE;
use crate::{Result, RigError, tool};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The static `testusb`, from the cache or compiled into it (twenty seconds, most of it finding one file in
/// the archive).
pub fn build(cache: &Path) -> Result<PathBuf> {
    let version = tool::text(Command::new("dpkg-query").args(["-W", "-f", "${Version}", "linux-source-6.1"]))?;
    let target = cache.join(format!("testusb-{}", version.trim()));
    if target.exists() {
        return Ok(target);
    }
    eprintln!("rig: compiling testusb {} (once)", version.trim());
    let folder = cache.join(format!("testusb-source-{}", std::process::id()));
    std::fs::create_dir_all(&folder).map_err(RigError::io(format!("create {}", folder.display())))?;
    let built = compile(&folder);
    let placed = built.and_then(|program| {
        std::fs::rename(&program, &target).map_err(RigError::io(format!("put {} in place", target.display())))
    });
    // A leftover scratch folder does no harm; the result above is what counts.
    let _ = std::fs::remove_dir_all(&folder);
    placed.map(|()| target)
}

fn compile(folder: &Path) -> Result<PathBuf> {
    const SOURCE: &str = "linux-source-6.1/tools/usb/testusb.c";
    tool::output(Command::new("tar").arg("-C").arg(folder).args(["-xJf", SOURCE_ARCHIVE, "--occurrence=1", SOURCE]))?;
    let program = folder.join("testusb");
    tool::output(
        Command::new("gcc").args(["-O2", "-static", "-pthread", "-o"]).arg(&program).arg(folder.join(SOURCE)),
    )?;
    Ok(program)
}
