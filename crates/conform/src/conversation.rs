//! The kit's end of one connection to an exporter: it sends what a check wants, right or wrong, and counts answers.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use farbus_model::{EpAddr, IsoPacket, SetupPacket, TransferDirection, UrbFlags, UrbStatus};
use farbus_wire::usbip::message::{
    self, BUS_ID_BYTES, DEVICE_RECORD_BYTES, DEVICES_MAX, HEADER_BYTES, ISO_PACKET_BYTES, OP_HEADER_BYTES, OpHeader,
    RawHeader, SubmitCommand, SubmitReply, command, op,
};
use farbus_wire::usbip::{DeviceRecord, OpStatus, status};

use crate::check::CheckStop;
use crate::transport::{PeerLink, ReceiveOutcome};

/// Interfaces of one device: `bNumInterfaces` has eight bits.
const INTERFACE_BYTES: usize = 4;
/// Answers that a check keeps; an exporter that sends more is stopped.
const ANSWERS_MAX: usize = 1 << 16;

/// Why an exchange ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ExchangeError {
    /// The exporter ended the connection.
    Closed,
    /// Nothing came in time, or not all of a message.
    Silence { have: usize, want: usize },
    /// The exporter sent what breaks a rule.
    Broken(String),
}

impl fmt::Display for ExchangeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ExchangeError::Closed => f.write_str("the exporter closed the connection"),
            ExchangeError::Silence { have: 0, .. } => f.write_str("no answer came in time"),
            ExchangeError::Silence { have, want } => write!(f, "{have} bytes of an answer of {want} came in time"),
            ExchangeError::Broken(what) => f.write_str(what),
        }
    }
}

impl From<ExchangeError> for CheckStop {
    fn from(trouble: ExchangeError) -> Self {
        CheckStop::Fail(trouble.to_string())
    }
}

/// A request to submit. The transfer type is not on the wire: the asker knows it from the descriptors.
#[derive(Clone, Debug)]
pub(crate) struct SubmitRequest {
    pub endpoint: EpAddr,
    pub direction: TransferDirection,
    pub length: u32,
    pub setup: SetupPacket,
    pub data: Vec<u8>,
    pub packets: Vec<IsoPacket>,
    pub is_iso: bool,
    pub flags: UrbFlags,
    /// In place of the number of packets, for endpoints that have none.
    pub number_of_packets: u32,
    pub interval: u32,
}

impl SubmitRequest {
    fn plain(endpoint: EpAddr, direction: TransferDirection, length: u32) -> Self {
        Self {
            endpoint,
            direction,
            length,
            setup: SetupPacket::default(),
            data: Vec::new(),
            packets: Vec::new(),
            is_iso: false,
            flags: UrbFlags::default(),
            number_of_packets: 0,
            interval: 0,
        }
    }

    /// A control request with this OUT data.
    pub fn control(setup: SetupPacket, data: &[u8]) -> Self {
        let length = u32::from(setup.length);
        Self { setup, data: data.to_vec(), ..Self::plain(EpAddr::CONTROL, setup.direction(), length) }
    }

    /// A bulk or interrupt IN transfer.
    pub fn data_in(endpoint: EpAddr, length: u32) -> Self {
        Self::plain(endpoint, TransferDirection::In, length)
    }

    /// A bulk or interrupt OUT transfer.
    pub fn data_out(endpoint: EpAddr, data: &[u8]) -> Self {
        let length = u32::try_from(data.len()).unwrap_or(u32::MAX);
        Self { data: data.to_vec(), ..Self::plain(endpoint, TransferDirection::Out, length) }
    }

    /// An isochronous transfer of these packets, as soon as possible, in a buffer of `length` bytes.
    pub fn isochronous(endpoint: EpAddr, packets: Vec<IsoPacket>, length: u32, interval: u32) -> Self {
        let direction = endpoint.direction();
        let data = if direction == TransferDirection::Out { vec![0; length as usize] } else { Vec::new() };
        let flags = UrbFlags { iso_asap: true, ..UrbFlags::default() };
        Self { packets, is_iso: true, data, flags, interval, ..Self::plain(endpoint, direction, length) }
    }
}

