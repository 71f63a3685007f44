//! Peers at real sockets that keep to the wire format and never read: they send requests and take no answers. All such
//! peers together, one after the other and some at once, may make the process hold no more than one peer is allowed.
//!
//! Their messages come from the list of all kinds of frames (`crates/session/tests/unwilling/kinds.rs`).

use std::convert::Infallible;
use std::io::{self, ErrorKind, IoSlice, Read, Write};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use farbus::trust::TrustStore;
use farbus_io_net::link::Link;
use farbus_io_net::trust::{AcceptedKeys, HostFolder, LinkProtocol, LinkTraffic, QuicPool};
use farbus_session::native::hello::{ExporterWelcome, HelloOptions, ImporterHello, LanePosition, SessionId};

use super::harness::{Harness, PATIENCE, Running, wait_until};
use super::hostile::Witness;
use super::kinds::{Says, all_kinds, frame, of_importer, open};
use super::trust::{Host, hosts, pair};

/// The memory that a peer without permissions may make a process hold.
const STRANGER_KIB: u64 = 64 << 10;
/// How long each peer sends requests.
const ASKS_FOR: Duration = Duration::from_millis(300);
/// A socket that takes no bytes for this long counts as full.
const FULL_AFTER: Duration = Duration::from_millis(60);

/// Sends a peer's messages to a process until its socket takes no more.
fn flood(mut send: impl FnMut(&[u8]) -> std::io::Result<Option<usize>>, mut says: impl FnMut(u32) -> Vec<u8>) {
    let (began, mut moved, mut turn) = (Instant::now(), Instant::now(), 0);
    while began.elapsed() < ASKS_FOR {
        // Several messages at once, so that the receiver is the busy end.
        let bytes: Vec<u8> = (turn..turn + 16).flat_map(&mut says).collect();
        turn += 16;
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            match send(rest) {
                Ok(Some(count)) => {
                    rest = &rest[count..];
                    moved = Instant::now();
                }
                Ok(None) if moved.elapsed() < FULL_AFTER && began.elapsed() < ASKS_FOR => {
                    // waits: between two looks for an event
                    std::thread::sleep(Duration::from_millis(1));
                }
                // The socket is full, or the peer was cut off.
                Ok(None) | Err(_) => return,
            }
        }
    }
}

fn flood_stream(stream: &TcpStream, says: impl FnMut(u32) -> Vec<u8>) {
    stream.set_nonblocking(true).unwrap();
    let send = |bytes: &[u8]| match (&mut &*stream).write(bytes) {
        Ok(count) => Ok(Some(count)),
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(None),
        Err(error) => Err(error),
    };
    flood(send, says);
}

fn flood_link(link: &Link, says: &mut Says) {
    flood(|bytes| link.try_send(&[IoSlice::new(bytes)]), says);
}

/// Begins a session on a link, or adds a lane to one.
fn begin(mut exchange: impl FnMut(&[u8], &mut [u8]), position: LanePosition) -> ExporterWelcome {
    let exchange = |bytes: &[u8], heard: &mut [u8]| {
        exchange(bytes, heard);
        Ok::<_, Infallible>(())
    };
    begin_if_let(exchange, position).expect("an exchange that does not fail")
}

/// Like [`begin`], where the connection may be closed unread.
fn begin_if_let<E>(
    mut exchange: impl FnMut(&[u8], &mut [u8]) -> Result<(), E>,
    position: LanePosition,
) -> Result<ExporterWelcome, E> {
    let options = HelloOptions { grace_ms: Some(120_000), lanes: Some(8), ..HelloOptions::default() };
    let mut welcome = vec![0; 40];
    let hello = ImporterHello::new(position, options).encode();
    exchange(&hello, &mut welcome)?;
    loop {
        if let Some((welcome, _)) = ExporterWelcome::decode(&welcome).unwrap() {
            return Ok(welcome);
        }
        let mut more = [0];
        exchange(&[], &mut more)?;
        welcome.extend(more);
    }
}

fn new_session(incarnation: u64) -> LanePosition {
    LanePosition { session: SessionId::NONE, link: 1, incarnation, ..LanePosition::default() }
}

