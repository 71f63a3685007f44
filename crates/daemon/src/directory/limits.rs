//! Writes limits of leases in the directory, as this host's owner says.

use farbus_directory::gateway::{Call, Change, Refusal, Reply};
use farbus_directory::key::{HostId, Key, KeyRange};
use farbus_directory::record::LimitRecord;
use farbus_directory::{Trouble, TroubleKind};

use super::connection::Members;

/// How often a limit is written again that another host changed meanwhile.
const TRIES_MAX: u32 = 3;

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
