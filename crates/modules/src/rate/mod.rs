//! A narrower way: so many bytes a second, each way.

use std::time::Duration;

use farbus_model::Instant;
use farbus_model::module::{Class, Effects, Form, Manifest, Message, Module, Parameter, Side, Turn};

use crate::held::Held;
use crate::maker::Simple;

/// What it is, and how it is made.
pub const RATE: Simple = Simple {
    manifest: &MANIFEST,
    make: |settings, _| {
        Box::new(Rate { bytes_per_s: settings.number("bytes-per-s"), free_at: Instant::ZERO, held: Held::default() })
    },
};

const MANIFEST: Manifest = Manifest {
    name: "rate",
    version: 1,
    summary: "lets so many bytes pass a second, each way",
    classes: Class::ALL,
    parameters: &[Parameter {
        name: "bytes-per-s",
        form: Form::Number(1, 1 << 40),
        default: None,
        what: "bytes a second, each way, heads included",
        is_own: false,
    }],
    effects: Effects { is_fault: false, is_movable: true },
    cost: "the time that its bytes take at that rate; holds what waits",
    manual: include_str!("manual.md"),
};

struct Rate {
    bytes_per_s: u64,
    /// When all that came before will have passed.
    free_at: Instant,
    held: Held,
}

impl Module for Rate {
    fn handle(&mut self, now: Instant, from: Side, message: Message, out: &mut Turn) {
        if from != Side::Above {
            return out.pass(from, message);
        }
        let ns = message.len() as u128 * 1_000_000_000 / u128::from(self.bytes_per_s);
        self.free_at = self.free_at.max(now) + Duration::from_nanos(u64::try_from(ns).unwrap_or(u64::MAX / 4));
        self.held.put(self.free_at, message);
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

    /// At rest the way is free.
    fn save(&self) -> Option<Vec<u8>> {
        Some(Vec::new())
    }

    fn restore(&mut self, state: &[u8]) -> bool {
        state.is_empty()
    }
}
