//! What a path costs: processor time and system calls of its servers, and memory.

use std::{thread, time::Duration};

use anyhow::Result;

use super::{
    beside,
    page::{PageRow, PageTable},
    rivals::NbdRival,
    run::ComparisonRun,
};
use crate::{
    against::{
        rows::{DeviceLoad, DiskLoad, MeasuredEnd, StartGauge, WayOfUse},
        side::ComparedProgram,
    },
    benchmarks::{database::ScratchFolder, naming::size},
    load::{LoadLimit, LoadTally},
    peers::{PeerServerKind, nbdkit::BlockVerb},
    probe::{self, SyscallCounter, family_kib},
    report::figure,
    usbip::{TransferTemplate, UsbipDirection},
};

const DISK_LOADS: [DiskLoad; 3] = [
    DiskLoad { verb: BlockVerb::Read, bytes: 1 << 20, depth: 1, is_random: false },
    DiskLoad { verb: BlockVerb::Write, bytes: 1 << 20, depth: 1, is_random: false },
    DiskLoad { verb: BlockVerb::Read, bytes: 4096, depth: 32, is_random: true },
];
/// A program may keep for its first requests what its start needed.
const IDLE_AFTER: Duration = Duration::from_millis(1500);
/// In the place of a count that nobody took.
const UNCOUNTED: &str = "–";
/// URBs, disks, memory.
pub const STEPS: usize = beside::USB_LOADS.len() + DISK_LOADS.len() + 1;

/// Of the servers of a path, and of nobody who uses it.
struct PathCost {
    /// µs of processors, a request.
    cpu_micros: f64,
    /// System calls, a request; `None` if nobody counts them here.
    calls: Option<f64>,
}

impl PathCost {
    /// Of these processes while `work` is carried.
    fn measure(pids: &[u32], span: Duration, mut work: impl FnMut(Duration) -> Result<LoadTally>) -> Result<Self> {
        let cpu_seconds = || pids.iter().map(|&pid| probe::cpu_seconds(pid)).sum::<Result<f64>>();
        work(span / 2)?;
        let before = cpu_seconds()?;
        let tally = work(span)?;
        let cpu_micros = 1e6 * (cpu_seconds()? - before) / tally.urbs as f64;
        let calls = match SyscallCounter::perf_of(pids) {
            Ok(counter) => {
                let counted = work(span)?;
                Some(counter.finish()?.total as f64 / counted.urbs as f64)
            }
            Err(_) => None,
        };
        Ok(Self { cpu_micros, calls })
    }

    fn cells(&self, bytes: usize) -> [String; 3] {
        [
            format!("{} µs", figure(self.cpu_micros)),
            // Nobody moves a GB in the smallest requests.
            if bytes < 4096 { "–".into() } else { format!("{} s", figure(1e3 * self.cpu_micros / bytes as f64)) },
            self.calls.map_or(UNCOUNTED.to_owned(), figure),
        ]
    }
}

pub fn measure(
    run: &mut ComparisonRun<'_>,
    pair: &ComparedProgram<'_>,
    folder: &ScratchFolder,
    with_nbdkit: bool,
) -> Result<[PageTable; 2]> {
    let (mut rows, mut memory) = (Vec::new(), Vec::new());
    usb(run, &mut rows, &mut memory)?;
    disk(run, pair, folder, with_nbdkit, (&mut rows, &mut memory))?;
    if rows.iter().any(|row| row.cells.last().is_some_and(|calls| calls == UNCOUNTED)) {
        run.leave_out(
            "system calls",
            "perf cannot count them; as root: apt-get install linux-perf, and run this as root",
        );
    }
    let headings = ["what", "who", "CPU a request", "CPU a GB", "system calls a request"];
    let costs = PageTable {
        title: "What it costs",
        note: "Processor time and system calls of the servers: of URBs the exporter's, of a disk those of both ends, which is the \
               exporter and what serves the disk here."
            .to_owned(),
        headings: headings.map(str::to_owned).to_vec(),
        rows,
    };
    let memory = PageTable {
        title: "Memory with one device",
        note: "The proportional set (PSS) of a program and of those that it started.".to_owned(),
        headings: ["what", "MiB"].map(str::to_owned).to_vec(),
        rows: memory,
    };
    Ok([costs, memory])
}

