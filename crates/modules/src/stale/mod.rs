//! The `stale` module: of frames that wait for the link, only the newest is sent (requirement I2).

use farbus_model::module::{
    Module, ModuleDeviceClass, ModuleEffects, ModuleFailureCause, ModuleManifest, ModuleMessage, ModuleMessageKind,
    ModuleNeighbor, ModuleOutput, ModuleParameter, ModuleRole, ParameterFormat,
};
use farbus_model::{Instant, Payload};

use crate::cost::ModuleCost;
use crate::maker::SimpleMaker;

/// The manifest of `stale` and the function that makes a half of it from settings.
pub const STALE: SimpleMaker = SimpleMaker {
    manifest: &MANIFEST,
    cost: |_| ModuleCost::SMALL,
    make: |settings, context| match context.role {
        ModuleRole::Importer => Box::new(FrameArrivalReporter),
        ModuleRole::Exporter => {
            Box::new(StaleFrameFilter { ahead: settings.number("ahead") as u32, travelling: 0, waiting: None })
        }
    },
};

const MANIFEST: ModuleManifest = ModuleManifest {
    name: "stale",
    version: 1,
    summary: "drops frames of a stream for which the link is too slow",
    classes: &[ModuleDeviceClass::Stream],
    parameters: &[ModuleParameter {
        name: "ahead",
        form: ParameterFormat::Number(1, 64),
        default: Some("2"),
        what: "frames that may be on their way; of those behind them only the newest is kept",
        is_own: false,
    }],
    effects: ModuleEffects { is_fault: false, is_movable: true },
    cost: "a short message back for each frame; one frame kept",
    manual: include_str!("manual.md"),
};

/// The importer's half: reports which frames have arrived.
struct FrameArrivalReporter;

impl Module for FrameArrivalReporter {
    fn handle(&mut self, _now: Instant, from: ModuleNeighbor, message: ModuleMessage, out: &mut ModuleOutput) {
        if from == ModuleNeighbor::Below && message.kind == ModuleMessageKind::Event {
            out.aside(Payload::from(vec![1]));
        }
        out.pass(from, message);
    }

    fn held_bytes(&self) -> usize {
        0
    }

    fn save(&self) -> Option<Vec<u8>> {
        Some(Vec::new())
    }

    fn restore(&mut self, state: &[u8]) -> bool {
        state.is_empty()
    }
}

/// The exporter's half: drops frames.
struct StaleFrameFilter {
    ahead: u32,
    /// Frames that were sent and have not arrived yet.
    travelling: u32,
    waiting: Option<ModuleMessage>,
}

impl Module for StaleFrameFilter {
    fn handle(&mut self, _now: Instant, from: ModuleNeighbor, message: ModuleMessage, out: &mut ModuleOutput) {
        match (from, message.kind) {
            (ModuleNeighbor::Above, ModuleMessageKind::Event) => {
                if self.waiting.replace(message).is_some() {
                    out.lose();
                }
            }
            (ModuleNeighbor::Peer, _) => match self.travelling.checked_sub(message.payload.len() as u32) {
                Some(left) => self.travelling = left,
                None => return out.fail(ModuleFailureCause::Peer, "more arrived at its other half than was sent"),
            },
            _ => return out.pass(from, message),
        }
        if self.travelling < self.ahead
            && let Some(frame) = self.waiting.take()
        {
            self.travelling += 1;
            out.below(frame);
        }
    }

    fn held_bytes(&self) -> usize {
        self.waiting.as_ref().map_or(0, ModuleMessage::memory_bytes)
    }

    /// Frames under way need no state: they arrive by themselves.
    fn is_at_rest(&self) -> bool {
        self.waiting.is_none() && self.travelling == 0
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

    fn frame(id: u64) -> ModuleMessage {
        ModuleMessage {
            kind: ModuleMessageKind::Event,
            id,
            head: vec![id as u8; 16].into(),
            payload: vec![id as u8; 100].into(),
        }
    }

    #[test]
    fn newest_waiting_frame_is_sent_and_dropped_ones_are_counted() {
        let (mut there, mut out) =
            (StaleFrameFilter { ahead: 2, travelling: 0, waiting: None }, ModuleOutput::default());
        (0..6).for_each(|id| there.handle(Instant::ZERO, ModuleNeighbor::Above, frame(id), &mut out));
        assert_eq!(
            [out.pop(), out.pop(), out.pop()],
            [Some((ModuleNeighbor::Below, frame(0))), Some((ModuleNeighbor::Below, frame(1))), None]
        );
        assert_eq!((out.take_lost(), there.is_at_rest()), (3, false));
        FrameArrivalReporter.handle(Instant::ZERO, ModuleNeighbor::Below, frame(0), &mut out);
        let (side, word) = out.pop().unwrap();
        assert_eq!(out.pop(), Some((ModuleNeighbor::Above, frame(0))));
        there.handle(Instant::ZERO, side, word.clone(), &mut out);
        assert_eq!((out.pop(), out.pop(), out.take_lost()), (Some((ModuleNeighbor::Below, frame(5))), None, 0));
        (0..2).for_each(|_| there.handle(Instant::ZERO, side, word.clone(), &mut out));
        assert!(there.is_at_rest() && out.failure().is_none());
        there.handle(Instant::ZERO, side, word, &mut out);
        assert_eq!(out.failure().map(|failure| failure.trouble), Some(ModuleFailureCause::Peer));
    }
}
