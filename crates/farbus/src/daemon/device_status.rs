//! What a daemon's status has besides what those of other processes have.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::Serialize;

use super::directory::DirectoryStatus;
use super::page::PageStatus;
use crate::common::failure::FailureReport;
use crate::frontend::AttachmentStatus;

/// What a daemon says of itself.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct DaemonStatus {
    /// The path of its configuration.
    pub config: PathBuf,
    /// What commands may pass to it besides images.
    pub takes: Vec<&'static str>,
    /// Its page, if it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub page: Option<PageStatus>,
    /// The name that it gives to paired hosts; absent if it serves none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// The directory of all sites, if it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub directory: Option<DirectoryStatus>,
}

/// A device that a daemon is to share and cannot.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct FailedDevice {
    /// The name under which it is to be shared.
    name: String,
    /// `failed`.
    #[schemars(extend("const" = "failed"))]
    state: &'static str,
    /// Why.
    failure: FailureReport,
}

impl FailedDevice {
    /// The device with this name, and why it is not shared.
    pub fn of(name: &str, failure: FailureReport) -> Self {
        Self { name: name.to_owned(), state: "failed", failure }
    }
}

/// A device that is attached; a daemon keeps it attached, and tries again.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[schemars(rename = "AttachedDevice")]
pub struct KeptDevice {
    /// The attachment.
    #[serde(flatten)]
    pub status: AttachmentStatus,
    /// Why the last attempt failed, while it is not attached.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure: Option<FailureReport>,
}
