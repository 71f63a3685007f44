//! The figures that two programs are compared by.

use super::comparison::BetterValue;
use crate::{
    load::LoadTally,
    peers::{inside::UsbfsWorkload, nbdkit::BlockVerb},
    usbip::UsbipDirection,
};

const KIB: usize = 1024;
const MIB: usize = 1024 * KIB;

/// How a device of a paired host is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WayOfUse {
    /// A disk by NBD, its link over TLS.
    Nbd,
    /// A disk by NBD, its link over QUIC.
    Quic,
    /// A disk as a file, past the kernel's cache.
    Fuse,
    /// A disk of the kernel's, past its cache.
    Uas,
    /// A USB device of a program in `farbus run`.
    Run,
}

impl WayOfUse {
    pub const ALL: [Self; 5] = [Self::Nbd, Self::Quic, Self::Fuse, Self::Uas, Self::Run];
}

/// What a program does with a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskLoad {
    pub verb: BlockVerb,
    pub bytes: usize,
    /// Requests under way.
    pub depth: usize,
    pub is_random: bool,
}

/// The exporter's process or the importer's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MeasuredEnd {
    Exporter,
    Importer,
}

/// What keeps a device busy while its rate is measured.
#[derive(Clone, Copy, Debug)]
pub enum DeviceLoad {
    Disk(DiskLoad),
    Program(UsbfsWorkload),
}

impl DeviceLoad {
    /// Whether an importer asks for data before this load does.
    pub fn is_read_ahead(&self) -> bool {
        matches!(self, Self::Disk(DiskLoad { verb: BlockVerb::Read, is_random: false, .. }))
    }
}

/// A value that each start of both ends has once.
#[derive(Clone, Copy, Debug)]
pub enum StartGauge {
    /// From the start of `farbus attach` or `farbus run` until the device can be used.
    AttachTime,
    /// The memory of a share that nobody uses.
    SharedMemory,
    /// The memory of an end of a session that has carried nothing yet.
    AttachedMemory(MeasuredEnd),
    /// The memory of an end of a session after a load of many large and many small requests.
    BusyMemory(MeasuredEnd),
}

/// What is measured.
#[derive(Clone, Copy, Debug)]
pub enum RowFigure {
    Rate(DeviceLoad),
    Value(StartGauge),
}

pub struct ComparisonRow {
    pub name: &'static str,
    pub way: WayOfUse,
    pub figure: RowFigure,
}

impl ComparisonRow {
    pub fn unit(&self) -> &'static str {
        match self.figure {
            RowFigure::Rate(_) if self.is_counted() => "k/s",
            RowFigure::Rate(_) => "MB/s",
            RowFigure::Value(StartGauge::AttachTime) => "ms",
            RowFigure::Value(_) => "MiB",
        }
    }

    pub fn better(&self) -> BetterValue {
        match self.figure {
            RowFigure::Rate(_) => BetterValue::Higher,
            RowFigure::Value(_) => BetterValue::Lower,
        }
    }

    /// A rate in the row's unit.
    pub fn rate(&self, tally: &LoadTally) -> f64 {
        if self.is_counted() { tally.urbs_per_second() / 1e3 } else { tally.bytes_per_second() / 1e6 }
    }

    /// Whether its requests are counted, because they are small, and not their bytes.
    fn is_counted(&self) -> bool {
        matches!(
            self.figure,
            RowFigure::Rate(
                DeviceLoad::Disk(DiskLoad { bytes: ..=4096, .. })
                    | DeviceLoad::Program(
                        UsbfsWorkload::Control | UsbfsWorkload::Ask | UsbfsWorkload::Bulk(_, ..=4096, _)
                    )
            )
        )
    }

    /// Whether `word` names it: its name, or how that begins, up to a hyphen.
    fn is_named(&self, word: &str) -> bool {
        self.name.strip_prefix(word).is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
    }
}

const fn read(bytes: usize, depth: usize, is_random: bool) -> RowFigure {
    RowFigure::Rate(DeviceLoad::Disk(DiskLoad { verb: BlockVerb::Read, bytes, depth, is_random }))
}

const fn write(bytes: usize, depth: usize, is_random: bool) -> RowFigure {
    RowFigure::Rate(DeviceLoad::Disk(DiskLoad { verb: BlockVerb::Write, bytes, depth, is_random }))
}

const fn program(work: UsbfsWorkload) -> RowFigure {
    RowFigure::Rate(DeviceLoad::Program(work))
}

const fn row(name: &'static str, way: WayOfUse, figure: RowFigure) -> ComparisonRow {
    ComparisonRow { name, way, figure }
}

