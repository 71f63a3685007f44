//! `farbus demo --lab`: three daemons that know each other, twenty devices, traffic and the page, until Ctrl-C.
//!
//! The command starts a *keeper*, which has the daemons, and holds a pipe to it. The keeper ends everything when the
//! pipe ends: whatever becomes of the command, nothing is left. If the keeper is killed, the command does it.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use farbus_io_net::sys::peer::PeerCredentials;
use farbus_page::{PageAddress, PageLocation, PageSettings, serve};
use rustix::process::{Pid, Signal, getpid, kill_process};
use serde_json::Value;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use tokio::sync::oneshot;

use super::super::CommandFailure;
use super::super::output::say;
use super::stage::{DemoFolder, remove_folder};
use super::traffic;

/// The verb of the keeper; started by the demo alone.
pub const KEEPER_VERB: &str = "demo-lab";
/// The hosts, and what each shares: what, name.
const HOSTS: [(&str, &[(&str, &str)]); 3] = [
    (
        "lab1",
        &[
            ("disk", "backup"),
            ("disk", "images"),
            ("keyboard", "keys"),
            ("serial", "console"),
            ("zero", "source"),
            ("cmsis-dap", "probe"),
            ("audio", "speaker"),
        ],
    ),
    (
        "lab2",
        &[
            ("disk", "scratch"),
            ("serial", "board-a"),
            ("serial", "board-b"),
            ("fastboot", "phone"),
            ("dfu", "firmware"),
            ("can", "car"),
            ("keyboard", "kiosk"),
        ],
    ),
    (
        "lab3",
        &[
            ("disk", "archive"),
            ("zero", "sink"),
            ("serial", "modem"),
            ("cmsis-dap", "debugger"),
            ("audio", "headset"),
            ("keyboard", "rack"),
        ],
    ),
];
/// Which host uses which disk of which other, and so makes the traffic.
const USED: [(&str, &str); 4] =
    [("lab1", "lab2/scratch"), ("lab2", "lab3/archive"), ("lab3", "lab1/backup"), ("lab2", "lab1/images")];
/// What is reserved on the buses of the hosts: a device's name, and what of it.
const RESERVED: [(&str, &str); 3] =
    [("keys", "bytes=8,period=8"), ("kiosk", "bytes=8,period=16"), ("rack", "bytes=8,period=8")];
const DISK_BYTES: u64 = 16 << 20;
/// How long a step of the beginning may take. A machine that is busy takes long to start a process.
const STEP_TIME_MAX: Duration = Duration::from_secs(60);
/// How long a daemon may take to end before it is killed.
const END_TIME_MAX: Duration = Duration::from_secs(10);

/// Runs the lab until Ctrl-C, or for `seconds`.
///
/// # Errors
/// [`CommandFailure`]: it could not be begun. Nothing is left.
pub fn run(listen: SocketAddr, seconds: Option<u64>) -> Result<(), CommandFailure> {
    let scratch = DemoFolder::new()?;
    let (sender, tells) = channel();
    watch_signals(sender.clone())?;
    let mut keeper = LabKeeper::start(&scratch, listen, sender)?;
    say("farbus demo: three daemons, twenty devices, and the page; nothing of this machine is shared\n");
    let until = seconds.map(|seconds| Instant::now() + Duration::from_secs(seconds));
    let mut has_begun = false;
    let mut interrupted_by = None;
    let why = loop {
        let left = until.map_or(Duration::MAX, |until| until.saturating_duration_since(Instant::now()));
        match tells.recv_timeout(left.min(Duration::from_secs(3600))) {
            Ok(LabEvent::Line(line)) => {
                has_begun |= line.contains("page at ");
                say(line);
            }
            Ok(LabEvent::Signal(signal)) => {
                interrupted_by = Some(signal).filter(|_| !has_begun);
                break None;
            }
            Ok(LabEvent::KeeperEnded) | Err(RecvTimeoutError::Disconnected) => break Some("it ended by itself"),
            Err(RecvTimeoutError::Timeout) if until.is_none_or(|until| Instant::now() < until) => {}
            Err(RecvTimeoutError::Timeout) => break None,
        }
    };
    keeper.end();
    end_all_in(&scratch.path("run"));
    match why {
        Some(why) if has_begun => Err(CommandFailure::local(format!("the lab is gone: {why}"))),
        Some(why) => Err(CommandFailure::local(format!("the lab could not be begun: {why}"))),
        None => {
            say("\nAll of it is gone.");
            interrupted_by.map_or(Ok(()), |signal| Err(CommandFailure::interrupted(signal, "the lab had not begun")))
        }
    }
}

/// What the command waits for.
enum LabEvent {
    Line(String),
    Signal(i32),
    KeeperEnded,
}

