//! `farbus release`.

use std::time::Duration;

use super::Failure;
use crate::common::asking::ask_owner;
use crate::common::control::Question;

/// Take a shared device back from whoever uses it.
#[derive(Debug, clap::Args)]
#[command(after_help = "The session of its user is ended; the device is reset, made durable and offered again.\n\
    A disk that its user may write is taken with --force only: his\n\
    programs get errors, and what they have not written out is lost. 'farbus detach' there loses nothing.\n\
    'farbus status --history' remembers it.\n\n\
    Examples:\n  farbus release disk\n  farbus release 1-3 --reason 'needed for the demo' --keep-out 60")]
pub struct Args {
    /// Name or bus id of the shared device.
    device: String,
    /// What the history is to say of it.
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    /// For so long its user's host may not have it again; others may.
    #[arg(long, value_name = "SECONDS", default_value_t = 0, value_parser = clap::value_parser!(u64).range(..=DAY_S))]
    keep_out: u64,
    /// Also a disk that its user may write: what that has not written out is lost.
    #[arg(long)]
    force: bool,
}

const DAY_S: u64 = Duration::from_secs(24 * 3600).as_secs();

pub fn run(args: Args) -> Result<(), Failure> {
    let Args { device, reason, keep_out: keep_out_s, force } = args;
    ask_owner(&device.clone(), Question::Release { device, reason, keep_out_s, force })
}
