//! Five CAN buses behind one adapter with a small buffer, a pipe each (Table 7, Figures 13 to 16).

use std::{sync::Arc, thread, time::Duration};

use anyhow::{Context, Result, anyhow};
use farbus::{
    gadgets::can::{CanAdapter, CanSettings},
    model::TransferDirection,
};
use farbus_pipe::{
    Pipe, PipeEnd, PipeEndpoint, PipeFlow, PipeJobContext, PipeQuality, ProcessorPool, ReceiverTerms, Report,
    SchedulingStrictness, can, here, scheduling::now_ns, tpipe,
};

use super::{
    canary::{ProcessorGap, SPINNERS, WatchedLoad, gaps_in, is_void},
    words::{NAME, once},
};
use crate::{
    lab::BenchmarkEnvironment,
    report::BenchmarkFinding,
    stats::SpeedTarget,
    svg::{ChartLine, ChartPanel, LineChart},
};

const SECOND_NS: u64 = 1_000_000_000;
/// Frames of a pipe's buffer, and the time within which its function processes them (section 6.2.2).
const BUFFER: u64 = 128;
const EXECUTION_NS: u64 = 2_000_000;
/// The last two channels, which the paper plots.
const PLOTTED: [usize; 2] = [3, 4];
/// How many times the wanted duration to wait for valid seconds.
const PATIENCE: usize = 3;

/// Buses and their traffic.
struct CanScenario {
    name: &'static str,
    plot: &'static str,
    adapter: &'static str,
    rates: [u32; 5],
    /// For each channel, its direction and frames a second.
    channels: [(TransferDirection, f64); 5],
}

use TransferDirection::{In, Out};

/// A frame of 8 bytes with a stuffed bit after every six: 126 bits, 149 with a long identifier. A unit that takes 65 %
/// of a bus of 533,333 bit/s sends one each 363.5 us, as often as the paper's Arduino (2,752 a second at the most).
const SCENARIOS: [CanScenario; 3] = [
    CanScenario {
        name: "Table 7, five in",
        plot: "pipes-table-7",
        adapter: "traffic=10/20x/30/40x/69",
        rates: [500_000, 250_000, 500_000, 500_000, 500_000],
        channels: [(In, 396.8), (In, 335.5), (In, 1190.4), (In, 1342.2), (In, 2738.1)],
    },
    CanScenario {
        name: "Figures 13 and 14, two in at 2,752",
        plot: "pipes-in",
        adapter: "traffic=10/20x/30/65/65",
        rates: [500_000, 250_000, 500_000, 533_333, 533_333],
        channels: [(In, 396.8), (In, 335.5), (In, 1190.4), (In, 2751.3), (In, 2751.3)],
    },
    CanScenario {
        name: "Figures 15 and 16, two out at 3,073",
        plot: "pipes-out",
        adapter: "traffic=10/20x/30/0/0",
        rates: [500_000, 250_000, 500_000, 500_000, 500_000],
        channels: [(In, 396.8), (In, 335.5), (In, 1190.4), (Out, 3073.0), (Out, 3073.0)],
    },
];

pub fn run(lab: &BenchmarkEnvironment) -> Result<Vec<BenchmarkFinding>> {
    let mut findings = Vec::new();
    for scenario in &SCENARIOS {
        let (wanted, contrast) = if lab.quick { (3, 3) } else { (60, 20) };
        let promised = scenario.play(SchedulingStrictness::Deadline, wanted)?;
        let ordinary = scenario.play(SchedulingStrictness::None, contrast)?;
        let judged = [(&promised, "promised"), (&ordinary, "without promises")];
        for (seen, how) in judged {
            let is_promised = how == "promised";
            let valid = seen.valid().count();
            let lost: u64 = seen.valid().map(|second| second.lost).sum();
            let target = if is_promised { SpeedTarget::AtMost(0.0) } else { SpeedTarget::Context };
            let what = format!("{}, {how}: frames lost to overruns", scenario.name);
            findings.push(
                BenchmarkFinding::absolute(NAME, what, once(lost as f64, ""), target).with_detail(seen.described()),
            );
            let within = seen.valid().filter(|second| second.is_within).count();
            let share = within as f64 / valid.max(1) as f64;
            let target = if is_promised { SpeedTarget::AtLeast(1.0) } else { SpeedTarget::Context };
            let what = format!("{}, {how}: seconds of all channels within bounds", scenario.name);
            let detail = format!("{within} of {valid} valid seconds; {} void", seen.seconds.len() - valid);
            findings.push(BenchmarkFinding::absolute(NAME, what, once(share, ""), target).with_detail(detail));
        }
        lab.plot(scenario.plot, &scenario.chart(&promised, &ordinary).render_close())?;
    }
    Ok(findings)
}

