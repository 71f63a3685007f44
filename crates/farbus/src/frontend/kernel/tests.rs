//! Devices that are attached to a kernel and swapped for a twin and back while the kernel uses them (requirement N12).
//! The kernel is made up: it has the other end of the relay's socket, reads the descriptors as a host does, and asks.

use std::fs::File;
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant as WallInstant};

use farbus_control::failure::{FailureKind, FailureReport};
use farbus_gadgets::serial::SerialGadget;
use farbus_gadgets::zero::{SourcePattern, SourceSink};
use farbus_host::{DescriptorEnumerator, HostPort as _, IdSource, run};
use farbus_io_linux::sys::vhci::VhciPort;
use farbus_io_net::link::{DeviceWaitSource, Link, wait};
use farbus_io_net::local::passed_files::PassedFiles;
use farbus_io_net::saving::SavedAttachment;
use farbus_model::{
    BufferPool, CompletionQueue, Device, EpAddr, IsoPacket, Payload, SessionLimits, SetupPacket, TransferDirection,
    Urb, UrbCompletion, UrbId, UrbStatus, UsbSpeed,
};
use farbus_session::importer::HandshakeAnswer;
use farbus_session::{DeviceRecord, ImportHandshake};

use super::attachment::{KernelAttachment, restore_device};
use super::device_relay::DeviceRelay;
use super::relay_loop::KERNEL;
use crate::broker::SystemAccess;
use crate::exporter::share::Share;
use crate::frontend::remote_usb::{FarDevice, PlainDevice};
use crate::frontend::usb_swap::{SwapUsb, UsbSwap};
use crate::frontend::{Attachment, AttachmentEnd, AttachmentHandle, StopSignal};
use crate::importer::client::{ClientConfig, DeviceTarget, ImporterClient};
use crate::importer::port::usbip::{HoldingLink, RemotePort};

const PATIENCE: Duration = Duration::from_secs(60);
const GRACE: Duration = Duration::from_secs(60);
/// The kind of this file's snapshots, and a port that no kernel has.
const KIND: u16 = 1;
const NO_PORT: VhciPort = VhciPort(9999);
/// 115,200 bits a second.
const CODING: [u8; 7] = [0, 0xc2, 1, 0, 0, 0, 8];

/// A kernel that has the other end of a relay's socket.
struct Kernel {
    device: FarDevice,
    done: CompletionQueue,
    answers: Vec<UrbCompletion>,
    next: u64,
}

impl Kernel {
    /// Finds a device at the socket, and reads its descriptors.
    fn of(socket: OwnedFd, speed: UsbSpeed) -> Self {
        let record = DeviceRecord {
            path: "/made-up".into(),
            bus_id: "1-1".into(),
            bus: 1,
            device: 2,
            speed,
            vendor: 0,
            product: 0,
            device_bcd: 0,
            class: [0; 3],
            configuration: 0,
            configurations: 1,
            interfaces: Vec::new(),
            interface_count: 0,
        };
        let mut handshake = ImportHandshake::import(SessionLimits::DEFAULT, "1-1");
        let length: usize = handshake.poll_transmit().iter().map(|run| run.len()).sum();
        handshake.handle_transmitted(length);
        let mut reply = [0x01, 0x11, 0, 3, 0, 0, 0, 0].to_vec();
        record.encode(false, &mut reply);
        handshake.receive_space()[..reply.len()].copy_from_slice(&reply);
        let greeting = handshake.handle_received(reply.len()).unwrap();
        let Some(HandshakeAnswer::Imported(record)) = greeting else { panic!("imported, not {greeting:?}") };
        let link = HoldingLink::new(Link::over_local(socket, "a relay"));
        let mut port = RemotePort::new(link, handshake.into_device(record)).unwrap();
        let mut driver = DescriptorEnumerator::new(port.now(), IdSource::new(), speed);
        let descriptors = run(&mut driver, &mut port).unwrap().unwrap();
        let (link, mut device) = port.into_parts();
        device.set_descriptors(descriptors);
        link.set_receive_timeout(None).unwrap();
        let device = FarDevice::Plain(Box::new(PlainDevice::new(link, device).unwrap()));
        // Above the requests by which the descriptors were read.
        Self { device, done: CompletionQueue::new(BufferPool::new(0)), answers: Vec::new(), next: 1 << 16 }
    }