fn watch_signals(sender: std::sync::mpsc::Sender<LabEvent>) -> Result<(), CommandFailure> {
    let mut signals = Signals::new([SIGINT, SIGTERM]).map_err(CommandFailure::local)?;
    let watch = move || signals.forever().for_each(|signal| drop(sender.send(LabEvent::Signal(signal))));
    thread::Builder::new().name("signals".into()).spawn(watch).map(drop).map_err(CommandFailure::local)
}

/// The process that has the lab.
struct LabKeeper {
    process: Child,
    /// Closed, it ends the lab.
    pipe: Option<ChildStdin>,
}

impl LabKeeper {
    fn start(
        scratch: &DemoFolder,
        listen: SocketAddr,
        sender: std::sync::mpsc::Sender<LabEvent>,
    ) -> Result<Self, CommandFailure> {
        let mut command = Command::new("/proc/self/exe");
        command.arg(KEEPER_VERB).arg(scratch.path("")).arg(listen.to_string());
        command.env("XDG_RUNTIME_DIR", scratch.path("run")).env_remove("FARBUS_NAME").env_remove("FARBUS_LOG");
        // Ctrl-C is for the command, which ends the keeper.
        command.process_group(0).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().map_err(CommandFailure::local)?;
        let (pipe, out) = (process.stdin.take(), process.stdout.take());
        let read = move || {
            let lines = out.into_iter().flat_map(|out| BufReader::new(out).lines().map_while(Result::ok));
            lines.for_each(|line| drop(sender.send(LabEvent::Line(line))));
            let _ = sender.send(LabEvent::KeeperEnded);
        };
        thread::Builder::new().name("keeper".into()).spawn(read).map_err(CommandFailure::local)?;
        Ok(Self { process, pipe })
    }

    fn end(&mut self) {
        self.pipe = None;
        end_child(&mut self.process, 2 * END_TIME_MAX);
    }
}

impl Drop for LabKeeper {
    fn drop(&mut self) {
        self.end();
    }
}

/// Waits for the end of a process, and kills it if that takes too long.
fn end_child(child: &mut Child, time_max: Duration) {
    let until = Instant::now() + time_max;
    while Instant::now() < until {
        if !matches!(child.try_wait(), Ok(None)) {
            return;
        }
        thread::sleep(Duration::from_millis(10));
    }
    let _ = child.kill();
    let _ = child.wait();
}

/// Ends what is left of a keeper that was killed: daemons that answer in the lab's runtime folder, and every process
/// whose environment names that.
fn end_all_in(run: &Path) {
    let until = Instant::now() + END_TIME_MAX;
    loop {
        let left: BTreeSet<i32> = answering_in(run).chain(started_for(run)).collect();
        let left: Vec<_> = left.into_iter().filter_map(Pid::from_raw).filter(|pid| *pid != getpid()).collect();
        if left.is_empty() {
            return;
        }
        let signal = if Instant::now() > until { Signal::KILL } else { Signal::TERM };
        for pid in left {
            // It may have ended by itself.
            let _ = kill_process(pid, signal);
        }
        thread::sleep(Duration::from_millis(50));
    }
}

/// The processes that listen at the control sockets of a runtime folder.
fn answering_in(run: &Path) -> impl Iterator<Item = i32> {
    let sockets = fs::read_dir(run.join("farbus")).into_iter().flatten().flatten().map(|entry| entry.path());
    let listens = |path: PathBuf| PeerCredentials::of(UnixStream::connect(path).ok()?).ok()?.process()?.try_into().ok();
    sockets.filter_map(listens)
}

/// The processes of this user that were started for a runtime folder.
fn started_for(run: &Path) -> impl Iterator<Item = i32> {
    let wanted = format!("XDG_RUNTIME_DIR={}", run.display());
    let all = fs::read_dir("/proc").into_iter().flatten().flatten();
    let all = all.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    all.filter(move |pid| {
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|word| word == wanted.as_bytes())
    })
}

/// One host of the lab.
struct DemoHost {
    name: &'static str,
    folder: PathBuf,
    daemon: Option<Child>,
    /// Where paired hosts reach it.
    address: String,
}

/// Keeps the lab until its standard input ends, or a signal.
///
/// # Errors
/// [`CommandFailure`]: it could not be begun.
pub fn keep(folder: &Path, listen: SocketAddr) -> Result<(), CommandFailure> {
    let (tell_end, end) = oneshot::channel();
    let is_over = Arc::<AtomicBool>::default();
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&is_over)).map_err(CommandFailure::local)?;
    }
    let over = Arc::clone(&is_over);
    let wait = move || {
        // Nothing is written there: the command holds it open until the end.
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        over.store(true, Ordering::Relaxed);
        let _ = tell_end.send(());
    };
    thread::Builder::new().name("command".into()).spawn(wait).map_err(CommandFailure::local)?;
    let mut lab = DemoLab { folder: folder.to_owned(), hosts: Vec::new() };
    let result = lab.begin(&is_over).and_then(|()| {
        let readers = lab.sockets().map(|socket| traffic::start(socket, Arc::clone(&is_over)));
        let readers: Vec<_> = readers.collect::<Result<_, _>>().map_err(CommandFailure::local)?;
        let tell = |served: PageLocation| say(format!("page at {}   (Ctrl-C ends all of it)", served.at));
        let served = serve(PageSettings::local(PageAddress::Loopback(listen)), tell, async {
            let _ = end.await;
        });
        is_over.store(true, Ordering::Relaxed);
        readers.into_iter().for_each(|reader| drop(reader.join()));
        served
    });
    lab.end();
    result
}

