//! What this page has begun with a device and what tells how far it is: recordings, swaps, migrations.

use farbus_control::attachment::MigrationStatus;
use farbus_control::failure::FailureReport;
use farbus_control::process::{ProcessDevice, ProcessStatus};
use farbus_control::swap::SwapStatus;
use farbus_control::units::format_bytes;
use farbus_io_net::trust::PageScope;
use maud::{Markup, html};

use crate::known::operation::{DrawnOperation, OperationState};
use crate::known::status::CombinedStatus;
use crate::view::forms::{self, ViewReader};
use crate::view::text::{span, theirs, whole};

/// Operations of a device that are drawn, the latest first.
const DRAWN_MAX: usize = 8;
/// Lines of what to type next.
const NEXT_LINES_MAX: usize = 4;

/// The operations of this page about a device, the latest first.
pub fn about<'s>(
    status: &'s CombinedStatus,
    process: &'s ProcessStatus,
    device: &'s ProcessDevice,
) -> impl Iterator<Item = &'s DrawnOperation> {
    // Two processes may have devices of one name.
    let is_about = move |operation: &&DrawnOperation| {
        operation.on.as_ref().is_some_and(|on| on.pid == process.pid && on.name == device.name())
    };
    status.operations.iter().filter(is_about).take(DRAWN_MAX)
}

fn is_recording(operation: &DrawnOperation) -> bool {
    operation.action == "observe"
}

fn is_console(operation: &DrawnOperation) -> bool {
    operation.action == "console"
}

/// Items of operations as a list; empty without one.
pub fn list(items: impl Iterator<Item = Markup>) -> Markup {
    let mut items = items.peekable();
    html! { @if items.peek().is_some() { ul class="operations" { @for item in items { (item) } } } }
}

/// A form that ends an operation, with the command line that does the same; empty if nothing runs, and for those who
/// may not end it.
pub fn stop(operation: &DrawnOperation, reader: ViewReader<'_>) -> Markup {
    let pid = operation.pid.filter(|_| operation.state == OperationState::Running);
    html! { @if let Some(pid) = pid { (forms::stop(operation, &format!("kill {pid}"), reader)) } }
}

/// Why something failed, and below it what to type next.
fn why(failure: Option<&FailureReport>) -> Markup {
    let message = failure.map(|failure| failure.message.as_str());
    let mut lines = message.into_iter().flat_map(str::lines).filter(|line| !line.trim().is_empty());
    html! {
        @if message.is_some() {
            " " span class="failed" { (theirs(lines.next().unwrap_or_default())) }
            @for line in lines.take(NEXT_LINES_MAX) { br; span { (theirs(line.trim())) } }
        }
    }
}

/// The command line of an operation, how far it is, and who began it.
pub fn heading(operation: &DrawnOperation) -> Markup {
    let DrawnOperation { id, command, begun, by, state, failure, .. } = operation;
    let state = match state {
        OperationState::Running => "runs",
        OperationState::Done => "has ended",
        OperationState::Failed => "failed",
    };
    html! {
        p {
            code tabindex="0" { (whole(command)) } " " (state) (why(failure.as_ref())) " "
            small { "operation " (id) ", begun " (theirs(begun)) " by " (theirs(by)) }
        }
    }
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
fn steps<'a>(all: impl Iterator<Item = &'a str>, current: usize) -> Markup {
    html! {
        ol class="steps" {
            @for (at, step) in all.enumerate() {
                li aria-current=[(at == current).then_some("step")] { (step) @if at < current { " (done)" } }
            }
        }
    }
}

/// How far a swap is, as its process says.
fn swap(progress: &SwapStatus) -> Markup {
    let SwapStatus { from, to, phase, round, copied_bytes, bytes_per_s: rate, elapsed_s, quiet_ms, .. } = progress;
    let (total, left) = (progress.total_bytes, progress.left_bytes);
    let done = total.saturating_sub(left);
    let percent = (done as f64 / total.max(1) as f64 * 100.0).floor();
    let current = SWAP_STEPS.iter().position(|step| step == phase).unwrap_or(0);
    // A USB device has no bytes to be copied.
    let has_bytes = total > 0;
    html! {
        p { "From " (theirs(from)) " to " (theirs(to)) }
        progress aria-label="Progress of the swap" max=[has_bytes.then_some(total)] value=[has_bytes.then_some(done)] {
            @if has_bytes { (percent) " %" }
        }
        p {
            @if has_bytes {
                (percent) " %: " (format_bytes(done)) " of " (format_bytes(total)) ", " (format_bytes(*rate)) "/s"
                @if let Some(seconds) = left.checked_div(*rate) { ", about " (span(seconds as f64)) " left" }
                "; round " (round) ", copied in all " (format_bytes(*copied_bytes)) ". "
            }
            "It runs for " (span(*elapsed_s))
            "; the longest that a request waited is " (format_args!("{quiet_ms:.1}")) " ms."
        }
        (steps(SWAP_STEPS.into_iter(), current))
    }
}

