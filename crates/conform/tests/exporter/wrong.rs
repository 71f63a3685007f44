//! Exporters that are wrong in one way each.

use farbus_conform::player::{ExporterMessageKind, ExporterTamper, MockExporter};
use farbus_model::descriptor::{ConfigurationSelection, DescriptorSet};
use farbus_model::usb::request;
use farbus_model::{CompletionQueue, Device, Instant, TransferDirection, UrbId, UrbInFlight, UrbStatus, UsbSpeed};
use farbus_wire::usbip::message::{DEVICE_RECORD_BYTES, HEADER_BYTES, ISO_PACKET_BYTES, RawHeader, command};
use farbus_wire::usbip::{DeviceRecord, OpStatus};

use super::world::World;
use super::{DISK, disk, zero};

/// A wrong exporter, and the checks that have to fail.
pub struct Wrong {
    pub name: &'static str,
    pub world: Box<dyn Fn() -> World>,
    /// The checks that are run; empty: all.
    pub only: &'static [&'static str],
    /// The checks that fail, and no others.
    pub fails: &'static [&'static str],
    /// Others fail as well, because the end of a message cannot be found.
    pub breaks_framing: bool,
}

/// A tamper made of parts.
#[derive(Clone, Copy)]
struct Parts {
    message: fn(ExporterMessageKind, &mut Vec<u8>),
    import: fn(Result<DeviceRecord, OpStatus>) -> Result<DeviceRecord, OpStatus>,
    forgives: bool,
    keeps: bool,
    lends: bool,
}

const NOTHING: Parts =
    Parts { message: |_, _| {}, import: |answer| answer, forgives: false, keeps: false, lends: false };

impl ExporterTamper for Parts {
    fn message(&mut self, kind: ExporterMessageKind, bytes: &mut Vec<u8>) {
        (self.message)(kind, bytes);
    }

    fn import(&mut self, _: &str, answer: Result<DeviceRecord, OpStatus>) -> Result<DeviceRecord, OpStatus> {
        (self.import)(answer)
    }

    fn forgives(&self) -> bool {
        self.forgives
    }

    fn keeps(&self) -> bool {
        self.keeps
    }

    fn lends(&self) -> bool {
        self.lends
    }
}

/// A device that answers some requests wrongly.
struct WrongDevice {
    inner: Box<dyn Device>,
    answer: Answer,
}

impl Device for WrongDevice {
    fn descriptors(&self) -> &DescriptorSet {
        self.inner.descriptors()
    }

    fn speed(&self) -> UsbSpeed {
        self.inner.speed()
    }

    fn selection(&self) -> &ConfigurationSelection {
        self.inner.selection()
    }

    fn submit(&mut self, now: Instant, urb: UrbInFlight, done: &mut CompletionQueue) {
        match (self.answer)(&urb) {
            None => self.inner.submit(now, urb, done),
            Some((status, data)) => {
                let actual = data.len() as u32;
                done.push(urb.done(status, actual, data.into()));
            }
        }
    }

    fn cancel(&mut self, now: Instant, id: UrbId, done: &mut CompletionQueue) {
        self.inner.cancel(now, id, done);
    }

    fn reset(&mut self, now: Instant, done: &mut CompletionQueue) {
        self.inner.reset(now, done);
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.inner.poll_timeout()
    }

    fn handle_timeout(&mut self, now: Instant, done: &mut CompletionQueue) {
        self.inner.handle_timeout(now, done);
    }
}

/// What a wrong device answers in place of the right one.
type Answer = fn(&UrbInFlight) -> Option<(UrbStatus, Vec<u8>)>;
type Make = fn() -> Box<dyn Device>;

fn tampered(device: Box<dyn Device>, of_device: Parts, of_list: Parts) -> World {
    let mut player = MockExporter::new(Box::new(of_list));
    player.offer(DISK, device, Box::new(of_device));
    World::new(player)
}

fn wrong(name: &'static str, fails: &'static [&'static str], world: impl Fn() -> World + 'static) -> Wrong {
    Wrong { name, world: Box::new(world), only: &[], fails, breaks_framing: false }
}

/// Wrong in what it answers once a device was imported.
fn answers(
    name: &'static str,
    fails: &'static [&'static str],
    make: Make,
    message: fn(ExporterMessageKind, &mut Vec<u8>),
) -> Wrong {
    wrong(name, fails, move || tampered(make(), Parts { message, ..NOTHING }, NOTHING))
}

