//! A state folder that takes nothing more, or whose files are damaged: what cannot be stored is not promised, what
//! takes a permission away works all the same, and the owner sees which file it is and what to type.

use std::fs;
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Duration;

use rustix::process::Signal;

use super::full_disk::SmallDisk;
use super::harness::{Harness, PATIENCE, Running, has, has_fuse, wait_until};
use super::trust::{Host, hosts, pair, three};

/// A small disk for the state of lab3; `None` where this machine permits none.
fn small_disk(harness: &Harness) -> Option<SmallDisk> {
    let disk = SmallDisk::mount(harness.path("lab3")).filter(|_| has_fuse());
    has("rights to mount", disk.is_some());
    disk
}

fn share(lab3: &Host<'_>, what: &[&str], address: &str) -> (Running, String) {
    let share = lab3.start(&[&["share"], what, &["--listen", "none", "--secure", address]].concat());
    let line = share.wait_for_line("for paired hosts");
    let address = line.split_whitespace().nth(2).unwrap().to_owned();
    (share, address)
}

/// Attaches a device of lab3's at a folder of the host's, until the process ends.
fn attach(host: &Host<'_>, device: &str) -> (Running, PathBuf) {
    let at = host.harness.path(&format!("{}-{device}", host.name));
    let attached = host.start(&["attach", &format!("lab3/{device}"), "--via", "fuse", "--at", at.to_str().unwrap()]);
    attached.wait_for_line("attached as ");
    (attached, at.join("disk.img"))
}

/// Fills the first block of an attached disk, durably.
fn write(at: &Path, byte: u8) {
    let file = fs::File::options().write(true).open(at).unwrap();
    file.write_all_at(&[byte; 4096], 0).unwrap();
    file.sync_all().unwrap();
}

fn wait_until_free(lab3: &Host<'_>) {
    wait_until(PATIENCE, "it is free", || {
        let status = lab3.json(&["status", "--json"]);
        status[0]["devices"].as_array().unwrap().iter().all(|device| device["user"].is_null())
    });
}

fn detach((mut attached, _): (Running, PathBuf), lab3: &Host<'_>) {
    attached.signal(Signal::TERM);
    attached.wait_for_end(PATIENCE);
    wait_until_free(lab3);
}

#[test]
fn a_use_whose_number_cannot_be_stored_is_refused_and_earlier_reserved_numbers_fence_off_who_comes_back() {
    let harness = Harness::new();
    let Some(disk) = small_disk(&harness) else { return };
    let hosts = three(&harness);
    let [lab3, desk, rack] = &hosts;
    let what = ["used", "new"].map(|name| format!("disk:{},name={name}", harness.image(name, 1 << 20).display()));
    let what = [what[0].as_str(), what[1].as_str()];
    let (mut exporter, address) = share(lab3, &what, "127.0.0.1:0");
    for host in [desk, rack] {
        host.ok(&["list", "lab3", "--address", &address]);
    }
    detach(attach(rack, "used"), lab3);
    disk.fill();
    // It was never used: there is no room for its first number.
    let refused = rack.run(&["attach", "lab3/new", "--via", "fuse"]);
    assert_eq!(refused.code, Some(3), "{refused:?}");
    let folder = harness.path("lab3");
    assert!(refused.stderr.contains("cannot be stored") && refused.stderr.contains("No space left"), "{refused:?}");
    assert!(refused.stderr.contains(&format!("df -h {}", folder.display())), "{refused:?}");
    exporter.assert_logged("the number of its use cannot be stored");
    wait_until_free(lab3);

    // The other one goes on with numbers for which there was room.
    let (mut stopped, at) = attach(desk, "used");
    write(&at, 1);
    stopped.signal(Signal::STOP);
    exporter.kill();
    let (exporter, _) = share(lab3, &what, &address);
    let (attached, at) = attach(rack, "used");
    write(&at, 2);
    detach((attached, at), lab3);
    stopped.signal(Signal::CONT);
    assert_ne!(stopped.wait_for_end(PATIENCE), Some(0), "{}", stopped.log());
    stopped.assert_logged("somebody has a later lease of it");
    assert_eq!(fs::read(harness.path("used")).unwrap()[..4096], [2; 4096]);
    assert!(!exporter.log().contains("panicked"));

    disk.make_room();
    detach(attach(rack, "new"), lab3);
}

