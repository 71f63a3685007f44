//! One disk and several importers: one that writes alone, or several that read at the same time; and a disk whose size
//! changes while its exporter is down.
//!
//! The tests check that a read returns what the disk contained at some moment since the read was submitted. An importer
//! whose exporter has lost it, and which does not know that yet, must show no old data, whatever the owner or time does
//! with its device. While it has no link, an importer cannot know what others wrote after a crash of the exporter;
//! after the next link it shows no old data.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use farbus_model::{
    BlockCompletion, BlockDevice, BlockId, BlockInFlight, BlockInfo, BlockOp, BlockRequest, BufferPool,
    CompletionQueue, ExportIdentity, Instant, Payload,
};
use farbus_session::native::{
    AttachmentState, ExporterServices, ImporterAttachment, PipedAttachment, RemoteBlock, ServedBlock, ServedExport,
};
use farbus_wire::native::control::{
    AttachmentClass, AttachmentEndCause, AttachmentEndNotice, AttachmentMode, OpenRequest,
};

use crate::cached::Cached;
use crate::random::Random;
use crate::world::World;

const BLOCK: u64 = 512;
/// Sizes of the disk at different times, blocks.
const SIZES: [usize; 3] = [512, 384, 640];
const IMPORTERS: usize = 3;

/// The disk and its users.
struct Store {
    /// The contents of each block with their moments, latest last, including blocks behind the current end.
    blocks: Vec<Vec<(u64, u8)>>,
    /// Current size, blocks.
    size: usize,
    users: Vec<(usize, AttachmentMode)>,
    moment: u64,
    lease: u64,
}

impl Store {
    fn latest(&self, block: usize) -> u8 {
        self.blocks[block].last().expect("it begins with something").1
    }

    fn write(&mut self, block: usize, byte: u8) {
        let moment = self.moment;
        self.blocks[block].push((moment, byte));
    }

    /// The owner changes the disk's content, if it has no user.
    fn spoil(&mut self, random: &mut Random) {
        if self.users.is_empty() {
            self.moment += 1;
            (0..self.size).for_each(|block| self.write(block, random.below(256) as u8));
        }
    }

    /// Whether a block had this content at some moment since `since`.
    fn had(&self, block: usize, byte: u8, since: u64) -> bool {
        let all = &self.blocks[block];
        let first = all.partition_point(|(moment, _)| *moment <= since).saturating_sub(1);
        all[first..].iter().any(|(_, other)| *other == byte)
    }
}

/// The disk as one user sees it: everything is answered at once.
struct StoreBlocks {
    store: Arc<Mutex<Store>>,
    user: usize,
    info: BlockInfo,
}

impl BlockDevice for StoreBlocks {
    fn info(&self) -> &BlockInfo {
        &self.info
    }

    fn submit(&mut self, _now: Instant, mut request: BlockInFlight, done: &mut CompletionQueue<BlockCompletion>) {
        if let Err(error) = self.info.check(&request) {
            return done.push(request.fail(error));
        }
        let mut store = self.store.lock().unwrap();
        let first = (request.offset / BLOCK) as usize;
        let blocks = first..first + (u64::from(request.length) / BLOCK) as usize;
        let payload = match request.op {
            BlockOp::Read => blocks.flat_map(|block| [store.latest(block); BLOCK as usize]).collect::<Vec<u8>>().into(),
            BlockOp::Write => {
                let bytes = request.take_payload().into_vec();
                blocks.zip(bytes.chunks(BLOCK as usize)).for_each(|(block, bytes)| store.write(block, bytes[0]));
                Payload::Empty
            }
            _ => Payload::Empty,
        };
        done.push(request.answer(payload));
    }
}

/// The services for one importer.
struct StoreServices {
    store: Arc<Mutex<Store>>,
    user: usize,
}

impl ExporterServices for StoreServices {
    fn identity(&mut self, _open: &OpenRequest) -> Option<ExportIdentity> {
        Some(ExportIdentity { id: 10, generation: 0 })
    }

    fn open(
        &mut self,
        _now: Instant,
        number: u16,
        open: &OpenRequest,
    ) -> Result<(u64, Box<dyn ServedExport>), AttachmentEndNotice> {
        let mut store = self.store.lock().unwrap();
        let goes_beside = |mode: AttachmentMode| mode == AttachmentMode::Read && open.mode == AttachmentMode::Read;
        if !store.users.iter().all(|(_, mode)| goes_beside(*mode)) {
            return Err(AttachmentEndNotice { cause: AttachmentEndCause::Busy, message: "somebody has it".into() });
        }
        store.users.push((self.user, open.mode));
        store.lease += 1;
        let info = BlockInfo {
            size_bytes: BLOCK * store.size as u64,
            block_bytes: BLOCK as u32,
            preferred_bytes: 4096,
            request_bytes_max: 64 << 10,
            is_read_only: open.mode == AttachmentMode::Read,
            trims: false,
        };
        let user_blocks = StoreBlocks { store: Arc::clone(&self.store), user: self.user, info };
        let give_back = |user_blocks: StoreBlocks, _| {
            user_blocks.store.lock().unwrap().users.retain(|(user, _)| *user != user_blocks.user)
        };
        Ok((store.lease, Box::new(ServedBlock::new(number, user_blocks, 1, give_back))))
    }
}

