//! What a pair of modules costs, by the way that it is run: the experiment of the paper on transformation modules
//! (2013, section V, Figure 2).
//!
//! The paper's figure is the mean time from frame to frame at the application, while its video card sends as fast as
//! its network (80 to 106 Mb/s) lets it: whatever modules do while the link is busy costs nothing there. So that is
//! what is held against its figures, on a link of 100 Mb/s; and beside it what a pair costs a frame that waits for the
//! one before it, which nothing hides.

use std::{collections::BTreeMap, path::Path, process::Command, time::Duration};

use anyhow::{Context, Result, anyhow, bail, ensure};
use farbus::importer::session::bare::{
    pipelines::{
        ModuleContext, ModulePipeline, ModuleSettings,
        module::{Module, ModuleDeviceClass, ModuleRole},
        null::NULL,
    },
    runners::{ModuleProcess, ModuleTransport as Reached, ModuleUse, WasmSandbox},
};

use super::database::ScratchFolder;
use crate::{
    frames::FrameLink,
    lab::BenchmarkEnvironment,
    report::{BenchmarkFinding, MeasuredQuantity},
    stats::{SampleSpread, SpeedTarget},
    svg::{ChartLine, ChartPanel, LineChart},
};

pub const NAME: &str = "modules";
/// The paper's link, as its times without modules have it.
const LINK_BITS_PER_S: u64 = 100_000_000;
/// Sides of the paper's frames, in pixels of three bytes.
const SIDES: [usize; 7] = [100, 200, 300, 400, 500, 600, 700];
/// The sizes over which a pair's cost is taken as a slope, and the numbers of pairs. An attachment has eight at most;
/// here they are chained.
const SLOPE_SIDES: [usize; 3] = [100, 400, 700];
const SLOPE_PAIRS: [usize; 4] = [1, 4, 16, 64];
/// The numbers of pairs in the paper's figure.
const PAPER_PAIRS: [usize; 2] = [1, 8];
const REPEATS: usize = 30;
/// The approximate duration of one turn of a repeat, and the fewest frames of one: the time from the first to the
/// second is a frame time.
const SPAN: Duration = Duration::from_millis(60);
const FRAMES_MIN: usize = 2;
/// The assumed rate of an unshaped link, to choose the number of frames.
const OPEN_BITS_PER_S: u64 = 500_000_000;
/// The timeout of a turn, long enough for a busy machine.
const PATIENCE: Duration = Duration::from_secs(20);
/// Changes nothing (`docs/modules/xor.c`).
const OPTIONS: &str = "0";

/// The ways to run a module.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum ModuleRunner {
    Inside,
    Ring,
    Pipes,
    Sandbox,
}

impl ModuleRunner {
    const ALL: [Self; 4] = [Self::Inside, Self::Ring, Self::Pipes, Self::Sandbox];

    fn name(self) -> &'static str {
        match self {
            Self::Inside => "in process",
            Self::Ring => "ring",
            Self::Pipes => "pipes",
            Self::Sandbox => "sandbox",
        }
    }

    /// The target in percent per pair, and the paper's figures for the first and further pairs.
    fn promised(self) -> (SpeedTarget, &'static str) {
        match self {
            Self::Inside => (SpeedTarget::AtMost(0.1), ""),
            Self::Ring => {
                (SpeedTarget::AtMost(0.36), "; the paper's shared memory: first pair +5.6 %, each further one +0.36 %")
            }
            Self::Pipes => {
                (SpeedTarget::AtMost(2.3), "; the paper's pipes: first pair +8.9 %, each further one +2.3 %")
            }
            Self::Sandbox => (SpeedTarget::Context, ""),
        }
    }
}

/// The processes and programs that run both halves of all pairs.
struct ModuleProcessPool {
    ring: Vec<[ModuleProcess; 2]>,
    pipes: Vec<[ModuleProcess; 2]>,
    sandbox: WasmSandbox,
}

