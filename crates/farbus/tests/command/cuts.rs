//! A disk of a paired host while the link is cut: mid-header, mid-payload, half-open, for a while and at once.
//!
//! `FARBUS_CUTS` says how many cuts (default 12); `cargo xtask soak` makes 300.

use std::fs::OpenOptions;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use super::harness::{House, PATIENCE, Running, has_fuse, wait_until};
use super::trust::{Host, hosts, pair};

/// Stands between two hosts, and cuts.
struct Cutter {
    address: SocketAddr,
    inside: Arc<Inside>,
}

struct Inside {
    to: SocketAddr,
    /// Both ends of every connection that is open.
    open: Mutex<Vec<TcpStream>>,
    /// Nobody gets through.
    is_down: AtomicBool,
    /// What is on its way gets nowhere, and nobody is told.
    is_frozen: AtomicBool,
    /// Bytes that may yet pass before the next cut; u64::MAX is all.
    allowed: AtomicU64,
    connections: AtomicU64,
}

impl Cutter {
    fn before(to: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let inside = Arc::new(Inside {
            to,
            open: Mutex::default(),
            is_down: AtomicBool::new(false),
            is_frozen: AtomicBool::new(false),
            allowed: AtomicU64::new(u64::MAX),
            connections: AtomicU64::new(0),
        });
        let for_thread = Arc::clone(&inside);
        thread::spawn(move || {
            for connection in listener.incoming().map_while(Result::ok) {
                let inside = Arc::clone(&for_thread);
                if inside.is_down.load(Ordering::Acquire) {
                    continue;
                }
                let Ok(other) = TcpStream::connect(inside.to) else { continue };
                inside.connections.fetch_add(1, Ordering::AcqRel);
                inside.carry(connection, other);
            }
        });
        Self { address, inside }
    }

    /// Cuts everything that is open, with a word to both ends.
    fn cut(&self) {
        for stream in self.inside.open.lock().unwrap().drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    /// So many bytes pass yet, then everything that is open is cut.
    fn cut_after(&self, bytes: u64) {
        self.inside.allowed.store(bytes, Ordering::Release);
    }
}

impl Inside {
    fn carry(self: &Arc<Self>, one: TcpStream, two: TcpStream) {
        for stream in [&one, &two] {
            stream.set_nodelay(true).unwrap();
            self.open.lock().unwrap().push(stream.try_clone().unwrap());
        }
        let both = [(one.try_clone().unwrap(), two.try_clone().unwrap()), (two, one)];
        for (from, to) in both {
            let inside = Arc::clone(self);
            thread::spawn(move || {
                let _ = inside.copy(&from, &to);
                let _ = from.shutdown(Shutdown::Both);
                let _ = to.shutdown(Shutdown::Both);
            });
        }
    }

