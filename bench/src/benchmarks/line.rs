//! The model of the 2005 paper on USB/IP (section 4.1), measured again: a URB of s bytes takes `a s + RTT` (its Figures
//! 9 to 11), and one each x ms needs a queue deeper than `RTT/x + 1` (its Equation 2, Figure 13).
//!
//! As there, the driver is the load generator, the device a source, and both ends speak plain USB/IP; the distance is a
//! relay that lets every byte wait, and lets no more than 100 Mb/s pass in the second of the two runs. The periodic
//! endpoint is isochronous, 8 packets of 125 us a URB, as the paper's.

use std::time::Duration;

use anyhow::Result;
use farbus::{
    gadgets::zero::{SourcePattern, SourceSink},
    model::UsbSpeed,
};

use crate::{
    lab::BenchmarkEnvironment,
    late::{late, late_and_narrow},
    load::{LoadLimit, UsbipLoadClient},
    peers::{PeerServer, local::LocalDevice, session::UsbLoad},
    placement::RealtimePriority,
    report::{BenchmarkFinding, MeasuredQuantity},
    stats::{SampleSpread, SpeedTarget},
    svg::{ChartLine, ChartPanel, LineChart},
    usbip::{TransferTemplate, UsbipDirection},
};

pub const NAME: &str = "line";
const ROUND_TRIPS_MS: [u64; 7] = [0, 1, 4, 8, 10, 50, 100];
const SIZES: [usize; 6] = [1 << 10, 4 << 10, 16 << 10, 32 << 10, 64 << 10, 128 << 10];
/// The paper's gradient, ms/KB, over its network (Gigabit cards: 100 Mb/s alone take 8.19e-2); and the line's value
/// without distance, ms.
const PAPER_GRADIENT: f64 = 6.30e-2;
const PAPER_BEGINS_MS: f64 = 0.24;
/// Gradient and value at 0 of its directly attached device.
const PAPER_DIRECT_GRADIENT: f64 = 3.51e-2;
const PAPER_DIRECT_BEGINS_MS: f64 = 0.07;
/// The rate of the narrow link.
const LINK_BITS_PER_S: u64 = 100_000_000;
/// The round trips for the depth rule; the load generator has 64 in flight at most.
const DEPTH_ROUND_TRIPS_MS: [u64; 6] = [0, 1, 4, 8, 16, 32];
/// Packets of a URB of the periodic endpoint, one each microframe, and their bytes (the paper's).
const PACKETS: usize = 8;
const PACKET_BYTES: usize = 512;
/// Between completions of the periodic endpoint.
const INTERVAL_MS: f64 = 1.0;
/// The mean interval between completions up to which the rule counts as kept.
const INTERVAL_MS_MAX: f64 = 1.05 * INTERVAL_MS;

/// How URBs reach their device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum UrbPath {
    /// The device is in this process.
    Direct,
    /// Over this round trip, in ms, and no slower than this machine.
    Far(u64),
    /// Over this round trip, in ms, and 100 Mb/s.
    Narrow(u64),
}

/// The execution times of URBs on a path: for each pass, `(KB, ms)`.
struct UrbTimes {
    path: UrbPath,
    passes: Vec<Vec<(f64, f64)>>,
}

pub fn run(lab: &BenchmarkEnvironment) -> Result<Vec<BenchmarkFinding>> {
    let (passes, urbs) = if lab.quick { (2, 3) } else { (8, 6) };
    let paths = [UrbPath::Direct].into_iter();
    let paths = paths.chain(ROUND_TRIPS_MS.map(UrbPath::Far)).chain(ROUND_TRIPS_MS.map(UrbPath::Narrow));
    let lines = paths.map(|path| path.measured(lab, passes, urbs)).collect::<Result<Vec<_>>>()?;
    let mut depths = Vec::new();
    let _priority = RealtimePriority::take();
    for ms in DEPTH_ROUND_TRIPS_MS {
        depths.push((ms, intervals(lab, ms)?));
    }
    lab.plot(NAME, &time_chart(&lines).render())?;
    lab.plot("line-model", &rate_chart(&lines, true).render())?;
    lab.plot("line-rates", &rate_chart(&lines, false).render())?;
    lab.plot("line-depth", &depth_chart(&depths).render())?;
    let along = lines.iter().flat_map(UrbTimes::findings);
    Ok(along.chain(depths.iter().map(|(ms, seen)| depth_finding(*ms, seen))).collect())
}

