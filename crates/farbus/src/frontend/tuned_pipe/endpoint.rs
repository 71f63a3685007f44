//! A device's endpoints, and the thread that keeps them moving: it takes what came, sorts it to the pipes, sends what
//! they have, and sleeps. No other thread touches the device, and it waits for nothing but its own next period.
//!
//! **Its period.** A periodic thread comes twice within two periods at the worst, first as early and then as late as
//! may be: so its period is half the time in which the device's room fills at the rates of all pipes, and no longer
//! than any of theirs, whose deadline it inherits (as the paper's bottom half inherits the priority of the task that it
//! works for). Its budget is a share of that period.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{self, JoinHandle};

use farbus_host::{IdSource, PortError};
use farbus_io::sys::pi_lock::PiLock;
use farbus_model::{Direction, Done, EpAddr, Setup, Status, Urb};
use farbus_realtime::pipe::{Attributes, Quality, Stage, fill_ns};
use farbus_realtime::vcpu::Reserve;
use serde::Serialize;

use super::codec::{Codec, Sorted};
use super::error::PipeError;
use super::job::{Jobs, Roster};
use super::processors::{ProcessorShare, Processors, said};
use super::ring::Ring;
use super::way::Way;

/// The shortest period that the kernel takes for a deadline (`sysctl_sched_dl_period_min`), and the longest.
pub const PERIOD_NS_MIN: u64 = 100_000;
/// The same.
pub const PERIOD_NS_MAX: u64 = (1 << 22) * 1000;
/// For so long a processor may stand still, by its hypervisor or its firmware, without that any thread on it sees why:
/// what is promised allows for it. Who measures a promise watches the processors, and says nothing of the time around a
/// longer gap (the benchmark's canaries).
pub const STILL_NS_MAX: u64 = 5_000_000;
/// The longest that the receiving thread sleeps if nothing asks it to come sooner.
const IDLE_PERIOD_NS: u64 = 10_000_000;
/// Channels of a device, at the most.
pub const CHANNELS_MAX: usize = 64;
/// Reads and writes that are under way at once, at the most.
const READS_MAX: usize = 64;
const WRITES_MAX: usize = 64;
const PPM: u64 = 1_000_000;

/// What a device's endpoints are like.
pub struct Shape {
    /// Where data come from.
    pub input: Option<EpAddr>,
    /// Where they go.
    pub output: Option<EpAddr>,
    /// Of one read.
    pub read_bytes: u32,
    /// Each has a pipe each way at the most.
    pub channels: usize,
    /// How they share the endpoints.
    pub codec: Box<dyn Codec>,
    /// Of each channel, what turns it on when it has its first pipe: before that it would fill the device's room for
    /// nobody.
    pub begin: Vec<Vec<(Setup, Vec<u8>)>>,
    /// What it can do, each way.
    pub attributes: Attributes,
    /// Messages that the device keeps while nobody fetches them, and loses then; none if it makes its source wait.
    pub room_in: Option<usize>,
    /// Messages of a channel that it keeps until they are out; none if there is no need to know.
    pub room_out: Option<usize>,
}

/// What the receiving thread is promised, and what lies between it and the device.
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    /// Millionths of a processor.
    pub share_ppm: u32,
    /// Between device and thread.
    pub transfer: Stage,
    /// Reads that are under way at once: 1 where they end as soon as the thread looks, more where they travel.
    pub reads: usize,
}

impl Terms {
    /// For a device in this process: a microframe on its bus.
    pub const HERE: Self = Self {
        share_ppm: 150_000,
        transfer: Stage::Transfer { intervals: 1, interval_ns: 125_000, interrupt_every_ns: 0 },
        reads: 2,
    };

    /// For one behind a network that takes so long at the worst.
    pub const fn there(delay_ns: u64) -> Self {
        Self { transfer: Stage::Network { delay_ns }, reads: 32, ..Self::HERE }
    }
}

