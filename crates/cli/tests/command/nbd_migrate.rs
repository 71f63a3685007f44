//! A virtual machine's block disk migrates with it to another host: a client that waits there reads the disk at once,
//! and writes once the disk has arrived; the client of the first host can write no more.

use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use rustix::process::Signal;

use super::cluster::Cluster;
use super::harness::{Harness, PATIENCE, wait_until};
use super::restart::{Later, config};
use super::trust::Host;

pub const SIZE: u64 = 8 << 20;
const BLOCK: usize = 4096;
const READ: u16 = 0;
const WRITE: u16 = 1;
const FLUSH: u16 = 3;
const EIO: u32 = 5;
/// How long to watch for something that must not happen.
const A_WHILE: Duration = Duration::from_millis(300);

/// Behaves like QEMU's block driver: it reads the disk's size when it connects.
pub struct Client {
    stream: UnixStream,
    cookie: u64,
}

/// Connects to a socket that is there or will be; the file appears before the server listens.
fn connect(socket: &Path) -> UnixStream {
    let mut stream = None;
    wait_until(PATIENCE, "the socket listens", || {
        stream = UnixStream::connect(socket).ok();
        stream.is_some()
    });
    stream.expect("connected just now")
}

impl Client {
    pub fn connect(socket: &Path) -> Self {
        let mut stream = connect(socket);
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut greeting = [0; 18];
        stream.read_exact(&mut greeting).unwrap();
        // Fixed newstyle without zeros; the default export, by its empty name.
        stream.write_all(&3u32.to_be_bytes()).unwrap();
        stream.write_all(&[&b"IHAVEOPT"[..], &1u32.to_be_bytes(), &0u32.to_be_bytes()].concat()).unwrap();
        let mut answer = [0; 10];
        stream.read_exact(&mut answer).unwrap();
        assert_eq!(u64::from_be_bytes(answer[..8].try_into().unwrap()), SIZE);
        assert_eq!(answer[9] & 2, 0, "it can be written");
        Self { stream, cookie: 0 }
    }

    fn ask(&mut self, command: u16, offset: usize, length: usize, data: &[u8]) -> u64 {
        self.try_ask(command, offset, length, data).unwrap()
    }

    fn try_ask(&mut self, command: u16, offset: usize, length: usize, data: &[u8]) -> io::Result<u64> {
        self.cookie += 1;
        let mut bytes = 0x2560_9513u32.to_be_bytes().to_vec();
        bytes.extend([0, 0]);
        bytes.extend(command.to_be_bytes());
        bytes.extend(self.cookie.to_be_bytes());
        bytes.extend((offset as u64).to_be_bytes());
        bytes.extend((length as u32).to_be_bytes());
        bytes.extend(data);
        self.stream.write_all(&bytes)?;
        Ok(self.cookie)
    }

    /// The next answer: its request, its error, and `length` bytes if there is no error.
    pub fn hear(&mut self, length: usize) -> io::Result<(u64, u32, Vec<u8>)> {
        let mut head = [0; 16];
        self.stream.read_exact(&mut head)?;
        assert_eq!(head[..4], 0x6744_6698u32.to_be_bytes());
        let error = u32::from_be_bytes(head[4..8].try_into().unwrap());
        let mut data = vec![0; if error == 0 { length } else { 0 }];
        self.stream.read_exact(&mut data)?;
        Ok((u64::from_be_bytes(head[8..].try_into().unwrap()), error, data))
    }

    pub fn write(&mut self, offset: usize, byte: u8) {
        self.try_write(offset, byte).unwrap();
    }

    /// Writes a block; an error if the server has gone.
    pub fn try_write(&mut self, offset: usize, byte: u8) -> io::Result<()> {
        let id = self.try_ask(WRITE, offset, BLOCK, &[byte; BLOCK])?;
        assert_eq!(self.hear(0)?, (id, 0, Vec::new()));
        Ok(())
    }

