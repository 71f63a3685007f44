//! The rig's command line.

use clap::{Parser, Subcommand};
use farbus_rig::conform::{self, ConformPaths};
use farbus_rig::lab::{Rig, records_folder};
use farbus_rig::{Result, RigError, cases, interop, peers, record, run};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Tests of farbus against real Linux kernels in virtual machines.
#[derive(Parser)]
#[command(version)]
struct RigCommandLine {
    #[command(subcommand)]
    command: RigCommand,
}

#[derive(Subcommand)]
enum RigCommand {
    /// Shows every case and what it proves.
    List,
    /// Runs cases: all, or those named (a trailing * chooses all that begin so).
    Run {
        /// Cases to run.
        names: Vec<String>,
        /// Leave out cases of this name (a trailing * leaves out all that begin so); may be given more than once.
        #[arg(long, value_name = "NAME")]
        except: Vec<String>,
        /// The farbus to test [default: the one beside this program].
        #[arg(long)]
        farbus: Option<PathBuf>,
        /// Passes of the cases that repeat (testusb); a soak takes 10.
        #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
        times: u32,
        /// Of cases that have steps (pair-*), try only this one; may be given more than once.
        #[arg(long)]
        step: Vec<String>,
        /// Where consoles and outputs go [default: rig/logs in the cargo target folder].
        #[arg(long)]
        log_dir: Option<PathBuf>,
        /// Cases at a time, of those that do not want the processors to themselves [default: as many as there are
        /// processors, 4 at most].
        #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
        jobs: Option<u32>,
        /// Do not count a skipped case against the run.
        #[arg(long)]
        allow_skip: bool,
    },
    /// Serves as somebody else's exporter, for a case.
    #[command(hide = true)]
    Peer {
        /// keyboard or serial.
        what: String,
    },
    /// Runs the conformance kit against what needs no machine, keeps the results, and writes the tables of a document.
    Conform {
        /// The farbus to run the kit against; the kit (farbus-conform) is beside it.
        #[arg(long)]
        farbus: Option<PathBuf>,
        /// Keep what earlier runs of the rig left in this folder, too.
        #[arg(long)]
        take: Vec<PathBuf>,
        /// The Markdown document that has the tables; it is written anew.
        document: PathBuf,
        /// Where results are kept.
        folder: PathBuf,
        /// Only these implementations.
        names: Vec<String>,
    },
    /// Writes the tables of who met whom into a document, from the records that runs left.
    Interop {
        /// The Markdown document that has the tables; it is written anew.
        document: PathBuf,
    },
}

fn main() -> ExitCode {
    let outcome = match RigCommandLine::parse().command {
        RigCommand::List => {
            for case in cases::all() {
                println!("{:<24} {}", case.name, case.purpose);
            }
            Ok(true)
        }
        RigCommand::Run { names, except, farbus, times, step, log_dir, jobs, allow_skip } => {
            let rig = || Rig::open(farbus, log_dir, times, step);
            try_cases(&names, &except, rig, jobs.map_or_else(processors, |jobs| jobs as usize), allow_skip)
        }
        RigCommand::Peer { what } => {
            peers::crate_server::serve(&what).map(|()| true).map_err(RigError::io(format!("serve a {what}")))
        }
        RigCommand::Conform { farbus, take, document, folder, names } => {
            conform_all(farbus, &take, &document, &folder, &names).map(|()| true)
        }
        RigCommand::Interop { document } => write_tables(&document).map(|()| true),
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("farbus-rig: {error}");
            ExitCode::from(2)
        }
    }
}

fn try_cases(
    names: &[String],
    except: &[String],
    rig: impl FnOnce() -> Result<Rig>,
    jobs: usize,
    allow_skip: bool,
) -> Result<bool> {
    let chosen = run::select(names, except)?;
    let rig = rig()?;
    let score = run::run(&rig, &chosen, jobs);
    println!("logs: {}", rig.logs().display());
    println!("{score}");
    Ok(score.is_good(allow_skip))
}

/// A case keeps one processor busy. More than four at a time would wait for the disk.
fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, |count| count.get().min(4))
}

fn write_tables(document: &Path) -> Result<()> {
    let text = std::fs::read_to_string(document).map_err(RigError::io(format!("read {}", document.display())))?;
    let made = interop::made(&text, &record::read_all(&records_folder())?)?;
    std::fs::write(document, made).map_err(RigError::io(format!("write {}", document.display())))?;
    println!("{} is up to date", document.display());
    Ok(())
}

fn conform_all(
    farbus: Option<PathBuf>,
    take: &[PathBuf],
    document: &Path,
    folder: &Path,
    names: &[String],
) -> Result<()> {
    if let Some(farbus) = farbus {
        let scratch = std::env::temp_dir().join(format!("farbus-conform-{}", std::process::id()));
        std::fs::create_dir_all(&scratch).map_err(RigError::io(format!("create {}", scratch.display())))?;
        let cache = records_folder().with_file_name("");
        let paths = ConformPaths { farbus, scratch, cache };
        for subject in conform::SUBJECTS.iter().filter(|each| names.is_empty() || names.iter().any(|n| n == each.name))
        {
            match paths.run(*subject)? {
                Some(result) => {
                    println!("{}: {} checks fail", subject.name, conform::failed(&result).len());
                    conform::keep(folder, *subject, &result)?;
                }
                None => {
                    println!("{}: not run here, it needs a machine (cargo xtask rig -- run 'conform-*')", subject.name)
                }
            }
        }
        // What a killed process left there is of no use to anybody.
        let _ = std::fs::remove_dir_all(&paths.scratch);
    }
    for from in take {
        for (name, result) in conform::read_all(from)? {
            let subject = conform::SUBJECTS.iter().find(|subject| subject.name == name);
            subject.map_or(Ok(()), |subject| conform::keep(folder, *subject, &result))?;
        }
    }
    let text = std::fs::read_to_string(document).map_err(RigError::io(format!("read {}", document.display())))?;
    let made = interop::with_conformance(&text, &conform::read_all(folder)?)?;
    std::fs::write(document, made).map_err(RigError::io(format!("write {}", document.display())))?;
    println!("{} is up to date", document.display());
    Ok(())
}
