//! Garbage, sizes, and clients that do not do their part.

use farbus_model::{EpAddr, SetupPacket, TransferDirection, TransferType};
use farbus_wire::usbip::OpStatus;
use farbus_wire::usbip::message::{HEADER_BYTES, OpHeader, RawHeader, op};

use super::entry::{ExporterCheck, must, not_applicable, should};
use super::subject::{ExporterSubject, device_descriptor};
use crate::check::{CheckOutcome, CheckStop};
use crate::conversation::{ExchangeError, SubmitRequest};

const FRAMING: &str = "kernel usbip_protocol.rst, usbip_header_basic";
const SIZES: &str = "CVE-2017-16913: CMD_SUBMIT with unlimited lengths";

/// The largest number that Linux's signed field can have.
const HUGE: u32 = 0x7fff_ffff;
const GARBAGE_BYTES: usize = 4096;
/// Bytes of requests that a client sends without reading answers; sockets on both ways hold less.
const UNREAD_BYTES: usize = 16 << 20;
const CHUNK_REQUESTS: usize = 1024;
/// Clients that connect and say nothing.
const SILENT: usize = 4;

pub(super) const CHECKS: &[ExporterCheck] = &[
    must(
        "half-operation",
        "A client that leaves within an operation's header disturbs nobody.",
        FRAMING,
        half_operation,
    ),
    must(
        "half-request",
        "A client that leaves within a request's header gives the device back.",
        FRAMING,
        half_request,
    ),
    must("garbage-operation", "Garbage in place of an operation ends its connection.", FRAMING, garbage_operation),
    must("garbage-request", "Garbage in place of a request ends its connection.", FRAMING, garbage_request),
    must("command-unknown", "A request with an unknown command ends its connection.", FRAMING, command_unknown),
    should(
        "device-id",
        "A request for another device id is not carried out.",
        "Linux stub_rx valid_request",
        device_id,
    ),
    must(
        "request-unknown",
        "A vendor request that the device does not know fails, and the next request is served.",
        "USB 2.0 §9.2.7",
        request_unknown,
    ),
    must(
        "endpoint-missing",
        "A request to an endpoint that the device does not have fails, or ends its connection.",
        "USB 2.0 §9.6.6",
        endpoint_missing,
    ),
    must(
        "endpoint-number",
        "A request to endpoint 0x7f fails, or ends its connection.",
        "CVE-2017-16912",
        endpoint_number,
    ),
    must("length-huge", "A request for 2 GiB is refused, answered short, or ends its connection.", SIZES, length_huge),
    must(
        "length-negative",
        "A request for 0xffffffff bytes is refused, answered short, or ends its connection.",
        SIZES,
        length_negative,
    ),
    should("length-out", "OUT of 2 GiB is refused at its header.", SIZES, length_out),
    must(
        "silent-client",
        "Clients that connect and say nothing keep nobody from being served.",
        "requirement U4",
        silent_client,
    ),
    must(
        "never-reads",
        "A client that sends and does not read keeps nobody from being served.",
        "requirement U4",
        never_reads,
    ),
];

fn half_operation(subject: &mut ExporterSubject<'_>) -> CheckOutcome {
    let mut talk = subject.dial()?;
    talk.send(&OpHeader::new(op::REQ_DEVLIST, OpStatus::Ok).to_bytes()[..4])?;
    drop(talk);
    subject.serves_others()?;
    Ok("another client was served".to_owned())
}

fn half_request(subject: &mut ExporterSubject<'_>) -> CheckOutcome {
    let mut talk = subject.import()?;
    let number = talk.take_number();
    let bytes = talk.note(number, &device_descriptor());
    talk.send(&bytes[..HEADER_BYTES / 2])?;
    drop(talk);
    subject.serves_device()?;
    Ok("imported again".to_owned())
}

fn garbage_operation(subject: &mut ExporterSubject<'_>) -> CheckOutcome {
    let mut talk = subject.dial()?;
    // It may close the connection before it has all.
    let _ = talk.send(&[0xa5; GARBAGE_BYTES]);
    subject.refuses(talk, "4 KiB of 0xa5")
}

fn garbage_request(subject: &mut ExporterSubject<'_>) -> CheckOutcome {
    let mut talk = subject.import()?;
    let _ = talk.send(&[0xa5; GARBAGE_BYTES]);
    let seen = subject.refuses(talk, "4 KiB of 0xa5")?;
    subject.serves_device()?;
    Ok(seen)
}

/// The header of a good request, to be spoiled.
fn header(talk: &mut crate::conversation::UsbipConversation, ask: &SubmitRequest) -> (u32, RawHeader) {
    let number = talk.take_number();
    let bytes = talk.note(number, ask);
    let mut header = [0; HEADER_BYTES];
    header.copy_from_slice(&bytes[..HEADER_BYTES]);
    (number, RawHeader::from_bytes(&header))
}

