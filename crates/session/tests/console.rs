//! The console of a device: which bulk endpoints are shown, what of their transfers, and that an observer who reads
//! slowly costs nobody anything.

#[path = "../../wire/tests/fuzzing/mod.rs"]
mod fuzzing;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use farbus_gadgets::keyboard::KeyboardGadget;
use farbus_gadgets::serial::SerialGadget;
use farbus_gadgets::zero::{SourcePattern, SourceSink};
use farbus_model::definition::InterfaceDefinition;
use farbus_model::descriptor::{ConfigurationSelection, DescriptorSet, UsbConfiguration};
use farbus_model::limits::{CONSOLE_BYTES_MAX, CONSOLE_EVENT_BYTES_MAX, CONSOLE_EVENTS_MAX, OBSERVERS_MAX};
use farbus_model::{
    BufferPool, CompletionQueue, Device, DeviceDefinition, EpAddr, Instant, Payload, SetupPacket, TransferDirection,
    Urb, UrbId, UrbStatus, UsbSpeed,
};
use farbus_session::ExportRegistry;
use farbus_session::console::{ConsoleQueue, DeviceSerialPort, described, ports};
use farbus_session::native::console::{ConsoleDescription, PortKind};
use farbus_session::registry::ObservableDevice;
use fuzzing::{Input, fuzz};

/// ACM's functional descriptors: call management over interface 1, union of interfaces 0 and 1.
const MANAGED: [u8; 5] = [5, 0x24, 1, 0, 1];
const UNITED: [u8; 5] = [5, 0x24, 6, 0, 1];

fn control(class: [u8; 3], functional: &[u8]) -> InterfaceDefinition {
    let [class, subclass, protocol] = class;
    let interface = InterfaceDefinition::new(class, subclass, protocol).class_descriptors(functional);
    interface.interrupt(2, TransferDirection::In, 16, Duration::from_millis(32))
}

fn cdc(class: [u8; 3], functional: &[u8]) -> DescriptorSet {
    let data = InterfaceDefinition::new(10, 0, 0).bulk_pair(1);
    DeviceDefinition::new(0x0525, 0xa4a7).interface(control(class, functional)).interface(data).build()
}

fn vendor(ids: (u16, u16), interfaces: u8) -> DescriptorSet {
    let mut definition = DeviceDefinition::new(ids.0, ids.1);
    for number in 1..=interfaces {
        definition = definition.interface(InterfaceDefinition::vendor().bulk_pair(number));
    }
    definition.build()
}

fn one(class: [u8; 3]) -> DescriptorSet {
    let [class, subclass, protocol] = class;
    DeviceDefinition::new(0x0403, 0x6001)
        .interface(InterfaceDefinition::new(class, subclass, protocol).bulk_pair(1))
        .build()
}

#[test]
fn ports_are_those_of_serial_adapters_and_no_other_bulk_endpoint() {
    const ACM: PortKind = PortKind::CDC_ACM;
    const FTDI: PortKind = PortKind::FTDI;
    type Expected = &'static [(u8, PortKind)];
    let table: &[(&str, DescriptorSet, Expected)] = &[
        ("CDC-ACM with a union", cdc([2, 2, 1], &UNITED), &[(0x81, ACM)]),
        ("CDC-ACM with call management alone", cdc([2, 2, 0], &MANAGED), &[(0x81, ACM)]),
        ("CDC-ACM whose union names another interface", cdc([2, 2, 1], &[5, 0x24, 6, 0, 7]), &[]),
        ("CDC-ACM without either", cdc([2, 2, 1], &[]), &[]),
        ("RNDIS", cdc([2, 2, 255], &UNITED), &[]),
        ("ECM", cdc([2, 6, 0], &UNITED), &[]),
        ("NCM", cdc([2, 13, 0], &UNITED), &[]),
        ("FT232R", vendor((0x0403, 0x6001), 1), &[(0x81, FTDI)]),
        ("FT2232", vendor((0x0403, 0x6010), 2), &[(0x81, FTDI), (0x82, FTDI)]),
        ("FT4232", vendor((0x0403, 0x6011), 4), &[(0x81, FTDI), (0x82, FTDI), (0x83, FTDI), (0x84, FTDI)]),
        ("another device of FTDI", vendor((0x0403, 0x6eef), 1), &[]),
        ("CP2102", vendor((0x10c4, 0xea60), 1), &[(0x81, PortKind::CP210X)]),
        ("CH340", vendor((0x1a86, 0x7523), 1), &[(0x81, PortKind::CH34X)]),
        ("PL2303", vendor((0x067b, 0x2303), 1), &[(0x81, PortKind::PL2303)]),
        ("a vendor's device", vendor((0x1d50, 0x606f), 2), &[]),
        ("a disk with the ids of an FT232R", one([8, 6, 0x50]), &[]),
        ("a printer with them", one([7, 1, 2]), &[]),
        ("a smart card reader with them", one([11, 0, 0]), &[]),
    ];
    for (name, descriptors, expected) in table {
        let found: Vec<_> = ports(descriptors)
            .iter()
            .map(|DeviceSerialPort { port, .. }| (port.endpoint.as_byte(), port.kind))
            .collect();
        assert_eq!(found, *expected, "{name}");
        assert_eq!(described(&ports(descriptors)).map(|it| it.ports.len()).unwrap_or(0), expected.len(), "{name}");
    }
    let output_alone =
        DeviceDefinition::new(0x0403, 0x6001).interface(InterfaceDefinition::vendor().bulk(1, TransferDirection::Out));
    assert_eq!(ports(&output_alone.build()), []);
    let many = ports(&vendor((0x0403, 0x6011), 15));
    assert_eq!(described(&many).unwrap().ports.len(), 15);
}

