//! A running process and its devices.

use std::borrow::Cow;

#[cfg(feature = "schema")]
use schemars::JsonSchema;
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use crate::attachment::{AttachmentStatus, MigrationStatus};
use crate::daemon::{DaemonStatus, FailedDevice};
use crate::device::{DeviceStatus, MediumStatus, WaitingStatus};
use crate::failure::FailureReport;
use crate::lease::{BookedStatus, LeaseStatus};
use crate::pipe::PipeStatus;
use crate::reservation::{BusStatus, ReservationStatus};
use crate::session::{Latency, LinkStatus, Readings};
use crate::swap::SwapStatus;

/// A process. `farbus status --json` prints a list of them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[cfg_attr(feature = "schema", schemars(rename = "Process"))]
#[serde(default)]
pub struct ProcessStatus {
    /// Process id, as the kernel of this machine numbers it.
    pub pid: u32,
    /// What it does: `share`, `attach`, `daemon`, `nbd`, `pipe` or `run`; `host` for another host.
    pub role: Cow<'static, str>,
    /// Where it listens, or what it is attached to.
    pub address: String,
    /// Whether only paired hosts are served there.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_for_paired_hosts: bool,
    /// The devices that it shares or has attached.
    pub devices: Vec<ProcessDevice>,
    /// The buses of which it has reserved time, if there are any; at most 32.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub buses: Vec<BusStatus>,
    /// What a daemon says besides.
    #[serde(flatten)]
    pub of_daemon: Option<DaemonStatus>,
}

/// A device of a process. Its fields tell of which kind it is.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[cfg_attr(feature = "schema", schemars(rename = "Device"))]
#[serde(untagged)]
pub enum ProcessDevice {
    /// A device that is shared.
    Shared(Box<DeviceStatus>),
    /// A pipe with a reservation that this host runs (`farbus pipe`).
    Pipe(Box<PipeStatus>),
    /// A device that is attached, or a medium that `farbus nbd` serves.
    Attached(Box<AttachmentStatus>),
    /// A device that a daemon cannot share.
    Failed(FailedDevice),
}

impl ProcessStatus {
    /// The name that it gives to paired hosts, if it is a daemon that serves some.
    pub fn host(&self) -> Option<&str> {
        self.of_daemon.as_ref()?.host.as_deref()
    }

    /// A process that has these devices, and nothing else to say.
    pub fn new(pid: u32, role: &'static str, address: String, devices: Vec<ProcessDevice>) -> Self {
        let (is_for_paired_hosts, buses, of_daemon) = (false, Vec::new(), None);
        Self { pid, role: role.into(), address, is_for_paired_hosts, devices, buses, of_daemon }
    }
}

/// All devices of these processes, with the processes that have them.
pub fn devices_of(processes: &[ProcessStatus]) -> impl Iterator<Item = (&ProcessStatus, &ProcessDevice)> {
    processes.iter().flat_map(|process| process.devices.iter().map(move |device| (process, device)))
}

impl<'de> Deserialize<'de> for ProcessDevice {
    /// Reads a device by what only one kind says: a bus id, or a state of a shared device; a report; or a failure and
    /// no more. Any other one is attached. What is left out has its default.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = Value::deserialize(deserializer)?;
        let state = value.get("state").and_then(Value::as_str);
        let is_shared = value.get("bus_id").is_some() || matches!(state, Some("available" | "in use" | "moved away"));
        let read = match () {
            () if is_shared => DeviceStatus::deserialize(value).map(Self::from),
            () if value.get("pipe").is_some() => PipeStatus::deserialize(value).map(Self::from),
            () if state == Some("failed") && value.get("title").is_none() => {
                FailedDevice::deserialize(value).map(Self::Failed)
            }
            () => AttachmentStatus::deserialize(value).map(Self::from),
        };
        read.map_err(D::Error::custom)
    }
}

impl ProcessDevice {
    /// What its process says of a shared device; `None`: it is none.
    pub fn shared(&self) -> Option<&DeviceStatus> {
        match self {
            Self::Shared(status) => Some(status),
            _ => None,
        }
    }

    /// What its process says of an attached device; `None`: it is none.
    pub fn attached(&self) -> Option<&AttachmentStatus> {
        match self {
            Self::Attached(status) => Some(status),
            _ => None,
        }
    }

    /// The name under which it is shared, or its name at its exporter.
    pub fn name(&self) -> &str {
        match self {
            Self::Shared(status) => &status.name,
            Self::Pipe(status) => &status.name,
            Self::Attached(status) => &status.name,
            Self::Failed(status) => &status.name,
        }
    }

