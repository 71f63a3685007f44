//! What this page has begun with a device and what tells how far it is: recordings, swaps, migrations.

use std::fmt::Write;

use serde_json::Value;

use super::super::status::Status;
use super::text::{escaped, escaped_whole};
use crate::common::units::format_bytes;

/// Operations of a device that are drawn, the latest first.
const DRAWN_MAX: usize = 8;

/// The operations of this page about a device, the latest first.
fn about<'s>(status: &'s Status, process: &'s Value, device: &'s Value) -> impl Iterator<Item = &'s Value> {
    let is_about = move |operation: &&Value| {
        let Some(subject) = operation["subject"].as_str() else { return false };
        let text = |of: &'s Value| of.as_str().unwrap_or_default();
        let (name, address) = (text(&device["name"]), text(&process["address"]));
        let names = [name, text(&device["title"]), text(&device["bus_id"])];
        let is_named = names.iter().any(|name| !name.is_empty() && *name == subject);
        is_named || subject.rsplit_once('/').is_some_and(|(host, named)| host == address && named == name)
    };
    status.operations.iter().filter(is_about).take(DRAWN_MAX)
}

fn is_recording(operation: &Value) -> bool {
    operation["action"] == "observe"
}

/// A button that ends an operation, with the command line that does the same; empty if nothing runs.
fn stop(operation: &Value) -> String {
    let Some(pid) = operation["pid"].as_u64().filter(|_| operation["state"] == "running") else {
        return String::new();
    };
    let id = operation["id"].as_u64().unwrap_or_default();
    format!(
        "<p><span>end it</span> <code tabindex=\"0\">kill {pid}</code> <button type=\"button\" class=\"do\" \
         data-at=\"/api/v1/operations/{id}/stop\" data-given=\"{{}}\" aria-label=\"End operation {id}\">End it</button></p>"
    )
}

fn why(operation: &Value) -> String {
    let message = operation["failure"]["message"].as_str();
    message.map(|why| format!(" <span class=\"failed\">{}</span>", escaped(why))).unwrap_or_default()
}

fn heading(operation: &Value) -> String {
    let (id, by) = (operation["id"].as_u64().unwrap_or_default(), operation["by"].as_str().unwrap_or_default());
    let state = match operation["state"].as_str() {
        Some("running") => "runs",
        Some("done") => "has ended",
        _ => "failed",
    };
    let line = operation["command"].as_str().unwrap_or_default();
    let begun = operation["begun"].as_str().unwrap_or_default();
    format!(
        "<p><code tabindex=\"0\">{}</code> {state}{} <small>operation {id}, begun {} by {}</small></p>\n",
        escaped_whole(line),
        why(operation),
        escaped(begun),
        escaped(by)
    )
}

/// The recordings of a device that this page has begun; empty without one.
pub fn recordings(status: &Status, process: &Value, device: &Value) -> String {
    let mut out = String::new();
    for operation in about(status, process, device).filter(|operation| is_recording(operation)) {
        let id = operation["id"].as_u64().unwrap_or_default();
        let bytes = operation["progress"]["bytes"].as_u64().unwrap_or_default();
        let is_kept = operation["is_recorded"] == true && bytes > 0;
        let _ = writeln!(out, "<li id=\"recording-{id}\" data-bytes=\"{bytes}\">{}", heading(operation));
        if is_kept {
            let full = if operation["progress"]["is_full"] == true { ", and is full" } else { "" };
            let _ = writeln!(
                out,
                "<p>It has {}{full}. <a href=\"/api/v1/operations/{id}/recording\" download=\"farbus-{id}.pcapng\">Download \
                 recording {id} (pcapng)</a></p>",
                format_bytes(bytes)
            );
        }
        let _ = writeln!(out, "{}</li>", stop(operation));
    }
    if out.is_empty() { out } else { format!("<ul class=\"operations\">\n{out}</ul>\n") }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::super::status::tests::status;
    use super::*;

    fn with(operations: Value) -> Status {
        let Value::Array(operations) = operations else { panic!("a list") };
        let mut status = status(json!([]));
        status.operations = operations;
        status
    }

    #[test]
    fn recordings_are_those_of_the_device_and_only_one_that_runs_can_be_ended() {
        let recording = |id: u64, subject: &str, state: &str, pid: Option<u32>| {
            json!({
                "id": id, "action": "observe", "subject": subject, "command": format!("farbus observe --pcapng {subject}"),
                "by": "page", "state": state, "begun": "2026-01-01T00:00:00Z", "pid": pid,
                "progress": { "bytes": 1200, "is_full": false }, "is_recorded": true,
            })
        };
        let status = with(json!([
            recording(4, "keyboard", "running", Some(77)),
            recording(3, "127.0.0.1:3240/keyboard", "done", None),
            recording(2, "lab9/keyboard", "done", None),
            recording(1, "mouse", "done", None),
        ]));
        let process = json!({ "pid": 7, "role": "share", "address": "127.0.0.1:3240" });
        let html = recordings(&status, &process, &json!({ "name": "keyboard", "bus_id": "1-1" }));
        assert_eq!(html.matches("<li ").count(), 2, "{html}");
        assert!(html.contains("kill 77") && html.matches("class=\"do\"").count() == 1, "{html}");
        assert!(html.contains("href=\"/api/v1/operations/3/recording\""), "{html}");
        assert_eq!(recordings(&status, &process, &json!({ "name": "disk" })), "");
    }

    #[test]
    fn hostile_texts_of_an_operation_add_no_element() {
        let evil = "<script>\"'\u{202e}";
        let status = with(json!([{
            "id": 1, "action": "observe", "subject": "a", "command": evil, "by": evil, "state": "failed",
            "begun": evil, "failure": { "message": evil },
        }]));
        let html = recordings(&status, &Value::Null, &json!({ "name": "a" }));
        assert!(!html.contains("<script") && !html.contains('\u{202e}') && html.contains("&lt;script"), "{html}");
    }
}
