//! The hosts that a person has paired with this one.

use std::collections::{BTreeMap, BTreeSet};

use farbus_control::identity::DeviceId;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::fingerprint::Fingerprint;
use super::folder::{Folder, StateError};
use super::limits;

const PEERS_FILE: &str = "peers.json";
/// Stands for every device, including those that are shared later.
const ALL: &str = "*";

/// Which devices of this host a peer may use. Initially none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
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

/// A paired host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
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

/// The list of all paired hosts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Peers {
    peers: Vec<Peer>,
}

impl Peers {
    /// Reads the list in `folder`; it is empty if no host was ever paired.
    ///
    /// # Errors
    /// [`StateError`]: the file cannot be read, other users may change it, or it is damaged. The caller must trust no
    /// host then.
    pub fn load(folder: &Folder) -> Result<Self, StateError> {
        let Some(bytes) = folder.read(PEERS_FILE, limits::PEERS_BYTES_MAX, true)? else { return Ok(Self::default()) };
        serde_json::from_slice(&bytes).map_err(|error| {
            let path = folder.file(PEERS_FILE);
            let what = format!(
                "it is damaged: {error}\n  \
                 bring it back from a backup; or pair all hosts again, after: mv {0} {0}.damaged",
                path.display()
            );
            StateError { path, what }
        })
    }

    /// Changes the list in `folder`, with a lock against other processes. Fields of other releases, which this one does
    /// not know, are kept.
    ///
    /// # Errors
    /// [`StateError`]; nothing is changed then.
    pub fn change<T>(folder: &Folder, change: impl FnOnce(&mut Self) -> T) -> Result<T, StateError> {
        let _lock = folder.lock()?;
        let before = Self::load(folder)?;
        let mut after = before.clone();
        let result = change(&mut after);
        if after != before {
            let trouble = |error: serde_json::Error| folder.trouble(PEERS_FILE, &error);
            let written = folder.read(PEERS_FILE, limits::PEERS_BYTES_MAX, true)?.unwrap_or_else(|| b"{}".to_vec());
            let written = serde_json::from_slice(&written).map_err(trouble)?;
            let known = serde_json::to_value(&before).map_err(trouble)?;
            let mut changed = serde_json::to_value(&after).map_err(trouble)?;
            keep_unknown(&written, &known, &mut changed);
            let mut text = serde_json::to_vec_pretty(&changed).map_err(trouble)?;
            text.push(b'\n');
            folder.write(PEERS_FILE, &text)?;
        }
        Ok(result)
    }

    /// Finds a host by its name.
    pub fn find(&self, name: &str) -> Option<&Peer> {
        self.peers.iter().find(|peer| peer.name.eq_ignore_ascii_case(name))
    }

    /// Finds a host by its name, to change it.
    pub fn find_mut(&mut self, name: &str) -> Option<&mut Peer> {
        self.peers.iter_mut().find(|peer| peer.name.eq_ignore_ascii_case(name))
    }

    /// Finds a host by its key.
    pub fn of_key(&self, fingerprint: &Fingerprint) -> Option<&Peer> {
        self.peers.iter().find(|peer| peer.fingerprint == *fingerprint)
    }

    /// All hosts, sorted by name.
    pub fn iter(&self) -> impl Iterator<Item = &Peer> {
        self.peers.iter()
    }

    /// Adds a host, or gives a paired host its new name, address and permissions.
    ///
    /// # Errors
    /// The key that already has this name: a name is not reassigned.
    pub fn add(&mut self, peer: Peer) -> Result<(), Fingerprint> {
        if let Some(other) = self.find(&peer.name).filter(|other| other.fingerprint != peer.fingerprint) {
            return Err(other.fingerprint);
        }
        self.peers.retain(|known| known.fingerprint != peer.fingerprint);
        self.peers.push(peer);
        self.peers.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(())
    }

    /// Removes a host.
    pub fn remove(&mut self, name: &str) -> Option<Peer> {
        let at = self.peers.iter().position(|peer| peer.name.eq_ignore_ascii_case(name))?;
        Some(self.peers.remove(at))
    }
}

/// Copies to `changed` the fields of `written` that are not in `known`: fields of the file, and of each host that is
/// still there.
fn keep_unknown(written: &Value, known: &Value, changed: &mut Value) {
    keep_unknown_fields(written, known, changed);
    let hosts = |value: &Value| value["peers"].as_array().cloned().unwrap_or_default();
    let (written, known) = (hosts(written), hosts(known));
    for host in changed["peers"].as_array_mut().into_iter().flatten() {
        let key = host["fingerprint"].clone();
        let same = |all: &[Value]| all.iter().find(|other| other["fingerprint"] == key).cloned();
        if let (Some(written), Some(known)) = (same(&written), same(&known)) {
            keep_unknown_fields(&written, &known, host);
        }
    }
}

fn keep_unknown_fields(written: &Value, known: &Value, changed: &mut Value) {
    let (Some(written), Some(changed)) = (written.as_object(), changed.as_object_mut()) else { return };
    for (key, value) in written {
        if known.get(key).is_none() {
            changed.entry(key.clone()).or_insert_with(|| value.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn fields_of_a_later_release_stay_when_this_one_changes_the_file() {
        let key = "x".repeat(52);
        let written = json!({ "peers": [{ "name": "desk", "fingerprint": key, "identity": [1], "reserve_high": ["a"] }], "format": 2 });
        let known = json!({ "peers": [{ "name": "desk", "fingerprint": key, "reserve_high": ["a"] }] });
        let host = |allow: Value| json!({ "name": "desk", "fingerprint": key, "allow": allow });
        let mut changed = json!({ "peers": [host(json!(["disk"])), { "name": "rack", "fingerprint": "y" }] });
        keep_unknown(&written, &known, &mut changed);
        assert_eq!((&changed["format"], &changed["peers"][0]["identity"]), (&json!(2), &json!([1])));
        assert_eq!(
            changed["peers"][0]["reserve_high"],
            Value::Null,
            "what was known and taken away is not brought back"
        );
        assert_eq!(changed["peers"][1], json!({ "name": "rack", "fingerprint": "y" }));
    }
}
