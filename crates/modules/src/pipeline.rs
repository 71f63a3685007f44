//! Several halves in sequence.

use std::collections::{BTreeMap, VecDeque};

use farbus_model::Instant;
use farbus_model::module::{
    ASIDE_BYTES_MAX, GROWTH_BYTES_MAX, Module, ModuleFailure, ModuleFailureCause, ModuleMessage, ModuleMessageKind,
    ModuleNeighbor, ModuleOutput,
};

/// The halves of one end, from the device or the user to the link. The other end has their other halves in the same
/// order, so that it first undoes what was done last here.
pub struct ModulePipeline {
    halves: Vec<PipelineSlot>,
    /// Messages between the halves.
    moving: VecDeque<MessageInTransit>,
    turn: ModuleOutput,
}

/// A half in its place, and the messages that it has.
struct PipelineSlot {
    name: String,
    half: Box<dyn Module>,
    /// What it was given and has not passed on, by kind and id.
    kept: BTreeMap<(u8, u64), MessageHold>,
    /// The moments at which something was given to it, the oldest first; those that it passed on since are left out
    /// when they come to the front.
    given: VecDeque<(Instant, (u8, u64))>,
}

/// A message that a half has.
#[derive(Clone, Copy)]
struct MessageHold {
    since: Instant,
    /// The half that made it, if one of this pipeline did.
    maker: Option<u8>,
}

/// Memory of one note: an entry of a tree.
const KEPT_BYTES: usize = 2 * (size_of::<(u8, u64)>() + size_of::<MessageHold>());

/// A message on its way to a half.
struct MessageInTransit {
    to: usize,
    from: ModuleNeighbor,
    message: ModuleMessage,
    maker: Option<u8>,
}

impl PipelineSlot {
    fn new((name, half): (String, Box<dyn Module>)) -> Self {
        Self { name, half, kept: BTreeMap::new(), given: VecDeque::new() }
    }

    /// Notes that the half has this message now.
    fn take(&mut self, now: Instant, message: &ModuleMessage, maker: Option<u8>) {
        if let Some(key) = key_of(message) {
            self.kept.insert(key, MessageHold { since: now, maker });
            if self.half.hold_max().is_some() {
                self.given.push_back((now, key));
            }
        }
    }

    /// Notes that the half put this message out. Returns which half made it: this one (`at`), unless it was given it.
    fn give(&mut self, at: u8, message: &ModuleMessage) -> Option<u8> {
        let key = key_of(message)?;
        let had = self.kept.remove(&key);
        if message.kind == ModuleMessageKind::Completion {
            // A half that answers a request itself keeps neither it nor its cancellation.
            for kind in [ModuleMessageKind::Request, ModuleMessageKind::Cancel] {
                self.kept.remove(&(kind.code(), message.id));
            }
        }
        if message.kind == ModuleMessageKind::Cancelled {
            self.kept.remove(&(ModuleMessageKind::Cancel.code(), message.id));
        }
        had.map_or(Some(at), |kept| kept.maker)
    }

    /// When the oldest message is kept too long.
    fn deadline(&self) -> Option<Instant> {
        let hold_max = self.half.hold_max()?;
        self.oldest().map(|(since, _)| since + hold_max)
    }

    fn oldest(&self) -> Option<(Instant, (u8, u64))> {
        let is_kept = |&&(since, key): &&(Instant, (u8, u64))| self.is_kept(since, key);
        self.given.iter().find(is_kept).copied()
    }

    fn is_kept(&self, since: Instant, key: (u8, u64)) -> bool {
        self.kept.get(&key).is_some_and(|kept| kept.since == since)
    }

    /// Memory of the notes on what it has. A message that left inside another one stays noted until the next one with
    /// its id.
    fn noted_bytes(&self) -> usize {
        self.kept.len() * KEPT_BYTES + self.given.len() * size_of::<(Instant, (u8, u64))>()
    }

    fn forget_passed(&mut self) {
        while self.given.front().is_some_and(|&(since, key)| !self.is_kept(since, key)) {
            self.given.pop_front();
        }
    }
}

