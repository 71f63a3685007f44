//! Running the host's tools to completion.

use crate::{Error, Result};
use std::io::Write as _;
use std::process::{Command, Output, Stdio};

/// Runs a command to its end and returns its standard output; failure carries what it said.
pub fn output(command: &mut Command) -> Result<Vec<u8>> {
    let output = command.stdin(Stdio::null()).output().map_err(Error::io(show(command)))?;
    judge(command, output)
}

/// The same for text.
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
        .map_err(Error::io(show(command)))?;
    let mut stdin = child.stdin.take().expect("asked for a pipe");
    let output = std::thread::scope(|scope| {
        scope.spawn(move || stdin.write_all(input));
        child.wait_with_output()
    })
    .map_err(Error::io(show(command)))?;
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

fn judge(command: &Command, output: Output) -> Result<Vec<u8>> {
    if output.status.success() {
        return Ok(output.stdout);
    }
    let mut said = String::from_utf8_lossy(&output.stderr).into_owned();
    if said.trim().is_empty() {
        said = String::from_utf8_lossy(&output.stdout).into_owned();
    }
    Err(Error::Tool { command: show(command), said: format!("{} ({})", tail(said.trim(), 12), output.status) })
}
