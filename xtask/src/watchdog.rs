//! A run that hangs, or that will not be over in time, ends with what it was doing, while there is still somebody who
//! reads that: CI ends what takes too long without a word.
//!
//! It looks at what is printed (`Meter`), so it is there where nobody sits at a terminal.

use crate::meter::SilenceClock;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::fs;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// How often it looks.
const EVERY: Duration = Duration::from_secs(1);
/// What a step may take to end whose processes were killed.
const ENDS_WITHIN: Duration = Duration::from_secs(60);
/// Processes that are described, and bytes of a command line.
const DESCRIBED_MAX: usize = 80;
const LINE_BYTES_MAX: usize = 160;

/// How long a run may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunLimits {
    /// Minutes in all.
    all: u64,
    /// Minutes for which a step may print nothing.
    silent: u64,
}

/// Watches a run until it is dropped.
pub struct RunWatchdog {
    shared: Arc<Mutex<WatchdogState>>,
    ends: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct WatchdogState {
    step: &'static str,
    complaint: Option<String>,
}

impl RunWatchdog {
    /// Begins to watch what `clock` hears printed.
    pub fn start(limits: RunLimits, clock: SilenceClock) -> RunWatchdog {
        let shared = Arc::new(Mutex::new(WatchdogState::default()));
        let (ends, ended) = mpsc::channel();
        let at_work = Arc::clone(&shared);
        let start = Instant::now();
        let thread = thread::spawn(move || {
            while ended.recv_timeout(EVERY) == Err(RecvTimeoutError::Timeout) {
                let Some(complaint) = limits.complaint(start.elapsed(), clock.silent_for()) else { continue };
                let step = {
                    let mut shared = at_work.lock().unwrap_or_else(PoisonError::into_inner);
                    shared.complaint = Some(complaint.clone());
                    shared.step
                };
                let processes = ProcessTable::read();
                println!("\nstep {step}: {complaint}. What runs:\n{}", processes.described());
                processes.kill();
                if ended.recv_timeout(ENDS_WITHIN) == Err(RecvTimeoutError::Timeout) {
                    println!("step {step} does not end although its processes were killed");
                    std::process::exit(1);
                }
                return;
            }
        });
        RunWatchdog { shared, ends: Some(ends), thread: Some(thread) }
    }

    /// Says which step begins.
    pub fn begins(&self, step: &'static str) {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner).step = step;
    }

    /// Why the step was ended, if it was.
    pub fn complaint(&self) -> Option<String> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner).complaint.clone()
    }
}