/// RET_SUBMIT as it came.
#[derive(Clone, Debug)]
pub(crate) struct SubmitAnswer {
    pub raw: RawHeader,
    /// The status, as the number on the wire.
    pub errno: i32,
    pub actual: u32,
    pub data: Vec<u8>,
    pub packets: Vec<IsoPacket>,
    pub number_of_packets: u32,
    pub error_count: u32,
}

impl SubmitAnswer {
    /// What a person wants to know of it.
    pub fn shown(&self) -> String {
        format!("status {}, {} bytes", self.errno, self.actual)
    }
}

/// An answer, in the order in which they came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AnswerArrival {
    /// RET_SUBMIT of this number.
    Submit(u32),
    /// RET_UNLINK of this number (the unlink's own), with this status.
    Unlink(u32, i32),
}

#[derive(Debug)]
struct SubmitInFlight {
    direction: TransferDirection,
    length: u32,
    packets: Vec<IsoPacket>,
    is_iso: bool,
}

/// One connection to an exporter, with what it owes: every answer is counted against its request.
pub(crate) struct UsbipConversation {
    link: Box<dyn PeerLink>,
    received: Vec<u8>,
    devid: u32,
    bus_id: String,
    next: u32,
    /// Every submit, answered or not: a second answer is counted, too.
    flights: BTreeMap<u32, SubmitInFlight>,
    /// Every unlink: its number, and its victim's.
    unlinks: BTreeMap<u32, u32>,
    /// Unlinks of numbers that were never submitted.
    strays: BTreeSet<u32>,
    answers: BTreeMap<u32, SubmitAnswer>,
    pub came: Vec<AnswerArrival>,
    patience: Duration,
}

impl UsbipConversation {
    pub fn new(link: Box<dyn PeerLink>, patience: Duration) -> Self {
        Self {
            link,
            received: Vec::new(),
            devid: 0,
            bus_id: String::new(),
            next: 1,
            flights: BTreeMap::new(),
            unlinks: BTreeMap::new(),
            strays: BTreeSet::new(),
            answers: BTreeMap::new(),
            came: Vec::new(),
            patience,
        }
    }

    /// Sends bytes as they are.
    pub fn send(&mut self, bytes: &[u8]) -> Result<(), ExchangeError> {
        match self.link.send(bytes, self.patience) {
            Ok(count) if count == bytes.len() => Ok(()),
            Ok(count) => {
                Err(ExchangeError::Broken(format!("the exporter took {count} of {} bytes in time", bytes.len())))
            }
            Err(_) => Err(ExchangeError::Closed),
        }
    }

    /// Sends what the exporter takes within the time; `None` if it ended the connection.
    pub fn send_some(&mut self, bytes: &[u8], within: Duration) -> Option<usize> {
        self.link.send(bytes, within).ok()
    }

    /// Waits until so many bytes are there.
    fn fill(&mut self, want: usize, within: Duration) -> Result<(), ExchangeError> {
        let mut chunk = [0; 16 << 10];
        while self.received.len() < want {
            match self.link.receive(&mut chunk, within) {
                ReceiveOutcome::Bytes(count) => self.received.extend_from_slice(&chunk[..count]),
                ReceiveOutcome::Closed => return Err(ExchangeError::Closed),
                ReceiveOutcome::Silence => return Err(ExchangeError::Silence { have: self.received.len(), want }),
            }
        }
        Ok(())
    }

    fn take<const N: usize>(&mut self) -> Result<[u8; N], ExchangeError> {
        self.fill(N, self.patience)?;
        let mut bytes = [0; N];
        bytes.copy_from_slice(&self.received[..N]);
        self.received.drain(..N);
        Ok(bytes)
    }

    /// What comes within the time though nothing is expected: `Ok` if the exporter is silent or ends the connection.
    pub fn expect_nothing(&mut self, within: Duration) -> Result<(), ExchangeError> {
        match self.fill(1, within) {
            Err(ExchangeError::Closed | ExchangeError::Silence { have: 0, .. }) => Ok(()),
            Err(other) => Err(other),
            Ok(()) => Err(ExchangeError::Broken(format!("{} bytes more came", self.received.len()))),
        }
    }

    /// Waits for the end of the connection, and ignores what comes before.
    pub fn is_closed_within(&mut self, within: Duration) -> bool {
        let mut chunk = [0; 16 << 10];
        for _ in 0..ANSWERS_MAX {
            match self.link.receive(&mut chunk, within) {
                ReceiveOutcome::Bytes(_) => {}
                ReceiveOutcome::Closed => return true,
                ReceiveOutcome::Silence => return false,
            }
        }
        false
    }

