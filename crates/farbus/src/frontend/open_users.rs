//! How many programs have an attached disk open, counted by whoever serves them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Counts the users of an attached disk, from any thread.
#[derive(Clone)]
pub struct OpenUsers {
    count: Arc<dyn Fn() -> usize + Send + Sync>,
    /// What one of them does, and what several do.
    words: (&'static str, &'static str),
    is_waited_for: bool,
}

/// Counts the clients of an NBD server that have chosen an export, or the guest that a disk is shown to, from any
/// thread.
#[derive(Clone, Debug, Default)]
pub struct OpenClients(Arc<AtomicUsize>);

impl OpenClients {
    /// How many there are.
    pub fn count(&self) -> usize {
        self.0.load(Ordering::Acquire)
    }

    /// So many there are now.
    pub(crate) fn show(&self, count: usize) {
        self.0.store(count, Ordering::Release);
    }
}

/// What an owner is about to do with a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// It is let go of.
    Detach,
    /// It goes to another host.
    Migrate,
}

impl OpenUsers {
    /// Users whom `count` counts. `one` says what one of them does, such as `an NBD client is connected`; `many` says
    /// it of several, behind their number.
    pub fn new(count: impl Fn() -> usize + Send + Sync + 'static, one: &'static str, many: &'static str) -> Self {
        Self { count: Arc::new(count), words: (one, many), is_waited_for: false }
    }

    /// When the disk migrates it waits for them: its [`HoldHandle`](crate::frontend::hold::HoldHandle) holds it until
    /// they have left, or it stays.
    #[must_use]
    pub fn waited_for(self) -> Self {
        Self { is_waited_for: true, ..self }
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        (self.count)()
    }

    /// Why the disk stays where it is, if somebody has it open who would lose what was not written out. Users who are
    /// waited for do not stand against a migration.
    pub fn refusal(&self, act: Act) -> Option<String> {
        let (count, (one, many)) = (self.count(), self.words);
        if count == 0 || (act == Act::Migrate && self.is_waited_for) {
            return None;
        }
        let who = if count == 1 { one.to_owned() } else { format!("{count} {many}") };
        Some(format!("it is in use: {who}, and what they have not written out would be lost"))
    }
}
