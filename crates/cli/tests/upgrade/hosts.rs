//! Hosts that run one release or the other, on this machine.

use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::Signal;
use serde_json::Value;

use super::harness::{Harness, Outcome, PATIENCE, Running, finish};

/// Which program a host runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Release {
    /// The release before this version.
    Previous,
    /// What is being tested.
    This,
}

pub use Release::{Previous, This};

/// Exporter and importer.
pub const DIRECTIONS: [(Release, Release); 2] = [(Previous, This), (This, Previous)];

/// Whether there is a program of the previous release; says loudly if not.
pub fn has_previous() -> bool {
    let is_there = std::env::var_os("FARBUS_PREVIOUS").is_some();
    if !is_there {
        // Not by a macro: the test harness hides what macros print in a test that passes.
        let _ = writeln!(
            std::io::stderr(),
            "SKIPPED, FARBUS_PREVIOUS names no program of the previous release (cargo xtask test --only upgrade): {}",
            std::thread::current().name().unwrap_or("a test")
        );
    }
    is_there
}

impl Release {
    /// The path of the release's program.
    pub fn program(self) -> PathBuf {
        match self {
            Previous => std::env::var_os("FARBUS_PREVIOUS").expect("looked at before").into(),
            This => env!("CARGO_BIN_EXE_farbus").into(),
        }
    }
}

/// One of several hosts in a harness: a key, a state folder and a runtime folder of its own.
#[derive(Clone)]
pub struct Host<'h> {
    pub harness: &'h Harness,
    pub name: &'static str,
    pub program: PathBuf,
}

impl<'h> Host<'h> {
    pub fn new(harness: &'h Harness, name: &'static str, release: Release) -> Self {
        let runtime = harness.path(&format!("run-{name}"));
        fs::create_dir_all(&runtime).unwrap();
        fs::set_permissions(&runtime, fs::Permissions::from_mode(0o700)).unwrap();
        Self { harness, name, program: release.program() }
    }

    /// This host, after `release` was installed on it.
    pub fn with(&self, release: Release) -> Self {
        Self { program: release.program(), ..self.clone() }
    }

    /// This host, whose program is at this path.
    pub fn at(&self, program: &Path) -> Self {
        Self { program: program.to_owned(), ..self.clone() }
    }

    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = self.harness.command_of(&self.program, arguments);
        command.env("FARBUS_STATE", self.harness.path(self.name)).env("FARBUS_NAME", self.name);
        command.env("XDG_RUNTIME_DIR", self.harness.path(&format!("run-{}", self.name)));
        command
    }

    pub fn run(&self, arguments: &[&str]) -> Outcome {
        finish(self.command(arguments), PATIENCE)
    }

    pub fn ok(&self, arguments: &[&str]) -> String {
        let outcome = self.run(arguments);
        assert_eq!(outcome.code, Some(0), "{} {arguments:?}: {outcome:?}", self.program.display());
        outcome.stdout
    }

    pub fn json(&self, arguments: &[&str]) -> Value {
        let text = self.ok(arguments);
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{arguments:?}: {error}: {text}"))
    }

    pub fn start(&self, arguments: &[&str]) -> Running {
        Running::start(self.command(arguments))
    }

    /// Starts `farbus share WHAT…` for any host of this machine; returns the process and its address.
    pub fn share(&self, what: &[&str]) -> (Running, String) {
        let process = self.start(&[&["share"], what, &["--listen", "127.0.0.1:0"]].concat());
        let address = address_in(&process.wait_for_line("listening on "));
        (process, address)
    }

    /// Starts `farbus share WHAT…` for paired hosts alone, at `at`; returns the process and its address.
    pub fn share_secure(&self, what: &[&str], at: &str) -> (Running, String) {
        let process = self.start(&[&["share"], what, &["--listen", "none", "--secure", at]].concat());
        let address = address_in(&process.wait_for_line("for paired hosts"));
        (process, address)
    }
}

/// The address in a line that says "listening on ADDRESS".
pub fn address_in(line: &str) -> String {
    line.split_whitespace().nth(2).unwrap().to_owned()
}

/// Pairs two hosts, each by its own program.
pub fn pair(waits: &Host<'_>, joins: &Host<'_>) {
    let mut waiting = waits.start(&["pair", "--listen", "127.0.0.1:0", "--json"]);
    let answer: Value = serde_json::from_str(&waiting.wait_for_line("\"code\"")).unwrap();
    joins.ok(&["pair", answer["address"].as_str().unwrap(), answer["code"].as_str().unwrap()]);
    assert_eq!(waiting.wait_for_end(PATIENCE), Some(0), "{}", waiting.log());
}

/// Asks a process to end, which has to succeed.
pub fn end(mut process: Running) {
    process.signal(Signal::INT);
    assert_eq!(process.wait_for_end(PATIENCE), Some(0), "{}", process.log());
}

/// Bytes in which every block differs from the others and from those of other rounds.
pub fn noise(round: u64, count: usize) -> Vec<u8> {
    let mut state = round.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    (0..count).map(|_| next()).collect()
}

/// Runs fio on an NBD server or a file; fio has to read back every byte as it wrote it.
pub fn run_fio(harness: &Harness, arguments: &[&str]) {
    let work = "--name=upgrade --rw=randwrite --size=2m --iodepth=8 --fsync=50 --blockalign=512 --bsrange=512-64k \
                --verify=crc32c --verify_fatal=1 --verify_state_save=0 --minimal";
    let arguments: Vec<&str> = arguments.iter().copied().chain(work.split_whitespace()).collect();
    let outcome = finish(harness.command_of(Path::new("fio"), &arguments), PATIENCE);
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
}
