//! Runs `farbus`. Each test has a folder and a network namespace of its own, and its processes end with it (see
//! [`processes`]). Tests run beside each other and hold on a machine that stalls: they wait with a generous limit.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, Once, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use farbus::client::DeviceTarget;
use farbus::model::StoreDevice;
use farbus::model::block::MemoryStore;
use farbus_io_linux::frontend::fuse::DiskMount;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use signal_hook::consts::SIGINT;
use signal_hook::flag::register_conditional_shutdown;

use super::{own_network, processes};

/// The limit for anything that should take no time, on a machine that is busy compiling.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// A process notices the end of another within this time, unless the machine stalls. A process that has to wait for a
/// silent peer takes five seconds and more (`SILENCE_MAX` of the product).
pub const NOTICED_WITHIN: Duration = Duration::from_secs(4);

/// A folder and a network namespace for one test's processes and files. Removed when dropped.
pub struct Harness {
    folder: PathBuf,
}

/// The exit code and the output of a command that ended.
#[derive(Debug)]
pub struct Outcome {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

/// How long to wait for the last output of a process that has ended; a child of its own may keep the pipe open for
/// ever.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// How long a process that outlives a command that ended by itself may keep its output: a broker cleans up for 5 s.
const OUTPUT_CLOSED_WITHIN: Duration = Duration::from_secs(20);

/// A process that runs until it is ended. Dropping it kills it.
pub struct Running {
    child: Child,
    lines: Receiver<String>,
    log: Arc<Mutex<String>>,
    readers: [thread::JoinHandle<()>; 2],
}

/// A running `farbus share`.
pub struct Share {
    pub process: Running,
    pub address: String,
}

/// What a test starts can be interrupted even where the tests were started with that ignored (a script's `&`): a signal
/// that is caught here is the default one of a program that is started, and one that is ignored stays so.
fn hear_interrupts() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let is_meant = Arc::new(AtomicBool::new(true));
        register_conditional_shutdown(SIGINT, 128 + SIGINT, is_meant).unwrap();
    });
}

impl Harness {
    /// A test has one harness at a time. From here on this thread, and what it starts, is in the harness's network.
    pub fn new() -> Self {
        processes::be_guarded();
        hear_interrupts();
        own_network::enter();
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("{}{}", processes::folders(), COUNT.fetch_add(1, Ordering::Relaxed));
        let folder = std::env::temp_dir().join(name);
        // An earlier process with this number may have left the folder.
        let _ = fs::remove_dir_all(&folder);
        for part in ["run", "tmp", "home"] {
            fs::create_dir_all(folder.join(part)).unwrap();
        }
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).unwrap();
        Self { folder }
    }

    /// The test's folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// A path in the test's folder.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// A sparse file of this size.
    pub fn image(&self, name: &str, bytes: u64) -> PathBuf {
        let path = self.path(name);
        fs::File::create_new(&path).unwrap().set_len(bytes).unwrap();
        path
    }

    /// `farbus` with these arguments, in this harness.
    pub fn command(&self, arguments: &[&str]) -> Command {
        self.command_of(Path::new(env!("CARGO_BIN_EXE_farbus")), arguments)
    }

    /// Another program with these arguments, in this harness.
    pub fn command_of(&self, program: &Path, arguments: &[&str]) -> Command {
        let mut command = Command::new(program);
        command.args(arguments).env("XDG_RUNTIME_DIR", self.path("run")).env("TMPDIR", self.path("tmp"));
        command.env("FARBUS_STATE", self.path("state")).env("HOME", self.path("home"));
        command.env_remove("XDG_STATE_HOME").env_remove("XDG_CONFIG_HOME");
        command.env(processes::MARK, processes::mark_of(&self.folder));
        command.env_remove("FARBUS_LOG").stdin(Stdio::null());
        command
    }

    /// Runs `farbus` to its end.
    pub fn run(&self, arguments: &[&str]) -> Outcome {
        finish(self.command(arguments), PATIENCE)
    }

    /// Runs a `farbus … --json` that has to succeed; returns what it printed.
    pub fn json(&self, arguments: &[&str]) -> Value {
        let outcome = self.run(arguments);
        assert_eq!(outcome.code, Some(0), "{outcome:?}");
        serde_json::from_str(&outcome.stdout).unwrap_or_else(|error| panic!("{error}: {outcome:?}"))
    }

    /// Starts `farbus share WHAT…` on a free port of the loopback and waits until it listens.
    pub fn share(&self, what: &[&str]) -> Share {
        let arguments = [&["share"], what, &["--listen", "127.0.0.1:0"]].concat();
        Share::follow(Running::start(self.command(&arguments)))
    }

    /// Starts `farbus attach TARGET --via fuse` and waits until the disk's file is there; returns its path.
    pub fn attach(&self, target: &str, at: &Path) -> (Running, PathBuf) {
        let arguments = ["attach", target, "--via", "fuse", "--at", at.to_str().unwrap()];
        let process = Running::start(self.command(&arguments));
        process.wait_for_line("attached as ");
        (process, at.join("disk.img"))
    }
}

