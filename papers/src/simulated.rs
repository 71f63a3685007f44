//! The 2023 paper's experiments in `farbus-sim`, several seeds each, so that a row has a spread.

use anyhow::{Result, anyhow};
use farbus_bench::{ChartLine, ChartPanel, LineChart};
use farbus_sim::experiments::{
    paper::{INPUT_MEANS, OUTPUT_FRAMES_PER_S, OVERRUNS, OverrunScenario, ROUND_TRIPS, THROUGHPUT},
    round_trips,
    throughput::{self, BulkLoad},
    usb_can::{self, ChannelUsers, STORMS, SimulatedKernel, UsbCanResults, UsbCanScenario},
};

use crate::result::{ItemResult, ItemRow};

/// How many thousandths shorter than by Equation 3 packets may be.
const SHORTER_PERMILLE: u32 = 50;
/// The last two channels, which the paper plots.
const PLOTTED: [usize; 2] = [3, 4];

/// The seeds, and the seconds of bus time of each: together a fifth of the paper's hour, or a quarter of a minute.
fn runs(is_quick: bool) -> (std::ops::RangeInclusive<u64>, u64) {
    if is_quick { (1..=3, 5) } else { (1..=12, 60) }
}

pub fn table_4(is_quick: bool) -> Result<ItemResult> {
    let (seeds, seconds) = runs(is_quick);
    let mut rows = Vec::new();
    let mut lines = [Vec::new(), Vec::new(), Vec::new(), Vec::new()];
    for (at, scenario) in ROUND_TRIPS.iter().enumerate() {
        let seen = seeds.clone().map(|seed| round_trips::run(scenario, seconds, seed).map_err(|why| anyhow!("{why}")));
        let seen = seen.collect::<Result<Vec<_>>>()?;
        let of = |name: &str, value: &dyn Fn(&round_trips::RoundTripResults) -> f64, paper: u64| {
            ItemRow::spread(format!("scenario {}: {name}", at + 1), seen.iter().map(value).collect(), "us", paper)
        };
        let mean = of("mean", &|run| run.latencies.mean_us(), scenario.mean_us);
        let longest = of("longest", &|run| run.latencies.max_ns() as f64 / 1e3, scenario.max_us);
        let x = (at + 1) as f64;
        let points = [mean.median(), longest.median(), scenario.mean_us as f64, scenario.max_us as f64];
        lines.iter_mut().zip(points).for_each(|(line, y)| line.push((x, y)));
        rows.push(mean);
        rows.push(of("shortest", &|run| run.latencies.min_ns() as f64 / 1e3, scenario.min_us));
        rows.push(longest.at_most(seen[0].bound_ns as f64 / 1e3));
        rows.push(of("deviation", &|run| run.latencies.deviation_us(), scenario.deviation_us));
    }
    let names = ["mean", "longest", "paper, mean", "paper, longest"];
    let chart = chart("Round trips over a router, in simulation (Table 4)", "us", names, lines);
    Ok(ItemResult { rows, charts: vec![chart] })
}

fn chart<const N: usize>(title: &str, up: &str, names: [&str; N], lines: [Vec<(f64, f64)>; N]) -> String {
    let lines = names.into_iter().zip(lines).map(|(name, points)| ChartLine { name: name.into(), points });
    let panel = ChartPanel { up: up.into(), is_logarithmic: false, lines: lines.collect() };
    LineChart { title: title.into(), across: "scenario".into(), panels: vec![panel] }.render_close()
}

