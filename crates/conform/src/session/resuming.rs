//! Links that are cut, resumed and replayed, and devices that wait for their importer.

use farbus_wire::native::control::AttachmentEndCause;
use farbus_wire::native::{FrameKind, HelloOptions, ImporterHello, LanePosition, WelcomeOutcome};

use super::asking::UsbTransferRequest;
use super::entry::{SessionCheck, must, should};
use super::requests::{BURST, burst, describes, is_descriptor, once_each};
use super::subject::{FIRST, KEPT, SessionSubject, outcome, shown};
use super::talk::{SessionConversation, usb};
use super::wire::SessionMessage;
use crate::check::{CheckOutcome, CheckStop};

const COUNTED: &str = "protocol.md, Nothing is lost, nothing is doubled";
const BEGINS: &str = "protocol.md, A link begins";
const CLOSED: &str = "protocol.md, Closed and lost links";

/// A grace period that ends before the device is free, ms.
const SHORT_GRACE_MS: u32 = 500;

pub(super) const CHECKS: &[SessionCheck] = &[
    must("resume", "After a cut within replies each of them comes, once, in order.", COUNTED, resume),
    must(
        "resume-request",
        "A request that was cut within a frame is carried out once, when it came whole.",
        COUNTED,
        cut_request,
    ),
    must(
        "resume-again",
        "What was not acknowledged comes again on the next link, frame by frame the same.",
        COUNTED,
        again,
    ),
    must("resume-twice", "A session continues over many links.", COUNTED, twice),
    must("take-over", "A later link has the session, and the earlier one ends.", BEGINS, take_over),
    must("link-replayed", "A hello that was sent before is refused, and the session's link goes on.", BEGINS, replayed),
    must(
        "link-earlier",
        "A hello with an earlier link's number is refused, and the session's link goes on.",
        BEGINS,
        earlier,
    ),
    must("resume-ahead", "A hello that has more frames than were sent does not resume the session.", COUNTED, ahead),
    must("resume-back", "A hello that takes an acknowledgement back does not resume the session.", COUNTED, back),
    should("resume-forgetful", "An importer that lost what it knew does not resume the session.", BEGINS, forgetful),
    must(
        "kept",
        "A device whose importer closed its link is given to nobody for 4 s, and then to others.",
        CLOSED,
        kept,
    ),
    must(
        "grace-over",
        "A grace period of 500 ms that was granted ends before 4 s, and the session with it.",
        CLOSED,
        grace_over,
    ),
    must("kept-busy", "While a lost importer may come back, its device is refused with cause 5.", CLOSED, kept_busy),
];

fn resume(subject: &mut SessionSubject<'_>) -> CheckOutcome {
    let (mut talk, device) = subject.device()?;
    talk.is_acknowledging = false;
    talk.send_all(&burst())?;
    for tag in 0..BURST / 2 {
        is_descriptor(&mut talk, &device, tag)?;
    }
    drop(talk.cut());
    subject.go_on(&mut talk)?;
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
    Ok(format!("{BURST} replies over two links"))
}

fn cut_request(subject: &mut SessionSubject<'_>) -> CheckOutcome {
    let (mut talk, device) = subject.device()?;
    let frames = burst();
    let bytes = frames.concat().len();
    // The last frame leaves in part.
    talk.send_part(&frames, bytes - 5)?;
    drop(talk.cut());
    subject.go_on(&mut talk)?;
    let tags: Vec<u16> = (0..BURST).collect();
    for &tag in &tags {
        is_descriptor(&mut talk, &device, tag)?;
    }
    once_each(subject, &mut talk, &tags, 0)?;
    talk.leave();
    Ok(format!("{BURST} requests, the last over two links"))
}

