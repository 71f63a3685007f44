//! The messages between the confined process and the broker: JSON, one message in each direction, with a descriptor
//! where one is passed.

use std::collections::BTreeSet;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use farbus_control::device::RemoteIdentity;
use farbus_io_linux::evidence::ProcessSecret;
use farbus_io_linux::frontend::fuse::MountMark;
use farbus_io_net::sys::passing::MESSAGE_BYTES_MAX;
use farbus_io_net::trust::{
    AttachedDevice, AuditOutcome, DeviceId, DiskRetirement, Fingerprint, StoredBooking, StoredLease,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::common::socket_place::SocketLocation;
use crate::devices::identities::{ExpectedImage, KnownUsb};
use crate::devices::retirement::RetirementStep;
use crate::hosts::reach::AddressHints;

/// The most bytes of an answer's list: a message has room for its own words beside that.
const LIST_BYTES_MAX: usize = MESSAGE_BYTES_MAX - 256;

/// The answer to [`BrokerRequest::Retirements`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct StoredRetirements {
    /// How many of the devices were looked up, from the first on: as many as a message has room for.
    pub count: usize,
    /// Those of them of which something is to be told. Of the others nothing is stored.
    pub found: Vec<FoundRetirement>,
}

/// What is stored of one disk, or why that is not known.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct FoundRetirement {
    pub device: DeviceId,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retirement: Option<DiskRetirement>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trouble: Option<String>,
}

impl StoredRetirements {
    /// Looks up as many of the devices as a message has room for.
    pub fn look_up(
        devices: &[DeviceId],
        mut stored: impl FnMut(DeviceId) -> io::Result<Option<DiskRetirement>>,
    ) -> io::Result<Self> {
        let (mut all, mut filled) = (Self::default(), 0);
        for &device in devices {
            let found = match stored(device) {
                Ok(None) => None,
                Ok(retirement) => Some(FoundRetirement { device, retirement, trouble: None }),
                Err(error) => Some(FoundRetirement { device, retirement: None, trouble: Some(error.to_string()) }),
            };
            if let Some(found) = found {
                filled += to_json(&found)?.len() + 1;
                if filled > LIST_BYTES_MAX {
                    break;
                }
                all.found.push(found);
            }
            all.count += 1;
        }
        Ok(all)
    }
}