    /// What it is, in words; of an attached device its target. Empty if its process does not say it.
    pub fn title(&self) -> &str {
        match self {
            Self::Shared(status) => &status.title,
            Self::Pipe(status) => &status.title,
            Self::Attached(status) => &status.title,
            Self::Failed(_) => "",
        }
    }

    /// Its state, in a word.
    pub fn state(&self) -> &str {
        match self {
            Self::Shared(status) => &status.state,
            Self::Pipe(status) => &status.state,
            Self::Attached(status) => &status.state,
            Self::Failed(status) => &status.state,
        }
    }

    /// Who uses it, or the exporter that has it.
    pub fn user(&self) -> Option<&str> {
        let user = match self {
            Self::Shared(status) => status.user.as_deref()?,
            Self::Pipe(status) => &status.user,
            Self::Attached(status) => &status.user,
            Self::Failed(_) => return None,
        };
        Some(user).filter(|user| !user.is_empty())
    }

    /// What its user needs it for.
    pub fn reason(&self) -> Option<&str> {
        match self {
            Self::Shared(status) => status.reason.as_deref(),
            Self::Attached(status) => status.reason.as_deref(),
            Self::Pipe(_) | Self::Failed(_) => None,
        }
    }

    /// The mode in which it is used.
    pub fn mode(&self) -> Option<&str> {
        match self {
            Self::Shared(status) => status.mode.as_deref(),
            Self::Attached(status) => status.mode.as_deref(),
            Self::Pipe(_) | Self::Failed(_) => None,
        }
    }

    /// For how long it has been in use, seconds.
    pub fn used_s(&self) -> Option<f64> {
        match self {
            Self::Shared(status) => status.used_s,
            Self::Pipe(status) => Some(status.used_s),
            // One that is waited for is not used.
            Self::Attached(status) => Some(status.used_s),
            Self::Failed(_) => None,
        }
    }

    /// Why it cannot be had, if it cannot.
    pub fn failure(&self) -> Option<&FailureReport> {
        match self {
            Self::Attached(status) => status.failure.as_ref(),
            Self::Failed(status) => Some(&status.failure),
            Self::Shared(_) | Self::Pipe(_) => None,
        }
    }

    /// The classes of its interfaces, in words.
    pub fn interfaces(&self) -> &[String] {
        match self {
            Self::Shared(status) => &status.interfaces,
            Self::Attached(status) => &status.interfaces,
            Self::Pipe(_) | Self::Failed(_) => &[],
        }
    }

    /// The links of its session.
    pub fn links(&self) -> &[LinkStatus] {
        let links = match self {
            Self::Shared(status) => status.links.as_ref(),
            Self::Attached(status) => status.links.as_ref(),
            Self::Pipe(_) | Self::Failed(_) => None,
        };
        links.map(|links| links.each.as_slice()).unwrap_or_default()
    }

    /// What has passed through.
    pub fn meters(&self) -> Option<&Readings> {
        match self {
            Self::Shared(status) => status.meters.as_ref(),
            Self::Attached(status) => status.meters.as_ref(),
            Self::Pipe(_) | Self::Failed(_) => None,
        }
    }

    /// Further counters, by name.
    pub fn counts(&self) -> impl Iterator<Item = (&str, u64)> {
        let of_device = self.shared().into_iter().flat_map(|status| &status.counts);
        let of_attachment = self.attached().into_iter().flat_map(|status| &status.counts);
        let of_device = of_device.map(|(name, count)| (name.as_str(), *count));
        of_device.chain(of_attachment.map(|(name, count)| (name.as_ref(), *count)))
    }

    /// How long its latest requests took.
    pub fn latency(&self) -> Option<&Latency> {
        self.attached()?.latency.as_ref()
    }

    /// The lease of it that a host has.
    pub fn lease(&self) -> Option<&LeaseStatus> {
        self.shared()?.lease.as_ref()
    }

    /// The hosts that wait for it.
    pub fn waiting(&self) -> &[WaitingStatus] {
        self.shared().map(|status| status.waiting.as_slice()).unwrap_or_default()
    }

    /// Leases of it ahead of time.
    pub fn booked(&self) -> &[BookedStatus] {
        self.shared().map(|status| status.booked.as_slice()).unwrap_or_default()
    }

    /// Its migration that runs, or the last one.
    pub fn migration(&self) -> Option<&MigrationStatus> {
        self.attached()?.migration.as_ref()
    }

    /// The medium of a disk.
    pub fn medium(&self) -> Option<&MediumStatus> {
        match self {
            Self::Shared(status) => status.medium.as_ref(),
            Self::Attached(status) => status.medium.as_ref(),
            Self::Pipe(_) | Self::Failed(_) => None,
        }
    }

    /// Its swap that runs, or the last one.
    pub fn swap(&self) -> Option<&SwapStatus> {
        match self {
            Self::Shared(status) => status.swap.as_ref(),
            Self::Attached(status) => status.swap.as_ref(),
            Self::Pipe(_) | Self::Failed(_) => None,
        }
    }

