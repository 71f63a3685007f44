//! Swaps of disks in simulated worlds: users that write between any two steps, media that fail, power cuts at any
//! moment, cancellation. One complete device must always exist.

#[path = "native/random.rs"]
mod random;
#[path = "swap/watched.rs"]
mod watched;
#[path = "swap/world.rs"]
mod world;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use farbus_model::block::MemoryStore;
use farbus_model::{BlockMedium, BlockStore, Instant, StoreError};
use farbus_session::block::swap::{
    MilestoneJournal, SwapError, SwapMilestone, SwapOptions, SwapPhase, SwapReport, SwapSide, SwapStep,
};
use farbus_session::block::{MediumSwap, MediumSwitch, MemoryMedium, SparseMemory};
use random::Random;
use watched::{StoreAccess, Watched};
use world::{Fault, Shared, World};

/// Number of worlds that are played.
fn worlds() -> u64 {
    std::env::var("FARBUS_SEEDS").ok().and_then(|count| count.parse().ok()).unwrap_or(60)
}

struct Play {
    shared: Shared,
    switch: MediumSwitch,
    users: Vec<Box<dyn BlockStore>>,
    random: Random,
    now: Instant,
    stamp: u64,
}

impl Play {
    fn new(seed: u64) -> Self {
        let shared = World::shared();
        let switch = MediumSwitch::new(shared.medium(SwapSide::Source)).unwrap();
        let users = (0..1 + seed % 3).map(|_| switch.open().unwrap()).collect();
        Self { shared, switch, users, random: Random::new(seed), now: Instant::ZERO, stamp: 1 << 32 }
    }

    fn act(&mut self) {
        if self.random.once_in(30) {
            self.users.push(self.switch.open().unwrap());
        }
        if self.users.len() > 1 && self.random.once_in(30) {
            let gone = self.random.below(self.users.len() as u64) as usize;
            self.users.swap_remove(gone);
        }
        let user = self.random.below(self.users.len() as u64) as usize;
        self.stamp += 1;
        self.shared.act(&mut *self.users[user], &mut self.random, self.stamp);
    }

    fn swap(&mut self, options: SwapOptions, cancel_in: Option<u64>) -> Result<SwapReport, SwapError> {
        let destination = self.shared.medium(SwapSide::Destination);
        let journal = self.shared.journal(self.switch.open().unwrap(), Random::new(self.random.next()));
        let mut swap = MediumSwap::begin(&self.switch, destination, journal, options, self.now)?;
        for steps in 0..100_000 {
            for _ in 0..self.random.below(6) {
                self.act();
            }
            if cancel_in == Some(steps) && swap.cancel() {
                assert!(!swap.phase().is_decided());
            }
            self.now = self.now + Duration::from_micros(self.random.below(50));
            match swap.step(self.now) {
                SwapStep::Again => {}
                SwapStep::At(when) => {
                    assert!(when > self.now);
                    self.now = when;
                }
                SwapStep::Ended(result) => {
                    drop(swap);
                    return result;
                }
            }
            let progress = swap.progress(self.now);
            assert!(progress.left_bytes <= progress.total_bytes);
        }
        panic!("a swap does not end");
    }

    /// The device is this medium, and no handle uses the other.
    fn check(&mut self, side: SwapSide) {
        for _ in 0..20 {
            self.act();
        }
        // Idle handles let go with their next request.
        for user in &mut self.users {
            user.read_at(0, &mut [0; 512]).unwrap();
        }
        let mut world = self.shared.world();
        world.check(side);
        world.look_at_a_cut();
        assert_eq!(world.milestone == SwapMilestone::Switched, side == SwapSide::Destination);
        let (source, destination) = (world.source.handles, world.destination.handles);
        let (here, there) = if side == SwapSide::Source { (source, destination) } else { (destination, source) };
        assert_eq!((here, there), (self.users.len(), 0), "handles on the device, and on what it is not");
    }
}

fn options(random: &mut Random) -> SwapOptions {
    let rate = random.once_in(3).then(|| 1 << (12 + random.below(20)));
    SwapOptions { rate, verify: random.once_in(2), resume: random.once_in(2) }
}

