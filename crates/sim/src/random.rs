//! Reproducible random numbers.

/// SplitMix64 (Steele, Lea and Flood 2014): the same seed gives the same numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SimulationRng(u64);

impl SimulationRng {
    /// A generator with this seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number of the sequence, uniform over all 64 bits (SplitMix64).
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number below `bound`; 0 if that is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.bits()) * u128::from(bound)) >> 64) as u64
    }

    /// A number from `least` to `most`, both included.
    pub fn between(&mut self, least: u64, most: u64) -> u64 {
        least + self.below((most - least).saturating_add(1))
    }

    /// True once in `times`, on average.
    pub fn once_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }

    /// One of `choices`, which must not be empty.
    pub fn one_of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len() as u64) as usize]
    }

    /// Time until the next event of a memoryless process with a mean of `mean_ns`, at least 1 ns.
    pub fn wait_ns(&mut self, mean_ns: u64) -> u64 {
        // Above 0 and at most 1.
        let share = ((self.bits() >> 11) + 1) as f64 / (1u64 << 53) as f64;
        (-share.ln() * mean_ns as f64) as u64 + 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn same_seed_gives_the_same_numbers() {
        let play = |seed| (0..5).map(|_| SimulationRng::new(seed).below(1000)).collect::<Vec<_>>();
        assert_eq!(play(7), play(7));
        let mut random = SimulationRng::new(1);
        assert!((0..1000).all(|_| (3..=9).contains(&random.between(3, 9))));
        let mean = (0..100_000).map(|_| random.wait_ns(1000)).sum::<u64>() / 100_000;
        assert!((980..1020).contains(&mean), "{mean}");
    }
}
