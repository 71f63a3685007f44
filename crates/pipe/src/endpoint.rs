//! A device's endpoints, and the thread that keeps them moving: it takes what arrived, sorts it to the pipes, sends
//! what they have, and sleeps. No other thread touches the device, and this one waits only for its own next period.
//!
//! **Its period.** In the worst case a periodic thread looks twice within two periods: once as early and once as late
//! as possible. So its period is half the time in which the device's room fills at the rates of all pipes, and no
//! longer than any of theirs, whose deadline it inherits (as the paper's bottom half inherits the priority of the task
//! that it works for). The transfers under way have to carry those rates as well: each keeps its place for two periods
//! and the delay of the path. A rate that no period carries is refused. Its budget is a share of that period.
//!
//! **Which delay of the path.** If each transfer may take the worst delay, and the rate is carried even so, it is never
//! behind. Else it is enough that twice the rate is carried at the usual delay, where a source can wait: a delay up
//! to the worst leaves the pipe behind by no more than itself, which its bound allows for, and as much time again
//! makes it up. A device that loses what is not fetched cannot wait, and has the worst delay alone.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use farbus_control::pipe::{PipeGrant, PipeJobs};
use farbus_host::{HostPortError, IdSource};
use farbus_io_linux::sys::pi_lock::PiLock;
use farbus_io_linux::sys::scheduling::now_ns;
use farbus_model::{EpAddr, SetupPacket, TransferDirection, Urb, UrbCompletion, UrbStatus};
use farbus_realtime::pipe::{EndpointAttributes, PathSegment, PipeQuality, carried_per_s, carrying_period_ns, fill_ns};
use farbus_realtime::vcpu::VcpuReserve;
use serde::Serialize;

use super::bus::ChannelBus;
use super::codec::{ChannelCodec, MessageClass};
use super::error::PipeError;
use super::far::FarReservation;
use super::job::JobSchedule;
use super::lag::ChannelLag;
use super::pace::ReadPace;
use super::path::PathDelay;
use super::processors::{ProcessorPool, ProcessorShare, warnings_of};
use super::ring::MessageRing;
use super::way::PolledDevice;

/// The shortest period that the kernel accepts for a deadline (`sysctl_sched_dl_period_min`), in nanoseconds.
pub const PERIOD_NS_MIN: u64 = 100_000;
/// The longest period that the kernel accepts for a deadline, in nanoseconds.
pub const PERIOD_NS_MAX: u64 = (1 << 22) * 1000;
/// How long a hypervisor or firmware may stop a processor without a thread on it noticing, in nanoseconds: bounds allow
/// for it. A measurement of a bound watches the processors, and discards the time around a longer gap (the benchmark's
/// canaries).
pub const STILL_NS_MAX: u64 = 5_000_000;
/// The longest that the receiving thread sleeps if no pipe needs it sooner.
const IDLE_PERIOD_NS: u64 = 10_000_000;
/// The most channels of a device.
pub const CHANNELS_MAX: usize = 64;
/// The most reads, and the most writes, that are under way at once.
const READS_MAX: usize = 64;
const WRITES_MAX: usize = 64;
/// So many times its rate a pipe carries that makes up, in as much time again, for what it fell behind.
const MAKES_UP: u64 = 2;
/// How long to wait for a thread to ask for what it needs: many of its periods.
const GRANT_PATIENCE: Duration = Duration::from_secs(1);
const PPM: u64 = 1_000_000;

/// The properties of a device's endpoints.
pub struct EndpointLayout {
    /// The endpoint that data comes from.
    pub input: Option<EpAddr>,
    /// The endpoint that data goes to.
    pub output: Option<EpAddr>,
    /// Bytes of one read.
    pub read_bytes: u32,
    /// The number of channels; each has at most one pipe each way.
    pub channels: usize,
    /// How they share the endpoints.
    pub codec: Box<dyn ChannelCodec>,
    /// For each channel, the control transfers that turn it on when it has its first pipe: before that it would fill
    /// the device's room with data that is not read.
    pub begin: Vec<Vec<(SetupPacket, Vec<u8>)>>,
    /// The capacity of each direction.
    pub attributes: EndpointAttributes,
    /// Messages that the device buffers until they are fetched, and loses beyond that; `None` if it makes its source
    /// wait.
    pub room_in: Option<usize>,
    /// Messages of a channel that it buffers until they are out; `None` if there is no need to know.
    pub room_out: Option<usize>,
    /// For each channel, the bus behind it, if it limits the messages. Empty if no channel has one.
    pub buses: Vec<ChannelBus>,
}

