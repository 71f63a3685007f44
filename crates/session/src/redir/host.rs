//! A device session and a connection, joined: the usb-host end of usbredir.

use farbus_model::{BufferPool, Completions, Device, Instant, Limits};
use farbus_wire::Runs;
use farbus_wire::usbredir::{Capability, Caps, Conn, Message, Side};

use super::device_session::DeviceSession;
use super::frozen::Frozen;
use crate::exporter::{Counters, Fault};

/// What we can do. Bulk streams are not among it: USB/IP, over which devices come, has no word for them.
pub const CAPS: Caps = Caps::NONE
    .with(Capability::ConnectDeviceVersion)
    .with(Capability::Filter)
    .with(Capability::DeviceDisconnectAck)
    .with(Capability::EpInfoMaxPacketSize)
    .with(Capability::Ids64)
    .with(Capability::BulkLength32)
    .with(Capability::BulkReceiving);

/// Who we are, in a hello.
const VERSION: &str = concat!("farbus ", env!("CARGO_PKG_VERSION"));
/// The least that an answer takes: what waits for a guest that does not read is counted in these.
const ANSWER_BYTES: usize = 64;

/// A device session, and the connection that it is lent, if any.
pub struct RedirHost<D> {
    session: DeviceSession<D>,
    conn: Option<Conn>,
    /// Nothing more goes to the connection: it is about to be another's.
    is_held: bool,
    limits: Limits,
    /// What sends gives buffers back to while there is no session's own.
    pool: BufferPool,
}

impl<D: Device> RedirHost<D> {
    /// A device, and nobody connected.
    pub fn new(device: D, limits: Limits) -> Self {
        let pool = BufferPool::new(limits.pool_bytes);
        Self { session: DeviceSession::new(device, limits), conn: None, is_held: false, limits, pool }
    }

    /// The device and what is under way with it.
    pub fn session(&self) -> &DeviceSession<D> {
        &self.session
    }

    /// Somebody has connected.
    ///
    /// # Panics
    /// If somebody is connected.
    pub fn connect(&mut self) {
        assert!(self.conn.is_none(), "a device has one guest");
        self.conn = Some(Conn::new(Side::Host, VERSION, CAPS, &self.limits));
    }

    /// Nobody is connected any more: what was under way is withdrawn, and the device is reset for whoever comes next.
    pub fn disconnect(&mut self, now: Instant) {
        self.is_held = false;
        if self.conn.take().is_some() {
            self.session.handle_disconnected(now);
        }
    }

    /// The guest is about to go on elsewhere (a live migration): nothing new is begun for it or said to it, streams
    /// stop, and what it still says waits. What was handed to the connection before has to be sent, whole: a guest
    /// takes along what it has read, and not what lies on the way to it.
    pub fn quiesce(&mut self, now: Instant) {
        self.is_held = true;
        self.session.quiesce(now);
    }

    /// The device has had its time: reads that have nothing yet are taken back, and go along as requests.
    pub fn take_back_reads(&mut self, now: Instant) {
        self.session.take_back_reads(now);
    }

    /// Whether the device owes nothing, so that the stream may go: see [`RedirHost::freeze`].
    pub fn is_quiet(&self) -> bool {
        self.session.is_quiet() && self.conn.as_ref().is_some_and(|conn| conn.common().is_some())
    }

    /// The guest stays, or goes on from here on another connection: at the very next byte in both directions, whatever
    /// carries them. Call [`RedirHost::advance`] afterwards.
    pub fn resume(&mut self) {
        self.is_held = false;
        self.session.stay();
    }

    /// Takes the stream away, for another home: what stays is the device as it is, not reset, which nobody uses.
    ///
    /// # Panics
    /// Unless it is quiet.
    pub fn freeze(&mut self) -> Frozen {
        assert!(self.is_quiet(), "what moves owes nothing");
        let mut conn = self.conn.take().expect("a quiet one has a connection");
        self.is_held = false;
        let theirs = conn.theirs().expect("whose other end has said hello");
        while let Some(packet) = self.session.poll_packet() {
            conn.send(packet, &mut self.pool);
        }
        // Said once more, as the guest would: nobody else need know how requests are kept here.
        let mut requests = Conn::continued(Side::Guest, theirs, CAPS, &self.limits);
        for packet in self.session.take_requests() {
            requests.send(packet, &mut self.pool);
        }
        let mut from_guest = drain(&mut requests, &mut self.pool);
        from_guest.extend_from_slice(conn.unread());
        let to_guest = drain(&mut conn, &mut self.pool);
        let selection = self.session.device().selection();
        let (configuration, alternates) = (selection.configuration(), selection.alternates().to_vec());
        self.session.handle_moved_away();
        Frozen { theirs, configuration, alternates, from_guest, to_guest }
    }

