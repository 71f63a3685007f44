//! Disks of a paired host at several front ends at once, while everything fails that can: processes are killed and
//! stopped, links are cut, the daemon restarts, the exporter's disks refuse, tear and forget, the power fails. Nothing
//! that a flush has covered is lost, and nothing old is read: `cargo xtask durability`; docs/durability.md.
//!
//! `FARBUS_DURABILITY_FAULTS` says how many faults (default: one of each kind), `FARBUS_DURABILITY_SEED` which (the
//! same seed makes the same faults), `FARBUS_DURABILITY_ONLY` a part of the names of their kinds,
//! `FARBUS_DURABILITY_STOP_S` how long a stop lasts at most (default 1), and `FARBUS_DURABILITY_JSON` names a file for
//! the result. `FARBUS_PREVIOUS` names the program of the previous release: the exporter begins with it, and the first
//! fault is its upgrade.
//!
//! Four disks are attached: one as a file, one by NBD, one that is a USB disk at its exporter, by NBD, and one as a
//! file with a file system on it and a database in that (`database.rs`). Two programs write each of the first three.
//! Each sector names its place, its writer and its version, so that lost, old and foreign bytes are told apart. After
//! each flush a writer also looks at what is durable on the medium itself (`store.rs`).

mod database;
mod model;
#[allow(dead_code, reason = "other tests use more of it")]
#[path = "../../../../session/tests/native/random.rs"]
mod random;
mod scene;
mod store;

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use farbus::model::StoreError;
use rustix::process::{Resource, Signal};
use serde_json::{Value, json};

use super::cuts::Cutter;
use super::disk_clients::{Client, DiskUser, HANGS, Nbd};
use super::harness::{Harness, PATIENCE, has, has_fuse, has_program};
use super::restart::SetOnDrop;
use super::trust::{hosts, pair};
use database::Database;
use model::{SECTOR, Sectors};
use random::Random;
use scene::{
    DISK_BYTES, Exporter, FrontEnd, SECTORS, WRITERS, Writer, WriterCounters, address_space, descriptors,
    wait_until_settled,
};
use store::{Disk, Failing, while_no_loop_device_is_made};

/// A kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    ExporterKilled,
    ExporterStopped,
    ImporterKilled,
    ImporterStopped,
    LinkCut,
    DaemonRestarted,
    Upgraded,
    DiskFull,
    DiskReadOnly,
    WriteError,
    TornWrite,
    FlushError,
    FlushErrorUnanswered,
    PowerCut,
    PowerCutOfBoth,
    ClockJump,
    DescriptorLimit,
    MemoryLimit,
}

use Kind::*;

const KINDS: [(Kind, &str); 18] = [
    (ExporterKilled, "exporter killed"),
    (ExporterStopped, "exporter stopped"),
    (ImporterKilled, "importer killed"),
    (ImporterStopped, "importer stopped"),
    (LinkCut, "link cut"),
    (DaemonRestarted, "daemon restarted"),
    (Upgraded, "exporter upgraded"),
    (DiskFull, "disk full"),
    (DiskReadOnly, "disk read-only"),
    (WriteError, "write error"),
    (TornWrite, "torn write"),
    (FlushError, "flush error"),
    (FlushErrorUnanswered, "flush error, killed"),
    (PowerCut, "power cut"),
    (PowerCutOfBoth, "power cut of both"),
    (ClockJump, "clock jump"),
    (DescriptorLimit, "descriptor limit"),
    (MemoryLimit, "memory limit"),
];

/// The disk with the database, after those of the writers.
const DATABASE: usize = 3;

/// The places of a disk's programs among all.
fn users_of(disk: usize) -> std::ops::Range<usize> {
    let first = disk * WRITERS;
    first..if disk == DATABASE { first + 1 } else { first + WRITERS }
}

fn number(name: &str, usual: u64) -> u64 {
    std::env::var(name).map_or(usual, |text| text.parse().expect("a number"))
}

