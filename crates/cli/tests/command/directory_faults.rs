//! A long run on an etcd of three real members with faults: whatever becomes of them, no device is used by two, and
//! attachments go on.
//!
//! Two hosts take turns with one disk, some by a lease and some by an attachment alone. The one that has it writes its
//! own mark and reads it again and again: a second user would be seen at once. A third host has another disk all the
//! time.
//! `FARBUS_DIRECTORY_SECONDS` is how long faults go on: 8 s without it.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::directory::Site;
use super::etcd::{Etcd, has_etcd};
use super::harness::{Harness, PATIENCE, has, wait_until};
use super::nbd_migrate::{Client, SIZE};
use super::trust::{Host, three};

/// What the run has seen.
#[derive(Default)]
struct Tally {
    is_over: AtomicBool,
    turns: AtomicU64,
    leases: AtomicU64,
    checks: AtomicU64,
    steady: AtomicU64,
}

impl Tally {
    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }

    fn count(counter: &AtomicU64) {
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

/// Ends the threads of a run, also if it fails.
struct Ending<'a>(&'a Tally);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.is_over.store(true, Ordering::Relaxed);
    }
}

/// A number from a seed (xorshift64, Marsaglia 2003).
struct Dice(u64);

impl Dice {
    fn roll(&mut self, below: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 >> 33).unwrap() % below
    }
}

/// Takes turns with lab3/board: the host that has it finds no mark but its own for as long as it has it.
fn take_turns(host: &Host<'_>, mark: u8, tally: &Tally) {
    let socket = host.harness.path(&format!("{}.sock", host.name));
    let mut dice = Dice(u64::from(mark) + 1);
    while !tally.is_over() {
        let by_lease = dice.roll(2) == 0;
        if by_lease {
            if host.run(&["lease", "lab3/board", "--for", "20s", "--no-wait"]).code != Some(0) {
                continue;
            }
            Tally::count(&tally.leases);
        }
        let mut attach = host.start(&["attach", "lab3/board", "--via", "nbd", "--socket", socket.to_str().unwrap()]);
        if attach.has_line_before_its_end("attached as") {
            let mut client = Client::connect(&socket);
            for round in 0..8 {
                client.write(round * 4096, mark);
                for at in 0..=round {
                    let found = client.read(at * 4096);
                    assert!(found.iter().all(|byte| *byte == mark), "{}: another used it at the same time", host.name);
                    Tally::count(&tally.checks);
                }
            }
            drop(client);
            Tally::count(&tally.turns);
            attach.signal(Signal::INT);
        }
        attach.wait_for_end(PATIENCE);
        if by_lease {
            host.run(&["lease", "release", "lab3/board", "--force"]);
        }
    }
}

/// Uses lab3/steady all the time.
fn use_steadily(client: &mut Client, tally: &Tally) {
    let mut round = 0_u8;
    while !tally.is_over() {
        round = round.wrapping_add(1);
        client.write(usize::from(round) * 4096, round);
        assert_eq!(client.read(usize::from(round) * 4096)[7], round);
        Tally::count(&tally.steady);
        // waits: the pace of a load; a slow machine makes less of it
        thread::sleep(Duration::from_millis(20));
    }
}

/// The faults, each of which ends before the next begins.
const FAULTS: [&str; 10] = [
    "one member killed",
    "one member stopped",
    "two members stopped: no majority",
    "all members killed",
    "compaction",
    "all leases of etcd end while their hosts live",
    "a slow member",
    "a liar writes",
    "one member parted from the others, in reach of hosts",
    "one member in nobody's reach",
];

/// How many of them need no network for each member.
const PLAIN_FAULTS: usize = 8;

/// Runs etcdctl until it succeeds: a cluster that has just lost its leader has another one soon.
fn ctl(etcd: &Etcd<'_>, words: &[&str]) -> String {
    let mut message = None;
    wait_until(PATIENCE, &format!("etcdctl {words:?}"), || {
        message = etcd.try_ctl(words);
        message.is_some()
    });
    message.unwrap()
}

fn fault(etcd: &mut Etcd<'_>, number: usize, at: usize, span: Duration) {
    match number {
        0 => {
            etcd.kill(at);
            // waits: the fault lasts so long
            thread::sleep(span);
            etcd.restart(at);
        }
        1 | 2 => {
            let stopped: Vec<usize> = (0..number).map(|more| (at + more) % 3).collect();
            stopped.iter().for_each(|at| etcd.signal(*at, Signal::STOP));
            // waits: the fault lasts so long
            thread::sleep(span);
            stopped.iter().for_each(|at| etcd.signal(*at, Signal::CONT));
        }
        3 => {
            (0..3).for_each(|at| etcd.kill(at));
            // waits: the fault lasts so long
            thread::sleep(span);
            (0..3).for_each(|at| etcd.restart(at));
        }
        4 => {
            let found = ctl(etcd, &["get", "nothing", "--write-out", "json"]);
            let found: serde_json::Value = serde_json::from_str(&found).unwrap();
            // What is compacted already cannot be.
            etcd.try_ctl(&["compaction", &found["header"]["revision"].to_string()]);
        }
        5 => {
            let leases = ctl(etcd, &["lease", "list"]);
            for lease in leases.lines().skip(1) {
                // One that ended by itself meanwhile is none.
                etcd.try_ctl(&["lease", "revoke", lease.trim()]);
            }
        }
        6 => {
            // It gets a tenth of its time, as behind a disk that is slow.
            let until = Instant::now() + span;
            while Instant::now() < until {
                etcd.signal(at, Signal::STOP);
                // waits: the fault lasts so long
                thread::sleep(Duration::from_millis(90));
                etcd.signal(at, Signal::CONT);
                // waits: the fault lasts so long
                thread::sleep(Duration::from_millis(10));
            }
        }
        8 => {
            etcd.part(at, true);
            // waits: the fault lasts so long
            thread::sleep(span);
            etcd.part(at, false);
        }
        9 => {
            etcd.unplug(at, true);
            // waits: the fault lasts so long
            thread::sleep(span);
            etcd.unplug(at, false);
        }
        _ => {
            let free = r#"{"ids":"0000:0000","state":"available"}"#;
            let keys = ctl(etcd, &["get", "--prefix", "/farbus/1/", "--keys-only"]);
            for key in keys.lines().filter(|key| key.ends_with("/board")) {
                ctl(etcd, &["put", key, free]);
            }
        }
    }
    etcd.wait();
}

