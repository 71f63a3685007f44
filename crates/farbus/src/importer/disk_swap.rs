//! The disk of an attachment is exchanged for one of this machine or of another host while it is in use (requirement
//! N12).
//!
//! Two threads take part. The engine of the front end owns both disks ([`SwapDisk`], over
//! [`farbus_session::block::SwappableDevice`]). A thread of the swap does what takes time: it opens the new disk, writes the
//! journal and gives the old disk back. Where a disk is matters to neither of them: a `SwapDiskLocation` does what
//! differs. The thread also tells the old disk's exporter:
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
//!
//! And the new disk's exporter, if it is a disk of another host:
//!
//! | step | durable at the importer | durable at the new disk's exporter | after a crash of either end |
//! |---|---|---|---|
//! | *moving* is answered | | moving | no other host gets the new disk; its importer attaches it was, which says *stays* |
//! | copying | copying | moving | no other host gets the unfinished copy, and its importer does not attach it; the same swap continues |
//! | the journal is written | switched | moving | no other host gets the new disk; its importer attaches it, which says *stays* |
//! | *stays* is answered | switched | | the new disk is a disk like any other |
//!
//! A swap that is given up leaves *moving* there: what the disk held is overwritten in part.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, Sender, TryRecvError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use farbus_control::device::MediumStatus;
use farbus_control::failure::{FailureKind, FailureReport};
use farbus_control::swap::SwapStatus;
use farbus_io_linux::store::FileStore;
use farbus_io_net::link::{BoottimeClock, EpollSet, ThreadWaker};
use farbus_io_net::local::events::{Event, EventKind, publish};
use farbus_io_net::trust::{LinkTraffic, Peer};
use farbus_model::{
    BlockCompletion, BlockDevice, BlockInFlight, BlockInfo, BlockLayer, BlockStore, CompletionQueue, Instant,
    PendingBlockRequests, ReadinessSource,
};
use farbus_session::block::swap::{MilestoneJournal, SwapError, SwapMilestone, SwapOptions, SwapReport};
use farbus_session::block::{AWAY_KIND, DeviceSwapAction, SwappableDevice};
use farbus_session::native::retire::DiskMoveStep;
use farbus_session::native::{ImporterAttachment, RemoteBlock};
use farbus_session::snapshot::{self, FieldReader, SnapshotWriter};
use tracing::{info, warn};

use crate::common::stop_signal::StopSignal;
use crate::devices::media_journal::SwapJournalWriter;
use crate::devices::swap_run::{DONE, DiskSwapDestination, FAILED, RUNNING, SwapOrder, SwapRun, report};
use crate::hosts::known_host::KnownHost;
use crate::importer::client::{ClientError, DeviceTarget, ImporterClient};
use crate::importer::local_disk::{DiskRestoreError, LocalDisk};
use crate::importer::session::connection::{BLOCK_KIND, LinkedDevice};
use crate::importer::session::status::{SessionStatus, StepAnswer};
use crate::importer::session_disk::session_disk;

/// Kind of the snapshots of a disk that was moved to another host: where it is, and its snapshot there. A process of a
/// release that does not know it refuses it.
pub const ELSEWHERE_KIND: u16 = 16;
/// How often a swap's status is updated.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// How long an exporter may take to answer a step: as long as the swap waits for a disk.
const STEP_TIME_MAX: Duration = Duration::from_secs(5);

/// A disk that is the device or becomes it.
type BoxedDisk = Box<dyn BlockDevice>;

/// Where a disk is that is the device or becomes it.
#[derive(Clone)]
enum SwapDiskLocation {
    /// On this machine: `block:PATH`, and the file or block device.
    Here(String, Arc<FileStore>),
    /// A disk of another host, in this session. The client is the one that reaches its host; `None`: the attachment's.
    There(DeviceTarget, SessionStatus, StopSignal, Option<Arc<ImporterClient>>),
}

impl SwapDiskLocation {
    /// Where a disk is that is open in this session.
    fn of(target: &DeviceTarget, linked: &LinkedDevice<RemoteBlock>, client: Option<ImporterClient>) -> Self {
        SwapDiskLocation::There(target.clone(), linked.status(), linked.stop_signal(), client.map(Arc::new))
    }

    /// What people type for it: `block:PATH` or `HOST:PORT/DEVICE`.
    fn name(&self) -> String {
        match self {
            SwapDiskLocation::Here(at, _) => at.clone(),
            SwapDiskLocation::There(target, ..) => target.to_string(),
        }
    }

