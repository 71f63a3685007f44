//! A disk whose medium forgets what was not flushed, in that world: power cuts that leave any of the contents that a
//! sector has had, a medium that is taken away and comes back, writes that fail behind the cache and of which the
//! kernel tells one process once, exporters and importers that are killed in any step.
//!
//! The user writes versions of sectors. What a flush covered is on the medium, whatever happened; a read returns the
//! latest version that was answered, unless an error was told since.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use farbus_model::{
    BlockCompletion, BlockDevice, BlockId, BlockInFlight, BlockInfo, BlockOp, BlockRequest, BufferPool,
    CompletionQueue, ExportIdentity, Instant, Payload, StoreError,
};
use farbus_session::native::{
    ExporterServices, ImporterAttachment, InheritedDevice, RemoteBlock, ServedBlock, ServedExport,
};
use farbus_wire::native::control::{
    AttachmentClass, AttachmentEndCause, AttachmentEndNotice, AttachmentMode, OpenRequest, SuccessorOpenRequest,
};

use crate::random::Random;
use crate::world::{LINKS, World};

const SECTOR: usize = 512;
const SECTORS: usize = 24;
/// Sectors of one request at most.
const RUN_MAX: u64 = 6;
const INFO: BlockInfo = BlockInfo {
    size_bytes: (SECTOR * SECTORS) as u64,
    block_bytes: SECTOR as u32,
    preferred_bytes: 4096,
    request_bytes_max: 64 << 10,
    is_read_only: false,
    trims: false,
};

/// The exporter's machine: the kernel's cache, and what of it is on the medium. A sector's content is its version.
struct Medium {
    cached: [u16; SECTORS],
    durable: [u16; SECTORS],
    /// Versions of each sector since it was last written to the medium.
    dirty: BTreeMap<usize, Vec<u16>>,
    /// Whether the medium refuses writes.
    is_bad: bool,
    /// A write has failed of which the kernel has told no process yet.
    has_untold_error: bool,
    /// Changes when the machine restarts, or the medium comes back.
    durability: u64,
    is_taken: bool,
}

impl Medium {
    /// The kernel writes this sector to the medium. If that fails, the page counts as clean all the same.
    fn write_back(&mut self, sector: usize) {
        if self.dirty.remove(&sector).is_some() {
            match self.is_bad {
                true => self.has_untold_error = true,
                false => self.durable[sector] = self.cached[sector],
            }
        }
    }

    fn flush(&mut self) -> Result<(), StoreError> {
        (0..SECTORS).for_each(|sector| self.write_back(sector));
        if std::mem::take(&mut self.has_untold_error) { Err(StoreError::Medium) } else { Ok(()) }
    }

    /// The power fails, or the medium is taken away. Each sector that was not written back has one of the contents that
    /// it has had since.
    fn forget(&mut self, random: &mut Random) {
        for (sector, versions) in std::mem::take(&mut self.dirty) {
            if !self.is_bad && !random.once_in(2) {
                self.durable[sector] = random.pick(&versions);
            }
        }
        self.cached = self.durable;
        self.has_untold_error = false;
        self.durability += 1;
    }
}

/// The disk as one exporter's process has it open.
struct OpenDisk {
    medium: Arc<Mutex<Medium>>,
    queue: Vec<BlockInFlight>,
    random: Random,
    /// A flush has failed: none is believed any more.
    failed: Option<StoreError>,
}

impl BlockDevice for OpenDisk {
    fn info(&self) -> &BlockInfo {
        &INFO
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
            let first = request.offset as usize / SECTOR;
            let sectors = first..first + request.length as usize / SECTOR;
            match request.op {
                BlockOp::Read => {
                    let bytes: Vec<u8> =
                        medium.cached[sectors].iter().map(|version| content(*version)).collect::<Vec<_>>().concat();
                    done.push(request.answer(bytes.into()));
                }
                BlockOp::Write => {
                    let bytes = request.take_payload().into_vec();
                    for (sector, bytes) in sectors.zip(bytes.chunks(SECTOR)) {
                        let version = version_of(bytes);
                        medium.cached[sector] = version;
                        medium.dirty.entry(sector).or_default().push(version);
                    }
                    done.push(request.answer(Payload::Empty));
                }
                BlockOp::Flush => {
                    let flushed = self.failed.map_or_else(|| medium.flush(), Err);
                    self.failed = flushed.err();
                    done.push(match flushed {
                        Ok(()) => request.answer(Payload::Empty),
                        Err(error) => request.fail(error),
                    });
                }
                op => panic!("{op:?} was not asked for"),
            }
        }
    }
}

