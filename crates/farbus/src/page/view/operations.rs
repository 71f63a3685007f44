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
/// Lines of what to type next.
const NEXT_LINES_MAX: usize = 4;

/// The operations of this page about a device, the latest first.
pub fn about<'s>(status: &'s Status, process: &'s Value, device: &'s Value) -> impl Iterator<Item = &'s Value> {
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

fn is_console(operation: &Value) -> bool {
    operation["action"] == "console"
}

/// Items of operations as a list; empty without one.
pub fn list(items: String) -> String {
    if items.is_empty() { items } else { format!("<ul class=\"operations\">\n{items}</ul>\n") }
}

/// A form that ends an operation, with the command line that does the same; empty if nothing runs, and for those who
/// may not end it.
pub fn stop(operation: &Value, reader: Reader<'_>) -> String {
    match operation["pid"].as_u64().filter(|_| operation["state"] == "running") {
        Some(pid) => forms::stop(operation, &format!("kill {pid}"), reader),
        None => String::new(),
    }
}

/// Why something failed, and below it what to type next.
fn why(failed: &Value) -> String {
    let Some(message) = failed["failure"]["message"].as_str() else { return String::new() };
    let mut lines = message.lines().filter(|line| !line.trim().is_empty());
    let first = lines.next().unwrap_or_default();
    let mut out = format!(" <span class=\"failed\">{}</span>", escaped(first));
    for line in lines.take(NEXT_LINES_MAX) {
        let _ = write!(out, "<br>\n<span>{}</span>", escaped(line.trim()));
    }
    out
}

/// The command line of an operation, how far it is, and who began it.
pub fn heading(operation: &Value) -> String {
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
    let goes = device["migration"]["to"].as_str().map(|to| format!(" It goes to {}.", escaped(to))).unwrap_or_default();
    let runs = device["migration"]["elapsed_s"].as_f64().map(|s| format!(" It runs for {}.", span(s)));
    let runs = runs.unwrap_or_default();
    let held = device["hold_ms"].as_u64().map(|ms| format!(" Its user waits {ms} ms at most.")).unwrap_or_default();
    format!(
        "<progress aria-label=\"Progress of the migration\" max=\"{}\" value=\"{current}\"></progress>\n\
         <p>Step {} of {}: {}.{goes}{held}{runs}</p>\n{}",
        MIGRATION_STEPS.len(),
        current + 1,
        MIGRATION_STEPS.len(),
        MIGRATION_STEPS[current].1,
        steps(MIGRATION_STEPS.into_iter().map(|(_, what)| what), current)
    )
}

/// A move that has ended: `what`, how long it took, or why it failed and what to type next.
fn ended(what: &str, moved: &Value) -> String {
    let begun = moved["begun"].as_str().filter(|begun| !begun.is_empty());
    let begun = begun.map(|begun| format!(" <small>begun {}</small>", escaped(begun))).unwrap_or_default();
    let took = moved["elapsed_s"].as_f64().unwrap_or_default();
    match moved["state"].as_str() {
        Some("done") => format!("<p data-ended=\"done\">{what} is done: it took {took:.1} s.{begun}</p>"),
        _ => format!("<p data-ended=\"failed\">{what} failed:{}{begun}</p>", why(moved)),
    }
}

