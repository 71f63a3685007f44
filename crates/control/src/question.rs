//! What is asked on a control socket, and answered.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::failure::FailureReport;
use crate::identity::DeviceId;
use crate::notes::DeviceNotes;
use crate::peer::Peer;

/// The version of the protocol (docs/control.md). New questions and fields do not change it; a change to existing ones
/// does.
pub const PROTOCOL: u32 = 1;
/// What a daemon says at its end of a lease when it ends the share of a command that still runs (docs/control.md).
pub const HAS_ENDED: &[u8] = b"unshared\n";
/// What a daemon says there when it ends the share because the device was unplugged.
pub const IS_UNPLUGGED: &[u8] = b"unplugged\n";
/// The longest question, bytes. The text to type on a keyboard needs the most.
pub const QUESTION_BYTES_MAX: usize = 64 << 10;

/// A question to a running share, attach or daemon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "lowercase")]
pub enum Question {
    /// Asks for the version of the protocol. Every process answers it in the same way.
    Version,
    /// Asks for the status of the process and its devices.
    Status,
    /// Asks what happened in the process after the event with this number. Every process answers it in the same way.
    Events {
        /// The number; 0 asks for everything that is kept.
        #[serde(default)]
        after: u64,
    },
    /// Share, daemon: asks for the descriptors of a device.
    Descriptors {
        /// Name or bus id.
        device: String,
    },
    /// Attach, daemon, run: how long the requests of an attached device took in each of the last seconds.
    Latency {
        /// The device by name or target.
        device: String,
    },
    /// Attach: detach the device and end. Daemon: detach the device until the next reload. A share answers `unknown`.
    Detach {
        /// The device by name, bus id or target; `None` means whatever is attached.
        device: Option<String>,
        /// Whether to detach even while programs have the device open.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        force: bool,
    },
    /// Attach via redir: hold the device, because its virtual machine is about to be migrated.
    Hold {
        /// The device by name or target.
        device: String,
    },
    /// Attach: migrate the device to another host.
    Migrate {
        /// The device by name or target.
        device: String,
        /// The key of the successor, which is that host. The protocol calls it `heir` (docs/control.md).
        #[serde(rename = "heir")]
        successor: String,
        /// Whether it goes at once: its user's requests fail, and its state is thrown away.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        discard: bool,
        /// How the device's owner names that host.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        to: Option<String>,
    },
    /// Attach: say whether the device could migrate now; change nothing.
    #[serde(rename = "may-migrate")]
    MayMigrate {
        /// The device by name or target.
        device: String,
    },
    /// Attach via redir or nbd: let the device serve its user as before, and migrate to another host when the user
    /// leaves.
    Follow {
        /// The device by name or target.
        device: String,
        /// The key of the successor, as for `migrate`.
        #[serde(rename = "heir")]
        successor: String,
        /// How the device's owner names that host.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        to: Option<String>,
    },
    /// Attach via redir or nbd: the device follows the virtual machine of a process, and that machine has stopped for
    /// good. The device goes now, and not only when the process has ended.
    Depart {
        /// The device by name or target.
        device: String,
        /// The process's number.
        process: u32,
    },
    /// Attach via redir: resume the device, because its virtual machine stays.
    Resume {
        /// The device by name or target.
        device: String,
    },
    /// Attach: stop or restart the data that passes through the device's modules.
    Pause {
        /// The device by name or target.
        device: String,
        /// Whether to stop it.
        is_paused: bool,
    },
    /// Share: take a device back from its user.
    Release {
        /// Name or bus id.
        device: String,
        /// The remark for the history.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
        /// For how long the user's host may not have the device again, seconds.
        #[serde(default)]
        keep_out_s: u64,
        /// Whether to take back even a disk that its user may write.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        force: bool,
    },
    /// Share: store the reason why the user whose connection comes from this address needs its device.
    Explain {
        /// `HOST:PORT`.
        user: String,
        /// The reason, a few words.
        reason: String,
    },
    /// Share: give this identity to a device that is not in use.
    Adopt {
        /// The name under which the device is shared.
        device: String,
        /// The device's id from now on.
        id: DeviceId,
        /// The generation: which of the device's media this is.
        generation: u64,
    },
    /// Share: show these labels of a device, which its owner has stored. Asks for all that are shown of it.
    Label {
        /// The name under which the device is shared.
        device: String,
        /// All that is stored of it.
        #[serde(flatten)]
        notes: DeviceNotes,
    },
    /// Daemon: share a device. Its files, open and locked, are passed along, and then a lease unless `keep` is set: the
    /// device is shared until the other end of the lease is closed.
    Share {
        /// The device, as `farbus share` takes it, with absolute paths and without a name.
        what: String,
        /// The name that its owner gives it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        name: Option<String>,
        /// Whether the daemon shares it until somebody asks for its end.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        keep: bool,
        /// Whether the command had a device in this port shared before, which is not there any more. A daemon of an
        /// earlier release passes over it.
        #[serde(rename = "again", default, skip_serializing_if = "std::ops::Not::not")]
        is_again: bool,
    },
    /// Daemon: stop sharing a device.
    Unshare {
        /// Name or bus id.
        device: String,
        /// Whether to end the sessions of its users.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        force: bool,
    },
    /// Share: exchange the medium of a disk. The new disk, open and locked, and the journal are passed along.
    Swap {
        /// Name or bus id.
        device: String,
        /// The new medium, as people name it.
        to: String,
        /// The highest rate of the copy, bytes a second.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        rate: Option<u64>,
        /// Whether to read and compare both media before the switch.
        #[serde(default)]
        verify: bool,
        /// Whether the new medium has a part of the copy already.
        #[serde(default)]
        resume: bool,
        /// If the new medium is a disk of a paired host: that host's entry in the owner's list.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        peer: Option<Box<Peer>>,
    },
    /// Share: asks for the status of the running or last swap of a device.
    #[serde(rename = "swap-status")]
    SwapStatus {
        /// Name or bus id.
        device: String,
    },
    /// Share: cancel the swap of a device.
    #[serde(rename = "swap-cancel")]
    SwapCancel {
        /// Name or bus id.
        device: String,
    },
    /// Daemon: read the configuration again.
    Reload {
        /// The attachment that takes whichever device is there now, by its device's name or `HOST[:PORT]/DEVICE`. A
        /// daemon of an earlier release passes over it, and answers without `adopted`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        adopt: Option<String>,
    },
    /// Daemon: hand over to the program that is on disk now.
    Restart {
        /// Whether to restart even if that interrupts a user of an attached device.
        #[serde(default)]
        interrupt: bool,
    },
    /// Daemon: bring up, take down or show the links between this host and others.
    Topology {
        /// What to do.
        act: TopologyAct,
    },
    /// Daemon: asks for what is known of the directory of all sites.
    Directory {
        /// The words of a query: only devices that it means are answered, with their hosts. `None`: all. An earlier
        /// release answers all of them in any case.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        query: Option<Vec<String>>,
        /// The `version` of an earlier answer to the same question. If hosts, devices and limits are still the same,
        /// the answer is without them. An earlier release answers all in any case.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        known: Option<String>,
    },
    /// Daemon: write in the directory what a host may have of all devices. Without any limit, the host's limit goes.
    #[serde(rename = "directory-limit")]
    DirectoryLimit {
        /// The key of the host.
        host: String,
        /// How many devices at a time.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        devices: Option<u32>,
        /// For how long from now on a lease may be, seconds.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        for_s: Option<u64>,
    },
    /// Daemon: detach devices, because this machine is about to sleep. Its kernel refuses to sleep while remote devices
    /// are plugged in.
    Sleep {
        /// Ports whose devices this machine uses, which stay attached.
        #[serde(default)]
        held: BTreeSet<u32>,
    },
    /// Daemon: attach the devices again, because this machine has woken.
    Wake,
    /// Keyboard: type a text.
    Type {
        /// Name or bus id.
        device: String,
        /// The text to type.
        text: String,
    },
    /// Share, pipe: reserve processor time of this host for threads of another process: `[budget, period]` of each
    /// thread, in nanoseconds, in place of what its owner had. One end of a lease is passed along: when its other end
    /// is closed, the reservation ends.
    Promise {
        /// The name of the owner, the same in each question.
        owner: String,
        /// All reservations of the owner.
        reserves: Vec<(u64, u64)>,
    },
    /// Removable disk: eject the medium.
    Eject {
        /// Name or bus id.
        device: String,
    },
    /// Removable disk: insert the medium again.
    Insert {
        /// Name or bus id.
        device: String,
    },
}

/// What to do about links between hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TopologyAct {
    /// Show their status.
    Status,
    /// Read the plan again and bring the links up.
    Up,
    /// Take them down.
    Down,
}

/// The answer to a question.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Answer {
    /// Done, with the value that was asked for.
    Ok(Value),
    /// This process does not have the device: ask another.
    Unknown,
    /// Refused, with the reason.
    Refused(String),
    /// Failed, with the cause.
    Failed(FailureReport),
}

impl Answer {
    /// Done, with this value.
    pub fn of(value: &impl Serialize) -> Self {
        match serde_json::to_value(value) {
            Ok(value) => Answer::Ok(value),
            Err(error) => Answer::Refused(error.to_string()),
        }
    }
}
