//! Disks of a paired host that move to their importer's machine while they are written, with a kill (`kill -9`) of
//! either end in each step of the move (requirement N12).
//!
//! `FARBUS_SWAPS` says how many moves (default 9, one of each kind); `cargo xtask soak` makes 100.
//!
//! After a kill the test does what its user would: it attaches the disk again, and does what farbus prints. Either the
//! disk is where it was, and moves; or its copy is the disk, and no host gets the old one. In both cases each block
//! holds a write that is no older than the last flush.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;

use super::harness::{Harness, PATIENCE, Running, wait_until};
use super::nbd_migrate::{Client, SIZE};
use super::trust::{Host, three};

const BLOCK: usize = 4096;
const BLOCKS: usize = 64;
/// The written blocks lie all over the disk, so that some are copied before they are written and some after it.
const STRIDE: usize = SIZE as usize / BLOCKS;
/// Writes between two flushes.
const FLUSH_EVERY: usize = 7;
/// A copy takes half a second, in which it can be interrupted.
const RATE: &str = "16M";

fn swaps() -> usize {
    std::env::var("FARBUS_SWAPS").map_or(9, |text| text.parse().expect("a number"))
}

/// What has become durable when one end is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// The importer's journal says that it copies.
    Copying,
    /// The exporter has noted that its disk is about to move.
    Moving,
    /// The importer's journal says that the copy is the disk.
    Switched,
    /// The exporter has noted that its disk has moved.
    Moved,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Importer,
    Exporter,
}

/// Each step with a kill of each end, and one move without.
fn kill_of(number: usize) -> Option<(Step, End)> {
    let steps = [Step::Copying, Step::Moving, Step::Switched, Step::Moved];
    let which = (number % 9).checked_sub(1)?;
    Some((steps[which / 2], [End::Importer, End::Exporter][which % 2]))
}

/// What a block may hold: what was flushed last, and what was written since.
#[derive(Clone)]
struct Block {
    flushed: u8,
    since: Vec<u8>,
}

struct Model(Vec<Block>);

impl Model {
    fn new() -> Self {
        Self(vec![Block { flushed: 0, since: Vec::new() }; BLOCKS])
    }

    /// Writes blocks in turn until told to stop, or until its server has gone.
    fn write(&mut self, client: &mut Client, is_over: &AtomicBool) -> io::Result<()> {
        let mut count = 0;
        while !is_over.load(Ordering::Acquire) {
            let (at, byte) = (count * 5 % BLOCKS, (count / BLOCKS % 250 + 1) as u8);
            // Even a write that is not answered may have been stored.
            self.0[at].since.push(byte);
            client.try_write(at * STRIDE, byte)?;
            count += 1;
            if count % FLUSH_EVERY == 0 {
                self.flush(client)?;
            }
        }
        self.flush(client)
    }

    fn flush(&mut self, client: &mut Client) -> io::Result<()> {
        client.try_flush()?;
        for block in &mut self.0 {
            if let Some(last) = block.since.pop() {
                *block = Block { flushed: last, since: Vec::new() };
            }
        }
        Ok(())
    }

    /// Compares the disk; what it holds now counts from here on.
    fn assert_holds(&mut self, mut read: impl FnMut(usize) -> Vec<u8>) {
        for (at, block) in self.0.iter_mut().enumerate() {
            let found = read(at * STRIDE);
            assert!(found.iter().all(|byte| *byte == found[0]), "block {at} is torn");
            let Block { flushed, since } = block;
            assert!(
                found[0] == *flushed || since.contains(&found[0]),
                "{at}: {} and not {flushed}, {since:?}",
                found[0]
            );
            *block = Block { flushed: found[0], since: Vec::new() };
        }
    }

    fn assert_file_holds(&mut self, path: &Path) {
        let bytes = std::fs::read(path).unwrap();
        self.assert_holds(|offset| bytes[offset..][..BLOCK].to_vec());
    }
}

/// The files in a host's state whose names begin so, wherever they lie.
fn state_files(host: &Host<'_>, folder: &str, is_one: impl Fn(&str) -> bool) -> Vec<Vec<u8>> {
    let Ok(entries) = std::fs::read_dir(host.harness.path(host.name).join(folder)) else { return Vec::new() };
    let fitting = entries.flatten().filter(|entry| is_one(&entry.file_name().to_string_lossy()));
    fitting.filter_map(|entry| std::fs::read(entry.path()).ok()).collect()
}

/// Whether this step is durable.
fn is_reached(step: Step, lab3: &Host<'_>, desk: &Host<'_>) -> bool {
    let journal = |word: &str| {
        let journals = state_files(desk, "swaps", |name| name.ends_with(".journal"));
        journals.iter().any(|bytes| String::from_utf8_lossy(bytes).contains(word))
    };
    let retirement = |is_done: Option<bool>| {
        let notes = state_files(lab3, "", |name| name.starts_with("lease-"));
        let notes = notes.iter().filter_map(|bytes| serde_json::from_slice::<Value>(bytes).ok());
        notes.into_iter().any(|note| {
            let noted = note["retirement"]["is_done"].as_bool();
            noted.is_some() && (is_done.is_none() || noted == is_done)
        })
    };
    match step {
        Step::Copying => journal("\"copying\""),
        Step::Moving => retirement(None),
        Step::Switched => journal("\"switched\""),
        Step::Moved => retirement(Some(true)),
    }
}

/// One exporter's disk, its importer's copy, and who may use both.
struct Scene<'h> {
    lab3: Host<'h>,
    desk: Host<'h>,
    rack: Host<'h>,
    what: String,
    socket: PathBuf,
    copy: PathBuf,
}

