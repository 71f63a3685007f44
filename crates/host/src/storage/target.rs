//! The place of a Bulk-Only interface on a device.

use farbus_model::descriptor::UsbConfiguration;
use farbus_model::{EpAddr, TransferDirection, TransferType, UsbSpeed};

/// Class, subclass, protocol: mass storage, SCSI transparent command set, Bulk-Only (BOT §4.3).
pub const BULK_ONLY: [u8; 3] = [0x08, 0x06, 0x50];
/// Why a device without such an interface is not driven ([`DiskError::Unsupported`](super::DiskError)).
pub const NO_DISK: &str = "it has no Bulk-Only interface";

/// A Bulk-Only interface and its two pipes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BulkOnlyInterface {
    /// The value of the configuration it belongs to.
    pub configuration: u8,
    /// The number of the interface (`bInterfaceNumber`).
    pub interface: u8,
    /// The alternate setting that is Bulk-Only, where another may be UAS.
    pub alternate: u8,
    /// Status and IN data.
    pub bulk_in: EpAddr,
    /// Commands and OUT data.
    pub bulk_out: EpAddr,
    /// Largest packet of `bulk_out`, bytes.
    pub out_packet_bytes: u32,
    /// The device's speed.
    pub speed: UsbSpeed,
}

impl BulkOnlyInterface {
    /// The first Bulk-Only interface of a configuration that has both pipes.
    pub fn find(configuration: &UsbConfiguration, speed: UsbSpeed) -> Option<Self> {
        configuration.settings.iter().filter(|setting| setting.class == BULK_ONLY).find_map(|setting| {
            let bulk_in = setting.find(TransferType::Bulk, TransferDirection::In)?;
            let bulk_out = setting.find(TransferType::Bulk, TransferDirection::Out)?;
            // Endpoint 0 is no bulk endpoint, even if a descriptor says so.
            let is_real = !bulk_in.address.is_control() && !bulk_out.address.is_control();
            is_real.then_some(Self {
                configuration: configuration.value,
                interface: setting.interface,
                alternate: setting.alternate,
                bulk_in: bulk_in.address,
                bulk_out: bulk_out.address,
                out_packet_bytes: bulk_out.packet_bytes_max.into(),
                speed,
            })
        })
    }
}
