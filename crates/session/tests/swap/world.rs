//! Two disks that lose what was not made durable, a journal, and what a user may rely on.

use std::sync::{Arc, Mutex, MutexGuard};

use farbus_model::{BlockMedium, BlockStore, StoreError};
use farbus_session::block::swap::{MilestoneJournal, SwapMilestone, SwapSide};

use crate::random::Random;

pub const SECTOR: usize = 512;
/// Some whole granules and a part of one.
pub const SECTORS: usize = 128 * 9 + 5;

/// The whole state behind one lock: each call to a disk checks all of it.
pub struct World {
    pub source: Disk,
    pub destination: Disk,
    /// What the journal says after a power cut.
    pub milestone: SwapMilestone,
    /// What each sector may hold after a power cut: its content at the last flush, and everything written since.
    allowed: Vec<Vec<u64>>,
    /// What each sector holds; `None` after a write that failed.
    expected: Vec<Option<u64>>,
    /// Whether the next note of the journal fails, and whether it is recorded all the same.
    pub journal_fails: Option<bool>,
    pub cuts_looked_at: u64,
}

/// A disk with one number per sector.
pub struct Disk {
    durable: Vec<u64>,
    /// Writes since the last flush, in order.
    pending: Vec<Vec<u64>>,
    /// The call with this number fails, and all later ones if the fault is permanent.
    pub fails: Option<Fault>,
    calls: u64,
    pub handles: usize,
    /// Writes to this sector are lost.
    pub deaf_sector: Option<usize>,
}

#[derive(Clone, Copy, Debug)]
pub struct Fault {
    pub from_call: u64,
    pub is_for_ever: bool,
    pub error: StoreError,
}

impl Disk {
    fn new(fill: u64) -> Self {
        let (durable, pending) = (vec![fill; SECTORS], vec![Vec::new(); SECTORS]);
        Self { durable, pending, fails: None, calls: 0, handles: 0, deaf_sector: None }
    }

    fn now(&self, sector: usize) -> u64 {
        *self.pending[sector].last().unwrap_or(&self.durable[sector])
    }

    fn call(&mut self) -> Result<(), StoreError> {
        self.calls += 1;
        match self.fails {
            Some(Fault { from_call, is_for_ever, error })
                if self.calls == from_call || (is_for_ever && self.calls > from_call) =>
            {
                Err(error)
            }
            _ => Ok(()),
        }
    }

    /// Removes all faults.
    pub fn mend(&mut self) {
        (self.fails, self.deaf_sector) = (None, None);
    }
}

impl World {
    pub fn shared() -> Shared {
        let mut source = Disk::new(0);
        for (sector, stamp) in source.durable.iter_mut().enumerate() {
            // With holes.
            *stamp = if (sector / 200) % 2 == 0 { sector as u64 + 1 } else { 0 };
        }
        let allowed = source.durable.iter().map(|stamp| vec![*stamp]).collect();
        let expected = source.durable.iter().map(|stamp| Some(*stamp)).collect();
        let (destination, milestone) = (Disk::new(0xdead), SwapMilestone::Abandoned);
        let world = Self { source, destination, milestone, allowed, expected, journal_fails: None, cuts_looked_at: 0 };
        Shared(Arc::new(Mutex::new(world)))
    }

    pub fn disk(&mut self, side: SwapSide) -> &mut Disk {
        match side {
            SwapSide::Source => &mut self.source,
            SwapSide::Destination => &mut self.destination,
        }
    }

    /// Checks a power cut at this moment: what it leaves of the disk that the journal names must be allowed.
    pub fn look_at_a_cut(&mut self) {
        self.cuts_looked_at += 1;
        let side = if self.milestone == SwapMilestone::Switched { SwapSide::Destination } else { SwapSide::Source };
        let disk = if side == SwapSide::Source { &self.source } else { &self.destination };
        for sector in 0..SECTORS {
            for stamp in std::iter::once(&disk.durable[sector]).chain(&disk.pending[sector]) {
                assert!(
                    self.allowed[sector].contains(stamp),
                    "a power cut leaves {stamp} in sector {sector} of {side}; allowed are {:?}",
                    self.allowed[sector]
                );
            }
        }
    }

    /// The user is about to write this.
    fn ask(&mut self, sector: usize, count: usize, stamp: u64) {
        for allowed in &mut self.allowed[sector..sector + count] {
            allowed.push(stamp);
        }
    }

    fn answered(&mut self, sector: usize, count: usize, stamp: Option<u64>) {
        self.expected[sector..sector + count].fill(stamp);
    }

    fn flushed(&mut self) {
        for (allowed, expected) in self.allowed.iter_mut().zip(&self.expected) {
            if let Some(expected) = expected {
                *allowed = vec![*expected];
            }
        }
    }

    /// Checks that the disk holds what its user wrote.
    pub fn check(&self, side: SwapSide) {
        let disk = if side == SwapSide::Source { &self.source } else { &self.destination };
        for (sector, expected) in self.expected.iter().enumerate() {
            let stamp = disk.now(sector);
            let is_right = expected.map_or(self.allowed[sector].contains(&stamp), |expected| expected == stamp);
            assert!(is_right, "sector {sector} of {side} holds {stamp} and not {expected:?}");
        }
    }
}

#[derive(Clone)]
pub struct Shared(Arc<Mutex<World>>);

