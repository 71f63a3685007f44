//! A copy of the advisory database: `crates/NAME/ID.md`, each with a table in TOML at its beginning.

use serde::Deserialize;
use std::path::{Path, PathBuf};

/// Names the folder of the copy.
pub const VARIABLE: &str = "FARBUS_ADVISORY_DB";

/// A known defect of a crate.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Advisory {
    pub id: String,
    /// Set if it is no vulnerability: `unmaintained`, `unsound`, `notice`.
    pub informational: Option<String>,
    /// Versions that do not have the defect: any of these requirements holds.
    mended: Vec<String>,
}

#[derive(Deserialize)]
struct AdvisoryFile {
    advisory: AdvisoryHeader,
    #[serde(default)]
    versions: AdvisoryVersions,
}

#[derive(Deserialize)]
struct AdvisoryHeader {
    id: String,
    informational: Option<String>,
    withdrawn: Option<toml::Value>,
}

#[derive(Default, Deserialize)]
struct AdvisoryVersions {
    #[serde(default)]
    patched: Vec<String>,
    #[serde(default)]
    unaffected: Vec<String>,
}

/// Where a copy is: the folder that the environment names, or one that `cargo deny` or `cargo audit` fetched.
pub fn database() -> Option<PathBuf> {
    if let Some(named) = std::env::var_os(VARIABLE) {
        return Some(PathBuf::from(named));
    }
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cargo")))?;
    let fetched =
        std::fs::read_dir(home.join("advisory-dbs")).into_iter().flatten().flatten().map(|entry| entry.path());
    fetched.chain([home.join("advisory-db")]).find(|folder| folder.join("crates").is_dir())
}

/// The advisories about a crate.
///
/// # Errors
/// There is no database, or a file of it cannot be read.
pub fn of(database: &Path, name: &str) -> Result<Vec<Advisory>, String> {
    let crates = database.join("crates");
    if !crates.is_dir() {
        return Err(format!("{} is no advisory database", database.display()));
    }
    let files = std::fs::read_dir(crates.join(name)).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut advisories = Vec::new();
    for path in files.filter(|path| path.extension().is_some_and(|end| end == "md")) {
        let text =
            std::fs::read_to_string(&path).map_err(|error| format!("cannot read {}: {error}", path.display()))?;
        advisories.extend(parse(&text).map_err(|error| format!("{}: {error}", path.display()))?);
    }
    Ok(advisories)
}

/// Nothing for one that was withdrawn.
fn parse(text: &str) -> Result<Option<Advisory>, String> {
    let table = text.split_once("```toml").and_then(|(_, rest)| rest.split_once("```")).ok_or("it has no table")?.0;
    let AdvisoryFile { advisory, versions } = toml::from_str(table).map_err(|error| error.to_string())?;
    if advisory.withdrawn.is_some() {
        return Ok(None);
    }
    let mended = [versions.patched, versions.unaffected].concat();
    Ok(Some(Advisory { id: advisory.id, informational: advisory.informational, mended }))
}

impl Advisory {
    /// Whether this version has the defect. One whose requirements cannot be read has it.
    pub fn concerns(&self, version: &str) -> bool {
        let Some(version) = numbers(version) else { return true };
        !self.mended.iter().any(|requirement| meets(version, requirement).unwrap_or(false))
    }
}

type VersionTriple = [u64; 3];

/// `1.2.3`, `1.2` or `1`; what a pre-release or a build adds does not count.
fn numbers(text: &str) -> Option<VersionTriple> {
    let plain = text.trim().split(['-', '+']).next()?;
    let mut version = [0; 3];
    let mut parts = plain.split('.');
    for (at, part) in parts.by_ref().take(3).enumerate() {
        version[at] = part.parse().ok()?;
    }
    parts.next().is_none().then_some(version)
}

/// Whether a version meets all parts of a requirement: `>= 1.2.3, < 2`, `^1.2`, `~1.2.3`, `=1.2.3`.
fn meets(version: VersionTriple, requirement: &str) -> Option<bool> {
    let mut holds = true;
    for part in requirement.split(',') {
        let part = part.trim();
        let end = part.find(|c: char| c.is_ascii_digit())?;
        let (operator, text) = part.split_at(end);
        let bound = numbers(text)?;
        holds &= match operator.trim() {
            ">=" => version >= bound,
            ">" => version > bound,
            "<=" => version <= bound,
            "<" => version < bound,
            "=" => version == bound,
            "~" => version >= bound && version[..2] == bound[..2],
            "^" | "" => {
                // All up to the first number that is not zero stays.
                let kept = bound.iter().position(|&number| number > 0).unwrap_or(2) + 1;
                version >= bound && version[..kept] == bound[..kept]
            }
            _ => return None,
        };
    }
    Some(holds)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "```toml\n[advisory]\nid = \"RUSTSEC-2020-0001\"\npackage = \"a\"\ndate = \"2020-01-01\"\n\
        [versions]\npatched = [\">= 1.2.3\", \"^0.9.7\"]\nunaffected = [\"< 0.5\"]\n```\n# Title\n";

    #[test]
    fn mended_and_older_versions_are_not_concerned() {
        let advisory = parse(TEXT).unwrap().unwrap();
        assert_eq!((advisory.id.as_str(), &advisory.informational), ("RUSTSEC-2020-0001", &None));
        for (version, expected) in
            [("1.2.2", true), ("1.2.3", false), ("0.9.8", false), ("0.10.0", true), ("0.4.9", false), ("?", true)]
        {
            assert_eq!(advisory.concerns(version), expected, "{version}");
        }
    }

    #[test]
    fn one_that_nobody_mended_concerns_all_versions_and_a_withdrawn_one_none() {
        let text = TEXT.replace("patched = [\">= 1.2.3\", \"^0.9.7\"]\nunaffected = [\"< 0.5\"]\n", "patched = []\n");
        assert!(parse(&text).unwrap().unwrap().concerns("9.0.0"));
        let text = TEXT.replace("date =", "withdrawn = \"2021-01-01\"\ndate =");
        assert_eq!(parse(&text).unwrap(), None);
        assert!(parse("no table").is_err());
    }

    #[test]
    fn requirements_are_those_of_cargo() {
        for (version, requirement, expected) in [
            ("1.2.3", ">= 1.2, < 2", Some(true)),
            ("2.0.0", ">= 1.2, < 2", Some(false)),
            ("0.2.9", "^0.2.3", Some(true)),
            ("0.3.0", "^0.2.3", Some(false)),
            ("0.0.4", "^0.0.3", Some(false)),
            ("1.2.9", "~1.2.3", Some(true)),
            ("1.3.0", "~1.2.3", Some(false)),
            ("1.2.3-rc.1", "= 1.2.3", Some(true)),
            ("1.2.3", "?? 1", None),
        ] {
            assert_eq!(meets(numbers(version).unwrap(), requirement), expected, "{version} {requirement}");
        }
    }

    #[test]
    fn a_folder_without_crates_is_no_database() {
        assert!(of(Path::new("/nonexistent"), "a").unwrap_err().contains("no advisory database"));
    }
}
