//! Low, full and high speed: the overheads of the USB 2.0 specification, chapter 5.
//!
//! A transaction is a token, a data packet and, unless it is isochronous, a handshake (8.5). Each packet starts with a
//! SYNC field and a PID; a token carries an address, an endpoint and their CRC in two bytes (8.4.1), a data packet a
//! CRC of two bytes (8.3.5.2); between packets the bus must settle. A control transfer is three transactions, of which
//! the first carries eight bytes of setup data (5.5.4: the tables assume one data transaction and an empty status
//! stage).
//!
//! | table | packets | SYNC | PID | endpoint + CRC | data CRC | setup | delay | PRE | sum |
//! |---|---|---|---|---|---|---|---|---|---|
//! | 5-1 low-speed control | 9 | 9 | 9 | 6 | 6 | 8 | 8 | 2 | 48 |
//! | 5-2 full-speed control | 9 | 9 | 9 | 6 | 6 | 8 | 7 | | 45 |
//! | 5-3 high-speed control | 9 | 36 | 9 | 6 | 6 | 8 | 108 | | 173 |
//! | 5-4 full-speed isochronous | 2 | 2 | 2 | 2 | 2 | | 1 | | 9 |
//! | 5-5 high-speed isochronous | 2 | 8 | 2 | 2 | 2 | | 24 | | 38 |
//! | 5-6 low-speed interrupt | 3 | 3 | 3 | 2 | 2 | | 5 | 4 | 19 |
//! | 5-7, 5-9 full-speed interrupt, bulk | 3 | 3 | 3 | 2 | 2 | | 3 | | 13 |
//! | 5-8, 5-10 high-speed interrupt, bulk | 3 | 12 | 3 | 2 | 2 | | 36 | | 55 |
//!
//! The captions of the two low-speed tables count the PRE packets, which announce every low-speed packet of the host,
//! among SYNC and PID as if they were sent at low speed. That makes 63 bytes for Table 5-1 and only two transfers a
//! frame, where the clause that the table illustrates grants three ("fewer than four" of eight bytes). PRE is sent at
//! full speed (8.6.5): counted so, and with the interpacket delay of revision 1.1, which had no PRE in its count, a
//! low-speed control transfer has 48 bytes of overhead, three fit, and this module says so. Table 5-6 prices its two
//! PRE packets at low speed in its rows too, and is followed.

use super::table::{BandwidthTableParameters, TransferOverhead, UnsupportedTransferType};
use crate::bus::{BusSpeed, TransferKind};

/// Low speed: control and interrupt; the two others do not exist.
pub(super) fn low_speed(kind: TransferKind) -> Result<BandwidthTableParameters, UnsupportedTransferType> {
    let absent = |clause, reason| Err(UnsupportedTransferType { speed: BusSpeed::Low, kind, clause, reason });
    match kind {
        TransferKind::Control => Ok(BandwidthTableParameters {
            clause: "USB 2.0 5.5.4, Table 5-1",
            overhead: TransferPackets::CONTROL.overhead(PacketFraming {
                sync_bytes: 1,
                delay_bytes: 8,
                pre_bytes: PRE_CONTROL_BYTES,
            }),
            payloads_bytes: &[1, 2, 4, 8],
            transfer_bytes: once,
            notes: &[
                "the clause allows three 8-byte transfers a frame; Table 5-1's caption counts 63 bytes of overhead, which \
                 would leave room for two (16000 bytes/s), because it prices the PRE packets as if they were sent at low \
                 speed; they are sent at full speed (8.6.5), and the rows count them so",
            ],
        }),
        TransferKind::Interrupt => Ok(BandwidthTableParameters {
            clause: "USB 2.0 5.7.4, Table 5-6",
            overhead: TransferPackets::ACKNOWLEDGED.overhead(PacketFraming {
                sync_bytes: 1,
                delay_bytes: 5,
                pre_bytes: PRE_INTERRUPT_BYTES,
            }),
            payloads_bytes: &[1, 2, 4, 8],
            transfer_bytes: once,
            notes: &["the two PRE packets are priced at low speed, as in the specification's rows"],
        }),
        TransferKind::Isochronous => absent(
            "USB 2.0 5.6",
            "isochronous transfers are for full and high speed only: a low-speed frame holds 187 bytes, each of them blocks the \
             shared bus for as long as eight full-speed ones, and low speed exists for slow, cheap devices such as mice",
        ),
        TransferKind::Bulk => absent(
            "USB 2.0 5.8.3",
            "low-speed devices must not have bulk endpoints: bulk takes whatever the bus has left, and at an eighth of the \
             rate a single device would take it from every other on the bus",
        ),
    }
}

