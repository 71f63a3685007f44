//! This crate is where farbus is timed: every speed target, against its peers and the machine's
//! limits, as ratios within one run.
//!
//! It may touch everything outside: processes, sockets, clocks, `/proc`. It never shares code with
//! `farbus-wire`, because its load generator is also a witness. Start reading at [`benchmarks`]; the journey of
//! a figure is [`load`] (one side under load), [`contest`] (sides in turns), [`report`] (held against
//! its target). Why so: absolute figures of a shared machine say little, ratios of interleaved
//! rounds say what is asked.

mod against;
mod benchmarks;
mod command;
mod compare;
mod contest;
mod flame;
mod frames;
mod lab;
mod late;
mod load;
mod net;
mod peers;
mod placement;
mod probe;
mod report;
mod stats;
mod svg;
mod usbip;

pub use command::main;
