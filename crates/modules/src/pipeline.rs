//! Several halves in sequence.

use std::collections::VecDeque;

use farbus_model::Instant;
use farbus_model::module::{ASIDE_BYTES_MAX, Failure, GROWTH_BYTES_MAX, Kind, Message, Module, Side, Trouble, Turn};

/// The halves of one end, from the device or the user to the link. The other end has their other halves in the same
/// order, so that it first undoes what was done last here.
pub struct Pipeline {
    halves: Vec<(String, Box<dyn Module>)>,
    /// Messages between the halves: the place each goes to, and from where.
    moving: VecDeque<(usize, Side, Message)>,
    turn: Turn,
}

impl Pipeline {
    /// Makes a pipeline of these named halves; the last is next to the link.
    pub fn new(halves: Vec<(String, Box<dyn Module>)>) -> Self {
        Self { halves, moving: VecDeque::new(), turn: Turn::default() }
    }

    /// Their names.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.halves.iter().map(|(name, _)| name.as_str())
    }

    /// Handles a message from above or below, which passes all halves. Messages of one kind and direction keep their
    /// order.
    pub fn handle(&mut self, now: Instant, from: Side, message: Message, out: &mut Turn) {
        let Some(last) = self.halves.len().checked_sub(1) else { return out.pass(from, message) };
        match (from, message.kind) {
            (Side::Below, Kind::Aside(to)) if usize::from(to) > last => {
                out.fail(Trouble::Peer, format!("a word for module {to}, and there are {}", last + 1));
            }
            (Side::Below, _) => self.moving.push_back((last, arrives(last, &message), message)),
            (Side::Above | Side::Peer, _) => self.moving.push_back((0, Side::Above, message)),
        }
        self.settle(now, out);
    }

    /// When [`Pipeline::handle_timeout`] wants to be called.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.halves.iter().filter_map(|(_, half)| half.poll_timeout()).min()
    }

    /// Called when the moment of one of the halves may have come.
    pub fn handle_timeout(&mut self, now: Instant, out: &mut Turn) {
        for at in 0..self.halves.len() {
            let (_, half) = &mut self.halves[at];
            if half.poll_timeout().is_some_and(|due| due <= now) {
                half.handle_timeout(now, &mut self.turn);
                self.collect(at, out);
                self.settle(now, out);
            }
        }
    }

    /// The owner pauses all messages, or resumes them.
    pub fn pause(&mut self, now: Instant, is_paused: bool, out: &mut Turn) {
        for at in 0..self.halves.len() {
            self.halves[at].1.pause(now, is_paused, &mut self.turn);
            self.collect(at, out);
            self.settle(now, out);
        }
    }

    /// Whether no half holds a message back.
    pub fn is_at_rest(&self) -> bool {
        self.halves.iter().all(|(_, half)| half.is_at_rest())
    }

    /// The states with which another process can continue, half by half, while at rest; `None` if it cannot.
    pub fn save(&self) -> Option<Vec<Vec<u8>>> {
        self.halves.iter().map(|(_, half)| half.save()).collect()
    }

    /// Makes this new pipeline continue from saved states. Returns whether it can.
    pub fn restore(&mut self, state: &[Vec<u8>]) -> bool {
        state.len() == self.halves.len()
            && self.halves.iter_mut().zip(state).all(|((_, half), state)| half.restore(state))
    }

    fn settle(&mut self, now: Instant, out: &mut Turn) {
        while let Some((at, side, message)) = self.moving.pop_front() {
            self.halves[at].1.handle(now, side, message, &mut self.turn);
            self.collect(at, out);
        }
    }

    /// Passes on what the half at this place put out.
    fn collect(&mut self, at: usize, out: &mut Turn) {
        if let Some(Failure { trouble, why }) = self.turn.failure() {
            out.fail(trouble, format!("module '{}': {why}", self.halves[at].0));
        }
        (0..self.turn.take_lost()).for_each(|_| out.lose());
        while let Some((to, mut message)) = self.turn.pop() {
            if to == Side::Peer {
                message.kind = Kind::Aside(at as u8);
                if message.len() > ASIDE_BYTES_MAX {
                    let bytes = message.len();
                    out.fail(
                        Trouble::Module,
                        format!("module '{}': a word of {bytes} bytes to its peer", self.halves[at].0),
                    );
                    continue;
                }
            } else if message.head.len() > HEAD_BYTES_MAX {
                let bytes = message.head.len();
                out.fail(Trouble::Module, format!("module '{}': a head of {bytes} bytes", self.halves[at].0));
                continue;
            }
            match (to, at) {
                (Side::Above, 0) => out.above(message),
                (Side::Above, _) => self.moving.push_back((at - 1, arrives(at - 1, &message), message)),
                _ if at + 1 == self.halves.len() => out.below(message),
                _ => self.moving.push_back((at + 1, Side::Above, message)),
            }
        }
    }
}

