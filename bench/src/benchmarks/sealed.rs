//! The cost of encryption, as the 2005 paper on USB/IP measured it (Figures 23 and 24): sequential reads and writes in
//! 128 KiB, one at a time, as its storage driver made them, over a plain link and over TLS 1.3 between paired hosts.
//!
//! A source and sink is in the place of the disk, so that no medium hides the cost. Processor time is that of both
//! ends.

use anyhow::Result;

use crate::{
    contest::{ContestResult, ContestServer, RoundTally},
    lab::BenchmarkEnvironment,
    load::LoadLimit,
    peers::tls::TlsHostPair,
    report::{BenchmarkFinding, MeasuredQuantity},
    stats::{SampleSpread, SpeedTarget},
    svg::{ChartLine, ChartPanel, LineChart},
    usbip::{TransferTemplate, UsbipDirection},
};

pub const NAME: &str = "sealed";
const BYTES: usize = 128 * 1024;
/// What IPsec with AES-CBC left of the paper's throughput, at most.
const PAPER_SHARE: f64 = 0.50;

/// What one direction did over either link, round by round.
struct SealedRun {
    name: &'static str,
    mb_per_s: [SampleSpread; 2],
    cpu_s_per_gb: [SampleSpread; 2],
}

pub fn run(lab: &BenchmarkEnvironment) -> Result<Vec<BenchmarkFinding>> {
    let plain = lab.farbus("zero")?;
    let hosts = TlsHostPair::pair(lab.farbus_program()?)?;
    let sealed = hosts.share("zero", lab.placement)?;
    let (mut open, mut closed) = (plain.attach()?, hosts.attach(&sealed)?);
    let mut runs = Vec::new();
    for direction in UsbipDirection::BOTH {
        let transfer = TransferTemplate::bulk(direction, BYTES);
        let ours = std::process::id();
        let contest = ContestResult::hold(
            &lab.rules.with_long_slices(),
            &mut [
                ContestServer::of_processes(vec![plain.pid(), ours], |slice| {
                    open.run(&transfer, 1, LoadLimit::Elapsed(slice))
                }),
                ContestServer::of_processes(vec![sealed.pid(), ours], |slice| {
                    closed.run(&transfer, 1, LoadLimit::Elapsed(slice))
                }),
            ],
        )?;
        runs.push(SealedRun {
            name: if direction == UsbipDirection::In { "read" } else { "write" },
            mb_per_s: [0, 1].map(|side| contest.figures(side, |share| share.tally.bytes_per_second() / 1e6)),
            cpu_s_per_gb: [0, 1].map(|side| contest.figures(side, RoundTally::cpu_seconds_per_gb)),
        });
    }
    lab.plot(NAME, &chart(&runs, "MB/s", "throughput (2005 paper, Figure 23)", |run| &run.mb_per_s).render())?;
    let cpu = chart(&runs, "s of processor a GB, both ends", "CPU (2005 paper, Figure 24)", |run| &run.cpu_s_per_gb);
    lab.plot("sealed-cpu", &cpu.render())?;
    Ok(runs.iter().flat_map(SealedRun::findings).collect())
}

impl SealedRun {
    fn findings(&self) -> Vec<BenchmarkFinding> {
        let mut found = Vec::new();
        for (side, how) in ["plain", "TLS"].into_iter().enumerate() {
            let name = format!("{}, {how}", self.name);
            for (what, samples, unit) in
                [("throughput", &self.mb_per_s[side], "MB/s"), ("CPU", &self.cpu_s_per_gb[side], "s/GB")]
            {
                let quantity = MeasuredQuantity::new(samples.clone(), unit);
                found.push(BenchmarkFinding::absolute(NAME, format!("{name}: {what}"), quantity, SpeedTarget::Context));
            }
        }
        let share = SampleSpread::ratio(&self.mb_per_s[1], &self.mb_per_s[0]);
        let detail = format!("the paper, IPsec with AES-CBC: less than {PAPER_SHARE:.2}");
        let what = format!("{}, TLS: share of plain", self.name);
        let quantity = MeasuredQuantity::new(share, "of plain");
        found.push(BenchmarkFinding::absolute(NAME, what, quantity, SpeedTarget::Context).with_detail(detail));
        found
    }
}

/// For each direction a point of plain and one of TLS.
fn chart(runs: &[SealedRun], up: &str, of: &str, values: fn(&SealedRun) -> &[SampleSpread; 2]) -> LineChart {
    let line = |run: &SealedRun| ChartLine {
        name: run.name.into(),
        points: values(run).iter().enumerate().map(|(side, spread)| (side as f64, spread.median())).collect(),
    };
    LineChart {
        title: format!("Sequential requests of 128 KiB: {of}"),
        across: "0: plain; 1: TLS 1.3".into(),
        panels: vec![ChartPanel { up: up.into(), is_logarithmic: false, lines: runs.iter().map(line).collect() }],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_direction_has_both_links_and_their_share() {
        let spread = |value| SampleSpread::new(vec![value; 3]);
        let run = SealedRun { name: "read", mb_per_s: [100.0, 40.0].map(spread), cpu_s_per_gb: [1.0, 2.0].map(spread) };
        let found = run.findings();
        assert_eq!(found.len(), 5);
        assert_eq!(found[4].ours.spread.median(), 0.4);
        assert_eq!(chart(&[run], "MB/s", "x", |run| &run.mb_per_s).render().matches("<polyline").count(), 1);
    }
}
