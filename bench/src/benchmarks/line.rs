//! The model of the 2005 paper on USB/IP (section 4.1), measured again: a URB of s bytes takes `a s + RTT` (its Figures
//! 9 to 11), and one each x ms needs a queue deeper than `RTT/x + 1` (its Equation 2, Figure 13).
//!
//! As there, the driver is the load generator, the device a source, and both ends speak plain USB/IP; the distance is a
//! relay that lets every byte wait. The periodic endpoint is isochronous, 8 packets of 125 us a URB, as the paper's.

use std::time::Duration;

use anyhow::Result;

use super::naming::size;
use crate::{
    lab::BenchmarkEnvironment,
    late::late,
    load::{LoadLimit, UsbipLoadClient},
    peers::PeerServer,
    report::{BenchmarkFinding, MeasuredQuantity},
    stats::{SampleSpread, SpeedTarget},
    svg::{ChartLine, ChartPanel, LineChart},
    usbip::{TransferTemplate, UsbipDirection},
};

pub const NAME: &str = "line";
const ROUND_TRIPS_MS: [u64; 7] = [0, 1, 4, 8, 10, 50, 100];
const SIZES: [usize; 6] = [1 << 10, 4 << 10, 16 << 10, 32 << 10, 64 << 10, 128 << 10];
/// The paper's gradient, ms/KB, on 100 Mb/s Ethernet; and the line's value without distance, ms.
const PAPER_GRADIENT: f64 = 6.30e-2;
const PAPER_BEGINS_MS: f64 = 0.24;
/// The round trips for the depth rule; the load generator has 64 in flight at most.
const DEPTH_ROUND_TRIPS_MS: [u64; 6] = [0, 1, 4, 8, 16, 32];
/// Packets of a URB of the periodic endpoint, one each microframe, and their bytes.
const PACKETS: usize = 8;
const PACKET_BYTES: usize = 1024;
/// Between completions of the periodic endpoint.
const INTERVAL_MS: f64 = 1.0;
/// The mean interval between completions up to which the rule counts as kept.
const INTERVAL_MS_MAX: f64 = 1.05 * INTERVAL_MS;

pub fn run(lab: &BenchmarkEnvironment) -> Result<Vec<BenchmarkFinding>> {
    let urbs = if lab.quick { 10 } else { 40 };
    let mut lines = Vec::new();
    for ms in ROUND_TRIPS_MS {
        let mut client = DistantClient::client(lab, "zero", ms)?;
        let mut points = Vec::new();
        for bytes in SIZES {
            let tally = client.0.run(&TransferTemplate::bulk(UsbipDirection::In, bytes), 1, LoadLimit::Urbs(urbs))?;
            points.push((bytes as f64 / 1024.0, tally.latency_us(50.0) / 1e3));
        }
        lines.push((ms, points));
    }
    let mut depths = Vec::new();
    for ms in DEPTH_ROUND_TRIPS_MS {
        depths.push((ms, intervals(lab, ms)?));
    }
    lab.plot(NAME, &chart(&lines).render())?;
    lab.plot("line-depth", &depth_chart(&depths).render())?;
    let along = lines.iter().map(|(ms, points)| line_finding(*ms, points));
    Ok(along.chain(depths.iter().map(|(ms, seen)| depth_finding(*ms, seen))).collect())
}