    fn submit(&mut self, urb: impl FnOnce(UrbId) -> Urb) -> UrbId {
        self.next += 1;
        let (id, now) = (UrbId(self.next), self.device.clock().now());
        Device::submit(&mut self.device, now, urb(id).launch(), &mut self.done);
        Device::end_turn(&mut self.device, now, &mut self.done);
        id
    }

    fn ask(&mut self) -> UrbId {
        self.submit(|id| Urb::data_in(id, EpAddr::from_byte(0x81), 64))
    }

    fn send(&mut self, bytes: &[u8]) -> UrbId {
        self.submit(|id| Urb::data_out(id, EpAddr::from_byte(0x01), bytes.to_vec().into()))
    }

    fn cancel(&mut self, id: UrbId) {
        let now = self.device.clock().now();
        Device::cancel(&mut self.device, now, id, &mut self.done);
        Device::end_turn(&mut self.device, now, &mut self.done);
    }

    fn turn(&mut self) {
        let readiness = Device::readiness(&self.device).and_then(DeviceWaitSource::interest).unwrap();
        wait(&mut [readiness], Some(Duration::from_millis(1))).unwrap();
        let now = self.device.clock().now();
        Device::handle_ready(&mut self.device, now, &mut self.done);
        while let Some(answer) = self.done.pop() {
            self.answers.push(answer);
        }
    }

    fn is_answered(&self, id: UrbId) -> bool {
        self.answers.iter().any(|answer| answer.id == id)
    }

    /// Waits for the answer to a request.
    fn answer(&mut self, id: UrbId) -> &UrbCompletion {
        let until = WallInstant::now() + PATIENCE;
        while !self.is_answered(id) {
            assert!(WallInstant::now() < until, "{id:?} is not answered");
            self.turn();
        }
        self.answers.iter().find(|answer| answer.id == id).unwrap()
    }

    /// A control request that has to succeed; returns what came.
    fn control(&mut self, setup: SetupPacket, data: &[u8]) -> Vec<u8> {
        let payload = if data.is_empty() { Payload::Empty } else { data.to_vec().into() };
        let id = self.submit(|id| Urb::control(id, setup, payload));
        let answer = self.answer(id);
        assert_eq!(answer.status, UrbStatus::Ok, "{setup:?}");
        answer.payload.contiguous().into_owned()
    }

    fn set_coding(&mut self, coding: [u8; 7]) {
        self.control(SetupPacket { request_type: 0x21, request: 0x20, value: 0, index: 0, length: 7 }, &coding);
    }

    fn coding(&mut self) -> Vec<u8> {
        self.control(SetupPacket { request_type: 0xa1, request: 0x21, value: 0, index: 0, length: 7 }, &[])
    }

    /// Waits until `is_so`, and goes on meanwhile.
    fn until(&mut self, is_so: impl Fn() -> bool) {
        let until = WallInstant::now() + PATIENCE;
        while !is_so() {
            assert!(WallInstant::now() < until, "it does not come to that");
            self.turn();
        }
    }
}

/// An exporter, and a device of it that is attached to a made-up kernel.
struct Bench {
    share: Share,
    client: ImporterClient,
    target: DeviceTarget,
    kernel: Kernel,
    handle: AttachmentHandle,
    thread: JoinHandle<AttachmentEnd>,
}

fn two_ports() -> (Share, String) {
    let share = Share::default();
    share.add("first", SerialGadget::device(UsbSpeed::High)).unwrap();
    share.add("second", SerialGadget::device(UsbSpeed::High)).unwrap();
    let address = share.listen("127.0.0.1:0".parse().unwrap()).unwrap();
    (share, address.to_string())
}

fn attach(client: &ImporterClient, target: &DeviceTarget) -> (OwnedFd, AttachmentHandle, JoinHandle<AttachmentEnd>) {
    let (ours, theirs) = Link::pair(KERNEL).unwrap();
    let device = FarDevice::open(client, target, GRACE).unwrap();
    let stop = StopSignal::new().unwrap();
    let swap = UsbSwap::new(client, target, stop.shared_wake());
    let relay = DeviceRelay::new(ours, SwapUsb::new(device, swap), client.config().prefetch);
    let attachment = Box::new(KernelAttachment::new(relay, target, (SystemAccess::Own, NO_PORT), KIND, stop));
    let handle = attachment.handle();
    (theirs, handle, thread::spawn(move || attachment.run()))
}