fn command_unknown(subject: &mut ExporterSubject<'_>) -> CheckOutcome {
    let mut talk = subject.import()?;
    let (_, raw) = header(&mut talk, &device_descriptor());
    let _ = talk.send(&RawHeader { command: 0x7777, ..raw }.to_bytes());
    let seen = subject.refuses(talk, "command 0x7777")?;
    subject.serves_device()?;
    Ok(seen)
}

fn device_id(subject: &mut ExporterSubject<'_>) -> CheckOutcome {
    let mut talk = subject.import()?;
    let (number, raw) = header(&mut talk, &device_descriptor());
    let other = RawHeader { devid: raw.devid ^ 0x7fff_7fff, ..raw };
    subject.refuses_request(talk, number, &other.to_bytes())
}

/// A vendor request to the device itself.
const UNKNOWN: SetupPacket =
    SetupPacket { request_type: 0xc0, request: 0xfd, value: 0xfffe, index: 0xfffd, length: 16 };

fn request_unknown(subject: &mut ExporterSubject<'_>) -> CheckOutcome {
    let (mut talk, _) = subject.device()?;
    let answer = talk.ask(&SubmitRequest::control(UNKNOWN, &[]))?;
    let after = talk.ask(&device_descriptor())?;
    if answer.errno >= 0 || after.errno != 0 {
        return Err(CheckStop::Fail(format!("{}, and the one behind it {}", answer.shown(), after.shown())));
    }
    Ok(answer.shown())
}

fn endpoint_missing(subject: &mut ExporterSubject<'_>) -> CheckOutcome {
    let (mut talk, facts) = subject.device()?;
    let missing = facts.missing_endpoint().ok_or_else(|| not_applicable("the device has all endpoints"))?;
    let (number, raw) = header(&mut talk, &SubmitRequest::data_in(missing, 512));
    subject.refuses_request(talk, number, &raw.to_bytes())
}

fn endpoint_number(subject: &mut ExporterSubject<'_>) -> CheckOutcome {
    let (mut talk, _) = subject.device()?;
    let (number, raw) = header(&mut talk, &SubmitRequest::data_in(EpAddr::from_byte(0x81), 512));
    subject.refuses_request(talk, number, &RawHeader { ep: 0x7f, ..raw }.to_bytes())
}

fn length_huge(subject: &mut ExporterSubject<'_>) -> CheckOutcome {
    length(subject, HUGE)
}

fn length_negative(subject: &mut ExporterSubject<'_>) -> CheckOutcome {
    length(subject, u32::MAX)
}

fn length(subject: &mut ExporterSubject<'_>, length: u32) -> CheckOutcome {
    let mut talk = subject.import()?;
    let ask = SubmitRequest { length, ..device_descriptor() };
    let seen = match talk.ask(&ask) {
        Ok(answer) => answer.shown(),
        Err(ExchangeError::Closed) => "it closed the connection".to_owned(),
        Err(other) => return Err(other.into()),
    };
    drop(talk);
    subject.serves_device()?;
    Ok(seen)
}

fn length_out(subject: &mut ExporterSubject<'_>) -> CheckOutcome {
    let (mut talk, facts) = subject.device()?;
    let endpoint = facts.endpoint(TransferType::Bulk, TransferDirection::Out).map_or(EpAddr::CONTROL, |e| e.address);
    let ask =
        SubmitRequest { length: HUGE, direction: TransferDirection::Out, ..SubmitRequest::data_out(endpoint, &[]) };
    let (number, raw) = header(&mut talk, &ask);
    subject.refuses_request(talk, number, &raw.to_bytes())
}

fn silent_client(subject: &mut ExporterSubject<'_>) -> CheckOutcome {
    let mut silent = Vec::new();
    for _ in 0..SILENT {
        silent.push(subject.dial()?);
    }
    subject.serves_others().map_err(|stop| match stop {
        CheckStop::Fail(why) => CheckStop::Fail(format!("with {SILENT} silent clients: {why}")),
        other => other,
    })?;
    Ok(format!("served beside {} silent clients", silent.len()))
}

fn never_reads(subject: &mut ExporterSubject<'_>) -> CheckOutcome {
    let mut talk = subject.import()?;
    let mut sent = 0;
    let mut is_open = true;
    while sent < UNREAD_BYTES {
        let chunk: Vec<u8> = (0..CHUNK_REQUESTS)
            .flat_map(|_| {
                let number = talk.take_number();
                talk.note(number, &device_descriptor())
            })
            .collect();
        let Some(count) = talk.send_some(&chunk, subject.quiet) else {
            is_open = false;
            break;
        };
        sent += count;
        if count < chunk.len() {
            break;
        }
    }
    subject.serves_others()?;
    drop(talk);
    subject.serves_device()?;
    let end = match (is_open, sent >= UNREAD_BYTES) {
        (false, _) => "then it closed the connection",
        (true, true) => "all that were sent",
        (true, false) => "then it took no more",
    };
    Ok(format!("it took {} KiB of requests, {end}", sent >> 10))
}
