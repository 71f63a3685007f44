//! `farbus migrate-vm`: a machine moves with its devices, and stays with them. QEMU's monitor is a script here; the
//! library's own tests let it fail at every step, and the rig has a real QEMU.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use farbus::model::Payload;
use rustix::process::Signal;
use serde_json::{Value, json};

use super::cluster::Cluster;
use super::harness::{Harness, PATIENCE, Running};
use super::nbd_migrate::{Client, SIZE};
use super::redir::Guest;

/// What the scripted monitor does at the end of its precopy.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Plan {
    Moves,
    CopiesForEver,
    FailsToConnect,
}

/// Events of the script: the machine copies, has been told to switch over, or is asked to quit. It waits at the latter
/// two for its owner.
#[derive(Debug, PartialEq, Eq)]
enum ScriptEvent {
    Copying,
    Stopped,
    Quit,
}

/// Serves one connection after the other.
fn monitor(path: &Path, disk: PathBuf, plan: Plan) -> (Receiver<ScriptEvent>, Sender<()>) {
    let listener = UnixListener::bind(path).unwrap();
    let (say, events) = channel();
    let (go_on, goes_on) = channel();
    thread::spawn(move || {
        let mut status = "none";
        for stream in listener.incoming().flatten() {
            // The command may have ended meanwhile.
            let _ = serve(&stream, &disk, plan, &mut status, &say, &goes_on);
        }
    });
    (events, go_on)
}

fn serve(
    mut stream: &UnixStream,
    disk: &Path,
    plan: Plan,
    status: &mut &'static str,
    say: &Sender<ScriptEvent>,
    goes_on: &Receiver<()>,
) -> std::io::Result<()> {
    stream.write_all(b"{\"QMP\": {\"version\": {}, \"capabilities\": []}}\r\n")?;
    for line in BufReader::new(stream).lines() {
        let question: Value = serde_json::from_str(&line?).unwrap();
        let answer = match question["execute"].as_str().unwrap() {
            "query-status" => {
                let is_stopped = ["pre-switchover", "completed"].contains(status);
                json!({ "status": if is_stopped { "postmigrate" } else { "running" }, "running": !is_stopped })
            }
            "query-migrate" => {
                let progress = json!({ "status": *status, "downtime": 12, "total-time": 345, "ram": { "transferred": 678 },
                    "error-desc": "Failed to connect to 'tcp:rack:4444': Connection refused" });
                if *status == "active" {
                    let _ = say.send(ScriptEvent::Copying);
                }
                *status = match (*status, plan) {
                    ("active", Plan::Moves) => "pre-switchover",
                    ("active", Plan::FailsToConnect) => "failed",
                    ("cancelling", _) => "cancelled",
                    (same, _) => same,
                };
                progress
            }
            "qom-list" if question["arguments"]["path"] == "/machine/peripheral" => {
                json!([{ "name": "far", "type": "child<usb-redir>" }])
            }
            "qom-list" => json!([]),
            "qom-get" => json!("far"),
            "query-chardev" => json!([{ "label": "far", "filename": "unix:" }]),
            "query-named-block-nodes" => {
                let file = format!("nbd+unix://?socket={}", disk.display());
                json!([{ "node-name": "root", "drv": "nbd", "file": file }])
            }
            "query-migrate-capabilities" => {
                json!([{ "capability": "events", "state": false }, { "capability": "pause-before-switchover", "state": false }])
            }
            "migrate" => {
                *status = "active";
                json!({})
            }
            "migrate-continue" => {
                let _ = say.send(ScriptEvent::Stopped);
                let _ = goes_on.recv();
                *status = "completed";
                json!({})
            }
            "migrate_cancel" => {
                *status = "cancelling";
                json!({})
            }
            "quit" => {
                writeln!(stream, "{}", json!({ "return": {}, "id": question["id"] }))?;
                let _ = say.send(ScriptEvent::Quit);
                let _ = goes_on.recv();
                return Ok(());
            }
            _ => json!({}),
        };
        writeln!(stream, "{}", json!({ "return": answer, "id": question["id"] }))?;
    }
    Ok(())
}