/// Bytes of a head at most: an isochronous schedule's, plus what the halves add.
const HEAD_BYTES_MAX: usize = (16 << 10) + GROWTH_BYTES_MAX;

/// From which side a half at this place sees a message that comes up from the link.
fn arrives(at: usize, message: &Message) -> Side {
    if message.kind == Kind::Aside(at as u8) { Side::Peer } else { Side::Below }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sends the number of each message to its peer, and records what it receives.
    #[derive(Default)]
    struct Gossip {
        heard: std::sync::Arc<std::sync::Mutex<Vec<u8>>>,
    }

    impl Module for Gossip {
        fn handle(&mut self, _now: Instant, from: Side, message: Message, out: &mut Turn) {
            if from == Side::Peer {
                return self.heard.lock().unwrap().extend(message.payload.into_vec());
            }
            if from == Side::Above && !matches!(message.kind, Kind::Aside(_)) {
                out.aside(vec![message.id as u8].into());
            }
            out.pass(from, message);
        }
    }

    fn message(kind: Kind, id: u64) -> Message {
        Message { kind, id, head: vec![1].into(), payload: vec![2; 10].into() }
    }

    #[test]
    fn a_word_to_the_peer_passes_the_halves_below_and_reaches_its_pair_only() {
        let heard: [std::sync::Arc<std::sync::Mutex<Vec<u8>>>; 2] = Default::default();
        let near = || ("gossip".to_owned(), Box::<Gossip>::default() as Box<dyn Module>);
        let far = |at: usize| ("gossip".to_owned(), Box::new(Gossip { heard: heard[at].clone() }) as Box<dyn Module>);
        let mut importer = Pipeline::new(vec![near(), near()]);
        let mut exporter = Pipeline::new(vec![far(0), far(1)]);
        let (mut below, mut above) = (Turn::default(), Turn::default());
        importer.handle(Instant::ZERO, Side::Above, message(Kind::Request, 9), &mut below);
        let mut kinds = Vec::new();
        while let Some((side, message)) = below.pop() {
            assert_eq!(side, Side::Below);
            kinds.push(message.kind);
            exporter.handle(Instant::ZERO, Side::Below, message, &mut above);
        }
        assert_eq!(kinds, [Kind::Aside(0), Kind::Aside(1), Kind::Request]);
        assert_eq!(above.pop(), Some((Side::Above, message(Kind::Request, 9))));
        assert_eq!((above.pop(), above.failure()), (None, None));
        assert_eq!(heard.map(|heard| heard.lock().unwrap().clone()), [vec![9], vec![9]]);
        exporter.handle(Instant::ZERO, Side::Below, message(Kind::Aside(2), 0), &mut above);
        assert_eq!(above.failure().map(|failure| failure.trouble), Some(Trouble::Peer));
        assert_eq!(importer.names().collect::<Vec<_>>(), ["gossip", "gossip"]);
        assert_eq!(importer.save(), None, "a gossip stays where it is");
    }

    struct Liar;

    impl Module for Liar {
        fn handle(&mut self, _now: Instant, _from: Side, message: Message, out: &mut Turn) {
            match message.id {
                0 => out.aside(vec![0; ASIDE_BYTES_MAX + 1].into()),
                _ => out.below(Message { head: vec![0; 1 << 20].into(), ..message }),
            }
        }
    }

    #[test]
    fn message_beyond_the_limit_ends_the_attachment() {
        for id in [0, 1] {
            let mut pipeline = Pipeline::new(vec![("liar".to_owned(), Box::new(Liar))]);
            let mut out = Turn::default();
            pipeline.handle(Instant::ZERO, Side::Above, message(Kind::Request, id), &mut out);
            let failure = out.failure().expect("it is found out");
            assert_eq!((failure.trouble, out.pop()), (Trouble::Module, None));
            assert!(failure.why.starts_with("module 'liar': "), "{failure}");
        }
    }
}