#[test]
fn an_endpoint_is_a_port_only_while_its_configuration_and_setting_are_selected() {
    let mut all = cdc([2, 2, 1], &UNITED);
    // The same endpoint in another configuration belongs to a disk.
    let mut disk = one([8, 6, 0x50]).configurations[0].bytes.clone();
    disk[5] = 2;
    all.configurations.push(UsbConfiguration::parse(&disk).unwrap());
    let [port] = ports(&all)[..] else { panic!("one") };
    let at = EpAddr::from_byte(0x81);
    let mut selection = ConfigurationSelection::default();
    assert!(!port.is_at(at, &selection), "nothing is selected");
    for (configuration, is_port) in [(1, true), (2, false), (1, true)] {
        assert!(selection.select_configuration(&all, configuration));
        assert_eq!(port.is_at(at, &selection), is_port, "configuration {configuration}");
        assert!(!port.is_at(EpAddr::from_byte(0x01), &selection), "what its user sends to it");
    }
}

/// An FTDI port with packets of this size; `None`: it is none.
fn ftdi(packet_bytes: u16) -> Option<DeviceSerialPort> {
    let built = vendor((0x0403, 0x6001), 1);
    let mut bytes = built.configurations[0].bytes.clone();
    let at = bytes.windows(3).position(|window| window == [7, 5, 0x81]).unwrap();
    bytes[at + 4..at + 6].copy_from_slice(&packet_bytes.to_le_bytes());
    let descriptors = DescriptorSet { configurations: vec![UsbConfiguration::parse(&bytes).unwrap()], ..built };
    ports(&descriptors).first().copied()
}

#[test]
fn each_packet_of_an_ftdi_chip_loses_its_two_status_bytes_whatever_its_length() {
    for packet in [0, 1, 2] {
        assert_eq!(ftdi(packet), None, "packets of {packet} bytes hold nothing but their state");
    }
    for packet in [3_usize, 8, 64, 512, 1024] {
        let port = ftdi(packet as u16).unwrap();
        for length in 0..=3 * packet + 3 {
            let moved: Vec<u8> = (0..length).map(|at| (at % 251) as u8).collect();
            let expected: Vec<u8> = (0..length).filter(|at| at % packet >= 2).map(|at| moved[at]).collect();
            let sent: Vec<&[u8]> = port.sent(&moved).collect();
            assert_eq!(sent.concat(), expected, "{length} bytes in packets of {packet}");
            assert!(sent.iter().all(|sent| !sent.is_empty()));
        }
    }
    let plain = ports(&cdc([2, 2, 1], &UNITED))[0];
    assert_eq!(plain.sent(b"login: ").collect::<Vec<_>>(), [b"login: "]);
    assert_eq!(plain.sent(b"").count(), 0);
}