impl Shared {
    pub fn world(&self) -> MutexGuard<'_, World> {
        self.0.lock().unwrap()
    }

    pub fn medium(&self, side: SwapSide) -> Arc<dyn BlockMedium> {
        Arc::new(OneSide(self.clone(), side))
    }

    /// A journal during whose notes this user acts.
    pub fn journal(&self, user: Box<dyn BlockStore>, random: Random) -> Box<dyn MilestoneJournal> {
        Box::new(Notes { shared: self.clone(), user, random })
    }

    /// One action of a user.
    pub fn act(&self, user: &mut dyn BlockStore, random: &mut Random, stamp: u64) {
        let sector = random.below(SECTORS as u64) as usize;
        let count_max = if random.once_in(8) { 200 } else { 4 };
        let count = (1 + random.below(count_max) as usize).min(SECTORS - sector);
        let (offset, length) = ((sector * SECTOR) as u64, (count * SECTOR) as u64);
        match random.below(8) {
            0..3 => {
                self.world().ask(sector, count, stamp);
                let written = user.write_at(offset, &bytes_of(&vec![stamp; count]));
                self.world().answered(sector, count, written.is_ok().then_some(stamp));
            }
            kind @ 3..5 => {
                self.world().ask(sector, count, 0);
                let made = if kind == 3 { user.discard(offset, length) } else { user.write_zeroes(offset, length) };
                self.world().answered(sector, count, made.is_ok().then_some(0));
            }
            5 => {
                if user.flush().is_ok() {
                    self.world().flushed();
                }
            }
            _ => {
                let mut bytes = vec![0xee; count * SECTOR];
                if user.read_at(offset, &mut bytes).is_err() {
                    return;
                }
                let world = self.world();
                for (at, stamp) in stamps_of(&bytes).enumerate() {
                    let expected = world.expected[sector + at];
                    let is_right = expected.map_or(world.allowed[sector + at].contains(&stamp), |e| e == stamp);
                    assert!(is_right, "read {stamp} in sector {} and not {expected:?}", sector + at);
                }
            }
        }
    }
}

fn bytes_of(stamps: &[u64]) -> Vec<u8> {
    stamps.iter().flat_map(|stamp| stamp.to_le_bytes().repeat(SECTOR / 8)).collect()
}

fn stamps_of(bytes: &[u8]) -> impl Iterator<Item = u64> + '_ {
    bytes.chunks(SECTOR).map(|sector| u64::from_le_bytes(sector[..8].try_into().unwrap()))
}

struct OneSide(Shared, SwapSide);

impl BlockMedium for OneSide {
    fn open(&self) -> Result<Box<dyn BlockStore>, String> {
        self.0.world().disk(self.1).handles += 1;
        Ok(Box::new(Handle(self.0.clone(), self.1)))
    }

    fn preferred_bytes(&self) -> u32 {
        4096
    }
}

struct Handle(Shared, SwapSide);

impl Drop for Handle {
    fn drop(&mut self) {
        // A test that failed has poisoned the lock.
        if let Ok(mut world) = self.0.0.lock() {
            world.disk(self.1).handles -= 1;
        }
    }
}

impl Handle {
    fn write(&mut self, offset: u64, stamps: impl Iterator<Item = u64>) -> Result<(), StoreError> {
        let mut world = self.0.world();
        world.disk(self.1).call()?;
        for (at, stamp) in stamps.enumerate() {
            let sector = offset as usize / SECTOR + at;
            let disk = world.disk(self.1);
            if disk.deaf_sector != Some(sector) {
                disk.pending[sector].push(stamp);
            }
        }
        world.look_at_a_cut();
        Ok(())
    }
}

impl BlockStore for Handle {
    fn size_bytes(&self) -> u64 {
        (SECTORS * SECTOR) as u64
    }

    fn is_read_only(&self) -> bool {
        false
    }

    fn read_at(&mut self, offset: u64, to: &mut [u8]) -> Result<(), StoreError> {
        let mut world = self.0.world();
        let disk = world.disk(self.1);
        disk.call()?;
        for (at, sector) in to.chunks_mut(SECTOR).enumerate() {
            sector.copy_from_slice(&disk.now(offset as usize / SECTOR + at).to_le_bytes().repeat(SECTOR / 8));
        }
        Ok(())
    }

    fn write_at(&mut self, offset: u64, from: &[u8]) -> Result<(), StoreError> {
        self.write(offset, stamps_of(from))
    }

    fn flush(&mut self) -> Result<(), StoreError> {
        let mut world = self.0.world();
        let disk = world.disk(self.1);
        disk.call()?;
        for (durable, pending) in disk.durable.iter_mut().zip(&mut disk.pending) {
            *durable = pending.drain(..).next_back().unwrap_or(*durable);
        }
        world.look_at_a_cut();
        Ok(())
    }

    fn discard(&mut self, offset: u64, len: u64) -> Result<(), StoreError> {
        self.write(offset, std::iter::repeat_n(0, len as usize / SECTOR))
    }

    fn write_zeroes(&mut self, offset: u64, len: u64) -> Result<(), StoreError> {
        self.discard(offset, len)
    }
}

struct Notes {
    shared: Shared,
    user: Box<dyn BlockStore>,
    random: Random,
}

impl Notes {
    fn act(&mut self) {
        for _ in 0..self.random.below(8) {
            let stamp = self.random.next() | 1 << 63;
            self.shared.act(&mut *self.user, &mut self.random, stamp);
        }
    }
}

impl MilestoneJournal for Notes {
    fn note(&mut self, milestone: SwapMilestone) -> Result<(), String> {
        self.act();
        let fails = {
            let mut world = self.shared.world();
            world.look_at_a_cut();
            let fails = world.journal_fails.take_if(|_| milestone == SwapMilestone::Switched);
            if fails != Some(false) {
                world.milestone = milestone;
                world.look_at_a_cut();
            }
            fails
        };
        self.act();
        if fails.is_some() { Err("the disk of the journal is full".into()) } else { Ok(()) }
    }
}
