//! The `null` module: does nothing, to measure what a pair costs by itself.

use farbus_model::Instant;
use farbus_model::module::{
    Module, ModuleDeviceClass, ModuleEffects, ModuleManifest, ModuleMessage, ModuleNeighbor, ModuleOutput,
};

use crate::cost::ModuleCost;
use crate::maker::SimpleMaker;

/// The manifest of `null` and the function that makes a half of it from settings.
pub const NULL: SimpleMaker =
    SimpleMaker { manifest: &MANIFEST, cost: |_| ModuleCost::SMALL, make: |_, _| Box::new(NullModule) };

const MANIFEST: ModuleManifest = ModuleManifest {
    name: "null",
    version: 1,
    summary: "does nothing, to measure what a pair costs",
    classes: ModuleDeviceClass::ALL,
    parameters: &[],
    effects: ModuleEffects { is_fault: false, is_movable: true },
    cost: "one call a message",
    manual: include_str!("manual.md"),
};

struct NullModule;

impl Module for NullModule {
    fn handle(&mut self, _now: Instant, from: ModuleNeighbor, message: ModuleMessage, out: &mut ModuleOutput) {
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
