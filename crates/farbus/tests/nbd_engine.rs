//! The NBD engine over a device that answers late and out of order, as one on another machine may.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant as Moment};

use farbus::attach::AttachmentEnd;
use farbus::common::socket_place::SocketListener;
use farbus::frontend::StopSignal;
use farbus::frontend::nbd::{ClientBudget, NbdExport, NbdServer};
use farbus::importer::port::DeviceCutter;
use farbus::model::block::MemoryStore;
use farbus::model::limits::NBD_CONNECTIONS_MAX;
use farbus::model::{
    BlockCompletion, BlockDevice, BlockInFlight, BlockInfo, BlockOp, CompletionQueue, Instant, Payload,
    ReadinessSource, StoreDevice,
};
use farbus_io_net::link::{DeviceWaitSource, LocalListener, ThreadWaker};

const SIZE: u64 = 1 << 20;
const PATIENCE: Duration = Duration::from_secs(60);
/// Long enough for a handshake on a busy machine, short enough to wait for in a test.
const HANDSHAKE: Duration = Duration::from_secs(3);

/// How a test controls the device while it is served.
#[derive(Default)]
struct Reins {
    /// Releases the requests that are held.
    is_open: AtomicBool,
    is_gone: AtomicBool,
    /// The operations that were carried out.
    log: Mutex<Vec<BlockOp>>,
    held: AtomicU32,
}

/// Holds its requests until its reins release them, and answers the last first. Reads return the offset's low byte.
struct Slow {
    reins: Arc<Reins>,
    wake: Arc<ThreadWaker>,
    readiness: ReadinessSource,
    /// Requests of this turn, sent at its end.
    unsent: Vec<BlockInFlight>,
    held: Vec<BlockInFlight>,
}

const INFO: BlockInfo = BlockInfo {
    size_bytes: SIZE,
    block_bytes: 1,
    preferred_bytes: 4096,
    request_bytes_max: 64 << 10,
    is_read_only: false,
    trims: true,
};

impl Slow {
    fn let_out(&mut self, done: &mut CompletionQueue<BlockCompletion>) {
        if !self.reins.is_open.load(Ordering::Acquire) {
            return;
        }
        while let Some(request) = self.held.pop() {
            self.reins.log.lock().unwrap().push(request.op);
            let brought = if request.op == BlockOp::Read {
                Payload::from(vec![(request.offset / 4096) as u8; request.length as usize])
            } else {
                Payload::Empty
            };
            done.push(request.answer(brought));
        }
    }
}

impl BlockDevice for Slow {
    fn info(&self) -> &BlockInfo {
        &INFO
    }

    fn submit(&mut self, _: Instant, mut request: BlockInFlight, _: &mut CompletionQueue<BlockCompletion>) {
        request.own_payload();
        self.unsent.push(request);
    }

    fn end_turn(&mut self, _: Instant, done: &mut CompletionQueue<BlockCompletion>) {
        self.reins.held.fetch_add(self.unsent.len() as u32, Ordering::Release);
        self.held.append(&mut self.unsent);
        self.let_out(done);
    }

    fn readiness(&self) -> Option<&ReadinessSource> {
        Some(&self.readiness)
    }

    fn handle_ready(&mut self, _: Instant, done: &mut CompletionQueue<BlockCompletion>) {
        self.wake.clear();
        self.let_out(done);
    }

    fn is_gone(&self) -> bool {
        self.reins.is_gone.load(Ordering::Acquire)
    }
}

struct Served {
    path: PathBuf,
    reins: Arc<Reins>,
    wake: Arc<ThreadWaker>,
    stop: StopSignal,
    thread: JoinHandle<AttachmentEnd>,
}

impl Served {
    fn start() -> Self {
        Self::start_as(|server, _, _| server)
    }