/// What the tables of USB 2.0 chapter 5 take as given for a full-speed transfer of this type.
pub(super) fn full_speed(kind: TransferKind) -> BandwidthTableParameters {
    let settling = |delay_bytes| PacketFraming { sync_bytes: 1, delay_bytes, pre_bytes: 0 };
    match kind {
        TransferKind::Control => BandwidthTableParameters {
            clause: "USB 2.0 5.5.4, Table 5-2",
            overhead: TransferPackets::CONTROL.overhead(settling(7)),
            payloads_bytes: &[1, 2, 4, 8, 16, 32, 64],
            transfer_bytes: once,
            notes: &[
                "the specification prints 23 bytes remaining in the 1-byte row, a misprint: 1500 less 32 times 46 is 28",
            ],
        },
        TransferKind::Isochronous => BandwidthTableParameters {
            clause: "USB 2.0 5.6.3, Table 5-4",
            overhead: TransferPackets::UNACKNOWLEDGED.overhead(settling(1)),
            payloads_bytes: &[1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1023],
            transfer_bytes: once,
            notes: &[],
        },
        TransferKind::Interrupt => BandwidthTableParameters {
            clause: "USB 2.0 5.7.4, Table 5-7",
            overhead: TransferPackets::ACKNOWLEDGED.overhead(settling(3)),
            payloads_bytes: &[1, 2, 4, 8, 16, 32, 64],
            transfer_bytes: once,
            notes: &[],
        },
        TransferKind::Bulk => BandwidthTableParameters {
            clause: "USB 2.0 5.8.4, Table 5-9",
            overhead: TransferPackets::ACKNOWLEDGED.overhead(settling(3)),
            payloads_bytes: &[1, 2, 4, 8, 16, 32, 64],
            transfer_bytes: once,
            notes: &[
                "Table 1 of the 2008 paper \"Real Embedded USB Host Performance\" prints 351 useful bytes in the 4-byte row, a \
                 misprint: 88 times 4 is 352; its kilobytes of payload are bytes",
            ],
        },
    }
}

/// What the tables of USB 2.0 chapter 5 take as given for a high-speed transfer of this type.
pub(super) fn high_speed(kind: TransferKind) -> BandwidthTableParameters {
    let high = |transfer: TransferPackets| {
        let delay_bytes = transfer.packets() * HIGH_SPEED_DELAY_BYTES;
        transfer.overhead(PacketFraming { sync_bytes: HIGH_SPEED_SYNC_BYTES, delay_bytes, pre_bytes: 0 })
    };
    match kind {
        TransferKind::Control => BandwidthTableParameters {
            clause: "USB 2.0 5.5.4, Table 5-3",
            overhead: high(TransferPackets::CONTROL),
            payloads_bytes: &[1, 2, 4, 8, 16, 32, 64],
            transfer_bytes: once,
            notes: &[],
        },
        TransferKind::Isochronous => BandwidthTableParameters {
            clause: "USB 2.0 5.6.3, Table 5-5",
            overhead: high(TransferPackets::UNACKNOWLEDGED),
            payloads_bytes: &[1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 3072],
            transfer_bytes: once,
            notes: &[
                "2048 and 3072 bytes are two and three transactions of 1024; the specification charges such a row one overhead; \
                 with one for each transaction 1128 bytes remain in both rows, and as many transfers fit",
            ],
        },
        TransferKind::Interrupt => BandwidthTableParameters {
            clause: "USB 2.0 5.7.4, Table 5-8",
            overhead: high(TransferPackets::ACKNOWLEDGED),
            payloads_bytes: &[1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 3072],
            transfer_bytes: once,
            notes: &[
                "2048 and 3072 bytes are two and three transactions of 1024; the specification charges such a row one overhead; \
                 with one for each transaction 1026 bytes remain in both rows, and as many transfers fit",
            ],
        },
        TransferKind::Bulk => BandwidthTableParameters {
            clause: "USB 2.0 5.8.4, Table 5-10",
            overhead: high(TransferPackets::ACKNOWLEDGED),
            payloads_bytes: &[1, 2, 4, 8, 16, 32, 64, 128, 256, 512],
            transfer_bytes: once,
            notes: &[],
        },
    }
}

/// Bytes of one packet identifier (8.3.1).
const PID_BYTES: u32 = 1;
/// Address, endpoint and CRC5 of a token: 7 + 4 + 5 bits (8.4.1).
const TOKEN_BYTES: u32 = 2;
/// CRC16 of a data packet (8.3.5.2).
const DATA_CRC_BYTES: u32 = 2;
/// The setup data of a control transfer (9.3).
const SETUP_BYTES: u32 = 8;

/// A high-speed SYNC field is 32 bits (8.2).
const HIGH_SPEED_SYNC_BYTES: u32 = 32 / 8;
/// After each high-speed packet: 8 bits of EOP (7.1.13.2) and 88 bits between two packets of one transmitter
/// (7.1.18.2).
const HIGH_SPEED_DELAY_BYTES: u32 = (8 + 88) / 8;

