//! The structures that commands read and write, in the caller's memory.

use farbus_model::{EpAddr, SetupPacket, UsbSpeed};

use super::{PointerWidth, UsbfsError};
use crate::usbip::message::speed_code;

/// Most bytes of one transfer (`USBFS_XFER_MAX`).
const TRANSFER_BYTES_MAX: u32 = (u32::MAX >> 1) / 2 - 1_000_000;
/// Most isochronous packets of one transfer (`proc_do_submiturb`).
const PACKETS_MAX: u32 = 128;
/// Most bytes of one isochronous packet, the most that SuperSpeedPlus moves in an interval (`proc_do_submiturb`).
const PACKET_BYTES_MAX: u32 = 98_304;
/// Most bytes of a control transfer that waits: a page (`proc_control`).
const CONTROL_BYTES_MAX: u16 = 4096;
/// Bytes of a driver's name, the final zero included (`USBDEVFS_MAXDRIVERNAME + 1`).
const DRIVER_NAME_BYTES: usize = 256;
/// Most endpoints that one command names (`USB_MAXENDPOINTS`).
const ENDPOINTS_MAX: u32 = 30;

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"))
}

fn pointer_at(bytes: &[u8], at: usize, width: PointerWidth) -> u64 {
    match width {
        PointerWidth::Bits32 => u32_at(bytes, at).into(),
        PointerWidth::Bits64 => u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes")),
    }
}

/// USBDEVFS_CONTROL: a control transfer that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UsbfsControlTransfer {
    /// The setup packet; its `length` is also the size of the caller's data.
    pub setup: SetupPacket,
    /// How long it may take, ms; 0 for ever.
    pub timeout_ms: u32,
    /// Where its data are in the caller's memory.
    pub data: u64,
}

impl UsbfsControlTransfer {
    /// Bytes of the structure.
    pub const fn bytes(width: PointerWidth) -> usize {
        match width {
            PointerWidth::Bits32 => 16,
            PointerWidth::Bits64 => 24,
        }
    }

    /// Reads the structure.
    ///
    /// # Errors
    /// [`UsbfsError::Invalid`]: more than a page.
    ///
    /// # Panics
    /// If there are not [`UsbfsControlTransfer::bytes`] bytes.
    pub fn decode(bytes: &[u8], width: PointerWidth) -> Result<Self, UsbfsError> {
        let setup = SetupPacket::from_bytes(bytes[..8].try_into().expect("8 bytes"));
        if setup.length > CONTROL_BYTES_MAX {
            return Err(UsbfsError::Invalid);
        }
        let data = pointer_at(bytes, Self::bytes(width) - width.pointer_bytes(), width);
        Ok(Self { setup, timeout_ms: u32_at(bytes, 8), data })
    }
}

/// USBDEVFS_BULK: a bulk or interrupt transfer that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UsbfsBulkTransfer {
    /// The endpoint's number and direction.
    pub endpoint: EpAddr,
    /// Bytes to send, or room for.
    pub length: u32,
    /// How long it may take, ms; 0 for ever.
    pub timeout_ms: u32,
    /// Where its data are in the caller's memory.
    pub data: u64,
}

impl UsbfsBulkTransfer {
    /// Bytes of the structure.
    pub const fn bytes(width: PointerWidth) -> usize {
        UsbfsControlTransfer::bytes(width)
    }

    /// Reads the structure.
    ///
    /// # Errors
    /// [`UsbfsError::Invalid`]: no endpoint's address, or too many bytes.
    ///
    /// # Panics
    /// If there are not [`UsbfsBulkTransfer::bytes`] bytes.
    pub fn decode(bytes: &[u8], width: PointerWidth) -> Result<Self, UsbfsError> {
        let (endpoint, length) = (endpoint_number(u32_at(bytes, 0))?, u32_at(bytes, 4));
        if length >= TRANSFER_BYTES_MAX {
            return Err(UsbfsError::Invalid);
        }
        let data = pointer_at(bytes, Self::bytes(width) - width.pointer_bytes(), width);
        Ok(Self { endpoint, length, timeout_ms: u32_at(bytes, 8), data })
    }
}

