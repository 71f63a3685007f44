use farbus_model::{BufferPool, CompletionQueue, Device, Instant, Urb, UrbId, UrbStatus};
use proptest::prelude::*;

use super::*;
use crate::fuzzing::fuzz;

const BULK_IN: EpAddr = EpAddr::from_byte(0x81);
const BULK_OUT: EpAddr = EpAddr::from_byte(0x01);
const REPORT_IN: EpAddr = EpAddr::from_byte(0x82);
const REPORT_OUT: EpAddr = EpAddr::from_byte(0x02);

/// Requests of DAP_Transfer.
const READ_DPIDR: u8 = 0x02;
const WRITE_ABORT: u8 = 0x00;
const READ_CTRL: u8 = 0x06;
const WRITE_CTRL: u8 = 0x04;
const WRITE_SELECT: u8 = 0x08;
const WRITE_CSW: u8 = 0x01;
const WRITE_TAR: u8 = 0x05;
const READ_TAR: u8 = 0x07;
const WRITE_DRW: u8 = 0x0d;
const READ_DRW: u8 = 0x0f;
const FAULT: u8 = 4;
const SILENCE: u8 = 7;

const DHCSR: u32 = 0xe000_edf0;
const DCRSR: u32 = 0xe000_edf4;
const DCRDR: u32 = 0xe000_edf8;
const DEMCR: u32 = 0xe000_edfc;
const AIRCR: u32 = 0xe000_ed0c;

/// A host with the probe.
struct Host {
    device: EmulatedDevice<CmsisDap>,
    done: CompletionQueue,
    now: Instant,
}

impl Host {
    fn new() -> Self {
        let done = CompletionQueue::new(BufferPool::new(0));
        let mut host = Self { device: CmsisDap::device(), done, now: Instant::ZERO };
        host.configure();
        host
    }

    fn configure(&mut self) {
        let setup = SetupPacket::set_configuration(1);
        self.device.submit(self.now, Urb::control(UrbId(0), setup, Payload::Empty).launch(), &mut self.done);
        assert_eq!(self.done.pop().unwrap().status, UrbStatus::Ok);
    }

    /// Whether the packet was taken; a packet that waits is cancelled.
    fn give(&mut self, endpoint: EpAddr, packet: &[u8]) -> bool {
        self.now = self.now + Duration::from_millis(1);
        let urb = Urb::data_out(UrbId(1), endpoint, packet.to_vec().into());
        self.device.submit(self.now, urb.launch(), &mut self.done);
        self.device.cancel(self.now, UrbId(1), &mut self.done);
        self.done.pop().unwrap().status == UrbStatus::Ok
    }

    fn ask(&mut self, endpoint: EpAddr, room: u32) -> Option<Vec<u8>> {
        self.now = self.now + Duration::from_millis(1);
        self.device.submit(self.now, Urb::data_in(UrbId(2), endpoint, room).launch(), &mut self.done);
        self.device.cancel(self.now, UrbId(2), &mut self.done);
        let done = self.done.pop().unwrap();
        (done.status == UrbStatus::Ok).then(|| done.payload.into_vec())
    }

    fn command(&mut self, packet: &[u8]) -> Vec<u8> {
        assert!(self.give(BULK_OUT, packet));
        self.ask(BULK_IN, 512).expect("every command is answered")
    }

