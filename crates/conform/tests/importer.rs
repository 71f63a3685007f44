//! The importer checks: a right importer passes all, and one that is wrong in one way fails the check for it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use farbus_conform::importer::{self, ProbeConnectionState, ProbeExporter};
use farbus_conform::player::ConnId;
use farbus_conform::{CheckVerdict, ConformanceReport};
use farbus_gadgets::zero::{SourcePattern, SourceSink};
use farbus_model::descriptor::{EndpointDescriptor, kind};
use farbus_model::{
    BufferPool, Device, EpAddr, Instant, IsoPacket, SessionLimits, SetupPacket, TransferType, Urb, UrbFlags, UrbId,
    UsbSpeed,
};
use farbus_wire::usbip::UsbipClientConn;
use farbus_wire::usbip::client::UsbipReply;
use farbus_wire::usbip::message::{OpHeader, RawHeader, encode_unlink, op};
use farbus_wire::usbip::{OpStatus, message};

const PATIENCE: Duration = Duration::from_secs(2);

fn zero() -> Box<dyn Device> {
    Box::new(SourceSink::device(UsbSpeed::High, SourcePattern::Zeros, false))
}

/// What an importer does wrong.
#[derive(Clone, Copy)]
struct Faults {
    /// Changes each message, by its place: 0 is the import.
    message: fn(usize, &mut Vec<u8>),
    /// Goes on where a right importer ends the connection.
    ignores: bool,
    /// Ends the connection at the first answer.
    leaves: bool,
    /// Stays, and waits for more, where its import was refused.
    stays: bool,
    /// Takes a part of an answer for an answer: goes on, and ends the connection only then.
    pads: bool,
    /// Behind the configuration, in place of what a right importer does.
    extra: fn(u32) -> Vec<u8>,
}

const NONE: Faults =
    Faults { message: |_, _| {}, ignores: false, leaves: false, stays: false, pads: false, extra: |_| Vec::new() };

/// An importer without sockets, on the parser that farbus uses.
struct Importer {
    conn: UsbipClientConn,
    pool: BufferPool,
    sent: usize,
    step: usize,
    faults: Faults,
    devid: u32,
}

impl Importer {
    fn submit(&mut self, urb: Urb, kind: TransferType) {
        let endpoint = EndpointDescriptor {
            address: urb.endpoint,
            kind,
            packet_bytes_max: 1024,
            packets_per_interval: 1,
            interval: 4,
        };
        self.conn.submit(urb.launch(), Some(&endpoint), &mut self.pool);
    }

    /// The next request of an enumeration; `false` at its end.
    fn go_on(&mut self) {
        let control = |setup| Urb::control(UrbId(0), setup, Default::default());
        self.step += 1;
        let id = UrbId(self.step as u64);
        match self.step {
            1 => self.submit(
                Urb { id, ..control(SetupPacket::get_descriptor(kind::DEVICE, 0, 0, 18)) },
                TransferType::Control,
            ),
            2 => self.submit(
                Urb { id, ..control(SetupPacket::get_descriptor(kind::CONFIGURATION, 0, 0, 255)) },
                TransferType::Control,
            ),
            3 => self.submit(Urb { id, ..control(SetupPacket::set_configuration(1)) }, TransferType::Control),
            4 => self.submit(Urb::data_in(id, EpAddr::from_byte(0x81), 512), TransferType::Bulk),
            5 => {
                let iso = vec![IsoPacket { offset: 0, length: 1024, ..IsoPacket::default() }; 1];
                let flags = UrbFlags { iso_asap: true, ..UrbFlags::default() };
                let urb = Urb { iso, flags, ..Urb::data_in(id, EpAddr::from_byte(0x83), 1024) };
                self.submit(urb, TransferType::Isochronous);
                self.conn.unlink(id);
            }
            _ => {}
        }
    }

