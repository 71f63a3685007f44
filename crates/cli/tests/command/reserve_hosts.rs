//! Reservations between hosts: who may ask for high criticality, what happens to a reservation when its device
//! migrates, and reservations of disks and streams, which use no bus.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use serde_json::Value;

use super::congestion::on_host;
use super::driver::Driver;
use super::harness::{Harness, PATIENCE, Running, Share, has, has_fuse, wait_until};
use super::network::{FAR, Network, command_in, ip};
use super::trust::{Host, hosts, pair, three};

/// Devices that get a reservation of high criticality.
const HIGHS_MAX: usize = 10;
/// 2 MiB/s, on no bus.
const HIGH: &str = "bytes=2048,period=8";
const LOW: &str = "bytes=2048,period=8,criticality=low";

/// The reservation of one of a share's devices, from its status.
fn reservation(status: &Value, name: &str) -> Value {
    let share = status.as_array().unwrap().iter().find(|process| process["role"] == "share").unwrap();
    let devices = share["devices"].as_array().unwrap();
    devices.iter().find(|device| device["name"] == name).expect("it is shared")["reservation"].clone()
}

/// Shares for paired hosts; returns the process and its address.
fn share_secure(host: &Host<'_>, what: &[&str]) -> (Running, String) {
    let share = host.start(&[&["share"], what, &["--listen", "none", "--secure", "127.0.0.1:0"]].concat());
    let line = share.wait_for_line("for paired hosts");
    let address = line.split_whitespace().nth(2).unwrap().to_owned();
    (share, address)
}

struct Mount<'a> {
    host: &'a Host<'a>,
    address: &'a str,
    at: std::path::PathBuf,
}

impl Mount<'_> {
    fn words<'w>(&'w self, more: &[&'w str]) -> Vec<&'w str> {
        let at = self.at.to_str().unwrap();
        [&["attach", "lab3/memory", "--via", "fuse", "--at", at, "--address", self.address], more].concat()
    }

    /// Attaches, which has to succeed.
    fn has(&self, more: &[&str]) -> Running {
        let attach = self.host.start(&self.words(more));
        attach.wait_for_line("attached as");
        attach
    }

    /// Attaches, which has to be refused; returns the error.
    fn is_refused(&self, more: &[&str]) -> String {
        let refused = self.host.run(&self.words(more));
        assert_eq!(refused.code, Some(3), "{refused:?}");
        refused.stderr
    }

    fn write(&self, round: u8) {
        let file = OpenOptions::new().write(true).open(self.at.join("disk.img")).unwrap();
        file.write_all_at(&[round; 4096], 0).unwrap();
    }

    fn read(&self) -> u8 {
        let file = File::open(self.at.join("disk.img")).unwrap();
        let mut byte = [0];
        file.read_exact_at(&mut byte, 0).unwrap();
        byte[0]
    }
}

