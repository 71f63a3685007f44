//! The `delay` module: messages leave for the link later.

use std::time::Duration;

use farbus_model::Instant;
use farbus_model::module::{
    ModuleDeviceClass, ModuleEffects, ModuleManifest, ModuleMessage, ModuleParameter, ParameterFormat,
};

use crate::cost::ModuleCost;
use crate::dice::{ModuleRng, SEED};
use crate::later::{DelayPolicy, DelayQueue};
use crate::maker::SimpleMaker;

/// The manifest of `delay` and the function that makes a half of it from settings.
pub const DELAY: SimpleMaker = SimpleMaker {
    manifest: &MANIFEST,
    cost: |_| ModuleCost::SMALL,
    make: |settings, _| {
        Box::new(DelayQueue::new(FixedDelay {
            time: settings.span("time"),
            jitter: settings.span("jitter"),
            dice: ModuleRng::new(settings.number("seed")),
        }))
    },
};

/// Ten seconds: beyond, drivers give up anyway.
const SPAN_MAX: Duration = Duration::from_secs(10);

const MANIFEST: ModuleManifest = ModuleManifest {
    name: "delay",
    version: 1,
    summary: "fault: every message takes longer, each way",
    classes: ModuleDeviceClass::ALL,
    parameters: &[
        ModuleParameter {
            name: "time",
            form: ParameterFormat::SpanUpTo(SPAN_MAX),
            default: None,
            what: "how much longer, each way: half of what is added to a round trip",
            is_own: false,
        },
        ModuleParameter {
            name: "jitter",
            form: ParameterFormat::SpanUpTo(SPAN_MAX),
            default: Some("0ms"),
            what: "up to so much more, drawn anew for each message; none overtakes another",
            is_own: false,
        },
        SEED,
    ],
    effects: ModuleEffects { is_fault: true, is_movable: true },
    cost: "the time it is told, each way; holds what waits",
    manual: include_str!("manual.md"),
};

/// Each message leaves after a fixed delay.
struct FixedDelay {
    time: Duration,
    jitter: Duration,
    dice: ModuleRng,
}

impl DelayPolicy for FixedDelay {
    fn due(&mut self, now: Instant, _message: &ModuleMessage) -> Instant {
        now + self.time + Duration::from_nanos(self.dice.below(self.jitter.as_nanos() as u64 + 1))
    }

    fn state(&self) -> Vec<u8> {
        self.dice.state()
    }

    fn restore(&mut self, state: &[u8]) -> bool {
        self.dice.restore(state)
    }
}
