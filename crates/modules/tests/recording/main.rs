//! Wireshark reads a recording, and a replayed recording answers as the device did.

mod tshark;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use farbus_model::module::{
    ModuleDeviceClass, ModuleFailureCause, ModuleMessage, ModuleMessageKind, ModuleNeighbor, ModuleOutput, ModuleRole,
};
use farbus_model::{
    EpAddr, Instant, IsoPacket, Payload, SetupPacket, TransferDirection, TransferType, Urb, UrbId, UrbStatus,
};
use farbus_modules::{
    ModuleAllowance, ModuleCatalogue, ModuleContext, ModuleFileSink, ModuleFiles, ModulePipeline, ModuleSpec,
    PipelineRecipe,
};
use farbus_wire::native::usb;

/// A file in memory.
#[derive(Default)]
struct Memory(Mutex<Vec<u8>>);

impl ModuleFileSink for Memory {
    fn put(&self, bytes: Vec<u8>) -> bool {
        self.0.lock().unwrap().extend(bytes);
        true
    }

    fn unix_ns(&self) -> u64 {
        1_700_000_000_000_000_000
    }
}

/// A disk that is too slow for all but the first blocks.
struct Slow(Memory, Mutex<u32>);

impl ModuleFileSink for Slow {
    fn put(&self, bytes: Vec<u8>) -> bool {
        let mut count = self.1.lock().unwrap();
        *count += 1;
        !(3..6).contains(&*count) && self.0.put(bytes)
    }

    fn unix_ns(&self) -> u64 {
        0
    }
}

struct Shelf {
    sink: Arc<dyn ModuleFileSink>,
    recording: Vec<u8>,
}

impl ModuleFiles for Shelf {
    fn read(&mut self, _path: &str, _bytes_max: usize) -> Result<Vec<u8>, String> {
        Ok(self.recording.clone())
    }

    fn create(&mut self, _path: &str) -> Result<Arc<dyn ModuleFileSink>, String> {
        Ok(Arc::clone(&self.sink))
    }
}

fn context(role: ModuleRole, class: ModuleDeviceClass) -> ModuleContext {
    ModuleContext { role, class, failed: vec![0].into() }
}

/// Two pipelines of one module, or why there are none.
fn agreed(spec: &str, class: ModuleDeviceClass, shelf: &mut Shelf) -> Result<(ModulePipeline, ModulePipeline), String> {
    let (catalogue, specs) = (ModuleCatalogue::builtin(), [spec.parse::<ModuleSpec>().unwrap()]);
    let recipe = PipelineRecipe::new(&catalogue, &specs, shelf).map_err(|refusal| refusal.to_string())?;
    let begun =
        recipe.begin(&context(ModuleRole::Importer, class), &mut |_| ()).map_err(|refusal| refusal.to_string())?;
    let offers: Vec<_> = begun.offers().cloned().collect();
    let answer = ModuleAllowance::usual(&catalogue).answer(&offers, &context(ModuleRole::Exporter, class), &mut |_| ());
    let (exporter, answers) = answer.map_err(|refusal| refusal.to_string())?;
    Ok((begun.finish(&answers).map_err(|refusal| refusal.to_string())?, exporter))
}

/// A request and its answer.
#[derive(Clone)]
struct Exchange {
    request: (Payload, Payload),
    answer: (Payload, Payload),
    took: Duration,
}

fn usb(urb: &Urb, kind: TransferType, sent: &[u8], reply: Option<usb::UsbReplyPart>, data: &[u8]) -> Exchange {
    Exchange {
        request: (usb::request_part(urb, kind).to_vec().into(), sent.into()),
        answer: (reply.map_or(Payload::Empty, |reply| reply.encode().to_vec().into()), data.into()),
        took: Duration::from_millis(1),
    }
}

fn urb(endpoint: u8, length: u32) -> Urb {
    let mut urb = Urb::data_in(UrbId(0), EpAddr::from_byte(endpoint), length);
    urb.direction = if endpoint & 0x80 != 0 { TransferDirection::In } else { TransferDirection::Out };
    urb
}

fn iso(endpoint: u8, lengths: &[u32]) -> Urb {
    let mut urb = urb(endpoint, lengths.iter().sum());
    (urb.interval, urb.start_frame) = (1, 77);
    let mut offset = 0;
    for &length in lengths {
        urb.iso.push(IsoPacket { offset, length, ..IsoPacket::default() });
        offset += length;
    }
    urb
}

