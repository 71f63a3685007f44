//! A pipe: a thread with a promised execution time, and the function that it runs.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use farbus_control::pipe::{PipeGrant, PipeJobs, PipeReport};
use farbus_io_linux::sys::pi_lock::PiLock;
use farbus_io_linux::sys::scheduling::now_ns;
use farbus_model::TransferDirection;
use farbus_realtime::pipe::{PathSegment, PipeQuality, derive, worst_ns};
use farbus_realtime::timetable::ClockJump;
use farbus_realtime::vcpu::VcpuReserve;

use super::endpoint::{PipeEndpoint, in_range, messages_per_s};
use super::error::PipeError;
use super::job::JobSchedule;
use super::lag::ChannelLag;

/// One direction of one channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PipeEnd {
    /// Counted from 0.
    pub channel: usize,
    /// From the device or to it.
    pub direction: TransferDirection,
}

/// What a function sees and can do in one of its jobs.
pub struct PipeJobContext<'a> {
    /// The current time of the system's monotonic clock.
    pub now_ns: u64,
    /// Periods without a job before this one.
    pub missed: u64,
    /// How the clock jumped since the last job.
    pub jump: Option<ClockJump>,
    /// Outgoing: messages that the device has sent so far.
    pub went_out: u64,
    message_bytes: usize,
    received: &'a [u8],
    outgoing: &'a mut Vec<u8>,
    room: usize,
}

/// Whether a pipe goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PipeFlow {
    /// The pipe continues: its function is called again in the next period.
    On,
    /// It ends: this was its last job.
    End,
}

impl PipeJobContext<'_> {
    /// The messages that arrived since the last job.
    pub fn messages(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        self.received.chunks_exact(self.message_bytes)
    }

    /// The messages that arrived since the last job, one behind the other, without gaps.
    pub fn bytes(&self) -> &[u8] {
        self.received
    }

    /// Messages that may be sent in this job.
    pub fn room(&self) -> usize {
        self.room - self.outgoing.len() / self.message_bytes
    }

    /// Sends a message, if there is room and it has the endpoint's size.
    pub fn put(&mut self, message: &[u8]) -> bool {
        let fits = message.len() == self.message_bytes && self.room() > 0;
        if fits {
            self.outgoing.extend_from_slice(message);
        }
        fits
    }
}

/// A running pipe. Dropping it ends it.
pub struct Pipe<A> {
    end: PipeEnd,
    reserve: VcpuReserve,
    asked_per_s: u64,
    granted: PipeGrant,
    endpoint: Arc<PipeEndpoint>,
    inside: Arc<PipeInner>,
    thread: Option<JoinHandle<A>>,
}

#[derive(Default)]
struct PipeInner {
    is_ended: AtomicBool,
    counts: PiLock<PipeCounts>,
}

#[derive(Clone, Copy, Debug, Default)]
struct PipeCounts {
    jobs: PipeJobs,
    messages: u64,
    worst_ns: u64,
    behind_ns: u64,
    /// Since its first job.
    ran_ns: u64,
}

/// The paper's call: makes a pipe of this quality at one end of `endpoint`. It runs `function` with `argument` once a
/// period, on a processor that can carry it beside all others.
///
/// # Errors
/// [`PipeError`]: the endpoint or the processors cannot carry it, or it cannot be made.
pub fn tpipe<A: Send + 'static>(
    endpoint: &Arc<PipeEndpoint>,
    end: PipeEnd,
    quality: PipeQuality,
    mut function: impl FnMut(&mut PipeJobContext<'_>, &mut A) -> PipeFlow + Send + 'static,
    mut argument: A,
) -> Result<Pipe<A>, PipeError> {
    let PipeEnd { channel, direction } = end;
    let mut derived = None;
    endpoint.claim(channel, direction, &quality, |attributes, others| {
        let reserve = derive(attributes, others, &quality)?;
        let share = endpoint
            .processors()
            .share(VcpuReserve { period_ns: in_range("the pipe", reserve.period_ns)?, ..reserve })?;
        derived = Some((reserve, share));
        Ok(reserve.period_ns)
    })?;
    let (reserve, share) = derived.expect("a claim derives");
    // From here on a drop gives everything back.
    let inside = Arc::new(PipeInner::default());
    let granted = PipeGrant::default();
    let asked_per_s = messages_per_s(&quality, endpoint.message_bytes());
    let mut pipe = Pipe {
        end,
        reserve,
        asked_per_s,
        granted,
        endpoint: Arc::clone(endpoint),
        inside: Arc::clone(&inside),
        thread: None,
    };
    let (shared, message_bytes) = (Arc::clone(endpoint.shared()), endpoint.message_bytes());
    let quota = (quality.buffer_bytes as usize / message_bytes).max(1);
    let (tell, grants) = std::sync::mpsc::sync_channel(1);
    let name = format!("pipe-{}-{channel}", direction_name(direction));
    let thread = thread::Builder::new().name(name).spawn(move || {
        let (reservation, warnings) = share.reserve(reserve);
        let _ = tell.send(PipeGrant { policy: reservation.policy().to_string(), warnings });
        let (mut roster, mut counts, mut lag) =
            (JobSchedule::new(reserve), PipeCounts::default(), ChannelLag::new(asked_per_s));
        let room_bytes = quota * message_bytes;
        let (mut received, mut outgoing) = (Vec::with_capacity(2 * room_bytes), Vec::with_capacity(room_bytes));
        let mut first_ns = None;
        loop {
            let job = roster.next_job();
            counts.ran_ns = job.now_ns - *first_ns.get_or_insert(job.now_ns);
            let is_last = inside.is_ended.load(Ordering::Acquire) || shared.is_ended();
            received.clear();
            outgoing.clear();
            let (mut since_ns, mut room, mut went_out) = (job.now_ns, 0, 0);
            match direction {
                TransferDirection::In => since_ns = shared.take(channel, &mut received),
                TransferDirection::Out => {
                    (room, went_out) = shared.room(channel);
                    room = room.min(quota);
                }
            }
            let mut turn = PipeJobContext {
                now_ns: job.now_ns,
                missed: job.missed,
                jump: job.jump,
                went_out,
                message_bytes,
                received: &received,
                outgoing: &mut outgoing,
                room,
            };
            let flow = function(&mut turn, &mut argument);
            if !outgoing.is_empty() {
                shared.put(channel, message_bytes, &outgoing, now_ns());
            }
            if direction == TransferDirection::Out {
                // A function that used all of its room may have had more.
                let sent = outgoing.len() / message_bytes;
                lag.note(job.now_ns, sent as u64, sent == room);
                counts.behind_ns = lag.worst_ns();
            }
            counts.jobs = roster.end(job);
            counts.messages += ((received.len() + outgoing.len()) / message_bytes) as u64;
            if !received.is_empty() {
                counts.worst_ns = counts.worst_ns.max(now_ns().saturating_sub(since_ns));
            }
            *inside.counts.lock() = counts;
            if is_last || flow == PipeFlow::End {
                inside.is_ended.store(true, Ordering::Release);
                return argument;
            }
        }
    });
    pipe.thread = Some(thread.map_err(PipeError::System)?);
    pipe.granted = grants.recv().unwrap_or_default();
    Ok(pipe)
}

