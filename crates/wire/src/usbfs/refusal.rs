//! Why usbfs refuses a command, or how a transfer failed; and the kernel's error number for each.

use farbus_model::Status;

use crate::usbip::status;

/// Why a command is refused, or a transfer failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The node was opened for reading only (EPERM).
    ReadOnly,
    /// There is no such interface or endpoint now (ENOENT).
    NotFound,
    /// The program cancelled the transfer (ENOENT).
    Discarded,
    /// An endpoint of a device without a configuration (ESRCH).
    Unconfigured,
    /// A signal came (EINTR).
    Interrupted,
    /// No transfer is finished (EAGAIN).
    NotYet,
    /// The limit of memory for transfers is reached (ENOMEM).
    NoMemory,
    /// The program gave up this right (EACCES).
    RightDropped,
    /// The argument points to no memory of the program (EFAULT).
    BadAddress,
    /// Another open has the interface (EBUSY).
    Busy,
    /// The device is gone (ENODEV).
    Gone,
    /// The argument is wrong (EINVAL).
    Invalid,
    /// There is no such command (ENOTTY).
    Unknown,
    /// No driver has the interface (ENODATA).
    NoDriver,
    /// The device was reset, or is gone while the transfer was under way (ESHUTDOWN).
    Shutdown,
    /// It took too long (ETIMEDOUT).
    TimedOut,
    /// A driver is asked of a device without a configuration (EHOSTUNREACH).
    NotReady,
    /// The transfer continues one that failed (EREMOTEIO).
    Discontinued,
    /// The transfer ended like this; never [`Status::Ok`].
    Ended(Status),
}

impl Refusal {
    /// How a transfer failed that ended like this; `None` if it did not fail.
    pub fn of(status: Status) -> Option<Self> {
        (status != Status::Ok).then_some(Refusal::Ended(status))
    }

    /// Linux's error number, positive.
    pub fn number(self) -> u16 {
        match self {
            Refusal::ReadOnly => 1,
            Refusal::NotFound | Refusal::Discarded => 2,
            Refusal::Unconfigured => 3,
            Refusal::Interrupted => 4,
            Refusal::NotYet => 11,
            Refusal::NoMemory => 12,
            Refusal::RightDropped => 13,
            Refusal::BadAddress => 14,
            Refusal::Busy => 16,
            Refusal::Gone => 19,
            Refusal::Invalid => 22,
            Refusal::Unknown => 25,
            Refusal::NoDriver => 61,
            Refusal::Shutdown => 108,
            Refusal::TimedOut => 110,
            Refusal::NotReady => 113,
            Refusal::Discontinued => 121,
            Refusal::Ended(status) => status::to_errno(status).unsigned_abs() as u16,
        }
    }
}