/// The receiving thread's share of a processor, and the delay between it and the device.
#[derive(Clone, Copy, Debug)]
pub struct ReceiverTerms {
    /// In millionths of a processor.
    pub share_ppm: u32,
    /// The stage between device and thread.
    pub transfer: PathSegment,
    /// Reads that are under way at once: 1 if they end as soon as the thread looks, more if they travel over a network.
    pub reads: usize,
    /// Whether another host moves the device's data by a thread without a reservation.
    pub is_far_unreserved: bool,
    /// What `transfer` usually takes at the most, in nanoseconds, if that is known.
    pub usual_ns: Option<u64>,
}

impl ReceiverTerms {
    /// For a device in this process: one microframe on its bus.
    pub const HERE: Self = Self {
        share_ppm: 150_000,
        transfer: PathSegment::Transfer { intervals: 1, interval_ns: 125_000, interrupt_every_ns: 0 },
        reads: 2,
        is_far_unreserved: false,
        usual_ns: None,
    };

    /// For a device behind a network with this delay.
    pub const fn there(delay: PathDelay) -> Self {
        let transfer = PathSegment::Network { delay_ns: delay.worst_ns };
        Self { transfer, reads: 32, is_far_unreserved: true, usual_ns: Some(delay.usual_ns), ..Self::HERE }
    }

    /// These terms with the note that the device's host has reserved processor and bus time for these pipes.
    pub const fn reserved(self) -> Self {
        Self { is_far_unreserved: false, ..self }
    }

    /// The reads that are made at once.
    fn reads_max(&self) -> usize {
        self.reads.clamp(1, READS_MAX)
    }
}

/// An open device, for pipes.
pub struct PipeEndpoint {
    shared: Arc<PipeEndpointInner>,
    channels: Mutex<OpenedChannels>,
    share: Arc<ProcessorShare>,
    processors: ProcessorPool,
    attributes: EndpointAttributes,
    has: [bool; 2],
    room_in: Option<usize>,
    room_out: Option<usize>,
    buses: Vec<ChannelBus>,
    message_bytes: usize,
    /// The messages that one read takes, if the device has so many.
    messages_per_read: usize,
    terms: ReceiverTerms,
    thread: Option<JoinHandle<()>>,
}

/// The channels that are open, and their users.
#[derive(Default)]
struct OpenedChannels {
    opened: Vec<OpenedChannel>,
}

#[derive(Clone, Copy)]
struct OpenedChannel {
    channel: usize,
    direction: TransferDirection,
    quality: PipeQuality,
    period_ns: u64,
}

/// The state that threads share.
pub struct PipeEndpointInner {
    lanes: [Vec<PiLock<ChannelQueue>>; 2],
    budget_ns: AtomicU64,
    period_ns: AtomicU64,
    /// One bit per channel that has had a pipe.
    used: AtomicU64,
    is_ended: AtomicBool,
    ended: OnceLock<HostPortError>,
    counts: PiLock<ReceiverCounts>,
    granted: PiLock<PipeGrant>,
    far: PiLock<FarReservation>,
    /// What the thread has asked the kernel for last, and who waits for that.
    reserve: Mutex<VcpuReserve>,
    has_asked: Condvar,
}

/// One direction of one channel.
#[derive(Debug, Default)]
struct ChannelQueue {
    ring: Option<MessageRing>,
    /// Messages that the device has taken and not sent yet.
    flying: usize,
    went_out: u64,
    device_lost: u64,
    waited_ns: u64,
    /// Incoming, from a device that makes its source wait.
    lag: ChannelLag,
    pace: ReadPace,
    /// Messages at the last look.
    seen: u64,
}

