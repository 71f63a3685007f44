//! The control sockets: every share and attach answers the `farbus` command on a socket in the user's runtime folder.
//! One line of JSON asks, one line answers.

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::io::{self, BufRead, BufReader, BufWriter, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use farbus_io::link::{Interest, wait};
use farbus_io::sys::passing::{receive_on_stream, send_on_stream};
use farbus_io::sys::peer::Credentials;
use farbus_io::trust::{DeviceId, DeviceNotes, Peer};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::common::events;
use crate::common::failure::FailureReport;
use crate::common::passed_files::Files;
pub use crate::common::runtime_folder::path as folder;
use crate::common::runtime_folder::{self, RuntimeFolder};

/// The version of the protocol (docs/control.md). New questions and fields do not change it; a change to existing ones
/// does.
pub const PROTOCOL: u32 = 1;
/// What a daemon says at its end of a lease when it ends the share of a command that still runs (docs/control.md).
pub const HAS_ENDED: &[u8] = b"unshared\n";
/// What a daemon says there when it ends the share because the device was unplugged.
pub const IS_UNPLUGGED: &[u8] = b"unplugged\n";
/// The longest question, bytes. The text to type on a keyboard needs the most.
pub const QUESTION_BYTES_MAX: usize = 64 << 10;
/// How long a client may take to send a question, and to receive the answer. Both are on this machine.
const TALK_TIME_MAX: Duration = Duration::from_secs(1);
/// How long a process that ends waits until the current answer is sent.
const LAST_WORD_TIME_MAX: Duration = Duration::from_secs(1);
/// How long a running process may take to answer.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(10);

/// How long a process may take to answer when it first has to start a replacement and hand over to it.
const RESTART_TIME_MAX: Duration = Duration::from_secs(60);

/// A question to a running share, attach or daemon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "lowercase")]
pub enum Question {
    /// Asks for the version of the protocol. Every process answers it in the same way.
    Version,
    /// Asks for the status of the process and its devices.
    Status,
    /// Asks what happened in the process after the event with this number. Every process answers it in the same way.
    Events {
        /// The number; 0 asks for everything that is kept.
        #[serde(default)]
        after: u64,
    },
    /// Share, daemon: asks for the descriptors of a device.
    Descriptors {
        /// Name or bus id.
        device: String,
    },
    /// Attach, daemon, run: how long the requests of an attached device took in each of the last seconds.
    Latency {
        /// The device by name or target.
        device: String,
    },
    /// Attach: detach the device and end. Daemon: detach the device until the next reload. A share answers `unknown`.
    Detach {
        /// The device by name, bus id or target; `None` means whatever is attached.
        device: Option<String>,
        /// Whether to detach even while programs have the device open.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        force: bool,
    },
    /// Attach via redir: hold the device, because its virtual machine is about to be migrated.
    Hold {
        /// The device by name or target.
        device: String,
    },
    /// Attach: migrate the device to another host.
    Migrate {
        /// The device by name or target.
        device: String,
        /// The key of the successor, which is that host. The protocol calls it `heir` (docs/control.md).
        #[serde(rename = "heir")]
        successor: String,
        /// Whether it goes at once: its user's requests fail, and its state is thrown away.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        discard: bool,
        /// How the device's owner names that host.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        to: Option<String>,
    },
    /// Attach: say whether the device could migrate now; change nothing.
    #[serde(rename = "may-migrate")]
    MayMigrate {
        /// The device by name or target.
        device: String,
    },
    /// Attach via redir or nbd: let the device serve its user as before, and migrate to another host when the user
    /// leaves.
    Follow {
        /// The device by name or target.
        device: String,
        /// The key of the successor, as for `migrate`.
        #[serde(rename = "heir")]
        successor: String,
        /// How the device's owner names that host.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        to: Option<String>,
    },
    /// Attach via redir or nbd: the device follows the virtual machine of a process, and that machine has stopped for
    /// good. The device goes now, and not only when the process has ended.
    Depart {
        /// The device by name or target.
        device: String,
        /// The process's number.
        process: u32,
    },
    /// Attach via redir: resume the device, because its virtual machine stays.
    Resume {
        /// The device by name or target.
        device: String,
    },
    /// Attach: stop or restart the data that passes through the device's modules.
    Pause {
        /// The device by name or target.
        device: String,
        /// Whether to stop it.
        is_paused: bool,
    },
    /// Share: take a device back from its user.
    Release {
        /// Name or bus id.
        device: String,
        /// The remark for the history.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
        /// For how long the user's host may not have the device again, seconds.
        #[serde(default)]
        keep_out_s: u64,
        /// Whether to take back even a disk that its user may write.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        force: bool,
    },
    /// Share: store the reason why the user whose connection comes from this address needs its device.
    Explain {
        /// `HOST:PORT`.
        user: String,
        /// The reason, a few words.
        reason: String,
    },
    /// Share: give this identity to a device that is not in use.
    Adopt {
        /// The name under which the device is shared.
        device: String,
        /// The device's id from now on.
        id: DeviceId,
        /// The generation: which of the device's media this is.
        generation: u64,
    },
    /// Share: show these labels of a device, which its owner has stored. Asks for all that are shown of it.
    Label {
        /// The name under which the device is shared.
        device: String,
        /// All that is stored of it.
        #[serde(flatten)]
        notes: DeviceNotes,
    },
    /// Daemon: share a device. Its files, open and locked, are passed along, and then a lease unless `keep` is set: the
    /// device is shared until the other end of the lease is closed.
    Share {
        /// The device, as `farbus share` takes it, with absolute paths and without a name.
        what: String,
        /// The name that its owner gives it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        name: Option<String>,
        /// Whether the daemon shares it until somebody asks for its end.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        keep: bool,
        /// Whether the command had a device in this port shared before, which is not there any more. A daemon of an
        /// earlier release passes over it.
        #[serde(rename = "again", default, skip_serializing_if = "std::ops::Not::not")]
        is_again: bool,
        /// The files that were passed along.
        #[serde(skip)]
        files: Files,
    },
    /// Daemon: stop sharing a device.
    Unshare {
        /// Name or bus id.
        device: String,
        /// Whether to end the sessions of its users.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        force: bool,
    },
    /// Share: exchange the medium of a disk. The new disk, open and locked, and the journal are passed along.
    Swap {
        /// Name or bus id.
        device: String,
        /// The new medium, as people name it.
        to: String,
        /// The highest rate of the copy, bytes a second.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        rate: Option<u64>,
        /// Whether to read and compare both media before the switch.
        #[serde(default)]
        verify: bool,
        /// Whether the new medium has a part of the copy already.
        #[serde(default)]
        resume: bool,
        /// If the new medium is a disk of a paired host: that host's entry in the owner's list.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        peer: Option<Box<Peer>>,
        /// The files that were passed along.
        #[serde(skip)]
        files: Files,
    },
    /// Share: asks for the status of the running or last swap of a device.
    #[serde(rename = "swap-status")]
    SwapStatus {
        /// Name or bus id.
        device: String,
    },
    /// Share: cancel the swap of a device.
    #[serde(rename = "swap-cancel")]
    SwapCancel {
        /// Name or bus id.
        device: String,
    },
    /// Daemon: read the configuration again.
    Reload {
        /// The attachment that takes whichever device is there now, by its device's name or `HOST[:PORT]/DEVICE`. A
        /// daemon of an earlier release passes over it, and answers without `adopted`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        adopt: Option<String>,
    },
    /// Daemon: hand over to the program that is on disk now.
    Restart {
        /// Whether to restart even if that interrupts a user of an attached device.
        #[serde(default)]
        interrupt: bool,
    },
    /// Daemon: bring up, take down or show the links between this host and others.
    Topology {
        /// What to do.
        act: TopologyAct,
    },
    /// Daemon: asks for what is known of the directory of all sites.
    Directory {
        /// The words of a query: only devices that it means are answered, with their hosts. `None`: all. An earlier
        /// release answers all of them in any case.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        query: Option<Vec<String>>,
        /// The `version` of an earlier answer to the same question. If hosts, devices and limits are still the same,
        /// the answer is without them. An earlier release answers all in any case.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        known: Option<String>,
    },
    /// Daemon: write in the directory what a host may have of all devices. Without any limit, the host's limit goes.
    #[serde(rename = "directory-limit")]
    DirectoryLimit {
        /// The key of the host.
        host: String,
        /// How many devices at a time.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        devices: Option<u32>,
        /// For how long from now on a lease may be, seconds.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        for_s: Option<u64>,
    },
    /// Daemon: detach devices, because this machine is about to sleep. Its kernel refuses to sleep while remote devices
    /// are plugged in.
    Sleep {
        /// Ports whose devices this machine uses, which stay attached.
        #[serde(default)]
        held: BTreeSet<u32>,
    },
    /// Daemon: attach the devices again, because this machine has woken.
    Wake,
    /// Keyboard: type a text.
    Type {
        /// Name or bus id.
        device: String,
        /// The text to type.
        text: String,
    },
    /// Share, pipe: reserve processor time of this host for threads of another process: `[budget, period]` of each
    /// thread, in nanoseconds, in place of what its owner had. One end of a lease is passed along: when its other end
    /// is closed, the reservation ends.
    Promise {
        /// The name of the owner, the same in each question.
        owner: String,
        /// All reservations of the owner.
        reserves: Vec<(u64, u64)>,
        /// The lease that was passed along.
        #[serde(skip)]
        files: Files,
    },
    /// Removable disk: eject the medium.
    Eject {
        /// Name or bus id.
        device: String,
    },
    /// Removable disk: insert the medium again.
    Insert {
        /// Name or bus id.
        device: String,
    },
}

impl Question {
    /// The descriptors that come with it, if it is a question that has some.
    fn files(&self) -> Option<&Files> {
        match self {
            Question::Share { files, .. } | Question::Swap { files, .. } | Question::Promise { files, .. } => {
                Some(files)
            }
            _ => None,
        }
    }
}

/// What to do about links between hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TopologyAct {
    /// Show their status.
    Status,
    /// Read the plan again and bring the links up.
    Up,
    /// Take them down.
    Down,
}

