//! Bandwidth of the bus: a table for each transfer type at each speed, in the manner of the USB 2.0 specification's
//! chapter 5, and the same for mass storage.
//!
//! A table answers one question: if a (micro)frame held only transfers of this kind and size, how many would fit, and
//! how much data would they carry? From low to high speed the specification prints the answers (Tables 5-1 to 5-10),
//! and this module computes them from the overheads in `usb2`. At SuperSpeed it prints none, and `usb3` states the
//! assumptions.

mod bulk_only;
mod table;
mod usb2;
pub(crate) mod usb3;

use crate::bus::{BusSpeed, TransferKind};

pub use bulk_only::{
    BULK_ONLY_BLOCKS_BYTES, BulkOnlyRow, COMMAND_WRAPPER_BYTES, STATUS_WRAPPER_BYTES, bulk_only, bulk_only_table,
};
pub use table::{BandwidthRow, BandwidthTable, OverheadPart, TransferOverhead, UnsupportedTransferType};

/// The assumptions of all tables.
pub const ASSUMPTIONS: &[&str] = &[
    "the interval carries nothing but transfers of that one kind and size, none is retried, and no device is slow to answer",
    "stuffed bits, start-of-frame packets and the time of hubs are left out, as in the USB 2.0 specification's tables",
    "the share of periodic transfers is not capped here (USB 2.0 allows them 90 % of a frame and 80 % of a microframe, USB 3.2 90 %)",
    "SuperSpeed: the busier direction of the link is counted, every data packet is acknowledged (isochronous ones are not), \
     packets follow each other without a gap, and the link's own skip sets and timestamp packets are taken off first",
];

/// The bandwidth table of `kind` at `speed`, or why there is none.
pub fn table(speed: BusSpeed, kind: TransferKind) -> Result<BandwidthTable, UnsupportedTransferType> {
    let plan = match speed {
        BusSpeed::Low => usb2::low_speed(kind)?,
        BusSpeed::Full => usb2::full_speed(kind),
        BusSpeed::High => usb2::high_speed(kind),
        BusSpeed::Super => usb3::super_speed(kind),
    };
    Ok(plan.fill(speed, kind))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_combination_is_a_table_or_a_reason() {
        for speed in BusSpeed::ALL {
            for kind in TransferKind::ALL {
                match table(speed, kind) {
                    Ok(table) => {
                        assert!(!table.rows.is_empty() && !table.clause.is_empty(), "{speed:?} {kind:?}");
                        assert_eq!((table.speed, table.kind), (speed, kind));
                    }
                    Err(absence) => {
                        assert_eq!((absence.speed, absence.kind), (speed, kind));
                        assert!(!absence.reason.is_empty() && !absence.clause.is_empty());
                    }
                }
            }
        }
    }

    #[test]
    fn only_low_speed_lacks_transfer_types() {
        let absent: Vec<_> = BusSpeed::ALL
            .into_iter()
            .flat_map(|speed| TransferKind::ALL.map(|kind| (speed, kind)))
            .filter(|&(speed, kind)| table(speed, kind).is_err())
            .collect();
        assert_eq!(absent, [(BusSpeed::Low, TransferKind::Isochronous), (BusSpeed::Low, TransferKind::Bulk)]);
    }

    #[test]
    fn every_row_adds_up() {
        for speed in BusSpeed::ALL {
            for kind in TransferKind::ALL {
                let Ok(table) = table(speed, kind) else { continue };
                for row in &table.rows {
                    let used = row.transfers_per_interval_max * row.transfer_bytes;
                    assert_eq!(used + row.remaining_bytes, table.interval.usable_bytes, "{speed:?} {kind:?} {row:?}");
                    assert!(row.remaining_bytes < row.transfer_bytes, "one more would fit: {row:?}");
                    assert_eq!(row.useful_bytes_per_interval, row.transfers_per_interval_max * row.data_payload_bytes);
                    assert!(row.bandwidth_bytes_per_s_max < speed.raw_bytes_per_s());
                }
                assert!(table.rows.is_sorted_by_key(|row| row.data_payload_bytes));
            }
        }
    }
}