/// The endpoint that a command names (`findintfep`: no other bits may be set).
///
/// # Errors
/// [`UsbfsError::Invalid`].
pub fn endpoint_number(number: u32) -> Result<EpAddr, UsbfsError> {
    match u8::try_from(number) {
        Ok(byte) if byte & 0x70 == 0 => Ok(EpAddr::from_byte(byte)),
        _ => Err(UsbfsError::Invalid),
    }
}

/// USBDEVFS_SETINTERFACE: select an alternate setting of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SetInterface {
    /// The interface's number (`bInterfaceNumber`); not checked here.
    pub interface: u32,
    /// The alternate setting.
    pub alternate: u32,
}

impl SetInterface {
    /// Reads the structure.
    pub fn decode(bytes: [u8; 8]) -> Self {
        Self { interface: u32_at(&bytes, 0), alternate: u32_at(&bytes, 4) }
    }
}

/// What kind of transfer a URB is (`USBDEVFS_URB_TYPE_*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UrbKind {
    /// With so many packets, whose lengths follow the structure.
    Isochronous {
        /// From 1 to 128.
        packets: u32,
    },
    /// An interrupt transfer.
    Interrupt,
    /// A control transfer; its setup packet is the first eight bytes of its data.
    Control,
    /// A bulk transfer, on this stream; 0 without streams.
    Bulk {
        /// The stream's number, from 1; 0 without streams.
        stream: u32,
    },
}

/// An option of a URB (`USBDEVFS_URB_*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum UrbFlag {
    /// A short IN transfer is an error.
    ShortNotOk = 0x01,
    /// Isochronous: in the next free interval.
    IsoAsap = 0x02,
    /// Bulk: refused if an earlier transfer of the endpoint has failed.
    BulkContinuation = 0x04,
    /// Of controllers that nobody has today.
    NoFsbr = 0x20,
    /// Bulk OUT: end with an empty packet if the last one is full.
    ZeroPacket = 0x40,
    /// Without an interrupt at its end, if another transfer follows.
    NoInterrupt = 0x80,
}

const FLAGS: u32 = UrbFlag::ShortNotOk as u32
    | UrbFlag::BulkContinuation as u32
    | UrbFlag::NoFsbr as u32
    | UrbFlag::ZeroPacket as u32
    | UrbFlag::NoInterrupt as u32;

/// USBDEVFS_SUBMITURB: `struct usbdevfs_urb`, without the packets that follow it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UrbHead {
    /// What kind of transfer.
    pub kind: UrbKind,
    /// The endpoint's number and direction.
    pub endpoint: EpAddr,
    flags: u32,
    /// Where its data are in the caller's memory.
    pub buffer: u64,
    /// Bytes of them; isochronous: the sum of the packets counts instead.
    pub length: u32,
    /// Isochronous without [`UrbFlag::IsoAsap`]: the frame to begin in.
    pub start_frame: u32,
}

impl UrbHead {
    /// Bytes of the structure. Packets follow it at once.
    pub const fn bytes(width: PointerWidth) -> usize {
        match width {
            PointerWidth::Bits32 => 44,
            PointerWidth::Bits64 => 56,
        }
    }

    /// Whether an option was chosen.
    pub fn has(&self, flag: UrbFlag) -> bool {
        self.flags & flag as u32 != 0
    }

    /// Reads the structure.
    ///
    /// # Errors
    /// [`UsbfsError::Invalid`]: unknown options, kind or endpoint, too many bytes or packets, data without an address, or a
    /// signal is wanted (`signr`), which farbus does not send.
    ///
    /// # Panics
    /// If there are not [`UrbHead::bytes`] bytes.
    pub fn decode(bytes: &[u8], width: PointerWidth) -> Result<Self, UsbfsError> {
        let at = width.pointer_bytes();
        let buffer = pointer_at(bytes, if at == 8 { 16 } else { 12 }, width);
        let numbers = if at == 8 { 24 } else { 16 };
        let (flags, length, packets) = (u32_at(bytes, 8), u32_at(bytes, numbers), u32_at(bytes, numbers + 12));
        // A signal at the end of a transfer: programs of the last twenty years poll instead.
        let has_signal = u32_at(bytes, numbers + 20) != 0;
        let isochronous = if bytes[0] == 0 { UrbFlag::IsoAsap as u32 } else { 0 };
        let is_valid = flags & !(FLAGS | isochronous) == 0
            && length < TRANSFER_BYTES_MAX
            && (length == 0 || buffer != 0)
            && !has_signal;
        let kind = match bytes[0] {
            0 if (1..=PACKETS_MAX).contains(&packets) => UrbKind::Isochronous { packets },
            1 => UrbKind::Interrupt,
            2 => UrbKind::Control,
            3 => UrbKind::Bulk { stream: packets },
            _ => return Err(UsbfsError::Invalid),
        };
        if !is_valid {
            return Err(UsbfsError::Invalid);
        }
        let start_frame = u32_at(bytes, numbers + 8);
        Ok(Self { kind, endpoint: endpoint_number(bytes[1].into())?, flags, buffer, length, start_frame })
    }
}

