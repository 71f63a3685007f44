//! A device that becomes another one in its port, as boards do that are flashed: what a share by port, its permissions,
//! its lease and its users make of that.
//!
//! The machine with the real device is one of `farbus run`: its exporter drives the device by usbfs alone. The device
//! is a source and sink that becomes a device in DFU mode, and back.

use std::cell::RefCell;
use std::fs;

use farbus_session::redir::usbredir::RedirMessage;
use rustix::process::Signal;
use serde_json::Value;

use super::harness::{Harness, Outcome, PATIENCE, Running, Share, finish, wait_until};
use super::redir::Guest;
use super::restart::Later;
use super::run::{can_run, ordinary, share};
use super::trust::{Host, next_code};

const ZERO: &str = "0525:a4a0";
const DFU: &str = "1209:0002";

/// A machine with a board in port 1-1.
struct Machine<'h> {
    harness: &'h Harness,
    /// Where the board really is.
    board: RefCell<Share>,
    _run: Running,
}

impl<'h> Machine<'h> {
    fn new(harness: &'h Harness) -> Self {
        let board = share(harness, &["zero,name=board"]);
        let target = board.target("board");
        let words = ["run", "--name", "lab", &target, "--", "sh", "-c", "echo ready; exec sleep infinity"];
        let run = Running::start(ordinary(harness, &words));
        run.wait_for_line("ready");
        Self { harness, board: RefCell::new(board), _run: run }
    }

    /// The board is `what` from now on, in the same port.
    fn becomes(&self, what: &str) {
        let mut board = self.board.borrow_mut();
        board.process.kill();
        let what = format!("{what},name=board");
        let arguments = ["share", &what, "--local-users", "all", "--listen", &board.address];
        *board = Share::follow(Running::start(self.harness.command(&arguments)));
    }

    /// A command on that machine, beside the board.
    fn command(&self, arguments: &[&str]) -> std::process::Command {
        let first = ["run", "--join", "lab", "--", env!("CARGO_BIN_EXE_farbus")];
        let mut command = ordinary(self.harness, &[&first[..], arguments].concat());
        command.env("FARBUS_NAME", "lab3");
        command
    }

    fn start(&self, arguments: &[&str]) -> Running {
        Running::start(self.command(arguments))
    }

    fn run(&self, arguments: &[&str]) -> Outcome {
        finish(self.command(arguments), PATIENCE)
    }

    fn ok(&self, arguments: &[&str]) -> String {
        let outcome = self.run(arguments);
        assert_eq!(outcome.code, Some(0), "{arguments:?}: {outcome:?}");
        outcome.stdout
    }

    /// The shared device, as its owner sees it.
    fn device(&self) -> Value {
        let status: Value = serde_json::from_str(&self.run(&["status", "--json"]).stdout).unwrap_or_default();
        let all = status.as_array().cloned().unwrap_or_default();
        let mut devices = all.iter().flat_map(|process| process["devices"].as_array().cloned().unwrap_or_default());
        // The run has the board, too.
        devices.find(|device| !device["bus_id"].is_null()).unwrap_or_default()
    }

    fn wait_for(&self, ids: &str, state: &str) -> Value {
        wait_until(PATIENCE, &format!("the board is {ids}, {state}"), || {
            let device = self.device();
            device["ids"] == ids && device["state"] == state
        });
        self.device()
    }

    /// Pairs this machine, as lab3, with a host.
    fn pair(&self, host: &Host<'_>) {
        let mut waiting = self.start(&["pair", "--listen", "127.0.0.1:0", "--json"]);
        let (address, code) = next_code(&waiting);
        host.ok(&["pair", &address, &code]);
        assert_eq!(waiting.wait_for_end(PATIENCE), Some(0));
    }

    /// A file of that machine's user.
    fn write(&self, name: &str, text: &str) -> String {
        let path = self.harness.path(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o644)).unwrap();
        path.to_str().unwrap().to_owned()
    }
}

fn desk(harness: &Harness) -> Host<'_> {
    Host { harness, name: "desk" }
}

/// Where a process of that machine serves paired hosts.
fn secure_address(process: &Running) -> String {
    process.wait_for_line("for paired hosts").split_whitespace().nth(2).unwrap().to_owned()
}

/// The only device that `host` sees at lab3.
fn listed(host: &Host<'_>) -> Value {
    host.json(&["list", "lab3", "--json"])[0].clone()
}

