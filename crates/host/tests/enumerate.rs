//! Reading descriptors of correct, unusual and malicious devices.

mod common;

use std::collections::BTreeMap;
use std::time::Duration;

use common::answers::{Answer, Answers, value};
use common::rng::Rng;
use farbus_host::enumerate::{DescriptorPart, EnumerationErrorReason};
use farbus_host::{ConfigurationSetter, DescriptorEnumerator, HostPort, HostPortError, IdSource, limits, run};
use farbus_model::definition::InterfaceDefinition;
use farbus_model::descriptor::{UsbConfiguration, kind, string_to_bytes};
use farbus_model::{
    DescriptorSet, DeviceDefinition, Instant, SetupPacket, TransferDirection, Urb, UrbCompletion, UrbId, UrbStatus,
    UsbSpeed,
};

fn sample(speed: UsbSpeed) -> DescriptorSet {
    let interface = InterfaceDefinition::vendor().class_descriptors(&[3, 0x24, 7]).bulk_pair(1);
    let interface = interface.interrupt(2, TransferDirection::In, 8, Duration::from_millis(10));
    let all = DeviceDefinition::new(0x1209, 1).speed(speed).names("farbus", "sample", "7").interface(interface).build();
    // A host does not ask what a device would be at a speed it does not run at.
    DescriptorSet { other_speed: Vec::new(), ..all }
}

fn device(speed: UsbSpeed) -> Answers {
    Answers::of(&sample(speed), speed)
}

#[test]
fn enumerated_descriptors_are_those_declared() {
    // Low speed has no bulk endpoints.
    for speed in [UsbSpeed::Full, UsbSpeed::High, UsbSpeed::Super, UsbSpeed::SuperPlus] {
        assert_eq!(device(speed).enumerate().unwrap(), sample(speed));
    }
}

/// An exporter takes a GET_DESCRIPTOR(DEVICE) of 8 or 64 bytes for a port reset.
#[test]
fn the_device_descriptor_is_asked_for_whole_and_once() {
    let mut device = device(UsbSpeed::High);
    device.enumerate().unwrap();
    let lengths: Vec<_> = device.packets.iter().filter(|s| s.value >> 8 == 1).map(|s| s.length).collect();
    assert_eq!(lengths, [18]);
    assert!(device.packets.iter().all(|setup| setup.length != 64));
}

#[test]
fn several_configurations_are_read_and_the_first_is_selected() {
    let mut all = sample(UsbSpeed::High);
    let mut second = all.configurations[0].clone();
    (second.bytes[5], second.value) = (9, 9);
    all.configurations.push(second);
    all.device.configurations = 2;
    let mut device = Answers::of(&all, UsbSpeed::High);
    assert_eq!(device.enumerate().unwrap(), all);
    let configure = ConfigurationSetter::first(device.now, IdSource::new(), &all).unwrap();
    assert_eq!(configure.value(), 1);
    all.configurations.iter_mut().for_each(|configuration| configuration.value = 0);
    assert!(ConfigurationSetter::first(device.now, IdSource::new(), &all).is_err(), "0 is no configuration");
}

#[test]
fn strings_of_interfaces_and_configurations_are_read_too() {
    let mut all = sample(UsbSpeed::High);
    let configuration = &mut all.configurations[0];
    configuration.bytes[6] = 20;
    configuration.bytes[9 + 8] = 21;
    *configuration = UsbConfiguration::parse(&configuration.bytes).unwrap();
    all.strings.extend([(20, "the configuration".to_owned()), (21, "the interface".to_owned())]);
    assert_eq!(Answers::of(&all, UsbSpeed::High).enumerate().unwrap(), all);
}

#[test]
fn a_device_may_be_without_strings_or_with_odd_ones() {
    let none = |device: Answers| {
        let mut device = device;
        let found = device.enumerate().unwrap();
        assert!(found.strings.is_empty(), "{:?}", found.strings);
        device
    };
    for answer in [Answer::Ends(UrbStatus::Stall), Answer::Ends(UrbStatus::Protocol), Answer::Bytes(vec![])] {
        none(device(UsbSpeed::High).change(kind::STRING, 0, answer));
    }
    none(device(UsbSpeed::High).change(kind::STRING, 0, Answer::Bytes(vec![2])));
    // They name no language: Linux takes English.
    for table in [vec![2, 3], vec![3, 3, 9], vec![4, 9, 9, 4]] {
        let mut device = device(UsbSpeed::High).change(kind::STRING, 0, Answer::Bytes(table));
        assert_eq!(device.enumerate().unwrap().title(), "farbus sample");
    }
    let silent = none(device(UsbSpeed::High).change(kind::STRING, 1, Answer::Silence));
    assert_eq!(silent.now.as_nanos(), 5_000_000_000, "one silence is enough");
    let mut missing = device(UsbSpeed::High).change(kind::STRING, 1, Answer::Ends(UrbStatus::Stall));
    assert_eq!(missing.enumerate().unwrap().title(), "sample");
    let mut lying = device(UsbSpeed::High).edit(kind::STRING, 1, |bytes| bytes[0] = 255);
    assert_eq!(lying.enumerate().unwrap().title(), "farbus sample");
}

