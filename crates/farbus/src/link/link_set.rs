//! The links below one end of a session, one for each lane, and how the session's thread waits on them.
//!
//! Links come and go; the other descriptors that the thread waits on stay. While the two ends exchange messages and
//! nothing else can happen soon, the thread blocks in the receive call: two system calls a request, as without a
//! session.

use std::cell::Cell;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use farbus_io_net::link::{BoottimeClock, EpollSet, Link, TickTimer};
use farbus_model::{Instant, ReadinessSource};
use farbus_session::SendSlices;
use farbus_session::native::{Lane, LaneArray, LinkWindow, PeerSilence, ReplySpacing, SILENCE_TICK};

use crate::link::status::{LaneByteCounts, SessionLinks};

/// How long a receive may block while it delays other events, which are orders to this thread. Linux counts the timeout
/// in jiffies of 1 to 10 ms.
const TALK_PAUSE: Duration = Duration::from_millis(10);

/// Why a link is lost whose peer sends nothing and answers no ping.
pub(crate) const SILENT: &str = "the peer sends nothing and answers no ping, though something on the way acknowledges";

/// The links of one end of a session, and the other descriptors that its thread waits on.
pub(crate) struct LinkSet {
    /// In the order of their lanes.
    links: Vec<LaneLink>,
    /// Where the links are shown.
    shown: SessionLinks,
    all: EpollSet,
    /// Whether `all` has anything but links.
    has_others: Cell<bool>,
    /// Whether the last receive on the first lane brought bytes.
    is_talking: bool,
    /// The result of a receive call on the first lane in which the thread waited.
    early: Option<io::Result<usize>>,
    /// When to look whether peers are silent; `None` if nobody looks.
    ticks: Option<TickTimer>,
}

/// The link of one lane.
struct LaneLink {
    number: u16,
    link: Arc<Link>,
    counts: Arc<LaneByteCounts>,
    /// Whether the socket took no more bytes at the last attempt.
    is_blocked: bool,
    spacing: ReplySpacing,
    silence: PeerSilence,
    /// When it was made.
    since: std::time::Instant,
    /// Until when what waits on the lane is held.
    held_until: Option<Instant>,
}

impl LaneLink {
    fn new(number: u16, link: Arc<Link>, counts: Arc<LaneByteCounts>) -> Self {
        let (spacing, silence) = (ReplySpacing::default(), PeerSilence::default());
        let since = std::time::Instant::now();
        Self { number, link, counts, is_blocked: false, spacing, silence, since, held_until: None }
    }

    /// Receives what is there, without blocking.
    fn receive(&self, lane: &mut Lane) -> io::Result<Option<usize>> {
        let received = self.link.try_receive(lane.receive_space());
        if let Ok(Some(count)) = received {
            lane.handle_received(count);
            self.counts.note_received(count);
        }
        received
    }

    /// Sends what can be sent without blocking. Returns whether the link took all of it.
    fn transmit(&mut self, lane: &mut Lane, clock: BoottimeClock) -> io::Result<bool> {
        while lane.has_transmit() {
            let now = clock.now();
            let mut runs = SendSlices::new();
            lane.poll_transmit_into(now, &mut runs);
            let sent = self.link.try_send(&runs)?;
            drop(runs);
            match sent {
                Some(count) => {
                    lane.handle_transmitted(count);
                    self.spacing.note_sent(now);
                    self.counts.note_sent(count);
                }
                None => return Ok(false),
            }
        }
        self.link.try_flush()
    }

    /// Until when to hold what waits on the lane; `None`: it is sent now.
    fn hold(&mut self, lane: &Lane, clock: BoottimeClock) -> Option<Instant> {
        // While the socket has no room, the thread waits for room, and not for a moment.
        if self.is_blocked || !lane.may_defer() {
            return None;
        }
        self.spacing.hold_until(clock.now(), lane, || {
            let window = self.link.send_window()?;
            Some(LinkWindow { round_trip: window.round_trip, segments: window.segments })
        })
    }

