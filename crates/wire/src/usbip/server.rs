//! The exporter's end of a USB/IP connection: handshake, then URBs, with the unlink race kept right.
//!
//! | what happens | what the client sees |
//! |---|---|
//! | the URB ends, no unlink came | RET_SUBMIT |
//! | an unlink comes while it is in flight, the device withdraws it | RET_UNLINK −104, never a RET_SUBMIT |
//! | an unlink comes, the device finishes it first | RET_SUBMIT, then RET_UNLINK 0 |
//! | the URB ended, then an unlink comes | RET_SUBMIT (sent before), RET_UNLINK 0 |
//! | an unlink comes before its submit, which then comes | RET_UNLINK −104 then, never a RET_SUBMIT |
//! | an unlink for something unknown, and later submits come | RET_UNLINK 0 with the first of them |
//! | an unlink for something unknown below them, whose submit comes after all | RET_UNLINK 0 at once, never a RET_SUBMIT |
//! | a second unlink of the same URB | both are answered alike |
//!
//! **Why an unlink can come first.** Linux's `vhci_tx` sends all submits, then all unlinks, then looks
//! again: a URB that is queued and unlinked between the two is unlinked on the wire before it is
//! submitted. Answered with 0 at once, as an exporter does for what it does not know, the client
//! completes the URB; the submit's own answer then has no request and the client cuts the connection
//! (`testusb` tests 11 and 12 hit this now and then). Numbers ascend on one connection, so an unlink of
//! a number above all submitted ones waits for its submit. A client whose numbers do not ascend is
//! served correctly, too: a submit is not begun if its unlink was answered among the last [`ANSWERED_MAX`].
//!
//! Every unlink is answered: the client's kernel may be waiting for it uninterruptibly.
//!
//! A request above the limit of a URB is answered with EINVAL at its header, and its data is dropped as it arrives:
//! Windows' drivers know no such limit, and their other requests go on.

use std::collections::VecDeque;

use farbus_model::{
    BufferPool, EpAddr, IsoPacket, Payload, SessionLimits, TransferDirection, TransferType, Urb, UrbCompletion, UrbId,
    UrbStatus,
};

use super::message::{
    self, BUS_ID_BYTES, DeviceRecord, HEADER_BYTES, ISO_PACKET_BYTES, OP_HEADER_BYTES, OpHeader, OpStatus,
    ProtocolViolation, RawHeader, SubmitCommand, SubmitReply, command, op,
};
use crate::buffer::{ReceiveBuffer, SendBuffer, SendSlices};
use crate::flights::InFlightQueue;
use crate::snapshot::{FieldReader, SnapshotWriter};

/// A request of the client.
#[derive(Debug)]
pub enum UsbipRequest {
    /// List the devices. Answer with [`UsbipServerConn::reply_device_list`].
    DeviceList,
    /// Import this device. Answer with [`UsbipServerConn::reply_import`].
    Import(String),
    /// Submit this URB. Answer with [`UsbipServerConn::complete`], once.
    Submit(Urb),
    /// Cancel that URB; it is still completed once, as cancelled or not.
    Unlink(UrbId),
}

/// A connection, the server's end.
#[derive(Debug)]
pub struct UsbipServerConn {
    incoming: ReceiveBuffer,
    outgoing: SendBuffer,
    phase: UsbipServerPhase,
    flights: InFlightQueue<UsbipServerUrb>,
    out_bytes_held: usize,
    /// Unlinks whose answer waits for the device, or for their submit.
    unlinks_owed: usize,
    /// The highest number of a submit.
    highest: Option<u32>,
    /// Unlinks that came before their submit: (the submit's number, the unlink's).
    early: Vec<(u32, u32)>,
    /// The last numbers below the highest that were unlinked while not in flight: nearly all had been answered before.
    answered: VecDeque<u32>,
    /// Bytes still to come of a request that was refused for its length.
    dropping: u32,
    /// The client has sent a request with 0xffffffff packets.
    marks_no_packets: bool,
}

/// Unknown unlinks remembered, in case their submits are still under way. In a race a client has a few of them, never
/// many.
const ANSWERED_MAX: usize = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum UsbipServerPhase {
    /// Waiting for an operation.
    Operation,
    /// An operation waits for its answer.
    Answering,
    /// URBs of this device id.
    Urbs { devid: u32 },
    /// Nothing more is read; waiting bytes are still sent.
    Closing,
}