/// An open device, for pipes.
pub struct Endpoint {
    shared: Arc<Shared>,
    channels: Mutex<OpenedChannels>,
    share: Arc<ProcessorShare>,
    processors: Processors,
    attributes: Attributes,
    has: [bool; 2],
    room_in: Option<usize>,
    room_out: Option<usize>,
    message_bytes: usize,
    terms: Terms,
    thread: Option<JoinHandle<()>>,
}

/// What a thread was granted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Granted {
    /// The policy.
    pub policy: String,
    /// What was denied.
    pub warnings: Vec<String>,
}

/// Who has a channel.
#[derive(Default)]
struct OpenedChannels {
    opened: Vec<Opened>,
}

#[derive(Clone, Copy)]
struct Opened {
    channel: usize,
    direction: Direction,
    quality: Quality,
    period_ns: u64,
}

/// What threads share.
pub struct Shared {
    lanes: [Vec<PiLock<Lane>>; 2],
    budget_ns: AtomicU64,
    period_ns: AtomicU64,
    /// A bit a channel that had a pipe.
    used: AtomicU64,
    is_ended: AtomicBool,
    ended: OnceLock<PortError>,
    counts: PiLock<Received>,
    granted: PiLock<Granted>,
}

/// A channel, one way.
#[derive(Debug, Default)]
struct Lane {
    ring: Option<Ring>,
    /// Messages that the device has and that are not out.
    flying: usize,
    went_out: u64,
    device_lost: u64,
    waited_ns: u64,
}

/// What the receiving thread counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Received {
    /// Its jobs.
    pub jobs: Jobs,
    /// Transfers that came.
    pub reads: u64,
    /// Transfers that went.
    pub writes: u64,
    /// Messages of channels that nobody opened, or of none.
    pub unknown: u64,
}

/// What is known of a lane.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LaneCounts {
    pub messages: u64,
    pub lost: u64,
    pub device_lost: u64,
    pub went_out: u64,
    pub waited_ns: u64,
}

const fn of(direction: Direction) -> usize {
    match direction {
        Direction::In => 0,
        Direction::Out => 1,
    }
}

impl Endpoint {
    /// Starts the thread that receives. Nothing may be in flight on `way`.
    ///
    /// # Errors
    /// [`PipeError`] if no processor carries it.
    pub fn open(way: Box<dyn Way>, shape: Shape, processors: &Processors, terms: Terms) -> Result<Self, PipeError> {
        let reserve = reserve_of(IDLE_PERIOD_NS, terms.share_ppm);
        let share = Arc::new(processors.share(reserve)?);
        assert!(shape.channels <= CHANNELS_MAX, "{} channels", shape.channels);
        let lanes = || (0..shape.channels).map(|_| PiLock::new(Lane::default())).collect();
        let shared = Arc::new(Shared {
            lanes: [lanes(), lanes()],
            budget_ns: AtomicU64::new(reserve.budget_ns),
            period_ns: AtomicU64::new(reserve.period_ns),
            used: AtomicU64::new(0),
            is_ended: AtomicBool::new(false),
            ended: OnceLock::new(),
            counts: PiLock::default(),
            granted: PiLock::default(),
        });
        let (attributes, message_bytes) = (shape.attributes, shape.codec.message_bytes());
        let (room_in, room_out) = (shape.room_in, shape.room_out);
        let has = [shape.input.is_some(), shape.output.is_some()];
        let (tell, told) = std::sync::mpsc::sync_channel(1);
        let (for_thread, own_share) = (Arc::clone(&shared), Arc::clone(&share));
        let thread = thread::Builder::new().name("pipe-receiver".into()).spawn(move || {
            let (mut reservation, warnings) = own_share.sit(reserve);
            *for_thread.granted.lock() = Granted { policy: reservation.policy().to_string(), warnings };
            let _ = tell.send(());
            let mut receiver = Receiver::new(way, shape, for_thread, terms);
            let mut roster = Roster::new(reserve);
            let mut now = reserve;
            while !receiver.shared.is_ended.load(Ordering::Acquire) {
                let job = roster.next_job();
                if let Err(error) = receiver.turn(job.now_ns) {
                    let _ = receiver.shared.ended.set(error);
                    break;
                }
                let wanted = receiver.shared.reserve();
                if wanted != now {
                    // What the pipes need has changed, and Equation 1 has admitted it.
                    reservation.change(&own_share.wishes(wanted));
                    let granted = Granted { policy: reservation.policy().to_string(), warnings: said(&reservation) };
                    *receiver.shared.granted.lock() = granted;
                    roster.change(wanted);
                    now = wanted;
                }
                receiver.begin();
                let jobs = roster.end(job);
                if jobs.overruns > receiver.counts.jobs.overruns {
                    // Its jobs are short: the processor stood still under it, and pipes would pay for that until its
                    // budgets are made up for.
                    reservation.renew();
                }
                receiver.counts.jobs = jobs;
                let counts = receiver.counts;
                *receiver.shared.counts.lock() = counts;
            }
            receiver.shared.is_ended.store(true, Ordering::Release);
            receiver.close();
        });
        let thread = Some(thread.map_err(PipeError::System)?);
        // One that panicked has said so.
        let _ = told.recv();
        let (processors, channels) = (processors.clone(), Mutex::default());
        Ok(Self {
            shared,
            channels,
            share,
            processors,
            attributes,
            has,
            room_in,
            room_out,
            message_bytes,
            terms,
            thread,
        })
    }

