//! A network that goes silent: no reset, no detach, just no answer. Two hosts in network namespaces of their own.

use std::fs::File;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::OFlags;

use super::harness::{Harness, PATIENCE, Running, Share, finish, has, has_fuse, is_mounted, wait_until};
use super::own_network;
use super::trust::{hosts, next_code};

const MIB: u64 = 1 << 20;
/// A silent peer is given up after 20 seconds at most (U11), and a machine that stalls adds its own; TCP alone would
/// wait for a quarter of an hour.
const SILENCE_MAX: Duration = Duration::from_secs(60);
/// A gap in the network that a plain connection outlives: longer than the silence of a session.
const GAP: Duration = Duration::from_secs(8);

/// Two hosts and the router between them, each a network namespace. Dropping it removes all three.
pub struct Network {
    pub near: String,
    pub router: String,
    pub far: String,
}

/// The address of the far end.
pub const FAR: &str = "10.111.3.2";

impl Network {
    /// `None` where this machine does not permit it.
    pub fn lay(name: &str) -> Option<Self> {
        own_network::enter();
        let named = |part: &str| format!("farbus-{}-{name}-{part}", std::process::id());
        let network = Self { near: named("near"), router: named("router"), far: named("far") };
        let (near, router, far) = (&network.near, &network.router, &network.far);
        let mut steps = vec![
            format!("netns add {near}"),
            format!("netns add {router}"),
            format!("netns add {far}"),
            format!("-n {far} link set lo up"),
        ];
        for (host, port, net) in [(near, "near", "10.111.2"), (far, "far", "10.111.3")] {
            steps.extend([
                format!("-n {host} link add cable type veth peer name {port} netns {router}"),
                format!("-n {host} addr add {net}.2/24 dev cable"),
                format!("-n {router} addr add {net}.1/24 dev {port}"),
                format!("-n {router} link set {port} up"),
                format!("-n {host} link set cable up"),
                format!("-n {host} route add default via {net}.1"),
            ]);
        }
        steps.iter().all(|step| ip(step)).then(|| network.forward(true))?;
        Some(network)
    }

    /// The router forwards packets, or drops them silently.
    fn forward(&self, forwards: bool) {
        let value = u8::from(forwards);
        assert!(ip(&format!("netns exec {} sysctl -qw net.ipv4.ip_forward={value}", self.router)));
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for namespace in [&self.near, &self.router, &self.far] {
            ip(&format!("netns del {namespace}"));
        }
    }
}

pub fn ip(arguments: &str) -> bool {
    Command::new("ip").args(arguments.split(' ')).output().is_ok_and(|output| output.status.success())
}

/// `farbus` inside a network namespace only: every process sees the mounts.
pub fn command_in(harness: &Harness, namespace: &str, arguments: &[&str]) -> Command {
    let program = env!("CARGO_BIN_EXE_farbus");
    let namespace = format!("--net=/run/netns/{namespace}");
    let arguments = [&[namespace.as_str(), program], arguments].concat();
    harness.command_of(Path::new("nsenter"), &arguments)
}

fn share_over(harness: &Harness, network: &Network, options: &[&str]) -> Share {
    let image = harness.image("image", 64 * MIB);
    let disk = format!("disk:{}", image.display());
    let listen = format!("{FAR}:0");
    let words = [&["share", &disk, "--listen", &listen], options].concat();
    Share::follow(Running::start(command_in(harness, &network.far, &words)))
}

fn attach_over(harness: &Harness, network: &Network, share: &Share, at: &Path) -> (Running, PathBuf) {
    let target = share.target("disk");
    let arguments = ["attach", &target, "--via", "fuse", "--at", at.to_str().unwrap()];
    let process = Running::start(command_in(harness, &network.near, &arguments));
    process.wait_for_line("attached as ");
    (process, at.join("disk.img"))
}

/// The device's state, as the exporter reports it.
fn state(harness: &Harness) -> String {
    let status = harness.json(&["status", "--json"]);
    let share = status.as_array().unwrap().iter().find(|process| process["role"] == "share");
    share.expect("the share runs")["devices"][0]["state"].as_str().unwrap().to_owned()
}

