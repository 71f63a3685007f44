//! The record of the crates that touch keys (`keys.toml`): none of them changes without somebody looking at it.
//!
//! A crate of the registry touches keys if it is one of the file's `primitives`, or depends on one, and the product is
//! built with it. Of each the file holds the version, the registry's checksum, what it does, and what its sources reach
//! for outside of itself. `cargo xtask deny` compares; `cargo xtask deny --write-keys` writes what is there now, and
//! keeps what was written about a crate by hand.

use super::metadata::{ResolvedMetadata, ResolvedPackage};
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;

/// Where the record is.
pub const FILE: &str = "keys.toml";
const HEAD: &str = "\
# The crates that touch keys: what `primitives` names, and what depends on that, as far as farbus is built with it.
# Written by `cargo xtask deny --write-keys`; `does` and `looked_at` are written by hand, and kept.
# `unsafe_lines` counts the lines with that word outside of comments, `reaches` what of std the sources name.
";
/// The product, whose dependencies count.
const PRODUCT: &str = "farbus";
/// What of the standard library leads out of a crate.
const REACHES: [&str; 4] = ["std::env", "std::fs", "std::net", "std::process"];
/// What stands where nobody has written anything yet.
const UNKNOWN: &str = "?";

#[derive(Debug, Default, Deserialize)]
pub struct KeyCrateRecord {
    primitives: Vec<String>,
    #[serde(default, rename = "crate")]
    crates: Vec<KeyCrate>,
}

#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
struct KeyCrate {
    name: String,
    version: String,
    checksum: String,
    has_build_script: bool,
    unsafe_lines: usize,
    reaches: Vec<String>,
    /// What farbus has it for.
    does: String,
    /// What of it was read, when, and what was found.
    looked_at: String,
}

#[derive(Deserialize)]
struct CargoLock {
    package: Vec<LockedCrate>,
}

#[derive(Deserialize)]
struct LockedCrate {
    name: String,
    version: String,
    checksum: Option<String>,
}

impl KeyCrateRecord {
    pub fn read(root: &Path) -> Result<Self, String> {
        let text = std::fs::read_to_string(root.join(FILE)).map_err(|error| format!("cannot read {FILE}: {error}"))?;
        toml::from_str(&text).map_err(|error| format!("{FILE}: {error}"))
    }

    /// What differs between the record and what is there.
    pub fn check(&self, metadata: &ResolvedMetadata, root: &Path) -> Result<Vec<String>, String> {
        Ok(self.compare(&found(&self.primitives, metadata, root)?))
    }

    fn compare(&self, there: &[KeyCrate]) -> Vec<String> {
        let key = |entry: &KeyCrate| (entry.name.clone(), entry.version.clone());
        let recorded: BTreeMap<_, _> = self.crates.iter().map(|entry| (key(entry), entry)).collect();
        let mut complaints = Vec::new();
        for now in there {
            let Some(before) = recorded.get(&key(now)) else {
                complaints.push(format!("keys: {} {} touches keys and is not in {FILE}", now.name, now.version));
                continue;
            };
            let same = KeyCrate { does: before.does.clone(), looked_at: before.looked_at.clone(), ..now.clone() };
            if same != **before {
                complaints.push(format!("keys: {} {} is not what {FILE} says", now.name, now.version));
            }
            if [&before.does, &before.looked_at].into_iter().any(|text| text.is_empty() || text == UNKNOWN) {
                complaints.push(format!("{FILE}: say what {} does, and what of it was looked at", before.name));
            }
        }
        let there: BTreeSet<_> = there.iter().map(key).collect();
        let gone = recorded.keys().filter(|key| !there.contains(*key));
        complaints.extend(gone.map(|(name, version)| format!("{FILE}: {name} {version} is not used any more")));
        if !complaints.is_empty() {
            complaints.push("look at what changed, then: cargo xtask deny --write-keys".to_owned());
        }
        complaints
    }

    /// Writes the record of what is there; returns how many crates it has.
    pub fn write(&self, metadata: &ResolvedMetadata, root: &Path) -> Result<usize, String> {
        let mut all = found(&self.primitives, metadata, root)?;
        for entry in &mut all {
            let named = || self.crates.iter().filter(|before| before.name == entry.name);
            let before = named().find(|before| before.version == entry.version).or_else(|| named().next());
            if let Some(before) = before {
                entry.does.clone_from(&before.does);
                if before.checksum == entry.checksum {
                    entry.looked_at.clone_from(&before.looked_at);
                }
            }
        }
        let text = self.text(&all);
        std::fs::write(root.join(FILE), text).map_err(|error| format!("cannot write {FILE}: {error}"))?;
        Ok(all.len())
    }

    fn text(&self, all: &[KeyCrate]) -> String {
        let mut text = format!("{HEAD}primitives = {:?}\n", self.primitives);
        for entry in all {
            let KeyCrate { name, version, checksum, has_build_script, unsafe_lines, reaches, does, looked_at } = entry;
            // Writing to a string does not fail.
            let _ = write!(
                text,
                "\n[[crate]]\nname = {name:?}\nversion = {version:?}\nchecksum = {checksum:?}\nhas_build_script = \
                 {has_build_script}\nunsafe_lines = {unsafe_lines}\nreaches = {reaches:?}\ndoes = \
                 {does:?}\nlooked_at = {looked_at:?}\n"
            );
        }
        text
    }
}

