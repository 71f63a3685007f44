//! Device identity: names, orders and paths change and a device keeps its identity; another device in its place gets
//! another one.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use super::harness::{Harness, Outcome, PATIENCE, Running, Share, has, wait_until};
use super::restart::Later;
use super::trust::{Host, hosts, pair};

const MIB: u64 = 1 << 20;
/// The generation of a device whose owner adopted another medium for it once.
const ADOPTED_ONCE: u64 = 1 << 32;

/// The device of this name among those that a host's processes share.
fn device(status: &Value, name: &str) -> Value {
    let processes = status.as_array().unwrap().iter();
    let mut devices = processes.flat_map(|process| process["devices"].as_array().unwrap());
    devices.find(|device| device["name"] == name).unwrap_or_else(|| panic!("no {name} in {status}")).clone()
}

/// Id and generation of a device that this harness shares.
fn identity(harness: &Harness, name: &str) -> (String, u64) {
    let identity = device(&harness.json(&["status", "--json"]), name)["identity"].clone();
    (identity["id"].as_str().unwrap().to_owned(), identity["generation"].as_u64().unwrap())
}

fn id(harness: &Harness, name: &str) -> String {
    identity(harness, name).0
}

fn is_lasting(harness: &Harness, name: &str) -> bool {
    device(&harness.json(&["status", "--json"]), name)["identity"]["is_lasting"] == true
}

/// Whether a file here can be recognised again: not on every file system.
pub(super) fn has_lasting_files(harness: &Harness) -> bool {
    let image = disk(harness, "probe.img");
    let _share = harness.share(&[&image]);
    has("file system whose files are known again", is_lasting(harness, "disk"))
}

fn disk(harness: &Harness, name: &str) -> String {
    format!("disk:{}", harness.image(name, MIB).display())
}

fn path(disk: &str) -> &Path {
    Path::new(disk.strip_prefix("disk:").unwrap())
}

/// Ends a share with SIGTERM, which has to succeed.
fn end(mut share: Share) {
    share.process.signal(rustix::process::Signal::TERM);
    assert_eq!(share.process.wait_for_end(PATIENCE), Some(0));
}

fn refused(outcome: &Outcome, part: &str) {
    assert!(outcome.code != Some(0) && outcome.stderr.contains(part), "no '{part}' in {outcome:?}");
}

#[test]
fn devices_shared_in_another_order_keep_their_identities() {
    let harness = Harness::new();
    if !has_lasting_files(&harness) {
        return;
    }
    let (a, b) = (disk(&harness, "a.img"), disk(&harness, "b.img"));
    let share = harness.share(&[&a, &b]);
    let (first, second) = (id(&harness, "disk"), id(&harness, "disk2"));
    assert_ne!(first, second);
    end(share);
    let mut share = harness.share(&[&b, &a]);
    assert_eq!((id(&harness, "disk"), id(&harness, "disk2")), (second.clone(), first.clone()));
    share.process.kill();
    let _share = harness.share(&[&a, &b]);
    assert_eq!((id(&harness, "disk"), id(&harness, "disk2")), (first, second), "also when nobody said that it ends");
}

#[test]
fn a_renamed_file_is_the_same_device_and_a_copy_a_part_and_a_longer_file_are_others() {
    let harness = Harness::new();
    if !has_lasting_files(&harness) {
        return;
    }
    let a = disk(&harness, "a.img");
    let shared_as = |what: &str| {
        let share = harness.share(&[what]);
        let found = id(&harness, "disk");
        end(share);
        found
    };
    let before = shared_as(&a);
    let moved = format!("disk:{}", harness.path("moved.img").display());
    fs::rename(path(&a), path(&moved)).unwrap();
    assert_eq!(shared_as(&moved), before);
    let copy = format!("disk:{}", harness.path("copy.img").display());
    fs::copy(path(&moved), path(&copy)).unwrap();
    let views = [copy, format!("{moved},ro"), format!("{moved},offset=4096"), format!("{moved},sector=4096")];
    let mut ids: Vec<String> = views.iter().map(|view| shared_as(view)).collect();
    ids.push(before.clone());
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), 5, "each is a device of its own");
    fs::File::options().write(true).open(path(&moved)).unwrap().set_len(2 * MIB).unwrap();
    assert_ne!(shared_as(&moved), before);
}