impl ModuleProcessPool {
    /// farbus itself supervises and confines the processes, as in the product.
    fn hire(lab: &BenchmarkEnvironment, folder: &ScratchFolder, pairs: usize) -> Result<Self> {
        let farbus = lab.farbus_program()?;
        let compiled = |name: &str, source: &str| {
            let (path, text) = (folder.path_of(name), folder.path_of("source.c"));
            std::fs::write(&text, source)?;
            let built =
                Command::new("cc").args(["-O2", "-o"]).args([&path, &text]).status().context("cannot run cc")?;
            ensure!(built.success(), "cc does not build the example");
            Ok(path)
        };
        let crew = |program: &Path, reached: Reached| {
            let one = || {
                let mut command = Command::new(farbus);
                command.arg("module-host").args((reached == Reached::Ring).then_some("--ring")).arg(program);
                ModuleProcess::start(&mut command, reached, PATIENCE)
            };
            (0..pairs).map(|_| Ok([one()?, one()?])).collect::<Result<Vec<_>>>()
        };
        let ring = compiled("xor.ring", include_str!("../../../docs/modules/xor_ring.c"))?;
        let pipes = compiled("xor", include_str!("../../../docs/modules/xor.c"))?;
        let code = wat::parse_str(include_str!("../../../docs/modules/xor.wat"))?;
        Ok(Self {
            ring: crew(&ring, Reached::Ring)?,
            pipes: crew(&pipes, Reached::Pipes)?,
            sandbox: WasmSandbox::new(&code, PATIENCE).map_err(|why| anyhow!(why))?,
        })
    }

    /// Both ends of this many pairs: the exporter's and the importer's.
    fn ends(&self, runner: ModuleRunner, pairs: usize) -> Result<[ModulePipeline; 2]> {
        let end = |role: ModuleRole| {
            let halves = (0..pairs).map(|at| {
                let half = self.half(runner, at, role).map_err(|why| anyhow!("{}: {why}", runner.name()))?;
                Ok((format!("null {at}"), half))
            });
            Ok::<_, anyhow::Error>(ModulePipeline::new(halves.collect::<Result<_>>()?))
        };
        Ok([end(ModuleRole::Exporter)?, end(ModuleRole::Importer)?])
    }

    fn half(&self, runner: ModuleRunner, at: usize, role: ModuleRole) -> Result<Box<dyn Module>, String> {
        let used = ModuleUse { role, class: ModuleDeviceClass::Stream, failed: &[1], options: OPTIONS, hold_max: None };
        let end = usize::from(role == ModuleRole::Importer);
        match runner {
            ModuleRunner::Inside => {
                let context = ModuleContext { role, class: ModuleDeviceClass::Stream, failed: vec![1].into() };
                Ok((NULL.make)(&ModuleSettings::default(), &context))
            }
            ModuleRunner::Ring => self.ring[at][end].half(&used),
            ModuleRunner::Pipes => self.pipes[at][end].half(&used),
            ModuleRunner::Sandbox => self.sandbox.half(&used),
        }
    }
}

/// Seconds a frame, repeat by repeat.
type FrameTimes = BTreeMap<(ModuleRunner, usize, usize), Vec<f64>>;

/// The bytes of frames of `side` pixels, and how many of them a repeat has at `seconds` each.
fn shape(side: usize, seconds: f64) -> (usize, usize) {
    (side * side * 3, FRAMES_MIN.max((SPAN.as_secs_f64() / seconds).ceil() as usize + 1))
}

struct ModuleExperiment<'a> {
    crew: &'a ModuleProcessPool,
    bits_per_s: Option<u64>,
    waits: bool,
    repeats: usize,
}

