//! A database on a disk that moves: its transactions over time, and the events (Netbus, Figures 10 and 11).
//!
//! SQLite commits as fast as it can on a disk that one farbus shares and another attaches as a file; every line that it
//! prints is a durable transaction. None may fail, and the last disk holds a complete database.

use std::{
    fs,
    io::{BufRead, BufReader, Write},
    path::{Path, PathBuf},
    process::{Child, ChildStdin, Command, Stdio},
    sync::{Arc, Mutex, PoisonError},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};

use crate::{
    report::{Finding, Quantity},
    stats::{Spread, Target},
    svg::{Chart, Line, Panel},
};

/// The time over which transactions are counted for a point of the plot.
const SLICE: Duration = Duration::from_millis(200);
/// How long a process may take to print an expected line.
const START_MAX: Duration = Duration::from_secs(30);

/// Opens the disk that a line names. Inserts a row of 2000 bytes, deletes an old one, commits, and prints a line.
/// Another line closes the disk for the next one; at the end of the input it checks the whole database and ends.
const LOAD: &str = r#"
import os, select, sqlite3, sys
count = 0
while path := sys.stdin.readline().strip():
    db = sqlite3.connect(path, isolation_level=None)
    # There is room for one file only.
    db.execute("pragma journal_mode=memory"); db.execute("pragma synchronous=full")
    assert count == 0 or db.execute("select max(n) from t").fetchone() == (count - 1,)
    while not select.select([sys.stdin], [], [], 0)[0]:
        db.execute("begin"); db.execute("insert into t values (?, ?)", (count, os.urandom(2000)))
        db.execute("delete from t where n = ?", (count - 2000,)); db.execute("commit")
        count += 1
        print("committed", flush=True)
    if sys.stdin.readline():
        db.close()
        print("closed", flush=True)
    else:
        break
assert db.execute("pragma integrity_check").fetchone() == ("ok",)
assert db.execute("select max(n) from t").fetchone() == (count - 1,)
print("whole", flush=True)
"#;
const MAKE: &str =
    "import sqlite3, sys; sqlite3.connect(sys.argv[1]).execute('create table t (n integer primary key, b blob)')";

/// A folder that is removed with its content.
pub struct Folder(PathBuf);

impl Folder {
    pub fn new(name: &str) -> Result<Self> {
        let folder = Self(std::env::temp_dir().join(format!("farbus-bench-{}-{name}", std::process::id())));
        fs::create_dir_all(&folder.0)?;
        Ok(folder)
    }

