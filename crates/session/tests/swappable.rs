//! A disk is exchanged for another one while it is used: worlds from seeds, and a power cut is looked at after each
//! step.
//!
//! Both devices answer in any order and carry requests out only then, so that whatever may overlap does. A checker
//! knows which data each sector may have, for its reader now, and after a power cut.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use farbus_model::{
    BlockCompletion, BlockDevice, BlockId, BlockInFlight, BlockInfo, BlockOp, BlockRequest, BufferPool,
    CompletionQueue, ExtentList, Instant, Payload, PendingBlockRequests, StoreError, StoreExtent,
};
use farbus_session::ProtocolViolation;
use farbus_session::block::swap::{SwapError, SwapMilestone, SwapOptions, SwapPhase, SwapReport, SwapSide};
use farbus_session::block::{AWAY_KIND, DeviceSwapAction, SwappableDevice};
use farbus_session::snapshot;

const SECTOR: u64 = 512;
const SECTORS: u64 = 96;
const SIZE: u64 = SECTORS * SECTOR;

/// Numbers that look random; the same for the same seed.
struct Chance(u64);

impl Chance {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }

    fn one_in(&mut self, many: u64) -> bool {
        self.below(many) == 0
    }
}

/// A disk's content and queue, which the test looks into.
#[derive(Debug)]
struct Disk {
    bytes: Vec<u8>,
    /// What a power cut leaves at least.
    durable: Vec<u8>,
    queue: Vec<BlockInFlight>,
    /// Which of the queue are carried out at the next occasion, by their place in it.
    due: Vec<usize>,
    /// The next write fails.
    fails: bool,
    /// Every read of this sector fails.
    bad_sector: Option<u64>,
    is_gone: bool,
}

/// A device that answers when the test says so.
#[derive(Clone, Debug)]
struct Late {
    disk: Arc<Mutex<Disk>>,
    info: BlockInfo,
}

impl Late {
    fn new(bytes: Vec<u8>) -> Self {
        let info = BlockInfo {
            size_bytes: bytes.len() as u64,
            block_bytes: SECTOR as u32,
            preferred_bytes: 4096,
            request_bytes_max: 64 << 10,
            is_read_only: false,
            trims: false,
        };
        let disk = Disk {
            durable: bytes.clone(),
            bytes,
            queue: Vec::new(),
            due: Vec::new(),
            fails: false,
            bad_sector: None,
            is_gone: false,
        };
        Self { disk: Arc::new(Mutex::new(disk)), info }
    }

    fn disk(&self) -> MutexGuard<'_, Disk> {
        self.disk.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Disk {
    fn carry_out(&mut self, request: BlockInFlight) -> BlockCompletion {
        let range = request.offset as usize..request.offset as usize + request.length as usize;
        if self.is_gone {
            return request.fail(StoreError::Gone);
        }
        match request.op {
            BlockOp::Read => {
                let sectors = request.offset / SECTOR..(request.offset + u64::from(request.length)) / SECTOR;
                match self.bad_sector.is_some_and(|bad| sectors.contains(&bad)) {
                    true => request.fail(StoreError::Medium),
                    false => request.answer(Payload::from(self.bytes[range].to_vec())),
                }
            }
            BlockOp::Map => {
                let mut extents = ExtentList::default();
                for sector in self.bytes[range].chunks(SECTOR as usize) {
                    let is_hole = sector.iter().all(|byte| *byte == 0);
                    if !extents.push(StoreExtent { length: SECTOR, is_hole }) {
                        break;
                    }
                }
                request.answer(extents.to_payload())
            }
            BlockOp::Flush => {
                self.durable.clone_from(&self.bytes);
                request.answer(Payload::Empty)
            }
            _ if std::mem::take(&mut self.fails) => request.fail(StoreError::NoSpace),
            BlockOp::Write => {
                self.bytes[range.clone()].copy_from_slice(&request.payload.contiguous());
                if request.is_durable {
                    self.durable[range.clone()].copy_from_slice(&self.bytes[range]);
                }
                request.answer(Payload::Empty)
            }
            BlockOp::Discard | BlockOp::WriteZeroes | BlockOp::Trim => {
                self.bytes[range].fill(0);
                request.answer(Payload::Empty)
            }
        }
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        self.queue.drain(..).for_each(|request| drop(request.recall()));
    }
}

impl BlockDevice for Late {
    fn info(&self) -> &BlockInfo {
        &self.info
    }

