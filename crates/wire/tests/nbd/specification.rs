//! The requirements of the specification, clause by clause, in its own bytes.

use std::collections::BTreeMap;

use farbus_model::{BlockInfo, BlockOp};
use farbus_wire::nbd::message::{chunk, command, command_flag, flag, info, option, reply, transmission_flags};

use crate::client::{self, Answer, AwaitedRequest, Reader};
use crate::world::{INFO, World, exports};

/// Hexadecimal with spaces, for people.
fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u32> = text.chars().filter_map(|c| c.to_digit(16)).collect();
    digits.chunks(2).map(|pair| (pair[0] << 4 | pair[1]) as u8).collect()
}

#[test]
fn a_whole_conversation_is_byte_for_byte_what_the_specification_says() {
    let mut world = World::new(exports(&[("", INFO)]));
    // NBDMAGIC, IHAVEOPT, fixed newstyle and no zeroes.
    assert_eq!(world.listen(), hex("4e42444d41474943 49484156454f5054 0003"));
    // Both flags; structured replies.
    world.hear(&hex("00000003 49484156454f5054 00000008 00000000")).unwrap();
    assert_eq!(world.listen(), hex("0003e889045565a9 00000008 00000001 00000000"));
    // GO, "", one information asked for: block sizes.
    world.hear(&hex("49484156454f5054 00000007 00000008 00000000 0001 0003")).unwrap();
    let expected = "0003e889045565a9 00000007 00000003 0000000c 0000 0000000000040000 09ed
                    0003e889045565a9 00000007 00000003 0000000e 0003 00000001 00001000 02000000
                    0003e889045565a9 00000007 00000001 00000000";
    assert_eq!(world.listen(), hex(expected));
    // Write "farb" at 0x1000, durably.
    world.hear(&hex("25609513 0001 0001 1122334455667788 0000000000001000 00000004 66617262")).unwrap();
    assert_eq!(world.listen(), hex("67446698 00000000 1122334455667788"));
    assert_eq!(world.requests, [(BlockOp::Write, 0x1000, 4, true)]);
    // Read it.
    world.hear(&hex("25609513 0000 0000 1122334455667789 0000000000001000 00000004")).unwrap();
    let expected = "668e33ef 0001 0001 1122334455667789 0000000c 0000000000001000 66617262";
    assert_eq!(world.listen(), hex(expected));
    // Flush; then a read past the end.
    world.hear(&hex("25609513 0000 0003 00000000000000aa 0000000000000000 00000000")).unwrap();
    assert_eq!(world.listen(), hex("67446698 00000000 00000000000000aa"));
    world.hear(&hex("25609513 0000 0004 00000000000000ab 0000000000040000 00000001")).unwrap();
    assert_eq!(world.listen(), hex("67446698 00000016 00000000000000ab"));
    // Disconnect: no answer.
    world.hear(&hex("25609513 0000 0002 00000000000000ac 0000000000000000 00000000")).unwrap();
    assert_eq!(world.listen(), hex(""));
    assert!(world.conn.is_finished());
}

#[test]
fn export_name_reply_is_padded_unless_the_client_set_no_zeroes() {
    for (flags, padding) in [(1u32, 124), (3, 0)] {
        let mut world = World::new(exports(&[("a", INFO)]));
        world.hear(&flags.to_be_bytes()).unwrap();
        world.hear(&client::option(option::EXPORT_NAME, b"a")).unwrap();
        let bytes = world.listen();
        let mut reader = Reader(&bytes[18..]);
        assert_eq!((reader.long(), reader.half() & flag::SEND_DF), (INFO.size_bytes, 0));
        assert_eq!(reader.0, vec![0; padding]);
        world.hear(&client::request(command::READ, 0, 5, 0, 3)).unwrap();
        assert_eq!(world.listen(), hex("67446698 00000000 0000000000000005 000000"));
    }
    let mut world = World::new(exports(&[("a", INFO)]));
    world.hear(&3u32.to_be_bytes()).unwrap();
    let reject = world.hear(&client::option(option::EXPORT_NAME, b"b")).unwrap_err();
    assert_eq!(reject.field, "export name");
}

