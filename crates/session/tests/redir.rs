//! A usbredir guest and a device: the guest is told everything exactly once and in order, whatever the device and the
//! guest do.

mod world;

#[path = "../../wire/tests/fuzzing/mod.rs"]
mod fuzzing;

use std::collections::BTreeMap;
use std::time::Duration;

use farbus_gadgets::keyboard::KeyboardGadget;
use farbus_model::limits::INTERRUPTS_AHEAD_MAX;
use farbus_model::{
    BufferPool, Device, EpAddr, Instant, OwnerCommand, Payload, SessionLimits, SetupPacket, TransferType, UrbStatus,
    UsbSpeed,
};
use farbus_session::ConnectionFault;
use farbus_session::redir::usbredir::info::place_of;
use farbus_session::redir::usbredir::message::{ControlPacket, DataPacket};
use farbus_session::redir::usbredir::{
    RedirCapabilitySet, RedirConn, RedirMessage, RedirPacket, RedirRole, RedirStatus,
};
use farbus_session::redir::{CAPS, FrozenRedirStream, RedirHost};
use fuzzing::{Input, fuzz};
use world::scripted::Event;
use world::{Manners, Scripted};

const LIMITS: SessionLimits = SessionLimits { receive_bytes: 2048, ..SessionLimits::DEFAULT };
const BULK_IN: EpAddr = EpAddr::from_byte(0x81);
const BULK_OUT: EpAddr = EpAddr::from_byte(1);
const INTERRUPT_IN: EpAddr = EpAddr::from_byte(0x82);
const INTERRUPT_OUT: EpAddr = EpAddr::from_byte(2);
const ISO_IN: EpAddr = EpAddr::from_byte(0x83);
const ISO_OUT: EpAddr = EpAddr::from_byte(3);

/// A guest, its host, and a device.
struct Table<D: Device> {
    host: RedirHost<D>,
    guest: RedirConn,
    pool: BufferPool,
    now: Instant,
}

impl<D: Device> Table<D> {
    /// A guest that has just connected; both sides have the capabilities `caps`.
    fn with(device: D, limits: SessionLimits, caps: RedirCapabilitySet) -> Self {
        let mut host = RedirHost::new(device, limits);
        host.connect();
        let guest = RedirConn::new(RedirRole::Guest, "test", caps, &limits);
        Self { host, guest, pool: BufferPool::new(0), now: Instant::from_nanos(1) }
    }

    /// A guest that has seen and configured the device.
    fn configured(device: D, limits: SessionLimits) -> Self {
        let mut table = Self::with(device, limits, CAPS);
        table.exchange().unwrap();
        table.ask(u64::MAX, RedirMessage::SetConfiguration(1));
        table
    }

    fn advance(&mut self) -> Result<(), ConnectionFault> {
        self.host.advance(self.now)
    }

    /// The guest's bytes go to the host.
    fn push(&mut self) -> Result<(), ConnectionFault> {
        let bytes: Vec<u8> = self.guest.poll_transmit().iter().flat_map(|run| run.iter().copied()).collect();
        self.guest.handle_transmitted(bytes.len(), &mut self.pool);
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            let space = self.host.receive_space();
            let count = space.len().min(rest.len());
            space[..count].copy_from_slice(&rest[..count]);
            self.host.handle_received(count);
            rest = &rest[count..];
            self.advance()?;
        }
        Ok(())
    }

    /// The guest sends a message; its answers are read later.
    fn say(&mut self, id: u64, message: RedirMessage) {
        self.guest.send(RedirPacket { id, message }, &mut self.pool);
        self.push().expect("what no rule forbids");
    }

    /// The guest reads everything that waits.
    fn read(&mut self) -> Vec<RedirPacket> {
        let mut packets = Vec::new();
        while self.host.has_transmit() {
            let bytes: Vec<u8> = self.host.poll_transmit().iter().flat_map(|run| run.iter().copied()).collect();
            self.host.handle_transmitted(bytes.len());
            let mut rest = &bytes[..];
            while !rest.is_empty() {
                let space = self.guest.receive_space();
                let count = space.len().min(rest.len());
                space[..count].copy_from_slice(&rest[..count]);
                self.guest.handle_received(count);
                rest = &rest[count..];
                while let Some(packet) = self.guest.poll_packet().expect("a host keeps to the protocol") {
                    packets.push(packet);
                }
            }
            self.advance().expect("who reads is not cut off");
        }
        packets
    }

    fn exchange(&mut self) -> Result<Vec<RedirPacket>, ConnectionFault> {
        let mut packets = Vec::new();
        while self.host.has_transmit() || self.guest.backlog_bytes() > 0 {
            packets.extend(self.read());
            self.push()?;
        }
        Ok(packets)
    }

    fn ask(&mut self, id: u64, message: RedirMessage) -> Vec<RedirPacket> {
        self.say(id, message);
        self.read()
    }
}

impl<D: Device> Drop for Table<D> {
    /// Requests in flight at the end of a test end as if the guest disconnected.
    fn drop(&mut self) {
        self.host.disconnect(self.now);
        self.host.with_device(|device, done| device.reset(self.now, done));
    }
}

impl Table<Scripted> {
    fn scripted(manners: Manners) -> Self {
        Self::configured(Scripted::new(manners), LIMITS)
    }

    fn complete(&mut self, endpoint: EpAddr) -> bool {
        let is_one = self.host.with_device(|device, done| device.complete(endpoint, done));
        self.advance().unwrap();
        is_one
    }

    fn fail(&mut self, endpoint: EpAddr, status: UrbStatus) {
        assert!(self.host.with_device(|device, done| device.fail(endpoint, status, done)));
        self.advance().unwrap();
    }

    fn let_go(&mut self) -> bool {
        let is_one = self.host.with_device(|device, done| device.let_go(done));
        self.advance().unwrap();
        is_one
    }

    fn device(&self) -> &Scripted {
        self.host.session().device()
    }
}

fn bulk_in(length: u32) -> RedirMessage {
    RedirMessage::Bulk(data(BULK_IN, length, Payload::Empty))
}

fn out(endpoint: EpAddr, bytes: &[u8]) -> DataPacket {
    data(endpoint, bytes.len() as u32, bytes.into())
}

fn data(endpoint: EpAddr, length: u32, payload: Payload) -> DataPacket {
    DataPacket { endpoint, outcome: RedirStatus::Success, length, stream: 0, payload }
}

