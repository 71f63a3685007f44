//! Rules `link` and `summary`: links between documents lead somewhere, and mdBook can follow those of the book.
//!
//! mdBook makes a page of what `docs/SUMMARY.md` lists and of nothing else. So each document below `docs` is listed
//! there, and none of them links to a file above `docs`.

use super::tree::SourceTree;
use super::violation::Violation;
use std::collections::{BTreeMap, BTreeSet};

const SUMMARY: &str = "docs/SUMMARY.md";
/// mdBook's settings: where they are, a summary has to be.
const SETTINGS: &str = "docs/book.toml";
const BOOK: &str = "docs/";

pub fn check(tree: &SourceTree) -> Vec<Violation> {
    let documents: BTreeMap<&str, LinkedDocument<'_>> = tree
        .iter()
        .filter(|(path, _)| path.ends_with(".md"))
        .map(|(path, text)| (path, LinkedDocument::read(text)))
        .collect();
    let mut violations = Vec::new();
    for (path, document) in &documents {
        for link in &document.links {
            if let Some(advice) = trouble(tree, &documents, path, link.to) {
                violations.push(Violation::new(*path, link.line, "link", advice));
            }
        }
    }
    if tree.get(SETTINGS).is_some() {
        violations.extend(check_summary(&documents));
    }
    violations
}

/// What is wrong with a link from the document at `from`.
fn trouble(tree: &SourceTree, documents: &BTreeMap<&str, LinkedDocument<'_>>, from: &str, to: &str) -> Option<String> {
    if to.contains("://") || to.starts_with("mailto:") {
        return None;
    }
    let (file, anchor) = to.split_once('#').unwrap_or((to, ""));
    let Some(target) = resolve(from, file) else { return Some(format!("{to} lies outside the project")) };
    if !tree.has(&target) {
        return Some(format!("there is no {target}"));
    }
    if from.starts_with(BOOK) && !target.starts_with(BOOK) {
        return Some(format!("{target} is no page of the book: name the file in words"));
    }
    let document = documents.get(target.as_str())?;
    (!anchor.is_empty() && !document.anchors.contains(anchor)).then(|| format!("{target} has no heading #{anchor}"))
}

/// The path from the workspace's root of what `file` names in the document at `from`; `None` above the root.
fn resolve(from: &str, file: &str) -> Option<String> {
    if file.is_empty() {
        return Some(from.to_owned());
    }
    let mut parts: Vec<&str> = from.split('/').collect();
    parts.pop();
    for part in file.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop()?;
            }
            part => parts.push(part),
        }
    }
    Some(parts.join("/"))
}

fn check_summary(documents: &BTreeMap<&str, LinkedDocument<'_>>) -> Vec<Violation> {
    let Some(summary) = documents.get(SUMMARY) else {
        return vec![Violation::new(SUMMARY, 1, "summary", "mdBook has settings and no summary: list the pages here")];
    };
    let mut listed = BTreeSet::new();
    let mut violations = Vec::new();
    for link in &summary.links {
        if let Some(page) = resolve(SUMMARY, link.to)
            && !listed.insert(page)
        {
            violations.push(Violation::new(SUMMARY, link.line, "summary", format!("{} is listed twice", link.to)));
        }
    }
    let pages = documents.keys().filter(|path| path.starts_with(BOOK) && **path != SUMMARY);
    violations.extend(pages.filter(|path| !listed.contains(**path)).map(|path| {
        Violation::new(*path, 1, "summary", format!("{SUMMARY} does not list it, so mdBook makes no page of it"))
    }));
    violations
}

#[derive(Debug, Default)]
struct LinkedDocument<'a> {
    links: Vec<DocumentLink<'a>>,
    anchors: BTreeSet<String>,
}

#[derive(Debug)]
struct DocumentLink<'a> {
    line: usize,
    to: &'a str,
}

impl<'a> LinkedDocument<'a> {
    fn read(text: &'a str) -> Self {
        let mut document = Self::default();
        let (mut is_fenced, mut seen) = (false, BTreeMap::<String, usize>::new());
        for (at, line) in text.lines().enumerate() {
            if line.trim_start().starts_with("```") {
                is_fenced = !is_fenced;
            }
            if is_fenced || line.starts_with("    ") {
                continue;
            }
            if line.starts_with('#') {
                let name = anchor(line.trim_start_matches('#').trim());
                let count = seen.entry(name.clone()).or_default();
                document.anchors.insert(if *count == 0 { name.clone() } else { format!("{name}-{count}") });
                *count += 1;
            }
            document.links.extend(links(line).map(|to| DocumentLink { line: at + 1, to }));
        }
        document
    }
}

