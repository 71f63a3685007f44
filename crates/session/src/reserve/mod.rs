//! Reservations: what a device's user is promised of its bus, of this host's processors and of the path to the importer
//! (requirements R1, R2, R4, R6).
//!
//! | file | what it holds |
//! |---|---|
//! | [`carrier`] | what a device's endpoints can carry, and on which bus |
//! | [`processors`] | who has which part of which processor (Equation 1, a test of one processor) |
//! | [`ledger`] | which reservations are admitted, what each takes, and which are suspended for others |
//! | [`refusal`] | why a reservation is refused, and how much is missing |
//! | [`congestion`] | what a path can still carry, from what arrives |
//! | [`suspension`] | holds the requests of a suspended device |
//!
//! | new reservation | with room | without room |
//! |---|---|---|
//! | high criticality | admitted | reservations of low criticality are suspended, the latest first; if that is not enough it is refused |
//! | low criticality | admitted | refused |
//! | low criticality, suspended earlier | admitted again, the oldest first | remains suspended |
//!
//! An admitted reservation of high criticality stays admitted, even if the path becomes slower.

pub mod carrier;
pub mod congestion;
pub mod ledger;
pub mod processors;
pub mod refusal;
pub mod suspension;

pub use carrier::DeviceBusProfile;
pub use farbus_wire::native::reserve::{
    CLAIMS_MAX, EndpointBandwidth, ReservationCriticality, ReservationReport, ReservationState, ReservationTerms,
    ScarceResource, ThreadBudget, ThreadTime,
};
pub use ledger::{HostReservationLedger, LedgerRequest, ReservationChange, ServingCost};
pub use processors::HostProcessors;
pub use refusal::ReservationDenial;
pub use suspension::{SuspendableDevice, SuspensionSwitch};
