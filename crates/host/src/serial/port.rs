//! A serial port: what is written and changed goes to the device in order, what the line brings waits to be read.

use std::collections::VecDeque;
use std::fmt;

use farbus_model::descriptor::EndpointDescriptor;
use farbus_model::serial_port::{SerialPortInterface, serial_ports_of};
use farbus_model::{
    CompletionQueue, DescriptorSet, Device, Instant, Payload, SetupPacket, TransferDirection, UrbCompletion, UrbId,
    UrbStatus,
};

use super::chips::{ChipAnswer, ChipOrder, ChipProtocol, ChipRequest};
use super::line::{LineChange, LineCoding, LineFaults, ModemState};
use crate::driver::{DeviceDriver, IdSource};
use crate::limits::{
    CONTROL_TIMEOUT, FAULT_TRIES, SERIAL_CHANGES_MAX, SERIAL_MODEM_PAUSE, SERIAL_READ_BYTES, SERIAL_READS,
    SERIAL_STATE_BYTES, SERIAL_STUCK_TIME, SERIAL_UNREAD_BYTES_MAX, SERIAL_UNSENT_BYTES_MAX, SERIAL_WRITE_BYTES,
    SERIAL_WRITES,
};
use crate::transfers::TransferTracker;

/// The serial port of a device, driven by requests to it.
///
/// Its owner passes its requests on to the device and the answers back ([`SerialPort::pump`]).
///
/// | what happens | result |
/// |---|---|
/// | a line change after bytes, or bytes after a line change | each waits until the device has taken what was before |
/// | the device takes none of these bytes for half a second | the change goes first: a reset must reach a board that hangs |
/// | nobody reads | after 64 KiB no more is fetched: the device's own flow control holds the sender |
/// | the device takes no bytes | [`SerialPort::room`] becomes 0 |
/// | an endpoint is halted | the halt is cleared; what the device did not take is counted ([`SerialPort::lost_bytes`]) |
/// | the device refuses what every one of its kind takes, or is gone | [`SerialPort::failure`] |
#[derive(Debug)]
pub struct SerialPort {
    at: SerialPortInterface,
    protocol: ChipProtocol,
    transfers: TransferTracker,
    /// What is to reach the device, in this order.
    outgoing: VecDeque<SerialOutput>,
    unsent_bytes: usize,
    /// The requests of the order that is being carried out; the first is with the device if its id is known.
    requests: VecDeque<ChipRequest>,
    request_id: Option<UrbId>,
    /// What these requests carry out.
    order: Option<ChipOrder>,
    writes: VecDeque<UrbId>,
    /// When a write began while there was none, or came back.
    written_at: Instant,
    /// How many line changes were made, and how many of them the device has.
    changes: u64,
    changes_done: u64,
    reads: VecDeque<UrbId>,
    notification: Option<UrbId>,
    unread: VecDeque<Payload>,
    unread_bytes: usize,
    modem: ModemState,
    faults: LineFaults,
    /// Whether the chip was brought up.
    is_up: bool,
    ask_modem_at: Option<Instant>,
    lost_bytes: u64,
    /// How many data requests failed in a row.
    failures: u32,
    is_closing: bool,
    /// Whether no new request is made for what the line brings.
    is_resting: bool,
    failure: Option<SerialError>,
}

#[derive(Debug)]
enum SerialOutput {
    Order(ChipOrder),
    Data(Vec<u8>),
    /// Nothing: the chip was brought up.
    Ready,
}

/// Why a serial port cannot be used (any more).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SerialError {
    /// The device has no serial port that is known here.
    NoPort,
    /// The device is gone.
    Gone,
    /// It refused a request that every device of its kind takes: the request's code, and how it ended.
    Refused(u8, UrbStatus),
    /// Its data requests fail, in this way.
    Faulty(UrbStatus),
}

impl fmt::Display for SerialError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoPort => write!(
                f,
                "it has no serial port that farbus can drive: CDC-ACM, FTDI, CP210x, CH340/341 and PL2303 are known"
            ),
            Self::Gone => write!(f, "the device is gone"),
            Self::Refused(request, status) => write!(f, "it refuses the request {request:#04x}: {status:?}"),
            Self::Faulty(status) => write!(f, "its data cannot be transferred: {status:?}"),
        }
    }
}

impl std::error::Error for SerialError {}

