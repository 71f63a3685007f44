//! Answers what an owner asks of an attachment on the control socket, for commands and the daemon.

use farbus_io::trust::Fingerprint;
use serde_json::{Value, json};

use super::{Handle, Migration, Refused};
use crate::common::control::{Answer, Question};

/// Answers a question that steers one attachment. `handle_of` finds it by the name in the question: `None` if there is
/// none of that name here, `Some(None)` if it is not attached now.
///
/// # Errors
/// The question itself, if it steers no attachment.
pub fn steer(question: Question, handle_of: impl FnOnce(&str) -> Option<Option<Handle>>) -> Result<Answer, Question> {
    let (Question::Hold { device }
    | Question::Resume { device }
    | Question::Migrate { device, .. }
    | Question::Pause { device, .. }) = &question
    else {
        return Err(question);
    };
    let Some(handle) = handle_of(device) else { return Ok(Answer::Unknown) };
    let done = match (&question, &handle) {
        (Question::Hold { .. }, handle) => with(handle, Refused::NoGate, Handle::hold),
        (Question::Resume { .. }, handle) => with(handle, Refused::NoGate, Handle::resume),
        (Question::Pause { is_paused, .. }, handle) => {
            with(handle, Refused::NoModules, |handle| handle.pause(*is_paused))
        }
        (Question::Migrate { successor, .. }, handle) => return Ok(migrate(handle.as_ref(), successor)),
        _ => return Err(question),
    };
    Ok(done.map_or_else(|why| Answer::Refused(why.to_string()), |()| Answer::Ok(Value::Null)))
}

/// Acts on `handle`; without one, refuses with `otherwise`.
fn with(
    handle: &Option<Handle>,
    otherwise: Refused,
    act: impl FnOnce(&Handle) -> Result<(), Refused>,
) -> Result<(), Refused> {
    handle.as_ref().map_or(Err(otherwise), act)
}

fn migrate(handle: Option<&Handle>, successor: &str) -> Answer {
    let Ok(successor) = successor.parse::<Fingerprint>() else { return Answer::Refused("that is no key".to_owned()) };
    match handle.map_or(Err(Refused::NoSession), |handle| handle.migrate(successor)) {
        Ok(Migration::AfterItsUser) => Answer::Ok(json!({ "machine": true })),
        Ok(Migration::AtOnce) => Answer::Ok(json!({ "machine": false })),
        Ok(Migration::WhenQuiet) => Answer::Ok(Value::Null),
        Err(why) => Answer::Refused(why.to_string()),
    }
}
