//! Frames over two pipes, each preceded by its length.

use std::fs::File;
use std::io::{self, IoSlice, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::process::Child;

use farbus_model::Instant;
use farbus_model::module::ModuleMessage;
use farbus_model::module_abi::{self, LENGTH_BYTES, ModuleAbiFrame};
use rustix::buffer::spare_capacity;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_setfl};
use rustix::io::Errno;

use super::turn::{FRAME_BYTES_MAX, ModuleChannel, ModuleFrame, ReplyReader};

/// The size of a pipe: a turn of 128 KiB and more needs no wait in between. If the system does not grant it, no harm is
/// done.
const PIPE_BYTES: usize = 1 << 20;
/// How many bytes are received at once, and the shortest frame whose payload is received directly into its own memory.
const CHUNK_BYTES: usize = 64 << 10;

/// Both pipes of a process.
pub struct ModulePipes {
    to: File,
    from: File,
    /// What was received and is not a whole frame yet.
    received: Vec<u8>,
    /// The message that is being received, if it is a long one.
    long: Option<LongMessage>,
}

/// A message whose payload is received into memory of its own.
struct LongMessage {
    /// All before the payload.
    words: Vec<u8>,
    payload: Vec<u8>,
    bytes: usize,
}

impl ModulePipes {
    /// Takes the pipes of a process that has just been started.
    pub fn to(child: &mut Child) -> io::Result<Self> {
        let missing = || io::Error::other("a process without pipes");
        let to = OwnedFd::from(child.stdin.take().ok_or_else(missing)?);
        let from = OwnedFd::from(child.stdout.take().ok_or_else(missing)?);
        for pipe in [&to, &from] {
            fcntl_setfl(pipe, OFlags::NONBLOCK)?;
            let _ = rustix::pipe::fcntl_setpipe_size(pipe, PIPE_BYTES);
        }
        Ok(Self { to: File::from(to), from: File::from(from), received: Vec::new(), long: None })
    }

    /// Writes as much as there is room for; returns whether that was all. A process that has ended is written nothing
    /// more, but may have said why.
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

    /// Reads a part of what has arrived; returns its length.
    fn receive(&mut self) -> Result<usize, String> {
        let (to, enough) = match &mut self.long {
            Some(long) => (&mut long.payload, long.bytes),
            // It may begin a long message.
            None => {
                let enough = self.received.len() + CHUNK_BYTES;
                (&mut self.received, enough)
            }
        };
        let before = to.len();
        while to.len() < enough {
            to.reserve((enough - to.len()).min(CHUNK_BYTES));
            match rustix::io::read(&self.from, spare_capacity(to)) {
                // Handle what it wrote before it ended first.
                Ok(0) if to.len() > before => break,
                Ok(0) => return Err(ENDED.to_owned()),
                Ok(_) | Err(Errno::INTR) => {}
                Err(Errno::WOULDBLOCK) => break,
                Err(error) => return Err(format!("it cannot be heard: {error}")),
            }
        }
        Ok(to.len() - before)
    }

    /// Returns the long message once all of it is there; what follows is a new frame.
    fn take_long(&mut self) -> Result<Option<ModuleAbiFrame>, String> {
        let Some(LongMessage { words, mut payload, bytes }) =
            self.long.take_if(|long| long.payload.len() >= long.bytes)
        else {
            return Ok(None);
        };
        self.received.extend(payload.drain(bytes..));
        let frame = module_abi::decode(&words).map_err(wrong)?;
        Ok(Some(match frame {
            ModuleAbiFrame::Message(to, message) => {
                ModuleAbiFrame::Message(to, ModuleMessage { payload: payload.into(), ..message })
            }
            other => other,
        }))
    }

    /// If the frame that has begun to arrive is a long message, prepares to receive the rest into its own memory.
    fn begin_long(&mut self) -> Result<(), String> {
        let whole = module_abi::frame_bytes(&self.received, FRAME_BYTES_MAX).map_err(wrong)?;
        let Some(whole) = whole.filter(|whole| *whole >= CHUNK_BYTES) else { return Ok(()) };
        let at = module_abi::payload_at(&self.received[LENGTH_BYTES..]).map(|at| LENGTH_BYTES + at);
        let Some(at) = at.filter(|at| *at <= self.received.len() && *at < whole) else { return Ok(()) };
        let bytes = whole - at;
        let mut payload = Vec::with_capacity(bytes);
        payload.extend(self.received.drain(at..));
        let words = self.received.drain(..).skip(LENGTH_BYTES).collect();
        self.long = Some(LongMessage { words, payload, bytes });
        Ok(())
    }

    fn wait(&self, reply_reader: &ReplyReader<'_>, wants_to_say: bool) -> Result<(), String> {
        let left = reply_reader.left()?;
        let flags = if wants_to_say { PollFlags::OUT } else { PollFlags::empty() };
        let mut waiting = [PollFd::new(&self.from, PollFlags::IN), PollFd::from_borrowed_fd(self.to.as_fd(), flags)];
        let span = Timespec::try_from(left).unwrap_or_default();
        match poll(&mut waiting, Some(&span)) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(format!("it cannot be waited for: {error}")),
        }
    }
}

const ENDED: &str = "its process has ended";
/// The most runs of memory in one system call (`UIO_MAXIOV`).
const RUNS_MAX: usize = 1024;

impl ModuleChannel for ModulePipes {
    fn exchange(
        &mut self,
        sent: &ModuleFrame<'_>,
        reply_reader: &mut ReplyReader<'_>,
    ) -> Result<Option<Instant>, String> {
        let mut runs: Vec<IoSlice<'_>> =
            [sent.frame].into_iter().chain(sent.payload.runs()).map(IoSlice::new).collect();
        let mut left = runs.as_mut_slice();
        loop {
            let is_told = self.say(&mut left);
            let arrived = self.receive()?;
            reply_reader.count_bytes(arrived)?;
            if let Some(frame) = self.take_long()? {
                reply_reader.hear(frame)?;
                // More may be there already.
                continue;
            }
            let mut at = 0;
            while let Some((frame, bytes)) = next_frame(&self.received[at..])? {
                at += bytes;
                if let Some(due) = reply_reader.hear(frame)? {
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
            if self.long.is_none() {
                self.begin_long()?;
            }
            // The last read was not full: no more is there.
            if arrived < CHUNK_BYTES {
                self.wait(reply_reader, !is_told)?;
            }
        }
    }
}

fn wrong(module_abi::ModuleAbiError(what): module_abi::ModuleAbiError) -> String {
    format!("it said {what}")
}

/// Parses the frame at the front, if it is whole; returns its length, too.
fn next_frame(received: &[u8]) -> Result<Option<(ModuleAbiFrame, usize)>, String> {
    let whole = module_abi::frame_bytes(received, FRAME_BYTES_MAX).map_err(wrong)?;
    let Some(bytes) = whole.filter(|bytes| received.len() >= *bytes) else { return Ok(None) };
    let frame = module_abi::decode(&received[module_abi::LENGTH_BYTES..bytes]).map_err(wrong)?;
    Ok(Some((frame, bytes)))
}