#[test]
fn a_network_that_goes_silent_ends_both_sides_within_a_minute_whether_bytes_pass_or_not() {
    let network = Network::lay("silent");
    if !has("network namespaces", network.is_some()) || !has_fuse() {
        return;
    }
    let network = network.expect("looked at just now");
    let harness = Harness::new();
    let share = share_over(&harness, &network, &[]);
    let at = harness.path("at");
    for is_busy in [true, false] {
        network.forward(true);
        let (mut attach, path) = attach_over(&harness, &network, &share, &at);
        let turns = harness.path(&format!("turns-{is_busy}"));
        let mut reader = is_busy.then(|| reading_program(&harness, &path, &turns));
        let reads = || std::fs::read(&turns).map_or(0, |turns| turns.len());
        wait_until(PATIENCE, "bytes pass", || !is_busy || reads() > 3);
        assert_ne!(state(&harness), "available");

        // The connection has no session that would get another link.
        network.forward(false);
        // waits: the length of the gap is what the test is about
        thread::sleep(GAP);
        network.forward(true);
        let before = reads();
        wait_until(PATIENCE, "bytes pass again", || !is_busy || reads() > before + 3);
        assert_ne!(state(&harness), "available");

        network.forward(false);
        let silent = Instant::now();
        wait_until(SILENCE_MAX, "the exporter offers the device again", || state(&harness) == "available");
        let freed = silent.elapsed();
        assert_eq!(attach.wait_for_end(SILENCE_MAX), Some(5), "{}", attach.log());
        println!("busy {is_busy}: free after {freed:?}, the attachment's end after {:?}", silent.elapsed());
        assert!(attach.log().contains("the link was lost"), "{}", attach.log());
        assert!(!is_mounted(&at) && !at.exists());
        if let Some(reader) = &mut reader {
            assert_eq!(reader.wait_for_end(PATIENCE), Some(1), "a read has failed");
        }
    }
}

/// A program that reads until that fails, and appends a byte to `turns` each time. A thread of the test would not do:
/// while its read waits, the test starts no program.
fn reading_program(harness: &Harness, path: &Path, turns: &Path) -> Running {
    let script = "while dd if=\"$0\" of=/dev/null bs=1M count=4 iflag=direct; do printf . >> \"$1\"; done; exit 1";
    let words = ["-c", script, path.to_str().unwrap(), turns.to_str().unwrap()];
    Running::start(harness.command_of(Path::new("sh"), &words))
}

#[test]
fn an_exporter_with_a_shorter_silence_offers_the_device_while_its_importer_still_waits() {
    let network = Network::lay("shorter");
    if !has("network namespaces", network.is_some()) || !has_fuse() {
        return;
    }
    let network = network.expect("looked at just now");
    let harness = Harness::new();
    let share = share_over(&harness, &network, &["--silence", "3"]);
    let (mut attach, _) = attach_over(&harness, &network, &share, &harness.path("at"));
    network.forward(false);
    let silent = Instant::now();
    wait_until(SILENCE_MAX, "the exporter offers the device again", || state(&harness) == "available");
    println!("free after {:?}", silent.elapsed());
    assert!(!attach.log().contains("the link was lost"), "it waits for 20 s: {}", attach.log());
    assert_eq!(attach.wait_for_end(SILENCE_MAX), Some(5), "{}", attach.log());
}

#[test]
fn a_pulled_cable_frees_what_an_encrypted_session_held() {
    let network = Network::lay("cut");
    if !has("network namespaces", network.is_some()) || !has_fuse() {
        return;
    }
    let network = network.expect("looked at just now");
    let harness = Harness::new();
    let [lab3, desk] = hosts(&harness);
    let on_lab3 = |arguments: &[&str]| lab3.equip(command_in(&harness, &network.far, arguments));
    let on_desk = |arguments: &[&str]| desk.equip(command_in(&harness, &network.near, arguments));
    let mut waiting = Running::start(on_lab3(&["pair", "--listen", &format!("{FAR}:0"), "--allow", "disk", "--json"]));
    let (address, code) = next_code(&waiting);
    let paired = finish(on_desk(&["pair", &address, &code]), PATIENCE);
    assert_eq!((paired.code, waiting.wait_for_end(PATIENCE)), (Some(0), Some(0)), "{paired:?}");

    let disk = format!("disk:{}", harness.image("image", 64 * MIB).display());
    let secure = format!("{FAR}:0");
    let share = Running::start(on_lab3(&["share", &disk, "--listen", "none", "--secure", &secure]));
    let line = share.wait_for_line("for paired hosts");
    let address = line.split_whitespace().nth(2).unwrap();
    let state = || {
        let status = finish(on_lab3(&["status", "--json"]), PATIENCE);
        let status: serde_json::Value = serde_json::from_str(&status.stdout).unwrap();
        status[0]["devices"][0]["state"].as_str().unwrap().to_owned()
    };
    for is_busy in [false, true] {
        let at = harness.path(&format!("mnt-{is_busy}"));
        let target = ["attach", "lab3/disk", "--address", address, "--via", "fuse", "--at", at.to_str().unwrap()];
        // A session waits for another link for as long as its importer asked; this test asks for no wait.
        let target = [&target[..], &["--grace", "0"]].concat();
        let mut attach = Running::start(on_desk(&target));
        attach.wait_for_line("attached as ");
        let turns = Arc::<AtomicU64>::default();
        let reader = is_busy.then(|| {
            let (path, turns) = (at.join("disk.img"), Arc::clone(&turns));
            thread::spawn(move || read_for_ever(&path, &turns))
        });
        wait_until(PATIENCE, "bytes pass", || !is_busy || turns.load(Ordering::Relaxed) > 3);
        assert_eq!(state(), "in use");

        assert!(ip(&format!("-n {} link set cable down", network.near)));
        let cut = Instant::now();
        wait_until(SILENCE_MAX, "the exporter offers the device again", || state() == "available");
        let freed = cut.elapsed();
        assert_eq!(attach.wait_for_end(SILENCE_MAX), Some(5), "{}", attach.log());
        println!("busy {is_busy}: free after {freed:?}, the attachment's end after {:?}", cut.elapsed());
        assert!(!is_mounted(&at) && !at.exists(), "nothing to clean by hand");
        if let Some(reader) = reader {
            reader.join().unwrap();
        }
        // The cable is plugged in again, and the device is attached again.
        assert!(ip(&format!("-n {} link set cable up", network.near)));
        assert!(ip(&format!("-n {} route add default via 10.111.2.1", network.near)));
    }
}

