//! A device that is shared.

use std::collections::BTreeMap;

use farbus_model::ExportIdentity;
#[cfg(feature = "schema")]
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::identity::DeviceId;
use crate::lease::{BookedStatus, LeaseStatus};
use crate::notes::DeviceNotes;
use crate::reservation::ReservationStatus;
use crate::session::{LinksStatus, Readings};
use crate::swap::SwapStatus;

/// One shared device, as `farbus status` shows it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[cfg_attr(feature = "schema", schemars(rename = "SharedDevice"))]
#[serde(default)]
pub struct DeviceStatus {
    /// The name under which it is shared.
    pub name: String,
    /// The bus id on the wire. Its first number is the virtual bus.
    pub bus_id: String,
    /// Whether its owner gave it that name. If not, another device may have the name after the next start.
    #[serde(default)]
    pub is_named: bool,
    /// The identity of the device, which does not depend on its name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub identity: Option<IdentityStatus>,
    /// Labels, place and comment, as its owner gave them. Absent if nothing is said; also in `farbus list --json`.
    #[serde(flatten)]
    pub notes: DeviceNotes,
    /// Manufacturer and product, by the device's own strings.
    pub title: String,
    /// The speed, in words.
    pub speed: String,
    /// `vendor:product`, hexadecimal, four digits each: `0525:a4a0`.
    pub ids: String,
    /// What the USB ID Repository calls the vendor; absent where it does not know it. `title` has the device's own
    /// strings, which come first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vendor_name: Option<String>,
    /// What the USB ID Repository calls the product; absent where it does not know it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub product_name: Option<String>,
    /// The classes of its interfaces, in words.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub interfaces: Vec<String>,
    /// Size in bytes, if it is a block device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size_bytes: Option<u64>,
    /// The medium, if it is a block device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub medium: Option<MediumStatus>,
    /// `available`, `in use`, `moved away`, `another device in this port` (`another_in_port` says more), or `failed` if
    /// nobody can attach it: `trouble` says why.
    pub state: String,
    /// Set if the device is shared by its port and is another one than the share stands for: permissions and leases of
    /// that one do not count for it. `state` is then `another device in this port`, unless somebody uses it. Also in
    /// `farbus list --json`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub another_in_port: Option<Box<AnotherInPortStatus>>,
    /// How it is used: `exclusive`, `read` (by several users), `scratch` (by several users, each with its own changes).
    /// Absent when nobody uses it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
    /// All users in the order in which they came, if there are several; the first one is `user`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub users: Vec<UserStatus>,
    /// The user, if it is in use.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// The host that it waits for, if its user has handed it over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub successor: Option<String>,
    /// For how long it still waits for that host, milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub successor_left_ms: Option<u64>,
    /// For how long it has been in use, seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub used_s: Option<f64>,
    /// What the user needs it for, if it said so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The lease of it that a host requested and has, whether it uses the device or not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease: Option<LeaseStatus>,
    /// Set if a host has moved the disk to its own machine, or is moving it: what is here is or will be old.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub moved: Option<RetirementStatus>,
    /// Why nobody can attach it, and what to type: what is stored of it is damaged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trouble: Option<String>,
    /// Leases of it ahead of time, in the order of their beginnings.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub booked: Vec<BookedStatus>,
    /// Hosts that wait for it, the longest waiting first. A host waits from its third try, each within 3 s of the one
    /// before.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub waiting: Vec<WaitingStatus>,
    /// Former users, the latest first; at most 16.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub history: Vec<PastStatus>,
    /// Whether hosts that may use it may record what it sends (`farbus observe`, of a stream `farbus stream read
    /// --observe`): its owner permits that, and it has an interrupt or isochronous endpoint that sends, or is a stream.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_observable: bool,
    /// Whether hosts that may use it may see what its serial ports send (`farbus observe --console`): its owner permits
    /// that, and it has such a port.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub has_console: bool,
    /// The swap of its medium, or for a twin, that runs, or the last one since the device was shared. Paired hosts are
    /// not told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub swap: Option<SwapStatus>,
    /// The format of its frames, if it is a stream: `bytes`, or `rgb24 640x480 at 30/s`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stream: Option<String>,
    /// The device's own counters since it was shared, by name: for example the frames that a sound card received.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub counts: BTreeMap<String, u64>,
    /// The links of its user's session. Absent if it is used without a session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub links: Option<LinksStatus>,
    /// The reservation for its user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reservation: Option<ReservationStatus>,
    /// What has passed through its user's connection.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub meters: Option<Readings>,
    /// What commands call it, if another process shares a device of its name, too: the page adds this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub called: Option<String>,
}

