//! What is offered, on this machine and elsewhere, without anybody naming it.

pub mod everywhere;
pub mod local_shares;