fn control(setup: SetupPacket) -> RedirMessage {
    RedirMessage::Control(ControlPacket { number: 0, setup, outcome: RedirStatus::Success, payload: Payload::Empty })
}

/// Outcome and length of a transfer's packet.
fn outcome_of(packet: &RedirPacket) -> (RedirStatus, u32) {
    match &packet.message {
        RedirMessage::Bulk(data)
        | RedirMessage::Interrupt(data)
        | RedirMessage::Iso(data)
        | RedirMessage::BufferedBulk(data) => (data.outcome, data.length),
        RedirMessage::Control(packet) => (packet.outcome, packet.setup.length.into()),
        other => panic!("no transfer: {other:?}"),
    }
}

fn kinds(packets: &[RedirPacket]) -> Vec<u32> {
    packets.iter().map(|packet| packet.message.kind()).collect()
}

#[test]
fn guest_gets_interfaces_and_endpoints_before_the_device() {
    let mut table = Table::with(Scripted::new(Manners::default()), LIMITS, CAPS);
    table.advance().unwrap();
    let hello = table.read();
    assert!(
        matches!(&hello[..], [RedirPacket { message: RedirMessage::Hello { caps: CAPS, .. }, .. }]),
        "and waits for its hello"
    );
    let packets = table.exchange().unwrap();
    let [interfaces, endpoints, connect] = &packets[..] else { panic!("{packets:?}") };
    let RedirMessage::InterfaceInfo(interfaces) = &interfaces.message else { panic!("{interfaces:?}") };
    assert_eq!(interfaces.0.iter().map(|kind| kind.number).collect::<Vec<_>>(), [0, 1]);
    let RedirMessage::EpInfo(endpoints) = &endpoints.message else { panic!("{endpoints:?}") };
    let kind = |byte| endpoints.0[place_of(EpAddr::from_byte(byte))].kind;
    assert_eq!((kind(0x81), kind(0x82)), (Some(TransferType::Bulk), Some(TransferType::Interrupt)));
    assert_eq!((kind(0x83), kind(0x84)), (Some(TransferType::Isochronous), None), "the first configuration, setting 0");
    assert_eq!(endpoints.0[place_of(ISO_IN)].packet_bytes_max, 1024);
    assert!(matches!(connect.message, RedirMessage::DeviceConnect(connect) if connect.speed == Some(UsbSpeed::High)));
}

#[test]
fn guest_of_the_first_protocol_version_is_served() {
    let mut table = Table::with(Scripted::new(Manners::default()), LIMITS, RedirCapabilitySet::NONE);
    assert_eq!(kinds(&table.exchange().unwrap()), [0, 4, 5, 1]);
    assert_eq!(kinds(&table.ask(7, RedirMessage::SetConfiguration(1))), [4, 5, 8]);
    table.say(8, bulk_in(512));
    assert!(table.complete(BULK_IN));
    let answer = table.read();
    assert_eq!((answer[0].id, outcome_of(&answer[0])), (8, (RedirStatus::Success, 512)));
}

#[test]
fn new_interfaces_and_endpoints_come_before_the_answer_to_selecting_them() {
    let mut table = Table::scripted(Manners::default());
    assert_eq!(table.device().selection().configuration(), 1);
    let packets = table.ask(3, RedirMessage::SetAltSetting { interface: 1, alternate: 1 });
    assert_eq!(kinds(&packets), [4, 5, 11]);
    let RedirMessage::EpInfo(endpoints) = &packets[1].message else { panic!("{packets:?}") };
    let bulk = endpoints.0[place_of(EpAddr::from_byte(0x84))];
    assert_eq!((bulk.kind, bulk.interface), (Some(TransferType::Bulk), 1));
    let status = |outcome, interface, alternate| RedirMessage::AltSettingStatus { outcome, interface, alternate };
    assert_eq!(packets[2], RedirPacket { id: 3, message: status(RedirStatus::Success, 1, 1) });
    assert_eq!(
        table.ask(4, RedirMessage::GetAltSetting { interface: 1 })[0].message,
        status(RedirStatus::Success, 1, 1)
    );
    assert_eq!(
        table.ask(5, RedirMessage::GetAltSetting { interface: 9 })[0].message,
        status(RedirStatus::Invalid, 9, 0)
    );
    let packets = table.ask(6, RedirMessage::SetAltSetting { interface: 1, alternate: 9 });
    assert_eq!(
        packets,
        [RedirPacket { id: 6, message: status(RedirStatus::Stall, 1, 1) }],
        "and nothing new if it failed"
    );
    let packets = table.ask(7, RedirMessage::GetConfiguration);
    let status = RedirMessage::ConfigurationStatus { outcome: RedirStatus::Success, configuration: 1 };
    assert_eq!(packets, [RedirPacket { id: 7, message: status }]);
    assert_eq!(kinds(&table.ask(8, control(SetupPacket::set_interface(1, 0)))), [4, 5, 100], "however it is selected");
}

#[test]
fn selecting_a_configuration_cancels_requests_in_flight() {
    let mut table = Table::scripted(Manners::default());
    table.say(1, bulk_in(64));
    table.say(0, RedirMessage::StartInterruptReceiving(INTERRUPT_IN));
    table.read();
    assert_eq!(table.device().waiting(INTERRUPT_IN), 5);
    let packets = table.ask(2, RedirMessage::SetConfiguration(1));
    assert_eq!(kinds(&packets), [101, 4, 5, 8]);
    assert_eq!((outcome_of(&packets[0]), table.host.session().in_flight()), ((RedirStatus::Cancelled, 0), 0));
}

#[test]
fn transfers_go_to_endpoints_of_their_kind() {
    let mut table = Table::scripted(Manners::default());
    let wrong = [
        RedirMessage::Bulk(out(INTERRUPT_OUT, b"x")),
        RedirMessage::Bulk(out(EpAddr::from_byte(9), b"x")),
        RedirMessage::Interrupt(out(BULK_OUT, b"x")),
        RedirMessage::Control(ControlPacket {
            number: 3,
            setup: SetupPacket::get_descriptor(1, 0, 0, 18),
            outcome: RedirStatus::Success,
            payload: Payload::Empty,
        }),
    ];
    for (id, message) in wrong.into_iter().enumerate() {
        let kind = message.kind();
        let packets = table.ask(id as u64, message);
        assert_eq!((kinds(&packets), outcome_of(&packets[0])), (vec![kind], (RedirStatus::Invalid, 0)));
    }
    table.say(9, RedirMessage::Interrupt(out(INTERRUPT_OUT, b"abc")));
    assert!(table.complete(INTERRUPT_OUT));
    assert_eq!(
        outcome_of(&table.read()[0]),
        (RedirStatus::Success, 3),
        "an OUT answer says what moved and carries nothing"
    );
    table.say(10, bulk_in(8));
    table.fail(BULK_IN, UrbStatus::Stall);
    assert_eq!(outcome_of(&table.read()[0]), (RedirStatus::Stall, 0));
}