/// The medium of a block device. The device may be a part of it.
#[derive(Default, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(default)]
pub struct MediumStatus {
    /// Where it is: `block:PATH` or `memory:SIZE`. Of an attached disk also `HOST:PORT/DEVICE`, as long as it is at its
    /// exporter, or at another host that it was moved to.
    pub at: String,
    /// Size of the whole medium, bytes.
    pub size_bytes: u64,
    /// Whether it is being exchanged for another.
    pub is_swapping: bool,
    /// Whether it has replaced another one since the device was shared.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_swapped: bool,
    /// The identity of a disk of another host, as its exporter told it, as long as it is there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub identity: Option<RemoteIdentity>,
}

/// One of several users of a device.
#[derive(Default, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(default)]
pub struct UserStatus {
    /// The user, as people write it.
    pub user: String,
    /// The mode of use, as [`DeviceStatus::mode`].
    pub mode: String,
    /// For how long, seconds.
    pub used_s: f64,
    /// What the user needs it for, if it said so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// A host that waits for a device.
#[derive(Default, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(default)]
pub struct WaitingStatus {
    /// The host that waits, by its name at the exporter.
    pub host: String,
    /// For how long it has been waiting, seconds.
    pub waits_s: f64,
    /// The priority of its request, if that is above 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<u8>,
    /// For how long it wants a lease, seconds; absent for an attach that waits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub for_s: Option<u64>,
}

/// A use that is over.
#[derive(Default, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(default)]
pub struct PastStatus {
    /// The former user, as people write it.
    pub user: String,
    /// What the user needed it for, if it said so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// How long it lasted, seconds.
    pub used_s: f64,
    /// How long ago it ended, seconds.
    pub ago_s: f64,
    /// How it ended: `detached`, `link lost`, `cut off`, `handed over`, `taken back`, `device gone` or `bug in farbus`.
    pub ended: String,
    /// The remark of the owner who took it back.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remark: Option<String>,
}

/// A device's identity, as `farbus status --json` shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
pub struct IdentityStatus {
    /// The device's id, 32 hexadecimal digits.
    pub id: DeviceId,
    /// The generation: which of the device's media this is.
    pub generation: u64,
    /// Whether farbus recognises the device after a restart: it has this identity then, too.
    pub is_lasting: bool,
}

/// Another device in a port than its share stands for.
#[derive(Default, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(default)]
pub struct AnotherInPortStatus {
    /// The device that the share stands for: its make, and its serial number.
    pub was: String,
    /// The device that is there: its make, and its serial number.
    pub is: String,
    /// What to type here; absent for other hosts.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub next: String,
}

/// A disk that was moved away, as `farbus status` shows it.
#[derive(Default, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(default)]
pub struct RetirementStatus {
    /// The host that moved it, by its name here.
    pub host: String,
    /// When that host said so first: RFC 3339, UTC.
    pub since: String,
    /// `moving` until that host says that it has moved the disk: then nobody else gets it. `moved`: nobody does.
    pub state: String,
}

/// The identity of a disk of another host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
pub struct RemoteIdentity {
    /// The device's id, 32 hexadecimal digits.
    pub id: DeviceId,
    /// The device's generation when it was opened here.
    pub generation: u64,
}

impl RemoteIdentity {
    /// Whether one of the two has the content of the other, as far as identities tell: the same medium, or one that a
    /// swap at its exporter has made of it.
    pub fn is_same_content(self, other: Self) -> bool {
        let [one, other] = [self, other].map(|it| ExportIdentity { id: it.id.number(), generation: it.generation });
        one.continues(other) || other.continues(one)
    }
}

impl From<ExportIdentity> for RemoteIdentity {
    fn from(identity: ExportIdentity) -> Self {
        Self { id: DeviceId::of(identity), generation: identity.generation }
    }
}
