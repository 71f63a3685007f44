//! A path that drops packets above 1280 bytes without saying so: small messages pass, large ones never do.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;

use super::harness::{Harness, PATIENCE, Running, finish, has, has_program, wait_until};
use super::network::{command_in, ip};
use super::own_network;
use super::trust::{Host, hosts, next_code};

const MIB: u64 = 1 << 20;
/// Bytes that pass in each direction.
const DISK_BYTES: u64 = 64 * MIB;
const FAR: &str = "10.111.4.2";

/// Two hosts and a bridge between them, each a network namespace. The bridge's ports take packets of 1280 bytes, and
/// what is larger is dropped there: a bridge sends no ICMP. Dropping it removes all three.
struct NarrowBridge {
    near: String,
    bridge: String,
    far: String,
}

impl NarrowBridge {
    /// `None` where this machine does not permit it.
    fn lay(name: &str) -> Option<Self> {
        own_network::enter();
        let named = |part: &str| format!("farbus-{}-{name}-{part}", std::process::id());
        let network = Self { near: named("near"), bridge: named("bridge"), far: named("far") };
        let Self { near, bridge, far } = &network;
        let mut steps: Vec<String> = [near, bridge, far].iter().map(|name| format!("netns add {name}")).collect();
        steps.push(format!("-n {bridge} link add bridge0 type bridge"));
        for (host, port, address) in [(near, "near", "10.111.4.1"), (far, "far", FAR)] {
            steps.extend([
                format!("-n {host} link set lo up"),
                format!("-n {host} link add cable type veth peer name {port} netns {bridge}"),
                // Segments leave one by one: a bridge lets several pass that a card would take apart.
                format!("-n {host} link set cable gso_max_segs 1"),
                format!("-n {host} addr add {address}/24 dev cable"),
                format!("-n {bridge} link set {port} master bridge0"),
                format!("-n {bridge} link set {port} mtu 1280 up"),
                format!("-n {host} link set cable up"),
            ]);
        }
        steps.push(format!("-n {bridge} link set bridge0 up"));
        steps.iter().all(|step| ip(step)).then_some(network)
    }
}

impl Drop for NarrowBridge {
    fn drop(&mut self) {
        for namespace in [&self.near, &self.bridge, &self.far] {
            ip(&format!("netns del {namespace}"));
        }
    }
}

/// Copies a file to a disk at a socket, or the other way, and waits for that.
fn copy(from: &str, to: &str) {
    let mut copy = Command::new("nbdcopy");
    copy.args([from, to]);
    let began = Instant::now();
    let copied = finish(copy, PATIENCE);
    assert_eq!(copied.code, Some(0), "{copied:?}");
    println!("{from} to {to}: {:?}", began.elapsed());
}

struct Narrow<'a> {
    harness: &'a Harness,
    network: &'a NarrowBridge,
    lab3: Host<'a>,
    desk: Host<'a>,
}

impl Narrow<'_> {
    fn on_lab3(&self, arguments: &[&str]) -> Command {
        self.lab3.equip(command_in(self.harness, &self.network.far, arguments))
    }

    fn on_desk(&self, arguments: &[&str]) -> Command {
        self.desk.equip(command_in(self.harness, &self.network.near, arguments))
    }

    /// Copies the disk at `socket` here, and something else there, and compares.
    fn copy_both_ways(&self, socket: &Path, image: &Path, is_read_first: bool) {
        let uri = format!("nbd+unix:///?socket={}", socket.display());
        let (read, written) = (self.harness.path("read"), self.harness.path("written"));
        let fill =
            |seed: u64| -> Vec<u8> { (0..DISK_BYTES / 8).flat_map(|at| (at ^ seed << 40).to_le_bytes()).collect() };
        fs::write(&written, fill(u64::from(is_read_first) + 3)).unwrap();
        let read_it = || {
            copy(&uri, read.to_str().unwrap());
            assert!(fs::read(&read).unwrap() == fs::read(image).unwrap(), "what was read is what is there");
        };
        let write_it = || {
            copy(written.to_str().unwrap(), &uri);
            assert!(fs::read(image).unwrap() == fs::read(&written).unwrap(), "what was written is there");
        };
        match is_read_first {
            true => (read_it(), write_it()),
            false => (write_it(), read_it()),
        };
    }

    /// Checks that the small segments are in the log and in the status.
    fn assert_said(&self, process: &Running) {
        process.assert_logged("the next links send smaller segments");
        let status = finish(self.on_desk(&["status", "--json"]), PATIENCE);
        let status: Value = serde_json::from_str(&status.stdout).unwrap();
        let is_bounded = |device: &Value| device["links"]["segment_bytes_max"] == 1200;
        let devices = status.as_array().unwrap().iter().flat_map(|process| process["devices"].as_array().unwrap());
        assert!(devices.into_iter().any(is_bounded), "{status:#}");
        for words in [&["status"][..], &["status", "--links"]] {
            let text = finish(self.on_desk(words), PATIENCE).stdout;
            assert!(text.contains("segments of 1200 bytes at most"), "{words:?}: {text}");
        }
    }
}

