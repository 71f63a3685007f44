//! How a client uses devices: over which transport, what it caches, what it fetches ahead.

pub mod ahead;
pub mod cache;
pub mod transport;
