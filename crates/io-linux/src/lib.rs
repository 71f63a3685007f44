//! # Where farbus touches what only Linux has
//!
//! **This crate is** the shell around devices: [`usb`] takes real USB devices of this machine, [`store`] keeps blocks
//! in files and block devices, [`frontend`] shows a device to programs that know nothing of USB, [`module`] runs
//! modules that are not code of farbus, [`evidence`] identifies devices, [`sys`] calls the kernel.
//!
//! **It may touch** files, sockets, mounts, threads and the kernel's switches.
//!
//! **It never touches** other hosts: links, keys and records are `io-net`'s, which this crate uses and which does not
//! know it. Nor does it touch the content of farbus's protocols or what devices do: it moves blocks and descriptors for
//! crates that do.
//!
//! **Start reading at** `store::FileStore`, the simplest part, then read `frontend::fuse::DiskMount`.
//!
//! **Why** a crate: a host with another operating system has none of this. What a test cannot simulate is here and in
//! `io-net`, so all other crates run unchanged in a simulator.

pub mod evidence;
pub mod frontend;
#[cfg(test)]
#[path = "../../wire/tests/fuzzing/mod.rs"]
mod fuzzing;
pub mod module;
mod mounts;
pub mod service;
pub mod store;
pub mod sys;
pub mod usb;
