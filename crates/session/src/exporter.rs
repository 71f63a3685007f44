//! Connects a USB/IP client to a device: the path of a request on the exporter.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::time::Duration;

use farbus_model::budget::ConnectionAllowance;
use farbus_model::descriptor::kind;
use farbus_model::trace::{TracePoint, TraceRing};
use farbus_model::urb::take_lost;
use farbus_model::usb::{RequestRecipient, request};
use farbus_model::{
    BufferPool, CompletionQueue, ConfigurationSelection, Device, Instant, OwnerCommand, OwnerCommandError, Payload,
    SessionLimits, SetupPacket, TransferDirection, Urb, UrbCompletion, UrbId, UrbStatus,
};
use farbus_wire::SendSlices;
use farbus_wire::snapshot::{FieldReader, SnapshotWriter};
use farbus_wire::usbip::{DeviceRecord, OpStatus, ProtocolViolation, UsbipRequest, UsbipServerConn};

/// What a client can ask for before it has a device.
pub trait ExportOffers<D> {
    /// The records of all devices on offer.
    fn list(&mut self) -> Vec<DeviceRecord>;

    /// Takes a device for one client.
    ///
    /// # Errors
    /// The status that the handshake reports.
    fn claim(&mut self, bus_id: &str) -> Result<(DeviceRecord, D), OpStatus>;
}

/// What an exporter does when it detects that its client reset the port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortResetPolicy {
    /// The device is local: reset it and restore its configuration.
    ResetDevice,
    /// The device is on another exporter, which detects the same signs: pass the requests on.
    PassOn,
}

/// Why a connection ended before its client ended it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConnectionFault {
    /// The client violated the protocol.
    Rejected(ProtocolViolation),
    /// The client connected and made no request in time.
    SaidNothing,
    /// The client sends requests and does not read the replies.
    NeverReads,
    /// The client's connections together have reached their limit of memory.
    Memory,
}

impl fmt::Display for ConnectionFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ConnectionFault::Rejected(reject) => reject.fmt(f),
            ConnectionFault::SaidNothing => f.write_str("the peer asked for nothing within 10 s"),
            ConnectionFault::NeverReads => f.write_str("the peer sends and does not read its answers"),
            ConnectionFault::Memory => {
                f.write_str("the peer's connections hold as much memory as a peer may have here")
            }
        }
    }
}

impl std::error::Error for ConnectionFault {}

impl From<ProtocolViolation> for ConnectionFault {
    fn from(reject: ProtocolViolation) -> Self {
        ConnectionFault::Rejected(reject)
    }
}

/// How long a client may take from connecting to importing. Tools do both at once.
const HANDSHAKE_TIME_MAX: Duration = Duration::from_secs(10);
/// Taps kept: the last thousand requests, four taps each.
const TRACE_TAPS: usize = 4096;
/// First id of the exporter's own requests: beyond the 32 bits of a sequence number.
const OWN_ID_FIRST: u64 = 1 << 32;

/// Counters of an exporter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExporterCounters {
    /// Requests that the exporter has answered, failed ones included.
    pub urbs: u64,
    /// Bytes that came IN from the device.
    pub bytes_in: u64,
    /// Bytes that went OUT to the device.
    pub bytes_out: u64,
    /// Requests that the client unlinked.
    pub unlinked: u64,
    /// Requests refused for lack of credit.
    pub no_credit: u64,
    /// Port resets detected.
    pub resets: u64,
    /// Requests that a device dropped unanswered: a fault of farbus, answered as cancelled.
    pub lost: u64,
}

/// One connection and, once claimed, its device.
pub struct Exporter<D> {
    conn: UsbipServerConn,
    device: Option<D>,
    done: CompletionQueue,
    /// Requests that wait, in order, until the link takes replies or a reset ends.
    held: VecDeque<Urb>,
    /// Bytes that the device may still return for IN requests: they may come all at once.
    in_bytes_asked: usize,
    /// Own requests in flight that restore the device. Meanwhile no request of the client is started.
    restoring: usize,
    /// The selection before the reset, which is being restored. Requests that arrive meanwhile are decoded by it.
    before_reset: Option<ConfigurationSelection>,
    /// The request that revealed a reset; it waits until the device is restored.
    reset_shown_by: Option<UrbId>,
    /// The client resets its port by a request.
    asks_for_resets: bool,
    next_own_id: u64,
    limits: SessionLimits,
    on_reset: PortResetPolicy,
    handshake_until: Instant,
    counters: ExporterCounters,
    trace: TraceRing,
    allowance: ConnectionAllowance,
}

