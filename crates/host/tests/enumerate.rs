//! Reading descriptors of correct, unusual and malicious devices.

mod common;

use std::collections::BTreeMap;
use std::time::Duration;

use common::rng::Rng;
use farbus_host::enumerate::{DescriptorPart, EnumerationErrorReason};
use farbus_host::{
    ConfigurationSetter, DescriptorEnumerator, EnumerationError, HostPort, HostPortError, IdSource, limits, run,
};
use farbus_model::definition::InterfaceDefinition;
use farbus_model::descriptor::{UsbConfiguration, kind, string_to_bytes};
use farbus_model::{
    DescriptorSet, DeviceDefinition, Instant, SetupPacket, TransferDirection, Urb, UrbCompletion, UrbId, UrbStatus,
    UsbSpeed,
};

/// A device that is nothing but answers to GET_DESCRIPTOR, by wValue and wIndex.
struct Answers {
    answers: BTreeMap<(u16, u16), Answer>,
    speed: UsbSpeed,
    packets: Vec<SetupPacket>,
    waiting: Vec<Urb>,
    cancelled: Vec<UrbId>,
    now: Instant,
}

#[derive(Clone)]
enum Answer {
    /// These bytes, as many as were asked for.
    Bytes(Vec<u8>),
    Ends(UrbStatus),
    Silence,
}

impl Answers {
    fn of(descriptors: &DescriptorSet, speed: UsbSpeed) -> Self {
        let mut answers = BTreeMap::new();
        let mut add = |kind: u8, index: u8, language: u16, bytes: &[u8]| {
            answers.insert((value(kind, index), language), Answer::Bytes(bytes.to_vec()));
        };
        add(kind::DEVICE, 0, 0, &descriptors.device.to_bytes());
        for (index, configuration) in descriptors.configurations.iter().enumerate() {
            add(kind::CONFIGURATION, index as u8, 0, &configuration.bytes);
        }
        add(kind::STRING, 0, 0, &[4, kind::STRING, 0x09, 0x04]);
        for (&index, text) in &descriptors.strings {
            add(kind::STRING, index, 0x0409, &string_to_bytes(text));
        }
        if !descriptors.bos.is_empty() {
            add(kind::BOS, 0, 0, &descriptors.bos);
        }
        Self { answers, speed, packets: Vec::new(), waiting: Vec::new(), cancelled: Vec::new(), now: Instant::ZERO }
    }

    fn change(mut self, kind: u8, index: u8, answer: Answer) -> Self {
        let key = self.answers.keys().copied().find(|(v, _)| *v == value(kind, index));
        self.answers.insert(key.unwrap_or((value(kind, index), 0)), answer);
        self
    }

    fn edit(mut self, kind: u8, index: u8, edit: impl Fn(&mut Vec<u8>)) -> Self {
        for ((v, _), answer) in &mut self.answers {
            if let (true, Answer::Bytes(bytes)) = (*v == value(kind, index), answer) {
                edit(bytes);
            }
        }
        self
    }

    fn enumerate(&mut self) -> Result<DescriptorSet, EnumerationError> {
        let result =
            run(&mut DescriptorEnumerator::new(self.now, IdSource::new(), self.speed), self).expect("the port works");
        assert!(self.packets.len() <= limits::ENUMERATION_TRANSFERS_MAX);
        result
    }

    fn error(mut self) -> (DescriptorPart, EnumerationErrorReason) {
        let error = self.enumerate().expect_err("this device is wrong");
        (error.piece, error.reason)
    }
}

fn value(kind: u8, index: u8) -> u16 {
    u16::from(kind) << 8 | u16::from(index)
}

impl HostPort for Answers {
    fn submit(&mut self, urb: Urb) {
        self.packets.push(urb.setup);
        self.waiting.push(urb);
    }

    fn cancel(&mut self, id: UrbId) {
        self.cancelled.push(id);
    }

    fn wait(&mut self, until: Option<Instant>) -> Result<Option<UrbCompletion>, HostPortError> {
        if let Some(id) = self.cancelled.pop() {
            let at = self.waiting.iter().position(|urb| urb.id == id).expect("it is in flight");
            return Ok(Some(self.waiting.remove(at).launch().fail(UrbStatus::Cancelled)));
        }
        let setup = self.waiting.first().expect("something is in flight").setup;
        let answer = match self.answers.get(&(setup.value, setup.index)) {
            Some(Answer::Silence) => {
                self.now = until.expect("nothing waits for ever");
                return Ok(None);
            }
            other => other.cloned(),
        };
        let urb = self.waiting.remove(0).launch();
        Ok(Some(match answer {
            Some(Answer::Bytes(mut bytes)) => {
                bytes.truncate(setup.length.into());
                urb.answer(bytes.into())
            }
            Some(Answer::Ends(status)) => urb.fail(status),
            _ => urb.fail(UrbStatus::Stall),
        }))
    }

