//! `cargo xtask check`: the inner loop. Format, clippy, tidy, and the fast tests of what changed; with a warm build
//! under three minutes.
//!
//! A changed file belongs to a package; that package and all that depend on it are tested. Fast are the tests inside a
//! library or program, and the integration tests of pure packages but those that `gate.toml` calls slow. Everything
//! else is listed at the end with the line to type.

use crate::cargo::{self, CargoExecutable, cargo};
use crate::packages::{self, WorkspacePackage};
use crate::steps::{self, GateStep, StepSuccess};
use crate::{changes, parts, prerequisites, tidy, workspace};
use clap::Args;
use std::collections::BTreeSet;
use std::io::Read as _;
use std::process::{Command, Stdio};
use std::time::Instant;

#[derive(Args)]
#[command(
    after_help = "What changed: files that differ from where this branch left the main one (`origin/main`, else `main`), and files that are
not committed. On the main branch itself only the latter.

Examples:
  cargo xtask check                    format, clippy, tidy, fast tests of what changed
  cargo xtask check command native     and the integration tests of these names
  cargo xtask check --since HEAD~3     what the last three commits changed
  cargo xtask check --all              the fast tests of every package
  cargo xtask test                     everything: what runs before a change lands"
)]
pub struct CheckArgs {
    /// Integration tests that run besides, whatever changed: `command`, `upgrade`, …
    #[arg(value_name = "TEST")]
    also: Vec<String>,
    /// Compare with this commit
    #[arg(long, value_name = "COMMIT", conflicts_with = "all")]
    since: Option<String>,
    /// Take every package for changed
    #[arg(long)]
    all: bool,
}

/// An integration test: its package, and its name.
type IntegrationTest = (String, String);

/// Which tests run.
#[derive(Debug, Default, PartialEq, Eq)]
struct TestSelection {
    /// Packages whose tests inside the library or program run.
    packages: BTreeSet<String>,
    /// Integration tests that run.
    tests: BTreeSet<IntegrationTest>,
    /// Integration tests of these packages that do not run, and why.
    left_out: Vec<(IntegrationTest, String)>,
}

pub fn run(arguments: &CheckArgs) -> Result<(), String> {
    prerequisites::check(&["format", "clippy"], false)?;
    let packages = packages::read()?;
    let every = || packages.iter().map(|package| package.name.clone()).collect();
    let affected = if arguments.all {
        println!("check: every package");
        every()
    } else {
        let since = changes::at_hand(&workspace::root(), arguments.since.as_deref())?;
        let affected = packages::affected(&packages, &since.files, packages::mentions);
        println!("check: compared with {}: {} files changed", since.base, since.files.len());
        println!("check: tests of {}", if affected.is_empty() { "nothing".into() } else { joined(affected.iter()) });
        affected
    };
    let selection = select(&packages, &affected, &tidy::layers()?.pure, &parts::read()?.slow, &arguments.also)?;
    let left_out = left_out(&selection, packages.len());
    let mut steps = vec![
        GateStep::new("format", "every file is formatted", || cargo::run(cargo(&["fmt", "--all", "--", "--check"]))),
        GateStep::new("tidy", "the rules of the architecture", tidy::run),
        GateStep::new("clippy", "no warnings", || {
            cargo::run(cargo(&["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"]))
        }),
    ];
    if !selection.packages.is_empty() || !selection.tests.is_empty() {
        let folders: Vec<_> = packages.into_iter().map(|package| (package.folder, package.name)).collect();
        steps.push(GateStep::new("test", "the fast tests of what changed", move || run_tests(&selection, &folders)));
    }
    steps::run_all(steps, steps::RunLog { left_out, ..steps::RunLog::default() })
}

