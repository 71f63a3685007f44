//! The status of a shared device, for people and programs.

use std::collections::BTreeMap;

use farbus_io::trust::DeviceNotes;
use farbus_model::{Instant, Tally};
use farbus_session::block::BlockExport;
use farbus_session::claims::{Claims, Holder, Past, Waiting};
use farbus_session::registry::Entry;
use serde::{Deserialize, Serialize};

use crate::devices::class_words::classes;
use crate::devices::follow::AnotherInPortStatus;
use crate::devices::identities::labels::IdentityStatus;
use crate::devices::lease::{BookedStatus, LeaseStatus};
use crate::devices::media_journal::RemoteIdentity;
use crate::devices::reservation::ReservationStatus;
use crate::devices::retirement::RetirementStatus;
use crate::devices::swap_run::SwapStatus;
use crate::devices::usb_names::UsbNames;
use crate::link::meters::Readings;
use crate::link::status::LinksStatus;

/// One shared device, as `farbus status` shows it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "cli", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "cli", schemars(rename = "SharedDeviceStatus"))]
pub struct DeviceStatus {
    /// The name under which it is shared.
    pub name: String,
    /// The bus id on the wire.
    pub bus_id: String,
    /// Whether its owner gave it that name. If not, another device may have the name after the next start.
    #[serde(default)]
    pub is_named: bool,
    /// The identity of the device, which does not depend on its name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub identity: Option<IdentityStatus>,
    /// Labels, place and comment, as its owner gave them.
    #[serde(flatten)]
    #[cfg_attr(feature = "cli", schemars(with = "Notes"))]
    pub notes: DeviceNotes,
    /// Manufacturer and product.
    pub title: String,
    /// The speed, in words.
    pub speed: String,
    /// `vendor:product`.
    pub ids: String,
    /// The vendor's name by the USB ID Repository, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vendor_name: Option<String>,
    /// The product's name by the USB ID Repository, if it has one.
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
    /// that one do not count for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub another_in_port: Option<Box<AnotherInPortStatus>>,
    /// How it is used: `exclusive`, `read` (by several users), `scratch` (by several users, each with its own changes).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
    /// All users, if there are several; the first one is `user`.
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
    /// Hosts that wait for it, the longest waiting first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub waiting: Vec<WaitingStatus>,
    /// Former users, the latest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub history: Vec<PastStatus>,
    /// Whether hosts that may use it may record what it sends (`farbus observe`): its owner permits that, and it has an
    /// interrupt or isochronous endpoint that sends, or is a stream.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_observable: bool,
    /// Whether hosts that may use it may see what its serial ports send (`farbus observe --console`): its owner permits
    /// that, and it has such a port.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub has_console: bool,
    /// The swap of its medium, or for a twin, that runs, or the last one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub swap: Option<SwapStatus>,
    /// The format of its frames, if it is a stream: `bytes`, or `rgb24 640x480 at 30/s`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stream: Option<String>,
    /// The device's own counters since it was shared, by name: for example the frames that a sound card received.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub counts: BTreeMap<String, u64>,
    /// The links of its user's session, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub links: Option<LinksStatus>,
    /// The reservation for its user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reservation: Option<ReservationStatus>,
    /// The traffic of its user's connection.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub meters: Option<Readings>,
}

/// [`DeviceNotes`], for the description of the status.
#[cfg(feature = "cli")]
#[derive(schemars::JsonSchema)]
#[expect(dead_code, reason = "only its schema is used")]
struct Notes {
    /// The labels: each a name and a value.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    labels: BTreeMap<String, String>,
    /// Where the device is.
    #[serde(skip_serializing_if = "Option::is_none")]
    place: Option<String>,
    /// What else a user should know.
    #[serde(skip_serializing_if = "Option::is_none")]
    comment: Option<String>,
}

/// The counters of the connection of a device's user.
#[derive(Clone, Debug, Default)]
pub struct Counted {
    /// The traffic.
    pub meters: Option<Readings>,
    /// The links of its session.
    pub links: Option<LinksStatus>,
}

/// The medium of a block device. The device may be a part of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "cli", derive(schemars::JsonSchema))]
pub struct MediumStatus {
    /// `block:PATH` or `memory:SIZE`.
    pub at: String,
    /// Size of the whole medium, bytes.
    pub size_bytes: u64,
    /// Whether it is being exchanged for another.
    pub is_swapping: bool,
    /// Whether it has replaced another one since the device was shared.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_swapped: bool,
    /// The identity of a disk of another host, as long as it is there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub identity: Option<RemoteIdentity>,
}