impl Bench {
    /// `first` of two serial ports, configured, in a session with this grace or, with none, over plain USB/IP.
    fn new(grace: Duration) -> Self {
        let (share, address) = two_ports();
        Self::of(share, &address, "first", grace)
    }

    fn of(share: Share, address: &str, device: &str, grace: Duration) -> Self {
        let client = ImporterClient::new(ClientConfig { grace: Some(grace), ..ClientConfig::default() });
        let target = DeviceTarget { address: address.to_owned(), device: device.to_owned() };
        let (socket, handle, thread) = attach(&client, &target);
        let mut kernel = Kernel::of(socket, UsbSpeed::High);
        kernel.control(SetupPacket::set_configuration(1), &[]);
        Self { share, client, target, kernel, handle, thread }
    }

    fn at(&self, device: &str) -> String {
        DeviceTarget { device: device.to_owned(), ..self.target.clone() }.to_string()
    }

    fn swap(&self) -> UsbSwap {
        self.handle.usb_swap().expect("it can be exchanged").clone()
    }

    /// Swaps for the device at `to`, as the command does; the kernel goes on meanwhile.
    fn swap_to(&mut self, to: &str) -> Result<(), FailureReport> {
        let files = PassedFiles::passed(vec![File::open("/dev/null").unwrap().into()]);
        let swap = self.swap();
        // In the place of a broker, which a process with its rights does not need.
        swap.begin(&self.target.to_string(), to, None, &files)?;
        self.kernel.until(|| !swap.is_running());
        swap.status().unwrap().failure.map_or(Ok(()), Err)
    }

    /// Swaps for a device of this machine.
    fn swap_here(&mut self, device: impl Device + 'static, at: &str) -> Result<(), String> {
        let handle = self.swap().exchange_here(Box::new(device), at);
        self.kernel.until(|| handle.is_finished());
        handle.join().unwrap()
    }

    fn state(&self, device: &str) -> String {
        let status = self.share.status();
        let found = status.iter().find(|found| found.name == device);
        found.map(|found| found.state.clone()).unwrap_or_default()
    }

    /// Waits until nobody has the device.
    fn wait_until_free(&mut self, device: &str) {
        let until = WallInstant::now() + PATIENCE;
        while self.state(device) != "available" {
            assert!(WallInstant::now() < until, "{device} is {}", self.state(device));
            self.kernel.turn();
        }
    }

    fn end(mut self) -> AttachmentEnd {
        self.handle.end();
        let thread = &self.thread;
        self.kernel.until(|| thread.is_finished());
        self.thread.join().unwrap()
    }
}

/// What was saved, without the decision that its process waits for.
fn taken(saved: &mut SavedAttachment) -> SavedAttachment {
    let (snapshot, descriptors) = (std::mem::take(&mut saved.snapshot), std::mem::take(&mut saved.descriptors));
    SavedAttachment { snapshot, descriptors, medium: saved.medium.take() }
}

/// The port is swapped for another one of its host and back, as often as there are rounds, while the kernel waits for
/// data; afterwards nothing is left in use.
fn swaps_and_returns(grace: Duration) {
    let mut bench = Bench::new(grace);
    bench.kernel.set_coding(CODING);
    let (first, second) = (bench.at("first"), bench.at("second"));
    let mut waiting = bench.kernel.ask();
    for to in [&second, &first, &second] {
        bench.swap_to(to).unwrap();
        let (own, text) = (*to == first, if *to == first { "first" } else { "second" });
        assert_eq!(bench.handle.replaced_by(), (!own).then(|| to.clone()));
        assert_eq!(bench.state(text), "in use", "the status tells where it is");
        bench.wait_until_free(if own { "second" } else { "first" });
        assert!(!bench.kernel.is_answered(waiting));
        let sent = bench.kernel.send(b"hello");
        assert_eq!(bench.kernel.answer(sent).status, UrbStatus::Ok);
        let answer = bench.kernel.answer(waiting);
        assert_eq!((answer.status, &*answer.payload.contiguous()), (UrbStatus::Ok, b"hello".as_slice()));
        assert_eq!(bench.kernel.coding(), CODING, "it was told to the other one");
        waiting = bench.kernel.ask();
    }
    // A request that went from one device to the other is unlinked as any other is.
    bench.kernel.cancel(waiting);
    assert_eq!(bench.kernel.answer(waiting).status, UrbStatus::Cancelled);
    let waiting = bench.kernel.ask();
    assert!(!bench.handle.can_save(), "a replacement would continue with the first one");
    assert!(bench.handle.migrate(farbus_io_net::trust::Fingerprint::from_bytes([7; 32])).is_err());
    bench.handle.end();
    assert_ne!(bench.kernel.answer(waiting).status, UrbStatus::Ok, "its answer is that it ended");
    ["first", "second"].iter().for_each(|device| bench.wait_until_free(device));
    assert!(matches!(bench.end(), AttachmentEnd::Requested));
}

