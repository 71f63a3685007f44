//! Whose trouble it is: the words that messages, exit codes and JSON share.

use std::fmt;

use farbus_session::native::control::{Cause, End};
use serde::{Deserialize, Serialize};

/// Whose trouble a failure is (N10): told apart in every message, exit code and JSON state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Attribute {
    /// The device failed.
    Device,
    /// The way to it failed.
    Network,
    /// It was refused.
    Refused,
    /// It is not there.
    Gone,
    /// This machine lacks something.
    Local,
}

impl Attribute {
    /// The word for it, the same everywhere: before a message, in JSON, in a table.
    pub const fn as_str(self) -> &'static str {
        match self {
            Attribute::Device => "device",
            Attribute::Network => "network",
            Attribute::Refused => "refused",
            Attribute::Gone => "gone",
            Attribute::Local => "local",
        }
    }

    /// The exit code of the command; 2 is for usage.
    pub const fn exit_code(self) -> u8 {
        match self {
            Attribute::Local => 1,
            Attribute::Refused => 3,
            Attribute::Gone => 4,
            Attribute::Network => 5,
            Attribute::Device => 6,
        }
    }
}

/// A failure as programs read it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailureReport {
    /// Whose trouble it is.
    pub attribute: Attribute,
    /// A sentence for a person.
    pub message: String,
}

impl FailureReport {
    /// The end of a session, which says why.
    pub fn of(end: &End) -> Self {
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
        Self { attribute, message: end.message.clone() }
    }
}

/// Why something was not done that somebody asked for: whose trouble it is, what happened and where, and what to type
/// next.
#[derive(Clone, Debug)]
pub struct Failure {
    attribute: Attribute,
    message: String,
    is_told: bool,
}

impl Failure {
    /// Something on this machine.
    pub fn local(message: impl fmt::Display) -> Self {
        Self::new(Attribute::Local, message)
    }

    /// With another attribute.
    pub fn new(attribute: Attribute, message: impl fmt::Display) -> Self {
        Self { attribute, message: message.to_string(), is_told: false }
    }

    /// Programs know already: it is part of what was printed for them.
    #[must_use]
    pub fn told(self) -> Self {
        Self { is_told: true, ..self }
    }

    /// Whose trouble it is.
    pub fn attribute(&self) -> Attribute {
        self.attribute
    }

    /// Whether programs know already.
    pub fn is_told(&self) -> bool {
        self.is_told
    }

    /// As programs read it.
    pub fn report(&self) -> FailureReport {
        FailureReport { attribute: self.attribute, message: self.message.clone() }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Failure {}
