//! How long a transfer occupies the bus: packets, quanta and passes. Equations 2 to 4 of West, Golchin and Njavro,
//! "Real-Time USB Networking and Device I/O" (2023), with the constants of USB 2.0 5.11.3 for the speeds that the paper
//! leaves out.
//!
//! Times are whole picoseconds: every constant of both sources is a whole number of them, so nothing is rounded.

use std::fmt;

use crate::bandwidth::usb3::{DATA_PACKET_BYTES, HEADER_PACKET_BYTES, LINK_ANSWER_BYTES};
use crate::bus::{BusSpeed, TransferKind};

/// The direction of an endpoint's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BusDirection {
    /// To the host.
    In,
    /// To the device.
    Out,
}

/// The packets of an endpoint by its descriptors, checked against what the bus can carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PacketShape {
    speed: BusSpeed,
    kind: TransferKind,
    direction: BusDirection,
    packet_bytes: u32,
    burst: u32,
    mult: u32,
}

/// Why a [`PacketShape`] is impossible: no such endpoint exists at that speed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PacketShapeError {
    /// Low speed has neither bulk nor isochronous endpoints (USB 2.0 5.6.3, 5.8.3).
    NoSuchKind {
        /// The speed at which the endpoint was requested.
        speed: BusSpeed,
        /// The transfer type that does not exist at this speed.
        kind: TransferKind,
    },
    /// The packet is empty or longer than the speed allows (USB 2.0 5.5.3 to 5.8.3, USB 3.2 9.6.6).
    PacketBytes {
        /// What was asked for.
        wanted: u32,
        /// The longest there is.
        max: u32,
    },
    /// Too many packets per burst (`n` of Equation 2, counted from zero).
    Burst {
        /// What was asked for.
        wanted: u32,
        /// The largest `n` that the speed and the transfer type allow.
        max: u32,
    },
    /// Too many bursts per interval (`m` of Equation 2, counted from zero).
    Mult {
        /// What was asked for.
        wanted: u32,
        /// The largest `m` that the speed and the transfer type allow.
        max: u32,
    },
}

impl PacketShape {
    /// An endpoint whose packets have at most `packet_bytes`, `burst` + 1 of them a burst (`n`) and `mult` + 1 bursts
    /// an interval (`m`): both are counted from zero, as descriptors and the paper do.
    pub const fn new(
        speed: BusSpeed,
        kind: TransferKind,
        direction: BusDirection,
        packet_bytes: u32,
        burst: u32,
        mult: u32,
    ) -> Result<Self, PacketShapeError> {
        let max = packet_bytes_max(speed, kind);
        if max == 0 {
            return Err(PacketShapeError::NoSuchKind { speed, kind });
        }
        if packet_bytes == 0 || packet_bytes > max {
            return Err(PacketShapeError::PacketBytes { wanted: packet_bytes, max });
        }
        // Equation 2; at high speed a periodic endpoint has up to three transactions a microframe (USB 2.0 5.9).
        let (burst_max, mult_max) = match (speed, kind) {
            (BusSpeed::Super, TransferKind::Isochronous) => (15, 2),
            (BusSpeed::Super, TransferKind::Bulk) => (15, 0),
            (BusSpeed::Super | BusSpeed::High, TransferKind::Interrupt) => (0, 2),
            (BusSpeed::High, TransferKind::Isochronous) => (0, 2),
            _ => (0, 0),
        };
        if burst > burst_max {
            return Err(PacketShapeError::Burst { wanted: burst, max: burst_max });
        }
        if mult > mult_max {
            return Err(PacketShapeError::Mult { wanted: mult, max: mult_max });
        }
        Ok(Self { speed, kind, direction, packet_bytes, burst, mult })
    }

    /// The signalling rate of its bus instance.
    pub const fn speed(&self) -> BusSpeed {
        self.speed
    }

    /// Its transfer type.
    pub const fn kind(&self) -> TransferKind {
        self.kind
    }

    /// The direction of its data.
    pub const fn direction(&self) -> BusDirection {
        self.direction
    }

    /// Whether it has a place in the periodic schedule: isochronous and interrupt endpoints have.
    pub const fn is_periodic(&self) -> bool {
        matches!(self.kind, TransferKind::Isochronous | TransferKind::Interrupt)
    }

    /// The longest packet, `b`.
    pub const fn packet_bytes(&self) -> u32 {
        self.packet_bytes
    }

