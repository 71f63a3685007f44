//! What a peer may send, for each kind of frame: well-formed, repeated without end.
//!
//! Shared by the tests of the state machines and those of real processes.

use farbus_model::descriptor::string_to_bytes;
use farbus_model::module::ModuleOffer;
use farbus_model::{BlockId, BlockRequest, EpAddr, ExportIdentity, TransferType, Urb, UrbId};
use farbus_session::native::control::{
    AttachmentClass, AttachmentCredit, AttachmentEndCause, AttachmentEndNotice, AttachmentMode, OpenReply, OpenRequest,
    SuccessorOpenRequest,
};
use farbus_session::native::descriptors::{self, NamedDescriptor};
use farbus_session::native::identity::IdentityStatement;
use farbus_session::native::modules::encode_offers;
use farbus_session::native::reserve::{EndpointBandwidth, ReservationMessage, ReservationTerms};
use farbus_session::native::{FrameHeader, FrameKind, block, retire, usb};

/// The attachments of a peer that uses devices.
pub const DISK: u16 = 1;
pub const USB: u16 = 2;
pub const SHOW: u16 = 3;
/// An attachment that does not exist.
const NOTHING: u16 = 9;
/// The identity that peers of these tests name.
pub const IDENTITY: ExportIdentity = ExportIdentity { id: 7, generation: 0 };

/// What a peer sends in turn number `turn`.
pub type Says = Box<dyn FnMut(u32) -> Vec<u8>>;

pub fn frame(kind: FrameKind, attachment: u16, tag: u16, body: &[u8]) -> Vec<u8> {
    flagged(kind, false, attachment, tag, body)
}

pub fn flagged(kind: FrameKind, more: bool, attachment: u16, tag: u16, body: &[u8]) -> Vec<u8> {
    let mut head = FrameHeader::new(kind, attachment, tag);
    (head.flags.more, head.length) = (more, body.len() as u16);
    [&head.to_bytes()[..], body].concat()
}

pub fn says(name: &'static str, says: impl FnMut(u32) -> Vec<u8> + 'static) -> (&'static str, Says) {
    (name, Box::new(says))
}

/// An attachment number that is not in use.
pub fn fresh(turn: u32) -> u16 {
    (turn % 60_000) as u16 + 100
}

pub fn open(name: &str, class: AttachmentClass) -> OpenRequest {
    OpenRequest { class, mode: AttachmentMode::Exclusive, epoch: 0, name: name.into(), reason: "r".repeat(1000) }
}

pub fn reservation() -> ReservationTerms {
    let claims = (0..16).map(|endpoint| EndpointBandwidth { endpoint, bytes: 1000, period: 8 }).collect();
    ReservationTerms { claims, ..ReservationTerms::default() }
}

/// A string descriptor, another one in each turn.
fn string(turn: u32) -> Vec<u8> {
    string_to_bytes(&turn.to_string().repeat(12))
}

fn disk_request(tag: u16, is_read: bool, length: u32) -> Vec<u8> {
    let id = BlockId(tag.into());
    let request = match is_read {
        true => BlockRequest::read(id, 0, length),
        false => BlockRequest::write(id, 0, vec![7; length as usize].into()),
    };
    block::request_part(&request).to_vec()
}

fn usb_request(tag: u16, length: u32) -> Vec<u8> {
    let urb = Urb::data_in(UrbId(tag.into()), EpAddr::from_byte(0x81), length);
    usb::request_part(&urb, TransferType::Bulk).to_vec()
}