    /// One DAP_Transfer of these requests: how many were made, the acknowledgement, what was read.
    fn transfer(&mut self, requests: &[(u8, u32)]) -> (u8, u8, Vec<u32>) {
        let mut packet = vec![5, 0, requests.len() as u8];
        for (request, value) in requests {
            packet.push(*request);
            if request & 2 == 0 || request & 0x10 != 0 {
                packet.extend(value.to_le_bytes());
            }
        }
        let answer = self.command(&packet);
        assert_eq!(answer[0], 5);
        let words = answer[3..].as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word));
        (answer[1], answer[2], words.collect())
    }

    /// Makes the target listen, and powers its debug port.
    fn connect(&mut self) {
        assert_eq!(self.command(&[2, 1]), [2, 1]);
        assert_eq!(self.command(&[&[0x12, 56][..], &[0xff; 7]].concat()), [0x12, 0]);
        let (done, acknowledged, words) =
            self.transfer(&[(READ_DPIDR, 0), (WRITE_SELECT, 0), (WRITE_CTRL, 0x5000_0000), (READ_CTRL, 0)]);
        assert_eq!((done, acknowledged), (4, 1));
        assert_eq!(words, [0x2ba0_1477, 0xf000_0000]);
    }

    fn connected() -> Self {
        let mut host = Self::new();
        host.connect();
        host
    }

    fn poke(&mut self, address: u32, value: u32) {
        let requests = [(WRITE_CSW, 0x2300_0052), (WRITE_TAR, address), (WRITE_DRW, value)];
        assert_eq!(self.transfer(&requests), (3, 1, vec![]), "{address:08x}");
    }

    fn peek(&mut self, address: u32) -> u32 {
        let (done, acknowledged, words) =
            self.transfer(&[(WRITE_CSW, 0x2300_0052), (WRITE_TAR, address), (READ_DRW, 0)]);
        assert_eq!((done, acknowledged), (3, 1), "{address:08x}");
        words[0]
    }

    fn register(&mut self, number: u32) -> u32 {
        self.poke(DCRSR, number);
        self.peek(DCRDR)
    }
}

#[test]
fn both_interfaces_are_named_and_the_bulk_endpoints_in_order() {
    let device = CmsisDap::device();
    let all = device.descriptors();
    let bytes = &all.configurations[0].bytes;
    assert_eq!(bytes[9..18], [9, 4, 0, 0, 2, 0xff, 0, 0, 4]);
    assert_eq!([bytes[20], bytes[27]], [0x01, 0x81]);
    assert_eq!(bytes[32..41], [9, 4, 1, 0, 2, 3, 0, 0, 5]);
    let texts = [2, 4, 5].map(|index| all.string(index).unwrap());
    assert!(texts.iter().all(|text| text.contains("CMSIS-DAP")), "{texts:?}");
}

#[test]
fn probe_tells_what_it_is_and_refuses_what_it_does_not_know() {
    let mut host = Host::new();
    for (command, answer) in [
        (&[0, 0x02][..], &b"\x00\x10CMSIS-DAP probe\0"[..]),
        (&[0, 0x04], b"\x00\x062.1.0\0"),
        (&[0, 0x05], b"\x00\x00"),
        (&[0, 0xf0], b"\x00\x01\x11"),
        (&[0, 0xfe], b"\x00\x01\x04"),
        (&[0, 0xff], b"\x00\x02\x00\x02"),
        (&[1, 0, 1], &[1, 0]),
        (&[2, 2], &[2, 0]),
        (&[2, 0], &[2, 1]),
        (&[3], &[3, 0]),
        (&[9, 10, 0], &[9, 0]),
        (&[0x0a], &[0x0a, 0, 0]),
        (&[0x11, 0, 0, 0, 0], &[0x11, 0xff]),
        (&[0x11, 0, 9, 0, 0], &[0x11, 0]),
        (&[0x13, 0], &[0x13, 0]),
        (&[0x14, 0], &[0xff]),
        (&[0x80], &[0xff]),
        // Too short.
        (&[0], &[0xff]),
        (&[0x12, 9, 1], &[0xff]),
        (&[5, 0, 2, READ_DPIDR], &[0xff]),
        (&[6, 0, 2, 0, WRITE_DRW, 1, 2, 3, 4], &[0xff]),
        (&[0x7f], &[0xff]),
        // Not connected: no transfer.
        (&[5, 0, 1, READ_DPIDR], &[5, 0, 0]),
        (&[6, 0, 1, 0, READ_DPIDR], &[6, 0, 0, 0]),
        (&[8, 0, 4, 0, 0, 0], &[8, 0xff]),
    ] {
        assert_eq!(host.command(command), answer, "{command:02x?}");
    }
    assert!(host.give(BULK_OUT, &[7, 0]) && host.ask(BULK_IN, 512).is_none(), "an abort has no answer");
}