    /// Packets that the controller moves before it turns to another endpoint's burst: `n + 1`.
    pub const fn burst_packets(&self) -> u32 {
        self.burst + 1
    }

    /// Packets of one quantum: `(m + 1)(n + 1)`.
    pub const fn quantum_packets(&self) -> u32 {
        (self.mult + 1) * (self.burst + 1)
    }

    /// Bytes of one quantum, `q` of Equation 2: the most that the wire carries for a periodic endpoint each period.
    pub const fn quantum_bytes(&self) -> u32 {
        self.quantum_packets() * self.packet_bytes
    }

    /// Worst-case time of one packet, `w` of Equation 3, in picoseconds.
    pub const fn packet_ps(&self) -> u64 {
        let overhead = overhead(self.speed, self.kind, self.direction);
        overhead.fixed_ps + overhead.bit_ps * payload_bits(self.speed, self.packet_bytes)
    }

    /// Time that one packet takes of its direction of the wire at the worst, as the specifications have it, in
    /// picoseconds. Up to high speed that is `w` of Equation 3, whose constants are those of USB 2.0 5.11.3. At
    /// SuperSpeed Equation 3 counts eight bits a byte where the wire sends ten (USB 3.2 6.3.1): 1.720 us for 1024
    /// isochronous bytes, which take 2.048 us without any overhead.
    pub const fn wire_ps(&self) -> u64 {
        if !matches!(self.speed, BusSpeed::Super) {
            return self.packet_ps();
        }
        // The link's answer to the ACK packet of the other side: one for each packet, or one for each burst.
        let answer_bytes = match self.kind {
            TransferKind::Isochronous => LINK_ANSWER_BYTES.div_ceil(self.burst_packets()),
            _ => LINK_ANSWER_BYTES,
        };
        (self.packet_bytes + DATA_PACKET_BYTES + answer_bytes) as u64 * SYMBOL_PS
    }

    /// Worst-case time of one quantum in picoseconds.
    pub const fn quantum_ps(&self) -> u64 {
        self.quantum_packets() as u64 * self.packet_ps()
    }

    /// Packets that `bytes` take.
    pub const fn packets(&self, bytes: u32) -> u32 {
        bytes.div_ceil(self.packet_bytes)
    }

    /// Visits of the round robin that `bytes` take, a burst each: `k` of Equation 4.
    pub const fn passes(&self, bytes: u32) -> u32 {
        bytes.div_ceil(self.burst_packets() * self.packet_bytes)
    }
}

/// How long the interval of a bus lasts, in picoseconds: a frame up to full speed, else a microframe.
pub const fn interval_ps(speed: BusSpeed) -> u64 {
    speed.interval().duration_us as u64 * PS_PER_US
}

/// The part of an interval that certainly carries packets of either direction, in picoseconds: all but what the bus
/// needs for itself.
pub const fn carrying_ps(speed: BusSpeed) -> u64 {
    let own_ps = match speed {
        // Start of frame: 35 bits (USB 2.0 8.4.3) and at most 7.5 of delay after it (7.1.18.1).
        BusSpeed::Low | BusSpeed::Full => 43 * 83_540,
        // 96 bits, of which 32 are SYNC and 40 EOP, and 88 of delay (7.1.18.2).
        BusSpeed::High => 184 * 2_084,
        // Skip sets and the timestamp packet, and what the other direction's packets need here if it is full: an ACK
        // packet and the link's answer each.
        BusSpeed::Super => {
            let interval = speed.interval();
            let own_bytes = interval.raw_bytes - interval.usable_bytes;
            let packets = interval.usable_bytes / (1024 + DATA_PACKET_BYTES + LINK_ANSWER_BYTES);
            (own_bytes + packets * (HEADER_PACKET_BYTES + LINK_ANSWER_BYTES)) as u64 * SYMBOL_PS
        }
    };
    interval_ps(speed) - own_ps
}

/// The part of each interval that periodic transfers may not use, in picoseconds: 10 % of a frame, 20 % of a high-speed
/// microframe (USB 2.0 5.5.4), 10 % of a SuperSpeed bus interval (USB 3.2 8.12.4).
pub const fn asynchronous_share_ps(speed: BusSpeed) -> u64 {
    match speed {
        BusSpeed::Low | BusSpeed::Full | BusSpeed::Super => interval_ps(speed) / 10,
        BusSpeed::High => interval_ps(speed) / 5,
    }
}

const PS_PER_US: u64 = 1_000_000;

