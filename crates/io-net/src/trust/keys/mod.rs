//! A host's key and its certificate, names of hosts, and the exchange by which two keys are made known to each other.

pub(super) mod fingerprint;
pub mod identity;
pub mod name;
pub mod pake;
pub mod provider;
pub mod random;
