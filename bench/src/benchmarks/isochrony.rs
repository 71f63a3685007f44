//! When the URBs of a far isochronous endpoint complete (2005 paper on USB/IP, Figures 12, 14 and 15): a URB is 8
//! packets of 512 bytes, one each microframe, so one completes each millisecond; the distance is a relay that lets each
//! byte wait.
//!
//! All threads of both ends run with `SCHED_FIFO` at the priority for which `farbus doctor` asks (`LimitRTPRIO=50`), if
//! this user may. The standard deviation is that of all intervals of a run after its start, and is held against 10 us;
//! or, where a bare thread that wakes each millisecond beside it at the same priority does worse, against 1.5 of that.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use anyhow::Result;
use farbus::{
    gadgets::zero::{SourcePattern, SourceSink},
    model::UsbSpeed,
};
use rustix::thread::{CpuSet, sched_setaffinity};

use crate::{
    lab::BenchmarkEnvironment,
    late::late,
    load::{UrbMoments, UsbipLoadClient},
    peers::{PeerServer, local::LocalDevice, session::UsbLoad},
    placement::RealtimePriority,
    report::{BenchmarkFinding, MeasuredQuantity},
    stats::{SampleSpread, SpeedTarget},
    svg::{ChartLine, ChartPanel, LineChart},
    usbip::TransferTemplate,
};

pub const NAME: &str = "isochrony";
const PACKETS: usize = 8;
const PACKET_BYTES: usize = 512;
const INTERVAL: Duration = Duration::from_millis(1);
/// The round trips in ms and the queue depths: the paper's rule, q > RTT/x + 1, with one to spare, and its example.
const QUEUES: [(u64, usize); 5] = [(0, 3), (1, 4), (4, 7), (8, 10), (8, 12)];
/// The paper's: its time series, and what it has at most, in microseconds.
const SERIES: (u64, usize) = (8, 10);
const DEVIATION_US_MAX: f64 = 10.0;
/// How many times a bare thread's deviation is good enough where that thread does worse.
const BARE_FACTOR: f64 = 1.5;
/// The trace: its round trip in ms, depth and URBs.
const TRACE: (u64, usize, u64) = (1, 4, 12);
/// A run's parts, each with a deviation of its own, for the spread.
const PARTS: usize = 5;

/// The time between completions, in microseconds, in order.
struct CompletionIntervals {
    us: Vec<f64>,
    /// How many at the beginning belong to the start.
    start: usize,
}

pub fn run(lab: &BenchmarkEnvironment) -> Result<Vec<BenchmarkFinding>> {
    let urbs = if lab.quick { 600 } else { 20_000 };
    let priority = RealtimePriority::take();
    measured(lab, urbs, priority.is_granted)
}

fn measured(lab: &BenchmarkEnvironment, urbs: u64, is_fifo: bool) -> Result<Vec<BenchmarkFinding>> {
    let direct = beside_timers(|| direct(urbs))?;
    let mut far = Vec::new();
    for (ms, depth) in QUEUES {
        let mut endpoint = FarEndpoint::open(lab, ms)?;
        let run = beside_timers(|| Ok(CompletionIntervals::of(&endpoint.moments(depth, urbs)?, ms)))?;
        far.push((ms, depth, run));
    }
    let (ms, depth, urbs_traced) = TRACE;
    let trace = FarEndpoint::open(lab, ms)?.moments(depth, urbs_traced)?;
    let how = if is_fifo { "SCHED_FIFO 50" } else { "ordinary priority: this user may not use SCHED_FIFO" };

    let timers: Vec<f64> = far.iter().map(|(.., run)| run.timers_us).collect();
    let quantity = MeasuredQuantity::new(SampleSpread::new(timers), "us");
    let what = "bare timer thread: standard deviation of intervals".to_owned();
    let mut found = vec![
        BenchmarkFinding::absolute(NAME, what, quantity, SpeedTarget::Context)
            .with_detail(format!("the worst processor of each run; {how}")),
    ];
    found.push(direct.finding("direct, depth 2", how));
    for (ms, depth, run) in &far {
        let name = format!("{ms} ms, depth {depth}");
        found.push(run.finding(&name, how));
        if (*ms, *depth) == SERIES {
            found.extend(run.intervals.series_findings(&name));
            lab.plot("isochrony-series", &run.intervals.chart().render())?;
        }
    }
    found.extend(trace_findings(&trace));
    lab.plot("isochrony-trace", &trace_chart(&trace).render())?;
    lab.plot(NAME, &deviation_chart(&direct, &far).render())?;
    Ok(found)
}

