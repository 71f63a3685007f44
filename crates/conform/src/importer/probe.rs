//! Exporters that are wrong in one way each, and what an importer has to make of it.

use std::cell::Cell;
use std::rc::Rc;

use farbus_wire::usbip::message::{DEVICE_RECORD_BYTES, HEADER_BYTES, RawHeader, command};
use farbus_wire::usbip::{DeviceRecord, OpStatus};

use crate::check::{CheckSeverity, ConformanceCheck};
use crate::player::{ExporterMessageKind, ExporterTamper};

/// A device to attach an importer to.
#[derive(Clone, Copy, Debug)]
pub struct ImporterProbe {
    /// Its bus id.
    pub bus_id: &'static str,
    /// What is checked with it.
    pub check: ConformanceCheck,
    /// What its exporter does.
    pub(super) does: ExporterBehaviour,
}

/// What an exporter does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ExporterBehaviour {
    /// Breaks no rule.
    Right,
    /// Sends its bytes one by one.
    Pieces,
    /// Refuses the import.
    Busy,
    /// Answers the import in another version.
    OtherVersion,
    /// Answers the import with another device.
    OtherDevice,
    /// Answers a request with more than there is room for.
    TooLong,
    /// Answers a request that was not made.
    Stranger,
    /// Answers an unlink that was not made.
    StrayUnlink,
    /// Ends the connection within an answer's data.
    HalfAnswer,
    /// Ends the connection within an answer's header.
    HalfHeader,
}

/// What an importer has to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ExpectedReaction {
    /// Configure the device.
    Configures,
    /// Send no request.
    SendsNothing,
    /// End the connection, and send nothing more on it.
    Leaves,
    /// End the connection.
    Ends,
    /// End the connection, or configure the device.
    EndsOrConfigures,
}

impl ExporterBehaviour {
    pub const fn expected(self) -> ExpectedReaction {
        match self {
            ExporterBehaviour::Right | ExporterBehaviour::Pieces | ExporterBehaviour::StrayUnlink => {
                ExpectedReaction::Configures
            }
            ExporterBehaviour::OtherVersion | ExporterBehaviour::OtherDevice => ExpectedReaction::SendsNothing,
            ExporterBehaviour::Busy => ExpectedReaction::Leaves,
            ExporterBehaviour::TooLong | ExporterBehaviour::HalfAnswer | ExporterBehaviour::HalfHeader => {
                ExpectedReaction::Ends
            }
            ExporterBehaviour::Stranger => ExpectedReaction::EndsOrConfigures,
        }
    }
}

const fn probe(
    bus_id: &'static str,
    does: ExporterBehaviour,
    severity: CheckSeverity,
    id: &'static str,
    claim: &'static str,
    source: &'static str,
) -> ImporterProbe {
    ImporterProbe { bus_id, does, check: ConformanceCheck { id, claim, source, severity } }
}

const MUST: CheckSeverity = CheckSeverity::Must;

/// The devices on offer, and the check of each.
#[rustfmt::skip]
pub const PROBES: &[ImporterProbe] = &[
    probe("1-1", ExporterBehaviour::Right, MUST, "configures",
        "It reads a device's descriptors and configures it.", "requirement U2"),
    probe("1-2", ExporterBehaviour::Pieces, MUST, "answers-in-pieces",
        "Answers whose bytes arrive one by one are understood.", "TCP is a stream"),
    probe("1-3", ExporterBehaviour::Busy, MUST, "refusal",
        "After an import was refused it sends nothing more and ends the connection.", "kernel usbip_protocol.rst, OP_REP_IMPORT"),
    probe("1-4", ExporterBehaviour::OtherVersion, CheckSeverity::Should, "version",
        "It sends no request to an exporter of another version.", "Linux usbip compares versions"),
    probe("1-5", ExporterBehaviour::OtherDevice, MUST, "other-device",
        "It sends no request to a device that it did not ask for.", "Linux usbip compares the bus id"),
    probe("1-6", ExporterBehaviour::TooLong, MUST, "answer-too-long",
        "An answer longer than its room ends the connection.", "CVE-2016-3955"),
    probe("1-7", ExporterBehaviour::Stranger, MUST, "answer-unknown",
        "An answer to no request ends the connection or is ignored.", "Linux vhci_rx: cannot find a urb"),
    probe("1-8", ExporterBehaviour::StrayUnlink, CheckSeverity::Should, "unlink-answer-unknown",
        "An answer to no unlink is ignored.", "Linux vhci_rx: the unlink list is empty"),
    probe("1-9", ExporterBehaviour::HalfAnswer, MUST, "half-answer",
        "When the exporter leaves within an answer's data, it takes nothing of it and ends the connection.", "requirement U11"),
    probe("1-10", ExporterBehaviour::HalfHeader, MUST, "half-header",
        "When the exporter leaves within an answer's header, it takes nothing of it and ends the connection.", "requirement U11"),
];

