//! A disk through farbus's own host in user space, compared with `nbdkit memory`, read the same way.
//!
//! Both answer from memory over loopback TCP, and both clients copy into one buffer. farbus does USB in addition:
//! Bulk-Only wrappers, SCSI, a device in the middle.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result, anyhow, bail, ensure};
use farbus::{client::Target as FarbusTarget, model::BlockStore};

use super::naming::size;
use crate::{
    contest::{Contest, Share, Side},
    lab::{Lab, Subject},
    load::{Tally, one_at_a_time},
    peers::nbdkit::{NbdPeer, Verb},
    report::{Finding, Quantity},
    stats::Target,
};

pub const NAME: &str = "storage";
pub(crate) const DISK_BYTES: u64 = 256 << 20;
const BLOCK_BYTES: usize = 128 * 1024;
const FILL: u8 = 0xa5;

pub fn run(lab: &Lab) -> Result<Vec<Finding>> {
    if lab.subject != Subject::Farbus {
        bail!("only farbus has a user-space host to read a disk with");
    }
    let nbdkit = NbdPeer::nbdkit(DISK_BYTES, lab.placement)?;
    let mut nbd = nbdkit.connect()?;
    let block = vec![FILL; BLOCK_BYTES];
    // nbdkit answers holes without touching memory; a filled disk has none.
    for offset in (0..nbd.bytes).step_by(BLOCK_BYTES) {
        nbd.write_at(offset, &block)?;
    }

    let image = Image::create()?;
    let server = lab.farbus(&format!("disk:{}", image.0.display()))?;
    let target: FarbusTarget = format!("{}/1-1", server.address).parse().map_err(|error: String| anyhow!(error))?;
    let mut disk = farbus::client::open_disk(&target).context("the disk that farbus shares")?;
    ensure!(disk.size_bytes() == DISK_BYTES, "the disk has {} bytes", disk.size_bytes());
    let mut first = vec![0; BLOCK_BYTES];
    disk.read_at(0, &mut first).map_err(|error| anyhow!("{error:?}"))?;
    ensure!(first == block, "the disk does not hold what its image does");

    let mut findings = Vec::new();
    for (verb, bytes, target) in [
        (Verb::Read, BLOCK_BYTES, Target::AtLeast(0.60)),
        (Verb::Read, 4096, Target::Context),
        (Verb::Write, BLOCK_BYTES, Target::Context),
    ] {
        let contest = Contest::hold(
            &lab.rules,
            &mut [
                Side::new(server.pid(), |slice| {
                    in_turn(slice, bytes, |offset, block| {
                        let done = match verb {
                            Verb::Read => disk.read_at(offset, block),
                            Verb::Write => disk.write_at(offset, block),
                        };
                        done.map_err(|error| anyhow!("{error:?}"))
                    })
                }),
                Side::new(nbdkit.pid(), |slice| {
                    in_turn(slice, bytes, |offset, block| match verb {
                        Verb::Read => nbd.read_at(offset, block),
                        Verb::Write => nbd.write_at(offset, block),
                    })
                }),
            ],
        )?;
        let [ours, theirs] = [0, 1].map(|side| contest.figures(side, |share| share.tally.bytes_per_second() / 1e6));
        let [our_cpu, their_cpu] = [0, 1].map(|side| contest.figures(side, Share::cpu_seconds_per_gb).median());
        let [our_p50, their_p50] = [0, 1].map(|side| contest.sum(side).latency_us(50.0));
        let detail = format!(
            "p50 {our_p50:.1} µs against {their_p50:.1} µs, server CPU {our_cpu:.2} s/GB against {their_cpu:.2} s/GB"
        );
        findings.push(
            Finding::ratio(
                NAME,
                format!("{} {} × 1", verb.name(), size(bytes)),
                Quantity::new(ours, "MB/s"),
                ("nbdkit memory", Quantity::new(theirs, "MB/s")),
                target,
            )
            .with_detail(detail)
            .seen_in(&contest),
        );
    }
    Ok(findings)
}

/// A full disk image in memory, gone when dropped.
pub(crate) struct Image(pub PathBuf);

impl Image {
    pub fn create() -> Result<Self> {
        Self::named("disk")
    }

    /// One of several at the same time.
    pub fn named(name: &str) -> Result<Self> {
        let image = Self(Path::new("/dev/shm").join(format!("farbus-bench-{}-{name}.img", std::process::id())));
        fs::write(&image.0, vec![FILL; DISK_BYTES as usize]).context("the image belongs on a tmpfs")?;
        Ok(image)
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// Block after block, one at a time, cyclically.
fn in_turn(limit: Duration, bytes: usize, mut operate: impl FnMut(u64, &mut [u8]) -> Result<()>) -> Result<Tally> {
    let mut block = vec![FILL; bytes];
    one_at_a_time(limit, bytes, |number| operate(number * bytes as u64 % DISK_BYTES, &mut block))
}
