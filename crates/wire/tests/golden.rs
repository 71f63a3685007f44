//! Golden vectors: what every message looks like on the wire, field by field, in `golden/*.hex`.
//!
//! The files are written from the kernel's document (some are its own captures) and not by the encoder, so that they
//! check it. In them `#` begins a comment, `"text"/32` is a text in a field of 32 bytes, padded with zeros, and the
//! rest is hexadecimal.

mod peer;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use farbus_model::{EpAddr, IsoPacket, SetupPacket, TransferDirection, UrbFlags, UrbStatus, UsbSpeed};
use farbus_wire::usbip::message::{
    self, DEVICE_RECORD_BYTES, HEADER_BYTES, ISO_PACKET_BYTES, OP_HEADER_BYTES, OpHeader, RawHeader, SubmitCommand,
    SubmitReply, command, op,
};
use farbus_wire::usbip::{DeviceRecord, OpStatus, status};
use peer::word;

/// Any message, typed.
#[derive(Clone, Debug, PartialEq)]
enum Message {
    List,
    Devices(Vec<DeviceRecord>),
    Import(String),
    Imported(Result<DeviceRecord, OpStatus>),
    Submit { devid: u32, submit: SubmitCommand, data: Vec<u8>, packets: Vec<IsoPacket> },
    SubmitReply { reply: SubmitReply, data: Vec<u8>, packets: Vec<IsoPacket> },
    Unlink { seqnum: u32, devid: u32, victim: u32 },
    UnlinkReply { seqnum: u32, status: UrbStatus },
}

impl Message {
    fn encode(&self) -> Vec<u8> {
        match self {
            Message::List => OpHeader::new(op::REQ_DEVLIST, OpStatus::Ok).to_bytes().to_vec(),
            Message::Devices(records) => {
                let mut bytes = OpHeader::new(op::REP_DEVLIST, OpStatus::Ok).to_bytes().to_vec();
                bytes.extend((records.len() as u32).to_be_bytes());
                records.iter().for_each(|record| record.encode(true, &mut bytes));
                bytes
            }
            Message::Import(bus_id) => {
                let head = OpHeader::new(op::REQ_IMPORT, OpStatus::Ok).to_bytes();
                [&head[..], &message::encode_bus_id(bus_id)].concat()
            }
            Message::Imported(Err(status)) => OpHeader::new(op::REP_IMPORT, *status).to_bytes().to_vec(),
            Message::Imported(Ok(record)) => {
                let mut bytes = OpHeader::new(op::REP_IMPORT, OpStatus::Ok).to_bytes().to_vec();
                record.encode(false, &mut bytes);
                bytes
            }
            Message::Submit { devid, submit, data, packets } => {
                [&submit.to_bytes(*devid)[..], data, &flat(packets)].concat()
            }
            Message::SubmitReply { reply, data, packets } => [&reply.to_bytes()[..], data, &flat(packets)].concat(),
            Message::Unlink { seqnum, devid, victim } => message::encode_unlink(*seqnum, *devid, *victim).to_vec(),
            Message::UnlinkReply { seqnum, status } => message::encode_unlink_reply(*seqnum, *status).to_vec(),
        }
    }

    /// Decodes `bytes`. What the wire does not say (whether an answer belongs to an IN or an isochronous request) is
    /// taken from `like`.
    fn decode(bytes: &[u8], like: &Message) -> Message {
        match like {
            Message::List | Message::Devices(_) | Message::Import(_) | Message::Imported(_) => {
                Self::decode_operation(bytes)
            }
            _ => Self::decode_urb(bytes, like),
        }
    }

    fn decode_operation(bytes: &[u8]) -> Message {
        let (head, rest) = bytes.split_first_chunk::<OP_HEADER_BYTES>().unwrap();
        let head = OpHeader::from_bytes(*head);
        let status = OpStatus::from_code(head.status);
        assert_eq!(head.version, 0x0111);
        match head.code {
            op::REQ_DEVLIST => Message::List,
            op::REP_DEVLIST => Message::Devices(decode_devices(rest)),
            op::REQ_IMPORT => Message::Import(message::decode_bus_id(rest.try_into().unwrap()).unwrap()),
            op::REP_IMPORT if status == OpStatus::Ok => {
                Message::Imported(Ok(DeviceRecord::decode(rest.try_into().unwrap()).unwrap()))
            }
            op::REP_IMPORT => {
                assert!(rest.is_empty(), "8 bytes and nothing more");
                Message::Imported(Err(status))
            }
            other => panic!("operation {other:#x}"),
        }
    }

