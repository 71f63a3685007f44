//! Sessions over QUIC: the same keys and permissions, on worse networks.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use super::harness::{Harness, PATIENCE, Running, finish, has, has_program, wait_until};
use super::network::{FAR, Network, command_in, ip};
use super::run::can_run;
use super::trust::{Host, hosts, next_code, pair};

const BYTES: usize = 4 << 20;
/// How long a peer that says nothing is waited for (`farbus_io_net::trust::end_quic`).
const SILENCE: Duration = Duration::from_secs(4);

/// A file in which no two places have the same content.
fn pattern(harness: &Harness) -> std::path::PathBuf {
    let path = harness.path("pattern");
    let words = (0..BYTES as u64 / 8).flat_map(|at| at.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes());
    std::fs::write(&path, words.collect::<Vec<u8>>()).unwrap();
    path
}

fn copy(command: Command) {
    let copied = finish(command, PATIENCE);
    assert_eq!(copied.code, Some(0), "{copied:?}");
}

#[test]
fn disk_of_a_paired_host_is_used_over_quic() {
    had_over_quic("1");
}

#[test]
fn disk_of_a_paired_host_is_used_over_several_quic_links() {
    had_over_quic("3");
}

fn had_over_quic(links: &str) {
    if !has("nbdcopy", has_program("nbdcopy")) {
        return;
    }
    let harness = Harness::new();
    let [lab3, desk] = hosts(&harness);
    pair(&lab3, &desk);
    lab3.ok(&["allow", "desk", "all"]);
    let what = format!("disk:{}", harness.image("far.img", BYTES as u64).display());
    let share = lab3.start(&["share", &what, "--listen", "none", "--secure", "127.0.0.1:0"]);
    let line = share.wait_for_line("for paired hosts");
    let (address, socket) = (line.split_whitespace().nth(2).unwrap(), harness.path("far.sock"));
    let arguments = ["attach", "lab3/disk", "--over", "quic", "--address", address, "--via", "nbd", "--socket"];
    let mut attach = desk.start(&[&arguments[..], &[socket.to_str().unwrap(), "--links", links]].concat());
    attach.wait_for_line("attached");
    let uri = format!("nbd+unix:///?socket={}", socket.display());
    let (from, to) = (pattern(&harness), harness.path("back"));
    copy(harness.command_of(Path::new("nbdcopy"), &["--flush", from.to_str().unwrap(), &uri]));
    copy(harness.command_of(Path::new("nbdcopy"), &[&uri, to.to_str().unwrap()]));
    assert!(std::fs::read(&from).unwrap() == std::fs::read(&to).unwrap(), "what was written is read");
    assert!(std::fs::read(&from).unwrap() == std::fs::read(harness.path("far.img")).unwrap());
    let status = lab3.json(&["status", "--json"]);
    assert_eq!(status[0]["devices"][0]["state"], "in use", "{status}");
    assert!(status[0]["devices"][0]["user"].as_str().is_some_and(|user| user.starts_with("desk (")), "{status}");
    // A host that is unpaired loses its running session, too.
    lab3.ok(&["unpair", "desk"]);
    assert_eq!(attach.wait_for_end(PATIENCE), Some(3), "{}", attach.log());

    let stranger = desk.run(&["attach", "127.0.0.1/disk", "--over", "quic", "--via", "nbd", "--grace", "5"]);
    assert!(stranger.code == Some(1) && stranger.stderr.contains("QUIC is for paired hosts"), "{stranger:?}");
    let plain = desk.run(&["attach", "lab3/disk", "--over", "quic", "--via", "nbd", "--grace", "0"]);
    assert!(plain.code == Some(1) && plain.stderr.contains("QUIC carries sessions"), "{plain:?}");
}

