//! QEMU's monitor for programs (QMP, docs/interop/qmp-spec in QEMU): a line of JSON asks, a line answers, and lines in
//! between tell what happened.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use farbus_io_net::link::dial_local;
use farbus_io_net::sys::peer::PeerCredentials;
use serde_json::{Value, json};

/// The longest line that is taken from a monitor, bytes: the list of all block nodes of a large machine is shorter.
const LINE_BYTES_MAX: usize = 4 << 20;
/// The longest text of a monitor that is passed on to a person, characters.
const TEXT_CHARS_MAX: usize = 300;

/// A connection to the monitor of a QEMU of this machine.
#[derive(Debug)]
pub struct QmpMonitor {
    stream: UnixStream,
    received: Vec<u8>,
    last_id: u64,
    answer_within: Duration,
    process: Option<u32>,
}

/// Why a monitor did not do what it was asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MonitorError {
    /// Nobody listens at its socket, or this user may not connect.
    Unreachable(String),
    /// It said nothing within the limit.
    Silent(&'static str, Duration),
    /// It ended the connection.
    Closed(&'static str),
    /// What it says is not QMP.
    NotQmp(&'static str, String),
    /// It answered with an error.
    Refused(&'static str, String),
}

/// What is asked before there is a command.
const GREETING: &str = "its greeting";

impl fmt::Display for MonitorError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreachable(why) => write!(f, "cannot reach QEMU's monitor: {why}"),
            Self::Silent(GREETING, limit) => write!(
                f,
                "QEMU's monitor sent no greeting within {} s: it serves one program at a time, and another has it",
                limit.as_secs_f64()
            ),
            Self::Silent(command, limit) => {
                write!(f, "QEMU's monitor did not answer '{command}' within {} s", limit.as_secs_f64())
            }
            Self::Closed(command) => write!(f, "QEMU's monitor ended the connection at '{command}'"),
            Self::NotQmp(command, line) => write!(
                f,
                "what is at the monitor's socket does not speak QMP: at '{command}' it said: {line}\n  \
                 QEMU's option is -qmp unix:PATH,server=on,wait=off"
            ),
            Self::Refused(command, why) => write!(f, "QEMU refused '{command}': {why}"),
        }
    }
}

impl std::error::Error for MonitorError {}

/// A text of QEMU for a person: a terminal must not obey it, and it ends.
pub fn plain(text: &str) -> String {
    text.chars().take(TEXT_CHARS_MAX).map(|c| if c.is_control() { '?' } else { c }).collect()
}

impl QmpMonitor {
    /// Connects to the monitor at `path`, which has to answer each command within `answer_within`.
    ///
    /// # Errors
    /// [`MonitorError`].
    pub fn connect(path: &Path, answer_within: Duration) -> Result<Self, MonitorError> {
        let unreachable = |error: &dyn fmt::Display| MonitorError::Unreachable(error.to_string());
        let stream = UnixStream::from(dial_local(path, answer_within).map_err(|error| unreachable(&error))?);
        stream.set_write_timeout(Some(answer_within)).map_err(|error| unreachable(&error))?;
        let process = PeerCredentials::of(&stream).ok().and_then(|who| who.process());
        let mut monitor = Self { stream, received: Vec::new(), last_id: 0, answer_within, process };
        let greeting = monitor.next(GREETING, Instant::now() + answer_within)?;
        let Some(greeting) = greeting else { return Err(MonitorError::Silent(GREETING, answer_within)) };
        if !greeting["QMP"].is_object() {
            return Err(MonitorError::NotQmp(GREETING, plain(&greeting.to_string())));
        }
        monitor.execute("qmp_capabilities", json!({}))?;
        Ok(monitor)
    }

    /// The process at the other end, if it is visible from here.
    pub fn process(&self) -> Option<u32> {
        self.process
    }

    /// Has a command carried out; returns its answer.
    ///
    /// # Errors
    /// [`MonitorError`]. After anything but [`MonitorError::Refused`] the connection is of no use.
    pub fn execute(&mut self, command: &'static str, arguments: Value) -> Result<Value, MonitorError> {
        self.last_id += 1;
        let line = format!("{}\n", json!({ "execute": command, "arguments": arguments, "id": self.last_id }));
        self.stream.write_all(line.as_bytes()).map_err(|error| self.lost(command, &error))?;
        let until = Instant::now() + self.answer_within;
        loop {
            let answer = self.next(command, until)?.ok_or(MonitorError::Silent(command, self.answer_within))?;
            if answer["event"].is_string() {
                continue;
            }
            let strange = || MonitorError::NotQmp(command, plain(&answer.to_string()));
            if answer["id"] != self.last_id {
                return Err(strange());
            }
            return match (answer.get("return"), &answer["error"]["desc"]) {
                (Some(value), _) => Ok(value.clone()),
                (None, Value::String(why)) => Err(MonitorError::Refused(command, plain(why))),
                _ => Err(strange()),
            };
        }
    }

    /// Waits until the monitor tells of something that happened, for this time at most.
    ///
    /// # Errors
    /// [`MonitorError`]: it ended the connection, or says what is not QMP.
    pub fn await_event(&mut self, within: Duration) -> Result<(), MonitorError> {
        self.next("an event", Instant::now() + within).map(drop)
    }

    /// Ends the connection: QEMU serves one at a time.
    pub fn hang_up(&self) {
        // It may have ended already.
        let _ = self.stream.shutdown(Shutdown::Both);
    }

    /// Waits until the other end of the connection is closed; returns whether that happened within this time.
    pub fn await_end(&mut self, within: Duration) -> bool {
        let until = Instant::now() + within;
        loop {
            match self.next("quit", until) {
                Ok(Some(_)) => {}
                Ok(None) => return false,
                Err(_) => return true,
            }
        }
    }

