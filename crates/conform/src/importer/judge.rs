//! What an importer sends, message by message, held against the rules.

use std::collections::{BTreeMap, BTreeSet};

use farbus_model::limits::{ISO_PACKETS_MAX, URB_BYTES_MAX};
use farbus_model::usb::{RequestRecipient, request};
use farbus_model::{EpAddr, TransferDirection, TransferType};
use farbus_wire::usbip::message::{
    self, BUS_ID_BYTES, HEADER_BYTES, ISO_PACKET_BYTES, OP_HEADER_BYTES, OpHeader, RawHeader, SubmitCommand, command,
    op,
};

use crate::check::{CheckResult as Line, CheckSeverity, CheckVerdict, ConformanceCheck};
use crate::player::{ConnId, MockExporter};

const fn rule(
    severity: CheckSeverity,
    id: &'static str,
    claim: &'static str,
    source: &'static str,
) -> ConformanceCheck {
    ConformanceCheck { id, claim, source, severity }
}

const MUST: CheckSeverity = CheckSeverity::Must;
const SHOULD: CheckSeverity = CheckSeverity::Should;
const SUBMIT: &str = "kernel usbip_protocol.rst, USBIP_CMD_SUBMIT";
const UNLINK: &str = "kernel usbip_protocol.rst, USBIP_CMD_UNLINK";
const IMPORT: &str = "kernel usbip_protocol.rst, OP_REQ_IMPORT";

/// The rules, in the order of the report.
#[rustfmt::skip]
pub(super) const RULES: &[ConformanceCheck] = &[
    rule(MUST, "operation", "An operation is a list or an import of version 0x0111.", IMPORT),
    rule(SHOULD, "operation-status", "The status of an operation is 0.", IMPORT),
    rule(MUST, "bus-id", "A bus id ends with NUL.", IMPORT),
    rule(SHOULD, "bus-id-padding", "Behind its end a bus id is NULs.", IMPORT),
    rule(MUST, "waits-for-import", "No request is sent before the import was answered.", IMPORT),
    rule(MUST, "command", "A request is CMD_SUBMIT or CMD_UNLINK.", SUBMIT),
    rule(MUST, "device-id", "A request has the device id of the import's answer.", SUBMIT),
    rule(MUST, "number", "A number of a request under way is not used again.", SUBMIT),
    rule(MUST, "direction", "The direction is 0 or 1, and that of the setup packet if data follow.", SUBMIT),
    rule(MUST, "endpoint", "A request goes to an endpoint that is active.", "USB 2.0 §9.6.6"),
    rule(MUST, "length", "A buffer has 16 MiB at most.", "farbus URB_BYTES_MAX; exporters have limits of that size"),
    rule(SHOULD, "control-length", "The buffer of a control request is as long as wLength says.", "USB 2.0 §9.3.5"),
    rule(SHOULD, "setup-zero", "Without a control endpoint the setup packet is zeros.", SUBMIT),
    rule(SHOULD, "no-packets", "Without an isochronous endpoint there are 0 or 0xffffffff packets.", SUBMIT),
    rule(MUST, "packets", "Isochronous packets are 1024 at most, and lie inside their buffer.", "Linux USBIP_MAX_ISO_PACKETS"),
    rule(MUST, "interval", "A request to an interrupt or isochronous endpoint states an interval above 0.", "Linux usb_submit_urb, which usbip-host calls, refuses 0"),
    rule(MUST, "configured-first", "Data are sent to a device that was configured.", "USB 2.0 §9.1.1.5"),
    rule(MUST, "unlink-victim", "An unlink names a request that was submitted.", UNLINK),
    rule(MUST, "unlink-number", "An unlink has a number of its own.", UNLINK),
    rule(SHOULD, "halt-cleared", "A halted endpoint is cleared before it is used again.", "USB 2.0 §9.4.5"),
];

/// How often a rule was kept, and how it was broken first.
#[derive(Clone, Debug, Default)]
struct RuleTally {
    kept: u64,
    broken: Option<String>,
}

/// The rules, and what became of them.
#[derive(Debug, Default)]
pub(super) struct RuleJudge {
    tallies: BTreeMap<&'static str, RuleTally>,
    /// Numbers that each connection used for requests; limited by what a session lasts for.
    submitted: BTreeMap<ConnId, BTreeSet<u32>>,
}

/// Numbers remembered of each connection.
const NUMBERS_MAX: usize = 1 << 20;

/// A whole message of an importer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ImporterMessage {
    /// A list is asked for.
    List,
    /// An OP_REQ_IMPORT: it wants a device.
    Import,
    /// A request, with its header.
    Request(RawHeader),
    /// What is no message: the connection ends.
    Other,
}

