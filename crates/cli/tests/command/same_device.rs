//! A device that is attached again is the one that it was: by the importer's daemon, `attach --wait` and `run`.

use std::fs;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rustix::process::Signal;
use serde_json::Value;

use super::durable::Nbd;
use super::harness::{Harness, PATIENCE, Running, Share, has_fuse, wait_until};
use super::identity::has_lasting_files;
use super::run::{can_run, ordinary};
use super::trust::{Host, hosts, pair};

const SIZE: u64 = 1 << 20;

/// A host's daemon with this configuration; returns the address at which it serves paired hosts, if it does.
fn daemon(host: &Host<'_>, text: &str) -> (Running, String) {
    let file = host.harness.path(&format!("{}.toml", host.name));
    fs::write(&file, text).unwrap();
    let daemon = host.start(&["daemon", "--config", file.to_str().unwrap()]);
    let part = if text.contains("[secure]") { "for paired hosts" } else { "listening on" };
    let line = daemon.wait_for_line(part);
    (daemon, line.split_whitespace().nth(2).unwrap().to_owned())
}

/// The only attachment of `host`, as its status shows it.
fn attached(host: &Host<'_>) -> Value {
    let status: Value = serde_json::from_str(&host.run(&["status", "--json"]).stdout).unwrap_or_default();
    let all = status.as_array().cloned().unwrap_or_default();
    let mut devices = all.iter().flat_map(|process| process["devices"].as_array().cloned().unwrap_or_default());
    devices.next().unwrap_or_default()
}

fn wait_for_state(host: &Host<'_>, state: &str) -> Value {
    wait_until(PATIENCE, state, || attached(host)["state"] == state);
    attached(host)
}

/// How programs reach an attached disk.
struct Way {
    via: &'static str,
    at: PathBuf,
}

impl Way {
    fn of(harness: &Harness, via: &'static str) -> Self {
        Self { via, at: harness.path(if via == "nbd" { "vol.sock" } else { "mnt" }) }
    }

    fn words(&self) -> String {
        let key = if self.via == "nbd" { "socket" } else { "at" };
        format!("via = '{}'\n{key} = '{}'", self.via, self.at.display())
    }

    fn is_there(&self) -> bool {
        match self.via {
            "nbd" => std::os::unix::net::UnixStream::connect(&self.at).is_ok(),
            _ => self.file().exists(),
        }
    }

    fn file(&self) -> PathBuf {
        self.at.join("disk.img")
    }

    fn read(&self) -> u8 {
        match self.via {
            "nbd" => Nbd::connect(&self.at).read(4096, 1)[0],
            _ => fs::read(self.file()).unwrap()[4096],
        }
    }

    /// Writes a byte durably, as a client that has connected anew.
    fn write(&self, byte: u8) -> io::Result<()> {
        match self.via {
            "nbd" => {
                let mut client = Nbd::connect(&self.at);
                client.write(8192, &[byte; 512]);
                assert!(client.flush());
                Ok(())
            }
            _ => {
                let file = fs::OpenOptions::new().write(true).open(self.file())?;
                file.write_all_at(&[byte; 512], 8192)?;
                file.sync_all()
            }
        }
    }
}

/// A disk image whose every byte is `byte`.
fn image(harness: &Harness, name: &str, byte: u8) -> PathBuf {
    let path = harness.path(name);
    fs::write(&path, vec![byte; SIZE as usize]).unwrap();
    path
}

fn is_untouched(image: &Path, byte: u8) -> bool {
    fs::read(image).unwrap().iter().all(|&is| is == byte)
}

/// Exchanges the files of two images, whose inodes go with their names.
fn exchange(one: &Path, other: &Path) {
    let aside = one.with_extension("aside");
    fs::rename(one, &aside).unwrap();
    fs::rename(other, one).unwrap();
    fs::rename(&aside, other).unwrap();
}

