//! A minimal Bulk-Only host.

use farbus_model::usb::request::GET_STATUS;
use farbus_model::{
    BlockStore, BufferPool, CompletionQueue, Device, EpAddr, Instant, OwnerCommand, OwnerCommandError, Payload,
    SetupPacket, Urb, UrbCompletion, UrbId, UrbStatus,
};

use crate::emulated::EmulatedDevice;
use crate::storage::bulk_only::{BULK_IN, BULK_OUT};
use crate::storage::scsi::command::op;
use crate::storage::{StorageGadget, StorageOptions};

pub const PASSED: u8 = 0;
pub const FAILED: u8 = 1;
pub const PHASE_ERROR: u8 = 2;
pub const CSW_BYTES: u32 = 13;

/// Abbreviated sense data: key, code, qualifier.
pub type Sense = (u8, u8, u8);
pub const NO_SENSE: Sense = (0, 0, 0);
pub const RESET_OCCURRED: Sense = (6, 0x29, 0);
pub const MEDIUM_CHANGED: Sense = (6, 0x28, 0);
pub const NO_MEDIUM: Sense = (2, 0x3a, 0);
pub const STOPPED: Sense = (2, 4, 2);
pub const READ_ERROR: Sense = (3, 0x11, 0);
pub const WRITE_ERROR: Sense = (3, 0x0c, 0);
pub const LIST_LENGTH: Sense = (5, 0x1a, 0);
pub const INVALID_COMMAND: Sense = (5, 0x20, 0);
pub const OUT_OF_RANGE: Sense = (5, 0x21, 0);
pub const INVALID_FIELD: Sense = (5, 0x24, 0);
pub const NO_SUCH_UNIT: Sense = (5, 0x25, 0);
pub const INVALID_PARAMETER: Sense = (5, 0x26, 0);
pub const NOT_SAVED: Sense = (5, 0x39, 0);
pub const REMOVAL_PREVENTED: Sense = (5, 0x53, 2);
pub const WRITE_PROTECTED: Sense = (7, 0x27, 0);
pub const NO_SPACE: Sense = (7, 0x27, 7);
pub const MISCOMPARE: Sense = (0xe, 0x1d, 0);

/// The data that a host expects to move.
#[derive(Clone, Debug)]
pub enum Data {
    None,
    In(u32),
    Out(Vec<u8>),
}

/// The result of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    pub status: u8,
    pub residue: u32,
    pub data: Vec<u8>,
    /// The endpoints that stalled, and how often.
    pub stalls: Vec<EpAddr>,
}

pub struct Host {
    pub device: EmulatedDevice<StorageGadget>,
    pub done: CompletionQueue,
    next_id: u64,
    pub tag: u32,
    /// If set, another process continues with the disk before each request, unless a request waits.
    remake: Option<Box<dyn Fn() -> EmulatedDevice<StorageGadget>>>,
}

impl Host {
    /// A configured disk whose first unit attention was read.
    pub fn new(store: impl BlockStore + 'static, options: StorageOptions) -> Self {
        let mut host = Self::unconfigured(store, options);
        host.configure();
        assert_eq!(host.fails(&[op::TEST_UNIT_READY, 0, 0, 0, 0, 0], Data::None), RESET_OCCURRED);
        host
    }

    pub fn unconfigured(store: impl BlockStore + 'static, options: StorageOptions) -> Self {
        let device = StorageGadget::device(Box::new(store), options).unwrap();
        Self { device, done: CompletionQueue::new(BufferPool::new(1 << 20)), next_id: 1, tag: 0x1000, remake: None }
    }

    /// Such a disk that continues in another process before each request.
    pub fn moving(store: impl BlockStore + Clone + 'static, options: StorageOptions) -> Self {
        let mut host = Self::new(store.clone(), options.clone());
        host.remake = Some(Box::new(move || StorageGadget::device(Box::new(store.clone()), options.clone()).unwrap()));
        host
    }

    fn move_on(&mut self) {
        let Some(state) = self.device.save() else { return };
        if let Some(remake) = &self.remake {
            let mut next = remake();
            assert!(next.restore(self.device.selection(), &state), "it can go on");
            assert!(!remake().restore(self.device.selection(), &state[..state.len() - 1]), "not without its end");
            self.device = next;
        }
    }

    pub fn configure(&mut self) {
        assert_eq!(self.control(SetupPacket::set_configuration(1)).status, UrbStatus::Ok);
    }

    pub fn urb_id(&mut self) -> UrbId {
        self.move_on();
        self.next_id += 1;
        UrbId(self.next_id)
    }