/// What a function saw, and when.
#[derive(Clone, Copy, Debug, Default)]
struct CounterSample {
    at_ns: u64,
    frames: u64,
    lost: u64,
}

/// A pipe's argument: what it saw, in memory allocated before it runs.
struct CounterTrace {
    looks: Vec<CounterSample>,
    now: CounterSample,
    next: Option<u64>,
}

fn count(turn: &mut PipeJobContext<'_>, seen: &mut CounterTrace) -> PipeFlow {
    for message in turn.messages() {
        let Some(frame) = can::GsCanFrame::of_message(message) else { continue };
        let number = u64::from_le_bytes(frame.data);
        // The unit numbers its frames: missing ones were overwritten in the adapter.
        seen.now.lost += seen.next.map_or(0, |next| number.saturating_sub(next));
        (seen.next, seen.now.frames) = (Some(number + 1), seen.now.frames + 1);
    }
    seen.look(turn.now_ns)
}

fn send(turn: &mut PipeJobContext<'_>, seen: &mut CounterTrace) -> PipeFlow {
    while turn.room() > 0 {
        let number = seen.next.unwrap_or(0);
        turn.put(&can::GsCanFrame { id: 0x100, length: 8, data: number.to_le_bytes() }.to_message());
        seen.next = Some(number + 1);
    }
    seen.now.frames = turn.went_out;
    seen.look(turn.now_ns)
}

impl CounterTrace {
    fn look(&mut self, at_ns: u64) -> PipeFlow {
        self.now.at_ns = at_ns;
        if self.looks.len() < self.looks.capacity() {
            self.looks.push(self.now);
        }
        PipeFlow::On
    }
}

/// A second of all channels.
struct ChannelSecond {
    is_void: bool,
    is_within: bool,
    lost: u64,
    /// Frames that came while processors stood still, and between two looks of the receiving thread beside that: the
    /// gaps explain so many.
    explained: u64,
    /// Frames a second of each channel.
    rates: [f64; 5],
}

struct CanOutcome {
    seconds: Vec<ChannelSecond>,
    reports: Vec<Report>,
    gaps: Vec<ProcessorGap>,
    receiver: String,
    overruns: AdapterOverruns,
    bounds: [(f64, f64); 5],
}

/// Frames that the adapter lost: while the pipes were opened and in the first second, in the seconds that are judged,
/// and while the pipes were stopped, one after the other.
struct AdapterOverruns {
    before: u64,
    judged: u64,
    after: u64,
}