/// A machine at the first host: a USB device and a block disk, in the hands of this process.
struct Machine {
    attached: [Running; 2],
    /// The disk's socket.
    disk: PathBuf,
    guest: Guest<UnixStream>,
    client: Client,
}

fn cluster<'h>(harness: &'h Harness) -> Cluster<'h> {
    let image = harness.image("image", SIZE);
    Cluster::new(harness, &["zero", &format!("disk:{}", image.display())])
}

impl Machine {
    fn at_desk(cluster: &Cluster) -> Self {
        let (zero, usb) = cluster.lend(0, "zero", "redir", &[]);
        let (disk, block) = cluster.lend(0, "disk", "nbd", &[]);
        let mut guest = Guest::connect(&usb);
        guest.configure();
        let mut client = Client::connect(&block);
        client.write(0, 7);
        Self { attached: [zero, disk], disk: block, guest, client }
    }

    fn monitor(&self, cluster: &Cluster, plan: Plan) -> (PathBuf, Receiver<ScriptEvent>, Sender<()>) {
        let path = cluster.hosts[0].harness.path("qmp.sock");
        let (events, go_on) = monitor(&path, self.disk.clone(), plan);
        (path, events, go_on)
    }

    fn assert_served(&mut self, cluster: &Cluster, id: u64) {
        assert_eq!(states(cluster), ["attached", "attached"]);
        assert_eq!(self.guest.bulk(id, 0x81, 10_000, Payload::Empty).length, 10_000);
        self.client.write(4096, 9);
        self.client.assert_reads(0, 7);
    }
}

