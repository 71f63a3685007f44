//! Taking devices from other hosts.
//!
//! [`ImporterClient`] lists what a host offers and opens its devices; [`ClientConfig`] says how. The functions of this module do
//! the same with the default options.
//!
//! ```no_run
//! use farbus::client;
//!
//! let mut device = client::open(&"lab3/scope".parse()?)?;
//! println!("{}", device.descriptors().title());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! | file | what it does |
//! |---|---|
//! | `config` | the options |
//! | `target` | which device on which host |
//! | `connector` | makes links, encrypted to paired hosts |
//! | `offers` | asks a host what it offers |
//! | `opening` | opens devices, in sessions or not: `ImporterClient` |
//! | `no_disk` | why a device is no disk, and what can show it |
//! | `remembered` | which device a target stood for: another one is not taken for it |
//! | `selector` | how a target names a device |
//! | `usbip`, `handshake` | plain USB/IP |
//! | `path` | whether large packets reach a host |
//! | `error` | what can go wrong, and what to do about it |

mod config;
mod connector;
mod error;
mod handshake;
pub(crate) mod no_disk;
mod offers;
mod opening;
mod path;
mod remembered;
mod selector;
mod strings;
mod target;
mod usbip;

pub use farbus_control::failure::{FailureKind, FailureReport};
use farbus_host::RemoteDisk;
pub use farbus_io_net::link::host_address::address_of;
use farbus_session::{DeviceRecord, RemoteDevice};

pub use crate::devices::class_words::name_of;
pub use crate::devices::offer::{ListedDevice, ListedUser, ListedWaiting};
pub use crate::hosts::reach::ANSWER_TIME_MAX;
pub use crate::importer::local_error::LocalDeviceError;
pub use crate::importer::options::{
    ahead::PrefetchMode as Prefetch, cache::DiskCacheMode, transport::LinkTransport as Transport,
};
pub use crate::importer::port::DevicePort;
use crate::importer::port::usbip::HoldingLink;
pub use config::{ClientConfig, GRACE, GRACE_DISK, HOLD, HOLD_MAX, HOLD_STORAGE_MAX};
pub(crate) use connector::local_address;
pub use error::ClientError;
pub(crate) use error::local;
pub use opening::ImporterClient;
pub use path::PathFinding;
pub use remembered::{DeviceReopener, RememberedDevice};
pub(crate) use selector::DeviceSelector;
pub use target::DeviceTarget;

/// The devices that a host (`HOST:PORT`) offers.
///
/// # Errors
/// [`ClientError`].
pub fn list(address: &str) -> Result<Vec<DeviceRecord>, ClientError> {
    ImporterClient::default().list(address)
}

/// Imports a device by plain USB/IP: its link, and what speaks USB/IP on it.
///
/// # Errors
/// [`ClientError`].
#[doc(hidden)]
pub fn import(target: &DeviceTarget) -> Result<(HoldingLink, RemoteDevice), ClientError> {
    ImporterClient::default().import(target)
}

/// Opens a USB device, reads its descriptors and selects its first configuration: it is ready for transfers.
///
/// # Errors
/// [`ClientError`].
pub fn open(target: &DeviceTarget) -> Result<farbus_host::RemoteDevice<DevicePort>, ClientError> {
    ImporterClient::default().open(target)
}

/// Opens a USB disk and waits until its medium is ready.
///
/// # Errors
/// [`ClientError`].
pub fn open_disk(target: &DeviceTarget) -> Result<RemoteDisk<DevicePort>, ClientError> {
    ImporterClient::default().open_disk(target)
}
