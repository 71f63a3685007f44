//! Peculiarities of real USB/IP 0x0111 peers that need a device to show, one test each. The others are in the tests of
//! the same name in the crate farbus-wire.

mod world;

use std::time::Duration;

use farbus_gadgets::EmulatedDevice;
use farbus_gadgets::keyboard::KeyboardGadget;
use farbus_gadgets::zero::{SourcePattern, SourceSink};
use farbus_model::{
    Device, EpAddr, Instant, OwnerCommand, SessionLimits, SetupPacket, Urb, UrbId, UrbStatus, UsbSpeed,
};
use farbus_session::{ConnectionFault, ExportRegistry, PortResetPolicy, UseEnding};
use world::peer::{self, BUS_ID, ECONNRESET, Packet, Reply, RetSubmit, Submit, setup};
use world::scripted::Event;
use world::{Loopback, Manners, Relay, Scripted};

/// Small, so that buffers must grow.
const LIMITS: SessionLimits = SessionLimits { receive_bytes: 4096, ..SessionLimits::DEFAULT };

fn zero() -> EmulatedDevice<SourceSink> {
    SourceSink::device(UsbSpeed::High, SourcePattern::Mod63, true)
}

/// The data that the source sends on a bulk endpoint.
fn mod63(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at % 512 % 63) as u8).collect()
}

fn scripted() -> Scripted {
    Scripted::new(Manners::default())
}

const BULK_IN: EpAddr = EpAddr::from_byte(0x81);
const BULK_OUT: EpAddr = EpAddr::from_byte(0x01);
const INTERRUPT_IN: EpAddr = EpAddr::from_byte(0x82);

fn unlinked(seqnum: u32) -> Reply {
    Reply::Unlink { seqnum, status: ECONNRESET }
}

mod handshake {
    use super::*;

    #[test]
    fn device_is_listed_and_imported_on_two_connections() {
        let mut loopback = Loopback::connected(zero(), LIMITS);
        loopback.receive(&peer::list_request()).unwrap();
        let list = loopback.read_bytes(usize::MAX);
        assert_eq!(list[..12], [&peer::op(0x0111, 0x0005, 0)[..], &[0, 0, 0, 1]].concat());
        assert_eq!((list.len(), &list[list.len() - 4..]), (12 + 312 + 4, &[0xff, 0, 0, 0][..]), "one vendor interface");
        assert!(loopback.exporter.is_finished(), "a list is all that such a connection is for");

        let mut loopback = Loopback::connected(zero(), LIMITS);
        loopback.receive(&peer::import_request(BUS_ID)).unwrap();
        let reply = loopback.read_bytes(usize::MAX);
        assert_eq!((&reply[..8], reply.len()), (&peer::op(0x0111, 0x0003, 0)[..], 8 + 312));
        assert_eq!(reply[8..320], list[12..324], "the same record, without interfaces");
        loopback.ask(&Submit::control(1, setup::GET_DEVICE_18));
        assert_eq!(loopback.checker.ret_submit(1).data[..2], [18, 1]);
    }

    #[test]
    fn unknown_device_is_refused_in_8_bytes_and_the_connection_ends() {
        let mut loopback = Loopback::connected(zero(), LIMITS);
        loopback.receive(&peer::import_request("7-7")).unwrap();
        assert_eq!(loopback.read_bytes(usize::MAX), peer::op(0x0111, 0x0003, 4));
        assert!(loopback.exporter.is_finished() && loopback.exporter.device().is_none());
    }

    #[test]
    fn device_in_use_is_listed_and_refused_as_busy() {
        let mut registry = ExportRegistry::default();
        let bus_id = registry.add("zero", Box::new(zero())).unwrap().bus_id.clone();
        let claimed = registry.claim(&bus_id, "192.0.2.1:5555", Instant::ZERO).map_err(|_| ()).unwrap();
        let refused = registry.claim(&bus_id, "192.0.2.2:5555", Instant::ZERO).map(|_| ()).unwrap_err();
        assert_eq!(refused.code(), 2);
        assert_eq!(registry.records(Instant::ZERO).len(), 1);
        assert_eq!(registry.entries().next().unwrap().holder.unwrap().who, "192.0.2.1:5555");
        registry.release(&bus_id, "192.0.2.1:5555", Some(claimed.device), UseEnding::Detached, Instant::ZERO);
        assert!(registry.claim(&bus_id, "192.0.2.2:5555", Instant::ZERO).is_ok());
        let unknown = registry.claim("9-9", "192.0.2.2:5555", Instant::ZERO).map(|_| ()).unwrap_err();
        assert_eq!(unknown.code(), 4);
    }

    #[test]
    fn silent_peer_is_disconnected_after_10_s() {
        let openings = [vec![], peer::op(0x0111, 0x8003, 0), peer::import_request(BUS_ID)[..39].to_vec()];
        for opening in openings {
            let mut loopback = Loopback::connected(zero(), LIMITS);
            let start = loopback.now;
            assert_eq!(loopback.exporter.poll_timeout(), Some(start + Duration::from_secs(10)));
            loopback.receive(&opening).unwrap();
            loopback.now = start + Duration::from_nanos(9_999_999_999);
            assert_eq!(loopback.advance(), Ok(()));
            loopback.now = start + Duration::from_secs(10);
            assert_eq!(loopback.advance(), Err(ConnectionFault::SaidNothing), "after {} bytes", opening.len());
            assert_eq!(ConnectionFault::SaidNothing.to_string(), "the peer asked for nothing within 10 s");
            assert!(loopback.hang_up().is_none(), "it held no device");
        }
    }

    #[test]
    fn peer_that_does_not_read_its_device_list_is_disconnected() {
        let mut loopback = Loopback::connected(zero(), LIMITS);
        loopback.receive(&peer::list_request()).unwrap();
        loopback.now = loopback.now + Duration::from_secs(10);
        assert_eq!(loopback.advance(), Err(ConnectionFault::SaidNothing));
    }

