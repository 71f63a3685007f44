//! A remote disk: the kernel's drivers over each path that farbus has, beside the kernel's own usbip.

use super::way::{is_thorough, run};
use crate::Result;
use crate::cases::case::{RigCase, expect};
use crate::lab::CaseEnvironment;
use std::collections::BTreeMap;
use std::fmt::Write as _;

pub(super) const CASES: &[RigCase] = &[RigCase {
    name: "storage-far",
    purpose: "50 ms away a disk attached with `--via uas` keeps at least 70 % of its reads in order and 50 % of its writes, and a read \
              here and there takes one round trip; the kernel's own usbip beside it, with --times also a stick, driven by its exporter or not",
    run: storage,
}];

const MODULES: &[&str] = &["usb_f_mass_storage", "usbip_host", "usb_storage", "uas", "sd_mod"];

fn storage(lab: &CaseEnvironment) -> Result<String> {
    let (distances, ways, mib) =
        if is_thorough(lab) { ("0 1 10 50 100", "driven kernel usbip uas", 80) } else { ("0 50", "usbip uas", 80) };
    let variables = [
        ("RTTS", distances.to_owned()),
        ("WAYS", ways.to_owned()),
        ("DISK_MIB", mib.to_string()),
        ("SLOW_MIB", "2".to_owned()),
    ];
    let output = run(lab, include_str!("../../../guest/storage-far.sh"), MODULES, &variables)?;
    let rows: Vec<RemoteDiskRow> = output.lines().filter_map(RemoteDiskRow::parse).collect();
    judge(&rows)?;
    Ok(table(&rows))
}

/// The figures of one path at one distance.
#[derive(Clone, Debug)]
struct RemoteDiskRow {
    way: String,
    round_trip_ms: u64,
    /// KiB a second, in the order of [`COLUMNS`].
    rates: [u64; 4],
    /// The median time of a read of 4 KiB at a random place, us.
    median_us: u64,
}

const COLUMNS: [&str; 4] = ["read 128 KiB", "read 1 MiB", "write 128 KiB", "write 1 MiB"];
/// The shares of the local rates that must be left 50 ms away.
const SHARES_MIN: [f64; 4] = [0.7, 0.7, 0.5, 0.5];
const TARGET_MS: u64 = 50;
/// A random read takes at most this many round trips at that distance.
const TRIPS_MAX: f64 = 1.2;
const TRIPS_FROM_MS: u64 = 10;
/// The paths whose figures are compared with the targets: a shared disk, and a stick that its exporter drives, if it
/// was there.
const JUDGED: [&str; 2] = ["uas", "driven"];

impl RemoteDiskRow {
    fn parse(line: &str) -> Option<Self> {
        let mut words = line.strip_prefix("row ")?.split(' ');
        let way = words.next()?.to_owned();
        let numbers: Vec<u64> = words.map(str::parse).collect::<std::result::Result<_, _>>().ok()?;
        let &[round_trip_ms, a, b, c, d, median_us, _most_us] = numbers.as_slice() else { return None };
        Some(Self { way, round_trip_ms, rates: [a, b, c, d], median_us })
    }

    fn trips(&self) -> f64 {
        self.median_us as f64 / (self.round_trip_ms * 1000) as f64
    }
}

fn near<'a>(rows: &'a [RemoteDiskRow], way: &str) -> Option<&'a RemoteDiskRow> {
    rows.iter().find(|row| row.way == way && row.round_trip_ms == 0)
}

fn judge(rows: &[RemoteDiskRow]) -> Result<()> {
    let mut missed = Vec::new();
    if near(rows, JUDGED[0]).is_none() {
        missed.push(format!("{} was not measured", JUDGED[0]));
    }
    for (way, near) in JUDGED.iter().filter_map(|way| Some((*way, near(rows, way)?))) {
        for row in rows.iter().filter(|row| row.way == way) {
            if row.round_trip_ms >= TRIPS_FROM_MS && row.trips() > TRIPS_MAX {
                missed.push(format!("{way} at {} ms: {:.2} round trips a read", row.round_trip_ms, row.trips()));
            }
            for (index, name) in COLUMNS.iter().enumerate().filter(|_| row.round_trip_ms == TARGET_MS) {
                let share = row.rates[index] as f64 / near.rates[index] as f64;
                if share < SHARES_MIN[index] {
                    missed.push(format!("{way} at {TARGET_MS} ms: {name} has {share:.2} of what it has near"));
                }
            }
        }
    }
    expect(missed.is_empty(), || format!("{}\n{}", missed.join("; "), table(rows)))
}

/// All figures, for people: rates in MiB a second, and as shares of the local rates.
fn table(rows: &[RemoteDiskRow]) -> String {
    let mut text = String::from("| way | round trip |");
    let columns = || COLUMNS.iter().copied().chain(["read 4 KiB somewhere"]);
    columns().for_each(|name| text += &format!(" {name} |"));
    text += "\n|---|---|---|---|---|---|---|";
    let nearest: BTreeMap<&str, &RemoteDiskRow> =
        rows.iter().filter_map(|row| Some((&*row.way, near(rows, &row.way)?))).collect();
    for row in rows {
        // Writing to a string does not fail.
        let _ = write!(text, "\n| {} | {} ms |", row.way, row.round_trip_ms);
        for (index, rate) in row.rates.iter().enumerate() {
            let _ = write!(text, " {:.1}", *rate as f64 / 1024.0);
            if let Some(near) = nearest.get(&*row.way).filter(|_| row.round_trip_ms > 0) {
                let _ = write!(text, " ({:.0} %)", 100.0 * *rate as f64 / near.rates[index] as f64);
            }
            text += " |";
        }
        let _ = match row.round_trip_ms {
            0 => write!(text, " {} µs |", row.median_us),
            _ => write!(text, " {:.2} round trips |", row.trips()),
        };
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_that_is_too_low_and_a_read_that_takes_too_long_are_named() {
        let rows = |far: &str| -> Vec<RemoteDiskRow> {
            let near = JUDGED.map(|way| format!("row {way} 0 1000 1000 1000 1000 400 500"));
            let far = JUDGED.map(|way| format!("row {way} 50 {far}"));
            near.iter().chain(&far).filter_map(|line| RemoteDiskRow::parse(line)).collect()
        };
        judge(&rows("700 700 500 500 60000 90000")).unwrap();
        assert!(judge(&rows("699 700 500 500 50000 90000")).unwrap_err().to_string().contains("read 128 KiB has 0.70"));
        assert!(judge(&rows("700 700 500 499 50000 90000")).unwrap_err().to_string().contains("write 1 MiB"));
        assert!(judge(&rows("700 700 500 500 61000 90000")).unwrap_err().to_string().contains("1.22 round trips"));
        assert!(judge(&[]).unwrap_err().to_string().contains("not measured"));
        assert!(table(&rows("700 700 500 500 60000 90000")).contains("| uas | 50 ms | 0.7 (70 %) |"));
    }
}