/// An unanswered URB.
#[derive(Debug)]
struct UsbipServerUrb {
    endpoint: EpAddr,
    direction: TransferDirection,
    length: u32,
    /// The client's value, echoed; without meaning on an endpoint without packets.
    number_of_packets: u32,
    /// Bytes of its packets' descriptors.
    iso_bytes: usize,
    unlinks: Vec<u32>,
}

/// The outcome of reading a submit.
enum SubmitReadOutcome {
    /// It is incomplete.
    Incomplete,
    /// Its unlink came first, or it was refused for its length.
    Over,
    /// It goes to the device.
    Urb(Urb),
}

/// Records a number that the client takes for done.
fn remember(answered: &mut VecDeque<u32>, victim: u32) {
    if answered.len() == ANSWERED_MAX {
        answered.pop_front();
    }
    answered.push_back(victim);
}

fn number_in_flight(seqnum: u32) -> ProtocolViolation {
    ProtocolViolation::new("seqnum", u64::from(seqnum), "a number in flight is not used again")
}

/// Whether a number comes after the highest so far; they wrap.
fn is_above(number: u32, highest: Option<u32>) -> bool {
    highest.is_none_or(|highest| number.wrapping_sub(highest).cast_signed() > 0)
}

impl UsbipServerUrb {
    fn out_bytes(&self) -> usize {
        self.iso_bytes + if self.direction == TransferDirection::Out { self.length as usize } else { 0 }
    }
}

impl UsbipServerConn {
    /// A fresh connection, before the handshake.
    pub fn new(limits: &SessionLimits) -> Self {
        Self {
            incoming: ReceiveBuffer::new(limits.receive_bytes).copying(limits.copied_bytes_max),
            outgoing: SendBuffer::default(),
            phase: UsbipServerPhase::Operation,
            flights: InFlightQueue::new(),
            out_bytes_held: 0,
            unlinks_owed: 0,
            highest: None,
            early: Vec::new(),
            answered: VecDeque::new(),
            dropping: 0,
            marks_no_packets: false,
        }
    }

    /// Makes a connection past the handshake, as a kernel expects for an attached device.
    pub fn imported(limits: &SessionLimits, devid: u32) -> Self {
        Self { phase: UsbipServerPhase::Urbs { devid }, ..Self::new(limits) }
    }

    /// The space for received bytes; never empty.
    pub fn receive_space(&mut self) -> &mut [u8] {
        self.incoming.space(HEADER_BYTES)
    }

    /// `count` bytes arrived.
    pub fn handle_received(&mut self, count: usize) {
        self.incoming.received(count);
    }

    /// The client's next request, if its bytes are all there. `kind_of` returns an endpoint's transfer type, which the
    /// wire does not carry.
    ///
    /// # Errors
    /// [`ProtocolViolation`]: the bytes are no message of this protocol, and the connection has to end.
    pub fn poll_request(
        &mut self,
        kind_of: impl Fn(EpAddr) -> Option<TransferType>,
    ) -> Result<Option<UsbipRequest>, ProtocolViolation> {
        match self.phase {
            UsbipServerPhase::Operation => self.poll_operation(),
            UsbipServerPhase::Urbs { devid } => self.poll_urb(devid, kind_of),
            UsbipServerPhase::Answering => Ok(None),
            UsbipServerPhase::Closing => {
                // Dropped without parsing, so that there is always space to receive.
                self.incoming.consume(self.incoming.bytes().len());
                Ok(None)
            }
        }
    }

    fn poll_operation(&mut self) -> Result<Option<UsbipRequest>, ProtocolViolation> {
        let Some(header) = self.incoming.bytes().first_chunk::<OP_HEADER_BYTES>() else { return Ok(None) };
        let header = OpHeader::from_bytes(*header);
        if header.version != message::VERSION {
            self.refuse(header.code & 0x7fff, OpStatus::Error);
            return Err(ProtocolViolation::new("version", u64::from(header.version), "we speak 0x0111"));
        }
        match header.code {
            op::REQ_DEVLIST => {
                self.incoming.consume(OP_HEADER_BYTES);
                self.phase = UsbipServerPhase::Answering;
                Ok(Some(UsbipRequest::DeviceList))
            }
            op::REQ_IMPORT => {
                let rest = &self.incoming.bytes()[OP_HEADER_BYTES..];
                let Some(bus_id) = rest.first_chunk::<BUS_ID_BYTES>() else { return Ok(None) };
                let bus_id = message::decode_bus_id(bus_id)?;
                self.incoming.consume(OP_HEADER_BYTES + BUS_ID_BYTES);
                self.phase = UsbipServerPhase::Answering;
                Ok(Some(UsbipRequest::Import(bus_id)))
            }
            code => {
                self.refuse(code & 0x7fff, OpStatus::Error);
                Err(ProtocolViolation::new("operation", u64::from(code), "it is 0x8005 (list) or 0x8003 (import)"))
            }
        }
    }

