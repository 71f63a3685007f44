//! What a pipe of the command does with its messages. No function waits: a program that does not read in time loses
//! messages, which are counted.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use farbus_pipe::{PipeFlow, PipeInlet, PipeJobContext};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

/// The functions of the command.
pub enum PipeFunction {
    /// Counts the messages; the report contains the number.
    Count,
    /// Writes them to a file.
    Write {
        file: File,
        /// Why it could not be written any further.
        failed: Option<io::Error>,
    },
    /// Writes them to a program's standard input.
    Feed {
        child: Child,
        /// Becomes readable when the program has ended.
        ended: OwnedFd,
        stdin: ChildStdin,
        /// What the program has not read yet.
        rest: Vec<u8>,
        lost: u64,
    },
    /// Sends them to another device.
    Forward(Arc<PipeInlet>),
    /// Sends ascending numbers, in the last eight bytes of each message.
    Numbers { next: u64, message: Vec<u8> },
    /// Sends what a program writes to its standard output.
    FedBy { child: Child, stdout: ChildStdout, message: Vec<u8>, filled: usize },
}

/// How much a program may leave unread before messages are lost.
const REST_BYTES_MAX: usize = 1 << 20;

/// How long a program may run on after the end of its input.
const ENDING_PATIENCE: Duration = Duration::from_secs(5);

impl PipeFunction {
    /// A function that writes to a file.
    pub fn write(path: &Path) -> Result<Self, String> {
        let create = File::create(path).map(|file| Self::Write { file, failed: None });
        create.map_err(|error| format!("cannot write {}: {error}", path.display()))
    }

    /// A function that feeds a program. With `has_no_output`, the program's standard output goes to standard error,
    /// because this process's is in use.
    pub fn feed(command: &str, has_no_output: bool) -> Result<Self, String> {
        let error = || io::stderr().as_fd().try_clone_to_owned().map(Stdio::from);
        let output = if has_no_output { error().map_err(|error| error.to_string())? } else { Stdio::inherit() };
        let mut child = start(command, Stdio::piped(), output)?;
        let stdin = child.stdin.take().expect("it was asked for");
        never_wait(&stdin)?;
        let ended = pidfd_open(Pid::from_child(&child), PidfdFlags::empty());
        let ended = ended.map_err(|error| format!("cannot watch the program: {error}"))?;
        Ok(Self::Feed { child, ended, stdin, rest: Vec::new(), lost: 0 })
    }

    /// A function that sends what a program writes.
    pub fn fed_by(command: &str, message_bytes: usize) -> Result<Self, String> {
        let mut child = start(command, Stdio::null(), Stdio::piped())?;
        let stdout = child.stdout.take().expect("it was asked for");
        never_wait(&stdout)?;
        Ok(Self::FedBy { child, stdout, message: vec![0; message_bytes], filled: 0 })
    }

    /// The process that may not end by itself with the pipe.
    pub fn program(&self) -> Option<u32> {
        match self {
            Self::FedBy { child, .. } | Self::Feed { child, .. } => Some(child.id()),
            _ => None,
        }
    }

    /// Ends the function after the pipe has stopped.
    pub fn finish(self) -> Result<(), String> {
        match self {
            Self::Feed { mut child, ended, stdin, lost, rest } => {
                drop(stdin);
                if !is_readable_within(&ended, ENDING_PATIENCE).map_err(|error| error.to_string())? {
                    // If this process has lost the right to end it, the broker does that when this process has ended.
                    if child.kill().is_ok() {
                        let _ = child.wait();
                    }
                    let limit = ENDING_PATIENCE.as_secs();
                    return Err(format!("the program did not end within {limit} s after its input, and was killed"));
                }
                let status = child.wait().map_err(|error| format!("the program was lost: {error}"))?;
                match (status.success(), lost + rest.len() as u64) {
                    (false, _) => Err(format!("the program ended with {status}")),
                    (true, 0) => Ok(()),
                    (true, lost) => Err(format!("the program did not take {lost} bytes in time")),
                }
            }
            Self::FedBy { mut child, stdout, .. } => {
                drop(stdout);
                match child.kill() {
                    // A program that was stopped early has no outcome to report.
                    Ok(()) => child.wait().map(|_| ()).map_err(|error| format!("the program was lost: {error}")),
                    // This process has lost the right to end it: the broker does that when this process has ended.
                    Err(_) => Ok(()),
                }
            }
            Self::Write { failed: Some(error), .. } => Err(format!("the file is not whole: {error}")),
            Self::Write { file, .. } => file.sync_all().map_err(|error| format!("the file is not whole: {error}")),
            Self::Count | Self::Forward(_) | Self::Numbers { .. } => Ok(()),
        }
    }
}

