//! A guest that moves from host to host in that world, each host an importer of its own. Its device sends data at any
//! time: also while requests are cancelled, which then return all of it, a part, or nothing.
//!
//! Every endpoint sends bytes that count up. The guest must always get the next byte, wherever it is.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use farbus_model::definition::InterfaceDefinition;
use farbus_model::{
    BufferPool, CompletionQueue, ConfigurationSelection, DescriptorSet, Device, DeviceDefinition, EpAddr,
    ExportIdentity, Instant, Payload, SessionLimits, TransferDirection, UrbId, UrbInFlight, UrbStatus, UsbSpeed,
};
use farbus_session::ProtocolViolation;
use farbus_session::native::{
    AttachmentBase, AttachmentState as GuestState, DeviceMigration, ExporterServices, ImporterAttachment,
    InheritedDevice, RemoteUsb, ServedExport, ServedUsb,
};
use farbus_session::redir::usbredir::message::DataPacket;
use farbus_session::redir::usbredir::{RedirConn, RedirMessage, RedirPacket, RedirRole, RedirStatus};
use farbus_session::redir::{CAPS, FROZEN_MAGIC, FrozenRedirStream, RedirHost};
use farbus_wire::native::control::{
    AttachmentClass, AttachmentEndCause, AttachmentEndNotice, AttachmentMode, OpenRequest, SuccessorOpenRequest,
};
use farbus_wire::native::{OutboundMessage, ReceivedFrame};

use crate::random::Random;
use crate::usb::record;
use crate::world::World;

const READ: EpAddr = EpAddr::from_byte(0x81);
const KEYS: EpAddr = EpAddr::from_byte(0x82);
const STREAM: EpAddr = EpAddr::from_byte(0x83);
/// Packet size of a bulk endpoint at high speed.
const PACKET: usize = 512;
/// Size of a read of the guest, and of a transfer of the stream.
const READ_BYTES: u32 = 3 * PACKET as u32;
const KEY_BYTES: usize = 8;
/// Most reads that the guest has open.
const READS_MAX: usize = 3;

/// The byte at a position of an endpoint's data. The sequence shows any number of missing packets.
fn byte_at(position: usize) -> u8 {
    (position % 251) as u8
}

/// A device that sends at random times, always to the oldest request, and cancels late.
struct Restless {
    descriptors: DescriptorSet,
    selection: ConfigurationSelection,
    queues: BTreeMap<EpAddr, VecDeque<UrbInFlight>>,
    /// Requests being cancelled, in order.
    withdrawn: VecDeque<UrbId>,
    /// What each endpoint sends next.
    next: BTreeMap<EpAddr, usize>,
    random: Random,
}

impl Restless {
    fn new(seed: u64) -> Self {
        let interval = Duration::from_micros(125);
        let interface =
            InterfaceDefinition::vendor().bulk_pair(1).interrupt(2, TransferDirection::In, 8, interval).bulk_pair(3);
        Self {
            descriptors: DeviceDefinition::new(0x1209, 2).names("farbus", "restless", "").interface(interface).build(),
            selection: ConfigurationSelection::default(),
            queues: BTreeMap::new(),
            withdrawn: VecDeque::new(),
            next: BTreeMap::new(),
            random: Random::new(seed),
        }
    }

    /// Completes the oldest request of an endpoint with this many bytes.
    fn end(&mut self, endpoint: EpAddr, status: UrbStatus, length: usize, done: &mut CompletionQueue) {
        let urb = self.queues.get_mut(&endpoint).and_then(VecDeque::pop_front).expect("it has one");
        self.withdrawn.retain(|id| *id != urb.id);
        let next = self.next.entry(endpoint).or_default();
        let bytes: Vec<u8> = (*next..*next + length).map(byte_at).collect();
        *next += length;
        done.push(urb.done(status, length as u32, bytes.into()));
    }

