//! Isochronous packets.

use farbus_model::{EndpointDescriptor, SetupPacket, TransferDirection, TransferType, UrbStatus};

use super::entry::{ExporterCheck, must, not_applicable, should};
use super::subject::{DescriptorFacts, ExporterSubject, device_descriptor, packets};
use crate::check::{CheckOutcome, CheckStop};
use crate::conversation::{ExchangeError, SubmitAnswer, SubmitRequest, UsbipConversation};

const SPEC: &str = "kernel usbip_protocol.rst, iso_packet_descriptor";
const LIMITS: &str = "CVE-2017-16913, Linux USBIP_MAX_ISO_PACKETS";

/// Packets of a request: one millisecond at high speed.
const PACKETS: u32 = 8;
const GAP: u32 = 64;

pub(super) const CHECKS: &[ExporterCheck] = &[
    must("iso-in", "Isochronous IN comes without padding, and its packets add up to its length.", SPEC, iso_in),
    must("iso-places", "Offsets and lengths of packets come back unchanged.", SPEC, iso_places),
    should("iso-gaps", "Packets with gaps between them come without the gaps.", SPEC, iso_gaps),
    must("iso-errors", "The error count is the number of packets that failed.", SPEC, iso_errors),
    must("iso-out", "The answer to isochronous OUT has its packets and no data.", SPEC, iso_out),
    must("iso-out-gaps", "Isochronous OUT with gaps is taken whole, and its packets come back.", SPEC, iso_out_gaps),
    must("iso-short", "A buffer longer than its packets comes back without what lies behind them.", SPEC, iso_short),
    must("iso-none", "An isochronous request of no packets is answered, or ends its connection.", SPEC, iso_none),
    must(
        "iso-outside",
        "A packet outside its buffer is refused, or its connection ends.",
        "CVE-2016-3955",
        iso_outside,
    ),
    must("iso-many", "0x7fffffff packets are refused, or end their connection.", LIMITS, iso_many),
];

/// A connection on which an isochronous endpoint of this direction is active.
fn ready(
    subject: &mut ExporterSubject<'_>,
    direction: TransferDirection,
) -> Result<(UsbipConversation, DescriptorFacts, EndpointDescriptor), CheckStop> {
    let (mut talk, facts) = subject.device()?;
    let found = facts.endpoint_anywhere(TransferType::Isochronous, direction);
    let (setting, endpoint) = found.ok_or_else(|| not_applicable("the device has no such isochronous endpoint"))?;
    let (interface, alternate, endpoint) = (setting.interface, setting.alternate, *endpoint);
    if alternate != 0 {
        let answer = talk.ask(&SubmitRequest::control(SetupPacket::set_interface(interface, alternate), &[]))?;
        if answer.errno != 0 {
            return Err(CheckStop::Skip(format!("SET_INTERFACE was refused with {}", answer.errno)));
        }
    }
    Ok((talk, facts, endpoint))
}

fn ask(
    subject: &mut ExporterSubject<'_>,
    direction: TransferDirection,
    gap: u32,
) -> Result<(SubmitRequest, SubmitAnswer), CheckStop> {
    let (mut talk, _, endpoint) = ready(subject, direction)?;
    let ask = packets(&endpoint, PACKETS, gap);
    let answer = talk.ask(&ask)?;
    // Anything left over would be taken for the next answer.
    talk.ask(&device_descriptor())?;
    Ok((ask, answer))
}

fn check_sum(answer: &SubmitAnswer) -> Result<String, CheckStop> {
    let sum: u64 = answer.packets.iter().map(|packet| u64::from(packet.actual)).sum();
    let fits = answer.packets.iter().all(|packet| packet.actual <= packet.length);
    if sum != u64::from(answer.actual) || !fits {
        return Err(CheckStop::Fail(format!("the packets add up to {sum} bytes, the answer says {}", answer.actual)));
    }
    Ok(format!("{} packets, {} bytes", answer.packets.len(), answer.actual))
}