#[test]
fn exports_are_listed_described_and_chosen_by_name() {
    let knows_trim = |trims| transmission_flags(&BlockInfo { trims, ..INFO }, false) & flag::SEND_TRIM != 0;
    assert!(knows_trim(true) && !knows_trim(false));
    let small = BlockInfo { size_bytes: 4096, is_read_only: true, block_bytes: 512, ..INFO };
    let mut world = World::new(exports(&[("disk", INFO), ("boot", small)]));
    world.hear(&3u32.to_be_bytes()).unwrap();
    world.hear(&client::option(option::LIST, &[])).unwrap();
    world.hear(&client::option(option::INFO, &client::go("boot", &[info::NAME, info::DESCRIPTION, 99]))).unwrap();
    world.hear(&client::option(option::INFO, &client::go("", &[]))).unwrap();
    world.hear(&client::option(option::GO, &client::go("nothing", &[]))).unwrap();
    let bytes = world.listen();
    let mut reader = Reader(&bytes[18..]);
    assert_eq!(reader.option_reply(3), (reply::SERVER, &b"\0\0\0\x04diskthe disk \"disk\""[..]));
    assert_eq!(reader.option_reply(3), (reply::SERVER, &b"\0\0\0\x04bootthe disk \"boot\""[..]));
    assert_eq!(reader.option_reply(3), (reply::ACK, &[][..]));
    let flags = flag::HAS_FLAGS | flag::READ_ONLY | flag::SEND_FLUSH | flag::CAN_MULTI_CONN;
    let expected = [&hex("0000 0000000000001000")[..], &flags.to_be_bytes()].concat();
    assert_eq!(reader.option_reply(6), (reply::INFO, &expected[..]));
    assert_eq!(reader.option_reply(6), (reply::INFO, &hex("0003 00000200 00001000 02000000")[..]));
    assert_eq!(reader.option_reply(6), (reply::INFO, &b"\0\x01boot"[..]));
    assert_eq!(reader.option_reply(6), (reply::INFO, &b"\0\x02the disk \"boot\""[..]));
    assert_eq!(reader.option_reply(6), (reply::ACK, &[][..]));
    let (kind, bytes) = reader.option_reply(6);
    assert_eq!((kind, &bytes[2..10]), (reply::INFO, &INFO.size_bytes.to_be_bytes()[..]), "the default is the first");
    assert_eq!((reader.option_reply(6).0, reader.option_reply(6).0), (reply::INFO, reply::ACK));
    assert_eq!(reader.option_reply(7).0, reply::ERR_UNKNOWN);
    assert_eq!((reader.0.len(), world.conn.export()), (0, None));
}