/// Those of one way stand together, in the order in which they are measured: memory that nothing has used yet comes
/// first.
pub const ALL: [ComparisonRow; 33] = [
    row("memory-shared", WayOfUse::Nbd, RowFigure::Value(StartGauge::SharedMemory)),
    row("memory-attached-exporter", WayOfUse::Nbd, RowFigure::Value(StartGauge::AttachedMemory(MeasuredEnd::Exporter))),
    row("memory-attached-importer", WayOfUse::Nbd, RowFigure::Value(StartGauge::AttachedMemory(MeasuredEnd::Importer))),
    row("attach-nbd", WayOfUse::Nbd, RowFigure::Value(StartGauge::AttachTime)),
    row("nbd-read-128k", WayOfUse::Nbd, read(128 * KIB, 1, false)),
    row("nbd-read-1m", WayOfUse::Nbd, read(MIB, 1, false)),
    row("nbd-read-128k-random", WayOfUse::Nbd, read(128 * KIB, 1, true)),
    row("nbd-read-128k-x32", WayOfUse::Nbd, read(128 * KIB, 32, false)),
    row("nbd-write-128k", WayOfUse::Nbd, write(128 * KIB, 1, false)),
    row("nbd-write-1m", WayOfUse::Nbd, write(MIB, 1, false)),
    row("nbd-read-4k", WayOfUse::Nbd, read(4 * KIB, 1, true)),
    row("nbd-read-4k-x32", WayOfUse::Nbd, read(4 * KIB, 32, true)),
    row("nbd-write-4k-x32", WayOfUse::Nbd, write(4 * KIB, 32, true)),
    row("memory-busy-exporter", WayOfUse::Nbd, RowFigure::Value(StartGauge::BusyMemory(MeasuredEnd::Exporter))),
    row("memory-busy-importer", WayOfUse::Nbd, RowFigure::Value(StartGauge::BusyMemory(MeasuredEnd::Importer))),
    row("attach-quic", WayOfUse::Quic, RowFigure::Value(StartGauge::AttachTime)),
    row("quic-read-128k", WayOfUse::Quic, read(128 * KIB, 1, false)),
    row("quic-write-1m", WayOfUse::Quic, write(MIB, 1, false)),
    row("quic-read-4k", WayOfUse::Quic, read(4 * KIB, 1, true)),
    row("quic-read-4k-x32", WayOfUse::Quic, read(4 * KIB, 32, true)),
    row("fuse-read-128k", WayOfUse::Fuse, read(128 * KIB, 1, false)),
    row("fuse-read-1m", WayOfUse::Fuse, read(MIB, 1, false)),
    row("fuse-write-128k", WayOfUse::Fuse, write(128 * KIB, 1, false)),
    row("fuse-read-4k", WayOfUse::Fuse, read(4 * KIB, 1, true)),
    row("uas-read-128k", WayOfUse::Uas, read(128 * KIB, 1, false)),
    row("uas-write-128k", WayOfUse::Uas, write(128 * KIB, 1, false)),
    row("uas-read-4k", WayOfUse::Uas, read(4 * KIB, 1, true)),
    row("attach-run", WayOfUse::Run, RowFigure::Value(StartGauge::AttachTime)),
    row("run-control", WayOfUse::Run, program(UsbfsWorkload::Control)),
    row("run-in-64", WayOfUse::Run, program(UsbfsWorkload::Bulk(UsbipDirection::In, 64, 1))),
    row("run-in-4k-x32", WayOfUse::Run, program(UsbfsWorkload::Bulk(UsbipDirection::In, 4 * KIB, 32))),
    row("run-in-128k-x32", WayOfUse::Run, program(UsbfsWorkload::Bulk(UsbipDirection::In, 128 * KIB, 32))),
    row("run-out-128k-x32", WayOfUse::Run, program(UsbfsWorkload::Bulk(UsbipDirection::Out, 128 * KIB, 32))),
];

/// The rows that these words name, all of them without a word.
///
/// # Errors
/// The word that names none.
pub fn named(words: &[String]) -> Result<Vec<&'static ComparisonRow>, String> {
    if let Some(unknown) = words.iter().find(|word| !ALL.iter().any(|row| row.is_named(word))) {
        let names: Vec<&str> = ALL.iter().map(|row| row.name).collect();
        return Err(format!("there is no row {unknown}; there are: {}", names.join(", ")));
    }
    let is_asked_for = |row: &&ComparisonRow| words.is_empty() || words.iter().any(|word| row.is_named(word));
    Ok(ALL.iter().filter(is_asked_for).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(words: &[&str]) -> Result<Vec<&'static str>, String> {
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        Ok(named(&words)?.into_iter().map(|row| row.name).collect())
    }

    #[test]
    fn a_word_names_a_row_or_all_that_begin_with_it_and_a_hyphen() {
        assert_eq!(names(&[]).map(|names| names.len()), Ok(ALL.len()));
        assert_eq!(names(&["nbd-write"]), Ok(vec!["nbd-write-128k", "nbd-write-1m", "nbd-write-4k-x32"]));
        assert_eq!(names(&["uas-read-4k", "quic-write"]), Ok(vec!["quic-write-1m", "uas-read-4k"]));
        let refusal = names(&["nb"]).unwrap_err();
        assert!(refusal.starts_with("there is no row nb; there are: memory-shared, "), "{refusal}");
    }

    #[test]
    fn rows_have_names_of_their_own_and_those_of_one_way_stand_together() {
        let mut names: Vec<_> = ALL.iter().map(|row| row.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), ALL.len());
        let mut ways: Vec<_> = ALL.iter().map(|row| row.way).collect();
        ways.dedup();
        assert_eq!(ways, WayOfUse::ALL);
    }

    #[test]
    fn small_requests_are_counted_and_large_ones_weighed() {
        let unit = |name| ALL.iter().find(|row| row.name == name).map(ComparisonRow::unit);
        assert_eq!(["nbd-read-4k-x32", "nbd-read-1m"].map(unit), [Some("k/s"), Some("MB/s")]);
        assert_eq!(["run-control", "run-in-128k-x32"].map(unit), [Some("k/s"), Some("MB/s")]);
        assert_eq!(["attach-nbd", "memory-shared"].map(unit), [Some("ms"), Some("MiB")]);
    }
}
