//! The room that a view has for keys and values, and how much of it the keys of each host take.

use std::collections::BTreeMap;

use crate::key::HostId;

/// The most keys that are kept.
pub const KEYS_MAX: usize = 65_536;
/// The most bytes of values that are kept.
pub const BYTES_MAX: usize = 24 << 20;
/// The part of both that the keys of one host may take: one divided by this.
const PARTS: usize = 4;
/// What is freed at once where a host displaces others, so that this is done rarely: one divided by this.
const FREED_PARTS: usize = 64;

/// Keys, and the bytes of their values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeyValueUsage {
    /// The number of keys.
    pub keys: usize,
    /// Bytes of values.
    pub bytes: usize,
}

impl KeyValueUsage {
    fn fits(self, parts: usize) -> bool {
        self.keys <= KEYS_MAX / parts && self.bytes <= BYTES_MAX / parts
    }

    /// The part of the room that it takes: that of its keys, or of its bytes, in bytes.
    fn weight(self) -> usize {
        (self.keys * (BYTES_MAX / KEYS_MAX)).max(self.bytes)
    }

    fn with(self, former: Option<usize>, bytes: usize) -> Self {
        let keys = self.keys + usize::from(former.is_none());
        Self { keys, bytes: self.bytes - former.unwrap_or_default() + bytes }
    }
}

/// What a view holds, in all and of each host.
#[derive(Clone, Debug, Default)]
pub struct DirectoryQuota {
    all: KeyValueUsage,
    hosts: BTreeMap<HostId, KeyValueUsage>,
}

impl DirectoryQuota {
    /// What is held in all.
    #[cfg(test)]
    pub fn held(&self) -> KeyValueUsage {
        self.all
    }

    /// Whether a value of so many bytes fits into the share of `host`; `former`: the bytes of the value that it
    /// replaces, if it does.
    pub fn fits_share(&self, host: &HostId, former: Option<usize>, bytes: usize) -> bool {
        self.hosts.get(host).copied().unwrap_or_default().with(former, bytes).fits(PARTS)
    }

    /// Whether such a value fits into the room that is left.
    pub fn fits(&self, former: Option<usize>, bytes: usize) -> bool {
        self.all.with(former, bytes).fits(1)
    }

    /// Whether a good part is free again.
    pub fn is_roomy(&self) -> bool {
        self.all.weight() <= BYTES_MAX / 4 * 3
    }

    /// Whether as much is free as one who displaces others frees at once.
    pub fn has_slack(&self) -> bool {
        self.all.keys <= KEYS_MAX - KEYS_MAX / FREED_PARTS && self.all.bytes <= BYTES_MAX - BYTES_MAX / FREED_PARTS
    }

    /// Notes a value, as [`DirectoryQuota::fits`] describes it.
    pub fn add(&mut self, host: &HostId, former: Option<usize>, bytes: usize) {
        self.all = self.all.with(former, bytes);
        let of_host = self.hosts.get(host).copied().unwrap_or_default().with(former, bytes);
        self.hosts.insert(host.clone(), of_host);
    }

    /// Notes that a value is not held any more.
    pub fn remove(&mut self, host: &HostId, bytes: usize) {
        (self.all.keys, self.all.bytes) = (self.all.keys - 1, self.all.bytes - bytes);
        if let Some(of_host) = self.hosts.get_mut(host) {
            (of_host.keys, of_host.bytes) = (of_host.keys - 1, of_host.bytes - bytes);
            if of_host.keys == 0 {
                self.hosts.remove(host);
            }
        }
    }

    /// The hosts that take the least first, the one that takes the most last; without those that `is_left_out` means.
    pub fn by_weight(&self, is_left_out: impl Fn(&HostId) -> bool) -> Vec<HostId> {
        let mut hosts: Vec<(usize, &HostId)> = self
            .hosts
            .iter()
            .filter(|(host, _)| !is_left_out(host))
            .map(|(host, held)| (held.weight(), host))
            .collect();
        hosts.sort_unstable();
        hosts.into_iter().map(|(_, host)| host.clone()).collect()
    }

    /// The host that takes the most, and how many keys it has.
    pub fn largest(&self) -> Option<(&HostId, usize)> {
        let largest = self.hosts.iter().max_by_key(|(_, held)| held.weight());
        largest.map(|(host, held)| (host, held.keys))
    }
}
