//! `cargo xtask attack`: the attackers of docs/security.md as programs, what each costs, and its limits.

use crate::cargo::{self, cargo};
use clap::Args;

#[derive(Args)]
#[command(
    after_help = "Who attacks a daemon is in the table that the first test prints. A taken-over half of a process, a hostile device and
a hostile module meet the code that faces them, in the tests after it. Run it as root: some attackers are other users.

Examples:
  cargo xtask attack                  ten seconds each
  cargo xtask attack --seconds 600    ten minutes each"
)]
pub struct AttackArgs {
    /// How long each attacker of a daemon goes on
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..))]
    seconds: u32,
}

/// Those that meet no daemon: the package, its test, and which of them.
const OTHERS: [(&str, &[&str]); 5] = [
    ("farbus-cli", &["--test", "command", "taken_over::"]),
    ("farbus-io-linux", &["--test", "confine"]),
    ("farbus-io-linux", &["--lib", "sys::confine::tests"]),
    ("farbus-io-linux", &["--test", "misbehaviour"]),
    ("farbus-host", &["--test", "fuzz"]),
];

pub fn run(arguments: &AttackArgs) -> Result<(), String> {
    run_for(arguments.seconds)
}

/// Each attacker of a daemon for so long, then the others.
///
/// # Errors
/// An attack cost too much, taught the attacker something, or kept an honest host out.
pub fn run_for(seconds: u32) -> Result<(), String> {
    let mut attack = cargo(&["test", "--package", "farbus-cli", "--test", "command", "attack::", "--", "--nocapture"]);
    attack.env("FARBUS_ATTACK_SECONDS", seconds.to_string()).env("FARBUS_REQUIRE_RIG", "1");
    cargo::run(attack)?;
    OTHERS.iter().try_for_each(|(package, which)| {
        let mut attack = cargo(&["test", "--package", package]);
        attack.args(*which).env("FARBUS_REQUIRE_RIG", "1");
        cargo::run(attack)
    })
}
