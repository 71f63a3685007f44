//! The table of sessions: every connection, and every device that a session of farbus's own protocol has open.

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar};
use std::time::Duration;

use farbus_io_linux::sys::descriptors;
use farbus_io_net::link::{BoottimeClock, Link};
use farbus_model::Instant;
use farbus_model::budget::{CONNECTION_BYTES, MemoryAccount, MemoryCharge};
use farbus_session::native::control::{DESCRIPTORS, LIMIT};

use crate::common::ordered_mutex::{OrderedGuard, OrderedMutex};
use crate::exporter::access::memory::MemoryAccounts;
use crate::exporter::access::paired_host::PairedPeer;
use crate::exporter::access::quota::{self, ConnectionClass, PeerIdentity, QuotaError, RefusalLogLimiter};
use crate::exporter::session::entry::{SessionEntry, SessionEntryPeer};
use crate::link::status::SessionLinks;

/// How long sessions may take to make their devices durable when the share ends.
const SHUTDOWN_TIME_MAX: Duration = Duration::from_secs(20);

/// Says which limit it is, if the process has as many descriptors as it may.
fn out_of_descriptors(error: io::Error) -> io::Error {
    let what = "the process that shares it has no more descriptors\n  see there: farbus doctor";
    if descriptors::are_used_up(&error) { io::Error::other(format!("{LIMIT}{DESCRIPTORS}: {what}")) } else { error }
}

/// Sessions by number, under one lock, the table's. Locks of a session and of the registry may be taken while it is
/// held.
pub struct SessionTable {
    sessions: OrderedMutex<BTreeMap<u64, Arc<SessionEntry>>, 1>,
    /// Number of the next connection, counted over all listeners.
    numbers: AtomicU64,
    ended: Condvar,
    is_stopping: AtomicBool,
    clock: BoottimeClock,
    /// What each peer holds of this process's memory.
    pub accounts: MemoryAccounts,
    /// Limits how often the log reports refused connections.
    pub complaint: RefusalLogLimiter,
}

impl SessionTable {
    pub(crate) fn new(clock: BoottimeClock) -> Self {
        Self {
            sessions: OrderedMutex::default(),
            numbers: AtomicU64::new(0),
            ended: Condvar::new(),
            is_stopping: AtomicBool::new(false),
            clock,
            accounts: MemoryAccounts::default(),
            complaint: RefusalLogLimiter::default(),
        }
    }

    /// The time, by the clock of all sessions.
    pub fn now(&self) -> Instant {
        self.clock.now()
    }

