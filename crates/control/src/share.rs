//! What is answered to who shares devices: a daemon to the command that asks it, and the command with `--json`.

use std::path::PathBuf;

#[cfg(feature = "schema")]
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::identity::DeviceId;

/// What is shared now, by which process and where.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(default)]
pub struct ShareReport {
    /// The process that shares them.
    pub pid: u32,
    /// The number of the daemon that shares them; null if another process does.
    pub daemon: Option<u32>,
    /// The devices that are shared.
    pub devices: Vec<SharedNow>,
    /// Where it listens.
    pub listening: Vec<ListeningPlace>,
    /// The configuration that shares them from now on.
    pub saved: Option<PathBuf>,
}

/// What is not shared any more.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(default)]
pub struct UnshareReport {
    /// The devices, by their names.
    pub unshared: Vec<String>,
    /// Whether the configuration names them: the next reload shares them again.
    pub until_reload: bool,
}

/// A device that is shared now.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(default)]
pub struct SharedNow {
    /// Its name on this host.
    pub name: String,
    /// Its bus id on the wire.
    pub bus_id: String,
    /// `vendor:product`, hexadecimal, four digits each.
    pub ids: String,
    /// The speed, in words.
    pub speed: String,
    /// Its identity, if it has one.
    pub id: Option<DeviceId>,
}

/// A place where a process listens.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(default)]
pub struct ListeningPlace {
    /// `HOST:PORT` or `unix:PATH`.
    pub at: String,
    /// Whether it is for paired hosts alone, encrypted.
    pub is_secure: bool,
}
