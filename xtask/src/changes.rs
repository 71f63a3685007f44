//! Which files changed, and since when.
//!
//! `check` asks what the work at hand changed. The gate asks a stricter question: what changed since a state that is
//! known to have passed it. Where that is not known, everything counts as changed.

use crate::git;
use std::collections::BTreeSet;
use std::path::Path;

/// Names the commit that passed the gate last: what CI knows and this program cannot.
pub const BASE_VARIABLE: &str = "FARBUS_GATE_BASE";
/// Where landed commits are: the first of these that exists.
const MAINS: [&str; 2] = ["origin/main", "main"];
/// On the main branch itself nothing says how many commits landed together. Those of so many seconds before the newest
/// one count as one landing.
const LANDING_S: i64 = 12 * 3600;

/// What changed since a state that passed the gate, as far as that is known.
#[derive(Debug, PartialEq, Eq)]
pub enum WorkspaceChanges {
    /// Files that differ from a commit, those that are not committed among them.
    Since(ChangedFiles),
    /// There is nothing to compare with; holds the reason.
    Unknown(String),
}

/// Files that differ from a commit.
#[derive(Debug, PartialEq, Eq)]
pub struct ChangedFiles {
    /// The commit, and why it was chosen.
    pub base: String,
    /// Paths relative to the workspace. A file that moved is there under both names.
    pub files: BTreeSet<String>,
}

/// What the work at hand changed: since `since`, or since this branch left the main one; on the main branch, what is
/// not committed.
///
/// # Errors
/// `since` is no commit here, or git cannot list files.
pub fn at_hand(root: &Path, since: Option<&str>) -> Result<ChangedFiles, String> {
    let (commit, why) = match since {
        Some(name) => {
            (git::commit(root, name).ok_or_else(|| format!("{name} is no commit of this repository"))?, "as asked")
        }
        None => match unlanded(root) {
            Some((commit, _)) => (commit, "where this branch left the main one"),
            None => (git::commit(root, "HEAD").ok_or("this is no git repository with a commit")?, "the newest commit"),
        },
    };
    compared(root, &commit, why)
}

/// What changed since a state that passed the gate, as far as that is known.
pub fn since_passed(root: &Path) -> WorkspaceChanges {
    let named = std::env::var(BASE_VARIABLE).ok().filter(|name| !name.is_empty());
    match passed(root, named.as_deref()).and_then(|(commit, why)| compared(root, &commit, &why)) {
        Ok(since) => WorkspaceChanges::Since(since),
        Err(why) => WorkspaceChanges::Unknown(why),
    }
}

/// The commit that passed, and how that is known.
fn passed(root: &Path, named: Option<&str>) -> Result<(String, String), String> {
    if let Some(name) = named {
        let commit = git::commit(root, name)
            .ok_or_else(|| format!("{BASE_VARIABLE}={name} is no commit here: a shallow clone?"))?;
        return Ok((commit, format!("named by {BASE_VARIABLE}")));
    }
    if let Some((commit, main)) = unlanded(root) {
        return Ok((commit, format!("where this branch left {main}")));
    }
    let time =
        git::line(root, &["show", "--no-patch", "--format=%ct", "HEAD"]).and_then(|time| time.parse::<i64>().ok());
    let before = time.ok_or("this is no git repository with a commit")? - LANDING_S;
    let before = format!("--before={before}");
    let commit = git::line(root, &["rev-list", "--first-parent", "--max-count=1", &before, "HEAD"]);
    let hours = LANDING_S / 3600;
    match commit.and_then(|commit| git::commit(root, &commit)) {
        Some(commit) => Ok((commit, format!("the last commit that is {hours} hours older than the newest"))),
        None => Err(format!(
            "no commit here is {hours} hours older than the newest (a shallow clone?), and {BASE_VARIABLE} names none"
        )),
    }
}

/// Where this branch left the main one, and the main one's name; nothing if all commits of this branch have landed.
fn unlanded(root: &Path) -> Option<(String, &'static str)> {
    let head = git::commit(root, "HEAD")?;
    let main = MAINS.into_iter().find(|main| git::commit(root, main).is_some())?;
    let base = git::line(root, &["merge-base", "HEAD", main])?;
    (base != head && git::commit(root, &base).is_some()).then_some((base, main))
}

