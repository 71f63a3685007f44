//! The Debian package: the tree, what dpkg has to know about it, and the scripts that dpkg runs.
//!
//! `dpkg-deb` packs it and `dpkg-shlibdeps` finds the libraries that it needs: every Debian machine has both. The
//! maintainer scripts do what debhelper's would.

use crate::cargo;
use crate::package::tree::{self, InstalledPrograms};
use crate::{git, workspace};
use std::path::{Path, PathBuf};
use std::process::Command;

const FROM: &str = "packaging/debian";
const SCRIPTS: [&str; 3] = ["postinst", "prerm", "postrm"];

/// Makes `farbus_VERSION_ARCHITECTURE.deb` in `out`. `work` is a folder for what is in between.
///
/// # Errors
/// A file cannot be written, or a program failed.
pub fn make(out: &Path, work: &Path, version: &str, programs: &InstalledPrograms) -> Result<PathBuf, String> {
    // Debian's `~` sorts before the release that it becomes.
    let version = &version.replace("-dev", "~dev");
    let root = work.join("deb");
    tree::write(&root, programs)?;
    let documents = root.join(tree::DOCUMENTS);
    tree::put_text(copyright()?.as_bytes(), &documents.join("copyright"), 0o644)?;
    let changes = documents.join("changelog");
    tree::put_text(changelog(version)?.as_bytes(), &changes, 0o644)?;
    tree::compress(&changes)?;
    let overrides = root.join("usr/share/lintian/overrides/farbus");
    tree::put(&source("lintian-overrides"), &overrides, 0o644)?;

    let architecture = programs.architecture.name();
    let control = read(&source("control.in"))?
        .replace("@VERSION@", version)
        .replace("@ARCHITECTURE@", architecture)
        .replace("@DEPENDS@", &dependencies(work, programs)?)
        .replace("@SIZE@", &kibibytes(&root)?.to_string());
    let sums = sums(&root)?;
    let about = root.join("DEBIAN");
    tree::put_text(control.as_bytes(), &about.join("control"), 0o644)?;
    tree::put_text(&sums, &about.join("md5sums"), 0o644)?;
    tree::put(&source("conffiles"), &about.join("conffiles"), 0o644)?;
    for script in SCRIPTS {
        tree::put(&source(script), &about.join(script), 0o755)?;
    }

    let package = out.join(format!("farbus_{version}_{architecture}.deb"));
    let mut pack = Command::new("dpkg-deb");
    pack.args(["--root-owner-group", "-Zxz", "--build"]).arg(&root).arg(&package);
    cargo::run(pack)?;
    Ok(package)
}

fn source(name: &str) -> PathBuf {
    workspace::root().join(FROM).join(name)
}

fn read(path: &Path) -> Result<String, String> {
    std::fs::read_to_string(path).map_err(|error| format!("cannot read {}: {error}", path.display()))
}

/// The licences, in the form that Debian wants: the text indented, and a dot on each empty line. Every Debian machine
/// has the other licence's text, and `copyright` says where.
fn copyright() -> Result<String, String> {
    let mut text = read(&source("copyright"))?;
    for line in read(&workspace::root().join("LICENSE-MIT"))?.lines() {
        let line = line.trim();
        text.push_str(&format!(" {}\n", if line.is_empty() { "." } else { line }));
    }
    Ok(text)
}

/// The changes, in the form that Debian wants. Their time is that of the newest commit: the same sources make the same
/// package.
fn changelog(version: &str) -> Result<String, String> {
    let time = git::line(&workspace::root(), &["log", "-1", "--format=%cD"]).ok_or("git has no commit here")?;
    Ok(format!(
        "farbus ({version}) unstable; urgency=medium\n\n  * What changed is in CHANGELOG.md of the sources.\n\n \
         -- The farbus authors <farbus@localhost>  {time}\n"
    ))
}

/// The packages of the libraries that the programs load.
fn dependencies(work: &Path, programs: &InstalledPrograms) -> Result<String, String> {
    // It wants to stand in a source package.
    let folder = work.join("dependencies");
    tree::put_text(b"Source: farbus\n\nPackage: farbus\nArchitecture: any\n", &folder.join("debian/control"), 0o644)?;
    let name = programs.architecture.name();
    let mut ask = Command::new("dpkg-shlibdeps");
    ask.current_dir(&folder).env("DEB_HOST_ARCH", name).arg("-O");
    ask.args(programs.architecture.libraries().map(|folder| format!("-l{folder}")));
    ask.args([&programs.farbus, &programs.conform, &programs.bench, &programs.papers]);
    let message = String::from_utf8_lossy(&cargo::output(ask)?).into_owned();
    let depends = message.lines().find_map(|line| line.strip_prefix("shlibs:Depends="));
    // The libraries that a cross compiler links with are in packages with names of their own.
    let depends = depends.ok_or_else(|| format!("dpkg-shlibdeps named no library: {message}"))?;
    Ok(depends.replace(&format!("-{name}-cross"), "").replace(&format!(":{name}"), ""))
}

fn kibibytes(root: &Path) -> Result<u64, String> {
    let mut ask = Command::new("du");
    ask.args(["-sk", "--apparent-size"]).arg(root);
    let message = String::from_utf8_lossy(&cargo::output(ask)?).into_owned();
    message.split_whitespace().next().and_then(|size| size.parse().ok()).ok_or_else(|| format!("du said {message}"))
}

fn sums(root: &Path) -> Result<Vec<u8>, String> {
    let mut sum = Command::new("sh");
    sum.current_dir(root).args(["-c", "find usr -type f -print0 | sort -z | xargs -0 md5sum"]);
    cargo::output(sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn licence_has_no_empty_line_within_it() {
        let text = copyright().unwrap();
        let (_, mit) = text.split_once("License: Expat\n MIT License\n").unwrap();
        assert!(mit.lines().all(|line| line.starts_with(' ')), "{mit}");
        assert!(mit.contains("THE SOFTWARE IS PROVIDED \"AS IS\""), "{mit}");
    }

    #[test]
    fn control_file_has_no_placeholder_left_that_is_not_filled_in() {
        let control = read(&source("control.in")).unwrap();
        let filled = ["@VERSION@", "@ARCHITECTURE@", "@DEPENDS@", "@SIZE@"];
        let left = filled.iter().fold(control.clone(), |text, name| {
            assert!(text.contains(name), "{name}");
            text.replace(name, "")
        });
        assert!(!left.replace("farbus@localhost", "").contains('@'), "{left}");
    }
}