fn name_and_bus_id(device: &Value) -> (String, String) {
    let text = |key: &str| device[key].as_str().unwrap_or_default().to_owned();
    (text("name"), text("bus_id"))
}

#[test]
fn share_by_port_keeps_its_name_and_bus_id_and_says_that_another_device_is_there() {
    if !can_run() {
        return;
    }
    let harness = Harness::new();
    let machine = Machine::new(&harness);
    let process = machine.start(&["share", "usb:1-1", "--local-users", "all", "--listen", "127.0.0.1:0"]);
    let exporter = Share::follow(process);
    let first = machine.wait_for(ZERO, "available");
    assert_eq!(name_and_bus_id(&first), ("source-sink".into(), "1-1".into()));
    for _ in 0..2 {
        machine.becomes("dfu");
        let other = machine.wait_for(DFU, "another device in this port");
        assert_eq!(name_and_bus_id(&other), name_and_bus_id(&first), "{other}");
        let another = &other["another_in_port"];
        assert!(
            another["was"].as_str().unwrap().starts_with(ZERO) && another["is"].as_str().unwrap().starts_with(DFU),
            "{another}"
        );
        assert!(another["next"].as_str().unwrap().ends_with("farbus share usb:1-1 --follow 1209:0002"), "{another}");
        assert!(other["identity"]["id"] != first["identity"]["id"], "{other}");
        let status = machine.ok(&["status"]);
        assert!(status.contains("source-sink: another device in this port: it was 0525:a4a0"), "{status}");
        exporter.process.assert_logged("another device in this port");
        machine.becomes("zero");
        let again = machine.wait_for(ZERO, "available");
        assert_eq!((name_and_bus_id(&again), &again["identity"]), (name_and_bus_id(&first), &first["identity"]));
        assert!(again["another_in_port"].is_null(), "{again}");
    }
    let refused = machine.run(&["share", "usb:0525:a4a0", "--follow", DFU]);
    assert!(refused.code == Some(1) && refused.stderr.contains("names no port"), "{refused:?}");
}

#[test]
fn share_through_the_daemon_keeps_its_name_and_bus_id_while_its_command_runs() {
    if !can_run() {
        return;
    }
    let harness = Harness::new();
    let machine = Machine::new(&harness);
    let config = machine.write("lab3.toml", "[plain]\nlisten = ['127.0.0.1:0']\nlocal_users = ['all']\n");
    let _daemon = Share::follow(machine.start(&["daemon", "--config", &config]));
    let mut command = machine.start(&["share", "usb:1-1"]);
    command.wait_for_line("source-sink ");
    let first = machine.wait_for(ZERO, "available");
    machine.becomes("dfu");
    let other = machine.wait_for(DFU, "another device in this port");
    assert_eq!(name_and_bus_id(&other), name_and_bus_id(&first), "{other}");
    command.signal(Signal::INT);
    assert_eq!(command.wait_for_end(PATIENCE), Some(0), "{}", command.log());
    // Who names the port anew means what is there.
    let command = machine.start(&["share", "usb:1-1", "--follow", ZERO, "--follow", "port"]);
    command.assert_logged("whatever is plugged into the port next is taken for the device");
    command.wait_for_line("dfu-device ");
    let first = machine.wait_for(DFU, "available");
    machine.becomes("zero");
    let followed = machine.wait_for(ZERO, "available");
    assert_eq!((name_and_bus_id(&followed), &followed["identity"]), (name_and_bus_id(&first), &first["identity"]));
}

#[test]
fn daemon_that_is_replaced_knows_which_device_the_share_of_a_command_stands_for() {
    if !can_run() {
        return;
    }
    let harness = Harness::new();
    let machine = Machine::new(&harness);
    let config = machine.write("lab3.toml", "[plain]\nlisten = ['127.0.0.1:0']\nlocal_users = ['all']\n");
    let _daemon = Share::follow(machine.start(&["daemon", "--config", &config]));
    let command = machine.start(&["share", "usb:1-1", "--follow", DFU]);
    command.wait_for_line("source-sink ");
    let first = machine.wait_for(ZERO, "available");
    machine.becomes("dfu");
    let followed = machine.wait_for(DFU, "available");
    assert_eq!((name_and_bus_id(&followed), &followed["identity"]), (name_and_bus_id(&first), &first["identity"]));
    let next = Later::of(&serde_json::from_str(&machine.ok(&["daemon", "restart", "--json"])).unwrap());
    let followed = machine.wait_for(DFU, "available");
    assert_eq!(
        (name_and_bus_id(&followed), &followed["identity"]),
        (name_and_bus_id(&first), &first["identity"]),
        "after the restart"
    );
    machine.becomes("zero");
    let back = machine.wait_for(ZERO, "available");
    assert_eq!(
        (name_and_bus_id(&back), &back["identity"]),
        (name_and_bus_id(&first), &first["identity"]),
        "the first one is back"
    );
    drop(command);
    next.end();
}