    fn decode_urb(bytes: &[u8], like: &Message) -> Message {
        let (head, rest) = bytes.split_first_chunk::<HEADER_BYTES>().unwrap();
        let raw = RawHeader::from_bytes(head);
        match (raw.command, like) {
            (command::CMD_SUBMIT, _) => {
                let submit = SubmitCommand::check(&raw).unwrap();
                let size = if submit.direction == TransferDirection::Out { submit.length as usize } else { 0 };
                let (data, packets) = rest.split_at(size);
                let packets = message::decode_iso_packets(packets, submit.length).unwrap();
                Message::Submit { devid: raw.devid, submit, data: data.to_vec(), packets }
            }
            (command::RET_SUBMIT, Message::SubmitReply { packets, .. }) => {
                let reply = SubmitReply::from_raw(&raw);
                let (data, packets) = rest.split_at(rest.len() - packets.len() * ISO_PACKET_BYTES);
                let packets = packets.chunks(ISO_PACKET_BYTES).map(message::decode_iso_packet).collect();
                Message::SubmitReply { reply, data: data.to_vec(), packets }
            }
            (command::CMD_UNLINK, _) => Message::Unlink { seqnum: raw.seqnum, devid: raw.devid, victim: raw.body[0] },
            (command::RET_UNLINK, _) => {
                Message::UnlinkReply { seqnum: raw.seqnum, status: status::from_errno(raw.body[0].cast_signed()) }
            }
            (other, _) => panic!("command {other}"),
        }
    }
}

fn decode_devices(mut bytes: &[u8]) -> Vec<DeviceRecord> {
    let count = word(bytes, 0);
    bytes = &bytes[4..];
    let mut records = Vec::new();
    for _ in 0..count {
        let (record, rest) = bytes.split_first_chunk::<DEVICE_RECORD_BYTES>().unwrap();
        let mut record = DeviceRecord::decode(record).unwrap();
        let (classes, rest) = rest.split_at(4 * usize::from(record.interface_count));
        record.interfaces = classes.chunks(4).map(|class| [class[0], class[1], class[2]]).collect();
        records.push(record);
        bytes = rest;
    }
    assert!(bytes.is_empty());
    records
}

fn flat(packets: &[IsoPacket]) -> Vec<u8> {
    packets.iter().flat_map(message::encode_iso_packet).collect()
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden")
}

/// The bytes of a golden file.
fn read(name: &str) -> Vec<u8> {
    let path = folder().join(name).with_extension("hex");
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    text.lines().flat_map(|line| line_bytes(line).unwrap_or_else(|| panic!("{name}: {line}"))).collect()
}

fn line_bytes(line: &str) -> Option<Vec<u8>> {
    if let Some(quoted) = line.strip_prefix('"') {
        let (text, rest) = quoted.split_once("\"/")?;
        let bytes = rest.split_whitespace().next()?.parse().ok()?;
        return Some(peer::padded(text, bytes));
    }
    let digits: String = line.split('#').next()?.split_whitespace().collect();
    let byte = |at: usize| u8::from_str_radix(digits.get(at..at + 2)?, 16).ok();
    (0..digits.len()).step_by(2).map(byte).collect()
}

fn disk_and_keyboard(interfaces: Vec<[u8; 3]>) -> DeviceRecord {
    DeviceRecord {
        path: "/sys/devices/pci0000:00/0000:00:1d.1/usb3/3-2".into(),
        bus_id: "3-2".into(),
        bus: 3,
        device: 2,
        speed: UsbSpeed::High,
        vendor: 0x0525,
        product: 0xa4a5,
        device_bcd: 0x0409,
        class: [0; 3],
        configuration: 1,
        configurations: 1,
        interfaces,
        interface_count: 2,
    }
}

fn source() -> DeviceRecord {
    DeviceRecord {
        path: "/farbus/zero".into(),
        bus_id: "1-1".into(),
        bus: 1,
        device: 2,
        speed: UsbSpeed::Super,
        vendor: 0x0525,
        product: 0xa4a0,
        device_bcd: 0x0100,
        class: [0xff, 0, 0],
        configuration: 0,
        configurations: 1,
        interfaces: vec![],
        interface_count: 0,
    }
}

fn submit(seqnum: u32, endpoint: u8, length: u32) -> SubmitCommand {
    let endpoint = EpAddr::from_byte(endpoint);
    SubmitCommand {
        seqnum,
        endpoint,
        direction: endpoint.direction(),
        length,
        flags: UrbFlags::default(),
        start_frame: 0,
        number_of_packets: 0,
        interval: 0,
        setup: SetupPacket::default(),
    }
}

