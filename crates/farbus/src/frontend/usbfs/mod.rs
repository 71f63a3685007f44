//! Shows devices to one program, and to those that it starts, where Linux shows USB devices: below `/sys/bus/usb` and
//! `/dev/bus/usb`. It needs no USB in the kernel and no rights.
//!
//! | process | what it does |
//! |---|---|
//! | `farbus run` | opens the devices, starts the program, and serves the tree of files until the program ends |
//! | `farbus run-events` | is in a network namespace where events are sent, and makes the programs' sockets for them |
//! | the program | first makes mounts of its own ([`inside`]), in which the tree is mounted, and then becomes the program |
//!
//! The first is the parent of the second: so the kernel lets it read and write the program's memory, as usbfs does
//! within the kernel. Nobody else sees the mounts, and they end with the last process that has them.
//!
//! | file | what it holds |
//! |---|---|
//! | `inside.rs` | the program's process, before it is the program |
//! | `program.rs` | what can be known of the program before it runs |
//! | `start.rs` | starts that process, and waits until it is the program |
//! | `bus.rs` | where the devices are: buses and their root hubs |
//! | `tree.rs` | the tree of files |
//! | `served.rs` | one device of the tree |
//! | `servers.rs` | servers that a program would ask instead of the devices |
//! | `remaining.rs` | processes that the program leaves behind |
//! | `slow_start.rs` | says what is waited for before the program begins |
//! | `search.rs` | a device that is gone, until it is there again |
//! | `events.rs` | tells programs what comes and goes |
//! | `named.rs` | a run that others join |
//! | `error.rs` | why a program did not run |
//! | `control.rs` | what its owner asks: the status, and a swap of a device for its twin |
//! | `engine.rs` | answers the kernel's requests: one thread, all devices |
//! | `polls.rs` | programs that wait in `poll(2)` |
//! | `follow.rs` | the processor on which the server runs |

mod bus;
mod control;
mod engine;
mod error;
mod events;
mod follow;
mod inside;
mod named;
mod polls;
mod program;
mod remaining;
mod search;
mod served;
mod servers;
mod slow_start;
mod start;
mod tree;

pub use bus::FarDeviceSource;
pub use error::RunError;
pub use events::{SOURCE_VERB, be_source};
pub use inside::{ProgramProcessSetup, become_program};
pub use named::{join, name_from};
pub use remaining::RemainingProcess;
pub use start::{INSIDE_VERB, RunOptions, RunOutcome, run};
