//! Reservations in the running system: what a device's user is promised of its bus, of this host's processors and of
//! the path to him (requirements R1, R2, R4, R6).
//!
//! | file | what it holds |
//! |---|---|
//! | [`carrier`] | what a device's endpoints can carry, and on which bus |
//! | [`processors`] | who has which part of which processor (Equation 1, a test of one processor) |
//! | [`ledger`] | who was admitted, what each has, and who gives way to whom |
//! | [`refusal`] | why something is not to be had, and how much of it is missing |
//! | [`congestion`] | what a path still carries, by what arrives |
//! | [`suspension`] | what holds the requests of a device that is suspended |
//!
//! | who comes | room for it | no room |
//! |---|---|---|
//! | high criticality | admitted | low criticality gives way, the last to come first; if that is not enough it is refused |
//! | low criticality | admitted | refused |
//! | low criticality that was suspended | admitted again, the first to come first | goes on waiting |
//!
//! Whoever is admitted and of high criticality stays so, whatever becomes of the path.

pub mod carrier;
pub mod congestion;
pub mod ledger;
pub mod processors;
pub mod refusal;
pub mod suspension;

pub use carrier::Carrier;
pub use farbus_wire::native::reserve::{CLAIMS_MAX, Claim, Criticality, Lack, Reservation, ReservationReport, State};
pub use ledger::{Asked, Cost, Ledger, News};
pub use processors::Processors;
pub use refusal::Refusal;
pub use suspension::{SuspendableDevice, Suspension};