#[test]
fn unknown_option_is_refused_and_the_handshake_continues() {
    let mut world = World::new(exports(&[("", INFO)]));
    world.hear(&1u32.to_be_bytes()).unwrap();
    let meta = [&0u32.to_be_bytes()[..], &1u32.to_be_bytes(), &15u32.to_be_bytes(), b"base:allocation"].concat();
    let said_and_answered = [
        (option::STARTTLS, vec![], reply::ERR_UNSUP),
        (option::EXTENDED_HEADERS, vec![], reply::ERR_UNSUP),
        (4, vec![1, 2, 3], reply::ERR_UNSUP),
        (u32::MAX, vec![], reply::ERR_UNSUP),
        (option::LIST, vec![1], reply::ERR_INVALID),
        (option::STRUCTURED_REPLY, vec![1], reply::ERR_INVALID),
        (option::SET_META_CONTEXT, meta.clone(), reply::ERR_INVALID),
        (option::STRUCTURED_REPLY, vec![], reply::ACK),
        (option::SET_META_CONTEXT, meta.clone(), reply::META_CONTEXT),
        (option::SET_META_CONTEXT, client::contexts("no such", &["base:allocation"]), reply::ERR_UNKNOWN),
        (option::SET_META_CONTEXT, client::contexts("", &["x:y"]), reply::ACK),
        (option::SET_META_CONTEXT, [&[0; 4][..], &[0xff; 4]].concat(), reply::ERR_INVALID),
        (option::LIST_META_CONTEXT, client::contexts("", &[&"x".repeat(4097)]), reply::ERR_INVALID),
        (option::LIST_META_CONTEXT, meta[..meta.len() - 1].to_vec(), reply::ERR_INVALID),
        (option::GO, vec![0, 0, 0, 200], reply::ERR_INVALID),
        (option::INFO, vec![0xff; 16], reply::ERR_INVALID),
        (option::GO, vec![0; 20 << 10], reply::ERR_TOO_BIG),
        (option::ABORT, vec![], reply::ACK),
    ];
    for (kind, data, _) in &said_and_answered {
        world.hear(&client::option(*kind, data)).unwrap();
    }
    let bytes = world.listen();
    let mut reader = Reader(&bytes[18..]);
    for (kind, _, answer) in &said_and_answered {
        assert_eq!(reader.option_reply(*kind).0, *answer, "option {kind}");
        if *answer == reply::META_CONTEXT {
            assert_eq!(reader.option_reply(*kind).0, reply::ACK);
        }
    }
    assert!(reader.0.is_empty() && world.conn.is_finished());
}

#[test]
fn client_that_sends_too_many_options_is_cut_off() {
    let mut world = World::new(exports(&[("", INFO)]));
    world.hear(&3u32.to_be_bytes()).unwrap();
    let mut heard = 0;
    let reject = loop {
        match world.hear(&client::option(option::LIST, &[])) {
            Ok(()) => heard += 1,
            Err(reject) => break reject,
        }
    };
    assert_eq!((heard, reject.field), (32, "options"));
}

#[test]
fn unknown_flags_and_wrong_magic_end_the_connection() {
    let mut world = World::new(exports(&[("", INFO)]));
    assert_eq!(world.hear(&4u32.to_be_bytes()).unwrap_err().field, "client flags");
    let mut world = World::new(exports(&[("", INFO)]));
    world.hear(&3u32.to_be_bytes()).unwrap();
    assert_eq!(world.hear(b"GET / HTTP/1.1\r\n").unwrap_err().field, "option magic");
    let mut world = World::begun(INFO, true);
    assert_eq!(world.hear(&[0; 28]).unwrap_err().field, "request magic");
}

/// The codes of "Error values".
const EPERM: u32 = 1;
const EIO: u32 = 5;
const EINVAL: u32 = 22;
const ENOSPC: u32 = 28;
const ENOTSUP: u32 = 95;

/// A server after these options and the choice of an export, and what it said to the last of the options.
fn after_options(options: &[(u32, Vec<u8>)], name: &str) -> (World, Vec<(u32, Vec<u8>)>) {
    let mut world = World::new(exports(&[("one", INFO), ("two", INFO)]));
    world.hear(&3u32.to_be_bytes()).unwrap();
    world.listen();
    let mut replies = Vec::new();
    for (kind, data) in options {
        world.hear(&client::option(*kind, data)).unwrap();
        let bytes = world.listen();
        let mut reader = Reader(&bytes);
        replies.clear();
        while !reader.0.is_empty() {
            let (reply, data) = reader.option_reply(*kind);
            replies.push((reply, data.to_vec()));
        }
    }
    world.hear(&client::option(option::GO, &client::go(name, &[]))).unwrap();
    world.listen();
    (world, replies)
}

