//! Runs farbus on the host as a user does: started by its command line, watched, and killed.

use crate::{Result, RigError, tool};
use rustix::process::{Pid, Signal, kill_process};
use std::fs::File;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// How long `farbus share` may take to say where it listens, on a machine that is busy compiling.
const READY_WITHIN: Duration = Duration::from_secs(10);

/// The program and the folder that its instances meet in: a host.
pub struct FarbusProgram {
    program: PathBuf,
    runtime: PathBuf,
    log: PathBuf,
}

/// A running `farbus share`. Dropping it kills it.
pub struct ShareProcess {
    child: Child,
    farbus: FarbusProgram,
    port: u16,
    announced: Vec<String>,
}

/// A running `farbus attach --via fuse` or `--via redir`. Dropping it ends it.
pub struct AttachProcess {
    child: Child,
}

impl FarbusProgram {
    /// Prepares a runtime folder of its own, so that cases do not meet each other or the user's farbus.
    pub fn new(program: PathBuf, runtime: &Path, logs: &Path, name: &str) -> Result<Self> {
        std::fs::create_dir_all(runtime).map_err(RigError::io(format!("create {}", runtime.display())))?;
        Ok(Self { program, runtime: runtime.into(), log: logs.join(format!("{name}.share.log")) })
    }

    /// Starts `farbus share WHAT...` on a free port of the loopback and waits until it listens.
    pub fn share(self, what: &[String]) -> Result<ShareProcess> {
        let mut child = self
            .command()
            .arg("share")
            .args(what)
            .args(["--listen", "127.0.0.1:0"])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(RigError::io(format!("start {}", self.program.display())))?;
        let lines = match follow(&mut child, &self.log) {
            Ok(lines) => lines,
            Err(error) => {
                end(&mut child);
                return Err(error);
            }
        };
        match announcement(&lines) {
            Ok((port, announced)) => Ok(ShareProcess { child, farbus: self, port, announced }),
            Err(message) => {
                end(&mut child);
                Err(RigError::Farbus { wanted: format!("share {}", what.join(" ")), message })
            }
        }
    }

    /// `farbus list ADDRESS --json`.
    pub fn list(&self, address: &str) -> Result<serde_json::Value> {
        let text = tool::text(self.command().args(["list", address, "--json"]))?;
        serde_json::from_str(&text).map_err(|error| RigError::Farbus {
            wanted: "list --json".into(),
            message: format!("what it printed is not JSON ({error}): {text}"),
        })
    }

    /// Runs a `farbus attach TARGET --via fuse` that has to fail; returns its status and output.
    pub fn attach_refused(&self, target: &str) -> Result<(ExitStatus, String)> {
        let mut attach = self.command();
        attach.args(["attach", target, "--via", "fuse"]).stdin(Stdio::null());
        let output = attach.output().map_err(RigError::io("start farbus attach"))?;
        Ok((output.status, String::from_utf8_lossy(&output.stderr).into_owned()))
    }