    /// Writes a block. `false` if there was no answer yet when the disk was held still.
    pub fn write_unless(&mut self, is_held: impl Fn() -> bool, offset: usize, byte: u8) -> bool {
        let id = self.ask(WRITE, offset, BLOCK, &[byte; BLOCK]);
        self.stream.set_read_timeout(Some(A_WHILE)).unwrap();
        loop {
            let was_held = is_held();
            match self.hear(0) {
                Ok(answer) => {
                    assert_eq!(answer, (id, 0, Vec::new()));
                    return true;
                }
                Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                    if was_held {
                        return false;
                    }
                }
                Err(error) => panic!("{error}"),
            }
        }
    }

    /// The bytes of a block.
    pub fn read(&mut self, offset: usize) -> Vec<u8> {
        let id = self.ask(READ, offset, BLOCK, &[]);
        let (answered, error, data) = self.hear(BLOCK).unwrap();
        assert_eq!((answered, error), (id, 0));
        data
    }

    pub fn flush(&mut self) {
        self.try_flush().unwrap();
    }

    /// Flushes; an error if the server has gone.
    pub fn try_flush(&mut self) -> io::Result<()> {
        let id = self.try_ask(FLUSH, 0, 0, &[])?;
        assert_eq!(self.hear(0)?, (id, 0, Vec::new()));
        Ok(())
    }

    pub fn assert_reads(&mut self, offset: usize, byte: u8) {
        let id = self.ask(READ, offset, BLOCK, &[]);
        assert!(self.hear(BLOCK).unwrap() == (id, 0, vec![byte; BLOCK]), "{byte} at {offset}");
    }

    /// Asserts that no answer comes for a while.
    fn assert_silence(&mut self) {
        self.stream.set_read_timeout(Some(A_WHILE)).unwrap();
        let heard = self.hear(0).unwrap_err();
        assert!(matches!(heard.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut), "{heard:?}");
        self.stream.set_read_timeout(Some(PATIENCE)).unwrap();
    }
}

#[test]
fn nbd_disk_migrates_and_back_and_the_successor_reads_it_beforehand() {
    let harness = Harness::new();
    let image = harness.image("image", SIZE);
    let cluster = Cluster::new(&harness, &[&format!("disk:{}", image.display())]);
    let (mut attach, socket) = cluster.lend(0, "disk", "nbd", &[]);
    let mut here = Client::connect(&socket);
    here.write(0, 1);
    for (round, to) in [1, 0, 1].into_iter().enumerate() {
        let (from, byte) = (&cluster.hosts[1 - to], 10 * (round as u8 + 1));
        let (successor, socket) = cluster.lend(to, "disk", "nbd", &["--inherit"]);
        let mut there = Client::connect(&socket);
        there.assert_reads(0, 1);
        // A write here is read there; a write there waits, and so does every request behind it except reads.
        here.write(BLOCK, byte);
        there.assert_reads(BLOCK, byte);
        let written = there.ask(WRITE, 2 * BLOCK, BLOCK, &[byte + 1; BLOCK]);
        let flushed = there.ask(FLUSH, 0, 0, &[]);
        there.assert_reads(BLOCK, byte);
        there.assert_silence();
        let onwards = cluster.hosts[to].run(&["migrate", "lab3/disk", "--to", from.name]);
        assert!(onwards.code == Some(3) && onwards.stderr.contains("yet to be handed over"), "{onwards:?}");

        let message = from.ok(&["migrate", "lab3/disk", "--to", cluster.hosts[to].name]);
        assert!(message.contains("held still"), "{message}");
        let twice = from.run(&["migrate", "lab3/disk", "--to", cluster.hosts[to].name]);
        assert!(twice.code == Some(3) && twice.stderr.contains("handed over already"), "{twice:?}");
        let late = here.ask(WRITE, 0, BLOCK, &[99; BLOCK]);
        here.assert_silence();
        assert_eq!(late, here.cookie);
        there.assert_reads(0, 1);
        there.assert_silence();
        drop(here);
        assert_eq!(there.hear(0).unwrap(), (written, 0, Vec::new()));
        assert_eq!(there.hear(0).unwrap(), (flushed, 0, Vec::new()));
        there.assert_reads(2 * BLOCK, byte + 1);
        there.assert_reads(0, 1);
        assert_eq!(fs::read(&image).unwrap()[2 * BLOCK], byte + 1);
        assert_eq!(attach.wait_for_end(PATIENCE), Some(0), "{}", attach.log());
        attach.wait_for_line("handed over");
        (here, attach) = (there, successor);
    }
    let history = cluster.exporter.json(&["status", "--json"])[0]["devices"][0]["history"].clone();
    assert_eq!(
        (&history[0]["ended"], &history[2]["ended"]),
        (&"handed over".into(), &"handed over".into()),
        "{history}"
    );
    here.flush();
    drop(here);
    cluster.hosts[1].ok(&["detach"]);
    assert_eq!(attach.wait_for_end(PATIENCE), Some(0));
    let is_free = || cluster.exporter.json(&["status", "--json"])[0]["devices"][0]["state"] == "available";
    wait_until(PATIENCE, "it is given back", is_free);
}

