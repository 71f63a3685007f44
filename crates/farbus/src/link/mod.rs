//! What both ends of a link have: the links of a session and how they stand, greetings, counters, and the modules that
//! data pass through.
//!
//! Exporter and importer use it alike; which end it serves it does not know.

pub mod greeting;
pub mod link_set;
pub mod meters;
pub mod modules;
pub mod status;
