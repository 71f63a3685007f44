//! What this page has begun with a device and what tells how far it is: recordings, swaps, migrations.

use std::fmt::Write;

use farbus_io::trust::Scope;
use serde_json::Value;

use super::super::status::Status;
use super::forms::{self, Reader};
use super::text::{escaped, escaped_whole, span};
use crate::common::units::format_bytes;

/// Operations of a device that are drawn, the latest first.
const DRAWN_MAX: usize = 8;

/// The operations of this page about a device, the latest first.
fn about<'s>(status: &'s Status, process: &'s Value, device: &'s Value) -> impl Iterator<Item = &'s Value> {
    // Two processes may have devices of one name.
    let is_about = move |operation: &&Value| {
        let on = &operation["on"];
        on["pid"].is_u64() && on["pid"] == process["pid"] && on["name"] == device["name"]
    };
    status.operations.iter().filter(is_about).take(DRAWN_MAX)
}

fn is_recording(operation: &Value) -> bool {
    operation["action"] == "observe"
}

/// A form that ends an operation, with the command line that does the same; empty if nothing runs, and for those who
/// may not end it.
fn stop(operation: &Value, reader: Reader<'_>) -> String {
    match operation["pid"].as_u64().filter(|_| operation["state"] == "running") {
        Some(pid) => forms::stop(operation, &format!("kill {pid}"), reader),
        None => String::new(),
    }
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

/// The steps of a swap, in their order (docs/control.md).
const SWAP_STEPS: [&str; 6] = ["beginning", "copying", "verifying", "flushing", "switching", "releasing"];
/// The steps of a migration: the state of the device at the host that gives it away, and what happens then.
const MIGRATION_STEPS: [(&str, &str); 4] = [
    ("attached", "ask the other host"),
    ("following", "wait until its user leaves"),
    ("held", "hold what its user asks"),
    ("handed over", "hand it over"),
];

/// Steps as a list; the one that goes on is the current one.
fn steps<'a>(all: impl Iterator<Item = &'a str>, current: usize) -> String {
    let mut out = String::from("<ol class=\"steps\">");
    for (at, step) in all.enumerate() {
        let (mark, done) = match at.cmp(&current) {
            std::cmp::Ordering::Less => ("", " (done)"),
            std::cmp::Ordering::Equal => (" aria-current=\"step\"", ""),
            std::cmp::Ordering::Greater => ("", ""),
        };
        let _ = write!(out, "<li{mark}>{step}{done}</li>");
    }
    out.push_str("</ol>\n");
    out
}

/// How far a swap is, as its process says.
fn swap(progress: &Value) -> String {
    let number = |name: &str| progress[name].as_u64().unwrap_or_default();
    let text = |name: &str| progress[name].as_str().unwrap_or_default();
    let (total, left) = (number("total_bytes"), number("left_bytes"));
    let done = total.saturating_sub(left);
    let percent = (done as f64 / total.max(1) as f64 * 100.0).floor();
    let rate = number("bytes_per_s");
    let rest = left.checked_div(rate).map(|seconds| format!(", about {} left", span(seconds as f64)));
    let bar = match total {
        // A USB device has no bytes to be copied.
        0 => "<progress aria-label=\"Progress of the swap\"></progress>".to_owned(),
        _ => format!(
            "<progress aria-label=\"Progress of the swap\" max=\"{total}\" value=\"{done}\">{percent} %</progress>"
        ),
    };
    let bytes = match total {
        0 => String::new(),
        _ => format!(
            "{percent} %: {} of {}, {}/s{}; round {}, copied in all {}. ",
            format_bytes(done),
            format_bytes(total),
            format_bytes(rate),
            rest.unwrap_or_default(),
            number("round"),
            format_bytes(number("copied_bytes"))
        ),
    };
    let elapsed = span(progress["elapsed_s"].as_f64().unwrap_or_default());
    let current = SWAP_STEPS.iter().position(|step| *step == text("phase")).unwrap_or(0);
    format!(
        "<p>From {} to {}</p>\n{bar}\n<p>{bytes}It runs for {elapsed}; the longest that a request waited is {:.1} ms.</p>\n{}",
        escaped(text("from")),
        escaped(text("to")),
        progress["quiet_ms"].as_f64().unwrap_or_default(),
        steps(SWAP_STEPS.into_iter(), current)
    )
}

/// How far a migration is, as the device's state tells.
fn migration(device: &Value) -> String {
    let state = device["state"].as_str().unwrap_or_default();
    let current = MIGRATION_STEPS.iter().position(|(name, _)| *name == state).unwrap_or(0);
    let goes = device["successor"].as_str().map(|to| format!(" It goes to {}.", escaped(to))).unwrap_or_default();
    let held = device["hold_ms"].as_u64().map(|ms| format!(" Its user waits {ms} ms at most.")).unwrap_or_default();
    format!(
        "<progress aria-label=\"Progress of the migration\" max=\"{}\" value=\"{current}\"></progress>\n\
         <p>Step {} of {}: {}.{goes}{held}</p>\n{}",
        MIGRATION_STEPS.len(),
        current + 1,
        MIGRATION_STEPS.len(),
        MIGRATION_STEPS[current].1,
        steps(MIGRATION_STEPS.into_iter().map(|(_, what)| what), current)
    )
}