    /// Refuses an operation: a refusal has only the eight bytes of the header.
    fn refuse(&mut self, code: u16, status: OpStatus) {
        self.outgoing.put(&OpHeader::new(code, status).to_bytes());
        self.phase = UsbipServerPhase::Closing;
    }

    fn poll_urb(
        &mut self,
        devid: u32,
        kind_of: impl Fn(EpAddr) -> Option<TransferType>,
    ) -> Result<Option<UsbipRequest>, ProtocolViolation> {
        loop {
            if self.dropping > 0 {
                let dropped = self.incoming.bytes().len().min(self.dropping as usize);
                self.incoming.consume(dropped);
                self.dropping -= dropped as u32;
            }
            let Some(bytes) = self.incoming.bytes().first_chunk::<HEADER_BYTES>() else { return Ok(None) };
            let raw = RawHeader::from_bytes(bytes);
            if raw.devid != devid {
                return Err(ProtocolViolation::new("devid", u64::from(raw.devid), "it is that of the imported device"));
            }
            match raw.command {
                command::CMD_SUBMIT => match self.poll_submit(&raw, &kind_of)? {
                    SubmitReadOutcome::Incomplete => return Ok(None),
                    SubmitReadOutcome::Over => {}
                    SubmitReadOutcome::Urb(urb) => return Ok(Some(UsbipRequest::Submit(urb))),
                },
                command::CMD_UNLINK => {
                    self.incoming.consume(HEADER_BYTES);
                    if let Some(request) = self.unlink(raw.seqnum, raw.body[0]) {
                        return Ok(Some(request));
                    }
                }
                other => {
                    return Err(ProtocolViolation::new(
                        "command",
                        u64::from(other),
                        "a client sends 1 (submit) or 2 (unlink)",
                    ));
                }
            }
        }
    }

    fn poll_submit(
        &mut self,
        raw: &RawHeader,
        kind_of: &impl Fn(EpAddr) -> Option<TransferType>,
    ) -> Result<SubmitReadOutcome, ProtocolViolation> {
        let submit = SubmitCommand::check_address(raw)?;
        self.marks_no_packets |= submit.number_of_packets == u32::MAX;
        let is_iso = match kind_of(submit.endpoint) {
            Some(kind) => kind == TransferType::Isochronous,
            None if submit.endpoint.is_control() || submit.says_no_packets() => false,
            // Without the endpoint's type, the end of this message is unknown.
            None => {
                let value = u64::from(submit.endpoint.as_byte());
                return Err(ProtocolViolation::new("ep", value, "packets are sent to an endpoint that there is"));
            }
        };
        if submit.is_too_long() {
            // The answer to an isochronous request has its packets, which come behind the data.
            let submit = if is_iso { SubmitCommand::check(raw)? } else { submit };
            return self.refuse_too_long(&submit);
        }
        let packets = if is_iso { submit.iso_packets()? } else { 0 };
        let is_out = submit.direction == TransferDirection::Out;
        let out_bytes = if is_out { submit.length as usize } else { 0 };
        let total = HEADER_BYTES + out_bytes + packets * ISO_PACKET_BYTES;
        if self.incoming.bytes().len() < total {
            self.incoming.want(total);
            return Ok(SubmitReadOutcome::Incomplete);
        }
        let payload = self.incoming.window(HEADER_BYTES..HEADER_BYTES + out_bytes);
        let descriptors = &self.incoming.bytes()[HEADER_BYTES + out_bytes..total];
        let iso = message::decode_iso_packets(descriptors, submit.length)?;
        self.incoming.consume(total);
        if self.is_withdrawn_early(submit.seqnum) {
            return Ok(SubmitReadOutcome::Over);
        }
        self.begin_flight(
            submit.seqnum,
            UsbipServerUrb {
                endpoint: submit.endpoint,
                direction: submit.direction,
                length: submit.length,
                number_of_packets: submit.number_of_packets,
                iso_bytes: packets * size_of::<IsoPacket>(),
                unlinks: Vec::new(),
            },
        )?;
        Ok(SubmitReadOutcome::Urb(Urb {
            id: UrbId(u64::from(submit.seqnum)),
            endpoint: submit.endpoint,
            direction: submit.direction,
            length: submit.length,
            payload,
            setup: if submit.endpoint.is_control() { submit.setup } else { Default::default() },
            iso,
            start_frame: submit.start_frame,
            interval: submit.interval,
            stream: 0,
            flags: submit.flags,
        }))
    }

