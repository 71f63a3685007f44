//! What has to hold on every route. Each is written once.

use std::fs;
use std::os::unix::fs::FileExt;

use super::super::disk_clients::Client;
use super::super::harness::{PATIENCE, wait_until};
use super::scene::{DISK_BYTES, Scene};
use super::{Connection, Distance, Keeper, Route, Way};

/// One promise, and on which routes it is made.
pub struct Capability {
    pub name: &'static str,
    /// What `docs/interop.md` says of it.
    pub promise: &'static str,
    /// Why it does not apply to a route that there is.
    not_on: fn(Route) -> Option<&'static str>,
    pub prove: fn(&mut Scene<'_>),
}

impl Capability {
    /// Why it is not proved on a route.
    pub fn left_out(&self, route: Route) -> Option<&'static str> {
        route.left_out().or_else(|| (self.not_on)(route))
    }
}

pub const CAPABILITIES: &[Capability] = &[
    Capability {
        name: "content",
        promise: "what a program writes and flushes is on the medium, what it reads is too; a cut link costs a session \
                  nothing, and ends a plain connection with an error",
        not_on: |_| None,
        prove: content,
    },
    Capability {
        name: "exporter-killed",
        promise: "an exporter is killed and started again: in a session a disk goes on, and a USB device is opened again, \
                  whose driver may hear of an error; over a plain connection the daemon and `farbus run` find the \
                  device again, and the command ends with exit code 3 or 5",
        not_on: |route| (route.distance == Distance::Cut).then_some("the exporter's death is the cut"),
        prove: exporter_killed,
    },
    Capability {
        name: "another-medium",
        promise: "where another disk has the name when the exporter comes back, no program reads or changes it: the command \
                  ends, the daemon and `farbus run` wait for the disk that they had and have it again",
        not_on: |route| match (route.way, route.distance) {
            (_, Distance::Cut) => Some("the exporter's death is the cut"),
            (Way::Library, _) => Some("its program asks for the identity itself"),
            _ => None,
        },
        prove: another_medium,
    },
    Capability {
        name: "read-only",
        promise: "a disk that is shared read-only refuses writes, and its image stays as it is",
        not_on: |route| (route.distance == Distance::Cut).then_some("a refusal is not under way"),
        prove: read_only,
    },
    Capability {
        name: "status",
        promise: "both hosts say who uses the device, where, and how much has passed",
        not_on: |route| match (route.way, route.distance) {
            (_, Distance::Cut) => Some("a device that is lost is shown by *exporter-killed*"),
            (Way::Library, _) => Some("a program that uses the library shows its status itself"),
            _ => None,
        },
        prove: status,
    },
    Capability {
        name: "released",
        promise: "the device's owner takes it back and says why: the command ends with exit code 3, the daemon attaches it again",
        not_on: |route| match (route.way, route.distance) {
            (_, Distance::Cut) => Some("nothing is taken back while a link is cut"),
            (Way::Run | Way::Library, _) => Some("a program decides itself what it does then"),
            _ => None,
        },
        prove: released,
    },
    Capability {
        name: "forbidden",
        promise: "a host that is forbidden a device loses it within seconds: the command and `farbus run` end with exit \
                  code 3 or 4, the daemon has it again once it is allowed",
        not_on: |route| match (route.connection, route.distance) {
            (Connection::Plain, _) => Some("only paired hosts have permissions"),
            (_, Distance::Cut) => Some("nothing is forbidden while a link is cut"),
            _ => None,
        },
        prove: forbidden,
    },
    Capability {
        name: "given-back",
        promise: "when its user gives the device back (Ctrl-C, the program's end, the daemon's end), it is free, and what was \
                  written is on the medium",
        not_on: |route| (route.distance == Distance::Cut).then_some("given back over a link that stands"),
        prove: given_back,
    },
    Capability {
        name: "strings",
        promise: "programs that tell devices apart by manufacturer, product and serial number find them below `/sys`",
        not_on: |route| match (route.way, route.distance) {
            (_, Distance::Cut) => Some("they come with the device, which is attached over a link that stands"),
            (Way::Kernel | Way::Uas | Way::Run, _) => None,
            (Way::Redir, _) => Some("its guest asks the device itself"),
            (Way::Nbd | Way::Fuse, _) => Some("it shows a disk and no USB device"),
            (Way::Library, _) => Some("its program has the descriptors"),
        },
        prove: strings,
    },
    Capability {
        name: "lease-ended",
        promise: "when the lease of its user's host ends, the device is taken from it, what was written is on the medium, \
                  and programs hear of it; the command and `farbus run` end with exit code 3, the daemon has the device \
                  again if no other host does",
        not_on: |route| match (route.connection, route.distance, route.way) {
            (Connection::Plain, ..) => Some("only paired hosts have leases"),
            (_, Distance::Cut, _) => Some("a lease that ends while a link is cut has a test of its own"),
            (.., Way::Library) => Some("a program decides itself what it does then"),
            _ => None,
        },
        prove: lease_ended,
    },
    Capability {
        name: "module",
        promise: "data pass through a module (`zstd`) and are the same",
        not_on: |route| match (route.connection, route.way) {
            (Connection::Plain, _) => Some("modules need a session"),
            (_, Way::Library) => Some("its program configures modules"),
            _ => None,
        },
        prove: module,
    },
];