/// Everything that an importer may send of a kind, and what it may not.
pub fn of_importer(kind: FrameKind) -> Vec<(&'static str, Says)> {
    let plain = move |body: Vec<u8>| says("plain", move |turn| frame(kind, NOTHING, turn as u16, &body));
    match kind {
        FrameKind::Ping => {
            vec![says("pings", move |turn| frame(kind, 0, 0, &u64::from(turn).to_le_bytes()).repeat(64))]
        }
        FrameKind::Pong => vec![says("pongs", move |_| frame(kind, 0, 0, &[7; 8]).repeat(64))],
        FrameKind::Ack => vec![says("of nothing", move |_| frame(kind, 0, 0, &[]).repeat(64))],
        FrameKind::Goodbye => vec![plain(Vec::new())],
        FrameKind::Open => vec![
            says("of what is not there", move |turn| {
                frame(kind, fresh(turn), 0, &open("nosuch", AttachmentClass::BLOCK).encode())
            }),
            says("and close", move |turn| {
                let body = open("disk", AttachmentClass::BLOCK).encode();
                [frame(kind, fresh(turn), 0, &body), frame(FrameKind::Close, fresh(turn), 0, &[])].concat()
            }),
        ],
        FrameKind::Opened
        | FrameKind::Refused
        | FrameKind::Closed
        | FrameKind::MigrationState
        | FrameKind::Reply
        | FrameKind::Event
        | FrameKind::Lease
        | FrameKind::Descriptors => {
            vec![plain(vec![0; 1000])]
        }
        FrameKind::Retire => vec![
            says("of a disk, again and again", move |turn| frame(kind, DISK, 0, &[turn as u8 % 3]).repeat(64)),
            says("of what is not there", move |turn| frame(kind, fresh(turn), 0, &[0])),
            says("of a later word", move |turn| frame(kind, fresh(turn), 0, &[9; 1000])),
        ],
        FrameKind::Close => vec![
            says("of what is not there, with more", move |turn| flagged(kind, true, fresh(turn), 0, &[1; 60_000])),
            says("of what is not there", move |turn| frame(kind, fresh(turn), 0, &[])),
            says("of a device, with more", move |turn| {
                flagged(if turn == 0 { kind } else { FrameKind::Data }, true, DISK, 0, &[1; 60_000])
            }),
            says("of a device, in no pieces", move |turn| {
                flagged(if turn == 0 { kind } else { FrameKind::Data }, true, DISK, 0, &[]).repeat(64)
            }),
        ],
        FrameKind::Grant => vec![
            says("of what is shown", move |turn| {
                frame(kind, SHOW, 0, &(if turn == 0 { 4096_u32 } else { 0 }).to_le_bytes())
            }),
            says("of a device", move |_| frame(kind, DISK, 0, &1_u32.to_le_bytes())),
        ],
        FrameKind::Inherit => vec![says("of what is not there", move |turn| {
            let inherit = SuccessorOpenRequest { migration_state: [0; 8], open: open("nosuch", AttachmentClass::USB) };
            let offers = encode_offers(&[]);
            [frame(FrameKind::Modules, fresh(turn), 0, &offers), frame(kind, fresh(turn), 0, &inherit.encode())]
                .concat()
        })],
        FrameKind::Identity => vec![
            says("of devices that are never opened", move |turn| {
                frame(kind, fresh(turn), 0, &IdentityStatement::Expected(IDENTITY).encode())
            }),
            says("of one device, again and again", move |_| {
                frame(kind, NOTHING, 0, &IdentityStatement::Expected(IDENTITY).encode()).repeat(64)
            }),
            says("of a later word", move |turn| frame(kind, fresh(turn), 0, &[9; 1000])),
        ],
        FrameKind::Modules => vec![says("of devices that are never opened", move |turn| {
            let (name, parameters) = ("m".repeat(1000), "p".repeat(1000));
            let offer = ModuleOffer { name, version: 1, parameters, opening: vec![7; 1000] };
            frame(kind, fresh(turn), 0, &encode_offers(&vec![offer; 8]))
        })],
        FrameKind::Request => vec![
            says("reads of a disk", move |turn| frame(kind, DISK, turn as u16 % 8192, &disk_request(1, true, 1 << 20))),
            says("small reads of a disk", move |turn| {
                frame(kind, DISK, turn as u16 % 8192, &disk_request(1, true, 512)).repeat(1)
            }),
            says("reads of a USB device", move |turn| frame(kind, USB, turn as u16 % 8192, &usb_request(1, 1 << 16))),
            says("of nothing", move |turn| frame(kind, NOTHING, turn as u16, &[0; 60_000])),
        ],
        FrameKind::Data => vec![
            says("of nothing", move |_| flagged(kind, true, NOTHING, 0, &[0; 60_000])),
            says("of a write, a byte at a time", move |turn| {
                let first = flagged(FrameKind::Request, true, DISK, 5, &disk_request(5, false, 1 << 20));
                let rest = flagged(kind, true, DISK, 5, &[7]).repeat(512);
                if turn == 0 { first } else { rest }
            }),
            says("of a write, none at a time", move |turn| {
                let first = flagged(FrameKind::Request, true, DISK, 5, &disk_request(5, false, 1 << 20));
                if turn == 0 { first } else { flagged(kind, true, DISK, 5, &[]).repeat(512) }
            }),
            says("of writes, little between much that is for nobody", move |turn| {
                let tag = (turn / 16) as u16;
                let garbage = frame(FrameKind::Later(200), 0, 0, &[9; 60_000]).repeat(4);
                let part = flagged(kind, true, DISK, tag, &[7; 4096]);
                let first = flagged(FrameKind::Request, true, DISK, tag, &disk_request(tag, false, 100 << 10));
                [if turn % 16 == 0 { first } else { part }, garbage].concat()
            }),
        ],
        FrameKind::Cancel => vec![says("of what is not in flight", move |turn| {
            (0..64).flat_map(|n| frame(kind, USB, (turn * 64 + n) as u16 % 8192, &[])).collect()
        })],
        FrameKind::Aside => vec![says("to a disk", move |_| frame(kind, DISK, 1, &[0; 10_000]))],
        FrameKind::Reserve => vec![
            says("asked for, measured and closed", move |turn| {
                let ask = frame(kind, fresh(turn), 0, &ReservationMessage::Ask(reservation()).encode());
                let echo = frame(kind, fresh(turn), 0, &ReservationMessage::Echo.encode());
                [ask, echo, frame(FrameKind::Close, fresh(turn), 0, &[])].concat()
            }),
            says("asked for", move |turn| {
                frame(kind, fresh(turn), 0, &ReservationMessage::Ask(reservation()).encode())
            }),
            says("asked for, measured and opened", move |turn| {
                let messages =
                    [ReservationMessage::Ask(reservation()), ReservationMessage::Echo, ReservationMessage::Measured(1)];
                let mut all: Vec<u8> =
                    messages.iter().flat_map(|word| frame(kind, fresh(turn), 0, &word.encode())).collect();
                all.extend(frame(FrameKind::Open, fresh(turn), 0, &open("nosuch", AttachmentClass::USB).encode()));
                all
            }),
        ],
        FrameKind::Later(_) => vec![says("not known", move |_| frame(kind, 0, 0, &[0; 60_000]))],
    }
}

