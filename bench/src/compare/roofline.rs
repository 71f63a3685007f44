//! What this machine lets anyone reach: small loops, each with one thing that a path of bytes is made of.

use std::{
    hint::black_box,
    io::{self, PipeReader, PipeWriter, Read, Write},
    net::{TcpListener, TcpStream, UdpSocket},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, anyhow};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use super::page::{PageRow, PageTable};
use crate::{
    lab::BenchmarkEnvironment,
    peers::{PeerServerKind, stream::StreamClient, tls},
    report::figure,
    usbip::UsbipDirection,
};

/// Each loop runs so often, and the best counts: a limit is what is reached undisturbed, and a short run often is.
const ROUNDS: usize = 20;
const ROUND: Duration = Duration::from_millis(10);
/// Operations between two looks at the clock.
const BATCH: u32 = 64;
const PING_BYTES: usize = 64;
/// What a sender in bulk hands to a socket at once.
const PIECE_BYTES: usize = 256 << 10;
/// Stays in a processor's caches, and does not.
const NEAR_BYTES: usize = 128 << 10;
const FAR_BYTES: usize = 64 << 20;
/// A TLS record.
const RECORD_BYTES: usize = 16 << 10;
/// Nearly the largest datagram that QUIC tries, which this machine carries.
pub const DATAGRAM_BYTES: usize = 8900;

/// What each thing costs here at least. Times are in µs, an operation's or a byte's.
#[derive(Clone, Copy, Debug, Default)]
pub struct MachineLimits {
    pub call: f64,
    /// One thread writes to a pipe, another one that slept has it: on the same processor, and on another one.
    pub wake_near: f64,
    pub wake_far: f64,
    /// A small message sent and received over TCP, while nobody sleeps.
    pub message: f64,
    pub datagram: f64,
    pub byte_copied: f64,
    pub byte_copied_far: f64,
    pub byte_sealed: f64,
    pub byte_opened: f64,
    /// Sent and received over TCP by one thread, so the work of both ends.
    pub byte_carried: f64,
    /// Of one TCP stream between two processes, which work at the same time.
    pub byte_streamed: f64,
    pub processors: f64,
}

impl MachineLimits {
    pub fn measure(lab: &BenchmarkEnvironment) -> Result<Self> {
        let (byte_sealed, byte_opened) = tls_records()?;
        let allowed = sched_getaffinity(None)?;
        let processors: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|&cpu| allowed.is_set(cpu)).collect();
        let (first, last) = (processors[0], processors[processors.len() - 1]);
        Ok(Self {
            call: best(|| Ok(_ = black_box(rustix::process::getppid())))?,
            wake_near: wake_up([first, first])?,
            wake_far: wake_up([first, last])?,
            message: carried(PING_BYTES, true)?,
            datagram: datagrams()?,
            byte_copied: copied(NEAR_BYTES)?,
            byte_copied_far: copied(FAR_BYTES)?,
            byte_sealed,
            byte_opened,
            byte_carried: carried(PIECE_BYTES, false)? / PIECE_BYTES as f64,
            byte_streamed: streamed(lab)?,
            processors: processors.len() as f64,
        })
    }

    /// The better of two measurements in each: other programs only ever take from a limit.
    pub fn or_better(self, other: Self) -> Self {
        Self {
            call: self.call.min(other.call),
            wake_near: self.wake_near.min(other.wake_near),
            wake_far: self.wake_far.min(other.wake_far),
            message: self.message.min(other.message),
            datagram: self.datagram.min(other.datagram),
            byte_copied: self.byte_copied.min(other.byte_copied),
            byte_copied_far: self.byte_copied_far.min(other.byte_copied_far),
            byte_sealed: self.byte_sealed.min(other.byte_sealed),
            byte_opened: self.byte_opened.min(other.byte_opened),
            byte_carried: self.byte_carried.min(other.byte_carried),
            byte_streamed: self.byte_streamed.min(other.byte_streamed),
            processors: self.processors,
        }
    }

    pub fn table(&self) -> PageTable {
        let gigabytes = |byte: f64| format!("{} GB/s", figure(1e-3 / byte));
        let micros = |time: f64| format!("{} µs", figure(time));
        let rows = [
            ("a system call", format!("{:.0} ns", 1e3 * self.call)),
            ("a wake-up by a pipe, both threads on one processor", micros(self.wake_near)),
            ("a wake-up by a pipe across two processors", micros(self.wake_far)),
            ("64 B sent and received over TCP while nobody sleeps", micros(self.message)),
            ("a UDP datagram of 8,900 B sent and received", micros(self.datagram)),
            ("a copy in memory of 128 KiB", gigabytes(self.byte_copied)),
            ("a copy in memory of 64 MiB", gigabytes(self.byte_copied_far)),
            ("TLS 1.3 (rustls): records sealed", gigabytes(self.byte_sealed)),
            ("TLS 1.3 (rustls): records opened", gigabytes(self.byte_opened)),
            ("sent and received over TCP by one thread", gigabytes(self.byte_carried)),
            ("one TCP stream, two processes", gigabytes(self.byte_streamed)),
        ];
        PageTable {
            title: "What this machine can do",
            note: format!(
                "Small loops before and after all others, the best of {} runs; {} processors. A wake-up has its two system calls.",
                2 * ROUNDS,
                self.processors
            ),
            headings: ["what", "limit"].map(str::to_owned).to_vec(),
            rows: rows.map(|(what, limit)| PageRow::new(vec![what.to_owned(), limit])).to_vec(),
        }
    }
}

