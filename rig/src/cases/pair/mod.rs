//! Two machines: the unmodified drivers and programs of one use devices of the other.

mod bench;
mod gadgets;
mod isochronous;
mod qemu;
mod twins;

use super::case::RigCase;
pub(super) use twins::answer_in_capitals;

/// All cases with pairs.
pub(super) fn all() -> impl Iterator<Item = &'static RigCase> {
    [qemu::CASES, gadgets::CASES, isochronous::CASES, twins::CASES].into_iter().flatten()
}