    fn submit(&mut self, _: Instant, request: BlockInFlight, done: &mut CompletionQueue<BlockCompletion>) {
        match self.info.check(&request) {
            Ok(()) => self.disk().queue.push(request),
            Err(error) => done.push(request.fail(error)),
        }
    }

    fn handle_ready(&mut self, _: Instant, done: &mut CompletionQueue<BlockCompletion>) {
        let mut disk = self.disk();
        let mut due = std::mem::take(&mut disk.due);
        due.sort_unstable();
        due.dedup();
        for at in due.into_iter().rev().filter(|at| *at < disk.queue.len()).collect::<Vec<_>>() {
            let request = disk.queue.remove(at);
            done.push(disk.carry_out(request));
        }
    }

    fn is_gone(&self) -> bool {
        self.disk().is_gone
    }

    fn epoch(&self) -> Option<u64> {
        Some(0)
    }

    /// Its requests are where another process finds them.
    fn save(&mut self, _: Instant) -> Option<Vec<u8>> {
        Some(b"late".to_vec())
    }
}

/// A change of a sector: its value, when it was begun, and when it was answered.
#[derive(Clone, Copy, Debug)]
struct Write {
    value: u32,
    begun: u64,
    answered: Option<u64>,
}

/// What a sector may have.
#[derive(Clone, Debug, Default)]
struct Sector {
    writes: Vec<Write>,
    /// After a power cut, and when it was last begun to write it. What has been overwritten since may still be there: a
    /// flush or a durable write says nothing of what was begun after it.
    durable: BTreeMap<u32, u64>,
}

impl Sector {
    fn new() -> Self {
        let first = Write { value: 0, begun: 0, answered: Some(0) };
        Self { writes: vec![first], durable: [(0, 0)].into() }
    }

    fn possible(&self) -> BTreeSet<u32> {
        self.writes.iter().map(|write| write.value).collect()
    }
}

/// A request of the user.
struct UnansweredSectors {
    op: BlockOp,
    sectors: std::ops::Range<u64>,
    begun: u64,
    /// What each of its sectors could have when it was submitted.
    before: Vec<BTreeSet<u32>>,
    is_durable: bool,
}

struct World {
    chance: Chance,
    disk: SwappableDevice<Late>,
    done: CompletionQueue<BlockCompletion>,
    source: Late,
    destination: Option<Late>,
    /// What the journal says durably.
    milestone: SwapMilestone,
    /// A note that is being made.
    note: Option<SwapMilestone>,
    /// Until then no note is made.
    slow_until: u64,
    sectors: Vec<Sector>,
    unanswered: BTreeMap<u64, UnansweredSectors>,
    clock: u64,
    ids: u64,
    ended: Option<Result<SwapReport, SwapError>>,
    reads: u64,
    seed: u64,
    /// The device that was given back.
    released: Option<Late>,
}

fn value_at(bytes: &[u8], sector: u64) -> u32 {
    let sector = &bytes[(sector * SECTOR) as usize..][..SECTOR as usize];
    let value = u32::from_le_bytes(sector[..4].try_into().unwrap());
    assert!(sector.chunks(4).all(|word| word == value.to_le_bytes()), "a sector is of one write");
    value
}

impl World {
    fn new(seed: u64) -> Self {
        let source = Late::new(vec![0; SIZE as usize]);
        Self {
            chance: Chance(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1),
            disk: SwappableDevice::new(source.clone()),
            done: CompletionQueue::new(BufferPool::new(1 << 20)),
            source,
            destination: None,
            milestone: SwapMilestone::Abandoned,
            note: None,
            slow_until: 0,
            sectors: vec![Sector::new(); SECTORS as usize],
            unanswered: BTreeMap::new(),
            clock: 1,
            ids: 0,
            ended: None,
            reads: 0,
            seed,
            released: None,
        }
    }