impl MediumStatus {
    /// The medium of a block device, if its place is known.
    pub fn of(block: &BlockExport) -> Option<Self> {
        let switch = block.switch();
        let (at, is_swapped) = (block.place()?, block.has_moved());
        let (size_bytes, is_swapping) = (switch.size_bytes(), switch.is_swapping());
        Some(Self { at, size_bytes, is_swapping, is_swapped, identity: None })
    }
}

/// One of several users of a device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "cli", derive(schemars::JsonSchema))]
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
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "cli", derive(schemars::JsonSchema))]
pub struct WaitingStatus {
    /// The host.
    pub host: String,
    /// For how long it has been waiting, seconds.
    pub waits_s: f64,
    /// The priority of its request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<u8>,
    /// For how long it wants a lease, seconds; absent for an attach that waits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub for_s: Option<u64>,
}

/// A use that is over.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "cli", derive(schemars::JsonSchema))]
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
    /// How it ended, in a word.
    pub ended: String,
    /// The remark of the owner who took it back.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remark: Option<String>,
}

impl DeviceStatus {
    /// The status of `entry` at `now`, with the counters of its user's connection.
    pub fn of(entry: &Entry<'_>, Counted { meters, links }: Counted, now: Instant) -> Self {
        let names = UsbNames::of(entry.record.vendor, entry.record.product);
        Self {
            vendor_name: names.vendor.map(str::to_owned),
            product_name: names.product.map(str::to_owned),
            name: entry.name.to_owned(),
            bus_id: entry.record.bus_id.clone(),
            is_named: false,
            identity: None,
            notes: DeviceNotes::default(),
            title: entry.title.to_owned(),
            speed: entry.record.speed.to_string(),
            ids: format!("{:04x}:{:04x}", entry.record.vendor, entry.record.product),
            interfaces: classes(entry.record),
            size_bytes: entry.block.map(|block| block.info().size_bytes),
            medium: entry.block.and_then(MediumStatus::of),
            another_in_port: None,
            state: if entry.holder.is_some() { "in use" } else { "available" }.to_owned(),
            mode: entry.holder.map(|holder| holder.mode.as_str().to_owned()),
            users: users_of(entry.claims, now),
            user: entry.holder.map(|holder| holder.who.clone()),
            successor: None,
            successor_left_ms: None,
            used_s: entry.holder.map(|holder| (now - holder.since).as_secs_f64()),
            reason: entry.holder.and_then(|holder| holder.reason.clone()),
            lease: entry.claims.lease(now).map(|lease| LeaseStatus::of(lease, now)),
            moved: None,
            trouble: None,
            booked: entry.claims.bookings().iter().map(BookedStatus::of).collect(),
            waiting: waiting_of(entry.claims, now),
            history: history_of(entry.claims, now),
            is_observable: false,
            has_console: false,
            swap: None,
            stream: entry.stream.map(|stage| stage.description().format.to_string()),
            counts: entry.tally.into_iter().flat_map(Tally::read).map(|(name, n)| (name.to_owned(), n)).collect(),
            links,
            reservation: None,
            meters,
        }
    }
}

/// All users, if there are several.
fn users_of(claims: &Claims, now: Instant) -> Vec<UserStatus> {
    let status = |holder: &Holder| UserStatus {
        user: holder.who.clone(),
        mode: holder.mode.as_str().to_owned(),
        used_s: (now - holder.since).as_secs_f64(),
        reason: holder.reason.clone(),
    };
    claims.holders().iter().filter(|_| claims.holders().len() > 1).map(status).collect()
}

fn waiting_of(claims: &Claims, now: Instant) -> Vec<WaitingStatus> {
    let status = |waiting: &Waiting| WaitingStatus {
        host: waiting.host.clone(),
        waits_s: (now - waiting.since).as_secs_f64(),
        priority: (waiting.priority > 0).then_some(waiting.priority),
        for_s: waiting.span.map(|span| span.as_secs()),
    };
    claims.queue(now).map(status).collect()
}

fn history_of(claims: &Claims, now: Instant) -> Vec<PastStatus> {
    let status = |past: &Past| PastStatus {
        user: past.holder.who.clone(),
        reason: past.holder.reason.clone(),
        used_s: (past.until - past.holder.since).as_secs_f64(),
        ago_s: (now - past.until).as_secs_f64(),
        ended: past.ending.as_str().to_owned(),
        remark: past.remark.clone(),
    };
    claims.history().rev().map(status).collect()
}