/// How far a migration is, as the device's state tells.
fn migration(device: &ProcessDevice) -> Markup {
    let current = MIGRATION_STEPS.iter().position(|(name, _)| *name == device.state()).unwrap_or(0);
    let of_all = MIGRATION_STEPS.len();
    let migrating = device.migration();
    html! {
        progress aria-label="Progress of the migration" max=(of_all) value=(current) {}
        p {
            "Step " (current + 1) " of " (of_all) ": " (MIGRATION_STEPS[current].1) "."
            @if let Some(migrating) = migrating { " It goes to " (theirs(&migrating.to)) "." }
            @if let Some(ms) = device.attached().and_then(|attached| attached.hold_ms) {
                " Its user waits " (ms) " ms at most."
            }
            @if let Some(s) = migrating.and_then(|migrating| migrating.elapsed_s) { " It runs for " (span(s)) "." }
        }
        (steps(MIGRATION_STEPS.into_iter().map(|(_, what)| what), current))
    }
}

/// A move that has ended: `what`, its state, when it began, how long it took, or why it failed and what to type next.
fn ended(what: &Markup, state: &str, begun: &str, took_s: f64, failure: Option<&FailureReport>) -> Markup {
    let begun = html! { @if !begun.is_empty() { " " small { "begun " (theirs(begun)) } } };
    html! {
        @if state == "done" {
            p data-ended="done" { (what) " is done: it took " (format_args!("{took_s:.1}")) " s." (begun) }
        } @else {
            p data-ended="failed" { (what) " failed:" (why(failure)) (begun) }
        }
    }
}

/// The swap of a device that runs, or the last one. A process of an earlier release says how far a swap is when it is
/// asked.
fn swapping<'s>(
    status: &'s CombinedStatus,
    process: &ProcessStatus,
    device: &'s ProcessDevice,
) -> Option<&'s SwapStatus> {
    device.swap().or_else(|| status.swap_of(process, device))
}

/// The swap and the migration of a device that run, or the last ones, begun by a page or by a command.
fn latest(status: &CombinedStatus, process: &ProcessStatus, device: &ProcessDevice) -> Vec<Markup> {
    let swapped = swapping(status, process, device).map(|progress| match &progress.state[..] {
        "running" => swap(progress),
        state => {
            let SwapStatus { from, to, begun, elapsed_s, failure, .. } = progress;
            let what = html! { "The swap from " (theirs(from)) " to " (theirs(to)) };
            ended(&what, state, begun, *elapsed_s, failure.as_ref())
        }
    });
    let migrated = match device.migration() {
        Some(migrating) if migrating.state == "running" => Some(migration(device)),
        Some(MigrationStatus { to, state, begun, elapsed_s, failure }) => {
            let what = html! { "The migration to " (theirs(to)) };
            Some(ended(&what, state, begun, elapsed_s.unwrap_or_default(), failure.as_ref()))
        }
        None => ["following", "handed over"].contains(&device.state()).then(|| migration(device)),
    };
    let successor = device.shared().and_then(|shared| shared.successor.as_ref().zip(Some(shared.successor_left_ms)));
    let successor = successor.map(|(to, left_ms)| {
        let left_s = left_ms.unwrap_or_default().div_ceil(1000);
        html! { p { "Its user hands it over: " (theirs(to)) " has " (left_s) " s to attach it." } }
    });
    [swapped, migrated, successor].into_iter().flatten().collect()
}

