//! Asking git.

use crate::cargo;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

/// What git prints; nothing of it goes to standard error. The error names the command.
pub fn output(root: &Path, arguments: &[&str]) -> Result<Vec<u8>, String> {
    let mut command = Command::new("git");
    command.args(arguments).current_dir(root).stdin(Stdio::null()).stderr(Stdio::null());
    let output = command.output().map_err(|trouble| format!("cannot start git: {trouble}"))?;
    match output.status.success() {
        true => Ok(output.stdout),
        false => Err(format!("git {} failed ({})", arguments.join(" "), output.status)),
    }
}

/// The one line that git prints, or nothing if git failed or printed none.
pub fn line(root: &Path, arguments: &[&str]) -> Option<String> {
    let printed = String::from_utf8(output(root, arguments).ok()?).ok()?;
    let line = printed.trim();
    (!line.is_empty()).then(|| line.to_owned())
}

/// The full id of a commit whose tree is here. A shallow clone may know a commit's name and not have it.
pub fn commit(root: &Path, name: &str) -> Option<String> {
    let commit = line(root, &["rev-parse", "--verify", "--quiet", &format!("{name}^{{commit}}")])?;
    output(root, &["cat-file", "-e", &format!("{commit}^{{tree}}")]).ok()?;
    Some(commit)
}

/// The paths of a list that git separates with NUL bytes (`-z`).
pub fn paths(printed: &[u8]) -> impl Iterator<Item = String> {
    printed
        .split(|&byte| byte == 0)
        .filter(|path| !path.is_empty())
        .map(|path| String::from_utf8_lossy(path).into_owned())
}

/// Makes `folder` the tree of a commit, whatever it was before. Its files have the time of this call: cargo compares
/// times with what it built before.
pub fn unpack(root: &Path, commit: &str, folder: &Path) -> Result<(), String> {
    remove(folder)?;
    fs::create_dir_all(folder).map_err(|error| format!("cannot make {}: {error}", folder.display()))?;
    let archive = folder.with_extension("tar");
    output(root, &["archive", "--output", &archive.display().to_string(), commit])?;
    let mut unpack = Command::new("tar");
    unpack.args(["--extract", "--touch", "--file"]).arg(&archive).arg("--directory").arg(folder);
    cargo::run(unpack)?;
    fs::remove_file(&archive).map_err(|error| format!("cannot remove {}: {error}", archive.display()))
}

/// Removes a folder, if it is there.
pub fn remove(folder: &Path) -> Result<(), String> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(format!("cannot remove {}: {error}", folder.display()))
        }
        _ => Ok(()),
    }
}
