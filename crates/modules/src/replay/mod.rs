//! The `replay` module: a recording answers instead of the device.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use farbus_model::module::{
    Module, ModuleDeviceClass, ModuleEffects, ModuleFailureCause, ModuleManifest, ModuleMessage, ModuleMessageKind,
    ModuleNeighbor, ModuleOutput, ModuleParameter, ModuleRole, ParameterFormat,
};
use farbus_model::{Instant, Payload};

use crate::capture::{ParsedRecording, RecordedExchange, RecordedRequest};
use crate::cost::ModuleCost;
use crate::heads::{BlockRequestHead, CANCELLED, CONTROL, STALL, UsbReply, UsbRequest, usb_outcome};
use crate::maker::{ModuleContext, ModuleMaker, PendingModule, RandomSource};
use crate::refusal::{ModuleMismatch, ModuleRefusal};
use crate::settings::ModuleSettings;

/// The manifest of `replay` and the function that makes a half of it from settings.
pub const REPLAY: ReplayMaker = ReplayMaker;

const MANIFEST: ModuleManifest = ModuleManifest {
    name: "replay",
    version: 1,
    summary: "a recording answers instead of the device",
    classes: &[ModuleDeviceClass::Usb, ModuleDeviceClass::Block],
    parameters: &[
        ModuleParameter {
            name: "file",
            form: ParameterFormat::File(256 << 20),
            default: Some(""),
            what: "the recording, at the end that answers: of 'record', or of Wireshark or tcpdump from Linux's usbmon (pcapng)",
            is_own: true,
        },
        ModuleParameter {
            name: "otherwise",
            form: ParameterFormat::OneOf(&["fail", "stall"]),
            default: Some("fail"),
            what: "what is asked that the recording does not tell ends the attachment, or fails as a device's error",
            is_own: false,
        },
        ModuleParameter {
            name: "pace",
            form: ParameterFormat::OneOf(&["recorded", "none"]),
            default: Some("recorded"),
            what: "whether answers take as long as they did",
            is_own: false,
        },
    ],
    effects: ModuleEffects { is_fault: true, is_movable: false },
    cost: "the recording in memory",
    manual: include_str!("manual.md"),
};

/// The kind of module.
pub struct ReplayMaker;

const TELLS: u8 = 1;

/// Memory of a parsed recording for each byte of its file: data twice, and a request of few bytes takes more in memory
/// than in the file.
const FILE_COPIES: usize = 5;

/// Makes a half, and its opening or answer: whether it is the one that replays.
fn half(
    settings: &ModuleSettings,
    context: &ModuleContext,
) -> Result<(Option<RecordingReplayer>, Vec<u8>), ModuleRefusal> {
    let file = settings.file("file");
    if file.is_empty() {
        return Ok((None, vec![0]));
    }
    let wrong = |what| ModuleRefusal::new(MANIFEST.name, ModuleMismatch::Parameter(format!("its file: {what}")));
    let recording = ParsedRecording::read(file).map_err(wrong)?;
    if recording.exchanges.is_empty() {
        return Err(wrong("it tells of no request to a device of this class".to_owned()));
    }
    Ok((Some(RecordingReplayer::new(recording, settings, context)), vec![TELLS]))
}

/// Checks that exactly one of the two halves replays.
fn fit(half: Option<RecordingReplayer>, other: &[u8]) -> Result<Box<dyn Module>, ModuleRefusal> {
    let refused = |what: &str| Err(ModuleRefusal::new(MANIFEST.name, ModuleMismatch::Halves(what.to_owned())));
    match (half, other) {
        (Some(_), [TELLS]) => refused("both ends have a recording: one answers"),
        (None, [0]) => refused("neither end has a recording: replay:file=PATH"),
        (Some(half), [0]) => Ok(Box::new(half)),
        (None, [TELLS]) => Ok(Box::new(ReplayPassThrough)),
        _ => refused("its other half does not begin as one does"),
    }
}