/// One fault: its kind, and the number that decides the rest of it.
#[derive(Clone, Copy, Debug)]
struct Fault {
    kind: usize,
    choice: u64,
}

/// The faults of a seed: all kinds whose names contain `only` in some order, then in another order, and so on.
fn faults(seed: u64, count: usize, only: &str) -> Vec<Fault> {
    let mut random = Random::new(seed);
    let mut faults = Vec::new();
    let all: Vec<usize> = (0..KINDS.len()).filter(|&kind| KINDS[kind].1.contains(only)).collect();
    assert!(!all.is_empty(), "no kind of fault is called '{only}'");
    while faults.len() < count {
        let mut kinds = all.clone();
        while !kinds.is_empty() {
            let kind = kinds.swap_remove(random.below(kinds.len() as u64) as usize);
            faults.push(Fault { kind, choice: random.next() });
        }
    }
    faults.truncate(count);
    faults
}

/// What the faults of one kind did.
#[derive(Clone, Copy, Default)]
struct Row {
    faults: u64,
    bytes_lost: u64,
    stale_reads: u64,
    hangs: u64,
    errors_not_told: u64,
    /// Errors that writers were told.
    errors_told: u64,
    /// Attachments that ended by themselves.
    ended: u64,
    /// The longest time until each writer had made a flush again.
    settled_max: Duration,
}

/// A medium that fails has refused a write or a flush by then, and a program knows.
const TOLD_WITHIN: Duration = Duration::from_secs(60);

/// What none of the faults may cause: bytes lost, stale reads, hangs, errors that no flush told, attachments that end
/// by themselves.
const LIMITS: [u64; 5] = [0; 5];

impl Row {
    fn is_within_limits(&self) -> bool {
        let all = [self.bytes_lost, self.stale_reads, self.hangs, self.errors_not_told, self.ended];
        all.iter().zip(LIMITS).all(|(is, most)| *is <= most)
    }

    fn to_json(self, name: &str) -> Value {
        json!({
            "fault": name, "faults": self.faults, "bytes_lost": self.bytes_lost, "stale_reads": self.stale_reads,
            "hangs": self.hangs, "errors_not_told": self.errors_not_told, "errors_told": self.errors_told,
            "attachments_ended": self.ended, "settled_ms_max": self.settled_max.as_millis() as u64,
        })
    }

    fn print(&self, name: &str) {
        let Self { faults, bytes_lost, stale_reads, hangs, errors_not_told, errors_told, ended, settled_max } = self;
        println!(
            "| {name} | {faults} | {bytes_lost} | {stale_reads} | {hangs} | {errors_not_told} | {errors_told} | {ended} | {:.1} s |",
            settled_max.as_secs_f64()
        );
    }
}

/// Everything that a fault can concern.
struct Scene<'h, 's> {
    exporter: Exporter<'h>,
    desk: super::trust::Host<'h>,
    cutter: Cutter,
    disks: &'s mut [Disk],
    fronts: &'s [FrontEnd<'h>],
    counters: &'s [WriterCounters],
    stop_max: Duration,
}

