//! A machine with a database goes from host to host with its disk, and home, while the database works (Netbus, Figures
//! 9 and 10); on the way its disk is swapped to another file.
//!
//! Three paired hosts on this machine: one has the disk, and the machine at first; it visits the others. The machine
//! is a process with SQLite that moves as QEMU's do: where it goes, a second connection to the disk waits; the machine
//! stops at any request and continues with the second connection, nothing closed or opened anew. It has no memory to
//! copy, so what is measured is the disk's part of a move. `farbus-rig run redir-migrate-hosts` moves a real one.

use std::{
    process::Command,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};

use super::{
    database::{DiskEvent, LineProcess, ScratchFolder, chart, findings, longest_pause_ms},
    hosts::{DiskAttachment, DiskHostTrio, EXPORTER},
    hot_swap,
};
use crate::{
    lab::{BenchmarkEnvironment, BenchmarkSubject},
    report::{BenchmarkFinding, MeasuredQuantity},
    stats::{SampleSpread, SpeedTarget},
};

pub const NAME: &str = "journey";
/// Netbus, section 7.7: how long the paper's disk was quiet in a move, with 6 requests pending on average; that was a
/// part of the 115 ms for which the machine stood still.
const PAPER_QUIET_MS: f64 = 7.0;
const PAPER_STOPPED_MS: f64 = 115.0;
/// Netbus, section 7.7: what the clients lost of their throughput while memory was copied, for 6 s.
const PAPER_DROP_PERCENT: f64 = 28.0;
/// The machine: Python, because its SQLite is everywhere.
const MACHINE: &str = include_str!("machine.py");
/// Counts the rows of a database in a file, and checks it.
const CHECK: &str = "import sqlite3, sys; db = sqlite3.connect(f'file:{sys.argv[1]}?mode=ro', uri=True); \
    assert db.execute('pragma integrity_check').fetchone() == ('ok',); \
    print(db.execute('select max(n) + 1 from t').fetchone()[0])";

/// What the machine found at the end.
#[derive(Debug, PartialEq, Eq)]
struct DatabaseCheck {
    transactions: u64,
    transactions_lost: u64,
    bytes: u64,
    bytes_lost: u64,
}

impl DatabaseCheck {
    fn of(line: &str) -> Option<Self> {
        let mut words = line.strip_prefix("whole ")?.split(' ').map(str::parse);
        let mut next = || words.next()?.ok();
        Some(Self { transactions: next()?, transactions_lost: next()?, bytes: next()?, bytes_lost: next()? })
    }
}

pub fn run(lab: &BenchmarkEnvironment) -> Result<Vec<BenchmarkFinding>> {
    if lab.subject != BenchmarkSubject::Farbus {
        bail!("only farbus moves disks");
    }
    let (bytes, pause) = if lab.quick { (32 << 20, 1) } else { (256 << 20, 3) };
    let mut found = travel(lab, bytes, Duration::from_secs(pause))?;
    found.extend(hot_swap::run(NAME, lab)?);
    Ok(found)
}

fn travel(lab: &BenchmarkEnvironment, bytes: u64, pause: Duration) -> Result<Vec<BenchmarkFinding>> {
    let folder = ScratchFolder::new(NAME)?;
    let hosts = DiskHostTrio::new(lab, &folder, &folder.database("first.img", bytes)?)?;
    let DiskHostTrio { lab3, desk, rack, address, .. } = &hosts;
    let mut here = DiskAttachment::at(lab3, &folder, address, &[])?;
    let mut command = Command::new("python3");
    command.args(["-c", MACHINE]);
    let mut machine = LineProcess::start(command)?;
    machine.tell(&here.socket.display().to_string())?;
    machine.wait_for("committed").context("Python 3 with SQLite as a shared library is the machine")?;
    let began = Instant::now();
    let since = || began.elapsed().as_secs_f64();
    let (mut moves, mut events) = (Vec::new(), Vec::new());
    let second = folder.path_of("second.img");
    for (from, to) in [(lab3, desk), (desk, rack), (rack, lab3)] {
        thread::sleep(pause);
        let begun = since();
        let there = DiskAttachment::at(to, &folder, address, &["--inherit"])?;
        machine.tell(&format!("there {}", there.socket.display()))?;
        machine.wait_for("there")?;
        from.ok(&["migrate", from.disk(), "--to", to.name, "--with-machine"])?;
        let stopped = since();
        machine.tell("stop")?;
        machine.wait_for("stopped")?;
        here.depart(machine.id())?;
        machine.tell("go")?;
        machine.wait_for("gone")?;
        machine.wait_for("committed")?;
        let ended = since();
        here.process.end().with_context(|| format!("the attachment at {}", from.name))?;
        let name = if to.name == EXPORTER { "home".to_owned() } else { format!("to {}", to.name) };
        moves.push(DiskEvent { name: name.clone(), begun: stopped, ended });
        events.push(DiskEvent { name, begun, ended });
        here = there;
        if to.name == rack.name {
            thread::sleep(pause);
            let begun = since();
            lab3.ok(&["swap", "disk", "--to", &format!("block:{}", second.display())])?;
            events.push(DiskEvent { name: "swap".into(), begun, ended: since() });
        }
    }
    thread::sleep(pause);
    machine.tell("end")?;
    let message = machine.wait_for("whole").context("a transaction failed, or the last disk is not whole")?;
    let whole = DatabaseCheck::of(&message).with_context(|| format!("the machine said '{message}'"))?;
    let moments = machine.times_of("committed", began);
    machine.end()?;
    lab3.ok(&["detach", "disk"])?;
    here.process.end().context("the last attachment")?;
    let on_disk = Command::new("python3").args(["-c", CHECK]).arg(&second).output()?;
    let on_disk = String::from_utf8_lossy(&on_disk.stdout).trim().parse().context("the medium is not whole")?;
    let title = "A machine with a database that goes from host to host with its disk, and home";
    lab.plot(NAME, &chart(title, &moments, &events).render())?;
    let mut found = findings(NAME, &moments, &events);
    found.extend(moves.iter().flat_map(|event| of_move(&moments, event)));
    found.extend(lost(&whole, on_disk));
    Ok(found)
}

