//! What is reserved on the buses of this machine, as `farbus status --json` shows it.

use farbus_control::reservation::{BusStatus, PlaceStatus};
use farbus_realtime::BusSpeed;
use farbus_realtime::transfer::interval_ps;
use farbus_session::reserve::ledger::HostReservationLedger;

/// Intervals of a schedule that are shown; a longer one is only counted.
const INTERVALS_MAX: u32 = 64;
/// Buses, and places on each, that are shown.
const BUSES_MAX: usize = 32;
const PLACES_MAX: usize = 64;

/// The buses of a ledger.
pub fn bus_statuses(ledger: &HostReservationLedger) -> Vec<BusStatus> {
    let buses = ledger.plans().take(BUSES_MAX).map(|(bus, plan)| {
        let placements = plan.placements().iter().take(PLACES_MAX).map(|placement| {
            let (device, endpoint) = ledger.asker_of(placement.id).unwrap_or_default();
            PlaceStatus {
                device: device.to_owned(),
                endpoint: (endpoint != 0).then(|| format!("{endpoint:#04x}")),
                start: placement.start,
                every: placement.every,
                packets: placement.packets,
                time_ps: placement.time_ps,
            }
        });
        BusStatus {
            bus: bus.to_owned(),
            speed: match plan.speed() {
                BusSpeed::Low => "low",
                BusSpeed::Full => "full",
                BusSpeed::High => "high",
                BusSpeed::Super => "super",
            }
            .into(),
            interval_ps: interval_ps(plan.speed()),
            cycle: plan.cycle(),
            asynchronous_ps: plan.reservation_ps(),
            free_ps: (0..plan.cycle().min(INTERVALS_MAX)).map(|interval| plan.free_ps(interval)).collect(),
            places: placements.collect(),
        }
    });
    buses.collect()
}
