//! `--via pty`: what a program does with a terminal reaches the serial port, in the order in which it did it.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use farbus::attach::{AttachRequest, AttachmentEnd};
use farbus::client::{ClientConfig, DeviceTarget, ImporterClient};
use farbus::share::Share;
use farbus_gadgets::emulated::{
    ControlTransferAnswer, EmulatedDevice, FunctionContext, GadgetFunction, InTransferAnswer, OutTransferAnswer,
};
use farbus_model::definition::InterfaceDefinition;
use farbus_model::{DeviceDefinition, EpAddr, Payload, SetupPacket, TransferDirection, UsbSpeed};
use rustix::termios::{ControlModes, OptionalActions, tcgetattr, tcsetattr};

const PATIENCE: Duration = Duration::from_secs(60);
const SET_LINE_CODING: u8 = 0x20;
const SET_CONTROL_LINE_STATE: u8 = 0x22;
/// CDC 1.2 §5.2.3: header, call management, abstract control, union.
const FUNCTIONAL: [u8; 19] = [5, 0x24, 0, 0x20, 1, 5, 0x24, 1, 0, 1, 4, 0x24, 2, 2, 5, 0x24, 6, 0, 1];

/// What reached a device.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Arrival {
    Bytes(Vec<u8>),
    /// The rate, and the stop bits as CDC numbers them.
    Coding(u32, u8),
    /// Data terminal ready, and request to send.
    Lines(bool),
}

#[derive(Debug, Default)]
struct DeviceState {
    arrivals: Vec<Arrival>,
    takes_nothing: bool,
    to_send: Vec<u8>,
}

/// A serial device that notes what reaches it.
#[derive(Clone, Debug, Default)]
struct RecordingDevice(Arc<Mutex<DeviceState>>, farbus_model::Instant);

impl RecordingDevice {
    fn shared(&self) -> EmulatedDevice<Self> {
        let control = InterfaceDefinition::new(2, 2, 1).class_descriptors(&FUNCTIONAL).interrupt(
            2,
            TransferDirection::In,
            16,
            Duration::from_millis(32),
        );
        let definition = DeviceDefinition::new(0x0525, 0xa4a7)
            .speed(UsbSpeed::High)
            .class(2, 0, 0)
            .names("farbus", "recording", "0")
            .interface(control)
            .interface(InterfaceDefinition::new(10, 0, 0).bulk_pair(1));
        EmulatedDevice::new(&definition, self.clone())
    }

    fn arrivals(&self) -> Vec<Arrival> {
        self.0.lock().unwrap().arrivals.clone()
    }

    fn bytes(&self) -> usize {
        let bytes = |arrival: &Arrival| if let Arrival::Bytes(bytes) = arrival { bytes.len() } else { 0 };
        self.0.lock().unwrap().arrivals.iter().map(bytes).sum()
    }

    fn has(&self, arrival: &Arrival) -> bool {
        self.0.lock().unwrap().arrivals.contains(arrival)
    }

    fn note(&self, arrival: Arrival) {
        let arrivals = &mut self.0.lock().unwrap().arrivals;
        match (arrivals.last_mut(), arrival) {
            (Some(Arrival::Bytes(last)), Arrival::Bytes(bytes)) => last.extend(bytes),
            (_, arrival) => arrivals.push(arrival),
        }
    }
}

impl GadgetFunction for RecordingDevice {
    fn send(&mut self, endpoint: EpAddr, room: usize, _: &mut FunctionContext<'_>) -> InTransferAnswer {
        let to_send = &mut self.0.lock().unwrap().to_send;
        let count = room.min(to_send.len());
        match endpoint.number() == 1 && count > 0 {
            true => InTransferAnswer::Data(to_send.drain(..count).collect::<Vec<u8>>().into()),
            false => InTransferAnswer::Nak,
        }
    }