#[test]
fn paired_host_reserves_low_freely_and_high_only_with_permission() {
    if !has_fuse() {
        return;
    }
    let harness = Harness::new();
    let [lab3, desk] = hosts(&harness);
    pair(&lab3, &desk);
    lab3.ok(&["allow", "desk", "memory"]);
    let (_share, address) = share_secure(&lab3, &["memory:1M"]);
    let mount = Mount { host: &desk, address: &address, at: harness.path("at") };
    let message = mount.is_refused(&["--reserve", HIGH]);
    assert!(message.contains("'farbus allow desk memory --reserve-high'; or ask for criticality=low"), "{message}");
    let mut low = mount.has(&["--reserve", LOW]);
    let stands = reservation(&lab3.json(&["status", "--json"]), "memory");
    assert_eq!((&stands["state"], &stands["criticality"]), (&"admitted".into(), &"low".into()), "{stands}");
    assert!(stands["bus"].is_null() && stands["path_bits_per_s"].as_u64() > Some(16_000_000), "{stands}");
    let status = desk.json(&["status", "--json"]).to_string();
    assert!(status.contains("\"admitted\""), "its user is told as well: {status}");
    desk.ok(&["detach"]);
    assert_eq!(low.wait_for_end(PATIENCE), Some(0), "{}", low.log());

    let output = lab3.ok(&["allow", "desk", "memory", "--reserve-high"]);
    assert!(output.contains("desk may reserve with high criticality: memory"), "{output}");
    assert!(lab3.ok(&["peers"]).contains("memory; reserve high: memory"));
    let mut high = mount.has(&["--reserve", HIGH]);
    let stands = reservation(&lab3.json(&["status", "--json"]), "memory");
    assert_eq!((&stands["state"], &stands["criticality"]), (&"admitted".into(), &"high".into()), "{stands}");
    let many = desk.run(&["attach", "lab3/memory", "--via", "fuse", "--mode", "read", "--reserve", LOW]);
    assert!(many.code == Some(1) && many.stderr.contains("leave --mode read out"), "{many:?}");
    desk.ok(&["detach"]);
    assert_eq!(high.wait_for_end(PATIENCE), Some(0), "{}", high.log());

    lab3.ok(&["forbid", "desk", "memory", "--reserve-high"]);
    mount.is_refused(&["--reserve", HIGH]);
    let odd = mount.is_refused(&["--reserve", &format!("{LOW},endpoint=0x81")]);
    assert!(odd.contains("the device has no endpoint 0x81"), "{odd}");
    let slow = mount.is_refused(&["--reserve", &format!("{LOW},latency=1us")]);
    assert!(slow.contains("ms are missing: data are there after"), "{slow}");
}

/// A pipe asks for what it needs of another host. Where it may not, it runs and names the line that would allow it.
#[test]
fn pipe_from_a_host_that_may_not_reserve_runs_and_names_the_permission() {
    let harness = Harness::new();
    let [lab3, desk] = hosts(&harness);
    pair(&lab3, &desk);
    lab3.ok(&["allow", "desk", "can"]);
    let (_share, address) = share_secure(&lab3, &["can,traffic=10"]);
    desk.ok(&["list", "lab3", "--address", &address]);
    let usual = ["--can", "500000", "--rate", "400", "--buffer", "128", "--execution-us", "500", "--policy", "none"];
    let words = [&["pipe", "lab3/can"], &usual[..], &["--seconds", "1", "--json"]].concat();
    let message = desk.run(&words).stdout;
    assert!(
        message.contains("only this end is promised") && message.contains("allow desk can --reserve-high"),
        "{message}"
    );
    lab3.ok(&["allow", "desk", "can", "--reserve-high"]);
    let message = desk.run(&words).stdout;
    assert!(message.contains("\"pipes\"") && !message.contains("--reserve-high"), "{message}");
}

#[test]
fn reservation_migrates_with_its_device_or_both_stay() {
    if !has_fuse() {
        return;
    }
    let harness = Harness::new();
    let [lab3, desk, rack] = three(&harness);
    lab3.ok(&["allow", "desk", "all", "--reserve-high"]);
    let (_share, address) = share_secure(&lab3, &["memory:1M"]);
    let [at_desk, at_rack] =
        [&desk, &rack].map(|host| Mount { host, address: &address, at: harness.path(&format!("at-{}", host.name)) });
    let high = || {
        let stands = reservation(&lab3.json(&["status", "--json"]), "memory");
        assert_eq!((&stands["state"], &stands["criticality"]), (&"admitted".into(), &"high".into()), "{stands}");
    };
    let mut desks = at_desk.has(&["--reserve", HIGH]);
    at_desk.write(1);
    high();
    // A host that may not have the reservation gets neither it nor the device, whether it asks for a reservation of its
    // own or not.
    desk.ok(&["migrate", "lab3/memory", "--to", "rack"]);
    let message = at_rack.is_refused(&["--wait=20"]);
    assert!(message.contains("what is reserved for it cannot go along"), "{message}");
    assert!(message.contains("'farbus allow rack memory --reserve-high'"), "{message}");
    wait_until(PATIENCE, "it is where it was", || lab3.json(&["status", "--json"]).to_string().contains("desk"));
    at_desk.write(2);
    high();

    lab3.ok(&["allow", "rack", "all", "--reserve-high"]);
    desk.ok(&["migrate", "lab3/memory", "--to", "rack"]);
    let message = at_rack.is_refused(&["--wait=20", "--reserve", &format!("{HIGH},latency=1us")]);
    assert!(message.contains("ms are missing: data are there after"), "he asks for what is not to be had: {message}");
    let mut racks = at_rack.has(&["--wait=20"]);
    assert_eq!(desks.wait_for_end(PATIENCE), Some(0), "{}", desks.log());
    assert_eq!(at_rack.read(), 2);
    at_rack.write(3);
    high();

    // And back, with a different reservation request.
    rack.ok(&["migrate", "lab3/memory", "--to", "desk"]);
    desks = at_desk.has(&["--wait=20", "--reserve", LOW]);
    assert_eq!(racks.wait_for_end(PATIENCE), Some(0), "{}", racks.log());
    assert_eq!(at_desk.read(), 3);
    let stands = reservation(&lab3.json(&["status", "--json"]), "memory");
    assert_eq!((&stands["state"], &stands["criticality"]), (&"admitted".into(), &"low".into()), "{stands}");
    desk.ok(&["detach"]);
    assert_eq!(desks.wait_for_end(PATIENCE), Some(0), "{}", desks.log());
    wait_until(PATIENCE, "what nobody uses is reserved for nobody", || {
        reservation(&lab3.json(&["status", "--json"]), "memory").is_null()
    });
}

