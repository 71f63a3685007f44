//! A program at usbfs and a device: every command is answered once, as Linux's `devio.c` answers it, whatever program
//! and device do.

mod world;

#[path = "../../wire/tests/fuzzing/mod.rs"]
mod fuzzing;

use std::collections::BTreeMap;
use std::time::Duration;

use farbus_gadgets::zero::{SourcePattern, SourceSink};
use farbus_model::{
    Device, EndpointDescriptor, EpAddr, Instant, SetupPacket, TransferDirection, TransferType, UrbStatus, UsbSpeed,
};
use farbus_session::usbfs::{
    CallId, OpenId, PointerWidth, ProgramMemory, UsbBusLocation, UsbfsAnswer, UsbfsCommand, UsbfsError, UsbfsIoctl,
    UsbfsNode, UsbfsPollEvents,
};
use farbus_wire::usbfs::{DriverIoctl, UrbHead};
use fuzzing::{Input, fuzz};
use world::{Manners, Scripted};

const BULK_IN: u8 = 0x81;
const BULK_OUT: u8 = 0x01;
const INTERRUPT_IN: u8 = 0x82;
const ISO_IN: u8 = 0x83;
const ISO_OUT: u8 = 0x03;

const ISO: u8 = 0;
const INTERRUPT: u8 = 1;
const CONTROL: u8 = 2;
const BULK: u8 = 3;

const SHORT_NOT_OK: u32 = 1;
const CONTINUATION: u32 = 4;

/// The first address of a program's memory; below it there is nothing.
const BASE: u64 = 0x1_0000;

/// The memory of a program.
struct Space(Vec<u8>);

impl Space {
    fn slice(&mut self, address: u64, len: usize) -> Result<&mut [u8], UsbfsError> {
        let at = address.checked_sub(BASE).and_then(|at| usize::try_from(at).ok()).ok_or(UsbfsError::BadAddress)?;
        self.0.get_mut(at..).and_then(|rest| rest.get_mut(..len)).ok_or(UsbfsError::BadAddress)
    }
}

impl ProgramMemory for Space {
    fn read(&mut self, address: u64, into: &mut [u8]) -> Result<(), UsbfsError> {
        into.copy_from_slice(self.slice(address, into.len())?);
        Ok(())
    }
}

/// A program and its node.
struct Program<D: Device> {
    node: UsbfsNode<D>,
    memory: Space,
    width: PointerWidth,
    now: Instant,
    commands: u64,
    answers: BTreeMap<CallId, Result<u32, UsbfsError>>,
}

impl<D: Device> Program<D> {
    fn new(device: D, width: PointerWidth) -> Self {
        let location = UsbBusLocation { bus: 3, device: 7, ports: vec![1, 4] };
        Self {
            node: UsbfsNode::new(device, location),
            memory: Space(vec![0; 1 << 20]),
            width,
            now: Instant::from_nanos(1),
            commands: 0,
            answers: BTreeMap::new(),
        }
    }

    fn open(&mut self) -> OpenId {
        self.node.open(true).expect("the device is there")
    }

    fn put(&mut self, address: u64, bytes: &[u8]) {
        self.memory.slice(address, bytes.len()).expect("memory of the test").copy_from_slice(bytes);
    }

    fn get(&mut self, address: u64, len: usize) -> Vec<u8> {
        self.memory.slice(address, len).expect("memory of the test").to_vec()
    }

    fn get_u32(&mut self, address: u64) -> u32 {
        u32::from_le_bytes(self.get(address, 4).try_into().expect("4 bytes"))
    }

    /// Begins a command.
    fn say(&mut self, open: OpenId, call: UsbfsIoctl, argument: u64) -> CallId {
        self.commands += 1;
        let id = CallId(self.commands);
        let command = UsbfsCommand { id, call, width: self.width, argument };
        self.node.handle_command(self.now, open, &command, &mut self.memory);
        self.node.end_turn(self.now);
        self.collect();
        id
    }

    /// Takes the answers, with what they write.
    fn collect(&mut self) {
        while let Some(UsbfsAnswer { id, result, writes }) = self.node.poll_answer() {
            let mut result = result;
            for (address, payload) in writes {
                match self.memory.slice(address, payload.len()) {
                    Ok(bytes) => bytes.copy_from_slice(&payload.contiguous()),
                    Err(refusal) => result = Err(refusal),
                }
            }
            assert!(self.answers.insert(id, result).is_none(), "{id:?} is answered once");
        }
    }

    /// A command that is answered at once.
    fn ask(&mut self, open: OpenId, call: UsbfsIoctl, argument: u64) -> Result<u32, UsbfsError> {
        let id = self.say(open, call, argument);
        self.answers.remove(&id).unwrap_or_else(|| panic!("{call:?} is answered at once"))
    }

    /// A command whose argument is a number in memory.
    fn ask_number(&mut self, open: OpenId, call: UsbfsIoctl, number: u32) -> Result<u32, UsbfsError> {
        self.put(BASE, &number.to_le_bytes());
        self.ask(open, call, BASE)
    }

