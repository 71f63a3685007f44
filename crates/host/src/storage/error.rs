//! Errors of a disk, in terms that a front end can act on.

use std::fmt;

use farbus_model::{StoreError, UrbStatus};

use crate::port::HostPortError;

use super::sense::SenseCode;

/// Why an operation on a disk failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DiskError {
    /// The interface is not a disk that this driver supports, and why.
    Unsupported(&'static str),
    /// The medium is there but not usable, and did not become so in time.
    NotReady(SenseCode),
    /// There is no medium in the device.
    NoMedium,
    /// The medium was exchanged, or its size changed: earlier data about it is no longer valid.
    MediumChanged,
    /// The medium could not be read or written at that place.
    MediumError(SenseCode),
    /// The device failed within itself.
    HardwareError(SenseCode),
    /// The device does not know the command or one of its fields.
    IllegalRequest(SenseCode),
    /// The range does not lie on the medium.
    OutOfRange,
    /// The medium is write-protected.
    WriteProtected,
    /// A thinly provisioned medium has no space left.
    NoSpace,
    /// Any other error of the device.
    Refused(SenseCode),
    /// Commands, data and status do not arrive as Bulk-Only transport wants, and resetting it did not help.
    Transport(TransportFault),
    /// The device did not answer in time, and resetting it did not help.
    TimedOut,
    /// The device is gone.
    Gone,
    /// The connection to the device is gone.
    Port(HostPortError),
}

/// What went wrong in the transport of one command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransportFault {
    /// The command itself was answered with STALL: the device found it invalid (BOT §6.6.1).
    CommandRefused,
    /// The status could not be read: STALL, twice (BOT §5.3.3).
    StatusRefused,
    /// The status is not valid or not meaningful (BOT §6.3).
    BadStatus,
    /// The device reports that it and the host disagree about the data (BOT §6.6.2).
    PhaseError,
    /// The status came before all data was taken.
    EarlyStatus,
    /// The command passed, but not all data moved.
    ShortData,
    /// More data came than was asked for.
    Babble,
    /// A transfer failed on the bus or on the link.
    Bus(UrbStatus),
    /// The command's time passed.
    TimedOut,
    /// A cancellation was not answered: the endpoints may hold old requests for ever.
    Unanswered,
    /// The reset of the transport failed.
    ResetFailed,
    /// The device is gone.
    Gone,
}

impl From<TransportFault> for DiskError {
    fn from(fault: TransportFault) -> Self {
        match fault {
            TransportFault::Gone => DiskError::Gone,
            TransportFault::TimedOut => DiskError::TimedOut,
            fault => DiskError::Transport(fault),
        }
    }
}

impl From<HostPortError> for DiskError {
    fn from(error: HostPortError) -> Self {
        DiskError::Port(error)
    }
}

impl From<&DiskError> for StoreError {
    fn from(error: &DiskError) -> Self {
        match error {
            DiskError::WriteProtected => StoreError::ReadOnly,
            DiskError::NoSpace => StoreError::NoSpace,
            DiskError::NoMedium | DiskError::MediumChanged | DiskError::Gone | DiskError::Port(_) => StoreError::Gone,
            _ => StoreError::Medium,
        }
    }
}

impl fmt::Display for DiskError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DiskError::Unsupported(why) => write!(f, "not a disk that can be driven: {why}"),
            DiskError::NotReady(sense) => write!(f, "the medium is not ready ({sense})"),
            DiskError::NoMedium => f.write_str("there is no medium in the device"),
            DiskError::MediumChanged => f.write_str("the medium was exchanged"),
            DiskError::MediumError(sense) => write!(f, "the medium failed ({sense})"),
            DiskError::HardwareError(sense) => write!(f, "the device failed ({sense})"),
            DiskError::IllegalRequest(sense) => write!(f, "the device does not know the command ({sense})"),
            DiskError::OutOfRange => f.write_str("the range does not lie on the medium"),
            DiskError::WriteProtected => f.write_str("the medium is write-protected"),
            DiskError::NoSpace => f.write_str("no space left on the medium"),
            DiskError::Refused(sense) => write!(f, "the device refused ({sense})"),
            DiskError::Transport(fault) => write!(f, "the transport failed: {fault}"),
            DiskError::TimedOut => f.write_str("the device did not answer in time"),
            DiskError::Gone => f.write_str("the device is gone"),
            DiskError::Port(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for DiskError {}

impl fmt::Display for TransportFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            TransportFault::CommandRefused => "the device refused a command as invalid",
            TransportFault::StatusRefused => "the device did not give its status",
            TransportFault::BadStatus => "the status is not one",
            TransportFault::PhaseError => "phase error",
            TransportFault::EarlyStatus => "the status came before the data was taken",
            TransportFault::ShortData => "a command passed without all its data",
            TransportFault::Babble => "more data came than was asked for",
            TransportFault::Bus(status) => return write!(f, "a transfer ended with {status:?}"),
            TransportFault::TimedOut => "the device did not answer in time",
            TransportFault::Unanswered => "the device did not even answer a withdrawal",
            TransportFault::ResetFailed => "the transport could not be reset",
            TransportFault::Gone => "the device is gone",
        })
    }
}
