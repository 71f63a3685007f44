//! The `bundle` module: several small messages travel as one.
//!
//! A half numbers the messages that it gives to the link, and the other half delivers them in the order of these
//! numbers: bundles travel as asides, and messages that travel alone may overtake them.
//!
//! ```text
//!   alone     number 4, then the head as it was
//!   bundle    number 4; of each: kind 1, pair 1, bytes of head 2 and of payload 2, id 8; head, payload
//! ```

use std::collections::BTreeMap;
use std::time::Duration;

use farbus_model::module::{
    ASIDE_BYTES_MAX, MESSAGE_BYTES, Module, ModuleDeviceClass, ModuleEffects, ModuleFailureCause, ModuleManifest,
    ModuleMessage, ModuleMessageKind, ModuleNeighbor, ModuleOutput, ModuleParameter, ParameterFormat,
};
use farbus_model::{Instant, Payload};

use crate::cost::ModuleCost;
use crate::maker::SimpleMaker;

/// The manifest of `bundle` and the function that makes a half of it from settings.
pub const BUNDLE: SimpleMaker = SimpleMaker {
    manifest: &MANIFEST,
    cost: |_| ModuleCost::with_state(ASIDE_BYTES_MAX),
    make: |settings, _| {
        Box::new(MessageBundler {
            span: settings.span("time"),
            small: settings.number("small") as usize,
            bytes_max: settings.number("bytes") as usize,
            kept: Vec::new(),
            kept_bytes: 0,
            due: None,
            next_out: 0,
            next_in: 0,
            early: BTreeMap::new(),
            early_bytes: 0,
        })
    },
};

const MANIFEST: ModuleManifest = ModuleManifest {
    name: "bundle",
    version: 1,
    summary: "several small messages travel as one",
    classes: ModuleDeviceClass::ALL,
    parameters: &[
        ModuleParameter {
            name: "time",
            form: ParameterFormat::SpanUpTo(Duration::from_millis(100)),
            default: Some("1ms"),
            what: "how long a message waits for others at most, each way",
            is_own: false,
        },
        ModuleParameter {
            name: "small",
            form: ParameterFormat::Number(1, 4096),
            default: Some("512"),
            what: "bytes of a message that waits for others; a longer one travels alone, behind them",
            is_own: false,
        },
        ModuleParameter {
            name: "bytes",
            form: ParameterFormat::Number(64, 12 << 10),
            default: Some("8192"),
            what: "a bundle of so many bytes goes before that",
            is_own: false,
        },
    ],
    effects: ModuleEffects { is_fault: false, is_movable: true },
    cost: "the time it is told, each way; 14 bytes a message in a bundle; what is urgent waits for what came before it",
    manual: include_str!("manual.md"),
};

const NUMBER_BYTES: usize = 4;
const ENTRY_BYTES: usize = 14;
/// Messages that may arrive before their turn: as many as are under way at most.
const EARLY_MAX: usize = 8192;
const EARLY_BYTES_MAX: usize = 64 << 20;

struct MessageBundler {
    span: Duration,
    small: usize,
    bytes_max: usize,
    kept: Vec<ModuleMessage>,
    kept_bytes: usize,
    /// When the first message of a bundle has waited long enough.
    due: Option<Instant>,
    next_out: u32,
    next_in: u32,
    /// Messages that arrived before their turn, by number.
    early: BTreeMap<u32, Vec<ModuleMessage>>,
    early_bytes: usize,
}

impl MessageBundler {
    fn down(&mut self, now: Instant, message: ModuleMessage, out: &mut ModuleOutput) {
        if message.len() > self.small {
            self.let_go(out);
            return self.alone(message, out);
        }
        let bytes = ENTRY_BYTES + message.len();
        if NUMBER_BYTES + self.kept_bytes + bytes > ASIDE_BYTES_MAX {
            self.let_go(out);
        }
        self.kept_bytes += bytes;
        self.kept.push(message);
        self.due.get_or_insert(now + self.span);
        if self.kept_bytes >= self.bytes_max {
            self.let_go(out);
        }
        self.handle_timeout(now, out);
    }

    fn alone(&mut self, mut message: ModuleMessage, out: &mut ModuleOutput) {
        let mut head = self.number();
        message.head.runs().for_each(|run| head.extend_from_slice(run));
        message.head = head.into();
        out.below(message);
    }