    /// Starts a server with other options, which may control the device.
    fn start_as(options: impl FnOnce(NbdServer, &Arc<Reins>, &Arc<ThreadWaker>) -> NbdServer) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("farbus-nbd-engine-{}-{number}.sock", std::process::id()));
        let (reins, wake) = (Arc::<Reins>::default(), Arc::new(ThreadWaker::new().unwrap()));
        let readiness = DeviceWaitSource::woken(Arc::clone(&wake));
        let device = Slow {
            reins: Arc::clone(&reins),
            wake: Arc::clone(&wake),
            readiness,
            unsent: Vec::new(),
            held: Vec::new(),
        };
        let offer =
            NbdExport { name: "slow".into(), description: String::new(), device: Box::new(device), zeroes_fast: false };
        let listener = SocketListener::Local(LocalListener::bind(&path).unwrap());
        let server = NbdServer::new(listener, vec![offer], None).unwrap().with_handshake_time(HANDSHAKE);
        let server = options(server, &reins, &wake);
        let stop = server.stop();
        let thread = thread::spawn(move || server.run());
        Self { path, reins, wake, stop, thread }
    }

    fn open(&self) {
        self.reins.is_open.store(true, Ordering::Release);
        self.wake.wake();
    }

    fn wait_for_held(&self, count: u32) {
        let since = Moment::now();
        while self.reins.held.load(Ordering::Acquire) < count {
            assert!(since.elapsed() < PATIENCE, "the device was not asked");
            // waits: between two looks for an event
            thread::sleep(Duration::from_millis(1));
        }
    }

    fn client(&self) -> UnixStream {
        let mut stream = UnixStream::connect(&self.path).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(b"\0\0\0\x03IHAVEOPT\0\0\0\x01\0\0\0\0").unwrap();
        let mut greeting = [0; 28];
        stream.read_exact(&mut greeting).unwrap();
        assert_eq!(greeting[18..26], SIZE.to_be_bytes());
        stream
    }
}

fn request(command: u16, cookie: u64, offset: u64, length: u32) -> Vec<u8> {
    let mut bytes = vec![0x25, 0x60, 0x95, 0x13, 0, 0];
    bytes.extend(command.to_be_bytes());
    bytes.extend(cookie.to_be_bytes());
    bytes.extend(offset.to_be_bytes());
    bytes.extend(length.to_be_bytes());
    bytes
}

/// The next reply's cookie; the reply has to be a success.
fn reply(stream: &mut UnixStream) -> u64 {
    let mut bytes = [0; 16];
    stream.read_exact(&mut bytes).unwrap();
    assert_eq!(bytes[..8], [0x67, 0x44, 0x66, 0x98, 0, 0, 0, 0]);
    u64::from_be_bytes(bytes[8..].try_into().unwrap())
}

#[test]
fn answers_reach_their_clients_in_any_order() {
    let served = Served::start();
    let mut clients = [served.client(), served.client()];
    for (at, client) in clients.iter_mut().enumerate() {
        for cookie in 0..3 {
            let offset = 4096 * (10 * at as u64 + cookie);
            client.write_all(&request(0, cookie, offset, 512)).unwrap();
        }
    }
    served.wait_for_held(6);
    served.open();
    for (at, client) in clients.iter_mut().enumerate() {
        let mut seen = Vec::new();
        for _ in 0..3 {
            let cookie = reply(client);
            let mut data = [0; 512];
            client.read_exact(&mut data).unwrap();
            assert_eq!(data, [10 * at as u8 + cookie as u8; 512]);
            seen.push(cookie);
        }
        seen.sort_unstable();
        assert_eq!(seen, [0, 1, 2]);
    }
    served.stop.end();
    assert!(matches!(served.thread.join().unwrap(), AttachmentEnd::Requested));
}

#[test]
fn a_client_that_leaves_with_requests_under_way_disturbs_nobody() {
    let served = Served::start();
    let (mut leaves, mut stays) = (served.client(), served.client());
    leaves.write_all(&request(0, 1, 0, 64 << 10)).unwrap();
    stays.write_all(&request(0, 2, 8192, 4)).unwrap();
    served.wait_for_held(2);
    drop(leaves);
    // waits: the server learns that a client has left, or does so later: the answers are the same
    thread::sleep(Duration::from_millis(50));
    served.open();
    assert_eq!(reply(&mut stays), 2);
    let mut data = [0; 4];
    stays.read_exact(&mut data).unwrap();
    assert_eq!(data, [2; 4]);
    served.stop.end();
    assert!(matches!(served.thread.join().unwrap(), AttachmentEnd::Requested));
    assert!(!served.path.exists());
}

