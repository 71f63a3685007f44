//! `cargo xtask release`: a version, from the commit that main is at (docs/releasing.md).

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::Args;

use crate::cargo::{self, cargo};
use crate::releases::{self, Release};
use crate::{git, package, sbom, workspace};

/// What a version is called while it is not released.
const UNRELEASED: &str = "-dev";
/// What the changelog says behind such a version.
const NOT_YET: &str = ", not released yet";
/// Words of a version's section of the changelog.
const WORDS_MAX: usize = 1_500;

#[derive(Args)]
#[command(
    after_help = "Two commits: the release, and the next version. Packages, digests and a bill of materials go to
target/release-VERSION. Nothing is pushed or published.

Examples:
  cargo xtask release --dry-run            everything that can be wrong, and what would be written
  cargo xtask release                      the version that main says, without '-dev'
  cargo xtask release --next 1.0.0         and main says 1.0.0-dev afterwards"
)]
pub struct MakeReleaseArgs {
    /// The version that main is afterwards [default: the next minor one]
    #[arg(long)]
    next: Option<String>,
    /// Check everything and show what would be written; change, commit and build nothing
    #[arg(long)]
    dry_run: bool,
}

/// A release of this tree without its changes: whether one could be made.
///
/// # Errors
/// Why not.
pub fn check() -> Result<(), String> {
    let root = workspace::root();
    rehearse(&root, &ReleasePlan::of(&root, None, &today()?)?)
}

/// Shows what would be written.
fn rehearse(root: &Path, plan: &ReleasePlan) -> Result<(), String> {
    let commit = git::commit(root, "HEAD").unwrap_or_default();
    let bill = sbom::of_program(root, &plan.version, &commit, &plan.date)?;
    println!("version {} of {}, then {}{UNRELEASED}", plan.version, plan.date, plan.next);
    plan.released.iter().for_each(|(path, text)| println!("  {path}: {} bytes", text.len()));
    println!("  bill of materials: {} packages", bill["packages"].as_array().map_or(0, Vec::len));
    println!("nothing was written: cargo xtask release");
    Ok(())
}

/// What a release changes.
struct ReleasePlan {
    version: String,
    next: String,
    date: String,
    /// Files with their content in the commit that is released.
    released: Vec<(&'static str, String)>,
}

pub fn run(arguments: &MakeReleaseArgs) -> Result<(), String> {
    let root = workspace::root();
    let plan = ReleasePlan::of(&root, arguments.next.as_deref(), &today()?)?;
    if arguments.dry_run {
        return rehearse(&root, &plan);
    }
    if !git::output(&root, &["status", "--porcelain"])?.is_empty() {
        return Err("the tree has changes that are not committed: git status".into());
    }
    write(&root, &plan.released)?;
    let commit = make_commit(&root, &format!("farbus {}", plan.version))?;
    let folder = root.join(format!("target/release-{}", plan.version));
    build(&root, &plan, &commit, &folder)?;
    let release = Release { version: plan.version.clone(), date: plan.date.clone(), commit: commit.clone() };
    write(&root, &plan.next_files(&root, &release)?)?;
    make_commit(&root, &format!("farbus {}{UNRELEASED}", plan.next))?;
    println!("released {} from commit {commit}; what to publish is in {}", plan.version, folder.display());
    println!("next: docs/releasing.md, 'After it'");
    Ok(())
}

impl ReleasePlan {
    fn of(root: &Path, next: Option<&str>, date: &str) -> Result<Self, String> {
        let manifest = read(root, "Cargo.toml")?;
        let current = env!("CARGO_PKG_VERSION");
        let version = current.strip_suffix(UNRELEASED);
        let version =
            version.ok_or_else(|| format!("main says {current}, which is released: 'VERSION{UNRELEASED}' is not"))?;
        let next = next.map_or_else(|| next_minor(version), |next| Ok(next.to_owned()))?;
        if releases::last(root)?.version == version {
            return Err(format!("{} names {version} already", releases::NAMED));
        }
        let released = vec![
            ("Cargo.toml", with_version(&manifest, current, version)),
            ("Cargo.lock", with_version(&read(root, "Cargo.lock")?, current, version)),
            ("CHANGELOG.md", dated(&read(root, "CHANGELOG.md")?, version, date)?),
        ];
        Ok(Self { version: version.to_owned(), next, date: date.to_owned(), released })
    }