fn ended(status: UrbStatus, actual: u32) -> usb::UsbReplyPart {
    usb::UsbReplyPart { status, actual, start_frame: 0, iso: Vec::new() }
}

const DESCRIPTOR: [u8; 18] = [18, 1, 0, 2, 0, 0, 0, 64, 0x25, 5, 0xa0, 0xa4, 0, 1, 1, 2, 3, 1];
const LONG: usize = 500 << 10;

/// One transfer of each kind, with its answer.
fn usb_talk() -> Vec<Exchange> {
    let get_descriptor = Urb::control(UrbId(0), SetupPacket::get_descriptor(1, 0, 0, 18), Payload::Empty);
    let configure = Urb::control(UrbId(0), SetupPacket::set_configuration(1), Payload::Empty);
    let mut interrupt = urb(0x83, 8);
    interrupt.interval = 10;
    let (iso_in, iso_out) = (iso(0x84, &[100, 100, 100]), iso(0x05, &[2, 3]));
    let packets = [(100, UrbStatus::Ok), (2, UrbStatus::Ok), (0, UrbStatus::IsoMissed)];
    let heard =
        iso_in.iso.iter().zip(packets).map(|(packet, (actual, status))| IsoPacket { actual, status, ..*packet });
    let heard = usb::UsbReplyPart { status: UrbStatus::Ok, actual: 102, start_frame: 78, iso: heard.collect() };
    let played = iso_out.iso.iter().map(|packet| IsoPacket { actual: packet.length, status: UrbStatus::Ok, ..*packet });
    let played = usb::UsbReplyPart { status: UrbStatus::Ok, actual: 5, start_frame: 78, iso: played.collect() };
    let long: Vec<u8> = (0..LONG).map(|at| (at / 1000) as u8).collect();
    vec![
        usb(&get_descriptor, TransferType::Control, &[], None, &DESCRIPTOR),
        usb(&configure, TransferType::Control, &[], None, &[]),
        usb(&urb(0x02, 5), TransferType::Bulk, b"hello", None, &[]),
        usb(&urb(0x02, 5), TransferType::Bulk, b"again", Some(ended(UrbStatus::Stall, 0)), &[]),
        usb(&urb(0x81, 512), TransferType::Bulk, &[], None, b"answer"),
        usb(&urb(0x81, 512), TransferType::Bulk, &[], Some(ended(UrbStatus::Overflow, 2)), b"ov"),
        usb(&interrupt, TransferType::Interrupt, &[], None, &[0, 0, 4, 0, 0, 0, 0, 0]),
        usb(&iso_in, TransferType::Isochronous, &[], Some(heard), &[7; 102]),
        usb(&iso_out, TransferType::Isochronous, b"abcde", Some(played), &[]),
        usb(&urb(0x81, LONG as u32), TransferType::Bulk, &[], None, &long),
        usb(&urb(0x02, LONG as u32), TransferType::Bulk, &long, None, &[]),
    ]
}

fn block(op: u8, flags: u8, length: u32, offset: u64, sent: &[u8], head: &[u8], data: &[u8]) -> Exchange {
    let bytes = [&[op, flags][..], &length.to_le_bytes(), &offset.to_le_bytes()].concat();
    let answer = (head.into(), data.into());
    Exchange { request: (bytes.into(), sent.into()), answer, took: Duration::from_millis(1) }
}

fn block_talk() -> Vec<Exchange> {
    let data: Vec<u8> = (0..200_000u32).map(|at| (at / 512) as u8).collect();
    vec![
        block(0, 0, 200_000, 4096, &[], &[], &data),
        block(1, 1, 512, 1 << 33, &[9; 512], &[], &[]),
        block(1, 0, 200_000, 0, &data, &[], &[]),
        block(2, 0, 0, 0, &[], &[], &[]),
        block(3, 0, 8192, 0, &[], &[], &[]),
        block(4, 0, 8192, 0, &[], &[1], &[]),
        block(0, 0, 4096, 0, &[], &[0], &[]),
    ]
}

fn message(kind: ModuleMessageKind, id: u64, (head, payload): (Payload, Payload)) -> ModuleMessage {
    ModuleMessage { kind, id, head, payload }
}

/// The recording of these exchanges.
fn recorded(class: ModuleDeviceClass, talk: &[Exchange]) -> Vec<u8> {
    let sink = Arc::new(Memory::default());
    record(class, talk, sink.clone(), "record:file=x");
    Arc::into_inner(sink).unwrap().0.into_inner().unwrap()
}

