//! Why usbfs refuses a command, or how a transfer failed; and the kernel's error number for each.

use farbus_model::UrbStatus;

use crate::usbip::status;

/// Why a command is refused, or a transfer failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UsbfsError {
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
    /// The transfer ended like this; never [`UrbStatus::Ok`].
    Ended(UrbStatus),
}

impl UsbfsError {
    /// How a transfer failed that ended like this; `None` if it did not fail.
    pub fn of(status: UrbStatus) -> Option<Self> {
        (status != UrbStatus::Ok).then_some(UsbfsError::Ended(status))
    }

    /// Linux's error number, positive.
    pub fn number(self) -> u16 {
        match self {
            UsbfsError::ReadOnly => 1,
            UsbfsError::NotFound | UsbfsError::Discarded => 2,
            UsbfsError::Unconfigured => 3,
            UsbfsError::Interrupted => 4,
            UsbfsError::NotYet => 11,
            UsbfsError::NoMemory => 12,
            UsbfsError::RightDropped => 13,
            UsbfsError::BadAddress => 14,
            UsbfsError::Busy => 16,
            UsbfsError::Gone => 19,
            UsbfsError::Invalid => 22,
            UsbfsError::Unknown => 25,
            UsbfsError::NoDriver => 61,
            UsbfsError::Shutdown => 108,
            UsbfsError::TimedOut => 110,
            UsbfsError::NotReady => 113,
            UsbfsError::Discontinued => 121,
            UsbfsError::Ended(status) => status::to_errno(status).unsigned_abs() as u16,
        }
    }
}
