//! How far Linux's rows of Table 9 rest on the storms that were chosen for them: the same rows over many seeds, and
//! with each number of [`STORMS`] halved and doubled.

use super::paper::OverrunScenario;
use super::usb_can::{ChannelUsers, InterruptStorms, STORMS, SimulatedKernel, UsbCanScenario, run, table_7};

/// The seeds of the printed means and ranges.
pub const SEEDS: std::ops::RangeInclusive<u64> = 1..=40;

/// Overruns over several seeds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OverrunRange {
    /// Overwritten messages of one run, on average.
    pub mean: f64,
    /// Overwritten messages with the kindest seed.
    pub least: u64,
    /// Overwritten messages with the hardest seed.
    pub most: u64,
}

/// The setting of a row of Table 9.
pub fn setting(scenario: &OverrunScenario, kernel: SimulatedKernel, storms: InterruptStorms) -> UsbCanScenario {
    let users = if scenario.readers > 0 { ChannelUsers::Ordinary } else { ChannelUsers::None };
    let (seconds, cpu_bound) = (scenario.seconds, scenario.cpu_bound);
    UsbCanScenario { kernel, seconds, cpu_bound, users, traffic: table_7(), storms }
}

/// The overruns of a setting, each seed once. `seeds` must not be empty.
pub fn overruns(setting: &UsbCanScenario, seeds: impl IntoIterator<Item = u64>) -> OverrunRange {
    let counts: Vec<u64> = seeds.into_iter().map(|seed| run(setting, seed).overruns).collect();
    let (least, most) = (counts.iter().min().copied().unwrap_or(0), counts.iter().max().copied().unwrap_or(0));
    OverrunRange { mean: counts.iter().sum::<u64>() as f64 / counts.len().max(1) as f64, least, most }
}

/// [`STORMS`] with one number changed, and what was changed.
pub fn variations() -> [(&'static str, InterruptStorms); 8] {
    let InterruptStorms { least_ns, most_ns, pause_ns, mean_ns } = STORMS;
    [
        ("shortest storm halved", InterruptStorms { least_ns: least_ns / 2, ..STORMS }),
        ("shortest storm doubled", InterruptStorms { least_ns: least_ns * 2, ..STORMS }),
        ("longest storm halved", InterruptStorms { most_ns: most_ns / 2, ..STORMS }),
        ("longest storm doubled", InterruptStorms { most_ns: most_ns * 2, ..STORMS }),
        ("shortest pause halved", InterruptStorms { pause_ns: pause_ns / 2, ..STORMS }),
        ("shortest pause doubled", InterruptStorms { pause_ns: pause_ns * 2, ..STORMS }),
        ("mean pause halved", InterruptStorms { mean_ns: mean_ns / 2, ..STORMS }),
        ("mean pause doubled", InterruptStorms { mean_ns: mean_ns * 2, ..STORMS }),
    ]
}