    /// Writes a URB with these packets, if it is isochronous.
    fn put_urb(
        &mut self,
        at: u64,
        (kind, endpoint, flags): (u8, u8, u32),
        (buffer, length): (u64, u32),
        lengths: &[u32],
    ) {
        let mut bytes = vec![kind, endpoint, 0, 0];
        bytes.extend([0_u32.to_le_bytes(), flags.to_le_bytes()].concat());
        match self.width {
            PointerWidth::Bits32 => bytes.extend((buffer as u32).to_le_bytes()),
            PointerWidth::Bits64 => bytes.extend([[0; 4].as_slice(), &buffer.to_le_bytes()].concat()),
        }
        // Length, actual length, first frame, packets, errors, signal.
        for number in [length, 0, 0, lengths.len() as u32, 0, 0] {
            bytes.extend(number.to_le_bytes());
        }
        bytes.resize(UrbHead::bytes(self.width), 0xee);
        for length in lengths {
            bytes.extend([length.to_le_bytes(), [0xff; 4], [0xff; 4]].concat());
        }
        self.put(at, &bytes);
    }

    fn submit_bulk(&mut self, open: OpenId, at: u64, endpoint: u8, flags: u32) -> Result<u32, UsbfsError> {
        self.put_urb(at, (BULK, endpoint, flags), (at + 0x100, 64), &[]);
        self.ask(open, UsbfsIoctl::SubmitUrb, at)
    }

    /// Reaps a URB: its address, status and bytes.
    fn reap(&mut self, open: OpenId) -> Result<(u64, i32, u32), UsbfsError> {
        let pointer_at = BASE + 8;
        self.put(pointer_at, &[0xaa; 8]);
        self.ask(open, UsbfsIoctl::ReapUrbNoDelay, pointer_at)?;
        let mut address = [0; 8];
        let count = self.width.pointer_bytes();
        address[..count].copy_from_slice(&self.get(pointer_at, count));
        let address = u64::from_le_bytes(address);
        let actual_at = if self.width == PointerWidth::Bits32 { 20 } else { 28 };
        Ok((address, self.get_u32(address + 4) as i32, self.get_u32(address + actual_at)))
    }
}

impl Program<Scripted> {
    /// A program that has configured a scripted device and claimed its first interface.
    fn configured(manners: Manners) -> (Self, OpenId) {
        let mut program = Self::new(Scripted::new(manners), PointerWidth::Bits64);
        let open = program.open();
        let id = {
            program.put(BASE, &1_u32.to_le_bytes());
            program.say(open, UsbfsIoctl::SetConfiguration, BASE)
        };
        program.device_completes(0);
        assert_eq!(program.answers.remove(&id), Some(Ok(0)));
        assert_eq!(program.ask_number(open, UsbfsIoctl::ClaimInterface, 0), Ok(0));
        (program, open)
    }

    fn device_completes(&mut self, endpoint: u8) -> bool {
        let endpoint = EpAddr::from_byte(endpoint);
        let has = self.node.with_device(self.now, |device, done| device.complete(endpoint, done));
        self.collect();
        has
    }

    fn device_fails(&mut self, endpoint: u8, status: UrbStatus) {
        let endpoint = EpAddr::from_byte(endpoint);
        assert!(self.node.with_device(self.now, |device, done| device.fail(endpoint, status, done)));
        self.collect();
    }

    fn device_lets_go(&mut self) -> bool {
        let has = self.node.with_device(self.now, |device, done| device.let_go(done));
        self.collect();
        has
    }

    fn unplug(&mut self) {
        self.node.with_device(self.now, |device, done| device.unplug(done));
        self.collect();
    }
}

const LATE: Manners = Manners { cancels_late: true, answers_control_late: false };

#[test]
fn bytes_that_a_zero_gadget_sends_reach_programs_of_both_widths() {
    for width in [PointerWidth::Bits64, PointerWidth::Bits32] {
        let mut program = Program::new(SourceSink::device(UsbSpeed::High, SourcePattern::Mod63, true), width);
        let open = program.open();
        assert_eq!(program.ask_number(open, UsbfsIoctl::SetConfiguration, 1), Ok(0));
        assert_eq!(program.ask_number(open, UsbfsIoctl::ClaimInterface, 0), Ok(0));
        let is_source = |endpoint: &&EndpointDescriptor| {
            endpoint.kind == TransferType::Bulk && endpoint.address.direction() == TransferDirection::In
        };
        let source = program.node.device().selection().endpoints().find(is_source).unwrap().address.as_byte();
        let (urb, data) = (BASE + 0x1000, BASE + 0x2000);
        program.put_urb(urb, (BULK, source, 0), (data, 4096), &[]);
        assert_eq!(program.ask(open, UsbfsIoctl::SubmitUrb, urb), Ok(0));
        assert_eq!(program.reap(open), Ok((urb, 0, 4096)));
        let expected: Vec<u8> = (0..4096).map(|at| (at % 512 % 63) as u8).collect();
        assert_eq!(program.get(data, 4096), expected, "{width:?}");
        assert_eq!(program.reap(open), Err(UsbfsError::NotYet));
    }
}

