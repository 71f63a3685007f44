//! The ways of use that only a kernel with `vhci_hcd` has, from the table of routes: the tests of the command
//! (`crates/cli/tests/command/routes`), run in the machine that the rig boots.

use super::case::{RigCase, expect};
use super::storage;
use crate::lab::{CaseEnvironment, MachineBoot};
use crate::{Result, RigError, tool};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

pub(super) const CASES: &[RigCase] = &[
    RigCase {
        name: "routes",
        purpose: "each capability of the table of routes by the kernel's usb-storage and its uas, plain and in a session, by the command and the \
                  daemon, near, 50 ms away and over a cut link: a choice that has each pair",
        run: |lab| routes(lab, "rig", ROUTES_MIN),
    },
    RigCase { name: "routes-all", purpose: "the same, every route", run: |lab| routes(lab, "rig-all", ALL_ROUTES_MIN) },
];

/// Each capability has to be proved by both of the kernel's drivers.
const ROUTES_MIN: usize = 15;
const ALL_ROUTES_MIN: usize = 110;
/// Where the guest has the program with the tests.
const TESTS: &str = "/rig/command";
/// What a route that has passed says, between its name and its time.
const PASSED: &str = " passed in ";

fn routes(lab: &CaseEnvironment, chosen: &str, routes_min: usize) -> Result<String> {
    lab.program()?;
    let (tests, farbus) = tests_of_the_command()?;
    let program = lab.scratch("command");
    tool::output(Command::new("strip").arg("-o").arg(&program).arg(&tests))?;
    let placed = format!("{}={TESTS}", program.display());
    let boot = MachineBoot {
        script: include_str!("../../guest/routes.sh"),
        modules: &[storage::MODULES, &[storage::UAS_MODULE]].concat(),
        variables: &[
            ("TESTS", TESTS.to_owned()),
            ("BUILT_FARBUS", farbus.display().to_string()),
            ("ROUTES", chosen.to_owned()),
        ],
        programs: &[&placed, "unshare"],
        patience: Duration::from_secs(3600),
        ..MachineBoot::default()
    };
    let report = lab.boot(&boot)?.finish()?;
    let passed: Vec<&str> = report.output.lines().filter_map(|line| Some(line.rsplit_once(PASSED)?.0)).collect();
    expect(passed.len() >= routes_min, || format!("only these routes were tried: {passed:?}"))?;
    let records = tests.parent().and_then(Path::parent).and_then(Path::parent).map(|target| target.join("tmp/routes"));
    note_passed(records.as_deref(), &passed)?;
    Ok(format!("{} routes", passed.len()))
}

/// Leaves for the document what the tests leave for routes that this machine has.
fn note_passed(records: Option<&Path>, passed: &[&str]) -> Result<()> {
    let Some(records) = records else { return Ok(()) };
    fs::create_dir_all(records).map_err(RigError::io("make the folder of the routes that have passed"))?;
    for line in passed {
        // Beginning with what the test harness has put on the same line.
        let Some((before, route)) = line.rsplit_once(" on ") else { continue };
        let capability = before.rsplit(' ').next().unwrap_or(before);
        let path = records.join(format!("{capability}.{route}"));
        fs::write(&path, "passed\n").map_err(RigError::io(format!("write {}", path.display())))?;
    }
    Ok(())
}

/// The tests of the command, which cargo builds unless they are there, and the farbus that they start.
fn tests_of_the_command() -> Result<(PathBuf, PathBuf)> {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    // With the features that all crates together give it: the tests were built so before.
    cargo.args(["test", "--workspace", "--test", "command", "--no-run", "--message-format=json"]);
    let printed = tool::text(&mut cargo)?;
    let built = printed.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()).find_map(|message| {
        let is_it = message["target"]["name"] == "command" && message["profile"]["test"] == true;
        is_it.then(|| message["executable"].as_str().map(PathBuf::from)).flatten()
    });
    let tests = built.ok_or_else(|| RigError::Expectation("cargo names no tests of the command".into()))?;
    let farbus = tests.parent().and_then(Path::parent).map(|folder| folder.join("farbus"));
    Ok((tests, farbus.ok_or_else(|| RigError::Expectation("the tests are in no folder".into()))?))
}
