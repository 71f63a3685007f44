//! The disk of an attachment is exchanged for a disk of this machine while it is in use (requirement N12).
//!
//! Two threads take part. The engine of the front end owns both disks ([`SwapDisk`], over
//! [`farbus_session::block::Swappable`]). A thread of the swap does what takes time: it writes the journal and gives the
//! old disk back. It also tells the old disk's exporter:
//!
//! | step | durable at the importer | durable at the exporter | after a crash of either end |
//! |---|---|---|---|
//! | copying | copying | | the old disk is the device |
//! | *moving* is answered | copying | moving | no other host gets the old disk; its importer attaches it, which says *stays* |
//! | the journal is written | switched | moving | no other host gets the old disk; its importer does not attach it, and says *moved* |
//! | *moved* is answered | switched | moved | nobody gets the old disk |
//!
//! If the exporter does not answer *moving*, the swap is given up: it may have noted that or not, and a disk that stays
//! can be moved later. If it answers that it cannot, or is of a version that answers nothing at all, the swap goes on
//! with a warning, as the user's disk may have to leave that host now.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, Sender, TryRecvError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use farbus_io::link::{Gathering, Wake};
use farbus_io::store::FileStore;
use farbus_model::{
    BlockDevice, BlockDone, BlockInFlight, BlockInfo, BlockLayer, BlockStore, Completions, Instant, Pending, Readiness,
};
use farbus_session::block::swap::{Journal, Milestone, Options, Report, SwapError};
use farbus_session::block::{Swappable, Work};
use farbus_session::native::retire::Step;
use farbus_session::snapshot::Reader;
use tracing::{info, warn};

use crate::common::events::{Event, Kind, publish};
use crate::common::failure::{Attribute, FailureReport};
use crate::devices::media_journal::Notes;
use crate::devices::status::MediumStatus;
use crate::devices::swap_run::{DONE, FAILED, RUNNING, Run, SwapOrder, SwapStatus, report};
use crate::importer::local_disk::{LocalDisk, Wrong};
use crate::importer::session::status::{SessionStatus, StepAnswer};

/// How often a swap's status is updated.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// How long an exporter may take to answer a step: as long as the swap waits for a disk.
const STEP_TIME_MAX: Duration = Duration::from_secs(5);

/// A disk that is the device or becomes it.
type Disk = Box<dyn BlockDevice>;

/// Exchanges the disk of an attachment, from any thread.
#[derive(Clone)]
pub struct DiskSwap(Arc<Inner>);

struct Inner {
    info: BlockInfo,
    session: SessionStatus,
    orders: Mutex<Vec<Order>>,
    has_orders: AtomicBool,
    /// Wakes the engine, as long as the disk is one of this machine or a swap runs.
    wake: Wake,
    last: Mutex<Last>,
}

#[derive(Default)]
struct Last {
    /// Where the disk is, if it is not the session's.
    at: Option<String>,
    /// The medium there.
    medium: Option<FileStore>,
    /// The swap that runs, or the last one.
    run: Option<Arc<Run>>,
}

enum Order {
    Begin(Box<Begin>),
    /// The journal was told, or could not be.
    Noted(Result<(), String>),
}