/// One importer, and its cache.
struct Importer {
    world: World<PipedAttachment<RemoteBlock>>,
    services: StoreServices,
    cached: Cached,
    mode: AttachmentMode,
    blocks: u64,
    below: CompletionQueue<BlockCompletion>,
    done: CompletionQueue<BlockCompletion>,
    /// First block, number of blocks and moment of each read; 0 blocks for writes, which are not compared.
    unanswered: BTreeMap<u64, (u64, u64, u64)>,
    next_id: u64,
    /// Where it reads next.
    at: u64,
    /// Set if its exporter was killed and it has no link to another one: the moment of its last link.
    linked: Option<u64>,
}

impl Importer {
    fn begin(random: &mut Random, store: &Arc<Mutex<Store>>, user: usize) -> Option<Self> {
        let mode = if random.once_in(3) { AttachmentMode::Exclusive } else { AttachmentMode::Read };
        let open =
            OpenRequest { class: AttachmentClass::BLOCK, mode, epoch: 0, name: "disk".into(), reason: "".into() };
        let mut world = World::new(PipedAttachment::new(RemoteBlock::new(1, open), None));
        let mut services = StoreServices { store: Arc::clone(store), user };
        let nothing = || CompletionQueue::new(BufferPool::new(1 << 20));
        let mut below = nothing();
        while !world.is_linked() {
            world.link(random, &mut below);
        }
        world.exchange(&mut services, &mut below);
        if *world.remote.state() != AttachmentState::Open {
            return None;
        }
        let info = *world.remote.inner().info();
        let (cached, blocks) = (Cached::new(info), info.size_bytes / BLOCK);
        let (unanswered, linked) = (BTreeMap::new(), None);
        let done = nothing();
        Some(Self { world, services, cached, mode, blocks, below, done, unanswered, next_id: 0, at: 0, linked })
    }

    fn is_over(&self) -> bool {
        matches!(self.world.remote.state(), AttachmentState::Ended(_))
    }

    fn pump(&mut self) {
        self.cached.pump(self.world.now, self.world.remote.inner_mut(), &mut self.below, &mut self.done);
    }

    fn ask(&mut self, random: &mut Random) {
        let moment = self.services.store.lock().unwrap().moment;
        let count = random.pick(&[1, 8, 8, 16]).min(self.blocks);
        if random.once_in(6) || self.at + count > self.blocks {
            self.at = random.below(self.blocks - count + 1);
        }
        let (id, offset) = (self.next_id, self.at * BLOCK);
        self.next_id += 1;
        let request = if self.mode == AttachmentMode::Exclusive && random.once_in(2) {
            let blocks: Vec<_> = (0..count).map(|_| [random.below(256) as u8; BLOCK as usize]).collect();
            let bytes = blocks.concat();
            self.unanswered.insert(id, (0, 0, moment));
            BlockRequest::write(BlockId(id), offset, bytes.into())
        } else {
            self.unanswered.insert(id, (self.at, count, moment));
            BlockRequest::read(BlockId(id), offset, (count * BLOCK) as u32)
        };
        self.at += count;
        self.cached.submit(self.world.now, request.launch(), &mut self.done);
        self.pump();
    }

    /// Returns the number of requests that succeeded.
    fn check(&mut self) -> u32 {
        if self.world.is_linked() {
            self.linked = None;
        }
        let mut answered = 0;
        while let Some(done) = self.done.pop() {
            let (first, count, asked_ns) = self.unanswered.remove(&done.id.0).expect("answered once");
            if done.result.is_err() {
                assert!(self.is_over(), "{:?} while it is used", done.result);
                continue;
            }
            answered += 1;
            // A writer also sees its own writes in flight; the test of the disk world covers that.
            if self.mode != AttachmentMode::Read {
                continue;
            }
            let store = self.services.store.lock().unwrap();
            let bytes = done.payload.into_vec();
            assert_eq!(bytes.len() as u64, count * BLOCK);
            for (block, bytes) in (first..).zip(bytes.chunks(BLOCK as usize)) {
                let since = asked_ns.min(self.linked.unwrap_or(asked_ns));
                assert!(store.had(block as usize, bytes[0], since), "block {block} is old: {:#x}", bytes[0]);
            }
        }
        answered
    }