/// The answer to a question.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Answer {
    /// Done, with the value that was asked for.
    Ok(Value),
    /// This process does not have the device: ask another.
    Unknown,
    /// Refused, with the reason.
    Refused(String),
    /// Failed, with the cause.
    Failed(FailureReport),
}

impl Answer {
    /// Done, with this value.
    pub fn of(value: &impl Serialize) -> Self {
        match serde_json::to_value(value) {
            Ok(value) => Answer::Ok(value),
            Err(error) => Answer::Refused(error.to_string()),
        }
    }
}

/// An answer as it is sent.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub enum SentAnswer {
    /// An answer.
    Plain(Answer),
    /// [`Answer::Ok`] with a value that is text already: of what is large no tree of values is made.
    Written {
        /// The value.
        ok: Box<RawValue>,
    },
}

impl From<Answer> for SentAnswer {
    fn from(answer: Answer) -> Self {
        SentAnswer::Plain(answer)
    }
}

/// The socket on which this process answers. It is removed when dropped.
#[derive(Debug)]
pub struct ControlSocket {
    path: PathBuf,
    talk: Arc<Talk>,
}

/// Whether a question is being answered.
#[derive(Debug, Default)]
struct Talk {
    is_going_on: Mutex<bool>,
    over: Condvar,
}

