//! A disk of a paired host while its link is cut: within a header, within a payload, half-open, for a while and at
//! once.
//!
//! `FARBUS_CUTS` says how many cuts (default 12); `cargo xtask soak` makes 300.

use std::fs::OpenOptions;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use farbus::attach::{Attachment, AttachmentEnd, FileAttachment};
use farbus::broker::SystemAccess;
use farbus::client::{ClientConfig, ImporterClient};
use farbus::importer::disk::OpenedDisk;

use super::harness::{Harness, PATIENCE, Running, has, has_fuse, has_program, wait_until};
use super::trust::{Host, hosts, pair};

/// A proxy between two hosts that cuts their connections.
pub struct Cutter {
    address: SocketAddr,
    inside: Arc<Inside>,
}

struct Inside {
    /// Where connections lead now, and where they led first.
    to: Mutex<SocketAddr>,
    home: SocketAddr,
    /// Both ends of every connection that is open.
    open: Mutex<Vec<TcpStream>>,
    /// No new connection gets through.
    is_down: AtomicBool,
    /// Bytes under way get nowhere, and neither end is told.
    is_frozen: AtomicBool,
    /// Bytes that may still pass before the next cut; `u64::MAX` is no limit.
    allowed: AtomicU64,
    connections: AtomicU64,
    /// Bytes that passed over the latest connection.
    passed: AtomicU64,
    /// How long bytes are under way, in each direction.
    delay: Duration,
}

/// A link counts as in use once this many bytes passed, which is far more than a greeting. A link cut in its greeting
/// is a failed handshake, and an exporter turns away an address that has many of them.
const IN_USE_BYTES: u64 = 32 << 10;

impl Cutter {
    pub fn before(to: SocketAddr) -> Self {
        Self::at_distance(to, Duration::ZERO)
    }

    /// A proxy whose bytes are under way for this time in each direction, however many they are.
    pub fn at_distance(to: SocketAddr, delay: Duration) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let inside = Arc::new(Inside {
            to: Mutex::new(to),
            home: to,
            open: Mutex::default(),
            is_down: AtomicBool::new(false),
            is_frozen: AtomicBool::new(false),
            allowed: AtomicU64::new(u64::MAX),
            connections: AtomicU64::new(0),
            passed: AtomicU64::new(0),
            delay,
        });
        let for_thread = Arc::clone(&inside);
        thread::spawn(move || {
            for connection in listener.incoming().map_while(Result::ok) {
                let inside = Arc::clone(&for_thread);
                if inside.is_down.load(Ordering::Acquire) {
                    continue;
                }
                let to = *inside.to.lock().unwrap();
                let Ok(other) = TcpStream::connect(to) else { continue };
                inside.connections.fetch_add(1, Ordering::AcqRel);
                inside.passed.store(0, Ordering::Release);
                inside.carry(connection, other);
            }
        });
        Self { address, inside }
    }

    /// The address at which the proxy listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Closes every open connection, at both ends.
    pub fn cut(&self) {
        for stream in self.inside.open.lock().unwrap().drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    /// Cuts one open connection, chosen by `at` modulo their number; the others stay.
    fn cut_one(&self, at: u64) {
        let mut open = self.inside.open.lock().unwrap();
        // Skips connections whose ends have already closed.
        let is_open = |both: &[TcpStream]| both.iter().all(|stream| stream.peer_addr().is_ok());
        let there: Vec<usize> = (0..open.len()).step_by(2).filter(|&both| is_open(&open[both..both + 2])).collect();
        if let Some(at) = at.checked_rem(there.len() as u64) {
            let both = there[at as usize];
            open.drain(both..both + 2).for_each(|stream| drop(stream.shutdown(Shutdown::Both)));
        }
    }

    /// Lets this many bytes pass, then cuts every open connection.
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
                let _ = match inside.delay {
                    Duration::ZERO => inside.copy(&from, &to),
                    delay => copy_later(&from, &to, delay),
                };
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
                // waits: between two looks whether the link is frozen
                thread::sleep(Duration::from_millis(5));
            }
            let allowed = self.allowed.load(Ordering::Acquire);
            let pass = count.min(allowed.try_into().unwrap_or(usize::MAX));
            to.write_all(&bytes[..pass])?;
            self.passed.fetch_add(pass as u64, Ordering::AcqRel);
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

