//! The objects of the exporter. Each owns one thing and its lock; all connections and the owner share them.
//!
//! | object | owns | locks |
//! |---|---|---|
//! | [`SessionTable`] | connections and open devices, and what each peer holds of memory | 1: the table |
//! | [`DeviceRegistry`] | shared devices, claims, leases, names and identities | 2: the registry; the leases. 3: the labels |
//! | [`Session`](crate::exporter::session::entry::Session) | one connection's link and device | 3: one a field, each held alone |
//! | [`DeviceReservations`] | reservations, and who may reserve | 3: the ledger; who may; the buses |
//! | [`Permissions`] | devices that only one host may use, and whether devices may be observed | that of these devices |
//! | [`LeaseLimits`] | what each host may have at a time | the configured ones |
//! | [`Addresses`], [`Sessions`], [`Predecessor`], [`Swaps`] | listeners; threads of sessions; sessions of the process before this one; swaps | one each, two for the predecessor |
//! | [`Serving`] | what every connection is served with | modules; the trace |
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

use std::sync::{Arc, OnceLock, PoisonError};

use farbus_io_net::link::Clock;
use farbus_io_net::trust::Fingerprint;
use farbus_model::Limits;
use farbus_session::native::Allowed;

use crate::common::ordered_mutex::{ALONE, OrderedMutex};
use crate::exporter::access::listener::Addresses;
use crate::exporter::access::local_users::LocalPeers;
use crate::exporter::session::table::SessionTable;
use crate::exporter::session::threads::Sessions;
use crate::exporter::state::lease_limits::LeaseLimits;
use crate::exporter::state::permissions::Permissions;
use crate::exporter::state::predecessor::Predecessor;
use crate::exporter::state::registry::DeviceRegistry;
use crate::exporter::state::reservations::DeviceReservations;
use crate::exporter::state::trace::TraceWriter;
use crate::exporter::swap::Swaps;
use crate::link::modules::allowed;

/// The stack of a session's thread: its frames are shallow, its buffers are on the heap.
pub const STACK_BYTES: usize = 256 << 10;

/// The exporter's objects. Files beside this folder say what they do together: `connections` serves connections,
/// `opening` opens devices for sessions, `owner` does what the owner of this process asks for, and `restart` continues
/// sessions of another process.
pub struct Shared {
    pub(crate) registry: Arc<DeviceRegistry>,
    pub(crate) sessions: Arc<SessionTable>,
    pub(crate) permissions: Permissions,
    pub(crate) reservations: Arc<DeviceReservations>,
    pub(crate) lease_limits: LeaseLimits,
    pub(crate) listeners: Addresses,
    /// Sessions of farbus's own protocol.
    pub native: Sessions,
    pub(crate) predecessor: Predecessor<Shared>,
    pub(crate) swaps: Swaps,
    pub(crate) serving: Serving,
}

/// What every connection is served with.
pub struct Serving {
    pub(crate) clock: Clock,
    pub(crate) limits: Limits,
    /// The modules that importers may ask for; if none were set, those that need nothing of this host.
    modules: OrderedMutex<Option<Arc<Allowed>>, ALONE>,
    /// Answers the questions of neighbouring hosts about links between hosts.
    pub neighbourhood: OnceLock<Arc<dyn Neighbourhood>>,
    pub(crate) trace: TraceWriter,
}

/// Answers the hosts that this one is linked with about the links between hosts.
pub trait Neighbourhood: Send + Sync {
    /// Returns the answer to what `host` said.
    ///
    /// # Errors
    /// Why the host is not answered.
    fn hear(&self, host: Fingerprint, said: &str) -> Result<String, String>;
}

impl Shared {
    pub(crate) fn new(limits: Limits) -> Self {
        let clock = Clock::start();
        let (registry, sessions) = (Arc::<DeviceRegistry>::default(), Arc::new(SessionTable::new(clock)));
        let local_peers = Arc::<LocalPeers>::default();
        Self {
            permissions: Permissions::new(Arc::clone(&registry), Arc::clone(&local_peers)),
            reservations: Arc::new(DeviceReservations::new(Arc::clone(&registry), Arc::clone(&sessions), local_peers)),
            registry,
            sessions,
            lease_limits: LeaseLimits::default(),
            listeners: Addresses::default(),
            native: Sessions::default(),
            predecessor: Predecessor::default(),
            swaps: Swaps::default(),
            serving: Serving {
                clock,
                limits,
                modules: OrderedMutex::default(),
                neighbourhood: OnceLock::new(),
                trace: TraceWriter::default(),
            },
        }
    }
}

impl Serving {
    /// The modules that importers may ask for.
    pub fn modules(&self) -> Option<Arc<Allowed>> {
        let mut modules = self.modules.lock().unwrap_or_else(PoisonError::into_inner);
        if modules.is_none() {
            *modules = allowed(&[]).ok();
        }
        modules.clone()
    }

    /// Sets the modules that importers may ask for.
    pub fn allow_modules(&self, modules: Arc<Allowed>) {
        *self.modules.lock().unwrap_or_else(PoisonError::into_inner) = Some(modules);
    }
}