#[test]
fn interrupts_are_received_ahead_and_never_lost() {
    let limits = SessionLimits { reply_bytes_backlog: 1, ..LIMITS };
    let mut table = Table::configured(Scripted::new(Manners::default()), limits);
    table.read();
    let packets = table.ask(0, RedirMessage::StartInterruptReceiving(INTERRUPT_IN));
    assert!(matches!(packets[0].message, RedirMessage::InterruptReceivingStatus { outcome: RedirStatus::Success, .. }));
    let mut given = 0;
    while table.complete(INTERRUPT_IN) {
        given += 1;
    }
    assert!(
        (INTERRUPTS_AHEAD_MAX..=INTERRUPTS_AHEAD_MAX + 6).contains(&given),
        "{given}: then the device is not asked"
    );
    let packets = table.read();
    assert_eq!((packets.len(), table.host.session().dropped()), (given, 0));
    assert!(packets.iter().enumerate().all(|(at, packet)| packet.id == at as u64), "in their order");
    assert_eq!(table.device().waiting(INTERRUPT_IN), 5, "and then again");
}

#[test]
fn interrupts_of_a_far_device_are_requested_as_far_ahead() {
    let manners = Manners { answers_control_late: true, ..Manners::default() };
    let mut table = Table::with(Scripted::new(manners), LIMITS, CAPS);
    table.exchange().unwrap();
    table.say(1, RedirMessage::SetConfiguration(1));
    table.now = table.now + Duration::from_millis(10);
    assert!(table.complete(EpAddr::CONTROL));
    table.ask(0, RedirMessage::StartInterruptReceiving(INTERRUPT_IN));
    let interval = {
        let device = table.device();
        device.selection().endpoint(INTERRUPT_IN).unwrap().service_interval(device.speed())
    };
    let wanted = table.device().waiting(INTERRUPT_IN);
    let bridged = Duration::from_millis(10).as_nanos().div_ceil(interval.as_nanos()) as usize;
    assert_eq!(wanted, 5 + bridged, "{interval:?} apart");
    // The device was busy, and is near: fewer URBs are kept in flight as answers come.
    table.say(2, control(SetupPacket::get_descriptor(1, 0, 0, 18)));
    assert!(table.complete(EpAddr::CONTROL));
    for _ in 0..bridged + 2 {
        assert!(table.complete(INTERRUPT_IN));
    }
    table.read();
    assert_eq!(table.device().waiting(INTERRUPT_IN), 5);
}

#[test]
fn isochronous_packets_come_in_time_or_are_dropped() {
    let limits = SessionLimits { reply_bytes_backlog: 1, ..LIMITS };
    let mut table = Table::configured(Scripted::new(Manners::default()), limits);
    table.read();
    let start = RedirMessage::StartIsoStream { endpoint: ISO_IN, packets_per_urb: 4, urbs: 3 };
    assert!(matches!(
        table.ask(0, start.clone())[0].message,
        RedirMessage::IsoStreamStatus { outcome: RedirStatus::Success, .. }
    ));
    let again = table.ask(0, start);
    assert!(
        matches!(again[0].message, RedirMessage::IsoStreamStatus { outcome: RedirStatus::Invalid, .. }),
        "it runs already"
    );
    for _ in 0..10 {
        assert_eq!(table.device().waiting(ISO_IN), 3, "the device is asked all the time");
        assert!(table.complete(ISO_IN));
    }
    let redir_packets = table.read();
    // Of forty packets, one on the connection and twelve in the queue.
    assert_eq!((redir_packets.len(), table.host.session().dropped()), (13, 27));
    assert!(redir_packets.iter().all(|packet| outcome_of(packet) == (RedirStatus::Success, 1024)));
    let bytes = |packet: &RedirPacket| match &packet.message {
        RedirMessage::Iso(data) => data.payload.contiguous()[0],
        other => panic!("{other:?}"),
    };
    assert!(redir_packets[1..].is_sorted_by_key(bytes), "the youngest, in their order");
    let redir_packets = table.ask(0, RedirMessage::StopIsoStream(ISO_IN));
    assert_eq!((kinds(&redir_packets), table.device().waiting(ISO_IN)), (vec![14], 0));
}

#[test]
fn isochronous_out_starts_with_half_of_its_packets() {
    let mut table = Table::scripted(Manners::default());
    table.ask(0, RedirMessage::StartIsoStream { endpoint: ISO_OUT, packets_per_urb: 2, urbs: 4 });
    for packet in 0..3u8 {
        table.say(0, RedirMessage::Iso(out(ISO_OUT, &[packet; 10])));
        assert_eq!(table.device().waiting(ISO_OUT), 0);
    }
    table.say(0, RedirMessage::Iso(out(ISO_OUT, &[3; 4])));
    assert_eq!(table.device().waiting(ISO_OUT), 2);
    for packet in 0..20u8 {
        table.say(0, RedirMessage::Iso(out(ISO_OUT, &[packet; 10])));
    }
    assert_eq!((table.device().waiting(ISO_OUT), table.host.session().dropped()), (2, 12), "a device that is too slow");
    while table.complete(ISO_OUT) {}
    assert_eq!(table.host.counters().bytes_out, 34 + 80);
    table.say(0, RedirMessage::Iso(out(ISO_OUT, &[0; 10])));
    table.say(0, RedirMessage::Iso(out(ISO_OUT, &[0; 10])));
    assert_eq!(table.device().waiting(ISO_OUT), 0, "it ran dry and begins anew");
    assert_eq!(table.read(), []);
    let packets = table.ask(0, RedirMessage::Iso(out(ISO_OUT, &[0; 1025])));
    assert!(
        matches!(packets[0].message, RedirMessage::IsoStreamStatus { outcome: RedirStatus::Invalid, .. }),
        "an interval has 1024"
    );
    table.ask(0, RedirMessage::StopIsoStream(ISO_OUT));
    let packets = table.ask(0, RedirMessage::Iso(out(ISO_OUT, b"x")));
    assert!(
        matches!(packets[0].message, RedirMessage::IsoStreamStatus { outcome: RedirStatus::Stall, .. }),
        "there is no stream"
    );
}