#[test]
fn target_answers_after_a_line_reset_and_the_reading_of_its_identity() {
    let mut host = Host::new();
    host.command(&[2, 1]);
    assert_eq!(host.transfer(&[(READ_DPIDR, 0)]), (0, SILENCE, vec![]));
    host.command(&[&[0x12, 49][..], &[0xff; 7]].concat());
    assert_eq!(host.transfer(&[(READ_DPIDR, 0)]), (0, SILENCE, vec![]), "49 ones are one too few");
    host.command(&[&[0x12, 48][..], &[0xff; 6]].concat());
    host.command(&[0x12, 2, 0xff]);
    assert_eq!(host.transfer(&[(READ_CTRL, 0)]), (0, SILENCE, vec![]), "another register comes later");
    assert_eq!(host.transfer(&[(READ_DPIDR, 0), (READ_CTRL, 0)]), (2, 1, vec![0x2ba0_1477, 0]));
    // No power: no access to memory.
    assert_eq!(host.transfer(&[(WRITE_TAR, 0)]), (0, FAULT, vec![]));
    assert_eq!(host.transfer(&[(READ_CTRL, 0)]), (1, 1, vec![0x20]));
}

#[test]
fn memory_is_read_as_it_was_written_in_every_width() {
    let mut host = Host::connected();
    host.poke(SRAM, 0x1234_5678);
    host.poke(SRAM + MEMORY_BYTES as u32 - 4, 0xffff_0000);
    assert_eq!((host.peek(SRAM), host.peek(SRAM + MEMORY_BYTES as u32 - 4)), (0x1234_5678, 0xffff_0000));
    // A byte in its lane; the address increments by one.
    host.transfer(&[(WRITE_CSW, 0x2300_0050), (WRITE_TAR, SRAM + 2), (WRITE_DRW, 0x00ab_0000)]);
    assert_eq!(host.transfer(&[(READ_TAR, 0)]).2, [SRAM + 3]);
    assert_eq!(host.peek(SRAM), 0x12ab_5678);
    host.transfer(&[(WRITE_CSW, 0x2300_0051), (WRITE_TAR, SRAM)]);
    assert_eq!(host.transfer(&[(READ_DRW, 0), (READ_DRW, 0)]).2, [0x5678, 0x12ab_0000]);
    // Packed: four bytes at once, beginning in the middle of a word.
    host.poke(SRAM + 4, 0xddcc_bbaa);
    host.transfer(&[(WRITE_CSW, 0x2300_0060), (WRITE_TAR, SRAM + 2)]);
    assert_eq!(host.transfer(&[(READ_DRW, 0), (READ_TAR, 0)]).2, [0x12ab_bbaa, SRAM + 6]);
    // The increment wraps.
    host.transfer(&[(WRITE_CSW, 0x2300_0052), (WRITE_TAR, SRAM + 4092), (WRITE_DRW, 1), (WRITE_DRW, 2)]);
    assert_eq!((host.peek(SRAM + 4092), host.peek(SRAM)), (1, 2));

    let words: Vec<u32> = (0..100_u32).map(|word| word.wrapping_mul(0x0101_0107)).collect();
    host.transfer(&[(WRITE_TAR, SRAM)]);
    let mut block = vec![6, 0, 100, 0, WRITE_DRW];
    words.iter().for_each(|word| block.extend(word.to_le_bytes()));
    assert_eq!(host.command(&block), [6, 100, 0, 1]);
    host.transfer(&[(WRITE_TAR, SRAM)]);
    let answer = host.command(&[6, 0, 100, 0, READ_DRW]);
    assert_eq!(answer[..4], [6, 100, 0, 1]);
    let read: Vec<u32> = answer[4..].as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word)).collect();
    assert_eq!(read, words);
}