#[test]
fn an_interface_belongs_to_one_open_until_it_is_released_detached_or_closed() {
    let (mut program, first) = Program::configured(Manners::default());
    let second = program.open();
    assert_eq!(program.ask_number(second, UsbfsIoctl::ClaimInterface, 0), Err(UsbfsError::Busy));
    assert_eq!(program.ask_number(second, UsbfsIoctl::ClaimInterface, 5), Err(UsbfsError::NotFound));
    assert_eq!(program.ask_number(second, UsbfsIoctl::ClaimInterface, 64), Err(UsbfsError::Invalid));
    assert_eq!(program.ask_number(second, UsbfsIoctl::ReleaseInterface, 0), Err(UsbfsError::Invalid));
    assert_eq!(program.ask_number(second, UsbfsIoctl::ReleaseInterface, 5), Err(UsbfsError::NotFound));
    assert_eq!(program.ask_number(second, UsbfsIoctl::GetDriver, 1), Err(UsbfsError::NoDriver));
    assert_eq!(program.ask_number(second, UsbfsIoctl::GetDriver, 0), Ok(0));
    assert_eq!(program.get(BASE + 4, 6), b"usbfs\0");
    assert_eq!(program.ask_number(second, UsbfsIoctl::SetConfiguration, 1), Err(UsbfsError::Busy));
    // A transfer claims its interface by itself, and fails where another has it.
    assert_eq!(program.submit_bulk(second, BASE + 0x1000, BULK_OUT, 0), Err(UsbfsError::Busy));

    assert_eq!(program.ask_number(first, UsbfsIoctl::ReleaseInterface, 0), Ok(0));
    assert_eq!(program.submit_bulk(second, BASE + 0x1000, BULK_OUT, 0), Ok(0));
    assert_eq!(program.ask_number(first, UsbfsIoctl::ClaimInterface, 0), Err(UsbfsError::Busy));
    program.put(BASE, &[0_u32.to_le_bytes(), DriverIoctl::DISCONNECT.to_le_bytes(), [0; 4], [0; 4]].concat());
    assert_eq!(program.ask(first, UsbfsIoctl::Ioctl, BASE), Ok(0));
    assert_eq!(program.ask(first, UsbfsIoctl::Ioctl, BASE), Err(UsbfsError::NoDriver));
    assert_eq!(program.reap(second), Ok((BASE + 0x1000, -108, 0)), "detaching cancels what was under way");
    assert_eq!(program.ask_number(first, UsbfsIoctl::ClaimInterface, 0), Ok(0));
    program.node.close(program.now, first);
    assert_eq!(program.ask_number(second, UsbfsIoctl::ClaimInterface, 0), Ok(0));
}

#[test]
fn an_open_for_reading_only_may_do_nothing_but_read() {
    let mut program = Program::new(Scripted::new(Manners::default()), PointerWidth::Bits64);
    let open = program.node.open(false).unwrap();
    assert_eq!(program.ask(open, UsbfsIoctl::GetCapabilities, BASE), Err(UsbfsError::ReadOnly));
    assert_eq!(program.ask(open, UsbfsIoctl::ReapUrbNoDelay, BASE), Err(UsbfsError::ReadOnly));
    let bytes = program.node.descriptors();
    assert_eq!(bytes[..2], [18, 1]);
    assert_eq!(bytes[18..20], [9, 2]);
}

#[test]
fn a_program_is_told_the_place_and_speed_of_its_device() {
    let (mut program, open) = Program::configured(Manners::default());
    assert_eq!(program.ask(open, UsbfsIoctl::GetSpeed, 0), Ok(3));
    assert_eq!(program.ask(open, UsbfsIoctl::ConnectInfo, BASE), Ok(0));
    assert_eq!(program.get(BASE, 8), [7, 0, 0, 0, 0, 0, 0, 0]);
    program.put(BASE, &[0xaa; 24]);
    assert_eq!(program.ask(open, UsbfsIoctl::ConnectInfoEx(18), BASE), Ok(0));
    let expected = [24, 0, 0, 0, 3, 0, 0, 0, 7, 0, 0, 0, 3, 0, 0, 0, 2, 1, 0xaa];
    assert_eq!(program.get(BASE, 19), expected, "as much as there is room for");
    assert_eq!(program.ask(open, UsbfsIoctl::GetCapabilities, BASE), Ok(0));
    assert_eq!(program.get_u32(BASE), 0x1df);
}

#[test]
fn discard_and_completion_end_in_one_of_the_ways_that_the_table_has() {
    // Finished first.
    let (mut program, open) = Program::configured(LATE);
    let urb = BASE + 0x1000;
    assert_eq!(program.submit_bulk(open, urb, BULK_IN, 0), Ok(0));
    assert!(program.device_completes(BULK_IN));
    assert_eq!(program.ask(open, UsbfsIoctl::DiscardUrb, urb), Err(UsbfsError::Invalid));
    assert_eq!(program.reap(open), Ok((urb, 0, 64)));

    // Discarded first, and the device cancels it.
    assert_eq!(program.submit_bulk(open, urb, BULK_IN, 0), Ok(0));
    let discard = program.say(open, UsbfsIoctl::DiscardUrb, urb);
    assert_eq!(program.ask(open, UsbfsIoctl::DiscardUrb, urb), Err(UsbfsError::Invalid), "once only");
    assert_eq!(program.reap(open), Err(UsbfsError::NotYet), "it is not over yet");
    assert!(program.device_lets_go());
    assert_eq!(program.answers.remove(&discard), Some(Ok(0)));
    assert_eq!(program.reap(open), Ok((urb, -2, 0)));

    // Discarded first, but the device was faster.
    assert_eq!(program.submit_bulk(open, urb, BULK_IN, 0), Ok(0));
    let discard = program.say(open, UsbfsIoctl::DiscardUrb, urb);
    assert!(program.device_completes(BULK_IN));
    assert_eq!(program.answers.remove(&discard), Some(Ok(0)));
    assert_eq!(program.reap(open), Ok((urb, 0, 64)));
    assert_eq!(program.node.bytes(), 0);
}

