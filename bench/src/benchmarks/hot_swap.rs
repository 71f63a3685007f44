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
    database::ScratchFolder,
    files::{FileWriteLoad, PARALLEL_BYTES, RECORD_BYTES},
    hosts::{DiskAttachment, DiskHostTrio},
};
use crate::{
    lab::BenchmarkEnvironment,
    peers::nbdkit::NbdLoadClient,
    report::{BenchmarkFinding, MeasuredQuantity},
    stats::{SampleSpread, SpeedTarget},
    svg::{ChartLine, ChartPanel, LineChart},
};

/// How long the paper's disk was quiet for its swap, with about 30 requests pending (Netbus, section 7.7).
const PAPER_MS: f64 = 15.0;
const FILE: FileWriteLoad = FileWriteLoad {
    first: 0,
    bytes: PARALLEL_BYTES,
    record_bytes: RECORD_BYTES,
    cache_bytes: 0,
    limit: Duration::from_secs(4),
};

/// What was written, where.
struct WritePhase {
    name: &'static str,
    /// When each file was done, in seconds, and its MB/s.
    files: Vec<(f64, f64)>,
}

impl WritePhase {
    fn rates(&self) -> MeasuredQuantity {
        MeasuredQuantity::new(SampleSpread::new(self.files.iter().map(|&(_, rate)| rate).collect()), "MB/s")
    }
}

/// As a part of this benchmark.
pub fn run(benchmark: &'static str, lab: &BenchmarkEnvironment) -> Result<Vec<BenchmarkFinding>> {
    let (stages, quiet_ms) = measured(lab, Duration::from_secs(if lab.quick { 1 } else { 5 }))?;
    lab.plot("journey-files", &chart(&stages).render())?;
    Ok(findings(benchmark, &stages, quiet_ms))
}

/// The stages, and for how long the swap held requests, ms.
fn measured(lab: &BenchmarkEnvironment, span: Duration) -> Result<(Vec<WritePhase>, f64)> {
    let folder = ScratchFolder::new("hot-swap")?;
    let image = folder.path_of("first.img");
    File::create(&image)?.set_len(2 * PARALLEL_BYTES)?;
    let hosts = DiskHostTrio::new(lab, &folder, &image)?;
    let DiskHostTrio { lab3, desk, address, .. } = &hosts;
    let here = DiskAttachment::at(lab3, &folder, address, &[])?;
    let mut disk = NbdLoadClient::negotiate(UnixStream::connect(&here.socket)?)?;
    let began = Instant::now();
    let write = |disk: &mut NbdLoadClient<UnixStream>, files: &mut Vec<(f64, f64)>| -> Result<()> {
        let rate = FILE.run(disk)?;
        files.push((began.elapsed().as_secs_f64(), rate));
        Ok(())
    };
    let stage = |disk: &mut NbdLoadClient<UnixStream>, name| -> Result<WritePhase> {
        let (mut files, from) = (Vec::new(), Instant::now());
        while files.is_empty() || from.elapsed() < span {
            write(disk, &mut files)?;
        }
        Ok(WritePhase { name, files })
    };
    let local = stage(&mut disk, "at home")?;

    let there = DiskAttachment::at(desk, &folder, address, &["--inherit"])?;
    let successor = NbdLoadClient::negotiate(UnixStream::connect(&there.socket)?)?;
    lab3.ok(&["migrate", lab3.disk(), "--to", desk.name, "--with-machine"])?;
    here.depart(std::process::id())?;
    let mut disk = successor;
    here.process.end().context("the attachment at home")?;
    let remote = stage(&mut disk, "moved")?;

    let second = format!("block:{}", folder.path_of("second.img").display());
    let mut command = desk.command(&["swap", desk.disk(), "--to", &second, "--json"])?;
    let mut swapping = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let mut during = WritePhase { name: "while it is swapped", files: Vec::new() };
    while during.files.is_empty() || swapping.try_wait()?.is_none() {
        write(&mut disk, &mut during.files)?;
    }
    let ended = swapping.wait_with_output()?;
    if !ended.status.success() {
        bail!("the disk was not swapped: {}", String::from_utf8_lossy(&ended.stderr));
    }
    let answer: Value = serde_json::from_slice(&ended.stdout)?;
    let quiet_ms = answer["quiet_ms"].as_f64().context("a swap says how long it held anybody")?;
    let swapped = stage(&mut disk, "swapped to a disk there")?;
    drop(disk);
    desk.ok(&["detach", desk.disk()])?;
    there.process.end().context("the attachment that was swapped")?;
    let bytes = std::fs::read(folder.path_of("second.img"))?;
    let has_all = (0..FILE.bytes).step_by(RECORD_BYTES).all(|at| bytes[at as usize..][..8] == at.to_le_bytes());
    ensure!(has_all, "the disk that it was swapped to does not have what was written");
    Ok((vec![local, remote, during, swapped], quiet_ms))
}

fn findings(benchmark: &'static str, stages: &[WritePhase], quiet_ms: f64) -> Vec<BenchmarkFinding> {
    let home = stages[0].rates().spread.median();
    let mut found: Vec<BenchmarkFinding> = stages
        .iter()
        .map(|stage| {
            let rates = stage.rates();
            let detail = format!(
                "{:.2} of what it is at home; the paper, Figure 11: less after the move, as before after the swap",
                rates.spread.median() / home
            );
            let what = format!("files of 32 MiB, {}", stage.name);
            BenchmarkFinding::absolute(benchmark, what, rates, SpeedTarget::Context).with_detail(detail)
        })
        .collect();
    let ms = |value| MeasuredQuantity::new(SampleSpread::once(value), "ms");
    let what = "requests held by the swap".to_owned();
    found.push(BenchmarkFinding::ratio(
        benchmark,
        what,
        ms(quiet_ms),
        ("the paper, 30 pending", ms(PAPER_MS)),
        SpeedTarget::AtMost(1.0),
    ));
    found
}

fn chart(stages: &[WritePhase]) -> LineChart {
    let lines = stages.iter().map(|stage| ChartLine { name: stage.name.into(), points: stage.files.clone() }).collect();
    LineChart {
        title: "Files written before a move, after it, and after a swap (Netbus, Figure 11)".into(),
        across: "seconds".into(),
        panels: vec![ChartPanel { up: "MB/s".into(), is_logarithmic: false, lines }],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_written_before_a_move_after_it_and_through_a_swap_and_all_is_on_the_last_disk() {
        let Some(lab) = BenchmarkEnvironment::for_test() else { return };
        let (stages, quiet_ms) = measured(&lab, Duration::ZERO).expect("all is written");
        assert!(stages.iter().all(|stage| !stage.files.is_empty()));
        let found = findings("journey", &stages, quiet_ms);
        let whats: Vec<&str> = found.iter().map(|finding| finding.what.as_str()).collect();
        assert_eq!((whats.len(), whats[1], whats[4]), (5, "files of 32 MiB, moved", "requests held by the swap"));
        assert_eq!(chart(&stages).render().matches("<polyline").count(), 4);
    }
}
