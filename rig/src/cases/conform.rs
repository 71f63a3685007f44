//! `farbus conform` against other implementations: what fails with each is what `docs/interop.md` says.

use super::case::{RigCase, expect};
use super::storage;
use super::usbfs::{STICK, medium, xhci};
use crate::conform::{ConformPaths, ConformSubject, SUBJECTS, failed, keep, kept, read_all};
use crate::lab::{AttachClient, CaseEnvironment, MachineBoot};
use crate::peers::{crate_server, python};
use crate::{Result, RigError};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

pub(super) const CASES: &[RigCase] = &[
    RigCase {
        name: "conform-python",
        purpose: "the conformance kit against an independent implementation, as an exporter and as an importer: what fails is what is known",
        run: with_python,
    },
    RigCase {
        name: "conform-crate",
        purpose: "the conformance kit against the crate's server, started afresh for each check: what fails is what is known",
        run: with_crate,
    },
    RigCase {
        name: "conform-kernel",
        purpose: "the conformance kit against a disk gadget on usbip-vudc and `usbipd --device`, check by check: each one has a result",
        run: with_vudc,
    },
    RigCase {
        name: "conform-usbip-host",
        purpose: "the conformance kit against an xHCI stick bound to usbip-host, check by check: each one has a result",
        run: with_usbip_host,
    },
    RigCase {
        name: "conform-session",
        purpose: "the conformance kit for farbus's own protocol against a release build: no check fails",
        run: with_session,
    },
    RigCase {
        name: "conform-vhci",
        purpose: "the conformance kit's exporters, right and wrong ones, attached by stock `usbip attach`: each one has a result",
        run: with_vhci,
    },
];

/// The results that the document's table is made of.
fn results_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/results/conform")
}

fn subject(name: &str) -> ConformSubject {
    *SUBJECTS.iter().find(|subject| subject.name == name).expect("it is in the list")
}

/// Leaves a result beside the case's logs, from where `cargo xtask conform` takes it.
fn leave(lab: &CaseEnvironment, subject: ConformSubject, result: &Value) -> Result<String> {
    let folder = lab.log("results");
    keep(&folder, subject, result)?;
    Ok(format!("{} checks fail", failed(result).len()))
}

/// Runs the kit, and compares what fails with what is kept.
fn as_known(lab: &CaseEnvironment, name: &str) -> Result<String> {
    let paths = ConformPaths { farbus: lab.program()?, scratch: lab.scratch("conform"), cache: lab.cache().to_owned() };
    std::fs::create_dir_all(&paths.scratch).map_err(RigError::io("create a folder"))?;
    let result = paths.run(subject(name))?.unwrap_or_default();
    let note = leave(lab, subject(name), &result)?;
    let known = read_all(&results_folder())?;
    let known = known.get(name).map(failed);
    let now = failed(&result);
    expect(known.as_ref().is_none_or(|known| *known == now), || format!("{name}: {known:?} is kept, now {now:?}"))?;
    Ok(format!("{name}: {note}"))
}

fn with_python(lab: &CaseEnvironment) -> Result<String> {
    let version = python::PythonPackage::ready(lab.cache())?.version;
    lab.meet(python::NAME, version);
    Ok(format!("{}, {}", as_known(lab, "python-devices")?, as_known(lab, "python-host")?))
}

fn with_crate(lab: &CaseEnvironment) -> Result<String> {
    lab.meet(crate_server::NAME, crate_server::version().unwrap_or("unknown"));
    as_known(lab, "crate")
}

fn with_session(lab: &CaseEnvironment) -> Result<String> {
    let note = as_known(lab, "session-share")?;
    let known = read_all(&lab.log("results"))?;
    let now = known.get("session-share").map(failed).unwrap_or_default();
    expect(now.is_empty(), || format!("these fail: {now:?}"))?;
    Ok(note)
}

/// Boots of one case: a check may crash the kernel, and the next boot goes on behind it.
const BOOTS_MAX: usize = 12;
/// The kernel's usbip-host survives fewer of them: most cancels, and much that breaks the protocol.
const USBIP_HOST_BOOTS_MAX: usize = 32;

fn with_vudc(lab: &CaseEnvironment) -> Result<String> {
    let script = concat!(
        include_str!("../../guest/disk-gadget.sh"),
        include_str!("../../guest/vudc.sh"),
        include_str!("../../guest/conform-vudc.sh")
    );
    let modules = [storage::MODULES, &["usbip_vudc", "usb_f_mass_storage"]].concat();
    check_by_check(lab, subject("vudc"), (script, &modules, &[]), BOOTS_MAX)
}