/// What a connection holds besides payloads, bytes: its receive buffer.
const CONNECTION_BYTES: usize = 256 << 10;
/// Memory that one device takes in a device list, bytes.
const LISTED_BYTES: usize = 512;

impl<D: Device> Exporter<D> {
    /// An exporter for a client that has just connected.
    pub fn new(now: Instant, limits: SessionLimits) -> Self {
        Self::over(UsbipServerConn::new(&limits), None, PortResetPolicy::ResetDevice, now, limits)
    }

    /// An exporter for a client that uses `device`, known to it as `devid`, without a handshake: a kernel.
    pub fn imported(now: Instant, limits: SessionLimits, devid: u32, device: D, on_reset: PortResetPolicy) -> Self {
        Self::over(UsbipServerConn::imported(&limits, devid), Some(device), on_reset, now, limits)
    }

    /// What it does from now on when its client resets the port: the device is another one.
    pub fn set_on_reset(&mut self, on_reset: PortResetPolicy) {
        self.on_reset = on_reset;
    }

    fn over(
        conn: UsbipServerConn,
        device: Option<D>,
        on_reset: PortResetPolicy,
        now: Instant,
        limits: SessionLimits,
    ) -> Self {
        Self {
            conn,
            device,
            done: CompletionQueue::new(BufferPool::new(limits.pool_bytes)),
            held: VecDeque::new(),
            in_bytes_asked: 0,
            restoring: 0,
            before_reset: None,
            reset_shown_by: None,
            asks_for_resets: false,
            next_own_id: OWN_ID_FIRST,
            limits,
            on_reset,
            handshake_until: now + HANDSHAKE_TIME_MAX,
            counters: ExporterCounters::default(),
            trace: TraceRing::new(TRACE_TAPS),
            allowance: ConnectionAllowance::default(),
        }
    }

    /// From now on, takes memory from `allowance`. A request that exceeds it is refused like one beyond the limits.
    /// Returns whether the allowance covers the connection's minimum.
    #[must_use]
    pub fn draw_on(&mut self, allowance: ConnectionAllowance) -> bool {
        self.allowance = allowance;
        self.allowance.covers(CONNECTION_BYTES)
    }

    /// Where received bytes go.
    pub fn receive_space(&mut self) -> &mut [u8] {
        self.conn.receive_space()
    }

    /// `count` bytes arrived; [`Exporter::advance`] acts on them.
    pub fn handle_received(&mut self, count: usize) {
        self.conn.handle_received(count);
    }

    /// Moves every request along, from received bytes to the reply that waits to be sent. Call it after anything
    /// happened; it does everything that can be done now.
    ///
    /// # Errors
    /// [`ConnectionFault`]: the connection must end; send what is left and call [`Exporter::finish`].
    pub fn advance(&mut self, now: Instant, offers: &mut dyn ExportOffers<D>) -> Result<(), ConnectionFault> {
        // Held requests go first, so that one endpoint's requests stay in order.
        self.release(now);
        while let Some(request) = self.poll_request()? {
            match request {
                UsbipRequest::DeviceList => {
                    let records = offers.list();
                    if !self.allowance.covers(CONNECTION_BYTES + records.len() * LISTED_BYTES) {
                        return Err(ConnectionFault::Memory);
                    }
                    self.conn.reply_device_list(&records);
                }
                UsbipRequest::Import(bus_id) => self.import(&bus_id, offers),
                UsbipRequest::Submit(urb) => self.admit(now, urb),
                UsbipRequest::Unlink(id) => self.withdraw(now, id),
            }
        }
        self.answer_lost(now);
        if self.conn.backlog_header_bytes() > self.limits.reply_header_bytes_max {
            return Err(ConnectionFault::NeverReads);
        }
        if !self.conn.is_imported() && !self.conn.is_finished() && now >= self.handshake_until {
            return Err(ConnectionFault::SaidNothing);
        }
        Ok(())
    }

    fn poll_request(&mut self) -> Result<Option<UsbipRequest>, ProtocolViolation> {
        let selection = self.before_reset.as_ref().or(self.device.as_ref().map(Device::selection));
        self.conn.poll_request(|endpoint| Some(selection?.endpoint(endpoint)?.kind))
    }

