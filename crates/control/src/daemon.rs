//! What a daemon says of itself.

use std::borrow::Cow;
use std::path::PathBuf;

#[cfg(feature = "schema")]
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::failure::FailureReport;
#[cfg(feature = "schema")]
use crate::schema::or_null;

/// What a daemon says of itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
pub struct DaemonStatus {
    /// Of a daemon: the path of its configuration.
    pub config: PathBuf,
    /// Of a daemon: what commands may pass to it besides images: `usb` for real devices, `frames` for streams. Absent
    /// or empty: nothing.
    pub takes: Vec<Cow<'static, str>>,
    /// Of a daemon: its page, if it has one (`[page]` in its configuration).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub page: Option<PageStatus>,
    /// Of a daemon: the name that it gives to paired hosts; absent if it serves none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// Of a daemon: the directory of all sites, if it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub directory: Option<DirectoryStatus>,
}

/// A device that a daemon is to share and cannot.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
pub struct FailedDevice {
    /// The name under which it is to be shared.
    pub name: String,
    /// `failed`: it cannot be shared.
    #[cfg_attr(feature = "schema", schemars(extend("const" = "failed")))]
    pub state: Cow<'static, str>,
    /// Why it cannot be shared.
    pub failure: FailureReport,
}

impl FailedDevice {
    /// The device with this name, and why it is not shared.
    pub fn new(name: &str, failure: FailureReport) -> Self {
        Self { name: name.to_owned(), state: "failed".into(), failure }
    }
}

/// What changed when a daemon read its configuration again.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(default)]
pub struct ReloadReport {
    /// The devices that are shared or attached now and were not, by name or target.
    pub added: Vec<String>,
    /// The devices that are not any more.
    pub removed: Vec<String>,
    /// The target whose device was adopted; null if none was to be. Absent in answers of 0.1.0.
    pub adopted: Option<String>,
}

/// How a daemon passed what it does to another process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(default)]
pub struct RestartReport {
    /// The number of the process that goes on.
    pub pid: u32,
    /// The targets that stay attached.
    pub kept: Vec<String>,
    /// How many sessions of importers stay.
    pub sessions: usize,
    /// What could not be passed on, with the reasons: its users got errors.
    pub interrupted: Vec<String>,
    /// How long everything stood still, in milliseconds.
    pub still_ms: u64,
}

/// What a daemon detached so that the machine can sleep.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(default)]
pub struct SleepReport {
    /// The targets that are detached until the machine wakes.
    pub asleep: Vec<String>,
}

/// What a daemon attaches again after sleep.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(default)]
pub struct WakeReport {
    /// The targets that are attached again, as soon as their exporters answer.
    pub awake: Vec<String>,
}

/// What a host may have of all devices of a directory, as it was written there.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(default)]
pub struct DirectoryLimitReport {
    /// The host's key, as the directory has it.
    pub key: String,
    /// How many devices it may lease at a time; null: any number.
    pub devices: Option<u32>,
    /// For how long at most, in seconds; null: for any time.
    pub for_s: Option<u64>,
}

/// Where a daemon's page is, in its status.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
pub struct PageStatus {
    /// Where it is: `http://…`, or `unix:PATH`; null while it is not there.
    pub at: Option<String>,
    /// Why it is not there; null if nothing is wrong.
    pub failure: Option<String>,
    /// Where browsers of other machines find it, with `tls`; null while it is not there.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(schema_with = "or_null::<Elsewhere>"))]
    pub elsewhere: Option<Option<Elsewhere>>,
}

/// Where a page is for browsers of other machines.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
pub struct Elsewhere {
    /// Its URL, without a path.
    pub url: String,
    /// The SHA-256 fingerprint of its certificate, as browsers show it.
    pub fingerprint: String,
}

/// The directory, in a daemon's status.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
pub struct DirectoryStatus {
    /// Where it is.
    pub at: String,
    /// `starting`, `ok` or `trouble`.
    pub state: Cow<'static, str>,
    /// The member that was talked to last, `HOST:PORT`.
    pub member: String,
    /// Whether all that this host has to say is there.
    pub is_published: bool,
    /// Whether all keys were read once.
    pub is_known: bool,
    /// How many hosts are known; this one counts.
    pub hosts: usize,
    /// How many devices are known.
    pub devices: usize,
    /// How many keys and values are there that are none of farbus's.
    pub unfit: usize,
    /// How long ago it was heard, seconds; null: not yet.
    pub heard_s: Option<u64>,
    /// What is wrong; null if nothing is.
    pub trouble: Option<TroubleStatus>,
}

/// What is wrong with the directory.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[cfg_attr(feature = "schema", schemars(rename = "DirectoryTrouble"))]
pub struct TroubleStatus {
    /// Its kind, in a word.
    pub kind: Cow<'static, str>,
    /// What happened, for a person.
    pub message: String,
    /// What to type.
    pub next: Cow<'static, str>,
}
