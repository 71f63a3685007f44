//! What is asked on a control socket, and answered.

use std::collections::BTreeSet;

#[cfg(feature = "schema")]
use schemars::JsonSchema;
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

/// A question to a running process. One connection carries one question, a line of JSON.
// Each docstring begins with the processes that answer, and a colon: docs/control.md is made of them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(tag = "ask", rename_all = "lowercase")]
pub enum Question {
    /// All: asks for the version of the protocol. Every release answers it in the same way:
    /// `{"protocol":1,"farbus":"0.1.0"}`.
    Version,
    /// All: asks for the status of the process and its devices.
    Status,
    /// All: asks what happened in the process after an event.
    Events {
        /// The event's number; 0 asks for everything that is kept.
        #[serde(default)]
        after: u64,
    },
    /// Share, daemon: asks for the descriptors of a device, in use or not.
    Descriptors {
        /// Name or bus id.
        device: String,
    },
    /// Attach, daemon, run: asks how long the requests of an attached device took in each of the last seconds.
    Latency {
        /// Name or target.
        device: String,
    },
    /// Attach, daemon, nbd, pipe: detaches a device. A daemon attaches it again after the next reload; another process
    /// ends. Refused while programs have its disk open, unless `force` is true. A share answers `unknown`.
    Detach {
        /// Name, bus id or target; null for everything that the process has attached, to which a daemon answers
        /// `unknown`.
        device: Option<String>,
        /// Whether to detach even while programs have the device open.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        force: bool,
    },
    /// Attach, daemon: holds a device that a virtual machine has by usbredir or NBD, because the machine is about to be
    /// migrated. Then no request is under way, and the machine has read everything that was sent to it. Answered then,
    /// or refused after 8 s at most.
    Hold {
        /// Name or target.
        device: String,
    },
    /// Attach, daemon: migrates a device to another host, its successor, as soon as no request is under way. Answered
    /// at once; refused if the device has no session or is already moving. With `discard` the answer has
    /// `{"discarded":{"requests":N,"unwritten_bytes":N}}`. Without it, `{"machine":true}` says that a virtual machine
    /// has the device by usbredir or NBD: the device is held as by `hold`, and goes when the machine has left, within
    /// `hold_ms` milliseconds. `{"machine":false}` says that it goes at once, or when it is quiet; an earlier release
    /// answers null.
    Migrate {
        /// Name or target.
        device: String,
        /// The key of the successor.
        // The protocol's word is older than this name.
        #[serde(rename = "heir")]
        successor: String,
        /// Whether nothing is waited for: requests fail, a USB device is reset, and the attachment ends. An earlier
        /// release passes over it, and waits.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        discard: bool,
        /// What the device's owner calls the successor, for the status.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        to: Option<String>,
    },
    /// Attach, daemon: asks whether `migrate` would be accepted now; changes nothing. `{"held":B}` says whether the
    /// device would be held until its user has left, so that `resume` takes it back. Refused if it could not migrate.
    #[serde(rename = "may-migrate")]
    MayMigrate {
        /// Name or target.
        device: String,
    },
    /// Attach, daemon: a device that a virtual machine has by usbredir or NBD over a Unix socket serves the machine as
    /// before. It goes to another host as soon as the machine's connection has ended, with everything that was asked of
    /// it and with what the machine has not read. Answered when the machine has read what was sent to it before, or
    /// refused after 8 s at most. The device waits for the end of the connection without a limit, until `resume`.
    Follow {
        /// Name or target.
        device: String,
        /// The key of the successor, as for `migrate`.
        #[serde(rename = "heir")]
        successor: String,
        /// What the device's owner calls the successor, for the status.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        to: Option<String>,
    },
    /// Attach, daemon: the device follows the virtual machine of a process, and this machine has stopped for good (QEMU
    /// says *completed*). The device goes at once, and not only when the process has ended; the connection is closed. A
    /// disk that other processes have, too, goes when these have left.
    Depart {
        /// Name or target.
        device: String,
        /// The process's number.
        process: u32,
    },
    /// Attach, daemon: the device continues, because its virtual machine was not migrated.
    Resume {
        /// Name or target.
        device: String,
    },
    /// Attach, daemon: the module `pause` of an attached device holds what passes, or releases it. Refused if the
    /// device goes through no such module.
    Pause {
        /// Name or target.
        device: String,
        /// Whether to hold it.
        is_paused: bool,
    },
    /// Share, daemon: takes a device back from its user: `{"user":WHO}`. Refused for a disk that its user may write,
    /// unless `force` is true.
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
    /// Share, daemon: stores what a user needs its device for. The user is the one whose connection comes from an
    /// address.
    Explain {
        /// The address, `HOST:PORT`.
        user: String,
        /// What for, a few words.
        reason: String,
    },
    /// Share, daemon: gives a device another identity from now on. Refused while somebody uses the device.
    Adopt {
        /// The name under which the device is shared.
        device: String,
        /// The device's id from now on, 32 hexadecimal digits.
        id: DeviceId,
        /// The generation: which of the device's media this is.
        generation: u64,
    },
    /// Share, daemon: shows labels, place and comment of a device, in place of those that were stored before. Answers
    /// all that is shown, with what the configuration says. It stores nothing: `farbus label` does.
    Label {
        /// The name under which the device is shared.
        device: String,
        /// All that is stored of it.
        #[serde(flatten)]
        notes: DeviceNotes,
    },
    /// Daemon: shares a device. Its files, open and locked, are passed along, and then a lease unless `keep` is true:
    /// the device is shared until the other end of the lease is closed.
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
    /// Daemon: stops sharing a device. Refused while somebody uses it, unless `force` is true. A `farbus share` that
    /// has the device refuses: its end is the end of the share.
    Unshare {
        /// Name or bus id.
        device: String,
        /// Whether to end the sessions of its users.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        force: bool,
    },
    /// Share, daemon, nbd, attach, run: begins to move a disk to another medium, or to replace a USB device by another
    /// one. What it does and which descriptors are passed along depends on `device` and `to`: see below.
    Swap {
        /// Name or bus id; `HOST/DEVICE` for one that is attached.
        device: String,
        /// The new medium or device: `block:PATH`, `HOST:PORT/DISK`, `usb:BUSID` or `HOST:PORT/DEVICE`.
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
        /// If the new medium is a disk of a paired host: that host's entry in `peers.json`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        peer: Option<Box<Peer>>,
    },
    /// Share, daemon, nbd, attach, run: asks for the progress of a device's swap, or how the last one ended.
    #[serde(rename = "swap-status")]
    SwapStatus {
        /// Name or bus id.
        device: String,
    },
    /// Share, daemon, nbd, attach, run: cancels the swap of a device, which stays as it is. `swap-status` says when the
    /// swap has ended.
    #[serde(rename = "swap-cancel")]
    SwapCancel {
        /// Name or bus id.
        device: String,
    },
    /// Daemon: reads the configuration again. Answers what changed. Refused if the device to adopt is attached; failed
    /// (`gone`) if there is no such attachment.
    Reload {
        /// An attachment (name or `HOST[:PORT]/DEVICE`) takes whichever device is there now, and keeps to that one. Or
        /// a share by port (name or `usb:BUSID`) stands for the device that is there now. A daemon of an earlier
        /// release passes over it, and adopts nothing.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        adopt: Option<String>,
    },
    /// Daemon: a replacement process takes over, of the program that is on disk now.
    /// Refused if an attachment or a reader of frames would be lost, unless `interrupt` is true. Failed if the
    /// replacement does not start; then nothing has changed. Takes a second, and 30 s at most.
    Restart {
        /// Whether to restart even if that interrupts a user of an attached device.
        #[serde(default)]
        interrupt: bool,
    },
    /// Daemon: brings up, takes down or shows the links between this host and others. Answers their state.
    /// Refused without `[topology]` in the configuration.
    Topology {
        /// What to do.
        act: TopologyAct,
    },
    /// Daemon: asks what is known of the directory of all sites. A daemon without a directory answers `unknown`.
    Directory {
        /// Words as of `farbus list`: only devices of other hosts for which all are true are answered, their hosts, and
        /// the paired hosts. Absent: all. An earlier release answers all in any case.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        query: Option<Vec<String>>,
        /// The `version` of an earlier answer without `query`. If nothing has changed since, the answer is without
        /// hosts, devices and limits. An earlier release answers all in any case.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        known: Option<String>,
    },
    /// Daemon: writes in the directory what a host may have of all devices. Without `devices` and `for_s`, the host's
    /// limit goes. Takes as long as etcd, 8 s at most. Failed if the directory is away. A daemon without a directory
    /// answers `unknown`.
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
    /// Daemon: detaches what is attached to the kernel, because this machine is about to sleep.
    /// The kernel refuses to sleep while remote devices are plugged in.
    Sleep {
        /// Ports whose devices this machine uses, which stay attached.
        #[serde(default)]
        held: BTreeSet<u32>,
    },
    /// Daemon: attaches the devices again, because this machine has woken.
    Wake,
    /// Share, daemon: a keyboard types a text.
    Type {
        /// Name or bus id.
        device: String,
        /// The text to type.
        text: String,
    },
    /// Share, daemon, pipe: reserves processor time of this host for threads of another process, in place of what its
    /// owner had: `{"processors":[N…]}`, or failed as `refused` with what is missing. One end of a socket pair is
    /// passed along (`SCM_RIGHTS`): the reservation holds until the other end is closed or the same owner asks again;
    /// of each owner the last end is kept. At most 64 owners; a further one gets `refused`.
    Promise {
        /// The name of the owner, the same in each question.
        owner: String,
        /// All reservations of the owner: budget and period of each thread, nanoseconds. An empty list reserves
        /// nothing.
        reserves: Vec<(u64, u64)>,
    },
    /// Share, daemon: a removable disk loses its medium.
    Eject {
        /// Name or bus id.
        device: String,
    },
    /// Share, daemon: a removable disk gets its medium back.
    Insert {
        /// Name or bus id.
        device: String,
    },
}

/// What to do about links between hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum TopologyAct {
    /// Shows their state.
    Status,
    /// Reads the configuration and the plan again, and brings the links up.
    Up,
    /// Takes them down.
    Down,
}

/// The answer to a question, a line of JSON.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Answer {
    /// Done, with the value that was asked for.
    Ok(Value),
    /// This process has no such device, or a replacement has taken over: ask another process.
    Unknown,
    /// Refused, and why.
    Refused(String),
    /// It failed, and whose fault that is.
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
