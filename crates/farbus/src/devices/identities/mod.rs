//! The identity of each export: found by evidence in `devices.json`, or valid for this process only.
//!
//! | device | identity |
//! |---|---|
//! | has lasting evidence ([`DeviceEvidence`]) | the one in `devices.json` beside that evidence; a new one if there is none |
//! | has none, or the list cannot be used | derived from a secret of this process, which its replacement inherits |
//! | a device made of code | derived in the same way, from its description and its name |
//! | memory, or a scratch view | a new one each time: its contents end with it |
//!
//! An identity of the second kind is never that of another device by mistake, and is not found again after a restart.
//! The broker ([`crate::broker`]) identifies devices, because the confined process cannot reach the evidence.

pub mod exchanging;
mod finding;
pub mod labels;
pub mod naming;
mod plugged;
pub mod shared_now;

pub use finding::{
    DeviceIdentity, ExpectedImage, IdentityFinder, OnMedium, VIEW_BYTES_MAX, durability_of, evidence_at, moving_with,
    settle,
};
pub use plugged::KnownUsb;
