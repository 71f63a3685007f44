//! How the `farbus` command finds what runs: every share and attach answers on a socket in the
//! user's runtime folder. One line of JSON asks, one line answers.

use std::fmt;
use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A question is a short line; nobody sends more.
const QUESTION_BYTES_MAX: u64 = 1 << 20;
/// How long a running process may take to answer.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(10);

/// What may be asked of a running share or attach.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "lowercase")]
pub enum Question {
    /// What are you and how do you do?
    Status,
    /// Attach: let go of the device and end. Share: ignored.
    Detach {
        /// The device by name, bus id or target; `None` means whatever it is.
        device: Option<String>,
    },
    /// Keyboard: type this.
    Type {
        /// Name or bus id.
        device: String,
        /// The text.
        text: String,
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
}

/// A socket on which this process answers; removed when dropped.
#[derive(Debug)]
pub struct Door {
    path: PathBuf,
}

/// Why there is no door.
#[derive(Debug)]
pub struct DoorError {
    path: PathBuf,
    source: io::Error,
}

impl fmt::Display for DoorError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "cannot answer on {}: {}\n  set XDG_RUNTIME_DIR to a folder of yours",
            self.path.display(),
            self.source
        )
    }
}

impl std::error::Error for DoorError {}

impl Door {
    /// A door that is there and not open yet: whoever knocks waits.
    ///
    /// # Errors
    /// [`DoorError`].
    pub fn hang() -> Result<(Self, UnixListener), DoorError> {
        let path = folder().join(format!("{}.sock", std::process::id()));
        let listener = bind(&path).map_err(|source| DoorError { path: path.clone(), source })?;
        Ok((Self { path }, listener))
    }

    /// Answers from now on, on a thread of its own, one question at a time.
    ///
    /// # Errors
    /// [`DoorError`].
    pub fn open(
        &self,
        listener: UnixListener,
        answer: impl Fn(Question) -> Answer + Send + 'static,
    ) -> Result<(), DoorError> {
        let spawned = thread::Builder::new().name("control".into()).spawn(move || serve(&listener, &answer)).map(drop);
        spawned.map_err(|source| DoorError { path: self.path.clone(), source })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

fn bind(path: &Path) -> io::Result<UnixListener> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(folder())?;
    // A process of this number that died without cleaning up.
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(path)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o600))?;
    Ok(listener)
}

fn serve(listener: &UnixListener, answer: &dyn Fn(Question) -> Answer) {
    for stream in listener.incoming().flatten() {
        // Whoever does not finish a question loses its turn, not ours.
        let _ = serve_one(stream, answer);
    }
}

fn serve_one(mut stream: UnixStream, answer: &dyn Fn(Question) -> Answer) -> io::Result<()> {
    stream.set_read_timeout(Some(Duration::from_secs(1)))?;
    stream.set_write_timeout(Some(Duration::from_secs(1)))?;
    let mut line = String::new();
    BufReader::new(&stream).take(QUESTION_BYTES_MAX).read_line(&mut line)?;
    let answer = match serde_json::from_str(&line) {
        Ok(question) => answer(question),
        Err(error) => Answer::Refused(format!("not a question: {error}")),
    };
    let mut line = serde_json::to_string(&answer).map_err(io::Error::other)?;
    line.push('\n');
    stream.write_all(line.as_bytes())
}

/// The folder of the sockets: the user's runtime folder, or root's, or one in the temporary folder.
pub fn folder() -> PathBuf {
    if let Some(runtime) = std::env::var_os("XDG_RUNTIME_DIR").filter(|folder| !folder.is_empty()) {
        return PathBuf::from(runtime).join("farbus");
    }
    let user = rustix::process::getuid();
    if user.is_root() {
        return PathBuf::from("/run/farbus");
    }
    std::env::temp_dir().join(format!("farbus-{}", user.as_raw()))
}

/// Asks every running process; the answers with their process ids, in that order. A socket whose
/// process is gone is removed.
///
/// # Errors
/// If the folder cannot be read.
pub fn ask_all(question: &Question) -> io::Result<Vec<(u32, Answer)>> {
    let entries = match fs::read_dir(folder()) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut answers = Vec::new();
    for entry in entries.flatten() {
        let path = entry.path();
        let Some(pid) = path.file_stem().and_then(|stem| stem.to_str()?.parse::<u32>().ok()) else { continue };
        match ask(&path, question) {
            Ok(answer) => answers.push((pid, answer)),
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                let _ = fs::remove_file(&path);
            }
            Err(error) => answers.push((pid, Answer::Refused(format!("process {pid} does not answer: {error}")))),
        }
    }
    answers.sort_by_key(|(pid, _)| *pid);
    Ok(answers)
}

fn ask(path: &Path, question: &Question) -> io::Result<Answer> {
    let mut stream = UnixStream::connect(path)?;
    stream.set_read_timeout(Some(ANSWER_TIME_MAX))?;
    let mut line = serde_json::to_string(question).map_err(io::Error::other)?;
    line.push('\n');
    stream.write_all(line.as_bytes())?;
    let mut answer = String::new();
    BufReader::new(stream).read_line(&mut answer)?;
    serde_json::from_str(&answer).map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_are_stable_json() {
        let text = |question: Question| serde_json::to_string(&question).unwrap();
        assert_eq!(text(Question::Status), r#"{"ask":"status"}"#);
        let question = Question::Type { device: "keyboard".into(), text: "hi".into() };
        assert_eq!(text(question), r#"{"ask":"type","device":"keyboard","text":"hi"}"#);
    }
}
