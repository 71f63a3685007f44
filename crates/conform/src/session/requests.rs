//! Requests to a USB device: their ends, and what is no request.

use farbus_model::descriptor::EndpointDescriptor;
use farbus_model::usb::request;
use farbus_model::{SetupPacket, TransferDirection, TransferType};
use farbus_wire::native::FrameKind;
use farbus_wire::native::control::AttachmentEndCause;
use farbus_wire::native::frame::BODY_BYTES_MAX;

use super::asking::{OK, UsbTransferRequest, answer, reply};
use super::entry::{SessionCheck, must, not_applicable, should};
use super::subject::{FIRST, SessionSubject, SessionTestDevice};
use super::talk::{MORE, SessionConversation, TIMED};
use super::wire::frame;
use crate::check::{CheckOutcome, CheckStop};
use crate::facts::DescriptorFacts;

const USB: &str = "protocol.md, USB";
const FRAMES: &str = "protocol.md, Frames";
const TIME: &str = "protocol.md, Time";
const CUT_OFF: &str = "protocol.md, Frames: cut off";
const CREDITS: &str = "protocol.md, Credits";

/// Status numbers of replies.
const STALL: u8 = 1;
pub(super) const CANCELLED: u8 = 8;

/// The bit of a request that resets the device.
const RESET: u8 = 1 << 5;
/// Bytes of an OUT transfer that takes several frames, to a device that takes any.
const LONG_BYTES: usize = 100_000;
/// The attachment beside the first.
pub(super) const SECOND: u16 = 2;
/// A descriptor that hardly any device has (USB 2.0 §9.4.3).
const REFUSED: SetupPacket = SetupPacket::get_descriptor(10, 0, 0, 4);

pub(super) const CHECKS: &[SessionCheck] = &[
    must("request", "A request is answered with its tag, once, and with the description's descriptor.", USB, plain),
    must(
        "request-many",
        "Requests that arrive in one piece are answered once each, an endpoint's in order.",
        USB,
        many,
    ),
    must("request-stall", "A refused control request ends with status 1, and the next one is served.", USB, stall),
    must("request-timed", "The reply to a timed request is timed and begins with three durations.", TIME, timed),
    must("request-long", "A request of several frames is one, with other messages between them.", FRAMES, long),
    must("reply-long", "A reply longer than a frame comes in frames, the last without 'more'.", FRAMES, long_reply),
    must("reset", "A reset is answered, and the device is not configured behind it.", USB, reset),
    must("endpoint-missing", "A request to an endpoint that there is not ends with an error.", USB, missing),
    must(
        "request-broken",
        "A request that breaks the protocol ends its session, and the device can be used again.",
        CUT_OFF,
        broken,
    ),
    must(
        "request-broken-beside",
        "Beside another attachment it ends its own attachment alone, with cause 3.",
        CUT_OFF,
        broken_beside,
    ),
    must("length-huge", "A request for more than 16 MiB is refused at its head.", USB, huge),
    must("data-excess", "More data than the request said ends the attachment.", USB, excess),
    must("data-stray", "Data that continue no message end the attachment.", FRAMES, stray),
    must("tag-twice", "A tag that is in flight cannot be used again.", CREDITS, tag_twice),
    should("cut-off-message", "The message of an attachment that is cut off says so.", CUT_OFF, cut_off_message),
];

/// The answer to GET_DESCRIPTOR, which has to be the description's descriptor.
pub(super) fn describes(talk: &mut SessionConversation, device: &SessionTestDevice, tag: u16) -> Result<(), CheckStop> {
    let ask = UsbTransferRequest::descriptor();
    talk.send_all(&ask.frames(FIRST, tag))?;
    is_descriptor(talk, device, tag)
}

/// Waits for the answer to a GET_DESCRIPTOR that was sent.
pub(super) fn is_descriptor(
    talk: &mut SessionConversation,
    device: &SessionTestDevice,
    tag: u16,
) -> Result<(), CheckStop> {
    let came = reply(talk, FIRST, tag, &UsbTransferRequest::descriptor())?;
    let (vendor, product) = (device.facts.device.vendor, device.facts.device.product);
    let ids = [vendor.to_le_bytes(), product.to_le_bytes()].concat();
    if came.status != OK || came.data.get(8..12) != Some(&ids) {
        return Err(CheckStop::Fail(format!("GET_DESCRIPTOR: status {}, {:02x?}", came.status, came.data)));
    }
    Ok(())
}