impl Drop for RunWatchdog {
    fn drop(&mut self) {
        drop(self.ends.take());
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

impl RunLimits {
    /// What to say of a run that has taken `elapsed`, and has printed nothing for `silent`.
    fn complaint(self, elapsed: Duration, silent: Duration) -> Option<String> {
        let minutes = |count: u64| Duration::from_secs(60 * count);
        if elapsed > minutes(self.all) {
            Some(format!("the run has taken {} minutes, the most it may (xtask/gate.toml)", self.all))
        } else if silent > minutes(self.silent) {
            Some(format!("nothing was printed for {} minutes, the most it may be (xtask/gate.toml)", self.silent))
        } else {
            None
        }
    }
}

/// What this process and those below it have started and what still runs, by number.
struct ProcessTable(BTreeMap<u32, ListedProcess>);

struct ListedProcess {
    parent: u32,
    state: String,
    line: String,
    /// Its threads by name: a test's thread has the name of its test.
    threads: Vec<String>,
}

impl ProcessTable {
    fn read() -> ProcessTable {
        let numbers = fs::read_dir("/proc").into_iter().flatten().flatten();
        let numbers = numbers.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        let all: BTreeMap<u32, ListedProcess> =
            numbers.filter_map(|number| Some((number, ListedProcess::read(number)?))).collect();
        let own = std::process::id();
        let is_below = |number: &u32| {
            let parents = std::iter::successors(Some(*number), |number| all.get(number).map(|process| process.parent));
            // A circle cannot be, unless a number was given away while this was read.
            parents.skip(1).take(64).any(|parent| parent == own)
        };
        let below: Vec<u32> = all.keys().copied().filter(is_below).collect();
        ProcessTable(all.into_iter().filter(|(number, _)| below.contains(number)).collect())
    }

    fn described(&self) -> String {
        let mut lines: Vec<String> = self.0.iter().map(|(number, process)| process.described(*number)).collect();
        let more = lines.len().saturating_sub(DESCRIBED_MAX);
        lines.truncate(DESCRIBED_MAX);
        if more > 0 {
            lines.push(format!("  and {more} more"));
        }
        lines.join("\n")
    }

    fn kill(&self) {
        for number in self.0.keys() {
            let number = i32::try_from(*number).ok().and_then(rustix::process::Pid::from_raw);
            if let Some(number) = number {
                // One that has ended since needs no end.
                let _ = rustix::process::kill_process(number, rustix::process::Signal::KILL);
            }
        }
    }
}

impl ListedProcess {
    fn read(number: u32) -> Option<ListedProcess> {
        let (parent, state) = parent_and_state(&fs::read_to_string(format!("/proc/{number}/stat")).ok()?)?;
        let line = fs::read(format!("/proc/{number}/cmdline")).ok()?;
        let line = String::from_utf8_lossy(&line[..line.len().min(LINE_BYTES_MAX)]).replace('\0', " ");
        let threads = fs::read_dir(format!("/proc/{number}/task")).into_iter().flatten().flatten();
        let names = threads.filter_map(|thread| fs::read_to_string(thread.path().join("comm")).ok());
        Some(ListedProcess { parent, state, line, threads: names.map(|name| name.trim_end().to_owned()).collect() })
    }

    fn described(&self, number: u32) -> String {
        let threads = if self.threads.len() > 1 { format!(" [{}]", self.threads.join(", ")) } else { String::new() };
        format!("  {number} of {} {} {}{threads}", self.parent, self.state, self.line.trim_end())
    }
}

/// From a line of `/proc/N/stat`. A program's name is in parentheses and may have any byte.
fn parent_and_state(stat: &str) -> Option<(u32, String)> {
    let mut fields = stat.rsplit_once(") ")?.1.split(' ');
    let state = fields.next()?.to_owned();
    Some((fields.next()?.parse().ok()?, state))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn run_that_is_too_long_or_silent_is_complained_of() {
        let limits = RunLimits { all: 80, silent: 20 };
        let minutes = |count: u64| Duration::from_secs(60 * count);
        assert_eq!(limits.complaint(minutes(79), minutes(19)), None);
        assert!(limits.complaint(minutes(81), minutes(0)).unwrap().contains("taken 80 minutes"));
        assert!(limits.complaint(minutes(30), minutes(21)).unwrap().contains("printed for 20 minutes"));
    }

    #[test]
    fn what_was_started_is_described_and_killed_and_nothing_else() {
        // A shell that waits for another process: both are below this one.
        let mut child = Command::new("sh").args(["-c", "sleep 1007; true"]).spawn().unwrap();
        let until = Instant::now() + Duration::from_secs(60);
        let found = loop {
            let found = ProcessTable::read();
            if found.0.values().any(|process| process.line.starts_with("sleep 1007")) {
                break found;
            }
            assert!(Instant::now() < until, "{}", found.described());
            thread::yield_now();
        };
        assert!(!found.0.contains_key(&std::process::id()) && !found.0.contains_key(&1));
        assert!(found.described().contains(&format!("  {} of {} ", child.id(), std::process::id())));
        // Other tests of this process start processes, too: those are theirs.
        let ours = |(number, process): &(u32, ListedProcess)| *number == child.id() || process.parent == child.id();
        ProcessTable(found.0.into_iter().filter(ours).collect()).kill();
        assert!(!child.wait().unwrap().success());
    }

    #[test]
    fn name_of_a_program_may_look_like_fields() {
        assert_eq!(parent_and_state("7 (a) R 1 (b) S 5 7 7 0"), Some((5, "S".to_owned())));
        assert_eq!(parent_and_state("7 (a"), None);
    }
}
