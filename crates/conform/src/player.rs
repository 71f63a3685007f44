//! An exporter without sockets: made-up devices for several connections. What it sends passes a [`ExporterTamper`],
//! which may change it: the kit's importer checks need an exporter that is wrong, and so do tests of its exporter
//! checks.

use std::collections::{BTreeMap, BTreeSet};

use farbus_model::usb::request;
use farbus_model::{
    BufferPool, CompletionQueue, Device, EpAddr, Instant, Payload, SessionLimits, SetupPacket, TransferType, UrbId,
    UrbStatus,
};
use farbus_wire::usbip::message::{HEADER_BYTES, ISO_PACKET_BYTES, command};
use farbus_wire::usbip::{DeviceRecord, OpStatus, UsbipRequest, UsbipServerConn};

/// Answers that wait for a client that does not read; beyond, its requests are left unread.
const BACKLOG_BYTES_MAX: usize = 256 << 10;
/// Requests that one client may have under way.
const REQUESTS_MAX: usize = 4096;
const POOL_BYTES: usize = 4 << 20;
/// The last byte of the command of RET_SUBMIT.
const RET_SUBMIT: u8 = command::RET_SUBMIT as u8;

/// SET_FEATURE(PORT_RESET) of a hub's port (USB 2.0 §11.24.2.13): Linux's stub_rx resets the device.
fn asks_for_port_reset(setup: &SetupPacket) -> bool {
    (setup.request_type, setup.request, setup.value) == (0x23, request::SET_FEATURE, 4)
}

/// A connection of the player.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ConnId(u32);

/// What a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExporterMessageKind {
    /// The answer to a list.
    List,
    /// The answer to an import.
    Import,
    /// RET_SUBMIT, with its data.
    Submit,
    /// A RET_UNLINK, the answer to CMD_UNLINK.
    Unlink,
}

/// Changes what an exporter sends to the users of one device, or to those who have none yet.
pub trait ExporterTamper {
    /// A whole message that is about to be sent; it may be changed, emptied, or have others before and behind it.
    fn message(&mut self, kind: ExporterMessageKind, bytes: &mut Vec<u8>) {
        let _ = (kind, bytes);
    }

    /// Which device an import of this bus id gets, if not that one.
    fn import(&mut self, bus_id: &str, answer: Result<DeviceRecord, OpStatus>) -> Result<DeviceRecord, OpStatus> {
        let _ = bus_id;
        answer
    }

    /// Whether the connection ends now, whatever the client wants.
    fn hangs_up(&mut self) -> bool {
        false
    }

    /// The most bytes that leave at a time.
    fn piece_bytes_max(&self) -> usize {
        usize::MAX
    }

    /// Whether a client that broke the protocol keeps its connection, unanswered.
    fn forgives(&self) -> bool {
        false
    }

    /// Whether the device stays in use when its user has left.
    fn keeps(&self) -> bool {
        false
    }

    /// Whether two clients may have the device.
    fn lends(&self) -> bool {
        false
    }
}

/// Sends each message as it should be.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoTamper;

impl ExporterTamper for NoTamper {}

struct MockExport {
    record: DeviceRecord,
    device: Box<dyn Device>,
    user: Option<ConnId>,
    tamper: Box<dyn ExporterTamper>,
}

struct MockExporterConnection {
    server: UsbipServerConn,
    shelf: Option<usize>,
    done: CompletionQueue,
    out: Vec<u8>,
    is_over: bool,
}

/// An exporter with made-up devices, over as many connections as are accepted.
pub struct MockExporter {
    shelves: Vec<MockExport>,
    conns: BTreeMap<ConnId, MockExporterConnection>,
    next: u32,
    limits: SessionLimits,
    /// Halted endpoints that a client was told of.
    halted: BTreeSet<(ConnId, EpAddr)>,
    /// For messages of connections without a device.
    tamper: Box<dyn ExporterTamper>,
}

impl MockExporter {
    /// An exporter without devices; `tamper` sees lists and refusals.
    pub fn new(tamper: Box<dyn ExporterTamper>) -> Self {
        Self {
            shelves: Vec::new(),
            conns: BTreeMap::new(),
            next: 0,
            limits: SessionLimits::DEFAULT,
            halted: BTreeSet::new(),
            tamper,
        }
    }

