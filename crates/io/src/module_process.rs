//! A module that is a process of its own, linked by two pipes (requirement I3; what travels is in [`farbus_model::module_abi`]).
//!
//! Every call is a turn: the process is told something, and answers until it says that it is done. It has so long for that and may say so
//! much; whoever crashes, hangs, lies or floods is cut off: its attachment ends, and nothing else.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant as Moment};

use farbus_model::limits::URB_BYTES_MAX;
use farbus_model::module::{Class, GROWTH_BYTES_MAX, Message, Module, Role, Side, Trouble, Turn};
use farbus_model::module_abi::{self, Said};
use farbus_model::{Instant, Payload};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_setfl};

/// Bytes of a frame: the longest message and what halves add.
const FRAME_BYTES_MAX: usize = URB_BYTES_MAX as usize + GROWTH_BYTES_MAX + (64 << 10);
/// Bytes that may be said in one turn: two messages of the longest.
const TURN_BYTES_MAX: usize = 2 * FRAME_BYTES_MAX;
/// Frames that may be said in one turn: as many as a buffering module may hold back of a credit.
const TURN_FRAMES_MAX: usize = 4096;
/// Bytes of a pipe: a turn of 128 KiB and more without a wait between. What the system does not grant is no loss.
const PIPE_BYTES: usize = 1 << 20;

/// How much longer the first turn may take.
const BEGINNING: Duration = Duration::from_secs(10);

/// A process that does a module's work, for one use at a time.
pub struct ModuleProcess {
    inside: Arc<Mutex<Inside>>,
}

struct Inside {
    to: File,
    from: File,
    /// Held by us alone: its supervisor kills it when this is closed.
    leash: Option<OwnedFd>,
    supervisor: Child,
    /// How long a turn may take.
    patience: Duration,
    /// What was received and is no whole frame yet.
    received: Vec<u8>,
    is_used: bool,
    /// Why it is of no use any more.
    fault: Option<String>,
}

/// Whether a process is free, and what a half is told that uses it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Use<'a> {
    /// At which end.
    pub role: Role,
    /// Of which class.
    pub class: Class,
    /// The head of a completion that failed.
    pub failed: &'a [u8],
    /// What its user tells it.
    pub options: &'a str,
}

impl ModuleProcess {
    /// Starts `supervisor`, which is to run the program: its standard input and output are the program's, its standard error is the end
    /// of a pipe at whose end it kills the program. A turn may take as long as `patience`.
    ///
    /// # Errors
    /// What the system says.
    pub fn start(supervisor: &mut Command, patience: Duration) -> io::Result<Self> {
        let (held, leash) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
        let mut child = supervisor.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(held).spawn()?;
        let missing = || io::Error::other("a process without pipes");
        let to = OwnedFd::from(child.stdin.take().ok_or_else(missing)?);
        let from = OwnedFd::from(child.stdout.take().ok_or_else(missing)?);
        for pipe in [&to, &from] {
            fcntl_setfl(pipe, OFlags::NONBLOCK)?;
            let _ = rustix::pipe::fcntl_setpipe_size(pipe, PIPE_BYTES);
        }
        let inside = Inside {
            to: File::from(to),
            from: File::from(from),
            leash: Some(leash),
            supervisor: child,
            patience,
            received: Vec::new(),
            is_used: false,
            fault: None,
        };
        Ok(Self { inside: Arc::new(Mutex::new(inside)) })
    }

    /// A half that is done by the process. It is free again when that is dropped.
    ///
    /// # Errors
    /// A sentence: somebody else uses it, or it is of no use any more.
    pub fn half(&self, used: &Use<'_>) -> Result<Box<dyn Module>, String> {
        let mut inside = lock(&self.inside);
        if let Some(fault) = &inside.fault {
            return Err(format!("its process was ended: {fault}"));
        }
        if inside.is_used {
            return Err("its process serves another attachment".to_owned());
        }
        let mut turn = Turn::default();
        let start = module_abi::start(used.role, used.class, used.failed, used.options);
        // Its language may have to begin first.
        let usual = inside.patience;
        inside.patience = usual + BEGINNING;
        let due = inside.take_turn(&start, &Payload::Empty, &mut turn);
        inside.patience = usual;
        if let Some(failure) = turn.failure() {
            return Err(failure.why);
        }
        inside.is_used = true;
        Ok(Box::new(Half { inside: Arc::clone(&self.inside), due }))
    }
}

fn lock(inside: &Mutex<Inside>) -> MutexGuard<'_, Inside> {
    inside.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Half {
    inside: Arc<Mutex<Inside>>,
    due: Option<Instant>,
}

impl Module for Half {
    fn handle(&mut self, now: Instant, from: Side, message: Message, out: &mut Turn) {
        let frame = module_abi::message(now, from, &message);
        self.due = lock(&self.inside).take_turn(&frame, &message.payload, out);
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.due
    }

    fn handle_timeout(&mut self, now: Instant, out: &mut Turn) {
        let frame = module_abi::time(now);
        // One that wants to be called for ever in the past gets a turn a call, like any other.
        self.due = lock(&self.inside).take_turn(&frame, &Payload::Empty, out);
    }

    /// What it holds back is not known.
    fn is_at_rest(&self) -> bool {
        self.due.is_none()
    }
}

