//! A running guest: QEMU as a child process, its two serial lines, and its timeout.
//!
//! The first line is the kernel's console and only kept for analysis after a failure. The second carries the case's
//! output, one line at a time; lines that begin with `@rig ` are for the host: `up T`, `say WORDS`, `exit N`.

use crate::{Result, RigError, monitor, tool};
use std::fs::File;
use std::io::{BufRead as _, BufReader, Read, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// How often to ask a machine about the progress of its migration; the guest is stopped meanwhile.
const LOOK_AGAIN: Duration = Duration::from_millis(2);

/// The most bytes that a log keeps of one guest; a kernel in a printk loop must not fill the disk.
const LOG_BYTES_MAX: usize = 1 << 20;

/// How much of a log goes into an error.
const TAIL_LINES: usize = 80;

/// What the script's `serve` prints when a function has ended, before its status.
const ENDED: &str = "ended";

/// The description of a machine.
pub struct MachineSpec<'a> {
    /// The uncompressed kernel.
    pub kernel: &'a Path,
    /// The root file system, as a file.
    pub root: &'a Path,
    /// Timeout of the machine; then it is killed.
    pub patience: Duration,
    /// Where to keep its console and output, as `NAME.console.log` and `NAME.output.log`.
    pub logs: &'a Path,
    /// A name for its logs.
    pub name: &'a str,
    /// Record the network traffic to this file.
    pub capture: Option<PathBuf>,
    /// What its network card is plugged into.
    pub network: &'a MachineNetwork,
    /// Whether the kernel is fully preemptible.
    pub is_preemptible: bool,
    /// The clock of the machine.
    pub time: MachineClock,
    /// How many processors it has.
    pub processors: u8,
    /// Additional devices, as QEMU arguments.
    pub hardware: &'a [String],
    /// The path of the socket that controls the machine.
    pub monitor: &'a Path,
}

/// The clock of a machine.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub enum MachineClock {
    /// The host's clock.
    #[default]
    Host,
    /// Its own clock: two nanoseconds per instruction, and none while it is idle. Measurements in it do not depend on
    /// the host's load, as long as nothing in the machine waits for the host: no word of the case, no file behind a
    /// disk.
    Counted,
}

/// The time stamp counter then counts nanoseconds.
const COUNTED_KHZ: u32 = 1_000_000;

/// What a machine's network card is plugged into.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub enum MachineNetwork {
    /// QEMU's user networking: the host's loopback is there, and nothing comes in.
    #[default]
    Host,
    /// A cable to one other machine. This machine makes the socket that is the cable.
    CableFrom(PathBuf),
    /// The other end of a cable.
    CableTo(PathBuf),
}

impl MachineNetwork {
    /// The QEMU arguments. Two machines on a cable must not have the same address.
    fn arguments(&self) -> [String; 4] {
        let (netdev, last) = match self {
            Self::Host => ("user,id=net".to_owned(), 1),
            Self::CableFrom(path) => (cable("on", path), 1),
            Self::CableTo(path) => (cable("off", path), 2),
        };
        let card = format!("virtio-net-device,netdev=net,mac=52:54:00:12:34:{last:02}");
        ["-netdev".into(), netdev, "-device".into(), card]
    }
}

/// User networking on both sides would work as well; a cable avoids its two TCP relays.
fn cable(server: &str, path: &Path) -> String {
    format!("stream,id=net,server={server},addr.type=unix,addr.path={}", path.display())
}

/// A running machine. Dropping it cuts its power.
pub struct RunningMachine {
    child: Child,
    stdin: Option<ChildStdin>,
    lines: Receiver<String>,
    console: BoundedLog,
    output: BoundedLog,
    born: Instant,
    patience: Duration,
    booted_in: Option<f64>,
    heard: String,
    monitor: PathBuf,
}

/// The result of a script that ended with status zero.
#[derive(Debug)]
pub struct ScriptReport {
    /// All that it printed, without the markers.
    pub output: String,
    /// The guest's own clock when the script started, in seconds since boot.
    pub booted_in_s: f64,
}

impl RunningMachine {
    /// Starts a machine; its script runs as soon as the kernel is up.
    pub fn boot(spec: &MachineSpec) -> Result<Self> {
        let mut child = qemu(spec)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(RigError::io("start qemu-system-x86_64"))?;
        let console = BoundedLog::create(spec.logs.join(format!("{}.console.log", spec.name)))?;
        let output = BoundedLog::create(spec.logs.join(format!("{}.output.log", spec.name)))?;
        let (sender, lines) = channel();
        let (stdout, stderr) = (child.stdout.take().expect("piped"), child.stderr.take().expect("piped"));
        std::thread::spawn({
            let output = output.clone();
            move || follow(stdout, &output, Some(&sender))
        });
        std::thread::spawn({
            let console = console.clone();
            move || follow(stderr, &console, None)
        });
        Ok(Self {
            stdin: child.stdin.take(),
            child,
            lines,
            console,
            output,
            born: Instant::now(),
            patience: spec.patience,
            booted_in: None,
            heard: String::new(),
            monitor: spec.monitor.to_owned(),
        })
    }

