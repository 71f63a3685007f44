//! The cause of a failure, in the words that messages, exit codes and JSON share.

use std::fmt;

pub use farbus_control::failure::{Attribute, FailureReport};
use farbus_session::native::control::{Cause, End};

/// Reports why a session ended.
pub fn report_of(end: &End) -> FailureReport {
    let attribute = match end.cause {
        Cause::Device => Attribute::Device,
        Cause::Network => Attribute::Network,
        Cause::Gone => Attribute::Gone,
        Cause::Refused
        | Cause::Busy
        | Cause::Stale
        | Cause::Asked
        | Cause::Class
        | Cause::Module
        | Cause::Reservation => Attribute::Refused,
    };
    FailureReport { attribute, message: end.message.clone(), limit: end.limit().map(str::to_owned) }
}

/// Why a command failed: the kind, what happened and where, and what to type next.
#[derive(Clone, Debug)]
pub struct Failure {
    attribute: Attribute,
    message: String,
    is_told: bool,
    exit_code: Option<u8>,
    signal: Option<i32>,
    limit: Option<String>,
}

impl Failure {
    /// A failure of this machine.
    pub fn local(message: impl fmt::Display) -> Self {
        Self::new(Attribute::Local, message)
    }

    /// A failure of this kind.
    pub fn new(attribute: Attribute, message: impl fmt::Display) -> Self {
        Self { attribute, message: message.to_string(), is_told: false, exit_code: None, signal: None, limit: None }
    }

    /// A command was waiting for something when this signal came, and has not got it: `what` says so.
    pub fn interrupted(signal: i32, what: impl fmt::Display) -> Self {
        Self::local(format!("interrupted: {what}")).by_signal(signal)
    }

    /// The process ends as if the signal had killed it: a shell says 128 and its number, and a script that got the
    /// signal, too, ends. (After an exit code a shell takes the signal for handled, and goes on with the next line.)
    #[must_use]
    pub fn by_signal(self, signal: i32) -> Self {
        Self { signal: Some(signal), exit_code: u8::try_from(128 + signal).ok(), ..self }
    }

    /// Marks the failure as part of the JSON that was printed already.
    #[must_use]
    pub fn told(self) -> Self {
        Self { is_told: true, ..self }
    }

    /// Gives the command another exit code than its kind has, where the command's help says so.
    #[must_use]
    pub fn with_exit_code(self, code: u8) -> Self {
        Self { exit_code: Some(code), ..self }
    }

    /// Names the limit that was reached, for JSON.
    #[must_use]
    pub fn at_limit(self, limit: Option<String>) -> Self {
        Self { limit, ..self }
    }

    /// The exit code of the command.
    pub fn exit_code(&self) -> u8 {
        self.exit_code.unwrap_or(self.attribute.exit_code())
    }

    /// The signal that ended the command, if one did.
    pub fn signal(&self) -> Option<i32> {
        self.signal
    }

    /// The kind of the failure.
    pub fn attribute(&self) -> Attribute {
        self.attribute
    }

    /// Whether the failure is part of the JSON that was printed already.
    pub fn is_told(&self) -> bool {
        self.is_told
    }

    /// The failure, as JSON reports it.
    pub fn report(&self) -> FailureReport {
        FailureReport { attribute: self.attribute, message: self.message.clone(), limit: self.limit.clone() }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Failure {}