    fn import(&mut self, bus_id: &str, offers: &mut dyn ExportOffers<D>) {
        match offers.claim(bus_id) {
            Ok((record, device)) => {
                self.conn.reply_import(Ok(&record));
                self.device = Some(device);
            }
            Err(status) => self.conn.reply_import(Err(status)),
        }
    }

    /// Starts a request, holds it for later, or refuses it; never blocks the requests behind it.
    fn admit(&mut self, now: Instant, mut urb: Urb) {
        self.trace.tap(urb.id.0, urb.endpoint.as_byte(), TracePoint::Received, now);
        if self.conn.in_flight() > self.limits.urbs_in_flight_max || !self.has_credit() {
            // Reading goes on, so that an unlink never waits behind submits.
            self.refuse(now, urb);
        } else if self.may_start() && self.held.is_empty() {
            self.start(now, urb);
        } else {
            urb.payload.own();
            self.held.push_back(urb);
        }
    }

    /// Whether the limits allow one more payload. A device that answers late may not be given more than the link may
    /// have to queue.
    fn has_credit(&mut self) -> bool {
        let payload_bytes = self.conn.out_bytes_held() + self.in_bytes_asked + self.conn.backlog_bytes();
        payload_bytes <= self.limits.payload_bytes_max && self.allowance.covers(CONNECTION_BYTES + payload_bytes)
    }

    fn refuse(&mut self, now: Instant, urb: Urb) {
        self.counters.no_credit += 1;
        self.reply(now, urb.launch().fail(UrbStatus::NoCredit));
    }

    fn may_start(&self) -> bool {
        self.restoring == 0 && self.conn.backlog_bytes() < self.limits.reply_bytes_backlog
    }

    fn release(&mut self, now: Instant) {
        while self.may_start()
            && let Some(urb) = self.held.pop_front()
        {
            self.start(now, urb);
        }
    }

    fn start(&mut self, now: Instant, urb: Urb) {
        let is_restored = self.reset_shown_by.take() == Some(urb.id);
        let asks_for_reset = self.on_reset == PortResetPolicy::ResetDevice && asks_for_port_reset(&urb);
        self.asks_for_resets |= asks_for_reset;
        let resets = asks_for_reset || (self.on_reset == PortResetPolicy::ResetDevice && self.shows_port_reset(&urb));
        if resets && !is_restored {
            self.reset_and_restore(now);
            if self.restoring > 0 {
                self.reset_shown_by = Some(urb.id);
                self.held.push_front(urb);
                return;
            }
        }
        if asks_for_reset {
            // The port is this end's, not the device's.
            self.done.push(urb.launch().done(UrbStatus::Ok, 0, Payload::Empty));
            return self.collect(now);
        }
        if urb.direction == TransferDirection::In {
            if !self.has_credit() {
                return self.refuse(now, urb);
            }
            self.in_bytes_asked += urb.length as usize;
        }
        let device = self.device.as_mut().expect("URBs come after a device was claimed");
        self.trace.tap(urb.id.0, urb.endpoint.as_byte(), TracePoint::Submitted, now);
        let makes_sense = match urb.endpoint.is_control() {
            true => !control_contradicts(&urb),
            false => device.selection().endpoint(urb.endpoint).is_some(),
        };
        if !makes_sense {
            self.done.push(urb.launch().fail(UrbStatus::Invalid));
        } else {
            device.submit(now, urb.launch(), &mut self.done);
        }
        self.collect(now);
    }

    /// Whether `urb` reveals a port reset, which vhci does without a message. Only a host that has just reset a device
    /// asks for 8 or 64 bytes of its device descriptor (hub_port_init in Linux); tools ask for 18. After a reset there
    /// is no other request on the control pipe: a queue of such requests comes from a test program (`testusb` test 10),
    /// and a reset would cancel the others.
    ///
    /// A client that resets its port by a request, or marks requests without packets, is no vhci: Windows reads its
    /// descriptor at any time, and takes the cancelled requests for a device that is gone.
    fn shows_port_reset(&self, urb: &Urb) -> bool {
        let setup = urb.setup;
        urb.endpoint.is_control()
            && !self.asks_for_resets
            && !self.conn.marks_no_packets()
            && setup.is_standard(request::GET_DESCRIPTOR, RequestRecipient::Device)
            && setup.value == u16::from(kind::DEVICE) << 8
            && matches!(setup.length, 8 | 64)
            && self.conn.is_alone_on_control(urb.id)
            && self.device.as_ref().is_some_and(|device| device.selection().configuration() != 0)
    }

