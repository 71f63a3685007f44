//! Hundreds of attachments from one host to another: all work, what they cost at either end, and limits that are said.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Instant;

use farbus::model::Payload;
use farbus_session::redir::usbredir::RedirStatus;
use serde_json::Value;

use super::harness::{Harness, PATIENCE, Running, wait_until};
use super::kills;
use super::redir::Guest;
use super::restart::{Later, config};
use super::trust::{Host, hosts, pair};

/// Bytes of a program's request.
const BLOCK_BYTES: usize = 4096;
/// Memory of a process that only it has, for each device, KiB: 200, and the deep stacks of a program that is not
/// optimized.
const KIB_MAX: f64 = if cfg!(debug_assertions) { 400.0 } else { 200.0 };
/// Memory that only a daemon and its broker have without any device, not optimized, KiB.
const PROGRAM_KIB: f64 = 16384.0;
/// Threads of a daemon and its broker that no device has.
const PROGRAM_THREADS: f64 = 40.0;

/// How many devices are attached: 300, or as many as the soak asks for.
fn count() -> usize {
    std::env::var("FARBUS_ATTACHMENTS").ok().and_then(|count| count.parse().ok()).unwrap_or(300)
}

/// What their links run over: TCP, or what the soak asks for.
fn over() -> String {
    std::env::var("FARBUS_ATTACHED_OVER").unwrap_or_else(|_| "tcp".to_owned())
}

/// Every fourth device is a USB gadget for a virtual machine; the others are disks.
fn is_gadget(number: usize) -> bool {
    number % 4 == 3
}

/// A daemon that shares so many devices for paired hosts, and its address.
fn sharing(lab3: &Host<'_>, count: usize, more: &str) -> (Running, String) {
    let folder = lab3.harness.path("images");
    fs::create_dir_all(&folder).unwrap();
    let mut text = format!("{more}\nplain.listen = []\nsecure.listen = ['127.0.0.1:0']\n");
    for number in 0..count {
        if is_gadget(number) {
            text += &format!("[[share]]\nwhat = 'zero,verify'\nname = 'd{number}'\n");
            continue;
        }
        let image = folder.join(format!("d{number}"));
        fs::File::create(&image).unwrap().set_len(1 << 20).unwrap();
        text += &format!("[[share]]\nwhat = 'block:{}'\nname = 'd{number}'\n", image.display());
    }
    let daemon = lab3.start(&["daemon", "--config", &config(&folder, &text)]);
    let line = daemon.wait_for_line("for paired hosts");
    let address = line.split_whitespace().find(|word| word.starts_with("127.0.0.1:")).unwrap().to_owned();
    (daemon, address)
}

/// A daemon that keeps so many of them attached, over TCP or QUIC.
fn attaching(desk: &Host<'_>, address: &str, count: usize, over: &str) -> Running {
    let port = address.rsplit(':').next().unwrap();
    let folder = desk.harness.path("sockets");
    fs::create_dir_all(&folder).unwrap();
    let mut text = "plain.listen = []\n".to_owned();
    for number in 0..count {
        let via = if is_gadget(number) { "redir" } else { "nbd" };
        text += &format!(
            "[[attach]]\ntarget = 'lab3:{port}/d{number}'\nvia = '{via}'\nover = '{over}'\ngrace = 60\nsocket = '{}'\n",
            socket(desk, number).display()
        );
    }
    desk.start(&["daemon", "--config", &config(&folder, &text)])
}

fn socket(desk: &Host<'_>, number: usize) -> PathBuf {
    desk.harness.path("sockets").join(format!("s{number}"))
}

fn states(desk: &Host<'_>) -> Vec<(String, Value)> {
    let outcome = desk.run(&["status", "--json"]);
    let status: Value = serde_json::from_str(&outcome.stdout).unwrap_or_default();
    let devices = status.as_array().into_iter().flatten().filter_map(|process| process["devices"].as_array());
    devices.flatten().map(|device| (device["state"].as_str().unwrap_or_default().to_owned(), device.clone())).collect()
}

fn attached(desk: &Host<'_>) -> usize {
    states(desk).iter().filter(|(state, _)| state == "attached").count()
}

/// The process and its children: the confined half and its broker.
#[derive(Debug)]
struct Family(Vec<u32>);