/// The length of an isochronous packet (`struct usbdevfs_iso_packet_desc`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IsoLength;

impl IsoLength {
    /// Bytes of a packet's structure.
    pub const BYTES: usize = 12;

    /// Reads the lengths of all packets, and their sum.
    ///
    /// # Errors
    /// [`UsbfsError::Invalid`]: a packet of more than 96 KiB.
    pub fn decode_all(bytes: &[u8]) -> Result<(Vec<u32>, u32), UsbfsError> {
        let lengths: Vec<u32> = bytes.chunks_exact(Self::BYTES).map(|packet| u32_at(packet, 0)).collect();
        // 128 times 96 KiB fits 32 bits.
        match lengths.iter().all(|&length| length <= PACKET_BYTES_MAX) {
            true => Ok((lengths.clone(), lengths.iter().sum())),
            false => Err(UsbfsError::Invalid),
        }
    }
}

/// How a URB ended, as its submitter reads it (`processcompl`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UrbResult {
    /// How it failed, if it did.
    pub failure: Option<UsbfsError>,
    /// Bytes moved; of a control transfer without its setup packet.
    pub actual: u32,
    /// Isochronous packets that failed.
    pub error_count: u32,
    /// Isochronous: bytes moved of each packet, and how it failed.
    pub packets: Vec<(u32, Option<UsbfsError>)>,
}

impl UrbResult {
    /// What to write where, for a URB at this address: fields in between belong to the caller.
    pub fn writes(&self, address: u64, width: PointerWidth) -> Vec<(u64, Vec<u8>)> {
        let (actual_at, errors_at) = match width {
            PointerWidth::Bits32 => (20, 32),
            PointerWidth::Bits64 => (28, 40),
        };
        let mut writes = vec![
            (address.wrapping_add(4), status_of(self.failure).to_le_bytes().to_vec()),
            (address.wrapping_add(actual_at), self.actual.to_le_bytes().to_vec()),
            (address.wrapping_add(errors_at), self.error_count.to_le_bytes().to_vec()),
        ];
        let packets = address.wrapping_add(UrbHead::bytes(width) as u64);
        for (at, (actual, failure)) in self.packets.iter().enumerate() {
            // Behind the packet's length, which stays.
            let address = packets.wrapping_add((at * IsoLength::BYTES) as u64 + 4);
            writes.push((address, [actual.to_le_bytes(), status_of(*failure).to_le_bytes()].concat()));
        }
        writes
    }
}

/// 0, or a negative error number.
fn status_of(failure: Option<UsbfsError>) -> i32 {
    failure.map_or(0, |failure| -i32::from(failure.number()))
}

/// USBDEVFS_IOCTL: a question to the driver of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DriverIoctl {
    /// The number (`bInterfaceNumber`) of the interface whose driver is asked; not checked here.
    pub interface: u32,
    /// The driver's ioctl number, for example [`DriverIoctl::DISCONNECT`].
    pub code: u32,
}

impl DriverIoctl {
    /// The code that detaches the driver (USBDEVFS_DISCONNECT).
    pub const DISCONNECT: u32 = 0x5516;
    /// The code that lets a driver attach (USBDEVFS_CONNECT).
    pub const CONNECT: u32 = 0x5517;

    /// Bytes of the structure.
    pub const fn bytes(width: PointerWidth) -> usize {
        match width {
            PointerWidth::Bits32 => 12,
            PointerWidth::Bits64 => 16,
        }
    }

    /// Reads the structure.
    ///
    /// # Panics
    /// If there are not [`DriverIoctl::bytes`] bytes.
    pub fn decode(bytes: &[u8]) -> Self {
        Self { interface: u32_at(bytes, 0), code: u32_at(bytes, 4) }
    }
}

