//! Snapshots: the state of a process's connections, as bytes for its replacement.
//!
//! ```text
//!   0 "farbus\r\0"   8 version   10 kind   12 …
//! ```
//!
//! Little-endian. A length stands before everything of variable size, and reading reserves memory only for bytes that
//! are there. The process that wrote a snapshot read untrusted bytes, so its snapshot is untrusted as well: each part
//! is checked against the others, and an impossible state is a [`ProtocolViolation`].
//!
//! **Versions.** A process writes version [`VERSION`] and reads that and [`VERSION_MIN`], the version of the release
//! before: a daemon that was just upgraded reads what its predecessor wrote. Any other version is a
//! [`ProtocolViolation`]: sessions and attachments then begin again. A field of version N is read only if
//! [`FieldReader::version`] says N or more, and has a stated value otherwise:
//!
//! ```text
//! let identity = if from.version() >= 13 { Some(from.take(16, "identity")?) } else { None };
//! ```
//!
//! A part that is read later, or by another type, keeps the version of the snapshot around it: see [`SavedPart`].

use farbus_model::limits::{ISO_PACKETS_MAX, URB_BYTES_MAX};
use farbus_model::{
    BlockId, BlockOp, BlockRequest, ConfigurationSelection, DescriptorSet, EpAddr, IsoPacket, Payload, SetupPacket,
    TransferDirection, Urb, UrbFlags, UrbId,
};

pub use crate::reader::FieldReader;
use crate::reject::ProtocolViolation;

/// The version that is written.
pub const VERSION: u16 = 13;
/// The oldest version that is read: the one of the previous release.
pub const VERSION_MIN: u16 = 12;
/// Bytes of a snapshot at most: four times what a session and its user may hold (`Limits::bytes_max`, a lane's
/// unacknowledged bytes).
pub const SNAPSHOT_BYTES_MAX: u64 = 256 << 20;

/// The operations of a block device, by their numbers in snapshots.
const BLOCK_OPS: [BlockOp; 7] = [
    BlockOp::Read,
    BlockOp::Write,
    BlockOp::Flush,
    BlockOp::Discard,
    BlockOp::WriteZeroes,
    BlockOp::Trim,
    BlockOp::Map,
];

const MAGIC: [u8; 8] = *b"farbus\r\0";

/// Writes a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotWriter {
    bytes: Vec<u8>,
}

impl SnapshotWriter {
    /// Begins a snapshot of `kind`, which says what reads it.
    pub fn new(kind: u16) -> Self {
        let mut writer = Self { bytes: MAGIC.to_vec() };
        writer.u16(VERSION);
        writer.u16(kind);
        writer
    }

    /// Begins a part to be put into a snapshot by [`SnapshotWriter::bytes`] and read by [`FieldReader::part`].
    pub fn part() -> Self {
        Self { bytes: Vec::new() }
    }

    /// The whole snapshot.
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    /// Writes a truth value.
    pub fn flag(&mut self, is_so: bool) {
        self.bytes.push(is_so.into());
    }

    /// Writes a number.
    pub fn u8(&mut self, number: u8) {
        self.bytes.push(number);
    }

    /// Writes a number.
    pub fn u16(&mut self, number: u16) {
        self.bytes.extend(number.to_le_bytes());
    }

    /// Writes a number.
    pub fn u32(&mut self, number: u32) {
        self.bytes.extend(number.to_le_bytes());
    }

    /// Writes a number.
    pub fn u64(&mut self, number: u64) {
        self.bytes.extend(number.to_le_bytes());
    }

    /// Writes how many items follow.
    pub fn count(&mut self, count: usize) {
        self.u32(u32::try_from(count).expect("whatever there is several of has a limit far below"));
    }

    /// Writes bytes of a known number, without it.
    pub fn raw(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Writes the number of bytes, and the bytes.
    pub fn bytes(&mut self, bytes: &[u8]) {
        self.count(bytes.len());
        self.raw(bytes);
    }

    /// Like [`SnapshotWriter::bytes`], for several runs of memory with `len` bytes in all.
    pub fn runs<'a>(&mut self, len: usize, runs: impl IntoIterator<Item = &'a [u8]>) {
        self.count(len);
        let before = self.bytes.len();
        runs.into_iter().for_each(|run| self.raw(run));
        debug_assert_eq!(self.bytes.len() - before, len);
    }