#[test]
fn strings_of_a_known_device_are_read_in_5_s_or_left_out() {
    let all = sample(UsbSpeed::High);
    let known = DescriptorSet { strings: BTreeMap::new(), ..all.clone() };
    let read = |mut device: Answers| {
        let mut driver = DescriptorEnumerator::strings(device.now, IdSource::new(), device.speed, &known);
        let found = run(&mut driver, &mut device).expect("the port works").expect("no string is needed");
        (found, device)
    };
    let (found, device) = read(device(UsbSpeed::High));
    assert_eq!(found, all);
    assert!(device.packets.iter().all(|setup| setup.value.to_be_bytes()[0] == kind::STRING), "{:?}", device.packets);
    for answer in [Answer::Ends(UrbStatus::Stall), Answer::Ends(UrbStatus::Protocol), Answer::Silence] {
        let (found, device) = read(self::device(UsbSpeed::High).change(kind::STRING, 0, answer));
        assert_eq!(found, known);
        assert!(device.now.as_nanos() <= 5_000_000_000, "{:?}", device.now);
    }
    let (found, device) = read(self::device(UsbSpeed::High).change(kind::STRING, 2, Answer::Silence));
    assert_eq!((found.title().as_str(), device.now.as_nanos()), ("farbus", 5_000_000_000), "what came is kept");
}

#[test]
fn strings_come_in_the_first_language_if_there_is_no_english() {
    let german = Answer::Bytes(vec![6, 3, 0x07, 0x04, 0x0c, 0x04]);
    let mut device = device(UsbSpeed::High).change(kind::STRING, 0, german);
    device.answers.insert((value(kind::STRING, 1), 0x0407), Answer::Bytes(string_to_bytes("Gerät")));
    assert_eq!(device.enumerate().unwrap().strings, BTreeMap::from([(1, "Gerät".to_owned())]));
}

#[test]
fn an_object_store_is_whole_or_left_out() {
    let mut without = device(UsbSpeed::Super).change(kind::BOS, 0, Answer::Ends(UrbStatus::Stall));
    assert!(without.enumerate().unwrap().bos.is_empty());
    let total = |total: u16| {
        device(UsbSpeed::Super).edit(kind::BOS, 0, move |bytes| bytes[2..4].copy_from_slice(&total.to_le_bytes()))
    };
    for length in [4, 23, 5000] {
        let (found, repairs) = total(length).enumerate_with_repairs();
        assert_eq!(
            (found.unwrap(), repairs.iter().count()),
            (DescriptorSet { bos: Vec::new(), ..sample(UsbSpeed::Super) }, 1)
        );
    }
    let mut never_asked = device(UsbSpeed::High).change(kind::BOS, 0, Answer::Silence);
    assert!(never_asked.enumerate().is_ok());
}

#[test]
fn a_missing_piece_is_an_error_with_its_name() {
    for (kind, piece) in
        [(kind::DEVICE, DescriptorPart::Device), (kind::CONFIGURATION, DescriptorPart::Configuration(0))]
    {
        for (answer, reason) in [
            (Answer::Ends(UrbStatus::Stall), EnumerationErrorReason::Refused(UrbStatus::Stall)),
            (Answer::Ends(UrbStatus::Protocol), EnumerationErrorReason::Refused(UrbStatus::Protocol)),
            (Answer::Ends(UrbStatus::Gone), EnumerationErrorReason::Gone),
            (Answer::Ends(UrbStatus::Shutdown), EnumerationErrorReason::Gone),
            (Answer::Silence, EnumerationErrorReason::TimedOut),
        ] {
            assert_eq!(device(UsbSpeed::High).change(kind, 0, answer).error(), (piece, reason));
        }
    }
}