    /// Completes the oldest cancel.
    fn let_go(&mut self, done: &mut CompletionQueue) {
        let Some(id) = self.withdrawn.pop_front() else { return };
        let found = self.queues.iter().find_map(|(&endpoint, queue)| {
            queue.iter().position(|urb| urb.id == id).map(|at| (endpoint, at, queue[at].length as usize))
        });
        let (endpoint, at, length) = found.expect("what was withdrawn is there");
        let packets = length / PACKET;
        match (at, self.random.below(3)) {
            // The first request in the queue may have data already.
            (0, 0) if packets > 1 => {
                let some = PACKET * (1 + self.random.below(packets as u64 - 1) as usize);
                self.end(endpoint, UrbStatus::Cancelled, some, done);
            }
            (0, 1) => self.end(endpoint, UrbStatus::Ok, length, done),
            _ => {
                let urb = self.queues.get_mut(&endpoint).and_then(|queue| queue.remove(at)).expect("found just now");
                done.push(urb.fail(UrbStatus::Cancelled));
            }
        }
    }
}

impl Device for Restless {
    fn descriptors(&self) -> &DescriptorSet {
        &self.descriptors
    }

    fn speed(&self) -> UsbSpeed {
        UsbSpeed::High
    }

    fn selection(&self) -> &ConfigurationSelection {
        &self.selection
    }

    fn submit(&mut self, _now: Instant, mut urb: UrbInFlight, done: &mut CompletionQueue) {
        if urb.endpoint.is_control() {
            self.selection.select_configuration(&self.descriptors, urb.setup.value as u8);
            return done.push(urb.accept());
        }
        urb.own_payload();
        self.queues.entry(urb.endpoint).or_default().push_back(urb);
    }

    fn cancel(&mut self, _now: Instant, id: UrbId, _done: &mut CompletionQueue) {
        let has_it = self.queues.values().flatten().any(|urb| urb.id == id);
        if has_it && !self.withdrawn.contains(&id) {
            self.withdrawn.push_back(id);
        }
    }

    /// Lost data is not missed, because the position advances.
    fn reset(&mut self, _now: Instant, done: &mut CompletionQueue) {
        self.withdrawn.clear();
        for urb in self.queues.values_mut().flat_map(|queue| queue.drain(..)) {
            done.push(urb.fail(UrbStatus::Shutdown));
        }
        self.next.values_mut().for_each(|next| *next += 77);
    }

    fn handle_ready(&mut self, _now: Instant, done: &mut CompletionQueue) {
        if self.random.once_in(2) {
            self.let_go(done);
        }
        for endpoint in [READ, KEYS, STREAM] {
            let Some(length) = self.queues.get(&endpoint).and_then(|queue| queue.front()).map(|urb| urb.length) else {
                continue;
            };
            match (endpoint, self.random.below(8)) {
                (KEYS, 0) => self.end(KEYS, UrbStatus::Ok, KEY_BYTES, done),
                (KEYS, _) => {}
                (_, 0) => self.end(endpoint, UrbStatus::Ok, length as usize, done),
                // A short packet ends the transfer.
                (_, 1) => {
                    let short = self.random.below(u64::from(length)) as usize;
                    self.end(endpoint, UrbStatus::Ok, short, done);
                }
                _ => {}
            }
        }
    }
}

impl Drop for Restless {
    fn drop(&mut self) {
        for urb in self.queues.values_mut().flat_map(|queue| queue.drain(..)) {
            let _ = urb.fail(UrbStatus::Gone);
        }
    }
}

/// The exporter's services: one device, which is opened or handed over.
struct GuestServices {
    seed: u64,
    lease: u64,
    left: Arc<Mutex<Option<(Restless, DeviceMigration)>>>,
}

impl GuestServices {
    fn serve(&mut self, number: u16, device: Restless) -> (u64, Box<dyn ServedExport>) {
        let left = Arc::clone(&self.left);
        let pass_on = move |device: Restless, _, migration| left.lock().unwrap().replace((device, migration)).is_none();
        let served = ServedUsb::new(number, device, record(), SessionLimits::DEFAULT, |_, _| {});
        self.lease += 1;
        (self.lease, Box::new(served.inheritable(pass_on)))
    }
}

