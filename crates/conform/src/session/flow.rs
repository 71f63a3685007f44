//! Credit, grants, unacknowledged bytes.

use std::time::Duration;

use farbus_model::{SetupPacket, TransferDirection, TransferType};
use farbus_wire::native::control::{AttachmentMode, OpenRequest};
use farbus_wire::native::frame::FRAME_BYTES_MAX;
use farbus_wire::native::{FrameKind, HelloOptions};

use super::asking::{OK, UsbTransferRequest, answer, reply};
use super::entry::{SessionCheck, must, not_applicable};
use super::requests::{once_each, pend, source_sink};
use super::subject::{FIRST, SessionSubject, SessionTestDevice, shown};
use super::talk::{SessionConversation, usb};
use crate::check::{CheckOutcome, CheckStop};

const CREDITS: &str = "protocol.md, Credits";
const BEGINS: &str = "protocol.md, A link begins: option 2";
const USB: &str = "protocol.md, USB: observed";

/// Bytes that the kit lets an exporter have unacknowledged.
const UNACKNOWLEDGED: u32 = 1 << 20;
/// Transfers that bring far more, and bytes of each.
const READS: u16 = 48;
const READ_BYTES: u32 = 64 << 10;
/// The largest transfer (protocol.md, *USB*).
const TRANSFER_BYTES_MAX: u32 = 16 << 20;
/// Transfers that an observer is shown, and how many it grants first.
const SHOWN: u16 = 6;
const GRANTED: u32 = 2;

pub(super) const CHECKS: &[SessionCheck] = &[
    must("credit-requests", "A request beyond the credit of requests ends its attachment.", CREDITS, requests),
    must("credit-bytes", "A request beyond the credit of bytes ends its attachment.", CREDITS, bytes),
    must(
        "credit-back",
        "A reply gives its share of the credit back: twice the credit can be asked in turn.",
        CREDITS,
        back,
    ),
    must(
        "unacknowledged",
        "No more is sent unacknowledged than the importer accepts, but for one frame; the rest follows.",
        BEGINS,
        unacknowledged,
    ),
    must("grant", "No more events come than were granted.", USB, grant),
];

/// A request that stays under way, and the credit.
fn pending(
    subject: &mut SessionSubject<'_>,
) -> Result<(SessionConversation, SessionTestDevice, UsbTransferRequest), CheckStop> {
    let (mut talk, device) = subject.device()?;
    let (_, ask) = pend(subject, &mut talk, &device.facts)?;
    if device.facts.is_source_sink() {
        // Its isochronous requests end, one each few milliseconds.
        return Err(not_applicable("the device answers every request in a while"));
    }
    Ok((talk, device, ask))
}

/// These requests go beyond the credit: the attachment, or the session, has to end.
fn beyond(subject: &mut SessionSubject<'_>, talk: SessionConversation, frames: &[Vec<u8>], case: &str) -> CheckOutcome {
    let seen = subject.breaks(talk, &frames.concat(), case)?;
    subject.serves_device()?;
    Ok(seen)
}

fn requests(subject: &mut SessionSubject<'_>) -> CheckOutcome {
    let (talk, device, ask) = pending(subject)?;
    let most = device.opened.credit.requests;
    if most >= 0x1000 + 0x0fff {
        return Err(not_applicable(format!("a credit of {most} requests is more than there are tags")));
    }
    // The one that waits took a share.
    let frames: Vec<Vec<u8>> = (0x1000..0x1000 + most).flat_map(|tag| ask.frames(FIRST, tag)).collect();
    beyond(subject, talk, &frames, &format!("{} requests of a credit of {most}", u32::from(most) + 1))
}

fn bytes(subject: &mut SessionSubject<'_>) -> CheckOutcome {
    let (talk, device, _) = pending(subject)?;
    let of = |kind| device.facts.endpoint(kind, TransferDirection::In);
    let kinds = match device.facts.disk() {
        Some(_) => [TransferType::Bulk, TransferType::Interrupt],
        None => [TransferType::Interrupt, TransferType::Bulk],
    };
    let endpoint = kinds.into_iter().find_map(of).ok_or_else(|| not_applicable("the device has no IN endpoint"))?;
    let credit = device.opened.credit.bytes;
    let each = credit.clamp(1, TRANSFER_BYTES_MAX);
    let count = credit.div_ceil(each) + 1;
    if count > u32::from(device.opened.credit.requests) / 2 {
        return Err(not_applicable(format!("a credit of {credit} bytes is more than all transfers have")));
    }
    let ask = UsbTransferRequest::data_in(endpoint, each);
    let frames: Vec<Vec<u8>> = (0..count as u16).flat_map(|tag| ask.frames(FIRST, tag)).collect();
    beyond(subject, talk, &frames, &format!("{count} requests of {each} bytes, of a credit of {credit}"))
}

