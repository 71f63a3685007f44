use std::sync::atomic::{AtomicU64, Ordering};

use farbus_model::usb::request;
use farbus_model::{BufferPool, CompletionQueue, Device, Instant, Urb, UrbCompletion, UrbId, UrbStatus};
use proptest::prelude::*;

use super::*;
use crate::fuzzing::fuzz;

/// A host with one end.
struct Host {
    end: EmulatedDevice<BridgeEnd>,
    done: CompletionQueue,
    rung: Arc<AtomicU64>,
    next: u64,
}

fn hosts() -> [Host; 2] {
    let rung = [0; 2].map(|_| Arc::new(AtomicU64::new(0)));
    let bells = [0, 1].map(|at: usize| {
        let (ring, hush) = (Arc::clone(&rung[at]), Arc::clone(&rung[at]));
        GadgetWaker {
            readiness: ReadinessSource::new(at),
            ring: Box::new(move || ring.store(1, Ordering::SeqCst)),
            hush: Box::new(move || hush.store(0, Ordering::SeqCst)),
        }
    });
    let mut rung = rung.into_iter();
    pair(UsbSpeed::High, "desk/bridge", bells).map(|end| Host {
        end,
        done: CompletionQueue::new(BufferPool::new(1 << 20)),
        rung: rung.next().unwrap(),
        next: 1,
    })
}

/// The host leaves: every request is answered.
impl Drop for Host {
    fn drop(&mut self) {
        self.leave();
    }
}

impl Host {
    fn leave(&mut self) {
        self.end.reset(Instant::ZERO, &mut self.done);
        self.answers();
    }

    fn control(&mut self, setup: SetupPacket, data: &[u8]) -> (UrbStatus, Vec<u8>) {
        let urb = Urb::control(UrbId(0), setup, data.to_vec().into());
        self.end.submit(Instant::ZERO, urb.launch(), &mut self.done);
        let mut answers = self.answers();
        let at = answers.iter().position(|done| done.id == UrbId(0)).expect("a control request is answered at once");
        let done = answers.remove(at);
        (done.status, done.payload.into_vec())
    }

    fn class(&mut self, code: u8, is_in: bool, data: &[u8], length: u16) -> (UrbStatus, Vec<u8>) {
        let request_type = if is_in { 0xa1 } else { 0x21 };
        self.control(SetupPacket { request_type, request: code, value: 0, index: CONTROL.into(), length }, data)
    }

    fn configure(&mut self) {
        assert_eq!(self.control(SetupPacket::set_configuration(1), &[]).0, UrbStatus::Ok);
    }

    fn network(&mut self, is_on: bool) {
        let setup = SetupPacket {
            request_type: 1,
            request: request::SET_INTERFACE,
            value: is_on.into(),
            index: DATA.into(),
            length: 0,
        };
        assert_eq!(self.control(setup, &[]).0, UrbStatus::Ok);
    }

    fn submit(&mut self, urb: impl FnOnce(UrbId) -> Urb) -> UrbId {
        let id = UrbId(self.next);
        self.next += 1;
        self.end.submit(Instant::ZERO, urb(id).launch(), &mut self.done);
        id
    }

    fn give(&mut self, number: u8, bytes: Vec<u8>) -> UrbId {
        self.submit(|id| Urb::data_out(id, EpAddr::from_byte(number), bytes.into()))
    }

    fn ask(&mut self, number: u8, room: u32) -> UrbId {
        self.submit(|id| Urb::data_in(id, EpAddr::from_byte(0x80 | number), room))
    }

    /// Does what the end's thread does when its bell rings.
    fn answers(&mut self) -> Vec<UrbCompletion> {
        if self.rung.load(Ordering::SeqCst) > 0 {
            self.end.handle_ready(Instant::ZERO, &mut self.done);
        }
        // The bus's pace of notifications.
        if let Some(at) = self.end.poll_timeout() {
            self.end.handle_timeout(at, &mut self.done);
        }
        std::iter::from_fn(|| self.done.pop()).collect()
    }

    fn bytes(&mut self) -> Vec<Vec<u8>> {
        let came = self.answers().into_iter().filter(|done| done.direction == TransferDirection::In);
        came.map(|done| done.payload.into_vec()).collect()
    }

    fn count(&self, at: usize) -> u64 {
        self.end.tally().unwrap().read().nth(at).unwrap().1
    }
}

