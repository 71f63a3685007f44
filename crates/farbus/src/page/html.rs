//! The page itself. All that it shows of devices, hosts and reasons was written by others.

use std::fmt::Write;

use serde_json::Value;

use super::shell::{command, is_deceptive};
use super::status::Status;

/// Rows of the table. `/api/v1/status` has them all.
const ROWS_MAX: usize = 2000;
/// Characters of one text of a device.
const TEXT_CHARS_MAX: usize = 200;

/// The style of the page.
pub const STYLE: &str = include_str!("page.css");
/// The script of the page: it replaces the table when something has changed.
pub const SCRIPT: &str = include_str!("page.js");

const BEGIN: &str = "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
    <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
    <meta name=\"color-scheme\" content=\"light dark\">\n<title>farbus</title>\n\
    <link rel=\"stylesheet\" href=\"/page.css\">\n<script src=\"/page.js\" defer></script>\n</head>\n<body>\n\
    <header><h1>farbus</h1> <span id=\"live\" role=\"status\">as of when it was loaded</span></header>\n\
    <main id=\"devices\">\n";
const END: &str = "</main>\n<footer>This page changes nothing: copy a command into a terminal. \
    <a href=\"/api/v1/status\">JSON</a> · <a href=\"/metrics\">metrics</a></footer>\n</body>\n</html>\n";

/// The whole page.
pub fn page(status: &Status) -> String {
    format!("{BEGIN}{}{END}", table(status))
}

/// The part of the page that changes.
pub fn table(status: &Status) -> String {
    let mut out = String::new();
    if let Some(failure) = &status.failure {
        let _ = writeln!(out, "<p role=\"alert\">The processes cannot be asked: {}</p>", escaped(failure));
    }
    if status.silent > 0 {
        let _ = writeln!(out, "<p role=\"alert\">Processes that gave no status: {}</p>", status.silent);
    }
    if status.devices().next().is_none() {
        out.push_str("<p>Nothing is shared or attached here. Try: <code>farbus share zero</code></p>\n");
        return out;
    }
    out.push_str("<table>\n<thead><tr>");
    for heading in ["Device", "What", "State", "User", "Since", "Waiting", "Command"] {
        let _ = write!(out, "<th scope=\"col\">{heading}</th>");
    }
    out.push_str("</tr></thead>\n<tbody>\n");
    for (process, device) in status.devices().take(ROWS_MAX) {
        row(&mut out, process, device);
    }
    out.push_str("</tbody>\n</table>\n");
    let left_out = status.devices().skip(ROWS_MAX).count();
    if left_out > 0 {
        let _ = writeln!(out, "<p>Further devices, which <code>farbus status</code> shows: {left_out}</p>");
    }
    out
}

fn row(out: &mut String, process: &Value, device: &Value) {
    let text = |name: &str| device[name].as_str().unwrap_or_default();
    let since = device["used_s"].as_f64().map(span).unwrap_or_default();
    let user = match text("reason") {
        "" => escaped(text("user")),
        reason => format!("{}<br><q>{}</q>", escaped(text("user")), escaped(reason)),
    };
    let waiting = device["waiting"].as_array().into_iter().flatten();
    let waiting: Vec<_> = waiting.filter_map(|waiting| waiting["host"].as_str()).map(escaped).take(16).collect();
    let failure = device["failure"]["message"].as_str().map(|why| format!("<br>{}", escaped(why)));
    let command = command_for(process, device).map(|line| format!("<code>{}</code>", escaped_whole(&line)));
    let _ = writeln!(
        out,
        "<tr><th scope=\"row\" data-label=\"Device\">{}</th><td data-label=\"What\">{} {}</td>\
         <td data-label=\"State\">{}{}</td><td data-label=\"User\">{user}</td><td data-label=\"Since\">{since}</td>\
         <td data-label=\"Waiting\">{}</td><td data-label=\"Command\">{}</td></tr>",
        escaped(text("name")),
        icon(device),
        escaped(text("title")),
        escaped(text("state")),
        failure.unwrap_or_default(),
        waiting.join("<br>"),
        command.unwrap_or_default(),
    );
}