/// What a half must pass on or answer; not events, which it may drop, nor words to its other half.
fn key_of(message: &ModuleMessage) -> Option<(u8, u64)> {
    let is_owed = !matches!(message.kind, ModuleMessageKind::Event | ModuleMessageKind::Aside(_));
    is_owed.then(|| (message.kind.code(), message.id))
}

impl ModulePipeline {
    /// Makes a pipeline of these named halves; the last is next to the link.
    pub fn new(halves: Vec<(String, Box<dyn Module>)>) -> Self {
        Self {
            halves: halves.into_iter().map(PipelineSlot::new).collect(),
            moving: VecDeque::new(),
            turn: ModuleOutput::default(),
        }
    }

    /// The names of its halves, in order; the last is next to the link.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.halves.iter().map(|slot| slot.name.as_str())
    }

    /// The words with which a failure of the half at `at` begins: its name, and its position if there are several.
    pub fn title(&self, at: usize) -> String {
        let name = self.halves.get(at).map_or("?", |slot| slot.name.as_str());
        match self.halves.len() {
            0 | 1 => format!("module '{name}'"),
            count => format!("module '{name}' ({} of {count})", at + 1),
        }
    }

    /// Handles a message from above or below, which passes all halves. Messages of one kind and direction keep their
    /// order.
    pub fn handle(&mut self, now: Instant, from: ModuleNeighbor, message: ModuleMessage, out: &mut ModuleOutput) {
        let Some(last) = self.halves.len().checked_sub(1) else { return out.pass(from, message) };
        let maker = None;
        match (from, message.kind) {
            (ModuleNeighbor::Below, ModuleMessageKind::Aside(to)) if usize::from(to) > last => {
                out.fail(ModuleFailureCause::Peer, format!("a word for module {to}, and there are {}", last + 1));
            }
            (ModuleNeighbor::Below, _) => {
                self.moving.push_back(MessageInTransit { to: last, from: arrives(last, &message), message, maker });
            }
            (ModuleNeighbor::Above | ModuleNeighbor::Peer, _) => {
                self.moving.push_back(MessageInTransit { to: 0, from: ModuleNeighbor::Above, message, maker })
            }
        }
        self.settle(now, out);
    }

    /// When [`ModulePipeline::handle_timeout`] wants to be called.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.halves.iter().filter_map(|slot| slot.half.poll_timeout()).min()
    }

    /// When [`ModulePipeline::check_deadlines`] wants to be called: a half then has kept a message for as long as it
    /// may ([`Module::hold_max`]).
    pub fn poll_deadline(&self) -> Option<Instant> {
        self.halves.iter().filter_map(PipelineSlot::deadline).min()
    }

    /// Fails if a half has kept a message for longer than it may.
    pub fn check_deadlines(&mut self, now: Instant, out: &mut ModuleOutput) {
        for at in 0..self.halves.len() {
            let slot = &mut self.halves[at];
            slot.forget_passed();
            if slot.deadline().is_some_and(|deadline| deadline <= now)
                && let Some((_, (kind, id))) = slot.oldest()
                && let Some(hold_max) = slot.half.hold_max()
            {
                let what =
                    if kind == ModuleMessageKind::Completion.code() { "the answer to request" } else { "request" };
                let why = format!(
                    "{}: it has had {what} {id} for {hold_max:?} and neither passed it on nor answered it; if it needs \
                     longer, say so on its own host: hold=60s",
                    self.title(at)
                );
                out.fail(ModuleFailureCause::Module, why);
            }
        }
    }

    /// Called when the moment of one of the halves may have come.
    pub fn handle_timeout(&mut self, now: Instant, out: &mut ModuleOutput) {
        for at in 0..self.halves.len() {
            let half = &mut self.halves[at].half;
            if half.poll_timeout().is_some_and(|due| due <= now) {
                half.handle_timeout(now, &mut self.turn);
                self.collect(at, None, out);
                self.settle(now, out);
            }
        }
    }

    /// The owner pauses all messages, or resumes them.
    pub fn pause(&mut self, now: Instant, is_paused: bool, out: &mut ModuleOutput) {
        for at in 0..self.halves.len() {
            self.halves[at].half.pause(now, is_paused, &mut self.turn);
            self.collect(at, None, out);
            self.settle(now, out);
        }
    }

    /// Memory of what the halves hold back, and of what is noted of it, bytes.
    pub fn held_bytes(&self) -> usize {
        self.halves.iter().map(|slot| slot.half.held_bytes() + slot.noted_bytes()).sum()
    }

    /// Whether no half holds a message back.
    pub fn is_at_rest(&self) -> bool {
        self.halves.iter().all(|slot| slot.half.is_at_rest())
    }

    /// The states with which another process can continue, half by half, while at rest; `None` if it cannot.
    pub fn save(&self) -> Option<Vec<Vec<u8>>> {
        self.halves.iter().map(|slot| slot.half.save()).collect()
    }

    /// Makes this new pipeline continue from saved states. Returns whether it can.
    pub fn restore(&mut self, state: &[Vec<u8>]) -> bool {
        state.len() == self.halves.len()
            && self.halves.iter_mut().zip(state).all(|(slot, state)| slot.half.restore(state))
    }

    fn settle(&mut self, now: Instant, out: &mut ModuleOutput) {
        while let Some(MessageInTransit { to, from, message, maker }) = self.moving.pop_front() {
            let slot = &mut self.halves[to];
            slot.take(now, &message, maker);
            // Of an event, which is not noted, the same call decides: it was passed on, or another was made.
            let event = (message.kind == ModuleMessageKind::Event).then_some((message.id, maker));
            slot.half.handle(now, from, message, &mut self.turn);
            self.collect(to, event, out);
        }
        self.halves.iter_mut().for_each(PipelineSlot::forget_passed);
    }

    /// Passes on what the half at this place put out. `event`: the id of the event that it was given in this call, and
    /// which half made that.
    fn collect(&mut self, at: usize, mut event: Option<(u64, Option<u8>)>, out: &mut ModuleOutput) {
        if let Some(ModuleFailure { trouble, why }) = self.turn.failure() {
            out.fail(trouble, format!("{}: {why}", self.title(at)));
        }
        (0..self.turn.take_lost()).for_each(|_| out.lose());
        while let Some((to, mut message)) = self.turn.pop() {
            if to == ModuleNeighbor::Peer {
                message.kind = ModuleMessageKind::Aside(at as u8);
                if message.len() > ASIDE_BYTES_MAX {
                    let bytes = message.len();
                    out.fail(
                        ModuleFailureCause::Module,
                        format!("{}: a word of {bytes} bytes to its peer", self.title(at)),
                    );
                    continue;
                }
            } else if message.head.len() > HEAD_BYTES_MAX {
                let bytes = message.head.len();
                out.fail(ModuleFailureCause::Module, format!("{}: a head of {bytes} bytes", self.title(at)));
                continue;
            }
            let given = event.take_if(|(id, _)| message.kind == ModuleMessageKind::Event && message.id == *id);
            let maker = match (message.kind, given) {
                (ModuleMessageKind::Event, Some((_, maker))) => maker,
                (ModuleMessageKind::Event, None) => Some(at as u8),
                _ => self.halves[at].give(at as u8, &message),
            };
            match (to, at) {
                (ModuleNeighbor::Above, 0) => out.put(to, message, maker),
                (ModuleNeighbor::Above, _) => {
                    self.moving.push_back(MessageInTransit {
                        to: at - 1,
                        from: arrives(at - 1, &message),
                        message,
                        maker,
                    });
                }
                _ if at + 1 == self.halves.len() => out.put(ModuleNeighbor::Below, message, maker),
                _ => {
                    self.moving.push_back(MessageInTransit { to: at + 1, from: ModuleNeighbor::Above, message, maker })
                }
            }
        }
    }
}

