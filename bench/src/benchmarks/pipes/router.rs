//! Messages of 1 KiB from board to board over a router and back (Tables 2 to 4, Figure 10), over loopback.
//!
//! The router takes a device of each board in a session and forwards between them by tuned pipes; a device is a bulk
//! pair behind which its board reads and writes, and each transfer over it takes one interval of the board's own bus
//! and `c` of the router's, as in Table 2. All times of the paper are [`SCALE`] times as long here: its threads run
//! each 250 us, which a kernel that was not made for it does not keep on processors of which a hypervisor has a part.
//! What is compared is each round trip with the bound that the pipes themselves say.

use std::{
    collections::VecDeque,
    net::TcpListener,
    sync::{
        Arc, Barrier,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use anyhow::{Result, anyhow};
use farbus::{
    gadgets::{EmulatedDevice, FunctionContext, GadgetFunction, InTransferAnswer, OutTransferAnswer},
    host::RemoteDevice,
    importer::session::bare::{
        self, BoottimeClock,
        native::{
            ExporterServices, RemoteUsb, ServedExport, ServedUsb,
            control::{AttachmentClass, AttachmentEndNotice as Refusal, AttachmentMode, OpenRequest},
        },
    },
    importer::session::connection::LinkedDevice,
    model::{
        BufferPool, CompletionQueue, Device, DeviceDefinition, EpAddr, Instant, Payload, SessionLimits,
        TransferDirection, UsbSpeed, definition::InterfaceDefinition,
    },
};
use farbus_pipe::{
    BlockingPort, EndpointLayout, PathDelay, PathSegment, PiLock, Pipe, PipeEnd, PipeEndpoint, PipeFlow, PipeInlet,
    PipeJobContext, PipeQuality, ProcessorPool, ProcessorShare, ReceiverTerms, SchedulingStrictness,
    SessionPolledDevice, VcpuReserve, job::JobSchedule, scheduling::now_ns, tpipe, worst_ns,
};

use super::{
    canary::{WatchedLoad, is_void},
    words::{NAME, once},
};
use crate::{
    lab::BenchmarkEnvironment,
    peers::session::record,
    report::BenchmarkFinding,
    stats::SpeedTarget,
    svg::{ChartLine, ChartPanel, LineChart},
};

/// The factor by which all times are longer than the paper's.
const SCALE: u64 = 16;
const INTERVAL_NS: u64 = 125_000 * SCALE;
const PERIOD_NS: u64 = 250_000 * SCALE;
const BYTES: usize = 1024;
/// Jobs of a board between two messages.
const JOBS_BETWEEN: u64 = 5;
/// The reserve of a board's thread, a twentieth of each period.
const BOARD: VcpuReserve = VcpuReserve { budget_ns: PERIOD_NS / 20, period_ns: PERIOD_NS };
const ENGINE: VcpuReserve = VcpuReserve { budget_ns: INTERVAL_NS / 10, period_ns: INTERVAL_NS };
const RECEIVER_PPM: u32 = 80_000;
/// Messages of the router's pipes: four each period.
const BUFFER: u64 = 4;
/// Points of a line in the plot.
const POINTS: usize = 150;
/// Table 2: `c`, and the worst round trip in microseconds.
const SCENARIOS: [(u64, u64); 5] = [(1, 4_000), (2, 4_500), (4, 5_500), (8, 7_500), (16, 11_500)];

type BoardMessage = [u8; BYTES];

/// The messages between a board and its device, in each direction, with the time at which each is through.
type MessageQueues = Arc<PiLock<[VecDeque<(u64, BoardMessage)>; 2]>>;
const UP: usize = 0;
const DOWN: usize = 1;

/// The device of a board.
struct BoardDevice {
    mail: MessageQueues,
    transfer_ns: u64,
    next: Instant,
}

impl BoardDevice {
    fn device(mail: MessageQueues, transfer_ns: u64) -> EmulatedDevice<Self> {
        let definition = DeviceDefinition::new(0x1209, 0x0001)
            .speed(UsbSpeed::High)
            .names("farbus", "post", "0")
            .interface(InterfaceDefinition::new(0xff, 0, 0).bulk_pair(1));
        EmulatedDevice::new(&definition, Self { mail, transfer_ns, next: Instant::ZERO })
    }
}

impl GadgetFunction for BoardDevice {
    fn send(&mut self, _endpoint: EpAddr, room: usize, cx: &mut FunctionContext<'_>) -> InTransferAnswer {
        let mut mail = self.mail.lock();
        match mail[UP].front() {
            Some((through_ns, _)) if *through_ns <= now_ns() && room >= BYTES => {
                let mut bytes = cx.pool.take(BYTES);
                if let Some((_, message)) = mail[UP].pop_front() {
                    bytes.copy_from_slice(&message);
                }
                InTransferAnswer::Data(bytes.into())
            }
            _ => InTransferAnswer::Nak,
        }
    }

    fn receive(&mut self, _endpoint: EpAddr, payload: &Payload, _cx: &mut FunctionContext<'_>) -> OutTransferAnswer {
        let mut message = [0; BYTES];
        if payload.len() != BYTES {
            return OutTransferAnswer::Stall;
        }
        payload.copy_to(&mut message);
        self.mail.lock()[DOWN].push_back((now_ns() + self.transfer_ns, message));
        OutTransferAnswer::Accepted
    }

    fn poll_timeout(&self) -> Option<Instant> {
        Some(self.next)
    }

    fn handle_timeout(&mut self, cx: &mut FunctionContext<'_>) {
        // The bus's next interval; one that was slept through is over.
        let interval = Duration::from_nanos(INTERVAL_NS);
        self.next = self.next + interval;
        if self.next <= cx.now {
            self.next = cx.now + interval;
        }
    }
}

struct BoardServices(Option<EmulatedDevice<BoardDevice>>);

impl ExporterServices for BoardServices {
    fn open(
        &mut self,
        _now: Instant,
        number: u16,
        _open: &OpenRequest,
    ) -> Result<(u64, Box<dyn ServedExport>), Refusal> {
        let device = self.0.take().expect("the router opens it once");
        Ok((1, Box::new(ServedUsb::new(number, device, record(), SessionLimits::DEFAULT, |_, _| {}))))
    }
}

/// A host whose device is shared until the router ends.
struct BoardHost {
    mail: MessageQueues,
    address: String,
    thread: JoinHandle<()>,
}

impl BoardHost {
    fn begin(processors: &ProcessorPool, transfer_ns: u64) -> Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0))?;
        let address = listener.local_addr()?.to_string();
        let mail = MessageQueues::default();
        let mut shelf = BoardServices(Some(BoardDevice::device(Arc::clone(&mail), transfer_ns)));
        let share = processors.share(ENGINE)?;
        let thread = thread::spawn(move || {
            let served = listener.accept().and_then(|(stream, _)| {
                let link = bare::link(stream)?;
                let _reservation = share.reserve(ENGINE);
                bare::serve(&link, BoottimeClock::start(), &mut shelf)
            });
            if let Err(error) = served {
                eprintln!("a board's session ended: {error}");
            }
        });
        Ok(Self { mail, address, thread })
    }

    /// The device as the router attaches it.
    fn taken(&self, processors: &ProcessorPool) -> Result<Arc<PipeEndpoint>> {
        let mut done = CompletionQueue::new(BufferPool::new(0));
        let open = OpenRequest {
            class: AttachmentClass::USB,
            mode: AttachmentMode::Exclusive,
            epoch: 0,
            name: "post".into(),
            reason: String::new(),
        };
        let remote = RemoteUsb::new(1, open);
        let linked = LinkedDevice::open(bare::dial(self.address.clone()), remote, Duration::from_secs(1), &mut done)?;
        let (speed, descriptors) = (linked.speed(), linked.descriptors().clone());
        let way = BlockingPort::new(Box::new(SessionPolledDevice::new(linked)));
        let device = RemoteDevice::enumerated(way, speed, descriptors)?;
        let shape = EndpointLayout::bulk(&device, speed, BYTES).ok_or_else(|| anyhow!("a post has a bulk pair"))?;
        // On loopback, sent data has arrived when the sender's call returns: the engines' own time is accounted for
        // separately.
        let terms = ReceiverTerms { share_ppm: RECEIVER_PPM, ..ReceiverTerms::there(PathDelay::at_worst(0)) };
        Ok(PipeEndpoint::open(device.into_port().into_way(), shape, processors, terms).map(Arc::new)?)
    }
}