impl ModuleMaker for ReplayMaker {
    fn manifest(&self) -> &'static ModuleManifest {
        &MANIFEST
    }

    fn cost(&self, settings: &ModuleSettings) -> ModuleCost {
        ModuleCost::with_state(settings.file("file").len().saturating_mul(FILE_COPIES))
    }

    fn begin(
        &self,
        settings: &ModuleSettings,
        context: &ModuleContext,
        _random: RandomSource<'_>,
    ) -> Result<Box<dyn PendingModule>, ModuleRefusal> {
        let (_, opening) = half(settings, context)?;
        Ok(Box::new(PendingReplay { settings: settings.clone(), context: context.clone(), opening }))
    }

    fn answer(
        &self,
        settings: &ModuleSettings,
        context: &ModuleContext,
        opening: &[u8],
        _random: RandomSource<'_>,
    ) -> Result<(Box<dyn Module>, Vec<u8>), ModuleRefusal> {
        let (half, answer) = half(settings, context)?;
        Ok((fit(half, opening)?, answer))
    }
}

struct PendingReplay {
    settings: ModuleSettings,
    context: ModuleContext,
    opening: Vec<u8>,
}

impl PendingModule for PendingReplay {
    fn opening(&self) -> &[u8] {
        &self.opening
    }

    fn finish(&self, answer: &[u8]) -> Result<Box<dyn Module>, ModuleRefusal> {
        fit(half(&self.settings, &self.context)?.0, answer)
    }
}

/// The half that does not replay.
struct ReplayPassThrough;

impl Module for ReplayPassThrough {
    fn handle(&mut self, _now: Instant, from: ModuleNeighbor, message: ModuleMessage, out: &mut ModuleOutput) {
        out.pass(from, message);
    }

    fn held_bytes(&self) -> usize {
        0
    }
}

/// Requests of a data endpoint are matched in order; those of endpoint 0 and of a disk by their content.
type ReplayEndpoint = u8;

struct RecordingReplayer {
    exchanges: Vec<RecordedExchange>,
    in_order: BTreeMap<ReplayEndpoint, VecDeque<usize>>,
    by_question: BTreeMap<Vec<u8>, VecDeque<usize>>,
    is_paced: bool,
    stalls: bool,
    asker: ModuleNeighbor,
    class: ModuleDeviceClass,
    failed: Payload,
    waiting: Vec<UnansweredReplayRequest>,
    waiting_bytes: usize,
}

/// An unanswered request.
struct UnansweredReplayRequest {
    id: u64,
    endpoint: ReplayEndpoint,
    /// `None`: the recording has no answer, so the request stays open until it is cancelled.
    answer: Option<(Instant, Payload, Vec<u8>)>,
}

impl UnansweredReplayRequest {
    /// Memory that it takes, bytes.
    fn memory_bytes(&self) -> usize {
        size_of::<Self>() + self.answer.as_ref().map_or(0, |(_, head, data)| head.len() + data.len())
    }
}

impl RecordingReplayer {
    fn new(recording: ParsedRecording, settings: &ModuleSettings, context: &ModuleContext) -> Self {
        let mut half = Self {
            exchanges: recording.exchanges,
            in_order: BTreeMap::new(),
            by_question: BTreeMap::new(),
            is_paced: settings.is("pace", "recorded"),
            stalls: settings.is("otherwise", "stall"),
            asker: if context.role == ModuleRole::Importer { ModuleNeighbor::Above } else { ModuleNeighbor::Below },
            class: context.class,
            failed: context.failed.clone(),
            waiting: Vec::new(),
            waiting_bytes: 0,
        };
        for (at, exchange) in half.exchanges.iter().enumerate() {
            match question(&exchange.request, &exchange.sent) {
                ReplayMatchKey::Endpoint(endpoint) => half.in_order.entry(endpoint).or_default().push_back(at),
                ReplayMatchKey::Words(words) => half.by_question.entry(words).or_default().push_back(at),
            }
        }
        half
    }