/// The swap and the migration of a device that run, or the last ones, begun by a page or by a command.
fn latest(status: &Status, process: &Value, device: &Value) -> Vec<String> {
    let told = Some(&device["swap"]).filter(|swap| swap.is_object());
    // A process of an earlier release says how far a swap is when it is asked.
    let swapping = told.or_else(|| status.swap_of(process, device));
    let text = |of: &Value, name: &str| escaped(of[name].as_str().unwrap_or_default());
    let swapped = swapping.map(|progress| match progress["state"].as_str() {
        Some("running") => swap(progress),
        _ => ended(&format!("The swap from {} to {}", text(progress, "from"), text(progress, "to")), progress),
    });
    let migrating = Some(&device["migration"]).filter(|migration| migration.is_object());
    let is_on_its_way = ["following", "handed over"].iter().any(|state| device["state"] == *state);
    let migrated = match migrating {
        Some(migrating) if migrating["state"] == "running" => Some(migration(device)),
        Some(migrating) => Some(ended(&format!("The migration to {}", text(migrating, "to")), migrating)),
        None => is_on_its_way.then(|| migration(device)),
    };
    let successor = device["successor"].as_str().filter(|_| device["bus_id"].is_string()).map(|to| {
        let left_ms = device["successor_left_ms"].as_u64().unwrap_or_default();
        format!("<p>Its user hands it over: {} has {} s to attach it.</p>", escaped(to), left_ms.div_ceil(1000))
    });
    [swapped, migrated, successor].into_iter().flatten().collect()
}

/// Swaps and migrations of a device: how far one is that runs, begun by a page or by a command, how the last one ended,
/// and how the commands of this page ended. Empty if there is nothing to tell.
pub fn moves(status: &Status, process: &Value, device: &Value, reader: Reader<'_>) -> String {
    let mut out = String::new();
    let latest = latest(status, process, device);
    for drawn in &latest {
        let _ = writeln!(out, "<li>{drawn}</li>");
    }
    let is_told =
        |name: &str| device[name].is_object() || (name == "swap" && status.swap_of(process, device).is_some());
    let is_move =
        |operation: &&Value| !is_recording(operation) && !is_console(operation) && operation["action"] != "picture";
    for operation in about(status, process, device).filter(is_move) {
        let is_running = operation["state"] == "running";
        let drawn = match operation["action"].as_str() {
            Some("swap") if is_running && !is_told("swap") => swap(&operation["progress"]),
            Some("migrate") if is_running && latest.is_empty() => migration(device),
            _ => String::new(),
        };
        let _ = writeln!(out, "<li>{}{drawn}{}</li>", heading(operation), stop(operation, reader));
    }
    list(out)
}

/// What the recordings and consoles of a device hold, as text: each by itself, so that only its text changes. The key
/// of each.
pub fn texts(status: &Status, process: &Value, device: &Value, reader: Reader<'_>) -> Vec<(String, String)> {
    if reader.may < Scope::Observe {
        return Vec::new();
    }
    let text = |operation: &Value| {
        let id = operation["id"].as_u64().unwrap_or_default();
        let (of, what) = match is_console(operation) {
            true => ("console", format!("Console {id}: what its serial ports send")),
            false => ("recording", format!("What recording {id} holds, as text")),
        };
        let html = format!(
            "<section id=\"text-{id}\"><h2>{what}</h2>\n<pre tabindex=\"0\" role=\"region\" \
             aria-label=\"{what}\" data-live=\"/api/v1/operations/{id}/text\" \
             data-follows=\"{of}-{id}\"></pre></section>"
        );
        (format!("text-{id}"), html)
    };
    let all = about(status, process, device).filter(|operation| is_recording(operation) || is_console(operation));
    all.filter(|operation| operation["is_recorded"] == true).map(text).collect()
}

