//! Real USB devices of this machine, through usbfs: the list of all ([`UsbInventory`]), and one of them as a
//! [`Device`](farbus_model::Device) ([`UsbDevice`]).
//!
//! No existing library is suitable: a USB/IP exporter has to cancel single URBs, and needs isochronous transfers and
//! the client's flags.

mod calls;
mod device;
mod error;
mod hotplug;
mod inventory;
mod iso;
mod kernel;
mod slab;
#[cfg(test)]
mod tests;

pub use device::UsbDevice;
pub use error::UsbOpenError;
pub use hotplug::HotplugMonitor;
pub use inventory::{ActiveInterface, PluggedDevice, SharingObstacle, UsbDeviceSelector, UsbInventory};
