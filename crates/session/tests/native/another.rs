//! Several disks in that world: after a restart the exporter shares them in another order, or another disk under a
//! name.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use farbus_model::{
    BlockCompletion, BlockDevice, BlockId, BlockInFlight, BlockInfo, BlockOp, BlockRequest, BufferPool,
    CompletionQueue, ExportIdentity, Instant, Payload,
};
use farbus_session::leases::{DeviceKey, DeviceLeases, LeaseEntitlement};
use farbus_session::native::known_device::compare;
use farbus_session::native::{
    AttachmentBase, AttachmentState, ExporterServices, ImporterAttachment, InheritedDevice, MovableAttachment,
    RemoteBlock, ServedBlock, ServedExport,
};
use farbus_session::snapshot::{FieldReader, SnapshotWriter};
use farbus_session::{ProtocolViolation, native};
use farbus_wire::native::control::{
    AttachmentClass, AttachmentEndCause, AttachmentEndNotice, AttachmentMode, OpenRequest, SuccessorOpenRequest,
};
use farbus_wire::native::{FrameKind, LaneSet, OutboundMessage, ReceivedFrame};

use crate::random::Random;
use crate::world::{LINKS, World};

const BLOCK: u64 = 512;
const BLOCKS: u64 = 16;
const INFO: BlockInfo = BlockInfo {
    size_bytes: BLOCK * BLOCKS,
    block_bytes: BLOCK as u32,
    preferred_bytes: BLOCK as u32,
    request_bytes_max: 64 << 10,
    is_read_only: false,
    trims: false,
};
const DISKS: usize = 3;

/// Which of the two ends compare identities.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Peers {
    Both,
    OldExporter,
    OldImporter,
    BothOld,
}

/// A disk of the exporter, whatever its name.
struct Disk {
    number: u8,
    identity: ExportIdentity,
    is_taken: bool,
    /// Writes that were meant for another disk.
    strays: u32,
}

/// A disk in use: requests wait until its driver is polled.
struct UsedDisk {
    disk: Arc<Mutex<Disk>>,
    queue: Vec<BlockInFlight>,
}

impl BlockDevice for UsedDisk {
    fn info(&self) -> &BlockInfo {
        &INFO
    }

    fn submit(&mut self, _now: Instant, mut request: BlockInFlight, _done: &mut CompletionQueue<BlockCompletion>) {
        request.own_payload();
        self.queue.push(request);
    }

    fn handle_ready(&mut self, _now: Instant, done: &mut CompletionQueue<BlockCompletion>) {
        for mut request in self.queue.drain(..) {
            let answer = match request.op {
                BlockOp::Read => vec![self.disk.lock().unwrap().number; request.length as usize].into(),
                BlockOp::Write => {
                    let bytes = request.take_payload().into_vec();
                    let mut disk = self.disk.lock().unwrap();
                    disk.strays += u32::from(bytes.iter().any(|&meant_for| meant_for != disk.number));
                    Payload::Empty
                }
                _ => Payload::Empty,
            };
            done.push(request.answer(answer));
        }
    }

    /// Empty: another process opens the disk again.
    fn state(&self) -> Option<Vec<u8>> {
        Some(Vec::new())
    }

    fn go_on_from(&mut self, state: &[u8]) -> bool {
        state.is_empty()
    }
}

impl Drop for UsedDisk {
    fn drop(&mut self) {
        for request in self.queue.drain(..) {
            let _ = request.recall();
        }
    }
}

/// The exporter's disks in the order in which they are shared: *disk0* is the first.
struct Shelf {
    disks: Vec<Arc<Mutex<Disk>>>,
    leases: DeviceLeases<()>,
    processes: u64,
    has_identities: bool,
    ids: u128,
}

impl Shelf {
    fn disk(&mut self, name: &str) -> Arc<Mutex<Disk>> {
        let at: usize = name.strip_prefix("disk").and_then(|number| number.parse().ok()).expect("there is one");
        Arc::clone(&self.disks[at])
    }

    fn key(&mut self, name: &str) -> DeviceKey {
        let identity = self.disk(name).lock().unwrap().identity;
        DeviceKey::of(name, self.has_identities.then_some(identity))
    }

