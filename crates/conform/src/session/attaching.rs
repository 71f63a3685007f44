//! Open and close, leases, and who else has the device.

use farbus_wire::native::FrameKind;
use farbus_wire::native::control::{AttachmentClass, AttachmentEndCause, OpenRequest};

use super::entry::{SessionCheck, must, should};
use super::requests::{SECOND, describes};
use super::subject::{FIRST, SessionSubject, SessionTestDevice, outcome, shown};
use super::talk::{SessionConversation, usb};
use super::wire::frame;
use crate::check::{CheckOutcome, CheckStop};

const FRAMES: &str = "protocol.md, Frames";
const LEASES: &str = "protocol.md, Leases";
const MODULES: &str = "protocol.md, Modules";

/// A name that no exporter has.
const UNKNOWN: &str = "no-such-device";

pub(super) const CHECKS: &[SessionCheck] = &[
    must("open", "An open is answered with a lease, credit and a description.", FRAMES, open),
    must("open-later", "Bytes behind the fields of an open are skipped.", FRAMES, open_later),
    must("open-unknown", "An open of an unknown name is refused, and the session goes on.", FRAMES, open_unknown),
    should("open-unknown-cause", "The cause of an unknown name is 4.", FRAMES, open_unknown_cause),
    must("open-class", "An open in a class that there is not is refused, and the session goes on.", FRAMES, open_class),
    must("open-short", "An open that ends within its fields ends the link.", FRAMES, open_short),
    must("open-busy", "A device in use is refused with cause 5, and its user keeps it.", FRAMES, open_busy),
    must("open-again", "A device that was closed can be opened again, under the same number.", FRAMES, open_again),
    must("open-used", "An open under a number that is in use, or 0, ends the link.", FRAMES, open_used),
    must("close", "A close is answered with cause 0, once, and the device is free at once.", FRAMES, close),
    must("lease-higher", "The lease of a later use is higher.", LEASES, lease_higher),
    must("lease-latest", "An open with the latest lease is granted.", LEASES, lease_latest),
    must("lease-stale", "An open with a lease that is not the latest is refused with cause 6.", LEASES, lease_stale),
    must(
        "modules-unknown",
        "A module that is not known is refused with cause 8, and the session goes on.",
        MODULES,
        modules,
    ),
    must("goodbye", "After a goodbye the devices are free at once, and the session is no more.", FRAMES, goodbye),
];

fn open(subject: &mut SessionSubject<'_>) -> CheckOutcome {
    let (talk, SessionTestDevice { opened, facts }) = subject.device()?;
    talk.leave();
    let (lease, credit) = (opened.epoch, opened.credit);
    if lease == 0 || credit.bytes == 0 {
        return Err(CheckStop::Fail(format!("lease {lease}, credit of {} bytes", credit.bytes)));
    }
    let ids = (facts.device.vendor, facts.device.product);
    Ok(format!("{:04x}:{:04x}, credit {} requests, {} bytes", ids.0, ids.1, credit.requests, credit.bytes))
}

fn open_later(subject: &mut SessionSubject<'_>) -> CheckOutcome {
    // Until the device is free.
    subject.serves_device()?;
    let name = subject.name()?;
    let mut talk = subject.begin()?;
    let body = [&usb(&name).encode()[..], b"of a later version"].concat();
    talk.send(FrameKind::Open.code(), FIRST, 0, &body)?;
    let answer = talk.opened(FIRST)?;
    talk.leave();
    answer.map(|_| "opened".to_owned()).map_err(|end| CheckStop::Fail(shown(&end)))
}

/// The refusal of an open, after which the session goes on.
fn refused(talk: &mut SessionConversation, ask: &OpenRequest) -> Result<(AttachmentEndCause, String), CheckStop> {
    let answer = talk.open(SECOND, ask)?;
    talk.ping(1)?;
    match answer {
        Ok(opened) => Err(CheckStop::Fail(format!("it was opened, with lease {:#x}", opened.epoch))),
        Err(end) => Ok((end.cause, shown(&end))),
    }
}

fn unknown(subject: &mut SessionSubject<'_>) -> Result<(AttachmentEndCause, String), CheckStop> {
    let mut talk = subject.begin()?;
    let seen = refused(&mut talk, &usb(UNKNOWN))?;
    talk.leave();
    Ok(seen)
}

fn open_unknown(subject: &mut SessionSubject<'_>) -> CheckOutcome {
    unknown(subject).map(|(_, seen)| seen)
}

fn open_unknown_cause(subject: &mut SessionSubject<'_>) -> CheckOutcome {
    let (cause, seen) = unknown(subject)?;
    if cause == AttachmentEndCause::Gone { Ok(seen) } else { Err(CheckStop::Fail(seen)) }
}

fn open_class(subject: &mut SessionSubject<'_>) -> CheckOutcome {
    let name = subject.name()?;
    let mut talk = subject.begin()?;
    let (_, seen) = refused(&mut talk, &OpenRequest { class: AttachmentClass(99), ..usb(&name) })?;
    talk.leave();
    Ok(seen)
}

fn open_short(subject: &mut SessionSubject<'_>) -> CheckOutcome {
    let name = subject.name()?;
    let talk = subject.begin()?;
    let body = usb(&name).encode();
    subject.breaks(talk, &frame(FrameKind::Open.code(), 0, FIRST, 0, &body[..9]), "an open of 9 bytes")
}

fn open_busy(subject: &mut SessionSubject<'_>) -> CheckOutcome {
    let name = subject.name()?;
    let (mut user, device) = subject.device()?;
    let mut second = subject.begin()?;
    let (cause, seen) = refused(&mut second, &usb(&name))?;
    second.leave();
    describes(&mut user, &device, 1)?;
    user.leave();
    if cause == AttachmentEndCause::Busy { Ok(seen) } else { Err(CheckStop::Fail(seen)) }
}