struct Begin {
    destination: LocalDisk,
    options: Options,
    run: Arc<Run>,
    work: Sender<Work<Disk>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl DiskSwap {
    fn new(info: BlockInfo, session: SessionStatus) -> io::Result<Self> {
        Ok(Self(Arc::new(Inner {
            info,
            session,
            orders: Mutex::default(),
            has_orders: AtomicBool::new(false),
            wake: Wake::new()?,
            last: Mutex::default(),
        })))
    }

    /// Begins to exchange the disk.
    ///
    /// # Errors
    /// [`FailureReport`]: nothing was written.
    pub fn begin(&self, order: SwapOrder) -> Result<(), FailureReport> {
        let SwapOrder { device, to, destination, journal, options } = order;
        let refused = |error: &SwapError| report(error, &device, &to);
        let (needed, found) = (self.0.info.size_bytes, destination.size_bytes());
        if self.0.info.is_read_only {
            let message = format!("{device} is attached to be read: who may write to it can move it");
            return Err(FailureReport { attribute: Attribute::Refused, message });
        }
        if self.0.session.is_expected() || !self.0.session.is_ours() {
            let message = format!("{device} is on its way between two hosts: try again when it has arrived");
            return Err(FailureReport { attribute: Attribute::Refused, message });
        }
        if found < needed {
            return Err(refused(&SwapError::TooSmall { needed, found }));
        }
        let local = |what: &dyn std::fmt::Display| FailureReport {
            attribute: Attribute::Local,
            message: format!("{device} was not moved to {to}: {what}"),
        };
        let mut last = lock(&self.0.last);
        if last.run.as_ref().is_some_and(|run| !run.is_over()) {
            return Err(refused(&SwapError::AnotherSwap));
        }
        let mut notes = Notes::to(journal);
        notes.note(Milestone::Copying).map_err(|why| refused(&SwapError::Journal(why)))?;
        let medium = destination.try_clone().map_err(|error| local(&error))?;
        let destination =
            LocalDisk::new(destination, self.0.info.block_bytes, &self.0.wake).map_err(|error| local(&error))?;
        let from = last.at.clone().unwrap_or_else(|| device.clone());
        let run = Arc::new(Run::new(SwapStatus {
            device: device.clone(),
            from,
            to: to.clone(),
            state: RUNNING.to_owned(),
            phase: "beginning".to_owned(),
            round: 1,
            total_bytes: needed,
            left_bytes: needed,
            ..SwapStatus::default()
        }));
        let (work, to_do) = mpsc::channel();
        let (swap, for_thread) = (self.clone(), Arc::clone(&run));
        let carry_out = move || swap.carry_out(&for_thread, (&mut notes, medium), &to_do);
        thread::Builder::new().name("swap".into()).spawn(carry_out).map_err(|error| local(&error))?;
        info!(device, to, verify = options.verify, resume = options.resume, "being moved");
        publish(Event::of(Kind::SwapBegun, device.as_str()).how(to.as_str()));
        last.run = Some(Arc::clone(&run));
        drop(last);
        self.order(Order::Begin(Box::new(Begin { destination, options, run, work })));
        Ok(())
    }

    /// Cancels the swap that runs. Returns whether one runs.
    pub fn cancel(&self) -> bool {
        let is_running = lock(&self.0.last).run.as_ref().is_some_and(|run| run.cancel());
        self.ring();
        is_running
    }

    /// Whether a swap is under way.
    pub fn is_running(&self) -> bool {
        lock(&self.0.last).run.as_ref().is_some_and(|run| !run.is_over())
    }

    /// The medium of this machine that the disk was moved to, for a replacement process; `None` if it was not moved.
    ///
    /// # Errors
    /// The system has no more descriptors.
    pub fn descriptor(&self) -> io::Result<Option<OwnedFd>> {
        let last = lock(&self.0.last);
        last.medium.as_ref().map(|medium| medium.as_fd().try_clone_to_owned()).transpose()
    }

    /// The status of the running or last swap.
    pub fn status(&self) -> Option<SwapStatus> {
        lock(&self.0.last).run.as_ref().map(|run| run.status())
    }

    /// Where the disk is: `block:PATH`, or as `otherwise` says.
    pub fn medium(&self, otherwise: &str) -> MediumStatus {
        let last = lock(&self.0.last);
        MediumStatus {
            at: last.at.clone().unwrap_or_else(|| otherwise.to_owned()),
            size_bytes: self.0.info.size_bytes,
            is_swapping: last.run.as_ref().is_some_and(|run| !run.is_over()),
            is_swapped: last.at.is_some(),
            identity: self.0.session.identity().filter(|_| last.at.is_none()).map(Into::into),
        }
    }

    fn order(&self, order: Order) {
        lock(&self.0.orders).push(order);
        self.ring();
    }

    fn ring(&self) {
        self.0.has_orders.store(true, Ordering::Release);
        self.0.wake.wake();
        self.0.session.wake();
    }

    fn take(&self) -> Vec<Order> {
        if !self.0.has_orders.swap(false, Ordering::AcqRel) {
            return Vec::new();
        }
        self.0.wake.clear();
        std::mem::take(&mut *lock(&self.0.orders))
    }

    /// Does what takes time, until the swap is over or its attachment has ended.
    fn carry_out(&self, run: &Run, (notes, medium): (&mut Notes, FileStore), to_do: &Receiver<Work<Disk>>) {
        let SwapStatus { device, from, to, .. } = run.status();
        let mut medium = Some(medium);
        let mut old = OldDisk::new(self);
        for work in to_do {
            match work {
                Work::Note(Milestone::Switched) => {
                    let noted = old.may_switch(to_do).and_then(|()| notes.note(Milestone::Switched));
                    if noted.is_ok() {
                        // Before the old disk is given back: that ends its session, and not the attachment.
                        self.0.session.note_left();
                        let mut last = lock(&self.0.last);
                        (last.at, last.medium) = (Some(to.clone()), medium.take());
                        drop(last);
                        old.note_switched();
                    }
                    run.warn(old.warning(&device));
                    self.order(Order::Noted(noted));
                }
                Work::Note(milestone) => {
                    let noted = notes.note(milestone);
                    if noted.is_ok() {
                        old.note_stays();
                    }
                    self.order(Order::Noted(noted));
                }
                Work::Release(disk) => drop(disk),
                Work::Ended(Ok(Report { copied_bytes, rounds, took })) => {
                    let quiet_ms = run.status().quiet_ms;
                    info!(device, from, to, copied_bytes, rounds, ?took, quiet_ms, "moved");
                    return run.end(DONE, |status| (status.left_bytes, status.unverified_bytes) = (0, 0));
                }
                Work::Ended(Err(error)) => {
                    warn!(device, from, to, %error, "not moved: it stays where it was");
                    let failure = old.failure(&device, &to).unwrap_or_else(|| report(&error, &device, &to));
                    return run.end(FAILED, |status| status.failure = Some(failure));
                }
            }
        }
        // The attachment ended first. The last note says which disk is complete.
        let is_moved = lock(&self.0.last).at.as_ref() == Some(&to);
        if is_moved {
            return run.end(DONE, |status| (status.left_bytes, status.unverified_bytes) = (0, 0));
        }
        // If it cannot be noted, the last note says that a copy was begun, which is true as well.
        let _ = notes.note(Milestone::Abandoned);
        run.end(FAILED, |status| status.failure = Some(report(&SwapError::Cancelled, &device, &to)));
    }
}

/// The exporter of the disk that is moved here, as far as it is told.
struct OldDisk {
    /// `None`: the disk is one of this machine already.
    session: Option<SessionStatus>,
    /// Why the exporter does not retire the disk.
    unable: Option<String>,
    /// Whether it was told that the disk is about to move.
    is_told: bool,
    /// Whether it did not answer that.
    is_silent: bool,
}

impl OldDisk {
    /// Asks the exporter of the disk whether it answers. It has nothing else to note then.
    fn new(swap: &DiskSwap) -> Self {
        let session = lock(&swap.0.last).at.is_none().then(|| swap.0.session.clone());
        let answer = session.as_ref().map(|session| session.tell(Step::Stays, STEP_TIME_MAX));
        let unable = match answer {
            None | Some(StepAnswer::Noted) => None,
            Some(StepAnswer::Unable(why)) => Some(why),
            Some(StepAnswer::Ended) => Some("its session has ended".to_owned()),
            // It may be able to, and is asked again before the switch.
            Some(StepAnswer::Silent) if swap.0.session.unlinked().is_some() => None,
            Some(StepAnswer::Silent) => Some("its farbus is of an earlier version".to_owned()),
        };
        Self { session, unable, is_told: false, is_silent: false }
    }

