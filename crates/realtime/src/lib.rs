//! This crate is the bus as numbers: what a USB bus can carry, worked out from the constants of the specification.
//! That is the bandwidth tables of every transfer type at every speed and what Bulk-Only mass storage adds to them, how
//! long a packet takes at the worst, which endpoint gets which interval of the bus, which virtual CPUs a processor
//! carries and what a path promises end to end, and how hosts are joined by USB.
//!
//! It may touch numbers, and nothing else: every function is pure, takes plain values and returns plain data.
//!
//! It never touches clocks, devices, threads, text for people (the command line renders what this crate returns), or
//! any other crate: it has no dependencies at all, not even `model`, so it brings its own [`BusSpeed`] and
//! [`TransferKind`].
//!
//! Start reading at [`bandwidth::table`] for the tables and [`bandwidth::bulk_only`] for mass storage,
//! at [`transfer::PacketShape`] for the time of a packet, at [`schedule::plan`] for a schedule that is admitted or
//! refused, at [`vcpu::admit`] and [`pipe::derive`] for processors and pipes, at [`timetable::ReleaseTimetable`] for
//! when a pipe runs, at [`topology::plan`] for hosts that are joined by USB.
//!
//! Why so: admission and planning must be decidable before a device exists, on any machine, and must come out the same
//! in a test, in the simulator and in the daemon. Numbers that depend on nothing do. No table entry is typed in: each
//! is derived from the overheads that the specification states, and `tests/` holds them against what was published.

#![forbid(unsafe_code)]

pub mod bandwidth;
mod bus;
pub mod pipe;
pub mod schedule;
pub mod timetable;
pub mod topology;
pub mod transfer;
pub mod vcpu;

pub use bus::{BusSpeed, IntervalCapacity, IntervalKind, TransferKind};
