//! Devices whose descriptors break the specification, read as an importer reads them (`run`, `redir` and all others):
//! Linux takes them, and so does farbus, with the same interfaces and endpoints.

mod common;

use common::answers::{Answer, Answers};
use common::kernel::{self, KernelEndpoint, KernelSetting};
use common::rng::Rng;
use farbus_host::EnumerationError;
use farbus_model::descriptor::{AltSetting, DeviceDescriptor, UsbConfiguration, kind};
use farbus_model::{DescriptorRepairs, DescriptorSet, UrbStatus, UsbSpeed};

const SEEDS: u64 = 1000;

/// A high-speed device: an interface with two bulk endpoints, one with an interrupt endpoint and a second setting.
fn plain() -> Vec<u8> {
    let mut bytes = vec![9, 2, 0, 0, 2, 1, 0, 0x80, 50];
    bytes.extend([9, 4, 0, 0, 2, 255, 1, 2, 0, 7, 5, 0x81, 2, 0, 2, 0, 7, 5, 0x02, 2, 0, 2, 0]);
    bytes.extend([9, 4, 1, 0, 1, 3, 0, 0, 0, 9, 0x21, 0x11, 1, 0, 1, 0x22, 63, 0, 7, 5, 0x83, 3, 8, 0, 4]);
    bytes.extend([9, 4, 1, 1, 1, 3, 0, 0, 0, 7, 5, 0x83, 3, 64, 0, 4]);
    with_total(bytes)
}

fn with_total(mut bytes: Vec<u8>) -> Vec<u8> {
    let total = bytes.len() as u16;
    bytes[2..4].copy_from_slice(&total.to_le_bytes());
    bytes
}

/// A device at SuperSpeed: an association, companions, isochronous settings.
fn rich() -> Vec<u8> {
    let mut bytes = vec![9, 2, 0, 0, 3, 1, 0, 0x80, 50, 8, 11, 0, 2, 14, 3, 0, 0];
    bytes.extend([9, 4, 0, 0, 1, 14, 1, 0, 0, 5, 0x24, 1, 0, 1, 7, 5, 0x86, 3, 16, 0, 8, 6, 48, 0, 0, 16, 0]);
    bytes.extend([9, 4, 1, 0, 0, 14, 2, 0, 0, 9, 4, 1, 1, 1, 14, 2, 0, 0]);
    bytes.extend([7, 5, 0x81, 1, 0, 4, 1, 6, 48, 3, 1, 0, 16]);
    bytes.extend([9, 4, 2, 0, 3, 8, 6, 0x62, 0, 7, 5, 0x83, 2, 0, 4, 0, 6, 48, 15, 0, 0, 0]);
    bytes.extend([7, 5, 0x04, 2, 0, 4, 0, 6, 48, 15, 5, 0, 0, 7, 5, 0x05, 0, 64, 0, 0, 6, 48, 0, 0, 0, 0]);
    with_total(bytes)
}

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

/// The expected results are computed by `common/kernel.rs`, not recorded.
#[test]
fn a_thousand_mutated_devices_have_the_interfaces_and_endpoints_of_the_kernels_rules() {
    let (mut refused, mut repaired) = (0, 0);
    for seed in 0..SEEDS {
        let mut rng = Rng(seed);
        let speed =
            [UsbSpeed::Low, UsbSpeed::Full, UsbSpeed::High, UsbSpeed::High, UsbSpeed::Super][rng.below(5) as usize];
        let count = 1 + rng.below(2);
        let configurations: Vec<Vec<u8>> = (0..count)
            .map(|_| {
                let mut bytes = if rng.one_in(2) { plain() } else { rich() };
                for _ in 0..=rng.below(4) {
                    mutate(&mut bytes, &mut rng);
                }
                bytes
            })
            .collect();
        let (found, repairs) = device(&configurations, speed).enumerate_with_repairs();
        assert_like_kernel(&format!("seed {seed}"), &configurations, speed, &found);
        refused += u32::from(found.is_err());
        repaired += u32::from(!repairs.is_empty());
    }
    println!("{SEEDS} devices: {refused} refused, {repaired} repaired");
    assert!(refused < SEEDS as u32 / 4 && repaired > SEEDS as u32 / 2);
}

/// Changes a configuration in a way that devices do, or in any.
fn mutate(bytes: &mut Vec<u8>, rng: &mut Rng) {
    // The places where descriptors begin, as far as their lengths lead.
    let mut places = vec![0];
    while let Some(&length @ 2..) = bytes.get(places[places.len() - 1]) {
        places.push(places[places.len() - 1] + usize::from(length));
    }
    places.retain(|place| *place < bytes.len());
    let at = if places.is_empty() { 0 } else { places[rng.below(places.len() as u64) as usize] };
    let length = bytes.get(at).map_or(0, |length| usize::from(*length)).min(bytes.len() - at);
    match rng.below(9) {
        // A length, a type, or a field of a descriptor.
        0 if at < bytes.len() => bytes[at] = [0, 1, 2, 5, 6, 8, 10, 255][rng.below(8) as usize],
        1 if at + 1 < bytes.len() => bytes[at + 1] = [2, 4, 5, 11, 48, 0x24][rng.below(6) as usize],
        2 | 3 if length > 2 => bytes[at + 2 + rng.below(length as u64 - 2) as usize] = rng.next() as u8,
        // A descriptor twice, or not at all.
        4 => {
            let copy = bytes[at..at + length].to_vec();
            let to = places.last().copied().filter(|_| rng.one_in(2)).unwrap_or(at);
            bytes.splice(to..to, copy);
        }
        5 if at > 0 => drop(bytes.drain(at..at + length)),
        // Too few bytes, or too many.
        6 => bytes.truncate(bytes.len() - rng.below(1 + bytes.len() as u64 / 4) as usize),
        7 => bytes.extend(rng.bytes(3)),
        // What is there is announced.
        8 if bytes.len() > 4 => *bytes = with_total(std::mem::take(bytes)),
        _ => {
            if let Some(byte) = bytes.get_mut(2 + rng.below(2) as usize) {
                *byte = byte.wrapping_add(rng.next() as u8 % 16);
            }
        }
    }
}
