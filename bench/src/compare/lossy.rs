//! A disk over QUIC by a way that loses datagrams, beside what TCP could carry there.
//!
//! The way is a relay on this machine. TCP's figure is a formula, because only the kernel could lose its segments:
//! `C × MSS / (RTT × √p)` with C = 1.22 (Mathis, Semke, Mahdavi and Ott, 1997).

use std::time::Duration;

use anyhow::Result;

use super::{
    page::{PageRow, PageTable},
    run::ComparisonRun,
};
use crate::{
    against::{
        rows::{DeviceLoad, DiskLoad, WayOfUse},
        side::{ComparedProgram, DistantUse},
    },
    late::DatagramPath,
    peers::nbdkit::BlockVerb,
    report::figure,
};

/// Round trips, ms, and losses of a thousand.
pub const WAYS: [(u64, u64); 4] = [(30, 0), (20, 10), (30, 20), (100, 20)];
/// What an Ethernet's frame carries of UDP, and of TCP.
const DATAGRAM_BYTES_MAX: usize = 1472;
const SEGMENT_BYTES: f64 = 1448.0;
const MATHIS_C: f64 = 1.22;
const BYTES: usize = 1 << 20;
/// In which what is under way grows.
const LEAD_IN: Duration = Duration::from_secs(1);

pub fn measure(run: &mut ComparisonRun<'_>, pair: &ComparedProgram<'_>) -> Result<PageTable> {
    let span = Duration::from_secs(if run.is_quick { 1 } else { 4 });
    let mut rows = Vec::new();
    for (round_trip_ms, lost_per_mille) in WAYS {
        let way = format!("{round_trip_ms} ms, {} % lost", lost_per_mille as f64 / 10.0);
        run.step(&format!("QUIC, {way}"));
        let each_way = Duration::from_millis(round_trip_ms) / 2;
        let path = DatagramPath { each_way, lost_per_mille, bytes_max: DATAGRAM_BYTES_MAX };
        let distant = DistantUse { datagrams: Some(path), words: &["--cache", "writeback"], ..DistantUse::default() };
        let mut device = pair.begin_at(WayOfUse::Quic, distant)?;
        let mut cells = vec![way];
        for verb in [BlockVerb::Read, BlockVerb::Write] {
            let load = DeviceLoad::Disk(DiskLoad { verb, bytes: BYTES, depth: 1, is_random: false });
            device.run(load, LEAD_IN)?;
            cells.push(figure(device.run(load, span)?.bytes_per_second() / 1e6));
        }
        cells.push(tcp_megabytes_per_s(round_trip_ms, lost_per_mille).map_or("–".to_owned(), figure));
        rows.push(PageRow::new(cells));
    }
    let headings = ["way", "read 1 MiB, MB/s", "write 1 MiB, MB/s", "TCP at most, by formula, MB/s"];
    Ok(PageTable {
        title: "Where datagrams are lost",
        note: "A disk over QUIC, one request at a time, by a relay that loses datagrams at random.".to_owned(),
        headings: headings.map(str::to_owned).into(),
        rows,
    })
}

/// What one stream of TCP carries at most by a way that loses segments at random; `None`: it is not the losses that
/// limit it.
fn tcp_megabytes_per_s(round_trip_ms: u64, lost_per_mille: u64) -> Option<f64> {
    let (round_trip_s, lost) = (round_trip_ms as f64 / 1e3, lost_per_mille as f64 / 1e3);
    (lost > 0.0).then(|| MATHIS_C * SEGMENT_BYTES / (round_trip_s * lost.sqrt()) / 1e6)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tcp_carries_less_the_longer_and_the_worse_the_way_is() {
        let rate = |ms, lost| tcp_megabytes_per_s(ms, lost).unwrap_or(f64::MAX);
        assert!((rate(30, 20) - 0.416).abs() < 0.001);
        assert!(rate(60, 20) < 0.21 && rate(30, 5) > 0.83 && rate(30, 0) > 1e9);
    }
}
