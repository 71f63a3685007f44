//! A port that behaves like a link: submitted requests travel when the host begins to wait, and completions on
//! different endpoints come in any order.

use farbus_host::{HostPort, HostPortError};
use farbus_model::{BufferPool, CompletionQueue, Device, EpAddr, Instant, Urb, UrbCompletion, UrbId};

use super::rng::Rng;

/// What went one way or the other.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    Submitted(UrbId, EpAddr, u32),
    Cancelled(UrbId),
    Done(UrbId, EpAddr),
}

pub struct TestPort<D> {
    pub device: D,
    pub now: Instant,
    /// How often the host waited after sending something: round trips.
    pub turns: usize,
    pub log: Vec<Event>,
    /// Reorders completions of different endpoints.
    pub shuffle: Option<Rng>,
    travelling: Vec<Sent>,
    done: CompletionQueue,
    held: Vec<UrbCompletion>,
}

enum Sent {
    Urb(Urb),
    Cancel(UrbId),
}

impl<D: Device> TestPort<D> {
    pub fn new(device: D) -> Self {
        Self {
            device,
            now: Instant::ZERO,
            turns: 0,
            log: Vec::new(),
            shuffle: None,
            travelling: Vec::new(),
            done: CompletionQueue::new(BufferPool::new(1 << 20)),
            held: Vec::new(),
        }
    }

    /// Resets the counters.
    pub fn forget(&mut self) {
        (self.turns, self.log) = (0, Vec::new());
    }

    /// What was submitted before anything came back: endpoint and length.
    pub fn submitted_at_first(&self) -> Vec<(u8, u32)> {
        let submitted = self.log.iter().map_while(|event| match event {
            Event::Submitted(_, endpoint, length) => Some((endpoint.as_byte(), *length)),
            _ => None,
        });
        submitted.collect()
    }

    fn deliver(&mut self) {
        if self.travelling.is_empty() {
            return;
        }
        self.turns += 1;
        for sent in std::mem::take(&mut self.travelling) {
            match sent {
                Sent::Urb(urb) => self.device.submit(self.now, urb.launch(), &mut self.done),
                Sent::Cancel(id) => self.device.cancel(self.now, id, &mut self.done),
            }
        }
    }

    fn next_done(&mut self) -> Option<UrbCompletion> {
        while let Some(done) = self.done.pop() {
            self.held.push(done);
        }
        if self.held.is_empty() {
            return None;
        }
        let mut at = 0;
        if let Some(rng) = &mut self.shuffle {
            at = rng.below(self.held.len() as u64) as usize;
            // Order holds on one endpoint.
            let endpoint = self.held[at].endpoint;
            at = self.held.iter().position(|done| done.endpoint == endpoint).unwrap();
        }
        let done = self.held.remove(at);
        self.log.push(Event::Done(done.id, done.endpoint));
        Some(done)
    }
}

impl<D: Device> HostPort for TestPort<D> {
    fn submit(&mut self, urb: Urb) {
        self.log.push(Event::Submitted(urb.id, urb.endpoint, urb.length));
        self.travelling.push(Sent::Urb(urb));
    }

    fn cancel(&mut self, id: UrbId) {
        self.log.push(Event::Cancelled(id));
        self.travelling.push(Sent::Cancel(id));
    }

    fn wait(&mut self, until: Option<Instant>) -> Result<Option<UrbCompletion>, HostPortError> {
        self.deliver();
        if let Some(done) = self.next_done() {
            return Ok(Some(done));
        }
        match until {
            Some(until) => {
                self.now = self.now.max(until);
                Ok(None)
            }
            None => Err(HostPortError::Idle),
        }
    }

    fn now(&self) -> Instant {
        self.now
    }
}
