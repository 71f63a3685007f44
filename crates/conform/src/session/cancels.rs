//! Cancels and their races.

use farbus_wire::native::FrameKind;

use super::asking::{OK, UsbTransferRequest, reply};
use super::entry::{SessionCheck, must};
use super::requests::{BURST, CANCELLED, describes, is_descriptor, once_each, pend};
use super::subject::{FIRST, SessionSubject};
use super::wire::frame;
use crate::check::{CheckOutcome, CheckStop};

const FRAMES: &str = "protocol.md, Frames: cancel";
const CREDITS: &str = "protocol.md, Credits";

pub(super) const CHECKS: &[SessionCheck] = &[
    must(
        "cancel-pending",
        "A request that waits and is cancelled has one reply, of status 8, and one answer.",
        FRAMES,
        pending,
    ),
    must(
        "cancel-answered",
        "A cancel of an answered request is answered once, the request not again.",
        CREDITS,
        answered,
    ),
    must("cancel-unknown", "A cancel of a tag that asked nothing is answered.", FRAMES, unknown),
    must("cancel-race", "Of requests that race with their cancels each has one reply and one answer.", FRAMES, race),
    must("cancel-reused", "A tag whose request and cancel were answered can be used again.", CREDITS, reused),
];

fn cancel(tag: u16) -> Vec<u8> {
    frame(FrameKind::Cancel.code(), 0, FIRST, tag, &[])
}

fn pending(subject: &mut SessionSubject<'_>) -> CheckOutcome {
    let (mut talk, device) = subject.device()?;
    let (tag, ask) = pend(subject, &mut talk, &device.facts)?;
    talk.send_all(&[cancel(tag)])?;
    let came = reply(&mut talk, FIRST, tag, &ask)?;
    once_each(subject, &mut talk, &[tag], 1)?;
    describes(&mut talk, &device, 1)?;
    talk.leave();
    if came.status != CANCELLED {
        return Err(CheckStop::Fail(format!("status {}", came.status)));
    }
    Ok("status 8, then the cancel's answer".to_owned())
}

fn answered(subject: &mut SessionSubject<'_>) -> CheckOutcome {
    let (mut talk, device) = subject.device()?;
    describes(&mut talk, &device, 1)?;
    talk.send_all(&[cancel(1)])?;
    talk.wait(|message| message.kind == FrameKind::Cancel && message.tag == 1)?;
    once_each(subject, &mut talk, &[1], 1)?;
    talk.leave();
    Ok("one reply, one answer".to_owned())
}

fn unknown(subject: &mut SessionSubject<'_>) -> CheckOutcome {
    let (mut talk, device) = subject.device()?;
    talk.send_all(&[cancel(77)])?;
    talk.wait(|message| message.kind == FrameKind::Cancel && message.tag == 77)?;
    describes(&mut talk, &device, 1)?;
    talk.leave();
    Ok("answered".to_owned())
}

fn race(subject: &mut SessionSubject<'_>) -> CheckOutcome {
    let (mut talk, _) = subject.device()?;
    let ask = UsbTransferRequest::descriptor();
    let both = |tag: u16| [ask.frames(FIRST, tag), vec![cancel(tag)]].concat();
    talk.send_all(&(0..BURST).flat_map(both).collect::<Vec<_>>())?;
    let tags: Vec<u16> = (0..BURST).collect();
    let mut withdrawn = 0;
    for &tag in &tags {
        match reply(&mut talk, FIRST, tag, &ask)?.status {
            OK => {}
            CANCELLED => withdrawn += 1,
            other => return Err(CheckStop::Fail(format!("tag {tag} ends with status {other}"))),
        }
    }
    once_each(subject, &mut talk, &tags, 1)?;
    talk.leave();
    Ok(format!("{BURST} requests, {withdrawn} withdrawn"))
}

fn reused(subject: &mut SessionSubject<'_>) -> CheckOutcome {
    let (mut talk, device) = subject.device()?;
    let (tag, ask) = pend(subject, &mut talk, &device.facts)?;
    talk.send_all(&[cancel(tag)])?;
    reply(&mut talk, FIRST, tag, &ask)?;
    talk.wait(|message| message.kind == FrameKind::Cancel && message.tag == tag)?;
    talk.inbox.clear();
    talk.send_all(&UsbTransferRequest::descriptor().frames(FIRST, tag))?;
    is_descriptor(&mut talk, &device, tag)?;
    once_each(subject, &mut talk, &[tag], 0)?;
    talk.leave();
    Ok(format!("tag {tag} twice"))
}
