//! An exporter of one release and an importer of the other.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use farbus::client;
use farbus::model::{EpAddr, SetupPacket};
use serde_json::Value;

use super::harness::{Harness, PATIENCE, Running, has, has_fuse, has_program, wait_until};
use super::hosts::{DIRECTIONS, Host, Previous, This, end, has_previous, noise, pair, run_fio};

const MIB: usize = 1 << 20;

/// How an importer reaches its exporter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// Plain USB/IP, as with any importer.
    Usbip,
    /// farbus's own protocol without keys.
    Native,
    /// farbus's own protocol with a paired host, over TLS.
    Paired,
}

const WAYS: [Way; 3] = [Way::Usbip, Way::Native, Way::Paired];

/// An exporter of one release that offers a set of devices to an importer of the other, by one way.
struct Meeting<'h> {
    exporter: Host<'h>,
    importer: Host<'h>,
    way: Way,
    _share: super::harness::Running,
    address: String,
}

impl<'h> Meeting<'h> {
    fn new(
        harness: &'h Harness,
        (from, to): (super::hosts::Release, super::hosts::Release),
        way: Way,
        what: &[&str],
    ) -> Self {
        let (exporter, importer) = (Host::new(harness, "lab3", from), Host::new(harness, "desk", to));
        let (share, address) = match way {
            Way::Paired => {
                pair(&exporter, &importer);
                exporter.ok(&["allow", "desk", "all"]);
                exporter.share_secure(what, "127.0.0.1:0")
            }
            _ => exporter.share(what),
        };
        Self { exporter, importer, way, _share: share, address }
    }

    fn target(&self, device: &str) -> String {
        match self.way {
            Way::Paired => format!("lab3/{device}"),
            _ => format!("{}/{device}", self.address),
        }
    }

    /// The arguments with which `farbus attach` reaches the exporter.
    fn how(&self) -> Vec<&str> {
        match self.way {
            Way::Usbip => vec!["--grace", "0"],
            Way::Native => vec!["--grace", "20"],
            Way::Paired => vec!["--address", &self.address],
        }
    }

    /// Attaches a disk as a file, writes and reads all of it, and detaches.
    fn write_and_read(&self, device: &str, more: &[&str], written: &[u8]) {
        let at = self.importer.harness.path("at");
        let target = self.target(device);
        let words = ["attach", &target, "--via", "fuse", "--at", at.to_str().unwrap()];
        let attach = self.importer.start(&[&words[..], &self.how(), more].concat());
        attach.wait_for_line("attached as ");
        let file = File::options().read(true).write(true).open(at.join("disk.img")).unwrap();
        file.write_all_at(written, 0).unwrap();
        file.sync_all().unwrap();
        let mut found = vec![0; written.len()];
        file.read_exact_at(&mut found, 0).unwrap();
        assert!(found == written, "{:?} {device} {more:?}", self.way);
        drop(file);
        end(attach);
    }
}

#[test]
fn disk_that_the_other_release_shares_keeps_what_is_written() {
    if !has_previous() || !has_fuse() || !has("fio", has_program("fio")) {
        return;
    }
    for (round, (direction, way)) in
        DIRECTIONS.iter().flat_map(|direction| WAYS.map(|way| (*direction, way))).enumerate()
    {
        println!("{direction:?} {way:?}");
        let harness = Harness::new();
        let images = ["usb", "block"].map(|name| harness.image(name, 4 << 20));
        let [usb, block] = images.each_ref().map(|image| image.display().to_string());
        let meeting = Meeting::new(&harness, direction, way, &[&format!("disk:{usb}"), &format!("block:{block}")]);
        for (device, image) in [("disk", &images[0]), ("block", &images[1])] {
            let written = noise(round as u64, 2 * MIB + 512);
            meeting.write_and_read(device, &[], &written);
            assert!(fs::read(image).unwrap()[..written.len()] == written, "{direction:?} {way:?} {device}");
            meeting.write_and_read(device, &["--cache", "writeback"], &written[1024..]);
        }
        let socket = harness.path("nbd.sock");
        let target = meeting.target("disk");
        let words = ["attach", &target, "--via", "nbd", "--socket", socket.to_str().unwrap()];
        let attach = meeting.importer.start(&[&words[..], &meeting.how()].concat());
        wait_until(PATIENCE, "programs may connect", || socket.exists());
        run_fio(&harness, &["--ioengine=nbd", &format!("--uri=nbd+unix:///?socket={}", socket.display())]);
        end(attach);
    }
}

