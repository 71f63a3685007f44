//! Serial ports: bytes both ways, line changes in order with them, and each chip's own requests.

#[path = "../../wire/tests/fuzzing/mod.rs"]
mod fuzzing;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use farbus_gadgets::emulated::{
    ControlTransferAnswer, EmulatedDevice, FunctionContext, GadgetFunction, InTransferAnswer, OutTransferAnswer,
};
use farbus_gadgets::serial::SerialGadget;
use farbus_host::driver::IdSource;
use farbus_host::limits::{SERIAL_READ_BYTES, SERIAL_READS, SERIAL_UNREAD_BYTES_MAX};
use farbus_host::serial::port::first_port;
use farbus_host::serial::{FlowControl, LineChange, LineCoding, ModemState, Parity, SerialError, SerialPort, StopBits};
use farbus_model::definition::InterfaceDefinition;
use farbus_model::{
    BufferPool, CompletionQueue, ConfigurationSelection, DescriptorSet, Device, DeviceDefinition, EpAddr, Instant,
    Payload, SetupPacket, TransferDirection, UrbId, UrbInFlight, UrbStatus, UsbSpeed,
};
use fuzzing::{Input, fuzz};

/// A device and the port that is driven of it, in made-up time.
struct PortBench<D: Device> {
    device: D,
    port: SerialPort,
    done: CompletionQueue,
    now: Instant,
}

impl<D: Device> PortBench<D> {
    fn new(device: D, version: u16) -> Self {
        let mut descriptors = device.descriptors().clone();
        descriptors.device.device_bcd = version;
        let port = SerialPort::new(IdSource::new(), &descriptors, first_port(&descriptors).unwrap());
        Self { device, port, done: CompletionQueue::new(BufferPool::new(0)), now: Instant::ZERO }
    }

    /// Lets both do what they can, and what is due in so much time.
    fn run(&mut self, time: Duration) {
        let until = self.now + time;
        loop {
            self.port.pump(self.now, &mut self.device, &mut self.done);
            let due = self.device.poll_timeout().into_iter().chain(self.port.poll_timeout()).min();
            let Some(due) = due.filter(|due| *due <= until) else { break };
            self.now = self.now.max(due);
            self.device.handle_timeout(self.now, &mut self.done);
            self.port.handle_timeout(self.now);
        }
        self.now = until;
    }

    fn read_all(&mut self) -> Vec<u8> {
        std::iter::from_fn(|| self.port.read()).flat_map(Payload::into_vec).collect()
    }
}

/// The device's requests end with it.
impl<D: Device> Drop for PortBench<D> {
    fn drop(&mut self) {
        self.device.reset(self.now, &mut self.done);
    }
}

const MOMENT: Duration = Duration::from_millis(50);

/// Everything that a host did to a port, in order.
type Deeds = Arc<Mutex<Vec<String>>>;

/// A function that notes what is done to it, and answers as a chip of this kind.
struct NotingFunction {
    deeds: Deeds,
    answers: fn(SetupPacket) -> ControlTransferAnswer,
    /// What it sends next from its data endpoint.
    line: Vec<u8>,
}

impl GadgetFunction for NotingFunction {
    fn send(&mut self, endpoint: EpAddr, room: usize, _: &mut FunctionContext<'_>) -> InTransferAnswer {
        if endpoint.number() != 1 || self.line.is_empty() {
            return InTransferAnswer::Nak;
        }
        let rest = self.line.split_off(self.line.len().min(room));
        InTransferAnswer::Data(std::mem::replace(&mut self.line, rest).into())
    }

    fn receive(&mut self, _: EpAddr, payload: &Payload, _: &mut FunctionContext<'_>) -> OutTransferAnswer {
        let text = String::from_utf8_lossy(&payload.contiguous()).into_owned();
        self.deeds.lock().unwrap().push(format!("data {text}"));
        OutTransferAnswer::Accepted
    }

    fn control(&mut self, setup: SetupPacket, data: &[u8], _: &mut FunctionContext<'_>) -> ControlTransferAnswer {
        let SetupPacket { request_type, request, value, index, .. } = setup;
        let data: String = data.iter().map(|byte| format!(" {byte:02x}")).collect();
        let deed = format!("{request_type:02x} {request:02x} {value:04x} {index:04x}{data}");
        self.deeds.lock().unwrap().push(deed);
        (self.answers)(setup)
    }
}