    /// What its thread was granted last.
    pub fn granted(&self) -> Granted {
        self.shared.granted.lock().clone()
    }

    /// The period of its thread now.
    pub fn period_ns(&self) -> u64 {
        self.shared.reserve().period_ns
    }

    /// What it counted.
    pub fn counts(&self) -> Received {
        *self.shared.counts.lock()
    }

    /// Why it ended, if it has.
    pub fn end(&self) -> Option<PortError> {
        self.shared.ended.get().cloned()
    }

    /// Bytes of a message.
    pub fn message_bytes(&self) -> usize {
        self.message_bytes
    }

    pub(super) fn processors(&self) -> &Processors {
        &self.processors
    }

    pub(super) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    pub(super) fn transfer(&self) -> Stage {
        self.terms.transfer
    }

    fn channels(&self) -> MutexGuard<'_, OpenedChannels> {
        self.channels.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A channel for one user, whose period `derive` finds (`u64::MAX` for one who has no thread), with room for what
    /// comes in the longest time between two looks of both threads.
    pub(super) fn claim(
        &self,
        channel: usize,
        direction: Direction,
        quality: &Quality,
        derive: impl FnOnce(&Attributes, &[Quality]) -> Result<u64, PipeError>,
    ) -> Result<(), PipeError> {
        if !self.has[of(direction)] {
            return Err(PipeError::Direction);
        }
        let channels = self.shared.lanes[of(direction)].len();
        if channel >= channels {
            return Err(PipeError::Channel { asked: channel, channels });
        }
        let mut channels = self.channels();
        let beside = |opened: &&Opened| opened.direction == direction;
        if channels.opened.iter().filter(beside).any(|opened| opened.channel == channel) {
            return Err(PipeError::Taken(channel));
        }
        let others: Vec<Quality> = channels.opened.iter().filter(beside).map(|opened| opened.quality).collect();
        let period_ns = derive(&self.attributes, &others)?;
        let opened = Opened { channel, direction, quality: *quality, period_ns };
        let receiver_ns = self.receiver_period(channels.opened.iter().chain([&opened]))?;
        self.share.change(reserve_of(receiver_ns, self.terms.share_ppm))?;
        // Whoever has no thread is given what others collected: as much as their buffers, twice.
        let own_ns = if period_ns == u64::MAX { 0 } else { period_ns };
        let buffered = 2 * (quality.buffer_bytes as usize).div_ceil(self.message_bytes);
        let messages = messages_in(2 * (own_ns + receiver_ns), quality, self.message_bytes).max(buffered) + buffered;
        *self.shared.lane(channel, direction).lock() =
            Lane { ring: Some(Ring::new(self.message_bytes, messages)), ..Lane::default() };
        channels.opened.push(opened);
        self.shared.promise(reserve_of(receiver_ns, self.terms.share_ppm));
        self.shared.used.fetch_or(1 << channel, Ordering::Release);
        Ok(())
    }