impl Talk {
    fn set(&self, is_going_on: bool) {
        *self.is_going_on.lock().unwrap_or_else(PoisonError::into_inner) = is_going_on;
        self.over.notify_all();
    }

    /// Waits until no question is being answered, for `time_max` at most: an answer may itself wait for the end of the
    /// process.
    fn wait(&self, time_max: Duration) {
        let is_going_on = self.is_going_on.lock().unwrap_or_else(PoisonError::into_inner);
        // Nothing else is left to be done after a timeout.
        let _ = self.over.wait_timeout_while(is_going_on, time_max, |is_going_on| *is_going_on);
    }
}

/// Why the control socket cannot be used.
#[derive(Debug)]
pub struct ControlSocketError {
    path: PathBuf,
    source: io::Error,
}

impl fmt::Display for ControlSocketError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "cannot answer on {}: {}\n  set XDG_RUNTIME_DIR to a folder of yours",
            self.path.display(),
            self.source
        )
    }
}

impl std::error::Error for ControlSocketError {}

impl ControlSocket {
    /// Creates the socket without answering yet: clients wait.
    ///
    /// # Errors
    /// [`ControlSocketError`].
    pub fn bind() -> Result<(Self, UnixListener), ControlSocketError> {
        let name = socket_of(std::process::id());
        let path = folder().join(&name);
        let listener = RuntimeFolder::make().map_err(io::Error::from).and_then(|folder| folder.listen(&name));
        let listener = listener.map_err(|source| ControlSocketError { path: path.clone(), source })?;
        Ok((Self { path, talk: Arc::default() }, listener))
    }

