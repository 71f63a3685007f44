//! The links below one end of a session, one a lane, and how the thread waits that owns them.
//!
//! A link comes and goes; what else the thread waits on stays. While the two ends talk, and nothing else can matter
//! soon, the wait is the receive: two system calls a request, as without a session.

use std::cell::Cell;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use farbus_io::link::{Clock, Gathering, Link};
use farbus_model::Readiness;
use farbus_session::native::Lane;

use crate::link::status::{Counts, Links};

/// How long a receive waits for who has just spoken, while all that this puts off is an order to this thread. Linux
/// counts it in jiffies of 1 to 10 ms.
const TALK_PAUSE: Duration = Duration::from_millis(10);

/// What a thread with one end of a session waits on.
pub(crate) struct LinkSet {
    /// The first lane's.
    first: Option<LaneLink>,
    further: Vec<LaneLink>,
    /// Who is told of them.
    shown: Links,
    all: Gathering,
    /// Whether there is anything but links in it.
    has_others: Cell<bool>,
    /// Whether bytes came the last time that somebody looked.
    is_talking: bool,
    /// What came of a receive that was the wait.
    early: Option<io::Result<usize>>,
}

/// The link of one lane.
struct LaneLink {
    number: u16,
    link: Arc<Link>,
    counts: Arc<Counts>,
    /// Whether it takes no more for now.
    is_blocked: bool,
}

impl LaneLink {
    /// Takes in what is there, without waiting.
    fn receive(&self, lane: &mut Lane) -> io::Result<Option<usize>> {
        let received = self.link.try_receive(lane.receive_space());
        if let Ok(Some(count)) = received {
            lane.handle_received(count);
            self.counts.note_received(count);
        }
        received
    }

    /// Sends what can be sent; says whether the link took all of it.
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

    /// The same, and waits for room from now on while it did not.
    fn send(&mut self, lane: &mut Lane, clock: Clock, all: &Gathering) -> io::Result<()> {
        let is_out = self.transmit(lane, clock)?;
        match std::mem::replace(&mut self.is_blocked, !is_out) == is_out {
            true => all.watch(self.link.as_fd(), !is_out),
            false => Ok(()),
        }
    }
}

impl LinkSet {
    /// Without a link.
    pub fn new() -> io::Result<Self> {
        Self::shown_by(Links::default())
    }

    /// The same; its links are shown by `shown`.
    pub fn shown_by(shown: Links) -> io::Result<Self> {
        let (all, further) = (Gathering::new()?, Vec::new());
        Ok(Self { first: None, further, shown, all, has_others: Cell::new(false), is_talking: false, early: None })
    }

    /// What shows its links.
    pub fn shown(&self) -> &Links {
        &self.shown
    }

    /// The link.
    pub fn link(&self) -> Option<&Link> {
        self.first.as_ref().map(|strand| &*strand.link)
    }

    /// Whether no link takes more for now.
    pub fn is_blocked(&self) -> bool {
        self.is_first_blocked() && self.further.iter().all(|strand| strand.is_blocked)
    }

    fn is_first_blocked(&self) -> bool {
        self.first.as_ref().is_some_and(|strand| strand.is_blocked)
    }

    /// There is a link: the other end has been greeted on it.
    pub fn put(&mut self, link: Link) -> io::Result<()> {
        self.cut();
        self.first = Some(self.strand(0, link)?);
        self.limit_receive()
    }

    /// A receive that is the wait gives up only for the sake of what else is waited for: without that no timer is armed
    /// for each.
    fn limit_receive(&self) -> io::Result<()> {
        let time_max = self.has_others.get().then_some(TALK_PAUSE);
        self.link().map_or(Ok(()), |link| link.set_receive_timeout(time_max))
    }

    /// There is more than links to wait for, or there is not any more.
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

    /// The link is no use any more.
    pub fn cut(&mut self) {
        if let Some(strand) = self.first.take() {
            self.let_go(strand);
        }
        (self.is_talking, self.early) = (false, None);
    }

