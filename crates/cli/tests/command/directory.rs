//! The directory of all sites on a real etcd: what daemons say there, what follows from it, and that sharing goes on
//! whatever becomes of it. Tests wait for what has to become so, and never look at a moment that may have passed.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};

use super::etcd::{Etcd, authority, has_etcd};
use super::harness::{Harness, PATIENCE, Running, wait_until};
use super::trust::{Host, hosts, pair, three};

/// What the directory is waited for: a watch is at once, a lost member takes seconds to be noticed.
pub const WITHIN: Duration = Duration::from_secs(60);
/// How long to wait where a directory is full of keys: a debug build reads them beside other tests.
const FLOODED: Duration = Duration::from_secs(180);

/// The daemon of a host.
pub struct Site<'h> {
    pub host: &'h Host<'h>,
    pub process: Running,
    pub address: String,
    file: PathBuf,
}

impl<'h> Site<'h> {
    /// Starts a daemon that serves paired hosts, with this configuration.
    pub fn start(host: &'h Host<'h>, text: &str) -> Self {
        let file = host.harness.path(&format!("{}.toml", host.name));
        fs::write(&file, configuration(text)).unwrap();
        let process = host.start(&["daemon", "--config", file.to_str().unwrap()]);
        let line = process.wait_for_line("for paired hosts");
        let address = line.split_whitespace().nth(2).unwrap().to_owned();
        Self { host, process, address, file }
    }

    /// Changes its configuration.
    fn reload(&self, text: &str) {
        fs::write(&self.file, configuration(text)).unwrap();
        self.host.ok(&["daemon", "reload"]);
    }

    /// What its status says of the directory.
    pub fn status(&self) -> Value {
        let status = self.host.json(&["status", "--json"]);
        let daemon = status.as_array().unwrap().iter().find(|process| process["role"] == "daemon");
        daemon.map(|daemon| daemon["directory"].clone()).unwrap_or_default()
    }

    /// Waits until the directory is in this trouble, or in none.
    pub fn wait_for_trouble(&self, kind: Option<&str>) -> Value {
        self.wait_for_trouble_within(WITHIN, kind)
    }

