//! What this user's processes share now, as far as identities go.

use farbus_io::trust::DeviceId;
use serde_json::Value;

use super::labels::IdentityStatus;
use crate::common::control::{Answer, Question, ask_all};

/// A device on offer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedNow {
    /// The process that shares it.
    pub pid: u32,
    /// The device's name, as it is shared.
    pub name: String,
    /// Whether its owner gave it that.
    pub is_named: bool,
    /// Who uses it.
    pub user: Option<String>,
    /// Which device it is.
    pub identity: Option<IdentityStatus>,
}

impl SharedNow {
    /// The device's id; `None` if its process is of a version that tells none.
    pub fn id(&self) -> Option<DeviceId> {
        self.identity.as_ref().map(|identity| identity.id)
    }

    /// What a permission for it is bound to: its id, if farbus gave its name and it can be known again.
    pub fn bound_to(&self) -> Option<DeviceId> {
        let lasting = self.identity.as_ref().filter(|identity| identity.is_lasting && !self.is_named);
        lasting.map(|identity| identity.id)
    }

    fn of(pid: u32, device: &Value) -> Option<Self> {
        Some(Self {
            pid,
            name: device["name"].as_str()?.to_owned(),
            // Nothing but a share says so.
            is_named: device["is_named"].as_bool()?,
            user: device["user"].as_str().map(str::to_owned),
            identity: serde_json::from_value(device["identity"].clone()).ok(),
        })
    }
}

/// All of them; none, if nobody can be asked.
pub fn shared_now() -> Vec<SharedNow> {
    let all = ask_all(&Question::Status).unwrap_or_default();
    let devices = |(pid, answer): (u32, Answer)| {
        let Answer::Ok(status) = answer else { return Vec::new() };
        let devices = status["devices"].as_array().into_iter().flatten();
        devices.filter_map(|device| SharedNow::of(pid, device)).collect()
    };
    all.into_iter().flat_map(devices).collect()
}