/// A run, and what bare timer threads did beside it.
struct TimedRun {
    intervals: CompletionIntervals,
    /// The deviation of the bare thread that did worst, in microseconds.
    timers_us: f64,
}

/// Runs `work` beside a thread on each processor that only wakes each millisecond, as exactly as this machine can: what
/// takes a processor away from everything takes it from that thread, too.
fn beside_timers(work: impl FnOnce() -> Result<CompletionIntervals>) -> Result<TimedRun> {
    let is_over = AtomicBool::new(false);
    let processors = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| {
        let timers: Vec<_> = (0..processors)
            .map(|at| {
                scope.spawn({
                    let is_over = &is_over;
                    move || timer(at, is_over)
                })
            })
            .collect();
        let intervals = work();
        is_over.store(true, Ordering::Relaxed);
        let timers = timers.into_iter().map(|thread| thread.join().expect("a timer does not panic").deviation());
        let timers_us = timers.fold(0.0, f64::max);
        Ok(TimedRun { intervals: intervals?, timers_us })
    })
}

/// Wakes each millisecond on this processor until it is over.
fn timer(processor: usize, is_over: &AtomicBool) -> CompletionIntervals {
    let mut only = CpuSet::new();
    only.set(processor);
    // Where that processor is not ours, it runs where it may.
    let _ = sched_setaffinity(None, &only);
    let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1));
    let (began, mut woke) = (Instant::now(), Vec::new());
    while !is_over.load(Ordering::Relaxed) {
        let due = began + INTERVAL * (woke.len() as u32 + 1);
        thread::sleep(due.saturating_duration_since(Instant::now()));
        woke.push(Instant::now());
    }
    CompletionIntervals::between(&woke, 0)
}

impl TimedRun {
    /// The deviation of the whole run, which is judged, with those of its parts as the spread.
    fn finding(&self, name: &str, how: &str) -> BenchmarkFinding {
        let (intervals, steady) = (&self.intervals, self.intervals.steady());
        let parts = steady.chunks((steady.len() / PARTS).max(2)).filter(|part| part.len() > 1).map(deviation);
        let ours = MeasuredQuantity::new(SampleSpread::new(parts.collect()), "us");
        let detail = format!(
            "all {:.1} us, bare timer threads beside it {:.1} us; intervals p50 {:.1}, p99 {:.1}, p99.99 {:.1} \
             us of {}; {how}",
            intervals.deviation(),
            self.timers_us,
            intervals.quantile(0.5),
            intervals.quantile(0.99),
            intervals.quantile(0.9999),
            steady.len()
        );
        let target = SpeedTarget::AtMost(DEVIATION_US_MAX.max(BARE_FACTOR * self.timers_us));
        let what = format!("{name}: standard deviation of intervals");
        let finding = BenchmarkFinding::absolute(NAME, what, ours, target).with_detail(detail);
        BenchmarkFinding { judged: SampleSpread::once(intervals.deviation()), ..finding }
    }
}

/// Such an endpoint of a device in this process.
fn direct(urbs: u64) -> Result<CompletionIntervals> {
    let device = SourceSink::device(UsbSpeed::High, SourcePattern::Zeros, false);
    let mut load = UsbLoad::over(LocalDevice::new(device))?;
    let mut completed = Vec::new();
    load.stream_seen(PACKETS, PACKET_BYTES, 2, INTERVAL * urbs as u32, |at| completed.push(at))?;
    Ok(CompletionIntervals::between(&completed, 2 * PARTS))
}

