//! `farbus release`.

use std::time::Duration;

use farbus_io_net::local::asking::ask_sharer;
use farbus_io_net::local::control_socket::Question;

use super::CommandFailure;
use super::output::print_done;

/// Take a shared device back from its user.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "farbus ends the session of the user, resets the device, makes it durable and offers it again. 'farbus status --history' keeps a record.\n\n\
    A disk that its user may write needs --force: the user's programs get errors, and what they have not written out is lost. 'farbus detach' on the user's host loses nothing.\n\n\
    Examples:\n  farbus release disk\n  farbus release 1-3 --reason 'needed for the demo' --keep-out 60"
)]
pub struct Args {
    /// Name or bus id of the shared device; NAME@PID if several processes share one of that name.
    device: String,
    /// Why: its user is told, and 'farbus status --history' shows it.
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    /// Refuse the device to its last user for so long; others may have it.
    #[arg(long, value_name = "SECONDS", default_value_t = 0, value_parser = clap::value_parser!(u64).range(..=DAY_S))]
    keep_out: u64,
    /// Take a disk that its user may write, too: what is not written out is lost.
    #[arg(long)]
    force: bool,
    /// Print the result as JSON, for programs.
    #[arg(long)]
    pub json: bool,
}

const DAY_S: u64 = Duration::from_secs(24 * 3600).as_secs();

pub fn run(args: Args) -> Result<(), CommandFailure> {
    let Args { device, reason, keep_out: keep_out_s, force, json } = args;
    ask_sharer(&device, |device| Question::Release { device, reason, keep_out_s, force })?;
    print_done(json, "release", &device)
}