/// Everything that an exporter may send of a kind, and what it may not, to an importer that uses one of its devices.
pub fn of_exporter(kind: FrameKind) -> Vec<(&'static str, Says)> {
    let plain = move |body: Vec<u8>| says("plain", move |turn| frame(kind, 1, turn as u16, &body));
    let none_at_a_time = move |first: Vec<u8>| {
        says("in no pieces", move |turn| {
            let pieces = flagged(FrameKind::Data, true, 1, 0, &[]).repeat(512);
            if turn == 0 { flagged(kind, true, 1, 0, &first) } else { pieces }
        })
    };
    let a_byte_at_a_time = move |first: Vec<u8>| {
        says("a byte at a time", move |turn| {
            let pieces = flagged(FrameKind::Data, true, 1, 0, &[7]).repeat(512);
            if turn == 0 { flagged(kind, true, 1, 0, &first) } else { pieces }
        })
    };
    let end = |cause| AttachmentEndNotice { cause, message: "m".repeat(1000) }.encode();
    match kind {
        FrameKind::Ping => {
            vec![says("pings", move |turn| frame(kind, 0, 0, &u64::from(turn).to_le_bytes()).repeat(64))]
        }
        FrameKind::Pong => vec![says("pongs", move |_| frame(kind, 0, 0, &[7; 8]).repeat(64))],
        FrameKind::Ack => vec![says("of nothing", move |_| frame(kind, 0, 0, &[]).repeat(64))],
        FrameKind::Goodbye
        | FrameKind::Open
        | FrameKind::Close
        | FrameKind::Grant
        | FrameKind::Inherit
        | FrameKind::Modules
        | FrameKind::Request => {
            vec![plain(vec![0; 1000])]
        }
        FrameKind::Opened => vec![
            plain(
                OpenReply { epoch: 1, credit: AttachmentCredit { requests: 1, bytes: 1 }, info: vec![0; 50_000] }
                    .encode(),
            ),
            none_at_a_time(vec![1]),
            a_byte_at_a_time(vec![1]),
            says("begun again and again", move |_| flagged(kind, true, 1, 0, &[]).repeat(512)),
        ],
        FrameKind::Refused | FrameKind::Closed => vec![plain(end(AttachmentEndCause::Refused))],
        FrameKind::MigrationState => vec![
            plain(vec![0; 60_000]),
            says("a byte at a time", move |_| flagged(kind, true, 1, 0, &[7]).repeat(512)),
            says("in no pieces", move |_| flagged(kind, true, 1, 0, &[]).repeat(512)),
        ],
        FrameKind::Reply => vec![plain(vec![0; 1000]), none_at_a_time(Vec::new()), a_byte_at_a_time(Vec::new())],
        FrameKind::Data => vec![plain(vec![0; 60_000])],
        FrameKind::Cancel => vec![plain(Vec::new())],
        FrameKind::Event => vec![plain(vec![0; 60_000]), none_at_a_time(Vec::new()), a_byte_at_a_time(Vec::new())],
        FrameKind::Aside => vec![plain(vec![0; 10_000])],
        FrameKind::Identity => vec![
            says("of a device", move |_| frame(kind, 1, 0, &IdentityStatement::Is(IDENTITY).encode()).repeat(64)),
            says("of others in turn", move |turn| {
                let identity = ExportIdentity { id: u128::from(turn) + 1, generation: 0 };
                frame(kind, 1, 0, &IdentityStatement::Is(identity).encode())
            }),
            says("of a later word", move |_| frame(kind, 1, 0, &[9; 1000])),
        ],
        FrameKind::Reserve => vec![
            says("echoes", move |_| frame(kind, 1, 0, &ReservationMessage::Echo.encode()).repeat(64)),
            says("trains", move |_| {
                frame(kind, 1, 0, &ReservationMessage::Train { position: 0, cars: 1 }.encode()).repeat(64)
            }),
        ],
        FrameKind::Retire => vec![
            says("answers, unasked", move |turn| frame(kind, 1, 0, &[16, turn as u8 % 3]).repeat(64)),
            says("long reasons", move |_| {
                frame(
                    kind,
                    1,
                    0,
                    &retire::DiskMoveMessage::Unable(retire::DiskMoveStep::Moved, "w".repeat(9000)).encode(),
                )
            }),
            says("of a later word", move |_| frame(kind, 1, 0, &[9; 1000])),
        ],
        FrameKind::Descriptors => vec![
            says("strings", move |turn| {
                let string = |index| NamedDescriptor { kind: 3, index, language: 0x0409, bytes: string(turn) };
                frame(kind, 1, 0, &descriptors::encode(&[1, 2, 3].map(string), usize::MAX)).repeat(64)
            }),
            says("as much as there may be", move |_| {
                let longest = [&[255, 15][..], &[7; 4094]].concat();
                let store = NamedDescriptor { kind: 15, index: 0, language: 0, bytes: longest };
                frame(kind, 1, 0, &descriptors::encode(&vec![store; 7], usize::MAX))
            }),
            says("more than there may be", move |_| frame(kind, 1, 0, &[0xff; 60_000])),
            plain(vec![1, 0, 3]),
        ],
        FrameKind::Lease => vec![
            says("ends soon", move |turn| frame(kind, 1, 0, &[&[0][..], &turn.to_le_bytes()].concat()).repeat(64)),
            says("of a later word", move |_| frame(kind, 1, 0, &[9; 1000])),
            plain(vec![0; 3]),
        ],
        FrameKind::Later(_) => vec![says("not known", move |_| frame(kind, 0, 0, &[0; 60_000]))],
    }
}

/// All kinds that exist, and one that may be added later.
pub fn all_kinds() -> impl Iterator<Item = FrameKind> {
    FrameKind::ALL.into_iter().chain([FrameKind::Later(200)])
}
