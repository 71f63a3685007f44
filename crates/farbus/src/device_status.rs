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
    /// `available` or `in use`.
    pub state: String,
    /// Who uses it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// For how long, seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub used_s: Option<f64>,
    /// What passed through since.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub meters: Option<Readings>,
}
