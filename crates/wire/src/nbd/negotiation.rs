//! The handshake: the options that a client may send before it uses an export, and their answers.
//!
//! | the client says | the answer |
//! |---|---|
//! | `EXPORT_NAME` | the export, or the end of the connection: the protocol has no way to refuse |
//! | `LIST` | all exports by name, then ACK |
//! | `INFO`, `GO` | what the export is, always with its block sizes, then ACK; `ERR_UNKNOWN` |
//! | `STRUCTURED_REPLY` | ACK |
//! | `LIST_META_CONTEXT`, `SET_META_CONTEXT` | `base:allocation` if that is asked for, then ACK; `ERR_UNKNOWN` |
//! | `ABORT` | ACK, and the end |
//! | `STARTTLS`, `EXTENDED_HEADERS`, anything else | `ERR_UNSUP`, and the client continues without it |
//! | data where there is none, or too little of it | `ERR_INVALID` |
//! | more data than any option needs | `ERR_TOO_BIG`; what follows is skipped, not kept |

use farbus_model::BlockInfo;
use farbus_model::limits::NBD_ANNOUNCED_BYTES_MAX;

use super::export::NbdExportDescription;
use super::message::{self, CONTEXT, CONTEXT_ID, NAME_BYTES_MAX, info, option, reply};
use crate::buffer::SendBuffer;

/// The outcome of an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OptionOutcome {
    /// The handshake continues.
    On,
    /// The client uses the export with this index from now on.
    Begin(usize),
    /// Structured replies may be used from now on.
    Structured,
    /// What `SET_META_CONTEXT` selected: the context of the export with this index, or none.
    Selected(Option<usize>),
    /// The connection ends once the waiting bytes are sent.
    End,
    /// The connection ends at once: the client named an unknown export, and the protocol has no answer for that.
    HangUp,
}

/// The fields of an option's data, read from the front.
struct OptionFieldReader<'a>(&'a [u8]);

impl<'a> OptionFieldReader<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (front, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(front)
    }

    fn word(&mut self) -> Option<u32> {
        Some(u32::from_be_bytes(*self.take(4)?.first_chunk()?))
    }

    fn half(&mut self) -> Option<u16> {
        Some(u16::from_be_bytes(*self.take(2)?.first_chunk()?))
    }

    fn text(&mut self) -> Option<&'a str> {
        let length = self.word()? as usize;
        if length > NAME_BYTES_MAX {
            return None;
        }
        std::str::from_utf8(self.take(length)?).ok()
    }
}

/// The export's name and the requested information of `INFO` and `GO`.
fn read_info_request(data: &[u8]) -> Option<(&str, Vec<u16>)> {
    let mut fields = OptionFieldReader(data);
    let name = fields.text()?;
    let count = fields.half()?;
    let requested = (0..count).map(|_| fields.half()).collect::<Option<Vec<u16>>>()?;
    fields.0.is_empty().then_some((name, requested))
}

/// The export's name in `LIST_META_CONTEXT` or `SET_META_CONTEXT`, and whether one of the queries means [`CONTEXT`];
/// `None` if the data is malformed.
fn read_meta_request(kind: u32, data: &[u8]) -> Option<(&str, bool)> {
    let mut fields = OptionFieldReader(data);
    let name = fields.text()?;
    let count = fields.word()?;
    // Without a query, all contexts are listed, and none is selected.
    let mut is_meant = kind == option::LIST_META_CONTEXT && count == 0;
    for _ in 0..count {
        let query = fields.text()?;
        is_meant |= query == CONTEXT || (kind == option::LIST_META_CONTEXT && query == "base:");
    }
    fields.0.is_empty().then_some((name, is_meant))
}

/// Lists or selects the metadata context. Returns what was selected: none after a refusal.
fn tell_context(
    kind: u32,
    data: &[u8],
    exports: &[NbdExportDescription],
    is_structured: bool,
    to: &mut SendBuffer,
) -> Option<usize> {
    if !is_structured {
        answer(to, kind, reply::ERR_INVALID, b"structured replies come first");
        return None;
    }
    let Some((name, is_meant)) = read_meta_request(kind, data) else {
        answer(to, kind, reply::ERR_INVALID, b"its data does not add up");
        return None;
    };
    let Some(export) = find(exports, name) else {
        answer(to, kind, reply::ERR_UNKNOWN, b"there is no such export");
        return None;
    };
    if is_meant {
        let id = if kind == option::SET_META_CONTEXT { CONTEXT_ID } else { 0 };
        answer(to, kind, reply::META_CONTEXT, &[&id.to_be_bytes(), CONTEXT.as_bytes()].concat());
    }
    answer(to, kind, reply::ACK, &[]);
    is_meant.then_some(export)
}

