//! `cargo xtask dist`: the release programs as they are shipped, and their debug information in files of their own.
//!
//! `target/dist/farbus` has neither symbols nor debug information. It names `farbus.debug` and that file's checksum
//! (`.gnu_debuglink`), so that a panic's backtrace and a debugger have names and lines where that file lies beside the
//! program, in `.debug` beside it, or below `/usr/lib/debug`. `farbus-conform`, which `farbus conform` starts, is made
//! likewise.
//!
//! farbus's section [`COMMIT_SECTION`] has the commit that it was built from, which `farbus --version` prints. It is
//! written here and not by the compiler, so that a commit builds nothing again.

use crate::cargo::{self, cargo};
use crate::{git, workspace};
use clap::Args;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// A program of the product, and the package that builds it.
#[derive(Clone, Copy)]
struct ProductProgram {
    package: &'static str,
    name: &'static str,
}

const FARBUS: ProductProgram = ProductProgram { package: "farbus-cli", name: "farbus" };
const CONFORM: ProductProgram = ProductProgram { package: "farbus-conform-cli", name: "farbus-conform" };
const PROGRAMS: [ProductProgram; 2] = [FARBUS, CONFORM];
/// Where a program has its commit (`sys::program_commit` of `io-linux`).
const COMMIT_SECTION: &str = ".farbus.commit";
/// The section's length: the commit, and zeros.
const COMMIT_BYTES: usize = 48;
/// Digits of a commit that are printed.
const COMMIT_DIGITS: usize = 12;

#[derive(Args)]
#[command(after_help = "Examples:
  cargo xtask dist                     target/dist/farbus and target/dist/farbus.debug, farbus-conform likewise
  RUST_BACKTRACE=1 target/dist/farbus  names and lines come from farbus.debug, if it lies beside
  cargo xtask dist --reproducible      the same bytes wherever it is built, in target/reproducible/dist
  cargo xtask dist --twice             build this commit in two folders, and compare")]
pub struct DistArgs {
    /// Name no folder of this machine in the program: the same commit and compiler make the same bytes
    #[arg(long)]
    reproducible: bool,
    /// Build the commit at HEAD so in two folders, and fail if the bytes differ
    #[arg(long, conflicts_with = "reproducible")]
    twice: bool,
}

pub fn run(arguments: &DistArgs) -> Result<(), String> {
    if arguments.twice {
        return build_twice();
    }
    let programs = if arguments.reproducible {
        let root = workspace::root();
        build_reproducibly(&root, &root.join("target/reproducible"), &commit_of_tree(&root))?
    } else {
        [program()?, conform()?]
    };
    for file in programs.iter().flat_map(|program| [program.clone(), debug_file(program)]) {
        let bytes = std::fs::metadata(&file).map_err(|error| format!("cannot read {}: {error}", file.display()))?.len();
        println!("{:>12} bytes  {}", bytes, file.strip_prefix(workspace::root()).unwrap_or(&file).display());
    }
    Ok(())
}

/// Builds the release program of farbus if it is not built; where it is, symbols and debug information included.
pub fn unstripped() -> Result<PathBuf, String> {
    FARBUS.unstripped()
}

impl ProductProgram {
    fn unstripped(self) -> Result<PathBuf, String> {
        let build = cargo(&["build", "--release", "--package", self.package, "--bin", self.name]);
        cargo::program(&cargo::executables(build)?, self.name)
    }

    fn shipped(self) -> Result<PathBuf, String> {
        let built = self.unstripped()?;
        let target = built.parent().and_then(Path::parent).ok_or("cargo built a program outside of a target folder")?;
        let folder = target.join("dist");
        let program = folder.join(self.name);
        let time = |path: &Path| std::fs::metadata(path).and_then(|metadata| metadata.modified()).ok();
        let commit = commit_of_tree(&workspace::root());
        let is_of_commit = std::fs::read_to_string(commit_file(&program)).is_ok_and(|of| of == commit);
        let is_there = is_of_commit && time(&program) > time(&built) && debug_file(&program).is_file();
        if !is_there {
            split(&built, &folder, &commit)?;
        }
        Ok(program)
    }
}

/// A build of the release program beside other work: it uses the processors that this leaves idle, at a lower priority.
/// Most of it is one crate on one processor.
///
/// What needs the program builds it as always, and cargo waits there for this build, or says once more why it fails.
/// Dropped earlier, it ends.
pub struct BackgroundBuild(Child);

impl BackgroundBuild {
    /// # Errors
    /// cargo cannot be started.
    pub fn start() -> Result<BackgroundBuild, String> {
        let build = cargo(&["build", "--quiet", "--release", "--package", FARBUS.package, "--bin", FARBUS.name]);
        let mut command = Command::new("nice");
        command.args(["-n", "10"]).arg(build.get_program()).args(build.get_args()).current_dir(workspace::root());
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        println!("beside what follows: {}", cargo::display(&command));
        command.spawn().map(BackgroundBuild).map_err(|error| format!("cannot start cargo: {error}"))
    }
}

