//! The disk through the device contract, as a host would drive it.

mod commands;
pub(super) mod disk;
mod durability;
mod events;
mod fuzz;
mod host;
mod moved;
mod pieces;
mod property;
mod sizes;
mod thirteen_cases;
mod transport;