/// The crates that touch keys, as they are.
fn found(primitives: &[String], metadata: &ResolvedMetadata, root: &Path) -> Result<Vec<KeyCrate>, String> {
    let lock = std::fs::read_to_string(root.join("Cargo.lock")).map_err(|error| format!("Cargo.lock: {error}"))?;
    let lock: CargoLock = toml::from_str(&lock).map_err(|error| format!("Cargo.lock: {error}"))?;
    let product = metadata.packages.iter().find(|package| package.name == PRODUCT && package.source.is_none());
    let below = metadata.below(&product.ok_or("there is no product")?.id);
    let is_primitive = |package: &&ResolvedPackage| primitives.contains(&package.name);
    let ids: BTreeSet<&str> = metadata.packages.iter().filter(is_primitive).map(|it| it.id.as_str()).collect();
    let touches = |package: &ResolvedPackage| {
        ids.contains(package.id.as_str()) || metadata.direct(&package.id).any(|below| ids.contains(below))
    };
    let is_meant = |package: &&ResolvedPackage| {
        package.source.is_some() && below.contains(package.id.as_str()) && touches(package)
    };
    let mut all = metadata
        .packages
        .iter()
        .filter(is_meant)
        .map(|package| entry(package, &lock))
        .collect::<Result<Vec<_>, String>>()?;
    all.sort_by(|one, other| (&one.name, &one.version).cmp(&(&other.name, &other.version)));
    Ok(all)
}

fn entry(package: &ResolvedPackage, lock: &CargoLock) -> Result<KeyCrate, String> {
    let locked = lock.package.iter().find(|it| it.name == package.name && it.version == package.version);
    let checksum = locked.and_then(|locked| locked.checksum.clone());
    let checksum = checksum.ok_or_else(|| format!("Cargo.lock has no checksum of {}", package.name))?;
    let folder = package.manifest_path.parent().ok_or("a manifest is in a folder")?;
    let mut sources = Vec::new();
    collect(&folder.join("src"), &mut sources)?;
    let lines = || sources.iter().flat_map(|text| text.lines()).filter(|line| !line.trim_start().starts_with("//"));
    let is_word = |line: &&str| line.split(|c: char| !c.is_alphanumeric() && c != '_').any(|word| word == "unsafe");
    let reaches = REACHES.iter().filter(|what| lines().any(|line| line.contains(**what)));
    Ok(KeyCrate {
        name: package.name.clone(),
        version: package.version.clone(),
        checksum,
        has_build_script: folder.join("build.rs").is_file(),
        unsafe_lines: lines().filter(is_word).count(),
        reaches: reaches.map(|what| (*what).to_owned()).collect(),
        does: UNKNOWN.to_owned(),
        looked_at: UNKNOWN.to_owned(),
    })
}

/// The texts of all sources below a folder.
fn collect(folder: &Path, sources: &mut Vec<String>) -> Result<(), String> {
    let trouble = |error: std::io::Error| format!("cannot read {}: {error}", folder.display());
    for item in std::fs::read_dir(folder).map_err(trouble)? {
        let path = item.map_err(trouble)?.path();
        if path.is_dir() {
            collect(&path, sources)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            sources.push(std::fs::read_to_string(&path).map_err(trouble)?);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(name: &str, checksum: &str) -> KeyCrate {
        KeyCrate {
            name: name.to_owned(),
            version: "1.0.0".to_owned(),
            checksum: checksum.to_owned(),
            has_build_script: false,
            unsafe_lines: 2,
            reaches: vec!["std::env".to_owned()],
            does: "signs".to_owned(),
            looked_at: "all of it".to_owned(),
        }
    }

    fn record(crates: Vec<KeyCrate>) -> KeyCrateRecord {
        KeyCrateRecord { primitives: vec!["ring".to_owned()], crates }
    }

    #[test]
    fn a_crate_that_is_new_or_another_or_gone_is_named() {
        let recorded = record(vec![entry("ring", "1"), entry("old", "1")]);
        assert_eq!(record(vec![entry("ring", "1")]).compare(&[entry("ring", "1")]), [""; 0]);
        let complaints = recorded.compare(&[entry("ring", "2"), entry("new", "1")]).join("\n");
        for part in ["ring 1.0.0 is not what", "new 1.0.0 touches keys", "old 1.0.0 is not used", "--write-keys"] {
            assert!(complaints.contains(part), "{part} in {complaints}");
        }
        let reaching = KeyCrate { reaches: vec!["std::net".to_owned()], ..entry("ring", "1") };
        assert!(record(vec![entry("ring", "1")]).compare(&[reaching])[0].contains("ring 1.0.0 is not what"));
    }

    #[test]
    fn a_crate_that_nobody_wrote_about_is_named() {
        let unknown = KeyCrate { looked_at: UNKNOWN.to_owned(), ..entry("ring", "1") };
        let complaints = record(vec![unknown]).compare(&[entry("ring", "1")]);
        assert!(complaints[0].contains("what of it was looked at"), "{complaints:?}");
    }

    #[test]
    fn the_record_is_read_as_it_is_written() {
        let all = vec![entry("ring", "1"), KeyCrate { looked_at: "the \"seal\" path".to_owned(), ..entry("x", "2") }];
        let read: KeyCrateRecord = toml::from_str(&record(Vec::new()).text(&all)).unwrap();
        assert_eq!((read.primitives, read.crates), (vec!["ring".to_owned()], all));
    }
}