#[test]
fn context_is_listed_and_selected_for_the_export_that_is_named() {
    let structured = (option::STRUCTURED_REPLY, Vec::new());
    let allocation = |id: u32| (reply::META_CONTEXT, [&id.to_be_bytes()[..], b"base:allocation"].concat());
    let ack = (reply::ACK, Vec::new());
    for (kind, queries, id) in [
        (option::LIST_META_CONTEXT, &[][..], Some(0)),
        (option::LIST_META_CONTEXT, &["base:"], Some(0)),
        (option::LIST_META_CONTEXT, &["x:y"], None),
        (option::SET_META_CONTEXT, &[], None),
        (option::SET_META_CONTEXT, &["base:"], None),
        (option::SET_META_CONTEXT, &["x:y", "base:allocation", "base:allocation"], Some(1)),
    ] {
        let (_, replies) = after_options(&[structured.clone(), (kind, client::contexts("two", queries))], "two");
        let expected: Vec<_> = id.map(allocation).into_iter().chain([ack.clone()]).collect();
        assert_eq!(replies, expected, "{kind} {queries:?}");
    }
    let select = |name: &str| (option::SET_META_CONTEXT, client::contexts(name, &["base:allocation"]));
    for (options, name, code) in [
        (vec![structured.clone(), select("two")], "two", 0),
        (vec![structured.clone(), select("")], "one", 0),
        (vec![structured.clone(), select("one")], "two", EINVAL),
        (vec![structured.clone(), select("two"), select("no such")], "two", EINVAL),
        (vec![structured.clone(), select("two"), (option::SET_META_CONTEXT, vec![1])], "two", EINVAL),
        (vec![structured.clone()], "two", EINVAL),
        (vec![select("two"), structured.clone()], "two", EINVAL),
    ] {
        let (mut world, _) = after_options(&options, name);
        let request = AwaitedRequest { command: command::BLOCK_STATUS, offset: 0, length: 4096, is_whole: false };
        let answer = ask(&mut world, true, &client::request(command::BLOCK_STATUS, 0, 1, 0, 4096), &request);
        let is_right = match answer {
            Answer::Done(bytes) => code == 0 && bytes.len() == 4 * 8,
            Answer::Failed(other) => other == code,
        };
        assert!(is_right, "{options:?} {name}");
    }
}

#[test]
fn extents_are_told_as_the_specification_says() {
    let mut world = World::begun(BlockInfo { block_bytes: 512, ..INFO }, true);
    let mut status = |flags, offset, length| {
        world.hear(&client::request(command::BLOCK_STATUS, flags, 0x0102_0304_0506_0708, offset, length)).unwrap();
        world.listen()
    };
    let head = hex("668e33ef 0001 0005 0102030405060708");
    assert_eq!(
        status(0, 512, 2048),
        [head.clone(), hex("0000001c 00000001 00000200 00000000 00000400 00000003 00000200 00000000")].concat()
    );
    let one = [head, hex("0000000c 00000001 00000200 00000000")].concat();
    assert_eq!(status(command_flag::REQ_ONE, 512, 2048), one);
    for (flags, offset, length) in [(0, 0, 0), (0, 512, 100), (command_flag::DF, 0, 512), (0, INFO.size_bytes, 512)] {
        let bytes = status(flags, offset, length);
        assert_eq!(bytes[..8], hex("668e33ef 0001 8001"), "an error chunk for {flags} {offset} {length}");
        assert_eq!(bytes[20..24], EINVAL.to_be_bytes());
    }
}

/// Sends one request and returns its outcome.
fn ask(world: &mut World, is_structured: bool, bytes: &[u8], request: &AwaitedRequest) -> Answer {
    world.hear(bytes).unwrap();
    let output = world.listen();
    let cookie = u64::from_be_bytes(bytes[8..16].try_into().unwrap());
    let answers = client::replies(&output, &BTreeMap::from([(cookie, request.clone())]), is_structured);
    assert_eq!(answers.len(), 1);
    answers[&cookie].clone()
}

