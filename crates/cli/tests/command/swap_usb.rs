//! USB devices of another host that are attached here, lent to a guest, and swapped for a twin and back while the guest
//! uses them (requirement N12). A twin of this machine needs real hardware, or the rig's; here the twin is another
//! device of the same host, which takes the same way but for its opening.

use std::os::unix::net::UnixStream;

use farbus::model::{EpAddr, Payload, SetupPacket};
use farbus_session::redir::usbredir::message::{ControlPacket, DataPacket};
use farbus_session::redir::usbredir::{RedirMessage, RedirStatus};
use serde_json::Value;

use super::harness::{Harness, PATIENCE, Running, Share, finish, has, has_fuse, has_program, wait_until};
use super::redir::Guest;
use super::restart::{Later, config};
use super::run::{can_run, ordinary, share as share_with_all, wait_until_free};
use super::run_programs::{NODE, usbfs_program};

const IN: u8 = 0x81;
const OUT: u8 = 0x01;
/// 115,200 bits a second.
const CODING: [u8; 7] = [0, 0xc2, 1, 0, 0, 0, 8];

/// Lends a device to a guest, which configures it.
fn lend(harness: &Harness, target: &str, more: &[&str]) -> (Running, Guest<UnixStream>) {
    let socket = harness.path("guest.sock");
    let arguments = [&["attach", target, "--via", "redir", "--socket", socket.to_str().unwrap()], more].concat();
    let process = Running::start(harness.command(&arguments));
    process.wait_for_line("attached at ");
    let mut guest = Guest::connect(&socket);
    guest.configure();
    (process, guest)
}

fn set_coding(guest: &mut Guest<UnixStream>, id: u64) {
    let setup = SetupPacket { request_type: 0x21, request: 0x20, value: 0, index: 0, length: 7 };
    let (outcome, payload) = (RedirStatus::Success, CODING.to_vec().into());
    guest.say(id, RedirMessage::Control(ControlPacket { number: 0, setup, outcome, payload }));
    let answer = guest.hear_kind(|message| matches!(message, RedirMessage::Control(_)));
    assert!(
        matches!(answer.message, RedirMessage::Control(ControlPacket { outcome: RedirStatus::Success, .. })),
        "{answer:?}"
    );
}

fn coding(guest: &mut Guest<UnixStream>, id: u64) -> Vec<u8> {
    guest.control_in(id, SetupPacket { request_type: 0xa1, request: 0x21, value: 0, index: 0, length: 7 })
}

fn product(guest: &mut Guest<UnixStream>, id: u64) -> Vec<u8> {
    guest.control_in(id, SetupPacket::get_descriptor(3, 3, 0x0409, 255))
}

/// Asks for data that is not there yet.
fn ask(guest: &mut Guest<UnixStream>, id: u64) {
    let (endpoint, outcome, payload) = (EpAddr::from_byte(IN), RedirStatus::Success, Payload::Empty);
    guest.say(id, RedirMessage::Bulk(DataPacket { endpoint, outcome, length: 64, stream: 0, payload }));
}

/// Sends a line, and expects it as the answer to the request that waits.
fn send_and_hear(guest: &mut Guest<UnixStream>, id: u64, waiting_id: u64, text: &[u8]) {
    let endpoint = EpAddr::from_byte(OUT);
    let (outcome, length, payload) = (RedirStatus::Success, text.len() as u32, text.to_vec().into());
    guest.say(id, RedirMessage::Bulk(DataPacket { endpoint, outcome, length, stream: 0, payload }));
    let mut heard = Vec::new();
    while heard.len() < 2 {
        let packet = guest.hear_kind(|message| matches!(message, RedirMessage::Bulk(_)));
        let RedirMessage::Bulk(data) = packet.message else { unreachable!("it was looked for") };
        assert_eq!(data.outcome, RedirStatus::Success);
        heard.push((packet.id, data.payload.into_vec()));
    }
    heard.sort();
    let mut expected = vec![(id, Vec::new()), (waiting_id, text.to_vec())];
    expected.sort();
    assert_eq!(heard, expected);
}

/// The devices of the processes with this role.
fn devices(harness: &Harness, role: &str) -> Vec<Value> {
    let status = harness.json(&["status", "--json"]);
    let of_role = status.as_array().unwrap().iter().filter(|process| process["role"] == role);
    of_role.flat_map(|process| process["devices"].as_array().unwrap().clone()).collect()
}

fn states(harness: &Harness) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    devices(harness, "share").iter().map(|device| (text(&device["name"]), text(&device["state"]))).collect()
}

fn both(first: &str, second: &str) -> Vec<(String, String)> {
    [("first", first), ("second", second)].map(|(name, state)| (name.to_owned(), state.to_owned())).to_vec()
}

