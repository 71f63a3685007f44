//! The experiments of West, Golchin and Njavro, "Real-Time USB Networking and Device I/O" (2023), in simulation: Tables
//! 4, 6 and 9, Figures 10 and 12 to 16, the paper's figures beside these. `crates/sim` says what is assumed; the rows
//! say where and why they differ.

use std::time::Instant;

use anyhow::{Result, anyhow};
use farbus_sim::experiments::{
    paper::{
        INPUT_FRAMES_PER_S, INPUT_MEANS, OUTPUT_FRAMES_PER_S, OVERRUNS, ROUND_TRIPS, THROUGHPUT, ThroughputScenario,
    },
    round_trips,
    throughput::{self, BulkLoad, EndpointRequest},
    usb_can::{self, ChannelUsers, STORMS, SimulatedKernel, UsbCanResults, UsbCanScenario},
};

use crate::{
    lab::BenchmarkEnvironment,
    report::{BenchmarkFinding, MeasuredQuantity},
    stats::{SampleSpread, SpeedTarget},
    svg::{ChartLine, ChartPanel, LineChart},
};

pub const NAME: &str = "realtime";
const SEED: u64 = 1;
const HOUR_S: u64 = 3600;
/// How many thousandths shorter than by Equation 3 packets may be.
const SHORTER_PERMILLE: u32 = 50;
/// The last two channels, which the paper plots.
const PLOTTED: [usize; 2] = [3, 4];

pub fn run(lab: &BenchmarkEnvironment) -> Result<Vec<BenchmarkFinding>> {
    // The paper's runs last an hour.
    let seconds = if lab.quick { 20 } else { HOUR_S };
    let mut findings = table_4(lab, seconds)?;
    findings.extend(table_6(seconds)?);
    findings.extend(table_9(lab)?);
    findings.extend(pipes(lab, &INPUT)?);
    findings.extend(pipes(lab, &OUTPUT)?);
    Ok(findings)
}

fn once(value: f64, unit: &'static str) -> MeasuredQuantity {
    MeasuredQuantity::new(SampleSpread::once(value), unit)
}

/// Table 4 and Figure 10.
fn table_4(lab: &BenchmarkEnvironment, seconds: u64) -> Result<Vec<BenchmarkFinding>> {
    let (mut findings, mut lines, mut means) = (Vec::new(), Vec::new(), Vec::new());
    let begin = Instant::now();
    for (at, scenario) in ROUND_TRIPS.iter().enumerate() {
        let seen = round_trips::run(scenario, seconds, SEED).map_err(|refusal| anyhow!("{refusal}"))?;
        let (times, name) = (&seen.latencies, format!("Table 4, scenario {}", at + 1));
        let longest = once(times.max_ns() as f64 / 1e3, "us");
        let bound = ("bound of Equation 10", once(seen.bound_ns as f64 / 1e3, "us"));
        let detail = format!(
            "here {} messages, {:.0} to {:.0} us, mean {:.0}, deviation {:.0}; paper {} to {} us, mean {}, deviation {}{}",
            times.count(),
            times.min_ns() as f64 / 1e3,
            times.max_ns() as f64 / 1e3,
            times.mean_us(),
            times.deviation_us(),
            scenario.min_us,
            scenario.max_us,
            scenario.mean_us,
            scenario.deviation_us,
            if scenario.max_us > scenario.bound_us { ", over its bound by caches and memory, it says" } else { "" },
        );
        findings.push(
            BenchmarkFinding::ratio(
                NAME,
                format!("{name}: longest round trip"),
                longest,
                bound,
                SpeedTarget::AtMost(1.0),
            )
            .with_detail(detail),
        );
        findings.push(BenchmarkFinding::ratio(
            NAME,
            format!("{name}: mean round trip"),
            once(times.mean_us(), "us"),
            ("paper", once(scenario.mean_us as f64, "us")),
            SpeedTarget::Context,
        ));
        means.push((times.mean_us(), scenario.mean_us as f64));
        lines.push(ChartLine { name: format!("scenario {}", at + 1), points: times.distribution() });
    }
    findings.push(an_hour("a router and two boards", seconds * ROUND_TRIPS.len() as u64, begin));
    if let (Some(first), Some(last)) = (means.first(), means.last()) {
        let (ours, theirs) = (once(last.0 - first.0, "us"), once(last.1 - first.1, "us"));
        let why = "what waiting for the bus adds is alike. What is the same in all scenarios is less here: a thread is through half a \
                   period after the message came, on average, and the paper's twelve servers take nearly all of theirs; it does not \
                   say what else they do";
        let what = "Table 4: mean of scenario 5 above that of scenario 1".to_owned();
        findings.push(
            BenchmarkFinding::ratio(NAME, what, ours, ("paper", theirs), SpeedTarget::Context).with_detail(why.into()),
        );
    }
    let chart = LineChart {
        title: "Round trips over a router, in simulation (Figure 10)".into(),
        across: "us".into(),
        panels: vec![ChartPanel { up: "share not longer".into(), is_logarithmic: false, lines }],
    };
    lab.plot("realtime-round-trips", &chart.render())?;
    Ok(findings)
}

