//! Processor time of this host that other processes reserve for threads of their own, tuned pipes. A reservation lasts
//! as long as its owner holds the other end of a lease, so it also ends when the owner is killed.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::Duration;

use farbus_control::failure::{FailureKind, FailureReport};
use farbus_io_net::link::{ThreadWaker, wait_for_ends};
use farbus_io_net::local::control_socket::{Answer, Question, ask_one};
use farbus_realtime::vcpu::{VcpuOverload, VcpuReserve};
use serde_json::json;

/// The most owners at once. One descriptor is kept for each: its last lease. One thread watches all of them.
const OWNERS_MAX: usize = 64;

/// Asks these processes to reserve processor time for `owner`. Returns the processes that refused, each with its
/// reason.
pub fn ask_for(
    owner: &str,
    whom: &BTreeSet<u32>,
    reserves: &[(u64, u64)],
    lease: BorrowedFd<'_>,
) -> Vec<(u32, String)> {
    let (owner, reserves) = (owner.to_owned(), reserves.to_vec());
    let question = Question::Promise { owner, reserves };
    let refused = |&pid: &u32| match ask_one(pid, &question, &[lease]) {
        Ok(Answer::Failed(failure)) => Some((pid, failure.message)),
        // A process that reserves nothing, does not know the question or is ending has no objection.
        Ok(Answer::Ok(_) | Answer::Unknown | Answer::Refused(_)) | Err(_) => None,
    };
    whom.iter().filter_map(refused).collect()
}

/// Another ledger of the same processors, which has to admit reservations first.
pub trait ProcessorAdmission: Send + Sync + 'static {
    /// Enters all reservations of this process, in place of the former ones.
    ///
    /// # Errors
    /// Why not, in words. The former reservations stay.
    fn admit(&self, all: &[VcpuReserve]) -> Result<(), String>;
}

/// The ledger in which processor time is reserved.
pub trait ProcessorLedger: Send + Sync + 'static {
    /// Reserves for the threads of `owner`, in place of what it had. Returns the processors.
    ///
    /// # Errors
    /// [`VcpuOverload`]: nothing has changed.
    fn enter(&self, owner: &str, reserves: &[VcpuReserve]) -> Result<Vec<usize>, VcpuOverload>;

    /// Releases all reservations of `owner`.
    fn leave(&self, owner: &str);
}

/// The owners that have reservations, and the last lease of each.
#[derive(Clone)]
pub struct ProcessorLeases(Arc<ProcessorLeasesInner>);

struct ProcessorLeasesInner {
    books: Box<dyn ProcessorLedger>,
    leases: Mutex<ProcessorLeaseTable>,
    /// Wakes the thread that watches the leases, when they have changed or this object is dropped.
    wake: Arc<ThreadWaker>,
}

#[derive(Default)]
struct ProcessorLeaseTable {
    /// The last lease of each owner. A former one is closed when it is replaced.
    of: BTreeMap<String, Arc<OwnedFd>>,
    is_watched: bool,
}

impl ProcessorLeases {
    /// Enters reservations in this ledger.
    ///
    /// # Panics
    /// If the process has no descriptors when it begins.
    pub fn new(books: impl ProcessorLedger) -> Self {
        let wake = Arc::new(ThreadWaker::new().expect("a process that begins has descriptors"));
        Self(Arc::new(ProcessorLeasesInner { books: Box::new(books), leases: Mutex::default(), wake }))
    }

    /// Reserves for `owner`, in place of what it had, until the other end of `lease` is closed.
    pub fn keep(&self, owner: &str, reserves: &[(u64, u64)], lease: OwnedFd) -> Answer {
        let refused = |message: String| Answer::Failed(FailureReport::new(FailureKind::Refused, message));
        let mut leases = self.leases();
        if !leases.of.contains_key(owner) && leases.of.len() >= OWNERS_MAX {
            return refused(format!("{OWNERS_MAX} processes have parts of its processors already"));
        }
        if let Err(error) = self.watch(&mut leases) {
            return refused(format!("no thread to watch over it: {error}"));
        }
        let reserves: Vec<_> =
            reserves.iter().map(|&(budget_ns, period_ns)| VcpuReserve { budget_ns, period_ns }).collect();
        let processors = match self.0.books.enter(owner, &reserves) {
            Ok(processors) => processors,
            Err(overload) => return refused(overload.to_string()),
        };
        leases.of.insert(owner.to_owned(), Arc::new(lease));
        drop(leases);
        self.0.wake.wake();
        Answer::Ok(json!({ "processors": processors }))
    }

    /// Starts the thread that watches the leases, if it is not running.
    fn watch(&self, leases: &mut ProcessorLeaseTable) -> std::io::Result<()> {
        if !leases.is_watched {
            let (inner, wake) = (Arc::downgrade(&self.0), Arc::clone(&self.0.wake));
            thread::Builder::new().name("promises".into()).spawn(move || watch_all(&inner, &wake))?;
            leases.is_watched = true;
        }
        Ok(())
    }

    fn leases(&self) -> MutexGuard<'_, ProcessorLeaseTable> {
        self.0.leases()
    }
}

/// Releases the reservations of leases that have ended, until the object is dropped.
fn watch_all(inner: &Weak<ProcessorLeasesInner>, wake: &ThreadWaker) {
    loop {
        wake.clear();
        let Some(held) = inner.upgrade().map(|inner| inner.held()) else { return };
        let fds: Vec<_> = held.iter().map(|(_, lease)| lease.as_fd()).collect();
        let Ok(ended) = wait_for_ends(wake, &fds) else {
            // Most likely there is no memory: reservations stay as they are.
            thread::sleep(Duration::from_millis(100));
            continue;
        };
        let Some(inner) = inner.upgrade() else { return };
        for ((owner, lease), _) in held.iter().zip(ended).filter(|(_, has_ended)| *has_ended) {
            inner.end(owner, lease);
        }
    }
}