fn two_ports(harness: &Harness) -> Share {
    harness.share(&["serial,name=first", "serial,name=second"])
}

/// Swaps a serial port for its twin and back while its guest waits for data and was told settings.
fn swaps_and_returns(more: &[&str]) {
    let harness = Harness::new();
    let share = two_ports(&harness);
    let (first, second) = (share.target("first"), share.target("second"));
    let (mut attach, mut guest) = lend(&harness, &first, more);
    set_coding(&mut guest, 3);
    let text = product(&mut guest, 4);
    ask(&mut guest, 10);
    for (round, (to, from)) in [(&second, &first), (&first, &second), (&second, &first)].into_iter().enumerate() {
        let id = 100 * (round as u64 + 1);
        let ended = harness.json(&["swap", &first, "--to", to, "--json"]);
        assert_eq!(
            (&ended["state"], &ended["to"], &ended["from"]),
            (&"done".into(), &to.as_str().into(), &from.as_str().into())
        );
        assert!(ended["replayed"].as_u64() >= Some(2) && ended["asked_again"] == 1, "{ended}");
        let is_own = to == &first;
        let replaced_by = if is_own { Value::Null } else { to.as_str().into() };
        assert_eq!(devices(&harness, "attach")[0]["replaced_by"], replaced_by);
        let expected = if is_own { both("in use", "available") } else { both("available", "in use") };
        assert_eq!(states(&harness), expected, "the other one was given back");
        // The request that waited gets its data from the twin, which has the settings.
        send_and_hear(&mut guest, id, if round == 0 { 10 } else { id - 100 + 3 }, b"hello");
        assert_eq!(coding(&mut guest, id + 1), CODING);
        assert_eq!(product(&mut guest, id + 2), text, "the guest continues to see the first one's texts");
        ask(&mut guest, id + 3);
    }
    let shown = harness.run(&["status"]);
    assert!(shown.stdout.contains(&format!("its twin {second} has its place")), "{shown:?}");
    // Another guest finds the twin reset.
    drop(guest);
    let socket = harness.path("guest.sock");
    wait_until(PATIENCE, "the guest has left", || attach.log().contains("has disconnected"));
    let mut guest = Guest::connect(&socket);
    guest.configure();
    assert_ne!(coding(&mut guest, 3), CODING);
    let detached = harness.run(&["detach"]);
    assert_eq!(detached.code, Some(0), "{detached:?}");
    assert_eq!(attach.wait_for_end(PATIENCE), Some(0), "{}", attach.log());
    wait_until(PATIENCE, "both are free", || states(&harness) == both("available", "available"));
}

#[test]
fn guest_in_a_session_notices_nothing_of_a_twin_and_back() {
    swaps_and_returns(&["--grace", "20"]);
}

#[test]
fn guest_without_a_session_notices_nothing_of_a_twin_and_back() {
    swaps_and_returns(&[]);
}

/// A third host's serial port takes the place of the first host's, and gives it back.
fn goes_to_a_third_host_and_returns(more: &[&str]) {
    let (harness, elsewhere) = (Harness::new(), Harness::new());
    let (share, third) = (two_ports(&harness), two_ports(&elsewhere));
    let (first, there) = (share.target("first"), third.target("second"));
    let (_attach, mut guest) = lend(&harness, &first, more);
    set_coding(&mut guest, 3);
    ask(&mut guest, 10);
    let ended = harness.json(&["swap", &first, "--to", &there, "--json"]);
    assert_eq!((&ended["state"], &ended["to"]), (&"done".into(), &there.as_str().into()), "{ended}");
    assert_eq!((states(&harness), states(&elsewhere)), (both("available", "available"), both("available", "in use")));
    let shown = &devices(&harness, "attach")[0];
    assert_eq!((&shown["replaced_by"], &shown["user"]), (&there.as_str().into(), &third.address.as_str().into()));
    send_and_hear(&mut guest, 20, 10, b"over there");
    assert_eq!(coding(&mut guest, 21), CODING);
    ask(&mut guest, 30);
    harness.json(&["swap", &first, "--to", &first, "--json"]);
    assert_eq!((states(&harness), states(&elsewhere)), (both("in use", "available"), both("available", "available")));
    send_and_hear(&mut guest, 40, 30, b"back again");
}

#[test]
fn device_of_a_third_host_takes_the_place_in_a_session_and_gives_it_back() {
    goes_to_a_third_host_and_returns(&["--grace", "20"]);
}

#[test]
fn device_of_a_third_host_takes_the_place_without_a_session_and_gives_it_back() {
    goes_to_a_third_host_and_returns(&[]);
}