impl CanScenario {
    fn play(&self, strictness: SchedulingStrictness, wanted: usize) -> Result<CanOutcome> {
        let settings: CanSettings = self.adapter.parse().map_err(|error: String| anyhow!(error))?;
        let adapter = CanAdapter::device(&settings);
        let tally = farbus::model::Device::tally(&adapter).context("an adapter counts")?;
        let mut device = here(adapter)?;
        let shape = can::set_up(&mut device, &self.rates.map(Some), can::ROOM)?;
        let processors = ProcessorPool::anywhere(strictness);
        let endpoint =
            PipeEndpoint::open(device.into_port().into_way(), shape, &processors, ReceiverTerms::HERE).map(Arc::new)?;
        let busy = WatchedLoad::begin()?;
        let pipes = (0..5).map(|at| self.open(&endpoint, at, wanted * PATIENCE)).collect::<Result<Vec<_>>>()?;
        let receiver_ns = endpoint.period_ns();
        // The first second is left out, as the paper does.
        thread::sleep(Duration::from_secs(1));
        let from_ns = now_ns();
        let overruns =
            || -> u64 { tally.read().filter(|(name, _)| name.ends_with("overruns")).map(|(_, count)| count).sum() };
        let before = overruns();
        let seconds = |gaps: &[ProcessorGap]| {
            // The observing thread may be late itself.
            let count = ((now_ns() - from_ns) / SECOND_NS).min((wanted * PATIENCE) as u64);
            let ends = (0..count).map(|at| (from_ns + at * SECOND_NS, from_ns + (at + 1) * SECOND_NS));
            ends.map(|(a, b)| is_void(gaps, a, b)).collect::<Vec<_>>()
        };
        loop {
            thread::sleep(Duration::from_millis(500));
            let voids = seconds(&busy.gaps());
            if voids.iter().filter(|is_void| !**is_void).count() >= wanted || voids.len() >= wanted * PATIENCE {
                break;
            }
        }
        let gaps = busy.gaps();
        let voids = seconds(&gaps);
        let judged = overruns() - before;
        let counts = endpoint.counts();
        let granted = endpoint.granted();
        let receiver = format!(
            "receiver each {:.3} ms, {}{}: {} jobs, {} missed, {} late, {} too long, {:.1} ms between two at the most",
            receiver_ns as f64 / 1e6,
            granted.policy.split(' ').next().unwrap_or_default(),
            if granted.warnings.is_empty() { "" } else { " (less than was asked for)" },
            counts.jobs.ran,
            counts.jobs.missed,
            counts.jobs.late,
            counts.jobs.overruns,
            counts.jobs.apart_ns as f64 / 1e6,
        );
        let (seen, reports): (Vec<_>, Vec<_>) = pipes.into_iter().map(Pipe::stop).unzip();
        drop(busy);
        let looks: Vec<Vec<CounterSample>> =
            seen.into_iter().map(|seen| seen.map_or(Vec::new(), |seen| seen.looks)).collect();
        let bounds = std::array::from_fn(|at| self.bounds(at, receiver_ns, SECOND_NS));
        let second = |(at, &is_void): (usize, &bool)| {
            let (a, b) = (from_ns + at as u64 * SECOND_NS, from_ns + (at as u64 + 1) * SECOND_NS);
            let explained = gaps_in(&gaps, a, b).map(|gap| self.frames_in(gap.long_ns + 2 * receiver_ns)).sum();
            let mut second = ChannelSecond { is_void, is_within: true, lost: 0, explained, rates: [0.0; 5] };
            for (channel, looks) in looks.iter().enumerate() {
                // A second of a channel is from job to job.
                let last =
                    |until_ns| looks.iter().rev().find(|look| look.at_ns <= until_ns).copied().unwrap_or_default();
                let (first, last) = (last(a), last(b));
                let span_ns = last.at_ns.saturating_sub(first.at_ns).max(1);
                second.lost += last.lost - first.lost;
                let rate = (last.frames - first.frames) as f64 * 1e9 / span_ns as f64;
                let (least, most) = self.bounds(channel, receiver_ns, span_ns);
                // A second without a job does not count as kept.
                second.is_within &= span_ns > SECOND_NS / 2 && (least..=most).contains(&rate);
                second.rates[channel] = rate;
            }
            // A gap is no excuse for more than it explains.
            second.is_void &= second.lost <= second.explained;
            second
        };
        let seconds = voids.iter().enumerate().map(second).collect();
        let overruns = AdapterOverruns { before, judged, after: overruns() - before - judged };
        Ok(CanOutcome { seconds, reports, gaps, receiver, overruns, bounds })
    }

    fn open(&self, endpoint: &Arc<PipeEndpoint>, channel: usize, seconds: usize) -> Result<Pipe<CounterTrace>> {
        let (direction, per_s) = self.channels[channel];
        let bytes = can::MESSAGE_BYTES as u64;
        let quality = PipeQuality {
            latency_ns: SECOND_NS,
            throughput_bits: per_s.ceil() as u64 * 8 * bytes,
            buffer_bytes: BUFFER * bytes,
            execution_ns: EXECUTION_NS,
        };
        let jobs = seconds * (per_s as usize).div_ceil(BUFFER as usize) * 2 + 100;
        let seen = CounterTrace { looks: Vec::with_capacity(jobs), now: CounterSample::default(), next: None };
        let function = if direction == In { count } else { send };
        Ok(tpipe(endpoint, PipeEnd { channel, direction }, quality, function, seen)?)
    }