/// Swaps and migrations of a device: how far one is that runs, begun by a page or by a command, how the last one ended,
/// and how the commands of this page ended. Empty if there is nothing to tell.
pub fn moves(
    status: &CombinedStatus,
    process: &ProcessStatus,
    device: &ProcessDevice,
    reader: ViewReader<'_>,
) -> Markup {
    let latest = latest(status, process, device);
    let is_told = swapping(status, process, device).is_some();
    let is_move = |operation: &&DrawnOperation| {
        !is_recording(operation) && !is_console(operation) && operation.action != "picture"
    };
    let has_latest = !latest.is_empty();
    let of_page = about(status, process, device).filter(is_move).map(|operation| {
        let is_running = operation.state == OperationState::Running;
        let drawn = match (operation.action.as_str(), &operation.swap) {
            ("swap", Some(progress)) if is_running && !is_told => swap(progress),
            ("migrate", _) if is_running && !has_latest => migration(device),
            _ => Markup::default(),
        };
        html! { li { (heading(operation)) (drawn) (stop(operation, reader)) } }
    });
    list(latest.into_iter().map(|drawn| html! { li { (drawn) } }).chain(of_page))
}

/// What the recordings and consoles of a device hold, as text: each by itself, so that only its text changes. The key
/// of each.
pub fn texts(
    status: &CombinedStatus,
    process: &ProcessStatus,
    device: &ProcessDevice,
    reader: ViewReader<'_>,
) -> Vec<(String, Markup)> {
    if reader.may < PageScope::Observe {
        return Vec::new();
    }
    let text = |operation: &DrawnOperation| {
        let id = operation.id;
        let (of, what) = match is_console(operation) {
            true => ("console", format!("Console {id}: what its serial ports send")),
            false => ("recording", format!("What recording {id} holds, as text")),
        };
        let html = html! {
            section id={ "text-" (id) } {
                h2 { (what) }
                pre tabindex="0" role="region" aria-label=(what) data-live={ "/api/v1/operations/" (id) "/text" }
                    data-follows={ (of) "-" (id) } {}
            }
        };
        (format!("text-{id}"), html)
    };
    let all = about(status, process, device).filter(|operation| is_recording(operation) || is_console(operation));
    all.filter(|operation| operation.is_recorded).map(text).collect()
}

/// The consoles of a device that this page has begun; empty without one.
pub fn consoles(
    status: &CombinedStatus,
    process: &ProcessStatus,
    device: &ProcessDevice,
    reader: ViewReader<'_>,
) -> Markup {
    let all = about(status, process, device).filter(|operation| is_console(operation));
    list(all.map(|operation| {
        kept("console", operation, reader, |id, bytes| {
            html! {
                "It has printed " (format_bytes(bytes)) ". "
                a href={ "/api/v1/operations/" (id) "/text" } download={ "farbus-" (id) ".txt" } {
                    "Download the latest of console " (id) " (text)"
                }
            }
        })
    }))
}

/// The recordings of a device that this page has begun; empty without one.
pub fn recordings(
    status: &CombinedStatus,
    process: &ProcessStatus,
    device: &ProcessDevice,
    reader: ViewReader<'_>,
) -> Markup {
    let all = about(status, process, device).filter(|operation| is_recording(operation));
    list(all.map(|operation| {
        let full = if operation.progress.is_full { ", and is full" } else { "" };
        kept("recording", operation, reader, |id, bytes| {
            html! {
                "It has " (format_bytes(bytes)) (full) ". "
                a href={ "/api/v1/operations/" (id) "/recording" } download={ "farbus-" (id) ".pcapng" } {
                    "Download recording " (id) " (pcapng)"
                }
                ", " a href={ "/api/v1/operations/" (id) "/text" } { "read it as text" }
            }
        })
    }))
}

