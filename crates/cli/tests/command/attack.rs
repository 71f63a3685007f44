//! Attackers as programs against a daemon, each with its costs and their limits in one table (docs/security.md says who
//! they are): `cargo xtask attack`.
//!
//! `FARBUS_ATTACK_SECONDS` says how long each goes on (default 2). Meanwhile a paired host uses its disk and lists what
//! is shared: both have to go on. A taken-over half of a process, a hostile device and a hostile module meet no daemon
//! but the code that faces them, in tests of their own, which `cargo xtask attack` runs as well.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::harness::{Harness, PATIENCE, Running, finish, has, wait_until};
use super::nbd_migrate::{Client, SIZE};
use super::restart::{SetOnDrop, config};
use super::siege::{besiege, connect_as_attacker, import_request};
use super::trust::{Host, pair};

/// What no attacker may learn: the disk's name, its place, and its user.
const SECRETS: [&str; 3] = ["vault", "moonshot", "desk"];
/// A user without rights to anything here.
const OTHER_USER: u32 = 65534;
/// How often costs are looked at.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// What the honest host does at least, also under attack.
const TURNS_MIN: u64 = 20;

fn seconds() -> Duration {
    Duration::from_secs(std::env::var("FARBUS_ATTACK_SECONDS").map_or(2, |text| text.parse().expect("a number")))
}

/// What an attack may cost the daemon's processes at most. Processor time and the honest host's waits depend on the
/// machine: they are printed.
struct Limits {
    memory_kib: u64,
    descriptors: u64,
    threads: u64,
    /// What is written to the log and to the state folder.
    written_kib: u64,
}

struct Attack {
    attacker: &'static str,
    limits: Limits,
    /// Goes on until told to stop. Returns everything that it was answered.
    act: fn(&Scene<'_>, &AtomicBool) -> String,
}

/// One peer without a device has 64 MiB, and half of all connections (docs/security.md, *Memory*): at the plain port
/// 256, with a thread and three descriptors each, whose stacks take memory as well; and a few at the other one. The
/// logs of refusals and of actions have 20 MiB each.
const ATTACKS: [Attack; 6] = [
    Attack {
        attacker: "stranger",
        limits: Limits { memory_kib: 96 << 10, descriptors: 900, threads: 300, written_kib: 40 << 10 },
        act: stranger,
    },
    Attack {
        attacker: "paired without rights",
        limits: Limits { memory_kib: 64 << 10, descriptors: 100, threads: 100, written_kib: 40 << 10 },
        act: without_rights,
    },
    Attack {
        attacker: "paired with rights",
        limits: Limits { memory_kib: 256 << 10, descriptors: 200, threads: 200, written_kib: 40 << 10 },
        act: with_rights,
    },
    Attack {
        attacker: "local user",
        limits: Limits { memory_kib: 64 << 10, descriptors: 700, threads: 300, written_kib: 40 << 10 },
        act: local_user,
    },
    Attack {
        attacker: "hostile exporter",
        limits: Limits { memory_kib: 96 << 10, descriptors: 100, threads: 100, written_kib: 40 << 10 },
        act: hostile_exporter,
    },
    Attack {
        attacker: "stolen laptop",
        limits: Limits { memory_kib: 64 << 10, descriptors: 100, threads: 100, written_kib: 40 << 10 },
        act: stolen_laptop,
    },
];

/// Where a daemon listens, and those that use it and attack it.
struct Scene<'h> {
    harness: &'h Harness,
    lab3: Host<'h>,
    desk: Host<'h>,
    rack: Host<'h>,
    /// Its key was valid.
    shed: Host<'h>,
    plain: String,
    secure: String,
    /// Whether the exporter that the daemon has a device of sends nonsense.
    is_hostile: &'h AtomicBool,
    /// Connections that it was asked for.
    dialled: &'h AtomicU64,
}

