//! Which parts of the gate run, and why: `gate.toml` against the files that changed.
//!
//! A part that is left out is a risk that somebody has to know of: each decision is printed when it is made, and what
//! was left out is listed at the end with the line that runs it.

use crate::changes::WorkspaceChanges;
use crate::watchdog::RunLimits;
use crate::workspace;
use serde::Deserialize;
use std::collections::BTreeMap;

/// Where the parts are named.
const FILE: &str = "xtask/gate.toml";

/// What `gate.toml` says.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GateConfig {
    part: Vec<GatePart>,
    watch_all: WatchAll,
    /// Bytes that each step may print.
    pub log: BTreeMap<String, u64>,
    /// How long all may take, and be silent.
    pub minutes: RunLimits,
    /// Tests of pure packages that are not fast.
    pub slow: Vec<SlowTest>,
}

/// A step, or cases of the rig, that may be left out.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct GatePart {
    name: String,
    step: String,
    #[serde(default)]
    cases: Vec<String>,
    watch: Vec<String>,
    why: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct WatchAll {
    folders: Vec<String>,
}

/// A test that takes more than a few seconds.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SlowTest {
    pub package: String,
    pub test: String,
    pub why: String,
}

/// Which parts run.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct GatePlan {
    /// Each decision with its reason, for the log.
    pub messages: Vec<String>,
    /// Steps that are left out, and what to say of each at the end.
    pub steps: BTreeMap<String, String>,
    /// Rig cases that are left out, by pattern, and what to say of each part at the end.
    pub cases: Vec<(Vec<String>, String)>,
}

/// Reads `gate.toml`.
///
/// # Errors
/// It is missing, or says something that nobody understands.
pub fn read() -> Result<GateConfig, String> {
    let text = std::fs::read_to_string(workspace::root().join(FILE))
        .map_err(|trouble| format!("cannot read {FILE}: {trouble}"))?;
    toml::from_str(&text).map_err(|trouble| format!("{FILE}: {trouble}"))
}

impl GateConfig {
    /// Decides which parts of these steps run.
    pub fn plan(&self, changes: &WorkspaceChanges, steps: &[&str]) -> GatePlan {
        let mut plan = GatePlan::default();
        let since = match changes {
            WorkspaceChanges::Unknown(why) => {
                plan.messages.push(format!("everything runs: {why}"));
                return plan;
            }
            WorkspaceChanges::Since(since) => since,
        };
        plan.messages.push(format!("compared with {}: {} files changed", since.base, since.files.len()));
        for part in self.part.iter().filter(|part| steps.contains(&part.step.as_str())) {
            if plan.steps.contains_key(&part.step) {
                continue;
            }
            let watched = |file: &&String| {
                part.watch.iter().chain(&self.watch_all.folders).any(|watch| file.starts_with(watch.as_str()))
            };
            if let Some(file) = since.files.iter().find(watched) {
                plan.messages.push(format!("runs      {}: {file} changed", part.name));
                continue;
            }
            plan.messages.push(format!("LEFT OUT  {}: nothing that it tests changed", part.name));
            let line = format!(
                "{} ({}): nothing that it tests changed since {}; to run it: {}",
                part.name,
                part.why,
                since.base,
                part.command()
            );
            if part.cases.is_empty() {
                plan.steps.insert(part.step.clone(), line);
            } else {
                plan.cases.push((part.cases.clone(), line));
            }
        }
        // What belongs to a step that is left out as a whole is said with it.
        plan.cases.retain(|_| !plan.steps.contains_key("rig"));
        plan
    }
}