    fn copy(&self, mut from: &TcpStream, mut to: &TcpStream) -> io::Result<()> {
        let mut bytes = [0; 16 << 10];
        loop {
            let count = from.read(&mut bytes)?;
            while self.is_frozen.load(Ordering::Acquire) {
                thread::sleep(Duration::from_millis(5));
            }
            let allowed = self.allowed.load(Ordering::Acquire);
            let pass = count.min(allowed.try_into().unwrap_or(usize::MAX));
            to.write_all(&bytes[..pass])?;
            if allowed != u64::MAX {
                self.allowed.store(allowed - pass as u64, Ordering::Release);
            }
            if count == 0 || pass < count {
                self.allowed.store(u64::MAX, Ordering::Release);
                return Ok(());
            }
        }
    }
}

fn cuts() -> u64 {
    std::env::var("FARBUS_CUTS").map_or(12, |text| text.parse().expect("a number"))
}

/// What the test holds against the disk: numbers that say where and when they were written.
fn block(at: u64, round: u64) -> Vec<u8> {
    let word = (at << 32 | round).to_le_bytes();
    word.iter().copied().cycle().take(64 << 10).collect()
}

#[test]
fn a_disk_as_a_file_outlives_cut_links_and_not_a_byte_is_wrong() {
    if !has_fuse() {
        return;
    }
    let house = House::new();
    let [lab3, desk] = hosts(&house);
    pair(&lab3, &desk);
    lab3.ok(&["allow", "desk", "all"]);
    let image = house.image("cut.img", 32 << 20);
    let what = format!("disk:{}", image.display());
    let share = lab3.start(&["share", &what, "--listen", "none", "--secure", "127.0.0.1:0"]);
    let line = share.wait_for_line("for paired hosts");
    let cutter = Cutter::before(line.split_whitespace().nth(2).unwrap().parse().unwrap());
    let at = house.path("mnt");
    let (through, folder) = (cutter.address.to_string(), at.to_str().unwrap());
    let words = ["lab3/disk", "--via", "fuse", "--at", folder, "--address", &through, "--grace", "60"];
    let attach = desk.start(&[&["attach"][..], &words].concat());
    cut_under_load(&cutter, [&lab3, &desk], attach, (&at, &image));
}

#[test]
fn so_does_one_of_a_host_that_is_not_paired_if_somebody_says_how_long() {
    if !has_fuse() {
        return;
    }
    let house = House::new();
    let [lab3, desk] = hosts(&house);
    let image = house.image("cut.img", 32 << 20);
    let share = lab3.start(&["share", &format!("disk:{}", image.display()), "--listen", "127.0.0.1:0"]);
    let line = share.wait_for_line("listening on");
    let cutter = Cutter::before(line.split_whitespace().nth(2).unwrap().parse().unwrap());
    let at = house.path("mnt");
    let (target, folder) = (format!("{}/disk", cutter.address), at.to_str().unwrap());
    let attach = desk.start(&["attach", &target, "--via", "fuse", "--at", folder, "--grace", "60"]);
    cut_under_load(&cutter, [&lab3, &desk], attach, (&at, &image));
}

/// A worker writes and reads all the time while its disk's link is cut again and again.
fn cut_under_load(cutter: &Cutter, [lab3, desk]: [&Host; 2], mut attach: Running, (at, image): (&Path, &Path)) {
    attach.wait_for_line("attached as");
    let file = Arc::new(OpenOptions::new().read(true).write(true).open(at.join("disk.img")).unwrap());
    let blocks = 64;
    let is_done = Arc::new(AtomicBool::new(false));
    let worker = {
        let (file, is_done) = (Arc::clone(&file), Arc::clone(&is_done));
        thread::spawn(move || {
            let mut last = vec![None; blocks as usize];
            let mut round = 0;
            while !is_done.load(Ordering::Acquire) || round < 4 {
                round += 1;
                for at in 0..blocks {
                    // A walk that comes to every place, and not in order.
                    let at = at * 101 % blocks;
                    let offset = at * (64 << 10);
                    let mut found = vec![0; 64 << 10];
                    file.read_exact_at(&mut found, offset).expect("no read fails");
                    let expected = last[at as usize].map_or(vec![0; 64 << 10], |round| block(at, round));
                    assert!(found == expected, "block {at} in round {round}");
                    file.write_all_at(&block(at, round), offset).expect("no write fails");
                    last[at as usize] = Some(round);
                }
                file.sync_all().expect("no flush fails");
            }
            (last, round)
        })
    };
    let links = || cutter.inside.connections.load(Ordering::Acquire);
    for cut in 0..cuts() {
        // The device is in use over this link for a moment before it is cut.
        let before = links();
        thread::sleep(Duration::from_millis(20 + cut * 37 % 100));
        match cut % 4 {
            0 => cutter.cut(),
            // Within the next head, or the next data.
            1 => cutter.cut_after(1 + cut * 7919 % 70_000),
            2 => {
                cutter.inside.is_down.store(true, Ordering::Release);
                cutter.cut();
                thread::sleep(Duration::from_millis(300));
                cutter.inside.is_down.store(false, Ordering::Release);
            }
            _ => {
                cutter.inside.is_frozen.store(true, Ordering::Release);
                thread::sleep(Duration::from_millis(200));
                cutter.cut();
                cutter.inside.is_frozen.store(false, Ordering::Release);
            }
        }
        wait_until(PATIENCE, "another link", || links() > before);
    }
    is_done.store(true, Ordering::Release);
    let (last, rounds) = worker.join().expect("not a byte is wrong, and no call failed");
    drop(file);
    println!("{} cuts, {} links, {rounds} rounds of 4 MiB", cuts(), links());

    // The link is cut while nobody asks anything: it is made again all the same.
    let before = links();
    cutter.cut();
    wait_until(PATIENCE, "a link for an idle disk", || links() > before);
    let status = lab3.json(&["status", "--json"]);
    assert_eq!(status[0]["devices"][0]["state"], "in use", "{status}");

    desk.ok(&["detach"]);
    assert_eq!(attach.wait_for_end(PATIENCE), Some(0), "{}", attach.log());
    let is_free = || lab3.json(&["status", "--json"])[0]["devices"][0]["state"] == "available";
    wait_until(PATIENCE, "the claim", is_free);
    let stored = std::fs::read(image).unwrap();
    for (at, round) in (0..).zip(last) {
        let expected = block(at, round.expect("every block was written"));
        assert!(stored[at as usize * (64 << 10)..][..64 << 10] == expected, "block {at} on the exporter's disk");
    }
}

#[test]
fn a_link_that_stays_away_ends_the_device_with_the_attribute_network() {
    if !has_fuse() {
        return;
    }
    let house = House::new();
    let [lab3, desk] = hosts(&house);
    pair(&lab3, &desk);
    lab3.ok(&["allow", "desk", "all"]);
    let image = house.image("away.img", 1 << 20);
    let what = format!("disk:{}", image.display());
    let share = lab3.start(&["share", &what, "--listen", "none", "--secure", "127.0.0.1:0"]);
    let line = share.wait_for_line("for paired hosts");
    let cutter = Cutter::before(line.split_whitespace().nth(2).unwrap().parse().unwrap());
    let (at, through) = (house.path("mnt"), cutter.address.to_string());
    let at = at.to_str().unwrap();
    let mut attach = desk.start(&[
        "attach",
        "lab3/disk",
        "--via",
        "fuse",
        "--at",
        at,
        "--address",
        &through,
        "--grace",
        "2",
        "--json",
    ]);
    attach.wait_for_line("attached as");
    cutter.inside.is_down.store(true, Ordering::Release);
    let cut = Instant::now();
    cutter.cut();
    assert_eq!(attach.wait_for_end(PATIENCE), Some(5), "{}", attach.log());
    let took = cut.elapsed();
    assert!((Duration::from_secs(2)..Duration::from_secs(20)).contains(&took), "{took:?}");
    assert!(attach.log().contains("farbus: network: "), "{}", attach.log());
    let is_free = || lab3.json(&["status", "--json"])[0]["devices"][0]["state"] == "available";
    wait_until(PATIENCE, "the claim", is_free);
}
