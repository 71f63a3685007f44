//! How fast data pass, from two answers of the processes.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::Value;

/// Devices whose rates are kept.
const DEVICES_MAX: usize = 8192;

/// A device: its process's id and its name.
type Key = (u64, String);

/// What was counted of each device, and how fast that grew since it was counted before.
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
                let (Some(key), Some(counts)) = (key_of(process, device), counted(device)) else { continue };
                if now.counts.len() >= DEVICES_MAX {
                    return now;
                }
                if let Some(had) = before.counts.get(&key).filter(|_| !elapsed.is_zero()) {
                    let rate = |at: usize| {
                        // A new use counts from zero.
                        let passed = counts[at].checked_sub(had[at]).unwrap_or(counts[at]);
                        (passed as f64 / elapsed.as_secs_f64()) as u64
                    };
                    now.rates.insert(key.clone(), [rate(0), rate(1)]);
                }
                now.counts.insert(key, counts);
            }
        }
        now
    }

    /// Bytes a second from a device and to it; `None` until it was counted twice.
    pub fn of(&self, process: &Value, device: &Value) -> Option<[u64; 2]> {
        self.rates.get(&key_of(process, device)?).copied()
    }
}

fn key_of(process: &Value, device: &Value) -> Option<Key> {
    Some((process["pid"].as_u64()?, device["name"].as_str()?.to_owned()))
}

/// Bytes from the device and to it: of its user's connection, or else of all links of the session.
fn counted(device: &Value) -> Option<[u64; 2]> {
    let of_links = |name: &str| {
        let links = device["links"]["each"].as_array()?;
        Some(links.iter().filter_map(|link| link[name].as_u64()).fold(0, u64::saturating_add))
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
    fn traffic_of_a_session_is_that_of_its_links() {
        let links = json!({ "each": [{ "bytes_in": 3, "bytes_out": 5 }, { "bytes_in": 4, "bytes_out": 6 }] });
        assert_eq!(counted(&json!({ "links": links })), Some([7, 11]));
        assert_eq!(counted(&json!({})), None);
    }
}