/// Waits until nothing more comes; each of these tags has one reply, and an answer to a cancel if it has one.
pub(super) fn once_each(
    subject: &SessionSubject<'_>,
    talk: &mut SessionConversation,
    tags: &[u16],
    cancels: usize,
) -> Result<(), CheckStop> {
    // From here on the exporter has heard all.
    talk.ping(0x6f6e_6365)?;
    talk.settle(subject.quiet)?;
    for &tag in tags {
        let (replies, seen) = talk.answers(FIRST, tag);
        if (replies, seen) != (1, cancels) {
            return Err(CheckStop::Fail(format!("tag {tag} has {replies} replies and {seen} answers to its cancel")));
        }
    }
    Ok(())
}

fn plain(subject: &mut SessionSubject<'_>) -> CheckOutcome {
    let (mut talk, device) = subject.device()?;
    for tag in [0, 7, 0x1fff] {
        describes(&mut talk, &device, tag)?;
    }
    once_each(subject, &mut talk, &[0, 7, 0x1fff], 0)?;
    talk.leave();
    Ok("tags 0, 7, 0x1fff".to_owned())
}

/// Requests that arrive in one piece.
pub(super) const BURST: u16 = 32;

/// The frames of many GET_DESCRIPTORs.
pub(super) fn burst() -> Vec<Vec<u8>> {
    (0..BURST).flat_map(|tag| UsbTransferRequest::descriptor().frames(FIRST, tag)).collect()
}

fn many(subject: &mut SessionSubject<'_>) -> CheckOutcome {
    let (mut talk, device) = subject.device()?;
    talk.send_all(&burst())?;
    let tags: Vec<u16> = (0..BURST).collect();
    for &tag in &tags {
        is_descriptor(&mut talk, &device, tag)?;
    }
    once_each(subject, &mut talk, &tags, 0)?;
    let order: Vec<u16> = talk.inbox.iter().filter(|m| m.kind == FrameKind::Reply).map(|m| m.tag).collect();
    talk.leave();
    if order != tags {
        return Err(CheckStop::Fail(format!("the order is {order:?}")));
    }
    Ok(format!("{BURST} requests, {BURST} replies in order"))
}

fn stall(subject: &mut SessionSubject<'_>) -> CheckOutcome {
    let (mut talk, device) = subject.device()?;
    let came = answer(&mut talk, FIRST, 1, &UsbTransferRequest::control(REFUSED, &[]))?;
    describes(&mut talk, &device, 2)?;
    talk.leave();
    if came.status != STALL || !came.data.is_empty() {
        return Err(CheckStop::Fail(format!("status {}, {} bytes", came.status, came.data.len())));
    }
    Ok("status 1".to_owned())
}

fn timed(subject: &mut SessionSubject<'_>) -> CheckOutcome {
    let (mut talk, _) = subject.device()?;
    let ask = UsbTransferRequest { flags: TIMED, ..UsbTransferRequest::descriptor() };
    let came = answer(&mut talk, FIRST, 1, &ask)?;
    talk.leave();
    if (came.status, came.moved) != (OK, 18) {
        return Err(CheckStop::Fail(format!("status {}, {} bytes behind the times", came.status, came.moved)));
    }
    Ok("12 bytes of times, then 18".to_owned())
}

/// A bulk endpoint of this direction of a device that takes anything and always has data.
pub(super) fn source_sink(
    facts: &DescriptorFacts,
    direction: TransferDirection,
) -> Result<EndpointDescriptor, CheckStop> {
    let none = || not_applicable("the device is no source/sink: the kit may not send it anything");
    let found = facts.is_source_sink().then(|| facts.endpoint(TransferType::Bulk, direction)).flatten();
    found.copied().ok_or_else(none)
}

