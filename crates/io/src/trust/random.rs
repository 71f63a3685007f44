//! Random numbers that nobody can guess.

use ring::rand::{SecureRandom, SystemRandom};

/// Fills `bytes` with random ones.
///
/// # Panics
/// If the system has none: then nothing can be kept from anybody.
pub fn fill_random(bytes: &mut [u8]) {
    SystemRandom::new().fill(bytes).expect("the system gives random numbers");
}
