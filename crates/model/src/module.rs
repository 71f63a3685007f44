//! The contract of a module: one half of a pair that transforms what travels between importer and exporter, and whose
//! other half transforms it back (requirements I1, I2).
//!
//! The contract is the same above and below: a message that one half gives to the link reaches the other half
//! unchanged, so pairs can be nested.
//!
//! ```text
//!    importer ── half ── half ══════ half ── half ── exporter
//!              above  below    link    below  above
//! ```
//!
//! | the rule | why |
//! |---|---|
//! | messages of one kind and way leave in the order in which they came | devices count on the order of their requests |
//! | a half that keeps a request completes it itself, once | a request cannot vanish |
//! | a cancellation never overtakes its own request | it would find no request to cancel |
//! | a half that cannot continue says so ([`ModuleOutput::fail`]) | its attachment ends with the reason |

use std::collections::VecDeque;
use std::fmt;
use std::time::Duration;

use crate::payload::Payload;
use crate::time::Instant;

/// The most modules of one attachment. The 2013 paper measures eight.
pub const PAIRS_MAX: usize = 8;
/// Bytes of one message between the halves of a pair.
pub const ASIDE_BYTES_MAX: usize = 16 << 10;
/// Bytes by which all modules together may lengthen a message: 8 seals of some 40 bytes, and compression that did not
/// help.
pub const GROWTH_BYTES_MAX: usize = 4 << 10;

/// The kind of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ModuleMessageKind {
    /// A request from the importer; completed once.
    Request,
    /// The end of a request. An empty head: it succeeded.
    Completion,
    /// The importer cancels the request with this id.
    Cancel,
    /// The exporter has processed the cancellation, whatever it found.
    Cancelled,
    /// Data without a request.
    Event,
    /// A message from one half of a pair to the other; the number says which pair.
    Aside(u8),
}

impl ModuleMessageKind {
    /// Its number, as in `docs/modules.md`.
    pub const fn code(self) -> u8 {
        match self {
            ModuleMessageKind::Request => 0,
            ModuleMessageKind::Completion => 1,
            ModuleMessageKind::Cancel => 2,
            ModuleMessageKind::Cancelled => 3,
            ModuleMessageKind::Event => 4,
            ModuleMessageKind::Aside(_) => 5,
        }
    }
}

/// A message between importer and exporter. Its payload is moved, not copied.
#[derive(Clone, Debug, PartialEq)]
pub struct ModuleMessage {
    /// What it is.
    pub kind: ModuleMessageKind,
    /// The request in flight that it belongs to; 0 if it belongs to none.
    pub id: u64,
    /// The header of the device class (`docs/protocol.md`), or what a half above made of it.
    pub head: Payload,
    /// The data of a request, an answer or an event; empty if it has none.
    pub payload: Payload,
}

impl ModuleMessage {
    /// Bytes of head and payload.
    pub fn len(&self) -> usize {
        self.head.len() + self.payload.len()
    }

    /// Whether head and payload are empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Memory that the message takes while a half holds it back, bytes: head, payload, and what each message takes
    /// besides.
    pub fn memory_bytes(&self) -> usize {
        self.len() + MESSAGE_BYTES
    }
}

/// What a message takes besides its bytes while a half holds it back: itself, and two allocations.
pub const MESSAGE_BYTES: usize = size_of::<ModuleMessage>() + 32;

/// Where a message comes from, seen from a half.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ModuleNeighbor {
    /// From the importer's user, or from the exporter's device: it goes to the link.
    Above,
    /// From the link.
    Below,
    /// From the other half of the pair: a [`ModuleMessageKind::Aside`].
    Peer,
}

/// Which half of a pair a module is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ModuleRole {
    /// The half where the device is used.
    Importer,
    /// The half where the device is.
    Exporter,
}

/// What kind of device a pair serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ModuleDeviceClass {
    /// USB devices, whose messages are URBs and their completions.
    Usb,
    /// Block devices, whose messages are reads, writes and the other [block operations](crate::BlockOp).
    Block,
    /// Streams, whose messages are frames: pictures, packets or plain bytes.
    Stream,
    /// A class that only its users know.
    Private,
}

impl ModuleDeviceClass {
    /// All of them.
    pub const ALL: &[ModuleDeviceClass] =
        &[ModuleDeviceClass::Usb, ModuleDeviceClass::Block, ModuleDeviceClass::Stream, ModuleDeviceClass::Private];

    /// The name for people and configurations.
    pub const fn as_str(self) -> &'static str {
        match self {
            ModuleDeviceClass::Usb => "usb",
            ModuleDeviceClass::Block => "block",
            ModuleDeviceClass::Stream => "stream",
            ModuleDeviceClass::Private => "private",
        }
    }
}