impl UrbPath {
    fn measured(self, lab: &BenchmarkEnvironment, passes: usize, urbs: u64) -> Result<UrbTimes> {
        let mut one_ms: Box<dyn FnMut(usize) -> Result<f64>> = match self {
            Self::Direct => {
                let device = SourceSink::device(UsbSpeed::High, SourcePattern::Zeros, false);
                let mut load = UsbLoad::over(LocalDevice::new(device))?;
                Box::new(move |bytes| {
                    let mut all = (0..urbs).map(|_| load.one(UsbipDirection::In, bytes)).collect::<Result<Vec<_>>>()?;
                    all.sort_by(f64::total_cmp);
                    Ok(all[all.len() / 2] / 1e3)
                })
            }
            Self::Far(ms) | Self::Narrow(ms) => {
                let mut client = DistantClient::client(lab, "zero", ms, matches!(self, Self::Narrow(_)))?;
                Box::new(move |bytes| client.one_ms(bytes, urbs))
            }
        };
        let mut pass = || SIZES.iter().map(|&bytes| Ok((bytes as f64 / 1024.0, one_ms(bytes)?))).collect();
        Ok(UrbTimes { path: self, passes: (0..passes).map(|_| pass()).collect::<Result<_>>()? })
    }

    fn name(self) -> String {
        match self {
            Self::Direct => "direct".into(),
            Self::Far(ms) => format!("{ms} ms"),
            Self::Narrow(ms) => format!("{ms} ms, 100 Mb/s"),
        }
    }

    fn round_trip_ms(self) -> f64 {
        match self {
            Self::Direct => 0.0,
            Self::Far(ms) | Self::Narrow(ms) => ms as f64,
        }
    }

    /// The paper's execution time of a URB of so many KB.
    fn papers_ms(self, kb: f64) -> f64 {
        match self {
            Self::Direct => PAPER_DIRECT_GRADIENT * kb + PAPER_DIRECT_BEGINS_MS,
            _ => PAPER_GRADIENT * kb + self.round_trip_ms().max(PAPER_BEGINS_MS),
        }
    }
}

impl UrbTimes {
    /// The median of the passes at each size.
    fn medians(&self) -> Vec<(f64, f64)> {
        let at = |index: usize| self.passes.iter().map(|pass| pass[index].1).collect();
        let all = self.passes[0].iter().enumerate();
        all.map(|(index, &(kb, _))| (kb, SampleSpread::new(at(index)).median())).collect()
    }

    /// The line of each pass, its slope and start with the paper's; and at the largest size how far the model is off.
    fn findings(&self) -> [BenchmarkFinding; 4] {
        let name = self.path.name();
        let lines: Vec<(f64, f64)> = self.passes.iter().map(|pass| fitted(pass)).collect();
        let spread = |of: &dyn Fn(usize) -> f64| SampleSpread::new((0..lines.len()).map(of).collect());
        let last = SIZES.len() - 1;
        let rate = |kb: f64, ms: f64| kb / 1024.0 / ms * 1e3;
        let measured = |pass: usize| rate(self.passes[pass][last].0, self.passes[pass][last].1);
        let modelled = |pass: usize| {
            let kb = self.passes[pass][last].0;
            rate(kb, lines[pass].0 * kb + lines[pass].1)
        };
        let finding = |what: &str, samples, unit| {
            let quantity = MeasuredQuantity::new(samples, unit);
            BenchmarkFinding::absolute(NAME, format!("{name}: {what}"), quantity, SpeedTarget::Context)
        };
        let kb = SIZES[last] as f64 / 1024.0;
        let paper = format!("the paper's line: {:.2} MB/s", rate(kb, self.path.papers_ms(kb)));
        let explained = explained(&self.medians());
        [
            finding("gradient of a URB", spread(&|pass| lines[pass].0), "ms/KB")
                .with_detail(format!("R² {explained:.3} of the medians")),
            finding("URB of no bytes, beyond RTT", spread(&|pass| lines[pass].1 - self.path.round_trip_ms()), "ms"),
            finding("model at 128 KiB", spread(&modelled), "MB/s").with_detail(paper.clone()),
            finding("measured at 128 KiB", spread(&measured), "MB/s").with_detail(paper),
        ]
    }
}

