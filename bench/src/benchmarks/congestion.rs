//! A disk, an interrupt endpoint and control transfers over a link that other traffic fills more and more (Netbus,
//! Figure 8).
//!
//! The exporter is a host behind a router and a shaped link; from another host there a UDP flow without congestion
//! control takes 0 to 95 % of it. Nothing may fail or time out, and small urgent transfers continue. After that the
//! disk is written, as the paper's was, while a second flow takes as much of the other direction.

use std::{net::UdpSocket, thread, time::Duration};

use anyhow::{Context, Result, bail};

use crate::{
    lab::{BenchmarkEnvironment, BenchmarkSubject},
    load::LoadTally,
    net::{HERE, ShapedNetwork, THERE},
    peers::{
        PeerServer,
        nbdkit::BlockVerb,
        session::{ProbeTransfer, RemoteSessionDisk, source_sink},
    },
    report::{BenchmarkFinding, MeasuredQuantity},
    stats::{SampleSpread, SpeedTarget},
    svg::{ChartLine, ChartPanel, LineChart},
};

pub const NAME: &str = "congestion";
/// A busy wireless or branch link: slow enough that this machine fills it with ease.
const LINK_MBIT: u32 = 100;
const LOADS_PERCENT: [u32; 11] = [0, 10, 20, 30, 40, 50, 60, 70, 80, 90, 95];
/// What a disk's user keeps in flight.
const DEPTH: usize = 8;
const BYTES: usize = 64 * 1024;
/// The pause between two control transfers, and two interrupt reports, as with people and sensors.
const PAUSE: Duration = Duration::from_millis(5);
/// Netbus, section 7.6: of writing over 1 Gbit/s.
const PAPER: &str = "the paper, Figure 8: less in proportion to 50 % of its link, faster beyond; nothing failed";

/// The results under one load.
struct CongestionResult {
    percent: u32,
    disk: LoadTally,
    /// Written, with both directions taken.
    written: LoadTally,
    interrupt: LoadTally,
    control: LoadTally,
}

pub fn run(lab: &BenchmarkEnvironment) -> Result<Vec<BenchmarkFinding>> {
    if lab.subject != BenchmarkSubject::Farbus {
        bail!("only farbus has sessions");
    }
    let net = ShapedNetwork::create(LINK_MBIT)?;
    let server = PeerServer::session_in(&net, THERE.into(), lab.placement)?;
    let mut disk = RemoteSessionDisk::open(server.address)?;
    let mut writer = RemoteSessionDisk::open(server.address)?;
    let mut interrupt = source_sink(server.address)?;
    let mut control = source_sink(server.address)?;
    let sink = UdpSocket::bind((HERE, 0))?;
    let port = sink.local_addr()?.port();
    let span = if lab.quick { Duration::from_millis(500) } else { Duration::from_secs(4) };
    let mut seen = Vec::new();
    for percent in LOADS_PERCENT {
        let bytes_per_second = u64::from(LINK_MBIT) * 1_000_000 / 8 * u64::from(percent) / 100;
        let _flood = PeerServer::flood_in(&net, &format!("{HERE}:{port}/{bytes_per_second}"), lab.placement)?;
        // The queue takes its new shape before anything counts.
        thread::sleep(span / 4);
        let [disk, interrupt, control] = thread::scope(|scope| {
            let disk = scope.spawn(|| disk.run(BlockVerb::Read, BYTES, DEPTH, false, span));
            let interrupt = scope.spawn(|| interrupt.pulse(ProbeTransfer::Interrupt, PAUSE, span));
            let control = scope.spawn(|| control.pulse(ProbeTransfer::Control, PAUSE, span));
            [disk, interrupt, control].map(|thread| thread.join().expect("a load does not panic"))
        });
        let _flood_there = PeerServer::flood_in(&net, &format!("{THERE}:9/{bytes_per_second}"), lab.placement)?;
        thread::sleep(span / 4);
        let written = writer.run(BlockVerb::Write, BYTES, DEPTH, false, span);
        let under = |what: &str| format!("{what} with {percent} % of the link taken");
        seen.push(CongestionResult {
            percent,
            disk: disk.with_context(|| under("the disk"))?,
            written: written.with_context(|| under("writing the disk"))?,
            interrupt: interrupt.with_context(|| under("the interrupt endpoint"))?,
            control: control.with_context(|| under("control transfers"))?,
        });
    }
    lab.plot(NAME, &chart(&seen).render())?;
    Ok(findings(&seen))
}

