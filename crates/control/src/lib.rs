//! # Control: what farbus's processes tell each other and the world
//!
//! **This crate is** everything that a process of farbus says of itself in JSON, as types: on its control socket
//! (docs/control.md), with `--json`, on the page's REST and to paired hosts: the status of devices, attachments, pipes,
//! processes and daemons, failures, ids and notes. And how people write the address of a host.
//!
//! **It may touch** its own values, and serde.
//!
//! **It never touches** a socket, a file, a thread or a clock, nor what the values are taken from: `farbus` fills them.
//!
//! **Start reading at** [`process`], whose types hold the others; then [`device`] and [`attachment`].
//!
//! **Why** a crate: a process that says something and one that reads it use one type, and neither the other's
//! strings. It changes by addition only: a field that an earlier release does not send has a default, a field or word
//! that this release does not know is passed over. The control protocol's documents are made of the types and their
//! docstrings (`reference`, feature `schema`).

pub mod attachment;
pub mod daemon;
pub mod descriptors;
pub mod device;
pub mod event;
pub mod failure;
pub mod fingerprint;
pub mod host_address;
pub mod identity;
pub mod lease;
pub mod notes;
pub mod peer;
pub mod pipe;
pub mod process;
pub mod question;
#[cfg(feature = "schema")]
pub mod reference;
pub mod reservation;
#[cfg(feature = "schema")]
pub mod schema;
pub mod session;
pub mod share;
pub mod swap;
pub mod topology;
pub mod units;
