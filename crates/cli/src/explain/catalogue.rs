//! The messages and their explanations: the tables of `messages.md`, which is part of the program.

use serde::Serialize;

const MESSAGES: &str = include_str!("messages.md");

/// What is known of one message, or of several that are explained together.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Explanation {
    /// The subject: a verb of farbus, or a part of it.
    pub subject: String,
    /// What is printed; `…` stands for names, numbers and addresses.
    pub messages: Vec<String>,
    /// Where the message stands, if not on standard error: `(log)`. Empty if there is nothing to say.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub printed_in: String,
    /// What it means. Empty if the message says it.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub meaning: String,
    /// The exit code of the command that prints it, where it depends on the message. Empty elsewhere.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub exit_code: String,
    /// What to type or to do. Empty if there is nothing to do.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub next: String,
}

/// What the columns of a table are about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TableColumn {
    Message,
    Meaning,
    ExitCode,
    Next,
}

/// All explanations, in the order of `messages.md`.
pub fn all() -> Vec<Explanation> {
    let (mut section, mut subject, mut columns) = (String::new(), String::new(), Vec::new());
    let mut found = Vec::new();
    for line in MESSAGES.lines() {
        if let Some(title) = line.strip_prefix("### ") {
            subject = format!("{section}, {}", plain(title));
        } else if let Some(title) = line.strip_prefix("## ") {
            section = plain(title);
            subject.clone_from(&section);
        } else if let Some(cells) = cells_of(line).filter(|_| !line.starts_with("|---")) {
            match columns_of(&cells) {
                Some(of_table) => columns = of_table,
                None => found.push(explanation(&subject, &columns, &cells)),
            }
        }
    }
    found
}

fn explanation(subject: &str, columns: &[TableColumn], cells: &[String]) -> Explanation {
    let cell = |wanted: TableColumn| {
        let at = columns.iter().position(|column| *column == wanted);
        at.and_then(|at| cells.get(at)).map(String::as_str).unwrap_or_default()
    };
    let message = cell(TableColumn::Message);
    let quoted = message.split('`').skip(1).step_by(2).map(str::to_owned).collect::<Vec<_>>();
    let between = message.split('`').step_by(2).collect::<String>();
    let printed_in = between.trim_matches([',', ' ']).to_owned();
    Explanation {
        subject: subject.to_owned(),
        // A few are described and not quoted.
        messages: if quoted.is_empty() { vec![plain(message)] } else { quoted },
        printed_in: if printed_in.starts_with('(') { printed_in } else { String::new() },
        meaning: plain(cell(TableColumn::Meaning)),
        exit_code: plain(cell(TableColumn::ExitCode)),
        next: plain(cell(TableColumn::Next)),
    }
}

/// The columns, if these cells are the head of a table.
fn columns_of(cells: &[String]) -> Option<Vec<TableColumn>> {
    let column = |cell: &String| match cell.as_str() {
        "message" | "line" => Some(TableColumn::Message),
        "what it means" => Some(TableColumn::Meaning),
        "exit code" => Some(TableColumn::ExitCode),
        "what to type" | "what to do" | "what to write" => Some(TableColumn::Next),
        _ => None,
    };
    cells.iter().map(column).collect()
}

/// The cells of a table's row, without the space around them; `\|` is a bar inside a cell.
fn cells_of(line: &str) -> Option<Vec<String>> {
    let row = line.strip_prefix('|')?.trim_end().strip_suffix('|')?.replace("\\|", "\u{1}");
    Some(row.split('|').map(|cell| cell.trim().replace('\u{1}', "|")).collect())
}

/// Text for a terminal: without the marks for bold and slanted letters; what is quoted stands between quotation marks.
fn plain(text: &str) -> String {
    text.split('`')
        .enumerate()
        .map(|(at, part)| match at % 2 {
            0 => part.replace('*', ""),
            _ if part.contains('\'') => part.to_owned(),
            _ => format!("'{part}'"),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_of_the_tables_is_an_explanation_with_a_message_and_something_to_say() {
        let rows = MESSAGES.lines().filter(|line| line.starts_with("| ")).count();
        let heads = MESSAGES.lines().filter(|line| line.starts_with("|---")).count();
        let all = all();
        assert_eq!(all.len(), rows - heads);
        assert!(all.len() > 500, "{}", all.len());
        for explanation in &all {
            assert!(explanation.messages.iter().all(|message| !message.trim().is_empty()), "{explanation:?}");
            assert!(!explanation.subject.is_empty(), "{explanation:?}");
            let shown = format!("{}{}", explanation.meaning, explanation.next);
            assert!(!shown.contains(['`', '\u{1}']) && !shown.contains("]("), "{explanation:?}");
        }
    }

    #[test]
    fn quoted_messages_bars_and_columns_are_read() {
        let columns = columns_of(&cells_of("| message | exit code | what it means | what to type |").unwrap()).unwrap();
        let row = cells_of("| `a …: b`, `c` (log) | 4 | It **went**. | `farbus x a\\|b` |").unwrap();
        let read = explanation("Share", &columns, &row);
        assert_eq!(read.messages, ["a …: b", "c"]);
        assert_eq!(read.printed_in, "(log)");
        assert_eq!((read.exit_code.as_str(), read.meaning.as_str()), ("4", "It went."));
        assert_eq!(read.next, "'farbus x a|b'");
        assert_eq!(columns_of(&["one of its own".to_owned()]), None);
    }
}
