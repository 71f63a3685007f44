//! Two disks of a paired host at once, one as a file and one by NBD, while links are cut and exporters and importers
//! are killed (`kill -9`).
//!
//! `FARBUS_FAULTS` says how many cuts and kills (default 6, one of each kind); `cargo xtask soak` makes 300. The rig's
//! case `nothing-lost-uas` does the same with the kernel's own front end in virtual machines.
//!
//! Each disk has two halves. In each round fio writes one half at random, syncs it and reads it again, and then reads
//! the other half, which an earlier round wrote. The bytes name the round and the place, so stale data is found as well
//! as damaged data. A cut link or a killed exporter fails no call of fio. A killed importer ends its front end and fio
//! with it; the half that was being written is then written again, and the other half has to be intact.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use super::cuts::{Cutter, attach_through};
use super::harness::{Harness, Outcome, PATIENCE, Running, finish, has, has_fuse, has_program, wait_until};
use super::trust::{Host, hosts, pair};

const MIB: u64 = 1 << 20;
/// Bytes of half a disk.
const HALF_BYTES: u64 = 4 * MIB;
/// The sessions' grace period, in seconds.
const GRACE_S: &str = "120";
/// Sessions at a time: one for each front end.
const SESSIONS: u64 = 2;

fn faults() -> u64 {
    std::env::var("FARBUS_FAULTS").map_or(6, |text| text.parse().expect("a number"))
}

/// The front end by which programs use a disk.
#[derive(Clone, Copy)]
enum Via {
    Fuse,
    Nbd,
}

/// The arguments that tell fio where the disk is.
#[derive(Clone)]
struct Target(Vec<String>);

/// A disk that is attached, and attached again after its importer was killed.
struct FrontEnd<'h> {
    via: Via,
    harness: &'h Harness,
    /// The device's name on its exporter.
    device: &'static str,
    state: Mutex<State>,
    is_attached: Condvar,
}

struct State {
    importer: Option<Running>,
    /// How often the importer was killed.
    kills: u32,
}

impl<'h> FrontEnd<'h> {
    fn new(via: Via, harness: &'h Harness, device: &'static str) -> Self {
        let state = State { importer: None, kills: 0 };
        Self { via, harness, device, state: Mutex::new(state), is_attached: Condvar::new() }
    }

    fn location(&self) -> PathBuf {
        match self.via {
            Via::Fuse => self.harness.path("mnt"),
            Via::Nbd => self.harness.path("far.sock"),
        }
    }

    fn target(&self) -> Target {
        let at = self.location();
        Target(match self.via {
            Via::Fuse => image_target(&at.join("disk.img")).0,
            Via::Nbd => vec!["--ioengine=nbd".into(), format!("--uri=nbd+unix:///?socket={}", at.display())],
        })
    }

    fn attach(&self, desk: &Host<'_>, cutter: &Cutter) {
        let at = self.location();
        let (via, option) = match self.via {
            Via::Fuse => ("fuse", "--at"),
            Via::Nbd => ("nbd", "--socket"),
        };
        let arguments = ["--via", via, option, at.to_str().unwrap(), "--wait=100"];
        let importer = attach_through(desk, self.device, cutter, &arguments, GRACE_S);
        self.state.lock().unwrap().importer = Some(importer);
        self.is_attached.notify_all();
    }

    /// Kills the importer, whatever it is doing.
    fn kill(&self) {
        let mut importer = {
            let mut state = self.state.lock().unwrap();
            state.kills += 1;
            state.importer.take().expect("it is attached")
        };
        importer.kill();
    }

    /// Waits until the disk is attached; returns how often its importer was killed before.
    fn wait_until_attached(&self) -> u32 {
        let state = self.state.lock().unwrap();
        let (state, waited) =
            self.is_attached.wait_timeout_while(state, PATIENCE, |state| state.importer.is_none()).unwrap();
        assert!(!waited.timed_out(), "it is not attached again");
        state.kills
    }

    fn kills(&self) -> u32 {
        self.state.lock().unwrap().kills
    }

    /// Writes and verifies in rounds until `is_done`. Returns the round that each half holds, and the number of rounds.
    fn work(&self, is_done: &AtomicBool) -> ([Option<u32>; 2], u32) {
        let mut stored = [None; 2];
        let mut round = 0;
        while !is_done.load(Ordering::Acquire) || stored.contains(&None) {
            round += 1;
            let (half, other) = (round as usize % 2, (round as usize + 1) % 2);
            let kills = self.wait_until_attached();
            let run = |half, seed, is_verify_only| {
                let outcome = fio(self.harness, &self.target(), half, seed, is_verify_only);
                let message = format!("{}{}", outcome.stdout, outcome.stderr);
                assert!(
                    !message.contains("verify failed") && !message.contains("got pattern"),
                    "wrong bytes: {message}"
                );
                assert!(outcome.code == Some(0) || self.kills() > kills, "round {round}: {outcome:?}");
                outcome.code == Some(0)
            };
            let is_there = stored[other].is_none_or(|seed| run(other, seed, true));
            if is_there {
                stored[half] = None;
                stored[half] = run(half, round, false).then_some(round);
            }
        }
        (stored, round)
    }
}