    pub(super) fn release(&self, channel: usize, direction: Direction) {
        let mut channels = self.channels();
        channels.opened.retain(|opened| (opened.channel, opened.direction) != (channel, direction));
        self.shared.lane(channel, direction).lock().ring = None;
        // Less is always admitted.
        if let Ok(period_ns) = self.receiver_period(channels.opened.iter()) {
            let reserve = reserve_of(period_ns, self.terms.share_ppm);
            if self.share.change(reserve).is_ok() {
                self.shared.promise(reserve);
            }
        }
    }

    fn receiver_period<'a>(&self, opened: impl Iterator<Item = &'a Opened> + Clone) -> Result<u64, PipeError> {
        let is_in = |opened: &&Opened| opened.direction == Direction::In;
        let bytes = |messages: usize| (messages * self.message_bytes) as u64;
        let of_pipes = opened.clone().map(|opened| opened.period_ns).min().unwrap_or(u64::MAX);
        let rate = opened.clone().filter(is_in).map(|opened| bits_per_s(&opened.quality)).fold(0, u64::saturating_add);
        let of_input = self.room_in.filter(|_| rate > 0).map(|room| emptied_ns(fill_ns(bytes(room), rate, NS_PER_S)));
        let of_output = self.room_out.and_then(|room| {
            let outputs = opened.filter(|opened| !is_in(opened)).map(|opened| bits_per_s(&opened.quality));
            outputs.map(|rate| fill_ns(bytes(room), rate, NS_PER_S) / 2).min()
        });
        let all = [Some(IDLE_PERIOD_NS), Some(of_pipes), of_input, of_output];
        let period_ns = all.into_iter().flatten().min().unwrap_or(IDLE_PERIOD_NS);
        in_range("the receiving thread", period_ns)
    }
}

/// How often a buffer is looked at that is full after so long. Two looks are two periods apart at the most, and the
/// processor may stand still between them.
fn emptied_ns(full_after_ns: u64) -> u64 {
    let moving = full_after_ns.checked_sub(STILL_NS_MAX).map(|rest| rest / 2);
    moving.filter(|period| *period >= PERIOD_NS_MIN).unwrap_or(full_after_ns / 2)
}

/// Whether a scheduler keeps such a period.
pub(super) fn in_range(whose: &'static str, period_ns: u64) -> Result<u64, PipeError> {
    match (PERIOD_NS_MIN..=PERIOD_NS_MAX).contains(&period_ns) {
        true => Ok(period_ns),
        false => Err(PipeError::Period { whose, period_ns, min_ns: PERIOD_NS_MIN, max_ns: PERIOD_NS_MAX }),
    }
}

const NS_PER_S: u64 = 1_000_000_000;

fn bits_per_s(quality: &Quality) -> u64 {
    let bits = u128::from(quality.throughput_bits) * u128::from(NS_PER_S);
    u64::try_from(bits.div_ceil(u128::from(quality.latency_ns.max(1)))).unwrap_or(u64::MAX)
}

fn messages_in(span_ns: u64, quality: &Quality, message_bytes: usize) -> usize {
    let bits = u128::from(bits_per_s(quality)) * u128::from(span_ns);
    let messages = bits.div_ceil(u128::from(NS_PER_S) * 8 * message_bytes as u128) + 1;
    usize::try_from(messages).unwrap_or(usize::MAX / message_bytes)
}