fn fails(info: BlockInfo, command: u16, flags: u16, offset: u64, length: u32) -> u32 {
    let mut codes = Vec::new();
    for is_structured in [true, false] {
        let mut world = World::begun(info, is_structured);
        let mut bytes = client::request(command, flags, 9, offset, length);
        if command == command::WRITE {
            bytes.resize(bytes.len() + length as usize, 0xee);
        }
        let is_whole = flags & command_flag::DF != 0;
        let request = AwaitedRequest { command, offset, length: length as usize, is_whole };
        let answer = ask(&mut world, is_structured, &bytes, &request);
        codes.push(if let Answer::Failed(code) = answer { code } else { 0 });
        // The next request is still read.
        let next = client::request(command::FLUSH, 0, 10, 0, 0);
        let request = AwaitedRequest { command: command::FLUSH, offset: 0, length: 0, is_whole: false };
        assert_eq!(ask(&mut world, is_structured, &next, &request), Answer::Done(Vec::new()));
    }
    codes[0].max(codes[1])
}

#[test]
fn every_wrong_request_fails_with_its_own_code() {
    let (size, sectors) = (INFO.size_bytes, BlockInfo { block_bytes: 512, ..INFO });
    let ro = BlockInfo { is_read_only: true, ..INFO };
    use command::{FLUSH, READ, TRIM, WRITE, WRITE_ZEROES};
    for (info, command, flags, offset, length, code) in [
        (INFO, READ, 0, size - 1, 1, 0),
        (INFO, READ, 0, size - 1, 2, EINVAL),
        (INFO, READ, 0, u64::MAX, 2, EINVAL),
        (INFO, READ, command_flag::FUA, 0, 2, 0),
        (INFO, READ, command_flag::NO_HOLE, 0, 2, EINVAL),
        (INFO, READ, 0, 0, 0, 0),
        (INFO, WRITE, 0, size - 1, 1, 0),
        (INFO, WRITE, command_flag::FUA, 0, 1000, 0),
        (INFO, WRITE, 0, size - 1, 2, ENOSPC),
        (INFO, WRITE, 0, size - 1, 100_000, ENOSPC),
        (INFO, WRITE, command_flag::DF, 0, 2, EINVAL),
        (INFO, WRITE, 0, 0, 0, 0),
        (INFO, WRITE_ZEROES, command_flag::NO_HOLE, 0, 10, 0),
        (INFO, WRITE_ZEROES, 0, size, 1, ENOSPC),
        (INFO, WRITE_ZEROES, command_flag::FAST_ZERO, 0, 10, ENOTSUP),
        (INFO, TRIM, command_flag::FUA, 0, size as u32, 0),
        (INFO, TRIM, 0, 1, size as u32, EINVAL),
        (INFO, TRIM, command_flag::FAST_ZERO, 0, 1, EINVAL),
        (INFO, FLUSH, 0, 0, 0, 0),
        (INFO, FLUSH, 0, 0, 1, EINVAL),
        (INFO, 5, 0, 0, 512, EINVAL),
        (INFO, 7, 0, 0, 512, EINVAL),
        (INFO, 99, 0, 0, 512, EINVAL),
        (ro, READ, 0, 0, 512, 0),
        (ro, FLUSH, 0, 0, 0, 0),
        (ro, WRITE, 0, 0, 512, EPERM),
        (ro, TRIM, 0, 0, 512, EPERM),
        (ro, WRITE_ZEROES, 0, 0, 512, EPERM),
        (sectors, READ, 0, 0, 512, 0),
        (sectors, READ, 0, 1, 512, EINVAL),
        (sectors, WRITE, 0, 0, 511, EINVAL),
        (sectors, TRIM, 0, 512, 100, EINVAL),
    ] {
        let got = fails(info, command, flags, offset, length);
        assert_eq!(got, code, "command {command}, flags {flags:#x}, {length} bytes at {offset} of {info:?}");
    }
    let huge = BlockInfo { size_bytes: 1 << 40, ..INFO };
    let mut world = World::begun(INFO, true);
    assert_eq!(fails_on(huge, 65 << 20), EINVAL, "longer than 64 MiB");
    world.bad_from = Some(0);
    let request = AwaitedRequest { command: READ, offset: 0, length: 512, is_whole: false };
    assert_eq!(ask(&mut world, true, &client::request(READ, 0, 9, 0, 512), &request), Answer::Failed(EIO));
}

