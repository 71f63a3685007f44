//! The link below one end of a session, and how the thread waits that owns it.
//!
//! A link comes and goes; what else the thread waits on stays. While the two ends talk, and nothing else can matter soon, the wait is the
//! receive: two system calls a request, as without a session.

use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

use farbus_io::link::{Clock, Gathering, Link};
use farbus_model::Readiness;
use farbus_session::native::Lane;

/// How long a receive waits for who has just spoken, while all that this puts off is an order to this thread. Linux counts it in jiffies of 1
/// to 10 ms.
const TALK_PAUSE: Duration = Duration::from_millis(10);

/// What a thread with one end of a session waits on.
pub(crate) struct Cable {
    link: Option<Link>,
    /// Whether the link takes no more for now.
    is_blocked: bool,
    all: Gathering,
    /// Whether bytes came the last time that somebody looked.
    is_talking: bool,
    /// What came of a receive that was the wait.
    early: Option<io::Result<usize>>,
}

impl Cable {
    /// Without a link.
    pub fn new() -> io::Result<Self> {
        Ok(Self { link: None, is_blocked: false, all: Gathering::new()?, is_talking: false, early: None })
    }

    /// The link.
    pub fn link(&self) -> Option<&Link> {
        self.link.as_ref()
    }

    /// Whether the link takes no more for now.
    pub fn is_blocked(&self) -> bool {
        self.is_blocked
    }

    /// There is a link: the other end has been greeted on it.
    pub fn put(&mut self, link: Link) -> io::Result<()> {
        self.cut();
        link.set_receive_timeout(Some(TALK_PAUSE))?;
        self.all.watch(link.as_fd(), false)?;
        self.link = Some(link);
        Ok(())
    }

    /// The link is no use any more.
    pub fn cut(&mut self) {
        if let Some(link) = self.link.take() {
            self.all.forget(link.as_fd());
            link.shut_down();
        }
        (self.is_blocked, self.is_talking, self.early) = (false, false, None);
    }

    /// Waits for `fd` too.
    pub fn watch(&self, fd: impl AsFd) -> io::Result<()> {
        self.all.watch(fd.as_fd(), false)
    }

    /// Waits for a device too.
    pub fn watch_device(&self, readiness: &Readiness) -> io::Result<()> {
        self.all.watch_device(readiness)
    }

    /// Waits for the link alone from now on.
    pub fn watch_anew(&mut self) -> io::Result<()> {
        self.all = Gathering::new()?;
        match &self.link {
            Some(link) => self.all.watch(link.as_fd(), self.is_blocked),
            None => Ok(()),
        }
    }

    /// What another thread's loop waits on for all of it.
    pub fn readiness(&self) -> Readiness {
        self.all.readiness()
    }

    /// Whether bytes wait inside while the socket is quiet.
    pub fn has_received(&self) -> bool {
        self.early.is_some() || self.link.as_ref().is_some_and(Link::has_received)
    }

    /// Waits until something may have happened, `span` at most. With `only_talk` a receive may be the wait: whatever else is waited for
    /// may then be late by 10 ms.
    pub fn wait(&mut self, lane: &mut Lane, span: Option<Duration>, only_talk: bool) -> io::Result<()> {
        let is_long = span.is_none_or(|span| span > TALK_PAUSE);
        let Some(link) = self.link.as_ref().filter(|_| only_talk && self.is_talking && is_long && !self.is_blocked)
        else {
            return self.all.wait(if self.has_received() { Some(Duration::ZERO) } else { span });
        };
        match link.receive(lane.receive_space()) {
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
                self.is_talking = false;
            }
            received => {
                if let Ok(count) = received {
                    lane.handle_received(count);
                }
                self.early = Some(received);
            }
        }
        Ok(())
    }

    /// Takes in what is there, without waiting: how many bytes, 0 at the link's end, none if nothing is. As much as one receive brings:
    /// what comes out of it is used while it is at hand.
    pub fn receive(&mut self, lane: &mut Lane) -> io::Result<Option<usize>> {
        let Some(link) = &self.link else { return Ok(None) };
        let received = match self.early.take() {
            Some(early) => early.map(Some),
            None => {
                let received = link.try_receive(lane.receive_space());
                if let Ok(Some(count)) = received {
                    lane.handle_received(count);
                }
                received
            }
        };
        self.is_talking = matches!(received, Ok(Some(1..)));
        received
    }

    /// Sends what can be sent.
    pub fn send(&mut self, lane: &mut Lane, clock: Clock) -> io::Result<()> {
        let Some(link) = &self.link else { return Ok(()) };
        while lane.has_transmit() {
            let sent = link.try_send(&lane.poll_transmit(clock.now()))?;
            match sent {
                Some(count) => lane.handle_transmitted(count),
                None => return self.set_blocked(true),
            }
        }
        let is_out = link.try_flush()?;
        self.set_blocked(!is_out)
    }

    fn set_blocked(&mut self, is_blocked: bool) -> io::Result<()> {
        match &self.link {
            Some(link) if std::mem::replace(&mut self.is_blocked, is_blocked) != is_blocked => {
                self.all.watch(link.as_fd(), is_blocked)
            }
            _ => Ok(()),
        }
    }
}
