//! What real peers taught about USB/IP 0x0111, one test each, where no device is needed to show it.
//! The rest, which needs one, is in the session room's tests of the same name.

mod peer;

use farbus_model::urb::UrbFlags;
use farbus_model::{
    BufferPool, Direction, Done, EpAddr, IsoPacket, Limits, Payload, Setup, Status, TransferType, Urb, UrbId,
};
use farbus_wire::usbip::client::Answer;
use farbus_wire::usbip::{ClientConn, DeviceRecord, OpStatus, Reject, Request, ServerConn, message, status};
use peer::{BUS_ID, Checker, DEVID, ECONNRESET, Packet, Reply, RetSubmit, Submit};

/// Endpoint 1 is bulk, 2 interrupt, 3 isochronous, in both directions; there are no others.
fn kind_of(endpoint: EpAddr) -> Option<TransferType> {
    match endpoint.number() {
        0 => Some(TransferType::Control),
        1 => Some(TransferType::Bulk),
        2 => Some(TransferType::Interrupt),
        3 => Some(TransferType::Isochronous),
        _ => None,
    }
}

/// Small, so that buffers have to grow and limits are met; a buffer holds the longest device of a list.
const LIMITS: Limits = Limits { receive_bytes: 2048, urbs_in_flight_max: 64, ..Limits::DEFAULT };

/// The exporter's end, with a checker at the other.
struct Server {
    conn: ServerConn,
    pool: BufferPool,
    checker: Checker,
}

impl Server {
    fn new() -> Self {
        Self::over(ServerConn::new(&LIMITS))
    }

    fn imported() -> Self {
        Self::over(ServerConn::imported(&LIMITS, DEVID))
    }

    fn over(conn: ServerConn) -> Self {
        Self { conn, pool: BufferPool::new(0), checker: Checker::default() }
    }

    fn receive(&mut self, bytes: &[u8]) -> Result<Vec<Request>, Reject> {
        let mut requests = Vec::new();
        put(bytes, usize::MAX, |chunk| {
            let space = self.conn.receive_space();
            let count = space.len().min(chunk.len());
            space[..count].copy_from_slice(&chunk[..count]);
            self.conn.handle_received(count);
            while let Some(request) = self.conn.poll_request(kind_of)? {
                requests.push(request);
            }
            Ok(count)
        })?;
        Ok(requests)
    }

    fn refusal(&mut self, bytes: &[u8]) -> Reject {
        self.receive(bytes).map(|requests| format!("{requests:?}")).expect_err("this is refused")
    }

    /// Sends a submit that is understood.
    fn submit(&mut self, submit: &Submit) -> Urb {
        self.checker.asked(submit, submit.ep == 3);
        match self.receive(&submit.bytes()).expect("this is understood").pop() {
            Some(Request::Submit(urb)) => urb,
            other => panic!("a submit, not {other:?}"),
        }
    }

    /// Sends an unlink; says what is to be withdrawn.
    fn unlink(&mut self, seqnum: u32, victim: u32) -> Option<UrbId> {
        self.checker.unlink_asked(seqnum, victim);
        match self.receive(&peer::unlink(seqnum, victim)).expect("this is understood").pop() {
            None => None,
            Some(Request::Unlink(id)) => Some(id),
            other => panic!("an unlink, not {other:?}"),
        }
    }

    fn complete(&mut self, done: Done) -> Vec<Reply> {
        self.conn.complete(done, &mut self.pool);
        self.replies()
    }

    fn replies(&mut self) -> Vec<Reply> {
        let bytes = self.sent();
        self.checker.read(&bytes)
    }

    fn sent(&mut self) -> Vec<u8> {
        let bytes: Vec<u8> = self.conn.poll_transmit().iter().flat_map(|run| run.iter().copied()).collect();
        self.conn.handle_transmitted(bytes.len(), &mut self.pool);
        bytes
    }
}

/// The importer's end. What it still has in flight when a test ends is given up.
struct Client {
    conn: ClientConn,
    pool: BufferPool,
}

impl Drop for Client {
    fn drop(&mut self) {
        self.conn.abandon(Status::Gone);
    }
}

