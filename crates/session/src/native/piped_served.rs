//! The exporting end of an attachment of any class, with the modules between it and the link.

use farbus_model::module::ModuleRole;
use farbus_model::{BufferPool, Instant, OwnerCommand, OwnerCommandError, ReadinessSource};
use farbus_modules::ModulePipeline;
use farbus_modules::cost::PIPELINE_BYTES;
use farbus_wire::native::control::{AttachmentCredit, AttachmentEndNotice};
use farbus_wire::native::descriptors::NamedDescriptor;
use farbus_wire::native::{FrameHeader, FrameKind, LaneArray, LaneLimits, ReceivedFrame};

use super::pipe::{ModulePipe, SavedPipe, end_of};
use super::served::{DeviceMigration, ServedExport, UnmovableError};
use crate::ProtocolViolation;
use crate::snapshot::SnapshotWriter;

/// The exporting end of any class, behind modules. It can be saved if all of its modules can. The other process
/// restores the class's end as if it had no modules, and then puts this around it.
pub struct PipedServed {
    attachment: u16,
    served: Box<dyn ServedExport>,
    pipe: ModulePipe,
    /// What the class sent and the modules have not seen yet. It has no link.
    inner: LaneArray,
    end: Option<AttachmentEndNotice>,
    /// Whether modules must keep nothing back, because a snapshot is about to be taken.
    is_resting: bool,
}

impl PipedServed {
    /// Puts `served`, which is attachment `attachment`, behind `pipeline`.
    pub fn new(attachment: u16, served: Box<dyn ServedExport>, pipeline: ModulePipeline) -> Self {
        Self::over(attachment, served, ModulePipe::new(pipeline, ModuleRole::Exporter, attachment))
    }

    fn over(attachment: u16, served: Box<dyn ServedExport>, pipe: ModulePipe) -> Self {
        let inner =
            LaneArray::new(LaneLimits { receive_bytes: 0, first_receive_bytes: 0, unacknowledged_bytes_max: 0 });
        Self { attachment, served, pipe, inner, end: None, is_resting: false }
    }

    /// Puts the restored `served` behind the restored `pipeline`. `saved` is what [`ServedExport::save_modules`] wrote,
    /// without the states of the modules.
    pub fn resumed(attachment: u16, served: Box<dyn ServedExport>, pipeline: ModulePipeline, saved: SavedPipe) -> Self {
        Self::over(attachment, served, ModulePipe::resumed(pipeline, ModuleRole::Exporter, attachment, saved))
    }

    /// Moves messages between class, modules and link until none can move.
    fn settle(&mut self, now: Instant, lanes: &mut LaneArray) -> Result<(), ProtocolViolation> {
        loop {
            while let Some(message) = self.pipe.poll_below() {
                lanes.send(message);
            }
            let lost = self.pipe.take_lost();
            if lost > 0 {
                // For the class this is a grant of the importer.
                let head = FrameHeader::new(FrameKind::Grant, self.attachment, 0);
                let body = lost.to_le_bytes().to_vec().into();
                self.served.handle_arrived(now, ReceivedFrame { head, body }, &mut self.inner)?;
            } else if let Some(message) = self.inner.poll_message() {
                self.pipe.say(now, message);
            } else if let Some(arrived) = self.pipe.poll_above().filter(|_| self.end.is_none()) {
                self.served.handle_arrived(now, arrived, &mut self.inner)?;
            } else if self.is_resting && self.pipe.has_timeout() {
                self.pipe.let_go(now);
            } else {
                break;
            }
        }
        if let Some(failure) = self.pipe.poll_failure() {
            self.end.get_or_insert(end_of(&failure));
        }
        Ok(())
    }

    /// [`PipedServed::settle`] where the peer sent nothing. If a module gave the class a message that no importer sends,
    /// only the attachment ends: a module is at fault, not the session.
    fn flush(&mut self, now: Instant, lanes: &mut LaneArray) {
        if let Err(reject) = self.settle(now, lanes) {
            let end = self.pipe.rejected(&reject);
            self.end.get_or_insert(end);
        }
    }
}

impl ServedExport for PipedServed {
    fn credit(&self) -> AttachmentCredit {
        self.served.credit()
    }

    fn asked_bytes(&self) -> usize {
        // The first so many bytes were taken when the modules were agreed on.
        let held = self.pipe.held_bytes().saturating_sub(PIPELINE_BYTES);
        self.served.asked_bytes() + self.pipe.arriving_bytes() + held
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

    fn handle_arrived(
        &mut self,
        now: Instant,
        arrived: ReceivedFrame,
        lanes: &mut LaneArray,
    ) -> Result<(), ProtocolViolation> {
        if self.end.is_some() {
            return Ok(());
        }
        match arrived.head.kind {
            FrameKind::Request | FrameKind::Data | FrameKind::Cancel | FrameKind::Aside => {
                self.pipe.handle_arrived(now, arrived)?
            }
            _ => self.served.handle_arrived(now, arrived, &mut self.inner)?,
        }
        self.flush(now, lanes);
        Ok(())
    }

    fn handle_ready(&mut self, now: Instant, lanes: &mut LaneArray) {
        self.pipe.handle_timeout(now);
        self.served.handle_ready(now, &mut self.inner);
        self.flush(now, lanes);
    }

    fn poll_timeout(&self) -> Option<Instant> {
        if self.end.is_some() {
            return Some(Instant::ZERO);
        }
        [self.served.poll_timeout(), self.pipe.poll_timeout()].into_iter().flatten().min()
    }

    fn readiness(&self) -> Option<&ReadinessSource> {
        self.served.readiness()
    }

    fn is_idle(&self) -> bool {
        self.end.is_none() && self.served.is_idle() && self.pipe.is_at_rest()
    }

    fn command(
        &mut self,
        now: Instant,
        command: &OwnerCommand,
        lanes: &mut LaneArray,
    ) -> Result<(), OwnerCommandError> {
        let result = self.served.command(now, command, &mut self.inner);
        self.flush(now, lanes);
        result
    }

    fn pool_mut(&mut self) -> Option<&mut BufferPool> {
        self.served.pool_mut()
    }

    fn poll_end(&mut self) -> Option<AttachmentEndNotice> {
        self.served.poll_end().or_else(|| self.end.clone())
    }

    fn hand_over(self: Box<Self>, now: Instant, migration: DeviceMigration) -> bool {
        self.served.hand_over(now, migration)
    }

    fn finish(self: Box<Self>, now: Instant) {
        self.served.finish(now);
    }

    fn come_to_rest(&mut self, now: Instant, lanes: &mut LaneArray) {
        self.is_resting = true;
        self.served.come_to_rest(now, &mut self.inner);
        self.flush(now, lanes);
    }

    fn is_at_rest(&self) -> bool {
        self.served.is_at_rest() && self.pipe.can_be_saved()
    }

    fn save(&self, to: &mut SnapshotWriter) -> Result<(), UnmovableError> {
        self.served.save(to)
    }

    fn save_modules(&self, to: &mut SnapshotWriter) -> Result<(), UnmovableError> {
        let pipe = Some(&self.pipe).filter(|_| self.end.is_none());
        pipe.and_then(|pipe| pipe.save(to)).ok_or(UnmovableError)
    }

    fn go_on(&mut self, now: Instant, lanes: &mut LaneArray) {
        self.is_resting = false;
        self.served.go_on(now, &mut self.inner);
        self.flush(now, lanes);
    }

    fn leave(self: Box<Self>, now: Instant) {
        self.served.leave(now);
    }
}
