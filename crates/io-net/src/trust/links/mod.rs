//! TLS and QUIC between hosts that know each other's keys, how many strangers are served meanwhile, and TLS to a server
//! that an authority vouches for.

pub mod admission;
pub mod authority;
pub mod quic;
pub mod tls;
