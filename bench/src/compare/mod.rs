//! `farbus-bench compare`: farbus beside other programs that do its work, near and far, what it costs, and what the
//! machine allows; as one page.
//!
//! A figure of one part is measured in turns with those that it stands beside ([`crate::contest`]). Start reading at
//! [`beside`]; [`roofline`] says what a path cannot do without.

mod beside;
mod costs;
mod distances;
mod findings;
mod lossy;
mod page;
mod rivals;
mod roofline;
mod run;

use std::{
    path::PathBuf,
    process::{Command, ExitCode},
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};

use self::{
    findings::PeerFindings,
    page::{ComparisonPage, PageTable},
    rivals::{NBD_SERVER, NBDKIT},
    roofline::MachineLimits,
    run::ComparisonRun,
};
use crate::{
    against::side::ComparedProgram,
    benchmarks::{database::ScratchFolder, storage::TmpfsImage},
    contest::ContestRules,
    lab::BenchmarkEnvironment,
    report,
};

/// The disk of all: so large that a fast read in order over a long way does not soon begin anew.
const DISK_BYTES: u64 = 2 << 30;
const THOROUGH: ContestRules = ContestRules {
    rounds: 7,
    slices: 8,
    slice: Duration::from_millis(25),
    foreign_max: 0.15,
    patience: Duration::from_secs(3),
};
const QUICK: ContestRules = ContestRules { rounds: 5, slices: 4, patience: Duration::from_secs(1), ..THOROUGH };

#[derive(Args)]
#[command(after_help = "Examples:
  farbus-bench compare --report page.html              all of it, as a page; up to 8 minutes
  farbus-bench compare --quick                         up to 3 minutes; prints Markdown
  farbus-bench compare --only usb --only encrypted     some parts of it
  farbus-bench compare --markdown docs/performance.md  the tables of that document anew

It needs 2 GiB in /dev/shm. Programs that are not installed are left out; to have them all, as root:
  apt-get install nbdkit nbd-server linux-perf")]
pub struct CompareArgs {
    /// Write a page of HTML that needs no other file
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Write the tables into this document, between its marker comments
    #[arg(long, value_name = "FILE", conflicts_with = "only")]
    markdown: Option<PathBuf>,
    /// Fewer and shorter rounds
    #[arg(long)]
    quick: bool,
    /// Measure this part only; may be given several times
    #[arg(long, value_name = "NAME", value_enum)]
    only: Vec<ComparedPart>,
}

/// What can be measured by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ComparedPart {
    /// URBs over plain USB/IP.
    Usb,
    /// URBs over TLS.
    Encrypted,
    /// A disk of a paired host by NBD.
    Disk,
    /// A disk over QUIC.
    Quic,
    /// A disk, a URB and attaching from 0 to 100 ms away.
    Distance,
    /// A disk over QUIC where datagrams are lost.
    Lossy,
    /// Processor time, system calls, memory.
    Costs,
}

impl ComparedPart {
    /// Rows that it measures, for the progress.
    fn steps(self) -> usize {
        match self {
            Self::Usb => 2 * beside::USB_LOADS.len(),
            Self::Encrypted => 2,
            Self::Disk => beside::DISK_LOADS.len(),
            Self::Quic => 1,
            Self::Distance => distances::ROUND_TRIPS_MS.len(),
            Self::Lossy => lossy::WAYS.len(),
            Self::Costs => costs::STEPS,
        }
    }
}