    fn now(&self) -> Instant {
        Instant::from_nanos(self.clock * 1000)
    }

    fn begin(&mut self, options: SwapOptions) {
        let mut bytes = vec![0xee; SIZE as usize + 4096];
        if options.resume {
            bytes[..SIZE as usize / 2].copy_from_slice(&self.source.disk().bytes[..SIZE as usize / 2]);
        }
        let destination = Late::new(bytes);
        (self.milestone, self.ended, self.released) = (SwapMilestone::Copying, None, None);
        self.disk.begin(self.now(), destination.clone(), None, options).map_err(|(error, _)| error).unwrap();
        self.destination = Some(destination);
    }

    /// Another process continues with the device and the requests that it holds, if it is at rest but for those.
    /// Returns whether it is, and how many requests these are.
    fn hand_over(&mut self) -> Option<usize> {
        let now = self.now();
        let saved = self.disk.save_away(now)?;
        let late = self.source.clone();
        let held = || -> PendingBlockRequests {
            let disk = late.disk();
            disk.queue.iter().map(|it| (it.id, (it.op, it.offset, it.length))).collect()
        };
        let restore = |bytes: &[u8], pending: PendingBlockRequests| {
            let mut from = snapshot::open(bytes, AWAY_KIND)?;
            let device = |_: &[u8], _: &BlockInfo| Ok::<_, ProtocolViolation>((late.clone(), pending));
            let restored = SwappableDevice::restore_away(now, &mut from, device)?;
            from.end("disk").map(|()| restored)
        };
        // What is cut off, or does not fit what the device has, is refused.
        let mut other = held();
        match other.pop_first() {
            Some((BlockId(number), what)) => drop(other.insert(BlockId(number + 1000), what)),
            None => drop(other.insert(BlockId(0), (BlockOp::Read, 0, SECTOR as u32))),
        }
        assert!(restore(&saved, other).is_err() && restore(&saved[..saved.len() - 1], held()).is_err());
        let (disk, pending) = restore(&saved, held()).unwrap();
        assert!(pending.keys().map(|id| id.0).eq(self.unanswered.keys().copied()), "seed {}", self.seed);
        BlockDevice::leave(&mut self.disk);
        self.disk = disk;
        Some(pending.len())
    }

    /// The user submits something.
    fn ask(&mut self) {
        let first = self.chance.below(SECTORS);
        let count = (1 + self.chance.below(8)).min(SECTORS - first);
        let (id, offset, length) = (BlockId(self.ids), first * SECTOR, (count * SECTOR) as u32);
        self.ids += 1;
        self.clock += 1;
        let value = self.ids as u32;
        let request = match self.chance.below(10) {
            0..4 => BlockRequest::read(id, offset, length),
            4..8 => {
                let bytes = value.to_le_bytes().repeat(length as usize / 4);
                let is_durable = self.chance.one_in(5);
                BlockRequest { is_durable, ..BlockRequest::write(id, offset, Payload::from(bytes)) }
            }
            8 => BlockRequest::zero(id, BlockOp::Discard, offset, length),
            _ => BlockRequest::flush(id),
        };
        let sectors = if request.op == BlockOp::Flush { 0..SECTORS } else { first..first + count };
        let is_change = request.op.is_change();
        for sector in &mut self.sectors[sectors.start as usize..sectors.end as usize] {
            if is_change {
                let value = if request.op == BlockOp::Write { value } else { 0 };
                sector.writes.push(Write { value, begun: self.clock, answered: None });
                sector.durable.insert(value, self.clock);
            }
        }
        let range = sectors.start as usize..sectors.end as usize;
        let before = self.sectors[range].iter().map(Sector::possible).collect();
        let unanswered =
            UnansweredSectors { op: request.op, sectors, begun: self.clock, before, is_durable: request.is_durable };
        self.unanswered.insert(id.0, unanswered);
        let now = self.now();
        self.disk.submit(now, request.launch(), &mut self.done);
        self.hear();
    }

