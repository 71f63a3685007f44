//! The releases of this tree, in `xtask/releases.toml`: by commit, since tags may not travel.

use std::fs;
use std::path::Path;

use serde::Deserialize;

/// Where the releases are named.
pub const NAMED: &str = "xtask/releases.toml";

/// A release, as `xtask/releases.toml` names it.
#[derive(Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Release {
    /// Its number, such as `0.1.0`.
    pub version: String,
    /// The day on which it was made, `YYYY-MM-DD`.
    pub date: String,
    /// The commit that it was built from, 40 hexadecimal digits.
    pub commit: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ReleaseList {
    release: Vec<Release>,
}

/// The last release.
///
/// # Errors
/// The list cannot be read, is wrong or is empty.
pub fn last(root: &Path) -> Result<Release, String> {
    all(root)?.pop().ok_or_else(|| format!("{NAMED} names no release"))
}

/// All releases, the oldest first.
///
/// # Errors
/// The list cannot be read or is wrong.
pub fn all(root: &Path) -> Result<Vec<Release>, String> {
    let text = fs::read_to_string(root.join(NAMED)).map_err(|error| format!("cannot read {NAMED}: {error}"))?;
    parse(&text)
}

/// The releases of a list, the oldest first.
///
/// # Errors
/// It is none, or one of them has no whole commit.
fn parse(text: &str) -> Result<Vec<Release>, String> {
    let all = toml::from_str::<ReleaseList>(text).map_err(|error| format!("{NAMED}: {error}"))?.release;
    let is_whole = |commit: &str| commit.len() == 40 && commit.bytes().all(|byte| byte.is_ascii_hexdigit());
    match all.iter().find(|release| !is_whole(&release.commit)) {
        Some(release) => Err(format!("{NAMED}: release {} has no whole commit", release.version)),
        None => Ok(all),
    }
}

/// The list with one release more.
pub fn with(text: &str, Release { version, date, commit }: &Release) -> String {
    let text = text.trim_end();
    format!("{text}\n\n[[release]]\nversion = \"{version}\"\ndate = \"{date}\"\ncommit = \"{commit}\"\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workspace;

    #[test]
    fn releases_are_named_by_whole_commits_and_one_more_is_the_last() {
        let text = fs::read_to_string(workspace::root().join(NAMED)).unwrap();
        let before = parse(&text).unwrap();
        let next = Release { version: "9.9.9".into(), date: "2030-01-01".into(), commit: "0123456789".repeat(4) };
        let after = parse(&with(&text, &next)).unwrap();
        assert_eq!((&after[..before.len()], &after[before.len()..]), (&before[..], &[next][..]));
        let short = with(&text, &Release { version: "9".into(), date: String::new(), commit: "0123".into() });
        assert!(parse(&short).unwrap_err().contains("no whole commit"));
    }
}
