//! # Where farbus touches the operating system
//!
//! **This crate is** the crate of all system calls: [`link`] carries bytes, [`store`] keeps blocks in files and block
//! devices, [`frontend`] shows a device to programs that know nothing of USB, [`usb`] takes real USB devices of this
//! machine, [`trust`] keeps keys and paired hosts, [`sys`] calls the kernel.
//!
//! **It may touch** files, sockets, mounts, threads and the kernel's switches.
//!
//! **It never touches** the content of farbus's protocols, nor what devices do: it moves blocks and descriptors for
//! crates that do. Error numbers are used in [`sys`] and nowhere else.
//!
//! **Start reading at** `store::FileStore`, the simplest part, then read `frontend::fuse::DiskMount`.
//!
//! **Why** one crate: everything that a test cannot simulate is here, so all other crates run in a simulator unchanged.

pub mod discovery;
pub mod evidence;
pub mod frontend;
#[cfg(test)]
#[path = "../../wire/tests/fuzzing/mod.rs"]
mod fuzzing;
pub mod link;
pub mod local;
pub mod module;
mod mounts;
pub mod saving;
pub mod service;
pub mod store;
pub mod sys;
pub mod tally;
pub mod trust;
pub mod usb;