/// Where the links of a line lead. What stands between backticks is no link.
fn links(line: &str) -> impl Iterator<Item = &str> {
    line.match_indices("](").filter_map(move |(at, mark)| {
        let is_code = line[..at].matches('`').count() % 2 == 1;
        let (to, _) = line[at + mark.len()..].split_once(')')?;
        (!is_code && !to.is_empty() && !to.contains(char::is_whitespace)).then_some(to)
    })
}

/// The anchor of a heading, as GitHub and mdBook make it.
fn anchor(heading: &str) -> String {
    let shown = without_targets(heading);
    let kept = shown.chars().filter(|&sign| sign.is_alphanumeric() || matches!(sign, ' ' | '-' | '_'));
    kept.map(|sign| if sign == ' ' { '-' } else { sign }).collect::<String>().to_lowercase()
}

/// A heading's text without what its links lead to.
fn without_targets(heading: &str) -> String {
    let mut shown = heading.to_owned();
    while let Some(start) = shown.find("](")
        && let Some(length) = shown[start..].find(')')
    {
        shown.replace_range(start..=start + length, "");
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::fixtures::{complaints, workspace_with};

    #[test]
    fn a_link_to_nothing_is_found() {
        let tree = workspace_with(&[("README.md", "# A\n\n[b](docs/b.md), [c](docs/c.md)\n"), ("docs/b.md", "# B\n")]);
        assert_eq!(complaints(&tree), ["README.md:3: link: there is no docs/c.md"]);
    }

    #[test]
    fn a_link_to_a_heading_that_is_not_there_is_found() {
        let headings = "# As NBD: `--via nbd`\n\n## Twice\n## Twice\n";
        let good = "[1](b.md#as-nbd---via-nbd) [2](b.md#twice) [3](b.md#twice-1) [4](#own)\n# Own\n";
        assert_eq!(complaints(&workspace_with(&[("a.md", good), ("b.md", headings)])), [""; 0]);
        let messages = complaints(&workspace_with(&[("a.md", "[x](b.md#thrice) [y](#other)\n"), ("b.md", headings)]));
        assert_eq!(messages, ["a.md:1: link: a.md has no heading #other", "a.md:1: link: b.md has no heading #thrice"]);
    }

    #[test]
    fn code_and_other_sites_are_no_links() {
        let text = "`a[0](b.md)` [site](https://example.org/b.md)\n\n    x[1](c.md)\n```\n[d](d.md)\n```\n";
        assert_eq!(complaints(&workspace_with(&[("a.md", text)])), [""; 0]);
    }

    #[test]
    fn a_link_out_of_the_book_or_the_project_is_found() {
        let messages = complaints(&workspace_with(&[("docs/a.md", "[a](../Cargo.toml) [b](../../b.md)\n")]));
        assert_eq!(messages.len(), 2, "{messages:#?}");
        assert!(messages[0].contains("../../b.md lies outside the project"), "{}", messages[0]);
        assert!(messages[1].contains("Cargo.toml is no page of the book"), "{}", messages[1]);
    }

    #[test]
    fn every_document_is_in_the_summary_once() {
        let summary = "[A](README.md)\n- [B](b.md)\n- [B again](b.md)\n";
        let tree = workspace_with(&[
            (SETTINGS, ""),
            (SUMMARY, summary),
            ("docs/README.md", "# A\n"),
            ("docs/b.md", "# B\n"),
            ("docs/book/c.md", "# C\n"),
        ]);
        let messages = complaints(&tree);
        assert_eq!(messages.len(), 2, "{messages:#?}");
        assert_eq!(messages[0], "docs/SUMMARY.md:3: summary: b.md is listed twice");
        assert!(messages[1].starts_with("docs/book/c.md:1: summary: "), "{}", messages[1]);
        let messages = complaints(&workspace_with(&[(SETTINGS, "")]));
        assert!(messages.len() == 1 && messages[0].starts_with("docs/SUMMARY.md:1: summary: "), "{messages:#?}");
    }
}
