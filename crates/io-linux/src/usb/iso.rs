//! Converts isochronous transfers between two layouts. A USB/IP client sends up to 1024 packets, each at an offset of
//! its choice in one buffer; usbfs takes at most 128, whose data lies end to end.

use farbus_model::{IsoPacket, Payload};

use crate::sys::usbfs::{ISO_PACKETS_MAX, PacketResult};

/// The part of a client's transfer that one usbfs transfer carries.
#[derive(Debug, Default)]
pub struct IsoFragment {
    /// IN data as usbfs lays it out: each packet at the sum of the lengths before it.
    pub buffer: Vec<u8>,
    /// How its packets ended.
    pub results: Vec<PacketResult>,
}

/// The client's packets in groups that usbfs takes.
pub fn split(packets: &[IsoPacket]) -> impl Iterator<Item = &[IsoPacket]> {
    packets.chunks(ISO_PACKETS_MAX)
}

/// The packets' lengths for usbfs.
pub fn lengths(packets: &[IsoPacket]) -> Vec<u32> {
    packets.iter().map(|packet| packet.length).collect()
}

/// Bytes of all packets together; `None` if one does not lie in a buffer of `length` bytes or their sum exceeds it.
pub fn total(packets: &[IsoPacket], length: u32) -> Option<u32> {
    let is_inside = |packet: &IsoPacket| packet.offset.checked_add(packet.length).is_some_and(|end| end <= length);
    let sum = packets.iter().try_fold(0u32, |sum, packet| sum.checked_add(packet.length))?;
    (packets.iter().all(is_inside) && sum <= length).then_some(sum)
}

/// Whether the packets already lie end to end from the first one's offset.
pub fn is_gapless(packets: &[IsoPacket]) -> bool {
    packets.windows(2).all(|pair| pair[0].offset + pair[0].length == pair[1].offset)
}

/// OUT data without its gaps.
pub fn gather(packets: &[IsoPacket], data: &[u8]) -> Vec<u8> {
    let ranges = packets.iter().map(|packet| packet.offset as usize..(packet.offset + packet.length) as usize);
    ranges.flat_map(|range| data.get(range).unwrap_or_default()).copied().collect()
}

/// The client's packets with their results, and for IN their data end to end.
pub fn join(iso_packets: &[IsoPacket], parts: Vec<IsoFragment>) -> (Vec<IsoPacket>, Payload) {
    let results = parts.iter().flat_map(|part| &part.results);
    let packets: Vec<IsoPacket> = iso_packets
        .iter()
        .zip(results)
        .map(|(packet, result)| IsoPacket { actual: result.actual, status: result.status, ..*packet })
        .collect();
    let mut all = Vec::new();
    let mut rest = &packets[..];
    for mut part in parts {
        let (own, others) = rest.split_at(part.results.len().min(rest.len()));
        rest = others;
        if part.buffer.is_empty() {
            continue;
        }
        compact(&mut part.buffer, own);
        if all.is_empty() {
            all = part.buffer;
        } else {
            all.extend_from_slice(&part.buffer);
        }
    }
    (packets, all.into())
}

/// Closes the gaps that short packets leave.
fn compact(buffer: &mut Vec<u8>, packets: &[IsoPacket]) {
    let (mut from, mut to) = (0, 0);
    for packet in packets {
        let actual = packet.actual as usize;
        if from != to {
            buffer.copy_within(from..from + actual, to);
        }
        from += packet.length as usize;
        to += actual;
    }
    buffer.truncate(to);
}

#[cfg(test)]
mod tests {
    use super::*;
    use farbus_model::UrbStatus;

    fn packet(offset: u32, length: u32) -> IsoPacket {
        IsoPacket { offset, length, ..IsoPacket::default() }
    }

    fn ok(actual: u32) -> PacketResult {
        PacketResult { actual, status: UrbStatus::Ok }
    }

    #[test]
    fn gaps_and_disorder_are_gathered() {
        let packets = [packet(6, 2), packet(0, 3), packet(4, 0)];
        assert!(!is_gapless(&packets));
        assert_eq!(gather(&packets, b"abcdefgh"), b"ghabc");
        assert!(is_gapless(&[packet(2, 3), packet(5, 1)]) && is_gapless(&[]));
    }

    #[test]
    fn packets_outside_the_buffer_or_more_than_it_are_refused() {
        assert_eq!(total(&[packet(0, 4), packet(4, 4)], 8), Some(8));
        assert_eq!(total(&[packet(0, 4), packet(5, 4)], 8), None);
        assert_eq!(total(&[packet(0, 8), packet(0, 8)], 8), None);
        assert_eq!(total(&[packet(u32::MAX, 2)], 8), None);
    }

    #[test]
    fn short_packets_are_closed_up_over_the_border_of_two_parts() {
        let iso_packets: Vec<_> = (0..3).map(|at| packet(at * 8, 4)).collect();
        let lost = PacketResult { actual: 0, status: UrbStatus::IsoMissed };
        let parts = vec![
            IsoFragment { buffer: b"ab..cdef".to_vec(), results: vec![ok(2), ok(4)] },
            IsoFragment { buffer: b"....".to_vec(), results: vec![lost] },
        ];
        let (packets, data) = join(&iso_packets, parts);
        assert_eq!(data.contiguous().as_ref(), b"abcdef");
        assert_eq!(packets.iter().map(|p| (p.offset, p.actual)).collect::<Vec<_>>(), [(0, 2), (8, 4), (16, 0)]);
        assert_eq!(packets[2].status, UrbStatus::IsoMissed);
    }

    #[test]
    fn a_client_may_send_eight_times_what_usbfs_takes() {
        let packets = vec![packet(0, 1); 1024];
        assert_eq!(split(&packets).map(<[_]>::len).collect::<Vec<_>>(), [128; 8]);
        assert_eq!(split(&packets[..129]).map(<[_]>::len).collect::<Vec<_>>(), [128, 1]);
        assert_eq!(split(&[]).count(), 0);
    }
}
