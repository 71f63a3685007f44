//! Answers the owner's questions about swaps of a disk's medium, or of a real device for its twin.

use std::sync::Arc;

use farbus_control::failure::{FailureKind, FailureReport};
use farbus_io_net::local::control_socket::{Answer, Question};
use farbus_io_net::local::passed_files::PassedFiles;
use farbus_session::block::BlockExport;
use serde_json::{Value, json};

use super::share::{Share, ShareError};
use super::swap::ExportSwaps;
use super::twin;
use crate::devices::swap_run::SwapOrder;

/// Answers a question about the swaps of shared devices; `files` came along with it.
pub fn answer(share: &Share, question: Question, files: &PassedFiles) -> Answer {
    let Some(device) = asked_of(&question).map(str::to_owned) else { return Answer::Unknown };
    let (bus_id, export) = match share.disk(&device) {
        Ok(found) => found,
        Err(ShareError::NoDevice(_)) => return Answer::Unknown,
        Err(error) => return Answer::Refused(error.to_string()),
    };
    match (question, export) {
        (Question::Swap { to, .. }, None) if to.starts_with("usb:") => {
            let begun = files.take().map_err(|error| Answer::Refused(error.to_string()));
            match begun.and_then(|[node]| twin::begin(share, &device, &bus_id, &to, node).map_err(Answer::Failed)) {
                Ok(()) => Answer::Ok(Value::Null),
                Err(refusal) => refusal,
            }
        }
        (Question::Swap { .. }, None) => Answer::Refused(format!("{device} is no disk: only a disk can be moved")),
        (question, Some(export)) => {
            let swaps = share.swaps();
            answer_disk(swaps, &bus_id, &export, (question, files), share.on_moved(&bus_id))
        }
        (question, None) => answer_running(share.swaps(), &bus_id, question),
    }
}

/// The device that a question about swaps concerns.
pub fn asked_of(question: &Question) -> Option<&str> {
    match question {
        Question::Swap { device, .. } | Question::SwapStatus { device } | Question::SwapCancel { device } => {
            Some(device)
        }
        _ => None,
    }
}

/// Answers a question about the swaps of a disk, which has the key `key` in `swaps`. Calls `on_moved` once its medium
/// is exchanged.
pub fn answer_disk(
    swaps: &ExportSwaps,
    key: &str,
    export: &Arc<BlockExport>,
    (question, files): (Question, &PassedFiles),
    on_moved: impl FnOnce() + Send + 'static,
) -> Answer {
    let Question::Swap { device, to, .. } = &question else { return answer_running(swaps, key, question) };
    if to.starts_with("usb:") {
        return Answer::Refused(format!("{device} is a disk: it moves to block:PATH"));
    }
    match SwapOrder::of(question, files).map(|order| swaps.begin(key, Arc::clone(export), order, on_moved)) {
        Ok(Ok(())) => Answer::Ok(Value::Null),
        Ok(Err(failure)) => Answer::Failed(failure),
        Err(error) => Answer::Refused(error.to_string()),
    }
}

/// Answers a question about a swap that has begun.
fn answer_running(swaps: &ExportSwaps, key: &str, question: Question) -> Answer {
    let device = asked_of(&question).unwrap_or(key);
    let message = format!("{device} is not being swapped\n  begin: farbus swap {device} --to block:PATH, or usb:BUSID");
    let none = || Answer::Failed(FailureReport::new(FailureKind::Gone, message));
    match question {
        Question::SwapStatus { .. } => swaps.status(key).map_or_else(none, |status| Answer::Ok(json!(status))),
        Question::SwapCancel { .. } if swaps.cancel(key) => Answer::Ok(Value::Null),
        _ => none(),
    }
}