impl ExporterServices for GuestServices {
    fn identity(&mut self, _open: &OpenRequest) -> Option<ExportIdentity> {
        Some(ExportIdentity { id: 9, generation: 0 })
    }

    fn open(
        &mut self,
        _now: Instant,
        number: u16,
        _open: &OpenRequest,
    ) -> Result<(u64, Box<dyn ServedExport>), AttachmentEndNotice> {
        Ok(self.serve(number, Restless::new(self.seed)))
    }

    fn inherit(
        &mut self,
        _now: Instant,
        number: u16,
        _inherit: &SuccessorOpenRequest,
    ) -> Option<Result<InheritedDevice, AttachmentEndNotice>> {
        let (device, DeviceMigration { migration_state, .. }) = self.left.lock().unwrap().take()?;
        let (lease, served) = self.serve(number, device);
        Some(Ok(InheritedDevice { lease, served, migration_state }))
    }
}

/// A host's connection between its guest and the device.
struct GuestHost(RedirHost<RemoteUsb>);

impl GuestHost {
    fn remote<T>(&mut self, act: impl FnOnce(&mut RemoteUsb, &mut CompletionQueue) -> T) -> T {
        self.0.with_device(act)
    }
}

impl ImporterAttachment for GuestHost {
    type Done = ();

    fn attachment(&self) -> &AttachmentBase {
        self.0.session().device().attachment()
    }

    fn attachment_mut(&mut self) -> &mut AttachmentBase {
        unreachable!("its device is used through a closure")
    }

    fn handle_arrived(&mut self, now: Instant, arrived: ReceivedFrame, (): &mut ()) -> Result<(), ProtocolViolation> {
        self.remote(|remote, done| remote.handle_arrived(now, arrived, done))
    }

    fn handle_renewed(&mut self, _now: Instant, (): &mut ()) {
        unreachable!("no exporter crashes here")
    }

    /// Its devices are all of one exporter.
    fn note_exporter(&mut self, _incarnation: u64) {}

    fn handle_over(&mut self, cause: AttachmentEndCause, message: &str, (): &mut ()) {
        self.remote(|remote, done| remote.handle_over(cause, message, done));
    }

    fn poll_message(&mut self) -> Option<OutboundMessage> {
        self.remote(|remote, _| remote.poll_message())
    }

    fn close(&mut self) {
        self.remote(|remote, _| remote.close());
    }
}

/// The guest, and the bytes that it expects next.
struct Guest {
    conn: RedirConn,
    /// Bytes that it sent, on their way.
    bytes: Vec<u8>,
    reads: VecDeque<u64>,
    next_id: u64,
    next: BTreeMap<EpAddr, usize>,
    heard: u32,
}

impl Guest {
    fn say(&mut self, id: u64, message: RedirMessage) {
        self.conn.send(RedirPacket { id, message }, &mut BufferPool::new(0));
        self.flush();
    }

    fn flush(&mut self) {
        let bytes: Vec<u8> = self.conn.poll_transmit().iter().map(|run| &**run).collect::<Vec<_>>().concat();
        self.conn.handle_transmitted(bytes.len(), &mut BufferPool::new(0));
        self.bytes.extend(bytes);
    }

    fn read(&mut self) {
        let (id, outcome) = (self.next_id, RedirStatus::Success);
        self.next_id += 1;
        self.reads.push_back(id);
        let packet = DataPacket { endpoint: READ, outcome, length: READ_BYTES, stream: 0, payload: Payload::Empty };
        self.say(id, RedirMessage::Bulk(packet));
    }

    fn hear(&mut self, bytes: &[u8]) {
        let mut rest = bytes;
        while !rest.is_empty() {
            let space = self.conn.receive_space();
            let count = space.len().min(rest.len());
            space[..count].copy_from_slice(&rest[..count]);
            self.conn.handle_received(count);
            rest = &rest[count..];
            while let Some(RedirPacket { id, message }) = self.conn.poll_packet().expect("a host keeps to the protocol")
            {
                match message {
                    RedirMessage::Bulk(packet) => {
                        assert_eq!(self.reads.pop_front(), Some(id), "reads are answered in their order, once");
                        self.take_in(packet);
                    }
                    RedirMessage::Interrupt(packet) | RedirMessage::BufferedBulk(packet) => self.take_in(packet),
                    _ => {}
                }
            }
        }
    }

