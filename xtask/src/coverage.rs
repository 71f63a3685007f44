//! What fuzzing reaches: the targets run once more in an instrumented build, and the compiler's own tools count the
//! lines of each source file that ran.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde::Deserialize;

use crate::cargo::{self, cargo};
use crate::workspace;

const FLAG: &str = "-Cinstrument-coverage";

/// The lines of one source file, and how many of them ran.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
struct LineCoverage {
    count: u64,
    covered: u64,
}

/// The compiler's tools that read profiles.
struct ProfileTools {
    profdata: PathBuf,
    cov: PathBuf,
}

impl ProfileTools {
    fn find() -> Result<Self, String> {
        let mut ask = Command::new("rustc");
        ask.args(["--print", "target-libdir"]);
        let folder = String::from_utf8_lossy(&cargo::output(ask)?).trim().to_owned();
        let folder = Path::new(&folder).parent().ok_or("rustc names no folder of libraries")?.join("bin");
        let found = Self { profdata: folder.join("llvm-profdata"), cov: folder.join("llvm-cov") };
        if found.profdata.exists() && found.cov.exists() {
            return Ok(found);
        }
        Err("the compiler's tools for profiles are not there\n  rustup component add llvm-tools".to_owned())
    }
}

/// Runs the tests that `chosen` picks from the names of a test program's, with these settings, and prints which lines
/// of the product ran: a table of its files, worst first.
pub fn run(chosen: impl Fn(&str) -> Vec<String>, settings: &[(&str, String)]) -> Result<(), String> {
    let tools = ProfileTools::find()?;
    let folder = workspace::root().join("target/coverage");
    let profiles = folder.join("profiles");
    let failed = |error: std::io::Error| format!("{}: {error}", profiles.display());
    if profiles.exists() {
        std::fs::remove_dir_all(&profiles).map_err(failed)?;
    }
    std::fs::create_dir_all(&profiles).map_err(failed)?;
    let mut build = cargo(&["test", "--workspace", "--lib", "--tests", "--no-run"]);
    build.arg("--target-dir").arg(&folder).env("RUSTFLAGS", FLAG).env("CARGO_INCREMENTAL", "0");
    // Build scripts and macros are instrumented, too: what they write is not looked at.
    build.env("LLVM_PROFILE_FILE", folder.join("build.profraw"));
    let mut ran = Vec::new();
    for built in cargo::executables(build)?.into_iter().filter(|built| built.is_test) {
        let mut list = Command::new(&built.path);
        list.args(["--list", "--format", "terse"]).env("LLVM_PROFILE_FILE", folder.join("list.profraw"));
        let targets = chosen(&String::from_utf8_lossy(&cargo::output(list)?));
        if targets.is_empty() {
            continue;
        }
        let mut command = Command::new(&built.path);
        command.args(["--exact", "--nocapture"]).args(targets).current_dir(&built.folder);
        command.env("LLVM_PROFILE_FILE", profiles.join("%m-%p.profraw"));
        command.envs(settings.iter().map(|(name, value)| (name, value)));
        cargo::run(command)?;
        ran.push(built.path);
    }
    if ran.is_empty() {
        return Err("no test was chosen: this proves nothing".to_owned());
    }
    let all = folder.join("all.profdata");
    let mut merge = Command::new(&tools.profdata);
    merge.args(["merge", "-sparse", "-o"]).arg(&all).arg(&profiles);
    cargo::run(merge)?;
    let mut export = Command::new(&tools.cov);
    export.args(["export", "--summary-only", "--instr-profile"]).arg(&all);
    for program in &ran {
        export.arg("--object").arg(program);
    }
    let files = parse(&cargo::output(export)?, &workspace::root())?;
    println!("{}", table(&files));
    Ok(())
}

/// The product's files of an export of `llvm-cov`, below the workspace.
fn parse(json: &[u8], root: &Path) -> Result<BTreeMap<String, LineCoverage>, String> {
    #[derive(Deserialize)]
    struct CoverageExport {
        data: Vec<CoverageUnit>,
    }
    #[derive(Deserialize)]
    struct CoverageUnit {
        files: Vec<FileCoverage>,
    }
    #[derive(Deserialize)]
    struct FileCoverage {
        filename: PathBuf,
        summary: CoverageSummary,
    }
    #[derive(Deserialize)]
    struct CoverageSummary {
        lines: LineCoverage,
    }
    let export: CoverageExport = serde_json::from_slice(json).map_err(|error| format!("llvm-cov's answer: {error}"))?;
    let files = export.data.into_iter().flat_map(|data| data.files);
    let named = files.filter_map(|file| {
        let name = file.filename.strip_prefix(root).ok()?.to_str()?.to_owned();
        let is_product = name.contains("/src/") && !name.contains("test") && !name.contains("fuzz");
        is_product.then_some((name, file.summary.lines))
    });
    Ok(named.collect())
}

/// A table of the files of which fuzzing runs anything.
fn table(files: &BTreeMap<String, LineCoverage>) -> String {
    let mut reached: Vec<_> = files.iter().filter(|(_, lines)| lines.covered > 0).collect();
    reached.sort_by_key(|(name, lines)| (percent(**lines), *name));
    let mut text = "| lines that fuzzing ran | of | % | file |\n|---|---|---|---|\n".to_owned();
    let mut all = LineCoverage::default();
    for (name, lines) in reached {
        text += &format!("| {} | {} | {} | `{name}` |\n", lines.covered, lines.count, percent(*lines));
        all = LineCoverage { count: all.count + lines.count, covered: all.covered + lines.covered };
    }
    text + &format!("| {} | {} | {} | all of these |", all.covered, all.count, percent(all))
}

fn percent(lines: LineCoverage) -> u64 {
    (lines.covered * 100).checked_div(lines.count).unwrap_or(100)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_the_product_are_told_by_their_lines_worst_first() {
        let json = br#"{"data":[{"files":[
            {"filename":"/w/crates/a/src/good.rs","summary":{"lines":{"count":10,"covered":9,"percent":90.0}}},
            {"filename":"/w/crates/a/src/bad.rs","summary":{"lines":{"count":40,"covered":10,"percent":25.0}}},
            {"filename":"/w/crates/a/src/never.rs","summary":{"lines":{"count":40,"covered":0,"percent":0.0}}},
            {"filename":"/w/crates/a/src/tests.rs","summary":{"lines":{"count":4,"covered":4,"percent":100.0}}},
            {"filename":"/w/crates/a/tests/fuzz.rs","summary":{"lines":{"count":4,"covered":4,"percent":100.0}}},
            {"filename":"/home/x.rs","summary":{"lines":{"count":4,"covered":4,"percent":100.0}}}
        ],"totals":{}}],"type":"llvm.coverage.json.export","version":"2.0.1"}"#;
        let files = parse(json, Path::new("/w")).unwrap();
        assert_eq!(files.len(), 3);
        let table = table(&files);
        let lines: Vec<_> = table.lines().skip(2).collect();
        assert_eq!(
            lines,
            [
                "| 10 | 40 | 25 | `crates/a/src/bad.rs` |",
                "| 9 | 10 | 90 | `crates/a/src/good.rs` |",
                "| 19 | 50 | 38 | all of these |"
            ]
        );
        assert!(parse(b"{}", Path::new("/w")).is_err());
    }
}