/// Does what the probe says.
pub(super) struct ProbeTamper {
    does: ExporterBehaviour,
    /// Whether the wrong message was sent.
    provoked: Rc<Cell<bool>>,
}

/// A number that no importer uses so early.
const STRANGER: u32 = 0x7eed_beef;
const TOO_LONG: u32 = 64 << 10;
const OTHER_BUS_ID: &str = "9-9";

impl ProbeTamper {
    pub fn new(does: ExporterBehaviour, provoked: Rc<Cell<bool>>) -> Self {
        Self { does, provoked }
    }

    fn stray(command: u32) -> [u8; HEADER_BYTES] {
        RawHeader { command, seqnum: STRANGER, devid: 0, direction: 0, ep: 0, body: [0; 5], setup: [0; 8] }.to_bytes()
    }
}

impl ExporterTamper for ProbeTamper {
    fn message(&mut self, kind: ExporterMessageKind, bytes: &mut Vec<u8>) {
        if self.provoked.get() {
            return;
        }
        let provoked = match (self.does, kind) {
            (ExporterBehaviour::OtherVersion, ExporterMessageKind::Import) if bytes.len() > DEVICE_RECORD_BYTES => {
                bytes[1] = 0x06;
                true
            }
            (ExporterBehaviour::Busy | ExporterBehaviour::OtherDevice, ExporterMessageKind::Import) => true,
            (ExporterBehaviour::TooLong, ExporterMessageKind::Submit) if bytes.len() > HEADER_BYTES => {
                bytes.resize(HEADER_BYTES + TOO_LONG as usize, 0);
                bytes[24..28].copy_from_slice(&TOO_LONG.to_be_bytes());
                true
            }
            (ExporterBehaviour::Stranger, ExporterMessageKind::Submit) => {
                bytes.splice(..0, Self::stray(command::RET_SUBMIT));
                true
            }
            (ExporterBehaviour::StrayUnlink, ExporterMessageKind::Submit) => {
                bytes.splice(..0, Self::stray(command::RET_UNLINK));
                true
            }
            (ExporterBehaviour::HalfAnswer, ExporterMessageKind::Submit) if bytes.len() > HEADER_BYTES + 1 => {
                bytes.truncate(HEADER_BYTES + (bytes.len() - HEADER_BYTES) / 2);
                true
            }
            (ExporterBehaviour::HalfHeader, ExporterMessageKind::Submit) => {
                bytes.truncate(HEADER_BYTES / 2);
                true
            }
            _ => false,
        };
        self.provoked.set(provoked);
    }

    fn import(&mut self, _: &str, answer: Result<DeviceRecord, OpStatus>) -> Result<DeviceRecord, OpStatus> {
        match (self.does, answer) {
            (ExporterBehaviour::Busy, Ok(_)) => Err(OpStatus::Busy),
            (ExporterBehaviour::OtherDevice, Ok(record)) => {
                Ok(DeviceRecord { bus_id: OTHER_BUS_ID.to_owned(), ..record })
            }
            (_, answer) => answer,
        }
    }

    fn piece_bytes_max(&self) -> usize {
        if self.does == ExporterBehaviour::Pieces { 1 } else { usize::MAX }
    }
}