#[test]
fn disconnecting_nbd_client_still_gets_its_pending_answers() {
    let served = Served::start();
    let mut clients = [served.client(), served.client()];
    for client in &mut clients {
        client.write_all(&request(0, 1, 4096, 8)).unwrap();
        client.write_all(&request(2, 2, 0, 0)).unwrap();
    }
    // One shuts its sending side down, the other just waits, longer than a handshake may take.
    clients[0].shutdown(std::net::Shutdown::Write).unwrap();
    served.wait_for_held(2);
    // waits: longer than a handshake may take: then a client that has greeted must not be closed
    thread::sleep(HANDSHAKE + Duration::from_millis(100));
    served.open();
    for client in &mut clients {
        assert_eq!(reply(client), 1);
        let mut rest = Vec::new();
        client.read_to_end(&mut rest).unwrap();
        assert_eq!(rest, [1; 8], "and then it ends");
    }
    served.stop.end();
    served.thread.join().unwrap();
}

#[test]
fn server_that_ends_answers_pending_requests_and_flushes() {
    let served = Served::start();
    let mut client = served.client();
    let mut bytes = request(1, 7, 0, 5);
    bytes.extend(b"hello");
    client.write_all(&bytes).unwrap();
    served.wait_for_held(1);
    served.stop.end();
    // waits: nothing must happen meanwhile; a slow machine only shows less
    thread::sleep(Duration::from_millis(50));
    assert!(!served.thread.is_finished(), "it waits for the device");
    served.open();
    assert_eq!(reply(&mut client), 7);
    assert_eq!(client.read(&mut [0; 1]).unwrap(), 0);
    assert!(matches!(served.thread.join().unwrap(), AttachmentEnd::Requested));
    assert_eq!(*served.reins.log.lock().unwrap(), [BlockOp::Write, BlockOp::Flush]);
}

#[test]
fn client_beyond_the_connection_limit_waits_until_another_leaves() {
    let served = Served::start();
    served.open();
    let mut clients: Vec<UnixStream> = (0..NBD_CONNECTIONS_MAX).map(|_| served.client()).collect();
    let mut late = UnixStream::connect(&served.path).unwrap();
    late.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    let mut greeting = [0; 18];
    assert!(late.read_exact(&mut greeting).is_err(), "it is not let in");
    clients[3].write_all(&request(3, 1, 0, 0)).unwrap();
    assert_eq!(reply(&mut clients[3]), 1, "those who are in are served");
    drop(clients.remove(5));
    late.set_read_timeout(Some(PATIENCE)).unwrap();
    late.read_exact(&mut greeting).unwrap();
    served.stop.end();
    served.thread.join().unwrap();
}

#[test]
fn client_that_chooses_no_export_is_cut_off_and_one_that_did_may_be_silent() {
    let served = Served::start();
    served.open();
    let mut silent = UnixStream::connect(&served.path).unwrap();
    silent.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut client = served.client();
    let since = Moment::now();
    let mut heard = Vec::new();
    silent.read_to_end(&mut heard).unwrap();
    assert_eq!((heard.len(), since.elapsed() > HANDSHAKE / 2), (18, true), "greeted, waited for, cut off");
    client.write_all(&request(3, 1, 0, 0)).unwrap();
    assert_eq!(reply(&mut client), 1);
    served.stop.end();
    served.thread.join().unwrap();
}

/// Takes its time for every request, and so holds up the whole engine.
struct Plodding(Arc<AtomicU32>);

impl BlockDevice for Plodding {
    fn info(&self) -> &BlockInfo {
        &INFO
    }

    fn submit(&mut self, _: Instant, request: BlockInFlight, done: &mut CompletionQueue<BlockCompletion>) {
        // waits: the device, disk or peer is that slow: its time is an argument of the test
        thread::sleep(Duration::from_millis(5));
        self.0.fetch_add(1, Ordering::Release);
        done.push(request.answer(Payload::Empty));
    }
}

#[test]
fn busy_client_of_a_slow_device_does_not_delay_the_others() {
    let path = std::env::temp_dir().join(format!("farbus-nbd-plodding-{}.sock", std::process::id()));
    let count = Arc::<AtomicU32>::default();
    let offer = NbdExport {
        name: String::new(),
        description: String::new(),
        device: Box::new(Plodding(Arc::clone(&count))),
        zeroes_fast: false,
    };
    let server = NbdServer::new(SocketListener::Local(LocalListener::bind(&path).unwrap()), vec![offer], None).unwrap();
    let stop = server.stop();
    let thread = thread::spawn(move || server.run());
    let connect = || {
        let mut stream = UnixStream::connect(&path).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(b"\0\0\0\x03IHAVEOPT\0\0\0\x01\0\0\0\0").unwrap();
        stream.read_exact(&mut [0; 28]).unwrap();
        stream
    };
    let (mut much, mut little) = (connect(), connect());
    let flood: Vec<u8> = (0..1000).flat_map(|cookie| request(3, cookie, 0, 0)).collect();
    much.write_all(&flood).unwrap();
    while count.load(Ordering::Acquire) == 0 {
        // waits: between two looks for an event
        thread::sleep(Duration::from_millis(1));
    }
    little.write_all(&request(3, 7, 0, 0)).unwrap();
    assert_eq!(reply(&mut little), 7);
    let before = count.load(Ordering::Acquire);
    assert!(before < 500, "{before} of 1000 came first");
    stop.end();
    assert!(matches!(thread.join().unwrap(), AttachmentEnd::Requested));
    let all = count.load(Ordering::Acquire);
    assert!(all < 1000, "nor the thread that ends it: {all} were carried out");
}

