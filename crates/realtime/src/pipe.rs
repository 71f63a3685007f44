//! The arithmetic of tuned pipes: budget and period from a quality of service by Little's law (R5), and the end-to-end
//! bound of a path (Equations 9 and 10 of West, Golchin and Njavro, 2023), over one host or several (R6).

use std::fmt;

use crate::vcpu::VcpuReserve;

/// The attributes of an endpoint, as its driver states them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndpointAttributes {
    /// The most pipes that it can have.
    pub channels_max: u32,
    /// The most bits that it moves each `latency_min_ns`.
    pub throughput_bits_max: u64,
    /// The shortest time between two data items.
    pub latency_min_ns: u64,
    /// The smallest buffer of a pipe, bytes.
    pub buffer_bytes_min: u64,
    /// The largest buffer of a pipe, bytes.
    pub buffer_bytes_max: u64,
}

/// The requested quality of a pipe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PipeQuality {
    /// The time to which `throughput_bits` refers.
    pub latency_ns: u64,
    /// Bits each `latency_ns`.
    pub throughput_bits: u64,
    /// The pipe's buffer, bytes.
    pub buffer_bytes: u64,
    /// How long its function takes to process one buffer.
    pub execution_ns: u64,
}

/// Why a pipe is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PipeRefusal {
    /// A quality or an attribute is zero.
    Zero,
    /// All channels of the endpoint have a pipe.
    Channels {
        /// How many channels there are.
        max: u32,
    },
    /// The endpoint's throughput is too low.
    Throughput {
        /// Asked for, with the other pipes, in bits a second.
        asked_bits_per_s: u64,
        /// The maximum, in bits a second.
        max_bits_per_s: u64,
    },
    /// The endpoint's latency is too high.
    Latency {
        /// The latency of the requested quality, in nanoseconds.
        asked_ns: u64,
        /// The shortest latency that the endpoint has, in nanoseconds.
        min_ns: u64,
    },
    /// The buffer is too small or too large.
    Buffer {
        /// The buffer of the requested quality, in bytes.
        asked_bytes: u64,
        /// The smallest buffer that the endpoint allows, in bytes.
        min_bytes: u64,
        /// The largest buffer that the endpoint allows, in bytes.
        max_bytes: u64,
    },
    /// The function takes longer than its buffer takes to fill.
    Execution {
        /// How long the function takes for one buffer, in nanoseconds.
        execution_ns: u64,
        /// The time until the buffer is full.
        period_ns: u64,
    },
}

/// Budget and period of a pipe's Main VCPU: the buffer is full after `W = L / lambda` (Little's law) and must have been
/// processed by then. `open` are the pipes that the endpoint has already.
///
/// The paper rounds down to milliseconds (2.048 to 2, 46.5 to 46); here the values are in nanoseconds.
pub fn derive(
    attributes: &EndpointAttributes,
    open: &[PipeQuality],
    quality: &PipeQuality,
) -> Result<VcpuReserve, PipeRefusal> {
    let PipeQuality { latency_ns, throughput_bits, buffer_bytes, execution_ns } = *quality;
    if [latency_ns, throughput_bits, buffer_bytes, execution_ns, attributes.latency_min_ns].contains(&0) {
        return Err(PipeRefusal::Zero);
    }
    if open.len() >= attributes.channels_max as usize {
        return Err(PipeRefusal::Channels { max: attributes.channels_max });
    }
    if latency_ns < attributes.latency_min_ns {
        return Err(PipeRefusal::Latency { asked_ns: latency_ns, min_ns: attributes.latency_min_ns });
    }
    let others: u64 = open.iter().map(|other| bits_per_s(other.throughput_bits, other.latency_ns)).sum();
    let asked_bits_per_s = bits_per_s(throughput_bits, latency_ns).saturating_add(others);
    let max_bits_per_s = bits_per_s(attributes.throughput_bits_max, attributes.latency_min_ns);
    if asked_bits_per_s > max_bits_per_s {
        return Err(PipeRefusal::Throughput { asked_bits_per_s, max_bits_per_s });
    }
    let (min_bytes, max_bytes) = (attributes.buffer_bytes_min, attributes.buffer_bytes_max);
    if !(min_bytes..=max_bytes).contains(&buffer_bytes) {
        return Err(PipeRefusal::Buffer { asked_bytes: buffer_bytes, min_bytes, max_bytes });
    }
    let period_ns = fill_ns(buffer_bytes, throughput_bits, latency_ns);
    if execution_ns > period_ns {
        return Err(PipeRefusal::Execution { execution_ns, period_ns });
    }
    Ok(VcpuReserve { budget_ns: execution_ns, period_ns })
}

/// How long `buffer_bytes` take to fill at `bits` each `window_ns`, rounded down; `window_ns` and `bits` are not zero.
pub fn fill_ns(buffer_bytes: u64, bits: u64, window_ns: u64) -> u64 {
    let time = u128::from(buffer_bytes) * 8 * u128::from(window_ns) / u128::from(bits.max(1));
    u64::try_from(time).unwrap_or(u64::MAX)
}

