//! A module that is a separate process, and the supervisor that ends it.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, IntoRawFd, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use farbus_model::Instant;
use farbus_model::module::Module;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::half::{ModuleUse, ModuleWorker};
use super::pipes::ModulePipes;
use super::ring::ModuleRing;
use super::turn::{ModuleChannel, ModuleFrame, ReplyReader};
use crate::sys::leash::own_pid_namespace;

/// How much longer the first turn may take: a language runtime may have to start.
const BEGINNING: Duration = Duration::from_secs(10);

/// The descriptor of the shared memory in the program.
pub const MEMORY_FD: i32 = 3;

/// How the process is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModuleTransport {
    /// Its standard input and output carry frames.
    Pipes,
    /// Its standard output is shared memory, its standard input a socket for doorbells.
    Ring,
}

/// A process that carries out a module, for one use at a time.
pub struct ModuleProcess {
    worker: ModuleWorker,
}

/// Ends the process when it is dropped.
pub struct ProcessSupervisor {
    /// Only this process holds it: the supervisor kills the program when it is closed.
    end: Option<OwnedFd>,
    supervisor: Child,
}

impl Drop for ProcessSupervisor {
    fn drop(&mut self) {
        self.end = None;
        // It ends at once; otherwise it ends with this process.
        let _ = self.supervisor.try_wait();
    }
}

/// A channel that keeps the process alive as long as it exists.
struct SupervisedChannel<C> {
    channel: C,
    _leash: ProcessSupervisor,
}

impl<C: ModuleChannel> ModuleChannel for SupervisedChannel<C> {
    fn exchange(
        &mut self,
        frame: &ModuleFrame<'_>,
        reply_reader: &mut ReplyReader<'_>,
    ) -> Result<Option<Instant>, String> {
        self.channel.exchange(frame, reply_reader)
    }
}

impl ModuleProcess {
    /// Starts `supervisor`, which is to run the program ([`supervise`]): its standard input and output are the
    /// program's, its standard error is one end of a pipe; when that pipe ends, it kills the program. A turn may take
    /// `patience`.
    ///
    /// # Errors
    /// The system's error.
    pub fn start(supervisor: &mut Command, way: ModuleTransport, patience: Duration) -> io::Result<Self> {
        let (held, end) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
        supervisor.stderr(held);
        let spawn = |supervisor: &mut Command| {
            Ok::<_, io::Error>(ProcessSupervisor { end: Some(end), supervisor: supervisor.spawn()? })
        };
        let channel: Box<dyn ModuleChannel> = match way {
            ModuleTransport::Pipes => {
                let mut leash = spawn(supervisor.stdin(Stdio::piped()).stdout(Stdio::piped()))?;
                Box::new(SupervisedChannel { channel: ModulePipes::to(&mut leash.supervisor)?, _leash: leash })
            }
            ModuleTransport::Ring => {
                let (channel, memory, bell) = ModuleRing::new()?;
                Box::new(SupervisedChannel { channel, _leash: spawn(supervisor.stdin(bell).stdout(memory))? })
            }
        };
        Ok(Self { worker: ModuleWorker::new(channel, patience) })
    }

    /// Begins a half that the process carries out. Dropping the half frees the process.
    ///
    /// # Errors
    /// A sentence: the process is in use, or no longer usable.
    pub fn half(&self, used: &ModuleUse<'_>) -> Result<Box<dyn Module>, String> {
        self.worker.half(used, BEGINNING)
    }
}

/// The supervisor's work: runs `program` on this process's standard input and output until it ends, or until the other
/// end of standard error is closed. Returns its exit code.
///
/// The program's standard error is the end of a pipe that is closed at the other end when this process ends
/// ([`leash`](crate::sys::leash)). Where root may make one, the program is the first process of a PID namespace: the
/// kernel ends all that it started with it (pid_namespaces(7)), whatever sessions those are in and signals they ignore.
///
/// # Errors
/// The system's error.
pub fn supervise(program: &mut Command) -> io::Result<i32> {
    let leash = rustix::stdio::stderr().try_clone_to_owned()?;
    let (alive, _held) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
    if rustix::process::geteuid().is_root() {
        // If that is refused, as in many containers, the program may start no process.
        let _ = own_pid_namespace();
    }
    let mut child = program.stdin(Stdio::inherit()).stdout(Stdio::inherit()).stderr(alive).spawn()?;
    let ended = pidfd_open(Pid::from_child(&child), PidfdFlags::empty())?;
    // Only the program may have its pipes, so that their readers notice its end.
    let nothing = File::options().read(true).write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdin(&nothing)?;
    rustix::stdio::dup2_stdout(&nothing)?;
    loop {
        let mut waits = [PollFd::new(&ended, PollFlags::IN), PollFd::new(&leash, PollFlags::IN)];
        match poll(&mut waits, None) {
            Err(Errno::INTR) => continue,
            polled => polled?,
        };
        let [has_ended, is_let_go] = waits.map(|wait| !wait.revents().is_empty());
        if !has_ended && is_let_go && rustix::io::read(&leash, &mut [0; 16]).is_ok_and(|count| count > 0) {
            continue;
        }
        if !has_ended {
            // Not waited for yet, so the process id is still its own.
            let _ = child.kill();
        }
        return Ok(child.wait()?.code().unwrap_or(1));
    }
}

/// The last step before a program runs, in its own process: standard input and output become what `docs/modules.md`
/// promises. Shared memory arrives as standard output, to which a program may print by mistake: the program gets it as
/// [`MEMORY_FD`], and its end of the bell twice.
///
/// # Errors
/// The system's error; the descriptor is in use.
pub fn arrange(way: ModuleTransport) -> io::Result<()> {
    if way == ModuleTransport::Ring {
        let memory = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdout(), MEMORY_FD)?;
        if memory.as_raw_fd() != MEMORY_FD {
            return Err(io::Error::other("the number of the shared memory's descriptor is taken"));
        }
        rustix::io::fcntl_setfd(&memory, rustix::io::FdFlags::empty())?;
        rustix::stdio::dup2_stdout(rustix::stdio::stdin())?;
        // It belongs to the program from now on.
        let _ = memory.into_raw_fd();
    }
    Ok(())
}
