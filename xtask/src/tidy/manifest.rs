//! The packages of the workspace and what they depend on, from their `Cargo.toml`s.

use super::tree::SourceTree;
use toml::{Table, Value};

/// A package of the workspace.
#[derive(Debug)]
pub struct PackageManifest {
    pub name: String,
    /// Its folder, relative to the workspace, with a slash behind it.
    pub folder: String,
    pub dependencies: Vec<ManifestDependency>,
    /// Its crates that others may name: the library, or else the programs.
    pub roots: Vec<String>,
}

/// One line of a manifest's dependency tables.
#[derive(Debug)]
pub struct ManifestDependency {
    /// The package it names, whatever it is called in the code.
    pub package: String,
    /// Only for tests, examples and benchmarks.
    pub in_tests: bool,
    pub line: usize,
}

impl PackageManifest {
    pub fn manifest(&self) -> String {
        format!("{}Cargo.toml", self.folder)
    }

    /// Whether a file of this package is part of what it ships, and not of its tests or examples.
    pub fn ships(&self, file: &str) -> bool {
        file.strip_prefix(&self.folder).is_some_and(|inside| inside.starts_with("src/"))
    }
}

pub fn read(tree: &SourceTree) -> Result<Vec<PackageManifest>, String> {
    let workspace = parse(tree, "Cargo.toml")?;
    let renamed = |name: &str| -> String {
        let dependency = lookup(&workspace, &["workspace", "dependencies", name]);
        dependency.and_then(package_key).unwrap_or(name).to_owned()
    };
    let members = lookup(&workspace, &["workspace", "members"])
        .and_then(Value::as_array)
        .ok_or("Cargo.toml: workspace.members is missing")?;
    let mut packages = Vec::new();
    for member in members.iter().filter_map(Value::as_str) {
        for folder in folders(tree, member) {
            packages.push(read_package(tree, folder, &renamed)?);
        }
    }
    Ok(packages)
}

/// The folders with a manifest that a member pattern names; its last part may be `*`.
fn folders(tree: &SourceTree, member: &str) -> Vec<String> {
    let Some(parent) = member.strip_suffix('*') else {
        return vec![format!("{member}/")];
    };
    tree.iter()
        .filter_map(|(path, _)| path.strip_suffix("Cargo.toml"))
        .filter(|folder| {
            folder.strip_prefix(parent).is_some_and(|inside| inside.len() > 1 && inside.matches('/').count() == 1)
        })
        .map(str::to_owned)
        .collect()
}

fn read_package(
    tree: &SourceTree,
    folder: String,
    renamed: &dyn Fn(&str) -> String,
) -> Result<PackageManifest, String> {
    let path = format!("{folder}Cargo.toml");
    let manifest = parse(tree, &path)?;
    let text = tree.get(&path).unwrap_or_default();
    let name = lookup(&manifest, &["package", "name"])
        .and_then(Value::as_str)
        .ok_or_else(|| format!("{path}: package.name is missing"))?
        .to_owned();
    let mut dependencies = Vec::new();
    collect(&manifest, text, renamed, &mut dependencies);
    if let Some(targets) = manifest.get("target").and_then(Value::as_table) {
        for target in targets.values().filter_map(Value::as_table) {
            collect(target, text, renamed, &mut dependencies);
        }
    }
    let mut roots: Vec<String> = [format!("{folder}src/lib.rs"), format!("{folder}src/main.rs")]
        .into_iter()
        .filter(|root| tree.get(root).is_some())
        .collect();
    let programs = format!("{folder}src/bin/");
    roots.extend(tree.iter().map(|(path, _)| path).filter(|path| is_program(path, &programs)).map(str::to_owned));
    Ok(PackageManifest { name, folder, dependencies, roots })
}

/// `src/bin/NAME.rs` or `src/bin/NAME/main.rs`.
fn is_program(path: &str, programs: &str) -> bool {
    path.strip_prefix(programs).is_some_and(|inside| !inside.contains('/') || inside.ends_with("/main.rs"))
}

