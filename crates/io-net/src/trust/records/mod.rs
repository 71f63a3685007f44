//! What outlives a process, a file each: paired hosts, devices and what is said of them, leases, attachments, and what
//! was done.

pub mod attached;
pub mod audit;
pub mod audit_reading;
pub mod devices;
pub mod lease_count;
pub mod leases;
pub mod notes;
pub mod peers;