fn open_again(subject: &mut SessionSubject<'_>) -> CheckOutcome {
    let name = subject.name()?;
    let (mut talk, device) = subject.device()?;
    talk.close(FIRST)?;
    let again = talk.open(FIRST, &usb(&name))?.map_err(|end| CheckStop::Fail(shown(&end)))?;
    describes(&mut talk, &device, 1)?;
    talk.leave();
    Ok(format!("opened again, with a credit of {} requests", again.credit.requests))
}

fn open_used(subject: &mut SessionSubject<'_>) -> CheckOutcome {
    let name = subject.name()?;
    let body = usb(&name).encode();
    let (talk, _) = subject.device()?;
    subject.breaks(talk, &frame(FrameKind::Open.code(), 0, FIRST, 0, &body), "the number of an open device")?;
    let talk = subject.begin()?;
    subject.breaks(talk, &frame(FrameKind::Open.code(), 0, 0, 0, &body), "number 0")?;
    subject.serves_device()?;
    Ok("a used number, and 0: the link ended".to_owned())
}

fn close(subject: &mut SessionSubject<'_>) -> CheckOutcome {
    let name = subject.name()?;
    let (mut talk, _) = subject.device()?;
    let end = talk.close(FIRST)?;
    let mut other = subject.begin()?;
    let opened = other.open(FIRST, &usb(&name))?;
    other.leave();
    talk.settle(subject.quiet)?;
    let again = talk.inbox.iter().any(|message| message.kind == FrameKind::Closed);
    talk.leave();
    match (end.cause, opened, again) {
        (AttachmentEndCause::Requested, Ok(_), false) => Ok("closed, and opened by another session".to_owned()),
        (AttachmentEndCause::Requested, Err(end), _) => {
            Err(CheckStop::Fail(format!("another session: {}", shown(&end))))
        }
        (AttachmentEndCause::Requested, Ok(_), true) => Err(CheckStop::fail("it is closed twice")),
        _ => Err(CheckStop::Fail(shown(&end))),
    }
}

/// Two uses of the device in one session, the second with this of the first's lease; the session is still there.
fn leases(subject: &mut SessionSubject<'_>) -> Result<(SessionConversation, u64, u64), CheckStop> {
    let name = subject.name()?;
    let (mut talk, device) = subject.device()?;
    talk.close(FIRST)?;
    let later = talk.open(FIRST, &usb(&name))?.map_err(|end| CheckStop::Fail(shown(&end)))?;
    talk.close(FIRST)?;
    Ok((talk, device.opened.epoch, later.epoch))
}

fn lease_higher(subject: &mut SessionSubject<'_>) -> CheckOutcome {
    let (talk, first, second) = leases(subject)?;
    talk.leave();
    let seen = format!("{first:#x}, then {second:#x}");
    if second > first { Ok(seen) } else { Err(CheckStop::Fail(seen)) }
}

fn lease_latest(subject: &mut SessionSubject<'_>) -> CheckOutcome {
    let name = subject.name()?;
    let (mut talk, _, latest) = leases(subject)?;
    let answer = talk.open(FIRST, &OpenRequest { epoch: latest, ..usb(&name) })?;
    talk.leave();
    answer.map(|opened| format!("opened, with lease {:#x}", opened.epoch)).map_err(|end| CheckStop::Fail(shown(&end)))
}

fn lease_stale(subject: &mut SessionSubject<'_>) -> CheckOutcome {
    let name = subject.name()?;
    let (mut talk, stale, _) = leases(subject)?;
    let answer = talk.open(FIRST, &OpenRequest { epoch: stale, ..usb(&name) })?;
    talk.leave();
    match answer {
        Err(end) if end.cause == AttachmentEndCause::Stale => Ok(shown(&end)),
        Err(end) => Err(CheckStop::Fail(shown(&end))),
        Ok(opened) => Err(CheckStop::Fail(format!("it was opened, with lease {:#x}", opened.epoch))),
    }
}

fn modules(subject: &mut SessionSubject<'_>) -> CheckOutcome {
    let name = subject.name()?;
    subject.serves_device()?;
    let mut talk = subject.begin()?;
    let mut offer = vec![1, 9, 0];
    offer.extend(b"no-module");
    offer.extend([1, 0, 0, 0, 0, 0]);
    talk.send(FrameKind::Modules.code(), SECOND, 0, &offer)?;
    let (cause, seen) = refused(&mut talk, &usb(&name))?;
    talk.leave();
    if cause == AttachmentEndCause::Module { Ok(seen) } else { Err(CheckStop::Fail(seen)) }
}

fn goodbye(subject: &mut SessionSubject<'_>) -> CheckOutcome {
    use farbus_wire::native::WelcomeOutcome;
    let name = subject.name()?;
    let (mut talk, _) = subject.device()?;
    talk.send(FrameKind::Goodbye.code(), 0, 0, &[])?;
    let is_closed = talk.cut().is_none_or(|mut wire| wire.is_closed_within(subject.patience, 1 << 20));
    if !is_closed {
        return Err(CheckStop::fail("the link did not end"));
    }
    let mut other = subject.begin()?;
    let opened = other.open(FIRST, &usb(&name))?;
    other.leave();
    if let Err(end) = opened {
        return Err(CheckStop::Fail(format!("another session: {}", shown(&end))));
    }
    match subject.resume(&mut talk)? {
        WelcomeOutcome::Unknown => Ok("the device was free, the session unknown".to_owned()),
        other => Err(CheckStop::Fail(format!("the session's next link: the outcome is {}", outcome(other)))),
    }
}
