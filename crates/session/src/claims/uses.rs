//! Uses of a device, who waits for one, and how one ended.

use std::time::Duration;

use farbus_model::Instant;

/// Past uses remembered per device.
pub const HISTORY_MAX: usize = 16;
/// Most hosts that may wait for one device.
pub const QUEUE_MAX: usize = 32;
/// A host that has not asked again for this long stops waiting: three times the interval of `attach --wait`.
pub const PATIENCE: Duration = Duration::from_secs(3);
/// How long a host stays in the queue without asking, if the device went away while the host used it: longer than a
/// board takes to become another device, and than `farbus run` and `farbus attach --follow` pause between two looks.
pub const RETURN_PATIENCE: Duration = Duration::from_secs(10);
/// A host waits once it has asked this often, each time within [`PATIENCE`] of the time before. `attach --wait` does so
/// within 0.7 s. A person who was refused and tries once more does not wait.
pub const TRIES_MIN: u32 = 3;
/// Bytes of a reason that are kept: enough for a sentence.
pub const REASON_BYTES_MAX: usize = 200;

/// How a device is used, and which uses can coexist.
///
/// | beside | exclusive | read | scratch |
/// |---|---|---|---|
/// | exclusive | no | no | no |
/// | read | no | yes | yes |
/// | scratch | no | yes | yes |
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum UseMode {
    /// One user, who may change it.
    #[default]
    Exclusive,
    /// Many users who change nothing.
    Read,
    /// Many users, each with private changes.
    Scratch,
}

impl UseMode {
    /// The mode as one word, as a status shows it.
    pub const fn as_str(self) -> &'static str {
        match self {
            UseMode::Exclusive => "exclusive",
            UseMode::Read => "read",
            UseMode::Scratch => "scratch",
        }
    }

    pub(super) fn goes_beside(self, other: UseMode) -> bool {
        self != UseMode::Exclusive && other != UseMode::Exclusive
    }
}

/// A user of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimHolder {
    /// The peer's address, as people write it.
    pub who: String,
    /// How it uses the device.
    pub mode: UseMode,
    /// When the use began.
    pub since: Instant,
    /// What it needs the device for, if it said so.
    pub reason: Option<String>,
}

/// A host that waits for a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueuedHost {
    /// The host, without a port.
    pub host: String,
    /// When it first asked.
    pub since: Instant,
    /// When it last asked.
    pub(super) asked_at: Instant,
    pub(super) tries: u32,
    /// The priority of its request; 0 for an attach that waits.
    pub priority: u8,
    pub(super) patience: Duration,
    /// For how long it wants a lease; `None` for an attach that waits.
    pub span: Option<Duration>,
}

/// How a use ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UseEnding {
    /// Its user detached.
    Detached,
    /// The link to its user was lost.
    Lost,
    /// Its user broke the protocol and was cut off.
    CutOff,
    /// Its user handed the device over to another host.
    HandedOver,
    /// The owner took the device back.
    TakenBack,
    /// The lease reached its end.
    Expired,
    /// The lease was ended early, for a host of a higher priority or the owner.
    Preempted,
    /// The holder of the lease gave it up.
    Released,
    /// The device went away.
    Gone,
    /// An assertion of farbus failed.
    Bug,
}

impl UseEnding {
    /// The ending in a word or two, as a history shows it.
    pub const fn as_str(self) -> &'static str {
        match self {
            UseEnding::Detached => "detached",
            UseEnding::Lost => "link lost",
            UseEnding::CutOff => "cut off",
            UseEnding::HandedOver => "handed over",
            UseEnding::TakenBack => "taken back",
            UseEnding::Expired => "lease expired",
            UseEnding::Preempted => "preempted",
            UseEnding::Released => "lease released",
            UseEnding::Gone => "device gone",
            UseEnding::Bug => "bug in farbus",
        }
    }
}

/// A use that has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PastUse {
    /// The user that held the device, and since when.
    pub holder: ClaimHolder,
    /// When the use ended.
    pub until: Instant,
    /// How it ended.
    pub ending: UseEnding,
    /// The owner's remark on taking the device back.
    pub remark: Option<String>,
}

/// Why a claim is refused. Plain USB/IP reports every reason as *busy*.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClaimRefusal {
    /// Another user holds it.
    Held,
    /// Another host has a lease of it.
    Leased,
    /// It is free, but kept for a host that has waited longer.
    Waited,
    /// The owner took it from this host and keeps the host out for now.
    KeptOut,
}

impl QueuedHost {
    pub(super) fn is_waiting(&self) -> bool {
        self.tries >= TRIES_MIN
    }

    pub(super) fn is_patient(&self, now: Instant) -> bool {
        now - self.asked_at <= self.patience
    }
}

/// The host of a peer's address. A text without a port is its own host. A paired host is written `NAME (ADDRESS)` and
/// is identified by its name.
pub fn host_of(who: &str) -> &str {
    if let Some((name, _)) = who.split_once(" (") {
        return name;
    }
    match who.rsplit_once(':') {
        Some((host, port)) if port.parse::<u16>().is_ok() => host,
        _ => who,
    }
}

/// One line of [`REASON_BYTES_MAX`] at most, for tables, logs and messages.
pub fn shortened(text: &str) -> String {
    let mut line: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    let mut end = line.len().min(REASON_BYTES_MAX);
    while !line.is_char_boundary(end) {
        end -= 1;
    }
    line.truncate(end);
    line
}