/// The counters of the receiving thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ReceiverCounts {
    /// Its jobs (turns of its loop): how many ran, were missed or ended late.
    pub jobs: PipeJobs,
    /// Transfers that arrived.
    pub reads: u64,
    /// Transfers that were sent.
    pub writes: u64,
    /// Messages for channels that are not open, or do not exist.
    pub unknown: u64,
    /// Bytes of reads that were no whole message, and were dropped.
    pub cut_bytes: u64,
}

/// The counters of a lane.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChannelQueueCounts {
    pub messages: u64,
    pub lost: u64,
    pub device_lost: u64,
    pub went_out: u64,
    /// The longest that a message waited, the one that waits now included.
    pub waited_ns: u64,
    pub behind_ns: u64,
}

const fn of(direction: TransferDirection) -> usize {
    match direction {
        TransferDirection::In => 0,
        TransferDirection::Out => 1,
    }
}

impl PipeEndpoint {
    /// Starts the receiving thread. No request may be in flight on `way`.
    ///
    /// # Errors
    /// [`PipeError`] if no processor can carry the thread.
    pub fn open(
        way: Box<dyn PolledDevice>,
        shape: EndpointLayout,
        processors: &ProcessorPool,
        terms: ReceiverTerms,
    ) -> Result<Self, PipeError> {
        let reserve = reserve_of(IDLE_PERIOD_NS, terms.share_ppm);
        let share = Arc::new(processors.share(reserve)?);
        assert!(shape.channels <= CHANNELS_MAX, "{} channels", shape.channels);
        let lanes = || (0..shape.channels).map(|_| PiLock::new(ChannelQueue::default())).collect();
        let shared = Arc::new(PipeEndpointInner {
            lanes: [lanes(), lanes()],
            budget_ns: AtomicU64::new(reserve.budget_ns),
            period_ns: AtomicU64::new(reserve.period_ns),
            used: AtomicU64::new(0),
            is_ended: AtomicBool::new(false),
            ended: OnceLock::new(),
            counts: PiLock::default(),
            granted: PiLock::default(),
            far: PiLock::default(),
            reserve: Mutex::new(reserve),
            has_asked: Condvar::new(),
        });
        let (attributes, message_bytes) = (shape.attributes, shape.codec.message_bytes());
        let messages_per_read = (shape.read_bytes as usize / message_bytes).max(1);
        let (room_in, room_out, buses) = (shape.room_in, shape.room_out, shape.buses.clone());
        let has = [shape.input.is_some(), shape.output.is_some()];
        let (tell, started) = std::sync::mpsc::sync_channel(1);
        let (for_thread, own_share) = (Arc::clone(&shared), Arc::clone(&share));
        let thread = thread::Builder::new().name("pipe-receiver".into()).spawn(move || {
            let (mut reservation, warnings) = own_share.reserve(reserve);
            *for_thread.granted.lock() = PipeGrant { policy: reservation.policy().to_string(), warnings };
            let _ = tell.send(());
            let mut receiver = EndpointReceiver::new(way, shape, for_thread, terms);
            let mut roster = JobSchedule::new(reserve);
            let mut now = reserve;
            while !receiver.shared.is_ended.load(Ordering::Acquire) {
                let job = roster.next_job();
                if let Err(error) = receiver.turn(job.now_ns) {
                    let _ = receiver.shared.ended.set(error);
                    break;
                }
                let wanted = receiver.shared.reserve();
                if wanted != now {
                    // The pipes' needs have changed, and Equation 1 has admitted the change.
                    reservation.change(&own_share.wishes(wanted));
                    let granted =
                        PipeGrant { policy: reservation.policy().to_string(), warnings: warnings_of(&reservation) };
                    *receiver.shared.granted.lock() = granted;
                    receiver.shared.note_asked(wanted);
                    roster.change(wanted);
                    now = wanted;
                }
                receiver.begin();
                if let Some(report) = receiver.way.reserved().filter(|_| !terms.is_far_unreserved) {
                    receiver.shared.far.lock().note(&report);
                }
                // A job that took too long stays in debt: what it took was promised to others.
                receiver.counts.jobs = roster.end(job);
                let counts = receiver.counts;
                *receiver.shared.counts.lock() = counts;
            }
            receiver.shared.is_ended.store(true, Ordering::Release);
            receiver.shared.has_asked.notify_all();
            receiver.close();
        });
        let thread = Some(thread.map_err(PipeError::System)?);
        // A thread that panicked has reported it.
        let _ = started.recv();
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
            buses,
            message_bytes,
            messages_per_read,
            terms,
            thread,
        })
    }

    /// What its thread was granted last. Waits until the thread has asked for what the present pipes need, a second at
    /// the most.
    pub fn granted(&self) -> PipeGrant {
        let reserve = self.shared.reserve.lock().unwrap_or_else(PoisonError::into_inner);
        let is_behind = |reserve: &mut VcpuReserve| *reserve != self.shared.reserve() && !self.shared.is_ended();
        drop(self.shared.has_asked.wait_timeout_while(reserve, GRANT_PATIENCE, is_behind));
        self.shared.granted.lock().clone()
    }

    /// The current period of its thread.
    pub fn period_ns(&self) -> u64 {
        self.shared.reserve().period_ns
    }

    /// The counters of its thread.
    pub fn counts(&self) -> ReceiverCounts {
        *self.shared.counts.lock()
    }

    /// Why it ended, if it has.
    pub fn end(&self) -> Option<HostPortError> {
        self.shared.ended.get().cloned()
    }

    /// Bytes of a message.
    pub fn message_bytes(&self) -> usize {
        self.message_bytes
    }

    pub(super) fn processors(&self) -> &ProcessorPool {
        &self.processors
    }

    pub(super) fn shared(&self) -> &Arc<PipeEndpointInner> {
        &self.shared
    }

    pub(super) fn transfer(&self) -> PathSegment {
        self.terms.transfer
    }

    /// Whether another host moves the device's data by a thread without a reservation, or did so for a time.
    pub fn is_far_unreserved(&self) -> bool {
        self.terms.is_far_unreserved || self.far().withdrawn().is_some()
    }

    /// What the device's host has reserved for it.
    pub fn far(&self) -> FarReservation {
        *self.shared.far.lock()
    }

    fn channels(&self) -> MutexGuard<'_, OpenedChannels> {
        self.channels.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens a channel for one user. `derive` finds the user's period (`u64::MAX` for a user without a thread); there
    /// is room for what arrives in the longest time between two looks of both threads.
    pub(super) fn claim(
        &self,
        channel: usize,
        direction: TransferDirection,
        quality: &PipeQuality,
        derive: impl FnOnce(&EndpointAttributes, &[PipeQuality]) -> Result<u64, PipeError>,
    ) -> Result<(), PipeError> {
        if !self.has[of(direction)] {
            return Err(PipeError::Direction);
        }
        let channels = self.shared.lanes[of(direction)].len();
        if channel >= channels {
            return Err(PipeError::Channel { wanted: channel, channels });
        }
        let mut channels = self.channels();
        let beside = |opened: &&OpenedChannel| opened.direction == direction;
        if channels.opened.iter().filter(beside).any(|opened| opened.channel == channel) {
            return Err(PipeError::Taken(channel));
        }
        let others: Vec<PipeQuality> = channels.opened.iter().filter(beside).map(|opened| opened.quality).collect();
        let period_ns = derive(&self.attributes, &others)?;
        if let Some(bus) = self.buses.get(channel) {
            let asked_per_s = messages_per_s(quality, self.message_bytes);
            if asked_per_s > bus.messages_per_s_max {
                return Err(PipeError::Bus { channel, asked_per_s, bus: *bus });
            }
        }
        let opened = OpenedChannel { channel, direction, quality: *quality, period_ns };
        let receiver_ns = self.receiver_period(channels.opened.iter().chain([&opened]))?;
        self.share.change(reserve_of(receiver_ns, self.terms.share_ppm))?;
        // A user without a thread is given what other threads collected: as much as their buffers, twice.
        let own_ns = if period_ns == u64::MAX { 0 } else { period_ns };
        let buffered = 2 * (quality.buffer_bytes as usize).div_ceil(self.message_bytes);
        let mut messages =
            messages_in(2 * (own_ns + receiver_ns), quality, self.message_bytes).max(buffered) + buffered;
        if direction == TransferDirection::In {
            // The reads under way are made only if there is room for what they bring.
            messages += self.terms.reads_max() * self.messages_per_read;
        }
        let lag = ChannelLag::new(messages_per_s(quality, self.message_bytes));
        // What is under way was read, too, and what a late job missed is made up as far as the buffer goes.
        let under_way_ns = self.terms.transfer.worst_ns().saturating_add(2 * receiver_ns);
        let burst = messages_in(under_way_ns, quality, self.message_bytes) + buffered / 2;
        let pace =
            ReadPace::new(messages_per_s(quality, self.message_bytes), burst as u64, self.messages_per_read as u64);
        let ring = Some(MessageRing::new(self.message_bytes, messages));
        *self.shared.lane(channel, direction).lock() = ChannelQueue { ring, lag, pace, ..ChannelQueue::default() };
        channels.opened.push(opened);
        self.shared.promise(reserve_of(receiver_ns, self.terms.share_ppm));
        self.shared.used.fetch_or(1 << channel, Ordering::Release);
        Ok(())
    }

    pub(super) fn release(&self, channel: usize, direction: TransferDirection) {
        let mut channels = self.channels();
        channels.opened.retain(|opened| (opened.channel, opened.direction) != (channel, direction));
        self.shared.lane(channel, direction).lock().ring = None;
        // A smaller need is always admitted.
        if let Ok(period_ns) = self.receiver_period(channels.opened.iter()) {
            let reserve = reserve_of(period_ns, self.terms.share_ppm);
            if self.share.change(reserve).is_ok() {
                self.shared.promise(reserve);
            }
        }
    }

    fn receiver_period<'a>(&self, opened: impl Iterator<Item = &'a OpenedChannel> + Clone) -> Result<u64, PipeError> {
        let is_in = |opened: &&OpenedChannel| opened.direction == TransferDirection::In;
        let bytes = |messages: usize| (messages * self.message_bytes) as u64;
        let of_pipes = opened.clone().map(|opened| opened.period_ns).min().unwrap_or(u64::MAX);
        let rate = opened.clone().filter(is_in).map(|opened| bits_per_s(&opened.quality)).fold(0, u64::saturating_add);
        let of_input = self.room_in.filter(|_| rate > 0).map(|room| emptied_ns(fill_ns(bytes(room), rate, NS_PER_S)));
        let per_s = |opened: &OpenedChannel| messages_per_s(&opened.quality, self.message_bytes);
        let outputs = || opened.clone().filter(|opened| !is_in(opened)).map(per_s);
        // Each channel has its part of the device's room, and all together the writes that are under way at once.
        let [reads, writes] = [self.terms.reads_max() * self.messages_per_read, WRITES_MAX];
        // A device without a room of its own makes its source wait; what goes out waits for its place.
        let can_wait = self.room_in.is_none();
        use TransferDirection::{In, Out};
        let carried = [
            self.carrying(In, reads, opened.clone().filter(is_in).map(per_s).fold(0, u64::saturating_add), can_wait)?,
            self.carrying(Out, writes, outputs().fold(0, u64::saturating_add), true)?,
            self.carrying(Out, self.room_out.unwrap_or(writes), outputs().max().unwrap_or(0), true)?,
        ];
        let all = [IDLE_PERIOD_NS, of_pipes].into_iter().chain(of_input).chain(carried);
        let period_ns = all.min().unwrap_or(IDLE_PERIOD_NS);
        in_range("the receiving thread", period_ns)
    }

    /// The longest period in which `places` messages under way carry `per_s` messages a second from a source that can
    /// wait, or cannot.
    fn carrying(
        &self,
        direction: TransferDirection,
        in_flight: usize,
        per_s: u64,
        can_wait: bool,
    ) -> Result<u64, PipeError> {
        if per_s == 0 {
            return Ok(u64::MAX);
        }
        let in_flight = in_flight as u64;
        let worst_ns = self.terms.transfer.worst_ns();
        let usual_ns = self.terms.usual_ns.filter(|_| can_wait);
        let at_worst = carrying_period_ns(in_flight, per_s, worst_ns);
        let usually = usual_ns.map_or(0, |ns| carrying_period_ns(in_flight, per_s.saturating_mul(MAKES_UP), ns));
        if let Some(period_ns) = [at_worst, usually].into_iter().find(|period_ns| *period_ns >= PERIOD_NS_MIN) {
            return Ok(period_ns);
        }
        let at_worst_per_s = carried_per_s(in_flight, PERIOD_NS_MIN, worst_ns);
        let usually_per_s = usual_ns.map_or(0, |ns| carried_per_s(in_flight, PERIOD_NS_MIN, ns) / MAKES_UP);
        let max_per_s = at_worst_per_s.max(usually_per_s);
        Err(PipeError::Rate { direction, asked_per_s: per_s, max_per_s, in_flight, worst_ns, usual_ns })
    }
}