#[test]
fn disk_that_the_other_release_shares_is_used_through_modules_and_over_several_links() {
    if !has_previous() || !has_fuse() {
        return;
    }
    for direction in DIRECTIONS {
        let harness = Harness::new();
        let meeting = Meeting::new(&harness, direction, Way::Paired, &["memory:4M"]);
        let written = vec![7; 2 * MIB];
        meeting.write_and_read("memory", &["--module", "zstd", "--module", "bundle"], &written);
        meeting.write_and_read("memory", &["--links", "3"], &noise(1, 2 * MIB));
        meeting.write_and_read("memory", &["--over", "quic"], &noise(2, 2 * MIB));
    }
}

#[test]
fn keyboard_that_the_other_release_shares_is_typed_on_and_observed() {
    if !has_previous() {
        return;
    }
    for direction in DIRECTIONS {
        let harness = Harness::new();
        let meeting = Meeting::new(&harness, direction, Way::Native, &["keyboard", "--observable"]);
        let target = meeting.target("keyboard");
        let mut keyboard = client::open(&target.parse().unwrap()).unwrap();
        let mut observer = meeting.importer.start(&["observe", &target, "--count", "2", "--json"]);
        observer.wait_for_line("is observed");
        meeting.exporter.ok(&["type", "keyboard", "b"]);
        let report = keyboard.data_in(EpAddr::from_byte(0x81), 8).unwrap().into_vec();
        assert_eq!(report[2], 5, "{direction:?}");
        let line: Value = serde_json::from_str(&observer.wait_for_line("data")).unwrap();
        assert_eq!(line["data"], "0000050000000000", "{direction:?}");
        keyboard.data_in(EpAddr::from_byte(0x81), 8).unwrap();
        assert_eq!(observer.wait_for_end(PATIENCE), Some(0), "{}", observer.log());
    }
}

/// In a session an exporter of 0.1.0 tells no strings: an importer of this release asks the device. One of 0.1.0 shows
/// none, and is told nothing that it would refuse.
#[test]
fn device_that_the_other_release_shares_shows_its_strings_to_programs() {
    if !has_previous() || !has_fuse() {
        return;
    }
    let program = ["--", "sh", "-c", "cd /sys/bus/usb/devices/1-1; cat idVendor manufacturer product serial"];
    // The previous release has no `run`.
    let directions = DIRECTIONS.iter().filter(|direction| direction.1 == This);
    for (direction, way) in directions.flat_map(|direction| WAYS.map(|way| (*direction, way))) {
        let harness = Harness::new();
        let meeting = Meeting::new(&harness, direction, way, &["zero"]);
        let target = meeting.target("zero");
        let seen = meeting.importer.run(&[&["run", &target], &meeting.how()[..], &program].concat());
        assert_eq!(seen.code, Some(0), "{direction:?} {way:?}: {seen:?}");
        assert!(seen.stdout.starts_with("0525\nfarbus\nsource/sink\n"), "{direction:?} {way:?}: {seen:?}");
        if way == Way::Native {
            let device = client::open(&target.parse().unwrap()).unwrap();
            assert_eq!(device.descriptors().title(), "farbus source/sink", "{direction:?}");
        }
    }
}