/// Table 6, and how long the simulation of an hour of a full bus takes.
fn table_6(seconds: u64) -> Result<Vec<BenchmarkFinding>> {
    let mut findings = Vec::new();
    for (at, scenario) in THROUGHPUT.iter().enumerate() {
        for (load, how) in [(BulkLoad::Reserved, "what is reserved"), (BulkLoad::Always, "always something")] {
            let begin = Instant::now();
            let seen = throughput::run(scenario, load, seconds, SHORTER_PERMILLE, SEED)
                .map_err(|refusal| anyhow!("{refusal}"))?;
            let rates = SampleSpread::new(seen.mbps.clone());
            let exact_mbps = f64::from(scenario.budget_bytes) * 8.0 / (f64::from(scenario.period) * 125.0);
            let mean = seen.mbps.iter().sum::<f64>() / seen.mbps.len() as f64;
            let mut detail = format!(
                "here {:.2} to {:.2} Mb/s, mean {mean:.2}; paper {:.2} to {:.2}, mean {:.2}, deviation {:.2}; cameras {:?} \
                 admitted, {} of their periods, {} missed; {} bulk requests late",
                rates.min(),
                rates.max(),
                scenario.min_mbps,
                scenario.max_mbps,
                scenario.mean_mbps,
                scenario.deviation_mbps,
                seen.cameras,
                seen.periods,
                seen.missed,
                seen.late,
            );
            detail.push_str(&why_it_differs(scenario, load, at)?);
            let least = once(rates.min(), "Mb/s");
            let what = format!("Table 6, scenario {}, {how}: least of a second", at + 1);
            let reserved = ("reserved", once(exact_mbps, "Mb/s"));
            findings.push(
                BenchmarkFinding::ratio(NAME, what, least, reserved, SpeedTarget::AtLeast(1.0)).with_detail(detail),
            );
            let broken = once((seen.missed + seen.late) as f64, "");
            let what = format!("Table 6, scenario {}, {how}: promises broken", at + 1);
            findings.push(BenchmarkFinding::absolute(NAME, what, broken, SpeedTarget::AtMost(0.0)));
            if at == 2 && load == BulkLoad::Always {
                findings.push(an_hour("a full bus", seconds, begin));
            }
        }
    }
    Ok(findings)
}

/// Computed from the planner's own shares of the bus.
fn why_it_differs(scenario: &ThroughputScenario, load: BulkLoad, at: usize) -> Result<String> {
    let plan = throughput::planned(scenario).map_err(|refusal| anyhow!("{refusal}"))?;
    let shares = |of: &dyn Fn(&EndpointRequest) -> bool| -> f64 {
        plan.requests()
            .iter()
            .filter(|request| of(request))
            .map(|request| f64::from(request.utilization_ppm()) / 1e6)
            .sum()
    };
    let bulks = shares(&|request| !request.shape.is_periodic());
    let admitted = shares(&|request| plan.placement(request.id).is_some());
    Ok(match (load, at) {
        (BulkLoad::Reserved, 0) => ". An endpoint that asks for its budget and no more has that to the bit; the paper's software \
                                asked for more in each scenario, and for less than the bus had left in this and the next"
            .to_owned(),
        (BulkLoad::Always, 1) => format!(
            ". The paper runs the fourth camera too: with it {:.2} % of the bus are asked for (Table 5)",
            shares(&|_| true) * 100.0
        ),
        (BulkLoad::Always, 2) => {
            let reserved_mbps = f64::from(scenario.budget_bytes) * 8.0 / (f64::from(scenario.period) * 125.0);
            format!(
                ". Packets of Equation 3 leave each endpoint {:.1} Mb/s beside the admitted cameras; the paper's mean is above \
                 that, so its packets were shorter, as these are",
                reserved_mbps * (1.0 - admitted) / bulks
            )
        }
        _ => String::new(),
    })
}

