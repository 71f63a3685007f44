//! The options that a disk's owner chooses, checked before a host sees the disk.

use std::fmt;

use farbus_model::UsbSpeed;

/// Sector sizes that a Linux kernel of any age takes.
const SECTOR_BYTES: [u32; 4] = [512, 1024, 2048, 4096];
/// Bulk-Only 1.0 §4.1.1: a serial number has at least twelve digits, each 0 to 9 or A to F.
const SERIAL_DIGITS_MIN: usize = 12;
/// USB 2.0 §9.6.7: a string descriptor is at most 255 bytes, two of them its header.
const STRING_UNITS_MAX: usize = 126;

/// The options of a disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StorageOptions {
    /// Refuses writing, even if the store would take it.
    pub read_only: bool,
    /// Bytes of a sector: 512, 1024, 2048 or 4096. Bytes of the store after its last whole sector cannot be reached.
    pub sector_bytes: u32,
    /// Whether the medium can be ejected, by the host or by the owner.
    pub removable: bool,
    /// Twelve hexadecimal digits or more, different for every disk a host may see at once.
    pub serial: String,
    /// The name that a host shows; SCSI sees its first sixteen characters.
    pub product: String,
    /// The bus speed.
    pub speed: UsbSpeed,
}

impl Default for StorageOptions {
    fn default() -> Self {
        Self {
            read_only: false,
            sector_bytes: 512,
            removable: true,
            serial: "000000000000".into(),
            product: "disk".into(),
            speed: UsbSpeed::High,
        }
    }
}

impl StorageOptions {
    /// A serial number that stays the same for the same `name` (a path, say): sixteen digits.
    pub fn serial_of(name: &str) -> String {
        format!("{:016X}", fnv1a(name.as_bytes()))
    }

    /// These options, if a disk of `size_bytes` can have them; the serial's digits as capitals.
    pub(super) fn check(mut self, size_bytes: u64) -> Result<Self, StorageOptionError> {
        if !SECTOR_BYTES.contains(&self.sector_bytes) {
            return Err(StorageOptionError::SectorBytes(self.sector_bytes));
        }
        if size_bytes < u64::from(self.sector_bytes) {
            return Err(StorageOptionError::TooSmall { size_bytes, sector_bytes: self.sector_bytes });
        }
        let digits = SERIAL_DIGITS_MIN..=STRING_UNITS_MAX;
        if !digits.contains(&self.serial.len()) || !self.serial.bytes().all(|b| b.is_ascii_hexdigit()) {
            return Err(StorageOptionError::Serial(self.serial));
        }
        if self.product.encode_utf16().count() > STRING_UNITS_MAX {
            return Err(StorageOptionError::ProductTooLong);
        }
        if self.speed == UsbSpeed::Low {
            return Err(StorageOptionError::LowSpeed);
        }
        self.serial.make_ascii_uppercase();
        Ok(self)
    }
}

/// FNV-1a, 64 bits: spreads names over serial numbers; not secure.
pub(super) fn fnv1a(bytes: &[u8]) -> u64 {
    const OFFSET_BASIS: u64 = 0xcbf2_9ce4_8422_2325;
    const PRIME: u64 = 0x0000_0100_0000_01b3;
    bytes.iter().fold(OFFSET_BASIS, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(PRIME))
}

/// Why [`StorageOptions`] are invalid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StorageOptionError {
    /// Sectors of that size do not exist.
    SectorBytes(u32),
    /// The store holds less than one sector.
    TooSmall {
        /// What the store holds.
        size_bytes: u64,
        /// What a sector needs.
        sector_bytes: u32,
    },
    /// The serial number is not made of 12 to 126 hexadecimal digits.
    Serial(String),
    /// The product name does not fit a string descriptor.
    ProductTooLong,
    /// Low speed has no bulk endpoints (USB 2.0 §5.8).
    LowSpeed,
}

impl fmt::Display for StorageOptionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StorageOptionError::SectorBytes(bytes) => {
                write!(f, "a sector has 512, 1024, 2048 or 4096 bytes, not {bytes}")
            }
            StorageOptionError::TooSmall { size_bytes, sector_bytes } => {
                write!(f, "{size_bytes} bytes are less than one sector of {sector_bytes}")
            }
            StorageOptionError::Serial(serial) => {
                write!(f, "a disk's serial number is 12 to 126 hexadecimal digits, not {serial:?}")
            }
            StorageOptionError::ProductTooLong => {
                write!(f, "a product name has at most {STRING_UNITS_MAX} UTF-16 units")
            }
            StorageOptionError::LowSpeed => f.write_str("a low-speed device has no bulk endpoints"),
        }
    }
}

impl std::error::Error for StorageOptionError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_disk_options_are_refused_with_their_names() {
        let check = |change: fn(&mut StorageOptions), size| {
            let mut options = StorageOptions::default();
            change(&mut options);
            options.check(size).map(|_| ())
        };
        assert_eq!(check(|_| {}, 512), Ok(()));
        assert_eq!(check(|_| {}, 511), Err(StorageOptionError::TooSmall { size_bytes: 511, sector_bytes: 512 }));
        assert_eq!(check(|o| o.sector_bytes = 513, 9999), Err(StorageOptionError::SectorBytes(513)));
        assert_eq!(check(|o| o.sector_bytes = 0, 9999), Err(StorageOptionError::SectorBytes(0)));
        assert_eq!(check(|o| o.serial = "0123".into(), 512), Err(StorageOptionError::Serial("0123".into())));
        assert!(check(|o| o.serial = "0123456789AZ".into(), 512).is_err());
        assert_eq!(check(|o| o.product = "x".repeat(127), 512), Err(StorageOptionError::ProductTooLong));
        assert_eq!(check(|o| o.speed = UsbSpeed::Low, 512), Err(StorageOptionError::LowSpeed));
    }

    #[test]
    fn a_name_gives_the_same_valid_serial_every_time() {
        let serial = StorageOptions::serial_of("/srv/images/disk.img");
        assert_eq!(serial, StorageOptions::serial_of("/srv/images/disk.img"));
        assert_ne!(serial, StorageOptions::serial_of("/srv/images/disk2.img"));
        let options = StorageOptions { serial: serial.to_lowercase(), ..StorageOptions::default() };
        assert_eq!(options.check(512).unwrap().serial, serial);
    }
}