impl Drop for Harness {
    fn drop(&mut self) {
        let left = processes::end_all_of(&self.folder);
        own_network::leave();
        // A failed test may have left a mount; its folder then stays for inspection.
        let _ = fs::remove_dir_all(&self.folder);
        assert!(left.is_empty() || thread::panicking(), "the test left processes behind: {left:#?}");
    }
}

/// Runs a command, which has to end within this time, and no process that it leaves behind may keep its output open:
/// `x=$(farbus … 2>&1)` would wait for that one.
pub fn finish(command: Command, within: Duration) -> Outcome {
    let shown = format!("{command:?}");
    let mut process = Running::start(command);
    let code = process.wait_for_end(within);
    let is_closed = process.waits_for_closed_output(OUTPUT_CLOSED_WITHIN);
    assert!(is_closed, "{shown} has ended, and another process keeps its output open\n{}", process.log());
    let stdout: Vec<_> = process.lines.try_iter().collect();
    Outcome { code, stdout: stdout.join("\n"), stderr: process.log() }
}

impl Running {
    pub fn start(mut command: Command) -> Self {
        processes::mark_if_unmarked(&mut command);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let (to_us, lines) = channel();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let output = thread::spawn(move || {
            // Lines that nobody reads any more are read all the same: only the end of all of them is the end.
            stdout.lines().map_while(Result::ok).for_each(|line| drop(to_us.send(line)));
        });
        let log = Arc::<Mutex<String>>::default();
        let for_thread = Arc::clone(&log);
        let mut stderr = BufReader::new(child.stderr.take().unwrap());
        let reader = thread::spawn(move || {
            let mut line = String::new();
            while stderr.read_line(&mut line).is_ok_and(|count| count > 0) {
                for_thread.lock().unwrap().push_str(&line);
                line.clear();
            }
        });
        Self { child, lines, log, readers: [output, reader] }
    }

    /// The next line of its output that contains `part`.
    pub fn wait_for_line(&self, part: &str) -> String {
        loop {
            match self.lines.recv_timeout(PATIENCE) {
                Ok(line) if line.contains(part) => return line,
                Ok(_) => {}
                Err(error) => panic!("no line with {part:?}: {error}\n{}", self.log()),
            }
        }
    }

    /// Whether it prints a line that contains `part` before it ends.
    pub fn has_line_before_its_end(&self, part: &str) -> bool {
        loop {
            match self.lines.recv_timeout(PATIENCE) {
                Ok(line) if line.contains(part) => return true,
                Ok(_) => {}
                Err(RecvTimeoutError::Disconnected) => return false,
                Err(RecvTimeoutError::Timeout) => panic!("it says nothing\n{}", self.log()),
            }
        }
    }

    /// Whether a line of its output that nobody has read yet contains `part`; reads them up to that.
    pub fn has_said(&self, part: &str) -> bool {
        self.lines.try_iter().any(|line| line.contains(part))
    }

    /// What is left of the output of a process that has ended.
    pub fn rest(&self) -> String {
        self.lines.iter().collect::<Vec<_>>().join("\n")
    }

    /// What the process has written to standard error so far.
    pub fn log(&self) -> String {
        self.log.lock().unwrap().clone()
    }

    /// Waits until the log contains `part`: another thread reads it.
    pub fn assert_logged(&self, part: &str) {
        let until = Instant::now() + PATIENCE;
        while !self.log().contains(part) {
            assert!(Instant::now() < until, "it does not say '{part}' but\n{}", self.log());
            // waits: between two looks for an event
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// The number of the process.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Whether the process has not ended yet.
    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Kills the process: it ends without a detach.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Waits until no process has its standard output or error any more. Returns false if one still has after `within`.
    pub fn waits_for_closed_output(&self, within: Duration) -> bool {
        let until = Instant::now() + within;
        let mut readers = self.readers.iter();
        readers.all(|reader| {
            while !reader.is_finished() && Instant::now() < until {
                // waits: between two looks for an event
                thread::sleep(Duration::from_millis(1));
            }
            reader.is_finished()
        })
    }

    /// Its exit code; `None` when a signal ended it.
    pub fn wait_for_end(&mut self, within: Duration) -> Option<i32> {
        let started = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                self.waits_for_closed_output(LAST_WORDS);
                return status.code();
            }
            assert!(started.elapsed() < within, "it did not end within {within:?}\n{}", self.log());
            // waits: between two looks for an event
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Its end as a shell says it: the exit code, or 128 and the number of the signal.
    pub fn wait_for_shell_code(&mut self, within: Duration) -> i32 {
        let code = self.wait_for_end(within);
        let mut signal = || self.child.try_wait().unwrap().and_then(|status| status.signal());
        code.or_else(|| Some(128 + signal()?)).expect("it has ended by one of both")
    }

    /// The most memory that the process has used.
    pub fn peak_kib(&self) -> u64 {
        self.peak_kib_if_running().expect("Linux says so")
    }

    /// Like [`Self::peak_kib`]; `None` once the process has ended.
    pub fn peak_kib_if_running(&self) -> Option<u64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
        line.trim().trim_end_matches("kB").trim().parse().ok()
    }

    /// How much the peak has grown. Linux counts pages for each processor and reports the sum roughly: it may fall a
    /// little.
    pub fn peak_grown_kib(&self, since_kib: u64) -> u64 {
        self.peak_kib().saturating_sub(since_kib)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if thread::panicking() {
            eprintln!("--- process {} had said:\n{}---", self.child.id(), self.log());
        }
    }
}

impl Share {
    /// A share that was started by other means.
    pub fn follow(process: Running) -> Self {
        let line = process.wait_for_line("listening on ");
        let address = line.split_whitespace().nth(2).unwrap().to_owned();
        Self { process, address }
    }

