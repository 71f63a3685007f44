//! A shared device, for people and programs.

use serde::{Deserialize, Serialize};

use crate::meters::Readings;

/// One shared device, as `farbus status` shows it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeviceStatus {
    /// Its name.
    pub name: String,
    /// Its bus id on the wire.
    pub bus_id: String,
    /// Manufacturer and product.
    pub title: String,
    /// Speed.
    pub speed: String,
    /// `vendor:product`.
    pub ids: String,
    /// What its interfaces are for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub interfaces: Vec<String>,
    /// Its size, bytes, if it is a block device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size_bytes: Option<u64>,
    /// `available` or `in use`.
    pub state: String,
    /// How it is used: `exclusive`, `read` (by many), `scratch` (by many, each with changes of his own).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
    /// All who use it, if they are several; the first is the *user*.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub users: Vec<UserStatus>,
    /// Who uses it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// For how long, seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub used_s: Option<f64>,
    /// What for, if it said so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Who waits for it, the longest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub waiting: Vec<WaitingStatus>,
    /// Who had it, the latest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub history: Vec<PastStatus>,
    /// What passed through since.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub meters: Option<Readings>,
}

/// One of several that use a device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct UserStatus {
    /// Who.
    pub user: String,
    /// How.
    pub mode: String,
    /// For how long, seconds.
    pub used_s: f64,
    /// What for, if it said so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// A host that waits for a device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WaitingStatus {
    /// Which.
    pub host: String,
    /// For how long, seconds.
    pub waits_s: f64,
}

/// A use that is over.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PastStatus {
    /// Who it was.
    pub user: String,
    /// What for, if it said so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// How long it lasted, seconds.
    pub used_s: f64,
    /// How long ago it ended, seconds.
    pub ago_s: f64,
    /// How it ended.
    pub ended: String,
    /// What the owner said who took it back.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remark: Option<String>,
}
