//! Tells programs that a device comes or goes, by sockets that they believe to be the kernel's.
//!
//! Events are heard in one network namespace, and nobody but its owner may send there. So a process of ours is in one
//! of its own, and the kernel has it make the programs' sockets ([`event_sockets`]): [`be_source`]. What farbus sends
//! in that namespace, all of them hear; the programs are in their user's network otherwise.

use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};

use farbus_io::sys::event_sockets::{self, Sender};
use farbus_io::sys::passing;
use farbus_session::usbfs::{Event, UDEV_GROUP};
use rustix::net::{SocketFlags, SocketType};
use tracing::debug;

/// The hidden verb of the process in a network namespace of its own.
pub const SOURCE_VERB: &str = "run-events";

/// Sends events to the programs.
pub struct Events {
    sender: Sender,
    source: UnixStream,
    process: Child,
    count: u64,
}

impl Events {
    /// Starts the process.
    ///
    /// # Errors
    /// This machine gives it no network namespace.
    pub fn start() -> io::Result<Self> {
        let (source, theirs) = UnixStream::pair()?;
        let mut process = Command::new(std::env::current_exe()?)
            .arg(SOURCE_VERB)
            .stdin(OwnedFd::from(theirs))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // A terminal's signals are for the program.
            .process_group(0)
            .spawn()?;
        let mut came = Vec::new();
        let received = passing::receive_on_stream(source.as_fd(), &mut [0], &mut came);
        match (received, came.pop()) {
            (Ok(_), Some(socket)) => Ok(Self { sender: Sender::over(socket), source, process, count: 0 }),
            (received, _) => {
                // It has ended, or has nothing to do.
                let _ = process.kill();
                let _ = process.wait();
                received?;
                Err(io::Error::other("the process for events has no network of its own"))
            }
        }
    }

    /// Has the process answer this listener.
    ///
    /// # Errors
    /// The process has ended.
    pub fn answer(&self, listener: BorrowedFd<'_>) -> io::Result<()> {
        passing::send_on_stream(self.source.as_fd(), b"l", &[listener]).map(drop)
    }

    /// Tells the programs.
    pub fn send(&mut self, event: &Event) {
        self.count += 1;
        // The kernel's own event comes first, and udev's follows it.
        for (group, message) in [(None, event.to_kernel(self.count)), (Some(UDEV_GROUP), event.of_udev(self.count))] {
            if let Err(error) = self.sender.send(group, &message) {
                debug!(%error, ?event, "an event is not sent");
            }
        }
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        // It holds nothing.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Runs the process, with a socket of its parent as its standard input, until the parent ends or no program is left.
///
/// # Errors
/// The system's error.
pub fn be_source() -> io::Result<()> {
    let mut parent = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    event_sockets::enter()?;
    let sender = event_sockets::make(SocketType::RAW, SocketFlags::CLOEXEC)?;
    passing::send_on_stream(parent.as_fd(), b"e", &[sender.as_fd()])?;
    drop(sender);
    let mut came = Vec::new();
    passing::receive_on_stream(parent.as_fd(), &mut [0], &mut came)?;
    let Some(listener) = came.pop() else { return Ok(()) };
    event_sockets::serve(listener.as_fd(), parent.as_fd())?;
    drop(listener);
    // The programs' sockets hear the namespace as long as anybody is in it; they are in it themselves.
    let _ = parent.write_all(b".");
    parent.read_to_end(&mut Vec::new()).map(drop)
}