#[test]
fn a_loop_device_is_its_backing_file() {
    let harness = Harness::new();
    if !has_lasting_files(&harness) {
        return;
    }
    let image = harness.image("backing.img", MIB);
    let attach = |path: &Path| {
        let output = Command::new("losetup").args(["-f", "--show"]).arg(path).output().ok()?;
        output.status.success().then(|| String::from_utf8(output.stdout).unwrap().trim().to_owned())
    };
    let detach = |device: &str| assert!(Command::new("losetup").args(["-d", device]).status().unwrap().success());
    let Some(first) = attach(&image) else {
        has("loop devices", false);
        return;
    };
    let share = harness.share(&[&format!("disk:{first}")]);
    let before = id(&harness, "disk");
    end(share);
    detach(&first);
    // Another image now has that loop device's number.
    let other = attach(&harness.image("other.img", MIB)).unwrap();
    let second = attach(&image).unwrap();
    let share = harness.share(&[&format!("disk:{second}"), &format!("disk:{other}")]);
    let after = (id(&harness, "disk"), id(&harness, "disk2"));
    end(share);
    detach(&second);
    detach(&other);
    assert_eq!(after.0, before);
    assert_ne!(after.1, before);
}

#[test]
fn memory_scratch_views_and_devices_of_code_are_others_in_another_process() {
    let harness = Harness::new();
    let scratch = format!("{},scratch", disk(&harness, "a.img"));
    let what = ["memory:1M", &scratch, "keyboard", "keyboard", "stream:pattern"];
    let names = ["memory", "disk", "keyboard", "keyboard2", "stream"];
    let ids = || names.map(|name| id(&harness, name));
    let share = harness.share(&what);
    let before = ids();
    assert_eq!(ids(), before);
    assert!(names.iter().all(|name| !is_lasting(&harness, name)));
    assert_ne!(before[2], before[3], "two keyboards are two devices");
    end(share);
    let _share = harness.share(&what);
    let after = ids();
    assert!(before.iter().all(|id| !after.contains(id)), "{before:?} {after:?}");
}

#[test]
fn restarted_daemon_knows_the_same_devices_and_new_memory_is_another_device() {
    let harness = Harness::new();
    let image = disk(&harness, "a.img");
    let text = format!(
        "plain.listen = ['127.0.0.1:0']\nshare = [{{what='{image}'}}, {{what='keyboard'}}, {{what='zero', name='z'}}, {{what='memory:1M'}}]"
    );
    let file = harness.path("run").join("farbus.toml");
    fs::write(&file, text).unwrap();
    let mut daemon = Share::follow(Running::start(harness.command(&["daemon", "--config", file.to_str().unwrap()])));
    let names = ["disk", "keyboard", "z", "memory"];
    let before = names.map(|name| id(&harness, name));
    let later = Later::of(&harness.json(&["daemon", "restart", "--interrupt", "--json"]));
    assert_eq!(daemon.process.wait_for_end(PATIENCE), Some(0));
    let count = || harness.json(&["status", "--json"]).pointer("/0/devices").and_then(Value::as_array).map(Vec::len);
    wait_until(PATIENCE, "it shares", || count() == Some(4));
    let after = names.map(|name| id(&harness, name));
    assert_eq!(before[..3], after[..3]);
    assert_ne!(before[3], after[3], "what was in memory is gone");
    later.end();
}

#[test]
fn a_daemon_that_reads_another_order_shares_the_same_devices() {
    let harness = Harness::new();
    if !has_lasting_files(&harness) {
        return;
    }
    let (a, b) = (disk(&harness, "a.img"), disk(&harness, "b.img"));
    let file = harness.path("farbus.toml");
    let write = |shares: &str| {
        fs::write(&file, format!("plain.listen = ['127.0.0.1:0']\nshare = [{shares}]")).unwrap();
    };
    write(&format!("{{what='{a}'}}, {{what='{b}'}}"));
    let _daemon = Share::follow(Running::start(harness.command(&["daemon", "--config", file.to_str().unwrap()])));
    let before = (id(&harness, "disk"), id(&harness, "disk2"));
    write(&format!("{{what='{b}'}}, {{what='{a}'}}"));
    assert_eq!(harness.run(&["daemon", "reload"]).code, Some(0));
    assert_eq!((id(&harness, "disk2"), id(&harness, "disk")), before);
    // A given name stays with its device, and giving the same name again changes nothing.
    write(&format!("{{what='{b}', name='disk'}}, {{what='{a}', name='disk2'}}"));
    let reloaded = harness.run(&["daemon", "reload"]);
    assert!(reloaded.stdout.contains("nothing changed"), "{reloaded:?}");
    assert_eq!(device(&harness.json(&["status", "--json"]), "disk")["is_named"], true);
    write(&format!("{{what='{a},name=x'}}"));
    refused(&harness.run(&["daemon", "--check", "--config", file.to_str().unwrap()]), "name = \"NAME\"");
}