    fn number(&mut self) -> Vec<u8> {
        let number = self.next_out.to_le_bytes();
        self.next_out = self.next_out.wrapping_add(1);
        number.to_vec()
    }

    /// Sends the kept messages, as a bundle if that is worth it.
    fn let_go(&mut self, out: &mut ModuleOutput) {
        (self.due, self.kept_bytes) = (None, 0);
        if self.kept.len() == 1 {
            let message = self.kept.remove(0);
            return self.alone(message, out);
        }
        if self.kept.is_empty() {
            return;
        }
        let mut bytes = self.number();
        for ModuleMessage { kind, id, head, payload } in self.kept.drain(..) {
            let pair = if let ModuleMessageKind::Aside(pair) = kind { pair } else { 0 };
            bytes.extend([kind.code(), pair]);
            bytes.extend([head.len() as u16, payload.len() as u16].map(u16::to_le_bytes).concat());
            bytes.extend(id.to_le_bytes());
            head.runs().chain(payload.runs()).for_each(|run| bytes.extend_from_slice(run));
        }
        out.aside(bytes.into());
    }

    /// Delivers the messages with this number, and those that waited for them.
    fn up(&mut self, number: u32, mut messages: Vec<ModuleMessage>, out: &mut ModuleOutput) {
        if number != self.next_in {
            // Windows on what the link received would keep all of that.
            for message in &mut messages {
                message.head.own();
                message.payload.own();
            }
            let is_past = number.wrapping_sub(self.next_in) > u32::MAX / 2;
            self.early_bytes += messages.iter().map(ModuleMessage::memory_bytes).sum::<usize>();
            let is_known = self.early.insert(number, messages).is_some();
            if is_past || is_known || self.early.len() > EARLY_MAX || self.early_bytes > EARLY_BYTES_MAX {
                out.fail(ModuleFailureCause::Peer, "its other half numbers what it sends in another way");
            }
            return;
        }
        messages.into_iter().for_each(|message| out.above(message));
        self.next_in = self.next_in.wrapping_add(1);
        while let Some(messages) = self.early.remove(&self.next_in) {
            self.early_bytes -= messages.iter().map(ModuleMessage::memory_bytes).sum::<usize>();
            messages.into_iter().for_each(|message| out.above(message));
            self.next_in = self.next_in.wrapping_add(1);
        }
    }
}

/// The number and the messages of a bundle.
fn unbundled(mut bytes: Payload) -> Option<(u32, Vec<ModuleMessage>)> {
    let number = u32::from_le_bytes(*bytes.split_front(NUMBER_BYTES).contiguous().first_chunk()?);
    let mut messages = Vec::new();
    while !bytes.is_empty() {
        let entry: [u8; ENTRY_BYTES] = *bytes.split_front(ENTRY_BYTES).contiguous().first_chunk()?;
        let [kind, pair, head, head_high, payload, payload_high, id @ ..] = entry;
        let [head_bytes, payload_bytes] =
            [[head, head_high], [payload, payload_high]].map(|bytes| usize::from(u16::from_le_bytes(bytes)));
        let kind = kind_of(kind, pair)?;
        if bytes.len() < head_bytes + payload_bytes {
            return None;
        }
        let head = bytes.split_front(head_bytes);
        let payload = bytes.split_front(payload_bytes);
        messages.push(ModuleMessage { kind, id: u64::from_le_bytes(id), head, payload });
    }
    Some((number, messages))
}

impl Module for MessageBundler {
    fn handle(&mut self, now: Instant, from: ModuleNeighbor, mut message: ModuleMessage, out: &mut ModuleOutput) {
        match from {
            ModuleNeighbor::Above => self.down(now, message, out),
            ModuleNeighbor::Below => match message.head.split_front(NUMBER_BYTES).contiguous().first_chunk() {
                Some(number) => self.up(u32::from_le_bytes(*number), vec![message], out),
                None => out.fail(ModuleFailureCause::Peer, "its other half sent what has no number"),
            },
            ModuleNeighbor::Peer => match unbundled(message.payload) {
                Some((number, messages)) => self.up(number, messages, out),
                None => out.fail(ModuleFailureCause::Peer, "its other half sent what is no bundle"),
            },
        }
    }

