//! A device session joined with a connection: the usb-host end of usbredir.

use farbus_model::{BufferPool, CompletionQueue, Device, Instant, SessionLimits};
use farbus_wire::SendSlices;
use farbus_wire::usbredir::{RedirCapability, RedirCapabilitySet, RedirConn, RedirMessage, RedirRole};

use super::device_session::DeviceSession;
use super::frozen::FrozenRedirStream;
use crate::exporter::{ConnectionFault, ExporterCounters};

/// Our capabilities. Bulk streams are not among them, because USB/IP cannot carry them.
pub const CAPS: RedirCapabilitySet = RedirCapabilitySet::NONE
    .with(RedirCapability::ConnectDeviceVersion)
    .with(RedirCapability::Filter)
    .with(RedirCapability::DeviceDisconnectAck)
    .with(RedirCapability::EpInfoMaxPacketSize)
    .with(RedirCapability::Ids64)
    .with(RedirCapability::BulkLength32)
    .with(RedirCapability::BulkReceiving);

/// Our version string in a hello.
const VERSION: &str = concat!("farbus ", env!("CARGO_PKG_VERSION"));
/// Least memory of one answer, for limiting what waits for a guest that does not read.
const ANSWER_BYTES: usize = 64;

/// A device session, and its connection if there is one.
pub struct RedirHost<D> {
    session: DeviceSession<D>,
    conn: Option<RedirConn>,
    /// Whether nothing more goes to the connection, because the stream is about to move.
    is_held: bool,
    limits: SessionLimits,
    /// Takes back the buffers of sent payloads.
    pool: BufferPool,
}

impl<D: Device> RedirHost<D> {
    /// A device without a guest.
    pub fn new(device: D, limits: SessionLimits) -> Self {
        let pool = BufferPool::new(limits.pool_bytes);
        Self { session: DeviceSession::new(device, limits), conn: None, is_held: false, limits, pool }
    }

    /// The device and its open requests.
    pub fn session(&self) -> &DeviceSession<D> {
        &self.session
    }

    /// A guest has connected.
    ///
    /// # Panics
    /// If a guest is connected already.
    pub fn connect(&mut self) {
        assert!(self.conn.is_none(), "a device has one guest");
        self.conn = Some(RedirConn::new(RedirRole::Host, VERSION, CAPS, &self.limits));
    }

    /// The guest has disconnected: cancels everything and resets the device for the next guest.
    pub fn disconnect(&mut self, now: Instant) {
        self.is_held = false;
        if self.conn.take().is_some() {
            self.session.handle_disconnected(now);
        }
    }

    /// The guest is about to move elsewhere (a live migration): nothing new is submitted for it or sent to it, streams
    /// stop, and its packets wait. What was given to the connection before must be sent completely: the guest takes
    /// along what it has read, but not what is on its way.
    pub fn quiesce(&mut self, now: Instant) {
        self.is_held = true;
        self.session.quiesce(now);
    }

    /// Cancels reads that have no data yet; they move along as requests. Call it after the device has had time to
    /// answer.
    pub fn take_back_reads(&mut self, now: Instant) {
        self.session.take_back_reads(now);
    }

    /// Whether no request is in flight, so that the stream can move: see [`RedirHost::freeze`].
    pub fn is_quiet(&self) -> bool {
        self.session.is_quiet() && self.conn.as_ref().is_some_and(|conn| conn.common().is_some())
    }

    /// The guest stays, or continues from here on another connection, at the next byte in both directions. Call
    /// [`RedirHost::advance`] afterwards.
    pub fn resume(&mut self) {
        self.is_held = false;
        self.session.stay();
    }

    /// Takes the stream away to move it. The device stays in its state, without a reset and without a guest.
    ///
    /// # Panics
    /// If [`RedirHost::is_quiet`] is false.
    pub fn freeze(&mut self) -> FrozenRedirStream {
        assert!(self.is_quiet(), "what moves owes nothing");
        let mut conn = self.conn.take().expect("a quiet one has a connection");
        self.is_held = false;
        let theirs = conn.theirs().expect("whose other end has said hello");
        while let Some(packet) = self.session.poll_packet() {
            conn.send(packet, &mut self.pool);
        }
        // Requests are encoded as the guest would send them, so the format does not depend on their representation
        // here.
        let mut requests = RedirConn::continued(RedirRole::Guest, theirs, CAPS, &self.limits);
        for packet in self.session.take_requests() {
            requests.send(packet, &mut self.pool);
        }
        let mut from_guest = drain(&mut requests, &mut self.pool);
        from_guest.extend_from_slice(conn.unread());
        let to_guest = drain(&mut conn, &mut self.pool);
        let selection = self.session.device().selection();
        let (configuration, alternates) = (selection.configuration(), selection.alternates().to_vec());
        self.session.handle_moved_away();
        FrozenRedirStream { theirs, configuration, alternates, from_guest, to_guest }
    }

    /// Continues a frozen stream; the device must be in the state that it describes. The guest's requests are submitted
    /// at once; their answers wait for the connection that carries the stream from here.
    ///
    /// # Errors
    /// [`ConnectionFault`]: the guest's packets are invalid, or the device is in another state; call [`RedirHost::disconnect`].
    ///
    /// # Panics
    /// If a guest is connected.
    pub fn thaw(&mut self, now: Instant, frozen: FrozenRedirStream) -> Result<(), ConnectionFault> {
        assert!(self.conn.is_none(), "a device has one guest");
        let mut conn = RedirConn::continued(RedirRole::Host, CAPS, frozen.theirs, &self.limits);
        let common = conn.common().expect("it was said before");
        conn.send_again(frozen.to_guest, &mut self.pool);
        self.conn = Some(conn);
        self.session.handle_moved_here(common, frozen.configuration, &frozen.alternates)?;
        let mut rest = &frozen.from_guest[..];
        while !rest.is_empty() {
            let space = self.receive_space();
            let count = space.len().min(rest.len());
            space[..count].copy_from_slice(&rest[..count]);
            self.handle_received(count);
            rest = &rest[count..];
            self.advance(now)?;
        }
        self.session.go_on_here();
        self.advance(now)
    }

