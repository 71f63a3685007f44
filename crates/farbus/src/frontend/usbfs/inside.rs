//! The program's process, before it is the program.

use std::ffi::OsString;
use std::fs;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;

use farbus_io_linux::frontend::tree;
use farbus_io_linux::sys::own_mounts::PinnedFolder;
use farbus_io_linux::sys::{event_sockets, leash, own_mounts};
use farbus_io_net::sys::passing;

use super::program;
use crate::common::child_program::{exit_code_of_error, not_run};

/// Where the tree is mounted, in a folder of its own. Its folders `.bus`, `.dev` and `.udev` are shown at three other
/// places.
const DEVICES: &str = "/sys/devices";
const BUS: &str = "/sys/bus/usb";
const NODES: &str = "/dev/bus/usb";
/// The folder that [`show_dev`] covers.
const OLD_DEV: &str = "/dev/.old";
const RUN: &str = "/run";
const UDEV: &str = "/run/udev";
const UDEV_CONTROL: &str = "/run/udev/control";
/// What udev knows of devices, and the machine's own folder of udev, to which links in the former lead.
const UDEV_DATA: &str = "/run/udev/data";
const UDEV_OF_MACHINE: &str = "/run/udev/.machine";

/// What the program's process is told.
#[derive(Debug)]
pub struct ProgramProcessSetup {
    /// The name of the tree's folder in `/sys/devices`.
    pub tree: String,
    /// The parent gets a listener for its sockets for events.
    pub hears_events: bool,
    /// It has the nodes of this machine's devices, too.
    pub with_local: bool,
}

/// Makes mounts of this process's own, passes their server's end to `parent`, and becomes the program. Returns only if
/// that failed, when it has told `parent` why: the exit code.
pub fn become_program(parent: OwnedFd, setup: &ProgramProcessSetup, program: &[OsString]) -> u8 {
    let mut parent = UnixStream::from(parent);
    let (why, code) = match prepare(&mut parent, setup) {
        Ok(()) => {
            let error = program::become_it(program);
            (not_run(program, &error), exit_code_of_error(&error))
        }
        Err(why) => (why, 1),
    };
    // If the parent has ended, nobody waits for the reason.
    let _ = parent.write_all(why.as_bytes());
    code
}

/// Why a program cannot have mounts of its own, and what then.
fn no_mounts(error: &io::Error) -> String {
    format!(
        "this machine lets you have no user namespace, in which a program would see the device: {error}\n  \
         it may be a rule of the administrator (sysctl user.max_user_namespaces, kernel.unprivileged_userns_clone, \
         kernel.apparmor_restrict_unprivileged_userns), or of a container's runtime\n  \
         'sudo farbus run' needs none; 'farbus attach DEVICE --via kernel' shows the device to the whole machine, a disk \
         also comes by '--via nbd' or '--via fuse', and a virtual machine has it by '--via redir'"
    )
}

fn no_fuse(error: &io::Error) -> String {
    let next = match error.kind() {
        io::ErrorKind::NotFound => "load it: sudo modprobe fuse; into a container pass it: --device /dev/fuse",
        _ => "a container's runtime may forbid it: docker run --device /dev/fuse --cap-add SYS_ADMIN",
    };
    format!(
        "this kernel lets you mount no FUSE file system, by which a program would see the device: {error}\n  {next}"
    )
}

fn prepare(parent: &mut UnixStream, setup: &ProgramProcessSetup) -> Result<(), String> {
    let at = |what: &'static str| move |error: io::Error| format!("{what}: {error}");
    rustix::io::fcntl_setfd(&*parent, rustix::io::FdFlags::CLOEXEC).map_err(|errno| at("the socket")(errno.into()))?;
    leash::hang_up_with_parent().map_err(at("this process cannot end with its parent"))?;
    own_mounts::enter().map_err(|error| no_mounts(&error))?;
    let tree = &Path::new(DEVICES).join(&setup.tree);
    show_sys(tree).map_err(at("/sys cannot be covered"))?;
    let server = tree::mount(tree).map_err(|error| no_fuse(&error))?;
    // A program can do without udev's word, and inside another `farbus run` it hears the outer one's events.
    let has_udev = show_udev().is_ok();
    let listener = (has_udev && setup.hears_events).then(event_sockets::listen).and_then(Result::ok);
    let passed: Vec<_> = [Some(server.as_fd()), listener.as_ref().map(OwnedFd::as_fd)].into_iter().flatten().collect();
    let sent = passing::send_on_stream(parent.as_fd(), b"m", &passed);
    drop((server, listener));
    // The tree answers once the parent says so.
    sent.and_then(|_| parent.read_exact(&mut [0])).map_err(at("the parent has ended"))?;
    let bind = |from: &str, to: &str| own_mounts::bind(&tree.join(from), Path::new(to));
    bind(".bus", BUS).map_err(at(BUS))?;
    if has_udev {
        bind(".udev", UDEV_DATA).map_err(at(UDEV_DATA))?;
    }
    if !Path::new(NODES).is_dir() {
        show_dev().map_err(at("/dev cannot be covered"))?;
    }
    let local = if setup.with_local { PinnedFolder::open(Path::new(NODES)).map_err(at(NODES))? } else { None };
    bind(".dev", NODES).map_err(at(NODES))?;
    local.map_or(Ok(()), |local| local.show_folders_in(Path::new(NODES))).map_err(at(NODES))
}

/// Makes room for what udev knows of the devices. libudev listens where udev is at work, which it believes if it finds
/// its socket.
fn show_udev() -> io::Result<()> {
    let folder = Path::new(UDEV);
    if folder.is_dir() {
        let of_machine = own_mounts::cover(folder, &["data"])?;
        fs::create_dir_all(UDEV_OF_MACHINE)?;
        of_machine.show_at(Path::new(UDEV_OF_MACHINE))?;
    } else {
        own_mounts::cover(Path::new(RUN), &[])?;
        fs::create_dir(folder)?;
    }
    if !Path::new(UDEV_CONTROL).exists() {
        fs::File::create(UDEV_CONTROL)?;
    }
    fs::create_dir(UDEV_DATA)
}

fn show_sys(tree: &Path) -> io::Result<()> {
    own_mounts::cover(Path::new("/sys"), &[])?;
    own_mounts::cover(Path::new(DEVICES), &[])?;
    fs::create_dir_all(tree)?;
    fs::create_dir_all("/sys/bus")?;
    if !Path::new(BUS).is_dir() {
        own_mounts::cover(Path::new("/sys/bus"), &[])?;
        fs::create_dir_all(BUS)?;
    }
    Ok(())
}

fn show_dev() -> io::Result<()> {
    let old = own_mounts::cover(Path::new("/dev"), &["bus", "ptmx"])?;
    // A program that opens /dev/ptmx is given a terminal of the `pts` beside it; a node alone has none (`path_pts`).
    if old.has_device("ptmx")? {
        fs::create_dir(OLD_DEV)?;
        old.show_at(Path::new(OLD_DEV))?;
        std::os::unix::fs::symlink(Path::new(OLD_DEV).join("ptmx"), "/dev/ptmx")?;
    } else {
        std::os::unix::fs::symlink("pts/ptmx", "/dev/ptmx")?;
    }
    fs::create_dir_all(NODES)
}