fn quality() -> PipeQuality {
    let bits = BUFFER * BYTES as u64 * 8;
    PipeQuality {
        latency_ns: PERIOD_NS,
        throughput_bits: bits,
        buffer_bytes: BUFFER * BYTES as u64,
        execution_ns: PERIOD_NS / 20,
    }
}

/// The pipes from one board to the other.
struct BoardRoute {
    pipe: Pipe<PipeInlet>,
    bound_ns: u64,
}

fn road(from: &Arc<PipeEndpoint>, to: &Arc<PipeEndpoint>, transfer_ns: u64) -> Result<BoardRoute> {
    let inlet = PipeInlet::open(to, 0, &quality())?;
    let after = inlet.stages();
    let forward = |turn: &mut PipeJobContext<'_>, inlet: &mut PipeInlet| {
        // A message without space is lost, and its round trip never ends: that is counted.
        turn.messages().for_each(|message| _ = inlet.put(message));
        PipeFlow::On
    };
    let pipe = tpipe(from, PipeEnd { channel: 0, direction: TransferDirection::In }, quality(), forward, inlet)?;
    // A thread that looks once a period is late by at most two periods, and one that is woken by its budget.
    let [engine, board] = [ENGINE, BOARD].map(|reserve| PathSegment::Server { period_ns: reserve.period_ns });
    let transfer = PathSegment::Network { delay_ns: transfer_ns };
    let device = [transfer, engine, engine];
    let stages = [&device[..], &pipe.stages(), &after, &device, &[board, board]].concat();
    Ok(BoardRoute { pipe, bound_ns: worst_ns(&stages) })
}

