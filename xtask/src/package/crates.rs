//! What `cargo publish` sends: each crate of the product as an archive, and the test that the programs install from
//! these archives without the rest of the sources.
//!
//! Only the rehearsal of publishing asks the registry. Otherwise crates that are not published yet come from the
//! archives beside them.

use crate::cargo::{self, cargo};
use crate::package::tree;
use crate::{packages, workspace};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Packages of the workspace that are no part of the product.
const APART: [&str; 4] = ["farbus-rig", "farbus-bench", "farbus-papers", "xtask"];

/// Makes `NAME-VERSION.crate` of each crate in a folder within `work`, and returns them.
///
/// # Errors
/// Cargo would not publish one of them.
pub fn make(work: &Path) -> Result<Vec<PathBuf>, String> {
    // What is committed is what the working tree has when something is published; a test looks at the working tree.
    let mut pack = product(&["package", "--offline"]);
    let folder = work.join("published");
    pack.arg("--target-dir").arg(&folder);
    cargo::run(pack)?;
    let mut archives = tree::files(&folder.join("package"))?;
    archives.retain(|path| path.extension().is_some_and(|extension| extension == "crate"));
    let expected = packages::read()?.len() - APART.len();
    if archives.len() == expected {
        Ok(archives)
    } else {
        Err(format!("cargo packaged {} crates, not {expected}", archives.len()))
    }
}

/// A cargo command for all crates of the product, which does not build them.
fn product(words: &[&str]) -> Command {
    let mut command = cargo(words);
    command.args(["--quiet", "--workspace", "--no-verify", "--allow-dirty"]);
    APART.iter().for_each(|name| {
        command.args(["--exclude", name]);
    });
    command
}

/// Rehearses publishing: all but the upload.
///
/// # Errors
/// The registry cannot be asked, or would refuse a crate.
pub fn rehearse() -> Result<(), String> {
    cargo::run(product(&["publish", "--dry-run"]))
}

/// Installs the command and the conformance kit from the archives.
///
/// # Errors
/// A crate lacks something that it needs.
pub fn check(archives: &[PathBuf], work: &Path) -> Result<(), String> {
    let sources = work.join("sources");
    tree::folder_of_mode(&sources, 0o755)?;
    for archive in archives {
        let mut unpack = Command::new("tar");
        // The files in a package have one old date, by which cargo would take those of an earlier package for them.
        unpack
            .arg("--extract")
            .arg("--touch")
            .arg("--gzip")
            .arg("--file")
            .arg(archive)
            .arg("--directory")
            .arg(&sources);
        tree::succeed(unpack)?;
    }
    let folders = tree::names(&sources)?.into_iter().map(|name| name.to_string_lossy().into_owned());
    let version = format!("-{}", env!("CARGO_PKG_VERSION"));
    let patches: String = folders
        .filter_map(|folder| Some(format!("{} = {{ path = \"{folder}\" }}\n", folder.strip_suffix(&version)?)))
        .collect();
    let manifest = read(&workspace::root().join("Cargo.toml"))?;
    // With the workspace's own profiles, dependencies are not built again.
    let profiles = manifest.find("[profile.").map_or("", |start| &manifest[start..]);
    let text = format!("[workspace]\nresolver = \"3\"\nmembers = [\"*\"]\n\n[patch.crates-io]\n{patches}\n{profiles}");
    tree::put_text(text.as_bytes(), &sources.join("Cargo.toml"), 0o644)?;
    tree::put(&workspace::root().join("Cargo.lock"), &sources.join("Cargo.lock"), 0o644)?;

    let installed = work.join("installed");
    for package in ["farbus-cli", "farbus-conform-cli"] {
        let mut install = cargo(&["install", "--debug", "--offline", "--no-track"]);
        install.current_dir(&sources).arg("--path").arg(format!("{package}{version}")).arg("--root").arg(&installed);
        install.arg("--target-dir").arg(workspace::root().join("target"));
        cargo::run(install)?;
    }
    for words in [&["demo"][..], &["conform", "exporter", "--list"]] {
        let mut uses = Command::new(installed.join("bin/farbus"));
        uses.args(words);
        cargo::run(uses)?;
    }
    Ok(())
}

fn read(path: &Path) -> Result<String, String> {
    std::fs::read_to_string(path).map_err(|error| format!("cannot read {}: {error}", path.display()))
}
