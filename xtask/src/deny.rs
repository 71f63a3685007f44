//! `cargo xtask deny`: what dependencies may be (`deny.toml`).
//!
//! The file is that of `cargo deny`. Where that program is installed it checks too; it cannot be had everywhere, so the
//! same rules are held here against `cargo metadata`:
//!
//! * every licence is allowed,
//! * no crate is there in two versions, but those that `skip` gives a reason for,
//! * no crate is there that `deny` names, and no runtime is below a pure package (`ARCHITECTURE.toml`),
//! * nothing comes from anywhere but the registry and this workspace,
//! * each crate that touches keys is the one of the record (`keys.toml`),
//! * no known advisory concerns a version that is used, where a copy of the advisory database is present.

mod advisories;
mod keys;
mod licence;
mod metadata;

use self::metadata::{ResolvedMetadata, ResolvedPackage};
use crate::cargo::{self, cargo};
use crate::steps::StepSuccess;
use crate::tidy::{self, PackageLayers};
use crate::workspace;
use clap::Args;
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::process::Stdio;

/// Where the rules stand.
const FILE: &str = "deny.toml";

#[derive(Debug, Deserialize)]
struct DenyRules {
    graph: GraphRules,
    advisories: AdvisoryRules,
    licenses: LicenceRules,
    bans: BanRules,
}

#[derive(Debug, Deserialize)]
struct GraphRules {
    targets: Vec<String>,
}

#[derive(Debug, Deserialize)]
struct AdvisoryRules {
    ignore: Vec<IgnoredAdvisory>,
}

#[derive(Debug, Deserialize)]
struct IgnoredAdvisory {
    id: String,
}

#[derive(Debug, Deserialize)]
struct LicenceRules {
    allow: Vec<String>,
}

#[derive(Debug, Deserialize)]
struct BanRules {
    deny: Vec<ListedCrate>,
    skip: Vec<ListedCrate>,
}

/// A crate, `name` or `name@version`, and why it stands there.
#[derive(Debug, Deserialize)]
struct ListedCrate {
    #[serde(rename = "crate")]
    name: String,
    reason: String,
    /// Packages that may depend on it all the same.
    #[serde(default)]
    wrappers: Vec<String>,
}

#[derive(Args, Default)]
pub struct DenyArgs {
    /// Write the record of the crates that touch keys (keys.toml) as they are now, before the check
    #[arg(long)]
    write_keys: bool,
}

pub fn run(arguments: &DenyArgs) -> Result<StepSuccess, String> {
    let root = workspace::root();
    let text = std::fs::read_to_string(root.join(FILE)).map_err(|error| format!("cannot read {FILE}: {error}"))?;
    let rules: DenyRules = toml::from_str(&text).map_err(|error| format!("{FILE}: {error}"))?;
    let mut command = cargo(&["metadata", "--format-version", "1", "--locked"]);
    rules.graph.targets.iter().for_each(|target| {
        command.args(["--filter-platform", target]);
    });
    let metadata: ResolvedMetadata = serde_json::from_slice(&cargo::output(command)?)
        .map_err(|error| format!("cargo metadata cannot be read: {error}"))?;
    if arguments.write_keys {
        let count = keys::KeyCrateRecord::read(&root)?.write(&metadata, &root)?;
        println!("{}: {count} crates", keys::FILE);
    }
    let mut complaints = check(&rules, &metadata, &tidy::layers()?);
    complaints.extend(keys::KeyCrateRecord::read(&root)?.check(&metadata, &root)?);
    let advisories = check_advisories(&rules, &metadata)?;
    complaints.extend(advisories.complaints);
    advisories.notes.iter().for_each(|note| println!("{note}"));
    if is_installed() {
        cargo::run(cargo(&["deny", "--offline", "check", "bans", "licenses", "sources"]))?;
    } else {
        println!("cargo-deny is not installed: its rules were checked without it");
    }
    complaints.iter().for_each(|complaint| println!("{complaint}"));
    match complaints.len() {
        0 => println!("deny: {} packages, nothing to do", metadata.used().len()),
        count => return Err(format!("deny: {count} to mend ({FILE})")),
    }
    Ok(match advisories.skipped {
        Some(why) => {
            println!("ADVISORIES NOT CHECKED: {why}");
            StepSuccess::Without(vec![format!("advisories: {why}; then: cargo xtask deny")])
        }
        None => StepSuccess::All,
    })
}

/// Whether `cargo deny` can be had.
fn is_installed() -> bool {
    let mut command = cargo(&["deny", "--version"]);
    command.stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
}

/// What became of the search for advisories.
#[derive(Default)]
struct AdvisorySearch {
    complaints: Vec<String>,
    notes: Vec<String>,
    skipped: Option<String>,
}