    /// Sends a command of QEMU's human monitor to the machine: press a key, pull a device.
    pub fn command(&self, line: &str) -> Result<()> {
        monitor::command(&self.monitor, line)
    }

    /// Sends a command of QEMU's protocol for programs, where the human monitor has none.
    pub fn execute(&self, command: &str, arguments: &serde_json::Value) -> Result<()> {
        monitor::execute(&self.monitor, command, arguments)
    }

    /// Migrates the machine live to another one that waits at this address; returns when it runs there and no longer
    /// here. The result is QEMU's figure for how long it ran on neither.
    pub fn migrate(&self, to: &str, within: Duration) -> Result<Duration> {
        self.execute("migrate", &serde_json::json!({ "uri": to }))?;
        let started = Instant::now();
        loop {
            let answer = monitor::ask(&self.monitor, "query-migrate", &serde_json::json!({}))?;
            match answer["status"].as_str() {
                Some("completed") => return Ok(Duration::from_millis(answer["downtime"].as_u64().unwrap_or_default())),
                Some("failed" | "cancelled") => {
                    return Err(RigError::Expectation(format!("the machine did not migrate: {answer}")));
                }
                _ if started.elapsed() > within => {
                    return Err(RigError::Expectation(format!(
                        "the machine has not migrated within {within:?}: {answer}"
                    )));
                }
                _ => std::thread::sleep(LOOK_AGAIN),
            }
        }
    }

    /// The socket of its QEMU's monitor.
    pub fn monitor(&self) -> &Path {
        &self.monitor
    }

    /// Has the script's `serve` run one of its functions, and returns its output.
    pub fn ask(&mut self, words: &str) -> Result<String> {
        self.begin(words)?;
        self.outcome()
    }

    /// The first half of [`RunningMachine::ask`]: the function runs while the caller does something else.
    pub fn begin(&mut self, words: &str) -> Result<()> {
        self.heard.clear();
        self.tell(words)
    }

    /// The second half.
    pub fn outcome(&mut self) -> Result<String> {
        match self.await_word(ENDED)?.as_str() {
            "0" => Ok(self.take_heard()),
            _ => Err(self.function_failed()),
        }
    }

    /// Waits until the script says `word`; what follows the word on the line is returned.
    pub fn await_word(&mut self, word: &str) -> Result<String> {
        loop {
            match self.next(word)? {
                ScriptMark::Say(message) if message == word => return Ok(String::new()),
                ScriptMark::Say(message) => {
                    if let Some(rest) = message.strip_prefix(word).and_then(|rest| rest.strip_prefix(' ')) {
                        return Ok(rest.to_owned());
                    }
                    // This function has ended: the word will not come.
                    if message.strip_prefix(ENDED).is_some_and(|rest| rest.starts_with(' ')) {
                        return Err(self.function_failed());
                    }
                }
                ScriptMark::Exit(0) => {
                    return Err(RigError::Expectation(format!(
                        "the guest's script ended well without saying \"{word}\""
                    )));
                }
                ScriptMark::Exit(status) => return Err(self.failed(status)),
            }
        }
    }

    /// Sends the script the word that it awaits.
    pub fn tell(&mut self, word: &str) -> Result<()> {
        let stdin = self.stdin.as_mut().expect("open while the guest lives");
        stdin.write_all(format!("{word}\n").as_bytes()).map_err(RigError::io("write to the guest's serial line"))
    }

    /// Like [`RunningMachine::tell`] for a machine that may have migrated: the first byte that it then gets is lost.
    pub fn tell_wherever(&mut self, word: &str) -> Result<()> {
        self.tell("")?;
        self.tell(word)
    }

    /// Waits for the script's end and turns the machine off.
    pub fn finish(mut self) -> Result<ScriptReport> {
        loop {
            match self.next("end of script")? {
                ScriptMark::Say(_) => {}
                ScriptMark::Exit(0) => {
                    return Ok(ScriptReport {
                        output: self.output.text(),
                        booted_in_s: self.booted_in.unwrap_or_default(),
                    });
                }
                ScriptMark::Exit(status) => return Err(self.failed(status)),
            }
        }
    }

    /// Cuts the power.
    pub fn cut_power(self) {
        drop(self);
    }