/// A byte of a SuperSpeed wire: ten bits of 200 ps (USB 3.2 6.3.1).
const SYMBOL_PS: u64 = 2_000;

/// The host controller's time around a packet, `h`, as Linux and the paper assume it.
const HOST_DELAY_PS: u64 = 5_000;

/// A hub's time for a low-speed transaction (`Hub_LS_Setup` of USB 2.0 5.11.3), as Linux assumes it.
const HUB_LOW_SPEED_SETUP_PS: u64 = 333_000;

struct PacketOverhead {
    /// `h + p`: the time of a packet apart from its bits.
    fixed_ps: u64,
    /// `alpha`: the time of each bit.
    bit_ps: u64,
}

const fn overhead(speed: BusSpeed, kind: TransferKind, direction: BusDirection) -> PacketOverhead {
    let is_isochronous = matches!(kind, TransferKind::Isochronous);
    let is_in = matches!(direction, BusDirection::In);
    let (protocol_ps, bit_ps) = match speed {
        // Section 3.1 of the paper: 32 bytes out and 16 in for isochronous transfers, else 48 and 36; it counts both
        // ways.
        BusSpeed::Super => ((if is_isochronous { 32 + 16 } else { 48 + 36 }) * 8 * 200, 200),
        // USB 2.0 5.11.3, whose constants these are from here on.
        BusSpeed::High => ((if is_isochronous { 38 } else { 55 }) * 8 * 2083, 2083),
        BusSpeed::Full => (
            match (is_isochronous, is_in) {
                (true, true) => 7_268_000,
                (true, false) => 6_265_000,
                (false, _) => 9_107_000,
            },
            83_540,
        ),
        BusSpeed::Low => (
            2 * HUB_LOW_SPEED_SETUP_PS + if is_in { 64_060_000 } else { 64_107_000 },
            if is_in { 676_670 } else { 667_000 },
        ),
    };
    PacketOverhead { fixed_ps: HOST_DELAY_PS + protocol_ps, bit_ps }
}

/// `floor(O_bits + 8 gamma b)` with `O_bits` = 19/6, and gamma 7/6 where bits are stuffed, 1 at SuperSpeed.
const fn payload_bits(speed: BusSpeed, bytes: u32) -> u64 {
    let sixths_per_byte = match speed {
        BusSpeed::Super => 48,
        BusSpeed::Low | BusSpeed::Full | BusSpeed::High => 56,
    };
    (19 + sixths_per_byte * bytes as u64) / 6
}

/// The longest packet there is; 0 where the transfer type does not exist.
const fn packet_bytes_max(speed: BusSpeed, kind: TransferKind) -> u32 {
    match (speed, kind) {
        (BusSpeed::Low, TransferKind::Control | TransferKind::Interrupt) => 8,
        (BusSpeed::Low, TransferKind::Isochronous | TransferKind::Bulk) => 0,
        (BusSpeed::Full, TransferKind::Isochronous) => 1023,
        (BusSpeed::Full, _) => 64,
        (BusSpeed::High, TransferKind::Control) => 64,
        (BusSpeed::High, TransferKind::Bulk) | (BusSpeed::Super, TransferKind::Control) => 512,
        (BusSpeed::High | BusSpeed::Super, _) => 1024,
    }
}

impl fmt::Display for PacketShapeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoSuchKind { speed, kind } => write!(f, "{speed:?} speed has no {kind:?} endpoints"),
            Self::PacketBytes { wanted, max } => write!(f, "a packet of {wanted} bytes: it has 1 to {max} here"),
            Self::Burst { wanted, max } => write!(f, "a burst of {wanted} + 1 packets: it has at most {max} + 1 here"),
            Self::Mult { wanted, max } => {
                write!(f, "{wanted} + 1 bursts an interval: there are at most {max} + 1 here")
            }
        }
    }
}