    fn take_in(&mut self, DataPacket { endpoint, outcome, payload, .. }: DataPacket) {
        assert_eq!(outcome, RedirStatus::Success, "of {endpoint:?}");
        let next = self.next.entry(endpoint).or_default();
        for byte in payload.into_vec() {
            assert_eq!(byte, byte_at(*next), "{endpoint:?} goes on where it was");
            *next += 1;
        }
        self.heard += 1;
    }
}

/// The progress of a move.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Stays,
    Held {
        for_steps: u32,
    },
    /// The guest has left; its device is on its way.
    Left,
}

/// A guest, its current host, and the host to which it moves.
pub struct GuestWorld {
    here: World<GuestHost>,
    there: Option<World<GuestHost>>,
    exporter_services: GuestServices,
    guest: Guest,
    stage: Stage,
    /// The guest's stream, until its device has arrived.
    migration_state: Option<Vec<u8>>,
    moves: u32,
}

fn open() -> OpenRequest {
    let (name, reason) = ("restless".to_owned(), String::new());
    OpenRequest { class: AttachmentClass::USB, mode: AttachmentMode::Exclusive, epoch: 0, name, reason }
}

impl GuestWorld {
    pub fn new(random: &mut Random) -> Self {
        let guest_host = GuestHost(RedirHost::new(RemoteUsb::new(1, open()), SessionLimits::DEFAULT));
        let conn = RedirConn::new(RedirRole::Guest, "test", CAPS, &SessionLimits::DEFAULT);
        let next = BTreeMap::new();
        let guest = Guest { conn, bytes: Vec::new(), reads: VecDeque::new(), next_id: 10, next, heard: 0 };
        let exporter_services = GuestServices { seed: random.next(), lease: 0, left: Arc::default() };
        let (here, there, stage, migration_state, moves) = (World::new(guest_host), None, Stage::Stays, None, 0);
        let mut world = Self { here, there, exporter_services, guest, stage, migration_state, moves };
        world.here.link(random, &mut ());
        world.here.exchange(&mut world.exporter_services, &mut ());
        world.here.remote.0.connect();
        world.guest.flush();
        world.carry();
        world.guest.say(1, RedirMessage::SetConfiguration(1));
        world.carry();
        world.here.exchange(&mut world.exporter_services, &mut ());
        world.carry();
        world.guest.say(0, RedirMessage::StartInterruptReceiving(KEYS));
        let (bytes_per_transfer, endpoint) = (READ_BYTES, STREAM);
        world.guest.say(0, RedirMessage::StartBulkReceiving { stream: 0, bytes_per_transfer, endpoint, transfers: 2 });
        world.carry();
        world
    }

