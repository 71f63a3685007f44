//! Rule `message`: what `farbus explain` quotes is what farbus prints.
//!
//! A quoted message may be put together from several texts of the sources, with values between them that the page
//! shows as `…` or by an example. So it is cut into pieces: each is the longest run of words that some text has. A
//! message is known if at least half of its words lie in pieces of [`PIECE_MIN`] words or more. What the operating
//! system or a library says is listed in [`FOREIGN`].

use super::source::SourceFile;
use super::tree::SourceTree;
use super::violation::Violation;

const PAGE: &str = "crates/cli/src/explain/messages.md";
/// Fewer words than this in a row occur in any text.
const PIECE_MIN: usize = 3;
/// Words of Linux, of its C library, and of the libraries that read the command line and the configuration.
const FOREIGN: &[&str] = &[
    "Connection refused",
    "Connection timed out",
    "No route to host",
    "No such file or directory",
    "Permission denied",
    "Too many open files",
    "failed to lookup address information",
    "fsync",
    "unknown field",
];

pub fn check(tree: &SourceTree, sources: &[SourceFile]) -> Vec<Violation> {
    let Some(page) = tree.get(PAGE) else { return Vec::new() };
    let texts = texts(sources);
    let mut violations = Vec::new();
    for (at, line) in page.lines().enumerate() {
        for message in quoted(line) {
            if !message.split('…').all(|part| is_known(part, &texts)) {
                let advice = format!("no source says '{message}': quote what farbus prints now");
                violations.push(Violation::new(PAGE, at + 1, "message", advice));
            }
        }
    }
    violations
}

/// The messages of a table's row: what its first cell has between backticks.
fn quoted(line: &str) -> Vec<String> {
    let Some(row) = line.strip_prefix('|').filter(|row| !row.starts_with('-')) else { return Vec::new() };
    let row = row.replace("\\|", "\u{1}");
    let first = row.split('|').next().unwrap_or_default();
    first.split('`').skip(1).step_by(2).map(|message| message.replace('\u{1}', "|")).collect()
}

/// What the product and its benchmarks may print: their texts outside tests, a line each, values left out.
fn texts(sources: &[SourceFile]) -> String {
    let speaks = |source: &&SourceFile| source.path.starts_with("crates/") || source.path.starts_with("bench/");
    let mut all = String::from("\n");
    for source in sources.iter().filter(speaks) {
        for text in source.texts.iter().filter(|text| !source.is_test_line(text.line)) {
            all += &without_values(&text.value);
            all.push('\n');
        }
    }
    all
}

/// A text with one space between words, and `…` in place of each `{value}`.
fn without_values(text: &str) -> String {
    let mut shown = String::new();
    let mut signs = text.chars().peekable();
    while let Some(sign) = signs.next() {
        match sign {
            '{' | '}' if signs.peek() == Some(&sign) => {
                signs.next();
                shown.push(sign);
            }
            '{' => {
                signs.by_ref().find(|&sign| sign == '}');
                shown.push('…');
            }
            sign => shown.push(sign),
        }
    }
    shown.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn is_known(part: &str, texts: &str) -> bool {
    let is_mark = |sign: char| sign.is_whitespace() || ":;,.'()".contains(sign);
    let part = part.trim_matches(is_mark);
    let words: Vec<&str> = part.split_whitespace().collect();
    if part.len() < 4 || texts.contains(part) || FOREIGN.iter().any(|foreign| part.contains(foreign)) {
        return true;
    }
    let (mut at, mut known) = (0, 0);
    while at < words.len() {
        let is_said = |length: &usize| texts.contains(&words[at..at + length].join(" "));
        let length = (1..=words.len() - at).take_while(is_said).last().unwrap_or(0);
        known += if length >= PIECE_MIN { length } else { 0 };
        at += if length >= PIECE_MIN { length } else { 1 };
    }
    2 * known >= words.len()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::fixtures::{complaints, workspace_with};

    const SOURCE: (&str, &str) = (
        "crates/wire/src/a.rs",
        "fn a() {\n    b(\"cannot open {path}: there is \\\n        no such file\", \"{kind} needs a path: {kind}:PATH\");\n\
         }\n#[cfg(test)]\nmod tests { const OLD: &str = \"it went to the moon and stayed\"; }\n",
    );

    fn said_of(message: &str) -> Vec<String> {
        let page = format!("| message | what to type |\n|---|---|\n| {message} | nothing `else here` |\n");
        complaints(&workspace_with(&[SOURCE, (PAGE, &page)]))
    }

    #[test]
    fn what_farbus_prints_is_known() {
        for message in
            ["`cannot open …: there is no such file`", "`disk needs a path: disk:PATH`", "`…: Permission denied`"]
        {
            assert_eq!(said_of(message), [""; 0]);
        }
    }

    #[test]
    fn what_nobody_prints_is_found_also_where_a_test_says_it() {
        for message in ["`cannot find …: there was some file`", "`it went to the moon and stayed`"] {
            let printed = said_of(message);
            assert_eq!(printed.len(), 1, "{printed:#?}");
            assert!(printed[0].starts_with("crates/cli/src/explain/messages.md:3: message: "), "{}", printed[0]);
        }
    }
}
