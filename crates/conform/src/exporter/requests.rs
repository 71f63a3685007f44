//! Control requests, data, answers and their fields.

use farbus_model::descriptor::kind;
use farbus_model::usb::request;
use farbus_model::{EpAddr, SetupPacket, TransferDirection, TransferType, UrbFlags, UrbStatus};

use super::entry::{ExporterCheck, must, not_applicable, should};
use super::subject::{DescriptorFacts, ExporterSubject, device_descriptor};
use crate::check::{CheckOutcome, CheckStop};
use crate::conversation::{SubmitAnswer, SubmitRequest, UsbipConversation, errno};

const SUBMIT: &str = "kernel usbip_protocol.rst, USBIP_RET_SUBMIT";
const CHAPTER_9: &str = "USB 2.0 §9.4";
const SETUP: &str = "requirement U2";

/// Requests that are sent in one piece.
const BURST: usize = 32;
/// What a client that says that there are no packets puts into their number.
const NO_PACKETS: [u32; 2] = [0, u32::MAX];
/// Numbers of a client whose devices share one counter.
const NUMBERS: [u32; 4] = [0xffff_fff0, 7, 0x8000_0001, 0x10];
/// The debug descriptor (type 10), which hosts ask for and hardly any device has: it is refused (USB 2.0 §9.4.3).
const REFUSED: SetupPacket = SetupPacket::get_descriptor(10, 0, 0, 4);
/// Bytes of one OUT transfer to a device that takes any.
const OUT_BYTES: usize = 3000;
const IN_BYTES: u32 = 4096;

pub(super) const CHECKS: &[ExporterCheck] = &[
    must(
        "answer-number",
        "An answer has the number of its request, whatever numbers a client uses.",
        SUBMIT,
        answer_number,
    ),
    should("answer-zeros", "Device id, direction and endpoint of an answer are 0.", SUBMIT, answer_zeros),
    must("no-packets", "A control request is served with 0 and with 0xffffffff packets.", SUBMIT, no_packets),
    should("no-packets-echo", "The number of packets comes back as it was sent.", SUBMIT, no_packets_echo),
    should(
        "packets-ignored",
        "Without an isochronous endpoint the number of packets means nothing.",
        "Linux stub_rx: only isochronous pipes have packets",
        packets_ignored,
    ),
    must(
        "control-short",
        "A descriptor shorter than its room comes with its own length and status 0.",
        SUBMIT,
        control_short,
    ),
    must("control-cut", "A descriptor longer than its room is cut to that.", CHAPTER_9, control_cut),
    must(
        "control-refused",
        "A descriptor that the device does not have ends with -32 and no data, and the next request is served.",
        "USB 2.0 §8.5.3.4",
        control_refused,
    ),
    must(
        "short-not-ok",
        "A short answer to a request that forbids it has its bytes all the same.",
        "Linux urb->transfer_flags, URB_SHORT_NOT_OK",
        short_not_ok,
    ),
    must("burst", "Requests that arrive in one piece are answered once each.", "requirement U3", burst),
    must("order", "Requests of the control endpoint are answered in their order.", "requirement U3", order),
    must("split", "A request whose bytes arrive one by one is served.", "TCP is a stream", split),
    must(
        "set-configuration",
        "SET_CONFIGURATION succeeds, and GET_CONFIGURATION shows its value.",
        CHAPTER_9,
        set_configuration,
    ),
    must(
        "set-interface",
        "SET_INTERFACE to a setting that there is succeeds, and GET_INTERFACE shows it.",
        CHAPTER_9,
        set_interface,
    ),
    must("clear-halt", "CLEAR_FEATURE(ENDPOINT_HALT) succeeds on an endpoint that is not halted.", SETUP, clear_halt),
    should("halt", "A halted endpoint answers with -32 until its halt is cleared.", CHAPTER_9, halt),
    must(
        "port-reset",
        "After what a client sends when it has reset its port, halts are gone and the device is configured.",
        "Linux hub_port_init and usb_reset_device; requirement U2",
        port_reset,
    ),
    should(
        "port-reset-feature",
        "SET_FEATURE(PORT_RESET) succeeds, and the device can be configured behind it.",
        "Linux stub_rx: is_reset_device_cmd",
        port_reset_feature,
    ),
    must("out-answer", "The answer to OUT has the bytes that were taken, and no data.", SUBMIT, out_answer),
    must("out-empty", "OUT of no bytes is answered.", SUBMIT, out_empty),
    must("in-answer", "The answer to IN has exactly the bytes that it announces.", SUBMIT, in_answer),
    must("in-short", "A short IN transfer ends with status 0 and its own length.", SUBMIT, in_short),
];

