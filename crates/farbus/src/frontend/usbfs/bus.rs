//! The buses that a program sees: one for each kind of root hub, with the devices at its ports.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Instant;

use farbus_control::failure::FailureReport;
use farbus_gadgets::EmulatedDevice;
use farbus_gadgets::root_hub::{PORTS_MAX, RootHub, SUPER_PORTS_MAX};
use farbus_io_net::link::{BoottimeClock, ThreadWaker};
use farbus_model::{CompletionQueue, Device, DeviceLayer, Instant as ModelInstant, UsbSpeed};
use farbus_session::usbfs::UsbBusLocation;
use tracing::warn;

use super::tree::{LOCAL, bus_of};
use crate::devices::follow::FollowPolicy;
use crate::frontend::AttachmentEnd;
use crate::frontend::remote_usb::FarDevice;
use crate::frontend::usb_swap::{SwapUsb, UsbSwap, UsbSwapOrder};
use crate::importer::client::{
    ClientError, DeviceReopener, DeviceTarget, FailureKind, GRACE_DISK, ImporterClient, RememberedDevice,
};

/// The numbers of devices (USB 2.0 §9.4.6); the root hub has 1.
const FIRST: u16 = 2;
const LAST: u16 = 127;

/// Where a device comes from.
#[derive(Debug)]
pub struct FarDeviceSource {
    /// How its host is reached.
    client: ImporterClient,
    target: DeviceTarget,
    /// Since when a program has it is now, and what exchanges it.
    now: Mutex<Option<(Instant, UsbSwap)>>,
    /// Why it was taken away for good.
    taken_away: OnceLock<FailureReport>,
    /// While it is looked for: whether another device is where it was.
    finds_another: AtomicBool,
}

impl FarDeviceSource {
    /// A device that is yet to be taken. `follow`: which other devices in its port the program gets; `None`: any that
    /// is no disk and no other one of its make.
    pub fn new(client: ImporterClient, target: DeviceTarget, follow: Option<&FollowPolicy>) -> Self {
        let remembered = RememberedDevice::new(&target, DeviceReopener::Run);
        let client = client.remembering(match follow {
            Some(follow) => remembered.following(follow),
            None => remembered,
        });
        let (now, taken_away) = (Mutex::new(None), OnceLock::new());
        Self { client, target, now, taken_away, finds_another: AtomicBool::new(false) }
    }

    /// The host and the device that this source opens.
    pub fn target(&self) -> &DeviceTarget {
        &self.target
    }

    /// Takes the device, for an engine that `wake` wakes.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn open(&self, wake: &Arc<ThreadWaker>) -> Result<SwapUsb, ClientError> {
        let opened = FarDevice::open(&self.client, &self.target, GRACE_DISK);
        let is_another = matches!(opened, Err(ClientError::AnotherDevice { .. }));
        let was_another = self.finds_another.swap(is_another, Ordering::Relaxed);
        let device = opened.inspect_err(|error| {
            if is_another && !was_another {
                warn!("{error}");
            }
        })?;
        let swap = UsbSwap::new(&self.client, &self.target, Arc::clone(wake));
        *self.now.lock().unwrap_or_else(PoisonError::into_inner) = Some((Instant::now(), swap.clone()));
        Ok(SwapUsb::new(device, swap))
    }

    /// Its exporter has ended its use: it is not taken again.
    pub fn note_taken_away(&self, why: FailureReport) {
        // The first reason counts.
        let _ = self.taken_away.set(why);
    }

    /// Why it was taken away for good, if it was.
    pub fn taken_away(&self) -> Option<&FailureReport> {
        self.taken_away.get()
    }

    /// What exchanged it last.
    pub fn last_swap(&self) -> Option<UsbSwap> {
        self.now.lock().unwrap_or_else(PoisonError::into_inner).as_ref().map(|(_, swap)| swap.clone())
    }

    /// Whether another device is where it was, while it is looked for.
    pub fn finds_another(&self) -> bool {
        self.finds_another.load(Ordering::Relaxed)
    }

    /// Since when a program has it is now, and what exchanges it; `None` while it is looked for.
    pub fn now(&self) -> Option<(Instant, UsbSwap)> {
        let now = self.now.lock().unwrap_or_else(PoisonError::into_inner);
        now.as_ref().filter(|(_, swap)| !swap.is_over()).cloned()
    }
}

