//! Limits of leases in the directory: those that other hosts wrote, for the exporter, and those that this host's owner
//! writes.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use farbus_directory::gateway::{Call, Change, Refusal, Reply};
use farbus_directory::key::{HostId, Key, KeyRange};
use farbus_directory::record::LimitRecord;
use farbus_directory::{Trouble, TroubleKind};
use farbus_io::trust::Fingerprint;

use super::connection::Members;
use super::{State, lock};
use crate::exporter::state::lease_limits::{LeaseLimit, Site, SiteLimit};

/// How often a limit is written again that another host changed meanwhile.
const TRIES_MAX: u32 = 3;

/// The limits of the present directory.
#[derive(Default)]
pub struct Limits {
    state: Mutex<Option<Arc<State>>>,
    own: Option<HostId>,
}

impl Limits {
    /// The limits as the host with this key sees them: what it shares itself is not counted as elsewhere.
    pub fn new(own: Option<HostId>) -> Self {
        Self { state: Mutex::default(), own }
    }

    /// Reads this directory from now on, or none.
    pub fn follow(&self, state: Option<Arc<State>>) {
        *lock(&self.state) = state;
    }
}

impl Site for Limits {
    fn limit_of(&self, host: &Fingerprint) -> SiteLimit {
        let Some(host) = HostId::new(&host.to_string()) else { return SiteLimit::default() };
        let Some(state) = lock(&self.state).clone() else { return SiteLimit::default() };
        let view = lock(&state.view);
        let Some(LimitRecord { devices, for_s, by, .. }) = view.limit_of(&host) else { return SiteLimit::default() };
        let elsewhere = devices.map_or(0, |_| view.devices_held_by(&host, self.own.as_ref()));
        SiteLimit { limit: LeaseLimit { devices, span: for_s.map(Duration::from_secs) }, elsewhere, by }
    }
}

/// Writes the limit of a host in the directory, or removes it. It waits for etcd.
///
/// # Errors
/// Why it is not written.
pub fn write(members: &mut Members, host: &HostId, limit: Option<&LimitRecord>) -> Result<(), Trouble> {
    let key = Key::Limit(host.clone());
    for _ in 0..TRIES_MAX {
        let range = KeyRange::of_key(&key);
        let found = match members.call(&Call::Range { range, limit: 1, revision: 0 }).map_err(trouble_of)? {
            Reply::Found(found) => found,
            _ => return Err(Trouble::new(TroubleKind::NotEtcd, "the answer is that to another call")),
        };
        let (puts, deletes) = match limit {
            Some(limit) => (vec![(key.to_string(), limit.to_value())], Vec::new()),
            None => (Vec::new(), vec![key.to_string()]),
        };
        let revision = found.pairs.first().map_or(0, |pair| pair.revision);
        let change = Change { guard: key.to_string(), revision, lease: 0, puts, deletes };
        if let Reply::Changed { is_done: true, .. } = members.call(&Call::Change(change)).map_err(trouble_of)? {
            return Ok(());
        }
    }
    Err(Trouble::new(TroubleKind::Contended, "other hosts write the same limit"))
}

fn trouble_of(refusal: Refusal) -> Trouble {
    match refusal {
        Refusal::Trouble(trouble) => trouble,
        Refusal::NoLease | Refusal::Compacted | Refusal::OldToken => {
            Trouble::new(TroubleKind::Unreachable, "a call was not done, and may be made again")
        }
    }
}