/// What a family of processes has.
#[derive(Debug)]
struct Cost {
    resident_kib: u64,
    threads: u64,
    descriptors: usize,
    ticks: u64,
}

impl Family {
    fn of(pid: u32) -> Self {
        let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
        let all = children.split_whitespace().filter_map(|child| child.parse().ok());
        Self([pid].into_iter().chain(all).collect())
    }

    fn cost(&self) -> Cost {
        let mut cost = Cost { resident_kib: 0, threads: 0, descriptors: 0, ticks: 0 };
        for pid in &self.0 {
            let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
            let number = |key: &str| {
                let line = status.lines().find(|line| line.starts_with(key));
                line.and_then(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok()).unwrap_or(0)
            };
            cost.resident_kib += number("RssAnon:");
            cost.threads += number("Threads:");
            cost.descriptors += fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, Iterator::count);
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            let after = stat.rsplit(") ").next().unwrap_or_default();
            let fields: Vec<u64> = after.split(' ').map(|field| field.parse().unwrap_or(0)).collect();
            cost.ticks += fields.get(11).zip(fields.get(12)).map_or(0, |(user, system)| user + system);
        }
        cost
    }
}

/// Resident KiB, threads and descriptors that each of `count` devices costs.
fn each(name: &str, before: &Cost, after: &Cost, count: usize) -> (f64, f64) {
    let count = count as f64;
    let kib = after.resident_kib.saturating_sub(before.resident_kib) as f64 / count;
    let threads = after.threads.saturating_sub(before.threads) as f64 / count;
    let descriptors = after.descriptors.saturating_sub(before.descriptors) as f64 / count;
    println!("{name}: {kib:.0} KiB, {threads:.2} threads, {descriptors:.1} descriptors a device");
    (kib, threads)
}

/// A program of an attached disk.
struct Program(UnixStream);

impl Program {
    fn at(socket: &Path) -> Self {
        let stream = kills::connect(socket);
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Self(stream)
    }

    fn ask(&mut self, command: u16, offset: u64, data: &[u8]) {
        let mut bytes = 0x2560_9513u32.to_be_bytes().to_vec();
        bytes.extend([0, 0]);
        bytes.extend(command.to_be_bytes());
        bytes.extend(offset.to_be_bytes());
        bytes.extend(offset.to_be_bytes());
        bytes.extend((BLOCK_BYTES as u32).to_be_bytes());
        bytes.extend(data);
        self.0.write_all(&bytes).unwrap();
        let mut head = [0; 16];
        self.0.read_exact(&mut head).unwrap();
        assert_eq!(head[4..8], [0; 4], "it is answered without an error");
    }

    /// Writes blocks of this byte, then reads one of another.
    fn write(&mut self, number: u64, byte: u8) {
        self.ask(1, number * BLOCK_BYTES as u64, &[byte; BLOCK_BYTES]);
    }

    fn read(&mut self, number: u64) -> u8 {
        self.ask(0, number * BLOCK_BYTES as u64, &[]);
        let mut block = [0; BLOCK_BYTES];
        self.0.read_exact(&mut block).unwrap();
        assert!(block.iter().all(|byte| *byte == block[0]));
        block[0]
    }
}

/// Restarts a host's daemon. Returns what goes on in its place.
fn restarted(host: &Host<'_>, sessions: usize) -> Later {
    let began = Instant::now();
    let outcome = host.run(&["daemon", "restart", "--json"]);
    let took = began.elapsed();
    assert_eq!(outcome.code, Some(0), "{}: {outcome:?}", host.name);
    let answer: Value = serde_json::from_str(&outcome.stdout).unwrap();
    let kept = answer["kept"].as_array().map_or(0, Vec::len);
    println!("{}: restarted in {took:?}, still for {} ms", host.name, answer["still_ms"]);
    assert_eq!(kept + answer["sessions"].as_u64().unwrap() as usize, sessions, "all go on");
    Later::of(&answer)
}

/// A guest reads what a source gadget sends.
fn read_gadget(guest: &mut Guest<UnixStream>, id: u64) {
    let read = guest.bulk(id, 0x81, 4096, Payload::Empty);
    assert_eq!((read.outcome, read.payload.into_vec()), (RedirStatus::Success, vec![0; 4096]));
}

