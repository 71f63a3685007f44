//! What a person sees: failures with their exit codes, tables, colour only where there is a terminal.

use std::fmt;
use std::io::{self, IsTerminal};
use std::process::ExitCode;

use comfy_table::{Attribute as Style, Cell, ContentArrangement, Table, TableStyle};

use crate::common::failure::Attribute;
pub use crate::common::failure::Failure;

/// Says what failed: whose trouble it is, and for programs (`as_json`) the same as JSON on standard output.
/// Returns the exit code; 2 is clap's for usage.
pub fn report(failure: &Failure, as_json: bool) -> ExitCode {
    match failure.attribute() {
        Attribute::Local => eprintln!("farbus: {failure}"),
        other => eprintln!("farbus: {}: {failure}", other.as_str()),
    }
    if as_json && !failure.is_told() {
        // It was printable a moment ago.
        let _ = print_json(&serde_json::json!({ "failure": failure.report() }));
    }
    ExitCode::from(failure.attribute().exit_code())
}

/// What a terminal has at least.
const COLUMNS_MIN: u16 = 40;

/// A table without lines; headings are bold on a terminal.
pub fn table(headings: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(TableStyle::new()).set_content_arrangement(ContentArrangement::Dynamic);
    // A serial line says that it is a terminal and has no width: wrapping to that would put each letter on its own
    // line.
    if table.width().is_some_and(|columns| columns < COLUMNS_MIN) {
        table.set_content_arrangement(ContentArrangement::Disabled);
    }
    let styled = io::stdout().is_terminal();
    table.set_header(headings.iter().map(|heading| {
        let cell = Cell::new(heading);
        if styled { cell.add_attribute(Style::Bold) } else { cell }
    }));
    table
}

/// Prints a table without the space before each line and those at its end.
pub fn print_table(table: &Table) {
    for line in table.lines() {
        let line = line.trim_end();
        say(line.strip_prefix(' ').unwrap_or(line));
    }
}

/// Says a line, at once: whoever reads it through a pipe waits for it.
pub fn say(line: impl fmt::Display) {
    use std::io::Write;
    let mut out = io::stdout().lock();
    // A reader that has gone has heard enough.
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}

/// Prints JSON for programs.
///
/// # Errors
/// Never for our own types; a broken pipe is the reader's choice.
pub fn print_json(value: &impl serde::Serialize) -> Result<(), Failure> {
    let text = serde_json::to_string_pretty(value).map_err(Failure::local)?;
    say(text);
    Ok(())
}