/// A port of the chip with these ids and this version, and what is done to it.
fn chip(
    ids: (u16, u16),
    version: u16,
    answers: fn(SetupPacket) -> ControlTransferAnswer,
    line: &[u8],
) -> (PortBench<EmulatedDevice<NotingFunction>>, Deeds) {
    let interface =
        InterfaceDefinition::vendor().bulk_pair(1).interrupt(2, TransferDirection::In, 16, Duration::from_millis(1));
    let definition = DeviceDefinition::new(ids.0, ids.1).speed(UsbSpeed::Full).interface(interface);
    let deeds = Deeds::default();
    let function = NotingFunction { deeds: Arc::clone(&deeds), answers, line: line.to_vec() };
    (PortBench::new(EmulatedDevice::new(&definition, function), version), deeds)
}

fn accept(setup: SetupPacket) -> ControlTransferAnswer {
    match setup.direction() {
        TransferDirection::In => ControlTransferAnswer::Data(vec![0x31; setup.length.into()].into()),
        TransferDirection::Out => ControlTransferAnswer::Ack,
    }
}

fn coding(rate: u32) -> LineChange {
    LineChange::Coding(LineCoding { rate, ..LineCoding::default() })
}

/// What a chip is asked for by the usual changes, with bytes between them.
fn usual_deeds(ids: (u16, u16), version: u16) -> Vec<String> {
    let (mut bench, deeds) = chip(ids, version, accept, &[]);
    bench.run(MOMENT);
    deeds.lock().unwrap().push("up".into());
    bench.port.change(coding(115_200));
    bench.port.change(LineChange::ControlLines { dtr: true, rts: false });
    assert_eq!(bench.port.write(b"one"), 3);
    bench.port.change(LineChange::Break(true));
    bench.port.change(LineChange::Break(false));
    bench.port.change(LineChange::Flow(FlowControl::Hardware));
    bench.port.change(LineChange::Coding(LineCoding {
        rate: 12_345,
        data_bits: 7,
        parity: Parity::Even,
        stop_bits: StopBits::Two,
    }));
    bench.port.write(b"two");
    bench.run(MOMENT);
    assert!(bench.port.is_drained(), "{:?}", bench.port);
    bench.port.close(bench.now);
    bench.run(MOMENT);
    assert!(bench.port.is_closed() && bench.port.failure().is_none(), "{:?}", bench.port);
    let deeds = deeds.lock().unwrap();
    deeds.clone()
}

#[test]
fn ftdi_chips_are_asked_as_their_manual_says() {
    let expected = [
        "40 00 0000 0000",
        "40 09 0010 0000",
        "40 02 0000 0000",
        "up",
        "40 03 001a 0000",
        "40 04 0008 0000",
        "40 01 0301 0000",
        "data one",
        "40 04 4008 0000",
        "40 04 0008 0000",
        "40 02 0000 0100",
        "40 03 00f3 0000",
        "40 04 1207 0000",
        "data two",
        "40 01 0300 0000",
    ];
    assert_eq!(usual_deeds((0x0403, 0x6001), 0x0600), expected);
    // A chip of several ports is told which, and has a faster clock.
    let deeds = usual_deeds((0x0403, 0x6011), 0x0800);
    assert_eq!(deeds[..4], ["40 00 0000 0001", "40 09 0010 0001", "40 02 0000 0001", "up"]);
    assert_eq!(deeds[4..6], ["40 03 c068 0201", "40 04 0008 0001"]);
}

#[test]
fn cp210x_chips_are_asked_as_their_manual_says() {
    let expected = [
        "41 00 0001 0000",
        "41 13 0000 0000 00 00 00 00 00 00 00 00 80 00 00 00 80 00 00 00",
        "up",
        "41 1e 0000 0000 00 c2 01 00",
        "41 03 0800 0000",
        "41 07 0301 0000",
        "data one",
        "41 05 0001 0000",
        "41 05 0000 0000",
        "41 13 0000 0000 09 00 00 00 80 00 00 00 80 00 00 00 80 00 00 00",
        "41 1e 0000 0000 39 30 00 00",
        "41 03 0722 0000",
        "data two",
        "41 07 0300 0000",
        "41 00 0000 0000",
    ];
    assert_eq!(usual_deeds((0x10c4, 0xea60), 0x0100), expected);
}