#[test]
fn impossible_stream_is_refused_and_a_broken_one_ends_with_a_message() {
    let mut table = Table::scripted(Manners::default());
    let iso = |endpoint, packets_per_urb, urbs| RedirMessage::StartIsoStream { endpoint, packets_per_urb, urbs };
    for (endpoint, packets, urbs) in [
        (ISO_IN, 0, 1),
        (ISO_IN, 1, 0),
        (ISO_IN, 33, 1),
        (ISO_IN, 1, 17),
        (BULK_OUT, 1, 1),
        (EpAddr::from_byte(0x8f), 1, 1),
    ] {
        let redir_packets = table.ask(0, iso(endpoint, packets, urbs));
        assert!(
            matches!(redir_packets[0].message, RedirMessage::IsoStreamStatus { outcome: RedirStatus::Stall, .. }),
            "{redir_packets:?}"
        );
    }
    let bulk = |bytes_per_transfer| RedirMessage::StartBulkReceiving {
        stream: 0,
        bytes_per_transfer,
        endpoint: BULK_IN,
        transfers: 2,
    };
    let redir_packets = table.ask(0, bulk(100));
    assert!(
        matches!(redir_packets[0].message, RedirMessage::BulkReceivingStatus { outcome: RedirStatus::Stall, .. }),
        "no whole packets"
    );
    let redir_packets = table.ask(0, bulk(1024));
    assert!(matches!(
        redir_packets[0].message,
        RedirMessage::BulkReceivingStatus { outcome: RedirStatus::Success, .. }
    ));
    assert!(table.complete(BULK_IN));
    table.fail(BULK_IN, UrbStatus::Stall);
    let redir_packets = table.read();
    assert_eq!(kinds(&redir_packets), [104, 27], "what came first, then why no more does");
    assert!(matches!(redir_packets[1].message, RedirMessage::BulkReceivingStatus { outcome: RedirStatus::Stall, .. }));
    table.ask(0, RedirMessage::StartInterruptReceiving(INTERRUPT_IN));
    for _ in 0..17 {
        table.fail(INTERRUPT_IN, UrbStatus::Protocol);
    }
    let redir_packets = table.read();
    assert_eq!(kinds(&redir_packets[..16]), [103; 16]);
    assert!(redir_packets[..16].iter().all(|packet| outcome_of(packet) == (RedirStatus::IoError, 0)));
    assert!(matches!(
        redir_packets[16].message,
        RedirMessage::InterruptReceivingStatus { outcome: RedirStatus::Stall, .. }
    ));
}

#[test]
fn reset_ends_streams_and_transfers_once_each() {
    let mut table = Table::scripted(Manners { cancels_late: true, ..Manners::default() });
    table.say(1, bulk_in(64));
    table.say(2, RedirMessage::Bulk(out(BULK_OUT, b"abc")));
    table.say(1, RedirMessage::CancelDataPacket);
    table.say(0, RedirMessage::StartInterruptReceiving(INTERRUPT_IN));
    table.read();
    let packets = table.ask(0, RedirMessage::Reset);
    assert!(matches!(packets[0].message, RedirMessage::InterruptReceivingStatus { outcome: RedirStatus::Stall, .. }));
    let ended: BTreeMap<u64, RedirStatus> =
        packets[1..].iter().map(|packet| (packet.id, outcome_of(packet).0)).collect();
    assert_eq!(ended, BTreeMap::from([(1, RedirStatus::Cancelled), (2, RedirStatus::Cancelled)]));
    assert_eq!((packets.len(), table.host.session().in_flight()), (3, 0));
    assert_eq!(kinds(&table.ask(3, RedirMessage::SetConfiguration(1))), [4, 5, 8]);
}

#[test]
fn returning_guest_finds_the_device_reset() {
    let mut table = Table::scripted(Manners::default());
    table.say(1, bulk_in(64));
    table.say(0, RedirMessage::StartInterruptReceiving(INTERRUPT_IN));
    table.host.with_device(|device, _| device.take_events());
    table.host.disconnect(table.now);
    let events = table.host.with_device(|device, _| device.take_events());
    let descriptor = SetupPacket::get_descriptor(1, 0, 0, 64);
    assert_eq!(events, [Event::Reset, Event::Control(descriptor)], "and one far away is shown that it was");
    assert_eq!((table.device().holds(), table.host.session().in_flight()), (0, 0));
    table.host.connect();
    table.guest = RedirConn::new(RedirRole::Guest, "another", CAPS, &LIMITS);
    assert_eq!(kinds(&table.exchange().unwrap()), [0, 4, 5, 1], "and nothing of the guest before");
}

#[test]
fn device_that_is_gone_leaves_when_its_guest_has_acknowledged() {
    let mut table = Table::scripted(Manners::default());
    table.say(1, bulk_in(64));
    table.read();
    table.host.with_device(|device, done| device.fail(BULK_IN, UrbStatus::Gone, done));
    table.host.handle_gone(table.now);
    table.advance().unwrap();
    let packets = table.read();
    assert_eq!((kinds(&packets), outcome_of(&packets[0])), (vec![101, 2], (RedirStatus::IoError, 0)));
    assert!(!table.host.is_finished());
    let packets = table.ask(2, bulk_in(64));
    assert_eq!(outcome_of(&packets[0]), (RedirStatus::IoError, 0), "what crossed it is answered");
    table.say(0, RedirMessage::DeviceDisconnectAck);
    assert!(table.host.is_finished());
    let mut old = Table::with(Scripted::new(Manners::default()), LIMITS, RedirCapabilitySet::NONE);
    old.exchange().unwrap();
    old.host.handle_gone(old.now);
    old.advance().unwrap();
    assert_eq!((kinds(&old.read()), old.host.is_finished()), (vec![2], true), "who knows no ack is not waited for");
}

#[test]
fn filter_reject_cancels_transfers_and_marks_the_device_refused() {
    let mut table = Table::scripted(Manners::default());
    table.say(1, bulk_in(64));
    table.say(0, RedirMessage::FilterFilter("-1,-1,-1,-1,0".into()));
    table.say(0, RedirMessage::FilterReject);
    let packets = table.read();
    assert_eq!(
        (table.host.session().is_refused(), outcome_of(packets.last().unwrap())),
        (true, (RedirStatus::Cancelled, 0))
    );
}

