//! The importer's end of a USB/IP connection. It checks everything the exporter sends against what was asked, before
//! any other code sees it: a kernel's parser may come next (CVE-2026-31607).
//!
//! | the unlink race | what the requester gets |
//! |---|---|
//! | RET_UNLINK −104 | the request as cancelled |
//! | RET_SUBMIT, then RET_UNLINK 0 | the request with its true status |
//! | RET_UNLINK 0, no RET_SUBMIT yet | cancelled; a later RET_SUBMIT is dropped |
//! | RET_UNLINK with another errno | the request with that status (Linux's stub when the two race) |

use std::collections::BTreeMap;

use farbus_model::descriptor::EndpointDescriptor;
use farbus_model::{
    BufferPool, IsoPacket, Payload, SessionLimits, TransferDirection, TransferType, UrbCompletion, UrbId, UrbInFlight,
    UrbStatus, UsbSpeed,
};

use super::message::{
    self, DEVICE_RECORD_BYTES, DEVICES_MAX, DeviceRecord, HEADER_BYTES, ISO_PACKET_BYTES, OP_HEADER_BYTES, OpHeader,
    OpStatus, ProtocolViolation, RawHeader, SubmitCommand, SubmitReply, command, op,
};
use super::status;
use crate::buffer::{ReceiveBuffer, SendBuffer, SendSlices};
use crate::flights::InFlightQueue;

/// A message of the exporter.
#[derive(Debug)]
pub enum UsbipReply {
    /// The devices it offers.
    DeviceList(Vec<DeviceRecord>),
    /// The import's outcome.
    Imported(Result<DeviceRecord, OpStatus>),
    /// A URB ended.
    Done(UrbCompletion),
}

/// A connection, the client's end.
#[derive(Debug)]
pub struct UsbipClientConn {
    incoming: ReceiveBuffer,
    outgoing: SendBuffer,
    phase: UsbipClientPhase,
    devid: u32,
    /// The imported device's.
    speed: UsbSpeed,
    next_seqnum: u32,
    flights: InFlightQueue<UsbipClientUrb>,
    /// Unanswered unlinks: their number, and that of the request they cancel.
    unlinks: BTreeMap<u32, u32>,
    /// Requests that are answered here and whose RET_SUBMIT may still come.
    late: usize,
    late_max: usize,
}

#[derive(Debug)]
enum UsbipClientPhase {
    /// No request is pending.
    Idle,
    /// A list is arriving: devices still to come (`None`: their number), and those that came.
    List { left: Option<u32>, devices: Vec<DeviceRecord> },
    /// Waits for the import's answer for this bus id.
    Import(String),
    /// A device is imported: URBs and their replies are exchanged.
    Urbs,
}

#[derive(Debug)]
struct UsbipClientUrb {
    /// `None`: the request is answered here, and a late RET_SUBMIT is to be dropped.
    urb: Option<UrbInFlight>,
    direction: TransferDirection,
    length: u32,
    packets: Vec<IsoPacket>,
    is_iso: bool,
    unlinked: bool,
}

impl UsbipClientConn {
    /// A fresh connection.
    pub fn new(limits: &SessionLimits) -> Self {
        Self {
            incoming: ReceiveBuffer::new(limits.receive_bytes),
            outgoing: SendBuffer::default(),
            phase: UsbipClientPhase::Idle,
            devid: 0,
            speed: UsbSpeed::High,
            next_seqnum: 1,
            flights: InFlightQueue::new(),
            unlinks: BTreeMap::new(),
            late: 0,
            late_max: limits.urbs_in_flight_max,
        }
    }

    /// Asks for the list of devices.
    pub fn device_list(&mut self) {
        self.outgoing.put(&OpHeader::new(op::REQ_DEVLIST, OpStatus::Ok).to_bytes());
        self.phase = UsbipClientPhase::List { left: None, devices: Vec::new() };
    }

    /// Asks for a device.
    pub fn import(&mut self, bus_id: &str) {
        self.outgoing.put(&OpHeader::new(op::REQ_IMPORT, OpStatus::Ok).to_bytes());
        self.outgoing.put(&message::encode_bus_id(bus_id));
        self.phase = UsbipClientPhase::Import(bus_id.to_owned());
    }

