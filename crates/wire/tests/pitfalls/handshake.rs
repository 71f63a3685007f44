//! Lists and imports: versions, statuses, what a refusal looks like.

use super::*;

#[test]
fn a_failure_reply_is_8_bytes_and_nothing_more() {
    let failures = [OpStatus::NotAvailable, OpStatus::Busy, OpStatus::DeviceError, OpStatus::NoDevice, OpStatus::Error];
    for (status, code) in failures.into_iter().zip(1u32..) {
        let mut server = Server::new();
        let requests = server.receive(&peer::import_request("9-9")).unwrap();
        assert!(matches!(&requests[..], [UsbipRequest::Import(bus_id)] if bus_id == "9-9"));
        server.conn.reply_import(Err(status));
        assert!(!server.conn.is_finished());
        assert_eq!(server.sent(), peer::op(0x0111, 0x0003, code));
        assert!(server.conn.is_finished());
        let mut client = Client::new();
        client.conn.import("9-9");
        let answers = client.receive(&peer::op(0x0111, 0x0003, code)).unwrap();
        assert!(matches!(&answers[..], [UsbipReply::Imported(Err(refused))] if *refused == status));
    }
}

#[test]
fn undefined_status_is_a_failure() {
    let mut client = Client::new();
    client.conn.import(BUS_ID);
    let answers = client.receive(&peer::op(0x0111, 0x0003, 77)).unwrap();
    assert!(matches!(answers[..], [UsbipReply::Imported(Err(OpStatus::Error))]));
}

#[test]
fn the_version_is_compared_strictly_and_refused_in_8_bytes() {
    for version in [0x0000, 0x0100, 0x0106, 0x0110, 0x0112, 0x1101, 0xffff] {
        for (request, reply) in [(0x8005, 0x0005), (0x8003, 0x0003)] {
            let mut server = Server::new();
            let refused = server.refusal(&peer::op(version, request, 0));
            assert_eq!((refused.field, refused.value), ("version", u64::from(version)));
            assert_eq!(server.sent(), peer::op(0x0111, reply, 5));
            let mut client = Client::new();
            match reply {
                0x0005 => client.conn.device_list(),
                _ => client.conn.import(BUS_ID),
            }
            assert_eq!(client.refusal(&peer::op(version, reply, 0)).field, "version");
        }
    }
}

#[test]
fn undefined_operation_is_refused() {
    for code in [0x0005, 0x0003, 0x8004, 0x8006, 0x0000, 0xffff] {
        let mut server = Server::new();
        assert_eq!(server.refusal(&peer::op(0x0111, code, 0)).field, "operation");
        assert_eq!(server.sent(), peer::op(0x0111, code & 0x7fff, 5));
        assert!(server.conn.is_finished());
    }
}

#[test]
fn a_device_list_has_interfaces_and_an_import_reply_has_not() {
    let record = |bus_id: &str, interfaces: Vec<[u8; 3]>| {
        let bytes = peer::device_record(bus_id, interfaces.len() as u8);
        DeviceRecord { interfaces, ..DeviceRecord::decode(bytes.first_chunk().unwrap()).unwrap() }
    };
    let records = [record("1-1", vec![[8, 6, 80], [3, 1, 1]]), record("1-2", vec![]), record("1-3", vec![[9; 3]])];
    let mut list = [peer::op(0x0111, 0x0005, 0), 3u32.to_be_bytes().to_vec()].concat();
    list.extend(peer::device_record("1-1", 2));
    list.extend([8, 6, 80, 0, 3, 1, 1, 0]);
    list.extend(peer::device_record("1-2", 0));
    list.extend(peer::device_record("1-3", 1));
    list.extend([9, 9, 9, 0]);

    let mut server = Server::new();
    assert!(matches!(server.receive(&peer::list_request()).unwrap()[..], [UsbipRequest::DeviceList]));
    server.conn.reply_device_list(&records);
    assert_eq!(server.sent(), list);
    for step in [1, 3, 311, 312, usize::MAX] {
        let mut client = Client::new();
        client.conn.device_list();
        let answers = client.receive_in_steps(&list, step).unwrap();
        assert!(matches!(&answers[..], [UsbipReply::DeviceList(listed)] if *listed == records));
    }

    let mut server = Server::new();
    server.receive(&peer::import_request("1-1")).unwrap();
    server.conn.reply_import(Ok(&records[0]));
    let imported = [peer::op(0x0111, 0x0003, 0), peer::device_record("1-1", 2)].concat();
    assert_eq!(server.sent(), imported);
    let mut client = Client::imported();
    assert!(client.receive(&RetSubmit::taken(1, 0).bytes()).is_err(), "what follows the 320 bytes is URBs");
}