    fn lost(&self, command: &'static str, error: &io::Error) -> MonitorError {
        match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => MonitorError::Silent(command, self.answer_within),
            _ => MonitorError::Closed(command),
        }
    }

    /// The next line; `None` if there is none by then.
    fn next(&mut self, command: &'static str, until: Instant) -> Result<Option<Value>, MonitorError> {
        let mut searched = 0;
        loop {
            if let Some(at) = self.received[searched..].iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.received.drain(..=searched + at).collect();
                let strange = || MonitorError::NotQmp(command, plain(&String::from_utf8_lossy(line.trim_ascii_end())));
                let value: Value = serde_json::from_slice(&line).map_err(|_| strange())?;
                return if value.is_object() { Ok(Some(value)) } else { Err(strange()) };
            }
            searched = self.received.len();
            if searched > LINE_BYTES_MAX {
                return Err(MonitorError::NotQmp(command, format!("a line of more than {LINE_BYTES_MAX} bytes")));
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            let mut space = [0; 16 << 10];
            let received = self.stream.set_read_timeout(Some(left)).and_then(|()| self.stream.read(&mut space));
            match received {
                Ok(0) => return Err(self.ended(command)),
                Ok(count) => self.received.extend(&space[..count]),
                Err(error) => match self.lost(command, &error) {
                    _ if error.kind() == io::ErrorKind::Interrupted => {}
                    MonitorError::Silent(..) => return Ok(None),
                    lost => return Err(lost),
                },
            }
        }
    }

    /// The connection has ended; what is left of it is half a line.
    fn ended(&self, command: &'static str) -> MonitorError {
        match self.received.is_empty() {
            true => MonitorError::Closed(command),
            false => MonitorError::NotQmp(command, plain(&String::from_utf8_lossy(&self.received))),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;
    use std::thread;

    use super::*;

    const LIMIT: Duration = Duration::from_millis(200);

    /// What is heard of a monitor that says `said` when a program connects, and then ends or goes on in silence.
    fn heard(bytes: &[u8], ends: bool) -> Result<QmpMonitor, MonitorError> {
        let folder = folder_for(bytes, ends);
        let path = folder.join("m.sock");
        let listener = UnixListener::bind(&path).unwrap();
        let bytes = bytes.to_vec();
        let serving = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            // The other end may have heard enough before the end of it.
            let _ = stream.write_all(&bytes);
            (!ends).then_some(stream)
        });
        let monitor = QmpMonitor::connect(&path, LIMIT);
        drop(serving.join().unwrap());
        std::fs::remove_dir_all(folder).unwrap();
        monitor
    }

    fn folder_for(bytes: &[u8], ends: bool) -> std::path::PathBuf {
        let name = format!("farbus-monitor-{}-{}-{ends}", std::process::id(), bytes.len());
        let folder = std::env::temp_dir().join(name);
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir(&folder).unwrap();
        folder
    }

    #[test]
    fn socket_that_does_not_speak_qmp_is_refused_with_what_it_says() {
        let error = heard(b"QEMU 10.0.2 monitor\x1b[2J - type 'help'\r\n(qemu) ", false).unwrap_err();
        let message = error.to_string();
        assert!(matches!(error, MonitorError::NotQmp(GREETING, _)), "{error:?}");
        assert!(message.contains("QEMU 10.0.2 monitor?[2J") && message.contains("-qmp unix:"), "{message}");
        assert!(matches!(heard(b"[1]\n", false), Err(MonitorError::NotQmp(GREETING, _))));
        assert!(matches!(heard(b"{\"QMP\": 3}\n", false), Err(MonitorError::NotQmp(GREETING, _))));
        assert!(matches!(heard(b"{\"QMP\"", true), Err(MonitorError::NotQmp(GREETING, _))));
        assert_eq!(heard(b"", false).unwrap_err(), MonitorError::Silent(GREETING, LIMIT));
        assert_eq!(heard(b"", true).unwrap_err(), MonitorError::Closed(GREETING));
        let long = vec![b'x'; LINE_BYTES_MAX + (64 << 10)];
        assert!(heard(&long, false).unwrap_err().to_string().contains("a line of more than 4194304 bytes"));
        let deep = [&vec![b'['; 100_000][..], b"\n"].concat();
        assert!(matches!(heard(&deep, false), Err(MonitorError::NotQmp(GREETING, _))));
        assert!(matches!(
            QmpMonitor::connect(Path::new("/nonexistent/monitor"), LIMIT),
            Err(MonitorError::Unreachable(_))
        ));
    }

    #[test]
    fn answer_is_told_from_events_and_from_answers_to_other_questions() {
        let hello = r#"{"QMP": {"version": {}, "capabilities": []}}"#;
        let event = r#"{"event": "RESUME", "timestamp": {}}"#;
        let outcome_of = |answer: &str| heard(format!("{hello}\n{event}\r\n{answer}\n").as_bytes(), false).map(drop);
        assert_eq!(outcome_of(r#"{"return": {}, "id": 1}"#), Ok(()));
        let refused = outcome_of(r#"{"error": {"class": "GenericError", "desc": "no\nthing"}, "id": 1}"#);
        assert_eq!(refused, Err(MonitorError::Refused("qmp_capabilities", "no?thing".into())));
        for strange in [r#"{"return": {}}"#, r#"{"return": {}, "id": 7}"#, r#"{"error": 1, "id": 1}"#, "{}"] {
            assert!(matches!(outcome_of(strange), Err(MonitorError::NotQmp("qmp_capabilities", _))), "{strange}");
        }
    }
}
