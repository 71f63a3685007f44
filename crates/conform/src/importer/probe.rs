//! Exporters that are wrong in one way each, and what an importer has to make of it.

use std::cell::Cell;
use std::rc::Rc;

use farbus_wire::usbip::message::{DEVICE_RECORD_BYTES, HEADER_BYTES, RawHeader, command};
use farbus_wire::usbip::{DeviceRecord, OpStatus};

use crate::check::{Check, Severity};
use crate::player::{Kind, Tamper};

/// A device to attach an importer to.
#[derive(Clone, Copy, Debug)]
pub struct Probe {
    /// Its bus id.
    pub bus_id: &'static str,
    /// What is checked with it.
    pub check: Check,
    /// What its exporter does.
    pub(super) does: Does,
}

/// What an exporter does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Does {
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
pub(super) enum Expected {
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

impl Does {
    pub const fn expected(self) -> Expected {
        match self {
            Does::Right | Does::Pieces | Does::StrayUnlink => Expected::Configures,
            Does::OtherVersion | Does::OtherDevice => Expected::SendsNothing,
            Does::Busy => Expected::Leaves,
            Does::TooLong | Does::HalfAnswer | Does::HalfHeader => Expected::Ends,
            Does::Stranger => Expected::EndsOrConfigures,
        }
    }
}

const fn probe(
    bus_id: &'static str,
    does: Does,
    severity: Severity,
    id: &'static str,
    claim: &'static str,
    source: &'static str,
) -> Probe {
    Probe { bus_id, does, check: Check { id, claim, source, severity } }
}

const MUST: Severity = Severity::Must;

/// The devices on offer, and the check of each.
#[rustfmt::skip]
pub const PROBES: &[Probe] = &[
    probe("1-1", Does::Right, MUST, "configures",
        "It reads a device's descriptors and configures it.", "requirement U2"),
    probe("1-2", Does::Pieces, MUST, "answers-in-pieces",
        "Answers whose bytes arrive one by one are understood.", "TCP is a stream"),
    probe("1-3", Does::Busy, MUST, "refusal",
        "After an import was refused it sends nothing more and ends the connection.", "kernel usbip_protocol.rst, OP_REP_IMPORT"),
    probe("1-4", Does::OtherVersion, Severity::Should, "version",
        "It sends no request to an exporter of another version.", "Linux usbip compares versions"),
    probe("1-5", Does::OtherDevice, MUST, "other-device",
        "It sends no request to a device that it did not ask for.", "Linux usbip compares the bus id"),
    probe("1-6", Does::TooLong, MUST, "answer-too-long",
        "An answer longer than its room ends the connection.", "CVE-2016-3955"),
    probe("1-7", Does::Stranger, MUST, "answer-unknown",
        "An answer to no request ends the connection or is ignored.", "Linux vhci_rx: cannot find a urb"),
    probe("1-8", Does::StrayUnlink, Severity::Should, "unlink-answer-unknown",
        "An answer to no unlink is ignored.", "Linux vhci_rx: the unlink list is empty"),
    probe("1-9", Does::HalfAnswer, MUST, "half-answer",
        "When the exporter leaves within an answer's data, it takes nothing of it and ends the connection.", "requirement U11"),
    probe("1-10", Does::HalfHeader, MUST, "half-header",
        "When the exporter leaves within an answer's header, it takes nothing of it and ends the connection.", "requirement U11"),
];

/// Does what the probe says.
pub(super) struct Prober {
    does: Does,
    /// Whether the wrong message was sent.
    provoked: Rc<Cell<bool>>,
}

/// A number that no importer uses so early.
const STRANGER: u32 = 0x7eed_beef;
const TOO_LONG: u32 = 64 << 10;
const OTHER_BUS_ID: &str = "9-9";

impl Prober {
    pub fn new(does: Does, provoked: Rc<Cell<bool>>) -> Self {
        Self { does, provoked }
    }

    fn stray(command: u32) -> [u8; HEADER_BYTES] {
        RawHeader { command, seqnum: STRANGER, devid: 0, direction: 0, ep: 0, body: [0; 5], setup: [0; 8] }.to_bytes()
    }
}

impl Tamper for Prober {
    fn message(&mut self, kind: Kind, bytes: &mut Vec<u8>) {
        if self.provoked.get() {
            return;
        }
        let provoked = match (self.does, kind) {
            (Does::OtherVersion, Kind::Import) if bytes.len() > DEVICE_RECORD_BYTES => {
                bytes[1] = 0x06;
                true
            }
            (Does::Busy | Does::OtherDevice, Kind::Import) => true,
            (Does::TooLong, Kind::Submit) if bytes.len() > HEADER_BYTES => {
                bytes.resize(HEADER_BYTES + TOO_LONG as usize, 0);
                bytes[24..28].copy_from_slice(&TOO_LONG.to_be_bytes());
                true
            }
            (Does::Stranger, Kind::Submit) => {
                bytes.splice(..0, Self::stray(command::RET_SUBMIT));
                true
            }
            (Does::StrayUnlink, Kind::Submit) => {
                bytes.splice(..0, Self::stray(command::RET_UNLINK));
                true
            }
            (Does::HalfAnswer, Kind::Submit) if bytes.len() > HEADER_BYTES + 1 => {
                bytes.truncate(HEADER_BYTES + (bytes.len() - HEADER_BYTES) / 2);
                true
            }
            (Does::HalfHeader, Kind::Submit) => {
                bytes.truncate(HEADER_BYTES / 2);
                true
            }
            _ => false,
        };
        self.provoked.set(provoked);
    }

    fn import(&mut self, _: &str, answer: Result<DeviceRecord, OpStatus>) -> Result<DeviceRecord, OpStatus> {
        match (self.does, answer) {
            (Does::Busy, Ok(_)) => Err(OpStatus::Busy),
            (Does::OtherDevice, Ok(record)) => Ok(DeviceRecord { bus_id: OTHER_BUS_ID.to_owned(), ..record }),
            (_, answer) => answer,
        }
    }

    fn piece_bytes_max(&self) -> usize {
        if self.does == Does::Pieces { 1 } else { usize::MAX }
    }
}
