//! Rule `no-assert`: a test must be able to fail.
//!
//! A test can if something in it asserts, expects, matches or panics, or if it calls a function of the same file that
//! does. Helpers in other files count by their names (`assert_…`, `expect_…`). A mere `?` or `unwrap` does not count:
//! it says that something worked, not what came of it.

use super::source::{SourceFile, SourceFunction, TokenKind};
use super::violation::Violation;
use std::collections::BTreeSet;

/// Parts of words that make a test fail.
const FAILING: [&str; 5] = ["assert", "expect", "panic", "matches", "unreachable"];

pub fn check(sources: &[SourceFile]) -> Vec<Violation> {
    let mut violations = Vec::new();
    for source in sources {
        let failing = failing_functions(source);
        for function in source.functions.iter().filter(|function| function.is_test && !function.may_panic_to_pass) {
            let can_fail = fails_itself(source, function)
                || words(source, function).any(|word| word != function.name && failing.contains(word));
            if !can_fail {
                let advice = format!("test {} asserts nothing: say what must hold", function.name);
                violations.push(Violation::new(&source.path, function.line, "no-assert", advice));
            }
        }
    }
    violations
}

/// Functions of the file that can fail, or call one that can.
fn failing_functions(source: &SourceFile) -> BTreeSet<&str> {
    let mut failing = BTreeSet::new();
    loop {
        let before = failing.len();
        for function in &source.functions {
            if fails_itself(source, function) || words(source, function).any(|word| failing.contains(word)) {
                failing.insert(function.name.as_str());
            }
        }
        if failing.len() == before {
            return failing;
        }
    }
}

fn fails_itself(source: &SourceFile, function: &SourceFunction) -> bool {
    words(source, function).any(|word| FAILING.iter().any(|part| word.contains(part)))
}

fn words<'a>(source: &'a SourceFile, function: &'a SourceFunction) -> impl Iterator<Item = &'a str> {
    source.tokens.iter().filter(|token| function.lines.contains(&token.line)).filter_map(|token| match &token.kind {
        TokenKind::Word(word) if *word != function.name => Some(word.as_str()),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use crate::tidy::fixtures::{complaints, workspace_with};

    fn said_of(text: &str) -> Vec<String> {
        complaints(&workspace_with(&[("crates/wire/tests/a.rs", text)]))
    }

    #[test]
    fn a_test_that_cannot_fail_is_found() {
        let messages = said_of("#[test]\nfn looks_busy() {\n    let x = 1 + 1;\n    drop(x);\n}\n");
        assert_eq!(messages.len(), 1, "{messages:#?}");
        assert!(messages[0].starts_with("crates/wire/tests/a.rs:2: no-assert: test looks_busy"), "{}", messages[0]);
    }

    #[test]
    fn propagating_or_unwrapping_is_not_asserting() {
        assert_eq!(said_of("#[test]\nfn t() -> R {\n    f()?;\n    Ok(())\n}\n").len(), 1);
        assert_eq!(said_of("#[test]\nfn t() {\n    f().unwrap();\n}\n").len(), 1);
    }

    #[test]
    fn its_own_name_does_not_count() {
        assert_eq!(said_of("#[test]\nfn asserts_nothing() {\n    f();\n}\n").len(), 1);
    }

    #[test]
    fn every_way_to_fail_counts() {
        for body in [
            "assert_eq!(1, 1);",
            "f().expect_err(\"x\");",
            "let Some(_) = f() else { panic!() };",
            "prop_assert!(true);",
            "check();",
        ] {
            let text = format!(
                "#[test]\nfn t() {{\n    {body}\n}}\nfn check() {{\n    deeper();\n}}\nfn deeper() {{\n    assert!(true);\n}}\n"
            );
            assert_eq!(said_of(&text), [""; 0], "{body}");
        }
        assert_eq!(said_of("#[test]\n#[should_panic(expected = \"x\")]\nfn t() {\n    f();\n}\n"), [""; 0]);
    }
}
