//! Encoders for messages of both ends.

/// The device id that tests speak of: bus 1, device 2.
pub const DEVID: u32 = 0x0001_0002;
/// The bus id that goes with it.
pub const BUS_ID: &str = "1-1";

pub const ECONNRESET: i32 = -104;
pub const EPIPE: i32 = -32;
pub const ENOMEM: i32 = -12;
pub const ESHUTDOWN: i32 = -108;
pub const EINVAL: i32 = -22;
pub const EXDEV: i32 = -18;

/// An operation's header: version, code, status.
pub fn op(version: u16, code: u16, status: u32) -> Vec<u8> {
    [&version.to_be_bytes()[..], &code.to_be_bytes(), &status.to_be_bytes()].concat()
}

/// The request for the list of devices (OP_REQ_DEVLIST).
pub fn list_request() -> Vec<u8> {
    op(0x0111, 0x8005, 0)
}

/// The request to import the device with this bus id (OP_REQ_IMPORT).
pub fn import_request(bus_id: &str) -> Vec<u8> {
    [op(0x0111, 0x8003, 0), padded(bus_id, 32)].concat()
}

/// A text in a field of `bytes`, NUL padded.
pub fn padded(text: &str, bytes: usize) -> Vec<u8> {
    let mut field = text.as_bytes().to_vec();
    assert!(field.len() < bytes, "a text ends with NUL");
    field.resize(bytes, 0);
    field
}

/// The 312 bytes of a device in a reply: a high-speed vendor device with `interfaces` interfaces.
pub fn device_record(bus_id: &str, interfaces: u8) -> Vec<u8> {
    let mut bytes = padded("/sys/devices/test", 256);
    bytes.extend(padded(bus_id, 32));
    bytes.extend([DEVID >> 16, DEVID & 0xffff, 3].map(u32::to_be_bytes).concat());
    bytes.extend([0x0525u16, 0xa4a0, 0x0100].map(u16::to_be_bytes).concat());
    // Class triple, configuration value, configurations, interfaces.
    bytes.extend([0, 0, 0, 1, 1, interfaces]);
    assert_eq!(bytes.len(), 312);
    bytes
}

/// A successful OP_REP_IMPORT.
pub fn import_reply(bus_id: &str) -> Vec<u8> {
    [op(0x0111, 0x0003, 0), device_record(bus_id, 1)].concat()
}

/// An isochronous packet descriptor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Packet {
    pub offset: u32,
    pub length: u32,
    pub actual: u32,
    pub status: i32,
}

impl Packet {
    pub fn new(offset: u32, length: u32) -> Self {
        Self { offset, length, ..Self::default() }
    }

    pub fn bytes(self) -> Vec<u8> {
        [self.offset, self.length, self.actual, self.status.cast_unsigned()].map(u32::to_be_bytes).concat()
    }

    pub fn read(b: &[u8]) -> Self {
        Self { offset: word(b, 0), length: word(b, 4), actual: word(b, 8), status: word(b, 12).cast_signed() }
    }
}

/// A request for one transfer (USBIP_CMD_SUBMIT), with its data and isochronous packets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Submit {
    pub seqnum: u32,
    pub devid: u32,
    /// 0 OUT, 1 IN.
    pub direction: u32,
    pub ep: u32,
    pub flags: u32,
    pub length: u32,
    pub start_frame: u32,
    pub number_of_packets: u32,
    pub interval: u32,
    pub setup: [u8; 8],
    pub data: Vec<u8>,
    pub packets: Vec<Packet>,
}

impl Submit {
    /// A bulk or interrupt IN transfer.
    pub fn data_in(seqnum: u32, ep: u32, length: u32) -> Self {
        Self { length, flags: 0x200, ..Self::plain(seqnum, 1, ep) }
    }

    /// A bulk or interrupt OUT transfer.
    pub fn data_out(seqnum: u32, ep: u32, data: &[u8]) -> Self {
        Self { length: data.len() as u32, data: data.to_vec(), ..Self::plain(seqnum, 0, ep) }
    }

    /// A control transfer that reads, or that has no data stage and travels as OUT.
    pub fn control(seqnum: u32, setup: [u8; 8]) -> Self {
        let length = u32::from(u16::from_le_bytes([setup[6], setup[7]]));
        let direction = u32::from(setup[0] & 0x80 != 0 && length > 0);
        Self { length, setup, ..Self::plain(seqnum, direction, 0) }
    }

    /// A control transfer that writes.
    pub fn control_out(seqnum: u32, setup: [u8; 8], data: &[u8]) -> Self {
        Self { setup, ..Self::data_out(seqnum, 0, data) }
    }

    /// An isochronous IN transfer of packets one behind the other.
    pub fn iso_in(seqnum: u32, ep: u32, lengths: &[u32]) -> Self {
        let packets = packets_of(lengths);
        Self {
            length: lengths.iter().sum(),
            number_of_packets: packets.len() as u32,
            interval: 1,
            packets,
            ..Self::data_in(seqnum, ep, 0)
        }
    }

    /// An isochronous OUT transfer of packets one behind the other.
    pub fn iso_out(seqnum: u32, ep: u32, lengths: &[u32], data: &[u8]) -> Self {
        let packets = packets_of(lengths);
        assert_eq!(data.len() as u32, lengths.iter().sum::<u32>());
        Self { number_of_packets: packets.len() as u32, interval: 1, packets, ..Self::data_out(seqnum, ep, data) }
    }

