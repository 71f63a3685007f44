//! Virtual CPUs: time-budgeted servers for tasks and for the bottom halves of interrupts, and the test that admits them
//! (Equation 1 of West, Golchin and Njavro, 2023). R4.
//!
//! A task runs on a [`SporadicServer`] (Main VCPU), a bottom half on a [`InheritingServer`] (I/O VCPU). Priorities are
//! rate-monotonic: the shorter period goes first. The servers read no clock: the caller says when something happened,
//! in nanoseconds of one monotonic clock, never backwards.

mod admission;
mod demand;
mod inheriting;
mod reserve;
mod sporadic;

pub use admission::{VcpuLoad, VcpuOverload, admit};
pub use demand::DemandMeter;
pub use inheriting::InheritingServer;
pub use reserve::{BudgetOverrun, VcpuReserve};
pub use sporadic::{REPLENISHMENTS_MAX, SporadicServer};
