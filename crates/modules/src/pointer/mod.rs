//! The `pointer` module: sums up the motions of a mouse, so that it reports less often (requirement I2). No motion is
//! lost, and a button is reported at once.

use std::collections::BTreeMap;
use std::time::Duration;

use farbus_model::module::{
    Module, ModuleDeviceClass, ModuleEffects, ModuleManifest, ModuleMessage, ModuleMessageKind, ModuleNeighbor,
    ModuleOutput, ModuleParameter, ModuleRole, ParameterFormat,
};
use farbus_model::{Instant, Payload};

use crate::cost::ModuleCost;
use crate::heads::{INTERRUPT, UsbRequest};
use crate::maker::SimpleMaker;
use crate::null::NULL;

/// The manifest of `pointer` and the function that makes a half of it from settings.
pub const POINTER: SimpleMaker = SimpleMaker {
    manifest: &MANIFEST,
    cost: |_| ModuleCost::SMALL,
    make: |settings, context| match context.role {
        ModuleRole::Importer => (NULL.make)(settings, context),
        ModuleRole::Exporter => Box::new(PointerReportMerger {
            endpoint: 0x80 | settings.number("endpoint") as u8,
            span: settings.span("time"),
            layout: PointerReportLayout {
                report_id: Some(settings.number("report") as u8).filter(|id| *id != 0),
                motion_bytes: if settings.is("bits", "16") { 2 } else { 1 },
                wheels: settings.number("wheels") as usize,
            },
            payloads: BTreeMap::new(),
            held: None,
            quiet_until: Instant::ZERO,
            still: Vec::new(),
        }),
    },
};

const MANIFEST: ModuleManifest = ModuleManifest {
    name: "pointer",
    version: 1,
    summary: "adds up what a mouse moves: fewer reports, none lost",
    classes: &[ModuleDeviceClass::Usb],
    parameters: &[
        ModuleParameter {
            name: "time",
            form: ParameterFormat::SpanUpTo(Duration::from_secs(1)),
            default: Some("10ms"),
            what: "reports are no closer together than this, unless a button changes",
            is_own: false,
        },
        ModuleParameter {
            name: "endpoint",
            form: ParameterFormat::Number(1, 15),
            default: Some("1"),
            what: "the number of the mouse's interrupt endpoint",
            is_own: false,
        },
        ModuleParameter {
            name: "bits",
            form: ParameterFormat::OneOf(&["8", "16"]),
            default: Some("8"),
            what: "of X and of Y; 8 is the boot protocol's",
            is_own: false,
        },
        ModuleParameter {
            name: "wheels",
            form: ParameterFormat::Number(0, 4),
            default: Some("1"),
            what: "bytes behind X and Y that are added up, too; the boot protocol's report may have none",
            is_own: false,
        },
        ModuleParameter {
            name: "report",
            form: ParameterFormat::Number(0, 255),
            default: Some("0"),
            what: "the report's number, where the device numbers them; others pass as they are",
            is_own: false,
        },
    ],
    effects: ModuleEffects { is_fault: false, is_movable: true },
    cost: "up to its time for motion, nothing for buttons",
    manual: include_str!("manual.md"),
};

/// The layout of a report: its number if it has one, buttons 1, X, Y, wheels 1 each, the rest.
struct PointerReportLayout {
    report_id: Option<u8>,
    motion_bytes: usize,
    wheels: usize,
}

impl PointerReportLayout {
    /// The places of the summed values; `None` if the report does not have this layout.
    fn motions(&self, report: &[u8]) -> Option<Vec<(usize, usize)>> {
        let first = usize::from(self.report_id.is_some());
        if self.report_id.is_some_and(|id| report.first() != Some(&id)) {
            return None;
        }
        let x = first + 1;
        let wheel = x + 2 * self.motion_bytes;
        if report.len() < wheel {
            return None;
        }
        let wheels = self.wheels.min(report.len() - wheel);
        let axes = [0, 1].map(|axis| (x + axis * self.motion_bytes, self.motion_bytes));
        Some(axes.into_iter().chain((0..wheels).map(|at| (wheel + at, 1))).collect())
    }