#[test]
fn reaping_waits_until_a_urb_ends_a_signal_comes_or_the_device_goes() {
    let (mut program, open) = Program::configured(LATE);
    let (urb, pointer_at) = (BASE + 0x1000, BASE + 0x40);
    let [first, second, third] = [0; 3].map(|_| program.say(open, UsbfsIoctl::ReapUrb, pointer_at));
    assert_eq!(program.submit_bulk(open, urb, BULK_IN, 0), Ok(0));
    assert!(program.answers.is_empty());
    assert!(program.device_completes(BULK_IN));
    assert_eq!(program.answers.remove(&first), Some(Ok(0)));
    assert_eq!(program.get(pointer_at, 8), urb.to_le_bytes());
    program.node.handle_interrupt(program.now, second);
    program.collect();
    assert_eq!(program.answers.remove(&second), Some(Err(UsbfsError::Interrupted)));
    program.unplug();
    assert_eq!(program.answers.remove(&third), Some(Err(UsbfsError::Gone)));
}

#[test]
fn what_was_under_way_is_reaped_after_the_device_is_gone_and_then_nothing() {
    let (mut program, open) = Program::configured(LATE);
    let urb = BASE + 0x1000;
    assert_eq!(program.submit_bulk(open, urb, BULK_IN, 0), Ok(0));
    assert_eq!(program.node.events(open), UsbfsPollEvents::default());
    program.unplug();
    assert_eq!(program.node.poll_change(), Some(open));
    assert_eq!(program.node.poll_change(), None);
    assert_eq!(program.node.events(open), UsbfsPollEvents { can_reap: true, is_gone: true });
    assert_eq!(program.ask(open, UsbfsIoctl::GetSpeed, 0), Err(UsbfsError::Gone));
    assert_eq!(program.reap(open), Ok((urb, -108, 0)));
    assert_eq!(program.reap(open), Err(UsbfsError::Gone));
    assert_eq!(program.node.open(true), Err(UsbfsError::Gone));
    program.node.close(program.now, open);
    assert!(program.node.is_closed());
    assert_eq!(program.node.bytes(), 0);
}

#[test]
fn a_transfer_that_waits_ends_by_its_time_or_a_signal() {
    let (mut program, open) = Program::configured(LATE);
    let put = |program: &mut Program<Scripted>, timeout_ms: u32| {
        let numbers = [u32::from(INTERRUPT_IN), 32, timeout_ms, 0].map(u32::to_le_bytes).concat();
        program.put(BASE, &[numbers, (BASE + 0x400).to_le_bytes().to_vec()].concat());
    };
    put(&mut program, 250);
    let timed = program.say(open, UsbfsIoctl::Bulk, BASE);
    let deadline = program.now + Duration::from_millis(250);
    assert_eq!(program.node.poll_timeout(), Some(deadline));
    program.node.handle_timeout(program.now);
    assert!(!program.device_lets_go(), "not before its time");
    program.node.handle_timeout(deadline);
    assert!(program.device_lets_go());
    assert_eq!(program.answers.remove(&timed), Some(Err(UsbfsError::TimedOut)));

    put(&mut program, 0);
    let signalled = program.say(open, UsbfsIoctl::Bulk, BASE);
    assert_eq!(program.node.poll_timeout(), None);
    program.node.handle_interrupt(program.now, signalled);
    assert!(program.device_lets_go());
    assert_eq!(program.answers.remove(&signalled), Some(Err(UsbfsError::Interrupted)));

    let done = program.say(open, UsbfsIoctl::Bulk, BASE);
    assert!(program.device_completes(INTERRUPT_IN));
    assert_eq!(program.answers.remove(&done), Some(Ok(32)));
    assert_eq!(program.get(BASE + 0x400, 32), vec![program.get(BASE + 0x400, 1)[0]; 32]);
    assert_eq!(program.node.bytes(), 0);
}