    /// Writes the bytes of a payload, preceded by their number.
    pub fn payload(&mut self, payload: &Payload) {
        self.runs(payload.len(), payload.runs());
    }

    /// Writes a request and what is left of its data.
    pub fn urb(&mut self, urb: &Urb) {
        self.u64(urb.id.0);
        self.u8(urb.endpoint.as_byte());
        self.flag(urb.direction == TransferDirection::In);
        self.u32(urb.length);
        self.payload(&urb.payload);
        self.raw(&urb.setup.to_bytes());
        self.u32(urb.start_frame);
        self.u32(urb.interval);
        self.u16(urb.stream);
        for flag in [urb.flags.short_not_ok, urb.flags.iso_asap, urb.flags.zero_packet] {
            self.flag(flag);
        }
        self.count(urb.iso.len());
        for packet in &urb.iso {
            self.u32(packet.offset);
            self.u32(packet.length);
        }
    }

    /// Writes a request to a block device with the data it writes.
    pub fn block_request(&mut self, request: &BlockRequest) {
        self.u64(request.id.0);
        self.u8(BLOCK_OPS.iter().position(|op| *op == request.op).expect("all of them are there") as u8);
        self.u64(request.offset);
        self.u32(request.length);
        self.flag(request.is_durable);
        self.payload(&request.payload);
    }

    /// Writes what is selected on a device.
    pub fn selection(&mut self, selection: &ConfigurationSelection) {
        self.u8(selection.configuration());
        self.count(selection.alternates().len());
        for &(interface, setting) in selection.alternates() {
            self.raw(&[interface, setting]);
        }
    }
}

/// Opens a snapshot, if it is of `kind` and of a version that is read.
///
/// # Errors
/// [`ProtocolViolation`].
pub fn open(bytes: &[u8], kind: u16) -> Result<FieldReader<'_>, ProtocolViolation> {
    let mut reader = FieldReader::new(bytes);
    if reader.take(MAGIC.len(), "snapshot")? != MAGIC {
        return Err(ProtocolViolation::new("snapshot", bytes.len() as u64, "it begins as one does"));
    }
    let version = reader.u16("version")?;
    if !(VERSION_MIN..=VERSION).contains(&version) {
        return Err(ProtocolViolation::new(
            "version",
            version.into(),
            "it is this release's or the previous release's",
        ));
    }
    reader = reader.of_version(version);
    let of = reader.u16("kind")?;
    if of != kind {
        return Err(ProtocolViolation::new("kind", of.into(), "it is of what was asked for"));
    }
    Ok(reader)
}

/// The bytes of a [`SnapshotWriter::part`], with the version of the snapshot around them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SavedPart {
    version: u16,
    bytes: Vec<u8>,
}

impl SavedPart {
    /// Reads it from the beginning.
    pub fn reader(&self) -> FieldReader<'_> {
        FieldReader::new(&self.bytes).of_version(self.version)
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }
}

impl<'a> FieldReader<'a> {
    /// Reads a part that [`SnapshotWriter::bytes`] put here, to be parsed now or later.
    ///
    /// # Errors
    /// [`ProtocolViolation`].
    pub fn part(&mut self, field: &'static str) -> Result<SavedPart, ProtocolViolation> {
        Ok(SavedPart { version: self.version(), bytes: self.bytes(field)?.to_vec() })
    }

    /// Reads what [`SnapshotWriter::flag`] wrote.
    ///
    /// # Errors
    /// [`ProtocolViolation`].
    pub fn flag(&mut self, field: &'static str) -> Result<bool, ProtocolViolation> {
        match self.u8(field)? {
            0 => Ok(false),
            1 => Ok(true),
            other => Err(ProtocolViolation::new(field, other.into(), "it is 0 or 1")),
        }
    }

    /// Reads what [`SnapshotWriter::count`] wrote. An item has at least `bytes_min` bytes, so that a false count is
    /// refused.
    ///
    /// # Errors
    /// [`ProtocolViolation`].
    pub fn count(&mut self, field: &'static str, bytes_min: usize) -> Result<usize, ProtocolViolation> {
        let count = self.u32(field)?;
        if count as usize > self.left() / bytes_min.max(1) {
            return Err(ProtocolViolation::new(field, count.into(), "all of them are in the snapshot"));
        }
        Ok(count as usize)
    }