    /// Takes the answers.
    fn hear(&mut self) {
        while let Some(answer) = self.done.pop() {
            self.clock += 1;
            let unanswered = self.unanswered.remove(&answer.id.0).expect("it is answered once");
            assert_eq!(answer.result, Ok(()), "seed {}: {:?}", self.seed, unanswered.op);
            let (now, begun) = (self.clock, unanswered.begun);
            for (at, before) in unanswered.sectors.clone().zip(&unanswered.before) {
                let sector = &mut self.sectors[at as usize];
                match unanswered.op {
                    BlockOp::Read => {
                        let bytes = answer.payload.contiguous();
                        let value = value_at(&bytes, at - unanswered.sectors.start);
                        let is_since = sector.writes.iter().any(|write| write.value == value && write.begun > begun);
                        let is_known = before.contains(&value) || is_since;
                        assert!(is_known, "seed {}: sector {at} reads {value}, of {before:?}", self.seed);
                        // Nothing was written meanwhile: from now on it is that.
                        if sector.writes.iter().all(|write| write.answered.is_some_and(|at| at < begun)) {
                            sector.writes.retain(|write| write.value == value);
                        }
                        self.reads += 1;
                    }
                    BlockOp::Flush => {
                        sector.durable.retain(|value, since| *since > begun || before.contains(value));
                    }
                    _ => {
                        // What was answered before this began is over.
                        sector.writes.retain(|write| write.answered.is_none_or(|at| at >= begun));
                        if let Some(own) = sector.writes.iter_mut().find(|write| write.begun == begun) {
                            own.answered = Some(now);
                        }
                        if unanswered.is_durable {
                            let possible = sector.possible();
                            sector.durable.retain(|value, since| *since >= begun || possible.contains(value));
                        }
                    }
                }
            }
        }
    }

    /// Devices, the journal's writer or the user do something.
    fn step(&mut self) {
        self.clock += 1;
        let now = self.now();
        match self.chance.below(8) {
            0..2 if self.unanswered.len() < 12 => self.ask(),
            2 => self.write_journal(),
            3 => {
                if self.disk.poll_timeout().is_some_and(|at| at <= now) {
                    self.disk.handle_timeout(now, &mut self.done);
                }
            }
            4 => self.disk.end_turn(now, &mut self.done),
            _ => self.answer_some(),
        }
        self.hear();
        self.take_work();
        self.look_at_power_cut();
    }

    fn answer_some(&mut self) {
        for device in [Some(&self.source), self.destination.as_ref()].into_iter().flatten() {
            let mut disk = device.disk();
            let len = disk.queue.len() as u64;
            disk.due = (0..len.min(3)).map(|_| self.chance.below(len) as usize).collect();
        }
        let now = self.now();
        self.disk.handle_ready(now, &mut self.done);
    }

    fn write_journal(&mut self) {
        let Some(milestone) = self.note.filter(|_| self.clock >= self.slow_until) else { return };
        if self.milestone == milestone || self.chance.one_in(2) {
            self.milestone = milestone;
            self.note = None;
            let now = self.now();
            self.disk.handle_noted(now, Ok(()), &mut self.done);
        } else {
            // It is durable before the swap hears so.
            self.milestone = milestone;
        }
    }

