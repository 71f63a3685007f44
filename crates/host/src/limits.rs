//! All limits of this crate, with the reason for each number.

use std::time::Duration;

/// Configurations of one device: Linux's `USB_MAXCONFIG`.
pub const CONFIGURATIONS_MAX: u8 = 8;

/// Strings read of one device. A device names itself, its configurations and its interfaces; the
/// richest seen (docks, cameras) have about twenty.
pub const STRINGS_MAX: usize = 32;

/// Bytes of a binary object store. The longest defined capabilities together stay below 200; a
/// platform capability may add a few hundred.
pub const BOS_BYTES_MAX: usize = 4096;

/// Control transfers that [`Enumerate`](crate::DescriptorEnumerator) makes at most: device descriptor; object
/// store and each configuration, in two steps; languages; strings.
pub const ENUMERATION_TRANSFERS_MAX: usize = 1 + 2 + 2 * CONFIGURATIONS_MAX as usize + 1 + STRINGS_MAX;

/// A control transfer's time: Linux's `USB_CTRL_GET_TIMEOUT`.
pub const CONTROL_TIMEOUT: Duration = Duration::from_secs(5);

/// The time for all strings of a device that is known otherwise: as long as one control transfer, so that a device that
/// hangs holds up nobody longer than one that is asked once.
pub const STRINGS_TIME_MAX: Duration = Duration::from_secs(5);

/// How long a cancelled request may take to come back. A device that does not answer by then is given up; a whole
/// control timeout leaves time for a link that has to send something again.
pub const WITHDRAWAL_TIMEOUT: Duration = Duration::from_secs(5);

/// A storage command's time, from the first byte to the status: Linux's `SD_TIMEOUT`.
pub const COMMAND_TIMEOUT: Duration = Duration::from_secs(30);

/// How long a medium may be "becoming ready": a disk spins up in ten seconds, rarely twenty.
pub const READY_TIMEOUT: Duration = Duration::from_secs(30);

/// Pause between two checks of a medium that is becoming ready.
pub const READY_PAUSE: Duration = Duration::from_millis(250);

/// Times a command is tried whose transport failed.
pub const FAULT_TRIES: u32 = 3;

/// Times a command is tried that ran into its timeout: each costs half a minute.
pub const TIMEOUT_TRIES: u32 = 2;

/// Times a command is repeated after a unit attention or an abort. A device may have several
/// attentions pending, one a command (SPC-4 §5.14); Linux allows 5 repetitions.
pub const ATTENTION_TRIES: u32 = 5;

/// Bytes of one storage command, unless the device names its own limit: usb-storage's 120 KiB rounded
/// to what front ends ask (FUSE, loop: 128 KiB) below SuperSpeed ...
pub const TRANSFER_BYTES_HIGH_SPEED: u32 = 128 << 10;

/// ... and usb-storage's own 1 MiB at SuperSpeed.
pub const TRANSFER_BYTES_SUPER_SPEED: u32 = 1 << 20;

/// Bytes of one storage command even if the device would take more: what every host controller and
/// exporter has seen. [`Options`](crate::ScsiDiskOptions) can ask for more.
pub const TRANSFER_BYTES_MAX: u32 = 1 << 20;

/// Bytes that one WRITE SAME or UNMAP names: a disk that in truth writes 100 MB/s needs 10 of the
/// 30 seconds.
pub const RANGE_BYTES_MAX: u64 = 1 << 30;

/// Accepted sector sizes: from the classic one to the largest page size in use.
pub const BLOCK_BYTES: std::ops::RangeInclusive<u32> = 512..=65536;

/// Bytes of one read of a serial port, rounded up to whole packets: eight packets at high speed.
pub const SERIAL_READ_BYTES: u32 = 4096;

/// Reads of a serial port under way, so that the device always has one: Linux's drivers keep 2 to 16.
pub const SERIAL_READS: usize = 4;

/// Bytes of one write of a serial port.
pub const SERIAL_WRITE_BYTES: usize = 4096;

/// Writes of a serial port under way.
pub const SERIAL_WRITES: usize = 4;

/// Bytes that a serial port's user has not read before no more are fetched: a fifth of a second at 3 Mbaud.
pub const SERIAL_UNREAD_BYTES_MAX: usize = 64 << 10;

/// Bytes that were written to a serial port and wait for its device.
pub const SERIAL_UNSENT_BYTES_MAX: usize = 64 << 10;

/// Line changes that wait for a serial port's device before its user has to wait: more than any program makes in a
/// round trip.
pub const SERIAL_CHANGES_MAX: u64 = 64;

/// How often a chip that does not report its control lines is asked for them, while somebody wants to know.
pub const SERIAL_MODEM_PAUSE: Duration = Duration::from_millis(100);

/// How long a serial port's device may take none of the bytes before a line change: then the change goes first.
pub const SERIAL_STUCK_TIME: Duration = Duration::from_millis(500);

/// Bytes of a serial port's state in a snapshot.
pub const SERIAL_STATE_BYTES: usize = 11;