    /// Answers from now on, on a thread of its own, one question at a time.
    ///
    /// # Errors
    /// [`ControlSocketError`].
    pub fn open<A: Into<SentAnswer>>(
        &self,
        listener: UnixListener,
        answer: impl Fn(Question) -> A + Send + 'static,
    ) -> Result<(), ControlSocketError> {
        let talk = Arc::clone(&self.talk);
        let serve = move || serve(&listener, &talk, &|question| answer(question).into());
        let spawned = thread::Builder::new().name("control".into()).spawn(serve).map(drop);
        spawned.map_err(|source| ControlSocketError { path: self.path.clone(), source })
    }

    /// The path of the socket.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for ControlSocket {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
        // The client that asked for the end receives its answer.
        self.talk.wait(LAST_WORD_TIME_MAX);
    }
}

fn serve(listener: &UnixListener, talk: &Talk, answer: &dyn Fn(Question) -> SentAnswer) {
    for stream in listener.incoming().flatten() {
        // A client that does not finish its question gets no answer.
        let _ = serve_one(stream, talk, answer);
        talk.set(false);
    }
}

fn serve_one(stream: UnixStream, talk: &Talk, answer: &dyn Fn(Question) -> SentAnswer) -> io::Result<()> {
    // Folder and socket are accessible to the owner only; this check holds even if their modes were changed.
    let user = Credentials::of(&stream)?.user();
    if user != runtime_folder::owner() && user != 0 {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    let mut fds = Vec::new();
    let heard = read_question(&stream, &mut fds)?;
    // A client that gave up waiting has reported that nothing was done.
    if has_hung_up(&stream)? {
        return Ok(());
    }
    talk.set(true);
    let answer = match heard {
        Heard::Line(line) => match serde_json::from_slice(&line) {
            Ok(Question::Version) => {
                Answer::Ok(serde_json::json!({ "protocol": PROTOCOL, "farbus": env!("CARGO_PKG_VERSION") })).into()
            }
            Ok(Question::Events { after }) => Answer::of(&events::after(after)).into(),
            Ok(question) => {
                if let Some(files) = question.files() {
                    files.put(fds);
                }
                answer(question)
            }
            Err(error) => Answer::Refused(format!("not a question: {error}")).into(),
        },
        Heard::TooMuch => Answer::Refused(format!("a question has at most {QUESTION_BYTES_MAX} bytes")).into(),
        Heard::Nothing => return Ok(()),
    };
    stream.set_write_timeout(Some(TALK_TIME_MAX))?;
    let mut line = BufWriter::new(stream);
    serde_json::to_writer(&mut line, &answer)?;
    line.write_all(b"\n")?;
    line.flush()
}

/// Whether the client has closed the connection. One that has only closed its sending direction still waits.
fn has_hung_up(stream: &UnixStream) -> io::Result<bool> {
    let mut interests = [Interest::end(stream.as_fd())];
    wait(&mut interests, Some(Duration::ZERO))?;
    Ok(interests[0].readable)
}

/// What was received before the line ended, or the time or size limit was reached.
enum Heard {
    Line(Vec<u8>),
    TooMuch,
    Nothing,
}

fn read_question(stream: &UnixStream, fds: &mut Vec<OwnedFd>) -> io::Result<Heard> {
    let until = Instant::now() + TALK_TIME_MAX;
    let mut line = Vec::new();
    let mut piece = [0; 4096];
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        let count = receive_on_stream(stream.as_fd(), &mut piece, fds)?;
        let end = piece[..count].iter().position(|&byte| byte == b'\n');
        line.extend(&piece[..end.unwrap_or(count)]);
        if line.len() > QUESTION_BYTES_MAX {
            return Ok(Heard::TooMuch);
        }
        match (end, count) {
            (None, 0) if line.is_empty() => return Ok(Heard::Nothing),
            (None, 0) | (Some(_), _) => return Ok(Heard::Line(line)),
            (None, _) => {}
        }
    }
}