    fn take_work(&mut self) {
        while let Some(work) = self.disk.poll_work() {
            match work {
                DeviceSwapAction::Note(milestone) => {
                    assert!(self.note.replace(milestone).is_none(), "one note at a time")
                }
                DeviceSwapAction::Release(device) => self.released = Some(device),
                DeviceSwapAction::Ended(result) => {
                    if result.is_ok() {
                        let destination = self.destination.take().expect("it was swapped for");
                        self.source = destination;
                        self.milestone = SwapMilestone::Abandoned;
                    }
                    self.destination = None;
                    self.ended = Some(result);
                }
            }
        }
    }

    /// If the power failed now: the device that the journal names has everything that was made durable, and no sector
    /// that was never written so.
    fn look_at_power_cut(&self) {
        let device = match (&self.destination, self.milestone) {
            (Some(destination), SwapMilestone::Switched) => destination,
            _ => &self.source,
        };
        let disk = device.disk();
        for (bytes, what) in [(&disk.durable, "at least"), (&disk.bytes, "at most")] {
            for (at, sector) in self.sectors.iter().enumerate() {
                let value = value_at(bytes, at as u64);
                let all = &sector.durable;
                assert!(
                    all.contains_key(&value),
                    "seed {}, {what}: sector {at} has {value}, of {all:?}; {:?} {:?}",
                    self.seed,
                    self.milestone,
                    self.disk.progress(self.now()),
                );
            }
        }
    }

    fn run_until_ended(&mut self) -> Result<SwapReport, SwapError> {
        for _ in 0..200_000 {
            self.step();
            if let Some(ended) = self.ended.take() {
                return ended;
            }
        }
        panic!("seed {}: no end: {:?}", self.seed, self.disk.progress(self.now()));
    }

