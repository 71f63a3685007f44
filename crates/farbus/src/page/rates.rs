//! How fast data pass, from two answers of the processes.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::Value;

/// Devices and links whose rates are kept.
const KEPT_MAX: usize = 16_384;
/// Links of a session whose rates are kept: all that one has.
const LINKS_MAX: usize = farbus_model::limits::LANES_MAX as usize;

/// A device: its process's id and its name. With a lane, the link of its session that has this lane.
type Key = (u64, String, Option<u64>);

/// What was counted of each device and link, and how fast that grew since it was counted before.
#[derive(Debug, Default)]
pub struct Rates {
    counts: BTreeMap<Key, [u64; 2]>,
    rates: BTreeMap<Key, [u64; 2]>,
}

impl Rates {
    /// The rates between `before` and what these processes say, which was asked so much later. A rate of an earlier
    /// moment is none of now: with `elapsed` zero there are no rates.
    pub fn since(before: &Self, processes: &[Value], elapsed: Duration) -> Self {
        let mut now = Self::default();
        for process in processes {
            for device in process["devices"].as_array().into_iter().flatten() {
                let Some((pid, name)) = key_of(process, device) else { continue };
                now.note(before, (pid, name.to_owned(), None), counted(device), elapsed);
                for link in links_of(device).iter().take(LINKS_MAX).filter(|link| link["lane"].is_u64()) {
                    now.note(before, (pid, name.to_owned(), link["lane"].as_u64()), counted_of_link(link), elapsed);
                }
            }
        }
        now
    }

    /// Adds what was counted now, and how fast that grew since `before`; nothing if there is no room for it.
    fn note(&mut self, before: &Self, key: Key, counts: Option<[u64; 2]>, elapsed: Duration) {
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
    pub fn of(&self, process: &Value, device: &Value) -> Option<[u64; 2]> {
        let (pid, name) = key_of(process, device)?;
        self.rates.get(&(pid, name.to_owned(), None)).copied()
    }

    /// Bytes a second that a link of its session received and sent; `None` until they were counted twice.
    pub fn of_link(&self, process: &Value, device: &Value, lane: u64) -> Option<[u64; 2]> {
        let (pid, name) = key_of(process, device)?;
        self.rates.get(&(pid, name.to_owned(), Some(lane))).copied()
    }
}

fn key_of<'v>(process: &Value, device: &'v Value) -> Option<(u64, &'v str)> {
    Some((process["pid"].as_u64()?, device["name"].as_str()?))
}

fn links_of(device: &Value) -> &[Value] {
    device["links"]["each"].as_array().map(Vec::as_slice).unwrap_or_default()
}

/// Bytes that a link received and sent.
fn counted_of_link(link: &Value) -> Option<[u64; 2]> {
    Some([link["bytes_in"].as_u64()?, link["bytes_out"].as_u64()?])
}

/// Bytes from the device and to it: of its user's connection, or else of all links of the session.
fn counted(device: &Value) -> Option<[u64; 2]> {
    let of_links = |name: &str| {
        device["links"]["each"].as_array()?;
        Some(links_of(device).iter().filter_map(|link| link[name].as_u64()).fold(0, u64::saturating_add))
    };
    let count = |name: &str| match (device["meters"][name].as_u64(), of_links(name)) {
        (Some(0) | None, Some(of_links)) => Some(of_links),
        (of_user, _) => of_user,
    };
    Some([count("bytes_in")?, count("bytes_out")?])
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn rate_is_what_passed_between_two_answers() {
        let process = |bytes_in: u64| {
            let meters = json!({ "bytes_in": bytes_in, "bytes_out": 0 });
            json!({ "pid": 7, "devices": [{ "name": "disk", "meters": meters }] })
        };
        let of = |rates: &Rates| rates.of(&process(0), &json!({ "name": "disk" }));
        let first = Rates::since(&Rates::default(), &[process(1000)], Duration::from_secs(9));
        assert_eq!(of(&first), None, "counted once");
        let second = Rates::since(&first, &[process(3000)], Duration::from_millis(500));
        assert_eq!(of(&second), Some([4000, 0]));
        let third = Rates::since(&second, &[process(50)], Duration::from_millis(500));
        assert_eq!(of(&third), Some([100, 0]), "another use");
        assert_eq!(of(&Rates::since(&third, &[process(60)], Duration::ZERO)), None);
    }

    #[test]
    fn traffic_of_a_session_is_that_of_its_links_and_each_has_a_rate() {
        let of = |second: u64| {
            let link = |lane: u64| json!({ "lane": lane, "bytes_in": second * 100 * (lane + 1), "bytes_out": 7 });
            json!({ "pid": 7, "devices": [{ "name": "disk", "links": { "each": [link(0), link(1)] } }] })
        };
        let first = Rates::since(&Rates::default(), &[of(0)], Duration::ZERO);
        let second = Rates::since(&first, &[of(1)], Duration::from_secs(1));
        let (process, device) = (of(1), json!({ "name": "disk" }));
        assert_eq!(second.of(&process, &device), Some([300, 0]));
        let of_lane = |lane| second.of_link(&process, &device, lane);
        assert_eq!([of_lane(0), of_lane(1), of_lane(2)], [Some([100, 0]), Some([200, 0]), None]);
        let links = json!({ "each": [{ "bytes_in": 3, "bytes_out": 5 }, { "bytes_in": 4, "bytes_out": 6 }] });
        assert_eq!(counted(&json!({ "links": links })), Some([7, 11]));
        assert_eq!(counted(&json!({})), None);
    }
}