impl Drop for OpenDisk {
    /// A killed process drops nothing; here its requests end unseen.
    fn drop(&mut self) {
        self.queue.drain(..).for_each(|request| drop(request.fail(StoreError::Gone)));
    }
}

fn content(version: u16) -> Vec<u8> {
    version.to_le_bytes().repeat(SECTOR / 2)
}

fn version_of(bytes: &[u8]) -> u16 {
    let version = u16::from_le_bytes([bytes[0], bytes[1]]);
    assert!(bytes == content(version), "no sector is torn");
    version
}

struct TestExporter {
    medium: Arc<Mutex<Medium>>,
    seed: u64,
    epoch: u64,
}

impl ExporterServices for TestExporter {
    fn identity(&mut self, _open: &OpenRequest) -> Option<ExportIdentity> {
        Some(ExportIdentity { id: 7, generation: 0 })
    }

    fn open(
        &mut self,
        _now: Instant,
        number: u16,
        _open: &OpenRequest,
    ) -> Result<(u64, Box<dyn ServedExport>), AttachmentEndNotice> {
        let mut medium = self.medium.lock().unwrap();
        if std::mem::replace(&mut medium.is_taken, true) {
            return Err(AttachmentEndNotice { cause: AttachmentEndCause::Busy, message: "somebody has it".into() });
        }
        (self.epoch, self.seed) = (self.epoch + 1, self.seed + 1);
        let disk = OpenDisk {
            medium: Arc::clone(&self.medium),
            queue: Vec::new(),
            random: Random::new(self.seed),
            failed: None,
        };
        // As the product does when an importer ends.
        let give_back = |disk: OpenDisk, _| {
            let mut medium = disk.medium.lock().unwrap();
            medium.is_taken = false;
            let _ = medium.flush();
        };
        Ok((self.epoch, Box::new(ServedBlock::new(number, disk, medium.durability, give_back))))
    }

    fn inherit(
        &mut self,
        _now: Instant,
        _number: u16,
        _inherit: &SuccessorOpenRequest,
    ) -> Option<Result<InheritedDevice, AttachmentEndNotice>> {
        None
    }
}

/// What the user knows of a sector.
#[derive(Clone, Default)]
struct Known {
    /// The version that the latest flush covered.
    flushed: u16,
    /// Versions since, answered or not.
    since: Vec<u16>,
    /// The latest version that was answered since that flush.
    answered: Option<u16>,
    /// An error was told since the latest of them.
    is_uncertain: bool,
    is_busy: bool,
}

impl Known {
    fn may_be(&self, version: u16) -> bool {
        match self.is_uncertain {
            true => version == self.flushed || self.since.contains(&version),
            false => version == self.answered.unwrap_or(self.flushed),
        }
    }

    fn note_told_error(&mut self) {
        self.is_uncertain |= !self.since.is_empty();
    }
}

/// A request that was not answered yet.
enum UnansweredRequest {
    Read {
        first: usize,
        count: usize,
    },
    Write {
        first: usize,
        count: usize,
        version: u16,
    },
    /// The version of each sector that it covers, where one was written and is certain.
    Flush {
        covers: Vec<Option<u16>>,
    },
}

pub struct ForgetfulWorld {
    world: World<RemoteBlock>,
    links: u16,
    exporter: TestExporter,
    done: CompletionQueue<BlockCompletion>,
    unanswered: BTreeMap<u64, UnansweredRequest>,
    known: Vec<Known>,
    version: u16,
    next_id: u64,
    answered: u32,
    /// Power cuts, and errors that the user was told.
    pub cuts: u32,
    pub errors: u32,
}