fn back(subject: &mut SessionSubject<'_>) -> CheckOutcome {
    let (mut talk, device) = subject.device()?;
    let most = u32::from(device.opened.credit.requests).min(4096);
    let ask = UsbTransferRequest::descriptor();
    let mut requests = 0;
    while requests < 2 * most {
        let turn = (most / 2).clamp(1, 512);
        talk.send_all(&(0..turn as u16).flat_map(|tag| ask.frames(FIRST, tag)).collect::<Vec<_>>())?;
        for tag in 0..turn as u16 {
            let came = reply(&mut talk, FIRST, tag, &ask)?;
            if came.status != OK {
                return Err(CheckStop::Fail(format!("request {requests} ends with status {}", came.status)));
            }
        }
        requests += turn;
        talk.inbox.clear();
    }
    talk.leave();
    Ok(format!("{requests} requests, of a credit of {most}"))
}

fn unacknowledged(subject: &mut SessionSubject<'_>) -> CheckOutcome {
    let options = HelloOptions { unacknowledged_bytes_max: Some(UNACKNOWLEDGED), ..SessionSubject::options() };
    let (mut talk, device) = subject.device_with(options)?;
    let endpoint = source_sink(&device.facts, TransferDirection::In)?;
    let credit = device.opened.credit;
    let reads = READS.min(credit.requests).min(u16::try_from(credit.bytes / READ_BYTES).unwrap_or(READS));
    if u32::from(reads) * READ_BYTES <= UNACKNOWLEDGED {
        return Err(not_applicable(format!("a credit of {} bytes is less than the kit accepts", credit.bytes)));
    }
    let ask = UsbTransferRequest::data_in(&endpoint, READ_BYTES);
    talk.acknowledge(talk.received())?;
    talk.is_acknowledging = false;
    talk.send_all(&(0..reads).flat_map(|tag| ask.frames(FIRST, tag)).collect::<Vec<_>>())?;
    talk.settle(subject.quiet)?;
    let had = talk.unacknowledged_bytes();
    let most = UNACKNOWLEDGED as usize + FRAME_BYTES_MAX;
    if had > most {
        return Err(CheckStop::Fail(format!(
            "{had} bytes came without an acknowledgement, {UNACKNOWLEDGED} are accepted"
        )));
    }
    talk.is_acknowledging = true;
    talk.acknowledge(talk.received())?;
    let tags: Vec<u16> = (0..reads).collect();
    for &tag in &tags {
        reply(&mut talk, FIRST, tag, &ask)?;
        // What came is acknowledged at once, so that little is enough for the rest.
        talk.acknowledge(talk.received())?;
    }
    once_each(subject, &mut talk, &tags, 0)?;
    talk.leave();
    Ok(format!("{had} bytes, then the rest of {}", u32::from(reads) * READ_BYTES))
}

/// How many events have come.
fn events(talk: &SessionConversation) -> u32 {
    talk.inbox.iter().filter(|message| message.kind == FrameKind::Event).count() as u32
}

fn grant(subject: &mut SessionSubject<'_>) -> CheckOutcome {
    let name = subject.name()?;
    let (mut user, device) = subject.device()?;
    let found = device.facts.endpoint_anywhere(TransferType::Isochronous, TransferDirection::In);
    let (setting, endpoint) = found.ok_or_else(|| not_applicable("the device has no isochronous IN endpoint"))?;
    let set = SetupPacket::set_interface(setting.interface, setting.alternate);
    let of_set = answer(&mut user, FIRST, 1, &UsbTransferRequest::control(set, &[]))?;
    if of_set.status != OK {
        return Err(CheckStop::Skip(format!("SET_INTERFACE ended with status {}", of_set.status)));
    }
    let mut observer = subject.begin()?;
    if let Err(end) = observer.open(FIRST, &OpenRequest { mode: AttachmentMode::Observe, ..usb(&name) })? {
        return Err(not_applicable(format!("the device may not be observed: {}", shown(&end))));
    }
    let allow = |observer: &mut SessionConversation, count: u32| {
        observer.send(FrameKind::Grant.code(), FIRST, 0, &count.to_le_bytes())
    };
    allow(&mut observer, GRANTED)?;
    observer.ping(1)?;
    let ask = UsbTransferRequest::isochronous(endpoint, 8);
    for tag in 10..10 + SHOWN {
        answer(&mut user, FIRST, tag, &ask)?;
    }
    let quiet = subject.quiet.max(Duration::from_millis(100));
    observer.ping(2)?;
    observer.settle(quiet)?;
    let first = events(&observer);
    allow(&mut observer, GRANTED)?;
    observer.ping(3)?;
    for tag in 30..30 + SHOWN {
        answer(&mut user, FIRST, tag, &ask)?;
    }
    observer.ping(4)?;
    observer.settle(quiet)?;
    let all = events(&observer);
    observer.leave();
    user.leave();
    if (first, all) != (GRANTED, 2 * GRANTED) {
        let more = 2 * GRANTED;
        return Err(CheckStop::Fail(format!("{GRANTED} were granted, {first} came; then {more} in all, {all} came")));
    }
    Ok(format!("{GRANTED} of {SHOWN}, then {GRANTED} more"))
}