/// USBDEVFS_DISCONNECT_CLAIM: detach an interface's driver and claim the interface, in one step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DisconnectClaim {
    /// The interface's number (`bInterfaceNumber`); not checked here.
    pub interface: u32,
    /// Only if this driver has it.
    pub if_driver: Option<Vec<u8>>,
    /// Not if this driver has it.
    pub except_driver: Option<Vec<u8>>,
}

impl DisconnectClaim {
    /// Bytes of the structure.
    pub const BYTES: usize = 8 + DRIVER_NAME_BYTES;

    /// Reads the structure.
    ///
    /// # Panics
    /// If there are not [`DisconnectClaim::BYTES`] bytes.
    pub fn decode(bytes: &[u8]) -> Self {
        let (interface, flags) = (u32_at(bytes, 0), u32_at(bytes, 4));
        let name: Vec<u8> = bytes[8..Self::BYTES].iter().copied().take_while(|&byte| byte != 0).collect();
        let chosen = |bit: u32| (flags & bit != 0).then(|| name.clone());
        Self { interface, if_driver: chosen(1), except_driver: chosen(2) }
    }
}

/// USBDEVFS_ALLOC_STREAMS and USBDEVFS_FREE_STREAMS, without the endpoints that follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UsbfsStreams {
    /// How many streams each gets.
    pub streams: u32,
    /// How many endpoints follow, a byte each.
    pub endpoints: u32,
}

impl UsbfsStreams {
    /// Bytes of the structure. The endpoints follow it at once.
    pub const BYTES: usize = 8;

    /// Reads the structure.
    ///
    /// # Errors
    /// [`UsbfsError::Invalid`]: no endpoint, or more than a device has.
    pub fn decode(bytes: [u8; Self::BYTES]) -> Result<Self, UsbfsError> {
        let (streams, endpoints) = (u32_at(&bytes, 0), u32_at(&bytes, 4));
        if (1..=ENDPOINTS_MAX).contains(&endpoints) {
            Ok(Self { streams, endpoints })
        } else {
            Err(UsbfsError::Invalid)
        }
    }
}

/// USBDEVFS_CONNECTINFO: the device's number on its bus, and whether it runs at low speed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectInfo {
    /// The device's number on its bus.
    pub device: u32,
    /// Whether it runs at low speed.
    pub is_slow: bool,
}

impl ConnectInfo {
    /// The structure's bytes.
    pub fn to_bytes(self) -> Vec<u8> {
        [self.device.to_le_bytes(), u32::from(self.is_slow).to_le_bytes()].concat()
    }
}

/// USBDEVFS_CONNINFO_EX: where the device is plugged in, and its speed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectInfoEx {
    /// The number of the bus, as in `/dev/bus/usb/BUS/DEVICE`.
    pub bus: u32,
    /// The device's number on it.
    pub device: u32,
    /// The speed at which the device runs.
    pub speed: UsbSpeed,
    /// The ports between root hub and device.
    pub ports: Vec<u8>,
}

impl ConnectInfoEx {
    /// Most ports in a path (`USB_MAXCHILDREN`'s depth, USB 2.0 §4.1.1: five hubs; the structure has room for seven).
    const PORTS_MAX: usize = 7;

    /// As much of the structure as the caller has room for.
    pub fn to_bytes(&self, room: u16) -> Vec<u8> {
        let numbers = [24, self.bus, self.device, speed_code(self.speed)];
        let mut bytes: Vec<u8> = numbers.into_iter().flat_map(u32::to_le_bytes).collect();
        let count = self.ports.len().min(Self::PORTS_MAX);
        bytes.push(count as u8);
        bytes.extend(self.ports.iter().take(count));
        bytes.resize(24.min(usize::from(room)), 0);
        bytes
    }
}

/// A driver's name as USBDEVFS_GETDRIVER gives it, behind the interface's number.
pub fn driver_name(name: &str) -> Vec<u8> {
    let mut bytes: Vec<u8> = name.bytes().take(DRIVER_NAME_BYTES - 1).collect();
    bytes.resize(DRIVER_NAME_BYTES, 0);
    bytes
}

#[cfg(test)]
mod tests {
    use farbus_model::UrbStatus;

    use super::*;

