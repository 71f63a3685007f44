//! A swap of a disk's medium, or of a device for its twin, while it runs and after it: what those who ask for it see.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use farbus_control::failure::{FailureKind, FailureReport};
use farbus_control::swap::SwapStatus;
use farbus_io_linux::store::FileStore;
use farbus_io_net::local::control_socket::Question;
use farbus_io_net::local::events::{Event, EventKind, publish};
use farbus_io_net::local::passed_files::PassedFiles;
use farbus_io_net::trust::{Peer, timestamp};
use farbus_session::block::swap::{SwapError, SwapOptions, SwapProgress, SwapSide};

/// What a swap of a disk's medium is to do.
#[derive(Debug)]
pub struct SwapOrder {
    /// The device, as its owner names it.
    pub device: String,
    /// The new medium: `block:PATH`, or `HOST:PORT/DEVICE`.
    pub to: String,
    /// The new medium.
    pub destination: DiskSwapDestination,
    /// The journal of the swap's progress, begun by [`crate::devices::media_journal::SwapJournalFolder::begin`].
    pub journal: File,
    /// How fast, and with what care.
    pub options: SwapOptions,
}

/// Where a disk moves.
#[derive(Debug)]
pub enum DiskSwapDestination {
    /// A file or block device of this machine, open and locked.
    Medium(FileStore),
    /// A disk of another host, which is yet to be opened.
    HostDisk {
        /// The passage to a broker that may connect to that host.
        broker: OwnedFd,
        /// The host's entry in the list of paired hosts, if it has one.
        peer: Option<Box<Peer>>,
    },
}

impl SwapOrder {
    /// The order in a question on the control socket, with the files that came along.
    ///
    /// # Errors
    /// The files did not come along, or the first is no disk; or the question is no order.
    pub fn of(question: Question, files: &PassedFiles) -> io::Result<Self> {
        let Question::Swap { device, to, rate, verify, resume, peer } = question else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        let [first, journal] = files.take()?;
        let destination = match to.strip_prefix("block:") {
            Some(path) => {
                DiskSwapDestination::Medium(FileStore::passed(first, path.to_owned(), false).map_err(io::Error::other)?)
            }
            None => DiskSwapDestination::HostDisk { broker: first, peer },
        };
        Ok(Self { device, to, destination, journal: journal.into(), options: SwapOptions { rate, verify, resume } })
    }
}

/// A swap, shared by the thread that carries it out and those that ask for its status.
#[derive(Debug)]
pub struct SwapRun {
    status: Mutex<SwapStatus>,
    began: Instant,
    changed: Condvar,
    is_cancelled: AtomicBool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl SwapRun {
    /// A swap that has begun.
    pub fn new(status: SwapStatus) -> Self {
        let (changed, is_cancelled) = Default::default();
        let status = SwapStatus { begun: timestamp(SystemTime::now()), ..status };
        Self { status: Mutex::new(status), began: Instant::now(), changed, is_cancelled }
    }

    /// Ends the swap in `state`, after `note` has changed its status.
    pub fn end(&self, state: &str, note: impl FnOnce(&mut SwapStatus)) {
        let mut status = lock(&self.status);
        status.elapsed_s = self.began.elapsed().as_secs_f64();
        note(&mut status);
        state.clone_into(&mut status.state);
        let event = Event::of(EventKind::SwapEnded, status.device.as_str()).how(state);
        publish(status.failure.iter().fold(event, |event, failure| event.why(failure.message.as_str())));
        drop(status);
        self.changed.notify_all();
    }

    /// Shows what its owner has to know.
    pub fn warn(&self, warning: Option<String>) {
        lock(&self.status).warning = warning;
    }

    /// Whether it has ended.
    pub fn is_over(&self) -> bool {
        lock(&self.status).state != RUNNING
    }

    /// Its status now.
    pub fn status(&self) -> SwapStatus {
        let mut status = lock(&self.status).clone();
        // What is not copied shows no progress by itself.
        if status.state == RUNNING && status.total_bytes == 0 {
            status.elapsed_s = self.began.elapsed().as_secs_f64();
        }
        status
    }

    /// Asks it to cancel itself. Returns whether it runs.
    pub fn cancel(&self) -> bool {
        self.is_cancelled.store(true, Ordering::Release);
        !self.is_over()
    }

    /// Whether it was asked to cancel itself.
    pub fn is_cancelled(&self) -> bool {
        self.is_cancelled.load(Ordering::Acquire)
    }

    /// Waits until it has ended, so long at most.
    pub fn wait(&self, time_max: Duration) {
        let _ = self.changed.wait_timeout_while(lock(&self.status), time_max, |status| status.state == RUNNING);
    }

    /// Shows how far it is, `elapsed` after it began.
    pub fn show(&self, progress: &SwapProgress, elapsed: Duration) {
        let mut status = lock(&self.status);
        progress.phase.as_str().clone_into(&mut status.phase);
        (status.round, status.copied_bytes, status.left_bytes) =
            (progress.round, progress.copied_bytes, progress.left_bytes);
        (status.unverified_bytes, status.bytes_per_s) = (progress.unverified_bytes, progress.rate);
        (status.elapsed_s, status.quiet_ms) = (elapsed.as_secs_f64(), progress.delayed.as_secs_f64() * 1e3);
    }
}

/// State of a swap under way.
pub const RUNNING: &str = "running";
/// State of a swap that succeeded.
pub const DONE: &str = "done";
/// State of a swap that failed. The device stays as it was.
pub const FAILED: &str = "failed";

/// The failure report of a swap: the cause, and what to type next.
pub fn report(error: &SwapError, device: &str, to: &str) -> FailureReport {
    let path = to.strip_prefix("block:").unwrap_or(to);
    let (attribute, hint) = match error {
        SwapError::AnotherSwap => (
            FailureKind::Refused,
            format!("watch it: farbus swap {device}\n  or stop it: farbus swap {device} --cancel"),
        ),
        SwapError::TooSmall { needed, .. } if to.starts_with("block:") => {
            (FailureKind::Refused, format!("for a file, type: truncate -s {needed} {path}"))
        }
        SwapError::TooSmall { needed, .. } => {
            (FailureKind::Refused, format!("choose a disk of {needed} bytes or more: farbus list HOST"))
        }
        SwapError::ReadOnly => (FailureKind::Refused, "choose one that can be written".to_owned()),
        SwapError::Open(..) => (FailureKind::Local, "it may have too many files open".to_owned()),
        SwapError::Medium { side: SwapSide::Source, .. } => {
            (FailureKind::Device, format!("{device} stays where it was; copy what can be read with ddrescue"))
        }
        SwapError::Medium { error: farbus_model::StoreError::NoSpace, .. } => (
            FailureKind::Local,
            format!("{device} stays where it was; make room and type the same again, which continues"),
        ),
        SwapError::Medium { .. } | SwapError::Differs { .. } => {
            (FailureKind::Device, format!("{device} stays where it was; choose another destination"))
        }
        SwapError::Stuck => (FailureKind::Device, format!("{device} stays where it was; see: farbus status")),
        SwapError::Journal(_) => {
            (FailureKind::Local, format!("{device} stays where it was; make room in farbus's state folder"))
        }
        SwapError::Cancelled => {
            (FailureKind::Refused, format!("{device} stays where it was; the same again continues"))
        }
    };
    FailureReport::new(attribute, format!("{device} was not moved to {to}: {error}\n  {hint}"))
}