/// How often to look at a buffer that is full after `full_after_ns`. Two looks are at most two periods apart, and the
/// processor may stand still between them.
fn emptied_ns(full_after_ns: u64) -> u64 {
    let moving = full_after_ns.checked_sub(STILL_NS_MAX).map(|rest| rest / 2);
    moving.filter(|period| *period >= PERIOD_NS_MIN).unwrap_or(full_after_ns / 2)
}

/// Checks that the kernel's scheduler accepts the period.
pub(super) fn in_range(whose: &'static str, period_ns: u64) -> Result<u64, PipeError> {
    match (PERIOD_NS_MIN..=PERIOD_NS_MAX).contains(&period_ns) {
        true => Ok(period_ns),
        false => Err(PipeError::Period { whose, period_ns, min_ns: PERIOD_NS_MIN, max_ns: PERIOD_NS_MAX }),
    }
}

const NS_PER_S: u64 = 1_000_000_000;

fn bits_per_s(quality: &PipeQuality) -> u64 {
    let bits = u128::from(quality.throughput_bits) * u128::from(NS_PER_S);
    u64::try_from(bits.div_ceil(u128::from(quality.latency_ns.max(1)))).unwrap_or(u64::MAX)
}

/// How many messages of this size that is a second, rounded up.
pub(super) fn messages_per_s(quality: &PipeQuality, message_bytes: usize) -> u64 {
    bits_per_s(quality).div_ceil(8 * (message_bytes as u64).max(1))
}