    /// Sends a request to `endpoint`; `None` is the control pipe. A request that states no interval gets the
    /// endpoint's: Linux's exporter hands it to `usb_submit_urb`, which refuses 0 for interrupt and isochronous
    /// endpoints, and usbipd-win takes such a request for a bulk one.
    ///
    /// # Panics
    /// Before a device was imported.
    pub fn submit(&mut self, mut urb: UrbInFlight, endpoint: Option<&EndpointDescriptor>, pool: &mut BufferPool) {
        assert!(matches!(self.phase, UsbipClientPhase::Urbs), "a device was imported");
        let is_iso = endpoint.is_some_and(|endpoint| endpoint.kind == TransferType::Isochronous);
        let interval = match endpoint {
            Some(endpoint) if urb.interval == 0 => endpoint.urb_interval(self.speed),
            _ => urb.interval,
        };
        let seqnum = self.take_seqnum();
        let submit = SubmitCommand {
            seqnum,
            endpoint: urb.endpoint,
            direction: urb.direction,
            length: urb.length,
            flags: urb.flags,
            start_frame: urb.start_frame,
            number_of_packets: if is_iso { urb.iso.len() as u32 } else { 0 },
            interval,
            setup: urb.setup,
        };
        self.outgoing.put(&submit.to_bytes(self.devid));
        self.outgoing.put_payload(urb.take_payload(), pool);
        let packets = urb.iso.clone();
        for packet in &packets {
            // Zeros for what is not known yet, as the kernel's exporter requires.
            let iso_packet = IsoPacket { actual: 0, status: UrbStatus::Ok, ..*packet };
            self.outgoing.put(&message::encode_iso_packet(&iso_packet));
        }
        let (direction, length) = (urb.direction, urb.length);
        let flight = UsbipClientUrb { urb: Some(urb), direction, length, packets, is_iso, unlinked: false };
        self.flights.insert(seqnum, flight).expect("the number is free");
    }

    /// Cancels a request; it still comes back as [`UsbipReply::Done`].
    pub fn unlink(&mut self, id: UrbId) {
        let victim = self.flights.iter().find(|(_, f)| f.urb.as_ref().is_some_and(|urb| urb.id == id));
        let Some((victim, _)) = victim else { return };
        self.send_unlink(victim);
    }

    /// Cancels every request and answers it with `status` now; later answers of the exporter are dropped.
    pub fn withdraw_all(&mut self, status: UrbStatus) -> Vec<UrbCompletion> {
        let seqnums: Vec<u32> =
            self.flights.iter().filter(|(_, f)| f.urb.is_some()).map(|(seqnum, _)| seqnum).collect();
        let withdraw = |seqnum| {
            self.send_unlink(seqnum);
            self.late += 1;
            let flight = self.flights.get_mut(seqnum).expect("listed just now");
            flight.urb.take().expect("listed because it is there").fail(status)
        };
        seqnums.into_iter().map(withdraw).collect()
    }

    /// Sends one unlink for each request.
    fn send_unlink(&mut self, victim: u32) {
        let flight = self.flights.get_mut(victim).expect("the caller found it");
        if std::mem::replace(&mut flight.unlinked, true) {
            return;
        }
        let seqnum = self.take_seqnum();
        self.unlinks.insert(seqnum, victim);
        self.outgoing.put(&message::encode_unlink(seqnum, self.devid, victim));
    }

    /// The next number that no request in flight has; never 0.
    fn take_seqnum(&mut self) -> u32 {
        loop {
            let seqnum = self.next_seqnum;
            self.next_seqnum = self.next_seqnum.checked_add(1).unwrap_or(1);
            if !self.flights.contains(seqnum) && !self.unlinks.contains_key(&seqnum) {
                return seqnum;
            }
        }
    }

    /// The space for received bytes; never empty.
    pub fn receive_space(&mut self) -> &mut [u8] {
        self.incoming.space(HEADER_BYTES)
    }

