//! Strings and the object store of a USB device: told to an importer that asks for them, and to no other.

use std::collections::BTreeMap;
use std::time::Duration;

use farbus_model::descriptor::{UsbConfiguration, kind};
use farbus_model::{
    BufferPool, CompletionQueue, ConfigurationSelection, DescriptorRepairs, DescriptorSet, Device, DeviceDefinition,
    Instant, SessionLimits, UrbId, UrbInFlight, UrbStatus, UsbSpeed,
};
use farbus_session::native::control::{AttachmentClass, AttachmentEndNotice, AttachmentMode, OpenRequest};
use farbus_session::native::hello::{HelloOptions, SessionId};
use farbus_session::native::{
    AttachmentState, ExporterServices, ExporterSession, FrameHeader, FrameKind, ImporterAttachment, ImporterSession,
    Lane, LaneLimits, MovableAttachment, ReceivedFrame, RemoteUsb, ServedExport, ServedUsb,
};
use farbus_session::snapshot::{self, SnapshotWriter};
use farbus_wire::usbip::DeviceRecord;

const GRACE: Duration = Duration::from_secs(20);
const NOW: Instant = Instant::from_nanos(1_000_000_000);
const SNAPSHOT: u16 = 99;

/// A device that refuses everything.
struct Board(DescriptorSet, ConfigurationSelection);

impl Device for Board {
    fn descriptors(&self) -> &DescriptorSet {
        &self.0
    }

    fn speed(&self) -> UsbSpeed {
        UsbSpeed::Super
    }

    fn selection(&self) -> &ConfigurationSelection {
        &self.1
    }

    fn submit(&mut self, _now: Instant, urb: UrbInFlight, done: &mut CompletionQueue) {
        done.push(urb.fail(UrbStatus::Stall));
    }

    fn cancel(&mut self, _now: Instant, _id: UrbId, _done: &mut CompletionQueue) {}

    fn reset(&mut self, _now: Instant, _done: &mut CompletionQueue) {}
}

struct Shelf(DescriptorSet);

impl ExporterServices for Shelf {
    fn open(
        &mut self,
        _now: Instant,
        number: u16,
        _open: &OpenRequest,
    ) -> Result<(u64, Box<dyn ServedExport>), AttachmentEndNotice> {
        let device = Board(self.0.clone(), ConfigurationSelection::default());
        let record = DeviceRecord {
            path: "/farbus/board".into(),
            bus_id: "1-1".into(),
            bus: 1,
            device: 2,
            speed: UsbSpeed::Super,
            vendor: 0x1209,
            product: 1,
            device_bcd: 0,
            class: [0; 3],
            configuration: 1,
            configurations: 1,
            interfaces: Vec::new(),
            interface_count: 0,
        };
        Ok((7, Box::new(ServedUsb::new(number, device, record, SessionLimits::DEFAULT, |_, _| ()))))
    }
}

/// A device with these strings besides its own three, and an object store.
fn board(more: impl IntoIterator<Item = (u8, String)>) -> DescriptorSet {
    let mut board = DeviceDefinition::new(0x1209, 1).names("farbus", "a board", "ä4711").build();
    board.strings.extend(more);
    board.bos = vec![5, kind::BOS, 5, 0, 0];
    // Only the device itself answers for its other speed.
    board.other_speed.clear();
    board
}

fn carry(from: &mut Lane, to: &mut Lane) {
    let bytes: Vec<u8> = from.poll_transmit(NOW).iter().map(|run| &**run).collect::<Vec<_>>().concat();
    from.handle_transmitted(bytes.len());
    to.receive_space()[..bytes.len()].copy_from_slice(&bytes);
    to.handle_received(bytes.len());
}

/// Opens the device by an importer that greets like this. Returns the kinds of the answers, and what the importer has.
fn opened(board: &DescriptorSet, greet: impl FnOnce(&mut HelloOptions)) -> (Vec<FrameKind>, RemoteUsb) {
    let mut importer = ImporterSession::new(NOW, 7, GRACE, LaneLimits::DEFAULT);
    let mut hello = importer.hello(0);
    greet(&mut hello.options);
    let begun = ExporterSession::begin(&hello, SessionId([1; 16]), 9, GRACE, LaneLimits::DEFAULT);
    let (mut exporter, welcome) = begun.unwrap_or_else(|refused| panic!("{refused:?}"));
    importer.handle_welcome(&welcome).expect("it is its exporter's");
    let (class, mode, name, reason) = (AttachmentClass::USB, AttachmentMode::Exclusive, "board".into(), String::new());
    let mut remote = RemoteUsb::new(1, OpenRequest { class, mode, epoch: 0, name, reason });
    while let Some(message) = remote.poll_message() {
        importer.send(message);
    }
    carry(importer.lane_mut(), exporter.lane_mut());
    exporter.advance(NOW, &mut Shelf(board.clone())).expect("it keeps to the protocol");
    carry(exporter.lane_mut(), importer.lane_mut());
    let (mut kinds, mut done) = (Vec::new(), CompletionQueue::new(BufferPool::new(0)));
    while let Some(arrived) = importer.poll_arrived(0).expect("it keeps to the protocol") {
        kinds.push(arrived.head.kind);
        remote.handle_arrived(NOW, arrived, &mut done).expect("it keeps to the protocol");
    }
    assert_eq!(remote.state(), &AttachmentState::Open);
    (kinds, remote)
}

