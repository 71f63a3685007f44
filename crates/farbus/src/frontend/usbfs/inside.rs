//! The program's process, before it is the program.

use std::ffi::OsString;
use std::fs;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;

use farbus_io::frontend::tree;
use farbus_io::sys::{leash, own_mounts, passing};

/// Where the tree is mounted. Its folders `.bus` and `.dev` are shown at two other places.
const TREE: &str = "/sys/devices/farbus";
const BUS: &str = "/sys/bus/usb";
const NODES: &str = "/dev/bus/usb";
/// The folder that [`show_dev`] covers.
const OLD_DEV: &str = "/dev/.old";

/// Makes mounts of this process's own, passes their server's end to `parent`, and becomes the program. Returns only if
/// that failed, when it has told `parent` why.
pub fn become_program(parent: OwnedFd, program: &[OsString]) {
    let mut parent = UnixStream::from(parent);
    let why = match prepare(&mut parent) {
        Ok(()) => {
            // libudev asks for a file system of the kernel's at /sys, and this one is in memory.
            let mut command = Command::new(&program[0]);
            let error = command.args(&program[1..]).env("SYSTEMD_DEVICE_VERIFY_SYSFS", "0").exec();
            format!("cannot run {}: {error}", Path::new(&program[0]).display())
        }
        Err((what, error)) => format!("{what}: {error}"),
    };
    // If the parent has ended, nobody waits for the reason.
    let _ = parent.write_all(why.as_bytes());
}

/// What was tried, and why it failed.
type Failed = (&'static str, io::Error);

fn prepare(parent: &mut UnixStream) -> Result<(), Failed> {
    rustix::io::fcntl_setfd(&*parent, rustix::io::FdFlags::CLOEXEC).map_err(|errno| ("the socket", errno.into()))?;
    leash::hang_up_with_parent().map_err(|error| ("this process cannot end with its parent", error))?;
    own_mounts::enter().map_err(|error| ("this machine gives the program no mounts of its own", error))?;
    show_sys().map_err(|error| ("/sys cannot be covered", error))?;
    let server = tree::mount(Path::new(TREE)).map_err(|error| ("FUSE cannot be mounted", error))?;
    let served = || {
        passing::send_on_stream(parent.as_fd(), b"m", &[server.as_fd()])?;
        drop(server);
        // The tree answers from now on.
        let mut parent = &*parent;
        parent.read_exact(&mut [0])
    };
    served().map_err(|error| ("the parent has ended", error))?;
    let bind = |from: &str, to: &str| own_mounts::bind(&Path::new(TREE).join(from), Path::new(to));
    bind(".bus", BUS).map_err(|error| (BUS, error))?;
    if !Path::new(NODES).is_dir() {
        show_dev().map_err(|error| ("/dev cannot be covered", error))?;
    }
    bind(".dev", NODES).map_err(|error| (NODES, error))
}

fn show_sys() -> io::Result<()> {
    own_mounts::cover(Path::new("/sys"), &[])?;
    own_mounts::cover(Path::new("/sys/devices"), &[])?;
    fs::create_dir_all(TREE)?;
    fs::create_dir_all("/sys/bus")?;
    if !Path::new(BUS).is_dir() {
        own_mounts::cover(Path::new("/sys/bus"), &[])?;
        fs::create_dir_all(BUS)?;
    }
    Ok(())
}

fn show_dev() -> io::Result<()> {
    let old = own_mounts::cover(Path::new("/dev"), &["bus", "ptmx"])?;
    // Whoever opens /dev/ptmx is given a terminal of the `pts` beside it, where a node alone has none (`path_pts`).
    if old.has_device("ptmx")? {
        fs::create_dir(OLD_DEV)?;
        old.show_at(Path::new(OLD_DEV))?;
        std::os::unix::fs::symlink(Path::new(OLD_DEV).join("ptmx"), "/dev/ptmx")?;
    } else {
        std::os::unix::fs::symlink("pts/ptmx", "/dev/ptmx")?;
    }
    fs::create_dir_all(NODES)
}