/// Fails unless an answer has this status.
fn expect(answer: &SubmitAnswer, status: UrbStatus, what: &str) -> Result<(), CheckStop> {
    if answer.errno == errno(status) {
        return Ok(());
    }
    Err(CheckStop::Fail(format!("{what}: status {}, not {}", answer.errno, errno(status))))
}

/// A control request without data.
fn plain(setup: SetupPacket) -> SubmitRequest {
    SubmitRequest::control(setup, &[])
}

fn answer_number(subject: &mut ExporterSubject<'_>) -> CheckOutcome {
    let mut talk = subject.import()?;
    for number in NUMBERS {
        let bytes = talk.note(number, &device_descriptor());
        talk.send(&bytes)?;
        // Any other number ends the reading.
        expect(&talk.wait(number)?, UrbStatus::Ok, "GET_DESCRIPTOR")?;
    }
    Ok(NUMBERS.map(|number| format!("{number:#x}")).join(", "))
}

fn answer_zeros(subject: &mut ExporterSubject<'_>) -> CheckOutcome {
    let mut talk = subject.import()?;
    let raw = talk.ask(&device_descriptor())?.raw;
    let seen = format!("device id {}, direction {}, endpoint {}", raw.devid, raw.direction, raw.ep);
    if (raw.devid, raw.direction, raw.ep) == (0, 0, 0) { Ok(seen) } else { Err(CheckStop::Fail(seen)) }
}

fn no_packets(subject: &mut ExporterSubject<'_>) -> CheckOutcome {
    let mut talk = subject.import()?;
    for number_of_packets in NO_PACKETS {
        let answer = talk.ask(&SubmitRequest { number_of_packets, ..device_descriptor() })?;
        expect(&answer, UrbStatus::Ok, &format!("with {number_of_packets:#x} packets"))?;
    }
    Ok("both served".to_owned())
}

fn no_packets_echo(subject: &mut ExporterSubject<'_>) -> CheckOutcome {
    let mut talk = subject.import()?;
    for number_of_packets in NO_PACKETS {
        let came = talk.ask(&SubmitRequest { number_of_packets, ..device_descriptor() })?.number_of_packets;
        if came != number_of_packets {
            return Err(CheckStop::Fail(format!("{number_of_packets:#x} was sent, {came:#x} came back")));
        }
    }
    Ok("both come back".to_owned())
}

fn packets_ignored(subject: &mut ExporterSubject<'_>) -> CheckOutcome {
    let mut talk = subject.import()?;
    let answer = talk.ask(&SubmitRequest { number_of_packets: 5, ..device_descriptor() })?;
    expect(&answer, UrbStatus::Ok, "with 5 packets")?;
    let after = talk.ask(&device_descriptor())?;
    expect(&after, UrbStatus::Ok, "the request behind it")?;
    Ok(answer.shown())
}

fn control_short(subject: &mut ExporterSubject<'_>) -> CheckOutcome {
    let mut talk = subject.import()?;
    let answer = talk.ask(&device_descriptor())?;
    expect(&answer, UrbStatus::Ok, "GET_DESCRIPTOR")?;
    if answer.data.len() != 18 || answer.data[..2] != [18, kind::DEVICE] {
        return Err(CheckStop::Fail(format!(
            "a device descriptor of {} bytes: {:02x?}",
            answer.data.len(),
            answer.data
        )));
    }
    Ok(answer.shown())
}

