//! A virtual machine's device migrates with it to another host, each with a farbus of its own: pending requests go
//! along, and the first host can use the device no more.

use std::io::Read;
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::Path;

use farbus::model::{BufferPool, EpAddr, Payload, SessionLimits};
use farbus_session::redir::CAPS;
use farbus_session::redir::usbredir::message::DataPacket;
use farbus_session::redir::usbredir::{RedirConn, RedirMessage, RedirPacket, RedirRole, RedirStatus};

use super::cluster::Cluster;
use super::harness::{Harness, PATIENCE, wait_until};
use super::redir::Guest;

/// A guest that has arrived with its migration stream: no hello in either direction.
fn arrive(socket: &Path) -> Guest<UnixStream> {
    let stream = UnixStream::connect(socket).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    Guest { stream, conn: RedirConn::continued(RedirRole::Guest, CAPS, CAPS, &SessionLimits::DEFAULT) }
}

fn read(length: u32) -> RedirMessage {
    let (endpoint, outcome) = (EpAddr::from_byte(0x81), RedirStatus::Success);
    RedirMessage::Bulk(DataPacket { endpoint, outcome, length, stream: 0, payload: Payload::Empty })
}

fn hear_read(guest: &mut Guest<UnixStream>, id: u64, length: u32) {
    match guest.hear_kind(|message| matches!(message, RedirMessage::Bulk(_))) {
        RedirPacket { id: answered, message: RedirMessage::Bulk(packet) } => {
            assert_eq!((answered, packet.outcome, packet.payload.len()), (id, RedirStatus::Success, length as usize));
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn guest_migrates_and_back_with_its_pending_requests() {
    let harness = Harness::new();
    let cluster = Cluster::new(&harness, &["zero,verify"]);
    let (mut attach, socket) = cluster.lend(0, "zero", "redir", &[]);
    let mut guest = Guest::connect(&socket);
    guest.configure();
    guest.say(3, read(512));
    hear_read(&mut guest, 3, 512);
    for (round, to) in [1, 0, 1].into_iter().enumerate() {
        let from = &cluster.hosts[1 - to];
        let (successor, socket) = cluster.lend(to, "zero", "redir", &["--inherit"]);
        // The destination connects first, and receives nothing yet.
        let mut there = arrive(&socket);
        let output = from.ok(&["migrate", "lab3/zero", "--to", cluster.hosts[to].name]);
        assert!(output.contains("migrate its virtual machine"), "{output}");
        let twice = from.run(&["migrate", "lab3/zero", "--to", cluster.hosts[to].name]);
        assert!(twice.code == Some(3) && twice.stderr.contains("handed over already"), "{twice:?}");
        // The source sends until it is stopped, with half a packet at the end.
        let id = 10 * (round as u64 + 1);
        guest.say(id, read(60_000));
        guest.say(id + 1, RedirMessage::GetConfiguration);
        guest.conn.send(RedirPacket { id: id + 2, message: read(700) }, &mut BufferPool::new(0));
        let bytes: Vec<u8> = guest.conn.poll_transmit().iter().flat_map(|run| run.iter().copied()).collect();
        let (half, rest) = bytes.split_at(11);
        std::io::Write::write_all(&mut guest.stream, half).unwrap();
        drop(guest);
        std::io::Write::write_all(&mut there.stream, rest).unwrap();
        let status = there.hear_kind(|message| matches!(message, RedirMessage::ConfigurationStatus { .. }));
        let configured = RedirMessage::ConfigurationStatus { outcome: RedirStatus::Success, configuration: 1 };
        assert_eq!(status, RedirPacket { id: id + 1, message: configured });
        hear_read(&mut there, id, 60_000);
        hear_read(&mut there, id + 2, 700);
        assert_eq!(attach.wait_for_end(PATIENCE), Some(0), "{}", attach.log());
        attach.wait_for_line("handed over");
        (guest, attach) = (there, successor);
        assert_eq!(guest.bulk(id + 3, 0x81, 1024, Payload::Empty).length, 1024);
    }
    let history = cluster.exporter.json(&["status", "--json"])[0]["devices"][0]["history"].clone();
    assert_eq!(
        (&history[0]["ended"], &history[2]["ended"]),
        (&"handed over".into(), &"handed over".into()),
        "{history}"
    );
    drop(guest);
    cluster.hosts[1].ok(&["detach"]);
    assert_eq!(attach.wait_for_end(PATIENCE), Some(0));
    let is_free = || cluster.exporter.json(&["status", "--json"])[0]["devices"][0]["state"] == "available";
    wait_until(PATIENCE, "it is given back", is_free);
}

#[test]
fn keys_pressed_while_a_guest_migrates_arrive_at_its_destination() {
    let harness = Harness::new();
    let cluster = Cluster::new(&harness, &["keyboard"]);
    let (mut attach, socket) = cluster.lend(0, "keyboard", "redir", &[]);
    let mut guest = Guest::connect(&socket);
    guest.configure();
    guest.say(0, RedirMessage::StartInterruptReceiving(EpAddr::from_byte(0x81)));
    guest.hear_kind(|message| matches!(message, RedirMessage::InterruptReceivingStatus { .. }));
    let (_successor, socket) = cluster.lend(1, "keyboard", "redir", &["--inherit"]);
    let mut there = arrive(&socket);
    cluster.hosts[0].ok(&["migrate", "keyboard", "--to", "rack"]);
    cluster.exporter.ok(&["type", "keyboard", "hi"]);
    drop(guest);
    let mut keys = Vec::new();
    while keys.len() < 4 {
        if let RedirMessage::Interrupt(data) =
            there.hear_kind(|message| matches!(message, RedirMessage::Interrupt(_))).message
        {
            keys.push(data.payload.into_vec()[2]);
        }
        keys.dedup();
    }
    assert_eq!(keys, [0x0b, 0, 0x0c, 0]);
    assert_eq!(attach.wait_for_end(PATIENCE), Some(0), "{}", attach.log());
}

/// The answer to a pending request may be the only packet for a long time: a program that measures a migration learns
/// of it at once.
#[test]
fn first_answer_after_a_migration_is_reported_at_once() {
    let harness = Harness::new();
    let cluster = Cluster::new(&harness, &["zero"]);
    let (_attach, socket) = cluster.lend(0, "zero", "redir", &[]);
    let mut guest = Guest::connect(&socket);
    guest.configure();
    let (successor, socket) = cluster.lend(1, "zero", "redir", &["--inherit"]);
    let mut there = arrive(&socket);
    cluster.hosts[0].ok(&["migrate", "zero", "--to", "rack"]);
    guest.say(3, read(512));
    drop(guest);
    hear_read(&mut there, 3, 512);
    successor.assert_logged("answers its first request here");
}

#[test]
fn guest_continues_when_it_stays_or_its_successor_never_comes() {
    let harness = Harness::new();
    let cluster = Cluster::new(&harness, &["zero"]);
    let (attach, socket) = cluster.lend(0, "zero", "redir", &[]);
    let desk = &cluster.hosts[0];
    let mut guest = Guest::connect(&socket);
    guest.configure();
    // The migration failed before the guest left.
    desk.ok(&["migrate", "zero", "--to", "rack"]);
    guest.say(5, read(4096));
    desk.ok(&["resume", "zero"]);
    hear_read(&mut guest, 5, 4096);
    // The guest left, and no successor came: a guest that returns here continues.
    desk.ok(&["migrate", "zero", "--to", "rack"]);
    guest.say(6, read(5000));
    drop(guest);
    // The destination's socket is taken by an attachment that knows nothing of the guest's stream.
    let taken = || cluster.hosts[1].run(&["attach", "lab3/zero", "--address", &cluster.address, "--via", "redir"]);
    wait_until(PATIENCE, "it is on its way", || {
        let outcome = taken();
        assert_eq!(outcome.code, Some(3), "{outcome:?}");
        outcome.stderr.contains("--inherit")
    });
    let mut guest = arrive(&socket);
    hear_read(&mut guest, 6, 5000);
    attach.assert_logged("nobody came for the device");
    assert_eq!(guest.bulk(7, 0x81, 1024, Payload::Empty).length, 1024);
    // The guest can still migrate afterwards.
    let (_successor, socket) = cluster.lend(1, "zero", "redir", &["--inherit"]);
    desk.ok(&["migrate", "zero", "--to", "rack"]);
    guest.say(8, read(64));
    drop(guest);
    hear_read(&mut arrive(&socket), 8, 64);
}

#[test]
fn redir_inherit_and_migrate_say_why_they_are_refused() {
    let harness = Harness::new();
    let cluster = Cluster::new(&harness, &["zero"]);
    let rack = &cluster.hosts[1];
    let outcome = rack.run(&["attach", "lab3/zero", "--via", "fuse", "--inherit"]);
    assert!(outcome.code == Some(1) && outcome.stderr.contains("--via redir"), "{outcome:?}");
    let socket = harness.path("x.sock");
    let words = ["attach", "lab3/nothing", "--address", &cluster.address, "--via", "redir", "--inherit", "--socket"];
    let outcome = rack.run(&[&words[..], &[socket.to_str().unwrap()]].concat());
    assert_eq!(outcome.code, Some(4), "{outcome:?}");
    let share = harness.share(&["zero"]);
    let arguments = ["attach", &share.target("zero"), "--via", "redir", "--socket", socket.to_str().unwrap()];
    let plain = rack.start(&arguments);
    plain.wait_for_line("attached at");
    let outcome = rack.run(&["migrate", "zero", "--to", "desk"]);
    assert!(outcome.code == Some(3) && outcome.stderr.contains("no session"), "{outcome:?}");
    let outcome = rack.run(&[&arguments[..2], &["--via", "redir", "--inherit"]].concat());
    assert!(outcome.code == Some(1) && outcome.stderr.contains("paired host"), "{outcome:?}");
}

/// The status of the device with this name, as the host that attached it shows it.
fn attached(host: &super::trust::Host<'_>, name: &str) -> serde_json::Value {
    let all = host.json(&["status", "--json"]);
    let mut devices = all.as_array().unwrap().iter().flat_map(|process| process["devices"].as_array().unwrap());
    devices.find(|device| device["name"] == name && device["bus_id"].is_null()).expect("it is attached").clone()
}

/// Waits until something waits to be read that no packet was read of.
fn await_unread(stream: &UnixStream) {
    wait_until(PATIENCE, "more waits to be read", || rustix::io::ioctl_fionread(stream).unwrap() > 0);
}

/// Reads as QEMU does: at most 4096 bytes at once.
fn hear_chunk(guest: &mut Guest<UnixStream>) {
    let mut chunk = [0; 4096];
    let count = guest.stream.read(&mut chunk).unwrap();
    let space = guest.conn.receive_space();
    space[..count].copy_from_slice(&chunk[..count]);
    guest.conn.handle_received(count);
}

/// The guest stops in the midst of an answer, with a chunk unread and requests open; what it has read moves along with
/// it, as in QEMU's migration stream, and the rest is sent where it continues. It leaves by the end of its connection,
/// or by being said to have stopped, while it is still connected.
#[test]
fn device_that_follows_serves_its_guest_until_it_leaves_and_sends_elsewhere_what_was_unread() {
    let harness = Harness::new();
    let cluster = Cluster::new(&harness, &["zero,verify"]);
    let (mut attach, socket) = cluster.lend(0, "zero", "redir", &[]);
    let mut guest = Guest::connect(&socket);
    guest.configure();
    for (round, to) in [1, 0, 1].into_iter().enumerate() {
        let (from, rack) = (&cluster.hosts[1 - to], cluster.hosts[to].name);
        let (successor, socket) = cluster.lend(to, "zero", "redir", &["--inherit"]);
        let there = UnixStream::connect(&socket).unwrap();
        there.set_read_timeout(Some(PATIENCE)).unwrap();
        let output = from.ok(&["migrate", "lab3/zero", "--to", rack, "--with-machine"]);
        assert!(output.contains("when its machine leaves"), "{output}");
        let status = attached(from, "zero");
        assert_eq!((&status["state"], &status["processes"][0]), (&"following".into(), &std::process::id().into()));
        for command in [&["migrate", "zero", "--to", rack, "--with-machine"][..], &["hold", "zero"]] {
            let refused = from.run(command);
            assert!(refused.code == Some(3) && refused.stderr.contains("follows its virtual machine"), "{refused:?}");
        }
        let id = 10 * (round as u64 + 1);
        // It is served as before.
        assert_eq!(guest.bulk(id, 0x81, 100_000, Payload::Empty).length, 100_000);
        guest.say(id + 1, read(50_000));
        (0..3 + round).for_each(|_| hear_chunk(&mut guest));
        guest.say(id + 2, read(700));
        guest.say(id + 3, RedirMessage::GetConfiguration);
        await_unread(&guest.stream);
        let Guest { stream, conn } = guest;
        let still_connected = (round > 0).then_some(stream);
        if still_connected.is_some() {
            assert_eq!(cluster.depart(1 - to, &attach, "zero"), serde_json::json!({ "ok": null }));
        }
        guest = Guest { stream: there, conn };
        hear_read(&mut guest, id + 1, 50_000);
        let (mut has_read, mut is_told) = (false, false);
        while !(has_read && is_told) {
            match guest.hear().expect("the connection goes on") {
                RedirPacket { id: answered, message: RedirMessage::Bulk(packet) } => {
                    assert_eq!((answered, packet.outcome, packet.payload.len()), (id + 2, RedirStatus::Success, 700));
                    has_read = true;
                }
                RedirPacket { id: answered, message: RedirMessage::ConfigurationStatus { configuration: 1, .. } } => {
                    assert_eq!(answered, id + 3);
                    is_told = true;
                }
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(attach.wait_for_end(PATIENCE), Some(0), "{}", attach.log());
        attach.wait_for_line("handed over");
        drop(still_connected);
        attach = successor;
        let here = attached(&cluster.hosts[to], "zero");
        assert_eq!((&here["state"], &here["interfaces"]), (&"attached".into(), &vec!["vendor specific"].into()));
    }
    assert_eq!(guest.bulk(99, 0x81, 1024, Payload::Empty).length, 1024);
}

#[test]
fn guest_that_has_read_all_is_sent_nothing_twice_and_a_key_pressed_meanwhile_arrives_once() {
    let harness = Harness::new();
    let cluster = Cluster::new(&harness, &["keyboard"]);
    let (_attach, socket) = cluster.lend(0, "keyboard", "redir", &[]);
    let mut guest = Guest::connect(&socket);
    guest.configure();
    guest.say(0, RedirMessage::StartInterruptReceiving(EpAddr::from_byte(0x81)));
    guest.hear_kind(|message| matches!(message, RedirMessage::InterruptReceivingStatus { .. }));
    let (_successor, socket) = cluster.lend(1, "keyboard", "redir", &["--inherit"]);
    cluster.hosts[0].ok(&["migrate", "keyboard", "--to", "rack", "--with-machine"]);
    let mut keys = Vec::new();
    let key = |guest: &mut Guest<UnixStream>| match guest
        .hear_kind(|message| matches!(message, RedirMessage::Interrupt(_)))
        .message
    {
        RedirMessage::Interrupt(data) => data.payload.into_vec()[2],
        other => panic!("{other:?}"),
    };
    cluster.exporter.ok(&["type", "keyboard", "h"]);
    keys.extend([key(&mut guest), key(&mut guest)]);
    // The first report of this one may be unread when the guest leaves, the other ones on their way.
    cluster.exporter.ok(&["type", "keyboard", "i"]);
    await_unread(&guest.stream);
    let Guest { stream, conn } = guest;
    drop(stream);
    let stream = UnixStream::connect(&socket).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut guest = Guest { stream, conn };
    keys.extend([key(&mut guest), key(&mut guest)]);
    cluster.exporter.ok(&["type", "keyboard", "j"]);
    keys.extend([key(&mut guest), key(&mut guest)]);
    assert_eq!(keys, [0x0b, 0, 0x0c, 0, 0x0d, 0]);
}

#[test]
fn guest_that_stays_is_served_on_and_following_it_says_why_it_is_refused() {
    let harness = Harness::new();
    let cluster = Cluster::new(&harness, &["zero"]);
    let (attach, socket) = cluster.lend(0, "zero", "redir", &[]);
    let desk = &cluster.hosts[0];
    let follow = || desk.run(&["migrate", "zero", "--to", "rack", "--with-machine"]);
    let refused = follow();
    assert!(refused.code == Some(3) && refused.stderr.contains("no virtual machine has it"), "{refused:?}");
    let mut guest = Guest::connect(&socket);
    guest.configure();
    assert_eq!(follow().code, Some(0));
    assert_eq!(guest.bulk(3, 0x81, 10_000, Payload::Empty).length, 10_000);
    desk.ok(&["resume", "zero"]);
    assert_eq!(attached(desk, "zero")["state"], "attached");
    assert_eq!(guest.bulk(4, 0x81, 10_000, Payload::Empty).length, 10_000);
    let refused = desk.run(&["resume", "zero"]);
    assert!(refused.code == Some(3) && refused.stderr.contains("not held"), "{refused:?}");
    // It follows nobody: the next guest finds it reset, here.
    drop(guest);
    attach.assert_logged("the device waits for the next");
    let mut next = Guest::connect(&socket);
    next.configure();
    desk.ok(&["hold", "zero"]);
    let refused = follow();
    assert!(refused.code == Some(3) && refused.stderr.contains("held already"), "{refused:?}");
}

#[test]
fn guest_over_tcp_is_not_followed() {
    let harness = Harness::new();
    let cluster = Cluster::new(&harness, &["zero"]);
    let words = ["attach", "lab3/zero", "--address", &cluster.address, "--via", "redir", "--listen", "127.0.0.1:0"];
    let attach = cluster.hosts[0].start(&words);
    let line = attach.wait_for_line("attached at ");
    let address = line.split("attached at ").nth(1).unwrap().split_whitespace().next().unwrap().to_owned();
    let mut guest = Guest::over(TcpStream::connect(address).unwrap());
    guest.configure();
    let refused = cluster.hosts[0].run(&["migrate", "zero", "--to", "rack", "--with-machine"]);
    assert!(refused.code == Some(3) && refused.stderr.contains("--socket"), "{refused:?}");
    assert_eq!(guest.bulk(3, 0x81, 512, Payload::Empty).length, 512);
}
