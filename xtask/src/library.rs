//! What holds for farbus as a library: it compiles alone, and builds nothing that only the command uses.

use crate::cargo::{self, cargo};

/// What only the command, its page and its daemon may bring: clap for its options, hyper and maud for its page, and so
/// on.
const COMMAND_ONLY: [&str; 21] = [
    "clap",
    "clap_complete",
    "clap_mangen",
    "comfy-table",
    "crossterm",
    "farbus-cli",
    "farbus-conform",
    "farbus-conform-cli",
    "farbus-daemon",
    "farbus-directory",
    "farbus-page",
    "hyper",
    "indicatif",
    "maud",
    "png",
    "qrcode",
    "schemars",
    "tokio-rustls",
    "toml",
    "tracing-subscriber",
    "unicode-width",
];

/// Checks the library alone, warnings included.
///
/// # Errors
/// If it does not compile, warns, or depends on what belongs to the command.
pub fn check() -> Result<(), String> {
    let tree = ["tree", "-p", "farbus", "-e", "normal", "--prefix", "none", "-f", "{p}"];
    let tree = String::from_utf8_lossy(&cargo::output(cargo(&tree))?).into_owned();
    let misplaced = misplaced(&tree);
    if !misplaced.is_empty() {
        let misplaced = misplaced.join(", ");
        return Err(format!("the library depends on {misplaced}: 'cargo tree -p farbus -i PACKAGE' shows why"));
    }
    cargo::run(cargo(&["clippy", "-p", "farbus", "--lib", "--no-default-features", "--", "-D", "warnings"]))
}

/// Which of [`COMMAND_ONLY`] a tree (`NAME vVERSION …` a line) names.
fn misplaced(tree: &str) -> Vec<&'static str> {
    let named: Vec<_> = tree.lines().filter_map(|line| line.split_whitespace().next()).collect();
    COMMAND_ONLY.into_iter().filter(|package| named.contains(package)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dependency_of_the_command_in_the_librarys_tree_is_named() {
        let tree = "farbus v0.1.0 (/src/farbus)\nserde v1.0.229\nclap v4.6.7 (*)\ntoml_edit v0.1.0\n";
        assert_eq!(misplaced(tree), ["clap"]);
    }
}