/// A far source and sink, with its server.
struct FarEndpoint(UsbipLoadClient, #[expect(dead_code, reason = "it serves until it is dropped")] PeerServer);

impl FarEndpoint {
    fn open(lab: &BenchmarkEnvironment, round_trip_ms: u64) -> Result<Self> {
        let server = lab.farbus("zero")?;
        RealtimePriority::give(server.pid());
        let address = late(server.address, Duration::from_micros(round_trip_ms * 500))?;
        Ok(Self(UsbipLoadClient::attach(address, server.busid())?, server))
    }

    fn moments(&mut self, depth: usize, urbs: u64) -> Result<Vec<UrbMoments>> {
        self.0.moments(&TransferTemplate::isochronous(PACKETS, PACKET_BYTES), depth, urbs)
    }
}

impl CompletionIntervals {
    fn of(moments: &[UrbMoments], round_trip_ms: u64) -> Self {
        let completed: Vec<Instant> = moments.iter().map(|moments| moments.completed).collect();
        // Two round trips, and some.
        Self::between(&completed, 2 * round_trip_ms as usize + 10)
    }

    fn between(moments: &[Instant], start: usize) -> Self {
        let us = moments.windows(2).map(|pair| (pair[1] - pair[0]).as_nanos() as f64 / 1e3).collect();
        Self { us, start }
    }

    /// Those after the start.
    fn steady(&self) -> &[f64] {
        &self.us[self.start.min(self.us.len().saturating_sub(2))..]
    }

    fn deviation(&self) -> f64 {
        deviation(self.steady())
    }

    /// The value below which this share of the intervals lies.
    fn quantile(&self, share: f64) -> f64 {
        let mut sorted = self.steady().to_vec();
        sorted.sort_by(f64::total_cmp);
        sorted[((sorted.len() as f64 * share).ceil() as usize).clamp(1, sorted.len()) - 1]
    }

    fn series_findings(&self, name: &str) -> [BenchmarkFinding; 2] {
        let steady = self.steady();
        let means =
            steady.chunks((steady.len() / PARTS).max(1)).map(|part| part.iter().sum::<f64>() / part.len() as f64);
        let finding = |what: &str, samples, unit| {
            let quantity = MeasuredQuantity::new(samples, unit);
            BenchmarkFinding::absolute(NAME, format!("{name}: {what}"), quantity, SpeedTarget::Context)
        };
        let first: Vec<String> = self.us.iter().take(5).map(|us| format!("{:.2}", us / 1e3)).collect();
        [
            finding("interval, mean", SampleSpread::new(means.map(|us| us / 1e3).collect()), "ms")
                .with_detail(format!("the first: {} ms", first.join(", "))),
            finding("p99.99 of intervals", SampleSpread::once(self.quantile(0.9999) / 1e3), "ms")
                .with_detail(format!("of {}", steady.len())),
        ]
    }

    /// The paper's Figure 14.
    fn chart(&self) -> LineChart {
        let shown = self.us.len().min(600);
        let points = self.us[..shown].iter().enumerate().map(|(at, us)| (at as f64 + 1.0, us / 1e3)).collect();
        let paper = ChartLine { name: "paper, once stable".into(), points: vec![(1.0, 1.0), (shown as f64, 1.0)] };
        let lines = vec![ChartLine { name: "completion intervals".into(), points }, paper];
        LineChart {
            title: "Completion intervals, RTT 8 ms, depth 10 (2005 paper, Figure 14)".into(),
            across: "completion".into(),
            panels: vec![ChartPanel { up: "ms".into(), is_logarithmic: false, lines }],
        }
    }
}

fn deviation(values: &[f64]) -> f64 {
    let mean = values.iter().sum::<f64>() / values.len() as f64;
    (values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / (values.len() as f64 - 1.0).max(1.0)).sqrt()
}

/// The paper's Figure 15: deviations over depths, a line for each distance.
fn deviation_chart(direct: &TimedRun, far: &[(u64, usize, TimedRun)]) -> LineChart {
    let timers = far.iter().map(|(.., run)| run.timers_us).fold(0.0, f64::max);
    let across = |name: &str, us: f64| ChartLine { name: name.into(), points: vec![(1.0, us), (14.0, us)] };
    let mark = |name: String, depth: f64, run: &TimedRun| {
        let us = run.intervals.deviation();
        ChartLine { name, points: vec![(depth - 0.2, us), (depth + 0.2, us)] }
    };
    let mut lines = vec![across("bare timer thread", timers), across("paper, at most", DEVIATION_US_MAX)];
    lines.push(mark("direct".into(), 2.0, direct));
    lines.extend(far.iter().map(|(ms, depth, run)| mark(format!("{ms} ms, depth {depth}"), *depth as f64, run)));
    LineChart {
        title: "Standard deviation of completion intervals (2005 paper, Figure 15)".into(),
        across: "queue depth".into(),
        panels: vec![ChartPanel { up: "us".into(), is_logarithmic: true, lines }],
    }
}

fn trace_findings(trace: &[UrbMoments]) -> [BenchmarkFinding; 2] {
    let ms = |from: Instant, to: Instant| (to - from).as_nanos() as f64 / 1e6;
    let finding = |what: &str, samples| {
        let quantity = MeasuredQuantity::new(samples, "ms");
        BenchmarkFinding::absolute(NAME, format!("trace: {what}"), quantity, SpeedTarget::Context)
    };
    let (round_trip, depth, _) = TRACE;
    let first = SampleSpread::once(ms(trace[0].submitted, trace[0].completed));
    let between = trace.windows(2).map(|pair| ms(pair[0].completed, pair[1].completed)).collect();
    [
        finding("from the first submission to its completion", first)
            .with_detail(format!("{depth} in flight over {round_trip} ms")),
        finding("interval between completions", SampleSpread::new(between))
            .with_detail("each of 8 transactions, one a microframe".into()),
    ]
}

/// The paper's Figure 12: each URB from its submission to its completion.
fn trace_chart(trace: &[UrbMoments]) -> LineChart {
    let ms = |at: Instant| (at - trace[0].submitted).as_nanos() as f64 / 1e6;
    let bar = |(at, urb): (usize, &UrbMoments)| {
        let y = at as f64 + 1.0;
        let (from, to) = (ms(urb.submitted), ms(urb.completed));
        // Ticks at both ends.
        let points = vec![(from, y + 0.3), (from, y - 0.3), (from, y), (to, y), (to, y + 0.3), (to, y - 0.3)];
        ChartLine { name: format!("URB {}", at + 1), points }
    };
    let (round_trip, depth, _) = TRACE;
    LineChart {
        title: format!("URBs of a driver that keeps {depth} in flight, RTT {round_trip} ms (2005 paper, Figure 12)"),
        across: "ms since the first submission".into(),
        panels: vec![ChartPanel {
            up: "URB, from submission to completion".into(),
            is_logarithmic: false,
            lines: trace.iter().enumerate().map(bar).collect(),
        }],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deviation_of_a_run_that_is_off_misses_and_one_lucky_part_does_not_save_it() {
        // Four parts that are off by 100 us, and one that is exact.
        let off = |at: usize| if at.is_multiple_of(2) { 900.0 } else { 1100.0 };
        let us: Vec<f64> = (0..400).map(off).chain(vec![1000.0; 100]).collect();
        let run = |us, timers_us| TimedRun { intervals: CompletionIntervals { us, start: 0 }, timers_us };
        let finding = run(us.clone(), 20.0).finding("x", "");
        assert!(finding.missed() && finding.ours.spread.min() < 1.0, "{}", finding.detail);
        assert!(!run(us, 70.0).finding("x", "").missed(), "a processor that does no better is no fault of ours");
        let steady = run(vec![1000.0; 500], 0.0);
        assert!(!steady.finding("x", "").missed());
        assert_eq!((steady.intervals.quantile(0.9999), deviation(&[1.0, 3.0])), (1000.0, 2.0_f64.sqrt()));
    }

    #[test]
    fn start_of_a_run_is_not_part_of_its_deviation() {
        let us = [vec![5000.0; 20], vec![1000.0; 100]].concat();
        assert_eq!(CompletionIntervals { us, start: 20 }.deviation(), 0.0);
    }

    #[test]
    fn far_endpoint_completes_and_every_item_of_the_paper_has_its_row() {
        let Some(lab) = BenchmarkEnvironment::for_test() else { return };
        let found = measured(&lab, 60, false).expect("it completes");
        let names: Vec<&str> = found.iter().map(|finding| finding.what.as_str()).collect();
        assert_eq!(names.len(), 2 + QUEUES.len() + 2 + 2, "{names:?}");
        assert!(names.contains(&"8 ms, depth 10: p99.99 of intervals"), "{names:?}");
        let charts = lab.charts.take();
        assert_eq!(
            charts.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(),
            ["isochrony-series", "isochrony-trace", "isochrony"]
        );
    }
}
