//! A thousand disks and gadgets of one host, attached to another: what each costs at either end, what both do while
//! nothing happens, how much faster few busy ones are than many, and how long lists, questions and restarts take.

use std::fs;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::database::ScratchFolder;
use super::hosts::BenchmarkHost;
use crate::{
    lab::BenchmarkEnvironment,
    peers::nbdkit::{BlockVerb, NbdLoadClient},
    probe::cpu_seconds,
    report::{BenchmarkFinding, MeasuredQuantity},
    stats::{SampleSpread, SpeedTarget},
};

pub const NAME: &str = "thousand";

const KIB_MAX: f64 = 200.0;
const THREADS_MAX: f64 = 1.0;
const IDLE_PERCENT_MAX: f64 = 1.0;
const RESTART_S_MAX: f64 = 5.0;
/// How long a list of all devices may take.
const LIST_MS_MAX: f64 = 100.0;
/// How long after an exporter was killed and started again all its devices may take to be in use.
const KILLED_S_MAX: f64 = 8.0;
/// So many busy disks together move at least this share of what [`FEW`] move.
const BUSY_SHARE_MIN: f64 = 0.8;
/// How many disks are busy at a time.
const MANY: usize = 200;
/// Busy disks that are enough to keep this machine busy.
const FEW: usize = 8;
/// Reads of a busy program, and how many it has under way.
const READ_BYTES: usize = 4096;
const READS: usize = 4;
/// How often few and many are measured in turn, and for how long.
const ROUNDS: usize = 5;
const SLICE: Duration = Duration::from_secs(2);
/// How long all devices may take to be attached.
const ATTACH_TIME_MAX: Duration = Duration::from_secs(120);

/// A daemon and its helpers.
struct DaemonProcesses(Vec<u32>);

/// What a daemon has that grows with its devices.
struct DaemonCost {
    kib: f64,
    threads: f64,
}

impl DaemonProcesses {
    /// The daemon that runs now with this configuration, and the processes that it started.
    fn of(config: &Path) -> Result<Self> {
        let all = || fs::read_dir("/proc").into_iter().flatten().flatten();
        let pids = all().filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        let text = config.to_str().context("a plain path")?.as_bytes();
        let is_it = |pid: &u32| {
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            line.split(|byte| *byte == 0).any(|word| word == text)
        };
        let daemon = pids.filter(is_it).max().context("no daemon runs")?;
        let children = fs::read_to_string(format!("/proc/{daemon}/task/{daemon}/children"))?;
        let children = children.split_whitespace().filter_map(|child| child.parse().ok());
        Ok(Self([daemon].into_iter().chain(children).collect()))
    }

    fn cost(&self) -> DaemonCost {
        let sum = |key: &str| {
            let of = |pid: &u32| {
                let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
                let line = status.lines().find(|line| line.starts_with(key))?;
                line.split_whitespace().nth(1)?.parse::<f64>().ok()
            };
            self.0.iter().filter_map(of).sum()
        };
        DaemonCost { kib: sum("RssAnon:"), threads: sum("Threads:") }
    }

    /// Sends a signal to the daemon, and to none of its helpers.
    fn signal(&self, signal: Signal) -> Result<()> {
        let daemon = self.0.first().and_then(|pid| Pid::from_raw(i32::try_from(*pid).ok()?));
        Ok(kill_process(daemon.context("a daemon has a number")?, signal)?)
    }

    fn cpu_seconds(&self) -> f64 {
        self.0.iter().filter_map(|pid| cpu_seconds(*pid).ok()).sum()
    }
}

/// Every fourth device is a keyboard for a virtual machine; the others are disks.
fn is_gadget(number: usize) -> bool {
    number % 4 == 3
}

/// The configurations of both hosts, with so many devices.
fn configure(folder: &ScratchFolder, port: u16, devices: usize) -> Result<[std::path::PathBuf; 2]> {
    let (images, sockets) = (folder.folder("images")?, folder.folder("sockets")?);
    let mut shared = format!("plain.listen = []\nsecure.listen = ['127.0.0.1:{port}']\n");
    let mut attached = "plain.listen = []\n".to_owned();
    for number in 0..devices {
        let (socket, via) = (sockets.join(format!("s{number}")), if is_gadget(number) { "redir" } else { "nbd" });
        attached += &format!(
            "[[attach]]\ntarget = 'lab3:{port}/d{number}'\nvia = '{via}'\ngrace = 60\nsocket = '{}'\n",
            socket.display()
        );
        if is_gadget(number) {
            shared += &format!("[[share]]\nwhat = 'keyboard'\nname = 'd{number}'\n");
            continue;
        }
        let image = images.join(format!("d{number}"));
        fs::File::create(&image)?.set_len(1 << 20)?;
        shared += &format!("[[share]]\nwhat = 'block:{}'\nname = 'd{number}'\n", image.display());
    }
    let [at, of] = ["lab3.toml", "desk.toml"].map(|name| folder.path_of(name));
    fs::write(&at, shared)?;
    fs::write(&of, attached)?;
    Ok([at, of])
}

