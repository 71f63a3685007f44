//! `cargo xtask picture`: runs a few commands with the program as it is built, and draws what a terminal shows as
//! `docs/picture.svg`, for the README.

use crate::cargo::{self, cargo};
use crate::workspace;
use std::fmt::Write as _;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// Runs until the end of the session; what it prints until it listens is shown.
const SHARE: &str = "farbus share fastboot keyboard &";
/// What is typed after it.
const TYPED: [&str; 4] = [
    "farbus list localhost",
    "farbus run fastboot -- lsusb",
    "farbus run fastboot -- fastboot flash data image.bin",
    "farbus run fastboot -- fastboot getvar product",
];
/// The share prints this last, with a path that is another one each time: it is not shown.
const LISTENS: &str = "listening";

/// Width of a character and height of a line, in pixels, at the font's size.
const CHARACTER: f64 = 8.43;
const LINE: usize = 20;
const FONT: usize = 14;
const EDGE: usize = 18;

/// Draws the picture anew.
///
/// # Errors
/// A command failed; the picture cannot be written.
pub fn run() -> Result<(), String> {
    let built = cargo::executables(cargo(&["build", "--package", "farbus-cli", "--bin", "farbus"]))?;
    let program = cargo::program(&built, "farbus")?;
    let lines = lines(program.parent().ok_or("a program is in a folder")?)?;
    let path = workspace::root().join("docs/picture.svg");
    std::fs::write(&path, drawn(&lines)).map_err(|error| format!("cannot write {}: {error}", path.display()))?;
    println!("docs/picture.svg: {} lines", lines.len());
    Ok(())
}

/// A process that ends with this.
struct SharingProcess(Child);

impl Drop for SharingProcess {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What the terminal shows: what is typed after a `$`, and what is printed.
fn lines(programs: &Path) -> Result<Vec<String>, String> {
    let folder = std::env::temp_dir().join(format!("farbus-picture-{}", std::process::id()));
    let cannot = |error: std::io::Error| format!("cannot use {}: {error}", folder.display());
    std::fs::create_dir_all(&folder).map_err(cannot)?;
    std::fs::write(folder.join("image.bin"), vec![0x5a; 1 << 20]).map_err(cannot)?;
    let shown = session(programs, &folder);
    let _ = std::fs::remove_dir_all(&folder);
    shown
}

fn session(programs: &Path, folder: &Path) -> Result<Vec<String>, String> {
    let path = format!("{}:{}", programs.display(), std::env::var("PATH").unwrap_or_default());
    let shell = |line: &str| {
        let mut command = Command::new("sh");
        command.args(["-c", line]).current_dir(folder).stdin(Stdio::null()).env("PATH", &path);
        command.env("FARBUS_LOG", "error").env("FARBUS_STATE", folder.join("state")).env("XDG_RUNTIME_DIR", folder);
        command
    };
    let mut shown = vec![format!("$ {SHARE}")];
    let mut share = shell(&format!("exec {}", SHARE.trim_end_matches(" &")));
    let child = share.stdout(Stdio::piped()).spawn().map_err(|error| format!("cannot start {SHARE}: {error}"))?;
    let mut sharing = SharingProcess(child);
    let printed = sharing.0.stdout.take().ok_or("the share has no output")?;
    for line in BufReader::new(printed).lines().map_while(Result::ok) {
        if line.contains(LISTENS) {
            break;
        }
        shown.push(line);
    }
    for typed in TYPED {
        shown.push(format!("$ {typed}"));
        let printed = cargo::output(shell(&format!("{typed} 2>&1")))?;
        shown.extend(String::from_utf8_lossy(&printed).lines().map(without_times));
    }
    Ok(shown)
}

/// A line without how long something took: the picture is the same each time.
fn without_times(line: &str) -> String {
    let line = line.split(" Total time:").next().unwrap_or(line);
    let line = match line.rsplit_once(" [") {
        Some((before, time)) if time.ends_with("s]") => before,
        _ => line,
    };
    line.trim_end().to_owned()
}

fn drawn(lines: &[String]) -> String {
    let widest = lines.iter().map(|line| line.chars().count()).max().unwrap_or(0);
    let (width, height) = (2 * EDGE + (widest as f64 * CHARACTER) as usize, 2 * EDGE + lines.len() * LINE);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" viewBox=\"0 0 {width} {height}\" \
         role=\"img\" aria-label=\"A terminal\">\n<rect width=\"100%\" height=\"100%\" rx=\"8\" fill=\"#16191f\"/>\n\
         <g font-family=\"DejaVu Sans Mono, Menlo, Consolas, monospace\" font-size=\"{FONT}\" xml:space=\"preserve\">\n"
    );
    for (number, line) in lines.iter().enumerate() {
        let color = if line.starts_with("$ ") { "#8fd6a4" } else { "#d5d9e0" };
        let _ = writeln!(
            svg,
            "<text x=\"{EDGE}\" y=\"{}\" fill=\"{color}\">{}</text>",
            EDGE + FONT + number * LINE,
            escaped(line)
        );
    }
    svg + "</g>\n</svg>\n"
}

fn escaped(line: &str) -> String {
    line.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drawing_holds_every_line_and_no_markup_of_theirs() {
        let svg = drawn(&["$ a & b".to_owned(), "<c>".to_owned()]);
        assert!(svg.contains(">$ a &amp; b</text>") && svg.contains(">&lt;c&gt;</text>"), "{svg}");
        assert_eq!(svg.matches("<text ").count(), 2);
    }

    #[test]
    fn a_line_is_drawn_without_how_long_it_took() {
        assert_eq!(without_times("Sending 'data' (1024 KB)  OKAY [  0.012s]"), "Sending 'data' (1024 KB)  OKAY");
        assert_eq!(without_times("Finished. Total time: 0.031s"), "Finished.");
        assert_eq!(without_times("as it is [ here"), "as it is [ here");
    }
}