#[test]
fn no_device_is_used_by_two_and_attachments_go_on_whatever_becomes_of_three_members() {
    if !has_etcd() {
        return;
    }
    let seconds = std::env::var("FARBUS_DIRECTORY_SECONDS").map_or(8, |text| text.parse().unwrap());
    let harness = Harness::new();
    let hosts = three(&harness);
    let [lab3, desk, rack] = &hosts;
    let mut etcd = match Etcd::start_apart(&harness, 3) {
        Some(etcd) => etcd,
        None if has("network namespaces", false) => unreachable!("it has none"),
        None => Etcd::start(&harness, 3, &[]),
    };
    let faults = if etcd.is_apart() { FAULTS.len() } else { PLAIN_FAULTS };
    let shares = ["board", "steady"].map(|name| {
        let image = harness.image(&format!("{name}.img"), SIZE);
        format!("{{what='disk:{}', name='{name}'}}", image.display())
    });
    let at_lab3 = Site::start(lab3, &format!("{}\nshare = [{}]", etcd.line(), shares.join(", ")));
    let sites = [Site::start(desk, &etcd.line()), Site::start(rack, &etcd.line())];
    for host in [desk, rack] {
        host.ok(&["list", "lab3", "--address", &at_lab3.address]);
    }
    let socket = harness.path("steady.sock");
    let steady = rack.start(&["attach", "lab3/steady", "--via", "nbd", "--socket", socket.to_str().unwrap()]);
    steady.wait_for_line("attached as");
    let mut client = Client::connect(&socket);

    let tally = Tally::default();
    let mut seen = [0; FAULTS.len()];
    thread::scope(|scope| {
        let takers = [(desk, b'd'), (rack, b'r')].map(|(host, mark)| {
            let tally = &tally;
            scope.spawn(move || take_turns(host, mark, tally))
        });
        let user = scope.spawn(|| use_steadily(&mut client, &tally));
        let ending = Ending(&tally);
        let (began, mut dice) = (Instant::now(), Dice(0x5eed));
        let all = Duration::from_secs(seconds);
        while began.elapsed() < all || seen.iter().sum::<u32>() < 4 {
            if takers.iter().any(|taker| taker.is_finished()) || user.is_finished() {
                break;
            }
            // Each kind in its turn first, so that a short run has several.
            let done = usize::try_from(seen.iter().sum::<u32>()).unwrap();
            let first = [2, 8, 5, 3, 9, 4, 0, 7, 1, 6].into_iter().filter(|number| *number < faults).nth(done);
            let number = first.unwrap_or_else(|| dice.roll(faults));
            // An etcd lease of 60 s ends in the longest of them.
            let span = if seconds > 60 && dice.roll(8) == 0 { 75_000 } else { 500 + 250 * dice.roll(12) as u64 };
            fault(&mut etcd, number, dice.roll(3), Duration::from_millis(span));
            seen[number] += 1;
        }
        drop(ending);
        user.join().expect("the attachment goes on");
        takers.into_iter().for_each(|taker| taker.join().expect("nobody else uses it"));
    });
    let [turns, leases, checks, steady] =
        [&tally.turns, &tally.leases, &tally.checks, &tally.steady].map(|counter| counter.load(Ordering::Relaxed));
    assert!(turns > 1 && steady > 50, "{turns} turns, {steady} rounds");
    for (count, what) in seen.iter().zip(FAULTS) {
        println!("{count:5} x {what}");
    }
    println!(
        "{turns} turns of two hosts, {leases} leases; {checks} reads of the own mark, 0 of another; {steady} rounds"
    );
    println!("of the attachment that goes on, 0 failed; {:.0} s", f64::from(u32::try_from(seconds).unwrap()));
    // What happened is told once the directory is well.
    for site in [&at_lab3, &sites[0], &sites[1]] {
        site.wait_for_trouble(None);
    }
    lab3.ok(&["label", "board", "after=all"]);
    sites[0].wait_for("what was said last", |line| line["target"] == "lab3/board" && line["labels"]["after"] == "all");
    wait_until(PATIENCE, "lab3 says that nobody has it", || {
        let device = lab3.json(&["status", "--json"])[0]["devices"][0].clone();
        device["state"] == "available" && device["lease"].is_null()
    });
}
