//! The exporter checks against exporters in memory: a right one passes all, and one that is wrong in one way fails the
//! check for it and only related ones.

mod world;
mod wrong;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

use farbus_conform::exporter::{self, ConformanceSettings};
use farbus_conform::player::{MockExporter, NoTamper};
use farbus_conform::{CheckVerdict, ConformanceReport};
use farbus_gadgets::audio::AudioGadget;
use farbus_gadgets::keyboard::KeyboardGadget;
use farbus_gadgets::storage::{StorageGadget, StorageOptions};
use farbus_gadgets::zero::{SourcePattern, SourceSink};
use farbus_model::block::MemoryStore;
use farbus_model::{Device, UsbSpeed};

use world::{Memory, World};
use wrong::{Wrong, all};

const DISK: &str = "1-1";

fn disk() -> Box<dyn Device> {
    Box::new(StorageGadget::device(Box::new(MemoryStore::new(vec![0; 1 << 20])), StorageOptions::default()).unwrap())
}

fn zero() -> Box<dyn Device> {
    Box::new(SourceSink::device(UsbSpeed::High, SourcePattern::Zeros, false))
}

fn test(world: World, only: &[&str]) -> ConformanceReport {
    let mut network = Memory(Rc::new(RefCell::new(world)));
    let only = only.iter().map(|id| (*id).to_owned()).collect();
    let settings =
        ConformanceSettings { only, bus_id: Some(DISK.to_owned()), ..ConformanceSettings::new(Duration::from_secs(2)) };
    exporter::run(&mut network, &settings, &mut |_| {}).unwrap()
}

fn right(device: Box<dyn Device>) -> World {
    let mut player = MockExporter::new(Box::new(NoTamper));
    player.offer(DISK, device, Box::new(NoTamper));
    World::new(player)
}

fn by_verdict(report: &ConformanceReport, verdict: CheckVerdict) -> BTreeMap<&'static str, String> {
    report.results.iter().filter(|r| r.verdict == verdict).map(|r| (r.check.id, r.seen.clone())).collect()
}

#[test]
fn a_right_exporter_fails_no_check_whatever_its_device() {
    let card = || -> Box<dyn Device> { Box::new(AudioGadget::device(UsbSpeed::High)) };
    let keyboard = || -> Box<dyn Device> { Box::new(KeyboardGadget::device()) };
    let mut passed = BTreeSet::new();
    for (name, device) in [("disk", disk()), ("zero", zero()), ("keyboard", keyboard()), ("card", card())] {
        let report = test(right(device), &[]);
        let wrong = [by_verdict(&report, CheckVerdict::Fail), by_verdict(&report, CheckVerdict::Skipped)];
        assert!(wrong.iter().all(BTreeMap::is_empty), "{name}: {wrong:?}");
        passed.extend(by_verdict(&report, CheckVerdict::Pass).into_keys());
    }
    let all: BTreeSet<&str> = exporter::checks().iter().map(|check| check.id).collect();
    assert_eq!(passed, all, "each check passes with one of the devices");
}

#[test]
fn names_of_checks_differ() {
    let checks = exporter::checks();
    let ids: BTreeSet<&str> = checks.iter().map(|check| check.id).collect();
    assert_eq!(ids.len(), checks.len());
    assert!(checks.iter().all(|check| check.claim.ends_with('.') && !check.source.is_empty()));
}

#[test]
fn an_exporter_that_is_wrong_in_one_way_fails_the_check_for_it_and_only_related_ones() {
    let (mut found, mut surprises) = (BTreeSet::new(), Vec::new());
    for Wrong { name, world, only, fails, breaks_framing } in all() {
        let report = test(world(), only);
        let failed: BTreeSet<&str> = report.failed().into_iter().collect();
        let expected: BTreeSet<&str> = fails.iter().copied().collect();
        let shown = by_verdict(&report, CheckVerdict::Fail);
        // What comes after a broken message is broken as well.
        let is_found = if breaks_framing { expected.is_subset(&failed) } else { failed == expected };
        if !is_found {
            surprises.push(format!("{name}: not {expected:?} but {shown:#?}"));
        }
        found.extend(expected);
    }
    assert!(surprises.is_empty(), "{}", surprises.join("\n"));
    let all: BTreeSet<&str> = exporter::checks().iter().map(|check| check.id).collect();
    let never: Vec<&&str> = all.difference(&found).collect();
    assert!(never.is_empty(), "no wrong exporter fails {never:?}");
}