    /// Resets the device and restores its configuration and settings, in case there was no reset after all.
    fn reset_and_restore(&mut self, now: Instant) {
        let device = self.device.as_mut().expect("a reset is seen on a device");
        let before = device.selection().clone();
        self.counters.resets += 1;
        device.reset(now, &mut self.done);
        let alternates = before.alternates().iter();
        let setups = std::iter::once(SetupPacket::set_configuration(before.configuration()))
            .chain(alternates.map(|&(interface, alternate)| SetupPacket::set_interface(interface, alternate)));
        for setup in setups {
            self.restoring += 1;
            let urb = Urb::control(UrbId(self.next_own_id), setup, Payload::Empty);
            self.next_own_id += 1;
            device.submit(now, urb.launch(), &mut self.done);
        }
        self.before_reset = Some(before);
        self.collect(now);
    }

    fn withdraw(&mut self, now: Instant, id: UrbId) {
        self.counters.unlinked += 1;
        if let Some(at) = self.held.iter().position(|urb| urb.id == id) {
            let urb = self.held.remove(at).expect("found just now");
            self.reply(now, urb.launch().fail(UrbStatus::Cancelled));
            return;
        }
        let device = self.device.as_mut().expect("URBs come after a device was claimed");
        device.cancel(now, id, &mut self.done);
        self.collect(now);
    }

    /// Turns the device's completions into replies.
    fn collect(&mut self, now: Instant) {
        while let Some(done) = self.done.pop() {
            if done.id.0 >= OWN_ID_FIRST {
                self.restoring -= 1;
                if self.restoring == 0 {
                    self.before_reset = None;
                }
            } else {
                if done.direction == TransferDirection::In {
                    self.in_bytes_asked -= done.length as usize;
                }
                self.reply(now, done);
            }
        }
    }

    fn reply(&mut self, now: Instant, done: UrbCompletion) {
        let (id, endpoint) = (done.id.0, done.endpoint.as_byte());
        let stage = if done.status == UrbStatus::Cancelled { TracePoint::Unlinked } else { TracePoint::Completed };
        self.trace.tap(id, endpoint, stage, now);
        self.counters.urbs += 1;
        match done.direction {
            TransferDirection::In => self.counters.bytes_in += u64::from(done.actual),
            TransferDirection::Out => self.counters.bytes_out += u64::from(done.actual),
        }
        self.conn.complete(done, &mut self.done.pool);
        self.trace.tap(id, endpoint, TracePoint::Replied, now);
    }

    /// Answers requests that a device dropped as cancelled, and counts them.
    fn answer_lost(&mut self, now: Instant) {
        for urb in take_lost() {
            if urb.id.0 >= OWN_ID_FIRST || self.conn.is_in_flight(urb.id) {
                self.counters.lost += 1;
                self.done.push(urb.launch().fail(UrbStatus::Cancelled));
            }
        }
        self.collect(now);
    }

    /// When [`Exporter::handle_timeout`] must be called.
    pub fn poll_timeout(&self) -> Option<Instant> {
        match &self.device {
            Some(device) => device.poll_timeout(),
            None => Some(self.handshake_until),
        }
    }

