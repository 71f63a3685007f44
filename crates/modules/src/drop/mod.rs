//! The `drop` module: drops requests, and completes them as failed, since a request cannot vanish.

use farbus_model::module::{
    Module, ModuleDeviceClass, ModuleEffects, ModuleManifest, ModuleMessage, ModuleMessageKind, ModuleNeighbor,
    ModuleOutput, ModuleParameter, ModuleRole, ParameterFormat,
};
use farbus_model::{Instant, Payload};

use crate::cost::ModuleCost;
use crate::dice::{ModuleRng, SEED};
use crate::maker::SimpleMaker;

/// The manifest of `drop` and the function that makes a half of it from settings.
pub const DROP: SimpleMaker = SimpleMaker {
    manifest: &MANIFEST,
    cost: |_| ModuleCost::SMALL,
    make: |settings, context| {
        Box::new(RequestDropper {
            one_in: settings.number("one-in"),
            dice: ModuleRng::new(settings.number("seed")),
            failed: context.failed.clone(),
            drops: context.role == ModuleRole::Importer,
        })
    },
};

const MANIFEST: ModuleManifest = ModuleManifest {
    name: "drop",
    version: 1,
    summary: "fault: some requests fail and never arrive",
    classes: &[ModuleDeviceClass::Usb, ModuleDeviceClass::Block],
    parameters: &[
        ModuleParameter {
            name: "one-in",
            form: ParameterFormat::Number(1, 1 << 32),
            default: None,
            what: "of so many requests one is lost",
            is_own: false,
        },
        SEED,
    ],
    effects: ModuleEffects { is_fault: true, is_movable: true },
    cost: "one call a message",
    manual: include_str!("manual.md"),
};

struct RequestDropper {
    one_in: u64,
    dice: ModuleRng,
    failed: Payload,
    drops: bool,
}

impl Module for RequestDropper {
    fn handle(&mut self, _now: Instant, from: ModuleNeighbor, message: ModuleMessage, out: &mut ModuleOutput) {
        let is_request = from == ModuleNeighbor::Above && message.kind == ModuleMessageKind::Request;
        if !(self.drops && is_request && self.dice.below(self.one_in) == 0) {
            return out.pass(from, message);
        }
        let (kind, head, payload) = (ModuleMessageKind::Completion, self.failed.clone(), Payload::Empty);
        out.above(ModuleMessage { kind, id: message.id, head, payload });
    }

    fn held_bytes(&self) -> usize {
        0
    }

    fn save(&self) -> Option<Vec<u8>> {
        Some(self.dice.state())
    }

    fn restore(&mut self, state: &[u8]) -> bool {
        self.dice.restore(state)
    }
}
