//! The 48-byte header: which fields are echoed and which have no meaning.

use super::*;

/// The values that occur: those of Linux, the specification and usbip-win2, and arbitrary ones.
const NUMBERS: [u32; 7] = [0, u32::MAX, 1, 2, 1024, 1025, 0xdead_beef];

#[test]
fn number_of_packets_is_echoed_and_never_used_for_framing_where_there_are_none() {
    let mut server = Server::imported();
    let mut seqnum = 0;
    for number_of_packets in NUMBERS {
        let kinds = [
            Submit::data_out(0, 1, &[5; 100]),
            Submit::data_in(0, 1, 64),
            Submit::data_out(0, 2, &[6; 8]),
            Submit::data_in(0, 2, 8),
            Submit::control_out(0, [0x40, 0x5b, 0, 0, 0, 0, 2, 0], &[1, 2]),
            Submit::control(0, peer::setup::GET_DEVICE_18),
        ];
        for submit in kinds {
            seqnum += 1;
            let submit = Submit { seqnum, number_of_packets, ..submit };
            let urb = server.submit(&submit);
            assert!(urb.iso.is_empty());
            assert_eq!(urb.payload.contiguous(), submit.data, "the next message begins where it should");
            let moved = if submit.is_in() { vec![1; 8].into() } else { Payload::Empty };
            let actual = if submit.is_in() { 8 } else { submit.length };
            server.complete(urb.launch().done(UrbStatus::Ok, actual, moved));
            assert_eq!(server.checker.ret_submit(seqnum).number_of_packets, number_of_packets);
        }
    }
    server.checker.assert_settled();
}

#[test]
fn a_client_finds_its_answers_whatever_number_of_packets_comes_back() {
    let mut client = Client::imported();
    for number_of_packets in NUMBERS {
        let seqnum = client.submit(data_in(9, 64));
        let reply = RetSubmit { number_of_packets, ..RetSubmit::data_in(seqnum, &[3; 10]) };
        let done = client.done(&reply.bytes());
        assert_eq!((done[0].id, done[0].payload.len(), done[0].iso.len()), (UrbId(9), 10, 0));
    }
}

#[test]
fn an_isochronous_urb_may_have_no_packets() {
    let mut server = Server::imported();
    let urb = server.submit(&Submit::iso_in(1, 3, &[]));
    server.complete(urb.launch().done_iso(vec![], Payload::Empty));
    let out = Submit { length: 10, data: vec![1; 10], ..Submit::iso_out(2, 3, &[], &[]) };
    let urb = server.submit(&out);
    assert_eq!((urb.length, urb.iso.len(), urb.payload.len()), (10, 0, 10));
    server.complete(urb.launch().done_iso(vec![], Payload::Empty));
    server.checker.assert_settled();
}

#[test]
fn sequence_numbers_are_echoed_exactly_and_need_not_follow_each_other() {
    let mut server = Server::imported();
    let numbers = [7, 6, u32::MAX, 0, 0x8000_0001, 0x8000_0000, 1];
    let urbs: Vec<Urb> = numbers.iter().map(|&seqnum| server.submit(&Submit::data_in(seqnum, 1, 4))).collect();
    let answered: Vec<u32> = urbs
        .into_iter()
        .flat_map(|urb| server.complete(urb.launch().answer(vec![1; 4].into())))
        .map(|reply| reply.seqnum())
        .collect();
    assert_eq!(answered, numbers);
    server.checker.assert_settled();
}

#[test]
fn start_frame_comes_back_as_it_was_sent_where_it_means_nothing() {
    // The kernel's own document shows a capture with ffffffff both ways.
    let mut server = Server::imported();
    let urb = server.submit(&Submit { start_frame: u32::MAX, ..Submit::data_out(1, 2, &[0; 64]) });
    server.complete(urb.launch().accept());
    assert_eq!(server.checker.ret_submit(1).start_frame, u32::MAX);
}

#[test]
fn replies_carry_no_device_direction_or_endpoint() {
    let mut server = Server::imported();
    let urb = server.submit(&Submit::data_in(1, 1, 4));
    server.conn.complete(urb.launch().answer(vec![1; 4].into()), &mut server.pool);
    server.unlink(2, 0);
    let bytes = server.sent();
    assert_eq!((&bytes[8..20], &bytes[52 + 8..52 + 20]), (&[0; 12][..], &[0; 12][..]));
    assert_eq!(bytes.len(), 48 + 4 + 48);
}