impl GatePart {
    /// The line that runs it.
    fn command(&self) -> String {
        if self.cases.is_empty() {
            return format!("cargo xtask test --only {}", self.step);
        }
        let cases = self.cases.iter().map(|case| if case.contains('*') { format!("'{case}'") } else { case.clone() });
        format!("cargo xtask rig -- run {}", cases.collect::<Vec<_>>().join(" "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::changes::ChangedFiles;

    fn changed(files: &[&str]) -> WorkspaceChanges {
        WorkspaceChanges::Since(ChangedFiles {
            base: "0123456789 (a test)".into(),
            files: files.iter().map(|file| (*file).to_owned()).collect(),
        })
    }

    fn left_out(files: &[&str]) -> (Vec<String>, usize) {
        let plan = read().unwrap().plan(&changed(files), &crate::test::STEPS);
        (plan.steps.into_keys().collect(), plan.cases.len())
    }

    #[test]
    fn documents_leave_out_what_boots_and_builds() {
        assert_eq!(
            left_out(&["docs/book/src/disks.md"]),
            (["demo", "instructions", "package", "rig", "upgrade"].map(str::to_owned).to_vec(), 0)
        );
    }

    #[test]
    fn the_protocol_runs_all_but_the_rigs_tests_of_kernels_alone() {
        assert_eq!(left_out(&["crates/wire/src/lib.rs"]), (["book", "package"].map(str::to_owned).to_vec(), 2));
        assert_eq!(
            left_out(&["rig/src/main.rs"]),
            (["book", "demo", "instructions", "package", "upgrade"].map(str::to_owned).to_vec(), 0)
        );
    }

    #[test]
    fn what_everything_is_built_with_runs_everything() {
        for file in ["Cargo.lock", "xtask/src/test.rs", ".ci/run", "rust-toolchain.toml"] {
            assert_eq!(left_out(&[file]), (vec![], 0), "{file}");
        }
    }

    #[test]
    fn everything_runs_where_changes_are_not_known() {
        let plan = read().unwrap().plan(&WorkspaceChanges::Unknown("a shallow clone".into()), &crate::test::STEPS);
        assert_eq!((plan.steps.len(), plan.cases.len()), (0, 0));
        assert!(plan.messages[0].contains("a shallow clone"), "{:?}", plan.messages);
    }

    #[test]
    fn what_is_left_out_says_how_it_is_run() {
        let plan = read().unwrap().plan(&changed(&["crates/farbus/src/lib.rs"]), &crate::test::STEPS);
        assert_eq!(plan.steps.keys().collect::<Vec<_>>(), ["book", "instructions", "package"]);
        let lines: Vec<&str> = plan.cases.iter().map(|(_, line)| line.as_str()).collect();
        assert!(lines.iter().any(|line| line.contains("cargo xtask rig -- run 'python-*' 'crate-*'")), "{lines:?}");
        assert!(
            plan.messages.iter().filter(|printed| printed.starts_with("LEFT OUT")).count()
                == lines.len() + plan.steps.len()
        );
    }

    /// A folder that moved would never change again, and its part would never run.
    #[test]
    fn every_watched_folder_exists() {
        let gate = read().unwrap();
        let root = workspace::root();
        for watch in gate.part.iter().flat_map(|part| &part.watch).chain(&gate.watch_all.folders) {
            let path = root.join(watch);
            assert!(if watch.ends_with('/') { path.is_dir() } else { path.is_file() }, "{watch}");
        }
        assert!(gate.part.iter().all(|part| crate::test::STEPS.contains(&part.step.as_str())));
    }

    #[test]
    fn all_steps_together_print_less_than_two_megabytes() {
        let gate = read().unwrap();
        assert!(crate::test::STEPS.iter().all(|step| gate.log.contains_key(*step)));
        assert!(gate.log.values().sum::<u64>() < 2_000_000);
    }

    #[test]
    fn every_slow_test_exists() {
        let packages = crate::packages::read().unwrap();
        for slow in read().unwrap().slow {
            let package = packages.iter().find(|package| package.name == slow.package);
            assert!(
                package.is_some_and(|package| package.tests.contains(&slow.test)),
                "{}: {}",
                slow.package,
                slow.test
            );
        }
    }
}
