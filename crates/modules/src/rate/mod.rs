//! The `rate` module: limits the bytes a second in each direction.

use std::time::Duration;

use farbus_model::Instant;
use farbus_model::module::{
    ModuleDeviceClass, ModuleEffects, ModuleManifest, ModuleMessage, ModuleParameter, ParameterFormat,
};

use crate::cost::ModuleCost;
use crate::later::{DelayPolicy, DelayQueue};
use crate::maker::SimpleMaker;

/// The manifest of `rate` and the function that makes a half of it from settings.
pub const RATE: SimpleMaker = SimpleMaker {
    manifest: &MANIFEST,
    cost: |_| ModuleCost::SMALL,
    make: |settings, _| {
        Box::new(DelayQueue::new(ByteRateLimiter {
            bytes_per_s: settings.number("bytes-per-s"),
            free_at: Instant::ZERO,
        }))
    },
};

const MANIFEST: ModuleManifest = ModuleManifest {
    name: "rate",
    version: 1,
    summary: "lets so many bytes pass a second, each way",
    classes: ModuleDeviceClass::ALL,
    parameters: &[ModuleParameter {
        name: "bytes-per-s",
        form: ParameterFormat::Number(1, 1 << 40),
        default: None,
        what: "bytes a second, each way, heads included",
        is_own: false,
    }],
    effects: ModuleEffects { is_fault: false, is_movable: true },
    cost: "the time that its bytes take at that rate; holds what waits",
    manual: include_str!("manual.md"),
};

/// A message leaves once all messages before it, and it, have passed at the rate.
struct ByteRateLimiter {
    bytes_per_s: u64,
    free_at: Instant,
}

impl DelayPolicy for ByteRateLimiter {
    fn due(&mut self, now: Instant, message: &ModuleMessage) -> Instant {
        let ns = message.len() as u128 * 1_000_000_000 / u128::from(self.bytes_per_s);
        self.free_at = self.free_at.max(now) + Duration::from_nanos(u64::try_from(ns).unwrap_or(u64::MAX / 4));
        self.free_at
    }

    /// At rest there is no backlog.
    fn state(&self) -> Vec<u8> {
        Vec::new()
    }

    fn restore(&mut self, state: &[u8]) -> bool {
        state.is_empty()
    }
}