/// The result of one scenario.
struct RouterOutcome {
    bound_ns: u64,
    /// Each round trip: when it ended, and how long it took.
    trips: Vec<(u64, u64)>,
    sent: u64,
    void: usize,
    policy: String,
}

pub fn run(lab: &BenchmarkEnvironment) -> Result<Vec<BenchmarkFinding>> {
    let seconds = if lab.quick { 2 } else { 12 };
    let (mut findings, mut lines) = (Vec::new(), Vec::new());
    for (at, (intervals, paper_us)) in SCENARIOS.into_iter().enumerate() {
        let outcome = play(intervals, seconds)?;
        let mut times: Vec<u64> = outcome.trips.iter().map(|(_, long_ns)| *long_ns).collect();
        times.sort_unstable();
        let [least, middle, most] = [0, times.len() / 2, times.len().saturating_sub(1)]
            .map(|at| times.get(at).copied().unwrap_or(0) as f64 / 1e6);
        let bound = ("bound of the pipes", once(outcome.bound_ns as f64 / 1e6, "ms"));
        let scaled_ms = (paper_us * SCALE) as f64 / 1e3;
        let detail = format!(
            "{} round trips of {} that were sent, {least:.1} to {most:.1} ms, median {middle:.1}; {} void; {} above the bound; {}; Table 2's bound, {SCALE} \
             times as long: {scaled_ms:.0} ms",
            times.len(),
            outcome.sent,
            outcome.void,
            times.iter().filter(|&&time| time > outcome.bound_ns).count(),
            outcome.policy,
        );
        let what = format!("Table 2, scenario {}: longest round trip over two boards and a router", at + 1);
        findings.push(
            BenchmarkFinding::ratio(NAME, what, once(most, "ms"), bound, SpeedTarget::AtMost(1.0)).with_detail(detail),
        );
        let share = |(at, time): (usize, &u64)| (*time as f64 / 1e6, (at + 1) as f64 / times.len() as f64);
        // The longest one is always shown.
        let step = times.len().div_ceil(POINTS).max(1);
        let shown = times.iter().enumerate().skip((times.len() + step - 1) % step).step_by(step).map(share);
        lines.push(ChartLine { name: format!("scenario {}", at + 1), points: shown.collect() });
        let bound_ms = outcome.bound_ns as f64 / 1e6;
        if at + 1 == SCENARIOS.len() {
            lines.push(ChartLine { name: "bound of the last".into(), points: vec![(bound_ms, 0.0), (bound_ms, 1.0)] });
        }
    }
    let chart = LineChart {
        title: format!("Round trips of 1 KiB over a router, times {SCALE}, all processors busy (Figure 10)"),
        across: "ms".into(),
        panels: vec![ChartPanel { up: "share not longer".into(), is_logarithmic: false, lines }],
    };
    lab.plot("pipes-round-trips", &chart.render())?;
    Ok(findings)
}

