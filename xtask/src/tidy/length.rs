//! Rule `length`: a file is one subject, a function is read at one look, and a crate is built again in little time.

use super::architecture::{ArchitectureRules, LengthLimits};
use super::source::SourceFile;
use super::violation::Violation;
use std::collections::BTreeMap;

pub fn check(architecture: &ArchitectureRules, sources: &[SourceFile]) -> Vec<Violation> {
    let LengthLimits { lines_max, function_lines_max, crate_lines_max } = architecture.files;
    let mut violations = files(lines_max, sources);
    violations.extend(functions(function_lines_max, sources));
    violations.extend(crates(crate_lines_max, sources));
    violations
}

/// Functions outside of tests.
fn functions(lines_max: usize, sources: &[SourceFile]) -> Vec<Violation> {
    let all = sources.iter().flat_map(|source| source.functions.iter().map(move |function| (source, function)));
    let product = all.filter(|(source, function)| !source.is_test_line(function.line));
    let long = product.filter(|(_, function)| *function.lines.end() > function.line + lines_max);
    long.map(|(source, function)| {
        let lines = function.lines.end() - function.line;
        let advice =
            format!("{} has {lines} lines, {lines_max} are allowed: which of its steps has a name?", function.name);
        Violation::new(&source.path, function.line, "length", advice)
    })
    .collect()
}

/// Crates below `crates/`.
fn crates(lines_max: usize, sources: &[SourceFile]) -> Vec<Violation> {
    let mut lines: BTreeMap<&str, usize> = BTreeMap::new();
    for source in sources.iter().filter(|source| !source.is_test_file()) {
        let within = source.path.strip_prefix("crates/").and_then(|path| path.split_once("/src/"));
        if let Some((name, _)) = within {
            *lines.entry(name).or_default() += source.lines_without_tests();
        }
    }
    let large = lines.into_iter().filter(|(_, lines)| *lines > lines_max);
    large
        .map(|(name, lines)| {
            let advice = format!("{lines} lines without tests, {lines_max} are allowed: which part is a crate?");
            Violation::new(format!("crates/{name}/src/lib.rs"), 1, "length", advice)
        })
        .collect()
}

fn files(lines_max: usize, sources: &[SourceFile]) -> Vec<Violation> {
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

        let messages = complaints(&workspace_with(&[("crates/wire/src/a.rs", &format!("{twenty}fn g() {{}}\n"))]));
        assert_eq!(messages.len(), 1, "{messages:#?}");
        assert!(messages[0].starts_with("crates/wire/src/a.rs:21: length: 21 lines"), "{}", messages[0]);
    }

    #[test]
    fn a_long_function_and_a_large_crate_are_told_so() {
        let long = |lines: usize| format!("fn f() {{\n{}}}\n", "    g();\n".repeat(lines - 1));
        let (right, wrong) = (long(12), long(13));
        let tests = format!("#[cfg(test)]\nmod tests {{\n{wrong}}}\n");
        assert_eq!(complaints(&workspace_with(&[("crates/wire/src/a.rs", &(right.clone() + &tests))])), [""; 0]);
        let printed = complaints(&workspace_with(&[("crates/wire/src/a.rs", &wrong)]));
        assert_eq!(printed.len(), 1, "{printed:#?}");
        assert!(printed[0].starts_with("crates/wire/src/a.rs:1: length: f has 13 lines"), "{}", printed[0]);

        let twelve = "fn f() {}\n".repeat(12);
        let files = ["a", "b", "c"].map(|name| (format!("crates/wire/src/{name}.rs"), twelve.as_str()));
        let files: Vec<_> = files.iter().map(|(path, text)| (path.as_str(), *text)).collect();
        let printed = complaints(&workspace_with(&files));
        assert_eq!(printed.len(), 1, "{printed:#?}");
        assert!(printed[0].starts_with("crates/wire/src/lib.rs:1: length: 40 lines"), "{}", printed[0]);
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
