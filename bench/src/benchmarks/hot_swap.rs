//! Files written to a disk before it moves to another host, after that, and after it is swapped to a disk of that host
//! (Netbus, Figure 11): 32 MiB in records of 8 MiB, without a cache, again and again.
//!
//! The disk is had by NBD as in `journey`; between a move's stop and its end nothing is written. While the disk is
//! swapped, writing goes on.

use std::{
    fs::File,
    os::unix::net::UnixStream,
    process::Stdio,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use super::{
    database::Folder,
    files::{PARALLEL_BYTES, RECORD_BYTES, Writing},
    hosts::{Attached, Hosts},
};
use crate::{
    lab::Lab,
    peers::nbdkit::Nbd,
    report::{Finding, Quantity},
    stats::{Spread, Target},
    svg::{Chart, Line, Panel},
};

/// How long the paper's disk was quiet for its swap, with about 30 requests pending (Netbus, section 7.7).
const PAPER_MS: f64 = 15.0;
const FILE: Writing = Writing {
    first: 0,
    bytes: PARALLEL_BYTES,
    record_bytes: RECORD_BYTES,
    cache_bytes: 0,
    limit: Duration::from_secs(4),
};

/// What was written, where.
struct Stage {
    name: &'static str,
    /// When each file was done, in seconds, and its MB/s.
    files: Vec<(f64, f64)>,
}

impl Stage {
    fn rates(&self) -> Quantity {
        Quantity::new(Spread::new(self.files.iter().map(|&(_, rate)| rate).collect()), "MB/s")
    }
}

/// As a part of this benchmark.
pub fn run(benchmark: &'static str, lab: &Lab) -> Result<Vec<Finding>> {
    let (stages, quiet_ms) = measured(lab, Duration::from_secs(if lab.quick { 1 } else { 5 }))?;
    lab.plot("journey-files", &chart(&stages).render())?;
    Ok(findings(benchmark, &stages, quiet_ms))
}

/// The stages, and for how long the swap held requests, ms.
fn measured(lab: &Lab, span: Duration) -> Result<(Vec<Stage>, f64)> {
    let folder = Folder::new("hot-swap")?;
    let image = folder.place("first.img");
    File::create(&image)?.set_len(2 * PARALLEL_BYTES)?;
    let hosts = Hosts::new(lab, &folder, &image)?;
    let Hosts { lab3, desk, address, .. } = &hosts;
    let here = Attached::at(lab3, &folder, address, &[])?;
    let mut disk = Nbd::negotiate(UnixStream::connect(&here.socket)?)?;
    let began = Instant::now();
    let write = |disk: &mut Nbd<UnixStream>, files: &mut Vec<(f64, f64)>| -> Result<()> {
        let rate = FILE.run(disk)?;
        files.push((began.elapsed().as_secs_f64(), rate));
        Ok(())
    };
    let stage = |disk: &mut Nbd<UnixStream>, name| -> Result<Stage> {
        let (mut files, from) = (Vec::new(), Instant::now());
        while files.is_empty() || from.elapsed() < span {
            write(disk, &mut files)?;
        }
        Ok(Stage { name, files })
    };
    let local = stage(&mut disk, "at home")?;

    let there = Attached::at(desk, &folder, address, &["--inherit"])?;
    let successor = Nbd::negotiate(UnixStream::connect(&there.socket)?)?;
    lab3.ok(&["migrate", lab3.disk(), "--to", desk.name, "--with-machine"])?;
    here.depart(std::process::id())?;
    let mut disk = successor;
    here.process.end().context("the attachment at home")?;
    let remote = stage(&mut disk, "moved")?;

    let second = format!("block:{}", folder.place("second.img").display());
    let mut command = desk.command(&["swap", desk.disk(), "--to", &second, "--json"])?;
    let mut swapping = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let mut during = Stage { name: "while it is swapped", files: Vec::new() };
    while during.files.is_empty() || swapping.try_wait()?.is_none() {
        write(&mut disk, &mut during.files)?;
    }
    let ended = swapping.wait_with_output()?;
    if !ended.status.success() {
        bail!("the disk was not swapped: {}", String::from_utf8_lossy(&ended.stderr));
    }
    let said: Value = serde_json::from_slice(&ended.stdout)?;
    let quiet_ms = said["quiet_ms"].as_f64().context("a swap says how long it held anybody")?;
    let swapped = stage(&mut disk, "swapped to a disk there")?;
    drop(disk);
    desk.ok(&["detach", desk.disk()])?;
    there.process.end().context("the attachment that was swapped")?;
    let bytes = std::fs::read(folder.place("second.img"))?;
    let has_all = (0..FILE.bytes).step_by(RECORD_BYTES).all(|at| bytes[at as usize..][..8] == at.to_le_bytes());
    ensure!(has_all, "the disk that it was swapped to does not have what was written");
    Ok((vec![local, remote, during, swapped], quiet_ms))
}

fn findings(benchmark: &'static str, stages: &[Stage], quiet_ms: f64) -> Vec<Finding> {
    let home = stages[0].rates().spread.median();
    let mut found: Vec<Finding> = stages
        .iter()
        .map(|stage| {
            let rates = stage.rates();
            let detail = format!(
                "{:.2} of what it is at home; the paper, Figure 11: less after the move, as before after the swap",
                rates.spread.median() / home
            );
            let what = format!("files of 32 MiB, {}", stage.name);
            Finding::absolute(benchmark, what, rates, Target::Context).with_detail(detail)
        })
        .collect();
    let ms = |value| Quantity::new(Spread::once(value), "ms");
    let what = "requests held by the swap".to_owned();
    found.push(Finding::ratio(
        benchmark,
        what,
        ms(quiet_ms),
        ("the paper, 30 pending", ms(PAPER_MS)),
        Target::AtMost(1.0),
    ));
    found
}

fn chart(stages: &[Stage]) -> Chart {
    let lines = stages.iter().map(|stage| Line { name: stage.name.into(), points: stage.files.clone() }).collect();
    Chart {
        title: "Files written before a move, after it, and after a swap (Netbus, Figure 11)".into(),
        across: "seconds".into(),
        panels: vec![Panel { up: "MB/s".into(), is_logarithmic: false, lines }],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_written_before_a_move_after_it_and_through_a_swap_and_all_is_on_the_last_disk() {
        let Some(lab) = Lab::for_test() else { return };
        let (stages, quiet_ms) = measured(&lab, Duration::ZERO).expect("all is written");
        assert!(stages.iter().all(|stage| !stage.files.is_empty()));
        let found = findings("journey", &stages, quiet_ms);
        let whats: Vec<&str> = found.iter().map(|finding| finding.what.as_str()).collect();
        assert_eq!((whats.len(), whats[1], whats[4]), (5, "files of 32 MiB, moved", "requests held by the swap"));
        assert_eq!(chart(&stages).render().matches("<polyline").count(), 4);
    }
}