#[test]
fn console_of_the_other_release_is_refused_in_a_sentence_and_its_observer_gets_what_it_always_got() {
    if !has_previous() {
        return;
    }
    for direction in DIRECTIONS {
        let harness = Harness::new();
        let meeting = Meeting::new(&harness, direction, Way::Native, &["serial", "--observable"]);
        let target = meeting.target("serial");
        let mut serial = client::open(&target.parse().unwrap()).unwrap();
        let mut observer = meeting.importer.start(&["observe", &target, "--count", "1", "--json"]);
        observer.wait_for_line("is observed");
        // One of this release sees the console at the same time, if the exporter shows it.
        let console = harness.command(&["observe", &target, "--console", "--json", "--count", "1"]);
        let mut console = Running::start(console);
        if matches!(direction.0, This) {
            console.wait_for_line("is observed");
        } else {
            assert_eq!(console.wait_for_end(PATIENCE), Some(3), "{}", console.log());
            let says = "the exporter's version of farbus does not show a console";
            assert!(console.log().contains(says), "{}", console.log());
        }
        serial.data_out(EpAddr::from_byte(1), b"login: ".to_vec()).unwrap();
        assert_eq!(serial.data_in(EpAddr::from_byte(0x81), 512).unwrap().into_vec(), b"login: ", "{direction:?}");
        let line_state = SetupPacket::from_bytes([0x21, 0x22, 3, 0, 0, 0, 0, 0]);
        serial.control_out(line_state, Vec::new()).unwrap();
        serial.data_in(EpAddr::from_byte(0x82), 16).unwrap();
        let line: Value = serde_json::from_str(&observer.wait_for_line("data")).unwrap();
        assert_eq!(line["data"], "a1200000000002000300", "{direction:?}: no bulk transfer came before it");
        assert_eq!(observer.wait_for_end(PATIENCE), Some(0), "{}", observer.log());
        if matches!(direction.0, This) {
            assert_eq!(console.wait_for_end(PATIENCE), Some(0), "{}", console.log());
        }
    }
}

#[test]
fn stream_that_the_other_release_shares_is_read_without_a_gap() {
    if !has_previous() {
        return;
    }
    for direction in DIRECTIONS {
        let harness = Harness::new();
        let meeting = Meeting::new(&harness, direction, Way::Native, &["stream:pattern,size=64x48,rate=0"]);
        let target = meeting.target("stream");
        let report = meeting.importer.json(&["stream", "read", &target, "--count", "50", "--json"]);
        assert_eq!((&report["frames"], &report["missed"]), (&50.into(), &0.into()), "{direction:?}: {report}");
    }
}

#[test]
fn reservation_asked_of_the_other_release_is_admitted() {
    if !has_previous() {
        return;
    }
    for direction in DIRECTIONS {
        let harness = Harness::new();
        let meeting = Meeting::new(&harness, direction, Way::Paired, &["zero,speed=full"]);
        let socket = harness.path("redir.sock");
        let reserve = "bytes=256,period=1,criticality=low,endpoint=0x83";
        let words =
            ["attach", "lab3/zero", "--via", "redir", "--socket", socket.to_str().unwrap(), "--reserve", reserve];
        let attach = meeting.importer.start(&[&words[..], &meeting.how()].concat());
        let state = || meeting.exporter.json(&["status", "--json"])[0]["devices"][0]["reservation"]["state"].clone();
        wait_until(PATIENCE, "it is reserved", || state() == "admitted");
        assert_eq!(state(), "admitted", "{direction:?}");
        end(attach);
    }
}