#[test]
fn a_daemon_announces_itself_and_is_listed_and_used_by_name() {
    let network = Network::lay("found");
    if !has("network namespaces", network.is_some()) {
        return;
    }
    let network = network.expect("looked at just now");
    let harness = Harness::new();
    let config = harness.path("farbus.toml");
    // The router is on the near host's own network; the host behind it is not.
    let text = "plain = { listen = ['10.111.2.1:0'], allow = ['10.111.2.0/24'] }\nshare = [{what='zero'}]";
    std::fs::write(&config, text).unwrap();
    let arguments = ["daemon", "--config", config.to_str().unwrap()];
    // The daemon starts before its network is up, as at boot.
    assert!(ip(&format!("-n {} link set cable down", network.near)));
    let mut as_daemon = command_in(&harness, &network.router, &arguments);
    as_daemon.env("FARBUS_NAME", "bench-7");
    let mut daemon = Share::follow(Running::start(as_daemon));
    // waits: an announcement fails, as at boot; on a slow machine none was tried, and the rest holds as well
    std::thread::sleep(Duration::from_secs(1));
    assert!(ip(&format!("-n {} link set cable up", network.near)));
    let name = "bench-7";

    // Another user's command, which finds none of this user's processes.
    let ask = |namespace: &str, arguments: &[&str]| {
        let mut command = command_in(&harness, namespace, arguments);
        command.env("XDG_RUNTIME_DIR", harness.path("elsewhere"));
        finish(command, PATIENCE)
    };
    let mut listed = serde_json::Value::Null;
    wait_until(PATIENCE, "it is found", || {
        let outcome = ask(&network.near, &["list", "--json"]);
        listed = serde_json::from_str(&outcome.stdout).unwrap_or_else(|error| panic!("{error}: {outcome:?}"));
        !listed[0].is_null()
    });
    assert_eq!(listed[0]["target"], format!("{name}/zero"), "{listed}");
    assert_eq!(listed[0]["state"], "available");
    let by_name = ask(&network.near, &["list", &format!("{name}.local")]);
    assert!(by_name.code == Some(0) && by_name.stdout.contains("zero"), "{by_name:?}");

    // A host that is not on the list of allowed networks learns nothing, not even that farbus runs here.
    let stranger = ask(&network.far, &["list", &daemon.address]);
    assert_eq!(stranger.code, Some(5), "{stranger:?}");
    daemon.process.assert_logged("not on the list of those allowed here");

    daemon.process.signal(rustix::process::Signal::TERM);
    assert_eq!(daemon.process.wait_for_end(PATIENCE), Some(0));
    let after = ask(&network.near, &["list", "--json"]);
    assert_eq!(after.stdout, "[]", "it said farewell: {after:?}");
}