impl Scene<'_, '_> {
    /// Makes a fault, and mends what its owner would mend. Returns the disk whose medium failed, if one did.
    fn make(&mut self, kind: Kind, choice: u64) -> Option<usize> {
        let mut random = Random::new(choice);
        let disk = random.below(self.disks.len() as u64) as usize;
        let span = self.stop_max.mul_f64(0.02 + random.below(1000) as f64 / 1000.0 * 0.98);
        // The programs do something between two faults.
        self.wait_for_requests(random.below(200));
        match kind {
            ExporterKilled => self.exporter.kill_and_start(),
            ExporterStopped => {
                self.exporter.signal(Signal::STOP);
                // waits: the fault lasts so long
                thread::sleep(span);
                self.exporter.signal(Signal::CONT);
            }
            ImporterKilled => self.fronts[disk].kill(),
            ImporterStopped => {
                self.fronts[disk].signal(Signal::STOP);
                // waits: the fault lasts so long
                thread::sleep(span);
                self.fronts[disk].signal(Signal::CONT);
            }
            LinkCut => self.cutter.cut_in_way(random.below(4), random.below(1000), self.fronts.len() as u64, || false),
            DaemonRestarted => self.exporter.restart(),
            Upgraded => self.upgrade(),
            DiskFull => return self.fail(disk, Failing::Writes(StoreError::NoSpace), span),
            DiskReadOnly => return self.fail(disk, Failing::Writes(StoreError::ReadOnly), span),
            WriteError => return self.fail(disk, Failing::Writes(StoreError::Medium), span),
            TornWrite => return self.fail(disk, Failing::Torn, span),
            FlushError => return self.fail(disk, Failing::Flushes, span),
            FlushErrorUnanswered => self.fail_unanswered(disk),
            PowerCut => self.exporter.cut_power(self.disks, || ()),
            PowerCutOfBoth => self.exporter.cut_power(self.disks, || self.fronts[disk].kill()),
            ClockJump => self.exporter.jump_clocks(),
            DescriptorLimit => self.limit(Resource::Nofile, descriptors, span),
            MemoryLimit => self.limit(Resource::As, |process| Some(address_space(process)? + (256 << 10)), span),
        }
        None
    }

    fn requests(&self) -> u64 {
        self.counters.iter().map(|counters| counters.requests.load(Ordering::Acquire)).sum()
    }