/// Copies what arrives, each byte after `delay`.
fn copy_later(from: &TcpStream, mut to: &TcpStream, delay: Duration) -> io::Result<()> {
    let (sender, receiver) = channel::<(Instant, Vec<u8>)>();
    let mut reader = from.try_clone()?;
    let reading = thread::spawn(move || {
        let mut bytes = vec![0; 256 << 10];
        while let Ok(count) = reader.read(&mut bytes)
            && count > 0
            && sender.send((Instant::now() + delay, bytes[..count].to_vec())).is_ok()
        {}
    });
    let copied = receiver.iter().try_for_each(|(due, bytes)| {
        // waits: the link is that long, an argument of the test
        thread::sleep(due.saturating_duration_since(Instant::now()));
        to.write_all(&bytes)
    });
    from.shutdown(Shutdown::Read)?;
    drop(receiver);
    reading.join().expect("it only copies");
    copied
}

fn cuts() -> u64 {
    std::env::var("FARBUS_CUTS").map_or(12, |text| text.parse().expect("a number"))
}

/// The expected content of a block: numbers that say where and when it was written.
fn block(at: u64, round: u64) -> Vec<u8> {
    let word = (at << 32 | round).to_le_bytes();
    word.iter().copied().cycle().take(64 << 10).collect()
}

