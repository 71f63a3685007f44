//! A real importer of an exporter that keeps to the wire format and to nothing else: it stops reading, answers requests
//! that were never made, announces much, and repeats every kind of message. The importer's memory stays bounded, and it
//! ends with a reason.
//!
//! The exporter is a real one until the device is attached; then a proxy speaks in its name.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use super::harness::{Harness, PATIENCE, Running, wait_until};
use super::kills::{connect, load_over};
use super::kinds::{Says, all_kinds, of_exporter};

/// What an importer may be made to hold beyond what it has: its credit, and the requests of its programs.
const LIMIT_KIB: u64 = 96 << 10;
/// How long the exporter keeps sending.
const SPEAKS_FOR: Duration = Duration::from_millis(500);
/// After this long without bytes, a link is taken to be at the end of a message.
const QUIET: Duration = Duration::from_millis(150);
/// Importers at a time.
const BESIDE: usize = 3;

/// A proxy between an importer and a real exporter, which later speaks in the exporter's name.
struct Evil {
    address: SocketAddr,
    inside: Arc<Inside>,
}

#[derive(Default)]
struct Inside {
    is_evil: AtomicBool,
    /// Bytes that passed so far.
    passed: AtomicU64,
    /// The importer's connections.
    links: Mutex<Vec<TcpStream>>,
    /// The connections to the real exporter.
    onward: Mutex<Vec<TcpStream>>,
}

impl Inside {
    /// Passes on what `from` sends until the proxy turns evil; then it stops reading.
    fn copy(&self, mut from: TcpStream, mut to: TcpStream) {
        let mut bytes = [0; 16 << 10];
        while !self.is_evil.load(Ordering::Acquire) {
            let count = from.read(&mut bytes).unwrap_or(0);
            let is_evil = self.is_evil.load(Ordering::Acquire);
            if count == 0 {
                let _ = to.shutdown(Shutdown::Both);
                return;
            }
            if is_evil || to.write_all(&bytes[..count]).is_err() {
                return;
            }
            self.passed.fetch_add(count as u64, Ordering::AcqRel);
        }
    }
}

impl Evil {
    fn before(exporter: &str) -> Self {
        let (listener, to) = (TcpListener::bind("127.0.0.1:0").unwrap(), exporter.to_owned());
        let (address, inside) = (listener.local_addr().unwrap(), Arc::<Inside>::default());
        let for_thread = Arc::clone(&inside);
        thread::spawn(move || {
            for importer in listener.incoming().map_while(Result::ok) {
                let inside = &for_thread;
                if inside.is_evil.load(Ordering::Acquire) {
                    continue;
                }
                let exporter = TcpStream::connect(&to).unwrap();
                inside.links.lock().unwrap().push(importer.try_clone().unwrap());
                inside.onward.lock().unwrap().push(exporter.try_clone().unwrap());
                let both = [(importer.try_clone().unwrap(), exporter.try_clone().unwrap()), (exporter, importer)];
                for (from, to) in both {
                    let inside = Arc::clone(inside);
                    thread::spawn(move || inside.copy(from, to));
                }
            }
        });
        Self { address, inside }
    }

    /// Waits until all bytes under way have arrived; from then on nothing passes.
    fn turn_evil(&self) {
        let (mut passed, mut since) = (0, Instant::now());
        while since.elapsed() < QUIET {
            let now = self.inside.passed.load(Ordering::Acquire);
            if now != passed {
                (passed, since) = (now, Instant::now());
            }
            // waits: between two looks for an event
            thread::sleep(Duration::from_millis(5));
        }
        self.inside.is_evil.store(true, Ordering::Release);
    }

    /// Sends as much as the importer takes, in the exporter's name.
    fn speak(&self, says: &mut Says) {
        let links = self.inside.links.lock().unwrap();
        let began = Instant::now();
        for turn in 0.. {
            let bytes = says(turn);
            if bytes.is_empty() || began.elapsed() > SPEAKS_FOR {
                break;
            }
            for mut link in links.iter() {
                link.set_write_timeout(Some(SPEAKS_FOR)).unwrap();
                // An earlier connection is closed, and so is the last one if the importer has had enough.
                let _ = link.write_all(&bytes);
            }
        }
        // waits: the device, disk or peer is that slow: its time is an argument of the test
        thread::sleep(SPEAKS_FOR.saturating_sub(began.elapsed()));
    }

    fn hang_up(&self) {
        for streams in [&self.inside.links, &self.inside.onward] {
            streams.lock().unwrap().iter().for_each(|stream| drop(stream.shutdown(Shutdown::Both)));
        }
    }
}