/// The first serial port of a device, and its configuration: the selected one's, or the first that has a port.
///
/// # Errors
/// [`SerialError::NoPort`].
pub fn first_port(all: &DescriptorSet) -> Result<SerialPortInterface, SerialError> {
    let selectable = all.configurations.iter().filter(|configuration| configuration.value != 0);
    let mut ports = selectable.flat_map(|configuration| serial_ports_of(all, configuration));
    ports.find(|port| port.data_out.is_some()).ok_or(SerialError::NoPort)
}

impl SerialPort {
    /// Drives the port at `at` of a device with these descriptors, which has no configuration yet. `ids` are the
    /// device's.
    pub fn new(ids: IdSource, descriptors: &DescriptorSet, at: SerialPortInterface) -> Self {
        let protocol = ChipProtocol::new(&at, descriptors.device.device_bcd);
        let modem = protocol.first_modem_state();
        let mut port = Self {
            at,
            protocol,
            transfers: TransferTracker::new(ids),
            outgoing: VecDeque::new(),
            unsent_bytes: 0,
            requests: VecDeque::new(),
            request_id: None,
            order: None,
            writes: VecDeque::new(),
            written_at: Instant::ZERO,
            changes: 0,
            changes_done: 0,
            reads: VecDeque::new(),
            notification: None,
            unread: VecDeque::new(),
            unread_bytes: 0,
            modem,
            faults: LineFaults::default(),
            is_up: false,
            ask_modem_at: None,
            lost_bytes: 0,
            failures: 0,
            is_closing: false,
            is_resting: false,
            failure: None,
        };
        port.requests.extend(selection(&at));
        port.outgoing.extend([ChipOrder::Identify, ChipOrder::BringUp].map(SerialOutput::Order));
        port.outgoing.push_back(SerialOutput::Ready);
        port
    }

    /// Changes the line, after what was written before. Returns the number of the change, which
    /// [`SerialPort::changes_done`] reaches once the device has it.
    pub fn change(&mut self, change: LineChange) -> u64 {
        self.changes += 1;
        if let LineChange::Purge { received, unsent } = change {
            self.purge(received, unsent);
        }
        if !self.is_closing {
            self.outgoing.push_back(SerialOutput::Order(ChipOrder::Change(change)));
        }
        self.changes
    }

    /// Whether so many line changes wait for the device that the next should wait as well.
    pub fn is_full_of_changes(&self) -> bool {
        self.changes - self.changes_done >= SERIAL_CHANGES_MAX
    }

    /// How many line changes the device has.
    pub fn changes_done(&self) -> u64 {
        self.changes_done
    }

    /// Drops what was read of the line and not fetched, or written and not sent.
    fn purge(&mut self, received: bool, unsent: bool) {
        if received {
            self.unread.clear();
            self.unread_bytes = 0;
        }
        if unsent {
            self.outgoing.retain(|output| !matches!(output, SerialOutput::Data(_)));
            self.unsent_bytes = 0;
        }
    }

    /// How many bytes [`SerialPort::write`] takes now.
    pub fn room(&self) -> usize {
        if self.is_closing { 0 } else { SERIAL_UNSENT_BYTES_MAX.saturating_sub(self.unsent_bytes) }
    }

    /// Sends bytes on the line, after what was written and changed before; returns how many were taken.
    pub fn write(&mut self, bytes: &[u8]) -> usize {
        let taken = bytes.len().min(self.room());
        let mut rest = &bytes[..taken];
        if let Some(SerialOutput::Data(last)) = self.outgoing.back_mut() {
            let (front, behind) = rest.split_at(rest.len().min(SERIAL_WRITE_BYTES.saturating_sub(last.len())));
            last.extend_from_slice(front);
            rest = behind;
        }
        self.outgoing.extend(rest.chunks(SERIAL_WRITE_BYTES).map(|piece| SerialOutput::Data(piece.to_vec())));
        self.unsent_bytes += taken;
        taken
    }

    /// Whether the device has taken all that was written and changed.
    pub fn is_drained(&self) -> bool {
        self.outgoing.is_empty() && self.requests.is_empty() && self.writes.is_empty()
    }

    /// The next bytes that the line brought.
    pub fn read(&mut self) -> Option<Payload> {
        let next = self.unread.pop_front()?;
        self.unread_bytes -= next.len();
        Some(next)
    }

