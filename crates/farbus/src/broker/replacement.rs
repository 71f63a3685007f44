//! The process that goes on in place of another.
//!
//! The confined half cannot start a program: it has no right to, and what it started would have none either. The half
//! that kept its rights does: the program that is now where this one was started from, with the arguments that the
//! mandate named before anybody was heard. It begins as every daemon begins, with a second half of its own, and is told
//! what it inherits on a passage: first what this half knows, then, once it has given its rights away, what the other
//! half says.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use farbus_io::sys::passing::Passage;

use super::protocol::{HandoverState, to_json};

/// A process that was started, and the way to it.
#[derive(Debug)]
pub struct Replacement {
    /// Its number.
    pub pid: u32,
    /// The way to it. It ends there once both halves of its predecessor have.
    pub passage: Passage,
}

/// What a service manager tells one process, and no other.
const NOT_INHERITED: [&str; 4] = ["WATCHDOG_PID", "LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"];

/// Starts `program`; it, and our end of the passage.
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

/// What comes with the open file of a device.
const NODE: &[u8] = b"usb";

/// What this process was started with to go on in place of another.
#[derive(Debug)]
pub struct ReplacementStart {
    /// The passage to it.
    pub passage: Passage,
    /// What it has.
    pub handover_state: HandoverState,
    /// What is open of [`HandoverState::devices`].
    pub nodes: Vec<OwnedFd>,
}

/// What this process was started with to go on in place of another: the passage, and what it inherits.
///
/// # Errors
/// If its standard input is no such passage.
pub fn handover_state() -> io::Result<ReplacementStart> {
    let passage = Passage::over(io::stdin().as_fd().try_clone_to_owned()?);
    let wrong = || io::Error::new(io::ErrorKind::InvalidInput, "nobody passed anything on: farbus starts itself so");
    let parcel = passage.receive().map_err(|_| wrong())?.ok_or_else(wrong)?;
    let handover_state: HandoverState = serde_json::from_slice(&parcel.bytes)?;
    let node = |_| passage.receive()?.and_then(|parcel| parcel.fd).ok_or_else(wrong);
    let nodes = handover_state.devices.iter().map(node).collect::<io::Result<_>>()?;
    Ok(ReplacementStart { passage, handover_state, nodes })
}
