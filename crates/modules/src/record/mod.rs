//! The `record` module: writes what passes to a file that Wireshark opens.

use std::collections::BTreeMap;
use std::sync::Arc;

use farbus_model::module::{
    Module, ModuleDeviceClass, ModuleEffects, ModuleManifest, ModuleMessage, ModuleMessageKind, ModuleNeighbor,
    ModuleOutput, ModuleParameter, ParameterFormat,
};
use farbus_model::{Instant, Payload};

use crate::capture::{self, BESIDE, DATA_BYTES_MAX, OWN, RecordedRequest, nbd, usbmon};
use crate::cost::ModuleCost;
use crate::files::ModuleFileSink;
use crate::heads::{BlockRequestHead, UsbReply, UsbRequest};
use crate::maker::SimpleMaker;

/// The manifest of `record` and the function that makes a half of it from settings.
pub const RECORD: SimpleMaker = SimpleMaker {
    manifest: &MANIFEST,
    cost: |_| ModuleCost::SMALL,
    make: |settings, context| match settings.sink("file") {
        Some(sink) => Box::new(TrafficRecorder::new(sink, context.class, settings.number("limit") << 20)),
        None => Box::new(RecordPassThrough),
    },
};

const MANIFEST: ModuleManifest = ModuleManifest {
    name: "record",
    version: 1,
    summary: "writes what passes to a file that Wireshark opens",
    classes: ModuleDeviceClass::ALL,
    parameters: &[
        ModuleParameter {
            name: "file",
            form: ParameterFormat::NewFile,
            default: Some(""),
            what: "where to write, at the end that is told; the other end writes nothing",
            is_own: true,
        },
        ModuleParameter {
            name: "limit",
            form: ParameterFormat::Number(1, 1 << 20),
            default: Some("1024"),
            what: "MiB of each attachment; what comes after is not written",
            is_own: false,
        },
    ],
    effects: ModuleEffects { is_fault: false, is_movable: false },
    cost: "a copy of what passes; a thread of its own writes it",
    manual: include_str!("manual.md"),
};

/// The half that was not told to write.
struct RecordPassThrough;

impl Module for RecordPassThrough {
    fn handle(&mut self, _now: Instant, from: ModuleNeighbor, message: ModuleMessage, out: &mut ModuleOutput) {
        out.pass(from, message);
    }

    fn held_bytes(&self) -> usize {
        0
    }
}

struct TrafficRecorder {
    sink: Arc<dyn ModuleFileSink>,
    class: ModuleDeviceClass,
    /// Bytes that may still be written.
    left: u64,
    /// The moment of the first message, and the time of day then.
    began: Option<(Instant, u64)>,
    /// Packets that could not be written since the last one that was.
    lost: u64,
    /// Unanswered requests, by their ids: their numbers in the recording, and their content.
    open: BTreeMap<u64, (u64, RecordedRequest)>,
    /// Memory of them.
    open_bytes: usize,
    next_number: u64,
    counts: nbd::TcpSequenceNumbers,
}

impl TrafficRecorder {
    fn new(sink: Arc<dyn ModuleFileSink>, class: ModuleDeviceClass, left: u64) -> Self {
        let (open, counts) = (BTreeMap::new(), nbd::TcpSequenceNumbers::default());
        Self { sink, class, left, began: None, lost: 0, open, open_bytes: 0, next_number: 1, counts }
    }

