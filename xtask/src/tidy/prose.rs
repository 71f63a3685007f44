//! Rule `prose`: the documents speak of the project, not of the machine one of them was written on, nor of a merge.

use super::architecture::ArchitectureRules;
use super::tree::SourceTree;
use super::violation::Violation;

/// What git leaves where two sides of a merge differ.
const MERGE_MARKS: [&str; 2] = ["<<<<<<< ", ">>>>>>> "];

pub fn check(architecture: &ArchitectureRules, tree: &SourceTree) -> Vec<Violation> {
    let folders: Vec<_> = architecture.prose.banned_folders.iter().map(|name| format!("/{name}/")).collect();
    let mut violations = Vec::new();
    for (path, text) in tree.iter().filter(|(path, _)| path.ends_with(".md")) {
        for (at, line) in text.lines().enumerate() {
            if let Some(folder) = folders.iter().find(|folder| names_folder(line, folder)) {
                let advice = format!("{folder} is a folder of one machine: say it relative to the project, or use ~");
                violations.push(Violation::new(path, at + 1, "prose", advice));
            }
            if MERGE_MARKS.iter().any(|mark| line.starts_with(mark)) {
                let advice = "a merge left its mark: choose, and delete it";
                violations.push(Violation::new(path, at + 1, "prose", advice));
            }
        }
    }
    violations
}

/// Whether `line` has a path that begins with `folder`, and not only one that has it further in.
fn names_folder(line: &str, folder: &str) -> bool {
    line.match_indices(folder).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        before.is_none_or(|before| !before.is_alphanumeric() && !matches!(before, '.' | '-' | '_' | '~' | '/' | '}'))
    })
}

#[cfg(test)]
mod tests {
    use crate::tidy::fixtures::{complaints, workspace_with};

    #[test]
    fn a_folder_of_one_machine_is_found() {
        let tree =
            workspace_with(&[("README.md", "# Farbus\n\nRun `/home/ann/farbus`.\n"), ("docs/a.md", "/home/x\n")]);
        let messages = complaints(&tree);
        assert_eq!(messages.len(), 2, "{messages:#?}");
        assert!(messages[0].starts_with("README.md:3: prose: "), "{}", messages[0]);
        assert!(messages[1].starts_with("docs/a.md:1: prose: "), "{}", messages[1]);
    }

    #[test]
    fn marks_of_a_merge_are_found() {
        let tree = workspace_with(&[("docs/a.md", "# A\n<<<<<<< HEAD\none\n=======\ntwo\n>>>>>>> other\n")]);
        let messages = complaints(&tree);
        assert_eq!(messages.len(), 2, "{messages:#?}");
        assert!(messages[0].starts_with("docs/a.md:2: prose: "), "{}", messages[0]);
        assert!(messages[1].starts_with("docs/a.md:6: prose: "), "{}", messages[1]);
    }

    #[test]
    fn folders_further_in_are_fine() {
        let tree = workspace_with(&[("README.md", "See src/home/page.rs and https://example.org/home/x.\n")]);
        assert_eq!(complaints(&tree), [""; 0]);
    }
}
