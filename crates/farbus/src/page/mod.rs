//! What this user's processes share and attach, for a browser, a program and Prometheus: over HTTP, to the user alone.
//!
//! It shows what the processes answer on their control sockets. What it changes it changes by running farbus
//! (`api/actions.rs`).

mod answers;
pub mod api;
mod body;
mod connection;
mod guard;
mod html;
mod limits;
mod metrics;
mod rates;
mod server;
mod shell;
mod status;
mod view;

pub use server::{Place, serve};