fn control_cut(subject: &mut ExporterSubject<'_>) -> CheckOutcome {
    let mut talk = subject.import()?;
    // Not 8 or 64: those are a sign of a port reset.
    let answer = talk.ask(&plain(SetupPacket::get_descriptor(kind::DEVICE, 0, 0, 7)))?;
    expect(&answer, UrbStatus::Ok, "GET_DESCRIPTOR of 7 bytes")?;
    if answer.actual != 7 {
        return Err(CheckStop::Fail(format!("{} bytes, not 7", answer.actual)));
    }
    Ok(answer.shown())
}

fn control_refused(subject: &mut ExporterSubject<'_>) -> CheckOutcome {
    let (mut talk, _) = subject.device()?;
    let answer = talk.ask(&plain(REFUSED))?;
    expect(&answer, UrbStatus::Stall, "the debug descriptor")?;
    if answer.actual != 0 {
        return Err(CheckStop::Fail(answer.shown()));
    }
    expect(&talk.ask(&device_descriptor())?, UrbStatus::Ok, "the request behind it")?;
    Ok(answer.shown())
}

fn short_not_ok(subject: &mut ExporterSubject<'_>) -> CheckOutcome {
    let mut talk = subject.import()?;
    let flags = UrbFlags { short_not_ok: true, ..UrbFlags::default() };
    let answer = talk.ask(&SubmitRequest { flags, ..device_descriptor() })?;
    // A host controller may say that it was short; the client's own core does so in any case.
    if ![errno(UrbStatus::Ok), errno(UrbStatus::Short)].contains(&answer.errno) || answer.actual != 18 {
        return Err(CheckStop::Fail(answer.shown()));
    }
    Ok(answer.shown())
}

/// Many requests in one piece; returns their numbers.
fn send_burst(talk: &mut UsbipConversation) -> Result<Vec<u32>, CheckStop> {
    let numbers: Vec<u32> = (0..BURST).map(|_| talk.take_number()).collect();
    let bytes: Vec<u8> = numbers.iter().flat_map(|&number| talk.note(number, &device_descriptor())).collect();
    talk.send(&bytes)?;
    Ok(numbers)
}

fn burst(subject: &mut ExporterSubject<'_>) -> CheckOutcome {
    let mut talk = subject.import()?;
    for number in send_burst(&mut talk)? {
        expect(&talk.wait(number)?, UrbStatus::Ok, &format!("request {number}"))?;
    }
    talk.settle(subject.quiet, BURST)?;
    talk.judge().map_err(CheckStop::Fail)?;
    Ok(format!("{BURST} requests, {BURST} answers"))
}

fn order(subject: &mut ExporterSubject<'_>) -> CheckOutcome {
    use crate::conversation::AnswerArrival;
    let mut talk = subject.import()?;
    let numbers = send_burst(&mut talk)?;
    let expected: Vec<AnswerArrival> = numbers.iter().map(|&number| AnswerArrival::Submit(number)).collect();
    for &number in &numbers {
        talk.wait(number)?;
    }
    if talk.came != expected {
        return Err(CheckStop::fail(format!("{:?}", talk.came)));
    }
    Ok(format!("{BURST} answers in order"))
}

fn split(subject: &mut ExporterSubject<'_>) -> CheckOutcome {
    let mut talk = subject.import()?;
    let number = talk.take_number();
    for byte in talk.note(number, &device_descriptor()) {
        talk.send(&[byte])?;
    }
    let answer = talk.wait(number)?;
    expect(&answer, UrbStatus::Ok, "GET_DESCRIPTOR")?;
    Ok(answer.shown())
}

fn set_configuration(subject: &mut ExporterSubject<'_>) -> CheckOutcome {
    let (mut talk, facts) = subject.device()?;
    let get = SetupPacket { request_type: 0x80, request: request::GET_CONFIGURATION, value: 0, index: 0, length: 1 };
    let answer = talk.ask(&plain(get))?;
    expect(&answer, UrbStatus::Ok, "GET_CONFIGURATION")?;
    if answer.data != [facts.configuration.value] {
        return Err(CheckStop::Fail(format!("GET_CONFIGURATION shows {:?}", answer.data)));
    }
    Ok(format!("configuration {}", facts.configuration.value))
}