#[test]
fn answers_fit_into_a_packet() {
    let mut host = Host::connected();
    let answer = host.command(&[6, 0, 0xff, 0xff, READ_DPIDR]);
    assert_eq!((answer.len(), &answer[..4]), (512, &[6, 127, 0, 1][..]));
    let answer = host.command(&[&[5, 0, 255][..], &[READ_DPIDR; 255]].concat());
    assert_eq!((answer.len(), &answer[..3]), (511, &[5, 127, 1][..]));
    let commands = [0, 0x02].repeat(200);
    let answer = host.command(&[&[0x7f, 200][..], &commands].concat());
    assert!(answer.len() <= 512 && answer[1] < 200 && answer.last() == Some(&0xff), "{answer:02x?}");
}

#[test]
fn bus_errors_are_sticky_until_they_are_cleared() {
    let mut host = Host::connected();
    for address in [SRAM + MEMORY_BYTES as u32, MEMORY_BYTES as u32, 0x4000_0000, 0xffff_fffc] {
        let requests = [(WRITE_CSW, 0x2300_0052), (WRITE_TAR, address), (READ_DRW, 0), (READ_DRW, 0)];
        assert_eq!(host.transfer(&requests), (2, FAULT, vec![]), "{address:08x}");
        assert_eq!(host.transfer(&[(WRITE_TAR, SRAM)]).1, FAULT);
        assert_eq!(host.transfer(&[(READ_CTRL, 0)]), (1, 1, vec![0xf000_0020]));
        assert_eq!(host.command(&[8, 0, 4, 0, 0, 0]), [8, 0]);
        assert_eq!(host.transfer(&[(READ_CTRL, 0)]).2, [0xf000_0000]);
    }
    // A register takes whole words alone.
    let byte = [(WRITE_CSW, 0x2300_0050), (WRITE_TAR, DHCSR), (WRITE_DRW, 1)];
    assert_eq!(host.transfer(&byte), (2, FAULT, vec![]));
    assert_eq!(host.transfer(&[(WRITE_ABORT, 4), (WRITE_TAR, SRAM)]), (2, 1, vec![]));
}

#[test]
fn values_are_compared_until_they_match() {
    let mut host = Host::connected();
    host.command(&[4, 0, 0, 0, 3, 0]);
    for (at, value) in [1, 2, 3, 4, 5].into_iter().enumerate() {
        host.poke(SRAM + 4 * at as u32, value | 0xa500);
    }
    let match_drw = READ_DRW | 0x10;
    let set_mask = 0x20;
    let begin = [(set_mask, 0xff), (WRITE_CSW, 0x2300_0052), (WRITE_TAR, SRAM)];
    assert_eq!(host.transfer(&[&begin[..], &[(match_drw, 4), (READ_DRW, 0)]].concat()), (5, 1, vec![0xa505]));
    assert_eq!(host.transfer(&[&begin[..], &[(match_drw, 5), (READ_DRW, 0)]].concat()), (3, 0x11, vec![]));
}

#[test]
fn debugger_finds_the_components_of_a_cortex_m4() {
    let mut host = Host::connected();
    let bank = |host: &mut Host, select: u32| drop(host.transfer(&[(WRITE_SELECT, select)]));
    bank(&mut host, 0xf0);
    assert_eq!(host.transfer(&[(0x0b, 0), (0x0f, 0)]).2, [0xe00f_f003, 0x2477_0011]);
    bank(&mut host, 0x0100_00f0);
    assert_eq!(host.transfer(&[(0x0f, 0)]).2, [0], "no other access port");
    bank(&mut host, 0);
    assert_eq!(host.peek(0xe000_ed00), 0x410f_c241);
    let mut components = Vec::new();
    for at in 0.. {
        let entry = host.peek(0xe00f_f000 + 4 * at);
        if entry == 0 {
            break;
        }
        components.push(0xe00f_f000_u32.wrapping_add(entry & !3));
    }
    assert_eq!(components, [0xe000_e000, 0xe000_1000, 0xe000_2000]);
    for (component, part) in [(0xe000_e000, 0x0c), (0xe000_1000, 2), (0xe000_2000, 3), (0xe00f_f000, 0xc4)] {
        let words = [0xfe0, 0xfe8, 0xfd0, 0xff0, 0xff8].map(|offset| host.peek(component + offset));
        assert_eq!(words, [part, 0x0b, 4, 0x0d, 0x05]);
    }
}

