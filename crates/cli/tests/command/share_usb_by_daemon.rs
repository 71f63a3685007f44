//! `farbus share usb:…` beside a daemon of the same user: the command opens the device's node, the daemon shares it.
//!
//! The device is one of `farbus run`: the daemon and its commands are in it, and drive the device by usbfs alone.

use std::fs;
use std::path::PathBuf;

use farbus::client;
use rustix::process::Signal;
use serde_json::Value;

use super::harness::{Harness, Outcome, PATIENCE, Running, Share, finish, wait_until};
use super::restart::Later;
use super::run::{can_run, ordinary, share};

/// A machine with one real device, a source and sink called `source-sink`, and a daemon that shares a keyboard.
pub(super) struct Lab {
    pub harness: Harness,
    /// Where the device really is. Its end unplugs the device.
    outer: Share,
    /// Where a second device of the same kind really is, if there is one.
    _twin: Option<Share>,
    config: PathBuf,
    pub daemon: Share,
}

impl Lab {
    fn new() -> Self {
        Self::start(false)
    }

    /// With a second device of the same kind, if `has_twin`.
    pub fn start(has_twin: bool) -> Self {
        let harness = Harness::new();
        let outer = share(&harness, &["zero"]);
        let twin = has_twin.then(|| share(&harness, &["zero"]));
        let config = harness.path("farbus.toml");
        let text =
            "[plain]\nlisten = ['127.0.0.1:0']\nlocal_users = ['all']\n[[share]]\nwhat = 'keyboard'\nname = 'k'\n";
        fs::write(&config, text).unwrap();
        fs::set_permissions(&config, std::os::unix::fs::PermissionsExt::from_mode(0o666)).unwrap();
        let daemon = ["daemon", "--config", config.to_str().unwrap()];
        let targets: Vec<String> =
            [Some(&outer), twin.as_ref()].into_iter().flatten().map(|at| at.target("zero")).collect();
        let targets: Vec<&str> = targets.iter().map(String::as_str).collect();
        // The devices are there as long as the shell, so another daemon may take the first one's place.
        let stays = "\"$@\"; exec sleep infinity";
        let inside = ["--", "sh", "-c", stays, "sh", env!("CARGO_BIN_EXE_farbus")];
        let words = [&["run", "--name", "lab"][..], &targets, &inside, &daemon].concat();
        let daemon = Share::follow(Running::start(ordinary(&harness, &words)));
        Self { harness, outer, _twin: twin, config, daemon }
    }

    pub fn command(&self, arguments: &[&str]) -> std::process::Command {
        let first = ["run", "--join", "lab", "--", env!("CARGO_BIN_EXE_farbus")];
        ordinary(&self.harness, &[&first[..], arguments].concat())
    }

    /// Runs a command on that machine.
    pub fn run(&self, arguments: &[&str]) -> Outcome {
        finish(self.command(arguments), PATIENCE)
    }

    fn names(&self) -> Vec<String> {
        let Ok(listed) = client::list(&self.daemon.address) else { return Vec::new() };
        listed.iter().map(|record| client::name_of(record).to_owned()).collect()
    }

    fn device(&self, name: &str) -> Value {
        let status = self.run(&["status", "--json"]);
        let processes: Value = serde_json::from_str(&status.stdout).unwrap_or_else(|_| panic!("{status:?}"));
        let daemon = processes.as_array().unwrap().iter().find(|process| process["role"] == "daemon").expect("it runs");
        let devices = daemon["devices"].as_array().unwrap();
        devices.iter().find(|device| device["name"] == name).cloned().unwrap_or_default()
    }

    /// Pulls the device out.
    fn unplug(&mut self) {
        self.outer.process.kill();
    }

    /// Plugs another one in at the same port.
    fn plug(&mut self) {
        let arguments = ["share", "zero", "--local-users", "all", "--listen", &self.outer.address];
        self.outer = Share::follow(Running::start(self.harness.command(&arguments)));
    }

    /// Uses the device as another host would.
    fn use_device(&self, name: &str) {
        let used = client::open(&self.daemon.library_target(name)).unwrap();
        drop(used);
        wait_until(PATIENCE, "it is free", || self.device(name)["state"] == "available");
    }
}

fn assert_ended(outcome: &Outcome, code: i32, part: &str) {
    assert_eq!(outcome.code, Some(code), "{outcome:?}");
    assert!(outcome.stderr.contains(part) || outcome.stdout.contains(part), "no '{part}' in {outcome:?}");
}

