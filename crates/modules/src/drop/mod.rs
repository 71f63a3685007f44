//! The `drop` module: drops requests, and completes them as failed, since a request cannot vanish.

use farbus_model::module::{Class, Effects, Form, Kind, Manifest, Message, Module, Parameter, Role, Side, Turn};
use farbus_model::{Instant, Payload};

use crate::cost::ModuleCost;
use crate::dice::{Dice, SEED};
use crate::maker::Simple;

/// The manifest of `drop` and the function that makes a half of it from settings.
pub const DROP: Simple = Simple {
    manifest: &MANIFEST,
    cost: |_| ModuleCost::SMALL,
    make: |settings, place| {
        Box::new(Drop {
            one_in: settings.number("one-in"),
            dice: Dice::new(settings.number("seed")),
            failed: place.failed.clone(),
            drops: place.role == Role::Importer,
        })
    },
};

const MANIFEST: Manifest = Manifest {
    name: "drop",
    version: 1,
    summary: "fault: some requests fail and never arrive",
    classes: &[Class::Usb, Class::Block],
    parameters: &[
        Parameter {
            name: "one-in",
            form: Form::Number(1, 1 << 32),
            default: None,
            what: "of so many requests one is lost",
            is_own: false,
        },
        SEED,
    ],
    effects: Effects { is_fault: true, is_movable: true },
    cost: "one call a message",
    manual: include_str!("manual.md"),
};

struct Drop {
    one_in: u64,
    dice: Dice,
    failed: Payload,
    drops: bool,
}

impl Module for Drop {
    fn handle(&mut self, _now: Instant, from: Side, message: Message, out: &mut Turn) {
        let is_request = from == Side::Above && message.kind == Kind::Request;
        if !(self.drops && is_request && self.dice.below(self.one_in) == 0) {
            return out.pass(from, message);
        }
        let (kind, head, payload) = (Kind::Completion, self.failed.clone(), Payload::Empty);
        out.above(Message { kind, id: message.id, head, payload });
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
