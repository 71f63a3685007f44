//! Modules that misbehave, on every channel: each is cut off with a reason, and delays no caller for long.

mod case;
mod pipes;
mod ring;
mod sandbox;

use std::time::{Duration, Instant as Moment};

use case::{Case, PATIENCE, answers_of, has_python};
use farbus_model::module::Module;

/// How many messages a module may answer as if nothing were wrong.
const MESSAGES: usize = 16;
/// How often a half that was ended is called again: each time it fails at once, unless the machine stalls.
const ASKED_AGAIN: usize = 5;
/// The longest delay of any caller, even with a module that takes its time for each message and on a machine that
/// stalls.
const LONG: Duration = Duration::from_secs(60);

/// Whether it refuses without calling its module, which would be waited for.
fn is_over(half: &mut dyn Module) -> bool {
    let began = Moment::now();
    answers_of(half).is_err() && began.elapsed() < PATIENCE / 2
}

/// What went differently from what is expected, if anything. A module that misbehaved once must not be called again, by
/// this half or another.
fn otherwise(case: &Case) -> Option<String> {
    let hired = (case.hire)();
    let began = Moment::now();
    let (why, mut half) = match hired() {
        // Some misbehave only after a while.
        Ok(mut half) => ((0..MESSAGES).find_map(|_| answers_of(&mut *half).err()), Some(half)),
        Err(why) => (Some(why), None),
    };
    let took = began.elapsed();
    let is_over = half.as_mut().is_none_or(|half| (0..ASKED_AGAIN).any(|_| is_over(&mut **half)));
    let then = hired().err().unwrap_or_default();
    let is_well =
        why.as_ref().is_some_and(|why| case.word.split('|').any(|word| why.contains(word)) && why.len() < 2000)
            && took < LONG
            && is_over
            && (case.is_alone || then.starts_with("it was ended: "));
    (!is_well).then(|| format!("{}: {why:?} after {took:?}, then {then:?}", case.name))
}

/// Runs several at a time: most of the time is spent waiting.
fn all_are_cut_off(cases: fn() -> Vec<Case>) {
    const THREADS: usize = 4;
    let every = |first: usize| cases().iter().skip(first).step_by(THREADS).filter_map(otherwise).collect::<Vec<_>>();
    let otherwise: Vec<String> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|first| scope.spawn(move || every(first))).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    assert!(otherwise.is_empty(), "{otherwise:#?}");
}

#[test]
fn at_least_a_hundred_misbehaviours_are_covered() {
    let all = [pipes::cases().len(), ring::cases().len(), sandbox::cases().len()];
    assert!(all.iter().sum::<usize>() >= 100, "{all:?}");
}

#[test]
fn programs_over_pipes_that_misbehave_are_cut_off_in_time_and_say_why() {
    if has_python() {
        all_are_cut_off(pipes::cases);
    }
}

#[test]
fn programs_over_a_ring_that_misbehave_are_cut_off_in_time_and_say_why() {
    if has_python() {
        all_are_cut_off(ring::cases);
    }
}

#[test]
fn code_in_a_sandbox_that_misbehaves_is_cut_off_in_time_and_says_why() {
    all_are_cut_off(sandbox::cases);
}