    fn receive(&mut self, _: EpAddr, payload: &Payload, _: &mut FunctionContext<'_>) -> OutTransferAnswer {
        if self.0.lock().unwrap().takes_nothing {
            return OutTransferAnswer::Nak;
        }
        self.note(Arrival::Bytes(payload.runs().flatten().copied().collect()));
        OutTransferAnswer::Accepted
    }

    fn control(&mut self, setup: SetupPacket, data: &[u8], _: &mut FunctionContext<'_>) -> ControlTransferAnswer {
        match setup.request {
            SET_LINE_CODING => {
                self.note(Arrival::Coding(u32::from_le_bytes([data[0], data[1], data[2], data[3]]), data[4]));
            }
            SET_CONTROL_LINE_STATE => self.note(Arrival::Lines(setup.value == 3)),
            _ => return ControlTransferAnswer::Stall,
        }
        ControlTransferAnswer::Ack
    }

    fn reset(&mut self, _: &mut FunctionContext<'_>) {}

    /// Its state changes from outside: its endpoints are asked again.
    fn poll_timeout(&self) -> Option<farbus_model::Instant> {
        Some(self.1)
    }

    fn handle_timeout(&mut self, cx: &mut FunctionContext<'_>) {
        self.1 = cx.now + Duration::from_millis(5);
    }
}

fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < until, "{what}");
        // waits: between two looks for an event
        thread::sleep(Duration::from_millis(2));
    }
}

fn open(link: &PathBuf) -> File {
    OpenOptions::new().read(true).write(true).open(link).unwrap()
}

fn set(program: &File, rate: u32, has_two_stop_bits: bool) {
    let mut settings = tcgetattr(program).unwrap();
    settings.set_speed(rate).unwrap();
    settings.control_modes.set(ControlModes::CSTOPB, has_two_stop_bits);
    tcsetattr(program, OptionalActions::Drain, &settings).unwrap();
}

/// Attaches `device` at a terminal, and runs `claim` with the path.
fn with_terminal(device: &RecordingDevice, claim: impl FnOnce(&PathBuf)) {
    let link = std::env::temp_dir().join(format!("farbus-pty-{}-{:?}", std::process::id(), thread::current().id()));
    let share = Share::default();
    share.add("port", device.shared()).unwrap();
    let address = share.listen("127.0.0.1:0".parse().unwrap()).unwrap();
    let target = DeviceTarget { address: address.to_string(), device: "port".into() };
    let request = AttachRequest { at: Some(link.clone()), ..AttachRequest::new(target, "pty".parse().unwrap()) };
    let client = ImporterClient::new(ClientConfig::default());
    let front_end = request.via.front_end(&request, client.system());
    let mut prepared = front_end.prepare(&client, &request).unwrap();
    let attachment = front_end.take(&client, &request, &mut prepared).unwrap();
    assert_eq!(attachment.status().at, link.display().to_string());
    let handle = attachment.handle();
    let thread = thread::spawn(move || attachment.run());
    claim(&link);
    handle.end();
    assert!(matches!(thread.join().unwrap(), AttachmentEnd::Requested));
    assert!(std::fs::symlink_metadata(&link).is_err(), "the link goes with the attachment");
}

