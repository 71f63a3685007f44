//! What is known of devices on offer: whether their names and identities last.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use farbus_io::trust::DeviceId;
use farbus_session::registry::BlockClass;
use farbus_session::stream::Stage;
use serde::{Deserialize, Serialize};

use super::finding::{Identified, Identities};

/// What a device is besides a USB device.
pub(crate) enum DeviceClass {
    /// No other class.
    Usb,
    /// A block device.
    Block(BlockClass),
    /// A stream of frames.
    Stream(Stage),
}

/// Which device is offered.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Which {
    /// The device with this identity.
    Known(Identified),
    /// One of those that have this id in common; its name tells it from the others.
    Made(DeviceId),
}

/// What is known of a device on offer, besides its registry entry.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Label {
    pub is_named: bool,
    pub is_lasting: bool,
}

/// What is known of the devices on offer, by bus id.
#[derive(Debug, Default)]
pub struct Labels(Mutex<BTreeMap<String, Label>>);

impl Labels {
    pub(crate) fn of(&self, bus_id: &str) -> Label {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(bus_id).copied().unwrap_or_default()
    }

    pub(crate) fn put(&self, bus_id: &str, label: Label) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(bus_id.to_owned(), label);
    }
}

/// Which device it is, as `farbus status --json` shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IdentityStatus {
    /// The device's id, 32 hexadecimal digits.
    pub id: DeviceId,
    /// Which of its media it is.
    pub generation: u64,
    /// Whether it has this identity after a restart, too.
    pub is_lasting: bool,
}

/// What a library's device is: of its own making, and of this process.
pub(crate) fn made_here() -> Which {
    Which::Made(Identities::own().of_made("library"))
}