    pub fn submit_out(&mut self, payload: impl Into<Payload>) -> UrbId {
        let id = self.urb_id();
        self.device.submit(Instant::ZERO, Urb::data_out(id, BULK_OUT, payload.into()).launch(), &mut self.done);
        id
    }

    pub fn submit_in(&mut self, room: u32) -> UrbId {
        let id = self.urb_id();
        self.device.submit(Instant::ZERO, Urb::data_in(id, BULK_IN, room).launch(), &mut self.done);
        id
    }

    /// The answer to the last request, which has to be there and the only one.
    pub fn only(&mut self) -> UrbCompletion {
        let done = self.done.pop().expect("the request is answered");
        assert!(self.done.is_empty(), "and nothing else is: {:?}", self.done.pop());
        done
    }

    pub fn out(&mut self, payload: impl Into<Payload>) -> UrbCompletion {
        self.submit_out(payload);
        self.only()
    }

    pub fn read(&mut self, room: u32) -> UrbCompletion {
        self.submit_in(room);
        self.only()
    }

    pub fn control(&mut self, setup: SetupPacket) -> UrbCompletion {
        let id = self.urb_id();
        self.device.submit(Instant::ZERO, Urb::control(id, setup, Payload::Empty).launch(), &mut self.done);
        // Halts cleared by it may let other requests finish behind it.
        let done = self.done.pop().expect("control requests are answered at once");
        assert_eq!(done.id, id);
        done
    }

    pub fn clear_halt(&mut self, endpoint: EpAddr) {
        assert_eq!(self.control(SetupPacket::clear_halt(endpoint)).status, UrbStatus::Ok);
    }

    pub fn bulk_only_reset(&mut self) {
        let reset = SetupPacket { request_type: 0x21, request: 0xff, value: 0, index: 0, length: 0 };
        assert_eq!(self.control(reset).status, UrbStatus::Ok);
    }

    pub fn is_halted(&mut self, endpoint: EpAddr) -> bool {
        let ask =
            SetupPacket { request_type: 0x82, request: GET_STATUS, length: 2, ..SetupPacket::clear_halt(endpoint) };
        self.control(ask).payload.into_vec() == [1, 0]
    }

    /// Reset Recovery (Bulk-Only 1.0 §5.3.4).
    pub fn recover(&mut self) {
        self.bulk_only_reset();
        self.clear_halt(BULK_IN);
        self.clear_halt(BULK_OUT);
    }

    pub fn owner(&mut self, command: OwnerCommand) -> Result<(), OwnerCommandError> {
        self.device.command(Instant::ZERO, &command, &mut self.done)
    }

    /// The next command's wrapper.
    pub fn cbw(&mut self, cdb: &[u8], data: &Data) -> Vec<u8> {
        self.tag += 1;
        let (flags, length) = match data {
            Data::None => (0, 0),
            Data::In(length) => (0x80, *length),
            Data::Out(bytes) => (0, bytes.len() as u32),
        };
        cbw(self.tag, length, flags, 0, cdb)
    }

    /// Runs a command, its phases one after the other, and clears stalls as they come.
    pub fn command(&mut self, cdb: &[u8], data: Data) -> Reply {
        let cbw = self.cbw(cdb, &data);
        assert_eq!(self.out(cbw).status, UrbStatus::Ok);
        let mut reply = Reply { status: 0xff, residue: 0, data: Vec::new(), stalls: Vec::new() };
        let moved = match data {
            Data::None | Data::In(0) => None,
            Data::In(room) => Some(self.read(room)),
            Data::Out(bytes) if bytes.is_empty() => None,
            Data::Out(bytes) => Some(self.out(bytes)),
        };
        if let Some(moved) = moved {
            self.note_stall(&moved, &mut reply);
            reply.data = moved.payload.into_vec();
        }
        let mut csw = self.read(CSW_BYTES);
        self.note_stall(&csw, &mut reply);
        if csw.status == UrbStatus::Stall {
            csw = self.read(CSW_BYTES);
        }
        (reply.status, reply.residue) = self.csw(&csw);
        // An OUT endpoint that halted after the last byte shows it only at the next transfer.
        if self.is_halted(BULK_OUT) {
            reply.stalls.push(BULK_OUT);
            self.clear_halt(BULK_OUT);
        }
        reply
    }

    fn note_stall(&mut self, done: &UrbCompletion, reply: &mut Reply) {
        if done.status == UrbStatus::Stall {
            reply.stalls.push(done.endpoint);
            self.clear_halt(done.endpoint);
        }
    }

