//! Mass storage over Bulk-Only transport: the cost of the command and the status around each block.
//!
//! A command is a 31-byte wrapper out, the data, and a 13-byte wrapper back (Bulk-Only Transport 1.0, 5.1 and 5.2),
//! each in bulk packets of its own. The overhead of a block is those 44 bytes relative to its size. The ceiling is more
//! exact: it places the packets of command after command into (micro)frames, where a packet that no longer fits waits
//! for the next one, until the pattern repeats, and computes the rate of one repetition.

use super::usb2;
use crate::bus::{BusSpeed, TransferKind};

/// Bytes of a command block wrapper (Bulk-Only Transport 1.0, Table 5.1).
pub const COMMAND_WRAPPER_BYTES: u32 = 31;
/// Bytes of a command status wrapper (Bulk-Only Transport 1.0, Table 5.2).
pub const STATUS_WRAPPER_BYTES: u32 = 13;

/// The block sizes of [`bulk_only_table`]: 512 bytes, a sector, to 1 MiB, by powers of two.
pub const BULK_ONLY_BLOCKS_BYTES: [u32; 12] = {
    let mut blocks = [512; 12];
    let mut at = 1;
    while at < blocks.len() {
        blocks[at] = blocks[at - 1] * 2;
        at += 1;
    }
    blocks
};

/// The overhead and the ceilings of Bulk-Only transport for one block size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BulkOnlyRow {
    /// Data of one command.
    pub block_bytes: u32,
    /// Bytes of command and status around it.
    pub wrapper_bytes: u32,
    /// The wrapper bytes in parts per million of the block, to the nearest: 5371 is the paper's 0.5 %.
    pub overhead_ppm: u32,
    /// Data each second on a full-speed bus that carries nothing else, if the device never makes the host wait.
    pub full_speed_bytes_per_s_max: u64,
    /// Data each second on a high-speed bus that carries nothing else.
    pub high_speed_bytes_per_s_max: u64,
}

/// Overhead and ceilings of commands that move `block_bytes` each.
///
/// # Panics
/// If `block_bytes` is zero: without data there is no overhead ratio.
pub fn bulk_only(block_bytes: u32) -> BulkOnlyRow {
    assert!(block_bytes > 0, "a block has at least one byte");
    let wrapper_bytes = COMMAND_WRAPPER_BYTES + STATUS_WRAPPER_BYTES;
    BulkOnlyRow {
        block_bytes,
        wrapper_bytes,
        overhead_ppm: ppm_nearest(wrapper_bytes, block_bytes),
        full_speed_bytes_per_s_max: ceiling(BusSpeed::Full, block_bytes),
        high_speed_bytes_per_s_max: ceiling(BusSpeed::High, block_bytes),
    }
}

/// [`bulk_only`] for each of [`BULK_ONLY_BLOCKS_BYTES`].
pub fn bulk_only_table() -> Vec<BulkOnlyRow> {
    BULK_ONLY_BLOCKS_BYTES.map(bulk_only).into()
}

fn ppm_nearest(part: u32, whole: u32) -> u32 {
    let (part, whole) = (u64::from(part), u64::from(whole));
    ((part * 1_000_000 + whole / 2) / whole) as u32
}

/// Bytes of data each second when commands follow each other without a pause.
fn ceiling(speed: BusSpeed, block_bytes: u32) -> u64 {
    let plan = match speed {
        BusSpeed::Full => usb2::full_speed(TransferKind::Bulk),
        BusSpeed::High => usb2::high_speed(TransferKind::Bulk),
        BusSpeed::Low | BusSpeed::Super => unreachable!("only the two speeds of BulkOnlyRow are asked for"),
    };
    let overhead_bytes = plan.overhead.total_bytes;
    // The largest payload of the table is the largest packet.
    let packet_bytes = plan.payloads_bytes[plan.payloads_bytes.len() - 1];
    let interval = speed.interval();
    let mut bus = FrameFiller { interval_bytes: interval.usable_bytes, used_bytes: 0, intervals: 0 };

    // The next command depends only on how full the interval was when this one began, so the first repeated fill closes
    // the pattern.
    let mut seen = vec![None; interval.usable_bytes as usize + 1];
    for commands in 0u64.. {
        if let Some((commands_before, intervals_before)) = seen[bus.used_bytes as usize] {
            let data_bytes = (commands - commands_before) * u64::from(block_bytes);
            return data_bytes * interval.per_s() / (bus.intervals - intervals_before);
        }
        seen[bus.used_bytes as usize] = Some((commands, bus.intervals));
        bus.place(1, overhead_bytes + COMMAND_WRAPPER_BYTES);
        bus.place(block_bytes / packet_bytes, overhead_bytes + packet_bytes);
        if !block_bytes.is_multiple_of(packet_bytes) {
            bus.place(1, overhead_bytes + block_bytes % packet_bytes);
        }
        bus.place(1, overhead_bytes + STATUS_WRAPPER_BYTES);
    }
    unreachable!("there are fewer fills than commands can be counted")
}

