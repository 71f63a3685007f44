//! A database's transactions over time, while its disk moves to another file and on to a third (Netbus, Figures 10 and 11).
//!
//! SQLite commits as fast as it can on a disk that a farbus shares and another shows as a file; every line that it prints is a
//! transaction that is durable. None may fail, and what the last disk holds is whole.

use std::{
    fs,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex, PoisonError},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::{
    lab::{Lab, Subject},
    report::{Finding, Quantity},
    stats::{Spread, Target},
    svg::{Chart, Line, Panel},
};

pub const NAME: &str = "timeline";
/// What the paper's requests waited while a disk was swapped with 30 of them pending.
const PAPER_MS: f64 = 15.0;
/// Over how long transactions are counted for a point of the plot.
const SLICE: Duration = Duration::from_millis(200);
/// How long a process may take to say what is waited for.
const START_MAX: Duration = Duration::from_secs(30);

/// A row of 2000 bytes in, an old one out, durable: then a line. Ends with a look at the whole when its input ends.
const LOAD: &str = r#"
import os, select, sqlite3, sys
db = sqlite3.connect(sys.argv[1], isolation_level=None)
# There is room for one file only.
db.execute("pragma journal_mode=memory"); db.execute("pragma synchronous=full")
count = 0
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

/// A folder that goes with whatever is left in it.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A process that ends with this.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What a process has said, and when.
type Said = Arc<Mutex<Vec<(Instant, String)>>>;

pub fn run(lab: &Lab) -> Result<Vec<Finding>> {
    if lab.subject != Subject::Farbus {
        bail!("only farbus moves disks");
    }
    let folder = Folder(std::env::temp_dir().join(format!("farbus-bench-{}-timeline", std::process::id())));
    let (bytes, pause) = if lab.quick { (32 << 20, 1) } else { (256 << 20, 3) };
    let pause = Duration::from_secs(pause);
    let place = |name: &str| folder.0.join(name);
    for name in ["run", "at"] {
        fs::create_dir_all(place(name))?;
    }
    let farbus = |words: &[&str]| -> Result<Command> {
        let mut command = Command::new(lab.farbus_program()?);
        command.args(words).env("XDG_RUNTIME_DIR", place("run")).env("FARBUS_STATE", place("state"));
        Ok(command)
    };
    let first = place("first.img");
    let made = python(MAKE, &first).status().context("cannot run python3")?;
    if !made.success() {
        bail!("python3 has no SQLite");
    }
    fs::File::options().write(true).open(&first)?.set_len(bytes)?;
    let (_share, said) = start(farbus(&["share", &format!("disk:{}", first.display()), "--listen", "127.0.0.1:0"])?)?;
    let line = wait_for(&said, "listening on ")?;
    let address = line.split_whitespace().nth(2).context("a share says where it listens")?.to_owned();
    let at = place("at");
    let target = format!("{address}/disk");
    let words = ["attach", &target, "--via", "fuse", "--at", at.to_str().context("a plain path")?];
    let (_attach, said) = start(farbus(&words)?)?;
    wait_for(&said, "attached as ")?;

    let (mut load, commits) = start(python(LOAD, &at.join("disk.img")))?;
    wait_for(&commits, "committed")?;
    let began = Instant::now();
    let mut events = Vec::new();
    let mut quiet_ms = Vec::new();
    for (name, more) in [("second.img", None), ("third.img", Some("--verify"))] {
        thread::sleep(pause);
        let to = format!("block:{}", place(name).display());
        let from = began.elapsed();
        let words = ["swap", "disk", "--to", &to, "--json"];
        let ended = farbus(&words)?.args(more).output()?;
        if !ended.status.success() {
            bail!("the disk did not move: {}", String::from_utf8_lossy(&ended.stderr));
        }
        let status: Value = serde_json::from_slice(&ended.stdout)?;
        quiet_ms.push(status["quiet_ms"].as_f64().context("a swap says how long it held anybody")?);
        events.push((from, began.elapsed()));
    }
    thread::sleep(pause);
    // What it reads from is at its end.
    drop(load.0.stdin.take());
    wait_for(&commits, "whole").context("a transaction failed, or the last disk is not whole")?;
    let said = commits.lock().unwrap_or_else(PoisonError::into_inner);
    let moments: Vec<f64> = said
        .iter()
        .filter(|(_, line)| line == "committed")
        .filter_map(|(at, _)| at.checked_duration_since(began))
        .map(|at| at.as_secs_f64())
        .collect();
    lab.plot(NAME, &chart(&moments, &events).render())?;
    Ok(findings(&moments, &events, &quiet_ms))
}