    /// The exporter gives the disk to no other host from now on, if it can. While this waits, nothing is to be done.
    fn may_switch(&mut self, to_do: &Receiver<Work<Disk>>) -> Result<(), String> {
        let Some(session) = self.session.as_ref().filter(|_| self.unable.is_none()) else { return Ok(()) };
        self.is_told = true;
        match session.tell(Step::Moving, STEP_TIME_MAX) {
            StepAnswer::Noted => return Ok(()),
            StepAnswer::Unable(why) => self.unable = Some(why),
            // The disk was given back before it was noted, and may be another host's already.
            _ if matches!(to_do.try_recv(), Err(TryRecvError::Disconnected)) => {
                return Err("its attachment has ended".to_owned());
            }
            StepAnswer::Ended => self.unable = Some("its session has ended".to_owned()),
            StepAnswer::Silent => self.is_silent = true,
        }
        if self.is_silent { Err("the disk's exporter does not answer".to_owned()) } else { Ok(()) }
    }

    /// The copy is the device. If the exporter does not hear it, it knows that it may be.
    fn note_switched(&self) {
        let told = self.session.as_ref().filter(|_| self.unable.is_none());
        if let Some(answer) = told.map(|session| session.tell(Step::Moved, STEP_TIME_MAX))
            && answer != StepAnswer::Noted
        {
            warn!(
                ?answer,
                "the exporter was told that its disk may have moved, and does not say that it noted that it has"
            );
        }
    }

