//! Starts the replacement of a confined process.
//!
//! The confined process cannot start a program: it has no right to, and the program would have none either. The broker
//! starts it: the file that is now where this program was started from, with the arguments that the policy named before
//! the process read from the network. The replacement begins as every daemon does, with a broker of its own. On a
//! passage it receives first what the broker knows, and then, once it has dropped its rights, what the old confined
//! process passes on.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use farbus_io::sys::passing::Passage;

use super::protocol::{HandoverState, to_json};

/// A replacement process and the passage to it.
#[derive(Debug)]
pub struct ReplacementProcess {
    /// Its process id.
    pub pid: u32,
    /// The passage to it. The replacement sees its end once the old process and the old broker have both ended.
    pub passage: Passage,
}

/// Variables that a service manager sets for one process only.
const NOT_INHERITED: [&str; 4] = ["WATCHDOG_PID", "LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"];

/// Starts `program`. Returns the process and this end of the passage.
pub(super) fn start(
    program: &Path,
    arguments: &[String],
    handover_state: &HandoverState,
    nodes: &[BorrowedFd<'_>],
) -> io::Result<(Child, OwnedFd)> {
    let (ours, theirs) = Passage::pair()?;
    ours.send(&to_json(handover_state)?, None)?;
    for node in nodes {
        ours.send(NODE, Some(*node))?;
    }
    let mut command = Command::new(program);
    command.args(arguments).stdin(theirs).stdout(Stdio::null());
    for name in NOT_INHERITED {
        command.env_remove(name);
    }
    Ok((command.spawn()?, ours.into_descriptor()))
}

/// Starts this program as the page, which ends when the other end of the returned passage is closed.
pub(super) fn start_page(arguments: &[String]) -> io::Result<(Child, OwnedFd)> {
    let (ours, theirs) = Passage::pair()?;
    let mut command = Command::new("/proc/self/exe");
    command.args(arguments).stdin(theirs).stdout(Stdio::null());
    for name in NOT_INHERITED {
        command.env_remove(name);
    }
    Ok((command.spawn()?, ours.into_descriptor()))
}

/// The message that carries the open node of a device.
const NODE: &[u8] = b"usb";

/// What a replacement process was started with.
#[derive(Debug)]
pub struct ReplacementStart {
    /// The passage to the old process.
    pub passage: Passage,
    /// What the old broker knows.
    pub handover_state: HandoverState,
    /// The open nodes of [`HandoverState::devices`].
    pub nodes: Vec<OwnedFd>,
}

/// Reads what this process was started with as a replacement.
///
/// # Errors
/// The standard input is no passage of an old process.
pub fn handover_state() -> io::Result<ReplacementStart> {
    let passage = Passage::over(io::stdin().as_fd().try_clone_to_owned()?);
    let wrong = || io::Error::new(io::ErrorKind::InvalidInput, "nobody passed anything on: farbus starts itself so");
    let parcel = passage.receive().map_err(|_| wrong())?.ok_or_else(wrong)?;
    let handover_state: HandoverState = serde_json::from_slice(&parcel.bytes)?;
    let node = |_| passage.receive()?.and_then(|parcel| parcel.fd).ok_or_else(wrong);
    let nodes = handover_state.devices.iter().map(node).collect::<io::Result<_>>()?;
    Ok(ReplacementStart { passage, handover_state, nodes })
}
