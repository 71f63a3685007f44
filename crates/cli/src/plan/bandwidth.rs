//! `farbus plan bandwidth`: what a bus can carry, before anything is plugged in.

use std::fmt::Write;

use farbus_realtime::bandwidth::{
    ASSUMPTIONS, BandwidthTable, BulkOnlyRow, UnsupportedTransferType, bulk_only_table, table,
};
use farbus_realtime::transfer::{BusDirection, PacketShape};
use farbus_realtime::{BusSpeed, IntervalKind, TransferKind};
use serde_json::{Value, json};

use super::super::output::{CommandFailure, print_json, say};
use super::layout::{thousandths, write_columns, write_wrapped};

/// Print the bandwidth of every transfer type at every speed, and of mass storage.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  farbus plan bandwidth                            every table\n  \
    farbus plan bandwidth --speed full --kind bulk   one of them\n  \
    farbus plan bandwidth --json | jq '.bulk_only[0]'")]
pub struct Args {
    /// Only this speed.
    #[arg(long, value_enum)]
    speed: Option<SpeedName>,
    /// Only this transfer type.
    #[arg(long, value_enum)]
    kind: Option<TransferTypeName>,
    /// Print JSON, for programs.
    #[arg(long)]
    pub json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum SpeedName {
    Low,
    Full,
    High,
    Super,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum TransferTypeName {
    Control,
    Isochronous,
    Interrupt,
    Bulk,
}

pub fn run(args: &Args) -> Result<(), CommandFailure> {
    let plan = BandwidthPlan::of(args.speed, args.kind);
    if args.json {
        return print_json(&plan.to_json());
    }
    say(plan.to_text().trim_end());
    Ok(())
}

/// The tables that were asked for.
struct BandwidthPlan {
    tables: Vec<Result<BandwidthTable, UnsupportedTransferType>>,
    bulk_only: Vec<BulkOnlyRow>,
    /// Of the speeds that were asked for, those with a mass storage table.
    bulk_only_speeds: Vec<BusSpeed>,
}

impl BandwidthPlan {
    fn of(speed: Option<SpeedName>, kind: Option<TransferTypeName>) -> Self {
        let speeds = BusSpeed::ALL.into_iter().filter(|&s| speed.is_none_or(|wanted| wanted == speed_name(s)));
        let kinds = TransferKind::ALL.into_iter().filter(|&k| kind.is_none_or(|wanted| wanted == kind_name(k)));
        let kinds: Vec<_> = kinds.collect();
        let tables = speeds.clone().flat_map(|speed| kinds.iter().map(move |&kind| table(speed, kind))).collect();
        let has_bulk = kinds.contains(&TransferKind::Bulk);
        let bulk_only_speeds: Vec<_> =
            speeds.filter(|speed| has_bulk && matches!(speed, BusSpeed::Full | BusSpeed::High)).collect();
        let bulk_only = if bulk_only_speeds.is_empty() { Vec::new() } else { bulk_only_table() };
        Self { tables, bulk_only, bulk_only_speeds }
    }

    fn to_text(&self) -> String {
        let mut text = String::new();
        for table in &self.tables {
            match table {
                Ok(table) => write_table(&mut text, table),
                Err(absence) => write_absence(&mut text, absence),
            }
            text.push('\n');
        }
        text.push_str("All tables take for granted:\n");
        for assumption in ASSUMPTIONS {
            write_wrapped(&mut text, "- ", assumption);
        }
        if !self.bulk_only.is_empty() {
            text.push('\n');
            self.write_bulk_only(&mut text);
        }
        text
    }

    fn write_bulk_only(&self, text: &mut String) {
        text.push_str("Bulk-Only mass storage: 31 bytes of command and 13 of status around every block\n\n");
        let ceiling_heads = self.bulk_only_speeds.iter().map(|&speed| match speed {
            BusSpeed::Full => ["full speed max", "bytes/s"],
            _ => ["high speed max", "bytes/s"],
        });
        let heads: Vec<_> = [["block", "bytes"], ["overhead", ""]].into_iter().chain(ceiling_heads).collect();
        let rows = self.bulk_only.iter().map(|row| {
            let ceilings = self.bulk_only_speeds.iter().map(|&speed| bulk_only_ceiling(row, speed).to_string());
            [row.block_bytes.to_string(), tenths_of_percent(row.overhead_ppm)].into_iter().chain(ceilings).collect()
        });
        write_columns(text, &heads, &rows.collect::<Vec<_>>());
    }

    fn to_json(&self) -> Value {
        let tables = self.tables.iter().flatten().map(table_to_json);
        let absent = self.tables.iter().filter_map(|table| table.as_ref().err()).map(absence_to_json);
        json!({
            "tables": tables.collect::<Vec<_>>(),
            "absent": absent.collect::<Vec<_>>(),
            "assumptions": ASSUMPTIONS,
            "bulk_only": self.bulk_only.iter().map(bulk_only_to_json).collect::<Vec<_>>(),
        })
    }
}

fn write_table(text: &mut String, table: &BandwidthTable) {
    let (title, interval) = (title(table.speed, table.kind), table.interval);
    let _ = writeln!(text, "{title} ({})", table.clause);
    let usable = match interval.usable_bytes {
        all if all == interval.raw_bytes => String::new(),
        some => format!(", {some} of them for transfers"),
    };
    let name = interval_title(interval.kind);
    let _ = writeln!(text, "{name} of {} us, {} bytes{usable}", interval.duration_us, interval.raw_bytes);
    let parts: Vec<_> = table.overhead.parts.iter().map(|part| format!("{} {}", part.bytes, part.name)).collect();
    let overhead = format!("{} bytes of overhead: {}", table.overhead.total_bytes, parts.join(", "));
    write_wrapped(text, "", &overhead);
    text.push('\n');
    let (the_interval, an_interval) = match interval.kind {
        IntervalKind::Frame => ("frame", "a frame"),
        IntervalKind::Microframe => ("microframe", "a microframe"),
        IntervalKind::BusInterval => ("interval", "an interval"),
    };
    let heads = [
        ["payload", "bytes"],
        ["bandwidth max", "bytes/s"],
        ["share of", the_interval],
        ["transfers", "max"],
        ["bytes", "remaining"],
        ["useful bytes", an_interval],
    ];
    let mut rows: Vec<Vec<String>> = table
        .rows
        .iter()
        .map(|row| {
            vec![
                row.data_payload_bytes.to_string(),
                row.bandwidth_bytes_per_s_max.to_string(),
                percent(row.interval_share_percent),
                row.transfers_per_interval_max.to_string(),
                row.remaining_bytes.to_string(),
                row.useful_bytes_per_interval.to_string(),
            ]
        })
        .collect();
    let [bare, raw] = [table.speed.raw_bytes_per_s(), interval.raw_bytes.into()].map(|bytes: u64| bytes.to_string());
    rows.push(vec!["max".into(), bare, String::new(), String::new(), String::new(), raw]);
    write_columns(text, &heads, &rows);
    for packet in longest_packets(table) {
        write_wrapped(text, "", &packet.to_sentence());
    }
    for note in table.notes {
        write_wrapped(text, "note: ", note);
    }
}

/// The longest packet of a table, and its time at the worst: stuffed bits, the hub and the host's delay included, which
/// the table leaves out.
struct LongestPacket {
    /// `None` if both directions take as long.
    direction: Option<BusDirection>,
    shape: PacketShape,
}

impl LongestPacket {
    fn to_sentence(&self) -> String {
        let (shape, bytes) = (&self.shape, self.shape.packet_bytes());
        let way = match self.direction {
            None => "",
            Some(BusDirection::In) => " in",
            Some(BusDirection::Out) => " out",
        };
        let equation_3 = thousandths(shape.packet_ps());
        match shape.speed() {
            BusSpeed::Super => {
                let wire = thousandths(shape.wire_ps());
                format!(
                    "packet of {bytes} bytes: {equation_3} ns by Equation 3 of the 2023 paper, {wire} ns on the wire"
                )
            }
            _ => format!("packet of {bytes} bytes{way}: {equation_3} ns at the worst (USB 2.0 5.11.3)"),
        }
    }

    fn to_json(&self) -> Value {
        json!({
            "direction": self.direction.map(|way| if way == BusDirection::In { "in" } else { "out" }),
            "bytes": self.shape.packet_bytes(),
            "packet_ps": self.shape.packet_ps(),
            "wire_ps": self.shape.wire_ps(),
        })
    }
}

/// The longest packet, or those of both directions if they differ.
fn longest_packets(table: &BandwidthTable) -> Vec<LongestPacket> {
    let longest = |direction| {
        let mut bytes = table.rows.iter().rev().map(|row| row.data_payload_bytes);
        bytes.find_map(|bytes| PacketShape::new(table.speed, table.kind, direction, bytes, 0, 0).ok())
    };
    match (longest(BusDirection::In), longest(BusDirection::Out)) {
        (Some(r#in), Some(out)) if r#in.packet_ps() != out.packet_ps() => {
            [(BusDirection::In, r#in), (BusDirection::Out, out)]
                .map(|(direction, shape)| LongestPacket { direction: Some(direction), shape })
                .into()
        }
        (shape, _) => shape.map(|shape| LongestPacket { direction: None, shape }).into_iter().collect(),
    }
}

fn write_absence(text: &mut String, absence: &UnsupportedTransferType) {
    let title = title(absence.speed, absence.kind);
    write_wrapped(text, "", &format!("{title}: does not exist ({}): {}", absence.clause, absence.reason));
}

fn table_to_json(table: &BandwidthTable) -> Value {
    let rows = table.rows.iter().map(|row| {
        json!({
            "data_payload_bytes": row.data_payload_bytes,
            "bandwidth_bytes_per_s_max": row.bandwidth_bytes_per_s_max,
            "transfer_bytes": row.transfer_bytes,
            "interval_share_percent": row.interval_share_percent,
            "transfers_per_interval_max": row.transfers_per_interval_max,
            "remaining_bytes": row.remaining_bytes,
            "useful_bytes_per_interval": row.useful_bytes_per_interval,
        })
    });
    let parts = table.overhead.parts.iter().map(|part| json!({"name": part.name, "bytes": part.bytes}));
    json!({
        "speed": word(&speed_name(table.speed)),
        "kind": word(&kind_name(table.kind)),
        "clause": table.clause,
        "interval": {
            "kind": interval_title(table.interval.kind),
            "duration_us": table.interval.duration_us,
            "raw_bytes": table.interval.raw_bytes,
            "usable_bytes": table.interval.usable_bytes,
        },
        "overhead": {"total_bytes": table.overhead.total_bytes, "parts": parts.collect::<Vec<_>>()},
        "rows": rows.collect::<Vec<_>>(),
        "longest_packets": longest_packets(table).iter().map(LongestPacket::to_json).collect::<Vec<_>>(),
        "raw_bytes_per_s": table.speed.raw_bytes_per_s(),
        "notes": table.notes,
    })
}

fn absence_to_json(absence: &UnsupportedTransferType) -> Value {
    json!({
        "speed": word(&speed_name(absence.speed)),
        "kind": word(&kind_name(absence.kind)),
        "clause": absence.clause,
        "reason": absence.reason,
    })
}

fn bulk_only_to_json(row: &BulkOnlyRow) -> Value {
    json!({
        "block_bytes": row.block_bytes,
        "wrapper_bytes": row.wrapper_bytes,
        "overhead_ppm": row.overhead_ppm,
        "full_speed_bytes_per_s_max": row.full_speed_bytes_per_s_max,
        "high_speed_bytes_per_s_max": row.high_speed_bytes_per_s_max,
    })
}

fn bulk_only_ceiling(row: &BulkOnlyRow, speed: BusSpeed) -> u64 {
    if speed == BusSpeed::Full { row.full_speed_bytes_per_s_max } else { row.high_speed_bytes_per_s_max }
}

/// `5%`; a value above 0 never appears as 0.
fn percent(percent: u32) -> String {
    if percent == 0 { "<1%".into() } else { format!("{percent}%") }
}

/// `8.6%` for 85938 parts per million.
fn tenths_of_percent(ppm: u32) -> String {
    let tenths = (ppm + 500) / 1000;
    if tenths == 0 { "<0.1%".into() } else { format!("{}.{}%", tenths / 10, tenths % 10) }
}

fn title(speed: BusSpeed, kind: TransferKind) -> String {
    format!("{}, {}", speed_title(speed), word(&kind_name(kind)))
}

fn speed_title(speed: BusSpeed) -> &'static str {
    match speed {
        BusSpeed::Low => "Low speed",
        BusSpeed::Full => "Full speed",
        BusSpeed::High => "High speed",
        BusSpeed::Super => "SuperSpeed",
    }
}

fn interval_title(kind: IntervalKind) -> &'static str {
    match kind {
        IntervalKind::Frame => "frame",
        IntervalKind::Microframe => "microframe",
        IntervalKind::BusInterval => "bus interval",
    }
}

fn speed_name(speed: BusSpeed) -> SpeedName {
    match speed {
        BusSpeed::Low => SpeedName::Low,
        BusSpeed::Full => SpeedName::Full,
        BusSpeed::High => SpeedName::High,
        BusSpeed::Super => SpeedName::Super,
    }
}

fn kind_name(kind: TransferKind) -> TransferTypeName {
    match kind {
        TransferKind::Control => TransferTypeName::Control,
        TransferKind::Isochronous => TransferTypeName::Isochronous,
        TransferKind::Interrupt => TransferTypeName::Interrupt,
        TransferKind::Bulk => TransferTypeName::Bulk,
    }
}

/// The word that is typed for a value.
fn word(name: &impl clap::ValueEnum) -> String {
    name.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::super::layout::LINE_COLUMNS;
    use super::*;

    /// Table 1 of "Real Embedded USB Host Performance" (2008), in bytes instead of kilobytes a second and with 352 for
    /// the misprinted 351, in the layout of `farbus plan bandwidth`.
    const TABLE_1: &str = "\
Full speed, bulk (USB 2.0 5.8.4, Table 5-9)
frame of 1000 us, 1500 bytes
13 bytes of overhead: 3 SYNC, 3 PID, 2 endpoint + CRC, 2 data CRC, 3 interpacket delay

  payload  bandwidth max  share of  transfers      bytes  useful bytes
    bytes        bytes/s     frame        max  remaining       a frame
        1         107000        1%        107          2           107
        2         200000        1%        100          0           200
        4         352000        1%         88          4           352
        8         568000        1%         71          9           568
       16         816000        2%         51         21           816
       32        1056000        3%         33         15          1056
       64        1216000        5%         19         37          1216
      max        1500000                                          1500
packet of 64 bytes: 59236.000 ns at the worst (USB 2.0 5.11.3)
note: ";

    #[test]
    fn the_full_speed_bulk_table_is_the_papers_table_1() {
        let plan = BandwidthPlan::of(Some(SpeedName::Full), Some(TransferTypeName::Bulk));
        let text = plan.to_text();
        assert!(text.starts_with(TABLE_1), "{text}");
        let json = plan.to_json();
        let rows = json["tables"][0]["rows"].as_array().unwrap();
        let column = |name: &str| rows.iter().map(|row| row[name].as_u64().unwrap()).collect::<Vec<_>>();
        assert_eq!(column("data_payload_bytes"), [1, 2, 4, 8, 16, 32, 64]);
        let bandwidth = [107_000, 200_000, 352_000, 568_000, 816_000, 1_056_000, 1_216_000];
        assert_eq!(column("bandwidth_bytes_per_s_max"), bandwidth);
        assert_eq!(column("interval_share_percent"), [1, 1, 1, 1, 2, 3, 5]);
        assert_eq!(column("transfers_per_interval_max"), [107, 100, 88, 71, 51, 33, 19]);
        assert_eq!(column("remaining_bytes"), [2, 0, 4, 9, 21, 15, 37]);
        assert_eq!(column("useful_bytes_per_interval"), [107, 200, 352, 568, 816, 1056, 1216]);
    }

    /// Section 6.1 of "Real-Time USB Networking and Device I/O" (2023): w of Equation 3.
    #[test]
    fn packet_times_of_the_2023_paper_are_printed() {
        let text = BandwidthPlan::of(Some(SpeedName::Super), None).to_text();
        for (time, wire) in [("1778.400", "2144.000"), ("1720.800", "2144.000")] {
            let line = format!("{time} ns by Equation 3 of the 2023 paper, {wire} ns on the wire");
            assert!(text.contains(&line), "{text}");
        }
        let json = BandwidthPlan::of(Some(SpeedName::Super), Some(TransferTypeName::Bulk)).to_json();
        assert_eq!(json["tables"][0]["longest_packets"][0]["packet_ps"], 1_778_400);
    }

    #[test]
    fn mass_storage_is_shown_for_the_speeds_asked_for() {
        let text = BandwidthPlan::of(None, None).to_text();
        assert!(text.contains("    512      8.6%         1088000        40960000\n"), "{text}");
        assert!(text.contains("   8192      0.5%         1206573        50412307\n"), "{text}");
        assert!(text.contains("1048576     <0.1%"), "{text}");
        let full = BandwidthPlan::of(Some(SpeedName::Full), None).to_text();
        assert!(full.contains("full speed max\n") && !full.contains("high speed max"), "{full}");
        assert!(!BandwidthPlan::of(Some(SpeedName::Super), None).to_text().contains("Bulk-Only"));
        assert!(!BandwidthPlan::of(None, Some(TransferTypeName::Control)).to_text().contains("Bulk-Only"));
    }

    #[test]
    fn each_table_is_printed_once_and_fits_the_screen() {
        let plan = BandwidthPlan::of(None, None);
        let (text, json) = (plan.to_text(), plan.to_json());
        assert_eq!(json["tables"].as_array().unwrap().len(), 14);
        assert_eq!(json["absent"].as_array().unwrap().len(), 2);
        assert_eq!(text.matches("does not exist").count(), 2);
        assert_eq!(text.matches("  payload  ").count(), 14);
        assert!(text.lines().all(|line| line.len() <= LINE_COLUMNS && line == line.trim_end()), "{text}");
    }
}