    /// `count` bytes arrived.
    pub fn handle_received(&mut self, count: usize) {
        self.incoming.received(count);
    }

    /// The next message of the exporter, if its bytes are all there.
    ///
    /// # Errors
    /// [`ProtocolViolation`]: it does not match any request, and the connection has to end.
    pub fn poll_answer(&mut self) -> Result<Option<UsbipReply>, ProtocolViolation> {
        match self.phase {
            UsbipClientPhase::Idle if self.incoming.bytes().is_empty() => Ok(None),
            UsbipClientPhase::Idle => {
                Err(ProtocolViolation::new("length", self.incoming.bytes().len() as u64, "nothing was asked"))
            }
            UsbipClientPhase::List { .. } => self.poll_list(),
            UsbipClientPhase::Import(_) => self.poll_import(),
            UsbipClientPhase::Urbs => self.poll_urbs(),
        }
    }

    fn poll_op_header(&mut self, code: u16) -> Result<Option<OpStatus>, ProtocolViolation> {
        let Some(bytes) = self.incoming.bytes().first_chunk::<OP_HEADER_BYTES>() else { return Ok(None) };
        let header = OpHeader::from_bytes(*bytes);
        // The refusal of an older or newer server carries that server's version, and so does an empty list.
        if header.version != message::VERSION {
            return Err(ProtocolViolation::new("version", u64::from(header.version), "we speak 0x0111"));
        }
        if header.code != code {
            return Err(ProtocolViolation::new(
                "operation",
                u64::from(header.code),
                "an answer has its question's code",
            ));
        }
        Ok(Some(OpStatus::from_code(header.status)))
    }

    fn poll_list(&mut self) -> Result<Option<UsbipReply>, ProtocolViolation> {
        if let UsbipClientPhase::List { left: None, .. } = self.phase {
            let Some(status) = self.poll_op_header(op::REP_DEVLIST)? else { return Ok(None) };
            if status != OpStatus::Ok {
                return Err(ProtocolViolation::new("status", u64::from(status.code()), "a list is not refused"));
            }
            let Some(count) = self.incoming.bytes()[OP_HEADER_BYTES..].first_chunk::<4>() else { return Ok(None) };
            let count = u32::from_be_bytes(*count);
            if count > DEVICES_MAX {
                return Err(ProtocolViolation::new("ndev", u64::from(count), "a list has at most 4096 devices"));
            }
            self.incoming.consume(OP_HEADER_BYTES + 4);
            self.phase = UsbipClientPhase::List { left: Some(count), devices: Vec::new() };
        }
        loop {
            let UsbipClientPhase::List { left: Some(left), devices } = &mut self.phase else {
                unreachable!("set just above")
            };
            if *left == 0 {
                let devices = std::mem::take(devices);
                self.phase = UsbipClientPhase::Idle;
                return Ok(Some(UsbipReply::DeviceList(devices)));
            }
            let Some(bytes) = self.incoming.bytes().first_chunk::<DEVICE_RECORD_BYTES>() else { return Ok(None) };
            let mut record = DeviceRecord::decode(bytes)?;
            let total = DEVICE_RECORD_BYTES + 4 * usize::from(record.interface_count);
            let Some(classes) = self.incoming.bytes().get(DEVICE_RECORD_BYTES..total) else { return Ok(None) };
            record.interfaces = classes.chunks_exact(4).map(|c| [c[0], c[1], c[2]]).collect();
            devices.push(record);
            *left -= 1;
            self.incoming.consume(total);
        }
    }