/// The file name of a process's socket.
fn socket_of(pid: u32) -> String {
    format!("{pid}.sock")
}

/// The control socket of a running process.
struct ControlAddress {
    pid: u32,
    folder: Arc<RuntimeFolder>,
}

/// The sockets of running processes, that of the oldest process first.
fn control_sockets() -> io::Result<Vec<ControlAddress>> {
    control_sockets_in(runtime_folder::all()?)
}

/// Those in these folders. Process ids begin again at their greatest: they do not tell which process is older.
fn control_sockets_in(folders: Vec<RuntimeFolder>) -> io::Result<Vec<ControlAddress>> {
    let mut control_sockets = Vec::new();
    for folder in folders.into_iter().map(Arc::new) {
        let pids = folder.names()?.into_iter().filter_map(|name| name.strip_suffix(".sock")?.parse().ok());
        control_sockets.extend(pids.map(|pid| ControlAddress { pid, folder: Arc::clone(&folder) }));
    }
    control_sockets.sort_by_cached_key(|ControlAddress { pid, folder }| (folder.made_at(&socket_of(*pid)), *pid));
    Ok(control_sockets)
}

/// The process ids of the running processes.
///
/// # Errors
/// The folder cannot be read.
pub fn running() -> io::Result<BTreeSet<u32>> {
    Ok(control_sockets()?.into_iter().map(|control_socket| control_socket.pid).collect())
}

/// Asks every running process. Returns the answers with their process ids, that of the oldest process first. The socket
/// of a process that has ended is removed.
///
/// # Errors
/// The folder cannot be read.
pub fn ask_all(question: &Question) -> io::Result<Vec<(u32, Answer)>> {
    let control_sockets = control_sockets()?.into_iter();
    Ok(control_sockets
        .filter_map(|control_socket| {
            Some((control_socket.pid, ask_at(&control_socket, question)?.unwrap_or_else(Silence::answer)))
        })
        .collect())
}

/// Asks one running process after the other until one has an answer, so that no two processes carry out the question. A
/// process that ends while it is asked is skipped, because its replacement may answer.
///
/// # Errors
/// The folder cannot be read.
pub fn ask_in_turn(question: &Question) -> io::Result<Answer> {
    let mut ended = None;
    for control_socket in control_sockets()? {
        match ask_at(&control_socket, question) {
            None | Some(Ok(Answer::Unknown)) => {}
            Some(Ok(answer)) => return Ok(answer),
            Some(Err(silence)) if silence.has_ended() => ended = ended.or(Some(silence)),
            Some(Err(silence)) => return Ok(silence.answer()),
        }
    }
    Ok(ended.map_or(Answer::Unknown, Silence::answer))
}

