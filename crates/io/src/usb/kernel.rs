//! What a device needs of usbfs, so that a test may be the kernel.

use std::io;
use std::time::Duration;

use farbus_model::Status;

use crate::sys::usbfs::{PacketResult, Reap, Transfer, Usbfs};

/// The calls of [`Usbfs`]; its documentation is theirs.
pub trait Kernel: Send {
    fn submit(&mut self, slot: usize, transfer: Transfer<'_>) -> Result<(), Status>;
    fn discard(&mut self, slot: usize);
    fn reap(&mut self, packets: &mut Vec<PacketResult>) -> Reap;
    fn wait(&mut self, time_max: Duration);
    fn is_connected(&self) -> bool;
    fn claim(&mut self, interface: u8) -> io::Result<()>;
    fn release(&mut self, interface: u8) -> io::Result<()>;
    fn connect(&mut self, interface: u8) -> io::Result<()>;
    fn set_interface(&mut self, interface: u8, alternate: u8) -> Result<(), Status>;
    fn set_configuration(&mut self, value: u8) -> Result<(), Status>;
    fn clear_halt(&mut self, endpoint: u8) -> Result<(), Status>;
    fn reset(&mut self) -> Result<(), Status>;
}

impl Kernel for Usbfs {
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

    fn claim(&mut self, interface: u8) -> io::Result<()> {
        Usbfs::claim(self, interface)
    }

    fn release(&mut self, interface: u8) -> io::Result<()> {
        Usbfs::release(self, interface)
    }

    fn connect(&mut self, interface: u8) -> io::Result<()> {
        Usbfs::connect(self, interface)
    }

    fn set_interface(&mut self, interface: u8, alternate: u8) -> Result<(), Status> {
        Usbfs::set_interface(self, interface, alternate)
    }

    fn set_configuration(&mut self, value: u8) -> Result<(), Status> {
        Usbfs::set_configuration(self, value)
    }

    fn clear_halt(&mut self, endpoint: u8) -> Result<(), Status> {
        Usbfs::clear_halt(self, endpoint)
    }

    fn reset(&mut self) -> Result<(), Status> {
        Usbfs::reset(self)
    }
}