    /// Reads what [`SnapshotWriter::bytes`] wrote.
    ///
    /// # Errors
    /// [`ProtocolViolation`].
    pub fn bytes(&mut self, field: &'static str) -> Result<&'a [u8], ProtocolViolation> {
        let count = self.u32(field)?;
        self.take(count as usize, field)
    }

    /// Reads what [`SnapshotWriter::payload`] wrote.
    ///
    /// # Errors
    /// [`ProtocolViolation`].
    pub fn payload(&mut self, field: &'static str) -> Result<Payload, ProtocolViolation> {
        let bytes = self.bytes(field)?;
        Ok(if bytes.is_empty() { Payload::Empty } else { bytes.to_vec().into() })
    }

    /// Reads what [`SnapshotWriter::urb`] wrote.
    ///
    /// # Errors
    /// [`ProtocolViolation`].
    pub fn urb(&mut self) -> Result<Urb, ProtocolViolation> {
        let id = UrbId(self.u64("request")?);
        let endpoint = self.u8("endpoint")?;
        if endpoint & 0x70 != 0 {
            return Err(ProtocolViolation::new("endpoint", endpoint.into(), "an endpoint's number is below 16"));
        }
        let direction = if self.flag("direction")? { TransferDirection::In } else { TransferDirection::Out };
        let length = self.u32("length")?;
        if length > URB_BYTES_MAX {
            return Err(ProtocolViolation::new("length", length.into(), "a transfer has 16 MiB at most"));
        }
        let payload = self.payload("data")?;
        let is_whole = direction == TransferDirection::Out && payload.len() == length as usize;
        if !is_whole && !payload.is_empty() {
            return Err(ProtocolViolation::new(
                "data",
                payload.len() as u64,
                "a request holds all it sends, or nothing",
            ));
        }
        let mut urb = Urb::data_in(id, EpAddr::from_byte(endpoint), length);
        (urb.direction, urb.payload) = (direction, payload);
        urb.setup = SetupPacket::from_bytes(self.take(8, "setup")?.try_into().expect("eight bytes"));
        urb.start_frame = self.u32("start frame")?;
        urb.interval = self.u32("interval")?;
        urb.stream = self.u16("stream")?;
        urb.flags = UrbFlags {
            short_not_ok: self.flag("short packet")?,
            iso_asap: self.flag("as soon as possible")?,
            zero_packet: self.flag("zero-length packet")?,
        };
        let packets = self.count("packets", 8)?;
        if packets > ISO_PACKETS_MAX as usize {
            return Err(ProtocolViolation::new("packets", packets as u64, "an isochronous transfer has 1024 at most"));
        }
        let mut sum = 0;
        for _ in 0..packets {
            let packet = IsoPacket { offset: self.u32("offset")?, length: self.u32("length")?, ..Default::default() };
            sum += u64::from(packet.length);
            if u64::from(packet.offset) + u64::from(packet.length) > length.into() || sum > length.into() {
                return Err(ProtocolViolation::new(
                    "packet length",
                    packet.length.into(),
                    "packets lie inside their transfer",
                ));
            }
            urb.iso.push(packet);
        }
        Ok(urb)
    }

    /// Reads what [`SnapshotWriter::block_request`] wrote. The caller checks whether the device permits the request.
    ///
    /// # Errors
    /// [`ProtocolViolation`].
    pub fn block_request(&mut self) -> Result<BlockRequest, ProtocolViolation> {
        let id = BlockId(self.u64("request")?);
        let op = self.u8("operation")?;
        let known = BLOCK_OPS.get(usize::from(op)).copied();
        let op = known.ok_or(ProtocolViolation::new("operation", op.into(), "a block device knows five"))?;
        let (offset, length) = (self.u64("offset")?, self.u32("length")?);
        let is_durable = self.flag("durable")?;
        Ok(BlockRequest { id, op, offset, length, payload: self.payload("data")?, is_durable })
    }

    /// Reads what [`SnapshotWriter::selection`] wrote for a device with these descriptors.
    ///
    /// # Errors
    /// [`ProtocolViolation`].
    pub fn selection(&mut self, descriptors: &DescriptorSet) -> Result<ConfigurationSelection, ProtocolViolation> {
        let mut selection = ConfigurationSelection::default();
        let configuration = self.u8("configuration")?;
        if !selection.select_configuration(descriptors, configuration) {
            return Err(ProtocolViolation::new(
                "configuration",
                configuration.into(),
                "the device has one of that number",
            ));
        }
        for _ in 0..self.count("settings", 2)? {
            let (interface, setting) = (self.u8("interface")?, self.u8("setting")?);
            if !selection.select_interface(descriptors, interface, setting) {
                return Err(ProtocolViolation::new("setting", setting.into(), "the interface has one of that number"));
            }
        }
        Ok(selection)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn isochronous() -> Urb {
        let mut urb = Urb::data_in(UrbId(7 << 40), EpAddr::from_byte(0x83), 300);
        (urb.start_frame, urb.interval, urb.stream) = (9, 4, 3);
        urb.flags.iso_asap = true;
        urb.iso =
            [(0, 100), (200, 50)].map(|(offset, length)| IsoPacket { offset, length, ..Default::default() }).into();
        urb
    }

    #[test]
    fn a_request_is_read_as_it_was_written_and_not_without_its_end() {
        let out = Urb::data_out(UrbId(1), EpAddr::from_byte(2), vec![1, 2, 3].into());
        let control = Urb::control(UrbId(2), SetupPacket::get_descriptor(1, 0, 0, 18), Payload::Empty);
        for urb in [out, control, isochronous()] {
            let mut writer = SnapshotWriter::new(5);
            writer.urb(&urb);
            let bytes = writer.into_bytes();
            let mut reader = open(&bytes, 5).unwrap();
            assert_eq!(format!("{:?}", reader.urb().unwrap()), format!("{urb:?}"));
            reader.end("snapshot").unwrap();
            for end in 0..bytes.len() {
                assert!(open(&bytes[..end], 5).and_then(|mut reader| reader.urb()).is_err(), "{end} bytes");
            }
        }
    }

    #[test]
    fn this_and_the_previous_version_are_read_and_a_part_knows_which_it_is_of() {
        let mut part = SnapshotWriter::part();
        part.u8(7);
        let mut writer = SnapshotWriter::new(5);
        writer.bytes(&part.into_bytes());
        let mut bytes = writer.into_bytes();
        for version in [VERSION_MIN - 1, VERSION_MIN, VERSION, VERSION + 1] {
            bytes[8..10].copy_from_slice(&version.to_le_bytes());
            let opened = open(&bytes, 5);
            if !(VERSION_MIN..=VERSION).contains(&version) {
                assert_eq!(opened.unwrap_err().field, "version");
                continue;
            }
            let mut reader = opened.unwrap();
            let part = reader.part("part").unwrap();
            assert_eq!((reader.version(), part.reader().version()), (version, version));
            assert_eq!(part.reader().u8("number"), Ok(7));
        }
    }

    #[test]
    fn impossible_snapshot_is_refused_with_its_field() {
        let field = |spoil: fn(&mut Urb)| {
            let mut urb = isochronous();
            spoil(&mut urb);
            let mut writer = SnapshotWriter::new(5);
            writer.urb(&urb);
            open(&writer.into_bytes(), 5).unwrap().urb().unwrap_err().field
        };
        assert_eq!(field(|urb| urb.payload = vec![1].into()), "data");
        assert_eq!(field(|urb| urb.iso[1].offset = 251), "packet length");
        assert_eq!(field(|urb| urb.length = URB_BYTES_MAX + 1), "length");
        let bytes = SnapshotWriter::new(5).into_bytes();
        assert_eq!(open(&bytes, 6).unwrap_err().field, "kind");
        assert_eq!(open(&[&bytes[..8], &[VERSION as u8 + 1, 0, 5, 0]].concat(), 5).unwrap_err().field, "version");
        assert_eq!(open(b"something else", 5).unwrap_err().field, "snapshot");
        assert_eq!(open(&[&bytes[..], &[255; 4]].concat(), 5).unwrap().count("many", 1).unwrap_err().field, "many");
    }
}
