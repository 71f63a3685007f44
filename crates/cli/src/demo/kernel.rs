//! Mounts the disk's file through a loop device, which only root may do.

use std::fs;
use std::path::{Path, PathBuf};

use super::super::CommandFailure;
use super::image::DemoImage;
use super::stage::{DemoFolder, DemoReporter};
use super::tool;

/// A file system that is mounted through a loop device. Dropping it unmounts the file system and frees the device.
pub struct MountedImage {
    // Dropped in this order: the mount holds the device.
    tree: FileSystemMount,
    device: LoopDevice,
}

/// Mounts the disk's file, and copies the demo's files to it if they could not be put there before.
///
/// # Errors
/// The outer one when the demo is to end; the inner one says why this machine cannot mount it.
pub fn mount(
    file: &Path,
    image: &DemoImage,
    scratch: &DemoFolder,
    stage: &DemoReporter,
) -> Result<Result<MountedImage, String>, CommandFailure> {
    stage.doing("mount")?;
    if !rustix::process::geteuid().is_root() {
        return Ok(Err("loop devices and mounting are for root".into()));
    }
    let device = match LoopDevice::over(file) {
        Ok(device) => device,
        Err(why) => return Ok(Err(why)),
    };
    let folder = scratch.path("mounted");
    let mut tree = match FileSystemMount::mount(&device.path, &folder) {
        Ok(tree) => tree,
        Err(why) => return Ok(Err(why)),
    };
    stage.done("mount", format!("{} is mounted at {}", device.path, folder.display()));
    if !image.is_populated {
        image.grow_tree(&folder).map_err(CommandFailure::local)?;
        // Mounting again empties the kernel's cache of it.
        tree.unmount().map_err(CommandFailure::local)?;
        tree = FileSystemMount::mount(&device.path, &folder).map_err(CommandFailure::local)?;
    }
    Ok(Ok(MountedImage { tree, device }))
}

impl MountedImage {
    /// The folder where it is mounted.
    pub fn folder(&self) -> &Path {
        &self.tree.folder
    }

    /// Writes a last file, unmounts, and frees the device.
    pub fn unmount(mut self, stage: &DemoReporter) -> Result<(), CommandFailure> {
        stage.doing("unmount")?;
        fs::write(self.folder().join("was-here.txt"), "written from afar\n").map_err(CommandFailure::local)?;
        self.tree.unmount().map_err(CommandFailure::local)?;
        self.device.detach().map_err(CommandFailure::local)?;
        stage.done("unmount", format!("a file was added; {} is free again", self.device.path));
        Ok(())
    }
}

/// A mounted file system.
struct FileSystemMount {
    folder: PathBuf,
    is_mounted: bool,
}

impl FileSystemMount {
    fn mount(device: &str, folder: &Path) -> Result<Self, String> {
        fs::create_dir_all(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        tool::run("mount", [device.as_ref(), folder])?;
        Ok(Self { folder: folder.to_owned(), is_mounted: true })
    }

    fn unmount(&mut self) -> Result<(), String> {
        tool::run("umount", [&self.folder])?;
        self.is_mounted = false;
        Ok(())
    }
}

impl Drop for FileSystemMount {
    fn drop(&mut self) {
        if self.is_mounted
            && let Err(error) = self.unmount()
        {
            tracing::warn!(%error, "left mounted");
        }
    }
}

struct LoopDevice {
    path: String,
    is_attached: bool,
}

impl LoopDevice {
    fn over(file: &Path) -> Result<Self, String> {
        let path = tool::run("losetup", ["-f".as_ref(), "--show".as_ref(), file])?;
        Ok(Self { path, is_attached: true })
    }

    fn detach(&mut self) -> Result<(), String> {
        tool::run("losetup", ["-d", &self.path])?;
        self.is_attached = false;
        Ok(())
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        if self.is_attached
            && let Err(error) = self.detach()
        {
            tracing::warn!(%error, "left attached");
        }
    }
}
