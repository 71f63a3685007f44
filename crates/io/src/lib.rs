//! # The only room with an outside
//!
//! **This crate is** where farbus meets the world: [`link`] carries bytes, [`store`] keeps blocks in files and block
//! devices, [`frontend`] shows a device to programs that know nothing of USB, [`usb`] takes real USB devices from this
//! machine, [`trust`] knows keys and whose they are, [`sys`] speaks to the kernel.
//!
//! **It may touch** the world: files, sockets, mounts, threads, the kernel's switches.
//!
//! **It never touches** a protocol's bytes nor a device's meaning: it moves blocks and descriptors for
//! rooms that understand them. Error numbers are spoken in [`sys`] and nowhere above it.
//!
//! **Start reading at** `store::FileStore`, the smallest way in, then `frontend::fuse::DiskMount`.
//!
//! **Why** one room: everything a test cannot make up is behind one door, so all other rooms run in a
//! simulator as they are.

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
