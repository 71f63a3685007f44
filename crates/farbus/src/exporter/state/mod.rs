//! The shared objects of the exporter. Each owns one thing and its lock; `shared` has the table of the lock order.

pub mod lease_limits;
pub mod lease_store;
pub mod ledger;
pub mod note_book;
pub mod permissions;
pub mod predecessor;
pub mod registry;
pub mod reservations;
pub mod retirements;
pub mod shared;
pub mod trace;
