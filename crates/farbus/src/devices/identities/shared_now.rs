//! The devices that this user's processes share now, with their identities.

use farbus_control::device::IdentityStatus;
use farbus_io_net::local::control_socket::{Answer, Question, ask_all};
use farbus_io_net::trust::DeviceId;
use serde_json::Value;

/// A device that is shared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedNow {
    /// The process that shares it.
    pub pid: u32,
    /// The name under which the device is shared.
    pub name: String,
    /// Whether its owner gave it that name.
    pub is_named: bool,
    /// The user of the device, if it is in use.
    pub user: Option<String>,
    /// The device's identity, if its process reports it.
    pub identity: Option<IdentityStatus>,
}

impl SharedNow {
    /// The device's id; `None` if its process is of a version that does not report it.
    pub fn id(&self) -> Option<DeviceId> {
        self.identity.as_ref().map(|identity| identity.id)
    }

    /// The id that a permission for this device is bound to: only if farbus gave the name and the identity lasts.
    pub fn bound_to(&self) -> Option<DeviceId> {
        let lasting = self.identity.as_ref().filter(|identity| identity.is_lasting && !self.is_named);
        lasting.map(|identity| identity.id)
    }

    fn of(pid: u32, device: &Value) -> Option<Self> {
        Some(Self {
            pid,
            name: device["name"].as_str()?.to_owned(),
            // Only a share reports this field.
            is_named: device["is_named"].as_bool()?,
            user: device["user"].as_str().map(str::to_owned),
            identity: serde_json::from_value(device["identity"].clone()).ok(),
        })
    }
}

/// All devices that are shared; empty if no process can be asked.
pub fn shared_now() -> Vec<SharedNow> {
    let all = ask_all(&Question::Status).unwrap_or_default();
    let devices = |(pid, answer): (u32, Answer)| {
        let Answer::Ok(status) = answer else { return Vec::new() };
        let devices = status["devices"].as_array().into_iter().flatten();
        devices.filter_map(|device| SharedNow::of(pid, device)).collect()
    };
    all.into_iter().flat_map(devices).collect()
}
