//! The buses that a program sees: one for each kind of root hub, with the devices at its ports.

use std::io;

use farbus_gadgets::Emulated;
use farbus_gadgets::root_hub::{PORTS_MAX, RootHub, SUPER_PORTS_MAX};
use farbus_io::link::Clock;
use farbus_model::{Completions, Device, DeviceLayer, Speed};
use farbus_session::usbfs::Place;

use crate::frontend::remote_usb::FarDevice;

/// The first number of a device; the root hub has 1.
const FIRST: u16 = 2;

/// What is on a bus.
pub enum Member {
    /// Its root hub.
    Hub(Box<Emulated<RootHub>>),
    /// A device of another host.
    Far(FarDevice),
}

impl Member {
    /// The clock by which it lives.
    pub fn clock(&self) -> Clock {
        match self {
            Member::Hub(_) => Clock::start(),
            Member::Far(device) => device.clock(),
        }
    }

    /// How many ports it has.
    pub fn ports(&self) -> u8 {
        match self {
            Member::Hub(hub) => hub.function().ports(),
            Member::Far(_) => 0,
        }
    }

    /// Gives it back to its host.
    pub fn close(&mut self, done: &mut Completions) {
        if let Member::Far(device) = self {
            device.close(done);
        }
    }
}

impl DeviceLayer for Member {
    type Inner = dyn Device;

    fn inner(&self) -> &(dyn Device + 'static) {
        match self {
            Member::Hub(hub) => &**hub,
            Member::Far(device) => device,
        }
    }

    fn inner_mut(&mut self) -> &mut (dyn Device + 'static) {
        match self {
            Member::Hub(hub) => &mut **hub,
            Member::Far(device) => device,
        }
    }
}

/// Puts devices on buses: those of SuperSpeed on one of their own, as an xHCI controller does (xHCI 1.2 §4.19.7).
///
/// # Errors
/// More devices than a bus has ports.
pub fn members(devices: Vec<FarDevice>) -> io::Result<Vec<(Place, Member)>> {
    let (fast, others): (Vec<_>, Vec<_>) =
        devices.into_iter().partition(|device| Device::speed(device) >= Speed::Super);
    let mut members = Vec::new();
    let kinds = [(others, false, PORTS_MAX), (fast, true, SUPER_PORTS_MAX)];
    for (bus, (devices, is_super, most)) in (1..).zip(kinds.into_iter().filter(|(devices, ..)| !devices.is_empty())) {
        if devices.len() > most {
            let why = format!("a bus has room for {most} devices of this speed, not for {}", devices.len());
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        let hub = RootHub::device(is_super, devices.iter().map(|device| Some(Device::speed(device))).collect());
        members.push((Place { bus, device: 1, ports: Vec::new() }, Member::Hub(Box::new(hub))));
        for (port, device) in (1u8..).zip(devices) {
            let place = Place { bus, device: FIRST - 1 + u16::from(port), ports: vec![port] };
            members.push((place, Member::Far(device)));
        }
    }
    Ok(members)
}
