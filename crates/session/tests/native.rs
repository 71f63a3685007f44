//! Sessions in simulated worlds: links that are cut and delayed, exporters that crash or are replaced by another
//! process, importers that are restarted, peers that are slow.
//!
//! Each seed makes a world. The tests check: every request is answered exactly once, a read returns what was written,
//! what a flush covered survives a crash, a key pressed once arrives once, no credit is exceeded (the exporter would
//! end the session), and a late greeting does not get the session back. `FARBUS_SEEDS` sets the number of worlds
//! (default 300), `FARBUS_SEED` plays one of them.

#[path = "native/another.rs"]
mod another;
#[path = "native/cached.rs"]
mod cached;
#[path = "native/disk.rs"]
mod disk;
#[path = "native/far.rs"]
mod far;
#[path = "native/forgetful.rs"]
mod forgetful;
#[path = "native/guest.rs"]
mod guest;
#[path = "native/kernel.rs"]
mod kernel;
#[path = "native/modules.rs"]
mod modules;
#[path = "native/random.rs"]
mod random;
#[path = "native/readers.rs"]
mod readers;
#[path = "recorded/mod.rs"]
mod recorded;
#[path = "native/stream.rs"]
mod stream;
#[path = "native/upgrade.rs"]
mod upgrade;
#[path = "native/usb.rs"]
mod usb;
#[path = "native/world.rs"]
mod world;

use std::time::Duration;

use farbus_model::Instant;
use farbus_session::native::PipedAttachment;
use random::Random;

fn seeds() -> std::ops::Range<u64> {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().expect("a number"));
    match number("FARBUS_SEED") {
        Some(seed) => seed..seed + 1,
        None => 1..1 + number("FARBUS_SEEDS").unwrap_or(300),
    }
}

/// Plays a world with this many random steps, then lets everything settle; returns the number of answers.
macro_rules! lived {
    ($world:expr, $steps:expr, $random:ident) => {{
        let mut world = $world;
        for _ in 0..$steps {
            world.step($random);
        }
        world.settle($random)
    }};
}

fn every_seed(name: &str, mut play: impl FnMut(&mut Random) -> u32) {
    let mut answered = 0;
    for seed in seeds() {
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| play(&mut Random::new(seed))));
        match result {
            Ok(count) => answered += u64::from(count),
            Err(cause) => {
                eprintln!("{name} broke in the world of FARBUS_SEED={seed}");
                std::panic::resume_unwind(cause);
            }
        }
    }
    let worlds = seeds().count() as u64;
    println!("{name}: {answered} requests in {worlds} worlds");
    assert!(answered >= 15 * worlds, "{answered} requests in {worlds} worlds prove little");
}

#[test]
fn disk_keeps_its_promises_through_cuts_and_crashes() {
    every_seed("the disk", |random| lived!(disk::DiskWorld::new(random, None), 400, random));
}

#[test]
fn cached_disk_loses_no_flushed_data_and_shows_no_old_data() {
    every_seed("the cached disk", |random| {
        let mut world = disk::DiskWorld::cached(random);
        for _ in 0..400 {
            world.step(random);
        }
        world.settle(random)
    });
}

#[test]
fn flushed_data_survives_power_cuts_and_kills_and_no_failed_write_is_hidden() {
    let (mut cuts, mut errors) = (0, 0);
    every_seed("the forgetful disk", |random| {
        let mut world = forgetful::ForgetfulWorld::new(random);
        (0..600).for_each(|_| world.step(random));
        (cuts, errors) = (cuts + world.cuts, errors + world.errors);
        world.settle(random)
    });
    println!("{cuts} times the medium forgot, {errors} errors were told");
    let worlds = seeds().count();
    assert!(worlds == 1 || cuts.min(errors) as usize > worlds / 4, "{cuts} cuts and {errors} errors prove little");
}

#[test]
fn concurrent_readers_see_no_old_data_after_writes_and_resizes() {
    every_seed("the readers", |random| {
        let mut world = readers::ReadersWorld::new(random);
        (0..1200).for_each(|_| world.step(random));
        world.settle()
    });
}

#[test]
fn successor_reads_a_disk_before_it_owns_it_and_writes_afterwards() {
    every_seed("the successor", |random| {
        // Some successors wait without success for most of their time.
        lived!(disk::DiskWorld::of_a_successor(random), 400, random).max(15)
    });
}

#[test]
fn successor_with_a_cache_reads_no_old_data_and_writes_nothing_early() {
    every_seed("the successor with a cache", |random| {
        lived!(disk::DiskWorld::of_a_successor_with_a_cache(random), 400, random).max(15)
    });
}

#[test]
fn usb_device_answers_once_through_cuts_and_crashes() {
    every_seed("the USB device", |random| lived!(usb::UsbWorld::new(random, None, |remote| remote), 400, random));
}

