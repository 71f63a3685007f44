//! The architectures that a Debian package is made for. For one that is not this machine's, Debian's cross compiler
//! links, and QEMU runs what was linked.

use crate::cargo::{self, cargo};
use clap::ValueEnum;
use std::path::{Path, PathBuf};
use std::process::Command;

/// An architecture, by Debian's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DebianArchitecture {
    Amd64,
    Arm64,
}

impl DebianArchitecture {
    /// # Errors
    /// No package is made for this machine.
    pub fn of_this_machine() -> Result<Self, String> {
        match std::env::consts::ARCH {
            "x86_64" => Ok(Self::Amd64),
            "aarch64" => Ok(Self::Arm64),
            other => Err(format!("no package is made for {other}")),
        }
    }

    /// Debian's name, which is also the OCI's.
    pub fn name(self) -> &'static str {
        match self {
            Self::Amd64 => "amd64",
            Self::Arm64 => "arm64",
        }
    }

    /// The name that the toolchain has for it.
    fn cpu(self) -> &'static str {
        match self {
            Self::Amd64 => "x86_64",
            Self::Arm64 => "aarch64",
        }
    }

    pub fn is_foreign(self) -> bool {
        self.cpu() != std::env::consts::ARCH
    }

    /// A cargo command that builds for it, and runs what it built.
    pub fn cargo(self, arguments: &[&str]) -> Command {
        let mut command = cargo(arguments);
        if self.is_foreign() {
            let cpu = self.cpu();
            let variable = |end| format!("CARGO_TARGET_{}_UNKNOWN_LINUX_GNU_{end}", cpu.to_uppercase());
            command.args(["--target", &format!("{cpu}-unknown-linux-gnu")]);
            command.env(variable("LINKER"), self.tool("gcc"));
            command.env(variable("RUNNER"), self.emulator().join(" "));
        }
        command
    }

    /// Runs a program that was built for it.
    pub fn command(self, program: &Path) -> Command {
        if !self.is_foreign() {
            return Command::new(program);
        }
        let [emulator, arguments @ ..] = self.emulator();
        let mut command = Command::new(emulator);
        command.args(arguments).arg(program);
        command
    }

    fn emulator(self) -> [String; 3] {
        [format!("qemu-{}-static", self.cpu()), "-L".to_owned(), self.cross_root()]
    }

    /// Where Debian's cross compiler has its libraries and headers.
    fn cross_root(self) -> String {
        format!("/usr/{}-linux-gnu", self.cpu())
    }

    /// The folder of a foreign architecture's libraries.
    pub fn libraries(self) -> Option<String> {
        self.is_foreign().then(|| self.cross_root() + "/lib")
    }

    /// The name of a tool of binutils or GCC.
    fn tool(self, name: &str) -> String {
        if self.is_foreign() { format!("{}-linux-gnu-{name}", self.cpu()) } else { name.to_owned() }
    }

    /// Writes a program without symbols and debug information.
    ///
    /// # Errors
    /// It cannot be read, or the copy cannot be written.
    pub fn strip(self, built: &Path, to: &Path) -> Result<(), String> {
        let mut strip = Command::new(self.tool("objcopy"));
        strip.arg("--strip-all").arg(built).arg(to);
        cargo::run(strip)
    }

    /// What this machine needs to build for it.
    ///
    /// # Errors
    /// Something is missing: what to type.
    pub fn check_tools(self) -> Result<(), String> {
        if !self.is_foreign() {
            return Ok(());
        }
        let target = format!("{}-unknown-linux-gnu", self.cpu());
        let folder = Command::new("rustc").args(["--print", "target-libdir", "--target", &target]).output();
        let folder = folder.map_err(|error| format!("cannot start rustc: {error}"))?.stdout;
        if !Path::new(String::from_utf8_lossy(&folder).trim()).is_dir() {
            return Err(format!("rustc has no library for {target}; type:\n  rustup target add {target}"));
        }
        let [emulator, ..] = self.emulator();
        for program in [self.tool("gcc"), emulator] {
            if Command::new(&program).arg("--version").output().is_err() {
                let packages = format!("gcc-{}-linux-gnu qemu-user-static", self.cpu());
                return Err(format!("{program} is missing; as root, type:\n  apt-get install {packages}"));
            }
        }
        Ok(())
    }

    /// Builds one of the workspace's programs for it, and writes it without symbols.
    ///
    /// # Errors
    /// It cannot be built.
    pub fn release(self, package: &str, program: &str, to: &Path) -> Result<PathBuf, String> {
        let build = self.cargo(&["build", "--release", "--package", package, "--bin", program]);
        let built = cargo::program(&cargo::executables(build)?, program)?;
        self.strip(&built, to)?;
        Ok(to.to_owned())
    }
}