#[test]
fn program_of_farbus_run_notices_nothing_of_a_twin_and_of_a_third_host_and_of_the_return() {
    if !can_run() || !has("gcc", has_program("gcc")) {
        return;
    }
    let (harness, elsewhere) = (Harness::new(), Harness::new());
    let (program, orders) = (usbfs_program(&harness), harness.path("orders"));
    let made = finish(harness.command_of("mkfifo".as_ref(), &["-m", "666", orders.to_str().unwrap()]), PATIENCE);
    assert_eq!(made.code, Some(0), "{made:?}");
    let share = share_with_all(&harness, &["serial,name=first", "serial,name=second"]);
    let third = share_with_all(&elsewhere, &["serial,name=third"]);
    let [first, second] = ["first", "second"].map(|name| share.target(name));
    let words = ["run", &first, "--", program.to_str().unwrap(), "line", NODE, orders.to_str().unwrap()];
    let mut run = Running::start(ordinary(&harness, &words));
    let order = |what: &str| std::fs::write(&orders, what).unwrap();
    let of_owner = |arguments: &[&str]| finish(ordinary(&harness, arguments), PATIENCE);
    let json = |arguments: &[&str]| -> Value {
        let outcome = of_owner(arguments);
        assert_eq!(outcome.code, Some(0), "{arguments:?}: {outcome:?}");
        serde_json::from_str(&outcome.stdout).unwrap()
    };
    run.wait_for_line("waiting");
    for to in [&second, &third.target("third"), &first, &second] {
        let ended = json(&["swap", &first, "--to", to, "--json"]);
        // The configuration and the line's coding; the request that waits.
        assert!(ended["state"] == "done" && ended["replayed"] == 2 && ended["asked_again"] == 1, "{ended}");
        let shown = json(&["status", "--json"]);
        let (process, is_own) = (&shown[0], to == &first);
        let replaced_by = if is_own { Value::Null } else { to.as_str().into() };
        assert_eq!((&process["role"], &process["devices"][0]["replaced_by"]), (&"run".into(), &replaced_by), "{shown}");
        order("h");
        run.wait_for_line("heard");
        run.wait_for_line("waiting");
    }
    let shown = of_owner(&["status"]);
    assert!(shown.stdout.contains(&format!("its twin {second} has its place")), "{shown:?}");
    for refused in [&["detach", first.as_str()][..], &["migrate", &first, "--to", "lab4"]] {
        let outcome = of_owner(refused);
        assert_ne!(outcome.code, Some(0), "{outcome:?}");
    }
    assert!(of_owner(&["detach", "--all"]).stderr.contains("nothing is attached here"), "it is the program's");
    order("q");
    assert_eq!(run.wait_for_end(PATIENCE), Some(0), "{}", run.log());
    wait_until_free(&harness, &share);
    wait_until_free(&elsewhere, &third);
    assert_eq!(json(&["status", "--json"]), serde_json::json!([]), "its socket is gone with it");
}

#[test]
fn program_of_farbus_run_gets_its_own_device_again_when_its_twin_ends() {
    if !can_run() {
        return;
    }
    let (harness, elsewhere) = (Harness::new(), Harness::new());
    let share = share_with_all(&harness, &["serial,name=first"]);
    let mut third = share_with_all(&elsewhere, &["serial,name=first"]);
    let (first, there) = (share.target("first"), third.target("first"));
    let program = "echo ready; until lsusb -s 1:3 | grep 0525:; do sleep 0.05; done; echo again; read -r _";
    let mut command = ordinary(&harness, &["run", &first, "--", "sh", "-c", program]);
    command.stdin(std::process::Stdio::piped());
    let mut run = Running::start(command);
    run.wait_for_line("ready");
    let swapped = finish(ordinary(&harness, &["swap", &first, "--to", &there]), PATIENCE);
    assert_eq!(swapped.code, Some(0), "{swapped:?}");
    wait_until_free(&harness, &share);
    third.process.kill();
    run.wait_for_line("again");
    let shown = finish(ordinary(&harness, &["status", "--json"]), PATIENCE);
    let shown: Value = serde_json::from_str(&shown.stdout).unwrap();
    assert_eq!(
        (&shown[0]["devices"][0]["state"], &shown[0]["devices"][0]["replaced_by"]),
        (&"attached".into(), &Value::Null)
    );
    run.kill();
    wait_until_free(&harness, &share);
}

