//! Rule `proof`: the files, folders and rig cases that `docs/proofs.md` names exist.

use super::source::{Source, TokenKind};
use super::tree::Tree;
use super::violation::Violation;
use std::collections::BTreeSet;

const PROOFS: &str = "docs/proofs.md";
const CASES: &str = "rig/src/cases/";

pub fn check(tree: &Tree, sources: &[Source]) -> Vec<Violation> {
    let Some(text) = tree.get(PROOFS) else { return Vec::new() };
    let cases = cases(sources);
    let mut violations = Vec::new();
    for (at, line) in text.lines().enumerate() {
        let Some(proof) = last_cell(line) else { continue };
        for word in proof.split('`').skip(1).step_by(2) {
            let advice = match word.contains('/') {
                true if !tree.has(word) => format!("there is no {word}"),
                false if !cases.iter().any(|case| matches(word, case)) => format!("the rig has no case {word}"),
                _ => continue,
            };
            violations.push(Violation::new(PROOFS, at + 1, "proof", advice));
        }
    }
    violations
}

/// The last cell of a table's row: what proves the first.
fn last_cell(line: &str) -> Option<&str> {
    line.strip_prefix('|')?.trim_end().strip_suffix('|')?.rsplit(" | ").next()
}

/// The names of the rig's cases: what the sources of the cases have behind `name:`.
fn cases(sources: &[Source]) -> BTreeSet<&str> {
    let mut names = BTreeSet::new();
    for source in sources.iter().filter(|source| source.path.starts_with(CASES)) {
        for [name, colon, value] in source.tokens.array_windows() {
            if name.kind == TokenKind::Word("name".to_owned())
                && matches!(colon.kind, TokenKind::Sign(':', _))
                && value.kind == TokenKind::Literal
            {
                names
                    .extend(source.texts.iter().filter(|text| text.line == value.line).map(|text| text.value.as_str()));
            }
        }
    }
    names
}

/// Whether `name` is what the pattern says, in which `*` stands for any text.
fn matches(pattern: &str, name: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == name,
        Some((start, rest)) => name
            .strip_prefix(start)
            .is_some_and(|left| left.char_indices().any(|(at, _)| matches(rest, &left[at..])) || matches(rest, "")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::fixtures::{complaints, workspace_with};

    #[test]
    fn proofs_that_are_not_there_are_found() {
        let table = "| works | command | proof |\n|---|---|---|\n\
                     | a | `b/c` | rig: `far-*`, `near-*`; `crates/wire/src`, `crates/wire/src/gone.rs` |\n";
        let case = ("rig/src/cases/far.rs", "const A: Case = Case { name: \"far-audio\", steps: 3 };\n");
        assert_eq!(
            complaints(&workspace_with(&[(PROOFS, table), case])),
            [
                "docs/proofs.md:3: proof: the rig has no case near-*",
                "docs/proofs.md:3: proof: there is no crates/wire/src/gone.rs"
            ]
        );
    }

    #[test]
    fn a_star_stands_for_any_text() {
        assert!(matches("far-*", "far-audio") && matches("*-stock", "audio-stock") && matches("a*c*", "abcd"));
        assert!(matches("far-*", "far-") && matches("x", "x"));
        assert!(!matches("far-*", "fa") && !matches("x", "xy") && !matches("*-stock", "stock"));
    }
}