    /// A device of it, as `farbus attach` takes it.
    pub fn target(&self, device: &str) -> String {
        format!("{}/{device}", self.address)
    }

    /// A device of it, as the library takes it.
    pub fn library_target(&self, device: &str) -> DeviceTarget {
        self.target(device).parse().unwrap()
    }
}

/// Copies a program in a process of its own. A file that is open for writing here is open for a moment in any process
/// that another test starts, and a program that is open for writing cannot be run.
pub fn copy_program(from: &Path, to: &Path) {
    let status = Command::new("cp").arg("--preserve=mode").args([from, to]).status().unwrap();
    assert!(status.success(), "{} is not copied to {}", from.display(), to.display());
}

/// Writes a script that every user may run. See [`copy_program`].
pub fn write_script(path: &Path, text: &str) {
    let draft = path.with_extension("draft");
    fs::write(&draft, text).unwrap();
    fs::set_permissions(&draft, fs::Permissions::from_mode(0o755)).unwrap();
    copy_program(&draft, path);
    fs::remove_file(draft).unwrap();
}

/// Runs the test of this name in a process of its own, by this program. Starting a process copies all open files for a
/// moment, and closing the copies flushes: a test that counts flushes, or that unmounts what has open files, runs where
/// no other test starts processes.
pub fn in_own_process(name: &str, test: impl FnOnce()) {
    const IS_IN_IT: &str = "FARBUS_TEST_IN_OWN_PROCESS";
    if std::env::var_os(IS_IN_IT).is_some() {
        return test();
    }
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([name, "--exact", "--nocapture"]).env(IS_IN_IT, "1");
    let outcome = finish(command, 3 * PATIENCE);
    assert_eq!(outcome.code, Some(0), "{}\n{}", outcome.stdout, outcome.stderr);
    assert!(outcome.stdout.contains("1 passed"), "it ran: {}", outcome.stdout);
    print!("{}", outcome.stdout);
}

/// Waits until `is_so`, looking often.
pub fn wait_until(within: Duration, what: &str, mut is_so: impl FnMut() -> bool) {
    let started = Instant::now();
    while !is_so() {
        assert!(started.elapsed() < within, "not within {within:?}: {what}");
        // waits: between two looks for an event
        thread::sleep(Duration::from_millis(5));
    }
}

/// Checks how long it took to notice an end, in each of a few rounds; a stall may have disturbed all but the quickest.
pub fn assert_quickest_is_noticed(times: &[Duration]) {
    println!("{times:?}");
    let quickest = times.iter().min().expect("there was a round");
    assert!(*quickest < NOTICED_WITHIN, "{times:?}");
}

/// Whether this machine has what a test needs. If not, prints so, and fails if the machine was required to have it.
pub fn has(what: &str, is_there: bool) -> bool {
    if !is_there {
        assert!(std::env::var("FARBUS_REQUIRE_RIG").as_deref() != Ok("1"), "this machine has no {what}");
        // Not by a macro: the test harness hides what macros print in a test that passes.
        let _ = writeln!(std::io::stderr(), "SKIPPED, this machine has no {what}: {}", test_name());
    }
    is_there
}

fn test_name() -> String {
    thread::current().name().unwrap_or("a test").to_owned()
}

/// Whether disks can be shown as files here. Tried, because a container may have all of it and not be permitted to use
/// it.
pub fn has_fuse() -> bool {
    static IS_USABLE: OnceLock<bool> = OnceLock::new();
    let try_it = || {
        let at = std::env::temp_dir().join(format!("farbus-command-{}-fuse", std::process::id()));
        DiskMount::mount(&at, "disk", StoreDevice::new(MemoryStore::new(vec![0; 512]))).is_ok()
    };
    has("usable FUSE", *IS_USABLE.get_or_init(try_it))
}

pub fn has_program(name: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(name).is_file())
}

/// Whether something is mounted at or below a place.
pub fn is_mounted(at: &Path) -> bool {
    let mut table = String::new();
    fs::File::open("/proc/thread-self/mountinfo").unwrap().read_to_string(&mut table).unwrap();
    table.contains(at.to_str().unwrap())
}