    /// A bulk IN URB at endpoint 0x81: `struct usbdevfs_urb` written out by hand, for both widths. Its buffer is at
    /// 0x11223344, 0x200 bytes long, on stream 5, with USBDEVFS_URB_SHORT_NOT_OK.
    const WIDE: [u8; 56] = [
        3, 0x81, 0, 0, 0xff, 0xff, 0xff, 0xff, 1, 0, 0, 0, 0, 0, 0, 0, 0x44, 0x33, 0x22, 0x11, 0, 0, 0, 0, 0, 2, 0, 0,
        0, 0, 0, 0, 9, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xaa, 0xaa, 0xaa, 0xaa, 0xaa, 0xaa, 0xaa, 0xaa,
    ];
    const NARROW: [u8; 44] = [
        3, 0x81, 0, 0, 0xff, 0xff, 0xff, 0xff, 1, 0, 0, 0, 0x44, 0x33, 0x22, 0x11, 0, 2, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0,
        5, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xaa, 0xaa, 0xaa, 0xaa,
    ];

    #[test]
    fn urbs_of_both_widths_say_the_same() {
        let urbs = [UrbHead::decode(&WIDE, PointerWidth::Bits64), UrbHead::decode(&NARROW, PointerWidth::Bits32)]
            .map(Result::unwrap);
        assert_eq!(urbs[0], urbs[1]);
        assert_eq!((urbs[0].buffer, urbs[0].length, urbs[0].start_frame), (0x1122_3344, 0x200, 9));
        assert_eq!(urbs[0].kind, UrbKind::Bulk { stream: 5 });
        assert!(urbs[0].has(UrbFlag::ShortNotOk) && !urbs[0].has(UrbFlag::ZeroPacket));
    }

    #[test]
    fn a_urb_that_wants_a_signal_is_refused() {
        let mut bytes = WIDE;
        bytes[44] = 10;
        assert_eq!(UrbHead::decode(&bytes, PointerWidth::Bits64), Err(UsbfsError::Invalid));
    }

    #[test]
    fn a_result_is_written_between_the_fields_that_belong_to_the_program() {
        let packets = vec![(7, None), (0, Some(UsbfsError::Ended(UrbStatus::IsoMissed)))];
        let result = UrbResult { failure: Some(UsbfsError::Discarded), actual: 7, error_count: 1, packets };
        for (width, [actual, errors, packets]) in
            [(PointerWidth::Bits64, [28, 40, 56]), (PointerWidth::Bits32, [20, 32, 44])]
        {
            let expected = [
                (0x1004, vec![0xfe, 0xff, 0xff, 0xff]),
                (0x1000 + actual, vec![7, 0, 0, 0]),
                (0x1000 + errors, vec![1, 0, 0, 0]),
                (0x1000 + packets + 4, vec![7, 0, 0, 0, 0, 0, 0, 0]),
                (0x1000 + packets + 16, vec![0, 0, 0, 0, 0xee, 0xff, 0xff, 0xff]),
            ];
            assert_eq!(result.writes(0x1000, width), expected);
        }
    }

    #[test]
    fn control_and_bulk_structures_have_their_pointer_last() {
        let setup = [0x80, 6, 0, 1, 0, 0, 18, 0];
        let wide = [&setup[..], &500_u32.to_le_bytes(), &[0xee; 4], &0x7fff_0000_1000_u64.to_le_bytes()].concat();
        let control = UsbfsControlTransfer::decode(&wide, PointerWidth::Bits64).unwrap();
        assert_eq!((control.setup.to_bytes(), control.timeout_ms, control.data), (setup, 500, 0x7fff_0000_1000));
        let narrow = [0x02_u32, 512, 1000, 0x8000_0000].map(u32::to_le_bytes).concat();
        let bulk = UsbfsBulkTransfer::decode(&narrow, PointerWidth::Bits32).unwrap();
        assert_eq!((bulk.endpoint.as_byte(), bulk.length, bulk.timeout_ms, bulk.data), (2, 512, 1000, 0x8000_0000));
        let long = [&[0xc0, 0, 0, 0, 0, 0, 1, 0x10][..], &[0; 16]].concat();
        assert_eq!(UsbfsControlTransfer::decode(&long, PointerWidth::Bits64), Err(UsbfsError::Invalid), "4097 bytes");
    }
}