fn check_advisories(rules: &DenyRules, metadata: &ResolvedMetadata) -> Result<AdvisorySearch, String> {
    let Some(database) = advisories::database() else {
        let why = format!("there is no advisory database; have {} name a copy of it", advisories::VARIABLE);
        return Ok(AdvisorySearch { skipped: Some(why), ..AdvisorySearch::default() });
    };
    let mut searched = AdvisorySearch::default();
    for package in metadata.used().iter().filter(|package| package.source.is_some()) {
        for advisory in advisories::of(&database, &package.name)? {
            if !advisory.concerns(&package.version)
                || rules.advisories.ignore.iter().any(|ignored| ignored.id == advisory.id)
            {
                continue;
            }
            let line = format!("advisory {}: {} {}", advisory.id, package.name, package.version);
            match &advisory.informational {
                Some(kind) => searched.notes.push(format!("{line} ({kind})")),
                None => searched.complaints.push(line),
            }
        }
    }
    Ok(searched)
}

fn check(rules: &DenyRules, metadata: &ResolvedMetadata, layers: &PackageLayers) -> Vec<String> {
    let used = metadata.used();
    let mut complaints = licences(rules, &used);
    complaints.extend(versions(rules, &used));
    for package in &used {
        if let Some(denied) = rules.bans.deny.iter().find(|denied| denied.name == package.name) {
            let users = metadata.users(&package.id);
            if users.is_empty() || !users.iter().all(|user| denied.wrappers.contains(user)) {
                complaints.push(format!("banned: {} {}: {}", package.name, package.version, denied.reason));
            }
        }
        if package.source.as_ref().is_some_and(|source| !source.starts_with("registry+")) {
            complaints.push(format!("source: {} {} does not come from the registry", package.name, package.version));
        }
    }
    let names: BTreeMap<&str, &str> = used.iter().map(|package| (package.id.as_str(), package.name.as_str())).collect();
    for package in used.iter().filter(|package| layers.pure.contains(&package.name)) {
        let below = metadata.below(&package.id);
        let mut runtimes = below
            .iter()
            .filter_map(|id| names.get(id))
            .filter(|name| layers.runtimes.iter().any(|runtime| runtime == *name));
        if let Some(runtime) = runtimes.next() {
            complaints.push(format!("layer: {} is pure, and is built with {runtime}", package.name));
        }
    }
    let reasonless = rules.bans.skip.iter().chain(&rules.bans.deny).filter(|named| named.reason.trim().is_empty());
    complaints.extend(reasonless.map(|named| format!("{FILE}: {} has no reason", named.name)));
    complaints
}

fn licences(rules: &DenyRules, used: &[&ResolvedPackage]) -> Vec<String> {
    let allowed: BTreeSet<&str> = rules.licenses.allow.iter().map(String::as_str).collect();
    let judge = |package: &&ResolvedPackage| {
        let named = format!("{} {}", package.name, package.version);
        match &package.license {
            None => Some(format!("licence: {named} names none")),
            Some(text) => match licence::is_allowed(text, &allowed) {
                Ok(true) => None,
                Ok(false) => Some(format!("licence: {named} is under {text}, which {FILE} does not allow")),
                Err(trouble) => Some(format!("licence: {named}: {text}: {trouble}")),
            },
        }
    };
    used.iter().filter_map(judge).collect()
}

/// Each crate once, but for versions that have a reason; and no reason for what is not there twice.
fn versions(rules: &DenyRules, used: &[&ResolvedPackage]) -> Vec<String> {
    let mut versions: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    used.iter().for_each(|package| versions.entry(&package.name).or_default().push(&package.version));
    let is_skipped =
        |name: &str, version: &str| rules.bans.skip.iter().any(|skip| skip.name == format!("{name}@{version}"));
    let mut complaints = Vec::new();
    for (name, all) in &versions {
        let left: Vec<&str> = all.iter().copied().filter(|version| !is_skipped(name, version)).collect();
        if left.len() > 1 {
            complaints.push(format!("duplicate: {name} is there as {}", left.join(" and ")));
        }
    }
    for skip in &rules.bans.skip {
        let is_needed = skip.name.split_once('@').is_some_and(|(name, version)| {
            versions.get(name).is_some_and(|all| all.len() > 1 && all.contains(&version))
        });
        if !is_needed {
            complaints.push(format!("{FILE}: skip {} is no longer needed", skip.name));
        }
    }
    complaints
}

#[cfg(test)]
mod tests {
    use super::metadata::{DependencyKind, NodeDependency, ResolveGraph, ResolveNode};
    use super::*;