#[test]
fn guest_that_never_reads_is_cut_off() {
    let limits = SessionLimits { reply_header_bytes_max: 4096, reply_bytes_backlog: 512, ..LIMITS };
    let mut table = Table::configured(Scripted::new(Manners::default()), limits);
    let fault = (0..1000).find_map(|id| {
        table.guest.send(RedirPacket { id, message: RedirMessage::GetConfiguration }, &mut table.pool);
        table.push().err()
    });
    assert_eq!(fault, Some(ConnectionFault::NeverReads));
}

#[test]
fn excess_requests_are_refused_packet_by_packet() {
    let limits = SessionLimits { payload_bytes_max: 1000, urbs_in_flight_max: 100, ..LIMITS };
    let mut table = Table::configured(Scripted::new(Manners::default()), limits);
    table.read();
    table.say(1, bulk_in(600));
    table.say(2, bulk_in(600));
    let packets = table.ask(3, bulk_in(600));
    assert_eq!((packets[0].id, outcome_of(&packets[0])), (3, (RedirStatus::IoError, 0)));
    table.say(2, RedirMessage::CancelDataPacket);
    assert_eq!(outcome_of(&table.read()[0]), (RedirStatus::Cancelled, 0), "and a cancel waits for nobody");
    assert_eq!(table.host.counters().no_credit, 1);
}

#[test]
fn id_in_flight_is_reused_only_after_a_cancel() {
    let mut table = Table::scripted(Manners { cancels_late: true, ..Manners::default() });
    table.read();
    table.say(5, bulk_in(8));
    table.say(5, RedirMessage::CancelDataPacket);
    assert_eq!(table.read(), []);
    let packets = table.ask(5, bulk_in(16));
    assert_eq!(
        (packets.len(), outcome_of(&packets[0])),
        (1, (RedirStatus::Cancelled, 0)),
        "the old one, before the new one begins"
    );
    assert!(table.complete(BULK_IN) && table.complete(BULK_IN));
    let packets = table.read();
    assert_eq!((packets.len(), outcome_of(&packets[0])), (1, (RedirStatus::Success, 16)));
    table.say(6, RedirMessage::Interrupt(out(INTERRUPT_OUT, b"a")));
    table.say(6, RedirMessage::Interrupt(out(INTERRUPT_OUT, b"bc")));
    assert!(table.complete(INTERRUPT_OUT) && table.complete(INTERRUPT_OUT));
    assert_eq!(
        table.read().iter().map(outcome_of).collect::<Vec<_>>(),
        [(RedirStatus::Success, 1), (RedirStatus::Success, 2)]
    );
    table.say(7, bulk_in(8));
    table.guest.send(RedirPacket { id: 7, message: bulk_in(8) }, &mut table.pool);
    assert!(matches!(table.push(), Err(ConnectionFault::Rejected(reject)) if reject.field == "id"));
    table.host.disconnect(table.now);
}

#[test]
fn device_comes_back_with_nothing_in_flight() {
    let mut host = RedirHost::new(Scripted::new(Manners { cancels_late: true, ..Manners::default() }), LIMITS);
    host.connect();
    host.disconnect(Instant::ZERO);
    host.connect();
    let device = host.finish(Instant::ZERO);
    assert_eq!((device.holds(), device.taken), (0, device.given));
}

#[test]
fn requests_to_a_device_that_never_answers_stay_within_limits() {
    let limits = SessionLimits { urbs_in_flight_max: 30, payload_bytes_max: 5000, ..LIMITS };
    let mut table = Table::configured(Scripted::new(Manners { cancels_late: true, ..Manners::default() }), limits);
    table.ask(0, RedirMessage::StartIsoStream { endpoint: ISO_OUT, packets_per_urb: 32, urbs: 16 });
    for _ in 0..100 {
        table.say(0, RedirMessage::Iso(out(ISO_OUT, &[0; 1000])));
    }
    assert!(table.host.session().dropped() > 90, "{}", table.host.session().dropped());
    let mut late =
        Table::with(Scripted::new(Manners { answers_control_late: true, ..Manners::default() }), limits, CAPS);
    late.exchange().unwrap();
    for id in 0..100 {
        late.say(id, RedirMessage::SetConfiguration(1));
        late.say(1000 + id, RedirMessage::SetAltSetting { interface: 1, alternate: 1 });
    }
    assert!(late.host.session().in_flight() <= 31);
    assert_eq!(late.read().len(), 200 - late.host.session().in_flight(), "the rest is refused at once");
}

/// The guest has sent part of a packet; the rest comes at its new host.
fn stop_in_mid_sentence(table: &mut Table<Scripted>, packet: RedirPacket) -> Vec<u8> {
    table.guest.send(packet, &mut table.pool);
    let bytes: Vec<u8> = table.guest.poll_transmit().iter().flat_map(|run| run.iter().copied()).collect();
    table.guest.handle_transmitted(bytes.len(), &mut table.pool);
    let (before, behind) = bytes.split_at(5);
    table.host.receive_space()[..5].copy_from_slice(before);
    table.host.handle_received(5);
    table.advance().unwrap();
    behind.to_vec()
}

/// A device with requests of all kinds in flight, whose guest is about to move.
fn under_way() -> Table<Scripted> {
    let mut table = Table::scripted(Manners { cancels_late: true, ..Manners::default() });
    table.ask(9, RedirMessage::SetAltSetting { interface: 1, alternate: 1 });
    table.say(1, bulk_in(64));
    table.say(2, RedirMessage::Bulk(out(BULK_OUT, b"abc")));
    table.say(3, bulk_in(8));
    table.say(3, RedirMessage::CancelDataPacket);
    table.say(4, bulk_in(16));
    table.say(0, RedirMessage::StartInterruptReceiving(INTERRUPT_IN));
    table.say(0, RedirMessage::StartIsoStream { endpoint: ISO_OUT, packets_per_urb: 2, urbs: 4 });
    table.say(0, RedirMessage::Iso(out(ISO_OUT, b"sound")));
    table.read();
    table.host.quiesce(table.now);
    table.say(5, RedirMessage::Bulk(out(BULK_OUT, b"later")));
    assert!(!table.host.is_quiet());
    table
}