fn again(subject: &mut SessionSubject<'_>) -> CheckOutcome {
    let (mut talk, device) = subject.device()?;
    talk.ping(1)?;
    let before = talk.received();
    talk.acknowledge(before)?;
    talk.is_acknowledging = false;
    talk.send_all(&burst())?;
    for tag in 0..BURST {
        is_descriptor(&mut talk, &device, tag)?;
    }
    talk.settle(subject.quiet)?;
    drop(talk.cut());
    // The importer has lost the frames that it did not acknowledge.
    let first: Vec<SessionMessage> = talk.frames.drain(before as usize..).collect();
    talk.inbox.clear();
    subject.go_on(&mut talk)?;
    talk.settle(subject.quiet)?;
    let second = &talk.frames[before as usize..];
    let (had, has) = (first.len(), second.len());
    let at = first.iter().zip(second).position(|(one, two)| one != two);
    let seen = match at {
        Some(at) => Err(CheckStop::Fail(format!("frame {at} was {:?}, and is {:?}", first[at].kind, second[at].kind))),
        None if had != has => Err(CheckStop::Fail(format!("{had} frames came, then {has}"))),
        None => Ok(format!("{has} frames twice")),
    };
    talk.leave();
    seen
}

fn twice(subject: &mut SessionSubject<'_>) -> CheckOutcome {
    let (mut talk, device) = subject.device()?;
    let links = 8;
    for tag in 0..links {
        talk.send_all(&UsbTransferRequest::descriptor().frames(FIRST, tag))?;
        drop(talk.cut());
        subject.go_on(&mut talk)?;
        is_descriptor(&mut talk, &device, tag)?;
    }
    once_each(subject, &mut talk, &(0..links).collect::<Vec<_>>(), 0)?;
    talk.leave();
    Ok(format!("{} links", links + 1))
}

fn take_over(subject: &mut SessionSubject<'_>) -> CheckOutcome {
    let (mut talk, device) = subject.device()?;
    let earlier = talk.cut();
    subject.go_on(&mut talk)?;
    describes(&mut talk, &device, 1)?;
    let is_closed = earlier.is_none_or(|mut wire| wire.is_closed_within(subject.patience, 1 << 20));
    describes(&mut talk, &device, 2)?;
    talk.leave();
    if is_closed {
        Ok("the earlier link ended".to_owned())
    } else {
        Err(CheckStop::fail("the earlier link did not end"))
    }
}

/// The hello is refused, and the session goes on over its link.
fn refuses(
    subject: &mut SessionSubject<'_>,
    mut talk: SessionConversation,
    hello: &ImporterHello,
    case: &str,
) -> CheckOutcome {
    let mut wire = subject.dial()?;
    wire.send(&hello.encode())?;
    let seen = match wire.welcome() {
        Ok(welcome) if matches!(welcome.outcome, WelcomeOutcome::Begun | WelcomeOutcome::Resumed) => {
            return Err(CheckStop::Fail(format!("{case}: the outcome is {}", outcome(welcome.outcome))));
        }
        Ok(welcome) => format!("the outcome is {}", outcome(welcome.outcome)),
        Err(crate::conversation::ExchangeError::Closed) => "it closed the link".to_owned(),
        Err(other) => return Err(CheckStop::Fail(format!("{case}: {other}"))),
    };
    drop(wire);
    talk.ping(9).map_err(|trouble| CheckStop::Fail(format!("the session's link: {trouble}")))?;
    talk.leave();
    Ok(seen)
}

fn replayed(subject: &mut SessionSubject<'_>) -> CheckOutcome {
    let (mut talk, _) = subject.device()?;
    let hello = talk.hello(SessionSubject::options());
    drop(talk.cut());
    subject.go_on(&mut talk)?;
    refuses(subject, talk, &hello, "the hello of the link that there is")
}

fn earlier(subject: &mut SessionSubject<'_>) -> CheckOutcome {
    let (mut talk, _) = subject.device()?;
    drop(talk.cut());
    subject.go_on(&mut talk)?;
    let position = LanePosition { link: 1, received: talk.received(), ..talk.position };
    refuses(subject, talk, &ImporterHello::new(position, SessionSubject::options()), "link 1 of 2")
}

