//! Rules `retired` and `wide`: names that the project has given up, also in comments, and comments that do not fit the
//! page.

use super::architecture::ArchitectureRules;
use super::source::{SourceFile, TokenKind};
use super::tree::SourceTree;
use super::violation::Violation;

/// Columns of a line that is a comment.
const COLUMNS_MAX: usize = 120;

/// Retired words in identifiers and in names of files. Words in strings are English, or stand on the wire.
pub fn check(architecture: &ArchitectureRules, sources: &[SourceFile]) -> Vec<Violation> {
    let mut violations = Vec::new();
    for source in sources {
        let file = source.path.rsplit('/').next().unwrap_or_default().trim_end_matches(".rs");
        let names = source.tokens.iter().filter_map(|token| match &token.kind {
            TokenKind::Word(name) => Some((token.line, name.as_str())),
            _ => None,
        });
        for (line, name) in std::iter::once((1, file)).chain(names) {
            if let Some((retired, instead)) = architecture.retired_in(name) {
                let advice = format!("{name}: '{retired}' is retired (docs/glossary.md): {instead}");
                violations.push(Violation::new(&source.path, line, "retired", advice));
            }
        }
    }
    violations
}

/// Retired words in comments that are lines of their own. Between backticks stand names, also those on the wire.
pub fn check_comments(architecture: &ArchitectureRules, tree: &SourceTree) -> Vec<Violation> {
    let mut violations = Vec::new();
    for (path, text) in tree.iter().filter(|(path, _)| path.ends_with(".rs")) {
        for (at, line) in text.lines().enumerate() {
            let Some(comment) = line.trim_start().strip_prefix("//") else { continue };
            let prose: String = comment.split('`').step_by(2).collect();
            let words = prose.split(|sign: char| !sign.is_alphabetic()).map(str::to_lowercase);
            for word in words {
                if let Some(instead) = architecture.retired.words.get(&word) {
                    let advice = format!("'{word}' is retired in comments, too (docs/glossary.md): {instead}");
                    violations.push(Violation::new(path, at + 1, "retired", advice));
                }
            }
        }
    }
    violations
}

/// Comments wider than a page; tables, links and examples cannot be broken.
pub fn check_width(tree: &SourceTree) -> Vec<Violation> {
    let mut violations = Vec::new();
    for (path, text) in tree.iter().filter(|(path, _)| path.ends_with(".rs")) {
        let mut is_example = false;
        for (at, line) in text.lines().enumerate() {
            let columns = line.chars().count();
            let Some(comment) = line.trim_start().strip_prefix("//") else { continue };
            let comment = comment.trim_start_matches(['/', '!']).trim_start();
            is_example ^= comment.starts_with("```");
            let is_whole = is_example || comment.starts_with('|') || comment.starts_with('[') || !comment.contains(' ');
            if columns > COLUMNS_MAX && !is_whole {
                let advice = format!("a comment of {columns} columns, {COLUMNS_MAX} are allowed");
                violations.push(Violation::new(path, at + 1, "wide", advice));
            }
        }
    }
    violations
}

#[cfg(test)]
mod tests {
    use crate::tidy::architecture::words_of;
    use crate::tidy::fixtures::{complaints, workspace_with};

    #[test]
    fn identifiers_are_split_alike_in_each_style() {
        for name in ["HeirOf", "heir_of", "HEIR_OF", "_heir_of"] {
            assert_eq!(words_of(name), ["heir", "of"], "{name}");
        }
        assert_eq!(words_of("their"), ["their"]);
    }

    #[test]
    fn retired_word_is_found_in_comment_as_prose_alone() {
        let text = "// The heir of a device.\n/// On the wire it is `heir`.\nfn their() {}\n";
        let messages = complaints(&workspace_with(&[("crates/wire/src/a.rs", text)]));
        assert_eq!(messages.len(), 1, "{messages:#?}");
        assert!(
            messages[0].starts_with("crates/wire/src/a.rs:1: retired: 'heir' is retired in comments"),
            "{}",
            messages[0]
        );
    }

    #[test]
    fn retired_word_is_found_in_identifier_but_not_in_string() {
        let text = "fn has_heir() -> &'static str {\n    \"heir\"\n}\nfn their() {}\n";
        let messages = complaints(&workspace_with(&[("crates/wire/src/a.rs", text)]));
        assert_eq!(messages.len(), 1, "{messages:#?}");
        assert!(
            messages[0].starts_with("crates/wire/src/a.rs:1: retired: has_heir: 'heir' is retired"),
            "{}",
            messages[0]
        );
        assert!(messages[0].ends_with("successor"), "{}", messages[0]);
    }

    #[test]
    fn retired_name_is_found_only_whole_and_in_names_of_files() {
        let messages = complaints(&workspace_with(&[("crates/wire/src/a.rs", "struct Desk;\nstruct DeskLamp;\n")]));
        assert_eq!(messages.len(), 1, "{messages:#?}");
        assert!(messages[0].starts_with("crates/wire/src/a.rs:1: retired: Desk: "), "{}", messages[0]);
        let messages = complaints(&workspace_with(&[("crates/wire/src/heirs.rs", "fn f() {}\n")]));
        assert!(messages[0].starts_with("crates/wire/src/heirs.rs:1: retired: heirs: "), "{messages:#?}");
    }

    #[test]
    fn wide_comment_is_found_and_a_table_or_an_example_is_not() {
        let long = "ab ".repeat(40);
        let wide = format!("/// {long}\n/// | {long} |\n/// ```text\n/// {long}\n/// ```\nfn f() {{}}\n");
        let printed = complaints(&workspace_with(&[("crates/wire/src/a.rs", &wide)]));
        assert_eq!(printed.len(), 1, "{printed:#?}");
        assert!(printed[0].starts_with("crates/wire/src/a.rs:1: wide: "), "{}", printed[0]);
    }
}
