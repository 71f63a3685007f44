//! # Where farbus touches what every operating system has
//!
//! **This crate is** the shell around links between hosts and around what a host remembers: [`link`] carries bytes,
//! [`trust`] keeps keys, paired hosts and records, and makes links encrypted by TLS and QUIC, [`discovery`] finds
//! hosts, [`local`] lets the processes of one owner ask each other, [`store`] opens files of frames and of results,
//! [`sys`] has what the operating system must give for that.
//!
//! **It may touch** files, sockets, threads, clocks and, in [`sys`], the kernel.
//!
//! **It never touches** a USB device, a disk, a mount or a scheduler: `io-linux` does, which is above this crate. Nor
//! does it touch the content of farbus's protocols.
//!
//! **Start reading at** `link/stream.rs`: a link is one type, encrypted or not. Then read `trust/links/tls.rs`.
//!
//! **Why** a crate apart from `io-linux`: a host with another operating system has the same links and the same trust.
//! For such a host [`sys`] is written again. The other modules still make calls of Unix, and a few of Linux (`eventfd`,
//! paths below `/proc`), so this crate does not compile elsewhere yet.

pub mod discovery;
#[cfg(test)]
#[path = "../../wire/tests/fuzzing/mod.rs"]
mod fuzzing;
pub mod link;
pub mod local;
pub mod saving;
pub mod store;
pub mod sys;
pub mod tally;
pub mod trust;
