//! This crate is where farbus is timed: every speed target, against its peers and the machine's
//! limits, as ratios within one run.
//!
//! It may touch everything outside: processes, sockets, clocks, `/proc`. It never shares code with
//! `farbus-wire`, because its load generator is also a witness. It never touches the papers' own report, which
//! `farbus-papers` makes of [`Measurement`]s. Start reading at [`benchmarks`]; the journey of
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
mod measurement;
mod net;
mod peers;
mod placement;
mod probe;
mod report;
mod stats;
mod svg;
mod usbip;

pub use command::main;
pub use measurement::{Measurement, MeasurementPlan};
pub use report::{BenchmarkFinding, MeasuredQuantity, figure, machine};
pub use stats::{SampleSpread, SpeedTarget};
pub use svg::{ChartLine, ChartPanel, LineChart, escaped};

/// Runs this process as a benchmark's peer or as the program of `farbus run`, if its arguments say so: benchmarks
/// start the program that they are in.
pub fn serve_if_called_as_peer() -> Option<std::process::ExitCode> {
    let verb = std::env::args().nth(1)?;
    (verb == "peer" || verb == peers::inside::VERB).then(main)
}