/// The longest period, in nanoseconds, of a thread that keeps `places` messages under way and carries `per_s` messages
/// a second with them; 0 if there is none. A message keeps its place until the thread has looked again, which is two
/// periods at the worst, and for the `delay_ns` of its path.
pub fn carrying_period_ns(in_flight: u64, per_s: u64, delay_ns: u64) -> u64 {
    let each_ns = u128::from(in_flight) * 1_000_000_000 / u128::from(per_s.max(1));
    u64::try_from(each_ns).unwrap_or(u64::MAX).saturating_sub(delay_ns) / 2
}

/// The most messages a second that a thread with this period carries: the inverse of [`carrying_period_ns`].
pub fn carried_per_s(in_flight: u64, period_ns: u64, delay_ns: u64) -> u64 {
    let held_ns = period_ns.saturating_mul(2).saturating_add(delay_ns).max(1);
    u64::try_from(u128::from(in_flight) * 1_000_000_000 / u128::from(held_ns)).unwrap_or(u64::MAX)
}

fn bits_per_s(bits: u64, window_ns: u64) -> u64 {
    let rate = (u128::from(bits) * 1_000_000_000).div_ceil(u128::from(window_ns.max(1)));
    u64::try_from(rate).unwrap_or(u64::MAX)
}

/// A stage of a path that delays data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathSegment {
    /// A task, or a bottom half with an inherited period: it may finish at the very end of its period.
    Server {
        /// The period, in nanoseconds.
        period_ns: u64,
    },
    /// A transfer over USB.
    Transfer {
        /// Intervals until the budget is transferred: `c` of Equation 6 or the period of a periodic endpoint.
        intervals: u64,
        /// An interval of that bus, in nanoseconds.
        interval_ns: u64,
        /// The controller interrupts only at multiples of this; 0 is at once.
        interrupt_every_ns: u64,
    },
    /// A network that has a bound of its own.
    Network {
        /// The bound, in nanoseconds.
        delay_ns: u64,
    },
}

impl PathSegment {
    /// The longest delay of the stage.
    pub fn worst_ns(&self) -> u64 {
        match *self {
            Self::Server { period_ns } => period_ns,
            Self::Network { delay_ns } => delay_ns,
            Self::Transfer { intervals, interval_ns, interrupt_every_ns } => {
                let through_ns = intervals.saturating_mul(interval_ns);
                match interrupt_every_ns {
                    0 => through_ns,
                    every_ns => through_ns.div_ceil(every_ns).saturating_mul(every_ns),
                }
            }
        }
    }
}

/// The longest that data take over all of `stages`, on one host or many: the sum (Equations 9 and 10), because each
/// stage keeps its bound whatever the others do.
pub fn worst_ns(stages: &[PathSegment]) -> u64 {
    stages.iter().map(PathSegment::worst_ns).fold(0, u64::saturating_add)
}

/// Equation 9: the path of a message through a bottom half (which inherits the receiver's period), the receiving thread
/// and the user's thread.
pub fn input_stages(transfer: PathSegment, receiver_period_ns: u64, user_period_ns: u64) -> [PathSegment; 4] {
    let server = |period_ns| PathSegment::Server { period_ns };
    [transfer, server(receiver_period_ns), server(receiver_period_ns), server(user_period_ns)]
}

impl fmt::Display for PipeRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Zero => write!(f, "latency, throughput, buffer and execution time must each be more than nothing"),
            Self::Channels { max } => write!(f, "the endpoint has {max} channels, each with a pipe already"),
            Self::Throughput { asked_bits_per_s, max_bits_per_s } => {
                write!(f, "{asked_bits_per_s} bit/s: the endpoint moves {max_bits_per_s} at the most, ")?;
                write!(f, "{} are missing", asked_bits_per_s - max_bits_per_s)
            }
            Self::Latency { asked_ns, min_ns } => {
                write!(f, "a latency of {asked_ns} ns: the endpoint needs {min_ns} from one item to the next")
            }
            Self::Buffer { asked_bytes, min_bytes, max_bytes } => {
                write!(f, "a buffer of {asked_bytes} bytes: it has {min_bytes} to {max_bytes} here")
            }
            Self::Execution { execution_ns, period_ns } => write!(
                f,
                "the function takes {execution_ns} ns and its buffer is full after {period_ns}: {} ns are missing",
                execution_ns - period_ns
            ),
        }
    }
}