/// The exporter of a session over QUIC whose importer ends without a word waits 4 s before it notices, and then for the
/// session's grace period; its history then says that the link was lost.
#[test]
fn exporter_hears_the_last_words_of_farbus_run_over_quic_at_once_whatever_its_program_ended_with() {
    if !can_run() {
        return;
    }
    let harness = Harness::new();
    let [lab3, desk] = hosts(&harness);
    pair(&lab3, &desk);
    lab3.ok(&["allow", "desk", "all"]);
    let (_share, address) = lab3.share(&["zero"]);
    let device = || lab3.json(&["status", "--json"])[0]["devices"][0].clone();
    for code in [0, 7] {
        let mut times = Vec::new();
        for round in 1..=3 {
            // The program sees the device, and ends; nothing else ends the session.
            let script = format!("lsusb -d 0525:a4a0 || exit 1; exit {code}");
            let words = ["run", "lab3/zero", "--over", "quic", "--address", &address, "--", "sh", "-c", &script];
            let ran = desk.run(&words);
            let ended = Instant::now();
            assert_eq!(ran.code, Some(code), "{ran:?}");
            assert!(ran.stdout.contains("0525:a4a0"), "{ran:?}");
            wait_until(PATIENCE, "the device is free", || device()["state"] == "available");
            times.push(ended.elapsed());
            let history = device()["history"].clone();
            assert_eq!(history[0]["ended"], "detached", "round {round}, exit code {code}: {history}");
        }
        println!("exit code {code}: noticed after {times:?}");
        // A stall may have disturbed all rounds but one.
        let quickest = times.iter().min().expect("there was a round");
        assert!(*quickest < SILENCE / 2, "exit code {code}: {times:?}");
    }
}

/// A lossy network: 5 % of the packets are lost each way, and the importer's address changes during the session.
#[test]
fn quic_session_survives_a_new_address_and_heavy_packet_loss() {
    let network = Network::lay("quic");
    if !has("network namespaces", network.is_some()) || !has("nbdcopy", has_program("nbdcopy")) {
        return;
    }
    let network = network.expect("looked at just now");
    let harness = Harness::new();
    let [lab3, desk] = hosts(&harness);
    let there = |host: &Host<'_>, arguments: &[&str]| host.equip(command_in(&harness, &network.far, arguments));
    let here = |host: &Host<'_>, arguments: &[&str]| host.equip(command_in(&harness, &network.near, arguments));
    let listen = format!("{FAR}:0");
    let mut waiting = Running::start(there(&lab3, &["pair", "--listen", &listen, "--allow", "disk", "--json"]));
    let (address, code) = next_code(&waiting);
    let paired = finish(here(&desk, &["pair", &address, &code]), PATIENCE);
    assert_eq!((paired.code, waiting.wait_for_end(PATIENCE)), (Some(0), Some(0)), "{paired:?}");
    let what = format!("disk:{}", harness.image("far.img", BYTES as u64).display());
    let share = Running::start(there(&lab3, &["share", &what, "--listen", "none", "--secure", &listen]));
    let line = share.wait_for_line("for paired hosts");
    let address = line.split_whitespace().nth(2).unwrap();
    let is_lossy = [&network.near, &network.far].map(|host| {
        let words = format!("netns exec {host} tc qdisc add dev cable root netem loss 5% delay 2ms");
        ip(&words)
    });
    let from = pattern(&harness);
    for over in ["tcp", "quic"] {
        let socket = harness.path(&format!("{over}.sock"));
        let arguments = ["attach", "lab3/disk", "--over", over, "--address", address, "--via", "nbd", "--socket"];
        let mut attach = Running::start(here(&desk, &[&arguments[..], &[socket.to_str().unwrap()]].concat()));
        attach.wait_for_line("attached");
        let uri = format!("nbd+unix:///?socket={}", socket.display());
        let began = Instant::now();
        let write = || copy(harness.command_of(Path::new("nbdcopy"), &["--flush", from.to_str().unwrap(), &uri]));
        write();
        println!("{over}, loss {is_lossy:?}: 4 MiB written in {:?}", began.elapsed());
        if over == "quic" {
            // Another network: the old address is removed before the new one is added.
            assert!(ip(&format!("-n {} addr del 10.111.2.2/24 dev cable", network.near)));
            assert!(ip(&format!("-n {} addr add 10.111.2.77/24 dev cable", network.near)));
            assert!(ip(&format!("-n {} route replace default via 10.111.2.1", network.near)));
            let began = Instant::now();
            write();
            println!("{over}: from another address in {:?}", began.elapsed());
            assert!(!attach.log().contains("the link was lost"), "the same link goes on: {}", attach.log());
        }
        attach.signal(rustix::process::Signal::INT);
        assert_eq!(attach.wait_for_end(PATIENCE), Some(0), "{}", attach.log());
    }
    assert!(std::fs::read(&from).unwrap() == std::fs::read(harness.path("far.img")).unwrap());
}
