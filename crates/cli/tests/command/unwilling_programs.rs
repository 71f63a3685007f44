//! Local programs that keep to the protocol and never read: NBD clients and usbredir guests that send requests and take
//! no answers, or announce much and send little. The memory they make a process hold is bounded, other clients are
//! served, and they are finally cut off.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use farbus::model::limits::{NBD_CLIENTS_BYTES_MAX, NBD_CONNECTIONS_MAX};
use farbus::model::{BufferPool, EpAddr, Payload, SessionLimits, SetupPacket};
use farbus_session::redir::usbredir::message::{ControlPacket, DataPacket};
use farbus_session::redir::usbredir::{RedirMessage, RedirPacket, RedirStatus};

use super::harness::{Harness, PATIENCE, Running};
use super::redir::Guest;

/// A socket that takes no bytes for this long counts as full.
const FULL_AFTER: Duration = Duration::from_secs(1);
/// How many requests each sends at most, and how many bytes.
const ASKED_MAX: u64 = 400_000;
const SAID_BYTES_MAX: usize = 64 << 20;

/// Writes what `says` returns until it returns nothing or the limit is reached. Returns true if before that the socket
/// took nothing for `full_after`, or the other end closed it.
fn flood(stream: &UnixStream, full_after: Duration, mut says: impl FnMut(u64) -> Vec<u8>) -> bool {
    stream.set_write_timeout(Some(full_after)).unwrap();
    let mut said_bytes = 0;
    for turn in 0..ASKED_MAX {
        let bytes = says(turn);
        said_bytes += bytes.len();
        if bytes.is_empty() || said_bytes > SAID_BYTES_MAX {
            return false;
        }
        if let Err(error) = (&mut &*stream).write_all(&bytes) {
            return !matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut);
        }
    }
    false
}

fn connect(socket: &Path) -> UnixStream {
    let mut stream = UnixStream::connect(socket).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(b"\0\0\0\x03IHAVEOPT\0\0\0\x01\0\0\0\0").unwrap();
    stream.read_exact(&mut [0; 28]).unwrap();
    stream
}

/// An NBD request. Command 0 reads, 1 writes.
fn request(command: u16, cookie: u64, offset: u64, length: u32) -> Vec<u8> {
    let mut bytes = 0x2560_9513u32.to_be_bytes().to_vec();
    bytes.extend([0, 0]);
    bytes.extend(command.to_be_bytes());
    bytes.extend(cookie.to_be_bytes());
    bytes.extend(offset.to_be_bytes());
    bytes.extend(length.to_be_bytes());
    bytes
}

/// Whether a read of `length` bytes is answered.
fn is_served(client: &mut UnixStream, cookie: u64, length: u32) -> bool {
    let mut answer = vec![0; 16 + length as usize];
    client.write_all(&request(0, cookie, 0, length)).and_then(|()| client.read_exact(&mut answer)).is_ok()
}

type Says = Box<dyn Fn(u64) -> Vec<u8> + Sync>;

/// Every way in which a client may make a server hold memory, starting with its first request.
fn of_nbd_client() -> Vec<(&'static str, Says)> {
    vec![
        ("reads of 32 MiB", Box::new(|turn| request(0, turn, 0, 32 << 20))),
        ("reads of 1 MiB", Box::new(|turn| request(0, turn, 0, 1 << 20))),
        ("reads of a sector", Box::new(|turn| request(0, turn, turn % 1024 * 512, 512))),
        ("wrong reads", Box::new(|turn| request(0, turn, 1 << 40, 512))),
        ("writes of 1 MiB", Box::new(|turn| [request(1, turn, 0, 1 << 20), vec![1; 1 << 20]].concat())),
        ("a write of 32 MiB, in part", {
            Box::new(|turn| match turn {
                0 => request(1, turn, 0, 32 << 20),
                1 => vec![1; 1900 << 10],
                _ => Vec::new(),
            })
        }),
        ("a write of 4 GiB", {
            Box::new(|turn| if turn == 0 { request(1, turn, 0, u32::MAX - 511) } else { vec![1; 1 << 20] })
        }),
    ]
}

#[test]
fn nbd_clients_that_read_nothing_stay_within_the_shared_budget() {
    let harness = Harness::new();
    let socket = harness.path("local.sock");
    let what = format!("block:{}", harness.image("image", 64 << 20).display());
    let nbd = Running::start(harness.command(&["nbd", &what, "--socket", socket.to_str().unwrap()]));
    nbd.wait_for_line("serving as ");
    assert!(is_served(&mut connect(&socket), 1, 1 << 20));
    let base = nbd.peak_kib();
    // The budget of all clients, what the server keeps for its next answers, and what the allocator does not return.
    let limit_kib = (NBD_CLIENTS_BYTES_MAX >> 10) as u64 + (32 << 10);
    for (name, says) in of_nbd_client() {
        let unwilling: Vec<UnixStream> = (0..NBD_CONNECTIONS_MAX).map(|_| connect(&socket)).collect();
        thread::scope(|s| unwilling.iter().for_each(|stream| drop(s.spawn(|| flood(stream, FULL_AFTER, &says)))));
        let grown = nbd.peak_grown_kib(base);
        println!("16 clients, {name}: {grown} KiB");
        assert!(grown < limit_kib, "{name}: grown by {grown} KiB");
        if name.contains("32 MiB") {
            // All places are taken by clients that read nothing or send nothing: one of them has to leave.
            assert!(is_served(&mut connect(&socket), 1, 2 << 20), "{name}");
        }
    }
}