fn messages_in(span_ns: u64, quality: &PipeQuality, message_bytes: usize) -> usize {
    let bits = u128::from(bits_per_s(quality)) * u128::from(span_ns);
    let messages = bits.div_ceil(u128::from(NS_PER_S) * 8 * message_bytes as u128) + 1;
    usize::try_from(messages).unwrap_or(usize::MAX / message_bytes)
}

fn reserve_of(period_ns: u64, share_ppm: u32) -> VcpuReserve {
    let budget_ns = (u128::from(period_ns) * u128::from(share_ppm) / u128::from(PPM)) as u64;
    VcpuReserve { budget_ns: budget_ns.max(1), period_ns }
}

impl Drop for PipeEndpoint {
    fn drop(&mut self) {
        self.shared.is_ended.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            // A panic was reported when it happened.
            let _ = thread.join();
        }
    }
}

impl PipeEndpointInner {
    fn lane(&self, channel: usize, direction: TransferDirection) -> &PiLock<ChannelQueue> {
        &self.lanes[of(direction)][channel]
    }

    fn promise(&self, reserve: VcpuReserve) {
        self.budget_ns.store(reserve.budget_ns, Ordering::Relaxed);
        self.period_ns.store(reserve.period_ns, Ordering::Release);
    }

    fn note_asked(&self, reserve: VcpuReserve) {
        *self.reserve.lock().unwrap_or_else(PoisonError::into_inner) = reserve;
        self.has_asked.notify_all();
    }