/// A remote device at a given distance, with its server.
struct DistantClient(UsbipLoadClient, PeerServer);

impl DistantClient {
    fn client(lab: &BenchmarkEnvironment, what: &str, round_trip_ms: u64, is_narrow: bool) -> Result<Self> {
        let server = lab.farbus(what)?;
        let each_way = Duration::from_micros(round_trip_ms * 500);
        let address = match is_narrow {
            true => late_and_narrow(server.address, each_way, LINK_BITS_PER_S)?,
            false => late(server.address, each_way)?,
        };
        Ok(Self(UsbipLoadClient::attach(address, server.busid())?, server))
    }
}

impl DistantClient {
    /// The median time of a URB, one at a time.
    fn one_ms(&mut self, bytes: usize, urbs: u64) -> Result<f64> {
        let transfer = TransferTemplate::bulk(UsbipDirection::In, bytes);
        Ok(self.0.run(&transfer, 1, LoadLimit::Urbs(urbs))?.latency_us(50.0) / 1e3)
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

/// Mean intervals between completions, at depths from one to some beyond the rule.
fn intervals(lab: &BenchmarkEnvironment, ms: u64) -> Result<Vec<(usize, f64)>> {
    let mut client = DistantClient::client(lab, "zero", ms, false)?;
    RealtimePriority::give(client.1.pid());
    let transfer = TransferTemplate::isochronous(PACKETS, PACKET_BYTES);
    let rule = ruled(ms);
    let all = if lab.quick { rule.saturating_sub(4).max(1)..=rule + 3 } else { 1..=rule + 6 };
    let mut seen = Vec::new();
    for depth in all {
        // A shallow queue takes a round trip for as many as it has.
        let urbs = (depth as u64 * 40).clamp(100, if lab.quick { 200 } else { 400 });
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
    // None of those tried: more than the greatest of them.
    let beyond_all = seen.last().map_or(rule, |(depth, _)| depth + 1);
    let detail = format!(
        "the least depth at which completions are {INTERVAL_MS} ms apart: {named}; the rule: {rule}; the paper at 8 ms: 10; {:.2} ms at {}, {:.2} ms \
         at {rule}, {:.2} ms at {}",
        mean(rule - 1),
        rule - 1,
        mean(rule),
        mean(rule + 2),
        rule + 2,
    );
    let beyond = MeasuredQuantity::new(SampleSpread::once(found.unwrap_or(beyond_all) as f64 - rule as f64), "URBs");
    BenchmarkFinding::absolute(NAME, format!("queue at {ms} ms: beyond the rule"), beyond, SpeedTarget::Context)
        .with_detail(detail)
}

/// Figure 9: the lines of a run, with the paper's.
fn time_chart(lines: &[UrbTimes]) -> LineChart {
    let panel = |up: &str, wanted: fn(UrbPath) -> bool| {
        let chosen = || lines.iter().filter(move |line| wanted(line.path));
        let ours = chosen().map(|line| ChartLine { name: line.path.name(), points: line.medians() });
        let papers = chosen().map(|line| ChartLine {
            name: format!("paper, {}", line.path.name().trim_end_matches(", 100 Mb/s")),
            points: SIZES.map(|bytes| bytes as f64 / 1024.0).map(|kb| (kb, line.path.papers_ms(kb))).into(),
        });
        ChartPanel { up: up.into(), is_logarithmic: true, lines: ours.chain(papers).collect() }
    };
    LineChart {
        title: "Execution time of a URB of s KB over RTT: a s + RTT (2005 paper, Figure 9)".into(),
        across: "KB".into(),
        panels: vec![
            panel("ms, direct and over RTT", |path| !matches!(path, UrbPath::Narrow(_))),
            panel("ms, over RTT and 100 Mb/s", |path| matches!(path, UrbPath::Narrow(_))),
        ],
    }
}

/// Figures 10 and 11: throughput by the model, or as measured, with the paper's model.
fn rate_chart(lines: &[UrbTimes], is_model: bool) -> LineChart {
    let rate = |kb: f64, ms: f64| (kb, kb / 1024.0 / ms * 1e3);
    let ours = |line: &UrbTimes| {
        let (gradient, begins) = fitted(&line.medians());
        let points = line.medians();
        points.into_iter().map(|(kb, ms)| rate(kb, if is_model { gradient * kb + begins } else { ms })).collect()
    };
    let panel = |up: &str, wanted: fn(UrbPath) -> bool| {
        let chosen = || lines.iter().filter(move |line| wanted(line.path));
        let papers = chosen().map(|line| ChartLine {
            name: format!("paper, {}", line.path.name().trim_end_matches(", 100 Mb/s")),
            points: SIZES.map(|bytes| bytes as f64 / 1024.0).map(|kb| rate(kb, line.path.papers_ms(kb))).into(),
        });
        let ours = chosen().map(|line| ChartLine { name: line.path.name(), points: ours(line) });
        ChartPanel { up: up.into(), is_logarithmic: true, lines: ours.chain(papers).collect() }
    };
    let title = if is_model { "from the model (2005 paper, Figure 10)" } else { "as measured (2005 paper, Figure 11)" };
    LineChart {
        title: format!("Throughput of one URB at a time {title}"),
        across: "KB".into(),
        panels: vec![
            panel("MB/s, over RTT", |path| matches!(path, UrbPath::Far(_))),
            panel("MB/s, over RTT and 100 Mb/s", |path| matches!(path, UrbPath::Narrow(_))),
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
    fn far_urbs_have_a_line_at_either_rate() {
        let Some(lab) = BenchmarkEnvironment::for_test() else { return };
        for path in [UrbPath::Direct, UrbPath::Far(1), UrbPath::Narrow(1)] {
            let found = path.measured(&lab, 2, 2).expect("URBs complete").findings();
            assert!(found.iter().all(|finding| finding.ours.spread.samples.len() == 2), "{path:?}");
        }
    }

    #[test]
    fn papers_line_is_drawn_for_every_round_trip_and_100_megabits_are_slower_than_it() {
        let lines: Vec<UrbTimes> = [UrbPath::Direct, UrbPath::Far(0), UrbPath::Far(10), UrbPath::Narrow(10)]
            .map(|path| UrbTimes { path, passes: vec![vec![(1.0, 1.0), (128.0, 9.0)]; 2] })
            .into();
        let svg = time_chart(&lines).render();
        assert!(svg.matches("<polyline").count() == 8 && svg.contains("paper, direct") && svg.contains("paper, 10 ms"));
        assert_eq!(rate_chart(&lines, true).render().matches("<polyline").count(), 6);
        // A kilobyte takes 0.082 ms of 100 Mb/s, so the paper's network was faster than that.
        assert!(1024.0 * 8.0 / LINK_BITS_PER_S as f64 * 1e3 > PAPER_GRADIENT);
        assert_eq!(UrbPath::Far(10).papers_ms(0.0), 10.0);
    }

    #[test]
    fn lucky_depth_below_a_bad_one_is_not_the_least_and_the_first_measured_is_a_bound() {
        assert_eq!(least(&[(8, 1.04), (9, 1.2), (10, 1.1), (11, 1.0), (12, 1.0)]), Some(11));
        assert_eq!(named(&[(4, 1.0), (5, 1.0)]), "at most 4");
        assert_eq!(named(&[(1, 1.0), (2, 1.0)]), "1");
        assert_eq!(named(&[(4, 1.0), (5, 1.2)]), "none of those tried");
    }
}