/// The least time of an operation over all rounds, µs.
fn best(mut operate: impl FnMut() -> Result<()>) -> Result<f64> {
    let mut least = f64::INFINITY;
    for _ in 0..ROUNDS {
        let (began, mut count) = (Instant::now(), 0);
        while began.elapsed() < ROUND {
            for _ in 0..BATCH {
                operate()?;
            }
            count += BATCH;
        }
        least = least.min(began.elapsed().as_secs_f64() * 1e6 / f64::from(count));
    }
    Ok(least)
}

/// Half of a round trip between two threads on these processors, µs.
fn wake_up(processors: [usize; 2]) -> Result<f64> {
    let (mut question, mut ask) = io::pipe()?;
    let (mut answered, mut answer) = io::pipe()?;
    thread::spawn(move || -> Result<()> {
        stay_on(processors[1])?;
        loop {
            exchange(&mut answer, &mut question, false)?;
        }
    });
    let asks = thread::spawn(move || {
        stay_on(processors[0])?;
        best(|| exchange(&mut ask, &mut answered, true))
    });
    Ok(asks.join().map_err(|_| anyhow!("the thread that wakes the other one failed"))?? / 2.0)
}

fn exchange(to: &mut PipeWriter, from: &mut PipeReader, is_first: bool) -> Result<()> {
    if is_first {
        to.write_all(&[1])?;
    }
    from.read_exact(&mut [0])?;
    if !is_first {
        to.write_all(&[1])?;
    }
    Ok(())
}

/// Keeps this thread on a processor, if it may be there.
fn stay_on(processor: usize) -> Result<()> {
    let mut set = CpuSet::new();
    set.set(processor);
    sched_setaffinity(None, &set).with_context(|| format!("cannot run on processor {processor}"))
}

/// So many bytes sent and received over TCP by this thread, and as many back for `is_answered`; µs each way.
fn carried(bytes: usize, is_answered: bool) -> Result<f64> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let mut near = TcpStream::connect(listener.local_addr()?)?;
    let (mut far, _) = listener.accept()?;
    for end in [&near, &far] {
        end.set_nodelay(true)?;
        end.set_nonblocking(true)?;
    }
    let (from, mut to) = (vec![0; bytes], vec![0; bytes]);
    let all = best(|| {
        carry(&mut near, &mut far, &from, &mut to)?;
        if is_answered {
            carry(&mut far, &mut near, &from, &mut to)?;
        }
        Ok(())
    })?;
    Ok(if is_answered { all / 2.0 } else { all })
}