#[test]
fn changes_by_a_program_reach_the_port_in_order_with_its_bytes() {
    let device = RecordingDevice::default();
    with_terminal(&device, |link| {
        let mut program = open(link);
        // As most programs: open, set, write.
        set(&program, 9600, false);
        program.write_all(b"slow").unwrap();
        wait_until("the first bytes arrive", || device.bytes() == 4);
        set(&program, 250_000, true);
        program.write_all(b"fast").unwrap();
        wait_until("the next bytes arrive", || device.bytes() == 8);
        // A program that only reads.
        set(&program, 4800, false);
        wait_until("a change without bytes arrives", || device.has(&Arrival::Coding(4800, 0)));
        drop(program);
        wait_until("the last close drops DTR", || device.has(&Arrival::Lines(false)));
        drop(open(link));
        let raised = |arrival: &&Arrival| **arrival == Arrival::Lines(true);
        wait_until("a program that comes again raises it", || device.arrivals().iter().filter(raised).count() == 2);
    });
    let mut arrivals = device.arrivals();
    // Of changes without bytes between them the last counts.
    arrivals.retain(|arrival| !matches!(arrival, Arrival::Lines(_)));
    let before = |bytes: &[u8]| {
        let at = arrivals.iter().position(|arrival| *arrival == Arrival::Bytes(bytes.to_vec()));
        arrivals[at.unwrap_or_else(|| panic!("{arrivals:?}")) - 1].clone()
    };
    assert_eq!(before(b"slow"), Arrival::Coding(9600, 0), "{arrivals:?}");
    assert_eq!(before(b"fast"), Arrival::Coding(250_000, 2), "{arrivals:?}");
}

#[test]
fn bytes_that_a_device_has_not_taken_leave_before_a_change() {
    let device = RecordingDevice::default();
    with_terminal(&device, |link| {
        device.0.lock().unwrap().takes_nothing = true;
        let program = open(link);
        let settings = tcgetattr(&program).unwrap();
        rustix::io::ioctl_fionbio(&program, true).unwrap();
        let (mut written, mut last) = (0, Instant::now());
        // Its own buffers, the port's and the terminal's are full: nothing goes for a while.
        while last.elapsed() < Duration::from_millis(200) {
            match (&program).write(&[b'a'; 4096]) {
                Ok(count) => (written, last) = (written + count, Instant::now()),
                // waits: between two tries
                Err(_) => thread::sleep(Duration::from_millis(1)),
            }
        }
        assert!(written < 1 << 20, "{written} bytes were taken for a device that takes none");
        let mut faster = settings.clone();
        faster.set_speed(1_000_000).unwrap();
        tcsetattr(&program, OptionalActions::Now, &faster).unwrap();
        // waits: the change is noticed in that time; else what is written next may count as written before
        thread::sleep(Duration::from_millis(300));
        device.0.lock().unwrap().takes_nothing = false;
        rustix::io::ioctl_fionbio(&program, false).unwrap();
        (&program).write_all(b"bb").unwrap();
        wait_until("all arrives", || device.bytes() == written + 2);
        let arrivals = device.arrivals();
        let [.., Arrival::Coding(1_000_000, 0), Arrival::Bytes(last)] = &arrivals[..] else {
            panic!("{:?}", arrivals.iter().filter(|arrival| !matches!(arrival, Arrival::Bytes(_))).collect::<Vec<_>>())
        };
        assert_eq!(last, b"bb");
    });
}

#[test]
fn next_program_does_not_read_what_the_last_one_left_and_the_end_hangs_up() {
    let device = RecordingDevice::default();
    let mut at_end = None;
    with_terminal(&device, |link| {
        let mut first = open(link);
        device.0.lock().unwrap().to_send = vec![b'x'; 1 << 20];
        first.read_exact(&mut [0; 100]).unwrap();
        wait_until("what a program does not read is held at the device", || {
            let before = device.0.lock().unwrap().to_send.len();
            // waits: nothing more is fetched meanwhile
            thread::sleep(Duration::from_millis(100));
            device.0.lock().unwrap().to_send.len() == before
        });
        assert!(device.0.lock().unwrap().to_send.len() > 1 << 19, "a bounded part is held here");
        drop(first);
        wait_until("it has left", || device.has(&Arrival::Lines(false)));
        device.0.lock().unwrap().to_send = b"new".to_vec();
        let mut next = open(link);
        let mut read = [0; 3];
        next.read_exact(&mut read).unwrap();
        assert_eq!(&read, b"new");
        at_end = Some(next);
    });
    assert_eq!(at_end.unwrap().read(&mut [0; 9]).unwrap_or(0), 0);
}
