//! Makes the links of a session. Name lookups and handshakes take time, so a thread makes them; it is there only while
//! a link is wanted, because a host may have a thousand sessions, of which none has lost its links.

use std::io;
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use farbus_io_net::link::{Link, SegmentSize, ThreadWaker};
use farbus_session::native::hello::{ExporterWelcome, ImporterHello};
use tracing::warn;

use crate::link::greeting;

/// How long a greeting may take.
pub const GREETING_TIME_MAX: Duration = Duration::from_secs(5);
/// The first pause between two tries for a link; each pause is twice the one before.
const PAUSE: Duration = Duration::from_millis(50);
/// The longest pause.
pub const PAUSE_MAX: Duration = Duration::from_secs(1);

/// Makes a link to the exporter, whose segments over TCP are this large. The error `PermissionDenied` means that the
/// exporter refuses, and is final; after any other error the session tries again.
pub type DialCallback = Box<dyn FnMut(SegmentSize) -> io::Result<Link> + Send>;

/// The result of dialling: a link on which the exporter has answered, or the exporter's refusal.
pub type DialOutcome = Result<(Link, ExporterWelcome), String>;

/// Makes links, on a thread that is there only while one is wanted.
pub struct SessionDialer {
    maker: Arc<LinkMaker>,
    links: Receiver<DialOutcome>,
    wake: Arc<ThreadWaker>,
}

/// What the session and the thread that makes its links share.
struct LinkMaker {
    state: Mutex<LinkMakerState>,
    changed: Condvar,
    made: Sender<DialOutcome>,
    wake: Arc<ThreadWaker>,
}

struct LinkMakerState {
    /// `None` while the thread uses it.
    dial: Option<DialCallback>,
    wanting: Vec<UnlinkedLane>,
    segments: SegmentSize,
    has_thread: bool,
    /// Whether the session has ended.
    is_over: bool,
}

impl SessionDialer {
    /// Makes links with `dial`, as they are asked for.
    ///
    /// # Errors
    /// The system has no more descriptors.
    pub fn new(dial: DialCallback) -> io::Result<Self> {
        let (made, links) = mpsc::channel();
        let wake = Arc::new(ThreadWaker::new()?);
        let (wanting, segments) = (Vec::new(), SegmentSize::OfNetworks);
        let making = LinkMakerState { dial: Some(dial), wanting, segments, has_thread: false, is_over: false };
        let maker = LinkMaker { state: Mutex::new(making), changed: Condvar::new(), made, wake: Arc::clone(&wake) };
        Ok(Self { maker: Arc::new(maker), links, wake })
    }

    /// Asks for a link for the lane that this greeting names, after a pause.
    pub fn dial(&self, hello: ImporterHello, after: Duration) {
        let mut making = self.maker.state();
        making.wanting.retain(|other| other.hello.position.lane != hello.position.lane);
        making.wanting.push(UnlinkedLane { hello, at: std::time::Instant::now() + after, pause: PAUSE });
        if making.has_thread {
            self.maker.changed.notify_all();
            return;
        }
        let maker = Arc::clone(&self.maker);
        let spawned = thread::Builder::new().name("dial".into()).stack_size(512 << 10).spawn(move || maker.run());
        match spawned {
            Ok(_) => making.has_thread = true,
            Err(error) => warn!(%error, "no link is made: there is no thread for it"),
        }
    }

    /// Makes links with small segments from now on. Returns whether they were larger before.
    pub fn bound_segments(&self) -> bool {
        std::mem::replace(&mut self.maker.state().segments, SegmentSize::Bounded) != SegmentSize::Bounded
    }

    /// The next link that was made, or the refusal.
    pub fn poll_link(&self) -> Option<DialOutcome> {
        self.links.try_recv().ok()
    }

    /// Woken when a link was made.
    pub fn wake(&self) -> &Arc<ThreadWaker> {
        &self.wake
    }
}

impl Drop for SessionDialer {
    fn drop(&mut self) {
        self.maker.state().is_over = true;
        self.maker.changed.notify_all();
    }
}

impl LinkMaker {
    fn state(&self) -> MutexGuard<'_, LinkMakerState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes links until none is wanted.
    fn run(&self) {
        while let Some((mut dial, mut wanting)) = self.next() {
            let segments = self.state().segments;
            let dialled = try_once(&mut dial, segments, &mut wanting);
            let mut making = self.state();
            making.dial = Some(dial);
            match dialled {
                Some(dialled) => {
                    // The session may have ended meanwhile.
                    let _ = self.made.send(dialled);
                    self.wake.wake();
                }
                None => {
                    let lane = wanting.hello.position.lane;
                    if making.wanting.iter().all(|other| other.hello.position.lane != lane) {
                        making.wanting.push(wanting);
                    }
                }
            }
        }
    }

    /// Waits until it is time to try for a link. Returns `None` if none is wanted: the thread ends.
    fn next(&self) -> Option<(DialCallback, UnlinkedLane)> {
        let mut making = self.state();
        loop {
            let next = (0..making.wanting.len()).min_by_key(|&at| making.wanting[at].at);
            let Some(next) = next.filter(|_| !making.is_over) else {
                making.has_thread = false;
                return None;
            };
            let span = making.wanting[next].at.saturating_duration_since(std::time::Instant::now());
            if span.is_zero()
                && let Some(dial) = making.dial.take()
            {
                return Some((dial, making.wanting.swap_remove(next)));
            }
            let waited = self.changed.wait_timeout(making, span);
            making = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// A lane that needs a link.
struct UnlinkedLane {
    hello: ImporterHello,
    /// When to try next, and how long to pause after that.
    at: std::time::Instant,
    pause: Duration,
}

fn try_once(
    dial: &mut DialCallback,
    segments: SegmentSize,
    UnlinkedLane { hello, at, pause }: &mut UnlinkedLane,
) -> Option<DialOutcome> {
    match dial(segments) {
        Ok(link) => match greeting::greet(&link, hello, GREETING_TIME_MAX) {
            Ok(welcome) => return Some(Ok((link, welcome))),
            // The exporter may have counted this link: the next try has another number.
            Err(_) => hello.position.link += 1,
        },
        // The first lane decides about the session.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied && hello.position.lane == 0 => {
            return Some(Err(error.to_string()));
        }
        Err(_) => {}
    }
    *at = std::time::Instant::now() + *pause;
    *pause = (*pause * 2).min(PAUSE_MAX);
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use farbus_session::native::hello::{HelloOptions, LanePosition};

    #[test]
    fn thread_that_makes_links_is_there_only_while_one_is_wanted() {
        let (thread_names, asking) = mpsc::channel();
        let dial = move |_| {
            thread_names.send(thread::current().name().map(str::to_owned)).unwrap();
            Err(io::Error::new(io::ErrorKind::PermissionDenied, "refused"))
        };
        let dialer = SessionDialer::new(Box::new(dial)).unwrap();
        assert!(!dialer.maker.state().has_thread);
        for _ in 0..2 {
            dialer.dial(ImporterHello::new(LanePosition::default(), HelloOptions::default()), Duration::ZERO);
            assert_eq!(asking.recv().unwrap().as_deref(), Some("dial"));
            let mut making = dialer.maker.state();
            while making.has_thread {
                drop(making);
                thread::yield_now();
                making = dialer.maker.state();
            }
            drop(making);
            assert!(dialer.wake().take());
            assert_eq!(dialer.poll_link().unwrap().err().as_deref(), Some("refused"));
            assert!(dialer.poll_link().is_none());
        }
    }
}