fn compared(root: &Path, commit: &str, why: &str) -> Result<ChangedFiles, String> {
    let tracked = git::output(root, &["diff", "--name-only", "--no-renames", "-z", commit])?;
    let untracked = git::output(root, &["ls-files", "--others", "--exclude-standard", "-z"])?;
    let files = git::paths(&tracked).chain(git::paths(&untracked)).collect();
    let short = commit.get(..10).unwrap_or(commit);
    Ok(ChangedFiles { base: format!("{short} ({why})"), files })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;
    use std::process::Command;
    use std::sync::atomic::{AtomicU32, Ordering};

    static NUMBER: AtomicU32 = AtomicU32::new(0);

    /// A repository that goes away with the test.
    struct Repository(PathBuf);

    impl Repository {
        fn new() -> Self {
            let number = NUMBER.fetch_add(1, Ordering::Relaxed);
            let folder = std::env::temp_dir().join(format!("xtask-changes-{}-{number}", std::process::id()));
            std::fs::create_dir_all(&folder).unwrap();
            let repository = Repository(folder);
            repository.git(&["init", "--quiet", "--initial-branch=main"], 1_000_000_000);
            repository
        }

        fn git(&self, arguments: &[&str], time_s: i64) {
            let mut command = Command::new("git");
            command.args(["-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]);
            command.args(arguments).current_dir(&self.0);
            for variable in ["GIT_AUTHOR_DATE", "GIT_COMMITTER_DATE"] {
                command.env(variable, format!("@{time_s} +0000"));
            }
            let output = command.output().unwrap();
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        }

        /// Writes a file, without committing it.
        fn write(&self, path: &str) {
            std::fs::write(self.0.join(path), path).unwrap();
        }

        /// Commits a new file at this time, in hours.
        fn commit(&self, path: &str, hours: i64) {
            self.write(path);
            self.git(&["add", path], 1_000_000_000);
            self.git(&["commit", "--quiet", "--message", path], 1_000_000_000 + hours * 3600);
        }
    }

    impl Drop for Repository {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    fn files(since: &ChangedFiles) -> Vec<&str> {
        since.files.iter().map(String::as_str).collect()
    }

    #[test]
    fn branch_changes_are_its_commits_and_what_is_not_committed() {
        let repository = Repository::new();
        repository.commit("landed", 0);
        repository.git(&["checkout", "--quiet", "-b", "work"], 1_000_000_000);
        repository.commit("committed", 1);
        repository.write("untracked");
        repository.write("landed");
        let since = at_hand(&repository.0, None).unwrap();
        assert_eq!(files(&since), ["committed", "untracked"]);
        let WorkspaceChanges::Since(since) = since_passed(&repository.0) else { panic!("the main branch is there") };
        assert_eq!(files(&since), ["committed", "untracked"]);
    }

    #[test]
    fn on_the_main_branch_only_what_is_not_committed_is_at_hand() {
        let repository = Repository::new();
        repository.commit("old", 0);
        repository.commit("new", 20);
        std::fs::remove_file(repository.0.join("old")).unwrap();
        assert_eq!(files(&at_hand(&repository.0, None).unwrap()), ["old"]);
        assert_eq!(files(&at_hand(&repository.0, Some("HEAD^")).unwrap()), ["new", "old"]);
        assert!(at_hand(&repository.0, Some("nothing")).unwrap_err().contains("no commit"));
    }

    #[test]
    fn all_commits_of_one_landing_count_as_changed() {
        let repository = Repository::new();
        repository.commit("yesterday", 0);
        repository.commit("first", 20);
        repository.commit("last", 30);
        let WorkspaceChanges::Since(since) = since_passed(&repository.0) else { panic!("yesterday's commit is there") };
        assert_eq!(files(&since), ["first", "last"]);
    }

    #[test]
    fn a_named_commit_is_compared_with_or_nothing_is_known() {
        let repository = Repository::new();
        repository.commit("a", 0);
        repository.commit("b", 1);
        assert!(passed(&repository.0, Some("HEAD^")).is_ok_and(|(_, why)| why.contains(BASE_VARIABLE)));
        assert!(passed(&repository.0, Some("0123456789")).unwrap_err().contains("shallow"));
    }

    #[test]
    fn a_history_without_an_older_commit_says_nothing() {
        let repository = Repository::new();
        repository.commit("a", 0);
        repository.commit("b", 1);
        assert!(matches!(since_passed(&repository.0), WorkspaceChanges::Unknown(why) if why.contains(BASE_VARIABLE)));
    }
}