fn span(run: &ComparisonRun<'_>) -> Duration {
    Duration::from_millis(if run.is_quick { 300 } else { 800 })
}

fn push(rows: &mut Vec<PageRow>, what: &str, who: &str, bytes: usize, cost: &PathCost) {
    rows.push(PageRow::new([what.to_owned(), who.to_owned()].into_iter().chain(cost.cells(bytes)).collect()));
}

fn mib(what: &str, kib: u64) -> PageRow {
    PageRow::new(vec![what.to_owned(), figure(kib as f64 / 1024.0)])
}

fn usb(run: &mut ComparisonRun<'_>, rows: &mut Vec<PageRow>, memory: &mut Vec<PageRow>) -> Result<()> {
    let (ours, peer) = (run.lab.farbus("zero")?, run.lab.peer(PeerServerKind::Crate)?);
    thread::sleep(IDLE_AFTER);
    memory.push(mib("farbus share zero, before its first user", family_kib(ours.pid())?));
    memory.push(mib("usbip crate, the same", family_kib(peer.pid())?));
    let mut clients = [("farbus", ours.attach()?, ours.pid()), ("usbip crate", peer.attach()?, peer.pid())];
    for (bytes, depth) in beside::USB_LOADS {
        let what = format!("USB IN {} × {depth}", size(bytes));
        run.step(&format!("cost of {what}"));
        let transfer = TransferTemplate::bulk(UsbipDirection::In, bytes);
        for (name, client, pid) in &mut clients {
            let cost = PathCost::measure(&probe::family(*pid)?, span(run), |span| {
                client.run(&transfer, depth, LoadLimit::Elapsed(span))
            })?;
            push(rows, &what, name, bytes, &cost);
        }
    }
    Ok(())
}

fn disk(
    run: &mut ComparisonRun<'_>,
    pair: &ComparedProgram<'_>,
    folder: &ScratchFolder,
    with_nbdkit: bool,
    (rows, memory): (&mut Vec<PageRow>, &mut Vec<PageRow>),
) -> Result<()> {
    let mut device = pair.begin(WayOfUse::Nbd)?;
    let ours = device.pids().into_iter().map(probe::family).collect::<Result<Vec<_>>>()?.concat();
    let mut rival = match with_nbdkit {
        true => Some(NbdRival::encrypted(run.lab, folder, &pair.image.0, Duration::ZERO)?),
        false => None,
    };
    run.step("memory");
    for (what, gauge) in [
        ("farbus share of a disk, attached", StartGauge::AttachedMemory(MeasuredEnd::Exporter)),
        ("farbus attach --via nbd", StartGauge::AttachedMemory(MeasuredEnd::Importer)),
    ] {
        memory.push(PageRow::new(vec![what.to_owned(), figure(device.value(gauge)?)]));
    }
    let mut client = rival.as_mut().map(NbdRival::client).transpose()?;
    let of_rival = rival.as_ref().map(NbdRival::pids).unwrap_or_default();
    for (what, &pid) in ["nbdkit file, TLS, attached", "nbdkit nbd, its client"].into_iter().zip(&of_rival) {
        memory.push(mib(what, family_kib(pid)?));
    }
    for load in DISK_LOADS {
        let what = beside::disk_name(load);
        run.step(&format!("cost of {what}"));
        let cost = PathCost::measure(&ours, span(run), |span| device.run(DeviceLoad::Disk(load), span))?;
        push(rows, &what, "farbus, TLS", load.bytes, &cost);
        if let Some(client) = &mut client {
            let DiskLoad { verb, bytes, depth, is_random } = load;
            let cost = PathCost::measure(&of_rival, span(run), |span| client.run(verb, bytes, depth, is_random, span))?;
            push(rows, &what, "nbdkit TLS", bytes, &cost);
        }
    }
    Ok(())
}