/// A frame of `length` bytes that contains its number.
fn frame(number: u8, length: usize) -> Vec<u8> {
    let mut frame = vec![number; length];
    frame[..6].copy_from_slice(&[2, 0, 0, 0, 0, 1]);
    frame
}

fn block(frames: &[Vec<u8>]) -> Vec<u8> {
    let mut writer = ntb::NtbWriter::new(NTB_BYTES_MAX);
    assert!(frames.iter().all(|frame| writer.push(frame)));
    writer.finish(0)
}

fn frames_of(block: &[u8]) -> Vec<Vec<u8>> {
    let mut pointers = Vec::new();
    ntb::read(block, &mut pointers).unwrap();
    pointers.iter().map(|pointer| pointer.of(block).to_vec()).collect()
}

/// Two hosts that have their adapters on, and have been told about the connection.
fn joined() -> [Host; 2] {
    let mut hosts = hosts();
    for host in &mut hosts {
        host.configure();
        host.network(true);
    }
    hosts
}

#[test]
fn an_end_is_what_the_specification_asks_of_a_network_adapter() {
    let [mut a, b] = hosts();
    let all = a.end.descriptors();
    let bytes = &all.configurations[0].bytes;
    assert_eq!((all.device.class, bytes[4]), ([0xef, 2, 1], 3), "several functions, three interfaces");
    assert_eq!(bytes[9..17], [8, 11, 0, 2, 2, 13, 0, 0], "two of them are one: communication, NCM");
    assert_eq!(bytes[17..26], [9, 4, 0, 0, 1, 2, 13, 0, 0]);
    let ethernet = [13, 0x24, 0x0f, 4, 0, 0, 0, 0, 0xea, 5, 0, 0, 0];
    assert_eq!(
        bytes[26..55],
        [&[5, 0x24, 0, 0x20, 1, 5, 0x24, 6, 0, 1][..], &ethernet, &[6, 0x24, 0x1a, 0, 1, 1]].concat()
    );
    let shape: Vec<_> =
        all.configurations[0].settings.iter().map(|s| (s.interface, s.alternate, s.endpoints.len())).collect();
    assert_eq!(shape, [(0, 0, 1), (1, 0, 0), (1, 1, 2), (2, 0, 2)]);

    let address = all.string(4).unwrap().to_owned();
    assert_eq!(address.len(), 12);
    assert_eq!(u8::from_str_radix(&address[..2], 16).unwrap() & 3, 2, "its owner gave it, to one host");
    assert_ne!(Some(address.as_str()), b.end.descriptors().string(4));
    assert_eq!(
        address,
        address_of("desk/bridge", 0).map(|byte| format!("{byte:02X}")).concat(),
        "whenever it is asked"
    );
    assert_ne!(address_of("desk/bridge", 0), address_of("roof/bridge", 0));

    a.configure();
    // Table 6-3, byte by byte.
    let parameters = [28, 0, 1, 0, 0, 64, 0, 0, 4, 0, 2, 0, 4, 0, 0, 0, 0, 64, 0, 0, 4, 0, 2, 0, 4, 0, 40, 0];
    assert_eq!(a.class(GET_NTB_PARAMETERS, true, &[], 28), (UrbStatus::Ok, parameters.to_vec()));
    assert_eq!(a.class(GET_NTB_INPUT_SIZE, true, &[], 4), (UrbStatus::Ok, vec![0, 64, 0, 0]));
    for (bytes, status) in [(2047u32, UrbStatus::Stall), (16385, UrbStatus::Stall), (2048, UrbStatus::Ok)] {
        assert_eq!(a.class(SET_NTB_INPUT_SIZE, false, &bytes.to_le_bytes(), 4).0, status, "{bytes}");
    }
    assert_eq!(a.class(SET_NTB_INPUT_SIZE, false, &[0; 8], 8).0, UrbStatus::Stall, "no such capability");
    assert_eq!(a.class(GET_NTB_INPUT_SIZE, true, &[], 4).1, [0, 8, 0, 0]);
    assert_eq!(a.class(SET_PACKET_FILTER, false, &[], 0).0, UrbStatus::Ok);
    assert_eq!(a.class(0x84, false, &[], 0).0, UrbStatus::Stall, "blocks of 32 bits are not offered");
}