#[test]
fn ch34x_chips_are_asked_as_linux_asks_them() {
    // Its answers are 0x31 everywhere: version 0x31, and so in its register of breaks.
    let expected = [
        "c0 5f 0000 0000",
        "40 a1 0000 0000",
        "c0 95 1805 0000",
        "up",
        "40 9a 1312 cc83",
        "40 9a 2518 00c3",
        "40 a4 ffdf 0000",
        "data one",
        "40 9a 1805 8330",
        "40 9a 1805 c331",
        "40 9a 1312 c382",
        "40 9a 2518 00de",
        "data two",
        "40 a4 ffff 0000",
    ];
    let deeds = usual_deeds((0x1a86, 0x7523), 0x0264);
    assert_eq!(deeds, expected);
}

#[test]
fn pl2303_chips_are_asked_as_linux_asks_them() {
    let deeds = usual_deeds((0x067b, 0x2303), 0x0300);
    let at = deeds.iter().position(|deed| deed == "up").unwrap();
    assert_eq!(deeds[0], "c0 01 8080 0000");
    assert_eq!(deeds[at - 3..at], ["40 01 0000 0001", "40 01 0001 0000", "40 01 0002 0044"]);
    let expected = [
        "21 20 0000 0000 00 c2 01 00 00 00 08",
        "21 22 0001 0000",
        "data one",
        "21 23 ffff 0000",
        "21 23 0000 0000",
        "40 01 0000 0061",
        "21 20 0000 0000 e6 07 00 80 02 02 07",
        "data two",
        "21 22 0000 0000",
    ];
    assert_eq!(deeds[at + 1..], expected);
    // An HXN refuses the register by which the others are known, and has registers of its own.
    let refuse = |setup: SetupPacket| {
        if setup.request == 1 { ControlTransferAnswer::Stall } else { accept(setup) }
    };
    let (mut bench, deeds) = chip((0x067b, 0x23a3), 0x0100, refuse, &[]);
    bench.port.change(LineChange::Flow(FlowControl::Hardware));
    bench.run(MOMENT);
    assert_eq!(*deeds.lock().unwrap(), ["c0 01 8080 0000", "40 80 000a 00fa"]);
    assert!(bench.port.failure().is_none());
}

#[test]
fn states_in_front_of_ftdi_packets_are_no_data() {
    // Two full packets and a short one: CTS and DCD in the first, an overrun in the last.
    let mut line = vec![0x90, 0];
    line.extend([b'a'; 62]);
    line.extend([0x90, 0]);
    line.extend([b'b'; 62]);
    line.extend([0x10, 0x02, b'c']);
    let (mut bench, _) = chip((0x0403, 0x6001), 0x0600, accept, &line);
    bench.run(MOMENT);
    let read = bench.read_all();
    assert_eq!((read.len(), read[61], read[62], read[124]), (125, b'a', b'b', b'c'));
    assert_eq!(bench.port.modem(), ModemState { cts: true, ..ModemState::default() });
    let faults = bench.port.take_faults();
    assert!(faults.overrun && !faults.parity && !bench.port.take_faults().any(), "{faults:?}");
}

#[test]
fn a_chip_that_has_to_be_asked_for_its_lines_is_asked_while_somebody_watches() {
    let (mut bench, deeds) = chip((0x10c4, 0xea60), 0x0100, accept, &[]);
    bench.run(MOMENT);
    let questions = |deeds: &Deeds| deeds.lock().unwrap().iter().filter(|deed| deed.starts_with("c1 08")).count();
    assert_eq!(questions(&deeds), 0);
    bench.port.watch_modem(bench.now, true);
    bench.run(Duration::from_millis(950));
    assert_eq!(questions(&deeds), 10);
    assert_eq!(bench.port.modem(), ModemState { cts: true, dsr: true, ..ModemState::default() });
    bench.port.watch_modem(bench.now, false);
    bench.run(Duration::from_secs(1));
    assert_eq!(questions(&deeds), 10);
}

#[test]
fn a_loopback_returns_a_mebibyte_and_its_lines() {
    let mut bench = PortBench::new(SerialGadget::device(UsbSpeed::High), 0);
    let sent: Vec<u8> = (0..1_u32 << 20).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    bench.port.change(coding(3_000_000));
    bench.port.change(LineChange::ControlLines { dtr: true, rts: true });
    let (mut at, mut read) = (0, Vec::new());
    for _ in 0..10_000 {
        at += bench.port.write(&sent[at..]);
        bench.run(Duration::from_millis(1));
        read.extend(bench.read_all());
        if read.len() == sent.len() {
            break;
        }
    }
    assert!(read == sent, "{} of {} came back", read.len(), sent.len());
    bench.run(MOMENT);
    assert_eq!(bench.port.modem(), ModemState { cts: true, dsr: true, dcd: true, ri: false });
    bench.port.change(LineChange::ControlLines { dtr: false, rts: true });
    bench.run(MOMENT);
    assert_eq!(bench.port.modem(), ModemState { cts: true, ..ModemState::default() });
    assert_eq!(bench.port.lost_bytes(), 0);
}

