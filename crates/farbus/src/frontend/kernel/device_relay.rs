//! The relay between the kernel and a USB device of another host, over either protocol. A replacement process may
//! continue it if the device is in a session.

use std::io;
use std::os::fd::OwnedFd;

use farbus_io_net::link::{Link, PollInterest};
use farbus_model::{CompletionQueue, Device, SessionLimits};
use farbus_session::far::{FarLayer, FarLayerConfig};
use farbus_session::isochronous::IsochronousLayer;
use farbus_session::snapshot::{FieldReader, SnapshotWriter};
use farbus_session::{Exporter, PortResetPolicy, ProtocolViolation};

use crate::frontend::kernel::relay_loop::{
    KERNEL, KernelRelay, KernelSide, RelayFacts, RelayStopCause, RelayTurnResult,
};
use crate::frontend::usb_swap::{IS_MOVING, SwapUsb, UsbSwap};
use crate::importer::client::no_disk::lacks_streams;
use crate::importer::options::ahead::PrefetchMode;
use crate::importer::session::connection::SessionResumption;
use crate::importer::session::distance::DistanceCounters;
use crate::link::meters::EngineMeters;

/// The relay, and what was last reported of its device's distance.
pub struct DeviceRelay(KernelSide<DistanceHidingUsb>, DistanceCounters);

/// A device, with the layers that hide its distance from the kernel. They do nothing over plain USB/IP.
type DistanceHidingUsb = FarLayer<IsochronousLayer<SwapUsb>>;

impl DeviceRelay {
    /// A relay to `device`.
    pub fn new(kernel: Link, device: SwapUsb, ahead: PrefetchMode) -> Self {
        let (clock, plan, device_id) = (device.clock(), plan_of(&device, ahead), device.device_id());
        let (limits, on_reset) = (limits_of(&device), device.on_reset());
        let device = FarLayer::new(IsochronousLayer::new(device, plan.is_on), plan);
        let exporter = Exporter::imported(clock.now(), limits, device_id, device, on_reset);
        let mut side = KernelSide::new(kernel, exporter, clock);
        // The kernel's first requests are sent before the kernel makes them.
        side.exporter.with_device(clock.now(), |device, done| device.begin(clock.now(), done));
        Self(side, DistanceCounters::default())
    }

    /// The device below the layers.
    fn attached(&self) -> &SwapUsb {
        self.0.device().device().inner()
    }

    /// Acts on the device below the layers, which see what it completes.
    fn act<T>(&mut self, act: impl FnOnce(&mut SwapUsb, &mut CompletionQueue) -> T) -> T {
        let now = self.0.clock.now();
        let acted = self.0.exporter.with_device(now, |device, done| {
            device.act(now, done, |streams, done| streams.act(now, done, |attached, done| act(attached, done)))
        });
        acted.expect("a relay has its device from the start")
    }

    /// Begins to exchange the device for its twin, if that was ordered.
    fn look_after_swap(&mut self) {
        if let Some(order) = self.attached().take_order() {
            let is_here = self.attached().status().is_none_or(|session| session.is_ours());
            let (now, refusal) = (self.0.clock.now(), (!is_here).then_some(IS_MOVING));
            self.act(|attached, done| attached.exchange(now, order, refusal, done));
        }
        let on_reset = self.attached().on_reset();
        self.0.exporter.set_on_reset(on_reset);
    }

