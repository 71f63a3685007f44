//! One transfer: how a program's URB becomes a request, and how its result is told.

use farbus_model::{
    EndpointDescriptor, Instant, IsoPacket, Payload, SetupPacket, TransferDirection, Urb, UrbCompletion, UrbFlags,
    UrbStatus, UsbSpeed,
};
use farbus_model::{TransferType, UrbId};
use farbus_wire::usbfs::{IsoLength, PointerWidth, UrbFlag, UrbHead, UrbKind, UrbResult, UsbfsError};

use super::command::{CallId, ProgramMemory, ReapWaiter, UsbfsAnswer};

/// What a URB costs besides its data, bytes (`struct async` and its URB).
const URB_COST_BYTES: u64 = 512;

/// Bytes of a setup packet, which are the first of a control URB's data.
const SETUP_BYTES: u32 = 8;

/// A URB of a program, from its submission to its end.
#[derive(Debug)]
pub(super) struct ProgramUrb {
    /// The URB's own address: its name.
    pub address: u64,
    /// The interface that it needs; `None` for the control pipe.
    pub interface: Option<u8>,
    /// On a bulk endpoint: which one ([`EpAddr::index`]).
    pub bulk: Option<usize>,
    /// It continues the transfer before it on its endpoint, and fails with it.
    pub is_continuation: bool,
    /// The command that cancelled it, which waits until it has ended.
    pub discard: Option<CallId>,
    /// How it fails if it was cancelled by its program, and not because something else failed.
    pub withdrawn: Option<UsbfsError>,
    /// If it ends with fewer bytes than this, it has failed.
    least: u32,
    width: PointerWidth,
    /// Where read data go.
    data_at: u64,
    /// Isochronous: the room of each packet.
    lengths: Vec<u32>,
    bytes: u64,
}

/// The kind of URB that an endpoint takes (`proc_do_submiturb`): a bulk URB may go to an interrupt endpoint.
fn fits(kind: UrbKind, endpoint: TransferType) -> bool {
    match kind {
        UrbKind::Control => endpoint == TransferType::Control,
        UrbKind::Bulk { .. } => matches!(endpoint, TransferType::Bulk | TransferType::Interrupt),
        UrbKind::Interrupt => endpoint == TransferType::Interrupt,
        UrbKind::Isochronous { .. } => endpoint == TransferType::Isochronous,
    }
}

/// How often an endpoint is polled, in frames or microframes (USB 2.0 table 9-13).
fn interval(endpoint: &EndpointDescriptor, speed: UsbSpeed) -> u32 {
    let interval = u32::from(endpoint.interval.max(1));
    if speed.has_microframes() { 1 << (interval - 1).min(15) } else { interval }
}

impl ProgramUrb {
    /// Reads what is left to read of a URB: setup packet, packets, data. `endpoint` is `None` for the control pipe.
    ///
    /// # Errors
    /// As `proc_do_submiturb`: EINVAL for a URB that does not fit its endpoint, EFAULT for memory that is not there.
    pub fn read(
        head: &UrbHead,
        (address, width): (u64, PointerWidth),
        (interface, endpoint): (Option<u8>, Option<(&EndpointDescriptor, UsbSpeed)>),
        memory: &mut dyn ProgramMemory,
    ) -> Result<(Self, Urb), UsbfsError> {
        let kind = endpoint.map_or(TransferType::Control, |(endpoint, _)| endpoint.kind);
        if !fits(head.kind, kind) {
            return Err(UsbfsError::Invalid);
        }
        let mut submitted = Self {
            address,
            interface,
            bulk: (kind == TransferType::Bulk).then(|| head.endpoint.index()),
            is_continuation: head.has(UrbFlag::BulkContinuation),
            discard: None,
            withdrawn: None,
            least: 0,
            width,
            data_at: head.buffer,
            lengths: Vec::new(),
            bytes: URB_COST_BYTES,
        };
        let mut urb = Urb::data_in(UrbId(0), head.endpoint, head.length);
        match head.kind {
            UrbKind::Control => {
                urb = Urb::control(UrbId(0), setup_of(head, memory)?, Payload::Empty);
                urb.endpoint = head.endpoint;
                submitted.data_at = head.buffer.wrapping_add(SETUP_BYTES.into());
            }
            UrbKind::Isochronous { packets } => {
                let mut bytes = vec![0; packets as usize * IsoLength::BYTES];
                memory.read(address.wrapping_add(UrbHead::bytes(width) as u64), &mut bytes)?;
                let (lengths, total) = IsoLength::decode_all(&bytes)?;
                urb.iso = packets_of(&lengths);
                (submitted.lengths, urb.length, urb.start_frame) = (lengths, total, head.start_frame);
            }
            UrbKind::Bulk { stream } => urb.stream = u16::try_from(stream).map_err(|_| UsbfsError::Invalid)?,
            UrbKind::Interrupt => {}
        }
        if !head.endpoint.is_control() {
            urb.direction = head.endpoint.direction();
        }
        if let Some((endpoint, speed)) = endpoint
            && matches!(endpoint.kind, TransferType::Interrupt | TransferType::Isochronous)
        {
            urb.interval = interval(endpoint, speed);
        }
        urb.flags = UrbFlags {
            short_not_ok: head.has(UrbFlag::ShortNotOk)
                && urb.direction == TransferDirection::In
                && submitted.lengths.is_empty(),
            iso_asap: head.has(UrbFlag::IsoAsap),
            zero_packet: head.has(UrbFlag::ZeroPacket) && urb.direction == TransferDirection::Out,
        };
        if urb.flags.short_not_ok {
            submitted.least = urb.length;
        }
        submitted.bytes += u64::from(urb.length) + (submitted.lengths.len() * size_of::<IsoPacket>()) as u64;
        Ok((submitted, urb))
    }