    /// There is a link for a further lane: the other end has been greeted on it.
    pub fn put_further(&mut self, number: u16, link: Link) -> io::Result<()> {
        self.cut_further(number);
        let strand = self.strand(number, link)?;
        self.further.push(strand);
        Ok(())
    }

    /// That link is no use any more.
    pub fn cut_further(&mut self, number: u16) {
        if let Some(at) = self.further.iter().position(|strand| strand.number == number) {
            let strand = self.further.swap_remove(at);
            self.let_go(strand);
        }
    }

    /// No link is any use any more.
    pub fn cut_all(&mut self) {
        self.cut();
        self.further().for_each(|number| self.cut_further(number));
    }

    /// Further lanes that have a link now.
    pub fn further(&self) -> impl Iterator<Item = u16> + use<> {
        let mut left = self.further.iter().fold(0_u64, |set, strand| set | 1 << strand.number);
        std::iter::from_fn(move || {
            let number = (left != 0).then(|| left.trailing_zeros() as u16);
            left &= left.wrapping_sub(1);
            number
        })
    }

    /// Waits for `fd` too.
    pub fn watch(&self, fd: impl AsFd) -> io::Result<()> {
        self.note_others(true)?;
        self.all.watch(fd.as_fd(), false)
    }

    /// Waits for a device too.
    pub fn watch_device(&self, readiness: &Readiness) -> io::Result<()> {
        self.note_others(true)?;
        self.all.watch_device(readiness)
    }

    /// Waits for the link alone from now on.
    pub fn watch_anew(&mut self) -> io::Result<()> {
        self.all = Gathering::new()?;
        self.note_others(false)?;
        let mut strands = self.first.iter().chain(&self.further);
        strands.try_for_each(|strand| self.all.watch(strand.link.as_fd(), strand.is_blocked))
    }

    /// What another thread's loop waits on for all of it.
    pub fn readiness(&self) -> Readiness {
        self.all.readiness()
    }

    /// Whether bytes wait inside while the socket is quiet.
    pub fn has_received(&self) -> bool {
        self.early.is_some() || self.first.iter().chain(&self.further).any(|strand| strand.link.has_received())
    }

    /// Waits until something may have happened, `span` at most. With `only_talk` a receive may be the wait: whatever
    /// else is waited for may then be late by 10 ms.
    pub fn wait(&mut self, lane: &mut Lane, span: Option<Duration>, only_talk: bool) -> io::Result<()> {
        // A receive that never gives up is no wait for a moment that comes.
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

    /// Takes in what is there, without waiting: how many bytes, 0 at the link's end, none if nothing is. As much as one
    /// receive brings: what comes out of it is used while it is at hand.
    pub fn receive(&mut self, lane: &mut Lane) -> io::Result<Option<usize>> {
        let Some(strand) = &self.first else { return Ok(None) };
        let received = match self.early.take() {
            Some(early) => early.map(Some),
            None => strand.receive(lane),
        };
        self.is_talking = matches!(received, Ok(Some(1..)));
        received
    }

    /// The same on the link of a further lane.
    pub fn receive_further(&mut self, number: u16, lane: &mut Lane) -> io::Result<Option<usize>> {
        let strand = self.further.iter().find(|strand| strand.number == number);
        strand.map_or(Ok(None), |strand| strand.receive(lane))
    }

    /// Sends what can be sent on the link of a further lane.
    pub fn send_further(&mut self, number: u16, lane: &mut Lane, clock: Clock) -> io::Result<()> {
        let strand = self.further.iter_mut().find(|strand| strand.number == number);
        strand.map_or(Ok(()), |strand| strand.send(lane, clock, &self.all))
    }

    /// Sends what can be sent.
    pub fn send(&mut self, lane: &mut Lane, clock: Clock) -> io::Result<()> {
        self.first.as_mut().map_or(Ok(()), |strand| strand.send(lane, clock, &self.all))
    }
}
