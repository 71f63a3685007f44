//! The contract of the exporting end of an attachment, for all classes.

use std::time::Duration;

use farbus_model::{BufferPool, Instant, OwnerCommand, OwnerCommandError, ReadinessSource};
use farbus_wire::native::control::{AttachmentCredit, AttachmentEndNotice, MIGRATION_STATE_BYTES_MAX};
use farbus_wire::native::descriptors::NamedDescriptor;
use farbus_wire::native::{LaneArray, ReceivedFrame};

use crate::ProtocolViolation;
use crate::snapshot::{FieldReader, SnapshotWriter};

/// A device of this host that an attachment serves (requirement N1: connect, receive, transmit, disconnect). A new
/// class implements this; nothing else changes.
pub trait ServedExport: Send {
    /// What may be in flight.
    fn credit(&self) -> AttachmentCredit;

    /// The bytes of all unanswered requests: the data that was received, and the data that answers may have.
    fn asked_bytes(&self) -> usize {
        0
    }

    /// The most bytes of its answers and events that may wait for the link.
    fn answers_bytes_max(&self) -> usize {
        self.credit().bytes as usize
    }

    /// `Some` if it sends events without requests: it sends the next one when at most so many bytes wait for the link.
    fn room_wanted(&self) -> Option<usize> {
        None
    }

    /// The device's description, in the encoding of its class.
    fn description(&self) -> Vec<u8>;

    /// The descriptors of a USB device that its description does not have; `None` for devices of other classes.
    fn named_descriptors(&self) -> Option<Vec<NamedDescriptor>> {
        None
    }

    /// Whether the description is known. An importer that opens the device before waits until it is, or is refused with
    /// [`ServedExport::poll_end`].
    fn is_ready(&self) -> bool {
        true
    }

    /// Takes a request, more of its data, or its cancel. Answers go to `lanes`.
    ///
    /// # Errors
    /// [`ProtocolViolation`]: the importer broke the protocol; the session is over.
    fn handle_arrived(
        &mut self,
        now: Instant,
        arrived: ReceivedFrame,
        lanes: &mut LaneArray,
    ) -> Result<(), ProtocolViolation>;

    /// [`ServedExport::readiness`] may have become ready, or the time of [`ServedExport::poll_timeout`] has come.
    fn handle_ready(&mut self, now: Instant, lanes: &mut LaneArray);

    /// When to call [`ServedExport::handle_ready`]; `None`: never.
    fn poll_timeout(&self) -> Option<Instant>;

    /// What to wait on besides the link.
    fn readiness(&self) -> Option<&ReadinessSource>;

    /// Whether it sends nothing before the next request or [`ServedExport::poll_timeout`].
    fn is_idle(&self) -> bool {
        false
    }

    /// Carries out a command of the owner.
    ///
    /// # Errors
    /// [`OwnerCommandError`] when the device does not know it or refuses.
    fn command(
        &mut self,
        now: Instant,
        command: &OwnerCommand,
        lanes: &mut LaneArray,
    ) -> Result<(), OwnerCommandError> {
        let _ = (now, lanes);
        Err(OwnerCommandError::unknown(command))
    }

    /// The pool from which it takes buffers, if it takes any. The session lends its own pool, to which sent buffers
    /// return.
    fn pool_mut(&mut self) -> Option<&mut BufferPool> {
        None
    }

    /// Why it ended, if it has ended.
    fn poll_end(&mut self) -> Option<AttachmentEndNotice>;

    /// The importer hands the device over: nothing is reset. Requests in flight are withdrawn; the importer has waited
    /// for those whose answers it needs. Returns whether the device waits for its successor now. A class without
    /// handover ends.
    fn hand_over(self: Box<Self>, now: Instant, migration: DeviceMigration) -> bool {
        let _ = migration;
        self.finish(now);
        false
    }

    /// Ends the attachment: withdraws all requests in flight and gives the device back.
    fn finish(self: Box<Self>, now: Instant);

    /// Prepares to continue in another process: takes requests that may wait for ever back from the device, as if they
    /// had not reached it.
    fn come_to_rest(&mut self, now: Instant, lanes: &mut LaneArray) {
        let _ = (now, lanes);
    }

    /// Whether the device has no request of the importer.
    fn is_at_rest(&self) -> bool {
        true
    }

    /// Saves, when the device has no request, what another process needs to continue. A class without that ends there.
    ///
    /// # Errors
    /// [`UnmovableError`].
    fn save(&self, to: &mut SnapshotWriter) -> Result<(), UnmovableError> {
        let _ = to;
        Err(UnmovableError)
    }

    /// Saves the state of its modules; nothing without modules.
    ///
    /// # Errors
    /// [`UnmovableError`]: a module cannot continue in another process.
    fn save_modules(&self, to: &mut SnapshotWriter) -> Result<(), UnmovableError> {
        let _ = to;
        Ok(())
    }

    /// Restores what another process saved, over a device that is new here; [`ServedExport::go_on`] starts it. After an
    /// error it can only be finished.
    ///
    /// # Errors
    /// [`ProtocolViolation`]: no attachment can have had this state.
    fn restore(&mut self, now: Instant, from: &mut FieldReader<'_>) -> Result<(), ProtocolViolation> {
        let _ = (now, from);
        Err(ProtocolViolation::new("class", 0, "it is one that can go on in another process"))
    }

    /// Starts it in the other process, or again in this one: requests that were taken back go to the device again.
    fn go_on(&mut self, now: Instant, lanes: &mut LaneArray) {
        let _ = (now, lanes);
    }

    /// Ends the attachment without using the device, which another process has now.
    fn leave(self: Box<Self>, now: Instant) {
        self.finish(now);
    }
}

/// The successor of a handover.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceMigration {
    /// The key of the host that continues; zeros for a host without a key.
    pub successor: [u8; 32],
    /// The data that the host gets with the device.
    pub migration_state: Vec<u8>,
    /// How long the device waits for that host.
    pub left: Duration,
}

/// A device that was handed over and whose successor has not come; its importer has it again, so that another process
/// can wait for the successor.
pub struct RecalledDevice {
    /// The lease under which it was handed over.
    pub lease: u64,
    /// The exporter's end of the attachment, as it was before the handover.
    pub served: Box<dyn ServedExport>,
    /// The host that it was handed over to, what travels with it, and how long it still waits.
    pub migration: DeviceMigration,
}

impl DeviceMigration {
    pub(super) fn restore(from: &mut FieldReader<'_>) -> Result<Self, ProtocolViolation> {
        let successor = from.take(32, "successor")?.try_into().expect("32 bytes");
        let (migration_state, ms) = (from.bytes("migration state")?.to_vec(), from.u64("time left")?);
        if migration_state.len() > MIGRATION_STATE_BYTES_MAX || ms > u32::MAX.into() {
            return Err(ProtocolViolation::new(
                "migration state",
                migration_state.len() as u64,
                "migration state has 16 MiB at most, and waits some seconds",
            ));
        }
        Ok(Self { successor, migration_state, left: Duration::from_millis(ms) })
    }
}

/// The error of a device with which no other process can continue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnmovableError;