#[test]
fn nbd_client_continues_when_its_disk_stays_or_its_successor_never_comes() {
    let harness = Harness::new();
    let image = harness.image("image", SIZE);
    let cluster = Cluster::new(&harness, &[&format!("disk:{}", image.display())]);
    let (attach, socket) = cluster.lend(0, "disk", "nbd", &[]);
    let desk = &cluster.hosts[0];
    let mut client = Client::connect(&socket);
    // The migration failed before the disk left; a request made meanwhile is answered.
    desk.ok(&["migrate", "disk", "--to", "rack"]);
    let id = client.ask(WRITE, 0, BLOCK, &[7; BLOCK]);
    client.assert_silence();
    desk.ok(&["resume", "disk"]);
    assert_eq!(client.hear(0).unwrap(), (id, 0, Vec::new()));
    // Held and resumed, without a migration.
    desk.ok(&["hold", "disk"]);
    let id = client.ask(READ, 0, BLOCK, &[]);
    client.assert_silence();
    desk.ok(&["resume", "disk"]);
    assert!(client.hear(BLOCK).unwrap() == (id, 0, vec![7; BLOCK]));
    // The disk left, and the successor never comes: a client that connects here meanwhile waits, and continues.
    desk.ok(&["migrate", "disk", "--to", "rack"]);
    drop(client);
    attach.assert_logged("goes to its successor");
    let mut client = Client::connect(&socket);
    client.assert_reads(0, 7);
    attach.assert_logged("nobody came for the disk");
    client.write(0, 8);
    // The disk can still migrate afterwards.
    let (_successor, there) = cluster.lend(1, "disk", "nbd", &["--inherit"]);
    let mut there = Client::connect(&there);
    desk.ok(&["migrate", "disk", "--to", "rack"]);
    drop(client);
    there.write(0, 9);
    there.assert_reads(0, 9);
}

/// What the status of a host says of its attachment of this device.
fn attachment(host: &Host<'_>, name: &str) -> serde_json::Value {
    let all = host.json(&["status", "--json"]);
    let mut devices = all.as_array().unwrap().iter().flat_map(|process| process["devices"].as_array().unwrap());
    let found = devices.find(|device| device["name"] == name && device["bus_id"].is_null());
    found.unwrap_or_else(|| panic!("no {name} in {all}")).clone()
}

#[test]
fn disk_is_held_for_the_shorter_limit_of_both_ends_and_then_goes_on_where_it_was() {
    let harness = Harness::new();
    let images = ["a", "b"].map(|name| format!("disk:{},name={name}", harness.image(name, SIZE).display()));
    let cluster = Cluster::new(&harness, &[&images[0], &images[1], "--hold", "2"]);
    let desk = &cluster.hosts[0];
    for (name, own, both_ms) in [("a", "25", 2000), ("b", "1", 1000)] {
        let (attach, socket) = cluster.lend(0, name, "nbd", &["--hold", own]);
        let mut client = Client::connect(&socket);
        client.write(0, 1);
        assert_eq!(attachment(desk, name)["hold_ms"], both_ms, "{name}");
        let answer = desk.json(&["migrate", name, "--to", "rack", "--json"]);
        assert_eq!((&answer["hold_ms"], &answer["machine"]), (&both_ms.into(), &true.into()), "{answer}");
        // Its client does not leave.
        attach.assert_logged("have not left: it stays here");
        client.write(0, 2);
        // The client has left, and nobody comes.
        drop(client);
        desk.ok(&["migrate", name, "--to", "rack"]);
        attach.assert_logged("nobody came for the disk");
        Client::connect(&socket).assert_reads(0, 2);
    }
    for (words, why) in [(["--hold", "0"], "1 to 120 s"), (["--hold", "26"], "a disk is held for 25 s at most")] {
        let words = [&["attach", "lab3/a", "--address", &cluster.address, "--via", "nbd"][..], &words].concat();
        let refused = desk.run(&words);
        assert!(refused.code != Some(0) && refused.stderr.contains(why), "{refused:?}");
    }
    let refused = cluster.exporter.run(&["share", &images[0], "--hold", "121"]);
    assert!(refused.code == Some(2) && refused.stderr.contains("1 to 120 s"), "{refused:?}");
}

