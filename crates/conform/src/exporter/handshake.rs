//! Lists, imports, refusals, versions.

use std::collections::BTreeSet;

use farbus_wire::usbip::OpStatus;
use farbus_wire::usbip::message::{self, BUS_ID_BYTES, OpHeader, op};

use super::entry::{ExporterCheck, must, should};
use super::subject::{ExporterSubject, device_descriptor};
use crate::check::{CheckOutcome, CheckStop};
use crate::conversation::{ExchangeError, import_request};

const SPEC: &str = "kernel usbip_protocol.rst, OP_REQ_DEVLIST";
const IMPORT: &str = "kernel usbip_protocol.rst, OP_REQ_IMPORT";

/// A bus id that no exporter has.
const UNKNOWN: &str = "no-such-device";
/// A version of years ago.
const OLD_VERSION: u16 = 0x0100;
/// An operation that the protocol does not have.
const UNKNOWN_CODE: u16 = 0x80ff;

pub(super) const CHECKS: &[ExporterCheck] = &[
    must(
        "list-framing",
        "A list has version, code, status 0, and as many whole records as it announces.",
        SPEC,
        list_framing,
    ),
    must("list-ends", "Nothing follows the last record of a list.", SPEC, list_ends),
    must(
        "list-bus-ids",
        "Bus ids in a list are text of 1 to 31 bytes, and differ from each other.",
        SPEC,
        list_bus_ids,
    ),
    should(
        "list-interfaces",
        "A list shows the classes of the interfaces that the configuration descriptor has.",
        SPEC,
        list_interfaces,
    ),
    must(
        "import-record",
        "An import is answered with the record of that bus id, without interfaces.",
        IMPORT,
        import_record,
    ),
    must(
        "import-unknown",
        "An unknown bus id is refused with 8 bytes and a status that is not 0.",
        IMPORT,
        import_unknown,
    ),
    must(
        "import-busy",
        "A device in use is refused with 8 bytes and a status that is not 0, and its user keeps it.",
        "requirement U13",
        import_busy,
    ),
    should(
        "import-busy-status",
        "The status of a device in use is 2.",
        "Linux usbip, op_common ST_DEV_BUSY",
        import_busy_status,
    ),
    must(
        "import-again",
        "When its user closes the connection, the device can be imported again.",
        "requirement U11",
        import_again,
    ),
    must(
        "request-in-pieces",
        "An operation whose bytes arrive one by one is served.",
        "TCP is a stream",
        request_in_pieces,
    ),
    should(
        "version-other",
        "A request of version 0x0100 is refused, answered in that version, or its connection ends.",
        "Linux usbip compares versions",
        version_other,
    ),
    must("operation-unknown", "An unknown operation is refused, or its connection ends.", SPEC, operation_unknown),
    must(
        "bus-id-unterminated",
        "A bus id of 32 bytes without NUL is refused, or its connection ends.",
        IMPORT,
        bus_id_unterminated,
    ),
];

fn list_framing(subject: &mut ExporterSubject<'_>) -> CheckOutcome {
    let records = subject.dial()?.list()?;
    Ok(format!("{} devices", records.len()))
}

fn list_ends(subject: &mut ExporterSubject<'_>) -> CheckOutcome {
    let quiet = subject.quiet;
    let mut talk = subject.dial()?;
    talk.list()?;
    talk.expect_nothing(quiet)?;
    Ok("nothing more".to_owned())
}

fn list_bus_ids(subject: &mut ExporterSubject<'_>) -> CheckOutcome {
    let records = subject.dial()?.list()?;
    let ids: BTreeSet<&str> = records.iter().map(|record| record.bus_id.as_str()).collect();
    if ids.contains("") {
        return Err(CheckStop::fail("a bus id is empty"));
    }
    if ids.len() != records.len() {
        return Err(CheckStop::fail("two devices have the same bus id"));
    }
    Ok(ids.into_iter().collect::<Vec<_>>().join(", "))
}

fn list_interfaces(subject: &mut ExporterSubject<'_>) -> CheckOutcome {
    let (talk, facts) = subject.device()?;
    let described: Vec<[u8; 3]> = facts.settings().map(|setting| setting.class).collect();
    drop(talk);
    // An exporter may hide a device that is in use.
    let listed = subject.listed()?.interfaces;
    if listed != described {
        return Err(CheckStop::fail(format!("the list shows {listed:02x?}, the descriptor {described:02x?}")));
    }
    Ok(format!("{listed:02x?}"))
}

fn import_record(subject: &mut ExporterSubject<'_>) -> CheckOutcome {
    let mut talk = subject.import()?;
    let bus_id = subject.bus_id()?;
    let came = talk.bus_id().to_owned();
    if came != bus_id {
        return Err(CheckStop::fail(format!("the record has bus id '{came}'")));
    }
    talk.expect_nothing(subject.quiet)?;
    let answer = talk.ask(&device_descriptor())?;
    Ok(format!("'{bus_id}', then {}", answer.shown()))
}

