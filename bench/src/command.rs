//! The command line of `farbus-bench`.

use std::{path::PathBuf, process::ExitCode, time::Duration};

use anyhow::{Context, Result, bail};
use clap::{Parser, Subcommand};

use crate::{
    against,
    benchmarks::{self, Benchmark},
    compare,
    contest::ContestRules,
    flame,
    lab::{BenchmarkEnvironment, BenchmarkSubject, DrawnCharts},
    peers::{self, PeerServerKind},
    placement::CpuPlacement,
    report,
};

/// Measures every speed target of farbus and says where it stands.
///
/// Ends with 1 when a target is missed and with 2 when something could not be measured.
#[derive(Parser)]
#[command(
    name = "farbus-bench",
    after_help = "Examples:
  farbus-bench list
  farbus-bench against --before old/farbus
                                          what another version of farbus did better
  farbus-bench compare --report page.html farbus beside its peers, and what limits it
  farbus-bench round-trip deep --quick
  farbus-bench device                     20 MB raw in 4 KiB requests, a row a path
  farbus-bench --markdown > table.md
  farbus-bench --subject ref              what this machine lets anyone reach
  farbus-bench congestion --plots .       congestion.svg, as root
  farbus-bench mixed --plots .            streams that give way to one that matters, as root; a minute
  farbus-bench links                      1 to 8 links on a path that loses, as root
  farbus-bench timeline journey --plots .
                                          of a database whose disk moves, and of one that moves along
  farbus-bench netbus --plots .           the figures and tables of Netbus (2007); Figure 8 as root
  farbus-bench line --plots .             the execution-time line and the depth rule of the 2005 paper
  farbus-bench survey --json survey.json
  farbus-bench modules --plots .          what a pair of modules costs; ten minutes
  farbus-bench realtime --plots .         the real-time paper's experiments, in simulation
  farbus-bench pipes --plots .            the same of its tuned pipes on this machine, as root; six minutes
  chrt -f 1 farbus-bench --pin split --patience 0
                                          on a busy machine, to look for causes"
)]
struct BenchCommandLine {
    #[command(subcommand)]
    command: Option<BenchSubcommand>,
    /// Run these benchmarks only
    #[arg(value_name = "NAME")]
    names: Vec<String>,
    /// Run this benchmark only; may be given several times
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// Shorter slices, five rounds, fewer URBs
    #[arg(long)]
    quick: bool,
    /// Write all samples to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Print a Markdown table instead of one for the terminal
    #[arg(long)]
    markdown: bool,
    /// Draw what is plotted into this folder
    #[arg(long, value_name = "FOLDER")]
    plots: Option<PathBuf>,
    /// The farbus command [default: the one beside this binary]
    #[arg(long, value_name = "PATH")]
    farbus: Option<PathBuf>,
    /// Which server is held against the targets
    #[arg(long, value_enum, default_value = "farbus")]
    subject: BenchmarkSubject,
    /// Wait this long in all, for each figure, for a machine that does nothing else
    #[arg(long, value_name = "SECONDS")]
    patience: Option<u64>,
    /// Which CPUs client and servers are kept on, alike for all servers
    #[arg(long, value_enum, default_value = "free")]
    pin: CpuPlacement,
}

#[derive(Subcommand)]
enum BenchSubcommand {
    /// Name the benchmarks and their targets
    List,
    /// Compare two versions of farbus, in turns, by what their users notice
    ///
    /// The newer one is the farbus beside this program, or the one that '--farbus' names before 'against'.
    Against(against::AgainstArgs),
    /// Measure farbus beside other programs, near and far, and this machine's limits; write it as a page
    Compare(compare::CompareArgs),
    /// Draw where both ends spend their processor time while a device is in use
    Flame(flame::FlameArgs),
    /// Serve as one of the peers
    #[command(hide = true)]
    Peer {
        kind: PeerServerKind,
        /// Where to listen, what to be in front of, whom to flood
        words: Option<String>,
    },
    /// Be the program of `farbus run`
    #[command(hide = true, name = peers::inside::VERB)]
    Inside,
}

/// The program `farbus-bench`; returns its exit code.
pub fn main() -> ExitCode {
    match BenchCommandLine::parse().run() {
        Ok(code) => code,
        Err(error) => {
            eprintln!("farbus-bench: {error:#}");
            ExitCode::from(2)
        }
    }
}

