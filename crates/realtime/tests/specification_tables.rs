//! The tables of the USB 2.0 specification, as printed, compared with the computed ones.
//!
//! Each line is: payload, bandwidth a second, share of the (micro)frame in percent, transfers, bytes remaining, useful
//! bytes a (micro)frame. Where the print contradicts its own arithmetic, the line has the right number and a comment
//! says so.

use farbus_realtime::bandwidth::{BandwidthTable, table};
use farbus_realtime::{BusSpeed, IntervalKind, TransferKind};

type Line = (u32, u64, u32, u32, u32, u32);

fn lines(table: &BandwidthTable) -> Vec<Line> {
    table
        .rows
        .iter()
        .map(|row| {
            (
                row.data_payload_bytes,
                row.bandwidth_bytes_per_s_max,
                row.interval_share_percent,
                row.transfers_per_interval_max,
                row.remaining_bytes,
                row.useful_bytes_per_interval,
            )
        })
        .collect()
}

#[track_caller]
fn assert_prints(speed: BusSpeed, kind: TransferKind, number: &str, overhead_bytes: u32, printed: &[Line]) {
    let table = table(speed, kind).unwrap();
    assert!(table.clause.ends_with(number), "{}", table.clause);
    assert_eq!(table.overhead.total_bytes, overhead_bytes);
    assert_eq!(lines(&table), printed);
}

/// Three eight-byte transfers a frame, as 5.5.4 grants. The caption's overhead is 63; `usb2` says why this is 48.
#[test]
fn table_5_1_low_speed_control() {
    assert_prints(
        BusSpeed::Low,
        TransferKind::Control,
        "Table 5-1",
        48,
        &[(1, 3000, 26, 3, 40, 3), (2, 6000, 27, 3, 37, 6), (4, 12000, 28, 3, 31, 12), (8, 24000, 30, 3, 19, 24)],
    );
}

/// The print has 23 bytes remaining in the first row.
#[test]
fn table_5_2_full_speed_control() {
    assert_prints(
        BusSpeed::Full,
        TransferKind::Control,
        "Table 5-2",
        45,
        &[
            (1, 32000, 3, 32, 28, 32),
            (2, 62000, 3, 31, 43, 62),
            (4, 120000, 3, 30, 30, 120),
            (8, 224000, 4, 28, 16, 224),
            (16, 384000, 4, 24, 36, 384),
            (32, 608000, 5, 19, 37, 608),
            (64, 832000, 7, 13, 83, 832),
        ],
    );
}

#[test]
fn table_5_3_high_speed_control() {
    assert_prints(
        BusSpeed::High,
        TransferKind::Control,
        "Table 5-3",
        173,
        &[
            (1, 344000, 2, 43, 18, 43),
            (2, 672000, 2, 42, 150, 84),
            (4, 1344000, 2, 42, 66, 168),
            (8, 2624000, 2, 41, 79, 328),
            (16, 4992000, 3, 39, 129, 624),
            (32, 9216000, 3, 36, 120, 1152),
            (64, 15872000, 3, 31, 153, 1984),
        ],
    );
}

#[test]
fn table_5_4_full_speed_isochronous() {
    assert_prints(
        BusSpeed::Full,
        TransferKind::Isochronous,
        "Table 5-4",
        9,
        &[
            (1, 150000, 1, 150, 0, 150),
            (2, 272000, 1, 136, 4, 272),
            (4, 460000, 1, 115, 5, 460),
            (8, 704000, 1, 88, 4, 704),
            (16, 960000, 2, 60, 0, 960),
            (32, 1152000, 3, 36, 24, 1152),
            (64, 1280000, 5, 20, 40, 1280),
            (128, 1280000, 9, 10, 130, 1280),
            (256, 1280000, 18, 5, 175, 1280),
            (512, 1024000, 35, 2, 458, 1024),
            (1023, 1023000, 69, 1, 468, 1023),
        ],
    );
}

#[test]
fn table_5_5_high_speed_isochronous() {
    assert_prints(
        BusSpeed::High,
        TransferKind::Isochronous,
        "Table 5-5",
        38,
        &[
            (1, 1536000, 1, 192, 12, 192),
            (2, 2992000, 1, 187, 20, 374),
            (4, 5696000, 1, 178, 24, 712),
            (8, 10432000, 1, 163, 2, 1304),
            (16, 17664000, 1, 138, 48, 2208),
            (32, 27392000, 1, 107, 10, 3424),
            (64, 37376000, 1, 73, 54, 4672),
            (128, 46080000, 2, 45, 30, 5760),
            (256, 51200000, 4, 25, 150, 6400),
            (512, 53248000, 7, 13, 350, 6656),
            (1024, 57344000, 14, 7, 66, 7168),
            (2048, 49152000, 28, 3, 1242, 6144),
            (3072, 49152000, 41, 2, 1280, 6144),
        ],
    );
}