    /// Everything that was asked is answered, and every sector reads as one of what it may have.
    fn finish(&mut self) {
        for _ in 0..10_000 {
            self.clock += 1;
            self.answer_some();
            self.hear();
        }
        assert_eq!(self.unanswered.len(), 0, "seed {}: all is answered", self.seed);
        let disk = self.source.disk();
        for (at, sector) in self.sectors.iter().enumerate() {
            let value = value_at(&disk.bytes, at as u64);
            assert!(sector.possible().contains(&value), "seed {}: sector {at} has {value}", self.seed);
        }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.disk.leave();
    }
}

fn seeds() -> std::ops::Range<u64> {
    let number = |name, otherwise| std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(otherwise);
    let first = number("FARBUS_FUZZ_SEED", 1);
    first..first + number("FARBUS_SEEDS", 60)
}

#[test]
fn nothing_is_lost_and_nothing_old_is_read_in_swaps_there_and_back_whenever_the_power_fails() {
    let mut reads = 0;
    for seed in seeds() {
        let mut world = World::new(seed);
        for _ in 0..60 {
            world.step();
        }
        for at in 0..3 {
            let options = SwapOptions { verify: (seed + at) % 2 == 0, resume: (seed + at) % 3 == 0, rate: None };
            world.begin(options);
            let report = world.run_until_ended().unwrap_or_else(|error| panic!("seed {seed}: {error}"));
            assert!(report.rounds >= 1, "seed {seed}: {report:?}");
            assert!(world.released.is_some(), "the source was given back");
        }
        world.finish();
        reads += world.reads;
    }
    assert!(reads > 5_000, "the worlds read {reads} sectors");
}

#[test]
fn another_process_answers_what_was_asked_of_a_disk_that_was_swapped_once_and_rightly() {
    let (mut handed_over, mut with_requests) = (0, 0);
    for seed in seeds() {
        let mut world = World::new(seed);
        assert_eq!(world.disk.save_away(world.now()), None, "it was never swapped: it is saved as it is");
        world.begin(SwapOptions { rate: None, verify: false, resume: false });
        while world.ended.is_none() {
            world.step();
            assert!(world.ended.is_some() || world.disk.save_away(world.now()).is_none(), "it is being swapped");
        }
        for _ in 0..100 {
            world.step();
            if world.chance.one_in(4)
                && let Some(requests) = world.hand_over()
            {
                (handed_over, with_requests) = (handed_over + 1, with_requests + usize::from(requests > 0));
            }
        }
        world.finish();
        // What has no answer when its users have gone ends with them.
        world.ask();
        world.disk.abandon();
    }
    assert!(with_requests > 500, "{handed_over} were handed over, {with_requests} with requests");
}

#[test]
fn a_swap_that_is_cancelled_or_fails_at_any_step_leaves_the_source_as_it_would_be() {
    let mut ends = BTreeMap::<&str, u32>::new();
    for seed in seeds() {
        let mut world = World::new(seed);
        for _ in 0..60 {
            world.step();
        }
        world.begin(SwapOptions { verify: seed % 2 == 0, ..SwapOptions::default() });
        let at = seed * 7 % 80;
        let mut ended = None;
        for step in 0..200_000 {
            let phase = world.disk.progress(world.now()).map(|progress| progress.phase);
            // Once it may be decided, a failure of the destination is one of the device.
            let may_fail = !matches!(phase, Some(SwapPhase::Deciding | SwapPhase::Releasing));
            if step == at {
                let now = world.now();
                match seed % 4 {
                    1 | 2 if !may_fail => {}
                    0 => drop(world.disk.cancel(now)),
                    1 => world.destination.iter().for_each(|destination| destination.disk().fails = true),
                    2 => world.destination.iter().for_each(|destination| destination.disk().is_gone = true),
                    // The journal cannot be written, and may have been.
                    _ => {}
                }
            }
            if seed % 4 == 3 && world.note == Some(SwapMilestone::Switched) {
                // What says which disk it is takes its time, and users go on meanwhile.
                (world.note, world.slow_until) = (None, world.clock + 200);
                if world.chance.one_in(2) {
                    world.milestone = SwapMilestone::Switched;
                }
                let now = world.now();
                world.disk.handle_noted(now, Err("no space".into()), &mut world.done);
                world.hear();
                world.take_work();
            }
            if !may_fail {
                world.destination.iter().for_each(|destination| destination.disk().fails = false);
            }
            world.step();
            ended = world.ended.take();
            if ended.is_some() {
                break;
            }
        }
        let key = match ended.unwrap_or_else(|| panic!("seed {seed}: no end")) {
            Ok(_) => "swapped",
            Err(SwapError::Cancelled) => "cancelled",
            Err(SwapError::Medium { side: SwapSide::Destination, .. }) => "destination",
            Err(SwapError::Journal(_)) => "journal",
            Err(error) => panic!("seed {seed}: {error}"),
        };
        *ends.entry(key).or_default() += 1;
        if key != "swapped" {
            assert_eq!(world.milestone, SwapMilestone::Abandoned, "seed {seed}");
        }
        world.finish();
        if key != "swapped" {
            let now = world.now();
            let saved = BlockDevice::save(&mut world.disk, now);
            assert_eq!(saved.as_deref(), Some(&b"late"[..]), "seed {seed}: it is saved as if there had been no swap");
        }
    }
    for end in ["cancelled", "destination", "journal"] {
        assert!(ends.get(end).is_some_and(|count| *count > 3), "{ends:?}");
    }
}

/// Its exporter ends, or gives the disk to nobody, while the journal is written.
#[test]
fn a_source_that_goes_while_the_journal_is_written_fails_no_request() {
    for seed in seeds() {
        let mut world = World::new(seed);
        for _ in 0..60 {
            world.step();
        }
        world.begin(SwapOptions::default());
        let report = loop {
            world.step();
            if world.note == Some(SwapMilestone::Switched) && !world.source.disk().is_gone {
                world.source.disk().is_gone = true;
                world.slow_until = world.clock + world.chance.below(200);
                assert!(!world.disk.is_gone(), "seed {seed}: it may have a device");
            }
            if let Some(ended) = world.ended.take() {
                break ended.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
            }
        };
        assert!(report.rounds >= 1, "seed {seed}: {report:?}");
        assert!(world.released.as_ref().is_some_and(BlockDevice::is_gone), "seed {seed}");
        for _ in 0..60 {
            world.step();
        }
        world.finish();
    }
}

#[test]
fn a_bad_block_of_the_source_is_named() {
    let mut world = World::new(1);
    for _ in 0..60 {
        world.step();
    }
    world.source.disk().bytes[70 * SECTOR as usize..][..SECTOR as usize].fill(7);
    world.source.disk().bad_sector = Some(70);
    world.unanswered.retain(|_, _| true);
    world.begin(SwapOptions::default());
    let now = world.now();
    let mut ended = None;
    for _ in 0..10_000 {
        world.clock += 1;
        world.answer_some();
        world.disk.handle_timeout(now, &mut world.done);
        while world.done.pop().is_some() {}
        world.write_journal();
        world.take_work();
        ended = world.ended.take();
        if ended.is_some() {
            break;
        }
    }
    let granule = 4096;
    let expected = SwapError::Medium {
        side: SwapSide::Source,
        offset: 70 * SECTOR / granule * granule,
        error: StoreError::Medium,
    };
    assert_eq!(ended, Some(Err(expected)));
}

#[test]
fn a_destination_that_does_not_answer_while_users_wait_for_it_is_given_up() {
    let mut world = World::new(3);
    world.begin(SwapOptions::default());
    while !world.disk.progress(world.now()).is_some_and(|progress| progress.phase == SwapPhase::Deciding) {
        world.clock += 1;
        let now = world.now();
        world.disk.handle_timeout(now, &mut world.done);
        world.answer_some();
    }
    let id = BlockId(u64::MAX);
    let write = BlockRequest::write(id, 0, Payload::from(vec![1; 512]));
    let now = world.now();
    world.disk.submit(now, write.launch(), &mut world.done);
    let source = world.source.clone();
    source.disk().due = (0..8).collect();
    world.disk.handle_ready(now, &mut world.done);
    assert!(world.done.pop().is_none(), "both have to answer");
    let late = world.disk.poll_timeout().expect("it does not wait for ever");
    let late = late.max(now + std::time::Duration::from_secs(5));
    world.disk.handle_timeout(late, &mut world.done);
    let answer = world.done.pop().expect("it is answered by the source alone");
    assert_eq!((answer.id, answer.result), (id, Ok(())));
    assert_eq!(
        world.disk.poll_work().map(|work| matches!(work, DeviceSwapAction::Note(SwapMilestone::Abandoned))),
        Some(true)
    );
}

#[test]
fn destinations_that_do_not_suit_are_refused_and_given_back() {
    let source = Late::new(vec![0; SIZE as usize]);
    let mut disk = SwappableDevice::new(source);
    let small = Late::new(vec![0; SIZE as usize - 512]);
    let mut coarse = Late::new(vec![0; SIZE as usize]);
    coarse.info.block_bytes = 4096;
    let mut sealed = Late::new(vec![0; SIZE as usize]);
    sealed.info.is_read_only = true;
    let mut begin = |device: &Late| {
        disk.begin(Instant::ZERO, device.clone(), None, SwapOptions::default()).map_err(|(error, _)| error)
    };
    assert_eq!(begin(&small), Err(SwapError::TooSmall { needed: SIZE, found: SIZE - 512 }));
    assert!(matches!(begin(&coarse), Err(SwapError::Open(SwapSide::Destination, _))));
    assert_eq!(begin(&sealed), Err(SwapError::ReadOnly));
    let good = Late::new(vec![0; SIZE as usize]);
    assert_eq!(begin(&good), Ok(()));
    assert_eq!(begin(&good), Err(SwapError::AnotherSwap));
}
