//! The `jitter` module: messages leave for the link after random delays of a given distribution.

use std::time::Duration;

use farbus_model::Instant;
use farbus_model::module::{Class, Effects, Form, Manifest, Message, Parameter};

use crate::cost::ModuleCost;
use crate::dice::{Dice, SEED};
use crate::later::{Later, Pace};
use crate::maker::Simple;

/// The manifest of `jitter` and the function that makes a half of it from settings.
pub const JITTER: Simple = Simple {
    manifest: &MANIFEST,
    cost: |_| ModuleCost::SMALL,
    make: |settings, _| {
        let shape = match settings.text("shape") {
            "normal" => Shape::Normal,
            "bursts" => Shape::Bursts,
            _ => Shape::Uniform,
        };
        let spread_ns = settings.span("spread").as_nanos() as u64;
        Box::new(Later::new(Jitter { spread_ns, shape, dice: Dice::new(settings.number("seed")) }))
    },
};

const MANIFEST: Manifest = Manifest {
    name: "jitter",
    version: 1,
    summary: "fault: messages take unevenly longer, each way",
    classes: Class::ALL,
    parameters: &[
        Parameter {
            name: "spread",
            form: Form::SpanUpTo(Duration::from_secs(10)),
            default: None,
            what: "the most that a message takes longer, each way",
            is_own: false,
        },
        Parameter {
            name: "shape",
            form: Form::OneOf(&["uniform", "normal", "bursts"]),
            default: Some("uniform"),
            what: "how the draws fall: evenly, around the middle, or mostly nothing and seldom all of it",
            is_own: false,
        },
        SEED,
    ],
    effects: Effects { is_fault: true, is_movable: true },
    cost: "the time that is drawn, each way; holds what waits",
    manual: include_str!("manual.md"),
};

#[derive(Clone, Copy, Debug)]
enum Shape {
    Uniform,
    /// The mean of twelve uniform draws (Irwin and Hall): around half of the spread, with a standard deviation of a
    /// twelfth of it.
    Normal,
    Bursts,
}

/// One message of this many takes the whole spread, and delays those behind it.
const BURST_ONE_IN: u64 = 32;
const DRAWS: u64 = 12;

struct Jitter {
    spread_ns: u64,
    shape: Shape,
    dice: Dice,
}

impl Pace for Jitter {
    fn due(&mut self, now: Instant, _message: &Message) -> Instant {
        let ns = match self.shape {
            Shape::Uniform => self.dice.below(self.spread_ns + 1),
            Shape::Normal => (0..DRAWS).map(|_| self.dice.below(self.spread_ns / DRAWS + 1)).sum(),
            Shape::Bursts if self.dice.below(BURST_ONE_IN) == 0 => self.spread_ns,
            Shape::Bursts => 0,
        };
        now + Duration::from_nanos(ns)
    }

    fn state(&self) -> Vec<u8> {
        self.dice.state()
    }

    fn restore(&mut self, state: &[u8]) -> bool {
        self.dice.restore(state)
    }
}

#[cfg(test)]
mod tests {
    use farbus_model::Payload;
    use farbus_model::module::Kind;

    use super::*;

    #[test]
    fn draws_have_their_shape_and_fall_the_same_for_a_seed() {
        let message = Message { kind: Kind::Request, id: 1, head: Payload::Empty, payload: Payload::Empty };
        let drawn = |shape, seed| {
            let mut jitter = Jitter { spread_ns: 1_200_000, shape, dice: Dice::new(seed) };
            (0..4000).map(|_| jitter.due(Instant::ZERO, &message).as_nanos()).collect::<Vec<u64>>()
        };
        for shape in [Shape::Uniform, Shape::Normal, Shape::Bursts] {
            assert_eq!(drawn(shape, 1), drawn(shape, 1), "{shape:?}");
            assert_ne!(drawn(shape, 1), drawn(shape, 2), "{shape:?}");
            assert!(drawn(shape, 3).iter().all(|ns| *ns <= 1_200_000), "{shape:?}");
        }
        let moments = |ns: &[u64]| {
            let mean = ns.iter().sum::<u64>() as f64 / ns.len() as f64;
            let variance = ns.iter().map(|ns| (*ns as f64 - mean).powi(2)).sum::<f64>() / ns.len() as f64;
            (mean, variance.sqrt())
        };
        let (mean, deviation) = moments(&drawn(Shape::Uniform, 4));
        assert!((mean - 600e3).abs() < 20e3 && (deviation - 346e3).abs() < 15e3, "{mean} {deviation}");
        let (mean, deviation) = moments(&drawn(Shape::Normal, 4));
        assert!((mean - 600e3).abs() < 10e3 && (deviation - 100e3).abs() < 8e3, "{mean} {deviation}");
        let late = drawn(Shape::Bursts, 4).iter().filter(|ns| **ns > 0).count();
        assert!((80..180).contains(&late), "{late} of 4000");
    }
}