    /// Answers a request whose buffer is too long, and drops the data behind its header.
    fn refuse_too_long(&mut self, submit: &SubmitCommand) -> Result<SubmitReadOutcome, ProtocolViolation> {
        self.incoming.consume(HEADER_BYTES);
        self.dropping = if submit.direction == TransferDirection::Out { submit.length } else { 0 };
        if self.flights.contains(submit.seqnum) {
            return Err(number_in_flight(submit.seqnum));
        }
        if !self.is_withdrawn_early(submit.seqnum) {
            let reply = SubmitReply {
                seqnum: submit.seqnum,
                status: UrbStatus::Invalid,
                actual: 0,
                start_frame: submit.start_frame,
                number_of_packets: submit.number_of_packets,
                error_count: 0,
            };
            self.outgoing.put(&reply.to_bytes());
        }
        Ok(SubmitReadOutcome::Over)
    }

    /// Answers the unlinks that came before this submit: those of it, and those of lower numbers, whose submits should
    /// have come by now. Returns whether this submit was cancelled by one of them, or by one answered before.
    fn is_withdrawn_early(&mut self, seqnum: u32) -> bool {
        if is_above(seqnum, self.highest) {
            self.highest = Some(seqnum);
        } else if let Some(at) = self.answered.iter().position(|&answered| answered == seqnum) {
            self.answered.remove(at);
            return true;
        }
        if self.early.is_empty() {
            return false;
        }
        let mut is_withdrawn = false;
        let (outgoing, unlinks_owed, answered) = (&mut self.outgoing, &mut self.unlinks_owed, &mut self.answered);
        self.early.retain(|&(victim, unlink)| {
            if is_above(victim, Some(seqnum)) {
                return true;
            }
            let status = if victim == seqnum { UrbStatus::Cancelled } else { UrbStatus::Ok };
            is_withdrawn |= victim == seqnum;
            if victim != seqnum {
                remember(answered, victim);
            }
            outgoing.put(&message::encode_unlink_reply(unlink, status));
            *unlinks_owed -= 1;
            false
        });
        is_withdrawn
    }

    fn begin_flight(&mut self, seqnum: u32, flight: UsbipServerUrb) -> Result<(), ProtocolViolation> {
        let out_bytes = flight.out_bytes();
        let is_new = self.flights.insert(seqnum, flight).is_ok();
        if !is_new {
            return Err(number_in_flight(seqnum));
        }
        self.out_bytes_held += out_bytes;
        Ok(())
    }

    fn unlink(&mut self, seqnum: u32, victim: u32) -> Option<UsbipRequest> {
        match self.flights.get_mut(victim) {
            Some(flight) => {
                flight.unlinks.push(seqnum);
                self.unlinks_owed += 1;
                (flight.unlinks.len() == 1).then_some(UsbipRequest::Unlink(UrbId(u64::from(victim))))
            }
            None if is_above(victim, self.highest) => {
                self.early.push((victim, seqnum));
                self.unlinks_owed += 1;
                None
            }
            None => {
                remember(&mut self.answered, victim);
                self.outgoing.put(&message::encode_unlink_reply(seqnum, UrbStatus::Ok));
                None
            }
        }
    }

    /// Answers [`UsbipRequest::DeviceList`]; the connection then ends, as Linux's does.
    pub fn reply_device_list(&mut self, records: &[DeviceRecord]) {
        assert_eq!(self.phase, UsbipServerPhase::Answering, "a list was asked for");
        let mut bytes = OpHeader::new(op::REP_DEVLIST, OpStatus::Ok).to_bytes().to_vec();
        bytes.extend((records.len() as u32).to_be_bytes());
        for record in records {
            record.encode(true, &mut bytes);
        }
        self.outgoing.put(&bytes);
        self.phase = UsbipServerPhase::Closing;
    }