/// How many devices of a host are in this state.
fn count(host: &BenchmarkHost<'_>, state: &str) -> Result<usize> {
    let status = host.command(&["status", "--json"])?.output()?;
    let status: Value = serde_json::from_slice(&status.stdout).unwrap_or_default();
    let devices = status.as_array().into_iter().flatten().filter_map(|process| process["devices"].as_array()).flatten();
    Ok(devices.filter(|device| device["state"] == state).count())
}

fn wait_for(host: &BenchmarkHost<'_>, state: &str, devices: usize) -> Result<Duration> {
    let began = Instant::now();
    while count(host, state)? < devices {
        if began.elapsed() > ATTACH_TIME_MAX {
            bail!("{} of {devices} devices are {state} after {ATTACH_TIME_MAX:?}", count(host, state)?);
        }
        thread::sleep(Duration::from_millis(100));
    }
    Ok(began.elapsed())
}

/// What programs of the first `disks` disks read together, MB/s.
fn busy(folder: &ScratchFolder, disks: usize) -> Result<f64> {
    let clients: Vec<NbdLoadClient<UnixStream>> = (0..)
        .filter(|&number| !is_gadget(number))
        .take(disks)
        .map(|number| {
            NbdLoadClient::negotiate(UnixStream::connect(folder.path_of("sockets").join(format!("s{number}")))?)
        })
        .collect::<Result<_>>()?;
    let all_ready = Barrier::new(disks);
    thread::scope(|scope| {
        let run = |mut client: NbdLoadClient<UnixStream>| {
            let all_ready = &all_ready;
            scope.spawn(move || {
                all_ready.wait();
                client.run(BlockVerb::Read, READ_BYTES, READS, true, SLICE)
            })
        };
        let running: Vec<_> = clients.into_iter().map(run).collect();
        let (mut bytes, mut seconds) = (0, 0f64);
        for program in running {
            let tally = program.join().map_err(|_| anyhow::anyhow!("a program failed"))??;
            bytes += tally.bytes;
            seconds = seconds.max(tally.seconds);
        }
        Ok(bytes as f64 / 1e6 / seconds)
    })
}

fn timed(host: &BenchmarkHost<'_>, words: &[&str], rounds: usize) -> Result<MeasuredQuantity> {
    let mut samples = Vec::new();
    for _ in 0..rounds {
        let began = Instant::now();
        host.ok(words)?;
        samples.push(began.elapsed().as_secs_f64() * 1000.0);
    }
    Ok(MeasuredQuantity::new(SampleSpread::new(samples), "ms"))
}