/// Measures the parts and writes what was found.
///
/// # Errors
/// A file cannot be written, or this machine's own limits cannot be measured.
pub fn run(arguments: &CompareArgs, lab: &BenchmarkEnvironment) -> Result<ExitCode> {
    let all = ComparedPart::value_variants();
    let parts: Vec<ComparedPart> =
        all.iter().copied().filter(|part| arguments.only.is_empty() || arguments.only.contains(part)).collect();
    lab.placement.place_client()?;
    eprintln!("this machine's limits");
    let mut run = ComparisonRun {
        lab,
        rules: if arguments.quick { QUICK } else { THOROUGH },
        is_quick: arguments.quick,
        limits: MachineLimits::measure(lab).context("this machine's limits")?,
        found: PeerFindings::default(),
        left_out: Vec::new(),
        steps: [0, parts.iter().map(|part| part.steps()).sum()],
        began: Instant::now(),
    };
    let page = measured(&mut run, &parts)?;
    if let Some(path) = &arguments.report {
        std::fs::write(path, page.html()).with_context(|| format!("cannot write {}", path.display()))?;
    }
    if let Some(path) = &arguments.markdown {
        page::write_between_markers(path, &page.markdown())?;
    }
    if arguments.report.is_none() && arguments.markdown.is_none() {
        print!("{}", page.markdown());
    }
    eprintln!("done after {} s", run.began.elapsed().as_secs());
    Ok(ExitCode::SUCCESS)
}

fn measured(run: &mut ComparisonRun<'_>, parts: &[ComparedPart]) -> Result<ComparisonPage> {
    let lab = run.lab;
    let folder = ScratchFolder::new("compare")?;
    let mut program = None;
    if parts.iter().any(|part| !matches!(part, ComparedPart::Usb | ComparedPart::Encrypted)) {
        let image = TmpfsImage::of_bytes("compare", DISK_BYTES)?;
        program = Some(ComparedProgram::with_disk(lab, &folder, image).context("two hosts could not be paired")?);
    }
    let with_nbdkit = program.is_some() && run.has(NBDKIT);
    let (mut tables, mut charts) = (Vec::new(), Vec::new());
    for &part in parts {
        let name = format!("{part:?}").to_lowercase();
        let pair = program.as_ref().context("there is a pair of hosts");
        let done = match part {
            ComparedPart::Usb => beside::usb(run),
            ComparedPart::Encrypted => beside::encrypted(run),
            ComparedPart::Disk => {
                let with_nbd_server = run.has(NBD_SERVER);
                pair.and_then(|pair| beside::disk(run, pair, &folder, with_nbdkit, with_nbd_server))
            }
            ComparedPart::Quic => pair.and_then(|pair| beside::quic(run, pair, &folder, with_nbdkit)),
            ComparedPart::Distance => pair.and_then(|pair| {
                let (table, chart) = distances::measure(run, pair, &folder, with_nbdkit)?;
                tables.push(table);
                charts.push(chart);
                Ok(())
            }),
            ComparedPart::Lossy => pair.and_then(|pair| {
                tables.push(lossy::measure(run, pair)?);
                Ok(())
            }),
            ComparedPart::Costs => pair.and_then(|pair| {
                tables.extend(costs::measure(run, pair, &folder, with_nbdkit)?);
                Ok(())
            }),
        };
        run.note(&name, done);
    }
    if parts.contains(&ComparedPart::Usb) {
        run.leave_out(
            "QEMU usbredir",
            "a guest would have to start for each figure, and usbredirect shares only devices that a kernel has",
        );
    }
    run.limits = run.limits.or_better(MachineLimits::measure(lab)?);
    let found: Vec<PageTable> = run.found.tables(&run.limits);
    let tables = found.into_iter().chain(tables).chain([run.limits.table()]).collect();
    Ok(ComparisonPage { machine: machine_line(lab, run.is_quick)?, tables, charts, left_out: run.left_out.clone() })
}

/// The machine, the programs, and how they were measured.
fn machine_line(lab: &BenchmarkEnvironment, is_quick: bool) -> Result<String> {
    let version = Command::new(lab.farbus_program()?).arg("--version").output()?;
    let machine = report::machine();
    let text = |key: &str| machine[key].as_str().unwrap_or("unknown").to_owned();
    Ok(format!(
        "{} on {} processors ({}), Linux {}; both ends on this machine{}. 1 MB = 10^6 bytes.",
        String::from_utf8_lossy(&version.stdout).lines().next().unwrap_or("farbus"),
        machine["cpus"],
        text("cpu"),
        text("kernel"),
        if is_quick { ", measured with --quick" } else { "" },
    ))
}