/// What Linux refuses: there is nothing that could be used.
#[test]
fn device_without_a_configuration_or_a_whole_device_descriptor_is_refused() {
    let device_edit = |edit: fn(&mut Vec<u8>)| device(UsbSpeed::High).edit(kind::DEVICE, 0, edit).error().0;
    assert_eq!(device_edit(|bytes| bytes.truncate(17)), DescriptorPart::Device);
    assert_eq!(device_edit(|bytes| bytes[1] = 2), DescriptorPart::Device);
    assert_eq!(device_edit(|bytes| bytes[17] = 0), DescriptorPart::Device);
    let edit = |edit: fn(&mut Vec<u8>)| device(UsbSpeed::High).edit(kind::CONFIGURATION, 0, edit).error().0;
    let configuration = DescriptorPart::Configuration(0);
    assert_eq!(edit(|bytes| bytes[1] = 4), configuration);
    assert_eq!(edit(|bytes| bytes[0] = 8), configuration);
    assert_eq!(edit(|bytes| bytes.truncate(8)), configuration);
    assert_eq!(edit(|bytes| bytes.truncate(3)), configuration);
    // A header that claims to reach beyond everything.
    assert_eq!(edit(|bytes| (bytes[0], bytes[2], bytes[3]) = (200, 9, 0)), configuration);
}

#[test]
fn a_device_that_names_a_thousand_strings_is_asked_for_a_few() {
    let mut all = sample(UsbSpeed::High);
    let configuration = &mut all.configurations[0];
    for index in 0..200u8 {
        configuration.bytes.extend([9, kind::INTERFACE, index % 32, 1 + index / 32, 0, 0xff, 0, 0, index]);
    }
    let total = configuration.bytes.len() as u16;
    configuration.bytes[2..4].copy_from_slice(&total.to_le_bytes());
    let mut device = Answers::of(&all, UsbSpeed::High);
    device.enumerate().unwrap();
    let strings = device.packets.iter().filter(|setup| setup.value >> 8 == 3).count();
    assert_eq!(strings, 1 + limits::STRINGS_MAX);
}

#[test]
fn mutated_descriptors_are_read_or_refused() {
    for seed in 0..2000 {
        let mut rng = Rng(seed);
        let speed = [UsbSpeed::High, UsbSpeed::Super][rng.below(2) as usize];
        let mut device = device(speed);
        for answer in device.answers.values_mut() {
            if let (true, Answer::Bytes(bytes)) = (rng.one_in(2), answer) {
                for _ in 0..=rng.below(3) {
                    let at = rng.below(bytes.len() as u64) as usize;
                    bytes[at] = rng.next() as u8;
                }
            }
        }
        let _ = device.enumerate();
        assert!(device.packets.len() <= limits::ENUMERATION_TRANSFERS_MAX, "seed {seed}");
    }
}

/// A device that ends SET_CONFIGURATION in one way.
struct Selecting(UrbStatus, Option<Urb>);

impl HostPort for Selecting {
    fn submit(&mut self, urb: Urb) {
        assert_eq!(urb.setup, SetupPacket::set_configuration(3));
        self.1 = Some(urb);
    }

    fn cancel(&mut self, _: UrbId) {
        unreachable!("it is always answered");
    }

    fn wait(&mut self, _: Option<Instant>) -> Result<Option<UrbCompletion>, HostPortError> {
        let urb = self.1.take().expect("something is in flight").launch();
        Ok(Some(if self.0 == UrbStatus::Ok { urb.accept() } else { urb.fail(self.0) }))
    }

    fn now(&self) -> Instant {
        Instant::ZERO
    }
}

#[test]
fn a_configuration_is_selected_or_the_reason_is_known() {
    for (status, expected) in [
        (UrbStatus::Ok, Ok(3)),
        (UrbStatus::Stall, Err(EnumerationErrorReason::Refused(UrbStatus::Stall))),
        (UrbStatus::Gone, Err(EnumerationErrorReason::Gone)),
        (UrbStatus::TimedOut, Err(EnumerationErrorReason::TimedOut)),
    ] {
        let mut configure = ConfigurationSetter::new(Instant::ZERO, IdSource::new(), 3);
        let result = run(&mut configure, &mut Selecting(status, None)).unwrap();
        assert_eq!(
            result.map_err(|error| (error.piece, error.reason)),
            expected.map_err(|r| (DescriptorPart::Selection(3), r))
        );
    }
}
