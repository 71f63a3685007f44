//! Running cargo, and asking it what there is.
//!
//! What a command prints goes straight to the terminal or the log, closing lines of `cargo test` included. No command
//! is given a standard input: CI has none, and nothing here may wait for an answer.

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

/// A program or test that cargo built.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CargoExecutable {
    /// The name of its target.
    pub name: String,
    /// What its target is: `bin`, `test`, `example`, or a kind of library for the tests inside one.
    pub kind: String,
    /// Whether it is a test harness.
    pub is_test: bool,
    /// The folder of its package.
    pub folder: PathBuf,
    pub path: PathBuf,
}

/// Runs a cargo command that builds, and names the executables that it built or found built.
pub fn executables(mut command: Command) -> Result<Vec<CargoExecutable>, String> {
    command.arg("--message-format=json-render-diagnostics");
    println!("$ {}", display(&command));
    parse_executables(&String::from_utf8_lossy(&output(command)?))
}

fn parse_executables(messages: &str) -> Result<Vec<CargoExecutable>, String> {
    let mut executables = Vec::new();
    // Anything else on these lines was printed by a build script.
    for line in messages.lines().filter(|line| line.starts_with("{\"reason\":\"compiler-artifact\"")) {
        let artifact: CargoArtifact =
            serde_json::from_str(line).map_err(|trouble| format!("a message of cargo cannot be read: {trouble}"))?;
        if let Some(path) = artifact.executable {
            executables.push(CargoExecutable {
                kind: artifact.target.kind.into_iter().next().unwrap_or_default(),
                name: artifact.target.name,
                is_test: artifact.profile.test,
                folder: artifact.manifest_path.parent().map(PathBuf::from).unwrap_or_default(),
                path,
            });
        }
    }
    Ok(executables)
}

/// Builds the program that tests of the command start besides `farbus`. Cargo builds it by itself where all tests of
/// the workspace are selected, because there its own tests are.
///
/// # Errors
/// It cannot be built.
pub fn build_for_command_tests() -> Result<(), String> {
    run(cargo(&["build", "--workspace", "--bin", "farbus-conform"]))
}

/// The one program of this name among what was built.
pub fn program(built: &[CargoExecutable], name: &str) -> Result<PathBuf, String> {
    let found = built.iter().find(|built| built.kind == "bin" && !built.is_test && built.name == name);
    found.map(|built| built.path.clone()).ok_or_else(|| format!("cargo built no program {name}"))
}

/// A target of one of the workspace's packages.
#[derive(Debug, PartialEq, Eq)]
pub struct CargoTarget {
    pub package: String,
    pub name: String,
    pub is_example: bool,
    pub is_test: bool,
    /// Its root file.
    pub source: PathBuf,
}

/// Every target of the workspace.
pub fn targets() -> Result<Vec<CargoTarget>, String> {
    let json = output(cargo(&["metadata", "--format-version", "1", "--no-deps"]))?;
    parse_targets(&json)
}

fn parse_targets(json: &[u8]) -> Result<Vec<CargoTarget>, String> {
    let metadata: CargoMetadata =
        serde_json::from_slice(json).map_err(|trouble| format!("cargo metadata cannot be read: {trouble}"))?;
    let targets = metadata.packages.into_iter().flat_map(|package| {
        package.targets.into_iter().map(move |target| CargoTarget {
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
struct CargoArtifact {
    manifest_path: PathBuf,
    target: ArtifactTarget,
    profile: ArtifactProfile,
    executable: Option<PathBuf>,
}

#[derive(Deserialize)]
struct ArtifactTarget {
    name: String,
    kind: Vec<String>,
}

#[derive(Deserialize)]
struct ArtifactProfile {
    test: bool,
}

#[derive(Deserialize)]
struct CargoMetadata {
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
    fn executables_are_read_from_cargos_messages() {
        let messages = concat!(
            r#"{"reason":"compiler-artifact","manifest_path":"/w/a/Cargo.toml","target":{"name":"a","kind":["lib"]},"profile":{"test":false},"executable":null}"#,
            "\nnot a message\n",
            r#"{"reason":"compiler-artifact","manifest_path":"/w/a/Cargo.toml","target":{"name":"a","kind":["bin"]},"profile":{"test":false},"executable":"/w/target/a"}"#,
            "\n",
            r#"{"reason":"compiler-artifact","manifest_path":"/w/a/Cargo.toml","target":{"name":"a","kind":["bin"]},"profile":{"test":true},"executable":"/w/target/deps/a-1"}"#,
            "\n",
            r#"{"reason":"build-finished","success":true}"#
        );
        let built = parse_executables(messages).unwrap();
        assert_eq!(built.len(), 2);
        assert_eq!(program(&built, "a").unwrap(), PathBuf::from("/w/target/a"));
        assert!(built[1].is_test && built[1].folder.ends_with("a"));
        assert!(program(&built, "b").unwrap_err().contains('b'));
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