/// One half of a pair. Sans-IO: its caller passes messages and the time, and it says which messages go on.
pub trait Module: Send {
    /// Handles a message from `from`. What goes on is put into `out`, now or in any later call.
    fn handle(&mut self, now: Instant, from: ModuleNeighbor, message: ModuleMessage, out: &mut ModuleOutput);

    /// When [`Module::handle_timeout`] wants to be called, if at all.
    fn poll_timeout(&self) -> Option<Instant> {
        None
    }

    /// Called when the moment of [`Module::poll_timeout`] has come.
    fn handle_timeout(&mut self, now: Instant, out: &mut ModuleOutput) {
        let _ = (now, out);
    }

    /// The owner pauses all messages, or resumes them. Most modules ignore this.
    fn pause(&mut self, now: Instant, is_paused: bool, out: &mut ModuleOutput) {
        let _ = (now, is_paused, out);
    }

    /// For how long the module may keep a request, an answer or a cancellation before it passes it on or answers it.
    /// After that its attachment ends. `None`: without a limit, for a module that holds messages back on purpose.
    fn hold_max(&self) -> Option<Duration> {
        None
    }

    /// Memory of what the module holds back now, bytes ([`ModuleMessage::memory_bytes`]). An exporter counts it as data
    /// that is under way, which its importer's credit limits. It is asked after every message: keep a sum.
    fn held_bytes(&self) -> usize;

    /// Whether the module holds no message back.
    fn is_at_rest(&self) -> bool {
        true
    }

    /// The state with which a replacement process can continue, while the module is at rest. `None`: no other process
    /// can.
    fn save(&self) -> Option<Vec<u8>> {
        None
    }

    /// Makes this new half continue from a saved state. Returns whether it can.
    fn restore(&mut self, state: &[u8]) -> bool {
        let _ = state;
        false
    }
}

/// Why a pair cannot continue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModuleFailure {
    /// What is at fault.
    pub trouble: ModuleFailureCause,
    /// A sentence for a person.
    pub why: String,
}

/// What is at fault for a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ModuleFailureCause {
    /// The other end sent what no such half sends: a wrong key, bytes that do not decompress.
    Peer,
    /// The link between the halves is gone.
    Network,
    /// The module itself: it crashed, hung, broke its contract or sent too much.
    Module,
}

impl fmt::Display for ModuleFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.why)
    }
}

impl std::error::Error for ModuleFailure {}

/// What a half puts out during one call.
#[derive(Debug, Default)]
pub struct ModuleOutput {
    /// The messages in order, where each goes, and for a pipeline which of its halves made it.
    messages: VecDeque<(ModuleNeighbor, ModuleMessage, Option<u8>)>,
    lost: u32,
    failure: Option<ModuleFailure>,
}

impl ModuleOutput {
    /// Sends to the importer's user, or to the exporter's device.
    pub fn above(&mut self, message: ModuleMessage) {
        self.put(ModuleNeighbor::Above, message, None);
    }

    /// Sends to the link.
    pub fn below(&mut self, message: ModuleMessage) {
        self.put(ModuleNeighbor::Below, message, None);
    }

    /// Sends to the other half of the pair.
    pub fn aside(&mut self, bytes: Payload) {
        let (kind, id, head) = (ModuleMessageKind::Aside(0), 0, Payload::Empty);
        self.put(ModuleNeighbor::Peer, ModuleMessage { kind, id, head, payload: bytes }, None);
    }

    /// Passes a message on: from above to below, or from below to above. A message from the peer is dropped.
    pub fn pass(&mut self, from: ModuleNeighbor, message: ModuleMessage) {
        match from {
            ModuleNeighbor::Above => self.below(message),
            ModuleNeighbor::Below => self.above(message),
            ModuleNeighbor::Peer => {}
        }
    }

    /// Drops an event: the host grants its place again.
    pub fn lose(&mut self) {
        self.lost += 1;
    }

    /// How many events were dropped since the last call.
    pub fn take_lost(&mut self) -> u32 {
        std::mem::take(&mut self.lost)
    }

    /// Reports that the half cannot continue: the attachment ends.
    pub fn fail(&mut self, trouble: ModuleFailureCause, why: impl Into<String>) {
        self.failure.get_or_insert(ModuleFailure { trouble, why: why.into() });
    }

    /// The next message, and where it goes.
    pub fn pop(&mut self) -> Option<(ModuleNeighbor, ModuleMessage)> {
        self.pop_made().map(|(to, message, _)| (to, message))
    }

