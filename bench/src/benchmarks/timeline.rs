//! A database's transactions over time, while its disk is swapped to another file and on to a third (Netbus, Figure
//! 11).

use std::{
    process::Command,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::database::{DatabaseLoad, DiskEvent, LineProcess, ScratchFolder, chart, findings};
use crate::{
    lab::{BenchmarkEnvironment, BenchmarkSubject},
    report::{BenchmarkFinding, MeasuredQuantity},
    stats::{SampleSpread, SpeedTarget},
};

pub const NAME: &str = "timeline";
/// How long the paper's requests waited while a disk was swapped with 30 of them pending.
const PAPER_MS: f64 = 15.0;

pub fn run(lab: &BenchmarkEnvironment) -> Result<Vec<BenchmarkFinding>> {
    if lab.subject != BenchmarkSubject::Farbus {
        bail!("only farbus moves disks");
    }
    let folder = ScratchFolder::new(NAME)?;
    let (bytes, pause) = if lab.quick { (32 << 20, 1) } else { (256 << 20, 3) };
    let pause = Duration::from_secs(pause);
    let run = folder.folder("run")?;
    let farbus = |words: &[&str]| -> Result<Command> {
        let mut command = Command::new(lab.farbus_program()?);
        command.args(words).env("XDG_RUNTIME_DIR", &run).env("FARBUS_STATE", folder.path_of("state"));
        Ok(command)
    };
    let first = folder.database("first.img", bytes)?;
    let disk = format!("disk:{}", first.display());
    let mut share = LineProcess::start(farbus(&["share", &disk, "--listen", "127.0.0.1:0"])?)?;
    let line = share.wait_for("listening on ")?;
    let address = line.split_whitespace().nth(2).context("a share says where it listens")?.to_owned();
    let at = folder.folder("at")?;
    let target = format!("{address}/disk");
    let words = ["attach", &target, "--via", "fuse", "--at", at.to_str().context("a plain path")?];
    let mut attach = LineProcess::start(farbus(&words)?)?;
    attach.wait_for("attached as ")?;

    let (load, began) = DatabaseLoad::start(&at.join("disk.img"))?;
    let since = |began: Instant| began.elapsed().as_secs_f64();
    let mut events = Vec::new();
    let mut held_ms = 0.0_f64;
    for (name, file, more) in [("swap 1", "second.img", None), ("swap 2, compared", "third.img", Some("--verify"))] {
        thread::sleep(pause);
        let to = format!("block:{}", folder.path_of(file).display());
        let begun = since(began);
        let ended = farbus(&["swap", "disk", "--to", &to, "--json"])?.args(more).output()?;
        if !ended.status.success() {
            bail!("the disk did not move: {}", String::from_utf8_lossy(&ended.stderr));
        }
        let status: Value = serde_json::from_slice(&ended.stdout)?;
        held_ms = held_ms.max(status["quiet_ms"].as_f64().context("a swap says how long it held anybody")?);
        events.push(DiskEvent { name: name.into(), begun, ended: since(began) });
    }
    thread::sleep(pause);
    let moments = load.end(began)?;
    lab.plot(
        NAME,
        &chart("A database whose disk moves to another file, and on to a third", &moments, &events).render(),
    )?;
    let mut found = findings(NAME, &moments, &events);
    let held = MeasuredQuantity::new(SampleSpread::once(held_ms), "ms");
    let paper = MeasuredQuantity::new(SampleSpread::once(PAPER_MS), "ms");
    let what = "requests held by a swap, the longest".to_owned();
    found.push(BenchmarkFinding::ratio(NAME, what, held, ("the paper, 30 pending", paper), SpeedTarget::AtMost(1.0)));
    Ok(found)
}
