//! The memory that NBD clients may occupy: one budget for the clients of all servers of this process.
//!
//! A client has [`NBD_CLIENT_BYTES`] from the start. While it has more under way, it takes more from the shared budget,
//! and gives it back. If nothing is left, its next request waits, as it does at the client's own limits. While any
//! client waits for memory, a client is cut off that holds more than its own part and takes no answers, or sends no
//! more of a write that it has begun.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use farbus_model::budget::{BudgetExhaustion, ConnectionAllowance, MemoryAccount, MemoryBudget, MemoryCharge};
use farbus_model::limits::{NBD_CLIENT_BYTES, NBD_CLIENTS_BYTES_MAX};
use farbus_session::nbd::NbdServerConn;

/// How long a client may take no answers, or send nothing more of a write, while another client waits for memory or for
/// a place.
const STUCK_TIME_MAX: Duration = Duration::from_secs(10);

/// The budget of the NBD clients of a process.
#[derive(Clone, Debug)]
pub struct ClientBudget(Arc<ClientBudgetInner>);

#[derive(Debug)]
struct ClientBudgetInner {
    account: Arc<MemoryAccount>,
    /// How many clients wait for memory for their next request.
    waiting: AtomicUsize,
    stuck_time_max: Duration,
}

impl ClientBudget {
    /// The budget of this process: [`NBD_CLIENTS_BYTES_MAX`].
    pub fn of_process() -> Self {
        static BUDGET: LazyLock<ClientBudget> =
            LazyLock::new(|| ClientBudget::new(NBD_CLIENTS_BYTES_MAX, STUCK_TIME_MAX));
        BUDGET.clone()
    }

    /// A separate budget of `bytes` bytes. `stuck_time_max`: how long a client may hold what another waits for.
    pub fn new(bytes: usize, stuck_time_max: Duration) -> Self {
        let budget =
            MemoryBudget { stranger_bytes: bytes, peer_bytes: bytes, process_bytes: bytes, ..MemoryBudget::DEFAULT };
        Self(Arc::new(ClientBudgetInner {
            account: MemoryAccount::of_process(budget),
            waiting: AtomicUsize::new(0),
            stuck_time_max,
        }))
    }

    /// How much is in use, bytes.
    pub fn used(&self) -> usize {
        self.0.account.used()
    }

    /// Whether a client of any server waits for memory.
    pub(super) fn is_wanted(&self) -> bool {
        self.0.waiting.load(Ordering::Relaxed) > 0
    }

    pub(super) fn stuck_time_max(&self) -> Duration {
        self.0.stuck_time_max
    }

    /// Takes a new client's own part.
    ///
    /// # Errors
    /// [`BudgetExhaustion`].
    pub(super) fn admit(&self) -> Result<ClientMemory, BudgetExhaustion> {
        self.0.account.take(NBD_CLIENT_BYTES).map(|own| self.memory(Some(own)))
    }

    /// The memory of a client from another process's snapshot: it is admitted even if nothing is left.
    pub(super) fn go_on(&self) -> ClientMemory {
        self.memory(self.0.account.take(NBD_CLIENT_BYTES).ok())
    }

    fn memory(&self, own: Option<MemoryCharge>) -> ClientMemory {
        let allowance = ConnectionAllowance::of(Arc::clone(&self.0.account));
        ClientMemory { shared: Arc::clone(&self.0), _own: own, allowance, is_short: false }
    }
}

/// What one client holds.
#[derive(Debug)]
pub(super) struct ClientMemory {
    shared: Arc<ClientBudgetInner>,
    _own: Option<MemoryCharge>,
    allowance: ConnectionAllowance,
    is_short: bool,
}

impl ClientMemory {
    /// Takes memory for the client's next request, or for the rest of one that it has begun. If there is none, returns
    /// `false` and the request waits.
    #[inline]
    pub fn covers_next(&mut self, conn: &mut NbdServerConn) -> bool {
        let is_covered = self.covers(conn.bytes_with_next()) || {
            conn.trim();
            self.covers(conn.bytes_with_next())
        };
        if is_covered == self.is_short {
            self.set_short(!is_covered);
        }
        is_covered
    }

    fn covers(&mut self, bytes: usize) -> bool {
        bytes <= NBD_CLIENT_BYTES || self.allowance.covers(bytes - NBD_CLIENT_BYTES)
    }

    /// Gives back what the client does not need any more.
    pub fn settle(&mut self, conn: &NbdServerConn) {
        if self.allowance.taken() > 0 {
            self.allowance.settle(conn.bytes_with_next().saturating_sub(NBD_CLIENT_BYTES));
        }
    }

    /// The client asks for nothing at present: gives back the memory for its next requests.
    pub fn rest(&mut self, conn: &mut NbdServerConn) {
        conn.trim();
        if conn.bytes() <= NBD_CLIENT_BYTES {
            self.allowance = ConnectionAllowance::of(Arc::clone(&self.shared.account));
        }
    }

    /// Whether its next request waits for memory.
    pub fn is_short(&self) -> bool {
        self.is_short
    }

    /// What it holds beyond its own part, bytes.
    pub fn extra_bytes(&self) -> usize {
        self.allowance.taken()
    }

    /// The client makes no more requests: it no longer counts as waiting.
    pub fn ask_no_more(&mut self) {
        if self.is_short {
            self.set_short(false);
        }
    }

    fn set_short(&mut self, is_short: bool) {
        self.is_short = is_short;
        match is_short {
            true => self.shared.waiting.fetch_add(1, Ordering::Relaxed),
            false => self.shared.waiting.fetch_sub(1, Ordering::Relaxed),
        };
    }
}

impl Drop for ClientMemory {
    fn drop(&mut self) {
        self.ask_no_more();
    }
}
