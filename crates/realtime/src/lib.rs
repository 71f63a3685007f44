//! This crate is the bus as numbers: what a USB bus can carry, worked out from the constants of the specification.
//! That is the bandwidth tables of every transfer type at every speed and what Bulk-Only mass storage adds to them, how
//! long a packet takes at the worst, which endpoint gets which interval of the bus, which virtual CPUs a processor
//! carries and what a path promises end to end, and how hosts are joined by USB.
//!
//! It may touch numbers, and nothing else: every function is pure, takes plain values and returns plain data.
//!
//! It never touches clocks, devices, threads, text for people (the command line renders what this room returns), or any
//! other crate: it has no dependencies at all, the ground floor included, so it brings its own [`BusSpeed`] and
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
//!
//! # What `farbus plan bandwidth` should print
//!
//! One block a table, in the order of [`BusSpeed::ALL`] and, within a speed, of [`TransferKind::ALL`]; numbers
//! right-aligned with two spaces between columns; no rounding beyond what the rows already carry (a share of `0` reads
//! `<1%`). A line of title, one that says how long the interval is, one that says where the overhead comes from, the
//! heads, the rows, the bare bus as `max`, then the notes, broken where a screen ends. The full-speed bulk block, to
//! the letter:
//!
//! ```text
//! Full speed, bulk (USB 2.0 5.8.4, Table 5-9)
//! frame of 1000 us, 1500 bytes
//! 13 bytes of overhead: 3 SYNC, 3 PID, 2 endpoint + CRC, 2 data CRC, 3 interpacket delay
//!
//!   payload  bandwidth max  share of  transfers      bytes  useful bytes
//!     bytes        bytes/s     frame        max  remaining       a frame
//!         1         107000        1%        107          2           107
//!         2         200000        1%        100          0           200
//!         4         352000        1%         88          4           352
//!         8         568000        1%         71          9           568
//!        16         816000        2%         51         21           816
//!        32        1056000        3%         33         15          1056
//!        64        1216000        5%         19         37          1216
//!       max        1500000                                         1500
//! note: the 2008 paper prints 351 useful bytes in the 4-byte row, a misprint: 88 transfers of 4 bytes are 352. …
//! ```
//!
//! A combination that does not exist is one line, `Low speed, bulk: does not exist (USB 2.0 5.8.3): …`, from
//! [`bandwidth::UnsupportedTransferType`]. After the last block come [`bandwidth::ASSUMPTIONS`], one line each, and the Bulk-Only block:
//!
//! ```text
//! Bulk-Only mass storage: 31 bytes of command and 13 of status around every block
//!
//!     block  overhead  full speed max  high speed max
//!     bytes                   bytes/s         bytes/s
//!       512      8.6%         1088000        40960000
//!      8192      0.5%         1206573        50412307
//! ```
//!
//! where the overhead is `overhead_ppm / 10000` with one digit behind the point. `--json` carries the same names as the
//! fields, units and all.

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