#[test]
fn permission_and_lease_do_not_follow_another_device_unless_its_owner_says_so() {
    if !can_run() {
        return;
    }
    let harness = Harness::new();
    let machine = Machine::new(&harness);
    let hosts = ["desk", "rack"].map(|name| Host { harness: &harness, name });
    let [desk, rack] = &hosts;
    hosts.iter().for_each(|host| machine.pair(host));
    let serve = |follow: &[&str], address: &str| {
        let words = ["share", "usb:1-1,name=board", "--listen", "none", "--secure", address];
        let process = machine.start(&[&words[..], follow].concat());
        let address = secure_address(&process);
        hosts.iter().for_each(|host| drop(host.run(&["list", "lab3", "--address", &address])));
        (process, address)
    };
    let (mut exporter, address) = serve(&[], "127.0.0.1:0");
    hosts.iter().for_each(|host| drop(machine.ok(&["allow", host.name, "board"])));
    desk.ok(&["lease", "lab3/board", "--for", "2h"]);
    let first = listed(desk);
    assert!(name_and_bus_id(&first).0 == "board" && first["lease"]["is_yours"] == true, "{first}");

    machine.becomes("dfu");
    machine.wait_for(DFU, "another device in this port");
    assert_eq!(listed(desk), Value::Null, "the permission is for the device of before");
    let refused = desk.run(&["lease", "lab3/board", "--no-wait"]);
    assert!(refused.code == Some(4), "{refused:?}");
    let refused = desk.run(&["attach", "lab3/board", "--via", "redir"]);
    assert!(refused.code == Some(4), "{refused:?}");
    // Who may use everything may use it, and sees what it is.
    machine.ok(&["allow", "rack", "all"]);
    let seen = listed(rack);
    assert_eq!((&seen["state"], &seen["lease"]), (&"another device in this port".into(), &Value::Null), "{seen}");
    assert!(seen["another_in_port"]["was"].as_str().unwrap().starts_with(ZERO), "{seen}");
    assert!(rack.ok(&["list", "lab3"]).contains("another device in this port"));
    machine.becomes("zero");
    machine.wait_for(ZERO, "available");
    let back = listed(desk);
    assert_eq!((&back["bus_id"], &back["lease"]["is_yours"]), (&first["bus_id"], &true.into()), "{back}");

    exporter.signal(Signal::TERM);
    assert_eq!(exporter.wait_for_end(PATIENCE), Some(0));
    let (_exporter, _) = serve(&["--follow", DFU], &address);
    for (what, ids) in [("dfu", DFU), ("zero", ZERO), ("dfu", DFU)] {
        machine.becomes(what);
        machine.wait_for(ids, "available");
        let seen = listed(desk);
        assert_eq!(
            (name_and_bus_id(&seen), &seen["lease"]["is_yours"]),
            (name_and_bus_id(&first), &true.into()),
            "{seen}"
        );
        let refused = rack.run(&["lease", "lab3/board", "--no-wait"]);
        assert!(refused.code == Some(3) && refused.stderr.contains("desk has it"), "{refused:?}");
    }
}

/// What a guest is told of the device that it gets.
fn connected(guest: &mut Guest<std::os::unix::net::UnixStream>) -> String {
    let packet = guest.hear_kind(|message| matches!(message, RedirMessage::DeviceConnect(_)));
    let RedirMessage::DeviceConnect(device) = packet.message else { unreachable!() };
    format!("{:04x}:{:04x}", device.vendor, device.product)
}

