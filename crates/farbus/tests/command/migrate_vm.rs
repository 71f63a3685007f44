//! `farbus migrate-vm`: a machine goes to another host with its devices, or nothing changes. The machine is this
//! process: its QEMU's monitor and its end of the device's stream.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread;

use farbus::model::Payload;
use serde_json::{Value, json};

use super::cluster::Cluster;
use super::harness::{Harness, PATIENCE};
use super::redir::Guest;

/// A monitor at `path`, of a QEMU that has a usb-redir device at `socket`. Its migration ends with `end`. On `quit` it
/// drops the machine's end of the device's stream.
fn monitor(path: &Path, socket: &Path, end: &'static str, guest: &Arc<Mutex<Option<Guest<UnixStream>>>>) {
    let (listener, guest) = (UnixListener::bind(path).unwrap(), Arc::clone(guest));
    let socket = socket.to_owned();
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            serve(&stream, &socket, end, &guest);
        }
    });
}

fn serve(stream: &UnixStream, socket: &Path, end: &str, guest: &Mutex<Option<Guest<UnixStream>>>) {
    let mut status = "none".to_owned();
    let mut writer = stream;
    let mut say = |value: Value| writer.write_all(format!("{value}\n").as_bytes());
    say(json!({ "QMP": { "version": {} } })).unwrap();
    for line in BufReader::new(stream).lines().map_while(Result::ok) {
        let question: Value = serde_json::from_str(&line).unwrap();
        let path = question["arguments"]["path"].as_str().unwrap_or_default();
        let answer = match question["execute"].as_str().unwrap() {
            "query-status" => json!({ "status": "running", "running": true }),
            "query-migrate" => {
                let now = json!({ "status": status, "downtime": 70, "total-time": 800 });
                status = match status.as_str() {
                    "setup" => "pre-switchover",
                    "device" => end,
                    "cancelling" => "cancelled",
                    same => same,
                }
                .to_owned();
                now
            }
            "query-migrate-capabilities" => json!([{ "capability": "pause-before-switchover", "state": false }]),
            "query-chardev" => json!([{ "label": "far", "filename": format!("unix:{}", socket.display()) }]),
            "qom-list" if path == "/machine/peripheral" => json!([{ "name": "zero", "type": "child<usb-redir>" }]),
            "qom-list" => json!([]),
            "qom-get" => json!("far"),
            command @ ("migrate" | "migrate-continue" | "migrate_cancel") => {
                let next = [("migrate", "setup"), ("migrate-continue", "device"), ("migrate_cancel", "cancelling")];
                status = next.iter().find(|(name, _)| *name == command).unwrap().1.to_owned();
                json!({})
            }
            "quit" => {
                drop(guest.lock().unwrap().take());
                return;
            }
            _ => json!({}),
        };
        say(json!({ "return": answer })).unwrap();
    }
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn machine_goes_with_its_device_or_stays_with_it() {
    let harness = Harness::new();
    let cluster = Cluster::new(&harness, &["zero,verify"]);
    let (desk, rack) = (&cluster.hosts[0], &cluster.hosts[1]);
    let (mut attach, socket) = cluster.lend(0, "zero", "redir", &[]);
    let mut machine = Guest::connect(&socket);
    machine.configure();
    let guest = Arc::new(Mutex::new(Some(machine)));
    let [fails, works] = ["fails.sock", "works.sock"].map(|name| harness.path(name));
    monitor(&fails, &socket, "failed", &guest);
    // A QEMU that has connected to a socket does not name it.
    monitor(&works, Path::new(""), "completed", &guest);
    let there = ["--to", "rack", "--uri", "tcp:rack:4444"];
    let state = || {
        let status = desk.json(&["status", "--json"]);
        let processes = status.as_array().unwrap().iter();
        let mut devices = processes.flat_map(|process| process["devices"].as_array().unwrap().clone());
        devices.find(|device| device["name"] == "zero").map(|device| device["state"].clone())
    };

    let checked = desk.json(&[&["migrate-vm", text(&works)], &there[..], &["--check", "--json"]].concat());
    assert_eq!((&checked["done"], &checked["devices"][0]), (&"check".into(), &"lab3/zero".into()), "{checked}");
    assert_eq!(state(), Some("attached".into()), "nothing was begun");

    let (_successor, at_rack) = cluster.lend(1, "zero", "redir", &["--inherit"]);
    let failed = desk.run(&[&["migrate-vm", text(&fails)], &there[..]].concat());
    assert_eq!(failed.code, Some(1), "{failed:?}");
    assert!(failed.stderr.contains("QEMU's migration failed"), "{failed:?}");
    assert!(failed.stderr.contains("the machine runs on here, with its devices"), "{failed:?}");
    assert_eq!(state(), Some("attached".into()), "it follows no more");
    assert_eq!(guest.lock().unwrap().as_mut().unwrap().bulk(7, 0x81, 1024, Payload::Empty).length, 1024);

    let destination = UnixStream::connect(&at_rack).unwrap();
    destination.set_read_timeout(Some(PATIENCE)).unwrap();
    let said = desk.ok(&[&["migrate-vm", text(&works)], &there[..]].concat());
    assert!(said.contains("the machine runs at rack: it stood still for 70 ms; lab3/zero went with it"), "{said}");
    assert_eq!(attach.wait_for_end(PATIENCE), Some(0), "{}", attach.log());
    attach.wait_for_line("handed over");
    let status = rack.json(&["status", "--json"]).to_string();
    assert!(status.contains("lab3"), "{status}");
}

#[test]
fn machine_without_a_device_of_farbus_or_without_a_monitor_is_refused() {
    let harness = Harness::new();
    let cluster = Cluster::new(&harness, &["zero"]);
    let desk = &cluster.hosts[0];
    let there = ["--to", "rack", "--uri", "tcp:rack:4444"];
    let path = harness.path("alone.sock");
    monitor(&path, Path::new("/run/other.sock"), "completed", &Arc::default());
    let foreign = desk.run(&[&["migrate-vm", text(&path)], &there[..]].concat());
    assert!(foreign.code == Some(3) && foreign.stderr.contains("is no attachment of yours"), "{foreign:?}");
    let missing = harness.path("missing.sock");
    let absent = desk.run(&[&["migrate-vm", text(&missing)], &there[..]].concat());
    assert!(absent.code == Some(1) && absent.stderr.contains("cannot connect to it"), "{absent:?}");
    let stranger = desk.run(&["migrate-vm", text(&path), "--to", "nobody", "--uri", "tcp:rack:4444"]);
    assert!(stranger.code == Some(1) && stranger.stderr.contains("no paired host"), "{stranger:?}");
}
