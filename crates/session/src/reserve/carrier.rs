//! What a device's endpoints can carry, and on which bus.

use farbus_model::{DescriptorSet, EpAddr, TransferDirection, TransferType, UsbSpeed};
use farbus_realtime::schedule::{self, EndpointRequest, EndpointRequestError};
use farbus_realtime::transfer::{self, PacketShape, interval_ps};
use farbus_realtime::{self as realtime, TransferKind};
use farbus_wire::native::reserve::{EndpointBandwidth, ReservationCriticality};

use super::refusal::ReservationDenial;

/// First period that is too long for a device without a bus: about four seconds.
const PERIODS_MAX: u32 = 32_769;

/// A device as its bus sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceBusProfile {
    /// Empty if the device is on no bus.
    bus: String,
    speed: realtime::BusSpeed,
    endpoints: Vec<ReservableEndpoint>,
}

/// The load of a claim on its host and its path, independent of the bus.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReservationLoad {
    /// Data of one period, bytes.
    pub bytes: u32,
    /// Length of a period, ns.
    pub period_ns: u64,
    /// Packets per period, each of which has a descriptor besides its data.
    pub packets: u32,
}

/// An endpoint in its largest setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ReservableEndpoint {
    address: u8,
    /// `None`: no bus can carry such packets.
    shape: Option<PacketShape>,
    /// It is served in one of this many intervals, if it is periodic.
    every: u32,
}

impl DeviceBusProfile {
    /// A device with these descriptors, on the bus instance that people call `bus`.
    pub fn new(bus: impl Into<String>, descriptors: &DescriptorSet, speed: UsbSpeed) -> Self {
        let speed = match speed {
            UsbSpeed::Low => realtime::BusSpeed::Low,
            UsbSpeed::Full => realtime::BusSpeed::Full,
            UsbSpeed::High => realtime::BusSpeed::High,
            // A faster bus than the model knows carries what is promised.
            _ => realtime::BusSpeed::Super,
        };
        let mut endpoints: Vec<ReservableEndpoint> = Vec::new();
        let settings = descriptors.configurations.iter().flat_map(|configuration| &configuration.settings);
        for endpoint in settings.flat_map(|setting| &setting.endpoints) {
            let found = ReservableEndpoint::of(endpoint, speed);
            match endpoints.iter_mut().find(|known| known.address == found.address) {
                Some(known) if known.quantum() < found.quantum() => *known = found,
                Some(_) => {}
                None => endpoints.push(found),
            }
        }
        Self { bus: bus.into(), speed, endpoints }
    }

    /// A device on no bus: a disk that is a file, frames from a program. Its claims count in microframes all the same.
    pub fn without_bus() -> Self {
        Self { bus: String::new(), speed: realtime::BusSpeed::High, endpoints: Vec::new() }
    }

    /// Whether it is on a bus.
    pub fn has_bus(&self) -> bool {
        !self.bus.is_empty()
    }

    /// Its bus instance; empty if it is on none.
    pub fn bus(&self) -> &str {
        &self.bus
    }

    /// Length of one of its intervals, ns.
    pub fn interval_ns(&self) -> u64 {
        interval_ps(self.speed) / 1000
    }

    /// The load of a claim on host and path.
    ///
    /// # Errors
    /// [`ReservationDenial`]: a device without a bus has no endpoints, and the claim must have a budget and a valid period.
    pub fn load(
        &self,
        claim: &EndpointBandwidth,
        request: Option<&EndpointRequest>,
    ) -> Result<ReservationLoad, ReservationDenial> {
        let EndpointBandwidth { endpoint, bytes, period } = *claim;
        if request.is_none() && endpoint != 0 {
            return Err(ReservationDenial::NoEndpoint { endpoint });
        }
        let why = match (bytes, period) {
            (0, _) => Some(EndpointRequestError::NoBudget),
            (_, 0 | PERIODS_MAX..) if request.is_none() => {
                Some(EndpointRequestError::Period { wanted: period, max: PERIODS_MAX - 1 })
            }
            _ => None,
        };
        match why {
            Some(why) => Err(ReservationDenial::Invalid { endpoint, why }),
            None => {
                let packets = request.map_or(0, |request| request.shape.packets(bytes));
                Ok(ReservationLoad { bytes, period_ns: u64::from(period) * self.interval_ns(), packets })
            }
        }
    }

