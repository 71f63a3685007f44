//! `cargo xtask tidy`: the rules of the architecture, held against the code.
//!
//! Each rule is a function from the sources to [`Violation`]s in a file of its own, and works on a [`SourceTree`] in
//! memory, so that its tests are small trees in which it must speak up. What the rules are set to stands in
//! `ARCHITECTURE.toml`.
//!
//! | rule | what it refuses |
//! |---|---|
//! | `layer` | a package without a layer, a listed arrow that does not point down |
//! | `arrow` | a dependency on a crate that `ARCHITECTURE.toml` does not name |
//! | `third-party` | a dependency on an outside crate that the crate may not have |
//! | `module-up` | a module that uses what its own parent defines |
//! | `module-loop` | sibling modules whose subtrees use each other in a circle |
//! | `folder` | a folder at the top of `src` that imports one it may not, or that is one too many |
//! | `banned` | sockets, files, threads, clocks, … in a pure crate; `anyhow` in a library |
//! | `unsafe` | `unsafe` outside its folders |
//! | `errno` | an error number of the operating system away from the edges |
//! | `description` | a `lib.rs` that does not say what its crate is |
//! | `docstring` | a docstring of one or two words, or one that begins *The same* |
//! | `length` | a file, a function or a crate past its length, tests not counted |
//! | `unfinished` | `todo!`, `unimplemented!`, `dbg!` |
//! | `ignored` | a test that is never run |
//! | `no-assert` | a test that cannot fail |
//! | `wait` | a test of farbus's crate that lets time pass without a reason (`// waits: REASON`) |
//! | `retired` | an identifier, a comment or a file with a name that was given up (docs/glossary.md) |
//! | `homonym` | a name that more than three types have |
//! | `one-word` | too many types whose name is one word |
//! | `wide` | a comment of more than 120 columns |
//! | `prose` | folders of one machine in the documents |
//! | `link` | a link between documents that leads to no file or heading, or out of the book |
//! | `summary` | a document below `docs` that `docs/SUMMARY.md` does not list |
//! | `proof` | a file, folder or rig case in `docs/proofs.md` that does not exist |
//! | `message` | a message that `farbus explain` knows and no source has |
//! | `syntax` | a file that does not parse |

mod architecture;
mod arrows;
mod banned;
mod description;
mod docstrings;
mod folders;
mod graph;
mod length;
mod links;
mod manifest;
mod messages;
mod modules;
mod names;
mod proofs;
mod prose;
mod retired;
mod source;
mod tests_assert;
mod tree;
mod unfinished;
mod violation;
mod waits;

#[cfg(test)]
mod fixtures;

use crate::workspace;
use std::collections::BTreeSet;
use tree::SourceTree;
use violation::Violation;

/// Reads the workspace and prints every violation; an error says how many there were.
pub fn run() -> Result<(), String> {
    let tree =
        SourceTree::read(&workspace::root()).map_err(|trouble| format!("cannot read the workspace: {trouble}"))?;
    let violations = check(&tree)?;
    for violation in &violations {
        println!("{violation}");
    }
    match violations.len() {
        0 => {
            println!("tidy: {} files, nothing to do", tree.len());
            Ok(())
        }
        count => Err(format!("tidy: {count} to mend")),
    }
}

/// The waits by time that are left in the tests of farbus's crate, by their reasons.
///
/// # Errors
/// The workspace cannot be read.
pub fn waits_left() -> Result<String, String> {
    let tree =
        SourceTree::read(&workspace::root()).map_err(|trouble| format!("cannot read the workspace: {trouble}"))?;
    Ok(waits::table(&tree))
}

/// What `ARCHITECTURE.toml` says of packages, for others than these rules.
#[derive(Debug)]
pub struct PackageLayers {
    /// Names of the packages that never touch the world.
    pub pure: BTreeSet<String>,
    /// Crates that such a package is never built with.
    pub runtimes: Vec<String>,
}