fn findings(seen: &[CongestionResult]) -> Vec<BenchmarkFinding> {
    let mut findings: Vec<BenchmarkFinding> = seen
        .iter()
        .map(|seen| {
            let rate = MeasuredQuantity::new(SampleSpread::once(seen.disk.bytes_per_second() / 1e6), "MB/s");
            let ms = |tally: &LoadTally, percentile| tally.latency_us(percentile) / 1000.0;
            let detail = format!(
                "disk p50 {:.1} ms, p99 {:.1} ms; interrupt p50 {:.1} ms, p99 {:.1} ms ({} reports); control p50 {:.1} ms, p99 \
                 {:.1} ms; nothing failed",
                ms(&seen.disk, 50.0),
                ms(&seen.disk, 99.0),
                ms(&seen.interrupt, 50.0),
                ms(&seen.interrupt, 99.0),
                seen.interrupt.urbs,
                ms(&seen.control, 50.0),
                ms(&seen.control, 99.0),
            );
            let what = format!("read 64 KiB × {DEPTH}, {} % of {LINK_MBIT} Mbit/s taken", seen.percent);
            BenchmarkFinding::absolute(NAME, what, rate, SpeedTarget::Context).with_detail(detail)
        })
        .collect();
    let worst = |of: fn(&CongestionResult) -> &LoadTally| {
        let all = seen.iter().map(|seen| of(seen).latency_us(99.0) / 1000.0);
        MeasuredQuantity::new(SampleSpread::once(all.fold(0.0, f64::max)), "ms")
    };
    findings.extend(seen.iter().map(|seen| {
        let rate = MeasuredQuantity::new(SampleSpread::once(seen.written.bytes_per_second() / 1e6), "MB/s");
        let detail = format!("p99 {:.1} ms; nothing failed; {PAPER}", seen.written.latency_us(99.0) / 1000.0);
        let what = format!("write 64 KiB × {DEPTH}, {} % of {LINK_MBIT} Mbit/s taken", seen.percent);
        BenchmarkFinding::absolute(NAME, what, rate, SpeedTarget::Context).with_detail(detail)
    }));
    // A key press that is a quarter of a second late is noticed; drivers wait for seconds.
    for (what, of) in [
        ("interrupt", (|seen| &seen.interrupt) as fn(&CongestionResult) -> &LoadTally),
        ("control", |seen| &seen.control),
    ] {
        let what = format!("{what} p99 under the worst of all loads");
        findings.push(BenchmarkFinding::absolute(NAME, what, worst(of), SpeedTarget::AtMost(250.0)));
    }
    findings
}

fn chart(seen: &[CongestionResult]) -> LineChart {
    let line = |name: &str, of: &dyn Fn(&CongestionResult) -> f64| ChartLine {
        name: name.to_owned(),
        points: seen.iter().map(|seen| (f64::from(seen.percent), of(seen))).collect(),
    };
    let left = |seen: &CongestionResult| f64::from(LINK_MBIT) / 8.0 * (1.0 - f64::from(seen.percent) / 100.0);
    let throughput = ChartPanel {
        up: "MB/s".into(),
        is_logarithmic: false,
        lines: vec![
            line("disk, 64 KiB × 8", &|seen| seen.disk.bytes_per_second() / 1e6),
            line("written, both directions taken", &|seen| seen.written.bytes_per_second() / 1e6),
            line("left by the other flow", &left),
        ],
    };
    let latency = ChartPanel {
        up: "ms".into(),
        is_logarithmic: true,
        lines: vec![
            line("disk p50", &|seen| seen.disk.latency_us(50.0) / 1000.0),
            line("disk p99", &|seen| seen.disk.latency_us(99.0) / 1000.0),
            line("interrupt p50", &|seen| seen.interrupt.latency_us(50.0) / 1000.0),
            line("interrupt p99", &|seen| seen.interrupt.latency_us(99.0) / 1000.0),
            line("control p99", &|seen| seen.control.latency_us(99.0) / 1000.0),
        ],
    };
    LineChart {
        title: format!("A disk and a keyboard's kind of traffic on a congested link of {LINK_MBIT} Mbit/s"),
        across: "taken by a competing UDP flow, % of the link".into(),
        panels: vec![throughput, latency],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_load_has_a_row_of_reading_and_one_of_writing_with_the_papers_words() {
        let tally = |bytes| LoadTally { urbs: 1, bytes, seconds: 1.0, ..LoadTally::nothing() };
        let seen = LOADS_PERCENT.map(|percent| CongestionResult {
            percent,
            disk: tally(2_000_000),
            written: tally(1_000_000),
            interrupt: tally(64),
            control: tally(18),
        });
        let found = findings(&seen);
        let of = |verb: &str| found.iter().filter(|finding| finding.what.starts_with(verb)).collect::<Vec<_>>();
        assert_eq!((of("read").len(), of("write").len(), found.len()), (11, 11, 24));
        assert_eq!(of("write")[0].ours.spread.median(), 1.0);
        assert!(of("write").iter().all(|finding| finding.detail.ends_with(PAPER)));
        assert!(chart(&seen).render().contains("written, both directions taken"));
    }
}