    /// A claim as a request to its bus, with this id.
    ///
    /// # Errors
    /// [`ReservationDenial`]: the device cannot carry it.
    pub fn request(
        &self,
        id: u32,
        claim: &EndpointBandwidth,
        criticality: ReservationCriticality,
    ) -> Result<EndpointRequest, ReservationDenial> {
        let found = match claim.endpoint {
            0 => self.usual(),
            address => self.endpoints.iter().find(|endpoint| endpoint.address == address),
        };
        let ReservableEndpoint { address: endpoint, shape, every } =
            *found.ok_or(ReservationDenial::NoEndpoint { endpoint: claim.endpoint })?;
        let shape = shape.ok_or(ReservationDenial::Unfit { endpoint })?;
        let criticality = match criticality {
            ReservationCriticality::Low => schedule::EndpointCriticality::Low,
            ReservationCriticality::High => schedule::EndpointCriticality::High,
        };
        let request = EndpointRequest { id, shape, budget_bytes: claim.bytes, period: claim.period, criticality };
        request.check().map_err(|why| ReservationDenial::Invalid { endpoint, why })?;
        if shape.is_periodic() && claim.period < every {
            return Err(ReservationDenial::TooOften { endpoint, wanted: claim.period, own: every });
        }
        Ok(request)
    }

    /// The address of the endpoint that a claim means.
    pub fn address(&self, claim: &EndpointBandwidth) -> EpAddr {
        let address = if claim.endpoint == 0 { self.usual().map_or(0, |usual| usual.address) } else { claim.endpoint };
        EpAddr::from_byte(address)
    }

    /// The endpoint for the device's data: isochronous before interrupt before bulk, IN before OUT, then the largest.
    fn usual(&self) -> Option<&ReservableEndpoint> {
        let rank = |endpoint: &&ReservableEndpoint| {
            let shape = endpoint.shape?;
            let kind = match shape.kind() {
                TransferKind::Isochronous => 3,
                TransferKind::Interrupt => 2,
                TransferKind::Bulk => 1,
                TransferKind::Control => return None,
            };
            Some((kind, endpoint.address & 0x80 != 0, shape.quantum_bytes()))
        };
        let usual = self.endpoints.iter().filter(|endpoint| rank(endpoint).is_some());
        // The first of equals.
        usual.rev().max_by_key(rank)
    }
}

impl ReservableEndpoint {
    fn of(endpoint: &farbus_model::EndpointDescriptor, speed: realtime::BusSpeed) -> Self {
        let kind = match endpoint.kind {
            TransferType::Control => TransferKind::Control,
            TransferType::Isochronous => TransferKind::Isochronous,
            TransferType::Bulk => TransferKind::Bulk,
            TransferType::Interrupt => TransferKind::Interrupt,
        };
        let direction = match endpoint.address.direction() {
            TransferDirection::In => transfer::BusDirection::In,
            TransferDirection::Out => transfer::BusDirection::Out,
        };
        let packets = u32::from(endpoint.packets_per_interval.max(1));
        let (burst, mult) = match (speed, kind) {
            (realtime::BusSpeed::Super, TransferKind::Bulk) => (packets - 1, 0),
            (realtime::BusSpeed::Super, TransferKind::Isochronous) => {
                let bursts = (1..=3).find(|bursts| packets.is_multiple_of(*bursts) && packets / bursts <= 16);
                bursts.map_or((packets - 1, 0), |bursts| (packets / bursts - 1, bursts - 1))
            }
            _ => (0, packets - 1),
        };
        let shape = PacketShape::new(speed, kind, direction, endpoint.packet_bytes_max.into(), burst, mult).ok();
        let exponent = u32::from(endpoint.interval.clamp(1, 16) - 1);
        let every = match (speed, kind) {
            (_, TransferKind::Control | TransferKind::Bulk) => 1,
            // Hosts round down to a power of two.
            (realtime::BusSpeed::Low | realtime::BusSpeed::Full, TransferKind::Interrupt) => {
                1 << u32::from(endpoint.interval.max(1)).ilog2()
            }
            _ => 1 << exponent,
        };
        Self { address: endpoint.address.as_byte(), shape, every }
    }

    fn quantum(&self) -> u32 {
        self.shape.map_or(0, |shape| shape.quantum_bytes())
    }
}