    fn serve(&mut self, number: u16, name: &str) -> ServedBlock<UsedDisk> {
        let disk = self.disk(name);
        assert!(!std::mem::replace(&mut disk.lock().unwrap().is_taken, true), "it has one user");
        let used = UsedDisk { disk, queue: Vec::new() };
        ServedBlock::new(number, used, 1, |used: UsedDisk, _| used.disk.lock().unwrap().is_taken = false)
    }

    fn serve_again(
        &mut self,
        now: Instant,
        left: &native::UnservedAttachment,
    ) -> Result<Box<dyn ServedExport>, AttachmentEndNotice> {
        if let Some(expected) = left.identity {
            compare(&left.open.name, expected, self.identity(&left.open))?;
        }
        let key = self.key(&left.open.name);
        self.leases.keep(&key, left.lease);
        let state = left.state.as_ref().expect("a disk can go on");
        let mut served = self.serve(left.number, &left.open.name);
        served.restore(now, &mut state.reader()).unwrap();
        Ok(Box::new(served))
    }

    /// Another process shares the disks: in another order, or another disk than before, or an earlier medium of one.
    fn start_anew(&mut self, random: &mut Random) {
        self.processes += 1;
        self.leases = DeviceLeases::after(1_900_000_000_000 + 1000 * self.processes);
        self.disks.iter().for_each(|disk| disk.lock().unwrap().is_taken = false);
        self.rearrange(random);
    }

    fn rearrange(&mut self, random: &mut Random) {
        match random.below(6) {
            0 | 1 => self.disks.swap(0, 1),
            2 => self.disks.rotate_left(1),
            3 => {
                self.ids += 1;
                let at = random.below(DISKS as u64) as usize;
                let mut disk = self.disks[at].lock().unwrap();
                (disk.number, disk.identity) = (self.ids as u8, ExportIdentity { id: self.ids << 64, generation: 0 });
            }
            4 => {
                let at = random.below(DISKS as u64) as usize;
                let mut disk = self.disks[at].lock().unwrap();
                disk.identity.generation = disk.identity.generation.saturating_sub(1);
            }
            _ => {}
        }
    }
}

impl ExporterServices for Shelf {
    fn open(
        &mut self,
        _now: Instant,
        number: u16,
        open: &OpenRequest,
    ) -> Result<(u64, Box<dyn ServedExport>), AttachmentEndNotice> {
        self.open_if(number, open, false)
    }

    fn open_again(
        &mut self,
        _now: Instant,
        number: u16,
        open: &OpenRequest,
        _identity: ExportIdentity,
    ) -> Result<(u64, Box<dyn ServedExport>), AttachmentEndNotice> {
        self.open_if(number, open, true)
    }

    fn identity(&mut self, open: &OpenRequest) -> Option<ExportIdentity> {
        let identity = self.disk(&open.name).lock().unwrap().identity;
        self.has_identities.then_some(identity)
    }
}

impl Shelf {
    fn open_if(
        &mut self,
        number: u16,
        open: &OpenRequest,
        is_compared: bool,
    ) -> Result<(u64, Box<dyn ServedExport>), AttachmentEndNotice> {
        let end = |cause, message: &str| Err(AttachmentEndNotice { cause, message: message.to_owned() });
        let key = self.key(&open.name);
        // An older exporter does not recognise leases of other devices.
        match self.leases.worth(&key, None, open.epoch, is_compared || !self.has_identities) {
            LeaseEntitlement::Stale => return end(AttachmentEndCause::Stale, "somebody had it"),
            LeaseEntitlement::Other => return end(AttachmentEndCause::Gone, "another device"),
            LeaseEntitlement::Nothing | LeaseEntitlement::NotHis | LeaseEntitlement::Inherits(()) => {}
        }
        if self.disk(&open.name).lock().unwrap().is_taken {
            return end(AttachmentEndCause::Busy, "somebody has it");
        }
        Ok((self.leases.give(&key), Box::new(self.serve(number, &open.name))))
    }
}

/// The importer's end. An older one ignores identities, and takes every exporter for the one it knew.
struct Importer {
    attachment: u16,
    remote: RemoteBlock,
    is_old: bool,
}

impl ImporterAttachment for Importer {
    type Done = CompletionQueue<BlockCompletion>;

    fn attachment(&self) -> &AttachmentBase {
        self.remote.attachment()
    }

