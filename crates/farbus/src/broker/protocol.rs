//! What the two halves say to each other: JSON, a message each way, and a descriptor with it.

use std::collections::BTreeSet;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use farbus_io::evidence::ProcessSecret;
use farbus_io::frontend::fuse::MountMark;
use farbus_io::trust::{DeviceId, Outcome};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::common::socket_place::Place;
use crate::devices::identities::KnownUsb;
use crate::hosts::reach::Hints;

/// What may be asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "snake_case")]
pub(super) enum Question {
    Line,
    Config,
    Listen {
        place: Place,
    },
    ListenAt {
        place: Place,
    },
    /// Another process listened there, and it is ours to remove.
    TakePlace {
        place: Place,
    },
    /// Another process listens there from now on.
    LeavePlace {
        place: Place,
    },
    OpenImage {
        path: PathBuf,
        read_only: bool,
    },
    /// Which device a view of an image is that was opened.
    IdentifyImage {
        path: PathBuf,
        read_only: bool,
        view: String,
    },
    /// Which device a USB device is.
    IdentifyUsb {
        bus: u32,
        device: u32,
    },
    /// The id that devices made of code have in common which are what these words say.
    IdentifyMade {
        words: String,
    },
    /// What a device that was identified is called; whether its owner gave it that name.
    NoteName {
        device: DeviceId,
        name: String,
        is_named: bool,
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
    GivenBack {
        bus: u32,
        device: u32,
    },
    Connect {
        host: String,
        time_max_ms: u64,
        #[serde(default)]
        hints: Hints,
    },
    Datagrams {
        host: String,
        #[serde(default)]
        hints: Hints,
    },
    /// A paired host has proved its key on a connection to there.
    Proved {
        host: String,
        at: SocketAddr,
    },
    ListenDatagrams {
        place: Place,
        port: u16,
    },
    /// Which user of this machine is at the other end of the TCP connection that comes along.
    PeerOwner,
    UserNumber {
        name: String,
    },
    Explain {
        user: String,
        reason: String,
    },
    /// A line of the audit log about somebody who proved no key.
    Record {
        used: String,
        outcome: Outcome,
        who: String,
        device: String,
        why: Option<String>,
    },
    /// Which processes answer their owner here.
    Running,
    /// Tells these what is promised of this host's processors in the owner's name; the end of a lease comes along.
    Promise {
        whom: BTreeSet<u32>,
        reserves: Vec<(u64, u64)>,
    },
    /// A processor of its own.
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
    Mount {
        at: PathBuf,
        read_only: bool,
    },
    /// Another process kept this mount, and it is ours to take away.
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
}

/// What is answered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Answer {
    Done(Value),
    Refused { why: String, kind: Kind },
}

/// What a refusal means to whoever acts on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Kind {
    Denied,
    Gone,
    InUse,
    Other,
}

impl Kind {
    pub(super) fn of(error: &io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::PermissionDenied => Kind::Denied,
            io::ErrorKind::NotFound => Kind::Gone,
            io::ErrorKind::AddrInUse => Kind::InUse,
            _ => Kind::Other,
        }
    }

    pub(super) fn error(self, why: String) -> io::Error {
        let kind = match self {
            Kind::Denied => io::ErrorKind::PermissionDenied,
            Kind::Gone => io::ErrorKind::NotFound,
            Kind::InUse => io::ErrorKind::AddrInUse,
            Kind::Other => io::ErrorKind::Other,
        };
        io::Error::new(kind, why)
    }
}

/// Where a mount is, and its number from then on.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct MountedAt {
    pub mount: u64,
    pub at: PathBuf,
}

/// What the half with rights tells a process that goes on in place of its other half, before that says anything. That
/// process may be of the next release: fields are only added, and read with a default. The other messages here stay
/// within one release, since each process starts its other half from the program that it runs itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct HandoverState {
    /// Ports of this machine's kernel that are in use.
    pub ports: Vec<u32>,
    /// Mounts.
    pub mounts: Vec<MountMark>,
    /// USB devices that are taken, by bus and number; what is open of each comes along, in this order.
    pub devices: Vec<(u32, u32)>,
    /// From which identities are derived that are not kept anywhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub identity_secret: Option<ProcessSecret>,
    /// By what USB devices that are plugged in are known. An earlier release does not say it: then a device is known by
    /// what it says of itself now.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub known_usb: Vec<KnownUsb>,
}

/// A message's bytes.
pub(super) fn to_json(message: &impl Serialize) -> io::Result<Vec<u8>> {
    Ok(serde_json::to_vec(message)?)
}

/// How long the other half may try to connect, in the unit in which it is told.
pub(super) fn in_ms(span: Duration) -> u64 {
    span.as_millis().try_into().unwrap_or(u64::MAX)
}
