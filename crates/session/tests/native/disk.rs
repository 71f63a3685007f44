//! A disk in that world.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use farbus_model::{
    BlockCompletion, BlockDevice, BlockId, BlockInFlight, BlockInfo, BlockOp, BlockRequest, BufferPool,
    CompletionQueue, ExportIdentity, ExtentList, Instant, Payload, StoreError, StoreExtent,
};
use farbus_session::block::ReadOnlyView;
use farbus_session::native::{
    AttachmentState, ExporterServices, ImporterAttachment, InheritedDevice, PipedAttachment, RETAINED_BYTES_MAX,
    RemoteBlock, ServedBlock, ServedExport, UnservedAttachment,
};
use farbus_wire::native::control::{
    AttachmentClass, AttachmentEndCause, AttachmentEndNotice, AttachmentMode, OpenRequest, SuccessorOpenRequest,
};

use crate::cached::{Cached, nothing};
use crate::modules::Modules;
use crate::random::Random;
use crate::world::{LINKS, World, spoil};

const BLOCK: u64 = 512;
const BLOCKS: u64 = 1024;
const INFO: BlockInfo = BlockInfo {
    size_bytes: BLOCK * BLOCKS,
    block_bytes: BLOCK as u32,
    preferred_bytes: 4096,
    request_bytes_max: 256 << 10,
    is_read_only: false,
    trims: true,
};

/// The state of the exporter's machine: the content of its cache, and what of it is on the medium.
#[derive(Clone)]
struct Medium {
    cached: Vec<u8>,
    durable: Vec<u8>,
    /// Changes when the machine restarts.
    boot: u64,
    is_taken: bool,
    /// Number of following changes that fail.
    fails: u32,
    /// Whether its user handed it over to a successor, which may not come for it.
    is_lent: bool,
}

/// Blocks of zeros are holes.
fn extents(bytes: &[u8]) -> ExtentList {
    let mut extents = ExtentList::default();
    let mut blocks = bytes.chunks(BLOCK as usize).map(|block| block.iter().all(|byte| *byte == 0));
    // As many as there is room for.
    let _ = blocks.all(|is_hole| extents.push(StoreExtent { length: BLOCK, is_hole }));
    extents
}

/// The disk as its driver sees it: requests complete in random order, at random times.
struct SlowDisk {
    medium: Arc<Mutex<Medium>>,
    queue: Vec<BlockInFlight>,
    random: Random,
    info: BlockInfo,
}

impl BlockDevice for SlowDisk {
    fn info(&self) -> &BlockInfo {
        &self.info
    }

    fn submit(&mut self, now: Instant, mut request: BlockInFlight, done: &mut CompletionQueue<BlockCompletion>) {
        request.own_payload();
        self.queue.push(request);
        self.handle_ready(now, done);
    }

