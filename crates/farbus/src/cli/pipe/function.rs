//! What a pipe of the command does with its messages. None of it waits: a program that does not read in time loses what
//! it was to have, and that is counted.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;

use crate::frontend::tuned_pipe::{Flow, Inlet, Turn};

/// The functions there are.
pub enum Function {
    /// Counts: the report says how many.
    Count,
    /// Writes to a file.
    Write(File),
    /// Gives to a program.
    Feed {
        child: Child,
        stdin: ChildStdin,
        /// What it did not take yet.
        rest: Vec<u8>,
        lost: u64,
    },
    /// Puts into another device.
    Forward(Arc<Inlet>),
    /// Sends numbers that count, in the last eight bytes of each message.
    Numbers { next: u64, message: Vec<u8> },
    /// Sends what a program writes.
    FedBy { child: Child, stdout: ChildStdout, message: Vec<u8>, filled: usize },
}

/// What a program may leave in its pipe before something is lost.
const REST_BYTES_MAX: usize = 1 << 20;

impl Function {
    /// To a file.
    pub fn write(path: &Path) -> Result<Self, String> {
        File::create(path).map(Self::Write).map_err(|error| format!("cannot write {}: {error}", path.display()))
    }

    /// To a program, whose standard output may be somebody else's.
    pub fn feed(command: &str, has_no_output: bool) -> Result<Self, String> {
        let error = || io::stderr().as_fd().try_clone_to_owned().map(Stdio::from);
        let output = if has_no_output { error().map_err(|error| error.to_string())? } else { Stdio::inherit() };
        let mut child = start(command, Stdio::piped(), output)?;
        let stdin = child.stdin.take().expect("it was asked for");
        never_wait(&stdin)?;
        Ok(Self::Feed { child, stdin, rest: Vec::new(), lost: 0 })
    }

    /// From a program.
    pub fn fed_by(command: &str, message_bytes: usize) -> Result<Self, String> {
        let mut child = start(command, Stdio::null(), Stdio::piped())?;
        let stdout = child.stdout.take().expect("it was asked for");
        never_wait(&stdout)?;
        Ok(Self::FedBy { child, stdout, message: vec![0; message_bytes], filled: 0 })
    }

    /// The process that does not end by itself when this is over.
    pub fn program(&self) -> Option<u32> {
        match self {
            Self::FedBy { child, .. } => Some(child.id()),
            _ => None,
        }
    }

    /// It is over.
    pub fn finish(self) -> Result<(), String> {
        match self {
            Self::Feed { mut child, stdin, lost, rest } => {
                drop(stdin);
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
                    // One that is stopped before its end has no outcome.
                    Ok(()) => child.wait().map(|_| ()).map_err(|error| format!("the program was lost: {error}")),
                    // We have no right to that any more: our other half ends it when we have ended.
                    Err(_) => Ok(()),
                }
            }
            Self::Write(file) => file.sync_all().map_err(|error| format!("the file is not whole: {error}")),
            Self::Count | Self::Forward(_) | Self::Numbers { .. } => Ok(()),
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

/// One job.
pub fn run_once(turn: &mut Turn<'_>, function: &mut Function) -> Flow {
    match function {
        Function::Count => Flow::On,
        Function::Write(file) => on_if(file.write_all(turn.bytes()).is_ok()),
        Function::Forward(inlet) => {
            // What has no room is counted there.
            turn.messages().for_each(|message| _ = inlet.put(message));
            Flow::On
        }
        Function::Feed { stdin, rest, lost, .. } => {
            let bytes = turn.bytes();
            match rest.len() + bytes.len() <= REST_BYTES_MAX {
                true => rest.extend_from_slice(bytes),
                false => *lost += bytes.len() as u64,
            }
            match stdin.write(rest) {
                Ok(count) => {
                    rest.drain(..count);
                    Flow::On
                }
                Err(error) => on_if(is_soon(&error)),
            }
        }
        Function::Numbers { next, message } => {
            while turn.room() > 0 {
                let tail = message.len().min(8);
                let at = message.len() - tail;
                message[at..].copy_from_slice(&next.to_le_bytes()[..tail]);
                // A frame of CAN says how long it is.
                if message.len() == crate::frontend::tuned_pipe::can::MESSAGE_BYTES {
                    message[4..8].copy_from_slice(&0x100u32.to_le_bytes());
                    message[8] = 8;
                }
                turn.put(message);
                *next += 1;
            }
            Flow::On
        }
        Function::FedBy { stdout, message, filled, .. } => {
            while turn.room() > 0 {
                match stdout.read(&mut message[*filled..]) {
                    Ok(0) => return Flow::End,
                    Ok(count) => *filled += count,
                    Err(error) => return on_if(is_soon(&error)),
                }
                if *filled == message.len() {
                    turn.put(message);
                    *filled = 0;
                }
            }
            Flow::On
        }
    }
}

fn on_if(is_well: bool) -> Flow {
    if is_well { Flow::On } else { Flow::End }
}

fn is_soon(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}