#[test]
fn devices_of_the_other_release_are_listed_with_their_states() {
    if !has_previous() {
        return;
    }
    for (direction, way) in
        DIRECTIONS.into_iter().flat_map(|direction| [Way::Native, Way::Paired].map(|way| (direction, way)))
    {
        let harness = Harness::new();
        let meeting = Meeting::new(&harness, direction, way, &["zero", "memory:1M", "keyboard"]);
        let listed = match way {
            Way::Paired => meeting.importer.json(&["list", "lab3", "--address", &meeting.address, "--json"]),
            _ => meeting.importer.json(&["list", &meeting.address, "--json"]),
        };
        let names: Vec<_> = listed.as_array().unwrap().iter().map(|line| line["name"].as_str().unwrap()).collect();
        assert_eq!(names, ["zero", "memory", "keyboard"], "{direction:?} {way:?}");
        assert!(listed.as_array().unwrap().iter().all(|line| line["state"] == "available"), "{listed}");
        let target = meeting.target("tape");
        let refused = meeting.importer.run(&[&["attach", &target, "--via", "fuse"], &meeting.how()[..]].concat());
        assert_eq!(refused.code, Some(4), "{direction:?} {way:?}: {refused:?}");
    }
}

#[test]
fn disk_migrates_between_importers_of_both_releases_and_back() {
    if !has_previous() || !has_fuse() {
        return;
    }
    for exporter in [Previous, This] {
        let harness = Harness::new();
        let lab3 = Host::new(&harness, "lab3", exporter);
        let (desk, rack) = (Host::new(&harness, "desk", Previous), Host::new(&harness, "rack", This));
        for importer in [&desk, &rack] {
            pair(&lab3, importer);
            lab3.ok(&["allow", importer.name, "all"]);
        }
        pair(&desk, &rack);
        let (_share, address) = lab3.share_secure(&["memory:4M"], "127.0.0.1:0");
        let mounts = [harness.path("at-desk"), harness.path("at-rack")];
        let start = |host: &Host<'_>, at: usize, more: &[&str]| {
            let mount = mounts[at].to_str().unwrap();
            let words = ["attach", "lab3/memory", "--via", "fuse", "--at", mount, "--address", &address];
            let attach = host.start(&[&words[..], more].concat());
            attach.wait_for_line("attached as");
            attach
        };
        let mut attach = start(&desk, 0, &[]);
        for round in 1..=3 {
            let (from, to, at) = if round % 2 == 1 { (&desk, &rack, 0) } else { (&rack, &desk, 1) };
            let written = noise(round, MIB);
            let file = File::options().read(true).write(true).open(mounts[at].join("disk.img")).unwrap();
            file.write_all_at(&written, 0).unwrap();
            file.sync_all().unwrap();
            drop(file);
            from.ok(&["migrate", "lab3/memory", "--to", to.name]);
            let next = start(to, 1 - at, &["--wait=60"]);
            assert_eq!(attach.wait_for_end(PATIENCE), Some(0), "{}", attach.log());
            let mut found = vec![0; MIB];
            File::open(mounts[1 - at].join("disk.img")).unwrap().read_exact_at(&mut found, 0).unwrap();
            assert!(found == written, "{exporter:?}, round {round}");
            attach = next;
        }
        end(attach);
    }
}

/// A proxy between two hosts that cuts their links.
struct Cutter {
    address: SocketAddr,
    open: Arc<Mutex<Vec<TcpStream>>>,
}