fn check_places(ask: &SubmitRequest, answer: &SubmitAnswer) -> Result<String, CheckStop> {
    for (at, (sent, came)) in ask.packets.iter().zip(&answer.packets).enumerate() {
        if (sent.offset, sent.length) != (came.offset, came.length) {
            let (from, to) = ((sent.offset, sent.length), (came.offset, came.length));
            return Err(CheckStop::Fail(format!(
                "packet {at} was at {from:?} (offset, length) and comes back at {to:?}"
            )));
        }
    }
    Ok(format!("{} packets unchanged", answer.packets.len()))
}

fn iso_in(subject: &mut ExporterSubject<'_>) -> CheckOutcome {
    let (_, answer) = ask(subject, TransferDirection::In, 0)?;
    check_sum(&answer)
}

fn iso_places(subject: &mut ExporterSubject<'_>) -> CheckOutcome {
    let (ask, answer) = ask(subject, TransferDirection::In, 0)?;
    check_places(&ask, &answer)
}

fn iso_gaps(subject: &mut ExporterSubject<'_>) -> CheckOutcome {
    let (ask, answer) = ask(subject, TransferDirection::In, GAP)?;
    check_places(&ask, &answer)?;
    check_sum(&answer)
}

fn iso_errors(subject: &mut ExporterSubject<'_>) -> CheckOutcome {
    let (_, answer) = ask(subject, TransferDirection::In, 0)?;
    let failed = answer.packets.iter().filter(|packet| packet.status != UrbStatus::Ok).count();
    if failed != answer.error_count as usize {
        return Err(CheckStop::Fail(format!("{failed} packets failed, the error count is {}", answer.error_count)));
    }
    Ok(format!("{failed} of {}", answer.packets.len()))
}

fn iso_out(subject: &mut ExporterSubject<'_>) -> CheckOutcome {
    let (ask, answer) = ask(subject, TransferDirection::Out, 0)?;
    check_places(&ask, &answer)?;
    check_sum(&answer)
}

fn iso_out_gaps(subject: &mut ExporterSubject<'_>) -> CheckOutcome {
    // What is taken short leaves gaps in the stream: the request behind it is then no request.
    let (ask, answer) = ask(subject, TransferDirection::Out, GAP)?;
    check_places(&ask, &answer)?;
    let moved: u32 = ask.packets.iter().map(|packet| packet.length).sum();
    if answer.error_count == 0 && answer.actual != moved {
        return Err(CheckStop::Fail(format!("{moved} bytes were sent in packets, the answer says {}", answer.actual)));
    }
    check_sum(&answer)
}

fn iso_short(subject: &mut ExporterSubject<'_>) -> CheckOutcome {
    let (mut talk, _, endpoint) = ready(subject, TransferDirection::In)?;
    let packed = packets(&endpoint, PACKETS, 0);
    let ask = SubmitRequest { length: packed.length + 4 * GAP, ..packed };
    let answer = talk.ask(&ask)?;
    talk.ask(&device_descriptor())?;
    check_places(&ask, &answer)?;
    check_sum(&answer)
}

fn iso_none(subject: &mut ExporterSubject<'_>) -> CheckOutcome {
    let (mut talk, _, endpoint) = ready(subject, TransferDirection::In)?;
    let none = packets(&endpoint, 0, 0);
    let seen = match talk.ask(&none) {
        Ok(answer) => answer.shown(),
        Err(ExchangeError::Closed) => "it closed the connection".to_owned(),
        Err(other) => return Err(other.into()),
    };
    drop(talk);
    subject.serves_device()?;
    Ok(seen)
}

fn iso_outside(subject: &mut ExporterSubject<'_>) -> CheckOutcome {
    let (mut talk, _, endpoint) = ready(subject, TransferDirection::In)?;
    let mut ask = packets(&endpoint, 1, 0);
    ask.packets[0].offset = 0x7fff_0000;
    let number = talk.take_number();
    let bytes = talk.note(number, &ask);
    subject.refuses_request(talk, number, &bytes)
}

fn iso_many(subject: &mut ExporterSubject<'_>) -> CheckOutcome {
    let (mut talk, _, endpoint) = ready(subject, TransferDirection::In)?;
    let number = talk.take_number();
    let bytes = talk.note(
        number,
        &SubmitRequest {
            is_iso: false,
            number_of_packets: 0x7fff_ffff,
            packets: Vec::new(),
            ..packets(&endpoint, 1, 0)
        },
    );
    subject.refuses_request(talk, number, &bytes)
}
