//! A CAN channel of another process through a pipe, again and again, beside programs that take the processors.
//!
//! The exporter has processor time for the thread that serves the adapter; this says whether that is enough. A run
//! counts unless an independent thread with a deadline missed it: then the machine stood still, for everybody.

use std::{
    hint::black_box,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
        mpsc,
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use anyhow::{Context, Result, bail};
use farbus_pipe::{
    STILL_NS_MAX, VcpuReserve, can,
    job::JobSchedule,
    scheduling::{SchedulingGrant, SchedulingPolicy},
};

use super::words::{FAR_NAME, once};
use crate::{lab::BenchmarkEnvironment, peers::PeerServer, report::BenchmarkFinding, stats::SpeedTarget};

const SECONDS: &str = "4";
/// What the independent threads ask for: as late as pipes allow a processor to stand still they may be, not later.
const CANARY: VcpuReserve = VcpuReserve { budget_ns: 100_000, period_ns: STILL_NS_MAX };
/// The share of runs that may be void.
const VOID_MAX: f64 = 0.1;
/// The adapter's fifth channel, at 69 % of its bus, as in the paper.
const ADAPTER: &str = "can,traffic=10/20x/30/40x/69";
const PIPE: [&str; 14] = [
    "--can",
    "500000,250000,500000,500000,500000",
    "--channel",
    "4",
    "--rate",
    "2752",
    "--buffer",
    "128",
    "--execution-us",
    "2000",
    "--seconds",
    SECONDS,
    "--json",
    "--write",
];

/// What runs beside the pipe.
struct FarLoad {
    name: &'static str,
    spinners: usize,
    has_build: bool,
}

const LOADS: [FarLoad; 2] = [
    FarLoad { name: "two spinning threads", spinners: 2, has_build: false },
    FarLoad { name: "four spinning threads and a build", spinners: 4, has_build: true },
];

/// One run of the pipe.
struct FarRun {
    frames: u64,
    lost: u64,
    /// Whether bus, path and processor time were promised until the end.
    is_promised: bool,
    /// Periods in which the exporter's thread ran over its budget.
    overruns: u64,
    /// Jobs of the independent threads that missed their deadline.
    canaries_missed: u64,
    /// What broke the promise, in the pipe's words.
    broken: String,
}

pub fn run(lab: &BenchmarkEnvironment) -> Result<Vec<BenchmarkFinding>> {
    let count = if lab.quick { 5 } else { 60 };
    let mut findings = Vec::new();
    for load in &LOADS {
        let exporter = PeerServer::farbus(lab.farbus_program()?, ADAPTER, lab.placement)?;
        let target = format!("{}/can", exporter.address);
        let busy = BusyMachine::begin(load)?;
        let mut runs = Vec::new();
        for number in 1..=count {
            let run = one_run(lab.farbus_program()?, &target, &busy)?;
            eprintln!("{FAR_NAME}: {}, run {number} of {count}: {}", load.name, run.described());
            runs.push(run);
        }
        drop(busy);
        findings.extend(findings_of(load, &runs));
    }
    Ok(findings)
}

fn findings_of(load: &FarLoad, runs: &[FarRun]) -> [BenchmarkFinding; 3] {
    let count = runs.len();
    let listed = |is_listed: &dyn Fn(&FarRun) -> bool| {
        let all = runs.iter().enumerate().filter(|(_, run)| is_listed(run));
        let all: Vec<_> = all.map(|(at, run)| format!("run {}: {}", at + 1, run.described())).collect();
        if all.is_empty() { "none".to_owned() } else { all.join("; ") }
    };
    let counts = |run: &FarRun| run.is_promised && !run.is_void();
    let lost: u64 = runs.iter().filter(|run| counts(run)).map(|run| run.lost).sum();
    let frames: u64 = runs.iter().filter(|run| counts(run)).map(|run| run.frames).sum();
    let overruns: u64 = runs.iter().map(|run| run.overruns).sum();
    let void = runs.iter().filter(|run| run.is_void()).count();
    let promised = runs.iter().filter(|run| run.is_promised).count();
    let finding = |what: &str, value: f64, target: SpeedTarget, detail: String| {
        BenchmarkFinding::absolute(FAR_NAME, format!("beside {}: {what}", load.name), once(value, ""), target)
            .with_detail(detail)
    };
    [
        finding(
            "frames lost in runs that were promised",
            lost as f64,
            SpeedTarget::AtMost(0.0),
            format!(
                "{frames} frames; {overruns} overruns of the exporter's thread in all runs; with losses: {}",
                listed(&|run| counts(run) && run.lost > 0)
            ),
        ),
        finding(
            "share of void runs",
            void as f64 / count as f64,
            SpeedTarget::AtMost(VOID_MAX),
            format!("{void} of {count}: {}", listed(&FarRun::is_void)),
        ),
        finding(
            "share of runs that were promised to their end",
            promised as f64 / count as f64,
            SpeedTarget::Context,
            format!("{promised} of {count}; the others: {}", listed(&|run| !run.is_promised)),
        ),
    ]
}

impl FarRun {
    fn is_void(&self) -> bool {
        self.canaries_missed > 0
    }

    fn described(&self) -> String {
        format!(
            "{} frames, {} lost{}{}, {} overruns of the exporter's thread{}",
            self.frames,
            self.lost,
            if self.is_promised { "" } else { ", not promised" },
            if self.is_void() { ", void" } else { "" },
            self.overruns,
            if self.broken.is_empty() { String::new() } else { format!(" ({})", self.broken) },
        )
    }
}

fn one_run(farbus: &Path, target: &str, busy: &BusyMachine) -> Result<FarRun> {
    let file = std::env::temp_dir().join(format!("farbus-bench-{}.frames", std::process::id()));
    let before = busy.missed();
    let output = Command::new(farbus).args(["pipe", target]).args(PIPE).arg(&file).stdin(Stdio::null()).output()?;
    let canaries_missed = busy.missed() - before;
    let refused = || String::from_utf8_lossy(&output.stderr).into_owned();
    let outcome: serde_json::Value = serde_json::from_slice(&output.stdout).with_context(refused)?;
    if outcome["pipes"].as_array().is_none_or(Vec::is_empty) {
        // It was refused, which promises nothing.
        let broken = outcome["message"].as_str().unwrap_or_default().to_owned();
        return Ok(FarRun { frames: 0, lost: 0, is_promised: false, overruns: 0, canaries_missed, broken });
    }
    let numbers = numbers_of(&file)?;
    std::fs::remove_file(&file)?;
    let pipe = &outcome["pipes"][0];
    let number = |field: &str| pipe[field].as_u64().unwrap_or(0);
    // The unit numbers its frames. Those behind the last one that arrived are not known to be lost.
    let expected = numbers.last().map_or(0, |last| last + 1 - numbers[0]);
    let missing = expected.saturating_sub(numbers.len() as u64);
    Ok(FarRun {
        frames: numbers.len() as u64,
        lost: missing.max(number("lost") + number("device_lost")),
        is_promised: outcome["not_promised"].as_array().is_some_and(Vec::is_empty),
        overruns: number("far_overruns"),
        canaries_missed,
        broken: outcome["failure"]["message"]
            .as_str()
            .unwrap_or_default()
            .lines()
            .next()
            .unwrap_or_default()
            .to_owned(),
    })
}

fn numbers_of(file: &Path) -> Result<Vec<u64>> {
    let bytes = std::fs::read(file).with_context(|| format!("cannot read {}", file.display()))?;
    let frames = bytes.chunks_exact(can::MESSAGE_BYTES).filter_map(can::GsCanFrame::of_message);
    Ok(frames.map(|frame| u64::from_le_bytes(frame.data)).collect())
}

/// Programs that take the processors, and a thread for each processor that has a deadline to miss.
struct BusyMachine {
    is_over: Arc<AtomicBool>,
    missed: Arc<AtomicU64>,
    threads: Vec<JoinHandle<()>>,
}

impl BusyMachine {
    fn begin(load: &FarLoad) -> Result<Self> {
        let mut busy = Self { is_over: Arc::default(), missed: Arc::default(), threads: Vec::new() };
        let (tell, policies) = mpsc::channel();
        let processors = thread::available_parallelism()?.get();
        for _ in 0..processors {
            let (is_over, missed, tell) = (Arc::clone(&busy.is_over), Arc::clone(&busy.missed), tell.clone());
            busy.threads.push(thread::spawn(move || watch(&is_over, &missed, &tell)));
        }
        for _ in 0..processors {
            if !matches!(policies.recv()?, SchedulingPolicy::Deadline { .. }) {
                bail!("the independent threads need deadlines: run as root, or with CAP_SYS_NICE");
            }
        }
        for _ in 0..load.spinners {
            let is_over = Arc::clone(&busy.is_over);
            busy.threads.push(thread::spawn(move || {
                let mut count = 0_u64;
                while !is_over.load(Ordering::Relaxed) {
                    count = black_box(count.wrapping_add(1));
                }
            }));
        }
        if load.has_build {
            let folder = build_folder()?;
            for number in 0..processors {
                let (is_over, folder) = (Arc::clone(&busy.is_over), folder.clone());
                busy.threads.push(thread::spawn(move || build(&folder, number, &is_over)));
            }
        }
        Ok(busy)
    }

    fn missed(&self) -> u64 {
        self.missed.load(Ordering::Acquire)
    }
}

impl Drop for BusyMachine {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            // One that panicked has said so.
            let _ = thread.join();
        }
    }
}