/// A hello after a cut that must not resume the session.
fn resumes_not(
    subject: &mut SessionSubject<'_>,
    mut talk: SessionConversation,
    hello: &ImporterHello,
    case: &str,
) -> CheckOutcome {
    drop(talk.cut());
    let seen = subject.refuses_hello(&hello.encode(), case)?;
    subject.serves_device()?;
    Ok(seen)
}

fn ahead(subject: &mut SessionSubject<'_>) -> CheckOutcome {
    let (talk, _) = subject.device()?;
    let hello = talk.hello(SessionSubject::options());
    let position = LanePosition { received: talk.received() + 1000, ..hello.position };
    resumes_not(subject, talk, &ImporterHello { position, ..hello }, "1000 frames more than were sent")
}

fn back(subject: &mut SessionSubject<'_>) -> CheckOutcome {
    let (mut talk, _) = subject.device()?;
    talk.acknowledge(talk.received())?;
    talk.ping(1)?;
    let hello = talk.hello(SessionSubject::options());
    let position = LanePosition { received: 0, ..hello.position };
    let case = format!("0 frames after {}", talk.received());
    resumes_not(subject, talk, &ImporterHello { position, ..hello }, &case)
}

fn forgetful(subject: &mut SessionSubject<'_>) -> CheckOutcome {
    let (talk, _) = subject.device()?;
    let hello = talk.hello(SessionSubject::options());
    let position = LanePosition { incarnation: hello.position.incarnation + (1 << 32), ..hello.position };
    resumes_not(subject, talk, &ImporterHello { position, ..hello }, "another incarnation")
}

fn kept(subject: &mut SessionSubject<'_>) -> CheckOutcome {
    let name = subject.name()?;
    let (mut lost, _) = subject.device()?;
    let mut other = subject.begin()?;
    let began = subject.now();
    drop(lost.cut());
    let opened = subject.open(&mut other, FIRST, &name)?;
    let after = subject.now().since(began);
    other.leave();
    let seen = format!("free after {} ms, lease {:#x}", after.as_millis(), opened.epoch);
    if after >= KEPT { Ok(seen) } else { Err(CheckStop::Fail(seen)) }
}

fn grace_over(subject: &mut SessionSubject<'_>) -> CheckOutcome {
    let name = subject.name()?;
    let (mut lost, _) =
        subject.device_with(HelloOptions { grace_ms: Some(SHORT_GRACE_MS), ..HelloOptions::default() })?;
    let mut other = subject.begin()?;
    let began = subject.now();
    drop(lost.cut());
    subject.open(&mut other, FIRST, &name)?;
    let after = subject.now().since(began);
    other.leave();
    let of_session = subject.resume(&mut lost)?;
    let seen = format!("{} ms later the device is free, the outcome is {}", after.as_millis(), outcome(of_session));
    match of_session {
        WelcomeOutcome::Unknown if after < KEPT => Ok(seen),
        _ => Err(CheckStop::Fail(seen)),
    }
}

fn kept_busy(subject: &mut SessionSubject<'_>) -> CheckOutcome {
    let name = subject.name()?;
    let (mut lost, device) = subject.device()?;
    let mut other = subject.begin()?;
    drop(lost.cut());
    let answer = other.open(FIRST, &usb(&name))?;
    other.leave();
    subject.go_on(&mut lost)?;
    describes(&mut lost, &device, 1)?;
    lost.leave();
    match answer {
        Err(end) if end.cause == AttachmentEndCause::Busy => Ok(shown(&end)),
        Err(end) => Err(CheckStop::Fail(shown(&end))),
        Ok(opened) => Err(CheckStop::Fail(format!("it was opened, with lease {:#x}", opened.epoch))),
    }
}