#[test]
fn strings_and_object_store_come_before_the_device_to_an_importer_that_asks() {
    let board = board([(9, "an interface".to_owned())]);
    let (kinds, remote) = opened(&board, |_| ());
    assert_eq!(kinds, [FrameKind::Descriptors, FrameKind::Opened]);
    assert_eq!((remote.descriptors(), remote.has_strings()), (&board, true));

    let nothing = DescriptorSet { strings: BTreeMap::new(), bos: Vec::new(), ..board };
    let (kinds, remote) = opened(&nothing, |_| ());
    assert_eq!(kinds, [FrameKind::Descriptors, FrameKind::Opened], "that there are none is told, too");
    assert_eq!((remote.descriptors(), remote.has_strings()), (&nothing, true));
}

#[test]
fn device_whose_descriptors_were_repaired_has_the_same_endpoints_in_a_session() {
    let mut board = board([]);
    // Fewer bytes than announced, an interval in milliseconds without a companion, an endpoint that is too short.
    let mut odd = vec![9, 2, 99, 0, 1, 1, 0, 0x80, 50, 9, 4, 0, 0, 3, 255, 0, 0, 0];
    odd.extend([7, 5, 0x81, 3, 0, 8, 32, 5, 5, 0x02, 2, 0, 7, 5, 0x83, 2, 0, 4, 0, 6, 48, 3, 0, 0, 0, 7, 5]);
    let mut repairs = DescriptorRepairs::default();
    board.configurations = vec![UsbConfiguration::read(&odd, UsbSpeed::Super, &mut repairs).unwrap()];
    let (_, remote) = opened(&board, |_| ());
    assert_eq!(remote.descriptors(), &board);
    let endpoints = &remote.descriptors().configurations[0].settings[0].endpoints;
    let seen: Vec<_> = endpoints.iter().map(|each| (each.interval, each.packet_bytes_max)).collect();
    assert_eq!((seen, repairs.iter().count()), (vec![(9, 1024), (0, 1024)], 6), "{repairs:?}");
    // An importer of an earlier version is strict.
    assert!(UsbConfiguration::parse(&board.configurations[0].bytes).is_ok());
}

#[test]
fn importer_of_an_earlier_version_is_told_no_strings_and_one_of_an_earlier_exporter_knows_that_it_has_none() {
    let board = board([]);
    let (kinds, mut remote) = opened(&board, |options| options.descriptors_bytes_max = None);
    assert_eq!(kinds, [FrameKind::Opened]);
    assert!(!remote.has_strings() && remote.descriptors().strings.is_empty());
    remote.set_strings(board.strings.clone());
    assert_eq!((&remote.descriptors().strings, remote.has_strings()), (&board.strings, true));
}

#[test]
fn importer_is_told_no_more_than_it_takes_and_the_devices_own_strings_first() {
    let many = board((10..=250).map(|index| (index, "x".repeat(126))));
    let (_, remote) = opened(&many, |_| ());
    let reported = &remote.descriptors().strings;
    assert!((100..=128).contains(&reported.len()), "{} strings", reported.len());
    assert!(reported.iter().all(|(index, text)| many.string(*index) == Some(text)));
    let (_, remote) = opened(&many, |options| options.descriptors_bytes_max = Some(100));
    let device = &many.device;
    let own = [device.manufacturer_string, device.product_string, device.serial_string];
    assert_eq!(remote.descriptors().strings.keys().copied().collect::<Vec<_>>(), own);
}

#[test]
fn attachment_that_another_process_continues_has_its_strings() {
    let board = board([]);
    for (tells, has_strings) in [(Some(u32::MAX), true), (None, false)] {
        let (_, remote) = opened(&board, |options| options.descriptors_bytes_max = tells);
        let mut to = SnapshotWriter::new(SNAPSHOT);
        MovableAttachment::save(&remote, &mut to);
        let bytes = to.into_bytes();
        let again = <RemoteUsb as MovableAttachment>::restore(&mut snapshot::open(&bytes, SNAPSHOT).unwrap()).unwrap();
        assert_eq!((again.descriptors(), again.has_strings()), (remote.descriptors(), has_strings));
    }
}

#[test]
fn strings_that_break_the_rules_end_the_session() {
    let (_, mut remote) = opened(&board([]), |_| ());
    let mut done = CompletionQueue::new(BufferPool::new(0));
    for (body, field) in [
        (&[0xff, 0xff][..], "descriptors"),
        (&[1, 0, 3, 1, 9, 4, 0, 1], "descriptor length"),
        (&[1, 0, 3, 1, 9, 4, 2, 0, 2, 15], "descriptor type"),
        (&[1, 0, 3, 1, 9, 4, 9, 0, 9, 3], "descriptor"),
    ] {
        let head = FrameHeader::new(FrameKind::Descriptors, 1, 0);
        let refused = remote.handle_arrived(NOW, ReceivedFrame { head, body: body.into() }, &mut done).unwrap_err();
        assert_eq!(refused.field, field);
    }
}
