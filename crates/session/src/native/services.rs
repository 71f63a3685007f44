//! What an exporter's session needs from its owner: opening devices, migration, reservations.

use farbus_model::{Identity, Instant};
use farbus_modules::Allowance;
use farbus_wire::native::control::{Cause, End, Inherit, Open};
use farbus_wire::native::retire::Step;

use super::served::{Migration, Recalled, Served};
use crate::reserve::ledger::Path;
use crate::reserve::{Refusal, Reservation, ReservationReport, State};
use crate::snapshot::SavedPart;

/// A device that was handed over, ready for its successor.
pub struct Inherited {
    /// The successor's lease.
    pub lease: u64,
    /// The device.
    pub served: Box<dyn Served>,
    /// The migration state from the former importer.
    pub migration_state: Vec<u8>,
}

/// What the owner of an exporter's session provides.
pub trait Services {
    /// Opens a device for attachment `number`; returns its lease and the device.
    ///
    /// # Errors
    /// [`End`]: why it cannot be opened.
    fn open(&mut self, now: Instant, number: u16, open: &Open) -> Result<(u64, Box<dyn Served>), End>;

    /// Opens a device for an importer that had a device under this name before. `identity` was compared with
    /// [`Services::identity`]: the name still stands for that device, whatever lease the importer names.
    ///
    /// # Errors
    /// [`End`]: why it cannot be opened.
    fn open_again(
        &mut self,
        now: Instant,
        number: u16,
        open: &Open,
        identity: Identity,
    ) -> Result<(u64, Box<dyn Served>), End> {
        let _ = identity;
        self.open(now, number, open)
    }

    /// The identity of the device that `open` names now; `None` if there is none, or it has no identity. An importer
    /// that had a device with an identity does not get one without.
    fn identity(&mut self, open: &Open) -> Option<Identity> {
        let _ = open;
        None
    }

    /// Whether the identity of the device that `open` names is found again after this process was started anew.
    fn is_lasting(&mut self, open: &Open) -> bool {
        let _ = open;
        false
    }

    /// The importer opens a disk next to overwrite it. If the same importer moved it away earlier, this notes durably
    /// that the importer may have it again, and still nobody else. Otherwise the disk is opened as any other.
    fn note_overwriting(&mut self, open: &Open) {
        let _ = open;
    }

    /// Notes durably what becomes of the disk that `open` opened under this lease and its importer moves.
    ///
    /// # Errors
    /// Why it is not noted.
    fn note_step(&mut self, open: &Open, lease: u64, step: Step) -> Result<(), String> {
        let _ = (open, lease, step);
        Err("nothing is noted here".to_owned())
    }

    /// A successor asks for a device that is to be handed over to it. `None`: it was not handed over yet; the session
    /// asks again when a device is handed over.
    ///
    /// # Errors
    /// [`End`]: the successor will never get it.
    fn inherit(&mut self, now: Instant, number: u16, inherit: &Inherit) -> Option<Result<Inherited, End>> {
        let _ = (now, number, inherit);
        Some(Err(End { cause: Cause::Refused, message: "nothing is handed over here".to_owned() }))
    }

    /// The read-only view that a successor gets of a device before it is handed over. `None`: no view, as for all but
    /// block devices.
    ///
    /// # Errors
    /// [`End`]: the successor will never get it.
    fn show(&mut self, now: Instant, number: u16, inherit: &Inherit) -> Option<Result<Box<dyn Served>, End>> {
        let _ = (now, number, inherit);
        None
    }

    /// Reserves what the importer asked for the device that `open` will open next; `path` is the measured path to it.
    ///
    /// # Errors
    /// The report, and the end with the reason in words. Nothing is reserved then.
    fn reserve(
        &mut self,
        open: &Open,
        reservation: &Reservation,
        path: Path,
    ) -> Result<ReservationReport, (ReservationReport, End)> {
        let _ = (open, path);
        let refusal = Refusal::Kind;
        let message = "nothing is reserved here".to_owned();
        Err((refusal.report(reservation.criticality, State::Refused), End { cause: Cause::Reservation, message }))
    }

    /// Releases a reservation whose device was not opened.
    fn unreserve(&mut self, open: &Open) {
        let _ = open;
    }

    /// Takes back what attachment `number` handed over, if the successor has not come yet; `None` otherwise.
    fn recall(&mut self, now: Instant, number: u16, open: &Open) -> Option<Recalled> {
        let _ = (now, number, open);
        None
    }
}

/// The modules that importers may ask for, and their source of randomness.
pub struct Allowed {
    /// The modules.
    pub modules: Allowance,
    /// Fills bytes with unpredictable values.
    pub random: FillShared,
}

/// Fills bytes with unpredictable values; shared by all sessions.
pub type FillShared = Box<dyn Fn(&mut [u8]) + Send + Sync>;

/// An attachment of a snapshot that is not served here yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Left {
    /// Its number.
    pub number: u16,
    /// The request that opened it; its name is the one that the device has in lists.
    pub open: Open,
    /// Its lease.
    pub lease: u64,
    /// The identity of its device; `None` if it had none there.
    pub identity: Option<Identity>,
    /// What [`Served::save`] wrote; `None` if the device cannot continue in another process.
    pub state: Option<SavedPart>,
    /// What [`Served::save_modules`] wrote.
    pub modules: SavedPart,
    /// Set if it was handed over and waits for its successor.
    pub migration: Option<Migration>,
}
