//! A shared device, for people and programs.

use std::collections::BTreeMap;

use farbus_model::{Instant, Tally};
use farbus_session::block::BlockExport;
use farbus_session::claims::{Claims, Holder, Past, Waiting};
use farbus_session::registry::Entry;
use serde::{Deserialize, Serialize};

use crate::devices::class_words::classes;
use crate::devices::identities::labels::IdentityStatus;
use crate::devices::reservation::ReservationStatus;
use crate::link::meters::Readings;
use crate::link::status::LinksStatus;

/// One shared device, as `farbus status` shows it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeviceStatus {
    /// Its name.
    pub name: String,
    /// Its bus id on the wire.
    pub bus_id: String,
    /// Whether its owner gave it that name; otherwise another device may have it after the next start.
    #[serde(default)]
    pub is_named: bool,
    /// Which device it is, whatever it is called.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub identity: Option<IdentityStatus>,
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
    /// What holds its blocks, if it is a block device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub medium: Option<MediumStatus>,
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
    /// What it counts of itself since it was shared, by name: the frames that a sound card was sent.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub counts: BTreeMap<String, u64>,
    /// The links of its user's session, if it is used in one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub links: Option<LinksStatus>,
    /// What is reserved for its user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reservation: Option<ReservationStatus>,
    /// What passed through since.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub meters: Option<Readings>,
}

/// What the connection of a device's user counts.
#[derive(Clone, Debug, Default)]
pub struct Counted {
    /// What passed through.
    pub meters: Option<Readings>,
    /// Its session's links.
    pub links: Option<LinksStatus>,
}

/// What holds a block device's blocks: all of it, of which the device may be a part.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MediumStatus {
    /// `block:PATH` or `memory:SIZE`.
    pub at: String,
    /// Its size, bytes.
    pub size_bytes: u64,
    /// Whether another is being put in its place.
    pub is_swapping: bool,
}

impl MediumStatus {
    /// That of a block device, if somebody said where it is.
    pub fn of(block: &BlockExport) -> Option<Self> {
        let switch = block.switch();
        Some(Self { at: block.place()?, size_bytes: switch.size_bytes(), is_swapping: switch.is_swapping() })
    }
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

impl DeviceStatus {
    /// What is known of `entry` now, and what its user's connection counts.
    pub fn of(entry: &Entry<'_>, Counted { meters, links }: Counted, now: Instant) -> Self {
        Self {
            name: entry.name.to_owned(),
            bus_id: entry.record.bus_id.clone(),
            is_named: false,
            identity: None,
            title: entry.title.to_owned(),
            speed: entry.record.speed.to_string(),
            ids: format!("{:04x}:{:04x}", entry.record.vendor, entry.record.product),
            interfaces: classes(entry.record),
            size_bytes: entry.block.map(|block| block.info().size_bytes),
            medium: entry.block.and_then(MediumStatus::of),
            state: if entry.holder.is_some() { "in use" } else { "available" }.to_owned(),
            mode: entry.holder.map(|holder| holder.mode.as_str().to_owned()),
            users: users_of(entry.claims, now),
            user: entry.holder.map(|holder| holder.who.clone()),
            used_s: entry.holder.map(|holder| (now - holder.since).as_secs_f64()),
            reason: entry.holder.and_then(|holder| holder.reason.clone()),
            waiting: waiting_of(entry.claims, now),
            history: history_of(entry.claims, now),
            counts: entry.tally.into_iter().flat_map(Tally::read).map(|(name, n)| (name.to_owned(), n)).collect(),
            links,
            reservation: None,
            meters,
        }
    }
}

/// Everybody who uses it, where that may be more than one.
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
    let status =
        |waiting: &Waiting| WaitingStatus { host: waiting.host.clone(), waits_s: (now - waiting.since).as_secs_f64() };
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
