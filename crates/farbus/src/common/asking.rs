//! Asks the processes on this machine about one device.

use serde_json::Value;

use crate::common::control::{Answer, Question, ask_in_turn};
use crate::common::failure::{Attribute, Failure};

/// Asks the process that has the device, and discards the value of the answer.
pub fn ask_owner(device: &str, question: Question) -> Result<(), Failure> {
    hear_owner(device, question).map(drop)
}

/// Asks the process that has the device. Returns the value of its answer.
pub fn hear_owner(device: &str, question: Question) -> Result<Value, Failure> {
    heard(device, [ask_in_turn(&question).map_err(Failure::local)?])
}

/// The first answer of a process that knows the device.
pub fn heard(device: &str, answers: impl IntoIterator<Item = Answer>) -> Result<Value, Failure> {
    for answer in answers {
        match answer {
            Answer::Ok(value) => return Ok(value),
            Answer::Unknown => {}
            Answer::Refused(why) => return Err(Failure::new(Attribute::Refused, why)),
            Answer::Failed(failure) => return Err(Failure::new(failure.attribute, failure.message)),
        }
    }
    let message = format!("no device called '{device}' is shared or attached here\n  see: farbus status");
    Err(Failure::new(Attribute::Gone, message))
}
