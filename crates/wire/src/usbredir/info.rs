//! How a usb-host describes its device: ids, interfaces, endpoints. Tables always have 32 places.

use farbus_model::{EpAddr, TransferDirection, TransferType, UsbSpeed};

use super::words::{RedirCapability, RedirCapabilitySet, RedirHeaderReader};
use crate::usbip::ProtocolViolation;

/// Places in every table: 16 endpoints OUT, then 16 IN; and no device has more interfaces than endpoints.
pub const PLACES: usize = 32;
/// The table's value for a missing endpoint.
const NO_ENDPOINT: u8 = 255;
/// The value for any other speed.
const UNKNOWN_SPEED: u8 = 255;

/// An endpoint's place in the tables, and its bit in masks: 0 to 15 OUT, 16 to 31 IN.
pub const fn place_of(endpoint: EpAddr) -> usize {
    endpoint.number() as usize | ((endpoint.as_byte() & 0x80) >> 3) as usize
}

/// The endpoint at a place; the control pipe for 0 and 16.
///
/// # Panics
/// Past the tables' end.
pub fn endpoint_at(position: usize) -> EpAddr {
    assert!(position < PLACES, "the tables have {PLACES} places");
    let direction = if position < 16 { TransferDirection::Out } else { TransferDirection::In };
    EpAddr::new(position as u8 & 0x0f, direction).expect("four bits are an endpoint's number")
}

/// `usb_redir_device_connect`: a device is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceConnect {
    /// Its speed, if the protocol knows it; SuperSpeedPlus is sent as SuperSpeed.
    pub speed: Option<UsbSpeed>,
    /// Class, subclass, protocol of the device.
    pub class: [u8; 3],
    /// `idVendor` of the device descriptor.
    pub vendor: u16,
    /// `idProduct` of the device descriptor.
    pub product: u16,
    /// `bcdDevice`; 0 unless both ends have the capability.
    pub device_bcd: u16,
}

impl DeviceConnect {
    pub(super) const fn bytes(common: RedirCapabilitySet) -> usize {
        if common.has(RedirCapability::ConnectDeviceVersion) { 10 } else { 8 }
    }

    pub(super) fn encode(&self, common: RedirCapabilitySet, to: &mut Vec<u8>) {
        let speed = match self.speed {
            Some(UsbSpeed::Low) => 0,
            Some(UsbSpeed::Full) => 1,
            Some(UsbSpeed::High) => 2,
            Some(UsbSpeed::Super | UsbSpeed::SuperPlus) => 3,
            None => UNKNOWN_SPEED,
        };
        to.push(speed);
        to.extend(self.class);
        to.extend(self.vendor.to_le_bytes());
        to.extend(self.product.to_le_bytes());
        if common.has(RedirCapability::ConnectDeviceVersion) {
            to.extend(self.device_bcd.to_le_bytes());
        }
    }

    pub(super) fn decode(
        fields: &mut RedirHeaderReader<'_>,
        common: RedirCapabilitySet,
    ) -> Result<Self, ProtocolViolation> {
        let speed = match fields.u8() {
            0 => Some(UsbSpeed::Low),
            1 => Some(UsbSpeed::Full),
            2 => Some(UsbSpeed::High),
            3 => Some(UsbSpeed::Super),
            UNKNOWN_SPEED => None,
            other => {
                return Err(ProtocolViolation::new("speed", u64::from(other), "it is at most 3, or 255 for unknown"));
            }
        };
        let class = [fields.u8(), fields.u8(), fields.u8()];
        let (vendor, product) = (fields.u16(), fields.u16());
        let device_bcd = if common.has(RedirCapability::ConnectDeviceVersion) { fields.u16() } else { 0 };
        Ok(Self { speed, class, vendor, product, device_bcd })
    }
}

/// One interface in its active alternate setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InterfaceKind {
    /// `bInterfaceNumber`: the interface's number in its configuration, from 0.
    pub number: u8,
    /// Class, subclass, protocol.
    pub class: [u8; 3],
}

/// `usb_redir_interface_info`: the interfaces, at most [`PLACES`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InterfaceInfo(pub Vec<InterfaceKind>);

impl InterfaceInfo {
    pub(super) const BYTES: usize = 4 + 4 * PLACES;