#[test]
fn a_damaged_list_costs_identities_and_neither_shares_nor_what_is_in_it() {
    let harness = Harness::new();
    if !has_lasting_files(&harness) {
        return;
    }
    let a = disk(&harness, "a.img");
    let share = harness.share(&[&a]);
    let before = id(&harness, "disk");
    end(share);
    let list = harness.path("state").join("devices.json");
    let good = fs::read_to_string(&list).unwrap();
    fs::write(&list, &good[..good.len() / 2]).unwrap();
    let share = harness.share(&[&a]);
    assert!(!is_lasting(&harness, "disk") && id(&harness, "disk") != before);
    share.process.assert_logged("devices.json: it is damaged");
    refused(&harness.run(&["identity", "list"]), "it is damaged");
    refused(&harness.run(&["identity", "adopt", "disk", &before]), "it is damaged");
    end(share);
    assert_eq!(fs::read_to_string(&list).unwrap(), good[..good.len() / 2], "it is left to be repaired");
    fs::write(&list, good).unwrap();
    let _share = harness.share(&[&a]);
    assert_eq!(id(&harness, "disk"), before);
}

#[test]
fn a_name_is_given_to_one_device_and_refused_if_it_is_taken_or_no_name() {
    let harness = Harness::new();
    let (a, b) = (disk(&harness, "a.img"), disk(&harness, "b.img"));
    let share = |what: &[&str]| harness.run(&[&["share"], what, &["--listen", "127.0.0.1:0"]].concat());
    refused(&share(&["zero,name=x", "keyboard,name=x"]), "'x' is the name of another device already");
    refused(&share(&[&a, &format!("{b},name=disk")]), "'disk' is the name of another device already");
    for wrong in ["zero,name=all", "zero,name=1-1", "zero,name=", "zero,name=a,name=b"] {
        assert_eq!(share(&[wrong]).code, Some(2), "{wrong}");
    }
    let running = harness.share(&[&format!("{a},name=music"), &b, "bridge,name=cable"]);
    let status = harness.json(&["status", "--json"]);
    let names = ["music", "disk", "cable-a", "cable-b"].map(|name| device(&status, name)["is_named"].clone());
    assert_eq!(names, [true, false, true, true].map(Value::from));
    let listed = harness.run(&["list", &running.address]).stdout;
    assert!(listed.contains("music") && listed.contains("cable-b"), "{listed}");
    let known = harness.json(&["identity", "list", "--json"]);
    let music = known.as_array().unwrap().iter().find(|known| known["name"] == "music").unwrap();
    assert_eq!(music["is_named"], true);
}

#[test]
fn restored_disk_keeps_its_identity_only_after_its_owner_adopts_it() {
    let harness = Harness::new();
    if !has_lasting_files(&harness) {
        return;
    }
    let a = disk(&harness, "a.img");
    end(harness.share(&[&format!("{a},name=music")]));
    let share = harness.share(&[&a]);
    let (before, _) = identity(&harness, "disk");
    end(share);
    // As from a backup: the same name, another file.
    fs::rename(path(&a), harness.path("kept")).unwrap();
    fs::copy(harness.path("kept"), path(&a)).unwrap();
    let share = harness.share(&[&a, "keyboard"]);
    let (restored, _) = identity(&harness, "disk");
    assert_ne!(restored, before);
    let adopt = |device: &str, which: &str| harness.run(&["identity", "adopt", device, which]);
    refused(&adopt("tape", &before), "no device called 'tape'");
    refused(&adopt("disk", "cafecafecafe"), "farbus identity list");
    refused(&adopt("disk", &before[..5]), "at least 6 digits");
    refused(&adopt("keyboard", &before), "known again");
    refused(&adopt("disk:/nowhere", &before), "nothing at /nowhere");
    // The disk is in use under its new identity.
    let user = farbus::client::open(&share.library_target("disk")).unwrap();
    refused(&adopt("disk", &before[..12]), "farbus release disk");
    drop(user);
    wait_until(PATIENCE, "it is free", || device(&harness.json(&["status", "--json"]), "disk")["state"] == "available");
    let adopted = adopt("disk", &before[..12]);
    assert_eq!(adopted.code, Some(0), "{adopted:?}");
    assert_eq!(identity(&harness, "disk"), (before.clone(), ADOPTED_ONCE), "at once, as another medium of that device");
    assert!(adopt("disk", &before).stdout.contains("already"));
    end(share);
    let share = harness.share(&[&a, &format!("disk:{}", harness.path("kept").display())]);
    assert_eq!(identity(&harness, "disk"), (before.clone(), ADOPTED_ONCE));
    assert!(id(&harness, "disk2") != before && id(&harness, "disk2") != restored, "the old file is another device now");
    refused(&adopt("disk2", &before), "is shared now, as 'disk'");
    end(share);
    // By its former name, unless several devices had it.
    let kept = format!("disk:{}", harness.path("kept").display());
    refused(&adopt(&kept, "disk"), "is several devices");
    let by_path = adopt(&kept, &restored);
    assert_eq!(by_path.code, Some(0), "{by_path:?}");
    let _share = harness.share(&[&kept]);
    assert_eq!(id(&harness, "disk"), restored);
}