fn import_unknown(subject: &mut ExporterSubject<'_>) -> CheckOutcome {
    let mut talk = subject.dial()?;
    let status = refusal(talk.import(UNKNOWN))?;
    talk.expect_nothing(subject.quiet)?;
    drop(talk);
    subject.serves_others()?;
    Ok(format!("status {status}"))
}

/// The status of a refused import.
fn refusal<T>(answer: Result<Result<T, u32>, ExchangeError>) -> Result<u32, CheckStop> {
    match answer? {
        Ok(_) => Err(CheckStop::fail("the import succeeded")),
        Err(status) => Ok(status),
    }
}

fn import_busy(subject: &mut ExporterSubject<'_>) -> CheckOutcome {
    let bus_id = subject.bus_id()?;
    let mut user = subject.import()?;
    let mut second = subject.dial()?;
    let status = refusal(second.import(&bus_id))?;
    second.expect_nothing(subject.quiet)?;
    let answer = user.ask(&device_descriptor())?;
    if answer.errno != 0 {
        return Err(CheckStop::fail(format!("afterwards its user was answered with {}", answer.errno)));
    }
    Ok(format!("status {status}; its user got {} bytes", answer.actual))
}

fn import_busy_status(subject: &mut ExporterSubject<'_>) -> CheckOutcome {
    let bus_id = subject.bus_id()?;
    let _user = subject.import()?;
    let status = match subject.dial()?.import(&bus_id) {
        Ok(Err(status)) => status,
        Ok(Ok(_)) => return Err(CheckStop::Skip("a second import succeeded".to_owned())),
        Err(trouble) => return Err(CheckStop::Skip(format!("no refusal: {trouble}"))),
    };
    if status != OpStatus::Busy.code() {
        return Err(CheckStop::fail(format!("status {status}")));
    }
    Ok("status 2".to_owned())
}

fn import_again(subject: &mut ExporterSubject<'_>) -> CheckOutcome {
    let first = subject.import().map_err(|stop| match stop {
        // The user before this one has left, too.
        CheckStop::Skip(why) if subject.has_imported() => CheckStop::Fail(why),
        other => other,
    });
    drop(first?);
    subject.serves_device()?;
    Ok("imported again".to_owned())
}

fn request_in_pieces(subject: &mut ExporterSubject<'_>) -> CheckOutcome {
    let mut talk = subject.dial()?;
    for byte in import_request(UNKNOWN) {
        talk.send(&[byte])?;
    }
    let status = refusal(talk.read_import())?;
    let mut talk = subject.dial()?;
    for byte in OpHeader::new(op::REQ_DEVLIST, OpStatus::Ok).to_bytes() {
        talk.send(&[byte])?;
    }
    Ok(format!("a refusal with status {status}, a list of {}", talk.read_list()?.len()))
}

fn version_other(subject: &mut ExporterSubject<'_>) -> CheckOutcome {
    let mut talk = subject.dial()?;
    let header = OpHeader { version: OLD_VERSION, ..OpHeader::new(op::REQ_DEVLIST, OpStatus::Ok) };
    talk.send(&header.to_bytes())?;
    let seen = match talk.op_header() {
        Err(ExchangeError::Closed) => "it closed the connection".to_owned(),
        Ok(reply) if reply.status != 0 => format!("status {}, version {:#06x}", reply.status, reply.version),
        Ok(reply) if reply.version == OLD_VERSION => "a list, in that version".to_owned(),
        Ok(reply) => return Err(CheckStop::fail(format!("a list of version {:#06x}", reply.version))),
        Err(trouble) => return Err(trouble.into()),
    };
    drop(talk);
    subject.serves_others()?;
    Ok(seen)
}

fn operation_unknown(subject: &mut ExporterSubject<'_>) -> CheckOutcome {
    let mut talk = subject.dial()?;
    talk.send(&OpHeader::new(UNKNOWN_CODE, OpStatus::Ok).to_bytes())?;
    let seen = match talk.op_header() {
        Err(ExchangeError::Closed) => "it closed the connection".to_owned(),
        Ok(reply) if reply.status != 0 => format!("status {}", reply.status),
        Ok(reply) => return Err(CheckStop::fail(format!("code {:#06x} with status 0", reply.code))),
        Err(trouble) => return Err(trouble.into()),
    };
    drop(talk);
    subject.serves_others()?;
    Ok(seen)
}

fn bus_id_unterminated(subject: &mut ExporterSubject<'_>) -> CheckOutcome {
    let mut talk = subject.dial()?;
    let mut bytes = OpHeader::new(op::REQ_IMPORT, OpStatus::Ok).to_bytes().to_vec();
    bytes.extend([b'1'; BUS_ID_BYTES]);
    talk.send(&bytes)?;
    let seen = match talk.read_import() {
        Err(ExchangeError::Closed) => "it closed the connection".to_owned(),
        Ok(Err(status)) => format!("status {status}"),
        Ok(Ok(_)) => return Err(CheckStop::fail("the import succeeded")),
        Err(trouble) => return Err(trouble.into()),
    };
    drop(talk);
    subject.serves_others()?;
    Ok(seen)
}

const _: () = assert!(message::VERSION != OLD_VERSION);
