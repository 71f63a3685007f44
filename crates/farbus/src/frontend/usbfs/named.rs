//! A run that has a name: other programs of the same user join it, and see the same devices.
//!
//! A command that joins gets the namespaces of the first program, moves into them, and becomes its program. The kernel
//! lets the server read and write that program's memory, too, because the user namespace is the server's user's.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

use farbus_control::failure::FailureKind;
use farbus_io_linux::sys::{event_sockets, own_mounts};
use farbus_io_net::local::runtime_folder::{self, RuntimeFolder};
use farbus_io_net::sys::passing;
use tracing::debug;

use super::error::RunError;
use super::events::EventSource;
use super::program;
use crate::common::child_program::{NOT_RUN, exit_code_of_error, not_run};

/// Those who joined and have yet to pass their listener; more are not kept.
const JOINING_MAX: usize = 16;
const NAME_BYTES_MAX: usize = 32;

/// Reads a name: letters, digits, `-` and `_`.
///
/// # Errors
/// What is wrong with it.
pub fn name_from(text: &str) -> Result<String, String> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    if text.is_empty() || text.len() > NAME_BYTES_MAX || !text.chars().all(is_plain) {
        return Err(format!("a name has 1 to {NAME_BYTES_MAX} letters, digits, '-' or '_'"));
    }
    Ok(text.to_owned())
}

fn file_of(name: &str) -> String {
    format!("run-{name}.sock")
}

/// Waits for those who join. Its socket is removed when it is dropped.
pub struct NamedRunListener {
    folder: RuntimeFolder,
    file: String,
    listener: UnixListener,
    joining: Vec<UnixStream>,
}

impl NamedRunListener {
    /// Takes a name.
    ///
    /// # Errors
    /// A run has it already.
    pub fn listen(name: &str) -> Result<Self, RunError> {
        let (folder, file) = (RuntimeFolder::make().map_err(RunError::local)?, file_of(name));
        if folder.connect(&file).is_ok() {
            let why =
                format!("a program of the name {name} runs already\n  to join it: farbus run --join {name} -- PROGRAM");
            return Err(RunError::Named { attribute: FailureKind::Refused, why });
        }
        let listener = folder.listen(&file).map_err(RunError::local)?;
        listener.set_nonblocking(true).map_err(RunError::local)?;
        Ok(Self { folder, file, listener, joining: Vec::new() })
    }

    /// What to wait on.
    pub fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        [self.listener.as_fd()].into_iter().chain(self.joining.iter().map(AsFd::as_fd))
    }

    /// Answers those who join: they get the namespaces of the process `program`, and their sockets the events of
    /// `source`.
    pub fn turn(&mut self, program: u32, source: Option<&EventSource>) {
        self.joining.retain(|stream| {
            let mut came = Vec::new();
            match passing::receive_on_stream(stream.as_fd(), &mut [0], &mut came) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => true,
                _ => {
                    if let (Some(listener), Some(source)) = (came.pop(), source) {
                        let _ =
                            source.answer(listener.as_fd()).inspect_err(|error| debug!(%error, "it hears no events"));
                    }
                    false
                }
            }
        });
        while let Ok((stream, _)) = self.listener.accept() {
            let lent = self.folder.check_peer(&stream).and_then(|()| lend(&stream, program));
            match lent {
                Ok(()) if self.joining.len() < JOINING_MAX => self.joining.push(stream),
                Ok(()) => debug!("many join at once: this one hears no events"),
                Err(error) => debug!(%error, "a program has not joined"),
            }
        }
    }
}

impl Drop for NamedRunListener {
    fn drop(&mut self) {
        // A command that connects to one that is left finds nobody.
        let _ = self.folder.remove(&self.file);
    }
}

/// Passes the namespaces of a process.
fn lend(stream: &UnixStream, program: u32) -> io::Result<()> {
    stream.set_nonblocking(true)?;
    let of = |process: &str, kind: &str| File::open(format!("/proc/{process}/ns/{kind}"));
    let id = |file: &File| file.metadata().map(|found| std::os::unix::fs::MetadataExt::ino(&found));
    let program = program.to_string();
    let (users, mounts) = (of(&program, "user")?, of(&program, "mnt")?);
    let is_ours = id(&users)? == id(&of("self", "user")?)?;
    let passed = if is_ours { vec![mounts.as_fd()] } else { vec![mounts.as_fd(), users.as_fd()] };
    passing::send_on_stream(stream.as_fd(), b"n", &passed).map(drop)
}

/// Becomes a program beside the one that has this name. Returns only if that failed.
pub fn join(name: &str, program: &[OsString]) -> RunError {
    match move_in(name, program) {
        Ok(()) => {
            let error = program::become_it(program);
            RunError::Program { code: exit_code_of_error(&error), why: not_run(program, &error) }
        }
        Err(error) => error,
    }
}

fn move_in(name: &str, program: &[OsString]) -> Result<(), RunError> {
    program::check(&program[0]).map_err(|why| RunError::Program { code: NOT_RUN, why })?;
    let folders = runtime_folder::all().map_err(RunError::local)?;
    let stream = folders.iter().find_map(|folder| folder.connect(&file_of(name)).ok()).ok_or_else(|| {
        let why =
            format!("no program of the name {name} runs\n  to start one: farbus run --name {name} DEVICE -- PROGRAM");
        RunError::Named { attribute: FailureKind::Gone, why }
    })?;
    let mut came = Vec::new();
    passing::receive_on_stream(stream.as_fd(), &mut [0], &mut came).map_err(RunError::local)?;
    let mut came = came.into_iter();
    let mounts = came.next().ok_or_else(|| RunError::local(format!("the program of the name {name} is ending")))?;
    let folder = std::env::current_dir().map_err(RunError::local)?;
    let refused = |error| RunError::local(format!("cannot see what the program of the name {name} sees: {error}"));
    own_mounts::join(came.next().as_ref().map(OwnedFd::as_fd), mounts.as_fd()).map_err(refused)?;
    go_to(&folder).map_err(RunError::local)?;
    if let Ok(listener) = event_sockets::listen() {
        // Without it, it hears no events.
        let _ = passing::send_on_stream(stream.as_fd(), b"l", &[listener.as_fd()]);
    }
    Ok(())
}

/// The working folder, which a process loses when it moves.
fn go_to(folder: &Path) -> io::Result<()> {
    std::env::set_current_dir(folder)
        .map_err(|error| io::Error::new(error.kind(), format!("{} is not there inside: {error}", folder.display())))
}
