//! The benefit of several links on a long path with losses: a block disk over 1, 2, 4 and 8 TCP links of one session,
//! 50 ms away, at no loss, 0.1 % and 1 %, emulated by the kernel (netem) between two namespaces.

use std::time::Duration;

use anyhow::{Result, bail};

use crate::{
    lab::{BenchmarkEnvironment, BenchmarkSubject},
    load::LoadTally,
    net::{LossyNetwork, THERE},
    peers::{PeerServer, nbdkit::BlockVerb, session::RemoteSessionDisk},
    report::{BenchmarkFinding, MeasuredQuantity},
    stats::{SampleSpread, SpeedTarget},
    svg::{ChartLine, ChartPanel, LineChart},
};

pub const NAME: &str = "links";
const ROUND_TRIP_MS: u32 = 50;
/// The parts of all packets that are lost, in thousandths.
const LOSSES: [u32; 3] = [0, 1, 10];
const LINKS: [u16; 4] = [1, 2, 4, 8];
const BYTES: usize = 64 * 1024;
/// Enough in flight to fill a gigabit over such a distance, and the depth of an importer of a disk.
const DEPTH: usize = 64;
const VERBS: [BlockVerb; 2] = [BlockVerb::Read, BlockVerb::Write];

/// The results at one loss with one operation: for each number of links, its rounds.
struct LossRounds {
    loss: u32,
    verb: BlockVerb,
    rounds: Vec<Vec<LoadTally>>,
}

pub fn run(lab: &BenchmarkEnvironment) -> Result<Vec<BenchmarkFinding>> {
    if lab.subject != BenchmarkSubject::Farbus {
        bail!("only farbus has sessions");
    }
    let (span, rounds) = if lab.quick { (Duration::from_secs(3), 1) } else { (Duration::from_secs(10), 5) };
    let mut seen = Vec::new();
    for loss in LOSSES {
        let net = LossyNetwork::create(ROUND_TRIP_MS, loss)?;
        let server = PeerServer::farbus_in(&net, lab.farbus_program()?, "memory:256M", THERE.into(), lab.placement)?;
        for verb in VERBS {
            let mut tallies: Vec<Vec<LoadTally>> = LINKS.iter().map(|_| Vec::new()).collect();
            // In turns, so that other load on the machine affects all alike.
            for _ in 0..rounds {
                for (links, tallies) in LINKS.into_iter().zip(&mut tallies) {
                    let mut disk = RemoteSessionDisk::open_over(server.address, "memory", links)?;
                    // Lets the TCP windows open first.
                    disk.run(verb, BYTES, DEPTH, false, span / 4)?;
                    tallies.push(disk.run(verb, BYTES, DEPTH, false, span)?);
                    disk.close();
                }
            }
            seen.push(LossRounds { loss, verb, rounds: tallies });
        }
    }
    lab.plot(NAME, &chart(&seen).render())?;
    Ok(seen.iter().flat_map(findings).collect())
}

fn percent(loss: u32) -> String {
    format!("{} %", f64::from(loss) / 10.0)
}

fn rates(tallies: &[LoadTally]) -> SampleSpread {
    SampleSpread::new(tallies.iter().map(|tally| tally.bytes_per_second() / 1e6).collect())
}

fn findings(seen: &LossRounds) -> Vec<BenchmarkFinding> {
    let one = rates(&seen.rounds[0]);
    let all = LINKS.into_iter().zip(&seen.rounds);
    all.map(|(links, tallies)| {
        let what = format!(
            "{} 64 KiB × {DEPTH}, {ROUND_TRIP_MS} ms, {} lost, {links} {}",
            seen.verb.name(),
            percent(seen.loss),
            if links == 1 { "link" } else { "links" },
        );
        let mut all = LoadTally::nothing();
        tallies.iter().for_each(|tally| all.add(tally));
        let detail = format!("p50 {:.0} ms, p99 {:.0} ms", all.latency_us(50.0) / 1e3, all.latency_us(99.0) / 1e3);
        let quantity = |spread: &SampleSpread| MeasuredQuantity::new(spread.clone(), "MB/s");
        let (ours, other) = (quantity(&rates(tallies)), ("1 link", quantity(&one)));
        BenchmarkFinding::ratio(NAME, what, ours, other, SpeedTarget::Context).with_detail(detail)
    })
    .collect()
}

fn chart(seen: &[LossRounds]) -> LineChart {
    let line = |seen: &LossRounds| ChartLine {
        name: format!("{}, {} lost", seen.verb.name(), percent(seen.loss)),
        points: LINKS.iter().zip(&seen.rounds).map(|(&links, all)| (f64::from(links), rates(all).median())).collect(),
    };
    LineChart {
        title: format!("A disk {ROUND_TRIP_MS} ms away over several links of one session"),
        across: "links".into(),
        panels: vec![ChartPanel { up: "MB/s".into(), is_logarithmic: true, lines: seen.iter().map(line).collect() }],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_of_links_is_held_against_one() {
        let tally = |bytes| LoadTally { bytes, seconds: 1.0, ..LoadTally::nothing() };
        let rounds = LINKS.iter().map(|&links| vec![tally(u64::from(links) * 1_000_000)]).collect();
        let found = findings(&LossRounds { loss: 1, verb: BlockVerb::Read, rounds });
        let ratios: Vec<f64> = found.iter().map(|finding| finding.judged.median()).collect();
        assert_eq!(ratios, [1.0, 2.0, 4.0, 8.0]);
        assert!(found[3].what.contains("0.1 % lost, 8 links"), "{}", found[3].what);
    }
}