fn sent(submit: SubmitCommand, data: &[u8], packets: &[IsoPacket]) -> Message {
    Message::Submit { devid: 0x0003_0002, submit, data: data.to_vec(), packets: packets.to_vec() }
}

fn reply(seqnum: u32, actual: u32) -> SubmitReply {
    SubmitReply { seqnum, status: UrbStatus::Ok, actual, start_frame: 0, number_of_packets: 0, error_count: 0 }
}

fn returned(reply: SubmitReply, data: &[u8], packets: &[IsoPacket]) -> Message {
    Message::SubmitReply { reply, data: data.to_vec(), packets: packets.to_vec() }
}

fn packet(offset: u32, length: u32, actual: u32, status: UrbStatus) -> IsoPacket {
    IsoPacket { offset, length, actual, status }
}

/// Every golden file and its message.
fn vectors() -> Vec<(&'static str, Message)> {
    [operations(), submits(), replies(), unlinks()].concat()
}

fn operations() -> Vec<(&'static str, Message)> {
    vec![
        ("op_req_devlist", Message::List),
        ("op_rep_devlist", Message::Devices(vec![disk_and_keyboard(vec![[8, 6, 80], [3, 1, 1]]), source()])),
        ("op_rep_devlist_empty", Message::Devices(vec![])),
        ("op_req_import", Message::Import("3-2".into())),
        ("op_rep_import_ok", Message::Imported(Ok(disk_and_keyboard(vec![])))),
        ("op_rep_import_na", Message::Imported(Err(OpStatus::NotAvailable))),
        ("op_rep_import_busy", Message::Imported(Err(OpStatus::Busy))),
        ("op_rep_import_no_device", Message::Imported(Err(OpStatus::NoDevice))),
    ]
}

fn submits() -> Vec<(&'static str, Message)> {
    let none = UrbFlags::default();
    let descriptor = SetupPacket::get_descriptor(1, 0, 0, 18);
    let vendor = SetupPacket { request_type: 0x40, request: 0x5b, value: 0, index: 0, length: 3 };
    let hid = |endpoint, seqnum| SubmitCommand { start_frame: u32::MAX, interval: 4, ..submit(seqnum, endpoint, 64) };
    let captured =
        |submit, data: &[u8]| Message::Submit { devid: 0x0001_000f, submit, data: data.to_vec(), packets: vec![] };
    let mut report = vec![0; 64];
    report[..15].copy_from_slice(b"\xff\xff\xff\xff\x86\x00\x08\xa7\x84\xce\x5a\xe2\x12\x37\x63");
    let iso = |seqnum, endpoint, length| SubmitCommand {
        number_of_packets: 2,
        interval: 1,
        ..submit(seqnum, endpoint, length)
    };
    // The start of a READ(10) of eight blocks.
    let mut wrapper = b"USBC\x01\0\0\0\0\x10\0\0\x80\0\x0a\x28\0\0\0\0\0\0\0\x08".to_vec();
    wrapper.resize(31, 0);
    vec![
        (
            "cmd_submit_control_in",
            sent(SubmitCommand { direction: TransferDirection::In, setup: descriptor, ..submit(1, 0, 18) }, &[], &[]),
        ),
        ("cmd_submit_control_out", sent(SubmitCommand { setup: vendor, ..submit(2, 0, 3) }, &[7, 8, 9], &[])),
        (
            "cmd_submit_bulk_in",
            sent(
                SubmitCommand { flags: UrbFlags { short_not_ok: true, ..none }, ..submit(0xd11, 0x81, 512) },
                &[],
                &[],
            ),
        ),
        (
            "cmd_submit_bulk_out",
            sent(
                SubmitCommand {
                    flags: UrbFlags { zero_packet: true, ..none },
                    number_of_packets: u32::MAX,
                    ..submit(0xd12, 0x02, 31)
                },
                &wrapper,
                &[],
            ),
        ),
        ("cmd_submit_interrupt_in", captured(hid(0x81, 0xd05), &[])),
        ("cmd_submit_interrupt_out", captured(hid(0x01, 0xd06), &report)),
        (
            "cmd_submit_iso_in",
            sent(
                SubmitCommand { flags: UrbFlags { iso_asap: true, ..none }, ..iso(0xe01, 0x83, 0x180) },
                &[],
                &[packet(0, 0xc0, 0, UrbStatus::Ok), packet(0xc0, 0xc0, 0, UrbStatus::Ok)],
            ),
        ),
        (
            "cmd_submit_iso_out",
            sent(
                SubmitCommand { start_frame: 100, ..iso(0xe02, 0x03, 12) },
                b"\x11\x11\x11\x11\0\0\0\0\x22\x22\x22\x22",
                &[packet(0, 4, 0, UrbStatus::Ok), packet(8, 4, 0, UrbStatus::Ok)],
            ),
        ),
    ]
}

