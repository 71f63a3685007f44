//! How long is a disk quiet whose user goes from one host to another, with a queue of fixed depth pending at a slow
//! store?
//!
//! An exporter and two paired importers, each with an NBD server of farbus, on the loopback; the load is 32 writes of 4
//! KiB at a store that takes 1 ms for each. The *quiet* time is from the order to hold the disk to the first answer at
//! the destination. It is compared with one round trip plus the time that draining the same queue takes without a
//! migration, in the same run. The figures are meaningful in release mode: `cargo test --release -p farbus --test
//! move_quiet -- --nocapture`.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use std::{fs, io};

use farbus::attach::AttachmentEnd;
use farbus::common::socket_place::SocketListener;
use farbus::frontend::StopSignal;
use farbus::frontend::hold::{HoldGrant, HoldHandle};
use farbus::frontend::nbd::{NbdExport, NbdServer};
use farbus::importer::session::connection::LinkedDevice;
use farbus::share::Share;
use farbus::trust::TrustStore;
use farbus_gadgets::keyboard::KeyboardGadget;
use farbus_io_net::link::{Link, LocalListener};
use farbus_io_net::trust::{AcceptedKeys, Grant, HostFolder, LinkProtocol, Peer};
use farbus_model::{BlockMedium, BlockStore, BufferPool, CompletionQueue, Device, StoreError};
use farbus_session::block::{BlockExport, MediumView, MemoryMedium, SparseMemory};
use farbus_session::native::RemoteBlock;
use farbus_session::native::control::{AttachmentClass, AttachmentMode, OpenRequest};
use farbus_session::registry::BlockClass;

const PENDING: u64 = 32;
const BLOCK: usize = 4096;
const STORE_TIME: Duration = Duration::from_millis(1);
const SIZE: u64 = 1 << 20;
const MOVES: usize = 20;
const PATIENCE: Duration = Duration::from_secs(60);
/// The longest migration in the paper (Kwon et al. 2007, section 7.5), whose queue was nearly empty.
const PAPER: Duration = Duration::from_millis(7);
/// The target: this many times what draining takes, and one round trip.
const TIMES_MAX: f64 = 1.5;
/// What a busy machine may add to half of the migrations without failing the test. A migration that waits for a timeout
/// needs more.
const SLACK: Duration = Duration::from_secs(2);

/// A disk that carries out its writes slowly, one after the other.
struct Slow(MemoryMedium);

struct SlowStore(Box<dyn BlockStore>);

impl BlockMedium for Slow {
    fn open(&self) -> Result<Box<dyn BlockStore>, String> {
        Ok(Box::new(SlowStore(self.0.open()?)))
    }

    fn preferred_bytes(&self) -> u32 {
        self.0.preferred_bytes()
    }
}

impl BlockStore for SlowStore {
    fn size_bytes(&self) -> u64 {
        self.0.size_bytes()
    }

    fn is_read_only(&self) -> bool {
        false
    }

    fn read_at(&mut self, offset: u64, to: &mut [u8]) -> Result<(), StoreError> {
        self.0.read_at(offset, to)
    }

    fn write_at(&mut self, offset: u64, from: &[u8]) -> Result<(), StoreError> {
        // waits: the device, disk or peer is that slow: its time is an argument of the test
        thread::sleep(STORE_TIME);
        self.0.write_at(offset, from)
    }

    fn flush(&mut self) -> Result<(), StoreError> {
        self.0.flush()
    }

    fn discard(&mut self, offset: u64, len: u64) -> Result<(), StoreError> {
        self.0.discard(offset, len)
    }

    fn write_zeroes(&mut self, offset: u64, len: u64) -> Result<(), StoreError> {
        self.0.write_zeroes(offset, len)
    }
}

struct Home(PathBuf);

impl Home {
    fn new() -> Self {
        let path = std::env::temp_dir().join(format!("farbus-move-quiet-{}", std::process::id()));
        fs::create_dir(&path).unwrap();
        Self(path)
    }