    /// Puts bytes that were read back in front of those that wait.
    pub fn put_back(&mut self, bytes: &[u8]) {
        if !bytes.is_empty() {
            self.unread_bytes += bytes.len();
            self.unread.push_front(bytes.to_vec().into());
        }
    }

    /// How many bytes wait to be read.
    pub fn unread_bytes(&self) -> usize {
        self.unread_bytes
    }

    /// The incoming control lines, as far as the device has reported them.
    pub fn modem(&self) -> ModemState {
        self.modem
    }

    /// Keeps [`SerialPort::modem`] up to date from now on, or no longer, for a chip that has to be asked.
    pub fn watch_modem(&mut self, now: Instant, is_watched: bool) {
        let is_asked = is_watched && self.protocol.is_asked_for_modem() && !self.is_closing;
        self.ask_modem_at = is_asked.then_some(now);
    }

    /// What went wrong on the line since this was called last.
    pub fn take_faults(&mut self) -> LineFaults {
        std::mem::take(&mut self.faults)
    }

    /// Bytes that were written and that the device did not take.
    pub fn lost_bytes(&self) -> u64 {
        self.lost_bytes
    }

    /// Why it cannot be used any more.
    pub fn failure(&self) -> Option<&SerialError> {
        self.failure.as_ref()
    }

    /// Releases the line for good: drops DTR and RTS and ends all requests; nothing more is written or changed.
    /// [`SerialPort::is_closed`] says when that is done.
    pub fn close(&mut self, now: Instant) {
        if !std::mem::replace(&mut self.is_closing, true) {
            self.outgoing.clear();
            self.outgoing.push_back(SerialOutput::Order(ChipOrder::Close));
            self.unsent_bytes = 0;
            // Of what was begun, the request that is with the device is taken back, and no other follows.
            self.requests.truncate(usize::from(self.request_id.is_some()));
            self.ask_modem_at = None;
            let under_way = self.reads.iter().chain(&self.writes).chain(&self.notification).chain(&self.request_id);
            under_way.copied().collect::<Vec<_>>().into_iter().for_each(|id| self.transfers.withdraw(now, id));
        }
    }

    /// Whether nothing more of it is with the device.
    pub fn is_closed(&self) -> bool {
        (self.is_closing || self.failure.is_some()) && self.transfers.is_idle() && self.transfers.flying() == 0
    }

    /// Lets what is under way come to its end, and fetches no more from the line: for a snapshot
    /// ([`SerialPort::is_at_rest`]).
    pub fn rest(&mut self, now: Instant) {
        self.is_resting = true;
        let reads = self.reads.iter().chain(&self.notification).copied();
        reads.collect::<Vec<_>>().into_iter().for_each(|id| self.transfers.withdraw(now, id));
    }

    /// Goes on after a rest.
    pub fn resume(&mut self) {
        self.is_resting = false;
    }

    /// Whether nothing of it is with the device or on the way there.
    pub fn is_at_rest(&self) -> bool {
        let has_reads = !self.reads.is_empty() || self.notification.is_some();
        self.is_up && self.is_drained() && !has_reads && self.transfers.flying() == 0 && self.failure.is_none()
    }

    /// The state of a port at rest, for another process, without what waits to be read.
    pub fn state(&self) -> [u8; SERIAL_STATE_BYTES] {
        self.protocol.state(self.modem)
    }

    /// A port as [`SerialPort::state`] described it, of a device that is configured; `None`: it describes none.
    pub fn restored(
        ids: IdSource,
        descriptors: &DescriptorSet,
        at: SerialPortInterface,
        state: &[u8],
        unread: &[u8],
    ) -> Option<Self> {
        let mut port = Self::new(ids, descriptors, at);
        port.modem = port.protocol.restore(state)?;
        port.outgoing.clear();
        port.requests.clear();
        port.is_up = true;
        port.keep(unread.to_vec().into());
        Some(port)
    }

    /// The rate and the format that the device has, or is to have next.
    pub fn coding(&self) -> LineCoding {
        self.protocol.coding()
    }

    /// Exchanges requests and answers with its device until nothing more moves.
    pub fn pump<D: Device + ?Sized>(&mut self, now: Instant, device: &mut D, done: &mut CompletionQueue) {
        loop {
            self.advance(now);
            while let Some(id) = self.transfers.poll_cancel() {
                device.cancel(now, id, done);
            }
            while let Some(urb) = self.transfers.poll_submit() {
                device.submit(now, urb.launch(), done);
            }
            if done.is_empty() {
                device.end_turn(now, done);
            }
            if done.is_empty() && !self.transfers.has_outcome() {
                return;
            }
            while let Some(answer) = done.pop() {
                self.transfers.handle_done(now, answer);
            }
            self.take_answers(now);
        }
    }