    #[test]
    fn client_with_a_device_may_be_silent_for_ever() {
        let mut loopback = Loopback::connected(zero(), LIMITS);
        loopback.receive(&peer::import_request(BUS_ID)).unwrap();
        loopback.now = loopback.now + Duration::from_secs(1_000_000);
        assert_eq!((loopback.advance(), loopback.exporter.poll_timeout()), (Ok(()), None));
    }
}

mod requests {
    use super::*;

    #[test]
    fn unknown_endpoint_fails_the_request_and_not_the_connection() {
        let mut loopback = Loopback::imported(zero(), LIMITS);
        loopback.ask(&Submit::data_in(1, 1, 64));
        assert_eq!(loopback.checker.ret_submit(1).status, peer::EINVAL, "not configured yet");
        loopback.ask(&Submit::control(2, setup::set_configuration(1)));
        loopback.ask(&Submit::data_in(3, 9, 64));
        loopback.ask(&Submit::data_out(4, 9, &[1; 64]));
        assert_eq!([3, 4].map(|seqnum| loopback.checker.ret_submit(seqnum).status), [peer::EINVAL; 2]);
        loopback.ask(&Submit::data_in(5, 1, 64));
        assert_eq!(loopback.checker.ret_submit(5).data, mod63(64));
        loopback.checker.assert_settled();
    }

    #[test]
    fn wrong_device_id_ends_the_connection() {
        let mut loopback = Loopback::imported(zero(), LIMITS);
        let fault = loopback.receive(&Submit { devid: 0x0001_0003, ..Submit::data_in(1, 1, 4) }.bytes()).unwrap_err();
        let printed = "the peer sent devid = 65539 (0x10003), but it is that of the imported device";
        assert_eq!(fault.to_string(), printed);
        assert!(loopback.end().0.selection().configuration() == 0);
    }

    #[test]
    fn number_of_packets_is_echoed_by_every_kind_of_endpoint() {
        let mut loopback = Loopback::configured(zero(), LIMITS);
        for (at, number_of_packets) in [0, u32::MAX, 1, 1025, 0xdead_beef].into_iter().enumerate() {
            let seqnum = at as u32 * 10;
            let all = [
                Submit::control(seqnum, setup::GET_CONFIGURATION),
                Submit::data_in(seqnum + 1, 1, 10),
                Submit::data_out(seqnum + 2, 1, &mod63(600)),
                Submit::data_in(seqnum + 3, 2, 10),
                Submit::data_out(seqnum + 4, 2, &[0; 1]),
            ];
            for submit in all {
                loopback.submit(&Submit { number_of_packets, ..submit });
                loopback.pass(Duration::from_millis(1));
                loopback.read();
            }
        }
        loopback.checker.assert_settled();
        assert!(loopback.checker.replies.iter().all(|reply| reply.status() == 0));
    }

    #[test]
    fn reply_states_what_the_device_took_and_gave() {
        let mut loopback = Loopback::configured(zero(), LIMITS);
        loopback.ask(&Submit::data_out(1, 1, &mod63(5000)));
        loopback.ask(&Submit::data_in(2, 1, 5000));
        loopback.ask(&Submit::data_out(3, 1, &[]));
        loopback.ask(&Submit::data_in(4, 1, 0));
        assert_eq!(loopback.checker.ret_submit(1).actual, 5000);
        assert_eq!(loopback.checker.ret_submit(2).data, mod63(5000));
        let short = Submit { flags: 0x201, ..Submit::control(5, setup::get_string(1)) };
        loopback.ask(&short);
        let reply = loopback.checker.ret_submit(5);
        assert_eq!((reply.status, reply.data.len()), (0, 2 + 2 * "farbus".len()), "255 asked for, and no -121");
        loopback.checker.assert_settled();
    }

    #[test]
    fn contradicting_control_header_frames_its_request_and_is_refused() {
        let mut loopback = Loopback::configured(zero(), LIMITS);
        let wrong = Submit { setup: setup::GET_DEVICE_18, ..Submit::data_out(1, 0, &[9; 18]) };
        loopback.ask(&wrong);
        assert_eq!(loopback.checker.ret_submit(1).status, peer::EINVAL);
        loopback.ask(&Submit::control(2, setup::GET_DEVICE_18));
        assert_eq!(loopback.checker.ret_submit(2).actual, 18, "the next message began where it should");
    }

    #[test]
    fn request_above_16_mib_is_refused_with_its_data_and_the_next_is_served() {
        let mut loopback = Loopback::configured(zero(), LIMITS);
        loopback.ask(&Submit { length: 0x0100_0001, ..Submit::data_in(1, 1, 0) });
        let data = vec![0xa5; 0x0100_0001];
        loopback.submit(&Submit::data_out(2, 1, &data));
        loopback.read();
        for seqnum in [1, 2] {
            let reply = loopback.checker.ret_submit(seqnum);
            assert_eq!((reply.status, reply.actual), (peer::EINVAL, 0));
        }
        loopback.ask(&Submit::data_in(3, 1, 5000));
        assert_eq!(loopback.checker.ret_submit(3).data, mod63(5000), "the next message began where it should");
        loopback.checker.assert_settled();
    }

    #[test]
    fn too_long_request_is_unlinked_like_any_other() {
        let mut loopback = Loopback::configured(scripted(), LIMITS);
        loopback.unlink(8, 7);
        let too_long = Submit { length: 0x0100_0001, ..Submit::data_in(7, 1, 0) };
        loopback.submit(&too_long);
        assert_eq!(loopback.read(), [unlinked(8)], "it came behind its unlink, and is not answered");
        loopback.submit(&Submit { seqnum: 9, ..too_long });
        loopback.unlink(10, 9);
        let order: Vec<_> = loopback.read().iter().map(|reply| (reply.seqnum(), reply.status())).collect();
        assert_eq!(order, [(9, peer::EINVAL), (10, 0)]);
    }

