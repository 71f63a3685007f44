//! usbfs inside `farbus run`, compared with the kernel's.

use crate::Result;
use crate::cases::case::expect;
use crate::lab::{Boot, Client, Lab};
use std::fmt::Write as _;

/// What was asked, what the kernel answered, and farbus.
pub(super) type Difference = (&'static str, &'static str, &'static str);

/// The differences of one kind of device.
pub(super) struct Differences {
    /// They are meant.
    meant: &'static [Difference],
    /// They are faults of farbus that are known. One that is mended is no failure; then its line goes from here.
    faults: &'static [&'static [Difference]],
}

pub(super) const EMULATED: Differences = Differences { meant: MEANT, faults: &[FAULTS, SHORT_IS_FINE] };
pub(super) const REAL: Differences = Differences { meant: MEANT, faults: &[FAULTS, NOT_RESET] };

const MEANT: &[Difference] = &[
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

/// Other errors than the kernel's, rights that were given up and are used all the same, a claim that outlives a reset.
const FAULTS: &[Difference] = &[
    ("rules, CONNINFO_EX with room for 2 bytes", "EINVAL", "0"),
    ("rules, release an interface that is not there", "ENOENT", "EINVAL"),
    ("rules, DISCONNECT of an interface that is not there", "EINVAL", "ENODATA"),
    ("rules, CONNECT of an interface that is not there", "EINVAL", "0"),
    ("rules, an unknown question to an interface that is not there", "EINVAL", "ENOTTY"),
    ("rules, DISCONNECT_CLAIM of its own interface, not from usbfs", "EBUSY", "0"),
    ("rules, DISCONNECT_CLAIM of its own interface, if it is a disk's", "EBUSY", "0"),
    ("rules, DISCONNECT_CLAIM of an interface that is not there", "EINVAL", "ENOENT"),
    ("rules, CLAIM_PORT", "EINVAL", "ENODEV"),
    ("rules, RELEASE_PORT", "EINVAL", "ENODEV"),
    ("rules, ALLOC_STREAMS for an endpoint that is not there", "EINVAL", "ENOENT"),
    ("rules, BULK, endpoint 0", "ENOENT", "EINVAL"),
    ("rules, BULK, endpoint 0x80", "ENOENT", "EINVAL"),
    ("rules, submit, bulk at endpoint 0", "ENOENT", "EINVAL"),
    ("rules, submit, bulk with ISO_ASAP", "EINVAL", "0"),
    ("rules, release without a configuration", "ENOENT", "EINVAL"),
    ("rules, SETINTERFACE without a configuration", "EHOSTUNREACH", "ENOENT"),
    ("rules, DISCONNECT_CLAIM without a configuration", "EINVAL", "ENOENT"),
    ("rules, request to the interface without a configuration", "EHOSTUNREACH", "ENOENT"),
    ("rules, driver after a reset", "ENODATA", "usbfs"),
    ("rules, claim what it has, without the right", "0", "EACCES"),
    ("rules, bulk without the right", "EACCES", "0"),
    ("rules, submit without the right", "EACCES", "0"),
    ("rules, CLEAR_HALT without the right", "EACCES", "0"),
    ("rules, request to the interface without the right", "EACCES", "2"),
    ("rules, SETCONFIGURATION without the right, nobody has an interface", "0", "EACCES"),
    ("rules, RESET without the right, another has an interface", "EACCES", "0"),
    (
        "loop, reap after the release",
        "URB 2, status ESHUTDOWN, 0 bytes, 0 errors",
        "URB 2, status ENOENT, 0 bytes, 0 errors",
    ),
    (
        "loop, reap after DISCONNECT",
        "URB 0, status ESHUTDOWN, 0 bytes, 0 errors",
        "URB 0, status ENOENT, 0 bytes, 0 errors",
    ),
    ("settings, BULK, an endpoint of another setting", "EINVAL", "ENOENT"),
    ("settings, GET_INTERFACE after a reset", "0", "1"),
];

/// USBDEVFS_URB_SHORT_NOT_OK has no effect unless the exporter has the device by way of usbfs, and so the URBs that
/// continue a transfer are not cancelled.
const SHORT_IS_FINE: &[Difference] = &[
    (
        "rules, reap control, short is wrong",
        "URB 0, status EREMOTEIO, 18 bytes, 0 errors",
        "URB 0, status 0, 18 bytes, 0 errors",
    ),
    (
        "loop, reap IN, short is wrong",
        "URB 0, status EREMOTEIO, 100 bytes, 0 errors",
        "URB 0, status 0, 100 bytes, 0 errors",
    ),
    (
        "loop, reap one of the three",
        "URB 0, status EREMOTEIO, 100 bytes, 0 errors",
        "URB 0, status 0, 100 bytes, 0 errors",
    ),
    ("loop, reap one of the three", "URB 2, status ECONNRESET, 0 bytes, 0 errors", "EAGAIN"),
    ("loop, reap one of the three", "URB 1, status ECONNRESET, 0 bytes, 0 errors", "EAGAIN"),
    ("loop, submit IN, which continues what is over", "EREMOTEIO", "0"),
    (
        "loop, reap the first of a transfer",
        "URB 0, status EREMOTEIO, 100 bytes, 0 errors",
        "URB 0, status 0, 100 bytes, 0 errors",
    ),
    ("loop, reap what continued it", "URB 1, status ECONNRESET, 0 bytes, 0 errors", "EAGAIN"),
    (
        "loop, reap the transfer after it",
        "URB 2, status 0, 100 bytes, 0 errors",
        "URB 1, status 0, 100 bytes, 0 errors",
    ),
];

/// USBDEVFS_RESET does not reach a device whose exporter has it by way of usbfs: USB/IP has no message for it, and the
/// exporter takes it from a first descriptor read that does not come. Its halt lasts.
const NOT_RESET: &[Difference] = &[("source, BULK IN", "512", "EPIPE")];

/// Runs a script that prints what the kernel said (`near| `) and what farbus said (`far| `), and compares it.
pub(super) fn compare(lab: &Lab, script: &str, modules: &[&str], differences: Differences) -> Result<String> {
    lab.farbus()?;
    let script = [include_str!("../../../guest/program/common.sh"), script].concat();
    let modules = [&["fuse"], modules].concat();
    // The microphone of a sound card: the setting with an endpoint has packets of 196 bytes.
    let variables = [("AUDIO", "1d6b:0101 2 82 c4".to_owned())];
    let boot =
        Boot { script: &script, modules: &modules, variables: &variables, client: Client::Stock, ..Boot::default() };
    let report = lab.boot(&boot)?.finish()?;
    let of = |side: &str| -> Vec<&str> { report.output.lines().filter_map(|line| line.strip_prefix(side)).collect() };
    let (near, far) = (of("near| "), of("far| "));
    expect(near.len() > 100, || format!("too little was asked:\n{}", report.output))?;
    judge(&near, &far, &differences)
}

/// Compares what a program was told by the kernel and by farbus, line by line.
fn judge(near: &[&str], far: &[&str], differences: &Differences) -> Result<String> {
    let mut wrong = String::new();
    let mut meant: Vec<&Difference> = differences.meant.iter().collect();
    let mut faults: Vec<&Difference> = differences.faults.iter().copied().flatten().collect();
    let all = faults.len();
    for (kernel, farbus) in near.iter().zip(far).filter(|(kernel, farbus)| kernel != farbus) {
        let is_it = |difference: &&Difference| {
            let (asked, by_kernel, by_farbus) = difference;
            format!("{asked}: {by_kernel}") == **kernel && format!("{asked}: {by_farbus}") == **farbus
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
    for (asked, ..) in meant {
        let _ = write!(wrong, "\nno longer another: {asked}");
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
        let differences = Differences { meant: &[("mmap", "0", "ENODEV")], faults: &[&[("reap", "EPIPE", "0")]] };
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
