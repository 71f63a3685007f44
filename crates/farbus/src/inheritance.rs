//! What the exporter's sessions leave to another process, and what becomes of them there.

use std::io;
use std::sync::{Arc, PoisonError};
use std::thread;

use tracing::warn;

use crate::crowd::Visitor;
use crate::guest::Guest;
use crate::legacies::{self, Credentials, Legacy, Owner};
use crate::parting::Asked;
use crate::shared::{STACK_BYTES, Shared};
use crate::trust::Trust;

impl Shared {
    /// Asks every session to be ready for another process.
    pub fn ask_sessions(&self) -> Vec<Asked<Vec<u8>>> {
        self.native.ask_all()
    }

    /// A session that another process began is this one's: its links are kept for it, and its devices, until [`Shared::take_up`].
    ///
    /// # Errors
    /// No session can have stood so, or the system has no more descriptors.
    pub fn inherit_session(self: &Arc<Self>, saved: &[u8], trust: Option<&Trust>) -> io::Result<()> {
        let wrong = |what: String| io::Error::new(io::ErrorKind::InvalidData, what);
        let restored = legacies::restore(self.clock.now(), saved).map_err(|reject| wrong(reject.to_string()))?;
        let Legacy { owner: Owner { peer, credentials }, reservations, session, left } = restored;
        self.reservations.expect(&reservations).map_err(|reject| wrong(reject.to_string()))?;
        let (guest, visitor) = match credentials {
            Credentials::Host { fingerprint, name, address } => {
                let trust = trust.ok_or_else(|| wrong("paired hosts are not served any more".into()))?;
                (Some(Guest::new(trust.clone(), fingerprint, name, address)), Visitor::Host(fingerprint))
            }
            Credentials::User(user) => (None, Visitor::User(user)),
            Credentials::Address(address) => (None, Visitor::from(address)),
        };
        let (number, caller) = self.enter_session(None, peer, guest, visitor)?;
        let names: Vec<String> = left.iter().map(|left| left.open.name.clone()).collect();
        let pending = match self.native.expect(caller, session, left) {
            Ok(pending) => pending,
            Err(error) => {
                self.end_session(number);
                return Err(error);
            }
        };
        self.reserved.lock().unwrap_or_else(PoisonError::into_inner).extend(names);
        self.pending.lock().unwrap_or_else(PoisonError::into_inner).push((number, pending));
        Ok(())
    }

    /// Sessions of the process before this one go on, each on a thread of its own: devices are shared again.
    pub fn take_up(self: &Arc<Self>) {
        let pending = std::mem::take(&mut *self.pending.lock().unwrap_or_else(PoisonError::into_inner));
        for (number, pending) in pending {
            let shared = Arc::clone(self);
            let go_on = move || {
                if let Err(error) = shared.native.go_on(&shared, pending) {
                    warn!(%error, "a session does not go on");
                }
                shared.end_session(number);
            };
            let name = format!("session-{number}");
            if let Err(error) = thread::Builder::new().name(name).stack_size(STACK_BYTES).spawn(go_on) {
                warn!(%error, "a session does not go on");
                self.end_session(number);
            }
        }
    }
}