#[test]
fn kernel_notices_nothing_of_a_twin_in_a_session_and_of_its_return() {
    swaps_and_returns(GRACE);
}

#[test]
fn kernel_notices_nothing_of_a_twin_over_plain_usb_ip_and_of_its_return() {
    swaps_and_returns(Duration::ZERO);
}

#[test]
fn device_of_a_third_host_takes_the_place_and_gives_it_back() {
    for grace in [GRACE, Duration::ZERO] {
        let mut bench = Bench::new(grace);
        let (third, address) = two_ports();
        bench.kernel.set_coding(CODING);
        let waiting = bench.kernel.ask();
        let (first, there) = (bench.at("first"), format!("{address}/second"));
        bench.swap_to(&there).unwrap();
        assert_eq!(bench.handle.replaced_by(), Some(there));
        assert!(third.status().iter().any(|found| found.name == "second" && found.state == "in use"));
        bench.wait_until_free("first");
        let sent = bench.kernel.send(b"third");
        assert_eq!(bench.kernel.answer(sent).status, UrbStatus::Ok);
        assert_eq!(&*bench.kernel.answer(waiting).payload.contiguous(), b"third");
        assert_eq!(bench.kernel.coding(), CODING);
        bench.swap_to(&first).unwrap();
        assert_eq!((bench.handle.replaced_by(), bench.state("first")), (None, "in use".to_owned()));
        assert_eq!(bench.kernel.coding(), CODING);
        assert!(matches!(bench.end(), AttachmentEnd::Requested));
    }
}

#[test]
fn device_of_this_machine_takes_the_place_is_reset_with_the_port_and_ends_with_its_attachment() {
    for grace in [GRACE, Duration::ZERO] {
        let mut bench = Bench::new(grace);
        bench.kernel.set_coding(CODING);
        let waiting = bench.kernel.ask();
        bench.swap_here(SerialGadget::device(UsbSpeed::High), "usb:1-3").unwrap();
        assert_eq!(bench.handle.replaced_by().as_deref(), Some("usb:1-3"));
        assert!(bench.handle.session().is_none(), "it is in no session");
        bench.wait_until_free("first");
        let sent = bench.kernel.send(b"here");
        assert_eq!(bench.kernel.answer(sent).status, UrbStatus::Ok);
        assert_eq!(&*bench.kernel.answer(waiting).payload.contiguous(), b"here");
        assert_eq!(bench.kernel.coding(), CODING);
        // A kernel that resets the port reads eight bytes of the device's descriptor.
        let waiting = bench.kernel.ask();
        bench.kernel.control(SetupPacket::get_descriptor(1, 0, 0, 8), &[]);
        assert_eq!(bench.kernel.answer(waiting).status, UrbStatus::Shutdown);
        assert_ne!(bench.kernel.coding(), CODING, "the twin was reset");
        let first = bench.at("first");
        bench.swap_to(&first).unwrap();
        assert_ne!(bench.kernel.coding(), CODING, "what was told before the reset is forgotten");
        bench.swap_here(SerialGadget::device(UsbSpeed::High), "usb:1-3").unwrap();
        assert!(matches!(bench.end(), AttachmentEnd::Requested));
    }
}

