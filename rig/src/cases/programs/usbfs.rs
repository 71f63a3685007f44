//! usbfs inside `farbus run`, compared with the kernel's.

use crate::Result;
use crate::cases::case::expect;
use crate::lab::{AttachClient, CaseEnvironment, MachineBoot};
use std::fmt::Write as _;

/// What was asked, what the kernel answered, and farbus.
pub(super) type UsbfsDifference = (&'static str, &'static str, &'static str);

/// The differences of one kind of device.
pub(super) struct ExpectedDifferences {
    /// They are meant.
    meant: &'static [UsbfsDifference],
    /// They are faults of farbus that are known. One that is mended is no failure; then its line goes from here.
    faults: &'static [&'static [UsbfsDifference]],
}

pub(super) const ALL: ExpectedDifferences = ExpectedDifferences { meant: MEANT, faults: &[] };

const MEANT: &[UsbfsDifference] = &[
    // farbus has no memory that the device and the program could share.
    ("rules, capability MMAP", "yes", "no"),
    ("rules, mmap", "0", "ENODEV"),
    // The tree is a file system that is mounted to be read.
    ("rules, write", "EINVAL", "EROFS"),
    // Nobody is sent a signal, of a device that goes or of a URB that ends: programs poll.
    ("rules, DISCSIGNAL", "0", "ENOTTY"),
    // The kernel's FUSE reads the argument before farbus hears of the command.
    ("rules, REAPURBNDELAY, its argument nowhere", "EAGAIN", "EFAULT"),
    // There is no driver that could want the data.
    ("rules, an unknown question with data nowhere", "EFAULT", "ENOTTY"),
];

/// Runs a script that prints what the kernel said (`near| `) and what farbus said (`far| `), and compares it.
pub(super) fn compare(
    lab: &CaseEnvironment,
    script: &str,
    modules: &[&str],
    differences: ExpectedDifferences,
) -> Result<String> {
    lab.farbus()?;
    let script = [include_str!("../../../guest/program/common.sh"), script].concat();
    let modules = [&["fuse"], modules].concat();
    // The microphone of a sound card: the setting with an endpoint has packets of 196 bytes.
    let variables = [("AUDIO", "1d6b:0101 2 82 c4".to_owned())];
    let boot = MachineBoot {
        script: &script,
        modules: &modules,
        variables: &variables,
        client: AttachClient::Stock,
        ..MachineBoot::default()
    };
    let report = lab.boot(&boot)?.finish()?;
    let of = |side: &str| -> Vec<&str> { report.output.lines().filter_map(|line| line.strip_prefix(side)).collect() };
    let (near, far) = (of("near| "), of("far| "));
    expect(near.len() > 100, || format!("too little was asked:\n{}", report.output))?;
    judge(&near, &far, &differences)
}

/// Compares what a program was told by the kernel and by farbus, line by line.
fn judge(near: &[&str], far: &[&str], differences: &ExpectedDifferences) -> Result<String> {
    let mut wrong = String::new();
    let mut meant: Vec<&UsbfsDifference> = differences.meant.iter().collect();
    let mut faults: Vec<&UsbfsDifference> = differences.faults.iter().copied().flatten().collect();
    let all = faults.len();
    for (kernel, farbus) in near.iter().zip(far).filter(|(kernel, farbus)| kernel != farbus) {
        let is_it = |difference: &&UsbfsDifference| {
            let (request, by_kernel, by_farbus) = difference;
            format!("{request}: {by_kernel}") == **kernel && format!("{request}: {by_farbus}") == **farbus
        };
        let known = [&mut meant, &mut faults].into_iter().any(|list| {
            let at = list.iter().position(is_it);
            at.map(|at| list.remove(at)).is_some()
        });
        if !known {
            // Writing to a string does not fail.
            let _ = write!(wrong, "\nkernel: {kernel}\nfarbus: {farbus}");
        }
    }
    for (request, ..) in meant {
        let _ = write!(wrong, "\nno longer another: {request}");
    }
    if near.len() != far.len() {
        let _ = write!(wrong, "\nthe kernel said {} lines, farbus {}", near.len(), far.len());
    }
    expect(wrong.is_empty(), || wrong)?;
    let (meant, known) = (differences.meant.len(), all - faults.len());
    Ok(format!("{} lines; {meant} differ as they may, {known} by faults that are known", near.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_listed_may_differ_and_what_is_meant_has_to() {
        let differences =
            ExpectedDifferences { meant: &[("mmap", "0", "ENODEV")], faults: &[&[("reap", "EPIPE", "0")]] };
        let near = ["claim: 0", "mmap: 0", "reap: EPIPE"];
        let judged = |far: &[&str]| judge(&near, far, &differences).map_err(|error| error.to_string());
        assert!(judged(&["claim: 0", "mmap: ENODEV", "reap: 0"]).unwrap().contains("1 by faults"));
        assert!(judged(&["claim: 0", "mmap: ENODEV", "reap: EPIPE"]).unwrap().contains("0 by faults"));
        assert!(judged(&["claim: 0", "mmap: 0", "reap: 0"]).unwrap_err().contains("no longer another: mmap"));
        assert!(judged(&["claim: 0", "mmap: ENODEV", "reap: EINVAL"]).unwrap_err().contains("farbus: reap: EINVAL"));
        assert!(judged(&["claim: EBUSY", "mmap: ENODEV", "reap: 0"]).unwrap_err().contains("kernel: claim: 0"));
        assert!(judged(&["claim: 0", "mmap: ENODEV"]).unwrap_err().contains("3 lines, farbus 2"));
    }
}