#[test]
fn fuzz_console_ports() {
    fuzz(env!("CARGO_MANIFEST_DIR"), "fuzz_console_ports", |input: &mut Input<'_>| {
        let classes = [[2, 2, 1], [2, 2, 255], [2, 6, 0], [255, 255, 255], [8, 6, 80]];
        let mut all = cdc(input.pick(&classes), &[MANAGED, UNITED].concat());
        all.device.vendor = input.pick(&[0x0403, 0x10c4, 0x1a86, 0x067b, 0]);
        all.device.product = input.pick(&[0x6001, 0xea60, 0x7523, 0x2303, 0]);
        let bytes = &mut all.configurations[0].bytes;
        for _ in 0..input.below(4) {
            let at = 9 + input.below(bytes.len() as u32 - 9) as usize;
            bytes[at] = input.byte();
        }
        let Ok(parsed) = UsbConfiguration::parse(&all.configurations[0].bytes) else { return };
        all.configurations = vec![parsed];
        let found = ports(&all);
        if let Some(description) = described(&found) {
            assert_eq!(ConsoleDescription::decode(&description.encode()), Ok(description));
        }
        let moved: Vec<u8> = (0..input.below(600)).map(|_| input.byte()).collect();
        let mut queue = ConsoleQueue::default();
        for port in &found {
            let sent: usize = port.sent(&moved).map(<[u8]>::len).sum();
            assert!(sent <= moved.len());
            port.sent(&moved).for_each(|sent| queue.add(Instant::ZERO, port.port.endpoint, sent));
        }
        let kept: usize = std::iter::from_fn(|| queue.take()).map(|output| output.data.len()).sum();
        assert!(kept <= found.len() * moved.len());
    });
}

#[test]
fn a_slow_observer_loses_the_oldest_bytes_and_is_told_how_many() {
    let (a, b) = (EpAddr::from_byte(0x81), EpAddr::from_byte(0x82));
    let text: Vec<u8> = (0..3 * CONSOLE_BYTES_MAX + 7).map(|at| (at % 253) as u8).collect();
    for piece in [1, 63, 4096, 100_000, text.len()] {
        let mut queue = ConsoleQueue::default();
        text.chunks(piece).for_each(|sent| queue.add(Instant::ZERO, a, sent));
        let taken: Vec<_> = std::iter::from_fn(|| queue.take()).collect();
        let lost: usize = taken.iter().map(|output| output.lost as usize).sum();
        let kept = taken.iter().flat_map(|output| output.data.contiguous().into_owned()).collect::<Vec<u8>>();
        assert_eq!((lost, kept.len()), (text.len() - CONSOLE_BYTES_MAX, CONSOLE_BYTES_MAX), "pieces of {piece}");
        assert_eq!(kept, text[lost..], "the latest is kept");
        assert_eq!(taken[0].lost as usize, lost, "it is told before what follows the gap");
        assert!(taken.iter().all(|output| output.data.len() <= CONSOLE_EVENT_BYTES_MAX));
    }
    // Two ports that send a byte in turn: the number of pieces is limited, too.
    let mut queue = ConsoleQueue::default();
    for _ in 0..CONSOLE_EVENTS_MAX {
        queue.add(Instant::ZERO, a, b"a");
        queue.add(Instant::ZERO, b, b"b");
    }
    let taken: Vec<_> = std::iter::from_fn(|| queue.take()).collect();
    assert_eq!((taken.len(), taken[0].lost as usize), (CONSOLE_EVENTS_MAX, CONSOLE_EVENTS_MAX));
    assert!(queue.is_empty());
}

/// A shared device with its user.
struct Used {
    registry: ExportRegistry,
    bus_id: String,
    device: Box<dyn Device>,
    done: CompletionQueue,
    next: u64,
}

impl Used {
    fn new(device: Box<dyn Device>) -> Self {
        let mut registry = ExportRegistry::default();
        let bus_id = registry.add("device", device).unwrap().bus_id.clone();
        let claimed = registry.claim(&bus_id, "user", Instant::ZERO).map_err(|status| status.to_string()).unwrap();
        let done = CompletionQueue::new(BufferPool::new(1 << 20));
        let mut used = Self { registry, bus_id, device: claimed.device, done, next: 0 };
        let set_configuration = SetupPacket::from_bytes([0, 9, 1, 0, 0, 0, 0, 0]);
        used.ask(|id| Urb::control(id, set_configuration, Payload::Empty));
        used
    }