fn set_interface(subject: &mut ExporterSubject<'_>) -> CheckOutcome {
    let (mut talk, facts) = subject.device()?;
    // The last setting of an interface that has several, or the only one.
    let settings = &facts.configuration.settings;
    let several = settings.iter().rfind(|setting| setting.alternate > 0);
    let Some(setting) = several.or(settings.last()) else {
        return Err(not_applicable("the device has no interface"));
    };
    let (interface, alternate) = (setting.interface, setting.alternate);
    let answer = talk.ask(&plain(SetupPacket::set_interface(interface, alternate)))?;
    if several.is_none() && answer.errno == errno(UrbStatus::Stall) {
        // USB 2.0 §9.4.10: a device whose interface has one setting may refuse.
        return Ok(format!("interface {interface} has one setting, and refuses"));
    }
    expect(&answer, UrbStatus::Ok, "SET_INTERFACE")?;
    let index = u16::from(interface);
    let get = SetupPacket { request_type: 0x81, request: request::GET_INTERFACE, value: 0, index, length: 1 };
    let answer = talk.ask(&plain(get))?;
    let shown = answer.errno == errno(UrbStatus::Ok) && answer.data == [alternate];
    talk.ask(&plain(SetupPacket::set_interface(interface, 0)))?;
    match shown {
        true => Ok(format!("interface {interface}, setting {alternate}")),
        false => Err(CheckStop::Fail(format!("GET_INTERFACE: {}, {:?}", answer.shown(), answer.data))),
    }
}

/// An endpoint that can be halted.
fn data_endpoint(facts: &DescriptorFacts) -> Result<EpAddr, CheckStop> {
    let of = |kind, direction| facts.endpoint(kind, direction).map(|endpoint| endpoint.address);
    of(TransferType::Bulk, TransferDirection::In)
        .or(of(TransferType::Interrupt, TransferDirection::In))
        .or(of(TransferType::Bulk, TransferDirection::Out))
        .ok_or_else(|| not_applicable("the device has no bulk or interrupt endpoint"))
}

fn clear_halt(subject: &mut ExporterSubject<'_>) -> CheckOutcome {
    let (mut talk, facts) = subject.device()?;
    let endpoint = data_endpoint(&facts)?;
    expect(&talk.ask(&plain(SetupPacket::clear_halt(endpoint)))?, UrbStatus::Ok, "CLEAR_FEATURE")?;
    Ok(format!("endpoint {endpoint}"))
}

fn halt(subject: &mut ExporterSubject<'_>) -> CheckOutcome {
    let (mut talk, facts) = subject.device()?;
    let endpoint = data_endpoint(&facts)?;
    if endpoint.direction() == TransferDirection::Out {
        return Err(not_applicable("the device has no bulk or interrupt IN endpoint"));
    }
    let set = SetupPacket { request: request::SET_FEATURE, ..SetupPacket::clear_halt(endpoint) };
    expect(&talk.ask(&plain(set))?, UrbStatus::Ok, "SET_FEATURE(ENDPOINT_HALT)")?;
    let number = talk.submit(&SubmitRequest::data_in(endpoint, 512))?;
    let halted = talk.wait(number);
    let cleared = talk.ask(&plain(SetupPacket::clear_halt(endpoint)));
    expect(&halted?, UrbStatus::Stall, "IN on the halted endpoint")?;
    expect(&cleared?, UrbStatus::Ok, "CLEAR_FEATURE")?;
    Ok(format!("endpoint {endpoint}: {}, then cleared", errno(UrbStatus::Stall)))
}

/// SET_FEATURE(PORT_RESET), which is a hub's (USB 2.0 §11.24.2.13).
const PORT_RESET: SetupPacket =
    SetupPacket { request_type: 0x23, request: request::SET_FEATURE, value: 4, index: 0, length: 0 };
