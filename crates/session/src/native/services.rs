//! What a session's exporter is offered by whoever has the devices, and what it may be told.

use farbus_model::{Identity, Instant};
use farbus_modules::Allowance;
use farbus_wire::native::control::{Cause, End, Inherit, Open};

use super::served::{Migration, Recalled, Served};
use crate::reserve::ledger::Path;
use crate::reserve::{Refusal, Reservation, ReservationReport, State};
use crate::snapshot::SavedPart;

/// A device that was handed over, in its successor's hands.
pub struct Inherited {
    /// The successor's lease.
    pub lease: u64,
    /// It.
    pub served: Box<dyn Served>,
    /// What came along.
    pub migration_state: Vec<u8>,
}

/// What an exporter offers to sessions.
pub trait Services {
    /// Opens a device for attachment `number`, and says under which lease.
    ///
    /// # Errors
    /// [`End`]: why not.
    fn open(&mut self, now: Instant, number: u16, open: &Open) -> Result<(u64, Box<dyn Served>), End>;

    /// The same for an importer that had a device under this name before. Its identity was compared with
    /// [`Services::identity`]: the name still stands for that device, whatever lease the importer names.
    ///
    /// # Errors
    /// [`End`]: why not.
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

    /// Which device `open` names now; `None` if there is none, or it has no identity. An importer that had a device
    /// with an identity is given none without.
    fn identity(&mut self, open: &Open) -> Option<Identity> {
        let _ = open;
        None
    }

    /// An successor asks for a device that is to be handed over to it. `None`: it was not yet, and is asked for again
    /// by the session when it looks for devices that were handed over to it.
    ///
    /// # Errors
    /// [`End`]: it never will.
    fn inherit(&mut self, now: Instant, number: u16, inherit: &Inherit) -> Option<Result<Inherited, End>> {
        let _ = (now, number, inherit);
        Some(Err(End { cause: Cause::Refused, message: "nothing is handed over here".to_owned() }))
    }

    /// What a successor may see of the device until it is his: it changes nothing. `None`: nothing, as of any but block
    /// devices.
    ///
    /// # Errors
    /// [`End`]: it never will be his.
    fn show(&mut self, now: Instant, number: u16, inherit: &Inherit) -> Option<Result<Box<dyn Served>, End>> {
        let _ = (now, number, inherit);
        None
    }

    /// Reserves what is asked for the device that is to be opened as `open` next, by an importer whose path was
    /// measured.
    ///
    /// # Errors
    /// How it stands, and the end that says why in words; nothing is reserved then.
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

    /// What was reserved so is not needed: its device was not opened.
    fn unreserve(&mut self, open: &Open) {
        let _ = open;
    }

    /// What attachment `number` handed over, of which nobody knows yet what becomes of it; `None`: that is known, or
    /// there is nothing.
    fn recall(&mut self, now: Instant, number: u16, open: &Open) -> Option<Recalled> {
        let _ = (now, number, open);
        None
    }
}

/// The modules that an importer may ask for, and where they get randomness from.
pub struct Allowed {
    /// Which.
    pub modules: Allowance,
    /// Fills bytes that nobody can guess.
    pub random: FillShared,
}

/// Fills bytes that nobody can guess, for all sessions at once.
pub type FillShared = Box<dyn Fn(&mut [u8]) + Send + Sync>;

/// An attachment of another process, which is yet to be served here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Left {
    /// Its number.
    pub number: u16,
    /// What was asked for; the name is the one that its device has in the lists.
    pub open: Open,
    /// Under which lease it is used.
    pub lease: u64,
    /// Which device it is; `None` if it had no identity there.
    pub identity: Option<Identity>,
    /// What [`Served::save`] wrote; none of what nobody can go on with.
    pub state: Option<SavedPart>,
    /// What [`Served::save_modules`] wrote.
    pub modules: SavedPart,
    /// It was handed over, and waits for its successor.
    pub migration: Option<Migration>,
}
