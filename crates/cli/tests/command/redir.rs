//! `farbus attach --via redir`: a virtual machine's emulator connects, uses the device, leaves and returns. The rig
//! tests QEMU itself; here a guest made of code checks every packet.

use std::fs;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use farbus::model::{BufferPool, EpAddr, Payload, SessionLimits, SetupPacket};
use farbus_session::redir::CAPS;
use farbus_session::redir::usbredir::message::{ControlPacket, DataPacket};
use farbus_session::redir::usbredir::{RedirConn, RedirMessage, RedirPacket, RedirRole, RedirStatus};
use rustix::process::Signal;

use super::harness::{Harness, PATIENCE, Running, Share, wait_until};
use super::rights::assert_without_rights;

/// A usbredir guest over any stream.
pub struct Guest<S> {
    pub stream: S,
    pub conn: RedirConn,
}

impl Guest<UnixStream> {
    pub fn connect(path: &Path) -> Self {
        wait_until(PATIENCE, "somebody listens", || UnixStream::connect(path).is_ok());
        let stream = UnixStream::connect(path).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Self::over(stream)
    }
}

impl<S: Read + Write> Guest<S> {
    pub fn over(stream: S) -> Self {
        let conn = RedirConn::new(RedirRole::Guest, "test", CAPS, &SessionLimits::DEFAULT);
        let mut guest = Self { stream, conn };
        guest.flush().unwrap();
        guest
    }

    fn flush(&mut self) -> io::Result<()> {
        let bytes: Vec<u8> = self.conn.poll_transmit().iter().flat_map(|run| run.iter().copied()).collect();
        self.stream.write_all(&bytes)?;
        self.conn.handle_transmitted(bytes.len(), &mut BufferPool::new(0));
        Ok(())
    }

    pub fn say(&mut self, id: u64, message: RedirMessage) {
        self.try_say(id, message).unwrap();
    }

    /// Like [`Self::say`], where the connection may have ended.
    pub fn try_say(&mut self, id: u64, message: RedirMessage) -> io::Result<()> {
        self.conn.send(RedirPacket { id, message }, &mut BufferPool::new(0));
        self.flush()
    }

    /// The next packet, or `None` where the connection has ended.
    pub fn hear(&mut self) -> Option<RedirPacket> {
        loop {
            if let Some(packet) = self.conn.poll_packet().expect("farbus keeps to the protocol") {
                return Some(packet);
            }
            match self.stream.read(self.conn.receive_space()) {
                Ok(0) => return None,
                Ok(count) => self.conn.handle_received(count),
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return None,
                Err(error) => panic!("{error}"),
            }
        }
    }

    /// Reads on until a packet of this type; drops the packets before it.
    pub fn hear_kind(&mut self, is_meant: impl Fn(&RedirMessage) -> bool) -> RedirPacket {
        self.try_hear_kind(is_meant).expect("the connection goes on")
    }

    fn try_hear_kind(&mut self, is_meant: impl Fn(&RedirMessage) -> bool) -> io::Result<RedirPacket> {
        loop {
            let packet = self.hear().ok_or(io::ErrorKind::ConnectionAborted)?;
            if is_meant(&packet.message) {
                return Ok(packet);
            }
        }
    }

    /// Reads the device's announcement, and configures the device.
    pub fn configure(&mut self) {
        self.try_configure().unwrap();
    }

    /// Like [`Self::configure`], where the connection may end.
    pub fn try_configure(&mut self) -> io::Result<()> {
        self.try_hear_kind(|message| matches!(message, RedirMessage::Hello { .. }))?;
        self.try_hear_kind(|message| matches!(message, RedirMessage::DeviceConnect(_)))?;
        self.try_say(1, RedirMessage::Reset)?;
        self.try_say(2, RedirMessage::SetConfiguration(1))?;
        let status = self.try_hear_kind(|message| matches!(message, RedirMessage::ConfigurationStatus { .. }))?;
        let done = RedirMessage::ConfigurationStatus { outcome: RedirStatus::Success, configuration: 1 };
        assert_eq!(status, RedirPacket { id: 2, message: done });
        Ok(())
    }