    /// The disk stays. If the exporter does not hear it, it hears it when the disk is attached next.
    fn note_stays(&self) {
        self.session.iter().filter(|_| self.is_told).for_each(|session| session.tell_later(Step::Stays));
    }

    /// What the user has to know, if the disk was not retired.
    fn warning(&self, device: &str) -> Option<String> {
        let why = self.unable.as_ref().filter(|_| self.session.is_some())?;
        Some(format!(
            "other hosts can still attach {device}, which has old data: {why}\n  \
             end its share there before anybody does"
        ))
    }

    /// Why the swap failed, if that is because of the exporter.
    fn failure(&self, device: &str, to: &str) -> Option<FailureReport> {
        let message = format!(
            "{device} was not moved to {to}: its exporter does not answer, so it is not known whether it would give the \
             old disk to others\n  {device} stays where it was; the same again continues"
        );
        self.is_silent.then_some(FailureReport { attribute: Attribute::Network, message })
    }
}

/// The disk of an attachment, below its caches.
pub struct SwapDisk {
    disk: Swappable<Disk>,
    swap: DiskSwap,
    running: Option<(Arc<Run>, Sender<Work<Disk>>)>,
    began: Instant,
    shown: Instant,
}

impl SwapDisk {
    /// Wraps the disk of a session, which holds `requests` of another process.
    ///
    /// # Errors
    /// The system has no more descriptors.
    pub fn new(disk: Disk, requests: usize, session: SessionStatus) -> io::Result<Self> {
        let swap = DiskSwap::new(*BlockDevice::info(&disk), session)?;
        let zero = Instant::ZERO;
        Ok(Self { disk: Swappable::new(disk).holding(requests), swap, running: None, began: zero, shown: zero })
    }

    /// Restores the disk that another process moved to `medium`. Returns it with the status of the session that it was
    /// in, and with the requests that it has to answer.
    ///
    /// # Errors
    /// The snapshot is invalid, or the system has no more threads or descriptors.
    pub fn restore(
        now: Instant,
        from: &mut Reader<'_>,
        medium: OwnedFd,
    ) -> Result<(Self, SessionStatus, Pending), Wrong> {
        let mut known = None;
        let (disk, pending) = Swappable::restore(now, from, |path, info| {
            let session = SessionStatus::default();
            session.note_left();
            let swap = DiskSwap::new(*info, session.clone())?;
            let path = OsStr::from_bytes(path);
            let store = FileStore::passed(medium, path, false).map_err(io::Error::other)?;
            let mut last = lock(&swap.0.last);
            (last.at, last.medium) = (Some(format!("block:{}", path.display())), Some(store.try_clone()?));
            drop(last);
            let local = LocalDisk::new(store, info.block_bytes, &swap.0.wake)?;
            known = Some((swap, session));
            Ok::<_, Wrong>(Box::new(local) as Disk)
        })?;
        let (swap, session) = known.expect("its device was restored");
        Ok((Self { disk, swap, running: None, began: now, shown: now }, session, pending))
    }

