//! `cargo xtask demo`: what the README starts with.

use crate::cargo::{self, cargo};

pub fn run() -> Result<(), String> {
    cargo::run(cargo(&["run", "--release", "--package", "farbus", "--", "demo"]))
}