fn stranger(scene: &Scene<'_>, is_over: &AtomicBool) -> String {
    let answered = Mutex::new(String::new());
    let attacks = AtomicU64::new(0);
    thread::scope(|s| {
        for port in [&scene.plain, &scene.secure] {
            s.spawn(|| besiege(port, is_over, &attacks));
            s.spawn(|| {
                while !is_over.load(Ordering::Acquire) {
                    let heard = ask_raw(port, &import_request("vault"));
                    answered.lock().unwrap().push_str(&heard);
                }
            });
        }
    });
    answered.into_inner().unwrap()
}

/// What a port answers to these bytes.
fn ask_raw(port: &str, bytes: &[u8]) -> String {
    let Ok(mut stream) = connect_as_attacker(port) else { return String::new() };
    stream.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    let mut answer = [0; 4096];
    let heard = stream.write_all(bytes).and_then(|()| stream.read(&mut answer)).unwrap_or(0);
    String::from_utf8_lossy(&answer[..heard]).into_owned()
}

/// Has a host run these commands in turn until told to stop. Returns everything that they printed.
fn run_all(host: &Host<'_>, commands: &[&[&str]], is_over: &AtomicBool) -> String {
    let mut answered = String::new();
    for command in commands.iter().cycle().take_while(|_| !is_over.load(Ordering::Acquire)) {
        let outcome = host.run(command);
        assert_ne!(outcome.code, Some(101), "{command:?}: {outcome:?}");
        answered += &(outcome.stdout + &outcome.stderr);
    }
    answered
}

fn without_rights(scene: &Scene<'_>, is_over: &AtomicBool) -> String {
    let at = &*scene.secure;
    let commands: [&[&str]; 6] = [
        &["list", "lab3", "--address", at],
        &["attach", "lab3/1-1", "--address", at, "--via", "nbd"],
        &["attach", "lab3/zero", "--address", at, "--via", "redir"],
        &["lease", "lab3/1-1", "--for", "1h", "--address", at],
        &["status", "lab3", "--address", at],
        &["watch", "lab3/1-1", "--address", at],
    ];
    run_all(&scene.rack, &commands, is_over)
}

/// Uses what it may use, and never gives it back.
fn with_rights(scene: &Scene<'_>, is_over: &AtomicBool) -> String {
    let socket = scene.harness.path("killed.sock");
    let socket = socket.to_str().unwrap();
    let words = ["attach", "lab3/zero", "--address", &scene.secure, "--via", "redir", "--grace", "600", "--wait=100"];
    for number in 0u64.. {
        if is_over.load(Ordering::Acquire) {
            break;
        }
        let mut attach = scene.rack.start(&[&words[..], &["--socket", socket]].concat());
        // waits: the fault comes at a moment that is never the same
        thread::sleep(Duration::from_millis(100 + number * 37 % 300));
        attach.kill();
        let _ = fs::remove_file(socket);
    }
    String::new()
}

fn local_user(scene: &Scene<'_>, is_over: &AtomicBool) -> String {
    let run = scene.harness.path("of-other");
    fs::create_dir_all(&run).unwrap();
    std::os::unix::fs::chown(&run, Some(OTHER_USER), Some(OTHER_USER)).unwrap();
    let owners = scene.harness.path("run-lab3");
    let (plain, own) = (&*scene.plain, format!("{}/1-1", scene.plain));
    let commands: [(&[&str], &Path); 4] = [
        (&["list", plain], &run),
        (&["attach", &own, "--via", "nbd"], &run),
        (&["status"], &owners),
        (&["unshare", "1-1"], &owners),
    ];
    let mut answered = String::new();
    for (words, runtime) in commands.into_iter().cycle().take_while(|_| !is_over.load(Ordering::Acquire)) {
        let mut command = scene.harness.command(words);
        command.env("XDG_RUNTIME_DIR", runtime).env("FARBUS_STATE", run.join("state")).uid(OTHER_USER).gid(OTHER_USER);
        let outcome = finish(command, PATIENCE);
        answered += &(outcome.stdout + &outcome.stderr);
    }
    answered
}