/// The daemons of two paired hosts; the exporter's is killed, another image takes the name, and it starts again.
fn daemon_attaches_its_own_disk_alone(via: &'static str) {
    let harness = Harness::new();
    if !has_lasting_files(&harness) {
        return;
    }
    let [lab3, desk] = hosts(&harness);
    pair(&lab3, &desk);
    lab3.ok(&["allow", "desk", "all"]);
    let (a, b) = (image(&harness, "vol.img", 1), image(&harness, "other.img", 2));
    let shares = |address: &str| {
        let what = format!("share = [{{ what = 'disk:{}', name = 'vol' }}]", a.display());
        format!("{what}\n[plain]\nlisten = []\n[secure]\nlisten = ['{address}']")
    };
    let (mut exporter, address) = daemon(&lab3, &shares("127.0.0.1:0"));
    desk.ok(&["list", "lab3", "--address", &address]);
    let way = Way::of(&harness, via);
    let keeps =
        format!("[[attach]]\ntarget = 'lab3/vol'\ngrace = 60\n{}\n[plain]\nlisten = ['127.0.0.1:0']", way.words());
    let (mut importer, _) = daemon(&desk, &keeps);
    wait_for_state(&desk, "attached");
    assert_eq!(way.read(), 1);
    way.write(7).unwrap();
    let mut open_client = (via == "nbd").then(|| Nbd::connect(&way.at));

    exporter.kill();
    exchange(&a, &b);
    let (mut exporter, _) = daemon(&lab3, &shares(&address));
    let device = wait_for_state(&desk, "another device");
    let why = device["failure"]["message"].as_str().unwrap();
    assert!(why.contains("'vol' is another device now"), "{why}");
    assert!(why.contains("farbus daemon reload --adopt lab3/vol"), "{why}");
    assert_eq!(device["failure"]["attribute"], "gone");
    assert!(!way.is_there(), "another disk is served to clients that had the first");
    if let Some(client) = &mut open_client {
        assert!(client.is_closed(), "its own connection ended");
    }
    let doctor = desk.json(&["doctor", "--json"]);
    let found = doctor.as_array().unwrap().iter().find(|line| line["name"] == "daemon").unwrap();
    assert!(found["next"].as_str().is_some_and(|next| next.contains("reload --adopt lab3")), "{found}");
    // Neither its own restart nor a reload makes it forget.
    desk.ok(&["daemon", "reload"]);
    wait_for_state(&desk, "another device");
    importer.assert_logged("is another device now");
    assert_eq!(importer.log().matches("reload --adopt").count(), 1, "{}", importer.log());
    importer.kill();
    let (mut importer, _) = daemon(&desk, &keeps);
    wait_for_state(&desk, "another device");
    assert!(!way.is_there() && is_untouched(&a, 2), "what is there now was written");

    // Its own disk is back.
    exporter.kill();
    exchange(&a, &b);
    let (mut exporter, _) = daemon(&lab3, &shares(&address));
    wait_for_state(&desk, "attached");
    assert_eq!(way.read(), 1);
    way.write(8).unwrap();
    assert!(is_untouched(&b, 2));

    // Its owner takes the other one.
    let refused = desk.run(&["daemon", "reload", "--adopt", "lab3/vol"]);
    assert!(refused.code == Some(3) && refused.stderr.contains("there is no other one to adopt"), "{refused:?}");
    let unknown = desk.run(&["daemon", "reload", "--adopt", "lab3/none"]);
    assert!(unknown.code == Some(4) && unknown.stderr.contains("it keeps: lab3/vol"), "{unknown:?}");
    exporter.kill();
    exchange(&a, &b);
    let (_exporter, _) = daemon(&lab3, &shares(&address));
    wait_for_state(&desk, "another device");
    let message = desk.ok(&["daemon", "reload", "--adopt", "lab3/vol"]);
    assert!(message.contains("the device that is there now is attached"), "{message}");
    wait_for_state(&desk, "attached");
    assert_eq!(way.read(), 2);
    way.write(9).unwrap();
    importer.kill();
    let (_importer, _) = daemon(&desk, &keeps);
    wait_for_state(&desk, "attached");
    assert_eq!(way.read(), 2, "what was adopted stays");
    let kept = fs::read(&b).unwrap();
    assert_eq!((kept[8192], kept[0]), (8, 1), "the first disk has what was written to it");
}