impl ForgetfulWorld {
    pub fn new(random: &mut Random) -> Self {
        let medium = Medium {
            cached: [0; SECTORS],
            durable: [0; SECTORS],
            dirty: BTreeMap::new(),
            is_bad: false,
            has_untold_error: false,
            durability: 1,
            is_taken: false,
        };
        let exporter = TestExporter { medium: Arc::new(Mutex::new(medium)), seed: random.next() >> 1, epoch: 0 };
        let links = random.pick(&LINKS);
        let mut this = Self {
            world: World::over_links(remote(), links),
            links,
            exporter,
            done: CompletionQueue::new(BufferPool::new(1 << 20)),
            unanswered: BTreeMap::new(),
            known: vec![Known::default(); SECTORS],
            version: 0,
            next_id: 0,
            answered: 0,
            cuts: 0,
            errors: 0,
        };
        this.link_all(random);
        this
    }

    fn link_all(&mut self, random: &mut Random) {
        while !self.world.is_all_linked() {
            self.world.link(random, &mut self.done);
        }
    }

    pub fn step(&mut self, random: &mut Random) {
        self.world.now = self.world.now + Duration::from_micros(random.below(1000));
        match random.below(40) {
            0..=9 => self.ask(random),
            10 if random.once_in(4) => self.world.cut_some(random),
            11 if random.once_in(6) => self.kill_exporter(random),
            12 | 13 if !self.world.is_all_linked() => self.world.link(random, &mut self.done),
            14..=17 => {
                if let Some(session) = &mut self.world.exporter {
                    session.handle_ready(self.world.now);
                }
            }
            18 => self.exporter.medium.lock().unwrap().write_back(random.below(SECTORS as u64) as usize),
            19 if random.once_in(10) => self.exporter.medium.lock().unwrap().is_bad ^= true,
            20 if random.once_in(40) => self.kill_importer(random),
            _ => self.world.shuffle(random, &mut self.exporter, &mut self.done),
        }
        self.check();
    }

    fn ask(&mut self, random: &mut Random) {
        let count = 1 + random.below(RUN_MAX) as usize;
        let first = random.below((SECTORS - count + 1) as u64) as usize;
        let id = BlockId(self.next_id);
        self.next_id += 1;
        let (offset, length) = ((first * SECTOR) as u64, (count * SECTOR) as u32);
        let sectors = first..first + count;
        let is_flush = random.once_in(6);
        if !is_flush && self.known[sectors.clone()].iter().any(|known| known.is_busy) {
            return;
        }
        let (request, unanswered) = if is_flush {
            let covers = self.known.iter().map(|known| known.answered.filter(|_| !known.is_uncertain)).collect();
            (BlockRequest::flush(id), UnansweredRequest::Flush { covers })
        } else {
            self.known[sectors.clone()].iter_mut().for_each(|known| known.is_busy = true);
            if random.once_in(3) {
                (BlockRequest::read(id, offset, length), UnansweredRequest::Read { first, count })
            } else {
                self.version += 1;
                let version = self.version;
                // Even a write that is never answered may be stored.
                self.known[sectors].iter_mut().for_each(|known| known.since.push(version));
                let bytes = content(version).repeat(count);
                (BlockRequest::write(id, offset, bytes.into()), UnansweredRequest::Write { first, count, version })
            }
        };
        self.unanswered.insert(id.0, unanswered);
        self.world.remote.submit(self.world.now, request.launch(), &mut self.done);
    }

    /// Kills the exporter's process; sometimes the power fails, or the medium is taken away and comes back.
    fn kill_exporter(&mut self, random: &mut Random) {
        self.world.crash();
        let mut medium = self.exporter.medium.lock().unwrap();
        medium.is_taken = false;
        if random.once_in(2) {
            medium.forget(random);
            self.cuts += 1;
        }
    }

    /// Kills the importer's process and begins another one. What was not flushed may be lost.
    fn kill_importer(&mut self, random: &mut Random) {
        self.world.remote.handle_over(AttachmentEndCause::Requested, "it is killed", &mut self.done);
        while self.done.pop().is_some() {}
        self.unanswered.clear();
        if let Some(session) = self.world.exporter.take() {
            session.finish(self.world.now);
        }
        for known in &mut self.known {
            (known.is_busy, known.is_uncertain) = (false, known.is_uncertain || !known.since.is_empty());
        }
        let (now, incarnation) = (self.world.now, self.world.incarnation);
        self.world = World::over_links(remote(), self.links);
        (self.world.now, self.world.incarnation) = (self.world.now.max(now), incarnation);
        self.link_all(random);
    }