    /// Runs `farbus attach TARGET --via fuse --at FOLDER` until the disk's file is there.
    pub fn attach_file(&self, target: &str, folder: &Path) -> Result<AttachProcess> {
        let mut attach = self.command();
        attach.args(["attach", target, "--via", "fuse", "--at"]).arg(folder);
        attach.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = attach.spawn().map_err(RigError::io("start farbus attach"))?;
        let mut attached = AttachProcess { child };
        let start = Instant::now();
        let is_there = || std::fs::metadata(folder.join("disk.img")).is_ok_and(|file| file.len() > 0);
        while !is_there() {
            let ended = attached.child.try_wait().map_err(RigError::io("look after farbus attach"))?;
            if ended.is_some() || start.elapsed() > READY_WITHIN {
                return Err(RigError::Farbus {
                    wanted: format!("attach {target} --via fuse"),
                    message: format!("no file appeared ({ended:?})"),
                });
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(attached)
    }

    /// Runs `farbus attach TARGET --via redir --socket SOCKET`, which waits there for a machine.
    pub fn lend(&self, target: &str, socket: &Path, log: &Path) -> Result<AttachProcess> {
        let mut attach = self.command();
        attach.args(["attach", target, "--via", "redir", "--socket"]).arg(socket);
        attach.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = attach.spawn().map_err(RigError::io("start farbus attach"))?;
        let mut attached = AttachProcess { child };
        let lines = follow(&mut attached.child, log)?;
        let mut messages = Vec::new();
        let start = Instant::now();
        while let Ok(line) = lines.recv_timeout(READY_WITHIN.saturating_sub(start.elapsed())) {
            if line.contains("attached at") {
                return Ok(attached);
            }
            messages.push(line);
        }
        Err(RigError::Farbus { wanted: format!("attach {target} --via redir"), message: messages.join("\n") })
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.env("XDG_RUNTIME_DIR", &self.runtime).env("FARBUS_STATE", self.runtime.join("state"));
        command
    }
}

impl ShareProcess {
    /// The port it listens on.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// What it printed up to being ready.
    pub fn announced(&self) -> &[String] {
        &self.announced
    }

    /// `farbus list --json` of this share.
    pub fn list(&self) -> Result<serde_json::Value> {
        self.farbus.list(&format!("127.0.0.1:{}", self.port))
    }

    /// `farbus attach --via redir` of one of its devices: see [`FarbusProgram::lend`].
    pub fn lend(&self, device: &str, socket: &Path, log: &Path) -> Result<AttachProcess> {
        self.farbus.lend(&format!("127.0.0.1:{}/{device}", self.port), socket, log)
    }

    /// `farbus hold` of a device that a machine uses.
    pub fn hold(&self, device: &str) -> Result<()> {
        tool::output(self.farbus.command().args(["hold", device])).map(drop)
    }

    /// `farbus type DEVICE TEXT`.
    pub fn type_text(&self, device: &str, text: &str) -> Result<()> {
        tool::output(self.farbus.command().args(["type", device, text])).map(drop)
    }

    /// A counter of a device, from `farbus status --json`.
    pub fn count(&self, device: &str, what: &str) -> Result<u64> {
        let text = tool::text(self.farbus.command().args(["status", "--json"]))?;
        count_in(&text, device, what).ok_or_else(|| RigError::Farbus {
            wanted: "status --json".into(),
            message: format!("{device} has no count of {what}: {text}"),
        })
    }

    /// Kills it: it ends without a detach.
    pub fn cut(&mut self) {
        end(&mut self.child);
    }

    /// Sends Ctrl-C; returns its status, or `None` if it did not end within the time.
    pub fn interrupt(&mut self, within: Duration) -> Result<Option<ExitStatus>> {
        self.signal(Signal::INT)?;
        let start = Instant::now();
        while start.elapsed() < within {
            if let Some(status) = self.child.try_wait().map_err(RigError::io("wait for farbus share"))? {
                return Ok(Some(status));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(None)
    }

    /// Stops the process: the link stays up and is silent.
    pub fn freeze(&self) -> Result<()> {
        self.signal(Signal::STOP)
    }

    /// Lets the process continue.
    pub fn thaw(&self) -> Result<()> {
        self.signal(Signal::CONT)
    }

    /// Checks that it still runs; a crashed server must not pass for a quiet one.
    pub fn still_runs(&mut self) -> Result<()> {
        match self.child.try_wait().map_err(RigError::io("look after farbus share"))? {
            None => Ok(()),
            Some(status) => Err(RigError::Farbus {
                wanted: "share until told otherwise".into(),
                message: format!(
                    "it ended ({status}); last lines:\n{}",
                    tool::tail(&std::fs::read_to_string(&self.farbus.log).unwrap_or_default(), 20)
                ),
            }),
        }
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, signal).map_err(|errno| RigError::io("signal farbus share")(errno.into()))
    }
}

impl AttachProcess {
    /// A process that was started by other means.
    pub(crate) fn of(child: Child) -> Self {
        Self { child }
    }

    /// Waits until it ends by itself; returns its status.
    pub fn end(mut self) -> Result<ExitStatus> {
        self.child.wait().map_err(RigError::io("wait for farbus attach"))
    }

    /// Sends Ctrl-C; it has to succeed.
    pub fn detach(mut self) -> Result<()> {
        kill_process(Pid::from_child(&self.child), Signal::INT)
            .map_err(|errno| RigError::io("signal farbus attach")(errno.into()))?;
        let status = self.child.wait().map_err(RigError::io("wait for farbus attach"))?;
        if status.success() {
            return Ok(());
        }
        Err(RigError::Farbus { wanted: "detach".into(), message: format!("it ended with {status}") })
    }
}

impl Drop for AttachProcess {
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            // Ends it by a signal first: a mount would outlive a kill.
            let _ = kill_process(Pid::from_child(&self.child), Signal::INT);
            std::thread::sleep(Duration::from_millis(500));
            end(&mut self.child);
        }
    }
}

impl Drop for ShareProcess {
    fn drop(&mut self) {
        end(&mut self.child);
    }
}

pub(crate) fn end(child: &mut Child) {
    // Both fail only when the child has ended and been waited for.
    let _ = child.kill();
    let _ = child.wait();
}

/// Collects both streams into the log and hands out the lines.
pub(crate) fn follow(child: &mut Child, log: &Path) -> Result<Receiver<String>> {
    let file = File::create(log).map_err(RigError::io(format!("create {}", log.display())))?;
    let (sender, lines) = channel();
    let stdout = child.stdout.take().expect("piped");
    let stderr = child.stderr.take().expect("piped");
    for stream in [Box::new(stdout) as Box<dyn std::io::Read + Send>, Box::new(stderr)] {
        let sender = sender.clone();
        let mut file = file.try_clone().map_err(RigError::io("share a log file"))?;
        std::thread::spawn(move || {
            for line in BufReader::new(stream).lines().map_while(std::io::Result::ok) {
                // The log is a convenience, and no receiver is left once the server is ready.
                let _ = file.write_all(format!("{line}\n").as_bytes());
                let _ = sender.send(line);
            }
        });
    }
    Ok(lines)
}

/// Reads until the line that says where it listens.
pub(crate) fn announcement(lines: &Receiver<String>) -> std::result::Result<(u16, Vec<String>), String> {
    let start = Instant::now();
    let mut announced = Vec::new();
    loop {
        let left = READY_WITHIN.saturating_sub(start.elapsed());
        match lines.recv_timeout(left) {
            Ok(line) => {
                let port = port_in(&line);
                announced.push(line);
                if let Some(port) = port {
                    return Ok((port, announced));
                }
            }
            Err(error) => {
                let what = match error {
                    RecvTimeoutError::Timeout => "it did not say where it listens in time",
                    RecvTimeoutError::Disconnected => "it ended before it listened",
                };
                return Err(format!("{what}; it printed: {}", announced.join("\n")));
            }
        }
    }
}

fn port_in(line: &str) -> Option<u16> {
    let (_, after) = line.split_once("listening on ")?;
    let address = after.split([' ', ',']).next()?;
    address.trim_end_matches('.').rsplit_once(':')?.1.parse().ok()
}

fn count_in(status: &str, device: &str, what: &str) -> Option<u64> {
    let status: serde_json::Value = serde_json::from_str(status).ok()?;
    let shared = status.as_array()?.iter().flat_map(|process| process["devices"].as_array()).flatten();
    shared.filter(|shared| shared["name"] == device).find_map(|shared| shared["counts"][what].as_u64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_port() {
        assert_eq!(port_in("listening on 127.0.0.1:3240"), Some(3240));
        assert_eq!(port_in("farbus: listening on [::1]:41234 (loopback only)"), Some(41234));
        assert_eq!(port_in("1-1 disk 64 MiB"), None);
    }
}
