//! # The directory: which hosts have which devices, as keys of an etcd
//!
//! **This crate is** what farbus says to an etcd and hears from it: the keys and records ([`key`], [`record`]), etcd's
//! JSON gateway as messages ([`gateway`]) in HTTP/1.1 ([`http`]), and two state machines. A [`HostPublisher`] keeps
//! what one host says of itself and its devices true there; a [`DirectoryView`] follows what all hosts say.
//!
//! **It may touch** bytes and moments.
//!
//! **It never touches** a socket, a file, a thread or a clock.
//!
//! **Start reading at** [`HostPublisher::poll`], whose order of steps is the protocol; then [`DirectoryView::poll`].
//!
//! **Why** so: what a directory says is a claim. It can hide a device and it can lie about one, but it gives nobody
//! access: hosts trust keys, and a device's exporter decides who has it. So nothing here decides anything, and all of
//! it runs without an etcd.

pub mod gateway;
pub mod http;
pub mod key;
pub mod pace;
pub mod publisher;
pub mod record;
mod room;
pub mod trouble;
pub mod view;

pub use publisher::HostPublisher;
pub use trouble::{DirectoryFailure, DirectoryFailureKind};
pub use view::DirectoryView;