pub fn run(lab: &BenchmarkEnvironment) -> Result<Vec<BenchmarkFinding>> {
    let devices = if lab.quick { 300 } else { 1000 };
    let folder = ScratchFolder::new(NAME)?;
    let [lab3, desk] = [BenchmarkHost::new(lab, &folder, "lab3")?, BenchmarkHost::new(lab, &folder, "desk")?];
    lab3.pair(&desk)?;
    lab3.ok(&["allow", "desk", "all"])?;
    let port = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    let [shared, attached] = configure(&folder, port, devices)?;
    let text_of = |path: &Path| path.to_str().map(str::to_owned).context("a plain path");
    let began = Instant::now();
    let mut exporter = lab3.start(&["daemon", "--config", &text_of(&shared)?])?;
    exporter.wait_for("for paired hosts")?;
    let shared_after = began.elapsed();
    let (exporters, alone) = (DaemonProcesses::of(&shared)?, DaemonProcesses::of(&shared)?.cost());
    let _importer = desk.start(&["daemon", "--config", &text_of(&attached)?])?;
    let took = wait_for(&desk, "attached", devices)?;
    let importers = DaemonProcesses::of(&attached)?;
    let mut findings = Vec::new();
    let mut add = |what: String, quantity: MeasuredQuantity, target: SpeedTarget, detail: String| {
        findings.push(BenchmarkFinding::absolute(NAME, what, quantity, target).with_detail(detail));
    };
    let each = |value: f64| value / devices as f64;
    for (end, now, before) in [("exporter", exporters.cost(), alone.kib), ("importer", importers.cost(), 0.0)] {
        let kib = MeasuredQuantity::new(SampleSpread::once(each(now.kib - before)), "KiB");
        let [shared_s, attached_s] = [shared_after, took].map(|span| span.as_secs_f64());
        let detail = format!("{devices} devices, shared in {shared_s:.1} s, attached in {attached_s:.1} s");
        add(format!("memory of a device at its {end}"), kib, SpeedTarget::AtMost(KIB_MAX), detail);
        // A process has some threads that no device has.
        let threads = MeasuredQuantity::new(SampleSpread::once((each(now.threads) * 10.0).floor() / 10.0), "");
        add(format!("threads of a device at its {end}"), threads, SpeedTarget::AtMost(THREADS_MAX), String::new());
    }
    let (span, before) = (Duration::from_secs(20), [exporters.cpu_seconds(), importers.cpu_seconds()]);
    thread::sleep(span);
    for (end, used) in
        [("exporter", exporters.cpu_seconds() - before[0]), ("importer", importers.cpu_seconds() - before[1])]
    {
        let percent = MeasuredQuantity::new(SampleSpread::once(used * 100.0 / span.as_secs_f64()), "%");
        add(format!("processor of an idle {end}"), percent, SpeedTarget::AtMost(IDLE_PERCENT_MAX), String::new());
    }
    let list = format!("lab3:{port}");
    let took = timed(&desk, &["list", &list], 5)?;
    add("farbus list".into(), took, SpeedTarget::AtMost(LIST_MS_MAX), String::new());
    add("farbus status at the importer".into(), timed(&desk, &["status"], 5)?, SpeedTarget::Context, String::new());
    let (mut few, mut many) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        few.push(busy(&folder, FEW)?);
        many.push(busy(&folder, MANY)?);
    }
    let [few, many] = [few, many].map(|rates| MeasuredQuantity::new(SampleSpread::new(rates), "MB/s"));
    let what = format!("{MANY} busy disks beside {FEW}");
    let (other, target) = (("few", few), SpeedTarget::AtLeast(BUSY_SHARE_MIN));
    findings
        .push(BenchmarkFinding::ratio(NAME, what, many, other, target).with_detail(format!("{READ_BYTES} B reads")));
    let mut add = |what: String, quantity: MeasuredQuantity, target: SpeedTarget, detail: String| {
        findings.push(BenchmarkFinding::absolute(NAME, what, quantity, target).with_detail(detail));
    };
    for (end, host, state, config) in
        [("importer", &desk, "attached", &attached), ("exporter", &lab3, "in use", &shared)]
    {
        let began = Instant::now();
        let outcome = host.command(&["daemon", "restart", "--json"])?.output()?;
        ensure!(outcome.status.success(), "{}", String::from_utf8_lossy(&outcome.stderr));
        let answer: Value = serde_json::from_slice(&outcome.stdout)?;
        let kept = answer["kept"].as_array().map_or(0, Vec::len) as u64 + answer["sessions"].as_u64().unwrap_or(0);
        ensure!(kept == devices as u64, "{kept} of {devices} go on");
        let took = MeasuredQuantity::new(SampleSpread::once(began.elapsed().as_secs_f64()), "s");
        wait_for(host, state, devices)?;
        let detail =
            format!("still for {} ms, all {state} after {:.1} s", answer["still_ms"], began.elapsed().as_secs_f64());
        add(format!("daemon restart at the {end}"), took, SpeedTarget::AtMost(RESTART_S_MAX), detail);
        DaemonProcesses::of(config)?;
    }
    DaemonProcesses::of(&shared)?.signal(Signal::KILL)?;
    let began = Instant::now();
    let _exporter = lab3.start(&["daemon", "--config", &text_of(&shared)?])?;
    wait_for(&lab3, "in use", devices)?;
    let took = MeasuredQuantity::new(SampleSpread::once(began.elapsed().as_secs_f64()), "s");
    let what = "exporter killed and started again, all in use after";
    add(what.into(), took, SpeedTarget::AtMost(KILLED_S_MAX), String::new());
    for config in [&attached, &shared] {
        DaemonProcesses::of(config)?.signal(Signal::TERM)?;
    }
    Ok(findings)
}
