//! Frames: heads, pings, acknowledgements, kinds of later versions, and what is no frame.

use farbus_wire::native::{FrameHeader, FrameKind};

use super::entry::{SessionCheck, must};
use super::subject::SessionSubject;
use super::talk::SessionConversation;
use super::wire::frame;
use crate::check::{CheckOutcome, CheckStop};

const FRAMES: &str = "protocol.md, Frames";
const COUNTED: &str = "protocol.md, Nothing is lost, nothing is doubled";
const CREDITS: &str = "protocol.md, Credits";
const IDENTITY: &str = "protocol.md, Which device it is";

/// A kind of a later version.
const LATER: u8 = 200;
/// Frames after which an end acknowledges.
const ACKNOWLEDGED_AFTER: usize = 64;
/// Pings that are sent in one piece.
const PINGS: u64 = 100;

pub(super) const CHECKS: &[SessionCheck] = &[
    must("ping", "A ping is answered with its 8 bytes.", FRAMES, ping),
    must("ping-pieces", "A frame whose bytes arrive one by one is understood.", "TCP is a stream", pieces),
    must("ping-many", "Of 100 pings that come at once the latest is answered, none twice.", CREDITS, many),
    must("kind-later", "A frame of kind 200 is counted and skipped.", FRAMES, later),
    must("words-later", "Words that are not known of kinds 129 and 131 are skipped.", IDENTITY, words),
    must("acknowledges", "64 counted frames are acknowledged with the next transmission.", COUNTED, acknowledges),
    must("kind-unknown", "A frame of a kind below 132 that there is not ends the link.", FRAMES, kind),
    must("kind-of-exporter", "A frame that an exporter sends ends the link of an importer.", FRAMES, of_exporter),
    must("flags-unknown", "A frame with a flag that there is not ends the link.", FRAMES, flags),
    must("frame-long", "A frame of 65,529 bytes ends the link at its head.", FRAMES, long),
    must("ping-short", "A ping of 7 bytes ends the link.", FRAMES, short),
    must("acknowledge-unsent", "An acknowledgement of what was not sent ends the link.", COUNTED, unsent),
    must("acknowledge-back", "An acknowledgement that takes an earlier one back ends the link.", COUNTED, back),
];

fn ping(subject: &mut SessionSubject<'_>) -> CheckOutcome {
    let mut talk = subject.begin()?;
    for number in [0, u64::MAX, 0x0123_4567_89ab_cdef] {
        talk.ping(number)?;
    }
    talk.leave();
    Ok("3 pongs".to_owned())
}

fn pieces(subject: &mut SessionSubject<'_>) -> CheckOutcome {
    let mut talk = subject.begin()?;
    for byte in frame(FrameKind::Ping.code(), 0, 0, 0, &[7; 8]) {
        talk.send_uncounted(&[byte])?;
    }
    talk.wait(|message| message.kind == FrameKind::Pong && message.body == [7; 8])?;
    talk.leave();
    Ok("a pong".to_owned())
}

fn many(subject: &mut SessionSubject<'_>) -> CheckOutcome {
    let mut talk = subject.begin()?;
    let pings: Vec<u8> =
        (0..PINGS).flat_map(|number: u64| frame(FrameKind::Ping.code(), 0, 0, 0, &number.to_le_bytes())).collect();
    talk.send_uncounted(&pings)?;
    let last = (PINGS - 1).to_le_bytes();
    talk.wait(|message| message.kind == FrameKind::Pong && message.body == last)?;
    talk.settle(subject.quiet)?;
    let mut pongs: Vec<&Vec<u8>> =
        talk.inbox.iter().filter(|message| message.kind == FrameKind::Pong).map(|message| &message.body).collect();
    let count = pongs.len();
    pongs.sort();
    pongs.dedup();
    if pongs.len() != count {
        return Err(CheckStop::Fail(format!("{count} pongs, {} of them different", pongs.len())));
    }
    talk.leave();
    Ok(format!("{count} pongs, the latest among them"))
}