    pub fn place(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Makes a folder in it.
    pub fn folder(&self, name: &str) -> Result<PathBuf> {
        let path = self.place(name);
        fs::create_dir_all(&path)?;
        Ok(path)
    }

    /// A disk with an empty database on it.
    pub fn database(&self, name: &str, bytes: u64) -> Result<PathBuf> {
        let path = self.place(name);
        let made = Command::new("python3").args(["-c", MAKE]).arg(&path).status().context("cannot run python3")?;
        if !made.success() {
            bail!("python3 has no SQLite");
        }
        fs::File::options().write(true).open(&path)?.set_len(bytes)?;
        Ok(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A process that ends with this value, and its lines with their times.
pub struct Process {
    child: Child,
    stdin: Option<ChildStdin>,
    said: Arc<Mutex<Vec<(Instant, String)>>>,
    /// How many lines were waited for.
    heard: usize,
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Process {
    pub fn start(mut command: Command) -> Result<Self> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().with_context(|| format!("cannot start {command:?}"))?;
        let stdout = child.stdout.take().context("its output is ours")?;
        let stdin = child.stdin.take();
        let said = Arc::<Mutex<Vec<_>>>::default();
        let for_thread = Arc::clone(&said);
        thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(std::io::Result::ok) {
                for_thread.lock().unwrap_or_else(PoisonError::into_inner).push((Instant::now(), line));
            }
        });
        Ok(Self { child, stdin, said, heard: 0 })
    }

    /// The next line with `part` in it.
    pub fn wait_for(&mut self, part: &str) -> Result<String> {
        let until = Instant::now() + START_MAX;
        while Instant::now() < until {
            let lines = self.said.lock().unwrap_or_else(PoisonError::into_inner);
            let found = lines.iter().enumerate().skip(self.heard).find(|(_, (_, line))| line.contains(part));
            if let Some((at, (_, line))) = found {
                self.heard = at + 1;
                return Ok(line.clone());
            }
            drop(lines);
            thread::sleep(Duration::from_millis(2));
        }
        bail!("it does not say '{part}'")
    }
}

/// The database at work.
pub struct Load(Process);

impl Load {
    /// Begins on this disk, and returns when.
    pub fn start(disk: &Path) -> Result<(Self, Instant)> {
        let mut command = Command::new("python3");
        command.args(["-c", LOAD]);
        let mut load = Self(Process::start(command)?);
        load.open(disk)?;
        Ok((load, Instant::now()))
    }

    /// Continues with this disk.
    pub fn open(&mut self, disk: &Path) -> Result<()> {
        self.tell(&disk.display().to_string())?;
        self.0.wait_for("committed").map(drop)
    }

    /// Closes its disk between two transactions.
    pub fn close(&mut self) -> Result<()> {
        self.tell("")?;
        self.0.wait_for("closed").map(drop)
    }

    fn tell(&mut self, line: &str) -> Result<()> {
        let stdin = self.0.stdin.as_mut().context("its input is ours")?;
        Ok(writeln!(stdin, "{line}")?)
    }

    /// Ends it, and returns the times at which transactions were durable, in seconds since `began`.
    pub fn end(mut self, began: Instant) -> Result<Vec<f64>> {
        // Ends its input.
        self.0.stdin = None;
        self.0.wait_for("whole").context("a transaction failed, or the last disk is not whole")?;
        let said = self.0.said.lock().unwrap_or_else(PoisonError::into_inner);
        let committed = said.iter().filter(|(_, line)| line == "committed");
        Ok(committed.filter_map(|(at, _)| at.checked_duration_since(began)).map(|at| at.as_secs_f64()).collect())
    }
}

/// An event of the disk, from when to when, in seconds.
pub struct Event {
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

/// Transactions before, during and after each event.
pub fn findings(benchmark: &'static str, moments: &[f64], events: &[Event]) -> Vec<Finding> {
    let mut found = Vec::new();
    let mut add = |what: String, from: f64, to: f64| {
        // The transaction under way at the end is counted with the pause that it ends.
        let (rate, longest) = seen(moments, from, to + 0.05);
        let detail = format!("at most {longest:.1} ms from one to the next; none failed");
        let rate = Quantity::new(Spread::once(rate), "transactions/s");
        found.push(Finding::absolute(benchmark, what, rate, Target::Context).with_detail(detail));
    };
    let mut from = 0.0;
    for Event { name, begun, ended } in events {
        add(format!("SQLite before {name}"), from, *begun);
        add(format!("SQLite during {name}"), *begun, *ended);
        from = *ended;
    }
    add("SQLite after all of it".to_owned(), from, moments.last().copied().unwrap_or(from) + 1e-3);
    found
}

/// Transactions a second over time, and a line for the beginning and end of each event.
pub fn chart(title: &str, moments: &[f64], events: &[Event]) -> Chart {
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
    let mut lines = vec![Line { name: "transactions".into(), points }];
    // A box for each: up where it begins, down where it is done.
    lines.extend(events.iter().map(|Event { name, begun, ended }| Line {
        name: name.clone(),
        points: vec![(*begun, 0.0), (*begun, most), (*ended, most), (*ended, 0.0)],
    }));
    Chart {
        title: title.into(),
        across: "seconds".into(),
        panels: vec![Panel { up: "transactions/s".into(), is_logarithmic: false, lines }],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plot_has_the_rate_and_each_event() {
        let moments: Vec<f64> = (0..100).map(|at| f64::from(at) * 0.1).collect();
        let event = |name: &str, begun, ended| Event { name: name.into(), begun, ended };
        let events = [event("swap 1", 2.0, 4.0), event("swap 2", 6.0, 7.0)];
        let (rate, longest) = seen(&moments, 0.0, 10.0);
        assert!((rate - 10.0).abs() < 0.2 && (longest - 100.0).abs() < 1.0, "{rate} {longest}");
        let chart = chart("a disk", &moments, &events);
        assert_eq!(chart.panels[0].lines.len(), 3);
        assert!(chart.render().contains("swap 2"));
        let found = findings("timeline", &moments, &events);
        assert_eq!(found.len(), 5);
        assert!(!found.iter().any(Finding::missed));
    }
}