fn hostile_exporter(scene: &Scene<'_>, is_over: &AtomicBool) -> String {
    scene.is_hostile.store(true, Ordering::Release);
    let before = scene.dialled.load(Ordering::Acquire);
    // The daemon's pauses between two tries grow.
    wait_until(PATIENCE, "the daemon dials", || scene.dialled.load(Ordering::Acquire) > before);
    while !is_over.load(Ordering::Acquire) {
        // waits: between two looks for an event
        thread::sleep(LOOK_EVERY);
    }
    scene.is_hostile.store(false, Ordering::Release);
    String::new()
}

fn stolen_laptop(scene: &Scene<'_>, is_over: &AtomicBool) -> String {
    let at = &*scene.secure;
    let commands: [&[&str]; 3] = [
        &["list", "lab3", "--address", at],
        &["attach", "lab3/1-1", "--address", at, "--via", "nbd"],
        &["attach", "lab3/zero", "--address", at, "--via", "redir"],
    ];
    run_all(&scene.shed, &commands, is_over)
}

/// Listens where the daemon looks for a device; sends nonsense when told to.
fn serve_nonsense(listener: &TcpListener, is_hostile: &AtomicBool, dialled: &AtomicU64, is_over: &AtomicBool) {
    let noise: Vec<u8> = (0..1u32 << 20).map(|n| (n.wrapping_mul(0x9e37_79b9) >> 24) as u8).collect();
    listener.set_nonblocking(true).unwrap();
    while !is_over.load(Ordering::Acquire) {
        let Ok((mut stream, _)) = listener.accept() else {
            // waits: between two looks for an event
            thread::sleep(LOOK_EVERY);
            continue;
        };
        dialled.fetch_add(1, Ordering::AcqRel);
        stream.set_nonblocking(false).unwrap();
        stream.set_write_timeout(Some(Duration::from_millis(200))).unwrap();
        while is_hostile.load(Ordering::Acquire) && stream.write_all(&noise).is_ok() {}
    }
}

/// What the daemon's processes hold and have used.
#[derive(Clone, Copy, Default)]
struct Held {
    memory_kib: u64,
    descriptors: u64,
    threads: u64,
    processor_ticks: u64,
}

fn held_by(process: u32) -> Held {
    let mut all = Held::default();
    let mut processes = vec![process];
    while let Some(process) = processes.pop() {
        let folder = PathBuf::from(format!("/proc/{process}"));
        let read = |file: &str| fs::read_to_string(folder.join(file)).unwrap_or_default();
        let status = read("status");
        let number = |field: &str| -> u64 {
            let line = status.lines().find_map(|line| line.strip_prefix(field)).unwrap_or_default();
            line.trim_start_matches(':').split_whitespace().next().and_then(|text| text.parse().ok()).unwrap_or(0)
        };
        let stat = read("stat");
        let after_name: Vec<&str> = stat.rsplit(") ").next().unwrap_or_default().split_whitespace().collect();
        let ticks = |at: usize| after_name.get(at).and_then(|text| text.parse::<u64>().ok()).unwrap_or(0);
        all.memory_kib += number("RssAnon");
        all.threads += number("Threads");
        all.descriptors += fs::read_dir(folder.join("fd")).map_or(0, |entries| entries.count() as u64);
        all.processor_ticks += ticks(11) + ticks(12);
        let children = read(&format!("task/{process}/children"));
        processes.extend(children.split_whitespace().filter_map(|child| child.parse::<u32>().ok()));
    }
    all
}

/// The files of a folder with their sizes and times, by name.
fn files(folder: &Path) -> std::collections::BTreeMap<String, (u64, i64, i64)> {
    let entries = fs::read_dir(folder).unwrap().flatten();
    let known = entries.filter_map(|entry| {
        let about = entry.metadata().ok()?;
        let name = entry.file_name().to_string_lossy().into_owned();
        Some((name, (about.len(), about.mtime(), about.mtime_nsec())))
    });
    known.collect()
}

