//! The rig: farbus against real Linux kernels, in virtual machines.
//!
//! **This crate is** a small laboratory. It boots Debian's stock kernel in QEMU within seconds, gives it a
//! root file system made on the spot, runs a shell script as the only work of that machine, and judges what
//! came out. The cases in [`cases`] are the proof that an unmodified kernel takes a farbus device for real.
//!
//! **It may touch** the machine it runs on: packages, processes, loopback sockets, files below the cargo
//! target folder.
//!
//! **It never touches** another room's code: farbus is a program here, given by its path, spoken to over its
//! command line and the wire, as a user would; and so are the strangers that it meets in [`peers`].
//!
//! **Start reading at** [`cases::all`] for what is proved, [`lab::CaseEnvironment`] for the bench a case works at,
//! [`machine::RunningMachine`] for a running machine, [`pair::MachinePair`] for two of them on a cable, [`image`] for what is inside,
//! [`interop`] for who met whom in a case, [`conform`] for who passes what of the conformance kit.
//!
//! **Why** machines: those that build farbus have no USB in their own kernel, and the kernels that matter are
//! our users', not ours. Emulation (`-accel tcg`, one processor) needs no rights and no luck; booting the
//! uncompressed kernel through PVH on a microvm costs two to three seconds, so every case has a fresh kernel
//! and none can spoil the next.

pub mod cases;
pub mod conform;
pub mod disk;
pub mod error;
pub mod farbus;
pub mod hosts;
pub mod image;
pub mod interop;
pub mod lab;
pub mod machine;
mod monitor;
pub mod pair;
pub mod peers;
pub mod prerequisites;
pub mod record;
pub mod run;
pub mod smartcard;
pub mod tool;
pub mod wire;

pub use error::{Result, RigError};
