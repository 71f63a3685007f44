//! `farbus daemon restart` while a migrating device waits for its successor: it keeps waiting in the replacement.

use std::path::PathBuf;

use super::harness::{Harness, PATIENCE, Running, wait_until};
use super::nbd_migrate::{Client, SIZE};
use super::restart::{exporter, restart};
use super::trust::{Host, three};

/// Runs `farbus attach lab3/DEVICE --via VIA` on a host; returns the process and its socket.
fn attach(host: &Host<'_>, address: &str, device: &str, via: &[&str]) -> (Running, PathBuf) {
    let socket = host.harness.path(&format!("{}-{device}.sock", host.name));
    let target = format!("lab3/{device}");
    let words = ["attach", &target, "--address", address, "--socket", socket.to_str().unwrap(), "--via"];
    let process = host.start(&[&words[..], via].concat());
    process.wait_for_line(socket.to_str().unwrap());
    (process, socket)
}

#[test]
fn migrated_device_waits_for_its_successor_across_a_restart() {
    let harness = Harness::new();
    let [lab3, desk, rack] = three(&harness);
    let [image, other] =
        ["image", "other"].map(|name| format!("{{what='disk:{}'}}", harness.image(name, SIZE).display()));
    let (mut daemon, _, address) = exporter(&harness, &lab3, &format!("{image}, {other}, {{what='keyboard'}}"));
    let (mut disk, socket) = attach(&desk, &address, "disk", &["nbd"]);
    let (other, other_socket) = attach(&desk, &address, "disk2", &["nbd"]);
    let (mut keyboard, _) = attach(&desk, &address, "keyboard", &["redir"]);
    let mut client = Client::connect(&socket);
    client.write(0, 7);
    drop(client);
    for device in ["disk", "disk2", "keyboard"] {
        desk.ok(&["migrate", device, "--to", "rack"]);
    }
    let waits = |log: &str| log.matches("it waits for its successor").count() == 3;
    wait_until(PATIENCE, "all of it waits", || waits(&daemon.log()));
    let _later = restart(&lab3, 3);
    assert_eq!(daemon.wait_for_end(PATIENCE), Some(0));
    let is_kept = || {
        let message = lab3.run(&["status", "--json"]).stdout;
        message.matches("\"in use\"").count() == 3
    };
    wait_until(PATIENCE, "all of it is kept there", is_kept);
    let refused = desk.run(&["attach", "lab3/disk", "--address", &address, "--via", "nbd"]);
    assert_eq!(refused.code, Some(3), "{refused:?}");

    let (_replacement, socket) = attach(&rack, &address, "disk", &["nbd"]);
    Client::connect(&socket).assert_reads(0, 7);
    let (_replacement, _) = attach(&rack, &address, "keyboard", &["redir", "--inherit"]);
    for attached in [&mut disk, &mut keyboard] {
        assert_eq!(attached.wait_for_end(PATIENCE), Some(0), "{}", attached.log());
        attached.assert_logged("linked again");
    }
    // No successor comes for this disk: it returns to its importer, in the process that waited.
    other.assert_logged("nobody came for the disk");
    Client::connect(&other_socket).write(0, 8);
}