    /// The session that it is in.
    fn session(&self) -> Option<&SessionStatus> {
        match self {
            SwapDiskLocation::Here(..) => None,
            SwapDiskLocation::There(_, session, ..) => Some(session),
        }
    }

    /// Ends what waits for its host.
    fn cut(&self) {
        if let SwapDiskLocation::There(_, _, stop_signal, _) = self {
            stop_signal.end();
        }
    }
}

/// A disk that is open, and where it is.
struct OpenedSwapDisk {
    disk: BoxedDisk,
    location: SwapDiskLocation,
    /// What its owner has to know.
    warning: Option<String>,
}

/// Exchanges the disk of an attachment, from any thread.
#[derive(Clone)]
pub struct DiskSwap(Arc<DiskSwapInner>);

struct DiskSwapInner {
    info: BlockInfo,
    client: ImporterClient,
    clock: BoottimeClock,
    /// The status of the session that the disk is in now.
    session: SessionStatus,
    /// `None` once nobody carries them out any more.
    orders: Mutex<Option<Vec<DiskSwapOrder>>>,
    has_orders: AtomicBool,
    /// Wakes the engine, as long as the disk is one of this machine or a swap runs.
    wake: ThreadWaker,
    last: Mutex<DiskSwapState>,
}

struct DiskSwapState {
    /// Where the disk is.
    at: SwapDiskLocation,
    /// Whether it was somewhere else before.
    is_exchanged: bool,
    /// Where the other disk of the swap is that runs.
    other: Option<SwapDiskLocation>,
    /// The swap that runs, or the last one.
    run: Option<Arc<SwapRun>>,
}

enum DiskSwapOrder {
    Begin(Box<DiskSwapStart>),
    /// The journal was told, or could not be.
    Noted(Result<(), String>),
}