#[test]
fn a_swap_raises_the_generation_and_the_old_medium_is_another_device() {
    let harness = Harness::new();
    if !has_lasting_files(&harness) {
        return;
    }
    let a = disk(&harness, "a.img");
    let new = harness.path("new.img").to_str().unwrap().to_owned();
    let share = harness.share(&[&a, "zero"]);
    let (before, generation) = identity(&harness, "disk");
    assert_eq!(generation, 0);
    harness.json(&["swap", "disk", "--to", &format!("block:{new}"), "--json"]);
    assert_eq!(identity(&harness, "disk"), (before.clone(), 1));
    end(share);
    assert_eq!(harness.run(&["swap", "--forget", path(&a).to_str().unwrap()]).code, Some(0));
    let _share = harness.share(&[&a, &format!("disk:{new}")]);
    assert_eq!(identity(&harness, "disk2"), (before.clone(), 1));
    assert_ne!(id(&harness, "disk"), before);
}

/// The devices that `importer` may use of `exporter`, as `farbus list` shows them.
fn usable(importer: &Host<'_>, exporter: &str, address: &str) -> Vec<String> {
    let listed = importer.json(&["list", exporter, "--address", address, "--json"]);
    listed.as_array().unwrap().iter().map(|device| device["name"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn a_permission_for_an_automatic_name_follows_the_device_and_not_the_order() {
    let harness = Harness::new();
    if !has_lasting_files(&harness) {
        return;
    }
    let [lab3, desk] = hosts(&harness);
    pair(&lab3, &desk);
    let (a, b) = (disk(&harness, "a.img"), disk(&harness, "b.img"));
    let (mut share, address) = lab3.share(&[&a, &b]);
    let message = lab3.ok(&["allow", "desk", "disk"]);
    assert!(message.contains("desk may use: disk\n") && message.contains("disk is the device"), "{message}");
    assert_eq!(usable(&desk, "lab3", &address), ["disk"]);
    share.kill();
    let (mut share, address) = lab3.share(&[&b, &a]);
    assert_eq!(usable(&desk, "lab3", &address), ["disk2"], "it is the same disk");
    let attached = desk.run(&["attach", "lab3/disk", "--via", "nbd"]);
    assert_eq!(attached.code, Some(3), "the other one is not there for it: {attached:?}");
    let permissions = lab3.json(&["allow", "--json"]);
    assert_eq!(permissions[0]["by"], "identity");
    assert_eq!((&permissions[0]["now"], &permissions[0]["is_automatic"]), (&json!(["disk2"]), &json!(true)));
    // The permission is withdrawn under the device's current name.
    lab3.ok(&["forbid", "desk", "disk2"]);
    assert_eq!(usable(&desk, "lab3", &address), [""; 0]);
    share.kill();
    // A permission for a given name applies to whichever device has that name.
    let (mut share, _) = lab3.share(&[&format!("{a},name=music")]);
    lab3.ok(&["allow", "desk", "music"]);
    share.kill();
    let (_share, address) = lab3.share(&[&a, &format!("{b},name=music")]);
    assert_eq!(usable(&desk, "lab3", &address), ["music"]);
}

#[test]
fn permissions_of_before_stay_as_they_were_and_automatic_names_among_them_are_told() {
    let harness = Harness::new();
    let [lab3, desk] = hosts(&harness);
    pair(&lab3, &desk);
    // Nothing is shared: as in files of earlier versions, there is no device to bind the name to.
    lab3.ok(&["allow", "desk", "disk", "backup"]);
    let peers = fs::read_to_string(harness.path("lab3").join("peers.json")).unwrap();
    assert!(!peers.contains("bound"), "{peers}");
    let a = disk(&harness, "a.img");
    let (_share, address) = lab3.share(&[&a, "keyboard"]);
    assert_eq!(usable(&desk, "lab3", &address), ["disk"]);
    let message = lab3.ok(&["allow"]);
    assert!(message.contains("farbus allow desk disk") && !message.contains("farbus allow desk backup"), "{message}");
    let message = lab3.ok(&["allow", "desk", "keyboard"]);
    assert!(message.contains("keyboard cannot be known again") && message.contains("name=NAME"), "{message}");
    assert_eq!(usable(&desk, "lab3", &address), ["disk", "keyboard"]);
    lab3.ok(&["forbid", "desk", "all"]);
    assert!(lab3.ok(&["allow"]).contains("No paired host may use anything"));
}
