//! The `pause` module: messages wait until the owner resumes them.

use std::collections::VecDeque;
use std::time::Duration;

use farbus_model::Instant;
use farbus_model::module::{
    Module, ModuleDeviceClass, ModuleEffects, ModuleFailureCause, ModuleManifest, ModuleMessage, ModuleNeighbor,
    ModuleOutput, ModuleParameter, ParameterFormat,
};

use crate::cost::ModuleCost;
use crate::maker::SimpleMaker;

/// The manifest of `pause` and the function that makes a half of it from settings.
pub const PAUSE: SimpleMaker = SimpleMaker {
    manifest: &MANIFEST,
    cost: |_| ModuleCost::SMALL,
    make: |settings, _| {
        Box::new(PauseModule { span_max: settings.span("longest"), until: None, held: VecDeque::new(), held_bytes: 0 })
    },
};

const MANIFEST: ModuleManifest = ModuleManifest {
    name: "pause",
    version: 1,
    summary: "holds what passes while its owner says so",
    classes: ModuleDeviceClass::ALL,
    parameters: &[ModuleParameter {
        name: "longest",
        form: ParameterFormat::SpanUpTo(Duration::from_secs(3600)),
        default: Some("60s"),
        what: "after so long it goes on by itself",
        is_own: false,
    }],
    effects: ModuleEffects { is_fault: false, is_movable: true },
    cost: "nothing while it lets pass; holds what waits while it does not",
    manual: include_str!("manual.md"),
};

const HALT: u8 = 1;
const GO: u8 = 0;

struct PauseModule {
    span_max: Duration,
    /// When the pause ends by itself; `None` if not paused.
    until: Option<Instant>,
    /// The waiting messages, and where they came from.
    held: VecDeque<(ModuleNeighbor, ModuleMessage)>,
    held_bytes: usize,
}

impl PauseModule {
    fn set(&mut self, now: Instant, is_paused: bool, out: &mut ModuleOutput) {
        if is_paused {
            self.until = Some(now + self.span_max);
        } else {
            (self.until, self.held_bytes) = (None, 0);
            self.held.drain(..).for_each(|(from, message)| out.pass(from, message));
        }
    }
}

impl Module for PauseModule {
    fn handle(&mut self, now: Instant, from: ModuleNeighbor, mut message: ModuleMessage, out: &mut ModuleOutput) {
        match (from, self.until) {
            (ModuleNeighbor::Peer, _) => match message.payload.contiguous().as_ref() {
                [HALT] => self.set(now, true, out),
                [GO] => self.set(now, false, out),
                _ => out.fail(ModuleFailureCause::Peer, "its other half sent what is no word of it"),
            },
            (_, Some(_)) => {
                // Windows on what the link received would keep all of that.
                message.head.own();
                message.payload.own();
                self.held_bytes += message.memory_bytes();
                self.held.push_back((from, message));
            }
            (_, None) => out.pass(from, message),
        }
    }

    fn held_bytes(&self) -> usize {
        self.held_bytes
    }

    fn pause(&mut self, now: Instant, is_paused: bool, out: &mut ModuleOutput) {
        out.aside(vec![if is_paused { HALT } else { GO }].into());
        self.set(now, is_paused, out);
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.until
    }

    fn handle_timeout(&mut self, now: Instant, out: &mut ModuleOutput) {
        if self.until.is_some_and(|until| until <= now) {
            self.set(now, false, out);
        }
    }

    fn is_at_rest(&self) -> bool {
        self.until.is_none()
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
    use farbus_model::Payload;
    use farbus_model::module::ModuleMessageKind;

    use super::*;

    #[test]
    fn both_halves_hold_what_comes_and_let_it_go_in_its_order() {
        let half =
            || PauseModule { span_max: Duration::from_secs(60), until: None, held: VecDeque::new(), held_bytes: 0 };
        let (mut here, mut there, mut out) = (half(), half(), ModuleOutput::default());
        let message =
            |id| ModuleMessage { kind: ModuleMessageKind::Request, id, head: Payload::Empty, payload: Payload::Empty };
        here.pause(Instant::ZERO, true, &mut out);
        let (side, word) = out.pop().unwrap();
        there.handle(Instant::ZERO, side, word, &mut out);
        for half in [&mut here, &mut there] {
            half.handle(Instant::ZERO, ModuleNeighbor::Above, message(1), &mut out);
            half.handle(Instant::ZERO, ModuleNeighbor::Below, message(2), &mut out);
            assert_eq!((out.pop(), half.is_at_rest()), (None, false));
        }
        here.pause(Instant::ZERO, false, &mut out);
        let (side, word) = out.pop().unwrap();
        let released = [(ModuleNeighbor::Below, message(1)), (ModuleNeighbor::Above, message(2))];
        assert_eq!([out.pop(), out.pop(), out.pop()], [Some(released[0].clone()), Some(released[1].clone()), None]);
        there.handle(Instant::ZERO, side, word, &mut out);
        assert_eq!([out.pop(), out.pop()], released.map(Some));
        here.handle(Instant::ZERO, ModuleNeighbor::Above, message(3), &mut out);
        assert!(out.pop().is_some() && here.is_at_rest());
    }

    #[test]
    fn pause_ends_by_itself() {
        let mut half =
            PauseModule { span_max: Duration::from_secs(1), until: None, held: VecDeque::new(), held_bytes: 0 };
        let mut out = ModuleOutput::default();
        half.pause(Instant::ZERO, true, &mut out);
        let due = half.poll_timeout().unwrap();
        assert_eq!(due, Instant::ZERO + Duration::from_secs(1));
        half.handle_timeout(due, &mut out);
        assert!(half.is_at_rest());
        let word =
            ModuleMessage { kind: ModuleMessageKind::Aside(0), id: 0, head: Payload::Empty, payload: vec![7].into() };
        half.handle(due, ModuleNeighbor::Peer, word, &mut out);
        assert_eq!(out.failure().map(|failure| failure.trouble), Some(ModuleFailureCause::Peer));
    }
}