struct DiskSwapStart {
    destination: BoxedDisk,
    options: SwapOptions,
    run: Arc<SwapRun>,
    work: Sender<DeviceSwapAction<BoxedDisk>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl DiskSwap {
    fn new(info: BlockInfo, at: SwapDiskLocation, client: ImporterClient, clock: BoottimeClock) -> io::Result<Self> {
        let session = at.session().cloned().unwrap_or_else(SessionStatus::of_this_machine);
        Ok(Self(Arc::new(DiskSwapInner {
            info,
            client,
            clock,
            session: SessionStatus::following(&session),
            orders: Mutex::new(Some(Vec::new())),
            has_orders: AtomicBool::new(false),
            wake: ThreadWaker::new()?,
            last: Mutex::new(DiskSwapState { at, is_exchanged: false, other: None, run: None }),
        })))
    }

    /// The status of the session that the disk is in, whichever that is.
    pub fn session(&self) -> SessionStatus {
        self.0.session.clone()
    }

    /// Ends what waits for a host that has the disk, or to which it moves.
    pub fn cut(&self) {
        let last = lock(&self.0.last);
        [Some(&last.at), last.other.as_ref()].into_iter().flatten().for_each(SwapDiskLocation::cut);
    }

    /// Begins to exchange the disk.
    ///
    /// # Errors
    /// [`FailureReport`]: nothing was written.
    pub fn begin(&self, order: SwapOrder) -> Result<(), FailureReport> {
        let SwapOrder { device, to, destination, journal, options } = order;
        let refused = |error: &SwapError| report(error, &device, &to);
        let needed = self.0.info.size_bytes;
        if self.0.info.is_read_only {
            let message = format!("{device} is attached to be read: who may write to it can move it");
            return Err(FailureReport::new(FailureKind::Refused, message));
        }
        if self.0.session.is_expected() || !self.0.session.is_ours() {
            let message = format!("{device} is on its way between two hosts: try again when it has arrived");
            return Err(FailureReport::new(FailureKind::Refused, message));
        }
        let mut last = lock(&self.0.last);
        if last.run.as_ref().is_some_and(|run| !run.is_over()) {
            return Err(refused(&SwapError::AnotherSwap));
        }
        let mut notes = SwapJournalWriter::to(journal);
        // A disk of this machine is open, and what is wrong with it is said at once; for another host others wait.
        let opening = match destination {
            DiskSwapDestination::Medium(store) => Ok(self.open_here(store, (&device, &to), &mut notes)?),
            DiskSwapDestination::HostDisk { broker, peer } => Err((broker, peer)),
        };
        let from = last.at.name();
        let run = Arc::new(SwapRun::new(SwapStatus {
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
        let (swap, for_thread) = (self.clone(), Arc::clone(&run));
        let carry_out = move || {
            let SwapStatus { device, to, .. } = for_thread.status();
            let opened = opening.or_else(|(broker, peer)| swap.open_there(broker, peer, (&device, &to), &mut notes));
            match opened {
                Ok(opened) => swap.carry_out(&for_thread, opened, &mut notes, options),
                Err(failure) => for_thread.end(FAILED, |status| status.failure = Some(failure)),
            }
            lock(&swap.0.last).other = None;
        };
        let spawned = thread::Builder::new().name("swap".into()).spawn(carry_out);
        spawned.map_err(|error| not_moved(FailureKind::Local, (&device, &to), &error))?;
        info!(device, to, verify = options.verify, resume = options.resume, "being moved");
        publish(Event::of(EventKind::SwapBegun, device.as_str()).how(to.as_str()));
        last.run = Some(run);
        Ok(())
    }

    /// Opens a file or block device of this machine, and notes that it is overwritten from now on.
    fn open_here(
        &self,
        store: FileStore,
        names: DeviceMoveNames<'_>,
        notes: &mut SwapJournalWriter,
    ) -> Result<OpenedSwapDisk, FailureReport> {
        let local = |error: io::Error| not_moved(FailureKind::Local, names, &error);
        let (needed, found) = (self.0.info.size_bytes, store.size_bytes());
        if found < needed {
            return Err(report(&SwapError::TooSmall { needed, found }, names.0, names.1));
        }
        notes.note(SwapMilestone::Copying).map_err(|why| report(&SwapError::Journal(why), names.0, names.1))?;
        let location = SwapDiskLocation::Here(names.1.to_owned(), Arc::new(store.try_clone().map_err(local)?));
        let disk = LocalDisk::new(store, self.0.info.block_bytes, &self.0.wake).map_err(local)?;
        Ok(OpenedSwapDisk { disk: Box::new(disk), location, warning: None })
    }

    /// Opens a disk of another host, and notes that it is overwritten from now on.
    fn open_there(
        &self,
        broker: OwnedFd,
        peer: Option<Box<Peer>>,
        names: DeviceMoveNames<'_>,
        notes: &mut SwapJournalWriter,
    ) -> Result<OpenedSwapDisk, FailureReport> {
        let refused = |error: ClientError| not_moved(error.attribute(), names, &error);
        let target: DeviceTarget =
            names.1.parse().map_err(|error: String| not_moved(FailureKind::Refused, names, &error))?;
        let client =
            self.0.client.to_another(&target.address, Some(broker), peer.map(|peer| *peer)).map_err(refused)?;
        let (linked, kept) = client.overwrite(&target, self.0.clock).map_err(refused)?;
        let (ours, theirs) = (&self.0.info, *BlockDevice::info(&linked));
        let (needed, found) = (ours.size_bytes, theirs.size_bytes);
        let unsuited = |error: &SwapError| Err(report(error, names.0, names.1));
        if found < needed {
            return unsuited(&SwapError::TooSmall { needed, found });
        }
        if theirs.is_read_only {
            return unsuited(&SwapError::ReadOnly);
        }
        if theirs.block_bytes > ours.block_bytes || theirs.request_bytes_max < ours.request_bytes_max {
            let what = format!(
                "it takes requests of {} to {} bytes, and programs here may make ones of {} to {}\n  choose a disk with \
                 blocks of {} bytes or less",
                theirs.block_bytes,
                theirs.request_bytes_max,
                ours.block_bytes,
                ours.request_bytes_max,
                ours.block_bytes
            );
            return Err(not_moved(FailureKind::Refused, names, &what));
        }
        let location = SwapDiskLocation::of(&target, &linked, Some(client));
        linked.status().note_copy(true);
        let journal = |why| report(&SwapError::Journal(why), names.0, names.1);
        if let Some(identity) = linked.remote().identity() {
            notes.name(identity.into()).map_err(journal)?;
        }
        notes.note(SwapMilestone::Copying).map_err(journal)?;
        let warning =
            kept.err().map(|why| format!("other hosts can attach {target}, which may hold a part of a copy: {why}"));
        Ok(OpenedSwapDisk { disk: session_disk(linked), location, warning })
    }

    /// From now on the disk is there.
    fn switch_to(&self, location: SwapDiskLocation) {
        let session = location.session().cloned().unwrap_or_else(SessionStatus::of_this_machine);
        session.note_copy(false);
        self.0.session.follow(&session);
        let mut last = lock(&self.0.last);
        let before = std::mem::replace(&mut last.at, location);
        (last.other, last.is_exchanged) = (Some(before), true);
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

    /// What a replacement process needs to continue with a disk that was moved: the medium of this machine, or the
    /// passage to a broker that may connect to the host which has it now. `None` if it was not moved, or that process
    /// may connect.
    ///
    /// # Errors
    /// The system has no more descriptors.
    pub fn descriptor(&self) -> io::Result<Option<OwnedFd>> {
        match &lock(&self.0.last).at {
            SwapDiskLocation::Here(_, medium) => medium.as_fd().try_clone_to_owned().map(Some),
            SwapDiskLocation::There(.., Some(client)) => client.passage(),
            SwapDiskLocation::There(.., None) => Ok(None),
        }
    }

    /// The disk of another host that the disk was moved to, if it was, and whether it has a link.
    fn elsewhere(&self) -> Option<(String, bool)> {
        let last = lock(&self.0.last);
        let session = last.at.session().filter(|_| last.is_exchanged)?;
        Some((last.at.name(), session.unlinked().is_none()))
    }

    /// The status of the running or last swap.
    pub fn status(&self) -> Option<SwapStatus> {
        lock(&self.0.last).run.as_ref().map(|run| run.status())
    }

    /// Where the disk is: `block:PATH`, or `HOST:PORT/DEVICE`.
    pub fn medium(&self) -> MediumStatus {
        let last = lock(&self.0.last);
        MediumStatus {
            at: last.at.name(),
            size_bytes: self.0.info.size_bytes,
            is_swapping: last.run.as_ref().is_some_and(|run| !run.is_over()),
            is_swapped: last.is_exchanged,
            identity: last.at.session().and_then(SessionStatus::identity).map(Into::into),
        }
    }

    /// The address of the host that has the disk; `None`: this machine.
    pub fn host(&self) -> Option<String> {
        match &lock(&self.0.last).at {
            SwapDiskLocation::Here(..) => None,
            SwapDiskLocation::There(target, ..) => Some(target.address.clone()),
        }
    }

    /// Has the engine carry out an order. Once there is none, the order is dropped.
    fn order(&self, order: DiskSwapOrder) {
        // It may close a disk.
        let late = match &mut *lock(&self.0.orders) {
            Some(orders) => {
                orders.push(order);
                None
            }
            None => Some(order),
        };
        drop(late);
        self.ring();
    }

    fn ring(&self) {
        self.0.has_orders.store(true, Ordering::Release);
        self.0.wake.wake();
        self.0.session.wake();
    }

    fn take(&self) -> Vec<DiskSwapOrder> {
        if !self.0.has_orders.swap(false, Ordering::AcqRel) {
            return Vec::new();
        }
        self.0.wake.clear();
        lock(&self.0.orders).as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Does what takes time, until the swap is over or its attachment has ended.
    fn carry_out(
        &self,
        run: &Arc<SwapRun>,
        opened: OpenedSwapDisk,
        notes: &mut SwapJournalWriter,
        options: SwapOptions,
    ) {
        let SwapStatus { device, from, to, .. } = run.status();
        let OpenedSwapDisk { disk, location, warning } = opened;
        lock(&self.0.last).other = Some(location.clone());
        run.warn(warning);
        let (work, to_do) = mpsc::channel();
        self.order(DiskSwapOrder::Begin(Box::new(DiskSwapStart {
            destination: disk,
            options,
            run: Arc::clone(run),
            work,
        })));
        // Nothing is noted while this waits for an answer.
        let mut old = OldDisk::new(self);
        let (to_do, mut has_switched) = (&to_do, false);
        for work in to_do {
            match work {
                DeviceSwapAction::Note(SwapMilestone::Switched) => {
                    let noted = old.may_switch(to_do).and_then(|()| notes.note(SwapMilestone::Switched));
                    if noted.is_ok() {
                        has_switched = true;
                        // Before the old disk is given back: that ends its session, and not the attachment.
                        self.switch_to(location.clone());
                        old.note_switched(&from);
                        run.warn(old.warning(&from));
                    }
                    self.order(DiskSwapOrder::Noted(noted));
                    if has_switched {
                        note_complete(&location);
                    }
                }
                DeviceSwapAction::Note(milestone) => {
                    let noted = notes.note(milestone);
                    if noted.is_ok() {
                        old.note_stays();
                    }
                    self.order(DiskSwapOrder::Noted(noted));
                }
                DeviceSwapAction::Release(disk) => drop(disk),
                DeviceSwapAction::Ended(Ok(SwapReport { copied_bytes, rounds, took })) => {
                    let quiet_ms = run.status().quiet_ms;
                    info!(device, from, to, copied_bytes, rounds, ?took, quiet_ms, "moved");
                    return run.end(DONE, |status| (status.left_bytes, status.unverified_bytes) = (0, 0));
                }
                DeviceSwapAction::Ended(Err(error)) => {
                    warn!(device, from, to, %error, "not moved: it stays where it was");
                    let failure = old.failure(&from, &to).unwrap_or_else(|| report(&error, &device, &to));
                    return run.end(FAILED, |status| status.failure = Some(failure));
                }
            }
        }
        // The attachment ended first. The last note says which disk is complete.
        if has_switched {
            return run.end(DONE, |status| (status.left_bytes, status.unverified_bytes) = (0, 0));
        }
        // If it cannot be noted, the last note says that a copy was begun, which is true as well.
        let _ = notes.note(SwapMilestone::Abandoned);
        run.end(FAILED, |status| status.failure = Some(report(&SwapError::Cancelled, &device, &to)));
    }
}

/// A device and where it moves, as people name them.
type DeviceMoveNames<'a> = (&'a str, &'a str);

fn not_moved(attribute: FailureKind, (device, to): DeviceMoveNames<'_>, what: &dyn std::fmt::Display) -> FailureReport {
    FailureReport::new(attribute, format!("{device} was not moved to {to}: {what}"))
}

/// Tells the exporter of the new disk that it has all data: it is a disk like any other. If the exporter does not hear
/// it, it hears it when the disk is attached next.
fn note_complete(location: &SwapDiskLocation) {
    let answer = location.session().map(|session| session.tell(DiskMoveStep::Stays, STEP_TIME_MAX));
    if let Some(answer) = answer.filter(|answer| *answer != StepAnswer::Noted) {
        warn!(disk = location.name(), ?answer, "its exporter does not say that it noted that the disk is complete");
    }
}

/// The exporter of the disk that is moved away from it, as far as it is told.
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
        let session = lock(&swap.0.last).at.session().cloned();
        let answer = session.as_ref().map(|session| session.tell(DiskMoveStep::Stays, STEP_TIME_MAX));
        let unable = match answer {
            None | Some(StepAnswer::Noted) => None,
            Some(StepAnswer::Unable(why)) => Some(why),
            Some(StepAnswer::Ended) => Some("its session has ended".to_owned()),
            // It may be able to, and is asked again before the switch.
            Some(StepAnswer::Silent) if session.as_ref().is_some_and(|it| it.unlinked().is_some()) => None,
            Some(StepAnswer::Silent) => Some("its farbus is of an earlier version".to_owned()),
        };
        Self { session, unable, is_told: false, is_silent: false }
    }

    /// The exporter gives the disk to no other host from now on, if it can. While this waits, nothing is to be done.
    fn may_switch(&mut self, to_do: &Receiver<DeviceSwapAction<BoxedDisk>>) -> Result<(), String> {
        let Some(session) = self.session.as_ref().filter(|_| self.unable.is_none()) else { return Ok(()) };
        self.is_told = true;
        match session.tell(DiskMoveStep::Moving, STEP_TIME_MAX) {
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
    fn note_switched(&self, disk: &str) {
        let session = self.session.as_ref().filter(|_| self.unable.is_none());
        if let Some(answer) = session.map(|session| session.tell(DiskMoveStep::Moved, STEP_TIME_MAX))
            && answer != StepAnswer::Noted
        {
            warn!(
                disk,
                ?answer,
                "the exporter was told that its disk may have moved, and does not say that it noted that it has"
            );
        }
    }

    /// The disk stays. If the exporter does not hear it, it hears it when the disk is attached next.
    fn note_stays(&self) {
        self.session.iter().filter(|_| self.is_told).for_each(|session| session.tell_later(DiskMoveStep::Stays));
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
        self.is_silent.then_some(FailureReport::new(FailureKind::Network, message))
    }
}

/// The disk of an attachment, below its caches.
pub struct SwapDisk {
    disk: SwappableDevice<BoxedDisk>,
    swap: DiskSwap,
    running: Option<(Arc<SwapRun>, Sender<DeviceSwapAction<BoxedDisk>>)>,
    began: Instant,
    shown: Instant,
}

impl SwapDisk {
    /// Wraps `target`, the disk of a session, with the requests of another process that it holds. Further disks are
    /// opened as `client` opened it.
    ///
    /// # Errors
    /// The system has no more descriptors.
    pub fn new(linked: LinkedDevice<RemoteBlock>, target: &DeviceTarget, client: &ImporterClient) -> io::Result<Self> {
        let requests = linked.remote().requests().count();
        let at = SwapDiskLocation::of(target, &linked, None);
        let swap = DiskSwap::new(*BlockDevice::info(&linked), at, client.clone(), linked.clock())?;
        let (disk, zero) = (session_disk(linked), Instant::ZERO);
        Ok(Self { disk: SwappableDevice::new(disk).holding(requests), swap, running: None, began: zero, shown: zero })
    }

    /// Restores the disk that another process moved to `medium`. Returns it with the requests that it has to answer.
    ///
    /// # Errors
    /// The snapshot is invalid, or the system has no more threads or descriptors.
    pub fn restore(
        clock: BoottimeClock,
        from: &mut FieldReader<'_>,
        medium: OwnedFd,
        client: &ImporterClient,
    ) -> Result<(Self, PendingBlockRequests), DiskRestoreError> {
        let now = clock.now();
        let mut known = None;
        let (disk, pending) = SwappableDevice::restore(now, from, |path, info| {
            let path = OsStr::from_bytes(path);
            let store = FileStore::passed(medium, path, false).map_err(io::Error::other)?;
            let at = SwapDiskLocation::Here(format!("block:{}", path.display()), Arc::new(store.try_clone()?));
            let swap = DiskSwap::new(*info, at, client.clone(), clock)?;
            lock(&swap.0.last).is_exchanged = true;
            let local = LocalDisk::new(store, info.block_bytes, &swap.0.wake)?;
            known = Some(swap);
            Ok::<_, DiskRestoreError>(Box::new(local) as BoxedDisk)
        })?;
        let swap = known.expect("its device was restored");
        Ok((Self { disk, swap, running: None, began: now, shown: now }, pending))
    }

    /// Restores the disk that another process moved to one of another host. `passage` leads to a broker that may
    /// connect to that host, if this process may not. Returns it with the requests that it has to answer, and its
    /// clock.
    ///
    /// # Errors
    /// The snapshot is invalid, or the system has no more threads or descriptors.
    pub fn restore_there(
        from: &mut FieldReader<'_>,
        passage: Option<OwnedFd>,
        client: &ImporterClient,
    ) -> Result<(Self, PendingBlockRequests, BoottimeClock), DiskRestoreError> {
        let wrong = |what: String| DiskRestoreError(io::Error::new(io::ErrorKind::InvalidData, what));
        let target_bytes = from.bytes("place")?;
        let text = String::from_utf8_lossy(target_bytes);
        let target: DeviceTarget = text.parse().map_err(wrong)?;
        let saved = from.bytes("disk")?;
        let other = |error: ClientError| DiskRestoreError(io::Error::other(error));
        let known = KnownHost::find(&target.address).map_err(|error| other(error.into()))?;
        let there = client.to_another(&target.address, passage, known.map(|known| known.peer().clone()));
        let there = there.map_err(other)?;
        let mut inner = snapshot::open(saved, AWAY_KIND)?;
        let mut known = None;
        let restored = SwappableDevice::restore_away(Instant::ZERO, &mut inner, |bytes, info| {
            let mut reader = snapshot::open(bytes, BLOCK_KIND)?;
            let mut linked = LinkedDevice::<RemoteBlock>::restore(
                there.redial(&target, LinkTraffic::Bulk).map_err(other)?,
                &mut reader,
            )?;
            let swap = reader.end("device").map_err(DiskRestoreError::from).and_then(|()| {
                let at = SwapDiskLocation::of(&target, &linked, Some(there.clone()));
                Ok(DiskSwap::new(*info, at, client.clone(), linked.clock())?)
            });
            let swap = swap.inspect_err(|_| BlockDevice::leave(&mut linked))?;
            lock(&swap.0.last).is_exchanged = true;
            let wanted = linked.remote().requests();
            let pending = wanted.map(|wanted| (wanted.id, (wanted.op, wanted.offset, wanted.length))).collect();
            known = Some((swap, linked.clock()));
            Ok::<_, DiskRestoreError>((session_disk(linked), pending))
        });
        let (mut disk, pending) = restored?;
        if let Err(reject) = inner.end("disk") {
            BlockDevice::leave(&mut disk);
            return Err(reject.into());
        }
        let (swap, clock) = known.expect("its device was restored");
        Ok((Self { disk, swap, running: None, began: Instant::ZERO, shown: Instant::ZERO }, pending, clock))
    }

    /// Exchanges it, from any thread.
    pub fn swap(&self) -> DiskSwap {
        self.swap.clone()
    }

    /// Carries out orders, and passes on what takes time.
    fn look_after(&mut self, now: Instant, done: &mut CompletionQueue<BlockCompletion>) {
        for order in self.swap.take() {
            match order {
                DiskSwapOrder::Begin(begin) => self.begin(now, *begin),
                DiskSwapOrder::Noted(result) => self.disk.handle_noted(now, result, done),
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
            is_over |= matches!(next, DeviceSwapAction::Ended(_));
            // Its thread lives as long as this.
            let _ = work.send(next);
        }
        if is_over {
            self.running = None;
        }
    }

    fn begin(&mut self, now: Instant, DiskSwapStart { destination, options, run, work }: DiskSwapStart) {
        (self.began, self.shown) = (now, now);
        let joined = self.joined(&*destination);
        let begun = match joined {
            Ok(readiness) => self.disk.begin(now, destination, Some(readiness), options),
            Err(error) => {
                let why = SwapError::Open(farbus_session::block::swap::SwapSide::Destination, error.to_string());
                Err((why, destination))
            }
        };
        if let Err((error, destination)) = begun {
            let _ = work.send(DeviceSwapAction::Note(SwapMilestone::Abandoned));
            let _ = work.send(DeviceSwapAction::Release(destination));
            let _ = work.send(DeviceSwapAction::Ended(Err(error)));
            return;
        }
        self.running = Some((run, work));
    }

    /// What wakes the engine while both disks are used.
    fn joined(&self, destination: &dyn BlockDevice) -> io::Result<ReadinessSource> {
        let all = EpollSet::new()?;
        let both = [BlockDevice::readiness(self.disk.current()), destination.readiness()];
        both.into_iter().flatten().try_for_each(|readiness| all.watch_device(readiness))?;
        Ok(all.readiness())
    }
}

impl Drop for SwapDisk {
    /// Nobody carries out orders any more: a swap that begins just now ends. What was read ahead of its users may have
    /// no answer yet.
    fn drop(&mut self) {
        let orders = lock(&self.swap.0.orders).take();
        drop(orders);
        self.disk.abandon();
    }
}

impl BlockLayer for SwapDisk {
    type Inner = SwappableDevice<BoxedDisk>;

    fn inner(&self) -> &SwappableDevice<BoxedDisk> {
        &self.disk
    }

    fn inner_mut(&mut self) -> &mut SwappableDevice<BoxedDisk> {
        &mut self.disk
    }

    fn submit(&mut self, now: Instant, request: BlockInFlight, done: &mut CompletionQueue<BlockCompletion>) {
        BlockDevice::submit(&mut self.disk, now, request, done);
    }

    fn with_inner<R>(
        &mut self,
        now: Instant,
        done: &mut CompletionQueue<BlockCompletion>,
        act: impl FnOnce(&mut SwappableDevice<BoxedDisk>, &mut CompletionQueue<BlockCompletion>) -> R,
    ) -> R {
        let result = act(&mut self.disk, done);
        self.look_after(now, done);
        result
    }

    /// A swap ends in the process in which it began. While a disk of another host than the first has no link, it is not
    /// saved: this process may be asking the broker to connect, which the replacement would ask, too.
    fn save(&mut self, now: Instant) -> Option<Vec<u8>> {
        if self.swap.is_running() {
            return None;
        }
        match self.swap.elsewhere() {
            None => BlockDevice::save(&mut self.disk, now),
            Some((_, false)) => None,
            Some((target, true)) => {
                let mut to = SnapshotWriter::new(ELSEWHERE_KIND);
                to.bytes(target.as_bytes());
                to.bytes(&self.disk.save_away(now)?);
                Some(to.into_bytes())
            }
        }
    }
}
