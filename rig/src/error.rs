//! Errors of the rig, and what is at fault for them.

use std::path::PathBuf;
use std::time::Duration;

/// Shorthand for the rig's results.
pub type Result<T> = std::result::Result<T, RigError>;

/// Why a case, or the rig itself, could not continue.
#[derive(Debug)]
pub enum RigError {
    /// Host packages are missing and the rig was not told to install them.
    Prerequisites {
        /// What is missing, as `package (path)`.
        missing: Vec<String>,
        /// The line to type that installs it.
        line: String,
    },
    /// A file or process operation on the host failed.
    Io {
        /// What was being attempted.
        doing: String,
        /// The system's answer.
        source: std::io::Error,
    },
    /// A host tool ran and reported failure.
    Tool {
        /// The command line.
        command: String,
        /// Its output and status.
        message: String,
    },
    /// A host file does not have its expected format.
    Format {
        /// The path of the host file.
        path: PathBuf,
        /// The rule it breaks.
        rule: &'static str,
    },
    /// The guest's script ended with a status other than zero.
    GuestFailed {
        /// The script's exit status.
        status: i32,
        /// The end of what it printed.
        tail: String,
    },
    /// The guest stopped without finishing its script: a panic, an oops, or QEMU itself.
    GuestDied {
        /// The end of the kernel's console.
        console: String,
        /// The end of what the script printed.
        tail: String,
    },
    /// The guest did not come to the expected point in time and was killed.
    GuestTimeout {
        /// What was being waited for.
        awaiting: String,
        /// How long the machine was given.
        after: Duration,
        /// The end of what the script printed, and of the console.
        tail: String,
    },
    /// A farbus process on the host failed.
    Farbus {
        /// What was asked of it.
        wanted: String,
        /// Its output and status.
        message: String,
    },
    /// Everything ran, and the outcome is not the one that the case demands.
    Expectation(String),
    /// The case cannot run here, for this reason.
    Skip(String),
}

impl RigError {
    /// Wraps an operating system error with what was being attempted.
    pub fn io(doing: impl Into<String>) -> impl FnOnce(std::io::Error) -> Self {
        let doing = doing.into();
        move |source| Self::Io { doing, source }
    }
}

impl std::fmt::Display for RigError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Prerequisites { missing, line } => write!(
                f,
                "the rig needs packages that are not here: {}\ntype:\n    {line}\nor let the rig do it (as root): FARBUS_INSTALL=1",
                missing.join(", ")
            ),
            Self::Io { doing, source } => write!(f, "{doing}: {source}"),
            Self::Tool { command, message: printed } => write!(f, "`{command}` failed: {printed}"),
            Self::Format { path, rule } => write!(f, "{}: {rule}", path.display()),
            Self::GuestFailed { status, tail } => {
                write!(f, "the guest's script ended with status {status}; last lines:\n{tail}")
            }
            Self::GuestDied { console, tail } => {
                write!(f, "the guest died before its script ended; last lines:\n{tail}\nconsole:\n{console}")
            }
            Self::GuestTimeout { awaiting, after, tail } => write!(
                f,
                "the guest did not reach \"{awaiting}\" within {:.0} s; last lines:\n{tail}",
                after.as_secs_f64()
            ),
            Self::Farbus { wanted, message: printed } => write!(f, "farbus, asked to {wanted}: {printed}"),
            Self::Expectation(what) => write!(f, "{what}"),
            Self::Skip(why) => write!(f, "skipped: {why}"),
        }
    }
}

impl std::error::Error for RigError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io { source, .. } => Some(source),
            _ => None,
        }
    }
}
