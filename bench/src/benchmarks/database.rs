//! A database on a disk that moves: its transactions over time, and the events (Netbus, Figures 10 and 11).
//!
//! SQLite commits as fast as it can on a disk that one farbus shares and another attaches, as a file or for a machine;
//! every line that it prints is a durable transaction. None may fail, and the last disk holds a complete database.

use std::{
    fs,
    io::{BufRead, BufReader, Write},
    path::{Path, PathBuf},
    process::{Child, ChildStdin, Command, Stdio},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal};

use crate::{
    report::{BenchmarkFinding, MeasuredQuantity},
    stats::{SampleSpread, SpeedTarget},
    svg::{ChartLine, ChartPanel, LineChart},
};

/// The time over which transactions are counted for a point of the plot.
const SLICE: Duration = Duration::from_millis(200);
/// How long a process may take to print an expected line.
const START_MAX: Duration = Duration::from_secs(30);

/// Inserts a row of 2000 bytes into the database in the disk that it is told, deletes an old one, commits, and prints a
/// line. At the end of the input it checks the whole database and ends.
const LOAD: &str = r#"
import os, select, sqlite3, sys
count = 0
db = sqlite3.connect(sys.argv[1], isolation_level=None)
# There is room for one file only.
db.execute("pragma journal_mode=memory"); db.execute("pragma synchronous=full")
while not select.select([sys.stdin], [], [], 0)[0]:
    db.execute("begin"); db.execute("insert into t values (?, ?)", (count, os.urandom(2000)))
    db.execute("delete from t where n = ?", (count - 2000,)); db.execute("commit")
    count += 1
    print("committed", flush=True)
assert db.execute("pragma integrity_check").fetchone() == ("ok",)
assert db.execute("select max(n) from t").fetchone() == (count - 1,)
print("whole", flush=True)
"#;
const MAKE: &str =
    "import sqlite3, sys; sqlite3.connect(sys.argv[1]).execute('create table t (n integer primary key, b blob)')";

/// A folder that is removed with its content.
pub struct ScratchFolder(PathBuf);

impl ScratchFolder {
    pub fn new(name: &str) -> Result<Self> {
        let folder = Self(std::env::temp_dir().join(format!("farbus-bench-{}-{name}", std::process::id())));
        fs::create_dir_all(&folder.0)?;
        Ok(folder)
    }