/// A read of `length` bytes from a device without a store: it is refused before it gets there.
fn fails_on(info: BlockInfo, length: u32) -> u32 {
    let mut world = World::new(exports(&[("", BlockInfo { size_bytes: 4096, ..info })]));
    world.conn = farbus_wire::nbd::NbdServerConn::new(7, exports(&[("", info)]), &crate::world::LIMITS);
    world.hear(&3u32.to_be_bytes()).unwrap();
    world.hear(&client::option(option::EXPORT_NAME, b"")).unwrap();
    world.listen();
    let request = AwaitedRequest { command: command::READ, offset: 0, length: length as usize, is_whole: false };
    match ask(&mut world, false, &client::request(command::READ, 0, 9, 0, length), &request) {
        Answer::Failed(code) => code,
        Answer::Done(_) => 0,
    }
}

#[test]
fn a_long_read_comes_in_chunks_and_in_one_piece_where_that_is_asked() {
    // The device takes 16 KiB at a time.
    let length = 50_000;
    for (is_structured, flags, chunks) in [(true, 0, 4), (true, command_flag::DF, 1), (false, 0, 0)] {
        let mut world = World::begun(INFO, is_structured);
        let mut expected = vec![0; length];
        farbus_model::BlockStore::read_at(&mut world.store, 1000, &mut expected).unwrap();
        world.hear(&client::request(command::READ, flags, 1, 1000, length as u32)).unwrap();
        assert_eq!(world.requests.len(), 4);
        // In the worst order.
        while !world.held.is_empty() {
            world.answer(world.held.len() - 1);
        }
        let bytes = world.listen();
        let overhead = bytes.len() - length;
        assert_eq!(overhead, if chunks == 0 { 16 } else { chunks * 28 });
        let is_whole = flags & command_flag::DF != 0;
        let awaited = BTreeMap::from([(1, AwaitedRequest { command: command::READ, offset: 1000, length, is_whole })]);
        assert!(client::replies(&bytes, &awaited, is_structured)[&1] == Answer::Done(expected));
        if chunks > 1 {
            let flags = u16::from_be_bytes(bytes[4..6].try_into().unwrap());
            assert_eq!(flags & chunk::FLAG_DONE, 0, "the first to come is not the last");
        }
    }
}

#[test]
fn device_with_an_invalid_block_size_still_gets_whole_blocks() {
    for (block_bytes, request_bytes_max, piece) in
        [(1, 0, 512), (512, 1000, 512), (512, 1536, 1536), (0, 0, 512), (4096, 512, 4096), (512, u32::MAX, 32768)]
    {
        let mut world = World::begun(BlockInfo { block_bytes, request_bytes_max, ..INFO }, true);
        // A block size of 0 has no multiples.
        let (offset, length) = if block_bytes == 0 { (0, 0) } else { (0, 32768) };
        world.hear(&client::request(command::READ, 0, 1, offset, length)).unwrap();
        let lengths: Vec<u32> = world.requests.iter().map(|(_, _, length, _)| *length).collect();
        assert!(
            lengths.first().is_none_or(|first| *first == piece),
            "{lengths:?} of {block_bytes}, {request_bytes_max}"
        );
        assert_eq!((lengths.iter().sum::<u32>(), lengths.is_empty()), (length, length == 0));
        world.listen();
        assert_eq!(world.conn.in_flight(), 0);
    }
}