/// The consoles of a device that this page has begun; empty without one.
pub fn consoles(status: &Status, process: &Value, device: &Value, reader: Reader<'_>) -> String {
    let mut out = String::new();
    for operation in about(status, process, device).filter(|operation| is_console(operation)) {
        let id = operation["id"].as_u64().unwrap_or_default();
        let bytes = operation["progress"]["bytes"].as_u64().unwrap_or_default();
        let _ = writeln!(out, "<li id=\"console-{id}\" data-number=\"{bytes}\">{}", heading(operation));
        if operation["is_recorded"] == true && bytes > 0 && reader.may >= Scope::Observe {
            let _ = writeln!(
                out,
                "<p>It has printed {}. <a href=\"/api/v1/operations/{id}/text\" download=\"farbus-{id}.txt\">Download the \
                 latest of console {id} (text)</a></p>",
                format_bytes(bytes)
            );
        }
        let _ = writeln!(out, "{}</li>", stop(operation, reader));
    }
    if out.is_empty() { out } else { format!("<ul class=\"operations\">\n{out}</ul>\n") }
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
    list(out)
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
    fn a_console_is_drawn_with_its_text_apart_and_is_no_recording() {
        let console = |state: &str, pid: Option<u32>, is_recorded: bool| {
            with(json!([{
                "id": 5, "action": "console", "subject": "serial", "on": { "pid": 7, "name": "serial" }, "command": "farbus observe --console serial",
                "by": "page", "state": state, "begun": "2026-01-01T00:00:00Z", "pid": pid,
                "progress": { "bytes": 1200, "is_full": false }, "is_recorded": is_recorded,
            }]))
        };
        let (status, device) = (console("running", Some(77), true), json!({ "name": "serial" }));
        let process = json!({ "pid": 7, "role": "share" });
        let html = consoles(&status, &process, &device, OWNER);
        assert!(html.contains("id=\"console-5\" data-number=\"1200\"") && html.contains("kill 77"), "{html}");
        assert!(html.contains("farbus observe --console serial</code> runs"), "{html}");
        let [(key, text)] = &texts(&status, &process, &device, OWNER)[..] else { panic!("one") };
        assert!(key == "text-5" && text.contains("data-follows=\"console-5\""), "{text}");
        assert_eq!(recordings(&status, &process, &device, OWNER) + &moves(&status, &process, &device, OWNER), "");
        let forgotten = console("done", None, false);
        assert!(!consoles(&forgotten, &process, &device, OWNER).contains("/text"));
        assert_eq!(texts(&forgotten, &process, &device, OWNER), []);
        // One who may only look sees that it runs, and neither its text nor a button.
        let looks = Reader { may: Scope::Read, ..OWNER };
        let html = consoles(&status, &process, &device, looks);
        assert!(html.contains("id=\"console-5\"") && !html.contains("<button") && !html.contains("href"), "{html}");
        assert_eq!(texts(&status, &process, &device, looks), []);
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
    fn swap_of_a_twin_and_a_move_that_has_ended_are_drawn_though_no_page_began_them() {
        let process = json!({ "pid": 7, "role": "share" });
        let none = with(json!([]));
        let device = |name: &str, state: &str, more: Value| {
            let mut moved =
                json!({ "from": "usb:1-1", "to": "<rack>", "state": state, "begun": "2026-01-01T00:00:00Z" });
            moved.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            json!({ "name": "scope", "bus_id": "1-1", "state": "in use", name: moved })
        };
        let running = json!({ "phase": "switching", "total_bytes": 0, "elapsed_s": 2.0 });
        let html = moves(&none, &process, &device("swap", "running", running), OWNER);
        assert!(html.contains("<progress") && html.contains("<li aria-current=\"step\">switching</li>"), "{html}");
        assert!(html.contains("&lt;rack&gt;") && !html.contains("<rack>"), "{html}");
        for name in ["swap", "migration"] {
            let html = moves(&none, &process, &device(name, "done", json!({ "elapsed_s": 1.26 })), OWNER);
            assert!(html.contains("is done: it took 1.3 s.") && !html.contains("<progress"), "{html}");
            let failure = json!({ "failure": { "message": "it was <cancelled>\n  type: this\n" } });
            let html = moves(&none, &process, &device(name, "failed", failure), OWNER);
            assert!(html.contains("failed:") && html.contains("it was &lt;cancelled&gt;"), "{html}");
            assert!(html.contains("type: this") && !html.contains("<progress"), "{html}");
        }
        let waits = json!({ "name": "a", "bus_id": "1-1", "successor": "rack", "successor_left_ms": 1200 });
        let html = moves(&none, &process, &waits, OWNER);
        assert!(html.contains("<bdi>rack</bdi> has 2 s to attach it"), "{html}");
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
