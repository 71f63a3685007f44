//! What a client may be told about how devices are used: over which transport, what is cached, what is asked ahead.

pub mod ahead;
pub mod cache;
pub mod transport;
