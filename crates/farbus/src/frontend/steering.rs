//! Answers what an owner asks of an attachment on the control socket, for commands and the daemon.

use farbus_control::failure::{FailureKind, FailureReport};
use farbus_control::session::Seconds;
use farbus_io_net::local::control_socket::{Answer, Question};
use farbus_io_net::local::passed_files::PassedFiles;
use farbus_io_net::trust::Fingerprint;
use serde_json::{Value, json};

use super::{AttachmentHandle, AttachmentRefusal, MigrationTiming};
use crate::devices::swap_run::SwapOrder;
use crate::frontend::usb_swap::UsbSwap;
use crate::importer::client::DeviceTarget;
use crate::importer::session::status::SessionStatus;

/// Answers a question that steers one attachment. `handle_of` finds it by the name in the question: `None` if there is
/// none of that name here, `Some(None)` if it is not attached now. `files` came along with the question.
///
/// # Errors
/// The question itself, if it steers no attachment.
pub fn steer(
    question: Question,
    files: &PassedFiles,
    handle_of: impl FnOnce(&str) -> Option<Option<AttachmentHandle>>,
) -> Result<Answer, Question> {
    let (Question::Hold { device }
    | Question::Resume { device }
    | Question::Migrate { device, .. }
    | Question::MayMigrate { device }
    | Question::Follow { device, .. }
    | Question::Depart { device, .. }
    | Question::Swap { device, .. }
    | Question::SwapStatus { device }
    | Question::SwapCancel { device }
    | Question::Latency { device }
    | Question::Pause { device, .. }) = &question
    else {
        return Err(question);
    };
    let is_swap = matches!(question, Question::Swap { .. } | Question::SwapStatus { .. } | Question::SwapCancel { .. });
    // Without a host it is a disk that is shared here.
    if is_swap && device.parse::<DeviceTarget>().is_err() {
        return Err(question);
    }
    let Some(handle) = handle_of(device) else { return Ok(Answer::Unknown) };
    if is_swap {
        return Ok(swap(handle.as_ref(), question, files));
    }
    if matches!(question, Question::Latency { .. }) {
        return Ok(latency(handle.as_ref().and_then(AttachmentHandle::session).as_ref()));
    }
    let done = match (&question, &handle) {
        (Question::Hold { .. }, handle) => with(handle, AttachmentRefusal::NoGate, AttachmentHandle::hold),
        (Question::Resume { .. }, handle) => with(handle, AttachmentRefusal::NoGate, AttachmentHandle::resume),
        (Question::Pause { is_paused, .. }, handle) => {
            with(handle, AttachmentRefusal::NoModules, |handle| handle.pause(*is_paused))
        }
        (Question::Follow { device, successor, to }, handle) => match successor.parse::<Fingerprint>() {
            Ok(key) => with(handle, AttachmentRefusal::NoGate, |handle| {
                handle.noting(device, to.as_ref().unwrap_or(successor), |handle| handle.follow(key))
            }),
            Err(_) => return Ok(Answer::Refused("that is no key".to_owned())),
        },
        (Question::Depart { process, .. }, handle) => {
            with(handle, AttachmentRefusal::NoGate, |handle| handle.depart(*process))
        }
        (Question::MayMigrate { .. }, handle) => {
            let may = handle.as_ref().map_or(Err(AttachmentRefusal::NoSession), AttachmentHandle::may_migrate);
            return Ok(
                may.map_or_else(|why| Answer::Refused(why.to_string()), |held| Answer::Ok(json!({ "held": held })))
            );
        }
        (Question::Migrate { device, successor, discard, to }, handle) => {
            let named = (device.as_str(), to.as_ref().unwrap_or(successor).as_str());
            return Ok(migrate(handle.as_ref(), named, successor, *discard));
        }
        _ => return Err(question),
    };
    Ok(done.map_or_else(|why| Answer::Refused(why.to_string()), |()| Answer::Ok(Value::Null)))
}

/// Answers how long the requests of a session took in each of its last seconds; without a session there is none.
pub(super) fn latency(session: Option<&SessionStatus>) -> Answer {
    Answer::Ok(json!(Seconds { seconds: session.map(SessionStatus::latency_seconds).unwrap_or_default() }))
}