/// The process id and the status of this owner's daemon; `None` if none runs.
///
/// # Errors
/// The folder cannot be read.
pub fn own_daemon() -> io::Result<Option<(u32, Value)>> {
    let is_daemon = |control_socket: &ControlAddress| match ask_at(control_socket, &Question::Status)? {
        Ok(Answer::Ok(status)) if status["role"] == "daemon" => Some((control_socket.pid, status)),
        _ => None,
    };
    Ok(control_sockets()?.iter().find_map(is_daemon))
}

/// Why a process did not answer.
struct Silence {
    pid: u32,
    source: io::Error,
}

impl Silence {
    /// Whether the process ended before it could answer.
    fn has_ended(&self) -> bool {
        use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
        matches!(self.source.kind(), BrokenPipe | ConnectionReset | UnexpectedEof)
    }

    fn answer(self) -> Answer {
        Answer::Refused(format!("process {} does not answer: {}", self.pid, self.source))
    }
}

/// Asks one process at its socket; `None` if the process has ended.
fn ask_at(control_socket: &ControlAddress, question: &Question) -> Option<Result<Answer, Silence>> {
    match ask_with(control_socket, question, &[]) {
        Ok(answer) => Some(Ok(answer)),
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            let _ = control_socket.folder.remove(&socket_of(control_socket.pid));
            None
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(source) => Some(Err(Silence { pid: control_socket.pid, source })),
    }
}