    /// The content of a report besides motion: while it is unchanged, motions can be summed.
    fn still(&self, report: &[u8]) -> Option<Vec<u8>> {
        let mut still = report.to_vec();
        for (at, bytes) in self.motions(report)? {
            still[at..at + bytes].fill(0);
        }
        Some(still)
    }

    /// Both motions in one report; `None` if the sum does not fit.
    fn sum(&self, one: &[u8], other: &[u8]) -> Option<Vec<u8>> {
        let mut sum = other.to_vec();
        for (at, bytes) in self.motions(other)? {
            match bytes {
                1 => {
                    let value = i8::from_le_bytes([one[at]]).checked_add(i8::from_le_bytes([other[at]]))?;
                    sum[at] = value.to_le_bytes()[0];
                }
                _ => {
                    let [one, other] = [one, other].map(|report| i16::from_le_bytes([report[at], report[at + 1]]));
                    sum[at..at + 2].copy_from_slice(&one.checked_add(other)?.to_le_bytes());
                }
            }
        }
        Some(sum)
    }
}

/// Memory of an open request: an entry with its head, which has 8 bytes.
const ASKED_BYTES: usize = 128;

struct PointerReportMerger {
    endpoint: u8,
    span: Duration,
    layout: PointerReportLayout,
    /// The open requests at that endpoint, by id.
    payloads: BTreeMap<u64, Payload>,
    /// The request that the next report answers, and the sum so far.
    held: Option<(u64, Vec<u8>)>,
    quiet_until: Instant,
    /// The last report's content besides motion.
    still: Vec<u8>,
}

impl PointerReportMerger {
    fn report(&mut self, now: Instant, message: ModuleMessage, out: &mut ModuleOutput) {
        let report = message.payload.contiguous().into_owned();
        let still = self.layout.still(&report).filter(|_| message.head.is_empty());
        // An error, or another kind of report: goes after what came before it.
        let Some(still) = still else {
            self.release(now, out);
            self.payloads.remove(&message.id);
            return out.below(message);
        };
        if let Some((_, before)) = &mut self.held {
            if still == self.still
                && let Some(sum) = self.layout.sum(before, &report)
            {
                *before = sum;
                // Asks the device again: this request was answered by the sum.
                let head = self.payloads[&message.id].clone();
                return out.above(ModuleMessage {
                    kind: ModuleMessageKind::Request,
                    id: message.id,
                    head,
                    payload: Payload::Empty,
                });
            }
            self.release(now, out);
        }
        self.payloads.remove(&message.id);
        let is_known = still == self.still;
        self.still = still;
        self.held = Some((message.id, report));
        if !is_known || now >= self.quiet_until {
            self.release(now, out);
        }
    }

    fn release(&mut self, now: Instant, out: &mut ModuleOutput) {
        if let Some((id, report)) = self.held.take() {
            self.quiet_until = now + self.span;
            out.below(ModuleMessage {
                kind: ModuleMessageKind::Completion,
                id,
                head: Payload::Empty,
                payload: report.into(),
            });
        }
    }
}

impl Module for PointerReportMerger {
    fn handle(&mut self, now: Instant, from: ModuleNeighbor, message: ModuleMessage, out: &mut ModuleOutput) {
        match (from, message.kind) {
            (ModuleNeighbor::Below, ModuleMessageKind::Request) => {
                let usb_request = UsbRequest::read(&message.head);
                if usb_request.is_some_and(|request| request.endpoint == self.endpoint && request.kind == INTERRUPT) {
                    let mut head = message.head.clone();
                    head.own();
                    self.payloads.insert(message.id, head);
                }
                out.above(message);
            }
            (ModuleNeighbor::Below, ModuleMessageKind::Cancel) => {
                // A cancelled request still gets the sum that is held for it: it cannot be given back to the mouse.
                if self.held.as_ref().is_some_and(|(id, _)| *id == message.id) {
                    self.release(now, out);
                }
                out.above(message);
            }
            (ModuleNeighbor::Above, ModuleMessageKind::Completion) if self.payloads.contains_key(&message.id) => {
                self.report(now, message, out)
            }
            _ => out.pass(from, message),
        }
    }