    /// The moment of [`Exporter::poll_timeout`] has come; call [`Exporter::advance`] afterwards.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.with_device(now, |device, done| device.handle_timeout(now, done));
    }

    /// What the device waits on is ready; call [`Exporter::advance`] afterwards.
    pub fn handle_ready(&mut self, now: Instant) {
        self.with_device(now, |device, done| device.handle_ready(now, done));
    }

    /// Passes a command of the owner to the device.
    ///
    /// # Errors
    /// [`OwnerCommandError`]: the device does not know the command or refuses it.
    pub fn command(&mut self, now: Instant, command: &OwnerCommand) -> Result<(), OwnerCommandError> {
        let refused = OwnerCommandError("the connection has no device yet".into());
        self.with_device(now, |device, done| device.command(now, command, done)).unwrap_or(Err(refused))
    }

    /// Runs `act` with the device and its completions; `None` without a device.
    pub fn with_device<T>(&mut self, now: Instant, act: impl FnOnce(&mut D, &mut CompletionQueue) -> T) -> Option<T> {
        let result = act(self.device.as_mut()?, &mut self.done);
        self.collect(now);
        Some(result)
    }

    /// The device, once claimed.
    pub fn device(&self) -> Option<&D> {
        self.device.as_ref()
    }

    /// Whether anything waits to be sent.
    pub fn has_transmit(&self) -> bool {
        self.conn.backlog_bytes() > 0
    }

    /// The runs of memory to send next, in order.
    pub fn poll_transmit(&self) -> SendSlices<'_> {
        self.conn.poll_transmit()
    }

    /// As [`Exporter::poll_transmit`], into an empty list.
    pub fn poll_transmit_into<'a>(&'a self, runs: &mut SendSlices<'a>) {
        self.conn.poll_transmit_into(runs);
    }

    /// `count` bytes were sent; call [`Exporter::advance`] if something was held.
    pub fn handle_transmitted(&mut self, count: usize) {
        self.conn.handle_transmitted(count, &mut self.done.pool);
    }

    /// Whether requests wait for the link to take replies. `false` while a reset is being restored, because then they
    /// wait for the device.
    pub fn has_held(&self) -> bool {
        self.restoring == 0 && !self.held.is_empty()
    }

    /// Whether everything has been answered and sent: the connection may be closed.
    pub fn is_finished(&self) -> bool {
        self.conn.is_finished()
    }

    /// Requests that are not answered yet.
    pub fn in_flight(&self) -> usize {
        self.conn.in_flight()
    }

    /// What the exporter has counted since the session began; a restored session continues the counts.
    pub fn counters(&self) -> ExporterCounters {
        self.counters
    }

    /// The latest points that requests passed, with their times, at most 4096.
    pub fn trace(&self) -> &TraceRing {
        &self.trace
    }

    /// Reads `clock` at each tap from now on: see [`TraceRing::read_clock`].
    pub fn trace_with_clock(&mut self, clock: impl Fn() -> Instant + Send + 'static) {
        self.trace.read_clock(clock);
    }

    /// Ends the connection: cancels everything in flight, resets and syncs the device and returns it, ready for the
    /// next client.
    pub fn finish(mut self, now: Instant) -> Option<D> {
        self.held.clear();
        let mut device = self.device.take()?;
        for id in self.conn.ids_in_flight() {
            device.cancel(now, id, &mut self.done);
        }
        device.reset(now, &mut self.done);
        // A device that cannot sync reports that at its next command.
        let _ = device.command(now, &OwnerCommand::Sync, &mut self.done);
        while self.done.pop().is_some() {}
        Some(device)
    }
}

/// Whether the header's direction contradicts the setup packet. A request without a data stage may have either
/// direction.
fn control_contradicts(urb: &Urb) -> bool {
    urb.setup.length > 0 && urb.setup.direction() != urb.direction
}

/// SET_FEATURE(PORT_RESET) of a hub's port (USB 2.0 §11.24.2.13), which a client sends to the device in place of its
/// own hub: Linux's stub_rx resets the device then.
fn asks_for_port_reset(urb: &Urb) -> bool {
    const OF_PORT: u8 = 0x23;
    const PORT_RESET: u16 = 4;
    let SetupPacket { request_type, request, value, .. } = urb.setup;
    urb.endpoint.is_control() && (request_type, request, value) == (OF_PORT, request::SET_FEATURE, PORT_RESET)
}

/// First id of requests that a device itself makes.
const DEVICE_ID_FIRST: u64 = 1 << 63;

impl<D: Device> Exporter<D> {
    /// Writes the connection and its open requests to a snapshot; the caller saves the device. The exporter can
    /// continue if the replacement does not.
    ///
    /// # Panics
    /// If it has no device yet.
    pub fn save(&mut self, now: Instant, to: &mut SnapshotWriter) {
        self.collect(now);
        self.conn.save(to);
        to.count(self.held.len());
        self.held.iter().for_each(|urb| to.urb(urb));
        to.count(self.restoring);
        to.flag(self.before_reset.is_some());
        if let Some(selection) = &self.before_reset {
            to.selection(selection);
        }
        to.flag(self.reset_shown_by.is_some());
        to.u64(self.reset_shown_by.map_or(0, |id| id.0));
        to.u64(self.next_own_id);
        to.flag(self.asks_for_resets);
        let ExporterCounters { urbs, bytes_in, bytes_out, unlinked, no_credit, resets, lost } = self.counters;
        [urbs, bytes_in, bytes_out, unlinked, no_credit, resets, lost].into_iter().for_each(|number| to.u64(number));
    }