#[test]
fn a_disk_in_a_read_only_state_folder_is_refused_if_it_is_known_there_and_another_one_ends_with_the_share() {
    let harness = Harness::new();
    let Some(disk) = small_disk(&harness) else { return };
    let [lab3, desk] = hosts(&harness);
    pair(&lab3, &desk);
    lab3.ok(&["allow", "desk", "all"]);
    let known = format!("disk:{},name=known", harness.image("known", 1 << 20).display());
    let new = format!("disk:{},name=new", harness.image("new", 1 << 20).display());
    let (first, _) = share(&lab3, &[&known], "127.0.0.1:0");
    drop(first);
    disk.make_read_only(true);
    let (exporter, address) = share(&lab3, &[&known, &new], "127.0.0.1:0");
    desk.ok(&["list", "lab3", "--address", &address]);
    let refused = desk.run(&["attach", "lab3/known", "--via", "fuse"]);
    assert!(refused.code == Some(3) && refused.stderr.contains("Read-only file system"), "{refused:?}");
    assert!(refused.stderr.contains("make the folder writable"), "{refused:?}");
    // This one has no identity that outlives the share, so nobody continues with it after that.
    detach(attach(&desk, "new"), &lab3);
    disk.make_read_only(false);
    detach(attach(&desk, "known"), &lab3);
    drop(exporter);
}

/// What peers.json allows desk; panics if it is no whole file.
fn allowed(folder: &Path) -> Vec<String> {
    let peers: serde_json::Value = serde_json::from_slice(&fs::read(folder.join("peers.json")).unwrap()).unwrap();
    let allow = peers["peers"][0]["allow"].as_array().unwrap();
    allow.iter().map(|name| name.as_str().unwrap().to_owned()).collect()
}

#[test]
fn what_was_allowed_is_taken_away_on_a_full_disk_and_nothing_is_torn_by_a_kill() {
    let harness = Harness::new();
    let Some(disk) = small_disk(&harness) else { return };
    let [lab3, desk] = hosts(&harness);
    pair(&lab3, &desk);
    let names: Vec<String> = (0..40).map(|number| format!("d{number}")).collect();
    let words: Vec<&str> = names.iter().map(String::as_str).collect();
    lab3.ok(&[&["allow", "desk"], &words[..]].concat());
    let image = format!("disk:{},name=d0", harness.image("d0", 1 << 20).display());
    let (_exporter, address) = share(&lab3, &[&image], "127.0.0.1:0");
    desk.ok(&["list", "lab3", "--address", &address]);
    desk.ok(&["lease", "lab3/d0", "--for", "1h"]);
    let token = lab3.json(&["page", "token", "create", "--scope", "read", "--name", "ci", "--json"]);
    assert!(token.is_object(), "{token}");
    disk.fill();
    let folder = harness.path("lab3");

    let refused = lab3.run(&["allow", "desk", "one-more"]);
    assert!(refused.code == Some(1) && refused.stderr.contains("No space left"), "{refused:?}");
    lab3.ok(&["page", "token", "revoke", "ci"]);
    assert!(!fs::read_to_string(folder.join("page-tokens.json")).unwrap().contains("\"ci\""));
    let mut left = allowed(&folder);
    for (number, name) in names.iter().enumerate().skip(1).take(20) {
        let mut forbid = lab3.start(&["forbid", "desk", name]);
        // waits: a fault comes at a moment that is never the same
        thread::sleep(Duration::from_millis(number as u64));
        forbid.kill();
        let now = allowed(&folder);
        assert!(now == left || now.len() + 1 == left.len(), "{now:?} after {left:?}");
        left = now;
    }
    lab3.ok(&["release", "d0", "--force"]);
    let stored = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path());
    let lease = stored.filter(|path| path.to_string_lossy().contains("/lease-")).map(fs::read_to_string);
    assert!(lease.map(Result::unwrap).all(|lease| !lease.contains("\"desk\"")), "it is not leased after a restart");
    lab3.ok(&["forbid", "desk", "all"]);
    assert_eq!(allowed(&folder), [""; 0]);
    let refused = desk.run(&["attach", "lab3/d0", "--via", "fuse"]);
    assert!(matches!(refused.code, Some(3..=5)), "{refused:?}");
}