/// Reads `ARCHITECTURE.toml` alone.
///
/// # Errors
/// It is missing or not in order.
pub fn layers() -> Result<PackageLayers, String> {
    let path = workspace::root().join(architecture::FILE);
    let text =
        std::fs::read_to_string(&path).map_err(|trouble| format!("cannot read {}: {trouble}", path.display()))?;
    let architecture = architecture::read(&SourceTree::of([(architecture::FILE, text.as_str())]))?;
    let pure = architecture.crates.iter().filter(|rules| rules.kind == architecture::CrateKind::Pure);
    Ok(PackageLayers {
        pure: pure.map(|rules| rules.package.clone()).collect(),
        runtimes: architecture.third_party.runtimes,
    })
}

fn check(tree: &SourceTree) -> Result<Vec<Violation>, String> {
    let architecture = architecture::read(tree)?;
    let packages = manifest::read(tree)?;
    let (sources, mut violations) = source::read(tree, &packages);
    violations.extend(arrows::check(&architecture, &packages));
    let insides = modules::read(&packages, &sources);
    violations.extend(modules::check(&architecture, &insides));
    violations.extend(folders::check(&architecture, &insides, &sources));
    violations.extend(banned::check(&architecture, &packages, &sources));
    violations.extend(description::check(&packages, &sources));
    violations.extend(length::check(&architecture, &sources));
    violations.extend(unfinished::check(&sources));
    violations.extend(tests_assert::check(&sources));
    violations.extend(waits::check(tree));
    violations.extend(prose::check(&architecture, tree));
    violations.extend(links::check(tree));
    violations.extend(proofs::check(tree, &sources));
    violations.extend(messages::check(tree, &sources));
    violations.extend(retired::check(&architecture, &sources));
    violations.extend(docstrings::check(tree));
    violations.extend(retired::check_comments(&architecture, tree));
    violations.extend(retired::check_width(tree));
    violations.extend(names::check(&architecture, &sources));
    violations.sort();
    Ok(violations)
}

#[cfg(test)]
mod tests {
    use super::*;
    use fixtures::{ARCHITECTURE, workspace_with};

    #[test]
    fn a_tidy_tree_has_nothing_to_do() {
        let tree = workspace_with(&[]);
        assert_eq!(check(&tree).unwrap(), []);
    }

    #[test]
    fn violations_come_in_the_order_of_files_and_lines() {
        let tree = workspace_with(&[
            ("crates/wire/src/b.rs", "fn b() { todo!() }\n"),
            ("crates/wire/src/a.rs", "\n\nfn a() { dbg!(1); }\nfn c() { todo!() }\n"),
        ]);
        let lines: Vec<_> = check(&tree).unwrap().iter().map(ToString::to_string).collect();
        assert_eq!(lines.len(), 3, "{lines:#?}");
        assert!(lines[0].starts_with("crates/wire/src/a.rs:3: unfinished: "), "{}", lines[0]);
        assert!(lines[1].starts_with("crates/wire/src/a.rs:4: unfinished: "), "{}", lines[1]);
        assert!(lines[2].starts_with("crates/wire/src/b.rs:1: unfinished: "), "{}", lines[2]);
    }

    #[test]
    fn a_tree_without_an_architecture_is_an_error() {
        let tree = SourceTree::of([("Cargo.toml", "[workspace]\nmembers = []\n")]);
        assert!(check(&tree).unwrap_err().contains("ARCHITECTURE.toml"));
        assert!(ARCHITECTURE.contains("[[crate]]"));
    }

    #[test]
    fn layers_are_read_from_the_real_architecture() {
        let layers = layers().unwrap();
        assert!(layers.pure.contains("farbus-wire") && !layers.pure.contains("farbus-io-net"));
        assert!(layers.runtimes.iter().any(|runtime| runtime == "tokio"));
    }

    /// The project's own table must be in order whatever the code does.
    #[test]
    fn the_real_architecture_is_in_order() {
        let text = std::fs::read_to_string(workspace::root().join("ARCHITECTURE.toml")).unwrap();
        let tree = SourceTree::of([("ARCHITECTURE.toml", text.as_str())]);
        let architecture = architecture::read(&tree).unwrap();
        assert_eq!(arrows::check(&architecture, &[]), []);
    }
}