    fn poll_import(&mut self) -> Result<Option<UsbipReply>, ProtocolViolation> {
        let Some(status) = self.poll_op_header(op::REP_IMPORT)? else { return Ok(None) };
        if status != OpStatus::Ok {
            // A refusal has only the eight bytes of the header.
            self.incoming.consume(OP_HEADER_BYTES);
            self.phase = UsbipClientPhase::Idle;
            return Ok(Some(UsbipReply::Imported(Err(status))));
        }
        let rest = &self.incoming.bytes()[OP_HEADER_BYTES..];
        let Some(bytes) = rest.first_chunk::<DEVICE_RECORD_BYTES>() else { return Ok(None) };
        let record = DeviceRecord::decode(bytes)?;
        match &self.phase {
            UsbipClientPhase::Import(bus_id) if *bus_id == record.bus_id => {}
            _ => {
                return Err(ProtocolViolation::new(
                    "busid",
                    u64::from(record.device),
                    "the device that was asked for comes back",
                ));
            }
        }
        self.incoming.consume(OP_HEADER_BYTES + DEVICE_RECORD_BYTES);
        (self.devid, self.speed) = (record.device_id(), record.speed);
        self.phase = UsbipClientPhase::Urbs;
        Ok(Some(UsbipReply::Imported(Ok(record))))
    }

    fn poll_urbs(&mut self) -> Result<Option<UsbipReply>, ProtocolViolation> {
        loop {
            let Some(bytes) = self.incoming.bytes().first_chunk::<HEADER_BYTES>() else { return Ok(None) };
            let raw = RawHeader::from_bytes(bytes);
            let done = match raw.command {
                command::RET_SUBMIT => match self.poll_submit_reply(&raw)? {
                    ReplyProgress::More => return Ok(None),
                    ReplyProgress::Done(done) => done,
                },
                command::RET_UNLINK => {
                    self.incoming.consume(HEADER_BYTES);
                    self.unlink_reply(&raw)?
                }
                other => {
                    let rule = "an exporter sends 3 (submit reply) or 4 (unlink reply)";
                    return Err(ProtocolViolation::new("command", u64::from(other), rule));
                }
            };
            if let Some(done) = done {
                return Ok(Some(UsbipReply::Done(done)));
            }
        }
    }

    fn poll_submit_reply(&mut self, raw: &RawHeader) -> Result<ReplyProgress, ProtocolViolation> {
        let reply = SubmitReply::from_raw(raw);
        let flight = self.flights.get(reply.seqnum);
        let flight =
            flight.ok_or(ProtocolViolation::new("seqnum", u64::from(reply.seqnum), "an answer names a request"))?;
        let packets = check_reply(flight, &reply)?;
        let data_bytes = if flight.direction == TransferDirection::In { reply.actual as usize } else { 0 };
        let total = HEADER_BYTES + data_bytes + packets * ISO_PACKET_BYTES;
        if self.incoming.bytes().len() < total {
            self.incoming.want(total);
            return Ok(ReplyProgress::More);
        }
        let descriptors = &self.incoming.bytes()[HEADER_BYTES + data_bytes..total];
        let iso = check_reply_packets(flight, &reply, descriptors)?;
        let payload = self.incoming.window(HEADER_BYTES..HEADER_BYTES + data_bytes);
        self.incoming.consume(total);
        let flight = self.flights.remove(reply.seqnum).expect("looked up just now");
        self.late -= usize::from(flight.urb.is_none());
        Ok(ReplyProgress::Done(flight.urb.map(|urb| finish(urb, &reply, iso, payload))))
    }

    fn unlink_reply(&mut self, raw: &RawHeader) -> Result<Option<UrbCompletion>, ProtocolViolation> {
        // An answer to an unknown unlink is harmless.
        let Some(victim) = self.unlinks.remove(&raw.seqnum) else { return Ok(None) };
        let Some(flight) = self.flights.get_mut(victim) else { return Ok(None) };
        let status = match status::from_errno(raw.body[0].cast_signed()) {
            UrbStatus::Ok if self.late >= self.late_max && flight.urb.is_some() => {
                return Err(ProtocolViolation::new(
                    "status",
                    0,
                    "an unlink is answered with 0 behind its request's own answer",
                ));
            }
            UrbStatus::Ok => {
                // Its RET_SUBMIT may still come, and is dropped then.
                let urb = flight.urb.take();
                self.late += usize::from(urb.is_some());
                return Ok(urb.map(|urb| urb.fail(UrbStatus::Cancelled)));
            }
            status => status,
        };
        let urb = flight.urb.take();
        self.flights.remove(victim);
        self.late -= usize::from(urb.is_none());
        Ok(urb.map(|urb| urb.fail(status)))
    }