#[test]
fn discarded_disk_waits_for_nobody_and_its_successor_has_what_was_answered() {
    let harness = Harness::new();
    let image = harness.image("image", SIZE);
    let cluster = Cluster::new(&harness, &[&format!("disk:{}", image.display())]);
    let [desk, rack] = &cluster.hosts;
    let (mut attach, socket) = cluster.lend(0, "disk", "nbd", &[]);
    let mut client = Client::connect(&socket);
    client.write(0, 7);
    // Its client would be waited for, and so would a request that it makes while the disk is held.
    desk.ok(&["hold", "disk"]);
    let _ = client.ask(WRITE, BLOCK, BLOCK, &[8; BLOCK]);
    client.assert_silence();
    for words in [["--discard", "--unmount"], ["--discard", "--with-machine"]] {
        let refused = desk.run(&[&["migrate", "disk", "--to", "rack"][..], &words].concat());
        assert_eq!(refused.code, Some(2), "{refused:?}");
    }
    let message = desk.ok(&["migrate", "disk", "--to", "rack", "--discard"]);
    for part in ["thrown away: 0 requests under way", "NBD clients that lost it: 1", "waits for rack, 20 s"] {
        assert!(message.contains(part), "{part}: {message}");
    }
    assert!(client.hear(0).is_err(), "it is hung up on");
    assert_eq!(attach.wait_for_end(PATIENCE), Some(0), "{}", attach.log());
    attach.wait_for_line("handed over");
    let device = cluster.exporter.json(&["status", "--json"])[0]["devices"][0].clone();
    assert_eq!(device["successor"], "rack", "{device}");
    assert!(device["successor_left_ms"].as_u64().is_some_and(|ms| ms <= 20_000), "{device}");
    let taken = desk.run(&["attach", "lab3/disk", "--address", &cluster.address, "--via", "nbd"]);
    assert_eq!(taken.code, Some(3), "it is for rack alone: {taken:?}");
    let (_successor, there) = cluster.lend(1, "disk", "nbd", &[]);
    let mut there = Client::connect(&there);
    there.assert_reads(0, 7);
    there.assert_reads(BLOCK, 0);
    let answer = rack.json(&["migrate", "disk", "--to", "desk", "--discard", "--json"]);
    assert_eq!(answer["discarded"], serde_json::json!({ "requests": 0, "unwritten_bytes": 0 }), "{answer}");
}

#[test]
fn several_disks_migrate_all_or_none() {
    let harness = Harness::new();
    let names = ["a", "b", "c"];
    let images = names.map(|name| format!("disk:{},name={name}", harness.image(name, SIZE).display()));
    let cluster = Cluster::new(&harness, &images.each_ref().map(String::as_str));
    let desk = &cluster.hosts[0];
    // One goes at once, one waits for its client, and of one a request does not come to its end.
    let (mut idle, _) = cluster.lend(0, "a", "nbd", &[]);
    let (mut busy, socket) = cluster.lend(0, "b", "nbd", &[]);
    let mut client = Client::connect(&socket);
    let (_stuck, stuck) = cluster.lend(0, "c", "nbd", &["--module", "pause"]);
    let mut stuck = Client::connect(&stuck);
    desk.ok(&["module", "pause", "c"]);
    let id = stuck.ask(WRITE, 0, BLOCK, &[9; BLOCK]);
    let migrate = |names: &[&str], more: &[&str]| desk.run(&[&["migrate"], names, &["--to", "rack"], more].concat());
    let mut assert_none = |what: &str| {
        for name in names {
            wait_until(PATIENCE, &format!("{what}: {name} goes on"), || attachment(desk, name)["state"] == "attached");
        }
        let shared = cluster.exporter.json(&["status", "--json"])[0]["devices"].clone();
        assert!(shared.as_array().unwrap().iter().all(|device| device["successor"].is_null()), "{what}: {shared}");
        client.write(0, 1);
    };
    let refused = migrate(&["a", "b", "c"], &[]);
    assert!(refused.code == Some(3) && refused.stderr.contains("does not come to its end"), "{refused:?}");
    assert!(refused.stderr.contains("none of them moves") && !refused.stderr.contains("gone"), "{refused:?}");
    assert_none("a request does not end");
    let refused = migrate(&["a", "b", "nothing"], &[]);
    assert!(refused.code == Some(4) && refused.stderr.contains("none of them moves"), "{refused:?}");
    assert_none("one is not attached");
    let refused = migrate(&["b", "a"], &["--with-machine"]);
    assert!(refused.code == Some(3) && refused.stderr.contains("nobody uses it"), "{refused:?}");
    assert_none("one has no machine");
    assert!(migrate(&["a", "b"], &["--discard"]).stderr.contains("one device at a time"));
    assert!(migrate(&["a", "a"], &[]).stderr.contains("named twice"));
    assert_none("it is asked wrongly");
    desk.ok(&["module", "resume", "c"]);
    assert_eq!(stuck.hear(0).unwrap(), (id, 0, Vec::new()), "what did not end was not lost");

    let answer = desk.json(&["migrate", "a", "b", "--to", "rack", "--json"]);
    let machines = [0, 1].map(|at| answer["devices"][at]["machine"].clone());
    assert_eq!(machines, [false, true].map(serde_json::Value::from), "{answer}");
    drop(client);
    for name in ["a", "b"] {
        let (_there, socket) = cluster.lend(1, name, "nbd", &["--wait=20"]);
        Client::connect(&socket).assert_reads(0, u8::from(name == "b"));
    }
    assert_eq!((idle.wait_for_end(PATIENCE), busy.wait_for_end(PATIENCE)), (Some(0), Some(0)));
}