/// Asks one running process; `fds` are passed with the question.
///
/// # Errors
/// The process has ended, or does not answer.
pub fn ask_one(pid: u32, question: &Question, fds: &[BorrowedFd<'_>]) -> io::Result<Answer> {
    let control_socket = control_sockets()?.into_iter().find(|control_socket| control_socket.pid == pid);
    ask_with(&control_socket.ok_or(io::ErrorKind::NotFound)?, question, fds)
}

/// Sends the question and the descriptors. Connecting has checked that the process belongs to the owner or to root.
fn ask_with(control_socket: &ControlAddress, question: &Question, fds: &[BorrowedFd<'_>]) -> io::Result<Answer> {
    let mut stream = control_socket.folder.connect(&socket_of(control_socket.pid))?;
    let is_restart = matches!(question, Question::Restart { .. });
    stream.set_read_timeout(Some(if is_restart { RESTART_TIME_MAX } else { ANSWER_TIME_MAX }))?;
    let mut line = serde_json::to_string(question).map_err(io::Error::other)?;
    line.push('\n');
    let sent = send_on_stream(stream.as_fd(), line.as_bytes(), fds)?;
    stream.write_all(&line.as_bytes()[sent..])?;
    let mut answer = String::new();
    if BufReader::new(stream).read_line(&mut answer)? == 0 {
        return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "it ended before it did"));
    }
    serde_json::from_str(&answer).map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::fs::DirBuilderExt;

    use rustix::fs::{AtFlags, CWD, Timespec, Timestamps};

    use super::*;

    #[test]
    fn control_questions_are_stable_json() {
        let text = |question: Question| serde_json::to_string(&question).unwrap();
        assert_eq!(text(Question::Status), r#"{"ask":"status"}"#);
        let question = Question::Type { device: "keyboard".into(), text: "hi".into() };
        assert_eq!(text(question), r#"{"ask":"type","device":"keyboard","text":"hi"}"#);
        assert_eq!(text(Question::Latency { device: "disk".into() }), r#"{"ask":"latency","device":"disk"}"#);
        let question = Question::Topology { act: TopologyAct::Up };
        assert_eq!(text(question), r#"{"ask":"topology","act":"up"}"#);
        let asked = r#"{"ask":"sleep","held":[0,8]}"#;
        let question: Question = serde_json::from_str(asked).unwrap();
        assert_eq!(text(question), asked, "and are understood");
        for asked in [
            r#"{"ask":"share","what":"disk:/a.img,ro","name":"backup","keep":true}"#,
            r#"{"ask":"share","what":"zero"}"#,
            r#"{"ask":"unshare","device":"disk"}"#,
        ] {
            let question: Question = serde_json::from_str(asked).unwrap();
            assert_eq!(text(question), asked, "and are understood");
        }
    }

    #[test]
    fn processes_are_listed_in_the_order_in_which_they_began_whatever_their_ids() {
        let path = std::env::temp_dir().join(format!("farbus-order-{}", std::process::id()));
        std::fs::DirBuilder::new().mode(0o700).create(&path).unwrap();
        let folder = || RuntimeFolder::open(&path, rustix::process::geteuid().as_raw()).unwrap().unwrap();
        let began: [(u32, i64); 4] = [(32_760, 100), (301, 200), (9, 300), (10, 300)];
        let sockets = began.map(|(pid, at_s)| {
            let socket = folder().listen(&socket_of(pid)).unwrap();
            let at = Timespec { tv_sec: at_s, tv_nsec: 0 };
            let times = Timestamps { last_access: at, last_modification: at };
            rustix::fs::utimensat(CWD, path.join(socket_of(pid)), &times, AtFlags::empty()).unwrap();
            socket
        });
        let pids: Vec<u32> = control_sockets_in(vec![folder()]).unwrap().iter().map(|socket| socket.pid).collect();
        std::fs::remove_dir_all(&path).unwrap();
        drop(sockets);
        assert_eq!(pids, began.map(|(pid, _)| pid));
    }

    #[test]
    fn client_that_asks_for_the_end_gets_its_answer() {
        let path = std::env::temp_dir().join(format!("farbus-control-{}.sock", std::process::id()));
        let listener = UnixListener::bind(&path).unwrap();
        let control_socket = ControlSocket { path: path.clone(), talk: Arc::default() };
        let (end, ended) = std::sync::mpsc::channel();
        let answer = move |_| {
            end.send(()).unwrap();
            // The end is already under way.
            thread::sleep(Duration::from_millis(50));
            Answer::Ok(Value::Null)
        };
        control_socket.open(listener, answer).unwrap();
        let mut asker = UnixStream::connect(&path).unwrap();
        asker.write_all(b"{\"ask\":\"detach\",\"device\":null}\n").unwrap();
        ended.recv().unwrap();
        drop(control_socket);
        asker.set_nonblocking(true).unwrap();
        let mut heard = [0; 64];
        let count = asker.read(&mut heard).unwrap();
        assert_eq!(heard[..count], *b"{\"ok\":null}\n");
    }
    #[test]
    fn question_of_a_client_that_hung_up_is_not_carried_out() {
        let path = std::env::temp_dir().join(format!("farbus-control-late-{}.sock", std::process::id()));
        let listener = UnixListener::bind(&path).unwrap();
        let mut gone = UnixStream::connect(&path).unwrap();
        gone.write_all(b"{\"ask\":\"type\",\"device\":\"keyboard\",\"text\":\"late\"}\n").unwrap();
        drop(gone);
        let mut patient = UnixStream::connect(&path).unwrap();
        patient.write_all(b"{\"ask\":\"type\",\"device\":\"keyboard\",\"text\":\"now\"}\n").unwrap();
        patient.shutdown(std::net::Shutdown::Write).unwrap();
        let control_socket = ControlSocket { path, talk: Arc::default() };
        let (heard, typed) = std::sync::mpsc::channel();
        let answer = move |question| {
            heard.send(question).unwrap();
            Answer::Ok(Value::Null)
        };
        control_socket.open(listener, answer).unwrap();
        let mut told = String::new();
        patient.read_to_string(&mut told).unwrap();
        assert_eq!(told, "{\"ok\":null}\n", "one who has said his last is answered");
        let Question::Type { text, .. } = typed.recv().unwrap() else { panic!("another question") };
        assert_eq!((text.as_str(), typed.try_recv().is_err()), ("now", true));
    }
}