fn states(cluster: &Cluster) -> Vec<String> {
    let all = cluster.hosts[0].json(&["status", "--json"]);
    let devices = all.as_array().unwrap().iter().flat_map(|process| process["devices"].as_array().unwrap());
    devices.map(|device| device["state"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn machine_and_its_devices_move_with_one_command() {
    let harness = Harness::new();
    let cluster = cluster(&harness);
    let mut machine = Machine::at_desk(&cluster);
    let (path, events, go_on) = machine.monitor(&cluster, Plan::Moves);
    let words = ["migrate-vm", path.to_str().unwrap(), "--to", "rack", "--uri", "tcp:rack:4444"];
    let checked = cluster.hosts[0].json(&[&words[..], &["--check", "--json"]].concat());
    assert_eq!(checked["process"], std::process::id());
    let mut found: Vec<_> =
        checked["devices"].as_array().unwrap().iter().map(|it| it["device"].as_str().unwrap().to_owned()).collect();
    found.sort();
    assert!(found.len() == 2 && found[0].ends_with("/disk") && found[1].ends_with("/zero"), "{checked}");
    let text = cluster.hosts[0].ok(&[&words[..], &["--check"]].concat());
    assert!(text.contains("can be moved to rack") && text.contains("/zero at /"), "{text}");
    machine.assert_served(&cluster, 10);

    let (_zero, usb) = cluster.lend(1, "zero", "redir", &["--inherit"]);
    let (_disk, block) = cluster.lend(1, "disk", "nbd", &["--inherit"]);
    let mut client = Client::connect(&block);
    let stream = UnixStream::connect(&usb).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut command = cluster.hosts[0].start(&[&words[..], &["--json"]].concat());
    while events.recv_timeout(PATIENCE).unwrap() != ScriptEvent::Stopped {}
    assert_eq!(states(&cluster), ["following", "following"], "they serve it until it leaves");
    assert_eq!(machine.guest.bulk(11, 0x81, 1000, Payload::Empty).length, 1000);
    go_on.send(()).unwrap();
    while events.recv_timeout(PATIENCE).unwrap() != ScriptEvent::Quit {}
    // They do not wait for the end of its QEMU, which goes on being connected.
    let Machine { attached, guest, client: mut here, .. } = machine;
    let Guest { stream: mut left, conn } = guest;
    assert_eq!(left.read(&mut [0; 1]).unwrap(), 0);
    assert!(here.hear(0).is_err());
    for mut attached in attached {
        assert_eq!(attached.wait_for_end(PATIENCE), Some(0), "{}", attached.log());
    }
    go_on.send(()).unwrap();
    assert_eq!(command.wait_for_end(PATIENCE), Some(0), "{}", command.log());
    let moved: Value = serde_json::from_str(&command.rest()).unwrap();
    assert_eq!(
        (&moved["downtime_ms"], &moved["total_ms"], &moved["sent_bytes"]),
        (&12.into(), &345.into(), &678.into())
    );
    assert_eq!((&moved["to"], moved["devices"].as_array().unwrap().len()), (&"rack".into(), 2));
    assert_eq!(moved["departed"], 2, "{moved}");
    let mut guest = Guest { stream, conn };
    assert_eq!(guest.bulk(12, 0x81, 5000, Payload::Empty).length, 5000);
    client.assert_reads(0, 7);
    client.write(0, 8);
}

#[test]
fn machine_stays_with_its_devices_when_qemu_fails_or_its_owner_cancels() {
    let harness = Harness::new();
    let cluster = cluster(&harness);
    let mut machine = Machine::at_desk(&cluster);
    let (path, ..) = machine.monitor(&cluster, Plan::FailsToConnect);
    let words = |path: &Path| {
        ["migrate-vm", path.to_str().unwrap(), "--to", "rack", "--uri", "tcp:rack:4444"].map(str::to_owned)
    };
    let run = |words: &[String], more: &[&str]| {
        cluster.hosts[0].run(&[&words.iter().map(String::as_str).collect::<Vec<_>>()[..], more].concat())
    };
    let failed = run(&words(&path), &["--json"]);
    assert!(failed.code == Some(5) && failed.stderr.contains("Connection refused"), "{failed:?}");
    let answer: Value = serde_json::from_str(&failed.stdout).unwrap();
    assert_eq!(answer["failure"]["attribute"], "network");
    machine.assert_served(&cluster, 20);

    std::fs::remove_file(&path).unwrap();
    let (path, events, _go_on) = machine.monitor(&cluster, Plan::CopiesForEver);
    let refused = run(&words(&path), &["--device", "zero"]);
    assert!(refused.code == Some(3) && refused.stderr.contains("/disk, too, which is not named"), "{refused:?}");
    let nobody = run(&words(&path), &["--device", "printer"]);
    assert_eq!(nobody.code, Some(4), "{nobody:?}");
    let words = words(&path);
    let mut command = cluster.hosts[0].start(&words.iter().map(String::as_str).collect::<Vec<_>>());
    assert_eq!(events.recv_timeout(PATIENCE).unwrap(), ScriptEvent::Copying);
    assert_eq!(states(&cluster), ["following", "following"]);
    command.signal(Signal::INT);
    assert_eq!(command.wait_for_shell_code(PATIENCE), 130, "{}", command.log());
    command.assert_logged("it was cancelled");
    machine.assert_served(&cluster, 30);
}

#[test]
fn place_where_no_qemu_waits_is_refused_before_anything_is_asked() {
    let harness = Harness::new();
    let monitor = harness.path("none.sock");
    let key = harness.json(&["id", "--json"])["fingerprint"].as_str().unwrap().to_owned();
    let words = ["migrate-vm", monitor.to_str().unwrap(), "--to", &key, "--uri"];
    let run = |uri: &str| harness.run(&[&words[..], &[uri]].concat());
    let refused = run("rack");
    assert!(refused.code == Some(2) && refused.stderr.contains("tcp:HOST:PORT"), "{refused:?}");
    let unreachable = run("tcp:rack:4444");
    assert!(
        unreachable.code == Some(1) && unreachable.stderr.contains("cannot reach QEMU's monitor"),
        "{unreachable:?}"
    );
}