    fn check(&mut self) {
        while let Some(done) = self.done.pop() {
            self.answered += 1;
            let unanswered = self.unanswered.remove(&done.id.0).expect("answered once");
            self.errors += u32::from(done.result.is_err());
            match unanswered {
                UnansweredRequest::Read { first, count } => {
                    let known = &mut self.known[first..first + count];
                    known.iter_mut().for_each(|known| known.is_busy = false);
                    assert_eq!(done.result, Ok(()), "the cache can be read");
                    let found = done.payload.into_vec();
                    for (sector, (known, bytes)) in known.iter().zip(found.chunks(SECTOR)).enumerate() {
                        let version = version_of(bytes);
                        let sector = first + sector;
                        assert!(known.may_be(version), "sector {sector} reads as {version}");
                    }
                }
                UnansweredRequest::Write { first, count, version } => {
                    assert_eq!(done.result, Ok(()), "the cache takes all");
                    for known in &mut self.known[first..first + count] {
                        (known.is_busy, known.is_uncertain, known.answered) = (false, false, Some(version));
                    }
                }
                UnansweredRequest::Flush { covers } => self.check_flush(done.result, &covers),
            }
        }
    }

    fn check_flush(&mut self, result: Result<(), StoreError>, covers: &[Option<u16>]) {
        if result.is_err() {
            return self.known.iter_mut().for_each(Known::note_told_error);
        }
        let durable = self.exporter.medium.lock().unwrap().durable;
        for (sector, (known, covered)) in self.known.iter_mut().zip(covers).enumerate() {
            let Some(covered) = *covered else { continue };
            if !known.since.contains(&covered) || known.is_uncertain {
                continue;
            }
            let found = durable[sector];
            let is_there = found >= covered && known.since.contains(&found);
            assert!(is_there, "sector {sector}: version {covered} was flushed, and {found} is there");
            known.flushed = covered;
            known.since.retain(|version| *version > covered);
            known.answered = known.answered.filter(|version| *version > covered);
        }
    }

    /// The medium works again, everything is answered and flushed, and the power fails once more. Returns the number of
    /// answered requests.
    pub fn settle(mut self, random: &mut Random) -> u32 {
        self.exporter.medium.lock().unwrap().is_bad = false;
        // An exporter that could not flush once believes no flush.
        self.world.crash();
        self.exporter.medium.lock().unwrap().is_taken = false;
        for _ in 0..3 {
            self.link_all(random);
            self.world.exchange(&mut self.exporter, &mut self.done);
            self.check();
            let covers = self.known.iter().map(|known| known.answered.filter(|_| !known.is_uncertain)).collect();
            self.unanswered.insert(self.next_id, UnansweredRequest::Flush { covers });
            let flush = BlockRequest::flush(BlockId(self.next_id));
            self.next_id += 1;
            self.world.remote.submit(self.world.now, flush.launch(), &mut self.done);
            self.world.exchange(&mut self.exporter, &mut self.done);
            self.check();
            assert!(self.unanswered.is_empty(), "nothing hangs");
        }
        self.exporter.medium.lock().unwrap().forget(random);
        let durable = self.exporter.medium.lock().unwrap().durable;
        for (sector, known) in self.known.iter().enumerate() {
            let is_certain = !known.is_uncertain;
            assert!(!is_certain || known.since.is_empty(), "sector {sector}: the last flush covered everything");
            let found = durable[sector];
            assert!(known.may_be(found), "sector {sector}: {} was flushed, and {found} is there", known.flushed);
        }
        self.world.remote.handle_over(AttachmentEndCause::Requested, "it ends", &mut self.done);
        self.answered
    }
}

fn remote() -> RemoteBlock {
    let open = OpenRequest {
        class: AttachmentClass::BLOCK,
        mode: AttachmentMode::Exclusive,
        epoch: 0,
        name: "disk".into(),
        reason: "".into(),
    };
    RemoteBlock::new(1, open)
}
