//! # Where farbus touches the operating system
//!
//! [`link`] carries bytes, [`store`] keeps blocks in files and block devices, [`frontend`] shows a device to programs
//! that know nothing of USB, [`usb`] takes real USB devices of this machine, [`trust`] keeps keys and paired hosts,
//! [`sys`] calls the kernel.
//!
//! This crate may use files, sockets, mounts, threads and the kernel's switches. It does not parse farbus's protocols
//! and does not know what devices do: it moves blocks and descriptors for crates that do. Error numbers are used in
//! [`sys`] and nowhere else.
//!
//! Start reading at `store::FileStore`, the simplest part, then `frontend::fuse::DiskMount`.
//!
//! Everything that a test cannot simulate is in one crate, so that all other crates run in a simulator unchanged.

pub mod discovery;
pub mod evidence;
pub mod frontend;
pub mod link;
pub mod module;
pub mod saving;
pub mod service;
pub mod store;
pub mod sys;
pub mod tally;
pub mod trust;
pub mod usb;
