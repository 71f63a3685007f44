//! A device's descriptors for people and programs, with the rates of its endpoints.

use farbus_model::descriptor::{AltSetting, Configuration};
use farbus_model::{Descriptors, Direction, Endpoint, Speed, TransferType};
use farbus_realtime::{self as realtime, TransferKind, bandwidth};
use serde::Serialize;

use crate::devices::class_words::class_words;

/// A device's descriptors (USB 2.0 §9.6).
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DescriptorTree {
    /// The speed, in words.
    pub speed: String,
    /// `bcdUSB`, such as `2.00`.
    pub usb: String,
    /// `bcdDevice`, the device's own release.
    pub release: String,
    /// Class, subclass and protocol, hexadecimal: `00/00/00`.
    pub class: String,
    /// `idVendor` and `idProduct`, hexadecimal: `0525:a4a0`.
    pub ids: String,
    /// `bMaxPacketSize0`, bytes.
    pub packet_bytes_max: u32,
    /// `iManufacturer`, as the device says it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub manufacturer: Option<String>,
    /// `iProduct`, as the device says it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub product: Option<String>,
    /// `iSerialNumber`, as the device says it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub serial: Option<String>,
    /// Its configurations, in the order of their descriptors.
    pub configurations: Vec<ConfigurationTree>,
}

/// A configuration descriptor with all its parts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ConfigurationTree {
    /// `bConfigurationValue`.
    pub value: u8,
    /// What it draws from the bus at most, mA.
    pub current_ma: u32,
    /// Whether it has a supply of its own.
    pub is_self_powered: bool,
    /// Every setting of every interface, in the order of the descriptor.
    pub interfaces: Vec<InterfaceTree>,
}

/// A setting of an interface.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct InterfaceTree {
    /// `bInterfaceNumber`.
    pub number: u8,
    /// `bAlternateSetting`.
    pub alternate: u8,
    /// Class, subclass and protocol, hexadecimal.
    pub class: String,
    /// The class in words.
    pub words: String,
    /// Its endpoints, without the control pipe.
    pub endpoints: Vec<EndpointTree>,
}

/// An endpoint of an alternate setting, with what its descriptor says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct EndpointTree {
    /// `bEndpointAddress`, hexadecimal: `0x81`.
    pub address: String,
    /// `in` (to the host) or `out`.
    pub direction: &'static str,
    /// `control`, `isochronous`, `bulk` or `interrupt`.
    pub kind: &'static str,
    /// Largest packet, bytes.
    pub packet_bytes_max: u16,
    /// Packets of a service interval.
    pub packets: u16,
    /// The service interval, µs; 0 for control and bulk.
    pub interval_us: u64,
    /// What it carries at most, bytes a second: a periodic endpoint by its descriptor, a bulk endpoint on a bus that
    /// carries nothing else. Absent where that is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes_per_s_max: Option<u64>,
}

impl DescriptorTree {
    /// The descriptors of a device that works at this speed.
    pub fn of(descriptors: &Descriptors, speed: Speed) -> Self {
        let device = &descriptors.device;
        let string = |index| descriptors.string(index).map(str::to_owned);
        let is_super = !matches!(speed, Speed::Low | Speed::Full | Speed::High);
        let packet_bytes_max = match is_super {
            true => 1_u32.checked_shl(device.max_packet_0.into()).unwrap_or_default(),
            false => device.max_packet_0.into(),
        };
        let configurations = descriptors.configurations.iter().map(|each| ConfigurationTree::of(each, speed, is_super));
        Self {
            speed: speed.to_string(),
            usb: decimal(device.usb_bcd),
            release: decimal(device.device_bcd),
            class: slashed(device.class),
            ids: format!("{:04x}:{:04x}", device.vendor, device.product),
            packet_bytes_max,
            manufacturer: string(device.manufacturer_string),
            product: string(device.product_string),
            serial: string(device.serial_string),
            configurations: configurations.collect(),
        }
    }
}