fn replies() -> Vec<(&'static str, Message)> {
    let hid = |seqnum| SubmitReply { start_frame: u32::MAX, ..reply(seqnum, 64) };
    let mut report = vec![0; 64];
    report[..24].copy_from_slice(
        b"\xff\xff\xff\xff\x86\x00\x11\xa7\x84\xce\x5a\xe2\x12\x37\x63\x61\x28\x91\xb1\x02\x01\x00\x00\x04",
    );
    let iso = |seqnum, actual, number_of_packets, error_count| SubmitReply {
        start_frame: 100,
        number_of_packets,
        error_count,
        ..reply(seqnum, actual)
    };
    let missed = packet(0xc0, 0xc0, 0, UrbStatus::IsoMissed);
    vec![
        ("ret_submit_bulk_in", returned(reply(0xd11, 5), b"hello", &[])),
        ("ret_submit_bulk_out", returned(SubmitReply { number_of_packets: u32::MAX, ..reply(0xd12, 31) }, &[], &[])),
        ("ret_submit_stall", returned(SubmitReply { status: UrbStatus::Stall, ..reply(0xd13, 0) }, &[], &[])),
        ("ret_submit_interrupt_in", returned(hid(0xd05), &report, &[])),
        ("ret_submit_interrupt_out", returned(hid(0xd06), &[], &[])),
        (
            "ret_submit_iso_in",
            returned(
                iso(0xe01, 6, 3, 1),
                b"\xa1\xa2\xa3\xa4\xc1\xc2",
                &[packet(0, 0xc0, 4, UrbStatus::Ok), missed, packet(0x180, 0xc0, 2, UrbStatus::Ok)],
            ),
        ),
        (
            "ret_submit_iso_out",
            returned(iso(0xe02, 8, 2, 0), &[], &[packet(0, 4, 4, UrbStatus::Ok), packet(8, 4, 4, UrbStatus::Ok)]),
        ),
    ]
}

fn unlinks() -> Vec<(&'static str, Message)> {
    vec![
        ("cmd_unlink", Message::Unlink { seqnum: 0xd14, devid: 0x0003_0002, victim: 0xd11 }),
        ("ret_unlink_in_time", Message::UnlinkReply { seqnum: 0xd14, status: UrbStatus::Cancelled }),
        ("ret_unlink_too_late", Message::UnlinkReply { seqnum: 0xd14, status: UrbStatus::Ok }),
    ]
}

#[test]
fn every_golden_message_is_understood() {
    for (name, message) in vectors() {
        assert_eq!(Message::decode(&read(name), &message), message, "{name}");
    }
}

#[test]
fn every_golden_message_is_written_the_same() {
    for (name, message) in vectors() {
        assert_eq!(message.encode(), read(name), "{name}");
    }
}

#[test]
fn the_tests_own_peer_writes_the_same() {
    let vectors = [
        ("op_req_devlist", peer::list_request()),
        ("op_req_import", peer::import_request("3-2")),
        ("op_rep_import_busy", peer::op(0x0111, 0x0003, 2)),
        ("ret_submit_bulk_in", peer::RetSubmit::data_in(0xd11, b"hello").bytes()),
        ("ret_submit_stall", peer::RetSubmit::failed(0xd13, peer::EPIPE).bytes()),
        ("ret_unlink_in_time", peer::ret_unlink(0xd14, peer::ECONNRESET)),
        (
            "cmd_submit_control_in",
            peer::Submit { devid: 0x0003_0002, flags: 0x200, ..peer::Submit::control(1, peer::setup::GET_DEVICE_18) }
                .bytes(),
        ),
        (
            "cmd_submit_iso_in",
            peer::Submit { devid: 0x0003_0002, flags: 0x202, ..peer::Submit::iso_in(0xe01, 3, &[0xc0, 0xc0]) }.bytes(),
        ),
    ];
    for (name, bytes) in vectors {
        assert_eq!(bytes, read(name), "{name}");
    }
}

#[test]
fn every_golden_file_is_held_against_a_message() {
    let files = std::fs::read_dir(folder()).unwrap().map(|entry| entry.unwrap().path());
    let files: BTreeSet<String> = files.map(|path| path.file_stem().unwrap().to_str().unwrap().to_owned()).collect();
    let known: BTreeSet<String> = vectors().into_iter().map(|(name, _)| name.to_owned()).collect();
    assert_eq!(files, known);
}
