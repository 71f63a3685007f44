//! `cargo xtask package`: a Debian package, a static program, a container image and crates, and the test that they
//! work where nothing of farbus was before.

mod alone;
mod architecture;
mod check;
mod crates;
mod deb;
mod foreign;
mod image;
mod tree;

use crate::cargo::{self, cargo};
use crate::steps::StepSuccess;
use crate::{dist, prerequisites, workspace};
use architecture::DebianArchitecture;
use clap::{Args, ValueEnum};
use std::path::{Path, PathBuf};
use std::process::Command;

/// What can be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum PackageForm {
    /// A Debian package: command, daemon, units, conformance kit, benchmarks, papers' figures, manual pages, book
    Deb,
    /// The command and the conformance kit alone, which need no library (musl)
    Static,
    /// An OCI image of these two, as an archive
    Image,
    /// What `cargo publish` would send: each crate of the product, as an archive
    Crates,
}

#[derive(Args)]
#[command(after_help = "Everything goes to target/package. A static program needs Debian's musl-tools and
  rustup target add x86_64-unknown-linux-musl
a Debian package for arm64, on another machine, gcc-aarch64-linux-gnu, qemu-user-static and
  rustup target add aarch64-unknown-linux-gnu

Examples:
  cargo xtask package                      all of them
  cargo xtask package deb --check          installed in a fresh Debian, used, and purged (root)
  cargo xtask package deb --boot           and in a booted guest with systemd, where it is upgraded, too
  cargo xtask package deb --arch arm64     for the other architecture
  cargo xtask package deb --arch arm64 --boot
                                           and a guest of it attaches a disk (qemu-system-arm, cpio)
  cargo xtask package image --check        its layer unpacked, and its program used where nothing else is (root)
  apt install ./target/package/farbus_*_amd64.deb
  podman load --input target/package/farbus-*-amd64.oci.tar")]
pub struct PackageArgs {
    /// What to make; without it, all
    forms: Vec<PackageForm>,
    /// Test what is made, where nothing of farbus was before
    #[arg(long)]
    check: bool,
    /// Test the Debian package in a booted guest, too: upgrade it there, or, for another architecture, attach a disk
    #[arg(long)]
    boot: bool,
    /// Rehearse publishing the crates, too, which asks the registry
    #[arg(long)]
    rehearse: bool,
    /// Make the Debian package for this architecture; without it, for this machine's
    #[arg(long)]
    arch: Option<DebianArchitecture>,
    /// Whether the benchmarks in the Debian package are those that the tests have built: where they go can be tested
    /// with them, and an optimized build takes five minutes.
    #[arg(skip)]
    has_test_benchmarks: bool,
}

const MUSL: &str = "x86_64-unknown-linux-musl";

pub fn run(arguments: &PackageArgs) -> Result<(), String> {
    let wants = |form| arguments.forms.is_empty() || arguments.forms.contains(&form);
    let (out, work) = folders()?;
    let is_checked = arguments.check || arguments.boot;
    if is_checked {
        prerequisites::check(&["package"], false)?;
    }
    if wants(PackageForm::Deb) || arguments.boot {
        let architecture = arguments.arch.map_or_else(DebianArchitecture::of_this_machine, Ok)?;
        architecture.check_tools()?;
        let programs = programs(&work, architecture, arguments.has_test_benchmarks)?;
        let package = deb::make(&out, &work, version(), &programs)?;
        show(&package)?;
        if is_checked && architecture.is_foreign() {
            check::check_foreign(&package, &programs)?;
            if arguments.boot {
                foreign::check(&package, architecture, &work)?;
            }
        } else if is_checked {
            let later = if arguments.boot { Some(later(&work, &programs)?) } else { None };
            check::check(&package, later.as_deref(), &work)?;
        }
    }
    if wants(PackageForm::Static) || wants(PackageForm::Image) {
        let programs = static_programs(&out)?;
        show(&programs.farbus)?;
        show(&programs.conform)?;
        if arguments.check && wants(PackageForm::Static) {
            let root = work.join("alone");
            tree::put(&programs.farbus, &root.join("farbus"), 0o755)?;
            tree::put(&programs.conform, &root.join("farbus-conform"), 0o755)?;
            alone::check(&root, "/farbus", &[])?;
        }
        if wants(PackageForm::Image) {
            let image = image::make(&out, &work, version(), &programs)?;
            show(&image)?;
            if arguments.check {
                image::check(&image, &work.join("image"))?;
            }
        }
    }
    if wants(PackageForm::Crates) {
        let archives = crates::make(&work)?;
        archives.iter().try_for_each(|archive| show(archive))?;
        if arguments.check {
            crates::check(&archives, &work)?;
        }
        if arguments.rehearse {
            crates::rehearse()?;
        }
    }
    Ok(())
}

/// The step of the gate: the Debian package and the crates, made and tested.
///
/// # Errors
/// One cannot be made, or does not do what it should.
pub fn gate() -> Result<StepSuccess, String> {
    run(&PackageArgs { has_test_benchmarks: true, ..checked(vec![PackageForm::Deb, PackageForm::Crates]) })?;
    Ok(StepSuccess::Without(vec![
        "package: optimized benchmarks in it; to run it: cargo xtask package deb --check".to_owned(),
        "package: the booted guest; to run it: cargo xtask package deb --boot".to_owned(),
        "package: a rehearsal of publishing; to run it: cargo xtask package crates --rehearse".to_owned(),
        "package: the static program and the image; to run it: cargo xtask package static image --check".to_owned(),
        "package: the other architecture; to run it: cargo xtask package deb --arch arm64 --boot".to_owned(),
    ]))
}

