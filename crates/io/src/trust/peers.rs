//! The hosts that a person has paired with this one.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::fingerprint::Fingerprint;
use super::folder::{Folder, StateError};
use super::limits;

const PEERS_FILE: &str = "peers.json";
/// The word for every device, those not shared yet among them.
const ALL: &str = "*";

/// Which devices of this host a peer may use. None, until its owner says so.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Grant(BTreeSet<String>);

impl Grant {
    /// Of these devices, by name; `all` or `*` is every one.
    pub fn of<'a>(devices: impl IntoIterator<Item = &'a str>) -> Self {
        let mut grant = Self::default();
        devices.into_iter().for_each(|device| grant.add(device));
        grant
    }

    /// Allows one more.
    pub fn add(&mut self, device: &str) {
        self.0.insert(if device == "all" { ALL } else { device }.to_owned());
    }

    /// Takes one back; `all` takes back everything. Returns whether it was allowed.
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

    /// What is allowed, as people write it.
    pub fn words(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|device| if device == ALL { "all" } else { device.as_str() })
    }
}

/// A paired host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Peer {
    /// What this host calls it.
    pub name: String,
    /// Its key.
    pub fingerprint: Fingerprint,
    /// `HOST:PORT` where it was last known to listen. It proves nothing: the key does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// When it was paired, RFC 3339.
    pub paired: String,
    /// Which devices of ours it may use.
    #[serde(default)]
    pub allow: Grant,
    /// For which of them it may reserve with high criticality.
    #[serde(default, skip_serializing_if = "Grant::is_empty")]
    pub reserve_high: Grant,
}

/// All of them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Peers {
    peers: Vec<Peer>,
}

impl Peers {
    /// Those in `folder`; none if nothing was ever paired.
    ///
    /// # Errors
    /// [`StateError`]: the file cannot be read, others may change it, or it is not what it should be. Whoever asks must then
    /// trust nobody.
    pub fn load(folder: &Folder) -> Result<Self, StateError> {
        let Some(bytes) = folder.read(PEERS_FILE, limits::PEERS_BYTES_MAX, true)? else { return Ok(Self::default()) };
        serde_json::from_slice(&bytes).map_err(|error| folder.trouble(PEERS_FILE, &error))
    }

    /// Changes those in `folder`, alone among all processes.
    ///
    /// # Errors
    /// [`StateError`]; nothing is changed then.
    pub fn change<T>(folder: &Folder, change: impl FnOnce(&mut Self) -> T) -> Result<T, StateError> {
        let _lock = folder.lock()?;
        let before = Self::load(folder)?;
        let mut after = before.clone();
        let result = change(&mut after);
        if after != before {
            let mut text = serde_json::to_vec_pretty(&after).map_err(|error| folder.trouble(PEERS_FILE, &error))?;
            text.push(b'\n');
            folder.write(PEERS_FILE, &text)?;
        }
        Ok(result)
    }

    /// By name.
    pub fn find(&self, name: &str) -> Option<&Peer> {
        self.peers.iter().find(|peer| peer.name.eq_ignore_ascii_case(name))
    }

    /// By name, to change it.
    pub fn find_mut(&mut self, name: &str) -> Option<&mut Peer> {
        self.peers.iter_mut().find(|peer| peer.name.eq_ignore_ascii_case(name))
    }

    /// By key.
    pub fn of_key(&self, fingerprint: &Fingerprint) -> Option<&Peer> {
        self.peers.iter().find(|peer| peer.fingerprint == *fingerprint)
    }

    /// In the order of their names.
    pub fn iter(&self) -> impl Iterator<Item = &Peer> {
        self.peers.iter()
    }

    /// Adds a host, or gives one that is paired already its new name, address and permissions.
    ///
    /// # Errors
    /// The key that has this name, if it is another: the name is not taken over.
    pub fn add(&mut self, peer: Peer) -> Result<(), Fingerprint> {
        if let Some(other) = self.find(&peer.name).filter(|other| other.fingerprint != peer.fingerprint) {
            return Err(other.fingerprint);
        }
        self.peers.retain(|known| known.fingerprint != peer.fingerprint);
        self.peers.push(peer);
        self.peers.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(())
    }

    /// Forgets a host.
    pub fn remove(&mut self, name: &str) -> Option<Peer> {
        let at = self.peers.iter().position(|peer| peer.name.eq_ignore_ascii_case(name))?;
        Some(self.peers.remove(at))
    }
}