/// (Micro)frames being filled one transaction after another.
struct FrameFiller {
    interval_bytes: u32,
    used_bytes: u32,
    intervals: u64,
}

impl FrameFiller {
    /// Places `count` transactions of one size; one that does not fit starts the next interval.
    fn place(&mut self, count: u32, transaction_bytes: u32) {
        let here = count.min((self.interval_bytes - self.used_bytes) / transaction_bytes);
        self.used_bytes += here * transaction_bytes;
        let later = count - here;
        if later > 0 {
            let per_interval = self.interval_bytes / transaction_bytes;
            let passed = (later - 1) / per_interval;
            self.intervals += u64::from(passed) + 1;
            self.used_bytes = (later - passed * per_interval) * transaction_bytes;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placing_many_is_placing_one_many_times() {
        for count in [0, 1, 2, 18, 19, 20, 38, 39, 57, 1000] {
            for used_bytes in [0, 1, 36, 37, 38, 1423, 1424, 1500] {
                let start = || FrameFiller { interval_bytes: 1500, used_bytes, intervals: 0 };
                let (mut at_once, mut one_by_one) = (start(), start());
                at_once.place(count, 77);
                (0..count).for_each(|_| one_by_one.place(1, 77));
                assert_eq!(at_once.used_bytes, one_by_one.used_bytes, "{count} from {used_bytes}");
                assert_eq!(at_once.intervals, one_by_one.intervals, "{count} from {used_bytes}");
            }
        }
    }

    #[test]
    fn blocks_run_from_a_sector_to_a_mebibyte() {
        assert_eq!(BULK_ONLY_BLOCKS_BYTES[0], 512);
        assert_eq!(BULK_ONLY_BLOCKS_BYTES[11], 1024 * 1024);
    }

    /// A command of 512 bytes at full speed is 44 + 8 x 77 + 26 = 686 bytes: two fit into the first frame with 128
    /// left, which take the third one's wrapper and one data packet, and so on. This test places packet by packet, for
    /// four seconds.
    #[test]
    fn the_ceiling_is_the_rate_of_a_long_run() {
        for (speed, overhead_bytes, packet_bytes) in [(BusSpeed::Full, 13, 64), (BusSpeed::High, 55, 512)] {
            for block_bytes in [512, 513, 4096, 65_536] {
                let intervals_max = 4 * speed.interval().per_s();
                let (mut used, mut intervals, mut data_bytes) = (0, 0u64, 0u64);
                while intervals < intervals_max {
                    let mut packets = vec![31];
                    packets.extend(std::iter::repeat_n(packet_bytes, (block_bytes / packet_bytes) as usize));
                    packets.extend((block_bytes % packet_bytes != 0).then_some(block_bytes % packet_bytes));
                    packets.push(13);
                    for packet in packets {
                        if used + packet + overhead_bytes > speed.interval().usable_bytes {
                            (used, intervals) = (0, intervals + 1);
                        }
                        used += packet + overhead_bytes;
                    }
                    data_bytes += u64::from(block_bytes);
                }
                let measured = data_bytes * speed.interval().per_s() / intervals;
                let derived = ceiling(speed, block_bytes);
                assert!(measured.abs_diff(derived) * 1000 < derived, "{speed:?} {block_bytes}: {measured} {derived}");
            }
        }
    }

    #[test]
    #[should_panic(expected = "at least one byte")]
    fn an_empty_block_is_refused() {
        bulk_only(0);
    }
}
