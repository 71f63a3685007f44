//! The objects of the exporter. Each owns one thing and its lock; all connections and the owner share them.
//!
//! | object | owns | locks |
//! |---|---|---|
//! | [`SessionTable`] | connections and open devices, and what each peer holds of memory | 1: the table |
//! | [`DeviceRegistry`] | shared devices, claims, leases, names and identities | 2: the registry; the leases. 3: the labels |
//! | [`Session`](crate::exporter::session::entry::SessionEntry) | one connection's link and device | 3: one a field, each held alone |
//! | [`DeviceReservations`] | reservations, and who may reserve | 3: the ledger; who may; the buses |
//! | [`DevicePermissions`] | devices that only one host may use, and whether devices may be observed | that of these devices |
//! | [`LeaseLimits`] | what each host may have at a time | the configured ones |
//! | [`ExporterListenerSet`], [`NativeSessions`], [`PredecessorSessions`], [`ExportSwaps`] | listeners; threads of sessions; sessions of the process before this one; swaps | one each, two for the predecessor |
//! | [`ConnectionContext`] | what every connection is served with | modules; the trace |
//!
//! # The order of locks
//!
//! A thread that holds a lock takes only one with a higher number; a lock without a number is taken and held alone. The
//! types say it ([`OrderedMutex`]), and a program with debug assertions, as all tests are, panics where it is not so.
//!
//! | order | lock | held while another is taken in |
//! |---|---|---|
//! | 1 | the table of sessions | `SessionTable::enter`, `holders_of` and `end_all` (→ 3, a session's), `owner::status` (→ 2, 3) |
//! | 2 | the registry | `Offer::claim_for` and `DeviceUse::take_over` (→ 3, a session's device), `owner::status` (→ 3, the ledger; the labels) |
//! | 3 | a session's own; the ledger; the labels | nothing |
//!
//! The leases are never locked together with the registry: the key of a device's leases is read first. No lock is held
//! while a device, a link or a file is used, except for an idle device's command, which the registry's lock keeps idle.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, PoisonError};
use std::time::Duration;

use farbus_io_net::link::{BoottimeClock, PLAIN_SILENCE};
use farbus_io_net::trust::Fingerprint;
use farbus_model::SessionLimits;
use farbus_session::native::AllowedModules;

use crate::common::ordered_mutex::{ALONE, OrderedMutex};
use crate::exporter::access::listener::ExporterListenerSet;
use crate::exporter::access::local_users::LocalPeers;
use crate::exporter::session::table::SessionTable;
use crate::exporter::session::threads::NativeSessions;
use crate::exporter::state::lease_limits::LeaseLimits;
use crate::exporter::state::permissions::DevicePermissions;
use crate::exporter::state::predecessor::PredecessorSessions;
use crate::exporter::state::registry::DeviceRegistry;
use crate::exporter::state::reservations::DeviceReservations;
use crate::exporter::state::trace::TraceWriter;
use crate::exporter::swap::ExportSwaps;
use crate::link::modules::allowed;

/// The stack of a session's thread: its frames are shallow, its buffers are on the heap.
pub const STACK_BYTES: usize = 256 << 10;

/// The exporter's objects. Files beside this folder say what they do together: `connections` serves connections,
/// `opening` opens devices for sessions, `owner` does what the owner of this process asks for, and `restart` continues
/// sessions of another process.
pub struct ExporterState {
    pub(crate) registry: Arc<DeviceRegistry>,
    pub(crate) sessions: Arc<SessionTable>,
    pub(crate) permissions: DevicePermissions,
    pub(crate) reservations: Arc<DeviceReservations>,
    pub(crate) lease_limits: LeaseLimits,
    pub(crate) listeners: ExporterListenerSet,
    /// Sessions of farbus's own protocol.
    pub native: NativeSessions,
    pub(crate) predecessor: PredecessorSessions<ExporterState>,
    pub(crate) swaps: ExportSwaps,
    pub(crate) serving: ConnectionContext,
}

/// What every connection is served with.
pub struct ConnectionContext {
    pub(crate) clock: BoottimeClock,
    pub(crate) limits: SessionLimits,
    /// How long a peer of plain USB/IP may be silent, milliseconds.
    plain_silence_ms: AtomicU64,
    /// The modules that importers may ask for; if none were set, those that need nothing of this host.
    modules: OrderedMutex<Option<Arc<AllowedModules>>, ALONE>,
    /// Answers the questions of neighbouring hosts about links between hosts.
    pub neighbourhood: OnceLock<Arc<dyn NeighbourResponder>>,
    pub(crate) trace: TraceWriter,
}

/// Answers the hosts that this one is linked with about the links between hosts.
pub trait NeighbourResponder: Send + Sync {
    /// Returns the answer to what `host` said.
    ///
    /// # Errors
    /// Why the host is not answered.
    fn hear(&self, host: Fingerprint, hex: &str) -> Result<String, String>;
}

impl ExporterState {
    pub(crate) fn new(limits: SessionLimits) -> Self {
        let clock = BoottimeClock::start();
        let (registry, sessions) = (Arc::<DeviceRegistry>::default(), Arc::new(SessionTable::new(clock)));
        let local_peers = Arc::<LocalPeers>::default();
        Self {
            permissions: DevicePermissions::new(Arc::clone(&registry), Arc::clone(&local_peers)),
            reservations: Arc::new(DeviceReservations::new(Arc::clone(&registry), Arc::clone(&sessions), local_peers)),
            registry,
            sessions,
            lease_limits: LeaseLimits::default(),
            listeners: ExporterListenerSet::default(),
            native: NativeSessions::default(),
            predecessor: PredecessorSessions::default(),
            swaps: ExportSwaps::default(),
            serving: ConnectionContext {
                clock,
                limits,
                plain_silence_ms: AtomicU64::new(PLAIN_SILENCE.as_millis() as u64),
                modules: OrderedMutex::default(),
                neighbourhood: OnceLock::new(),
                trace: TraceWriter::default(),
            },
        }
    }
}

impl ConnectionContext {
    /// How long a peer of plain USB/IP may be silent.
    pub fn plain_silence(&self) -> Duration {
        Duration::from_millis(self.plain_silence_ms.load(Ordering::Relaxed))
    }

    /// Sets how long the peers of later plain connections may be silent.
    pub fn limit_plain_silence(&self, silence_max: Duration) {
        self.plain_silence_ms.store(silence_max.as_millis() as u64, Ordering::Relaxed);
    }

    /// The modules that importers may ask for.
    pub fn modules(&self) -> Option<Arc<AllowedModules>> {
        let mut modules = self.modules.lock().unwrap_or_else(PoisonError::into_inner);
        if modules.is_none() {
            *modules = allowed(&[]).ok();
        }
        modules.clone()
    }

    /// Sets the modules that importers may ask for.
    pub fn allow_modules(&self, modules: Arc<AllowedModules>) {
        *self.modules.lock().unwrap_or_else(PoisonError::into_inner) = Some(modules);
    }
}
