//! What the Windows implementations do on the wire and Linux does not, in both roles: usbip-win2 as the client of
//! farbus's exporter, usbipd-win as the exporter of farbus's importer.

mod world;

use farbus_gadgets::keyboard::KeyboardGadget;
use farbus_model::{
    BufferPool, CompletionQueue, Device, EpAddr, Instant, IsoPacket, OwnerCommand, Payload, SessionLimits, SetupPacket,
    TransferDirection, TransferType, Urb, UrbId, UrbStatus,
};
use farbus_session::importer::HandshakeAnswer;
use farbus_session::{ImportHandshake, RemoteDevice};
use world::peer::{self, BUS_ID, ECONNRESET, Packet, RetSubmit, Submit, setup};
use world::{Loopback, Manners, Scripted};

const LIMITS: SessionLimits = SessionLimits { receive_bytes: 4096, ..SessionLimits::DEFAULT };

/// SET_FEATURE(PORT_RESET) of port 1, by which usbip-win2 resets a device.
const PORT_RESET: [u8; 8] = [0x23, 3, 4, 0, 1, 0, 0, 0];

mod client_of_windows {
    use super::*;

    /// A request as usbip-win2 sends it: −1 packets unless it is isochronous, and no interval.
    fn marked(submit: Submit) -> Submit {
        let number_of_packets = if submit.ep == 3 { submit.number_of_packets } else { u32::MAX };
        Submit { number_of_packets, interval: 0, ..submit }
    }

    /// Its numbers: a count, with the direction in bit 0.
    fn number(count: u32, submit: &Submit) -> u32 {
        count << 1 | submit.direction
    }

    fn configured() -> Loopback<Scripted> {
        let mut loopback = Loopback::imported(Scripted::new(Manners::default()), LIMITS);
        loopback.ask(&marked(Submit::control(2, setup::set_configuration(1))));
        loopback.device(|device, done| device.complete(EpAddr::CONTROL, done));
        loopback.read();
        loopback
    }

    #[test]
    fn numbers_that_several_senders_shuffled_are_answered_each() {
        let mut loopback = configured();
        // 32 requests: the number was taken before the lock under which it was sent.
        let mut counts: Vec<u32> = (10..42).collect();
        counts.chunks_mut(5).for_each(<[u32]>::reverse);
        for count in counts {
            let submit = match count % 3 {
                0 => Submit::data_in(0, 1, 64),
                1 => Submit::data_out(0, 1, &[count as u8; 32]),
                _ => Submit::iso_in(0, 3, &[8, 8]),
            };
            loopback.submit(&marked(Submit { seqnum: number(count, &submit), ..submit }));
        }
        for endpoint in [0x81, 0x01, 0x83] {
            loopback.device(|device, done| while device.complete(EpAddr::from_byte(endpoint), done) {});
        }
        loopback.read();
        loopback.checker.assert_settled();
        assert!(loopback.checker.replies.iter().all(|reply| reply.status() == 0));
    }

    /// Its driver completes a cancelled request at once, and drops whatever answer comes.
    #[test]
    fn unlink_whose_answer_nobody_awaits_leaves_the_other_requests_alone() {
        let mut loopback = configured();
        for count in 10..13 {
            let submit = Submit::data_in(0, 1, 64);
            loopback.submit(&marked(Submit { seqnum: number(count, &submit), ..submit }));
        }
        // The unlink's own number is of the same count, and lower than one that was sent before.
        loopback.unlink(18, 23);
        loopback.device(|device, done| while device.complete(EpAddr::from_byte(0x81), done) {});
        let answers: Vec<_> = loopback.read().iter().map(|reply| (reply.seqnum(), reply.status())).collect();
        assert_eq!(answers, [(18, ECONNRESET), (21, 0), (25, 0)]);
        loopback.checker.assert_settled();
    }

