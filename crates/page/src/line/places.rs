//! Places for questions that are under way. Both processes of a page count them: the confined one lets a client wait
//! for a place, the other one refuses what has none.
//!
//! A question may take ten seconds, where a process is asked that does not answer. So a token, or a connection, has few
//! places at a time, and owners have some that nobody else takes.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use farbus_io_net::trust::PageScope;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::line::messages::ClientCredentials;

/// Questions of owners that are under way at a time.
const OF_OWNERS_MAX: usize = 32;
/// Questions of those with tokens of other scopes.
const OF_OTHERS_MAX: usize = 24;
/// Questions of those that show no token: codes that they have.
const OF_STRANGERS_MAX: usize = 8;
/// Questions of one token, or of one connection without one.
const OF_ONE_MAX: usize = 8;
/// Questions that are under way at a time.
pub const QUESTIONS_MAX: usize = OF_OWNERS_MAX + OF_OTHERS_MAX + OF_STRANGERS_MAX;

/// Who asks, so far as places are concerned.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum SlotHolder {
    /// What the header `Authorization` says.
    Token(String),
    /// The connection's number.
    Client(u64),
}

impl SlotHolder {
    fn of(by: &ClientCredentials) -> Self {
        by.authorization.clone().map_or(Self::Client(by.client), Self::Token)
    }
}

/// The places for questions to the process with the rights, by who asks.
#[derive(Debug)]
pub struct QuestionSlots {
    owners: Arc<Semaphore>,
    others: Arc<Semaphore>,
    strangers: Arc<Semaphore>,
    /// Of each who asks, or has a question under way.
    each: Mutex<BTreeMap<SlotHolder, Arc<Semaphore>>>,
}

/// A place for one question, until it is dropped.
#[derive(Debug)]
pub struct QuestionSlot {
    _of_one: OwnedSemaphorePermit,
    _of_all: OwnedSemaphorePermit,
}

impl Default for QuestionSlots {
    fn default() -> Self {
        let of = |count| Arc::new(Semaphore::new(count));
        let (owners, others, strangers) = (of(OF_OWNERS_MAX), of(OF_OTHERS_MAX), of(OF_STRANGERS_MAX));
        Self { owners, others, strangers, each: Mutex::default() }
    }
}

impl QuestionSlots {
    fn each(&self) -> MutexGuard<'_, BTreeMap<SlotHolder, Arc<Semaphore>>> {
        self.each.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn of_one(&self, by: &ClientCredentials) -> Arc<Semaphore> {
        let mut each = self.each();
        // Nobody else can take what is not in use.
        each.retain(|_, slots| Arc::strong_count(slots) > 1);
        Arc::clone(each.entry(SlotHolder::of(by)).or_insert_with(|| Arc::new(Semaphore::new(OF_ONE_MAX))))
    }

    fn of_all(&self, scope: Option<PageScope>) -> Arc<Semaphore> {
        Arc::clone(match scope {
            Some(PageScope::Own) => &self.owners,
            Some(_) => &self.others,
            None => &self.strangers,
        })
    }

    /// A place for a question of a client with this scope, once there is one. `None`: never, for the page ends.
    pub async fn take(&self, by: &ClientCredentials, scope: Option<PageScope>) -> Option<QuestionSlot> {
        // Its own first: while it waits for that, it keeps nobody else waiting.
        let of_one = self.of_one(by).acquire_owned().await.ok()?;
        let of_all = self.of_all(scope).acquire_owned().await.ok()?;
        Some(QuestionSlot { _of_one: of_one, _of_all: of_all })
    }

    /// A place for a question of a client with this scope, without waiting; `None`: all are taken, or the page ends.
    pub fn try_take(&self, by: &ClientCredentials, scope: Option<PageScope>) -> Option<QuestionSlot> {
        let of_one = self.of_one(by).try_acquire_owned().ok()?;
        let of_all = self.of_all(scope).try_acquire_owned().ok()?;
        Some(QuestionSlot { _of_one: of_one, _of_all: of_all })
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;

    const READ: Option<PageScope> = Some(PageScope::Read);
    const OWN: Option<PageScope> = Some(PageScope::Own);

    fn with(token: &str) -> ClientCredentials {
        ClientCredentials { client: 1, authorization: Some(token.to_owned()), scope: None }
    }

    fn taken(slots: &QuestionSlots, by: &ClientCredentials, scope: Option<PageScope>) -> Vec<QuestionSlot> {
        std::iter::from_fn(|| slots.try_take(by, scope)).take(1000).collect()
    }

    #[test]
    fn a_token_that_asks_much_takes_no_place_of_others_and_all_of_them_take_none_of_owners() {
        let slots = QuestionSlots::default();
        let eve = taken(&slots, &with("eve"), READ);
        assert_eq!(eve.len(), OF_ONE_MAX);
        assert!(slots.try_take(&with("bob"), READ).is_some(), "another token has places");
        let all: Vec<QuestionSlot> = (0..100).flat_map(|n| taken(&slots, &with(&format!("{n}")), READ)).collect();
        assert_eq!(eve.len() + all.len(), OF_OTHERS_MAX);
        assert!(slots.try_take(&with("bob"), READ).is_none());
        assert!(slots.try_take(&with("lead"), OWN).is_some());
        let stranger = |client| ClientCredentials { client, authorization: None, scope: None };
        let strangers: Vec<QuestionSlot> = (0..100).flat_map(|n| taken(&slots, &stranger(n), None)).collect();
        assert_eq!(strangers.len(), OF_STRANGERS_MAX);
        let owners: Vec<QuestionSlot> = (0..100).flat_map(|n| taken(&slots, &stranger(n), OWN)).collect();
        assert_eq!(owners.len(), OF_OWNERS_MAX);
        drop((eve, all, strangers, owners));
        assert_eq!(taken(&slots, &with("bob"), READ).len(), OF_ONE_MAX, "places come back");
        drop(slots.try_take(&with("x"), READ));
        assert_eq!(slots.each().len(), 1, "nothing is kept of those who ask no more");
    }

    #[test]
    fn who_waits_for_a_place_of_its_own_keeps_nobody_else_waiting() {
        let slots = QuestionSlots::default();
        let (eve, bob) = (with("eve"), with("bob"));
        let _eve = taken(&slots, &eve, READ);
        let mut waits = pin!(slots.take(&eve, READ));
        let mut context = Context::from_waker(Waker::noop());
        assert!(waits.as_mut().poll(&mut context).is_pending());
        let mut has = pin!(slots.take(&bob, READ));
        assert!(matches!(has.as_mut().poll(&mut context), Poll::Ready(Some(_))));
        assert!(waits.as_mut().poll(&mut context).is_pending());
    }
}
