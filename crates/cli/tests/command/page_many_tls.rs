//! A thousand browsers of other machines that follow the events of a page over TLS: each is told of each change, which
//! takes the page less than a second of a processor, those that do not read cost little and are closed, and those that
//! are too many are refused and disturb nobody. When each is told is measured by `farbus bench page`, on a machine that
//! has time for it.

use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream as StdTcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use farbus_io_linux::sys::descriptors;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::{Semaphore, mpsc};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::pki_types::ServerName;

use super::browser::MadeUp;
use super::harness::{Harness, PATIENCE, has};
use super::page::send;
use super::page_confined::http_processes;
use super::page_remote::{NAME, Remote, open};
use super::page_tokens::make;
use super::rights::of_process;

/// Browsers that follow the events.
const CLIENTS: usize = 1000;
/// Of them, those that never read.
const SILENT: usize = 100;
/// Connections with one token.
const OF_TOKEN: usize = 60;
/// Strangers that begin a handshake and do not end it.
const STALLED: usize = 8;
/// Handshakes at a time: strangers of one network have sixteen places.
const AT_ONCE: usize = 6;
/// The most that one browser may cost the page, KiB: its connection in both processes, TLS, and what it has not read.
const CLIENT_KIB_MAX: u64 = 80;
/// The most processor time of the page, in both of its processes, until all are told of a change. What else the machine
/// does is none of it.
const PROCESSOR_MAX: Duration = Duration::from_secs(1);
/// Memory that others use slows a processor: it may disturb all rounds but one.
const ROUNDS: usize = 3;
/// A handshake has 5 s, and a client that does not read 10 s (`connection.rs` tests that alone). What else this test
/// does meanwhile takes its time on a machine with other work.
const CLOSED_WITHIN: Duration = PATIENCE;
const DEVICES: usize = 60;

/// Memory that is resident in a process, KiB.
fn resident_kib(pid: u64) -> u64 {
    of_process(&pid.into(), "VmRSS").trim_end_matches(" kB").parse().unwrap()
}

/// The processor time that a process has used: fields 14 and 15 of its `stat` (proc(5)).
fn processor_time(pid: u64) -> Duration {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let (_, after_name) = stat.rsplit_once(") ").unwrap();
    let ticks: u64 = after_name.split(' ').skip(11).take(2).map(|ticks| ticks.parse::<u64>().unwrap()).sum();
    Duration::from_millis(ticks * 1000 / rustix::param::clock_ticks_per_second())
}

fn descriptors_of(pid: u64) -> usize {
    fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count()
}

/// What a browser follows.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// The rows of the devices.
    View,
    /// Whether the table has changed.
    Table,
    /// The numbered events of the API.
    Journal,
}

impl Kind {
    fn of(number: usize) -> Self {
        [Self::View, Self::Table, Self::Journal][number % 3]
    }

    fn path(self) -> &'static str {
        match self {
            Self::View => "/events?view=%2F&version=0",
            Self::Table => "/events",
            Self::Journal => "/api/v1/events",
        }
    }
}

/// What connects a browser to the page.
#[derive(Clone)]
struct Way {
    address: SocketAddr,
    host: String,
    tls: TlsConnector,
    permits: Arc<Semaphore>,
}

impl Way {
    fn to(page: &Remote) -> Self {
        Self {
            address: (Ipv4Addr::LOCALHOST, page.site.port).into(),
            host: page.site.host(),
            tls: TlsConnector::from(page.site.config()),
            permits: Arc::new(Semaphore::new(AT_ONCE)),
        }
    }

    /// A connection that has asked for this path, with the beginning of the answer; `None`: it was closed. One that
    /// does not read has a small buffer.
    async fn ask(&self, path: &str, token: &str, reads: bool) -> Option<(TlsStream<TcpStream>, Vec<u8>)> {
        let _place = self.permits.acquire().await.unwrap();
        let socket = TcpSocket::new_v4().unwrap();
        if !reads {
            socket.set_recv_buffer_size(4096).unwrap();
        }
        let stream = socket.connect(self.address).await.ok()?;
        stream.set_nodelay(true).unwrap();
        let mut stream = self.tls.connect(ServerName::try_from(NAME).unwrap(), stream).await.ok()?;
        let host = &self.host;
        let request = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nCookie: __Host-farbus={token}\r\n\r\n");
        stream.write_all(request.as_bytes()).await.ok()?;
        stream.flush().await.ok()?;
        let mut text = Vec::new();
        while !text.windows(4).any(|window| window == b"\r\n\r\n") {
            let mut bytes = [0; 512];
            let count = stream.read(&mut bytes).await.ok().filter(|count| *count > 0)?;
            text.extend_from_slice(&bytes[..count]);
        }
        Some((stream, text))
    }
}