#[test]
fn disk_that_follows_is_written_until_its_client_leaves_and_then_by_the_client_elsewhere() {
    let harness = Harness::new();
    let image = harness.image("image", SIZE);
    let cluster = Cluster::new(&harness, &[&format!("disk:{}", image.display())]);
    let (mut attach, socket) = cluster.lend(0, "disk", "nbd", &[]);
    let desk = &cluster.hosts[0];
    let state = || {
        let all = desk.json(&["status", "--json"]);
        let mut devices = all.as_array().unwrap().iter().flat_map(|process| process["devices"].as_array().unwrap());
        let disk = devices.find(|device| device["name"] == "disk" && device["bus_id"].is_null()).unwrap();
        (disk["state"].clone(), disk["processes"].clone())
    };
    let follow = || desk.run(&["migrate", "disk", "--to", "rack", "--with-machine"]);
    let refused = follow();
    assert!(refused.code == Some(3) && refused.stderr.contains("nobody uses it"), "{refused:?}");
    let mut here = Client::connect(&socket);
    assert_eq!(follow().code, Some(0));
    assert_eq!(state(), ("following".into(), serde_json::json!([std::process::id()])));
    here.write(0, 1);
    // The machine stays once, and is followed again.
    desk.ok(&["resume", "disk"]);
    assert_eq!(state().0, "attached");
    assert_eq!(follow().code, Some(0));
    let refused = follow();
    assert!(refused.code == Some(3) && refused.stderr.contains("follows its virtual machine"), "{refused:?}");
    let (_successor, there) = cluster.lend(1, "disk", "nbd", &["--inherit"]);
    let mut there = Client::connect(&there);
    let written = there.ask(WRITE, BLOCK, BLOCK, &[3; BLOCK]);
    there.assert_silence();
    here.write(0, 2);
    here.assert_reads(0, 2);
    // Its machine has stopped, and its process is still connected.
    assert_eq!(cluster.depart(0, &attach, "disk"), serde_json::json!({ "ok": null }));
    assert!(here.hear(0).is_err(), "it is hung up on");
    assert_eq!(there.hear(0).unwrap(), (written, 0, Vec::new()));
    there.assert_reads(0, 2);
    there.assert_reads(BLOCK, 3);
    assert_eq!(attach.wait_for_end(PATIENCE), Some(0), "{}", attach.log());
    attach.wait_for_line("handed over");
}