fn python(script: &str, path: &Path) -> Command {
    let mut command = Command::new("python3");
    command.arg("-c").arg(script).arg(path);
    command
}

fn start(mut command: Command) -> Result<(Process, Said)> {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().with_context(|| format!("cannot start {command:?}"))?;
    let stdout = child.stdout.take().context("its output is ours")?;
    let said = Said::default();
    let for_thread = Arc::clone(&said);
    thread::spawn(move || {
        for line in BufReader::new(stdout).lines().map_while(std::io::Result::ok) {
            for_thread.lock().unwrap_or_else(PoisonError::into_inner).push((Instant::now(), line));
        }
    });
    Ok((Process(child), said))
}

fn wait_for(said: &Said, part: &str) -> Result<String> {
    let until = Instant::now() + START_MAX;
    while Instant::now() < until {
        let lines = said.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, line)) = lines.iter().rev().find(|(_, line)| line.contains(part)) {
            return Ok(line.clone());
        }
        drop(lines);
        thread::sleep(Duration::from_millis(5));
    }
    bail!("it does not say '{part}'")
}

/// Transactions a second between two moments, and the longest time without one, milliseconds.
fn seen(moments: &[f64], from: f64, to: f64) -> (f64, f64) {
    let inside: Vec<f64> = moments.iter().copied().filter(|at| (from..to).contains(at)).collect();
    let longest = inside.windows(2).map(|pair| pair[1] - pair[0]).fold(0.0, f64::max);
    (inside.len() as f64 / (to - from), longest * 1000.0)
}

fn findings(moments: &[f64], events: &[(Duration, Duration)], quiet_ms: &[f64]) -> Vec<Finding> {
    let mut found = Vec::new();
    let mut add = |what: String, from: f64, to: f64| {
        let (rate, longest) = seen(moments, from, to);
        let detail = format!("at most {longest:.1} ms from one to the next; none failed");
        let rate = Quantity::new(Spread::once(rate), "transactions/s");
        found.push(Finding::absolute(NAME, what, rate, Target::Context).with_detail(detail));
    };
    let mut from = 0.0;
    for (at, (begun, ended)) in events.iter().enumerate() {
        let (begun, ended) = (begun.as_secs_f64(), ended.as_secs_f64());
        add(format!("SQLite before swap {}", at + 1), from, begun);
        add(format!("SQLite during swap {}", at + 1), begun, ended);
        from = ended;
    }
    add("SQLite after both".to_owned(), from, moments.last().copied().unwrap_or(from) + 1e-3);
    let longest = Quantity::new(Spread::once(quiet_ms.iter().copied().fold(0.0, f64::max)), "ms");
    let paper = Quantity::new(Spread::once(PAPER_MS), "ms");
    let what = "requests held by a swap, the longest".to_owned();
    found.push(Finding::ratio(NAME, what, longest, ("the paper, 30 pending", paper), Target::AtMost(1.0)));
    found
}

fn chart(moments: &[f64], events: &[(Duration, Duration)]) -> Chart {
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
    for (at, (begun, ended)) in events.iter().enumerate() {
        for (what, moment) in [("begins", begun), ("is done", ended)] {
            let x = moment.as_secs_f64();
            lines.push(Line { name: format!("swap {} {what}", at + 1), points: vec![(x, 0.0), (x, most)] });
        }
    }
    Chart {
        title: "A database whose disk moves to another file, and on to a third".into(),
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
        let events =
            [(Duration::from_secs(2), Duration::from_secs(4)), (Duration::from_secs(6), Duration::from_secs(7))];
        let (rate, longest) = seen(&moments, 0.0, 10.0);
        assert!((rate - 10.0).abs() < 0.2 && (longest - 100.0).abs() < 1.0, "{rate} {longest}");
        let chart = chart(&moments, &events);
        assert_eq!(chart.panels[0].lines.len(), 5);
        assert!(chart.render().contains("swap 2 is done"));
        let found = findings(&moments, &events, &[0.02, 0.5]);
        assert_eq!(found.len(), 6);
        assert!(!found.iter().any(Finding::missed), "half a millisecond is less than the paper's");
    }
}