#[test]
fn core_halts_steps_and_has_registers() {
    let mut host = Host::connected();
    assert_eq!(host.peek(DHCSR), 0x0201_0000, "it was reset");
    host.poke(DHCSR, 0x0000_0003);
    assert!(!host.device.function().is_halted(), "a write without the key is ignored");
    host.poke(DHCSR, 0xa05f_0003);
    assert_eq!(host.peek(DHCSR), 0x0003_0003);
    for (number, value) in [(0, 7), (12, 0x1234), (13, 0x2000_1001), (15, 0x101), (18, 0x2000_2000)] {
        host.poke(DCRDR, value);
        host.poke(DCRSR, number | 1 << 16);
    }
    assert_eq!(
        [0, 12, 13, 17, 15, 18].map(|number| host.register(number)),
        [7, 0x1234, 0x2000_1000, 0x2000_1000, 0x100, 0x2000_2000]
    );
    host.poke(DCRDR, 2 << 24);
    host.poke(DCRSR, 20 | 1 << 16);
    assert_eq!(host.register(13), 0x2000_2000, "the process stack is in use");
    assert_eq!(host.register(33), 0, "no floating-point unit");
    host.poke(DHCSR, 0xa05f_0005);
    assert_eq!(host.register(15), 0x102, "a step");
    host.poke(DHCSR, 0xa05f_0001);
    assert!(!host.device.function().is_halted());
    host.poke(DHCSR, 0xa05f_0003);
    host.poke(DHCSR, 0xa05f_0000);
    assert_eq!(host.peek(DHCSR), 0x0001_0000);
}

#[test]
fn breakpoint_halts_a_core_that_is_there() {
    let mut host = Host::connected();
    assert_eq!(host.peek(0xe000_2000), 0x60, "six comparators");
    host.poke(DHCSR, 0xa05f_0003);
    host.poke(DCRDR, 0x102);
    host.poke(DCRSR, 15 | 1 << 16);
    host.poke(0xe000_2000, 3);
    for (comparator, is_hit) in [(0x4000_0101, false), (0x8000_0100, false), (0x8000_0105, false), (0x8000_0101, true)]
    {
        host.poke(0xe000_2008 + 4 * 5, comparator);
        host.poke(0xe000_ed30, 0x1f);
        host.poke(DHCSR, 0xa05f_0001);
        assert_eq!(host.device.function().is_halted(), is_hit, "{comparator:08x}");
        assert_eq!(host.peek(0xe000_ed30), if is_hit { 2 } else { 0 });
    }
}

#[test]
fn reset_starts_from_the_vector_table_and_may_be_caught() {
    let mut host = Host::connected();
    host.poke(0, 0x2000_8000);
    host.poke(4, 0x0000_0201);
    host.poke(DHCSR, 0xa05f_0001);
    host.poke(DEMCR, 1);
    host.peek(DHCSR);
    host.poke(AIRCR, 0x0000_0004);
    assert_eq!(host.peek(DHCSR) & 1 << 25, 0, "a write without the key is ignored");
    host.poke(AIRCR, 0x05fa_0004);
    assert_eq!([host.peek(DHCSR), host.peek(DHCSR)], [0x0203_0003, 0x0003_0003]);
    assert_eq!([13, 15, 16].map(|number| host.register(number)), [0x2000_8000, 0x200, 1 << 24]);
    // The pin does the same, when it is released.
    host.poke(DEMCR, 0);
    assert_eq!(host.command(&[0x10, 0, 0x80, 0, 0, 0, 0]), [0x10, 0x03]);
    assert_eq!([host.peek(DHCSR), host.peek(DHCSR)].map(|status| status >> 25 & 1), [1, 1]);
    assert_eq!(host.command(&[0x10, 0x80, 0x80, 0, 0, 0, 0]), [0x10, 0x83]);
    assert!(!host.device.function().is_halted());
    assert_eq!(host.peek(0), 0x2000_8000, "memory stays");
}