/// A question of the confined process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "snake_case")]
pub(super) enum BrokerRequest {
    Line,
    Config,
    Listen {
        place: SocketLocation,
    },
    ListenAt {
        place: SocketLocation,
    },
    /// Makes the broker remove the socket of another process at the end.
    TakePlace {
        place: SocketLocation,
    },
    /// Keeps the broker from removing the socket, because another process listens there.
    LeavePlace {
        place: SocketLocation,
    },
    /// Opens a terminal, and makes a link at this place lead to it.
    OpenTerminal {
        place: SocketLocation,
    },
    /// Asks for the descriptor that tells when programs open the terminal of this place.
    WatchTerminal {
        place: SocketLocation,
    },
    /// Drops what no program has read of the terminal of this place.
    EmptyTerminal {
        place: SocketLocation,
    },
    /// Removes a terminal's link: its attachment has ended.
    EndTerminal {
        place: SocketLocation,
    },
    OpenImage {
        path: PathBuf,
        read_only: bool,
    },
    /// Passes an image that the owner opened. The next [`BrokerRequest::OpenImage`] with this path returns it.
    PassImage {
        path: PathBuf,
        read_only: bool,
        /// Whether others may use it, too.
        #[serde(default)]
        is_forced: bool,
    },
    /// Closes the passed images that were not opened.
    ForgetImages,
    /// Names images that are going to be opened and identified, so that all new ones are stored at once.
    ExpectImages {
        images: Vec<ExpectedImage>,
    },
    /// Identifies a view of an image that was opened.
    IdentifyImage {
        path: PathBuf,
        read_only: bool,
        view: String,
    },
    /// Identifies a USB device.
    IdentifyUsb {
        bus: u32,
        device: u32,
    },
    /// Asks for the common id of all devices made of code that have this description.
    IdentifyMade {
        words: String,
    },
    /// Stores the name of an identified device, and whether its owner gave it that name.
    NoteName {
        device: DeviceId,
        name: String,
        is_named: bool,
    },
    /// Asks what the owner says of a device by `farbus label`: by its id, if that lasts and it was identified here, or
    /// by its name.
    NotesOf {
        device: Option<DeviceId>,
        name: String,
    },
    /// Asks why a disk of another host should not be attached: a swap may have moved it to this machine.
    ObjectionToAttaching {
        title: String,
        identity: Option<RemoteIdentity>,
    },
    /// Asks which device an attachment of the configuration had (`HOST:PORT/DEVICE`).
    AttachedDevice {
        target: String,
    },
    /// Stores which device an attachment of the configuration has, or forgets it.
    KeepAttachedDevice {
        target: String,
        device: Option<AttachedDevice>,
    },
    /// Names the devices that the process identified itself, before it gave its rights away. Asked once.
    Shared {
        devices: Vec<DeviceId>,
    },
    /// Asks what is stored of a disk that a host moves to its own machine, after noting what was said, if anything.
    Retirement {
        device: DeviceId,
        step: Option<RetirementStep>,
    },
    /// Asks what is stored of many disks, as [`BrokerRequest::Retirement`] does of one ([`StoredRetirements`]).
    Retirements {
        devices: Vec<DeviceId>,
    },
    /// Reserves a count for the next lease of a device that is shared here.
    ReserveLease {
        device: DeviceId,
        /// The count of its latest lease.
        latest: u64,
        /// A count that the next one is to exceed.
        above: u64,
    },
    /// Stores the lease of a device that is shared here, or that it has none.
    KeepLease {
        device: DeviceId,
        lease: Option<StoredLease>,
    },
    /// Stores the leases ahead of time of a device that is shared here.
    KeepBookings {
        device: DeviceId,
        bookings: Vec<StoredBooking>,
    },
    OpenFrames {
        path: PathBuf,
    },
    OpenUsb {
        bus: u32,
        device: u32,
    },
    InheritUsb {
        bus: u32,
        device: u32,
    },
    /// Passes the node of a USB device that the owner opened. It may be opened with [`BrokerRequest::OpenUsb`] then.
    PassUsb {
        bus: u32,
        device: u32,
    },
    GivenBack {
        bus: u32,
        device: u32,
    },
    Connect {
        host: String,
        time_max_ms: u64,
        #[serde(default)]
        hints: AddressHints,
    },
    Datagrams {
        host: String,
        #[serde(default)]
        hints: AddressHints,
    },
    /// Reports that a paired host proved its key on a connection to this address.
    Proved {
        host: String,
        at: SocketAddr,
    },
    ListenDatagrams {
        place: SocketLocation,
        port: u16,
    },
    /// Asks which user of this machine made the TCP connection that is passed along.
    PeerOwner,
    UserNumber {
        name: String,
    },
    Explain {
        user: String,
        reason: String,
    },
    /// Writes a line of the audit log about a use of a device, or a connection that failed.
    Record {
        used: String,
        outcome: AuditOutcome,
        /// The key that the peer proved, or showed.
        #[serde(default)]
        key: Option<Fingerprint>,
        who: String,
        device: String,
        why: Option<String>,
    },
    /// Asks for the processes that answer their owner here.
    Running,
    /// Tells these processes what processor time is reserved in the owner's name; the end of a lease is passed along.
    Promise {
        whom: BTreeSet<u32>,
        reserves: Vec<(u64, u64)>,
    },
    /// Gives a thread of the confined process a budget of one processor in each period; 0: takes it away.
    Schedule {
        thread: u32,
        budget_ns: u64,
        period_ns: u64,
    },
    /// Isolates a processor from all other programs.
    Processor {
        cpu: usize,
    },
    MayPlug,
    Plug {
        device_id: u32,
        speed: String,
    },
    Unplug {
        port: u32,
    },
    /// Asks which drivers of this machine took the device on this port.
    Drivers {
        port: u32,
    },
    Mount {
        at: PathBuf,
        read_only: bool,
    },
    /// Hands the broker a mount that another process kept, to be unmounted at the end.
    KeepMount {
        at: PathBuf,
    },
    ReadAhead {
        mount: u64,
        bytes: usize,
    },
    Leave {
        mount: u64,
    },
    Abort {
        mount: u64,
    },
    Forget {
        mount: u64,
    },
    Replacement,
    /// Starts the page of the configuration; one that runs is ended first.
    Page,
}

/// The broker's answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum BrokerAnswer {
    Done(Value),
    Refused { why: String, kind: BrokerRefusalKind },
}

/// What a refusal means to the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum BrokerRefusalKind {
    Denied,
    Gone,
    InUse,
    Other,
}

impl BrokerRefusalKind {
    pub(super) fn of(error: &io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::PermissionDenied => BrokerRefusalKind::Denied,
            io::ErrorKind::NotFound => BrokerRefusalKind::Gone,
            io::ErrorKind::AddrInUse => BrokerRefusalKind::InUse,
            _ => BrokerRefusalKind::Other,
        }
    }

    pub(super) fn error(self, why: String) -> io::Error {
        let kind = match self {
            BrokerRefusalKind::Denied => io::ErrorKind::PermissionDenied,
            BrokerRefusalKind::Gone => io::ErrorKind::NotFound,
            BrokerRefusalKind::InUse => io::ErrorKind::AddrInUse,
            BrokerRefusalKind::Other => io::ErrorKind::Other,
        };
        io::Error::new(kind, why)
    }
}