#[test]
fn what_cannot_take_the_place_is_refused_and_the_guest_keeps_its_device() {
    let harness = Harness::new();
    let image = harness.image("image", 1 << 20);
    let disk = format!("disk:{},name=disk", image.display());
    let share = harness.share(&["serial,name=first", "serial,speed=full,name=slow", "zero", &disk]);
    let first = share.target("first");
    let (_attach, mut guest) = lend(&harness, &first, &["--grace", "20"]);
    let refused = |to: &str, code: i32, part: &str| {
        let outcome = harness.run(&["swap", &first, "--to", to]);
        assert_eq!(outcome.code, Some(code), "{to}: {outcome:?}");
        assert!(outcome.stderr.contains(part), "{to}: no '{part}' in {outcome:?}");
    };
    refused(&share.target("slow"), 3, "one runs at high speed, the other at full speed");
    refused(&share.target("zero"), 3, "the other 0525:a4a0");
    refused(&share.target("nothing"), 4, "stays what it was");
    refused(&first, 3, "it is that one already");
    refused("127.0.0.1:1/first", 5, "cannot connect to 127.0.0.1:1");
    refused("usb:99-9", 4, "no USB device is");
    refused("nonsense", 2, "try block:PATH, HOST/DEVICE, or usb:BUSID");
    refused(&format!("block:{}", harness.path("new.img").display()), 3, "cannot be moved");
    assert_eq!(states(&harness).iter().filter(|(_, state)| state == "in use").count(), 1, "each was given back");
    assert_eq!(devices(&harness, "attach")[0]["replaced_by"], Value::Null);
    ask(&mut guest, 20);
    send_and_hear(&mut guest, 21, 20, b"still here");
    // A shared one has no host to go to, and a swap that is not there is not watched.
    let outcome = harness.run(&["swap", "first", "--to", &share.target("slow")]);
    assert!(outcome.code == Some(3) && outcome.stderr.contains("first is shared here"), "{outcome:?}");
    let outcome = harness.run(&["swap", &first, "--cancel"]);
    assert!(outcome.code == Some(4) && outcome.stderr.contains("is not being swapped"), "{outcome:?}");
}

#[test]
fn disks_and_other_front_ends_refuse_a_twin_and_say_what_can() {
    let harness = Harness::new();
    let [one, other] = ["one", "other"]
        .map(|name| format!("disk:{},name={name}", harness.image(&format!("{name}.img"), 1 << 20).display()));
    let share = harness.share(&[&one, &other]);
    let (mut attach, _guest) = lend(&harness, &share.target("one"), &["--grace", "20"]);
    let refused = harness.run(&["swap", &share.target("one"), "--to", &share.target("other")]);
    assert!(refused.code == Some(3) && refused.stderr.contains("it is a disk, and another one"), "{refused:?}");
    let detached = harness.run(&["detach", "--force"]);
    assert_eq!((detached.code, attach.wait_for_end(PATIENCE)), (Some(0), Some(0)), "{detached:?}");
    if has_fuse() {
        let _attach = harness.attach(&share.target("one"), &harness.path("files"));
        let refused = harness.run(&["swap", &share.target("one"), "--to", &share.target("other")]);
        assert!(refused.code == Some(3) && refused.stderr.contains("block:PATH"), "{refused:?}");
    }
}

#[test]
fn twin_that_ends_takes_the_device_from_the_guest() {
    let harness = Harness::new();
    let mut share = two_ports(&harness);
    let first = share.target("first");
    let (mut attach, mut guest) = lend(&harness, &first, &[]);
    harness.json(&["swap", &first, "--to", &share.target("second"), "--json"]);
    assert_eq!(coding(&mut guest, 3).len(), 7);
    share.process.kill();
    guest.hear_kind(|message| *message == RedirMessage::DeviceDisconnect);
    guest.say(0, RedirMessage::DeviceDisconnectAck);
    assert_eq!(attach.wait_for_end(PATIENCE), Some(5), "{}", attach.log());
}

#[test]
fn daemon_whose_device_a_twin_replaced_is_restarted_after_the_device_is_back() {
    let harness = Harness::new();
    let share = two_ports(&harness);
    let (first, second) = (share.target("first"), share.target("second"));
    let socket = harness.path("guest.sock");
    let text = format!(
        "plain.listen = ['127.0.0.1:0']\n[[attach]]\ntarget = \"{first}\"\nvia = \"redir\"\nsocket = \"{}\"\ngrace = 20\n",
        socket.display()
    );
    let file = config(&harness.path("tmp"), &text);
    let _daemon = Running::start(harness.command(&["daemon", "--config", &file]));
    let mut guest = Guest::connect(&socket);
    guest.configure();
    set_coding(&mut guest, 3);
    harness.json(&["swap", &first, "--to", &second, "--json"]);
    let refused = harness.run(&["daemon", "restart"]);
    assert!(refused.code == Some(3) && refused.stderr.contains("is attached by its twin"), "{refused:?}");
    let refused = harness.run(&["hold", &first]);
    assert_eq!(refused.code, Some(0), "its guest may move on this machine: {refused:?}");
    assert_eq!(harness.run(&["resume", &first]).code, Some(0));
    harness.json(&["swap", &first, "--to", &first, "--json"]);
    let _next = Later::of(&harness.json(&["daemon", "restart", "--json"]));
    assert_eq!(coding(&mut guest, 9), CODING, "its guest notices neither");
}