/// An operation that keeps what a device sends, and what can be read of it by one who may.
fn kept(of: &str, operation: &DrawnOperation, reader: ViewReader<'_>, read: impl Fn(u64, u64) -> Markup) -> Markup {
    let (id, bytes) = (operation.id, operation.progress.bytes);
    let is_read = operation.is_recorded && bytes > 0 && reader.may >= PageScope::Observe;
    html! {
        li id={ (of) "-" (id) } data-number=(bytes) {
            (heading(operation))
            @if is_read { p { (read(id, bytes)) } }
            (stop(operation, reader))
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::known::status::RunningSwap;
    use crate::known::status::tests::{device as device_of, process as a_process, status};

    const OWNER: ViewReader<'static> = ViewReader { back: "/", may: PageScope::Own };

    fn with(operations: Value) -> CombinedStatus {
        let mut status = status(json!([]));
        status.operations = serde_json::from_value(operations).unwrap();
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
        let process = a_process(json!({ "pid": 7, "role": "share", "address": "127.0.0.1:3240" }));
        let keyboard = device_of(json!({ "name": "keyboard", "bus_id": "1-1" }));
        let html = recordings(&status, &process, &keyboard, OWNER).into_string();
        assert_eq!(html.matches("<li ").count(), 2, "{html}");
        assert!(html.contains("kill 77") && html.matches("<button class=\"do\"").count() == 1, "{html}");
        assert!(html.contains("href=\"/api/v1/operations/3/recording\""), "{html}");
        assert_eq!(recordings(&status, &process, &device_of(json!({ "name": "disk" })), OWNER).into_string(), "");
        // Another process has a device of the same name.
        let other =
            recordings(&status, &a_process(json!({ "pid": 8, "role": "share" })), &keyboard, OWNER).into_string();
        assert!(other.contains("id=\"recording-2\"") && other.matches("<li ").count() == 1, "{other}");
        // One who may only look sees no button, no link and no text.
        let looks = ViewReader { may: PageScope::Read, ..OWNER };
        let html = recordings(&status, &process, &keyboard, looks).into_string();
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
        let (status, device) = (console("running", Some(77), true), device_of(json!({ "name": "serial" })));
        let process = a_process(json!({ "pid": 7, "role": "share" }));
        let html = consoles(&status, &process, &device, OWNER).into_string();
        assert!(html.contains("id=\"console-5\" data-number=\"1200\"") && html.contains("kill 77"), "{html}");
        assert!(html.contains("farbus observe --console serial</code> runs"), "{html}");
        let [(key, text)] = &texts(&status, &process, &device, OWNER)[..] else { panic!("one") };
        assert!(key == "text-5" && text.0.contains("data-follows=\"console-5\""), "{text:?}");
        assert_eq!(recordings(&status, &process, &device, OWNER).into_string(), "");
        assert_eq!(moves(&status, &process, &device, OWNER).into_string(), "");
        let forgotten = console("done", None, false);
        assert!(!consoles(&forgotten, &process, &device, OWNER).0.contains("/text"));
        assert!(texts(&forgotten, &process, &device, OWNER).is_empty());
        // One who may only look sees that it runs, and neither its text nor a button.
        let looks = ViewReader { may: PageScope::Read, ..OWNER };
        let html = consoles(&status, &process, &device, looks).into_string();
        assert!(html.contains("id=\"console-5\"") && !html.contains("<button") && !html.contains("href"), "{html}");
        assert!(texts(&status, &process, &device, looks).is_empty());
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
            "state": "running", "begun": "", "pid": 9, "swap": progress,
        });
        let (process, device) =
            (a_process(json!({ "pid": 7 })), device_of(json!({ "name": "disk", "state": "in use" })));
        let mut status = with(json!([operation]));
        let of_page = moves(&status, &process, &device, OWNER).into_string();
        assert!(of_page.contains("max=\"8000000\" value=\"2000000\""), "{of_page}");
        assert!(of_page.contains("25 %: 2.00 MB of 8.00 MB, 1.00 MB/s, about 6 s left"), "{of_page}");
        assert!(of_page.contains("<li aria-current=\"step\">copying</li>"), "{of_page}");
        assert!(of_page.contains("<li>beginning (done)</li>") && !of_page.contains("<b>"), "{of_page}");
        status.swaps.push(RunningSwap {
            pid: 7,
            name: "disk".into(),
            progress: serde_json::from_value(progress).unwrap(),
        });
        assert_eq!(moves(&status, &process, &device, OWNER).0.matches("<progress").count(), 1);
        status.operations.clear();
        assert_eq!(moves(&status, &process, &device, OWNER).0.matches("<progress").count(), 1, "a command began it");
        assert_eq!(
            moves(&status, &a_process(json!({ "pid": 8 })), &device, OWNER).into_string(),
            "",
            "another process's"
        );
    }

    #[test]
    fn a_migration_is_drawn_as_the_step_that_its_device_is_in() {
        let device =
            |state: &str| device_of(json!({ "name": "disk", "title": "lab3/disk", "state": state, "hold_ms": 4000 }));
        let none = ProcessStatus::default();
        let drawn = |state: &str| moves(&with(json!([])), &none, &device(state), OWNER).into_string();
        assert_eq!((drawn("attached"), drawn("held")), (String::new(), String::new()), "nobody migrates it");
        let html = drawn("following");
        assert!(html.contains("Step 2 of 4: wait until its user leaves. Its user waits 4000 ms at most."), "{html}");
        let on = json!({ "pid": 3, "name": "disk" });
        let operation = json!({
            "id": 1, "action": "migrate", "on": on, "command": "", "by": "page", "state": "running", "begun": "", "pid": 7,
        });
        let html =
            moves(&with(json!([operation])), &a_process(json!({ "pid": 3 })), &device("held"), OWNER).into_string();
        assert!(html.contains("Step 3 of 4") && html.contains("kill 7"), "{html}");
    }

    #[test]
    fn swap_of_a_twin_and_a_move_that_has_ended_are_drawn_though_no_page_began_them() {
        let process = a_process(json!({ "pid": 7, "role": "share" }));
        let none = with(json!([]));
        let device = |name: &str, state: &str, more: Value| {
            let mut moved =
                json!({ "from": "usb:1-1", "to": "<rack>", "state": state, "begun": "2026-01-01T00:00:00Z" });
            moved.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            match name {
                "swap" => device_of(json!({ "name": "scope", "bus_id": "1-1", "state": "in use", "swap": moved })),
                _ => device_of(json!({ "name": "scope", "state": "attached", "migration": moved })),
            }
        };
        let running = json!({ "phase": "switching", "total_bytes": 0, "elapsed_s": 2.0 });
        let html = moves(&none, &process, &device("swap", "running", running), OWNER).into_string();
        assert!(html.contains("<progress") && html.contains("<li aria-current=\"step\">switching</li>"), "{html}");
        assert!(html.contains("&lt;rack&gt;") && !html.contains("<rack>"), "{html}");
        for name in ["swap", "migration"] {
            let html = moves(&none, &process, &device(name, "done", json!({ "elapsed_s": 1.26 })), OWNER).into_string();
            assert!(html.contains("is done: it took 1.3 s.") && !html.contains("<progress"), "{html}");
            let failure =
                json!({ "failure": { "attribute": "gone", "message": "it was <cancelled>\n  type: this\n" } });
            let html = moves(&none, &process, &device(name, "failed", failure), OWNER).into_string();
            assert!(html.contains("failed:") && html.contains("it was &lt;cancelled&gt;"), "{html}");
            assert!(html.contains("type: this") && !html.contains("<progress"), "{html}");
        }
        let waits = device_of(json!({ "name": "a", "bus_id": "1-1", "successor": "rack", "successor_left_ms": 1200 }));
        let html = moves(&none, &process, &waits, OWNER).into_string();
        assert!(html.contains("<bdi>rack</bdi> has 2 s to attach it"), "{html}");
    }

    #[test]
    fn numbers_of_a_swap_that_make_no_sense_are_drawn_without_a_panic() {
        for (number, time) in [(0, 0.0), (u64::MAX, f64::MAX), (1, -1.0), (7, f64::INFINITY)] {
            let html = swap(&SwapStatus {
                total_bytes: number,
                left_bytes: number / 2,
                bytes_per_s: number,
                round: u32::MAX,
                elapsed_s: time,
                quiet_ms: time,
                ..SwapStatus::default()
            });
            let html = html.into_string();
            assert!(html.contains("<progress") && !html.contains("NaN"), "{html}");
        }
    }

    #[test]
    fn hostile_texts_of_an_operation_add_no_element() {
        let evil = "<script>\"'\u{202e}";
        let status = with(json!([{
            "id": 1, "action": "observe", "on": { "pid": 7, "name": "a" }, "command": evil, "by": evil, "state": "failed",
            "begun": evil, "failure": { "attribute": "local", "message": evil },
        }]));
        let html = recordings(&status, &a_process(json!({ "pid": 7 })), &device_of(json!({ "name": "a" })), OWNER)
            .into_string();
        assert!(!html.contains("<script") && !html.contains('\u{202e}') && html.contains("&lt;script"), "{html}");
    }
}