    fn say(&self, kind: ModuleMessageKind, id: u64, head: Payload, payload: Payload, out: &mut ModuleOutput) {
        let message = ModuleMessage { kind, id, head, payload };
        if self.asker == ModuleNeighbor::Above { out.above(message) } else { out.below(message) }
    }

    fn ask(&mut self, now: Instant, message: ModuleMessage, out: &mut ModuleOutput) {
        let id = message.id;
        let recorded_request = match self.class {
            ModuleDeviceClass::Usb => UsbRequest::read(&message.head).map(RecordedRequest::Usb),
            _ => BlockRequestHead::read(&message.head).map(RecordedRequest::Block),
        };
        let Some(recorded_request) = recorded_request else {
            return out.fail(
                ModuleFailureCause::Module,
                "it is asked in words that it does not know: put it before other modules",
            );
        };
        if let RecordedRequest::Usb(usb_request) = &recorded_request
            && usb_request.is_reset()
        {
            return self.say(ModuleMessageKind::Completion, id, Payload::Empty, Payload::Empty, out);
        }
        let sent = message.payload.contiguous();
        let (endpoint, found) = match question(&recorded_request, &sent) {
            ReplayMatchKey::Words(words) => (
                0,
                self.by_question.get_mut(&words).and_then(|positions| {
                    // A request that comes more often than recorded gets the last answer again.
                    let position = positions.pop_front()?;
                    if positions.is_empty() {
                        positions.push_back(position);
                    }
                    Some(position)
                }),
            ),
            ReplayMatchKey::Endpoint(endpoint) => {
                match self.in_order.get_mut(&endpoint).and_then(VecDeque::pop_front) {
                    None if endpoint & 0x80 != 0 => {
                        // The recording has ended: the device stays silent.
                        return self.wait(UnansweredReplayRequest { id, endpoint, answer: None });
                    }
                    position => (
                        endpoint,
                        position.filter(|&position| fits(&self.exchanges[position], &recorded_request, &sent)),
                    ),
                }
            }
        };
        let Some(exchange) = found.map(|position| &self.exchanges[position]) else {
            return self.mismatch(id, &recorded_request, out);
        };
        let cancelled = usb_outcome(CANCELLED);
        let answer =
            exchange.answer.as_ref().filter(|(head, ..)| self.class != ModuleDeviceClass::Usb || *head != cancelled);
        let answer = answer.map(|(head, data, ns)| {
            let took = if self.is_paced { ns.saturating_sub(exchange.asked_ns) } else { 0 };
            let before = self.waiting.iter().rev().find(|waiting| waiting.endpoint == endpoint && endpoint != 0);
            let before = before.and_then(|waiting| waiting.answer.as_ref().map(|(due, ..)| *due));
            let due = (now + Duration::from_nanos(took)).max(before.unwrap_or_default());
            (due, head.clone(), data.clone())
        });
        self.wait(UnansweredReplayRequest { id, endpoint, answer });
        self.release(now, out);
    }

    fn wait(&mut self, waiting: UnansweredReplayRequest) {
        self.waiting_bytes += waiting.memory_bytes();
        self.waiting.push(waiting);
    }

    fn mismatch(&self, id: u64, request: &RecordedRequest, out: &mut ModuleOutput) {
        if self.stalls {
            let head = if self.class == ModuleDeviceClass::Usb { usb_outcome(STALL) } else { self.failed.clone() };
            return self.say(ModuleMessageKind::Completion, id, head, Payload::Empty, out);
        }
        let what = match request {
            RecordedRequest::Usb(UsbRequest { kind: CONTROL, setup, .. }) => {
                format!("a control transfer, {setup:02x?}")
            }
            RecordedRequest::Usb(UsbRequest { endpoint, length, .. }) => {
                format!("{length} bytes of endpoint {endpoint:#04x}")
            }
            RecordedRequest::Block(BlockRequestHead { op, length, offset, .. }) => {
                let op = ["read", "write", "flush", "discard", "write zeroes"][usize::from(*op)];
                format!("{op} of {length} bytes at {offset}")
            }
        };
        out.fail(ModuleFailureCause::Module, format!("the recording does not tell what comes of this: {what}"));
    }