    /// The messages to send, one by one.
    fn outgoing(&mut self) -> Vec<Vec<u8>> {
        let mut bytes = Vec::new();
        self.conn.poll_transmit().iter().for_each(|run| bytes.extend_from_slice(run));
        self.conn.handle_transmitted(bytes.len(), &mut self.pool);
        let mut messages = Vec::new();
        while !bytes.is_empty() {
            let header = bytes.first_chunk().map(RawHeader::from_bytes);
            let packets = header.filter(|raw| raw.command == 1 && raw.ep == 3).map_or(0, |raw| raw.body[3] as usize);
            let length = if self.sent == 0 { 40 } else { 48 + 16 * packets };
            let rest = bytes.split_off(length);
            (self.faults.message)(self.sent, &mut bytes);
            self.sent += 1;
            messages.push(bytes);
            bytes = rest;
        }
        messages
    }

    /// Takes bytes; returns whether it stays.
    fn take(&mut self, mut bytes: &[u8]) -> bool {
        while !bytes.is_empty() {
            let space = self.conn.receive_space();
            let count = space.len().min(bytes.len());
            space[..count].copy_from_slice(&bytes[..count]);
            self.conn.handle_received(count);
            bytes = &bytes[count..];
            loop {
                match self.conn.poll_answer() {
                    Ok(None) => break,
                    Ok(Some(UsbipReply::Imported(Ok(record)))) => {
                        self.devid = record.device_id();
                        self.go_on();
                    }
                    Ok(Some(UsbipReply::Done(_))) if self.faults.leaves => return false,
                    Ok(Some(UsbipReply::Done(_))) => self.go_on(),
                    Ok(Some(_)) => return self.faults.stays,
                    Err(_) => return self.faults.ignores,
                }
            }
        }
        true
    }
}

/// Attaches an importer to a device until nothing more happens.
fn attach(stage: &mut ProbeExporter, bus_id: &str, faults: Faults, now: &mut Instant) {
    let id: ConnId = stage.connect();
    let (limits, pool) = (SessionLimits::DEFAULT, BufferPool::new(1 << 20));
    let mut importer = Importer { conn: UsbipClientConn::new(&limits), pool, sent: 0, step: 0, faults, devid: 0 };
    importer.conn.import(bus_id);
    let mut extra = None;
    for _ in 0..20_000 {
        for message in importer.outgoing() {
            stage.receive(id, &message, *now);
        }
        let bytes = stage.transmit(id).to_vec();
        if !bytes.is_empty() {
            stage.transmitted(id, bytes.len(), *now);
            if !importer.take(&bytes) {
                break;
            }
            continue;
        }
        if importer.step >= 3 && extra.is_none() {
            let message = (faults.extra)(importer.devid);
            stage.receive(id, &message, *now);
            extra = Some(());
            continue;
        }
        if stage.ending(id) == ProbeConnectionState::Half && faults.pads {
            stage.receive(id, &request(importer.devid, 98), *now);
        }
        if stage.ending(id) != ProbeConnectionState::Open && !faults.ignores {
            break;
        }
        // A wrong importer repeats itself.
        if faults.ignores && (importer.step == 0 || stage.ending(id) != ProbeConnectionState::Open) {
            *now = *now + PATIENCE / 2;
            stage.receive(id, &request(importer.devid.max(0x0001_0001), 99), *now);
        }
        match stage.poll_timeout() {
            Some(moment) if !stage.is_settled(bus_id) => {
                *now = (*now).max(moment);
                stage.handle_timeout(*now);
            }
            _ => break,
        }
    }
    stage.closed(id, *now);
}

/// GET_DESCRIPTOR with this device id and number.
fn request(devid: u32, number: u32) -> Vec<u8> {
    let setup = SetupPacket::get_descriptor(kind::DEVICE, 0, 0, 18).to_bytes();
    RawHeader { command: 1, seqnum: number, devid, direction: 1, ep: 0, body: [0x200, 18, 0, 0, 0], setup }
        .to_bytes()
        .to_vec()
}

