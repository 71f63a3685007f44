//! Devices whose descriptors break the specification, read as an importer reads them (`run`, `redir` and all others):
//! Linux takes them, and so does farbus, with the same interfaces and endpoints.

mod common;

use common::answers::{Answer, Answers};
use common::kernel::{self, KernelEndpoint, KernelSetting};
use common::mutated::{ODD_DEVICES, odd_device, plain, rich};
use farbus_host::EnumerationError;
use farbus_model::descriptor::{AltSetting, DeviceDescriptor, EndpointDescriptor, UsbConfiguration, kind};
use farbus_model::{DescriptorRepairs, DescriptorSet, TransferType, UrbStatus, UsbSpeed};

fn device(configurations: &[Vec<u8>], speed: UsbSpeed) -> Answers {
    let device = DeviceDescriptor {
        usb_bcd: 0x0210,
        max_packet_0: 64,
        vendor: 0x1209,
        product: 1,
        product_string: 2,
        configurations: configurations.len() as u8,
        ..DeviceDescriptor::default()
    };
    let whole = |bytes: &Vec<u8>| UsbConfiguration { bytes: bytes.clone(), ..UsbConfiguration::default() };
    let all = DescriptorSet {
        device,
        configurations: configurations.iter().map(whole).collect(),
        strings: [(2, "odd".to_owned())].into(),
        bos: vec![5, 15, 12, 0, 1, 7, 16, 2, 2, 0, 0, 0],
        other_speed: Vec::new(),
    };
    Answers::of(&all, speed)
}

fn settings_of(configuration: &UsbConfiguration) -> Vec<KernelSetting> {
    let endpoints = |setting: &AltSetting| {
        let each = setting.endpoints.iter().map(|endpoint| KernelEndpoint {
            address: endpoint.address.as_byte(),
            kind: endpoint.kind.as_attributes(),
            packet_bytes: endpoint.packet_bytes_max,
            packets: endpoint.packets_per_interval,
            interval: endpoint.interval,
        });
        each.collect()
    };
    let each = configuration.settings.iter();
    each.map(|setting| (setting.interface, setting.alternate, setting.class, endpoints(setting))).collect()
}

/// Checks what was read against the kernel's rules, and that an earlier, strict peer and a second reading find the
/// same bytes usable.
fn assert_like_kernel(
    what: &str,
    configurations: &[Vec<u8>],
    speed: UsbSpeed,
    found: &Result<DescriptorSet, EnumerationError>,
) {
    let expected: Option<Vec<Vec<KernelSetting>>> = configurations.iter().map(|bytes| taken(bytes, speed)).collect();
    let read = found.as_ref().ok().map(|found| found.configurations.iter().map(settings_of).collect());
    assert_eq!(read, expected, "{what}: {found:?}");
    for configuration in found.iter().flat_map(|found| &found.configurations) {
        let strict = UsbConfiguration::parse(&configuration.bytes);
        assert!(strict.is_ok(), "{what}: {strict:?} of {configuration:?}");
        let again = UsbConfiguration::read(&configuration.bytes, speed, &mut DescriptorRepairs::default());
        assert_eq!(again.as_ref(), Ok(configuration), "{what}");
    }
}

/// What the kernel makes of a device that answers each request for its configuration with the beginning of `bytes`.
fn taken(bytes: &[u8], speed: UsbSpeed) -> Option<Vec<KernelSetting>> {
    let header = bytes.first_chunk::<4>().filter(|header| header[1] == 2)?;
    let total = usize::from(u16::from_le_bytes([header[2], header[3]])).max(9);
    kernel::settings(&bytes[..bytes.len().min(total)], speed)
}

/// One way in which a configuration is odd, and the beginning of the repair's rule.
type OddRow = (&'static str, fn(&mut Vec<u8>), &'static str);