    /// The header of an operation's answer.
    pub fn op_header(&mut self) -> Result<OpHeader, ExchangeError> {
        Ok(OpHeader::from_bytes(self.take::<OP_HEADER_BYTES>()?))
    }

    /// Asks for the list of devices and reads it, strictly.
    pub fn list(&mut self) -> Result<Vec<DeviceRecord>, ExchangeError> {
        self.send(&OpHeader::new(op::REQ_DEVLIST, OpStatus::Ok).to_bytes())?;
        self.read_list()
    }

    /// Reads a list's answer.
    pub fn read_list(&mut self) -> Result<Vec<DeviceRecord>, ExchangeError> {
        check_header(self.op_header()?, op::REP_DEVLIST)?;
        let count = u32::from_be_bytes(self.take::<4>()?);
        if count > DEVICES_MAX {
            return Err(ExchangeError::Broken(format!("the list announces {count} devices")));
        }
        let mut records = Vec::new();
        for _ in 0..count {
            let mut record = self.record()?;
            for _ in 0..record.interface_count {
                let [class, subclass, protocol, _] = self.take::<INTERFACE_BYTES>()?;
                record.interfaces.push([class, subclass, protocol]);
            }
            records.push(record);
        }
        Ok(records)
    }

    fn record(&mut self) -> Result<DeviceRecord, ExchangeError> {
        let bytes = self.take::<DEVICE_RECORD_BYTES>()?;
        DeviceRecord::decode(&bytes).map_err(|reject| ExchangeError::Broken(reject.to_string()))
    }

    /// Asks for a device. Returns it, or the status of the refusal as it is on the wire.
    pub fn import(&mut self, bus_id: &str) -> Result<Result<DeviceRecord, u32>, ExchangeError> {
        self.send(&import_request(bus_id))?;
        self.read_import()
    }

    /// Reads an import's answer.
    pub fn read_import(&mut self) -> Result<Result<DeviceRecord, u32>, ExchangeError> {
        let header = self.op_header()?;
        if header.status != 0 && header.code == op::REP_IMPORT {
            return Ok(Err(header.status));
        }
        check_header(header, op::REP_IMPORT)?;
        let record = self.record()?;
        self.devid = record.device_id();
        self.bus_id.clone_from(&record.bus_id);
        Ok(Ok(record))
    }

    /// A number that was not used yet.
    pub fn take_number(&mut self) -> u32 {
        let number = self.next;
        self.next += 1;
        number
    }

    /// The bus id of the record that came back.
    pub fn bus_id(&self) -> &str {
        &self.bus_id
    }

    /// The bytes of a request, and notes it as one that is to be answered.
    pub fn note(&mut self, number: u32, ask: &SubmitRequest) -> Vec<u8> {
        let submit = SubmitCommand {
            seqnum: number,
            endpoint: ask.endpoint,
            direction: ask.direction,
            length: ask.length,
            flags: ask.flags,
            start_frame: 0,
            number_of_packets: if ask.is_iso { ask.packets.len() as u32 } else { ask.number_of_packets },
            interval: ask.interval,
            setup: ask.setup,
        };
        let mut bytes = submit.to_bytes(self.devid).to_vec();
        bytes.extend_from_slice(&ask.data);
        ask.packets.iter().for_each(|packet| bytes.extend(message::encode_iso_packet(packet)));
        let (direction, length, packets) = (ask.direction, ask.length, ask.packets.clone());
        self.flights.insert(number, SubmitInFlight { direction, length, packets, is_iso: ask.is_iso });
        bytes
    }

    /// Submits a request; returns its number.
    pub fn submit(&mut self, ask: &SubmitRequest) -> Result<u32, ExchangeError> {
        let number = self.take_number();
        let bytes = self.note(number, ask);
        self.send(&bytes)?;
        Ok(number)
    }

    /// The bytes of an unlink, and notes it as one that is to be answered.
    pub fn note_unlink(&mut self, victim: u32) -> (u32, Vec<u8>) {
        let number = self.take_number();
        self.unlinks.insert(number, victim);
        (number, message::encode_unlink(number, self.devid, victim).to_vec())
    }

