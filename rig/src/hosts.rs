//! Several hosts on this machine: each a farbus with a key, a state and a runtime folder of its own, paired as their
//! users would.

use crate::farbus::{AttachProcess, end, follow};
use crate::{Result, RigError, tool};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// How long farbus may take to print an expected line, on a machine that is busy compiling.
const SAID_WITHIN: Duration = Duration::from_secs(20);

/// One of the hosts.
pub struct RigHost {
    program: PathBuf,
    name: &'static str,
    folder: PathBuf,
    logs: PathBuf,
}

/// A host's `farbus share`, for paired hosts only. Dropping it kills it.
pub struct HostShare {
    child: Child,
    /// Its address, as `--address` takes it.
    pub address: String,
}

impl RigHost {
    /// Makes a host that keeps everything in `folder`, with logs whose paths begin with `logs`.
    pub fn new(program: PathBuf, name: &'static str, folder: &Path, logs: &Path) -> Result<Self> {
        let folder = folder.join(name);
        std::fs::create_dir_all(folder.join("run")).map_err(RigError::io(format!("create {}", folder.display())))?;
        Ok(Self { program, name, folder, logs: logs.to_owned() })
    }

    /// The name by which the others know it.
    pub fn name(&self) -> &'static str {
        self.name
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command.args(arguments).stdin(Stdio::null());
        command.env("XDG_RUNTIME_DIR", self.folder.join("run")).env("FARBUS_STATE", self.folder.join("state"));
        command.env("FARBUS_NAME", self.name).env("FARBUS_LOG", "info");
        command
    }

    /// Runs `farbus` there, which has to succeed; returns its output.
    pub fn run(&self, arguments: &[&str]) -> Result<String> {
        tool::text(&mut self.command(arguments))
    }

    /// The process with this role and device in `farbus status`.
    pub fn status(&self, role: &str, device: &str) -> Result<Value> {
        let text = self.run(&["status", "--json"])?;
        let answer: Value =
            serde_json::from_str(&text).map_err(|error| self.complaint("status", &error.to_string()))?;
        let processes = answer.as_array().into_iter().flatten().filter(|process| process["role"] == role);
        let mut devices = processes.flat_map(|process| process["devices"].as_array().into_iter().flatten());
        devices.find(|found| found["name"] == device).cloned().ok_or_else(|| self.complaint("status", &text))
    }

    fn complaint(&self, wanted: &str, printed: &str) -> RigError {
        RigError::Farbus { wanted: format!("{}: {wanted}", self.name), message: printed.to_owned() }
    }

    fn start(&self, arguments: &[&str], log: &str) -> Result<(Child, Receiver<String>)> {
        let mut command = self.command(arguments);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(RigError::io(format!("start {}", self.program.display())))?;
        let log = PathBuf::from(format!("{}.{}.{log}.log", self.logs.display(), self.name));
        let lines = follow(&mut child, &log).inspect_err(|_| end(&mut child))?;
        Ok((child, lines))
    }

    fn await_line(&self, child: &mut Child, lines: &Receiver<String>, part: &str) -> Result<String> {
        let (start, mut messages) = (Instant::now(), Vec::new());
        while let Ok(line) = lines.recv_timeout(SAID_WITHIN.saturating_sub(start.elapsed())) {
            if line.contains(part) {
                return Ok(line);
            }
            messages.push(line);
        }
        end(child);
        Err(self.complaint(part, &messages.join("\n")))
    }

    /// Pairs another host with this one; the other may use everything here.
    pub fn pair(&self, other: &RigHost) -> Result<()> {
        let (mut child, lines) = self.start(&["pair", "--listen", "127.0.0.1:0", "--json"], "pair")?;
        let line = self.await_line(&mut child, &lines, "\"code\"")?;
        let answer: Value = serde_json::from_str(&line).map_err(|error| self.complaint("pair", &error.to_string()))?;
        let text = |key: &str| answer[key].as_str().unwrap_or_default().to_owned();
        let joined = other.run(&["pair", &text("address"), &text("code")]);
        let ended = child.wait().map_err(RigError::io("wait for farbus pair"))?;
        joined?;
        if !ended.success() {
            return Err(self.complaint("pair", &ended.to_string()));
        }
        self.run(&["allow", other.name, "all"]).map(drop)
    }

    /// `farbus share WHAT…` for paired hosts, on a free port of the loopback.
    pub fn share(&self, what: &[String]) -> Result<HostShare> {
        let mut arguments = vec!["share"];
        arguments.extend(what.iter().map(String::as_str));
        arguments.extend(["--listen", "none", "--secure", "127.0.0.1:0"]);
        let (mut child, lines) = self.start(&arguments, "share")?;
        let line = self.await_line(&mut child, &lines, "for paired hosts")?;
        let address = line.split_whitespace().nth(2).unwrap_or_default().to_owned();
        Ok(HostShare { child, address })
    }

    /// Runs `farbus attach TARGET …`, and returns once it prints where the device is.
    pub fn attach(&self, arguments: &[&str], socket: &Path, log: &str) -> Result<AttachProcess> {
        self.attach_heard(arguments, socket, log).map(|(attached, _)| attached)
    }

    /// Like [`RigHost::attach`]; also returns its further output.
    pub fn attach_heard(&self, arguments: &[&str], socket: &Path, log: &str) -> Result<(AttachProcess, ProcessLines)> {
        let socket = socket.to_string_lossy();
        let all = [&["attach"], arguments, &["--socket", &socket]].concat();
        let (mut child, lines) = self.start(&all, log)?;
        self.await_line(&mut child, &lines, &socket)?;
        Ok((AttachProcess::of(child), ProcessLines::of(lines)))
    }
}

/// A process's lines, with the time of each.
pub struct ProcessLines(Receiver<(Instant, String)>);

impl ProcessLines {
    fn of(lines: Receiver<String>) -> Self {
        let (sender, stamped) = channel();
        std::thread::spawn(move || lines.into_iter().all(|line| sender.send((Instant::now(), line)).is_ok()));
        Self(stamped)
    }

    /// The next line that contains this, and its time.
    pub fn await_line(&self, part: &str) -> Result<(Instant, String)> {
        let start = Instant::now();
        while let Ok(printed) = self.0.recv_timeout(SAID_WITHIN.saturating_sub(start.elapsed())) {
            if printed.1.contains(part) {
                return Ok(printed);
            }
        }
        Err(RigError::Expectation(format!("farbus attach did not say \"{part}\" within {SAID_WITHIN:?}")))
    }
}

impl HostShare {
    /// Whether it still runs.
    pub fn still_runs(&mut self) -> Result<()> {
        match self.child.try_wait().map_err(RigError::io("look after farbus share"))? {
            None => Ok(()),
            Some(status) => Err(RigError::Farbus {
                wanted: "share until told otherwise".into(),
                message: format!("it ended ({status})"),
            }),
        }
    }
}

impl Drop for HostShare {
    fn drop(&mut self) {
        end(&mut self.child);
    }
}
