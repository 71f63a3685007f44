//! The `corrupt` module: changes a bit of the data.

use farbus_model::Instant;
use farbus_model::module::{
    Module, ModuleDeviceClass, ModuleEffects, ModuleManifest, ModuleMessage, ModuleMessageKind, ModuleNeighbor,
    ModuleOutput, ModuleParameter, ParameterFormat,
};

use crate::cost::ModuleCost;
use crate::dice::{ModuleRng, SEED};
use crate::maker::SimpleMaker;

/// The manifest of `corrupt` and the function that makes a half of it from settings.
pub const CORRUPT: SimpleMaker = SimpleMaker {
    manifest: &MANIFEST,
    cost: |_| ModuleCost::SMALL,
    make: |settings, _| {
        Box::new(BitCorruptor { one_in: settings.number("one-in"), dice: ModuleRng::new(settings.number("seed")) })
    },
};

const MANIFEST: ModuleManifest = ModuleManifest {
    name: "corrupt",
    version: 1,
    summary: "fault: a bit of some messages' data changes",
    classes: ModuleDeviceClass::ALL,
    parameters: &[
        ModuleParameter {
            name: "one-in",
            form: ParameterFormat::Number(1, 1 << 32),
            default: None,
            what: "of so many messages with data one is changed, each way",
            is_own: false,
        },
        SEED,
    ],
    effects: ModuleEffects { is_fault: true, is_movable: true },
    cost: "one call a message, a copy of what is changed",
    manual: include_str!("manual.md"),
};

struct BitCorruptor {
    one_in: u64,
    dice: ModuleRng,
}

impl Module for BitCorruptor {
    fn handle(&mut self, _now: Instant, from: ModuleNeighbor, mut message: ModuleMessage, out: &mut ModuleOutput) {
        let has_data = !message.payload.is_empty() && !matches!(message.kind, ModuleMessageKind::Aside(_));
        if from == ModuleNeighbor::Above && has_data && self.dice.below(self.one_in) == 0 {
            let mut bytes = message.payload.into_vec();
            let bit = self.dice.below(bytes.len() as u64 * 8) as usize;
            bytes[bit / 8] ^= 1 << (bit % 8);
            message.payload = bytes.into();
        }
        out.pass(from, message);
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
