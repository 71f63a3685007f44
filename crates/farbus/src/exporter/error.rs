//! Errors of sharing a device.

use std::fmt;
use std::io;

use farbus_model::OwnerCommandError;
use farbus_session::reserve::ReservationDenial;

/// Why a device cannot be shared or commanded.
#[derive(Debug)]
pub enum ShareError {
    /// The list of devices is full.
    BusFull,
    /// No device with this name is shared.
    NoDevice(String),
    /// Another device already has this name.
    NameTaken(String),
    /// Another host or program uses the device.
    InUse {
        /// The device's name.
        device: String,
        /// The user, as people write it.
        user: String,
    },
    /// The device with this name is not in use.
    NotInUse(String),
    /// The device was taken back from its user, and that is not stored.
    NotStored {
        /// The device's name.
        device: String,
        /// Who had it.
        user: String,
        /// What the system answered when the exporter stored it.
        error: String,
    },
    /// The device refused the command.
    Command(OwnerCommandError),
    /// The session that holds it does not answer.
    Silent,
    /// The reservation for the device was refused.
    Reservation {
        /// The device's name.
        device: String,
        /// What is missing.
        refusal: ReservationDenial,
    },
    /// The system has no more threads or descriptors.
    System(io::Error),
}

impl fmt::Display for ShareError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ShareError::BusFull => write!(f, "{} devices are shared already", farbus_session::registry::DEVICES_MAX),
            ShareError::NoDevice(name) => write!(f, "no device called '{name}' is shared here"),
            ShareError::NameTaken(name) => {
                write!(f, "'{name}' is the name of another device already\n  give each a name of its own: name=NAME")
            }
            ShareError::InUse { device, user } => {
                write!(f, "'{device}' is used by {user}\n  take it back first: farbus release {device}")
            }
            ShareError::NotInUse(name) => write!(f, "nobody uses '{name}'"),
            ShareError::NotStored { device, user, error } => write!(
                f,
                "'{device}' is taken back from {user}, but that is not stored ({error}): {user} may continue if this process \
                 is started anew\n  make room there and type it again, or: farbus forbid {user} {device}"
            ),
            ShareError::Command(error) => error.fmt(f),
            ShareError::Silent => f.write_str("the session that uses the device does not answer"),
            ShareError::Reservation { device, refusal } => write!(f, "'{device}' cannot be reserved so: {refusal}"),
            ShareError::System(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for ShareError {}