#[test]
fn disk_behind_a_path_that_drops_large_packets_is_copied_both_ways() {
    let network = NarrowBridge::lay("narrow");
    if !has("network namespaces", network.is_some()) || !has("nbdcopy", has_program("nbdcopy")) {
        return;
    }
    let network = network.expect("looked at just now");
    let harness = Harness::new();
    let [lab3, desk] = hosts(&harness);
    let narrow = Narrow { harness: &harness, network: &network, lab3, desk };
    let pairing = ["pair", "--listen", &format!("{FAR}:0"), "--allow", "disk", "--json"];
    let mut waiting = Running::start(narrow.on_lab3(&pairing));
    let (address, code) = next_code(&waiting);
    let paired = finish(narrow.on_desk(&["pair", &address, &code]), PATIENCE);
    assert_eq!((paired.code, waiting.wait_for_end(PATIENCE)), (Some(0), Some(0)), "{paired:?}");

    let image = harness.path("disk.img");
    let content: Vec<u8> = (0..DISK_BYTES / 8).flat_map(u64::to_le_bytes).collect();
    fs::write(&image, content).unwrap();
    let disk = format!("disk:{},name=disk", image.display());
    let secure = format!("{FAR}:0");
    let share = Running::start(narrow.on_lab3(&["share", &disk, "--listen", "none", "--secure", &secure]));
    let line = share.wait_for_line("for paired hosts");
    let address = line.split_whitespace().nth(2).unwrap();
    let socket = harness.path("disk.sock");
    let socket_word = socket.to_str().unwrap();

    let paired = Running::start(narrow.on_desk(&["list", "lab3", "--address", address]));
    paired.wait_for_line("disk");
    let doctor = finish(narrow.on_desk(&["doctor", "lab3"]), PATIENCE);
    assert!(doctor.code == Some(0) && doctor.stdout.contains("drops large packets in silence"), "{doctor:?}");
    for is_read_first in [true, false] {
        let words = ["attach", "lab3/disk", "--address", address, "--via", "nbd", "--socket", socket_word];
        let mut attach = Running::start(narrow.on_desk(&words));
        attach.wait_for_line("attached");
        narrow.copy_both_ways(&socket, &image, is_read_first);
        narrow.assert_said(&attach);
        attach.signal(Signal::INT);
        assert_eq!(attach.wait_for_end(PATIENCE), Some(0), "{}", attach.log());
    }

    let config = harness.path("farbus.toml");
    let attach = format!("[[attach]]\ntarget = 'lab3/disk'\nvia = 'nbd'\nsocket = '{socket_word}'\n");
    fs::write(&config, format!("plain.listen = []\nsecure.listen = []\n{attach}")).unwrap();
    let daemon = Running::start(narrow.on_desk(&["daemon", "--config", config.to_str().unwrap()]));
    wait_until(PATIENCE, "the daemon attaches it", || socket.exists());
    narrow.copy_both_ways(&socket, &image, true);
    narrow.assert_said(&daemon);
}

/// A grace period that began anew with each link would never end here.
#[test]
fn session_whose_links_carry_nothing_large_ends_within_its_grace_period() {
    let network = NarrowBridge::lay("narrower");
    if !has("network namespaces", network.is_some()) || !has("nbdcopy", has_program("nbdcopy")) {
        return;
    }
    let network = network.expect("looked at just now");
    let harness = Harness::new();
    let [lab3, desk] = hosts(&harness);
    let narrow = Narrow { harness: &harness, network: &network, lab3, desk };
    let image = harness.path("disk.img");
    fs::write(&image, vec![7; DISK_BYTES as usize]).unwrap();
    let disk = format!("disk:{},name=disk", image.display());
    let share = Running::start(narrow.on_lab3(&["share", &disk, "--listen", &format!("{FAR}:0")]));
    let line = share.wait_for_line("listening on ");
    let target = format!("{}/disk", line.split_whitespace().nth(2).unwrap());
    let socket = harness.path("disk.sock");
    // Shorter than it takes until the second link has failed, too.
    let words = ["attach", &target, "--via", "nbd", "--grace", "3", "--socket", socket.to_str().unwrap()];
    let mut attach = Running::start(narrow.on_desk(&words));
    attach.wait_for_line("attached");
    let uri = format!("nbd+unix:///?socket={}", socket.display());
    let mut copy = Command::new("nbdcopy");
    copy.args([&uri, harness.path("read").to_str().unwrap()]);
    let copied = finish(copy, PATIENCE);
    assert_ne!(copied.code, Some(0), "{copied:?}");
    assert_eq!(attach.wait_for_end(Duration::from_secs(60)), Some(5), "{}", attach.log());
    assert!(attach.log().contains("carried what waited for it"), "{}", attach.log());
}