    #[test]
    fn reused_number_in_flight_ends_the_connection_and_loses_nothing() {
        let mut loopback = Loopback::configured(scripted(), LIMITS);
        loopback.submit(&Submit::data_in(1, 1, 4));
        let fault = loopback.receive(&Submit::data_out(1, 1, &[0; 9]).bytes()).unwrap_err();
        assert!(matches!(fault, ConnectionFault::Rejected(reject) if reject.field == "seqnum"));
        let (device, _) = loopback.end();
        assert_eq!((device.holds(), device.taken), (0, device.given));
    }

    #[test]
    fn session_byte_by_byte_is_answered_like_all_at_once() {
        let frames = [
            peer::import_request(BUS_ID),
            Submit::control(1, setup::GET_DEVICE_18).bytes(),
            Submit::control(2, setup::set_configuration(1)).bytes(),
            Submit::control_out(3, [0x40, 0x5b, 0, 0, 0, 0, 4, 0], &[1, 2, 3, 4]).bytes(),
            Submit::control(4, [0xc0, 0x5c, 0, 0, 0, 0, 4, 0]).bytes(),
            Submit::data_out(5, 1, &mod63(700)).bytes(),
            Submit::data_in(6, 1, 700).bytes(),
            Submit::iso_out(7, 3, &[4, 4], &[0, 1, 2, 3, 0, 1, 2, 3]).bytes(),
            Submit::iso_in(8, 3, &[16, 16]).bytes(),
            Submit::data_in(9, 2, 64).bytes(),
            Submit::data_in(10, 2, 64).bytes(),
            peer::unlink(11, 10),
        ];
        let client = frames.concat();
        let answered = |step: usize| {
            let mut loopback = Loopback::connected(zero(), LIMITS);
            let mut answers = Vec::new();
            for chunk in client.chunks(step) {
                loopback.receive(chunk).unwrap();
                answers.extend(loopback.read_bytes(usize::MAX));
            }
            loopback.pass(Duration::from_millis(1));
            answers.extend(loopback.read_bytes(usize::MAX));
            answers
        };
        let whole = answered(client.len());
        for step in [1, 3, 47, 48, 49, 320] {
            assert_eq!(answered(step), whole, "{step} bytes at a time");
        }
        for cut in 0..client.len() {
            let mut loopback = Loopback::connected(zero(), LIMITS);
            loopback.receive(&client[..cut]).unwrap();
            let answers = loopback.read_bytes(usize::MAX);
            assert!(whole.starts_with(&answers), "cut at {cut}");
        }
    }
}

mod isochronous {
    use super::*;

    #[test]
    fn in_packets_come_back_compacted_with_their_places_unchanged() {
        let mut loopback = Loopback::configured(zero(), LIMITS);
        let mut submit = Submit::iso_in(1, 3, &[100, 0, 1024, 7]);
        // A client that leaves gaps, as every driver does whose packets are shorter than their slots.
        for (packet, offset) in submit.packets.iter_mut().zip([0, 1024, 2048, 3072]) {
            packet.offset = offset;
        }
        submit.length = 4096;
        loopback.submit(&submit);
        loopback.pass(Duration::from_millis(1));
        loopback.read();
        let reply = loopback.checker.ret_submit(1);
        assert_eq!((reply.status, reply.actual, reply.error_count), (0, 1131, 0));
        assert_eq!(reply.data.len(), 1131);
        assert_eq!(reply.packets.iter().map(|p| p.offset).collect::<Vec<_>>(), [0, 1024, 2048, 3072]);
    }

    #[test]
    fn packets_preset_by_linux_come_back_as_they_went() {
        // usb_submit_urb() writes -EXDEV into every packet before vhci sends it.
        let mut loopback = Loopback::configured(zero(), LIMITS);
        let packets = |submit: Submit| {
            let preset = |packet: &Packet| Packet { status: peer::EXDEV, ..*packet };
            Submit { packets: submit.packets.iter().map(preset).collect(), ..submit }
        };
        loopback.submit(&packets(Submit::iso_in(1, 3, &[64; 8])));
        let data: Vec<u8> = (0..8).flat_map(|_| mod63(64)).collect();
        loopback.submit(&packets(Submit::iso_out(2, 3, &[64; 8], &data)));
        loopback.pass(Duration::from_millis(1));
        loopback.read();
        for seqnum in [1, 2] {
            let reply = loopback.checker.ret_submit(seqnum);
            assert_eq!((reply.actual, reply.error_count), (512, 0));
            assert!(reply.packets.iter().all(|packet| packet.status == 0 && packet.actual == 64));
        }
    }

    #[test]
    fn isochronous_urb_may_have_no_packets() {
        let mut loopback = Loopback::configured(zero(), LIMITS);
        loopback.submit(&Submit::iso_in(1, 3, &[]));
        loopback.submit(&Submit { length: 10, data: vec![0; 10], ..Submit::iso_out(2, 3, &[], &[]) });
        loopback.pass(Duration::from_millis(1));
        loopback.read();
        assert_eq!([1, 2].map(|seqnum| loopback.checker.ret_submit(seqnum).actual), [0, 0]);
        loopback.checker.assert_settled();
    }

    #[test]
    fn urb_of_1024_packets_moves_and_1025_end_only_its_connection() {
        let mut loopback = Loopback::configured(zero(), LIMITS);
        loopback.submit(&Submit::iso_in(1, 3, &[64; 1024]));
        loopback.pass(Duration::from_millis(128));
        loopback.read();
        assert_eq!(loopback.checker.ret_submit(1).actual, 65536);
        let mut other = Loopback::configured(zero(), LIMITS);
        let fault = loopback.receive(&Submit::iso_in(2, 3, &[64; 1025]).bytes()).unwrap_err();
        assert!(matches!(fault, ConnectionFault::Rejected(reject) if reject.field == "number_of_packets"));
        let (device, _) = loopback.end();
        assert_eq!(device.selection().configuration(), 0, "reset, ready for the next client");
        other.ask(&Submit::data_in(1, 1, 4));
        other.checker.assert_settled();
    }