#[test]
fn a_bus_id_has_at_most_31_characters_and_is_padded_with_nul() {
    let longest = "1".repeat(31);
    let mut server = Server::new();
    let requests = server.receive(&peer::import_request(&longest)).unwrap();
    assert!(matches!(&requests[..], [UsbipRequest::Import(bus_id)] if *bus_id == longest));
    let mut client = Client::new();
    client.conn.import("3-2");
    assert_eq!(client.sent(), peer::import_request("3-2"));
    let unending = [peer::op(0x0111, 0x8003, 0), vec![b'1'; 32]].concat();
    assert_eq!(Server::new().refusal(&unending).field, "busid");
    let escape = [peer::op(0x0111, 0x8003, 0), peer::padded("1-1\x1b[2J", 32)].concat();
    assert_eq!(Server::new().refusal(&escape).field, "busid", "a log is no place for control characters");
}

#[test]
fn the_bus_id_that_comes_back_is_the_one_that_was_asked_for() {
    let mut client = Client::new();
    client.conn.import("1-1");
    assert_eq!(client.refusal(&peer::import_reply("1-2")).field, "busid");
}

#[test]
fn an_answer_has_its_questions_code() {
    let mut client = Client::new();
    client.conn.import(BUS_ID);
    assert_eq!(client.refusal(&peer::op(0x0111, 0x0005, 0)).field, "operation");
    let mut client = Client::new();
    client.conn.device_list();
    assert_eq!(client.refusal(&peer::import_reply(BUS_ID)).field, "operation");
    let mut client = Client::new();
    assert_eq!(client.refusal(&[0]).rule, "nothing was asked");
}

#[test]
fn a_list_is_bounded_and_its_texts_are_text() {
    let head = |count: u32| [peer::op(0x0111, 0x0005, 0), count.to_be_bytes().to_vec()].concat();
    let listing = |record: Vec<u8>| {
        let mut client = Client::new();
        client.conn.device_list();
        client.refusal(&[head(1), record].concat()).field
    };
    let mut client = Client::new();
    client.conn.device_list();
    assert_eq!(client.refusal(&head(u32::MAX)).field, "ndev");
    let good = peer::device_record("1-1", 0);
    let with = |at: usize, bytes: &[u8]| {
        let mut record = good.clone();
        record[at..at + bytes.len()].copy_from_slice(bytes);
        record
    };
    assert_eq!(listing(with(0, &[b'/'; 256])), "path", "256 bytes and no NUL");
    assert_eq!(listing(with(0, &[0xff, 0xfe])), "path", "no UTF-8");
    assert_eq!(listing(with(256, &[b'1'; 32])), "busid");
    assert_eq!(listing(with(288, &[0, 1, 0, 0])), "busnum or devnum", "17 bits in a 16-bit half");
    assert_eq!(listing(with(296, &[0, 0, 0, 7])), "speed");
}

#[test]
fn bytes_after_a_device_list_are_dropped_and_take_no_memory() {
    let mut server = Server::new();
    server.receive(&peer::list_request()).unwrap();
    server.conn.reply_device_list(&[]);
    for _ in 0..8 {
        let heard = server.receive(&[0x55; 64 << 10]).unwrap();
        assert!(heard.is_empty());
    }
    assert!(server.conn.receive_space().len() > 1, "there is always room");
}