/// What its owner most likely does next with a device.
fn command_for(process: &Value, device: &Value) -> Option<String> {
    let name = device["name"].as_str()?;
    match (process["role"].as_str()?, device["state"].as_str()?) {
        // What a program has ends with the program.
        ("run", _) => None,
        (_, "in use") => Some(command("release", &[name])),
        ("daemon", "available") => Some(command("unshare", &[name])),
        (_, "attached" | "link lost") => Some(command("detach", &[name])),
        (_, "held") => Some(command("resume", &[name])),
        _ => None,
    }
}

/// A sign for the device's class, and the class in words for who does not see it.
fn icon(device: &Value) -> String {
    let interfaces = device["interfaces"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let classes = interfaces.collect::<Vec<_>>().join(" ").to_lowercase();
    let has = |words: &[&str]| words.iter().any(|word| classes.contains(word));
    let (sign, word) = if device["size_bytes"].is_u64() || has(&["storage", "disk"]) {
        ("🖴", "disk")
    } else if has(&["audio", "sound", "midi"]) {
        ("🔊", "sound")
    } else if has(&["video", "camera", "image"]) {
        ("📷", "camera")
    } else if has(&["keyboard", "mouse", "hid", "human"]) {
        ("⌨", "input")
    } else if has(&["serial", "communication", "cdc", "modem"]) {
        ("⇄", "serial or network")
    } else if has(&["printer"]) {
        ("🖶", "printer")
    } else {
        ("•", "device")
    };
    format!("<span role=\"img\" aria-label=\"{word}\">{sign}</span>")
}

/// A time in its largest unit.
fn span(seconds: f64) -> String {
    match seconds.max(0.0) as u64 {
        s @ 0..60 => format!("{s} s"),
        s @ 60..3600 => format!("{} min", s / 60),
        s @ 3600..172_800 => format!("{} h", s / 3600),
        s => format!("{} d", s / 86_400),
    }
}

/// Others' text in an element, apart from the direction of the text around it and not longer than a line or two.
fn escaped(text: &str) -> String {
    let is_longer = text.chars().nth(TEXT_CHARS_MAX).is_some();
    let short: String = text.chars().take(TEXT_CHARS_MAX).collect();
    format!("<bdi>{}{}</bdi>", escaped_whole(&short), if is_longer { "…" } else { "" })
}

/// Text in an element. What cannot be seen is shown as a replacement character.
fn escaped_whole(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c if is_deceptive(c) => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::status::tests::status;
    use super::*;

    #[test]
    fn hostile_texts_add_no_element_and_no_attribute() {
        let evil = "<script>alert(1)</script>\"' onx=1 &lt;\u{202e}\x1b[2J";
        let device = json!({
            "name": evil, "title": evil, "state": "in use", "user": evil, "reason": evil, "interfaces": [evil],
            "waiting": [{ "host": evil }], "failure": { "message": evil }, "used_s": 61.0,
        });
        let benign = json!({
            "name": "a", "title": "a", "state": "in use", "user": "a", "reason": "a", "interfaces": ["a"],
            "waiting": [{ "host": "a" }], "failure": { "message": "a" }, "used_s": 61.0,
        });
        let page_of = |device| page(&status(json!([{ "role": "share", "devices": [device] }])));
        let (hostile, plain) = (page_of(device), page_of(benign));
        for sign in ['<', '>', '"'] {
            assert_eq!(hostile.matches(sign).count(), plain.matches(sign).count(), "{sign}: {hostile}");
        }
        assert!(!hostile.contains(['\u{202e}', '\x1b']) && hostile.contains("1 min"));
        assert!(hostile.contains("farbus release $&#39;&lt;script&gt;"), "{hostile}");
    }

    #[test]
    fn many_devices_with_long_names_make_a_page_of_bounded_size() {
        let many: Vec<_> = (0..5000).map(|n| json!({ "name": "n".repeat(n), "title": "t".repeat(n) })).collect();
        let page = page(&status(json!([{ "role": "share", "devices": many }])));
        assert!(page.len() < 4 << 20 && page.contains("status</code> shows: 3000"), "{}", page.len());
    }

    #[test]
    fn nothing_in_the_page_is_inline_or_from_outside() {
        assert!(!BEGIN.contains("style=") && !BEGIN.contains("onload") && !SCRIPT.contains("innerHTML"));
        for part in [BEGIN, END, SCRIPT, STYLE] {
            assert!(!part.contains("://") && !part.contains("src=\"//"), "{part}");
        }
    }
}