fn select(
    packages: &[WorkspacePackage],
    affected: &BTreeSet<String>,
    pure: &BTreeSet<String>,
    slow: &[parts::SlowTest],
    also: &[String],
) -> Result<TestSelection, String> {
    let mut selection = TestSelection { packages: affected.clone(), ..TestSelection::default() };
    if let Some(unknown) = also.iter().find(|name| !packages.iter().any(|package| package.tests.contains(name))) {
        let names: BTreeSet<&String> = packages.iter().flat_map(|package| &package.tests).collect();
        return Err(format!("no integration test is called {unknown}; there are {}", joined(names.into_iter())));
    }
    for package in packages {
        for test in &package.tests {
            let named = (package.name.clone(), test.clone());
            let is_slow = slow.iter().find(|slow| slow.package == package.name && slow.test == *test);
            if also.contains(test) {
                selection.tests.insert(named);
            } else if !affected.contains(&package.name) {
                continue;
            } else if let Some(slow) = is_slow {
                selection.left_out.push((named, slow.why.clone()));
            } else if pure.contains(&package.name) {
                selection.tests.insert(named);
            } else {
                selection.left_out.push((named, "it uses this machine: processes, sockets, mounts".to_owned()));
            }
        }
    }
    Ok(selection)
}

/// What does not run, each with the line that runs it.
fn left_out(selection: &TestSelection, packages: usize) -> Vec<String> {
    let mut lines = Vec::new();
    let unaffected = packages - selection.packages.len();
    if unaffected > 0 {
        lines.push(format!("{unaffected} packages that nothing changed for: cargo xtask check --all"));
    }
    let line = |((package, test), why): &(IntegrationTest, String)| {
        format!("{package}, test {test} ({why}): cargo xtask check {test}")
    };
    lines.extend(selection.left_out.iter().map(line));
    let steps = "fuzz targets, examples, tests in documentation, deny, upgrade, virtual machines, demo";
    lines.push(format!("{steps}: cargo xtask test runs them and all of the above"));
    lines
}

/// Builds the tests with the features that the gate builds with, and runs those that were selected.
fn run_tests(selection: &TestSelection, folders: &[(String, String)]) -> Result<StepSuccess, String> {
    let mut command = cargo(&["test", "--workspace", "--no-run", "--lib", "--bins"]);
    let names: BTreeSet<&String> = selection.tests.iter().map(|(_, test)| test).collect();
    names.into_iter().for_each(|name| {
        command.args(["--test", name]);
    });
    if selection.tests.iter().any(|(_, test)| test == "command") {
        cargo::build_for_command_tests()?;
    }
    let built = cargo::executables(command)?;
    let is_selected = |test: &&CargoExecutable| test.is_test && selects(selection, folders, test);
    let mut failed = Vec::new();
    for test in built.iter().filter(is_selected) {
        if let Err(name) = run_test(test)? {
            failed.push(name);
        }
    }
    if failed.is_empty() { Ok(StepSuccess::All) } else { Err(format!("failed: {}", failed.join(", "))) }
}

fn selects(selection: &TestSelection, folders: &[(String, String)], test: &CargoExecutable) -> bool {
    let folder = test.folder.strip_prefix(workspace::root()).map(|folder| format!("{}/", folder.display()));
    let Some((_, package)) = folders.iter().find(|(known, _)| folder.as_ref().is_ok_and(|folder| folder == known))
    else {
        return false;
    };
    match test.kind.as_str() {
        "test" => selection.tests.contains(&(package.clone(), test.name.clone())),
        _ => selection.packages.contains(package),
    }
}

