//! The claims on one device: its holders, the queue and the history; exclusive use (U13) or many readers (N6).
//!
//! Plain USB/IP has no queue: the only answer for a device in use is *busy*, and a client that wants to wait tries
//! again. So a refused claim is remembered, and a host that has asked at least [`TRIES_MIN`] times and keeps asking is
//! waiting. When the device comes free, it is kept for the host that has waited longest, as long as that host still
//! asks.
//!
//! | who asks | the device is | answer |
//! |---|---|---|
//! | any host | held in a way that excludes the new use ([`UseMode`]) | [`ClaimRefusal::Held`]; remembered |
//! | a host that the owner keeps out | free | [`ClaimRefusal::KeptOut`] until the time is over |
//! | any host | leased to another host ([`lease`]) | [`ClaimRefusal::Leased`]; remembered |
//! | any host | free, but another host has waited longer | [`ClaimRefusal::Waited`]; remembered |
//! | any host | free | granted |
//!
//! Time is an argument. Peers are told apart by host, because each try comes from another port.

pub mod bookings;
mod claiming;
pub mod lease;
mod leasing;
pub mod several;
mod uses;

pub use claiming::DeviceClaims;
pub use uses::{
    ClaimHolder, ClaimRefusal, HISTORY_MAX, PATIENCE, PastUse, QUEUE_MAX, QueuedHost, REASON_BYTES_MAX,
    RETURN_PATIENCE, TRIES_MIN, UseEnding, UseMode, host_of, shortened,
};