#[test]
fn nothing_is_lost_while_nobody_reads_and_memory_is_bounded() {
    let mut bench = PortBench::new(SerialGadget::device(UsbSpeed::High), 0);
    let (mut sent, piece) = (0, [7; 10_000]);
    for _ in 0..100 {
        sent += bench.port.write(&piece);
        bench.run(Duration::from_millis(1));
    }
    assert_eq!(bench.port.room(), 0, "a writer is stopped");
    assert!(bench.port.unread_bytes() <= SERIAL_UNREAD_BYTES_MAX, "{}", bench.port.unread_bytes());
    assert!(bench.port.unread_bytes() + SERIAL_READS * SERIAL_READ_BYTES as usize >= SERIAL_UNREAD_BYTES_MAX / 2);
    let mut read = 0;
    while read < sent {
        read += bench.read_all().len();
        bench.run(Duration::from_millis(1));
    }
    assert_eq!((read, bench.port.lost_bytes()), (sent, 0));
}

#[test]
fn what_is_no_serial_port_and_what_refuses_is_said() {
    let disk = DeviceDefinition::new(1, 2).interface(InterfaceDefinition::vendor().bulk_pair(1)).build();
    assert_eq!(first_port(&disk), Err(SerialError::NoPort));
    let refuse = |_: SetupPacket| ControlTransferAnswer::Stall;
    let (mut bench, _) = chip((0x10c4, 0xea60), 0x0100, refuse, &[]);
    bench.run(MOMENT);
    let failure = bench.port.failure().expect("it refuses to be enabled").to_string();
    assert_eq!(failure, "it refuses the request 0x00: Stall");
    assert!(bench.port.is_closed());
}

#[test]
fn a_reset_reaches_a_board_that_takes_no_more_bytes() {
    let mut bench = PortBench::new(SerialGadget::device(UsbSpeed::High), 0);
    let piece = [7; 10_000];
    for _ in 0..100 {
        bench.port.write(&piece);
        bench.run(Duration::from_millis(1));
    }
    assert!(!bench.port.is_drained(), "nobody reads, so the loop is full");
    let number = bench.port.change(LineChange::ControlLines { dtr: true, rts: true });
    bench.run(Duration::from_millis(400));
    assert!(bench.port.changes_done() < number, "bytes were written before");
    bench.run(Duration::from_millis(200));
    assert_eq!(bench.port.changes_done(), number);
}

#[test]
fn a_port_at_rest_goes_on_in_another_process_without_a_lost_byte() {
    let mut bench = PortBench::new(SerialGadget::device(UsbSpeed::High), 0);
    let coding = LineCoding { rate: 921_600, data_bits: 7, parity: Parity::Odd, stop_bits: StopBits::Two };
    bench.port.change(LineChange::Coding(coding));
    bench.port.change(LineChange::ControlLines { dtr: true, rts: true });
    bench.port.write(b"before ");
    bench.run(MOMENT);
    bench.port.rest(bench.now);
    assert!(!bench.port.is_at_rest(), "reads are under way");
    bench.run(MOMENT);
    assert!(bench.port.is_at_rest(), "{:?}", bench.port);
    let (state, modem, unread) = (bench.port.state(), bench.port.modem(), bench.read_all());
    let descriptors = bench.device.descriptors().clone();
    let at = first_port(&descriptors).unwrap();
    let restore = |state: &[u8]| SerialPort::restored(IdSource::new(), &descriptors, at, state, &unread);
    bench.port = restore(&state).unwrap();
    assert_eq!((bench.port.coding(), bench.port.modem()), (coding, modem));
    bench.port.write(b"after");
    bench.run(MOMENT);
    assert_eq!(bench.read_all(), b"before after");
    let mut wrong = state;
    wrong[4] = 9;
    assert!(restore(&wrong).is_none() && restore(&state[1..]).is_none());
}

/// A device that answers whatever it likes, whenever it likes.
struct Stranger {
    descriptors: DescriptorSet,
    selection: ConfigurationSelection,
    held: Vec<UrbInFlight>,
}

impl Device for Stranger {
    fn descriptors(&self) -> &DescriptorSet {
        &self.descriptors
    }

    fn speed(&self) -> UsbSpeed {
        UsbSpeed::High
    }

