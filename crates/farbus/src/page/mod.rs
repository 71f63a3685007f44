//! What this user's processes share and attach, for a browser, a program and Prometheus: over HTTP, to the user alone.
//!
//! It shows what the processes answer on their control sockets. What it changes it changes by running farbus
//! (`api/actions.rs`). It is two processes, of which the one that speaks HTTP has no rights (`line`).

mod answers;
pub mod api;
mod body;
mod connection;
mod drawn;
mod forming;
mod guard;
mod html;
mod lab;
mod limits;
mod line;
mod metrics;
mod operation;
mod rates;
mod rights;
mod room;
mod secure;
mod server;
mod shell;
mod status;
mod view;

pub use lab::HOSTS_VERB;
pub use line::VERB;
pub use rights::{PageSettings, Place, Served, serve};
pub use server::run;
