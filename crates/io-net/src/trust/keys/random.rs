//! Unpredictable random numbers.

use ring::rand::{SecureRandom, SystemRandom};

/// Fills `bytes` with random bytes.
///
/// # Panics
/// If the system has none: without them there are no secrets.
pub fn fill_random(bytes: &mut [u8]) {
    SystemRandom::new().fill(bytes).expect("the system gives random numbers");
}