    fn handle_ready(&mut self, _now: Instant, done: &mut CompletionQueue<BlockCompletion>) {
        while !self.queue.is_empty() && !self.random.once_in(3) {
            let at = self.random.below(self.queue.len() as u64) as usize;
            let mut request = self.queue.swap_remove(at);
            let mut medium = self.medium.lock().unwrap();
            let range = request.offset as usize..request.offset as usize + request.length as usize;
            if request.op.is_change() && medium.fails > 0 {
                medium.fails -= 1;
                done.push(request.fail(StoreError::Medium));
                continue;
            }
            match request.op {
                BlockOp::Read => {
                    let bytes = medium.cached[range].to_vec();
                    done.push(request.answer(bytes.into()));
                    continue;
                }
                BlockOp::Write => {
                    let bytes = request.take_payload().into_vec();
                    if request.is_durable {
                        medium.durable[range.clone()].copy_from_slice(&bytes);
                    }
                    medium.cached[range].copy_from_slice(&bytes);
                }
                BlockOp::Map => {
                    let extents = extents(&medium.cached[range]);
                    done.push(request.answer(extents.to_payload()));
                    continue;
                }
                BlockOp::Flush => {
                    let cached = medium.cached.clone();
                    medium.durable = cached;
                }
                BlockOp::Discard | BlockOp::WriteZeroes => medium.cached[range].fill(0),
                // The content after a trim is up to the device.
                BlockOp::Trim if !self.info.trims => panic!("it did not say that it knows that"),
                BlockOp::Trim => match self.random.below(3) {
                    0 => medium.cached[range].fill(0),
                    1 => medium.cached[range].fill(0xdd),
                    _ => {}
                },
            }
            done.push(request.answer(Payload::Empty));
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

impl Drop for SlowDisk {
    /// A killed process drops nothing; here its requests end unseen.
    fn drop(&mut self) {
        for request in self.queue.drain(..) {
            let _ = request.fail(StoreError::Gone);
        }
    }
}

struct TestExporter {
    medium: Arc<Mutex<Medium>>,
    seed: u64,
    epoch: u64,
    /// Whether another importer uses the disk, which is to hand it over.
    is_elsewhere: bool,
    trims: bool,
}

impl TestExporter {
    fn disk(&mut self) -> SlowDisk {
        self.seed += 1;
        let (medium, info) = (Arc::clone(&self.medium), BlockInfo { trims: self.trims, ..INFO });
        SlowDisk { medium, queue: Vec::new(), random: Random::new(self.seed), info }
    }

    fn serve(&mut self, number: u16) -> ServedBlock<SlowDisk> {
        let disk = self.disk();
        let mut medium = self.medium.lock().unwrap();
        assert!(!std::mem::replace(&mut medium.is_taken, true), "it has one user");
        let give_back = |disk: SlowDisk, _| disk.medium.lock().unwrap().is_taken = false;
        let lend = |disk: SlowDisk, _, _| {
            let mut medium = disk.medium.lock().unwrap();
            (medium.is_taken, medium.is_lent) = (false, true);
            true
        };
        ServedBlock::new(number, disk, medium.boot, give_back).inheritable(lend)
    }

    fn serve_anew(&mut self, number: u16) -> ServedBlock<SlowDisk> {
        self.medium.lock().unwrap().is_taken = false;
        self.serve(number)
    }

    fn serve_again(&mut self, now: Instant, left: &UnservedAttachment) -> Box<dyn ServedExport> {
        let state = left.state.as_ref().expect("a disk can go on");
        let mut served = self.serve(left.number);
        served.restore(now, &mut state.reader()).unwrap();
        Box::new(served)
    }
}

/// A disk without requests, served anew.
pub fn served(random: &mut Random, number: u16) -> Box<dyn ServedExport> {
    Box::new(DiskWorld::new(random, None).exporter_services.serve_anew(number))
}

/// Checks that a snapshot of a cache by an earlier release is read completely.
pub fn cache_is_read(saved: &[u8], disk: &RemoteBlock) -> Result<(), farbus_session::ProtocolViolation> {
    Cached::new(INFO).restore(saved, disk).map(|(mut cached, _)| cached.leave())
}

impl ExporterServices for TestExporter {
    fn identity(&mut self, _open: &OpenRequest) -> Option<ExportIdentity> {
        Some(ExportIdentity { id: 7, generation: 0 })
    }

    fn open(
        &mut self,
        _now: Instant,
        number: u16,
        open: &OpenRequest,
    ) -> Result<(u64, Box<dyn ServedExport>), AttachmentEndNotice> {
        assert_eq!((open.class, open.name.as_str()), (AttachmentClass::BLOCK, "disk"));
        if self.medium.lock().unwrap().is_taken {
            return Err(AttachmentEndNotice { cause: AttachmentEndCause::Busy, message: "somebody has it".into() });
        }
        self.epoch += 1;
        Ok((self.epoch, Box::new(self.serve(number))))
    }

    fn inherit(
        &mut self,
        _now: Instant,
        number: u16,
        _inherit: &SuccessorOpenRequest,
    ) -> Option<Result<InheritedDevice, AttachmentEndNotice>> {
        if self.is_elsewhere {
            return None;
        }
        self.epoch += 1;
        Some(Ok(InheritedDevice {
            lease: self.epoch,
            served: Box::new(self.serve(number)),
            migration_state: Vec::new(),
        }))
    }

    fn show(
        &mut self,
        _now: Instant,
        number: u16,
        _inherit: &SuccessorOpenRequest,
    ) -> Option<Result<Box<dyn ServedExport>, AttachmentEndNotice>> {
        let (disk, boot) = (ReadOnlyView::new(self.disk()), self.medium.lock().unwrap().boot);
        Some(Ok(Box::new(
            ServedBlock::new(number, disk, boot, |_, _| {}).promising(BlockInfo { trims: self.trims, ..INFO }),
        )))
    }
}

/// The possible content of a block.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Known {
    /// This byte, repeated.
    Byte(u8),
    /// A change of it failed: any mixture of its old and new content.
    Anything,
}

pub struct DiskWorld {
    world: World<PipedAttachment<RemoteBlock>>,
    /// The cache layers, if there are any, and the disk's answers for them.
    cached: Option<Cached>,
    below: CompletionQueue<BlockCompletion>,
    /// Whether changes have failed that may have been answered early.
    has_failed: bool,
    /// What each block must contain on the medium after a successful flush.
    promised: Vec<Option<u8>>,
    exporter_services: TestExporter,
    done: CompletionQueue<BlockCompletion>,
    unanswered: BTreeMap<u64, (BlockOp, u64, u64, u8)>,
    known: Vec<Known>,
    /// Blocks that a request in flight touches: requests do not overlap.
    busy: Vec<bool>,
    /// Blocks that changed since the last flush began.
    unflushed: Vec<bool>,
    /// Blocks trimmed since the last flush, which may contain anything on any medium.
    trimmed: Vec<bool>,
    next_id: u64,
    answered: u32,
    is_over: bool,
    /// Set if the disk has another medium, with these bytes, that the importer does not know while its epoch is this
    /// one.
    changed: Option<(Vec<u8>, Option<u64>)>,
    /// Whether answered writes are lost, so that the next flush may or must fail.
    may_fail: bool,
    must_fail: bool,
    /// Bytes written since the last successful flush, as the importer counts what it keeps of them.
    unflushed_bytes: u64,
}

impl DiskWorld {
    pub fn new(random: &mut Random, modules: Option<Modules>) -> Self {
        Self::with(random, modules, RemoteBlock::new)
    }

    /// A disk that another importer uses until it hands it over.
    pub fn of_a_successor(random: &mut Random) -> Self {
        Self::with(random, None, RemoteBlock::successor)
    }

    /// A disk with read-ahead and write-back.
    pub fn cached(random: &mut Random) -> Self {
        let mut this = Self::with(random, None, RemoteBlock::new);
        this.cached = Some(Cached::new(INFO));
        this
    }

    /// A disk with both layers that another importer uses until it hands it over.
    pub fn of_a_successor_with_a_cache(random: &mut Random) -> Self {
        let mut this = Self::of_a_successor(random);
        this.cached = Some(Cached::new(INFO));
        this.pump();
        this
    }

    fn with(random: &mut Random, modules: Option<Modules>, remote: fn(u16, OpenRequest) -> RemoteBlock) -> Self {
        let open = OpenRequest {
            class: AttachmentClass::BLOCK,
            mode: AttachmentMode::Exclusive,
            epoch: 0,
            name: "disk".into(),
            reason: "".into(),
        };
        let bytes = vec![0; INFO.size_bytes as usize];
        let remote = remote(1, open);
        let is_elsewhere = remote.is_expected();
        let medium =
            Medium { cached: bytes.clone(), durable: bytes, boot: 1, is_taken: is_elsewhere, fails: 0, is_lent: false };
        let medium = Arc::new(Mutex::new(medium));
        let (through, allowed) = modules.map(|modules| (modules.through, modules.allowed)).unzip();
        let mut world = World::over_links(PipedAttachment::new(remote, through), random.pick(&LINKS));
        world.allowed = allowed;
        let mut this = Self {
            world,
            cached: None,
            below: nothing(),
            has_failed: false,
            promised: vec![Some(0); BLOCKS as usize],
            exporter_services: TestExporter {
                medium,
                seed: random.next() >> 1,
                epoch: 0,
                is_elsewhere,
                trims: random.once_in(2),
            },
            done: CompletionQueue::new(BufferPool::new(1 << 20)),
            unanswered: BTreeMap::new(),
            known: vec![Known::Byte(0); BLOCKS as usize],
            busy: vec![false; BLOCKS as usize],
            unflushed: vec![false; BLOCKS as usize],
            trimmed: vec![false; BLOCKS as usize],
            next_id: 0,
            answered: 0,
            is_over: false,
            changed: None,
            may_fail: false,
            must_fail: false,
            unflushed_bytes: 0,
        };
        this.world.link(random, &mut this.done);
        while !this.world.is_linked() {
            this.world.link(random, &mut this.done);
        }
        this.world.exchange(&mut this.exporter_services, &mut this.done);
        assert_eq!(*this.world.remote.state(), AttachmentState::Open);
        this
    }

    /// Passes the disk's answers through the cache layers to the user.
    fn pump(&mut self) {
        if let Some(cached) = &mut self.cached {
            cached.pump(self.world.now, self.world.remote.inner_mut(), &mut self.below, &mut self.done);
        }
    }

    /// Runs `act` with the disk.
    fn with_disk<T>(
        &mut self,
        act: impl FnOnce(
            &mut World<PipedAttachment<RemoteBlock>>,
            &mut TestExporter,
            &mut CompletionQueue<BlockCompletion>,
        ) -> T,
    ) -> T {
        let done = if self.cached.is_some() { &mut self.below } else { &mut self.done };
        let acted = act(&mut self.world, &mut self.exporter_services, done);
        self.pump();
        acted
    }

    /// Replaces the importer's process by another; if not `is_meant`, only saves and restores.
    fn move_on(&mut self, random: &mut Random, is_meant: bool) {
        if self.world.remote.inner().is_rewriting() {
            return;
        }
        let saved = self.cached.as_mut().map(|cached| cached.save(self.world.now));
        if let Some(saved) = &saved {
            crate::recorded::note("cached", &[saved, &self.world.importer_as_saved()]);
        }
        self.world.move_on_with(is_meant, crate::modules::resume);
        let (Some(cached), Some(saved)) = (&mut self.cached, saved.filter(|_| is_meant)) else { return };
        let unanswered = self
            .unanswered
            .iter()
            .map(|(&id, &(op, first, count, _))| (BlockId(id), (op, first * BLOCK, (count * BLOCK) as u32)));
        let mut spoilt = saved.clone();
        spoil(&mut spoilt, random);
        if let Ok((mut again, _)) = cached.restore(&spoilt, self.world.remote.inner()) {
            again.leave();
        }
        let (again, owed) = cached.restore(&saved, self.world.remote.inner()).expect("it stood so");
        assert_eq!(owed, unanswered.collect(), "it owes the answers that it owed");
        std::mem::replace(cached, again).leave();
        self.pump();
    }

    pub fn step(&mut self, random: &mut Random) {
        self.world.now = self.world.now + Duration::from_micros(random.below(1000));
        if self.cached.is_some() && random.once_in(150) {
            self.exporter_services.medium.lock().unwrap().fails += random.below(3) as u32;
            self.has_failed = true;
        }
        match random.below(40) {
            0..=9 => self.ask(random),
            10 if random.once_in(4) => self.world.cut_some(random),
            11 if random.once_in(16) => self.crash(random),
            12 | 13 if !self.world.is_all_linked() => self.with_disk(|world, _, done| world.link(random, done)),
            19 if random.once_in(4) && !self.is_lent() => {
                let exporter_services = &mut self.exporter_services;
                let serve = |now, left: &UnservedAttachment| Ok(exporter_services.serve_again(now, left));
                self.world.exporter_moves_on(!random.once_in(4), serve);
                if let Some(session) = &mut self.world.exporter {
                    assert!(session.show_again(self.world.now, &mut self.exporter_services), "it is there");
                }
            }
            21..=23 if self.exporter_services.is_elsewhere || self.is_lent() => self.changes_elsewhere(random),
            25 if self.cached.is_some() && !self.exporter_services.is_elsewhere => self.lend(),
            26 if self.is_lent() && random.once_in(2) => self.comes_home(),
            24 if self.exporter_services.is_elsewhere && random.once_in(8) => self.handed_over(),
            20 if random.once_in(4) && crate::modules::is_movable_now(&mut self.world.remote) => {
                let is_meant = !random.once_in(4);
                self.move_on(random, is_meant);
            }
            14..=18 => {
                if let Some(session) = &mut self.world.exporter {
                    session.handle_ready(self.world.now);
                }
            }
            _ => self.with_disk(|world, exporter_services, done| world.shuffle(random, exporter_services, done)),
        }
        self.look_at_medium();
        self.check();
    }

    /// The current user writes what the successor reads, unless the successor is reading at this moment.
    fn changes_elsewhere(&mut self, random: &mut Random) {
        let (block, byte) = (random.below(BLOCKS) as usize, 1 + random.below(255) as u8);
        if self.busy[block] {
            return;
        }
        let mut medium = self.exporter_services.medium.lock().unwrap();
        let range = block * BLOCK as usize..(block + 1) * BLOCK as usize;
        medium.cached[range.clone()].fill(byte);
        medium.durable[range].fill(byte);
        self.known[block] = Known::Byte(byte);
        // None of our requests to that place is in flight.
        (self.promised[block], self.unflushed[block]) = (Some(byte), false);
    }

    fn is_lent(&self) -> bool {
        self.exporter_services.medium.lock().unwrap().is_lent
    }

    /// Hands the disk over to a successor, as soon as nothing is in flight.
    fn lend(&mut self) {
        let is_linked = self.world.is_linked();
        let remote = self.world.remote.inner_mut();
        // A device that was not handed over to us yet cannot be handed over (`farbus migrate` refuses).
        let is_ours = !ImporterAttachment::is_moving(remote) && !ImporterAttachment::is_expected(remote);
        let is_quiet = remote.in_flight() == 0 && !remote.is_rewriting();
        let is_open = *ImporterAttachment::state(remote) == AttachmentState::Open && is_ours && is_quiet;
        if is_open && self.unanswered.is_empty() && is_linked {
            remote.hold_still(self.world.now, &mut self.below);
            remote.migrate([9; 32]);
            self.pump();
        }
    }

    /// The successor did not come, or has returned the disk.
    fn comes_home(&mut self) {
        let Some(session) = &mut self.world.exporter else { return };
        self.exporter_services.medium.lock().unwrap().is_lent = false;
        self.exporter_services.epoch += 1;
        session.take_back(self.world.now, 1, self.exporter_services.epoch, Box::new(self.exporter_services.serve(1)));
    }

    /// While the exporter is down, its disk gets another medium: an importer that opens it again sees that one, and no
    /// old data.
    fn change_medium(&mut self, random: &mut Random) {
        let bytes: Vec<u8> = (0..BLOCKS).map(|_| random.below(256) as u8).collect();
        let blocks: Vec<_> = bytes.iter().map(|&byte| [byte; BLOCK as usize]).collect();
        let all = blocks.concat();
        let mut medium = self.exporter_services.medium.lock().unwrap();
        (medium.cached, medium.durable) = (all.clone(), all);
        self.known.fill(Known::Anything);
        self.promised.fill(None);
        self.changed = Some((bytes, BlockDevice::epoch(self.world.remote.inner())));
    }

    /// The disk was opened again.
    fn look_at_medium(&mut self) {
        let remote = self.world.remote.inner();
        let is_seen = |(_, epoch): &mut (_, Option<u64>)| {
            *ImporterAttachment::state(remote) == AttachmentState::Open && remote.epoch() != *epoch
        };
        let Some((bytes, _)) = self.changed.take_if(is_seen) else { return };
        for (block, byte) in bytes.into_iter().enumerate() {
            // Data written meanwhile is on its way, or has arrived.
            let is_ours = self.unflushed[block] || self.trimmed[block] || self.busy[block];
            if self.known[block] == Known::Anything && !is_ours {
                self.known[block] = Known::Byte(byte);
            }
        }
    }

    fn handed_over(&mut self) {
        assert!(
            self.unanswered.values().all(|request| request.0 == BlockOp::Read)
                || self.world.remote.inner().is_expected()
        );
        self.exporter_services.is_elsewhere = false;
        self.exporter_services.medium.lock().unwrap().is_taken = false;
        self.look_for_handed_over();
    }

    fn look_for_handed_over(&mut self) {
        if let Some(session) = &mut self.world.exporter {
            session.look_for_handed_over(self.world.now, &mut self.exporter_services);
        }
    }

    pub fn spoil(&mut self, random: &mut Random) -> bool {
        if self.world.remote.inner().is_rewriting() {
            // No process saves it meanwhile.
            return true;
        }
        let now = self.world.now;
        self.world.spoil(random, |mut remote| {
            let mut done = CompletionQueue::new(BufferPool::new(0));
            remote.handle_renewed(now, &mut done);
            remote.handle_over(AttachmentEndCause::Gone, "enough", &mut done);
            while done.pop().is_some() {}
            assert_eq!(remote.inner().in_flight(), 0, "everything was answered");
        })
    }

    fn ask(&mut self, random: &mut Random) {
        let op = random.pick(&[
            BlockOp::Read,
            BlockOp::Read,
            BlockOp::Write,
            BlockOp::Write,
            BlockOp::WriteZeroes,
            BlockOp::Discard,
            BlockOp::Trim,
            BlockOp::Flush,
            BlockOp::Map,
        ]);
        let mut first = random.below(BLOCKS);
        let mut count = random.pick(&[1, 1, 8, 8, 100, 300, 512]).min(BLOCKS - first);
        if op == BlockOp::Flush {
            if !self.unanswered.is_empty() {
                // Only then is it clear what the flush covers.
                return;
            }
            (first, count) = (0, 0);
        }
        let blocks = first as usize..(first + count) as usize;
        if self.busy[blocks.clone()].iter().any(|&busy| busy)
            || self.unanswered.values().any(|request| request.0 == BlockOp::Flush)
        {
            return;
        }
        self.busy[blocks.clone()].fill(true);
        match op {
            BlockOp::Trim => self.trimmed[blocks].fill(true),
            _ if op.is_change() => self.unflushed[blocks].fill(true),
            _ => {}
        }
        let (id, byte) = (BlockId(self.next_id), 1 + random.below(255) as u8);
        self.next_id += 1;
        let (offset, length) = (first * BLOCK, (count * BLOCK) as u32);
        let request = match op {
            BlockOp::Read => BlockRequest::read(id, offset, length),
            BlockOp::Write => {
                let data = vec![byte; length as usize];
                // Some payloads are windows on a larger buffer.
                let payload = match random.once_in(2) {
                    true => Payload::shared(&data.into(), 0..length as usize),
                    false => data.into(),
                };
                BlockRequest::write(id, offset, payload)
            }
            BlockOp::Flush => BlockRequest::flush(id),
            BlockOp::Map => BlockRequest::map(id, offset, length),
            BlockOp::Discard | BlockOp::WriteZeroes | BlockOp::Trim => BlockRequest::zero(id, op, offset, length),
        };
        self.submit(request, (op, first, count, byte));
    }

    fn submit(&mut self, request: BlockRequest, what: (BlockOp, u64, u64, u8)) {
        self.unanswered.insert(request.id.0, what);
        match &mut self.cached {
            Some(cached) => cached.submit(self.world.now, request.launch(), &mut self.done),
            None => self.world.remote.inner_mut().submit(self.world.now, request.launch(), &mut self.done),
        }
        self.pump();
    }

    /// Kills the exporter; sometimes its machine restarts, and loses some of what was not durable.
    fn crash(&mut self, random: &mut Random) {
        self.world.crash();
        let mut medium = self.exporter_services.medium.lock().unwrap();
        medium.is_taken = self.exporter_services.is_elsewhere;
        medium.is_lent = false;
        if random.once_in(2) {
            medium.boot += 1;
            // Answered writes are written again if the importer still has them.
            let is_kept = self.cached.is_none() && self.unflushed_bytes <= RETAINED_BYTES_MAX;
            self.may_fail |= !is_kept;
            for block in 0..BLOCKS as usize {
                if random.once_in(2) {
                    let range = block * BLOCK as usize..(block + 1) * BLOCK as usize;
                    let Medium { cached, durable, .. } = &mut *medium;
                    cached[range.clone()].copy_from_slice(&durable[range]);
                    if self.unflushed[block] && (self.busy[block] || !is_kept) {
                        self.known[block] = Known::Anything;
                    }
                }
            }
            medium.durable = medium.cached.clone();
            drop(medium);
            if self.cached.is_some() && !self.exporter_services.is_elsewhere && random.once_in(2) {
                self.change_medium(random);
            }
        }
    }

    fn check(&mut self) {
        while let Some(done) = self.done.pop() {
            let (op, first, count, byte) = self.unanswered.remove(&done.id.0).expect("answered once");
            self.answered += 1;
            assert!(
                !(op.is_change() || op == BlockOp::Flush) || self.is_over || !self.world.remote.inner().is_expected(),
                "{op:?} waits"
            );
            let blocks = first as usize..(first + count) as usize;
            self.busy[blocks.clone()].fill(false);
            if self.is_over && self.cached.is_none() {
                assert!(matches!(done.result, Err(StoreError::Lost)), "{:?}", done.result);
                continue;
            }
            if op.is_change() {
                let byte = if op == BlockOp::Write { byte } else { 0 };
                let is_known = done.result.is_ok() && op != BlockOp::Trim;
                self.promised[blocks.clone()].fill(is_known.then_some(byte));
            }
            match (op, done.result) {
                (BlockOp::Read, Ok(())) => self.compare(first, &done.payload.into_vec()),
                (BlockOp::Map, Ok(())) => self.check_holes(first, count, &done.payload),
                (BlockOp::Write, Ok(())) => {
                    let bytes = count * BLOCK;
                    self.unflushed_bytes += if bytes > 64 << 10 { bytes.max(256 << 10) } else { bytes };
                    self.known[blocks].fill(Known::Byte(byte));
                }
                (BlockOp::Discard | BlockOp::WriteZeroes, Ok(())) => self.known[blocks].fill(Known::Byte(0)),
                (BlockOp::Trim, Ok(())) => self.known[blocks].fill(Known::Anything),
                (op, Err(_)) if op != BlockOp::Flush && (self.has_failed || self.is_over) => {
                    // A change that is not known to be lost may or may not have happened.
                    if op.is_change() {
                        self.known[blocks].fill(Known::Anything);
                    }
                }
                (BlockOp::Flush, result) if self.cached.is_some() => self.check_flush(result),
                (BlockOp::Flush, result) => {
                    assert!(if self.must_fail { result.is_err() } else { result.is_ok() || self.may_fail });
                    (self.may_fail, self.must_fail) = (false, false);
                    if result.is_ok() {
                        self.unflushed.fill(false);
                        self.unflushed_bytes = 0;
                    }
                }
                (op, result) => panic!("{op:?}: {result:?}"),
            }
        }
    }

    /// Everything answered before a successful flush is on the medium.
    fn check_flush(&mut self, result: Result<(), StoreError>) {
        assert!(result.is_err() || !self.is_over, "what is over has nothing durable");
        if result.is_err() {
            assert!(self.may_fail || self.has_failed || self.is_over, "there is a reason");
            // Reported once: from now on, the lost blocks may contain anything.
            let lost = (0..BLOCKS as usize).filter(|&block| self.unflushed[block]);
            lost.for_each(|block| self.promised[block] = None);
        } else {
            self.unflushed.fill(false);
            self.trimmed.fill(false);
            self.may_fail = false;
        }
        let medium = self.exporter_services.medium.lock().unwrap();
        for (block, promised) in self.promised.iter().enumerate().filter(|_| result.is_ok()) {
            let Some(byte) = promised else { continue };
            let durable = &medium.durable[block * BLOCK as usize..(block + 1) * BLOCK as usize];
            assert!(durable.iter().all(|other| other == byte), "block {block} is {:#x}, not {byte:#x}", durable[0]);
            // Even a restarted machine has not lost this.
            self.known[block] = Known::Byte(*byte);
        }
    }

    /// What is said to be a hole reads as zeros.
    fn check_holes(&self, first: u64, count: u64, extent_list: &Payload) {
        let extents = ExtentList::read(extent_list, (count * BLOCK) as u32).expect("it tells of the range");
        let mut at = first * BLOCK;
        for extent in extents.iter() {
            let blocks = (at / BLOCK) as usize..((at + extent.length) / BLOCK) as usize;
            let mut known = self.known[blocks].iter();
            assert!(!extent.is_hole || known.all(|known| matches!(known, Known::Byte(0) | Known::Anything)));
            at += extent.length;
        }
    }

    fn compare(&self, first: u64, bytes: &[u8]) {
        for (block, bytes) in (first as usize..).zip(bytes.chunks_exact(BLOCK as usize)) {
            if let Known::Byte(byte) = self.known[block] {
                assert!(bytes.iter().all(|&other| other == byte), "block {block} is {byte:#x}, not {:#x}", bytes[0]);
            }
        }
    }

    /// The link stays, everything is answered, and the disk contains what it should; or there is never a link again.
    /// Returns the number of answered requests.
    pub fn settle(mut self, random: &mut Random) -> u32 {
        if random.once_in(8) {
            self.is_over = true;
            self.check_rest();
            self.with_disk(|world, _, done| world.give_up(done));
            self.check();
            if self.cached.is_some() {
                self.submit(BlockRequest::flush(BlockId(self.next_id)), (BlockOp::Flush, 0, 0, 0));
                self.check();
            }
            assert!(self.unanswered.is_empty(), "nothing hangs");
            let is_taken = self.exporter_services.medium.lock().unwrap().is_taken;
            assert_eq!(is_taken, self.exporter_services.is_elsewhere, "the claim is free, if it was ours");
            return self.answered;
        }
        while !self.world.is_all_linked() {
            self.with_disk(|world, _, done| world.link(random, done));
        }
        self.exporter_services.medium.lock().unwrap().fails = 0;
        if self.exporter_services.is_elsewhere {
            self.handed_over();
        }
        for _ in 0..20 {
            if self.is_lent() {
                self.comes_home();
            }
            self.with_disk(|world, exporter_services, done| world.exchange(exporter_services, done));
            self.look_at_medium();
            self.look_for_handed_over();
            self.check();
        }
        assert!(!self.world.remote.inner().is_expected());
        assert!(self.unanswered.is_empty(), "nothing hangs: {:?}", self.unanswered);
        assert_eq!(self.world.remote.inner().in_flight(), 0);
        if self.cached.is_some() {
            // Early answers may hide failed writes: a flush tells whether all data arrived.
            self.submit(BlockRequest::flush(BlockId(self.next_id)), (BlockOp::Flush, 0, 0, 0));
            self.with_disk(|world, exporter_services, done| world.exchange(exporter_services, done));
            self.check();
            assert!(self.unanswered.is_empty());
            return self.answered;
        }
        let cached = self.exporter_services.medium.lock().unwrap().cached.clone();
        self.compare(0, &cached);
        self.answered
    }

    /// Everything that was answered before the end was answered correctly.
    fn check_rest(&mut self) {
        assert!(self.done.is_empty());
    }
}
