//! What lies where on a machine that has farbus installed.

use crate::cargo;
use crate::package::architecture::DebianArchitecture;
use crate::workspace;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The programs that are installed.
pub struct InstalledPrograms {
    /// The machines that run them.
    pub architecture: DebianArchitecture,
    /// The product, as it is shipped.
    pub farbus: PathBuf,
    /// The conformance kit, which `farbus conform` starts.
    pub conform: PathBuf,
    /// The benchmarks, which `farbus bench` starts.
    pub bench: PathBuf,
    /// The papers' tables and figures, which `farbus papers` starts.
    pub papers: PathBuf,
}

/// A file of the project that is installed as it is.
struct InstalledFile {
    from: &'static str,
    to: &'static str,
    mode: u32,
}

const fn installed(from: &'static str, to: &'static str, mode: u32) -> InstalledFile {
    InstalledFile { from, to, mode }
}

/// Files for a machine with systemd.
const FILES: [InstalledFile; 11] = [
    installed("packaging/farbus.toml", "etc/farbus/farbus.toml", 0o644),
    installed("packaging/systemd/farbus.service", "usr/lib/systemd/system/farbus.service", 0o644),
    installed("packaging/systemd/farbus-confined.service", "usr/lib/systemd/system/farbus-confined.service", 0o644),
    installed("packaging/systemd/farbus.socket", "usr/lib/systemd/system/farbus.socket", 0o644),
    installed("packaging/systemd/farbus-sleep", "usr/lib/systemd/system-sleep/farbus", 0o755),
    installed("packaging/sysusers.d/farbus.conf", "usr/lib/sysusers.d/farbus.conf", 0o644),
    installed("packaging/tmpfiles.d/farbus.conf", "usr/lib/tmpfiles.d/farbus.conf", 0o644),
    installed("packaging/prometheus/farbus.rules.yml", "usr/share/farbus/farbus.rules.yml", 0o644),
    installed("packaging/prometheus/farbus-dashboard.json", "usr/share/farbus/farbus-dashboard.json", 0o644),
    installed("README.md", "usr/share/doc/farbus/README.md", 0o644),
    // The licence of the library that the page draws with.
    installed("crates/page/src/view/vendor/uplot/LICENSE", "usr/share/doc/farbus/uplot.txt", 0o644),
];
/// Where each shell looks for completions: what is before and behind a program's name.
const COMPLETIONS: [(&str, &str, &str); 3] = [
    ("bash", "usr/share/bash-completion/completions/", ""),
    ("zsh", "usr/share/zsh/vendor-completions/_", ""),
    ("fish", "usr/share/fish/vendor_completions.d/", ".fish"),
];
const BOOK: &str = "docs/book/src";
pub const DOCUMENTS: &str = "usr/share/doc/farbus";
const PAGES: &str = "usr/share/man/man1";

/// Makes the tree in `root`, which must not exist: programs, units, manual pages of every command, completions, the
/// book.
///
/// # Errors
/// A file cannot be written, or a program failed.
pub fn write(root: &Path, programs: &InstalledPrograms) -> Result<(), String> {
    put(&programs.farbus, &root.join("usr/bin/farbus"), 0o755)?;
    put(&programs.conform, &root.join("usr/bin/farbus-conform"), 0o755)?;
    put(&programs.bench, &root.join("usr/bin/farbus-bench"), 0o755)?;
    put(&programs.papers, &root.join("usr/bin/farbus-papers"), 0o755)?;
    for file in FILES {
        put(&workspace::root().join(file.from), &root.join(file.to), file.mode)?;
    }
    // The page that farbus has of `farbus conform` gives way to the program's own, which is written after it.
    for (name, program) in [("farbus", &programs.farbus), ("farbus-conform", &programs.conform)] {
        for (shell, before, behind) in COMPLETIONS {
            let mut write = programs.architecture.command(program);
            write.args(["completions", shell]);
            put_text(&cargo::output(write)?, &root.join(format!("{before}{name}{behind}")), 0o644)?;
        }
        let mut pages = programs.architecture.command(program);
        pages.arg("man").arg(folder(&root.join(PAGES))?);
        cargo::run(pages)?;
    }
    for page in files(&root.join(PAGES))? {
        compress(&page)?;
        set_mode(&page.with_extension("1.gz"), 0o644)?;
    }
    for chapter in files(&workspace::root().join(BOOK))? {
        let name = chapter.file_name().ok_or("a chapter has a name")?;
        put(&chapter, &root.join(DOCUMENTS).join("book").join(name), 0o644)?;
    }
    Ok(())
}

/// Compresses a file in place, the same way each time.
pub fn compress(file: &Path) -> Result<(), String> {
    let mut gzip = Command::new("gzip");
    gzip.args(["-9", "--no-name", "--force"]).arg(file);
    succeed(gzip)
}

/// Runs a command that says nothing if it succeeds, without naming it.
pub fn succeed(mut command: Command) -> Result<(), String> {
    let status = command.status().map_err(|error| format!("cannot start {}: {error}", cargo::display(&command)))?;
    if status.success() { Ok(()) } else { Err(format!("{} failed ({status})", cargo::display(&command))) }
}

/// Copies a file; folders above it are made.
pub fn put(from: &Path, to: &Path, mode: u32) -> Result<(), String> {
    let bytes = std::fs::read(from).map_err(|error| format!("cannot read {}: {error}", from.display()))?;
    put_text(&bytes, to, mode)
}

/// Writes a file; folders above it are made.
pub fn put_text(bytes: &[u8], to: &Path, mode: u32) -> Result<(), String> {
    folder(to.parent().ok_or("a file lies in a folder")?)?;
    std::fs::write(to, bytes).map_err(|error| format!("cannot write {}: {error}", to.display()))?;
    set_mode(to, mode)
}

fn set_mode(path: &Path, mode: u32) -> Result<(), String> {
    use std::os::unix::fs::PermissionsExt;
    let mode = std::fs::Permissions::from_mode(mode);
    std::fs::set_permissions(path, mode).map_err(|error| format!("cannot set the mode of {}: {error}", path.display()))
}

/// Makes a folder that everybody may read, with those above it.
fn folder(path: &Path) -> Result<&Path, String> {
    use std::os::unix::fs::DirBuilderExt;
    let mut builder = std::fs::DirBuilder::new();
    builder.recursive(true).mode(0o755);
    builder.create(path).map_err(|error| format!("cannot make {}: {error}", path.display()))?;
    Ok(path)
}

/// Makes a folder with this mode, with those above it.
pub fn folder_of_mode(path: &Path, mode: u32) -> Result<(), String> {
    set_mode(folder(path)?, mode)
}

/// The names of what is in a folder, in order.
pub fn names(folder: &Path) -> Result<Vec<std::ffi::OsString>, String> {
    let cannot = |error: std::io::Error| format!("cannot list {}: {error}", folder.display());
    let entries = std::fs::read_dir(folder).map_err(cannot)?;
    let mut names =
        entries.map(|entry| entry.map(|entry| entry.file_name())).collect::<Result<Vec<_>, _>>().map_err(cannot)?;
    names.sort();
    Ok(names)
}

/// The files of a folder, in order.
pub fn files(folder: &Path) -> Result<Vec<PathBuf>, String> {
    Ok(names(folder)?.into_iter().map(|name| folder.join(name)).filter(|path| path.is_file()).collect())
}