impl BenchCommandLine {
    fn run(self) -> Result<ExitCode> {
        match self.command {
            Some(BenchSubcommand::List) => {
                for Benchmark { name, target, .. } in &benchmarks::ALL {
                    println!("{name:<14} {target}");
                }
                for (name, all) in benchmarks::GROUPS {
                    println!("{name:<14} these: {}", all.join(", "));
                }
                Ok(ExitCode::SUCCESS)
            }
            Some(BenchSubcommand::Peer { kind, words: ref argument }) => {
                peers::serve(kind, argument.as_deref()).map(|()| ExitCode::SUCCESS)
            }
            Some(BenchSubcommand::Inside) => peers::inside::serve().map(|()| ExitCode::SUCCESS),
            Some(BenchSubcommand::Against(ref arguments)) => {
                let lab = self.lab()?;
                lab.farbus_program()?;
                against::run(arguments, &lab)
            }
            Some(BenchSubcommand::Flame(ref arguments)) => {
                let lab = self.lab()?;
                lab.farbus_program()?;
                flame::run(arguments, &lab)
            }
            Some(BenchSubcommand::Compare(ref arguments)) => {
                let lab = self.lab()?;
                lab.farbus_program()?;
                compare::run(arguments, &lab)
            }
            None => self.measure(),
        }
    }

    fn measure(self) -> Result<ExitCode> {
        let chosen = self.chosen()?;
        if let Some(folder) = &self.plots {
            std::fs::create_dir_all(folder).with_context(|| format!("cannot make the folder {}", folder.display()))?;
        }
        let lab = self.lab()?;
        lab.placement.place_client()?;

        let mut findings = Vec::new();
        let mut unmeasured = 0;
        for benchmark in chosen {
            eprintln!("{}: {}", benchmark.name, benchmark.target);
            match (benchmark.run)(&lab) {
                Ok(found) => findings.extend(found),
                Err(error) => {
                    eprintln!("{} could not be measured: {error:#}", benchmark.name);
                    unmeasured += 1;
                }
            }
        }

        let mut machine = report::machine();
        machine["placement"] = format!("{:?}", lab.placement).to_lowercase().into();
        let subject = lab.subject_name();
        if let Some(path) = &self.json {
            let text = serde_json::to_string_pretty(&report::for_programs(subject, &machine, &findings))?;
            std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))?;
        }
        if self.markdown {
            print!("{}", report::for_markdown(subject, &machine, &findings));
        } else {
            print!("{}", report::for_terminal(subject, &findings));
        }
        Ok(if unmeasured > 0 {
            ExitCode::from(2)
        } else {
            ExitCode::from(u8::from(findings.iter().any(report::BenchmarkFinding::missed)))
        })
    }

    fn lab(&self) -> Result<BenchmarkEnvironment> {
        if cfg!(debug_assertions) {
            bail!(
                "this build is not optimized, and its figures would say nothing: cargo run --release -p farbus-bench"
            );
        }
        Ok(BenchmarkEnvironment {
            subject: self.subject,
            farbus: match self.farbus {
                Some(ref path) => path.clone(),
                None => std::env::current_exe()?.with_file_name("farbus"),
            },
            placement: self.pin,
            plots: self.plots.clone(),
            charts: DrawnCharts::default(),
            rules: self.rules(),
            quick: self.quick,
        })
    }

    fn rules(&self) -> ContestRules {
        let mut rules = if self.quick { QUICK } else { THOROUGH };
        if let Some(seconds) = self.patience {
            rules.patience = Duration::from_secs(seconds);
        }
        rules
    }

    fn chosen(&self) -> Result<Vec<&'static Benchmark>> {
        let known = |name: &&str| benchmarks::ALL.iter().any(|benchmark| benchmark.name == *name);
        let mut named = Vec::new();
        for name in self.names.iter().chain(&self.only) {
            match benchmarks::GROUPS.iter().find(|(group, _)| group == name) {
                Some((_, all)) => named.extend_from_slice(all),
                None => named.push(name.as_str()),
            }
        }
        if let Some(unknown) = named.iter().find(|name| !known(name)) {
            bail!("there is no benchmark {unknown}; `farbus-bench list` names them");
        }
        let asked_for = |benchmark: &&Benchmark| match named.as_slice() {
            [] => benchmark.by_default,
            names => names.contains(&benchmark.name),
        };
        Ok(benchmarks::ALL.iter().filter(asked_for).collect())
    }
}

/// Slices of 25 ms are long against a wake-up and short against a change of the machine; what is
/// foreign in a quiet machine (interrupts, this one's own timers) stays below a tenth of a CPU.
pub(crate) const THOROUGH: ContestRules = ContestRules {
    rounds: 9,
    slices: 12,
    slice: Duration::from_millis(25),
    foreign_max: 0.15,
    patience: Duration::from_secs(60),
};
pub(crate) const QUICK: ContestRules = ContestRules {
    rounds: 5,
    slices: 4,
    slice: Duration::from_millis(25),
    foreign_max: 0.15,
    patience: Duration::from_secs(10),
};
