//! A real device's requests against a kernel that the test simulates: races, splitting, the order of a reset.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use farbus_io_net::link::{DeviceWaitSource, wait};
use farbus_model::descriptor::{DeviceDescriptor, UsbConfiguration};
use farbus_model::urb::take_lost;
use farbus_model::{
    BufferPool, CompletionQueue, DescriptorSet, Device, EpAddr, Instant, IsoPacket, Payload, SetupPacket, Urb,
    UrbCompletion, UrbFlags, UrbId, UrbStatus, UsbSpeed,
};

use super::device::UsbDevice;
use super::error::UsbOpenError;
use super::inventory::{ActiveInterface, PluggedDevice};
use super::kernel::{UsbfsBlockingCalls, UsbfsKernel};
use crate::sys::lease::{UsbfsBuffer, UsbfsBufferPool};
use crate::sys::usbfs::{ISO_PACKETS_MAX, PacketResult, ReapOutcome, ReapedUrb, UsbfsPayload, UsbfsTransfer};

const NOW: Instant = Instant::ZERO;
const BULK_IN: EpAddr = EpAddr::from_byte(0x81);
const BULK_OUT: EpAddr = EpAddr::from_byte(0x02);
const ISO_IN: EpAddr = EpAddr::from_byte(0x83);
const ISO_OUT: EpAddr = EpAddr::from_byte(0x04);

/// The state of the simulated kernel, and what it was asked.
#[derive(Default)]
struct World {
    /// Submitted and unfinished transfers, oldest first.
    held: Vec<Held>,
    ended: VecDeque<(ReapedUrb, Vec<PacketResult>)>,
    calls: Vec<String>,
    is_unplugged: bool,
    /// How many more transfers it takes before it has no memory.
    room: Option<usize>,
    /// Whether it ignores cancellations.
    is_stuck: bool,
    /// A call that fails, and its status.
    fails: Option<(&'static str, UrbStatus)>,
    busy_interface: Option<u8>,
    /// A call that the device does not answer until this is changed.
    stuck_call: Option<&'static str>,
    /// Whether a call is under way: the real kernel holds its lock then, and every other call waits.
    is_in_call: bool,
    /// How much memory it lends, if it does.
    lends: Option<usize>,
    leases: UsbfsBufferPool,
}

struct Held {
    slot: usize,
    endpoint: u8,
    flags: UrbFlags,
    /// OUT bytes, or the room that was given.
    bytes: Vec<u8>,
    is_in: bool,
    packets: Vec<u32>,
    stream: u16,
    lease: Option<UsbfsBuffer>,
}

#[derive(Clone, Default)]
struct Played(Arc<Mutex<World>>);

impl Played {
    fn world(&self) -> MutexGuard<'_, World> {
        self.0.lock().unwrap()
    }

    /// Ends the `at`th transfer.
    fn end(&self, at: usize, status: UrbStatus, data: &[u8]) {
        let mut world = self.world();
        let held = world.held.remove(at);
        let ended = held.end(status, data, Vec::new());
        world.ended.push_back(ended);
    }

    /// Ends the first isochronous transfer: packet number n moves `actual(n)` bytes, all of value n.
    fn end_iso(&self, actual: impl Fn(usize) -> PacketResult) {
        let mut world = self.world();
        let held = world.held.remove(0);
        let results: Vec<_> = (0..held.packets.len()).map(actual).collect();
        let mut data = Vec::new();
        for (at, (length, result)) in held.packets.iter().zip(&results).enumerate() {
            let mut packet = vec![0xee; *length as usize];
            packet[..result.actual as usize].fill(at as u8);
            data.extend(packet);
        }
        let ended = held.end(UrbStatus::Ok, &data, results);
        world.ended.push_back(ended);
    }

    fn calls(&self) -> Vec<String> {
        std::mem::take(&mut self.world().calls)
    }

    fn call(&self, name: String) -> Result<(), UrbStatus> {
        let mut world = self.world();
        world.calls.push(name.clone());
        world.is_in_call = true;
        while world.stuck_call == Some(&*name) {
            drop(world);
            std::thread::sleep(Duration::from_millis(1));
            world = self.world();
        }
        world.is_in_call = false;
        world.fails.filter(|(call, _)| *call == name).map_or(Ok(()), |(_, status)| Err(status))
    }