    fn rules() -> DenyRules {
        toml::from_str(
            "[graph]\ntargets = []\n[advisories]\nignore = []\n[licenses]\nallow = [\"MIT\"]\n[bans]\n\
             deny = [{ crate = \"openssl-sys\", reason = \"rustls\" }, { crate = \"usbip\", wrappers = [\"rig\"], reason = \"a peer\" }]\nskip = [{ crate = \"syn@1.0.0\", reason = \"old\" }]\n",
        )
        .unwrap()
    }

    /// Packages as `name version licence source`, and dependencies as `from to`.
    fn metadata(packages: &[[&str; 4]], needs: &[(&str, &str)]) -> ResolvedMetadata {
        let package = |[name, version, license, source]: &[&str; 4]| ResolvedPackage {
            id: format!("{name}@{version}"),
            name: (*name).into(),
            version: (*version).into(),
            manifest_path: "Cargo.toml".into(),
            license: (!license.is_empty()).then(|| (*license).to_owned()),
            source: (!source.is_empty()).then(|| (*source).to_owned()),
        };
        let packages: Vec<ResolvedPackage> = packages.iter().map(package).collect();
        let deps = |id: &str| {
            needs
                .iter()
                .filter(|(from, _)| *from == id)
                .map(|(_, to)| NodeDependency { pkg: (*to).to_owned(), dep_kinds: vec![DependencyKind { kind: None }] })
                .collect()
        };
        let nodes =
            packages.iter().map(|package| ResolveNode { id: package.id.clone(), deps: deps(&package.id) }).collect();
        ResolvedMetadata { packages, resolve: ResolveGraph { nodes } }
    }

    fn layers() -> PackageLayers {
        PackageLayers { pure: ["wire".to_owned()].into(), runtimes: vec!["tokio".to_owned()] }
    }

    const SYN: [[&str; 4]; 2] = [["syn", "1.0.0", "MIT", "registry+x"], ["syn", "2.0.0", "MIT", "registry+x"]];

    fn complaints(packages: &[[&str; 4]], needs: &[(&str, &str)]) -> Vec<String> {
        check(&rules(), &metadata(&[packages, &SYN].concat(), needs), &layers())
    }

    #[test]
    fn what_the_rules_allow_passes() {
        assert_eq!(complaints(&[["wire", "0.1.0", "MIT", ""]], &[]), [""; 0]);
    }

    #[test]
    fn a_licence_that_is_not_allowed_or_not_named_is_refused() {
        let messages = complaints(&[["a", "1.0.0", "GPL-3.0", "registry+x"], ["b", "1.0.0", "", "registry+x"]], &[]);
        assert_eq!(
            messages,
            ["licence: a 1.0.0 is under GPL-3.0, which deny.toml does not allow", "licence: b 1.0.0 names none"]
        );
    }

    #[test]
    fn a_second_version_needs_a_reason() {
        let messages = complaints(&[["syn", "3.0.0", "MIT", "registry+x"]], &[]);
        assert_eq!(messages, ["duplicate: syn is there as 3.0.0 and 2.0.0"]);
        let alone = check(&rules(), &metadata(&SYN[1..], &[]), &layers());
        assert_eq!(alone, ["deny.toml: skip syn@1.0.0 is no longer needed"]);
    }

    #[test]
    fn banned_crates_and_other_sources_are_refused() {
        let messages = complaints(&[["openssl-sys", "1.0.0", "MIT", "git+https://example.org"]], &[]);
        assert_eq!(messages.len(), 2, "{messages:?}");
        assert!(
            messages[0].starts_with("banned: openssl-sys") && messages[1].starts_with("source: openssl-sys"),
            "{messages:?}"
        );
    }

    #[test]
    fn a_banned_crate_is_allowed_below_its_wrappers_alone() {
        let packages =
            [["usbip", "1.0.0", "MIT", "registry+x"], ["rig", "0.1.0", "MIT", ""], ["farbus", "0.1.0", "MIT", ""]];
        let wrapped = [("rig@0.1.0", "usbip@1.0.0")];
        assert_eq!(complaints(&packages, &wrapped), [""; 0]);
        let messages = complaints(&packages, &[wrapped[0], ("farbus@0.1.0", "usbip@1.0.0")]);
        assert_eq!(messages, ["banned: usbip 1.0.0: a peer"]);
    }

    #[test]
    fn a_pure_package_is_built_with_no_runtime_however_far_below() {
        let packages = [
            ["wire", "0.1.0", "MIT", ""],
            ["helper", "1.0.0", "MIT", "registry+x"],
            ["tokio", "1.0.0", "MIT", "registry+x"],
        ];
        let messages = complaints(&packages, &[("wire@0.1.0", "helper@1.0.0"), ("helper@1.0.0", "tokio@1.0.0")]);
        assert_eq!(messages, ["layer: wire is pure, and is built with tokio"]);
    }
}
