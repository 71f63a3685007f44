//! The figures published by West, Golchin and Njavro, "Real-Time USB Networking and Device I/O" (ACM TECS 22, 4,
//! Article 67, 2023). The text names some values of its plots; the others are not guessed.

/// A scenario of the round trips over a router: Table 2, and the measured values, Table 4.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RoundTripScenario {
    /// Bytes each period, of each of four bulk endpoints.
    pub budget_bytes: u32,
    /// The endpoints' period, in microframes (125 us).
    pub period: u32,
    /// `c` of Equation 6.
    pub intervals: u64,
    /// Equation 10, in microseconds.
    pub bound_us: u64,
    /// Table 4, in microseconds.
    pub max_us: u64,
    /// Table 4, in microseconds.
    pub min_us: u64,
    /// Table 4, in microseconds.
    pub mean_us: u64,
    /// Table 4, in microseconds.
    pub deviation_us: u64,
}

/// Tables 2 and 4. Figure 10 is the distribution of the same.
pub const ROUND_TRIPS: [RoundTripScenario; 5] = [
    round_trips([1_024, 1, 1, 4_000], [4_037, 3_033, 3_549, 167]),
    round_trips([8_192, 8, 2, 4_500], [4_359, 3_426, 3_875, 129]),
    round_trips([20_480, 20, 4, 5_500], [5_256, 2_859, 3_969, 382]),
    round_trips([40_960, 40, 8, 7_500], [7_553, 3_268, 5_186, 658]),
    round_trips([88_064, 86, 16, 11_500], [11_560, 3_521, 7_447, 1_238]),
];

const fn round_trips(table_2: [u64; 4], table_4: [u64; 4]) -> RoundTripScenario {
    let [budget_bytes, period, intervals, bound_us] = table_2;
    let [max_us, min_us, mean_us, deviation_us] = table_4;
    RoundTripScenario {
        budget_bytes: budget_bytes as u32,
        period: period as u32,
        intervals,
        bound_us,
        max_us,
        min_us,
        mean_us,
        deviation_us,
    }
}

/// A scenario of the throughput of bulk endpoints beside cameras: Table 5, and the measured values, Table 6.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ThroughputScenario {
    /// Bytes each period, of each of four bulk endpoints.
    pub budget_bytes: u32,
    /// The endpoints' period, in microframes (125 us).
    pub period: u32,
    /// The reserved rate of Table 5, in Mb/s.
    pub reserved_mbps: f64,
    /// Table 6, in Mb/s.
    pub min_mbps: f64,
    /// Table 6, in Mb/s.
    pub max_mbps: f64,
    /// Table 6, in Mb/s.
    pub mean_mbps: f64,
    /// Table 6, in Mb/s.
    pub deviation_mbps: f64,
}

/// Tables 5 and 6.
pub const THROUGHPUT: [ThroughputScenario; 3] = [
    throughput(4_096, 8, 33.0, [34.32, 44.03, 39.49, 1.31]),
    throughput(6_144, 2, 197.0, [202.83, 262.57, 234.20, 9.18]),
    throughput(8_192, 1, 520.0, [525.06, 627.19, 573.20, 12.65]),
];

const fn throughput(budget_bytes: u32, period: u32, reserved_mbps: f64, table_6: [f64; 4]) -> ThroughputScenario {
    let [min_mbps, max_mbps, mean_mbps, deviation_mbps] = table_6;
    ThroughputScenario { budget_bytes, period, reserved_mbps, min_mbps, max_mbps, mean_mbps, deviation_mbps }
}

/// A scenario of Table 8, and its result in Table 9.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OverrunScenario {
    /// How long it ran.
    pub seconds: u64,
    /// How many CPU-bound tasks run beside the readers.
    pub cpu_bound: usize,
    /// Reading tasks, one per channel.
    pub readers: usize,
    /// Buffer overruns on Linux. On Quest there were none in any scenario.
    pub linux: u64,
}

/// Tables 8 and 9. Figure 12 shows the counters of the same scenarios' CPU-bound tasks; the text names no value of it.
pub const OVERRUNS: [OverrunScenario; 6] = [
    OverrunScenario { seconds: 30, cpu_bound: 0, readers: 5, linux: 0 },
    OverrunScenario { seconds: 30, cpu_bound: 3, readers: 0, linux: 0 },
    OverrunScenario { seconds: 30, cpu_bound: 3, readers: 5, linux: 230 },
    OverrunScenario { seconds: 60, cpu_bound: 0, readers: 5, linux: 0 },
    OverrunScenario { seconds: 60, cpu_bound: 3, readers: 0, linux: 0 },
    OverrunScenario { seconds: 60, cpu_bound: 3, readers: 5, linux: 405 },
];

/// Frames a second that the text of section 6.2.2 promises of Figures 13 and 14 (input), least and most.
pub const INPUT_FRAMES_PER_S: (u64, u64) = (2_730, 2_752);

/// The averages of Figure 14 that the text names, of CAN4 and CAN5: Quest's, and Linux's.
pub const INPUT_MEANS: [(u64, u64); 2] = [(2_745, 2_743), (2_703, 2_714)];

/// Frames a second that the text of section 6.2.2 promises of Figures 15 and 16 (output), least and most.
pub const OUTPUT_FRAMES_PER_S: (u64, u64) = (3_053, 3_073);