    pub(super) fn encode(&self, to: &mut Vec<u8>) {
        let known = &self.0[..self.0.len().min(PLACES)];
        to.extend((known.len() as u32).to_le_bytes());
        let columns: [fn(&InterfaceKind) -> u8; 4] = [|i| i.number, |i| i.class[0], |i| i.class[1], |i| i.class[2]];
        for column in columns {
            to.extend(known.iter().map(column));
            to.resize(to.len() + PLACES - known.len(), 0);
        }
    }

    pub(super) fn decode(fields: &mut RedirHeaderReader<'_>) -> Result<Self, ProtocolViolation> {
        let count = fields.u32();
        if count as usize > PLACES {
            return Err(ProtocolViolation::new(
                "interface_count",
                u64::from(count),
                "a device has at most 32 interfaces",
            ));
        }
        let columns: [[u8; PLACES]; 4] = std::array::from_fn(|_| std::array::from_fn(|_| fields.u8()));
        let kind = |at: usize| {
            let [number, class, subclass, protocol] = columns.map(|column| column[at]);
            InterfaceKind { number, class: [class, subclass, protocol] }
        };
        Ok(Self((0..count as usize).map(kind).collect()))
    }
}

/// One endpoint of [`EpInfo`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EndpointInfo {
    /// Its transfer type; `None` if there is no such endpoint.
    pub kind: Option<TransferType>,
    /// `bInterval`, as the descriptor has it.
    pub interval: u8,
    /// The interface it belongs to.
    pub interface: u8,
    /// Most bytes in one service interval (packet size times packets per interval); 0 unless both ends have the
    /// capability.
    pub packet_bytes_max: u16,
    /// Streams that it can have; 0 unless both ends have the capability.
    pub streams_max: u32,
}

/// `usb_redir_ep_info`: all endpoints, at their [place](place_of).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EpInfo(pub [EndpointInfo; PLACES]);

impl EpInfo {
    pub(super) const fn bytes(common: RedirCapabilitySet) -> usize {
        let sizes = if common.has(RedirCapability::EpInfoMaxPacketSize) { 2 * PLACES } else { 0 };
        let streams = if common.has(RedirCapability::BulkStreams) { 4 * PLACES } else { 0 };
        3 * PLACES + sizes + streams
    }

    pub(super) fn encode(&self, common: RedirCapabilitySet, to: &mut Vec<u8>) {
        to.extend(self.0.iter().map(|endpoint| endpoint.kind.map_or(NO_ENDPOINT, TransferType::as_attributes)));
        to.extend(self.0.iter().map(|endpoint| endpoint.interval));
        to.extend(self.0.iter().map(|endpoint| endpoint.interface));
        if common.has(RedirCapability::EpInfoMaxPacketSize) {
            to.extend(self.0.iter().flat_map(|endpoint| endpoint.packet_bytes_max.to_le_bytes()));
        }
        if common.has(RedirCapability::BulkStreams) {
            to.extend(self.0.iter().flat_map(|endpoint| endpoint.streams_max.to_le_bytes()));
        }
    }

    pub(super) fn decode(
        fields: &mut RedirHeaderReader<'_>,
        common: RedirCapabilitySet,
    ) -> Result<Self, ProtocolViolation> {
        let mut all = [EndpointInfo::default(); PLACES];
        for endpoint in &mut all {
            endpoint.kind = match fields.u8() {
                known @ 0..=3 => Some(TransferType::from_attributes(known)),
                NO_ENDPOINT => None,
                other => {
                    return Err(ProtocolViolation::new("type", u64::from(other), "an endpoint's is at most 3, or 255"));
                }
            };
        }
        all.iter_mut().for_each(|endpoint| endpoint.interval = fields.u8());
        all.iter_mut().for_each(|endpoint| endpoint.interface = fields.u8());
        if common.has(RedirCapability::EpInfoMaxPacketSize) {
            all.iter_mut().for_each(|endpoint| endpoint.packet_bytes_max = fields.u16());
        }
        if common.has(RedirCapability::BulkStreams) {
            all.iter_mut().for_each(|endpoint| endpoint.streams_max = fields.u32());
        }
        Ok(Self(all))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_endpoint_has_a_place_of_its_own() {
        for position in (1..16).chain(17..32) {
            assert_eq!(place_of(endpoint_at(position)), position);
        }
        assert_eq!(place_of(EpAddr::from_byte(0x81)), 17);
        assert_eq!((endpoint_at(0), endpoint_at(16)), (EpAddr::CONTROL, EpAddr::CONTROL));
    }
}