const PIECE: usize = 64 << 10;

/// Exit codes of the command when its link is gone. A plain connection that is closed does not say why: its exporter
/// may have taken the device back.
const CLOSED: i32 = 3;
const LOST: i32 = 5;

/// The content of a piece of the disk in a round: no two are equal.
fn piece(at: u64, round: u64) -> Vec<u8> {
    let mut state = (at + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ round;
    (0..PIECE / 8)
        .flat_map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state.to_le_bytes()
        })
        .collect()
}

fn pieces() -> impl Iterator<Item = u64> {
    0..DISK_BYTES / PIECE as u64
}

/// Fills the image before it is shared.
fn fill(scene: &Scene<'_>) {
    let image = fs::File::options().write(true).open(&scene.image).unwrap();
    pieces().for_each(|at| image.write_all_at(&piece(at, 0), at * PIECE as u64).unwrap());
}

fn assert_reads(client: &mut dyn Client, at: u64, round: u64) {
    let read = client.read(at * PIECE as u64, PIECE).unwrap();
    assert!(read == piece(at, round), "piece {at} of round {round}");
}

fn write(client: &mut dyn Client, at: u64, round: u64) {
    client.write(at * PIECE as u64, &piece(at, round)).unwrap();
}

fn assert_on_medium(scene: &Scene<'_>, at: u64, round: u64) {
    let mut bytes = vec![0; PIECE];
    fs::File::open(&scene.image).unwrap().read_exact_at(&mut bytes, at * PIECE as u64).unwrap();
    assert!(bytes == piece(at, round), "piece {at} of round {round} on the medium");
}

/// Whether the attachment is over once its device is lost: nobody attaches it again.
fn ends_with_its_device(scene: &Scene<'_>) -> bool {
    scene.route.keeper == Keeper::Command && !matches!(scene.route.way, Way::Run | Way::Library)
}

/// Whether the device has lost nothing in a session whose exporter was killed and started again. A USB device was
/// reset: what was under way fails.
fn keeps_its_state(scene: &Scene<'_>) -> bool {
    matches!(scene.route.way, Way::Uas | Way::Nbd | Way::Fuse)
}

fn content(scene: &mut Scene<'_>) {
    fill(scene);
    let mut client = scene.begin();
    pieces().for_each(|at| assert_reads(client.as_mut(), at, 0));
    for at in pieces().step_by(3) {
        write(client.as_mut(), at, 1);
    }
    client.flush().unwrap();
    pieces().step_by(3).for_each(|at| assert_on_medium(scene, at, 1));
    scene.cut();
    if scene.route.distance == Distance::Cut && !scene.survives_cuts() {
        let failed = client.read(0, PIECE).and_then(|_| client.write(PIECE as u64, &piece(1, 2)));
        failed.and_then(|()| client.flush()).expect_err("its link was cut");
        if ends_with_its_device(scene) {
            drop(client);
            let (code, log) = scene.wait_for_importer_end();
            assert!(matches!(code, Some(CLOSED | LOST)), "{code:?} {log}");
            return;
        }
        scene.open(client.as_mut());
    }
    for at in pieces().skip(1).step_by(3) {
        write(client.as_mut(), at, 2);
    }
    client.flush().unwrap();
    for at in pieces() {
        assert_reads(client.as_mut(), at, [1, 2, 0][at as usize % 3]);
        assert_on_medium(scene, at, [1, 2, 0][at as usize % 3]);
    }
    scene.end(client);
}

