//! A device in the tables of usbredir.

use farbus_model::descriptor::{AltSetting, UsbConfiguration};
use farbus_model::{ConfigurationSelection, DescriptorSet, Device, EndpointDescriptor, TransferType, UsbSpeed};
use farbus_wire::usbredir::info::{PLACES, endpoint_at, place_of};
use farbus_wire::usbredir::{DeviceConnect, EndpointInfo, EpInfo, InterfaceInfo, InterfaceKind};

/// The device's `device_connect` message.
pub fn device_connect(device: &impl Device) -> DeviceConnect {
    let descriptor = &device.descriptors().device;
    DeviceConnect {
        speed: Some(device.speed()),
        class: descriptor.class,
        vendor: descriptor.vendor,
        product: descriptor.product,
        device_bcd: descriptor.device_bcd,
    }
}

/// Its interfaces and endpoints in the current configuration; before one is set, those of the first configuration. A
/// guest's filter asks for interfaces, and its controller for endpoints, before the device is configured.
pub fn parts(device: &impl Device) -> (InterfaceInfo, EpInfo) {
    let all = device.descriptors();
    let mut selection = device.selection().clone();
    if selection.configuration() == 0
        && let Some(first) = all.configurations.first()
    {
        selection.select_configuration(all, first.value);
    }
    let configuration = all.configuration(selection.configuration());
    let settings = || configuration.into_iter().flat_map(|configuration| active(configuration, &selection));
    let interfaces = settings().map(|setting| InterfaceKind { number: setting.interface, class: setting.class });
    let mut endpoints = control_pipe(all, device.speed());
    for setting in settings() {
        for endpoint in setting.endpoints.iter().filter(|endpoint| !endpoint.address.is_control()) {
            let is_periodic = matches!(endpoint.kind, TransferType::Interrupt | TransferType::Isochronous);
            let bytes_max = if is_periodic { interval_bytes_max(endpoint) } else { endpoint.packet_bytes_max };
            endpoints.0[place_of(endpoint.address)] = EndpointInfo {
                kind: Some(endpoint.kind),
                // QEMU refuses a device with a periodic endpoint of interval 0.
                interval: if is_periodic { endpoint.interval.max(1) } else { endpoint.interval },
                interface: setting.interface,
                packet_bytes_max: bytes_max,
                // Bulk streams are a capability that is not offered.
                streams_max: 0,
            };
        }
    }
    (InterfaceInfo(interfaces.take(PLACES).collect()), endpoints)
}

/// Most bytes of one packet of a stream. The protocol's length has 16 bits, and a descriptor may claim more than any
/// bus carries.
pub fn interval_bytes_max(endpoint: &EndpointDescriptor) -> u16 {
    u16::try_from(endpoint.interval_bytes_max()).unwrap_or(u16::MAX)
}

fn active<'a>(
    configuration: &'a UsbConfiguration,
    selection: &'a ConfigurationSelection,
) -> impl Iterator<Item = &'a AltSetting> {
    configuration.settings.iter().filter(|setting| setting.alternate == selection.alternate(setting.interface))
}

/// Tables with only the control endpoint.
fn control_pipe(all: &DescriptorSet, speed: UsbSpeed) -> EpInfo {
    // At SuperSpeed the field is an exponent (USB 3.2 §9.6.1).
    let packet_bytes_max = match speed {
        UsbSpeed::Super | UsbSpeed::SuperPlus => 1 << all.device.max_packet_0.min(9),
        _ => u16::from(all.device.max_packet_0),
    };
    let control = EndpointInfo { kind: Some(TransferType::Control), packet_bytes_max, ..EndpointInfo::default() };
    let mut info = EpInfo::default();
    for (position, endpoint) in info.0.iter_mut().enumerate() {
        if endpoint_at(position).is_control() {
            *endpoint = control;
        }
    }
    info
}

#[cfg(test)]
mod tests {
    use super::*;
    use farbus_model::EpAddr;

    #[test]
    fn stream_packet_length_is_limited_to_its_16_bit_field() {
        let endpoint = |packet_bytes_max, packets_per_interval| EndpointDescriptor {
            address: EpAddr::from_byte(0x81),
            kind: TransferType::Isochronous,
            packet_bytes_max,
            packets_per_interval,
            interval: 1,
        };
        assert_eq!(interval_bytes_max(&endpoint(1024, 3)), 3072);
        assert_eq!(interval_bytes_max(&endpoint(2047, 1024)), u16::MAX);
    }
}
