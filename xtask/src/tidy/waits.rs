//! Rule `wait`: a test of the product's crates waits for an event. Where it lets time pass all the same, the comment
//! above says `waits:` and why: what it waits for between two looks, or why its result does not depend on how long that
//! is.

use super::tree::SourceTree;
use super::violation::Violation;
use std::collections::BTreeMap;

/// Tests whose processes and sockets depend on time.
const TESTS: [&str; 4] =
    ["crates/farbus/tests/", "crates/pipe/tests/", "crates/cli/tests/", "crates/conform-cli/tests/"];
/// A call that lets time pass.
const CALL: &str = "::sleep(";
/// What begins the reason.
const MARK: &str = "// waits: ";

pub fn check(tree: &SourceTree) -> Vec<Violation> {
    let without = all(tree).into_iter().filter(|wait| wait.reason.is_none());
    let advice = "a wait by time: wait for an event, or say why not in a comment above: '// waits: REASON'";
    without.map(|wait| Violation::new(wait.path, wait.line, "wait", advice.to_owned())).collect()
}

/// One reason a line, and where it holds: files, and how often in each.
pub fn table(tree: &SourceTree) -> String {
    let mut by_reason: BTreeMap<&str, BTreeMap<&str, usize>> = BTreeMap::new();
    for wait in all(tree) {
        let reason = wait.reason.unwrap_or("without a reason");
        let file = TESTS.iter().find_map(|tests| wait.path.strip_prefix(tests)).unwrap_or(wait.path);
        *by_reason.entry(reason).or_default().entry(file).or_default() += 1;
    }
    let mut rows: Vec<_> = by_reason.into_iter().collect();
    rows.sort_by_key(|(_, files)| std::cmp::Reverse(files.values().sum::<usize>()));
    let row = |(reason, files): (&str, BTreeMap<&str, usize>)| {
        let count: usize = files.values().sum();
        let files: Vec<_> = files.into_iter().map(|(file, count)| format!("{file} {count}")).collect();
        format!("  {count:>3}  {reason}\n       {}\n", files.join(", "))
    };
    rows.into_iter().map(row).collect()
}

struct TestWait<'a> {
    path: &'a str,
    line: usize,
    reason: Option<&'a str>,
}

fn all(tree: &SourceTree) -> Vec<TestWait<'_>> {
    let mut waits = Vec::new();
    for (path, text) in
        tree.iter().filter(|(path, _)| TESTS.iter().any(|tests| path.starts_with(tests)) && path.ends_with(".rs"))
    {
        let lines: Vec<&str> = text.lines().collect();
        for (at, line) in lines.iter().enumerate() {
            if line.trim_start().starts_with("//") || !line.contains(CALL) {
                continue;
            }
            let above =
                lines[..at].iter().rev().map(|line| line.trim_start()).take_while(|line| line.starts_with("//"));
            let reason = above.filter_map(|line| line.strip_prefix(MARK)).next();
            waits.push(TestWait { path, line: at + 1, reason });
        }
    }
    waits
}

#[cfg(test)]
mod tests {
    use super::table;
    use crate::tidy::fixtures::{complaints, workspace_with};

    const WITH: &str =
        "fn f() {\n    // waits: between two looks for an event\n    // (more of it)\n    thread::sleep(A);\n}\n";
    const WITHOUT: &str = "// thread::sleep(A) would do\nfn f() {\n    // A comment.\n    std::thread::sleep(A);\n}\n";

    #[test]
    fn a_wait_by_time_has_a_reason_above_it() {
        let messages = complaints(&workspace_with(&[
            ("crates/cli/tests/command/a.rs", WITH),
            ("crates/farbus/tests/b.rs", WITHOUT),
            ("crates/wire/tests/c.rs", WITHOUT),
        ]));
        let printed: Vec<_> = messages.iter().filter(|printed| printed.contains(": wait: ")).collect();
        assert_eq!(printed.len(), 1, "{printed:#?}");
        assert!(printed[0].starts_with("crates/farbus/tests/b.rs:4: wait: a wait by time"), "{}", printed[0]);
    }

    #[test]
    fn the_table_has_a_row_for_each_reason() {
        let files = [("crates/cli/tests/command/a.rs", WITH), ("crates/farbus/tests/b.rs", WITHOUT)];
        let twice = WITH.repeat(2);
        let files = [files[0], files[1], ("crates/farbus/tests/d.rs", twice.as_str())];
        let message = table(&workspace_with(&files));
        let rows = "    3  between two looks for an event\n       command/a.rs 1, d.rs 2\n    1  without a reason\n       b.rs 1\n";
        assert_eq!(message, rows);
    }
}
