//! Finds what is offered, on this machine and elsewhere, without being given a host.

pub mod each;
pub mod everywhere;
pub mod local_shares;