    fn cancel(&mut self, id: u64, out: &mut ModuleOutput) {
        if let Some(at) = self.waiting.iter().position(|waiting| waiting.id == id) {
            self.waiting_bytes -= self.waiting.remove(at).memory_bytes();
            let head = if self.class == ModuleDeviceClass::Usb { usb_outcome(CANCELLED) } else { self.failed.clone() };
            self.say(ModuleMessageKind::Completion, id, head, Payload::Empty, out);
        }
        self.say(ModuleMessageKind::Cancelled, id, Payload::Empty, Payload::Empty, out);
    }

    fn release(&mut self, now: Instant, out: &mut ModuleOutput) {
        let is_due = |waiting: &UnansweredReplayRequest| waiting.answer.as_ref().is_some_and(|(due, ..)| *due <= now);
        let due: Vec<UnansweredReplayRequest> = self.waiting.extract_if(.., |waiting| is_due(waiting)).collect();
        self.waiting_bytes -= due.iter().map(UnansweredReplayRequest::memory_bytes).sum::<usize>();
        for UnansweredReplayRequest { id, answer, .. } in due {
            let (_, head, data) = answer.expect("it is due");
            self.say(ModuleMessageKind::Completion, id, head, data.into(), out);
        }
    }
}

/// What identifies an answer.
enum ReplayMatchKey {
    Endpoint(ReplayEndpoint),
    Words(Vec<u8>),
}

fn question(request: &RecordedRequest, sent: &[u8]) -> ReplayMatchKey {
    let mut words = match request {
        RecordedRequest::Usb(UsbRequest { kind: CONTROL, setup, .. }) => setup.to_vec(),
        RecordedRequest::Usb(UsbRequest { endpoint, .. }) => return ReplayMatchKey::Endpoint(*endpoint),
        RecordedRequest::Block(block_request) => block_request.head().into_vec(),
    };
    words.extend_from_slice(sent);
    ReplayMatchKey::Words(words)
}

/// Whether a recorded request of a data endpoint matches this one.
fn fits(exchange: &RecordedExchange, request: &RecordedRequest, sent: &[u8]) -> bool {
    let (RecordedRequest::Usb(then), RecordedRequest::Usb(now)) = (&exchange.request, request) else { return false };
    let (head, data) =
        exchange.answer.as_ref().map(|(head, data, _)| (head, &data[..])).unwrap_or((&Payload::Empty, &[]));
    let Some(reply) = UsbReply::read(then, head, data.len()) else { return false };
    let has_room = |(at, packet): (usize, &crate::heads::IsoPacketHead)| {
        now.packets.get(at).is_some_and(|asked_packet| packet.length <= asked_packet.length)
    };
    then.kind == now.kind
        && then.packets.len() == now.packets.len()
        && reply.packets.iter().enumerate().all(has_room)
        && if now.is_in() { data.len() <= now.length as usize } else { exchange.sent == sent }
}

impl Module for RecordingReplayer {
    fn handle(&mut self, now: Instant, from: ModuleNeighbor, message: ModuleMessage, out: &mut ModuleOutput) {
        match message.kind {
            ModuleMessageKind::Aside(_) => out.pass(from, message),
            ModuleMessageKind::Request if from == self.asker => self.ask(now, message, out),
            ModuleMessageKind::Cancel if from == self.asker => self.cancel(message.id, out),
            // Events of the device are not part of a recording.
            ModuleMessageKind::Event => out.lose(),
            _ => out.fail(ModuleFailureCause::Peer, "its other half passes on what nobody said"),
        }
    }

    fn held_bytes(&self) -> usize {
        self.waiting_bytes
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.waiting.iter().filter_map(|waiting| waiting.answer.as_ref().map(|(due, ..)| *due)).min()
    }

    fn handle_timeout(&mut self, now: Instant, out: &mut ModuleOutput) {
        self.release(now, out);
    }

    fn is_at_rest(&self) -> bool {
        self.waiting.is_empty()
    }
}
