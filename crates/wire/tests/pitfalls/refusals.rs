//! Messages that break the protocol, and the largest that do not.

use super::*;

#[test]
fn a_client_that_breaks_a_rule_is_told_which() {
    let good = Submit::data_in(1, 1, 4);
    let with = |at: usize, value: u32| {
        let mut bytes = good.bytes();
        bytes[at..at + 4].copy_from_slice(&value.to_be_bytes());
        bytes
    };
    let cases = [
        ("command", with(0, 0), 0),
        ("command", with(0, 3), 3),
        ("command", with(0, 0x0111_8005), 0x0111_8005),
        ("devid", with(8, 0), 0),
        ("devid", with(8, DEVID + 1), u64::from(DEVID) + 1),
        ("direction", with(12, 2), 2),
        ("ep", with(16, 16), 16),
        ("ep", with(16, u32::MAX), u64::from(u32::MAX)),
    ];
    for (field, bytes, value) in cases {
        let mut server = Server::imported();
        let refused = server.refusal(&bytes);
        assert_eq!((refused.field, refused.value), (field, value));
        assert!(server.sent().is_empty() && server.conn.in_flight() == 0);
    }
    let foreign = [&peer::unlink(2, 1)[..8], &[0, 9, 0, 9], &peer::unlink(2, 1)[12..]].concat();
    assert_eq!(Server::imported().refusal(&foreign).field, "devid", "an unlink names its device too");
}

#[test]
fn a_packet_count_for_an_endpoint_that_is_not_there_cannot_be_framed() {
    // CVE-2017-16912 was an endpoint number out of bounds; this one is in bounds and not there.
    let submit = Submit { number_of_packets: 1, ..Submit::data_in(1, 9, 4) };
    let refused = Server::imported().refusal(&submit.bytes());
    assert_eq!((refused.field, refused.value), ("ep", 0x89));
    for number_of_packets in [0, u32::MAX] {
        let submit = Submit { number_of_packets, ..submit.clone() };
        let urb = Server::imported().submit(&submit);
        assert_eq!(urb.endpoint, EpAddr::from_byte(0x89), "without packets it is the device's to refuse");
    }
}

#[test]
fn a_number_in_flight_is_not_used_again_and_the_first_keeps_its_answer() {
    let mut server = Server::imported();
    let urb = server.submit(&Submit::data_in(1, 1, 4));
    let refused = server.refusal(&Submit::data_out(1, 1, &[1; 100]).bytes());
    assert_eq!((refused.field, refused.value), ("seqnum", 1));
    assert_eq!((server.conn.in_flight(), server.conn.out_bytes_held()), (1, 0));
    server.complete(urb.launch().answer(vec![1; 4].into()));
    assert_eq!(server.checker.ret_submit(1).actual, 4);
    server.submit(&Submit::data_in(1, 1, 4));
}

#[test]
fn a_promise_of_16_mib_reserves_nothing() {
    let mut server = Server::imported();
    let head = &Submit { length: 16 << 20, ..Submit::data_out(1, 1, &[]) }.bytes()[..48];
    assert!(server.receive(head).unwrap().is_empty());
    let room = server.conn.receive_space().len();
    assert!(room <= LIMITS.receive_bytes, "{room}");
}

#[test]
fn the_largest_urb_arrives_whole() {
    let mut server = Server::imported();
    let data: Vec<u8> = (0..16u32 << 20).map(|at| (at % 251) as u8).collect();
    let urb = server.submit(&Submit::data_out(1, 1, &data));
    assert_eq!(urb.payload.contiguous().as_ref(), data);
}

#[test]
fn an_exporter_that_breaks_a_rule_is_cut_off() {
    let mut client = Client::imported();
    let seqnum = client.submit(data_in(1, 64));
    let good = RetSubmit::data_in(seqnum, &[1; 4]);
    let cases = [
        ("command", peer::header([1, seqnum, 0, 0, 0], [0; 5])),
        ("command", peer::header([5, seqnum, 0, 0, 0], [0; 5])),
        ("seqnum", RetSubmit { seqnum: seqnum + 1, ..good.clone() }.bytes()),
        ("seqnum", RetSubmit { seqnum: 0, ..good.clone() }.bytes()),
        ("actual_length", RetSubmit { actual: 65, ..good.clone() }.bytes()),
        ("actual_length", RetSubmit { actual: u32::MAX, ..good.clone() }.bytes()),
    ];
    for (field, bytes) in cases {
        let mut client = Client::imported();
        client.submit(data_in(1, 64));
        assert_eq!(client.refusal(&bytes).field, field);
    }
    let mut client = Client::imported();
    let out = client.submit(Urb::data_out(UrbId(1), EpAddr::from_byte(1), vec![0; 8].into()));
    assert_eq!(client.refusal(&RetSubmit::taken(out, 9).bytes()).field, "actual_length", "OUT too");
}