/// What a move cost, with the paper's beside.
fn of_move(moments: &[f64], DiskEvent { name, begun, ended }: &DiskEvent) -> [BenchmarkFinding; 2] {
    let ms = |value| MeasuredQuantity::new(SampleSpread::once(value), "ms");
    let pause = ms(longest_pause_ms(moments, *begun, *ended));
    let paper = ("the paper's disk, 6 pending", ms(PAPER_QUIET_MS));
    let detail = format!(
        "of the paper's {PAPER_STOPPED_MS} ms, which are memory for the most part; while its memory was copied, {PAPER_DROP_PERCENT} % less \
         throughput for 6 s"
    );
    let all = ms((ended - begun) * 1000.0);
    [
        BenchmarkFinding::ratio(NAME, format!("{name}: the longest pause"), pause, paper, SpeedTarget::Context)
            .with_detail(detail),
        BenchmarkFinding::absolute(
            NAME,
            format!("{name}: from stop to the first commit there"),
            all,
            SpeedTarget::Context,
        ),
    ]
}

/// What is lost after all moves: in the machine's view, and on the medium.
fn lost(whole: &DatabaseCheck, on_disk: u64) -> [BenchmarkFinding; 3] {
    let finding = |what: &str, lost: u64, unit, of: String| {
        let lost = MeasuredQuantity::new(SampleSpread::once(lost as f64), unit);
        BenchmarkFinding::absolute(NAME, what.to_owned(), lost, SpeedTarget::AtMost(0.0)).with_detail(of)
    };
    let of = format!("of {}", whole.transactions);
    [
        finding("transactions lost", whole.transactions_lost, "transactions", of.clone()),
        finding("transactions not on the medium", whole.transactions.abs_diff(on_disk), "transactions", of),
        finding("bytes lost", whole.bytes_lost, "bytes", format!("of {} written", whole.bytes)),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_lost_is_a_miss_and_a_pause_is_compared_with_the_paper() {
        let whole = DatabaseCheck::of("whole 7 0 4096 0").expect("a line");
        assert!(!lost(&whole, 7).iter().any(BenchmarkFinding::missed) && lost(&whole, 6)[1].missed());
        let lossy = DatabaseCheck::of("whole 7 1 8192 4096").expect("a line");
        assert!(lost(&lossy, 7)[0].missed() && lost(&lossy, 7)[2].missed());
        assert_eq!((DatabaseCheck::of("whole 7"), DatabaseCheck::of("gone")), (None, None));
        let [pause, _] = of_move(&[0.0, 1.0, 1.07], &DiskEvent { name: "home".into(), begun: 1.01, ended: 1.1 });
        assert_eq!(pause.judged.median().round(), 10.0);
    }

    #[test]
    fn machine_moves_twice_and_home_with_its_disk_and_loses_nothing() {
        let Some(lab) = BenchmarkEnvironment::for_test() else { return };
        let found = travel(&lab, 8 << 20, Duration::from_millis(200)).expect("it arrives");
        let of = |what: &str| {
            let finding = found.iter().find(|finding| finding.what == what);
            finding.unwrap_or_else(|| panic!("no {what}")).ours.spread.median()
        };
        for what in ["transactions lost", "transactions not on the medium", "bytes lost"] {
            assert_eq!(of(what), 0.0, "{what}");
        }
        for name in ["to desk", "to rack", "home"] {
            assert!(of(&format!("{name}: the longest pause")) > 0.0, "{name}");
        }
        assert!(of("SQLite during swap") >= 0.0 && of("SQLite after all of it") > 0.0);
    }
}