/// The devices before the first round and after each.
fn devices(round: usize, all: bool) -> Vec<Value> {
    let title = |n: usize| if all || n == 0 { format!("changed {round}") } else { "board".to_owned() };
    let device = |n| json!({ "name": format!("board{n}"), "title": title(n), "state": "available" });
    // One more in each round, by which the numbered events are told apart.
    (0..DEVICES + round).map(device).collect()
}

/// Follows the events, and says which round it was told of. Ends with the connection: then it says `usize::MAX`.
async fn follow(
    (mut stream, mut text): (TlsStream<TcpStream>, Vec<u8>),
    kind: Kind,
    round: Arc<AtomicUsize>,
    sender: mpsc::UnboundedSender<(usize, Instant)>,
) {
    let mut last = 0;
    loop {
        let now = round.load(Ordering::Acquire);
        let events = String::from_utf8_lossy(&text);
        let is_told = match kind {
            Kind::View => events.contains(&format!("changed {now}<")) || events.contains("event: reload"),
            Kind::Table => events.contains("event: status"),
            Kind::Journal => events.contains(&format!("\"devices\":{}", DEVICES + now)),
        };
        if is_told && now > last {
            last = now;
            let _ = sender.send((now, Instant::now()));
            text.clear();
        }
        let mut bytes = vec![0; 16 << 10];
        match stream.read(&mut bytes).await {
            Ok(count) if count > 0 => text.extend_from_slice(&bytes[..count]),
            _ => break,
        }
    }
    let _ = sender.send((usize::MAX, Instant::now()));
}

/// The readers, and what they are told of.
struct Readers {
    made_up: MadeUp,
    round: Arc<AtomicUsize>,
    receiver: mpsc::UnboundedReceiver<(usize, Instant)>,
    readers: usize,
}

impl Readers {
    /// Changes something; returns how long each reader took to be told of it, the longest last.
    async fn change(&mut self, all: bool) -> Vec<Duration> {
        let round = self.round.load(Ordering::Acquire) + 1;
        let changed = Instant::now();
        self.made_up.change(|had| *had = devices(round, all));
        self.round.store(round, Ordering::Release);
        let mut took = Vec::new();
        while took.len() < self.readers {
            let received = timeout(PATIENCE, self.receiver.recv()).await;
            let (of, at) = received.unwrap_or_else(|_| panic!("{} of {} were told", took.len(), self.readers)).unwrap();
            assert_eq!(of, round, "a reader lost its connection, or was told twice");
            took.push(at.duration_since(changed));
        }
        took.sort_unstable();
        took
    }
}