impl ProcessorLeasesInner {
    fn leases(&self) -> MutexGuard<'_, ProcessorLeaseTable> {
        self.leases.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn held(&self) -> Vec<(String, Arc<OwnedFd>)> {
        self.leases().of.iter().map(|(owner, lease)| (owner.clone(), Arc::clone(lease))).collect()
    }

    fn end(&self, owner: &str, lease: &Arc<OwnedFd>) {
        let mut leases = self.leases();
        // A later lease of this owner stays.
        if leases.of.get(owner).is_some_and(|last| Arc::ptr_eq(last, lease)) {
            leases.of.remove(owner);
            self.books.leave(owner);
        }
    }
}

impl Drop for ProcessorLeasesInner {
    fn drop(&mut self) {
        self.wake.wake();
    }
}

impl fmt::Debug for ProcessorLeases {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ProcessorLeases").field(&self.leases().of.keys()).finish()
    }
}

/// The ledger of a process that shares no devices.
impl ProcessorLedger for Arc<Mutex<farbus_session::reserve::HostProcessors>> {
    fn enter(&self, owner: &str, reserves: &[VcpuReserve]) -> Result<Vec<usize>, VcpuOverload> {
        self.lock().unwrap_or_else(PoisonError::into_inner).enter_all(owner, reserves)
    }

    fn leave(&self, owner: &str) {
        self.lock().unwrap_or_else(PoisonError::into_inner).leave(owner);
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::fd::AsRawFd;
    use std::os::unix::net::UnixStream;

    use farbus_session::reserve::HostProcessors;

    use super::*;

    fn lease() -> (UnixStream, OwnedFd) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        (ours, theirs.into())
    }

    #[test]
    fn reservation_lasts_as_long_as_the_owner_s_last_lease() {
        let promises = ProcessorLeases::new(Arc::new(Mutex::new(HostProcessors::new(1))));
        let (first, theirs) = lease();
        assert_eq!(promises.keep("a", &[(40, 100), (40, 100)], theirs), Answer::Ok(json!({ "processors": [0, 0] })));
        let (_other, theirs) = lease();
        let Answer::Failed(failure) = promises.keep("b", &[(40, 100)], theirs) else { panic!("beyond Equation 1") };
        assert_eq!(failure.attribute, FailureKind::Refused);
        assert!(failure.message.contains("missing"), "{failure:?}");
        // A smaller reservation by another lease: the end of the first lease changes nothing.
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
    fn number_of_owners_is_limited() {
        let promises = ProcessorLeases::new(Arc::new(Mutex::new(HostProcessors::new(1))));
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

    #[test]
    fn endless_leases_take_one_thread_and_one_descriptor_of_each_owner() {
        let promises = ProcessorLeases::new(Arc::new(Mutex::new(HostProcessors::new(1))));
        // The test counts descriptors of its own file only, because other tests open files at the same time.
        let (endless, _other_end) = UnixStream::pair().unwrap();
        let link = |fd: &std::path::Path| fs::read_link(fd).ok();
        let ours = link(format!("/proc/self/fd/{}", endless.as_raw_fd()).as_ref()).unwrap();
        let endless = || OwnedFd::from(endless.try_clone().unwrap());
        for owner in (0..OWNERS_MAX).cycle().take(10 * OWNERS_MAX) {
            assert!(matches!(promises.keep(&owner.to_string(), &[], endless()), Answer::Ok(_)));
        }
        let Answer::Failed(failure) = promises.keep("one more", &[], endless()) else { panic!("there is no place") };
        assert!(failure.message.contains("64 processes"), "{failure:?}");
        let open = fs::read_dir("/proc/self/fd").unwrap().flatten();
        let held = open.filter(|fd| link(&fd.path()).as_ref() == Some(&ours)).count();
        // In addition to the last lease of each owner: the test's own descriptor, and up to one round of former leases
        // at which the watcher still looks.
        assert!((OWNERS_MAX..=2 * OWNERS_MAX + 1).contains(&held), "{held} descriptors are held");
        let watchers = || {
            let threads = fs::read_dir("/proc/self/task").unwrap().flatten();
            let is_watcher = |name: &String| name.trim() == "promises";
            threads.filter_map(|task| fs::read_to_string(task.path().join("comm")).ok()).filter(is_watcher).count()
        };
        // A thread gets its name when it first runs, and /proc passes over some while others end.
        let mut looks = (0..1000).map(|_| {
            thread::sleep(Duration::from_millis(5));
            watchers()
        });
        let seen = looks.find(|count| *count > 0);
        // Other tests of this process have watchers of their own.
        assert!(seen.is_some_and(|count| count < 16), "{seen:?} threads watch");
        // A lease that ends among endless ones is noticed.
        let (ours, theirs) = lease();
        assert!(matches!(promises.keep("0", &[(60, 100)], theirs), Answer::Ok(_)));
        drop(ours);
        let (_other, theirs) = lease();
        let mut theirs = Some(theirs);
        let took_over = (0..2000).any(|_| {
            thread::sleep(Duration::from_millis(5));
            let (again, next) = lease();
            let answer = promises.keep("1", &[(60, 100)], theirs.take().unwrap_or(next));
            drop(again);
            matches!(answer, Answer::Ok(_))
        });
        assert!(took_over, "what nobody holds is not given back");
    }
}
