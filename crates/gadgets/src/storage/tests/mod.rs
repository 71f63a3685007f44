//! The disk through the device contract, as a host would drive it.

mod commands;
mod disk;
mod durability;
mod events;
mod host;
mod pieces;
mod sizes;
mod thirteen_cases;
mod transport;