    fn attachment_mut(&mut self) -> &mut AttachmentBase {
        self.remote.attachment_mut()
    }

    fn handle_arrived(
        &mut self,
        now: Instant,
        arrived: ReceivedFrame,
        done: &mut Self::Done,
    ) -> Result<(), ProtocolViolation> {
        let is_for_others = arrived.head.attachment != self.attachment;
        match is_for_others || (self.is_old && arrived.head.kind == FrameKind::Identity) {
            true => Ok(()),
            false => self.remote.handle_arrived(now, arrived, done),
        }
    }

    fn handle_renewed(&mut self, now: Instant, done: &mut Self::Done) {
        self.remote.handle_renewed(now, done);
    }

    fn note_exporter(&mut self, incarnation: u64) {
        self.remote.note_exporter(if self.is_old { 7 } else { incarnation });
    }

    fn handle_over(&mut self, cause: AttachmentEndCause, message: &str, done: &mut Self::Done) {
        self.remote.handle_over(cause, message, done);
    }

    fn poll_message(&mut self) -> Option<OutboundMessage> {
        let message = self.remote.poll_message()?;
        if self.is_old && message.head.kind == FrameKind::Identity { self.remote.poll_message() } else { Some(message) }
    }

    fn use_lanes(&mut self, usable: LaneSet) {
        self.remote.use_lanes(usable);
    }
}

impl MovableAttachment for Importer {
    fn save(&self, to: &mut SnapshotWriter) {
        to.flag(self.is_old);
        to.u16(self.attachment);
        self.remote.save(to);
    }

    fn restore(from: &mut FieldReader<'_>) -> Result<Self, ProtocolViolation> {
        let (is_old, attachment) = (from.flag("old")?, from.u16("attachment")?);
        Ok(Self { attachment, remote: RemoteBlock::restore(from)?, is_old })
    }

    fn hand_over(&mut self) {
        self.remote.hand_over();
    }
}

pub struct ShelfWorld {
    world: World<Importer>,
    shelf: Shelf,
    peers: Peers,
    done: CompletionQueue<BlockCompletion>,
    /// The attachment, and the disk that it uses since it was first opened.
    attachment: u16,
    mine: Option<u8>,
    block_ops: BTreeMap<u64, BlockOp>,
    next_id: u64,
    answered: u32,
    ended: u32,
}

impl ShelfWorld {
    pub fn new(random: &mut Random, peers: Peers) -> Self {
        let disk = |number: u8| {
            let identity = ExportIdentity { id: u128::from(number) << 64, generation: 0 };
            Arc::new(Mutex::new(Disk { number, identity, is_taken: false, strays: 0 }))
        };
        let shelf = Shelf {
            disks: (1..=DISKS as u8).map(disk).collect(),
            leases: DeviceLeases::after(1_900_000_000_000),
            processes: 0,
            has_identities: matches!(peers, Peers::Both | Peers::OldImporter),
            ids: DISKS as u128,
        };
        let world = World::over_links(importer_of(1, peers), random.pick(&LINKS));
        let done = CompletionQueue::new(BufferPool::new(0));
        Self {
            world,
            shelf,
            peers,
            done,
            attachment: 1,
            mine: None,
            block_ops: BTreeMap::new(),
            next_id: 1,
            answered: 0,
            ended: 0,
        }
    }

    /// Writes that landed on another disk than they were meant for.
    pub fn strays(&self) -> u32 {
        self.shelf.disks.iter().map(|disk| disk.lock().unwrap().strays).sum()
    }

