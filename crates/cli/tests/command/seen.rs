//! What an owner sees of what moves and of what is shared with many: readers, held devices, another medium, addresses.

use std::path::Path;

use serde_json::{Value, json};

use super::cluster::Cluster;
use super::harness::{Harness, PATIENCE, Running, has_fuse, wait_until};
use super::nbd_migrate::{Client, SIZE};
use super::trust::{Host, pair};

#[test]
fn every_reader_of_a_disk_is_shown_with_its_mode_here_and_in_lists() {
    let harness = Harness::new();
    let image = harness.image("image", SIZE);
    let cluster = Cluster::new(&harness, &[&format!("disk:{}", image.display())]);
    let (_one, _) = cluster.lend(0, "disk", "nbd", &["--mode", "read"]);
    let (_other, _) = cluster.lend(1, "disk", "nbd", &["--mode", "read"]);
    let status = cluster.exporter.ok(&["status"]);
    let list = cluster.hosts[0].ok(&["list", "lab3"]);
    for text in [&status, &list] {
        for reader in ["desk (127.0.0.1:", "rack (127.0.0.1:"] {
            let line = text.lines().find(|line| line.contains(reader));
            assert!(line.is_some_and(|line| line.contains("in use, read")), "{reader} in\n{text}");
        }
    }
    let listed = cluster.hosts[1].json(&["list", "lab3", "--json"])[0].clone();
    assert_eq!((&listed["mode"], listed["users"].as_array().map(Vec::len)), (&json!("read"), Some(2)), "{listed}");
}

#[test]
fn held_device_and_one_on_its_way_are_shown_as_such_at_both_ends() {
    let harness = Harness::new();
    let image = harness.image("image", SIZE);
    let cluster = Cluster::new(&harness, &[&format!("disk:{}", image.display())]);
    let (attach, socket) = cluster.lend(0, "disk", "nbd", &[]);
    let desk = &cluster.hosts[0];
    let state_here = || desk.json(&["status", "--json"])[0]["devices"][0]["state"].clone();
    let there = || cluster.exporter.json(&["status", "--json"])[0]["devices"][0].clone();
    let mut client = Client::connect(&socket);
    client.write(0, 1);
    assert_eq!(state_here(), "attached");
    desk.ok(&["hold", "disk"]);
    assert_eq!(state_here(), "held");
    desk.ok(&["resume", "disk"]);
    wait_until(PATIENCE, "it goes on", || state_here() == "attached");
    desk.ok(&["migrate", "disk", "--to", "rack"]);
    assert_eq!(state_here(), "held");
    assert_eq!(there()["successor"], Value::Null, "its client has not left");
    drop(client);
    wait_until(PATIENCE, "it is on its way", || state_here() == "handed over");
    wait_until(PATIENCE, "it is on its way", || there()["successor"] == "rack");
    assert_eq!(there()["state"], "in use");
    let status = cluster.exporter.ok(&["status"]);
    assert!(status.contains("handed over") && status.contains("disk: waits for rack"), "{status}");
    let released = cluster.exporter.run(&["release", "disk", "--force", "--reason", "the disk is needed here"]);
    assert_eq!(released.code, Some(0), "{released:?}");
    attach.assert_logged("released by its owner: the disk is needed here");
}

#[test]
fn medium_after_a_swap_is_shown_beside_the_name_of_the_first() {
    let harness = Harness::new();
    let old = harness.image("old.img", 1 << 20);
    let new = harness.path("new.img");
    let _share = harness.share(&[&format!("disk:{}", old.display())]);
    assert!(!harness.run(&["status"]).stdout.contains("now"), "nothing was swapped yet");
    let to = format!("block:{}", new.display());
    harness.json(&["swap", "disk", "--to", &to, "--json"]);
    let message = harness.run(&["status"]).stdout;
    assert!(message.contains(&format!("disk: its medium is now {to}")), "{message}");
}

#[test]
fn ipv4_addresses_are_shown_as_such_where_one_socket_serves_both() {
    let harness = Harness::new();
    let [lab3, desk] = ["lab3", "desk"].map(|name| Host { harness: &harness, name });
    pair(&lab3, &desk);
    lab3.ok(&["allow", "desk", "all"]);
    let share = lab3.start(&["share", "zero", "keyboard", "--listen", "none", "--secure", "[::]:0"]);
    let line = share.wait_for_line("for paired hosts");
    let port = line.split_whitespace().nth(2).unwrap().rsplit_once(':').unwrap().1.to_owned();
    let at = format!("127.0.0.1:{port}");
    for (device, over) in [("zero", "tcp"), ("keyboard", "quic")] {
        let socket = harness.path(device);
        let words = ["attach", &format!("lab3/{device}"), "--address", &at, "--over", over, "--via", "redir"];
        let attach = desk.start(&[&words[..], &["--socket", socket.to_str().unwrap()]].concat());
        attach.wait_for_line(socket.to_str().unwrap());
        let used = |status: &Value| status["name"] == *device && status["user"].is_string();
        let status = lab3.json(&["status", "--json"])[0]["devices"].clone();
        let user = status.as_array().unwrap().iter().find(|status| used(status)).map(|status| status["user"].clone());
        let user = user.unwrap_or_else(|| panic!("{device} is used: {status}"));
        assert!(user.as_str().unwrap().starts_with("desk (127.0.0.1:"), "{over}: {user}");
    }
    assert!(!share.log().contains("::ffff"), "{}", share.log());
}

#[test]
fn device_that_only_a_kernel_shows_fails_for_what_this_machine_lacks() {
    if Path::new("/sys/devices/platform/vhci_hcd.0").exists() {
        return;
    }
    let harness = Harness::new();
    let share = harness.share(&["keyboard"]);
    let outcome = harness.run(&["attach", &share.target("keyboard")]);
    assert_eq!(outcome.code, Some(1), "{outcome:?}");
    for part in ["modprobe vhci-hcd", "it is no disk", "--via redir"] {
        assert!(outcome.stderr.contains(part), "no '{part}' in {outcome:?}");
    }
    // Asked for as a disk, it is the device that is none.
    let outcome = harness.run(&["attach", &share.target("keyboard"), "--via", "fuse"]);
    assert_eq!(outcome.code, Some(6), "{outcome:?}");
}

#[test]
fn attach_with_json_prints_json_alone() {
    if !has_fuse() {
        return;
    }
    let harness = Harness::new();
    let share = harness.share(&["memory:1M"]);
    let at = harness.path("at");
    let target = share.target("memory");
    let words = ["attach", &target, "--via", "fuse", "--at", at.to_str().unwrap(), "--json"];
    let mut attach = Running::start(harness.command(&words));
    wait_until(PATIENCE, "it is attached", || Path::new(&at).join("disk.img").exists());
    harness.json(&["detach", "--json"]);
    assert_eq!(attach.wait_for_end(PATIENCE), Some(0), "{}", attach.log());
    let message = attach.rest();
    let answer: Value = serde_json::from_str(&message).unwrap_or_else(|error| panic!("{error}: {message}"));
    let file = at.join("disk.img");
    assert_eq!((&answer["target"], &answer["at"]), (&json!(target), &json!(file.to_str().unwrap())), "{answer}");
}
