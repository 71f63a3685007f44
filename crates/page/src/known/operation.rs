//! What both processes of a page know of an action that was begun.

use farbus_control::failure::FailureReport;
use farbus_control::swap::SwapStatus;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How far an operation is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "OperationState")]
#[serde(rename_all = "lowercase")]
pub enum OperationState {
    /// Its command has not done it yet.
    Running,
    /// It is done.
    Done,
    /// It was refused or failed.
    Failed,
}

/// The device that an operation is about.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct On {
    /// The number of the process that has it.
    pub pid: u32,
    /// Its name there.
    pub name: String,
}

/// What is drawn of an operation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DrawnOperation {
    /// Its number on this page, the one of `/api/v1/operations/{id}`.
    pub id: u64,
    /// The name of the action.
    pub action: String,
    /// The device that it is about, once it is known.
    #[serde(default)]
    pub on: Option<On>,
    /// The command line that does the same.
    pub command: String,
    /// Who asked for it.
    pub by: String,
    /// How far it is.
    pub state: OperationState,
    /// When it began: RFC 3339, UTC.
    pub begun: String,
    /// The process of its command, while that runs.
    #[serde(default)]
    pub pid: Option<u32>,
    /// How far a swap is.
    #[serde(default)]
    pub swap: Option<SwapStatus>,
    /// How far any other one is.
    #[serde(default)]
    pub progress: DrawnProgress,
    /// Why it failed.
    #[serde(default)]
    pub failure: Option<FailureReport>,
    /// Whether what a device sent is kept of it.
    #[serde(default)]
    pub is_recorded: bool,
}

/// How far an operation is, as far as it is drawn: a recording or a console, or a stream that is looked at.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct DrawnProgress {
    /// Bytes that were kept.
    pub bytes: u64,
    /// Whether no more is kept.
    pub is_full: bool,
    /// How many pictures came.
    pub pictures: u64,
    /// The width of the last one, pixels.
    pub width: u64,
    /// The height of the last one, pixels.
    pub height: u64,
    /// How many come in a second.
    pub per_second: f64,
    /// Why there are no more.
    pub ended: Option<String>,
}