    /// Bytes that it is charged, from its submission until it is reaped.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Reads the data that go out. Only after the bytes were charged.
    ///
    /// # Errors
    /// EFAULT.
    pub fn read_data(&self, urb: &mut Urb, memory: &mut dyn ProgramMemory) -> Result<(), UsbfsError> {
        if urb.direction == TransferDirection::Out {
            urb.payload = read_data(self.data_at, urb.length, memory)?;
        }
        Ok(())
    }

    /// How it has ended, whatever its device thinks of short ones (`__usb_hcd_giveback_urb`).
    pub fn status(&self, done: &UrbCompletion) -> UrbStatus {
        if done.status == UrbStatus::Ok && done.actual < self.least { UrbStatus::Short } else { done.status }
    }

    /// The URB has ended.
    pub fn finish(self, done: UrbCompletion) -> UnreapedUrb {
        let failure = match self.status(&done) {
            UrbStatus::Cancelled if self.withdrawn.is_some() => self.withdrawn,
            UrbStatus::Gone => Some(UsbfsError::Shutdown),
            status => UsbfsError::of(status),
        };
        let packets = done.iso.iter().map(|packet| (packet.actual, UsbfsError::of(packet.status))).collect();
        let result = UrbResult { failure, actual: done.actual, error_count: done.error_count, packets };
        let mut data = Vec::new();
        if self.lengths.is_empty() {
            data.push((self.data_at, done.payload));
        } else {
            // The packets came without the gaps that the program has between them.
            let mut payload = done.payload;
            let mut address = self.data_at;
            for (length, packet) in self.lengths.iter().zip(&done.iso) {
                data.push((address, payload.split_front((packet.actual as usize).min(payload.len()))));
                address = address.wrapping_add((*length).into());
            }
        }
        data.retain(|(_, payload)| !payload.is_empty());
        UnreapedUrb { address: self.address, width: self.width, result, data, bytes: self.bytes }
    }
}

fn setup_of(head: &UrbHead, memory: &mut dyn ProgramMemory) -> Result<SetupPacket, UsbfsError> {
    if head.length < SETUP_BYTES {
        return Err(UsbfsError::Invalid);
    }
    let mut bytes = [0; SETUP_BYTES as usize];
    memory.read(head.buffer, &mut bytes)?;
    let setup = SetupPacket::from_bytes(bytes);
    if head.length < SETUP_BYTES + u32::from(setup.length) { Err(UsbfsError::Invalid) } else { Ok(setup) }
}

fn packets_of(lengths: &[u32]) -> Vec<IsoPacket> {
    let packet_at = |offset: &mut u32, &length: &u32| {
        let packet = IsoPacket { offset: *offset, length, ..IsoPacket::default() };
        *offset += length;
        Some(packet)
    };
    lengths.iter().scan(0, packet_at).collect()
}

/// Reads data that go out.
///
/// # Errors
/// EFAULT; ENOMEM: there is no memory for so many bytes.
pub(super) fn read_data(address: u64, length: u32, memory: &mut dyn ProgramMemory) -> Result<Payload, UsbfsError> {
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(length as usize).map_err(|_| UsbfsError::NoMemory)?;
    bytes.resize(length as usize, 0);
    memory.read(address, &mut bytes)?;
    Ok(bytes.into())
}

/// A URB that has ended and was not reaped yet.
#[derive(Debug)]
pub(super) struct UnreapedUrb {
    address: u64,
    width: PointerWidth,
    result: UrbResult,
    data: Vec<(u64, Payload)>,
    bytes: u64,
}

impl UnreapedUrb {
    /// Bytes that it is charged.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The answer to the command that reaps it, and the bytes that are free.
    pub fn reaped_by(self, reaper: ReapWaiter) -> (UsbfsAnswer, u64) {
        let mut writes = self.data;
        let result = self.result.writes(self.address, self.width);
        writes.extend(result.into_iter().map(|(address, bytes)| (address, bytes.into())));
        let name = self.address.to_le_bytes()[..reaper.width.pointer_bytes()].to_vec();
        writes.push((reaper.address, name.into()));
        (UsbfsAnswer { id: reaper.id, result: Ok(0), writes }, self.bytes)
    }
}

/// A transfer whose program waits in its command for the end.
#[derive(Debug)]
pub(super) struct SynchronousTransfer {
    /// The command that waits, and gets the answer.
    pub id: CallId,
    /// Where read data go.
    pub data_at: u64,
    /// When it is cancelled.
    pub deadline: Option<Instant>,
    /// Why it was cancelled.
    pub cancelled: Option<UsbfsError>,
    /// Bytes that it is charged.
    pub bytes: u64,
}

impl SynchronousTransfer {
    /// The answer to the command.
    pub fn finish(self, done: UrbCompletion) -> UsbfsAnswer {
        let failure = match done.status {
            UrbStatus::Cancelled => Some(self.cancelled.unwrap_or(UsbfsError::Interrupted)),
            UrbStatus::Gone => Some(UsbfsError::Gone),
            status => UsbfsError::of(status),
        };
        let writes = if done.payload.is_empty() { Vec::new() } else { vec![(self.data_at, done.payload)] };
        match failure {
            // What came before it failed stays with the device (`proc_bulk`).
            Some(refusal) => UsbfsAnswer { id: self.id, result: Err(refusal), writes: Vec::new() },
            None => UsbfsAnswer { id: self.id, result: Ok(done.actual), writes },
        }
    }

    /// What it costs to move so many bytes.
    pub fn cost(length: u32) -> u64 {
        URB_COST_BYTES + u64::from(length)
    }
}
