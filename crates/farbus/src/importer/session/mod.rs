//! The importing end of a session: links come and go while a device stays.

pub mod bare;
pub mod connection;
pub mod dialer;
pub mod distance;
pub mod latency;
pub mod latency_history;
pub mod status;