    pub fn control_in(&mut self, id: u64, setup: SetupPacket) -> Vec<u8> {
        let (outcome, payload) = (RedirStatus::Success, Payload::Empty);
        self.say(id, RedirMessage::Control(ControlPacket { number: 0, setup, outcome, payload }));
        match self.hear_kind(|message| matches!(message, RedirMessage::Control(_))).message {
            RedirMessage::Control(ControlPacket { outcome: RedirStatus::Success, payload, .. }) => payload.into_vec(),
            other => panic!("{other:?}"),
        }
    }

    pub fn bulk(&mut self, id: u64, endpoint: u8, length: u32, payload: Payload) -> DataPacket {
        let endpoint = EpAddr::from_byte(endpoint);
        let outcome = RedirStatus::Success;
        self.say(id, RedirMessage::Bulk(DataPacket { endpoint, outcome, length, stream: 0, payload }));
        match self.hear_kind(|message| matches!(message, RedirMessage::Bulk(_))) {
            RedirPacket { id: answered, message: RedirMessage::Bulk(packet) } if answered == id => packet,
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_disk_that_a_virtual_machine_has_is_detached_with_force_alone() {
    let harness = Harness::new();
    let share = harness.share(&[&format!("disk:{}", harness.image("image", 1 << 20).display())]);
    let (mut attach, socket) = lend(&harness, &share, "disk");
    let mut guest = Guest::connect(&socket);
    guest.configure();
    let refused = harness.run(&["detach"]);
    assert_eq!(refused.code, Some(3), "{refused:?}");
    for part in ["in use: a virtual machine has this disk", "--force"] {
        assert!(refused.stderr.contains(part), "{part}: {refused:?}");
    }
    assert_eq!(guest.control_in(3, SetupPacket::get_descriptor(1, 0, 0, 18)).len(), 18, "it goes on");
    drop(guest);
    let status = || harness.json(&["status", "--json"]);
    let open = |status: &serde_json::Value| {
        let attached = status.as_array().unwrap().iter().find(|process| process["role"] == "attach").unwrap();
        attached["devices"][0]["open"].clone()
    };
    wait_until(PATIENCE, "the machine has left", || open(&status()) == 0);
    let detached = harness.run(&["detach"]);
    assert_eq!(detached.code, Some(0), "{detached:?}");
    assert_eq!(attach.wait_for_end(PATIENCE), Some(0), "{}", attach.log());
}

/// Starts `farbus attach … --via redir` at a socket in the harness's folder.
fn lend(harness: &Harness, share: &Share, device: &str) -> (Running, std::path::PathBuf) {
    let socket = harness.path("guest.sock");
    let target = share.target(device);
    let arguments = ["attach", &target, "--via", "redir", "--socket", socket.to_str().unwrap()];
    let process = Running::start(harness.command(&arguments));
    let line = process.wait_for_line("attached at ");
    assert!(line.contains(socket.to_str().unwrap()), "{line}");
    let next = process.wait_for_line("-device usb-redir");
    assert!(next.contains(&format!("-chardev socket,id=farbus-{device},path={}", socket.display())), "{next}");
    (process, socket)
}

#[test]
fn a_guest_uses_a_device_goes_and_another_finds_it_reset() {
    let harness = Harness::new();
    let share = harness.share(&["zero,verify"]);
    let (mut attach, socket) = lend(&harness, &share, "zero");
    for round in 0..3 {
        let mut guest = Guest::connect(&socket);
        guest.configure();
        let descriptor = guest.control_in(3, SetupPacket::get_descriptor(1, 0, 0, 18));
        assert_eq!(descriptor[8..12], [0x25, 0x05, 0xa0, 0xa4]);
        let read = guest.bulk(4, 0x81, 100_000, Payload::Empty);
        assert_eq!((read.outcome, read.payload.into_vec()), (RedirStatus::Success, vec![0; 100_000]));
        let written = guest.bulk(5, 0x01, 70_000, vec![0; 70_000].into());
        assert_eq!((written.outcome, written.length), (RedirStatus::Success, 70_000), "round {round}");
        // The guest disconnects during a transfer.
        guest.say(6, RedirMessage::StartInterruptReceiving(EpAddr::from_byte(0x82)));
    }
    let status = harness.json(&["status", "--json"]);
    let attached = status.as_array().unwrap().iter().find(|process| process["role"] == "attach").expect("it runs");
    assert_eq!(attached["devices"][0]["at"], socket.to_str().unwrap());
    assert!(attached["devices"][0]["meters"]["bytes_in"].as_u64().unwrap() >= 300_000, "{attached}");
    let shared = status.as_array().unwrap().iter().find(|process| process["role"] == "share").expect("it runs");
    let of_zero = serde_json::json!(["vendor specific"]);
    assert_eq!(shared["devices"][0]["interfaces"], of_zero);
    assert_eq!(attached["devices"][0]["interfaces"], of_zero, "what its host says of it");
    assert_without_rights(&attached["pid"]);
    let mut guest = Guest::connect(&socket);
    guest.configure();
    let detached = harness.run(&["detach"]);
    assert_eq!(detached.code, Some(0), "{detached:?}");
    assert_eq!(attach.wait_for_end(PATIENCE), Some(0));
    while guest.hear().is_some() {}
    wait_until(PATIENCE, "the other half removes the socket", || !socket.exists());
}

#[test]
fn second_guest_waits_until_the_first_disconnects() {
    let harness = Harness::new();
    let share = harness.share(&["zero"]);
    let (_attach, socket) = lend(&harness, &share, "zero");
    let mut first = Guest::connect(&socket);
    first.configure();
    let mut second = Guest::connect(&socket);
    assert_eq!(first.bulk(3, 0x81, 512, Payload::Empty).length, 512);
    second.stream.set_nonblocking(true).unwrap();
    assert!(second.stream.read(&mut [0]).is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock));
    second.stream.set_nonblocking(false).unwrap();
    drop(first);
    second.configure();
}

#[test]
fn held_guest_continues_after_it_moved_or_at_its_source() {
    let harness = Harness::new();
    let share = harness.share(&["zero", "keyboard"]);
    let (_attach, socket) = lend(&harness, &share, "zero");
    let refused = harness.run(&["hold", "zero"]);
    assert!(refused.code == Some(3) && refused.stderr.contains("no virtual machine has it"), "{refused:?}");
    let mut source = Guest::connect(&socket);
    source.configure();
    // This request waits for ever: the endpoint has data only when a transfer asks for it. It is answered where the
    // guest goes.
    source.say(7, RedirMessage::StartInterruptReceiving(EpAddr::from_byte(0x82)));
    source.hear_kind(|message| matches!(message, RedirMessage::Interrupt(_)));
    let is_held = Arc::<AtomicBool>::default();
    let for_reader = Arc::clone(&is_held);
    let reader = std::thread::spawn(move || {
        // QEMU reads until it is stopped, and then what has already arrived.
        source.stream.set_read_timeout(Some(std::time::Duration::from_millis(200))).unwrap();
        let mut bytes = [0; 4096];
        loop {
            let was_held = for_reader.load(Ordering::Acquire);
            if !source.stream.read(&mut bytes).is_ok_and(|count| count > 0) && was_held {
                return source;
            }
        }
    });
    assert_eq!(harness.run(&["hold", "zero"]).code, Some(0));
    is_held.store(true, Ordering::Release);
    let twice = harness.run(&["hold", "zero"]);
    assert!(twice.code == Some(3) && twice.stderr.contains("held already"), "{twice:?}");
    let mut source = reader.join().unwrap();
    // The guest's last packet before it was stopped.
    let outcome = RedirStatus::Success;
    let endpoint = EpAddr::from_byte(0x81);
    let payload = Payload::Empty;
    source.say(8, RedirMessage::Bulk(DataPacket { endpoint, outcome, length: 512, stream: 0, payload }));
    let stream = UnixStream::connect(&socket).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut there = Guest { stream, conn: RedirConn::continued(RedirRole::Guest, CAPS, CAPS, &SessionLimits::DEFAULT) };
    drop(source);
    let answer = there.hear_kind(|message| matches!(message, RedirMessage::Bulk(_)));
    assert_eq!(answer.id, 8, "it is answered where it goes");
    assert_eq!(there.bulk(9, 0x81, 1024, Payload::Empty).length, 1024);
    assert_eq!(harness.run(&["resume", "zero"]).code, Some(3), "nobody is held");
    there.say(0, RedirMessage::StopInterruptReceiving(EpAddr::from_byte(0x82)));
    there.hear_kind(|message| matches!(message, RedirMessage::InterruptReceivingStatus { .. }));
    wait_until(PATIENCE, "it is held", || harness.run(&["hold", "zero"]).code == Some(0));
    there.say(10, RedirMessage::GetConfiguration);
    assert_eq!(harness.run(&["resume", "zero"]).code, Some(0));
    assert_eq!(there.hear_kind(|message| matches!(message, RedirMessage::ConfigurationStatus { .. })).id, 10);
    assert_eq!(harness.run(&["hold", "nothing"]).code, Some(4));
    // A guest that was to migrate and ended instead: the next guest to connect is a new one.
    assert_eq!(harness.run(&["hold", "zero"]).code, Some(0));
    drop(there);
    assert_eq!(harness.run(&["resume", "zero"]).code, Some(0));
    Guest::connect(&socket).configure();
}

#[test]
fn exporter_that_dies_takes_the_device_from_a_held_guest_too() {
    let harness = Harness::new();
    let mut share = harness.share(&["zero"]);
    let (mut attach, socket) = lend(&harness, &share, "zero");
    let mut guest = Guest::connect(&socket);
    guest.configure();
    assert_eq!(harness.run(&["hold", "zero"]).code, Some(0));
    guest.say(3, RedirMessage::GetConfiguration);
    share.process.kill();
    guest.hear_kind(|message| *message == RedirMessage::DeviceDisconnect);
    guest.say(0, RedirMessage::DeviceDisconnectAck);
    assert_eq!(attach.wait_for_end(PATIENCE), Some(5), "{}", attach.log());
}

#[test]
fn guest_receives_the_keys_that_the_exporters_owner_types() {
    let harness = Harness::new();
    let share = harness.share(&["keyboard"]);
    let (_attach, socket) = lend(&harness, &share, "keyboard");
    let mut guest = Guest::connect(&socket);
    guest.configure();
    guest.say(0, RedirMessage::StartInterruptReceiving(EpAddr::from_byte(0x81)));
    guest.hear_kind(|message| matches!(message, RedirMessage::InterruptReceivingStatus { .. }));
    assert_eq!(harness.run(&["type", "keyboard", "hi"]).code, Some(0));
    let mut keys = Vec::new();
    while keys.last() != Some(&0) || keys.len() < 4 {
        if let RedirMessage::Interrupt(data) =
            guest.hear_kind(|message| matches!(message, RedirMessage::Interrupt(_))).message
        {
            keys.push(data.payload.into_vec()[2]);
        }
        keys.dedup();
    }
    assert_eq!(keys, [0x0b, 0, 0x0c, 0]);
}

#[test]
fn an_exporter_that_dies_takes_the_device_from_the_guest() {
    let harness = Harness::new();
    let mut share = harness.share(&["zero"]);
    let (mut attach, socket) = lend(&harness, &share, "zero");
    let mut guest = Guest::connect(&socket);
    guest.configure();
    share.process.kill();
    guest.hear_kind(|message| *message == RedirMessage::DeviceDisconnect);
    guest.say(0, RedirMessage::DeviceDisconnectAck);
    assert_eq!(attach.wait_for_end(PATIENCE), Some(5), "{}", attach.log());
    assert_eq!(guest.hear(), None);
}

#[test]
fn guest_that_breaks_the_protocol_loses_only_its_own_connection() {
    let harness = Harness::new();
    let share = harness.share(&["zero"]);
    let (attach, socket) = lend(&harness, &share, "zero");
    wait_until(PATIENCE, "somebody listens", || UnixStream::connect(&socket).is_ok());
    let mut hostile = UnixStream::connect(&socket).unwrap();
    hostile.write_all(&[0xff; 64]).unwrap();
    let mut rest = Vec::new();
    let _ = hostile.read_to_end(&mut rest);
    Guest::connect(&socket).configure();
    attach.assert_logged("hung up on");
    attach.assert_logged("a hello comes first");
}

#[test]
fn redir_at_a_tcp_address_works_and_warns_that_it_has_no_encryption() {
    let harness = Harness::new();
    let share = harness.share(&["zero"]);
    let arguments = ["attach", &share.target("zero"), "--via", "redir", "--listen", "0.0.0.0:0"];
    let mut attach = Running::start(harness.command(&arguments));
    let line = attach.wait_for_line("attached at ");
    let port = line.split_whitespace().find_map(|word| word.strip_prefix("0.0.0.0:")).unwrap();
    let stream = TcpStream::connect(format!("127.0.0.1:{port}")).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    Guest::over(stream).configure();
    attach.assert_logged("no password and no encryption");
    attach.signal(Signal::INT);
    assert_eq!(attach.wait_for_end(PATIENCE), Some(0));
}

#[test]
fn option_of_another_front_end_is_refused_with_that_front_end() {
    let harness = Harness::new();
    for (arguments, part) in [
        (["--via", "fuse", "--socket", "x"], "--via nbd, redir, rfc2217 and tcp"),
        (["--via", "redir", "--at", "x"], "--via fuse"),
        (["--via", "redir", "--listen", "lab3"], "no address to listen at"),
    ] {
        let outcome = harness.run(&[&["attach", "127.0.0.1:1/zero"], &arguments[..]].concat());
        assert!(outcome.code == Some(1) && outcome.stderr.contains(part), "{outcome:?}");
    }
    let share = harness.share(&["zero"]);
    let (_attach, socket) = lend(&harness, &share, "zero");
    let arguments = ["attach", &share.target("zero"), "--via", "redir", "--socket", socket.to_str().unwrap()];
    let taken = harness.run(&arguments);
    assert!(taken.code == Some(1) && taken.stderr.contains("another program listens there"), "{taken:?}");
    Guest::connect(&socket).configure();
}

#[test]
fn daemon_offers_a_device_to_guests_again_when_its_exporter_returns() {
    let harness = Harness::new();
    let mut share = harness.share(&["zero"]);
    let socket = harness.path("guest.sock");
    let config = harness.path("farbus.toml");
    let (target, socket_text) = (share.target("zero"), socket.display());
    let text =
        format!("plain.listen = []\nattach = [{{target = '{target}', via = 'redir', socket = '{socket_text}'}}]\n");
    fs::write(&config, text).unwrap();
    let _daemon = Running::start(harness.command(&["daemon", "--config", config.to_str().unwrap()]));
    let mut guest = Guest::connect(&socket);
    guest.configure();
    assert_eq!(harness.run(&["hold", &target]).code, Some(0), "the daemon's guests may move, too");
    assert_eq!(harness.run(&["resume", "zero"]).code, Some(0));
    share.process.kill();
    guest.hear_kind(|message| *message == RedirMessage::DeviceDisconnect);
    drop(guest);
    let again = harness.command(&["share", "zero", "--listen", &share.address]);
    let _share = Share::follow(Running::start(again));
    let attached = || harness.json(&["status", "--json"]).to_string().contains(r#""state":"attached""#);
    wait_until(PATIENCE, "it is attached again", attached);
    Guest::connect(&socket).configure();
}