    #[test]
    fn descriptor_read_of_client_that_marks_no_packets_is_no_reset_sign() {
        for read in [setup::GET_DEVICE_8, setup::GET_DEVICE_64] {
            let mut loopback = configured();
            loopback.submit(&marked(Submit::data_in(21, 2, 8)));
            loopback.ask(&marked(Submit::control(22, read)));
            assert_eq!(loopback.exporter.counters().resets, 0);
            assert_eq!((loopback.checker.ret_submit(22).status, loopback.checker.open()), (0, vec![21]));
        }
    }

    #[test]
    fn descriptor_read_after_a_port_reset_request_is_no_reset_sign() {
        // A client that marks nothing, and asks for its resets.
        let mut loopback = Loopback::configured(KeyboardGadget::device(), LIMITS);
        loopback.submit(&Submit::data_in(21, 1, 8));
        loopback.ask(&Submit::control(22, PORT_RESET));
        assert_eq!((loopback.checker.ret_submit(21).status, loopback.checker.ret_submit(22).status), (-108, 0));
        loopback.submit(&Submit::data_in(23, 1, 8));
        loopback.ask(&Submit::control(24, setup::GET_DEVICE_64));
        assert_eq!((loopback.exporter.counters().resets, loopback.checker.open()), (1, vec![23]));
        loopback.exporter.command(loopback.now, &OwnerCommand::Type("a".into())).unwrap();
        loopback.read();
        assert_eq!(loopback.checker.ret_submit(23).data[2], 4, "the read that was pending brings the key");
    }

    #[test]
    fn interrupt_read_without_an_interval_is_served() {
        let mut loopback = Loopback::configured(KeyboardGadget::device(), LIMITS);
        loopback.submit(&marked(Submit::data_in(21, 1, 8)));
        loopback.exporter.command(loopback.now, &OwnerCommand::Type("a".into())).unwrap();
        loopback.read();
        assert_eq!(loopback.checker.ret_submit(21).data.len(), 8);
    }

    #[test]
    fn request_without_limit_of_length_does_not_cost_the_connection() {
        let mut loopback = configured();
        loopback.submit(&marked(Submit::data_in(21, 2, 8)));
        loopback.ask(&marked(Submit { length: 32 << 20, ..Submit::data_in(23, 1, 0) }));
        assert_eq!(loopback.checker.ret_submit(23).status, peer::EINVAL);
        assert_eq!(loopback.checker.open(), [21]);
    }
}

mod exporter_of_windows {
    use super::*;

    /// A device that was imported from an exporter that the test plays.
    struct Imported {
        device: RemoteDevice,
        done: CompletionQueue,
    }

    impl Drop for Imported {
        fn drop(&mut self) {
            self.device.handle_lost(&mut self.done);
        }
    }

    impl Imported {
        fn new() -> Self {
            let mut handshake = ImportHandshake::import(LIMITS, BUS_ID);
            let reply = peer::import_reply(BUS_ID);
            handshake.receive_space()[..reply.len()].copy_from_slice(&reply);
            let answer = handshake.handle_received(reply.len()).unwrap();
            let Some(HandshakeAnswer::Imported(record)) = answer else { panic!("not {answer:?}") };
            let mut device = handshake.into_device(record);
            device.set_descriptors(Scripted::new(Manners::default()).descriptors().clone());
            let mut imported = Self { device, done: CompletionQueue::new(BufferPool::new(0)) };
            imported.sent();
            let seqnum = imported.submit(Urb::control(UrbId(1), SetupPacket::set_configuration(1), Payload::Empty));
            imported.receive(&RetSubmit::taken(seqnum, 0).bytes());
            imported
        }

        fn sent(&mut self) -> Vec<u8> {
            let bytes: Vec<u8> = self.device.poll_transmit().iter().flat_map(|run| run.iter().copied()).collect();
            self.device.handle_transmitted(bytes.len(), &mut self.done);
            bytes
        }

        /// Submits; returns the number on the wire.
        fn submit(&mut self, urb: Urb) -> u32 {
            self.device.submit(Instant::ZERO, urb.launch(), &mut self.done);
            peer::word(&self.sent(), 4)
        }