#[test]
fn client_that_sends_ahead_of_a_slow_device_is_not_cut_off() {
    let path = std::env::temp_dir().join(format!("farbus-nbd-ahead-{}.sock", std::process::id()));
    let device = Box::new(Plodding(Arc::default()));
    let offer = NbdExport { name: String::new(), description: String::new(), device, zeroes_fast: false };
    let server = NbdServer::new(SocketListener::Local(LocalListener::bind(&path).unwrap()), vec![offer], None).unwrap();
    let stop = server.stop();
    let thread = thread::spawn(move || server.run());
    let mut stream = UnixStream::connect(&path).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(b"\0\0\0\x03IHAVEOPT\0\0\0\x01\0\0\0\0").unwrap();
    stream.read_exact(&mut [0; 28]).unwrap();
    // Each turn ends in the middle of the bytes that have arrived, whatever the sizes.
    let sizes = (0..120u32).map(|n| if n % 3 == 0 { 64 << 10 } else { 512 * (1 + n % 7) });
    let mut ahead = stream.try_clone().unwrap();
    let writes: Vec<u8> = sizes
        .enumerate()
        .flat_map(|(n, size)| [request(1, n as u64, 0, size), vec![0; size as usize]].concat())
        .collect();
    let sender = thread::spawn(move || ahead.write_all(&writes).unwrap());
    let answered: Vec<u64> = (0..120).map(|_| reply(&mut stream)).collect();
    assert!(answered.into_iter().eq(0..120), "all, in order: the device answers at once");
    sender.join().unwrap();
    stop.end();
    assert!(matches!(thread.join().unwrap(), AttachmentEnd::Requested));
}

#[test]
fn device_that_does_not_become_durable_in_time_is_cut_off_and_loses_no_request() {
    let served = Served::start_as(|server, reins, wake| {
        let (reins, wake) = (Arc::clone(reins), Arc::clone(wake));
        let cutter = DeviceCutter::new(move || {
            reins.is_open.store(true, Ordering::Release);
            wake.wake();
        });
        server.with_flush_time(Duration::from_millis(50)).cut_by(cutter)
    });
    drop(served.client());
    served.stop.end();
    assert!(matches!(served.thread.join().unwrap(), AttachmentEnd::Undurable(why) if why.contains("in time")));
    assert_eq!(*served.reins.log.lock().unwrap(), [BlockOp::Flush]);
}

#[test]
fn a_medium_that_goes_ends_the_server() {
    let served = Served::start();
    let mut client = served.client();
    served.reins.is_gone.store(true, Ordering::Release);
    served.wake.wake();
    assert!(matches!(served.thread.join().unwrap(), AttachmentEnd::Lost(why) if why.contains("gone")));
    assert_eq!(client.read(&mut [0; 1]).unwrap(), 0);
}

/// A server of 64 MiB in memory whose clients draw on this budget.
struct Plain {
    path: PathBuf,
    stop: StopSignal,
    thread: JoinHandle<AttachmentEnd>,
}

