//! A disk behind a Bulk-Only interface, addressed in bytes.

use farbus_model::{Instant, Payload, Urb, UrbCompletion, UrbId};

use crate::driver::{DeviceDriver, IdSource};

use super::bring_up::BringUp;
use super::bulk_only::CommandReply;
use super::command::CommandExecutor;
use super::error::DiskError;
use super::info::{DiskInfo, ScsiDiskOptions};
use super::operation::{EjectOperation, EraseEffect, EraseOperation, FlushOperation, ReadOperation, WriteOperation};
use super::step::{OperationResult, OperationStep};
use super::target::BulkOnlyInterface;

/// A disk. Its first outcome says whether it could be brought up; after that each operation has
/// one. One operation at a time: Bulk-Only transport has one command outstanding.
#[derive(Debug)]
pub struct ScsiDisk {
    executor: CommandExecutor,
    options: ScsiDiskOptions,
    info: DiskInfo,
    job: Option<DiskOperation>,
    outcome: Option<Result<OperationResult, DiskError>>,
    /// Why no operation is possible: the disk could not be brought up, or the medium was exchanged.
    unfit: Option<DiskError>,
}

/// The operation under way.
#[derive(Debug)]
enum DiskOperation {
    BringUp(Box<BringUp>),
    Read(ReadOperation),
    Write(WriteOperation),
    Erase(EraseOperation),
    Flush(FlushOperation),
    Eject(EjectOperation),
}

impl ScsiDisk {
    /// Begins to bring up the disk at `target`. The device must be configured.
    pub fn new(now: Instant, ids: IdSource, target: BulkOnlyInterface, options: ScsiDiskOptions) -> Self {
        let mut this = Self {
            executor: CommandExecutor::new(target, ids, options.lun, options.timeout),
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
        self.begin(now, DiskOperation::BringUp(Box::new(BringUp::new(target, self.options))));
    }

    /// Reads `len` bytes at `offset`. The outcome is [`OperationResult::Data`].
    pub fn read(&mut self, now: Instant, offset: u64, len: usize) {
        match self.check(offset, len as u64) {
            Ok(()) => self.begin(now, DiskOperation::Read(ReadOperation::new(&self.info, offset, len))),
            Err(error) => self.refuse(error),
        }
    }

    /// Writes bytes at `offset`. A payload that is a window or a pattern is not copied.
    pub fn write(&mut self, now: Instant, offset: u64, payload: Payload) {
        match self.check_write(offset, payload.len() as u64) {
            Ok(()) => self.begin(now, DiskOperation::Write(WriteOperation::new(offset, payload))),
            Err(error) => self.refuse(error),
        }
    }

    /// Makes a range read as zeros; `may_release` lets the device give the space back.
    pub fn write_zeroes(&mut self, now: Instant, offset: u64, len: u64, may_release: bool) {
        self.erase(now, if may_release { EraseEffect::ZeroAndRelease } else { EraseEffect::Zero }, offset, len);
    }

    /// Declares a range unneeded. Its content is undefined afterwards; a device without a command for it does nothing.
    pub fn discard(&mut self, now: Instant, offset: u64, len: u64) {
        self.erase(now, EraseEffect::Release, offset, len);
    }

    /// Makes every write durable.
    pub fn flush(&mut self, now: Instant) {
        match self.check(0, 0) {
            Ok(()) => self.begin(now, DiskOperation::Flush(FlushOperation::default())),
            Err(error) => self.refuse(error),
        }
    }

    /// Flushes and ejects the medium.
    pub fn eject(&mut self, now: Instant) {
        match self.check(0, 0) {
            Ok(()) => self.begin(now, DiskOperation::Eject(EjectOperation::Flushing(FlushOperation::default()))),
            Err(error) => self.refuse(error),
        }
    }

    fn erase(&mut self, now: Instant, what: EraseEffect, offset: u64, len: u64) {
        match self.check_write(offset, len) {
            Ok(()) => self.begin(now, DiskOperation::Erase(EraseOperation::new(&self.info, what, offset, len))),
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

    fn begin(&mut self, now: Instant, job: DiskOperation) {
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

    fn step(&mut self, now: Instant, last: Option<Result<CommandReply, DiskError>>) {
        let info = &mut self.info;
        let step = match self.job.as_mut().expect("a command belongs to a job") {
            DiskOperation::BringUp(job) => job.next(info, last),
            DiskOperation::Read(job) => job.next(info, last),
            DiskOperation::Write(job) => job.next(info, last),
            DiskOperation::Erase(job) => job.next(info, last),
            DiskOperation::Flush(job) => job.next(info, last),
            DiskOperation::Eject(job) => job.next(info, last),
        };
        match step {
            OperationStep::Run(command) => self.executor.execute(now, command),
            OperationStep::Ask(setup) => self.executor.ask(now, setup),
            OperationStep::Finish(result) => self.finish(result),
        }
    }

    fn finish(&mut self, mut result: Result<OperationResult, DiskError>) {
        let job = self.job.take();
        let was_bring_up = matches!(job, Some(DiskOperation::BringUp(_)));
        // A flush reports everything that did not become durable.
        if let (Some(DiskOperation::Flush(_) | DiskOperation::Eject(_)), Ok(_)) = (job, &result)
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

impl DeviceDriver for ScsiDisk {
    type Outcome = Result<OperationResult, DiskError>;

    fn poll_submit(&mut self) -> Option<Urb> {
        self.executor.transport.poll_submit()
    }

    fn poll_cancel(&mut self) -> Option<UrbId> {
        self.executor.transport.poll_cancel()
    }

    fn handle_done(&mut self, now: Instant, done: UrbCompletion) {
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