#[test]
fn copy_equals_the_original_under_concurrent_changes() {
    let mut cuts = 0;
    for seed in 0..worlds() {
        let mut play = Play::new(seed);
        let options = options(&mut play.random);
        let report = play.swap(options, None).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        assert!(report.copied_bytes >= play.switch.size_bytes() && report.rounds >= 1);
        play.check(SwapSide::Destination);
        cuts += play.shared.world().cuts_looked_at;
    }
    eprintln!("{} worlds, a power cut looked at {cuts} times", worlds());
    assert!(cuts > worlds() * 50);
}

#[test]
fn swap_cancelled_at_any_step_leaves_no_trace_and_can_be_repeated() {
    let mut cancelled = 0;
    for seed in 0..worlds() {
        let mut play = Play::new(seed);
        let options = options(&mut play.random);
        let after = play.random.below(16);
        match play.swap(options, Some(after)) {
            Err(SwapError::Cancelled) => {
                cancelled += 1;
                play.check(SwapSide::Source);
                assert!(!play.switch.is_swapping());
                play.swap(SwapOptions { resume: true, ..options }, None).unwrap();
            }
            ended => assert!(ended.is_ok(), "seed {seed}: {ended:?}"),
        }
        play.check(SwapSide::Destination);
    }
    assert!(cancelled > worlds() / 4, "{cancelled}");
}

#[test]
fn one_complete_device_remains_after_any_failure() {
    let (mut failed, mut done) = (0, 0);
    for seed in 0..worlds() {
        let mut play = Play::new(seed);
        let options = options(&mut play.random);
        let side = play.random.pick(&[SwapSide::Source, SwapSide::Destination]);
        let error = play.random.pick(&[StoreError::Medium, StoreError::NoSpace]);
        let (from_call, is_for_ever) = (1 + play.random.below(60), play.random.once_in(2));
        play.shared.world().disk(side).fails = Some(Fault { from_call, is_for_ever, error });
        let result = play.swap(options, None);
        play.shared.world().source.mend();
        play.shared.world().destination.mend();
        match result {
            Ok(_) => {
                done += 1;
                play.check(SwapSide::Destination);
            }
            Err(swap_error) => {
                failed += 1;
                assert!(
                    matches!(swap_error, SwapError::Medium { side: named, error: how, .. } if named == side && how == error),
                    "seed {seed}: {swap_error:?}"
                );
                play.check(SwapSide::Source);
                play.swap(SwapOptions { resume: true, ..options }, None).unwrap();
                play.check(SwapSide::Destination);
            }
        }
    }
    assert!(failed > worlds() / 5 && done > worlds() / 20, "{failed} failed, {done} did not");
}

#[test]
fn journal_that_cannot_be_written_leaves_the_source() {
    for seed in 0..worlds() / 4 {
        let mut play = Play::new(seed);
        play.shared.world().journal_fails = Some(seed % 2 == 0);
        let options = options(&mut play.random);
        assert!(matches!(play.swap(options, None), Err(SwapError::Journal(_))), "seed {seed}");
        play.check(SwapSide::Source);
        assert_eq!(play.shared.world().milestone, SwapMilestone::Abandoned);
    }
}

#[test]
fn write_lost_by_the_destination_is_found_before_the_switch() {
    let verify = SwapOptions { verify: true, ..SwapOptions::default() };
    for seed in 0..worlds() / 4 {
        let mut play = Play::new(seed);
        let deaf = play.random.below(world::SECTORS as u64);
        play.shared.world().destination.deaf_sector = Some(deaf as usize);
        let Err(SwapError::Differs { offset }) = play.swap(verify, None) else { panic!("seed {seed} found nothing") };
        assert_eq!(offset / world::SECTOR as u64, deaf);
        play.check(SwapSide::Source);
    }
}

#[test]
fn bad_block_is_reported_with_its_page() {
    let bad = Watched::new(memory(4 << 20), |access, range| match access {
        StoreAccess::Read if range.contains(&1_234_567) => Err(StoreError::Medium),
        _ => Ok(()),
    });
    let switch = MediumSwitch::new(bad).unwrap();
    let error = run(&switch, Arc::new(memory(4 << 20)), SwapOptions::default()).unwrap_err();
    let offset = 1_234_567 / 4096 * 4096;
    assert_eq!(error, SwapError::Medium { side: SwapSide::Source, offset, error: StoreError::Medium });
    assert!(error.to_string().contains("a bad block, or it has become shorter"));
}