#[test]
fn device_that_answers_neither_a_cancel_nor_a_command_keeps_a_program_five_seconds_at_most() {
    let (mut program, open) = Program::configured(Manners { answers_control_late: true, ..LATE });
    let (urb, if_signalled, limit) = (BASE + 0x1000, Duration::from_secs(1), Duration::from_secs(5));
    let ends_at = |program: &mut Program<Scripted>, limit: Duration| {
        let at = program.now + limit;
        assert_eq!(program.node.poll_timeout(), Some(at));
        program.node.handle_timeout(program.now + (limit - Duration::from_nanos(1)));
        program.collect();
        assert!(program.answers.is_empty(), "not before its time");
        program.node.handle_timeout(at);
        program.collect();
        assert_eq!(program.node.poll_timeout(), None);
    };
    assert_eq!(program.submit_bulk(open, urb, BULK_IN, 0), Ok(0));
    let discard = program.say(open, UsbfsIoctl::DiscardUrb, urb);
    ends_at(&mut program, limit);
    assert_eq!((program.answers.remove(&discard), program.reap(open)), (Some(Ok(0)), Ok((urb, -2, 0))));
    assert!(program.node.bytes() > 0, "the device has its memory still");
    assert!(program.device_lets_go());
    assert!(program.answers.is_empty() && program.reap(open) == Err(UsbfsError::NotYet), "its late answer is dropped");
    assert_eq!(program.node.bytes(), 0);

    // A signal makes it sooner.
    assert_eq!(program.submit_bulk(open, urb, BULK_IN, 0), Ok(0));
    let discard = program.say(open, UsbfsIoctl::DiscardUrb, urb);
    program.node.handle_interrupt(program.now, discard);
    ends_at(&mut program, if_signalled);
    assert_eq!((program.answers.remove(&discard), program.reap(open)), (Some(Ok(0)), Ok((urb, -2, 0))));

    program.put(BASE, &u32::from(BULK_IN).to_le_bytes());
    let halt = program.say(open, UsbfsIoctl::ClearHalt, BASE);
    ends_at(&mut program, limit);
    assert_eq!(program.answers.remove(&halt), Some(Err(UsbfsError::TimedOut)));

    let numbers = [u32::from(INTERRUPT_IN), 32, 250, 0].map(u32::to_le_bytes).concat();
    program.put(BASE, &[numbers, (BASE + 0x400).to_le_bytes().to_vec()].concat());
    let timed = program.say(open, UsbfsIoctl::Bulk, BASE);
    program.now = program.now + Duration::from_millis(250);
    program.node.handle_timeout(program.now);
    ends_at(&mut program, limit);
    assert_eq!(program.answers.remove(&timed), Some(Err(UsbfsError::TimedOut)));
    assert_eq!(program.node.given_up(), 4);
    program.unplug();
    program.node.close(program.now, open);
    assert_eq!(program.node.bytes(), 0);
}

#[test]
fn isochronous_packets_lie_at_their_places_and_have_results_of_their_own() {
    let (mut program, open) = Program::configured(LATE);
    let (urb, data) = (BASE + 0x1000, BASE + 0x4000);
    let lengths = [100, 200, 50];
    program.put_urb(urb, (ISO, ISO_IN, 2), (data, 0), &lengths);
    assert_eq!(program.ask(open, UsbfsIoctl::SubmitUrb, urb), Ok(0));
    assert!(program.device_completes(ISO_IN));
    assert_eq!(program.reap(open), Ok((urb, 0, 350)));
    for (at, length) in lengths.iter().enumerate() {
        let packet = urb + 56 + 12 * at as u64;
        assert_eq!([0, 4, 8].map(|field| program.get_u32(packet + field)), [*length, *length, 0]);
    }
    assert_eq!(program.get(data, 350), vec![program.get(data, 1)[0]; 350]);
    assert_eq!(program.get(data + 350, 1), [0]);

    program.put_urb(urb, (ISO, ISO_OUT, 2), (data, 0), &[8; 128]);
    assert_eq!(program.ask(open, UsbfsIoctl::SubmitUrb, urb), Ok(0));
    assert!(program.device_completes(ISO_OUT));
    assert_eq!(program.reap(open), Ok((urb, 0, 1024)));
    for (lengths, kind, endpoint) in
        [(vec![8; 129], ISO, ISO_OUT), (vec![98_305], ISO, ISO_OUT), (vec![8], ISO, BULK_IN)]
    {
        program.put_urb(urb, (kind, endpoint, 2), (data, 0), &lengths);
        assert_eq!(program.ask(open, UsbfsIoctl::SubmitUrb, urb), Err(UsbfsError::Invalid));
    }
}

#[test]
fn urbs_that_fit_no_endpoint_or_point_nowhere_are_refused_and_cost_nothing() {
    let (mut program, open) = Program::configured(LATE);
    let urb = BASE + 0x1000;
    for (kind, endpoint, flags, buffer, length, refusal) in [
        (INTERRUPT, BULK_IN, 0, BASE, 8, UsbfsError::Invalid),
        (BULK, ISO_IN, 0, BASE, 8, UsbfsError::Invalid),
        (BULK, 0x8f, 0, BASE, 8, UsbfsError::NotFound),
        // In setting 1 of interface 1, which is in setting 0.
        (BULK, 0x84, 0, BASE, 8, UsbfsError::NotFound),
        (BULK, 0x71, 0, BASE, 8, UsbfsError::Invalid),
        (BULK, BULK_IN, 0x100, BASE, 8, UsbfsError::Invalid),
        (BULK, BULK_IN, 0, 0, 8, UsbfsError::Invalid),
        (BULK, BULK_IN, 0, BASE, u32::MAX, UsbfsError::Invalid),
        (BULK, BULK_IN, 0, BASE, 1 << 29, UsbfsError::NoMemory),
        (BULK, BULK_OUT, 0, 8, 8, UsbfsError::BadAddress),
        (CONTROL, 0, 0, BASE, 7, UsbfsError::Invalid),
        (9, BULK_IN, 0, BASE, 8, UsbfsError::Invalid),
    ] {
        program.put_urb(urb, (kind, endpoint, flags), (buffer, length), &[]);
        let answer = program.ask(open, UsbfsIoctl::SubmitUrb, urb);
        assert_eq!(answer, Err(refusal), "kind {kind}, endpoint {endpoint:#x}, flags {flags:#x}, length {length}");
    }
    assert_eq!(program.ask(open, UsbfsIoctl::SubmitUrb, 16), Err(UsbfsError::BadAddress));
    assert_eq!(program.node.bytes(), 0);
}

