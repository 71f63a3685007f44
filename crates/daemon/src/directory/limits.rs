//! Writes limits of leases in the directory, as this host's owner says.

use farbus_directory::gateway::{EtcdCall, EtcdRefusal, EtcdReply, EtcdTransaction};
use farbus_directory::key::{DirectoryKey, HostId, KeyRange};
use farbus_directory::record::LimitRecord;
use farbus_directory::{DirectoryFailure, DirectoryFailureKind};

use super::connection::EtcdClient;

/// How often a limit is written again that another host changed meanwhile.
const TRIES_MAX: u32 = 3;

/// Writes the limit of a host in the directory, or removes it. It waits for etcd.
///
/// # Errors
/// Why it is not written.
pub fn write(members: &mut EtcdClient, host: &HostId, limit: Option<&LimitRecord>) -> Result<(), DirectoryFailure> {
    let key = DirectoryKey::Limit(host.clone());
    for _ in 0..TRIES_MAX {
        let range = KeyRange::of_key(&key);
        let found = match members.call(&EtcdCall::Range { range, limit: 1, revision: 0 }).map_err(trouble_of)? {
            EtcdReply::Found(found) => found,
            _ => {
                return Err(DirectoryFailure::new(DirectoryFailureKind::NotEtcd, "the answer is that to another call"));
            }
        };
        let (puts, deletes) = match limit {
            Some(limit) => (vec![(key.to_string(), limit.to_value())], Vec::new()),
            None => (Vec::new(), vec![key.to_string()]),
        };
        let revision = found.pairs.first().map_or(0, |pair| pair.revision);
        let change = EtcdTransaction { guard: key.to_string(), revision, lease: 0, puts, deletes };
        if let EtcdReply::Changed { is_done: true, .. } = members.call(&EtcdCall::Change(change)).map_err(trouble_of)? {
            return Ok(());
        }
    }
    Err(DirectoryFailure::new(DirectoryFailureKind::Contended, "other hosts write the same limit"))
}

fn trouble_of(refusal: EtcdRefusal) -> DirectoryFailure {
    match refusal {
        EtcdRefusal::Trouble(trouble) => trouble,
        EtcdRefusal::NoLease | EtcdRefusal::Compacted | EtcdRefusal::OldToken => {
            DirectoryFailure::new(DirectoryFailureKind::Unreachable, "a call was not done, and may be made again")
        }
    }
}
