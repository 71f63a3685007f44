//! What both ends of a link use: the links of a session and their status, greetings, counters, and the modules that
//! data passes through.
//!
//! Exporter and importer use this folder in the same way; it does not know which end it serves.

pub mod greeting;
pub mod link_set;
pub mod meters;
pub mod modules;
pub mod status;
