//! Failures, in the words that messages, exit codes and JSON share.

use std::fmt;

#[cfg(feature = "schema")]
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The kind of a failure: whose fault it is. Every message, exit code and JSON of farbus uses the same words.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum FailureKind {
    /// This machine lacks something.
    #[default]
    Local,
    /// Somebody refused: in use, taken back, not permitted.
    Refused,
    /// The device or host is not there, or not any more.
    Gone,
    /// The network failed.
    Network,
    /// The device failed, or its exporter broke the protocol.
    Device,
}

impl FailureKind {
    /// The word that is used in messages, JSON and tables.
    pub const fn as_str(self) -> &'static str {
        match self {
            FailureKind::Device => "device",
            FailureKind::Network => "network",
            FailureKind::Refused => "refused",
            FailureKind::Gone => "gone",
            FailureKind::Local => "local",
        }
    }

    /// The exit code of the command. Code 2 means wrong usage.
    pub const fn exit_code(self) -> u8 {
        match self {
            FailureKind::Local => 1,
            FailureKind::Refused => 3,
            FailureKind::Gone => 4,
            FailureKind::Network => 5,
            FailureKind::Device => 6,
        }
    }
}

/// A failure, as JSON reports it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[cfg_attr(feature = "schema", schemars(rename = "Failure", deny_unknown_fields))]
#[serde(default)]
pub struct FailureReport {
    /// The kind of the failure: whose fault it is.
    pub attribute: FailureKind,
    /// A sentence for a person.
    pub message: String,
    /// The limit of the exporter that was reached, if that is the failure; then `attribute` is `refused`.
    /// `peer_devices`, `peer_memory`, `descriptors`, or `sessions` (one of the others; the exporter did not say which).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<String>,
}

impl FailureReport {
    /// A failure of this kind that is not a limit.
    pub fn new(attribute: FailureKind, message: impl Into<String>) -> Self {
        Self { attribute, message: message.into(), limit: None }
    }
}

/// Why a command failed: the kind, what happened and where, and what to type next.
#[derive(Clone, Debug)]
pub struct CommandFailure {
    attribute: FailureKind,
    message: String,
    is_told: bool,
    exit_code: Option<u8>,
    signal: Option<i32>,
    limit: Option<String>,
}

impl CommandFailure {
    /// A failure of this machine.
    pub fn local(message: impl fmt::Display) -> Self {
        Self::new(FailureKind::Local, message)
    }

    /// A failure of this kind.
    pub fn new(attribute: FailureKind, message: impl fmt::Display) -> Self {
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
    pub fn already_printed(self) -> Self {
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
    pub fn attribute(&self) -> FailureKind {
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

impl fmt::Display for CommandFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for CommandFailure {}
