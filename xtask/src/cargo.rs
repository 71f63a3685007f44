//! Running cargo, and asking it what there is.
//!
//! What a command prints goes straight to the terminal or the log, closing lines of `cargo test` included. No command is
//! given a standard input: CI has none, and nothing here may wait for an answer.

use crate::workspace;
use serde::Deserialize;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// A cargo command in the workspace.
pub fn cargo(arguments: &[&str]) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(arguments).current_dir(workspace::root()).stdin(Stdio::null());
    command
}

/// Runs a command to its end; the error names it.
pub fn run(mut command: Command) -> Result<(), String> {
    println!("$ {}", display(&command));
    let status = command.status().map_err(|trouble| format!("cannot start {}: {trouble}", display(&command)))?;
    if status.success() { Ok(()) } else { Err(format!("{} failed ({status})", display(&command))) }
}

/// Runs a command and takes what it prints on standard output; the rest still goes to the terminal.
pub fn output(mut command: Command) -> Result<Vec<u8>, String> {
    let output = command
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .output()
        .map_err(|trouble| format!("cannot start {}: {trouble}", display(&command)))?;
    if output.status.success() {
        Ok(output.stdout)
    } else {
        Err(format!("{} failed ({})", display(&command), output.status))
    }
}

/// A target of one of the workspace's packages.
#[derive(Debug, PartialEq, Eq)]
pub struct Target {
    pub package: String,
    pub name: String,
    pub is_example: bool,
    pub is_test: bool,
    /// Its root file.
    pub source: PathBuf,
}

/// Every target of the workspace.
pub fn targets() -> Result<Vec<Target>, String> {
    let json = output(cargo(&["metadata", "--format-version", "1", "--no-deps"]))?;
    parse_targets(&json)
}

fn parse_targets(json: &[u8]) -> Result<Vec<Target>, String> {
    let metadata: Metadata =
        serde_json::from_slice(json).map_err(|trouble| format!("cargo metadata cannot be read: {trouble}"))?;
    let targets = metadata.packages.into_iter().flat_map(|package| {
        package.targets.into_iter().map(move |target| Target {
            package: package.name.clone(),
            is_example: target.kind.iter().any(|kind| kind == "example"),
            is_test: target.kind.iter().any(|kind| kind == "test"),
            name: target.name,
            source: target.src_path,
        })
    });
    Ok(targets.collect())
}

/// A command as it could be typed.
pub fn display(command: &Command) -> String {
    let set = command.get_envs().filter_map(|(name, value)| Some(format!("{}={}", name.display(), value?.display())));
    let program = std::path::Path::new(command.get_program()).file_name().unwrap_or_default().display().to_string();
    let arguments = command.get_args().map(|argument| argument.display().to_string());
    set.chain([program]).chain(arguments).collect::<Vec<_>>().join(" ")
}

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<MetadataPackage>,
}

#[derive(Deserialize)]
struct MetadataPackage {
    name: String,
    targets: Vec<MetadataTarget>,
}

#[derive(Deserialize)]
struct MetadataTarget {
    name: String,
    kind: Vec<String>,
    src_path: PathBuf,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_read_from_cargos_own_words() {
        let json = br#"{"packages":[{"name":"farbus","targets":[
            {"name":"gadget","kind":["example"],"src_path":"examples/gadget.rs"},
            {"name":"mount","kind":["test"],"src_path":"tests/mount.rs"}]}]}"#;
        let targets = parse_targets(json).unwrap();
        assert_eq!(targets.len(), 2);
        assert!(targets[0].is_example && !targets[0].is_test);
        assert!(targets[1].is_test && targets[1].source.ends_with("mount.rs"));
    }

    #[test]
    fn a_command_is_shown_as_it_could_be_typed() {
        let mut command = cargo(&["test", "--workspace"]);
        command.env("FARBUS_FUZZ_SECONDS", "5");
        assert_eq!(display(&command), "FARBUS_FUZZ_SECONDS=5 cargo test --workspace");
    }

    #[test]
    fn a_failing_command_names_itself() {
        let trouble = run(Command::new("false")).unwrap_err();
        assert!(trouble.starts_with("false failed"), "{trouble}");
        let trouble = run(Command::new("no-such-program-here")).unwrap_err();
        assert!(trouble.starts_with("cannot start no-such-program-here"), "{trouble}");
    }
}