fn collect(table: &Table, text: &str, renamed: &dyn Fn(&str) -> String, into: &mut Vec<ManifestDependency>) {
    for (section, in_tests) in [("dependencies", false), ("build-dependencies", false), ("dev-dependencies", true)] {
        let Some(entries) = table.get(section).and_then(Value::as_table) else { continue };
        for (key, value) in entries {
            let inherited = value.get("workspace").and_then(Value::as_bool) == Some(true);
            let package = match package_key(value) {
                Some(package) => package.to_owned(),
                None if inherited => renamed(key),
                None => key.clone(),
            };
            into.push(ManifestDependency { package, in_tests, line: line_of(text, section, key) });
        }
    }
}

fn package_key(value: &Value) -> Option<&str> {
    value.get("package").and_then(Value::as_str)
}

/// The line on which `key` stands in the first table whose head ends in `section`.
fn line_of(text: &str, section: &str, key: &str) -> usize {
    let mut inside = false;
    for (at, line) in text.lines().enumerate() {
        let line = line.trim();
        if let Some(head) = line.strip_prefix('[') {
            let head = head.trim_end_matches(']');
            if head == format!("{section}.{key}") || head.ends_with(&format!(".{section}.{key}")) {
                return at + 1;
            }
            inside = head == section || head.ends_with(&format!(".{section}"));
        } else if inside && line.split(['.', '=', ' ']).next().is_some_and(|name| name.trim_matches('"') == key) {
            return at + 1;
        }
    }
    1
}

fn parse(tree: &SourceTree, path: &str) -> Result<Table, String> {
    let text = tree.get(path).ok_or_else(|| format!("{path} is missing"))?;
    text.parse().map_err(|trouble| format!("{path}: {trouble}"))
}

fn lookup<'a>(table: &'a Table, path: &[&str]) -> Option<&'a Value> {
    let (first, rest) = path.split_first()?;
    rest.iter().try_fold(table.get(*first)?, |value, key| value.get(key))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_one(manifest: &str) -> PackageManifest {
        let tree = SourceTree::of([
            (
                "Cargo.toml",
                "[workspace]\nmembers = [\"crates/*\"]\n[workspace.dependencies]\ncrates = { package = \"farbus-model\", path = \"x\" }\n",
            ),
            ("crates/a/Cargo.toml", manifest),
            ("crates/a/src/lib.rs", ""),
            ("crates/a/src/bin/tool.rs", ""),
            ("crates/a/src/bin/other/main.rs", ""),
            ("crates/a/src/bin/other/part.rs", ""),
            ("crates/a/nested/Cargo.toml", "not a member"),
        ]);
        read(&tree).unwrap().pop().unwrap()
    }

    fn found(package: &PackageManifest) -> Vec<(&str, bool, usize)> {
        package.dependencies.iter().map(|d| (d.package.as_str(), d.in_tests, d.line)).collect()
    }

    #[test]
    fn dependencies_are_known_by_package_and_line() {
        let package = read_one(
            "[package]\nname = \"a\"\n[dependencies]\ncrates.workspace = true\nother = { package = \"real\" , version = \"1\" }\n\n[dev-dependencies]\nbolero = \"1\"\n",
        );
        assert_eq!(found(&package), [("farbus-model", false, 4), ("real", false, 5), ("bolero", true, 8)]);
    }

    #[test]
    fn dependencies_of_one_target_and_in_their_own_tables_count() {
        let package = read_one(
            "[package]\nname = \"a\"\n[target.'cfg(unix)'.dependencies]\nlibc = \"0.2\"\n[dependencies.mio]\nversion = \"1\"\n",
        );
        assert_eq!(found(&package), [("mio", false, 5), ("libc", false, 4)]);
    }

    #[test]
    fn roots_are_the_library_and_every_program() {
        let package = read_one("[package]\nname = \"a\"\n");
        assert_eq!(
            package.roots,
            ["crates/a/src/lib.rs", "crates/a/src/bin/other/main.rs", "crates/a/src/bin/tool.rs"]
        );
        assert!(package.ships("crates/a/src/lib.rs"));
        assert!(!package.ships("crates/a/tests/src/lib.rs"));
    }
}