/// How long the simulation of an hour takes, of which `seconds` began at `begin`.
fn an_hour(of: &str, seconds: u64, begin: Instant) -> BenchmarkFinding {
    let took_s = begin.elapsed().as_secs_f64();
    let hour = once(took_s * HOUR_S as f64 / seconds as f64, "s");
    let detail = format!("{seconds} s of bus time in {took_s:.2} s");
    BenchmarkFinding::absolute(NAME, format!("an hour of {of}"), hour, SpeedTarget::AtMost(120.0)).with_detail(detail)
}

/// Table 9 and Figure 12.
fn table_9(lab: &BenchmarkEnvironment) -> Result<Vec<BenchmarkFinding>> {
    let mut findings = Vec::new();
    let mut counters = [Vec::new(), Vec::new()];
    for (at, scenario) in OVERRUNS.iter().enumerate() {
        let users = if scenario.readers > 0 { ChannelUsers::Ordinary } else { ChannelUsers::None };
        let (seconds, cpu_bound, traffic) = (scenario.seconds, scenario.cpu_bound, usb_can::table_7());
        let of = |kernel| UsbCanScenario { kernel, seconds, cpu_bound, users, traffic, storms: STORMS };
        let [quest, linux] =
            [SimulatedKernel::Quest, SimulatedKernel::Linux].map(|kernel| usb_can::run(&of(kernel), SEED));
        let name = format!("Table 9, scenario {}", at + 1);
        let no_overrun = once(quest.overruns as f64, "");
        findings.push(BenchmarkFinding::absolute(
            NAME,
            format!("{name}: overruns, Quest"),
            no_overrun,
            SpeedTarget::AtMost(0.0),
        ));
        let paper = ("paper", once(scenario.linux as f64, ""));
        let of_linux = once(linux.overruns as f64, "");
        let detail = match at {
            5 => {
                "the one row that was fitted: by the distance of another device's interrupts, of which the paper says nothing"
            }
            _ => "",
        };
        findings.push(counted(format!("{name}: overruns, Linux"), of_linux, paper).with_detail(detail.into()));
        if scenario.cpu_bound > 0 {
            let detail = format!(
                "Linux {:+.0}; of {} steps. The text names no figure; it says that Quest is close, that Linux is behind \
                 in scenarios 2 and 5 and ahead in 3 and 6",
                linux.counter_error,
                seconds * 100_000 / 7
            );
            let what = format!("Figure 12, scenario {}: counters ahead, Quest", at + 1);
            let ahead = once(quest.counter_error, "steps");
            findings.push(BenchmarkFinding::absolute(NAME, what, ahead, SpeedTarget::Context).with_detail(detail));
            for (points, seen) in counters.iter_mut().zip([&quest, &linux]) {
                points.push(((at + 1) as f64, seen.counter_error));
            }
        }
    }
    let lines = ["Quest", "Linux"].into_iter().zip(counters);
    let lines = lines.map(|(name, points)| ChartLine { name: name.into(), points }).collect();
    let chart = LineChart {
        title: "How far counters of CPU-bound tasks are ahead, in simulation (Figure 12)".into(),
        across: "scenario of Table 8".into(),
        panels: vec![ChartPanel { up: "steps".into(), is_logarithmic: false, lines }],
    };
    lab.plot("realtime-counters", &chart.render_close())?;
    Ok(findings)
}