    fn held_bytes(&self) -> usize {
        self.kept_bytes + self.kept.len() * MESSAGE_BYTES + self.early_bytes
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.due
    }

    fn handle_timeout(&mut self, now: Instant, out: &mut ModuleOutput) {
        if self.due.is_some_and(|due| due <= now) {
            self.let_go(out);
        }
    }

    /// Messages that arrived before their turn may wait for a lost link: they are saved.
    fn is_at_rest(&self) -> bool {
        self.kept.is_empty()
    }

    fn save(&self) -> Option<Vec<u8>> {
        let mut state = [self.next_out, self.next_in].map(u32::to_le_bytes).concat();
        for (number, messages) in &self.early {
            state.extend([*number, messages.len() as u32].map(u32::to_le_bytes).concat());
            for ModuleMessage { kind, id, head, payload } in messages {
                let pair = if let ModuleMessageKind::Aside(pair) = kind { *pair } else { 0 };
                state.extend([kind.code(), pair]);
                state.extend(id.to_le_bytes());
                for part in [head, payload] {
                    state.extend((part.len() as u32).to_le_bytes());
                    part.runs().for_each(|run| state.extend_from_slice(run));
                }
            }
        }
        Some(state)
    }

    fn restore(&mut self, state: &[u8]) -> bool {
        let mut rest = state;
        self.load(&mut rest).is_some() && rest.is_empty()
    }
}

fn chunk<'a>(rest: &mut &'a [u8], bytes: usize) -> Option<&'a [u8]> {
    let (chunk, left) = rest.split_at_checked(bytes)?;
    *rest = left;
    Some(chunk)
}

fn number_of(rest: &mut &[u8]) -> Option<u32> {
    chunk(rest, NUMBER_BYTES)?.try_into().map(u32::from_le_bytes).ok()
}

fn kind_of(code: u8, pair: u8) -> Option<ModuleMessageKind> {
    let kinds = [
        ModuleMessageKind::Request,
        ModuleMessageKind::Completion,
        ModuleMessageKind::Cancel,
        ModuleMessageKind::Cancelled,
        ModuleMessageKind::Event,
        ModuleMessageKind::Aside(pair),
    ];
    kinds.get(usize::from(code)).copied()
}

