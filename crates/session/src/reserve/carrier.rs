//! What a device's endpoints can carry, and on which bus.

use farbus_model::{Descriptors, Direction, EpAddr, Speed, TransferType};
use farbus_realtime::schedule::{self, Invalid, Request};
use farbus_realtime::transfer::{self, Shape, interval_ps};
use farbus_realtime::{self as realtime, TransferKind};
use farbus_wire::native::reserve::{Claim, Criticality};

use super::refusal::Refusal;

/// First period that is too long for a device without a bus: about four seconds.
const PERIODS_MAX: u32 = 32_769;

/// A device as its bus sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Carrier {
    /// Empty if the device is on no bus.
    bus: String,
    speed: realtime::Speed,
    endpoints: Vec<Endpoint>,
}

/// The load of a claim on its host and its path, independent of the bus.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Load {
    /// Data of one period, bytes.
    pub bytes: u32,
    /// Length of a period, ns.
    pub period_ns: u64,
    /// Packets per period, each of which has a descriptor besides its data.
    pub packets: u32,
}

/// An endpoint in its largest setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Endpoint {
    address: u8,
    /// `None`: no bus can carry such packets.
    shape: Option<Shape>,
    /// It is served in one of this many intervals, if it is periodic.
    every: u32,
}

impl Carrier {
    /// A device with these descriptors, on the bus instance that people call `bus`.
    pub fn new(bus: impl Into<String>, descriptors: &Descriptors, speed: Speed) -> Self {
        let speed = match speed {
            Speed::Low => realtime::Speed::Low,
            Speed::Full => realtime::Speed::Full,
            Speed::High => realtime::Speed::High,
            // A faster bus than the model knows carries what is promised.
            _ => realtime::Speed::Super,
        };
        let mut endpoints: Vec<Endpoint> = Vec::new();
        let settings = descriptors.configurations.iter().flat_map(|configuration| &configuration.settings);
        for endpoint in settings.flat_map(|setting| &setting.endpoints) {
            let found = Endpoint::of(endpoint, speed);
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
        Self { bus: String::new(), speed: realtime::Speed::High, endpoints: Vec::new() }
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
    /// [`Refusal`]: a device without a bus has no endpoints, and the claim must have a budget and a valid period.
    pub fn load(&self, claim: &Claim, request: Option<&Request>) -> Result<Load, Refusal> {
        let Claim { endpoint, bytes, period } = *claim;
        if request.is_none() && endpoint != 0 {
            return Err(Refusal::NoEndpoint { endpoint });
        }
        let why = match (bytes, period) {
            (0, _) => Some(Invalid::NoBudget),
            (_, 0 | PERIODS_MAX..) if request.is_none() => {
                Some(Invalid::Period { asked: period, max: PERIODS_MAX - 1 })
            }
            _ => None,
        };
        match why {
            Some(why) => Err(Refusal::Invalid { endpoint, why }),
            None => {
                let packets = request.map_or(0, |request| request.shape.packets(bytes));
                Ok(Load { bytes, period_ns: u64::from(period) * self.interval_ns(), packets })
            }
        }
    }

    /// A claim as a request to its bus, with this id.
    ///
    /// # Errors
    /// [`Refusal`]: the device cannot carry it.
    pub fn request(&self, id: u32, claim: &Claim, criticality: Criticality) -> Result<Request, Refusal> {
        let found = match claim.endpoint {
            0 => self.usual(),
            address => self.endpoints.iter().find(|endpoint| endpoint.address == address),
        };
        let Endpoint { address: endpoint, shape, every } =
            *found.ok_or(Refusal::NoEndpoint { endpoint: claim.endpoint })?;
        let shape = shape.ok_or(Refusal::Unfit { endpoint })?;
        let criticality = match criticality {
            Criticality::Low => schedule::Criticality::Low,
            Criticality::High => schedule::Criticality::High,
        };
        let request = Request { id, shape, budget_bytes: claim.bytes, period: claim.period, criticality };
        request.check().map_err(|why| Refusal::Invalid { endpoint, why })?;
        if shape.is_periodic() && claim.period < every {
            return Err(Refusal::TooOften { endpoint, asked: claim.period, own: every });
        }
        Ok(request)
    }

    /// The address of the endpoint that a claim means.
    pub fn address(&self, claim: &Claim) -> EpAddr {
        let address = if claim.endpoint == 0 { self.usual().map_or(0, |usual| usual.address) } else { claim.endpoint };
        EpAddr::from_byte(address)
    }

    /// The endpoint for the device's data: isochronous before interrupt before bulk, IN before OUT, then the largest.
    fn usual(&self) -> Option<&Endpoint> {
        let rank = |endpoint: &&Endpoint| {
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

impl Endpoint {
    fn of(endpoint: &farbus_model::Endpoint, speed: realtime::Speed) -> Self {
        let kind = match endpoint.kind {
            TransferType::Control => TransferKind::Control,
            TransferType::Isochronous => TransferKind::Isochronous,
            TransferType::Bulk => TransferKind::Bulk,
            TransferType::Interrupt => TransferKind::Interrupt,
        };
        let direction = match endpoint.address.direction() {
            Direction::In => transfer::Direction::In,
            Direction::Out => transfer::Direction::Out,
        };
        let packets = u32::from(endpoint.packets_per_interval.max(1));
        let (burst, mult) = match (speed, kind) {
            (realtime::Speed::Super, TransferKind::Bulk) => (packets - 1, 0),
            (realtime::Speed::Super, TransferKind::Isochronous) => {
                let bursts = (1..=3).find(|bursts| packets.is_multiple_of(*bursts) && packets / bursts <= 16);
                bursts.map_or((packets - 1, 0), |bursts| (packets / bursts - 1, bursts - 1))
            }
            _ => (0, packets - 1),
        };
        let shape = Shape::new(speed, kind, direction, endpoint.packet_bytes_max.into(), burst, mult).ok();
        let exponent = u32::from(endpoint.interval.clamp(1, 16) - 1);
        let every = match (speed, kind) {
            (_, TransferKind::Control | TransferKind::Bulk) => 1,
            // Hosts round down to a power of two.
            (realtime::Speed::Low | realtime::Speed::Full, TransferKind::Interrupt) => {
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