    /// What the transfer moved.
    fn ask(&mut self, urb: impl FnOnce(UrbId) -> Urb) -> Vec<u8> {
        self.next += 1;
        let now = Instant::ZERO + Duration::from_millis(self.next);
        self.device.submit(now, urb(UrbId(self.next)).launch(), &mut self.done);
        let done = self.done.pop().expect("it is done at once");
        assert_eq!(done.status, UrbStatus::Ok);
        done.payload.into_vec()
    }

    fn write(&mut self, text: &[u8]) {
        self.ask(|id| Urb::data_out(id, EpAddr::from_byte(1), text.to_vec().into()));
    }

    fn read(&mut self) -> Vec<u8> {
        self.ask(|id| Urb::data_in(id, EpAddr::from_byte(0x81), 512))
    }

    fn console(&self) -> ObservableDevice {
        self.registry.console(&self.bus_id).expect("it has a serial port")
    }
}

#[test]
fn an_observer_of_the_console_gets_what_the_user_reads_and_another_observer_gets_none_of_it() {
    let mut used = Used::new(Box::new(SerialGadget::device(UsbSpeed::High)));
    let rung = Arc::new(AtomicUsize::new(0));
    let ring = Arc::clone(&rung);
    let console = used.console();
    assert_eq!(ConsoleDescription::decode(&console.description).unwrap().ports[0].kind, PortKind::CDC_ACM);
    let observer = console.audience.join_console(move || _ = ring.fetch_add(1, Ordering::Relaxed)).unwrap();
    let other = used.registry.observe(&used.bus_id).unwrap().audience.join(|| panic!("nothing is for it")).unwrap();
    used.write(b"secret");
    assert!(observer.take().is_none(), "what the user sends is not shown");
    assert_eq!(used.read(), b"secret");
    used.write(b"login: ");
    assert_eq!(used.read(), b"login: ");
    let seen = observer.take().unwrap();
    assert_eq!((&*seen.data.contiguous(), seen.lost), (b"secretlogin: ".as_slice(), 0));
    assert_eq!((observer.take(), rung.load(Ordering::Relaxed)), (None, 1), "woken once");
    assert!(other.take().is_none());
    // And an interrupt is not for the console.
    let line_state = SetupPacket::from_bytes([0x21, 0x22, 3, 0, 0, 0, 0, 0]);
    drop(other);
    let other = used.registry.observe(&used.bus_id).unwrap().audience.join(|| ()).unwrap();
    used.ask(|id| Urb::control(id, line_state, Payload::Empty));
    assert_eq!(used.ask(|id| Urb::data_in(id, EpAddr::from_byte(0x82), 16)).len(), 10);
    assert!(observer.take().is_none() && other.take().is_some());
}

#[test]
fn consoles_count_for_the_limit_of_observers_and_end_with_their_device() {
    let mut used = Used::new(Box::new(SerialGadget::device(UsbSpeed::High)));
    let audience = used.console().audience;
    let observers: Vec<_> = (0..OBSERVERS_MAX).map(|_| audience.join_console(|| ()).unwrap()).collect();
    assert!(audience.join_console(|| ()).is_none() && audience.join(|| ()).is_none());
    assert!(observers.iter().all(|observer| !observer.is_over()));
    used.registry.withdraw(&used.bus_id);
    assert!(observers.iter().all(|observer| observer.is_over()));
    drop(observers);
    assert!(audience.is_empty());
}

#[test]
fn a_device_without_a_serial_port_has_no_console_and_one_with_nothing_else_only_that() {
    let entries = |device: Box<dyn Device>| {
        let mut registry = ExportRegistry::default();
        let bus_id = registry.add("device", device).unwrap().bus_id.clone();
        let entry = registry.entries().next().map(|entry| (entry.has_observable, entry.has_console)).unwrap();
        assert_eq!((registry.observe(&bus_id).is_some(), registry.console(&bus_id).is_some()), entry);
        entry
    };
    assert_eq!(entries(Box::new(KeyboardGadget::device())), (true, false));
    assert_eq!(entries(Box::new(SourceSink::device(UsbSpeed::High, SourcePattern::default(), false))), (true, false));
    assert_eq!(entries(Box::new(SerialGadget::device(UsbSpeed::High))), (true, true));
}