    /// The table itself, locked.
    #[track_caller]
    pub fn lock(&self) -> OrderedGuard<'_, BTreeMap<u64, Arc<SessionEntry>>, 1> {
        self.sessions.lock().expect("no session panics while it is counted")
    }

    /// Enters a connection. The thread that serves it removes it with [`SessionTable::end`].
    ///
    /// # Errors
    /// The peer, or all peers together, have as many connections or as much memory as they may; or the system has no
    /// more descriptors.
    pub fn enter(
        &self,
        link: Option<Link>,
        peer: String,
        paired_peer: Option<PairedPeer>,
        peer_identity: PeerIdentity,
    ) -> io::Result<(u64, Arc<SessionEntry>)> {
        let account = self.accounts.of(peer_identity);
        let taken = account.take(CONNECTION_BYTES).map_err(io::Error::other)?;
        self.enter_with((account, taken), link, peer, paired_peer, peer_identity)
    }

    /// Enters a session of another process, which used devices there. Until it has them here, it counts as their user:
    /// a peer whose sessions continue is no peer without a device.
    ///
    /// # Errors
    /// As [`SessionTable::enter`].
    pub fn enter_inherited(
        &self,
        peer: String,
        paired_peer: Option<PairedPeer>,
        peer_identity: PeerIdentity,
    ) -> io::Result<(u64, Arc<SessionEntry>)> {
        let account = self.accounts.of(peer_identity);
        let taken = account.take_fixed_for_device(CONNECTION_BYTES).map_err(io::Error::other)?;
        self.enter_with((account, taken), None, peer, paired_peer, peer_identity)
    }

    fn enter_with(
        &self,
        (account, taken): (Arc<MemoryAccount>, MemoryCharge),
        link: Option<Link>,
        peer: String,
        paired_peer: Option<PairedPeer>,
        peer_identity: PeerIdentity,
    ) -> io::Result<(u64, Arc<SessionEntry>)> {
        let devices_max = self.accounts.devices_max();
        let mut sessions = self.lock();
        let now = self.clock.now();
        let find = || {
            quota::class_of_connection(
                peer_identity,
                devices_max,
                sessions.values().filter_map(|session| session.counted()),
            )
        };
        let class = match find() {
            // The oldest idle connection gives way.
            Err(QuotaError::Full) if sessions.values().any(|session| session.gave_way(now)) => find(),
            class => class,
        };
        let class = class.map_err(io::Error::other)?;
        let of = SessionEntryPeer { paired_peer, peer_identity, class, account, links: SessionLinks::default() };
        let session = SessionEntry::new(now, link, peer, of)?;
        session.keep(taken);
        Ok(self.insert(&mut sessions, session))
    }

    /// Enters a paired host's connection that asks questions alone. Such connections have places and memory of their
    /// own.
    ///
    /// # Errors
    /// The host, or all hosts together, have as many of them as they may; or the system has no more descriptors.
    pub fn enter_questions(
        &self,
        link: Option<Link>,
        peer: String,
        paired_peer: Option<PairedPeer>,
        peer_identity: PeerIdentity,
    ) -> io::Result<(u64, Arc<SessionEntry>)> {
        let account = self.accounts.of_questions(peer_identity);
        let taken = account.take(CONNECTION_BYTES).map_err(io::Error::other)?;
        let mut sessions = self.lock();
        let present = sessions.values().filter_map(|session| session.counted());
        let class = quota::place_of_questions(peer_identity, present).map_err(io::Error::other)?;
        let of = SessionEntryPeer { paired_peer, peer_identity, class, account, links: SessionLinks::default() };
        let session = SessionEntry::new(self.clock.now(), link, peer, of)?;
        session.keep(taken);
        Ok(self.insert(&mut sessions, session))
    }

    /// Enters a device that the session `of` has open. The session has an entry already.
    ///
    /// # Errors
    /// The peer uses as many devices as it may, or the system has no more descriptors.
    pub fn enter_attachment(&self, of: &SessionEntry, peer: String) -> io::Result<(u64, Arc<SessionEntry>)> {
        let devices_max = self.accounts.devices_max();
        let of = SessionEntryPeer {
            paired_peer: of.paired_peer.clone(),
            peer_identity: of.peer_identity,
            class: ConnectionClass::Within,
            account: Arc::clone(&of.account),
            links: of.links.clone(),
        };
        let session = SessionEntry::new(self.clock.now(), None, peer, of).map_err(out_of_descriptors)?;
        let mut sessions = self.lock();
        let present = sessions.values().filter_map(|session| session.counted());
        quota::may_use_another(session.peer_identity, devices_max, present).map_err(io::Error::other)?;
        Ok(self.insert(&mut sessions, session))
    }

    fn insert(
        &self,
        sessions: &mut BTreeMap<u64, Arc<SessionEntry>>,
        session: SessionEntry,
    ) -> (u64, Arc<SessionEntry>) {
        let (number, session) = (self.numbers.fetch_add(1, Ordering::Relaxed), Arc::new(session));
        sessions.insert(number, Arc::clone(&session));
        (number, session)
    }

    /// Enters a session again that was not counted while its device was handed over.
    pub fn go_on_with(&self, number: u64, session: &Arc<SessionEntry>) {
        self.lock().insert(number, Arc::clone(session));
    }

    /// Removes a session.
    pub fn end(&self, number: u64) {
        self.lock().remove(&number);
        self.ended.notify_all();
    }

    /// All sessions as they are now.
    pub fn all(&self) -> Vec<Arc<SessionEntry>> {
        self.lock().values().cloned().collect()
    }

    /// The sessions that use the device with this bus id.
    pub fn holders_of(&self, bus_id: &str) -> Vec<Arc<SessionEntry>> {
        let sessions = self.lock();
        sessions.values().filter(|session| session.holds(bus_id)).cloned().collect()
    }

    /// Wakes the thread of every session, because a device was handed over or changed its identity.
    pub fn wake_all(&self) {
        self.lock().values().for_each(|session| session.mailbox.wake());
    }

    /// Waits until these sessions have left the table, for `time_max` at most.
    pub fn wait_for(&self, users: &[Arc<SessionEntry>], time_max: Duration) {
        let is_there = |sessions: &mut BTreeMap<u64, Arc<SessionEntry>>| {
            sessions.values().any(|session| users.iter().any(|user| Arc::ptr_eq(user, session)))
        };
        // A device that is not durable in time keeps flushing in its session's thread.
        self.lock().wait_while(&self.ended, time_max, is_there);
    }

    /// Whether the share is ending.
    pub fn is_stopping(&self) -> bool {
        self.is_stopping.load(Ordering::Acquire)
    }

    /// Begins the end of the share. Returns whether it had begun before.
    pub fn begin_stopping(&self) -> bool {
        self.is_stopping.swap(true, Ordering::AcqRel)
    }

    /// Ends all sessions; `is_replaced`: another process continues with them. Returns whether all ended in time.
    pub fn end_all(&self, is_replaced: bool) -> bool {
        let mut sessions = self.lock();
        for session in sessions.values() {
            session.is_replaced.store(is_replaced, Ordering::Release);
            session.end();
        }
        while !sessions.is_empty() {
            let (left, is_over) = sessions.wait(&self.ended, SHUTDOWN_TIME_MAX);
            if is_over {
                return left.is_empty();
            }
            sessions = left;
        }
        true
    }
}