fn long(subject: &mut SessionSubject<'_>) -> CheckOutcome {
    let (mut talk, device) = subject.device()?;
    let endpoint = source_sink(&device.facts, TransferDirection::Out)?;
    let ask = UsbTransferRequest::bulk_out(endpoint.address, &vec![0; LONG_BYTES]);
    let mut frames = Vec::new();
    for (at, piece) in ask.frames(FIRST, 1).into_iter().enumerate() {
        frames.push(piece);
        frames.extend(UsbTransferRequest::descriptor().frames(FIRST, 10 + at as u16));
    }
    let between: Vec<u16> = (10..10 + frames.len() as u16 / 2).collect();
    talk.send_all(&frames)?;
    for &tag in &between {
        is_descriptor(&mut talk, &device, tag)?;
    }
    let came = reply(&mut talk, FIRST, 1, &ask)?;
    once_each(subject, &mut talk, &[&between[..], &[1]].concat(), 0)?;
    talk.leave();
    if (came.status, came.moved as usize) != (OK, LONG_BYTES) {
        return Err(CheckStop::Fail(format!("status {}, {} bytes moved", came.status, came.moved)));
    }
    Ok(format!("{LONG_BYTES} bytes in {} frames", between.len()))
}

fn long_reply(subject: &mut SessionSubject<'_>) -> CheckOutcome {
    let (mut talk, device) = subject.device()?;
    let endpoint = source_sink(&device.facts, TransferDirection::In)?;
    let came = answer(&mut talk, FIRST, 1, &UsbTransferRequest::data_in(&endpoint, 3 * BODY_BYTES_MAX as u32))?;
    let frames =
        talk.frames.iter().filter(|m| m.tag == 1 && matches!(m.kind, FrameKind::Reply | FrameKind::Data)).count();
    once_each(subject, &mut talk, &[1], 0)?;
    talk.leave();
    if came.status != OK || came.moved != 3 * BODY_BYTES_MAX as u32 || frames < 3 {
        return Err(CheckStop::Fail(format!("status {}, {} bytes in {frames} frames", came.status, came.moved)));
    }
    Ok(format!("{} bytes in {frames} frames", came.moved))
}

fn reset(subject: &mut SessionSubject<'_>) -> CheckOutcome {
    let (mut talk, device) = subject.device()?;
    let reset = UsbTransferRequest::new(0, RESET, 0, 0);
    let came = answer(&mut talk, FIRST, 1, &reset)?;
    let get = SetupPacket { request_type: 0x80, request: request::GET_CONFIGURATION, value: 0, index: 0, length: 1 };
    let configuration = answer(&mut talk, FIRST, 2, &UsbTransferRequest::control(get, &[]))?;
    describes(&mut talk, &device, 3)?;
    once_each(subject, &mut talk, &[1, 2, 3], 0)?;
    talk.leave();
    if came.status != OK || configuration.data != [0] {
        let (status, data) = (came.status, configuration.data);
        return Err(CheckStop::Fail(format!("status {status}, then GET_CONFIGURATION shows {data:?}")));
    }
    Ok("answered, configuration 0".to_owned())
}

fn missing(subject: &mut SessionSubject<'_>) -> CheckOutcome {
    let (mut talk, device) = subject.device()?;
    let none = || not_applicable("the device has all endpoints");
    let address = device.facts.missing_endpoint().ok_or_else(none)?;
    let came = answer(
        &mut talk,
        FIRST,
        1,
        &UsbTransferRequest::new(address.as_byte(), TransferType::Bulk.as_attributes(), 0, 64),
    )?;
    describes(&mut talk, &device, 2)?;
    talk.leave();
    if came.status == OK {
        return Err(CheckStop::fail("status 0"));
    }
    Ok(format!("status {}", came.status))
}

/// A control request whose length is not that of its setup packet.
fn crooked() -> Vec<u8> {
    let mut ask = UsbTransferRequest::descriptor();
    ask.part[4] = 99;
    ask.frames(FIRST, 1).concat()
}

/// The request ends its session: the link ends, and the device is free.
fn ends(subject: &mut SessionSubject<'_>, talk: SessionConversation, bytes: &[u8], case: &str) -> CheckOutcome {
    let seen = subject.breaks(talk, bytes, case)?;
    subject.serves_device()?;
    Ok(seen)
}

fn broken(subject: &mut SessionSubject<'_>) -> CheckOutcome {
    let (talk, _) = subject.device()?;
    ends(subject, talk, &crooked(), "a length of 99 for a setup packet of 18")
}

/// What ends one of two attachments; the other is used afterwards.
fn cut_off(subject: &mut SessionSubject<'_>) -> Result<(AttachmentEndCause, String), CheckStop> {
    let name = subject.other_name()?;
    let (mut talk, device) = subject.device()?;
    subject.open(&mut talk, SECOND, &name)?;
    let mut crooked = UsbTransferRequest::descriptor();
    crooked.part[4] = 99;
    talk.send_all(&crooked.frames(SECOND, 1))?;
    let end = talk.closed(SECOND)?;
    describes(&mut talk, &device, 2)?;
    talk.leave();
    Ok((end.cause, end.message))
}