    fn note(&mut self, now: Instant, message: &ModuleMessage) {
        let (first, unix_ns) = match self.began {
            Some(began) => began,
            None => {
                if !self.put(capture::section(self.class)) {
                    return;
                }
                *self.began.insert((now, self.sink.unix_ns()))
            }
        };
        let unix_ns = unix_ns.saturating_add((now - first).as_nanos() as u64);
        match message.kind {
            ModuleMessageKind::Request => {
                let number = self.next_number;
                self.next_number += 1;
                let recorded_request = match self.class {
                    ModuleDeviceClass::Usb => {
                        UsbRequest::read(&message.head).filter(|request| !request.is_reset()).map(RecordedRequest::Usb)
                    }
                    ModuleDeviceClass::Block => BlockRequestHead::read(&message.head).map(RecordedRequest::Block),
                    ModuleDeviceClass::Stream | ModuleDeviceClass::Private => None,
                };
                match &recorded_request {
                    Some(RecordedRequest::Usb(request)) => {
                        let captured = message.payload.len().min(DATA_BYTES_MAX);
                        self.packets(
                            OWN,
                            unix_ns,
                            &usbmon::requested(number, request, unix_ns, captured),
                            &message.payload,
                        );
                    }
                    Some(RecordedRequest::Block(request)) => {
                        self.segments(unix_ns, false, nbd::request(number, request), &message.payload);
                    }
                    None => self.plain(unix_ns, message),
                }
                if let Some(recorded_request) = recorded_request {
                    self.open_bytes += recorded_request.memory_bytes();
                    let before = self.open.insert(message.id, (number, recorded_request));
                    self.open_bytes -= before.map_or(0, |(_, request)| request.memory_bytes());
                }
            }
            ModuleMessageKind::Completion => match self.forget(message.id) {
                Some((number, RecordedRequest::Usb(usb_request))) => {
                    match UsbReply::read(&usb_request, &message.head, message.payload.len()) {
                        Some(reply) => {
                            let captured = message.payload.len().min(DATA_BYTES_MAX);
                            let head = usbmon::answered(number, &usb_request, &reply, unix_ns, captured);
                            self.packets(OWN, unix_ns, &head, &message.payload);
                        }
                        None => self.plain(unix_ns, message),
                    }
                }
                Some((number, RecordedRequest::Block(_))) => {
                    self.segments(unix_ns, true, nbd::reply(number, &message.head), &message.payload);
                }
                None => self.plain(unix_ns, message),
            },
            ModuleMessageKind::Event => self.plain(unix_ns, message),
            // A cancellation shows in its request's outcome, and asides belong to other modules.
            ModuleMessageKind::Cancel | ModuleMessageKind::Cancelled | ModuleMessageKind::Aside(_) => {}
        }
    }

    fn forget(&mut self, id: u64) -> Option<(u64, RecordedRequest)> {
        let open = self.open.remove(&id)?;
        self.open_bytes -= open.1.memory_bytes();
        Some(open)
    }

    fn plain(&mut self, unix_ns: u64, message: &ModuleMessage) {
        self.packets(BESIDE, unix_ns, &capture::plain(self.class, message), &message.payload);
    }

    /// Writes a packet, and those that continue its data.
    fn packets(&mut self, interface: u32, unix_ns: u64, head: &[u8], payload: &Payload) {
        let data = payload.contiguous();
        let (first, more) = data.split_at(data.len().min(DATA_BYTES_MAX));
        let mut blocks = capture::packet(interface, unix_ns, self.lost, &[head, first]);
        capture::rest(unix_ns, more).for_each(|block| blocks.extend(block));
        self.put(blocks);
    }

    fn segments(&mut self, unix_ns: u64, is_reply: bool, mut message: Vec<u8>, payload: &Payload) {
        payload.runs().for_each(|run| message.extend_from_slice(run));
        let before = self.counts;
        let packets = self.counts.packets(is_reply, &message);
        let blocks = packets
            .iter()
            .enumerate()
            .flat_map(|(at, packet)| capture::packet(OWN, unix_ns, if at == 0 { self.lost } else { 0 }, &[packet]));
        // A failed write consumes no TCP sequence numbers, so that the recording has no gap.
        if !self.put(blocks.collect()) {
            self.counts = before;
        }
    }

    /// Writes all of the bytes or none.
    fn put(&mut self, blocks: Vec<u8>) -> bool {
        let bytes = blocks.len() as u64;
        if bytes > self.left {
            self.left = 0;
            return false;
        }
        let is_written = self.sink.put(blocks);
        if is_written {
            (self.left, self.lost) = (self.left - bytes, 0);
        } else {
            self.lost += 1;
        }
        is_written
    }
}

impl Module for TrafficRecorder {
    fn handle(&mut self, now: Instant, from: ModuleNeighbor, message: ModuleMessage, out: &mut ModuleOutput) {
        if self.left > 0 {
            self.note(now, &message);
        }
        out.pass(from, message);
    }

    /// What it remembers of requests until they are answered.
    fn held_bytes(&self) -> usize {
        self.open_bytes
    }
}
