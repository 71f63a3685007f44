//! Sessions of the exporter: one thread a session, which owns its engine and outlives its links.

pub mod engine;
pub mod entry;
pub mod priority;
pub mod provider;
pub mod saved;
pub mod table;
pub mod thread_time;
pub mod threads;
