//! Gives a test's thread a network namespace, mounts and open files of its own: its ports, abstract sockets and
//! multicast are isolated from other programs on the machine, no program that takes a copy of its mounts keeps what
//! this test unmounts in use, and no other test waits for what this test has open. Threads and processes that the test
//! starts are in it as well.
//!
//! The last is so because a process that starts another copies all its open files, and closes the copies before the
//! other program begins; closing a file of an attached disk waits until its exporter has flushed. Two tests of one
//! process, each of which has such a file open and is about to start its exporter again, would wait for each other.
//! Nor does a test's thread have what others have open: who starts a program waits until nobody has one end of a socket
//! any more, and would wait for the end of all tests.

use std::cell::Cell;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::fd::AsFd;
use std::process::{Command, Stdio};

use farbus_io_linux::sys::own_descriptors;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

thread_local! {
    static IS_ENTERED: Cell<bool> = const { Cell::new(false) };
    static HAS_MOUNTS: Cell<bool> = const { Cell::new(false) };
    static HAS_FILES: Cell<bool> = const { Cell::new(false) };
}

/// Moves this thread into a network namespace of its own, unless it is in one, and gives it mounts and a table of open
/// files of its own. Without the right to make them, it stays in the network and the mounts where it is.
pub fn enter() {
    if !HAS_FILES.replace(true) {
        own_descriptors::enter().expect("Linux 5.9 or later, which closes a range of descriptors");
    }
    if !rustix::process::geteuid().is_root() {
        return;
    }
    if !HAS_MOUNTS.replace(true) {
        farbus_io_linux::sys::own_mounts::enter().expect("root has mounts of its own");
    }
    if !IS_ENTERED.replace(true) {
        make_and_join().expect("root makes network namespaces with unshare (util-linux) and ip (iproute2)");
    }
}

/// The next [`enter`] of this thread makes a new namespace.
pub fn leave() {
    IS_ENTERED.set(false);
}

/// A process makes the namespace and holds it until this thread is in it.
fn make_and_join() -> std::io::Result<()> {
    let mut maker = Command::new("unshare");
    maker.args(["--net", "sh", "-c", "ip link set lo up && echo made && read -r _"]);
    let mut maker = maker.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let mut line = String::new();
    BufReader::new(maker.stdout.take().expect("it is piped")).read_line(&mut line)?;
    if line.trim_end() != "made" {
        return Err(std::io::Error::other(format!("no network namespace was made: {:?}", maker.wait()?)));
    }
    let namespace = File::open(format!("/proc/{}/ns/net", maker.id()))?;
    move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?;
    drop(maker.stdin.take());
    maker.wait()?;
    Ok(())
}
