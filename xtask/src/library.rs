//! What holds for farbus as a library: without its `cli` feature it compiles, and builds nothing that only the command
//! uses.

use crate::cargo::{self, cargo};
use crate::workspace;
use std::collections::BTreeSet;
use toml::{Table, Value};

/// Dependencies that the feature must hold back, however the manifest lists them.
const COMMAND_ONLY: [&str; 3] = ["clap", "comfy-table", "indicatif"];

/// Checks farbus without its command, warnings included.
///
/// # Errors
/// If it does not compile, warns, or depends on what belongs to the command.
pub fn check() -> Result<(), String> {
    let path = workspace::root().join("crates/farbus/Cargo.toml");
    let manifest =
        std::fs::read_to_string(&path).map_err(|error| format!("cannot read {}: {error}", path.display()))?;
    let tree = ["tree", "-p", "farbus", "--no-default-features", "-e", "normal", "--prefix", "none", "-f", "{p}"];
    let tree = String::from_utf8_lossy(&cargo::output(cargo(&tree))?).into_owned();
    let misplaced = misplaced(&of_command(&manifest)?, &tree);
    if !misplaced.is_empty() {
        let misplaced = misplaced.into_iter().collect::<Vec<_>>().join(", ");
        return Err(format!(
            "farbus without its feature cli depends on {misplaced}: 'cargo tree -p farbus --no-default-features -i PACKAGE' shows why"
        ));
    }
    cargo::run(cargo(&["clippy", "-p", "farbus", "--lib", "--no-default-features", "--", "-D", "warnings"]))
}

/// The dependencies that the manifest's feature `cli` turns on, and those that it must.
fn of_command(manifest: &str) -> Result<BTreeSet<String>, String> {
    let manifest: Table = manifest.parse().map_err(|error| format!("crates/farbus/Cargo.toml: {error}"))?;
    let features = manifest.get("features").and_then(|features| features.get("cli")).and_then(Value::as_array);
    let features = features.ok_or("crates/farbus/Cargo.toml: there is no feature cli")?;
    let turned_on = features.iter().filter_map(|feature| feature.as_str()?.strip_prefix("dep:"));
    Ok(turned_on.chain(COMMAND_ONLY).map(str::to_owned).collect())
}

/// Which of these packages a tree (`NAME vVERSION …` a line) names.
fn misplaced(packages: &BTreeSet<String>, tree: &str) -> BTreeSet<String> {
    let named: BTreeSet<_> = tree.lines().filter_map(|line| line.split_whitespace().next()).collect();
    packages.iter().filter(|package| named.contains(package.as_str())).cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dependency_of_the_command_in_the_librarys_tree_is_named() {
        let packages = of_command("[features]\ncli = [\"dep:toml\", \"wasm\"]\n").unwrap();
        assert_eq!(
            packages.iter().map(String::as_str).collect::<Vec<_>>(),
            ["clap", "comfy-table", "indicatif", "toml"]
        );
        let tree = "farbus v0.1.0 (/src/farbus)\nserde v1.0.229\nclap v4.6.7 (*)\ntoml_edit v0.1.0\n";
        assert_eq!(misplaced(&packages, tree), BTreeSet::from(["clap".to_owned()]));
    }

    #[test]
    fn a_manifest_without_the_feature_is_an_error() {
        assert!(of_command("[features]\nwasm = []\n").unwrap_err().contains("no feature cli"));
    }
}