#[test]
fn memory_for_transfers_is_limited_and_comes_back() {
    let (mut program, open) = Program::configured(LATE);
    let mut count = 0_u64;
    loop {
        let urb = BASE + 0x1000 + 0x80 * count;
        program.put_urb(urb, (BULK, BULK_IN, 0), (BASE, 4 << 20), &[]);
        match program.ask(open, UsbfsIoctl::SubmitUrb, urb) {
            Ok(_) => count += 1,
            Err(refusal) => break assert_eq!(refusal, UsbfsError::NoMemory),
        }
    }
    assert_eq!(count, 15, "64 MiB, and something for each URB");
    program.node.close(program.now, open);
    while program.device_lets_go() {}
    assert_eq!(program.node.bytes(), 0);

    // What other devices of the program hold is not there for this one.
    let (mut program, open) = Program::configured(LATE);
    program.node.limit_bytes(1 << 20);
    for (length, result) in [((1 << 20) - 512, Ok(0)), (1, Err(UsbfsError::NoMemory))] {
        program.put_urb(BASE + 0x1000, (BULK, BULK_IN, 0), (BASE, length), &[]);
        assert_eq!(program.ask(open, UsbfsIoctl::SubmitUrb, BASE + 0x1000), result);
    }
    program.node.close(program.now, open);
    while program.device_lets_go() {}

    // As a kernel, whose 16 MiB are for all.
    let (mut program, open) = Program::configured(LATE);
    for (length, result) in [(16 << 20, Ok(0)), ((16 << 20) + 1, Err(UsbfsError::NoMemory))] {
        program.put_urb(BASE + 0x1000, (BULK, BULK_IN, 0), (BASE, length), &[]);
        assert_eq!(program.ask(open, UsbfsIoctl::SubmitUrb, BASE + 0x1000), result);
    }
    program.node.close(program.now, open);
    while program.device_lets_go() {}
}

#[test]
fn a_failed_bulk_transfer_takes_those_that_continue_it_along_and_no_others() {
    let (mut program, open) = Program::configured(Manners::default());
    let urb = |at: u64| BASE + 0x1000 * (at + 1);
    for at in 0..3 {
        let flags = SHORT_NOT_OK | if at > 0 { CONTINUATION } else { 0 };
        assert_eq!(program.submit_bulk(open, urb(at), BULK_IN, flags), Ok(0));
    }
    program.device_fails(BULK_IN, UrbStatus::Short);
    assert_eq!(program.reap(open), Ok((urb(0), -121, 0)));
    assert_eq!(program.reap(open), Ok((urb(1), -104, 0)));
    assert_eq!(program.reap(open), Ok((urb(2), -104, 0)));
    assert_eq!(program.submit_bulk(open, urb(3), BULK_IN, CONTINUATION), Err(UsbfsError::Discontinued));
    assert_eq!(program.submit_bulk(open, urb(3), BULK_IN, 0), Ok(0));
    assert_eq!(program.submit_bulk(open, urb(4), BULK_IN, CONTINUATION), Ok(0));
    // The next transfer was under way already: it goes on.
    assert_eq!(program.submit_bulk(open, urb(5), BULK_IN, 0), Ok(0));
    program.device_fails(BULK_IN, UrbStatus::Stall);
    assert_eq!(program.reap(open), Ok((urb(3), -32, 0)));
    assert_eq!(program.reap(open), Ok((urb(4), -104, 0)));
    assert_eq!(program.reap(open), Err(UsbfsError::NotYet));
    assert!(program.device_completes(BULK_IN));
    assert_eq!(program.reap(open), Ok((urb(5), 0, 64)));
}

#[test]
fn a_reset_device_has_its_configuration_and_first_settings_and_nobody_has_its_interfaces() {
    let (mut program, open) = Program::configured(Manners::default());
    assert_eq!(program.ask_number(open, UsbfsIoctl::ClaimInterface, 1), Ok(0));
    program.put(BASE, &[1_u32.to_le_bytes(), 1_u32.to_le_bytes()].concat());
    assert_eq!(program.ask(open, UsbfsIoctl::SetInterface, BASE), Ok(0));
    assert_eq!(program.submit_bulk(open, BASE + 0x1000, 0x84, 0), Ok(0));
    assert_eq!(program.ask(open, UsbfsIoctl::Reset, 0), Ok(0));
    assert_eq!(program.reap(open), Ok((BASE + 0x1000, -108, 0)));
    let selection = program.node.device().selection();
    assert_eq!((selection.configuration(), selection.alternate(1)), (1, 0));
    assert_eq!(program.ask_number(open, UsbfsIoctl::GetDriver, 1), Err(UsbfsError::NoDriver));
    program.put(BASE, &[1_u32.to_le_bytes(), 9_u32.to_le_bytes()].concat());
    assert_eq!(program.ask(open, UsbfsIoctl::SetInterface, BASE), Err(UsbfsError::Invalid));
}

