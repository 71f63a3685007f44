//! What travels between an importer and an exporter, seen from between them: a transformation module is one half of a
//! pair that changes it on one side and changes it back on the other (requirements I1, I2).
//!
//! The same contract above and below: what one half gives to the link the other half is given by it, so pairs lie
//! within pairs.
//!
//! ```text
//!    importer ── half ── half ══════ half ── half ── exporter
//!              above  below    link    below  above
//! ```
//!
//! | the rule | why |
//! |---|---|
//! | messages of one kind and way leave in the order in which they came | devices count on the order of their requests |
//! | a request that a half keeps, it completes itself, once | a request cannot vanish |
//! | a withdrawal never passes its own request | it would find nothing |
//! | a half that cannot go on says so ([`Turn::fail`]) | its attachment ends, and says why |

use std::collections::VecDeque;
use std::fmt;

use crate::payload::Payload;
use crate::time::Instant;

/// Modules that an attachment goes through at most. The 2013 paper measures eight.
pub const PAIRS_MAX: usize = 8;
/// Bytes of one message between the halves of a pair.
pub const ASIDE_BYTES_MAX: usize = 16 << 10;
/// Bytes by which all modules together may make a message longer: 8 seals of some 40 bytes, and compression that did
/// not help.
pub const GROWTH_BYTES_MAX: usize = 4 << 10;

/// What a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// The importer asks for something; completed once.
    Request,
    /// How it ended. An empty head: as it should.
    Completion,
    /// The importer withdraws the request of this id.
    Cancel,
    /// The exporter has seen the withdrawal, whatever it met.
    Cancelled,
    /// Something that nobody asked for.
    Event,
    /// One half's word to the other of its pair; the number says which pair.
    Aside(u8),
}

impl Kind {
    /// Its number, where it is written down (`docs/modules.md`).
    pub const fn code(self) -> u8 {
        match self {
            Kind::Request => 0,
            Kind::Completion => 1,
            Kind::Cancel => 2,
            Kind::Cancelled => 3,
            Kind::Event => 4,
            Kind::Aside(_) => 5,
        }
    }
}

/// A message. Its payload is moved, not copied.
#[derive(Clone, Debug, PartialEq)]
pub struct Message {
    /// What it is.
    pub kind: Kind,
    /// Which request it is about, among those in flight; 0 of what is about none.
    pub id: u64,
    /// The device class's own words (`docs/protocol.md`), or what a half above made of them.
    pub head: Payload,
    /// Data.
    pub payload: Payload,
}

impl Message {
    /// Bytes of it.
    pub fn len(&self) -> usize {
        self.head.len() + self.payload.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Where a message comes from, seen from a half.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Side {
    /// From the importer's user, or from the exporter's device: it goes to the link.
    Above,
    /// From the link.
    Below,
    /// From the other half of the pair: a [`Kind::Aside`].
    Peer,
}

/// Which half of a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// The one where the device is used.
    Importer,
    /// The one where the device is.
    Exporter,
}

/// What kind of device a pair serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Class {
    /// USB devices.
    Usb,
    /// Block devices.
    Block,
    /// Streams.
    Stream,
    /// Something that only its users know.
    Private,
}

impl Class {
    /// All of them.
    pub const ALL: &[Class] = &[Class::Usb, Class::Block, Class::Stream, Class::Private];

    /// What people call it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Class::Usb => "usb",
            Class::Block => "block",
            Class::Stream => "stream",
            Class::Private => "private",
        }
    }
}

/// One half of a pair. Sans-IO: it is told what came and when, and says what goes.
pub trait Module: Send {
    /// A message came from `from`. What goes on goes to `out`, now or at any later call.
    fn handle(&mut self, now: Instant, from: Side, message: Message, out: &mut Turn);

    /// When [`Module::handle_timeout`] wants to be called, if at all.
    fn poll_timeout(&self) -> Option<Instant> {
        None
    }

    /// The moment of [`Module::poll_timeout`] has come.
    fn handle_timeout(&mut self, now: Instant, out: &mut Turn) {
        let _ = (now, out);
    }

    /// Its owner wants nothing to pass, or all again. Most do not mind.
    fn pause(&mut self, now: Instant, is_paused: bool, out: &mut Turn) {
        let _ = (now, is_paused, out);
    }

    /// Whether it holds no message back.
    fn is_at_rest(&self) -> bool {
        true
    }

    /// At rest: what another process needs to be this half. `None`: no other can be.
    fn save(&self) -> Option<Vec<u8>> {
        None
    }

    /// A new half, made like the one that was saved, is that one. Says whether it can be.
    fn restore(&mut self, state: &[u8]) -> bool {
        let _ = state;
        false
    }
}

/// Why a pair cannot go on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Whose trouble it is.
    pub trouble: Trouble,
    /// A sentence for a person.
    pub why: String,
}

/// Whose trouble a failure is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Trouble {
    /// The other end said what no half of this kind says: another key, bytes that are no compressed ones.
    Peer,
    /// The way between the halves is gone.
    Network,
    /// The module itself: it crashed, hung, lied or flooded.
    Module,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.why)
    }
}

impl std::error::Error for Failure {}

