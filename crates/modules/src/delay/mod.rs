//! The `delay` module: messages leave for the link later.

use std::time::Duration;

use farbus_model::Instant;
use farbus_model::module::{Class, Effects, Form, Manifest, Message, Parameter};

use crate::cost::ModuleCost;
use crate::dice::{Dice, SEED};
use crate::later::{Later, Pace};
use crate::maker::Simple;

/// The manifest of `delay` and the function that makes a half of it from settings.
pub const DELAY: Simple = Simple {
    manifest: &MANIFEST,
    cost: |_| ModuleCost::SMALL,
    make: |settings, _| {
        Box::new(Later::new(Delay {
            time: settings.span("time"),
            jitter: settings.span("jitter"),
            dice: Dice::new(settings.number("seed")),
        }))
    },
};

/// Ten seconds: beyond, drivers give up anyway.
const SPAN_MAX: Duration = Duration::from_secs(10);

const MANIFEST: Manifest = Manifest {
    name: "delay",
    version: 1,
    summary: "fault: every message takes longer, each way",
    classes: Class::ALL,
    parameters: &[
        Parameter {
            name: "time",
            form: Form::SpanUpTo(SPAN_MAX),
            default: None,
            what: "how much longer, each way: half of what is added to a round trip",
            is_own: false,
        },
        Parameter {
            name: "jitter",
            form: Form::SpanUpTo(SPAN_MAX),
            default: Some("0ms"),
            what: "up to so much more, drawn anew for each message; none overtakes another",
            is_own: false,
        },
        SEED,
    ],
    effects: Effects { is_fault: true, is_movable: true },
    cost: "the time it is told, each way; holds what waits",
    manual: include_str!("manual.md"),
};

/// Each message leaves after a fixed delay.
struct Delay {
    time: Duration,
    jitter: Duration,
    dice: Dice,
}

impl Pace for Delay {
    fn due(&mut self, now: Instant, _message: &Message) -> Instant {
        now + self.time + Duration::from_nanos(self.dice.below(self.jitter.as_nanos() as u64 + 1))
    }

    fn state(&self) -> Vec<u8> {
        self.dice.state()
    }

    fn restore(&mut self, state: &[u8]) -> bool {
        self.dice.restore(state)
    }
}
