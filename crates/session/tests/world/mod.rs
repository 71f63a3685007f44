//! Parts of session tests: a client that writes frames by hand and checks every answer ([`loopback`]), a device whose
//! completions the test controls ([`scripted`]), an exporter in front of an exporter ([`relay`]), and whole sessions,
//! played ([`talk`]) and recorded ([`transcript`], [`pcap`]).

#![allow(dead_code, unused_imports, reason = "every test takes what it needs")]

pub mod loopback;
pub mod pcap;
pub mod relay;
pub mod scripted;
pub mod talk;
pub mod transcript;

#[path = "../../../wire/tests/peer/mod.rs"]
pub mod peer;

pub use loopback::{Loopback, Shelf, record};
pub use relay::{Relay, remote};
pub use scripted::{Manners, Scripted};