fn test(faults: Faults) -> ConformanceReport {
    let mut stage = ProbeExporter::new(zero, &[], PATIENCE);
    let bus_ids: Vec<&str> = stage.probes().map(|probe| probe.bus_id).collect();
    let mut now = Instant::ZERO;
    for bus_id in bus_ids {
        attach(&mut stage, bus_id, faults, &mut now);
    }
    stage.report(&[])
}

fn failed(report: &ConformanceReport) -> BTreeMap<&'static str, String> {
    let failed = report.results.iter().filter(|line| line.verdict == CheckVerdict::Fail);
    failed.map(|line| (line.check.id, line.seen.clone())).collect()
}

#[test]
fn a_right_importer_passes_each_check_that_its_device_can_show() {
    let report = test(NONE);
    assert_eq!(failed(&report), BTreeMap::new());
    let open: Vec<&str> =
        report.results.iter().filter(|line| line.verdict != CheckVerdict::Pass).map(|line| line.check.id).collect();
    assert_eq!(open, [] as [&str; 0]);
    assert!(report.conforms());
}

type Row = (&'static str, Faults, &'static [&'static str]);

/// Changes one word of each request of that place.
macro_rules! changes {
    ($place:expr, |$bytes:ident| $change:expr) => {
        Faults {
            message: |place, $bytes| {
                if place == $place {
                    $change;
                }
            },
            ..NONE
        }
    };
}

#[test]
fn an_importer_that_is_wrong_in_one_way_breaks_that_rule_and_only_related_ones() {
    let extra = |extra| Faults { extra, ..NONE };
    let rows: &[Row] = &[
        ("another version", changes!(0, |bytes| bytes[1] = 0x06), &["operation"]),
        ("a status", changes!(0, |bytes| bytes[7] = 1), &["operation-status"]),
        ("a bus id without an end", changes!(0, |bytes| bytes[8..].fill(b'1')), &["bus-id"]),
        ("garbage behind a bus id", changes!(0, |bytes| bytes[20] = 1), &["bus-id-padding"]),
        (
            "a request with the import",
            changes!(0, |bytes| bytes.extend(request(0x0001_0001, 1000))),
            &["waits-for-import", "other-device", "refusal", "version", "device-id", "operation"],
        ),
        ("an unknown command", changes!(4, |bytes| bytes[3] = 9), &["command"]),
        ("another device", changes!(4, |bytes| bytes[11] ^= 0x40), &["device-id"]),
        (
            "data against the setup packet",
            changes!(1, |bytes| {
                bytes[15] ^= 1;
                bytes.extend([0; 18])
            }),
            &["direction"],
        ),
        ("a direction of 2", changes!(4, |bytes| bytes[15] = 2), &["direction"]),
        ("endpoint 9", changes!(4, |bytes| bytes[19] = 9), &["configured-first", "endpoint"]),
        ("endpoint 77", changes!(4, |bytes| bytes[19] = 77), &["endpoint"]),
        ("2 GiB", changes!(4, |bytes| bytes[24] = 0x7f), &["length"]),
        ("a buffer longer than wLength", changes!(1, |bytes| bytes[26] = 1), &["control-length"]),
        ("a setup packet for bulk", changes!(4, |bytes| bytes[40] = 1), &["setup-zero"]),
        ("packets for bulk", changes!(4, |bytes| bytes[35] = 1), &["no-packets"]),
        ("no interval", changes!(5, |bytes| bytes[36..40].fill(0)), &["interval"]),
        ("a packet outside", changes!(5, |bytes| bytes[48] = 1), &["packets"]),
        (
            "no configuration",
            changes!(3, |bytes| bytes[41] = 0x0b),
            &["configured-first", "endpoint", "configures", "command", "no-packets"],
        ),
        ("an unlink of nothing", extra(|devid| encode_unlink(5000, devid, 4000).to_vec()), &["unlink-victim"]),
        (
            "an unlink without a number of its own",
            extra(|devid| encode_unlink(2, devid, 1).to_vec()),
            &["unlink-number"],
        ),
        (
            "a number twice",
            extra(|devid| {
                let mut raw = RawHeader::from_bytes(request(devid, 600).first_chunk().unwrap());
                (raw.ep, raw.setup, raw.body) = (3, [0; 8], [2, 1024, 0, 1, 1]);
                let packet = message::encode_iso_packet(&IsoPacket { length: 1024, ..IsoPacket::default() });
                let once = [&raw.to_bytes()[..], &packet].concat();
                [once.clone(), once].concat()
            }),
            &["number"],
        ),
        (
            "a halted endpoint is used",
            extra(|devid| {
                let halt = SetupPacket { request: 3, ..SetupPacket::clear_halt(EpAddr::from_byte(0x81)) }.to_bytes();
                let raw = RawHeader::from_bytes(request(devid, 700).first_chunk().unwrap());
                let halted = RawHeader { direction: 0, body: [0; 5], setup: halt, ..raw };
                let read = |seqnum| RawHeader { seqnum, ep: 1, setup: [0; 8], body: [0x200, 512, 0, 0, 0], ..raw };
                [halted, read(701), read(702)].map(RawHeader::to_bytes).concat()
            }),
            &["halt-cleared"],
        ),
        (
            "leaves at its first answer",
            Faults { leaves: true, ..NONE },
            &["configures", "answers-in-pieces", "unlink-answer-unknown"],
        ),
        (
            "goes on after whatever it is told",
            Faults { ignores: true, ..NONE },
            &[
                "version",
                "other-device",
                "answer-too-long",
                "half-answer",
                "half-header",
                "answer-unknown",
                "device-id",
            ],
        ),
        ("waits for the record of a refusal", Faults { stays: true, ..NONE }, &["refusal"]),
        ("takes a part for the whole", Faults { pads: true, ..NONE }, &["half-answer", "half-header"]),
    ];
    let mut found = BTreeSet::new();
    let mut surprises = Vec::new();
    for (name, faults, expected) in rows {
        let failed = failed(&test(*faults));
        // A message that breaks a rule is not answered, so that a device may stay without its configuration.
        let is_of_probe = |id: &&str| importer::PROBES.iter().any(|probe| probe.check.id == *id);
        let rules: BTreeSet<&str> = failed.keys().copied().filter(|id| !is_of_probe(id)).collect();
        let expected_rules: BTreeSet<&str> = expected.iter().copied().filter(|id| !is_of_probe(id)).collect();
        if !expected.iter().all(|id| failed.contains_key(id)) || rules != expected_rules {
            surprises.push(format!("{name}: not {expected:?} but {failed:#?}"));
        }
        found.extend(*expected);
    }
    assert!(surprises.is_empty(), "{}", surprises.join("\n"));
    let all: BTreeSet<&str> = importer::checks().iter().map(|check| check.id).collect();
    let never: Vec<&&str> = all.difference(&found).collect();
    assert!(never.is_empty(), "no wrong importer fails {never:?}");
}

#[test]
fn an_importer_that_attaches_to_nothing_is_not_judged() {
    let stage = ProbeExporter::new(zero, &[], PATIENCE);
    let report = stage.report(&[]);
    assert!(
        report.results.iter().all(|line| matches!(line.verdict, CheckVerdict::Skipped | CheckVerdict::NotApplicable))
    );
}

#[test]
fn a_list_alone_is_held_against_the_rules_of_operations() {
    let mut stage = ProbeExporter::new(zero, &[], PATIENCE);
    let id = stage.connect();
    stage.receive(id, &OpHeader::new(op::REQ_DEVLIST, OpStatus::Ok).to_bytes(), Instant::ZERO);
    assert!(stage.transmit(id).len() > 312 * importer::PROBES.len());
    let report = stage.report(&["operation".to_owned()]);
    assert_eq!(report.results.len(), 1);
    assert_eq!(report.results[0].verdict, CheckVerdict::Pass);
}