#[test]
fn daemons_follow_another_device_as_their_configurations_say() {
    if !can_run() {
        return;
    }
    let harness = Harness::new();
    let machine = Machine::new(&harness);
    let desk = desk(&harness);
    machine.pair(&desk);
    machine.ok(&["allow", "desk", "board"]);
    let config = |follow: &str, address: &str| {
        let share = format!("[[share]]\nwhat = 'usb:1-1'\nname = 'board'\n{follow}\n");
        machine.write("lab3.toml", &format!("{share}[plain]\nlisten = []\n[secure]\nlisten = ['{address}']\n"))
    };
    let file = config("", "127.0.0.1:0");
    let mut exporter = machine.start(&["daemon", "--config", &file]);
    let address = secure_address(&exporter);
    desk.ok(&["list", "lab3", "--address", &address]);
    let socket = harness.path("guest.sock");
    let keeps = |follow: &str| {
        let front_end = format!("via = 'redir'\nsocket = '{}'\n{follow}\n", socket.display());
        let text = format!("[[attach]]\ntarget = 'lab3/board'\n{front_end}[plain]\nlisten = ['127.0.0.1:0']\n");
        let file = harness.path("desk.toml");
        fs::write(&file, text).unwrap();
        file.to_str().unwrap().to_owned()
    };
    let file = keeps("");
    let _importer = desk.start(&["daemon", "--config", &file]);
    let attached = || {
        let status = desk.json(&["status", "--json"]);
        let devices =
            status.as_array().into_iter().flatten().flat_map(|process| process["devices"].as_array().unwrap());
        devices.clone().find(|device| device["at"].is_string()).cloned().or(devices.clone().next().cloned())
    };
    let wait_for_state = |state: &str| {
        wait_until(PATIENCE, state, || attached().is_some_and(|device| device["state"] == state));
    };
    wait_for_state("attached");
    let mut guest = Guest::connect(&socket);
    assert_eq!(connected(&mut guest), ZERO);
    let id = machine.device()["identity"].clone();

    // Its exporter follows, this host does not.
    config(&format!("follow = ['{DFU}']"), "127.0.0.1:0");
    machine.ok(&["daemon", "reload"]);
    machine.becomes("dfu");
    assert!(guest.hear_kind(|message| matches!(message, RedirMessage::DeviceDisconnect)).id == 0);
    assert_eq!(machine.wait_for(DFU, "available")["identity"], id);
    wait_for_state("another device");
    // Both do.
    keeps(&format!("follow = ['{DFU}']"));
    desk.ok(&["daemon", "reload"]);
    wait_for_state("attached");
    let mut guest = Guest::connect(&socket);
    assert_eq!(connected(&mut guest), DFU);
    // The exporter is started again while the other device is there.
    exporter.signal(Signal::TERM);
    assert_eq!(exporter.wait_for_end(PATIENCE), Some(0));
    let file = config(&format!("follow = ['{DFU}']"), &address);
    let mut exporter = machine.start(&["daemon", "--config", &file]);
    secure_address(&exporter);
    let device = machine.wait_for(DFU, "in use");
    assert_eq!((&device["identity"], name_and_bus_id(&device).0.as_str()), (&id, "board"));
    machine.becomes("zero");
    assert_eq!(machine.wait_for(ZERO, "in use")["identity"], id);
    wait_for_state("attached");
    assert_eq!(connected(&mut Guest::connect(&socket)), ZERO);

    // Without that, another device that is there when it is started again is another one.
    exporter.signal(Signal::TERM);
    assert_eq!(exporter.wait_for_end(PATIENCE), Some(0));
    machine.becomes("dfu");
    let file = config("", &address);
    let exporter = machine.start(&["daemon", "--config", &file]);
    secure_address(&exporter);
    let other = machine.wait_for(DFU, "another device in this port");
    let next = other["another_in_port"]["next"].as_str().unwrap();
    assert!(next.contains("add follow = [\"1209:0002\"]") && next.contains("lab3.toml"), "{next}");
    assert_eq!(listed(&desk), Value::Null);
    // Its owner gives it the place.
    let output = machine.ok(&["daemon", "reload", "--adopt", "board"]);
    assert!(output.contains("board"), "{output}");
    let adopted = machine.wait_for(DFU, "in use");
    assert!(adopted["another_in_port"].is_null() && name_and_bus_id(&adopted).0 == "board", "{adopted}");
    assert_eq!(listed(&desk)["product"], "0002");
}

