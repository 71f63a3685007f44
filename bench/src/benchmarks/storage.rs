//! A disk through farbus's own host in user space, compared with `nbdkit memory`, read the same way.
//!
//! Both answer from memory over loopback TCP, and both clients copy into one buffer. farbus does USB in addition:
//! Bulk-Only wrappers, SCSI, a device in the middle.

use std::{
    fs::{self, File},
    io::{self, Read as _},
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result, anyhow, bail, ensure};
use farbus::{client::DeviceTarget as FarbusTarget, model::BlockStore};

use super::naming::size;
use crate::{
    contest::{ContestResult, ContestServer, RoundTally},
    lab::{BenchmarkEnvironment, BenchmarkSubject},
    load::{LoadTally, one_at_a_time},
    peers::nbdkit::{BlockVerb, NbdPeer},
    report::{BenchmarkFinding, MeasuredQuantity},
    stats::SpeedTarget,
};

pub const NAME: &str = "storage";
pub(crate) const DISK_BYTES: u64 = 256 << 20;
const BLOCK_BYTES: usize = 128 * 1024;
const FILL: u8 = 0xa5;

pub fn run(lab: &BenchmarkEnvironment) -> Result<Vec<BenchmarkFinding>> {
    if lab.subject != BenchmarkSubject::Farbus {
        bail!("only farbus has a user-space host to read a disk with");
    }
    let nbdkit = NbdPeer::nbdkit(DISK_BYTES, lab.placement)?;
    let mut nbd = nbdkit.connect()?;
    let block = vec![FILL; BLOCK_BYTES];
    // nbdkit answers holes without touching memory; a filled disk has none.
    for offset in (0..nbd.bytes).step_by(BLOCK_BYTES) {
        nbd.write_at(offset, &block)?;
    }

    let image = TmpfsImage::create()?;
    let server = lab.farbus(&format!("disk:{}", image.0.display()))?;
    let target: FarbusTarget = format!("{}/1-1", server.address).parse().map_err(|error: String| anyhow!(error))?;
    let mut disk = farbus::client::open_disk(&target).context("the disk that farbus shares")?;
    ensure!(disk.size_bytes() == DISK_BYTES, "the disk has {} bytes", disk.size_bytes());
    let mut first = vec![0; BLOCK_BYTES];
    disk.read_at(0, &mut first).map_err(|error| anyhow!("{error:?}"))?;
    ensure!(first == block, "the disk does not hold what its image does");

    let mut findings = Vec::new();
    for (verb, bytes, target) in [
        (BlockVerb::Read, BLOCK_BYTES, SpeedTarget::AtLeast(0.60)),
        (BlockVerb::Read, 4096, SpeedTarget::Context),
        (BlockVerb::Write, BLOCK_BYTES, SpeedTarget::Context),
    ] {
        let contest = ContestResult::hold(
            &lab.rules,
            &mut [
                ContestServer::new(server.pid(), |slice| {
                    in_turn(slice, bytes, |offset, block| {
                        let done = match verb {
                            BlockVerb::Read => disk.read_at(offset, block),
                            BlockVerb::Write => disk.write_at(offset, block),
                        };
                        done.map_err(|error| anyhow!("{error:?}"))
                    })
                }),
                ContestServer::new(nbdkit.pid(), |slice| {
                    in_turn(slice, bytes, |offset, block| match verb {
                        BlockVerb::Read => nbd.read_at(offset, block),
                        BlockVerb::Write => nbd.write_at(offset, block),
                    })
                }),
            ],
        )?;
        let [ours, theirs] = [0, 1].map(|side| contest.figures(side, |share| share.tally.bytes_per_second() / 1e6));
        let [our_cpu, their_cpu] = [0, 1].map(|side| contest.figures(side, RoundTally::cpu_seconds_per_gb).median());
        let [our_p50, their_p50] = [0, 1].map(|side| contest.sum(side).latency_us(50.0));
        let detail = format!(
            "p50 {our_p50:.1} µs against {their_p50:.1} µs, server CPU {our_cpu:.2} s/GB against {their_cpu:.2} s/GB"
        );
        findings.push(
            BenchmarkFinding::ratio(
                NAME,
                format!("{} {} × 1", verb.name(), size(bytes)),
                MeasuredQuantity::new(ours, "MB/s"),
                ("nbdkit memory", MeasuredQuantity::new(theirs, "MB/s")),
                target,
            )
            .with_detail(detail)
            .seen_in(&contest),
        );
    }
    Ok(findings)
}

/// A full disk image in memory, gone when dropped.
pub(crate) struct TmpfsImage(pub PathBuf);

impl TmpfsImage {
    pub fn create() -> Result<Self> {
        Self::named("disk")
    }

    /// One of several at the same time.
    pub fn named(name: &str) -> Result<Self> {
        Self::of_bytes(name, DISK_BYTES)
    }

    /// An image of so many bytes.
    pub fn of_bytes(name: &str, bytes: u64) -> Result<Self> {
        let image = Self(Path::new("/dev/shm").join(format!("farbus-bench-{}-{name}.img", std::process::id())));
        let fill = || -> io::Result<()> {
            io::copy(&mut io::repeat(FILL).take(bytes), &mut File::create(&image.0)?).map(drop)
        };
        fill().context("the image belongs on a tmpfs")?;
        Ok(image)
    }
}

impl Drop for TmpfsImage {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// Block after block, one at a time, cyclically.
fn in_turn(limit: Duration, bytes: usize, mut operate: impl FnMut(u64, &mut [u8]) -> Result<()>) -> Result<LoadTally> {
    let mut block = vec![FILL; bytes];
    one_at_a_time(limit, bytes, |number| operate(number * bytes as u64 % DISK_BYTES, &mut block))
}
