//! How plans are laid out: columns and sentences.

use std::fmt::Write;

/// Numbers under heads of two lines, each column against its right edge, two spaces apart.
pub fn write_columns(text: &mut String, heads: &[[&str; 2]], rows: &[Vec<String>]) {
    let width_of = |at: usize| {
        let cells = rows.iter().map(|row| row[at].as_str()).chain(heads[at]);
        cells.map(str::len).max().unwrap_or(0)
    };
    let widths: Vec<_> = (0..heads.len()).map(width_of).collect();
    let mut line = |cells: &mut dyn Iterator<Item = &str>| {
        let cells: String = cells.zip(&widths).map(|(cell, width)| format!("  {cell:>width$}")).collect();
        let _ = writeln!(text, "{}", cells.trim_end());
    };
    for half in 0..2 {
        line(&mut heads.iter().map(|head| head[half]));
    }
    for row in rows {
        line(&mut row.iter().map(String::as_str));
    }
}

/// The width of a line of text, as in the help.
pub const LINE_COLUMNS: usize = 100;

/// Wraps a sentence at [`LINE_COLUMNS`]; further lines are indented by the width of `lead`.
pub fn write_wrapped(text: &mut String, lead: &str, sentence: &str) {
    let mut line = lead.to_owned();
    let mut is_fresh = true;
    for word in sentence.split_whitespace() {
        if !is_fresh && line.len() + 1 + word.len() > LINE_COLUMNS {
            let _ = writeln!(text, "{line}");
            line = " ".repeat(lead.len());
            is_fresh = true;
        }
        if !is_fresh {
            line.push(' ');
        }
        line.push_str(word);
        is_fresh = false;
    }
    let _ = writeln!(text, "{line}");
}

/// `12.500` for 12500: a value in thousandths of a unit.
pub fn thousandths(value: u64) -> String {
    format!("{}.{:03}", value / 1000, value % 1000)
}

/// Microseconds with three decimals, rounded up because bus times are upper bounds.
pub fn us_from_ps(ps: u64) -> String {
    thousandths(ps.div_ceil(1000))
}

/// `45.43%` of the whole, rounded to nearest.
pub fn percent(part: u64, whole: u64) -> String {
    let whole = u128::from(whole.max(1));
    let hundredths = (u128::from(part) * 10_000 + whole / 2) / whole;
    format!("{}.{:02}%", hundredths / 100, hundredths % 100)
}
