//! Output for people and for programs, in the form that `farbus` has.

use std::fmt;
use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;

use comfy_table::{Attribute as Style, Cell, ContentArrangement, Table, TableStyle};
use farbus_control::failure::{CommandFailure, FailureKind};
use serde_json::{Value, json};

/// Prints which party failed and how; with `as_json` the same as JSON on standard output. Returns the exit code; 2 is
/// clap's for usage errors.
pub fn report(failure: &CommandFailure, as_json: bool) -> ExitCode {
    match failure.attribute() {
        FailureKind::Local => eprintln!("farbus: {failure}"),
        other => eprintln!("farbus: {}: {failure}", other.as_str()),
    }
    if as_json && !failure.is_told() {
        print_json(&json!({ "failure": failure.report() }));
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
fn is_styled(stream: &impl IsTerminal) -> bool {
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
    let mut out = io::stdout().lock();
    // A reader that has closed the pipe needs no more.
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}

/// Prints JSON for programs.
pub fn print_json(value: &Value) {
    say(format_args!("{value:#}"));
}
