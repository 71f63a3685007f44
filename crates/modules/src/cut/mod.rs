//! The `cut` module: ends the link.

use farbus_model::Instant;
use farbus_model::module::{
    Module, ModuleDeviceClass, ModuleEffects, ModuleFailureCause, ModuleManifest, ModuleMessage, ModuleNeighbor,
    ModuleOutput, ModuleParameter, ModuleRole, ParameterFormat,
};

use crate::cost::ModuleCost;
use crate::maker::SimpleMaker;

/// The manifest of `cut` and the function that makes a half of it from settings.
pub const CUT: SimpleMaker = SimpleMaker {
    manifest: &MANIFEST,
    cost: |_| ModuleCost::SMALL,
    make: |settings, context| {
        Box::new(AttachmentCutter { left: settings.number("after"), cuts: context.role == ModuleRole::Importer })
    },
};

const MANIFEST: ModuleManifest = ModuleManifest {
    name: "cut",
    version: 1,
    summary: "fault: the attachment ends as if its way were lost",
    classes: ModuleDeviceClass::ALL,
    parameters: &[ModuleParameter {
        name: "after",
        form: ParameterFormat::Number(0, u64::MAX),
        default: None,
        what: "messages that pass the importer's half, both ways together, before it ends",
        is_own: false,
    }],
    effects: ModuleEffects { is_fault: true, is_movable: true },
    cost: "one call a message",
    manual: include_str!("manual.md"),
};

struct AttachmentCutter {
    left: u64,
    cuts: bool,
}

impl Module for AttachmentCutter {
    fn handle(&mut self, _now: Instant, from: ModuleNeighbor, message: ModuleMessage, out: &mut ModuleOutput) {
        if !self.cuts {
            return out.pass(from, message);
        }
        match self.left.checked_sub(1) {
            Some(left) => {
                self.left = left;
                out.pass(from, message);
            }
            None => out.fail(ModuleFailureCause::Network, "it cuts the way here, as it was told"),
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