struct DemoLab {
    folder: PathBuf,
    hosts: Vec<DemoHost>,
}

impl DemoLab {
    fn begin(&mut self, is_over: &AtomicBool) -> Result<(), CommandFailure> {
        let check = || match is_over.load(Ordering::Relaxed) {
            true => Err(CommandFailure::local("interrupted")),
            false => Ok(()),
        };
        for part in ["run", "disks", "sockets"] {
            fs::create_dir_all(self.folder.join(part)).map_err(CommandFailure::local)?;
        }
        for (name, _) in HOSTS {
            let folder = self.folder.join(name);
            fs::create_dir(&folder).map_err(CommandFailure::local)?;
            self.hosts.push(DemoHost { name, folder, daemon: None, address: String::new() });
        }
        for (waits, joins) in [(0, 1), (0, 2), (1, 2)] {
            check()?;
            pair(&self.hosts[waits], &self.hosts[joins])?;
        }
        for host in &mut self.hosts {
            check()?;
            host.start(&self.folder)?;
        }
        for host in &self.hosts {
            for other in self.hosts.iter().filter(|other| other.name != host.name) {
                check()?;
                host.run(&["list", other.name, "--address", &other.address])?;
            }
        }
        for host in &self.hosts {
            check()?;
            host.attach(&self.folder)?;
        }
        say("  host   devices   uses");
        for (host, (_, shared)) in self.hosts.iter().zip(HOSTS) {
            let used: Vec<&str> = used_by(host.name).collect();
            say(format!("  {}   {}         {}", host.name, shared.len(), used.join(", ")));
        }
        say(format!("\ncommands for it: export XDG_RUNTIME_DIR={}", self.folder.join("run").display()));
        Ok(())
    }

    /// The sockets of the disks that are used.
    fn sockets(&self) -> impl Iterator<Item = PathBuf> {
        let folder = self.folder.join("sockets");
        USED.iter().map(move |(user, target)| folder.join(socket_of(user, target)))
    }

    /// Ends the daemons in good order, then what is left of them.
    fn end(&mut self) {
        let daemons = || self.hosts.iter().filter_map(|host| host.daemon.as_ref());
        for daemon in daemons() {
            let _ = kill_process(Pid::from_child(daemon), Signal::TERM);
        }
        for daemon in self.hosts.iter_mut().filter_map(|host| host.daemon.as_mut()) {
            end_child(daemon, END_TIME_MAX);
        }
        // The command removes it too; one that was killed cannot.
        let _ = remove_folder(&self.folder);
    }
}

fn used_by(user: &str) -> impl Iterator<Item = &'static str> {
    USED.iter().filter(move |(host, _)| *host == user).map(|(_, target)| *target)
}

fn socket_of(user: &str, target: &str) -> String {
    format!("{user}-{}.sock", target.replace('/', "-"))
}