fn exporter_killed(scene: &mut Scene<'_>) {
    fill(scene);
    let mut client = scene.begin();
    write(client.as_mut(), 0, 1);
    client.flush().unwrap();
    scene.kill_exporter();
    scene.share();
    if !scene.survives_cuts() && ends_with_its_device(scene) {
        client.read(PIECE as u64, PIECE).and_then(|_| client.flush()).expect_err("its exporter has ended");
        drop(client);
        let (code, log) = scene.wait_for_importer_end();
        assert!(matches!(code, Some(CLOSED | LOST)), "{code:?} {log}");
        assert_on_medium(scene, 0, 1);
        return;
    }
    if !scene.survives_cuts() {
        wait_until(PATIENCE, "the program hears of it", || client.read(0, PIECE).is_err());
        scene.open(client.as_mut());
    } else if let Err(error) = client.read(0, PIECE) {
        assert!(!keeps_its_state(scene), "{error}");
        scene.open(client.as_mut());
    }
    assert_reads(client.as_mut(), 0, 1);
    write(client.as_mut(), 2, 3);
    client.flush().unwrap();
    assert_on_medium(scene, 2, 3);
    assert_on_medium(scene, 1, 0);
    scene.end(client);
}

fn another_medium(scene: &mut Scene<'_>) {
    fill(scene);
    let mut client = scene.begin();
    write(client.as_mut(), 0, 1);
    client.flush().unwrap();
    scene.kill_exporter();
    let other = scene.share_another();
    // Until it is known that it is another one: what is read is of the disk that was, or an error.
    let mut rounds = 0..3;
    wait_until(PATIENCE, "the program hears of it", || {
        let read = client.read(2 * PIECE as u64, PIECE);
        assert!(read.as_ref().ok().is_none_or(|read| *read == piece(2, 0)), "it reads the other disk");
        client.write(PIECE as u64, &piece(1, 9)).and_then(|()| client.flush()).is_err() && rounds.next().is_none()
    });
    assert!(fs::read(&other).unwrap().iter().all(|byte| *byte == 0), "the other disk has what was meant for the first");
    if ends_with_its_device(scene) {
        drop(client);
        let (code, log) = scene.wait_for_importer_end();
        assert!(code.is_some_and(|code| code != 0), "{code:?} {log}");
        return;
    }
    scene.kill_exporter();
    scene.share();
    scene.open(client.as_mut());
    assert_reads(client.as_mut(), 0, 1);
    assert_reads(client.as_mut(), 2, 0);
    scene.end(client);
    assert!(fs::read(&other).unwrap().iter().all(|byte| *byte == 0), "the other disk is as it was");
}

fn read_only(scene: &mut Scene<'_>) {
    fill(scene);
    scene.with_parameters(",ro");
    let mut client = scene.begin();
    assert_reads(client.as_mut(), 3, 0);
    let written = client.write(0, &piece(0, 9)).and_then(|()| client.flush());
    written.expect_err("it is read-only");
    pieces().for_each(|at| assert_on_medium(scene, at, 0));
    drop(client);
    scene.importer.take();
}

fn status(scene: &mut Scene<'_>) {
    fill(scene);
    let has_reason = scene.route.way != Way::Run;
    if has_reason {
        scene.with_option(&["--reason", "routes"], "reason = 'routes'");
    }
    let mut client = scene.begin();
    pieces().for_each(|at| assert_reads(client.as_mut(), at, 0));
    write(client.as_mut(), 0, 1);
    client.flush().unwrap();

    let shared = Scene::device_of(&scene.lab3, "share").expect("it is shared");
    assert_eq!(shared["state"], "in use", "{shared}");
    let expected = if scene.route.connection == Connection::Session { "desk" } else { "127.0.0.1" };
    assert!(shared["user"].as_str().is_some_and(|user| user.contains(expected)), "{shared}");
    let passed = |device: &serde_json::Value, meter: &str| device["meters"][meter].as_u64().unwrap_or(0);
    assert!(passed(&shared, "bytes_in") >= DISK_BYTES, "{shared}");
    assert!(passed(&shared, "bytes_out") >= PIECE as u64, "{shared}");
    let target = scene.target();
    let host = target.split_once('/').expect("HOST/DEVICE").0;
    let list = scene.desk.json(&["list", host, "--json"]);
    assert_eq!(list[0]["state"], "in use", "{list}");

    let role = match (scene.route.keeper, scene.route.way) {
        (Keeper::Daemon, _) => "daemon",
        (Keeper::Command, Way::Run) => "run",
        (Keeper::Command, _) => "attach",
    };
    let attached = Scene::device_of(&scene.desk, role).expect("it is attached");
    assert_eq!(attached["state"], "attached", "{attached}");
    assert!(!has_reason || attached["reason"] == "routes", "{attached}");
    assert!(attached["at"].as_str().is_some_and(|at| !at.is_empty()), "{attached}");
    // `farbus run` counts nothing yet.
    if scene.route.way != Way::Run {
        assert!(passed(&attached, "bytes_in") >= DISK_BYTES, "{attached}");
        assert!(passed(&attached, "bytes_out") >= PIECE as u64, "{attached}");
    }
    scene.end(client);
}