/// Runs a test binary as cargo does, and shows what it printed if it failed. Fuzz targets are left out.
fn run_test(test: &CargoExecutable) -> Result<Result<(), String>, String> {
    let folder = test.folder.strip_prefix(workspace::root()).unwrap_or(&test.folder).display();
    let name = format!("{folder} {} {}", test.kind, test.name);
    let trouble = |error: std::io::Error| format!("cannot run {name}: {error}");
    let (mut ours, theirs) = std::io::pipe().map_err(trouble)?;
    let mut command = Command::new(&test.path);
    command.args(["--quiet", "--skip", "fuzz_"]).current_dir(&test.folder).env("CARGO_MANIFEST_DIR", &test.folder);
    command.stdin(Stdio::null()).stdout(theirs.try_clone().map_err(trouble)?).stderr(theirs);
    let start = Instant::now();
    let mut child = command.spawn().map_err(trouble)?;
    // It holds the other end, and this would wait for itself.
    drop(command);
    let mut printed = Vec::new();
    ours.read_to_end(&mut printed).map_err(trouble)?;
    let status = child.wait().map_err(trouble)?;
    let printed = String::from_utf8_lossy(&printed);
    let seconds = start.elapsed().as_secs_f64();
    if status.success() {
        let result = printed.lines().rev().find_map(|line| line.strip_prefix("test result: ok. "));
        let passed = result.and_then(|result| result.split_once(';')).map_or("", |(passed, _)| passed);
        println!("{name:<45} {seconds:6.1} s  {passed}");
        return Ok(Ok(()));
    }
    println!("{name:<45} {seconds:6.1} s  FAILED ({status})\n{printed}");
    Ok(Err(name))
}

fn joined<'a>(names: impl Iterator<Item = &'a String>) -> String {
    names.map(String::as_str).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    fn package(name: &str, tests: &[&str]) -> WorkspacePackage {
        let tests = tests.iter().map(|test| (*test).to_owned()).collect();
        WorkspacePackage { name: name.into(), folder: format!("crates/{name}/"), needs: Vec::new(), tests }
    }

    fn set(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    fn selected(affected: &[&str], also: &[&str]) -> Result<TestSelection, String> {
        let packages =
            [package("wire", &["golden", "worlds"]), package("farbus", &["command"]), package("sim", &["bus"])];
        let slow = [parts::SlowTest { package: "wire".into(), test: "worlds".into(), why: "a minute".into() }];
        let also: Vec<String> = also.iter().map(|name| (*name).to_owned()).collect();
        select(&packages, &set(affected), &set(&["wire", "sim"]), &slow, &also)
    }

    fn named(package: &str, test: &str) -> IntegrationTest {
        (package.to_owned(), test.to_owned())
    }

    #[test]
    fn fast_tests_of_affected_packages_are_selected_and_the_rest_is_told() {
        let selection = selected(&["wire", "farbus"], &[]).unwrap();
        assert_eq!(selection.packages, set(&["wire", "farbus"]));
        assert_eq!(selection.tests, [named("wire", "golden")].into());
        let lines = left_out(&selection, 3);
        assert!(lines.iter().any(|line| line.contains("worlds") && line.contains("a minute")), "{lines:?}");
        assert!(lines.iter().any(|line| line.ends_with("cargo xtask check command")), "{lines:?}");
        assert!(lines[0].starts_with("1 packages"), "{lines:?}");
    }

    #[test]
    fn a_named_test_runs_whatever_changed() {
        assert_eq!(selected(&[], &["command"]).unwrap().tests, [named("farbus", "command")].into());
        assert!(selected(&[], &["nonesuch"]).unwrap_err().contains("command"));
    }

    #[test]
    fn what_was_built_is_run_only_if_it_was_selected() {
        let selection = selected(&["wire"], &[]).unwrap();
        let folders = [("crates/wire/".to_owned(), "wire".to_owned()), ("crates/sim/".to_owned(), "sim".to_owned())];
        let built = |package: &str, kind: &str, name: &str| CargoExecutable {
            name: name.into(),
            kind: kind.into(),
            is_test: true,
            folder: workspace::root().join("crates").join(package),
            path: PathBuf::new(),
        };
        assert!(selects(&selection, &folders, &built("wire", "lib", "wire")));
        assert!(selects(&selection, &folders, &built("wire", "test", "golden")));
        assert!(!selects(&selection, &folders, &built("wire", "test", "worlds")));
        assert!(!selects(&selection, &folders, &built("sim", "lib", "sim")));
        assert!(!selects(&selection, &folders, &built("other", "lib", "other")));
    }
}