    fn selection(&self) -> &ConfigurationSelection {
        &self.selection
    }

    fn submit(&mut self, _: Instant, mut urb: UrbInFlight, _: &mut CompletionQueue) {
        urb.own_payload();
        self.held.push(urb);
    }

    fn cancel(&mut self, _: Instant, id: UrbId, done: &mut CompletionQueue) {
        if let Some(at) = self.held.iter().position(|urb| urb.id == id) {
            done.push(self.held.remove(at).fail(UrbStatus::Cancelled));
        }
    }

    fn reset(&mut self, _: Instant, done: &mut CompletionQueue) {
        self.held.drain(..).for_each(|urb| done.push(urb.fail(UrbStatus::Shutdown)));
    }
}

impl Stranger {
    fn answer(&mut self, input: &mut Input<'_>, done: &mut CompletionQueue) {
        if self.held.is_empty() {
            return;
        }
        let urb = self.held.remove(input.below(self.held.len() as u32) as usize);
        let (is_in, length) = (urb.direction == TransferDirection::In, urb.length);
        let status = match input.below(8) {
            0 => input.pick(&[
                UrbStatus::Stall,
                UrbStatus::Protocol,
                UrbStatus::Overflow,
                UrbStatus::Other,
                UrbStatus::Gone,
                UrbStatus::Cancelled,
            ]),
            _ => UrbStatus::Ok,
        };
        // As much as there is room for, which is what a wire's gate lets through.
        let count = input.below(length.min(600) + 1);
        let payload = if is_in { Payload::from(input.bytes(count as usize)) } else { Payload::Empty };
        let actual = if is_in {
            payload.len() as u32
        } else if status == UrbStatus::Ok {
            length
        } else {
            count
        };
        done.push(urb.done(status, actual, payload));
    }
}

#[test]
fn fuzz_serial_port() {
    const IDS: [(u16, u16); 4] = [(0x0403, 0x6001), (0x10c4, 0xea60), (0x1a86, 0x7523), (0x067b, 0x2303)];
    fuzz(env!("CARGO_MANIFEST_DIR"), "fuzz_serial_port", |input: &mut Input<'_>| {
        let interface = InterfaceDefinition::vendor().bulk_pair(1).interrupt(
            2,
            TransferDirection::In,
            16,
            Duration::from_millis(1),
        );
        let (vendor, product) = input.pick(&IDS);
        let mut descriptors = DeviceDefinition::new(vendor, product).interface(interface).build();
        descriptors.device.device_bcd = input.pick(&[0x0200, 0x0400, 0x0700, 0x1000]);
        let device = Stranger { descriptors, selection: ConfigurationSelection::default(), held: Vec::new() };
        let mut bench = PortBench::new(device, 0x0600);
        let mut written = 0;
        while !input.is_empty() {
            let now = bench.now;
            match input.below(12) {
                0 => {
                    let bytes = vec![7; input.below(9000) as usize];
                    written += bench.port.write(&bytes);
                }
                1 => drop(bench.port.read()),
                2 => drop(bench.port.change(coding(input.word()))),
                3 => {
                    let (dtr, rts) = (input.once_in(2), input.once_in(2));
                    bench.port.change(LineChange::ControlLines { dtr, rts });
                }
                4 => drop(bench.port.change(LineChange::Break(input.once_in(2)))),
                5 => {
                    let (received, unsent) = (input.once_in(2), input.once_in(2));
                    bench.port.change(LineChange::Purge { received, unsent });
                }
                6 => bench.port.watch_modem(now, input.once_in(2)),
                7 if input.once_in(4) => bench.port.rest(now),
                7 => bench.port.resume(),
                8 => bench.run(Duration::from_millis(input.below(700).into())),
                9 if input.once_in(20) => bench.port.close(now),
                _ => bench.device.answer(input, &mut bench.done),
            }
            bench.port.pump(bench.now, &mut bench.device, &mut bench.done);
            let most = SERIAL_UNREAD_BYTES_MAX + SERIAL_READS * SERIAL_READ_BYTES as usize;
            assert!(bench.port.unread_bytes() <= most, "memory is bounded");
            assert!(bench.port.lost_bytes() <= written as u64);
            assert!(bench.device.held.len() <= 10, "so are requests: {}", bench.device.held.len());
        }
        bench.port.close(bench.now);
        // What the chip is to be told last has its time, a request after the other.
        bench.run(Duration::from_secs(60));
        assert!(bench.port.is_closed(), "nothing is left with the device: {:?}", bench.port);
    });
}
