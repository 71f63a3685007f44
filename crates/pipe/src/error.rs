//! Why a pipe cannot be made.

use std::fmt;
use std::io;

use farbus_control::failure::FailureKind;
use farbus_host::{HostPortError, RemoteError};
use farbus_model::TransferDirection;
use farbus_realtime::pipe::PipeRefusal;
use farbus_realtime::vcpu::VcpuOverload;

use super::bus::ChannelBus;
use super::unfit::SetUpError;

/// Why a pipe was not made. Existing pipes keep what they were promised.
#[derive(Debug)]
pub enum PipeError {
    /// The endpoint does not carry that quality of service.
    Quality(PipeRefusal),
    /// By Equation 1, no processor can carry it.
    Processor(VcpuOverload),
    /// The processors cannot carry it beside what other processes of this host were promised; in words.
    Promised(String),
    /// The scheduler does not accept the period that follows from the buffers.
    Period {
        /// The thread that has this period, for the message: "the pipe" or "the receiving thread".
        whose: &'static str,
        /// The period that follows from the buffers, in nanoseconds.
        period_ns: u64,
        /// The shortest that is accepted.
        min_ns: u64,
        /// The longest that is accepted.
        max_ns: u64,
    },
    /// The transfers that are under way at once do not carry that many messages, even in the shortest period.
    Rate {
        /// From the device or to it.
        direction: TransferDirection,
        /// Asked for, with the other pipes of the endpoint in that direction, in messages a second.
        asked_per_s: u64,
        /// The most that they carry, in messages a second.
        max_per_s: u64,
        /// Messages that are under way at once.
        in_flight: u64,
        /// How long one of them takes at the worst, in nanoseconds.
        worst_ns: u64,
        /// What it usually takes at the most, in nanoseconds, if that counts.
        usual_ns: Option<u64>,
    },
    /// The bus behind the channel does not carry that many messages.
    Bus {
        /// The channel with that bus, counted from 0.
        channel: usize,
        /// Asked for, in messages a second.
        asked_per_s: u64,
        /// What the bus carries.
        bus: ChannelBus,
    },
    /// The device has no endpoint in that direction.
    Direction,
    /// The device has fewer channels.
    Channel {
        /// The channel that was asked for.
        wanted: usize,
        /// How many there are.
        channels: usize,
    },
    /// The channel already has a pipe in that direction.
    Taken(usize),
    /// The device is not what was expected.
    Device(SetUpError),
    /// The device cannot be reached any more.
    Lost(HostPortError),
    /// The system has no more threads.
    System(io::Error),
}

impl PipeError {
    /// Which party has to act.
    pub fn attribute(&self) -> FailureKind {
        match self {
            Self::Quality(_) | Self::Processor(_) | Self::Promised(_) | Self::Period { .. } => FailureKind::Refused,
            Self::Rate { .. } | Self::Bus { .. } => FailureKind::Refused,
            Self::Taken(_) | Self::Direction | Self::Channel { .. } | Self::Device(SetUpError::Unfit(_)) => {
                FailureKind::Refused
            }
            Self::Device(SetUpError::Device(RemoteError::Port(error))) | Self::Lost(error) => match error {
                HostPortError::Gone => FailureKind::Gone,
                HostPortError::World(_) => FailureKind::Network,
                HostPortError::Peer(_) | HostPortError::Idle => FailureKind::Device,
            },
            Self::Device(_) => FailureKind::Device,
            Self::System(_) => FailureKind::Local,
        }
    }
}

fn ms(ns: u64) -> String {
    format!("{}.{:03} ms", ns / 1_000_000, ns / 1000 % 1000)
}

impl fmt::Display for PipeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Quality(refusal @ PipeRefusal::Execution { .. }) => {
                write!(f, "{refusal}\n  a larger buffer gives it more time")
            }
            Self::Quality(refusal) => refusal.fmt(f),
            Self::Processor(overload) => {
                write!(f, "{overload}\n  a larger buffer or a shorter execution time asks for less")
            }
            Self::Promised(why) => write!(
                f,
                "the processors are others' as well: {why}\n  'farbus status' shows who has them; a larger buffer or a shorter execution time asks for less"
            ),
            Self::Period { whose, period_ns, min_ns, max_ns } => {
                write!(f, "{whose} would run each {period_ns} ns, and schedulers keep {min_ns} to {max_ns}\n  ")?;
                let (more, what) = if period_ns < min_ns { ("larger", "longer") } else { ("smaller", "shorter") };
                write!(f, "a {more} buffer makes it {what}")
            }
            Self::Rate { direction, asked_per_s, max_per_s, in_flight, worst_ns, usual_ns } => {
                let way = if *direction == TransferDirection::In { "from" } else { "to" };
                write!(
                    f,
                    "{asked_per_s} messages/s: the transfers {way} the device carry at most {max_per_s} messages/s, {} are missing\n  \
                     {in_flight} messages are under way at once, each for {} at the worst",
                    asked_per_s.saturating_sub(*max_per_s),
                    ms(*worst_ns)
                )?;
                if let Some(usual_ns) = usual_ns {
                    write!(
                        f,
                        " and {} usually: --network-us gives what the network takes, if you know it",
                        ms(*usual_ns)
                    )?;
                }
                write!(f, "\n  ask for --rate {max_per_s}, or for larger messages and fewer of them")
            }
            Self::Bus { channel, bus: ChannelBus { bits_per_s: 0, .. }, .. } => {
                write!(f, "channel {channel} is off, and carries nothing\n  --can gives the bit rate of each channel")
            }
            Self::Bus { channel, asked_per_s, bus: ChannelBus { bits_per_s, messages_per_s_max } } => write!(
                f,
                "{asked_per_s} messages/s: the bus of channel {channel}, with {bits_per_s} bit/s, carries at most {messages_per_s_max} \
                 messages/s, {} are missing\n  ask for --rate {messages_per_s_max} at the most, or for a faster bus",
                asked_per_s.saturating_sub(*messages_per_s_max)
            ),
            Self::Direction => f.write_str("the device has no bulk endpoint in that direction"),
            Self::Channel { wanted, channels } => {
                write!(f, "the device has no channel {wanted}: there are {channels}, counted from 0")
            }
            Self::Taken(channel) => write!(f, "channel {channel} has a pipe in that direction already"),
            Self::Device(error) => error.fmt(f),
            Self::Lost(error) => error.fmt(f),
            Self::System(error) => write!(f, "no thread for it: {error}"),
        }
    }
}

impl std::error::Error for PipeError {}

impl From<PipeRefusal> for PipeError {
    fn from(refusal: PipeRefusal) -> Self {
        Self::Quality(refusal)
    }
}

impl From<VcpuOverload> for PipeError {
    fn from(overload: VcpuOverload) -> Self {
        Self::Processor(overload)
    }
}