impl std::error::Error for PacketShapeError {}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet_ps(speed: BusSpeed, kind: TransferKind, direction: BusDirection, bytes: u32) -> u64 {
        PacketShape::new(speed, kind, direction, bytes, 0, 0).unwrap().packet_ps()
    }

    #[test]
    fn a_superspeed_packet_takes_what_the_paper_says() {
        assert_eq!(packet_ps(BusSpeed::Super, TransferKind::Bulk, BusDirection::Out, 1024), 1_778_400);
        assert_eq!(packet_ps(BusSpeed::Super, TransferKind::Isochronous, BusDirection::In, 1024), 1_720_800);
    }

    #[test]
    fn superspeed_wire_carries_no_more_than_500_megabytes_a_second() {
        let shape = |kind, burst| PacketShape::new(BusSpeed::Super, kind, BusDirection::In, 1024, burst, 0).unwrap();
        let (bulk, camera) = (shape(TransferKind::Bulk, 0), shape(TransferKind::Isochronous, 10));
        assert_eq!((bulk.wire_ps(), camera.wire_ps()), (2_144_000, 2_116_000));
        // Equation 3 has room for 70 packets where the wire carries 57: 574 MB/s of at most 500.
        assert_eq!((interval_ps(BusSpeed::Super) / bulk.packet_ps(), 125_000_000 / bulk.wire_ps()), (70, 58));
        assert_eq!(carrying_ps(BusSpeed::Super), 125_000_000 - (374 + 57 * 36) * 2_000);
        let high = PacketShape::new(BusSpeed::High, TransferKind::Bulk, BusDirection::In, 512, 0, 0).unwrap();
        assert_eq!(high.wire_ps(), high.packet_ps());
    }

    #[test]
    fn slower_packets_take_what_the_specification_says() {
        // 55 x 8 x 2.083 + 2.083 x floor(3.167 + 7/6 x 8 x 512) + 5.
        let high = packet_ps(BusSpeed::High, TransferKind::Bulk, BusDirection::In, 512);
        assert_eq!(high, 916_520 + 2083 * 4781 + 5000);
        let full = packet_ps(BusSpeed::Full, TransferKind::Isochronous, BusDirection::Out, 192);
        assert_eq!(full, 6_265_000 + 83_540 * 1795 + 5000);
        let low = packet_ps(BusSpeed::Low, TransferKind::Interrupt, BusDirection::In, 8);
        assert_eq!(low, 64_060_000 + 666_000 + 676_670 * 77 + 5000);
    }

    #[test]
    fn a_longer_packet_never_takes_less_and_a_whole_one_fits_its_interval() {
        for speed in BusSpeed::ALL {
            for kind in TransferKind::ALL {
                for direction in [BusDirection::In, BusDirection::Out] {
                    let max = packet_bytes_max(speed, kind);
                    let mut times = (1..=max).map(|bytes| packet_ps(speed, kind, direction, bytes));
                    assert!(times.clone().is_sorted());
                    assert!(times.all(|ps| ps < interval_ps(speed)), "{speed:?} {kind:?}");
                }
            }
        }
    }

    #[test]
    fn shapes_that_do_not_exist_are_refused() {
        let shape = |speed, kind, bytes, n, m| PacketShape::new(speed, kind, BusDirection::In, bytes, n, m);
        assert_eq!(
            shape(BusSpeed::Low, TransferKind::Bulk, 8, 0, 0),
            Err(PacketShapeError::NoSuchKind { speed: BusSpeed::Low, kind: TransferKind::Bulk })
        );
        assert_eq!(
            shape(BusSpeed::Full, TransferKind::Bulk, 65, 0, 0),
            Err(PacketShapeError::PacketBytes { wanted: 65, max: 64 })
        );
        assert!(shape(BusSpeed::Full, TransferKind::Bulk, 0, 0, 0).is_err());
        assert_eq!(
            shape(BusSpeed::Super, TransferKind::Bulk, 1024, 16, 0),
            Err(PacketShapeError::Burst { wanted: 16, max: 15 })
        );
        assert_eq!(
            shape(BusSpeed::Super, TransferKind::Isochronous, 1024, 15, 3),
            Err(PacketShapeError::Mult { wanted: 3, max: 2 })
        );
        assert_eq!(
            shape(BusSpeed::High, TransferKind::Bulk, 512, 0, 1),
            Err(PacketShapeError::Mult { wanted: 1, max: 0 })
        );
    }

    #[test]
    fn quanta_and_passes() {
        let camera =
            PacketShape::new(BusSpeed::Super, TransferKind::Isochronous, BusDirection::In, 1024, 10, 2).unwrap();
        assert_eq!((camera.quantum_packets(), camera.quantum_bytes()), (33, 33_792));
        assert_eq!(camera.quantum_ps(), 56_786_400);
        let bulk = PacketShape::new(BusSpeed::Super, TransferKind::Bulk, BusDirection::In, 1024, 3, 0).unwrap();
        assert_eq!([1, 4096, 4097, 88_064].map(|bytes| bulk.passes(bytes)), [1, 1, 2, 22]);
    }
}
