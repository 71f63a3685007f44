//! Frames over two pipes, each with its length before it.

use std::fs::File;
use std::io::{self, IoSlice, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::process::Child;

use farbus_model::Instant;
use farbus_model::module_abi::{self, Said};
use rustix::buffer::spare_capacity;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_setfl};
use rustix::io::Errno;

use super::turn::{Channel, FRAME_BYTES_MAX, Hearing, TURN_BYTES_MAX, Told};

/// Bytes of a pipe: a turn of 128 KiB and more without a wait between. What the system does not grant is no loss.
const PIPE_BYTES: usize = 1 << 20;
/// Bytes that are received at once.
const CHUNK_BYTES: usize = 64 << 10;

/// Both pipes.
pub struct Pipes {
    to: File,
    from: File,
    /// What was received and is no whole frame yet.
    received: Vec<u8>,
}

impl Pipes {
    /// Over the pipes of a process that has just been started.
    pub fn to(child: &mut Child) -> io::Result<Self> {
        let missing = || io::Error::other("a process without pipes");
        let to = OwnedFd::from(child.stdin.take().ok_or_else(missing)?);
        let from = OwnedFd::from(child.stdout.take().ok_or_else(missing)?);
        for pipe in [&to, &from] {
            fcntl_setfl(pipe, OFlags::NONBLOCK)?;
            let _ = rustix::pipe::fcntl_setpipe_size(pipe, PIPE_BYTES);
        }
        Ok(Self { to: File::from(to), from: File::from(from), received: Vec::new() })
    }

    /// Says as much as there is room for; whether that was all. One that has ended is told nothing, and may have said why.
    fn say(&mut self, left: &mut &mut [IoSlice<'_>]) -> bool {
        while !left.is_empty() {
            match self.to.write_vectored(&left[..left.len().min(RUNS_MAX)]) {
                Ok(count) => IoSlice::advance_slices(left, count),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => break,
            }
        }
        left.is_empty()
    }

    /// What has arrived, as far as a turn may go: bytes.
    fn receive(&mut self) -> Result<usize, String> {
        let before = self.received.len();
        while self.received.len() <= TURN_BYTES_MAX {
            self.received.reserve(CHUNK_BYTES);
            match rustix::io::read(&self.from, spare_capacity(&mut self.received)) {
                // What it said before it ended is heard first.
                Ok(0) if self.received.len() > before => break,
                Ok(0) => return Err(ENDED.to_owned()),
                Ok(_) | Err(Errno::INTR) => {}
                Err(Errno::WOULDBLOCK) => break,
                Err(error) => return Err(format!("it cannot be heard: {error}")),
            }
        }
        Ok(self.received.len() - before)
    }

    fn wait(&self, hearing: &Hearing<'_>, wants_to_say: bool) -> Result<(), String> {
        let left = hearing.left()?;
        let said = if wants_to_say { PollFlags::OUT } else { PollFlags::empty() };
        let mut waiting = [PollFd::new(&self.from, PollFlags::IN), PollFd::from_borrowed_fd(self.to.as_fd(), said)];
        let span = Timespec::try_from(left).unwrap_or_default();
        match poll(&mut waiting, Some(&span)) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(format!("it cannot be waited for: {error}")),
        }
    }
}

const ENDED: &str = "its process has ended";
/// Runs of memory that the system takes at once (`UIO_MAXIOV`).
const RUNS_MAX: usize = 1024;

impl Channel for Pipes {
    fn exchange(&mut self, told: &Told<'_>, hearing: &mut Hearing<'_>) -> Result<Option<Instant>, String> {
        let mut runs: Vec<IoSlice<'_>> =
            [told.frame].into_iter().chain(told.payload.runs()).map(IoSlice::new).collect();
        let mut left = runs.as_mut_slice();
        loop {
            let is_told = self.say(&mut left);
            let arrived = self.receive()?;
            hearing.count_bytes(arrived)?;
            let mut at = 0;
            while let Some((said, bytes)) = next_said(&self.received[at..])? {
                at += bytes;
                if let Some(due) = hearing.hear(said)? {
                    return match () {
                        () if !is_told => Err("it is done before it was told all".to_owned()),
                        () if at < self.received.len() => Err("it goes on after it was done".to_owned()),
                        () => {
                            self.received.clear();
                            Ok(due)
                        }
                    };
                }
            }
            self.received.drain(..at);
            self.wait(hearing, !is_told)?;
        }
    }
}

/// What the frame at the front says, if it is whole, and its bytes.
fn next_said(received: &[u8]) -> Result<Option<(Said, usize)>, String> {
    let wrong = |module_abi::Wrong(what)| format!("it said {what}");
    let whole = module_abi::frame_bytes(received, FRAME_BYTES_MAX).map_err(wrong)?;
    let Some(bytes) = whole.filter(|bytes| received.len() >= *bytes) else { return Ok(None) };
    let said = module_abi::decode(&received[module_abi::LENGTH_BYTES..bytes]).map_err(wrong)?;
    Ok(Some((said, bytes)))
}