fn reserve_of(period_ns: u64, share_ppm: u32) -> Reserve {
    let budget_ns = (u128::from(period_ns) * u128::from(share_ppm) / u128::from(PPM)) as u64;
    Reserve { budget_ns: budget_ns.max(1), period_ns }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        self.shared.is_ended.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            // A panic was reported on its way.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn lane(&self, channel: usize, direction: Direction) -> &PiLock<Lane> {
        &self.lanes[of(direction)][channel]
    }

    fn promise(&self, reserve: Reserve) {
        self.budget_ns.store(reserve.budget_ns, Ordering::Relaxed);
        self.period_ns.store(reserve.period_ns, Ordering::Release);
    }

    fn reserve(&self) -> Reserve {
        let period_ns = self.period_ns.load(Ordering::Acquire);
        Reserve { budget_ns: self.budget_ns.load(Ordering::Relaxed), period_ns }
    }

    /// Whether nothing will come any more.
    pub fn is_ended(&self) -> bool {
        self.is_ended.load(Ordering::Acquire)
    }

    /// What came, at the end of `to`; since when the oldest of it waited.
    pub fn take(&self, channel: usize, to: &mut Vec<u8>) -> u64 {
        let mut lane = self.lane(channel, Direction::In).lock();
        lane.ring.as_mut().map_or(0, |ring| ring.take(usize::MAX, to))
    }

    /// Messages for which a channel has room, and those that went out by it.
    pub fn room(&self, channel: usize) -> (usize, u64) {
        let lane = self.lane(channel, Direction::Out).lock();
        (lane.ring.as_ref().map_or(0, Ring::room), lane.went_out)
    }

    /// Messages to be sent. Says how many there was room for.
    pub fn put(&self, channel: usize, message_bytes: usize, messages: &[u8], now_ns: u64) -> usize {
        let mut lane = self.lane(channel, Direction::Out).lock();
        let Some(ring) = lane.ring.as_mut() else { return 0 };
        messages.chunks_exact(message_bytes).take_while(|message| ring.put(message, now_ns)).count()
    }

    /// What is known of a lane.
    pub fn counts_of(&self, channel: usize, direction: Direction) -> LaneCounts {
        let lane = self.lane(channel, direction).lock();
        let (messages, lost) = lane.ring.as_ref().map_or((0, 0), |ring| (ring.count(), ring.lost()));
        let Lane { went_out, device_lost, waited_ns, .. } = *lane;
        LaneCounts { messages, lost, device_lost, went_out, waited_ns }
    }
}

/// The thread's own half.
struct Receiver {
    way: Box<dyn Way>,
    shape: Shape,
    shared: Arc<Shared>,
    ids: IdSource,
    reads: usize,
    reads_max: usize,
    /// Channels that were turned on.
    begun: u64,
    /// Of each write under way, its channel: an endpoint's writes end in their order.
    writes: VecDeque<usize>,
    scratch: Vec<u8>,
    counts: Received,
}

impl Receiver {
    fn new(way: Box<dyn Way>, shape: Shape, shared: Arc<Shared>, terms: Terms) -> Self {
        let scratch = Vec::with_capacity(shape.codec.message_bytes() * WRITES_MAX);
        let (ids, reads_max) = (IdSource::new(), terms.reads.clamp(1, READS_MAX));
        let counts = Received::default();
        Self { way, shape, shared, ids, reads: 0, reads_max, begun: 0, writes: VecDeque::new(), scratch, counts }
    }

    /// One job: what came, what goes, what is asked for next.
    fn turn(&mut self, now_ns: u64) -> Result<(), PortError> {
        self.way.turn()?;
        self.take_in(now_ns)?;
        self.send(now_ns);
        self.ask();
        self.way.turn()?;
        // A device in this process has answered by now.
        self.take_in(now_ns)?;
        self.ask();
        self.way.turn()
    }