#[test]
fn the_cable_is_plugged_in_while_the_other_host_is_there() {
    let [mut a, mut b] = hosts();
    a.configure();
    a.network(true);
    a.ask(NOTIFICATION, 16);
    assert!(a.bytes().is_empty(), "nobody is at the other end");
    b.configure();
    assert!(a.bytes().is_empty(), "its adapter is off");
    b.network(true);
    let speed = 425_984_000u32.to_le_bytes();
    assert_eq!(a.bytes(), [[&[0xa1, 0x2a, 0, 0, 0, 0, 8, 0][..], &speed, &speed].concat()]);
    a.ask(NOTIFICATION, 16);
    assert_eq!(a.bytes(), [[0xa1, 0, 1, 0, 0, 0, 0, 0]]);
    a.ask(NOTIFICATION, 16);
    assert!(a.bytes().is_empty(), "it knows");
    b.leave();
    assert_eq!(a.bytes(), [[0xa1, 0, 0, 0, 0, 0, 0, 0]], "its host left");
    assert_eq!(a.count(LINK_CHANGES), 2);
}

#[test]
fn frames_that_enter_one_end_leave_the_other() {
    let [mut a, mut b] = joined();
    b.ask(FRAMES, NTB_BYTES_MAX as u32);
    let frames = [frame(1, 60), frame(2, 1514), frame(3, 14)];
    a.give(FRAMES, block(&frames));
    assert_eq!(a.answers().len(), 1);
    assert_eq!(frames_of(&b.bytes()[0]), frames);
    // In pieces, to a host that asks for little; and in several blocks to one that accepts short ones.
    a.give(FRAMES, block(&frames));
    let mut whole = Vec::new();
    for _ in 0..4 {
        b.ask(FRAMES, 512);
        whole.extend(b.bytes().concat());
    }
    assert_eq!((frames_of(&whole), whole.len()), (frames.to_vec(), 1628));
    assert_eq!(whole[6], 1, "the second of its sequence");
    b.class(SET_NTB_INPUT_SIZE, false, &2048u32.to_le_bytes(), 4);
    let frames = [frame(1, 1514), frame(2, 1514), frame(3, 100)];
    a.give(FRAMES, block(&frames));
    for _ in 0..2 {
        b.ask(FRAMES, 2048);
    }
    let came = b.bytes();
    assert_eq!(came.iter().flat_map(|block| frames_of(block)).collect::<Vec<_>>(), frames);
    assert_eq!(came.len(), 2);
    assert_eq!(a.count(SENT), 9);
}

#[test]
fn fast_sender_waits_and_loses_nothing() {
    let [mut a, mut b] = joined();
    let mut sent = 0u64;
    loop {
        a.give(FRAMES, block(&vec![frame(sent as u8, 1500); 10]));
        if a.answers().is_empty() {
            break;
        }
        sent += 1;
        assert!(sent < 100, "a lane is bounded");
    }
    assert!(sent >= 16, "{sent} blocks were taken");
    b.ask(FRAMES, NTB_BYTES_MAX as u32);
    assert_eq!(frames_of(&b.bytes()[0])[0][6], 0);
    assert_eq!(a.answers().len(), 1, "its bell rang: there is room for one more");
    for number in 1..=sent {
        b.ask(FRAMES, NTB_BYTES_MAX as u32);
        assert_eq!(frames_of(&b.bytes()[0])[0][6], number as u8);
    }
    assert_eq!((a.count(SENT), a.count(LOST)), (10 * (sent + 1), 0));
}

#[test]
fn frames_without_a_receiver_are_lost_and_never_reach_the_next_host() {
    let [mut a, mut b] = joined();
    a.give(FRAMES, block(&[frame(1, 60)]));
    b.network(false);
    a.give(FRAMES, block(&[frame(2, 60), frame(3, 60)]));
    assert_eq!((a.answers().len(), a.count(LOST)), (2, 2));
    b.network(true);
    b.ask(FRAMES, 2048);
    assert!(b.bytes().is_empty());
    a.give(FRAMES, block(&[frame(4, 60)]));
    assert_eq!(frames_of(&b.bytes()[0]), [frame(4, 60)]);
}