/// Wrong in lists and in refusals of unknown devices.
fn lists(name: &'static str, fails: &'static [&'static str], message: fn(ExporterMessageKind, &mut Vec<u8>)) -> Wrong {
    wrong(name, fails, move || tampered(disk(), NOTHING, Parts { message, ..NOTHING }))
}

/// Wrong in how it takes what a client sends.
fn takes(name: &'static str, fails: &'static [&'static str], make: Make, incoming: fn(&mut Vec<u8>)) -> Wrong {
    wrong(name, fails, move || World { incoming, ..tampered(make(), NOTHING, NOTHING) })
}

/// Wrong in what its device answers.
fn device(name: &'static str, fails: &'static [&'static str], make: Make, answer: Answer) -> Wrong {
    wrong(name, fails, move || tampered(Box::new(WrongDevice { inner: make(), answer }), NOTHING, NOTHING))
}

impl Wrong {
    fn only(self, only: &'static [&'static str]) -> Self {
        Self { only, ..self }
    }

    fn breaking_framing(self) -> Self {
        Self { breaks_framing: true, ..self }
    }
}

/// Changes the header of a URB's message.
fn header(bytes: &mut [u8], change: impl FnOnce(&mut RawHeader)) {
    let Some(first) = bytes.first_chunk_mut::<HEADER_BYTES>() else { return };
    let mut raw = RawHeader::from_bytes(first);
    change(&mut raw);
    *first = raw.to_bytes();
}

fn is_request(bytes: &[u8]) -> bool {
    bytes.len() >= HEADER_BYTES && bytes[..4] == command::CMD_SUBMIT.to_be_bytes()
}

/// Changes each isochronous packet of an answer of the source/sink device.
fn each_packet(kind: ExporterMessageKind, bytes: &mut [u8], change: fn(&mut [u8])) {
    let raw = bytes.first_chunk::<HEADER_BYTES>().map(RawHeader::from_bytes);
    if let (ExporterMessageKind::Submit, Some(raw)) = (kind, raw) {
        let from = bytes.len().saturating_sub(raw.body[3] as usize * ISO_PACKET_BYTES);
        if (1..=1024).contains(&raw.body[3]) && from >= HEADER_BYTES {
            bytes[from..].chunks_exact_mut(ISO_PACKET_BYTES).for_each(change);
        }
    }
}

/// The errno of a stall.
const STALL: u32 = -32i32 as u32;
const CANCELLED: u32 = -104i32 as u32;
const KILLED: u32 = -2i32 as u32;

pub fn all() -> Vec<Wrong> {
    [handshake(), fields(), devices(), unlinks(), isochronous(), limits()].into_iter().flatten().collect()
}

fn handshake() -> Vec<Wrong> {
    vec![
        lists(
            "an old version in lists",
            &["list-framing", "list-ends", "list-bus-ids", "list-interfaces", "request-in-pieces"],
            |kind, bytes| {
                if kind == ExporterMessageKind::List {
                    bytes[1] = 0x06;
                }
            },
        ),
        lists("bytes behind a list", &["list-ends"], |kind, bytes| {
            if kind == ExporterMessageKind::List {
                bytes.push(0);
            }
        }),
        lists("a bus id twice", &["list-bus-ids"], |kind, bytes| {
            if kind == ExporterMessageKind::List {
                bytes[11] = 2;
                bytes.extend_from_within(12..);
            }
        }),
        lists("another class in lists", &["list-interfaces"], |kind, bytes| {
            if kind == ExporterMessageKind::List {
                bytes[12 + DEVICE_RECORD_BYTES] = 3;
            }
        }),
        answers("interfaces behind an import's record", &["import-record"], disk, |kind, bytes| {
            if kind == ExporterMessageKind::Import && bytes.len() > 8 {
                bytes.extend([8, 6, 0x50, 0]);
            }
        })
        .breaking_framing(),
        wrong("any bus id is good", &["import-unknown", "request-in-pieces"], || {
            let record = |_| Ok(tampered_record());
            tampered(disk(), NOTHING, Parts { import: record, ..NOTHING })
        }),
        lists("a refusal as long as a record", &["import-unknown"], |kind, bytes| {
            if kind == ExporterMessageKind::Import && bytes[2..4] == [0, 3] {
                bytes.resize(8 + DEVICE_RECORD_BYTES, 0);
            }
        }),
        wrong("two users", &["import-busy"], || tampered(disk(), Parts { lends: true, ..NOTHING }, NOTHING)),
        wrong("a device in use is not available", &["import-busy-status"], || {
            let import = |answer: Result<DeviceRecord, OpStatus>| answer.map_err(|_| OpStatus::NotAvailable);
            tampered(disk(), Parts { import, ..NOTHING }, NOTHING)
        }),
        wrong("the device stays in use", &["import-again"], || {
            tampered(disk(), Parts { keeps: true, ..NOTHING }, NOTHING)
        })
        .breaking_framing(),
        takes("takes operations whole or not at all", &["request-in-pieces", "split"], disk, |bytes| {
            if bytes.len() == 1 {
                bytes.clear();
            }
        }),
        takes("any version is good", &["version-other"], disk, |bytes| {
            if bytes.len() == 8 {
                bytes[1] = 0x11;
            }
        }),
        takes("an unknown operation is a list", &["operation-unknown"], disk, |bytes| {
            if bytes.len() == 8 && bytes[3] == 0xff {
                bytes[3] = 0x05;
            }
        }),
        takes("a bus id needs no end", &["bus-id-unterminated"], disk, |bytes| {
            if bytes.len() == 40 && bytes[8..].iter().all(|byte| *byte == b'1') {
                bytes[9] = b'-';
                bytes[11..].fill(0);
            }
        }),
    ]
}

/// A record for an import that should have been refused.
fn tampered_record() -> DeviceRecord {
    DeviceRecord {
        path: String::new(),
        bus_id: DISK.to_owned(),
        bus: 1,
        device: 1,
        speed: UsbSpeed::High,
        vendor: 0,
        product: 0,
        device_bcd: 0,
        class: [0; 3],
        configuration: 1,
        configurations: 1,
        interfaces: Vec::new(),
        interface_count: 1,
    }
}

fn fields() -> Vec<Wrong> {
    vec![
        answers("numbers of 16 bits", &["answer-number"], disk, |kind, bytes| {
            if kind == ExporterMessageKind::Submit {
                header(bytes, |raw| raw.seqnum &= 0xffff);
            }
        }),
        answers("the device id in answers", &["answer-zeros"], disk, |kind, bytes| {
            if kind == ExporterMessageKind::Submit {
                header(bytes, |raw| raw.devid = 0x0001_0001);
            }
        }),
        answers("no packets are always 0", &["no-packets-echo"], disk, |kind, bytes| {
            if kind == ExporterMessageKind::Submit {
                header(bytes, |raw| raw.body[3] = 0);
            }
        }),
        takes("0xffffffff packets are packets", &["no-packets", "no-packets-echo"], disk, |bytes| {
            if is_request(bytes) && bytes[32..36] == [0xff; 4] {
                bytes.clear();
            }
        }),
        takes("waits for packets on any endpoint", &["packets-ignored"], disk, |bytes| {
            if is_request(bytes) && bytes[32..36] == [0, 0, 0, 5] {
                bytes.clear();
            }
        }),
        answers("answers fill their room", &["control-short", "short-not-ok", "port-reset"], disk, |kind, bytes| {
            if kind == ExporterMessageKind::Submit && bytes.len() == HEADER_BYTES + 18 {
                bytes.resize(HEADER_BYTES + 255, 0);
                header(bytes, |raw| raw.body[1] = 255);
            }
        }),
        answers("a stall is a success", &["control-refused", "halt", "request-unknown"], disk, |kind, bytes| {
            if kind == ExporterMessageKind::Submit {
                header(bytes, |raw| raw.body[0] = if raw.body[0] == STALL { 0 } else { raw.body[0] });
            }
        }),
        answers(
            "statuses are positive",
            &["length-out", "control-refused", "halt", "request-unknown", "endpoint-missing"],
            disk,
            |kind, bytes| {
                if kind == ExporterMessageKind::Submit {
                    header(bytes, |raw| raw.body[0] = raw.body[0].wrapping_neg());
                }
            },
        ),
        answers("a short transfer is an error", &["control-short", "in-short"], disk, |kind, bytes| {
            if kind == ExporterMessageKind::Submit
                && (bytes.len() == HEADER_BYTES + 36 || bytes.len() == HEADER_BYTES + 18)
            {
                header(bytes, |raw| raw.body[0] = -121i32 as u32);
            }
        })
        .only(&["control-short", "in-short", "short-not-ok", "control-cut"]),
        answers("every fifth answer is lost", &["burst"], disk, |kind, bytes| {
            if kind == ExporterMessageKind::Submit && bytes[7] % 5 == 0 {
                bytes.clear();
            }
        })
        .breaking_framing(),
        answers("every answer comes twice", &["burst", "unlink-done"], disk, |kind, bytes| {
            if kind == ExporterMessageKind::Submit {
                bytes.extend_from_within(..);
            }
        })
        .breaking_framing(),
        answers("the last request is answered first", &["order"], disk, |kind, bytes| {
            if kind == ExporterMessageKind::Submit {
                header(bytes, |raw| raw.seqnum = 33 - raw.seqnum);
            }
        })
        .only(&["order", "burst"]),
        answers("OUT moved nothing", &["out-answer"], zero, |kind, bytes| {
            if kind == ExporterMessageKind::Submit {
                header(bytes, |raw| raw.body[1] = if raw.body[1] == 3000 { 0 } else { raw.body[1] });
            }
        }),
        answers("OUT comes back", &["out-answer"], zero, |kind, bytes| {
            if kind == ExporterMessageKind::Submit && bytes[20..28] == [0, 0, 0, 0, 0, 0, 0x0b, 0xb8] {
                bytes.resize(HEADER_BYTES + 3000, 0);
            }
        }),
        answers("one byte fewer than announced", &["control-short", "control-cut"], disk, |kind, bytes| {
            if kind == ExporterMessageKind::Submit && bytes.len() > HEADER_BYTES + 2 {
                bytes.pop();
            }
        })
        .breaking_framing(),
    ]
}

fn devices() -> Vec<Wrong> {
    vec![
        device("descriptors are not cut", &["control-cut"], disk, |urb| {
            (urb.endpoint.is_control() && urb.length == 7).then(|| (UrbStatus::Ok, vec![18, 1]))
        }),
        device("another configuration", &["set-configuration", "port-reset", "port-reset-feature"], disk, |urb| {
            (urb.setup.request == request::GET_CONFIGURATION && urb.endpoint.is_control())
                .then(|| (UrbStatus::Ok, vec![0]))
        }),
        device("halts outlast a reset", &["port-reset"], disk, |urb| {
            (urb.setup.request == request::GET_STATUS && urb.setup.request_type == 0x82 && urb.endpoint.is_control())
                .then(|| (UrbStatus::Ok, vec![1, 0]))
        }),
        answers("resets of a port are refused", &["port-reset-feature"], disk, |kind, bytes| {
            // The answer to SET_FEATURE(PORT_RESET) alone: behind SET_CONFIGURATION and what learned the device.
            if kind == ExporterMessageKind::Submit && bytes[7] == 4 {
                header(bytes, |raw| raw.body[0] = STALL);
            }
        })
        .only(&["list-framing", "port-reset-feature"]),
        device("another setting", &["set-interface"], disk, |urb| {
            (urb.setup.request == request::GET_INTERFACE && urb.endpoint.is_control()).then(|| (UrbStatus::Ok, vec![9]))
        }),
        device("halts are not cleared", &["clear-halt", "halt"], disk, |urb| {
            (urb.setup.request == request::CLEAR_FEATURE && urb.endpoint.is_control())
                .then(|| (UrbStatus::Stall, vec![]))
        })
        .only(&["clear-halt", "halt", "set-configuration"]),
        device("OUT of nothing fails", &["out-empty"], zero, |urb| {
            (urb.direction == TransferDirection::Out && urb.length == 0 && !urb.endpoint.is_control())
                .then(|| (UrbStatus::Invalid, vec![]))
        }),
        device("a device without data", &["in-answer"], disk, |urb| {
            (urb.direction == TransferDirection::In && !urb.endpoint.is_control() && urb.length < 512)
                .then(|| (UrbStatus::Ok, vec![]))
        })
        .only(&["in-answer", "out-answer"]),
    ]
}

fn unlinks() -> Vec<Wrong> {
    vec![
        answers("a withdrawn request was killed", &["unlink-pending", "unlink-queue"], disk, |kind, bytes| {
            if kind == ExporterMessageKind::Unlink {
                header(bytes, |raw| raw.body[0] = if raw.body[0] == CANCELLED { -2i32 as u32 } else { raw.body[0] });
            }
        }),
        answers(
            "a withdrawn request is answered as well",
            &["unlink-pending", "unlink-queue", "unlink-twice", "unlink-first"],
            disk,
            |kind, bytes| {
                let raw = bytes.first_chunk::<HEADER_BYTES>().map(RawHeader::from_bytes);
                if let (ExporterMessageKind::Unlink, Some(raw)) = (kind, raw)
                    && raw.body[0] == CANCELLED
                {
                    let answer = RawHeader { command: command::RET_SUBMIT, seqnum: raw.seqnum - 1, ..raw };
                    bytes.extend(answer.to_bytes());
                }
            },
        ),
        answers("a withdrawn request ends with -2 as well", &["unlink-queue"], disk, |kind, bytes| {
            let raw = bytes.first_chunk::<HEADER_BYTES>().map(RawHeader::from_bytes);
            if let (ExporterMessageKind::Unlink, Some(raw)) = (kind, raw)
                && raw.body[0] == CANCELLED
            {
                header(bytes, |raw| raw.body[0] = 0);
                let body = [KILLED, 0, 0, 0, 0];
                let answer = RawHeader { command: command::RET_SUBMIT, seqnum: raw.seqnum - 8, body, ..raw };
                bytes.splice(..0, answer.to_bytes());
            }
        })
        .only(&["unlink-queue"]),
        answers(
            "an unlink that comes late is ignored",
            &["unlink-done", "unlink-unknown", "unlink-storm", "unlink-twice"],
            disk,
            |kind, bytes| {
                if kind == ExporterMessageKind::Unlink && bytes[20..24] == [0; 4] {
                    bytes.clear();
                }
            },
        ),
        answers(
            "a withdrawn request is unlinked with 0",
            &["unlink-pending", "unlink-queue", "unlink-twice", "unlink-first"],
            disk,
            |kind, bytes| {
                if kind == ExporterMessageKind::Unlink {
                    header(bytes, |raw| raw.body[0] = 0);
                }
            },
        ),
        wrong("a device is kept while requests are under way", &["close-while-pending"], || World {
            is_forgetful: true,
            ..tampered(disk(), NOTHING, NOTHING)
        })
        .only(&["close-while-pending", "import-again"]),
    ]
}

fn isochronous() -> Vec<Wrong> {
    vec![
        answers(
            "packets are elsewhere",
            &["iso-places", "iso-gaps", "iso-out", "iso-out-gaps", "iso-short"],
            zero,
            |kind, bytes| {
                each_packet(kind, bytes, |packet| packet[..4].fill(0));
            },
        ),
        takes("gaps of OUT are not taken", &["iso-out-gaps"], zero, |bytes| {
            let gaps = 8 * 64;
            if is_request(bytes) && bytes[12..16] == [0; 4] && bytes[32..36] == [0, 0, 0, 8] {
                let length = u32::from_be_bytes(bytes[24..28].try_into().unwrap());
                if length as usize > gaps && length % 1024 == gaps as u32 {
                    bytes.clear();
                }
            }
        }),
        answers("what lies behind the packets comes, too", &["iso-short"], zero, |kind, bytes| {
            let raw = bytes.first_chunk::<HEADER_BYTES>().map(RawHeader::from_bytes);
            if let (ExporterMessageKind::Submit, Some(raw)) = (kind, raw)
                && raw.body[3] == 8
                && raw.body[1] > 0
                && bytes.len() > HEADER_BYTES + 8 * ISO_PACKET_BYTES
            {
                // As many bytes as the buffer had, had it been longer by four gaps.
                let at = bytes.len() - 8 * ISO_PACKET_BYTES;
                bytes.splice(at..at, [0; 4 * 64]);
                header(bytes, |raw| raw.body[1] += 4 * 64);
            }
        })
        .only(&["iso-short"]),
        answers(
            "packets moved nothing",
            &["iso-in", "iso-gaps", "iso-out", "iso-out-gaps", "iso-short"],
            zero,
            |kind, bytes| {
                each_packet(kind, bytes, |packet| packet[8..12].fill(0));
            },
        ),
        answers("packets that failed are not counted", &["iso-errors"], zero, |kind, bytes| {
            each_packet(kind, bytes, |packet| packet[12..16].copy_from_slice(&(-18i32).to_be_bytes()));
        }),
        answers("one packet is missing", &["iso-in", "iso-out"], zero, |kind, bytes| {
            let count = bytes.first_chunk::<HEADER_BYTES>().map_or(0, |first| RawHeader::from_bytes(first).body[3]);
            if kind == ExporterMessageKind::Submit && (1..=1024).contains(&count) && count != 5 {
                bytes.truncate(bytes.len() - ISO_PACKET_BYTES);
                header(bytes, |raw| raw.body[3] -= 1);
            }
        })
        .breaking_framing(),
        takes("no packets are no request", &["iso-none"], zero, |bytes| {
            if is_request(bytes) && bytes[16..20] == [0, 0, 0, 3] && bytes[32..36] == [0; 4] {
                bytes.clear();
            }
        }),
        takes("places are not looked at", &["iso-outside"], zero, |bytes| {
            if is_request(bytes) && bytes[16..20] == [0, 0, 0, 3] && bytes.len() == HEADER_BYTES + ISO_PACKET_BYTES {
                bytes[HEADER_BYTES..HEADER_BYTES + 4].fill(0);
            }
        }),
        takes("waits for any number of packets", &["iso-many"], zero, |bytes| {
            if is_request(bytes) && bytes[32..36] == [0x7f, 0xff, 0xff, 0xff] {
                bytes.clear();
            }
        }),
    ]
}

fn limits() -> Vec<Wrong> {
    vec![
        takes("garbage is swallowed", &["garbage-operation", "garbage-request"], disk, |bytes| {
            if bytes.iter().all(|byte| *byte == 0xa5) {
                bytes.clear();
            }
        }),
        wrong("garbage in place of operations is forgiven", &["bus-id-unterminated"], || {
            tampered(disk(), NOTHING, Parts { forgives: true, ..NOTHING })
        }),
        wrong(
            "garbage in place of requests is forgiven",
            &["garbage-request", "command-unknown", "device-id", "endpoint-number"],
            || tampered(disk(), Parts { forgives: true, ..NOTHING }, NOTHING),
        ),
        takes(
            "a request that is too long stays silent",
            &["length-huge", "length-negative", "length-out"],
            disk,
            |bytes| {
                if is_request(bytes) && bytes[24] >= 2 {
                    bytes.clear();
                }
            },
        ),
        takes("an endpoint that is missing stays silent", &["endpoint-missing"], disk, |bytes| {
            if is_request(bytes) && bytes[16..20] == [0, 0, 0, 15] {
                bytes.clear();
            }
        }),
        takes("the number of an endpoint is cut", &["endpoint-number"], zero, |bytes| {
            if is_request(bytes) && bytes[16..20] == [0, 0, 0, 0x7f] {
                bytes[19] = 1;
            }
        }),
        takes("any device id is good", &["device-id"], disk, |bytes| {
            if is_request(bytes) {
                bytes[8..12].copy_from_slice(&[0, 1, 0, 1]);
            }
        }),
        wrong("one client at a time", &["import-busy", "silent-client", "never-reads"], || World {
            is_single: true,
            ..tampered(disk(), NOTHING, NOTHING)
        })
        .breaking_framing(),
        wrong("a client that leaves in a header stays", &["half-operation"], || World {
            stays_in_header: true,
            is_single: true,
            ..tampered(disk(), NOTHING, NOTHING)
        })
        .only(&["half-operation", "list-framing"]),
        wrong("a user that leaves in a header keeps the device", &["half-request"], || World {
            stays_in_header: true,
            ..tampered(disk(), NOTHING, NOTHING)
        })
        .only(&["half-request", "import-again"]),
    ]
}
