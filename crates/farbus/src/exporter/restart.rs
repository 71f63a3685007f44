//! Continues the sessions that another process of this exporter began.

use std::io;
use std::sync::Arc;
use std::thread;

use farbus_io_net::local::runtime_folder;
use tracing::warn;

use crate::exporter::access::paired_host::PairedPeer;
use crate::exporter::access::quota::PeerIdentity;
use crate::exporter::session::saved::{self, SavedSession, SessionCredentials, SessionOwner};
use crate::exporter::state::shared::{ExporterState, STACK_BYTES};
use crate::hosts::trust::TrustStore;

/// Restores a session of another process. Its links and devices are kept for it until [`take_up`].
///
/// # Errors
/// The saved bytes describe no possible session, or the system has no more descriptors.
pub fn inherit(shared: &ExporterState, saved: &[u8], trust: Option<&TrustStore>) -> io::Result<()> {
    let wrong = |what: String| io::Error::new(io::ErrorKind::InvalidData, what);
    let restored = saved::restore(shared.serving.clock.now(), saved).map_err(|reject| wrong(reject.to_string()))?;
    let SavedSession { owner: SessionOwner { peer, credentials }, reservations, session, left } = restored;
    shared.reservations.ledger().expect(&reservations).map_err(|reject| wrong(reject.to_string()))?;
    let (paired_peer, peer_identity) = match credentials {
        SessionCredentials::Host { fingerprint, name, address } => {
            let trust = trust.ok_or_else(|| wrong("paired hosts are not served any more".into()))?;
            (Some(PairedPeer::new(trust.clone(), fingerprint, name, address)), PeerIdentity::Host(fingerprint))
        }
        SessionCredentials::User(user) => (None, PeerIdentity::User(user)),
        // The loopback admitted the peer, so it belongs to the owner, root or a user whom the owner named.
        SessionCredentials::Address(address) if address.is_loopback() => {
            (None, PeerIdentity::Own(address, runtime_folder::owner()))
        }
        SessionCredentials::Address(address) => (None, PeerIdentity::from(address)),
    };
    let (number, caller) = match left.is_empty() {
        true => shared.sessions.enter(None, peer, paired_peer, peer_identity)?,
        false => shared.sessions.enter_inherited(peer, paired_peer, peer_identity)?,
    };
    let names: Vec<String> = left.iter().map(|left| left.open.name.clone()).collect();
    let pending = match shared.native.expect(caller, session, left) {
        Ok(pending) => pending,
        Err(error) => {
            shared.sessions.end(number);
            return Err(error);
        }
    };
    shared.predecessor.keep(number, pending, names);
    Ok(())
}

/// Continues the restored sessions, each on a thread of its own. The devices must be shared again by now.
pub fn take_up(shared: &Arc<ExporterState>) {
    for (number, pending) in shared.predecessor.take() {
        let for_thread = Arc::clone(shared);
        let go_on = move || {
            if let Err(error) = for_thread.native.go_on(&for_thread, pending) {
                warn!(%error, "a session does not go on");
            }
            for_thread.sessions.end(number);
        };
        let name = format!("session-{number}");
        if let Err(error) = thread::Builder::new().name(name).stack_size(STACK_BYTES).spawn(go_on) {
            warn!(%error, "a session does not go on");
            shared.sessions.end(number);
        }
    }
}
