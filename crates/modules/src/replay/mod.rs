//! The `replay` module: a recording answers instead of the device.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use farbus_model::module::{
    Class, Effects, Form, Kind, Manifest, Message, Module, Parameter, Role, Side, Trouble, Turn,
};
use farbus_model::{Instant, Payload};

use crate::capture::{Asked, Tale, Told};
use crate::cost::ModuleCost;
use crate::heads::{BlockAsk, CANCELLED, CONTROL, STALL, UsbReply, UsbRequest, usb_outcome};
use crate::maker::{Begun, Fill, Maker, Place};
use crate::refusal::{Mismatch, Refusal};
use crate::settings::Settings;

/// The manifest of `replay` and the function that makes a half of it from settings.
pub const REPLAY: Replay = Replay;

const MANIFEST: Manifest = Manifest {
    name: "replay",
    version: 1,
    summary: "a recording answers instead of the device",
    classes: &[Class::Usb, Class::Block],
    parameters: &[
        Parameter {
            name: "file",
            form: Form::File(256 << 20),
            default: Some(""),
            what: "the recording, at the end that answers: of 'record', or of Wireshark or tcpdump from Linux's usbmon (pcapng)",
            is_own: true,
        },
        Parameter {
            name: "otherwise",
            form: Form::OneOf(&["fail", "stall"]),
            default: Some("fail"),
            what: "what is asked that the recording does not tell ends the attachment, or fails as a device's error",
            is_own: false,
        },
        Parameter {
            name: "pace",
            form: Form::OneOf(&["recorded", "none"]),
            default: Some("recorded"),
            what: "whether answers take as long as they did",
            is_own: false,
        },
    ],
    effects: Effects { is_fault: true, is_movable: false },
    cost: "the recording in memory",
    manual: include_str!("manual.md"),
};

/// The kind of module.
pub struct Replay;

const TELLS: u8 = 1;

/// Memory of a parsed recording for each byte of its file: data twice, and a request of few bytes takes more in memory
/// than in the file.
const FILE_COPIES: usize = 5;

/// Makes a half, and its opening or answer: whether it is the one that replays.
fn half(settings: &Settings, place: &Place) -> Result<(Option<Half>, Vec<u8>), Refusal> {
    let file = settings.file("file");
    if file.is_empty() {
        return Ok((None, vec![0]));
    }
    let wrong = |what| Refusal::new(MANIFEST.name, Mismatch::Parameter(format!("its file: {what}")));
    let tale = Tale::read(file).map_err(wrong)?;
    if tale.told.is_empty() {
        return Err(wrong("it tells of no request to a device of this class".to_owned()));
    }
    Ok((Some(Half::new(tale, settings, place)), vec![TELLS]))
}

/// Checks that exactly one of the two halves replays.
fn fit(half: Option<Half>, other: &[u8]) -> Result<Box<dyn Module>, Refusal> {
    let refused = |what: &str| Err(Refusal::new(MANIFEST.name, Mismatch::Halves(what.to_owned())));
    match (half, other) {
        (Some(_), [TELLS]) => refused("both ends have a recording: one answers"),
        (None, [0]) => refused("neither end has a recording: replay:file=PATH"),
        (Some(half), [0]) => Ok(Box::new(half)),
        (None, [TELLS]) => Ok(Box::new(Listener)),
        _ => refused("its other half does not begin as one does"),
    }
}

impl Maker for Replay {
    fn manifest(&self) -> &'static Manifest {
        &MANIFEST
    }

    fn cost(&self, settings: &Settings) -> ModuleCost {
        ModuleCost::with_state(settings.file("file").len().saturating_mul(FILE_COPIES))
    }

    fn begin(&self, settings: &Settings, place: &Place, _random: Fill<'_>) -> Result<Box<dyn Begun>, Refusal> {
        let (_, opening) = half(settings, place)?;
        Ok(Box::new(BegunReplay { settings: settings.clone(), place: place.clone(), opening }))
    }

    fn answer(
        &self,
        settings: &Settings,
        place: &Place,
        opening: &[u8],
        _random: Fill<'_>,
    ) -> Result<(Box<dyn Module>, Vec<u8>), Refusal> {
        let (half, answer) = half(settings, place)?;
        Ok((fit(half, opening)?, answer))
    }
}

struct BegunReplay {
    settings: Settings,
    place: Place,
    opening: Vec<u8>,
}

impl Begun for BegunReplay {
    fn opening(&self) -> &[u8] {
        &self.opening
    }

    fn finish(&self, answer: &[u8]) -> Result<Box<dyn Module>, Refusal> {
        fit(half(&self.settings, &self.place)?.0, answer)
    }
}