    /// Sends what can be sent, unless it is held, and watches for room while something is left.
    fn send(&mut self, lane: &mut Lane, clock: BoottimeClock, all: &EpollSet) -> io::Result<()> {
        self.held_until = self.hold(lane, clock);
        if self.held_until.is_some() {
            return Ok(());
        }
        let is_out = self.transmit(lane, clock)?;
        match std::mem::replace(&mut self.is_blocked, !is_out) == is_out {
            true => all.watch(self.link.as_fd(), !is_out),
            false => Ok(()),
        }
    }
}

impl LinkSet {
    pub fn new() -> io::Result<Self> {
        Self::shown_by(SessionLinks::default())
    }

    /// A link set without links, which shows its links in `shown`.
    pub fn shown_by(shown: SessionLinks) -> io::Result<Self> {
        let (all, links) = (EpollSet::new()?, Vec::new());
        Ok(Self { links, shown, all, has_others: Cell::new(false), is_talking: false, early: None, ticks: None })
    }

    /// Where the links are shown.
    pub fn shown(&self) -> &SessionLinks {
        &self.shown
    }

    /// The link of the first lane, if there is one.
    pub fn link(&self) -> Option<&Link> {
        self.of(0).map(|lane_link| &*lane_link.link)
    }

    /// For how long a lane has had its link; `None` without one.
    pub fn age(&self, number: u16) -> Option<Duration> {
        self.of(number).map(|lane_link| lane_link.since.elapsed())
    }

    fn of(&self, number: u16) -> Option<&LaneLink> {
        self.links.iter().find(|lane_link| lane_link.number == number)
    }

    /// Whether no link takes more bytes at the moment; never without a link of the first lane.
    pub fn is_blocked(&self) -> bool {
        self.of(0).is_some() && self.links.iter().all(|lane_link| lane_link.is_blocked)
    }