#[test]
fn other_device_is_refused_and_given_back_and_the_kernel_keeps_its_own() {
    let mut bench = Bench::new(GRACE);
    bench.share.add("slow", SerialGadget::device(UsbSpeed::Full)).unwrap();
    bench.share.add("zero", SourceSink::device(UsbSpeed::High, SourcePattern::Zeros, false)).unwrap();
    let cases = [
        (bench.at("slow"), FailureKind::Refused, "one runs at high speed, the other at full speed"),
        (bench.at("zero"), FailureKind::Refused, "the other 0525:a4a0"),
        (bench.at("nothing"), FailureKind::Gone, "first stays what it was"),
        (bench.at("first"), FailureKind::Refused, "it is that one already"),
        ("block:/dev/null".to_owned(), FailureKind::Refused, "it is attached as a USB device"),
    ];
    for (to, attribute, part) in cases {
        let failure = bench.swap_to(&to).unwrap_err();
        assert!(failure.attribute == attribute && failure.message.contains(part), "{to}: {failure:?}");
        assert_eq!((bench.handle.replaced_by(), bench.state("first")), (None, "in use".to_owned()));
    }
    ["slow", "zero"].iter().for_each(|device| bench.wait_until_free(device));
    let (waiting, sent) = (bench.kernel.ask(), bench.kernel.send(b"still here"));
    assert_eq!(bench.kernel.answer(sent).status, UrbStatus::Ok);
    assert_eq!(&*bench.kernel.answer(waiting).payload.contiguous(), b"still here");
    assert!(matches!(bench.end(), AttachmentEnd::Requested));
}

#[test]
fn twin_that_ends_unplugs_the_device_from_the_kernel() {
    for grace in [GRACE, Duration::ZERO] {
        let mut bench = Bench::new(grace);
        let second = bench.at("second");
        bench.swap_to(&second).unwrap();
        let waiting = bench.kernel.ask();
        bench.share.remove("second").unwrap();
        assert_ne!(bench.kernel.answer(waiting).status, UrbStatus::Ok);
        let thread = &bench.thread;
        bench.kernel.until(|| thread.is_finished());
        let ended = bench.thread.join().unwrap();
        assert!(matches!(ended, AttachmentEnd::Over(_) | AttachmentEnd::Lost(_)), "{ended:?}");
    }
}

#[test]
fn attachment_that_ends_while_its_device_is_exchanged_gives_both_back() {
    let mut bench = Bench::new(GRACE);
    // The line takes no more: what is sent is waited for before the switch.
    let full = bench.kernel.send(&[1; 16 << 10]);
    assert_eq!(bench.kernel.answer(full).status, UrbStatus::Ok);
    let stuck = bench.kernel.send(b"stuck");
    let (swap, second) = (bench.swap(), bench.at("second"));
    swap.begin("first", &second, None, &PassedFiles::default()).unwrap();
    let until = WallInstant::now() + PATIENCE;
    while bench.state("second") != "in use" {
        assert!(WallInstant::now() < until, "the twin is not opened");
        bench.kernel.turn();
    }
    assert!(!bench.kernel.is_answered(stuck));
    bench.handle.end();
    assert_ne!(bench.kernel.answer(stuck).status, UrbStatus::Ok);
    ["first", "second"].iter().for_each(|device| bench.wait_until_free(device));
    bench.kernel.until(|| !swap.is_running());
    assert!(swap.status().unwrap().failure.is_some(), "and the swap has failed");
    assert!(matches!(bench.end(), AttachmentEnd::Requested));
}

#[test]
fn attachment_ends_soon_although_a_twin_is_waited_for_that_never_answers() {
    let bench = Bench::new(GRACE);
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let to = format!("{}/serial", silent.local_addr().unwrap());
    let files = PassedFiles::passed(vec![File::open("/dev/null").unwrap().into()]);
    bench.swap().begin("first", &to, None, &files).unwrap();
    // It waits for that host now, for 10 s.
    let _waits = silent.accept().unwrap();
    let begun = WallInstant::now();
    assert!(matches!(bench.end(), AttachmentEnd::Requested));
    assert!(begun.elapsed() < Duration::from_secs(8), "{:?}", begun.elapsed());
}