    fn reserve(&self) -> VcpuReserve {
        let period_ns = self.period_ns.load(Ordering::Acquire);
        VcpuReserve { budget_ns: self.budget_ns.load(Ordering::Relaxed), period_ns }
    }

    /// Whether nothing will arrive any more.
    pub fn is_ended(&self) -> bool {
        self.is_ended.load(Ordering::Acquire)
    }

    /// Appends what arrived to `to`; returns since when the oldest of it waited.
    pub fn take(&self, channel: usize, to: &mut Vec<u8>) -> u64 {
        let mut lane = self.lane(channel, TransferDirection::In).lock();
        lane.ring.as_mut().map_or(0, |ring| ring.take(usize::MAX, to))
    }

    /// How many messages a channel has room for, and how many it has sent.
    pub fn room(&self, channel: usize) -> (usize, u64) {
        let lane = self.lane(channel, TransferDirection::Out).lock();
        (lane.ring.as_ref().map_or(0, MessageRing::room), lane.went_out)
    }

    /// Queues messages to be sent. Returns how many there was room for.
    pub fn put(&self, channel: usize, message_bytes: usize, messages: &[u8], now_ns: u64) -> usize {
        let mut lane = self.lane(channel, TransferDirection::Out).lock();
        let Some(ring) = lane.ring.as_mut() else { return 0 };
        messages.chunks_exact(message_bytes).take_while(|message| ring.put(message, now_ns)).count()
    }