/// What a half says during one call.
#[derive(Debug, Default)]
pub struct Turn {
    said: VecDeque<(Side, Message)>,
    lost: u32,
    failure: Option<Failure>,
}

impl Turn {
    /// To the importer's user, or to the exporter's device.
    pub fn above(&mut self, message: Message) {
        self.said.push_back((Side::Above, message));
    }

    /// To the link.
    pub fn below(&mut self, message: Message) {
        self.said.push_back((Side::Below, message));
    }

    /// To the other half of the pair.
    pub fn aside(&mut self, bytes: Payload) {
        let (kind, id, head) = (Kind::Aside(0), 0, Payload::Empty);
        self.said.push_back((Side::Peer, Message { kind, id, head, payload: bytes }));
    }

    /// On its way: what came from above goes below, and the other way round. A word from the peer goes nowhere.
    pub fn pass(&mut self, from: Side, message: Message) {
        match from {
            Side::Above => self.below(message),
            Side::Below => self.above(message),
            Side::Peer => {}
        }
    }

    /// An event that came goes nowhere: what was granted for it is granted anew.
    pub fn lose(&mut self) {
        self.lost += 1;
    }

    /// How many events went nowhere since this was asked last.
    pub fn take_lost(&mut self) -> u32 {
        std::mem::take(&mut self.lost)
    }

    /// It cannot go on: the attachment ends.
    pub fn fail(&mut self, trouble: Trouble, why: impl Into<String>) {
        self.failure.get_or_insert(Failure { trouble, why: why.into() });
    }

    /// What was said next, and where it goes.
    pub fn pop(&mut self) -> Option<(Side, Message)> {
        self.said.pop_front()
    }

    /// Why it cannot go on, if it cannot.
    pub fn failure(&mut self) -> Option<Failure> {
        self.failure.take()
    }
}

/// What a module is: what is negotiated, listed and explained.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Manifest {
    /// Its name: a word.
    pub name: &'static str,
    /// The version of what its halves say to each other: both have the same one.
    pub version: u16,
    /// A line for a list.
    pub summary: &'static str,
    /// The classes it serves.
    pub classes: &'static [Class],
    /// What it may be told.
    pub parameters: &'static [Parameter],
    /// What it does to what passes.
    pub effects: Effects,
    /// What it costs, for people: latency, memory, processor.
    pub cost: &'static str,
    /// Its manual.
    pub manual: &'static str,
}

/// What a module does to what passes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Effects {
    /// Data may arrive that was not sent, or none: a fault, for tests.
    pub is_fault: bool,
    /// It can go on in another process (restart, migration).
    pub is_movable: bool,
}

/// Something that a module may be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parameter {
    /// Its name.
    pub name: &'static str,
    /// What is understood.
    pub form: Form,
    /// What holds if nothing is said; none: it has to be said.
    pub default: Option<&'static str>,
    /// What it means.
    pub what: &'static str,
    /// Each half is told it by its own host, and it does not travel.
    pub is_own: bool,
}

/// What a parameter's value looks like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// A number in a range, both ends included.
    Number(u64, u64),
    /// A span with its unit, `250us`, `20ms`, `1s`; the longest.
    SpanUpTo(std::time::Duration),
    /// Any text of so many bytes at most, without a comma.
    Text(usize),
    /// One of these words.
    OneOf(&'static [&'static str]),
    /// The path of a file of so many bytes at most, which its host reads before it gives its rights away.
    File(usize),
    /// The path of a file, which its host makes before it gives its rights away.
    NewFile,
}

impl fmt::Display for Form {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Form::Number(min, max) => write!(f, "{min} to {max}"),
            Form::SpanUpTo(max) => write!(f, "a span (us, ms, s) up to {max:?}"),
            Form::Text(max) => write!(f, "a text of up to {max} bytes"),
            Form::OneOf(words) => f.write_str(&words.join(" or ")),
            Form::File(_) => f.write_str("a file"),
            Form::NewFile => f.write_str("a file to be made"),
        }
    }
}

/// What an importer says of one half of its own: the other half is to fit it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    /// Which module.
    pub name: String,
    /// In which version.
    pub version: u16,
    /// What both halves are told: `name=value`, with commas between.
    pub parameters: String,
    /// The half's own first word to the other.
    pub opening: Vec<u8>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_passed_goes_to_the_other_side_and_only_the_first_failure_counts() {
        let message = Message { kind: Kind::Request, id: 1, head: vec![1].into(), payload: vec![2, 3].into() };
        assert_eq!((message.len(), message.is_empty()), (3, false));
        let mut turn = Turn::default();
        turn.pass(Side::Above, message.clone());
        turn.pass(Side::Below, message.clone());
        turn.pass(Side::Peer, message.clone());
        assert_eq!(turn.pop(), Some((Side::Below, message.clone())));
        assert_eq!(turn.pop(), Some((Side::Above, message)));
        assert_eq!(turn.pop(), None);
        turn.fail(Trouble::Peer, "first");
        turn.fail(Trouble::Network, "second");
        assert_eq!(turn.failure().map(|failure| failure.why), Some("first".to_owned()));
        assert_eq!(turn.failure(), None);
    }
}