#[test]
fn an_nbd_client_is_served_beside_those_that_read_nothing() {
    let harness = Harness::new();
    let socket = harness.path("local.sock");
    let what = format!("block:{}", harness.image("image", 64 << 20).display());
    let nbd = Running::start(harness.command(&["nbd", &what, "--socket", socket.to_str().unwrap()]));
    nbd.wait_for_line("serving as ");
    let mut willing = connect(&socket);
    let unwilling: Vec<UnixStream> = (1..NBD_CONNECTIONS_MAX).map(|_| connect(&socket)).collect();
    for stream in &unwilling {
        flood(stream, FULL_AFTER, |turn| request(0, turn, 0, 16 << 20));
    }
    let began = Instant::now();
    assert!((0..200).all(|cookie| is_served(&mut willing, cookie, 128 << 10)));
    let took = began.elapsed();
    assert!(took < PATIENCE, "{took:?}");
    // More than the budget has left: the stuck clients that hold it are cut off.
    assert!(is_served(&mut willing, 1, 32 << 20));
    println!("25 MiB in {took:?}, 32 MiB at once after {:?}", began.elapsed());
}

/// Makes a guest's request, from the number of its turn.
type MakeRequest = Box<dyn Fn(u64) -> RedirMessage>;

/// Every request that a guest may repeat, and whether it is finally cut off. Otherwise its further requests wait in its
/// socket.
fn of_guest() -> Vec<(&'static str, bool, MakeRequest)> {
    let bulk = |endpoint: u8, length: u32, payload: Payload| {
        let (endpoint, outcome) = (EpAddr::from_byte(endpoint), RedirStatus::Success);
        RedirMessage::Bulk(DataPacket { endpoint, outcome, length, stream: 0, payload })
    };
    let control = || {
        let (setup, outcome, payload) =
            (SetupPacket::get_descriptor(1, 0, 0, 18), RedirStatus::Success, Payload::Empty);
        RedirMessage::Control(ControlPacket { number: 0, setup, outcome, payload })
    };
    vec![
        ("reads of 1 MiB", false, Box::new(move |_| bulk(0x81, 1 << 20, Payload::Empty))),
        ("reads of 8 bytes", false, Box::new(move |_| bulk(0x81, 8, Payload::Empty))),
        ("writes of 60 KiB", false, Box::new(move |_| bulk(0x01, 60 << 10, vec![0; 60 << 10].into()))),
        ("control requests", false, Box::new(move |_| control())),
        ("resets", false, Box::new(|_| RedirMessage::Reset)),
        ("configurations", false, Box::new(|_| RedirMessage::SetConfiguration(1))),
        ("alternate settings", true, Box::new(|_| RedirMessage::GetAltSetting { interface: 0 })),
        ("interrupt receiving", true, Box::new(|_| RedirMessage::StartInterruptReceiving(EpAddr::from_byte(0x82)))),
        ("withdrawals of what was not asked", false, Box::new(|_| RedirMessage::CancelDataPacket)),
    ]
}

#[test]
fn usbredir_guest_that_reads_nothing_is_bounded_and_cut_off_and_the_next_is_served() {
    let harness = Harness::new();
    let share = harness.share(&["zero"]);
    let socket = harness.path("guest.sock");
    let target = share.target("zero");
    let attach =
        Running::start(harness.command(&["attach", &target, "--via", "redir", "--socket", socket.to_str().unwrap()]));
    attach.wait_for_line("attached at ");
    Guest::connect(&socket).configure();
    let base = attach.peak_kib();
    let limit_kib = (SessionLimits::RELAYED.bytes_max() >> 10) as u64;
    for (name, is_cut_off, message) in of_guest() {
        let mut guest = Guest::connect(&socket);
        guest.configure();
        let full_after = if is_cut_off { PATIENCE } else { FULL_AFTER };
        let was_cut_off = flood(&guest.stream, full_after, |turn| {
            guest.conn.send(RedirPacket { id: turn + 10, message: message(turn) }, &mut BufferPool::new(0));
            let bytes: Vec<u8> = guest.conn.poll_transmit().iter().flat_map(|run| run.iter().copied()).collect();
            guest.conn.handle_transmitted(bytes.len(), &mut BufferPool::new(0));
            bytes
        });
        let grown = attach.peak_grown_kib(base);
        println!("a guest, {name}: {grown} KiB, cut off: {was_cut_off}");
        assert!(grown < limit_kib, "{name}: grown by {grown} KiB");
        assert!(was_cut_off || !is_cut_off, "{name}");
        drop(guest);
        let mut next = Guest::connect(&socket);
        next.configure();
        assert_eq!(next.bulk(4, 0x81, 512, Payload::Empty).outcome, RedirStatus::Success, "{name}");
    }
    attach.assert_logged("hung up on");
}
