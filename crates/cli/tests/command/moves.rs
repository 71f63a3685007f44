//! Moves in a chain: a disk goes from host to host and home to the exporter's own, again and again, while it is
//! written, and another disk of the same exporter, too.
//!
//! `FARBUS_MOVES` says how many moves (default 15, three rounds); `cargo xtask soak` makes 100.

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use super::harness::{Harness, PATIENCE, Running, has_fuse, wait_until};
use super::nbd_migrate::{Client, SIZE};
use super::trust::{Host, pair};

/// The length of a written block, and how many of them are written.
const BLOCK: usize = 4096;
const BLOCKS: usize = 64;

fn moves() -> usize {
    std::env::var("FARBUS_MOVES").map_or(15, |text| text.parse().expect("a number"))
}

/// The exporter's host, and three others that know each other and may use its devices.
fn four(harness: &Harness) -> [Host<'_>; 4] {
    let hosts = ["lab3", "desk", "rack", "shed"].map(|name| Host { harness, name });
    for (at, host) in hosts.iter().enumerate() {
        for other in &hosts[at + 1..] {
            pair(host, other);
        }
    }
    for importer in &hosts[1..] {
        hosts[0].ok(&["allow", importer.name, "all"]);
    }
    hosts
}

/// What each block of the disk holds: the last byte that was answered, and one that was not, if any.
struct Model([(u8, Option<u8>); BLOCKS]);

/// Writes blocks in turn until the disk is held still; the last write then has no answer.
fn write_until_held(mut client: Client, model: &mut Model, first: u8, is_held: &AtomicBool) {
    let mut byte = first;
    for at in (0..BLOCKS).cycle() {
        byte = byte.wrapping_add(1);
        if !client.write_unless(|| is_held.load(Ordering::Acquire), at * BLOCK, byte) {
            model.0[at].1 = Some(byte);
            return;
        }
        model.0[at] = (byte, None);
    }
}

fn assert_holds(client: &mut Client, model: &mut Model) {
    for (at, (last, unanswered)) in model.0.iter_mut().enumerate() {
        let found = client.read(at * BLOCK);
        assert!(found.iter().all(|byte| *byte == found[0]), "block {at} is torn");
        assert!(found[0] == *last || Some(found[0]) == *unanswered, "{at}: {} and not {last}", found[0]);
        (*last, *unanswered) = (found[0], None);
    }
}

/// Attaches `lab3/disk` as the successor of its user; at lab3 itself over the share's own socket.
fn succeed(host: &Host<'_>, address: &str, more: &[&str]) -> (Running, PathBuf) {
    let socket = host.harness.path(&format!("{}-disk.sock", host.name));
    let at_home = host.name == "lab3";
    let target = if at_home { "disk" } else { "lab3/disk" };
    let words = ["attach", target, "--via", "nbd", "--socket", socket.to_str().unwrap()];
    let away = ["--address", address];
    let attach = host.start(&[&words[..], if at_home { &[] } else { &away[..] }, more].concat());
    attach.wait_for_line(socket.to_str().unwrap());
    (attach, socket)
}

/// Copies onto a disk of the exporter until told to stop.
fn load(socket: &Path, is_over: &Arc<AtomicBool>) -> thread::JoinHandle<u64> {
    let (mut client, is_over) = (Client::connect(socket), Arc::clone(is_over));
    thread::spawn(move || {
        let mut count = 0u64;
        while !is_over.load(Ordering::Relaxed) {
            let at = count as usize % BLOCKS * BLOCK;
            client.write(at, count as u8);
            client.assert_reads(at, count as u8);
            count += 1;
        }
        count
    })
}