    /// Turns on what was claimed since.
    fn begin(&mut self) {
        let used = self.shared.used.load(Ordering::Acquire);
        let mut new = used & !std::mem::replace(&mut self.begun, used);
        while new != 0 {
            let requests = self.shape.begin.get_mut(new.trailing_zeros() as usize).map(std::mem::take);
            new &= new - 1;
            for (setup, data) in requests.into_iter().flatten() {
                self.way.submit(Urb::control(self.ids.next_id(), setup, data.into()));
            }
        }
    }

    fn take_in(&mut self, now_ns: u64) -> Result<(), PortError> {
        while let Some(done) = self.way.pop() {
            if !matches!(done.status, Status::Ok | Status::Short) {
                return Err(PortError::World(format!("a transfer ended with {:?}", done.status)));
            }
            match done.direction {
                _ if done.endpoint.is_control() => {}
                Direction::In => {
                    self.reads -= 1;
                    self.sort(done, now_ns);
                }
                Direction::Out => {
                    let channel = self.writes.pop_front().unwrap_or(0);
                    self.counts.writes += 1;
                    if !self.shape.codec.is_told() {
                        self.went_out(channel);
                    }
                    self.way.pool().recycle(done.payload);
                }
            }
        }
        Ok(())
    }

    fn sort(&mut self, done: Done, now_ns: u64) {
        self.counts.reads += 1;
        let bytes = done.payload.contiguous();
        for message in bytes.chunks_exact(self.shape.codec.message_bytes()) {
            match self.shape.codec.sort(message) {
                Sorted::WentOut { channel } => self.went_out(channel),
                Sorted::Came { channel, has_lost } if channel < self.shape.channels => {
                    let mut lane = self.shared.lane(channel, Direction::In).lock();
                    lane.device_lost += u64::from(has_lost);
                    match lane.ring.as_mut() {
                        Some(ring) => {
                            ring.put(message, now_ns);
                        }
                        None => self.counts.unknown += 1,
                    }
                }
                Sorted::Came { .. } | Sorted::Unknown => self.counts.unknown += 1,
            }
        }
        drop(bytes);
        self.way.pool().recycle(done.payload);
    }

    fn went_out(&mut self, channel: usize) {
        let mut lane = self.shared.lane(channel, Direction::Out).lock();
        lane.flying = lane.flying.saturating_sub(1);
        lane.went_out += 1;
    }

    /// Each channel sends as much as the device has room for, so that none makes the endpoint wait for others.
    fn send(&mut self, now_ns: u64) {
        let Some(output) = self.shape.output else { return };
        let size = self.shape.codec.message_bytes();
        for channel in 0..self.shape.channels {
            // What comes before it is on is lost in some devices without a word.
            if self.begun & 1 << channel == 0 {
                continue;
            }
            self.scratch.clear();
            {
                let mut lane = self.shared.lane(channel, Direction::Out).lock();
                let of_device = self.shape.room_out.unwrap_or(WRITES_MAX).saturating_sub(lane.flying);
                let count = of_device.min(WRITES_MAX.saturating_sub(self.writes.len()));
                let Some(ring) = lane.ring.as_mut().filter(|ring| ring.len() > 0 && count > 0) else { continue };
                let since_ns = ring.take(count, &mut self.scratch);
                lane.flying += self.scratch.len() / size;
                lane.waited_ns = lane.waited_ns.max(now_ns.saturating_sub(since_ns));
            }
            for message in self.scratch.chunks_exact(size) {
                let mut buffer = self.way.pool().take(size);
                buffer.copy_from_slice(message);
                self.shape.codec.address(channel, &mut buffer);
                self.writes.push_back(channel);
                self.way.submit(Urb::data_out(self.ids.next_id(), output, buffer.into()));
            }
        }
    }

    fn ask(&mut self) {
        let Some(input) = self.shape.input else { return };
        while self.reads < self.reads_max {
            self.reads += 1;
            self.way.submit(Urb::data_in(self.ids.next_id(), input, self.shape.read_bytes));
        }
    }

    fn close(mut self) {
        self.way.close();
    }
}