    pub fn path_of(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Makes a folder in it.
    pub fn folder(&self, name: &str) -> Result<PathBuf> {
        let path = self.path_of(name);
        fs::create_dir_all(&path)?;
        Ok(path)
    }

    /// A disk with an empty database on it.
    pub fn database(&self, name: &str, bytes: u64) -> Result<PathBuf> {
        let path = self.path_of(name);
        let made = Command::new("python3").args(["-c", MAKE]).arg(&path).status().context("cannot run python3")?;
        if !made.success() {
            bail!("python3 has no SQLite");
        }
        fs::File::options().write(true).open(&path)?.set_len(bytes)?;
        Ok(path)
    }
}

impl Drop for ScratchFolder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A process that ends with this value, and its lines with their times.
pub struct LineProcess {
    child: Child,
    stdin: Option<ChildStdin>,
    output: Arc<OutputCollector>,
    /// How many lines were waited for.
    heard: usize,
}

#[derive(Default)]
struct OutputCollector {
    lines: Mutex<TimedLines>,
    is_more: Condvar,
}

#[derive(Default)]
struct TimedLines {
    lines: Vec<(Instant, String)>,
    is_over: bool,
}

impl OutputCollector {
    fn lines(&self) -> MutexGuard<'_, TimedLines> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for LineProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl LineProcess {
    pub fn start(mut command: Command) -> Result<Self> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().with_context(|| format!("cannot start {command:?}"))?;
        let stdout = child.stdout.take().context("its output is ours")?;
        let stdin = child.stdin.take();
        let output = Arc::<OutputCollector>::default();
        let for_thread = Arc::clone(&output);
        thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(std::io::Result::ok) {
                for_thread.lines().lines.push((Instant::now(), line));
                for_thread.is_more.notify_all();
            }
            for_thread.lines().is_over = true;
            for_thread.is_more.notify_all();
        });
        Ok(Self { child, stdin, output, heard: 0 })
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Sends it a line.
    pub fn tell(&mut self, line: &str) -> Result<()> {
        let stdin = self.stdin.as_mut().context("its input is ours")?;
        Ok(writeln!(stdin, "{line}")?)
    }

    /// Ends its input.
    pub fn hush(&mut self) {
        self.stdin = None;
    }

    /// The next line with `part` in it.
    pub fn wait_for(&mut self, part: &str) -> Result<String> {
        let until = Instant::now() + START_MAX;
        let mut output = self.output.lines();
        loop {
            while let Some((_, line)) = output.lines.get(self.heard) {
                self.heard += 1;
                if line.contains(part) {
                    return Ok(line.clone());
                }
            }
            let left = until.saturating_duration_since(Instant::now());
            if output.is_over || left.is_zero() {
                let last = output.lines.last().map_or("nothing", |(_, line)| line);
                bail!("it does not say '{part}'; the last it said: {last}")
            }
            output = self.output.is_more.wait_timeout(output, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// When it printed this line, each time, in seconds since `began`.
    pub fn times_of(&self, what: &str, began: Instant) -> Vec<f64> {
        let output = self.output.lines();
        let at = output.lines.iter().filter(|(_, line)| line == what).map(|(at, _)| at);
        at.filter_map(|at| at.checked_duration_since(began)).map(|at| at.as_secs_f64()).collect()
    }

    /// Tells it to end, as Ctrl-C does.
    pub fn interrupt(&self) {
        // One that has ended already is what was asked for.
        let _ = rustix::process::kill_process(Pid::from_child(&self.child), Signal::INT);
    }

    /// Waits for its end, which has to be a success.
    pub fn end(mut self) -> Result<()> {
        let until = Instant::now() + START_MAX;
        while Instant::now() < until {
            match self.child.try_wait()? {
                Some(status) if status.success() => return Ok(()),
                Some(status) => bail!("it ended with {status}"),
                None => thread::sleep(Duration::from_millis(2)),
            }
        }
        bail!("it does not end")
    }
}

/// The database at work.
pub struct DatabaseLoad(LineProcess);

impl DatabaseLoad {
    /// Begins on this disk, and returns when.
    pub fn start(disk: &Path) -> Result<(Self, Instant)> {
        let mut command = Command::new("python3");
        command.args(["-c", LOAD]).arg(disk);
        let mut load = Self(LineProcess::start(command)?);
        load.0.wait_for("committed")?;
        Ok((load, Instant::now()))
    }

    /// Ends it, and returns the times at which transactions were durable, in seconds since `began`.
    pub fn end(mut self, began: Instant) -> Result<Vec<f64>> {
        self.0.hush();
        self.0.wait_for("whole").context("a transaction failed, or the last disk is not whole")?;
        Ok(self.0.times_of("committed", began))
    }
}

/// An event of the disk, from when to when, in seconds.
pub struct DiskEvent {
    pub name: String,
    pub begun: f64,
    pub ended: f64,
}

/// Transactions a second between two moments, and the longest time without one, milliseconds.
fn seen(moments: &[f64], from: f64, to: f64) -> (f64, f64) {
    let inside: Vec<f64> = moments.iter().copied().filter(|at| (from..to).contains(at)).collect();
    let longest = inside.windows(2).map(|pair| pair[1] - pair[0]).fold(0.0, f64::max);
    (inside.len() as f64 / (to - from), longest * 1000.0)
}

/// The longest time without a transaction that touches these moments, milliseconds.
pub fn longest_pause_ms(moments: &[f64], from: f64, to: f64) -> f64 {
    let pairs = moments.windows(2).filter(|pair| pair[1] >= from && pair[0] <= to);
    pairs.map(|pair| pair[1] - pair[0]).fold(0.0, f64::max) * 1000.0
}

/// Transactions before, during and after each event.
pub fn findings(benchmark: &'static str, moments: &[f64], events: &[DiskEvent]) -> Vec<BenchmarkFinding> {
    let mut found = Vec::new();
    let mut add = |what: String, from: f64, to: f64| {
        // The transaction under way at the end is counted with the pause that it ends.
        let (rate, longest) = seen(moments, from, to + 0.05);
        let detail = format!("at most {longest:.1} ms from one to the next; none failed");
        let rate = MeasuredQuantity::new(SampleSpread::once(rate), "transactions/s");
        found.push(BenchmarkFinding::absolute(benchmark, what, rate, SpeedTarget::Context).with_detail(detail));
    };
    let mut from = 0.0;
    for DiskEvent { name, begun, ended } in events {
        add(format!("SQLite before {name}"), from, *begun);
        add(format!("SQLite during {name}"), *begun, *ended);
        from = *ended;
    }
    add("SQLite after all of it".to_owned(), from, moments.last().copied().unwrap_or(from) + 1e-3);
    found
}

/// Transactions a second over time, and a line for the beginning and end of each event.
pub fn chart(title: &str, moments: &[f64], events: &[DiskEvent]) -> LineChart {
    let slice = SLICE.as_secs_f64();
    let mut counts = vec![0_u32; moments.last().map_or(0, |last| (last / slice) as usize)];
    for at in moments {
        if let Some(count) = counts.get_mut((at / slice) as usize) {
            *count += 1;
        }
    }
    let rate = |count: &u32| f64::from(*count) / slice;
    let points = counts.iter().enumerate().map(|(at, count)| ((at as f64 + 0.5) * slice, rate(count))).collect();
    let most = counts.iter().map(rate).fold(1.0, f64::max);
    let mut lines = vec![ChartLine { name: "transactions".into(), points }];
    // A box for each: up where it begins, down where it is done.
    lines.extend(events.iter().map(|DiskEvent { name, begun, ended }| ChartLine {
        name: name.clone(),
        points: vec![(*begun, 0.0), (*begun, most), (*ended, most), (*ended, 0.0)],
    }));
    LineChart {
        title: title.into(),
        across: "seconds".into(),
        panels: vec![ChartPanel { up: "transactions/s".into(), is_logarithmic: false, lines }],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plot_has_the_rate_and_each_event() {
        let moments: Vec<f64> = (0..100).map(|at| f64::from(at) * 0.1).collect();
        let event = |name: &str, begun, ended| DiskEvent { name: name.into(), begun, ended };
        let events = [event("swap 1", 2.0, 4.0), event("swap 2", 6.0, 7.0)];
        let (rate, longest) = seen(&moments, 0.0, 10.0);
        assert!((rate - 10.0).abs() < 0.2 && (longest - 100.0).abs() < 1.0, "{rate} {longest}");
        let chart = chart("a disk", &moments, &events);
        assert_eq!(chart.panels[0].lines.len(), 3);
        assert!(chart.render().contains("swap 2"));
        let found = findings("timeline", &moments, &events);
        assert_eq!(found.len(), 5);
        assert!(!found.iter().any(BenchmarkFinding::missed));
    }

    #[test]
    fn pause_that_begins_before_an_event_and_ends_within_it_is_counted() {
        let moments = [0.0, 1.0, 1.5, 4.0, 4.1];
        assert_eq!(longest_pause_ms(&moments, 2.0, 3.0), 2500.0);
        assert_eq!(longest_pause_ms(&moments, 4.05, 5.0).round(), 100.0);
        assert_eq!(longest_pause_ms(&moments, 9.0, 10.0), 0.0);
    }

    #[test]
    fn process_that_ends_without_the_awaited_line_is_an_error_at_once() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo one; echo two"]);
        let mut process = LineProcess::start(command).expect("started");
        assert_eq!(process.wait_for("one").expect("said"), "one");
        let error = process.wait_for("one").expect_err("it is said once").to_string();
        assert!(error.contains("the last it said: two"), "{error}");
        assert_eq!(process.times_of("two", Instant::now() - START_MAX).len(), 1);
        process.end().expect("a success");
    }
}