#[test]
fn disk_moves_from_host_to_host_and_home_again_while_it_is_written() {
    let harness = Harness::new();
    let [image, other] = ["image", "other"].map(|name| harness.image(name, SIZE));
    let hosts = four(&harness);
    let disks =
        [("disk", &image), ("other", &other)].map(|(name, path)| format!("disk:{},name={name}", path.display()));
    let share = hosts[0].start(&["share", &disks[0], &disks[1], "--secure", "127.0.0.1:0"]);
    let line = share.wait_for_line("for paired hosts");
    let address = line.split_whitespace().nth(2).unwrap().to_owned();

    let busy = harness.path("busy.sock");
    let words = ["attach", "lab3/other", "--address", &address, "--via", "nbd", "--socket", busy.to_str().unwrap()];
    let beside = hosts[1].start(&words);
    beside.wait_for_line(busy.to_str().unwrap());
    let is_over = Arc::default();
    let loading = load(&busy, &is_over);

    // a → b → c → a → home → a …
    let way = [1, 2, 3, 1, 0].map(|at| &hosts[at]);
    let mut model = Model([(0, None); BLOCKS]);
    let (mut attach, socket) = succeed(way[0], &address, &[]);
    let (mut from, mut client) = (way[0], Client::connect(&socket));
    for (number, to) in way.into_iter().cycle().skip(1).take(moves()).enumerate() {
        assert_holds(&mut client, &mut model);
        let (successor, socket) = succeed(to, &address, &["--inherit"]);
        let is_held = Arc::<AtomicBool>::default();
        let for_thread = Arc::clone(&is_held);
        let writing = thread::spawn(move || {
            write_until_held(client, &mut model, number as u8, &for_thread);
            model
        });
        let message = from.ok(&["migrate", if from.name == "lab3" { "disk" } else { "lab3/disk" }, "--to", to.name]);
        assert!(message.contains("held still"), "move {number}: {message}");
        is_held.store(true, Ordering::Release);
        model = writing.join().unwrap();
        assert_eq!(attach.wait_for_end(PATIENCE), Some(0), "move {number}: {}", attach.log());
        attach.wait_for_line("handed over");
        (from, attach, client) = (to, successor, Client::connect(&socket));
    }
    assert_holds(&mut client, &mut model);
    client.flush();
    let bytes = std::fs::read(&image).unwrap();
    for (at, (last, _)) in model.0.iter().enumerate() {
        assert!(bytes[at * BLOCK..][..BLOCK].iter().all(|byte| byte == last), "block {at} of the image");
    }
    is_over.store(true, Ordering::Relaxed);
    let count = loading.join().unwrap();
    println!("{} moves, {count} writes to the disk beside it", moves());
    drop(client);
    from.ok(&["detach", "disk"]);
    assert_eq!(attach.wait_for_end(PATIENCE), Some(0), "{}", attach.log());
    let is_free = || hosts[0].json(&["status", "--json"])[0]["devices"][0]["state"] == "available";
    wait_until(PATIENCE, "it is given back", is_free);
}

#[test]
fn disk_comes_home_to_who_waits_there_and_to_no_other_host() {
    if !has_fuse() {
        return;
    }
    let harness = Harness::new();
    let hosts = four(&harness);
    let [lab3, desk, rack, _] = &hosts;
    let share = lab3.start(&["share", "memory:4M", "--secure", "127.0.0.1:0"]);
    let line = share.wait_for_line("for paired hosts");
    let address = line.split_whitespace().nth(2).unwrap().to_owned();
    let mount = |host: &Host<'_>| harness.path(&format!("at-{}", host.name));
    let words = |host: &Host<'_>| ["--via", "fuse", "--at", mount(host).to_str().unwrap()].map(str::to_owned);
    let attach = |host: &Host<'_>, target: &str, more: &[&str]| {
        let words = words(host);
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        host.start(&[&["attach", target], &words[..], more].concat())
    };
    let mut away = attach(desk, "lab3/memory", &["--address", &address]);
    away.wait_for_line("attached as");
    for byte in 1..=2 {
        let file = mount(desk).join("disk.img");
        std::fs::OpenOptions::new().write(true).open(&file).unwrap().write_all(&[byte; BLOCK]).unwrap();
        let message = desk.ok(&["migrate", "lab3/memory", "--to", "lab3"]);
        assert!(message.contains("'farbus attach memory --wait=20'"), "it says what to type at home: {message}");
        let refused = rack.run(&["attach", "lab3/memory", "--address", &address, "--via", "fuse", "--at", "/dev/null"]);
        assert_eq!(refused.code, Some(3), "it waits for somebody else: {refused:?}");
        let mut home = attach(lab3, "memory", &["--wait=20"]);
        home.wait_for_line("attached as");
        assert_eq!(away.wait_for_end(PATIENCE), Some(0), "{}", away.log());
        away.wait_for_line("handed over");
        let mut found = [0; BLOCK];
        std::fs::File::open(mount(lab3).join("disk.img")).unwrap().read_exact(&mut found).unwrap();
        assert_eq!(found, [byte; BLOCK], "what was written elsewhere is read at home");
        let message = lab3.ok(&["migrate", "memory", "--to", "desk"]);
        assert!(message.contains("waits for desk"), "{message}");
        away = attach(desk, "lab3/memory", &["--address", &address, "--wait=20"]);
        away.wait_for_line("attached as");
        assert_eq!(home.wait_for_end(PATIENCE), Some(0), "{}", home.log());
    }
}
