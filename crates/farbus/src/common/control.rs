//! How the `farbus` command finds what runs: every share and attach answers on a socket in the
//! user's runtime folder. One line of JSON asks, one line answers.

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use farbus_io::link::{Interest, wait};
use farbus_io::sys::passing::{receive_on_stream, send_on_stream};
use farbus_io::sys::peer::Credentials;
use farbus_io::trust::DeviceId;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::common::failure::FailureReport;
use crate::common::passed_files::Files;
pub use crate::common::runtime_folder::path as folder;
use crate::common::runtime_folder::{self, RuntimeFolder};

/// The version of the protocol (docs/control.md). Questions and fields may be added to it; a change of what is there
/// makes it the next.
pub const PROTOCOL: u32 = 1;
/// A question is a short line; nobody sends more. What is typed on a keyboard is the longest of them.
pub const QUESTION_BYTES_MAX: usize = 64 << 10;
/// How long a question may take to be asked, and an answer to be taken: both are on this machine.
const TALK_TIME_MAX: Duration = Duration::from_secs(1);
/// How long a process that ends waits for the answer that is being given.
const LAST_WORD_TIME_MAX: Duration = Duration::from_secs(1);
/// How long a running process may take to answer.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(10);

/// The same while another process is started and told everything.
const RESTART_TIME_MAX: Duration = Duration::from_secs(60);

/// What may be asked of a running share or attach.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "lowercase")]
pub enum Question {
    /// Which protocol do you speak? Answered by everybody alike.
    Version,
    /// What are you and how do you do?
    Status,
    /// Attach: let go of the device and end. Share: ignored.
    Detach {
        /// The device by name, bus id or target; `None` means whatever it is.
        device: Option<String>,
        /// Also while programs have it open.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        force: bool,
    },
    /// Attach via redir: hold the device still, because the virtual machine that has it is about to be migrated.
    Hold {
        /// The device by name or target.
        device: String,
    },
    /// Attach: the device goes to another host as it is.
    Migrate {
        /// The device by name or target.
        device: String,
        /// The key of that host, its successor. It is called `heir` in the protocol (docs/control.md).
        #[serde(rename = "heir")]
        successor: String,
    },
    /// Attach via redir: the virtual machine stays after all.
    Resume {
        /// The device by name or target.
        device: String,
    },
    /// Attach: nothing is to pass the device's modules, or all again.
    Pause {
        /// The device by name or target.
        device: String,
        /// Whether nothing is to pass.
        is_paused: bool,
    },
    /// Share: take a device back from whoever uses it.
    Release {
        /// Name or bus id.
        device: String,
        /// What the history is to say of it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
        /// For how long its user's host may not have it again, seconds.
        #[serde(default)]
        keep_out_s: u64,
        /// Also a disk that its user may write.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        force: bool,
    },
    /// Share: the user whose connection comes from this address says what it needs its device for.
    Explain {
        /// `HOST:PORT`.
        user: String,
        /// A few words.
        reason: String,
    },
    /// Share: a device that nobody uses is the one with this identity.
    Adopt {
        /// The device's name, as it is shared.
        device: String,
        /// The id that the device has from now on.
        id: DeviceId,
        /// Which of its media it is.
        generation: u64,
    },
    /// Share: put another medium in the place of a disk's. The disk, open and locked, and its journal come along.
    Swap {
        /// Name or bus id.
        device: String,
        /// The medium, as people name it.
        to: String,
        /// At most so many bytes a second.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        rate: Option<u64>,
        /// Whether both are read and compared before the switch.
        #[serde(default)]
        verify: bool,
        /// Whether the medium has a part of the copy already.
        #[serde(default)]
        resume: bool,
        /// What came along.
        #[serde(skip)]
        files: Files,
    },
    /// Share: how is the swap of this device doing, or how did the last one end?
    #[serde(rename = "swap-status")]
    SwapStatus {
        /// Name or bus id.
        device: String,
    },
    /// Share: the device is to stay where it is.
    #[serde(rename = "swap-cancel")]
    SwapCancel {
        /// Name or bus id.
        device: String,
    },
    /// Daemon: read the configuration again.
    Reload,
    /// Daemon: let this program, as it is on disk now, go on in your place.
    Restart {
        /// Also where that interrupts somebody who uses what is attached.
        #[serde(default)]
        interrupt: bool,
    },
    /// Daemon: links between this host and others.
    Topology {
        /// What about them.
        act: TopologyAct,
    },
    /// Daemon: this machine is about to sleep, which its kernel refuses while something is plugged into it from afar.
    Sleep {
        /// Ports whose devices this machine uses: these stay.
        #[serde(default)]
        held: BTreeSet<u32>,
    },
    /// Daemon: this machine sleeps no more.
    Wake,
    /// Keyboard: type this.
    Type {
        /// Name or bus id.
        device: String,
        /// The text.
        text: String,
    },
    /// Share, pipe: threads of another process are to have so much of this host's processors: `[budget, period]` of
    /// each, in nanoseconds, in the place of what it had. The end of a lease comes along: when its other end is closed,
    /// they have it no more.
    Promise {
        /// Who asks, the same each time.
        owner: String,
        /// All that he needs.
        reserves: Vec<(u64, u64)>,
        /// What came along.
        #[serde(skip)]
        files: Files,
    },
    /// Removable disk: take the medium out.
    Eject {
        /// Name or bus id.
        device: String,
    },
    /// Removable disk: put it back.
    Insert {
        /// Name or bus id.
        device: String,
    },
}