    pub fn step(&mut self, random: &mut Random) {
        self.world.now = self.world.now + Duration::from_micros(random.below(1000));
        match random.below(40) {
            0..=7 => self.ask(random),
            8 if random.once_in(4) => self.world.cut_some(random),
            9 if random.once_in(4) => {
                self.world.crash();
                self.shelf.start_anew(random);
            }
            10..=13 if !self.world.is_all_linked() => {
                self.world.link(random, &mut self.done);
            }
            14 if random.once_in(4) => {
                let shelf = &mut self.shelf;
                if random.once_in(3) {
                    shelf.leases = DeviceLeases::after(1_900_000_000_000 + 1000 * shelf.processes + 500);
                }
                // Another process has the devices now, perhaps in another order, unless it gives up. An exporter
                // without identities cannot compare them, and its importers are told nothing.
                let (is_meant, order) = (!random.once_in(4), random.next());
                let mut has_begun = !shelf.has_identities;
                self.world.exporter_moves_on(is_meant, |now, left| {
                    if !std::mem::replace(&mut has_begun, true) {
                        shelf.rearrange(&mut Random::new(order));
                    }
                    shelf.serve_again(now, left)
                });
                self.tell();
            }
            15 if random.once_in(4) && *ImporterAttachment::state(&self.world.remote) == AttachmentState::Open => {
                // No process saves it while it writes again.
                if !self.world.remote.remote.is_rewriting() {
                    self.world.move_on(!random.once_in(4));
                }
            }
            16 if random.once_in(4) => {
                let at = random.below(DISKS as u64) as usize;
                self.shelf.disks[at].lock().unwrap().identity.generation += 1;
                self.tell();
            }
            17..=24 => {
                if let Some(session) = &mut self.world.exporter {
                    session.handle_ready(self.world.now);
                }
            }
            _ => self.world.shuffle(random, &mut self.shelf, &mut self.done),
        }
        self.check();
    }

    fn tell(&mut self) {
        if let Some(session) = &mut self.world.exporter {
            session.tell_identities(&mut self.shelf);
        }
    }

    fn ask(&mut self, random: &mut Random) {
        let Some(mine) = self.mine.filter(|_| self.block_ops.len() < 32) else { return };
        let (id, at) = (self.next_id, BLOCK * random.below(BLOCKS));
        self.next_id += 1;
        let request = match random.below(4) {
            0 => BlockRequest::read(BlockId(id), at, BLOCK as u32),
            1 => BlockRequest::flush(BlockId(id)),
            _ => BlockRequest::write(BlockId(id), at, vec![mine; BLOCK as usize].into()),
        };
        self.block_ops.insert(id, request.op);
        self.world.remote.remote.submit(self.world.now, request.launch(), &mut self.done);
    }

    fn check(&mut self) {
        while let Some(done) = self.done.pop() {
            let op = self.block_ops.remove(&done.id.0).expect("each is answered once");
            assert_eq!(done.op, op);
            if done.result.is_ok() && op == BlockOp::Read && self.peers != Peers::BothOld {
                let mine = self.mine.expect("it was asked of an open disk");
                assert!(done.payload.into_vec().iter().all(|&byte| byte == mine), "what is read is this disk's");
            }
            self.answered += 1;
        }
        if self.peers != Peers::BothOld {
            assert_eq!(self.strays(), 0, "no write lands in another disk");
        }
        let remote = &self.world.remote.remote;
        match ImporterAttachment::state(remote) {
            AttachmentState::Opening => {}
            AttachmentState::Open => {
                let session = self.world.exporter.as_ref();
                if let (None, Some(session)) = (self.mine, session)
                    && session.is_attached(self.attachment)
                {
                    self.mine = Some(self.shelf.disk("disk0").lock().unwrap().number);
                }
                let theirs = session.and_then(|session| session.identity(self.attachment));
                if let (Some(ours), Some(theirs)) = (remote.identity(), theirs) {
                    assert_eq!(ours.id, theirs.id, "both ends know the same device");
                    assert!(ours.generation <= theirs.generation, "no earlier medium is used: {ours} {theirs}");
                }
            }
            AttachmentState::Ended(end) => {
                assert!(
                    matches!(
                        end.cause,
                        AttachmentEndCause::Gone | AttachmentEndCause::Stale | AttachmentEndCause::Busy
                    ),
                    "{end:?}"
                );
                self.attach_anew();
            }
        }
    }

    /// The attachment has ended: its user begins a new one, with whatever disk has the name now.
    fn attach_anew(&mut self) {
        self.ended += 1;
        assert!(self.block_ops.is_empty(), "what was asked was answered");
        while let Some(message) = self.world.remote.poll_message() {
            self.world.importer.send(message);
        }
        self.attachment += 1;
        self.mine = None;
        self.world.remote = importer_of(self.attachment, self.peers);
        self.world.remote.use_lanes(self.world.importer.usable_lanes());
        if let Some(incarnation) = self.world.importer.their_incarnation() {
            self.world.remote.note_exporter(incarnation);
        }
    }

