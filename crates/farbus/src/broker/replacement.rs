//! Starts the replacement of a confined process.
//!
//! The confined process cannot start a program: it has no right to, and the program would have none either. The broker
//! starts it: the file that is now where this program was started from, with the arguments that the policy named before
//! the process read from the network. The replacement begins as every daemon does, with a broker of its own. On a
//! passage it receives first what the broker knows, and then, once it has dropped its rights, what the old confined
//! process passes on.

use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use farbus_io_net::sys::passing::{MESSAGE_BYTES_MAX, MessageSocket};
use rustix::fs::{MemfdFlags, memfd_create};

use super::protocol::{HandoverState, to_json};

/// A replacement process and the passage to it.
#[derive(Debug)]
pub struct ReplacementProcess {
    /// Its process id.
    pub pid: u32,
    /// The passage to it. The replacement sees its end once the old process and the old broker have both ended.
    pub passage: MessageSocket,
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
    let (ours, theirs) = MessageSocket::pair()?;
    let mut command = Command::new(program);
    command.args(arguments).stdin(theirs).stdout(Stdio::null());
    for name in NOT_INHERITED {
        command.env_remove(name);
    }
    let mut child = command.spawn()?;
    // The command holds the other end, which would keep this one from noticing that the process has ended.
    drop(command);
    // The nodes of many devices are more than the kernel keeps for a process that does not read yet.
    if let Err(error) = tell(&ours, handover_state, nodes) {
        let _ = child.kill();
        let _ = child.wait();
        return Err(error);
    }
    Ok((child, ours.into_descriptor()))
}

/// Tells the replacement what this broker knows. What is longer than a message comes as a file.
fn tell(passage: &MessageSocket, handover_state: &HandoverState, nodes: &[BorrowedFd<'_>]) -> io::Result<()> {
    let known = to_json(handover_state)?;
    if known.len() <= MESSAGE_BYTES_MAX {
        passage.send(&known, None)?;
    } else {
        let mut file = File::from(memfd_create("handover", MemfdFlags::CLOEXEC)?);
        file.write_all(&known)?;
        passage.send(IN_FILE, Some(file.as_fd()))?;
    }
    nodes.iter().try_for_each(|node| passage.send(NODE, Some(*node)))
}

/// Starts this program as the page, which ends when the other end of the returned passage is closed.
pub(super) fn start_page(arguments: &[String]) -> io::Result<(Child, OwnedFd)> {
    let (ours, theirs) = MessageSocket::pair()?;
    let mut command = Command::new("/proc/self/exe");
    command.args(arguments).stdin(theirs).stdout(Stdio::null());
    for name in NOT_INHERITED {
        command.env_remove(name);
    }
    Ok((command.spawn()?, ours.into_descriptor()))
}

/// The message that carries what is longer than one, as a file. An earlier release refuses it, and does not begin.
const IN_FILE: &[u8] = b"\"in a file\"";
/// The longest file of that.
const FILE_BYTES_MAX: u64 = 16 << 20;
/// The message that carries the open node of a device.
const NODE: &[u8] = b"usb";

/// What a replacement process was started with.
#[derive(Debug)]
pub struct ReplacementStart {
    /// The passage to the old process.
    pub passage: MessageSocket,
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
    read_start(MessageSocket::over(io::stdin().as_fd().try_clone_to_owned()?))
}

fn read_start(passage: MessageSocket) -> io::Result<ReplacementStart> {
    let wrong = || io::Error::new(io::ErrorKind::InvalidInput, "nobody passed anything on: farbus starts itself so");
    let parcel = passage.receive().map_err(|_| wrong())?.ok_or_else(wrong)?;
    let known = match parcel.fd {
        Some(file) if parcel.bytes == IN_FILE => {
            let (mut file, mut known) = (File::from(file), Vec::new());
            file.rewind()?;
            file.take(FILE_BYTES_MAX).read_to_end(&mut known)?;
            known
        }
        _ => parcel.bytes,
    };
    let handover_state: HandoverState = serde_json::from_slice(&known)?;
    let node = |_| passage.receive()?.and_then(|parcel| parcel.fd).ok_or_else(wrong);
    let nodes = handover_state.devices.iter().map(node).collect::<io::Result<_>>()?;
    Ok(ReplacementStart { passage, handover_state, nodes })
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    fn passed_on(devices: u32) -> HandoverState {
        let handover_state = HandoverState {
            ports: vec![3],
            devices: (0..devices).map(|number| (1, number)).collect(),
            ..HandoverState::default()
        };
        let (ours, theirs) = MessageSocket::pair().unwrap();
        let known = handover_state.clone();
        let node = File::open("/dev/null").unwrap();
        let teller = thread::spawn(move || {
            let nodes: Vec<_> = known.devices.iter().map(|_| node.as_fd()).collect();
            tell(&ours, &known, &nodes).unwrap();
            ours
        });
        let start = read_start(MessageSocket::over(theirs)).unwrap();
        drop(teller.join().unwrap());
        assert_eq!((start.nodes.len(), &start.handover_state), (devices as usize, &handover_state));
        start.handover_state
    }

    #[test]
    fn a_replacement_is_told_of_any_number_of_devices() {
        passed_on(0);
        passed_on(2);
        // More than a message has room for, and more nodes than the kernel keeps for one who does not read.
        let known = to_json(&passed_on(5000)).unwrap();
        assert!(known.len() > MESSAGE_BYTES_MAX, "{}", known.len());
    }
}