#[test]
fn a_block_that_is_none_is_refused_and_counted_and_the_next_goes_over() {
    let [mut a, mut b] = joined();
    let mut wrong = block(&[frame(1, 60)]);
    wrong[10] = 13;
    a.give(FRAMES, wrong);
    a.give(FRAMES, Vec::new());
    a.give(FRAMES, vec![0xff; 100_000]);
    assert!(a.answers().iter().all(|done| done.status == UrbStatus::Ok));
    a.give(FRAMES, block(&[frame(2, 60)]));
    b.ask(FRAMES, 2048);
    assert_eq!(frames_of(&b.bytes()[0]), [frame(2, 60)]);
    assert_eq!((a.count(REFUSED), a.count(SENT)), (3, 1));
}

#[test]
fn a_raw_transfer_goes_over_as_it_is_and_waits_for_its_reader() {
    let [mut a, mut b] = hosts();
    a.configure();
    a.give(RAW, vec![1; 1000]);
    assert!(a.answers().is_empty(), "nobody could fetch it");
    b.configure();
    assert_eq!(a.answers().len(), 1);
    for size in [0, 1, 512, 70_000] {
        a.give(RAW, vec![size as u8; size]);
    }
    for _ in 0..4 {
        b.ask(RAW, 65_536);
    }
    let lengths: Vec<_> = b.bytes().iter().map(Vec::len).collect();
    assert_eq!(lengths, [1000, 0, 1, 512], "a transfer is one");
    for _ in 0..2 {
        b.ask(RAW, 65_536);
    }
    let lengths: Vec<_> = b.bytes().iter().map(Vec::len).collect();
    assert_eq!(lengths, [65_536, 4_464], "in as many pieces as he asks for");
    // The lane is full with bytes, or with empty transfers.
    for length in [100_000, 0] {
        let taken = (0..3000).take_while(|_| {
            a.give(RAW, vec![0; length]);
            a.answers().iter().any(|done| done.direction == TransferDirection::Out)
        });
        let taken = taken.count();
        assert!((2..=1100).contains(&taken), "{taken} transfers of {length} bytes");
        b.leave();
        a.leave();
        a.configure();
        b.configure();
    }
    b.ask(RAW, 512);
    assert!(b.bytes().is_empty(), "what waited for who left is gone");
}

#[test]
fn another_process_goes_on_with_what_waited_and_nothing_comes_too_late() {
    let [mut a, mut b] = joined();
    a.give(RAW, vec![1; 1000]);
    b.ask(RAW, 600);
    a.give(RAW, vec![2; 10]);
    a.give(FRAMES, block(&[frame(1, 60)]));
    b.ask(NOTIFICATION, 16);
    assert_eq!(b.bytes().len(), 2);
    a.answers();
    let state = b.end.save().unwrap();
    a.give(RAW, vec![3; 10]);
    assert!(a.answers().is_empty(), "what is sent from now on waits");

    let [mut a2, mut b2] = joined();
    let selection = b.end.selection().clone();
    assert!(b2.end.restore(&selection, &state));
    b2.ask(NOTIFICATION, 16);
    for _ in 0..2 {
        b2.ask(RAW, 600);
    }
    b2.ask(FRAMES, 2048);
    let came = b2.bytes();
    let lengths: Vec<_> = came.iter().map(Vec::len).collect();
    assert_eq!(lengths[1..3], [400, 10]);
    assert_eq!((came[0][1], frames_of(&came[3])), (NETWORK_CONNECTION, vec![frame(1, 60)]), "the speed was told");
    a2.give(RAW, vec![4; 10]);
    assert_eq!(a2.answers().len(), 1);
    assert!((4..state.len()).all(|end| !hosts()[1].end.restore(&selection, &state[..end])));

    // Or it continues here after all.
    b.ask(RAW, 600);
    assert_eq!(b.bytes()[0].len(), 400);
    b.ask(RAW, 600);
    assert_eq!((b.bytes()[0][0], a.answers().len()), (2, 1), "and what waited comes");
}

