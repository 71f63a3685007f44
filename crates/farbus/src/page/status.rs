//! What all processes of this user say of themselves, as the confined process has it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::lab::Lab;
use super::rates::Rates;

/// What all processes of the user said of themselves at a moment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Processes {
    /// Greater with each time that they were asked; 0: they were not.
    pub version: u64,
    /// When they were asked, microseconds since the page began.
    pub asked_us: u64,
    /// The answers, as `farbus status --json` prints them.
    pub processes: Vec<Value>,
    /// How many processes gave no status.
    pub silent: usize,
    /// Why the processes cannot be found, if they cannot.
    pub failure: Option<String>,
    /// What is drawn of operations of this page, the latest first.
    #[serde(default)]
    pub operations: Vec<Value>,
    /// How far swaps are that run, begun by a page or by a command.
    #[serde(default)]
    pub swaps: Vec<Swapping>,
}

/// A swap that runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Swapping {
    /// The number of the process that has the device.
    pub pid: u64,
    /// The device's name.
    pub name: String,
    /// What `farbus swap --json` says.
    pub progress: Value,
}

/// What was answered.
#[derive(Debug, Default)]
pub struct Status {
    /// Greater with each time that they were asked; 0: they were not.
    pub version: u64,
    asked_us: u64,
    /// The answers, as `farbus status --json` prints them.
    pub processes: Vec<Value>,
    /// How many processes gave no status.
    pub silent: usize,
    /// Why the processes cannot be found, if they cannot.
    pub failure: Option<String>,
    /// What is drawn of operations of this page, the latest first.
    pub operations: Vec<Value>,
    /// How far swaps are that run.
    pub swaps: Vec<Swapping>,
    /// What is known of other hosts.
    pub lab: Arc<Lab>,
    /// When this was said, seconds since 1970.
    pub now_s: u64,
    /// How fast data pass.
    rates: Rates,
}

impl Status {
    /// What they said, and what is known of other hosts; `before` is what is known of an earlier moment.
    pub fn after(before: &Self, said: Processes, lab: Arc<Lab>) -> Self {
        let Processes { version, asked_us, mut processes, silent, failure, operations, swaps } = said;
        call_apart(&mut processes);
        let elapsed = match before.version {
            0 => Duration::ZERO,
            _ => Duration::from_micros(asked_us.saturating_sub(before.asked_us)),
        };
        let rates = Rates::since(&before.rates, &processes, elapsed);
        let now_s = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        Self { version, asked_us, processes, silent, failure, operations, swaps, lab, now_s, rates }
    }

    /// Bytes a second from a device and to it at present, if that is known.
    pub fn rate_of(&self, process: &Value, device: &Value) -> Option<[u64; 2]> {
        self.rates.of(process, device)
    }

    /// Bytes a second that a link of its session receives and sends at present, if that is known.
    pub fn rate_of_link(&self, process: &Value, device: &Value, lane: u64) -> Option<[u64; 2]> {
        self.rates.of_link(process, device, lane)
    }

    /// How far a swap of a device is, if one runs.
    pub fn swap_of(&self, process: &Value, device: &Value) -> Option<&Value> {
        let (pid, name) = (process["pid"].as_u64()?, device["name"].as_str()?);
        self.swaps.iter().find(|swap| swap.pid == pid && swap.name == name).map(|swap| &swap.progress)
    }

    /// All devices with the processes that have them.
    pub fn devices(&self) -> impl Iterator<Item = (&Value, &Value)> {
        devices_of(&self.processes)
    }
}

/// Adds what a command calls a shared device whose name another process has a shared device of, too: `called`.
fn call_apart(processes: &mut [Value]) {
    let shared = |device: &Value| device["name"].as_str().filter(|_| !device["bus_id"].is_null()).map(str::to_owned);
    let mut named: BTreeMap<String, BTreeSet<u64>> = BTreeMap::new();
    for (process, device) in devices_of(processes) {
        if let (Some(name), Some(pid)) = (shared(device), process["pid"].as_u64()) {
            named.entry(name).or_default().insert(pid);
        }
    }
    for process in processes {
        let pid = process["pid"].as_u64().unwrap_or_default();
        for device in process["devices"].as_array_mut().into_iter().flatten() {
            let name = shared(device).filter(|name| named.get(name).is_some_and(|pids| pids.len() > 1));
            if let (Some(name), Some(fields)) = (name, device.as_object_mut()) {
                fields.insert("called".to_owned(), format!("{name}@{pid}").into());
            }
        }
    }
}

/// All devices of these processes, with the processes that have them.
pub fn devices_of(processes: &[Value]) -> impl Iterator<Item = (&Value, &Value)> {
    let of = |process| {
        let devices = |process: &'_ Value| process["devices"].as_array().map(Vec::as_slice).unwrap_or_default().len();
        (0..devices(process)).map(move |index| (process, &process["devices"][index]))
    };
    processes.iter().flat_map(of)
}

#[cfg(test)]
pub mod tests {
    use serde_json::json;

    use super::*;

    /// The status of these processes.
    pub fn status(processes: Value) -> Status {
        let Value::Array(processes) = processes else { panic!("a list") };
        Status { processes, ..Status::default() }
    }

    #[test]
    fn shared_devices_of_one_name_are_called_apart_and_no_others() {
        let shared = |name: &str| json!({ "name": name, "bus_id": "1-1" });
        let attached = json!({ "name": "disk", "title": "lab3/disk" });
        let processes = vec![
            json!({ "pid": 7, "devices": [shared("disk"), shared("tape")] }),
            json!({ "pid": 8, "devices": [shared("disk"), attached] }),
            json!({ "pid": 9, "devices": [{ "name": "tape" }, "x", null] }),
            json!({ "devices": {} }),
        ];
        let said = Processes { processes, ..Processes::default() };
        let status = Status::after(&Status::default(), said, Arc::default());
        let called: Vec<_> = status.devices().map(|(_, device)| device["called"].as_str()).collect();
        assert_eq!(called, [Some("disk@7"), None, Some("disk@8"), None, None, None, None]);
    }
}