    fn wait_for_trouble_within(&self, within: Duration, kind: Option<&str>) -> Value {
        let began = Instant::now();
        loop {
            let status = self.status();
            let is_there = match kind {
                Some(kind) => status["trouble"]["kind"] == kind,
                None => status["state"] == "ok",
            };
            if is_there {
                return status;
            }
            let (name, log) = (self.host.name, self.process.log());
            assert!(began.elapsed() < within, "{name} is not in this trouble: {kind:?}, but {status}\n{log}");
            // waits: between two looks for an event
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Waits until it knows so many hosts, itself among them, and devices.
    pub fn wait_for_counts(&self, hosts: u64, devices: u64) {
        wait_until(WITHIN, &format!("{} knows {devices} devices of {hosts} hosts", self.host.name), || {
            let status = self.status();
            (&status["hosts"], &status["devices"]) == (&json!(hosts), &json!(devices))
        });
    }

    /// Waits until it knows a device by the directory that this is true for.
    pub fn wait_for(&self, what: &str, is_so: impl Fn(&Value) -> bool) {
        self.wait_for_within(WITHIN, what, is_so);
    }

    fn wait_for_within(&self, within: Duration, what: &str, is_so: impl Fn(&Value) -> bool) {
        wait_until(within, &format!("{}: {what}", self.host.name), || {
            self.known(&[]).as_array().unwrap().iter().any(&is_so)
        });
    }

    /// The devices of other hosts that it knows by the directory.
    pub fn known(&self, words: &[&str]) -> Value {
        self.host.json(&[&["list", "--directory", "--json"], words].concat())
    }

    pub fn knows(&self, target: &str) -> bool {
        self.known(&[]).as_array().unwrap().iter().any(|line| line["target"] == target)
    }
}

/// The devices that a host lists, without the hosts that did not answer.
fn devices(host: &Host<'_>, words: &[&str]) -> Vec<Value> {
    let listed = host.json(&[&["list", "--json"], words].concat());
    listed.as_array().unwrap().iter().filter(|line| line["failure"].is_null()).cloned().collect()
}

/// Top-level keys come before all tables.
fn configuration(text: &str) -> String {
    let (top, tables): (Vec<&str>, Vec<&str>) = text.lines().partition(|line| line.starts_with("directory = "));
    format!("{}\nsecure = {{listen=['127.0.0.1:0'], announce=false}}\n{}\n", top.join("\n"), tables.join("\n"))
}

const BOARD: &str = "share = [{what='zero', name='board', labels={board='imx8'}, place='shelf 3'}]";

/// Two hosts, of which the second may use all of the first.
fn two(harness: &Harness) -> [Host<'_>; 2] {
    let [lab3, desk] = hosts(harness);
    pair(&lab3, &desk);
    lab3.ok(&["allow", "desk", "all"]);
    [lab3, desk]
}

#[test]
fn devices_of_all_sites_are_listed_and_leased_by_the_directory() {
    if !has_etcd() {
        return;
    }
    let harness = Harness::new();
    let hosts = three(&harness);
    let [lab3, desk, rack] = &hosts;
    let etcd = Etcd::start(&harness, 1, &[]);
    let mut at_lab3 = Site::start(lab3, &format!("{}\n{BOARD}", etcd.line()));
    let at_desk = Site::start(desk, &format!("{}\nshare = [{{what='zero', name='probe'}}]", etcd.line()));
    let at_rack = Site::start(rack, &etcd.line());
    for host in [desk, rack] {
        host.ok(&["list", "lab3", "--address", &at_lab3.address]);
    }
    rack.ok(&["list", "desk", "--address", &at_desk.address]);
    at_rack.wait_for("lab3's board", |line| line["target"] == "lab3/board");
    at_rack.wait_for("desk's probe", |line| line["target"] == "desk/probe");
    let known = at_rack.known(&["label:board=imx8", "free"]);
    let line = &known[0];
    assert_eq!(
        (known.as_array().unwrap().len(), &line["from"], &line["is_paired"]),
        (1, &json!("directory"), &json!(true))
    );
    assert_eq!((&line["place"], &line["state"]), (&json!("shelf 3"), &json!("available")), "{line}");
    let table = rack.ok(&["list", "--directory"]);
    assert!(table.contains("FROM") && table.contains("lab3/board"), "{table}");
    // What a paired host says itself comes first.
    // (A host that does not answer in time is shown by the directory.)
    wait_until(WITHIN, "lab3 says so itself", || {
        let listed = devices(rack, &["label:board=imx8"]);
        assert_eq!(listed.len(), 1, "{listed:?}");
        listed[0]["from"] == "host"
    });
    at_rack.wait_for_counts(3, 2);
    assert_eq!(at_rack.wait_for_trouble(None)["is_published"], true);
    assert!(rack.ok(&["status"]).contains("2 devices of 3 hosts"));
    let doctor = rack.json(&["doctor", "--json"]);
    let check = doctor.as_array().unwrap().iter().find(|line| line["name"] == "directory").unwrap();
    assert!(check["state"] == "ok" && check["found"].as_str().unwrap().contains("2 devices of 3 hosts"), "{check}");

    let leased = desk.json(&["lease", "label:board=imx8", "free", "--for", "2h", "--json"]);
    assert_eq!(leased["leases"][0]["target"], "lab3/board", "{leased}");
    at_rack.wait_for("the lease", |line| {
        line["target"] == "lab3/board"
            && line["lease"]["host"] == "desk"
            && line["lease"]["left_s"].as_u64() > Some(7000)
    });
    assert_eq!(at_rack.known(&["free", "host=lab3"]), json!([]));
    // The exporter is who grants; this one is waited for there.
    let refused = rack.run(&["lease", "label:board=imx8", "--no-wait"]);
    assert!(refused.code == Some(3) && refused.stderr.contains("desk"), "{refused:?}");
    // A device that nobody has yet is waited for in the directory.
    let waits = rack.start(&["lease", "label:board=new", "--for", "1m"]);
    waits.wait_for_line("waiting for 1 of the devices that are meant");
    desk.ok(&["lease", "release", "lab3/board"]);
    lab3.ok(&["label", "board", "board=new"]);
    waits.wait_for_line("lab3/board is leased");

    // Another process goes on under the same keys; one that ends takes them along at once.
    lab3.ok(&["daemon", "restart"]);
    let mut later = lab3.json(&["status", "--json"])[0]["pid"].as_i64();
    wait_until(WITHIN, "the new process publishes", || {
        later = lab3.json(&["status", "--json"])[0]["pid"].as_i64();
        at_lab3.status()["is_published"] == true
    });
    assert_eq!(at_lab3.process.wait_for_end(PATIENCE), Some(0));
    assert!(at_rack.knows("lab3/board"));
    let pid = rustix::process::Pid::from_raw(i32::try_from(later.unwrap()).unwrap()).unwrap();
    rustix::process::kill_process(pid, Signal::TERM).unwrap();
    // The lease would last for another minute.
    wait_until(Duration::from_secs(30), "its keys go", || !at_rack.knows("lab3/board"));
}

#[test]
fn attachments_go_on_while_the_directory_is_away_and_what_happened_is_told_later() {
    if !has_etcd() {
        return;
    }
    let harness = Harness::new();
    let hosts = two(&harness);
    let [lab3, desk] = &hosts;
    let mut etcd = Etcd::start(&harness, 3, &[]);
    let image = harness.image("disk.img", 1 << 20);
    let shares =
        format!("{}\nshare = [{{what='disk:{}', name='disk'}}, {{what='zero'}}]", etcd.line(), image.display());
    let at_lab3 = Site::start(lab3, &shares);
    let at_desk = Site::start(desk, &etcd.line());
    desk.ok(&["list", "lab3", "--address", &at_lab3.address]);
    at_desk.wait_for("lab3's disk", |line| line["target"] == "lab3/disk");

    // One of three: the others serve.
    etcd.kill(0);
    lab3.ok(&["label", "zero", "round=1"]);
    at_desk.wait_for("a change", |line| line["labels"]["round"] == "1");
    at_desk.wait_for_trouble(None);
    at_lab3.wait_for_trouble(None);

    // All: what was known stays, and devices are used as before.
    at_lab3.wait_for_counts(2, 2);
    at_desk.wait_for_counts(2, 2);
    etcd.kill(1);
    etcd.kill(2);
    for site in [&at_lab3, &at_desk] {
        let status = site.wait_for_trouble(Some("unreachable"));
        assert_eq!((&status["hosts"], &status["is_known"]), (&json!(2), &json!(true)), "{status}");
        assert!(site.host.ok(&["status"]).contains("sharing goes on"));
        let doctor = site.host.json(&["doctor", "--json"]);
        let check = doctor.as_array().unwrap().iter().find(|line| line["name"] == "directory").unwrap();
        assert_eq!(check["state"], "limited", "{check}");
    }
    let socket = harness.path("disk.sock");
    let attach = desk.start(&["attach", "lab3/disk", "--via", "nbd", "--socket", socket.to_str().unwrap()]);
    attach.wait_for_line("attached as");
    let listed = desk.run(&["list", "--directory", "--json"]);
    assert!(listed.stderr.contains("may be old") && listed.stdout.contains("lab3/disk"), "{listed:?}");

    (0..3).for_each(|number| etcd.restart(number));
    at_desk.wait_for("the use is told", |line| line["target"] == "lab3/disk" && line["state"] == "in use");
    at_desk.wait_for_trouble(None);
    at_lab3.wait_for_trouble(None);
    at_lab3.process.assert_logged("the directory serves this host again");
    assert!(attach.log().is_empty() || !attach.log().contains("lost"), "{}", attach.log());
}

#[test]
fn stopped_member_is_noticed_and_keeps_nobody_waiting() {
    if !has_etcd() {
        return;
    }
    let harness = Harness::new();
    let hosts = two(&harness);
    let [lab3, desk] = &hosts;
    let etcd = Etcd::start(&harness, 1, &[]);
    let at_lab3 = Site::start(lab3, &format!("{}\n{BOARD}", etcd.line()));
    let at_desk = Site::start(desk, &etcd.line());
    desk.ok(&["list", "lab3", "--address", &at_lab3.address]);
    at_desk.wait_for("the board", |line| line["target"] == "lab3/board");
    etcd.signal(0, Signal::STOP);
    lab3.ok(&["label", "board", "board=other"]);
    assert!(desk.ok(&["list", "lab3"]).contains("board=other"), "hosts are asked themselves");
    desk.ok(&["lease", "lab3/board", "--for", "1h"]);
    // A write that is not answered, and a watch that says nothing.
    for site in [&at_lab3, &at_desk] {
        site.wait_for_trouble(Some("unreachable"));
    }
    etcd.signal(0, Signal::CONT);
    at_desk.wait_for("what happened", |line| line["labels"]["board"] == "other" && line["lease"]["host"] == "desk");
    for site in [&at_lab3, &at_desk] {
        site.wait_for_trouble(None);
    }
}

#[test]
fn wrong_certificate_and_wrong_password_are_named_and_sharing_goes_on() {
    if !has_etcd() {
        return;
    }
    let harness = Harness::new();
    let hosts = two(&harness);
    let [lab3, desk] = &hosts;
    let etcd = Etcd::encrypted(&harness, &[]);
    for words in [
        &["user", "add", "root:top"][..],
        &["user", "grant-role", "root", "root"],
        &["role", "add", "lab"],
        &["role", "grant-permission", "lab", "--prefix=true", "readwrite", "/farbus/"],
        &["user", "add", "lab:secret"],
        &["user", "add", "guest:secret"],
        &["user", "grant-role", "lab", "lab"],
        &["auth", "enable"],
    ] {
        etcd.ctl(words);
    }
    let [password, other] = ["password", "other.pem"].map(|name| harness.path(name));
    fs::write(&other, authority().pem()).unwrap();
    fs::write(&password, "wrong\n").unwrap();
    fs::set_permissions(&password, fs::Permissions::from_mode(0o600)).unwrap();
    let text = |ca: &std::path::Path, user: &str| {
        let (ca, password) = (ca.display(), password.display());
        format!(
            "directory = {{at='etcds://{user}@{}', ca='{ca}', password_file='{password}'}}\n{BOARD}",
            etcd.members()
        )
    };
    let at_lab3 = Site::start(lab3, &text(&other, "lab"));
    let status = at_lab3.wait_for_trouble(Some("certificate"));
    assert!(status["trouble"]["next"].as_str().unwrap().contains("ca = "), "{status}");
    assert!(!status.to_string().contains("wrong"), "the password is not shown: {status}");
    assert!(desk.ok(&["list", "lab3", "--address", &at_lab3.address]).contains("board"));

    at_lab3.reload(&text(etcd.ca(), "lab"));
    let status = at_lab3.wait_for_trouble(Some("password"));
    assert!(status["trouble"]["next"].as_str().unwrap().contains("password_file"), "{status}");
    assert!(desk.ok(&["list", "lab3"]).contains("board"));

    fs::write(&password, "secret\n").unwrap();
    at_lab3.reload(&text(etcd.ca(), "guest"));
    let status = at_lab3.wait_for_trouble(Some("permission"));
    assert!(status["trouble"]["next"].as_str().unwrap().contains("grant-permission"), "{status}");

    at_lab3.reload(&text(etcd.ca(), "lab"));
    at_lab3.wait_for_trouble(None);
    at_lab3.wait_for_counts(1, 1);
    let log = at_lab3.process.log();
    for kind in ["certificate", "password", "permission"] {
        assert_eq!(log.matches(&format!("why=\"{kind}\"")).count(), 1, "{kind} is said once: {log}");
    }
    assert!(!log.contains("secret") && !log.contains("wrong\n"), "{log}");
}

#[test]
fn full_directory_is_named_and_written_once_there_is_room() {
    if !has_etcd() {
        return;
    }
    let harness = Harness::new();
    let hosts = two(&harness);
    let [lab3, desk] = &hosts;
    let etcd = Etcd::start(&harness, 1, &["--quota-backend-bytes", "1000000"]);
    let at_lab3 = Site::start(lab3, &format!("{}\n{BOARD}", etcd.line()));
    at_lab3.wait_for_trouble(None);
    desk.ok(&["list", "lab3", "--address", &at_lab3.address]);
    let much = "x".repeat(100 << 10);
    wait_until(PATIENCE, "it is full", || etcd.try_ctl(&["put", "much", &much]).is_none());
    lab3.ok(&["label", "board", "board=other"]);
    let status = at_lab3.wait_for_trouble(Some("full"));
    assert!(status["trouble"]["next"].as_str().unwrap().contains("etcdctl compaction"), "{status}");
    assert!(desk.ok(&["list", "lab3"]).contains("board=other"));
    desk.ok(&["lease", "lab3/board"]);

    etcd.ctl(&["compaction", &etcd.revision().to_string()]);
    etcd.ctl(&["defrag"]);
    etcd.ctl(&["alarm", "disarm"]);
    at_lab3.wait_for_trouble(None);
    let key = etcd.keys().into_iter().find(|key| key.ends_with("/board")).unwrap();
    assert!(etcd.ctl(&["get", &key]).contains(r#""board":"other""#));
}

#[test]
fn paired_hosts_are_seen_in_a_directory_that_one_member_floods_and_all_is_well_when_its_keys_have_gone() {
    if !has_etcd() {
        return;
    }
    let harness = Harness::new();
    let [lab3, desk] = two(&harness);
    let etcd = Etcd::start(&harness, 1, &[]);
    let lab = Site::start(&lab3, &format!("{}\n{BOARD}", etcd.line()));
    let site = Site::start(&desk, &etcd.line());
    site.wait_for_counts(2, 1);
    etcd.flood(66_560);
    let trouble = site.wait_for_trouble_within(FLOODED, Some("too-much"));
    assert!(trouble["trouble"]["message"].as_str().unwrap().contains("paired hosts last"), "{trouble}");
    // What a paired host shares meanwhile is seen, and so is all of it by one that begins now.
    let later = "share = [{what='zero', name='board'}, {what='zero', name='later'}]";
    lab.reload(&format!("{}\n{later}", etcd.line()));
    let message = lab3.ok(&["daemon", "reload"]);
    assert!(message.contains("nothing changed"), "{message}");
    site.wait_for_within(FLOODED, "shared meanwhile", |line| line["target"] == "lab3/later");
    drop(site);
    let site = Site::start(&desk, &etcd.line());
    site.wait_for_within(FLOODED, "read although there is no room", |line| line["target"] == "lab3/later");
    assert!(desk.ok(&["directory", "limit", "lab3", "--devices", "3"]).contains("lab3"), "limits are written, too");
    etcd.ctl(&["del", "--prefix", "/farbus/1/aaaa"]);
    site.wait_for_trouble_within(FLOODED, None);
    lab.wait_for_trouble_within(FLOODED, None);
    site.wait_for_counts(2, 2);
    fs::write(&lab.file, configuration(later)).unwrap();
    let message = lab3.ok(&["daemon", "reload"]);
    assert!(message.contains("removed directory etcd://"), "{message}");
}

/// A directory's answer is written from its records: no tree of all values is made.
#[test]
fn a_large_directory_takes_little_more_memory_while_it_is_asked_for() {
    const DEVICES: usize = 2000;
    if !has_etcd() {
        return;
    }
    let harness = Harness::new();
    let [_, desk] = two(&harness);
    let etcd = Etcd::start(&harness, 1, &[]);
    let site = Site::start(&desk, &etcd.line());
    let key = "b".repeat(52);
    etcd.ctl(&["put", &format!("/farbus/1/{key}"), r#"{"name":"far"}"#]);
    let text = "c".repeat(200);
    let value = json!({ "ids": "0403:6001", "title": "A board", "state": "available", "comment": text, "place": text, "labels": { "a": text, "b": text } });
    etcd.put_many((0..DEVICES).map(|number| (format!("/farbus/1/{key}/d{number}"), value.to_string())));
    site.wait_for_counts(2, DEVICES as u64);
    let before = site.process.peak_kib();
    let answer = site.known(&[]).to_string().len();
    for _ in 0..3 {
        site.wait_for("the last device", |line| line["name"] == format!("d{}", DEVICES - 1));
    }
    let grown = site.process.peak_grown_kib(before);
    println!("an answer of {answer} bytes, {before} KiB before, {grown} KiB more");
    assert!(answer > 4 * DEVICES * text.len() && grown * 1024 < answer as u64 * 4, "{answer} {before} {grown}");
}

#[test]
fn follower_that_missed_what_was_compacted_reads_all_again() {
    if !has_etcd() {
        return;
    }
    let harness = Harness::new();
    let hosts = two(&harness);
    let [_, desk] = &hosts;
    let mut etcd = Etcd::start(&harness, 1, &[]);
    let host = "b".repeat(52);
    let put = |etcd: &Etcd<'_>, device: &str| {
        etcd.ctl(&["put", &format!("/farbus/1/{host}/{device}"), r#"{"ids":"0403:6001","state":"available"}"#])
    };
    etcd.ctl(&["put", &format!("/farbus/1/{host}"), r#"{"name":"far"}"#]);
    put(&etcd, "old");
    let at_desk = Site::start(desk, &etcd.line());
    at_desk.wait_for("the first device", |line| line["name"] == "old");
    at_desk.wait_for_trouble(None);
    at_desk.process.signal(Signal::STOP);
    etcd.kill(0);
    etcd.restart(0);
    etcd.wait();
    etcd.ctl(&["del", &format!("/farbus/1/{host}/old")]);
    put(&etcd, "new");
    // Its keys, too, may have ended with its lease meanwhile.
    etcd.ctl(&["compaction", &etcd.revision().to_string()]);
    at_desk.process.signal(Signal::CONT);
    at_desk.wait_for("the other device", |line| line["name"] == "new");
    assert!(!at_desk.known(&[]).to_string().contains("old"));
    at_desk.wait_for_trouble(None);
}

#[test]
fn keys_of_another_release_are_left_alone_and_a_lease_that_etcd_ended_is_replaced() {
    if !has_etcd() {
        return;
    }
    let harness = Harness::new();
    let [lab3, _] = hosts(&harness);
    let etcd = Etcd::start(&harness, 1, &[]);
    etcd.ctl(&["put", "/farbus/format", "2"]);
    // A daemon begins without a directory, and gets one later.
    let at_lab3 = Site::start(&lab3, BOARD);
    assert!(at_lab3.status().is_null());
    let refused = lab3.run(&["list", "--directory"]);
    assert!(refused.code == Some(1) && refused.stderr.contains("directory = "), "{refused:?}");
    at_lab3.reload(&format!("{}\n{BOARD}", etcd.line()));
    let status = at_lab3.wait_for_trouble(Some("other-format"));
    assert!(status["trouble"]["message"].as_str().unwrap().contains("format '2'"), "{status}");
    assert!(etcd.keys().is_empty());
    etcd.ctl(&["del", "/farbus/format"]);
    at_lab3.wait_for_trouble(None);
    assert_eq!(etcd.ctl(&["get", "/farbus/format", "--print-value-only"]), "1");

    let lease = |etcd: &Etcd<'_>| etcd.ctl(&["lease", "list"]).lines().last().unwrap().to_owned();
    let first = lease(&etcd);
    etcd.ctl(&["lease", "revoke", &first]);
    wait_until(WITHIN, "all is said under another lease", || etcd.keys().len() == 2);
    assert_ne!(lease(&etcd), first);
    at_lab3.wait_for_trouble(None);
    // Without it, the keys go at once.
    at_lab3.reload(BOARD);
    wait_until(Duration::from_secs(30), "its keys go", || etcd.keys().is_empty());
    assert!(at_lab3.status().is_null());
}

#[test]
fn directory_that_lies_hides_devices_and_gives_access_to_none() {
    if !has_etcd() {
        return;
    }
    let harness = Harness::new();
    let hosts = three(&harness);
    let [lab3, desk, rack] = &hosts;
    let etcd = Etcd::start(&harness, 1, &[]);
    let at_lab3 = Site::start(lab3, &format!("{}\n{BOARD}", etcd.line()));
    let at_desk = Site::start(desk, &etcd.line());
    for host in [desk, rack] {
        host.ok(&["list", "lab3", "--address", &at_lab3.address]);
    }
    at_desk.wait_for("the board", |line| line["target"] == "lab3/board");
    rack.ok(&["lease", "lab3/board", "--for", "1h"]);
    at_desk.wait_for("the lease", |line| line["lease"]["host"] == "rack");

    let liar = "c".repeat(52);
    let own = etcd.keys().into_iter().find(|key| key.ends_with("/board")).unwrap();
    let true_host = own.strip_suffix("/board").unwrap();
    let free = r#"{"ids":"0403:6001","state":"available","labels":{"board":"imx8","ghost":"yes"}}"#;
    for (key, value) in [
        (format!("/farbus/1/{liar}"), r#"{"name":"lab3"}"#),
        (format!("/farbus/1/{liar}/board"), free),
        (format!("{true_host}/ghost"), free),
        (own.clone(), free),
        (format!("{true_host}/nonsense"), "[1, 2"),
        (format!("/farbus/1/{liar}/a\u{1b}[2J"), free),
        ("/farbus/1/x".to_owned(), "{}"),
    ] {
        etcd.ctl(&["put", &key, value]);
    }
    at_desk.wait_for("the lies", |line| line["host_key"] == liar.as_str() && line["name"] == "board");
    wait_until(WITHIN, "what is none is counted", || at_desk.status()["unfit"].as_u64() >= Some(3));
    let known = at_desk.known(&["label:ghost"]);
    let of_liar = known.as_array().unwrap().iter().find(|line| line["host_key"] == liar.as_str()).unwrap();
    assert!(of_liar["is_paired"] == false && of_liar["host"] != "lab3", "{of_liar}");
    assert!(desk.ok(&["list", "--directory"]).contains("directory, not paired"));
    // lab3 is asked itself: it has no ghost, and its board is leased.
    wait_until(WITHIN, "lab3 says so itself", || {
        let listed = devices(desk, &["host=lab3"]);
        listed.len() == 1 && listed[0]["from"] == "host" && listed[0]["lease"]["host"] == "rack"
    });
    for (words, code) in [
        (&["lease", "label:ghost", "--no-wait"][..], 4),
        (&["lease", "label:board=imx8", "--no-wait"], 3),
        (&["lease", "lab3/ghost", "--no-wait"], 4),
        (&["attach", "lab3/board", "--via", "redir"], 3),
        (&["attach", "lab3/ghost", "--via", "redir"], 4),
    ] {
        let refused = desk.run(words);
        assert_eq!(refused.code, Some(code), "{words:?}: {refused:?}");
    }
    // A host that sees lies about itself puts them right.
    at_desk.wait_for("the truth", |line| line["target"] == "lab3/board" && line["lease"]["host"] == "rack");
    wait_until(WITHIN, "there is no ghost of lab3", || !at_desk.knows("lab3/ghost"));
    at_lab3.process.assert_logged("it is put right");
    // What a directory hides is there for who asks the host.
    etcd.ctl(&["del", "--prefix", "/farbus/"]);
    assert!(desk.ok(&["list", "lab3"]).contains("board"));
    rack.ok(&["lease", "release", "lab3/board"]);
    desk.ok(&["lease", "lab3/board"]);
    at_desk.wait_for("the board again", |line| line["target"] == "lab3/board" && line["lease"]["host"] == "desk");
}