fn record(class: ModuleDeviceClass, talk: &[Exchange], sink: Arc<dyn ModuleFileSink>, spec: &str) {
    let (mut importer, _exporter) = agreed(spec, class, &mut Shelf { sink, recording: Vec::new() }).unwrap();
    let (mut now, mut out) = (Instant::ZERO + Duration::from_secs(5), ModuleOutput::default());
    for (id, exchange) in talk.iter().enumerate() {
        let id = id as u64 % 4;
        importer.handle(
            now,
            ModuleNeighbor::Above,
            message(ModuleMessageKind::Request, id, exchange.request.clone()),
            &mut out,
        );
        now = now + exchange.took;
        importer.handle(
            now,
            ModuleNeighbor::Below,
            message(ModuleMessageKind::Completion, id, exchange.answer.clone()),
            &mut out,
        );
        assert_eq!(
            out.pop(),
            Some((ModuleNeighbor::Below, message(ModuleMessageKind::Request, id, exchange.request.clone())))
        );
        assert_eq!(
            out.pop(),
            Some((ModuleNeighbor::Above, message(ModuleMessageKind::Completion, id, exchange.answer.clone())))
        );
    }
}

fn replay(spec: &str, class: ModuleDeviceClass, recording: &[u8]) -> ModulePipeline {
    let mut shelf = Shelf { sink: Arc::new(Memory::default()), recording: recording.to_vec() };
    agreed(spec, class, &mut shelf).unwrap().0
}

const QUICK: &str = "replay:file=x,pace=none";

#[test]
fn a_recording_answers_as_the_device_did() {
    for (class, talk) in [(ModuleDeviceClass::Usb, usb_talk()), (ModuleDeviceClass::Block, block_talk())] {
        let mut importer = replay(QUICK, class, &recorded(class, &talk));
        let mut out = ModuleOutput::default();
        for (at, exchange) in talk.iter().enumerate() {
            let module_message = message(ModuleMessageKind::Request, 9, exchange.request.clone());
            importer.handle(Instant::ZERO, ModuleNeighbor::Above, module_message, &mut out);
            assert_eq!(out.failure(), None, "{at}");
            let (side, answer) = out.pop().unwrap();
            assert_eq!(
                (side, answer.kind, answer.id),
                (ModuleNeighbor::Above, ModuleMessageKind::Completion, 9),
                "{at}"
            );
            assert!((answer.head, answer.payload) == exchange.answer, "{at}");
            assert_eq!(out.pop(), None, "nothing is asked of the device");
        }
        assert!(importer.is_at_rest());
    }
}

#[test]
fn answers_take_as_long_as_they_did_and_come_in_order() {
    let mut talk = vec![usb(&urb(0x81, 8), TransferType::Bulk, &[], None, b"late"); 2];
    talk[0].took = Duration::from_millis(30);
    let mut importer = replay("replay:file=x", ModuleDeviceClass::Usb, &recorded(ModuleDeviceClass::Usb, &talk));
    let mut out = ModuleOutput::default();
    for id in 0..2 {
        importer.handle(
            Instant::ZERO,
            ModuleNeighbor::Above,
            message(ModuleMessageKind::Request, id, talk[0].request.clone()),
            &mut out,
        );
    }
    assert_eq!(out.pop(), None);
    let due = importer.poll_timeout().unwrap();
    assert_eq!(due, Instant::ZERO + Duration::from_millis(30));
    importer.handle_timeout(due, &mut out);
    assert_eq!([out.pop(), out.pop()].map(|sent| sent.unwrap().1.id), [0, 1], "the second waits for the first");
}

