//! What an exporter's session needs from its owner: opening devices, migration, reservations.

use farbus_model::{ExportIdentity, Instant};
use farbus_modules::ModuleAllowance;
use farbus_wire::native::control::{AttachmentEndCause, AttachmentEndNotice, OpenRequest, SuccessorOpenRequest};
use farbus_wire::native::retire::DiskMoveStep;

use super::served::{DeviceMigration, RecalledDevice, ServedExport};
use crate::reserve::ledger::MeasuredPath;
use crate::reserve::{ReservationDenial, ReservationReport, ReservationState, ReservationTerms};
use crate::snapshot::SavedPart;

/// A device that was handed over, ready for its successor.
pub struct InheritedDevice {
    /// The successor's lease.
    pub lease: u64,
    /// The exporter's end of the attachment that the successor takes over.
    pub served: Box<dyn ServedExport>,
    /// The migration state from the former importer.
    pub migration_state: Vec<u8>,
}

/// What the owner of an exporter's session provides.
pub trait ExporterServices {
    /// Opens a device for attachment `number`; returns its lease and the device.
    ///
    /// # Errors
    /// [`AttachmentEndNotice`]: why it cannot be opened.
    fn open(
        &mut self,
        now: Instant,
        number: u16,
        open: &OpenRequest,
    ) -> Result<(u64, Box<dyn ServedExport>), AttachmentEndNotice>;

    /// Opens a device for an importer that had a device under this name before. `identity` was compared with
    /// [`ExporterServices::identity`]: the name still stands for that device, whatever lease the importer names.
    ///
    /// # Errors
    /// [`AttachmentEndNotice`]: why it cannot be opened.
    fn open_again(
        &mut self,
        now: Instant,
        number: u16,
        open: &OpenRequest,
        identity: ExportIdentity,
    ) -> Result<(u64, Box<dyn ServedExport>), AttachmentEndNotice> {
        let _ = identity;
        self.open(now, number, open)
    }

    /// The identity of the device that `open` names now; `None` if there is none, or it has no identity. An importer
    /// that had a device with an identity does not get one without.
    fn identity(&mut self, open: &OpenRequest) -> Option<ExportIdentity> {
        let _ = open;
        None
    }

    /// Whether the identity of the device that `open` names is found again after this process was started anew.
    fn is_lasting(&mut self, open: &OpenRequest) -> bool {
        let _ = open;
        false
    }

    /// The importer opens a disk next to overwrite it. If the same importer moved it away earlier, this notes durably
    /// that the importer may have it again, and still nobody else. Otherwise the disk is opened as any other.
    fn note_overwriting(&mut self, open: &OpenRequest) {
        let _ = open;
    }

    /// Notes durably what becomes of the disk that `open` opened under this lease and its importer moves.
    ///
    /// # Errors
    /// Why it is not noted.
    fn note_step(&mut self, open: &OpenRequest, lease: u64, step: DiskMoveStep) -> Result<(), String> {
        let _ = (open, lease, step);
        Err("nothing is noted here".to_owned())
    }

    /// A successor asks for a device that is to be handed over to it. `None`: it was not handed over yet; the session
    /// asks again when a device is handed over.
    ///
    /// # Errors
    /// [`AttachmentEndNotice`]: the successor will never get it.
    fn inherit(
        &mut self,
        now: Instant,
        number: u16,
        inherit: &SuccessorOpenRequest,
    ) -> Option<Result<InheritedDevice, AttachmentEndNotice>> {
        let _ = (now, number, inherit);
        Some(Err(AttachmentEndNotice {
            cause: AttachmentEndCause::Refused,
            message: "nothing is handed over here".to_owned(),
        }))
    }

    /// The read-only view that a successor gets of a device before it is handed over. `None`: no view, as for all but
    /// block devices.
    ///
    /// # Errors
    /// [`AttachmentEndNotice`]: the successor will never get it.
    fn show(
        &mut self,
        now: Instant,
        number: u16,
        inherit: &SuccessorOpenRequest,
    ) -> Option<Result<Box<dyn ServedExport>, AttachmentEndNotice>> {
        let _ = (now, number, inherit);
        None
    }

    /// Reserves what the importer asked for the device that `open` will open next; `path` is the measured path to it.
    ///
    /// # Errors
    /// The report, and the end with the reason in words. Nothing is reserved then.
    fn reserve(
        &mut self,
        open: &OpenRequest,
        reservation: &ReservationTerms,
        path: MeasuredPath,
    ) -> Result<ReservationReport, (ReservationReport, AttachmentEndNotice)> {
        let _ = (open, path);
        let refusal = ReservationDenial::Kind;
        let message = "nothing is reserved here".to_owned();
        Err((
            refusal.report(reservation.criticality, ReservationState::Refused),
            AttachmentEndNotice { cause: AttachmentEndCause::Reservation, message },
        ))
    }

    /// Releases a reservation whose device was not opened.
    fn unreserve(&mut self, open: &OpenRequest) {
        let _ = open;
    }

    /// Takes back what attachment `number` handed over, if the successor has not come yet; `None` otherwise.
    fn recall(&mut self, now: Instant, number: u16, open: &OpenRequest) -> Option<RecalledDevice> {
        let _ = (now, number, open);
        None
    }
}

/// The modules that importers may ask for, and their source of randomness.
pub struct AllowedModules {
    /// The modules that an exporter's half exists for, and that its owner allows.
    pub modules: ModuleAllowance,
    /// Fills bytes with unpredictable values.
    pub random: FillShared,
}

/// Fills bytes with unpredictable values; shared by all sessions.
pub type FillShared = Box<dyn Fn(&mut [u8]) + Send + Sync>;

/// An attachment of a snapshot that is not served here yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnservedAttachment {
    /// The number of the attachment in its session.
    pub number: u16,
    /// The request that opened it; its name is the one that the device has in lists.
    pub open: OpenRequest,
    /// The fencing number of its use, as the former process gave it.
    pub lease: u64,
    /// The identity of its device; `None` if it had none there.
    pub identity: Option<ExportIdentity>,
    /// What [`ServedExport::save`] wrote; `None` if the device cannot continue in another process.
    pub state: Option<SavedPart>,
    /// What [`ServedExport::save_modules`] wrote.
    pub modules: SavedPart,
    /// Set if it was handed over and waits for its successor.
    pub migration: Option<DeviceMigration>,
}