    /// When to send what is held on a lane: call [`LinkSet::send`] then.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.links.iter().filter_map(|lane_link| lane_link.held_until).min()
    }

    /// Adds the link of a lane, on which the greeting is over. It replaces the lane's earlier one.
    pub fn put(&mut self, number: u16, link: Link) -> io::Result<()> {
        self.cut(number);
        self.all.watch(link.as_fd(), false)?;
        let link = Arc::new(link);
        let counts = self.shown.note_up(number, &link);
        let at = self.links.partition_point(|other| other.number < number);
        self.links.insert(at, LaneLink::new(number, link, counts));
        if number == 0 { self.limit_receive() } else { Ok(()) }
    }

    /// Sets the timeout of a blocking receive, only if the thread also waits for something else. Without a timeout the
    /// kernel arms no timer for each receive.
    fn limit_receive(&self) -> io::Result<()> {
        let time_max = self.has_others.get().then_some(TALK_PAUSE);
        self.link().map_or(Ok(()), |link| link.set_receive_timeout(time_max))
    }

    /// Notes whether the thread waits for anything but links.
    fn note_others(&self, has_others: bool) -> io::Result<()> {
        match self.has_others.replace(has_others) == has_others {
            true => Ok(()),
            false => self.limit_receive(),
        }
    }

    /// Drops the link of a lane, if it has one.
    pub fn cut(&mut self, number: u16) {
        if let Some(at) = self.links.iter().position(|lane_link| lane_link.number == number) {
            let lane_link = self.links.remove(at);
            self.shown.note_down(number);
            self.all.forget(lane_link.link.as_fd());
            lane_link.link.shut_down();
        }
        if number == 0 {
            (self.is_talking, self.early) = (false, None);
        }
    }

    /// Drops all links.
    pub fn cut_all(&mut self) {
        self.lanes().for_each(|number| self.cut(number));
    }

    /// The lanes that have a link now, the first one first.
    pub fn lanes(&self) -> impl Iterator<Item = u16> + use<> {
        let mut left = self.links.iter().fold(0_u64, |set, lane_link| set | 1 << lane_link.number);
        std::iter::from_fn(move || {
            let number = (left != 0).then(|| left.trailing_zeros() as u16);
            left &= left.wrapping_sub(1);
            number
        })
    }

    /// Also waits for `fd` from now on.
    pub fn watch(&self, fd: impl AsFd) -> io::Result<()> {
        self.note_others(true)?;
        self.all.watch(fd.as_fd(), false)
    }

    /// Also waits for a device from now on.
    pub fn watch_device(&self, readiness: &ReadinessSource) -> io::Result<()> {
        self.note_others(true)?;
        self.all.watch_device(readiness)
    }

    /// Looks from now on whether peers are silent: see [`LinkSet::silent`].
    pub fn watch_silence(&mut self, clock: BoottimeClock) -> io::Result<()> {
        let ticks = TickTimer::start(clock, SILENCE_TICK)?;
        self.watch(&ticks)?;
        self.ticks = Some(ticks);
        Ok(())
    }

    /// The lanes whose peer has been silent for too long; nothing, at no cost, unless it is time to look. Call it after
    /// everything was received that there is. `is_busy`: see [`PeerSilence::handle_tick`].
    pub fn silent(&mut self, now: Instant, lanes: &mut LaneArray, is_busy: bool) -> io::Result<Vec<u16>> {
        let Some(ticks) = &mut self.ticks else { return Ok(Vec::new()) };
        if !ticks.take(now)? {
            return Ok(Vec::new());
        }
        let is_silent = |lane_link: &mut LaneLink| {
            let lane = lanes.get_mut(lane_link.number)?;
            let received_bytes = lane_link.counts.received();
            lane_link.silence.handle_tick(lane, received_bytes, is_busy).then_some(lane_link.number)
        };
        Ok(self.links.iter_mut().filter_map(is_silent).collect())
    }

    /// Waits for links only from now on, and for the time to look whether peers are silent.
    pub fn watch_anew(&mut self) -> io::Result<()> {
        self.all = EpollSet::new()?;
        self.note_others(self.ticks.is_some())?;
        self.ticks.iter().try_for_each(|ticks| self.all.watch(ticks.as_fd(), false))?;
        self.links.iter().try_for_each(|lane_link| self.all.watch(lane_link.link.as_fd(), lane_link.is_blocked))
    }

    /// The readiness of all of it, for the loop of another thread.
    pub fn readiness(&self) -> ReadinessSource {
        self.all.readiness()
    }

    /// Whether received bytes wait inside a link while its socket is not readable.
    pub fn has_received(&self) -> bool {
        self.early.is_some() || self.links.iter().any(|lane_link| lane_link.link.has_received())
    }

    /// Waits until something may have happened, `span` at most. With `only_talk` the thread may block in the receive
    /// call of the first lane's link, if there is no other; other events may then be noticed 10 ms late.
    pub fn wait(&mut self, lane: &mut Lane, span: Option<Duration>, only_talk: bool) -> io::Result<()> {
        // A receive without a timeout cannot wait for a moment that comes.
        let is_long = span.is_none_or(|span| span > TALK_PAUSE && self.has_others.get());
        let lane_link = match &self.links[..] {
            [only] if only.number == 0 && !only.is_blocked && only_talk && self.is_talking && is_long => only,
            _ => return self.all.wait(if self.has_received() { Some(Duration::ZERO) } else { span }),
        };
        match lane_link.link.receive(lane.receive_space()) {
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
                self.is_talking = false;
            }
            received => {
                if let Ok(count) = received {
                    lane.handle_received(count);
                    lane_link.counts.note_received(count);
                }
                self.early = Some(received);
            }
        }
        Ok(())
    }

    /// Receives on the link of a lane without blocking. Returns the number of bytes, 0 at the end of the link, or
    /// `None` if there are none. Each call is one receive, so that its bytes are processed while they are in the
    /// processor's cache.
    pub fn receive(&mut self, number: u16, lane: &mut Lane) -> io::Result<Option<usize>> {
        let early = if number == 0 { self.early.take() } else { None };
        let received = match (early, self.of(number)) {
            (Some(early), _) => early.map(Some),
            (None, Some(lane_link)) => lane_link.receive(lane),
            (None, None) => Ok(None),
        };
        if number == 0 {
            self.is_talking = matches!(received, Ok(Some(1..)));
        }
        received
    }

    /// Sends what can be sent on the link of a lane.
    pub fn send(&mut self, number: u16, lane: &mut Lane, clock: BoottimeClock) -> io::Result<()> {
        let lane_link = self.links.iter_mut().find(|lane_link| lane_link.number == number);
        lane_link.map_or(Ok(()), |lane_link| lane_link.send(lane, clock, &self.all))
    }
}
