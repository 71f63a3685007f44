//! Which device each export is: its identity, found by evidence in `devices.json`, or good for this process alone.
//!
//! | device | identity |
//! |---|---|
//! | has lasting evidence ([`Evidence`]) | the one in `devices.json` beside that evidence; a new one if there is none |
//! | has none, or the list cannot be used | derived from a secret of this process, which a process that takes its place inherits |
//! | a device made of code | the same, from what it is and what it is called |
//! | memory, or a scratch view | a new one each time: what it holds ends with it |
//!
//! An identity of the second kind never is that of another device by mistake, and is not found again after a restart.
//! The half of farbus that keeps its rights does this ([`crate::broker`]): evidence is out of reach for the other one.

pub mod exchanging;
mod finding;
pub mod labels;
pub mod naming;
mod plugged;
pub mod shared_now;

pub use finding::{Identified, Identities, OnMedium, VIEW_BYTES_MAX, evidence_at, moving_with, settle};
pub use plugged::KnownUsb;