    /// Answers [`UsbipRequest::Import`]: with the device, after which URBs follow, or with a refusal.
    pub fn reply_import(&mut self, answer: Result<&DeviceRecord, OpStatus>) {
        assert_eq!(self.phase, UsbipServerPhase::Answering, "an import was asked for");
        match answer {
            Ok(record) => {
                let mut bytes = OpHeader::new(op::REP_IMPORT, OpStatus::Ok).to_bytes().to_vec();
                record.encode(false, &mut bytes);
                self.outgoing.put(&bytes);
                self.phase = UsbipServerPhase::Urbs { devid: record.device_id() };
            }
            Err(status) => self.refuse(op::REP_IMPORT, status),
        }
    }

    /// Answers [`UsbipRequest::Submit`].
    ///
    /// # Panics
    /// If that URB is not in flight: a second answer makes a Linux client cut the connection.
    pub fn complete(&mut self, done: UrbCompletion, pool: &mut BufferPool) {
        let seqnum = u32::try_from(done.id.0).expect("the id is the sequence number");
        let flight = self.flights.remove(seqnum).expect("a URB is answered once");
        self.out_bytes_held -= flight.out_bytes();
        self.unlinks_owed -= flight.unlinks.len();
        let withdrawn = !flight.unlinks.is_empty() && done.status == UrbStatus::Cancelled;
        if withdrawn {
            pool.recycle(done.payload);
        } else {
            self.put_reply(seqnum, &flight, done, pool);
        }
        let status = if withdrawn { UrbStatus::Cancelled } else { UrbStatus::Ok };
        for unlink in flight.unlinks {
            self.outgoing.put(&message::encode_unlink_reply(unlink, status));
        }
    }

    fn put_reply(&mut self, seqnum: u32, flight: &UsbipServerUrb, done: UrbCompletion, pool: &mut BufferPool) {
        let reply = SubmitReply {
            seqnum,
            status: done.status,
            actual: done.actual,
            start_frame: done.start_frame,
            number_of_packets: flight.number_of_packets,
            error_count: done.error_count,
        };
        self.outgoing.put(&reply.to_bytes());
        match done.payload {
            Payload::Empty => {}
            payload => self.outgoing.put_payload(payload, pool),
        }
        for packet in &done.iso {
            self.outgoing.put(&message::encode_iso_packet(packet));
        }
    }

    /// Whether the client has marked a request as one without packets (0xffffffff), as usbip-win2 does with each.
    /// Linux's vhci sends 0.
    pub fn marks_no_packets(&self) -> bool {
        self.marks_no_packets
    }

    /// How many URBs were received and have no reply yet.
    pub fn in_flight(&self) -> usize {
        self.flights.len()
    }

    /// The ids of the unanswered URBs.
    pub fn ids_in_flight(&self) -> impl Iterator<Item = UrbId> {
        self.flights.iter().map(|(seqnum, _)| UrbId(u64::from(seqnum)))
    }

    /// Whether `id` is the only unanswered request on the control endpoint.
    pub fn is_alone_on_control(&self, id: UrbId) -> bool {
        let mut control = self.flights.iter().filter(|(_, flight)| flight.endpoint.is_control());
        control.all(|(seqnum, _)| u64::from(seqnum) == id.0)
    }

    /// Whether `id` is unanswered.
    pub fn is_in_flight(&self, id: UrbId) -> bool {
        u32::try_from(id.0).is_ok_and(|seqnum| self.flights.contains(seqnum))
    }

    /// OUT bytes of the unanswered URBs, and bytes of their packets' descriptors.
    pub fn out_bytes_held(&self) -> usize {
        self.out_bytes_held
    }

    /// Bytes waiting to be sent.
    pub fn backlog_bytes(&self) -> usize {
        self.outgoing.len()
    }

    /// Header bytes that wait to be sent, or that are due for unlinks waiting for the device: these grow when a peer
    /// sends and never reads.
    pub fn backlog_header_bytes(&self) -> usize {
        self.outgoing.header_bytes() + self.unlinks_owed * HEADER_BYTES
    }

    /// The runs of memory to send next, in order; empty when there is nothing.
    pub fn poll_transmit(&self) -> SendSlices<'_> {
        self.outgoing.runs()
    }

    /// As [`UsbipServerConn::poll_transmit`], into an empty list: two kilobytes are not moved for each small answer.
    pub fn poll_transmit_into<'a>(&'a self, runs: &mut SendSlices<'a>) {
        self.outgoing.runs_into(runs);
    }

    /// `count` bytes of [`UsbipServerConn::poll_transmit`] were sent.
    pub fn handle_transmitted(&mut self, count: usize, pool: &mut BufferPool) {
        self.outgoing.sent(count, pool);
    }

    /// Whether URBs may come: the handshake ended with an import.
    pub fn is_imported(&self) -> bool {
        matches!(self.phase, UsbipServerPhase::Urbs { .. })
    }

    /// Whether the connection is over: everything was answered and sent.
    pub fn is_finished(&self) -> bool {
        self.phase == UsbipServerPhase::Closing && self.outgoing.len() == 0
    }
}