impl MessageBundler {
    fn load(&mut self, rest: &mut &[u8]) -> Option<()> {
        (self.next_out, self.next_in) = (number_of(rest)?, number_of(rest)?);
        while !rest.is_empty() {
            let (number, count, mut messages) = (number_of(rest)?, number_of(rest)?, Vec::new());
            for _ in 0..count {
                let [kind, pair] = chunk(rest, 2)?.try_into().ok()?;
                let id = u64::from_le_bytes(chunk(rest, 8)?.try_into().ok()?);
                let mut part = || {
                    let bytes = number_of(rest)?;
                    chunk(rest, bytes as usize).map(|bytes| Payload::from(bytes.to_vec()))
                };
                let (head, payload) = (part()?, part()?);
                messages.push(ModuleMessage { kind: kind_of(kind, pair)?, id, head, payload });
            }
            self.early_bytes += messages.iter().map(ModuleMessage::memory_bytes).sum::<usize>();
            let is_new = number != self.next_in && self.early.insert(number, messages).is_none();
            (is_new && self.early.len() <= EARLY_MAX && self.early_bytes <= EARLY_BYTES_MAX).then_some(())?;
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::maker::{ModuleContext, ModuleMaker};
    use crate::settings::ModuleSettings;
    use farbus_model::module::ModuleRole;

    fn half(spec: &str) -> Box<dyn Module> {
        let mut no_file = |_: &str| Err(String::new());
        let settings = ModuleSettings::of(&MANIFEST, &spec.parse().unwrap(), &mut no_file).unwrap();
        let context =
            ModuleContext { role: ModuleRole::Importer, class: ModuleDeviceClass::Block, failed: Payload::Empty };
        let begun = BUNDLE.begin(&settings, &context, &mut |_| ()).unwrap();
        begun.finish(&[]).unwrap()
    }

    fn message(id: u64, bytes: usize) -> ModuleMessage {
        ModuleMessage {
            kind: ModuleMessageKind::Request,
            id,
            head: vec![1].into(),
            payload: vec![id as u8; bytes].into(),
        }
    }

    fn drained(out: &mut ModuleOutput) -> Vec<(ModuleNeighbor, ModuleMessage)> {
        assert_eq!(out.failure(), None);
        std::iter::from_fn(|| out.pop()).collect()
    }

    #[test]
    fn small_ones_travel_together_and_arrive_in_order_whatever_overtakes_them() {
        let (mut here, mut there, mut out) = (half("bundle:time=1ms"), half("bundle"), ModuleOutput::default());
        let now = Instant::ZERO + Duration::from_secs(1);
        for (id, bytes) in [(1, 10), (2, 20), (3, 5000), (4, 30), (5, 0), (6, 7)] {
            here.handle(now, ModuleNeighbor::Above, message(id, bytes), &mut out);
        }
        assert_eq!(here.poll_timeout(), Some(now + Duration::from_millis(1)));
        here.handle_timeout(now + Duration::from_millis(1), &mut out);
        let travelling = drained(&mut out);
        assert_eq!(
            travelling.iter().map(|(side, _)| *side).collect::<Vec<_>>(),
            [ModuleNeighbor::Peer, ModuleNeighbor::Below, ModuleNeighbor::Peer]
        );
        let bytes: usize = travelling.iter().map(|(_, message)| message.len()).sum();
        assert_eq!(bytes, 10 + 20 + 5000 + 30 + 7 + 6 + 3 * NUMBER_BYTES + 5 * ENTRY_BYTES);
        // The long one is the last to arrive.
        for at in [2, 0, 1] {
            let (side, message) = travelling[at].clone();
            there.handle(now, side, message, &mut out);
        }
        let arrived: Vec<_> =
            drained(&mut out).into_iter().map(|(side, message)| (side, message.id, message.payload.len())).collect();
        let expected = [(1, 10), (2, 20), (3, 5000), (4, 30), (5, 0), (6, 7)];
        assert_eq!(arrived, expected.map(|(id, bytes)| (ModuleNeighbor::Above, id, bytes)));
        assert!(there.is_at_rest());
    }

    #[test]
    fn single_message_is_not_bundled_and_a_full_bundle_leaves_early() {
        let (mut here, mut out) = (half("bundle:time=1ms,bytes=200"), ModuleOutput::default());
        here.handle(Instant::ZERO, ModuleNeighbor::Above, message(1, 10), &mut out);
        here.handle_timeout(Instant::ZERO + Duration::from_millis(1), &mut out);
        let sides = |out: &mut ModuleOutput| drained(out).iter().map(|(side, _)| *side).collect::<Vec<_>>();
        assert_eq!(sides(&mut out), [ModuleNeighbor::Below]);
        (0..3).for_each(|id| here.handle(Instant::ZERO, ModuleNeighbor::Above, message(id, 80), &mut out));
        assert_eq!((sides(&mut out), here.is_at_rest()), (vec![ModuleNeighbor::Peer], true));
    }

    #[test]
    fn invalid_bundle_ends_the_attachment_within_the_memory_limit() {
        let aside = |bytes: &[u8]| ModuleMessage {
            kind: ModuleMessageKind::Aside(0),
            id: 0,
            head: Payload::Empty,
            payload: bytes.into(),
        };
        let entry = |kind: u8, head: u16| [&[0, 0, 0, 0, kind, 0][..], &head.to_le_bytes(), &[0; 10]].concat();
        for bytes in [&[0, 0, 0][..], &[0, 0, 0, 0, 0, 0], &entry(6, 0), &entry(0, 1), &[0xff; 200]] {
            let (mut half, mut out) = (half("bundle"), ModuleOutput::default());
            half.handle(Instant::ZERO, ModuleNeighbor::Peer, aside(bytes), &mut out);
            assert_eq!(out.failure().map(|failure| failure.trouble), Some(ModuleFailureCause::Peer), "{bytes:?}");
        }
        let (mut half, mut out) = (half("bundle"), ModuleOutput::default());
        let long = |number: u32| ModuleMessage { head: number.to_le_bytes().to_vec().into(), ..message(1, 16 << 20) };
        (1..6).for_each(|number| half.handle(Instant::ZERO, ModuleNeighbor::Below, long(number), &mut out));
        assert_eq!(
            out.failure().map(|failure| failure.trouble),
            Some(ModuleFailureCause::Peer),
            "64 MiB before their turn"
        );
    }
}