#[test]
fn daemon_shares_a_real_device_for_a_command_until_its_ctrl_c_and_over_a_restart() {
    if !can_run() {
        return;
    }
    let lab = Lab::new();
    let mut command = Running::start(lab.command(&["share", "usb:1-1"]));
    command.wait_for_line("source-sink ");
    assert_eq!(command.wait_for_line("listening on").split_whitespace().nth(2), Some(&lab.daemon.address[..]));
    assert_eq!(lab.names(), ["k", "source-sink"]);
    lab.use_device("source-sink");
    let identity = lab.device("source-sink")["identity"].clone();
    assert_ended(
        &lab.run(&["share", "usb:1-1", "--keep"]),
        3,
        "usb:1-1 is shared by the daemon already, as 'source-sink'",
    );

    let next = lab.run(&["daemon", "restart", "--json"]);
    assert_eq!(next.code, Some(0), "{next:?}");
    let next = Later::of(&serde_json::from_str(&next.stdout).unwrap());
    wait_until(PATIENCE, "the next daemon shares it", || lab.names() == ["source-sink", "k"]);
    assert_eq!(lab.device("source-sink")["identity"], identity);
    lab.use_device("source-sink");

    command.signal(Signal::INT);
    assert_eq!(command.wait_for_end(PATIENCE), Some(0), "{}", command.log());
    assert_eq!(lab.names(), ["k"]);
    // It is free for another command, which may be killed.
    let mut command = Running::start(lab.command(&["share", "usb:0525:a4a0,name=board"]));
    command.wait_for_line("board ");
    command.wait_for_line("listening on");
    command.kill();
    wait_until(PATIENCE, "it is not shared any more", || lab.names() == ["k"]);
    next.end();
    drop(lab.daemon);
}

#[test]
fn unplugged_device_of_a_command_is_shared_again_when_it_is_plugged_in_again() {
    if !can_run() {
        return;
    }
    let mut lab = Lab::new();
    let mut command = Running::start(lab.command(&["share", "usb:1-1,name=board"]));
    command.wait_for_line("listening on");
    for _ in 0..2 {
        lab.unplug();
        command.wait_for_line("board: unplugged; it is shared again when it is plugged in again");
        assert_eq!(lab.names(), ["k"]);
        lab.plug();
        command.wait_for_line("board ");
        assert_eq!(lab.names(), ["k", "board"]);
        lab.use_device("board");
    }
    assert_ended(&lab.run(&["unshare", "board"]), 0, "not shared any more: board");
    command.wait_for_line("somebody else ended this share");
    assert_eq!(command.wait_for_end(PATIENCE), Some(0), "{}", command.log());
    assert_eq!(lab.names(), ["k"]);
}

#[test]
fn kept_device_is_shared_until_it_is_unplugged_and_a_saved_one_for_good() {
    if !can_run() {
        return;
    }
    let mut lab = Lab::new();
    assert_ended(&lab.run(&["share", "usb:1-1", "--keep"]), 0, "or until it is unplugged");
    assert_eq!(lab.names(), ["k", "source-sink"]);
    assert_ended(&lab.run(&["daemon", "reload"]), 0, "nothing changed");
    assert_eq!(lab.names(), ["k", "source-sink"]);
    lab.unplug();
    wait_until(PATIENCE, "it is gone", || lab.names() == ["k"]);
    lab.plug();
    wait_until(PATIENCE, "it is there again", || lab.run(&["share", "--list"]).stdout.contains("1-1"));
    assert_ended(&lab.run(&["share", "usb:0525:a4a0,name=board", "--save"]), 0, "shared each time it is plugged in");
    assert_eq!(lab.names(), ["k", "board"], "what was kept was no more than that device");
    let text = fs::read_to_string(&lab.config).unwrap();
    assert!(text.ends_with("\n[[share]]\nwhat = \"usb:0525:a4a0\"\nname = \"board\"\n"), "{text}");
    let used = client::open(&lab.daemon.library_target("board")).unwrap();
    assert_ended(&lab.run(&["daemon", "reload"]), 0, "reloaded");
    assert_eq!(lab.device("board")["state"], "in use", "its user noticed nothing");
    drop(used);
    assert_ended(&lab.run(&["unshare", "board"]), 3, "is a real device, which the configuration shares");
    lab.unplug();
    wait_until(PATIENCE, "it is gone", || lab.names() == ["k"]);
    lab.plug();
    wait_until(PATIENCE, "the daemon opens it by itself", || lab.names() == ["k", "board"]);
}

#[test]
fn command_that_fails_leaves_no_real_device_with_the_daemon() {
    if !can_run() {
        return;
    }
    let lab = Lab::new();
    let refused = lab.run(&["share", "usb:1-1", "keyboard", "disk:/nowhere", "--keep"]);
    assert_ended(&refused, 1, "no such file");
    assert_eq!(lab.names(), ["k"], "one that fails leaves nothing of the others");
    assert_ended(&lab.run(&["share", "usb:2-7", "--save"]), 4, "no USB device is usb:2-7");
}