/// Acts on `handle`; without one, refuses with `otherwise`.
fn with(
    handle: &Option<AttachmentHandle>,
    otherwise: AttachmentRefusal,
    act: impl FnOnce(&AttachmentHandle) -> Result<(), AttachmentRefusal>,
) -> Result<(), AttachmentRefusal> {
    handle.as_ref().map_or(Err(otherwise), act)
}

/// Answers a question about the swap of an attached disk.
fn swap(handle: Option<&AttachmentHandle>, question: Question, files: &PassedFiles) -> Answer {
    let (Question::Swap { device, .. } | Question::SwapStatus { device } | Question::SwapCancel { device }) = &question
    else {
        return Answer::Unknown;
    };
    if let Some(swap) = handle.and_then(AttachmentHandle::usb_swap) {
        return swap_usb(swap, question, files);
    }
    let Some(swap) = handle.and_then(AttachmentHandle::swap) else {
        if matches!(&question, Question::Swap { to, .. } if !to.starts_with("block:")) {
            return Answer::Refused(format!(
                "{device} cannot be swapped for a twin: only a USB device that is attached as one can (--via kernel, \
                 --via redir, farbus run), and a disk moves to block:PATH\n  \
                 attach it so: farbus attach {device} --via kernel"
            ));
        }
        return Answer::Refused(format!(
            "{device} cannot be moved: only a disk that is attached as a block device, in a session, can\n  \
             attach it so: farbus attach {device} --via nbd, or --via fuse, --via uas"
        ));
    };
    let none = |device: &str| {
        let message = format!("{device} is not being swapped\n  begin: farbus swap {device} --to block:PATH");
        Answer::Failed(FailureReport::new(FailureKind::Gone, message))
    };
    match question {
        Question::SwapStatus { device } => {
            swap.status().map_or_else(|| none(&device), |status| Answer::Ok(json!(status)))
        }
        Question::SwapCancel { .. } if swap.cancel() => Answer::Ok(Value::Null),
        Question::Swap { device, to, .. } if to.starts_with("usb:") => {
            Answer::Refused(format!("{device} is a disk: it moves to block:PATH"))
        }
        question @ Question::Swap { .. } => match SwapOrder::of(question, files).map(|order| swap.begin(order)) {
            Ok(Ok(())) => Answer::Ok(Value::Null),
            Ok(Err(failure)) => Answer::Failed(failure),
            Err(error) => Answer::Refused(error.to_string()),
        },
        Question::SwapCancel { device } => none(&device),
        _ => Answer::Unknown,
    }
}

/// Answers a question about the swap of an attached USB device.
pub(super) fn swap_usb(swap: &UsbSwap, question: Question, files: &PassedFiles) -> Answer {
    let none = |device: &str| {
        let message = format!("{device} is not being swapped\n  begin: farbus swap {device} --to usb:BUSID");
        Answer::Failed(FailureReport::new(FailureKind::Gone, message))
    };
    match question {
        Question::Swap { device, to, peer, .. } => match swap.begin(&device, &to, peer.map(|it| *it), files) {
            Ok(()) => Answer::Ok(Value::Null),
            Err(failure) => Answer::Failed(failure),
        },
        Question::SwapStatus { device } => {
            swap.status().map_or_else(|| none(&device), |status| Answer::Ok(json!(status)))
        }
        Question::SwapCancel { .. } if swap.cancel() => Answer::Ok(Value::Null),
        Question::SwapCancel { device } => none(&device),
        _ => Answer::Unknown,
    }
}

fn migrate(
    handle: Option<&AttachmentHandle>,
    (device, to): (&str, &str),
    successor: &str,
    is_discarding: bool,
) -> Answer {
    let Ok(successor) = successor.parse::<Fingerprint>() else { return Answer::Refused("that is no key".to_owned()) };
    let Some(handle) = handle else { return Answer::Refused(AttachmentRefusal::NoSession.to_string()) };
    let hold_ms = handle.longest_hold().map(|hold| hold.as_millis() as u64);
    let done = match is_discarding {
        true => {
            let discarded = handle.noting(device, to, |handle| handle.discard(successor));
            discarded.map(|discarded| json!({ "discarded": discarded }))
        }
        false => {
            let migration = handle.noting(device, to, |handle| handle.migrate(successor));
            migration.map(|migration| json!({ "machine": migration == MigrationTiming::AfterItsUser }))
        }
    };
    match done {
        Ok(mut answer) => {
            answer["hold_ms"] = json!(hold_ms);
            Answer::Ok(answer)
        }
        Err(why) => Answer::Refused(why.to_string()),
    }
}