#[test]
fn reservation_by_the_owner_covers_the_path_to_the_importer() {
    if !has_fuse() {
        return;
    }
    let harness = Harness::new();
    let wish = format!("memory:{LOW}");
    let arguments = ["share", "memory:1M", "--listen", "127.0.0.1:0", "--reserve", &wish];
    let share = Share::follow(Running::start(harness.command(&arguments)));
    let stands = || reservation(&harness.json(&["status", "--json"]), "memory");
    let before = stands();
    assert_eq!((&before["state"], &before["criticality"]), (&"admitted".into(), &"low".into()), "{before}");
    let at = harness.path("at");
    let target = share.target("memory");
    let arguments = ["attach", &target, "--grace", "20", "--via", "fuse", "--at", at.to_str().unwrap()];
    let mut attach = Running::start(harness.command(&arguments));
    attach.wait_for_line("attached as");
    let during = stands();
    assert!(during["path_bits_per_s"].as_u64() > Some(16_000_000), "{during}");
    // The importer asked for nothing, and gets a report once it has the disk.
    wait_until(PATIENCE, "its user is told", || {
        let answer = harness.json(&["status", "--json"]);
        let attached = answer.as_array().unwrap().iter().find(|process| process["role"] == "attach");
        attached.is_some_and(|attached| attached.to_string().contains("\"admitted\""))
    });
    attach.signal(rustix::process::Signal::INT);
    assert_eq!(attach.wait_for_end(PATIENCE), Some(0), "{}", attach.log());
    wait_until(PATIENCE, "it is reserved for the next user", || stands()["state"] == "admitted");
}

/// How many frames of the stream the reader has taken.
fn taken(harness: &Harness) -> u64 {
    let status = harness.json(&["status", "--json"]);
    let share = status.as_array().unwrap().iter().find(|process| process["role"] == "share").unwrap();
    let devices = share["devices"].as_array().unwrap();
    let stream = devices.iter().find(|device| device["name"] == "stream").expect("it is shared");
    stream["counts"]["frames_taken"].as_u64().unwrap_or_default()
}

fn state_of(harness: &Harness, name: &str) -> String {
    reservation(&harness.json(&["status", "--json"]), name)["state"].as_str().unwrap_or("none").to_owned()
}

/// Reads a block that was not read before, so that it is in no cache.
fn read_at(path: &Path, at: u64) {
    let mut block = [0; 4096];
    File::open(path).unwrap().read_exact_at(&mut block, at).unwrap();
}