    /// The link is lost: every request ends with `status`.
    pub fn abandon(&mut self, status: UrbStatus) -> Vec<UrbCompletion> {
        self.unlinks.clear();
        self.late = 0;
        self.flights.drain().filter_map(|flight| flight.urb).map(|urb| urb.fail(status)).collect()
    }

    /// How many submitted requests have not completed yet; cancelled ones are not counted.
    pub fn in_flight(&self) -> usize {
        self.flights.iter().filter(|(_, flight)| flight.urb.is_some()).count()
    }

    /// Bytes waiting to be sent.
    pub fn backlog_bytes(&self) -> usize {
        self.outgoing.len()
    }

    /// The runs of memory to send next, in order; empty when there is nothing.
    pub fn poll_transmit(&self) -> SendSlices<'_> {
        self.outgoing.runs()
    }

    /// `count` bytes of [`UsbipClientConn::poll_transmit`] were sent.
    pub fn handle_transmitted(&mut self, count: usize, pool: &mut BufferPool) {
        self.outgoing.sent(count, pool);
    }
}

impl Drop for UsbipClientConn {
    /// The owner of the connection drops its requests too: no code reads these answers.
    fn drop(&mut self) {
        self.abandon(UrbStatus::Gone);
    }
}

enum ReplyProgress {
    /// The message is incomplete.
    More,
    /// The message is complete; `None` if its request was answered already.
    Done(Option<UrbCompletion>),
}

/// Checks a reply's header against the request; returns how many packet descriptors follow.
fn check_reply(flight: &UsbipClientUrb, reply: &SubmitReply) -> Result<usize, ProtocolViolation> {
    if reply.actual > flight.length {
        let value = u64::from(reply.actual);
        return Err(ProtocolViolation::new("actual_length", value, "no more comes back than was asked for"));
    }
    if !flight.is_iso {
        // Peers echo 0 or 0xffffffff, or leave garbage: the field has no meaning here.
        return Ok(0);
    }
    if reply.number_of_packets as usize != flight.packets.len() {
        let value = u64::from(reply.number_of_packets);
        return Err(ProtocolViolation::new("number_of_packets", value, "as many packets come back as were sent"));
    }
    Ok(flight.packets.len())
}

/// Checks the packets against those that were sent: offsets unchanged, sizes in range, sum as announced.
fn check_reply_packets(
    flight: &UsbipClientUrb,
    reply: &SubmitReply,
    bytes: &[u8],
) -> Result<Vec<IsoPacket>, ProtocolViolation> {
    let mut packets = Vec::with_capacity(flight.packets.len() * usize::from(flight.is_iso));
    let mut sum = 0u64;
    for (b, sent) in bytes.chunks_exact(ISO_PACKET_BYTES).zip(&flight.packets) {
        let packet = message::decode_iso_packet(b);
        if (packet.offset, packet.length) != (sent.offset, sent.length) {
            return Err(ProtocolViolation::new(
                "iso packet offset",
                u64::from(packet.offset),
                "places come back unchanged",
            ));
        }
        if packet.actual > packet.length {
            let value = u64::from(packet.actual);
            return Err(ProtocolViolation::new("iso packet actual_length", value, "a packet fits its place"));
        }
        sum += u64::from(packet.actual);
        packets.push(packet);
    }
    if flight.is_iso && sum != u64::from(reply.actual) {
        return Err(ProtocolViolation::new("actual_length", u64::from(reply.actual), "it is the sum of the packets'"));
    }
    Ok(packets)
}

fn finish(urb: UrbInFlight, reply: &SubmitReply, iso: Vec<IsoPacket>, payload: Payload) -> UrbCompletion {
    let mut done = urb.done(reply.status, reply.actual, payload);
    done.start_frame = reply.start_frame;
    // Counted here, since the peer's count is not trusted.
    done.error_count = iso.iter().filter(|packet| packet.status != UrbStatus::Ok).count() as u32;
    done.iso = iso;
    done
}
