//! The `jitter` module: messages leave for the link after random delays of a given distribution.

use std::time::Duration;

use farbus_model::Instant;
use farbus_model::module::{
    ModuleDeviceClass, ModuleEffects, ModuleManifest, ModuleMessage, ModuleParameter, ParameterFormat,
};

use crate::cost::ModuleCost;
use crate::dice::{ModuleRng, SEED};
use crate::later::{DelayPolicy, DelayQueue};
use crate::maker::SimpleMaker;

/// The manifest of `jitter` and the function that makes a half of it from settings.
pub const JITTER: SimpleMaker = SimpleMaker {
    manifest: &MANIFEST,
    cost: |_| ModuleCost::SMALL,
    make: |settings, _| {
        let shape = match settings.text("shape") {
            "normal" => JitterDistribution::Normal,
            "bursts" => JitterDistribution::Bursts,
            _ => JitterDistribution::Uniform,
        };
        let spread_ns = settings.span("spread").as_nanos() as u64;
        Box::new(DelayQueue::new(JitterDelay { spread_ns, shape, dice: ModuleRng::new(settings.number("seed")) }))
    },
};

const MANIFEST: ModuleManifest = ModuleManifest {
    name: "jitter",
    version: 1,
    summary: "fault: messages take unevenly longer, each way",
    classes: ModuleDeviceClass::ALL,
    parameters: &[
        ModuleParameter {
            name: "spread",
            form: ParameterFormat::SpanUpTo(Duration::from_secs(10)),
            default: None,
            what: "the most that a message takes longer, each way",
            is_own: false,
        },
        ModuleParameter {
            name: "shape",
            form: ParameterFormat::OneOf(&["uniform", "normal", "bursts"]),
            default: Some("uniform"),
            what: "how the draws fall: evenly, around the middle, or mostly nothing and seldom all of it",
            is_own: false,
        },
        SEED,
    ],
    effects: ModuleEffects { is_fault: true, is_movable: true },
    cost: "the time that is drawn, each way; holds what waits",
    manual: include_str!("manual.md"),
};

#[derive(Clone, Copy, Debug)]
enum JitterDistribution {
    Uniform,
    /// The mean of twelve uniform draws (Irwin and Hall): around half of the spread, with a standard deviation of a
    /// twelfth of it.
    Normal,
    Bursts,
}

/// One message of this many takes the whole spread, and delays those behind it.
const BURST_ONE_IN: u64 = 32;
const DRAWS: u64 = 12;

struct JitterDelay {
    spread_ns: u64,
    shape: JitterDistribution,
    dice: ModuleRng,
}

impl DelayPolicy for JitterDelay {
    fn due(&mut self, now: Instant, _message: &ModuleMessage) -> Instant {
        let ns = match self.shape {
            JitterDistribution::Uniform => self.dice.below(self.spread_ns + 1),
            JitterDistribution::Normal => (0..DRAWS).map(|_| self.dice.below(self.spread_ns / DRAWS + 1)).sum(),
            JitterDistribution::Bursts if self.dice.below(BURST_ONE_IN) == 0 => self.spread_ns,
            JitterDistribution::Bursts => 0,
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
    use farbus_model::module::ModuleMessageKind;

    use super::*;

    #[test]
    fn draws_have_their_shape_and_fall_the_same_for_a_seed() {
        let message =
            ModuleMessage { kind: ModuleMessageKind::Request, id: 1, head: Payload::Empty, payload: Payload::Empty };
        let drawn = |shape, seed| {
            let mut jitter = JitterDelay { spread_ns: 1_200_000, shape, dice: ModuleRng::new(seed) };
            (0..4000).map(|_| jitter.due(Instant::ZERO, &message).as_nanos()).collect::<Vec<u64>>()
        };
        for shape in [JitterDistribution::Uniform, JitterDistribution::Normal, JitterDistribution::Bursts] {
            assert_eq!(drawn(shape, 1), drawn(shape, 1), "{shape:?}");
            assert_ne!(drawn(shape, 1), drawn(shape, 2), "{shape:?}");
            assert!(drawn(shape, 3).iter().all(|ns| *ns <= 1_200_000), "{shape:?}");
        }
        let moments = |ns: &[u64]| {
            let mean = ns.iter().sum::<u64>() as f64 / ns.len() as f64;
            let variance = ns.iter().map(|ns| (*ns as f64 - mean).powi(2)).sum::<f64>() / ns.len() as f64;
            (mean, variance.sqrt())
        };
        let (mean, deviation) = moments(&drawn(JitterDistribution::Uniform, 4));
        assert!((mean - 600e3).abs() < 20e3 && (deviation - 346e3).abs() < 15e3, "{mean} {deviation}");
        let (mean, deviation) = moments(&drawn(JitterDistribution::Normal, 4));
        assert!((mean - 600e3).abs() < 10e3 && (deviation - 100e3).abs() < 8e3, "{mean} {deviation}");
        let late = drawn(JitterDistribution::Bursts, 4).iter().filter(|ns| **ns > 0).count();
        assert!((80..180).contains(&late), "{late} of 4000");
    }
}