/// The half that does not replay.
struct Listener;

impl Module for Listener {
    fn handle(&mut self, _now: Instant, from: Side, message: Message, out: &mut Turn) {
        out.pass(from, message);
    }

    fn held_bytes(&self) -> usize {
        0
    }
}

/// Requests of a data endpoint are matched in order; those of endpoint 0 and of a disk by their content.
type Endpoint = u8;

struct Half {
    told: Vec<Told>,
    in_order: BTreeMap<Endpoint, VecDeque<usize>>,
    by_question: BTreeMap<Vec<u8>, VecDeque<usize>>,
    is_paced: bool,
    stalls: bool,
    asker: Side,
    class: Class,
    failed: Payload,
    waiting: Vec<Waiting>,
    waiting_bytes: usize,
}

/// An unanswered request.
struct Waiting {
    id: u64,
    endpoint: Endpoint,
    /// `None`: the recording has no answer, so the request stays open until it is cancelled.
    answer: Option<(Instant, Payload, Vec<u8>)>,
}

impl Waiting {
    /// Memory that it takes, bytes.
    fn memory_bytes(&self) -> usize {
        size_of::<Self>() + self.answer.as_ref().map_or(0, |(_, head, data)| head.len() + data.len())
    }
}

impl Half {
    fn new(tale: Tale, settings: &Settings, place: &Place) -> Self {
        let mut half = Self {
            told: tale.told,
            in_order: BTreeMap::new(),
            by_question: BTreeMap::new(),
            is_paced: settings.is("pace", "recorded"),
            stalls: settings.is("otherwise", "stall"),
            asker: if place.role == Role::Importer { Side::Above } else { Side::Below },
            class: place.class,
            failed: place.failed.clone(),
            waiting: Vec::new(),
            waiting_bytes: 0,
        };
        for (at, told) in half.told.iter().enumerate() {
            match question(&told.asked, &told.sent) {
                Question::Endpoint(endpoint) => half.in_order.entry(endpoint).or_default().push_back(at),
                Question::Words(words) => half.by_question.entry(words).or_default().push_back(at),
            }
        }
        half
    }

    fn say(&self, kind: Kind, id: u64, head: Payload, payload: Payload, out: &mut Turn) {
        let message = Message { kind, id, head, payload };
        if self.asker == Side::Above { out.above(message) } else { out.below(message) }
    }

    fn ask(&mut self, now: Instant, message: Message, out: &mut Turn) {
        let id = message.id;
        let asked = match self.class {
            Class::Usb => UsbRequest::read(&message.head).map(Asked::Usb),
            _ => BlockAsk::read(&message.head).map(Asked::Block),
        };
        let Some(asked) = asked else {
            return out
                .fail(Trouble::Module, "it is asked in words that it does not know: put it before other modules");
        };
        if let Asked::Usb(asked) = &asked
            && asked.is_reset()
        {
            return self.say(Kind::Completion, id, Payload::Empty, Payload::Empty, out);
        }
        let sent = message.payload.contiguous();
        let (endpoint, found) = match question(&asked, &sent) {
            Question::Words(words) => (
                0,
                self.by_question.get_mut(&words).and_then(|places| {
                    // A request that comes more often than recorded gets the last answer again.
                    let place = places.pop_front()?;
                    if places.is_empty() {
                        places.push_back(place);
                    }
                    Some(place)
                }),
            ),
            Question::Endpoint(endpoint) => match self.in_order.get_mut(&endpoint).and_then(VecDeque::pop_front) {
                None if endpoint & 0x80 != 0 => {
                    // The recording has ended: the device stays silent.
                    return self.wait(Waiting { id, endpoint, answer: None });
                }
                place => (endpoint, place.filter(|&place| fits(&self.told[place], &asked, &sent))),
            },
        };
        let Some(told) = found.map(|place| &self.told[place]) else {
            return self.mismatch(id, &asked, out);
        };
        let cancelled = usb_outcome(CANCELLED);
        let answer = told.answer.as_ref().filter(|(head, ..)| self.class != Class::Usb || *head != cancelled);
        let answer = answer.map(|(head, data, ns)| {
            let took = if self.is_paced { ns.saturating_sub(told.asked_ns) } else { 0 };
            let before = self.waiting.iter().rev().find(|waiting| waiting.endpoint == endpoint && endpoint != 0);
            let before = before.and_then(|waiting| waiting.answer.as_ref().map(|(due, ..)| *due));
            let due = (now + Duration::from_nanos(took)).max(before.unwrap_or_default());
            (due, head.clone(), data.clone())
        });
        self.wait(Waiting { id, endpoint, answer });
        self.release(now, out);
    }