#[test]
fn hundreds_of_disks_and_gadgets_of_one_host_are_attached_to_another_and_survive_restarts_of_both() {
    attach_and_restart(count(), &over());
}

#[test]
fn devices_over_quic_survive_restarts_of_both_ends() {
    attach_and_restart(40, "quic");
}

fn attach_and_restart(count: usize, over: &str) {
    let harness = Harness::new();
    let [lab3, desk] = hosts(&harness);
    pair(&lab3, &desk);
    lab3.ok(&["allow", "desk", "all"]);
    let began = Instant::now();
    let (exporter, address) = sharing(&lab3, count, "");
    println!("{count} shared in {:?}", began.elapsed());
    let exporters = Family::of(exporter.id());
    let alone = exporters.cost();
    let began = Instant::now();
    let importer = attaching(&desk, &address, count, over);
    wait_until(PATIENCE, "all are attached", || attached(&desk) == count);
    println!("{count} attached in {:?}", began.elapsed());
    let importers = Family::of(importer.id());
    let nothing = Cost { resident_kib: 0, threads: 0, descriptors: 0, ticks: 0 };
    let (exporter_kib, exporter_threads) = each("exporter", &alone, &exporters.cost(), count);
    let (importer_kib, importer_threads) = each("importer, with its program", &nothing, &importers.cost(), count);
    let most = KIB_MAX + PROGRAM_KIB / count as f64;
    assert!(exporter_kib < most && importer_kib < most, "{exporter_kib:.0} and {importer_kib:.0} KiB a device");
    let most = 1.0 + PROGRAM_THREADS / count as f64;
    assert!(exporter_threads <= most && importer_threads <= most, "{exporter_threads} and {importer_threads} a device");

    let idle = [exporters.cost().ticks, importers.cost().ticks];
    let since = Instant::now();
    for host in [&desk, &lab3] {
        let began = Instant::now();
        assert_eq!(host.run(&["status"]).code, Some(0));
        println!("{}: status in {:?}", host.name, began.elapsed());
    }
    let began = Instant::now();
    let listed = desk.ok(&["list", &format!("lab3:{}", address.rsplit(':').next().unwrap())]);
    println!("list in {:?}", began.elapsed());
    assert_eq!(listed.lines().filter(|line| line.contains("in use")).count(), count, "{listed}");
    let ticks = [exporters.cost().ticks - idle[0], importers.cost().ticks - idle[1]];
    println!("ticks of exporter and importer in {:?}, with these questions: {ticks:?}", since.elapsed());

    let (gadgets, disks): (Vec<_>, Vec<_>) = (0..count).step_by(7).partition(|&number| is_gadget(number));
    let mut programs: Vec<Program> = disks.iter().map(|&number| Program::at(&socket(&desk, number))).collect();
    let mut guests: Vec<_> = gadgets.iter().map(|&number| Guest::connect(&socket(&desk, number))).collect();
    for (number, program) in (1..).zip(&mut programs) {
        program.write(0, (number % 251) as u8);
    }
    for guest in &mut guests {
        guest.configure();
        read_gadget(guest, 1);
    }
    let _importer = restarted(&desk, count);
    for (number, program) in (1..).zip(&mut programs) {
        assert_eq!(program.read(0), (number % 251) as u8, "what was written before is there");
    }
    guests.iter_mut().for_each(|guest| read_gadget(guest, 2));
    let _exporter = restarted(&lab3, count);
    guests.iter_mut().for_each(|guest| read_gadget(guest, 3));
    for (number, program) in (1..).zip(&mut programs) {
        assert_eq!(program.read(0), (number % 251) as u8, "what was written before is there");
        program.write(1, (number % 13) as u8);
        assert_eq!(program.read(1), (number % 13) as u8);
    }
    wait_until(PATIENCE, "all are attached again", || attached(&desk) == count);
    println!("all was done in {:?}", began.elapsed());
}

/// How many sockets of this kind (`tcp`, `udp`) the processes of a family have.
fn sockets(family: &Family, kind: &str) -> usize {
    let of = |pid: &u32| {
        let table = fs::read_to_string(format!("/proc/{pid}/net/{kind}")).unwrap();
        let inodes: Vec<String> =
            table.lines().filter_map(|line| Some(line.split_whitespace().nth(9)?.into())).collect();
        let files = fs::read_dir(format!("/proc/{pid}/fd")).unwrap().flatten();
        let named = files.filter_map(|file| Some(fs::read_link(file.path()).ok()?.to_str()?.to_owned()));
        let numbers = named.filter_map(|name| Some(name.strip_prefix("socket:[")?.strip_suffix(']')?.to_owned()));
        numbers.filter(|number| inodes.contains(number)).count()
    };
    family.0.iter().map(of).sum()
}