/// A paired host is identified by its key: no host is at its last address, and its announcement has the new one.
#[test]
fn a_paired_host_that_moved_is_found_by_its_key() {
    let network = Network::lay("moved");
    if !has("network namespaces", network.is_some()) {
        return;
    }
    let network = network.expect("looked at just now");
    let harness = Harness::new();
    let as_host = |name: &str, mut command: std::process::Command| {
        command.env("FARBUS_STATE", harness.path(name)).env("FARBUS_NAME", name);
        command.env("XDG_RUNTIME_DIR", harness.path(&format!("run-{name}")));
        command
    };
    let waits = as_host("lab3", command_in(&harness, &network.router, &["pair", "--listen", "10.111.2.1:0", "--json"]));
    let mut waits = Running::start(waits);
    let line: serde_json::Value = serde_json::from_str(&waits.wait_for_line("\"code\"")).unwrap();
    let (address, code) = (line["address"].as_str().unwrap(), line["code"].as_str().unwrap());
    // desk remembers the default port for paired hosts; no process will listen there.
    let joins = finish(as_host("desk", command_in(&harness, &network.near, &["pair", address, code])), PATIENCE);
    assert_eq!((joins.code, waits.wait_for_end(PATIENCE)), (Some(0), Some(0)), "{joins:?}");
    let allow = finish(as_host("lab3", command_in(&harness, &network.router, &["allow", "desk", "zero"])), PATIENCE);
    assert_eq!(allow.code, Some(0), "{allow:?}");
    let config = harness.path("farbus.toml");
    std::fs::write(&config, "plain.listen=[]\nsecure.listen=['10.111.2.1:0']\nshare=[{what='zero'}]").unwrap();
    let arguments = ["daemon", "--config", config.to_str().unwrap()];
    let daemon = Share::follow(Running::start(as_host("lab3", command_in(&harness, &network.router, &arguments))));
    let list = || finish(as_host("desk", command_in(&harness, &network.near, &["list", "lab3", "--json"])), PATIENCE);
    wait_until(PATIENCE, "it is found", || list().code == Some(0));
    let listed: serde_json::Value = serde_json::from_str(&list().stdout).unwrap();
    assert_eq!((&listed[0]["name"], &listed[0]["state"]), (&"zero".into(), &"available".into()));
    // It is remembered, so the next question needs no announcement.
    let peers = finish(as_host("desk", command_in(&harness, &network.near, &["peers", "--json"])), PATIENCE);
    let peers: serde_json::Value = serde_json::from_str(&peers.stdout).unwrap();
    assert_eq!(peers[0]["address"], daemon.address.as_str());
    // The next move, found by a session: its links are shown where they lead.
    drop(daemon);
    let daemon = Share::follow(Running::start(as_host("lab3", command_in(&harness, &network.router, &arguments))));
    let socket = harness.path("zero.sock");
    let words = ["attach", "lab3/zero", "--via", "redir", "--socket", socket.to_str().unwrap(), "--wait"];
    let attach = || Running::start(as_host("desk", command_in(&harness, &network.near, &words)));
    let mut attached = attach();
    while !attached.has_line_before_its_end(socket.to_str().unwrap()) {
        attached = attach();
    }
    let status = finish(as_host("desk", command_in(&harness, &network.near, &["status", "--json"])), PATIENCE);
    let status: serde_json::Value = serde_json::from_str(&status.stdout).unwrap();
    let peer = &status[0]["devices"][0]["links"]["each"][0]["peer"];
    assert_eq!(peer, &format!("lab3 ({})", daemon.address), "{status}");
}

#[test]
fn share_for_paired_hosts_announces_itself_unless_it_is_told_not_to() {
    let network = Network::lay("share");
    if !has("network namespaces", network.is_some()) {
        return;
    }
    let network = network.expect("looked at just now");
    let harness = Harness::new();
    let [lab3, desk] = hosts(&harness);
    let on_lab3 = |arguments: &[&str]| lab3.equip(command_in(&harness, &network.router, arguments));
    let on_desk = |arguments: &[&str]| desk.equip(command_in(&harness, &network.near, arguments));
    let pairing = ["pair", "--listen", "10.111.2.1:0", "--allow", "zero", "--json"];
    let mut waiting = Running::start(on_lab3(&pairing));
    let (address, code) = next_code(&waiting);
    let paired = finish(on_desk(&["pair", &address, &code]), PATIENCE);
    assert_eq!((paired.code, waiting.wait_for_end(PATIENCE)), (Some(0), Some(0)), "{paired:?}");
    // Each share has another port, which desk can only hear of.
    let share = |more: &[&str]| {
        let arguments = [&["share", "zero", "--listen", "none", "--secure", "10.111.2.1:0"], more].concat();
        let share = Running::start(on_lab3(&arguments));
        share.wait_for_line("for paired hosts");
        share
    };
    let list = || finish(on_desk(&["list", "lab3", "--json"]), PATIENCE);
    let mut announced = share(&[]);
    wait_until(PATIENCE, "it is found", || list().code == Some(0));
    announced.signal(rustix::process::Signal::INT);
    assert_eq!(announced.wait_for_end(PATIENCE), Some(0), "{}", announced.log());
    let _silent = share(&["--no-announce"]);
    let lost = list();
    assert_eq!(lost.code, Some(5), "{lost:?}");
}

/// Reads past the kernel's cache until the disk is gone.
fn read_for_ever(path: &Path, turns: &AtomicU64) {
    let file = File::options().read(true).custom_flags(OFlags::DIRECT.bits().cast_signed()).open(path).unwrap();
    let mut block = vec![0; MIB as usize];
    while file.read_exact_at(&mut block, turns.fetch_add(1, Ordering::Relaxed) % 64 * MIB).is_ok() {}
}
