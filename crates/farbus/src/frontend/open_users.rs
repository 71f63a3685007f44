//! How many programs have an attached disk open, counted by the front end that serves them.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use farbus_io_net::link::Link;
use farbus_io_net::sys::peer::PeerCredentials;

/// Counts the users of an attached disk, from any thread.
#[derive(Clone)]
pub struct OpenUsers {
    count: Arc<dyn Fn() -> usize + Send + Sync>,
    /// What one user does, and what several do.
    words: (&'static str, &'static str),
    is_waited_for: bool,
}

/// Counts the clients of an NBD server that have chosen an export, or the guest that is shown a disk, from any thread.
#[derive(Clone, Debug, Default)]
pub struct OpenClients(Arc<AtomicUsize>);

impl OpenClients {
    /// The number of users.
    pub fn count(&self) -> usize {
        self.0.load(Ordering::Acquire)
    }

    /// Sets the number of users.
    pub(crate) fn show(&self, count: usize) {
        self.0.store(count, Ordering::Release);
    }
}

/// The processes of this machine that are connected to an attachment's Unix socket, from any thread.
#[derive(Clone, Debug, Default)]
pub struct ConnectedProcesses(Arc<Mutex<Vec<u32>>>);

impl ConnectedProcesses {
    /// Their numbers (pid), each once, in ascending order. A process of another container has none here.
    pub fn processes(&self) -> Vec<u32> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Sets the connections.
    pub(crate) fn show<'a>(&self, links: impl IntoIterator<Item = &'a Link>) {
        let mut processes: Vec<u32> = links.into_iter().filter_map(process_of).collect();
        processes.sort_unstable();
        processes.dedup();
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = processes;
    }
}

/// The number (pid) of the process at the other end of a Unix socket. One of another container has none here.
pub fn process_of(link: &Link) -> Option<u32> {
    PeerCredentials::of(link).ok().and_then(|who| who.process())
}

/// What an owner is about to do with a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskOwnerAction {
    /// The owner detaches the disk.
    Detach,
    /// Migrate it to another host.
    Migrate,
}

impl OpenUsers {
    /// Users whom `count` counts. `one` says what one user does, such as `an NBD client is connected`; `many` says it
    /// of several, after their number.
    pub fn new(count: impl Fn() -> usize + Send + Sync + 'static, one: &'static str, many: &'static str) -> Self {
        Self { count: Arc::new(count), words: (one, many), is_waited_for: false }
    }

    /// Marks users that a migration waits for: the disk's [`HoldHandle`](crate::frontend::hold::HoldHandle) holds it
    /// until they have left, or it stays.
    #[must_use]
    pub fn waited_for(self) -> Self {
        Self { is_waited_for: true, ..self }
    }

    /// The number of users.
    pub fn count(&self) -> usize {
        (self.count)()
    }

    /// Why the disk must stay where it is, if programs have it open that would lose data they have not written out.
    /// Users that a migration waits for do not prevent a migration.
    pub fn refusal(&self, act: DiskOwnerAction) -> Option<String> {
        let (count, (one, many)) = (self.count(), self.words);
        if count == 0 || (act == DiskOwnerAction::Migrate && self.is_waited_for) {
            return None;
        }
        let who = if count == 1 { one.to_owned() } else { format!("{count} {many}") };
        Some(format!("it is in use: {who}, and what they have not written out would be lost"))
    }
}