/// The device completes what it can and gives back the rest.
fn calm_down(table: &mut Table<Scripted>) {
    assert!(table.complete(BULK_IN) && table.complete(BULK_OUT) && table.complete(INTERRUPT_IN));
    table.host.take_back_reads(table.now);
    while table.let_go() {}
    assert_eq!(table.device().holds(), 0, "and what was said meanwhile is not begun");
    assert!(table.host.is_quiet() && !table.host.has_transmit() && !table.host.is_hungry());
}

const MOVED: [(u64, u32); 8] = [(1, 101), (2, 101), (3, 101), (0, 103), (6, 8), (4, 101), (5, 101), (0, 14)];

/// What a live migration requires: the guest gets each answer once at its new host, and the device notices nothing.
#[test]
fn migrating_guest_gets_each_answer_once_at_its_new_host() {
    let mut table = under_way();
    let behind = stop_in_mid_sentence(&mut table, RedirPacket { id: 6, message: RedirMessage::GetConfiguration });
    calm_down(&mut table);
    let events = table.host.with_device(|device, _| device.take_events());
    assert!(!events.contains(&Event::Reset));
    let mut host = std::mem::replace(&mut table.host, RedirHost::new(Scripted::new(Manners::default()), LIMITS));
    let frozen = host.freeze();
    let device = host.into_device();
    assert_eq!((frozen.configuration, &frozen.alternates[..]), (1, &[(1, 1)][..]));
    let frozen = FrozenRedirStream::from_bytes(&frozen.to_bytes()).expect("it survives the way");
    table.host = RedirHost::new(device, LIMITS);
    let another = FrozenRedirStream { alternates: vec![(1, 0)], ..frozen.clone() };
    assert!(table.host.thaw(table.now, another).is_err(), "the device is set otherwise");
    let host = std::mem::replace(&mut table.host, RedirHost::new(Scripted::new(Manners::default()), LIMITS));
    table.host = RedirHost::new(host.into_device(), LIMITS);
    table.host.thaw(table.now, frozen).expect("a guest said all this");
    // The guest continues elsewhere: no hello, the same capabilities, and the rest of its packet.
    table.guest = RedirConn::continued(RedirRole::Guest, CAPS, CAPS, &LIMITS);
    table.host.receive_space()[..behind.len()].copy_from_slice(&behind);
    table.host.handle_received(behind.len());
    table.advance().unwrap();
    assert_eq!(table.device().waiting(INTERRUPT_IN), 5, "streams are there again");
    assert_eq!((table.device().waiting(BULK_IN), table.device().waiting(BULK_OUT)), (1, 1));
    assert!(table.complete(BULK_IN) && table.complete(BULK_OUT));
    let packets = table.read();
    let mut answers: Vec<(u64, u32)> = packets.iter().map(|packet| (packet.id, packet.message.kind())).collect();
    answers.retain(|answer| *answer != (0, 17));
    answers.sort_by_key(|answer| MOVED.iter().position(|moved| moved == answer));
    assert_eq!(answers, MOVED, "each once");
    let of = |id| packets.iter().find(|packet| packet.id == id && packet.message.kind() == 101).map(outcome_of);
    assert_eq!((of(1), of(2)), (Some((RedirStatus::Success, 64)), Some((RedirStatus::Success, 3))));
    assert_eq!(
        (of(3), of(4), of(5)),
        (Some((RedirStatus::Cancelled, 0)), Some((RedirStatus::Success, 16)), Some((RedirStatus::Success, 5)))
    );
    assert_eq!(table.host.counters().resets, 0);
    assert_eq!(table.device().waiting(ISO_OUT), 1, "the packet that came along, at once");
    assert!(table.complete(ISO_OUT));
    table.say(0, RedirMessage::Iso(out(ISO_OUT, b"sound")));
    table.say(0, RedirMessage::Iso(out(ISO_OUT, b"sound")));
    table.say(0, RedirMessage::Iso(out(ISO_OUT, b"sound")));
    assert_eq!(table.device().waiting(ISO_OUT), 2, "one that is sent, and the next");
    assert!(table.complete(ISO_OUT) && table.complete(ISO_OUT));
    assert_eq!(table.device().waiting(ISO_OUT), 1);
}

/// A machine's stream that another host hands over is refused, or goes on; nothing that it says breaks the session.
#[test]
fn fuzz_migrated_streams() {
    let known = {
        let mut table = under_way();
        calm_down(&mut table);
        table.host.freeze().to_bytes()
    };
    fuzz(env!("CARGO_MANIFEST_DIR"), "fuzz_migrated_streams", |input| {
        let mut bytes = known.clone();
        for _ in 0..input.below(6) {
            let at = input.below(bytes.len() as u32) as usize;
            match input.below(4) {
                0 => bytes[at] = input.byte(),
                1 => bytes[at] ^= 1 << input.below(8),
                2 => drop(bytes.drain(at..bytes.len().min(at + input.below(9) as usize))),
                _ => bytes.insert(at, input.byte()),
            }
        }
        let Ok(frozen) = FrozenRedirStream::from_bytes(&bytes) else { return };
        assert_eq!(frozen.to_bytes(), bytes, "it says the same again");
        let mut table = Table::scripted(Manners::default());
        table.ask(9, RedirMessage::SetAltSetting { interface: 1, alternate: 1 });
        let mut host = std::mem::replace(&mut table.host, RedirHost::new(Scripted::new(Manners::default()), LIMITS));
        host.quiesce(table.now);
        drop(host.freeze());
        table.host = RedirHost::new(host.into_device(), LIMITS);
        if table.host.thaw(table.now, frozen).is_err() {
            table.host.disconnect(table.now);
        }
        assert!(table.device().holds() <= LIMITS.urbs_in_flight_max, "{} requests", table.device().holds());
        table.host.disconnect(table.now);
        assert_eq!(table.host.session().in_flight(), 0);
    });
}

/// Starts a stream of sound, of which two URBs of two packets are in flight and one packet waits.
fn playing() -> Table<Scripted> {
    let mut table = Table::scripted(Manners { cancels_late: true, ..Manners::default() });
    table.say(0, RedirMessage::StartIsoStream { endpoint: ISO_OUT, packets_per_urb: 2, urbs: 4 });
    for packet in 0..5u8 {
        table.say(0, RedirMessage::Iso(out(ISO_OUT, &[packet; 10])));
    }
    table.read();
    assert_eq!(table.device().waiting(ISO_OUT), 2);
    table.host.quiesce(table.now);
    while table.let_go() {}
    assert!(table.host.is_quiet());
    table
}