    /// Goes on with a frozen stream; the device is in the state that it says. The guest's requests are begun at once;
    /// their answers wait for whoever carries the stream from here.
    ///
    /// # Errors
    /// [`Fault`]: what the guest had said is not what a guest says, or the device is another's; call [`RedirHost::disconnect`].
    ///
    /// # Panics
    /// If somebody is connected.
    pub fn thaw(&mut self, now: Instant, frozen: Frozen) -> Result<(), Fault> {
        assert!(self.conn.is_none(), "a device has one guest");
        let mut conn = Conn::continued(Side::Host, CAPS, frozen.theirs, &self.limits);
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
        Ok(())
    }

    /// The device, for whoever goes on with it.
    ///
    /// # Panics
    /// If it owes an answer.
    pub fn into_device(self) -> D {
        self.session.into_device()
    }

    /// Whether somebody is.
    pub fn is_connected(&self) -> bool {
        self.conn.is_some()
    }

    /// Where the guest's bytes go.
    ///
    /// # Panics
    /// If nobody is connected.
    pub fn receive_space(&mut self) -> &mut [u8] {
        self.conn.as_mut().expect("somebody is connected").receive_space()
    }

    /// `count` of them arrived; [`RedirHost::advance`] acts on them.
    ///
    /// # Panics
    /// If nobody is connected.
    pub fn handle_received(&mut self, count: usize) {
        self.conn.as_mut().expect("somebody is connected").handle_received(count);
    }

    /// The journey of every request, from the guest's bytes to the device, and back from what the device has finished
    /// to the bytes that wait to be sent. Call it after anything happened.
    ///
    /// # Errors
    /// [`Fault`]: the connection is at its end; call [`RedirHost::disconnect`].
    pub fn advance(&mut self, now: Instant) -> Result<(), Fault> {
        self.session.go_on(now)?;
        if let Some(conn) = &mut self.conn {
            while let Some(packet) = conn.poll_packet()? {
                match &packet.message {
                    Message::Hello { .. } => {
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
            true => Err(Fault::NeverReads),
            false => Ok(()),
        }
    }

    /// Moves packets to the connection while it has room; whether any moved.
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

    /// Lets `act` use the device and the place for what it finishes; call [`RedirHost::advance`] afterwards.
    pub fn with_device<T>(&mut self, act: impl FnOnce(&mut D, &mut Completions) -> T) -> T {
        self.session.with_device(act)
    }

    /// When [`RedirHost::handle_timeout`] wants to be called.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.session.device().poll_timeout()
    }

    /// That moment has come; call [`RedirHost::advance`] afterwards.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.session.with_device(|device, done| device.handle_timeout(now, done));
    }

    /// Whether all was said and sent that will ever be said of the device.
    pub fn is_finished(&self) -> bool {
        self.session.has_left() && !self.has_transmit()
    }

    /// Whether more would go to the connection now that it has room: call [`RedirHost::advance`] before waiting.
    pub fn is_hungry(&self) -> bool {
        let has_room = self.conn.as_ref().is_some_and(|conn| conn.backlog_bytes() < self.limits.reply_bytes_backlog);
        has_room && !self.is_held && self.session.has_packets()
    }

    /// Whether anything waits to be sent to the guest.
    pub fn has_transmit(&self) -> bool {
        self.conn.as_ref().is_some_and(|conn| conn.backlog_bytes() > 0)
    }

    /// The runs of memory to send next, in order.
    pub fn poll_transmit(&self) -> Runs<'_> {
        self.conn.as_ref().map(Conn::poll_transmit).unwrap_or_default()
    }

    /// `count` bytes were sent; call [`RedirHost::advance`] afterwards.
    pub fn handle_transmitted(&mut self, count: usize) {
        if let Some(conn) = &mut self.conn {
            conn.handle_transmitted(count, &mut self.pool);
        }
    }

    /// What passed through.
    pub fn counters(&self) -> Counters {
        self.session.counters()
    }

    /// Nobody will use the device any more.
    pub fn finish(self, now: Instant) -> D {
        self.session.finish(now)
    }
}

/// All the bytes that a connection would send.
fn drain(conn: &mut Conn, pool: &mut BufferPool) -> Vec<u8> {
    let mut all = Vec::with_capacity(conn.backlog_bytes());
    while conn.backlog_bytes() > 0 {
        let count = conn.poll_transmit().iter().map(|run| run.len()).sum();
        conn.poll_transmit().iter().for_each(|run| all.extend_from_slice(run));
        conn.handle_transmitted(count, pool);
    }
    all
}
