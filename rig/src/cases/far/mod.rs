//! Remote devices: what an unmodified kernel's drivers notice of the distance.
//!
//! Exporter and importer are one guest, whose `lo` has a delay (netem), and the guest's time is its own
//! (`Time::Counted` in `machine.rs`): the figures are the same on a busy machine. `--times` above 1 makes the cases
//! thorough: all distances, a minute of sound.

mod attach;
mod raw;
mod storage;
mod streams;
mod way;

use super::case::RigCase;

pub(super) fn all() -> impl Iterator<Item = &'static RigCase> {
    [attach::CASES, raw::CASES, storage::CASES, streams::CASES].into_iter().flatten()
}
