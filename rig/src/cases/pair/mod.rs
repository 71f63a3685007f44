//! Two machines: devices of one, used by the unmodified drivers and programs of the other.

mod bench;
mod gadgets;
mod isochronous;
mod qemu;
mod twins;

use super::case::Case;

/// All that pairs prove.
pub(super) fn all() -> impl Iterator<Item = &'static Case> {
    [qemu::CASES, gadgets::CASES, isochronous::CASES, twins::CASES].into_iter().flatten()
}
