//! The calls of usbfs that a device uses, as traits, so that a test can simulate the kernel.

use std::io;
use std::time::Duration;

use farbus_model::Status;

use crate::sys::lease::Lease;
use crate::sys::usbfs::{self, PacketResult, Reap, Transfer, Usbfs};

/// Transfers: the calls of [`Usbfs`] that answer at once; see there.
pub trait Kernel: Send {
    /// The calls that wait for the device.
    type Calls: Calls + Clone;

    fn calls(&self) -> Self::Calls;
    fn lease(&mut self, bytes: usize) -> Option<Lease>;
    fn give_back_leases(&mut self);
    fn submit(&mut self, slot: usize, transfer: Transfer<'_>) -> Result<(), Status>;
    fn discard(&mut self, slot: usize);
    fn reap(&mut self, packets: &mut Vec<PacketResult>) -> Reap;
    fn wait(&mut self, time_max: Duration);
    fn is_connected(&self) -> bool;
}

/// The calls of [`usbfs::Calls`].
pub trait Calls: Send + 'static {
    fn claim(&self, interface: u8) -> io::Result<()>;
    fn release(&self, interface: u8) -> io::Result<()>;
    fn connect(&self, interface: u8) -> io::Result<()>;
    fn set_interface(&self, interface: u8, alternate: u8) -> Result<(), Status>;
    fn set_configuration(&self, value: u8) -> Result<(), Status>;
    fn clear_halt(&self, endpoint: u8) -> Result<(), Status>;
    fn alloc_streams(&self, endpoints: &[u8], count: u16) -> Result<u16, Status>;
    fn free_streams(&self, endpoints: &[u8]) -> Result<(), Status>;
    fn reset(&self) -> Result<(), Status>;
}

impl Kernel for Usbfs {
    type Calls = usbfs::Calls;

    fn calls(&self) -> usbfs::Calls {
        Usbfs::calls(self)
    }

    fn lease(&mut self, bytes: usize) -> Option<Lease> {
        Usbfs::lease(self, bytes)
    }

    fn give_back_leases(&mut self) {
        Usbfs::give_back_leases(self);
    }

    fn submit(&mut self, slot: usize, transfer: Transfer<'_>) -> Result<(), Status> {
        Usbfs::submit(self, slot, transfer)
    }

    fn discard(&mut self, slot: usize) {
        Usbfs::discard(self, slot);
    }

    fn reap(&mut self, packets: &mut Vec<PacketResult>) -> Reap {
        Usbfs::reap(self, packets)
    }

    fn wait(&mut self, time_max: Duration) {
        Usbfs::wait(self, time_max);
    }

    fn is_connected(&self) -> bool {
        Usbfs::is_connected(self)
    }
}

impl Calls for usbfs::Calls {
    fn claim(&self, interface: u8) -> io::Result<()> {
        usbfs::Calls::claim(self, interface)
    }

    fn release(&self, interface: u8) -> io::Result<()> {
        usbfs::Calls::release(self, interface)
    }

    fn connect(&self, interface: u8) -> io::Result<()> {
        usbfs::Calls::connect(self, interface)
    }

    fn set_interface(&self, interface: u8, alternate: u8) -> Result<(), Status> {
        usbfs::Calls::set_interface(self, interface, alternate)
    }

    fn set_configuration(&self, value: u8) -> Result<(), Status> {
        usbfs::Calls::set_configuration(self, value)
    }

    fn clear_halt(&self, endpoint: u8) -> Result<(), Status> {
        usbfs::Calls::clear_halt(self, endpoint)
    }

    fn alloc_streams(&self, endpoints: &[u8], count: u16) -> Result<u16, Status> {
        usbfs::Calls::alloc_streams(self, endpoints, count)
    }

    fn free_streams(&self, endpoints: &[u8]) -> Result<(), Status> {
        usbfs::Calls::free_streams(self, endpoints)
    }

    fn reset(&self) -> Result<(), Status> {
        usbfs::Calls::reset(self)
    }
}
