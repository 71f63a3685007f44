//! What the kit learned of a device from its descriptors.

use farbus_model::descriptor::{AltSetting, DeviceDescriptor, EndpointDescriptor, UsbConfiguration};
use farbus_model::{EpAddr, TransferDirection, TransferType};

/// Ids of the kernel's source/sink gadget: its endpoints always have data, and take any.
const SOURCE_SINK: (u16, u16) = (0x0525, 0xa4a0);
/// Mass storage, SCSI, Bulk-Only.
const DISK: [u8; 3] = [8, 6, 0x50];

/// What was learned of the device.
#[derive(Clone, Debug)]
pub(crate) struct DescriptorFacts {
    pub device: DeviceDescriptor,
    pub configuration: UsbConfiguration,
}

impl DescriptorFacts {
    /// Whether the device takes any data and always has some.
    pub fn is_source_sink(&self) -> bool {
        (self.device.vendor, self.device.product) == SOURCE_SINK
    }

    /// The interface of a Bulk-Only disk.
    pub fn disk(&self) -> Option<&AltSetting> {
        self.settings().find(|setting| setting.class == DISK)
    }

    /// The settings that are active after SET_CONFIGURATION.
    pub fn settings(&self) -> impl Iterator<Item = &AltSetting> {
        self.configuration.interfaces()
    }

    /// The first active endpoint of this kind.
    pub fn endpoint(&self, kind: TransferType, direction: TransferDirection) -> Option<&EndpointDescriptor> {
        self.settings().find_map(|setting| setting.find(kind, direction))
    }

    /// An endpoint of this kind in any alternate setting, and that setting.
    pub fn endpoint_anywhere(
        &self,
        kind: TransferType,
        direction: TransferDirection,
    ) -> Option<(&AltSetting, &EndpointDescriptor)> {
        self.configuration.settings.iter().find_map(|setting| Some((setting, setting.find(kind, direction)?)))
    }

    /// An endpoint address that the device does not have.
    pub fn missing_endpoint(&self) -> Option<EpAddr> {
        let has = |address: EpAddr| {
            self.configuration.settings.iter().flat_map(|s| &s.endpoints).any(|e| e.address == address)
        };
        (1..=15).rev().filter_map(|number| EpAddr::new(number, TransferDirection::In)).find(|address| !has(*address))
    }
}