#[test]
fn request_missing_in_the_recording_fails_as_configured() {
    let talk = usb_talk();
    let recording = recorded(ModuleDeviceClass::Usb, &talk);
    let other = usb(&urb(0x02, 5), TransferType::Bulk, b"other", None, &[]);
    let unknown = Urb::control(UrbId(0), SetupPacket::get_descriptor(3, 9, 0, 18), Payload::Empty);
    let unknown = usb(&unknown, TransferType::Control, &[], None, &[]);
    for strange in [other, unknown] {
        let (mut importer, mut out) = (replay(QUICK, ModuleDeviceClass::Usb, &recording), ModuleOutput::default());
        importer.handle(
            Instant::ZERO,
            ModuleNeighbor::Above,
            message(ModuleMessageKind::Request, 1, strange.request.clone()),
            &mut out,
        );
        let failure = out.failure().unwrap();
        assert_eq!(failure.trouble, ModuleFailureCause::Module);
        assert!(failure.why.contains("the recording does not tell what comes of this"), "{failure}");
        let mut importer = replay("replay:file=x,otherwise=stall", ModuleDeviceClass::Usb, &recording);
        importer.handle(
            Instant::ZERO,
            ModuleNeighbor::Above,
            message(ModuleMessageKind::Request, 1, strange.request),
            &mut out,
        );
        let stalled = ended(UrbStatus::Stall, 0).encode().to_vec();
        assert_eq!(
            out.pop(),
            Some((ModuleNeighbor::Above, message(ModuleMessageKind::Completion, 1, (stalled.into(), Payload::Empty))))
        );
    }
    // A repeated request gets the last answer again; where data ends, the device is silent until its requests are
    // cancelled.
    let (mut importer, mut out) = (replay(QUICK, ModuleDeviceClass::Usb, &recording), ModuleOutput::default());
    for id in 0..3 {
        importer.handle(
            Instant::ZERO,
            ModuleNeighbor::Above,
            message(ModuleMessageKind::Request, id, talk[0].request.clone()),
            &mut out,
        );
        assert_eq!(out.pop().unwrap().1.payload, DESCRIPTOR[..].into());
    }
    for id in 0..2 {
        importer.handle(
            Instant::ZERO,
            ModuleNeighbor::Above,
            message(ModuleMessageKind::Request, id, talk[6].request.clone()),
            &mut out,
        );
    }
    assert_eq!((out.pop().unwrap().1.id, out.pop(), importer.is_at_rest()), (0, None, false));
    importer.handle(
        Instant::ZERO,
        ModuleNeighbor::Above,
        message(ModuleMessageKind::Cancel, 1, Default::default()),
        &mut out,
    );
    let cancelled = ended(UrbStatus::Cancelled, 0).encode().to_vec();
    let ends = [
        message(ModuleMessageKind::Completion, 1, (cancelled.into(), Payload::Empty)),
        message(ModuleMessageKind::Cancelled, 1, Default::default()),
    ];
    assert_eq!([out.pop(), out.pop()], ends.map(|end| Some((ModuleNeighbor::Above, end))));
    assert!(importer.is_at_rest());
}

#[test]
fn exactly_one_end_has_a_recording_and_an_invalid_one_is_refused() {
    let recording = recorded(ModuleDeviceClass::Usb, &usb_talk());
    let refused = |spec: &str, class, recording: &[u8]| {
        let mut shelf = Shelf { sink: Arc::new(Memory::default()), recording: recording.to_vec() };
        agreed(spec, class, &mut shelf).err().unwrap()
    };
    assert_eq!(
        refused("replay", ModuleDeviceClass::Usb, &[]),
        "module 'replay': neither end has a recording: replay:file=PATH"
    );
    assert!(refused(QUICK, ModuleDeviceClass::Usb, b"nonsense").contains("it is no pcapng file"));
    assert!(
        refused(QUICK, ModuleDeviceClass::Stream, &recording).contains("it does not serve devices of class stream")
    );
    assert!(
        refused("replay:file=x,pace=fast", ModuleDeviceClass::Usb, &recording)
            .contains("pace=fast: it is recorded or none")
    );
    // Whatever the bytes contain, they are refused or they answer something.
    let (mut taken, mut not) = (0, 0);
    for at in 0..recording.len().min(4000) {
        let mut changed = recording.clone();
        changed[at] ^= 0x40 | at as u8;
        for bytes in [&changed[..], &recording[..at]] {
            let mut shelf = Shelf { sink: Arc::new(Memory::default()), recording: bytes.to_vec() };
            match agreed(QUICK, ModuleDeviceClass::Usb, &mut shelf) {
                Err(_) => not += 1,
                Ok((mut importer, _)) => {
                    taken += 1;
                    for exchange in usb_talk().into_iter().take(9) {
                        let module_message = message(ModuleMessageKind::Request, 1, exchange.request);
                        importer.handle(
                            Instant::ZERO,
                            ModuleNeighbor::Above,
                            module_message,
                            &mut ModuleOutput::default(),
                        );
                    }
                }
            }
        }
        if at > 1200 {
            break;
        }
    }
    assert!(taken > 100 && not > 100, "{taken} {not}");
}

