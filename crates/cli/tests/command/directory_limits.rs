//! What a directory adds to leases: limits of a host for all exporters, who waits seen from elsewhere, and lists that
//! the daemon filters, with daemons and commands of an earlier release as well.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::thread;

use serde_json::{Value, json};

use super::directory::{Site, WITHIN};
use super::etcd::{Etcd, has_etcd};
use super::harness::{Harness, wait_until};
use super::trust::{Host, three};

/// Two exporters with devices for rack, and a daemon of rack's that follows the directory.
struct Lab<'a> {
    lab3: Site<'a>,
    desk: Site<'a>,
    rack: Site<'a>,
}

impl<'a> Lab<'a> {
    fn new(etcd: &Etcd<'_>, [lab3, desk, rack]: &'a [Host<'a>; 3], of_lab3: &str) -> Self {
        let shares = |names: &[&str]| {
            let all: Vec<String> = names.iter().map(|name| format!("{{what='zero', name='{name}'}}")).collect();
            format!("share = [{}]", all.join(", "))
        };
        desk.ok(&["allow", "rack", "all"]);
        let lab = Self {
            lab3: Site::start(lab3, &format!("{}\n{of_lab3}\n{}", etcd.line(), shares(&["a", "b", "c"]))),
            desk: Site::start(desk, &format!("{}\n{}", etcd.line(), shares(&["p", "q"]))),
            rack: Site::start(rack, &etcd.line()),
        };
        rack.ok(&["list", "lab3", "--address", &lab.lab3.address]);
        rack.ok(&["list", "desk", "--address", &lab.desk.address]);
        desk.ok(&["list", "lab3", "--address", &lab.lab3.address]);
        for site in [&lab.lab3, &lab.desk, &lab.rack] {
            site.wait_for_counts(3, 5);
        }
        lab
    }

    /// Waits until an exporter's daemon knows how many devices rack may have by the directory.
    fn wait_for_limit(&self, devices: Option<u64>) {
        for site in [&self.lab3, &self.desk] {
            wait_until(WITHIN, "the limit is known", || {
                let limits = site.host.json(&["directory", "limit", "--json"]);
                limits.as_array().unwrap().first().and_then(|limit| limit["devices"].as_u64()) == devices
            });
        }
    }
}

/// What a command that fails says for programs.
fn failure(host: &Host<'_>, words: &[&str]) -> (Option<i32>, Value) {
    let outcome = host.run(&[words, &["--json"]].concat());
    (outcome.code, serde_json::from_str(&outcome.stdout).unwrap_or_else(|_| panic!("{words:?}: {outcome:?}")))
}

fn assert_at_limit(host: &Host<'_>, words: &[&str], limit: &str) {
    let (code, failure) = failure(host, words);
    assert_eq!(
        (code, failure.to_string().contains(&format!("\"limit\":\"{limit}\""))),
        (Some(3), true),
        "{words:?}: {failure}"
    );
}

#[test]
fn limit_of_the_directory_holds_for_all_exporters_and_only_makes_theirs_narrower() {
    if !has_etcd() {
        return;
    }
    let harness = Harness::new();
    let hosts = three(&harness);
    let [_, desk, rack] = &hosts;
    let etcd = Etcd::start(&harness, 1, &[]);
    let lab = Lab::new(&etcd, &hosts, "peer_leases = 2\nlease_span = '2h'");
    assert!(desk.ok(&["directory", "limit"]).contains("No limit stands"));

    // Without one, the exporter's own holds, and desk has none.
    assert_at_limit(rack, &["lease", "lab3/a", "--for", "3h"], "lease_span");
    for target in ["lab3/a", "lab3/b", "desk/p"] {
        rack.ok(&["lease", target, "--for", "1h"]);
    }
    assert_at_limit(rack, &["lease", "lab3/c", "--for", "1h"], "peer_leases");
    assert_at_limit(rack, &["attach", "lab3/c", "--via", "redir"], "peer_leases");
    rack.ok(&["lease", "lab3/a", "--for", "1h"]);

    // One that allows more than the exporter does changes nothing; desk counts what rack has at lab3, too.
    let message = desk.ok(&["directory", "limit", "rack", "--devices", "3", "--for", "9h"]);
    assert!(message.contains("rack may have 3 devices"), "{message}");
    lab.wait_for_limit(Some(3));
    assert_at_limit(rack, &["lease", "lab3/c", "--for", "1h"], "peer_leases");
    lab.desk.wait_for("rack's second lease", |line| line["target"] == "lab3/b" && line["lease"]["host"] == "rack");
    assert_at_limit(rack, &["lease", "desk/q", "--for", "1h"], "directory_devices");
    assert_at_limit(rack, &["attach", "desk/q", "--via", "redir"], "directory_devices");
    assert_at_limit(rack, &["lease", "desk/q", "--from", "+5m", "--for", "10h"], "directory_span");
    let refused = rack.run(&["lease", "desk/q", "--for", "1h"]);
    assert!(refused.stderr.contains("3 devices (2 of other hosts)") && refused.stderr.contains("desk"), "{refused:?}");
    // What it has it keeps, and extends.
    rack.ok(&["lease", "extend", "desk/p", "--for", "2h"]);
    assert_at_limit(rack, &["lease", "extend", "desk/p", "--for", "10h"], "directory_span");
    rack.ok(&["lease", "release", "lab3/b"]);
    lab.desk.wait_for("it is free", |line| line["target"] == "lab3/b" && line["lease"].is_null());
    rack.ok(&["lease", "desk/q", "--for", "1h"]);

    // What is no limit is counted, and none; a limit that is taken away is none.
    let key = etcd.ctl(&["get", "--prefix", "/farbus/1/limit/", "--keys-only"]);
    let key = key.lines().next().unwrap();
    let unfit = lab.desk.status()["unfit"].as_u64().unwrap();
    etcd.ctl(&["put", key, &format!("{{\"devices\":0,\"by\":\"{}\"}}", "x".repeat(300))]);
    lab.wait_for_limit(None);
    wait_until(WITHIN, "it is counted", || lab.desk.status()["unfit"].as_u64() == Some(unfit + 1));
    etcd.ctl(&["put", key, "{\"devices\":0}"]);
    lab.wait_for_limit(Some(0));
    rack.ok(&["lease", "release", "desk/q"]);
    assert_at_limit(rack, &["lease", "desk/q"], "directory_devices");
    desk.ok(&["directory", "limit", "rack", "--none"]);
    lab.wait_for_limit(None);
    rack.ok(&["lease", "desk/q"]);
    assert!(etcd.ctl(&["get", "--prefix", "/farbus/1/limit/", "--keys-only"]).trim().is_empty());
    let refused = desk.run(&["directory", "limit", "nobody", "--devices", "1"]);
    assert!(refused.code == Some(1) && refused.stderr.contains("no paired host"), "{refused:?}");
}

#[test]
fn host_that_waits_is_seen_with_its_place_by_hosts_that_ask_only_the_directory() {
    if !has_etcd() {
        return;
    }
    let harness = Harness::new();
    let hosts = three(&harness);
    let [_, desk, rack] = &hosts;
    let etcd = Etcd::start(&harness, 1, &[]);
    let lab = Lab::new(&etcd, &hosts, "");
    desk.ok(&["lease", "lab3/a", "--for", "1h"]);
    let waits = rack.start(&["lease", "lab3/a", "--for", "90s"]);
    waits.wait_for_line("waiting for lab3/a, place 1");
    lab.desk.wait_for("rack waits", |line| {
        line["target"] == "lab3/a"
            && line["waiting"] == 1
            && line["queue"] == json!([{ "host": "rack", "priority": 0, "for_s": 90 }])
    });
    let table = desk.ok(&["list", "--directory", "name=a"]);
    assert!(table.contains("WAIT") && table.contains("rack"), "{table}");
    let leases = desk.ok(&["lease", "list"]);
    assert!(leases.contains("1: rack"), "{leases}");
    // Its host cannot be asked any more; what it said is known.
    lab.lab3.process.signal(rustix::process::Signal::STOP);
    let listed = desk.json(&["list", "--directory", "--json", "name=a"]);
    assert_eq!(listed[0]["queue"][0]["host"], "rack", "{listed}");
    lab.lab3.process.signal(rustix::process::Signal::CONT);
    desk.ok(&["lease", "release", "lab3/a"]);
    waits.wait_for_line("is leased");
    lab.desk.wait_for("nobody waits", |line| line["target"] == "lab3/a" && line["queue"].is_null());
}

/// The control socket of a host's daemon.
fn socket(host: &Host<'_>, pid: u32) -> PathBuf {
    host.harness.path(&format!("run-{}/farbus/{pid}.sock", host.name))
}

fn ask(host: &Host<'_>, pid: u32, question: &Value) -> Value {
    let mut stream = UnixStream::connect(socket(host, pid)).unwrap();
    stream.write_all(format!("{question}\n").as_bytes()).unwrap();
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line).unwrap();
    serde_json::from_str(&line).unwrap()
}

