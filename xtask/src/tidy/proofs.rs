//! Rule `proof`: a row of the README, `docs/durability.md`, `docs/proofs.md` or `docs/security.md` in a column *proof*
//! names something, and that exists: a file, a folder, a test (`FILE::TEST`), a case of the rig, or a page (its link is
//! of another rule).

use super::source::{SourceFile, TokenKind};
use super::tree::SourceTree;
use super::violation::Violation;
use std::collections::BTreeSet;

const PAGES: [&str; 4] = ["README.md", "docs/durability.md", "docs/proofs.md", "docs/security.md"];
const CASES: &str = "rig/src/cases/";

pub fn check(tree: &SourceTree, sources: &[SourceFile]) -> Vec<Violation> {
    let cases = cases(sources);
    let mut violations = Vec::new();
    for page in PAGES {
        let Some(text) = tree.get(page) else { continue };
        let mut is_proof = false;
        for (at, line) in text.lines().enumerate() {
            let Some(cell) = last_cell(line) else {
                is_proof = false;
                continue;
            };
            if cell == "proof" || cell.starts_with("---") {
                is_proof |= cell == "proof";
                continue;
            }
            let mut proofs = cell.split('`').skip(1).step_by(2).peekable();
            let is_bare = is_proof && proofs.peek().is_none() && !cell.contains("](");
            let wrong = is_bare.then(|| "a row without a proof".to_owned());
            let found = proofs.filter(|_| is_proof).filter_map(|proof| missing(proof, tree, sources, &cases));
            violations.extend(wrong.into_iter().chain(found).map(|what| Violation::new(page, at + 1, "proof", what)));
        }
    }
    violations
}

/// What is missing of a proof.
fn missing(proof: &str, tree: &SourceTree, sources: &[SourceFile], cases: &BTreeSet<&str>) -> Option<String> {
    if let Some((file, test)) = proof.split_once("::") {
        let source = sources.iter().find(|source| source.path == file);
        let tests = source.into_iter().flat_map(|source| &source.functions).filter(|function| function.is_test);
        let has_it = tests.into_iter().any(|function| function.name == test);
        return (!has_it).then(|| format!("{file} has no test {test}"));
    }
    match proof.contains('/') {
        true => (!tree.has(proof)).then(|| format!("there is no {proof}")),
        false => (!cases.iter().any(|case| matches(proof, case))).then(|| format!("the rig has no case {proof}")),
    }
}

/// The last cell of a table's row: what proves the first.
fn last_cell(line: &str) -> Option<&str> {
    line.strip_prefix('|')?.trim_end().strip_suffix('|')?.rsplit('|').next().map(str::trim)
}

/// The names of the rig's cases: what the sources of the cases have behind `name:`.
fn cases(sources: &[SourceFile]) -> BTreeSet<&str> {
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
                     | a | `b/c` | rig: `far-*`, `near-*`; `crates/wire/src`, `crates/wire/src/gone.rs` |\n\
                     | d | `e` | said |\n\n| what | where |\n|---|---|\n| f | `g` |\n";
        let promises = "| promise | proof |\n|---|---|\n\
                        | a | `crates/wire/tests/lies.rs::lie_is_refused`, `crates/wire/tests/lies.rs::helper` |\n";
        let case = ("rig/src/cases/far.rs", "const A: Case = Case { name: \"far-audio\", steps: 3 };\n");
        let tests = "#[test]\nfn lie_is_refused() { assert!(helper()); }\nfn helper() -> bool { true }\n";
        let readme = "| what | proof |\n|---|---|\n| a | [results](docs/results.md) |\n| b | `gone/` |\n";
        let files = [
            ("README.md", readme),
            ("docs/proofs.md", table),
            ("docs/security.md", promises),
            case,
            ("crates/wire/tests/lies.rs", tests),
        ];
        let found: Vec<String> =
            complaints(&workspace_with(&files)).into_iter().filter(|line| line.contains(": proof: ")).collect();
        assert_eq!(
            found,
            [
                "README.md:4: proof: there is no gone/",
                "docs/proofs.md:3: proof: the rig has no case near-*",
                "docs/proofs.md:3: proof: there is no crates/wire/src/gone.rs",
                "docs/proofs.md:4: proof: a row without a proof",
                "docs/security.md:3: proof: crates/wire/tests/lies.rs has no test helper"
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
