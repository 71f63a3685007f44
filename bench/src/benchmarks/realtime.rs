//! The experiments of West, Golchin and Njavro, "Real-Time USB Networking and Device I/O" (2023), in simulation: Tables
//! 4, 6 and 9, Figures 10 and 12 to 16, the paper's figures beside these. `crates/sim` says what is assumed; the rows
//! say where and why they differ. Before them, what is left of a plan on a controller that places packets itself.

use std::time::Instant;

use anyhow::{Result, anyhow};
use farbus_sim::experiments::{
    judged::{self, JudgedSets, SchedulingMode},
    paper::{
        INPUT_FRAMES_PER_S, INPUT_MEANS, OUTPUT_FRAMES_PER_S, OVERRUNS, ROUND_TRIPS, THROUGHPUT, ThroughputScenario,
    },
    round_trips,
    storms::{self, OverrunRange, SEEDS},
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
/// Random sets that the judging controller gets, in full and with `--quick`.
const JUDGED_SETS: [u64; 2] = [20_000, 1_000];
/// The last two channels, which the paper plots.
const PLOTTED: [usize; 2] = [3, 4];

pub fn run(lab: &BenchmarkEnvironment) -> Result<Vec<BenchmarkFinding>> {
    // The paper's runs last an hour.
    let seconds = if lab.quick { 20 } else { HOUR_S };
    let mut findings = judged(lab);
    findings.extend(table_4(lab, seconds)?);
    findings.extend(table_6(seconds)?);
    findings.extend(table_9(lab)?);
    findings.extend(pipes(lab, &INPUT)?);
    findings.extend(pipes(lab, &OUTPUT)?);
    Ok(findings)
}

/// Says on standard error what is simulated next: an hour of bus time takes a minute or more.
fn progress(what: &str) {
    eprintln!("{NAME}: {what} …");
}

/// R2: sets that each mode of the planner admits, on controllers that have never seen the plan.
fn judged(lab: &BenchmarkEnvironment) -> Vec<BenchmarkFinding> {
    let random = judged::random_sets(JUDGED_SETS[usize::from(lab.quick)], SEED);
    let papers = judged::paper_sets();
    let mut findings = Vec::new();
    for mode in judged::MODES {
        progress(&format!("a controller that places packets itself gets what mode {mode:?} admits"));
        for policy in judged::POLICIES {
            let seen = judged::judge_all(&random, mode, policy, false, SEED);
            let theirs = judged::judge_all(&papers, mode, policy, false, SEED);
            let broken = once((seen.admitted - seen.kept + theirs.admitted - theirs.kept) as f64, "");
            let is_promised = mode == SchedulingMode::Controller;
            let target = if is_promised { SpeedTarget::AtMost(0.0) } else { SpeedTarget::Context };
            let name = match mode {
                SchedulingMode::Printed { .. } => "printed".to_owned(),
                mode => format!("{mode:?}").to_lowercase(),
            };
            let mut detail = format!(
                "{} of {} random sets admitted, {}; {} of the paper's {}, {}",
                seen.admitted,
                random.len(),
                outcome(&seen),
                theirs.admitted,
                papers.len(),
                outcome(&theirs),
            );
            if is_promised {
                let beside = judged::judge_all(&random, mode, policy, true, SEED);
                detail.push_str(&format!(
                    "; beside a bulk endpoint that has reserved nothing {} late: no controller knows of reservations",
                    beside.late
                ));
            }
            let what = format!("plan mode {name}, controller {policy:?}: sets broken");
            findings.push(BenchmarkFinding::absolute(NAME, what, broken, target).with_detail(detail));
        }
    }
    findings
}

fn outcome(sets: &JudgedSets) -> String {
    format!("{} kept, {} refused, {} missed, {} late", sets.kept, sets.refused, sets.missed, sets.late)
}

fn once(value: f64, unit: &'static str) -> MeasuredQuantity {
    MeasuredQuantity::new(SampleSpread::once(value), unit)
}

/// Table 4 and Figure 10.
fn table_4(lab: &BenchmarkEnvironment, seconds: u64) -> Result<Vec<BenchmarkFinding>> {
    let (mut findings, mut lines, mut means) = (Vec::new(), Vec::new(), Vec::new());
    let begin = Instant::now();
    for (at, scenario) in ROUND_TRIPS.iter().enumerate() {
        progress(&format!("Table 4, scenario {}: {seconds} s of bus time", at + 1));
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
            progress(&format!("Table 6, scenario {}, {how}: {seconds} s of bus time", at + 1));
            let begin = Instant::now();
            let seen = throughput::run(scenario, load, seconds, 0, SEED).map_err(|refusal| anyhow!("{refusal}"))?;
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
            .map(|request| f64::from(request.utilization_ppm(SchedulingMode::Sound)) / 1e6)
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
                ". Packets of Equation 3 leave each endpoint {:.1} Mb/s beside the admitted cameras. The paper's mean is above \
                 that: Equation 3 counts both directions as one, and on the wire they do not wait for each other",
                reserved_mbps * (1.0 - admitted) / bulks,
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
        progress(&format!("Table 9, scenario {}: {} seeds", at + 1, SEEDS.count()));
        let seconds = scenario.seconds;
        let of = |kernel| storms::setting(scenario, kernel, STORMS);
        let [quest, linux] =
            [SimulatedKernel::Quest, SimulatedKernel::Linux].map(|kernel| usb_can::run(&of(kernel), SEED));
        let [of_quest, of_linux] =
            [SimulatedKernel::Quest, SimulatedKernel::Linux].map(|kernel| storms::overruns(&of(kernel), SEEDS));
        let name = format!("Table 9, scenario {}", at + 1);
        let no_overrun = once(of_quest.most as f64, "");
        findings.push(BenchmarkFinding::absolute(
            NAME,
            format!("{name}: overruns, Quest"),
            no_overrun,
            SpeedTarget::AtMost(0.0),
        ));
        let paper = ("paper", once(scenario.linux as f64, ""));
        let OverrunRange { mean, least, most } = of_linux;
        let chosen = if scenario.linux > 0 {
            ". The storms of another device were chosen so that this row comes near: the paper says nothing of them"
        } else {
            ""
        };
        let detail = format!("mean of {} seeds, {least} to {most}{chosen}", SEEDS.count());
        let what = format!("{name}: overruns, Linux");
        findings.push(counted(what, once(mean, ""), paper).with_detail(detail));
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
    findings.extend(chosen_storms());
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

/// What the last row of Table 9 owes to each of the four numbers that were chosen for it.
fn chosen_storms() -> impl Iterator<Item = BenchmarkFinding> {
    let scenario = &OVERRUNS[OVERRUNS.len() - 1];
    let paper = ("paper", once(scenario.linux as f64, ""));
    storms::variations().into_iter().map(move |(what, varied)| {
        progress(&format!("Table 9, scenario {}, {what}", OVERRUNS.len()));
        let seen = storms::overruns(&storms::setting(scenario, SimulatedKernel::Linux, varied), SEEDS);
        let what = format!("Table 9, scenario {}: overruns, Linux, {what}", OVERRUNS.len());
        let detail = format!("mean of {} seeds, {} to {}", SEEDS.count(), seen.least, seen.most);
        counted(what, once(seen.mean, ""), paper.clone()).with_detail(detail)
    })
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
