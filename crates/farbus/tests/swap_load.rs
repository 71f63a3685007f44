//! A disk of 1 GiB that is swapped under a load of random writes, as in the paper's section 7.7: is the copy the original, and how
//! long do 30 pending requests take across the switch? Quiet time is how long requests are made to wait: what the 30 took that were pending
//! when all pointers changed, beside what 30 take without a swap.
//!
//! The paper held its requests for 15 ms with 30 pending, and for 3 ms with few.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use farbus_io::store::FileStore;
use farbus_model::{BlockStore, Medium};
use farbus_session::block::swap::{Journal, Milestone, Options, Phase, Step};
use farbus_session::block::{Swap, Switch};

const GIB: u64 = 1 << 30;
/// As many as were pending in the paper.
const PENDING: usize = 30;
const BLOCK: u64 = 4096;
/// What the paper's requests waited.
const PAPER: Duration = Duration::from_millis(15);
/// How often it is swapped: a busy machine may have disturbed all but the quickest.
const SWAPS: usize = 2;

struct Random(u64);

impl Random {
    fn below(&mut self, count: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ z >> 31) % count
    }
}

struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        let path = std::env::temp_dir().join(format!("farbus-swap-load-{}", std::process::id()));
        fs::create_dir(&path).unwrap();
        Self(path)
    }

    fn disk(&self, name: &str) -> PathBuf {
        let path = self.0.join(name);
        File::create(&path).unwrap().set_len(GIB).unwrap();
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A journal as durable as the real one.
struct Notes(File);

impl Journal for Notes {
    fn note(&mut self, _milestone: Milestone) -> Result<(), String> {
        self.0.set_len(self.0.metadata().unwrap().len() + 1).and_then(|()| self.0.sync_all()).map_err(|e| e.to_string())
    }
}

/// When a batch of pending requests began, and how long it took until all of them were answered.
type Batches = Arc<Mutex<Vec<(Instant, Duration)>>>;

#[derive(Default)]
struct Load {
    is_over: AtomicBool,
    is_pressing: AtomicBool,
}

/// Batches of random writes until it is told to stop; every block written holds its own offset and the batch's number. Returns
/// what each block holds.
fn write_batches(mut store: Box<dyn BlockStore>, batches: &Batches, load: &Load) -> Vec<u32> {
    let mut random = Random(7);
    let mut held = vec![0; (GIB / BLOCK) as usize];
    for number in 1.. {
        if load.is_over.load(Ordering::Relaxed) {
            break;
        }
        let blocks: Vec<u64> = (0..PENDING).map(|_| random.below(GIB / BLOCK)).collect();
        let began = Instant::now();
        for block in blocks {
            let mut bytes = [number as u8; BLOCK as usize];
            bytes[..8].copy_from_slice(&block.to_le_bytes());
            bytes[8..12].copy_from_slice(&u32::to_le_bytes(number));
            store.write_at(block * BLOCK, &bytes).unwrap();
            held[block as usize] = number;
        }
        batches.lock().unwrap().push((began, began.elapsed()));
        // What a disk's queue looks like: filled again when it is empty, not without a pause. At the switch there are always some.
        if !load.is_pressing.load(Ordering::Relaxed) {
            thread::sleep(Duration::from_millis(2));
        }
    }
    store.flush().unwrap();
    held
}

fn middle(batches: impl Iterator<Item = (Instant, Duration)>) -> Duration {
    let mut all: Vec<_> = batches.map(|(_, took)| took).collect();
    all.sort_unstable();
    all[all.len() / 2]
}

/// The middle one, the one that 99 of 100 are below, and the longest.
fn summary(batches: impl Iterator<Item = (Instant, Duration)>) -> String {
    let mut all: Vec<_> = batches.map(|(_, took)| took).collect();
    all.sort_unstable();
    let at = |percent: usize| all.get(all.len().saturating_sub(1) * percent / 100).copied().unwrap_or_default();
    format!("{:?} (99 of 100 below {:?}, the longest {:?})", at(50), at(99), at(100))
}

#[test]
fn thirty_pending_requests_hardly_notice_a_swap_and_the_copy_is_the_original() {
    let folder = Folder::new();
    let first = folder.disk("0.img");
    let switch = Switch::new(Arc::new(FileStore::open(&first, false).unwrap())).unwrap();
    let (batches, load) = (Batches::default(), Arc::new(Load::default()));
    let writer = {
        let (store, batches, load) = (switch.open().unwrap(), Arc::clone(&batches), Arc::clone(&load));
        thread::spawn(move || write_batches(store, &batches, &load))
    };
    thread::sleep(Duration::from_secs(1));
    let drained = middle(batches.lock().unwrap().iter().copied());
    println!("{PENDING} pending requests without a swap: {}", summary(batches.lock().unwrap().iter().copied()));
    let mut across = Vec::new();
    let mut path = first;
    for number in 1..=SWAPS {
        let next = folder.disk(&format!("{number}.img"));
        let phases = swap(&switch, &next, folder.0.join("journal"), number == SWAPS, &load);
        load.is_pressing.store(false, Ordering::Relaxed);
        thread::sleep(Duration::from_millis(50));
        across.push(pending_at_the_switch(&batches.lock().unwrap(), &phases));
        fs::remove_file(std::mem::replace(&mut path, next)).unwrap();
    }
    load.is_over.store(true, Ordering::Relaxed);
    let held = writer.join().unwrap();
    check(&path, &held);
    let quickest = *across.iter().min().unwrap();
    let times = quickest.as_secs_f64() / drained.as_secs_f64();
    println!(
        "those that were pending at the switch: {across:?}, at best {times:.2} times as long; the paper: {PAPER:?}"
    );
    assert!(quickest < PAPER, "{across:?}");
}

/// Swaps, and says when each phase began.
fn swap(switch: &Switch, to: &Path, journal: PathBuf, verify: bool, load: &Load) -> Vec<(Phase, Instant)> {
    let clock = Instant::now();
    let now = || farbus_model::Instant::ZERO + clock.elapsed();
    let destination = Arc::new(FileStore::open(to, false).unwrap());
    let notes = Box::new(Notes(File::create(journal).unwrap()));
    let options = Options { verify, ..Options::default() };
    let mut swap = Swap::begin(switch, destination, notes, options, now()).unwrap();
    let mut phases = vec![(swap.phase(), Instant::now())];
    let report = loop {
        match swap.step(now()) {
            Step::Again => {}
            Step::At(when) => thread::sleep(when - now()),
            Step::Ended(result) => break result.unwrap(),
        }
        let is_at_the_switch = matches!(swap.phase(), Phase::Deciding | Phase::Following | Phase::Flipping);
        load.is_pressing.store(is_at_the_switch, Ordering::Relaxed);
        if phases.last().is_none_or(|(phase, _)| *phase != swap.phase()) {
            phases.push((swap.phase(), Instant::now()));
        }
    };
    println!("{} MiB copied in {} rounds and {:?}", report.copied_bytes >> 20, report.rounds, report.took);
    phases
}

/// The longest that a batch took of those that were pending when all pointers changed: from the first time that everybody was held on.
fn pending_at_the_switch(batches: &[(Instant, Duration)], phases: &[(Phase, Instant)]) -> Duration {
    for ended in phases.windows(2) {
        let during = batches.iter().copied().filter(|(at, took)| *at + *took >= ended[0].1 && *at <= ended[1].1);
        println!("  {:?}, {:?}: {}", ended[0].0, ended[1].1 - ended[0].1, summary(during));
    }
    let began = |phase| phases.iter().find(|(begun, _)| *begun == phase).map(|(_, when)| *when);
    let [from, to] = [Phase::Flipping, Phase::Releasing].map(|phase| began(phase).expect("each phase is passed"));
    // One batch after the other: if it was between two, the next one begins at once.
    let pending = batches.iter().filter(|(at, took)| *at + *took >= from && *at <= to + Duration::from_millis(1));
    pending.map(|(_, took)| *took).max().unwrap_or_default()
}

/// Every block of the last medium holds what was written there last.
fn check(path: &Path, held: &[u32]) {
    let mut file = File::open(path).unwrap();
    let mut bytes = vec![0; BLOCK as usize];
    for (block, number) in held.iter().enumerate() {
        file.read_exact(&mut bytes).unwrap();
        if *number == 0 {
            assert!(bytes.iter().all(|byte| *byte == 0), "block {block} was never written");
        } else {
            let found = u64::from_le_bytes(bytes[..8].try_into().unwrap());
            let stamp = u32::from_le_bytes(bytes[8..12].try_into().unwrap());
            assert_eq!((found, stamp, bytes[4095]), (block as u64, *number, *number as u8), "block {block}");
        }
    }
}