    fn plain(seqnum: u32, direction: u32, ep: u32) -> Self {
        Self {
            seqnum,
            devid: DEVID,
            direction,
            ep,
            flags: 0,
            length: 0,
            start_frame: 0,
            number_of_packets: 0,
            interval: 0,
            setup: [0; 8],
            data: Vec::new(),
            packets: Vec::new(),
        }
    }

    pub fn is_in(&self) -> bool {
        self.direction == 1
    }

    pub fn bytes(&self) -> Vec<u8> {
        let basic = [1, self.seqnum, self.devid, self.direction, self.ep];
        let body = [self.flags, self.length, self.start_frame, self.number_of_packets, self.interval];
        let mut bytes = header(basic, body);
        bytes[40..].copy_from_slice(&self.setup);
        bytes.extend(&self.data);
        bytes.extend(self.packets.iter().flat_map(|packet| packet.bytes()));
        bytes
    }
}

fn packets_of(lengths: &[u32]) -> Vec<Packet> {
    let mut offset = 0;
    let consecutive = |&length: &u32| {
        let packet = Packet::new(offset, length);
        offset += length;
        packet
    };
    lengths.iter().map(consecutive).collect()
}

/// The request to cancel the submit with the number `victim` (USBIP_CMD_UNLINK).
pub fn unlink(seqnum: u32, victim: u32) -> Vec<u8> {
    header([2, seqnum, DEVID, 0, 0], [victim, 0, 0, 0, 0])
}

/// The answer to a submit (USBIP_RET_SUBMIT), with its data and isochronous packets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RetSubmit {
    pub seqnum: u32,
    pub status: i32,
    pub actual: u32,
    pub start_frame: u32,
    pub number_of_packets: u32,
    pub error_count: u32,
    pub data: Vec<u8>,
    pub packets: Vec<Packet>,
}

impl RetSubmit {
    /// A transfer that went well: `data` came in.
    pub fn data_in(seqnum: u32, data: &[u8]) -> Self {
        Self { seqnum, actual: data.len() as u32, data: data.to_vec(), ..Self::default() }
    }

    /// A transfer that went well: `actual` bytes went out.
    pub fn taken(seqnum: u32, actual: u32) -> Self {
        Self { seqnum, actual, ..Self::default() }
    }

    /// A transfer that ended with `status`, and moved no bytes.
    pub fn failed(seqnum: u32, status: i32) -> Self {
        Self { seqnum, status, ..Self::default() }
    }

    /// Isochronous: these packets, and for IN their data without gaps.
    pub fn iso(seqnum: u32, packets: &[Packet], data: &[u8]) -> Self {
        Self {
            seqnum,
            actual: packets.iter().map(|packet| packet.actual).sum(),
            number_of_packets: packets.len() as u32,
            error_count: packets.iter().filter(|packet| packet.status != 0).count() as u32,
            packets: packets.to_vec(),
            data: data.to_vec(),
            ..Self::default()
        }
    }

    pub fn bytes(&self) -> Vec<u8> {
        let status = self.status.cast_unsigned();
        let body = [status, self.actual, self.start_frame, self.number_of_packets, self.error_count];
        let mut bytes = header([3, self.seqnum, 0, 0, 0], body);
        bytes.extend(&self.data);
        bytes.extend(self.packets.iter().flat_map(|packet| packet.bytes()));
        bytes
    }
}

/// The answer to an unlink (USBIP_RET_UNLINK); `status` is 0 or a negative error number.
pub fn ret_unlink(seqnum: u32, status: i32) -> Vec<u8> {
    header([4, seqnum, 0, 0, 0], [status.cast_unsigned(), 0, 0, 0, 0])
}

/// The 48 bytes: usbip_header_basic, five words, eight bytes left zero.
pub fn header(basic: [u32; 5], body: [u32; 5]) -> Vec<u8> {
    let mut bytes: Vec<u8> = basic.into_iter().chain(body).flat_map(u32::to_be_bytes).collect();
    bytes.extend([0; 8]);
    bytes
}

pub fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// Setup packets as the bus carries them.
pub mod setup {
    pub const GET_DEVICE_18: [u8; 8] = [0x80, 6, 0, 1, 0, 0, 18, 0];
    pub const GET_DEVICE_8: [u8; 8] = [0x80, 6, 0, 1, 0, 0, 8, 0];
    pub const GET_DEVICE_64: [u8; 8] = [0x80, 6, 0, 1, 0, 0, 64, 0];
    pub const GET_CONFIGURATION: [u8; 8] = [0x80, 8, 0, 0, 0, 0, 1, 0];

    pub const fn get_configuration_descriptor(length: u8) -> [u8; 8] {
        [0x80, 6, 0, 2, 0, 0, length, 0]
    }

    pub const fn get_string(index: u8) -> [u8; 8] {
        [0x80, 6, index, 3, 9, 4, 255, 0]
    }

    pub const fn set_configuration(value: u8) -> [u8; 8] {
        [0, 9, value, 0, 0, 0, 0, 0]
    }

    pub const fn set_interface(interface: u8, alternate: u8) -> [u8; 8] {
        [1, 11, alternate, 0, interface, 0, 0, 0]
    }

    pub const fn get_interface(interface: u8) -> [u8; 8] {
        [0x81, 10, 0, 0, interface, 0, 1, 0]
    }

    pub const fn clear_halt(endpoint: u8) -> [u8; 8] {
        [2, 1, 0, 0, endpoint, 0, 0, 0]
    }

    pub const fn set_halt(endpoint: u8) -> [u8; 8] {
        [2, 3, 0, 0, endpoint, 0, 0, 0]
    }

    pub const fn get_endpoint_status(endpoint: u8) -> [u8; 8] {
        [0x82, 0, 0, 0, endpoint, 0, 2, 0]
    }
}