/// How much of the device descriptor Linux asks for when it has reset a port.
const RESET_SIGN_BYTES: u16 = 64;

/// Configures the device as a host does after a reset, and checks that it can be used.
fn configured_anew(talk: &mut UsbipConversation, facts: &DescriptorFacts) -> Result<(), CheckStop> {
    let answer = talk.ask(&device_descriptor())?;
    expect(&answer, UrbStatus::Ok, "the descriptor after the reset")?;
    let set = talk.ask(&plain(SetupPacket::set_configuration(facts.configuration.value)))?;
    expect(&set, UrbStatus::Ok, "SET_CONFIGURATION after the reset")?;
    let get = SetupPacket { request_type: 0x80, request: request::GET_CONFIGURATION, value: 0, index: 0, length: 1 };
    let answer = talk.ask(&plain(get))?;
    if answer.data != [facts.configuration.value] {
        return Err(CheckStop::Fail(format!("after the reset GET_CONFIGURATION shows {:?}", answer.data)));
    }
    Ok(())
}

fn port_reset(subject: &mut ExporterSubject<'_>) -> CheckOutcome {
    let (mut talk, facts) = subject.device()?;
    let halted = data_endpoint(&facts).ok();
    if let Some(endpoint) = halted {
        let set = SetupPacket { request: request::SET_FEATURE, ..SetupPacket::clear_halt(endpoint) };
        expect(&talk.ask(&plain(set))?, UrbStatus::Ok, "SET_FEATURE(ENDPOINT_HALT)")?;
    }
    let sign = talk.ask(&plain(SetupPacket::get_descriptor(kind::DEVICE, 0, 0, RESET_SIGN_BYTES)))?;
    expect(&sign, UrbStatus::Ok, "GET_DESCRIPTOR of 64 bytes")?;
    if sign.actual != 18 {
        return Err(CheckStop::Fail(format!("GET_DESCRIPTOR of 64 bytes: {}", sign.shown())));
    }
    configured_anew(&mut talk, &facts)?;
    let Some(endpoint) = halted else { return Ok("configured again; no endpoint can be halted".to_owned()) };
    let index = u16::from(endpoint.as_byte());
    let get = SetupPacket { request_type: 0x82, request: request::GET_STATUS, value: 0, index, length: 2 };
    let status = talk.ask(&plain(get))?;
    expect(&status, UrbStatus::Ok, "GET_STATUS of the endpoint")?;
    if status.data != [0, 0] {
        // The next user of the device needs it.
        talk.ask(&plain(SetupPacket::clear_halt(endpoint)))?;
        return Err(CheckStop::Fail(format!("endpoint {endpoint} is halted still: {:?}", status.data)));
    }
    Ok(format!("configured again, endpoint {endpoint} not halted"))
}

fn port_reset_feature(subject: &mut ExporterSubject<'_>) -> CheckOutcome {
    let (mut talk, facts) = subject.device()?;
    expect(&talk.ask(&plain(PORT_RESET))?, UrbStatus::Ok, "SET_FEATURE(PORT_RESET)")?;
    configured_anew(&mut talk, &facts)?;
    Ok("configured again".to_owned())
}

/// Where data may be sent without harm.
fn harmless_out(facts: &DescriptorFacts) -> Result<EpAddr, CheckStop> {
    let none = || not_applicable("the kit knows no endpoint of this device to which it may send anything");
    let endpoint = facts.is_source_sink().then(|| facts.endpoint(TransferType::Bulk, TransferDirection::Out)).flatten();
    endpoint.map(|endpoint| endpoint.address).ok_or_else(none)
}

/// The endpoints of a disk, OUT and IN.
fn disk(facts: &DescriptorFacts) -> Option<(EpAddr, EpAddr)> {
    let setting = facts.disk()?;
    let of = |direction| setting.find(TransferType::Bulk, direction).map(|endpoint| endpoint.address);
    Some((of(TransferDirection::Out)?, of(TransferDirection::In)?))
}