impl Cutter {
    fn before(to: String) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (address, open) = (listener.local_addr().unwrap(), Arc::<Mutex<Vec<TcpStream>>>::default());
        let all = Arc::clone(&open);
        thread::spawn(move || {
            for near in listener.incoming().map_while(Result::ok) {
                let Ok(far) = TcpStream::connect(&to) else { continue };
                all.lock().unwrap().extend([near.try_clone().unwrap(), far.try_clone().unwrap()]);
                for (from, to) in [(near.try_clone().unwrap(), far.try_clone().unwrap()), (far, near)] {
                    thread::spawn(move || carry(from, to));
                }
            }
        });
        Self { address, open }
    }

    fn cut(&self) {
        for stream in self.open.lock().unwrap().drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

fn carry(mut from: TcpStream, mut to: TcpStream) -> io::Result<()> {
    let mut buffer = vec![0; 64 << 10];
    loop {
        match from.read(&mut buffer)? {
            0 => return to.shutdown(Shutdown::Write),
            count => to.write_all(&buffer[..count])?,
        }
    }
}

#[test]
fn session_with_the_other_release_goes_on_after_its_link_was_cut() {
    if !has_previous() || !has_fuse() {
        return;
    }
    for direction in DIRECTIONS {
        let harness = Harness::new();
        let meeting = Meeting::new(&harness, direction, Way::Paired, &["memory:4M"]);
        let cutter = Cutter::before(meeting.address.clone());
        let (at, address) = (harness.path("at"), cutter.address.to_string());
        let words = ["attach", "lab3/memory", "--via", "fuse", "--at", at.to_str().unwrap(), "--address", &address];
        let attach = meeting.importer.start(&words);
        attach.wait_for_line("attached as");
        let file = File::options().read(true).write(true).open(at.join("disk.img")).unwrap();
        for round in 1..=4 {
            let written = noise(round, 2 * MIB);
            thread::scope(|scope| {
                scope.spawn(|| {
                    // waits: the fault comes at a moment that is never the same
                    thread::sleep(Duration::from_millis(5 * round));
                    cutter.cut();
                });
                file.write_all_at(&written, 0).expect("no write fails");
                file.sync_all().expect("no flush fails");
            });
            let mut found = vec![0; 2 * MIB];
            file.read_exact_at(&mut found, 0).expect("no read fails");
            assert!(found == written, "{direction:?}, round {round}");
        }
        attach.assert_logged("linked again");
        assert!(!attach.log().contains("started anew"), "{}", attach.log());
        drop(file);
        end(attach);
    }
}

#[test]
fn disk_whose_exporter_was_killed_and_started_again_shows_its_own_bytes_or_none() {
    if !has_previous() || !has_fuse() {
        return;
    }
    for direction in DIRECTIONS {
        let harness = Harness::new();
        let what = format!("disk:{}", harness.image("image", 4 << 20).display());
        let mut meeting = Meeting::new(&harness, direction, Way::Paired, &[&what]);
        let at = harness.path("at");
        let words =
            ["attach", "lab3/disk", "--via", "fuse", "--at", at.to_str().unwrap(), "--address", &meeting.address];
        let attach = meeting.importer.start(&words);
        attach.wait_for_line("attached as");
        let written = noise(3, MIB);
        let file = File::options().read(true).write(true).open(at.join("disk.img")).unwrap();
        file.write_all_at(&written, 0).unwrap();
        file.sync_all().unwrap();
        meeting._share.kill();
        let restarted = (0..100).find_map(|_| {
            // waits: between two looks for an event
            thread::sleep(Duration::from_millis(100));
            let words = ["share", &what, "--listen", "none", "--secure", &meeting.address];
            let share = meeting.exporter.start(&words);
            share.has_line_before_its_end("for paired hosts").then_some(share)
        });
        meeting._share = restarted.expect("the port is free again");
        // The two ends decide whether such a session continues; it must never show other bytes.
        let mut found = vec![0; MIB];
        let read = file.read_exact_at(&mut found, 2 * MIB as u64).and_then(|()| file.read_exact_at(&mut found, 0));
        assert!(read.is_err() || found == written, "{direction:?}");
        println!("{direction:?}: {read:?}");
        drop((file, attach));
        let again = harness.path("again");
        let words = ["attach", "lab3/disk", "--via", "fuse", "--at", again.to_str().unwrap(), "--wait=90"];
        let attach = meeting.importer.start(&[&words[..], &["--address", &meeting.address]].concat());
        attach.wait_for_line("attached as");
        File::open(again.join("disk.img")).unwrap().read_exact_at(&mut found, 0).unwrap();
        assert!(found == written, "{direction:?}: what was flushed is there");
        end(attach);
    }
}
