//! State and configuration of one release, read by the other; commands of one release to a process of the other.

use std::fs;
use std::path::Path;

use serde_json::Value;

use super::harness::{Harness, PATIENCE, wait_until};
use super::hosts::{Host, Previous, This, end, has_previous, pair};

fn allowed(host: &Host<'_>, peer: &str) -> Value {
    let peers = host.json(&["peers", "--json"]);
    let found = peers.as_array().unwrap().iter().find(|known| known["name"] == peer);
    found.unwrap_or_else(|| panic!("{peer} is known: {peers}"))["allow"].clone()
}

fn audit(host: &Host<'_>) -> Vec<Value> {
    let text = fs::read_to_string(host.harness.path(host.name).join("audit.log")).unwrap();
    text.lines().map(|line| serde_json::from_str(line).expect("each line of an audit log is JSON")).collect()
}

#[test]
fn keys_pairings_and_grants_are_those_of_the_previous_release_and_can_go_back_to_it() {
    if !has_previous() {
        return;
    }
    let harness = Harness::new();
    let (old, desk) = (Host::new(&harness, "lab3", Previous), Host::new(&harness, "desk", Previous));
    pair(&old, &desk);
    old.ok(&["allow", "desk", "disk"]);
    let fingerprint = old.json(&["id", "--json"])["fingerprint"].clone();
    let before = allowed(&old, "desk");
    // After the upgrade.
    let new = old.with(This);
    assert_eq!(new.json(&["id", "--json"])["fingerprint"], fingerprint);
    assert_eq!(allowed(&new, "desk"), before);
    new.ok(&["allow", "desk", "keyboard"]);
    let rack = Host::new(&harness, "rack", This);
    pair(&new, &rack);
    new.ok(&["allow", "rack", "all"]);
    let (share, address) = new.share_secure(&["keyboard", "zero"], "127.0.0.1:0");
    let seen = |host: &Host<'_>| {
        let listed = host.json(&["list", "lab3", "--address", &address, "--json"]);
        listed.as_array().unwrap().iter().map(|line| line["name"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(
        (seen(&desk), seen(&rack)),
        (vec!["keyboard".to_owned()], vec!["keyboard".to_owned(), "zero".to_owned()])
    );
    end(share);
    assert!(audit(&new).len() >= 4, "both releases wrote into one log");
    // Back on the previous release: what was added is still there.
    assert_eq!(old.json(&["id", "--json"])["fingerprint"], fingerprint);
    let text = |value: Value| value.to_string();
    assert!(text(allowed(&old, "desk")).contains("disk") && text(allowed(&old, "desk")).contains("keyboard"));
    assert!(!allowed(&old, "rack").is_null());
    old.ok(&["forbid", "desk", "keyboard"]);
    assert_eq!(allowed(&new, "desk"), before, "and forward again");
    old.ok(&["unpair", "rack"]);
    assert!(new.json(&["peers", "--json"]).as_array().unwrap().iter().all(|peer| peer["name"] != "rack"));
}

#[test]
fn configuration_of_the_previous_release_is_read_with_all_its_examples() {
    let harness = Harness::new();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/upgrade/release-0.1.0");
    let packaged = fs::read_to_string(folder.join("farbus.toml")).unwrap();
    let file = harness.path("farbus.toml");
    fs::write(&file, &packaged).unwrap();
    let new = Host::new(&harness, "lab3", This);
    new.ok(&["daemon", "--check", "--config", file.to_str().unwrap()]);
    // TOML permits a table once: examples of tables that are already there are left out.
    let examples: String =
        packaged.lines().filter_map(|line| line.strip_prefix("#: ")).map(|line| format!("{line}\n")).collect();
    assert!(!examples.is_empty(), "the packaged file has examples");
    let mut tables = Vec::<String>::new();
    for line in examples.lines() {
        match line.starts_with('[') {
            true => tables.push(format!("{line}\n")),
            false => {
                if let Some(table) = tables.last_mut() {
                    *table += &format!("{line}\n")
                }
            }
        }
    }
    let is_list = |table: &String| table.starts_with("[[share]]") || table.starts_with("[[usb]]");
    fs::write(&file, tables.into_iter().filter(is_list).collect::<String>()).unwrap();
    new.ok(&["daemon", "--check", "--config", file.to_str().unwrap()]);
    if has_previous() {
        new.with(Previous).ok(&["daemon", "--check", "--config", file.to_str().unwrap()]);
    }
}

#[test]
fn commands_of_either_release_are_understood_by_a_process_of_the_other() {
    if !has_previous() {
        return;
    }
    for (serves, asks) in [(Previous, This), (This, Previous)] {
        let harness = Harness::new();
        let (daemon_host, owner) = (Host::new(&harness, "lab3", serves), Host::new(&harness, "lab3", asks));
        let file = harness.path("farbus.toml");
        let write = |share: &str| {
            fs::write(&file, format!("plain.listen = ['127.0.0.1:0']\nshare = [{share}]")).unwrap();
        };
        write("{what='keyboard', name='k'}, {what='memory:1M'}");
        let daemon = daemon_host.start(&["daemon", "--config", file.to_str().unwrap()]);
        daemon.wait_for_line("listening on");
        let status = owner.json(&["status", "--json"]);
        assert_eq!(status[0]["role"], "daemon", "{status}");
        assert_eq!(status[0]["devices"].as_array().map(Vec::len), Some(2), "{status}");
        assert!(owner.ok(&["status"]).contains("memory"));
        owner.ok(&["type", "k", "a"]);
        write("{what='keyboard', name='k'}, {what='zero'}");
        // 0.1.0 has brackets around the names.
        let reloaded = owner.ok(&["daemon", "reload"]).replace(['[', ']'], "");
        assert_eq!(reloaded.trim_end(), "reloaded: added zero, removed memory");
        let unused = owner.run(&["release", "k"]);
        assert!(unused.code == Some(4) && unused.stderr.contains("nobody uses 'k'"), "{unused:?}");
        assert_eq!(owner.run(&["release", "tape"]).code, Some(4));
        assert_eq!(owner.run(&["detach", "tape"]).code, Some(4));
        end(daemon);
        wait_until(PATIENCE, "nobody is left", || owner.json(&["status", "--json"]) == Value::Array(Vec::new()));
    }
}