#[test]
fn fifteen_odd_devices_are_taken_and_each_repair_is_noted_once() {
    let rows: [OddRow; 13] = [
        ("wTotalLength says seven more than come", |bytes| bytes[2] += 7, "fewer bytes come"),
        ("the last endpoint is cut", |bytes| bytes.truncate(bytes.len() - 3), "fewer bytes come"),
        ("a bLength of 0", |bytes| bytes[9 + 23 + 9] = 0, "bLength is below 2"),
        ("a bLength beyond the end", |bytes| bytes[9 + 23 + 9] = 200, "bLength is below 2"),
        ("a byte left over", |bytes| (*bytes = [&bytes[..], &[0]].concat(), bytes[2] += 1).1, "a byte is left"),
        ("an endpoint of 5 bytes", |bytes| bytes[9 + 9] = 5, "an endpoint descriptor is below"),
        ("bNumInterfaces 5", |bytes| bytes[4] = 5, "bNumInterfaces is not"),
        ("bNumEndpoints 1 of 2", |bytes| bytes[9 + 4] = 1, "bNumEndpoints is not"),
        ("an endpoint twice", |bytes| bytes[9 + 16 + 2] = 0x81, "an endpoint address comes twice"),
        ("a setting twice", |bytes| bytes[57 + 3] = 0, "an alternate setting comes twice"),
        ("a bInterval in ms", |bytes| bytes[57 - 1] = 32, "bInterval is out of range"),
        ("packets of 4096 bytes", |bytes| bytes[9 + 9 + 5] = 16, "wMaxPacketSize is above"),
        ("an endpoint 0", |bytes| bytes[9 + 9 + 2] = 0x80, "an endpoint is number 0"),
    ];
    for (what, change, rule) in rows {
        let mut bytes = plain();
        change(&mut bytes);
        let (found, repairs) = device(&[bytes.clone()], UsbSpeed::High).enumerate_with_repairs();
        assert_like_kernel(what, &[bytes], UsbSpeed::High, &found);
        let noted = repairs.iter().filter(|repair| repair.rule.starts_with(rule)).count();
        assert_eq!(noted, 1, "{what}: {repairs:?}");
        assert_eq!(found.unwrap().title(), "odd", "{what}: its strings are read, too");
    }
    // An object store that is cut, and a language table that names no language.
    let (found, repairs) =
        device(&[rich()], UsbSpeed::Super).edit(kind::BOS, 0, |bytes| bytes.truncate(9)).enumerate_with_repairs();
    assert_eq!((found.unwrap().bos.len(), repairs.iter().count()), (0, 1));
    for table in [vec![2, 3], vec![3, 3, 9]] {
        let mut device = device(&[plain()], UsbSpeed::High).change(kind::STRING, 0, Answer::Bytes(table));
        assert_eq!(device.enumerate().unwrap().title(), "odd");
    }
    // A device descriptor that is longer than it says.
    let (found, repairs) =
        device(&[plain()], UsbSpeed::High).edit(kind::DEVICE, 0, |bytes| bytes[0] = 8).enumerate_with_repairs();
    assert_eq!((found.unwrap().configurations.len(), repairs.iter().count()), (1, 1));
}

#[test]
fn device_with_fewer_or_more_configurations_than_it_says_has_those_that_there_are() {
    let other = |value: u8| {
        let mut bytes = plain();
        bytes[5] = value;
        bytes
    };
    let all: Vec<Vec<u8>> = (1..=3).map(other).collect();
    let mut short = device(&all, UsbSpeed::High).change(kind::CONFIGURATION, 2, Answer::Ends(UrbStatus::Stall));
    let found = short.enumerate().unwrap();
    assert_eq!((found.configurations.len(), found.device.configurations), (2, 2));
    let all: Vec<Vec<u8>> = (1..=9).map(other).collect();
    let found = device(&all, UsbSpeed::High).enumerate().unwrap();
    assert_eq!((found.configurations.len(), found.device.configurations), (8, 8));
    let none = device(&all, UsbSpeed::High).change(kind::CONFIGURATION, 0, Answer::Ends(UrbStatus::Stall));
    assert!({ none }.enumerate().is_err(), "it has no configuration at all");
}

#[test]
fn descriptors_without_a_fault_stay_as_they_are() {
    for (bytes, speed) in [(plain(), UsbSpeed::High), (rich(), UsbSpeed::Super), (rich(), UsbSpeed::SuperPlus)] {
        let (found, repairs) = device(std::slice::from_ref(&bytes), speed).enumerate_with_repairs();
        let found = found.unwrap();
        assert_eq!((&found.configurations[0].bytes, repairs.iter().count()), (&bytes, 0), "{repairs:?}");
        assert_eq!(UsbConfiguration::parse(&bytes).as_ref(), Ok(&found.configurations[0]));
    }
}

/// Speeds as USB/IP numbers them.
fn speed_of(number: u32) -> UsbSpeed {
    [UsbSpeed::Low, UsbSpeed::Low, UsbSpeed::Full, UsbSpeed::High, UsbSpeed::High, UsbSpeed::Super][number as usize]
}