#[test]
fn list_of_the_directory_is_filtered_by_the_daemon_and_by_the_command_if_an_earlier_daemon_does_not() {
    if !has_etcd() {
        return;
    }
    let harness = Harness::new();
    let hosts = three(&harness);
    let [_, desk, _] = &hosts;
    let etcd = Etcd::start(&harness, 1, &[]);
    let lab = Lab::new(&etcd, &hosts, "");
    let pid = lab.desk.process.id();
    let names = |answer: &Value| {
        let devices = answer["ok"]["known_devices"].as_array().unwrap_or_else(|| panic!("{answer}"));
        devices.iter().map(|device| device["name"].as_str().unwrap().to_owned()).collect::<Vec<String>>()
    };
    // A command of this release, and one of an earlier release, which asks for all.
    let few = ask(desk, pid, &json!({ "ask": "directory", "query": ["name=b", "host=lab3"] }));
    assert_eq!((names(&few), &few["ok"]["query"]), (vec!["b".to_owned()], &json!(["name=b", "host=lab3"])));
    assert_eq!(few["ok"]["known_hosts"].as_array().unwrap().len(), 2, "paired hosts, without itself: {few}");
    let whole = ask(desk, pid, &json!({ "ask": "directory" }));
    assert_eq!(names(&whole).len(), 5, "its own, too: {whole}");
    assert!(whole["ok"].get("query").is_none());
    let wrong = ask(desk, pid, &json!({ "ask": "directory", "query": ["colour=red"] }));
    assert!(wrong["refused"].as_str().unwrap().contains("no word of a query"), "{wrong}");
    let listed = desk.json(&["list", "--directory", "--json", "name=b"]);
    assert_eq!((listed.as_array().unwrap().len(), &listed[0]["target"]), (1, &json!("lab3/b")));

    // A daemon of an earlier release answers all, whatever the question has besides.
    drop(lab.desk);
    let path = socket(desk, std::process::id());
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    let listener = UnixListener::bind(&path).unwrap();
    let answer = format!("{whole}\n");
    let earlier = thread::spawn(move || {
        let (stream, _) = listener.accept().unwrap();
        let mut line = String::new();
        BufReader::new(&stream).read_line(&mut line).unwrap();
        (&stream).write_all(answer.as_bytes()).unwrap();
        serde_json::from_str::<Value>(&line).unwrap()
    });
    let listed = desk.json(&["list", "--directory", "--json", "name=b"]);
    assert_eq!(earlier.join().unwrap(), json!({ "ask": "directory", "query": ["name=b"] }));
    assert_eq!((listed.as_array().unwrap().len(), &listed[0]["target"]), (1, &json!("lab3/b")));
}