    /// What the commit after the release changes.
    fn next_files(&self, root: &Path, release: &Release) -> Result<Vec<(&'static str, String)>, String> {
        let next = format!("{}{UNRELEASED}", self.next);
        let changelog = read(root, "CHANGELOG.md")?;
        let heading = format!("## {}, {}", self.version, self.date);
        let begun = changelog.replacen(&heading, &format!("## {}{NOT_YET}\n\n{heading}", self.next), 1);
        Ok(vec![
            ("Cargo.toml", with_version(&read(root, "Cargo.toml")?, &self.version, &next)),
            ("Cargo.lock", with_version(&read(root, "Cargo.lock")?, &self.version, &next)),
            ("CHANGELOG.md", begun),
            (releases::NAMED, releases::with(&read(root, releases::NAMED)?, release)),
        ])
    }
}

/// Packages, bill of materials and digests of what was released, in `folder`.
fn build(root: &Path, plan: &ReleasePlan, commit: &str, folder: &Path) -> Result<(), String> {
    // A process of its own: it has the new version.
    cargo::run(cargo(&["xtask", "package"]))?;
    fs::create_dir_all(folder).map_err(|error| format!("cannot make {}: {error}", folder.display()))?;
    let mut files = Vec::new();
    for made in package::made(&plan.version)? {
        let name = made.file_name().ok_or("a package has no name")?.to_owned();
        let kept = folder.join(&name);
        fs::copy(&made, &kept).map_err(|error| format!("cannot keep {}: {error}", made.display()))?;
        files.push(PathBuf::from(name));
    }
    let bill = sbom::of_program(root, &plan.version, commit, &plan.date)?;
    let name = format!("farbus-{}.spdx.json", plan.version);
    let text = serde_json::to_string_pretty(&bill).map_err(|error| error.to_string())?;
    fs::write(folder.join(&name), text + "\n").map_err(|error| format!("cannot write {name}: {error}"))?;
    files.push(name.into());
    let mut sums = Command::new("sha256sum");
    sums.arg("--").args(&files).current_dir(folder);
    let sums = cargo::output(sums)?;
    fs::write(folder.join("SHA256SUMS"), sums).map_err(|error| format!("cannot write SHA256SUMS: {error}"))
}

fn read(root: &Path, path: &str) -> Result<String, String> {
    fs::read_to_string(root.join(path)).map_err(|error| format!("cannot read {path}: {error}"))
}

fn write(root: &Path, files: &[(&'static str, String)]) -> Result<(), String> {
    let write = |(path, text): &(&str, String)| {
        fs::write(root.join(path), text).map_err(|error| format!("cannot write {path}: {error}"))
    };
    files.iter().try_for_each(write)
}

/// Commits everything that changed, and returns the commit.
fn make_commit(root: &Path, message: &str) -> Result<String, String> {
    git::output(root, &["commit", "--all", "--message", message])?;
    git::commit(root, "HEAD").ok_or_else(|| "git knows no commit HEAD here".into())
}

/// Today, UTC, `YYYY-MM-DD`.
fn today() -> Result<String, String> {
    let mut date = Command::new("date");
    date.args(["--utc", "+%F"]);
    Ok(String::from_utf8_lossy(&cargo::output(date)?).trim().to_owned())
}

fn next_minor(version: &str) -> Result<String, String> {
    let mut parts = version.split('.').map(str::parse::<u32>);
    match (parts.next(), parts.next()) {
        (Some(Ok(major)), Some(Ok(minor))) => Ok(format!("{major}.{}.0", minor + 1)),
        _ => Err(format!("'{version}' is no version: --next NUMBER.NUMBER.NUMBER")),
    }
}

/// The manifest or lock file with another version of the product's packages. Others may have the same one.
fn with_version(text: &str, before: &str, after: &str) -> String {
    let (before, after) = (format!("version = \"{before}\""), format!("version = \"{after}\""));
    let mut is_ours = true;
    let line = |line: &str| {
        if let Some(name) = line.strip_prefix("name = \"") {
            is_ours = name.starts_with("farbus") || name.starts_with("xtask");
        }
        if is_ours { line.replace(&before, &after) } else { line.to_owned() }
    };
    text.lines().map(line).map(|line| line + "\n").collect()
}

/// The changelog with the day of a version.
///
/// # Errors
/// It has no section of that version, or one that nobody will read.
fn dated(changelog: &str, version: &str, date: &str) -> Result<String, String> {
    let heading = format!("## {version}{NOT_YET}\n");
    let (_, section) =
        changelog.split_once(&heading).ok_or_else(|| format!("CHANGELOG.md has no line '{}'", heading.trim()))?;
    let words = section.split("\n## ").next().unwrap_or_default().split_whitespace().count();
    match words {
        0 => Err(format!("CHANGELOG.md says nothing of {version}")),
        words if words > WORDS_MAX => Err(format!(
            "CHANGELOG.md has {words} words of {version}, {WORDS_MAX} are allowed: what does a user notice?"
        )),
        _ => Ok(changelog.replacen(&heading, &format!("## {version}, {date}\n"), 1)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn release_of_this_tree_is_planned_and_the_next_version_begins_after_it() {
        let root = workspace::root();
        let plan = ReleasePlan::of(&root, None, "2030-01-02").unwrap();
        let text = |path: &str| &plan.released.iter().find(|(of, _)| *of == path).unwrap().1;
        let version = format!("version = \"{}\"", plan.version);
        assert!(text("Cargo.toml").contains(&version) && !text("Cargo.toml").contains(UNRELEASED));
        assert!(text("Cargo.lock").contains(&format!("name = \"farbus-cli\"\n{version}\n")));
        assert!(text("CHANGELOG.md").contains(&format!("\n## {}, 2030-01-02\n", plan.version)));
        let release = Release { version: plan.version.clone(), date: "2030-01-02".into(), commit: "0".repeat(40) };
        let next = plan.next_files(&root, &release).unwrap();
        assert!(next.iter().any(|(path, text)| *path == releases::NAMED && text.contains(&release.commit)));
    }

    #[test]
    fn version_of_our_packages_alone_is_changed() {
        let lock = "name = \"farbus-io-net\"\nversion = \"0.2.0-dev\"\n\nname = \"other\"\nversion = \"0.2.0-dev\"\n";
        let changed = "name = \"farbus-io-net\"\nversion = \"0.2.0\"\n\nname = \"other\"\nversion = \"0.2.0-dev\"\n";
        assert_eq!(with_version(lock, "0.2.0-dev", "0.2.0"), changed);
    }

    #[test]
    fn changelog_without_a_section_or_with_too_long_a_one_is_refused() {
        let long = format!("# Changes\n\n## 0.2.0, not released yet\n\n{}\n## 0.1.0\n", "word ".repeat(WORDS_MAX + 1));
        assert!(dated(&long, "0.2.0", "2030-01-02").unwrap_err().contains("1501 words"));
        assert!(dated(&long, "0.3.0", "2030-01-02").unwrap_err().contains("no line '## 0.3.0, not released yet'"));
        assert!(dated("## 0.2.0, not released yet\n", "0.2.0", "2030-01-02").unwrap_err().contains("says nothing"));
    }

    #[test]
    fn next_version_is_the_next_minor_one() {
        assert_eq!(next_minor("0.2.0").as_deref(), Ok("0.3.0"));
        assert!(next_minor("two").is_err());
    }
}
