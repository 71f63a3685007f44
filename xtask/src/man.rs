//! `cargo xtask man`: shell completions and man pages, written by the command itself from its own definition.

use crate::cargo::{self, cargo};
use crate::workspace;
use clap::Args;
use std::path::{Path, PathBuf};

/// Shells, and the name by which each finds a completion script.
const SHELLS: [(&str, &str); 3] = [("bash", "farbus.bash"), ("zsh", "_farbus"), ("fish", "farbus.fish")];

#[derive(Args)]
pub struct Arguments {
    /// Where they go
    #[arg(long, value_name = "FOLDER", default_value = "target/man")]
    out: PathBuf,
}

pub fn run(arguments: &Arguments) -> Result<(), String> {
    let out = workspace::root().join(&arguments.out);
    make_folder(&out)?;
    for (shell, file) in SHELLS {
        let script = cargo::output(farbus(&["completions", shell]))?;
        write(&out.join(file), &script)?;
    }
    cargo::run(farbus(&["man", &out.display().to_string()]))?;
    println!("written to {}", arguments.out.display());
    Ok(())
}

fn farbus(arguments: &[&str]) -> std::process::Command {
    let mut command = cargo(&["run", "--quiet", "--release", "--package", "farbus-cli", "--"]);
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
    fn an_empty_script_is_refused() {
        let path = std::env::temp_dir().join("xtask-man-never-written");
        assert!(write(&path, b"").unwrap_err().starts_with("nothing to write"));
        assert!(!path.exists());
    }
}