/// Shares `what` on one host and lets the other reach it through a `Cutter`.
pub fn share_through_a_cutter<'h>(harness: &'h Harness, what: &str) -> ([Host<'h>; 2], Running, Cutter) {
    let [lab3, desk] = hosts(harness);
    pair(&lab3, &desk);
    lab3.ok(&["allow", "desk", "all"]);
    let share = lab3.start(&["share", what, "--listen", "none", "--secure", "127.0.0.1:0"]);
    let line = share.wait_for_line("for paired hosts");
    let cutter = Cutter::before(line.split_whitespace().nth(2).unwrap().parse().unwrap());
    ([lab3, desk], share, cutter)
}

/// Attaches the device through the cutter, with a grace period of `grace` seconds.
pub fn attach_through(desk: &Host<'_>, device: &str, cutter: &Cutter, arguments: &[&str], grace: &str) -> Running {
    let (target, through) = (format!("lab3/{device}"), cutter.address.to_string());
    let all = [&["attach", &*target, "--address", &*through, "--grace", grace], arguments].concat();
    let attach = desk.start(&all);
    attach.wait_for_line("attached");
    attach
}

impl Cutter {
    pub fn links(&self) -> u64 {
        self.inside.connections.load(Ordering::Acquire)
    }

    /// New connections lead to `to` from now on.
    pub fn lead_to(&self, to: SocketAddr) {
        *self.inside.to.lock().unwrap() = to;
    }

    /// Where connections led at first.
    pub fn home(&self) -> SocketAddr {
        self.inside.home
    }

    /// New connections lead where they did at first.
    pub fn lead_home(&self) {
        self.lead_to(self.inside.home);
    }

    /// Lets new connections through, or refuses all of them.
    pub fn let_through(&self, does: bool) {
        self.inside.is_down.store(!does, Ordering::Release);
    }

    /// Stops bytes under way, and new connections, without telling either end; or lets them pass again over new links.
    pub fn freeze(&self, is_frozen: bool) {
        self.let_through(!is_frozen);
        if !is_frozen {
            self.cut();
        }
        self.inside.is_frozen.store(is_frozen, Ordering::Release);
    }

    /// Stops forwarding, as a tunnel whose far half is gone: what arrives is acknowledged and new connections are
    /// taken, and nothing passes in either direction any more.
    pub fn stall(&self) {
        self.inside.is_frozen.store(true, Ordering::Release);
    }

    /// The network is silent for so long: nothing passes, and neither end is told. Then the links are cut.
    pub fn be_silent_for(&self, span: Duration) {
        self.let_through(false);
        self.inside.is_frozen.store(true, Ordering::Release);
        // waits: the fault lasts so long
        thread::sleep(span);
        self.cut();
        self.inside.is_frozen.store(false, Ordering::Release);
        self.let_through(true);
    }

    /// Cuts one link of several again and again, and sometimes all of them, while the other links continue.
    fn cut_singly(&self, cuts: u64, is_over: impl Fn() -> bool) {
        for cut in (0..cuts).take_while(|_| !is_over()) {
            // waits: the fault comes at a moment that is never the same
            thread::sleep(Duration::from_millis(50 + cut * 37 % 200));
            let before = self.links();
            match cut % 6 {
                5 => self.cut(),
                _ => self.cut_one(cut * 7919),
            }
            wait_until(PATIENCE, "another link", || self.links() > before || is_over());
        }
    }

    /// Waits until the device is in use over the latest link.
    pub fn wait_until_in_use(&self, is_over: impl Fn() -> bool) {
        let is_in_use = || self.inside.passed.load(Ordering::Acquire) >= IN_USE_BYTES;
        wait_until(PATIENCE, "a link in use", || is_in_use() || is_over());
    }

    /// Cuts the link in each way in turn, and waits for the next link each time, until `is_over`.
    fn cut_many(&self, cuts: u64, is_over: impl Fn() -> bool) {
        for cut in (0..cuts).take_while(|_| !is_over()) {
            // The device is in use over this link for a moment before it is cut.
            self.wait_until_in_use(&is_over);
            // waits: the fault comes at a moment that is never the same
            thread::sleep(Duration::from_millis(20 + cut * 37 % 100));
            self.cut_in_way(cut % 4, cut, 1, &is_over);
        }
    }

    /// Cuts the open links in one of four ways, and waits until each of `sessions` sessions has another link. The ways:
    /// at once; within the next bytes (one link alone); with no new connection for a while; after a silence. `cut`
    /// varies where.
    pub fn cut_in_way(&self, way: u64, cut: u64, sessions: u64, is_over: impl Fn() -> bool) {
        let before = self.links();
        match way {
            0 => self.cut(),
            // Within the next header or the next payload.
            1 => self.cut_after(1 + cut * 7919 % 70_000),
            2 => {
                self.inside.is_down.store(true, Ordering::Release);
                self.cut();
                // waits: the fault lasts so long
                thread::sleep(Duration::from_millis(300));
                self.inside.is_down.store(false, Ordering::Release);
            }
            _ => {
                self.inside.is_frozen.store(true, Ordering::Release);
                // waits: the fault lasts so long
                thread::sleep(Duration::from_millis(200));
                self.cut();
                self.inside.is_frozen.store(false, Ordering::Release);
            }
        }
        let expected = before + if way == 1 { 1 } else { sessions };
        wait_until(PATIENCE, "another link", || self.links() >= expected || is_over());
    }
}

#[test]
fn disk_as_a_file_loses_no_byte_when_links_are_cut() {
    if !has_fuse() {
        return;
    }
    let harness = Harness::new();
    let [lab3, desk] = hosts(&harness);
    pair(&lab3, &desk);
    lab3.ok(&["allow", "desk", "all"]);
    let image = harness.image("cut.img", 32 << 20);
    let what = format!("disk:{}", image.display());
    let share = lab3.start(&["share", &what, "--listen", "none", "--secure", "127.0.0.1:0"]);
    let line = share.wait_for_line("for paired hosts");
    let cutter = Cutter::before(line.split_whitespace().nth(2).unwrap().parse().unwrap());
    let at = harness.path("mnt");
    let (through, folder) = (cutter.address.to_string(), at.to_str().unwrap());
    let words = ["lab3/disk", "--via", "fuse", "--at", folder, "--address", &through, "--grace", "60"];
    let attach = desk.start(&[&["attach"][..], &words].concat());
    cut_under_load(&cutter, [&lab3, &desk], attach, (&at, &image));
}

#[test]
fn disk_of_an_unpaired_host_survives_cut_links_with_a_grace_period() {
    if !has_fuse() {
        return;
    }
    let harness = Harness::new();
    let [lab3, desk] = hosts(&harness);
    let image = harness.image("cut.img", 32 << 20);
    let share = lab3.start(&["share", &format!("disk:{}", image.display()), "--listen", "127.0.0.1:0"]);
    let line = share.wait_for_line("listening on");
    let cutter = Cutter::before(line.split_whitespace().nth(2).unwrap().parse().unwrap());
    let at = harness.path("mnt");
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
                    // A walk that visits every block, out of order.
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
    let links = || cutter.links();
    cutter.cut_many(cuts(), || worker.is_finished());
    is_done.store(true, Ordering::Release);
    let (last, rounds) = worker.join().expect("not a byte is wrong, and no call failed");
    drop(file);
    println!("{} cuts, {} links, {rounds} rounds of 4 MiB", cuts(), links());

    // An idle link that is cut is replaced as well.
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

/// fio writes at random with many requests under way and reads everything again, over and over, while the link is cut.
fn fio_while_links_are_cut(harness: &Harness, cutter: &Cutter, engine: &[&str]) {
    fio_meanwhile(harness, cutter, engine, |is_over| cutter.cut_many(cuts(), is_over));
}

fn fio_meanwhile(harness: &Harness, cutter: &Cutter, engine: &[&str], cut: impl FnOnce(&dyn Fn() -> bool)) {
    let work = "--name=cut --rw=randwrite --bsrange=512-128k --blockalign=512 --size=8m --iodepth=16 --fsync=50 \
                --verify=crc32c --verify_fatal=1 --verify_state_save=0 --minimal";
    let arguments: Vec<&str> = engine.iter().copied().chain(work.split_whitespace()).collect();
    let is_done = AtomicBool::new(false);
    thread::scope(|s| {
        let worker = s.spawn(|| {
            let mut rounds = 0;
            while !is_done.load(Ordering::Acquire) || rounds == 0 {
                rounds += 1;
                let seed = format!("--randseed={rounds}");
                let mut command = harness.command_of(Path::new("fio"), &arguments);
                let output = command.arg(seed).output().unwrap();
                let (stdout, stderr) =
                    (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
                assert!(output.status.success(), "round {rounds}: {}\n{stdout}{stderr}", output.status);
            }
            rounds
        });
        cut(&|| worker.is_finished());
        is_done.store(true, Ordering::Release);
        let rounds = worker.join().expect("not a byte is wrong, and no call failed");
        println!("{} cuts, {} links, {rounds} rounds of 8 MiB", cuts(), cutter.links());
    });
}

#[test]
fn fio_on_a_block_device_as_a_file_outlives_cut_links() {
    if !has_fuse() || !has("fio", has_program("fio")) {
        return;
    }
    let harness = Harness::new();
    let what = format!("block:{}", harness.image("cut.img", 32 << 20).display());
    let ([_lab3, desk], _share, cutter) = share_through_a_cutter(&harness, &what);
    let at = harness.path("mnt");
    let arguments = ["--via", "fuse", "--at", at.to_str().unwrap()];
    let mut attach = attach_through(&desk, "block", &cutter, &arguments, "60");
    let file = format!("--filename={}", at.join("disk.img").display());
    fio_while_links_are_cut(&harness, &cutter, &[&file, "--ioengine=libaio", "--direct=1"]);
    desk.ok(&["detach"]);
    assert_eq!(attach.wait_for_end(PATIENCE), Some(0), "{}", attach.log());
}

#[test]
fn fio_on_a_block_device_by_nbd_outlives_cut_links() {
    if !has("fio", has_program("fio")) {
        return;
    }
    let harness = Harness::new();
    let what = format!("block:{}", harness.image("cut.img", 32 << 20).display());
    let ([_lab3, desk], _share, cutter) = share_through_a_cutter(&harness, &what);
    let socket = harness.path("far.sock");
    let arguments = ["--via", "nbd", "--socket", socket.to_str().unwrap()];
    let mut attach = attach_through(&desk, "block", &cutter, &arguments, "60");
    let uri = format!("--uri=nbd+unix:///?socket={}", socket.display());
    fio_while_links_are_cut(&harness, &cutter, &["--ioengine=nbd", &uri]);
    desk.ok(&["detach"]);
    assert_eq!(attach.wait_for_end(PATIENCE), Some(0), "{}", attach.log());
}

#[test]
fn fio_on_a_block_device_over_three_links_outlives_the_loss_of_any() {
    if !has("fio", has_program("fio")) {
        return;
    }
    let harness = Harness::new();
    let what = format!("block:{}", harness.image("cut.img", 32 << 20).display());
    let ([lab3, desk], _share, cutter) = share_through_a_cutter(&harness, &what);
    let socket = harness.path("far.sock");
    let arguments = ["--via", "nbd", "--socket", socket.to_str().unwrap(), "--links", "3"];
    let mut attach = attach_through(&desk, "block", &cutter, &arguments, "60");
    assert!(cutter.links() >= 3, "{} links", cutter.links());
    let uri = format!("--uri=nbd+unix:///?socket={}", socket.display());
    fio_meanwhile(&harness, &cutter, &["--ioengine=nbd", &uri], |is_over| cutter.cut_singly(cuts(), is_over));
    attach.assert_logged("a further link was lost");
    assert_eq!(lab3.json(&["status", "--json"])[0]["devices"][0]["state"], "in use");
    desk.ok(&["detach"]);
    assert_eq!(attach.wait_for_end(PATIENCE), Some(0), "{}", attach.log());
}

#[test]
fn several_links_need_a_grace_period_and_are_refused_with_modules() {
    let harness = Harness::new();
    let what = format!("block:{}", harness.image("cut.img", 1 << 20).display());
    let ([_lab3, desk], _share, cutter) = share_through_a_cutter(&harness, &what);
    let (through, socket) = (cutter.address().to_string(), harness.path("far.sock"));
    let words = ["attach", "lab3/block", "--address", &through, "--via", "nbd", "--socket", socket.to_str().unwrap()];
    for (more, advice) in [
        (["--links", "3", "--grace", "0"], "--grace of more than 0"),
        (["--links", "3", "--module", "zstd"], "leave --links or --module out"),
        (["--links", "9", "--grace", "9"], "1..=8"),
    ] {
        let refused = desk.run(&[&words[..], &more].concat());
        assert!(refused.code != Some(0) && refused.stderr.contains(advice), "{refused:?}");
    }
}

/// A disk that is used only as a USB device, as a real one would be; its block device is not used here.
#[test]
fn a_usb_disk_as_a_file_outlives_cut_links() {
    if !has_fuse() {
        return;
    }
    let harness = Harness::new();
    let [lab3, _desk] = hosts(&harness);
    let image = harness.image("cut.img", 8 << 20);
    let share = lab3.start(&["share", &format!("disk:{}", image.display()), "--listen", "127.0.0.1:0"]);
    let line = share.wait_for_line("listening on");
    let cutter = Cutter::before(line.split_whitespace().nth(2).unwrap().parse().unwrap());
    let config = ClientConfig { grace: Some(Duration::from_secs(60)), ..ClientConfig::default() };
    let client = ImporterClient::new(config);
    let target = format!("{}/disk", cutter.address).parse().unwrap();
    let disk = client.open_disk(&target).unwrap();
    let shown = FileAttachment::over(OpenedDisk::usb(disk).unwrap(), &target, &SystemAccess::Own, &harness.path("mnt"))
        .unwrap();
    let (file, handle) = (shown.file().to_owned(), shown.handle());
    let is_done = AtomicBool::new(false);
    thread::scope(|s| {
        let attached = s.spawn(|| Box::new(shown).run());
        let worker = s.spawn(|| {
            let file = OpenOptions::new().read(true).write(true).open(file).unwrap();
            let mut rounds = 0;
            while !is_done.load(Ordering::Acquire) || rounds == 0 {
                rounds += 1;
                for at in 0..32 {
                    file.write_all_at(&block(at, rounds), at * (64 << 10)).expect("no write fails");
                }
                file.sync_all().expect("no flush fails");
            }
            rounds
        });
        cutter.cut_many(cuts(), || worker.is_finished());
        is_done.store(true, Ordering::Release);
        let rounds = worker.join().expect("no call failed");
        handle.end();
        assert!(matches!(attached.join().unwrap(), AttachmentEnd::Requested));
        let stored = std::fs::read(&image).unwrap();
        for at in 0..32 {
            assert!(stored[at as usize * (64 << 10)..][..64 << 10] == block(at, rounds), "block {at}");
        }
        println!("{} cuts, {} links, {rounds} rounds of 2 MiB", cuts(), cutter.links());
    });
}

#[test]
fn a_status_says_that_the_link_is_lost_and_since_when() {
    let harness = Harness::new();
    let what = format!("block:{}", harness.image("cut.img", 1 << 20).display());
    let ([lab3, desk], _share, cutter) = share_through_a_cutter(&harness, &what);
    let socket = harness.path("far.sock");
    let arguments = ["--via", "nbd", "--socket", socket.to_str().unwrap()];
    let mut attach = attach_through(&desk, "block", &cutter, &arguments, "60");
    let device = || desk.json(&["status", "--json"])[0]["devices"][0].clone();
    assert_eq!((&device()["state"], &device()["mode"]), (&"attached".into(), &"exclusive".into()));
    assert!(device()["link_lost_s"].is_null());
    assert_eq!(lab3.json(&["status", "--json"])[0]["devices"][0]["mode"], "exclusive");

    cutter.inside.is_down.store(true, Ordering::Release);
    cutter.cut();
    wait_until(PATIENCE, "it is seen", || device()["state"] == "link lost");
    // waits: the time without a link is told, and has to be more than nothing
    thread::sleep(Duration::from_millis(300));
    let waiting = device();
    assert!(waiting["link_lost_s"].as_f64().is_some_and(|span| (0.2..120.0).contains(&span)), "{waiting}");
    let message = desk.ok(&["status"]);
    assert!(message.contains("link lost"), "{message}");

    cutter.inside.is_down.store(false, Ordering::Release);
    wait_until(PATIENCE, "another link", || device()["state"] == "attached");
    assert!(device()["link_lost_s"].is_null());

    // No request is made, yet every link is replaced, even one that is cut in its greeting.
    for cut in 0..8 {
        let before = cutter.links();
        cutter.cut_after(cut * 300);
        cutter.cut();
        wait_until(PATIENCE, "another link", || cutter.links() > before);
    }
    cutter.cut_after(u64::MAX);
    wait_until(PATIENCE, "a link that stays", || device()["state"] == "attached");
    desk.ok(&["detach"]);
    assert_eq!(attach.wait_for_end(PATIENCE), Some(0), "{}", attach.log());
}

#[test]
fn a_status_shows_each_link_of_a_session_at_both_ends() {
    let harness = Harness::new();
    let what = format!("block:{}", harness.image("cut.img", 1 << 20).display());
    let ([lab3, desk], _share, cutter) = share_through_a_cutter(&harness, &what);
    let socket = harness.path("far.sock");
    let arguments = ["--via", "nbd", "--socket", socket.to_str().unwrap(), "--links", "3"];
    let mut attach = attach_through(&desk, "block", &cutter, &arguments, "60");
    let links = |host: &Host<'_>| host.json(&["status", "--json"])[0]["devices"][0]["links"].clone();
    let both_have = |count: u64| [&lab3, &desk].into_iter().all(|host| links(host)["up"] == count);
    wait_until(PATIENCE, "three links", || both_have(3));
    for host in [&lab3, &desk] {
        let all = links(host);
        let each = all["each"].as_array().unwrap();
        assert_eq!(each.iter().map(|link| link["lane"].as_u64().unwrap()).collect::<Vec<_>>(), [0, 1, 2], "{all}");
        for link in each {
            assert!(link["is_up"] == true && link["round_trip_ms"].as_f64().is_some_and(|ms| ms > 0.0), "{all}");
            assert!(link["peer"].as_str().is_some_and(|peer| peer.contains("127.0.0.1:")), "{all}");
        }
        let [bytes_in, bytes_out] = ["bytes_in", "bytes_out"].map(|name| each[0][name].as_u64().unwrap());
        assert!(bytes_in > 0 && bytes_out > 0, "the device was opened: {all}");
    }
    let message = desk.ok(&["status", "--links"]);
    assert!(message.matches(" up ").count() == 3 && message.contains(&cutter.address.to_string()), "{message}");
    assert!(desk.ok(&["status"]).contains("3 of 3 links are up"));

    let before = links(&desk);
    cutter.inside.is_down.store(true, Ordering::Release);
    cutter.cut();
    wait_until(PATIENCE, "all are lost", || both_have(0));
    let lost = links(&desk);
    assert!(lost["each"].as_array().unwrap().iter().all(|link| link["round_trip_ms"].is_null()), "{lost}");
    assert!(lost["each"][0]["bytes_in"].as_u64() >= before["each"][0]["bytes_in"].as_u64(), "{lost} after {before}");
    let message = desk.ok(&["status", "--links"]);
    assert_eq!(message.matches(" lost ").count(), 3, "{message}");

    cutter.inside.is_down.store(false, Ordering::Release);
    wait_until(PATIENCE, "three links, again", || both_have(3));
    for link in links(&desk)["each"].as_array().unwrap() {
        assert!(link["replaced"].as_u64() >= Some(1), "{link}");
    }
    assert!(before["each"].as_array().unwrap().iter().all(|link| link["replaced"] == 0), "{before}");
    desk.ok(&["detach"]);
    assert_eq!(attach.wait_for_end(PATIENCE), Some(0), "{}", attach.log());
}

#[test]
fn a_link_that_stays_away_ends_the_device_with_the_attribute_network() {
    if !has_fuse() {
        return;
    }
    let harness = Harness::new();
    let [lab3, desk] = hosts(&harness);
    pair(&lab3, &desk);
    lab3.ok(&["allow", "desk", "all"]);
    let image = harness.image("away.img", 1 << 20);
    let what = format!("disk:{}", image.display());
    let share = lab3.start(&["share", &what, "--listen", "none", "--secure", "127.0.0.1:0"]);
    let line = share.wait_for_line("for paired hosts");
    let cutter = Cutter::before(line.split_whitespace().nth(2).unwrap().parse().unwrap());
    let (at, through) = (harness.path("mnt"), cutter.address.to_string());
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
    attach.wait_for_line("\"at\":");
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