impl Client {
    fn new() -> Self {
        Self { conn: ClientConn::new(&LIMITS), pool: BufferPool::new(0) }
    }

    /// With a device.
    fn imported() -> Self {
        let mut client = Self::new();
        client.conn.import(BUS_ID);
        client.sent();
        let answers = client.receive(&peer::import_reply(BUS_ID)).unwrap();
        assert!(matches!(&answers[..], [Answer::Imported(Ok(record))] if record.device_id() == DEVID));
        client
    }

    fn receive(&mut self, bytes: &[u8]) -> Result<Vec<Answer>, Reject> {
        self.receive_in_steps(bytes, usize::MAX)
    }

    fn receive_in_steps(&mut self, bytes: &[u8], step: usize) -> Result<Vec<Answer>, Reject> {
        let mut answers = Vec::new();
        put(bytes, step, |chunk| {
            let space = self.conn.receive_space();
            let count = space.len().min(chunk.len());
            space[..count].copy_from_slice(&chunk[..count]);
            self.conn.handle_received(count);
            while let Some(answer) = self.conn.poll_answer()? {
                answers.push(answer);
            }
            Ok(count)
        })?;
        Ok(answers)
    }

    fn refusal(&mut self, bytes: &[u8]) -> Reject {
        self.receive(bytes).map(|answers| format!("{answers:?}")).expect_err("this is refused")
    }

    /// What `bytes` finish.
    fn done(&mut self, bytes: &[u8]) -> Vec<Done> {
        let answers = self.receive(bytes).expect("this is understood").into_iter();
        let done = answers.map(|answer| match answer {
            Answer::Done(done) => done,
            other => panic!("a finished request, not {other:?}"),
        });
        done.collect()
    }

    /// Submits; says the sequence number on the wire.
    fn submit(&mut self, urb: Urb) -> u32 {
        let kind = kind_of(urb.endpoint).unwrap();
        self.conn.submit(urb.launch(), kind, &mut self.pool);
        peer::word(&self.sent(), 4)
    }

    /// Withdraws; says the unlink's sequence number on the wire.
    fn unlink(&mut self, id: UrbId) -> u32 {
        self.conn.unlink(id);
        peer::word(&self.sent(), 4)
    }

    fn sent(&mut self) -> Vec<u8> {
        let bytes: Vec<u8> = self.conn.poll_transmit().iter().flat_map(|run| run.iter().copied()).collect();
        self.conn.handle_transmitted(bytes.len(), &mut self.pool);
        bytes
    }
}

/// Hands `bytes` on, at most `step` at a time.
fn put<E>(mut bytes: &[u8], step: usize, mut take: impl FnMut(&[u8]) -> Result<usize, E>) -> Result<(), E> {
    while !bytes.is_empty() {
        let count = take(&bytes[..bytes.len().min(step)])?;
        assert!(count > 0, "there is always room");
        bytes = &bytes[count..];
    }
    Ok(())
}

fn data_in(id: u64, length: u32) -> Urb {
    Urb::data_in(UrbId(id), EpAddr::from_byte(0x81), length)
}

fn iso(id: u64, endpoint: u8, lengths: &[u32]) -> Urb {
    let mut urb = Urb::data_in(UrbId(id), EpAddr::from_byte(endpoint), lengths.iter().sum());
    let mut offset = 0;
    for &length in lengths {
        urb.iso.push(IsoPacket { offset, length, ..IsoPacket::default() });
        offset += length;
    }
    if urb.endpoint.direction() == Direction::Out {
        urb.direction = Direction::Out;
        urb.payload = vec![7; offset as usize].into();
    }
    urb
}

mod handshake {
    use super::*;

    #[test]
    fn a_failure_reply_is_8_bytes_and_nothing_more() {
        let failures =
            [OpStatus::NotAvailable, OpStatus::Busy, OpStatus::DeviceError, OpStatus::NoDevice, OpStatus::Error];
        for (status, code) in failures.into_iter().zip(1u32..) {
            let mut server = Server::new();
            let asked = server.receive(&peer::import_request("9-9")).unwrap();
            assert!(matches!(&asked[..], [Request::Import(bus_id)] if bus_id == "9-9"));
            server.conn.reply_import(Err(status));
            assert!(!server.conn.is_finished());
            assert_eq!(server.sent(), peer::op(0x0111, 0x0003, code));
            assert!(server.conn.is_finished());
            let mut client = Client::new();
            client.conn.import("9-9");
            let answers = client.receive(&peer::op(0x0111, 0x0003, code)).unwrap();
            assert!(matches!(&answers[..], [Answer::Imported(Err(refused))] if *refused == status));
        }
    }

