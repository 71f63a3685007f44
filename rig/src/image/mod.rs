//! The parts of a guest: the kernel, its modules, and a root file system in memory.

pub mod cpio;
pub mod kernel;
pub mod libraries;
pub mod modules;
pub mod ours;
pub mod root;
pub mod testusb;