/// All of them, and the test.
///
/// # Errors
/// One cannot be made, or does not do what it should.
pub fn run_all() -> Result<(), String> {
    run(&PackageArgs { boot: true, rehearse: true, ..checked(Vec::new()) })?;
    run(&PackageArgs { boot: true, arch: Some(DebianArchitecture::Arm64), ..checked(vec![PackageForm::Deb]) })
}

/// These forms, for this machine, made and tested.
fn checked(forms: Vec<PackageForm>) -> PackageArgs {
    PackageArgs { forms, check: true, boot: false, rehearse: false, arch: None, has_test_benchmarks: false }
}

/// What was made of this version, in the order of the names.
///
/// # Errors
/// Nothing was, or the folder cannot be read.
pub fn made(version: &str) -> Result<Vec<PathBuf>, String> {
    let out = workspace::root().join("target/package");
    let trouble = |error: std::io::Error| format!("cannot read {}: {error}", out.display());
    let entries = std::fs::read_dir(&out).map_err(trouble)?.collect::<Result<Vec<_>, _>>().map_err(trouble)?;
    let is_made = |path: &PathBuf| path.is_file() && path.to_string_lossy().contains(version);
    let mut files: Vec<PathBuf> = entries.into_iter().map(|entry| entry.path()).filter(is_made).collect();
    files.sort();
    if files.is_empty() { Err(format!("{} has nothing of {version}", out.display())) } else { Ok(files) }
}

fn version() -> &'static str {
    env!("CARGO_PKG_VERSION")
}

/// Where packages go, and an empty folder for what is in between.
fn folders() -> Result<(PathBuf, PathBuf), String> {
    let out = workspace::root().join("target").join("package");
    let work = out.join("work");
    if work.exists() {
        std::fs::remove_dir_all(&work).map_err(|error| format!("cannot empty {}: {error}", work.display()))?;
    }
    tree::folder_of_mode(&work, 0o755)?;
    Ok((out, work))
}

fn programs(
    work: &Path,
    architecture: DebianArchitecture,
    has_test_benchmarks: bool,
) -> Result<tree::InstalledPrograms, String> {
    let (farbus, conform) = if architecture.is_foreign() {
        let release = |package, program| architecture.release(package, program, &work.join(program));
        (release("farbus-cli", "farbus")?, release("farbus-conform-cli", "farbus-conform")?)
    } else {
        (dist::program()?, dist::conform()?)
    };
    let [bench, papers] = ["farbus-bench", "farbus-papers"].map(|name| (name, work.join(name)));
    for (name, to) in [&bench, &papers] {
        if has_test_benchmarks && !architecture.is_foreign() {
            // The same features as the tests select, so that nothing is built again.
            let built = cargo::executables(cargo(&["build", "--workspace", "--bin", name]))?;
            architecture.strip(&cargo::program(&built, name)?, to)?;
        } else {
            architecture.release(name, name, to)?;
        }
    }
    let (bench, papers) = (bench.1, papers.1);
    Ok(tree::InstalledPrograms { architecture, farbus, conform, bench, papers })
}

/// Makes a package of these programs with a later version: what an upgrade installs.
fn later(work: &Path, programs: &tree::InstalledPrograms) -> Result<PathBuf, String> {
    let work = work.join("later");
    tree::folder_of_mode(&work, 0o755)?;
    deb::make(&work, &work, &format!("{}+1", version()), programs)
}

/// Builds both programs so that they need no library, and uses each.
fn static_programs(out: &Path) -> Result<image::ImagePrograms, String> {
    let there = Command::new("rustc").args(["--print", "target-libdir", "--target", MUSL]).output();
    let folder = there.map_err(|error| format!("cannot start rustc: {error}"))?.stdout;
    if !Path::new(String::from_utf8_lossy(&folder).trim()).is_dir() {
        return Err(format!("rustc has no library for {MUSL}; type:\n  rustup target add {MUSL}"));
    }
    if Command::new("musl-gcc").arg("--version").output().is_err() {
        return Err("musl-gcc is missing; as root, type:\n  apt-get install musl-tools".to_owned());
    }
    let farbus = static_program(out, "farbus-cli", "farbus")?;
    let conform = static_program(out, "farbus-conform-cli", "farbus-conform")?;
    for (program, words) in [(&farbus, &["demo"][..]), (&conform, &["exporter", "--list"][..])] {
        let mut uses = Command::new(program);
        uses.args(words);
        cargo::run(uses)?;
    }
    Ok(image::ImagePrograms { farbus, conform })
}

/// Builds a program, and writes it without symbols as `NAME-VERSION-x86_64-static`.
fn static_program(out: &Path, package: &str, name: &str) -> Result<PathBuf, String> {
    // Rust brings its own copy of the C library and links it; musl-gcc only compiles what is written in C. A program
    // that musl-gcc had linked crashed.
    let mut build = cargo(&["build", "--release", "--package", package, "--bin", name, "--target", MUSL]);
    build.env("CC_x86_64_unknown_linux_musl", "musl-gcc");
    let built = cargo::program(&cargo::executables(build)?, name)?;
    let program = out.join(format!("{name}-{}-x86_64-static", version()));
    DebianArchitecture::of_this_machine()?.strip(&built, &program)?;
    alone::is_static(&program)?;
    Ok(program)
}

fn show(file: &Path) -> Result<(), String> {
    let bytes = std::fs::metadata(file).map_err(|error| format!("cannot read {}: {error}", file.display()))?.len();
    println!("{bytes:>12} bytes  {}", file.strip_prefix(workspace::root()).unwrap_or(file).display());
    Ok(())
}