impl ModuleExperiment<'_> {
    /// Runs all sizes, runners and numbers of pairs in turns, as often as there are repeats.
    fn run(&self, sides: &[usize], pairs: impl Fn(usize) -> Vec<usize>) -> Result<FrameTimes> {
        let mut way = FrameLink::new(self.bits_per_s)?;
        let mut times = FrameTimes::new();
        for repeat in 0..=self.repeats {
            for &side in sides {
                let seconds = (side * side * 3 * 8) as f64 / self.bits_per_s.unwrap_or(OPEN_BITS_PER_S) as f64;
                let (bytes, count) = shape(side, seconds);
                let mut turns: Vec<(ModuleRunner, usize)> = vec![(ModuleRunner::Inside, 0)];
                turns.extend(
                    ModuleRunner::ALL.iter().flat_map(|runner| pairs(side).into_iter().map(|pairs| (*runner, pairs))),
                );
                if repeat % 2 == 1 {
                    turns.reverse();
                }
                for (runner, pairs) in turns {
                    let mut ends = self.crew.ends(runner, pairs)?;
                    let seconds = way.carry(&mut ends, bytes, count, self.waits)?;
                    // The first one warms up.
                    if repeat > 0 {
                        times.entry((runner, side, pairs)).or_default().push(seconds);
                    }
                }
            }
        }
        Ok(times)
    }
}

/// Seconds without any module, in each repeat.
fn bare(times: &FrameTimes, side: usize) -> &[f64] {
    &times[&(ModuleRunner::Inside, side, 0)]
}

/// The cost of the first pair, in percent of a frame without any; repeat by repeat.
fn first(times: &FrameTimes, runner: ModuleRunner, side: usize) -> Vec<f64> {
    let added = times[&(runner, side, 1)].iter().zip(bare(times, side));
    added.map(|(with, without)| (with / without - 1.0) * 100.0).collect()
}

/// The cost of each pair: the slope over these sizes, by least squares, in percent of a frame without any; repeat by
/// repeat.
fn slope(times: &FrameTimes, runner: ModuleRunner, side: usize, pairs: &[usize]) -> Vec<f64> {
    let mean = pairs.iter().sum::<usize>() as f64 / pairs.len() as f64;
    let square: f64 = pairs.iter().map(|&pairs| (pairs as f64 - mean).powi(2)).sum();
    let in_repeat = |(repeat, without): (usize, &f64)| {
        let point = |&pairs: &usize| (pairs as f64 - mean) * times[&(runner, side, pairs)][repeat];
        pairs.iter().map(point).sum::<f64>() / square / without * 100.0
    };
    bare(times, side).iter().enumerate().map(in_repeat).collect()
}

fn median(values: Vec<f64>) -> f64 {
    SampleSpread::new(values).median()
}

