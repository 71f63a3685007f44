//! What is told of a device's descriptors, from the descriptors.

use farbus_control::descriptors::{ConfigurationTree, DescriptorTree, EndpointTree, InterfaceTree};
use farbus_model::descriptor::{AltSetting, UsbConfiguration};
use farbus_model::{DescriptorSet, EndpointDescriptor, TransferDirection, TransferType, UsbSpeed};
use farbus_realtime::{self as realtime, TransferKind, bandwidth};

use crate::devices::class_words::class_words;

/// The descriptors of a device that works at this speed.
pub fn descriptor_tree(descriptors: &DescriptorSet, speed: UsbSpeed) -> DescriptorTree {
    let device = &descriptors.device;
    let string = |index| descriptors.string(index).map(str::to_owned);
    let is_super = !matches!(speed, UsbSpeed::Low | UsbSpeed::Full | UsbSpeed::High);
    let packet_bytes_max = match is_super {
        true => 1_u32.checked_shl(device.max_packet_0.into()).unwrap_or_default(),
        false => device.max_packet_0.into(),
    };
    let configurations = descriptors.configurations.iter().map(|each| configuration_tree(each, speed, is_super));
    DescriptorTree {
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

fn configuration_tree(configuration: &UsbConfiguration, speed: UsbSpeed, is_super: bool) -> ConfigurationTree {
    // bmAttributes and bMaxPower (USB 2.0 table 9-10; in 8 mA at SuperSpeed, USB 3.2 table 9-24).
    let byte = |at: usize| configuration.bytes.get(at).copied().unwrap_or_default();
    let unit_ma = if is_super { 8 } else { 2 };
    ConfigurationTree {
        value: configuration.value,
        current_ma: u32::from(byte(8)) * unit_ma,
        is_self_powered: byte(7) & 0x40 != 0,
        interfaces: configuration.settings.iter().map(|setting| interface_tree(setting, speed)).collect(),
    }
}

fn interface_tree(setting: &AltSetting, speed: UsbSpeed) -> InterfaceTree {
    InterfaceTree {
        number: setting.interface,
        alternate: setting.alternate,
        class: slashed(setting.class),
        words: class_words(setting.class, std::iter::empty()).concat(),
        endpoints: setting.endpoints.iter().map(|endpoint| endpoint_tree(endpoint, speed)).collect(),
    }
}

fn endpoint_tree(endpoint: &EndpointDescriptor, speed: UsbSpeed) -> EndpointTree {
    let interval_us = endpoint.service_interval(speed).as_micros() as u64;
    let packets = endpoint.packets_per_interval.max(1);
    let bytes = u64::from(endpoint.packet_bytes_max) * u64::from(packets);
    let periodic = (interval_us > 0).then(|| bytes.saturating_mul(1_000_000) / interval_us);
    EndpointTree {
        address: format!("{:#04x}", endpoint.address.as_byte()),
        direction: if endpoint.address.direction() == TransferDirection::In { "in".into() } else { "out".into() },
        kind: match endpoint.kind {
            TransferType::Control => "control".into(),
            TransferType::Isochronous => "isochronous".into(),
            TransferType::Bulk => "bulk".into(),
            TransferType::Interrupt => "interrupt".into(),
        },
        packet_bytes_max: endpoint.packet_bytes_max,
        packets,
        interval_us,
        bytes_per_s_max: periodic.or_else(|| bulk_bytes_per_s(endpoint, speed)),
    }
}

/// What a bus carries of a bulk endpoint's packets if it carries nothing else (USB 2.0 tables 5-9 and 5-10).
fn bulk_bytes_per_s(endpoint: &EndpointDescriptor, speed: UsbSpeed) -> Option<u64> {
    if endpoint.kind != TransferType::Bulk {
        return None;
    }
    let speed = match speed {
        UsbSpeed::Full => realtime::BusSpeed::Full,
        UsbSpeed::High => realtime::BusSpeed::High,
        UsbSpeed::Super => realtime::BusSpeed::Super,
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
    use farbus_gadgets::zero::{SourcePattern, SourceSink};
    use farbus_model::Device;

    use super::*;

    #[test]
    fn endpoints_have_the_rates_that_their_descriptors_and_their_bus_allow() {
        let device = SourceSink::device(UsbSpeed::High, SourcePattern::Zeros, false);
        let tree = descriptor_tree(device.descriptors(), UsbSpeed::High);
        let endpoints = tree.configurations.iter().flat_map(|each| &each.interfaces).flat_map(|each| &each.endpoints);
        let bulk = endpoints.filter(|endpoint| endpoint.kind == "bulk").collect::<Vec<_>>();
        assert!(!bulk.is_empty(), "{tree:?}");
        // USB 2.0 table 5-10: 13 packets of 512 bytes in a microframe.
        assert!(bulk.iter().all(|endpoint| endpoint.bytes_per_s_max == Some(53_248_000)), "{bulk:?}");
        assert_eq!((decimal(0x0210).as_str(), slashed([8, 6, 0x50]).as_str()), ("2.10", "08/06/50"));
    }
}