    /// Carries bytes between guest and host.
    fn carry(&mut self) {
        let (host, now) = (&mut self.here.remote.0, self.here.now);
        if self.stage == Stage::Left {
            return;
        }
        let bytes = std::mem::take(&mut self.guest.bytes);
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            let space = host.receive_space();
            let count = space.len().min(rest.len());
            space[..count].copy_from_slice(&rest[..count]);
            host.handle_received(count);
            rest = &rest[count..];
            host.advance(now).expect("a guest that behaves");
        }
        host.advance(now).expect("a guest that behaves");
        while host.has_transmit() {
            let bytes: Vec<u8> = host.poll_transmit().iter().map(|run| &**run).collect::<Vec<_>>().concat();
            host.handle_transmitted(bytes.len());
            self.guest.hear(&bytes);
            host.advance(now).expect("a guest that behaves");
        }
    }

    fn shuffle(&mut self, random: &mut Random) {
        let (here, exporter_services) = (&mut self.here, &mut self.exporter_services);
        for world in [Some(here), self.there.as_mut()].into_iter().flatten() {
            world.now = world.now + Duration::from_micros(100);
            world.shuffle(random, exporter_services, &mut ());
            let now = world.now;
            if random.once_in(100) {
                world.link(random, &mut ());
            }
            if let Some(session) = &mut world.exporter {
                session.handle_ready(now);
                session.look_for_handed_over(now, exporter_services);
                assert!(
                    !session.has_successors() || !session.only_talks(),
                    "what a successor waits for comes from elsewhere"
                );
            }
            if !world.is_linked() {
                world.link(random, &mut ());
            }
        }
    }

    /// Plays one random event.
    pub fn step(&mut self, random: &mut Random) {
        match random.below(6) {
            0 if self.guest.reads.len() < READS_MAX => self.guest.read(),
            1 => self.carry(),
            2 if random.once_in(5) => self.go_on_moving(random),
            _ => self.shuffle(random),
        }
    }

    fn go_on_moving(&mut self, random: &mut Random) {
        let (host, now) = (&mut self.here.remote.0, self.here.now);
        match self.stage {
            Stage::Stays => {
                host.quiesce(now);
                self.stage = Stage::Held { for_steps: 0 };
            }
            // The guest stays after all.
            Stage::Held { .. } if random.once_in(8) => {
                host.resume();
                self.stage = Stage::Stays;
            }
            Stage::Held { for_steps } => {
                if for_steps == 2 {
                    host.take_back_reads(now);
                }
                self.stage = Stage::Held { for_steps: for_steps + 1 };
                self.carry();
                if self.here.remote.0.is_quiet() && !self.here.remote.0.has_transmit() {
                    self.leave(random);
                }
            }
            Stage::Left => self.follow(),
        }
    }

    fn leave(&mut self, random: &mut Random) {
        self.migration_state = Some(self.here.remote.0.freeze().to_bytes());
        let guest_host =
            GuestHost(RedirHost::new(RemoteUsb::successor(1, open(), *FROZEN_MAGIC), SessionLimits::DEFAULT));
        let mut there = World::new(guest_host);
        there.now = self.here.now;
        there.link(random, &mut ());
        self.there = Some(there);
        self.stage = Stage::Left;
    }

    /// The device follows as soon as nothing is in flight, and the guest continues when it has arrived.
    fn follow(&mut self) {
        let migration_state = &mut self.migration_state;
        self.here.remote.remote(|remote, _| {
            if let Some(migration_state) = migration_state.take_if(|_| remote.is_still()) {
                remote.migrate_with([1; 32], migration_state);
            }
        });
        let is_there = |world: &World<GuestHost>| *world.remote.state() == GuestState::Open;
        let Some(mut there) = self.there.take_if(|world| is_there(world)) else { return };
        let migration_state = there.remote.remote(|remote, _| remote.take_migration_state());
        let frozen = FrozenRedirStream::from_bytes(&migration_state).expect("it survives the way");
        there.remote.0.thaw(there.now, frozen).expect("a guest said all this");
        self.guest.conn = RedirConn::continued(RedirRole::Guest, CAPS, CAPS, &SessionLimits::DEFAULT);
        self.here = there;
        self.stage = Stage::Stays;
        self.moves += 1;
    }

    /// Everything in flight completes; returns how much data the guest got, and how often it moved.
    pub fn settle(mut self, random: &mut Random) -> (u32, u32) {
        for _ in 0..100_000 {
            if self.stage == Stage::Stays && self.guest.reads.is_empty() {
                break;
            }
            self.go_on_moving_home();
            self.carry();
            self.shuffle(random);
        }
        assert!(self.stage == Stage::Stays && self.guest.reads.is_empty(), "it comes to its end");
        let heard = (self.guest.heard, self.moves);
        self.here.give_up(&mut ());
        heard
    }

    fn go_on_moving_home(&mut self) {
        match self.stage {
            Stage::Stays => {}
            Stage::Held { .. } => {
                self.here.remote.0.resume();
                self.stage = Stage::Stays;
            }
            Stage::Left => self.follow(),
        }
    }
}