/// A Bulk-Only command wrapper (§5.1) that asks for 36 bytes of INQUIRY data.
fn inquiry() -> [u8; 31] {
    let mut wrapper = [0; 31];
    wrapper[..4].copy_from_slice(b"USBC");
    wrapper[4..8].copy_from_slice(b"farb");
    wrapper[8] = 36;
    wrapper[12] = 0x80;
    wrapper[14] = 6;
    wrapper[15] = 0x12;
    wrapper[19] = 36;
    wrapper
}

fn out_answer(subject: &mut ExporterSubject<'_>) -> CheckOutcome {
    let (mut talk, facts) = subject.device()?;
    let (endpoint, data, end) = match disk(&facts) {
        Some((out, back)) => (out, inquiry().to_vec(), Some(back)),
        None => (harmless_out(&facts)?, vec![0; OUT_BYTES], None),
    };
    let answer = talk.ask(&SubmitRequest::data_out(endpoint, &data))?;
    if let Some(back) = end {
        // Data and status of the command: the disk is then where it was.
        talk.ask(&SubmitRequest::data_in(back, 512))?;
        talk.ask(&SubmitRequest::data_in(back, 512))?;
    }
    // Data behind the answer would be taken for the next one.
    expect(&talk.ask(&device_descriptor())?, UrbStatus::Ok, "the request behind it")?;
    expect(&answer, UrbStatus::Ok, "OUT")?;
    if answer.actual as usize != data.len() {
        return Err(CheckStop::Fail(format!("{} bytes were sent: {}", data.len(), answer.shown())));
    }
    Ok(answer.shown())
}

fn out_empty(subject: &mut ExporterSubject<'_>) -> CheckOutcome {
    let (mut talk, facts) = subject.device()?;
    let endpoint = harmless_out(&facts)?;
    let answer = talk.ask(&SubmitRequest::data_out(endpoint, &[]))?;
    expect(&answer, UrbStatus::Ok, "OUT of no bytes")?;
    Ok(answer.shown())
}

fn in_answer(subject: &mut ExporterSubject<'_>) -> CheckOutcome {
    let (mut talk, facts) = subject.device()?;
    let answer = match disk(&facts) {
        Some((out, back)) => {
            talk.ask(&SubmitRequest::data_out(out, &inquiry()))?;
            let answer = talk.ask(&SubmitRequest::data_in(back, 36))?;
            talk.ask(&SubmitRequest::data_in(back, 13))?;
            answer
        }
        None if facts.is_source_sink() => {
            let endpoint = facts.endpoint(TransferType::Bulk, TransferDirection::In);
            let endpoint = endpoint.ok_or_else(|| not_applicable("the device has no bulk IN endpoint"))?;
            talk.ask(&SubmitRequest::data_in(endpoint.address, IN_BYTES))?
        }
        None => return Err(not_applicable("the kit does not know what makes this device send data")),
    };
    expect(&talk.ask(&device_descriptor())?, UrbStatus::Ok, "the request behind it")?;
    expect(&answer, UrbStatus::Ok, "IN")?;
    if answer.actual == 0 {
        return Err(CheckStop::Fail(answer.shown()));
    }
    Ok(answer.shown())
}

fn in_short(subject: &mut ExporterSubject<'_>) -> CheckOutcome {
    let (mut talk, facts) = subject.device()?;
    let Some((out, back)) = disk(&facts) else {
        return Err(not_applicable("the kit knows only of disks how to make them send less than they are asked for"));
    };
    talk.ask(&SubmitRequest::data_out(out, &inquiry()))?;
    let data = talk.ask(&SubmitRequest::data_in(back, 512))?;
    let status = talk.ask(&SubmitRequest::data_in(back, 512))?;
    expect(&data, UrbStatus::Ok, "INQUIRY data")?;
    expect(&status, UrbStatus::Ok, "the command's status")?;
    if data.actual == 0 || data.actual > 36 || !status.data.starts_with(b"USBS") || status.actual != 13 {
        return Err(CheckStop::Fail(format!("data: {}; status: {}", data.shown(), status.shown())));
    }
    Ok(format!("{} and {} of 512 bytes", data.actual, status.actual))
}