    /// The next message, where it goes, and which half of a pipeline made it; `None` if it only passed.
    pub fn pop_made(&mut self) -> Option<(ModuleNeighbor, ModuleMessage, Option<u8>)> {
        self.messages.pop_front()
    }

    /// Sends a message that this half of a pipeline made, counted from 0; `None` if it only passed the halves.
    pub fn put(&mut self, to: ModuleNeighbor, message: ModuleMessage, maker: Option<u8>) {
        self.messages.push_back((to, message, maker));
    }

    /// Why the half cannot continue, if it cannot.
    pub fn failure(&mut self) -> Option<ModuleFailure> {
        self.failure.take()
    }
}

/// A module's description, for negotiation, lists and help.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModuleManifest {
    /// Its name, one word.
    pub name: &'static str,
    /// The version of the messages between its halves; both halves have the same one.
    pub version: u16,
    /// A line for a list.
    pub summary: &'static str,
    /// The classes it serves.
    pub classes: &'static [ModuleDeviceClass],
    /// The parameters that a user may give, in the order in which lists and help show them.
    pub parameters: &'static [ModuleParameter],
    /// What it does to the data.
    pub effects: ModuleEffects,
    /// Its cost, for people: latency, memory, processor.
    pub cost: &'static str,
    /// The text of `farbus module show NAME`: what the module does and how to use it.
    pub manual: &'static str,
}

/// What a module does to the data that passes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ModuleEffects {
    /// It alters or drops data: a fault, for tests.
    pub is_fault: bool,
    /// It can continue in another process (restart, migration).
    pub is_movable: bool,
}

/// A parameter of a module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModuleParameter {
    /// The word before the `=`, unique in its module.
    pub name: &'static str,
    /// Which values are valid.
    pub form: ParameterFormat,
    /// Its default; `None` if it must be given.
    pub default: Option<&'static str>,
    /// What it means.
    pub what: &'static str,
    /// Each host gives it to its own half, and it does not travel.
    pub is_own: bool,
}

/// The form of a parameter's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParameterFormat {
    /// A number in a range, both ends included.
    Number(u64, u64),
    /// A duration with its unit, `250us`, `20ms`, `1s`, up to this maximum.
    SpanUpTo(Duration),
    /// Any text of at most this many bytes, without a comma.
    Text(usize),
    /// One of these words.
    OneOf(&'static [&'static str]),
    /// The path of a file of at most this many bytes; the host reads the file before it drops its rights.
    File(usize),
    /// The path of a file that the host creates before it drops its rights.
    NewFile,
}

impl fmt::Display for ParameterFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ParameterFormat::Number(min, max) => write!(f, "{min} to {max}"),
            ParameterFormat::SpanUpTo(max) => write!(f, "a span (us, ms, s) up to {max:?}"),
            ParameterFormat::Text(max) => write!(f, "a text of up to {max} bytes"),
            ParameterFormat::OneOf(words) => f.write_str(&words.join(" or ")),
            ParameterFormat::File(_) => f.write_str("a file"),
            ParameterFormat::NewFile => f.write_str("a file to be made"),
        }
    }
}

/// An importer's description of its own half, which the exporter's half has to match.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModuleOffer {
    /// The module's name.
    pub name: String,
    /// The version of the messages between the halves ([`ModuleManifest::version`]); both halves have the same one.
    pub version: u16,
    /// The parameters of both halves: `name=value`, separated by commas.
    pub parameters: String,
    /// The half's first message to the other half.
    pub opening: Vec<u8>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passed_message_goes_to_the_other_side_and_only_the_first_failure_counts() {
        let message =
            ModuleMessage { kind: ModuleMessageKind::Request, id: 1, head: vec![1].into(), payload: vec![2, 3].into() };
        assert_eq!((message.len(), message.is_empty()), (3, false));
        let mut turn = ModuleOutput::default();
        turn.pass(ModuleNeighbor::Above, message.clone());
        turn.pass(ModuleNeighbor::Below, message.clone());
        turn.pass(ModuleNeighbor::Peer, message.clone());
        assert_eq!(turn.pop(), Some((ModuleNeighbor::Below, message.clone())));
        assert_eq!(turn.pop(), Some((ModuleNeighbor::Above, message)));
        assert_eq!(turn.pop(), None);
        turn.fail(ModuleFailureCause::Peer, "first");
        turn.fail(ModuleFailureCause::Network, "second");
        assert_eq!(turn.failure().map(|failure| failure.why), Some("first".to_owned()));
        assert_eq!(turn.failure(), None);
    }
}