    #[test]
    fn unlinked_urb_is_answered_by_its_unlink_alone() {
        let mut loopback = Loopback::configured(zero(), LIMITS);
        loopback.submit(&Submit::iso_in(1, 3, &[64; 8]));
        loopback.submit(&Submit::iso_in(2, 3, &[64; 8]));
        loopback.unlink(3, 2);
        assert_eq!(loopback.read(), [unlinked(3)]);
        loopback.pass(Duration::from_millis(1));
        loopback.read();
        loopback.checker.assert_settled();
    }
}

mod unlink {
    use super::*;

    #[test]
    fn idle_keyboard_is_unlinked_at_once_and_a_key_in_time_wins() {
        let mut loopback = Loopback::configured(KeyboardGadget::device(), LIMITS);
        loopback.submit(&Submit::data_in(1, 1, 8));
        loopback.unlink(2, 1);
        assert_eq!(loopback.read(), [unlinked(2)]);
        loopback.submit(&Submit::data_in(3, 1, 8));
        loopback.exporter.command(loopback.now, &OwnerCommand::Type("a".into())).unwrap();
        loopback.unlink(4, 3);
        let replies = loopback.read();
        assert_eq!(replies.len(), 2);
        assert_eq!(replies[1], Reply::Unlink { seqnum: 4, status: 0 });
        assert_eq!(loopback.checker.ret_submit(3).data, [0, 0, 4, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn device_that_cancels_late_is_waited_for() {
        let mut loopback =
            Loopback::configured(Scripted::new(Manners { cancels_late: true, ..Manners::default() }), LIMITS);
        loopback.submit(&Submit::data_in(1, 1, 4));
        loopback.submit(&Submit::data_in(2, 1, 4));
        loopback.unlink(3, 1);
        loopback.unlink(4, 2);
        assert_eq!(loopback.read(), []);
        loopback.device(|device, done| device.complete(BULK_IN, done));
        assert_eq!(loopback.read()[1], Reply::Unlink { seqnum: 3, status: 0 }, "it was faster");
        loopback.device(|device, done| device.let_go(done));
        assert_eq!(loopback.read(), [unlinked(4)]);
        loopback.checker.assert_settled();
    }

    #[test]
    fn request_waiting_for_the_link_is_unlinked_before_it_begins() {
        let limits = SessionLimits { reply_bytes_backlog: 1000, ..LIMITS };
        let mut loopback = Loopback::configured(scripted(), limits);
        loopback.submit(&Submit::data_in(1, 1, 2000));
        loopback.device(|device, done| device.complete(BULK_IN, done));
        loopback.submit(&Submit::data_out(2, 1, &[5; 10]));
        assert!(loopback.exporter.has_held());
        loopback.unlink(3, 2);
        assert!(!loopback.exporter.has_held());
        let replies = loopback.read();
        assert_eq!((replies.len(), &replies[1]), (2, &unlinked(3)));
        let (device, checker) = loopback.end();
        checker.assert_settled();
        assert_eq!(device.taken, 2, "the configuration and the first");
    }

    /// Linux's `vhci_tx` can send an unlink before its submit. An immediate answer of 0 would cost the client its
    /// connection when the submit is answered.
    #[test]
    fn unlink_that_overtakes_its_submit_cancels_it_when_it_comes() {
        let mut loopback = Loopback::configured(scripted(), LIMITS);
        loopback.unlink(8, 7);
        assert!(loopback.read().is_empty(), "its submit is still to come");
        loopback.submit(&Submit::data_in(7, 1, 64));
        loopback.submit(&Submit::data_in(9, 1, 64));
        let replies = loopback.read();
        let order: Vec<_> = replies.iter().map(|reply| (reply.seqnum(), reply.status())).collect();
        assert_eq!(order, [(8, ECONNRESET)], "and no RET_SUBMIT, ever");
        assert_eq!(loopback.checker.open(), [9]);
    }

    /// Numbers ascend on a connection: a number that was skipped is not submitted any more.
    #[test]
    fn unlink_whose_submit_never_comes_is_answered_by_the_next_submit() {
        let mut loopback = Loopback::configured(scripted(), LIMITS);
        loopback.unlink(8, 7);
        loopback.unlink(9, 1000);
        loopback.submit(&Submit::data_in(10, 1, 64));
        let replies = loopback.read();
        let order: Vec<_> = replies.iter().map(|reply| (reply.seqnum(), reply.status())).collect();
        assert_eq!(order, [(8, 0)]);
    }

    #[test]
    fn unlinks_are_answered_while_the_peer_does_not_read() {
        let limits = SessionLimits { reply_bytes_backlog: 1000, ..LIMITS };
        let mut loopback = Loopback::configured(scripted(), limits);
        for seqnum in 1..=4 {
            loopback.submit(&Submit::data_in(seqnum, 1, 800));
        }
        loopback.device(|device, done| {
            device.complete(BULK_IN, done);
            device.complete(BULK_IN, done)
        });
        loopback.submit(&Submit::data_in(5, 1, 800));
        assert!(loopback.exporter.has_held(), "1600 bytes wait");
        for (seqnum, victim) in [(11, 1), (13, 3), (15, 5), (19, 0)] {
            loopback.unlink(seqnum, victim);
        }
        let replies = loopback.read();
        let order: Vec<_> = replies.iter().map(|reply| (reply.seqnum(), reply.status())).collect();
        assert_eq!(order, [(1, 0), (2, 0), (11, 0), (13, ECONNRESET), (15, ECONNRESET), (19, 0)]);
        assert_eq!(loopback.checker.open(), [4]);
    }

    #[test]
    fn unlink_is_never_stuck_behind_submits_without_credit() {
        let limits = SessionLimits { urbs_in_flight_max: 8, ..LIMITS };
        // These never complete: an OUT endpoint that answers NAK for ever.
        let mut loopback = Loopback::configured(scripted(), limits);
        for seqnum in 1..=12 {
            loopback.submit(&Submit::data_out(seqnum, 1, &[seqnum as u8; 600]));
        }
        let replies = loopback.read();
        let refused: Vec<_> = replies.iter().map(|reply| (reply.seqnum(), reply.status())).collect();
        assert_eq!(refused, [9, 10, 11, 12].map(|seqnum| (seqnum, peer::ENOMEM)));
        assert_eq!(loopback.exporter.counters().no_credit, 4);
        loopback.unlink(20, 3);
        loopback.unlink(21, 12);
        assert_eq!(loopback.read(), [unlinked(20), Reply::Unlink { seqnum: 21, status: 0 }]);
        assert_eq!(loopback.ask(&Submit::data_out(22, 1, &[2; 600])), [], "its credit came back");
        loopback.device(|device, done| while device.complete(BULK_OUT, done) {});
        loopback.read();
        loopback.checker.assert_settled();
    }

    #[test]
    fn unlink_is_never_stuck_behind_submits_without_memory() {
        let limits = SessionLimits { payload_bytes_max: 10_000, ..LIMITS };
        let mut loopback = Loopback::configured(scripted(), limits);
        for seqnum in 1..=3 {
            loopback.submit(&Submit::data_out(seqnum, 1, &[seqnum as u8; 4000]));
        }
        let replies = loopback.read();
        assert_eq!((replies.len(), replies[0].seqnum(), replies[0].status()), (1, 3, peer::ENOMEM));
        loopback.unlink(4, 1);
        assert_eq!(loopback.read(), [unlinked(4)]);
    }

    #[test]
    fn device_unplugged_in_mid_transfer_comes_back_with_nothing_in_flight() {
        for cancels_late in [false, true] {
            let mut loopback =
                Loopback::configured(Scripted::new(Manners { cancels_late, ..Manners::default() }), LIMITS);
            for seqnum in 1..=3 {
                loopback.submit(&Submit::data_in(seqnum, 1, 64));
            }
            loopback.unlink(4, 2);
            let (device, _) = loopback.end();
            assert_eq!((device.holds(), device.given), (0, device.taken));
            assert_eq!(device.selection().configuration(), 0);
        }
    }
}

mod reset_sign {
    use super::*;

    /// Configuration 1, interface 1 in setting 1, three requests in flight.
    fn busy(manners: Manners, on_reset: PortResetPolicy) -> Loopback<Scripted> {
        let mut loopback = Loopback::imported_by(Scripted::new(manners), LIMITS, on_reset);
        for (seqnum, bytes) in [(100, setup::set_configuration(1)), (101, setup::set_interface(1, 1))] {
            loopback.submit(&Submit::control(seqnum, bytes));
            loopback.device(|device, done| device.complete(EpAddr::CONTROL, done));
        }
        loopback.submit(&Submit::data_in(102, 1, 64));
        loopback.submit(&Submit::data_out(103, 4, &[7; 64]));
        loopback.submit(&Submit::data_in(104, 2, 8));
        assert!(loopback.read().iter().all(|reply| reply.status() == 0));
        assert_eq!(loopback.device(|device, _| device.take_events()).len(), 2);
        loopback
    }

    fn control(bytes: [u8; 8]) -> Event {
        Event::Control(SetupPacket::from_bytes(bytes))
    }

    const RESTORE: [[u8; 8]; 2] = [setup::set_configuration(1), setup::set_interface(1, 1)];

    #[test]
    fn first_descriptor_read_of_8_or_64_bytes_resets_and_restores_the_device() {
        for read in [setup::GET_DEVICE_8, setup::GET_DEVICE_64] {
            let mut loopback = busy(Manners::default(), PortResetPolicy::ResetDevice);
            let replies = loopback.ask(&Submit::control(200, read));
            let mut order: Vec<_> = replies.iter().map(|reply| (reply.seqnum(), reply.status())).collect();
            assert_eq!(order.pop(), Some((200, 0)), "answered when all is as before");
            order.sort_unstable();
            assert_eq!(order, [102, 103, 104].map(|seqnum| (seqnum, peer::ESHUTDOWN)));
            let events = loopback.device(|device, _| device.take_events());
            assert_eq!(events, [Event::Reset, control(RESTORE[0]), control(RESTORE[1]), control(read)]);
            assert_eq!(loopback.exporter.counters().resets, 1);
            loopback.submit(&Submit::data_out(201, 4, &[1; 8]));
            loopback.device(|device, done| assert!(device.complete(EpAddr::from_byte(4), done)));
            loopback.read();
            assert_eq!(loopback.checker.ret_submit(201).actual, 8, "the alternate setting is back");
            loopback.checker.assert_settled();
        }
    }

    #[test]
    fn descriptor_reads_of_tools_are_no_reset_sign() {
        let tools = [
            setup::GET_DEVICE_18,
            [0x80, 6, 0, 1, 0, 0, 9, 0],
            [0x80, 6, 0, 1, 0, 0, 255, 0],
            setup::get_configuration_descriptor(8),
            setup::get_configuration_descriptor(64),
            [0x80, 6, 0, 3, 0, 0, 8, 0],
            // A class descriptor of an interface.
            [0x81, 6, 0, 1, 0, 0, 8, 0],
        ];
        let mut loopback = busy(Manners::default(), PortResetPolicy::ResetDevice);
        for (seqnum, bytes) in (200..).zip(tools) {
            loopback.ask(&Submit::control(seqnum, bytes));
        }
        assert_eq!(loopback.exporter.counters().resets, 0);
        assert_eq!(loopback.checker.open(), [102, 103, 104]);
    }

    /// `testusb` test 10 queues sixteen requests, with such a read among them.
    #[test]
    fn descriptor_read_among_queued_requests_is_no_reset_sign() {
        let late = Manners { cancels_late: true, answers_control_late: true };
        let mut loopback = busy(late, PortResetPolicy::ResetDevice);
        loopback.submit(&Submit::control(200, setup::GET_DEVICE_18));
        loopback.submit(&Submit::control(201, setup::GET_DEVICE_64));
        for _ in 0..2 {
            assert!(loopback.device(|device, done| device.complete(EpAddr::CONTROL, done)));
        }
        let order: Vec<_> = loopback.read().iter().map(|reply| (reply.seqnum(), reply.status())).collect();
        assert_eq!(order, [(200, 0), (201, 0)]);
        assert_eq!(loopback.exporter.counters().resets, 0);
        loopback.submit(&Submit::control(202, setup::GET_DEVICE_64));
        assert_eq!(loopback.exporter.counters().resets, 1, "alone it is one");
    }

    #[test]
    fn descriptor_read_before_configuration_is_no_reset_sign() {
        let mut loopback = Loopback::imported(scripted(), LIMITS);
        for (seqnum, bytes) in (1..).zip([setup::GET_DEVICE_64, setup::GET_DEVICE_8, setup::GET_DEVICE_18]) {
            loopback.ask(&Submit::control(seqnum, bytes));
        }
        assert_eq!(loopback.exporter.counters().resets, 0);
        assert_eq!(loopback.checker.ret_submit(1).actual, 18);
    }

    #[test]
    fn relayed_device_gets_the_reset_sign_and_no_second_reset() {
        let mut loopback = busy(Manners::default(), PortResetPolicy::PassOn);
        loopback.ask(&Submit::control(200, setup::GET_DEVICE_64));
        assert_eq!(loopback.device(|device, _| device.take_events()), [control(setup::GET_DEVICE_64)]);
        assert_eq!(loopback.checker.open(), [102, 103, 104]);
    }

    #[test]
    fn far_exporter_sees_the_reset_sign_through_a_relay() {
        let mut relay = Relay::new(Manners::default(), LIMITS);
        relay.near.submit(&Submit::data_in(1, 1, 64));
        relay.settle();
        relay.near.submit(&Submit::control(2, setup::GET_DEVICE_8));
        relay.settle();
        assert_eq!(relay.near.checker.ret_submit(1).status, peer::ESHUTDOWN);
        assert_eq!(relay.near.checker.ret_submit(2).actual, 8);
        assert_eq!((relay.near.exporter.counters().resets, relay.far.exporter.counters().resets), (0, 1));
        relay.near.checker.assert_settled();
    }

    #[test]
    fn slow_device_is_reset_once_and_requests_wait_until_it_is_restored() {
        let late = Manners { cancels_late: true, answers_control_late: true };
        let mut loopback = busy(late, PortResetPolicy::ResetDevice);
        loopback.submit(&Submit::control(200, setup::GET_DEVICE_64));
        loopback.submit(&Submit::data_in(201, 1, 64));
        loopback.submit(&Submit::data_in(202, 1, 64));
        loopback.unlink(203, 202);
        let replies = loopback.read();
        assert_eq!(replies.len(), 4, "three ended by the reset, one withdrawn while it waited: {replies:?}");
        assert!(!loopback.exporter.has_held(), "no sending brings them on: an engine that tried would spin");
        // The two requests that restore the device, then the request that revealed the reset.
        for step in 0..3 {
            assert!(loopback.device(|device, done| device.complete(EpAddr::CONTROL, done)), "step {step}");
        }
        assert!(loopback.device(|device, done| device.complete(BULK_IN, done)), "what waited has begun");
        let order: Vec<_> = loopback.read().iter().map(|reply| (reply.seqnum(), reply.status())).collect();
        assert_eq!(order, [(200, 0), (201, 0)]);
        assert_eq!(loopback.exporter.counters().resets, 1);
        loopback.checker.assert_settled();
        loopback.submit(&Submit::control(204, setup::GET_DEVICE_64));
        assert_eq!(loopback.exporter.counters().resets, 2, "and the next sign is seen again");
    }

    #[test]
    fn requests_during_a_restore_are_framed_by_the_restored_selection() {
        let mut loopback =
            busy(Manners { answers_control_late: true, ..Manners::default() }, PortResetPolicy::ResetDevice);
        loopback.submit(&Submit::control(200, setup::GET_DEVICE_64));
        loopback.submit(&Submit::iso_in(201, 3, &[8, 8]));
        loopback.submit(&Submit { number_of_packets: 7, ..Submit::data_out(202, 4, &[1; 8]) });
        loopback.device(|device, done| while device.complete(EpAddr::CONTROL, done) {});
        loopback.device(|device, done| device.complete(EpAddr::CONTROL, done));
        for endpoint in [0x83, 0x04] {
            assert!(loopback.device(|device, done| device.complete(EpAddr::from_byte(endpoint), done)));
        }
        loopback.read();
        assert_eq!([201, 202].map(|seqnum| loopback.checker.ret_submit(seqnum).actual), [16, 8]);
        loopback.checker.assert_settled();
    }

    #[test]
    fn interrupted_data_phase_does_not_affect_the_next_command() {
        // A real device here: requests in flight are gone, and later data is new.
        let mut loopback = Loopback::configured(KeyboardGadget::device(), LIMITS);
        loopback.submit(&Submit::data_in(1, 1, 8));
        loopback.ask(&Submit::control(2, setup::GET_DEVICE_8));
        assert_eq!(loopback.checker.ret_submit(1).status, peer::ESHUTDOWN);
        loopback.submit(&Submit::data_in(3, 1, 8));
        loopback.exporter.command(loopback.now, &OwnerCommand::Type("a".into())).unwrap();
        loopback.read();
        assert_eq!(loopback.checker.ret_submit(3).data[2], 4);
        loopback.checker.assert_settled();
    }
}

mod special_requests {
    use super::*;

    #[test]
    fn set_configuration_set_interface_and_clear_halt_reach_the_device_once() {
        let requests = [
            setup::set_configuration(1),
            setup::set_interface(1, 1),
            setup::set_interface(1, 0),
            setup::clear_halt(0x81),
            setup::set_configuration(1),
        ];
        let mut loopback = Loopback::imported(scripted(), LIMITS);
        for (seqnum, bytes) in (1..).zip(requests) {
            assert_eq!(loopback.ask(&Submit::control(seqnum, bytes)).len(), 1);
            assert_eq!(loopback.checker.ret_submit(seqnum), &RetSubmit::taken(seqnum, 0));
            let events = loopback.device(|device, _| device.take_events());
            assert_eq!(events, [Event::Control(SetupPacket::from_bytes(bytes))]);
        }
    }

    #[test]
    fn halted_endpoint_stalls_until_it_is_cleared() {
        let mut loopback = Loopback::configured(zero(), LIMITS);
        loopback.ask(&Submit::data_out(1, 1, &[99; 64]));
        loopback.ask(&Submit::data_out(2, 1, &mod63(64)));
        loopback.ask(&Submit::control(3, setup::get_endpoint_status(0x01)));
        loopback.ask(&Submit::control(4, setup::clear_halt(0x01)));
        loopback.ask(&Submit::data_out(5, 1, &mod63(64)));
        let status = [1, 2, 4, 5].map(|seqnum| loopback.checker.ret_submit(seqnum).status);
        assert_eq!(status, [peer::EPIPE, peer::EPIPE, 0, 0], "wrong data halts");
        assert_eq!(loopback.checker.ret_submit(3).data, [1, 0]);
    }

    #[test]
    fn selecting_ends_requests_in_flight_and_is_answered_after_them() {
        let mut loopback = Loopback::configured(KeyboardGadget::device(), LIMITS);
        loopback.submit(&Submit::data_in(1, 1, 8));
        let replies = loopback.ask(&Submit::control(2, setup::set_configuration(1)));
        let order: Vec<_> = replies.iter().map(|reply| (reply.seqnum(), reply.status())).collect();
        assert_eq!(order, [(1, peer::ESHUTDOWN), (2, 0)]);
        let replies = loopback.ask(&Submit::control(3, setup::set_configuration(9)));
        assert_eq!(replies[0].status(), peer::EPIPE, "there is no such configuration");
        loopback.ask(&Submit::control(4, setup::GET_CONFIGURATION));
        assert_eq!(loopback.checker.ret_submit(4).data, [1]);
    }
}

mod bounds {
    use super::*;

    #[test]
    fn peer_that_never_reads_holds_no_more_than_the_limits() {
        let limits = SessionLimits {
            reply_bytes_backlog: 64 << 10,
            reply_header_bytes_max: 16 << 10,
            urbs_in_flight_max: 32,
            payload_bytes_max: 256 << 10,
            ..LIMITS
        };
        let submits = [
            Submit::data_in(0, 1, 48 << 10),
            Submit::data_in(0, 1, 512),
            Submit::data_out(0, 1, &mod63(8 << 10)),
            Submit::control(0, setup::GET_DEVICE_18),
            Submit::data_in(0, 9, 4),
        ];
        for submit in submits {
            let mut loopback = Loopback::configured(zero(), limits);
            let mut fault = Ok(());
            for seqnum in 1..10_000 {
                fault = loopback.try_submit(&Submit { seqnum, ..submit.clone() });
                let waiting: usize = loopback.exporter.poll_transmit().iter().map(|run| run.len()).sum();
                assert!(waiting <= (64 << 10) + (48 << 10) + (16 << 10) + 4096, "{waiting} bytes wait");
                if fault.is_err() {
                    break;
                }
            }
            assert_eq!(fault, Err(ConnectionFault::NeverReads), "ep {} {} bytes", submit.ep, submit.length);
            loopback.end();
        }
        assert_eq!(ConnectionFault::NeverReads.to_string(), "the peer sends and does not read its answers");
    }

    #[test]
    fn peer_that_only_unlinks_is_bounded_too() {
        let limits = SessionLimits { reply_header_bytes_max: 16 << 10, ..LIMITS };
        for cancels_late in [false, true] {
            let manners = Manners { cancels_late, ..Manners::default() };
            let mut loopback = Loopback::configured(Scripted::new(manners), limits);
            loopback.submit(&Submit::data_in(1, 1, 4));
            let fault = (2..10_000).map(|seqnum| loopback.try_unlink(seqnum, 1)).find(Result::is_err);
            assert_eq!(fault, Some(Err(ConnectionFault::NeverReads)), "cancels late: {cancels_late}");
            loopback.end();
        }
    }

    #[test]
    fn pending_data_of_a_slow_device_counts_before_it_arrives() {
        // Isochronous and remote devices answer later: everything that was started may come at once.
        let limits = SessionLimits { payload_bytes_max: 1 << 20, reply_bytes_backlog: 64 << 10, ..LIMITS };
        let mut loopback = Loopback::configured(scripted(), limits);
        for seqnum in 1..=1000 {
            loopback.submit(&Submit::data_in(seqnum, 1, 64 << 10));
        }
        assert!(loopback.exporter.counters().no_credit > 0, "64 MB were asked for");
        loopback.device(|device, done| while device.complete(BULK_IN, done) {});
        let waiting: usize = loopback.exporter.poll_transmit().iter().map(|run| run.len()).sum();
        assert!(waiting < (1 << 20) + (192 << 10), "{waiting} bytes wait");
        loopback.read();
        loopback.checker.assert_settled();
        loopback.ask(&Submit::data_in(2000, 1, 64 << 10));
        loopback.device(|device, done| while device.complete(BULK_IN, done) {});
        loopback.read();
        assert_eq!(loopback.checker.ret_submit(2000).actual, 64 << 10, "credit comes back");
    }

    #[test]
    fn requests_dropped_by_a_broken_device_are_answered_as_cancelled() {
        let mut loopback = Loopback::configured(scripted(), LIMITS);
        let submits = [
            Submit::iso_in(1, 3, &[8, 4, 8]),
            Submit::data_in(2, 1, 64),
            Submit::data_out(3, 1, &[7; 64]),
            Submit::control(4, setup::GET_CONFIGURATION),
        ];
        for submit in &submits {
            loopback.device(|device, _| device.is_broken = true);
            // With debug assertions, the drop is detected at once.
            let dropped = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| loopback.submit(submit)));
            assert_eq!(dropped.is_err(), cfg!(debug_assertions));
            loopback.device(|device, _| device.is_broken = false);
            loopback.read();
            assert_eq!(loopback.checker.ret_submit(submit.seqnum).status, ECONNRESET);
        }
        assert_eq!(loopback.exporter.counters().lost, 4);
        loopback.submit(&Submit::data_in(5, 1, 4));
        loopback.device(|device, done| device.complete(BULK_IN, done));
        loopback.read();
        loopback.checker.assert_settled();
    }

    #[test]
    fn idle_requests_of_one_endpoint_do_not_block_another() {
        let mut loopback = Loopback::configured(KeyboardGadget::device(), LIMITS);
        for seqnum in 1..=20 {
            loopback.submit(&Submit::data_in(seqnum, 1, 8));
        }
        loopback.ask(&Submit::control(100, setup::GET_DEVICE_18));
        assert_eq!(loopback.checker.ret_submit(100).actual, 18);
        assert_eq!(loopback.checker.open().len(), 20);
    }
}

mod importer {
    use super::*;
    use world::relay;

