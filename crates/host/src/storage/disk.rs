//! A disk behind a Bulk-Only interface, addressed in bytes.

use farbus_model::{Done, Instant, Payload, Urb, UrbId};

use crate::driver::{Driver, IdSource};

use super::bring_up::BringUp;
use super::bulk_only::Reply;
use super::command::Executor;
use super::error::DiskError;
use super::info::{DiskInfo, Options};
use super::operation::{Clear, Eject, Erase, Flush, Read, Write};
use super::step::{Answer, Step};
use super::target::Target;

/// A disk. Its first outcome says whether it could be brought up; after that each operation has
/// one. One operation at a time: Bulk-Only transport has one command outstanding.
#[derive(Debug)]
pub struct Disk {
    executor: Executor,
    options: Options,
    info: DiskInfo,
    job: Option<Job>,
    outcome: Option<Result<Answer, DiskError>>,
    /// Why no operation is possible: the disk could not be brought up, or the medium was exchanged.
    unfit: Option<DiskError>,
}

/// The operation under way.
#[derive(Debug)]
enum Job {
    BringUp(Box<BringUp>),
    Read(Read),
    Write(Write),
    Erase(Erase),
    Flush(Flush),
    Eject(Eject),
}

impl Disk {
    /// Begins to bring up the disk at `target`. The device must be configured.
    pub fn new(now: Instant, ids: IdSource, target: Target, options: Options) -> Self {
        let mut this = Self {
            executor: Executor::new(target, ids, options.lun, options.timeout),
            options,
            info: DiskInfo::default(),
            job: None,
            outcome: None,
            unfit: None,
        };
        this.bring_up(now);
        this
    }

    /// The disk's properties; empty until it was brought up.
    pub fn info(&self) -> &DiskInfo {
        &self.info
    }

    /// Whether an operation can be begun.
    pub fn is_idle(&self) -> bool {
        self.job.is_none() && self.outcome.is_none()
    }

    /// Brings the disk up again, after [`DiskError::MediumChanged`] or an eject.
    pub fn bring_up(&mut self, now: Instant) {
        let target = *self.executor.transport.target();
        self.executor.guards_medium = false;
        self.info = DiskInfo::default();
        self.unfit = None;
        self.begin(now, Job::BringUp(Box::new(BringUp::new(target, self.options))));
    }

    /// Reads `len` bytes at `offset`. The outcome is [`Answer::Data`].
    pub fn read(&mut self, now: Instant, offset: u64, len: usize) {
        match self.check(offset, len as u64) {
            Ok(()) => self.begin(now, Job::Read(Read::new(&self.info, offset, len))),
            Err(error) => self.refuse(error),
        }
    }

    /// Writes bytes at `offset`. A payload that is a window or a pattern is not copied.
    pub fn write(&mut self, now: Instant, offset: u64, payload: Payload) {
        match self.check_write(offset, payload.len() as u64) {
            Ok(()) => self.begin(now, Job::Write(Write::new(offset, payload))),
            Err(error) => self.refuse(error),
        }
    }

    /// Makes a range read as zeros; `may_release` lets the device give the space back.
    pub fn write_zeroes(&mut self, now: Instant, offset: u64, len: u64, may_release: bool) {
        self.erase(now, if may_release { Clear::ZeroAndRelease } else { Clear::Zero }, offset, len);
    }

    /// Declares a range unneeded. Its content is undefined afterwards; a device without a command for it does nothing.
    pub fn discard(&mut self, now: Instant, offset: u64, len: u64) {
        self.erase(now, Clear::Release, offset, len);
    }

    /// Makes every write durable.
    pub fn flush(&mut self, now: Instant) {
        match self.check(0, 0) {
            Ok(()) => self.begin(now, Job::Flush(Flush::default())),
            Err(error) => self.refuse(error),
        }
    }

