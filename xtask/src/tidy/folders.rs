//! Rule `folder`: the folders at the top of a package's `src`, and which of them imports which.
//!
//! `ARCHITECTURE.toml` lists the folders of a package from the lowest to the highest, each with those that it imports.
//! The rule refuses:
//!
//! - a folder or file at the top of `src` that is not listed, and more of them than the package may have;
//! - an import that the list does not name;
//! - a listed import of a folder that stands higher in the list.
//!
//! Imports that still point up stand in `back`, module by module. Rule `module-loop` does not see them. One that the
//! code no longer has is refused, so that the list only becomes shorter.

use super::architecture::{ArchitectureRules, FILE, FolderRules};
use super::modules::{CrateArrows, ModuleArrow};
use super::source::SourceFile;
use super::violation::Violation;
use std::collections::BTreeSet;

/// Checks each package that `ARCHITECTURE.toml` lists folders for.
pub fn check(architecture: &ArchitectureRules, insides: &[CrateArrows], sources: &[SourceFile]) -> Vec<Violation> {
    let mut violations = Vec::new();
    for folders in &architecture.folders {
        violations.extend(table(architecture, folders));
        violations.extend(entries(architecture, folders, sources));
        let arrows: Vec<&ModuleArrow> =
            insides.iter().filter(|inside| inside.root == folders.root).flat_map(|inside| &inside.arrows).collect();
        violations.extend(imports(architecture, folders, &arrows));
        violations.extend(spare(architecture, folders, &arrows));
    }
    violations
}

/// The list itself: a folder imports only folders below it.
fn table(architecture: &ArchitectureRules, folders: &FolderRules) -> Vec<Violation> {
    let mut violations = Vec::new();
    for (at, folder) in folders.folder.iter().enumerate() {
        for import in &folder.imports {
            if !folders.folder[..at].iter().any(|below| below.name == *import) {
                let advice = format!("{} imports {import}, which is no folder below it in the list", folder.name);
                violations.push(Violation::new(FILE, architecture.line_with(&folder.line()), "folder", advice));
            }
        }
    }
    violations
}

/// What stands at the top of `src`.
fn entries(architecture: &ArchitectureRules, folders: &FolderRules, sources: &[SourceFile]) -> Vec<Violation> {
    let top = folders.root.rsplit_once('/').map_or("", |(top, _)| top);
    let below = |source: &SourceFile| Some(source.path.strip_prefix(top)?.strip_prefix('/')?.to_owned());
    let entries: BTreeSet<String> = sources
        .iter()
        .filter_map(below)
        .map(|path| path.split_once('/').map_or(path.clone(), |(folder, _)| folder.to_owned()))
        .collect();
    let mut violations = Vec::new();
    if entries.len() > folders.entries_max {
        let advice = format!(
            "{} folders and files are at the top of {top}, {} may be: put them into the folder of those who use them",
            entries.len(),
            folders.entries_max
        );
        violations.push(Violation::new(FILE, architecture.line_with(&folders.line()), "folder", advice));
    }
    let is_listed = |entry: &str| {
        let name = entry.trim_end_matches(".rs");
        ["lib", "main"].contains(&name) || folders.folder.iter().any(|folder| folder.name == name)
    };
    for entry in entries.iter().filter(|entry| !is_listed(entry)) {
        let advice = format!("{entry} is not listed in {FILE}: put it into a folder, or list it with what it imports");
        violations.push(Violation::new(format!("{top}/{entry}"), 1, "folder", advice));
    }
    violations
}

fn imports(architecture: &ArchitectureRules, folders: &FolderRules, arrows: &[&ModuleArrow]) -> Vec<Violation> {
    let mut violations = Vec::new();
    for arrow in arrows.iter().filter(|arrow| !architecture.is_excused(&folders.root, &arrow.from, &arrow.to)) {
        let (Some(from), Some(to)) = (arrow.from.first(), arrow.to.first()) else { continue };
        let Some(folder) = folders.folder.iter().find(|folder| folder.name == *from) else { continue };
        if from != to && !folder.imports.contains(to) {
            let advice = format!(
                "`{}`: {from} does not import {to}; it imports {}",
                arrow.written,
                if folder.imports.is_empty() { "no other folder".to_owned() } else { folder.imports.join(", ") }
            );
            violations.push(Violation::new(&arrow.source.path, arrow.line, "folder", advice));
        }
    }
    violations
}