/// The stages of a message's way. Incoming messages pass the transfer, the receiving thread and the function; outgoing
/// ones, the reverse. A thread that looks once a period and is not woken may have looked as early, and look again as
/// late, as possible: two of its periods. Equation 9 has two for the receiving thread (bottom half and thread) and one
/// for the user's, which a message wakes there.
fn stages(direction: TransferDirection, transfer: PathSegment, receiver_ns: u64, period_ns: u64) -> Vec<PathSegment> {
    let [receiver, user] = [receiver_ns, period_ns].map(|period_ns| PathSegment::Server { period_ns });
    let mut stages = vec![transfer, receiver, receiver, user, user];
    if direction == TransferDirection::Out {
        stages.reverse();
    }
    stages
}

const fn direction_name(direction: TransferDirection) -> &'static str {
    match direction {
        TransferDirection::In => "in",
        TransferDirection::Out => "out",
    }
}

impl<A> Pipe<A> {
    /// Its execution time and period.
    pub fn reserve(&self) -> VcpuReserve {
        self.reserve
    }

    /// The stages of a message's way, as long as the endpoint keeps its present pipes. The worst delay over several
    /// pipes and hosts is the sum of theirs (Equation 10, [`worst_ns`]).
    pub fn stages(&self) -> Vec<PathSegment> {
        let receiver_ns = self.endpoint.period_ns();
        stages(self.end.direction, self.endpoint.transfer(), receiver_ns, self.reserve.period_ns)
    }

    /// The worst delay of a message, in nanoseconds.
    pub fn bound_ns(&self) -> u64 {
        worst_ns(&self.stages())
    }

    /// Whether its function or the device has ended.
    pub fn is_ended(&self) -> bool {
        self.inside.is_ended.load(Ordering::Acquire)
    }

    /// How well it has kept its promise so far.
    pub fn report(&self) -> PipeReport {
        let PipeEnd { channel, direction } = self.end;
        let lane = self.endpoint.shared().counts_of(channel, direction);
        let PipeCounts { jobs, messages, worst_ns, behind_ns, ran_ns } = *self.inside.counts.lock();
        PipeReport {
            channel,
            direction: direction_name(direction).into(),
            granted: self.granted.clone(),
            budget_ns: self.reserve.budget_ns,
            period_ns: self.reserve.period_ns,
            bound_ns: self.bound_ns(),
            equation_9_ns: self.bound_ns() - self.reserve.period_ns,
            worst_ns: worst_ns.max(lane.waited_ns),
            jobs,
            messages,
            lost: lane.lost,
            device_overruns: lane.device_lost,
            device_lost: lane.device_lost,
            cut_bytes: if direction == TransferDirection::In { self.endpoint.counts().cut_bytes } else { 0 },
            asked_per_s: self.asked_per_s,
            behind_ns: behind_ns.max(lane.behind_ns),
            went_out: lane.went_out,
            ran_ns,
            is_far_unreserved: self.endpoint.is_far_unreserved(),
            far_overruns: self.endpoint.far().overruns(),
        }
    }

    /// Ends it after one more job. Returns its argument, or `None` if its function panicked.
    pub fn stop(mut self) -> (Option<A>, PipeReport) {
        self.inside.is_ended.store(true, Ordering::Release);
        let argument = self.thread.take().and_then(|thread| thread.join().ok());
        let report = self.report();
        (argument, report)
    }
}

impl<A> Drop for Pipe<A> {
    fn drop(&mut self) {
        self.inside.is_ended.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            // A panic was reported when it happened.
            let _ = thread.join();
        }
        self.endpoint.release(self.end.channel, self.end.direction);
    }
}

impl<A> fmt::Debug for Pipe<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pipe").field("end", &self.end).field("reserve", &self.reserve).finish_non_exhaustive()
    }
}