    /// Offers a device under this bus id.
    pub fn offer(&mut self, bus_id: &str, device: Box<dyn Device>, tamper: Box<dyn ExporterTamper>) {
        let number = self.shelves.len() as u32 + 1;
        let descriptors = device.descriptors();
        let configuration = descriptors.configurations.first();
        let interfaces: Vec<[u8; 3]> =
            configuration.into_iter().flat_map(|each| each.interfaces()).map(|setting| setting.class).collect();
        let record = DeviceRecord {
            path: format!("/conform/{bus_id}"),
            bus_id: bus_id.to_owned(),
            bus: 1,
            device: number,
            speed: device.speed(),
            vendor: descriptors.device.vendor,
            product: descriptors.device.product,
            device_bcd: descriptors.device.device_bcd,
            class: descriptors.device.class,
            configuration: configuration.map_or(0, |each| each.value),
            configurations: descriptors.device.configurations,
            interface_count: interfaces.len() as u8,
            interfaces,
        };
        self.shelves.push(MockExport { record, device, user: None, tamper });
    }

    /// A client connected.
    pub fn connect(&mut self) -> ConnId {
        let id = ConnId(self.next);
        self.next += 1;
        let done = CompletionQueue::new(BufferPool::new(POOL_BYTES));
        let server = UsbipServerConn::new(&self.limits);
        self.conns.insert(id, MockExporterConnection { server, shelf: None, done, out: Vec::new(), is_over: false });
        id
    }

    /// Takes bytes of a client; returns how many it took, fewer when the client does not read its answers.
    pub fn receive(&mut self, id: ConnId, bytes: &[u8], now: Instant) -> usize {
        let mut taken = 0;
        while taken < bytes.len() {
            let Some(conn) = self.conns.get_mut(&id) else { return bytes.len() };
            if conn.out.len() > BACKLOG_BYTES_MAX {
                break;
            }
            let space = conn.server.receive_space();
            let count = space.len().min(bytes.len() - taken);
            space[..count].copy_from_slice(&bytes[taken..taken + count]);
            conn.server.handle_received(count);
            taken += count;
            self.advance(id, now);
        }
        taken
    }

    fn advance(&mut self, id: ConnId, now: Instant) {
        while let Some(conn) = self.conns.get_mut(&id) {
            if conn.is_over {
                return;
            }
            let shelf = conn.shelf;
            let shelves = &self.shelves;
            let kind_of = |address: EpAddr| -> Option<TransferType> {
                let device = &shelves[shelf?].device;
                device.selection().endpoint(address).map(|endpoint| endpoint.kind)
            };
            match conn.server.poll_request(kind_of) {
                Ok(None) => break,
                Ok(Some(request)) => self.carry_out(id, request, now),
                Err(_) => {
                    let forgives = match shelf {
                        Some(at) => self.shelves[at].tamper.forgives(),
                        None => self.tamper.forgives(),
                    };
                    self.drain(id, shelf, Some((ExporterMessageKind::Import, usize::MAX)));
                    if let Some(conn) = self.conns.get_mut(&id) {
                        conn.is_over = !forgives;
                    }
                    break;
                }
            }
        }
        self.collect(id, now);
    }

    fn carry_out(&mut self, id: ConnId, request: UsbipRequest, now: Instant) {
        match request {
            UsbipRequest::DeviceList => {
                let records: Vec<DeviceRecord> = self.shelves.iter().map(|shelf| shelf.record.clone()).collect();
                if let Some(conn) = self.conns.get_mut(&id) {
                    conn.server.reply_device_list(&records);
                }
                self.drain(id, None, Some((ExporterMessageKind::List, usize::MAX)));
            }
            UsbipRequest::Import(bus_id) => self.import(id, &bus_id),
            UsbipRequest::Submit(urb) => {
                let Some(conn) = self.conns.get_mut(&id) else { return };
                let Some(at) = conn.shelf else { return };
                if conn.server.in_flight() > REQUESTS_MAX {
                    conn.done.push(urb.launch().fail(UrbStatus::NoCredit));
                } else if urb.endpoint.is_control() && asks_for_port_reset(&urb.setup) {
                    self.shelves[at].device.reset(now, &mut conn.done);
                    conn.done.push(urb.launch().done(UrbStatus::Ok, 0, Payload::Empty));
                } else {
                    self.shelves[at].device.submit(now, urb.launch(), &mut conn.done);
                }
                self.collect(id, now);
            }
            UsbipRequest::Unlink(urb) => {
                let Some(conn) = self.conns.get_mut(&id) else { return };
                let Some(at) = conn.shelf else { return };
                self.shelves[at].device.cancel(now, urb, &mut conn.done);
                self.collect(id, now);
            }
        }
    }

