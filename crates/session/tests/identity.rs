//! A device that is opened again under its name but is another one: what each class's importing end does.

use farbus_model::{
    BlockDevice, BlockId, BlockInfo, BlockRequest, BufferPool, CompletionQueue, Device, EpAddr, ExportIdentity,
    Instant, Urb, UrbId, UrbStatus, UsbSpeed,
};
use farbus_session::native::control::{
    AttachmentClass, AttachmentCredit, AttachmentEndCause, AttachmentEndNotice, AttachmentMode, OpenReply, OpenRequest,
};
use farbus_session::native::identity::IdentityStatement;
use farbus_session::native::{
    AttachmentState, FrameHeader, FrameKind, ImporterAttachment, OutboundMessage, ReceivedFrame, RemoteBlock,
    RemoteObserver, RemoteStream, RemoteUsb,
};
use farbus_wire::native::{block, stream, usb};

const NOW: Instant = Instant::ZERO;
const HAD: ExportIdentity = ExportIdentity { id: 0xaaaa, generation: 5 };
const OTHER: ExportIdentity = ExportIdentity { id: 0xbbbb, generation: 5 };
/// Incarnations of the exporter: the one that knew the device, and one after a restart.
const BEFORE: u64 = 1;
const AFTER: u64 = 2;

fn open(class: AttachmentClass, mode: AttachmentMode) -> OpenRequest {
    OpenRequest { class, mode, epoch: 0, name: "stick".into(), reason: String::new() }
}

/// Identical devices have the same descriptors; serial numbers are not in descriptors.
fn usb_description() -> Vec<u8> {
    usb::UsbDescription {
        bus_id: "1-1".into(),
        bus: 1,
        device: 2,
        speed: UsbSpeed::High,
        descriptor: [0x12, 1, 0, 2, 0, 0, 0, 0x40, 0x09, 0x12, 1, 0, 0, 1, 0, 0, 3, 1],
        configuration: 1,
        alternates: Vec::new(),
        configurations: vec![vec![9, 2, 0x12, 0, 1, 1, 0, 0x80, 0x32, 9, 4, 0, 0, 0, 0xff, 0, 0, 0]],
    }
    .encode()
}

fn block_description() -> Vec<u8> {
    let info = BlockInfo {
        size_bytes: 1 << 20,
        block_bytes: 512,
        preferred_bytes: 4096,
        request_bytes_max: 1 << 20,
        is_read_only: false,
        trims: false,
    };
    block::BlockDescription { info, durability: 1, maps: true }.encode()
}

fn hear<A: ImporterAttachment>(remote: &mut A, done: &mut A::Done, kind: FrameKind, body: Vec<u8>) {
    remote.handle_arrived(NOW, ReceivedFrame { head: FrameHeader::new(kind, 1, 0), body: body.into() }, done).unwrap();
}

fn tell<A: ImporterAttachment>(remote: &mut A, done: &mut A::Done, identity: Option<ExportIdentity>, info: &[u8]) {
    if let Some(identity) = identity {
        hear(remote, done, FrameKind::Identity, IdentityStatement::Is(identity).encode());
    }
    let opened = OpenReply { epoch: 9, credit: AttachmentCredit { requests: 8, bytes: 1 << 20 }, info: info.to_vec() };
    hear(remote, done, FrameKind::Opened, opened.encode());
}

fn sent<A: ImporterAttachment>(remote: &mut A) -> Vec<OutboundMessage> {
    std::iter::from_fn(|| remote.poll_message()).collect()
}

/// Opens a device as `before`; then the exporter restarts and opens it as `now`. Returns how the attachment ended, and
/// what the importer sent after the restart.
fn opened_again<A: ImporterAttachment>(
    mut remote: A,
    mut done: A::Done,
    [before, now]: [Option<ExportIdentity>; 2],
    info: &[u8],
    ask: impl FnOnce(&mut A, &mut A::Done),
) -> (Option<AttachmentEndNotice>, Vec<OutboundMessage>) {
    remote.note_exporter(BEFORE);
    tell(&mut remote, &mut done, before, info);
    assert_eq!(remote.state(), &AttachmentState::Open);
    ask(&mut remote, &mut done);
    sent(&mut remote);
    remote.handle_renewed(NOW, &mut done);
    remote.note_exporter(AFTER);
    let outbound_messages = sent(&mut remote);
    let expected = outbound_messages.iter().find(|message| message.head.kind == FrameKind::Identity);
    let expected = expected.map(|message| IdentityStatement::decode(&message.part).unwrap());
    assert_eq!(
        expected,
        before.map(|before| Some(IdentityStatement::Expected(before))),
        "the exporter may compare, too"
    );
    tell(&mut remote, &mut done, now, info);
    let end = if let AttachmentState::Ended(end) = remote.state() { Some(end.clone()) } else { None };
    let rest = sent(&mut remote);
    // Later messages about this attachment must have no effect.
    for kind in [FrameKind::Closed, FrameKind::Refused] {
        hear(
            &mut remote,
            &mut done,
            kind,
            AttachmentEndNotice { cause: AttachmentEndCause::Requested, message: String::new() }.encode(),
        );
    }
    let later = if let AttachmentState::Ended(end) = remote.state() { Some(end.clone()) } else { None };
    if end.is_some() {
        assert_eq!(end, later);
    }
    (end, rest)
}

fn assert_refused(
    (end, messages): (Option<AttachmentEndNotice>, Vec<OutboundMessage>),
    cause: AttachmentEndCause,
    stated_identity: Option<ExportIdentity>,
) {
    let end = end.expect("it is refused");
    assert_eq!(end.cause, cause, "{end:?}");
    let named =
        [Some(HAD), stated_identity].into_iter().flatten().all(|identity| end.message.contains(&identity.to_string()));
    assert!(named && end.message.contains("'stick'"), "both are named: {end:?}");
    let kinds: Vec<FrameKind> = messages.iter().map(|message| message.head.kind).collect();
    assert_eq!(kinds, [FrameKind::Close], "nothing is asked of the other device, and it is given back");
}