impl fmt::Display for FarDeviceSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.target.shown())
    }
}

/// What is on a bus.
pub enum BusMember {
    /// Its root hub.
    Hub(Box<EmulatedDevice<RootHub>>),
    /// A device of another host.
    Far {
        /// The device, or its twin.
        device: Box<SwapUsb>,
        /// From where it comes again, if it goes.
        source: Arc<FarDeviceSource>,
    },
}

impl BusMember {
    /// The clock by which it lives.
    pub fn clock(&self) -> BoottimeClock {
        match self {
            BusMember::Hub(_) => BoottimeClock::start(),
            BusMember::Far { device, .. } => device.clock(),
        }
    }

    /// How many ports it has.
    pub fn ports(&self) -> u8 {
        match self {
            BusMember::Hub(hub) => hub.function().ports(),
            BusMember::Far { .. } => 0,
        }
    }

    /// Of a root hub: what is at a port from now on.
    pub fn set_port(&mut self, port: u8, device: Option<UsbSpeed>) {
        if let BusMember::Hub(hub) = self {
            hub.function_mut().set_port(port, device);
        }
    }

    /// From where it comes; `None` for a root hub.
    pub fn source(&self) -> Option<Arc<FarDeviceSource>> {
        match self {
            BusMember::Hub(_) => None,
            BusMember::Far { source, .. } => Some(Arc::clone(source)),
        }
    }

    /// The order to exchange it for its twin, if there is one.
    pub fn take_order(&self) -> Option<UsbSwapOrder> {
        match self {
            BusMember::Hub(_) => None,
            BusMember::Far { device, .. } => device.take_order(),
        }
    }

    /// Begins to exchange it as ordered.
    pub fn exchange(&mut self, now: ModelInstant, order: UsbSwapOrder, done: &mut CompletionQueue) {
        if let BusMember::Far { device, .. } = self {
            device.exchange(now, order, None, done);
        }
    }

    /// Why it is not to be looked for: its exporter has ended its use, because its lease is over or its owner took it
    /// back.
    pub fn taken_away(&self) -> Option<FailureReport> {
        let BusMember::Far { device, .. } = self else { return None };
        match device.ended() {
            Some(AttachmentEnd::Over(report)) if report.attribute == FailureKind::Refused => Some(report),
            _ => None,
        }
    }

    /// It is gone, and another one is looked for: takes no more orders.
    pub fn note_gone(&mut self) {
        if let BusMember::Far { device, .. } = self {
            device.handle().end();
        }
    }

    /// Gives it back to its host.
    pub fn close(&mut self, now: ModelInstant, done: &mut CompletionQueue) {
        if let BusMember::Far { device, .. } = self {
            device.close(now, done);
        }
    }
}

impl DeviceLayer for BusMember {
    type Inner = dyn Device;

    fn inner(&self) -> &(dyn Device + 'static) {
        match self {
            BusMember::Hub(hub) => &**hub,
            BusMember::Far { device, .. } => &**device,
        }
    }

    fn inner_mut(&mut self) -> &mut (dyn Device + 'static) {
        match self {
            BusMember::Hub(hub) => &mut **hub,
            BusMember::Far { device, .. } => &mut **device,
        }
    }
}

/// The device numbers of the buses: the next one is always another one, as long as there are any (`choose_devnum`).
#[derive(Debug, Default)]
pub struct DeviceNumberAllocator(BTreeMap<u16, u16>);

impl DeviceNumberAllocator {
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
pub fn members(
    devices: Vec<(SwapUsb, Arc<FarDeviceSource>)>,
    numbers: &mut DeviceNumberAllocator,
) -> io::Result<Vec<(UsbBusLocation, BusMember)>> {
    let (fast, others): (Vec<_>, Vec<_>) =
        devices.into_iter().partition(|(device, _)| Device::speed(device) >= UsbSpeed::Super);
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
        members.push((UsbBusLocation { bus, device: 1, ports: Vec::new() }, BusMember::Hub(Box::new(hub))));
        for (port, (device, source)) in (1u8..).zip(devices) {
            let location = UsbBusLocation { bus, device: numbers.next(bus, |_| false), ports: vec![port] };
            members.push((location, BusMember::Far { device: Box::new(device), source }));
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