#[test]
fn data_comes_back_for_in_alone_and_is_exactly_actual_length() {
    let mut server = Server::imported();
    let urb = server.submit(&Submit::data_in(1, 1, 512));
    server.conn.complete(urb.launch().answer(vec![9; 13].into()), &mut server.pool);
    let urb = server.submit(&Submit::data_out(2, 1, &[8; 512]));
    server.conn.complete(urb.launch().accept(), &mut server.pool);
    let urb = server.submit(&Submit::data_in(3, 1, 512));
    server.conn.complete(urb.launch().fail(UrbStatus::Stall), &mut server.pool);
    let expected = [RetSubmit::data_in(1, &[9; 13]), RetSubmit::taken(2, 512), RetSubmit::failed(3, peer::EPIPE)];
    assert_eq!(server.sent(), expected.map(|reply| reply.bytes()).concat());
}

#[test]
fn out_replies_say_how_much_was_taken() {
    let mut server = Server::imported();
    for (seqnum, taken) in [(1, 0), (2, 100), (3, 512)] {
        let urb = server.submit(&Submit::data_out(seqnum, 1, &[8; 512]));
        let status = if taken == 512 { UrbStatus::Ok } else { UrbStatus::Stall };
        server.complete(urb.launch().done(status, taken, Payload::Empty));
        assert_eq!(server.checker.ret_submit(seqnum).actual, taken);
    }
}

#[test]
fn a_short_in_is_a_success_even_where_the_client_says_it_is_not() {
    let mut server = Server::imported();
    let urb = server.submit(&Submit { flags: 0x201, ..Submit::data_in(1, 1, 512) });
    assert!(urb.flags.short_not_ok);
    server.complete(urb.launch().answer(vec![1; 5].into()));
    let reply = server.checker.ret_submit(1);
    assert_eq!((reply.status, reply.actual), (0, 5), "the client's core makes -121 of it, not the exporter");
}

#[test]
fn flag_bits_that_say_nothing_to_a_device_are_masked() {
    let flags_of = |flags: u32| {
        let mut server = Server::imported();
        server.submit(&Submit { flags, ..Submit::data_in(1, 1, 4) }).flags
    };
    // Every usb-storage URB from vhci carries DMA_MAP_SG; none of these bits matters to a device.
    let none = UrbFlags::default();
    for flags in [0, 0x4, 0x80, 0x100, 0x4_0000, 0x200, 0xfffb_ffbc] {
        assert_eq!(flags_of(flags), none, "{flags:#x}");
    }
    let all = UrbFlags { short_not_ok: true, iso_asap: true, zero_packet: true };
    assert_eq!(flags_of(u32::MAX), all);
    assert_eq!(flags_of(0x40), UrbFlags { zero_packet: true, ..none });
    assert_eq!(flags_of(0x2), UrbFlags { iso_asap: true, ..none });
}

#[test]
fn the_direction_is_the_headers_and_not_the_flags() {
    let mut server = Server::imported();
    let urb = server.submit(&Submit { flags: 0x200, ..Submit::data_out(1, 1, &[1, 2, 3]) });
    assert_eq!((urb.direction, urb.endpoint, urb.payload.len()), (TransferDirection::Out, EpAddr::from_byte(0x01), 3));
    let urb = server.submit(&Submit { flags: 0, ..Submit::data_in(2, 1, 3) });
    assert_eq!((urb.direction, urb.endpoint, urb.payload.len()), (TransferDirection::In, EpAddr::from_byte(0x81), 0));
}

#[test]
fn the_setup_packet_is_little_endian_and_passes_verbatim() {
    let mut server = Server::imported();
    let urb = server.submit(&Submit::control_out(1, [0x21, 0x09, 0x34, 0x12, 0x78, 0x56, 3, 0], &[1, 2, 3]));
    let setup = SetupPacket { request_type: 0x21, request: 9, value: 0x1234, index: 0x5678, length: 3 };
    assert_eq!((urb.setup, urb.endpoint), (setup, EpAddr::CONTROL));
}

#[test]
fn client_states_the_endpoints_interval_where_its_requester_states_none() {
    // bInterval 4 of a high-speed device: 8 microframes. Linux's stub refuses 0 for both kinds.
    let mut client = Client::imported();
    let interval_of = |client: &mut Client, urb: Urb| {
        let endpoint = endpoint(urb.endpoint);
        client.conn.submit(urb.launch(), endpoint.as_ref(), &mut client.pool);
        peer::word(&client.sent(), 36)
    };
    assert_eq!(interval_of(&mut client, Urb::data_in(UrbId(1), EpAddr::from_byte(0x82), 8)), 8, "interrupt");
    assert_eq!(interval_of(&mut client, iso(2, 0x83, &[8, 8])), 8, "isochronous");
    assert_eq!(interval_of(&mut client, data_in(3, 64)), 0, "bulk");
    let stated = Urb { interval: 32, ..Urb::data_in(UrbId(4), EpAddr::from_byte(0x82), 8) };
    assert_eq!(interval_of(&mut client, stated), 32, "what a kernel states is passed on");
}