    #[test]
    fn reset_of_a_remote_device_keeps_the_link() {
        let mut relay = Relay::new(Manners::default(), LIMITS);
        let mut done = relay::completions();
        let ask = |relay: &mut Relay, urb: Urb, done: &mut _| {
            relay.near.exporter.with_device(relay::NOW, |remote, _| remote.submit(relay::NOW, urb.launch(), done));
        };
        ask(&mut relay, Urb::data_in(UrbId(1), BULK_IN, 64), &mut done);
        ask(&mut relay, Urb::data_in(UrbId(2), INTERRUPT_IN, 8), &mut done);
        relay.settle();
        assert_eq!(relay.far.device(|device, _| device.holds()), 2);
        relay.near.exporter.with_device(relay::NOW, |remote, _| remote.reset(relay::NOW, &mut done));
        let ended: Vec<_> = std::iter::from_fn(|| done.pop()).map(|done| done.status).collect();
        assert_eq!(ended, [UrbStatus::Shutdown; 2]);
        relay.settle();
        assert_eq!(relay.far.device(|device, _| device.holds()), 0, "withdrawn there as well");
        let setup = SetupPacket::get_descriptor(1, 0, 0, 64);
        ask(&mut relay, Urb::control(UrbId(3), setup, farbus_model::Payload::Empty), &mut done);
        relay.carry_there(usize::MAX);
        let answer = relay.far.read_bytes(usize::MAX);
        relay.near.exporter.with_device(relay::NOW, |remote, _| relay::receive(remote, &answer, &mut done).unwrap());
        assert_eq!(done.pop().unwrap().actual, 18, "and the link goes on");
    }

