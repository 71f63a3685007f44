//! The `cut` module: ends the link.

use farbus_model::Instant;
use farbus_model::module::{Class, Effects, Form, Manifest, Message, Module, Parameter, Role, Side, Trouble, Turn};

use crate::cost::ModuleCost;
use crate::maker::Simple;

/// The manifest of `cut` and the function that makes a half of it from settings.
pub const CUT: Simple = Simple {
    manifest: &MANIFEST,
    cost: |_| ModuleCost::SMALL,
    make: |settings, place| Box::new(Cut { left: settings.number("after"), cuts: place.role == Role::Importer }),
};

const MANIFEST: Manifest = Manifest {
    name: "cut",
    version: 1,
    summary: "fault: the attachment ends as if its way were lost",
    classes: Class::ALL,
    parameters: &[Parameter {
        name: "after",
        form: Form::Number(0, u64::MAX),
        default: None,
        what: "messages that pass the importer's half, both ways together, before it ends",
        is_own: false,
    }],
    effects: Effects { is_fault: true, is_movable: true },
    cost: "one call a message",
    manual: include_str!("manual.md"),
};

struct Cut {
    left: u64,
    cuts: bool,
}

impl Module for Cut {
    fn handle(&mut self, _now: Instant, from: Side, message: Message, out: &mut Turn) {
        if !self.cuts {
            return out.pass(from, message);
        }
        match self.left.checked_sub(1) {
            Some(left) => {
                self.left = left;
                out.pass(from, message);
            }
            None => out.fail(Trouble::Network, "it cuts the way here, as it was told"),
        }
    }

    fn held_bytes(&self) -> usize {
        0
    }

    fn save(&self) -> Option<Vec<u8>> {
        Some(self.left.to_le_bytes().to_vec())
    }

    fn restore(&mut self, state: &[u8]) -> bool {
        state.try_into().map(|bytes| self.left = u64::from_le_bytes(bytes)).is_ok()
    }
}