fn is_readable_within(file: &OwnedFd, patience: Duration) -> io::Result<bool> {
    let until = Instant::now() + patience;
    loop {
        let left = Timespec::try_from(until.saturating_duration_since(Instant::now())).map_err(io::Error::other)?;
        match poll(&mut [PollFd::new(file, PollFlags::IN)], Some(&left)).map_err(io::Error::from) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => return result.map(|count| count > 0),
        }
    }
}

fn start(command: &str, stdin: Stdio, stdout: Stdio) -> Result<Child, String> {
    let started = Command::new("sh").args(["-c", command]).stdin(stdin).stdout(stdout).spawn();
    started.map_err(|error| format!("cannot start '{command}': {error}"))
}

fn never_wait(pipe: &impl AsFd) -> Result<(), String> {
    let flags = rustix::fs::fcntl_getfl(pipe).and_then(|flags| {
        rustix::fs::fcntl_setfl(pipe, flags | rustix::fs::OFlags::NONBLOCK) //
    });
    flags.map_err(|error| format!("cannot use a program's pipe: {error}"))
}

/// Runs the function once, on the messages of one job, and returns whether the pipe goes on.
pub fn run_once(turn: &mut PipeJobContext<'_>, function: &mut PipeFunction) -> PipeFlow {
    match function {
        PipeFunction::Count => PipeFlow::On,
        PipeFunction::Write { file, failed } => {
            *failed = file.write_all(turn.bytes()).err();
            on_if(failed.is_none())
        }
        PipeFunction::Forward(inlet) => {
            // The other device counts the messages for which it has no room.
            turn.messages().for_each(|message| _ = inlet.put(message));
            PipeFlow::On
        }
        PipeFunction::Feed { stdin, rest, lost, .. } => {
            let bytes = turn.bytes();
            match rest.len() + bytes.len() <= REST_BYTES_MAX {
                true => rest.extend_from_slice(bytes),
                false => *lost += bytes.len() as u64,
            }
            match stdin.write(rest) {
                Ok(count) => {
                    rest.drain(..count);
                    PipeFlow::On
                }
                Err(error) => on_if(is_soon(&error)),
            }
        }
        PipeFunction::Numbers { next, message } => {
            while turn.room() > 0 {
                let tail = message.len().min(8);
                let at = message.len() - tail;
                message[at..].copy_from_slice(&next.to_le_bytes()[..tail]);
                // A CAN frame contains its length.
                if message.len() == farbus_pipe::can::MESSAGE_BYTES {
                    message[4..8].copy_from_slice(&0x100u32.to_le_bytes());
                    message[8] = 8;
                }
                turn.put(message);
                *next += 1;
            }
            PipeFlow::On
        }
        PipeFunction::FedBy { stdout, message, filled, .. } => {
            while turn.room() > 0 {
                match stdout.read(&mut message[*filled..]) {
                    Ok(0) => return PipeFlow::End,
                    Ok(count) => *filled += count,
                    Err(error) => return on_if(is_soon(&error)),
                }
                if *filled == message.len() {
                    turn.put(message);
                    *filled = 0;
                }
            }
            PipeFlow::On
        }
    }
}

fn on_if(is_well: bool) -> PipeFlow {
    if is_well { PipeFlow::On } else { PipeFlow::End }
}

fn is_soon(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn program_that_does_not_end_with_its_input_is_killed() {
        let began = Instant::now();
        let failure = PipeFunction::feed("exec sleep 600", true).unwrap().finish().unwrap_err();
        assert!(failure.contains("did not end within 5 s"), "{failure}");
        assert!(began.elapsed() < Duration::from_secs(120));
        assert_eq!(PipeFunction::feed("cat >/dev/null", true).unwrap().finish(), Ok(()));
    }
}
