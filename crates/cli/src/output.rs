//! Output for people: failures with their exit codes, tables, colour only on a terminal.

use std::fmt;
use std::io::{self, IsTerminal};
use std::process::ExitCode;
use std::time::Duration;

use comfy_table::{Attribute as Style, Cell, ContentArrangement, Table, TableStyle};
pub use farbus_control::failure::CommandFailure;
use farbus_control::failure::FailureKind;
use serde_json::Value;

/// Prints which party failed and how; with `as_json` the same as JSON on standard output. Returns the exit code; 2 is
/// clap's for usage errors.
pub fn report(failure: &CommandFailure, as_json: bool) -> ExitCode {
    match failure.attribute() {
        FailureKind::Local => eprintln!("farbus: {failure}"),
        other => eprintln!("farbus: {}: {failure}", other.as_str()),
    }
    if as_json && !failure.is_told() {
        // Standard output may be closed by now.
        let _ = print_json(&serde_json::json!({ "failure": failure.report() }));
    }
    ExitCode::from(failure.exit_code())
}

/// The least width that a terminal can have.
const COLUMNS_MIN: u16 = 40;

/// A table without lines; headings are bold where [`is_styled`].
pub fn table(headings: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(TableStyle::new()).set_content_arrangement(ContentArrangement::Dynamic);
    // A serial line is a terminal without a width: wrapping to that would put each letter on its own line.
    if table.width().is_some_and(|columns| columns < COLUMNS_MIN) {
        table.set_content_arrangement(ContentArrangement::Disabled);
    }
    let styled = is_styled(&io::stdout());
    table.set_header(headings.iter().map(|heading| {
        let cell = Cell::new(heading);
        if styled { cell.add_attribute(Style::Bold) } else { cell }
    }));
    table
}

/// Whether what is written to this stream may have colours and bold letters: it is a terminal, and its user did not set
/// `NO_COLOR` (<https://no-color.org>: any value but the empty one).
pub fn is_styled(stream: &impl IsTerminal) -> bool {
    stream.is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// Prints a table without the space that each line begins and ends with.
pub fn print_table(table: &Table) {
    for line in table.lines() {
        let line = line.trim_end();
        say(line.strip_prefix(' ').unwrap_or(line));
    }
}

/// Prints a line and flushes it: the reader of a pipe waits for it.
pub fn say(line: impl fmt::Display) {
    use std::io::Write;
    let mut out = io::stdout().lock();
    // A reader that has closed the pipe needs no more.
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}

/// A span for people: `3 seconds`.
pub fn format_span(span: Duration) -> String {
    indicatif::HumanDuration(span).to_string()
}

/// Reports as JSON, if asked, that `verb` was done to `device`.
///
/// # Errors
/// As [`print_json`].
pub fn print_done(is_asked: bool, verb: &str, device: &str) -> Result<(), CommandFailure> {
    if !is_asked {
        return Ok(());
    }
    print_json(&serde_json::json!({ "device": device, "done": verb }))
}

/// The state of a device in a status, and how long it has been in it if that is a problem, or how several may use it.
pub fn state_of(device: &Value) -> String {
    let state = device["state"].as_str().unwrap_or_default().to_owned();
    match (device["link_lost_s"].as_f64(), device["mode"].as_str()) {
        (Some(seconds), _) => format!("{state} {}", format_span(Duration::from_secs_f64(seconds))),
        _ if device["successor"].is_string() => "handed over".to_owned(),
        (None, Some(mode @ ("read" | "scratch"))) => format!("{state}, {mode}"),
        (None, _) if state == "available" && device["lease"].is_object() => "leased".to_owned(),
        (None, _) => state,
    }
}

/// Prints JSON for programs.
///
/// # Errors
/// Never for farbus's own types; an error of a closed pipe is ignored.
pub fn print_json(value: &impl serde::Serialize) -> Result<(), CommandFailure> {
    let text = serde_json::to_string_pretty(value).map_err(CommandFailure::local)?;
    say(text);
    Ok(())
}