    /// Takes the device in its current state, for another user.
    ///
    /// # Panics
    /// If a request is in flight.
    pub fn into_device(self) -> D {
        self.session.into_device()
    }

    /// Whether a guest is connected.
    pub fn is_connected(&self) -> bool {
        self.conn.is_some()
    }

    /// The buffer for the guest's bytes.
    ///
    /// # Panics
    /// If no guest is connected.
    pub fn receive_space(&mut self) -> &mut [u8] {
        self.conn.as_mut().expect("somebody is connected").receive_space()
    }

    /// `count` of them arrived; [`RedirHost::advance`] acts on them.
    ///
    /// # Panics
    /// If no guest is connected.
    pub fn handle_received(&mut self, count: usize) {
        self.conn.as_mut().expect("somebody is connected").handle_received(count);
    }

    /// Moves every request along, from the guest's bytes to the device, and from the device's completions to the bytes
    /// that wait to be sent. Call it after anything happened.
    ///
    /// # Errors
    /// [`ConnectionFault`]: the connection must end; call [`RedirHost::disconnect`].
    pub fn advance(&mut self, now: Instant) -> Result<(), ConnectionFault> {
        self.session.go_on(now)?;
        if let Some(conn) = &mut self.conn {
            while let Some(packet) = conn.poll_packet()? {
                match &packet.message {
                    RedirMessage::Hello { .. } => {
                        let common = conn.common().expect("a hello says what its end can do");
                        self.session.handle_hello(common);
                    }
                    _ => self.session.handle_packet(now, packet)?,
                }
            }
        }
        let mut is_due = true;
        loop {
            self.session.advance(now, is_due);
            is_due = false;
            if !self.hand_over() {
                break;
            }
        }
        match self.session.backlog_packets() * ANSWER_BYTES > self.limits.reply_header_bytes_max {
            true => Err(ConnectionFault::NeverReads),
            false => Ok(()),
        }
    }

    /// Moves packets to the connection while it has room; returns whether any moved.
    fn hand_over(&mut self) -> bool {
        if self.is_held {
            return false;
        }
        let Some(conn) = self.conn.as_mut().filter(|conn| conn.common().is_some()) else { return false };
        let mut has_moved = false;
        while conn.backlog_bytes() < self.limits.reply_bytes_backlog
            && let Some(packet) = self.session.poll_packet()
        {
            conn.send(packet, &mut self.pool);
            has_moved = true;
        }
        has_moved
    }

    /// The device is gone; call [`RedirHost::advance`] afterwards.
    pub fn handle_gone(&mut self, now: Instant) {
        self.session.handle_gone(now);
    }

    /// Runs `act` with the device and its completions; call [`RedirHost::advance`] afterwards.
    pub fn with_device<T>(&mut self, act: impl FnOnce(&mut D, &mut CompletionQueue) -> T) -> T {
        self.session.with_device(act)
    }

    /// When [`RedirHost::handle_timeout`] must be called.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.session.device().poll_timeout()
    }

    /// The moment of [`RedirHost::poll_timeout`] has come; call [`RedirHost::advance`] afterwards.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.session.with_device(|device, done| device.handle_timeout(now, done));
    }

    /// Whether everything about the device has been said and sent.
    pub fn is_finished(&self) -> bool {
        self.session.has_left() && !self.has_transmit()
    }

    /// Whether the connection has room for waiting packets: call [`RedirHost::advance`] before waiting.
    pub fn is_hungry(&self) -> bool {
        let has_room = self.conn.as_ref().is_some_and(|conn| conn.backlog_bytes() < self.limits.reply_bytes_backlog);
        has_room && !self.is_held && self.session.has_packets()
    }

    /// Whether anything waits to be sent to the guest.
    pub fn has_transmit(&self) -> bool {
        self.conn.as_ref().is_some_and(|conn| conn.backlog_bytes() > 0)
    }

    /// The runs of memory to send next, in order.
    pub fn poll_transmit(&self) -> SendSlices<'_> {
        self.conn.as_ref().map(RedirConn::poll_transmit).unwrap_or_default()
    }

    /// `count` bytes were sent; call [`RedirHost::advance`] afterwards.
    pub fn handle_transmitted(&mut self, count: usize) {
        if let Some(conn) = &mut self.conn {
            conn.handle_transmitted(count, &mut self.pool);
        }
    }

    /// What the session has counted; see [`DeviceSession::counters`].
    pub fn counters(&self) -> ExporterCounters {
        self.session.counters()
    }

    /// Cancels everything, resets the device and returns it.
    pub fn finish(self, now: Instant) -> D {
        self.session.finish(now)
    }
}

/// All bytes that a connection would send.
fn drain(conn: &mut RedirConn, pool: &mut BufferPool) -> Vec<u8> {
    let mut all = Vec::with_capacity(conn.backlog_bytes());
    while conn.backlog_bytes() > 0 {
        let count = conn.poll_transmit().iter().map(|run| run.len()).sum();
        conn.poll_transmit().iter().for_each(|run| all.extend_from_slice(run));
        conn.handle_transmitted(count, pool);
    }
    all
}