#[test]
fn a_read_that_fails_in_the_middle_fails_once() {
    for is_structured in [true, false] {
        let mut world = World::begun(INFO, is_structured);
        world.bad_from = Some(20_000);
        let request = AwaitedRequest { command: command::READ, offset: 0, length: 50_000, is_whole: false };
        let bytes = client::request(command::READ, 0, 1, 0, 50_000);
        assert_eq!(ask(&mut world, is_structured, &bytes, &request), Answer::Failed(EIO));
        assert_eq!(world.conn.in_flight(), 0);
    }
}

#[test]
fn a_long_write_is_under_way_before_it_has_arrived() {
    let mut world = World::begun(INFO, true);
    let data: Vec<u8> = (0..100_000u32).map(|at| ((at * 31) >> 3) as u8).collect();
    let bytes = client::write(0, 1, 500, &data);
    world.hear(&bytes[..40_000]).unwrap();
    assert_eq!(world.requests.len(), 2, "16 KiB each");
    world.hear(&bytes[40_000..]).unwrap();
    assert_eq!(world.requests.len(), 7);
    assert_eq!(world.listen().len(), 16, "one answer");
    assert!(world.store.bytes()[500..][..data.len()] == data[..]);
}

#[test]
fn without_credit_nothing_is_parsed_and_nothing_received() {
    let mut world = World::begun(INFO, true);
    let mut requests = 0;
    while world.conn.wants_input() {
        let bytes = client::request(command::FLUSH, 0, requests, 0, 0);
        world.conn.receive_space()[..28].copy_from_slice(&bytes);
        world.conn.handle_received(28);
        while let Some(request) = world.conn.poll_request().unwrap() {
            world.held.push(request.launch().answer(Default::default()));
        }
        requests += 1;
    }
    assert_eq!((requests, world.conn.in_flight()), (256, 256));
    world.answer_all();
    assert!(world.conn.wants_input());
    assert_eq!(world.listen().len(), 256 * 16);
}

#[test]
fn server_that_ends_answers_pending_requests() {
    let mut world = World::begun(INFO, true);
    world.hear(&client::request(command::READ, 0, 1, 0, 4096)).unwrap();
    let half_a_write = client::write(0, 2, 0, &[7; 40_000]);
    world.hear(&half_a_write[..20_000]).unwrap();
    world.conn.close();
    assert!(!world.conn.is_finished());
    let awaited = |command, length| AwaitedRequest { command, offset: 0, length, is_whole: false };
    let both = BTreeMap::from([(1, awaited(command::READ, 4096)), (2, awaited(command::WRITE, 40_000))]);
    let answers = client::replies(&world.listen(), &both, true);
    assert!(matches!(answers[&1], Answer::Done(_)));
    assert_eq!(answers[&2], Answer::Failed(EIO));
    assert!(world.conn.is_finished());
}

#[test]
fn read_that_ends_between_two_pieces_gives_back_what_it_holds() {
    let mut world = World::begun(INFO, false);
    let request = client::request(command::READ, 0, 1, 0, 64 << 10);
    world.conn.receive_space()[..request.len()].copy_from_slice(&request);
    world.conn.handle_received(request.len());
    let before = world.conn.bytes();
    let piece = world.conn.poll_request().unwrap().expect("the first of several pieces");
    assert!(piece.length < 64 << 10);
    assert_eq!(world.conn.bytes(), before + piece.length as usize);
    world.conn.close();
    let brought = vec![0; piece.length as usize].into();
    world.conn.complete(piece.launch().answer(brought), &mut world.pool);
    let awaited = AwaitedRequest { command: command::READ, offset: 0, length: 64 << 10, is_whole: true };
    let answers = client::replies(&world.listen(), &BTreeMap::from([(1, awaited)]), false);
    assert_eq!(answers[&1], Answer::Failed(EIO));
    assert!(world.conn.is_finished() && world.conn.bytes() <= before);
}