    fn trust(&self, name: &str) -> TrustStore {
        TrustStore::at(HostFolder::at(self.0.join(name))).unwrap()
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The exporter lets the importer use everything.
fn pair(here: &TrustStore, there: &TrustStore, name: &str) {
    let (fingerprint, allow) = (there.fingerprint(), Grant::of(["all"]));
    let (paired, reserve_high) = ("2007-06-11T00:00:00Z".into(), Grant::default());
    let peer =
        Peer { name: name.into(), fingerprint, address: None, paired, allow, reserve_high, bound: Default::default() };
    here.change(|peers| peers.add(peer)).unwrap().unwrap();
}

/// An importing host: its NBD server, and the handle by which its owner controls it.
struct Host {
    socket: PathBuf,
    hold_handle: HoldHandle,
    stop: StopSignal,
    thread: JoinHandle<AttachmentEnd>,
}

impl Host {
    /// Starts a host that has the disk, or is to inherit it.
    fn start(
        home: &Home,
        number: usize,
        address: &str,
        trust: &TrustStore,
        exporter: &TrustStore,
        inherits: bool,
    ) -> Self {
        let (name, reason) = ("disk".to_owned(), String::new());
        let open =
            OpenRequest { class: AttachmentClass::BLOCK, mode: AttachmentMode::Exclusive, epoch: 0, name, reason };
        let remote = if inherits { RemoteBlock::successor(1, open) } else { RemoteBlock::new(1, open) };
        let (address, trust, theirs) = (address.to_owned(), trust.clone(), exporter.fingerprint());
        let dial = move |_| {
            let link = Link::connect(&address, PATIENCE).map_err(|error| io::Error::other(error.to_string()))?;
            let terms = trust.terms(AcceptedKeys::One(theirs), &[LinkProtocol::Session]);
            terms.connect(link).map(|secured| secured.link).map_err(|error| io::Error::other(error.to_string()))
        };
        let mut done = CompletionQueue::new(BufferPool::new(0));
        let linked = LinkedDevice::open(Box::new(dial), remote, Duration::from_secs(20), &mut done).unwrap();
        assert!(linked.end().is_none(), "{:?}", linked.end());
        let (status, clock) = (linked.status(), linked.clock());
        let socket = home.0.join(format!("{number}.sock"));
        let listener = SocketListener::Local(LocalListener::bind(&socket).unwrap());
        let (name, description, zeroes_fast) = (String::new(), String::new(), false);
        let offer = NbdExport { name, description, device: Box::new(linked), zeroes_fast };
        let server = NbdServer::new(listener, vec![offer], None).unwrap().with_clock(clock).movable(status).unwrap();
        let (hold_handle, stop) = (server.hold_handle().unwrap(), server.stop());
        Self { socket, hold_handle, stop, thread: thread::spawn(move || server.run()) }
    }

    fn client(&self) -> NbdClient {
        let mut stream = UnixStream::connect(&self.socket).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(b"\0\0\0\x03IHAVEOPT\0\0\0\x01\0\0\0\0").unwrap();
        stream.read_exact(&mut [0; 28]).unwrap();
        NbdClient(stream)
    }
}

/// The disk's user.
struct NbdClient(UnixStream);

impl NbdClient {
    fn ask(&mut self, command: u16, cookie: u64, data: &[u8]) {
        let mut bytes = vec![0x25, 0x60, 0x95, 0x13, 0, 0];
        bytes.extend(command.to_be_bytes());
        bytes.extend(cookie.to_be_bytes());
        bytes.extend((cookie * BLOCK as u64).to_be_bytes());
        bytes.extend((BLOCK as u32).to_be_bytes());
        bytes.extend(data);
        self.0.write_all(&bytes).unwrap();
    }

    fn write(&mut self, cookie: u64) {
        self.ask(1, cookie, &[cookie as u8; BLOCK]);
    }

    fn hear(&mut self) -> u64 {
        let mut bytes = [0; 16];
        self.0.read_exact(&mut bytes).unwrap();
        assert_eq!(bytes[..8], [0x67, 0x44, 0x66, 0x98, 0, 0, 0, 0]);
        u64::from_be_bytes(bytes[8..].try_into().unwrap())
    }

    fn read(&mut self, cookie: u64) -> Vec<u8> {
        self.ask(0, cookie, &[]);
        assert_eq!(self.hear(), cookie);
        let mut data = vec![0; BLOCK];
        self.0.read_exact(&mut data).unwrap();
        data
    }

    /// Fills the queue; the first request is answered, so that all others are pending.
    fn load(&mut self) {
        (0..PENDING).for_each(|cookie| self.write(cookie));
        self.hear();
    }

    /// Waits for every pending answer.
    fn hear_all(&mut self) {
        for _ in 1..PENDING {
            self.hear();
        }
    }
}

/// What one migration took.
struct Move {
    drained: Duration,
    round_trip: Duration,
    held: Duration,
    quiet: Duration,
}

fn median(spans: impl Iterator<Item = Duration>) -> Duration {
    let mut spans: Vec<Duration> = spans.collect();
    spans.sort_unstable();
    spans[spans.len() / 2]
}

fn timed<T>(act: impl FnOnce() -> T) -> (T, Duration) {
    let since = Instant::now();
    let value = act();
    (value, since.elapsed())
}

fn go(here: &Host, client: NbdClient, there: &Host, successor: [u8; 32]) -> (NbdClient, Move) {
    let (mut client, mut at_successor) = (client, there.client());
    let round_trip = median((0..21).map(|_| timed(|| client.read(1)).1));
    client.load();
    let (granted, drained) = timed(|| here.hold_handle.hold());
    assert_eq!(granted, Ok(HoldGrant::ToUser));
    client.hear_all();
    here.hold_handle.go_on().unwrap();
    client.load();
    let since = Instant::now();
    assert_eq!(here.hold_handle.hand_over(successor), Ok(HoldGrant::ToUser));
    let held = since.elapsed();
    client.hear_all();
    drop(client);
    at_successor.write(PENDING);
    assert_eq!(at_successor.hear(), PENDING);
    let quiet = since.elapsed();
    for cookie in 0..=PENDING {
        assert_eq!(at_successor.read(cookie), vec![cookie as u8; BLOCK], "what was written is there");
    }
    (at_successor, Move { drained, round_trip, held, quiet })
}

fn exporter() -> Share {
    let share = Share::default();
    let medium = Arc::new(Slow(MemoryMedium::new(SparseMemory::new(SIZE, SIZE))));
    let export = Arc::new(BlockExport::new(medium, MediumView::default(), 1).unwrap());
    let renew = || Ok(Box::new(KeyboardGadget::device()) as Box<dyn Device>);
    let class = BlockClass { export, renew: Box::new(renew) };
    share.add_block("disk", Box::new(KeyboardGadget::device()), class).unwrap();
    share
}

#[test]
fn migrated_disk_has_all_its_writes_and_waits_for_no_timeout() {
    let home = Home::new();
    let [lab3, desk, rack] = ["lab3", "desk", "rack"].map(|name| home.trust(name));
    for (name, host) in [("desk", &desk), ("rack", &rack)] {
        pair(&lab3, host, name);
    }
    let share = exporter();
    let address = share.listen_secure("127.0.0.1:0".parse().unwrap(), lab3.clone()).unwrap().to_string();
    let mut here = Host::start(&home, 0, &address, &desk, &lab3, false);
    let mut client = here.client();
    let mut moves = Vec::new();
    for number in 1..=MOVES {
        let successor = if number % 2 == 1 { &rack } else { &desk };
        let there = Host::start(&home, number, &address, successor, &lab3, true);
        let (goes_on, moved) = go(&here, client, &there, *successor.fingerprint().as_bytes());
        let gone = std::mem::replace(&mut here, there);
        assert!(!matches!(gone.thread.join().unwrap(), AttachmentEnd::Broken(_)));
        client = goes_on;
        moves.push(moved);
    }
    drop(client);
    here.stop.end();
    here.thread.join().unwrap();
    let of = |what: fn(&Move) -> Duration| median(moves.iter().map(what));
    let (drained, round_trip) = (of(|moved| moved.drained), of(|moved| moved.round_trip));
    let (held, quiet) = (of(|moved| moved.held), of(|moved| moved.quiet));
    let longest = moves.iter().map(|moved| moved.quiet).max().unwrap_or_default();
    let target = drained.mul_f64(TIMES_MAX) + round_trip;
    let verdict = if quiet <= target { "PASS" } else { "MISS" };
    println!(
        "{MOVES} moves, {} pending: quiet {quiet:.1?} (longest {longest:.1?}), of it held {held:.1?} and handed over {:.1?}; the same queue \
         drains in {drained:.1?}, a round trip takes {round_trip:.1?}: {:.2} times, target {target:.1?}: {verdict} (the paper: {PAPER:?})",
        PENDING - 1,
        quiet - held,
        quiet.as_secs_f64() / drained.as_secs_f64(),
    );
    assert!(quiet <= target + SLACK, "a move costs more than its queue: {quiet:?}");
}
