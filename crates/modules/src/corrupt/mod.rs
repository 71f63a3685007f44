//! The `corrupt` module: changes a bit of the data.

use farbus_model::Instant;
use farbus_model::module::{Class, Effects, Form, Kind, Manifest, Message, Module, Parameter, Side, Turn};

use crate::cost::ModuleCost;
use crate::dice::{Dice, SEED};
use crate::maker::Simple;

/// The manifest of `corrupt` and the function that makes a half of it from settings.
pub const CORRUPT: Simple = Simple {
    manifest: &MANIFEST,
    cost: |_| ModuleCost::SMALL,
    make: |settings, _| {
        Box::new(Corrupt { one_in: settings.number("one-in"), dice: Dice::new(settings.number("seed")) })
    },
};

const MANIFEST: Manifest = Manifest {
    name: "corrupt",
    version: 1,
    summary: "fault: a bit of some messages' data changes",
    classes: Class::ALL,
    parameters: &[
        Parameter {
            name: "one-in",
            form: Form::Number(1, 1 << 32),
            default: None,
            what: "of so many messages with data one is changed, each way",
            is_own: false,
        },
        SEED,
    ],
    effects: Effects { is_fault: true, is_movable: true },
    cost: "one call a message, a copy of what is changed",
    manual: include_str!("manual.md"),
};

struct Corrupt {
    one_in: u64,
    dice: Dice,
}

impl Module for Corrupt {
    fn handle(&mut self, _now: Instant, from: Side, mut message: Message, out: &mut Turn) {
        let has_data = !message.payload.is_empty() && !matches!(message.kind, Kind::Aside(_));
        if from == Side::Above && has_data && self.dice.below(self.one_in) == 0 {
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