/// Sends as much as the sockets take, receives it, and goes on until all has come.
fn carry(near: &mut TcpStream, far: &mut TcpStream, from: &[u8], to: &mut [u8]) -> Result<()> {
    let none_yet = |moved: io::Result<usize>| match moved {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(0),
        moved => moved,
    };
    let (mut sent, mut received) = (0, 0);
    while received < to.len() {
        if sent < from.len() {
            sent += none_yet(near.write(&from[sent..]))?;
        }
        received += none_yet(far.read(&mut to[received..]))?;
    }
    Ok(())
}

fn datagrams() -> Result<f64> {
    let (near, far) = (UdpSocket::bind("127.0.0.1:0")?, UdpSocket::bind("127.0.0.1:0")?);
    near.connect(far.local_addr()?)?;
    let mut datagram = [0; DATAGRAM_BYTES];
    best(|| {
        near.send(&datagram)?;
        Ok(_ = far.recv(&mut datagram)?)
    })
}

/// A byte's time, µs.
fn copied(bytes: usize) -> Result<f64> {
    let (from, mut to) = (vec![1_u8; bytes], vec![0_u8; bytes]);
    let pieces = bytes.div_ceil(NEAR_BYTES);
    let mut at = 0;
    let piece = best(|| {
        let range = at * NEAR_BYTES..(at + 1) * NEAR_BYTES;
        to[range.clone()].copy_from_slice(black_box(&from[range]));
        at = (at + 1) % pieces;
        Ok(_ = black_box(&mut to))
    })?;
    Ok(piece / NEAR_BYTES as f64)
}

/// A byte's time to be sealed and to be opened, µs.
fn tls_records() -> Result<(f64, f64)> {
    let (mut client, mut server) = tls::in_memory()?;
    let (mut plain, mut wire) = (vec![0; RECORD_BYTES], Vec::new());
    let (mut sealed, mut opened) = (f64::INFINITY, f64::INFINITY);
    for _ in 0..ROUNDS {
        let (began, mut count, mut sealing) = (Instant::now(), 0.0, Duration::ZERO);
        while began.elapsed() < ROUND {
            for _ in 0..BATCH {
                wire.clear();
                let seals = Instant::now();
                server.writer().write_all(&plain)?;
                while server.wants_write() {
                    server.write_tls(&mut wire)?;
                }
                sealing += seals.elapsed();
                let mut rest = wire.as_slice();
                while !rest.is_empty() {
                    client.read_tls(&mut rest)?;
                    client.process_new_packets()?;
                }
                client.reader().read_exact(&mut plain)?;
                count += RECORD_BYTES as f64;
            }
        }
        sealed = sealed.min(sealing.as_secs_f64() * 1e6 / count);
        opened = opened.min((began.elapsed() - sealing).as_secs_f64() * 1e6 / count);
    }
    Ok((sealed, opened))
}

fn streamed(lab: &BenchmarkEnvironment) -> Result<f64> {
    let server = lab.peer(PeerServerKind::Stream)?;
    let mut client = StreamClient::connect(server.address, UsbipDirection::In, NEAR_BYTES)?;
    let mut least = f64::INFINITY;
    for _ in 0..ROUNDS {
        least = least.min(1e6 / client.run(ROUND)?.bytes_per_second());
    }
    Ok(least)
}

/// What a request of a path cannot do without, at either end and between.
#[derive(Clone, Copy, Debug, Default)]
pub struct PathNeeds {
    /// Times that a thread that slept goes on.
    pub wake_ups: f64,
    /// Small messages over a socket.
    pub messages: f64,
    /// Other system calls.
    pub calls: f64,
    pub datagrams: f64,
    /// Copies of each byte besides those of TCP; a Unix socket has two.
    pub copies: f64,
    /// How often each byte is carried by TCP.
    pub carried: f64,
    /// How often each byte is sealed and opened.
    pub encrypted: f64,
    /// Programs that work at the same time; 1 if each waits for the other.
    pub at_once: f64,
}