fn released(scene: &mut Scene<'_>) {
    fill(scene);
    let mut client = scene.begin();
    write(client.as_mut(), 0, 1);
    client.flush().unwrap();
    scene.lab3.ok(&["release", "disk", "--force", "--reason", "the lab is closed"]);
    assert_on_medium(scene, 0, 1);
    wait_until(PATIENCE, "the program hears of it", || client.read(PIECE as u64, PIECE).is_err());
    if scene.route.keeper == Keeper::Daemon {
        scene.open(client.as_mut());
        assert_reads(client.as_mut(), 0, 1);
        return scene.end(client);
    }
    drop(client);
    let (code, log) = scene.wait_for_importer_end();
    assert_eq!(code, Some(3), "{log}");
    if scene.route.connection == Connection::Session {
        assert!(log.contains("the lab is closed"), "{log}");
    }
}

fn forbidden(scene: &mut Scene<'_>) {
    fill(scene);
    let mut client = scene.begin();
    assert_reads(client.as_mut(), 0, 0);
    scene.lab3.ok(&["forbid", "desk", "all"]);
    scene.wait_until_state("available");
    wait_until(PATIENCE, "the program hears of it", || client.read(PIECE as u64, PIECE).is_err());
    if ends_with_its_device(scene) || scene.route.way == Way::Run {
        drop(client);
        let (code, log) = scene.wait_for_importer_end();
        assert!(matches!(code, Some(3 | 4)), "{code:?} {log}");
        return;
    }
    scene.lab3.ok(&["allow", "desk", "all"]);
    scene.open(client.as_mut());
    assert_reads(client.as_mut(), 2, 0);
    scene.end(client);
}

fn given_back(scene: &mut Scene<'_>) {
    fill(scene);
    let mut client = scene.begin();
    scene.wait_until_state("in use");
    write(client.as_mut(), 5, 1);
    client.flush().unwrap();
    scene.end(client);
    scene.wait_until_state("available");
    assert_on_medium(scene, 5, 1);
    assert!(!scene.exporter_log().contains("link was lost"), "{}", scene.exporter_log());
}

fn strings(scene: &mut Scene<'_>) {
    fill(scene);
    let mut client = scene.begin();
    let strings = client.strings().unwrap();
    let lines: Vec<&str> = strings.lines().collect();
    let [manufacturer, product, serial] = lines[..] else { panic!("{strings}") };
    // The importer's UAS disk is named as it is listed, the exporter's disk after its image.
    let expected = if scene.route.way == Way::Uas { "disk" } else { "disk.img" };
    assert_eq!((manufacturer, product), ("farbus", expected));
    assert!(serial.len() == 16 && serial.bytes().all(|digit| digit.is_ascii_hexdigit()), "{serial}");
    assert_reads(client.as_mut(), 1, 0);
    scene.end(client);
}

fn lease_ended(scene: &mut Scene<'_>) {
    fill(scene);
    scene.share_for_desk();
    scene.desk.ok(&["lease", "lab3/disk", "--for", "1h"]);
    let mut client = scene.attach();
    write(client.as_mut(), 0, 1);
    client.flush().unwrap();
    // By its holder's word and not by its time, which a slow machine could need for attaching.
    scene.desk.ok(&["lease", "release", "lab3/disk", "--force"]);
    wait_until(PATIENCE, "the program hears of it", || client.read(PIECE as u64, PIECE).is_err());
    assert_on_medium(scene, 0, 1);
    if ends_with_its_device(scene) || scene.route.way == Way::Run {
        drop(client);
        let (code, log) = scene.wait_for_importer_end();
        assert_eq!(code, Some(3), "{log}");
        return;
    }
    scene.open(client.as_mut());
    assert_reads(client.as_mut(), 0, 1);
    scene.end(client);
}

fn module(scene: &mut Scene<'_>) {
    scene.with_option(&["--module", "zstd"], "modules = ['zstd']");
    fill(scene);
    let mut client = scene.begin();
    for at in pieces() {
        assert_reads(client.as_mut(), at, 0);
        write(client.as_mut(), at, 1);
    }
    scene.cut();
    client.flush().unwrap();
    pieces().for_each(|at| assert_on_medium(scene, at, 1));
    pieces().for_each(|at| assert_reads(client.as_mut(), at, 1));
    scene.end(client);
}
