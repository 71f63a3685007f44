//! A host that is paired with this one, and what it may use.

use std::collections::{BTreeMap, BTreeSet};

#[cfg(feature = "schema")]
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::fingerprint::Fingerprint;
use crate::identity::DeviceId;

/// Stands for every device, including those that are shared later.
const ALL: &str = "*";

/// Which devices of this host a peer may use. Initially none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[cfg_attr(feature = "schema", schemars(inline))]
#[serde(transparent)]
pub struct Grant(BTreeSet<String>);

impl Grant {
    /// A grant for these devices, by name; `all` or `*` means every device.
    pub fn of<'a>(devices: impl IntoIterator<Item = &'a str>) -> Self {
        let mut grant = Self::default();
        devices.into_iter().for_each(|device| grant.add(device));
        grant
    }

    /// Adds a device.
    pub fn add(&mut self, device: &str) {
        self.0.insert(if device == "all" { ALL } else { device }.to_owned());
    }

    /// Removes a device; `all` removes everything. Returns whether it was allowed.
    pub fn remove(&mut self, device: &str) -> bool {
        if device == "all" || device == ALL {
            let had_any = !self.0.is_empty();
            self.0.clear();
            return had_any;
        }
        self.0.remove(device)
    }

    /// Whether it allows the device of this name.
    pub fn allows(&self, device: &str) -> bool {
        self.0.contains(ALL) || self.0.contains(device)
    }

    /// Whether it allows nothing.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The allowed devices, for people.
    pub fn words(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|device| if device == ALL { "all" } else { device.as_str() })
    }
}

/// A paired host, as `peers.json` has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
pub struct Peer {
    /// The name that this host uses for it.
    pub name: String,
    /// The fingerprint of its key.
    pub fingerprint: Fingerprint,
    /// `HOST:PORT` where it last listened. It proves nothing: only the key does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// When it was paired, RFC 3339.
    pub paired: String,
    /// Which devices of this host it may use.
    #[serde(default)]
    pub allow: Grant,
    /// For which of these it may reserve with high criticality.
    #[serde(default, skip_serializing_if = "Grant::is_empty")]
    pub reserve_high: Grant,
    /// The devices that names given by farbus, not by the owner, stand for: such a name allows these devices and no
    /// others, whatever they and others are called now. A name that is not here allows any device of that name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub bound: BTreeMap<String, BTreeSet<DeviceId>>,
}

impl Peer {
    /// Whether it may use the device with this name and id.
    pub fn may_use(&self, device: &str, id: Option<DeviceId>) -> bool {
        self.covers(&self.allow, device, id)
    }

    /// Whether it may reserve with high criticality for that device.
    pub fn may_reserve_high(&self, device: &str, id: Option<DeviceId>) -> bool {
        self.covers(&self.reserve_high, device, id)
    }

    fn covers(&self, grant: &Grant, device: &str, id: Option<DeviceId>) -> bool {
        let is_meant = |word: &String| match self.bound.get(word) {
            Some(ids) => id.is_some_and(|id| ids.contains(&id)),
            None => word == device || word == ALL,
        };
        grant.0.iter().any(is_meant)
    }

    /// Makes `device` stand for these devices from now on, in addition to those it stands for already; without any, for
    /// any device of that name.
    pub fn bind(&mut self, device: &str, ids: &BTreeSet<DeviceId>) {
        match ids.is_empty() || device == "all" {
            true => drop(self.bound.remove(device)),
            false => self.bound.entry(device.to_owned()).or_default().extend(ids),
        }
    }

    /// Withdraws the permission for the devices with these ids, under whatever name it was given. Returns whether there
    /// was any.
    pub fn unbind(&mut self, ids: &BTreeSet<DeviceId>) -> bool {
        let before = self.bound.clone();
        for (word, bound) in &mut self.bound {
            bound.retain(|id| !ids.contains(id));
            if bound.is_empty() {
                self.allow.0.remove(word);
                self.reserve_high.0.remove(word);
            }
        }
        self.bound.retain(|_, bound| !bound.is_empty());
        self.bound != before
    }

    /// Removes bindings of names that allow nothing.
    pub fn forget_unused(&mut self) {
        let (allow, reserve_high) = (&self.allow.0, &self.reserve_high.0);
        self.bound.retain(|word, _| allow.contains(word) || reserve_high.contains(word));
    }
}