    /// Restores an exporter from a snapshot, over its device, which has `requests` in flight. On an error, returns the
    /// device as well; its open requests will not be answered.
    ///
    /// # Errors
    /// [`ProtocolViolation`]: the snapshot is inconsistent.
    pub fn restore<'a>(
        now: Instant,
        limits: SessionLimits,
        on_reset: PortResetPolicy,
        device: D,
        requests: impl Fn(&D) -> Vec<(UrbId, TransferDirection, u32)>,
        from: &mut FieldReader<'a>,
    ) -> Result<Self, (D, ProtocolViolation)> {
        let read = |from: &mut FieldReader<'a>| -> Result<Self, ProtocolViolation> {
            let conn = UsbipServerConn::restore(&limits, from)?;
            let mut exporter = Self::over(conn, None, on_reset, now, limits);
            exporter.held = held(from)?;
            exporter.restoring = from.u32("requests of ours")? as usize;
            if from.flag("what was active")? {
                exporter.before_reset = Some(from.selection(device.descriptors())?);
            }
            let shown = (from.flag("reset")?, from.u64("reset")?);
            exporter.reset_shown_by = shown.0.then_some(UrbId(shown.1));
            exporter.next_own_id = from.u64("next id")?;
            if !(OWN_ID_FIRST..DEVICE_ID_FIRST / 2).contains(&exporter.next_own_id) {
                return Err(ProtocolViolation::new(
                    "next id",
                    exporter.next_own_id,
                    "our own ids are beyond a client's",
                ));
            }
            exporter.asks_for_resets = from.version() >= 13 && from.flag("resets that were asked for")?;
            let counters = &mut exporter.counters;
            for counter in [
                &mut counters.urbs,
                &mut counters.bytes_in,
                &mut counters.bytes_out,
                &mut counters.unlinked,
                &mut counters.no_credit,
                &mut counters.resets,
                &mut counters.lost,
            ] {
                // Limited so that it cannot overflow.
                *counter = from.u64("counter")?.min(u64::MAX / 2);
            }
            exporter.hold_against(&requests(&device))?;
            Ok(exporter)
        };
        match read(from) {
            Ok(mut exporter) => {
                exporter.device = Some(device);
                Ok(exporter)
            }
            Err(reject) => Err((device, reject)),
        }
    }

    /// Checks that every open request is either held here or in flight on the device, exactly once, and that there are
    /// no others.
    fn hold_against(&mut self, requests: &[(UrbId, TransferDirection, u32)]) -> Result<(), ProtocolViolation> {
        let mut owed: BTreeMap<UrbId, (TransferDirection, u32)> =
            self.conn.flights().map(|(id, direction, length)| (id, (direction, length))).collect();
        let held = self.held.iter().map(|urb| (urb.id, urb.direction, urb.length));
        let of_clients = requests.iter().copied().filter(|(id, ..)| id.0 < OWN_ID_FIRST);
        for (id, direction, length) in held.chain(of_clients) {
            if owed.remove(&id) != Some((direction, length)) {
                return Err(ProtocolViolation::new("request", id.0, "what is in flight is owed an answer, once"));
            }
        }
        if let Some(&id) = owed.keys().next() {
            return Err(ProtocolViolation::new("request", id.0, "what is owed an answer is in flight"));
        }
        let own = requests.iter().filter(|(id, ..)| id.0 >= OWN_ID_FIRST).count();
        if own != self.restoring || (own > 0) != self.before_reset.is_some() {
            return Err(ProtocolViolation::new(
                "requests of ours",
                self.restoring as u64,
                "what is waited for is in flight",
            ));
        }
        let comes_in = |(id, direction, _): &&(UrbId, TransferDirection, u32)| {
            id.0 < OWN_ID_FIRST && *direction == TransferDirection::In
        };
        self.in_bytes_asked = requests.iter().filter(comes_in).map(|&(_, _, length)| length as usize).sum();
        Ok(())
    }

    /// Ends this process's use of the connection without sending anything, because another process continues it.
    /// Returns the device, which the caller must let go of in the same way.
    pub fn hand_over(self) -> Option<D> {
        self.device
    }
}

fn held(from: &mut FieldReader<'_>) -> Result<VecDeque<Urb>, ProtocolViolation> {
    let mut held = VecDeque::new();
    for _ in 0..from.count("requests held", 8)? {
        let urb = from.urb()?;
        if urb.direction == TransferDirection::Out && urb.payload.len() != urb.length as usize {
            return Err(ProtocolViolation::new("data", urb.payload.len() as u64, "what is to be sent is held whole"));
        }
        held.push_back(urb);
    }
    Ok(held)
}
