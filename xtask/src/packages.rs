//! The packages of the workspace: their folders, what they build, and who depends on whom.

use crate::cargo::{self, cargo};
use crate::workspace;
use serde::Deserialize;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Files that every package is built with.
const FOR_ALL: [&str; 4] = ["Cargo.toml", "Cargo.lock", "rust-toolchain.toml", ".cargo/"];

/// A package of the workspace.
#[derive(Debug, PartialEq, Eq)]
pub struct WorkspacePackage {
    pub name: String,
    /// Relative to the workspace, with a slash at its end.
    pub folder: String,
    /// Packages of the workspace that it depends on, in tests too.
    pub needs: Vec<String>,
    /// Names of its integration tests.
    pub tests: Vec<String>,
}

/// Every package of the workspace.
///
/// # Errors
/// Cargo cannot say.
pub fn read() -> Result<Vec<WorkspacePackage>, String> {
    parse(&cargo::output(cargo(&["metadata", "--format-version", "1", "--no-deps"]))?, &workspace::root())
}

fn parse(json: &[u8], root: &Path) -> Result<Vec<WorkspacePackage>, String> {
    let metadata: WorkspaceMetadata =
        serde_json::from_slice(json).map_err(|trouble| format!("cargo metadata cannot be read: {trouble}"))?;
    let names: BTreeSet<String> = metadata.packages.iter().map(|package| package.name.clone()).collect();
    let read = |package: WorkspaceMember| {
        let folder = package.manifest_path.parent().and_then(|folder| folder.strip_prefix(root).ok());
        let folder = folder.ok_or_else(|| format!("package {} is outside of the workspace", package.name))?;
        let is_test = |target: &&MemberTarget| target.kind.iter().any(|kind| kind == "test");
        Ok(WorkspacePackage {
            folder: format!("{}/", folder.display()),
            needs: package.dependencies.into_iter().map(|need| need.name).filter(|name| names.contains(name)).collect(),
            tests: package.targets.iter().filter(is_test).map(|target| target.name.clone()).collect(),
            name: package.name,
        })
    };
    metadata.packages.into_iter().map(read).collect()
}

/// Packages that a change of these files can break: those that they lie in, those that read them, and all that depend
/// on one of these.
///
/// `reads` says whether a package mentions a file that lies in none, a document for instance.
pub fn affected(
    packages: &[WorkspacePackage],
    files: &BTreeSet<String>,
    reads: impl Fn(&WorkspacePackage, &str) -> bool,
) -> BTreeSet<String> {
    let mut affected = BTreeSet::new();
    for file in files {
        if FOR_ALL.iter().any(|all| file == all || (all.ends_with('/') && file.starts_with(all))) {
            return packages.iter().map(|package| package.name.clone()).collect();
        }
        let owner = packages.iter().filter(|package| file.starts_with(&package.folder));
        match owner.max_by_key(|package| package.folder.len()) {
            Some(package) => affected.extend([package.name.clone()]),
            None => affected
                .extend(packages.iter().filter(|package| reads(package, file)).map(|package| package.name.clone())),
        }
    }
    loop {
        let is_next = |package: &&WorkspacePackage| {
            !affected.contains(&package.name) && package.needs.iter().any(|need| affected.contains(need))
        };
        let next: Vec<String> = packages.iter().filter(is_next).map(|package| package.name.clone()).collect();
        if next.is_empty() {
            return affected;
        }
        affected.extend(next);
    }
}

/// Whether a source of the package mentions the file by its name.
pub fn mentions(package: &WorkspacePackage, file: &str) -> bool {
    let name = Path::new(file).file_name().unwrap_or_default().to_string_lossy().into_owned();
    mentions_below(&workspace::root().join(&package.folder), &name)
}

fn mentions_below(folder: &Path, name: &str) -> bool {
    std::fs::read_dir(folder).into_iter().flatten().flatten().any(|entry| {
        let path = entry.path();
        if path.is_dir() {
            return mentions_below(&path, name);
        }
        path.extension().is_some_and(|end| end == "rs")
            && std::fs::read_to_string(&path).is_ok_and(|text| text.contains(name))
    })
}

#[derive(Deserialize)]
struct WorkspaceMetadata {
    packages: Vec<WorkspaceMember>,
}

#[derive(Deserialize)]
struct WorkspaceMember {
    name: String,
    manifest_path: PathBuf,
    dependencies: Vec<MemberDependency>,
    targets: Vec<MemberTarget>,
}

#[derive(Deserialize)]
struct MemberDependency {
    name: String,
}

#[derive(Deserialize)]
struct MemberTarget {
    name: String,
    kind: Vec<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    const JSON: &[u8] = br#"{"packages":[
        {"name":"model","manifest_path":"/w/crates/model/Cargo.toml","dependencies":[],"targets":[{"name":"model","kind":["lib"]}]},
        {"name":"wire","manifest_path":"/w/crates/wire/Cargo.toml","dependencies":[{"name":"model"},{"name":"serde"}],
         "targets":[{"name":"golden","kind":["test"]}]},
        {"name":"rig","manifest_path":"/w/rig/Cargo.toml","dependencies":[{"name":"wire"}],"targets":[]},
        {"name":"sim","manifest_path":"/w/crates/sim/Cargo.toml","dependencies":[],"targets":[]}]}"#;

    fn affected_by(files: &[&str]) -> Vec<String> {
        let packages = parse(JSON, Path::new("/w")).unwrap();
        let files = files.iter().map(|file| (*file).to_owned()).collect();
        let reads = |package: &WorkspacePackage, file: &str| package.name == "sim" && file == "docs/sim.md";
        affected(&packages, &files, reads).into_iter().collect()
    }

    #[test]
    fn packages_know_their_folder_and_their_needs() {
        let packages = parse(JSON, Path::new("/w")).unwrap();
        assert_eq!(packages[1].folder, "crates/wire/");
        assert_eq!(
            (packages[1].needs.as_slice(), packages[1].tests.as_slice()),
            (["model".to_owned()].as_slice(), ["golden".to_owned()].as_slice())
        );
        assert!(parse(JSON, Path::new("/elsewhere")).unwrap_err().contains("outside"));
    }

    #[test]
    fn dependents_are_affected_all_the_way_up() {
        assert_eq!(affected_by(&["crates/model/src/lib.rs"]), ["model", "rig", "wire"]);
        assert_eq!(affected_by(&["rig/src/main.rs"]), ["rig"]);
        assert_eq!(affected_by(&[]), [""; 0]);
    }

    #[test]
    fn what_all_are_built_with_affects_all() {
        assert_eq!(affected_by(&["Cargo.lock"]), ["model", "rig", "sim", "wire"]);
        assert_eq!(affected_by(&[".cargo/config.toml"]), ["model", "rig", "sim", "wire"]);
    }

    #[test]
    fn a_document_affects_who_reads_it() {
        assert_eq!(affected_by(&["docs/sim.md", "README.md"]), ["sim"]);
    }

    #[test]
    fn the_workspace_is_read_and_its_documents_have_readers() {
        let packages = read().unwrap();
        let reading = |file: &str| {
            packages
                .iter()
                .filter(|package| mentions(package, file))
                .map(|package| package.name.as_str())
                .collect::<Vec<_>>()
        };
        assert!(reading("docs/interop.md").contains(&"farbus-rig"), "{:?}", reading("docs/interop.md"));
    }
}