    /// The exporter loses this importer, which does not know it. Later the exporter takes the device back, because the
    /// owner wants it or the grace period ends; another importer writes, and this one continues to read.
    fn lose_device(&mut self, random: &mut Random) {
        self.world.cut_unnoticed();
        for _ in 0..3 {
            self.world.now = self.world.now + Duration::from_millis(random.pick(&[1, 500, 2000, 5000]));
            let now = self.world.now;
            let Some(session) = &mut self.world.exporter else { break };
            if session.is_over(now) {
                self.world.exporter.take().expect("it is there").finish(now);
            } else if session.may_close(now) && random.once_in(2) {
                session.close(
                    now,
                    1,
                    &AttachmentEndNotice {
                        cause: AttachmentEndCause::Refused,
                        message: "taken back by its owner".into(),
                    },
                );
            }
            self.ask(random);
            self.services.store.lock().unwrap().spoil(random);
            self.ask(random);
        }
    }

    /// It no longer needs the disk: it says so, or its exporter hears nothing from it for too long.
    fn end(mut self) -> u32 {
        if self.world.is_linked() && !self.is_over() {
            for _ in 0..20 {
                self.world.exchange(&mut self.services, &mut self.below);
                self.pump();
            }
            let answered = self.check();
            assert!(self.is_over() || self.unanswered.is_empty(), "nothing hangs: {:?}", self.unanswered);
            self.world.remote.close();
            self.world.exchange(&mut self.services, &mut self.below);
            return answered + self.leave();
        }
        self.leave()
    }

    fn leave(mut self) -> u32 {
        self.world.remote.handle_over(AttachmentEndCause::Requested, "enough", &mut self.below);
        self.pump();
        let answered = self.check();
        assert!(self.unanswered.is_empty(), "nothing hangs: {:?}", self.unanswered);
        if let Some(session) = self.world.exporter.take() {
            session.finish(self.world.now);
        }
        answered
    }
}

/// The world of all importers.
pub struct ReadersWorld {
    store: Arc<Mutex<Store>>,
    importers: [Option<Importer>; IMPORTERS],
    answered: u32,
}

impl ReadersWorld {
    pub fn new(random: &mut Random) -> Self {
        let most = SIZES.into_iter().max().expect("there are some");
        let blocks = (0..most).map(|_| vec![(0, random.below(256) as u8)]).collect();
        let store = Store { blocks, size: SIZES[0], users: Vec::new(), moment: 1, lease: 0 };
        Self { store: Arc::new(Mutex::new(store)), importers: Default::default(), answered: 0 }
    }

    pub fn step(&mut self, random: &mut Random) {
        let moment = {
            let mut store = self.store.lock().unwrap();
            store.moment += 1;
            store.moment
        };
        if random.once_in(120) {
            return self.crash(random, moment);
        }
        let user = random.below(IMPORTERS as u64) as usize;
        let Some(mut importer) = self.importers[user].take() else {
            self.importers[user] = Importer::begin(random, &self.store, user);
            return;
        };
        importer.world.now = importer.world.now + Duration::from_micros(random.below(1000));
        if random.once_in(300) {
            importer.world.now = importer.world.now + Duration::from_millis(random.below(6000));
        }
        match random.below(42) {
            0..=11 => importer.ask(random),
            12 if random.once_in(3) => importer.world.cut(),
            13..=15 if !importer.world.is_linked() => importer.world.link(random, &mut importer.below),
            16 if random.once_in(3) => {
                self.answered += importer.end();
                return;
            }
            17..=21 => {
                if let Some(session) = &mut importer.world.exporter {
                    session.handle_ready(importer.world.now);
                }
            }
            22 => importer.world.cut_unnoticed(),
            23 => importer.lose_device(random),
            _ => importer.world.shuffle(random, &mut importer.services, &mut importer.below),
        }
        importer.pump();
        self.answered += importer.check();
        if importer.is_over() {
            self.answered += importer.leave();
        } else {
            self.importers[user] = Some(importer);
        }
    }

    /// Kills the exporter's process: the disk has no users any more, and may have another size afterwards.
    fn crash(&mut self, random: &mut Random, moment: u64) {
        for importer in self.importers.iter_mut().flatten() {
            importer.linked.get_or_insert(moment);
            importer.world.crash();
        }
        let mut store = self.store.lock().unwrap();
        store.users.clear();
        if random.once_in(2) {
            let (before, now) = (store.size, random_size(store.size, moment));
            (before..now).for_each(|block| store.write(block, random.below(256) as u8));
            store.size = now;
        }
    }

    pub fn settle(mut self) -> u32 {
        for user in 0..IMPORTERS {
            self.answered += self.importers[user].take().map_or(0, |importer| importer.end());
        }
        assert!(self.store.lock().unwrap().users.is_empty(), "everybody has given it back");
        self.answered
    }
}

/// A size other than this.
fn random_size(now: usize, moment: u64) -> usize {
    let others: Vec<usize> = SIZES.into_iter().filter(|size| *size != now).collect();
    others[moment as usize % others.len()]
}