impl RuleJudge {
    /// How many bytes the first message has, and what it is; `None` until they are all there. `is_imported`: requests
    /// follow.
    pub fn frame(bytes: &[u8], id: ConnId, player: &MockExporter) -> Option<(usize, ImporterMessage)> {
        if player.device_of(id).is_none() {
            let header = OpHeader::from_bytes(*bytes.first_chunk()?);
            return match (header.version, header.code) {
                (message::VERSION, op::REQ_DEVLIST) => Some((OP_HEADER_BYTES, ImporterMessage::List)),
                (message::VERSION, op::REQ_IMPORT) => {
                    let total = OP_HEADER_BYTES + BUS_ID_BYTES;
                    (bytes.len() >= total).then_some((total, ImporterMessage::Import))
                }
                _ => Some((bytes.len(), ImporterMessage::Other)),
            };
        }
        let raw = RawHeader::from_bytes(bytes.first_chunk::<HEADER_BYTES>()?);
        let total = match raw.command {
            command::CMD_UNLINK => HEADER_BYTES,
            command::CMD_SUBMIT => HEADER_BYTES + behind(&raw, id, player),
            _ => return Some((bytes.len(), ImporterMessage::Other)),
        };
        (bytes.len() >= total).then_some((total, ImporterMessage::Request(raw)))
    }

    /// Holds a message against the rules. `rest`: how many bytes came behind it.
    pub fn message(
        &mut self,
        message: ImporterMessage,
        bytes: &[u8],
        rest: usize,
        id: ConnId,
        player: &mut MockExporter,
    ) {
        match message {
            ImporterMessage::List | ImporterMessage::Import => self.operation(bytes, message, rest),
            ImporterMessage::Request(raw) if raw.command == command::CMD_UNLINK => self.unlink(&raw, id, player),
            ImporterMessage::Request(raw) => self.submit(&raw, bytes, id, player),
            ImporterMessage::Other if player.device_of(id).is_some() => {
                self.note("command", false, || format!("a request begins with {:02x?}", &bytes[..bytes.len().min(8)]));
            }
            ImporterMessage::Other => {
                self.note("operation", false, || format!("it begins with {:02x?}", &bytes[..bytes.len().min(8)]));
            }
        }
    }

    fn note(&mut self, id: &'static str, kept: bool, seen: impl FnOnce() -> String) {
        let tally = self.tallies.entry(id).or_default();
        match kept {
            true => tally.kept += 1,
            false if tally.broken.is_none() => tally.broken = Some(seen()),
            false => {}
        }
    }

    fn operation(&mut self, bytes: &[u8], message: ImporterMessage, rest: usize) {
        self.note("operation", true, String::new);
        if let Some(header) = bytes.first_chunk().map(|first| OpHeader::from_bytes(*first)) {
            self.note("operation-status", header.status == 0, || format!("status {}", header.status));
        }
        let name = bytes.get(OP_HEADER_BYTES..).filter(|_| message == ImporterMessage::Import);
        let Some(name) = name else { return };
        let end = name.iter().position(|byte| *byte == 0);
        self.note("bus-id", end.is_some(), || "32 bytes without NUL".to_owned());
        let padding = &name[end.unwrap_or(name.len())..];
        self.note("bus-id-padding", padding.iter().all(|byte| *byte == 0), || format!("{padding:02x?}"));
        self.note("waits-for-import", rest == 0, || format!("{rest} bytes came with the import"));
    }

    fn head(&mut self, raw: &RawHeader, id: ConnId, player: &MockExporter) {
        self.note("command", true, String::new);
        let devid = player.device_of(id).map_or(0, |(_, devid)| devid);
        self.note("device-id", raw.devid == devid, || format!("{:#x}, not {devid:#x}", raw.devid));
    }

    fn unlink(&mut self, raw: &RawHeader, id: ConnId, player: &MockExporter) {
        self.head(raw, id, player);
        let numbers = self.submitted.entry(id).or_default();
        let (is_known, is_own) = (numbers.contains(&raw.body[0]), !numbers.contains(&raw.seqnum));
        // It may still be under way: vhci sends an unlink before its submit now and then.
        self.note("unlink-victim", is_known, || format!("number {} was not submitted", raw.body[0]));
        self.note("unlink-number", is_own, || format!("number {} is one of a request", raw.seqnum));
    }

