//! The properties of a disk.

use std::time::Duration;

use farbus_model::UsbSpeed;

use crate::limits;

/// Options of the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScsiDiskOptions {
    /// The logical unit.
    pub lun: u8,
    /// The timeout of a command.
    pub timeout: Duration,
    /// Bytes of one command at most; `None` leaves it to the device and the speed. Larger commands pay off on a link of
    /// long delay: each command costs one round trip.
    pub transfer_bytes_max: Option<u32>,
}

impl Default for ScsiDiskOptions {
    fn default() -> Self {
        Self { lun: 0, timeout: limits::COMMAND_TIMEOUT, transfer_bytes_max: None }
    }
}

/// The properties that a disk reports, checked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DiskInfo {
    /// The vendor that INQUIRY reports (SPC-4 §6.6.2), without padding.
    pub vendor: String,
    /// The product that INQUIRY reports (SPC-4 §6.6.2), without padding.
    pub product: String,
    /// The firmware's revision.
    pub revision: String,
    /// Logical units of the device.
    pub luns: u8,
    /// Whether the medium can be taken out.
    pub removable: bool,
    /// Bytes of a sector; a power of two.
    pub block_bytes: u32,
    /// Sectors of the medium, `block_bytes` each.
    pub blocks: u64,
    /// Whether writing is refused.
    pub read_only: bool,
    /// Whether written data may still be in a cache; `None` if the device does not say.
    pub write_cache: Option<bool>,
    /// Bytes of one command at most; whole sectors.
    pub transfer_bytes_max: u32,
    /// Sectors that one UNMAP may name, if there is that command.
    pub unmap_blocks_max: Option<u32>,
    /// Sectors that one WRITE SAME may name, if there is that command.
    pub write_same_blocks_max: Option<u32>,
    /// WRITE SAME may give the space back, and the range then reads as zeros.
    pub write_same_unmaps: bool,
    /// No flush is needed: there is no cache, or the device does not know the command.
    pub(super) needs_no_flush: bool,
}

impl DiskInfo {
    /// Size in bytes.
    pub fn size_bytes(&self) -> u64 {
        self.blocks * u64::from(self.block_bytes)
    }

    /// Whether there is a command that gives space back, see [`Disk::discard`](super::ScsiDisk::discard).
    pub fn gives_back(&self) -> bool {
        self.unmap_blocks_max.is_some() || self.write_same_unmaps
    }

    /// Whether the range lies on the medium.
    pub(super) fn holds(&self, offset: u64, len: u64) -> bool {
        offset.checked_add(len).is_some_and(|end| end <= self.size_bytes())
    }

    /// Bytes of one command: the caller's option, or the device's limit in blocks (0: not reported), or the usual value
    /// of the speed.
    pub(super) fn transfer_bytes(&self, options: &ScsiDiskOptions, speed: UsbSpeed, device_blocks_max: u32) -> u32 {
        let device = u64::from(device_blocks_max) * u64::from(self.block_bytes);
        let usual = match (device, speed >= UsbSpeed::Super) {
            (1.., _) => device.min(limits::TRANSFER_BYTES_MAX.into()) as u32,
            (0, true) => limits::TRANSFER_BYTES_SUPER_SPEED,
            (0, false) => limits::TRANSFER_BYTES_HIGH_SPEED,
        };
        let wish = options.transfer_bytes_max.unwrap_or(usual).min(farbus_model::limits::URB_BYTES_MAX);
        (wish / self.block_bytes).max(1) * self.block_bytes
    }
}