#[test]
fn daemon_serves_no_other_disk_at_the_nbd_socket_until_its_owner_adopts_it() {
    daemon_attaches_its_own_disk_alone("nbd");
}

#[test]
fn daemon_mounts_no_other_disk_at_the_folder_until_its_owner_adopts_it() {
    if has_fuse() {
        daemon_attaches_its_own_disk_alone("fuse");
    }
}

#[test]
fn attach_that_waits_takes_no_other_disk_than_the_one_that_was_in_use() {
    let harness = Harness::new();
    if !has_lasting_files(&harness) {
        return;
    }
    let [lab3, desk] = hosts(&harness);
    pair(&lab3, &desk);
    lab3.ok(&["allow", "desk", "all"]);
    let (a, b) = (image(&harness, "vol.img", 1), image(&harness, "other.img", 2));
    let text = |disk: &Path, address: &str| {
        let what = format!("share = [{{ what = 'disk:{}', name = 'vol' }}]", disk.display());
        format!("{what}\n[plain]\nlisten = []\n[secure]\nlisten = ['{address}']")
    };
    // With its address in the configuration from the start, a reload does not listen anew.
    let (mut first, address) = daemon(&lab3, &text(&a, "127.0.0.1:0"));
    first.kill();
    let (_exporter, _) = daemon(&lab3, &text(&a, &address));
    let nbd = |more: &[&str]| {
        let words = ["attach", "lab3/vol", "--address", &address, "--via", "nbd", "--socket"];
        desk.start(&[&words[..], more].concat())
    };
    let _holder = nbd(&[harness.path("first.sock").to_str().unwrap()]);
    wait_for_state(&desk, "attached");
    let mut waiter = nbd(&[harness.path("second.sock").to_str().unwrap(), "--wait"]);
    waiter.wait_for_line("waiting for lab3/vol");
    waiter.signal(Signal::STOP);
    fs::write(harness.path("lab3.toml"), text(&b, &address)).unwrap();
    lab3.ok(&["daemon", "reload"]);
    waiter.signal(Signal::CONT);
    assert_eq!(waiter.wait_for_end(PATIENCE), Some(4), "{}", waiter.log());
    waiter.assert_logged("'vol' is another device now");
    waiter.assert_logged("farbus attach lab3/vol");
    assert!(is_untouched(&b, 2));
}

/// A share of these disks at plain USB/IP, as an exporter that gives no names has it: the importers of these tests name
/// bus ids.
fn share_at(harness: &Harness, address: &str, disks: [&Path; 2]) -> Share {
    let [one, two] = disks.map(|disk| format!("disk:{}", disk.display()));
    let words = ["share", &one, &two, "--local-users", "all", "--listen", address];
    Share::follow(Running::start(harness.command(&words)))
}