fn with_usbip_host(lab: &CaseEnvironment) -> Result<String> {
    let script =
        concat!(include_str!("../../guest/conform-usbip-host.sh"), include_str!("../../guest/conform-vudc.sh"));
    let image = storage::image_with_tree(lab)?;
    let modules = [storage::MODULES, &["xhci_pci", "usbip_host"]].concat();
    let hardware = [xhci(&[STICK]), medium(&image).into()].concat();
    check_by_check(lab, subject("usbip-host"), (script, &modules, &hardware), USBIP_HOST_BOOTS_MAX)
}

/// The script, modules and hardware of a machine.
type MachineScript<'a> = (&'a str, &'a [&'a str], &'a [String]);

/// Runs the checks of an exporter of the guest's kernel one by one. Where one crashes the kernel, the next boot goes on
/// behind it.
fn check_by_check(
    lab: &CaseEnvironment,
    of: ConformSubject,
    machine: MachineScript<'_>,
    boots_max: usize,
) -> Result<String> {
    let (script, modules, hardware) = machine;
    let kit = lab.kit_in_guest()?;
    let programs = [kit.as_str()];
    let mut checks: Vec<Value> = Vec::new();
    for _ in 0..boots_max {
        let ids: Vec<&str> = checks.iter().filter_map(|check| check["id"].as_str()).collect();
        let variables = [("DONE", ids.join(" "))];
        let hardware = hardware.to_vec();
        let client = AttachClient::Farbus;
        let boot = MachineBoot {
            script,
            modules,
            client,
            variables: &variables,
            hardware,
            programs: &programs,
            ..MachineBoot::default()
        };
        match lab.boot(&boot)?.finish() {
            Ok(report) => {
                checks.extend(results(&report.output));
                let result = kept(of, &release(&report.output), &[json!({ "checks": checks })]);
                return Ok(format!("{}: {}", checks.len(), leave(lab, of, &result)?));
            }
            Err(RigError::GuestDied { console, .. }) => {
                checks.extend(results(&console));
                let id = tried_last(&console).ok_or_else(|| RigError::Expectation("the guest died early".into()))?;
                checks.push(
                    json!({ "id": id, "severity": "must", "result": "fail", "seen": "the exporter's kernel crashed" }),
                );
            }
            Err(other) => return Err(other),
        }
    }
    Err(RigError::Expectation(format!("the kernel crashed in each of {boots_max} boots")))
}

fn with_vhci(lab: &CaseEnvironment) -> Result<String> {
    let kit = lab.kit_in_guest()?;
    let script = include_str!("../../guest/conform-vhci.sh");
    let (modules, client) = (storage::MODULES, AttachClient::Farbus);
    let boot = MachineBoot { script, modules, client, programs: &[&kit], ..MachineBoot::default() };
    let report = lab.boot(&boot)?.finish()?;
    let checks = results(&report.output);
    expect(checks.len() > 20, || format!("{} results: {}", checks.len(), report.output))?;
    let result = kept(subject("vhci"), &release(&report.output), &[json!({ "checks": checks })]);
    leave(lab, subject("vhci"), &result)
}

/// The checks in lines that begin with RESULT.
fn results(output: &str) -> Vec<Value> {
    let lines = output.lines().filter_map(|line| line.trim().strip_prefix("RESULT "));
    let values = lines.filter_map(|line| serde_json::from_str::<Value>(line).ok());
    values.flat_map(|value| value["checks"].as_array().cloned().unwrap_or_default()).collect()
}

/// The check that was under way.
fn tried_last(console: &str) -> Option<&str> {
    console.lines().filter_map(|line| line.trim().strip_prefix("TRYING ")).next_back()
}

/// The kernel's release, which the scripts print.
fn release(output: &str) -> String {
    let release = output.lines().find_map(|line| line.trim().strip_prefix("RELEASE "));
    release.unwrap_or("unknown").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_read_out_of_a_console_that_ends_in_the_middle() {
        let console =
            "RELEASE 6.1\nTRYING a\nRESULT { \"checks\": [{\"id\":\"a\",\"result\":\"pass\"}] }\r\nTRYING b\nOops\n";
        assert_eq!(results(console), [json!({ "id": "a", "result": "pass" })]);
        assert_eq!((tried_last(console), release(console)), (Some("b"), "6.1".to_owned()));
    }
}
