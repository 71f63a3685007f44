//! Rule `length`: a file is one subject.

use super::architecture::Architecture;
use super::source::Source;
use super::violation::Violation;

pub fn check(architecture: &Architecture, sources: &[Source]) -> Vec<Violation> {
    let lines_max = architecture.files.lines_max;
    let long = sources.iter().filter(|source| !source.is_test_file() && source.lines_without_tests() > lines_max);
    long.map(|source| {
        let advice = format!(
            "{} lines without its tests, {lines_max} are allowed: which module is missing?",
            source.lines_without_tests()
        );
        Violation::new(&source.path, lines_max + 1, "length", advice)
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use crate::tidy::fixtures::{complaints, workspace_with};

    #[test]
    fn a_long_file_is_told_so_and_tests_are_not_counted() {
        let twenty = "fn f() {}\n".repeat(20);
        let tests = format!("{twenty}#[cfg(test)]\nmod tests {{\n{twenty}}}\n");
        assert_eq!(complaints(&workspace_with(&[("crates/wire/src/a.rs", &tests)])), [""; 0]);

        let said = complaints(&workspace_with(&[("crates/wire/src/a.rs", &format!("{twenty}fn g() {{}}\n"))]));
        assert_eq!(said.len(), 1, "{said:#?}");
        assert!(said[0].starts_with("crates/wire/src/a.rs:21: length: 21 lines"), "{}", said[0]);
    }

    #[test]
    fn a_file_of_tests_may_be_long() {
        let long = "fn f() {}\n".repeat(50);
        let tree = workspace_with(&[
            ("crates/wire/tests/a.rs", &long),
            ("crates/wire/src/a.rs", "#[cfg(test)]\nmod tests;\n"),
            ("crates/wire/src/a/tests.rs", &long),
        ]);
        assert_eq!(complaints(&tree), [""; 0]);
    }
}