    #[test]
    fn refused_selection_does_not_change_the_selection() {
        let mut remote = world::remote(&scripted(), LIMITS);
        let mut done = relay::completions();
        let mut ask = |setup: SetupPacket, seqnum: u32, status: i32| {
            let urb = Urb::control(UrbId(1), setup, farbus_model::Payload::Empty);
            remote.submit(relay::NOW, urb.launch(), &mut done);
            relay::receive(&mut remote, &RetSubmit::failed(seqnum, status).bytes(), &mut done).unwrap();
            done.pop().unwrap();
            let selection = remote.selection();
            (selection.configuration(), selection.alternate(1), selection.endpoint(EpAddr::from_byte(4)).is_some())
        };
        assert_eq!(ask(SetupPacket::set_configuration(1), 1, peer::EPIPE), (0, 0, false));
        assert_eq!(ask(SetupPacket::set_configuration(1), 2, 0), (1, 0, false));
        assert_eq!(ask(SetupPacket::set_interface(1, 1), 3, peer::EPIPE), (1, 0, false));
        assert_eq!(ask(SetupPacket::set_interface(1, 1), 4, 0), (1, 1, true));
        remote.submit(relay::NOW, Urb::data_in(UrbId(2), EpAddr::from_byte(0x89), 4).launch(), &mut done);
        assert_eq!(done.pop().unwrap().status, UrbStatus::Invalid, "an endpoint that is not there is not asked");
    }