    #[test]
    fn a_status_that_nobody_defined_is_a_failure_too() {
        let mut client = Client::new();
        client.conn.import(BUS_ID);
        let answers = client.receive(&peer::op(0x0111, 0x0003, 77)).unwrap();
        assert!(matches!(answers[..], [Answer::Imported(Err(OpStatus::Error))]));
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
    fn an_operation_that_nobody_defined_is_refused() {
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
        assert!(matches!(server.receive(&peer::list_request()).unwrap()[..], [Request::DeviceList]));
        server.conn.reply_device_list(&records);
        assert_eq!(server.sent(), list);
        for step in [1, 3, 311, 312, usize::MAX] {
            let mut client = Client::new();
            client.conn.device_list();
            let answers = client.receive_in_steps(&list, step).unwrap();
            assert!(matches!(&answers[..], [Answer::DeviceList(listed)] if *listed == records));
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
        let asked = server.receive(&peer::import_request(&longest)).unwrap();
        assert!(matches!(&asked[..], [Request::Import(bus_id)] if *bus_id == longest));
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
    fn a_client_that_goes_on_talking_after_its_list_is_not_heard_and_fills_nothing() {
        let mut server = Server::new();
        server.receive(&peer::list_request()).unwrap();
        server.conn.reply_device_list(&[]);
        for _ in 0..8 {
            let heard = server.receive(&[0x55; 64 << 10]).unwrap();
            assert!(heard.is_empty());
        }
        assert!(server.conn.receive_space().len() > 1, "there is always room");
    }
}

mod headers {
    use super::*;

    /// What the field holds in the wild: Linux, the specification and usbip-win2, and whatever.
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
                server.complete(urb.launch().done(Status::Ok, actual, moved));
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
        server.conn.complete(urb.launch().fail(Status::Stall), &mut server.pool);
        let expected = [RetSubmit::data_in(1, &[9; 13]), RetSubmit::taken(2, 512), RetSubmit::failed(3, peer::EPIPE)];
        assert_eq!(server.sent(), expected.map(|reply| reply.bytes()).concat());
    }

    #[test]
    fn out_replies_say_how_much_was_taken() {
        let mut server = Server::imported();
        for (seqnum, taken) in [(1, 0), (2, 100), (3, 512)] {
            let urb = server.submit(&Submit::data_out(seqnum, 1, &[8; 512]));
            let status = if taken == 512 { Status::Ok } else { Status::Stall };
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
        // Every usb-storage URB from vhci carries DMA_MAP_SG; none of these is a wish.
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
        assert_eq!((urb.direction, urb.endpoint, urb.payload.len()), (Direction::Out, EpAddr::from_byte(0x01), 3));
        let urb = server.submit(&Submit { flags: 0, ..Submit::data_in(2, 1, 3) });
        assert_eq!((urb.direction, urb.endpoint, urb.payload.len()), (Direction::In, EpAddr::from_byte(0x81), 0));
    }

    #[test]
    fn the_setup_packet_is_little_endian_and_passes_verbatim() {
        let mut server = Server::imported();
        let urb = server.submit(&Submit::control_out(1, [0x21, 0x09, 0x34, 0x12, 0x78, 0x56, 3, 0], &[1, 2, 3]));
        let setup = Setup { request_type: 0x21, request: 9, value: 0x1234, index: 0x5678, length: 3 };
        assert_eq!((urb.setup, urb.endpoint), (setup, EpAddr::CONTROL));
    }
}

mod errno {
    use super::*;

    #[test]
    fn outcomes_are_negative_linux_errno_whatever_the_system() {
        let table = [
            (Status::Ok, 0),
            (Status::Stall, -32),
            (Status::Overflow, -75),
            (Status::Protocol, -71),
            (Status::Crc, -84),
            (Status::TimedOut, -110),
            (Status::Shutdown, -108),
            (Status::Gone, -19),
            (Status::Short, -121),
            (Status::IsoMissed, -18),
            (Status::Cancelled, -104),
            (Status::DataRate, -63),
            (Status::Invalid, -22),
            (Status::NoCredit, -12),
            (Status::Other, -5),
        ];
        for (status, errno) in table {
            let mut server = Server::imported();
            let urb = server.submit(&Submit::data_in(1, 1, 4));
            server.complete(urb.launch().fail(status));
            assert_eq!(server.checker.ret_submit(1).status, errno, "{status:?}");
            assert_eq!(status::from_errno(errno), status);
        }
    }

    #[test]
    fn what_other_peers_say_is_understood() {
        let table = [
            (-62, Status::TimedOut),
            (-70, Status::DataRate),
            (-2, Status::Cancelled),
            (-9999, Status::Other),
            (12, Status::Other),
        ];
        for (errno, status) in table {
            let mut client = Client::imported();
            let seqnum = client.submit(data_in(1, 4));
            assert_eq!(client.done(&RetSubmit::failed(seqnum, errno).bytes())[0].status, status, "{errno}");
        }
    }
}

mod isochronous {
    use super::*;

    #[test]
    fn in_data_is_compacted_and_places_come_back_unchanged() {
        let mut server = Server::imported();
        let urb = server.submit(&Submit::iso_in(1, 3, &[100, 200, 300]));
        let mut packets = urb.iso.clone();
        (packets[0].actual, packets[2].actual) = (10, 30);
        packets[1].status = Status::IsoMissed;
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
    fn what_a_client_says_of_packets_before_they_moved_is_not_believed() {
        // Linux presets every packet's status to -EXDEV before it submits.
        let mut server = Server::imported();
        let mut submit = Submit::iso_in(1, 3, &[100, 100]);
        for packet in &mut submit.packets {
            (packet.actual, packet.status) = (77, peer::EXDEV);
        }
        let urb = server.submit(&submit);
        assert!(urb.iso.iter().all(|packet| packet.actual == 0 && packet.status == Status::Ok), "{:?}", urb.iso);
        server.complete(urb.launch().fail(Status::Shutdown));
        assert_eq!(server.checker.ret_submit(1).actual, 0);
    }

    #[test]
    fn packets_1024_are_served_and_1025_are_refused() {
        let mut server = Server::imported();
        let urb = server.submit(&Submit::iso_in(1, 3, &[8; 1024]));
        assert_eq!(urb.iso.len(), 1024);
        let refused = server.refusal(&Submit::iso_in(2, 3, &[8; 1025]).bytes());
        assert_eq!((refused.field, refused.value), ("number_of_packets", 1025));
        let said = refused.to_string();
        assert_eq!(
            said,
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
            // Each lies inside, but they overlap to more than there is.
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
        urb.iso[1] = IsoPacket { actual: 99, status: Status::Crc, ..urb.iso[1] };
        client.conn.submit(urb.launch(), TransferType::Isochronous, &mut client.pool);
        let sent = client.sent();
        let descriptors = [Packet::new(0, 4), Packet::new(4, 4)].map(Packet::bytes).concat();
        assert_eq!(sent[48..], [vec![7; 8], descriptors].concat());
    }
}

mod unlink {
    use super::*;

    #[test]
    fn row_1_no_unlink_came_ret_submit() {
        let mut server = Server::imported();
        let urb = server.submit(&Submit::data_in(1, 1, 4));
        let replies = server.complete(urb.launch().answer(vec![1; 4].into()));
        assert_eq!(replies, [Reply::Submit(RetSubmit::data_in(1, &[1; 4]))]);
    }

    #[test]
    fn row_2_withdrawn_in_time_ret_unlink_104_and_never_a_ret_submit() {
        let mut server = Server::imported();
        let urb = server.submit(&Submit::data_in(10, 1, 4));
        assert_eq!(server.unlink(12, 10), Some(UrbId(10)));
        assert_eq!(server.replies(), [], "nothing is said before the device has said it");
        let replies = server.complete(urb.launch().fail(Status::Cancelled));
        assert_eq!(replies, [Reply::Unlink { seqnum: 12, status: ECONNRESET }]);
        server.checker.assert_settled();
        assert_eq!(server.conn.in_flight(), 0);
    }

    #[test]
    fn row_3_the_device_was_faster_ret_submit_then_ret_unlink_0() {
        let mut server = Server::imported();
        let urb = server.submit(&Submit::data_in(1, 1, 4));
        server.unlink(2, 1);
        let replies = server.complete(urb.launch().answer(vec![1; 4].into()));
        let expected = [Reply::Submit(RetSubmit::data_in(1, &[1; 4])), Reply::Unlink { seqnum: 2, status: 0 }];
        assert_eq!(replies, expected);
    }

    #[test]
    fn row_4_it_had_ended_before_the_unlink_came_ret_unlink_0() {
        let mut server = Server::imported();
        let urb = server.submit(&Submit::data_in(1, 1, 4));
        server.complete(urb.launch().answer(vec![1; 4].into()));
        assert_eq!(server.unlink(2, 1), None);
        assert_eq!(server.replies(), [Reply::Unlink { seqnum: 2, status: 0 }]);
    }

    #[test]
    fn row_5_an_unlink_that_overtakes_its_submit_withdraws_it_when_it_comes() {
        // Linux's vhci_tx sends what is queued to be submitted, then what is queued to be unlinked, and looks again.
        let mut server = Server::imported();
        assert_eq!(server.unlink(9, 8), None);
        assert_eq!(server.unlink(10, 8), None, "twice, if it must be");
        server.checker.asked(&Submit::data_out(8, 1, &[1; 600]), false);
        let heard = server.receive(&Submit::data_out(8, 1, &[1; 600]).bytes()).unwrap();
        assert!(heard.is_empty(), "the device never sees it");
        assert_eq!(server.replies(), [9, 10].map(|seqnum| Reply::Unlink { seqnum, status: ECONNRESET }));
        assert_eq!((server.conn.in_flight(), server.conn.out_bytes_held()), (0, 0));
        assert_eq!(server.conn.backlog_header_bytes(), 0);
        server.checker.assert_settled();
    }

    #[test]
    fn row_6_an_unlink_of_something_unknown_is_answered_at_the_latest_with_the_next_submit() {
        let mut server = Server::imported();
        let urb = server.submit(&Submit::data_in(100, 1, 4));
        server.complete(urb.launch().answer(vec![1; 4].into()));
        for (seqnum, passed_over) in [(101, 99), (102, 0), (103, u32::MAX)] {
            assert_eq!(server.unlink(seqnum, passed_over), None);
            assert_eq!(server.replies(), [Reply::Unlink { seqnum, status: 0 }], "numbers ascend: it will not come");
        }
        server.unlink(104, 105);
        server.unlink(106, 106);
        server.unlink(107, 1000);
        assert_eq!(server.replies(), [], "these may still come");
        server.submit(&Submit::data_in(108, 1, 4));
        assert_eq!(server.replies(), [104, 106].map(|seqnum| Reply::Unlink { seqnum, status: 0 }));
    }

    #[test]
    fn numbers_that_do_not_quite_ascend_leave_no_unlink_waiting() {
        // usbip-win2 numbers its requests in one thread and sends them from several.
        let mut server = Server::imported();
        for seqnum in [7, 6] {
            let urb = server.submit(&Submit::data_in(seqnum, 1, 4));
            server.complete(urb.launch().answer(vec![1; 4].into()));
        }
        server.unlink(9, 7);
        assert_eq!(server.replies(), [Reply::Unlink { seqnum: 9, status: 0 }]);
    }

    #[test]
    fn row_7_a_second_unlink_is_answered_like_the_first() {
        for status in [Status::Cancelled, Status::Ok] {
            let mut server = Server::imported();
            let urb = server.submit(&Submit::data_out(1, 1, &[1; 4]));
            assert_eq!(server.unlink(2, 1), Some(UrbId(1)));
            assert_eq!(server.unlink(3, 1), None, "the device is asked once");
            let replies = match status {
                Status::Ok => server.complete(urb.launch().accept()),
                _ => server.complete(urb.launch().fail(Status::Cancelled)),
            };
            let errno = if status == Status::Ok { 0 } else { ECONNRESET };
            let unlinks = [2, 3].map(|seqnum| Reply::Unlink { seqnum, status: errno });
            assert_eq!(replies[replies.len() - 2..], unlinks);
            assert_eq!(replies.len(), if status == Status::Ok { 3 } else { 2 });
            server.checker.assert_settled();
        }
    }

    #[test]
    fn a_request_that_a_reset_ended_keeps_its_true_status() {
        let mut server = Server::imported();
        let urb = server.submit(&Submit::data_in(1, 1, 4));
        server.unlink(2, 1);
        let replies = server.complete(urb.launch().fail(Status::Shutdown));
        let expected = [Reply::Submit(RetSubmit::failed(1, peer::ESHUTDOWN)), Reply::Unlink { seqnum: 2, status: 0 }];
        assert_eq!(replies, expected);
    }

    #[test]
    fn unlinks_that_wait_for_a_slow_device_are_counted_as_bytes_to_come() {
        // A client that unlinks one URB for ever would otherwise be remembered for ever.
        let mut server = Server::imported();
        let urb = server.submit(&Submit::data_in(1, 1, 4));
        for seqnum in 2..1002 {
            server.unlink(seqnum, 1);
        }
        assert_eq!(server.conn.backlog_bytes(), 0);
        assert_eq!(server.conn.backlog_header_bytes(), 1000 * 48);
        server.complete(urb.launch().fail(Status::Cancelled));
        assert_eq!(server.conn.backlog_header_bytes(), 0);
        server.checker.assert_settled();
    }

    #[test]
    fn the_importer_takes_ret_unlink_104_for_cancelled() {
        let mut client = Client::imported();
        client.submit(data_in(5, 4));
        let unlink = client.unlink(UrbId(5));
        let done = client.done(&peer::ret_unlink(unlink, ECONNRESET));
        assert_eq!((done[0].id, done[0].status, done.len()), (UrbId(5), Status::Cancelled, 1));
        assert_eq!(client.conn.in_flight(), 0);
    }

    #[test]
    fn the_importer_takes_ret_submit_before_ret_unlink_0_for_the_truth() {
        let mut client = Client::imported();
        let seqnum = client.submit(data_in(5, 4));
        let unlink = client.unlink(UrbId(5));
        let both = [RetSubmit::data_in(seqnum, &[1, 2]).bytes(), peer::ret_unlink(unlink, 0)].concat();
        let done = client.done(&both);
        assert_eq!((done.len(), done[0].status, done[0].actual), (1, Status::Ok, 2));
    }

    #[test]
    fn ret_unlink_0_before_ret_submit_cancels_and_the_late_ret_submit_is_swallowed() {
        let mut client = Client::imported();
        let seqnum = client.submit(data_in(5, 4));
        let unlink = client.unlink(UrbId(5));
        let done = client.done(&peer::ret_unlink(unlink, 0));
        assert_eq!((done.len(), done[0].status), (1, Status::Cancelled), "and not an empty success");
        assert!(client.done(&RetSubmit::data_in(seqnum, &[1, 2]).bytes()).is_empty());
        assert_eq!(client.refusal(&RetSubmit::data_in(seqnum, &[1, 2]).bytes()).field, "seqnum", "once");
    }

    #[test]
    fn the_linux_stub_may_put_the_true_status_into_ret_unlink() {
        for (errno, status) in [(-2, Status::Cancelled), (-32, Status::Stall), (-108, Status::Shutdown)] {
            let mut client = Client::imported();
            client.submit(data_in(5, 4));
            let unlink = client.unlink(UrbId(5));
            assert_eq!(client.done(&peer::ret_unlink(unlink, errno))[0].status, status);
        }
    }

    #[test]
    fn an_unknown_ret_unlink_is_harmless() {
        let mut client = Client::imported();
        let seqnum = client.submit(data_in(5, 4));
        assert!(client.done(&peer::ret_unlink(4242, 0)).is_empty());
        assert!(client.done(&peer::ret_unlink(seqnum, ECONNRESET)).is_empty(), "a submit's number is no unlink's");
        assert_eq!(client.done(&RetSubmit::data_in(seqnum, &[1]).bytes()).len(), 1);
    }

    #[test]
    fn a_reset_withdraws_everything_and_the_link_goes_on() {
        let mut client = Client::imported();
        let (first, second) = (client.submit(data_in(1, 4)), client.submit(data_in(2, 4)));
        let unlinked = client.unlink(UrbId(2));
        let done = client.conn.withdraw_all(Status::Shutdown);
        assert_eq!(
            done.iter().map(|done| (done.id, done.status)).collect::<Vec<_>>(),
            [(UrbId(1), Status::Shutdown), (UrbId(2), Status::Shutdown)]
        );
        let unlink = client.sent();
        assert_eq!((unlink.len(), peer::word(&unlink, 20)), (48, first), "the second is withdrawn already");
        let third = client.submit(data_in(3, 4));
        // One was faster, one was not.
        let late = [
            RetSubmit::data_in(first, &[1; 4]).bytes(),
            peer::ret_unlink(peer::word(&unlink, 4), 0),
            peer::ret_unlink(unlinked, ECONNRESET),
            RetSubmit::data_in(third, &[3; 4]).bytes(),
        ];
        let done = client.done(&late.concat());
        assert_eq!(done.iter().map(|done| (done.id, done.status)).collect::<Vec<_>>(), [(UrbId(3), Status::Ok)]);
        assert_eq!(client.refusal(&RetSubmit::data_in(second, &[1; 4]).bytes()).field, "seqnum");
    }

    #[test]
    fn a_second_wish_to_withdraw_sends_no_second_unlink() {
        let mut client = Client::imported();
        client.submit(data_in(5, 4));
        client.conn.unlink(UrbId(5));
        client.conn.unlink(UrbId(5));
        client.conn.unlink(UrbId(6));
        assert_eq!(client.sent().len(), 48);
    }
}

mod refusals {
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
            ("transfer_buffer_length", with(24, (16 << 20) + 1), (16 << 20) + 1),
            ("transfer_buffer_length", with(24, u32::MAX), u64::from(u32::MAX)),
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
            client.conn.submit(data_in(id, 4).launch(), TransferType::Bulk, &mut client.pool);
            client.sent();
            let unlink = client.unlink(UrbId(id));
            match client.receive(&peer::ret_unlink(unlink, 0)) {
                Ok(answers) => assert_eq!(answers.len(), 1),
                Err(refused) => {
                    assert_eq!((refused.field, refused.value), ("status", 0));
                    assert_eq!(id as usize, LIMITS.urbs_in_flight_max);
                    assert_eq!(client.conn.in_flight(), 1, "whoever asked last is answered when the link is given up");
                    return;
                }
            }
        }
        panic!("this went on for too long");
    }
}

mod cuts {
    use super::*;

    /// A session's worth of messages of every kind.
    fn client_bytes() -> Vec<u8> {
        let mut bytes = peer::import_request(BUS_ID);
        let submits = [
            Submit::control(1, peer::setup::GET_DEVICE_18),
            Submit::control_out(2, [0x40, 0x5b, 0, 0, 0, 0, 3, 0], &[1, 2, 3]),
            Submit { number_of_packets: u32::MAX, ..Submit::data_out(3, 1, &[4; 700]) },
            Submit::data_in(4, 1, 512),
            Submit::iso_out(5, 3, &[3, 0, 5], &[9; 8]),
            Submit::iso_in(6, 3, &[8, 8]),
            Submit::data_out(7, 2, &[]),
        ];
        bytes.extend(submits.iter().flat_map(Submit::bytes));
        bytes.extend(peer::unlink(8, 4));
        bytes.extend(peer::unlink(9, 100));
        bytes
    }

    fn describe(request: &Request) -> String {
        match request {
            Request::Submit(urb) => {
                format!("{:?} {:?}", Urb { payload: Payload::Empty, ..urb.clone() }, urb.payload.contiguous())
            }
            other => format!("{other:?}"),
        }
    }

    /// What a server understands of `bytes` when they come `step` at a time.
    fn understood(bytes: &[u8], step: usize) -> Vec<String> {
        let mut server = Server::new();
        let record = DeviceRecord::decode(peer::device_record(BUS_ID, 1).first_chunk().unwrap()).unwrap();
        let mut heard = Vec::new();
        for chunk in bytes.chunks(step) {
            for request in server.receive_with_import(chunk, &record) {
                heard.push(describe(&request));
            }
        }
        heard
    }

    impl Server {
        fn receive_with_import(&mut self, bytes: &[u8], record: &DeviceRecord) -> Vec<Request> {
            let mut requests = Vec::new();
            put(bytes, usize::MAX, |chunk| {
                let space = self.conn.receive_space();
                let count = space.len().min(chunk.len());
                space[..count].copy_from_slice(&chunk[..count]);
                self.conn.handle_received(count);
                while let Some(request) = self.conn.poll_request(kind_of)? {
                    if let Request::Import(_) = request {
                        self.conn.reply_import(Ok(record));
                    }
                    requests.push(request);
                }
                Ok::<_, Reject>(count)
            })
            .expect("this is understood");
            requests
        }
    }

    #[test]
    fn byte_by_byte_a_server_understands_the_same_as_all_at_once() {
        let bytes = client_bytes();
        let whole = understood(&bytes, usize::MAX);
        assert_eq!(whole.len(), 9);
        for step in [1, 2, 7, 47, 48, 49, 320, 1000] {
            assert_eq!(understood(&bytes, step), whole, "{step} at a time");
        }
    }

    #[test]
    fn truncated_anywhere_a_server_waits_and_understands_what_was_whole() {
        let bytes = client_bytes();
        let whole = understood(&bytes, usize::MAX);
        for cut in 0..bytes.len() {
            let heard = understood(&bytes[..cut], usize::MAX);
            assert_eq!(heard, whole[..heard.len()], "cut at {cut}");
        }
    }

    fn server_bytes(client: &mut Client) -> Vec<u8> {
        let first = client.submit(data_in(1, 64));
        let second = client.submit(Urb::data_out(UrbId(2), EpAddr::from_byte(1), vec![0; 700].into()));
        let third = client.submit(iso(3, 0x83, &[10, 10]));
        let fourth = client.submit(iso(4, 0x03, &[3, 5]));
        client.submit(data_in(5, 64));
        let unlink = client.unlink(UrbId(5));
        let packet = |offset, length, actual| Packet { offset, length, actual, status: 0 };
        let replies = [
            RetSubmit::data_in(first, &[1; 33]).bytes(),
            RetSubmit::taken(second, 700).bytes(),
            RetSubmit::iso(third, &[packet(0, 10, 4), packet(10, 10, 2)], &[5; 6]).bytes(),
            RetSubmit::iso(fourth, &[packet(0, 3, 3), packet(3, 5, 5)], &[]).bytes(),
            peer::ret_unlink(unlink, ECONNRESET),
        ];
        replies.concat()
    }

    #[test]
    fn byte_by_byte_a_client_understands_the_same_as_all_at_once() {
        let understood = |step: usize| {
            let mut client = Client::imported();
            let bytes = server_bytes(&mut client);
            let answers = client.receive_in_steps(&bytes, step).unwrap().into_iter();
            let done = answers.map(|answer| match answer {
                Answer::Done(done) => done,
                other => panic!("{other:?}"),
            });
            done.collect::<Vec<_>>()
        };
        let whole = understood(usize::MAX);
        assert_eq!(whole.len(), 5);
        for step in [1, 5, 47, 48, 49, 50, 113] {
            assert_eq!(understood(step), whole, "{step} at a time");
        }
    }

    #[test]
    fn truncated_anywhere_a_client_waits() {
        let mut client = Client::imported();
        let bytes = server_bytes(&mut client);
        for cut in 0..bytes.len() {
            let mut client = Client::imported();
            server_bytes(&mut client);
            let done = client.done(&bytes[..cut]).len();
            assert_eq!(client.conn.in_flight(), 5 - done, "cut at {cut}");
        }
    }

    #[test]
    fn an_operations_header_is_as_the_document_says() {
        assert_eq!((message::VERSION, message::OP_HEADER_BYTES, message::HEADER_BYTES), (0x0111, 8, 48));
        assert_eq!((message::DEVICE_RECORD_BYTES, message::ISO_PACKET_BYTES), (312, 16));
    }
}