/// Without it, a sound card of a machine that moves is silent until the new host's queue is half full: 60 ms.
#[test]
fn sound_that_was_not_sent_moves_along_and_goes_on_at_once() {
    let mut table = playing();
    let mut host = std::mem::replace(&mut table.host, RedirHost::new(Scripted::new(Manners::default()), LIMITS));
    let frozen = host.freeze();
    table.host = RedirHost::new(host.into_device(), LIMITS);
    table.host.thaw(table.now, frozen).expect("a guest said all this");
    table.guest = RedirConn::continued(RedirRole::Guest, CAPS, CAPS, &LIMITS);
    assert_eq!((table.device().waiting(ISO_OUT), table.host.session().dropped()), (2, 0));
    table.say(0, RedirMessage::Iso(out(ISO_OUT, &[5; 10])));
    while table.complete(ISO_OUT) {}
    assert_eq!(table.host.counters().bytes_out, 60, "each packet once, and nothing left behind");
}

#[test]
fn sound_that_was_not_sent_is_played_if_the_guest_stays() {
    let mut table = playing();
    table.host.resume();
    table.advance().unwrap();
    assert_eq!(table.device().waiting(ISO_OUT), 2);
    assert!(table.complete(ISO_OUT));
    table.say(0, RedirMessage::Iso(out(ISO_OUT, &[5; 10])));
    assert!(table.complete(ISO_OUT) && table.complete(ISO_OUT));
    assert_eq!((table.host.counters().bytes_out, table.host.session().dropped()), (60, 0));
}

#[test]
fn guest_that_stays_after_all_misses_nothing() {
    let mut table = under_way();
    calm_down(&mut table);
    table.host.resume();
    table.advance().unwrap();
    assert_eq!((table.device().waiting(BULK_IN), table.device().waiting(BULK_OUT)), (1, 1));
    assert!(table.complete(BULK_IN) && table.complete(BULK_OUT));
    let mut answers: Vec<(u64, u32)> = table.read().iter().map(|packet| (packet.id, packet.message.kind())).collect();
    answers.sort_unstable();
    assert_eq!(answers, [(0, 103), (1, 101), (2, 101), (3, 101), (4, 101), (5, 101)]);
    assert_eq!(table.device().waiting(INTERRUPT_IN), 5);
}

/// An event of one id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Submit,
    Cancel,
    Complete,
    LetGo,
    Read,
}

/// Every order of submitting an id twice, cancelling it, and the device's two ways to answer. QEMU tells answers apart
/// by their order, so each submit must get its own answer, once.
#[test]
fn each_submit_of_a_reused_id_gets_one_answer_in_every_order() {
    let orders: u32 = [false, true].iter().map(|&cancels_late| explore(&mut Vec::new(), cancels_late)).sum();
    println!("{orders} orders");
    assert!(orders > 250, "{orders}");
}

/// Plays everything that may follow these steps; returns how many orders were played.
fn explore(steps: &mut Vec<Step>, cancels_late: bool) -> u32 {
    let mut orders = 0;
    for step in [Step::Submit, Step::Cancel, Step::Complete, Step::LetGo, Step::Read] {
        let submits = steps.iter().filter(|step| **step == Step::Submit).count();
        if steps.len() == 9 || (step == Step::Submit && submits == 2) {
            continue;
        }
        steps.push(step);
        if play(steps, cancels_late) {
            orders += 1 + explore(steps, cancels_late);
        }
        steps.pop();
    }
    orders
}

/// `false`: a step changes nothing, or no guest would make it.
fn play(steps: &[Step], cancels_late: bool) -> bool {
    let mut table = Table::scripted(Manners { cancels_late, ..Manners::default() });
    table.read();
    // The guest's view: submits without an answer, oldest first, and whether each was cancelled; their lengths differ.
    let mut open: Vec<(u32, bool)> = Vec::new();
    let mut submitted = 0;
    let hear = |open: &mut Vec<(u32, bool)>, packets: Vec<RedirPacket>| {
        for packet in packets {
            let (length, is_cancelled) = open.remove(0);
            match outcome_of(&packet) {
                (RedirStatus::Cancelled, 0) => assert!(is_cancelled, "nothing is cancelled by itself: {steps:?}"),
                (RedirStatus::Success, moved) => assert_eq!(moved, length, "an answer is its own submit's: {steps:?}"),
                other => panic!("{other:?}: {steps:?}"),
            }
        }
    };
    for step in steps {
        match step {
            Step::Submit if open.last().is_some_and(|(_, is_cancelled)| !is_cancelled) => return false,
            Step::Submit => {
                submitted += 1;
                open.push((8 * submitted, false));
                table.say(1, bulk_in(8 * submitted));
            }
            Step::Cancel => {
                let Some(last) = open.last_mut().filter(|(_, is_cancelled)| !is_cancelled) else { return false };
                last.1 = true;
                table.say(1, RedirMessage::CancelDataPacket);
            }
            Step::Complete if !table.complete(BULK_IN) => return false,
            Step::LetGo if !table.let_go() => return false,
            Step::Complete | Step::LetGo => {}
            Step::Read => {
                let packets = table.read();
                if packets.is_empty() {
                    return false;
                }
                hear(&mut open, packets);
            }
        }
    }
    while table.let_go() || table.complete(BULK_IN) {}
    let packets = table.read();
    hear(&mut open, packets);
    assert_eq!((open, table.host.session().in_flight()), (vec![], 0), "{steps:?}");
    true
}

#[test]
fn typed_text_arrives_key_by_key() {
    let mut table = Table::configured(KeyboardGadget::device(), LIMITS);
    table.ask(0, RedirMessage::StartInterruptReceiving(EpAddr::from_byte(0x81)));
    let now = table.now;
    table.host.with_device(|device, done| device.command(now, &OwnerCommand::Type("hi".into()), done)).unwrap();
    let mut reports = Vec::new();
    for _ in 0..20 {
        if let Some(at) = table.host.poll_timeout() {
            table.now = at;
            table.host.handle_timeout(at);
        }
        table.advance().unwrap();
        for packet in table.read() {
            if let RedirMessage::Interrupt(data) = packet.message {
                reports.push(data.payload.into_vec()[2]);
            }
        }
    }
    reports.dedup();
    // Usages of h and i (HID usage tables, chapter 10), each followed by its release.
    assert_eq!(reports, [0x0b, 0, 0x0c, 0]);
}

