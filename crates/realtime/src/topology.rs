//! Hosts joined by USB: which cable is a debug-capability link and which needs a bridge device (section 4 of West,
//! Golchin and Njavro, 2023), and when each host enables and enumerates ([`bring_up`]). R3.
//!
//! A host has one debug port (one debug capability per host controller), so it is the target of at most one link and
//! the debug host of any number. Every further cable takes a bridge, a device with two ends that costs money and power.

pub mod bring_up;
mod links;
pub mod party;

pub use links::{CABLES_MAX, HOSTS_MAX, HostTopology, NetworkPattern, TopologyError, TopologyLink, plan};
