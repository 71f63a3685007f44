//! The `null` module: does nothing, to measure what a pair costs by itself.

use farbus_model::Instant;
use farbus_model::module::{Class, Effects, Manifest, Message, Module, Side, Turn};

use crate::cost::ModuleCost;
use crate::maker::Simple;

/// The manifest of `null` and the function that makes a half of it from settings.
pub const NULL: Simple = Simple { manifest: &MANIFEST, cost: |_| ModuleCost::SMALL, make: |_, _| Box::new(Null) };

const MANIFEST: Manifest = Manifest {
    name: "null",
    version: 1,
    summary: "does nothing, to measure what a pair costs",
    classes: Class::ALL,
    parameters: &[],
    effects: Effects { is_fault: false, is_movable: true },
    cost: "one call a message",
    manual: include_str!("manual.md"),
};

struct Null;

impl Module for Null {
    fn handle(&mut self, _now: Instant, from: Side, message: Message, out: &mut Turn) {
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