/// A PRE packet is a SYNC and a PID (8.6.5); a transaction has two: before the token, and before the data or handshake,
/// whichever the host sends.
const PRE_BYTES: u32 = 2;
const PRE_A_TRANSACTION: u32 = 2;
/// As Table 5-6 counts them: at low speed.
const PRE_INTERRUPT_BYTES: u32 = PRE_A_TRANSACTION * PRE_BYTES;
/// As they are sent: at full speed, so eight of their bytes take one low-speed byte-time. Three transactions.
const PRE_CONTROL_BYTES: u32 = (3 * PRE_A_TRANSACTION * PRE_BYTES).div_ceil(8);

/// The packets of one transfer.
#[derive(Clone, Copy)]
struct TransferPackets {
    tokens: u32,
    data: u32,
    handshakes: u32,
    setup_bytes: u32,
}

/// The fields around each packet on one kind of bus.
struct PacketFraming {
    sync_bytes: u32,
    /// All of a transfer's waits for the bus to settle, EOP among them: below high speed an allowance that the
    /// specification states in each table's caption.
    delay_bytes: u32,
    pre_bytes: u32,
}

impl TransferPackets {
    const UNACKNOWLEDGED: TransferPackets = TransferPackets { tokens: 1, data: 1, handshakes: 0, setup_bytes: 0 };
    const ACKNOWLEDGED: TransferPackets = TransferPackets { tokens: 1, data: 1, handshakes: 1, setup_bytes: 0 };
    const CONTROL: TransferPackets = TransferPackets { tokens: 3, data: 3, handshakes: 3, setup_bytes: SETUP_BYTES };

    const fn packets(self) -> u32 {
        self.tokens + self.data + self.handshakes
    }

    fn overhead(self, settling: PacketFraming) -> TransferOverhead {
        TransferOverhead::of([
            ("SYNC", self.packets() * settling.sync_bytes),
            ("PID", self.packets() * PID_BYTES),
            ("endpoint + CRC", self.tokens * TOKEN_BYTES),
            ("data CRC", self.data * DATA_CRC_BYTES),
            ("setup data", self.setup_bytes),
            ("interpacket delay", settling.delay_bytes),
            ("PRE", settling.pre_bytes),
        ])
    }
}

/// One overhead per row, also where the payload takes two or three transactions, as in the specification's tables.
fn once(overhead: &TransferOverhead, payload_bytes: u32) -> u32 {
    overhead.total_bytes + payload_bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn total(plan: BandwidthTableParameters) -> u32 {
        plan.overhead.total_bytes
    }

    #[test]
    fn overheads_are_those_of_the_captions() {
        assert_eq!(total(full_speed(TransferKind::Control)), 45);
        assert_eq!(total(high_speed(TransferKind::Control)), 173);
        assert_eq!(total(full_speed(TransferKind::Isochronous)), 9);
        assert_eq!(total(high_speed(TransferKind::Isochronous)), 38);
        assert_eq!(total(low_speed(TransferKind::Interrupt).ok().unwrap()), 19);
        assert_eq!(total(full_speed(TransferKind::Interrupt)), 13);
        assert_eq!(total(high_speed(TransferKind::Interrupt)), 55);
        assert_eq!(total(full_speed(TransferKind::Bulk)), 13);
        assert_eq!(total(high_speed(TransferKind::Bulk)), 55);
    }

    /// 15 SYNC, 15 PID, 6 endpoint + CRC, 6 CRC, 8 setup data and 13 bytes of delay: six PRE packets more than nine
    /// packets have, at low speed, and five bytes of delay after them.
    #[test]
    fn low_speed_control_counts_pre_at_full_speed_where_the_caption_does_not() {
        let ours = total(low_speed(TransferKind::Control).ok().unwrap());
        assert_eq!(ours, 48);
        let caption = ours - PRE_CONTROL_BYTES + 3 * PRE_A_TRANSACTION * PRE_BYTES + (13 - 8);
        assert_eq!(caption, 15 + 15 + 6 + 6 + 8 + 13);
        let frame_bytes = BusSpeed::Low.interval().usable_bytes;
        assert_eq!(frame_bytes / (caption + 8), 2, "the caption contradicts the clause's three");
        assert_eq!(frame_bytes / (ours + 8), 3);
    }

    /// The notes of the two-and-three-transaction rows carry this figure.
    #[test]
    fn honest_overheads_leave_fewer_bytes_but_fit_as_many_transfers() {
        for (kind, remaining_bytes) in [(TransferKind::Isochronous, 1128), (TransferKind::Interrupt, 1026)] {
            let plan = high_speed(kind);
            let overhead_bytes = plan.overhead.total_bytes;
            for transactions in [2, 3] {
                let honest = transactions * (1024 + overhead_bytes);
                let printed = once(&plan.overhead, transactions * 1024);
                assert_eq!(7500 % honest, remaining_bytes);
                assert_eq!(7500 / honest, 7500 / printed);
            }
            assert!(plan.notes[0].contains(&remaining_bytes.to_string()));
        }
    }
}
