//! Common parts of this crate's fuzz targets: how long they run, and from which seed.
//!
//! `FARBUS_FUZZ_SECONDS` says how long a target runs. `FARBUS_FUZZ_SEED` sets the seed; the same seed gives the same
//! inputs.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

/// How long a target runs in a plain `cargo test`, in seconds.
const SECONDS: u64 = 2;
/// Cases between two looks at the clock.
const CASES: u32 = 64;

/// Runs `cases` again and again, each time with a runner of the next seed, until the time is up.
///
/// # Panics
/// If a run fails: `cases` returns what a runner said as text. The message names the seed.
pub fn fuzz(name: &str, mut cases: impl FnMut(&mut TestRunner) -> Result<(), String>) {
    let until = Instant::now() + Duration::from_secs(variable("FARBUS_FUZZ_SECONDS").unwrap_or(SECONDS));
    let first = variable("FARBUS_FUZZ_SEED").unwrap_or_else(now_ns);
    println!("{name}: from FARBUS_FUZZ_SEED={first}");
    let mut seed = first;
    while seed == first || Instant::now() < until {
        if let Err(trouble) = cases(&mut runner(seed)) {
            panic!("{name}: FARBUS_FUZZ_SEED={seed} finds this again: {trouble}");
        }
        seed = seed.wrapping_add(1);
    }
}

fn runner(seed: u64) -> TestRunner {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let config = Config { cases: CASES, failure_persistence: None, ..Config::default() };
    TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &bytes))
}

fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name}={text} is not a number")))
}

/// A seed that differs from run to run.
fn now_ns() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64)
}

#[test]
fn the_same_seed_gives_the_same_inputs() {
    use proptest::strategy::{Strategy as _, ValueTree as _};
    let drawn = |seed| proptest::num::u64::ANY.new_tree(&mut runner(seed)).map(|tree| tree.current());
    assert_eq!(drawn(273), drawn(273));
    assert_ne!(drawn(273), drawn(274));
}
