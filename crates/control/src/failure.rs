//! Failures, in the words that messages, exit codes and JSON share.

#[cfg(feature = "schema")]
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The kind of a failure (N10), named in every message, exit code and JSON state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[cfg_attr(feature = "schema", schemars(rename = "FailureKind"))]
#[serde(rename_all = "lowercase")]
pub enum Attribute {
    /// The device failed.
    Device,
    /// The network failed.
    Network,
    /// The other side, or a rule, refused.
    Refused,
    /// The device or host is not there.
    Gone,
    /// This machine lacks something that is needed.
    #[default]
    Local,
}

impl Attribute {
    /// The word that is used in messages, JSON and tables.
    pub const fn as_str(self) -> &'static str {
        match self {
            Attribute::Device => "device",
            Attribute::Network => "network",
            Attribute::Refused => "refused",
            Attribute::Gone => "gone",
            Attribute::Local => "local",
        }
    }

    /// The exit code of the command. Code 2 means wrong usage.
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

/// A failure, as JSON reports it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[cfg_attr(feature = "schema", schemars(rename = "Failure", deny_unknown_fields))]
#[serde(default)]
pub struct FailureReport {
    /// The kind of the failure.
    pub attribute: Attribute,
    /// A sentence for a person.
    pub message: String,
    /// The name of the limit that was reached, if that is the failure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<String>,
}

impl FailureReport {
    /// A failure of this kind that is not a limit.
    pub fn new(attribute: Attribute, message: impl Into<String>) -> Self {
        Self { attribute, message: message.into(), limit: None }
    }
}