/// Sets its flag when it is dropped, also by a panic, so that the other threads stop.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

fn image_target(image: &Path) -> Target {
    Target(vec!["--ioengine=libaio".into(), "--direct=1".into(), format!("--filename={}", image.display())])
}

/// Runs fio, which writes and reads half a disk, or only reads it.
fn fio(harness: &Harness, target: &Target, half: usize, seed: u32, is_verify_only: bool) -> Outcome {
    let work = "--name=nothing-lost --rw=randwrite --bsrange=512-128k --blockalign=512 --iodepth=16 --fsync=50 \
                --end_fsync=1 --verify=pattern --verify_interval=512 --verify_fatal=1 --verify_state_save=0 --minimal";
    let mut arguments: Vec<String> = work.split_whitespace().map(str::to_owned).collect();
    // If the disk has just gone, fio must not create a file in its place.
    arguments.push("--allow_file_create=0".to_owned());
    arguments.extend(target.0.iter().cloned());
    arguments.push(format!("--size={HALF_BYTES}"));
    arguments.push(format!("--offset={}", half as u64 * HALF_BYTES));
    arguments.push(format!("--randseed={seed}"));
    // The pattern: the round, and the place of the block.
    arguments.push(format!("--verify_pattern=0x{seed:08x}%o"));
    arguments.extend(is_verify_only.then(|| "--verify_only=1".to_owned()));
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    finish(harness.command_of(Path::new("fio"), &arguments), PATIENCE)
}

fn share(lab3: &Host<'_>, whats: &[String; 2], at: &str) -> (Running, SocketAddr) {
    let share = lab3.start(&["share", &whats[0], &whats[1], "--listen", "none", "--secure", at]);
    let line = share.wait_for_line("for paired hosts");
    (share, line.split_whitespace().nth(2).unwrap().parse().unwrap())
}

#[test]
fn cuts_and_kills_lose_no_synced_write_of_two_disks_at_two_front_ends() {
    if !has_fuse() || !has("fio", has_program("fio")) {
        return;
    }
    let harness = Harness::new();
    let [lab3, desk] = hosts(&harness);
    pair(&lab3, &desk);
    lab3.ok(&["allow", "desk", "all"]);
    let images = ["a.img", "b.img"].map(|name| harness.image(name, 2 * HALF_BYTES));
    let whats = images.each_ref().map(|image| format!("block:{}", image.display()));
    let (mut exporter, address) = share(&lab3, &whats, "127.0.0.1:0");
    let cutter = Cutter::before(address);
    let fronts = [FrontEnd::new(Via::Fuse, &harness, "block"), FrontEnd::new(Via::Nbd, &harness, "block2")];
    fronts.iter().for_each(|front| front.attach(&desk, &cutter));

    let (is_done, began) = (AtomicBool::new(false), Instant::now());
    let (mut cuts, mut exporter_kills, mut importer_kills) = (0, 0, 0);
    let stored = thread::scope(|s| {
        let workers = fronts.each_ref().map(|front| s.spawn(|| front.work(&is_done)));
        let over = Over(&is_done);
        let is_over = || workers.iter().any(|worker| worker.is_finished());
        for fault in (0..faults()).take_while(|_| !is_over()) {
            cutter.wait_until_in_use(is_over);
            // waits: the fault comes at a moment that is never the same
            thread::sleep(Duration::from_millis(20 + fault * 37 % 200));
            match fault % 6 {
                1 => {
                    let before = cutter.links();
                    exporter.kill();
                    exporter = share(&lab3, &whats, &address.to_string()).0;
                    exporter_kills += 1;
                    let all_again = || cutter.links() >= before + SESSIONS || is_over();
                    wait_until(PATIENCE, "the sessions go on with the exporter that was started anew", all_again);
                }
                3 => {
                    let front = &fronts[fault as usize / 6 % 2];
                    front.kill();
                    front.attach(&desk, &cutter);
                    importer_kills += 1;
                }
                way => {
                    cutter.cut_in_way([0, 0, 1, 0, 2, 3][way as usize], fault, SESSIONS, is_over);
                    cuts += 1;
                }
            }
        }
        drop(over);
        workers
            .map(|worker| worker.join().expect("not a byte is wrong, nothing that was synced is lost, nothing hangs"))
    });
    println!(
        "{cuts} cuts, {exporter_kills} exporters and {importer_kills} importers killed in {:?}; {} links, {} and {} rounds of 4 MiB",
        began.elapsed(),
        cutter.links(),
        stored[0].1,
        stored[1].1
    );
    for (front, (image, (halves, _))) in fronts.into_iter().zip(images.iter().zip(stored)) {
        desk.ok(&["detach", &format!("lab3/{}", front.device)]);
        let mut importer = front.state.into_inner().unwrap().importer.expect("it is attached");
        assert_eq!(importer.wait_for_end(PATIENCE), Some(0), "{}", importer.log());
        for (half, seed) in halves.into_iter().enumerate() {
            let seed = seed.expect("both halves were written");
            let outcome = fio(&harness, &image_target(image), half, seed, true);
            assert_eq!(outcome.code, Some(0), "half {half} of the exporter's disk: {outcome:?}");
        }
    }
}