    fn wait_for_requests(&self, count: u64) {
        let (before, began) = (self.requests(), Instant::now());
        while self.requests() < before + count && began.elapsed() < HANGS {
            // waits: between two looks for an event
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// The medium of a disk fails until one of its writers is told an error; then its owner mends it, which takes up to
    /// a second, and starts the exporter again.
    fn fail(&mut self, disk: usize, failing: Failing, span: Duration) -> Option<usize> {
        let errors = || -> u64 {
            self.counters[users_of(disk)].iter().map(|counters| counters.errors.load(Ordering::Acquire)).sum()
        };
        let (before, began) = (errors(), Instant::now());
        self.disks[disk].fail(failing);
        while errors() == before && began.elapsed() < TOLD_WITHIN {
            // waits: between two looks for an event
            thread::sleep(Duration::from_millis(1));
        }
        assert!(self.disks[disk].refused() > 0, "the programs use disk {disk}");
        let _nobody = while_no_loop_device_is_made();
        self.exporter.kill();
        // What the disks' users begin meanwhile waits for the exporter.
        // waits: users begin requests, as many as the machine makes
        thread::sleep(span.min(Duration::from_secs(1)));
        self.disks[disk].take_down();
        self.disks[disk].fail(Failing::Nothing);
        self.disks[disk].bring_up();
        self.exporter.start();
        Some(disk)
    }

    /// A flush fails at the exporter, which is killed before its importer learns of that. The kernel tells a failure
    /// once, and the process that it told is gone.
    fn fail_unanswered(&mut self, disk: usize) {
        self.disks[disk].fail(Failing::Data);
        let began = Instant::now();
        while self.disks[disk].refused() == 0 && began.elapsed() < HANGS {
            // waits: between two looks for an event
            thread::sleep(Duration::from_millis(1));
        }
        self.cutter.freeze(true);
        self.disks[disk].go_on();
        // The longer, the more probable that the exporter was told.
        // waits: the exporter may be told or not; both have to do
        thread::sleep(Duration::from_millis(50));
        self.exporter.kill();
        self.disks[disk].fail(Failing::Nothing);
        self.exporter.start();
        self.cutter.freeze(false);
    }

    /// What the exporter runs is replaced by this version: the first time by that, the previous release.
    fn upgrade(&mut self) {
        self.exporter.install(Path::new(env!("CARGO_BIN_EXE_farbus")));
        self.exporter.restart();
    }

    /// The exporter can get no more of something for a while, and has to make new links meanwhile.
    fn limit(&mut self, resource: Resource, limit: impl Fn(rustix::process::Pid) -> Option<u64>, span: Duration) {
        let cutter = &self.cutter;
        let has_ended = self.exporter.limit(resource, limit, || {
            cutter.cut();
            // waits: the fault lasts so long
            thread::sleep(span);
        });
        self.cutter.cut();
        if has_ended {
            self.exporter.kill_and_start();
        }
    }

    /// Attaches what is not attached. Returns how many attachments had ended by themselves.
    fn attach_again(&self, killed: bool, which: usize) -> u64 {
        if killed {
            self.fronts[which].attach(&self.desk, &self.cutter);
        }
        let ended = self.fronts.iter().filter(|front| front.has_ended());
        ended
            .map(|front| {
                println!("{} has ended by itself: {}", front.device, front.log());
                drop(front.take());
                front.attach(&self.desk, &self.cutter);
            })
            .count() as u64
    }
}

#[test]
fn no_fault_loses_a_flushed_byte_shows_an_old_one_or_hides_an_error() {
    let programs = ["unshare", "mount", "losetup", "mkfs.ext4", "e2fsck", "filefrag"]
        .into_iter()
        .all(|program| has(program, has_program(program)));
    if !programs
        || !database::can_run()
        || !has_fuse()
        || !has("root, for a boot number of its own", rustix::process::geteuid().is_root())
    {
        return;
    }
    let seed = number("FARBUS_DURABILITY_SEED", 1);
    let count = number("FARBUS_DURABILITY_FAULTS", KINDS.len() as u64) as usize;
    let only = std::env::var("FARBUS_DURABILITY_ONLY").unwrap_or_default();
    let stop_s = number("FARBUS_DURABILITY_STOP_S", 1);
    let again =
        format!("cargo xtask durability --seed {seed} --faults {count} --stop-seconds {stop_s} --only '{only}'");
    println!("seed {seed}, {count} faults; again: {again}");
    let harness = Harness::new();
    let [lab3, desk] = hosts(&harness);
    pair(&lab3, &desk);
    lab3.ok(&["allow", "desk", "all"]);
    let mut disks: Vec<Disk> =
        (0..DATABASE).map(|disk| Disk::new(&harness, disk, DISK_BYTES, seed << 8 | disk as u64)).collect();
    disks.push(Disk::new(&harness, DATABASE, database::DISK_BYTES, seed << 8 | DATABASE as u64));
    let kinds = ["block", "block", "disk", "block"];
    let shares: Vec<String> =
        disks.iter().zip(kinds).map(|(disk, kind)| format!("{kind}:{}", disk.file().display())).collect();
    let previous = std::env::var_os("FARBUS_PREVIOUS").map(std::path::PathBuf::from);
    let first = previous.as_deref().unwrap_or(Path::new(env!("CARGO_BIN_EXE_farbus")));
    let (exporter, address) = Exporter::new(lab3, first, &shares);
    let cutter = Cutter::before(address.parse().unwrap());
    let vias = ["fuse", "nbd", "nbd", "fuse"];
    let fronts: Vec<FrontEnd<'_>> =
        vias.into_iter().enumerate().map(|(disk, via)| FrontEnd::new(&harness, via, format!("d{disk}"))).collect();
    let counters: Vec<WriterCounters> = (0..users_of(DATABASE).end).map(|_| WriterCounters::default()).collect();
    let clients: Vec<Box<dyn Client>> = (0..users_of(DATABASE).start)
        .map(|writer| -> Box<dyn Client> {
            let front = &fronts[writer / WRITERS];
            match front.via {
                "fuse" => {
                    let file = front.location().join("disk.img");
                    Box::new(DiskUser::start(&harness, &format!("writer{writer}.sock"), file))
                }
                _ => Box::new(Nbd::new(front.location())),
            }
        })
        .collect();
    fronts.iter().for_each(|front| front.attach(&desk, &cutter));

    let (turn, is_over) = (AtomicU64::new(0), AtomicBool::new(false));
    let stop_max = Duration::from_secs(stop_s);
    let mut scene = Scene { exporter, desk, cutter, disks: &mut disks, fronts: &fronts, counters: &counters, stop_max };
    let mut rows = [Row::default(); KINDS.len()];
    let began = Instant::now();
    let (writers, database) = thread::scope(|s| {
        let database = Database::new(&harness, &fronts[DATABASE], &counters[users_of(DATABASE).start], &turn);
        let database = s.spawn(|| database.work(&is_over));
        let writers: Vec<_> = clients
            .into_iter()
            .enumerate()
            .map(|(number, client)| {
                let (disk, part) = (number / WRITERS, number % WRITERS);
                let view = scene.disks[disk].view_from(part * SECTORS);
                let writer = Writer {
                    front: &fronts[disk],
                    client,
                    first_byte: (part * SECTORS * SECTOR) as u64,
                    sectors: Sectors::new(number as u32 + 1, SECTORS, view),
                    random: Random::new(seed << 16 | number as u64),
                    counters: &counters[number],
                    turn: &turn,
                };
                s.spawn(|| writer.work(&is_over))
            })
            .collect();
        let on_panic = SetOnDrop(&is_over);
        turn.store(1, Ordering::Release);
        wait_until_settled(&counters, 1, PATIENCE).expect("each writer begins");
        let mut faults = faults(seed, count, &only);
        if previous.is_some() {
            // What else happens to the previous release is not this campaign's.
            let kind = KINDS.iter().position(|(kind, _)| *kind == Upgraded).expect("it is one of them");
            faults.insert(0, Fault { kind, choice: seed });
        }
        for (at, fault) in faults.into_iter().enumerate() {
            let (kind, name) = KINDS[fault.kind];
            let row = &mut rows[fault.kind];
            play(&mut scene, (at, name), kind, fault.choice, &turn, row);
            assert!(row.is_within_limits(), "{name}: {:?}\nagain: {again}", firsts(&counters));
        }
        drop(on_panic);
        let writers = writers.into_iter().map(|writer| writer.join().unwrap()).collect::<Vec<_>>();
        (writers, database.join().unwrap())
    });
    let database = finish(&mut scene, writers, database, &again);
    drop(scene);
    print_table(&rows, seed, began.elapsed(), &disks, &counters);
    println!("the database: {database}");
}

fn firsts(counters: &[WriterCounters]) -> Vec<String> {
    counters.iter().filter_map(|counters| counters.first.lock().unwrap().clone()).collect()
}

/// Makes one fault, waits until all go on, and counts.
fn play(
    scene: &mut Scene<'_, '_>,
    (at, name): (usize, &str),
    kind: Kind,
    choice: u64,
    turn: &AtomicU64,
    row: &mut Row,
) {
    let sum = |count: fn(&WriterCounters) -> u64| scene.counters.iter().map(count).sum::<u64>();
    let errors: fn(&WriterCounters) -> u64 = |counters| counters.errors.load(Ordering::Acquire);
    let hangs: fn(&WriterCounters) -> u64 = |counters| counters.hangs.load(Ordering::Acquire);
    let bytes: fn(&WriterCounters) -> u64 = |counters| counters.wrong.lock().unwrap().bytes_lost;
    let stale: fn(&WriterCounters) -> u64 = |counters| counters.wrong.lock().unwrap().stale_reads;
    let before = [errors, hangs, bytes, stale].map(sum);
    let errors_before: Vec<u64> = scene.counters.iter().map(errors).collect();
    let began = Instant::now();
    let failed = scene.make(kind, choice);
    let made = began.elapsed();
    let disk = Random::new(choice).below(scene.disks.len() as u64) as usize;
    row.ended += scene.attach_again(matches!(kind, ImporterKilled | PowerCutOfBoth), disk);
    let now = turn.fetch_add(1, Ordering::AcqRel) + 1;
    let settled = wait_until_settled(scene.counters, now, HANGS);
    let sum = |count: fn(&WriterCounters) -> u64| scene.counters.iter().map(count).sum::<u64>();
    let after = [errors, hangs, bytes, stale].map(sum);
    let grown = |which: usize| after[which] - before[which];
    row.faults += 1;
    row.errors_told += grown(0);
    row.hangs += grown(1);
    row.bytes_lost += grown(2);
    row.stale_reads += grown(3);
    match &settled {
        Ok(took) => row.settled_max = row.settled_max.max(*took),
        Err(late) => {
            println!("writers {late:?} make no flush");
            row.hangs += late.len() as u64;
        }
    }
    if let Some(disk) = failed {
        let is_told = users_of(disk).any(|writer| errors(&scene.counters[writer]) > errors_before[writer]);
        row.errors_not_told += u64::from(!is_told);
    }
    println!(
        "fault {at}: {name}, made in {:.1} s, {} errors told, settled: {settled:.1?}",
        made.as_secs_f64(),
        grown(0)
    );
}

/// Detaches everything, cuts the power once more, and compares what is left on the media.
fn finish(scene: &mut Scene<'_, '_>, mut writers: Vec<Sectors>, mut database: Database<'_, '_>, again: &str) -> String {
    for front in scene.fronts {
        scene.desk.ok(&["detach", &format!("lab3/{}", front.device)]);
        let mut importer = front.take();
        assert_eq!(importer.wait_for_end(PATIENCE), Some(0), "{}", importer.log());
    }
    scene.exporter.cut_power(scene.disks, || ());
    for sectors in &mut writers {
        sectors.compare_durable();
        assert_eq!(sectors.wrong.bytes_lost, 0, "{:?}\nagain: {again}", sectors.first);
    }
    scene.exporter.kill();
    database.compare_durable(&scene.disks[DATABASE].file());
    database.described()
}

fn print_table(rows: &[Row], seed: u64, took: Duration, disks: &[Disk], counters: &[WriterCounters]) {
    println!(
        "| fault | times | bytes lost | stale reads | hangs | errors not told | errors told | attachments ended | flush again within |"
    );
    println!("|---|---|---|---|---|---|---|---|---|");
    let [lost, stale, hangs, not_told, ended] = LIMITS;
    println!("| limit | | {lost} | {stale} | {hangs} | {not_told} | | {ended} | {:.0} s |", HANGS.as_secs_f64());
    for (row, (_, name)) in rows.iter().zip(KINDS).filter(|(row, _)| row.faults > 0) {
        row.print(name);
    }
    let requests: u64 = counters.iter().map(|counters| counters.requests.load(Ordering::Acquire)).sum();
    let forgotten: u64 = disks.iter().map(Disk::forgotten).sum();
    println!("{requests} requests in {took:.1?}; the media forgot {forgotten} sectors that were not flushed");
    if let Ok(path) = std::env::var("FARBUS_DURABILITY_JSON") {
        let rows: Vec<Value> = rows.iter().zip(KINDS).map(|(row, (_, name))| row.to_json(name)).collect();
        let all = json!({
            "seed": seed, "seconds": took.as_secs_f64(), "requests": requests, "sectors_forgotten": forgotten, "rows": rows,
        });
        fs::write(path, serde_json::to_string_pretty(&all).unwrap()).unwrap();
    }
}

#[test]
fn same_seed_makes_the_same_faults_and_each_kind_equally_often() {
    let all =
        |seed| faults(seed, 3 * KINDS.len(), "").iter().map(|fault| (fault.kind, fault.choice)).collect::<Vec<_>>();
    assert_eq!(all(7), all(7));
    assert_ne!(all(7), all(8));
    for kind in 0..KINDS.len() {
        assert_eq!(all(7).iter().filter(|(made, _)| *made == kind).count(), 3);
    }
}