    /// What is reserved for it.
    pub fn reservation(&self) -> Option<&ReservationStatus> {
        match self {
            Self::Shared(status) => status.reservation.as_ref(),
            Self::Attached(status) => status.reservation.as_ref(),
            Self::Pipe(_) | Self::Failed(_) => None,
        }
    }
}

impl From<DeviceStatus> for ProcessDevice {
    fn from(status: DeviceStatus) -> Self {
        Self::Shared(Box::new(status))
    }
}

impl From<AttachmentStatus> for ProcessDevice {
    fn from(status: AttachmentStatus) -> Self {
        Self::Attached(Box::new(status))
    }
}

impl From<PipeStatus> for ProcessDevice {
    fn from(status: PipeStatus) -> Self {
        Self::Pipe(Box::new(status))
    }
}

impl From<FailedDevice> for ProcessDevice {
    fn from(status: FailedDevice) -> Self {
        Self::Failed(status)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use serde_json::json;

    use super::*;

    /// A daemon, as one describes itself.
    pub(crate) fn daemon() -> Value {
        json!({
            "pid": 7, "role": "daemon", "address": "0.0.0.0:3240", "is_for_paired_hosts": true,
            "devices": [
                {
                    "name": "disk", "bus_id": "1-1", "is_named": true, "title": "farbus disk", "speed": "high",
                    "ids": "0525:a4a5", "interfaces": ["storage"], "size_bytes": 4096, "state": "in use",
                    "identity": { "id": "0123456789abcdef0011223344556677", "generation": 2, "is_lasting": true },
                    "labels": { "board": "imx8" }, "place": "shelf 3", "user": "lab3", "used_s": 1.5,
                    "lease": {
                        "host": "lab3", "state": "held", "since_s": 1.0, "left_s": 59.0, "until": "2026-11-29T12:00:00Z",
                        "priority": 5, "number": 3, "is_yours": false
                    },
                },
                { "name": "board", "title": "lab3:3240/board", "state": "waiting", "user": "lab3:3240", "at": "",
                  "used_s": 0.0, "failure": { "attribute": "gone", "message": "no such device" } },
                { "name": "cam", "state": "failed", "failure": { "attribute": "local", "message": "it is in use here" } },
            ],
            "config": "/etc/farbus.toml", "takes": ["usb"],
            "page": { "at": null, "failure": "the port is taken", "elsewhere": null },
        })
    }

    #[test]
    fn what_a_daemon_says_is_read_as_the_kinds_that_it_means() {
        let status: ProcessStatus = serde_json::from_value(daemon()).unwrap();
        let kinds: Vec<&str> = status
            .devices
            .iter()
            .map(|device| match device {
                ProcessDevice::Shared(_) => "shared",
                ProcessDevice::Pipe(_) => "pipe",
                ProcessDevice::Attached(_) => "attached",
                ProcessDevice::Failed(_) => "failed",
            })
            .collect();
        assert_eq!(kinds, ["shared", "attached", "failed"]);
        let ProcessDevice::Shared(disk) = &status.devices[0] else { unreachable!() };
        assert_eq!((disk.notes.labels["board"].as_str(), disk.notes.place.as_deref()), ("imx8", Some("shelf 3")));
        assert_eq!(
            status.of_daemon.as_ref().and_then(|of| of.page.as_ref()?.failure.as_deref()),
            Some("the port is taken")
        );
        let mut again = serde_json::to_value(&status).unwrap();
        // `null` and nothing mean the same to a reader.
        assert!(again["of_daemon"].is_null() && again["page"].as_object_mut().unwrap().remove("elsewhere").is_none());
        let mut answer = daemon();
        answer["page"].as_object_mut().unwrap().remove("elsewhere");
        assert_eq!(again, answer);
    }

    #[test]
    fn what_a_later_release_says_besides_is_passed_over() {
        let mut answer = daemon();
        answer["mood"] = json!("good");
        answer["devices"][0]["colour"] = json!("red");
        answer["devices"][1]["state"] = json!("on the moon");
        let status: ProcessStatus = serde_json::from_value(answer).unwrap();
        let ProcessDevice::Attached(board) = &status.devices[1] else { panic!("attached") };
        assert_eq!(board.state, "on the moon");
    }

    #[test]
    fn a_process_without_more_is_no_daemon() {
        let answer = json!({ "pid": 7, "role": "run", "address": "", "devices": [] });
        let status: ProcessStatus = serde_json::from_value(answer.clone()).unwrap();
        assert!(status.of_daemon.is_none());
        assert_eq!(serde_json::to_value(&status).unwrap(), answer);
    }
}
