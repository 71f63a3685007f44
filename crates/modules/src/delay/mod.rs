//! A longer way: what a half gives to the link leaves later.

use std::time::Duration;

use farbus_model::Instant;
use farbus_model::module::{Class, Effects, Form, Manifest, Message, Module, Parameter, Side, Turn};

use crate::dice::{Dice, SEED};
use crate::held::Held;
use crate::maker::Simple;

/// What it is, and how it is made.
pub const DELAY: Simple = Simple {
    manifest: &MANIFEST,
    make: |settings, _| {
        Box::new(Delay {
            time: settings.span("time"),
            jitter: settings.span("jitter"),
            dice: Dice::new(settings.number("seed")),
            held: Held::default(),
        })
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

struct Delay {
    time: Duration,
    jitter: Duration,
    dice: Dice,
    held: Held,
}

impl Module for Delay {
    fn handle(&mut self, now: Instant, from: Side, message: Message, out: &mut Turn) {
        if from != Side::Above {
            return out.pass(from, message);
        }
        let jitter = self.dice.below(self.jitter.as_nanos() as u64 + 1);
        self.held.put(now + self.time + Duration::from_nanos(jitter), message);
        self.held.release(now, out);
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.held.next_due()
    }

    fn handle_timeout(&mut self, now: Instant, out: &mut Turn) {
        self.held.release(now, out);
    }

    fn is_at_rest(&self) -> bool {
        self.held.is_empty()
    }

    fn save(&self) -> Option<Vec<u8>> {
        Some(self.dice.state())
    }

    fn restore(&mut self, state: &[u8]) -> bool {
        self.dice.restore(state)
    }
}