    /// Flushes and ejects the medium.
    pub fn eject(&mut self, now: Instant) {
        match self.check(0, 0) {
            Ok(()) => self.begin(now, Job::Eject(Eject::Flushing(Flush::default()))),
            Err(error) => self.refuse(error),
        }
    }

    fn erase(&mut self, now: Instant, what: Clear, offset: u64, len: u64) {
        match self.check_write(offset, len) {
            Ok(()) => self.begin(now, Job::Erase(Erase::new(&self.info, what, offset, len))),
            Err(error) => self.refuse(error),
        }
    }

    fn check(&self, offset: u64, len: u64) -> Result<(), DiskError> {
        match &self.unfit {
            Some(error) => Err(error.clone()),
            None if !self.info.holds(offset, len) => Err(DiskError::OutOfRange),
            None => Ok(()),
        }
    }

    fn check_write(&self, offset: u64, len: u64) -> Result<(), DiskError> {
        self.check(offset, len)?;
        if self.info.read_only { Err(DiskError::WriteProtected) } else { Ok(()) }
    }

    fn refuse(&mut self, error: DiskError) {
        assert!(self.is_idle(), "one operation at a time");
        self.outcome = Some(Err(error));
    }

    fn begin(&mut self, now: Instant, job: Job) {
        assert!(self.is_idle(), "one operation at a time");
        self.job = Some(job);
        self.step(now, None);
        self.advance(now);
    }

    /// Continues with the next command when one has finished.
    fn advance(&mut self, now: Instant) {
        while let Some(result) = self.executor.poll_result() {
            self.step(now, Some(result));
        }
    }

    fn step(&mut self, now: Instant, last: Option<Result<Reply, DiskError>>) {
        let info = &mut self.info;
        let step = match self.job.as_mut().expect("a command belongs to a job") {
            Job::BringUp(job) => job.next(info, last),
            Job::Read(job) => job.next(info, last),
            Job::Write(job) => job.next(info, last),
            Job::Erase(job) => job.next(info, last),
            Job::Flush(job) => job.next(info, last),
            Job::Eject(job) => job.next(info, last),
        };
        match step {
            Step::Run(command) => self.executor.execute(now, command),
            Step::Ask(setup) => self.executor.ask(now, setup),
            Step::Finish(result) => self.finish(result),
        }
    }

    fn finish(&mut self, mut result: Result<Answer, DiskError>) {
        let job = self.job.take();
        let was_bring_up = matches!(job, Some(Job::BringUp(_)));
        // A flush reports everything that did not become durable.
        if let (Some(Job::Flush(_) | Job::Eject(_)), Ok(_)) = (job, &result)
            && let Some(error) = self.executor.take_deferred()
        {
            result = Err(error);
        }
        match &result {
            // A medium that cannot be taken out is the same one, whatever the device reports after a reset.
            Ok(_) if was_bring_up => self.executor.guards_medium = self.info.removable,
            Err(error) if was_bring_up => {
                self.info = DiskInfo::default();
                self.unfit = Some(error.clone());
            }
            Err(DiskError::MediumChanged) => self.unfit = Some(DiskError::MediumChanged),
            _ => {}
        }
        self.outcome = Some(result);
    }
}

impl Driver for Disk {
    type Outcome = Result<Answer, DiskError>;

    fn poll_submit(&mut self) -> Option<Urb> {
        self.executor.transport.poll_submit()
    }

    fn poll_cancel(&mut self) -> Option<UrbId> {
        self.executor.transport.poll_cancel()
    }

    fn handle_done(&mut self, now: Instant, done: Done) {
        self.executor.transport.handle_done(now, done);
        self.executor.advance(now);
        self.advance(now);
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.executor.poll_timeout()
    }

    fn handle_timeout(&mut self, now: Instant) {
        self.executor.handle_timeout(now);
        self.advance(now);
    }

    fn poll_outcome(&mut self) -> Option<Self::Outcome> {
        self.outcome.take()
    }

    fn poll_spent(&mut self) -> Payload {
        self.executor.transport.poll_spent()
    }
}
