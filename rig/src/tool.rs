//! Running the host's tools to completion.

use crate::{Result, RigError};
use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

/// Runs a command to its end and returns its standard output; a failure includes its output.
pub fn output(command: &mut Command) -> Result<Vec<u8>> {
    let output = command.stdin(Stdio::null()).output().map_err(RigError::io(show(command)))?;
    judge(command, output)
}

/// Like [`output`], for text.
pub fn text(command: &mut Command) -> Result<String> {
    Ok(String::from_utf8_lossy(&output(command)?).into_owned())
}

/// Runs a command with `input` on its standard input.
///
/// A tool that has had enough may close its input early; only its exit status decides.
pub fn filter(command: &mut Command, input: &[u8]) -> Result<Vec<u8>> {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(RigError::io(show(command)))?;
    let mut stdin = child.stdin.take().expect("asked for a pipe");
    let output = std::thread::scope(|scope| {
        scope.spawn(move || stdin.write_all(input));
        child.wait_with_output()
    })
    .map_err(RigError::io(show(command)))?;
    judge(command, output)
}

/// The command line as a reader would type it.
pub fn show(command: &Command) -> String {
    std::iter::once(command.get_program())
        .chain(command.get_args())
        .map(|word| word.to_string_lossy())
        .collect::<Vec<_>>()
        .join(" ")
}

/// The last `count` lines of a text.
pub fn tail(text: &str, count: usize) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(count)..].join("\n")
}

/// Finds a tool as a shell would, and in the administrator's folders besides: an ordinary user's `PATH` lacks
/// them on Debian, yet `mkfs.ext4` and `usbip` are there and need no rights for what the rig does with them.
pub fn which(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin", "/sbin", "/usr/bin", "/bin"].map(Into::into))
        .map(|folder| folder.join(name))
        .find(|file| file.is_file())
}

fn judge(command: &Command, output: Output) -> Result<Vec<u8>> {
    if output.status.success() {
        return Ok(output.stdout);
    }
    let mut message = String::from_utf8_lossy(&output.stderr).into_owned();
    if message.trim().is_empty() {
        message = String::from_utf8_lossy(&output.stdout).into_owned();
    }
    Err(RigError::Tool { command: show(command), message: format!("{} ({})", tail(message.trim(), 12), output.status) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shells_are_found() {
        assert!(which("sh").is_some());
        assert!(which("no-such-tool-anywhere").is_none());
    }

    #[test]
    fn failure_carries_what_was_said() {
        let error = output(Command::new("sh").args(["-c", "echo the reason >&2; exit 3"])).unwrap_err();
        assert!(error.to_string().contains("the reason"), "{error}");
        assert_eq!(filter(&mut Command::new("cat"), b"through").unwrap(), b"through");
    }
}
