//! The hosts that a person has paired with this one.

use farbus_control::fingerprint::Fingerprint;
use farbus_control::peer::Peer;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::trust::limits;
use crate::trust::state::folder::{HostFolder, StateError};

const PEERS_FILE: &str = "peers.json";
/// The list of all paired hosts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PairedHostList {
    peers: Vec<Peer>,
}

impl PairedHostList {
    /// Reads the list in `folder`; it is empty if no host was ever paired.
    ///
    /// # Errors
    /// [`StateError`]: the file cannot be read, other users may change it, or it is damaged. The caller must trust no
    /// host then.
    pub fn load(folder: &HostFolder) -> Result<Self, StateError> {
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
    pub fn change<T>(folder: &HostFolder, change: impl FnOnce(&mut Self) -> T) -> Result<T, StateError> {
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
