//! Peers that lie, stall, flood and vanish: what they cost, and that no other session notices.
//!
//! Their bytes are written by hand from the protocol's document (Linux, `usbip_protocol.rst`), so that a mistake shared
//! by both ends of farbus would be found.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use farbus::client;
use farbus::model::EpAddr;

use super::harness::{Harness, PATIENCE, Share, wait_until};

const MIB: u64 = 1 << 20;
const DIRECTION_OUT: u32 = 0;
const DIRECTION_IN: u32 = 1;

/// A session that works while others misbehave: it checks and counts every answer.
pub struct Witness {
    is_over: Arc<AtomicBool>,
    answers: Arc<AtomicU64>,
    thread: JoinHandle<()>,
}

impl Witness {
    /// A session on the device called `zero`, which fills by `mod63` and verifies.
    pub fn on(share: &Share) -> Self {
        let (is_over, answers) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
        let mut device = client::open(&share.library_target("zero")).unwrap();
        device.set_timeout(Some(PATIENCE));
        let (stop, count) = (Arc::clone(&is_over), Arc::clone(&answers));
        let thread = thread::spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                let data = device.data_in(EpAddr::from_byte(0x81), 10_000).unwrap();
                assert!(data.contiguous().iter().enumerate().all(|(at, byte)| usize::from(*byte) == at % 512 % 63));
                device.data_out(EpAddr::from_byte(0x01), data).unwrap();
                count.fetch_add(1, Ordering::Relaxed);
            }
        });
        Self { is_over, answers, thread }
    }

    /// Answers checked so far.
    pub fn answers(&self) -> u64 {
        self.answers.load(Ordering::Relaxed)
    }

    /// Asserts that the session still gets answers.
    pub fn assert_unharmed(&self) {
        let before = self.answers.load(Ordering::Relaxed);
        wait_until(PATIENCE, "the other session goes on", || self.answers.load(Ordering::Relaxed) > before + 10);
    }

    pub fn end(self) {
        self.assert_unharmed();
        self.is_over.store(true, Ordering::Relaxed);
        self.thread.join().unwrap();
    }
}