    /// Unlinks a request; returns the unlink's own number.
    pub fn unlink(&mut self, victim: u32) -> Result<u32, ExchangeError> {
        let (number, bytes) = self.note_unlink(victim);
        self.send(&bytes)?;
        Ok(number)
    }

    /// Reads the next answer.
    pub fn read(&mut self, within: Duration) -> Result<AnswerArrival, ExchangeError> {
        if self.came.len() >= ANSWERS_MAX {
            return Err(ExchangeError::Broken(format!("more than {ANSWERS_MAX} answers came")));
        }
        // Only a message that began is waited for with patience.
        self.fill(1, within)?;
        let raw = RawHeader::from_bytes(&self.take::<HEADER_BYTES>()?);
        let came = match raw.command {
            command::RET_SUBMIT => self.read_submit(raw)?,
            command::RET_UNLINK if self.unlinks.contains_key(&raw.seqnum) || self.strays.contains(&raw.seqnum) => {
                AnswerArrival::Unlink(raw.seqnum, raw.body[0].cast_signed())
            }
            command::RET_UNLINK => {
                return Err(ExchangeError::Broken(format!(
                    "RET_UNLINK for number {}, which was no unlink",
                    raw.seqnum
                )));
            }
            other => {
                return Err(ExchangeError::Broken(format!(
                    "an answer has command {other:#x}, which is neither 3 nor 4"
                )));
            }
        };
        self.came.push(came);
        Ok(came)
    }

    fn read_submit(&mut self, raw: RawHeader) -> Result<AnswerArrival, ExchangeError> {
        let reply = SubmitReply::from_raw(&raw);
        let number = reply.seqnum;
        let Some(flight) = self.flights.get(&number) else {
            return Err(ExchangeError::Broken(format!("RET_SUBMIT for number {number}, which was not submitted")));
        };
        let (length, is_in) = (flight.length, flight.direction == TransferDirection::In);
        let expected = if flight.is_iso { flight.packets.len() } else { 0 };
        if reply.actual > length {
            return Err(ExchangeError::Broken(format!("actual_length is {} for a buffer of {length}", reply.actual)));
        }
        if expected > 0 && reply.number_of_packets as usize != expected {
            let count = reply.number_of_packets;
            return Err(ExchangeError::Broken(format!("{count} packets come back where {expected} were sent")));
        }
        let data_bytes = if is_in { reply.actual as usize } else { 0 };
        let total = data_bytes + expected * ISO_PACKET_BYTES;
        self.fill(total, self.patience)?;
        let data = self.received[..data_bytes].to_vec();
        let descriptors = &self.received[data_bytes..total];
        let packets = descriptors.chunks_exact(ISO_PACKET_BYTES).map(message::decode_iso_packet).collect();
        self.received.drain(..total);
        let answer = SubmitAnswer {
            raw,
            errno: raw.body[0].cast_signed(),
            actual: reply.actual,
            data,
            packets,
            number_of_packets: reply.number_of_packets,
            error_count: reply.error_count,
        };
        self.answers.insert(number, answer);
        Ok(AnswerArrival::Submit(number))
    }

    /// Waits for the answer to a request.
    pub fn wait(&mut self, number: u32) -> Result<SubmitAnswer, ExchangeError> {
        while !self.answers.contains_key(&number) {
            self.read(self.patience)?;
        }
        Ok(self.answers[&number].clone())
    }

    /// Sends an unlink of a number that was never submitted; returns its own number.
    pub fn unlink_nothing(&mut self, victim: u32) -> Result<u32, ExchangeError> {
        let number = self.take_number();
        self.strays.insert(number);
        self.send(&message::encode_unlink(number, self.devid, victim))?;
        Ok(number)
    }

    /// The requests that have no answer yet, in the order of their numbers.
    pub fn unanswered(&self) -> Vec<u32> {
        self.flights.keys().filter(|number| !self.answers.contains_key(number)).copied().collect()
    }

    /// The first request whose answer has one of these statuses.
    pub fn ended_with(&self, statuses: &[i32]) -> Option<(u32, i32)> {
        self.answers.iter().map(|(&number, answer)| (number, answer.errno)).find(|(_, errno)| statuses.contains(errno))
    }

    /// How many requests were withdrawn.
    pub fn withdrawn(&self) -> usize {
        self.came.iter().filter(|came| matches!(came, AnswerArrival::Unlink(_, status) if *status != 0)).count()
    }