    /// The script's output up to the last awaited word, since the last call.
    pub fn take_heard(&mut self) -> String {
        std::mem::take(&mut self.heard)
    }

    fn next(&mut self, awaiting: &str) -> Result<ScriptMark> {
        loop {
            let left = self.patience.saturating_sub(self.born.elapsed());
            match self.lines.recv_timeout(left) {
                Ok(line) => match parse(&line) {
                    Some(HostLine::Up(seconds)) => self.booted_in = Some(seconds),
                    Some(HostLine::Mark(mark)) => return Ok(mark),
                    None => self.heard += &(line + "\n"),
                },
                Err(RecvTimeoutError::Timeout) => {
                    return Err(RigError::GuestTimeout {
                        awaiting: awaiting.to_owned(),
                        after: self.patience,
                        tail: format!(
                            "{}\nconsole: {}\n{}",
                            self.output.tail(),
                            self.console.tail(),
                            self.processor_twice()
                        ),
                    });
                }
                Err(RecvTimeoutError::Disconnected) => {
                    // The thread that reads the console may be a line behind.
                    std::thread::sleep(Duration::from_millis(100));
                    return Err(RigError::GuestDied { console: self.console.tail(), tail: self.output.tail() });
                }
            }
        }
    }

    /// The processor's position now and a second later: shows whether the machine is stuck, and where.
    fn processor_twice(&self) -> String {
        let look = |line: &str| {
            let words = serde_json::json!({ "command-line": line });
            match monitor::ask(&self.monitor, "human-monitor-command", &words) {
                // General and control registers come first; the vectors are of no interest.
                Ok(answer) => answer.as_str().unwrap_or_default().lines().take(24).collect::<Vec<_>>().join("\n"),
                Err(error) => format!("{line}: {error}"),
            }
        };
        let first = ["info registers", "info lapic", "info pic"].map(look).join("\n");
        std::thread::sleep(Duration::from_secs(1));
        format!("processor:\n{first}a second later:\n{}", look("info registers"))
    }

    fn function_failed(&mut self) -> RigError {
        RigError::Expectation(tool::tail(&self.take_heard(), TAIL_LINES))
    }

    fn failed(&self, status: i32) -> RigError {
        RigError::GuestFailed { status, tail: self.output.tail() }
    }
}