#[test]
fn table_5_6_low_speed_interrupt() {
    assert_prints(
        BusSpeed::Low,
        TransferKind::Interrupt,
        "Table 5-6",
        19,
        &[(1, 9000, 11, 9, 7, 9), (2, 16000, 11, 8, 19, 16), (4, 32000, 12, 8, 3, 32), (8, 48000, 14, 6, 25, 48)],
    );
}

const FULL_SPEED_ACKNOWLEDGED: &[Line] = &[
    (1, 107000, 1, 107, 2, 107),
    (2, 200000, 1, 100, 0, 200),
    (4, 352000, 1, 88, 4, 352),
    (8, 568000, 1, 71, 9, 568),
    (16, 816000, 2, 51, 21, 816),
    (32, 1056000, 3, 33, 15, 1056),
    (64, 1216000, 5, 19, 37, 1216),
];

#[test]
fn table_5_7_full_speed_interrupt() {
    assert_prints(BusSpeed::Full, TransferKind::Interrupt, "Table 5-7", 13, FULL_SPEED_ACKNOWLEDGED);
}

const HIGH_SPEED_ACKNOWLEDGED: &[Line] = &[
    (1, 1064000, 1, 133, 52, 133),
    (2, 2096000, 1, 131, 33, 262),
    (4, 4064000, 1, 127, 7, 508),
    (8, 7616000, 1, 119, 3, 952),
    (16, 13440000, 1, 105, 45, 1680),
    (32, 22016000, 1, 86, 18, 2752),
    (64, 32256000, 2, 63, 3, 4032),
    (128, 40960000, 2, 40, 180, 5120),
    (256, 49152000, 4, 24, 36, 6144),
    (512, 53248000, 8, 13, 129, 6656),
];

#[test]
fn table_5_8_high_speed_interrupt() {
    let large =
        [(1024, 49152000, 14, 6, 1026, 6144), (2048, 49152000, 28, 3, 1191, 6144), (3072, 49152000, 42, 2, 1246, 6144)];
    let printed = [HIGH_SPEED_ACKNOWLEDGED, &large].concat();
    assert_prints(BusSpeed::High, TransferKind::Interrupt, "Table 5-8", 55, &printed);
}

#[test]
fn table_5_9_full_speed_bulk() {
    assert_prints(BusSpeed::Full, TransferKind::Bulk, "Table 5-9", 13, FULL_SPEED_ACKNOWLEDGED);
}

#[test]
fn table_5_10_high_speed_bulk() {
    assert_prints(BusSpeed::High, TransferKind::Bulk, "Table 5-10", 55, HIGH_SPEED_ACKNOWLEDGED);
}

/// The clauses also state ceilings in words: "fewer than" so many of one size in a (micro)frame.
#[test]
fn the_ceilings_in_the_text_hold() {
    let most = |speed, kind, payload_bytes| {
        let table = table(speed, kind).unwrap();
        table.rows.iter().find(|row| row.data_payload_bytes == payload_bytes).unwrap().transfers_per_interval_max
    };
    assert_eq!(most(BusSpeed::Full, TransferKind::Control, 8) + 1, 29, "5.5.4");
    assert_eq!(most(BusSpeed::Low, TransferKind::Control, 8) + 1, 4, "5.5.4");
    assert_eq!(most(BusSpeed::High, TransferKind::Control, 64) + 1, 32, "5.5.4");
    assert_eq!(most(BusSpeed::Full, TransferKind::Bulk, 8) + 1, 72, "5.8.4");
    assert_eq!(most(BusSpeed::High, TransferKind::Bulk, 512) + 1, 14, "5.8.4");
}

#[test]
fn intervals_have_their_names() {
    let kind = |speed: BusSpeed| speed.interval().kind;
    assert_eq!(kind(BusSpeed::Low), IntervalKind::Frame);
    assert_eq!(kind(BusSpeed::Full), IntervalKind::Frame);
    assert_eq!(kind(BusSpeed::High), IntervalKind::Microframe);
    assert_eq!(kind(BusSpeed::Super), IntervalKind::BusInterval);
}

#[test]
fn low_speed_says_why_it_has_no_bulk_and_no_isochronous() {
    let bulk = table(BusSpeed::Low, TransferKind::Bulk).unwrap_err();
    assert_eq!(bulk.clause, "USB 2.0 5.8.3");
    let isochronous = table(BusSpeed::Low, TransferKind::Isochronous).unwrap_err();
    assert_eq!(isochronous.clause, "USB 2.0 5.6");
    assert!(isochronous.reason.contains("187 bytes"));
}

#[test]
fn overheads_are_explained_part_by_part() {
    for speed in BusSpeed::ALL {
        for kind in TransferKind::ALL {
            let Ok(table) = table(speed, kind) else { continue };
            let sum: u32 = table.overhead.parts.iter().map(|part| part.bytes).sum();
            assert_eq!(sum, table.overhead.total_bytes, "{speed:?} {kind:?}");
        }
    }
}
