//! A device that is exchanged for another one while it is in use, on the importer (requirement N12).
//!
//! Both devices answer when they can: a disk of another host, or a file. One thread owns them, so no lock is needed;
//! what must not overlap waits in the order of its submission. [`Switch`](super::MediumSwitch) does the same for a
//! medium whose users are on many threads.
//!
//! | phase | reads go to | changes go to | the swap |
//! |---|---|---|---|
//! | `Beginning` | source | source, then noted as to be copied | asks the source for its holes, which are not copied |
//! | `Copying` | source | source, then noted as to be copied | copies what is noted, in rounds |
//! | `Flushing` | source | source, then noted as to be copied | makes the copy durable while nobody waits for it |
//! | `Draining` | source | both, unless all of the range is still to be copied | copies, then compares, the rest, piece by piece |
//! | `Deciding` | source | both | makes both durable; then the journal says that the destination is the device |
//! | `Releasing` | destination | destination | waits until the source has answered everything |
//!
//! From `Draining` on, a change waits for every earlier request to the same place, and so does everything for an
//! earlier change. Two requests are therefore carried out in the same order on both devices, and a piece that is copied
//! does not change meanwhile.
//!
//! Up to and including `Deciding`, the source is complete, and a failure or a cancellation leaves it as the device.
//! From `Deciding` on, both are complete: the journal may be written at any moment of that time, by another thread,
//! while requests go on. What the source cannot do then, because its host has gone, waits for that note: if it is made,
//! the destination's answer counts. If it cannot be made, it may have been made all the same: both stay complete until
//! the journal names the source again.

mod device;
mod exchanging;
mod job;
mod saved;
mod work;

pub use device::SwappableDevice;
pub use exchanging::DeviceSwapAction;
pub use saved::{AWAY_KIND, SWAPPED_KIND};
