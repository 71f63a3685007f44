//! How fast data pass, from two answers of the processes.

use std::collections::BTreeMap;
use std::time::Duration;

use farbus_control::process::{ProcessDevice, ProcessStatus, devices_of};
use farbus_control::session::LinkStatus;

/// Devices and links whose rates are kept.
const KEPT_MAX: usize = 16_384;
/// Links of a session whose rates are kept: all that one has.
const LINKS_MAX: usize = farbus_model::limits::LANES_MAX as usize;

/// A device: its process's id and its name. With a lane, the link of its session that has this lane.
type RateKey = (u32, String, Option<u16>);

/// What was counted of each device and link, and how fast that grew since it was counted before.
#[derive(Debug, Default)]
pub struct TransferRates {
    counts: BTreeMap<RateKey, [u64; 2]>,
    rates: BTreeMap<RateKey, [u64; 2]>,
}

impl TransferRates {
    /// The rates between `before` and what these processes say, which was asked so much later. A rate of an earlier
    /// moment is none of now: with `elapsed` zero there are no rates.
    pub fn since(before: &Self, processes: &[ProcessStatus], elapsed: Duration) -> Self {
        let mut now = Self::default();
        for (process, device) in devices_of(processes) {
            now.note(before, key_of(process, device, None), counted(device), elapsed);
            for link in device.links().iter().take(LINKS_MAX) {
                let counts = Some([link.bytes_in, link.bytes_out]);
                now.note(before, key_of(process, device, Some(link.lane)), counts, elapsed);
            }
        }
        now
    }

    /// Adds what was counted now, and how fast that grew since `before`; nothing if there is no room for it.
    fn note(&mut self, before: &Self, key: RateKey, counts: Option<[u64; 2]>, elapsed: Duration) {
        let Some(counts) = counts.filter(|_| self.counts.len() < KEPT_MAX) else { return };
        if let Some(had) = before.counts.get(&key).filter(|_| !elapsed.is_zero()) {
            let rate = |at: usize| {
                // A new use counts from zero, and so does a new connection of a link.
                let passed = counts[at].checked_sub(had[at]).unwrap_or(counts[at]);
                (passed as f64 / elapsed.as_secs_f64()) as u64
            };
            self.rates.insert(key.clone(), [rate(0), rate(1)]);
        }
        self.counts.insert(key, counts);
    }

    /// Bytes a second from a device and to it; `None` until it was counted twice.
    pub fn of(&self, process: &ProcessStatus, device: &ProcessDevice) -> Option<[u64; 2]> {
        self.rates.get(&key_of(process, device, None)).copied()
    }

    /// Bytes a second that a link of its session received and sent; `None` until they were counted twice.
    pub fn of_link(&self, process: &ProcessStatus, device: &ProcessDevice, lane: u16) -> Option<[u64; 2]> {
        self.rates.get(&key_of(process, device, Some(lane))).copied()
    }
}

fn key_of(process: &ProcessStatus, device: &ProcessDevice, lane: Option<u16>) -> RateKey {
    (process.pid, device.name().to_owned(), lane)
}

/// Bytes from the device and to it: of its user's requests, or, where nothing counts those, of all its links.
/// What a link of an exporter sends comes from the device.
fn counted(device: &ProcessDevice) -> Option<[u64; 2]> {
    if let Some(meters) = device.meters() {
        return Some([meters.bytes_in, meters.bytes_out]);
    }
    let links = device.links();
    let of_links = |of: fn(&LinkStatus) -> u64| links.iter().map(of).fold(0, u64::saturating_add);
    let [received, sent] = [of_links(|link| link.bytes_in), of_links(|link| link.bytes_out)];
    (!links.is_empty()).then_some(if device.shared().is_some() { [sent, received] } else { [received, sent] })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::known::status::tests::{device, process as process_of};

    #[test]
    fn rate_is_what_passed_between_two_answers() {
        let process = |bytes_in: u64| {
            let meters = json!({ "bytes_in": bytes_in, "bytes_out": 0 });
            process_of(json!({ "pid": 7, "devices": [{ "name": "disk", "meters": meters }] }))
        };
        let disk = device(json!({ "name": "disk" }));
        let of = |rates: &TransferRates| rates.of(&process(0), &disk);
        let first = TransferRates::since(&TransferRates::default(), &[process(1000)], Duration::from_secs(9));
        assert_eq!(of(&first), None, "counted once");
        let second = TransferRates::since(&first, &[process(3000)], Duration::from_millis(500));
        assert_eq!(of(&second), Some([4000, 0]));
        let third = TransferRates::since(&second, &[process(50)], Duration::from_millis(500));
        assert_eq!(of(&third), Some([100, 0]), "another use");
        assert_eq!(of(&TransferRates::since(&third, &[process(60)], Duration::ZERO)), None);
    }

    #[test]
    fn traffic_of_a_session_is_that_of_its_links_and_each_has_a_rate() {
        let of = |second: u64| {
            let link = |lane: u64| json!({ "lane": lane, "bytes_in": second * 100 * (lane + 1), "bytes_out": 7 });
            process_of(json!({ "pid": 7, "devices": [{ "name": "disk", "links": { "each": [link(0), link(1)] } }] }))
        };
        let first = TransferRates::since(&TransferRates::default(), &[of(0)], Duration::ZERO);
        let second = TransferRates::since(&first, &[of(1)], Duration::from_secs(1));
        let (process, disk) = (of(1), device(json!({ "name": "disk" })));
        assert_eq!(second.of(&process, &disk), Some([300, 0]));
        let of_lane = |lane| second.of_link(&process, &disk, lane);
        assert_eq!([of_lane(0), of_lane(1), of_lane(2)], [Some([100, 0]), Some([200, 0]), None]);
        let links = json!({ "each": [{ "bytes_in": 3, "bytes_out": 5 }, { "bytes_in": 4, "bytes_out": 6 }] });
        let shared = json!({ "name": "disk", "bus_id": "1-1", "links": links });
        assert_eq!(counted(&device(shared)), Some([11, 7]), "an exporter sends what is read");
        assert_eq!(counted(&device(json!({ "links": links }))), Some([7, 11]));
        assert_eq!(counted(&device(json!({}))), None);
    }

    #[test]
    fn disk_that_is_only_read_shows_no_writes() {
        let links = json!({ "each": [{ "bytes_in": 900, "bytes_out": 70_000 }] });
        let meters = json!({ "bytes_in": 65_536, "bytes_out": 0 });
        assert_eq!(
            counted(&device(json!({ "name": "disk", "bus_id": "1-1", "meters": meters, "links": links }))),
            Some([65_536, 0])
        );
    }
}