    /// When [`SerialPort::handle_timeout`] wants to be called.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let ask = self.ask_modem_at.filter(|_| self.failure.is_none() && !self.is_resting);
        let has_order = || self.outgoing.iter().any(|output| matches!(output, SerialOutput::Order(_)));
        let waits = self.request_id.is_none() && !self.writes.is_empty() && self.failure.is_none() && has_order();
        let stuck = waits.then(|| self.written_at + SERIAL_STUCK_TIME);
        ask.into_iter().chain(stuck).chain(self.transfers.poll_timeout()).min()
    }

    /// Called when the moment of [`SerialPort::poll_timeout`] has come; pump afterwards.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.transfers.handle_timeout(now);
        if self.ask_modem_at.is_some_and(|at| at <= now) {
            self.ask_modem_at = Some(now + SERIAL_MODEM_PAUSE);
            let is_asked = |output: &SerialOutput| matches!(output, SerialOutput::Order(ChipOrder::AskModem));
            if !self.is_resting && !self.outgoing.iter().any(is_asked) {
                self.outgoing.push_back(SerialOutput::Order(ChipOrder::AskModem));
            }
        }
    }

    /// Submits what may be submitted.
    fn advance(&mut self, now: Instant) {
        if self.failure.is_some() {
            return;
        }
        while self.begin_next(now) {}
        if self.is_closing || self.is_resting || !self.is_up {
            return;
        }
        let (data_in, room) = (self.at.data_in, SERIAL_UNREAD_BYTES_MAX.saturating_sub(self.unread_bytes));
        let length = read_bytes(&data_in);
        while self.reads.len() < SERIAL_READS && (self.reads.len() + 1) * length as usize <= room {
            let id = self.transfers.data_in(now, data_in.address, length, None);
            self.reads.push_back(id);
        }
        if let (Some(endpoint), None) = (self.at.notification, self.notification) {
            self.notification =
                Some(self.transfers.data_in(now, endpoint.address, endpoint.packet_bytes_max.max(16).into(), None));
        }
    }

    /// Begins the next request or write that may begin; returns whether it did.
    fn begin_next(&mut self, now: Instant) -> bool {
        if self.request_id.is_some() {
            return false;
        }
        if let Some(ChipRequest { setup, data, .. }) = self.requests.front() {
            let id = match setup.direction() {
                TransferDirection::In => self.transfers.control_in(now, *setup, Some(CONTROL_TIMEOUT)),
                TransferDirection::Out => {
                    self.transfers.control_out(now, *setup, data.clone().into(), Some(CONTROL_TIMEOUT))
                }
            };
            self.request_id = Some(id);
            return false;
        }
        let is_stuck = !self.writes.is_empty() && self.written_at + SERIAL_STUCK_TIME <= now;
        let is_order = |output: &SerialOutput| matches!(output, SerialOutput::Order(_));
        if let Some(at) =
            self.outgoing.iter().position(is_order).filter(|at| is_stuck || *at == 0 && self.writes.is_empty())
            && let Some(SerialOutput::Order(order)) = self.outgoing.remove(at)
        {
            self.requests = self.protocol.requests(order).into();
            self.order = Some(order);
            self.end_order();
            return true;
        }
        match self.outgoing.front() {
            Some(SerialOutput::Ready) => {
                self.is_up = true;
                self.outgoing.pop_front();
                true
            }
            Some(SerialOutput::Data(_)) if self.writes.len() < SERIAL_WRITES => {
                let (Some(SerialOutput::Data(data)), Some(endpoint)) = (self.outgoing.pop_front(), self.at.data_out)
                else {
                    return true;
                };
                self.unsent_bytes -= data.len();
                if self.writes.is_empty() {
                    self.written_at = now;
                }
                let id = self.transfers.data_out(now, endpoint.address, data.into(), None);
                self.writes.push_back(id);
                true
            }
            _ => false,
        }
    }

    /// Counts the order as carried out if none of its requests is left.
    fn end_order(&mut self) {
        if self.requests.is_empty() && matches!(self.order.take(), Some(ChipOrder::Change(_))) {
            self.changes_done += 1;
        }
    }

    fn take_answers(&mut self, now: Instant) {
        while let Some(done) = self.transfers.poll_outcome() {
            match done.status {
                UrbStatus::Gone | UrbStatus::Shutdown if !self.is_closing => self.fail(SerialError::Gone),
                _ => {}
            }
            if self.request_id == Some(done.id) {
                self.request_id = None;
                self.take_request_answer(&done);
            } else if let Some(at) = self.reads.iter().position(|id| *id == done.id) {
                self.reads.remove(at);
                self.take_read(done);
            } else if let Some(at) = self.writes.iter().position(|id| *id == done.id) {
                self.writes.remove(at);
                self.written_at = now;
                self.lost_bytes += u64::from(done.length - done.actual.min(done.length));
                self.judge(&done);
            } else if self.notification == Some(done.id) {
                self.notification = None;
                let data = done.payload.contiguous();
                if let Some((modem, faults)) = self.protocol.notified(&data, self.modem) {
                    self.modem = modem;
                    self.faults = self.faults.with(faults);
                }
                self.judge(&done);
            }
        }
    }

    fn take_request_answer(&mut self, done: &UrbCompletion) {
        let Some(ChipRequest { setup, answer, .. }) = self.requests.pop_front() else { return };
        let data = done.payload.contiguous();
        let data = (done.status == UrbStatus::Ok).then_some(&*data);
        if let Some(modem) = self.protocol.handle_answer(answer, data) {
            self.modem = modem;
        }
        if self.requests.is_empty() {
            self.end_order();
        }
        // What a request only asks for, some of its kind refuse.
        let must_succeed = answer == ChipAnswer::None;
        if data.is_none() && must_succeed && !self.is_closing {
            self.fail(SerialError::Refused(setup.request, done.status));
        }
    }

    fn take_read(&mut self, done: UrbCompletion) {
        self.judge(&done);
        let skipped = self.protocol.status_bytes();
        if skipped == 0 {
            return self.keep(done.payload);
        }
        let packet = usize::from(self.at.data_in.packet_bytes_max).max(1);
        let bytes = done.payload.contiguous();
        let mut data = Vec::with_capacity(bytes.len());
        for packet in bytes.chunks(packet) {
            if let Some((modem, faults)) = self.protocol.packet_state(packet) {
                self.modem = modem;
                self.faults = self.faults.with(faults);
            }
            data.extend_from_slice(packet.get(skipped..).unwrap_or_default());
        }
        self.keep(data.into());
    }

    fn keep(&mut self, data: Payload) {
        if !data.is_empty() {
            self.unread_bytes += data.len();
            self.unread.push_back(data);
        }
    }

    /// Counts failures of data requests, and clears a halt.
    fn judge(&mut self, done: &UrbCompletion) {
        match done.status {
            UrbStatus::Ok | UrbStatus::Short => self.failures = 0,
            UrbStatus::Cancelled | UrbStatus::Gone | UrbStatus::Shutdown => {}
            status => {
                self.failures += 1;
                // Each of the requests that were under way fails once.
                if self.failures > FAULT_TRIES * (SERIAL_READS + SERIAL_WRITES) as u32 {
                    return self.fail(SerialError::Faulty(status));
                }
                let clear = ChipOrder::ClearHalt(done.endpoint.as_byte());
                let is_queued =
                    self.outgoing.iter().any(|output| matches!(output, SerialOutput::Order(order) if *order == clear));
                if status == UrbStatus::Stall && !is_queued && !self.is_closing {
                    self.outgoing.push_front(SerialOutput::Order(clear));
                }
            }
        }
    }

    fn fail(&mut self, error: SerialError) {
        self.failure.get_or_insert(error);
    }
}

/// Selects the configuration of a port, and its interface's setting.
fn selection(at: &SerialPortInterface) -> impl Iterator<Item = ChipRequest> {
    let setting = (at.alternate > 0).then(|| SetupPacket::set_interface(at.interface, at.alternate));
    let setups = [Some(SetupPacket::set_configuration(at.configuration)), setting];
    setups.into_iter().flatten().map(|setup| ChipRequest { setup, data: Vec::new(), answer: ChipAnswer::None })
}

/// The length of a read: whole packets.
fn read_bytes(endpoint: &EndpointDescriptor) -> u32 {
    let packet = u32::from(endpoint.packet_bytes_max.max(1));
    SERIAL_READ_BYTES.next_multiple_of(packet)
}
