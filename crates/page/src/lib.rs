//! # The page: what this user's processes share and attach, for a browser, a program and Prometheus
//!
//! **This crate is** `farbus page`: HTTP, to the user alone, of what the processes answer on their control sockets.
//! What it changes it changes by running farbus (`api/actions.rs`).
//!
//! **It may touch** sockets, threads and the runtime folder, through `io-net` and `io-linux`.
//!
//! **It never touches** a device, a session or another host's link: it knows what `control` says of them.
//!
//! **Start reading at** `line/mod.rs`: it is two processes, of which the one that speaks HTTP has no rights; then
//! `http/server.rs` (that one) and `rights/mod.rs` (the other).
//!
//! **Why** a crate: what it shows is what any program can read, by the same types and with no way around them.

mod api;
pub mod console_text;
#[cfg(test)]
#[path = "../../wire/tests/fuzzing/mod.rs"]
mod fuzzing;
mod http;
mod known;
mod limits;
mod line;
pub mod pictures;
mod rights;
mod shell;
mod view;

pub use api::{actions, table};
pub use http::server::run;
pub use known::lab::HOSTS_VERB;
pub use line::VERB;
pub use rights::{PageAddress, PageLocation, PageSettings, serve};
pub use view::bus_drawing;