fn over_tcp(address: &str, position: LanePosition) -> (TcpStream, ExporterWelcome) {
    let stream = TcpStream::connect(address).unwrap();
    let welcome = begin_over_tcp(&stream, position).unwrap();
    (stream, welcome)
}

fn begin_over_tcp(mut stream: &TcpStream, position: LanePosition) -> io::Result<ExporterWelcome> {
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let exchange = |bytes: &[u8], heard: &mut [u8]| {
        stream.write_all(bytes)?;
        stream.read_exact(heard)
    };
    begin_if_let(exchange, position)
}

fn over_link(link: &Link, position: LanePosition) -> ExporterWelcome {
    link.set_receive_timeout(Some(PATIENCE)).unwrap();
    begin(
        |bytes, heard| {
            if !bytes.is_empty() {
                assert_eq!(link.try_send(&[IoSlice::new(bytes)]).unwrap(), Some(bytes.len()));
                link.try_flush().unwrap();
            }
            let mut have = 0;
            while have < heard.len() {
                have += link.receive(&mut heard[have..]).unwrap();
            }
        },
        position,
    )
}

fn assert_below(process: &Running, base_kib: u64, limit_kib: u64, what: &str) {
    let grown = process.peak_grown_kib(base_kib);
    println!("{what}: {grown} KiB");
    assert!(grown < limit_kib, "{what}: grown by {grown} KiB\n{}", process.log());
}

#[test]
fn peer_of_a_plain_port_that_never_reads_has_bounded_memory() {
    let harness = Harness::new();
    let share = harness.share(&["zero,fill=mod63,verify", "zero"]);
    let witness = Witness::on(&share);
    witness.assert_unharmed();
    let base = share.process.peak_kib();
    let mut kept = Vec::new();
    for kind in all_kinds() {
        for (name, says) in of_importer(kind) {
            let (stream, _) = over_tcp(&share.address, new_session(7));
            flood_stream(&stream, says);
            assert_below(&share.process, base, STRANGER_KIB, &format!("{kind:?} {name}"));
            // Each peer stays for a while, so that their memory adds up.
            kept.push(stream);
            if kept.len() > 5 {
                kept.remove(0);
            }
        }
    }
    drop(kept);
    witness.end();
}

#[test]
fn peer_with_eight_lanes_that_never_reads_has_bounded_memory() {
    let harness = Harness::new();
    let share = harness.share(&["zero"]);
    let base = share.process.peak_kib();
    for kind in all_kinds() {
        for (name, says) in of_importer(kind) {
            let (first, welcome) = over_tcp(&share.address, new_session(7));
            let session = welcome.position.session;
            let further = |lane| LanePosition { session, lane, link: 1, incarnation: 7, ..LanePosition::default() };
            let further: Vec<_> = (1..8).map(|lane| over_tcp(&share.address, further(lane))).collect();
            assert!(further.iter().all(|(_, welcome)| welcome.position.session == session));
            flood_stream(&first, says);
            let pings =
                |turn: u32| frame(farbus_session::native::FrameKind::Ping, 0, 0, &u64::from(turn).to_le_bytes());
            flood_stream(&further[0].0, pings);
            assert_below(&share.process, base, STRANGER_KIB, &format!("{kind:?} {name}, eight lanes"));
        }
    }
}

fn secure_share<'h>(lab3: &Host<'h>) -> (Running, SocketAddr) {
    let share = lab3.start(&["share", "zero", "--listen", "none", "--secure", "127.0.0.1:0"]);
    let line = share.wait_for_line("for paired hosts");
    let address = line.split_whitespace().nth(2).unwrap().parse().unwrap();
    (share, address)
}