    fn wait(&mut self, waiting: Waiting) {
        self.waiting_bytes += waiting.memory_bytes();
        self.waiting.push(waiting);
    }

    fn mismatch(&self, id: u64, asked: &Asked, out: &mut Turn) {
        if self.stalls {
            let head = if self.class == Class::Usb { usb_outcome(STALL) } else { self.failed.clone() };
            return self.say(Kind::Completion, id, head, Payload::Empty, out);
        }
        let what = match asked {
            Asked::Usb(UsbRequest { kind: CONTROL, setup, .. }) => format!("a control transfer, {setup:02x?}"),
            Asked::Usb(UsbRequest { endpoint, length, .. }) => format!("{length} bytes of endpoint {endpoint:#04x}"),
            Asked::Block(BlockAsk { op, length, offset, .. }) => {
                let op = ["read", "write", "flush", "discard", "write zeroes"][usize::from(*op)];
                format!("{op} of {length} bytes at {offset}")
            }
        };
        out.fail(Trouble::Module, format!("the recording does not tell what comes of this: {what}"));
    }

    fn cancel(&mut self, id: u64, out: &mut Turn) {
        if let Some(at) = self.waiting.iter().position(|waiting| waiting.id == id) {
            self.waiting_bytes -= self.waiting.remove(at).memory_bytes();
            let head = if self.class == Class::Usb { usb_outcome(CANCELLED) } else { self.failed.clone() };
            self.say(Kind::Completion, id, head, Payload::Empty, out);
        }
        self.say(Kind::Cancelled, id, Payload::Empty, Payload::Empty, out);
    }

    fn release(&mut self, now: Instant, out: &mut Turn) {
        let is_due = |waiting: &Waiting| waiting.answer.as_ref().is_some_and(|(due, ..)| *due <= now);
        let due: Vec<Waiting> = self.waiting.extract_if(.., |waiting| is_due(waiting)).collect();
        self.waiting_bytes -= due.iter().map(Waiting::memory_bytes).sum::<usize>();
        for Waiting { id, answer, .. } in due {
            let (_, head, data) = answer.expect("it is due");
            self.say(Kind::Completion, id, head, data.into(), out);
        }
    }
}

/// What identifies an answer.
enum Question {
    Endpoint(Endpoint),
    Words(Vec<u8>),
}

fn question(asked: &Asked, sent: &[u8]) -> Question {
    let mut words = match asked {
        Asked::Usb(UsbRequest { kind: CONTROL, setup, .. }) => setup.to_vec(),
        Asked::Usb(UsbRequest { endpoint, .. }) => return Question::Endpoint(*endpoint),
        Asked::Block(asked) => asked.head().into_vec(),
    };
    words.extend_from_slice(sent);
    Question::Words(words)
}

/// Whether a recorded request of a data endpoint matches this one.
fn fits(told: &Told, asked: &Asked, sent: &[u8]) -> bool {
    let (Asked::Usb(then), Asked::Usb(now)) = (&told.asked, asked) else { return false };
    let (head, data) = told.answer.as_ref().map(|(head, data, _)| (head, &data[..])).unwrap_or((&Payload::Empty, &[]));
    let Some(reply) = UsbReply::read(then, head, data.len()) else { return false };
    let has_room = |(at, packet): (usize, &crate::heads::Packet)| {
        now.packets.get(at).is_some_and(|asked| packet.length <= asked.length)
    };
    then.kind == now.kind
        && then.packets.len() == now.packets.len()
        && reply.packets.iter().enumerate().all(has_room)
        && if now.is_in() { data.len() <= now.length as usize } else { told.sent == sent }
}

impl Module for Half {
    fn handle(&mut self, now: Instant, from: Side, message: Message, out: &mut Turn) {
        match message.kind {
            Kind::Aside(_) => out.pass(from, message),
            Kind::Request if from == self.asker => self.ask(now, message, out),
            Kind::Cancel if from == self.asker => self.cancel(message.id, out),
            // Events of the device are not part of a recording.
            Kind::Event => out.lose(),
            _ => out.fail(Trouble::Peer, "its other half passes on what nobody said"),
        }
    }

    fn held_bytes(&self) -> usize {
        self.waiting_bytes
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.waiting.iter().filter_map(|waiting| waiting.answer.as_ref().map(|(due, ..)| *due)).min()
    }

    fn handle_timeout(&mut self, now: Instant, out: &mut Turn) {
        self.release(now, out);
    }

    fn is_at_rest(&self) -> bool {
        self.waiting.is_empty()
    }
}
