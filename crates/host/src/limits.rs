//! Every limit of this room, in one place. Constants say how the number was found.

use std::time::Duration;

/// Configurations of one device: Linux's `USB_MAXCONFIG`.
pub const CONFIGURATIONS_MAX: u8 = 8;

/// Strings read of one device. A device names itself, its configurations and its interfaces; the
/// richest seen (docks, cameras) have about twenty.
pub const STRINGS_MAX: usize = 32;

/// Bytes of a binary object store. The longest defined capabilities together stay below 200; a
/// platform capability may add a few hundred.
pub const BOS_BYTES_MAX: usize = 4096;

/// Control transfers that [`Enumerate`](crate::Enumerate) makes at most: device descriptor; object
/// store and each configuration, in two steps; languages; strings.
pub const ENUMERATION_TRANSFERS_MAX: usize = 1 + 2 + 2 * CONFIGURATIONS_MAX as usize + 1 + STRINGS_MAX;

/// A control transfer's time: Linux's `USB_CTRL_GET_TIMEOUT`.
pub const CONTROL_TIMEOUT: Duration = Duration::from_secs(5);

/// What a withdrawn request may take to come back. A device that leaves even that unanswered is
/// given up; a whole control timeout allows for a link that has to send something again.
pub const WITHDRAWAL_TIMEOUT: Duration = Duration::from_secs(5);