#[test]
fn a_slow_disk_costs_packets_and_a_limit_ends_the_recording() {
    let slow = Arc::new(Slow(Memory::default(), Mutex::default()));
    record(ModuleDeviceClass::Block, &block_talk(), slow.clone(), "record:file=x");
    let file = slow.0.0.lock().unwrap().clone();
    let whole = recorded(ModuleDeviceClass::Block, &block_talk());
    assert!(file.len() < whole.len(), "{} {}", file.len(), whole.len());
    replay(QUICK, ModuleDeviceClass::Block, &file);
    let dropped = [4, 0, 8, 0, 3, 0, 0, 0, 0, 0, 0, 0];
    assert!(file.windows(dropped.len()).any(|window| window == dropped), "the next packet says how many are missing");
    let limited = Arc::new(Memory::default());
    let many: Vec<Exchange> = (0..10).flat_map(|_| block_talk()).collect();
    record(ModuleDeviceClass::Block, &many, limited.clone(), "record:file=x,limit=1");
    let bytes = limited.0.lock().unwrap().len();
    assert!((500_000..=1 << 20).contains(&bytes), "{bytes}");
}

fn written(name: &str, bytes: &[u8]) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::write(&path, bytes).unwrap();
    path
}

#[test]
fn wireshark_reads_usb_transfers_as_linux_s_own() {
    let recording = written("usb.pcapng", &recorded(ModuleDeviceClass::Usb, &usb_talk()));
    let fields =
        ["usb.urb_type", "usb.endpoint_address", "usb.transfer_type", "usb.urb_status", "usb.urb_len", "usb.data_len"];
    let Some(seen) = tshark::fields(&recording, "usb", &fields) else { return };
    let rows: Vec<&str> = seen.iter().map(String::as_str).collect();
    // usbmon's types: 0 isochronous, 1 interrupt, 2 control, 3 bulk; S asked, C ended; status 0 or -errno.
    let expected = [
        "'S' 0x80 0x02 -115 18 0",
        "'C' 0x80 0x02 0 18 18",
        "'S' 0x00 0x02 -115 0 0",
        "'C' 0x00 0x02 0 0 0",
        "'S' 0x02 0x03 -115 5 5",
        "'C' 0x02 0x03 0 5 0",
        "'S' 0x02 0x03 -115 5 5",
        "'C' 0x02 0x03 -32 0 0",
        "'S' 0x81 0x03 -115 512 0",
        "'C' 0x81 0x03 0 6 6",
        "'S' 0x81 0x03 -115 512 0",
        "'C' 0x81 0x03 -75 2 2",
        "'S' 0x83 0x01 -115 8 0",
        "'C' 0x83 0x01 0 8 8",
        "'S' 0x84 0x00 -115 300 0",
        "'C' 0x84 0x00 0 102 102",
        "'S' 0x05 0x00 -115 5 5",
        "'C' 0x05 0x00 0 5 0",
        "'S' 0x81 0x03 -115 512000 0",
        "'C' 0x81 0x03 0 512000 196608",
        "'S' 0x02 0x03 -115 512000 196608",
        "'C' 0x02 0x03 0 512000 0",
    ];
    assert_eq!(rows, expected);
    let more = ["usb.idVendor", "usb.iso.iso_status", "usb.iso.iso_off", "usb.iso.iso_len", "usb.bInterval"];
    let seen = tshark::fields(&recording, "usb", &more).unwrap();
    assert!(seen.iter().any(|row| row.starts_with("0x0525 ")), "the descriptor is read: {seen:?}");
    assert!(seen.iter().any(|row| row.contains("0,0,-18 0,100,102 100,2,0")), "packets and their status: {seen:?}");
    assert_eq!(tshark::fields(&recording, "_ws.malformed", &["frame.number"]), Some(Vec::new()));
}

#[test]
fn wireshark_reads_requests_for_blocks_as_nbd() {
    let recording = written("block.pcapng", &recorded(ModuleDeviceClass::Block, &block_talk()));
    let fields = ["nbd.type", "nbd.handle", "nbd.from", "nbd.len", "nbd.error"];
    let Some(seen) = tshark::fields(&recording, "nbd", &fields) else { return };
    // Wireshark's dissector knows reads and writes without flags; of other commands it shows the replies.
    let expected = [
        "0 0x0000000000000001 0x0000000000001000 200000 ",
        "0 0x0000000000000001   0",
        "255 0x0000000000000002   0",
        "1 0x0000000000000003 0x0000000000000000 200000 ",
        "1 0x0000000000000003   0",
        "255 0x0000000000000004   0",
        "255 0x0000000000000005   0",
        "255 0x0000000000000006   28",
        "0 0x0000000000000007 0x0000000000000000 4096 ",
    ];
    assert_eq!(seen, expected);
    assert_eq!(tshark::fields(&recording, "_ws.malformed", &["frame.number"]), Some(Vec::new()));
}