/// Bytes of a head at most: an isochronous schedule's, plus what the halves add.
const HEAD_BYTES_MAX: usize = (16 << 10) + GROWTH_BYTES_MAX;

/// From which side a half at this place sees a message that comes up from the link.
fn arrives(at: usize, message: &ModuleMessage) -> ModuleNeighbor {
    if message.kind == ModuleMessageKind::Aside(at as u8) { ModuleNeighbor::Peer } else { ModuleNeighbor::Below }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// Sends the number of each message to its peer, and records what it receives.
    #[derive(Default)]
    struct Gossip {
        heard: std::sync::Arc<std::sync::Mutex<Vec<u8>>>,
    }

    impl Module for Gossip {
        fn handle(&mut self, _now: Instant, from: ModuleNeighbor, message: ModuleMessage, out: &mut ModuleOutput) {
            if from == ModuleNeighbor::Peer {
                return self.heard.lock().unwrap().extend(message.payload.into_vec());
            }
            if from == ModuleNeighbor::Above && !matches!(message.kind, ModuleMessageKind::Aside(_)) {
                out.aside(vec![message.id as u8].into());
            }
            out.pass(from, message);
        }

        fn held_bytes(&self) -> usize {
            0
        }
    }

    fn message(kind: ModuleMessageKind, id: u64) -> ModuleMessage {
        ModuleMessage { kind, id, head: vec![1].into(), payload: vec![2; 10].into() }
    }

    #[test]
    fn a_word_to_the_peer_passes_the_halves_below_and_reaches_its_pair_only() {
        let heard: [std::sync::Arc<std::sync::Mutex<Vec<u8>>>; 2] = Default::default();
        let near = || ("gossip".to_owned(), Box::<Gossip>::default() as Box<dyn Module>);
        let far = |at: usize| ("gossip".to_owned(), Box::new(Gossip { heard: heard[at].clone() }) as Box<dyn Module>);
        let mut importer = ModulePipeline::new(vec![near(), near()]);
        let mut exporter = ModulePipeline::new(vec![far(0), far(1)]);
        let (mut below, mut above) = (ModuleOutput::default(), ModuleOutput::default());
        importer.handle(Instant::ZERO, ModuleNeighbor::Above, message(ModuleMessageKind::Request, 9), &mut below);
        let mut kinds = Vec::new();
        while let Some((side, message)) = below.pop() {
            assert_eq!(side, ModuleNeighbor::Below);
            kinds.push(message.kind);
            exporter.handle(Instant::ZERO, ModuleNeighbor::Below, message, &mut above);
        }
        assert_eq!(kinds, [ModuleMessageKind::Aside(0), ModuleMessageKind::Aside(1), ModuleMessageKind::Request]);
        assert_eq!(above.pop(), Some((ModuleNeighbor::Above, message(ModuleMessageKind::Request, 9))));
        assert_eq!((above.pop(), above.failure()), (None, None));
        assert_eq!(heard.map(|heard| heard.lock().unwrap().clone()), [vec![9], vec![9]]);
        exporter.handle(Instant::ZERO, ModuleNeighbor::Below, message(ModuleMessageKind::Aside(2), 0), &mut above);
        assert_eq!(above.failure().map(|failure| failure.trouble), Some(ModuleFailureCause::Peer));
        assert_eq!(importer.names().collect::<Vec<_>>(), ["gossip", "gossip"]);
        assert_eq!(importer.save(), None, "a gossip stays where it is");
    }

    struct Liar;

    impl Module for Liar {
        fn handle(&mut self, _now: Instant, _from: ModuleNeighbor, message: ModuleMessage, out: &mut ModuleOutput) {
            match message.id {
                0 => out.aside(vec![0; ASIDE_BYTES_MAX + 1].into()),
                _ => out.below(ModuleMessage { head: vec![0; 1 << 20].into(), ..message }),
            }
        }

        fn held_bytes(&self) -> usize {
            0
        }
    }

    #[test]
    fn message_beyond_the_limit_ends_the_attachment() {
        for id in [0, 1] {
            let mut pipeline = ModulePipeline::new(vec![("liar".to_owned(), Box::new(Liar))]);
            let mut out = ModuleOutput::default();
            pipeline.handle(Instant::ZERO, ModuleNeighbor::Above, message(ModuleMessageKind::Request, id), &mut out);
            let failure = out.failure().expect("it is found out");
            assert_eq!((failure.trouble, out.pop()), (ModuleFailureCause::Module, None));
            assert!(failure.why.starts_with("module 'liar': "), "{failure}");
        }
    }

    /// Keeps what it is told to keep, sends everything else on, and twice what it is told to double.
    struct Odd {
        keeps: Option<ModuleMessageKind>,
        doubles: bool,
    }

    impl Module for Odd {
        fn handle(&mut self, _now: Instant, from: ModuleNeighbor, message: ModuleMessage, out: &mut ModuleOutput) {
            if self.doubles {
                out.pass(from, message.clone());
            }
            if self.keeps != Some(message.kind) {
                out.pass(from, message);
            }
        }

        fn hold_max(&self) -> Option<Duration> {
            Some(Duration::from_secs(30))
        }

        fn held_bytes(&self) -> usize {
            0
        }
    }

    fn odd(name: &str, keeps: Option<ModuleMessageKind>, doubles: bool) -> (String, Box<dyn Module>) {
        (name.to_owned(), Box::new(Odd { keeps, doubles }))
    }

    fn at(seconds: u64) -> Instant {
        Instant::ZERO + Duration::from_secs(seconds)
    }

    #[test]
    fn half_that_keeps_a_request_or_an_answer_too_long_is_named_with_its_position() {
        for (kept, side) in [
            (ModuleMessageKind::Request, ModuleNeighbor::Above),
            (ModuleMessageKind::Completion, ModuleNeighbor::Below),
        ] {
            let halves = vec![odd("plain", None, false), odd("swallow", Some(kept), false)];
            let (mut pipeline, mut out) = (ModulePipeline::new(halves), ModuleOutput::default());
            let passing = if kept == ModuleMessageKind::Request {
                ModuleMessageKind::Completion
            } else {
                ModuleMessageKind::Request
            };
            pipeline.handle(at(0), side, message(passing, 1), &mut out);
            assert_eq!((out.pop().is_some(), pipeline.poll_deadline()), (true, None), "what passes has no deadline");
            pipeline.handle(at(1), side, message(kept, 7), &mut out);
            assert_eq!((out.pop(), pipeline.poll_deadline()), (None, Some(at(31))));
            pipeline.check_deadlines(at(30), &mut out);
            assert_eq!(out.failure(), None);
            pipeline.check_deadlines(at(31), &mut out);
            let ModuleFailure { trouble, why } = out.failure().expect("it is too late");
            assert_eq!(trouble, ModuleFailureCause::Module);
            assert!(
                why.starts_with("module 'swallow' (2 of 2): it has had ") && why.contains("request 7 for 30s"),
                "{why}"
            );
        }
    }

    #[test]
    fn half_that_answers_a_request_itself_has_no_deadline_left() {
        struct Answering;
        impl Module for Answering {
            fn handle(&mut self, _now: Instant, _from: ModuleNeighbor, message: ModuleMessage, out: &mut ModuleOutput) {
                out.above(ModuleMessage { kind: ModuleMessageKind::Completion, ..message });
            }

            fn held_bytes(&self) -> usize {
                0
            }
            fn hold_max(&self) -> Option<Duration> {
                Some(Duration::from_secs(30))
            }
        }
        let mut pipeline = ModulePipeline::new(vec![("answering".to_owned(), Box::new(Answering))]);
        let mut out = ModuleOutput::default();
        pipeline.handle(at(0), ModuleNeighbor::Above, message(ModuleMessageKind::Request, 3), &mut out);
        assert_eq!(
            out.pop().map(|(side, message)| (side, message.kind)),
            Some((ModuleNeighbor::Above, ModuleMessageKind::Completion))
        );
        assert_eq!(pipeline.poll_deadline(), None);
    }

    #[test]
    fn message_that_a_half_made_names_its_maker_through_the_halves_behind_it() {
        let halves = vec![odd("first", None, false), odd("dup", None, true), odd("last", None, false)];
        let (mut pipeline, mut out) = (ModulePipeline::new(halves), ModuleOutput::default());
        for kind in [ModuleMessageKind::Request, ModuleMessageKind::Event] {
            pipeline.handle(at(0), ModuleNeighbor::Above, message(kind, 9), &mut out);
            let makers: Vec<_> = std::iter::from_fn(|| out.pop_made()).map(|(_, _, maker)| maker).collect();
            assert_eq!(makers, [None, Some(1)], "{kind:?}");
        }
        assert_eq!(pipeline.title(1), "module 'dup' (2 of 3)");
    }
}