/// A remote device at a given distance, with its server.
struct DistantClient(UsbipLoadClient, #[expect(dead_code, reason = "it serves until it is dropped")] PeerServer);

impl DistantClient {
    fn client(lab: &BenchmarkEnvironment, what: &str, round_trip_ms: u64) -> Result<Self> {
        let server = lab.farbus(what)?;
        let address = late(server.address, Duration::from_micros(round_trip_ms * 500))?;
        Ok(Self(UsbipLoadClient::attach(address, server.busid())?, server))
    }
}

/// The line through these points, by least squares: gradient, and value at 0.
fn fitted(points: &[(f64, f64)]) -> (f64, f64) {
    let count = points.len() as f64;
    let mean = |of: &dyn Fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>() / count;
    let (x, y) = (mean(&|point| point.0), mean(&|point| point.1));
    let gradient = points.iter().map(|point| (point.0 - x) * (point.1 - y)).sum::<f64>()
        / points.iter().map(|point| (point.0 - x).powi(2)).sum::<f64>();
    (gradient, y - gradient * x)
}

/// The share of the points' variance that the line explains.
fn explained(points: &[(f64, f64)]) -> f64 {
    let (gradient, begins) = fitted(points);
    let mean = points.iter().map(|point| point.1).sum::<f64>() / points.len() as f64;
    let left: f64 = points.iter().map(|point| (point.1 - begins - gradient * point.0).powi(2)).sum();
    let all: f64 = points.iter().map(|point| (point.1 - mean).powi(2)).sum();
    1.0 - left / all
}

fn line_finding(ms: u64, points: &[(f64, f64)]) -> BenchmarkFinding {
    let (gradient, begins) = fitted(points);
    let detail = format!(
        "a = {gradient:.2e} ms/KB (the paper, over 100 Mb/s: {PAPER_GRADIENT:.2e}), it begins at {begins:.2} ms (the paper, at no distance: \
         {PAPER_BEGINS_MS}), R² {:.3}; {} {:.2} ms, {} {:.2} ms",
        explained(points),
        size(SIZES[0]),
        points[0].1,
        size(SIZES[SIZES.len() - 1]),
        points[points.len() - 1].1,
    );
    let beyond = MeasuredQuantity::new(SampleSpread::once(begins - ms as f64), "ms");
    BenchmarkFinding::absolute(
        NAME,
        format!("a URB at {ms} ms: where its line begins, beyond RTT"),
        beyond,
        SpeedTarget::Context,
    )
    .with_detail(detail)
}

/// Mean intervals between completions, at depths from one to some beyond the rule.
fn intervals(lab: &BenchmarkEnvironment, ms: u64) -> Result<Vec<(usize, f64)>> {
    let mut client = DistantClient::client(lab, "zero", ms)?;
    let transfer = TransferTemplate::isochronous(PACKETS, PACKET_BYTES);
    let last = ruled(ms) + 6;
    let all: Vec<usize> =
        if lab.quick { (ruled(ms).saturating_sub(6).max(1)..=last).collect() } else { (1..=last).collect() };
    let mut seen = Vec::new();
    for depth in all {
        // A shallow queue takes a round trip for as many as it has.
        let urbs = (depth as u64 * 40).clamp(100, 400);
        let tally = client.0.run(&transfer, depth, LoadLimit::Urbs(urbs))?;
        // From the first completion to the last.
        let first_ms = ms as f64 + INTERVAL_MS;
        seen.push((depth, (tally.seconds * 1e3 - first_ms) / (urbs - 1) as f64));
    }
    Ok(seen)
}

/// The least depth by the paper's rule: q > RTT/x + 1.
fn ruled(ms: u64) -> usize {
    (ms as f64 / INTERVAL_MS + 1.0).floor() as usize + 1
}

/// The least depth from which all greater measured depths keep the rule, too. One that is good while a greater one is
/// not was lucky.
fn least(seen: &[(usize, f64)]) -> Option<usize> {
    let good = seen.iter().rev().take_while(|(_, mean)| *mean <= INTERVAL_MS_MAX);
    good.last().map(|(depth, _)| *depth)
}

/// The depth in words: where the measurement begins at it and not at 1, the least depth may be smaller.
fn named(seen: &[(usize, f64)]) -> String {
    match (least(seen), seen.first()) {
        (None, _) => "none of those tried".to_owned(),
        (Some(depth), Some((first, _))) if depth == *first && depth > 1 => format!("at most {depth}"),
        (Some(depth), _) => depth.to_string(),
    }
}

fn depth_finding(ms: u64, seen: &[(usize, f64)]) -> BenchmarkFinding {
    let rule = ruled(ms);
    let mean = |depth: usize| seen.iter().find(|(other, _)| *other == depth).map_or(f64::NAN, |(_, mean)| *mean);
    let found = least(seen);
    let named = named(seen);
    let detail = format!(
        "the least depth at which completions are {INTERVAL_MS} ms apart: {named}; the rule: {rule}; the paper at 8 ms: 10; {:.2} ms at {}, {:.2} ms \
         at {rule}, {:.2} ms at {}",
        mean(rule - 1),
        rule - 1,
        mean(rule),
        mean(rule + 2),
        rule + 2,
    );
    let beyond = MeasuredQuantity::new(SampleSpread::once(found.unwrap_or(usize::MAX) as f64 - rule as f64), "URBs");
    BenchmarkFinding::absolute(NAME, format!("queue at {ms} ms: beyond the rule"), beyond, SpeedTarget::Context)
        .with_detail(detail)
}

fn chart(lines: &[(u64, Vec<(f64, f64)>)]) -> LineChart {
    let seen = lines.iter().map(|(ms, points)| ChartLine { name: format!("{ms} ms"), points: points.clone() });
    let model = |ms: f64| ChartLine {
        name: format!("paper, {ms} ms"),
        points: SIZES.iter().map(|&bytes| bytes as f64 / 1024.0).map(|kb| (kb, PAPER_GRADIENT * kb + ms)).collect(),
    };
    let rate = |&(kb, ms): &(f64, f64)| (kb, kb / 1024.0 / ms * 1e3);
    let rates = lines
        .iter()
        .map(|(ms, points)| ChartLine { name: format!("{ms} ms"), points: points.iter().map(rate).collect() });
    LineChart {
        title: "A URB of s KB over RTT: a s + RTT (2005 paper, Figures 9 to 11)".into(),
        across: "KB".into(),
        panels: vec![
            ChartPanel {
                up: "ms; the paper's a is 100 Mb/s".into(),
                is_logarithmic: true,
                lines: seen.chain([model(PAPER_BEGINS_MS), model(10.0)]).collect(),
            },
            ChartPanel { up: "MB/s".into(), is_logarithmic: true, lines: rates.collect() },
        ],
    }
}

fn depth_chart(depths: &[(u64, Vec<(usize, f64)>)]) -> LineChart {
    let line = |(ms, seen): &(u64, Vec<(usize, f64)>)| ChartLine {
        name: format!("{ms} ms, rule {}", ruled(*ms)),
        points: seen.iter().map(|&(depth, mean)| (depth as f64, mean)).collect(),
    };
    LineChart {
        title: "Mean completion intervals of isochronous URBs of 1 ms (2005 paper, Figure 13)".into(),
        across: "queue depth".into(),
        panels: vec![ChartPanel { up: "ms".into(), is_logarithmic: true, lines: depths.iter().map(line).collect() }],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_found_in_its_points_and_the_rule_is_the_paper_s() {
        let points: Vec<(f64, f64)> = (0..5).map(|kb| (f64::from(kb), 0.5 + 0.25 * f64::from(kb))).collect();
        let (gradient, begins) = fitted(&points);
        assert!((gradient - 0.25).abs() < 1e-9 && (begins - 0.5).abs() < 1e-9 && explained(&points) > 0.999);
        assert_eq!((ruled(0), ruled(8), ruled(32)), (2, 10, 34));
        assert_eq!((least(&[(1, 2.0), (2, 1.01), (3, 1.0)]), least(&[(1, 2.0)])), (Some(2), None));
    }

    #[test]
    fn lucky_depth_below_a_bad_one_is_not_the_least_and_the_first_measured_is_a_bound() {
        assert_eq!(least(&[(8, 1.04), (9, 1.2), (10, 1.1), (11, 1.0), (12, 1.0)]), Some(11));
        assert_eq!(named(&[(4, 1.0), (5, 1.0)]), "at most 4");
        assert_eq!(named(&[(1, 1.0), (2, 1.0)]), "1");
        assert_eq!(named(&[(4, 1.0), (5, 1.2)]), "none of those tried");
    }
}