/// Swaps and migrations of a device: how far one is that runs, begun by a page or by a command, and how those of this
/// page ended. Empty if there is nothing to tell.
pub fn moves(status: &Status, process: &Value, device: &Value, reader: Reader<'_>) -> String {
    let mut out = String::new();
    let running = status.swap_of(process, device);
    if let Some(progress) = running {
        let _ = writeln!(out, "<li>{}</li>", swap(progress));
    }
    for operation in about(status, process, device).filter(|operation| !is_recording(operation)) {
        let is_running = operation["state"] == "running";
        let drawn = match operation["action"].as_str() {
            Some("swap") if is_running && running.is_none() => swap(&operation["progress"]),
            Some("migrate") if is_running => migration(device),
            _ => String::new(),
        };
        let _ = writeln!(out, "<li>{}{drawn}{}</li>", heading(operation), stop(operation, reader));
    }
    if running.is_none() && out.is_empty() && ["following", "handed over"].iter().any(|state| device["state"] == *state)
    {
        // Begun by a command.
        let _ = writeln!(out, "<li>{}</li>", migration(device));
    }
    if out.is_empty() { out } else { format!("<ul class=\"operations\">\n{out}</ul>\n") }
}

/// What the recordings of a device hold, as text: each by itself, so that only its text changes. The key of each.
pub fn texts(status: &Status, process: &Value, device: &Value, reader: Reader<'_>) -> Vec<(String, String)> {
    if reader.may < Scope::Observe {
        return Vec::new();
    }
    let recordings = about(status, process, device).filter(|operation| is_recording(operation));
    let text = |operation: &Value| {
        let id = operation["id"].as_u64().unwrap_or_default();
        let html = format!(
            "<section id=\"text-{id}\"><h2>What recording {id} holds, as text</h2>\n<pre tabindex=\"0\" role=\"region\" \
             aria-label=\"What recording {id} holds, as text\" data-live=\"/api/v1/operations/{id}/text\" \
             data-follows=\"recording-{id}\"></pre></section>"
        );
        (format!("text-{id}"), html)
    };
    recordings.filter(|operation| operation["is_recorded"] == true).map(text).collect()
}

