//! A remote disk with one request at a time: how much of its speed is left at a distance, with each kind of cache here,
//! in the first second of a load and after it.
//!
//! The distance is the module `delay`, half of a round trip each way, so that nothing else of the machine changes with
//! it.

use std::time::Duration;

use anyhow::{Result, bail};

use super::{naming::size, storage::TmpfsImage};
use crate::{
    lab::{BenchmarkEnvironment, BenchmarkSubject},
    load::LoadTally,
    peers::{
        PeerServer,
        nbdkit::{BlockVerb, NbdLoadClient},
    },
    report::{BenchmarkFinding, MeasuredQuantity},
    stats::{SampleSpread, SpeedTarget},
    svg::{ChartLine, ChartPanel, LineChart},
};

pub const NAME: &str = "distance";
const CACHES: [&str; 3] = ["none", "ahead", "writeback"];
const ROUND_TRIPS_MS: [u64; 5] = [0, 1, 10, 50, 100];
/// The distance of the targets.
const FAR_MS: u64 = 50;
/// What is enough at any distance, bytes a second, of a disk that is faster than that near.
const RATE_ENOUGH: f64 = 1e9;
/// The share of the near speed that is kept otherwise.
const SHARE_MIN: f64 = 0.9;
/// The share of what is wanted that the first second has.
const FIRST_SHARE_MIN: f64 = 0.7;
/// The disk is so large that hardly any load begins anew at its start.
const IMAGE_BYTES: u64 = 3 << 30;
/// What is measured apart, because what is under way has to grow in it.
const FIRST: Duration = Duration::from_secs(1);
/// The loads: bytes per request, and whether in order.
const LOADS: [(BlockVerb, usize, bool); 5] = [
    (BlockVerb::Read, 128 * 1024, false),
    (BlockVerb::Read, 1 << 20, false),
    (BlockVerb::Write, 128 * 1024, false),
    (BlockVerb::Write, 1 << 20, false),
    (BlockVerb::Read, 4096, true),
];

/// The results of one load with one cache, at each distance.
struct DistanceTallies {
    load: (BlockVerb, usize, bool),
    cache: &'static str,
    /// The first second of each.
    firsts: Vec<LoadTally>,
    /// What came after it.
    tallies: Vec<LoadTally>,
}

pub fn run(lab: &BenchmarkEnvironment) -> Result<Vec<BenchmarkFinding>> {
    if lab.subject != BenchmarkSubject::Farbus {
        bail!("only farbus has sessions");
    }
    let image = TmpfsImage::of_bytes(NAME, IMAGE_BYTES)?;
    let shared = format!("block:{}", image.0.display());
    let span = if lab.quick { Duration::from_secs(1) } else { Duration::from_secs(4) };
    let mut seen: Vec<DistanceTallies> = Vec::new();
    for cache in CACHES {
        let all = LOADS.into_iter().filter(|&load| is_of_use(load, cache));
        let mut with_this: Vec<DistanceTallies> =
            all.map(|load| DistanceTallies { load, cache, firsts: Vec::new(), tallies: Vec::new() }).collect();
        for round_trip in ROUND_TRIPS_MS.map(Duration::from_millis) {
            // Each load has an exporter of its own: a killed importer would have to be waited for.
            let (exporter, how) = (lab.farbus(&shared)?, (round_trip, cache));
            let attached = PeerServer::farbus_attached(lab.farbus_program()?, &exporter, "block", how, lab.placement)?;
            let mut client = NbdLoadClient::connect(attached.address)?;
            for seen in &mut with_this {
                let (verb, bytes, is_random) = seen.load;
                seen.firsts.push(client.run(verb, bytes, 1, is_random, FIRST)?);
                seen.tallies.push(client.run(verb, bytes, 1, is_random, span)?);
            }
        }
        seen.append(&mut with_this);
    }
    lab.plot(NAME, &chart(&seen).render())?;
    Ok(seen.iter().flat_map(findings).collect())
}

/// Whether a cache of this kind affects this load, or shows the cost without a cache.
fn is_of_use((verb, _, is_random): (BlockVerb, usize, bool), cache: &str) -> bool {
    match (cache, matches!(verb, BlockVerb::Write)) {
        ("ahead", is_write) => !is_write,
        ("writeback", is_write) => is_write,
        _ => !is_random,
    }
}

fn name(seen: &DistanceTallies) -> String {
    let (verb, bytes, is_random) = seen.load;
    let order = if is_random { " here and there" } else { "" };
    format!("{} {}{order}, cache {}", verb.name(), size(bytes), seen.cache)
}

fn findings(seen: &DistanceTallies) -> Vec<BenchmarkFinding> {
    let (_, _, is_random) = seen.load;
    let rate = |tally: &LoadTally| MeasuredQuantity::new(SampleSpread::once(tally.bytes_per_second() / 1e6), "MB/s");
    let near = &seen.tallies[0];
    let far = ROUND_TRIPS_MS.into_iter().zip(&seen.tallies).skip(1);
    let least = SHARE_MIN.min(RATE_ENOUGH / near.bytes_per_second());
    let is_held = |ms: u64| ms == FAR_MS && seen.cache != CACHES[0] && !is_random;
    let ratio = |what: String, tally: &LoadTally, target: SpeedTarget| {
        BenchmarkFinding::ratio(NAME, what, rate(tally), ("at no distance", rate(near)), target)
    };
    let after = far.map(|(ms, tally)| {
        let what = format!("{} at {ms} ms", name(seen));
        let detail = format!("p50 {:.1} ms, p99 {:.1} ms", tally.latency_us(50.0) / 1e3, tally.latency_us(99.0) / 1e3);
        let finding = if is_random {
            let round_trips = tally.latency_us(50.0) / 1e3 / ms as f64;
            let target = if ms >= 10 { SpeedTarget::AtMost(1.2) } else { SpeedTarget::Context };
            BenchmarkFinding::absolute(
                NAME,
                what,
                MeasuredQuantity::new(SampleSpread::once(round_trips), "round trips"),
                target,
            )
        } else {
            ratio(what, tally, if is_held(ms) { SpeedTarget::AtLeast(least) } else { SpeedTarget::Context })
        };
        finding.with_detail(detail)
    });
    let first = ROUND_TRIPS_MS.into_iter().zip(&seen.firsts).filter(|(ms, _)| is_held(*ms)).map(|(ms, tally)| {
        let what = format!("{} at {ms} ms, the first second", name(seen));
        ratio(what, tally, SpeedTarget::AtLeast(FIRST_SHARE_MIN * least))
    });
    after.chain(first).collect()
}

fn chart(seen: &[DistanceTallies]) -> LineChart {
    let panel = |is_write: bool| {
        let lines = seen.iter().filter(|seen| !seen.load.2 && matches!(seen.load.0, BlockVerb::Write) == is_write);
        let points = |seen: &DistanceTallies| {
            let rates = seen.tallies.iter().map(|tally| tally.bytes_per_second() / 1e6);
            ROUND_TRIPS_MS.into_iter().map(|ms| ms as f64).zip(rates).collect()
        };
        let lines = lines.map(|seen| ChartLine { name: name(seen), points: points(seen) }).collect();
        ChartPanel { up: "MB/s".into(), is_logarithmic: true, lines }
    };
    LineChart {
        title: "A disk far away, one request at a time".into(),
        across: "round trip, ms".into(),
        panels: vec![panel(false), panel(true)],
    }
}
