//! A disk through farbus's own host in user space, against `nbdkit memory`, read the same way.

use std::time::{Duration, Instant};

use anyhow::Result;

use crate::{
    contest::{Contest, Side},
    lab::Lab,
    load::Tally,
    peers::nbdkit::{Nbd, Nbdkit},
    report::{Finding, Quantity},
    stats::Target,
};

pub const NAME: &str = "storage";
const DISK_BYTES: u64 = 256 << 20;
const BLOCK_BYTES: usize = 128 * 1024;

pub fn run(lab: &Lab) -> Result<Vec<Finding>> {
    let nbdkit = Nbdkit::start(DISK_BYTES, lab.placement)?;
    let mut nbd = nbdkit.connect()?;
    fill(&mut nbd)?;
    let contest = Contest::hold(
        &lab.rules,
        &mut [Side::new(nbdkit.pid(), |slice| read_in_turn(slice, |offset, block| nbd.read_at(offset, block)))],
    )?;
    let rate = contest.figures(0, |share| share.tally.bytes_per_second() / 1e6);
    Ok(vec![
        Finding::absolute(
            NAME,
            "nbdkit memory, 128 KiB reads × 1".to_owned(),
            Quantity::new(rate, "MB/s"),
            Target::Context,
        )
        .seen_in(&contest),
    ])
}

/// `nbdkit memory` answers holes without touching memory; a disk with something on it has none.
fn fill(nbd: &mut Nbd) -> Result<()> {
    let block = [0xa5; BLOCK_BYTES];
    for offset in (0..nbd.bytes).step_by(BLOCK_BYTES) {
        nbd.write_at(offset, &block)?;
    }
    Ok(())
}

fn read_in_turn(limit: Duration, mut read_at: impl FnMut(u64, &mut [u8]) -> Result<()>) -> Result<Tally> {
    let mut block = vec![0; BLOCK_BYTES];
    let mut tally = Tally::nothing();
    let began = Instant::now();
    let mut now = began;
    while now - began < limit {
        read_at(tally.bytes % DISK_BYTES, &mut block)?;
        let done = Instant::now();
        tally.latency_ns.saturating_record((done - now).as_nanos() as u64);
        tally.urbs += 1;
        tally.bytes += BLOCK_BYTES as u64;
        now = done;
    }
    tally.seconds = (now - began).as_secs_f64();
    Ok(tally)
}