    /// The counters of a lane.
    pub fn counts_of(&self, channel: usize, direction: TransferDirection) -> ChannelQueueCounts {
        let lane = self.lane(channel, direction).lock();
        let (messages, lost) = lane.ring.as_ref().map_or((0, 0), |ring| (ring.count(), ring.lost()));
        let waits_ns =
            lane.ring.as_ref().and_then(MessageRing::since_ns).map_or(0, |since_ns| now_ns().saturating_sub(since_ns));
        let ChannelQueue { went_out, device_lost, waited_ns, lag, .. } = *lane;
        let (waited_ns, behind_ns) = (waited_ns.max(waits_ns), lag.worst_ns());
        ChannelQueueCounts { messages, lost, device_lost, went_out, waited_ns, behind_ns }
    }
}

/// The receiving thread's own half.
struct EndpointReceiver {
    way: Box<dyn PolledDevice>,
    shape: EndpointLayout,
    shared: Arc<PipeEndpointInner>,
    ids: IdSource,
    reads: usize,
    reads_max: usize,
    /// The channels that were turned on, one bit each.
    begun: u64,
    /// The channel of each write under way: an endpoint's writes complete in order.
    writes: VecDeque<usize>,
    scratch: Vec<u8>,
    counts: ReceiverCounts,
    /// Whether each read since the last job was as long as it could be.
    were_full: bool,
}

impl EndpointReceiver {
    fn new(
        way: Box<dyn PolledDevice>,
        shape: EndpointLayout,
        shared: Arc<PipeEndpointInner>,
        terms: ReceiverTerms,
    ) -> Self {
        let scratch = Vec::with_capacity(shape.codec.message_bytes() * WRITES_MAX);
        let (ids, reads_max) = (IdSource::new(), terms.reads_max());
        let counts = ReceiverCounts::default();
        Self {
            way,
            shape,
            shared,
            ids,
            reads: 0,
            reads_max,
            begun: 0,
            writes: VecDeque::new(),
            scratch,
            counts,
            were_full: true,
        }
    }

    /// One job: takes what arrived, sends what waits, and starts the next reads.
    fn turn(&mut self, now_ns: u64) -> Result<(), HostPortError> {
        self.way.turn()?;
        self.take_in(now_ns)?;
        self.note_lag(now_ns);
        self.send(now_ns);
        self.ask(now_ns);
        self.way.turn()?;
        // A device in this process has answered by now.
        self.take_in(now_ns)?;
        self.ask(now_ns);
        self.way.turn()
    }

    /// Notes whether a device that makes its source wait had more than was read: then all reads have ended, and none
    /// before its length.
    fn note_lag(&mut self, now_ns: u64) {
        let has_more = std::mem::replace(&mut self.were_full, true) && self.reads == 0;
        if self.shape.room_in.is_some() || self.shape.channels != 1 {
            return;
        }
        let mut lane = self.shared.lane(0, TransferDirection::In).lock();
        let Some(count) = lane.ring.as_ref().map(MessageRing::count) else { return };
        let messages = count - std::mem::replace(&mut lane.seen, count);
        lane.lag.note(now_ns, messages, has_more);
    }