impl Scene<'_> {
    /// Shares the disk: `at` a free port, or where it was shared before.
    fn share(&self, at: &str) -> (Running, String) {
        let share = self.lab3.start(&["share", &self.what, "--listen", "none", "--secure", at]);
        let line = share.wait_for_line("for paired hosts");
        (share, line.split_whitespace().nth(2).unwrap().to_owned())
    }

    fn attach(&self, host: &Host<'_>, address: &str) -> Running {
        let socket = self.socket.to_str().unwrap();
        let session = ["attach", "lab3/disk", "--address", address, "--grace", "20", "--wait=60"];
        host.start(&[&session[..], &["--via", "nbd", "--socket", socket, "--cache", "writeback"]].concat())
    }

    fn swap(&self, more: &[&str]) -> Running {
        let to = format!("block:{}", self.copy.display());
        self.desk.start(&[&["swap", "lab3/disk", "--to", &to], more].concat())
    }

    /// Moves the disk with one kill. Returns whether it had moved when its importer was gone.
    fn play(&self, number: usize) {
        let kill = kill_of(number);
        let (mut exporter, address) = self.share("127.0.0.1:0");
        let mut importer = self.attach(&self.desk, &address);
        importer.wait_for_line("attached");
        let (mut model, is_over) = (Model::new(), AtomicBool::new(false));
        let mut is_moved = false;
        thread::scope(|s| {
            let (model, is_over) = (&mut model, &is_over);
            let mut client = Client::connect(&self.socket);
            let writer = s.spawn(move || model.write(&mut client, is_over));
            let mut swap = self.swap(&["--rate", RATE]);
            if let Some((step, end)) = kill {
                let reached = || is_reached(step, &self.lab3, &self.desk);
                wait_until(PATIENCE, &format!("move {number}: {step:?}"), reached);
                // What is killed is not always the same moment after it.
                // waits: the fault comes at a moment that is never the same
                thread::sleep(Duration::from_micros(number as u64 * 797 % 10_000));
                match end {
                    End::Importer => importer.kill(),
                    End::Exporter => {
                        exporter.kill();
                        exporter = self.share(&address).0;
                    }
                }
            }
            let code = swap.wait_for_end(PATIENCE);
            if kill.is_some_and(|(_, end)| end == End::Importer) {
                let ended = writer.join().unwrap();
                assert!(ended.is_err(), "move {number}: its server was killed");
                return;
            }
            is_moved = code == Some(0);
            assert!(is_moved || kill.is_some(), "move {number}: {}", swap.log());
            if !is_moved {
                assert_eq!(self.swap(&[]).wait_for_end(PATIENCE), Some(0), "move {number}, again");
                is_moved = true;
            }
            // A while on the copy.
            // waits: a while on the copy; a slow machine writes less of it
            thread::sleep(Duration::from_millis(20));
            is_over.store(true, Ordering::Release);
            writer.join().unwrap().unwrap_or_else(|error| panic!("move {number}: {error}"));
        });
        if is_moved {
            importer.signal(Signal::INT);
            assert_eq!(importer.wait_for_end(PATIENCE), Some(0), "move {number}: {}", importer.log());
        } else {
            self.recover(number, &address, &mut model);
        }
        model.assert_file_holds(&self.copy);
        self.assert_nobody_gets_the_old_disk(number, &address);
        drop(exporter);
    }

    /// Attaches the disk again after its importer was killed. If it stayed, it is moved.
    fn recover(&self, number: usize, address: &str, model: &mut Model) {
        let _ = std::fs::remove_file(&self.socket);
        let mut importer = self.attach(&self.desk, address);
        if !importer.has_line_before_its_end("attached") {
            assert_eq!(importer.wait_for_end(PATIENCE), Some(3), "move {number}: {}", importer.log());
            let next = format!("use that: farbus nbd block:{}", self.copy.display());
            assert!(importer.log().contains(&next), "move {number}: {}", importer.log());
            return;
        }
        let mut client = Client::connect(&self.socket);
        model.assert_holds(|offset| client.read(offset));
        let mut swap = self.swap(&[]);
        assert_eq!(swap.wait_for_end(PATIENCE), Some(0), "move {number}, again: {}", swap.log());
        model.assert_holds(|offset| client.read(offset));
        drop(client);
        importer.signal(Signal::INT);
        assert_eq!(importer.wait_for_end(PATIENCE), Some(0), "move {number}: {}", importer.log());
    }

    /// Neither host gets the disk, and its exporter says that it was moved.
    fn assert_nobody_gets_the_old_disk(&self, number: usize, address: &str) {
        for host in [&self.desk, &self.rack] {
            let mut importer = self.attach(host, address);
            assert_eq!(importer.wait_for_end(PATIENCE), Some(3), "move {number}, {}: {}", host.name, importer.log());
            assert!(importer.log().contains("old data"), "move {number}, {}: {}", host.name, importer.log());
        }
        let status = || self.lab3.json(&["status", "--json"]);
        let state = || status()[0]["devices"][0]["moved"]["state"].clone();
        wait_until(PATIENCE, "its exporter knows that it has moved", || state() == "moved");
    }
}

#[test]
fn kills_in_each_step_of_a_move_lose_no_flushed_write_and_leave_one_disk() {
    for number in 0..swaps() {
        let harness = Harness::new();
        let [lab3, desk, rack] = three(&harness);
        let image = harness.image("old.img", SIZE);
        let scene = Scene {
            lab3,
            desk,
            rack,
            what: format!("disk:{}", image.display()),
            socket: harness.path("disk.sock"),
            copy: harness.path("new.img"),
        };
        scene.play(number);
    }
    println!("{} moves", swaps());
}
