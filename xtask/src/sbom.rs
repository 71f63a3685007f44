//! The bill of materials of the program: every package that is built into it, as SPDX 2.3 in JSON.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;
use serde_json::{Value, json};

use crate::cargo::{self, cargo};

/// What [`SbomPackage`] is read from: name, version, licence and where it is from, a line each.
const FORMAT: &str = "{p}\t{l}";

/// A package of the program.
#[derive(Debug, PartialEq, Eq)]
struct SbomPackage {
    name: String,
    version: String,
    licence: String,
    /// Of a package that was downloaded, SHA-256 of its archive, as `Cargo.lock` has it.
    sha256: Option<String>,
}

/// `Cargo.lock`, as far as it is read.
#[derive(Deserialize)]
struct LockFile {
    package: Vec<LockedPackage>,
}

#[derive(Deserialize)]
struct LockedPackage {
    name: String,
    version: String,
    checksum: Option<String>,
}

/// The bill of the program in the sources in `root`, for `version` at `commit` on a day (`YYYY-MM-DD`).
///
/// # Errors
/// cargo does not say what the program consists of.
pub fn of_program(root: &Path, version: &str, commit: &str, date: &str) -> Result<Value, String> {
    let mut tree = cargo(&["tree", "--locked", "-p", "farbus-cli", "-e", "normal", "--prefix", "none", "-f", FORMAT]);
    tree.current_dir(root);
    let tree = String::from_utf8_lossy(&cargo::output(tree)?).into_owned();
    let lock = std::fs::read_to_string(root.join("Cargo.lock")).map_err(|error| format!("Cargo.lock: {error}"))?;
    bill(&packages(&tree, &lock)?, version, commit, date)
}

/// The packages of a tree, each once, in the order of their names.
fn packages(tree: &str, lock: &str) -> Result<Vec<SbomPackage>, String> {
    let lock: LockFile = toml::from_str(lock).map_err(|error| format!("Cargo.lock: {error}"))?;
    let mut all = BTreeMap::new();
    for line in tree.lines().map(|line| line.trim_end_matches(" (*)")) {
        let mut fields = line.split('\t');
        let (package, licence) = (fields.next().unwrap_or_default(), fields.next().unwrap_or_default());
        let mut words = package.split_whitespace();
        let (Some(name), Some(version)) = (words.next(), words.next().and_then(|word| word.strip_prefix('v'))) else {
            return Err(format!("cargo tree printed a line that names no package: '{line}'"));
        };
        let locked = lock.package.iter().find(|locked| locked.name == name && locked.version == version);
        let locked = locked.ok_or_else(|| format!("{name} {version} is not in Cargo.lock"))?;
        let licence = licence.trim_end_matches(" (*)").to_owned();
        let package = SbomPackage {
            name: name.to_owned(),
            version: version.to_owned(),
            licence,
            sha256: locked.checksum.clone(),
        };
        all.insert((package.name.clone(), package.version.clone()), package);
    }
    Ok(all.into_values().collect())
}

fn bill(packages: &[SbomPackage], version: &str, commit: &str, date: &str) -> Result<Value, String> {
    let id = |package: &SbomPackage| format!("SPDXRef-{}-{}", package.name, package.version).replace(['_', '+'], "-");
    let program = packages.iter().find(|package| package.name == "farbus-cli").ok_or("no farbus-cli in the program")?;
    let described = packages.iter().map(|package| {
        let SbomPackage { name, version, licence, sha256 } = package;
        let licence = if licence.is_empty() { "NOASSERTION".to_owned() } else { licence.replace('/', " OR ") };
        let mut described = json!({
            "SPDXID": id(package),
            "name": name,
            "versionInfo": version,
            "downloadLocation": "NOASSERTION",
            "licenseDeclared": licence,
            "licenseConcluded": "NOASSERTION",
            "copyrightText": "NOASSERTION",
            "filesAnalyzed": false,
        });
        if let Some(sha256) = sha256 {
            described["checksums"] = json!([{ "algorithm": "SHA256", "checksumValue": sha256 }]);
            described["externalRefs"] = json!([{
                "referenceCategory": "PACKAGE-MANAGER",
                "referenceType": "purl",
                "referenceLocator": format!("pkg:cargo/{name}@{version}"),
            }]);
        }
        described
    });
    let described: Vec<Value> = described.collect();
    let relations = packages.iter().filter(|package| *package != program).map(|package| {
        json!({
            "spdxElementId": id(program),
            "relationshipType": "DEPENDS_ON",
            "relatedSpdxElement": id(package),
        })
    });
    let describes = json!({
        "spdxElementId": "SPDXRef-DOCUMENT",
        "relationshipType": "DESCRIBES",
        "relatedSpdxElement": id(program),
    });
    let relations: Vec<Value> = std::iter::once(describes).chain(relations).collect();
    Ok(json!({
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "SPDXID": "SPDXRef-DOCUMENT",
        "name": format!("farbus-{version}"),
        "documentNamespace": format!("urn:farbus:sbom:{version}:{commit}"),
        "creationInfo": { "created": format!("{date}T00:00:00Z"), "creators": ["Tool: cargo xtask release"] },
        "packages": described,
        "relationships": relations,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bill_has_each_package_once_with_its_checksum_and_says_what_the_program_consists_of() {
        let tree = "farbus-cli v0.2.0 (/src/cli)\tMIT OR Apache-2.0\nserde v1.0.1\tMIT/Apache-2.0\nserde v1.0.1\tMIT/Apache-2.0 (*)\n";
        let lock = "[[package]]\nname = \"farbus-cli\"\nversion = \"0.2.0\"\n\n\
                    [[package]]\nname = \"serde\"\nversion = \"1.0.1\"\nchecksum = \"ab\"\n";
        let packages = packages(tree, lock).unwrap();
        assert_eq!(packages.len(), 2, "{packages:?}");
        let bill = bill(&packages, "0.2.0", "0123", "2026-12-01").unwrap();
        let serde = &bill["packages"][1];
        assert_eq!(serde["licenseDeclared"], "MIT OR Apache-2.0");
        assert_eq!(serde["checksums"][0]["checksumValue"], "ab");
        assert_eq!(bill["relationships"][0]["relatedSpdxElement"], "SPDXRef-farbus-cli-0.2.0");
        assert_eq!(bill["relationships"][1]["relatedSpdxElement"], "SPDXRef-serde-1.0.1");
        assert_eq!(bill["creationInfo"]["created"], "2026-12-01T00:00:00Z");
    }

    #[test]
    fn package_that_is_not_in_the_lock_file_is_refused() {
        let error = packages("serde v1.0.1\tMIT\n", "package = []").unwrap_err();
        assert_eq!(error, "serde 1.0.1 is not in Cargo.lock");
    }
}