fn connect(share: &Share) -> TcpStream {
    let stream = TcpStream::connect(&share.address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// Imports the device 1-2 and configures it.
fn import(share: &Share) -> TcpStream {
    let mut request = vec![0x01, 0x11, 0x80, 0x03, 0, 0, 0, 0];
    request.extend(b"1-2".iter().copied().chain(std::iter::repeat(0)).take(32));
    let mut stream = connect(share);
    // The previous user may have gone only this moment.
    wait_until(PATIENCE, "the device is ours", || {
        stream = connect(share);
        stream.write_all(&request).unwrap();
        let mut answer = [0; 8];
        stream.read_exact(&mut answer).unwrap();
        assert_eq!(answer[..4], [0x01, 0x11, 0x00, 0x03]);
        answer[4..] == [0; 4]
    });
    stream.read_exact(&mut [0; 312]).unwrap();
    stream.write_all(&submit(1, DIRECTION_OUT, 0, 0, [0, 9, 1, 0, 0, 0, 0, 0])).unwrap();
    stream.read_exact(&mut [0; 48]).unwrap();
    stream
}

/// USBIP_CMD_SUBMIT to device 1-2, that is bus 1, device 3, without its payload.
fn submit(sequence: u32, direction: u32, endpoint: u32, length: u32, setup: [u8; 8]) -> Vec<u8> {
    let no_iso_packets = 0xffff_ffff;
    let words = [1, sequence, 0x0001_0003, direction, endpoint, 0, length, 0, no_iso_packets, 0];
    words.iter().flat_map(|word: &u32| word.to_be_bytes()).chain(setup).collect()
}

/// The other end closes the connection, whatever it sends before.
fn assert_is_closed(mut stream: TcpStream, what: &str) {
    let mut rest = vec![0; 1 << 16];
    loop {
        match stream.read(&mut rest) {
            Ok(0) => return,
            Ok(_) => {}
            // With a timeout, the kernel does not resume the call by itself after the machine was stopped.
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if error.kind() == ErrorKind::ConnectionReset => return,
            Err(error) => panic!("{what}: still open: {error}"),
        }
    }
}

/// A share with a device to attack, `1-2`, and another device that a witness watches.
fn besieged() -> (Harness, Share, Witness) {
    let harness = Harness::new();
    let share = harness.share(&["zero,fill=mod63,verify", "zero"]);
    let witness = Witness::on(&share);
    witness.assert_unharmed();
    (harness, share, witness)
}

/// The attacked device is offered again.
fn assert_is_offered(share: &Share) {
    let offered = || client::open(&share.library_target("1-2")).is_ok();
    wait_until(PATIENCE, "the attacked device is offered again", offered);
}

#[test]
fn peer_that_breaks_the_protocol_is_cut_off_and_logged() {
    let (_harness, share, witness) = besieged();
    let noise: Vec<u8> = (0..100_000u32).map(|n| (n.wrapping_mul(0x9e37_79b9) >> 24) as u8).collect();
    let mut old_version = vec![0x01, 0x06, 0x80, 0x05, 0, 0, 0, 0];
    let mut unknown_operation = vec![0x01, 0x11, 0x80, 0x42, 0, 0, 0, 0];
    let web = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n".to_vec();
    for (what, bytes) in [
        ("noise", noise),
        ("another version", std::mem::take(&mut old_version)),
        ("an operation that is none", std::mem::take(&mut unknown_operation)),
        ("a web browser", web),
    ] {
        let mut stream = connect(&share);
        // The peer may be cut off before it has sent everything.
        let _ = stream.write_all(&bytes);
        assert_is_closed(stream, what);
    }
    wait_until(PATIENCE, "each is logged", || share.process.log().matches("the connection was cut off").count() >= 4);
    witness.end();
}

#[test]
fn lengths_beyond_all_limits_are_refused_before_memory_is_taken() {
    let (_harness, share, witness) = besieged();
    let before_kib = share.process.peak_kib();
    for (what, header) in [
        ("an OUT of 4 GiB", submit(2, DIRECTION_OUT, 1, u32::MAX, [0; 8])),
        ("an OUT of 2 GiB", submit(2, DIRECTION_OUT, 1, 0x7fff_ffff, [0; 8])),
        ("an IN of 2 GiB", submit(2, DIRECTION_IN, 1, 0x7fff_ffff, [0; 8])),
    ] {
        let mut stream = import(&share);
        stream.write_all(&header).unwrap();
        let mut answer = [0; 48];
        stream.read_exact(&mut answer).unwrap();
        let (command, status) = (answer[3], i32::from_be_bytes(*answer[20..].first_chunk().unwrap()));
        assert_eq!((command, status), (3, -22), "{what} is answered at its header: EINVAL");
        // Its data is dropped as it comes.
        if header[15] == DIRECTION_OUT as u8 {
            stream.write_all(&vec![0; 4 * MIB as usize]).unwrap();
        }
        drop(stream);
        assert_is_offered(&share);
    }
    for (what, header) in [
        ("1025 isochronous packets", {
            let mut header = submit(2, DIRECTION_IN, 3, 1025, [0; 8]);
            header[32..36].copy_from_slice(&1025u32.to_be_bytes());
            header
        }),
        ("endpoint 16", submit(2, DIRECTION_IN, 16, 8, [0; 8])),
        ("direction 2", submit(2, 2, 1, 8, [0; 8])),
        ("command 7", {
            let mut header = submit(2, DIRECTION_IN, 1, 8, [0; 8]);
            header[3] = 7;
            header
        }),
    ] {
        let mut stream = import(&share);
        stream.write_all(&header).unwrap();
        assert_is_closed(stream, what);
        assert_is_offered(&share);
    }
    let grown_kib = share.process.peak_grown_kib(before_kib);
    println!("{grown_kib} KiB");
    assert!(grown_kib < 8 << 10, "{grown_kib} KiB");
    witness.end();
}

#[test]
fn a_length_alone_takes_no_memory_until_its_bytes_arrive() {
    let (_harness, share, witness) = besieged();
    let mut stream = import(&share);
    let before_kib = share.process.peak_kib();
    stream.write_all(&submit(2, DIRECTION_OUT, 1, (16 * MIB) as u32, [0; 8])).unwrap();
    stream.write_all(&vec![0; MIB as usize]).unwrap();
    witness.assert_unharmed();
    let grown_kib = share.process.peak_grown_kib(before_kib);
    println!("{grown_kib} KiB");
    assert!(grown_kib < 5 << 10, "{grown_kib} KiB for 1 MiB");
    // Then the peer vanishes within the message.
    stream.shutdown(Shutdown::Both).unwrap();
    assert_is_offered(&share);
    witness.end();
}

#[test]
fn peers_that_stop_within_a_message_are_cut_off_and_disturb_no_session() {
    let (_harness, share, witness) = besieged();
    let began = Instant::now();
    let mut half_open: Vec<_> = (0..50).map(|_| connect(&share)).collect();
    for (n, stream) in half_open.iter_mut().enumerate() {
        // From no byte at all up to one byte less than an import request.
        let request = [&[0x01, 0x11, 0x80, 0x03, 0, 0, 0, 0][..], &[b'1'; 31]].concat();
        stream.write_all(&request[..n.min(39)]).unwrap();
    }
    witness.assert_unharmed();
    for stream in half_open {
        assert_is_closed(stream, "half open");
    }
    let took = began.elapsed();
    assert!(took > Duration::from_secs(8), "a slow peer has its time: {took:?}");
    assert!(took < PATIENCE, "{took:?}");
    share.process.assert_logged("asked for nothing");
    witness.end();
}

#[test]
fn peer_that_never_reads_is_bounded_and_finally_cut_off() {
    let (_harness, share, witness) = besieged();
    let mut stream = import(&share);
    let before_kib = share.process.peak_kib();
    // The peer is cut off for too many refusals that it does not read or, where the machine is too slow to make them,
    // by the kernel's timeout.
    let is_cut_off = || {
        let log = share.process.log();
        log.contains("does not read its answers") || log.contains("Connection timed out")
    };
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    let mut sequence = 2;
    // Each asks for a megabyte; after some thousand requests they are refused.
    while !is_cut_off() && sequence < 1_000_000 {
        let requests: Vec<u8> =
            (sequence..sequence + 1000).flat_map(|n| submit(n, DIRECTION_IN, 1, MIB as u32, [0; 8])).collect();
        sequence += 1000;
        if stream.write_all(&requests).is_err() {
            break;
        }
    }
    wait_until(PATIENCE, "it is cut off", is_cut_off);
    let grown_kib = share.process.peak_grown_kib(before_kib);
    println!("{grown_kib} KiB for {sequence} requests");
    assert!(grown_kib < 24 << 10, "{grown_kib} KiB for {sequence} requests");
    assert_is_offered(&share);
    witness.end();
}

#[test]
fn connections_that_come_and_go_leave_no_memory_behind() {
    let (_harness, share, witness) = besieged();
    let visit = |count: u8| {
        for n in 0..count {
            let mut stream = connect(&share);
            // From an immediate end up to many bytes.
            let _ = stream.write_all(&[n; 8].repeat(n.into()));
            let _ = stream.shutdown(Shutdown::Write);
            assert_is_closed(stream, "a stranger");
        }
    };
    visit(100);
    let after_some_kib = share.process.peak_kib();
    (0..5).for_each(|_| visit(100));
    let grown_kib = share.process.peak_grown_kib(after_some_kib);
    println!("{grown_kib} KiB");
    // A receive buffer kept for each would be 125 MiB; what is left is the allocator's arenas.
    assert!(grown_kib < 16 << 10, "{grown_kib} KiB");
    witness.end();
}

#[test]
fn many_connections_at_once_cost_little_memory_each() {
    const CONNECTIONS: u64 = 100;
    let (_harness, share, witness) = besieged();
    let before_kib = share.process.peak_kib();
    let connections: Vec<_> = (0..CONNECTIONS).map(|_| connect(&share)).collect();
    witness.assert_unharmed();
    let each_kib = share.process.peak_grown_kib(before_kib) / CONNECTIONS;
    println!("{each_kib} KiB each");
    assert!(each_kib < 512, "{each_kib} KiB");
    drop(connections);
    witness.end();
}
