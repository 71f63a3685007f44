//! "Real Embedded USB Host Performance" (2008): its Table 1 to the digit, and its mass-storage overheads. E1 and E2.

use farbus_realtime::bandwidth::{bulk_only, bulk_only_table, table};
use farbus_realtime::{BusSpeed, TransferKind};

/// Payload, bandwidth, share, transfers, remaining, useful; kilobytes a second as the paper has them. Its 351 in the
/// last column of the 4-byte row is a misprint (88 x 4 = 352, and its own bandwidth column says so); its payload "KB"
/// are bytes.
const TABLE_1: [(u32, u64, u32, u32, u32, u32); 7] = [
    (1, 107, 1, 107, 2, 107),
    (2, 200, 1, 100, 0, 200),
    (4, 352, 1, 88, 4, 352),
    (8, 568, 1, 71, 9, 568),
    (16, 816, 2, 51, 21, 816),
    (32, 1056, 3, 33, 15, 1056),
    (64, 1216, 5, 19, 37, 1216),
];

#[test]
fn table_1_to_the_digit() {
    let table = table(BusSpeed::Full, TransferKind::Bulk).unwrap();
    assert_eq!(table.rows.len(), TABLE_1.len());
    for (row, (payload, kb_per_s, percent, transfers, remaining, useful)) in table.rows.iter().zip(TABLE_1) {
        assert_eq!(row.data_payload_bytes, payload);
        assert_eq!(row.bandwidth_bytes_per_s_max, kb_per_s * 1000);
        assert_eq!(row.interval_share_percent, percent);
        assert_eq!(row.transfers_per_interval_max, transfers);
        assert_eq!(row.remaining_bytes, remaining);
        assert_eq!(row.useful_bytes_per_interval, useful);
    }
    assert!(table.notes.iter().any(|note| note.contains("351") && note.contains("352")), "the misprint is told");
}

#[test]
fn bulk_only_costs_half_a_percent_at_8_kilobytes_and_8_6_percent_at_a_sector() {
    let percent = |block_bytes| format!("{:.1}", f64::from(bulk_only(block_bytes).overhead_ppm) / 10_000.0);
    assert_eq!(percent(8192), "0.5");
    assert_eq!(percent(512), "8.6");
    assert_eq!(bulk_only(512).wrapper_bytes, 31 + 13);
}

#[test]
fn larger_blocks_cost_less_and_carry_more() {
    let rows = bulk_only_table();
    assert_eq!(rows.len(), 12);
    for pair in rows.windows(2) {
        assert_eq!(pair[1].block_bytes, 2 * pair[0].block_bytes);
        assert!(pair[1].overhead_ppm < pair[0].overhead_ppm);
        assert!(pair[1].full_speed_bytes_per_s_max > pair[0].full_speed_bytes_per_s_max);
        assert!(pair[1].high_speed_bytes_per_s_max >= pair[0].high_speed_bytes_per_s_max);
    }
}

/// Mass storage never beats the bulk table's last row: "less than 1.25 MB/s", as the paper says of full speed.
#[test]
fn ceilings_stay_below_bare_bulk() {
    let bare = |speed| table(speed, TransferKind::Bulk).unwrap().rows.last().unwrap().bandwidth_bytes_per_s_max;
    for row in bulk_only_table() {
        assert!(row.full_speed_bytes_per_s_max < bare(BusSpeed::Full), "{row:?}");
        assert!(row.high_speed_bytes_per_s_max < bare(BusSpeed::High), "{row:?}");
    }
}
