//! Asks the processes on this machine about one device.

use farbus_control::failure::{CommandFailure, FailureKind};
use serde_json::Value;

use crate::local::control_socket::{Answer, Question, ask_all, ask_in_turn, ask_one};

/// Asks the process that has the device, and discards the value of the answer.
pub fn ask_owner(device: &str, question: Question) -> Result<(), CommandFailure> {
    hear_owner(device, question).map(drop)
}

/// Asks the process that has the device. Returns the value of its answer.
pub fn hear_owner(device: &str, question: Question) -> Result<Value, CommandFailure> {
    heard(device, [ask_in_turn(&question).map_err(CommandFailure::local)?])
}

/// Asks the process that shares a device, by what a person calls it: its name or bus id, and behind an '@' the process
/// id if several share such a device ([`split_process`]). `question` makes the question of the name.
///
/// # Errors
/// It is what several processes share; or as the process answers.
pub fn ask_sharer(called: &str, question: impl FnOnce(String) -> Question) -> Result<(), CommandFailure> {
    let (device, pid) = split_process(called);
    let question = question(device.to_owned());
    if let Some(pid) = pid {
        let answer = match ask_one(pid, &question, &[]) {
            Ok(answer) => answer,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Answer::Unknown,
            Err(error) => return Err(CommandFailure::local(error)),
        };
        return heard(called, [answer]).map(drop);
    }
    let answers = ask_all(&Question::Status).map_err(CommandFailure::local)?;
    let shares = |status: &Value| {
        let mut devices = status["devices"].as_array().into_iter().flatten();
        devices.any(|it| !it["bus_id"].is_null() && (it["name"] == *device || it["bus_id"] == *device))
    };
    let sharers = answers.iter().filter(|(_, answer)| matches!(answer, Answer::Ok(status) if shares(status)));
    let sharers: Vec<u32> = sharers.map(|(pid, _)| *pid).collect();
    match sharers[..] {
        [] | [_] => ask_owner(device, question),
        _ => Err(several(device, &sharers)),
    }
}

/// Why a device that several processes share under one name is not meant by that.
pub fn several(device: &str, pids: &[u32]) -> CommandFailure {
    let each: Vec<String> = pids.iter().map(|pid| format!("{device}@{pid}")).collect();
    let what = format!("'{device}' is what {} processes share: which is meant?", pids.len());
    let next = "or give each device a name of its own: name=NAME";
    CommandFailure::new(FailureKind::Refused, format!("{what}\n  call it {}, {next}", each.join(" or ")))
}

/// What a person calls a device: its name, bus id or target, and the process behind the '@', if one is named. No name
/// has an '@'.
pub fn split_process(called: &str) -> (&str, Option<u32>) {
    match called.rsplit_once('@').map(|(device, pid)| (device, pid.parse())) {
        Some((device, Ok(pid))) if !device.contains('/') => (device, Some(pid)),
        _ => (called, None),
    }
}

/// The first answer of a process that knows the device.
pub fn heard(device: &str, answers: impl IntoIterator<Item = Answer>) -> Result<Value, CommandFailure> {
    for answer in answers {
        match answer {
            Answer::Ok(value) => return Ok(value),
            Answer::Unknown => {}
            Answer::Refused(why) => return Err(CommandFailure::new(FailureKind::Refused, why)),
            Answer::Failed(failure) => return Err(CommandFailure::new(failure.attribute, failure.message)),
        }
    }
    let message = format!("no device called '{device}' is shared or attached here\n  see: farbus status");
    Err(CommandFailure::new(FailureKind::Gone, message))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_process_stands_behind_the_name_of_a_shared_device() {
        assert_eq!(split_process("disk@12"), ("disk", Some(12)));
        assert_eq!(split_process("1-3@12"), ("1-3", Some(12)));
        for whole in ["disk", "disk@", "disk@x", "disk@-1", "lab3/disk@7", "disk@4294967296"] {
            assert_eq!(split_process(whole), (whole, None), "{whole}");
        }
        let refused = several("disk", &[3, 4]).to_string();
        assert!(refused.contains("which is meant?\n  call it disk@3 or disk@4, "), "{refused}");
    }
}