#[test]
fn cve_2026_31607_a_changed_packet_count_never_reaches_the_kernel() {
    for number_of_packets in [0, 1, 3, 1024, 0x0100_0000, u32::MAX] {
        let mut client = Client::imported();
        let seqnum = client.submit(iso(1, 0x83, &[10, 10]));
        let honest = RetSubmit::iso(seqnum, &[Packet::new(0, 10), Packet::new(10, 10)], &[]);
        let refused = client.refusal(&RetSubmit { number_of_packets, ..honest }.bytes());
        assert_eq!((refused.field, refused.value), ("number_of_packets", u64::from(number_of_packets)));
    }
}

#[test]
fn isochronous_answers_that_moved_their_places_or_their_sum_are_cut_off() {
    let packet = |offset, length, actual| Packet { offset, length, actual, status: 0 };
    let cases = [
        ("iso packet offset", vec![packet(0, 10, 0), packet(9, 10, 0)], 0),
        ("iso packet offset", vec![packet(0, 10, 0), packet(10, 11, 0)], 0),
        ("iso packet offset", vec![packet(u32::MAX, 10, 0), packet(10, 10, 0)], 0),
        ("iso packet actual_length", vec![packet(0, 10, 11), packet(10, 10, 0)], 11),
        ("actual_length", vec![packet(0, 10, 5), packet(10, 10, 5)], 9),
        ("actual_length", vec![packet(0, 10, 5), packet(10, 10, 5)], 11),
        ("actual_length", vec![packet(0, 10, 0), packet(10, 10, 0)], 21),
    ];
    for (field, packets, actual) in cases {
        let mut client = Client::imported();
        let seqnum = client.submit(iso(1, 0x83, &[10, 10]));
        let reply = RetSubmit { actual, ..RetSubmit::iso(seqnum, &packets, &vec![0; actual as usize]) };
        assert_eq!(client.refusal(&reply.bytes()).field, field, "{packets:?}");
    }
}

#[test]
fn failed_packets_are_counted_and_not_believed() {
    let mut client = Client::imported();
    let seqnum = client.submit(iso(1, 0x83, &[10, 10]));
    let packets = [Packet { status: peer::EXDEV, ..Packet::new(0, 10) }, Packet::new(10, 10)];
    let reply = RetSubmit { error_count: u32::MAX, ..RetSubmit::iso(seqnum, &packets, &[]) };
    assert_eq!(client.done(&reply.bytes())[0].error_count, 1);
    let seqnum = client.submit(data_in(2, 64));
    let reply = RetSubmit { error_count: 7, ..RetSubmit::data_in(seqnum, &[1]) };
    assert_eq!(client.done(&reply.bytes())[0].error_count, 0, "there are no packets to fail");
}

#[test]
fn answers_that_are_swallowed_are_waited_for_only_so_long() {
    // RET_UNLINK 0 and never a RET_SUBMIT: an exporter that does so must not grow its client.
    let mut client = Client::imported();
    for id in 0..1000 {
        client.conn.submit(data_in(id, 4).launch(), None, &mut client.pool);
        client.sent();
        let unlink = client.unlink(UrbId(id));
        match client.receive(&peer::ret_unlink(unlink, 0)) {
            Ok(answers) => assert_eq!(answers.len(), 1),
            Err(refused) => {
                assert_eq!((refused.field, refused.value), ("status", 0));
                assert_eq!(id as usize, LIMITS.urbs_in_flight_max);
                assert_eq!(client.conn.in_flight(), 1, "the last request is answered when the link is given up");
                return;
            }
        }
    }
    panic!("this went on for too long");
}
