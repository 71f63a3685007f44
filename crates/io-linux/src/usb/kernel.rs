//! The calls of usbfs that a device uses, as traits, so that a test can simulate the kernel.

use std::io;
use std::time::Duration;

use farbus_model::UrbStatus;

use crate::sys::lease::UsbfsBuffer;
use crate::sys::usbfs::{self, PacketResult, ReapOutcome, UsbfsDevice, UsbfsTransfer};

/// Transfers: the calls of [`UsbfsDevice`] that answer at once; see there.
pub trait UsbfsKernel: Send {
    /// The calls that wait for the device.
    type Calls: UsbfsBlockingCalls + Clone;

    fn calls(&self) -> Self::Calls;
    fn lease(&mut self, bytes: usize) -> Option<UsbfsBuffer>;
    fn give_back_leases(&mut self);
    fn submit(&mut self, slot: usize, transfer: UsbfsTransfer<'_>) -> Result<(), UrbStatus>;
    fn discard(&mut self, slot: usize);
    fn reap(&mut self, packets: &mut Vec<PacketResult>) -> ReapOutcome;
    fn wait(&mut self, time_max: Duration);
    fn is_connected(&self) -> bool;
}

/// The calls of [`usbfs::UsbfsCallHandle`].
pub trait UsbfsBlockingCalls: Send + 'static {
    fn claim(&self, interface: u8) -> io::Result<()>;
    fn release(&self, interface: u8) -> io::Result<()>;
    fn connect(&self, interface: u8) -> io::Result<()>;
    fn set_interface(&self, interface: u8, alternate: u8) -> Result<(), UrbStatus>;
    fn set_configuration(&self, value: u8) -> Result<(), UrbStatus>;
    fn clear_halt(&self, endpoint: u8) -> Result<(), UrbStatus>;
    fn alloc_streams(&self, endpoints: &[u8], count: u16) -> Result<u16, UrbStatus>;
    fn free_streams(&self, endpoints: &[u8]) -> Result<(), UrbStatus>;
    fn reset(&self) -> Result<(), UrbStatus>;
}

impl UsbfsKernel for UsbfsDevice {
    type Calls = usbfs::UsbfsCallHandle;

    fn calls(&self) -> usbfs::UsbfsCallHandle {
        UsbfsDevice::calls(self)
    }

    fn lease(&mut self, bytes: usize) -> Option<UsbfsBuffer> {
        UsbfsDevice::lease(self, bytes)
    }

    fn give_back_leases(&mut self) {
        UsbfsDevice::give_back_leases(self);
    }

    fn submit(&mut self, slot: usize, transfer: UsbfsTransfer<'_>) -> Result<(), UrbStatus> {
        UsbfsDevice::submit(self, slot, transfer)
    }

    fn discard(&mut self, slot: usize) {
        UsbfsDevice::discard(self, slot);
    }

    fn reap(&mut self, packets: &mut Vec<PacketResult>) -> ReapOutcome {
        UsbfsDevice::reap(self, packets)
    }

    fn wait(&mut self, time_max: Duration) {
        UsbfsDevice::wait(self, time_max);
    }

    fn is_connected(&self) -> bool {
        UsbfsDevice::is_connected(self)
    }
}

impl UsbfsBlockingCalls for usbfs::UsbfsCallHandle {
    fn claim(&self, interface: u8) -> io::Result<()> {
        usbfs::UsbfsCallHandle::claim(self, interface)
    }

    fn release(&self, interface: u8) -> io::Result<()> {
        usbfs::UsbfsCallHandle::release(self, interface)
    }

    fn connect(&self, interface: u8) -> io::Result<()> {
        usbfs::UsbfsCallHandle::connect(self, interface)
    }

    fn set_interface(&self, interface: u8, alternate: u8) -> Result<(), UrbStatus> {
        usbfs::UsbfsCallHandle::set_interface(self, interface, alternate)
    }

    fn set_configuration(&self, value: u8) -> Result<(), UrbStatus> {
        usbfs::UsbfsCallHandle::set_configuration(self, value)
    }

    fn clear_halt(&self, endpoint: u8) -> Result<(), UrbStatus> {
        usbfs::UsbfsCallHandle::clear_halt(self, endpoint)
    }

    fn alloc_streams(&self, endpoints: &[u8], count: u16) -> Result<u16, UrbStatus> {
        usbfs::UsbfsCallHandle::alloc_streams(self, endpoints, count)
    }

    fn free_streams(&self, endpoints: &[u8]) -> Result<(), UrbStatus> {
        usbfs::UsbfsCallHandle::free_streams(self, endpoints)
    }

    fn reset(&self) -> Result<(), UrbStatus> {
        usbfs::UsbfsCallHandle::reset(self)
    }
}