    /// Turns on the channels that were claimed since the last job.
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

    fn take_in(&mut self, now_ns: u64) -> Result<(), HostPortError> {
        while let Some(done) = self.way.pop() {
            if !matches!(done.status, UrbStatus::Ok | UrbStatus::Short) {
                return Err(HostPortError::World(format!("a transfer ended with {:?}", done.status)));
            }
            match done.direction {
                _ if done.endpoint.is_control() => {}
                TransferDirection::In => {
                    self.reads -= 1;
                    self.sort(done, now_ns);
                }
                TransferDirection::Out => {
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

    fn sort(&mut self, done: UrbCompletion, now_ns: u64) {
        self.counts.reads += 1;
        let bytes = done.payload.contiguous();
        self.were_full &= bytes.len() == self.shape.read_bytes as usize;
        self.counts.cut_bytes += (bytes.len() % self.shape.codec.message_bytes()) as u64;
        if self.shape.channels == 1 {
            let messages = bytes.len() / self.shape.codec.message_bytes();
            self.shared.lane(0, TransferDirection::In).lock().pace.note_read(messages as u64);
        }
        for message in bytes.chunks_exact(self.shape.codec.message_bytes()) {
            match self.shape.codec.sort(message) {
                MessageClass::WentOut { channel } => self.went_out(channel),
                MessageClass::Came { channel, has_lost } if channel < self.shape.channels => {
                    let mut lane = self.shared.lane(channel, TransferDirection::In).lock();
                    lane.device_lost += u64::from(has_lost);
                    match lane.ring.as_mut() {
                        Some(ring) => {
                            ring.put(message, now_ns);
                        }
                        None => self.counts.unknown += 1,
                    }
                }
                MessageClass::Came { .. } | MessageClass::Unknown => self.counts.unknown += 1,
            }
        }
        drop(bytes);
        self.way.pool().recycle(done.payload);
    }

    fn went_out(&mut self, channel: usize) {
        let mut lane = self.shared.lane(channel, TransferDirection::Out).lock();
        lane.flying = lane.flying.saturating_sub(1);
        lane.went_out += 1;
    }

    /// Sends as much of each channel as the device has room for, so that no channel blocks the endpoint for others.
    fn send(&mut self, now_ns: u64) {
        let Some(output) = self.shape.output else { return };
        let size = self.shape.codec.message_bytes();
        for channel in 0..self.shape.channels {
            // Some devices silently drop what arrives before the channel is on.
            if self.begun & 1 << channel == 0 {
                continue;
            }
            self.scratch.clear();
            {
                let mut lane = self.shared.lane(channel, TransferDirection::Out).lock();
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

    fn ask(&mut self, now_ns: u64) {
        let Some(input) = self.shape.input else { return };
        let reads_max = self.reads_max.min(self.reads_due(now_ns));
        while self.reads < reads_max {
            self.reads += 1;
            self.way.submit(Urb::data_in(self.ids.next_id(), input, self.shape.read_bytes));
        }
    }

    /// The reads for which a pipe has room, and that its rate is worth by now. A device that makes its source wait
    /// loses nothing if it is not read; all others are read in any case.
    fn reads_due(&self, now_ns: u64) -> usize {
        if self.shape.room_in.is_some() {
            return usize::MAX;
        }
        let per_read = (self.shape.read_bytes as usize / self.shape.codec.message_bytes()).max(1);
        // Without a pipe, what arrives is counted and dropped.
        let due = self.shared.lanes[of(TransferDirection::In)].iter().filter_map(|lane| {
            let mut lane = lane.lock();
            let room = lane.ring.as_ref().map(MessageRing::room)?;
            Some((room / per_read).min(lane.pace.reads(now_ns)))
        });
        due.min().unwrap_or(usize::MAX)
    }

    fn close(mut self) {
        self.way.close();
    }
}