#[test]
fn paired_host_without_permission_that_never_reads_has_bounded_memory() {
    let harness = Harness::new();
    let [lab3, desk] = hosts(&harness);
    pair(&lab3, &desk);
    let (share, address) = secure_share(&lab3);
    let trust = TrustStore::at(HostFolder::at(harness.path("desk"))).unwrap();
    let terms = trust.terms(AcceptedKeys::Anybody, &[LinkProtocol::Session]);
    let base = share.peak_kib();
    for is_quic in [false, true] {
        let mut kept = Vec::new();
        for kind in all_kinds() {
            for (name, mut says) in of_importer(kind) {
                let secured = match is_quic {
                    true => QuicPool::default().connect(
                        &terms,
                        LinkTraffic::Prompt,
                        UdpSocket::bind("127.0.0.1:0").unwrap(),
                        address,
                    ),
                    false => terms.connect(Link::connect(&address.to_string(), PATIENCE).unwrap()),
                };
                let link = secured.unwrap().link;
                over_link(&link, new_session(7));
                flood_link(&link, &mut says);
                assert_below(&share, base, STRANGER_KIB, &format!("{kind:?} {name}, QUIC {is_quic}"));
                kept.push(link);
                if kept.len() > 3 {
                    kept.remove(0);
                }
            }
        }
    }
}

#[test]
fn disk_user_that_never_reads_is_bounded_by_its_credit() {
    let harness = Harness::new();
    let image = format!("disk:{}", harness.image("far.img", 64 << 20).display());
    let share = harness.share(&[&image, "zero"]);
    let base = share.process.peak_kib();
    for kind in all_kinds() {
        for (name, mut says) in of_importer(kind) {
            let (stream, _) = over_tcp(&share.address, new_session(7));
            let mut says = |turn: u32| match turn {
                0 => {
                    let opened = open("disk", farbus_session::native::control::AttachmentClass::BLOCK);
                    frame(farbus_session::native::FrameKind::Open, super::kinds::DISK, 0, &opened.encode())
                }
                turn => says(turn - 1),
            };
            flood_stream(&stream, &mut says);
            // 32 MiB of data in flight, as much again unacknowledged, as a link may have, and some more.
            assert_below(&share.process, base, 64 << 10, &format!("{kind:?} {name}, a disk"));
        }
    }
    let listed = harness.run(&["list", &share.address]);
    assert_eq!(listed.code, Some(0), "{listed:?}");
}

