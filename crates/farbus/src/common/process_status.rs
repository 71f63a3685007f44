//! The status of a running process and its devices.

use serde::Serialize;

use crate::common::control::Answer;

/// A running process in `farbus status --json`.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "cli", derive(schemars::JsonSchema))]
pub struct ProcessStatus<D> {
    /// Process id, as the kernel of this machine numbers it.
    pub pid: u32,
    /// What it does: `share`, `attach`, `daemon`, `nbd`, `pipe` or `run`.
    pub role: &'static str,
    /// Where it listens, or what it is attached to.
    pub address: String,
    /// Whether only paired hosts are served there.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub is_for_paired_hosts: bool,
    /// The devices that it shares or has attached.
    pub devices: Vec<D>,
}

impl<D: Serialize> ProcessStatus<D> {
    /// The status as an answer on the control socket.
    pub fn answer(&self) -> Answer {
        match serde_json::to_value(self) {
            Ok(value) => Answer::Ok(value),
            Err(error) => Answer::Refused(error.to_string()),
        }
    }
}