impl Drop for RunningMachine {
    fn drop(&mut self) {
        // Both fail only when QEMU has already ended and been waited for.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A line that is addressed to the host.
#[derive(Debug, PartialEq)]
enum HostLine {
    Up(f64),
    Mark(ScriptMark),
}

#[derive(Debug, PartialEq)]
enum ScriptMark {
    Say(String),
    Exit(i32),
}

fn parse(line: &str) -> Option<HostLine> {
    let (verb, rest) = line.strip_prefix("@rig ")?.split_once(' ')?;
    match verb {
        "up" => Some(HostLine::Up(rest.parse().ok()?)),
        "say" => Some(HostLine::Mark(ScriptMark::Say(rest.to_owned()))),
        "exit" => Some(HostLine::Mark(ScriptMark::Exit(rest.parse().ok()?))),
        _ => None,
    }
}

/// The QEMU command: one emulated processor (two are slower in everything under multi-threaded TCG), a microvm because
/// it boots a second faster than q35, no firmware menus, two serial lines and one network card.
fn qemu(spec: &MachineSpec) -> Command {
    let mut qemu = Command::new("qemu-system-x86_64");
    // USB controllers are PCI devices; without any, a bus to look through would only cost boot time.
    let pcie = if spec.hardware.is_empty() { "off" } else { "on" };
    let machine = "microvm,acpi=on,rtc=on,pit=on,pic=on,isa-serial=off,auto-kernel-cmdline=off";
    qemu.args(["-M", &format!("{machine},pcie={pcie}")])
        .args(["-accel", "tcg", "-cpu", "max", "-smp", &spec.processors.to_string(), "-m", "512"])
        .args(["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"])
        .arg("-kernel")
        .arg(spec.kernel)
        .arg("-initrd")
        .arg(spec.root)
        .args(["-append", &command_line(spec)])
        // The console goes to our end of QEMU's own standard error, so its complaints land beside the kernel's.
        .args(["-chardev", "file,id=console,path=/dev/fd/2", "-device", "isa-serial,chardev=console"])
        .args(["-chardev", "stdio,id=case,signal=off", "-device", "isa-serial,chardev=case"])
        .args(spec.network.arguments())
        .args(["-qmp", &format!("unix:{},server=on,wait=off", spec.monitor.display())])
        .args(spec.hardware);
    if spec.time == MachineClock::Counted {
        qemu.args(["-icount", "shift=1,sleep=off", "-rtc", "clock=vm", "-seed", "1"]);
    }
    if let Some(file) = &spec.capture {
        qemu.args(["-object", &format!("filter-dump,id=capture,netdev=net,maxlen=1048576,file={}", file.display())]);
    }
    qemu
}

/// The kernel's command line: an oops ends the machine and QEMU with it; preempt=full because unlink tests livelock a
/// single processor without it; the rest saves boot time.
fn command_line(spec: &MachineSpec) -> String {
    let preempt = if spec.is_preemptible { "full" } else { "none" };
    let khz = if spec.time == MachineClock::Counted { COUNTED_KHZ } else { clock_khz() };
    format!(
        "console=ttyS0 loglevel=1 preempt={preempt} oops=panic panic=-1 reboot=t rdinit=/init random.trust_cpu=on \
         cryptomgr.notests security=none audit=0 nokaslr mitigations=off tsc=reliable tsc_early_khz={khz}"
    )
}

/// The rate of the time stamp counter, which emulation passes through from the host. A microvm with ACPI has no
/// reference to measure it against and hangs unless the rate is given.
fn clock_khz() -> u32 {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let mhz = text
        .lines()
        .find(|line| line.starts_with("cpu MHz"))
        .and_then(|line| line.split(':').nth(1)?.trim().parse::<f64>().ok());
    (mhz.unwrap_or(2000.0) * 1000.0) as u32
}

/// A bounded record of a stream, on disk and in memory.
#[derive(Clone)]
struct BoundedLog(Arc<Mutex<BoundedLogInner>>);

struct BoundedLogInner {
    file: File,
    text: String,
    full: bool,
}

impl BoundedLog {
    fn create(path: PathBuf) -> Result<Self> {
        let file = File::create(&path).map_err(RigError::io(format!("create {}", path.display())))?;
        Ok(Self(Arc::new(Mutex::new(BoundedLogInner { file, text: String::new(), full: false }))))
    }

    /// Keeps a line, unless there were too many; returns whether it did.
    fn push(&self, line: &str) -> bool {
        let mut log = self.0.lock().expect("no panic while held");
        if log.full {
            return false;
        }
        log.full = log.text.len() + line.len() >= LOG_BYTES_MAX;
        let line = if log.full { "(cut here: the log is full)\n" } else { line };
        log.text.push_str(line);
        // The log on disk is a convenience; the verdict comes from memory.
        let _ = log.file.write_all(line.as_bytes());
        true
    }

    fn text(&self) -> String {
        let log = self.0.lock().expect("no panic while held");
        log.text.lines().filter(|line| parse(line).is_none()).map(|line| line.to_owned() + "\n").collect()
    }

    fn tail(&self) -> String {
        tool::tail(&self.0.lock().expect("no panic while held").text, TAIL_LINES)
    }
}

/// Reads a stream to its end, line by line with a bound on each, so that it never blocks the machine.
fn follow(stream: impl Read, log: &BoundedLog, lines: Option<&Sender<String>>) {
    const LINE_BYTES_MAX: u64 = 1 << 16;
    let mut reader = BufReader::new(stream);
    let mut bytes = Vec::new();
    loop {
        bytes.clear();
        match reader.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', &mut bytes) {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
        let line = String::from_utf8_lossy(&bytes).trim_end_matches(['\r', '\n']).to_owned();
        let kept = log.push(&format!("{line}\n"));
        if let Some(lines) = lines
            && (kept || parse(&line).is_some())
        {
            // The receiver is gone when the case is over; reading on keeps QEMU from blocking.
            let _ = lines.send(line);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_marked_lines_are_for_the_host() {
        assert_eq!(parse("@rig exit 3"), Some(HostLine::Mark(ScriptMark::Exit(3))));
        assert_eq!(parse("@rig say read 12 MB"), Some(HostLine::Mark(ScriptMark::Say("read 12 MB".into()))));
        assert_eq!(parse("@rig up 1.25"), Some(HostLine::Up(1.25)));
        assert_eq!(parse("exit 3"), None);
        assert_eq!(parse("@rig exit soon"), None);
    }

    #[test]
    fn a_log_stops_at_its_bound() {
        let path = std::env::temp_dir().join(format!("farbus-rig-log-{}", std::process::id()));
        let log = BoundedLog::create(path.clone()).unwrap();
        for _ in 0..40 {
            log.push(&("x".repeat(1 << 16) + "\n"));
        }
        assert!(log.text().len() <= LOG_BYTES_MAX + 64);
        assert!(log.tail().ends_with("(cut here: the log is full)"));
        std::fs::remove_file(path).unwrap();
    }
}
