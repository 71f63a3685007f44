//! A disk that is swapped under a load of random writes with 30 of them pending, as in the paper's section 7.7: is the
//! copy the original, and how much do the 30 notice?
//!
//! Two figures are compared with what draining the same 30 takes, at the same depth and size, in the same run. The
//! *quiet time*, as the paper has it, is the longest time around the switch in which none of the pending requests is
//! answered; the *longest wait* is that of a single request. The paper's requests waited 15 ms with 30 pending, and 3
//! ms with few.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use farbus::devices::media_journal as journal;
use farbus_io_linux::store::FileStore;
use farbus_model::{BlockMedium, BlockStore, StoreError};
use farbus_session::block::swap::{MilestoneJournal, SwapMilestone, SwapOptions, SwapPhase, SwapStep};
use farbus_session::block::{MediumSwap, MediumSwitch};

/// As many as were pending in the paper.
const PENDING: usize = 30;
const BLOCK: u64 = 4096;
/// How long the paper's requests waited.
const PAPER: Duration = Duration::from_millis(15);
/// A longer wait counts as a hang.
const HANGS: Duration = Duration::from_secs(60);
/// The target: the quiet time is at most this many times what draining takes. The test prints whether it is met;
/// on a machine that stalls that means nothing.
const TIMES_MAX: f64 = 1.5;
/// What a busy machine may add to the best of all swaps without failing a test. A swap that waits for a timeout needs
/// more.
const SLACK: Duration = Duration::from_secs(2);
/// The pause between two fills of the queue: the disk is busy, and not overloaded.
const PAUSE: Duration = Duration::from_millis(2);

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
    fn new(under: &Path, name: &str) -> Self {
        let path = under.join(format!("farbus-swap-load-{name}-{}", std::process::id()));
        fs::create_dir(&path).unwrap();
        Self(path)
    }

    fn disk(&self, name: &str, bytes: u64) -> FileStore {
        let path = self.0.join(name);
        File::create(&path).unwrap().set_len(bytes).unwrap();
        FileStore::open(&path, false).unwrap()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The swap's journal. When it records that the device is the destination, thirty requests are pending, and stay so.
struct Notes {
    journal: journal::SwapJournalWriter,
    load: Arc<Load>,
}

impl MilestoneJournal for Notes {
    fn note(&mut self, milestone: SwapMilestone) -> Result<(), String> {
        self.load.is_pressing.store(milestone == SwapMilestone::Switched, Ordering::Relaxed);
        self.journal.note(milestone)
    }
}

/// A disk that serves one request at a time, and each takes its time: like an old disk, or a busy store elsewhere.
struct Slow {
    medium: Arc<dyn BlockMedium>,
    queue: Arc<Queue>,
}

/// Serves requests in the order of their arrival.
#[derive(Default)]
struct Queue {
    /// How many arrived, and how many were served.
    numbers: Mutex<(u64, u64)>,
    changed: Condvar,
}

impl Queue {
    fn serve<T>(&self, serve: impl FnOnce() -> T) -> T {
        let mut numbers = self.numbers.lock().unwrap();
        let mine = numbers.0;
        numbers.0 += 1;
        drop(self.changed.wait_while(numbers, |(_, served)| *served < mine).unwrap());
        let served = serve();
        self.numbers.lock().unwrap().1 += 1;
        self.changed.notify_all();
        served
    }
}

const SLOW_REQUEST: Duration = Duration::from_millis(5);
const SLOW_BYTES_PER_S: u64 = 20_000_000;

struct SlowStore {
    store: Box<dyn BlockStore>,
    queue: Arc<Queue>,
}

impl SlowStore {
    fn serve<T>(&mut self, bytes: u64, serve: impl FnOnce(&mut dyn BlockStore) -> T) -> T {
        self.queue.serve(|| {
            // waits: the device, disk or peer is that slow: its time is an argument of the test
            thread::sleep(SLOW_REQUEST + Duration::from_nanos(bytes * 1_000_000_000 / SLOW_BYTES_PER_S));
            serve(&mut *self.store)
        })
    }
}

impl BlockMedium for Slow {
    fn open(&self) -> Result<Box<dyn BlockStore>, String> {
        Ok(Box::new(SlowStore { store: self.medium.open()?, queue: Arc::clone(&self.queue) }))
    }

    fn preferred_bytes(&self) -> u32 {
        self.medium.preferred_bytes()
    }
}

impl BlockStore for SlowStore {
    fn size_bytes(&self) -> u64 {
        self.store.size_bytes()
    }

    fn is_read_only(&self) -> bool {
        false
    }

    fn read_at(&mut self, offset: u64, to: &mut [u8]) -> Result<(), StoreError> {
        self.serve(to.len() as u64, |store| store.read_at(offset, to))
    }

    fn write_at(&mut self, offset: u64, from: &[u8]) -> Result<(), StoreError> {
        self.serve(from.len() as u64, |store| store.write_at(offset, from))
    }

    fn flush(&mut self) -> Result<(), StoreError> {
        self.serve(0, |store| store.flush())
    }

    fn discard(&mut self, offset: u64, len: u64) -> Result<(), StoreError> {
        self.serve(0, |store| store.discard(offset, len))
    }

    fn write_zeroes(&mut self, offset: u64, len: u64) -> Result<(), StoreError> {
        self.serve(0, |store| store.write_zeroes(offset, len))
    }
}

/// An answered request.
#[derive(Clone, Copy, Debug)]
struct Answer {
    at: Instant,
    waited: Duration,
    /// The time since the answer before it, or since it was made if no request was pending then.
    quiet: Duration,
}

/// Thirty requests that are always pending, served one after the other as an exporter serves its link.
struct Load {
    answers: Mutex<Vec<Answer>>,
    is_over: AtomicBool,
    /// If set, a new request follows each answer at once; else the queue drains, and is filled after a pause.
    is_pressing: AtomicBool,
}

impl Load {
    fn start(mut store: Box<dyn BlockStore>) -> (Arc<Self>, JoinHandle<Vec<u32>>) {
        let (is_over, is_pressing) = (AtomicBool::new(false), AtomicBool::new(false));
        let load = Arc::new(Self { answers: Mutex::default(), is_over, is_pressing });
        let shared = Arc::clone(&load);
        (load, thread::spawn(move || shared.write(&mut *store)))
    }

    /// Writes until the load is over; every block holds its own offset and the request's number. Returns each block's
    /// number.
    fn write(&self, store: &mut dyn BlockStore) -> Vec<u32> {
        let blocks = store.size_bytes() / BLOCK;
        let (mut random, mut held, mut number) = (Random(7), vec![0; blocks as usize], 0_u32);
        let mut pending: VecDeque<Instant> = VecDeque::new();
        let mut last = Instant::now();
        while !self.is_over.load(Ordering::Relaxed) {
            if pending.is_empty() {
                // waits: the pace of a load; a slow machine makes less of it
                thread::sleep(PAUSE);
                last = Instant::now();
                pending.extend([last; PENDING]);
            } else if self.is_pressing.load(Ordering::Relaxed) {
                pending.resize(PENDING, last);
            }
            let Some(asked_at) = pending.pop_front() else { continue };
            number += 1;
            let block = random.below(blocks);
            let mut bytes = [number as u8; BLOCK as usize];
            bytes[..8].copy_from_slice(&block.to_le_bytes());
            bytes[8..12].copy_from_slice(&u32::to_le_bytes(number));
            store.write_at(block * BLOCK, &bytes).unwrap();
            held[block as usize] = number;
            let at = Instant::now();
            self.answers.lock().unwrap().push(Answer { at, waited: at - asked_at, quiet: at - last });
            last = at;
        }
        store.flush().unwrap();
        held
    }

    /// The answers given between two moments.
    fn between(&self, from: Instant, to: Instant) -> Vec<Answer> {
        let answers = self.answers.lock().unwrap();
        let first = answers.partition_point(|answer| answer.at < from);
        let last = answers.partition_point(|answer| answer.at <= to);
        answers[first..last].to_vec()
    }
}

/// What draining 30 requests takes when they are always pending: the median of all times.
fn drained(answers: &[Answer]) -> Duration {
    let mut waits: Vec<Duration> = answers.iter().map(|answer| answer.waited).collect();
    waits.sort_unstable();
    waits.get(waits.len() / 2).copied().unwrap_or_default()
}

fn at_most(answers: &[Answer], of: impl Fn(&Answer) -> Duration) -> String {
    let mut all: Vec<Duration> = answers.iter().map(of).collect();
    all.sort_unstable();
    let at = |per_mille: usize| all.get(all.len().saturating_sub(1) * per_mille / 1000).copied().unwrap_or_default();
    format!("{:?}, {:?}, {:?}", at(500), at(990), at(1000))
}

/// Swaps, and records when each phase began.
fn swap(
    switch: &MediumSwitch,
    to: Arc<dyn BlockMedium>,
    state: &Path,
    verify: bool,
    load: &Arc<Load>,
) -> Vec<(SwapPhase, Instant)> {
    let clock = Instant::now();
    let now = || farbus_model::Instant::ZERO + clock.elapsed();
    let (from, onto) = (journal::SwapMedium::called("from"), journal::SwapMedium::called("onto"));
    let journal =
        journal::SwapJournalWriter::to(journal::SwapJournalFolder::of(state).begin(&from, &onto).unwrap().file);
    let notes = Box::new(Notes { journal, load: Arc::clone(load) });
    let options = SwapOptions { verify, ..SwapOptions::default() };
    let mut swap = MediumSwap::begin(switch, to, notes, options, now()).unwrap();
    let mut phases = vec![(swap.phase(), Instant::now())];
    let report = loop {
        match swap.step(now()) {
            SwapStep::Again => {}
            // waits: the swap says when it wants to be called again
            SwapStep::At(when) => thread::sleep(when - now()),
            SwapStep::Ended(result) => break result.unwrap(),
        }
        if phases.last().is_none_or(|(phase, _)| *phase != swap.phase()) {
            phases.push((swap.phase(), Instant::now()));
        }
    };
    println!("{} MiB copied in {} rounds and {:?}", report.copied_bytes >> 20, report.rounds, report.took);
    phases
}

/// What the pending requests noticed of a switch.
#[derive(Clone, Copy, Debug)]
struct Noticed {
    quiet: Duration,
    wait: Duration,
}

fn noticed(load: &Load, phases: &[(SwapPhase, Instant)]) -> Noticed {
    for pair in phases.windows(2) {
        let (began, ended) = (pair[0].1, pair[1].1);
        let answers = load.between(began, ended);
        println!(
            "  {:?} in {:?}: {} answers, quiet {}; waits {}",
            pair[0].0,
            ended - began,
            answers.len(),
            at_most(&answers, |answer| answer.quiet),
            at_most(&answers, |answer| answer.waited),
        );
    }
    let began = |phase| phases.iter().rev().find(|(begun, _)| *begun == phase).map(|(_, when)| *when);
    let [from, to] =
        [SwapPhase::Joining, SwapPhase::Releasing].map(|phase| began(phase).expect("each phase is passed"));
    let mut around = load.between(from, to);
    // Those that were pending when all pointers changed.
    let after = load.between(to, Instant::now());
    around.extend(&after[..PENDING.min(after.len())]);
    let most = |of: fn(&Answer) -> Duration| around.iter().map(of).max().unwrap_or_default();
    Noticed { quiet: most(|answer| answer.quiet), wait: most(|answer| answer.waited) }
}

/// Checks that every block of a medium holds what was written there last.
fn check(medium: &dyn BlockMedium, held: &[u32]) {
    let mut store = medium.open().unwrap();
    let mut bytes = vec![0; BLOCK as usize];
    for (block, number) in held.iter().enumerate() {
        store.read_at(block as u64 * BLOCK, &mut bytes).unwrap();
        if *number == 0 {
            assert!(bytes.iter().all(|byte| *byte == 0), "block {block} was never written");
        } else {
            let found = u64::from_le_bytes(bytes[..8].try_into().unwrap());
            let stamp = u32::from_le_bytes(bytes[8..12].try_into().unwrap());
            assert_eq!((found, stamp, bytes[4095]), (block as u64, *number, *number as u8), "block {block}");
        }
    }
}

/// What draining takes while no swap runs, with the queue as full as it is at the switch.
fn drain(load: &Load) -> Duration {
    load.is_pressing.store(true, Ordering::Relaxed);
    // Until the answers with a shorter queue are over.
    // waits: what is under test is in use for a while, however little of it runs in that time
    thread::sleep(Duration::from_millis(300));
    let from = Instant::now();
    // waits: what is under test is in use for a while, however little of it runs in that time
    thread::sleep(Duration::from_millis(500));
    load.is_pressing.store(false, Ordering::Relaxed);
    let answers = load.between(from, Instant::now());
    println!("  without a swap: quiet {}; waits {}", at_most(&answers, |a| a.quiet), at_most(&answers, |a| a.waited));
    drained(&answers)
}

/// What the requests noticed of a swap, and the drain time of the medium before it or after it, whichever is longer.
struct Seen {
    noticed: Noticed,
    drain: Duration,
}

impl Seen {
    fn times(&self) -> f64 {
        self.noticed.quiet.as_secs_f64() / self.drain.as_secs_f64()
    }
}

/// Swaps a disk `count` times under load, every other time with a comparison, between media that `is_slow` selects.
fn swaps(under: &Path, name: &str, bytes: u64, count: usize, is_slow: impl Fn(usize) -> bool) -> Vec<Seen> {
    let folder = Folder::new(under, name);
    let medium = |number: usize| -> (Arc<dyn BlockMedium>, Arc<dyn BlockMedium>) {
        let disk: Arc<dyn BlockMedium> = Arc::new(folder.disk(&format!("{number}.img"), bytes));
        let slow = Arc::new(Slow { medium: Arc::clone(&disk), queue: Arc::default() });
        (Arc::clone(&disk), if is_slow(number) { slow } else { disk })
    };
    let (mut last, first) = medium(0);
    let switch = MediumSwitch::new(first).unwrap();
    let (load, writer) = Load::start(switch.open().unwrap());
    let mut before = drain(&load);
    let mut seen = Vec::new();
    for number in 1..=count {
        let (plain, next) = medium(number);
        let phases = swap(&switch, next, &folder.0.join("state"), number % 2 == 0, &load);
        // waits: what is under test is in use for a while, however little of it runs in that time
        thread::sleep(Duration::from_millis(300));
        let noticed = noticed(&load, &phases);
        let after = drain(&load);
        let drain = before.max(after);
        let one = Seen { noticed, drain };
        println!(
            "swap {number} of {name}: {PENDING} drain in {drain:?}; quiet {:?}, {:.2} times; the longest wait {:?}, {:.2} times; the paper: {PAPER:?}",
            noticed.quiet,
            one.times(),
            noticed.wait,
            noticed.wait.as_secs_f64() / drain.as_secs_f64(),
        );
        seen.push(one);
        (before, last) = (after, plain);
        fs::remove_file(folder.0.join(format!("{}.img", number - 1))).unwrap();
    }
    load.is_over.store(true, Ordering::Relaxed);
    let held = writer.join().unwrap();
    check(&*last, &held);
    seen
}

/// Prints how the best swap compares with the target, and fails if even that one waited for a timeout: a busy machine
/// may have disturbed the others.
fn judge(seen: &[Seen]) {
    let best = seen.iter().min_by(|a, b| a.times().total_cmp(&b.times())).expect("there were swaps");
    let verdict = if best.times() <= TIMES_MAX { "PASS" } else { "MISS" };
    println!("at best quiet for {:.2} times what draining takes, target {TIMES_MAX}: {verdict}", best.times());
    let limit = best.drain.mul_f64(TIMES_MAX) + SLACK;
    assert!(best.noticed.quiet <= limit, "quiet for {:?} at best", best.noticed.quiet);
}

/// Where a flush is immediate, only the switch itself can be noticed.
#[test]
fn thirty_pending_requests_wait_for_no_timeout_at_a_switch() {
    let memory = Path::new("/dev/shm");
    if !memory.is_dir() {
        // The test harness shows what macros print of failed tests only.
        let _ = writeln!(std::io::stderr(), "SKIPPED: there is no file system in memory");
        return;
    }
    judge(&swaps(memory, "memory", 256 << 20, 4, |_| false));
}

/// On a disk's file system every write waits while another program flushes, as a swap does before it switches.
#[test]
fn a_disk_of_a_gibibyte_is_swapped_under_load_and_the_copy_is_the_original() {
    let seen = swaps(&std::env::temp_dir(), "files", 1 << 30, 2, |_| false);
    // The duration depends on the file system, and is printed; the test checks that no request hangs.
    let longest = seen.iter().map(|one| one.noticed.quiet).max().expect("there were swaps");
    assert!(longest < HANGS, "quiet for {longest:?}");
}

/// A writer has the pace of the destination from a moment before the switch, and of the source until a moment after.
#[test]
fn slow_disk_slows_its_writers_and_blocks_none_of_them() {
    judge(&swaps(&std::env::temp_dir(), "a slow disk", 8 << 20, 2, |number| number == 1));
}
