//! What the demo's steps share: output, interruption, and the temporary folder.

use std::cell::RefCell;
use std::fmt;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use signal_hook::consts::{SIGINT, SIGTERM};

use super::super::CommandFailure;
use super::super::interruption::InterruptFlag;
use super::super::output::{is_styled, print_json, say};

/// Reports progress to the user, and tells the steps whether to continue.
pub struct DemoReporter {
    began: Instant,
    interruption: InterruptFlag,
    is_styled: bool,
    /// Hidden unless standard error is a terminal.
    spinner: ProgressBar,
    reductions: Vec<String>,
    /// Whether all of it is printed as one JSON object at the end.
    as_json: bool,
    /// The steps that were done, for that object.
    steps: RefCell<Vec<DemoStep>>,
}

/// A step of the demo, as JSON has it.
#[derive(Serialize)]
struct DemoStep {
    step: String,
    result: String,
}

impl DemoReporter {
    /// Catches Ctrl-C from now on; a second one ends the process immediately.
    pub fn new(as_json: bool) -> Result<Self, CommandFailure> {
        // The second is noticed first: actions run in the order in which they are registered.
        let again = Arc::<AtomicBool>::default();
        for signal in [SIGINT, SIGTERM] {
            signal_hook::flag::register_conditional_shutdown(signal, 128 + signal, Arc::clone(&again))
                .and_then(|_| signal_hook::flag::register(signal, Arc::clone(&again)))
                .map_err(CommandFailure::local)?;
        }
        let interruption = InterruptFlag::new()?;
        let spinner = ProgressBar::new_spinner().with_style(ProgressStyle::default_spinner());
        let is_styled = is_styled(&io::stdout());
        Ok(Self {
            began: Instant::now(),
            interruption,
            is_styled,
            spinner,
            reductions: Vec::new(),
            as_json,
            steps: RefCell::default(),
        })
    }

    /// Prints what the demo does.
    pub fn begin(&self, what: &str) {
        if !self.as_json {
            say(format!("{}: {what}\n", self.bold("farbus demo")));
        }
    }

    /// Begins a step, unless the user has interrupted the demo.
    ///
    /// # Errors
    /// When interrupted.
    pub fn doing(&self, step: &'static str) -> Result<(), CommandFailure> {
        self.spinner.set_message(step);
        self.spinner.enable_steady_tick(Duration::from_millis(80));
        self.check()
    }

    /// Prints the result of a step.
    pub fn done(&self, step: &str, result: impl fmt::Display) {
        self.spinner.disable_steady_tick();
        if self.as_json {
            self.steps.borrow_mut().push(DemoStep { step: step.to_owned(), result: result.to_string() });
            return;
        }
        self.spinner.suspend(|| say(format!("  {} {result}", self.bold(&format!("{step:<8}")))));
    }

    /// Fails if the user has interrupted the demo.
    ///
    /// # Errors
    /// When interrupted.
    pub fn check(&self) -> Result<(), CommandFailure> {
        match self.interruption.signal() {
            Some(signal) => Err(CommandFailure::interrupted(signal, "nothing is left behind")),
            None => Ok(()),
        }
    }

    /// Records that a step was done in a lesser way, and why.
    pub fn reduce(&mut self, why: String) {
        self.reductions.push(why);
    }

    /// Prints the conclusion, with `--json` all of it.
    ///
    /// # Errors
    /// As [`print_json`].
    pub fn end(&self) -> Result<(), CommandFailure> {
        self.spinner.finish_and_clear();
        let took = self.began.elapsed().as_secs_f64();
        if self.as_json {
            let (steps, reduced) = (&*self.steps.borrow(), &self.reductions);
            return print_json(
                &serde_json::json!({ "done": "demo", "took_s": took, "steps": steps, "reduced": reduced }),
            );
        }
        if self.reductions.is_empty() {
            say(format!("\nAll of it works here: {took:.1} s, and nothing is left behind."));
            return Ok(());
        }
        say(format!("\nIt works here: {took:.1} s, and nothing is left behind. Done in a lesser way:"));
        for why in &self.reductions {
            say(format!("  - {}", why.replace('\n', "\n   ")));
        }
        Ok(())
    }

    fn bold(&self, text: &str) -> String {
        if self.is_styled { format!("\x1b[1m{text}\x1b[0m") } else { text.to_owned() }
    }
}

impl Drop for DemoReporter {
    fn drop(&mut self) {
        self.spinner.finish_and_clear();
    }
}

/// A folder for everything the demo makes, removed when dropped.
pub struct DemoFolder(PathBuf);

impl DemoFolder {
    /// Creates a folder that only its owner can read.
    pub fn new() -> Result<Self, CommandFailure> {
        let path = std::env::temp_dir().join(format!("farbus-demo-{}", std::process::id()));
        let cannot = |error| CommandFailure::local(format!("cannot make the folder {}: {error}", path.display()));
        DirBuilder::new().mode(0o700).create(&path).map_err(cannot)?;
        Ok(Self(path))
    }

    /// The path of `name` in it.
    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for DemoFolder {
    fn drop(&mut self) {
        if let Err(error) = remove_folder(&self.0) {
            tracing::warn!(folder = %self.0.display(), %error, "left behind");
        }
    }
}

/// How long processes that were killed may still make files in a folder that is removed.
const REMOVE_TIME_MAX: Duration = Duration::from_secs(2);

/// Removes a folder and all in it. Where another process still makes a file there, it is tried again for
/// [`REMOVE_TIME_MAX`].
///
/// # Errors
/// Why it is still there.
pub fn remove_folder(folder: &Path) -> io::Result<()> {
    let until = Instant::now() + REMOVE_TIME_MAX;
    loop {
        match fs::remove_dir_all(folder) {
            Err(error) if error.kind() == io::ErrorKind::NotFound && !folder.exists() => return Ok(()),
            Err(error) if Instant::now() >= until => return Err(error),
            Err(_) => thread::sleep(Duration::from_millis(20)),
            Ok(()) => return Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folder_in_which_files_are_made_meanwhile_is_removed() {
        let folder = std::env::temp_dir().join(format!("farbus-stage-{}", std::process::id()));
        fs::create_dir_all(folder.join("run")).unwrap();
        thread::scope(|scope| {
            scope.spawn(|| (0..5000).find(|at| fs::File::create(folder.join(format!("run/{at}"))).is_err()));
            remove_folder(&folder).unwrap();
        });
        assert!(!folder.exists());
        remove_folder(&folder).unwrap();
    }
}
