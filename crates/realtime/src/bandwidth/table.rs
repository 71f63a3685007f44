//! The structure of a bandwidth table, and how a row is computed, for every specification.

use crate::bus::{BusSpeed, IntervalCapacity, TransferKind};

/// The bandwidth of one transfer type at one speed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BandwidthTable {
    /// The speed of the bus.
    pub speed: BusSpeed,
    /// The transfer type.
    pub kind: TransferKind,
    /// The clause of the specification: revision, clause, and table if it prints one.
    pub clause: &'static str,
    /// The interval that is filled.
    pub interval: IntervalCapacity,
    /// The bytes of one transfer besides its data.
    pub overhead: TransferOverhead,
    /// One row per payload, smallest first.
    pub rows: Vec<BandwidthRow>,
    /// Where a published table differs from its own arithmetic, or a row needs an explanation: a sentence or two each.
    pub notes: &'static [&'static str],
}

/// A transfer type that does not exist at a speed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnsupportedTransferType {
    /// The speed of the bus.
    pub speed: BusSpeed,
    /// The transfer type that does not exist.
    pub kind: TransferKind,
    /// The clause of the specification.
    pub clause: &'static str,
    /// Why, in a sentence.
    pub reason: &'static str,
}

/// How much of a size fits into one (micro)frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BandwidthRow {
    /// Data in one transfer.
    pub data_payload_bytes: u32,
    /// Data each second if every interval is filled with such transfers.
    pub bandwidth_bytes_per_s_max: u64,
    /// Byte-times of one transfer, overhead included.
    pub transfer_bytes: u32,
    /// The share of an interval that one transfer takes, rounded to the nearest percent as in the specification.
    pub interval_share_percent: u32,
    /// Whole transfers that fit into an interval.
    pub transfers_per_interval_max: u32,
    /// Byte-times left over after the whole transfers.
    pub remaining_bytes: u32,
    /// Data carried in an interval.
    pub useful_bytes_per_interval: u32,
}

/// The bytes of one transfer besides its data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransferOverhead {
    /// All overhead of one transfer, in byte-times.
    pub total_bytes: u32,
    /// The parts, which add up to the sum.
    pub parts: Vec<OverheadPart>,
}

/// One part of an overhead, in the words of the specification's captions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OverheadPart {
    /// What the bytes are for, in the words of the caption.
    pub name: &'static str,
    /// Its bytes per transfer.
    pub bytes: u32,
}

impl TransferOverhead {
    pub(super) fn of(parts: impl IntoIterator<Item = (&'static str, u32)>) -> Self {
        let parts: Vec<_> = parts
            .into_iter()
            .filter(|&(_, bytes)| bytes > 0)
            .map(|(name, bytes)| OverheadPart { name, bytes })
            .collect();
        TransferOverhead { total_bytes: parts.iter().map(|part| part.bytes).sum(), parts }
    }
}

/// The parameters of a table.
pub(super) struct BandwidthTableParameters {
    pub clause: &'static str,
    pub overhead: TransferOverhead,
    pub payloads_bytes: &'static [u32],
    /// Byte-times of one transfer, given its payload.
    pub transfer_bytes: fn(&TransferOverhead, u32) -> u32,
    pub notes: &'static [&'static str],
}

impl BandwidthTableParameters {
    pub(super) fn fill(self, speed: BusSpeed, kind: TransferKind) -> BandwidthTable {
        let interval = speed.interval();
        let rows = self
            .payloads_bytes
            .iter()
            .map(|&payload_bytes| fill(interval, payload_bytes, (self.transfer_bytes)(&self.overhead, payload_bytes)))
            .collect();
        BandwidthTable { speed, kind, clause: self.clause, interval, overhead: self.overhead, rows, notes: self.notes }
    }
}

/// Fills an interval with transfers of `data_payload_bytes` that take `transfer_bytes` each.
fn fill(interval: IntervalCapacity, data_payload_bytes: u32, transfer_bytes: u32) -> BandwidthRow {
    let transfers_per_interval_max = interval.usable_bytes / transfer_bytes;
    let useful_bytes_per_interval = transfers_per_interval_max * data_payload_bytes;
    BandwidthRow {
        data_payload_bytes,
        bandwidth_bytes_per_s_max: u64::from(useful_bytes_per_interval) * interval.per_s(),
        transfer_bytes,
        interval_share_percent: percent_nearest(transfer_bytes, interval.usable_bytes),
        transfers_per_interval_max,
        remaining_bytes: interval.usable_bytes - transfers_per_interval_max * transfer_bytes,
        useful_bytes_per_interval,
    }
}

fn percent_nearest(part: u32, whole: u32) -> u32 {
    (part * 100 + whole / 2) / whole
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percents_round_to_the_nearest() {
        assert_eq!(percent_nearest(14, 1500), 1, "0.93");
        assert_eq!(percent_nearest(21, 1500), 1, "1.40");
        assert_eq!(percent_nearest(29, 1500), 2, "1.93");
        assert_eq!(percent_nearest(1, 200), 1, "a half goes up");
    }

    #[test]
    fn a_transfer_larger_than_the_interval_does_not_fit() {
        let row = fill(BusSpeed::Full.interval(), 1500, 1513);
        assert_eq!((row.transfers_per_interval_max, row.remaining_bytes), (0, 1500));
        assert_eq!(row.bandwidth_bytes_per_s_max, 0);
    }

    #[test]
    fn an_overhead_is_the_sum_of_its_parts_and_hides_the_empty_ones() {
        let overhead = TransferOverhead::of([("SYNC", 3), ("setup data", 0), ("PID", 2)]);
        assert_eq!(overhead.total_bytes, 5);
        assert_eq!(overhead.parts.len(), 2);
    }
}
