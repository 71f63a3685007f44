//! Asks the processes that run here of one device.

use serde_json::Value;

use crate::common::control::{Answer, Question, ask_in_turn};
use crate::common::failure::{Attribute, Failure};

/// Asks whoever has the device.
pub fn ask_owner(device: &str, question: Question) -> Result<(), Failure> {
    hear_owner(device, question).map(drop)
}

/// The same, for what is answered.
pub fn hear_owner(device: &str, question: Question) -> Result<Value, Failure> {
    heard(device, [ask_in_turn(&question).map_err(Failure::local)?])
}

/// The first answer that is one.
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