/// A disk that refuses long requests, or whose error was gone at the second attempt, has no bad block.
#[test]
fn source_that_can_be_read_block_by_block_is_swapped() {
    let picky = Watched::new(memory(4 << 20), |access, range| match access {
        StoreAccess::Read if range.end - range.start > 4096 => Err(StoreError::Medium),
        _ => Ok(()),
    });
    let switch = MediumSwitch::new(picky).unwrap();
    let mut user = switch.open().unwrap();
    user.write_at(1_234_567, b"still here").unwrap();
    run(&switch, Arc::new(memory(4 << 20)), SwapOptions { verify: true, ..SwapOptions::default() }).unwrap();
    let mut bytes = [0; 10];
    user.read_at(1_234_567, &mut bytes).unwrap();
    assert_eq!(&bytes, b"still here");
}

/// In simulated time: a write waits for the piece that is being copied (7 ms to read it, 5 ms to write it), then for
/// the second medium (5 ms).
#[test]
fn delay_of_a_request_is_measured_from_its_arrival_to_the_second_medium() {
    let clock_ms = Arc::new(AtomicU64::new(1));
    let advance = |ms: u64| {
        let clock_ms = Arc::clone(&clock_ms);
        move || {
            clock_ms.fetch_add(ms, Ordering::SeqCst);
        }
    };
    let (writes, reads) = (advance(5), advance(7));
    // The writer, once its write may meet the copy of a piece.
    let waiting = Arc::new(Mutex::new(None::<Box<dyn BlockStore>>));
    let writer = Arc::new(Mutex::new(None));
    let (report_read, has_asked) = std::sync::mpsc::channel();
    let has_asked = Mutex::new(has_asked);
    let (waits, writes_now) = (Arc::clone(&waiting), Arc::clone(&writer));
    let source = Watched::new(memory(1 << 20), move |kind, _| {
        if kind == StoreAccess::Read
            && let Some(mut user) = waits.lock().unwrap().take()
        {
            let thread = std::thread::Builder::new().name("writer".into());
            let thread = thread.spawn(move || user.write_at(0, &[2; 512]).unwrap()).unwrap();
            has_asked.lock().unwrap().recv().unwrap();
            *writes_now.lock().unwrap() = Some(thread);
            reads();
        }
        Ok(())
    });
    let destination = Watched::new(memory(1 << 20), move |kind, _| {
        if kind == StoreAccess::Write {
            writes();
        }
        Ok(())
    });
    let switch = MediumSwitch::new(source).unwrap();
    let [mut user, other] = [switch.open().unwrap(), switch.open().unwrap()];
    let clock = Arc::clone(&clock_ms);
    let now = move || Instant::from_nanos(clock.load(Ordering::SeqCst) * 1_000_000);
    let for_requests = {
        let now = now.clone();
        move || {
            let moment = now();
            if std::thread::current().name() == Some("writer") {
                let _ = report_read.send(());
            }
            moment
        }
    };
    let swap = MediumSwap::begin(&switch, destination, Box::new(Nowhere), SwapOptions::default(), now()).unwrap();
    let mut swap = swap.timed_by(for_requests);
    let mut to = |phase: SwapPhase| {
        while swap.phase() != phase {
            assert_eq!(swap.step(now()), SwapStep::Again);
        }
        swap.progress(now()).delayed
    };
    assert_eq!(to(SwapPhase::Flushing), Duration::ZERO);
    // What changes now is copied again while both media are written.
    user.write_at(0, &[1; 512]).unwrap();
    assert_eq!(to(SwapPhase::Draining), Duration::ZERO);
    *waiting.lock().unwrap() = Some(other);
    to(SwapPhase::Deciding);
    writer.lock().unwrap().take().expect("the piece was copied again").join().unwrap();
    assert_eq!(to(SwapPhase::Deciding), Duration::from_millis(7 + 5 + 5));
    assert!(matches!(
        std::iter::repeat_with(|| swap.step(now())).find(|step| *step != SwapStep::Again),
        Some(SwapStep::Ended(Ok(_)))
    ));
    assert_eq!(swap.progress(now()).delayed, Duration::from_millis(17), "of the whole swap");
}