/// Every message that a USB/IP client may send.
fn of_usbip_client() -> Vec<(&'static str, Says)> {
    use farbus_session::UsbipRequest;
    let submit = |direction: u32, endpoint: u32, length: u32| {
        move |turn: u32| {
            let words = [1, turn + 2, 0x0001_0002, direction, endpoint, 0, length, 0, 0xffff_ffff, 0, 0, 0];
            let out = if direction == 0 { length as usize } else { 0 };
            words
                .iter()
                .flat_map(|word: &u32| word.to_be_bytes())
                .chain(std::iter::repeat_n(0, out))
                .collect::<Vec<u8>>()
        }
    };
    let unlink = |turn: u32| {
        let words = [2, turn + 2, 0x0001_0002, 0, 0, turn + 100_000, 0, 0, 0, 0, 0, 0];
        words.iter().flat_map(|word: &u32| word.to_be_bytes()).collect::<Vec<u8>>()
    };
    let mut all: Vec<(&'static str, Says)> = Vec::new();
    // A new kind of request does not compile until it has a case here.
    let listed = |request: &UsbipRequest| match request {
        UsbipRequest::DeviceList | UsbipRequest::Import(_) | UsbipRequest::Submit(_) | UsbipRequest::Unlink(_) => (),
    };
    listed(&UsbipRequest::DeviceList);
    all.push(("lists", Box::new(|_| vec![0x01, 0x11, 0x80, 0x05, 0, 0, 0, 0])));
    all.push(("reads", Box::new(submit(1, 1, 1 << 20))));
    all.push(("small reads", Box::new(submit(1, 1, 8))));
    all.push(("writes", Box::new(submit(0, 1, 60_000))));
    all.push(("unlinks of what is yet to come", Box::new(unlink)));
    all
}

#[test]
fn usbip_client_that_never_reads_has_bounded_memory() {
    let harness = Harness::new();
    let share = harness.share(&["zero"]);
    let base = share.process.peak_kib();
    for (name, says) in of_usbip_client() {
        let stream = TcpStream::connect(&share.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        if name != "lists" {
            let import = [&[0x01, 0x11, 0x80, 0x03, 0, 0, 0, 0][..], b"1-1", &[0; 29]].concat();
            let mut answer = [0; 8];
            let mut imported = stream.try_clone().unwrap();
            wait_until(PATIENCE, "the device is ours", || {
                imported = TcpStream::connect(&share.address).unwrap();
                imported.write_all(&import).unwrap();
                imported.read_exact(&mut answer).unwrap();
                answer[4..] == [0; 4]
            });
            imported.read_exact(&mut [0; 312]).unwrap();
            flood_stream(&imported, says);
        } else {
            flood_stream(&stream, says);
        }
        assert_below(&share.process, base, STRANGER_KIB, &format!("USB/IP {name}"));
    }
}

#[test]
fn control_and_pairing_clients_that_never_read_take_next_to_no_memory() {
    let harness = Harness::new();
    let share = harness.share(&["zero"]);
    let run = harness.path("run").join("farbus");
    let socket = std::fs::read_dir(run)
        .unwrap()
        .flatten()
        .map(|entry| entry.path())
        .find(|path| path.extension().is_some_and(|end| end == "sock"));
    let socket = socket.expect("a share answers somewhere");
    let base = share.process.peak_kib();
    let began = Instant::now();
    let mut kept = Vec::new();
    while began.elapsed() < Duration::from_secs(2) && kept.len() < 200 {
        let Ok(mut stream) = UnixStream::connect(&socket) else { break };
        stream.set_write_timeout(Some(FULL_AFTER)).unwrap();
        let _ = stream.write_all(&b"{\"ask\":\"status\"}\n".repeat(2000));
        kept.push(stream);
    }
    assert_below(&share.process, base, 8 << 10, "control");
    let [lab3, _] = hosts(&harness);
    let waiting = lab3.start(&["pair", "--listen", "127.0.0.1:0", "--json"]);
    let (address, _) = super::trust::next_code(&waiting);
    let base = waiting.peak_kib();
    for _ in 0..6 {
        let stream = TcpStream::connect(&address).unwrap();
        flood_stream(&stream, |_| vec![0x16; 4096]);
    }
    assert_below(&waiting, base, 8 << 10, "pairing");
}

/// The next frame's kind and body.
fn next_frame(stream: &mut TcpStream) -> (u8, Vec<u8>) {
    let mut head = [0; 8];
    stream.read_exact(&mut head).unwrap();
    let mut body = vec![0; usize::from(u16::from_le_bytes([head[6], head[7]]))];
    stream.read_exact(&mut body).unwrap();
    (head[0], body)
}

#[test]
fn peer_may_use_150_devices_and_is_told_which_limit_it_reached() {
    let harness = Harness::new();
    let what = vec!["zero"; 240];
    let share = harness.share(&what);
    let mut open_sessions = Vec::new();
    let mut reason = None;
    for n in 0..240_u32 {
        let mut stream = TcpStream::connect(&share.address).unwrap();
        let Ok(welcome) = begin_over_tcp(&stream, new_session(u64::from(n) + 1)) else {
            wait_until(PATIENCE, "it is said why", || share.process.log().contains("the connection was turned away"));
            break;
        };
        if welcome.outcome != farbus_session::native::hello::WelcomeOutcome::Begun {
            assert_eq!(welcome.outcome, farbus_session::native::hello::WelcomeOutcome::Full);
            wait_until(PATIENCE, "it is said why", || share.process.log().contains("as much memory as it may"));
            break;
        }
        let bus_id = format!("{}-{}", 1 + n / 126, 1 + n % 126);
        let opened = open(&bus_id, farbus_session::native::control::AttachmentClass::USB);
        stream.write_all(&frame(farbus_session::native::FrameKind::Open, 1, 0, &opened.encode())).unwrap();
        let mut answer = next_frame(&mut stream);
        if answer.0 == farbus_session::native::FrameKind::Identity.code() {
            answer = next_frame(&mut stream);
        }
        if answer.0 != farbus_session::native::FrameKind::Opened.code() {
            reason = Some(String::from_utf8_lossy(&answer.1).into_owned());
            break;
        }
        open_sessions.push(stream);
    }
    println!("{} devices, then {reason:?}", open_sessions.len());
    assert!(open_sessions.len() >= 150, "{} {reason:?}", open_sessions.len());
    if let Some(reason) = reason {
        assert!(reason.contains("memory") || reason.contains("as many connections as are left"), "{reason}");
    }
}
