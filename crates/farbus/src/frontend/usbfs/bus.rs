//! The buses that a program sees: one for each kind of root hub, with the devices at its ports.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::sync::Arc;

use farbus_gadgets::Emulated;
use farbus_gadgets::root_hub::{PORTS_MAX, RootHub, SUPER_PORTS_MAX};
use farbus_io::link::Clock;
use farbus_model::{Completions, Device, DeviceLayer, Speed};
use farbus_session::usbfs::Place;

use super::tree::{LOCAL, bus_of};
use crate::frontend::remote_usb::FarDevice;
use crate::importer::client::{Client, ClientError, GRACE_DISK, Target};

/// The numbers of devices (USB 2.0 §9.4.6); the root hub has 1.
const FIRST: u16 = 2;
const LAST: u16 = 127;

/// Where a device comes from.
#[derive(Debug)]
pub struct Source {
    /// How its host is reached.
    pub client: Client,
    /// The device.
    pub target: Target,
}

impl Source {
    /// Takes the device.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn open(&self) -> Result<FarDevice, ClientError> {
        FarDevice::open(&self.client, &self.target, GRACE_DISK)
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.target.shown())
    }
}

/// What is on a bus.
pub enum Member {
    /// Its root hub.
    Hub(Box<Emulated<RootHub>>),
    /// A device of another host.
    Far {
        /// The device.
        device: FarDevice,
        /// From where it comes again, if it goes.
        source: Arc<Source>,
    },
}

impl Member {
    /// The clock by which it lives.
    pub fn clock(&self) -> Clock {
        match self {
            Member::Hub(_) => Clock::start(),
            Member::Far { device, .. } => device.clock(),
        }
    }

    /// How many ports it has.
    pub fn ports(&self) -> u8 {
        match self {
            Member::Hub(hub) => hub.function().ports(),
            Member::Far { .. } => 0,
        }
    }

    /// Of a root hub: what is at a port from now on.
    pub fn set_port(&mut self, port: u8, device: Option<Speed>) {
        if let Member::Hub(hub) = self {
            hub.function_mut().set_port(port, device);
        }
    }

    /// From where it comes; `None` for a root hub.
    pub fn source(&self) -> Option<Arc<Source>> {
        match self {
            Member::Hub(_) => None,
            Member::Far { source, .. } => Some(Arc::clone(source)),
        }
    }

    /// Gives it back to its host.
    pub fn close(&mut self, done: &mut Completions) {
        if let Member::Far { device, .. } = self {
            device.close(done);
        }
    }
}

impl DeviceLayer for Member {
    type Inner = dyn Device;

    fn inner(&self) -> &(dyn Device + 'static) {
        match self {
            Member::Hub(hub) => &**hub,
            Member::Far { device, .. } => device,
        }
    }

    fn inner_mut(&mut self) -> &mut (dyn Device + 'static) {
        match self {
            Member::Hub(hub) => &mut **hub,
            Member::Far { device, .. } => device,
        }
    }
}

/// The device numbers of the buses: the next one is always another one, as long as there are any (`choose_devnum`).
#[derive(Debug, Default)]
pub struct Numbers(BTreeMap<u16, u16>);

impl Numbers {
    /// The next number on a bus, of those that no device has.
    pub fn next(&mut self, bus: u16, is_taken: impl Fn(u16) -> bool) -> u16 {
        let last = self.0.entry(bus).or_insert(FIRST - 1);
        // The devices at the ports are fewer than the numbers, and the last ones of those that left are closed.
        for _ in FIRST..=LAST {
            *last = if *last < LAST { *last + 1 } else { FIRST };
            if !is_taken(*last) {
                break;
            }
        }
        *last
    }
}

/// Puts devices on buses: those of SuperSpeed on one of their own, as an xHCI controller does (xHCI 1.2 §4.19.7).
///
/// # Errors
/// More devices than a bus has ports.
pub fn members(devices: Vec<(FarDevice, Arc<Source>)>, numbers: &mut Numbers) -> io::Result<Vec<(Place, Member)>> {
    let (fast, others): (Vec<_>, Vec<_>) =
        devices.into_iter().partition(|(device, _)| Device::speed(device) >= Speed::Super);
    let mut members = Vec::new();
    let kinds = [(others, false, PORTS_MAX), (fast, true, SUPER_PORTS_MAX)];
    for (bus, (devices, is_super, most)) in
        (first_bus()..).zip(kinds.into_iter().filter(|(devices, ..)| !devices.is_empty()))
    {
        if devices.len() > most {
            let why = format!("a bus has room for {most} devices of this speed, not for {}", devices.len());
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        let hub = RootHub::device(is_super, devices.iter().map(|(device, _)| Some(Device::speed(device))).collect());
        members.push((Place { bus, device: 1, ports: Vec::new() }, Member::Hub(Box::new(hub))));
        for (port, (device, source)) in (1u8..).zip(devices) {
            let place = Place { bus, device: numbers.next(bus, |_| false), ports: vec![port] };
            members.push((place, Member::Far { device, source }));
        }
    }
    Ok(members)
}

/// A bus number that this machine's own buses do not have: what udev knows of their devices, by these numbers, is not
/// about ours.
fn first_bus() -> u16 {
    let names = std::fs::read_dir(LOCAL).into_iter().flatten().flatten();
    names.filter_map(|entry| bus_of(entry.file_name().to_str()?)).max().map_or(1, |last| last + 1)
}