#[test]
fn impossible_swap_is_refused_before_any_write() {
    let switch = MediumSwitch::new(Arc::new(memory(1 << 20))).unwrap();
    let begin = |destination: Arc<dyn BlockMedium>| {
        MediumSwap::begin(&switch, destination, Box::new(Nowhere), SwapOptions::default(), Instant::ZERO)
    };
    let small = begin(Arc::new(memory(1 << 19))).unwrap_err();
    assert_eq!(small, SwapError::TooSmall { needed: 1 << 20, found: 1 << 19 });
    assert_eq!(begin(Arc::new(Sealed(vec![0; 1 << 20]))).unwrap_err(), SwapError::ReadOnly);
    let first = begin(Arc::new(memory(1 << 20))).unwrap();
    assert_eq!(begin(Arc::new(memory(1 << 20))).unwrap_err(), SwapError::AnotherSwap);
    // A swap that is dropped is cancelled.
    drop(first);
    drop(begin(Arc::new(memory(1 << 20))).unwrap());
    assert!(!switch.is_swapping());
}

#[test]
fn read_only_device_stays_read_only_on_a_writable_medium() {
    let switch = MediumSwitch::new(Arc::new(Sealed(vec![7; 1 << 20]))).unwrap();
    let mut user = switch.open().unwrap();
    run(&switch, Arc::new(memory(2 << 20)), SwapOptions::default()).unwrap();
    let mut bytes = [0; 512];
    user.read_at(1 << 19, &mut bytes).unwrap();
    assert_eq!(bytes, [7; 512]);
    assert_eq!((user.size_bytes(), user.is_read_only()), (1 << 20, true));
    assert_eq!(user.write_at(0, &[1; 512]), Err(StoreError::ReadOnly));
}

#[test]
fn swap_is_given_up_after_waiting_for_a_hanging_request() {
    let hold = Arc::new((Mutex::new(()), AtomicBool::new(false)));
    let holding = Arc::clone(&hold);
    let hanging = Watched::new(memory(1 << 20), move |access, _| {
        if access == StoreAccess::Write {
            holding.1.store(true, Ordering::Release);
            drop(holding.0.lock().unwrap_or_else(PoisonError::into_inner));
        }
        Ok(())
    });
    let switch = MediumSwitch::new(hanging).unwrap();
    let mut user = switch.open().unwrap();
    let held = hold.0.lock().unwrap();
    let writer = std::thread::spawn(move || {
        user.write_at(0, &[9; 512]).unwrap();
        user
    });
    while !hold.1.load(Ordering::Acquire) {
        std::thread::yield_now();
    }
    let mut now = Instant::ZERO;
    let destination = Arc::new(memory(1 << 20));
    let mut swap = MediumSwap::begin(&switch, destination, Box::new(Nowhere), SwapOptions::default(), now).unwrap();
    let ended = loop {
        match swap.step(now) {
            SwapStep::Again => {}
            SwapStep::At(_) => now = now + Duration::from_secs(1),
            SwapStep::Ended(result) => break result,
        }
    };
    assert_eq!((ended, now.as_nanos() / 1_000_000_000), (Err(SwapError::Stuck), 61));
    drop(held);
    let mut user = writer.join().unwrap();
    drop(swap);
    run(&switch, Arc::new(memory(1 << 20)), SwapOptions::default()).unwrap();
    let mut bytes = [0; 512];
    user.read_at(0, &mut bytes).unwrap();
    assert_eq!(bytes, [9; 512]);
}

/// Once the journal says that the destination is the device, a place where the source failed is not copied any more:
/// the next write there must reach both media.
#[test]
fn write_after_the_decision_to_a_failed_place_of_the_source_is_not_lost() {
    struct Writing(Arc<AtomicBool>, Box<dyn BlockStore>);
    impl MilestoneJournal for Writing {
        fn note(&mut self, milestone: SwapMilestone) -> Result<(), String> {
            if milestone == SwapMilestone::Switched {
                self.0.store(true, Ordering::Relaxed);
                assert_eq!(self.1.write_at(4096, &[1; 4096]), Err(StoreError::Medium));
                self.0.store(false, Ordering::Relaxed);
                self.1.write_at(4096, &[2; 4096]).unwrap();
            }
            Ok(())
        }
    }
    let is_failing = Arc::new(AtomicBool::new(false));
    let fails = Arc::clone(&is_failing);
    let failing = Watched::new(memory(1 << 20), move |access, _| match access {
        StoreAccess::Write if fails.load(Ordering::Relaxed) => Err(StoreError::Medium),
        _ => Ok(()),
    });
    let switch = MediumSwitch::new(failing).unwrap();
    let journal = Box::new(Writing(is_failing, switch.open().unwrap()));
    run_with(&switch, Arc::new(memory(1 << 20)), journal, SwapOptions::default()).unwrap();
    let mut bytes = [0; 4096];
    switch.open().unwrap().read_at(4096, &mut bytes).unwrap();
    assert_eq!(bytes, [2; 4096]);
}