#[test]
fn replacement_process_tells_a_twin_what_the_kernel_told_before() {
    let mut bench = Bench::new(GRACE);
    bench.kernel.set_coding(CODING);
    let (first, second) = (bench.at("first"), bench.at("second"));
    bench.swap_to(&second).unwrap();
    bench.swap_to(&first).unwrap();
    // The kernel waits for data across the restart.
    let waiting = bench.kernel.ask();
    let mut reply = bench.handle.save().unwrap().wait(PATIENCE).expect("it comes to rest");
    let saved = taken(&mut reply.saved);
    let restored = restore_device(&bench.client, &bench.target, &[NO_PORT.0], saved).unwrap();
    reply.go();
    assert!(matches!(bench.thread.join().unwrap(), AttachmentEnd::HandedOver));
    let attachment = restored.go_on(&SystemAccess::Own).unwrap();
    bench.handle = attachment.handle();
    bench.thread = thread::spawn(move || attachment.run());
    bench.swap_to(&second).unwrap();
    assert_eq!(bench.kernel.coding(), CODING, "the twin was told what the first process knew");
    let sent = bench.kernel.send(b"still");
    assert_eq!(bench.kernel.answer(sent).status, UrbStatus::Ok);
    assert_eq!(&*bench.kernel.answer(waiting).payload.contiguous(), b"still", "and was asked again");
    assert!(matches!(bench.end(), AttachmentEnd::Requested));
}

#[test]
fn isochronous_stream_goes_on_from_device_to_device() {
    for grace in [GRACE, Duration::ZERO] {
        let share = Share::default();
        let zero = || SourceSink::device(UsbSpeed::High, SourcePattern::Mod63, false);
        ["first", "second"].iter().for_each(|name| drop(share.add(name, zero()).unwrap()));
        let address = share.listen("127.0.0.1:0".parse().unwrap()).unwrap().to_string();
        let mut bench = Bench::of(share, &address, "first", grace);
        let all = Device::descriptors(&bench.kernel.device).configurations[0].settings.clone();
        let is_stream = |endpoint: &&farbus_model::EndpointDescriptor| {
            endpoint.kind == farbus_model::TransferType::Isochronous
                && endpoint.address.direction() == TransferDirection::In
        };
        let (setting, endpoint) = all
            .iter()
            .find_map(|setting| Some((setting, *setting.endpoints.iter().find(is_stream)?)))
            .expect("it has a stream");
        if setting.alternate != 0 {
            bench.kernel.control(SetupPacket::set_interface(setting.interface, setting.alternate), &[]);
        }
        let bytes = u32::from(endpoint.packet_bytes_max);
        let ask = |kernel: &mut Kernel| {
            kernel.submit(|id| {
                let mut urb = Urb::data_in(id, endpoint.address, 8 * bytes);
                urb.iso =
                    (0..8).map(|at| IsoPacket { offset: at * bytes, length: bytes, ..IsoPacket::default() }).collect();
                urb.flags.iso_asap = true;
                urb
            })
        };
        let mut urb_ids: Vec<UrbId> = (0..4).map(|_| ask(&mut bench.kernel)).collect();
        let (first, second) = (bench.at("first"), bench.at("second"));
        for to in [Some(second), None, Some(first)] {
            let answered = urb_ids.len();
            match to {
                Some(to) => bench.swap_to(&to).unwrap(),
                None => bench.swap_here(zero(), "usb:1-3").unwrap(),
            }
            // As a driver does: a new request for each one that is answered.
            for at in answered - 4..answered + 16 {
                let answer = bench.kernel.answer(urb_ids[at]);
                assert_eq!(answer.status, UrbStatus::Ok);
                assert_eq!(answer.iso.len(), 8);
                urb_ids.push(ask(&mut bench.kernel));
            }
            urb_ids.drain(..urb_ids.len() - 4);
        }
        assert_eq!(bench.handle.replaced_by(), None);
        // A busy machine is late for many packets, and not for all.
        let until = WallInstant::now() + PATIENCE;
        let mut last = *urb_ids.last().unwrap();
        while !bench.kernel.answer(last).iso.iter().any(|packet| packet.actual > 0) {
            assert!(WallInstant::now() < until, "it brings no data");
            last = ask(&mut bench.kernel);
        }
        assert!(matches!(bench.end(), AttachmentEnd::Requested));
    }
}