#[test]
fn reports_have_64_bytes_and_lead_to_the_same_target() {
    let mut host = Host::connected();
    host.poke(SRAM, 42);
    let setup =
        SetupPacket { request_type: 0x81, request: request::GET_DESCRIPTOR, value: 0x2200, index: 1, length: 255 };
    host.device.submit(host.now, Urb::control(UrbId(0), setup, Payload::Empty).launch(), &mut host.done);
    assert_eq!(host.done.pop().unwrap().payload.into_vec(), REPORT_DESCRIPTOR);
    let report = |packet: &[u8]| [packet, &vec![0; 64 - packet.len()]].concat();
    assert!(host.give(REPORT_OUT, &report(&[0, 0xff])));
    assert!(host.ask(BULK_IN, 512).is_none(), "the answer is where the packet was");
    assert_eq!(host.ask(REPORT_IN, 64).unwrap(), report(&[0, 2, 64, 0]));
    let tar = [&[5, 0, 2, WRITE_TAR][..], &SRAM.to_le_bytes(), &[READ_DRW]].concat();
    host.give(REPORT_OUT, &report(&tar));
    assert_eq!(host.ask(REPORT_IN, 64).unwrap(), report(&[5, 2, 1, 42]));
    assert!(!host.give(REPORT_OUT, &[0; 65]), "a packet that is too long halts the endpoint");
}

#[test]
fn packets_are_queued_executed_together_and_limited() {
    let mut host = Host::connected();
    assert_eq!(host.command(&[0x7f, 2, 9, 0, 0, 0, 0xf0]), [0x7f, 2, 9, 0, 0, 1, 0x11]);
    assert_eq!(host.command(&[0x7f, 3, 9, 0, 0, 0x80, 9]), [0x7f, 2, 9, 0, 0xff]);
    assert!(host.give(BULK_OUT, &[0x7e, 1, 3]) && host.give(BULK_OUT, &[0x7e, 1, 0x0a]));
    assert!(host.ask(BULK_IN, 512).is_none(), "they wait");
    assert_eq!(host.command(&[0x13, 0]), [0x7f, 1, 3, 0]);
    let answers = [(); 3].map(|()| host.ask(BULK_IN, 512));
    assert_eq!(answers, [Some(vec![0x7f, 1, 0x0a, 0, 0]), Some(vec![0x13, 0]), None]);
    for number in 0..=PACKETS_MAX {
        assert_eq!(host.give(BULK_OUT, &[0, 0xf0]), number < PACKETS_MAX, "answers are read first");
    }
    for number in 0..=PACKETS_MAX {
        host.ask(BULK_IN, 512);
        assert!(host.give(BULK_OUT, &[0x7e, 0]), "{number}");
    }
}

#[test]
fn another_process_continues_with_the_same_target() {
    let mut host = Host::connected();
    host.poke(SRAM, 42);
    host.poke(DHCSR, 0xa05f_0003);
    host.give(BULK_OUT, &[0, 0xf0]);
    let state = host.device.function().save().unwrap();
    let mut next = Host::new();
    next.device.function_mut().restore(&state).unwrap();
    assert_eq!(next.ask(BULK_IN, 512).unwrap(), [0, 1, 0x11]);
    assert!(next.device.function().is_halted());
    assert_eq!(next.peek(SRAM), 42);
    for end in (0..state.len()).step_by(101).chain(state.len() - 200..state.len()) {
        assert!(CmsisDap::new().restore(&state[..end]).is_none(), "{end}");
    }
}