    /// Exchanges it, from any thread.
    pub fn swap(&self) -> DiskSwap {
        self.swap.clone()
    }

    /// Carries out orders, and passes on what takes time.
    fn look_after(&mut self, now: Instant, done: &mut Completions<BlockDone>) {
        for order in self.swap.take() {
            match order {
                Order::Begin(begin) => self.begin(now, *begin),
                Order::Noted(result) => self.disk.handle_noted(now, result, done),
            }
        }
        let Some((run, work)) = &self.running else { return };
        if run.is_cancelled() {
            // It may be too late.
            let _ = self.disk.cancel(now);
        }
        let mut is_over = false;
        if now - self.shown >= LOOK_EVERY
            && let Some(progress) = self.disk.progress(now)
        {
            run.show(&progress, now - self.began);
            self.shown = now;
        }
        while let Some(next) = self.disk.poll_work() {
            if let Some(progress) = self.disk.progress(now) {
                run.show(&progress, now - self.began);
            }
            is_over |= matches!(next, Work::Ended(_));
            // Its thread lives as long as this.
            let _ = work.send(next);
        }
        if is_over {
            self.running = None;
        }
    }

    fn begin(&mut self, now: Instant, Begin { destination, options, run, work }: Begin) {
        (self.began, self.shown) = (now, now);
        let joined = self.joined(&destination);
        let begun = match joined {
            Ok(readiness) => self.disk.begin(now, Box::new(destination), Some(readiness), options),
            Err(error) => {
                let why = SwapError::Open(farbus_session::block::swap::Side::Destination, error.to_string());
                Err((why, Box::new(destination) as Disk))
            }
        };
        if let Err((error, destination)) = begun {
            let _ = work.send(Work::Note(Milestone::Abandoned));
            let _ = work.send(Work::Release(destination));
            let _ = work.send(Work::Ended(Err(error)));
            return;
        }
        self.running = Some((run, work));
    }

    /// What wakes the engine while both disks are used.
    fn joined(&self, destination: &LocalDisk) -> io::Result<Readiness> {
        let all = Gathering::new()?;
        let both = [BlockDevice::readiness(self.disk.current()), BlockDevice::readiness(destination)];
        both.into_iter().flatten().try_for_each(|readiness| all.watch_device(readiness))?;
        Ok(all.readiness())
    }
}

impl BlockLayer for SwapDisk {
    type Inner = Swappable<Disk>;

    fn inner(&self) -> &Swappable<Disk> {
        &self.disk
    }

    fn inner_mut(&mut self) -> &mut Swappable<Disk> {
        &mut self.disk
    }

    fn submit(&mut self, now: Instant, request: BlockInFlight, done: &mut Completions<BlockDone>) {
        BlockDevice::submit(&mut self.disk, now, request, done);
    }

    fn with_inner<R>(
        &mut self,
        now: Instant,
        done: &mut Completions<BlockDone>,
        act: impl FnOnce(&mut Swappable<Disk>, &mut Completions<BlockDone>) -> R,
    ) -> R {
        let result = act(&mut self.disk, done);
        self.look_after(now, done);
        result
    }

    /// A swap ends in the process in which it began.
    fn save(&mut self, now: Instant) -> Option<Vec<u8>> {
        if self.swap.is_running() { None } else { BlockDevice::save(&mut self.disk, now) }
    }
}