/// The least time of a request, µs, and what takes the most of it.
#[derive(Clone, Debug, PartialEq)]
pub struct PathFloor {
    pub micros: f64,
    pub limit: &'static str,
    pub limit_share: f64,
}

impl PathNeeds {
    /// A request's floor on this machine: all its work, shared among the processors that can do it at once.
    pub fn floor(&self, limits: &MachineLimits, bytes: usize) -> PathFloor {
        let bytes = bytes as f64;
        // The calls of a wake-up are those of the message that wakes.
        let wake = (limits.wake_near - 2.0 * limits.call).max(0.0);
        let terms = [
            ("wake-ups", self.wake_ups * wake),
            ("messages through sockets", self.messages * limits.message),
            ("system calls", self.calls * limits.call),
            ("datagrams", self.datagrams * limits.datagram),
            ("copies", self.copies * bytes * limits.byte_copied),
            ("TCP", self.carried * bytes * limits.byte_carried),
            ("encryption", self.encrypted * bytes * (limits.byte_sealed + limits.byte_opened)),
        ];
        let all: f64 = terms.iter().map(|(_, micros)| micros).sum();
        let (limit, most) = terms.into_iter().max_by(|a, b| a.1.total_cmp(&b.1)).unwrap_or_default();
        PathFloor {
            micros: all / self.at_once.min(limits.processors).max(1.0),
            limit,
            limit_share: if all > 0.0 { most / all } else { 0.0 },
        }
    }

    /// In words, for a table.
    pub fn named(&self) -> String {
        let counts = [
            (self.wake_ups, "wake-up"),
            (self.messages, "message"),
            (self.calls, "call"),
            (self.datagrams, "datagram"),
            (self.copies, "copy"),
            (self.carried, "TCP"),
            (self.encrypted, "TLS"),
        ];
        let named = |(count, name): &(f64, &str)| match short(*count) {
            one if one == "1" => (*name).to_owned(),
            count => format!("{count}×{name}"),
        };
        counts.iter().filter(|(count, _)| *count > 0.0).map(named).collect::<Vec<_>>().join(", ")
    }
}

/// A count without needless digits.
fn short(count: f64) -> String {
    let digits = if count < 10.0 { 100.0 } else { 1.0 };
    format!("{}", (count * digits).round() / digits)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits() -> MachineLimits {
        MachineLimits {
            call: 0.1,
            wake_near: 2.2,
            message: 3.0,
            byte_copied: 1e-4,
            byte_sealed: 2e-4,
            byte_opened: 3e-4,
            processors: 2.0,
            ..MachineLimits::default()
        }
    }

    #[test]
    fn a_floor_adds_what_a_request_needs_and_names_the_largest_part() {
        let small = PathNeeds { wake_ups: 2.0, messages: 2.0, at_once: 1.0, ..PathNeeds::default() };
        let floor = small.floor(&limits(), 0);
        assert!((floor.micros - 10.0).abs() < 1e-9, "{floor:?}");
        assert_eq!((floor.limit, floor.limit_share), ("messages through sockets", 0.6));
        let large = PathNeeds { copies: 1.0, encrypted: 1.0, at_once: 3.0, ..PathNeeds::default() };
        let floor = large.floor(&limits(), 1_000_000);
        // Three programs, but two processors.
        assert!((floor.micros - 300.0).abs() < 1e-9, "{floor:?}");
        assert_eq!(floor.limit, "encryption");
    }

    #[test]
    fn needs_are_named_without_what_is_not_there() {
        let needs = PathNeeds { wake_ups: 2.0, messages: 0.0625, encrypted: 1.0, ..PathNeeds::default() };
        assert_eq!(needs.named(), "2×wake-up, 0.06×message, TLS");
    }

    #[test]
    fn a_loop_of_a_machine_has_a_time_above_zero() {
        let (sealed, opened) = tls_records().expect("both ends are here");
        let all = [carried(PING_BYTES, true).expect("a socket"), copied(NEAR_BYTES).expect("memory"), sealed, opened];
        assert!(all.iter().all(|time| *time > 0.0 && time.is_finite()), "{all:?}");
    }
}