/// Counts the periods in which this thread did not run by its deadline.
fn watch(is_over: &AtomicBool, missed: &AtomicU64, tell: &mpsc::Sender<SchedulingPolicy>) {
    let [budget, period] = [CANARY.budget_ns, CANARY.period_ns].map(Duration::from_nanos);
    let grant = SchedulingGrant::take(&[SchedulingPolicy::Deadline { budget, period }]);
    let _ = tell.send(grant.policy());
    let (mut roster, mut counted) = (JobSchedule::new(CANARY), 0);
    while !is_over.load(Ordering::Relaxed) {
        let job = roster.next_job();
        let counts = roster.end(job);
        let all = counts.missed + counts.late;
        missed.fetch_add(all - std::mem::replace(&mut counted, all), Ordering::AcqRel);
    }
}

fn build_folder() -> Result<PathBuf> {
    let folder = std::env::temp_dir().join(format!("farbus-bench-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let function = |at: usize| {
        format!(
            "pub fn f{at}(words: &[String]) -> Vec<(usize, String)> {{ words.iter().enumerate().map(|(a, b)| (a * {at}, b.to_uppercase())).collect() }}\n"
        )
    };
    std::fs::write(folder.join("source.rs"), (0..400).map(function).collect::<String>())?;
    Ok(folder)
}

/// Builds the same source again and again, at this processor's turn.
fn build(folder: &Path, number: usize, is_over: &AtomicBool) {
    while !is_over.load(Ordering::Relaxed) {
        let started = Command::new("rustc")
            .args(["-O", "--edition=2021", "--crate-type=lib", "--emit=obj", "source.rs", "-o", &format!("{number}.o")])
            .current_dir(folder)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        let Ok(mut child) = started else {
            eprintln!("{FAR_NAME}: there is no rustc: the build is missing");
            return;
        };
        while !has_ended(&mut child) {
            if is_over.load(Ordering::Relaxed) {
                let _ = child.kill();
            }
            thread::sleep(Duration::from_millis(20));
        }
    }
}

fn has_ended(child: &mut Child) -> bool {
    !matches!(child.try_wait(), Ok(None))
}
