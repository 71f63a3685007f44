//! What other processes of this host reserve of its processors for threads of their own, tuned pipes: for as long as they hold the other end
//! of a lease. A process that is killed lets go of it as well.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use farbus_io::link::{Interest, wait};
use farbus_realtime::vcpu::{Overload, Reserve};
use serde_json::json;

use crate::control::{Answer, Question, ask_one};
use crate::failure::{Attribute, FailureReport};
use crate::swap::Files;

/// Processes that have something at once. Each is watched by a thread.
const OWNERS_MAX: usize = 64;

/// Asks these processes for parts of their processors in the name of `owner`: who refused, and why.
pub fn ask_for(
    owner: &str,
    whom: &BTreeSet<u32>,
    reserves: &[(u64, u64)],
    lease: BorrowedFd<'_>,
) -> Vec<(u32, String)> {
    let (owner, reserves) = (owner.to_owned(), reserves.to_vec());
    let question = Question::Promise { owner, reserves, files: Files::default() };
    let refused = |&pid: &u32| match ask_one(pid, &question, &[lease]) {
        Ok(Answer::Failed(failure)) => Some((pid, failure.message)),
        // One that promises nothing to anybody, knows no such question or ends just now has nothing against it.
        Ok(Answer::Ok(_) | Answer::Unknown | Answer::Refused(_)) | Err(_) => None,
    };
    whom.iter().filter_map(refused).collect()
}

/// Where it is entered.
pub trait Books: Send + Sync + 'static {
    /// These, in the place of what `owner` had; says on which processors.
    ///
    /// # Errors
    /// [`Overload`]: nothing has changed.
    fn enter(&self, owner: &str, reserves: &[Reserve]) -> Result<Vec<usize>, Overload>;

    /// He has none any more.
    fn leave(&self, owner: &str);
}

/// Whoever has something, and which of his leases is the last.
#[derive(Clone)]
pub struct Promises(Arc<Inner>);

struct Inner {
    books: Box<dyn Books>,
    leases: Mutex<Leases>,
}

#[derive(Default)]
struct Leases {
    last: u64,
    of: BTreeMap<String, u64>,
}

impl Promises {
    /// Entered there.
    pub fn new(books: impl Books) -> Self {
        Self(Arc::new(Inner { books: Box::new(books), leases: Mutex::default() }))
    }

    /// `owner` has these, in the place of what he had, until the other end of `lease` is closed.
    pub fn keep(&self, owner: &str, reserves: &[(u64, u64)], lease: OwnedFd) -> Answer {
        let refused = |message: String| Answer::Failed(FailureReport { attribute: Attribute::Refused, message });
        let mut leases = self.leases();
        if !leases.of.contains_key(owner) && leases.of.len() >= OWNERS_MAX {
            return refused(format!("{OWNERS_MAX} processes have parts of its processors already"));
        }
        let reserves: Vec<_> =
            reserves.iter().map(|&(budget_ns, period_ns)| Reserve { budget_ns, period_ns }).collect();
        let processors = match self.0.books.enter(owner, &reserves) {
            Ok(processors) => processors,
            Err(overload) => return refused(overload.to_string()),
        };
        leases.last += 1;
        let id = leases.last;
        leases.of.insert(owner.to_owned(), id);
        let (this, its_owner) = (self.clone(), owner.to_owned());
        let watch = move || {
            // Whatever it says, there is nothing more to wait for.
            let _ = wait(&mut [Interest::end(lease.as_fd())], None);
            this.end(&its_owner, id);
        };
        if let Err(error) = thread::Builder::new().name("promise".into()).spawn(watch) {
            leases.of.remove(owner);
            self.0.books.leave(owner);
            return refused(format!("no thread to watch over it: {error}"));
        }
        Answer::Ok(json!({ "processors": processors }))
    }

    fn end(&self, owner: &str, id: u64) {
        let mut leases = self.leases();
        // A later one of his goes on.
        if leases.of.get(owner) == Some(&id) {
            leases.of.remove(owner);
            self.0.books.leave(owner);
        }
    }

    fn leases(&self) -> MutexGuard<'_, Leases> {
        self.0.leases.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Promises {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Promises").field(&self.leases().of).finish()
    }
}

/// The books of a process that shares nothing.
impl Books for Arc<Mutex<farbus_session::reserve::Processors>> {
    fn enter(&self, owner: &str, reserves: &[Reserve]) -> Result<Vec<usize>, Overload> {
        self.lock().unwrap_or_else(PoisonError::into_inner).enter_all(owner, reserves)
    }

    fn leave(&self, owner: &str) {
        self.lock().unwrap_or_else(PoisonError::into_inner).leave(owner);
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;
    use std::time::Duration;

    use farbus_session::reserve::Processors;

    use super::*;

    fn lease() -> (UnixStream, OwnedFd) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        (ours, theirs.into())
    }

    #[test]
    fn what_is_promised_lasts_as_long_as_the_last_lease() {
        let promises = Promises::new(Arc::new(Mutex::new(Processors::new(1))));
        let (first, theirs) = lease();
        assert_eq!(promises.keep("a", &[(40, 100), (40, 100)], theirs), Answer::Ok(json!({ "processors": [0, 0] })));
        let (_other, theirs) = lease();
        let Answer::Failed(failure) = promises.keep("b", &[(40, 100)], theirs) else { panic!("beyond Equation 1") };
        assert_eq!(failure.attribute, Attribute::Refused);
        assert!(failure.message.contains("missing"), "{failure:?}");
        // Less, by another lease: the end of the first changes nothing.
        let (second, theirs) = lease();
        assert_eq!(promises.keep("a", &[(40, 100)], theirs), Answer::Ok(json!({ "processors": [0] })));
        drop(first);
        let (_other, theirs) = lease();
        assert!(matches!(promises.keep("b", &[(40, 100)], theirs), Answer::Ok(_)));
        let (_third, theirs) = lease();
        assert!(matches!(promises.keep("c", &[(40, 100)], theirs), Answer::Failed(_)));
        drop(second);
        for _ in 0..2000 {
            let (ours, theirs) = lease();
            if matches!(promises.keep("c", &[(40, 100)], theirs), Answer::Ok(_)) {
                return drop(ours);
            }
            thread::sleep(Duration::from_millis(10));
        }
        panic!("what nobody holds is not given back");
    }

    #[test]
    fn there_are_only_so_many() {
        let promises = Promises::new(Arc::new(Mutex::new(Processors::new(1))));
        let held: Vec<_> = (0..OWNERS_MAX)
            .map(|owner| {
                let (ours, theirs) = lease();
                assert!(matches!(promises.keep(&owner.to_string(), &[], theirs), Answer::Ok(_)));
                ours
            })
            .collect();
        assert!(matches!(promises.keep("one more", &[], lease().1), Answer::Failed(_)));
        assert!(matches!(promises.keep("0", &[(1, 2)], lease().1), Answer::Ok(_)), "who is in may change his mind");
        drop(held);
    }
}
