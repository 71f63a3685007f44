//! Pseudorandom numbers, the same for the same seed.

use farbus_model::module::{ModuleParameter, ParameterFormat};

/// The `seed` parameter.
pub const SEED: ModuleParameter = ModuleParameter {
    name: "seed",
    form: ParameterFormat::Number(0, u64::MAX),
    default: Some("0"),
    what: "of the draws",
    is_own: false,
};

/// SplitMix64 (Steele, Lea, Flood 2014).
#[derive(Debug)]
pub struct ModuleRng(u64);

impl ModuleRng {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    /// A number from 0 to `count` - 1; 0 if `count` is 0.
    pub fn below(&mut self, count: u64) -> u64 {
        self.next() % count.max(1)
    }

    pub fn state(&self) -> Vec<u8> {
        self.0.to_le_bytes().to_vec()
    }

    pub fn restore(&mut self, state: &[u8]) -> bool {
        state.try_into().map(|bytes| self.0 = u64::from_le_bytes(bytes)).is_ok()
    }
}