fn broken_beside(subject: &mut SessionSubject<'_>) -> CheckOutcome {
    let (cause, message) = cut_off(subject)?;
    if cause != AttachmentEndCause::Refused {
        return Err(CheckStop::Fail(format!("cause {cause:?}, '{message}'")));
    }
    Ok(format!("'{message}'; the first device goes on"))
}

fn cut_off_message(subject: &mut SessionSubject<'_>) -> CheckOutcome {
    let (_, message) = cut_off(subject)?;
    if message.starts_with("cut off: ") { Ok(message) } else { Err(CheckStop::Fail(message)) }
}

fn huge(subject: &mut SessionSubject<'_>) -> CheckOutcome {
    let (talk, device) = subject.device()?;
    let address = device.facts.endpoint(TransferType::Bulk, TransferDirection::Out).map_or(1, |e| e.address.as_byte());
    let ask = UsbTransferRequest::new(address, TransferType::Bulk.as_attributes(), 0, (16 << 20) + 1);
    let bytes = frame(FrameKind::Request.code(), MORE, FIRST, 1, &ask.part);
    ends(subject, talk, &bytes, "16 MiB and a byte")
}

fn excess(subject: &mut SessionSubject<'_>) -> CheckOutcome {
    let (talk, device) = subject.device()?;
    let endpoint = source_sink(&device.facts, TransferDirection::Out)?;
    let mut ask = UsbTransferRequest::bulk_out(endpoint.address, &[0; 5]);
    ask.data.push(0);
    ends(subject, talk, &ask.frames(FIRST, 1).concat(), "6 bytes where 5 were said")
}

fn stray(subject: &mut SessionSubject<'_>) -> CheckOutcome {
    let (talk, _) = subject.device()?;
    ends(subject, talk, &frame(FrameKind::Data.code(), 0, FIRST, 9, &[1, 2, 3]), "data of a tag that asked nothing")
}

fn tag_twice(subject: &mut SessionSubject<'_>) -> CheckOutcome {
    let (mut talk, device) = subject.device()?;
    let (tag, ask) = pend(subject, &mut talk, &device.facts)?;
    ends(subject, talk, &ask.frames(FIRST, tag).concat(), "a tag that is in flight")
}

/// Isochronous requests queued before one that stays under way, and packets of each.
const ISO_DEPTH: u16 = 8;
const ISO_PACKETS: u16 = 512;

/// A request that stays unanswered on this device until it is cancelled: its tag, and the request.
pub(super) fn pend(
    subject: &SessionSubject<'_>,
    talk: &mut SessionConversation,
    facts: &DescriptorFacts,
) -> Result<(u16, UsbTransferRequest), CheckStop> {
    let kinds = match facts.disk().is_some() {
        true => [TransferType::Bulk, TransferType::Interrupt],
        false => [TransferType::Interrupt, TransferType::Bulk],
    };
    let first = 0x100;
    if facts.is_source_sink() {
        let endpoint = facts.endpoint(TransferType::Isochronous, TransferDirection::In);
        let endpoint = endpoint.ok_or_else(|| not_applicable("the device answers every request at once"))?;
        let ask = UsbTransferRequest::isochronous(endpoint, ISO_PACKETS);
        let queue: Vec<Vec<u8>> = (first..first + ISO_DEPTH).flat_map(|tag| ask.frames(FIRST, tag)).collect();
        talk.send_all(&queue)?;
        return Ok((first + ISO_DEPTH - 1, ask));
    }
    for (at, endpoint) in kinds.into_iter().filter_map(|kind| facts.endpoint(kind, TransferDirection::In)).enumerate() {
        let tag = first + at as u16;
        let ask = UsbTransferRequest::data_in(endpoint, endpoint.packet_bytes_max.into());
        talk.send_all(&ask.frames(FIRST, tag))?;
        talk.settle(subject.quiet)?;
        if talk.answers(FIRST, tag) == (0, 0) {
            return Ok((tag, ask));
        }
    }
    Err(not_applicable("the device answers every request at once: none stays under way"))
}
