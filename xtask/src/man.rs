//! `cargo xtask man`: shell completions and man pages, written by the programs themselves from their own definitions.

use crate::cargo::{self, cargo};
use crate::workspace;
use clap::Args;
use std::path::{Path, PathBuf};

const SHELLS: [&str; 3] = ["bash", "zsh", "fish"];

/// Packages and their programs. The page that `farbus` has of `farbus conform` gives way to the program's own.
const PROGRAMS: [(&str, &str); 2] = [("farbus-cli", "farbus"), ("farbus-conform-cli", "farbus-conform")];

#[derive(Args)]
pub struct ManPageArgs {
    /// Where they go
    #[arg(long, value_name = "FOLDER", default_value = "target/man")]
    out: PathBuf,
}

pub fn run(arguments: &ManPageArgs) -> Result<(), String> {
    let out = workspace::root().join(&arguments.out);
    make_folder(&out)?;
    for (package, name) in PROGRAMS {
        for shell in SHELLS {
            let script = cargo::output(program(package, &["completions", shell]))?;
            write(&out.join(completion_file(shell, name)), &script)?;
        }
        cargo::run(program(package, &["man", &out.display().to_string()]))?;
    }
    println!("written to {}", arguments.out.display());
    Ok(())
}

/// The name by which a shell finds the completion script of a program.
fn completion_file(shell: &str, program: &str) -> String {
    if shell == "zsh" { format!("_{program}") } else { format!("{program}.{shell}") }
}

fn program(package: &str, arguments: &[&str]) -> std::process::Command {
    let mut command = cargo(&["run", "--quiet", "--release", "--package", package, "--"]);
    command.args(arguments);
    command
}

fn make_folder(path: &Path) -> Result<(), String> {
    std::fs::create_dir_all(path).map_err(|trouble| format!("cannot make {}: {trouble}", path.display()))
}

fn write(path: &Path, text: &[u8]) -> Result<(), String> {
    if text.is_empty() {
        return Err(format!("nothing to write into {}", path.display()));
    }
    std::fs::write(path, text).map_err(|trouble| format!("cannot write {}: {trouble}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shells_find_scripts_by_the_programs_name() {
        let files = SHELLS.map(|shell| completion_file(shell, "farbus"));
        assert_eq!(files, ["farbus.bash", "_farbus", "farbus.fish"]);
    }

    #[test]
    fn an_empty_script_is_refused() {
        let path = std::env::temp_dir().join("xtask-man-never-written");
        assert!(write(&path, b"").unwrap_err().starts_with("nothing to write"));
        assert!(!path.exists());
    }
}