#[test]
fn a_reset_shows_nothing_else_than_before_at_any_time() {
    let manners = Manners { cancels_late: false, answers_control_late: true };
    let (mut program, open) = Program::configured(manners);
    let (first, second) = (program.say(open, UsbfsIoctl::Reset, 0), program.say(open, UsbfsIoctl::Reset, 0));
    while !program.answers.contains_key(&second) {
        assert_eq!(program.node.selection().configuration(), 1);
        assert!(program.device_completes(0), "the device has a request until both are answered");
    }
    assert!(program.answers.contains_key(&first));
    assert_eq!(program.node.selection().configuration(), 1);
    assert_eq!(program.node.device().selection().configuration(), 1, "and it has its configuration itself");
}

#[test]
fn a_control_transfer_to_an_interface_needs_its_claim_unless_it_is_a_vendors() {
    let (mut program, first) = Program::configured(Manners::default());
    let second = program.open();
    for (request_type, expected) in
        [(0x81, Err(UsbfsError::Busy)), (0xc1, Ok(2)), (0x80, Ok(2)), (0x82, Err(UsbfsError::Busy))]
    {
        let index = if request_type == 0x82 { BULK_IN.into() } else { 0 };
        let setup = SetupPacket { request_type, request: 0, value: 0, index, length: 2 };
        let numbers = [setup.to_bytes().to_vec(), vec![0; 8], (BASE + 0x200).to_le_bytes().to_vec()].concat();
        program.put(BASE, &numbers);
        assert_eq!(program.ask(second, UsbfsIoctl::Control, BASE), expected, "{request_type:#x}");
        assert_eq!(program.ask(first, UsbfsIoctl::Control, BASE), Ok(2), "{request_type:#x}");
    }
}

#[test]
fn rights_that_were_given_up_are_gone() {
    let (mut program, open) = Program::configured(Manners::default());
    assert_eq!(program.ask_number(open, UsbfsIoctl::DropPrivileges, 0b01), Ok(0));
    assert_eq!(program.ask_number(open, UsbfsIoctl::ClaimInterface, 1), Err(UsbfsError::RightDropped));
    assert_eq!(program.ask_number(open, UsbfsIoctl::SetConfiguration, 1), Err(UsbfsError::Busy), "it has an interface");
    assert_eq!(program.ask_number(open, UsbfsIoctl::ClaimInterface, 0), Ok(0));
    // Nor is an interface claimed for a transfer, or a request.
    assert_eq!(program.ask_number(open, UsbfsIoctl::ClearHalt, 0x84), Err(UsbfsError::RightDropped));
    program.put(BASE, &[1_u32.to_le_bytes(), 1_u32.to_le_bytes()].concat());
    assert_eq!(program.ask(open, UsbfsIoctl::SetInterface, BASE), Err(UsbfsError::RightDropped));
    program.put(BASE, &[1_u32.to_le_bytes(), DriverIoctl::DISCONNECT.to_le_bytes(), [0; 4], [0; 4]].concat());
    assert_eq!(program.ask(open, UsbfsIoctl::Ioctl, BASE), Err(UsbfsError::RightDropped));
    assert_eq!(program.ask_number(open, UsbfsIoctl::ReleaseInterface, 0), Ok(0));
    assert_eq!(program.ask_number(open, UsbfsIoctl::DropPrivileges, 0), Ok(0));
    assert_eq!(program.submit_bulk(open, BASE + 0x1000, BULK_OUT, 0), Err(UsbfsError::RightDropped));
    assert_eq!(program.ask_number(open, UsbfsIoctl::SetConfiguration, 1), Ok(0));
}

#[test]
fn an_interface_that_is_let_go_of_has_its_first_setting_again() {
    let (mut program, open) = Program::configured(Manners::default());
    let alternate = |program: &Program<Scripted>| program.node.device().selection().alternate(1);
    for is_closed in [false, true] {
        let open = if is_closed { program.open() } else { open };
        assert_eq!(program.ask_number(open, UsbfsIoctl::ClaimInterface, 1), Ok(0));
        program.put(BASE, &[1_u32.to_le_bytes(), 1_u32.to_le_bytes()].concat());
        assert_eq!(program.ask(open, UsbfsIoctl::SetInterface, BASE), Ok(0));
        assert_eq!(alternate(&program), 1);
        if is_closed {
            program.node.close(program.now, open);
        } else {
            assert_eq!(program.ask_number(open, UsbfsIoctl::ReleaseInterface, 1), Ok(0));
        }
        assert_eq!(alternate(&program), 0);
    }
}

#[test]
fn a_transfer_that_must_not_be_short_fails_whatever_its_device_thinks_of_it() {
    let (mut program, open) = Program::configured(Manners::default());
    let urb = |at: u64| BASE + 0x1000 * (at + 1);
    for (at, flags) in [(0, SHORT_NOT_OK), (1, SHORT_NOT_OK | CONTINUATION)] {
        program.put_urb(urb(at), (BULK, BULK_IN, flags), (BASE, 512), &[]);
        assert_eq!(program.ask(open, UsbfsIoctl::SubmitUrb, urb(at)), Ok(0));
    }
    // All is well, it says, and there are no bytes.
    program.device_fails(BULK_IN, UrbStatus::Ok);
    assert_eq!(program.reap(open), Ok((urb(0), -121, 0)));
    assert_eq!(program.reap(open), Ok((urb(1), -104, 0)));
}