fn any_message(input: &mut Input<'_>) -> RedirMessage {
    let endpoint_in = input.pick(&[BULK_IN, INTERRUPT_IN, ISO_IN, EpAddr::from_byte(0x84), EpAddr::from_byte(0x8f)]);
    let endpoint_out = input.pick(&[BULK_OUT, INTERRUPT_OUT, ISO_OUT, EpAddr::from_byte(4), EpAddr::from_byte(15)]);
    let bytes = input.below(40) as usize;
    match input.below(16) {
        0 => RedirMessage::Reset,
        1 => RedirMessage::SetConfiguration(input.below(3) as u8),
        2 => RedirMessage::SetAltSetting { interface: input.below(3) as u8, alternate: input.below(3) as u8 },
        3 => RedirMessage::StartIsoStream {
            endpoint: input.pick(&[endpoint_in, endpoint_out]),
            packets_per_urb: input.below(5) as u8,
            urbs: input.below(5) as u8,
        },
        4 => RedirMessage::StopIsoStream(input.pick(&[endpoint_in, endpoint_out])),
        5 => RedirMessage::StartInterruptReceiving(endpoint_in),
        6 => RedirMessage::StopInterruptReceiving(endpoint_in),
        7 => RedirMessage::StartBulkReceiving {
            stream: 0,
            bytes_per_transfer: input.pick(&[0, 512, 1024, 100]),
            endpoint: endpoint_in,
            transfers: input.below(4) as u8,
        },
        8 => RedirMessage::StopBulkReceiving { stream: 0, endpoint: endpoint_in },
        9 => RedirMessage::CancelDataPacket,
        10 => RedirMessage::Iso(out(endpoint_out, &vec![1; bytes])),
        11 => RedirMessage::Interrupt(out(endpoint_out, &vec![2; bytes])),
        12 => RedirMessage::Bulk(out(endpoint_out, &vec![3; bytes])),
        13 => RedirMessage::Bulk(data(endpoint_in, bytes as u32, Payload::Empty)),
        14 => control(SetupPacket::from_bytes([0x80, 6, 0, 1, 0, 0, bytes as u8, 0])),
        _ => control(SetupPacket::set_interface(input.below(3) as u8, input.below(3) as u8)),
    }
}

/// Random actions of guest and device: every transfer is answered once, and memory stays bounded.
#[test]
fn fuzz_redir_session() {
    fuzz(env!("CARGO_MANIFEST_DIR"), "fuzz_redir_session", |input| {
        let manners = Manners { cancels_late: input.once_in(2), answers_control_late: input.once_in(4) };
        let limits =
            SessionLimits { payload_bytes_max: 8000, reply_bytes_backlog: 600, urbs_in_flight_max: 20, ..LIMITS };
        let mut table = Table::with(Scripted::new(manners), limits, CAPS);
        table.exchange().unwrap();
        // Open transfers of the guest.
        let mut open: BTreeMap<u64, u32> = BTreeMap::new();
        let hear = |open: &mut BTreeMap<u64, u32>, packets: Vec<RedirPacket>| {
            for packet in packets {
                let is_answer = match &packet.message {
                    RedirMessage::Interrupt(data) => data.endpoint.as_byte() & 0x80 == 0,
                    message => matches!(message, RedirMessage::Control(_) | RedirMessage::Bulk(_)),
                };
                if is_answer {
                    let kind = open.remove(&packet.id).expect("each transfer is answered once");
                    assert_eq!(kind, packet.message.kind(), "with a packet of its kind");
                }
            }
        };
        let (mut next_id, mut is_moving, mut was_moving) = (0, false, false);
        while !input.is_empty() {
            match input.below(10) {
                0..=3 => {
                    let message = any_message(input);
                    let id = match message {
                        RedirMessage::CancelDataPacket => u64::from(input.below(next_id.max(1) as u32)),
                        _ => next_id,
                    };
                    next_id += 1;
                    if matches!(message, RedirMessage::Control(_) | RedirMessage::Bulk(_) | RedirMessage::Interrupt(_))
                    {
                        open.insert(id, message.kind());
                    }
                    table.guest.send(RedirPacket { id, message }, &mut table.pool);
                    if let Err(fault) = table.push() {
                        assert!(was_moving, "what no rule forbids: {fault}");
                        table.host.disconnect(table.now);
                        return;
                    }
                }
                8 if !is_moving => {
                    table.host.quiesce(table.now);
                    (is_moving, was_moving) = (true, true);
                }
                8 => {
                    is_moving = false;
                    table.host.resume();
                    table.advance().unwrap();
                }
                9 if is_moving => table.host.take_back_reads(table.now),
                4 | 5 => {
                    let endpoint = EpAddr::from_byte(input.pick(&[0, 1, 0x81, 2, 0x82, 3, 0x83, 4, 0x84]));
                    let status = input.pick(&[
                        UrbStatus::Ok,
                        UrbStatus::Ok,
                        UrbStatus::Stall,
                        UrbStatus::Protocol,
                        UrbStatus::Shutdown,
                    ]);
                    table.host.with_device(|device, done| match status {
                        UrbStatus::Ok => device.complete(endpoint, done),
                        status => device.fail(endpoint, status, done),
                    });
                    table.advance().unwrap();
                }
                6 => {
                    table.let_go();
                }
                _ => {
                    let packets = table.read();
                    hear(&mut open, packets);
                }
            }
            assert!(table.device().room() <= 8000 + 4 * 5 * 1024 + 5 * 1024, "what may come back is bounded");
        }
        if is_moving {
            table.host.resume();
        }
        // A guest that stays continues when everything cancelled has come back.
        while table.host.with_device(|device, done| device.let_go(done)) {}
        if let Err(fault) = table.advance() {
            assert!(was_moving, "what no rule forbids: {fault}");
            table.host.disconnect(table.now);
            return;
        }
        if input.once_in(2) {
            table.host.handle_gone(table.now);
        }
        table.say(0, RedirMessage::Reset);
        while table.host.with_device(|device, done| device.let_go(done)) {}
        table.advance().unwrap();
        let packets = table.read();
        hear(&mut open, packets);
        assert_eq!((open, table.device().holds()), (BTreeMap::new(), 0), "every transfer was answered");
        table.host.disconnect(table.now);
        table.host.with_device(|device, done| device.reset(Instant::ZERO, done));
        assert_eq!(table.device().taken, table.device().given, "nothing stays with the device");
    });
}