fn every_class(stated_identity: Option<ExportIdentity>) -> [(Option<AttachmentEndNotice>, Vec<OutboundMessage>); 4] {
    let both = [Some(HAD), stated_identity];
    let write = |remote: &mut RemoteBlock, done: &mut _| {
        let request = BlockRequest::write(BlockId(1), 0, vec![1; 512].into());
        BlockDevice::submit(remote, NOW, request.launch(), done);
    };
    let ask = |remote: &mut RemoteUsb, done: &mut _| {
        let urb = Urb::data_in(UrbId(1), EpAddr::CONTROL, 0).launch();
        Device::submit(remote, NOW, urb, done);
    };
    let frames = stream::StreamDescription { format: stream::StreamFormat::Bytes, frame_bytes_max: 64 }.encode();
    let completions = || CompletionQueue::new(BufferPool::new(0));
    let (usb, block) = (usb_description(), block_description());
    let remote = RemoteUsb::new(1, open(AttachmentClass::USB, AttachmentMode::Exclusive));
    let usb_end = opened_again(remote, completions(), both, &usb, ask);
    let remote = RemoteBlock::new(1, open(AttachmentClass::BLOCK, AttachmentMode::Exclusive));
    let block_end = opened_again(remote, CompletionQueue::new(BufferPool::new(0)), both, &block, write);
    let remote = RemoteStream::new(1, open(AttachmentClass::STREAM, AttachmentMode::Read));
    let stream_end = opened_again(remote, Vec::new(), both, &frames, |_, _| {});
    let remote = RemoteObserver::new(1, open(AttachmentClass::USB, AttachmentMode::Observe));
    let observer_end = opened_again(remote, Vec::new(), both, &usb, |_, _| {});
    [usb_end, block_end, stream_end, observer_end]
}

#[test]
fn another_device_of_any_class_is_given_back_without_a_request() {
    for outcome in every_class(Some(OTHER)) {
        assert_refused(outcome, AttachmentEndCause::Gone, Some(OTHER));
    }
}

#[test]
fn earlier_medium_of_the_same_device_is_refused_as_stale() {
    let retired = ExportIdentity { generation: 4, ..HAD };
    for outcome in every_class(Some(retired)) {
        assert_refused(outcome, AttachmentEndCause::Stale, Some(retired));
    }
}

#[test]
fn exporter_that_no_longer_tells_identities_is_refused() {
    for outcome in every_class(None) {
        assert_refused(outcome, AttachmentEndCause::Gone, None);
    }
}

#[test]
fn same_device_continues_also_after_its_medium_was_swapped() {
    for identity in [HAD, ExportIdentity { generation: 6, ..HAD }] {
        for (end, _) in every_class(Some(identity)) {
            assert_eq!(end, None);
        }
    }
}

#[test]
fn open_device_that_turns_out_to_be_another_one_ends_and_its_requests_fail() {
    let mut done = CompletionQueue::new(BufferPool::new(0));
    let mut remote = RemoteUsb::new(1, open(AttachmentClass::USB, AttachmentMode::Exclusive));
    tell(&mut remote, &mut done, Some(HAD), &usb_description());
    Device::submit(&mut remote, NOW, Urb::data_in(UrbId(1), EpAddr::CONTROL, 0).launch(), &mut done);
    hear(
        &mut remote,
        &mut done,
        FrameKind::Identity,
        IdentityStatement::Is(ExportIdentity { generation: 6, ..HAD }).encode(),
    );
    assert_eq!(
        (remote.state(), remote.identity().unwrap().generation),
        (&AttachmentState::Open, 6),
        "its medium was exchanged"
    );
    hear(&mut remote, &mut done, FrameKind::Identity, IdentityStatement::Is(OTHER).encode());
    assert!(matches!(
        remote.state(),
        AttachmentState::Ended(AttachmentEndNotice { cause: AttachmentEndCause::Gone, .. })
    ));
    assert_eq!(done.pop().map(|done| done.status), Some(UrbStatus::Gone));
}

#[test]
fn requests_to_a_disk_that_is_another_one_end_even_if_its_description_comes_in_pieces() {
    let mut done = CompletionQueue::new(BufferPool::new(0));
    let mut disk = RemoteBlock::new(1, open(AttachmentClass::BLOCK, AttachmentMode::Exclusive));
    disk.note_exporter(BEFORE);
    tell(&mut disk, &mut done, None, &block_description());
    disk.submit(NOW, BlockRequest::read(BlockId(1), 0, 512).launch(), &mut done);
    disk.handle_renewed(NOW, &mut done);
    disk.note_exporter(BEFORE);
    let mut info = block_description();
    // Another size.
    info[1] ^= 2;
    let opened = OpenReply { epoch: 9, credit: AttachmentCredit { requests: 8, bytes: 1 << 20 }, info }.encode();
    let (first, rest) = opened.split_at(10);
    let mut head = FrameHeader::new(FrameKind::Opened, 1, 0);
    head.flags.more = true;
    disk.handle_arrived(NOW, ReceivedFrame { head, body: first.to_vec().into() }, &mut done).unwrap();
    hear(&mut disk, &mut done, FrameKind::Data, rest.to_vec());
    let state = ImporterAttachment::state(&disk);
    assert!(matches!(state, AttachmentState::Ended(end) if end.message.contains("another one")), "{state:?}");
    assert_eq!(done.pop().map(|done| done.id), Some(BlockId(1)), "nothing waits for a disk that is gone");
}
