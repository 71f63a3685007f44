//! Basic USB types: speed, endpoint address, transfer type, setup packet.

use core::fmt;

/// Bus speed of a device (USB 2.0 §4.2.1, USB 3.2 §3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum UsbSpeed {
    /// Low speed, 1.5 Mb/s.
    Low,
    /// Full speed, 12 Mb/s.
    Full,
    /// High speed, 480 Mb/s.
    High,
    /// SuperSpeed, 5 Gb/s.
    Super,
    /// 10 Gb/s and more.
    SuperPlus,
}

impl UsbSpeed {
    /// The name that `farbus list` shows.
    pub const fn name(self) -> &'static str {
        match self {
            UsbSpeed::Low => "low",
            UsbSpeed::Full => "full",
            UsbSpeed::High => "high",
            UsbSpeed::Super => "super",
            UsbSpeed::SuperPlus => "super+",
        }
    }

    /// Whether service intervals are counted in 125 us microframes rather than 1 ms frames.
    pub const fn has_microframes(self) -> bool {
        matches!(self, UsbSpeed::High | UsbSpeed::Super | UsbSpeed::SuperPlus)
    }

    /// Largest bulk packet that the speed allows, which farbus's gadgets use (USB 2.0 §5.8.3, USB 3.2 §8.12.1).
    pub const fn bulk_packet_bytes_max(self) -> u16 {
        match self {
            UsbSpeed::Low => 8,
            UsbSpeed::Full => 64,
            UsbSpeed::High => 512,
            UsbSpeed::Super | UsbSpeed::SuperPlus => 1024,
        }
    }
}

impl fmt::Display for UsbSpeed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Which way data moves, seen from the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TransferDirection {
    /// Host to device.
    Out,
    /// Device to host.
    In,
}

/// Address of an endpoint as descriptors carry it: number 0 to 15, direction in bit 7 (USB 2.0 §9.6.6).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EpAddr(u8);

impl EpAddr {
    /// The default control pipe. Its data stage's direction is the setup packet's.
    pub const CONTROL: EpAddr = EpAddr(0);

    /// The endpoint `number` (0 to 15) in `direction`; `None` if the number is out of range.
    pub const fn new(number: u8, direction: TransferDirection) -> Option<Self> {
        if number > 15 {
            return None;
        }
        Some(match (number, direction) {
            (0, _) => Self::CONTROL,
            (n, TransferDirection::Out) => Self(n),
            (n, TransferDirection::In) => Self(n | 0x80),
        })
    }

    /// From a descriptor's `bEndpointAddress`; reserved bits 4 to 6 are ignored, as hosts do.
    pub const fn from_byte(byte: u8) -> Self {
        if byte & 0x0f == 0 { Self::CONTROL } else { Self(byte & 0x8f) }
    }

    /// As a descriptor's `bEndpointAddress`.
    pub const fn as_byte(self) -> u8 {
        self.0
    }

    /// The number, 0 to 15.
    pub const fn number(self) -> u8 {
        self.0 & 0x0f
    }

    /// The direction; meaningless for the control pipe, whose direction is in the setup packet.
    pub const fn direction(self) -> TransferDirection {
        if self.0 & 0x80 == 0 { TransferDirection::Out } else { TransferDirection::In }
    }

    /// Whether this is the default control pipe.
    pub const fn is_control(self) -> bool {
        self.number() == 0
    }

    /// A dense index, 0 to 31, for tables of endpoints.
    pub const fn index(self) -> usize {
        (self.number() as usize) << 1 | (self.0 >> 7) as usize
    }
}

impl fmt::Debug for EpAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ep{:#04x}", self.0)
    }
}

impl fmt::Display for EpAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#04x}", self.0)
    }
}

/// The four transfer types (USB 2.0 §5.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TransferType {
    /// Requests with a setup packet.
    Control,
    /// Streaming at a fixed rate, no retries.
    Isochronous,
    /// Large and reliable, without guaranteed timing.
    Bulk,
    /// Small, reliable, polled at an interval.
    Interrupt,
}

impl TransferType {
    /// From the low two bits of a descriptor's `bmAttributes` (USB 2.0 table 9-13).
    pub const fn from_attributes(attributes: u8) -> Self {
        match attributes & 3 {
            0 => TransferType::Control,
            1 => TransferType::Isochronous,
            2 => TransferType::Bulk,
            _ => TransferType::Interrupt,
        }
    }

    /// As the low two bits of `bmAttributes`.
    pub const fn as_attributes(self) -> u8 {
        match self {
            TransferType::Control => 0,
            TransferType::Isochronous => 1,
            TransferType::Bulk => 2,
            TransferType::Interrupt => 3,
        }
    }
}

/// Who defines a control request (USB 2.0 table 9-2, bits 6..5 of `bmRequestType`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RequestKind {
    /// Chapter 9 of the USB specification.
    Standard,
    /// A device class.
    Class,
    /// The device's maker.
    Vendor,
    /// Reserved value 3.
    Reserved,
}

/// What a control request addresses (USB 2.0 table 9-2, bits 4..0).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RequestRecipient {
    /// The whole device.
    Device,
    /// The interface in `wIndex`.
    Interface,
    /// The endpoint in `wIndex`.
    Endpoint,
    /// Another recipient (3), or a reserved value (4 to 31).
    Other,
}

/// A setup packet: eight bytes, little-endian on the bus and on every wire (USB 2.0 §9.3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct SetupPacket {
    /// Direction, kind and recipient.
    pub request_type: u8,
    /// `bRequest`: the request's code; its meaning depends on the kind in `request_type`.
    pub request: u8,
    /// `wValue`: a parameter of the request, for example a descriptor's type and index.
    pub value: u16,
    /// `wIndex`: a parameter of the request, often the interface or endpoint that it addresses.
    pub index: u16,
    /// `wLength`: bytes of the data stage.
    pub length: u16,
}