#[test]
fn program_in_a_session_gets_the_new_device_in_the_old_one_s_place_before_those_who_wait() {
    if !can_run() {
        return;
    }
    let harness = Harness::new();
    let machine = Machine::new(&harness);
    let hosts = ["desk", "rack", "shelf"].map(|name| Host { harness: &harness, name });
    let [desk, rack, shelf] = &hosts;
    for host in &hosts {
        machine.pair(host);
        machine.ok(&["allow", host.name, "board"]);
    }
    let words = ["share", "usb:1-1,name=board", "--listen", "none", "--secure", "127.0.0.1:0", "--follow", DFU];
    let exporter = machine.start(&words);
    let address = secure_address(&exporter);
    hosts.iter().for_each(|host| drop(host.ok(&["list", "lab3", "--address", &address])));
    let program = format!(
        "echo ready; until lsusb -v -d {DFU} | grep -E 'iProduct.*DFU device'; do sleep 0.1; done; \
         until lsusb -v -d {ZERO} | grep -E 'iProduct.*source/sink'; do sleep 0.1; done; \
         lsusb | grep -c -e {ZERO} -e {DFU}"
    );
    let mut run = desk.start(&["run", "lab3/board", "--", "sh", "-c", &program]);
    run.wait_for_line("ready");
    let mut waits = rack.start(&["run", "lab3/board", "--wait", "--", "lsusb", "-d", ZERO]);
    waits.assert_logged("waiting for lab3/board");
    let mut leases = shelf.start(&["lease", "lab3/board", "--", "echo", "leased"]);
    leases.assert_logged("waiting for lab3/board, place");
    machine.becomes("dfu");
    run.wait_for_line("DFU device");
    machine.becomes("zero");
    run.wait_for_line("source/sink");
    run.wait_for_line("1");
    assert_eq!(run.wait_for_end(PATIENCE), Some(0), "{}", run.log());
    // They waited through all of that, and kept their places.
    waits.wait_for_line(ZERO);
    assert_eq!(waits.wait_for_end(PATIENCE), Some(0), "{}", waits.log());
    leases.wait_for_line("leased");
    assert_eq!(leases.wait_for_end(PATIENCE), Some(0), "{}", leases.log());

    // One who is told which device may follow gets no other one.
    let words = ["run", "lab3/board", "--address", &address, "--follow", "1209:0009", "--", "sh", "-c"];
    let mut run = desk.start(&[&words[..], &["echo ready; until lsusb -d 1209:; do sleep 0.1; done"]].concat());
    run.wait_for_line("ready");
    machine.becomes("dfu");
    run.assert_logged("'board' is another device now: it was 0525:a4a0");
    run.signal(Signal::TERM);
    run.wait_for_end(PATIENCE);
}

#[test]
fn attached_device_of_a_virtual_machine_comes_back_as_another_one() {
    if !can_run() {
        return;
    }
    let harness = Harness::new();
    let machine = Machine::new(&harness);
    let desk = desk(&harness);
    machine.pair(&desk);
    machine.ok(&["allow", "desk", "board"]);
    let words = ["share", "usb:1-1,name=board", "--local-users", "all", "--listen", "127.0.0.1:0", "--secure"];
    let exporter = machine.start(&[&words[..], &["127.0.0.1:0", "--follow", DFU]].concat());
    let plain = exporter.wait_for_line("listening on").split_whitespace().nth(2).unwrap().to_owned();
    let address = secure_address(&exporter);
    let socket = harness.path("guest.sock");
    for (target, more) in
        [("lab3/board".to_owned(), ["--address", &address]), (format!("{plain}/board"), ["--grace", "0"])]
    {
        let words = ["attach", &target, "--via", "redir", "--socket", socket.to_str().unwrap(), "--follow", DFU];
        let mut attach = desk.start(&[&words[..], &more].concat());
        attach.wait_for_line("attached at");
        let mut guest = Guest::connect(&socket);
        assert_eq!(connected(&mut guest), ZERO, "{target}");
        for (what, ids) in [("dfu", DFU), ("zero", ZERO)] {
            machine.becomes(what);
            guest.hear_kind(|message| matches!(message, RedirMessage::DeviceDisconnect));
            attach.wait_for_line("is gone, and is waited for");
            attach.wait_for_line("attached at");
            guest = Guest::connect(&socket);
            assert_eq!(connected(&mut guest), ids, "{target}");
        }
        attach.signal(Signal::INT);
        assert_eq!(attach.wait_for_end(PATIENCE), Some(0), "{}", attach.log());
        machine.wait_for(ZERO, "available");
    }
}