        /// Cancels; returns the unlink's number on the wire.
        fn cancel(&mut self, id: u64) -> u32 {
            self.device.cancel(Instant::ZERO, UrbId(id), &mut self.done);
            peer::word(&self.sent(), 4)
        }

        fn receive(&mut self, bytes: &[u8]) -> Vec<(u64, UrbStatus, usize)> {
            self.device.receive_space()[..bytes.len()].copy_from_slice(bytes);
            self.device.handle_received(bytes.len(), &mut self.done).unwrap();
            std::iter::from_fn(|| self.done.pop()).map(|done| (done.id.0, done.status, done.payload.len())).collect()
        }
    }

    /// usbipd-win takes the type of an endpoint from the request: without an interval it is bulk.
    #[test]
    fn each_request_states_the_interval_of_its_descriptor() {
        let mut imported = Imported::new();
        let interval = |imported: &mut Imported, urb: Urb| {
            let kind = imported.device.selection().endpoint(urb.endpoint).expect("the device has it").kind;
            imported.device.submit(Instant::ZERO, urb.launch(), &mut imported.done);
            (kind, peer::word(&imported.sent(), 36))
        };
        for (id, address) in (10..).zip([0x81, 0x01, 0x82, 0x02]) {
            let address = EpAddr::from_byte(address);
            let urb = match address.direction() {
                TransferDirection::In => Urb::data_in(UrbId(id), address, 8),
                TransferDirection::Out => Urb::data_out(UrbId(id), address, vec![1; 8].into()),
            };
            let (kind, interval) = interval(&mut imported, urb);
            assert_eq!(interval > 0, kind == TransferType::Interrupt, "{address}: {interval}");
        }
        let iso = vec![IsoPacket { length: 8, ..Default::default() }];
        let urb = Urb { iso, ..Urb::data_in(UrbId(20), EpAddr::from_byte(0x83), 8) };
        assert!(interval(&mut imported, urb).1 > 0);
    }

    /// It answers one cancelled read of several with −104; the others keep their order and get the data.
    #[test]
    fn one_of_several_reads_is_cancelled_and_the_others_go_on() {
        let mut imported = Imported::new();
        let numbers: Vec<u32> =
            (10..13).map(|id| imported.submit(Urb::data_in(UrbId(id), EpAddr::from_byte(0x81), 64))).collect();
        let unlink = imported.cancel(11);
        assert_eq!(imported.receive(&peer::ret_unlink(unlink, ECONNRESET)), [(11, UrbStatus::Cancelled, 0)]);
        assert_eq!(imported.receive(&RetSubmit::data_in(numbers[0], &[1; 64]).bytes()), [(10, UrbStatus::Ok, 64)]);
        assert_eq!(imported.receive(&RetSubmit::data_in(numbers[2], &[3; 20]).bytes()), [(12, UrbStatus::Ok, 20)]);
    }

    /// A read that ended before its unlink came: RET_SUBMIT with −1 packets, then RET_UNLINK 0.
    #[test]
    fn answer_that_overtook_its_unlink_is_the_requests() {
        let mut imported = Imported::new();
        let number = imported.submit(Urb::data_in(UrbId(10), EpAddr::from_byte(0x82), 8));
        let unlink = imported.cancel(10);
        let reply = RetSubmit { number_of_packets: u32::MAX, ..RetSubmit::data_in(number, &[7; 8]) };
        assert_eq!(imported.receive(&reply.bytes()), [(10, UrbStatus::Ok, 8)]);
        assert_eq!(imported.receive(&peer::ret_unlink(unlink, 0)), []);
        let iso = vec![IsoPacket { length: 8, ..Default::default() }];
        let urb = Urb { iso, ..Urb::data_in(UrbId(11), EpAddr::from_byte(0x83), 8) };
        let number = imported.submit(urb);
        let packet = Packet { length: 8, actual: 3, ..Packet::default() };
        assert_eq!(imported.receive(&RetSubmit::iso(number, &[packet], &[5; 3]).bytes()), [(11, UrbStatus::Ok, 3)]);
    }
}
