//! A device of this host that can be suspended, for all classes: frames of its importer wait meanwhile, in order.
//!
//! A USB device is suspended endpoint by endpoint ([`crate::reserve::SuspendableDevice`]); for a disk or a stream of
//! frames everything waits, except its end.

use std::collections::VecDeque;

use farbus_model::{BufferPool, Instant, OwnerCommand, OwnerCommandError, ReadinessSource};
use farbus_wire::native::control::{AttachmentCredit, AttachmentEndCause, AttachmentEndNotice};
use farbus_wire::native::descriptors::NamedDescriptor;
use farbus_wire::native::{LaneArray, ReceivedFrame};

use super::served::{DeviceMigration, ServedExport, UnmovableError};
use crate::ProtocolViolation;
use crate::reserve::SuspensionSwitch;
use crate::snapshot::{FieldReader, SnapshotWriter};

/// The most frames that wait, besides their limit in bytes: a request could be sent as single bytes.
const FRAMES_MAX: usize = 16_384;

/// A served device whose frames can be held back.
pub struct SuspendableServed {
    served: Box<dyn ServedExport>,
    suspension: SuspensionSwitch,
    held: VecDeque<ReceivedFrame>,
    held_bytes: u64,
    /// Whether events without requests wait, too.
    is_quiet: bool,
    /// Another process is to continue: frames that wait are let through.
    is_resting: bool,
    /// The rule that a waiting frame broke.
    end: Option<AttachmentEndNotice>,
}

impl SuspendableServed {
    /// Frames of the importer to `served` wait while `suspension` is closed. The code that opens it wakes the session.
    pub fn new(served: Box<dyn ServedExport>, suspension: SuspensionSwitch) -> Self {
        let (held, is_quiet) = (VecDeque::new(), false);
        Self { served, suspension, held, held_bytes: 0, is_quiet, is_resting: false, end: None }
    }

    /// As `new`, for a device that sends events without requests; these wait, too.
    #[must_use]
    pub fn quiet(mut self) -> Self {
        self.is_quiet = true;
        self
    }

    fn is_closed(&self) -> bool {
        self.suspension.is_closed() && !self.is_resting
    }

    fn release(&mut self, now: Instant, lanes: &mut LaneArray) -> Result<(), ProtocolViolation> {
        while let Some(arrived) = self.held.pop_front() {
            self.held_bytes -= arrived.body.len() as u64;
            self.served.handle_arrived(now, arrived, lanes)?;
        }
        Ok(())
    }
}

impl ServedExport for SuspendableServed {
    fn credit(&self) -> AttachmentCredit {
        self.served.credit()
    }

    fn asked_bytes(&self) -> usize {
        self.served.asked_bytes() + self.held_bytes as usize
    }

    fn answers_bytes_max(&self) -> usize {
        self.served.answers_bytes_max()
    }

    fn room_wanted(&self) -> Option<usize> {
        self.served.room_wanted()
    }

    fn description(&self) -> Vec<u8> {
        self.served.description()
    }

    fn named_descriptors(&self) -> Option<Vec<NamedDescriptor>> {
        self.served.named_descriptors()
    }

    fn is_ready(&self) -> bool {
        self.served.is_ready()
    }

    fn handle_arrived(
        &mut self,
        now: Instant,
        arrived: ReceivedFrame,
        lanes: &mut LaneArray,
    ) -> Result<(), ProtocolViolation> {
        if !self.is_closed() {
            self.release(now, lanes)?;
            return self.served.handle_arrived(now, arrived, lanes);
        }
        self.held_bytes += arrived.body.len() as u64;
        self.held.push_back(arrived);
        // The head of a request counts besides its data.
        let bytes_max = 2 * u64::from(self.served.credit().bytes) + (1 << 20);
        match self.held.len() > FRAMES_MAX || self.held_bytes > bytes_max {
            true => Err(ProtocolViolation::new("credit", self.held_bytes, "no more is asked than the credit allows")),
            false => Ok(()),
        }
    }

    fn handle_ready(&mut self, now: Instant, lanes: &mut LaneArray) {
        if !self.is_closed()
            && let Err(reject) = self.release(now, lanes)
        {
            self.end = Some(AttachmentEndNotice { cause: AttachmentEndCause::Refused, message: reject.to_string() });
        }
        if !(self.is_closed() && self.is_quiet) {
            self.served.handle_ready(now, lanes);
        }
    }

    fn poll_timeout(&self) -> Option<Instant> {
        match (self.is_closed(), self.held.is_empty()) {
            (true, _) if self.is_quiet => None,
            (true, _) | (false, true) => self.served.poll_timeout(),
            (false, false) => Some(Instant::ZERO),
        }
    }

    fn readiness(&self) -> Option<&ReadinessSource> {
        // Frames that have to wait wake no thread.
        self.served.readiness().filter(|_| !(self.is_closed() && self.is_quiet))
    }

    fn is_idle(&self) -> bool {
        self.held.is_empty() && self.served.is_idle()
    }

    fn command(
        &mut self,
        now: Instant,
        command: &OwnerCommand,
        lanes: &mut LaneArray,
    ) -> Result<(), OwnerCommandError> {
        self.served.command(now, command, lanes)
    }

    fn pool_mut(&mut self) -> Option<&mut BufferPool> {
        self.served.pool_mut()
    }

    fn poll_end(&mut self) -> Option<AttachmentEndNotice> {
        self.end.take().or_else(|| self.served.poll_end())
    }

    fn hand_over(self: Box<Self>, now: Instant, migration: DeviceMigration) -> bool {
        self.served.hand_over(now, migration)
    }

    fn finish(self: Box<Self>, now: Instant) {
        self.served.finish(now);
    }

    fn come_to_rest(&mut self, now: Instant, lanes: &mut LaneArray) {
        self.is_resting = true;
        self.handle_ready(now, lanes);
        self.served.come_to_rest(now, lanes);
    }

    fn is_at_rest(&self) -> bool {
        self.held.is_empty() && self.served.is_at_rest()
    }

    fn save(&self, to: &mut SnapshotWriter) -> Result<(), UnmovableError> {
        self.served.save(to)
    }

    fn save_modules(&self, to: &mut SnapshotWriter) -> Result<(), UnmovableError> {
        self.served.save_modules(to)
    }

    fn restore(&mut self, now: Instant, from: &mut FieldReader<'_>) -> Result<(), ProtocolViolation> {
        self.served.restore(now, from)
    }

    fn go_on(&mut self, now: Instant, lanes: &mut LaneArray) {
        self.is_resting = false;
        self.served.go_on(now, lanes);
    }

    fn leave(self: Box<Self>, now: Instant) {
        self.served.leave(now);
    }
}
