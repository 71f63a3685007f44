//! A raw disk through vhci, as the 2008 paper measured raw disks. `farbus-bench device` has the paper's rows, and the
//! paths that need no kernel.

use super::way::{is_thorough, run};
use crate::Result;
use crate::cases::case::{RigCase, expect};
use crate::lab::CaseEnvironment;
use std::fmt::Write as _;

pub(super) const CASES: &[RigCase] = &[RigCase {
    name: "device-raw",
    purpose: "a raw disk in requests of 4 KiB, one after the other: the guest's own, and through vhci 0, 1 and 10 ms away, by the kernel's \
              importer, by farbus in a session and as a UAS disk; with --times all of the 2008 paper's 20 MB each",
    run: raw,
}];

const MODULES: &[&str] = &["usb_f_mass_storage", "usb_storage", "uas", "sd_mod"];
const ROUND_TRIPS_MS: [u64; 3] = [0, 1, 10];
/// Their names in the script, and for people.
const WAYS: [(&str, &str); 4] = [
    ("local", "the guest's own (dummy_hcd)"),
    ("usbip", "vhci, the kernel's importer"),
    ("session", "vhci, farbus in a session"),
    ("uas", "vhci, farbus as UAS"),
];

fn raw(lab: &CaseEnvironment) -> Result<String> {
    let (near_kib, far_kib) = if is_thorough(lab) { (20 << 10, 20 << 10) } else { (1 << 10, 128) };
    let variables = [
        ("RTTS", ROUND_TRIPS_MS.map(|ms| ms.to_string()).join(" ")),
        ("NEAR_KIB", near_kib.to_string()),
        ("FAR_KIB", far_kib.to_string()),
    ];
    let output = run(lab, include_str!("../../../guest/device-raw.sh"), MODULES, &variables)?;
    let rows: Vec<RawDiskRow> = output.lines().filter_map(RawDiskRow::parse).collect();
    let wanted = 1 + (WAYS.len() - 1) * ROUND_TRIPS_MS.len();
    expect(rows.len() == wanted, || format!("{} rows of {wanted}:\n{output}", rows.len()))?;
    Ok(table(&rows))
}

/// The rates of one path at one distance, KiB a second.
#[derive(Debug, PartialEq)]
struct RawDiskRow {
    way: &'static str,
    round_trip_ms: u64,
    read: u64,
    write: u64,
}

impl RawDiskRow {
    fn parse(line: &str) -> Option<Self> {
        let mut words = line.strip_prefix("row ")?.split(' ');
        let name = words.next()?;
        let (_, way) = WAYS.into_iter().find(|(known, _)| *known == name)?;
        let numbers: Vec<u64> = words.map(str::parse).collect::<std::result::Result<_, _>>().ok()?;
        let &[round_trip_ms, read, write] = numbers.as_slice() else { return None };
        Some(Self { way, round_trip_ms, read, write })
    }
}

/// In the paper's units: thousands of bytes a second.
fn table(rows: &[RawDiskRow]) -> String {
    let mut text = String::from("| path | round trip | raw reading KB/s | raw writing KB/s |\n|---|---|---|---|");
    for RawDiskRow { way, round_trip_ms, read, write } in rows {
        let kb = |kib: u64| kib * 1024 / 1000;
        // Writing to a string does not fail.
        let _ = write!(text, "\n| {way} | {round_trip_ms} ms | {} | {} |", kb(*read), kb(*write));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn row_is_parsed_and_printed_in_the_papers_units() {
        let row = RawDiskRow::parse("row uas 10 1000 500").unwrap();
        assert_eq!(row, RawDiskRow { way: "vhci, farbus as UAS", round_trip_ms: 10, read: 1000, write: 500 });
        assert!(RawDiskRow::parse("row tape 0 1 1").is_none() && RawDiskRow::parse("row uas 0 1").is_none());
        assert!(table(&[row]).ends_with("| vhci, farbus as UAS | 10 ms | 1024 | 512 |"));
    }
}
