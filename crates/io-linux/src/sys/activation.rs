//! Sockets on which the service manager listens for this process (sd_listen_fds(3)): descriptors from 3 on.

use std::io;
use std::net::TcpListener;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::net::{SocketType, sockopt};
use rustix::process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};

/// The first passed descriptor (`SD_LISTEN_FDS_START`).
const FIRST: RawFd = 3;
/// More than any unit lists.
const COUNT_MAX: RawFd = 64;

/// The listening TCP sockets that were passed to this process. Each is handed out once: every call but the first finds
/// none. Sockets of another kind are refused.
///
/// # Errors
/// A descriptor that was announced is no listening stream socket.
pub fn listeners() -> io::Result<Vec<TcpListener>> {
    static ARE_TAKEN: AtomicBool = AtomicBool::new(false);
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse::<RawFd>().ok());
    // A child process inherits the variables, but they are not meant for it.
    let is_for_us = number("LISTEN_PID").and_then(|pid| u32::try_from(pid).ok()) == Some(std::process::id());
    if !is_for_us || ARE_TAKEN.swap(true, Ordering::AcqRel) {
        return Ok(Vec::new());
    }
    let count = number("LISTEN_FDS").unwrap_or(0).clamp(0, COUNT_MAX);
    (FIRST..FIRST + count).map(take).collect()
}

/// Duplicates a passed descriptor. Duplication needs no trust in the number: the system says whether it is open. The
/// original stays open as long as the process; the service manager holds the same socket open as well.
fn take(raw: RawFd) -> io::Result<TcpListener> {
    let wrong = |what: &str| io::Error::new(io::ErrorKind::InvalidInput, format!("passed descriptor {raw} {what}"));
    let ourselves = pidfd_open(getpid(), PidfdFlags::empty())?;
    let socket = pidfd_getfd(ourselves, raw, PidfdGetfdFlags::empty())
        .map_err(|error| wrong(&format!("cannot be had: {}", io::Error::from(error))))?;
    let is_listening = sockopt::socket_acceptconn(&socket).unwrap_or(false)
        && sockopt::socket_type(&socket).is_ok_and(|kind| kind == SocketType::STREAM);
    if !is_listening {
        return Err(wrong("is no listening stream socket"));
    }
    let listener = TcpListener::from(socket);
    listener.set_nonblocking(false)?;
    Ok(listener)
}