/// Any commands with any arguments, and a device that ends requests in any order.
#[test]
fn fuzz_usbfs_commands() {
    fuzz(env!("CARGO_MANIFEST_DIR"), "fuzz_usbfs_commands", |input: &mut Input<'_>| {
        let width = if input.byte() & 1 == 0 { PointerWidth::Bits64 } else { PointerWidth::Bits32 };
        let mut program = Program::new(Scripted::new(LATE), width);
        let mut opens = vec![program.open()];
        program.ask_number(opens[0], UsbfsIoctl::SetConfiguration, 1).expect("a configuration that is there");
        while !input.is_empty() {
            let open = opens[usize::from(input.byte()) % opens.len()];
            match input.byte() % 16 {
                0 if opens.len() < 4 => opens.extend(program.node.open(input.byte() & 1 == 0)),
                1 if opens.len() > 1 => {
                    opens.retain(|&other| other != open);
                    program.node.close(program.now, open);
                }
                2 | 3 => drop(program.device_completes(input.byte() & 0x83)),
                4 => drop(program.device_lets_go()),
                5 => {
                    let last = CallId(program.commands);
                    program.node.handle_interrupt(program.now, last);
                }
                6 => {
                    program.now = program.now + Duration::from_millis(input.byte().into());
                    program.node.handle_timeout(program.now);
                }
                7 if input.byte() == 0 => program.unplug(),
                8..=10 => {
                    let at = BASE + 0x1000 * u64::from(1 + input.byte() % 8);
                    put_likely_urb(&mut program, at, input);
                    program.say(open, UsbfsIoctl::SubmitUrb, at);
                }
                11 => {
                    program.say(open, pick_reap(input.byte()), BASE + 8);
                }
                12 => {
                    let at = BASE + 0x1000 * u64::from(1 + input.byte() % 8);
                    program.say(open, UsbfsIoctl::DiscardUrb, at);
                }
                13 => {
                    program.put(BASE, &u32::from(input.byte() & 1).to_le_bytes());
                    program.say(open, UsbfsIoctl::ClaimInterface, BASE);
                }
                _ => {
                    let Some(call) = any_call(input.byte(), width) else { continue };
                    let bytes = input.bytes(64);
                    program.put(BASE, &bytes);
                    let argument = if input.byte() == 0 { input.byte().into() } else { BASE };
                    program.say(open, call, argument);
                }
            }
            program.collect();
        }
        for open in opens {
            program.node.close(program.now, open);
        }
        while program.device_lets_go() {}
        program.collect();
        assert_eq!(program.node.bytes(), 0, "every byte that was charged came back");
        assert_eq!(program.node.device().holds(), 0, "the device holds nothing of anybody");
    });
}

fn pick_reap(number: u8) -> UsbfsIoctl {
    if number & 1 == 0 { UsbfsIoctl::ReapUrb } else { UsbfsIoctl::ReapUrbNoDelay }
}

/// A URB whose fields fit each other in most cases: kind and endpoint, length and memory, packets and their sum.
fn put_likely_urb(program: &mut Program<Scripted>, at: u64, input: &mut Input<'_>) {
    let pairs = [
        (BULK, BULK_IN),
        (BULK, BULK_OUT),
        (BULK, INTERRUPT_IN),
        (INTERRUPT, INTERRUPT_IN),
        (ISO, ISO_IN),
        (ISO, ISO_OUT),
        (CONTROL, 0),
        (CONTROL, 0x80),
    ];
    let (mut kind, mut endpoint) = input.pick(&pairs);
    if input.once_in(16) {
        (kind, endpoint) = (input.byte() % 5, input.byte());
    }
    // Each option alone and together; now and then one that there is not.
    let flags = if input.once_in(16) { input.word() } else { u32::from(input.byte()) & 0xc7 };
    let buffer = if input.once_in(16) { u64::from(input.word()) } else { BASE + 0x1_0000 };
    let mut length = input.pick(&[0, 1, 8, 9, 18, 64, 512, 4096, 16384]);
    let lengths: Vec<u32> = match kind {
        ISO => (0..input.below(6)).map(|_| input.pick(&[0, 1, 64, 1023, 1024, 3072, 0xffff])).collect(),
        _ => Vec::new(),
    };
    if kind == ISO && !input.once_in(8) {
        length = lengths.iter().sum();
    }
    if kind == CONTROL {
        let room = length.saturating_sub(8) as u16;
        let setup = SetupPacket {
            request_type: input.pick(&[0x80, 0x00, 0x81, 0x01, 0x82, 0x21, 0xc0, 0x40]),
            request: input.byte() % 16,
            value: u16::from(input.byte()),
            index: u16::from(input.byte()),
            length: if input.once_in(8) { input.byte().into() } else { room },
        };
        program.put(BASE + 0x1_0000, &setup.to_bytes());
    }
    program.put_urb(at, (kind, endpoint, flags), (buffer, length), &lengths);
}

fn any_call(number: u8, width: PointerWidth) -> Option<UsbfsIoctl> {
    // Every size that a structure has, for either direction.
    let sizes = [0_u32, 4, 8, 12, 16, 24, 44, 56, 260, 264];
    let codes = (0..4_u32).flat_map(|direction| sizes.map(|size| direction << 30 | size << 16 | 0x5500));
    codes.filter_map(|code| UsbfsIoctl::decode(code | u32::from(number % 36), width)).next()
}
