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

use farbus_io::link::{Clock, Gathering, Link};
use farbus_model::Readiness;
use farbus_session::native::Lane;

use crate::link::status::{Counts, Links};

/// How long a receive may block while it delays other events, which are orders to this thread. Linux counts the timeout
/// in jiffies of 1 to 10 ms.
const TALK_PAUSE: Duration = Duration::from_millis(10);

/// The links of one end of a session, and the other descriptors that its thread waits on.
pub(crate) struct LinkSet {
    /// The link of the first lane.
    first: Option<LaneLink>,
    further: Vec<LaneLink>,
    /// Where the links are shown.
    shown: Links,
    all: Gathering,
    /// Whether `all` has anything but links.
    has_others: Cell<bool>,
    /// Whether the last receive brought bytes.
    is_talking: bool,
    /// The result of a receive call in which the thread waited.
    early: Option<io::Result<usize>>,
}

/// The link of one lane.
struct LaneLink {
    number: u16,
    link: Arc<Link>,
    counts: Arc<Counts>,
    /// Whether the socket took no more bytes at the last attempt.
    is_blocked: bool,
}

impl LaneLink {
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
    fn transmit(&self, lane: &mut Lane, clock: Clock) -> io::Result<bool> {
        while lane.has_transmit() {
            let sent = self.link.try_send(&lane.poll_transmit(clock.now()))?;
            match sent {
                Some(count) => {
                    lane.handle_transmitted(count);
                    self.counts.note_sent(count);
                }
                None => return Ok(false),
            }
        }
        self.link.try_flush()
    }

    /// Sends what can be sent, and watches for room while something is left.
    fn send(&mut self, lane: &mut Lane, clock: Clock, all: &Gathering) -> io::Result<()> {
        let is_out = self.transmit(lane, clock)?;
        match std::mem::replace(&mut self.is_blocked, !is_out) == is_out {
            true => all.watch(self.link.as_fd(), !is_out),
            false => Ok(()),
        }
    }
}

impl LinkSet {
    pub fn new() -> io::Result<Self> {
        Self::shown_by(Links::default())
    }

    /// A link set without links, which shows its links in `shown`.
    pub fn shown_by(shown: Links) -> io::Result<Self> {
        let (all, further) = (Gathering::new()?, Vec::new());
        Ok(Self { first: None, further, shown, all, has_others: Cell::new(false), is_talking: false, early: None })
    }

    /// Where the links are shown.
    pub fn shown(&self) -> &Links {
        &self.shown
    }

    /// The link of the first lane, if there is one.
    pub fn link(&self) -> Option<&Link> {
        self.first.as_ref().map(|strand| &*strand.link)
    }

    /// Whether no link takes more bytes at the moment.
    pub fn is_blocked(&self) -> bool {
        self.is_first_blocked() && self.further.iter().all(|strand| strand.is_blocked)
    }

    fn is_first_blocked(&self) -> bool {
        self.first.as_ref().is_some_and(|strand| strand.is_blocked)
    }

