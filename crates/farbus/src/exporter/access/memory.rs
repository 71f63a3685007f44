//! Accounts for the memory that each peer holds in this process: one account for all connections of a peer.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use farbus_model::budget::{MemoryAccount, MemoryBudget};
use farbus_model::limits::CONSOLE_BYTES_MAX;
use farbus_session::native::control::{AttachmentClass, AttachmentMode, OpenRequest};

use crate::exporter::access::quota::PeerIdentity;

/// Memory for a link that answers questions (`farbus-control/1`): one line in each direction.
pub const QUESTIONS_BYTES: usize = 1 << 20;
/// Memory for an observer of a USB device: what waits for it, and what is on its link.
const OBSERVER_BYTES: usize = 4 << 20;
/// Memory for an observer of a device's serial ports, bytes: four times what may wait ([`CONSOLE_BYTES_MAX`]) or be on
/// the link.
const CONSOLE_OBSERVER_BYTES: usize = 8 * CONSOLE_BYTES_MAX;
/// Memory for a reader of a stream: one grant's frames in flight, and as many that wait for a grant.
const READER_BYTES: usize = 2 * farbus_model::limits::FRAMES_BYTES_MAX as usize;

/// The accounts of all peers.
#[derive(Debug)]
pub struct MemoryAccounts(Mutex<MemoryAccountTable>);

#[derive(Debug)]
struct MemoryAccountTable {
    process: Arc<MemoryAccount>,
    peers: Vec<(MemoryAccountKey, Weak<MemoryAccount>)>,
}

/// What an account of a peer is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MemoryAccountKey {
    Devices(PeerIdentity),
    /// Questions of a peer whose identity is certain.
    Questions(PeerIdentity),
}

impl Default for MemoryAccounts {
    fn default() -> Self {
        let process = MemoryAccount::of_process(MemoryBudget::DEFAULT);
        Self(Mutex::new(MemoryAccountTable { process, peers: Vec::new() }))
    }
}

impl MemoryAccounts {
    fn table(&self) -> MutexGuard<'_, MemoryAccountTable> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the budget of peers that connect from now on.
    pub fn set_budget(&self, budget: MemoryBudget) {
        let mut table = self.table();
        if *table.process.budget() != budget {
            *table = MemoryAccountTable { process: MemoryAccount::of_process(budget), peers: Vec::new() };
        }
    }

    /// How many devices one peer whose identity is certain may use at a time.
    pub fn devices_max(&self) -> usize {
        self.table().process.budget().devices_max
    }

    /// Returns the account of a peer, which all its connections share; a new one if the peer holds nothing.
    pub fn of(&self, peer_identity: PeerIdentity) -> Arc<MemoryAccount> {
        self.find(MemoryAccountKey::Devices(peer_identity))
    }

    /// Returns the account that a peer's connections with questions share.
    pub fn of_questions(&self, peer_identity: PeerIdentity) -> Arc<MemoryAccount> {
        self.find(if peer_identity.is_known() {
            MemoryAccountKey::Questions(peer_identity)
        } else {
            MemoryAccountKey::Devices(peer_identity)
        })
    }

    fn find(&self, of: MemoryAccountKey) -> Arc<MemoryAccount> {
        let mut table = self.table();
        if let Some(account) = table.peers.iter().find(|(who, _)| *who == of).and_then(|(_, account)| account.upgrade())
        {
            return account;
        }
        table.peers.retain(|(_, account)| account.strong_count() > 0);
        let account = match of {
            MemoryAccountKey::Questions(_) => MemoryAccount::of_questions(&table.process),
            MemoryAccountKey::Devices(peer_identity) if peer_identity.is_known() => {
                MemoryAccount::of_known_peer(&table.process)
            }
            MemoryAccountKey::Devices(_) => MemoryAccount::of_peer(&table.process),
        };
        table.peers.push((of, Arc::downgrade(&account)));
        account
    }
}

/// Memory for an attachment with a fixed need. `None`: the account's free memory decides how much the user may have in
/// flight.
pub fn fixed_bytes(open: &OpenRequest) -> Option<usize> {
    match (open.class, open.mode) {
        (AttachmentClass::STREAM, _) => Some(READER_BYTES),
        (AttachmentClass::CONSOLE, _) => Some(CONSOLE_OBSERVER_BYTES),
        (_, AttachmentMode::Observe) => Some(OBSERVER_BYTES),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;

    #[test]
    fn connections_of_a_peer_share_one_account_that_ends_with_the_last() {
        let accounts = MemoryAccounts::default();
        let peer_identity = |last| PeerIdentity::from(IpAddr::from([10, 0, 0, last]));
        let (a, again, b) =
            (accounts.of(peer_identity(1)), accounts.of(peer_identity(1)), accounts.of(peer_identity(2)));
        let taken = a.take(1000).unwrap();
        assert_eq!((again.used(), b.used()), (1000, 0));
        drop((taken, a, again));
        assert_eq!(accounts.of(peer_identity(3)).used(), 0);
        assert_eq!(accounts.table().peers.len(), 2, "the one that left is not kept");
    }
}