impl UsbipServerConn {
    /// Saves what a connection in another process needs to continue over the same socket: bytes of the client not
    /// parsed yet, bytes not sent yet, and unanswered requests.
    ///
    /// # Panics
    /// Before the handshake's end: such a connection is not saved.
    pub fn save(&self, to: &mut SnapshotWriter) {
        let UsbipServerPhase::Urbs { devid } = self.phase else {
            panic!("a connection is passed on once it has a device")
        };
        to.u32(devid);
        to.bytes(self.incoming.bytes());
        self.outgoing.save(to);
        to.count(self.flights.len());
        for (seqnum, flight) in self.flights.iter() {
            to.u32(seqnum);
            to.u8(flight.endpoint.as_byte());
            to.flag(flight.direction == TransferDirection::In);
            to.u32(flight.length);
            to.u32(flight.number_of_packets);
            to.count(flight.unlinks.len());
            flight.unlinks.iter().for_each(|&unlink| to.u32(unlink));
        }
        to.flag(self.highest.is_some());
        to.u32(self.highest.unwrap_or_default());
        to.count(self.early.len());
        for &(victim, unlink) in &self.early {
            to.u32(victim);
            to.u32(unlink);
        }
        to.count(self.answered.len());
        self.answered.iter().for_each(|&answered| to.u32(answered));
        to.u32(self.dropping);
        to.flag(self.marks_no_packets);
    }

    /// Makes a connection that continues from a saved one.
    ///
    /// # Errors
    /// [`ProtocolViolation`]: no connection can have been in this state.
    pub fn restore(limits: &SessionLimits, from: &mut FieldReader<'_>) -> Result<Self, ProtocolViolation> {
        let mut conn = Self::imported(limits, from.u32("devid")?);
        conn.incoming.refill(from.bytes("bytes received")?);
        conn.outgoing.put(from.bytes("bytes to send")?);
        for _ in 0..from.count("requests", 18)? {
            conn.put_back(from)?;
        }
        let (has_highest, highest) = (from.flag("highest number")?, from.u32("highest number")?);
        conn.highest = has_highest.then_some(highest);
        for _ in 0..from.count("early unlinks", 8)? {
            conn.early.push((from.u32("early unlink")?, from.u32("early unlink")?));
            conn.unlinks_owed += 1;
        }
        let answered = from.count("answered unlinks", 4)?;
        if answered > ANSWERED_MAX {
            return Err(ProtocolViolation::new("answered unlinks", answered as u64, "64 are remembered"));
        }
        for _ in 0..answered {
            conn.answered.push_back(from.u32("answered unlink")?);
        }
        if from.version() >= 13 {
            (conn.dropping, conn.marks_no_packets) = (from.u32("bytes to drop")?, from.flag("marks of no packets")?);
        }
        Ok(conn)
    }

    fn put_back(&mut self, from: &mut FieldReader<'_>) -> Result<(), ProtocolViolation> {
        let seqnum = from.u32("request")?;
        let endpoint = EpAddr::from_byte(from.u8("endpoint")? & 0x8f);
        let direction = if from.flag("direction")? { TransferDirection::In } else { TransferDirection::Out };
        let (length, number_of_packets) = (from.u32("length")?, from.u32("number of packets")?);
        let mut unlinks = Vec::new();
        for _ in 0..from.count("unlinks", 4)? {
            unlinks.push(from.u32("unlink")?);
        }
        self.unlinks_owed += unlinks.len();
        let iso_bytes = 0;
        self.begin_flight(seqnum, UsbipServerUrb { endpoint, direction, length, number_of_packets, iso_bytes, unlinks })
    }

    /// The unanswered URBs: id, direction, and bytes.
    pub fn flights(&self) -> impl Iterator<Item = (UrbId, TransferDirection, u32)> {
        self.flights.iter().map(|(seqnum, flight)| (UrbId(seqnum.into()), flight.direction, flight.length))
    }
}