impl Drop for Half {
    fn drop(&mut self) {
        lock(&self.inside).is_used = false;
    }
}

impl Inside {
    /// Tells it something, and passes on what it answers; when it wants to be called next.
    fn take_turn(&mut self, frame: &[u8], payload: &Payload, out: &mut Turn) -> Option<Instant> {
        if let Some(fault) = &self.fault {
            out.fail(Trouble::Module, fault.clone());
            return None;
        }
        match self.exchange(frame, payload, out) {
            Ok(due) => due,
            Err(fault) => {
                self.end(&fault);
                out.fail(Trouble::Module, fault);
                None
            }
        }
    }

    fn exchange(&mut self, frame: &[u8], payload: &Payload, out: &mut Turn) -> Result<Option<Instant>, String> {
        let until = Moment::now() + self.patience;
        let all: Vec<&[u8]> = [frame].into_iter().chain(payload.runs()).collect();
        let (mut run, mut taken) = (0, 0);
        let (mut frames, mut bytes) = (0, 0);
        loop {
            while let Some(rest) = all.get(run).map(|run| &run[taken..]) {
                if rest.is_empty() {
                    (run, taken) = (run + 1, 0);
                    continue;
                }
                match self.to.write(rest) {
                    Ok(count) => taken += count,
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(_) => return Err("its process has ended".to_owned()),
                }
            }
            let is_told = run == all.len();
            bytes += self.receive()?;
            if bytes > TURN_BYTES_MAX {
                return Err("its process says more than anybody asked for".to_owned());
            }
            while let Some(said) = self.next_said()? {
                frames += 1;
                match said {
                    _ if frames > TURN_FRAMES_MAX => return Err("its process says too much in one turn".to_owned()),
                    Said::Message(Side::Above, message) => out.above(message),
                    Said::Message(Side::Below, message) => out.below(message),
                    Said::Message(Side::Peer, message) => out.aside(message.payload),
                    Said::Fail(why) => return Err(why),
                    Said::Done(_) if !is_told => return Err("its process is done before it was told all".to_owned()),
                    Said::Done(_) if !self.received.is_empty() => {
                        return Err("its process goes on after it was done".to_owned());
                    }
                    Said::Done(due) => return Ok(due),
                }
            }
            self.wait(until, !is_told)?;
        }
    }

    /// What has arrived, as far as a turn may go: bytes.
    fn receive(&mut self) -> Result<usize, String> {
        let before = self.received.len();
        loop {
            let mut chunk = [0; 64 << 10];
            match self.from.read(&mut chunk) {
                Ok(0) => return Err("its process has ended".to_owned()),
                Ok(count) => self.received.extend_from_slice(&chunk[..count]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(format!("its process cannot be heard: {error}")),
            }
            if self.received.len() > TURN_BYTES_MAX {
                break;
            }
        }
        Ok(self.received.len() - before)
    }

    fn next_said(&mut self) -> Result<Option<Said>, String> {
        let wrong = |module_abi::Wrong(what)| format!("its process said {what}");
        let whole = module_abi::frame_bytes(&self.received, FRAME_BYTES_MAX).map_err(wrong)?;
        let Some(bytes) = whole.filter(|bytes| self.received.len() >= *bytes) else { return Ok(None) };
        let said = module_abi::decode(&self.received[..bytes]).map_err(wrong)?;
        self.received.drain(..bytes);
        Ok(Some(said))
    }

    fn wait(&self, until: Moment, wants_to_say: bool) -> Result<(), String> {
        let hangs = || format!("its process did not answer within {:?}", self.patience);
        let left = until.checked_duration_since(Moment::now()).ok_or_else(hangs)?;
        let said = if wants_to_say { PollFlags::OUT } else { PollFlags::empty() };
        let mut waiting = [PollFd::new(&self.from, PollFlags::IN), PollFd::from_borrowed_fd(self.to.as_fd(), said)];
        let span = Timespec::try_from(left).map_err(|_| hangs())?;
        match poll(&mut waiting, Some(&span)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(format!("its process cannot be waited for: {error}")),
        }
    }

    /// It is cut off: its supervisor ends it.
    fn end(&mut self, fault: &str) {
        self.fault = Some(fault.to_owned());
        self.received = Vec::new();
        self.leash = None;
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        self.leash = None;
        // It ends at once, and if not, with us.
        let _ = self.supervisor.try_wait();
    }
}

/// What a supervisor does: runs `program` on this process's standard input and output until it ends, or until nobody holds the other end
/// of standard error any more. Its exit code.
///
/// # Errors
/// What the system says.
pub fn supervise(program: &mut Command) -> io::Result<i32> {
    let leash = File::from(rustix::stdio::stderr().try_clone_to_owned()?);
    let mut child = program.stdin(Stdio::inherit()).stdout(Stdio::inherit()).stderr(Stdio::null()).spawn()?;
    let pid = rustix::process::Pid::from_child(&child);
    // Its pipes are the program's alone now: whoever reads them sees its end.
    let nothing = File::options().read(true).write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdin(&nothing)?;
    rustix::stdio::dup2_stdout(&nothing)?;
    std::thread::spawn(move || {
        let mut leash = leash;
        while leash.read(&mut [0; 16]).is_ok_and(|count| count > 0) {}
        // Not waited for yet: the number is still its own.
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
    });
    Ok(child.wait()?.code().unwrap_or(1))
}