    fn held_bytes(&self) -> usize {
        self.payloads.len() * ASKED_BYTES + self.held.as_ref().map_or(0, |(_, report)| report.len())
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.held.as_ref().map(|_| self.quiet_until)
    }

    fn handle_timeout(&mut self, now: Instant, out: &mut ModuleOutput) {
        if self.quiet_until <= now {
            self.release(now, out);
        }
    }

    fn is_at_rest(&self) -> bool {
        self.held.is_none() && self.payloads.is_empty()
    }

    fn save(&self) -> Option<Vec<u8>> {
        Some(Vec::new())
    }

    fn restore(&mut self, state: &[u8]) -> bool {
        state.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dice::ModuleRng;
    use crate::maker::{ModuleContext, ModuleMaker};
    use crate::settings::ModuleSettings;

    /// The importer's requests, a mouse, and the half between them.
    struct World {
        half: Box<dyn Module>,
        now: Instant,
        /// Requests at the mouse, and requests that the user can still make.
        at_mouse: Vec<u64>,
        free: Vec<u64>,
        heard: Vec<(Instant, Vec<u8>)>,
    }

    impl World {
        fn new(spec: &str, depth: u64) -> Self {
            let mut no_file = |_: &str| Err(String::new());
            let settings = ModuleSettings::of(&MANIFEST, &spec.parse().unwrap(), &mut no_file).unwrap();
            let context =
                ModuleContext { role: ModuleRole::Exporter, class: ModuleDeviceClass::Usb, failed: Payload::Empty };
            let (half, _) = POINTER.answer(&settings, &context, &[], &mut |_| ()).unwrap();
            let now = Instant::ZERO + Duration::from_secs(1);
            let mut world = Self { half, now, at_mouse: Vec::new(), free: (0..depth).collect(), heard: Vec::new() };
            world.ask();
            world
        }

        fn ask(&mut self) {
            for id in std::mem::take(&mut self.free) {
                let head = vec![0x81, 3, 8, 0, 8, 0, 0, 0].into();
                let request = ModuleMessage { kind: ModuleMessageKind::Request, id, head, payload: Payload::Empty };
                self.say(ModuleNeighbor::Below, request);
            }
        }

        fn say(&mut self, from: ModuleNeighbor, message: ModuleMessage) {
            let mut out = ModuleOutput::default();
            self.half.handle(self.now, from, message, &mut out);
            self.hear(out);
        }

        fn hear(&mut self, mut out: ModuleOutput) {
            assert_eq!(out.failure(), None);
            while let Some((side, message)) = out.pop() {
                match (side, message.kind) {
                    (ModuleNeighbor::Above, ModuleMessageKind::Request) => self.at_mouse.push(message.id),
                    (ModuleNeighbor::Below, ModuleMessageKind::Completion) => {
                        self.heard.push((self.now, message.payload.into_vec()));
                        self.free.push(message.id);
                    }
                    other => panic!("{other:?}"),
                }
            }
            self.ask();
        }

        /// Lets the mouse report, if a request is open.
        fn report(&mut self, report: &[u8]) -> bool {
            let has_room = !self.at_mouse.is_empty();
            if has_room {
                let id = self.at_mouse.remove(0);
                let head = Payload::Empty;
                self.say(
                    ModuleNeighbor::Above,
                    ModuleMessage { kind: ModuleMessageKind::Completion, id, head, payload: report.into() },
                );
            }
            has_room
        }

        fn wait(&mut self, span: Duration) {
            let until = self.now + span;
            while let Some(due) = self.half.poll_timeout().filter(|due| *due <= until) {
                self.now = self.now.max(due);
                let mut out = ModuleOutput::default();
                self.half.handle_timeout(self.now, &mut out);
                self.hear(out);
            }
            self.now = until;
        }
    }

    fn motion(report: &[u8], bits: usize) -> [i64; 3] {
        match bits {
            8 => [1, 2, 3].map(|at| report.get(at).map_or(0, |byte| i64::from(*byte as i8))),
            _ => {
                let word = |at: usize| i64::from(i16::from_le_bytes([report[at], report[at + 1]]));
                [word(2), word(4), i64::from(report[6] as i8)]
            }
        }
    }

    #[test]
    fn motion_is_preserved_exactly_buttons_are_told_at_once_and_reports_are_rare() {
        for (seed, (spec, bits)) in [("pointer:time=10ms", 8), ("pointer:bits=16,report=2", 16)].iter().enumerate() {
            for depth in [1, 2, 5] {
                let mut dice = ModuleRng::new(seed as u64);
                let mut world = World::new(spec, depth);
                let (mut moved, mut buttons, mut changes, mut reports) = ([0; 3], 0u8, 0, 0);
                for _ in 0..3000 {
                    if dice.below(40) == 0 {
                        (buttons, changes) = (buttons ^ 1, changes + 1);
                    }
                    let mut any = || (dice.below(60) as i64 - 30) as u8;
                    let (x, y, wheel) = (any(), any(), any());
                    let high = |low: u8| if low >= 128 { 0xff } else { 0 };
                    let report = match bits {
                        8 => vec![buttons, x, y, wheel],
                        _ => vec![2, buttons, x, high(x), y, high(y), wheel],
                    };
                    let before = world.heard.len();
                    if world.report(&report) {
                        reports += 1;
                        motion(&report, *bits).iter().zip(&mut moved).for_each(|(delta, sum)| *sum += delta);
                        let position = usize::from(*bits == 16);
                        if world.heard.last().is_some_and(|(_, last)| last[position] != buttons) {
                            panic!("a button is told at once: {before}");
                        }
                    }
                    world.wait(Duration::from_millis(1));
                }
                world.wait(Duration::from_secs(1));
                let heard = world.heard.iter().map(|(_, report)| motion(report, *bits));
                let heard = heard.fold([0; 3], |sum, motion| std::array::from_fn(|at| sum[at] + motion[at]));
                assert_eq!(heard, moved, "{spec}, {depth} requests");
                if depth > 1 && *bits == 16 {
                    assert!(world.heard.len() < reports / 3 + 2 * changes, "{} of {reports}", world.heard.len());
                }
            }
        }
    }

    #[test]
    fn other_reports_pass_and_a_cancelled_request_gets_the_held_sum() {
        let mut world = World::new("pointer:report=2,bits=16", 2);
        world.report(&[2, 0, 1, 0, 0, 0, 0]);
        world.report(&[2, 0, 5, 0, 0, 0, 0]);
        assert_eq!(world.heard.len(), 1, "the second is held");
        world.report(&[3, 0xaa]);
        assert_eq!(world.heard.len(), 3, "another report passes, behind what was held");
        assert_eq!((world.heard[1].1[2], &world.heard[2].1[..]), (5, &[3, 0xaa][..]));
        world.report(&[2, 0, 7, 0, 0, 0, 0]);
        let id = (0..2).find(|id| !world.at_mouse.contains(id)).expect("one is held");
        let (mut out, head) = (ModuleOutput::default(), Payload::Empty);
        let cancel = ModuleMessage { kind: ModuleMessageKind::Cancel, id, head, payload: Payload::Empty };
        world.half.handle(world.now, ModuleNeighbor::Below, cancel.clone(), &mut out);
        let (side, given) = out.pop().unwrap();
        assert_eq!((side, given.id, given.payload.contiguous()[2]), (ModuleNeighbor::Below, id, 7));
        assert_eq!(out.pop(), Some((ModuleNeighbor::Above, cancel)));
    }
}