#[test]
fn while_one_end_goes_on_before_the_other_its_cable_stays_plugged_in_and_nothing_is_lost() {
    let [mut a, mut b] = joined();
    for _ in 0..2 {
        a.ask(NOTIFICATION, 16);
        b.ask(NOTIFICATION, 16);
    }
    a.answers();
    b.answers();
    let [of_a, of_b] = [&a, &b].map(|host| (host.end.selection().clone(), host.end.save().unwrap()));
    let [mut a2, mut b2] = hosts();
    assert!(a2.end.restore(&of_a.0, &of_a.1));
    a2.ask(NOTIFICATION, 16);
    a2.give(FRAMES, block(&[frame(7, 60)]));
    a2.give(RAW, vec![5; 10]);
    assert!(a2.answers().iter().all(|done| done.direction == TransferDirection::Out), "of no change it was told");
    assert!(b2.end.restore(&of_b.0, &of_b.1));
    b2.ask(FRAMES, 2048);
    b2.ask(RAW, 64);
    let came = b2.bytes();
    assert_eq!((frames_of(&came[0]), came[1].len()), (vec![frame(7, 60)], 10));
    let lost = a2.end.tally().unwrap().read().find(|(name, _)| *name == "frames_lost").unwrap().1;
    assert_eq!(lost, 0);
    // An end that starts again without its saved state finds nothing.
    let [mut a3, mut b3] = hosts();
    assert!(a3.end.restore(&of_a.0, &of_a.1));
    a3.give(RAW, vec![5; 10]);
    b3.end.reset(Instant::ZERO, &mut CompletionQueue::new(BufferPool::new(0)));
    b3.configure();
    b3.ask(RAW, 64);
    assert!(b3.bytes().is_empty());
}

#[test]
fn bridge_settings_are_parsed() {
    let read = |text: &str| text.parse::<BridgeSettings>();
    assert_eq!(read(""), Ok(BridgeSettings::default()));
    let settings = BridgeSettings { speed: UsbSpeed::Super, identity: Some("lab".into()) };
    assert_eq!(read("speed=super,id=lab"), Ok(settings));
    assert!(read("speed=low").is_err() && read("id=").is_err() && read("mac=1").unwrap_err().contains("'mac=1'"));
}

/// What a malicious host does with an end.
#[derive(Clone, Debug)]
enum Op {
    Block(Vec<u8>),
    Changed(usize, u8),
    Raw(usize),
    Ask(u8, u32),
    Network(bool),
    Control(u8, bool, Vec<u8>),
    Reset,
    Other,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        2 => prop::collection::vec(any::<u8>(), 0..200).prop_map(Op::Block),
        6 => (0..200usize, any::<u8>()).prop_map(|(at, byte)| Op::Changed(at, byte)),
        2 => (0..100_000usize).prop_map(Op::Raw),
        4 => (1..4u8, 0..20_000u32).prop_map(|(number, room)| Op::Ask(number, room)),
        1 => any::<bool>().prop_map(Op::Network),
        2 => (any::<u8>(), any::<bool>(), prop::collection::vec(any::<u8>(), 0..9)).prop_map(|(code, is_in, data)| Op::Control(code, is_in, data)),
        1 => Just(Op::Reset),
        3 => Just(Op::Other),
    ]
}

/// Whatever one host does, the other receives whole blocks only, and memory stays bounded.
#[test]
fn fuzz_bridge_passes_on_whole_blocks_only() {
    fuzz("fuzz_bridge_passes_on_whole_blocks_only", |runner| {
        let result = runner.run(&prop::collection::vec(op(), 1..60), |ops| {
            let [mut a, mut b] = joined();
            for op in ops {
                play(&mut a, &mut b, op);
                prop_assert!(a.end.waiting().count() < 200);
            }
            Ok(())
        });
        result.map_err(|error| error.to_string())
    });
}

fn play(a: &mut Host, b: &mut Host, op: Op) {
    match op {
        Op::Block(bytes) => {
            a.give(FRAMES, bytes);
        }
        Op::Changed(at, byte) => {
            let mut block = block(&[frame(1, 20), frame(2, 60), frame(3, 14)]);
            let at = at % block.len();
            block[at] = byte;
            a.give(FRAMES, block);
        }
        Op::Raw(length) => {
            a.give(RAW, vec![0; length]);
        }
        Op::Ask(number, room) => {
            a.ask(number, room);
        }
        Op::Network(is_on) => {
            a.configure();
            a.network(is_on);
        }
        Op::Control(code, is_in, data) => drop(a.class(code, is_in, &data, data.len() as u16)),
        Op::Reset => a.leave(),
        Op::Other => {
            b.ask(FRAMES, NTB_BYTES_MAX as u32);
            let (blocks, mut pointers) = (b.bytes(), Vec::new());
            assert!(blocks.iter().all(|block| ntb::read(block, &mut pointers).is_ok() && !pointers.is_empty()));
        }
    }
    a.answers();
}