/// What a host does.
#[derive(Clone, Debug)]
enum Op {
    Packet(bool, Vec<u8>),
    Ask(bool, u32),
    Transfers(Vec<(u8, u32)>),
    Reset,
    Restart,
}

fn op() -> impl Strategy<Value = Op> {
    let values = prop::sample::select(vec![
        0,
        4,
        SRAM,
        SRAM + 0xfffe,
        0x2300_0052,
        0x2300_0060,
        0xf0,
        0x5000_0000,
        DHCSR,
        DCRSR,
        AIRCR,
        0xa05f_0003,
        0xa05f_0005,
        0x05fa_0004,
        0x1_000d,
        0xe00f_f000,
        0xffff_ffff,
    ]);
    let value = prop_oneof![3 => values, 1 => any::<u32>()];
    let known = prop::sample::select(vec![0, 1, 2, 3, 4, 5, 6, 7, 8, 0x10, 0x12, 0x7e, 0x7f]);
    let packet = (known, prop::collection::vec(any::<u8>(), 0..63)).prop_map(|(first, mut rest)| {
        rest.insert(0, first);
        rest
    });
    prop_oneof![
        4 => (any::<bool>(), packet).prop_map(|(is_bulk, packet)| Op::Packet(is_bulk, packet)),
        4 => (any::<bool>(), prop_oneof![Just(512), 0..600_u32]).prop_map(|(is_bulk, room)| Op::Ask(is_bulk, room)),
        8 => prop::collection::vec((0..64_u8, value), 0..30).prop_map(Op::Transfers),
        1 => Just(Op::Reset),
        1 => Just(Op::Restart),
    ]
}

#[test]
fn fuzz_probe_answers_within_its_packets_and_connects_again() {
    fuzz("fuzz_probe_answers_within_its_packets_and_connects_again", |runner| {
        let result = runner.run(&prop::collection::vec(op(), 1..40), |ops| {
            let mut host = Host::connected();
            for op in ops {
                match op {
                    Op::Packet(is_bulk, packet) => {
                        host.give(if is_bulk { BULK_OUT } else { REPORT_OUT }, &packet);
                    }
                    Op::Ask(is_bulk, room) => drop(host.ask(if is_bulk { BULK_IN } else { REPORT_IN }, room)),
                    Op::Transfers(requests) => {
                        host.configure();
                        host.command(&[2, 1]);
                        let (done, _, words) = host.transfer(&requests);
                        prop_assert!(usize::from(done) <= requests.len() && words.len() <= usize::from(done));
                    }
                    Op::Reset => {
                        host.device.reset(host.now, &mut host.done);
                        host.configure();
                    }
                    Op::Restart => {
                        let state = host.device.function().save().unwrap();
                        let mut next = CmsisDap::new();
                        prop_assert!(next.restore(&state).is_some());
                        prop_assert!(next.save().unwrap() == state);
                    }
                }
                let probe = host.device.function();
                for (channel, bytes_max) in [(&probe.bulk, BULK_BYTES_MAX), (&probe.reports, REPORT_BYTES)] {
                    prop_assert!(channel.queued.len() + channel.answers.len() <= PACKETS_MAX);
                    prop_assert!(channel.answers.iter().all(|answer| (1..=bytes_max).contains(&answer.len())));
                }
            }
            // Whatever came before, a debugger can connect again.
            host.configure();
            host.command(&[2, 1]);
            host.command(&[&[0x12, 56][..], &[0xff; 7]].concat());
            host.transfer(&[(READ_DPIDR, 0), (WRITE_ABORT, 0x1e)]);
            host.connect();
            host.poke(SRAM, 42);
            prop_assert_eq!(host.peek(SRAM), 42);
            Ok(())
        });
        result.map_err(|error| error.to_string())
    });
}