    /// Frames that come from all channels in this time, rounded up.
    fn frames_in(&self, span_ns: u64) -> u64 {
        let per_s: f64 = self.channels.iter().filter(|(direction, _)| *direction == In).map(|(_, per_s)| per_s).sum();
        (per_s * span_ns as f64 / 1e9).ceil() as u64
    }

    /// The limits of a channel's rate, including frames that are fetched a little earlier or later: two looks of the
    /// receiving thread, and a frame at each end.
    fn bounds(&self, channel: usize, receiver_ns: u64, span_ns: u64) -> (f64, f64) {
        let (_, per_s) = self.channels[channel];
        let slack = per_s * 2.0 * receiver_ns as f64 / span_ns as f64 + 2e9 / span_ns as f64;
        (per_s - slack, per_s + slack)
    }

    fn chart(&self, promised: &CanOutcome, ordinary: &CanOutcome) -> LineChart {
        let panel = |seen: &CanOutcome, how: &str| {
            let points = |channel: usize| {
                let seconds = seen.seconds.iter().enumerate().filter(|(_, second)| !second.is_void);
                seconds.map(|(at, second)| (at as f64 + 1.0, second.rates[channel])).collect()
            };
            let mut lines: Vec<_> = PLOTTED
                .map(|channel| ChartLine { name: format!("CAN{}", channel + 1), points: points(channel) })
                .into();
            let (least, most) = seen.bounds[PLOTTED[1]];
            let last = seen.seconds.len().max(2) as f64;
            for bound in [least, most] {
                lines.push(ChartLine { name: format!("bound: {bound:.0}"), points: vec![(1.0, bound), (last, bound)] });
            }
            ChartPanel { up: format!("frames/s, {how}"), is_logarithmic: false, lines }
        };
        LineChart {
            title: format!("{}: frames a second, all processors busy", self.name),
            across: "second".into(),
            panels: vec![panel(promised, "promised"), panel(ordinary, "without promises")],
        }
    }
}

impl CanOutcome {
    fn valid(&self) -> impl Iterator<Item = &ChannelSecond> {
        self.seconds.iter().filter(|second| !second.is_void)
    }

    fn described(&self) -> String {
        let jobs = |of: fn(&Report) -> u64| self.reports.iter().map(of).sum::<u64>();
        let ends = |channel: usize| {
            let rates = || self.valid().map(|second| second.rates[channel]);
            let (least, most) = (rates().fold(f64::INFINITY, f64::min), rates().fold(0.0, f64::max));
            format!("CAN{} {least:.0} to {most:.0} frames/s", channel + 1)
        };
        let void_sum = |of: &dyn Fn(&ChannelSecond) -> u64| -> u64 {
            self.seconds.iter().filter(|second| second.is_void).map(of).sum()
        };
        let longest = self.gaps.iter().map(|gap| gap.long_ns).max().unwrap_or(0);
        format!(
            "{SPINNERS} spinning threads a processor; {} valid seconds, {} void ({} gaps, the longest {:.1} ms); {}; in the void ones {} frames lost, of {} that \
             the gaps explain; overruns of the adapter: {} in all these seconds, {} before and {} while the pipes were stopped; pipes: {} jobs, {} missed, {} late, {} too long; {}, {}",
            self.valid().count(),
            self.seconds.iter().filter(|second| second.is_void).count(),
            self.gaps.len(),
            longest as f64 / 1e6,
            self.receiver,
            void_sum(&|second| second.lost),
            void_sum(&|second| second.explained),
            self.overruns.judged,
            self.overruns.before,
            self.overruns.after,
            jobs(|report| report.jobs.ran),
            jobs(|report| report.jobs.missed),
            jobs(|report| report.jobs.late),
            jobs(|report| report.jobs.overruns),
            ends(PLOTTED[0]),
            ends(PLOTTED[1]),
        )
    }
}
