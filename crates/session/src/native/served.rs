//! What every class's half of an exporter does.

use std::time::Duration;

use farbus_model::{BufferPool, Command, CommandError, Instant, Readiness};
use farbus_wire::native::control::{Credit, End, MIGRATION_STATE_BYTES_MAX};
use farbus_wire::native::{Arrived, Lanes};

use crate::Reject;
use crate::snapshot::{Reader, Writer};

/// A device of ours that an attachment serves: the class's own half of an exporter (requirement N1: connect, receive,
/// transmit, disconnect). A new class is one more of these; nothing else changes.
pub trait Served: Send {
    /// What may be in flight.
    fn credit(&self) -> Credit;

    /// Bytes of data of requests that are not answered: what it was sent, and what it may answer.
    fn asked_bytes(&self) -> usize {
        0
    }

    /// The most that its answers, and what it says by itself, may have waiting for the link.
    fn answers_bytes_max(&self) -> usize {
        self.credit().bytes as usize
    }

    /// It may have something to say by itself, which waits until no more than so many bytes wait for the link.
    fn room_wanted(&self) -> Option<usize> {
        None
    }

    /// What the device is, in its class's words.
    fn description(&self) -> Vec<u8>;

    /// Whether that is known. Who opens one of which it is not waits until it is, or is refused what
    /// [`Served::poll_end`] says.
    fn is_ready(&self) -> bool {
        true
    }

    /// A request, more of its data, or its withdrawal arrived. What is to be said goes to `lanes`.
    ///
    /// # Errors
    /// [`Reject`]: the importer broke the protocol; the session is over.
    fn handle_arrived(&mut self, now: Instant, arrived: Arrived, lanes: &mut Lanes) -> Result<(), Reject>;

    /// Something may have happened to what [`Served::readiness`] stands for, or the moment of [`Served::poll_timeout`]
    /// come.
    fn handle_ready(&mut self, now: Instant, lanes: &mut Lanes);

    /// When [`Served::handle_ready`] wants to be called, if at all.
    fn poll_timeout(&self) -> Option<Instant>;

    /// What to wait on besides the link.
    fn readiness(&self) -> Option<&Readiness>;

    /// Whether it has nothing to say before it is asked something, or its moment comes.
    fn is_idle(&self) -> bool {
        false
    }

    /// The owner asks something of the device.
    ///
    /// # Errors
    /// [`CommandError`] when the device does not know it or refuses.
    fn command(&mut self, now: Instant, command: &Command, lanes: &mut Lanes) -> Result<(), CommandError> {
        let _ = (now, lanes);
        Err(CommandError::unknown(command))
    }

    /// Where it takes buffers from, if it does. The session lends it its own, to which what was sent comes back.
    fn pool_mut(&mut self) -> Option<&mut BufferPool> {
        None
    }

    /// Why it is of no use any more, if it is.
    fn poll_end(&mut self) -> Option<End>;

    /// The importer hands the device over as it is: nothing is reset. What is in flight is withdrawn; its importer has
    /// waited for what it wants answered. Says whether it waits for its successor now. A class that knows no such thing
    /// ends.
    fn hand_over(self: Box<Self>, now: Instant, migration: Migration) -> bool {
        let _ = migration;
        self.finish(now);
        false
    }

    /// The attachment is over: everything in flight is withdrawn, and the device given back.
    fn finish(self: Box<Self>, now: Instant);

    /// Another process is to go on with it: what would wait for ever is taken back from the device, as if it had not
    /// got there yet.
    fn come_to_rest(&mut self, now: Instant, lanes: &mut Lanes) {
        let _ = (now, lanes);
    }

    /// Whether the device has nothing of the importer's.
    fn is_at_rest(&self) -> bool {
        true
    }

    /// Writes down, at rest, what another process needs to go on. A class that knows no such thing ends there.
    ///
    /// # Errors
    /// [`Unmovable`].
    fn save(&self, to: &mut Writer) -> Result<(), Unmovable> {
        let _ = to;
        Err(Unmovable)
    }

    /// The same of what it goes through; nothing without modules.
    ///
    /// # Errors
    /// [`Unmovable`]: one of them cannot go on elsewhere.
    fn save_modules(&self, to: &mut Writer) -> Result<(), Unmovable> {
        let _ = to;
        Ok(())
    }

    /// It is as another process wrote it down, over a device that is new here; [`Served::go_on`] begins. One that
    /// cannot be is of no more use than to be finished.
    ///
    /// # Errors
    /// [`Reject`]: none can have stood so.
    fn restore(&mut self, now: Instant, from: &mut Reader<'_>) -> Result<(), Reject> {
        let _ = (now, from);
        Err(Reject::new("class", 0, "it is one that can go on in another process"))
    }

    /// It begins in another process, or stays here after all: what was taken back goes to the device again.
    fn go_on(&mut self, now: Instant, lanes: &mut Lanes) {
        let _ = (now, lanes);
    }

    /// Ends the attachment without touching the device, which another process has now.
    fn leave(self: Box<Self>, now: Instant) {
        self.finish(now);
    }
}

/// To whom a device is handed over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Migration {
    /// The key of the host that goes on with it; zeros for one without.
    pub successor: [u8; 32],
    /// What that host is given along with it.
    pub migration_state: Vec<u8>,
    /// How long it waits for that host; none: as long as is usual there.
    pub left: Option<Duration>,
}

/// A device that was handed over and that nobody has fetched, in its importer's hands again: another process is to wait
/// for its successor.
pub struct Recalled {
    /// The lease under which it was handed over.
    pub lease: u64,
    /// The exporter's end of the attachment, as it was before the handover.
    pub served: Box<dyn Served>,
    /// To whom it goes.
    pub migration: Migration,
}

impl Migration {
    pub(super) fn restore(from: &mut Reader<'_>) -> Result<Self, Reject> {
        let successor = from.take(32, "successor")?.try_into().expect("32 bytes");
        let (migration_state, ms) = (from.bytes("migration state")?.to_vec(), from.u64("time left")?);
        if migration_state.len() > MIGRATION_STATE_BYTES_MAX || ms > u32::MAX.into() {
            return Err(Reject::new(
                "migration state",
                migration_state.len() as u64,
                "migration state has 16 MiB at most, and waits some seconds",
            ));
        }
        Ok(Self { successor, migration_state, left: Some(Duration::from_millis(ms)) })
    }
}

/// A device that no other process can go on with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unmovable;