/// Excuses that nothing needs any more.
fn spare(architecture: &ArchitectureRules, folders: &FolderRules, arrows: &[&ModuleArrow]) -> Vec<Violation> {
    let is_used = |back: &&String| !arrows.iter().any(|arrow| arrow.is_from_to(back));
    let reported = folders.back.iter().filter(is_used).map(|back| {
        let advice = format!("\"{back}\" is an import that nobody makes any more: take it off the list");
        Violation::new(FILE, architecture.line_with(&format!("\"{back}\",")), "folder", advice)
    });
    reported.collect()
}

#[cfg(test)]
mod tests {
    use crate::tidy::fixtures::{ARCHITECTURE, complaints, workspace_with};

    /// Package `farbus-wire` with folders `low` and `high`, and these imports besides that point up.
    fn architecture(imports_of_low: &str, back: &str, entries_max: usize) -> String {
        format!(
            "{ARCHITECTURE}\n[[folders]]\nroot = \"crates/wire/src/lib.rs\"\nentries_max = {entries_max}\n\
             back = [{back}]\n\
             [[folders.folder]]\nname = \"low\"\nimports = [{imports_of_low}]\n\
             [[folders.folder]]\nname = \"high\"\nimports = [\"low\"]\n"
        )
    }

    fn reported(architecture: &str, low: &str, more: &[(&str, &str)]) -> Vec<String> {
        let mut changes = vec![
            ("ARCHITECTURE.toml", architecture),
            ("crates/wire/src/low/mod.rs", "pub mod file;\n"),
            ("crates/wire/src/low/file.rs", low),
            ("crates/wire/src/high/mod.rs", "pub mod file;\npub mod other;\n"),
            ("crates/wire/src/high/file.rs", "pub struct High;\n"),
            ("crates/wire/src/high/other.rs", "use crate::low::file::Low;\nfn f(_: Low) {}\n"),
        ];
        changes.extend_from_slice(more);
        complaints(&workspace_with(&changes))
    }

    const LOW: &str = "pub struct Low;\n";
    const UP: &str = "use crate::high::file::High;\npub struct Low(High);\n";

    #[test]
    fn imports_that_are_listed_are_fine() {
        assert_eq!(reported(&architecture("", "", 3), LOW, &[]), [""; 0]);
    }

    #[test]
    fn an_import_that_is_not_listed_is_refused() {
        let messages = reported(&architecture("", "", 3), UP, &[("crates/wire/src/high/other.rs", "")]);
        assert_eq!(messages.len(), 1, "{messages:#?}");
        assert!(
            messages[0].starts_with("crates/wire/src/low/file.rs:1: folder: `crate::high::file::High`: low does not")
        );
    }

    #[test]
    fn a_circle_of_folders_is_told_as_one_besides() {
        let messages = reported(&architecture("", "", 3), UP, &[]);
        assert_eq!(messages.len(), 2, "{messages:#?}");
        assert!(messages.iter().any(|line| line.contains("module-loop: ")), "{messages:#?}");
    }

    #[test]
    fn the_list_may_not_point_up() {
        let messages = reported(&architecture("\"high\"", "", 3), LOW, &[]);
        assert_eq!(messages.len(), 1, "{messages:#?}");
        assert!(messages[0].contains("folder: low imports high, which is no folder below it"), "{}", messages[0]);
    }

    #[test]
    fn an_import_that_is_excused_is_neither_refused_nor_part_of_a_circle() {
        assert_eq!(reported(&architecture("", "\n\"low::file -> high::file\",\n", 3), UP, &[]), [""; 0]);
    }

    #[test]
    fn an_excuse_that_nothing_needs_is_refused() {
        let messages = reported(&architecture("", "\n\"low::file -> high::file\",\n", 3), LOW, &[]);
        assert_eq!(messages.len(), 1, "{messages:#?}");
        assert!(messages[0].starts_with("ARCHITECTURE.toml:"), "{}", messages[0]);
        assert!(
            messages[0].contains("\"low::file -> high::file\" is an import that nobody makes any more"),
            "{}",
            messages[0]
        );
    }

    #[test]
    fn what_stands_at_the_top_is_listed_and_counted() {
        let messages = reported(&architecture("", "", 3), LOW, &[("crates/wire/src/stray.rs", "")]);
        assert_eq!(messages.len(), 2, "{messages:#?}");
        assert!(
            messages[0].contains("folder: 4 folders and files are at the top of crates/wire/src, 3 may be"),
            "{}",
            messages[0]
        );
        assert!(
            messages[1].starts_with("crates/wire/src/stray.rs:1: folder: stray.rs is not listed"),
            "{}",
            messages[1]
        );
    }
}
