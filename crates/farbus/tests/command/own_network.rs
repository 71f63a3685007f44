//! Gives a test's thread a network namespace and mounts of its own: its ports, abstract sockets and multicast are
//! isolated from other programs on the machine, and no program that takes a copy of its mounts keeps what this test
//! unmounts in use. Threads and processes that the test starts are in it as well.

use std::cell::Cell;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::fd::AsFd;
use std::process::{Command, Stdio};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

thread_local! {
    static IS_ENTERED: Cell<bool> = const { Cell::new(false) };
    static HAS_MOUNTS: Cell<bool> = const { Cell::new(false) };
}

/// Moves this thread into a network namespace of its own, unless it is in one, and gives it mounts of its own. Without
/// the right to make them, it stays where it is.
pub fn enter() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    if !HAS_MOUNTS.replace(true) {
        farbus_io::sys::own_mounts::enter().expect("root has mounts of its own");
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
