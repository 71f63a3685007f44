//! The monitor of a QEMU (QMP): a line of JSON asks, a line answers, and events come in between (docs/interop/qmp-spec
//! of QEMU). What the monitor says is bounded in length and in time: a program that is no QEMU may listen there.

use std::fmt;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use farbus_io::sys::peer::Credentials;
use serde_json::{Value, json};

/// The longest line of a monitor. QEMU's longest answers here are a few KiB.
const LINE_BYTES_MAX: usize = 1 << 20;
/// How long QEMU may take to answer.
pub const ANSWER_TIME_MAX: Duration = Duration::from_secs(10);

/// Why a monitor did not do what was asked.
#[derive(Debug)]
pub enum MonitorError {
    /// Nothing listens there, or it may not be opened.
    Unreachable(io::Error),
    /// What listens there does not speak QMP.
    NotQmp(String),
    /// It did not answer this command in time.
    Silent(&'static str),
    /// It closed the connection at this command: the QEMU has ended.
    Closed(&'static str),
    /// It refused this command, for this reason.
    Refused(&'static str, String),
}

impl fmt::Display for MonitorError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreachable(error) => write!(f, "cannot connect to it: {error}"),
            Self::NotQmp(said) => write!(
                f,
                "what listens there does not speak QMP, but: {said}\n  start QEMU with -qmp unix:PATH,server=on,wait=off"
            ),
            Self::Silent(command) => write!(
                f,
                "QEMU did not answer '{command}' within {} s: is another program connected to this monitor?",
                ANSWER_TIME_MAX.as_secs()
            ),
            Self::Closed(command) => write!(f, "QEMU closed its monitor at '{command}': has it ended?"),
            Self::Refused(command, why) => write!(f, "QEMU refused '{command}': {why}"),
        }
    }
}

impl std::error::Error for MonitorError {}

/// A connection to a monitor.
#[derive(Debug)]
pub struct Monitor {
    stream: UnixStream,
    /// What was received and is no whole line yet.
    received: Vec<u8>,
    /// The process that listens there.
    process: Option<u32>,
    answer_time_max: Duration,
}

impl Monitor {
    /// Connects to the monitor's Unix socket and begins to speak QMP. Each answer may take `answer_time_max`.
    ///
    /// # Errors
    /// [`MonitorError`].
    pub fn connect(at: &Path, answer_time_max: Duration) -> Result<Self, MonitorError> {
        let stream = UnixStream::connect(at).map_err(MonitorError::Unreachable)?;
        let process = Credentials::of(&stream).ok().and_then(|who| who.process());
        stream.set_write_timeout(Some(answer_time_max)).map_err(MonitorError::Unreachable)?;
        let mut monitor = Self { stream, received: Vec::new(), process, answer_time_max };
        let greeting = monitor.line("its greeting", Instant::now() + answer_time_max)?;
        if greeting.get("QMP").is_none() {
            return Err(MonitorError::NotQmp(short(&greeting.to_string())));
        }
        monitor.execute("qmp_capabilities", json!({}))?;
        Ok(monitor)
    }

    /// The process that listens at the monitor's socket: QEMU itself, unless another program passed it the socket.
    pub fn process(&self) -> Option<u32> {
        self.process
    }

    /// Executes a command and returns its answer. Events that come before it are dropped.
    ///
    /// # Errors
    /// [`MonitorError`].
    pub fn execute(&mut self, command: &'static str, arguments: Value) -> Result<Value, MonitorError> {
        let mut line = json!({ "execute": command, "arguments": arguments }).to_string();
        line.push('\n');
        self.stream.write_all(line.as_bytes()).map_err(|error| lost(command, &error))?;
        let until = Instant::now() + self.answer_time_max;
        loop {
            let answer = self.line(command, until)?;
            if let Some(error) = answer.get("error") {
                let why = error["desc"].as_str().map_or_else(|| error.to_string(), str::to_owned);
                return Err(MonitorError::Refused(command, short(&why)));
            }
            if let Some(said) = answer.get("return") {
                return Ok(said.clone());
            }
        }
    }

    /// Waits for the next event of any kind, `time_max` at most. Returns whether one came.
    ///
    /// # Errors
    /// [`MonitorError`]: the QEMU has ended.
    pub fn wait_for_event(&mut self, time_max: Duration) -> Result<bool, MonitorError> {
        match self.line("an event", Instant::now() + time_max) {
            Ok(_) => Ok(true),
            Err(MonitorError::Silent(_)) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Waits until the QEMU has closed the connection, `time_max` at most. Returns whether it has.
    pub fn wait_for_end(&mut self, time_max: Duration) -> bool {
        let until = Instant::now() + time_max;
        loop {
            match self.line("its end", until) {
                Ok(_) => {}
                Err(MonitorError::Silent(_)) => return false,
                Err(_) => return true,
            }
        }
    }

    fn line(&mut self, command: &'static str, until: Instant) -> Result<Value, MonitorError> {
        let mut looked_at = 0;
        loop {
            let found = self.received[looked_at..].iter().position(|&byte| byte == b'\n');
            if let Some(end) = found.map(|at| looked_at + at) {
                let line: Vec<u8> = self.received.drain(..=end).collect();
                let said = String::from_utf8_lossy(&line);
                return serde_json::from_str(said.trim()).map_err(|_| MonitorError::NotQmp(short(&said)));
            }
            if self.received.len() > LINE_BYTES_MAX {
                return Err(MonitorError::NotQmp(short(&String::from_utf8_lossy(&self.received))));
            }
            looked_at = self.received.len();
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(MonitorError::Silent(command));
            }
            self.stream.set_read_timeout(Some(left)).map_err(MonitorError::Unreachable)?;
            let mut space = [0; 16 << 10];
            match self.stream.read(&mut space) {
                Ok(0) => return Err(MonitorError::Closed(command)),
                Ok(count) => self.received.extend_from_slice(&space[..count]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(lost(command, &error)),
            }
        }
    }
}

fn lost(command: &'static str, error: &io::Error) -> MonitorError {
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => MonitorError::Silent(command),
        _ => MonitorError::Closed(command),
    }
}

/// The beginning of what was said, without control characters.
fn short(said: &str) -> String {
    said.trim().chars().filter(|character| !character.is_control()).take(200).collect()
}