pub fn table_6(is_quick: bool) -> Result<ItemResult> {
    let (seeds, seconds) = runs(is_quick);
    let mut rows = Vec::new();
    for (at, scenario) in THROUGHPUT.iter().enumerate() {
        for (load, how) in [(BulkLoad::Reserved, "what is reserved"), (BulkLoad::Always, "always something")] {
            let (mut means, mut least, mut most, mut missed) = (Vec::new(), Vec::new(), Vec::new(), 0);
            for seed in seeds.clone() {
                let seen = throughput::run(scenario, load, seconds, SHORTER_PERMILLE, seed);
                let seen = seen.map_err(|why| anyhow!("{why}"))?;
                means.push(seen.mbps.iter().sum::<f64>() / seen.mbps.len() as f64);
                least.push(seen.mbps.iter().copied().fold(f64::INFINITY, f64::min));
                most.push(seen.mbps.iter().copied().fold(0.0, f64::max));
                missed += seen.missed + seen.late;
            }
            let name = format!("scenario {}, asking for {how}", at + 1);
            let row = |what: &str, samples: Vec<f64>, paper: f64| {
                ItemRow::spread(format!("{name}: {what}"), samples, "Mb/s", format!("{paper:.2}"))
            };
            rows.push(row("mean", means, scenario.mean_mbps));
            rows.push(row("least of a second", least, scenario.min_mbps));
            rows.push(row("most of a second", most, scenario.max_mbps));
            rows.push(ItemRow::of(format!("{name}: promises broken"), missed as f64, "", 0).at_most(0.0));
        }
    }
    Ok(rows.into())
}

pub fn table_8(_is_quick: bool) -> Result<ItemResult> {
    let mut rows = Vec::new();
    for (at, scenario) in OVERRUNS.iter().enumerate() {
        let setting = setting(scenario, SimulatedKernel::Quest);
        let name = format!("scenario {}", at + 1);
        rows.push(ItemRow::of(format!("{name}: duration"), setting.seconds as f64, "s", scenario.seconds));
        rows.push(ItemRow::of(format!("{name}: tasks that compute"), setting.cpu_bound as f64, "", scenario.cpu_bound));
        let readers = if setting.users == ChannelUsers::None { 0 } else { setting.traffic.len() };
        rows.push(ItemRow::of(format!("{name}: tasks that read"), readers as f64, "", scenario.readers));
    }
    Ok(rows.into())
}

fn setting(scenario: &OverrunScenario, kernel: SimulatedKernel) -> UsbCanScenario {
    let users = if scenario.readers > 0 { ChannelUsers::Ordinary } else { ChannelUsers::None };
    let OverrunScenario { seconds, cpu_bound, .. } = *scenario;
    UsbCanScenario { kernel, seconds, cpu_bound, users, traffic: usb_can::table_7(), storms: STORMS }
}

pub fn table_9(is_quick: bool) -> Result<ItemResult> {
    let seeds = if is_quick { 1..=6 } else { 1..=40 };
    let mut rows = Vec::new();
    let mut lines = [Vec::new(), Vec::new(), Vec::new()];
    for (at, scenario) in OVERRUNS.iter().enumerate() {
        let overruns = |kernel| {
            let runs = seeds.clone().map(|seed| usb_can::run(&setting(scenario, kernel), seed).overruns as f64);
            runs.collect::<Vec<f64>>()
        };
        let name = |kernel| format!("scenario {}: overruns, {kernel}", at + 1);
        let quest = ItemRow::spread(name("Quest"), overruns(SimulatedKernel::Quest), "", 0).at_most(0.0);
        let linux = ItemRow::spread(name("Linux"), overruns(SimulatedKernel::Linux), "", scenario.linux);
        let points = [quest.median(), linux.median(), scenario.linux as f64];
        lines.iter_mut().zip(points).for_each(|(line, y)| line.push(((at + 1) as f64, y)));
        rows.extend([quest, linux]);
    }
    let names = ["Quest", "Linux, median", "paper, Linux"];
    let charts = vec![chart("Overruns of the USB-CAN buffer, in simulation (Table 9)", "overruns", names, lines)];
    Ok(ItemResult { rows, charts })
}