    /// Restores a relay from the whole snapshot of another process; it does nothing before its first turn.
    ///
    /// # Errors
    /// The snapshot is invalid, or the system has no more threads or descriptors.
    pub fn restore(
        mut reader: FieldReader<'_>,
        socket: OwnedFd,
        redial: SessionResumption,
        swap: UsbSwap,
    ) -> io::Result<Self> {
        let wrong = |reject: ProtocolViolation| io::Error::new(io::ErrorKind::InvalidData, reject.to_string());
        let device = SwapUsb::restore(redial, swap, &mut reader)?;
        // Both layers saved whether they fetch ahead; this plan says how far, if they do.
        let (clock, plan, wanted) = (device.clock(), plan_of(&device, PrefetchMode::Auto), device.in_flight_of());
        let streams = IsochronousLayer::restore(clock.now(), device, &mut reader);
        let device = streams.map_err(|(mut device, reject)| {
            device.leave();
            wrong(reject)
        })?;
        let wanted = device.in_flight_of(wanted);
        let far = FarLayer::restore(clock.now(), device, plan, wanted, &mut reader);
        let device = far.map_err(|(device, reject)| {
            device.hand_over().leave();
            wrong(reject)
        })?;
        let requests = |device: &DistanceHidingUsb| {
            let streams = device.device();
            device.in_flight_of(streams.in_flight_of(streams.inner().in_flight_of()))
        };
        let (limits, on_reset) = (SessionLimits::RELAYED, PortResetPolicy::ResetDevice);
        let restored = Exporter::restore(clock.now(), limits, on_reset, device, requests, &mut reader);
        let exporter = restored.map_err(|(device, reject)| {
            device.hand_over().hand_over().leave();
            wrong(reject)
        })?;
        let relay =
            Self(KernelSide::new(Link::over_local(socket, KERNEL), exporter, clock), DistanceCounters::default());
        match reader.end("snapshot") {
            Ok(()) => Ok(relay),
            Err(reject) => {
                relay.hand_over();
                Err(wrong(reject))
            }
        }
    }
}

impl KernelRelay for DeviceRelay {
    fn relayed(&self) -> RelayFacts {
        let device = self.attached();
        RelayFacts {
            session: device.status(),
            local_address: device.local_address(),
            usb_swap: Some(device.handle()),
            is_movable: device.is_movable(),
            lacks_streams: lacks_streams(Device::descriptors(device), Device::speed(device)),
            ..RelayFacts::how(device.how())
        }
    }

    fn turn(&mut self, stop: PollInterest<'_>, meters: &EngineMeters) -> RelayTurnResult {
        self.look_after_swap();
        self.0.turn(stop, meters, |device| {
            device.device().inner().ended().map(|ended| RelayStopCause::Ended(Box::new(ended)))
        })?;
        let distance = DistanceCounters::of(self.0.device());
        // Most devices are never asked ahead: their counts do not change.
        if distance != self.1 {
            self.1 = distance;
            self.attached().status().into_iter().for_each(|session| session.note_distance(distance));
        }
        Ok(())
    }

    fn save(&mut self, to: &mut SnapshotWriter) -> Result<Option<OwnedFd>, RelayStopCause> {
        if !self.attached().is_own() {
            return Ok(None);
        }
        self.0.come_to_rest(|exporter| {
            let device = exporter.device().expect("a relay has its device from the start").device().inner();
            match device.ended() {
                Some(ended) => Err(RelayStopCause::Ended(Box::new(ended))),
                None => Ok(exporter.in_flight() == 0 || !device.is_linked()),
            }
        })?;
        let socket = self.0.socket()?;
        let now = self.0.clock.now();
        let saved = self.0.exporter.with_device(now, |device, done| {
            let is_saved = device.act(now, done, |streams, done| {
                let is_saved = streams.act(now, done, |attached, _| attached.save_to(to));
                streams.save(to);
                is_saved
            });
            device.save(to);
            is_saved
        });
        self.0.exporter.save(now, to);
        Ok((saved == Some(true)).then_some(socket))
    }

    fn hand_over(self) {
        if let Some(device) = self.0.exporter.hand_over() {
            device.hand_over().hand_over().leave();
        }
    }

    fn close(&mut self) -> bool {
        let now = self.0.clock.now();
        self.act(|attached, done| attached.close(now, done));
        self.0.say_the_rest(now);
        // The kernel flushes what it drives itself.
        true
    }
}

/// The plan for hiding a device's distance.
fn plan_of(device: &SwapUsb, ahead: PrefetchMode) -> FarLayerConfig {
    match (ahead, device.requests_max()) {
        (PrefetchMode::Auto, Some(requests)) => FarLayerConfig::within(requests),
        _ => FarLayerConfig::OFF,
    }
}

/// A session copies short payloads, because it keeps them until they are acknowledged.
fn limits_of(device: &SwapUsb) -> SessionLimits {
    if device.status().is_some() { SessionLimits::RELAYED } else { SessionLimits::DEFAULT }
}