/// A mount's number and path.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct MountedAt {
    pub mount: u64,
    pub at: PathBuf,
}

/// What the broker tells the replacement of its confined process before that process says anything. The replacement may
/// be of the next release: fields are only added, and read with a default. The other messages here stay within one
/// release, because each process starts its broker from its own program file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct HandoverState {
    /// Ports of this machine's kernel that are in use.
    pub ports: Vec<u32>,
    /// Mounts that are kept.
    pub mounts: Vec<MountMark>,
    /// USB devices that are open, by bus and number. Their open nodes follow in this order.
    pub devices: Vec<(u32, u32)>,
    /// The secret from which identities are derived that are not stored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub identity_secret: Option<ProcessSecret>,
    /// The evidence by which plugged-in USB devices are known. An earlier release does not send it; then a device is
    /// identified by its current descriptors.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub known_usb: Vec<KnownUsb>,
    /// USB devices that were identified, also those that are not plugged in now: another device in the port of one may
    /// be taken for it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub identified_usb: Vec<DeviceId>,
}

/// Encodes a message.
pub(super) fn to_json(message: &impl Serialize) -> io::Result<Vec<u8>> {
    Ok(serde_json::to_vec(message)?)
}

/// A time limit in the unit of the protocol, milliseconds.
pub(super) fn in_ms(span: Duration) -> u64 {
    span.as_millis().try_into().unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answer_about_many_disks_has_as_many_as_a_message_has_room_for() {
        let devices: Vec<DeviceId> = (1..=200).map(|number| DeviceId::from_random([number; 16])).collect();
        let text = || "x".repeat(300);
        let moved = || DiskRetirement { by: text(), host: text(), since: text(), is_done: true };
        let (mut rest, mut found) = (&devices[..], Vec::new());
        while !rest.is_empty() {
            let stored = StoredRetirements::look_up(rest, |_| Ok(Some(moved()))).unwrap();
            let answer = to_json(&BrokerAnswer::Done(serde_json::json!(stored))).unwrap();
            assert!(answer.len() <= MESSAGE_BYTES_MAX && stored.count == stored.found.len(), "{}", answer.len());
            rest = &rest[stored.count..];
            found.extend(stored.found.into_iter().map(|found| found.device));
        }
        assert_eq!(found, devices);
        let unknown = StoredRetirements::look_up(&devices, |_| Ok(None)).unwrap();
        assert_eq!(unknown, StoredRetirements { count: devices.len(), found: Vec::new() });
    }

    /// What the confined process, which may have been taken over, says to the broker; and what it is told.
    #[test]
    fn fuzz_broker_lines() {
        const LINES: [&str; 11] = [
            r#"{"ask":"open_image","path":"/srv/a.img","read_only":true}"#,
            r#"{"ask":"expect_images","images":[{"path":"/a","read_only":true,"view":"ro","name":"a","is_named":true}]}"#,
            r#"{"ask":"identify_usb","bus":1,"device":2}"#,
            r#"{"ask":"notes_of","device":"00112233445566778899aabbccddeeff","name":"disk"}"#,
            r#"{"ask":"promise","whom":[1,2],"reserves":[[100,1000]]}"#,
            r#"{"ask":"schedule","thread":7,"budget_ns":1,"period_ns":2}"#,
            r#"{"ask":"record","used":"attach","outcome":"ok","who":"x","device":"disk","why":null}"#,
            r#"{"ask":"reserve_lease","device":"00112233445566778899aabbccddeeff","latest":1,"above":18446744073709551615}"#,
            r#"{"ask":"keep_lease","device":"00112233445566778899aabbccddeeff","lease":null}"#,
            r#"{"ask":"proved","host":"lab3","at":"10.0.0.7:3241"}"#,
            r#"{"ask":"mount","at":"/mnt","read_only":false}"#,
        ];
        const WORDS: [&str; 10] =
            ["null", "-1", "1e99", "18446744073709551616", "\"ask\":", "\\u0000", "../", "[[[[[[", "{", "\"line\""];
        crate::fuzzing::fuzz(env!("CARGO_MANIFEST_DIR"), "fuzz_broker_lines", |input| {
            let line = input.text(&LINES, &WORDS);
            let Ok(question) = serde_json::from_str::<BrokerRequest>(&line) else { return };
            let again = serde_json::to_string(&question).unwrap();
            assert_eq!(serde_json::from_str::<BrokerRequest>(&again).unwrap(), question, "{line}");
        });
    }
}
