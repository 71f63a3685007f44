//! What the two halves say to each other: JSON, a message each way, and a descriptor with it.

use std::collections::BTreeSet;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use farbus_io::frontend::fuse::MountMark;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::place::Place;

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
    },
    Datagrams {
        host: String,
    },
    ListenDatagrams {
        place: Place,
        port: u16,
    },
    Explain {
        user: String,
        reason: String,
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
    Successor,
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

/// What the half with rights tells a process that goes on in place of its other half, before that says anything.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Legacy {
    /// Ports of this machine's kernel that are in use.
    pub ports: Vec<u32>,
    /// Mounts.
    #[serde(default)]
    pub mounts: Vec<MountMark>,
    /// USB devices that are taken, by bus and number; what is open of each comes along, in this order.
    pub devices: Vec<(u32, u32)>,
}

/// A message's bytes.
pub(super) fn to_json(message: &impl Serialize) -> io::Result<Vec<u8>> {
    Ok(serde_json::to_vec(message)?)
}

/// How long the other half may try to connect, in the unit in which it is told.
pub(super) fn in_ms(span: Duration) -> u64 {
    span.as_millis().try_into().unwrap_or(u64::MAX)
}
