//! Who may connect to the exporter, as whom, and how much of this process each peer may take.

pub mod encrypted;
pub mod listener;
pub mod local_users;
pub mod memory;
pub mod paired_host;
pub mod quota;