pub fn figure_12(is_quick: bool) -> Result<ItemResult> {
    let seeds = if is_quick { 1..=3 } else { 1..=40 };
    let mut rows = Vec::new();
    let mut lines = [Vec::new(), Vec::new()];
    for (at, scenario) in OVERRUNS.iter().enumerate().filter(|(_, scenario)| scenario.cpu_bound > 0) {
        let linux = if scenario.readers > 0 { "ahead" } else { "behind" };
        let kernels = [(SimulatedKernel::Quest, "close"), (SimulatedKernel::Linux, linux)];
        for (line, (kernel, paper)) in lines.iter_mut().zip(kernels) {
            let runs = seeds.clone().map(|seed| usb_can::run(&setting(scenario, kernel), seed).counter_error);
            let what = format!("scenario {}: counters ahead, {kernel:?}", at + 1);
            let detail = format!("of {} steps", scenario.seconds * 100_000 / 7);
            let row = ItemRow::spread(what, runs.collect(), "steps", paper).with_detail(detail);
            line.push(((at + 1) as f64, row.median()));
            rows.push(row);
        }
    }
    let title = "How far counters of CPU-bound tasks are ahead, in simulation (Figure 12)";
    Ok(ItemResult { rows, charts: vec![chart(title, "steps", ["Quest", "Linux"], lines)] })
}

pub fn figure_14(is_quick: bool) -> Result<ItemResult> {
    let papers = INPUT_MEANS.map(|(can4, can5)| [can4.to_string(), can5.to_string()]);
    ends(is_quick, usb_can::input(), "Figure 14", &papers)
}

pub fn figure_16(is_quick: bool) -> Result<ItemResult> {
    let (least, most) = OUTPUT_FRAMES_PER_S;
    let within = format!("{least} to {most}");
    let nearly = format!("nearly {within}");
    ends(is_quick, usb_can::output(), "Figure 16", &[[within.clone(), within], [nearly.clone(), nearly]])
}

/// Least, mean and most frames a second of both plotted channels.
fn ends(
    is_quick: bool,
    traffic: [farbus_sim::can::CanTraffic; farbus_sim::can::CHANNELS],
    figure: &str,
    papers: &[[String; 2]; 2],
) -> Result<ItemResult> {
    let seeds = if is_quick { 1..=3 } else { 1..=12 };
    let (mut rows, mut lines) = (Vec::new(), Vec::new());
    for (at, (kernel, papers)) in [SimulatedKernel::Quest, SimulatedKernel::Linux].into_iter().zip(papers).enumerate() {
        // The first second is left out, as in the paper.
        let (seconds, users) = (31, ChannelUsers::Pipes);
        let setting = UsbCanScenario { kernel, seconds, cpu_bound: 3, users, traffic, storms: STORMS };
        let seen: Vec<UsbCanResults> = seeds.clone().map(|seed| usb_can::run(&setting, seed)).collect();
        for (channel, paper) in PLOTTED.into_iter().zip(papers) {
            let row = |what: &str, paper: &str, value: fn(&[u64]) -> f64| {
                let samples = seen.iter().map(|run| value(&run.frames[channel])).collect();
                let what = format!("{kernel:?}, CAN{}: {what}", channel + 1);
                ItemRow::spread(what, samples, "frames/s", paper)
            };
            let mean = row("mean", paper, |frames| frames.iter().sum::<u64>() as f64 / frames.len().max(1) as f64);
            let least = row("least", "", |frames| frames.iter().min().copied().unwrap_or(0) as f64);
            let most = row("most", "", |frames| frames.iter().max().copied().unwrap_or(0) as f64);
            let x = (2 * at + channel - PLOTTED[0] + 1) as f64;
            // A bar from least to most with a tick at the mean.
            let (low, middle, high) = (least.median(), mean.median(), most.median());
            let points = vec![(x, low), (x, middle), (x - 0.15, middle), (x + 0.15, middle), (x, middle), (x, high)];
            lines.push(ChartLine { name: format!("{kernel:?}, CAN{}", channel + 1), points });
            rows.extend([mean, least, most]);
        }
    }
    let panel = ChartPanel { up: "frames/s".into(), is_logarithmic: false, lines };
    let title = format!("Least, mean and most frames a second, in simulation ({figure})");
    let chart = LineChart { title, across: "kernel and channel".into(), panels: vec![panel] };
    Ok(ItemResult { rows, charts: vec![chart.render_close()] })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_of_table_8_are_the_papers() {
        let rows = table_8(true).expect("rows").rows;
        assert_eq!(rows.len(), 18);
        assert!(rows.iter().all(|row| row.samples[0].to_string() == row.paper), "{rows:?}");
    }
}