    fn now(&self) -> Instant {
        self.now
    }
}

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
    for speed in [UsbSpeed::Low, UsbSpeed::Full, UsbSpeed::High, UsbSpeed::Super, UsbSpeed::SuperPlus] {
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
fn an_object_store_may_be_missing_but_not_lie() {
    let mut without = device(UsbSpeed::Super).change(kind::BOS, 0, Answer::Ends(UrbStatus::Stall));
    assert!(without.enumerate().unwrap().bos.is_empty());
    let total = |total: u16| {
        device(UsbSpeed::Super).edit(kind::BOS, 0, move |bytes| bytes[2..4].copy_from_slice(&total.to_le_bytes()))
    };
    assert_eq!(total(4).error().0, DescriptorPart::Bos);
    assert_eq!(total(23).error(), (DescriptorPart::Bos, EnumerationErrorReason::Cut { got: 22, wanted: 23 }));
    assert_eq!(total(5000).error(), (DescriptorPart::Bos, EnumerationErrorReason::TooMany { count: 5000, max: 4096 }));
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

#[test]
fn lying_lengths_are_errors_with_their_place() {
    let error_at = |device: Answers| match device.error() {
        (piece, EnumerationErrorReason::Malformed(error)) => (piece, error.offset),
        other => panic!("{other:?}"),
    };
    let device_edit = |edit: fn(&mut Vec<u8>)| device(UsbSpeed::High).edit(kind::DEVICE, 0, edit);
    assert_eq!(error_at(device_edit(|bytes| bytes[0] = 17)), (DescriptorPart::Device, 0));
    assert_eq!(error_at(device_edit(|bytes| bytes.truncate(8))), (DescriptorPart::Device, 0));
    assert_eq!(error_at(device_edit(|bytes| bytes[17] = 0)), (DescriptorPart::Device, 17));
    let many = device_edit(|bytes| bytes[17] = 9).error();
    assert_eq!(many, (DescriptorPart::Device, EnumerationErrorReason::TooMany { count: 9, max: 8 }));

    let edit = |edit: fn(&mut Vec<u8>)| device(UsbSpeed::High).edit(kind::CONFIGURATION, 0, edit);
    let configuration = DescriptorPart::Configuration(0);
    assert_eq!(error_at(edit(|bytes| bytes[1] = 4)), (configuration, 0));
    assert_eq!(error_at(edit(|bytes| bytes[2..4].fill(0))), (configuration, 2));
    assert_eq!(error_at(edit(|bytes| bytes[9] = 0)), (configuration, 9));
    assert_eq!(error_at(edit(|bytes| bytes[9] = 255)), (configuration, 9));
    let long = edit(|bytes| bytes[2..4].fill(255)).error();
    assert!(
        matches!(long, (DescriptorPart::Configuration(0), EnumerationErrorReason::Cut { wanted: 65535, .. })),
        "{long:?}"
    );
    assert_eq!(edit(|bytes| bytes.truncate(8)).error().1, EnumerationErrorReason::Cut { got: 8, wanted: 9 });
    // A header that claims to reach beyond everything, as Linux has it.
    assert_eq!(error_at(edit(|bytes| (bytes[0], bytes[2], bytes[3]) = (200, 9, 0))), (configuration, 0));
}

/// A device whose descriptors change while they are read.
#[test]
fn a_total_length_that_changes_is_an_error() {
    struct Fickle(Answers);
    impl HostPort for Fickle {
        fn submit(&mut self, urb: Urb) {
            let is_whole = urb.setup.value >> 8 == 2 && urb.setup.length > 9;
            if is_whole && let Some(Answer::Bytes(bytes)) = self.0.answers.get_mut(&(0x0200, 0)) {
                bytes[2] -= 7;
                bytes.resize(usize::from(bytes[2]), 0);
                bytes.resize(65535, 0);
            }
            self.0.submit(urb);
        }
        fn cancel(&mut self, id: UrbId) {
            self.0.cancel(id);
        }
        fn wait(&mut self, until: Option<Instant>) -> Result<Option<UrbCompletion>, HostPortError> {
            self.0.wait(until)
        }
        fn now(&self) -> Instant {
            self.0.now
        }
    }
    let mut port = Fickle(device(UsbSpeed::High));
    let error = run(&mut DescriptorEnumerator::new(Instant::ZERO, IdSource::new(), UsbSpeed::High), &mut port)
        .unwrap()
        .unwrap_err();
    assert_eq!(error.to_string(), "configuration descriptor 0: descriptor byte 2: wTotalLength stays what it was");
}

#[test]
fn a_device_that_names_a_thousand_strings_is_asked_for_a_few() {
    let mut all = sample(UsbSpeed::High);
    let configuration = &mut all.configurations[0];
    for index in 0..200u8 {
        configuration.bytes.extend([9, kind::INTERFACE, index, 1, 0, 0xff, 0, 0, index]);
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