pub fn run(lab: &BenchmarkEnvironment) -> Result<Vec<BenchmarkFinding>> {
    let folder = ScratchFolder::new(NAME)?;
    let (sides, slope_pairs): (&[usize], &[usize]) = match lab.quick {
        true => (&SLOPE_SIDES, &SLOPE_PAIRS[..2]),
        false => (&SIDES, &SLOPE_PAIRS),
    };
    let repeats = if lab.quick { 3 } else { REPEATS };
    let pairs_max = slope_pairs.iter().chain(&PAPER_PAIRS).copied().max().unwrap_or(1);
    if !has_cc() {
        bail!("modules in processes are compiled here: there is no cc");
    }
    let crew = ModuleProcessPool::hire(lab, &folder, pairs_max)?;
    let all = |side: usize| {
        let mut pairs = PAPER_PAIRS.to_vec();
        pairs.extend(slope_pairs.iter().filter(|_| SLOPE_SIDES.contains(&side)));
        pairs.sort_unstable();
        pairs.dedup();
        pairs
    };
    let shaped = ModuleExperiment { crew: &crew, bits_per_s: Some(LINK_BITS_PER_S), waits: false, repeats };
    let shaped = shaped.run(sides, all)?;
    let waiting = ModuleExperiment { crew: &crew, bits_per_s: None, waits: true, repeats };
    let waiting = waiting.run(&SLOPE_SIDES, |_| PAPER_PAIRS.to_vec())?;
    let open = ModuleExperiment { crew: &crew, bits_per_s: None, waits: false, repeats };
    let open = open.run(&SLOPE_SIDES, |_| PAPER_PAIRS.to_vec())?;

    let mut findings = Vec::new();
    for runner in ModuleRunner::ALL {
        let (target, paper) = runner.promised();
        for side in SLOPE_SIDES {
            let judged = slope(&shaped, runner, side, slope_pairs);
            let what = format!("{}, {side}² at 100 Mb/s: a pair, of the time from frame to frame", runner.name());
            let further = slope(&shaped, runner, side, &PAPER_PAIRS);
            let detail = format!(
                "{:.2} ms a frame without pairs; first pair {:+.2} %, each further to 8 {:+.2} %{paper}",
                median(bare(&shaped, side).to_vec()) * 1e3,
                median(first(&shaped, runner, side)),
                median(further),
            );
            findings.push(
                BenchmarkFinding::absolute(NAME, what, MeasuredQuantity::new(SampleSpread::new(judged), "%"), target)
                    .with_detail(detail),
            );
            findings.push(alone(&waiting, runner, side));
        }
    }
    findings.extend(SLOPE_SIDES.map(|side| without_pairs(&shaped, side)));
    for runner in ModuleRunner::ALL {
        for side in SLOPE_SIDES {
            let with = |pairs| median(open[&(runner, side, pairs)].clone()) * 1e6;
            let what = format!("{}, {side}² over loopback, unshaped: a frame through 8 pairs", runner.name());
            let detail = format!(
                "{:.0} µs through none, {:.0} µs through one",
                median(bare(&open, side).to_vec()) * 1e6,
                with(1)
            );
            let micros = open[&(runner, side, 8)].iter().map(|seconds| seconds * 1e6).collect();
            let quantity = MeasuredQuantity::new(SampleSpread::new(micros), "µs");
            findings.push(BenchmarkFinding::absolute(NAME, what, quantity, SpeedTarget::Context).with_detail(detail));
        }
    }
    lab.plot(NAME, &chart(&shaped, sides).render())?;
    lab.plot("modules-pairs", &pairs_chart(&shaped, slope_pairs).render())?;
    Ok(findings)
}

/// What a pair costs a frame that travels alone, so that nothing hides it, as a share of the frame's time at 100 Mb/s.
fn alone(times: &FrameTimes, runner: ModuleRunner, side: usize) -> BenchmarkFinding {
    let at_100_mbit = (side * side * 3 * 8) as f64 / LINK_BITS_PER_S as f64;
    let seconds = slope(times, runner, side, &PAPER_PAIRS).into_iter().zip(bare(times, side));
    let seconds: Vec<f64> = seconds.map(|(percent, without)| percent / 100.0 * without).collect();
    let detail = format!("{:.1} µs", median(seconds.clone()) * 1e6);
    let shares = SampleSpread::new(seconds.into_iter().map(|pair| pair / at_100_mbit * 100.0).collect());
    let what = format!("{}, a frame alone, {side}²: a pair, of its time at 100 Mb/s", runner.name());
    let (target, _) = runner.promised();
    BenchmarkFinding::absolute(NAME, what, MeasuredQuantity::new(shares, "%"), target).with_detail(detail)
}

/// The paper's time from frame to frame without modules, which it has for its own two sizes.
fn without_pairs(times: &FrameTimes, side: usize) -> BenchmarkFinding {
    let ms = bare(times, side).iter().map(|seconds| seconds * 1e3).collect();
    let what = format!("no pair, {side}² at 100 Mb/s: time from frame to frame");
    let quantity = MeasuredQuantity::new(SampleSpread::new(ms), "ms");
    let detail = match side {
        100 => "the paper: 2.92 ms (pipes), 2.58 ms (shared memory)",
        700 => "the paper: 166 ms (pipes), 148 ms (shared memory)",
        _ => "",
    };
    BenchmarkFinding::absolute(NAME, what, quantity, SpeedTarget::Context).with_detail(detail.into())
}

fn has_cc() -> bool {
    Command::new("cc").arg("--version").output().is_ok()
}

