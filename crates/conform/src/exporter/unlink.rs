//! Cancellations and their races.

use farbus_model::UrbStatus;

use super::entry::{ExporterCheck, must, should};
use super::subject::{ExporterSubject, device_descriptor};
use crate::check::{CheckOutcome, CheckStop};
use crate::conversation::{UsbipConversation, errno};

const SPEC: &str = "kernel usbip_protocol.rst, USBIP_RET_UNLINK";
const TX: &str = "Linux vhci_tx sends submits, then unlinks";

/// Requests that are unlinked right behind their submits.
const STORM: usize = 64;
/// Requests that wait for one endpoint beside the first.
const QUEUE: usize = 7;
/// The status of a request that the kernel killed on its own machine.
const KILLED: i32 = -2;

pub(super) const CHECKS: &[ExporterCheck] = &[
    must("unlink-pending", "A request that waits and is unlinked has one answer: RET_UNLINK with -104.", SPEC, pending),
    must(
        "unlink-queue",
        "Of requests that wait for one endpoint and are all unlinked, each has one answer, and none ends with -2.",
        "Linux usb_unlink_urb: -ECONNRESET; -ENOENT is usb_kill_urb's, and never on the wire",
        queue,
    ),
    must("unlink-done", "An unlink of an answered request is answered with 0, and the request not again.", SPEC, done),
    must("unlink-unknown", "An unlink of a number that was never submitted is answered.", SPEC, unknown),
    must("unlink-twice", "Two unlinks of one request have one answer each.", SPEC, twice),
    must(
        "unlink-storm",
        "Of requests that race with their unlinks, each has one answer, and each unlink, too.",
        SPEC,
        storm,
    ),
    should("unlink-first", "A request whose unlink came first is answered once.", TX, first),
    must(
        "close-while-pending",
        "A client that leaves with requests under way gives the device back.",
        "requirement U11",
        close,
    ),
];

/// Waits until nothing more comes, then holds all answers against the rule.
fn judge(subject: &ExporterSubject<'_>, talk: &mut UsbipConversation) -> Result<(), CheckStop> {
    talk.settle(subject.quiet, 1 << 12)?;
    talk.judge().map_err(CheckStop::Fail)
}

fn pending(subject: &mut ExporterSubject<'_>) -> CheckOutcome {
    let (mut talk, facts) = subject.device()?;
    let victim = subject.pend(&mut talk, &facts)?;
    let unlink = talk.unlink(victim)?;
    let status = talk.wait_unlink(unlink)?;
    judge(subject, &mut talk)?;
    if status != errno(UrbStatus::Cancelled) {
        return Err(CheckStop::Fail(format!("RET_UNLINK has status {status}, not {}", errno(UrbStatus::Cancelled))));
    }
    Ok(format!("RET_UNLINK {status}, no RET_SUBMIT"))
}

fn queue(subject: &mut ExporterSubject<'_>) -> CheckOutcome {
    let (mut talk, facts) = subject.device()?;
    subject.pend(&mut talk, &facts)?;
    let waiting = talk.unanswered();
    let mut more = Vec::new();
    if let (Some(ask), false) = (subject.pending_ask(&facts), facts.is_source_sink()) {
        for _ in 0..QUEUE {
            more.push(talk.submit(&ask)?);
        }
    }
    let victims = [waiting, more].concat();
    let mut unlinks = Vec::new();
    for &victim in &victims {
        let (number, bytes) = talk.note_unlink(victim);
        talk.send(&bytes)?;
        unlinks.push(number);
    }
    let mut withdrawn = 0;
    for unlink in unlinks {
        match talk.wait_unlink(unlink)? {
            0 => {}
            status if status == errno(UrbStatus::Cancelled) => withdrawn += 1,
            other => return Err(CheckStop::Fail(format!("RET_UNLINK has status {other}"))),
        }
    }
    judge(subject, &mut talk)?;
    if let Some((number, status)) = talk.ended_with(&[KILLED, errno(UrbStatus::Cancelled)]) {
        return Err(CheckStop::Fail(format!("RET_SUBMIT of request {number} has status {status}")));
    }
    if withdrawn == 0 {
        return Err(CheckStop::Fail(format!("none of {} requests that waited was withdrawn", victims.len())));
    }
    Ok(format!("{} requests, {withdrawn} withdrawn", victims.len()))
}

fn done(subject: &mut ExporterSubject<'_>) -> CheckOutcome {
    let mut talk = subject.import()?;
    let victim = talk.submit(&device_descriptor())?;
    talk.wait(victim)?;
    let unlink = talk.unlink(victim)?;
    // Only numbers above all others may wait for their submit.
    let status = talk.wait_unlink(unlink)?;
    judge(subject, &mut talk)?;
    if status != 0 {
        return Err(CheckStop::Fail(format!("RET_UNLINK has status {status}")));
    }
    Ok("RET_UNLINK 0".to_owned())
}

fn unknown(subject: &mut ExporterSubject<'_>) -> CheckOutcome {
    let mut talk = subject.import()?;
    let skipped = talk.take_number();
    let behind = talk.submit(&device_descriptor())?;
    talk.wait(behind)?;
    let unlink = talk.unlink_nothing(skipped)?;
    let status = talk.wait_unlink(unlink)?;
    let after = talk.submit(&device_descriptor())?;
    talk.wait(after)?;
    Ok(format!("RET_UNLINK {status}"))
}

fn twice(subject: &mut ExporterSubject<'_>) -> CheckOutcome {
    let (mut talk, facts) = subject.device()?;
    let victim = subject.pend(&mut talk, &facts)?;
    let unlinks = [talk.unlink(victim)?, talk.unlink(victim)?];
    let mut statuses = Vec::new();
    for unlink in unlinks {
        statuses.push(talk.wait_unlink(unlink)?.to_string());
    }
    // What the second one says is not written anywhere; that the request has one answer, is.
    judge(subject, &mut talk)?;
    Ok(format!("RET_UNLINK {}", statuses.join(" and ")))
}

fn storm(subject: &mut ExporterSubject<'_>) -> CheckOutcome {
    let mut talk = subject.import()?;
    let mut bytes = Vec::new();
    for _ in 0..STORM {
        let number = talk.take_number();
        bytes.extend(talk.note(number, &device_descriptor()));
        bytes.extend(talk.note_unlink(number).1);
    }
    talk.send(&bytes)?;
    judge(subject, &mut talk)?;
    let withdrawn = talk.withdrawn();
    Ok(format!("{STORM} requests: {withdrawn} withdrawn, {} answered", STORM - withdrawn))
}

fn first(subject: &mut ExporterSubject<'_>) -> CheckOutcome {
    let mut talk = subject.import()?;
    // The exporter has seen a number, so that it can tell that the next one is new.
    let before = talk.submit(&device_descriptor())?;
    talk.wait(before)?;
    let victim = talk.take_number();
    let (unlink, cancel) = talk.note_unlink(victim);
    let mut bytes = cancel;
    bytes.extend(talk.note(victim, &device_descriptor()));
    talk.send(&bytes)?;
    let status = talk.wait_unlink(unlink)?;
    judge(subject, &mut talk)?;
    Ok(format!("RET_UNLINK {status}"))
}

fn close(subject: &mut ExporterSubject<'_>) -> CheckOutcome {
    let (mut talk, facts) = subject.device()?;
    subject.pend(&mut talk, &facts)?;
    drop(talk);
    subject.serves_device()?;
    Ok("imported again".to_owned())
}
