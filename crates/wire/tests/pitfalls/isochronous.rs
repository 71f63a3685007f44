//! Packets: offsets, gaps, sums.

use super::*;

#[test]
fn in_data_is_compacted_and_places_come_back_unchanged() {
    let mut server = Server::imported();
    let urb = server.submit(&Submit::iso_in(1, 3, &[100, 200, 300]));
    let mut packets = urb.iso.clone();
    (packets[0].actual, packets[2].actual) = (10, 30);
    packets[1].status = UrbStatus::IsoMissed;
    let data = [vec![1; 10], vec![3; 30]].concat();
    server.complete(urb.launch().done_iso(packets, data.clone().into()));
    let reply = server.checker.ret_submit(1);
    assert_eq!((reply.actual, reply.error_count, &reply.data), (40, 1, &data));
    let packet = |offset, length, actual, status| Packet { offset, length, actual, status };
    let expected = [packet(0, 100, 10, 0), packet(100, 200, 0, -18), packet(300, 300, 30, 0)];
    assert_eq!(reply.packets, expected);
}

#[test]
fn out_carries_the_whole_buffer_gaps_and_all() {
    let mut server = Server::imported();
    let mut submit = Submit::iso_out(1, 3, &[4, 4], &[1, 1, 1, 1, 2, 2, 2, 2]);
    // The second packet lies 4 bytes further on.
    submit.data = vec![1, 1, 1, 1, 0, 0, 0, 0, 2, 2, 2, 2];
    (submit.length, submit.packets[1].offset) = (12, 8);
    let urb = server.submit(&submit);
    assert_eq!((urb.payload.len(), urb.iso[1].offset, urb.iso[1].length), (12, 8, 4));
    let packets = urb.iso.iter().map(|p| IsoPacket { actual: p.length, ..*p }).collect();
    server.complete(urb.launch().done_iso(packets, Payload::Empty));
    assert_eq!(server.checker.ret_submit(1).actual, 8, "what was sent, gaps not counted");
}

#[test]
fn packet_outcome_fields_in_a_command_are_ignored() {
    // Linux presets every packet's status to -EXDEV before it submits.
    let mut server = Server::imported();
    let mut submit = Submit::iso_in(1, 3, &[100, 100]);
    for packet in &mut submit.packets {
        (packet.actual, packet.status) = (77, peer::EXDEV);
    }
    let urb = server.submit(&submit);
    assert!(urb.iso.iter().all(|packet| packet.actual == 0 && packet.status == UrbStatus::Ok), "{:?}", urb.iso);
    server.complete(urb.launch().fail(UrbStatus::Shutdown));
    assert_eq!(server.checker.ret_submit(1).actual, 0);
}

#[test]
fn packets_1024_are_served_and_1025_are_refused() {
    let mut server = Server::imported();
    let urb = server.submit(&Submit::iso_in(1, 3, &[8; 1024]));
    assert_eq!(urb.iso.len(), 1024);
    let refused = server.refusal(&Submit::iso_in(2, 3, &[8; 1025]).bytes());
    assert_eq!((refused.field, refused.value), ("number_of_packets", 1025));
    let message = refused.to_string();
    assert_eq!(
        message,
        "the peer sent number_of_packets = 1025 (0x401), but a URB has at most 1024 isochronous packets"
    );
    let huge = Submit { number_of_packets: u32::MAX, ..Submit::iso_in(3, 3, &[]) };
    assert_eq!(Server::imported().refusal(&huge.bytes()).field, "number_of_packets");
}

#[test]
fn packets_outside_the_buffer_are_refused() {
    let beyond = [
        vec![Packet::new(0, 11)],
        vec![Packet::new(10, 1)],
        vec![Packet::new(u32::MAX, 2)],
        vec![Packet::new(1, u32::MAX)],
        // Each lies inside, but their sum is more than the buffer.
        vec![Packet::new(0, 6), Packet::new(4, 6)],
    ];
    for packets in beyond {
        let submit = Submit {
            length: 10,
            number_of_packets: packets.len() as u32,
            packets: packets.clone(),
            ..Submit::iso_in(1, 3, &[])
        };
        let refused = Server::imported().refusal(&submit.bytes());
        assert_eq!(refused.field, "iso packet offset + length", "{packets:?}");
    }
}

#[test]
fn a_client_sends_zeros_for_what_is_not_known_yet() {
    let mut client = Client::imported();
    let mut urb = iso(1, 0x03, &[4, 4]);
    urb.iso[1] = IsoPacket { actual: 99, status: UrbStatus::Crc, ..urb.iso[1] };
    client.conn.submit(urb.launch(), endpoint(EpAddr::from_byte(0x03)).as_ref(), &mut client.pool);
    let sent = client.sent();
    let descriptors = [Packet::new(0, 4), Packet::new(4, 4)].map(Packet::bytes).concat();
    assert_eq!(sent[48..], [vec![7; 8], descriptors].concat());
}
