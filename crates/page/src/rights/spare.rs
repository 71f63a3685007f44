//! The processes for other clients than the owner's programs: each is started with the first of them.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tracing::warn;

use crate::api::callers::ClientKind;
use crate::rights::half::{ConfinedProcess, PageServices};
use crate::rights::locking::lock;

/// After an error of the system, such as too many open files, connections are taken again after this time.
pub const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// The process for other users' programs is not started again sooner than so long after it was started last.
const RESTART_PAUSE: Duration = Duration::from_secs(1);

/// The process for other clients than its owner's programs.
pub struct LazyConfinedProcess {
    shared: Arc<PageServices>,
    client: ClientKind,
    has: Arc<Mutex<LazyProcessState>>,
}

#[derive(Default)]
struct LazyProcessState {
    half: Option<Arc<ConfinedProcess>>,
    started: Option<Instant>,
}

impl LazyConfinedProcess {
    /// For clients of this kind; their process is started with the first of them.
    pub fn of(shared: &Arc<PageServices>, client: ClientKind) -> Self {
        Self { shared: Arc::clone(shared), client, has: Arc::default() }
    }

    /// What is said when it cannot be had.
    fn whose(&self) -> &'static str {
        if self.client == ClientKind::Remote { "browsers of other machines" } else { "programs of other users" }
    }

    /// The process; it is started if there is none. `None`: it cannot be, or was a moment ago.
    pub async fn half(&self) -> Option<Arc<ConfinedProcess>> {
        {
            let mut has = lock(&self.has);
            if let Some(half) = &has.half {
                return Some(Arc::clone(half));
            }
            if has.started.is_some_and(|started| started.elapsed() < RESTART_PAUSE) {
                return None;
            }
            has.started = Some(Instant::now());
        }
        let whose = self.whose();
        let half = ConfinedProcess::start(Arc::clone(&self.shared), self.client).await;
        let half = half.inspect_err(|error| warn!(%error, "{whose} are not answered")).ok()?;
        lock(&self.has).half = Some(Arc::clone(&half));
        let (has, heard) = (Arc::clone(&self.has), Arc::clone(&half));
        tokio::spawn(async move {
            let why = heard.hear().await;
            lock(&has).half = None;
            warn!(why, how = heard.end(), "the process for {whose} has ended; the next one starts it");
        });
        Some(half)
    }

    pub fn end(&self) {
        if let Some(half) = lock(&self.has).half.take() {
            half.end();
        }
    }
}