#[test]
fn a_thousand_browsers_follow_over_tls_and_those_that_stall_or_are_too_many_take_nothing_from_them() {
    if !has("4096 descriptors", descriptors::raise().soft.is_none_or(|soft| soft >= 4096)) {
        return;
    }
    let harness = Harness::new();
    let made_up = MadeUp::start(&harness, devices(0, false));
    let page = open(&harness);
    let tokens: Vec<String> = (0..=CLIENTS / OF_TOKEN + 4).map(|_| make(&harness, &["--scope", "read"])).collect();
    let of_owner = http_processes(&page.process)[0];
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let way = Way::to(&page);
        drop(way.ask("/", &tokens[0], true).await.expect("an answer"));
        let http = *http_processes(&page.process).iter().find(|pid| **pid != of_owner).expect("a process of their own");
        let rights = u64::from(page.process.id());
        let before = [http, rights].map(resident_kib);

        let begun = Instant::now();
        let round = Arc::new(AtomicUsize::new(0));
        let (tell, receiver) = mpsc::unbounded_channel();
        let asking: Vec<_> = (0..CLIENTS)
            .map(|number| {
                let (way, token) = (way.clone(), tokens[number / OF_TOKEN].clone());
                let is_silent = number < SILENT;
                let kind = if is_silent { Kind::View } else { Kind::of(number) };
                tokio::spawn(async move { (kind, way.ask(kind.path(), &token, !is_silent).await) })
            })
            .collect();
        let mut silent = Vec::new();
        for (number, handle) in asking.into_iter().enumerate() {
            let (kind, answered) = handle.await.unwrap();
            let (mut stream, mut text) = answered.unwrap_or_else(|| panic!("client {number} was closed"));
            assert!(text.starts_with(b"HTTP/1.1 200"), "client {number}: {}", String::from_utf8_lossy(&text));
            if number < SILENT {
                silent.push(stream);
                continue;
            }
            // What there is now is told at once: the first event of a round is another one.
            let is_first = |text: &[u8]| String::from_utf8_lossy(text).contains("event: ");
            while kind != Kind::Journal && !is_first(&text) {
                let mut bytes = [0; 512];
                let count = timeout(PATIENCE, stream.read(&mut bytes)).await.unwrap().unwrap();
                text.extend_from_slice(&bytes[..count]);
            }
            tokio::spawn(follow((stream, Vec::new()), kind, Arc::clone(&round), tell.clone()));
        }
        let now = [http, rights].map(resident_kib);
        let each = |n: usize| now[n].saturating_sub(before[n]) as f64 / CLIENTS as f64;
        println!(
            "{CLIENTS} clients over TLS after {:?}: {:.1} KiB each where HTTP is spoken, {:.1} KiB where it is not",
            begun.elapsed(),
            each(0),
            each(1)
        );
        let mut all_readers = Readers { made_up, round, receiver, readers: CLIENTS - SILENT };

        // Some begin a handshake and stop: the first bytes of a record that says it is longer.
        let mut stalled: Vec<StdTcpStream> = (0..STALLED)
            .map(|_| {
                let mut stream = StdTcpStream::connect(way.address).unwrap();
                stream.set_read_timeout(Some(PATIENCE)).unwrap();
                stream.write_all(&[0x16, 3, 1, 2, 0, 1, 0]).unwrap();
                stream
            })
            .collect();
        let stalled_since = Instant::now();
        // Events that are too long for those that do not read.
        let open_before = descriptors_of(http);
        for _ in 0..2 {
            let took = all_readers.change(true).await;
            println!("all devices changed: the last of {} was told after {:?}", took.len(), took[took.len() - 1]);
        }
        let silent_since = Instant::now();
        let mut used = Vec::new();
        let spent = || [http, rights].map(processor_time).into_iter().sum::<Duration>();
        for _ in 0..ROUNDS {
            let before = spent();
            let took = all_readers.change(false).await;
            let at = |part: usize| took[(took.len() - 1) * part / 100];
            println!("one device changed: told after {:?} (half), {:?} (99 %), {:?} (all)", at(50), at(99), at(100));
            used.push(spent() - before);
        }
        println!("processor time of the page for these: {used:?}");
        assert!(used.iter().any(|used| *used < PROCESSOR_MAX), "{used:?}");

        // All places for streams are taken, and then all places.
        let (mut refused, mut more) = (0, Vec::new());
        for number in 0..180 {
            match way.ask("/events", &tokens[tokens.len() - 1 - number / OF_TOKEN], true).await {
                Some((stream, text)) if text.starts_with(b"HTTP/1.1 200") => more.push(stream),
                Some((_, text)) => {
                    let text = String::from_utf8_lossy(&text);
                    assert!(text.starts_with("HTTP/1.1 503"), "{text}");
                    refused += 1;
                }
                None => refused += 1,
            }
        }
        assert!(more.len() <= 24 + SILENT && refused >= 56, "{} more, {refused} refused", more.len());
        let took = all_readers.change(false).await;
        println!("with {refused} refused: the last was told after {:?}", took[took.len() - 1]);
        let own = StdTcpStream::connect(&page.local).unwrap();
        let request = format!("GET / HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", page.local);
        assert_eq!(send(own, request.as_bytes()).status, 200, "its owner has places of their own");

        for stream in &mut stalled {
            // Closed, or reset.
            assert!(!stream.read(&mut [0; 16]).is_ok_and(|count| count > 0));
        }
        let took = stalled_since.elapsed();
        println!("the last stalled handshake was gone after {took:?}");
        assert!(took < CLOSED_WITHIN, "{took:?}");
        // Those that do not read lose their connections: what they have not read is in their way, so the page's
        // descriptors say it.
        let until = silent_since + CLOSED_WITHIN;
        while descriptors_of(http) + SILENT > open_before + more.len() + STALLED {
            assert!(Instant::now() < until, "{} descriptors, {open_before} before", descriptors_of(http));
            // waits: between two looks for an event
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let took = silent_since.elapsed();
        println!("the last that did not read was gone after {took:?}");
        assert!(took < CLOSED_WITHIN, "{took:?}");
        let took = all_readers.change(false).await;
        println!("without them: the last was told after {:?}", took[took.len() - 1]);
        let grown: u64 = (0..2).map(|n| resident_kib([http, rights][n]).saturating_sub(before[n])).sum();
        println!("{grown} KiB for all of it");
        assert!(grown < CLIENTS as u64 * CLIENT_KIB_MAX, "{grown} KiB for {CLIENTS} clients");
        drop((silent, more));
    });
}