fn play(intervals: u64, seconds: u64) -> Result<RouterOutcome> {
    let transfer_ns = (1 + intervals) * INTERVAL_NS;
    let processors = ProcessorPool::anywhere(SchedulingStrictness::Deadline);
    let boards = [BoardHost::begin(&processors, transfer_ns)?, BoardHost::begin(&processors, transfer_ns)?];
    let ends = [boards[0].taken(&processors)?, boards[1].taken(&processors)?];
    let roads = [road(&ends[0], &ends[1], transfer_ns)?, road(&ends[1], &ends[0], transfer_ns)?];
    let bound_ns = roads.iter().map(|road| road.bound_ns).sum();
    let is_over = Arc::new(AtomicBool::new(false));
    let busy = WatchedLoad::begin()?;
    let ready = Arc::new(Barrier::new(2));
    let share = processors.share(BOARD)?;
    let far = echo(Arc::clone(&boards[1].mail), transfer_ns, share, Arc::clone(&is_over), Arc::clone(&ready));
    let (mail, share, stop) = (Arc::clone(&boards[0].mail), processors.share(BOARD)?, Arc::clone(&is_over));
    let near = thread::spawn(move || ask(&mail, transfer_ns, &share, &stop, &ready, seconds));
    thread::sleep(Duration::from_secs(seconds));
    is_over.store(true, Ordering::Release);
    let (trips, sent) = near.join().map_err(|_| anyhow!("the first board panicked"))?;
    far.join().map_err(|_| anyhow!("the second board panicked"))?;
    let gaps = busy.gaps();
    drop(busy);
    let policy = ends[0].granted().policy;
    for BoardRoute { pipe, .. } in roads {
        drop(pipe);
    }
    drop(ends);
    for board in boards {
        board.thread.join().map_err(|_| anyhow!("a board panicked"))?;
    }
    let all = trips.len();
    let is_valid = |(end_ns, long_ns): &(u64, u64)| !is_void(&gaps, end_ns - long_ns, *end_ns);
    let trips: Vec<_> = trips.into_iter().filter(is_valid).collect();
    let void = all - trips.len();
    Ok(RouterOutcome { bound_ns, trips, sent, void, policy })
}

/// The first board: sends messages, and measures the time until each is back.
fn ask(
    mail: &MessageQueues,
    transfer_ns: u64,
    share: &ProcessorShare,
    is_over: &AtomicBool,
    ready: &Barrier,
    seconds: u64,
) -> (Vec<(u64, u64)>, u64) {
    let _reservation = share.reserve(BOARD);
    // Until it has its reserve, a thread starts when the machine lets it.
    ready.wait();
    let mut trips = Vec::with_capacity((seconds * 1_000_000_000 / PERIOD_NS) as usize);
    let (mut roster, mut jobs, mut sent) = (JobSchedule::new(BOARD), 0, 0);
    while !is_over.load(Ordering::Acquire) {
        let job = roster.next_job();
        let mut mail = mail.lock();
        while mail[DOWN].front().is_some_and(|(through_ns, _)| *through_ns <= job.now_ns) {
            let Some((_, message)) = mail[DOWN].pop_front() else { break };
            let begun = message.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
            let now = now_ns();
            trips.push((now, now - begun));
        }
        if jobs % JOBS_BETWEEN == 0 {
            let (mut message, now) = ([0; BYTES], now_ns());
            message[..8].copy_from_slice(&now.to_le_bytes());
            mail[UP].push_back((now + transfer_ns, message));
            sent += 1;
        }
        drop(mail);
        jobs += 1;
        roster.end(job);
    }
    (trips, sent)
}

/// The second board: sends back what it receives.
fn echo(
    mail: MessageQueues,
    transfer_ns: u64,
    share: ProcessorShare,
    is_over: Arc<AtomicBool>,
    ready: Arc<Barrier>,
) -> JoinHandle<()> {
    thread::spawn(move || {
        let _reservation = share.reserve(BOARD);
        ready.wait();
        let mut roster = JobSchedule::new(BOARD);
        while !is_over.load(Ordering::Acquire) {
            let job = roster.next_job();
            let mut mail = mail.lock();
            while mail[DOWN].front().is_some_and(|(through_ns, _)| *through_ns <= job.now_ns) {
                let Some((_, message)) = mail[DOWN].pop_front() else { break };
                mail[UP].push_back((now_ns() + transfer_ns, message));
            }
            drop(mail);
            roster.end(job);
        }
    })
}