    fn submit(&mut self, raw: &RawHeader, bytes: &[u8], id: ConnId, player: &mut MockExporter) {
        self.head(raw, id, player);
        self.note("number", !player.is_in_flight(id, raw.seqnum), || format!("number {} again", raw.seqnum));
        let numbers = self.submitted.entry(id).or_default();
        if numbers.len() < NUMBERS_MAX {
            numbers.insert(raw.seqnum);
        }
        let [_, length, _, packets, interval] = raw.body;
        self.note("length", length <= URB_BYTES_MAX, || format!("{length} bytes"));
        let submit = match SubmitCommand::check(raw) {
            Ok(submit) => submit,
            Err(reject) => {
                let broken = if reject.field == "direction" { "direction" } else { "endpoint" };
                self.note(broken, reject.field == "transfer_buffer_length", || reject.to_string());
                return;
            }
        };
        let is_control = submit.endpoint.is_control();
        let (setup, of_setup) = (submit.setup, submit.setup.direction());
        let fits = !is_control || setup.length == 0 || of_setup == submit.direction;
        self.note("direction", fits, || format!("{:?} for setup {:02x?}", submit.direction, raw.setup));
        let kind = player.kind_of(id, submit.endpoint);
        self.note("endpoint", is_control || kind.is_some(), || format!("endpoint {}", submit.endpoint));
        if is_control {
            let wanted = u32::from(setup.length);
            self.note("control-length", length == wanted, || format!("{length} bytes for a wLength of {wanted}"));
            clears(&submit, id, player);
        } else {
            self.note("setup-zero", raw.setup == [0; 8], || format!("{:02x?}", raw.setup));
            self.note("configured-first", kind.is_some(), || format!("data for endpoint {}", submit.endpoint));
            let is_halted = player.is_halted(id, submit.endpoint);
            self.note("halt-cleared", !is_halted, || format!("endpoint {} is halted", submit.endpoint));
        }
        if matches!(kind, Some(TransferType::Interrupt | TransferType::Isochronous)) {
            let is_stated = (1..=i32::MAX.cast_unsigned()).contains(&interval);
            self.note("interval", is_stated, || format!("interval {interval} for endpoint {}", submit.endpoint));
        }
        if kind != Some(TransferType::Isochronous) {
            self.note("no-packets", matches!(packets, 0 | u32::MAX), || format!("{packets} packets"));
            return;
        }
        let data = if submit.direction == TransferDirection::Out { length as usize } else { 0 };
        let descriptors = bytes.get(HEADER_BYTES + data..).unwrap_or_default();
        let inside = message::decode_iso_packets(descriptors, length);
        self.note("packets", packets <= ISO_PACKETS_MAX && inside.is_ok(), || format!("{packets} packets: {inside:?}"));
    }

    /// The lines of the report.
    pub fn lines(&self) -> impl Iterator<Item = Line> {
        RULES.iter().map(|check| {
            let tally = self.tallies.get(check.id).cloned().unwrap_or_default();
            let (verdict, seen) = match tally {
                RuleTally { broken: Some(seen), .. } => (CheckVerdict::Fail, seen),
                RuleTally { kept: 0, .. } => {
                    (CheckVerdict::NotApplicable, "the importer sent nothing of this kind".to_owned())
                }
                RuleTally { kept, .. } => (CheckVerdict::Pass, format!("{kept} times")),
            };
            Line { check: *check, verdict, seen }
        })
    }

    /// A connection ended: its numbers may be used again.
    pub fn closed(&mut self, id: ConnId) {
        self.submitted.remove(&id);
    }
}

/// Bytes behind the header of a submit. More than the limit counts as none: the header is then refused.
fn behind(raw: &RawHeader, id: ConnId, player: &MockExporter) -> usize {
    let Ok(submit) = SubmitCommand::check(raw) else { return 0 };
    let data = if submit.direction == TransferDirection::Out { submit.length as usize } else { 0 };
    let is_iso = player.kind_of(id, submit.endpoint) == Some(TransferType::Isochronous);
    let packets = if is_iso { submit.iso_packets().unwrap_or(0) } else { 0 };
    data + packets * ISO_PACKET_BYTES
}

/// Notes what ends halts.
fn clears(submit: &SubmitCommand, id: ConnId, player: &mut MockExporter) {
    let setup = submit.setup;
    if setup.is_standard(request::CLEAR_FEATURE, RequestRecipient::Endpoint) {
        player.clear_halts(id, Some(EpAddr::from_byte(setup.index as u8)));
    } else if is_configuration(submit) || setup.is_standard(request::SET_INTERFACE, RequestRecipient::Interface) {
        player.clear_halts(id, None);
    }
}

/// Whether this is SET_CONFIGURATION.
pub(super) fn is_configuration(submit: &SubmitCommand) -> bool {
    submit.endpoint.is_control() && submit.setup.is_standard(request::SET_CONFIGURATION, RequestRecipient::Device)
}