    /// Status and residue of a valid and meaningful CSW.
    pub fn csw(&self, done: &UrbCompletion) -> (u8, u32) {
        assert_eq!(done.status, UrbStatus::Ok);
        let bytes = done.payload.contiguous().into_owned();
        assert_eq!(bytes.len(), CSW_BYTES as usize);
        assert_eq!(&bytes[..4], b"USBS");
        assert_eq!(bytes[4..8], self.tag.to_le_bytes(), "the tag is the command's");
        (bytes[12], u32::from_le_bytes(bytes[8..12].try_into().unwrap()))
    }

    /// Runs a command that has to pass and to move everything; returns its data.
    pub fn passes(&mut self, cdb: &[u8], data: Data) -> Vec<u8> {
        let reply = self.command(cdb, data);
        assert_eq!(
            (reply.status, reply.residue, reply.stalls.len()),
            (PASSED, 0, 0),
            "{cdb:02x?}: {:02x?}",
            self.sense()
        );
        reply.data
    }

    /// Runs a command whose report may be shorter than the space; returns its data.
    pub fn reports(&mut self, cdb: &[u8], room: u32) -> Vec<u8> {
        let reply = self.command(cdb, Data::In(room));
        assert_eq!(reply.status, PASSED, "{cdb:02x?}: {:02x?}", self.sense());
        assert_eq!(reply.residue, room - reply.data.len() as u32);
        reply.data
    }

    /// Runs a command that has to fail; returns the reason.
    pub fn fails(&mut self, cdb: &[u8], data: Data) -> Sense {
        let reply = self.command(cdb, data);
        assert_eq!(reply.status, FAILED, "{cdb:02x?}");
        self.sense()
    }

    pub fn sense_bytes(&mut self) -> Vec<u8> {
        let reply = self.command(&[op::REQUEST_SENSE, 0, 0, 0, 18, 0], Data::In(18));
        assert_eq!((reply.status, reply.residue), (PASSED, 0));
        reply.data
    }

    pub fn sense(&mut self) -> Sense {
        let bytes = self.sense_bytes();
        (bytes[2] & 0x0f, bytes[12], bytes[13])
    }

    pub fn is_ready(&mut self) -> bool {
        self.command(&[op::TEST_UNIT_READY, 0, 0, 0, 0, 0], Data::None).status == PASSED
    }
}

/// A command block wrapper.
pub fn cbw(tag: u32, length: u32, flags: u8, lun: u8, cdb: &[u8]) -> Vec<u8> {
    let mut bytes = b"USBC".to_vec();
    bytes.extend(tag.to_le_bytes());
    bytes.extend(length.to_le_bytes());
    bytes.extend([flags, lun, cdb.len() as u8]);
    bytes.extend(cdb);
    bytes.resize(31, 0);
    bytes
}

/// A READ or WRITE(10).
pub fn cdb_10(opcode: u8, lba: u32, blocks: u16) -> [u8; 10] {
    let mut cdb = [0; 10];
    cdb[0] = opcode;
    cdb[2..6].copy_from_slice(&lba.to_be_bytes());
    cdb[7..9].copy_from_slice(&blocks.to_be_bytes());
    cdb
}

/// A READ or WRITE(16).
pub fn cdb_16(opcode: u8, lba: u64, blocks: u32) -> [u8; 16] {
    let mut cdb = [0; 16];
    cdb[0] = opcode;
    cdb[2..10].copy_from_slice(&lba.to_be_bytes());
    cdb[10..14].copy_from_slice(&blocks.to_be_bytes());
    cdb
}

/// An UNMAP and its list.
pub fn unmap(ranges: &[(u64, u32)]) -> ([u8; 10], Data) {
    let list = unmap_list(ranges);
    (cdb_10(op::UNMAP, 0, list.len() as u16), Data::Out(list))
}

pub fn unmap_list(ranges: &[(u64, u32)]) -> Vec<u8> {
    let data_bytes = ranges.len() as u16 * 16;
    let mut list = (data_bytes + 6).to_be_bytes().to_vec();
    list.extend(data_bytes.to_be_bytes());
    list.extend([0; 4]);
    for (lba, blocks) in ranges {
        list.extend(lba.to_be_bytes());
        list.extend(blocks.to_be_bytes());
        list.extend([0; 4]);
    }
    list
}

/// Bytes that depend on their offset and the seed.
pub fn pattern(seed: u8, len: usize) -> Vec<u8> {
    (0..len).map(|at| (at as u8).wrapping_mul(31).wrapping_add((at >> 8) as u8).wrapping_add(seed)).collect()
}