#[test]
fn successor_that_waits_in_vain_ends_with_a_reason_and_its_writes_fail() {
    let harness = Harness::new();
    let image = harness.image("image", SIZE);
    let mut cluster = Cluster::new(&harness, &[&format!("disk:{}", image.display())]);
    let (_attach, socket) = cluster.lend(0, "disk", "nbd", &[]);
    let mut here = Client::connect(&socket);
    here.write(0, 1);
    let (mut successor, socket) = cluster.lend(1, "disk", "nbd", &["--inherit"]);
    let mut there = Client::connect(&socket);
    let written = there.ask(WRITE, 0, BLOCK, &[2; BLOCK]);
    there.assert_reads(0, 1);
    // A host that loses its permission can no longer read the disk.
    cluster.exporter.ok(&["forbid", "rack", "all"]);
    assert_eq!(there.hear(0).unwrap(), (written, EIO, Vec::new()));
    assert_eq!(successor.wait_for_end(PATIENCE), Some(3), "{}", successor.log());
    successor.assert_logged("not shared with you any more");
    here.assert_reads(0, 1);
    // The same holds when the exporter ends while the successor waits.
    cluster.exporter.ok(&["allow", "rack", "all"]);
    let (mut successor, _socket) = cluster.lend(1, "disk", "nbd", &["--inherit", "--grace", "1"]);
    cluster.share.signal(Signal::TERM);
    assert_eq!(cluster.share.wait_for_end(PATIENCE), Some(0));
    let code = successor.wait_for_end(PATIENCE);
    assert!(matches!(code, Some(3..=5)), "{code:?}: {}", successor.log());
}

#[test]
fn nbd_attach_with_inherit_says_why_a_device_cannot_be_inherited() {
    let harness = Harness::new();
    let image = harness.image("image", SIZE);
    let scratch = format!("disk:{},scratch", image.display());
    let cluster = Cluster::new(&harness, &["keyboard", &scratch]);
    let rack = &cluster.hosts[1];
    let socket = harness.path("x.sock");
    let inherit = |device: &str, more: &[&str]| {
        let target = format!("lab3/{device}");
        let words = ["attach", &target, "--address", &cluster.address, "--via", "nbd", "--inherit", "--socket"];
        rack.run(&[&words[..], &[socket.to_str().unwrap()], more].concat())
    };
    let outcome = inherit("keyboard", &[]);
    assert!(outcome.code == Some(3) && outcome.stderr.contains("no block device"), "{outcome:?}");
    let outcome = inherit("disk", &[]);
    assert!(outcome.code == Some(3) && outcome.stderr.contains("nobody can hand it over"), "{outcome:?}");
    let outcome = inherit("nothing", &[]);
    assert_eq!(outcome.code, Some(4), "{outcome:?}");
    let outcome = inherit("disk", &["--mode", "read"]);
    assert!(outcome.code == Some(1) && outcome.stderr.contains("--mode read"), "{outcome:?}");
    let outcome = inherit("disk", &["--grace", "0"]);
    assert!(outcome.code == Some(1) && outcome.stderr.contains("paired host"), "{outcome:?}");
}

#[test]
fn a_daemon_is_not_replaced_while_a_disk_is_on_its_way() {
    let harness = Harness::new();
    let image = harness.image("image", SIZE);
    let cluster = Cluster::new(&harness, &[&format!("disk:{}", image.display())]);
    let desk = &cluster.hosts[0];
    desk.ok(&["list", "lab3", "--address", &cluster.address]);
    let socket = harness.path("far.sock");
    let attach = format!("[[attach]]\ntarget='lab3/disk'\nvia='nbd'\nsocket='{}'", socket.display());
    let file = config(&harness.path("tmp"), &format!("plain.listen = ['127.0.0.1:0']\n{attach}"));
    let daemon = desk.start(&["daemon", "--config", &file]);
    daemon.wait_for_line("listening on");
    wait_until(PATIENCE, "it is attached", || socket.exists());
    let mut client = Client::connect(&socket);
    client.write(0, 5);
    desk.ok(&["migrate", "disk", "--to", "rack"]);
    let refused = desk.run(&["daemon", "restart"]);
    assert!(refused.code == Some(3) && refused.stderr.contains("try again"), "{refused:?}");
    let id = client.ask(READ, 0, BLOCK, &[]);
    client.assert_silence();
    desk.ok(&["resume", "disk"]);
    assert!(client.hear(BLOCK).unwrap() == (id, 0, vec![5; BLOCK]), "and nothing was lost by that");
    let _later = Later::of(&desk.json(&["daemon", "restart", "--json"]));
    client.assert_reads(0, 5);
}
