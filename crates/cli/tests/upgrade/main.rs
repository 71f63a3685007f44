//! This version of farbus and the release before it with each other: sessions in both directions, a daemon that is
//! upgraded in use, state and configuration of the other release, commands to a process of the other release, JSON.
//!
//! `cargo xtask test --only upgrade` builds the previous release and names its program in `FARBUS_PREVIOUS`; without
//! that variable every test here says so and passes. The rules that these tests check are in `docs/upgrades.md`.

#[allow(dead_code, reason = "the tests of the command use the rest")]
#[path = "../command/harness.rs"]
mod harness;
mod hosts;
mod json;
#[path = "../command/own_network.rs"]
mod own_network;
#[path = "../command/processes.rs"]
mod processes;
mod restart;
mod sessions;
mod state;
