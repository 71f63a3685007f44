//! Rule `docstring`: a docstring says what a caller needs, or is left out.
//!
//! One or two words repeat the name, and *The same* leaves the reader to find out as what.

use super::tree::SourceTree;
use super::violation::Violation;

/// The fewest words that say something.
const WORDS_MIN: usize = 3;
/// How a docstring begins that says nothing by itself.
const EMPTY_BEGINNING: &str = "The same";

pub fn check(tree: &SourceTree) -> Vec<Violation> {
    let mut violations = Vec::new();
    for (path, text) in tree.iter().filter(|(path, _)| path.ends_with(".rs")) {
        let lines: Vec<Option<&str>> = text.lines().map(|line| line.trim_start().strip_prefix("///")).collect();
        let docstring = |at: usize| lines.get(at).copied().flatten();
        for at in 0..lines.len() {
            let Some(first) = docstring(at).filter(|_| at == 0 || docstring(at - 1).is_none()) else { continue };
            let is_one_line = docstring(at + 1).is_none();
            let words = first.split_whitespace().count();
            if is_one_line && words < WORDS_MIN {
                let advice = format!("'{}' says what the name says: meaning, unit, range, or nothing", first.trim());
                violations.push(Violation::new(path, at + 1, "docstring", advice));
            } else if first.trim_start().starts_with(EMPTY_BEGINNING) {
                violations.push(Violation::new(path, at + 1, "docstring", "the same as what? Say what it is"));
            }
        }
    }
    violations
}

#[cfg(test)]
mod tests {
    use crate::tidy::fixtures::{complaints, workspace_with};

    fn complaints_of(text: &str) -> Vec<String> {
        complaints(&workspace_with(&[("crates/wire/src/a.rs", text)]))
    }

    #[test]
    fn docstring_of_two_words_or_of_the_same_is_found() {
        let messages = complaints_of("/// Its length.\nfn a() {}\n/// The same for\n/// writes.\nfn b() {}\n");
        assert_eq!(messages.len(), 2, "{messages:#?}");
        assert!(messages[0].starts_with("crates/wire/src/a.rs:1: docstring: 'Its length.'"), "{}", messages[0]);
        assert!(messages[1].starts_with("crates/wire/src/a.rs:3: docstring: the same as what?"), "{}", messages[1]);
    }

    #[test]
    fn docstring_that_says_something_and_short_last_lines_are_fine() {
        let text = "/// The length in bytes, without the\n/// header.\nfn a() {}\n// Its length.\nfn b() {}\n";
        assert_eq!(complaints_of(text), Vec::<String>::new());
    }
}
