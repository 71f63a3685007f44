//! Whether the names and identities of the offered devices are lasting.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use farbus_control::device::AnotherInPortStatus;
use farbus_io_net::trust::DeviceId;
use farbus_session::registry::BlockClass;
use farbus_session::stream::FramePublisher;

use super::finding::{DeviceIdentity, IdentityFinder};

/// The class that a device has besides USB.
pub(crate) enum DeviceClass {
    /// No other class.
    Usb,
    /// A block device.
    Block(BlockClass),
    /// A stream of frames.
    Stream(FramePublisher),
}

/// The identity of a device to offer.
#[derive(Clone, Debug)]
pub(crate) enum OfferIdentity {
    /// The device with this identity.
    Known(DeviceIdentity),
    /// A device that is shared by its port. If it is another one than the share stands for, what is said of that.
    InPort(DeviceIdentity, Option<Arc<AnotherInPortStatus>>),
    /// A device with this common id; its name is added to tell it from others.
    Made(DeviceId),
}

/// What is known of an offered device besides its registry entry.
#[derive(Clone, Debug, Default)]
pub(crate) struct OfferTraits {
    pub is_named: bool,
    pub is_lasting: bool,
    /// Set if it is another device than its share, which is by port, stands for.
    pub another: Option<Arc<AnotherInPortStatus>>,
}

/// The labels of the offered devices, by bus id.
#[derive(Debug, Default)]
pub struct OfferTraitsMap(Mutex<BTreeMap<String, OfferTraits>>);

impl OfferTraitsMap {
    pub(crate) fn of(&self, bus_id: &str) -> OfferTraits {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(bus_id).cloned().unwrap_or_default()
    }

    pub(crate) fn put(&self, bus_id: &str, label: OfferTraits) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(bus_id.to_owned(), label);
    }
}

/// The identity of a device that a program of the library offers: it lasts as long as this process.
pub(crate) fn made_here() -> OfferIdentity {
    OfferIdentity::Made(IdentityFinder::own().of_made("library"))
}
