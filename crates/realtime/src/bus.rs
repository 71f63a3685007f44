//! The bus: its speeds, its transfer types, and its intervals.

/// A signalling rate of USB.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum BusSpeed {
    /// 1.5 Mb/s (USB 2.0 7.1.11).
    Low,
    /// 12 Mb/s (USB 2.0 7.1.11).
    Full,
    /// 480 Mb/s (USB 2.0 7.1.11).
    High,
    /// 5 Gb/s, which USB 3.1 and later call Gen 1x1 (USB 3.2 6.5.1).
    Super,
}

/// A transfer type (USB 2.0 5.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum TransferKind {
    /// Setup, data and status: bidirectional messages.
    Control,
    /// Guaranteed rate, no handshake, no retry.
    Isochronous,
    /// Guaranteed latency, with retry.
    Interrupt,
    /// The bus time that is left over, with retry.
    Bulk,
}

/// The name of the interval that a host controller fills with transfers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum IntervalKind {
    /// One millisecond of a low or full-speed bus.
    Frame,
    /// An eighth of a millisecond of a high-speed bus.
    Microframe,
    /// An eighth of a millisecond of a SuperSpeed link.
    BusInterval,
}

/// The interval that a host controller fills, measured in the bytes it could carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct IntervalCapacity {
    /// Its name at this speed.
    pub kind: IntervalKind,
    /// How long it lasts.
    pub duration_us: u32,
    /// Byte-times in it, rounded down as in the specification: a low-speed frame has 187.5 and counts 187.
    pub raw_bytes: u32,
    /// Byte-times of it that transfers may use. Up to high speed that is all of it (the tables of the specification
    /// ignore the start-of-frame packet); at SuperSpeed the link's own overhead is subtracted.
    pub usable_bytes: u32,
}

impl BusSpeed {
    /// Every speed, slowest first.
    pub const ALL: [BusSpeed; 4] = [BusSpeed::Low, BusSpeed::Full, BusSpeed::High, BusSpeed::Super];

    /// Bits on the wire each second.
    pub const fn signalling_bits_per_s(self) -> u64 {
        match self {
            BusSpeed::Low => 1_500_000,
            BusSpeed::Full => 12_000_000,
            BusSpeed::High => 480_000_000,
            BusSpeed::Super => 5_000_000_000,
        }
    }

    /// Bits on the wire for one byte. Up to high speed a byte is eight bits (NRZI; stuffed bits depend on the data and
    /// no table counts them); at SuperSpeed 8b/10b makes ten of them (USB 3.2 6.3.1).
    pub const fn bits_per_byte(self) -> u64 {
        match self {
            BusSpeed::Low | BusSpeed::Full | BusSpeed::High => 8,
            BusSpeed::Super => 10,
        }
    }

    /// Bytes that the bare bus would carry each second without any protocol: the `max` line below each table.
    pub const fn raw_bytes_per_s(self) -> u64 {
        self.signalling_bits_per_s() / self.bits_per_byte()
    }

    /// The interval of this bus.
    pub const fn interval(self) -> IntervalCapacity {
        let (kind, duration_us) = match self {
            // USB 2.0 4.8.2 and 8.4.3: a frame each millisecond, eight microframes in it.
            BusSpeed::Low | BusSpeed::Full => (IntervalKind::Frame, 1000),
            BusSpeed::High => (IntervalKind::Microframe, 125),
            // USB 3.2 8.7: bus intervals are as long as microframes, and lie within 125 us of them.
            BusSpeed::Super => (IntervalKind::BusInterval, 125),
        };
        let raw_bytes = (self.raw_bytes_per_s() * duration_us as u64 / MICROSECONDS_PER_S) as u32;
        let housekeeping_bytes = match self {
            BusSpeed::Low | BusSpeed::Full | BusSpeed::High => 0,
            BusSpeed::Super => skip_bytes(raw_bytes) + TIMESTAMP_PACKET_BYTES,
        };
        IntervalCapacity { kind, duration_us, raw_bytes, usable_bytes: raw_bytes - housekeeping_bytes }
    }
}

impl TransferKind {
    /// Every kind, in the order of the specification's chapter 5.
    pub const ALL: [TransferKind; 4] =
        [TransferKind::Control, TransferKind::Isochronous, TransferKind::Interrupt, TransferKind::Bulk];
}

impl IntervalCapacity {
    /// How many such intervals a second has.
    pub const fn per_s(self) -> u64 {
        MICROSECONDS_PER_S / self.duration_us as u64
    }
}

const MICROSECONDS_PER_S: u64 = 1_000_000;

/// A SuperSpeed transmitter sends a SKP ordered set of two symbols every 354 symbols on average, so that the receiver
/// can make up for the difference between two clocks (USB 3.2 6.4.3, Gen 1).
const SKIP_SET_BYTES: u32 = 2;
const SKIP_SET_EVERY_BYTES: u32 = 354;

/// The host sends one isochronous timestamp packet each bus interval (USB 3.2 8.7): a header packet, four symbols of
/// framing and sixteen of header (USB 3.2 7.2.1.1).
const TIMESTAMP_PACKET_BYTES: u32 = 4 + 16;

const fn skip_bytes(raw_bytes: u32) -> u32 {
    raw_bytes.div_ceil(SKIP_SET_EVERY_BYTES) * SKIP_SET_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interval_holds_what_the_specification_says() {
        assert_eq!(BusSpeed::Low.interval().raw_bytes, 187, "187.5, rounded down");
        assert_eq!(BusSpeed::Full.interval().raw_bytes, 1500);
        assert_eq!(BusSpeed::High.interval().raw_bytes, 7500);
        assert_eq!(BusSpeed::Super.interval().raw_bytes, 62_500);
        for speed in [BusSpeed::Low, BusSpeed::Full, BusSpeed::High] {
            assert_eq!(speed.interval().usable_bytes, speed.interval().raw_bytes);
        }
    }

    #[test]
    fn the_bare_bus_is_the_tables_last_line() {
        let raw = BusSpeed::ALL.map(BusSpeed::raw_bytes_per_s);
        assert_eq!(raw, [187_500, 1_500_000, 60_000_000, 500_000_000]);
    }

    #[test]
    fn frames_and_microframes_a_second() {
        assert_eq!(BusSpeed::ALL.map(|speed| speed.interval().per_s()), [1000, 1000, 8000, 8000]);
    }

    #[test]
    fn a_superspeed_link_spends_a_little_on_itself() {
        // 62500 / 354 is 176.6: 177 ordered sets of two symbols, and one timestamp packet of twenty.
        assert_eq!(BusSpeed::Super.interval().usable_bytes, 62_500 - 2 * 177 - 20);
    }
}