impl Plain {
    fn start(budget: &ClientBudget) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("farbus-nbd-plain-{}-{number}.sock", std::process::id()));
        let device = Box::new(StoreDevice::new(MemoryStore::new(vec![7; 64 << 20])));
        let offer = NbdExport { name: String::new(), description: String::new(), device, zeroes_fast: false };
        let listener = SocketListener::Local(LocalListener::bind(&path).unwrap());
        let server = NbdServer::new(listener, vec![offer], None).unwrap().with_budget(budget.clone());
        let stop = server.stop();
        let thread = thread::spawn(move || server.run());
        Self { path, stop, thread }
    }

    fn client(&self) -> UnixStream {
        let mut stream = UnixStream::connect(&self.path).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(b"\0\0\0\x03IHAVEOPT\0\0\0\x01\0\0\0\0").unwrap();
        stream.read_exact(&mut [0; 28]).unwrap();
        stream
    }

    /// A client that requests this many bytes again and again, and reads no answer.
    fn hoarder(&self, length: u32) -> UnixStream {
        let mut stream = self.client();
        let flood: Vec<u8> = (0..200).flat_map(|cookie| request(0, cookie, 0, length)).collect();
        stream.write_all(&flood).unwrap();
        stream
    }

    fn end(self) {
        self.stop.end();
        assert!(matches!(self.thread.join().unwrap(), AttachmentEnd::Requested));
    }
}

fn read(stream: &mut UnixStream, cookie: u64, length: u32) {
    stream.write_all(&request(0, cookie, 0, length)).unwrap();
    assert_eq!(reply(stream), cookie);
    let mut data = vec![0; length as usize];
    stream.read_exact(&mut data).unwrap();
    assert!(data.iter().all(|byte| *byte == 7));
}

fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let since = Moment::now();
    while !is_so() {
        assert!(since.elapsed() < PATIENCE, "{what}");
        // waits: between two looks for an event
        thread::sleep(Duration::from_millis(1));
    }
}

/// How long a client may take no answers in these tests while another waits.
const STUCK: Duration = Duration::from_millis(500);

#[test]
fn stuck_clients_lose_their_part_of_the_shared_budget_to_waiting_clients() {
    const MAX: usize = 24 << 20;
    let budget = ClientBudget::new(MAX, STUCK);
    let (first, second) = (Plain::start(&budget), Plain::start(&budget));
    let mut hoarders: Vec<UnixStream> = (0..2).map(|_| first.hoarder(8 << 20)).collect();
    wait_until("most of it is taken", || budget.used() > 16 << 20);
    // Requests of ordinary size are served, at both servers.
    for server in [&first, &second] {
        let mut client = server.client();
        (0..100).for_each(|cookie| read(&mut client, cookie, 64 << 10));
    }
    // No client waits for memory: a slow reader may stay.
    // waits: longer than the time after which a client is stuck that does not read
    thread::sleep(2 * STUCK);
    // More than a client's own share: the memory comes from stuck clients, even from those of another server.
    let mut client = second.client();
    read(&mut client, 1, 16 << 20);
    let ends = hoarders.iter_mut().map(|hoarder| hoarder.read_to_end(&mut Vec::new()).is_ok()).count();
    assert_eq!(ends, 2);
    assert!(budget.used() <= MAX);
    wait_until("what is kept for requests to come goes back when none come", || budget.used() <= 1 << 20);
    first.end();
    second.end();
    assert_eq!(budget.used(), 0);
}

#[test]
fn a_write_that_is_announced_and_not_sent_holds_little_and_only_as_long_as_nobody_waits_for_it() {
    let budget = ClientBudget::new(24 << 20, STUCK);
    let server = Plain::start(&budget);
    let mut announcers: Vec<UnixStream> = (0..6).map(|_| server.client()).collect();
    for announcer in &mut announcers {
        announcer.write_all(&request(1, 1, 0, 32 << 20)).unwrap();
    }
    // waits: nothing must happen meanwhile; a slow machine only shows less
    thread::sleep(Duration::from_millis(100));
    assert!(budget.used() <= 24 << 20, "{}", budget.used());
    // Most of a write's payload, but not all.
    for announcer in &mut announcers {
        announcer.set_write_timeout(Some(Duration::from_millis(200))).unwrap();
        let _ = announcer.write_all(&vec![1; 1900 << 10]);
    }
    let mut client = server.client();
    read(&mut client, 1, 20 << 20);
    for announcer in &mut announcers {
        let _ = announcer.read_to_end(&mut Vec::new());
    }
    read(&mut client, 2, 20 << 20);
    server.end();
}

#[test]
fn a_client_that_reads_nothing_leaves_its_place_to_one_that_waits_for_it() {
    let budget = ClientBudget::new(256 << 20, STUCK);
    let server = Plain::start(&budget);
    let hoarders: Vec<UnixStream> = (0..NBD_CONNECTIONS_MAX).map(|_| server.hoarder(1 << 20)).collect();
    let mut late = server.client();
    read(&mut late, 1, 1 << 20);
    drop(hoarders);
    server.end();
}