impl ConfigurationTree {
    fn of(configuration: &Configuration, speed: Speed, is_super: bool) -> Self {
        // bmAttributes and bMaxPower (USB 2.0 table 9-10; in 8 mA at SuperSpeed, USB 3.2 table 9-24).
        let byte = |at: usize| configuration.bytes.get(at).copied().unwrap_or_default();
        let unit_ma = if is_super { 8 } else { 2 };
        Self {
            value: configuration.value,
            current_ma: u32::from(byte(8)) * unit_ma,
            is_self_powered: byte(7) & 0x40 != 0,
            interfaces: configuration.settings.iter().map(|setting| InterfaceTree::of(setting, speed)).collect(),
        }
    }
}

impl InterfaceTree {
    fn of(setting: &AltSetting, speed: Speed) -> Self {
        Self {
            number: setting.interface,
            alternate: setting.alternate,
            class: slashed(setting.class),
            words: class_words(setting.class, std::iter::empty()).concat(),
            endpoints: setting.endpoints.iter().map(|endpoint| EndpointTree::of(endpoint, speed)).collect(),
        }
    }
}

impl EndpointTree {
    fn of(endpoint: &Endpoint, speed: Speed) -> Self {
        let interval_us = endpoint.service_interval(speed).as_micros() as u64;
        let packets = endpoint.packets_per_interval.max(1);
        let bytes = u64::from(endpoint.packet_bytes_max) * u64::from(packets);
        let periodic = (interval_us > 0).then(|| bytes.saturating_mul(1_000_000) / interval_us);
        Self {
            address: format!("{:#04x}", endpoint.address.as_byte()),
            direction: if endpoint.address.direction() == Direction::In { "in" } else { "out" },
            kind: match endpoint.kind {
                TransferType::Control => "control",
                TransferType::Isochronous => "isochronous",
                TransferType::Bulk => "bulk",
                TransferType::Interrupt => "interrupt",
            },
            packet_bytes_max: endpoint.packet_bytes_max,
            packets,
            interval_us,
            bytes_per_s_max: periodic.or_else(|| bulk_bytes_per_s(endpoint, speed)),
        }
    }
}

/// What a bus carries of a bulk endpoint's packets if it carries nothing else (USB 2.0 tables 5-9 and 5-10).
fn bulk_bytes_per_s(endpoint: &Endpoint, speed: Speed) -> Option<u64> {
    if endpoint.kind != TransferType::Bulk {
        return None;
    }
    let speed = match speed {
        Speed::Full => realtime::Speed::Full,
        Speed::High => realtime::Speed::High,
        Speed::Super => realtime::Speed::Super,
        // Low speed has no bulk, and no table says what faster buses carry.
        _ => return None,
    };
    let table = bandwidth::table(speed, TransferKind::Bulk).ok()?;
    let row = table.rows.iter().find(|row| row.data_payload_bytes == u32::from(endpoint.packet_bytes_max))?;
    Some(row.bandwidth_bytes_per_s_max)
}

/// Binary coded decimals as people write them: 0x0210 is `2.10`.
fn decimal(bcd: u16) -> String {
    format!("{:x}.{:02x}", bcd >> 8, bcd & 0xff)
}

fn slashed([class, subclass, protocol]: [u8; 3]) -> String {
    format!("{class:02x}/{subclass:02x}/{protocol:02x}")
}

#[cfg(test)]
mod tests {
    use farbus_gadgets::zero::{Fill, SourceSink};
    use farbus_model::Device;

    use super::*;

    #[test]
    fn endpoints_have_the_rates_that_their_descriptors_and_their_bus_allow() {
        let device = SourceSink::device(Speed::High, Fill::Zeros, false);
        let tree = DescriptorTree::of(device.descriptors(), Speed::High);
        let endpoints = tree.configurations.iter().flat_map(|each| &each.interfaces).flat_map(|each| &each.endpoints);
        let bulk = endpoints.filter(|endpoint| endpoint.kind == "bulk").collect::<Vec<_>>();
        assert!(!bulk.is_empty(), "{tree:?}");
        // USB 2.0 table 5-10: 13 packets of 512 bytes in a microframe.
        assert!(bulk.iter().all(|endpoint| endpoint.bytes_per_s_max == Some(53_248_000)), "{bulk:?}");
        assert_eq!((decimal(0x0210).as_str(), slashed([8, 6, 0x50]).as_str()), ("2.10", "08/06/50"));
    }
}
