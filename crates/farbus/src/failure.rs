//! Whose trouble it is: the words that messages, exit codes and JSON share.

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
