//! SuperSpeed: what a 5 Gb/s link carries. The USB 3 specifications print no such tables; these are derived from the
//! sizes of packets and link commands (USB 3.2 chapters 7 and 8, Gen 1).
//!
//! The link is two one-way streets, so packets of the two directions do not wait for each other, and nothing turns
//! round. What limits a transfer is the busier street. On it, in symbols (a byte is one symbol, 8b/10b):
//!
//! - a header packet is 4 of framing and 16 of header (7.2.1.1): 20;
//! - a data packet is such a header, then a payload framed by 4 before and 4 after, with a CRC of 4 (7.2.1.2): 32 and
//!   its data;
//! - a link command is 8 (7.2.2.1); each header packet is answered, the other way, by two of them, LGOOD and LCRD
//!   (7.2.4.1): 16.
//!
//! So a data packet of a bulk or interrupt endpoint costs 32, and 16 more for the link's answer to the ACK packet that
//! the other side sends for it (8.11). The other way carries 20 + 16 for it, which is always less. An isochronous data
//! packet is not acknowledged (8.12.6); to an IN endpoint the host sends one ACK packet a burst of at most 16
//! (8.12.6.1), whose answer costs 16. A control transfer with an OUT data stage, the heavier one, sends setup (32 + 8),
//! data (32) and status (20), and answers three ACK packets: 140.
//!
//! Several packets in a row stand for a burst, and each of them pays: here no published table has to be matched.

use super::table::{BandwidthTableParameters, TransferOverhead};
use crate::bus::TransferKind;

pub(super) fn super_speed(kind: TransferKind) -> BandwidthTableParameters {
    match kind {
        TransferKind::Control => BandwidthTableParameters {
            clause: "USB 3.2 8.12.2; no table is printed",
            overhead: TransferOverhead::of([
                ("setup packet", DATA_PACKET_BYTES + SETUP_BYTES),
                ("data packet header and framing", DATA_PACKET_BYTES),
                ("status packet", HEADER_PACKET_BYTES),
                ("link answers to three ACK packets", 3 * LINK_ANSWER_BYTES),
            ]),
            payloads_bytes: &[1, 2, 4, 8, 16, 32, 64, 128, 256, 512],
            transfer_bytes: |overhead, payload_bytes| overhead.total_bytes + payload_bytes,
            notes: &[
                "the stages of one transfer wait for each other; to fill an interval, transfers of many devices must overlap",
            ],
        },
        TransferKind::Isochronous => BandwidthTableParameters {
            clause: "USB 3.2 8.12.6; no table is printed",
            overhead: TransferOverhead::of([
                ("data packet header and framing", DATA_PACKET_BYTES),
                ("link answer to the ACK packet that asks for a burst", LINK_ANSWER_BYTES),
            ]),
            payloads_bytes: &[1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 16_384, 32_768, 49_152],
            transfer_bytes: |_, payload_bytes| {
                let packets = payload_bytes.div_ceil(PACKET_BYTES_MAX);
                payload_bytes + packets * DATA_PACKET_BYTES + packets.div_ceil(BURST_PACKETS_MAX) * LINK_ANSWER_BYTES
            },
            notes: &[
                "above 1024 bytes a row is one, two or three bursts of 16 packets, the most that an endpoint may move in an \
                      interval; each packet pays for its header and framing, each burst for one link answer",
            ],
        },
        TransferKind::Interrupt => BandwidthTableParameters {
            clause: "USB 3.2 8.12.4; no table is printed",
            overhead: acknowledged(),
            payloads_bytes: &[1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 3072],
            transfer_bytes: each_packet,
            notes: &[
                "2048 and 3072 bytes are bursts of two and three packets, the most that an endpoint may move in an interval; \
                      each packet pays the overhead",
            ],
        },
        TransferKind::Bulk => BandwidthTableParameters {
            clause: "USB 3.2 8.12.1; no table is printed",
            overhead: acknowledged(),
            payloads_bytes: &[1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024],
            transfer_bytes: each_packet,
            notes: &[],
        },
    }
}

/// Four symbols of framing, twelve of header, two of CRC and two of link control word (7.2.1.1).
pub(crate) const HEADER_PACKET_BYTES: u32 = 4 + 12 + 2 + 2;
/// A header packet; four symbols of framing before the data and four after it, and its CRC of four (7.2.1.2).
pub(crate) const DATA_PACKET_BYTES: u32 = HEADER_PACKET_BYTES + 4 + 4 + 4;
/// Four symbols of framing and the link command word, twice (7.2.2.1).
const LINK_COMMAND_BYTES: u32 = 4 + 2 * 2;
/// LGOOD says that a header packet arrived well, LCRD that its buffer is free again (7.2.4.1).
pub(crate) const LINK_ANSWER_BYTES: u32 = 2 * LINK_COMMAND_BYTES;
/// The setup data of a control transfer (9.3).
const SETUP_BYTES: u32 = 8;
/// The largest data packet (8.4).
const PACKET_BYTES_MAX: u32 = 1024;
/// The longest burst (9.6.7, `bMaxBurst`).
const BURST_PACKETS_MAX: u32 = 16;

fn acknowledged() -> TransferOverhead {
    TransferOverhead::of([
        ("data packet header and framing", DATA_PACKET_BYTES),
        ("link answer to the ACK packet", LINK_ANSWER_BYTES),
    ])
}

fn each_packet(overhead: &TransferOverhead, payload_bytes: u32) -> u32 {
    payload_bytes + payload_bytes.div_ceil(PACKET_BYTES_MAX) * overhead.total_bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bus::BusSpeed;

    fn row(kind: TransferKind, payload_bytes: u32) -> crate::bandwidth::BandwidthRow {
        let table = super_speed(kind).fill(BusSpeed::Super, kind);
        *table.rows.iter().find(|row| row.data_payload_bytes == payload_bytes).unwrap()
    }

    #[test]
    fn packets_have_the_sizes_of_the_specification() {
        assert_eq!(HEADER_PACKET_BYTES, 20);
        assert_eq!(DATA_PACKET_BYTES, 32);
        assert_eq!(LINK_ANSWER_BYTES, 16);
    }

    #[test]
    fn bulk_reaches_what_is_left_of_500_megabytes() {
        let row = row(TransferKind::Bulk, 1024);
        assert_eq!(row.transfer_bytes, 1024 + 48);
        assert_eq!(row.transfers_per_interval_max, 57);
        assert_eq!(row.bandwidth_bytes_per_s_max, 57 * 1024 * 8000);
    }

    #[test]
    fn control_counts_every_stage() {
        assert_eq!(row(TransferKind::Control, 512).transfer_bytes, 140 + 512);
    }

    #[test]
    fn a_burst_pays_for_every_packet() {
        assert_eq!(row(TransferKind::Interrupt, 3072).transfer_bytes, 3 * (1024 + 48));
        assert_eq!(row(TransferKind::Isochronous, 1024).transfer_bytes, 1024 + 32 + 16);
        assert_eq!(row(TransferKind::Isochronous, 16_384).transfer_bytes, 16 * (1024 + 32) + 16);
        assert_eq!(row(TransferKind::Isochronous, 49_152).transfer_bytes, 48 * (1024 + 32) + 3 * 16);
    }

    #[test]
    fn the_largest_isochronous_endpoint_fits_once() {
        assert_eq!(row(TransferKind::Isochronous, 49_152).transfers_per_interval_max, 1);
    }
}