/// The longest waits of the honest host.
#[derive(Default)]
struct Honest {
    turns: u64,
    turn_max: Duration,
    lists: u64,
    list_max: Duration,
}

/// Uses the disk and lists what is shared until told to stop, or as often as it has to.
fn be_honest(scene: &Scene<'_>, client: &mut Client, is_over: &AtomicBool) -> Honest {
    let mut honest = Honest::default();
    while !is_over.load(Ordering::Acquire) || honest.turns < TURNS_MIN {
        let (began, byte) = (Instant::now(), honest.turns as u8);
        client.write(0, byte);
        client.assert_reads(0, byte);
        honest.turns += 1;
        honest.turn_max = honest.turn_max.max(began.elapsed());
        if honest.turns % 200 == 1 {
            let began = Instant::now();
            let listed = scene.desk.ok(&["list", "lab3", "--address", &scene.secure]);
            assert!(listed.contains("vault"), "{listed}");
            honest.lists += 1;
            honest.list_max = honest.list_max.max(began.elapsed());
        }
    }
    honest
}

/// Plays one attack and prints its line of the table. Returns what was too much.
fn play(scene: &Scene<'_>, daemon: &Running, client: &mut Client, attack: &Attack) -> Vec<String> {
    let state = scene.harness.path("lab3");
    let process = daemon.id();
    let (before, files_before, log_before) = (held_by(process), files(&state), daemon.log().len());
    let is_over = AtomicBool::new(false);
    let began = Instant::now();
    let (mut most, honest, learned) = thread::scope(|s| {
        let on_panic = SetOnDrop(&is_over);
        let attacker = s.spawn(|| (attack.act)(scene, &is_over));
        let honest = s.spawn(|| be_honest(scene, client, &is_over));
        let mut most = before;
        while began.elapsed() < seconds() && !attacker.is_finished() && !honest.is_finished() {
            let now = held_by(process);
            most.memory_kib = most.memory_kib.max(now.memory_kib);
            most.descriptors = most.descriptors.max(now.descriptors);
            most.threads = most.threads.max(now.threads);
            // waits: between two looks for an event
            thread::sleep(LOOK_EVERY);
        }
        drop(on_panic);
        (most, honest.join().unwrap(), attacker.join().unwrap())
    });
    let took = began.elapsed();
    most.processor_ticks = held_by(process).processor_ticks - before.processor_ticks;
    let files_after = files(&state);
    let grown = |name: &String, size: u64| size.saturating_sub(files_before.get(name).map_or(0, |about| about.0));
    let stored: u64 = files_after.iter().map(|(name, about)| grown(name, about.0)).sum();
    let written_kib = (stored + (daemon.log().len() - log_before) as u64) / 1024;
    let changed = files_after.iter().filter(|(name, about)| files_before.get(*name) != Some(about));
    let changed: Vec<&String> = changed.map(|(name, _)| name).collect();
    let memory_kib = most.memory_kib.saturating_sub(before.memory_kib);
    let processor = most.processor_ticks as f64 / rustix::param::clock_ticks_per_second() as f64 / took.as_secs_f64();
    println!(
        "| {} | {:.1} s | {memory_kib} KiB | {} | {} | {processor:.2} | {written_kib} KiB | {:.0} ms of {} | {:.0} ms of {} | {} |",
        attack.attacker,
        took.as_secs_f64(),
        most.descriptors - before.descriptors,
        most.threads - before.threads,
        honest.turn_max.as_secs_f64() * 1e3,
        honest.turns,
        honest.list_max.as_secs_f64() * 1e3,
        honest.lists,
        changed.iter().map(|name| name.as_str()).collect::<Vec<_>>().join(" "),
    );
    let Limits { memory_kib: memory_max, descriptors, threads, written_kib: written_max } = attack.limits;
    let mut too_much = Vec::new();
    let mut compare = |what: &str, is: u64, most: u64| {
        if is > most {
            too_much.push(format!("{}: {what}: {is}, and {most} at most", attack.attacker));
        }
    };
    compare("memory, KiB", memory_kib, memory_max);
    compare("descriptors", most.descriptors - before.descriptors, descriptors);
    compare("threads", most.threads - before.threads, threads);
    compare("KiB written", written_kib, written_max);
    let secrets = SECRETS.iter().filter(|secret| learned.contains(**secret));
    too_much.extend(secrets.map(|secret| format!("{}: it learned '{secret}': {learned}", attack.attacker)));
    let is_expected = |name: &str| {
        let logs = ["audit.log", "refused.log", "lock"];
        logs.iter().any(|log| name.starts_with(log)) || name.starts_with("lease-") || name.starts_with("count-")
    };
    let others = changed.iter().filter(|name| !is_expected(name));
    too_much.extend(others.map(|name| format!("{}: it changed {name}", attack.attacker)));
    too_much
}