fn later(subject: &mut SessionSubject<'_>) -> CheckOutcome {
    let (mut talk, _) = subject.device()?;
    talk.send(LATER, 7, 9, b"of a later version")?;
    talk.ping(1)?;
    drop(talk.cut());
    // The next welcome says how many frames arrived.
    subject.go_on(&mut talk)?;
    let (counted, sent) = (talk.acknowledged(), talk.sent());
    talk.leave();
    if counted != sent {
        return Err(CheckStop::Fail(format!("{sent} frames were sent, {counted} counted")));
    }
    Ok(format!("skipped, and one of {counted} counted frames"))
}

fn words(subject: &mut SessionSubject<'_>) -> CheckOutcome {
    let mut talk = subject.begin()?;
    for kind in [FrameKind::Identity, FrameKind::Retire] {
        talk.send(kind.code(), 1, 0, &[0x77, 1, 2, 3])?;
    }
    talk.ping(1)?;
    talk.leave();
    Ok("skipped".to_owned())
}

/// Waits until so many frames were acknowledged.
fn is_acknowledged(talk: &mut SessionConversation, count: u64) -> Result<(), CheckStop> {
    let mut number = 100;
    while talk.acknowledged() < count {
        // The acknowledgement may stand behind the pong.
        talk.ping(number)?;
        number += 1;
        if number > 110 {
            let had = talk.acknowledged();
            return Err(CheckStop::Fail(format!("{had} of {count} frames were acknowledged after 11 transmissions")));
        }
    }
    Ok(())
}

fn acknowledges(subject: &mut SessionSubject<'_>) -> CheckOutcome {
    let mut talk = subject.begin()?;
    talk.send_all(&vec![frame(LATER, 0, 0, 0, &[]); ACKNOWLEDGED_AFTER])?;
    is_acknowledged(&mut talk, ACKNOWLEDGED_AFTER as u64)?;
    talk.leave();
    Ok(format!("{ACKNOWLEDGED_AFTER} frames"))
}

fn breaks(subject: &mut SessionSubject<'_>, bytes: &[u8], case: &str) -> CheckOutcome {
    let mut talk = subject.begin()?;
    talk.ping(1)?;
    subject.breaks(talk, bytes, case)
}

fn kind(subject: &mut SessionSubject<'_>) -> CheckOutcome {
    for kind in [3, 64, 127] {
        breaks(subject, &frame(kind, 0, 0, 0, &[]), &format!("kind {kind}"))?;
    }
    Ok("kinds 3, 64, 127: the link ended".to_owned())
}

fn of_exporter(subject: &mut SessionSubject<'_>) -> CheckOutcome {
    for kind in [FrameKind::Opened, FrameKind::Reply, FrameKind::Event] {
        breaks(subject, &frame(kind.code(), 0, 1, 1, &[0; 16]), &format!("{kind:?}"))?;
    }
    Ok("Opened, Reply, Event: the link ended".to_owned())
}

fn flags(subject: &mut SessionSubject<'_>) -> CheckOutcome {
    breaks(subject, &frame(LATER, 8, 0, 0, &[]), "flag 8")
}

fn long(subject: &mut SessionSubject<'_>) -> CheckOutcome {
    // Its body does not come.
    breaks(subject, &[LATER, 0, 0, 0, 0, 0, 0xf9, 0xff], "a head of 65,529 bytes")
}

fn short(subject: &mut SessionSubject<'_>) -> CheckOutcome {
    breaks(subject, &frame(FrameKind::Ping.code(), 0, 0, 0, &[0; 7]), "a ping of 7 bytes")
}

fn unsent(subject: &mut SessionSubject<'_>) -> CheckOutcome {
    breaks(subject, &FrameHeader::acknowledgement(1000).to_bytes(), "1000 frames, of which none was sent")
}

fn back(subject: &mut SessionSubject<'_>) -> CheckOutcome {
    let (mut talk, _) = subject.device()?;
    let had = talk.received();
    talk.acknowledge(had)?;
    talk.ping(1)?;
    subject.breaks(talk, &FrameHeader::acknowledgement(had - 1).to_bytes(), &format!("{} frames after {had}", had - 1))
}