impl DemoHost {
    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("/proc/self/exe");
        command.args(arguments).env("FARBUS_STATE", &self.folder).env("FARBUS_NAME", self.name).stdin(Stdio::null());
        command.env("FARBUS_LOG", "error");
        command
    }

    /// Runs a command of this host to its end.
    fn run(&self, arguments: &[&str]) -> Result<(), CommandFailure> {
        let done = self.command(arguments).output().map_err(CommandFailure::local)?;
        match done.status.success() {
            true => Ok(()),
            false => Err(CommandFailure::local(format!(
                "farbus {} of {}: {}",
                arguments.join(" "),
                self.name,
                String::from_utf8_lossy(&done.stderr).trim()
            ))),
        }
    }

    fn config(&self) -> PathBuf {
        self.folder.join("farbus.toml")
    }

    /// What the daemon shares.
    fn shares(&self, lab: &Path) -> Result<String, CommandFailure> {
        let mut text = "[plain]\nlisten = ['127.0.0.1:0']\nannounce = false\n\
            [secure]\nlisten = ['127.0.0.1:0']\nannounce = false\n"
            .to_owned();
        let shared = HOSTS.iter().filter(|(name, _)| *name == self.name).flat_map(|(_, shared)| shared.iter());
        for (what, name) in shared {
            let what = match *what {
                "disk" => {
                    let path = lab.join("disks").join(format!("{}-{name}.img", self.name));
                    let disk = fs::File::create_new(&path).and_then(|disk| disk.set_len(DISK_BYTES));
                    disk.map_err(CommandFailure::local)?;
                    format!("disk:{}", path.display())
                }
                what => what.to_owned(),
            };
            let _ = writeln!(text, "[[share]]\nwhat = {}\nname = '{name}'", Value::String(what));
            for (_, reserve) in RESERVED.iter().filter(|(device, _)| device == name) {
                let _ = writeln!(text, "reserve = ['{reserve}']");
            }
        }
        Ok(text)
    }

    /// Starts its daemon, and waits until paired hosts are served.
    fn start(&mut self, lab: &Path) -> Result<(), CommandFailure> {
        fs::write(self.config(), self.shares(lab)?).map_err(CommandFailure::local)?;
        let config = self.config().display().to_string();
        let mut command = self.command(&["daemon", "--config", &config]);
        let mut daemon =
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().map_err(CommandFailure::local)?;
        let (lines, out) = (lines_of(daemon.stdout.take())?, lines_of(daemon.stderr.take())?);
        self.daemon = Some(daemon);
        let line = wait_for(&lines, "for paired hosts");
        let line = line.ok_or_else(|| {
            let messages: Vec<_> = out.try_iter().collect();
            CommandFailure::local(format!("the daemon of {} does not start: {}", self.name, messages.join("; ")))
        })?;
        self.address = line.split_whitespace().nth(2).unwrap_or_default().to_owned();
        Ok(())
    }

    /// Has the daemon attach what this host uses, and waits until it has.
    fn attach(&self, lab: &Path) -> Result<(), CommandFailure> {
        let mut text = fs::read_to_string(self.config()).map_err(CommandFailure::local)?;
        let sockets: Vec<_> =
            used_by(self.name).map(|target| (target, lab.join("sockets").join(socket_of(self.name, target)))).collect();
        for (target, socket) in &sockets {
            let socket = Value::String(socket.display().to_string());
            let _ = writeln!(text, "[[attach]]\ntarget = '{target}'\nvia = 'nbd'\nsocket = {socket}");
        }
        fs::write(self.config(), text).map_err(CommandFailure::local)?;
        let daemon = self.daemon.as_ref().map(Pid::from_child);
        daemon.map(|daemon| kill_process(daemon, Signal::HUP)).transpose().map_err(CommandFailure::local)?;
        let until = Instant::now() + STEP_TIME_MAX;
        while !sockets.iter().all(|(_, socket)| socket.exists()) {
            if Instant::now() > until {
                return Err(CommandFailure::local(format!("{} does not get what it is to attach", self.name)));
            }
            thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }
}

/// Pairs two hosts, and lets each use all that the other shares.
fn pair(waits: &DemoHost, joins: &DemoHost) -> Result<(), CommandFailure> {
    let mut waiting = waits.command(&["pair", "--listen", "127.0.0.1:0", "--json"]);
    let mut waiting = waiting.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().map_err(CommandFailure::local)?;
    let lines = lines_of(waiting.stdout.take())?;
    let answer = wait_for(&lines, "\"code\"").and_then(|line| serde_json::from_str::<Value>(&line).ok());
    let joined = match answer.as_ref().and_then(|answer| Some((answer["address"].as_str()?, answer["code"].as_str()?)))
    {
        Some((address, code)) => joins.run(&["pair", address, code]),
        None => Err(CommandFailure::local(format!("{} cannot be paired", waits.name))),
    };
    end_child(&mut waiting, if joined.is_ok() { END_TIME_MAX } else { Duration::ZERO });
    joined?;
    waits.run(&["allow", joins.name, "all"])?;
    joins.run(&["allow", waits.name, "all"])
}

/// The lines of a process's output, read to the end whether anybody wants them or not.
fn lines_of(out: Option<impl Read + Send + 'static>) -> Result<Receiver<String>, CommandFailure> {
    let (to, lines) = channel();
    let read = move || {
        let lines = out.into_iter().flat_map(|out| BufReader::new(out).lines().map_while(Result::ok));
        // The rest is read, too: a daemon waits for whom it tells.
        lines.for_each(|line| drop(to.send(line)));
    };
    thread::Builder::new().name("output".into()).spawn(read).map_err(CommandFailure::local)?;
    Ok(lines)
}

/// The next line with this part; `None` if there is none in time.
fn wait_for(lines: &Receiver<String>, part: &str) -> Option<String> {
    let until = Instant::now() + STEP_TIME_MAX;
    loop {
        let line = lines.recv_timeout(until.saturating_duration_since(Instant::now())).ok()?;
        if line.contains(part) {
            return Some(line);
        }
    }
}
