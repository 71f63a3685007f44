//! System programs that the demo uses if they are installed.

use std::ffi::OsStr;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Folders with programs that any user may run and that may be missing in `PATH`.
const SYSTEM_FOLDERS: [&str; 3] = ["/usr/local/sbin", "/usr/sbin", "/sbin"];

/// An installed program.
#[derive(Clone, Debug)]
pub struct SystemTool {
    path: PathBuf,
}

impl SystemTool {
    /// Finds the program of this name.
    pub fn find(name: &str) -> Option<Self> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let folders = std::env::split_paths(&path).chain(SYSTEM_FOLDERS.map(PathBuf::from));
        let mut candidates = folders.map(|folder| folder.join(name));
        candidates.find(|path| is_program(path)).map(|path| Self { path })
    }

    /// Runs it to its end; returns what it printed, or why it failed.
    ///
    /// It runs in a process group of its own: Ctrl-C is for the demo, which cleans up when the program has ended.
    pub fn run<I: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = I>) -> Result<String, String> {
        let name = self.path.file_name().unwrap_or_default().to_string_lossy();
        let output = Command::new(&self.path).args(arguments).stdin(Stdio::null()).process_group(0).output();
        let output = output.map_err(|error| format!("{name}: {error}"))?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned());
        }
        let reason = String::from_utf8_lossy(&output.stderr);
        let reason = reason.lines().find(|line| !line.trim().is_empty()).unwrap_or("it gave no reason").trim();
        Err(if reason.starts_with(&*name) { reason.to_owned() } else { format!("{name}: {reason}") })
    }
}

/// Runs the program of this name, which must be installed.
pub fn run<I: AsRef<OsStr>>(name: &str, arguments: impl IntoIterator<Item = I>) -> Result<String, String> {
    SystemTool::find(name).ok_or_else(|| format!("there is no {name} here"))?.run(arguments)
}

fn is_program(path: &Path) -> bool {
    rustix::fs::access(path, rustix::fs::Access::EXEC_OK).is_ok() && path.is_file()
}
