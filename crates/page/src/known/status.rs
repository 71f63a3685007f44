//! What all processes of this user say of themselves, as the confined process has it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use farbus_control::process::{ProcessDevice, ProcessStatus, devices_of};
use farbus_control::swap::SwapStatus;
use serde::{Deserialize, Serialize};

use crate::known::lab::LabInventory;
use crate::known::operation::DrawnOperation;
use crate::known::rates::TransferRates;

/// What all processes of the user said of themselves at a moment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ProcessStatuses {
    /// Greater with each time that they were asked; 0: they were not.
    pub version: u64,
    /// When they were asked, microseconds since the page began.
    pub asked_us: u64,
    /// What each process answered; without those that gave no status.
    pub processes: Vec<ProcessStatus>,
    /// How many processes gave no status.
    pub silent: usize,
    /// Why the processes cannot be found, if they cannot.
    pub failure: Option<String>,
    /// What is drawn of operations of this page, the latest first.
    #[serde(default)]
    pub operations: Vec<DrawnOperation>,
    /// How far swaps are that run, begun by a page or by a command.
    #[serde(default)]
    pub swaps: Vec<RunningSwap>,
}

/// A swap that runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunningSwap {
    /// The number of the process that has the device.
    pub pid: u32,
    /// The device's name.
    pub name: String,
    /// What `farbus swap --json` says.
    pub progress: SwapStatus,
}

/// What was answered.
#[derive(Debug, Default)]
pub struct CombinedStatus {
    /// Greater with each time that they were asked; 0: they were not.
    pub version: u64,
    asked_us: u64,
    /// What each process answered; without those that gave no status.
    pub processes: Vec<ProcessStatus>,
    /// How many processes gave no status.
    pub silent: usize,
    /// Why the processes cannot be found, if they cannot.
    pub failure: Option<String>,
    /// What is drawn of operations of this page, the latest first.
    pub operations: Vec<DrawnOperation>,
    /// How far swaps are that run.
    pub swaps: Vec<RunningSwap>,
    /// What is known of other hosts.
    pub lab: Arc<LabInventory>,
    /// When this was said, seconds since 1970.
    pub now_s: u64,
    /// How fast data pass.
    rates: TransferRates,
}

impl CombinedStatus {
    /// What they said, and what is known of other hosts; `before` is what is known of an earlier moment.
    pub fn after(before: &Self, statuses: ProcessStatuses, lab: Arc<LabInventory>) -> Self {
        let ProcessStatuses { version, asked_us, mut processes, silent, failure, operations, swaps } = statuses;
        call_apart(&mut processes);
        let elapsed = match before.version {
            0 => Duration::ZERO,
            _ => Duration::from_micros(asked_us.saturating_sub(before.asked_us)),
        };
        let rates = TransferRates::since(&before.rates, &processes, elapsed);
        let now_s = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        Self { version, asked_us, processes, silent, failure, operations, swaps, lab, now_s, rates }
    }

    /// Bytes a second from a device and to it at present, if that is known.
    pub fn rate_of(&self, process: &ProcessStatus, device: &ProcessDevice) -> Option<[u64; 2]> {
        self.rates.of(process, device)
    }

    /// Bytes a second that a link of its session receives and sends at present, if that is known.
    pub fn rate_of_link(&self, process: &ProcessStatus, device: &ProcessDevice, lane: u16) -> Option<[u64; 2]> {
        self.rates.of_link(process, device, lane)
    }

    /// How far a swap of a device is, if one runs.
    pub fn swap_of(&self, process: &ProcessStatus, device: &ProcessDevice) -> Option<&SwapStatus> {
        let is_its = |swap: &&RunningSwap| swap.pid == process.pid && swap.name == device.name();
        self.swaps.iter().find(is_its).map(|swap| &swap.progress)
    }

    /// All devices with the processes that have them.
    pub fn devices(&self) -> impl Iterator<Item = (&ProcessStatus, &ProcessDevice)> {
        devices_of(&self.processes)
    }
}

/// Adds what a command calls a shared device whose name another process has a shared device of, too: `called`.
fn call_apart(processes: &mut [ProcessStatus]) {
    let mut named: BTreeMap<&str, BTreeSet<u32>> = BTreeMap::new();
    for (process, device) in devices_of(processes) {
        if let Some(shared) = device.shared() {
            named.entry(&shared.name).or_default().insert(process.pid);
        }
    }
    let several: BTreeSet<String> =
        named.into_iter().filter(|(_, pids)| pids.len() > 1).map(|(name, _)| name.to_owned()).collect();
    for ProcessStatus { pid, devices, .. } in processes {
        for device in devices {
            if let ProcessDevice::Shared(shared) = device {
                shared.called = several.contains(&shared.name).then(|| format!("{}@{pid}", shared.name));
            }
        }
    }
}

#[cfg(test)]
pub mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// A process, and a device, as JSON has them.
    pub fn process(answer: Value) -> ProcessStatus {
        serde_json::from_value(answer).unwrap()
    }

    pub fn device(answer: Value) -> ProcessDevice {
        serde_json::from_value(answer).unwrap()
    }

    /// The status of these processes.
    pub fn status(processes: Value) -> CombinedStatus {
        CombinedStatus { processes: serde_json::from_value(processes).unwrap(), ..CombinedStatus::default() }
    }

    #[test]
    fn shared_devices_of_one_name_are_called_apart_and_no_others() {
        let shared = |name: &str| json!({ "name": name, "bus_id": "1-1" });
        let attached = json!({ "name": "disk", "title": "lab3/disk" });
        let processes = status(json!([
            { "pid": 7, "devices": [shared("disk"), shared("tape")] },
            { "pid": 8, "devices": [shared("disk"), attached] },
            { "pid": 9, "devices": [{ "name": "tape" }] },
            { "devices": [] },
        ]));
        let statuses = ProcessStatuses { processes: processes.processes, ..ProcessStatuses::default() };
        let status = CombinedStatus::after(&CombinedStatus::default(), statuses, Arc::default());
        let called: Vec<_> =
            status.devices().map(|(_, device)| device.shared().and_then(|it| it.called.as_deref())).collect();
        assert_eq!(called, [Some("disk@7"), None, Some("disk@8"), None, None]);
    }
}