    /// Nothing fails any more, and everything is answered. Returns the number of answers, and how often another disk
    /// was refused.
    pub fn settle(&mut self, random: &mut Random) -> (u32, u32) {
        for _ in 0..50 {
            if !self.world.is_all_linked() {
                self.world.link(random, &mut self.done);
            }
            self.world.exchange(&mut self.shelf, &mut self.done);
            self.check();
        }
        assert!(self.block_ops.is_empty(), "everything is answered");
        (self.answered, self.ended)
    }
}

fn importer_of(attachment: u16, peers: Peers) -> Importer {
    let (name, reason) = ("disk0".into(), String::new());
    let open = OpenRequest { class: AttachmentClass::BLOCK, mode: AttachmentMode::Exclusive, epoch: 0, name, reason };
    let is_old = matches!(peers, Peers::OldImporter | Peers::BothOld);
    Importer { attachment, remote: RemoteBlock::new(attachment, open), is_old }
}

/// A disk that is to be handed over, and the identity that its name stands for now.
struct Lent {
    identity: ExportIdentity,
    is_handed_over: bool,
}

impl ExporterServices for Lent {
    fn open(
        &mut self,
        _now: Instant,
        _number: u16,
        _open: &OpenRequest,
    ) -> Result<(u64, Box<dyn ServedExport>), AttachmentEndNotice> {
        unreachable!("a successor inherits")
    }

    fn identity(&mut self, _open: &OpenRequest) -> Option<ExportIdentity> {
        Some(self.identity)
    }

    fn inherit(
        &mut self,
        _now: Instant,
        number: u16,
        _inherit: &SuccessorOpenRequest,
    ) -> Option<Result<InheritedDevice, AttachmentEndNotice>> {
        let served = Box::new(used(number, 1));
        self.is_handed_over.then_some(Ok(InheritedDevice { lease: 9, served, migration_state: Vec::new() }))
    }

    fn show(
        &mut self,
        _now: Instant,
        number: u16,
        _inherit: &SuccessorOpenRequest,
    ) -> Option<Result<Box<dyn ServedExport>, AttachmentEndNotice>> {
        Some(Ok(Box::new(used(number, 1))))
    }
}

fn used(attachment: u16, number: u8) -> ServedBlock<UsedDisk> {
    let disk = Disk { number, identity: ExportIdentity { id: 1, generation: 0 }, is_taken: false, strays: 0 };
    let used = UsedDisk { disk: Arc::new(Mutex::new(disk)), queue: Vec::new() };
    ServedBlock::new(attachment, used, 1, |_, _| {})
}

#[test]
fn successor_does_not_get_another_disk_than_it_was_shown() {
    let (first, second) = (ExportIdentity { id: 1, generation: 0 }, ExportIdentity { id: 2, generation: 0 });
    for (now, is_given) in [(first, true), (second, false)] {
        let (random, mut done) = (&mut Random::new(1), CompletionQueue::new(BufferPool::new(0)));
        let (name, reason) = ("disk0".into(), String::new());
        let open =
            OpenRequest { class: AttachmentClass::BLOCK, mode: AttachmentMode::Exclusive, epoch: 0, name, reason };
        let mut world = World::new(RemoteBlock::successor(1, open));
        let mut lent = Lent { identity: first, is_handed_over: false };
        while !world.is_linked() {
            world.link(random, &mut done);
        }
        world.exchange(&mut lent, &mut done);
        assert_eq!(
            (ImporterAttachment::state(&world.remote), world.remote.identity()),
            (&AttachmentState::Open, Some(first)),
            "it reads"
        );
        world.crash();
        lent.identity = now;
        while !world.is_linked() {
            world.link(random, &mut done);
        }
        world.exchange(&mut lent, &mut done);
        lent.is_handed_over = true;
        if let Some(session) = &mut world.exporter {
            session.look_for_handed_over(world.now, &mut lent);
        }
        world.exchange(&mut lent, &mut done);
        match (is_given, ImporterAttachment::state(&world.remote)) {
            (true, AttachmentState::Open) => assert!(!ImporterAttachment::is_expected(&world.remote), "it is his"),
            (false, AttachmentState::Ended(AttachmentEndNotice { cause: AttachmentEndCause::Gone, message })) => {
                assert!(message.contains("another device"), "{message}");
            }
            other => panic!("{other:?}"),
        }
    }
}