/// What is asked about links between hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TopologyAct {
    /// How they do.
    Status,
    /// Bring them up, as the plan says now.
    Up,
    /// Take them down.
    Down,
}

/// The answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Answer {
    /// Done; with what was asked for.
    Ok(Value),
    /// This process has no such device: ask another.
    Unknown,
    /// Refused, and why.
    Refused(String),
    /// It failed, whose trouble it is and why.
    Failed(FailureReport),
}

/// A socket on which this process answers; removed when dropped.
#[derive(Debug)]
pub struct ControlSocket {
    path: PathBuf,
    talk: Arc<Talk>,
}

/// Whether somebody is being answered.
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

    /// Waits until nobody is, but not for ever: an answer may wait for what ends only with the process.
    fn wait(&self, time_max: Duration) {
        let is_going_on = self.is_going_on.lock().unwrap_or_else(PoisonError::into_inner);
        // Whether it is over or the time is, nothing else is left to be done.
        let _ = self.over.wait_timeout_while(is_going_on, time_max, |is_going_on| *is_going_on);
    }
}

/// Why this process answers on no control socket.
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
    /// A control socket that exists but does not answer yet: those that connect wait.
    ///
    /// # Errors
    /// [`ControlSocketError`].
    pub fn hang() -> Result<(Self, UnixListener), ControlSocketError> {
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
    pub fn open(
        &self,
        listener: UnixListener,
        answer: impl Fn(Question) -> Answer + Send + 'static,
    ) -> Result<(), ControlSocketError> {
        let talk = Arc::clone(&self.talk);
        let serve = move || serve(&listener, &talk, &answer);
        let spawned = thread::Builder::new().name("control".into()).spawn(serve).map(drop);
        spawned.map_err(|source| ControlSocketError { path: self.path.clone(), source })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for ControlSocket {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
        // Who asked for the end is to hear that it was granted.
        self.talk.wait(LAST_WORD_TIME_MAX);
    }
}

fn serve(listener: &UnixListener, talk: &Talk, answer: &dyn Fn(Question) -> Answer) {
    for stream in listener.incoming().flatten() {
        // Whoever does not finish a question loses its turn, not ours.
        let _ = serve_one(stream, talk, answer);
        talk.set(false);
    }
}

fn serve_one(mut stream: UnixStream, talk: &Talk, answer: &dyn Fn(Question) -> Answer) -> io::Result<()> {
    // The folder and the socket are the owner's alone; this holds where somebody has changed that.
    let user = Credentials::of(&stream)?.user();
    if user != runtime_folder::owner() && user != 0 {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    let mut fds = Vec::new();
    let heard = read_question(&stream, &mut fds)?;
    // Who waited too long for a turn has told somebody that nothing was done.
    if has_hung_up(&stream)? {
        return Ok(());
    }
    talk.set(true);
    let answer = match heard {
        Heard::Line(line) => match serde_json::from_slice(&line) {
            Ok(Question::Swap { device, to, rate, verify, resume, files }) => {
                files.put(fds);
                answer(Question::Swap { device, to, rate, verify, resume, files })
            }
            Ok(Question::Promise { owner, reserves, files }) => {
                files.put(fds);
                answer(Question::Promise { owner, reserves, files })
            }
            Ok(Question::Version) => {
                Answer::Ok(serde_json::json!({ "protocol": PROTOCOL, "farbus": env!("CARGO_PKG_VERSION") }))
            }
            Ok(question) => answer(question),
            Err(error) => Answer::Refused(format!("not a question: {error}")),
        },
        Heard::TooMuch => Answer::Refused(format!("a question has at most {QUESTION_BYTES_MAX} bytes")),
        Heard::Nothing => return Ok(()),
    };
    let mut line = serde_json::to_vec(&answer).map_err(io::Error::other)?;
    line.push(b'\n');
    stream.set_write_timeout(Some(TALK_TIME_MAX))?;
    stream.write_all(&line)
}

/// Whether nobody is there any more to hear an answer: one who has only said his last still is.
fn has_hung_up(stream: &UnixStream) -> io::Result<bool> {
    let mut interests = [Interest::end(stream.as_fd())];
    wait(&mut interests, Some(Duration::ZERO))?;
    Ok(interests[0].readable)
}

/// What came in before the line ended, or the time, or the patience.
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

/// What the socket of a process is called.
fn socket_of(pid: u32) -> String {
    format!("{pid}.sock")
}

/// The socket of a running process.
struct ControlAddress {
    pid: u32,
    folder: Arc<RuntimeFolder>,
}

/// The sockets of running processes, in the order of their process ids.
fn control_sockets() -> io::Result<Vec<ControlAddress>> {
    let mut control_sockets = Vec::new();
    for folder in runtime_folder::all()?.into_iter().map(Arc::new) {
        let pids = folder.names()?.into_iter().filter_map(|name| name.strip_suffix(".sock")?.parse().ok());
        control_sockets.extend(pids.map(|pid| ControlAddress { pid, folder: Arc::clone(&folder) }));
    }
    control_sockets.sort_by_key(|control_socket| control_socket.pid);
    Ok(control_sockets)
}

/// The process ids of those who answer.
///
/// # Errors
/// If the folder cannot be read.
pub fn running() -> io::Result<BTreeSet<u32>> {
    Ok(control_sockets()?.into_iter().map(|control_socket| control_socket.pid).collect())
}

/// Asks every running process; the answers with their process ids, in that order. A socket whose
/// process is gone is removed.
///
/// # Errors
/// If the folder cannot be read.
pub fn ask_all(question: &Question) -> io::Result<Vec<(u32, Answer)>> {
    let control_sockets = control_sockets()?.into_iter();
    Ok(control_sockets
        .filter_map(|control_socket| {
            Some((control_socket.pid, ask_at(&control_socket, question)?.unwrap_or_else(Silence::answer)))
        })
        .collect())
}

/// Asks one running process after the other, until one has an answer: what the first does no other is to do once more.
/// One that ends while it is asked is passed over for who goes on in its place, as far as somebody does.
///
/// # Errors
/// If the folder cannot be read.
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

/// A process that did not answer.
struct Silence {
    pid: u32,
    source: io::Error,
}

impl Silence {
    /// Whether it ended before it could.
    fn has_ended(&self) -> bool {
        use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
        matches!(self.source.kind(), BrokenPipe | ConnectionReset | UnexpectedEof)
    }

    fn answer(self) -> Answer {
        Answer::Refused(format!("process {} does not answer: {}", self.pid, self.source))
    }
}

/// Asks one process at its socket; none if it is not there any more.
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

/// Asks one running process; descriptors go with the question.
///
/// # Errors
/// If it is not there any more, or does not answer.
pub fn ask_one(pid: u32, question: &Question, fds: &[BorrowedFd<'_>]) -> io::Result<Answer> {
    let control_socket = control_sockets()?.into_iter().find(|control_socket| control_socket.pid == pid);
    ask_with(&control_socket.ok_or(io::ErrorKind::NotFound)?, question, fds)
}

/// Nothing is said, and nothing passed, before it is known whose process answers.
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

    use super::*;

    #[test]
    fn questions_are_stable_json() {
        let text = |question: Question| serde_json::to_string(&question).unwrap();
        assert_eq!(text(Question::Status), r#"{"ask":"status"}"#);
        let question = Question::Type { device: "keyboard".into(), text: "hi".into() };
        assert_eq!(text(question), r#"{"ask":"type","device":"keyboard","text":"hi"}"#);
        let question = Question::Topology { act: TopologyAct::Up };
        assert_eq!(text(question), r#"{"ask":"topology","act":"up"}"#);
        let asked = r#"{"ask":"sleep","held":[0,8]}"#;
        let question: Question = serde_json::from_str(asked).unwrap();
        assert_eq!(text(question), asked, "and are understood");
    }

    #[test]
    fn who_asks_for_the_end_hears_that_it_was_granted() {
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
    fn what_nobody_waits_for_any_more_is_not_done() {
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
