//! QEMU's monitor (QMP): a line of JSON asks, a line answers.

use crate::{Result, RigError};
use serde_json::{Value, json};
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// Sends one command of the human monitor to the machine with this socket.
pub fn command(socket: &Path, line: &str) -> Result<()> {
    execute(socket, "human-monitor-command", &json!({"command-line": line}))
}

/// Sends one command of the protocol itself.
pub fn execute(socket: &Path, command: &str, arguments: &Value) -> Result<()> {
    let answer = ask(socket, command, arguments)?;
    // The human monitor complains in words; no output means success.
    match answer.as_str().map(str::trim) {
        None | Some("") => Ok(()),
        Some(words) => Err(RigError::Expectation(format!("the machine answered {command} with: {words}"))),
    }
}

/// Like [`execute`]; returns the answer.
pub fn ask(socket: &Path, command: &str, arguments: &Value) -> Result<Value> {
    let doing = "command the machine";
    let mut stream = UnixStream::connect(socket).map_err(RigError::io(doing))?;
    stream.set_read_timeout(Some(Duration::from_secs(10))).map_err(RigError::io(doing))?;
    let mut answers = BufReader::new(stream.try_clone().map_err(RigError::io(doing))?).lines();
    let questions = [json!({"execute": "qmp_capabilities"}), json!({"execute": command, "arguments": arguments})];
    let mut last = Value::Null;
    for question in questions {
        stream.write_all(format!("{question}\n").as_bytes()).map_err(RigError::io(doing))?;
        last = loop {
            let Some(answer) = answers.next() else {
                return Err(RigError::Expectation(format!("the machine closed its monitor at {question}")));
            };
            let answer = answer.map_err(RigError::io(doing))?;
            match verdict(&answer) {
                Some(Ok(printed)) => break printed,
                Some(Err(message)) => {
                    return Err(RigError::Expectation(format!("the machine answered {question} with: {message}")));
                }
                None => {}
            }
        };
    }
    Ok(last)
}

/// The content or the error of an answer; `None` for a greeting or an event.
fn verdict(answer: &str) -> Option<std::result::Result<Value, String>> {
    let answer: Value = serde_json::from_str(answer).ok()?;
    if let Some(error) = answer.get("error") {
        return Some(Err(error.to_string()));
    }
    answer.get("return").cloned().map(Ok)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn complaints_are_told_from_answers_and_events() {
        assert_eq!(verdict(r#"{"return": {}}"#), Some(Ok(json!({}))));
        assert_eq!(verdict(r#"{"return": "words"}"#), Some(Ok(json!("words"))));
        assert!(verdict(r#"{"error": {"class": "GenericError"}}"#).unwrap().unwrap_err().contains("GenericError"));
        assert_eq!(verdict(r#"{"event": "DEVICE_DELETED"}"#), None);
        assert_eq!(verdict(r#"{"QMP": {"version": {}}}"#), None);
    }
}