/// The recordings of a device that this page has begun; empty without one.
pub fn recordings(status: &Status, process: &Value, device: &Value, reader: Reader<'_>) -> String {
    let mut out = String::new();
    for operation in about(status, process, device).filter(|operation| is_recording(operation)) {
        let id = operation["id"].as_u64().unwrap_or_default();
        let bytes = operation["progress"]["bytes"].as_u64().unwrap_or_default();
        let is_kept = operation["is_recorded"] == true && bytes > 0;
        let _ = writeln!(out, "<li id=\"recording-{id}\" data-number=\"{bytes}\">{}", heading(operation));
        if is_kept && reader.may >= Scope::Observe {
            let full = if operation["progress"]["is_full"] == true { ", and is full" } else { "" };
            let _ = writeln!(
                out,
                "<p>It has {}{full}. <a href=\"/api/v1/operations/{id}/recording\" download=\"farbus-{id}.pcapng\">Download \
                 recording {id} (pcapng)</a>, <a href=\"/api/v1/operations/{id}/text\">read it as text</a></p>",
                format_bytes(bytes)
            );
        }
        let _ = writeln!(out, "{}</li>", stop(operation, reader));
    }
    if out.is_empty() { out } else { format!("<ul class=\"operations\">\n{out}</ul>\n") }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::super::status::Swapping;
    use super::super::super::status::tests::status;
    use super::*;

    const OWNER: Reader<'static> = Reader { back: "/", may: Scope::Own };

    fn with(operations: Value) -> Status {
        let Value::Array(operations) = operations else { panic!("a list") };
        let mut status = status(json!([]));
        status.operations = operations;
        status
    }

    #[test]
    fn recordings_are_those_of_the_device_and_only_one_that_runs_can_be_ended() {
        let recording = |id: u64, subject: &str, of: (u64, &str), state: &str, pid: Option<u32>| {
            let on = json!({ "pid": of.0, "name": of.1 });
            json!({
                "id": id, "action": "observe", "subject": subject, "on": on, "command": format!("farbus observe --pcapng {subject}"),
                "by": "page", "state": state, "begun": "2026-01-01T00:00:00Z", "pid": pid,
                "progress": { "bytes": 1200, "is_full": false }, "is_recorded": true,
            })
        };
        let status = with(json!([
            recording(4, "keyboard", (7, "keyboard"), "running", Some(77)),
            recording(3, "127.0.0.1:3240/keyboard", (7, "keyboard"), "done", None),
            recording(2, "keyboard", (8, "keyboard"), "done", None),
            recording(1, "mouse", (7, "mouse"), "done", None),
        ]));
        let process = json!({ "pid": 7, "role": "share", "address": "127.0.0.1:3240" });
        let keyboard = json!({ "name": "keyboard", "bus_id": "1-1" });
        let html = recordings(&status, &process, &keyboard, OWNER);
        assert_eq!(html.matches("<li ").count(), 2, "{html}");
        assert!(html.contains("kill 77") && html.matches("<button class=\"do\"").count() == 1, "{html}");
        assert!(html.contains("href=\"/api/v1/operations/3/recording\""), "{html}");
        assert_eq!(recordings(&status, &process, &json!({ "name": "disk" }), OWNER), "");
        // Another process has a device of the same name.
        let other = recordings(&status, &json!({ "pid": 8, "role": "share" }), &keyboard, OWNER);
        assert!(other.contains("id=\"recording-2\"") && other.matches("<li ").count() == 1, "{other}");
        // One who may only look sees no button, no link and no text.
        let looks = Reader { may: Scope::Read, ..OWNER };
        let html = recordings(&status, &process, &keyboard, looks);
        assert!(html.matches("<li ").count() == 2 && !html.contains("<button") && !html.contains("href"), "{html}");
        assert!(texts(&status, &process, &keyboard, looks).is_empty());
        assert_eq!(texts(&status, &process, &keyboard, OWNER).len(), 2);
    }

    #[test]
    fn a_swap_that_runs_is_drawn_once_with_its_step_and_what_is_left() {
        let progress = json!({
            "device": "disk", "from": "block:/a", "to": "block:/<b>", "state": "running", "phase": "copying", "round": 1,
            "total_bytes": 8_000_000, "copied_bytes": 2_000_000, "left_bytes": 6_000_000, "bytes_per_s": 1_000_000,
            "elapsed_s": 2.0, "quiet_ms": 1.25,
        });
        let operation = json!({
            "id": 1, "action": "swap", "subject": "disk", "on": { "pid": 7, "name": "disk" }, "command": "farbus swap disk --to=block:/b", "by": "page",
            "state": "running", "begun": "", "pid": 9, "progress": progress,
        });
        let (process, device) = (json!({ "pid": 7 }), json!({ "name": "disk", "state": "in use" }));
        let mut status = with(json!([operation]));
        let of_page = moves(&status, &process, &device, OWNER);
        assert!(of_page.contains("max=\"8000000\" value=\"2000000\""), "{of_page}");
        assert!(of_page.contains("25 %: 2.00 MB of 8.00 MB, 1.00 MB/s, about 6 s left"), "{of_page}");
        assert!(of_page.contains("<li aria-current=\"step\">copying</li>"), "{of_page}");
        assert!(of_page.contains("<li>beginning (done)</li>") && !of_page.contains("<b>"), "{of_page}");
        status.swaps.push(Swapping { pid: 7, name: "disk".into(), progress });
        assert_eq!(moves(&status, &process, &device, OWNER).matches("<progress").count(), 1);
        status.operations.clear();
        assert_eq!(moves(&status, &process, &device, OWNER).matches("<progress").count(), 1, "a command began it");
        assert_eq!(moves(&status, &json!({ "pid": 8 }), &device, OWNER), "", "another process's");
    }

    #[test]
    fn a_migration_is_drawn_as_the_step_that_its_device_is_in() {
        let device = |state: &str| json!({ "name": "disk", "title": "lab3/disk", "state": state, "hold_ms": 4000 });
        let drawn = |state: &str| moves(&with(json!([])), &Value::Null, &device(state), OWNER);
        assert_eq!((drawn("attached"), drawn("held")), (String::new(), String::new()), "nobody migrates it");
        let html = drawn("following");
        assert!(html.contains("Step 2 of 4: wait until its user leaves. Its user waits 4000 ms at most."), "{html}");
        let on = json!({ "pid": 3, "name": "disk" });
        let operation = json!({ "id": 1, "action": "migrate", "on": on, "state": "running", "pid": 7 });
        let html = moves(&with(json!([operation])), &json!({ "pid": 3 }), &device("held"), OWNER);
        assert!(html.contains("Step 3 of 4") && html.contains("kill 7"), "{html}");
    }

    #[test]
    fn numbers_of_a_swap_that_make_no_sense_are_drawn_without_a_panic() {
        for number in [json!(0), json!(u64::MAX), json!(-1), json!("x"), Value::Null, json!(1e300)] {
            let names = ["total_bytes", "left_bytes", "bytes_per_s", "elapsed_s", "quiet_ms", "round", "phase"];
            let progress: serde_json::Map<_, _> =
                names.iter().map(|name| ((*name).to_owned(), number.clone())).collect();
            let html = swap(&Value::Object(progress));
            assert!(html.contains("<progress") && !html.contains("NaN"), "{html}");
        }
    }

    #[test]
    fn hostile_texts_of_an_operation_add_no_element() {
        let evil = "<script>\"'\u{202e}";
        let status = with(json!([{
            "id": 1, "action": "observe", "on": { "pid": 7, "name": "a" }, "command": evil, "by": evil, "state": "failed",
            "begun": evil, "failure": { "message": evil },
        }]));
        let html = recordings(&status, &json!({ "pid": 7 }), &json!({ "name": "a" }), OWNER);
        assert!(!html.contains("<script") && !html.contains('\u{202e}') && html.contains("&lt;script"), "{html}");
    }
}