/// The expected results are computed by `common/kernel.rs`; what a kernel has shown is compared in the next test.
#[test]
fn a_thousand_mutated_devices_have_the_interfaces_and_endpoints_of_the_kernels_rules() {
    let (mut refused, mut repaired) = (0, 0);
    for seed in 0..ODD_DEVICES {
        let (speed, configurations) = odd_device(seed);
        let speed = speed_of(speed);
        let (found, repairs) = device(&configurations, speed).enumerate_with_repairs();
        assert_like_kernel(&format!("seed {seed}"), &configurations, speed, &found);
        refused += u64::from(found.is_err());
        repaired += u64::from(!repairs.is_empty());
    }
    println!("{ODD_DEVICES} devices: {refused} refused, {repaired} repaired");
    assert!(refused < ODD_DEVICES / 4 && repaired > ODD_DEVICES / 2);
}

/// What Linux 6.1 has shown of these devices, a line each: `farbus-rig run odd-descriptors --times 50` with
/// `FARBUS_WRITE=1` has recorded it.
const RECORDED: &str = include_str!("linux-6.1-descriptors.txt");

#[test]
fn the_mutated_devices_have_the_interfaces_and_endpoints_that_linux_has_shown() {
    let mut wrong = Vec::new();
    for recorded in RECORDED.lines() {
        let seed: u64 = recorded.split(' ').next().unwrap().parse().unwrap();
        let (speed, configurations) = odd_device(seed);
        let speed = speed_of(speed);
        let ours = match device(&configurations, speed).enumerate() {
            Ok(found) => found.configurations.iter().map(|each| shown(each, speed)).collect(),
            Err(_) => " refused".to_owned(),
        };
        let ours = format!("{seed}{ours}");
        let recorded = recorded.split(' ').map(with_kinds_alone).collect::<Vec<_>>().join(" ");
        if ours != recorded {
            wrong.push(format!("Linux {recorded}\nours  {ours}"));
        }
    }
    assert!(wrong.is_empty(), "{} devices:\n{}", wrong.len(), wrong.join("\n"));
}

/// A word of the kernel's table: of an endpoint's attributes only the kind.
fn with_kinds_alone(word: &str) -> String {
    let parts: Vec<&str> = word.split(':').collect();
    match parts[..] {
        [address, attributes, packet, interval] if word.starts_with('E') => {
            let kind = u8::from_str_radix(attributes, 16).unwrap() & 3;
            format!("{address}:{kind:02x}:{packet}:{interval}")
        }
        _ => word.to_owned(),
    }
}

/// A configuration as the kernel's table has it: the settings of an interface together, in the order of the interfaces.
fn shown(configuration: &UsbConfiguration, speed: UsbSpeed) -> String {
    let mut interfaces: Vec<u8> = Vec::new();
    for setting in &configuration.settings {
        if !interfaces.contains(&setting.interface) {
            interfaces.push(setting.interface);
        }
    }
    let of = |interface: u8| configuration.settings.iter().filter(move |setting| setting.interface == interface);
    let setting = |setting: &AltSetting| {
        let [class, subclass, protocol] = setting.class;
        let endpoints: String = setting.endpoints.iter().map(|endpoint| endpoint_shown(endpoint, speed)).collect();
        format!(" I{}.{}:{class:02x}{subclass:02x}{protocol:02x}{endpoints}", setting.interface, setting.alternate)
    };
    let settings: String = interfaces.into_iter().flat_map(of).map(setting).collect();
    format!(" C{settings}")
}

/// `usb_dump_endpoint_descriptor` of `drivers/usb/core/devices.c`.
fn endpoint_shown(endpoint: &EndpointDescriptor, speed: UsbSpeed) -> String {
    let is_high = speed.has_microframes();
    let units = match endpoint.kind {
        TransferType::Control if speed == UsbSpeed::High => u32::from(endpoint.interval),
        TransferType::Bulk if speed == UsbSpeed::High && endpoint.address.as_byte() & 0x80 == 0 => {
            u32::from(endpoint.interval)
        }
        TransferType::Control | TransferType::Bulk => 0,
        TransferType::Isochronous => 1 << (endpoint.interval - 1),
        TransferType::Interrupt if is_high => 1 << (endpoint.interval - 1),
        TransferType::Interrupt => u32::from(endpoint.interval),
    };
    let us = units * if is_high { 125 } else { 1000 };
    let interval = if us.is_multiple_of(1000) { format!("{}ms", us / 1000) } else { format!("{us}us") };
    let (address, kind) = (endpoint.address.as_byte(), endpoint.kind.as_attributes());
    // At SuperSpeed the companion has how many packets there are.
    let packets = if speed == UsbSpeed::High { endpoint.packets_per_interval } else { 1 };
    format!(" E{address:02x}:{kind:02x}:{}:{interval}", endpoint.packet_bytes_max * packets)
}
