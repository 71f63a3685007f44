//! Modules that misbehave, whatever way they are run: each is cut off, says why, and keeps nobody waiting for long.

mod case;
mod pipes;
mod ring;
mod sandbox;

use std::time::Instant as Moment;

use case::{Case, PATIENCE, has_python, told};

/// Messages that somebody may answer as if nothing were wrong.
const MESSAGES: usize = 16;

/// What went otherwise than it should. Once is enough: whoever misbehaved is not asked again, by this half or another.
fn otherwise(case: &Case) -> Option<String> {
    let hired = (case.hire)();
    let began = Moment::now();
    let (why, mut half) = match hired() {
        // Some need a while for it.
        Ok(mut half) => ((0..MESSAGES).find_map(|_| told(&mut *half).err()), Some(half)),
        Err(why) => (Some(why), None),
    };
    let took = began.elapsed();
    let again = Moment::now();
    let is_over = half.as_mut().is_none_or(|half| told(&mut **half).is_err()) && again.elapsed() < PATIENCE / 2;
    let then = hired().err().unwrap_or_default();
    let is_well = why.as_ref().is_some_and(|why| why.contains(case.word) && why.len() < 2000)
        && took < PATIENCE * 8
        && is_over
        && (case.is_alone || then.starts_with("it was ended: "));
    (!is_well).then(|| format!("{}: {why:?} after {took:?}, then {then:?}", case.name))
}

fn all_are_cut_off(cases: &[Case]) {
    let otherwise: Vec<String> = cases.iter().filter_map(otherwise).collect();
    assert!(otherwise.is_empty(), "{otherwise:#?}");
}

#[test]
fn there_are_a_hundred_of_them() {
    let all = [pipes::cases().len(), ring::cases().len(), sandbox::cases().len()];
    assert!(all.iter().sum::<usize>() >= 100, "{all:?}");
}

#[test]
fn programs_over_pipes_that_misbehave_are_cut_off_in_time_and_say_why() {
    if has_python() {
        all_are_cut_off(&pipes::cases());
    }
}

#[test]
fn programs_over_a_ring_that_misbehave_are_cut_off_in_time_and_say_why() {
    if has_python() {
        all_are_cut_off(&ring::cases());
    }
}

#[test]
fn code_in_a_sandbox_that_misbehaves_is_cut_off_in_time_and_says_why() {
    all_are_cut_off(&sandbox::cases());
}