/// Threads that write as fast as they can, each in its own part, while the medium is swapped again and again.
#[test]
fn threads_at_full_speed_lose_nothing_during_swaps() {
    const PART: u64 = 300_000;
    const USERS: u64 = 3;
    let size = PART * USERS;
    let switch = MediumSwitch::new(Arc::new(memory(size))).unwrap();
    let is_over = Arc::new(AtomicBool::new(false));
    let users: Vec<_> = (0..USERS)
        .map(|part| {
            let (mut store, is_over) = (switch.open().unwrap(), Arc::clone(&is_over));
            std::thread::spawn(move || {
                let mut random = Random::new(part);
                let mut model = vec![0; PART as usize];
                let mut requests = 0_u64;
                while !is_over.load(Ordering::Relaxed) {
                    let at = random.below(PART - 5000) as usize;
                    let length = 1 + random.below(5000) as usize;
                    let offset = part * PART + at as u64;
                    if random.once_in(3) {
                        let mut bytes = vec![0; length];
                        store.read_at(offset, &mut bytes).unwrap();
                        assert!(bytes == model[at..at + length], "part {part} at {at}");
                    } else {
                        model[at..at + length].fill(random.below(255) as u8 + 1);
                        store.write_at(offset, &model[at..at + length]).unwrap();
                    }
                    requests += 1;
                }
                (model, requests)
            })
        })
        .collect();
    let mut last = memory(size);
    for round in 0..12 {
        last = memory(size);
        let options = SwapOptions { verify: round % 2 == 1, ..SwapOptions::default() };
        run(&switch, Arc::new(last.clone()), options).unwrap_or_else(|error| panic!("swap {round}: {error}"));
    }
    // A busy machine may not have let the threads run meanwhile.
    std::thread::sleep(Duration::from_millis(300));
    is_over.store(true, Ordering::Relaxed);
    for (part, user) in users.into_iter().enumerate() {
        let (model, requests) = user.join().unwrap();
        let mut bytes = vec![0; PART as usize];
        last.open().unwrap().read_at(part as u64 * PART, &mut bytes).unwrap();
        assert!(bytes == model, "part {part} after {requests} requests");
        assert!(requests > 0);
    }
}

/// A read-only medium.
struct Sealed(Vec<u8>);

impl BlockMedium for Sealed {
    fn open(&self) -> Result<Box<dyn BlockStore>, String> {
        Ok(Box::new(MemoryStore::new(self.0.clone()).read_only()))
    }

    fn preferred_bytes(&self) -> u32 {
        4096
    }
}

struct Nowhere;

impl MilestoneJournal for Nowhere {
    fn note(&mut self, _milestone: SwapMilestone) -> Result<(), String> {
        Ok(())
    }
}

fn memory(size: u64) -> MemoryMedium {
    MemoryMedium::new(SparseMemory::new(size, size))
}

/// Swaps with a real clock.
fn run(
    switch: &MediumSwitch,
    destination: Arc<dyn BlockMedium>,
    options: SwapOptions,
) -> Result<SwapReport, SwapError> {
    run_with(switch, destination, Box::new(Nowhere), options)
}

fn run_with(
    switch: &MediumSwitch,
    destination: Arc<dyn BlockMedium>,
    journal: Box<dyn MilestoneJournal>,
    options: SwapOptions,
) -> Result<SwapReport, SwapError> {
    let began = std::time::Instant::now();
    let now = || Instant::ZERO + began.elapsed();
    let mut swap = MediumSwap::begin(switch, destination, journal, options, now())?;
    loop {
        match swap.step(now()) {
            SwapStep::Again => {}
            SwapStep::At(when) => std::thread::sleep(when - now()),
            SwapStep::Ended(result) => {
                assert!(result.is_err() || swap.phase() == SwapPhase::Releasing);
                return result;
            }
        }
    }
}