/// Two counts that may both be zero: no ratio is made of them.
fn counted(what: String, ours: MeasuredQuantity, other: (&'static str, MeasuredQuantity)) -> BenchmarkFinding {
    BenchmarkFinding { other: Some(other), ..BenchmarkFinding::absolute(NAME, what, ours, SpeedTarget::Context) }
}

/// Figures 13 and 14, or 15 and 16.
struct CanTrafficRun {
    name: &'static str,
    figures: [u32; 2],
    traffic: fn() -> [farbus_sim::can::CanTraffic; farbus_sim::can::CHANNELS],
    frames_per_s: (u64, u64),
    /// Means in the paper's text: Quest's and Linux's.
    means: Option<[(u64, u64); 2]>,
}

const INPUT: CanTrafficRun = CanTrafficRun {
    name: "input",
    figures: [13, 14],
    traffic: usb_can::input,
    frames_per_s: INPUT_FRAMES_PER_S,
    means: Some(INPUT_MEANS),
};
const OUTPUT: CanTrafficRun = CanTrafficRun {
    name: "output",
    figures: [15, 16],
    traffic: usb_can::output,
    frames_per_s: OUTPUT_FRAMES_PER_S,
    means: None,
};

fn pipes(lab: &BenchmarkEnvironment, direction: &CanTrafficRun) -> Result<Vec<BenchmarkFinding>> {
    let CanTrafficRun { name, figures, frames_per_s: (least, most), .. } = *direction;
    // The first second is left out, as the paper does.
    let (seconds, users, traffic) = (31, ChannelUsers::Pipes, (direction.traffic)());
    let of = |kernel| UsbCanScenario { kernel, seconds, cpu_bound: 3, users, traffic, storms: STORMS };
    let mut findings = Vec::new();
    let (mut panels, mut ends) = (Vec::new(), Vec::new());
    for (at, kernel) in [SimulatedKernel::Quest, SimulatedKernel::Linux].into_iter().enumerate() {
        let seen = usb_can::run(&of(kernel), SEED);
        let within = PLOTTED.iter().flat_map(|&channel| &seen.frames[channel]);
        let count = within.clone().count() as f64;
        let share = within.filter(|frames| (least..=most).contains(frames)).count() as f64 / count;
        let mut detail = PLOTTED.map(|channel| summary(&seen, channel)).join("; ");
        if let Some(means) = direction.means {
            let (can4, can5) = means[at];
            detail.push_str(&format!("; paper: means {can4} and {can5}"));
        }
        detail.push_str(&format!("; promised {least} to {most}"));
        if let (SimulatedKernel::Quest, Ok(load)) = (kernel, &seen.load) {
            detail.push_str(&format!(
                "; Equation 1: {:.1} of {:.1} %",
                load.demand_ppb as f64 / 1e7,
                load.bound_ppb as f64 / 1e7
            ));
        }
        let target = if kernel == SimulatedKernel::Quest { SpeedTarget::AtLeast(1.0) } else { SpeedTarget::Context };
        let what =
            format!("Figures {} and {}, {name}: seconds within what is promised, {kernel:?}", figures[0], figures[1]);
        findings.push(BenchmarkFinding::absolute(NAME, what, once(share, ""), target).with_detail(detail));
        panels.push(by_second(&seen, kernel, (least, most)));
        for channel in PLOTTED {
            let x = (2 * at + channel - PLOTTED[0] + 1) as f64;
            let frames = &seen.frames[channel];
            let [low, high] = [frames.iter().min(), frames.iter().max()].map(|end| end.copied().unwrap_or(0) as f64);
            let middle = mean(&seen, channel);
            // A bar from least to most with a tick at the mean.
            let points = vec![(x, low), (x, middle), (x - 0.15, middle), (x + 0.15, middle), (x, middle), (x, high)];
            ends.push(ChartLine { name: format!("{kernel:?}, CAN{}", channel + 1), points });
        }
    }
    let chart = LineChart {
        title: format!("Frames a second over {name} pipes, in simulation (Figure {})", figures[0]),
        across: "second".into(),
        panels,
    };
    lab.plot(&format!("realtime-{name}"), &chart.render_close())?;
    let promised = [least, most].map(|rate| ChartLine {
        name: format!("promised: {rate}"),
        points: vec![(0.5, rate as f64), (4.5, rate as f64)],
    });
    ends.extend(promised);
    let chart = LineChart {
        title: format!("Least, mean and most frames a second over {name} pipes, in simulation (Figure {})", figures[1]),
        across: "kernel and channel".into(),
        panels: vec![ChartPanel { up: "frames/s".into(), is_logarithmic: false, lines: ends }],
    };
    lab.plot(&format!("realtime-{name}-ends"), &chart.render_close())?;
    Ok(findings)
}

fn by_second(seen: &UsbCanResults, kernel: SimulatedKernel, (least, most): (u64, u64)) -> ChartPanel {
    let seconds = |frames: &[u64]| (1..).map(f64::from).zip(frames.iter().map(|&count| count as f64)).collect();
    let mut lines: Vec<_> = PLOTTED
        .map(|channel| ChartLine { name: format!("CAN{}", channel + 1), points: seconds(&seen.frames[channel]) })
        .into();
    let last = seen.frames[PLOTTED[0]].len() as f64;
    let promised = |rate: u64| ChartLine {
        name: format!("promised: {rate}"),
        points: vec![(1.0, rate as f64), (last, rate as f64)],
    };
    lines.extend([promised(least), promised(most)]);
    ChartPanel { up: format!("frames/s, {kernel:?}"), is_logarithmic: false, lines }
}

fn mean(seen: &UsbCanResults, channel: usize) -> f64 {
    seen.frames[channel].iter().sum::<u64>() as f64 / seen.frames[channel].len().max(1) as f64
}

fn summary(seen: &UsbCanResults, channel: usize) -> String {
    let ends = [seen.frames[channel].iter().min(), seen.frames[channel].iter().max()];
    let [least, most] = ends.map(|end| end.copied().unwrap_or(0));
    format!("CAN{}: {least} to {most} frames/s, mean {:.0}", channel + 1, mean(seen, channel))
}