#[test]
fn a_disk_and_a_stream_give_way_on_a_narrow_path_and_go_on() {
    let network = Network::lay("paths");
    if !has("network namespaces", network.is_some()) || !has_fuse() {
        return;
    }
    let network = network.expect("looked at just now");
    let shaped =
        format!("netns exec {} tc qdisc add dev near root tbf rate 20mbit burst 8kb latency 50ms", network.router);
    if !has("shaper of links", ip(&shaped)) {
        return;
    }
    let harness = Harness::new();
    let listen = format!("{FAR}:0");
    let what = ["share", "memory:16M", "stream:pattern,size=160x120,rate=10"];
    let stranger =
        Share::follow(Running::start(command_in(&harness, &network.far, &["share", "zero", "--listen", &listen])));
    let refused = on_host(&network.near, || {
        std::panic::catch_unwind(|| drop(Driver::reserving(&stranger.address, "zero", "bytes=64,period=8"))).is_err()
    });
    assert!(refused, "who has no key reserves low, unless the owner says from where he may more");
    drop(stranger);
    let more = ["--listen", &listen, "--reserve-high", "10.111.2.0/24"];
    let arguments = [&what[..], &["zero"; HIGHS_MAX], &more].concat();
    let share = Share::follow(Running::start(command_in(&harness, &network.far, &arguments)));
    // 6.3 Mb/s each. Reservations of high criticality ask for 4.3 Mb/s each, one after the other, until the path is
    // full. How many fit depends on the machine, which estimates the path's rate.
    let wish = "bytes=760,period=8,criticality=low";
    let at = harness.path("at");
    let target = share.target("memory");
    let words = ["attach", &target, "--via", "fuse", "--at", at.to_str().unwrap(), "--reserve", wish];
    let attach = Running::start(command_in(&harness, &network.near, &words));
    attach.wait_for_line("attached as");
    let target = share.target("stream");
    let _reader =
        Running::start(command_in(&harness, &network.near, &["stream", "read", &target, "--json", "--reserve", wish]));
    wait_until(PATIENCE, "frames come", || taken(&harness) > 20);
    let disk = at.join("disk.img");
    read_at(&disk, 0);
    assert_eq!([state_of(&harness, "memory"), state_of(&harness, "stream")], ["admitted", "admitted"]);
    let is_read = AtomicBool::new(false);
    thread::scope(|scope| {
        on_host(&network.near, || {
            let mut highs = Vec::new();
            let one_more = |highs: &mut Vec<Driver>| {
                let name = if highs.is_empty() { "zero".to_owned() } else { format!("zero{}", highs.len() + 1) };
                highs.push(Driver::reserving(&share.address, &name, "bytes=512,period=8,endpoint=0x83"));
                assert_eq!(state_of(&harness, &name), "admitted");
                let states = [state_of(&harness, "memory"), state_of(&harness, "stream")];
                assert_ne!(states, ["suspended", "admitted"], "who came first gives way last");
            };
            while state_of(&harness, "stream") == "admitted" {
                one_more(&mut highs);
            }
            let before = taken(&harness);
            // waits: nothing must happen meanwhile; a slow machine only shows less
            thread::sleep(Duration::from_secs(1));
            assert!(taken(&harness) <= before + 1, "no frame goes by");
            if state_of(&harness, "memory") == "admitted" {
                read_at(&disk, 4 << 20);
            }
            while state_of(&harness, "memory") == "admitted" {
                one_more(&mut highs);
            }
            scope.spawn(|| {
                read_at(&disk, 8 << 20);
                is_read.store(true, Ordering::Release);
            });
            // waits: nothing must happen meanwhile; a slow machine only shows less
            thread::sleep(Duration::from_secs(1));
            assert!(!is_read.load(Ordering::Acquire), "what is asked of it waits");
            drop(highs);
            wait_until(PATIENCE, "and is answered", || is_read.load(Ordering::Acquire));
        });
    });
    wait_until(PATIENCE, "frames go on", || state_of(&harness, "stream") == "admitted");
    let before = taken(&harness);
    wait_until(PATIENCE, "and are taken", || taken(&harness) > before + 20);
    assert_eq!(state_of(&harness, "memory"), "admitted");
}
