//! Writes the audit log for the confined process: uses and leases of devices, and connections that failed. What the
//! owner grants and withdraws, the owner's commands write themselves.

use std::collections::BTreeMap;
use std::sync::{Mutex, OnceLock, PoisonError};

use farbus_io_net::trust::{AuditEvent, AuditLog, AuditOutcome, Fingerprint, HostFolder, PairedHostList};

use crate::hosts::trust::AuditedUse;

/// How many names of hosts are remembered that may be unpaired before their last line.
const NAMES_MAX: usize = 1024;

/// What the confined process says.
pub(super) struct RecordedUse<'a> {
    pub used: &'a str,
    pub outcome: AuditOutcome,
    pub key: Option<Fingerprint>,
    pub who: &'a str,
    pub device: &'a str,
    pub why: Option<&'a str>,
}

impl RecordedUse<'_> {
    /// Whether it is a use or a lease of a device, or a connection that failed: no pairing, and no permission.
    pub fn is_use(&self) -> bool {
        let is_use = AuditedUse::ALL.iter().any(|known| known.as_str() == self.used);
        is_use || (self.used == AuditedUse::CONNECT && self.outcome != AuditOutcome::Ok)
    }
}

/// The audit log, once a line was written.
#[derive(Default)]
pub(super) struct AuditRecording {
    audit: OnceLock<AuditLog>,
    /// The hosts of earlier lines: one that was unpaired meanwhile keeps its name in the line about its end.
    names: Mutex<BTreeMap<Fingerprint, String>>,
}

impl AuditRecording {
    /// Writes a line, with the name that the host of this key has here: the process that asks is not believed.
    pub fn record(&self, recorded: &RecordedUse<'_>) {
        // The folder is created with the key: a daemon without a key takes its absence for "no host is paired".
        let Some(folder) = HostFolder::of_user().ok().filter(|folder| folder.path().exists()) else { return };
        let peer = recorded.key.and_then(|key| self.name_of(&folder, key));
        let audit = self.audit.get_or_init(|| AuditLog::new(folder));
        let shown = |text: &'_ str| !text.is_empty();
        audit.record(&AuditEvent {
            peer: peer.as_deref(),
            fingerprint: recorded.key,
            address: Some(recorded.who).filter(|text| shown(text)),
            device: Some(recorded.device).filter(|text| shown(text)),
            why: recorded.why,
            ..AuditEvent::new(recorded.used, recorded.outcome)
        });
    }

    /// Writes the summaries: the confined process has ended.
    pub fn finish(&self) {
        self.audit.get().into_iter().for_each(AuditLog::finish);
    }

    fn name_of(&self, folder: &HostFolder, key: Fingerprint) -> Option<String> {
        let peers = PairedHostList::load(folder).unwrap_or_default();
        let mut names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        match peers.of_key(&key) {
            Some(peer) => {
                if names.len() < NAMES_MAX || names.contains_key(&key) {
                    names.insert(key, peer.name.clone());
                }
                Some(peer.name.clone())
            }
            None => names.get(&key).cloned(),
        }
    }
}