    #[test]
    fn lost_link_ends_everything_as_gone() {
        let device = scripted();
        let mut remote = world::remote(&device, LIMITS);
        let mut done = relay::completions();
        for id in 1..=3 {
            let setup = SetupPacket::get_descriptor(1, 0, 0, 18);
            let urb = Urb::control(UrbId(id), setup, farbus_model::Payload::Empty);
            remote.submit(relay::NOW, urb.launch(), &mut done);
        }
        assert_eq!(relay::lose(&mut remote), [UrbStatus::Gone; 3]);
        assert_eq!(remote.in_flight(), 0);
    }

    #[test]
    fn hostile_exporter_does_not_reach_the_kernel() {
        let mut relay = Relay::new(Manners::default(), LIMITS);
        relay.near.submit(&Submit::data_in(1, 1, 16));
        relay.carry_there(usize::MAX);
        let kernel_saw = relay.near.checker.replies.len();
        // More data than requested, under the number that crossed the link (1 configured the device).
        let lie = RetSubmit::data_in(2, &[6; 17]).bytes();
        let refused = relay.near.exporter.with_device(relay::NOW, |remote, done| relay::receive(remote, &lie, done));
        assert_eq!(refused.unwrap().unwrap_err().field, "actual_length");
        assert_eq!((relay.near.read(), relay.near.checker.replies.len()), (vec![], kernel_saw));
        relay.near.device(|remote, done| remote.handle_lost(done));
        relay.near.read();
        assert_eq!(relay.near.checker.ret_submit(1).status, -19, "the kernel is told that the device is gone");
    }
}
