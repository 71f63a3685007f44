//! What is reserved on the buses of this machine, as `farbus status --json` shows it.

use farbus_realtime::Speed;
use farbus_realtime::transfer::interval_ps;
use farbus_session::reserve::ledger::Ledger;
use serde::Serialize;

/// Intervals of a schedule that are shown; a longer one is only counted.
const INTERVALS_MAX: u32 = 64;
/// Buses, and places on each, that are shown.
const BUSES_MAX: usize = 32;
const PLACES_MAX: usize = 64;

/// A bus on which something is reserved.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "cli", derive(schemars::JsonSchema))]
pub struct BusStatus {
    /// The bus, as `farbus status` calls it for a reservation.
    pub bus: String,
    /// `low`, `full`, `high` or `super`.
    pub speed: &'static str,
    /// Length of a frame (low and full speed) or microframe, picoseconds.
    pub interval_ps: u64,
    /// After how many of them the schedule repeats.
    pub cycle: u32,
    /// What is kept of each for bulk and control, picoseconds.
    pub asynchronous_ps: u64,
    /// What can still be reserved of each, picoseconds; of the first 64.
    pub free_ps: Vec<u64>,
    /// The periodic endpoints.
    pub places: Vec<PlaceStatus>,
}

/// An endpoint's place in a schedule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "cli", derive(schemars::JsonSchema))]
pub struct PlaceStatus {
    /// The name of the device that reserved the place.
    pub device: String,
    /// The endpoint's address; absent for the usual one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<String>,
    /// The first interval.
    pub start: u32,
    /// The distance to the next.
    pub every: u32,
    /// Packets each time.
    pub packets: u32,
    /// Bus time each time, picoseconds.
    pub time_ps: u64,
}

impl BusStatus {
    /// The buses of a ledger.
    pub fn of(ledger: &Ledger) -> Vec<Self> {
        let buses = ledger.plans().take(BUSES_MAX).map(|(bus, plan)| {
            let places = plan.placements().iter().take(PLACES_MAX).map(|place| {
                let (device, endpoint) = ledger.asker_of(place.id).unwrap_or_default();
                PlaceStatus {
                    device: device.to_owned(),
                    endpoint: (endpoint != 0).then(|| format!("{endpoint:#04x}")),
                    start: place.start,
                    every: place.every,
                    packets: place.packets,
                    time_ps: place.time_ps,
                }
            });
            Self {
                bus: bus.to_owned(),
                speed: match plan.speed() {
                    Speed::Low => "low",
                    Speed::Full => "full",
                    Speed::High => "high",
                    Speed::Super => "super",
                },
                interval_ps: interval_ps(plan.speed()),
                cycle: plan.cycle(),
                asynchronous_ps: plan.reservation_ps(),
                free_ps: (0..plan.cycle().min(INTERVALS_MAX)).map(|interval| plan.free_ps(interval)).collect(),
                places: places.collect(),
            }
        });
        buses.collect()
    }
}