impl Drop for BackgroundBuild {
    fn drop(&mut self) {
        // It has ended, unless what needs it did not come to run.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// farbus as it is shipped, built if need be.
pub fn program() -> Result<PathBuf, String> {
    FARBUS.shipped()
}

/// The conformance kit as it is shipped, built if need be: in the folder of [`program`], where `farbus conform` looks
/// for it.
pub fn conform() -> Result<PathBuf, String> {
    CONFORM.shipped()
}

/// The package of farbus in the sources in `root`: of a commit of 0.1.0 it is the library's.
pub fn package_in(root: &Path) -> &'static str {
    if root.join("crates/cli").is_dir() { FARBUS.package } else { "farbus" }
}

/// The farbus that is shipped of the sources in `root`, which are those of `commit`, built with their lock file into
/// the folder `target`.
pub fn program_in(root: &Path, target: &Path, commit: &str) -> Result<PathBuf, String> {
    let mut build = cargo(&["build", "--locked", "--release", "--package", package_in(root), "--bin", FARBUS.name]);
    build.current_dir(root).env("CARGO_TARGET_DIR", target);
    let built = cargo::program(&cargo::executables(build)?, FARBUS.name)?;
    let folder = target.join("dist");
    split(&built, &folder, short(commit))?;
    Ok(folder.join(FARBUS.name))
}

/// The commit of the sources in `root`, as it is printed: twelve digits, and `+` if something was changed since. Empty
/// where git does not know.
fn commit_of_tree(root: &Path) -> String {
    let Some(commit) = git::commit(root, "HEAD") else { return String::new() };
    let changes = git::output(root, &["status", "--porcelain", "--untracked-files=no"]);
    format!("{}{}", short(&commit), if changes.is_ok_and(|changes| !changes.is_empty()) { "+" } else { "" })
}

fn short(commit: &str) -> &str {
    commit.get(..COMMIT_DIGITS).unwrap_or(commit)
}

/// The file that says which commit a program has.
fn commit_file(program: &Path) -> PathBuf {
    program.with_extension("commit")
}

/// Builds the programs of the sources in `root` as they are built everywhere: neither the folder of the sources nor
/// that of the downloaded crates nor `target` is named in them.
fn build_reproducibly(root: &Path, target: &Path, commit: &str) -> Result<[PathBuf; 2], String> {
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cargo")));
    let home = home.ok_or("neither CARGO_HOME nor HOME says where cargo keeps crates")?;
    let flag = |from: &Path, to: &str| format!("--remap-path-prefix={}={to}", from.display());
    // The last one that fits counts.
    let flags = [flag(&home, "/cargo"), flag(root, "/farbus"), flag(target, "/farbus/target")].join("\x1f");
    let folder = target.join("dist");
    for ProductProgram { package, name } in PROGRAMS {
        let mut build = cargo(&["build", "--locked", "--release", "--package", package, "--bin", name]);
        build.current_dir(root).env("CARGO_ENCODED_RUSTFLAGS", &flags).env("CARGO_TARGET_DIR", target);
        build.env_remove("RUSTFLAGS").env("CARGO_INCREMENTAL", "0");
        split(&cargo::program(&cargo::executables(build)?, name)?, &folder, commit)?;
    }
    Ok(PROGRAMS.map(|program| folder.join(program.name)))
}

/// Builds the commit at HEAD in two folders of different depth, and compares programs and debug information.
pub fn build_twice() -> Result<(), String> {
    let work = workspace::root().join("target/twice");
    // HEAD may be another commit when the second build begins.
    let commit = git::commit(&workspace::root(), "HEAD").ok_or("git knows no commit HEAD here")?;
    println!("building commit {commit} twice");
    let mut made = Vec::new();
    for folder in ["one", "further/down/two"] {
        let root = work.join(folder);
        git::unpack(&workspace::root(), &commit, &root)?;
        let programs = build_reproducibly(&root, &root.join("target"), short(&commit))?;
        let files: Vec<_> = programs.iter().flat_map(|program| [program.clone(), debug_file(program)]).collect();
        let mut sums = Command::new("sha256sum");
        sums.args(&files);
        cargo::run(sums)?;
        made.push(files);
    }
    let [one, two] = <[_; 2]>::try_from(made).map_err(|_| "two builds were made")?;
    let read = |file: &Path| std::fs::read(file).map_err(|error| format!("{}: {error}", file.display()));
    for (one, two) in one.iter().zip(&two) {
        if let Some(at) = first_difference(&read(one)?, &read(two)?) {
            let name = one.file_name().unwrap_or_default().display();
            return Err(format!("{name} differs from byte {at} on; both are kept in {}", work.display()));
        }
    }
    println!("both builds have the same bytes");
    std::fs::remove_dir_all(&work).map_err(|error| format!("cannot remove {}: {error}", work.display()))
}

/// Where two files begin to differ, one that ends before the other included.
fn first_difference(one: &[u8], two: &[u8]) -> Option<usize> {
    let at = one.iter().zip(two).take_while(|(one, two)| one == two).count();
    (one.len() != two.len() || at < one.len()).then_some(at)
}

/// Where the debug information of a program lies.
fn debug_file(program: &Path) -> PathBuf {
    let mut name = program.file_name().unwrap_or_default().to_owned();
    name.push(".debug");
    program.with_file_name(name)
}

/// Puts a program without its debug information, and that information, into a folder.
fn split(built: &Path, folder: &Path, commit: &str) -> Result<(), String> {
    std::fs::create_dir_all(folder).map_err(|error| format!("cannot make {}: {error}", folder.display()))?;
    let name = built.file_name().ok_or("a program has a name")?;
    let (program, fresh) = (folder.join(name), folder.join(".new"));
    let debug = debug_file(&program);
    // The link names the file by its last part, and holds its checksum.
    let mut link = std::ffi::OsString::from("--add-gnu-debuglink=");
    link.push(debug.file_name().unwrap_or_default());
    let objcopy = || {
        let mut command = Command::new("objcopy");
        command.current_dir(folder).stdin(Stdio::null());
        command
    };
    let mut keep = objcopy();
    keep.arg("--only-keep-debug").arg(built).arg(&debug);
    cargo::run(keep)?;
    let mut strip = objcopy();
    strip.arg("--strip-all").arg(link);
    let content = commit_file(&program);
    let trouble = |error: std::io::Error| format!("cannot write {}: {error}", content.display());
    // Programs of earlier releases, and the kit, have no such section.
    if std::fs::read(built).is_ok_and(|program| contains(&program, COMMIT_SECTION.as_bytes())) {
        let mut bytes = commit.as_bytes().to_vec();
        bytes.resize(COMMIT_BYTES, 0);
        std::fs::write(&content, bytes).map_err(trouble)?;
        let mut section = std::ffi::OsString::from(format!("--update-section={COMMIT_SECTION}="));
        section.push(&content);
        strip.arg(section);
    }
    strip.arg(built).arg(&fresh);
    cargo::run(strip)?;
    std::fs::write(&content, commit).map_err(trouble)?;
    // It may be running.
    std::fs::rename(&fresh, &program).map_err(|error| format!("cannot write {}: {error}", program.display()))
}

/// Whether `bytes` has `part` anywhere.
fn contains(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PANICS: &str = "#[inline(never)]\nfn inner(x: usize) { assert!(x > 9, \"small\"); }\nfn main() {\n    inner(std::env::args().count());\n    println!();\n}\n";

    /// Builds `source`, splits it in `folder`, and returns where the program is.
    fn shipped(folder: &Path, source: &str) -> PathBuf {
        std::fs::create_dir_all(folder).unwrap();
        std::fs::write(folder.join("panics.rs"), source).unwrap();
        let mut command = Command::new("rustc");
        command
            .args(["--edition=2024", "-Cdebuginfo=line-tables-only", "-o", "panics", "panics.rs"])
            .current_dir(folder);
        assert!(command.status().unwrap().success());
        split(&folder.join("panics"), &folder.join("dist"), "0123456789ab").unwrap();
        folder.join("dist/panics")
    }

    fn backtrace(program: &Path) -> String {
        let output = Command::new(program).env("RUST_BACKTRACE", "1").output().unwrap();
        assert!(!output.status.success());
        String::from_utf8_lossy(&output.stderr).into_owned()
    }

    #[test]
    fn files_differ_where_a_byte_does_and_where_one_ends() {
        assert_eq!(first_difference(b"abc", b"abc"), None);
        assert_eq!(first_difference(b"abc", b"abd"), Some(2));
        assert_eq!(first_difference(b"abc", b"ab"), Some(2));
        assert_eq!(first_difference(b"", b"a"), Some(0));
    }

    #[test]
    fn a_backtrace_has_lines_where_the_debug_file_lies_beside_the_program() {
        let folder = std::env::temp_dir().join(format!("xtask-dist-{}", std::process::id()));
        let program = shipped(&folder, PANICS);
        let debug = debug_file(&program);
        let (with, is_smaller) = (backtrace(&program), {
            let bytes = |path: &Path| std::fs::metadata(path).unwrap().len();
            bytes(&program) < bytes(&folder.join("panics")) / 2
        });
        std::fs::remove_file(&debug).unwrap();
        let without = backtrace(&program);
        std::fs::remove_dir_all(&folder).unwrap();
        assert!(with.contains("panics.rs:4") && with.contains("panics::main"), "{with}");
        assert!(!without.contains("panics.rs:4"), "{without}");
        assert!(is_smaller);
        assert!(debug.ends_with("dist/panics.debug"));
    }
}
