//! Rule `description`: a library says what it is before it says anything else.

use super::manifest::PackageManifest;
use super::source::SourceFile;
use super::violation::Violation;

/// What the description has to say. A sentence may open with the words or carry them, in any emphasis.
const PARTS: [&str; 5] = ["This crate is", "It may touch", "It never touches", "Start reading at", "Why"];

pub fn check(packages: &[PackageManifest], sources: &[SourceFile]) -> Vec<Violation> {
    let mut violations = Vec::new();
    for source in sources {
        let is_ours = packages.iter().any(|package| source.path == format!("{}src/lib.rs", package.folder));
        if !is_ours {
            continue;
        }
        let message = source.description.replace("**", "").split_whitespace().collect::<Vec<_>>().join(" ");
        let missing: Vec<_> =
            PARTS.iter().filter(|part| !message.contains(**part)).map(|part| format!("\"{part} …\"")).collect();
        if !missing.is_empty() {
            let advice = format!("the description at the top lacks {}: say what this crate is", missing.join(", "));
            violations.push(Violation::new(&source.path, 1, "description", advice));
        }
    }
    violations
}

#[cfg(test)]
mod tests {
    use crate::tidy::fixtures::{complaints, workspace_with};

    #[test]
    fn a_crate_without_a_description_is_told_what_is_missing() {
        let tree = workspace_with(&[(
            "crates/io-net/src/lib.rs",
            "//! This crate is io. Start reading at the top.\nfn f() {}\n",
        )]);
        let messages = complaints(&tree);
        assert_eq!(messages.len(), 1, "{messages:#?}");
        assert!(messages[0].starts_with("crates/io-net/src/lib.rs:1: description: "), "{}", messages[0]);
        assert!(messages[0].contains("\"It may touch …\", \"It never touches …\", \"Why …\""), "{}", messages[0]);
    }

    #[test]
    fn emphasis_and_line_ends_do_not_matter() {
        let text = "//! # Io\n//!\n//! **This crate\n//! is** io. **It may touch** x, **It never touches** y. Start reading at z.\n//! Why: so.\n";
        assert_eq!(complaints(&workspace_with(&[("crates/io-net/src/lib.rs", text)])), [""; 0]);
    }
}
