//! The importing end of a session: links come and go below a device that stays.

pub mod bare;
pub mod connection;
pub mod distance;
pub mod latency;
pub mod status;