impl std::error::Error for PipeRefusal {}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;
    /// The paper's USB-CAN interface: five channels, 2.25 Mb/s together, a buffer of 4 KiB; 64 bytes a frame.
    const CAN: EndpointAttributes = EndpointAttributes {
        channels_max: 5,
        throughput_bits_max: 2_250_000,
        latency_min_ns: SECOND,
        buffer_bytes_min: 64,
        buffer_bytes_max: 8192,
    };

    fn quality(bits: u64, buffer_bytes: u64, execution_ns: u64) -> PipeQuality {
        PipeQuality { latency_ns: SECOND, throughput_bits: bits, buffer_bytes, execution_ns }
    }

    #[test]
    fn littles_law_gives_the_periods_of_the_paper() {
        // 5.1: 128 bytes at 512 kb/s are 2 ms, and 32 Kib at 2.25 Mb/s the 14 ms of the receiving thread.
        let reserve = derive(&CAN, &[], &quality(512_000, 128, 1_000_000)).unwrap();
        assert_eq!(reserve, VcpuReserve { budget_ns: 1_000_000, period_ns: 2_000_000 });
        assert_eq!(fill_ns(4096, 2_250_000, SECOND) / 1_000_000, 14);
        // 6.2.2: 128 frames at 2,752 and 3,073 a second, 46 and 41 ms.
        let wide = EndpointAttributes { throughput_bits_max: 10_000_000, ..CAN };
        for (frames, period_ms) in [(2752, 46), (3073, 41)] {
            let reserve = derive(&wide, &[], &quality(frames * 64 * 8, 128 * 64, 2_000_000)).unwrap();
            assert_eq!((reserve.budget_ns, reserve.period_ns / 1_000_000), (2_000_000, period_ms));
        }
    }

    #[test]
    fn pipe_beyond_the_endpoint_is_refused_with_what_is_missing() {
        let half = quality(500_000, 128, 1_000_000);
        assert_eq!(derive(&CAN, &[half; 5], &half), Err(PipeRefusal::Channels { max: 5 }));
        let refusal = derive(&CAN, &[half; 4], &half).unwrap_err();
        assert_eq!(refusal, PipeRefusal::Throughput { asked_bits_per_s: 2_500_000, max_bits_per_s: 2_250_000 });
        assert!(refusal.to_string().ends_with("250000 are missing"), "{refusal}");
        assert!(derive(&CAN, &[half; 4], &quality(250_000, 128, 1_000_000)).is_ok(), "the last bit is to be had");
        let slow = derive(&CAN, &[], &quality(500_000, 128, 2_048_001));
        assert_eq!(slow, Err(PipeRefusal::Execution { execution_ns: 2_048_001, period_ns: 2_048_000 }));
        let hasty = PipeQuality { latency_ns: SECOND - 1, ..half };
        assert_eq!(derive(&CAN, &[], &hasty), Err(PipeRefusal::Latency { asked_ns: SECOND - 1, min_ns: SECOND }));
        assert!(matches!(derive(&CAN, &[], &quality(1, 63, 1)), Err(PipeRefusal::Buffer { asked_bytes: 63, .. })));
        assert_eq!(derive(&CAN, &[], &quality(0, 128, 1)), Err(PipeRefusal::Zero));
    }

    #[test]
    fn a_rate_is_carried_by_the_messages_under_way_and_by_nothing_else() {
        // Two messages under way for 2 x 1 ms are 1000 a second; a delay of 1 ms takes half a period.
        assert_eq!(carrying_period_ns(2, 1000, 0), 1_000_000);
        assert_eq!(carrying_period_ns(2, 1000, 1_000_000), 500_000);
        assert_eq!(carrying_period_ns(2, 1000, 3_000_000), 0, "the delay alone takes longer");
        assert_eq!(carried_per_s(2, 1_000_000, 0), 1000);
        for (in_flight, per_s, delay_ns) in [(2, 997, 125_000), (32, 3201, 1_700_000), (64, 20_000, 0)] {
            let period_ns = carrying_period_ns(in_flight, per_s, delay_ns);
            assert!(carried_per_s(in_flight, period_ns, delay_ns) >= per_s, "{per_s}");
            assert!(carried_per_s(in_flight, period_ns + 1000, delay_ns) < per_s, "{per_s}");
        }
    }

    #[test]
    fn equation_9_adds_four_stages() {
        let transfer =
            |interrupt_every_ns| PathSegment::Transfer { intervals: 3, interval_ns: 125_000, interrupt_every_ns };
        assert_eq!(worst_ns(&input_stages(transfer(0), 14_000_000, 46_000_000)), 375_000 + 28_000_000 + 46_000_000);
        assert_eq!(transfer(250_000).worst_ns(), 500_000, "it waits for the next interrupt");
    }

    #[test]
    fn equation_10_composes_over_three_hosts() {
        // Table 3: board, router, board, and back; every server has 250 us, the board's transfers take one microframe.
        let server = PathSegment::Server { period_ns: 250_000 };
        let transfer = |intervals| PathSegment::Transfer { intervals, interval_ns: 125_000, interrupt_every_ns: 0 };
        for (c, us) in [(1, 4000), (2, 4500), (4, 5500), (8, 7500), (16, 11_500)] {
            let board = [server, transfer(1)];
            let router = [transfer(c), server, server];
            let one_way = [&board[..], &router, &router, &board].concat();
            assert_eq!(worst_ns(&[&one_way[..], &one_way].concat()), us * 1000);
        }
    }
}