/// The paper's Figure 2, and the cost of the pairs.
fn chart(times: &FrameTimes, sides: &[usize]) -> LineChart {
    let line = |name: String, figure: &dyn Fn(usize) -> f64| ChartLine {
        name,
        points: sides.iter().map(|&side| (side as f64, figure(side))).collect(),
    };
    let absolute = |runner: ModuleRunner, pairs: usize| {
        line(format!("{}, {pairs}", runner.name()), &|side| median(times[&(runner, side, pairs)].clone()) * 1e3)
    };
    let relative = |runner: ModuleRunner, pairs: usize| {
        line(format!("{}, {pairs}", runner.name()), &|side| {
            let added = times[&(runner, side, pairs)].iter().zip(bare(times, side));
            median(added.map(|(with, without)| with / without * 100.0).collect())
        })
    };
    let ways = [ModuleRunner::Ring, ModuleRunner::Pipes];
    LineChart {
        title: "Frames through null pairs, 100 Mb/s (2013 paper, Figure 2)".into(),
        across: "side of a frame, pixels".into(),
        panels: vec![
            ChartPanel {
                up: "ms from frame to frame; way and pairs".into(),
                is_logarithmic: false,
                lines: ways.into_iter().flat_map(|way| PAPER_PAIRS.map(|pairs| absolute(way, pairs))).collect(),
            },
            ChartPanel {
                up: "% of the time without pairs".into(),
                is_logarithmic: false,
                lines: ModuleRunner::ALL.into_iter().map(|runner| relative(runner, 8)).collect(),
            },
        ],
    }
}

/// From one pair to the largest number.
fn pairs_chart(times: &FrameTimes, pairs: &[usize]) -> LineChart {
    let panel = |side: usize| ChartPanel {
        up: format!("{side}²: % of the time without pairs"),
        is_logarithmic: false,
        lines: ModuleRunner::ALL
            .into_iter()
            .map(|runner| ChartLine {
                name: runner.name().into(),
                points: pairs
                    .iter()
                    .map(|&pairs| {
                        let times = times[&(runner, side, pairs)].iter().zip(bare(times, side));
                        (pairs as f64, median(times.map(|(with, without)| with / without * 100.0).collect()))
                    })
                    .collect(),
            })
            .collect(),
    };
    LineChart {
        title: "Frames through many null pairs, 100 Mb/s".into(),
        across: "pairs".into(),
        panels: SLOPE_SIDES.into_iter().map(panel).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A frame of 100² takes 2.4 ms at 100 Mb/s, and each pair 48 µs of it.
    fn times_of_paper() -> FrameTimes {
        let with = |pairs: f64| vec![0.001 + 48e-6 * pairs; 2];
        FrameTimes::from([
            ((ModuleRunner::Inside, 100, 0), with(0.0)),
            ((ModuleRunner::Pipes, 100, 1), with(1.0)),
            ((ModuleRunner::Pipes, 100, 8), with(8.0)),
        ])
    }

    #[test]
    fn a_pair_s_cost_is_the_slope_of_its_own_repeat() {
        let mut times = FrameTimes::new();
        // Two repeats, the second on a machine of half the speed: 10 % a pair in both, 30 % the first.
        for (pairs, seconds) in [(0, 1.0), (1, 1.3), (4, 1.6), (16, 2.8)] {
            times.insert((ModuleRunner::Ring, 100, pairs), vec![seconds, 2.0 * seconds]);
        }
        times.insert((ModuleRunner::Inside, 100, 0), vec![1.0, 2.0]);
        for cost in slope(&times, ModuleRunner::Ring, 100, &[1, 4, 16]) {
            assert!((cost - 10.0).abs() < 1e-9, "{cost}");
        }
        // 48 µs of 2.4 ms.
        let alone = alone(&times_of_paper(), ModuleRunner::Pipes, 100);
        assert!((alone.judged.median() - 2.0).abs() < 1e-9 && !alone.missed(), "{}", alone.judged.median());
        assert!((first(&times, ModuleRunner::Ring, 100)[1] - 30.0).abs() < 1e-9);
        assert_eq!((shape(100, 0.0024), shape(700, 0.1176)), ((30_000, 26), (1_470_000, 2)));
    }
}
