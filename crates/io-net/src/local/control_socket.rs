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

pub use farbus_control::question::{
    Answer, HAS_ENDED, IS_UNPLUGGED, PROTOCOL, QUESTION_BYTES_MAX, Question, TopologyAct,
};
use serde::Serialize;
use serde_json::Value;
use serde_json::value::RawValue;

use crate::link::{PollInterest, wait};
use crate::local::events;
use crate::local::passed_files::PassedFiles;
pub use crate::local::runtime_folder::path as folder;
use crate::local::runtime_folder::{self, RuntimeFolder};
use crate::sys::passing::{receive_on_stream, send_on_stream};
use crate::sys::peer::PeerCredentials;

/// How long a client may take to send a question, and to receive the answer. Both are on this machine.
const TALK_TIME_MAX: Duration = Duration::from_secs(1);
/// How long a process that ends waits until the current answer is sent.
const LAST_WORD_TIME_MAX: Duration = Duration::from_secs(1);
/// How long a running process may take to answer.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(10);

/// How long a process may take to answer when it first has to start a replacement and hand over to it.
const RESTART_TIME_MAX: Duration = Duration::from_secs(60);

/// An answer as it is sent.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub enum SentAnswer {
    /// An answer that is encoded when it is sent.
    Plain(Answer),
    /// [`Answer::Ok`] with a value that is text already: of what is large no tree of values is made.
    Written {
        /// The value, as JSON text.
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
    talk: Arc<AnswerActivity>,
}

/// Whether a question is being answered.
#[derive(Debug, Default)]
struct AnswerActivity {
    is_going_on: Mutex<bool>,
    over: Condvar,
}

impl AnswerActivity {
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

    /// Answers from now on, on a thread of its own, one question at a time, each with the files that came along.
    ///
    /// # Errors
    /// [`ControlSocketError`].
    pub fn open<A: Into<SentAnswer>>(
        &self,
        listener: UnixListener,
        answer: impl Fn(Question, &PassedFiles) -> A + Send + 'static,
    ) -> Result<(), ControlSocketError> {
        let talk = Arc::clone(&self.talk);
        let serve = move || serve(&listener, &talk, &|question, files| answer(question, files).into());
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

fn serve(listener: &UnixListener, talk: &AnswerActivity, answer: &dyn Fn(Question, &PassedFiles) -> SentAnswer) {
    for stream in listener.incoming().flatten() {
        // A client that does not finish its question gets no answer.
        let _ = serve_one(stream, talk, answer);
        talk.set(false);
    }
}

fn serve_one(
    stream: UnixStream,
    talk: &AnswerActivity,
    answer: &dyn Fn(Question, &PassedFiles) -> SentAnswer,
) -> io::Result<()> {
    // Folder and socket are accessible to the owner only; this check holds even if their modes were changed.
    let user = PeerCredentials::of(&stream)?.user();
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
        ReceivedLine::Line(line) => match serde_json::from_slice(&line) {
            Ok(Question::Version) => {
                Answer::Ok(serde_json::json!({ "protocol": PROTOCOL, "farbus": env!("CARGO_PKG_VERSION") })).into()
            }
            Ok(Question::Events { after }) => Answer::of(&events::after(after)).into(),
            Ok(question) => answer(question, &PassedFiles::passed(fds)),
            Err(error) => Answer::Refused(format!("not a question: {error}")).into(),
        },
        ReceivedLine::TooMuch => Answer::Refused(format!("a question has at most {QUESTION_BYTES_MAX} bytes")).into(),
        ReceivedLine::Nothing => return Ok(()),
    };
    stream.set_write_timeout(Some(TALK_TIME_MAX))?;
    let mut line = BufWriter::new(stream);
    serde_json::to_writer(&mut line, &answer)?;
    line.write_all(b"\n")?;
    line.flush()
}

/// Whether the client has closed the connection. One that has only closed its sending direction still waits.
fn has_hung_up(stream: &UnixStream) -> io::Result<bool> {
    let mut interests = [PollInterest::end(stream.as_fd())];
    wait(&mut interests, Some(Duration::ZERO))?;
    Ok(interests[0].readable)
}

/// What was received before the line ended, or the time or size limit was reached.
enum ReceivedLine {
    Line(Vec<u8>),
    TooMuch,
    Nothing,
}

fn read_question(stream: &UnixStream, fds: &mut Vec<OwnedFd>) -> io::Result<ReceivedLine> {
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
            return Ok(ReceivedLine::TooMuch);
        }
        match (end, count) {
            (None, 0) if line.is_empty() => return Ok(ReceivedLine::Nothing),
            (None, 0) | (Some(_), _) => return Ok(ReceivedLine::Line(line)),
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
            Some((control_socket.pid, ask_at(&control_socket, question)?.unwrap_or_else(MissingAnswer::answer)))
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
    Ok(ended.map_or(Answer::Unknown, MissingAnswer::answer))
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
struct MissingAnswer {
    pid: u32,
    source: io::Error,
}

impl MissingAnswer {
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
fn ask_at(control_socket: &ControlAddress, question: &Question) -> Option<Result<Answer, MissingAnswer>> {
    match ask_with(control_socket, question, &[]) {
        Ok(answer) => Some(Ok(answer)),
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            let _ = control_socket.folder.remove(&socket_of(control_socket.pid));
            None
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(source) => Some(Err(MissingAnswer { pid: control_socket.pid, source })),
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
        let json = r#"{"ask":"sleep","held":[0,8]}"#;
        let question: Question = serde_json::from_str(json).unwrap();
        assert_eq!(text(question), json, "and are understood");
        for json in [
            r#"{"ask":"share","what":"disk:/a.img,ro","name":"backup","keep":true}"#,
            r#"{"ask":"share","what":"zero"}"#,
            r#"{"ask":"unshare","device":"disk"}"#,
        ] {
            let question: Question = serde_json::from_str(json).unwrap();
            assert_eq!(text(question), json, "and are understood");
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
        let answer = move |_, _: &PassedFiles| {
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
        let answer = move |question, _: &PassedFiles| {
            heard.send(question).unwrap();
            Answer::Ok(Value::Null)
        };
        control_socket.open(listener, answer).unwrap();
        let mut received = String::new();
        patient.read_to_string(&mut received).unwrap();
        assert_eq!(received, "{\"ok\":null}\n", "one who has said his last is answered");
        let Question::Type { text, .. } = typed.recv().unwrap() else { panic!("another question") };
        assert_eq!((text.as_str(), typed.try_recv().is_err()), ("now", true));
    }
}
