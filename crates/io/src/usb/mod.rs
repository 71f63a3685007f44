//! Real USB devices of this machine, through usbfs: what there is ([`Inventory`]), and one of them as a
//! [`Device`](farbus_model::Device) ([`UsbDevice`]).
//!
//! No library serves: a USB/IP exporter needs each URB cancelled by itself, isochronous transfers, and the client's
//! flags.

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
pub use error::OpenError;
pub use hotplug::Hotplug;
pub use inventory::{Found, Interface, Inventory, Obstacle, Selector};
