//! # Tuned pipes: a device's data by a deadline
//!
//! **This crate is** the `tpipe` of West, Golchin and Njavro, "Real-Time USB Networking and Device I/O" (2023), section
//! 5, on Linux: a function that runs once a period with a promised execution time, at one end of one channel of a
//! device's endpoint, on this host or another. The requested quality of service determines its budget and period
//! (Little's law), whether the endpoint and a processor can carry it (Equation 1), the buffers, and the worst delay of
//! a message (as Equations 9 and 10, for threads that look once a period). The [`Report`] compares what was promised
//! with what happened.
//!
//! **It may touch** the scheduler, threads and the clock.
//!
//! **It never touches** a protocol: it drives a device by its requests, as a host does.
//!
//! **Start reading at** [`tpipe`]; a message passes `Receiver::turn` in `endpoint.rs`, then the loop in `pipe.rs`.
//!
//! **Why** a crate: it is tied to no front end, and a program of one's own uses it as `farbus pipe` does.
//!
//! Everything runs by the clock and no thread wakes another, because a thread that is woken is as late as the thread
//! that wakes it. Two periodic threads and a buffer between them have a bound that is the sum of theirs. They share
//! only two locks, held for a copy ([`PiLock`](farbus_io_linux::sys::pi_lock::PiLock): its owner runs at the priority
//! of the most urgent thread that waits for it).
//!
//! | of the paper | here |
//! |---|---|
//! | Main VCPU of a pipe | its thread under `SCHED_DEADLINE`, else `SCHED_FIFO`, else a warning |
//! | I/O VCPU and receiving thread of an endpoint | one thread: what the kernel did before it belongs to no process |
//! | VCPUs of one processor | [`ProcessorPool`]: all together, or each a cpuset of its own |

mod bus;
pub mod can;
mod codec;
mod endpoint;
mod error;
mod far;
mod inlet;
pub mod job;
mod lag;
mod opening;
mod pace;
mod path;
mod pipe;
mod processors;
mod ring;
mod unfit;
mod way;

pub use farbus::common::processor_leases::ProcessorAdmission;
pub use farbus_control::pipe::{PipeGrant as Granted, PipeJobs as Jobs, PipeReport as Report};
pub use farbus_io_linux::sys::pi_lock::PiLock;
/// The scheduler and the clock, for threads beside pipes.
pub use farbus_io_linux::sys::scheduling;
pub use farbus_realtime::pipe::{PathSegment, PipeQuality, PipeRefusal, worst_ns};
pub use farbus_realtime::timetable::ClockJump;
pub use farbus_realtime::vcpu::{VcpuOverload, VcpuReserve};

pub use bus::ChannelBus;
pub use codec::{ChannelCodec, MessageClass, SingleChannelCodec};
pub use endpoint::{
    CHANNELS_MAX, EndpointLayout, PERIOD_NS_MAX, PERIOD_NS_MIN, PipeEndpoint, ReceiverCounts, ReceiverTerms,
    STILL_NS_MAX,
};
pub use error::PipeError;
pub use far::FarReservation;
pub use inlet::PipeInlet;
pub use opening::{FarTime, claim_of, here, path_delay, there, there_reserving};
pub use path::PathDelay;
pub use pipe::{Pipe, PipeEnd, PipeFlow, PipeJobContext, tpipe};
pub use processors::{ProcessorPool, ProcessorShare, SchedulingStrictness};
pub use unfit::SetUpError;
pub use way::{BlockingPort, LocalPolledDevice, PolledDevice, SessionPolledDevice, UsbipPolledDevice};