    /// Waits for the answer to an unlink; returns its status.
    pub fn wait_unlink(&mut self, number: u32) -> Result<i32, ExchangeError> {
        loop {
            let answered = self.came.iter().find_map(|came| match came {
                AnswerArrival::Unlink(unlink, status) if *unlink == number => Some(*status),
                _ => None,
            });
            match answered {
                Some(status) => return Ok(status),
                None => self.read(self.patience)?,
            };
        }
    }

    /// Submits a request and waits for its answer.
    pub fn ask(&mut self, ask: &SubmitRequest) -> Result<SubmitAnswer, ExchangeError> {
        let number = self.submit(ask)?;
        self.wait(number)
    }

    /// Reads what comes until nothing has come for `quiet`, or `most` answers came.
    pub fn settle(&mut self, quiet: Duration, most: usize) -> Result<(), ExchangeError> {
        for _ in 0..most {
            match self.read(quiet) {
                Ok(_) => {}
                Err(ExchangeError::Silence { have: 0, .. }) => return Ok(()),
                Err(other) => return Err(other),
            }
        }
        Ok(())
    }

    /// Holds all answers so far against the rule of unlinks: each unlink has one answer; each request has one answer,
    /// RET_SUBMIT or a RET_UNLINK that is not 0; a RET_UNLINK of 0 comes behind its RET_SUBMIT.
    pub fn judge(&self) -> Result<(), String> {
        for (&unlink, &victim) in &self.unlinks {
            let count =
                self.came.iter().filter(|came| matches!(came, AnswerArrival::Unlink(n, _) if *n == unlink)).count();
            if count != 1 {
                return Err(format!("the unlink of request {victim} has {count} answers"));
            }
        }
        self.flights.keys().try_for_each(|&number| self.judge_request(number))
    }

    fn judge_request(&self, number: u32) -> Result<(), String> {
        let of_it = |came: &&AnswerArrival| match came {
            AnswerArrival::Submit(submit) => *submit == number,
            AnswerArrival::Unlink(unlink, _) => self.unlinks.get(unlink) == Some(&number),
        };
        let came: Vec<AnswerArrival> = self.came.iter().filter(of_it).copied().collect();
        let submits = came.iter().filter(|came| matches!(came, AnswerArrival::Submit(_))).count();
        let withdrawn = came.iter().find(|came| matches!(came, AnswerArrival::Unlink(_, status) if *status != 0));
        match (submits, withdrawn, came.first()) {
            (0, Some(_), _) | (1, None, Some(AnswerArrival::Submit(_))) => Ok(()),
            (0, None, Some(AnswerArrival::Unlink(..))) => {
                Err(format!("request {number} was unlinked with 0, and its RET_SUBMIT did not come"))
            }
            (0, None, _) => Err(format!("request {number} was not answered")),
            (_, Some(_), _) => Err(format!("request {number} has a RET_SUBMIT and a RET_UNLINK that says it has none")),
            (1, None, _) => Err(format!("the RET_UNLINK of request {number} says 0 before its RET_SUBMIT came")),
            (more, None, _) => Err(format!("request {number} has {more} answers")),
        }
    }
}

/// The bytes of an import request.
pub(crate) fn import_request(bus_id: &str) -> Vec<u8> {
    let mut bytes = OpHeader::new(op::REQ_IMPORT, OpStatus::Ok).to_bytes().to_vec();
    bytes.extend(message::encode_bus_id(bus_id));
    debug_assert_eq!(bytes.len(), OP_HEADER_BYTES + BUS_ID_BYTES);
    bytes
}

/// Checks the header of a good answer.
fn check_header(header: OpHeader, code: u16) -> Result<(), ExchangeError> {
    let OpHeader { version, code: came, status } = header;
    if version != message::VERSION {
        return Err(ExchangeError::Broken(format!("the answer has version {version:#06x}, not 0x0111")));
    }
    if came != code {
        return Err(ExchangeError::Broken(format!("the answer has code {came:#06x}, not {code:#06x}")));
    }
    if status != 0 {
        return Err(ExchangeError::Broken(format!("the answer has status {status}")));
    }
    Ok(())
}

/// The number on the wire of an outcome.
pub(crate) fn errno(of: UrbStatus) -> i32 {
    status::to_errno(of)
}