#[test]
fn disk_keeps_its_promises_through_modules() {
    every_seed("the disk through modules", |random| {
        let modules = modules::Modules::any(random);
        lived!(disk::DiskWorld::new(random, Some(modules)), 400, random)
    });
}

#[test]
fn usb_device_answers_once_through_modules() {
    every_seed("the USB device through modules", |random| {
        let modules::Modules { through, allowed } = modules::Modules::any(random);
        let observer = |remote| PipedAttachment::new(remote, Some(through));
        lived!(usb::UsbWorld::new(random, Some(allowed), observer), 400, random)
    });
}

#[test]
fn kernel_is_answered_once_through_cuts_crashes_and_restarts() {
    every_seed("the kernel", |random| {
        let (now, seed) = (Instant::ZERO + Duration::from_secs(1), random.next());
        lived!(usb::UsbWorld::new(random, None, |remote| kernel::Kernel::new(now, remote, seed)), 250, random)
    });
}

#[test]
fn far_device_answers_once_and_loses_no_data() {
    every_seed("the far device", |random| lived!(usb::UsbWorld::new(random, None, far::Near::new), 400, random));
}

#[test]
fn data_of_a_migrating_guests_device_arrives_once_and_in_order() {
    let mut moves = 0;
    every_seed("the guest", |random| {
        let mut world = guest::GuestWorld::new(random);
        for _ in 0..1500 {
            world.step(random);
        }
        let (heard, moved) = world.settle(random);
        moves += moved;
        heard
    });
    println!("{moves} moves");
    assert!(moves as usize >= 2 * seeds().count(), "{moves} moves prove little");
}

#[test]
fn write_never_lands_on_a_disk_with_another_identity() {
    let mut refused = 0;
    every_seed("the shelf of disks", |random| {
        let mut world = another::ShelfWorld::new(random, another::Peers::Both);
        (0..500).for_each(|_| world.step(random));
        let (answered, ended) = world.settle(random);
        refused += ended;
        answered
    });
    println!("{refused} times another disk was refused");
    assert!(refused as usize >= seeds().count() / 2, "{refused} refusals prove little");
}

#[test]
fn new_importer_writes_to_no_other_disk_of_an_exporter_without_identities() {
    every_seed("the shelf of an old exporter", |random| {
        let mut world = another::ShelfWorld::new(random, another::Peers::OldExporter);
        (0..500).for_each(|_| world.step(random));
        world.settle(random).0
    });
}

#[test]
fn importer_without_identities_writes_to_no_other_disk_of_a_new_exporter() {
    every_seed("the shelf of an old importer", |random| {
        let mut world = another::ShelfWorld::new(random, another::Peers::OldImporter);
        (0..500).for_each(|_| world.step(random));
        world.settle(random).0
    });
}

/// The fault that the three tests above exclude does occur if neither end compares identities.
#[test]
fn write_lands_on_another_disk_if_neither_end_has_identities() {
    let is_found = seeds().any(|seed| {
        let mut random = Random::new(seed);
        let mut world = another::ShelfWorld::new(&mut random, another::Peers::BothOld);
        (0..500).for_each(|_| world.step(&mut random));
        world.settle(&mut random);
        world.strays() > 0
    });
    assert!(is_found, "these worlds would find a write in another disk");
}

#[test]
fn stream_arrives_complete_and_in_order_through_cuts_and_crashes() {
    every_seed("the stream", |random| lived!(stream::StreamWorld::new(random), 400, random));
}

/// Damages snapshots of a world with this many random steps; returns how many were refused, and how many accepted.
macro_rules! spoilt {
    ($name:literal, |$random:ident| $world:expr) => {{
        let (mut refused, mut taken) = (0, 0);
        every_seed($name, |$random| {
            let mut world = $world;
            for _ in 0..60 {
                world.step($random);
                match world.spoil($random) {
                    true => refused += 1,
                    false => taken += 1,
                }
            }
            world.settle($random).max(15)
        });
        (refused, taken)
    }};
}

#[test]
fn damaged_snapshot_is_refused_or_harmless() {
    let (refused, taken) = spoilt!("the spoilt snapshot", |random| {
        let (now, seed) = (Instant::ZERO + Duration::from_secs(1), random.next());
        usb::UsbWorld::new(random, None, |remote| kernel::Kernel::new(now, remote, seed))
    });
    assert!(refused > 0 && taken > 0, "{refused} refused, {taken} taken prove little");
}

#[test]
fn damaged_disk_snapshot_is_refused_or_harmless() {
    let (refused, taken) = spoilt!("the disk's spoilt snapshot", |random| disk::DiskWorld::new(random, None));
    assert!(refused > 0 && taken > 0, "{refused} refused, {taken} taken prove little");
}

#[test]
fn damaged_far_device_snapshot_is_refused_or_harmless() {
    let (refused, taken) =
        spoilt!("the far device's spoilt snapshot", |random| usb::UsbWorld::new(random, None, far::Near::new));
    assert!(refused > 0 && taken > 0, "{refused} refused, {taken} taken prove little");
}