    /// Adds the link of the first lane, on which the greeting is over.
    pub fn put(&mut self, link: Link) -> io::Result<()> {
        self.cut();
        self.first = Some(self.strand(0, link)?);
        self.limit_receive()
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

    fn strand(&self, number: u16, link: Link) -> io::Result<LaneLink> {
        self.all.watch(link.as_fd(), false)?;
        let link = Arc::new(link);
        let counts = self.shown.note_up(number, &link);
        Ok(LaneLink { number, link, counts, is_blocked: false })
    }

    fn let_go(&self, strand: LaneLink) {
        self.shown.note_down(strand.number);
        self.all.forget(strand.link.as_fd());
        strand.link.shut_down();
    }

    /// Drops the link of the first lane.
    pub fn cut(&mut self) {
        if let Some(strand) = self.first.take() {
            self.let_go(strand);
        }
        (self.is_talking, self.early) = (false, None);
    }

    /// Adds the link of a further lane, on which the greeting is over.
    pub fn put_further(&mut self, number: u16, link: Link) -> io::Result<()> {
        self.cut_further(number);
        let strand = self.strand(number, link)?;
        self.further.push(strand);
        Ok(())
    }

    /// Drops the link of a further lane.
    pub fn cut_further(&mut self, number: u16) {
        if let Some(at) = self.further.iter().position(|strand| strand.number == number) {
            let strand = self.further.swap_remove(at);
            self.let_go(strand);
        }
    }

    /// Drops all links.
    pub fn cut_all(&mut self) {
        self.cut();
        self.further().for_each(|number| self.cut_further(number));
    }

    /// The further lanes that have a link.
    pub fn further(&self) -> impl Iterator<Item = u16> + use<> {
        let mut left = self.further.iter().fold(0_u64, |set, strand| set | 1 << strand.number);
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
    pub fn watch_device(&self, readiness: &Readiness) -> io::Result<()> {
        self.note_others(true)?;
        self.all.watch_device(readiness)
    }

    /// Waits for links only from now on.
    pub fn watch_anew(&mut self) -> io::Result<()> {
        self.all = Gathering::new()?;
        self.note_others(false)?;
        let mut strands = self.first.iter().chain(&self.further);
        strands.try_for_each(|strand| self.all.watch(strand.link.as_fd(), strand.is_blocked))
    }

    /// The readiness of all of it, for the loop of another thread.
    pub fn readiness(&self) -> Readiness {
        self.all.readiness()
    }

    /// Whether received bytes wait inside a link while its socket is not readable.
    pub fn has_received(&self) -> bool {
        self.early.is_some() || self.first.iter().chain(&self.further).any(|strand| strand.link.has_received())
    }

    /// Waits until something may have happened, `span` at most. With `only_talk` the thread may block in the receive
    /// call; other events may then be noticed 10 ms late.
    pub fn wait(&mut self, lane: &mut Lane, span: Option<Duration>, only_talk: bool) -> io::Result<()> {
        // A receive without a timeout cannot wait for a moment that comes.
        let is_long = span.is_none_or(|span| span > TALK_PAUSE && self.has_others.get());
        let may_receive =
            only_talk && self.is_talking && is_long && !self.is_first_blocked() && self.further.is_empty();
        let Some(strand) = self.first.as_ref().filter(|_| may_receive) else {
            return self.all.wait(if self.has_received() { Some(Duration::ZERO) } else { span });
        };
        match strand.link.receive(lane.receive_space()) {
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
                self.is_talking = false;
            }
            received => {
                if let Ok(count) = received {
                    lane.handle_received(count);
                    strand.counts.note_received(count);
                }
                self.early = Some(received);
            }
        }
        Ok(())
    }

    /// Receives without blocking. Returns the number of bytes, 0 at the end of the link, or `None` if there are none.
    /// Each call is one receive, so that its bytes are processed while they are in the processor's cache.
    pub fn receive(&mut self, lane: &mut Lane) -> io::Result<Option<usize>> {
        let Some(strand) = &self.first else { return Ok(None) };
        let received = match self.early.take() {
            Some(early) => early.map(Some),
            None => strand.receive(lane),
        };
        self.is_talking = matches!(received, Ok(Some(1..)));
        received
    }

    /// Receives on the link of a further lane, as [`LinkSet::receive`] does.
    pub fn receive_further(&mut self, number: u16, lane: &mut Lane) -> io::Result<Option<usize>> {
        let strand = self.further.iter().find(|strand| strand.number == number);
        strand.map_or(Ok(None), |strand| strand.receive(lane))
    }

    /// Sends what can be sent on the link of a further lane.
    pub fn send_further(&mut self, number: u16, lane: &mut Lane, clock: Clock) -> io::Result<()> {
        let strand = self.further.iter_mut().find(|strand| strand.number == number);
        strand.map_or(Ok(()), |strand| strand.send(lane, clock, &self.all))
    }

    /// Sends what can be sent on the link of the first lane.
    pub fn send(&mut self, lane: &mut Lane, clock: Clock) -> io::Result<()> {
        self.first.as_mut().map_or(Ok(()), |strand| strand.send(lane, clock, &self.all))
    }
}