#[test]
fn devices_of_one_host_over_quic_share_eight_connections_and_each_is_lost_for_itself() {
    let harness = Harness::new();
    let [lab3, desk] = hosts(&harness);
    pair(&lab3, &desk);
    lab3.ok(&["allow", "desk", "all"]);
    let count = 40;
    let (exporter, address) = sharing(&lab3, count, "");
    let importer = attaching(&desk, &address, count, "quic");
    wait_until(PATIENCE, "all are attached", || attached(&desk) == count);
    let importers = Family::of(importer.id());
    assert_eq!((sockets(&importers, "udp"), sockets(&importers, "tcp")), (8, 0), "{importers:?}");
    assert_eq!(sockets(&Family::of(exporter.id()), "udp"), 1);

    let mut programs: Vec<Program> =
        (0..count).filter(|&number| !is_gadget(number)).map(|number| Program::at(&socket(&desk, number))).collect();
    for (number, program) in (1..).zip(&mut programs) {
        program.write(0, number);
    }
    // One is taken away from its user: the others of its connection do not notice.
    lab3.ok(&["release", "d0", "--force"]);
    for (number, program) in (1..).zip(&mut programs).skip(1) {
        assert_eq!(program.read(0), number);
    }
    lab3.ok(&["unpair", "desk"]);
    wait_until(PATIENCE, "an unpaired host has none", || attached(&desk) == 0);
    wait_until(PATIENCE, "and no connection", || sockets(&importers, "udp") == 0);
}

#[test]
fn device_beyond_the_limit_is_refused_with_the_name_of_the_limit_and_the_list_is_still_told() {
    let harness = Harness::new();
    let [lab3, desk] = hosts(&harness);
    pair(&lab3, &desk);
    lab3.ok(&["allow", "desk", "all"]);
    let (_exporter, address) = sharing(&lab3, 5, "peer_devices = 3");
    let _importer = attaching(&desk, &address, 4, "tcp");
    let is_refused = |device: &Value| device["failure"]["limit"] == "peer_devices";
    wait_until(PATIENCE, "three are attached, and one is refused", || {
        let all = states(&desk);
        all.iter().filter(|(state, _)| state == "attached").count() == 3
            && all.iter().any(|(state, device)| state == "waiting" && is_refused(device))
    });
    let states = states(&desk);
    let (_, refused) = states.iter().find(|(_, device)| is_refused(device)).unwrap();
    assert_eq!(refused["failure"]["attribute"], "refused");
    let message = refused["failure"]["message"].as_str().unwrap();
    assert!(message.contains("limit peer_devices: it uses 3 devices here already"), "{message}");
    assert!(message.contains("peer_devices = N"), "it says what to change: {message}");

    let port = address.rsplit(':').next().unwrap();
    let target = format!("lab3:{port}/d4");
    let outcome = desk.run(&["attach", &target, "--via", "nbd", "--json"]);
    assert_eq!(outcome.code, Some(3), "{outcome:?}");
    let failure: Value = serde_json::from_str(&outcome.stdout).unwrap_or_else(|_| panic!("{outcome:?}"));
    assert!(is_refused(&failure), "{failure}");

    let listed = desk.ok(&["list", &format!("lab3:{port}")]);
    assert_eq!(listed.lines().filter(|line| line.contains("in use")).count(), 3, "{listed}");
    desk.ok(&["detach", &format!("lab3:{port}/{}", attached_device(&desk))]);
    wait_until(PATIENCE, "the one that was refused has the place", || {
        self::states(&desk).iter().all(|(_, device)| !is_refused(device))
    });
}

/// A device of the daemon of `desk` that is attached.
fn attached_device(desk: &Host<'_>) -> String {
    let all = states(desk);
    let (_, device) = all.iter().find(|(state, _)| state == "attached").unwrap();
    device["target"].as_str().or(device["name"].as_str()).unwrap().rsplit('/').next().unwrap().to_owned()
}