#[test]
fn damaged_state_closes_and_its_owner_sees_which_file_and_what_to_type() {
    let harness = Harness::new();
    let [lab3, desk] = hosts(&harness);
    pair(&lab3, &desk);
    lab3.ok(&["allow", "desk", "all"]);
    let image = format!("disk:{},name=disk", harness.image("disk", 1 << 20).display());
    let (exporter, address) = share(&lab3, &[&image], "127.0.0.1:0");
    desk.ok(&["list", "lab3", "--address", &address]);
    desk.ok(&["lease", "lab3/disk", "--for", "1h"]);
    desk.ok(&["lease", "release", "lab3/disk"]);
    drop(exporter);
    let folder = harness.path("lab3");
    let is_lease = |path: &PathBuf| path.file_name().unwrap().to_string_lossy().starts_with("lease-");
    let lease = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).find(is_lease).unwrap();
    fs::write(&lease, "{").unwrap();
    let (mut exporter, _) = share(&lab3, &[&image], &address);
    let rm = format!("rm {}", lease.display());
    exporter.assert_logged(&rm);
    let refused = desk.run(&["attach", "lab3/disk", "--via", "redir"]);
    assert!(refused.code == Some(3) && refused.stderr.contains(&rm), "{refused:?}");
    assert!(!exporter.log().contains("it was moved away"), "{}", exporter.log());
    let status = lab3.json(&["status", "--json"])[0]["devices"][0].clone();
    assert!(status["state"] == "failed" && status["trouble"].as_str().unwrap().contains(&rm), "{status}");
    assert!(lab3.ok(&["status"]).contains(&rm));
    let doctor = |part: &str| {
        let found = lab3.json(&["doctor", "--json"]);
        let line = found.as_array().unwrap().iter().find(|line| line["name"] == "state").unwrap().clone();
        assert!(line["state"] == "limited" && line["next"].as_str().unwrap().contains(part), "{line}");
    };
    doctor(&rm);
    exporter.kill();
    fs::remove_file(&lease).unwrap();

    let tokens = folder.join("page-tokens.json");
    lab3.ok(&["page", "token", "create", "--scope", "read", "--name", "ci"]);
    fs::write(&tokens, "{").unwrap();
    let page = lab3.start(&["page", "--listen", "127.0.0.1:0"]);
    page.wait_for_line("page at http://");
    page.assert_logged("page-tokens.json: it is damaged");
    doctor("farbus page token create");
    drop(page);
    fs::remove_file(&tokens).unwrap();

    let peers = folder.join("peers.json");
    let whole = fs::read(&peers).unwrap();
    fs::write(&peers, "").unwrap();
    let mv = format!("mv {0} {0}.damaged", peers.display());
    let (exporter, _) = share(&lab3, &[&image], &address);
    exporter.assert_logged(&mv);
    doctor(&mv);
    assert_ne!(desk.run(&["attach", "lab3/disk", "--via", "redir"]).code, Some(0));
    drop(exporter);
    fs::write(&peers, whole).unwrap();

    let key = folder.join("key.pem");
    fs::write(&key, "-----BEGIN PRIVATE KEY-----\nMC4CAQ\n").unwrap();
    let refused = lab3.run(&["share", &image, "--listen", "none", "--secure", "127.0.0.1:0"]);
    let mv = format!("mv {0} {0}.damaged", key.display());
    assert!(refused.code == Some(1) && refused.stderr.contains(&mv), "{refused:?}");
    assert!(!refused.stderr.contains('['), "{refused:?}");
    doctor(&mv);
}

/// Keeps sixteen connections open at which it says nothing, as this user, until it is dropped.
fn keep_silent(harness: &Harness, address: &str, user: u32) -> Running {
    let (host, port) = address.rsplit_once(':').unwrap();
    let script = format!("for n in {{1..16}}; do exec {{fd}}<>/dev/tcp/{host}/{port}; done; echo all; exec sleep 600");
    let mut command: Command = harness.command_of(Path::new("bash"), &["-c", &script]);
    command.uid(user).gid(user);
    let silent = Running::start(command);
    silent.wait_for_line("all");
    silent
}

#[test]
fn a_user_that_keeps_all_places_of_a_page_keeps_no_other_users_program_out() {
    if !has("a second user", rustix::process::geteuid().is_root()) || !has("curl", super::harness::has_program("curl"))
    {
        return;
    }
    let harness = Harness::new();
    let page = super::page::open_page(&harness);
    let made = harness.json(&["page", "token", "create", "--scope", "read", "--json"]);
    let token = made["token"].as_str().unwrap_or_else(|| panic!("{made}")).to_owned();
    let ask = |user: u32| {
        let mut curl = Command::new("curl");
        curl.args(["-s", "-m", "60", "-o", "/dev/null", "-w", "%{http_code}", "-H"]);
        curl.arg(format!("Authorization: Bearer {token}")).arg(format!("http://{}/metrics", page.address));
        String::from_utf8(curl.uid(user).gid(user).output().unwrap().stdout).unwrap()
    };
    assert_eq!(ask(1700), "200", "nobody else is there");
    for _ in 0..5 {
        let _silent = keep_silent(&harness, &page.address, 1600);
        assert_eq!(ask(1700), "200");
        assert_eq!(ask(super::page::STRANGER), "200");
        assert_eq!(page.get("/readyz", "").body, "ready\n", "nor the owner");
    }
}