#[test]
fn no_attacker_costs_a_daemon_more_than_its_limit_nor_keeps_an_honest_host_out() {
    if !has("a second user", rustix::process::geteuid().is_root()) {
        return;
    }
    let harness = Harness::new();
    let [lab3, desk, rack, shed] = ["lab3", "desk", "rack", "shed"].map(|name| Host { harness: &harness, name });
    for other in [&desk, &rack, &shed] {
        pair(&lab3, other);
    }
    lab3.ok(&["allow", "desk", "all"]);
    let image = harness.image("image", SIZE);
    let nonsense = TcpListener::bind("127.0.0.1:0").unwrap();
    let text = format!(
        "[plain]\nlisten = ['127.0.0.1:0']\n[secure]\nlisten = ['127.0.0.1:0']\n\
         [[share]]\nwhat = 'disk:{}'\nname = 'vault'\nplace = 'moonshot'\n[[share]]\nwhat = 'zero'\n\
         [[attach]]\ntarget = '{}/disk'\nvia = 'nbd'\n",
        image.display(),
        nonsense.local_addr().unwrap()
    );
    let daemon = lab3.start(&["daemon", "--config", &config(&harness.path("lab3"), &text)]);
    let plain = daemon.wait_for_line("listening on ").split_whitespace().nth(2).unwrap().to_owned();
    let secure = daemon.wait_for_line("for paired hosts").split_whitespace().nth(2).unwrap().to_owned();
    lab3.ok(&["allow", "shed", "all"]);
    shed.ok(&["list", "lab3", "--address", &secure]);
    lab3.ok(&["unpair", "shed"]);
    let socket = harness.path("vault.sock");
    let words = ["attach", "lab3/vault", "--address", &secure, "--via", "nbd", "--socket", socket.to_str().unwrap()];
    let attach = desk.start(&words);
    attach.wait_for_line("attached as ");
    let mut client = Client::connect(&socket);
    let (is_hostile, dialled, is_over) = (AtomicBool::new(false), AtomicU64::new(0), AtomicBool::new(false));
    let scene =
        Scene { harness: &harness, lab3, desk, rack, shed, plain, secure, is_hostile: &is_hostile, dialled: &dialled };
    println!("| attacker | for | memory | descriptors | threads | processors | written | disk | list | files |");
    println!("|---|---|---|---|---|---|---|---|---|---|");
    let too_much: Vec<String> = thread::scope(|s| {
        s.spawn(|| serve_nonsense(&nonsense, &is_hostile, &dialled, &is_over));
        let on_panic = SetOnDrop(&is_over);
        let mut too_much = Vec::new();
        for attack in &ATTACKS {
            if attack.attacker == "paired with rights" {
                scene.lab3.ok(&["allow", "rack", "zero"]);
            }
            too_much.extend(play(&scene, &daemon, &mut client, attack));
        }
        drop(on_panic);
        too_much
    });
    assert!(too_much.is_empty(), "{too_much:#?}\n{}", daemon.log());
}