    /// For calls of the engine's own thread, which would wait for a call's end.
    fn world_unlocked(&self) -> MutexGuard<'_, World> {
        let world = self.world();
        assert!(!world.is_in_call, "the engine waits for a call");
        world
    }

    /// Waits until this call has begun.
    fn wait_for_call(&self, name: &str) {
        while !self.world().calls.iter().any(|call| call == name) {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Held {
    fn end(self, status: UrbStatus, data: &[u8], results: Vec<PacketResult>) -> (ReapedUrb, Vec<PacketResult>) {
        let mut buffer = self.bytes;
        let behind = if self.endpoint == 0 { 8 } else { 0 };
        let actual = if self.is_in { data.len() } else { buffer.len() };
        let filled = self.lease.map(|lease| lease.fill(data));
        if self.is_in && filled.is_none() {
            buffer[behind..behind + data.len()].copy_from_slice(data);
        } else {
            buffer.clear();
        }
        let actual = if status == UrbStatus::Cancelled { 0 } else { actual as u32 };
        (ReapedUrb { slot: self.slot, status, actual, buffer, filled }, results)
    }
}

impl UsbfsKernel for Played {
    type Calls = Self;

    fn lease(&mut self, bytes: usize) -> Option<UsbfsBuffer> {
        let bytes_max = self.world().lends?;
        self.world().leases.take(None, bytes, bytes_max).unwrap()
    }

    fn give_back_leases(&mut self) {
        self.world().leases.give_back();
    }

    fn calls(&self) -> Self {
        self.clone()
    }

    fn submit(&mut self, slot: usize, transfer: UsbfsTransfer<'_>) -> Result<(), UrbStatus> {
        let mut world = self.world_unlocked();
        if world.is_unplugged {
            return Err(UrbStatus::Gone);
        }
        if let Some(room) = &mut world.room {
            *room = room.checked_sub(1).ok_or(UrbStatus::NoCredit)?;
        }
        assert!(transfer.packets.len() <= ISO_PACKETS_MAX);
        assert!(world.held.iter().all(|held| held.slot != slot), "a slot is lent once");
        let (bytes, is_in, lease) = match transfer.data {
            UsbfsPayload::Out(bytes) => (bytes.to_vec(), false, None),
            UsbfsPayload::In(room) => (room, true, None),
            UsbfsPayload::Into(lease, _) => (Vec::new(), true, Some(lease)),
        };
        let (endpoint, flags, packets) = (transfer.endpoint, transfer.flags, transfer.packets.to_vec());
        let stream = transfer.stream;
        world.held.push(Held { slot, endpoint, flags, bytes, is_in, packets, stream, lease });
        Ok(())
    }

    fn discard(&mut self, slot: usize) {
        let mut world = self.world_unlocked();
        if world.is_stuck {
            return;
        }
        if let Some(at) = world.held.iter().position(|held| held.slot == slot) {
            let held = world.held.remove(at);
            let results = vec![PacketResult { actual: 0, status: UrbStatus::IsoMissed }; held.packets.len()];
            let ended = held.end(UrbStatus::Cancelled, &[], results);
            world.ended.push_back(ended);
        }
    }

    fn reap(&mut self, packets: &mut Vec<PacketResult>) -> ReapOutcome {
        let mut world = self.world_unlocked();
        match world.ended.pop_front() {
            Some((reaped, results)) => {
                *packets = results;
                ReapOutcome::Done(reaped)
            }
            None if world.is_unplugged => ReapOutcome::Gone,
            None => ReapOutcome::Nothing,
        }
    }

    fn wait(&mut self, time_max: Duration) {
        std::thread::sleep(time_max);
    }

    fn is_connected(&self) -> bool {
        !self.world_unlocked().is_unplugged
    }
}

impl UsbfsBlockingCalls for Played {
    fn claim(&self, interface: u8) -> io::Result<()> {
        let _ = self.call(format!("claim {interface}"));
        match self.world().busy_interface == Some(interface) {
            true => Err(io::ErrorKind::ResourceBusy.into()),
            false => Ok(()),
        }
    }

    fn release(&self, interface: u8) -> io::Result<()> {
        let _ = self.call(format!("release {interface}"));
        Ok(())
    }

    fn connect(&self, interface: u8) -> io::Result<()> {
        let _ = self.call(format!("connect {interface}"));
        Ok(())
    }

    fn set_interface(&self, interface: u8, alternate: u8) -> Result<(), UrbStatus> {
        self.call(format!("interface {interface} {alternate}"))
    }

    fn set_configuration(&self, value: u8) -> Result<(), UrbStatus> {
        self.call(format!("configuration {value}"))
    }

    fn clear_halt(&self, endpoint: u8) -> Result<(), UrbStatus> {
        self.call(format!("clear {endpoint:#04x}"))
    }

    fn alloc_streams(&self, endpoints: &[u8], count: u16) -> Result<u16, UrbStatus> {
        // The simulated controller has eight.
        self.call(format!("streams {endpoints:02x?} {count}")).map(|()| count.min(8))
    }

    fn free_streams(&self, endpoints: &[u8]) -> Result<(), UrbStatus> {
        self.call(format!("no streams {endpoints:02x?}"))
    }

    fn reset(&self) -> Result<(), UrbStatus> {
        self.call("reset".into())
    }
}

fn interface(number: u8, alternate: u8, endpoints: &[[u8; 7]]) -> Vec<u8> {
    let mut bytes = vec![9, 4, number, alternate, endpoints.len() as u8, 255, 0, 0, 0];
    bytes.extend(endpoints.iter().flatten());
    bytes
}

fn configuration(value: u8, body: &[Vec<u8>]) -> UsbConfiguration {
    let total = 9 + body.iter().map(Vec::len).sum::<usize>();
    let mut bytes = vec![9, 2, total as u8, 0, 2, value, 0, 0x80, 50];
    bytes.extend(body.iter().flatten());
    UsbConfiguration::parse(&bytes).unwrap()
}

/// Interface 0 is bulk, interface 1 isochronous in its setting 1; configuration 2 has only interface 0.
fn found() -> PluggedDevice {
    let bulk = interface(0, 0, &[[7, 5, 0x81, 2, 0, 2, 0], [7, 5, 0x02, 2, 0, 2, 0]]);
    let iso = interface(1, 1, &[[7, 5, 0x83, 1, 0, 2, 1], [7, 5, 0x04, 1, 0, 2, 1]]);
    let configurations = vec![configuration(1, &[bulk.clone(), interface(1, 0, &[]), iso]), configuration(2, &[bulk])];
    let device = DeviceDescriptor { configurations: 2, ..DeviceDescriptor::default() };
    let driver = |name: &str| Some(name.to_owned());
    PluggedDevice {
        bus_id: "1-1".into(),
        bus: 1,
        number: 2,
        descriptors: DescriptorSet { device, configurations, ..DescriptorSet::default() },
        repairs: Default::default(),
        serial: None,
        speed: UsbSpeed::SuperPlus,
        configuration: 1,
        interfaces: vec![
            ActiveInterface { number: 0, class: [255, 0, 0], driver: driver("usb-storage") },
            ActiveInterface { number: 1, class: [255, 0, 0], driver: None },
        ],
        is_imported: false,
        node: "/dev/null".into(),
        obstacle: None,
    }
}

struct Bench {
    kernel: Played,
    device: UsbDevice<Played>,
    done: CompletionQueue,
}

impl Bench {
    /// A device that its client has just configured.
    fn configured() -> Self {
        let kernel = Played::default();
        let device = UsbDevice::take(kernel.clone(), None, &found()).unwrap();
        let mut bench = Self { kernel, device, done: CompletionQueue::new(BufferPool::new(1 << 20)) };
        assert_eq!(bench.kernel.calls(), ["claim 0", "claim 1"]);
        assert_eq!(bench.control(SetupPacket::set_configuration(1)), UrbStatus::Ok);
        assert_eq!(bench.kernel.calls(), [""; 0], "the active configuration is not set again");
        bench
    }

    fn submit(&mut self, urb: Urb) {
        self.device.submit(NOW, urb.launch(), &mut self.done);
    }

    /// Sends a control request that needs no transfer.
    fn control(&mut self, setup: SetupPacket) -> UrbStatus {
        self.submit(Urb::control(UrbId(999), setup, Payload::Empty));
        self.settle();
        self.done.pop().map(|done| done.status).expect("it is answered")
    }

    /// Waits for the calls that are under way, as an engine does.
    fn settle(&mut self) {
        while let Some(readiness) = self.device.readiness() {
            let mut interests = [DeviceWaitSource::interest(readiness).unwrap()];
            wait(&mut interests, Some(Duration::from_secs(10))).unwrap();
            assert!(interests[0].readable, "a call ends");
            self.device.handle_ready(NOW, &mut self.done);
        }
    }

    fn read(&mut self, id: u64, length: u32) {
        self.submit(Urb::data_in(UrbId(id), BULK_IN, length));
    }

    fn iso(&mut self, id: u64, endpoint: EpAddr, packets: Vec<IsoPacket>, payload: Vec<u8>) {
        let length = packets.iter().map(|packet| packet.offset + packet.length).max().unwrap_or(0);
        let mut urb = Urb::data_in(UrbId(id), endpoint, length);
        urb.direction = endpoint.direction();
        urb.payload = payload.into();
        urb.flags.iso_asap = true;
        urb.iso = packets;
        self.submit(urb);
    }

    fn ready(&mut self) -> Vec<(u64, UrbStatus)> {
        self.device.handle_ready(NOW, &mut self.done);
        self.all().iter().map(|done| (done.id.0, done.status)).collect()
    }

    fn all(&mut self) -> Vec<UrbCompletion> {
        std::iter::from_fn(|| self.done.pop()).collect()
    }
}

fn packets(count: u32, length: u32, stride: u32) -> Vec<IsoPacket> {
    (0..count).map(|at| IsoPacket { offset: at * stride, length, ..IsoPacket::default() }).collect()
}

#[test]
fn data_moves_both_ways_with_the_clients_flags() {
    let mut bench = Bench::configured();
    let mut read = Urb::data_in(UrbId(1), BULK_IN, 512);
    read.flags = UrbFlags { short_not_ok: true, zero_packet: true, iso_asap: true };
    bench.submit(read);
    let mut write = Urb::data_out(UrbId(2), BULK_OUT, b"to the device".to_vec().into());
    write.flags = UrbFlags { short_not_ok: true, zero_packet: true, iso_asap: true };
    bench.submit(write);
    {
        let world = bench.kernel.world();
        let flags: Vec<_> = world.held.iter().map(|held| held.flags).collect();
        let (read, write) = (UrbFlags { short_not_ok: true, ..flags[0] }, UrbFlags { zero_packet: true, ..flags[1] });
        assert_eq!(flags, [read, write]);
        assert!(!flags[0].zero_packet && !flags[0].iso_asap && !flags[1].short_not_ok && !flags[1].iso_asap);
        assert_eq!(world.held[1].bytes, b"to the device");
    }
    bench.kernel.end(1, UrbStatus::Ok, &[]);
    bench.kernel.end(0, UrbStatus::Short, b"from");
    assert_eq!(bench.ready(), [(2, UrbStatus::Ok), (1, UrbStatus::Short)]);
}

#[test]
fn short_answers_keep_their_length_and_failed_ones_their_data() {
    let mut bench = Bench::configured();
    bench.read(1, 64);
    bench.read(2, 64);
    bench.kernel.end(0, UrbStatus::Ok, b"abc");
    bench.kernel.end(0, UrbStatus::Overflow, b"de");
    bench.device.handle_ready(NOW, &mut bench.done);
    let done = bench.all();
    assert_eq!((done[0].actual, done[0].payload.contiguous().as_ref()), (3, b"abc".as_slice()));
    assert_eq!((done[1].status, done[1].payload.contiguous().as_ref()), (UrbStatus::Overflow, b"de".as_slice()));
}

#[test]
fn a_control_request_travels_behind_its_setup_packet() {
    let mut bench = Bench::configured();
    let read = SetupPacket::get_descriptor(1, 0, 0, 18);
    bench.submit(Urb::control(UrbId(1), read, Payload::Empty));
    let write = SetupPacket { request_type: 0x40, request: 0x5b, value: 1, index: 2, length: 3 };
    bench.submit(Urb::control(UrbId(2), write, b"xyz".to_vec().into()));
    {
        let world = bench.kernel.world();
        assert_eq!((world.held[0].endpoint, &world.held[0].bytes[..8]), (0, &read.to_bytes()[..]));
        assert_eq!(world.held[0].bytes.len(), 26);
        assert_eq!(world.held[1].bytes, [&write.to_bytes()[..], b"xyz"].concat());
    }
    bench.kernel.end(0, UrbStatus::Ok, &[18, 1, 0]);
    bench.kernel.end(0, UrbStatus::Stall, &[]);
    bench.device.handle_ready(NOW, &mut bench.done);
    let done = bench.all();
    assert_eq!((done[0].actual, done[0].payload.contiguous().as_ref()), (3, [18, 1, 0].as_slice()));
    assert_eq!((done[1].status, done[1].actual), (UrbStatus::Stall, 0));
}

/// The table of `Device`: every order of finishing and cancelling one request of two.
#[test]
fn unlink_races_end_as_the_table_says() {
    for (finish_first, expected) in [(true, UrbStatus::Ok), (false, UrbStatus::Cancelled)] {
        let mut bench = Bench::configured();
        bench.read(1, 8);
        bench.read(2, 8);
        if finish_first {
            bench.kernel.end(0, UrbStatus::Ok, b"true end");
        }
        bench.device.cancel(NOW, UrbId(1), &mut bench.done);
        let done = bench.all();
        assert_eq!(done.iter().map(|d| (d.id.0, d.status)).collect::<Vec<_>>(), [(1, expected)]);
        bench.device.cancel(NOW, UrbId(1), &mut bench.done);
        bench.device.cancel(NOW, UrbId(7), &mut bench.done);
        assert!(bench.done.is_empty(), "an unknown one is nothing");
        bench.kernel.end(0, UrbStatus::Ok, b"other");
        assert_eq!(bench.ready(), [(2, UrbStatus::Ok)]);
    }
}

#[test]
fn isochronous_packets_are_split_and_come_back_in_order_without_gaps() {
    let mut bench = Bench::configured();
    assert_eq!(bench.control(SetupPacket::set_interface(1, 1)), UrbStatus::Ok);
    bench.iso(1, ISO_IN, packets(300, 4, 10), Vec::new());
    let counts: Vec<_> = bench.kernel.world().held.iter().map(|held| (held.packets.len(), held.bytes.len())).collect();
    assert_eq!(counts, [(128, 512), (128, 512), (44, 176)]);
    let result = |at: usize| match at {
        5 => PacketResult { actual: 0, status: UrbStatus::IsoMissed },
        at => PacketResult { actual: 1 + at as u32 % 4, status: UrbStatus::Ok },
    };
    for _ in 0..2 {
        bench.kernel.end_iso(result);
        assert_eq!(bench.ready(), [], "not before all of it is back");
    }
    bench.kernel.end_iso(result);
    bench.device.handle_ready(NOW, &mut bench.done);
    let done = bench.all().remove(0);
    let expected: Vec<u8> =
        (0..300).map(|at| at % 128).flat_map(|at| vec![at as u8; result(at).actual as usize]).collect();
    assert_eq!(done.payload.contiguous().as_ref(), expected);
    assert_eq!(
        (done.status, done.iso.len(), done.error_count, done.actual as usize),
        (UrbStatus::Ok, 300, 3, expected.len())
    );
    assert!(done.iso.iter().enumerate().all(|(at, p)| p.offset == at as u32 * 10 && p.length == 4));
}

#[test]
fn isochronous_data_to_send_loses_its_gaps_only_on_the_bus() {
    let mut bench = Bench::configured();
    assert_eq!(bench.control(SetupPacket::set_interface(1, 1)), UrbStatus::Ok);
    let data: Vec<u8> = (0..=255).cycle().take(129 * 3).collect();
    bench.iso(1, ISO_OUT, packets(129, 2, 3), data.clone());
    bench.iso(2, ISO_OUT, packets(129, 3, 3), data.clone());
    {
        let world = bench.kernel.world();
        let sent: Vec<u8> = world.held[..2].iter().flat_map(|held| held.bytes.clone()).collect();
        assert_eq!(sent, data.chunks(3).flat_map(|c| c[..2].to_vec()).collect::<Vec<_>>());
        let sent: Vec<u8> = world.held[2..].iter().flat_map(|held| held.bytes.clone()).collect();
        assert_eq!(sent, data);
    }
    for length in [2, 2, 3, 3] {
        bench.kernel.end_iso(|_| PacketResult { actual: length, status: UrbStatus::Ok });
    }
    bench.device.handle_ready(NOW, &mut bench.done);
    let done: Vec<_> = bench.all().iter().map(|d| (d.id.0, d.status, d.actual, d.payload.len())).collect();
    assert_eq!(done, [(1, UrbStatus::Ok, 258, 0), (2, UrbStatus::Ok, 387, 0)]);
}

#[test]
fn an_isochronous_request_is_cancelled_as_a_set() {
    for ended_before in 0..=3 {
        let mut bench = Bench::configured();
        assert_eq!(bench.control(SetupPacket::set_interface(1, 1)), UrbStatus::Ok);
        bench.iso(1, ISO_IN, packets(300, 4, 4), Vec::new());
        bench.iso(2, ISO_IN, packets(1, 4, 4), Vec::new());
        for _ in 0..ended_before {
            bench.kernel.end_iso(|_| PacketResult { actual: 4, status: UrbStatus::Ok });
        }
        bench.device.cancel(NOW, UrbId(1), &mut bench.done);
        let expected = if ended_before == 3 { UrbStatus::Ok } else { UrbStatus::Cancelled };
        let done: Vec<_> = bench.all().iter().map(|d| (d.id.0, d.status, d.iso.len())).collect();
        assert_eq!(done, [(1, expected, 300)], "{ended_before}");
        assert_eq!(bench.kernel.world().held.len(), 1, "the other one stays");
        bench.kernel.end_iso(|_| PacketResult { actual: 4, status: UrbStatus::Ok });
        assert_eq!(bench.ready(), [(2, UrbStatus::Ok)]);
    }
}

#[test]
fn a_kernel_without_memory_is_a_failure_and_never_a_hang() {
    let mut bench = Bench::configured();
    assert_eq!(bench.control(SetupPacket::set_interface(1, 1)), UrbStatus::Ok);
    bench.kernel.world().room = Some(1);
    bench.read(1, 8);
    bench.read(2, 8);
    assert_eq!(bench.all().iter().map(|d| (d.id.0, d.status)).collect::<Vec<_>>(), [(2, UrbStatus::NoCredit)]);
    for room in 0..3 {
        bench.kernel.world().room = Some(room);
        bench.iso(3, ISO_IN, packets(300, 4, 4), Vec::new());
        assert_eq!(
            bench.all().iter().map(|d| (d.id.0, d.status)).collect::<Vec<_>>(),
            [(3, UrbStatus::NoCredit)],
            "{room}"
        );
        assert_eq!(bench.kernel.world().held.len(), 1, "nothing of it stays with the kernel");
    }
    bench.kernel.end(0, UrbStatus::Ok, b"ok");
    assert_eq!(bench.ready(), [(1, UrbStatus::Ok)]);
}

#[test]
fn packets_that_make_no_sense_never_reach_the_kernel() {
    let mut bench = Bench::configured();
    assert_eq!(bench.control(SetupPacket::set_interface(1, 1)), UrbStatus::Ok);
    let overlapping = vec![IsoPacket { length: 8, ..IsoPacket::default() }; 2];
    bench.iso(1, ISO_IN, overlapping, Vec::new());
    bench.iso(2, ISO_IN, Vec::new(), Vec::new());
    bench.submit(Urb::data_in(UrbId(3), EpAddr::from_byte(0x85), 8));
    let done: Vec<_> = bench.all().iter().map(|d| (d.id.0, d.status)).collect();
    assert_eq!(done, [(1, UrbStatus::Invalid), (2, UrbStatus::Ok), (3, UrbStatus::Invalid)]);
    assert!(bench.kernel.world().held.is_empty());
}

#[test]
fn a_reset_answers_everything_first_and_lets_no_driver_in() {
    let mut bench = Bench::configured();
    assert_eq!(bench.control(SetupPacket::set_interface(1, 1)), UrbStatus::Ok);
    bench.kernel.calls();
    bench.read(1, 8);
    bench.iso(2, ISO_IN, packets(300, 4, 4), Vec::new());
    bench.submit(Urb::control(UrbId(3), SetupPacket::get_descriptor(1, 0, 0, 18), Payload::Empty));
    bench.kernel.end(0, UrbStatus::Ok, b"before");
    bench.device.reset(NOW, &mut bench.done);
    let mut done: Vec<_> = bench.all().iter().map(|d| (d.id.0, d.status)).collect();
    done.sort_by_key(|(id, _)| *id);
    assert_eq!(done, [(1, UrbStatus::Ok), (2, UrbStatus::Shutdown), (3, UrbStatus::Shutdown)]);
    bench.settle();
    assert_eq!(bench.kernel.calls(), ["release 0", "release 1", "reset", "claim 0", "claim 1"]);
    assert_eq!((bench.device.selection().configuration(), bench.device.is_gone()), (0, false));
    assert!(bench.kernel.world().held.is_empty() && take_lost().is_empty());
    // What the exporter restores: releasing has selected the interface's setting 0.
    assert_eq!(bench.control(SetupPacket::set_configuration(1)), UrbStatus::Ok);
    assert_eq!(bench.control(SetupPacket::set_interface(1, 1)), UrbStatus::Ok);
    assert_eq!(bench.kernel.calls(), ["interface 1 1"]);
}

#[test]
fn a_device_that_comes_back_from_a_reset_as_another_is_gone() {
    let mut bench = Bench::configured();
    bench.kernel.world().fails = Some(("reset", UrbStatus::Gone));
    bench.read(1, 8);
    bench.kernel.calls();
    bench.device.reset(NOW, &mut bench.done);
    assert_eq!(bench.all().iter().map(|d| (d.id.0, d.status)).collect::<Vec<_>>(), [(1, UrbStatus::Shutdown)]);
    bench.settle();
    assert_eq!(bench.kernel.calls(), ["release 0", "release 1", "reset"]);
    bench.submit(Urb::control(UrbId(3), SetupPacket::get_descriptor(1, 0, 0, 18), Payload::Empty));
    assert_eq!(bench.all().iter().map(|d| (d.id.0, d.status)).collect::<Vec<_>>(), [(3, UrbStatus::Gone)]);
    assert!(bench.device.is_gone());
}

#[test]
fn a_kernel_that_gives_nothing_back_ends_the_device_and_not_the_session() {
    let mut bench = Bench::configured();
    bench.kernel.world().is_stuck = true;
    bench.read(1, 8);
    bench.device.reset(NOW, &mut bench.done);
    assert_eq!(bench.all().iter().map(|d| (d.id.0, d.status)).collect::<Vec<_>>(), [(1, UrbStatus::Gone)]);
    assert!(bench.device.is_gone());
}

#[test]
fn requests_that_change_what_is_active_become_calls() {
    let mut bench = Bench::configured();
    bench.read(1, 8);
    assert_eq!(bench.control(SetupPacket::set_interface(1, 1)), UrbStatus::Ok);
    assert!(bench.device.selection().endpoint(ISO_IN).is_some());
    assert_eq!(bench.kernel.world().held.len(), 1, "another interface's transfers go on");
    bench.iso(2, ISO_IN, packets(1, 4, 4), Vec::new());
    bench.submit(Urb::control(UrbId(3), SetupPacket::set_interface(1, 0), Payload::Empty));
    bench.settle();
    assert_eq!(
        bench.all().iter().map(|d| (d.id.0, d.status)).collect::<Vec<_>>(),
        [(2, UrbStatus::Shutdown), (3, UrbStatus::Ok)]
    );
    assert_eq!(bench.control(SetupPacket::clear_halt(BULK_IN)), UrbStatus::Ok);
    assert_eq!(bench.kernel.calls(), ["interface 1 1", "interface 1 0", "clear 0x81"]);
    // Something that does not exist is refused without asking the device.
    for wrong in [SetupPacket::set_interface(1, 2), SetupPacket::set_configuration(9), SetupPacket::clear_halt(ISO_IN)]
    {
        assert_eq!(bench.control(wrong), UrbStatus::Stall, "{wrong:?}");
    }
    // This machine's host controller assigns the address.
    let address = SetupPacket { request_type: 0, request: 5, value: 9, index: 0, length: 0 };
    assert_eq!(bench.control(address), UrbStatus::Stall);
    bench.kernel.world().fails = Some(("interface 1 1", UrbStatus::Protocol));
    assert_eq!(bench.control(SetupPacket::set_interface(1, 1)), UrbStatus::Protocol);
    assert!(bench.device.selection().endpoint(ISO_IN).is_none());
    assert_eq!(bench.kernel.calls(), ["interface 1 1"]);
    assert_eq!(bench.kernel.world().held.len(), 1, "and none of them was sent raw");
    bench.device.cancel(NOW, UrbId(1), &mut bench.done);
}

#[test]
fn another_configuration_needs_the_interfaces_free() {
    let mut bench = Bench::configured();
    bench.read(1, 8);
    bench.submit(Urb::control(UrbId(2), SetupPacket::set_configuration(2), Payload::Empty));
    bench.settle();
    assert_eq!(
        bench.all().iter().map(|d| (d.id.0, d.status)).collect::<Vec<_>>(),
        [(1, UrbStatus::Shutdown), (2, UrbStatus::Ok)]
    );
    assert_eq!(bench.kernel.calls(), ["release 0", "release 1", "configuration 2", "claim 0"]);
    assert_eq!(bench.device.selection().configuration(), 2);
    let kernel = bench.kernel.clone();
    drop(bench);
    assert_eq!(kernel.calls(), ["release 0", "configuration 1"], "given back as it was");
}

#[test]
fn setting_the_active_configuration_starts_it_afresh() {
    let mut bench = Bench::configured();
    assert_eq!(bench.control(SetupPacket::set_interface(1, 1)), UrbStatus::Ok);
    bench.read(1, 8);
    bench.kernel.end(0, UrbStatus::Stall, &[]);
    assert_eq!(bench.ready(), [(1, UrbStatus::Stall)]);
    bench.kernel.calls();
    assert_eq!(bench.control(SetupPacket::set_configuration(1)), UrbStatus::Ok);
    assert_eq!(bench.kernel.calls(), ["interface 1 0", "clear 0x81"]);
    assert_eq!(bench.control(SetupPacket::set_configuration(1)), UrbStatus::Ok);
    assert_eq!(bench.kernel.calls(), [""; 0]);
}

#[test]
fn an_unplugged_device_fails_its_requests_and_says_so() {
    let mut bench = Bench::configured();
    bench.read(1, 8);
    bench.read(2, 8);
    bench.read(3, 8);
    // One ended in time, one was killed as the device went, one never came back.
    bench.kernel.end(0, UrbStatus::Ok, b"in time");
    bench.kernel.end(0, UrbStatus::Cancelled, &[]);
    bench.kernel.world().is_unplugged = true;
    assert_eq!(bench.ready(), [(1, UrbStatus::Ok), (2, UrbStatus::Gone), (3, UrbStatus::Gone)]);
    assert!(bench.device.is_gone());
    bench.read(4, 8);
    assert_eq!(bench.all().iter().map(|d| (d.id.0, d.status)).collect::<Vec<_>>(), [(4, UrbStatus::Gone)]);
    bench.device.reset(NOW, &mut bench.done);
    bench.device.cancel(NOW, UrbId(1), &mut bench.done);
    assert!(bench.done.is_empty());
    bench.kernel.calls();
    let kernel = bench.kernel.clone();
    drop(bench);
    assert_eq!(kernel.calls(), [""; 0], "nobody is asked to take back what is not there");
}

#[test]
fn a_device_is_taken_whole_or_not_at_all_and_given_back() {
    let kernel = Played::default();
    kernel.world().busy_interface = Some(1);
    let error = UsbDevice::take(kernel.clone(), None, &found()).err();
    assert!(matches!(error, Some(UsbOpenError::Busy { interface: 1 })), "{error:?}");
    assert_eq!(kernel.calls(), ["claim 0", "claim 1", "release 0", "connect 0"]);
    let bench = Bench::configured();
    assert_eq!(bench.device.speed(), UsbSpeed::Super, "vhci knows no faster");
    let kernel = bench.kernel.clone();
    drop(bench);
    // Interface 1 had no driver then, possibly because it was too early for one.
    assert_eq!(kernel.calls(), ["release 0", "release 1", "connect 0", "connect 1"]);
}

/// The client's requests in the order of their answers.
fn answers(bench: &mut Bench) -> Vec<(u64, UrbStatus)> {
    bench.all().iter().map(|done| (done.id.0, done.status)).collect()
}

/// A device in a SET_INTERFACE that it does not answer, with a read in the kernel.
fn stuck_in_a_call() -> Bench {
    let mut bench = Bench::configured();
    bench.read(1, 8);
    bench.kernel.world().stuck_call = Some("interface 1 1");
    bench.submit(Urb::control(UrbId(2), SetupPacket::set_interface(1, 1), Payload::Empty));
    bench.kernel.wait_for_call("interface 1 1");
    bench
}

#[test]
fn call_that_waits_for_its_device_does_not_block_other_requests() {
    let mut bench = stuck_in_a_call();
    // Requests that arrive meanwhile wait in order and keep their payloads; withdrawn ones are answered at once.
    let window: Arc<[u8]> = b"window".as_slice().into();
    bench.submit(Urb::data_out(UrbId(3), BULK_OUT, Payload::shared(&window, 0..6)));
    assert_eq!(Arc::strong_count(&window), 1, "no window is kept");
    bench.read(4, 8);
    bench.submit(Urb::control(UrbId(5), SetupPacket::clear_halt(BULK_IN), Payload::Empty));
    bench.read(6, 8);
    bench.device.handle_ready(NOW, &mut bench.done);
    assert_eq!(answers(&mut bench), []);
    bench.device.cancel(NOW, UrbId(4), &mut bench.done);
    assert_eq!(answers(&mut bench), [(4, UrbStatus::Cancelled)]);
    // The kernel cannot cancel what it has now, and the call cannot be cancelled at all.
    bench.device.cancel(NOW, UrbId(1), &mut bench.done);
    bench.device.cancel(NOW, UrbId(2), &mut bench.done);
    assert_eq!(answers(&mut bench), []);
    bench.kernel.world().stuck_call = None;
    bench.settle();
    assert_eq!(answers(&mut bench), [(2, UrbStatus::Ok), (1, UrbStatus::Cancelled), (5, UrbStatus::Ok)]);
    assert_eq!(bench.kernel.calls(), ["interface 1 1", "clear 0x81"]);
    let held: Vec<_> = bench.kernel.world().held.iter().map(|held| (held.endpoint, held.bytes.clone())).collect();
    assert_eq!(held, [(0x02, b"window".to_vec()), (0x81, vec![0; 8])], "in order");
    assert!(bench.device.selection().endpoint(ISO_IN).is_some());
    bench.kernel.end(0, UrbStatus::Ok, b"");
    bench.kernel.end(0, UrbStatus::Ok, b"");
    assert_eq!(bench.ready(), [(3, UrbStatus::Ok), (6, UrbStatus::Ok)]);
}

#[test]
fn a_transfer_that_ends_during_a_call_keeps_its_true_end() {
    let mut bench = stuck_in_a_call();
    bench.kernel.end(0, UrbStatus::Ok, b"in time");
    bench.device.cancel(NOW, UrbId(1), &mut bench.done);
    bench.kernel.world().stuck_call = None;
    bench.settle();
    assert_eq!(answers(&mut bench), [(2, UrbStatus::Ok), (1, UrbStatus::Ok)]);
}

/// What follows a lost link: it must not wait for a device that does not answer.
#[test]
fn a_reset_during_a_call_answers_at_once_and_comes_after_it() {
    let mut bench = stuck_in_a_call();
    bench.read(3, 8);
    bench.device.reset(NOW, &mut bench.done);
    assert_eq!(answers(&mut bench), [(2, UrbStatus::Shutdown), (1, UrbStatus::Shutdown), (3, UrbStatus::Shutdown)]);
    assert_eq!(bench.device.selection().configuration(), 0);
    // The next client is there already.
    bench.submit(Urb::control(UrbId(1), SetupPacket::set_configuration(1), Payload::Empty));
    bench.device.reset(NOW, &mut bench.done);
    assert_eq!(answers(&mut bench), [(1, UrbStatus::Shutdown)]);
    bench.submit(Urb::control(UrbId(4), SetupPacket::set_configuration(1), Payload::Empty));
    bench.kernel.world().stuck_call = None;
    bench.settle();
    assert_eq!(answers(&mut bench), [(4, UrbStatus::Ok)]);
    assert_eq!(
        bench.kernel.calls(),
        ["interface 1 1", "release 0", "release 1", "reset", "claim 0", "claim 1"],
        "one reset, after the call"
    );
    assert!(bench.kernel.world().held.is_empty(), "and what the kernel still held was given up before");
    assert!(bench.device.selection().alternates().is_empty() && take_lost().is_empty());
}

#[test]
fn unplugging_during_a_call_fails_all_waiting_requests() {
    let mut bench = stuck_in_a_call();
    bench.read(3, 8);
    {
        let mut world = bench.kernel.world();
        world.fails = Some(("interface 1 1", UrbStatus::Gone));
        (world.is_unplugged, world.stuck_call) = (true, None);
    }
    bench.settle();
    assert_eq!(answers(&mut bench), [(2, UrbStatus::Gone), (1, UrbStatus::Gone), (3, UrbStatus::Gone)]);
    assert!(bench.device.is_gone());
}

#[test]
fn device_is_given_back_after_its_call_or_not_if_that_never_ends() {
    for ends in [true, false] {
        let mut bench = stuck_in_a_call();
        bench.device.reset(NOW, &mut bench.done);
        let kernel = bench.kernel.clone();
        if ends {
            kernel.world().stuck_call = None;
        }
        drop(bench);
        let calls = kernel.calls();
        let expected: &[_] = match ends {
            true => &["reset", "claim 0", "claim 1", "release 0", "release 1", "connect 0", "connect 1"],
            false => &["interface 1 1"],
        };
        assert!(calls.ends_with(&expected.iter().map(|call| (*call).to_owned()).collect::<Vec<_>>()), "{calls:?}");
        kernel.world().stuck_call = None;
    }
}

#[test]
fn data_in_lent_memory_is_sent_from_there_and_lent_again() {
    let mut bench = Bench::configured();
    bench.kernel.world().lends = Some(8192);
    bench.read(1, 4096);
    bench.read(2, 4096);
    // It has lent all that it lends: this transfer is copied, as usual.
    bench.read(3, 4096);
    let lent = |bench: &Bench| bench.kernel.world().held.iter().map(|held| held.lease.is_some()).collect::<Vec<_>>();
    assert_eq!(lent(&bench), [true, true, false]);
    bench.kernel.end(0, UrbStatus::Ok, b"first");
    bench.kernel.end(0, UrbStatus::Stall, b"");
    bench.kernel.end(0, UrbStatus::Ok, b"third");
    bench.device.handle_ready(NOW, &mut bench.done);
    let mut done = bench.all();
    let bytes: Vec<_> = done.iter().map(|done| done.payload.contiguous().into_owned()).collect();
    assert_eq!(bytes, [b"first".to_vec(), Vec::new(), b"third".to_vec()]);
    assert!(matches!(done[0].payload, Payload::Borrowed(_)) && !matches!(done[2].payload, Payload::Borrowed(_)));
    // The stalled transfer's memory is free; the first one's is not before it was sent.
    let first = done.swap_remove(0).payload;
    bench.read(4, 4096);
    bench.read(5, 4096);
    assert_eq!(lent(&bench), [true, false]);
    assert_eq!(first.contiguous().as_ref(), b"first");
    drop(first);
    bench.read(6, 4096);
    assert_eq!(lent(&bench), [true, false, true]);
    // A reset cancels all transfers and returns their memory.
    bench.device.reset(NOW, &mut bench.done);
    bench.all();
    bench.settle();
    bench.kernel.world().lends = Some(4096);
    assert!(bench.kernel.lease(4096).is_some(), "nothing of it was kept");
}

#[test]
fn streams_are_given_to_idle_bulk_endpoints_and_named_by_each_transfer() {
    let mut bench = Bench::configured();
    assert_eq!(bench.device.alloc_streams(&[BULK_IN, BULK_OUT], 16), Ok(8), "fewer than were asked for");
    for stream in [1, 8] {
        bench.submit(Urb { stream, ..Urb::data_in(UrbId(stream.into()), BULK_IN, 8) });
    }
    assert_eq!(bench.kernel.world().held.iter().map(|held| held.stream).collect::<Vec<_>>(), [1, 8]);
    assert_eq!(bench.device.free_streams(&[BULK_IN]), Err(UrbStatus::NoCredit), "it is in use");
    assert_eq!(bench.device.alloc_streams(&[ISO_IN], 16), Err(UrbStatus::Invalid));
    // They end out of order.
    bench.kernel.end(1, UrbStatus::Ok, b"");
    bench.kernel.end(0, UrbStatus::Ok, b"");
    assert_eq!(bench.ready(), [(8, UrbStatus::Ok), (1, UrbStatus::Ok)]);
    assert_eq!(bench.device.free_streams(&[BULK_IN, BULK_OUT]), Ok(()));
    assert_eq!(bench.kernel.calls(), ["streams [81, 02] 16", "no streams [81, 02]"]);
    let mut stuck = stuck_in_a_call();
    assert_eq!(stuck.device.alloc_streams(&[BULK_OUT], 16), Err(UrbStatus::NoCredit));
    stuck.kernel.world().stuck_call = None;
    stuck.device.reset(NOW, &mut stuck.done);
    stuck.settle();
    stuck.all();
}