#[test]
fn bus_id_of_a_plain_exporter_stands_for_one_device() {
    let harness = Harness::new();
    let [_, desk] = &hosts(&harness);
    let (a, b) = (image(&harness, "a.img", 1), image(&harness, "b.img", 2));
    let mut share = share_at(&harness, "127.0.0.1:0", [&a, &b]);
    let address = share.address.clone();
    let way = Way::of(&harness, "nbd");
    let keeps =
        |target: &str| format!("[[attach]]\ntarget = '{target}'\n{}\n[plain]\nlisten = ['127.0.0.1:0']", way.words());
    let (mut importer, _) = daemon(desk, &keeps(&format!("{address}/1-1")));
    wait_for_state(desk, "attached");
    assert_eq!(way.read(), 1);
    // The machine is started anew, and what is plugged in is numbered in another order.
    share.process.kill();
    let mut share = share_at(&harness, &address, [&b, &a]);
    let device = wait_for_state(desk, "another device");
    let why = device["failure"]["message"].as_str().unwrap();
    assert!(why.contains("'1-1' is another device now: it was") && !way.is_there(), "{why}");
    let serial = why.split("serial number '").nth(1).and_then(|rest| rest.split('\'').next()).unwrap().to_owned();
    importer.kill();
    let (mut importer, _) = daemon(desk, &keeps(&format!("{address}/1-1")));
    wait_for_state(desk, "another device");
    importer.kill();

    // By its serial number it is found wherever it is.
    let (_importer, _) = daemon(desk, &keeps(&format!("{address}/serial={serial}")));
    wait_for_state(desk, "attached");
    assert_eq!(way.read(), 1);
    share.process.kill();
    wait_until(PATIENCE, "its loss is noticed", || attached(desk)["state"] != "attached");
    let _share = share_at(&harness, &address, [&a, &b]);
    wait_for_state(desk, "attached");
    assert_eq!(way.read(), 1);
    assert!(is_untouched(&b, 2));
}

#[test]
fn device_of_any_exporter_is_named_by_its_make_or_its_serial_number() {
    let harness = Harness::new();
    let share = harness.share(&[
        "keyboard",
        "zero",
        &format!("disk:{}", image(&harness, "a.img", 1).display()),
        &format!("disk:{}", image(&harness, "b.img", 2).display()),
    ]);
    let listed = harness.json(&["list", &share.address, "--json"]);
    let make = |name: &str| {
        let device = listed.as_array().unwrap().iter().find(|device| device["name"] == name).unwrap();
        format!("{}:{}", device["vendor"].as_str().unwrap(), device["product"].as_str().unwrap())
    };
    let attach = |device: &str| {
        let socket = harness.path("x.sock");
        harness.run(&["attach", &share.target(device), "--via", "nbd", "--socket", socket.to_str().unwrap()])
    };
    let keyboard = attach(&make("keyboard"));
    assert!(keyboard.stderr.contains("it is no disk"), "it was found: {keyboard:?}");
    let several = attach(&make("disk"));
    assert!(several.stderr.contains("several devices there are of this make"), "{several:?}");
    let nobody = attach("ffff:0001");
    assert!(nobody.code == Some(4) && nobody.stderr.contains("shares no 'ffff:0001'"), "{nobody:?}");
    let nobody = attach("serial=none");
    assert!(nobody.code == Some(4) && nobody.stderr.contains("shares no 'serial=none'"), "{nobody:?}");
}

#[test]
fn program_gets_no_other_disk_back() {
    if !can_run() {
        return;
    }
    let harness = Harness::new();
    let (a, b) = (image(&harness, "a.img", 1), image(&harness, "b.img", 2));
    let mut share = share_at(&harness, "127.0.0.1:0", [&a, &b]);
    let address = share.address.clone();
    let seen = |mark: &str| {
        format!("until [ \"$(ls /sys/bus/usb/devices | grep -c '^[0-9]*-[0-9]*$')\" = {mark} ]; do sleep 0.1; done")
    };
    let script = format!("echo here; {}; echo gone; {}; echo back", seen("0"), seen("1"));
    let run = Running::start(ordinary(&harness, &["run", &format!("{address}/1-1"), "--", "sh", "-c", &script]));
    run.wait_for_line("here");
    share.process.kill();
    run.wait_for_line("gone");
    let mut share = share_at(&harness, &address, [&b, &a]);
    wait_until(PATIENCE, "the other one is refused", || run.log().contains("'1-1' is another device now"));
    share.process.kill();
    let _share = share_at(&harness, &address, [&a, &b]);
    run.wait_for_line("back");
}