/// Attaches a device, turns its exporter evil while programs use it, and checks that the importer keeps its limits and
/// gives a reason.
fn meet(harness: &Harness, exporter: &str, device: &str, grace: &[&str], name: &str, mut says: Says) {
    let evil = Evil::before(exporter);
    let target = format!("{}/{device}", evil.address);
    let socket = harness.path(&format!("{device}.sock"));
    let words = ["attach", &target, "--via", "nbd", "--socket", socket.to_str().unwrap(), "--wait=100"];
    let mut attach = Running::start(harness.command(&[&words[..], grace].concat()));
    attach.wait_for_line("attached as ");
    let clients = [connect(&socket), connect(&socket)];
    evil.turn_evil();
    let base = attach.peak_kib();
    let clients = clients.map(load_over);
    evil.speak(&mut says);
    let peak = attach.peak_kib_if_running();
    evil.hang_up();
    let code = attach.wait_for_end(PATIENCE);
    clients.into_iter().for_each(|client| client.join().unwrap());
    let grown = peak.map(|peak| peak.saturating_sub(base));
    let message = attach.log();
    let reason = message.lines().find(|line| line.starts_with("farbus: ")).unwrap_or_default();
    println!("{name}: {grown:?} KiB, ended with {code:?}: {}", &reason[..reason.len().min(140)]);
    assert!(grown.is_none_or(|grown| grown < LIMIT_KIB), "{name}: grown by {grown:?} KiB");
    assert!(matches!(code, Some(3..=6)) && !reason.is_empty(), "{name}: {code:?}\n{message}");
}

fn meet_all(grace: &[&str], all: Vec<(String, Box<dyn Fn() -> Says + Send>)>) {
    let harness = Harness::new();
    let images: Vec<String> = (0..BESIDE)
        .map(|number| format!("disk:{}", harness.image(&format!("{number}.img"), 64 << 20).display()))
        .collect();
    let share = harness.share(&images.iter().map(String::as_str).collect::<Vec<_>>());
    let left = Mutex::new(all);
    thread::scope(|s| {
        for number in 0..BESIDE {
            let (harness, exporter, left) = (&harness, share.address.as_str(), &left);
            s.spawn(move || {
                let device = if number == 0 { "disk".to_owned() } else { format!("disk{}", number + 1) };
                loop {
                    let next = left.lock().unwrap().pop();
                    let Some((name, says)) = next else { break };
                    meet(harness, exporter, &device, grace, &name, says());
                }
            });
        }
    });
    let listed = harness.run(&["list", &share.address]);
    assert_eq!(listed.code, Some(0), "{listed:?}");
    wait_until(PATIENCE, "its devices are free", || {
        let status = harness.json(&["status", "--json"]);
        status[0]["devices"].as_array().unwrap().iter().all(|device| device["state"] == "available")
    });
}

#[test]
fn session_importer_bounds_its_memory_against_an_evil_exporter_and_ends() {
    let mut all: Vec<(String, Box<dyn Fn() -> Says + Send>)> = Vec::new();
    for kind in all_kinds() {
        for (at, (name, _)) in of_exporter(kind).into_iter().enumerate() {
            let says = move || of_exporter(kind).swap_remove(at).1;
            all.push((format!("{kind:?} {name}"), Box::new(says)));
        }
    }
    all.push(("says and reads nothing".into(), Box::new(|| Box::new(|_| Vec::new()))));
    meet_all(&["--grace", "1"], all);
}

/// USBIP_RET_SUBMIT (3) or USBIP_RET_UNLINK (4), as Linux's `usbip_protocol.rst` has them, without what follows.
fn answer(command: u32, sequence: u32, length: u32) -> Vec<u8> {
    let words = [command, sequence, 0, 0, 0, 0, length, 0, 0xffff_ffff, 0, 0, 0];
    words.iter().flat_map(|word: &u32| word.to_be_bytes()).collect()
}

#[test]
fn usbip_importer_bounds_its_memory_against_an_evil_exporter_and_ends() {
    /// A sequence number far beyond any that the importer used.
    const NOBODY_ASKED: u32 = 1 << 30;
    type Answers = fn(u32) -> Vec<u8>;
    let all: [(&str, Answers); 6] = [
        ("says and reads nothing", |_| Vec::new()),
        ("answers what nobody asked", |turn| answer(3, NOBODY_ASKED + turn, 0)),
        ("answers what nobody asked with 16 MiB", |turn| match turn {
            0 => answer(3, NOBODY_ASKED, 16 << 20),
            _ => vec![7; 1 << 20],
        }),
        ("answers with 4 GiB", |turn| if turn == 0 { answer(3, 1, u32::MAX) } else { vec![7; 1 << 20] }),
        ("withdraws what nobody asked", |turn| answer(4, NOBODY_ASKED + turn, 0)),
        ("answers what was asked and answered with 16 MiB", |turn| match turn {
            0 => answer(3, 20, 16 << 20),
            _ => vec![7; 1 << 20],
        }),
    ];
    let all = all.into_iter().map(|(name, says)| {
        let says: Box<dyn Fn() -> Says + Send> = Box::new(move || Box::new(says));
        (name.to_owned(), says)
    });
    meet_all(&[], all.collect());
}