fn find(exports: &[NbdExportDescription], name: &str) -> Option<usize> {
    // The empty name is the default export: the first.
    if name.is_empty() && !exports.is_empty() {
        return Some(exports.iter().position(|export| export.name.is_empty()).unwrap_or(0));
    }
    exports.iter().position(|export| export.name == name)
}

/// Answers one option. `is_structured` says whether structured replies were agreed on before.
pub(crate) fn negotiate(
    kind: u32,
    data: &[u8],
    exports: &[NbdExportDescription],
    is_structured: bool,
    is_padded: bool,
    to: &mut SendBuffer,
) -> OptionOutcome {
    match kind {
        option::EXPORT_NAME => {
            let Some(at) = std::str::from_utf8(data).ok().and_then(|name| find(exports, name)) else {
                return OptionOutcome::HangUp;
            };
            to.put(&exports[at].info.size_bytes.to_be_bytes());
            to.put(&message::transmission_flags(&exports[at].info, is_structured).to_be_bytes());
            if is_padded {
                to.put(&[0; 124]);
            }
            return OptionOutcome::Begin(at);
        }
        option::ABORT => {
            answer(to, kind, reply::ACK, &[]);
            return OptionOutcome::End;
        }
        option::LIST if data.is_empty() => {
            for export in exports {
                let name = export.name.as_bytes();
                let length = (name.len() as u32).to_be_bytes();
                let bytes = [&length, name, export.description.as_bytes()].concat();
                answer(to, kind, reply::SERVER, &bytes);
            }
            answer(to, kind, reply::ACK, &[]);
        }
        option::INFO | option::GO => return tell(kind, data, exports, is_structured, to),
        option::STRUCTURED_REPLY if data.is_empty() => {
            answer(to, kind, reply::ACK, &[]);
            return OptionOutcome::Structured;
        }
        option::LIST_META_CONTEXT => {
            tell_context(kind, data, exports, is_structured, to);
        }
        option::SET_META_CONTEXT => {
            return OptionOutcome::Selected(tell_context(kind, data, exports, is_structured, to));
        }
        option::LIST | option::STRUCTURED_REPLY => answer(to, kind, reply::ERR_INVALID, b"it has no data"),
        _ => answer(to, kind, reply::ERR_UNSUP, b"this server does not know that"),
    }
    OptionOutcome::On
}

fn tell(
    kind: u32,
    data: &[u8],
    exports: &[NbdExportDescription],
    is_structured: bool,
    to: &mut SendBuffer,
) -> OptionOutcome {
    let Some((name, requested)) = read_info_request(data) else {
        answer(to, kind, reply::ERR_INVALID, b"its data does not add up");
        return OptionOutcome::On;
    };
    let Some(at) = find(exports, name) else {
        answer(to, kind, reply::ERR_UNKNOWN, b"there is no such export");
        return OptionOutcome::On;
    };
    let export = &exports[at];
    let mut bytes = info::EXPORT.to_be_bytes().to_vec();
    bytes.extend(export.info.size_bytes.to_be_bytes());
    bytes.extend(message::transmission_flags(&export.info, is_structured).to_be_bytes());
    answer(to, kind, reply::INFO, &bytes);
    // Sent without being asked for, as the specification allows: a client that reads it makes requests that fit.
    answer(to, kind, reply::INFO, &block_sizes(&export.info));
    for (information, text) in [(info::NAME, &export.name), (info::DESCRIPTION, &export.description)] {
        if requested.contains(&information) {
            answer(to, kind, reply::INFO, &[&information.to_be_bytes(), text.as_bytes()].concat());
        }
    }
    answer(to, kind, reply::ACK, &[]);
    if kind == option::GO { OptionOutcome::Begin(at) } else { OptionOutcome::On }
}

/// "Block size constraints": minimum, preferred, and the most bytes of a payload.
fn block_sizes(info: &BlockInfo) -> Vec<u8> {
    let mut bytes = info::BLOCK_SIZE.to_be_bytes().to_vec();
    let preferred = info.preferred_bytes.max(512).max(info.block_bytes);
    for size in [info.block_bytes, preferred, NBD_ANNOUNCED_BYTES_MAX] {
        bytes.extend(size.to_be_bytes());
    }
    bytes
}

/// Puts one whole answer.
pub(crate) fn answer(to: &mut SendBuffer, option: u32, kind: u32, data: &[u8]) {
    to.put(&message::option_reply(option, kind, data.len()));
    to.put(data);
}
