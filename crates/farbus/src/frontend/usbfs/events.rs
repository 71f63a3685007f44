//! Tells programs that a device comes or goes, by sockets that they believe to be the kernel's.
//!
//! Events are heard in one network namespace, and nobody but its owner may send there. So a process of ours is in one
//! of its own, and the kernel has it make the programs' sockets ([`event_sockets`]): [`be_source`]. What farbus sends
//! in that namespace, all of them hear; the programs are in their user's network otherwise.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};

use farbus_io_linux::sys::event_sockets::{self, UeventSender};
use farbus_io_net::sys::passing;
use farbus_session::usbfs::{DeviceUevent, UDEV_GROUP};
use rustix::net::{SocketFlags, SocketType};
use tracing::debug;

/// The hidden verb of the process in a network namespace of its own.
pub const SOURCE_VERB: &str = "run-events";

/// Tells the programs.
#[derive(Debug)]
pub struct HotplugAnnouncer {
    sender: UeventSender,
    count: u64,
}

impl HotplugAnnouncer {
    /// Tells them of an event.
    pub fn send(&mut self, event: &DeviceUevent) {
        self.count += 1;
        // The kernel's own event comes first, and udev's follows it.
        for (group, message) in [(None, event.to_kernel(self.count)), (Some(UDEV_GROUP), event.of_udev(self.count))] {
            if let Err(error) = self.sender.send(group, &message) {
                debug!(%error, ?event, "an event is not sent");
            }
        }
    }
}

/// The process that makes the programs' sockets.
#[derive(Debug)]
pub struct EventSource {
    stream: UnixStream,
    process: Child,
}

impl EventSource {
    /// Starts the process. The programs for which it is to make sockets hear what is sent by the other result.
    ///
    /// # Errors
    /// This machine gives it no network namespace.
    pub fn start() -> io::Result<(Self, HotplugAnnouncer)> {
        let (stream, theirs) = UnixStream::pair()?;
        let process = Command::new(std::env::current_exe()?)
            .arg(SOURCE_VERB)
            .stdin(OwnedFd::from(theirs))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // A terminal's signals are for the program.
            .process_group(0)
            .spawn()?;
        let source = Self { stream, process };
        let mut came = Vec::new();
        passing::receive_on_stream(source.stream.as_fd(), &mut [0], &mut came)?;
        let socket = came.pop().ok_or_else(|| io::Error::other("the process for events has no network of its own"))?;
        Ok((source, HotplugAnnouncer { sender: UeventSender::over(socket), count: 0 }))
    }

    /// The number of the process.
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// Has the process answer this listener, too.
    ///
    /// # Errors
    /// The process has ended.
    pub fn answer(&self, listener: BorrowedFd<'_>) -> io::Result<()> {
        passing::send_on_stream(self.stream.as_fd(), b"l", &[listener]).map(drop)
    }
}

impl Drop for EventSource {
    fn drop(&mut self) {
        // It holds nothing.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Runs the process, with a socket of its parent as its standard input, until the parent ends.
///
/// # Errors
/// The system's error.
pub fn be_source() -> io::Result<()> {
    let parent = io::stdin().as_fd().try_clone_to_owned()?;
    event_sockets::enter()?;
    let socket = event_sockets::make(SocketType::RAW, SocketFlags::CLOEXEC)?;
    passing::send_on_stream(parent.as_fd(), b"e", &[socket.as_fd()])?;
    event_sockets::serve(parent.as_fd())
}
