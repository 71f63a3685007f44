//! A device that is attached.

use std::borrow::Cow;
use std::collections::BTreeMap;

#[cfg(feature = "schema")]
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::device::MediumStatus;
use crate::failure::FailureReport;
use crate::reservation::ReservationStatus;
use crate::session::{Latency, LinksStatus, Readings};
use crate::swap::SwapStatus;

/// What an attachment reports to `farbus status`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[cfg_attr(feature = "schema", schemars(rename = "AttachedDevice"))]
#[serde(default)]
pub struct AttachmentStatus {
    /// The device's name at its exporter.
    pub name: String,
    /// Its target, `HOST:PORT/DEVICE`.
    pub title: String,
    /// `attached`; `link lost` while it waits for a new link; `held` while no request is passed on (`farbus hold`, or
    /// its user has yet to leave); `following` while it is in use, and goes to another host as soon as its user leaves;
    /// `handed over` while it is on its way to another host; `waiting` while another host has yet to hand it over; in a
    /// daemon also `connecting`, and `waiting` for the next attempt; in a daemon and in `farbus run`, `another device`
    /// while another one is where it was: `failure` names both; in `farbus nbd`, `served`.
    pub state: Cow<'static, str>,
    /// The address of the exporter that has the device now, as it was named; of a device whose twin at another host has
    /// its place, that host.
    pub user: String,
    /// Where it appears on this machine: a vhci port, a file, the socket for a virtual machine, or the program that has
    /// it.
    pub at: String,
    /// How long it has been attached, seconds.
    pub used_s: f64,
    /// What the device is needed for, as its exporter was told.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// How a disk is used: `exclusive` or `read`. Absent if it is not a disk, or is not attached as one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<Cow<'static, str>>,
    /// For how long it has waited for a link, seconds; absent while it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub link_lost_s: Option<f64>,
    /// How long it is held at most while it migrates, milliseconds: the shorter limit of both ends of its session.
    /// Absent without a session.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hold_ms: Option<u64>,
    /// Where the time of its requests goes, if it is in a session.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub latency: Option<Latency>,
    /// What was done about its distance, by name: transfers received ahead of its user's requests, packets that were
    /// late.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub counts: BTreeMap<Cow<'static, str>, u64>,
    /// Of a running stream: by how many microseconds its clock was adjusted to follow the device's clock.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drift_us: Option<i64>,
    /// Its session's links, if it is in a session.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub links: Option<LinksStatus>,
    /// What its exporter reserves for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reservation: Option<ReservationStatus>,
    /// What has passed through, if it is counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub meters: Option<Readings>,
    /// The modules that its data passes through, the importer's end first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub modules: Vec<String>,
    /// Of a disk that `swap` can move, and of what `farbus nbd` serves: where it is. At its exporter, at another one
    /// that it was moved to, or on this machine (`block:PATH`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub medium: Option<MediumStatus>,
    /// The twin that has the device's place since it was swapped: `usb:BUSID` or `HOST:PORT/DEVICE`. Absent if it is
    /// the device itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replaced_by: Option<String>,
    /// The swap of its disk or device that runs, or the last one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub swap: Option<SwapStatus>,
    /// Its migration that runs, or the last one; absent if there was none. A daemon keeps it after the device has gone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub migration: Option<MigrationStatus>,
    /// The classes of its interfaces, in words, 32 at most, if it is attached as the USB device that it is. Absent
    /// otherwise, and while another host has yet to hand it over.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub interfaces: Vec<String>,
    /// How many programs have its disk open, as a file or an NBD export. Absent if that is not counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub open: Option<usize>,
    /// The numbers of the processes that are connected to its Unix socket: a virtual machine, NBD clients. Absent if
    /// none is. A process of another container is not listed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub processes: Vec<u32>,
    /// The drivers of this machine's kernel that took it, an empty list if no driver did. Absent if it is not plugged
    /// into the kernel, or the kernel has not looked at it yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drivers: Option<Vec<String>>,
    /// Why the last attempt to attach it failed, while it is not attached.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<FailureReport>,
}

impl AttachmentStatus {
    /// An attachment that does not run yet, or no longer.
    pub fn named(name: &str, title: &str, state: impl Into<Cow<'static, str>>) -> Self {
        Self { name: name.to_owned(), title: title.to_owned(), state: state.into(), ..Self::default() }
    }
}

/// The last migration of an attached device, or the one that runs, as `farbus status --json` shows it.
#[derive(Default, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(default)]
pub struct MigrationStatus {
    /// The other host, as its owner named it; its key if the command said no name.
    pub to: String,
    /// `running`, `done` or `failed`.
    pub state: Cow<'static, str>,
    /// When it began: RFC 3339, UTC.
    pub begun: String,
    /// Seconds since it began, while it runs; how long it took, once it is done; absent if it failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub elapsed_s: Option<f64>,
    /// Why it failed. The device stays where it was, unless that is gone, too.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure: Option<FailureReport>,
}