/// Standard request codes (USB 2.0 table 9-4, USB 3.2 table 9-5).
pub mod request {
    #![allow(missing_docs, reason = "the names are the specification's own")]
    pub const GET_STATUS: u8 = 0;
    pub const CLEAR_FEATURE: u8 = 1;
    pub const SET_FEATURE: u8 = 3;
    pub const SET_ADDRESS: u8 = 5;
    pub const GET_DESCRIPTOR: u8 = 6;
    pub const SET_DESCRIPTOR: u8 = 7;
    pub const GET_CONFIGURATION: u8 = 8;
    pub const SET_CONFIGURATION: u8 = 9;
    pub const GET_INTERFACE: u8 = 10;
    pub const SET_INTERFACE: u8 = 11;
    pub const SYNCH_FRAME: u8 = 12;
    pub const SET_SEL: u8 = 48;
    pub const SET_ISOCH_DELAY: u8 = 49;
    /// Feature selector of CLEAR_FEATURE and SET_FEATURE on an endpoint.
    pub const ENDPOINT_HALT: u16 = 0;
    /// Feature selector on a device.
    pub const DEVICE_REMOTE_WAKEUP: u16 = 1;
}

impl SetupPacket {
    /// From the eight bytes on the bus.
    pub const fn from_bytes(b: [u8; 8]) -> Self {
        Self {
            request_type: b[0],
            request: b[1],
            value: u16::from_le_bytes([b[2], b[3]]),
            index: u16::from_le_bytes([b[4], b[5]]),
            length: u16::from_le_bytes([b[6], b[7]]),
        }
    }

    /// The eight bytes on the bus.
    pub const fn to_bytes(self) -> [u8; 8] {
        let (v, i, l) = (self.value.to_le_bytes(), self.index.to_le_bytes(), self.length.to_le_bytes());
        [self.request_type, self.request, v[0], v[1], i[0], i[1], l[0], l[1]]
    }

    /// Direction of the data stage.
    pub const fn direction(self) -> TransferDirection {
        if self.request_type & 0x80 == 0 { TransferDirection::Out } else { TransferDirection::In }
    }

    /// Who defines the request.
    pub const fn kind(self) -> RequestKind {
        match self.request_type >> 5 & 3 {
            0 => RequestKind::Standard,
            1 => RequestKind::Class,
            2 => RequestKind::Vendor,
            _ => RequestKind::Reserved,
        }
    }

    /// What it addresses.
    pub const fn recipient(self) -> RequestRecipient {
        match self.request_type & 0x1f {
            0 => RequestRecipient::Device,
            1 => RequestRecipient::Interface,
            2 => RequestRecipient::Endpoint,
            _ => RequestRecipient::Other,
        }
    }

    /// Whether it is the standard request `code` to `recipient`.
    pub fn is_standard(self, code: u8, recipient: RequestRecipient) -> bool {
        self.kind() == RequestKind::Standard && self.request == code && self.recipient() == recipient
    }

    /// GET_DESCRIPTOR for descriptor `kind` number `index` in language `lang`, at most `length` bytes.
    pub const fn get_descriptor(kind: u8, index: u8, lang: u16, length: u16) -> Self {
        Self {
            request_type: 0x80,
            request: request::GET_DESCRIPTOR,
            value: (kind as u16) << 8 | index as u16,
            index: lang,
            length,
        }
    }

    /// Makes the request SET_CONFIGURATION (USB 2.0 §9.4.7); a `value` of 0 selects no configuration.
    pub const fn set_configuration(value: u8) -> Self {
        Self { request_type: 0, request: request::SET_CONFIGURATION, value: value as u16, index: 0, length: 0 }
    }

    /// Makes the request SET_INTERFACE (USB 2.0 §9.4.10), which selects the setting `alternate` of an interface.
    pub const fn set_interface(interface: u8, alternate: u8) -> Self {
        Self {
            request_type: 1,
            request: request::SET_INTERFACE,
            value: alternate as u16,
            index: interface as u16,
            length: 0,
        }
    }

    /// CLEAR_FEATURE(ENDPOINT_HALT) on `endpoint`.
    pub const fn clear_halt(endpoint: EpAddr) -> Self {
        Self {
            request_type: 2,
            request: request::CLEAR_FEATURE,
            value: request::ENDPOINT_HALT,
            index: endpoint.as_byte() as u16,
            length: 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_setup_packet_survives_the_bus() {
        let setup = SetupPacket { request_type: 0xa1, request: 0xfe, value: 0x1234, index: 0x5678, length: 0x9abc };
        assert_eq!(setup.to_bytes(), [0xa1, 0xfe, 0x34, 0x12, 0x78, 0x56, 0xbc, 0x9a]);
        assert_eq!(SetupPacket::from_bytes(setup.to_bytes()), setup);
        assert_eq!(setup.kind(), RequestKind::Class);
        assert_eq!(setup.recipient(), RequestRecipient::Interface);
        assert_eq!(setup.direction(), TransferDirection::In);
    }

    #[test]
    fn endpoint_addresses_have_dense_indexes() {
        let mut seen = [false; 32];
        for number in 1..16 {
            for direction in [TransferDirection::Out, TransferDirection::In] {
                let ep = EpAddr::new(number, direction).unwrap();
                assert_eq!(EpAddr::from_byte(ep.as_byte()), ep);
                assert!(!core::mem::replace(&mut seen[ep.index()], true));
            }
        }
        assert_eq!(EpAddr::new(16, TransferDirection::In), None);
        assert_eq!(EpAddr::from_byte(0x80), EpAddr::CONTROL);
    }
}