    fn import(&mut self, id: ConnId, bus_id: &str) {
        let at = self.shelves.iter().position(|shelf| shelf.record.bus_id == bus_id);
        let answer = match at.map(|at| &self.shelves[at]) {
            None => Err(OpStatus::NoDevice),
            Some(shelf) if shelf.user.is_some() && !shelf.tamper.lends() => Err(OpStatus::Busy),
            Some(shelf) => Ok(shelf.record.clone()),
        };
        let answer = match at {
            Some(at) => self.shelves[at].tamper.import(bus_id, answer),
            None => self.tamper.import(bus_id, answer),
        };
        let Some(conn) = self.conns.get_mut(&id) else { return };
        conn.server.reply_import(answer.as_ref().map_err(|status| *status));
        if let (Some(at), Ok(_)) = (at, &answer) {
            conn.shelf = Some(at);
            self.shelves[at].user = Some(id);
        }
        self.drain(id, at, Some((ExporterMessageKind::Import, usize::MAX)));
    }

    /// Encodes the completions of a connection.
    fn collect(&mut self, id: ConnId, now: Instant) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        if let Some(at) = conn.shelf {
            self.shelves[at].device.end_turn(now, &mut conn.done);
        }
        // Answers to unlinks that needed no device.
        let shelf = conn.shelf;
        self.drain(id, shelf, None);
        while let Some(conn) = self.conns.get_mut(&id) {
            let Some(done) = conn.done.pop() else { break };
            if !conn.server.is_in_flight(done.id) {
                continue;
            }
            if done.status == UrbStatus::Stall && !done.endpoint.is_control() {
                self.halted.insert((id, done.endpoint));
            }
            let length = HEADER_BYTES + done.payload.len() + done.iso.len() * ISO_PACKET_BYTES;
            conn.server.complete(done, &mut conn.done.pool);
            let shelf = conn.shelf;
            self.drain(id, shelf, Some((ExporterMessageKind::Submit, length)));
        }
    }

    /// Takes what the connection wants to send, as whole messages.
    fn taken(&mut self, id: ConnId) -> Vec<u8> {
        let Some(conn) = self.conns.get_mut(&id) else { return Vec::new() };
        let mut bytes = Vec::new();
        while conn.server.backlog_bytes() > 0 {
            let before = bytes.len();
            conn.server.poll_transmit().iter().for_each(|run| bytes.extend_from_slice(run));
            conn.server.handle_transmitted(bytes.len() - before, &mut conn.done.pool);
        }
        bytes
    }

    /// Passes on whole messages: the first of this kind and length, if it is there, then answers to unlinks and to
    /// requests that are too long.
    fn drain(&mut self, id: ConnId, at: Option<usize>, first: Option<(ExporterMessageKind, usize)>) {
        let mut bytes = self.taken(id);
        let mut first =
            first.filter(|(kind, _)| *kind != ExporterMessageKind::Submit || bytes.get(3) == Some(&RET_SUBMIT));
        while !bytes.is_empty() {
            let bare = match bytes.get(3) {
                Some(&RET_SUBMIT) => ExporterMessageKind::Submit,
                _ => ExporterMessageKind::Unlink,
            };
            let (kind, length) = first.take().unwrap_or((bare, HEADER_BYTES));
            let rest = bytes.split_off(length.min(bytes.len()));
            self.put(id, at, kind, bytes);
            bytes = rest;
        }
    }

    fn put(&mut self, id: ConnId, at: Option<usize>, kind: ExporterMessageKind, mut bytes: Vec<u8>) {
        let tamper = match at {
            Some(at) => &mut self.shelves[at].tamper,
            None => &mut self.tamper,
        };
        tamper.message(kind, &mut bytes);
        let hangs_up = tamper.hangs_up();
        if let Some(conn) = self.conns.get_mut(&id) {
            conn.out.extend(bytes);
            conn.is_over |= hangs_up;
        }
    }

    /// Bytes to send to a client.
    pub fn transmit(&self, id: ConnId) -> &[u8] {
        let Some(conn) = self.conns.get(&id) else { return &[] };
        let most = conn.shelf.map_or(usize::MAX, |at| self.shelves[at].tamper.piece_bytes_max());
        &conn.out[..conn.out.len().min(most)]
    }

    /// So many of them were sent.
    pub fn transmitted(&mut self, id: ConnId, count: usize) {
        if let Some(conn) = self.conns.get_mut(&id) {
            conn.out.drain(..count);
        }
    }

    /// Whether the connection has to be closed, once everything was sent.
    pub fn is_over(&self, id: ConnId) -> bool {
        self.conns.get(&id).is_none_or(|conn| conn.out.is_empty() && (conn.is_over || conn.server.is_finished()))
    }

    /// Whether the client's bytes are wanted: it reads its answers.
    pub fn wants(&self, id: ConnId) -> bool {
        self.conns.get(&id).is_some_and(|conn| conn.out.len() <= BACKLOG_BYTES_MAX)
    }

    /// Whether a request of this number is under way.
    pub fn is_in_flight(&self, id: ConnId, number: u32) -> bool {
        self.conns.get(&id).is_some_and(|conn| conn.server.is_in_flight(UrbId(number.into())))
    }

    /// Whether the client was told that this endpoint is halted, and has not cleared that.
    pub fn is_halted(&self, id: ConnId, endpoint: EpAddr) -> bool {
        self.halted.contains(&(id, endpoint))
    }

    /// The client clears the halt of one endpoint, or of all.
    pub fn clear_halts(&mut self, id: ConnId, endpoint: Option<EpAddr>) {
        self.halted.retain(|(of, which)| *of != id || endpoint.is_some_and(|endpoint| endpoint != *which));
    }

    /// Requests of a client that are under way.
    pub fn in_flight(&self, id: ConnId) -> usize {
        self.conns.get(&id).map_or(0, |conn| conn.server.in_flight())
    }

    /// The client left, or is sent away.
    pub fn close(&mut self, id: ConnId, now: Instant) {
        let Some(mut conn) = self.conns.remove(&id) else { return };
        let Some(at) = conn.shelf else { return };
        let shelf = &mut self.shelves[at];
        let pending: Vec<UrbId> = conn.server.ids_in_flight().collect();
        for urb in pending {
            shelf.device.cancel(now, urb, &mut conn.done);
        }
        if shelf.user == Some(id) && !shelf.tamper.keeps() {
            shelf.user = None;
            shelf.device.reset(now, &mut conn.done);
        }
        while conn.done.pop().is_some() {}
    }

    /// When [`MockExporter::handle_timeout`] wants to be called.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.shelves.iter().filter_map(|shelf| shelf.device.poll_timeout()).min()
    }

    /// The moment has come.
    pub fn handle_timeout(&mut self, now: Instant) {
        let users: Vec<(usize, ConnId)> =
            self.shelves.iter().enumerate().filter_map(|(at, shelf)| Some((at, shelf.user?))).collect();
        for (at, id) in users {
            let Some(conn) = self.conns.get_mut(&id) else { continue };
            let device = &mut self.shelves[at].device;
            if device.poll_timeout().is_some_and(|moment| moment <= now) {
                device.handle_timeout(now, &mut conn.done);
                self.collect(id, now);
            }
        }
    }

    /// The transfer type of an endpoint of the device that a connection has.
    pub fn kind_of(&self, id: ConnId, address: EpAddr) -> Option<TransferType> {
        let at = self.conns.get(&id)?.shelf?;
        self.shelves[at].device.selection().endpoint(address).map(|endpoint| endpoint.kind)
    }

    /// The bus ids on offer.
    pub fn bus_ids(&self) -> impl Iterator<Item = &str> {
        self.shelves.iter().map(|shelf| shelf.record.bus_id.as_str())
    }

    /// The bus id and the device id of the device that a connection has.
    pub fn device_of(&self, id: ConnId) -> Option<(&str, u32)> {
        let record = &self.shelves[self.conns.get(&id)?.shelf?].record;
        Some((&record.bus_id, record.device_id()))
    }
}

impl Drop for MockExporter {
    /// Every request is answered before its device goes.
    fn drop(&mut self) {
        while let Some(id) = self.conns.keys().next().copied() {
            self.close(id, Instant::ZERO);
        }
        let mut done = CompletionQueue::new(BufferPool::new(0));
        self.shelves.iter_mut().for_each(|shelf| shelf.device.reset(Instant::ZERO, &mut done));
    }
}
